/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/gpt2.c: GPT-2: learned positions, pre-LayerNorm blocks, q, k and v in one layer,
 * GELU (tanh), biases, tied head. Which tensor is what (core/model.h). */
#include "engine/model/model_int.h"

void zt_gpt2_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]) {
    const enum zt_role first = ZT_ROLE_NORM1, second = ZT_ROLE_NORM2;
    half[0] = (struct zt_half_form){
        .mix = ZT_MIX_ATTENTION,
        .norm = {0, 1, "stream", "norm 1", "norm 1 mean", "norm 1 rstd", "norm 1 gradient"},
        .n_in = 1,
        .in = {zt_linear_of(t, layer, first, ZT_ROLE_QKV, "qkv", "qkv gradient")},
        .q_norm = -1,
        .k_norm = -1,
        .out = zt_linear_of(t, layer, first, ZT_ROLE_ATTENTION_OUT, "attention projection",
                            "attention projection gradient"),
        .mixed = zt_inputs_of(t, ZT_ROLE_ATTENTION_OUT),
        .mixed_name = "attention",
        .mixed_gradient = "attention gradient"};
    half[1] = (struct zt_half_form){
        .mix = ZT_MIX_GELU,
        .norm = {0, 1, "residual", "norm 2", "norm 2 mean", "norm 2 rstd", "norm 2 gradient"},
        .n_in = 1,
        .in = {zt_linear_of(t, layer, second, ZT_ROLE_UP, "mlp hidden", NULL)},
        .q_norm = -1,
        .k_norm = -1,
        .out = zt_linear_of(t, layer, second, ZT_ROLE_DOWN, "mlp projection",
                            "mlp projection gradient"),
        .mixed = zt_inputs_of(t, ZT_ROLE_DOWN),
        .mixed_name = "mlp gelu",
        .mixed_gradient = "mlp gradient"};
}
