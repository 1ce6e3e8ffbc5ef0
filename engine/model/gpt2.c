/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/gpt2.c: GPT-2: learned positions, pre-LayerNorm blocks, q, k and v in one layer,
 * GELU (tanh), biases, tied head. Which tensor is what, in the order of the table (core/model.h).
 */
#include "engine/model/model_int.h"

enum root_tensor { WTE = 0, WPE, LNF_W, LNF_B };
enum half_tensor { NORM_W = 0, NORM_B, IN_W, IN_B, OUT_W, OUT_B, HALF_TENSORS };

void zt_gpt2_form(const struct zt_model_table *t, struct zt_form *f) {
    const struct zt_model_config *c = &t->config;
    *f = (struct zt_form){
        .half = {{.mix = ZT_MIX_ATTENTION,
                  .norm = {NORM_W, NORM_B, "stream", "norm 1", "norm 1 mean", "norm 1 rstd",
                           "norm 1 gradient"},
                  .in = {{IN_W, IN_B, 3 * c->dim, "qkv", "qkv gradient"}},
                  .out = {OUT_W, OUT_B, c->dim, "attention projection", NULL},
                  .mixed = c->dim,
                  .mixed_name = "attention",
                  .mixed_gradient = "attention gradient"},
                 {.mix = ZT_MIX_GELU,
                  .norm = {NORM_W, NORM_B, "residual", "norm 2", "norm 2 mean", "norm 2 rstd",
                           "norm 2 gradient"},
                  .in = {{IN_W, IN_B, c->ffn_dim, "mlp hidden", NULL}},
                  .out = {OUT_W, OUT_B, c->dim, "mlp projection", NULL},
                  .mixed = c->ffn_dim,
                  .mixed_name = "mlp gelu",
                  .mixed_gradient = "mlp gradient"}},
        .tokens = WTE,
        .positions = WPE,
        .final = {LNF_W, LNF_B, "stream", "final norm", "final norm mean", "final norm rstd",
                  "final norm gradient"},
        .head = WTE,
    };
    for (int i = 0; i < 2; i++) {
        f->half[i].n_tensors = HALF_TENSORS;
        f->half[i].n_in = 1;
    }
}
