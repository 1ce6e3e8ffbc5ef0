/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/llama.c: Llama and Qwen: RMSNorm, rotary positions, grouped queries, SwiGLU, tied or
 * untied head; biases on q, k and v (Qwen2) and norms on the heads of q and k (Qwen3) where the
 * table has them. Which tensor is what (core/model.h). */
#include "engine/model/model_int.h"

static struct zt_norm_form norm(int weight, const char *stream, const char *name, const char *rstd,
                                const char *gradient) {
    return (struct zt_norm_form){weight, -1, stream, name, NULL, rstd, gradient};
}

void zt_llama_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]) {
    struct zt_half_form *a = &half[0], *m = &half[1];
    const enum zt_role first = ZT_ROLE_NORM1, second = ZT_ROLE_NORM2;
    *a = (struct zt_half_form){
        .mix = ZT_MIX_ATTENTION,
        .norm = norm(0, "stream", "norm 1", "norm 1 rstd", "norm 1 gradient"),
        .n_in = 3,
        .in = {zt_linear_of(t, layer, first, ZT_ROLE_Q, "q", "q gradient"),
               zt_linear_of(t, layer, first, ZT_ROLE_K, "k", "k gradient"),
               zt_linear_of(t, layer, first, ZT_ROLE_V, "v", "v gradient")},
        .q_norm = zt_tensor_in_half(t, layer, first, ZT_ROLE_Q_NORM, ZT_WEIGHT),
        .k_norm = zt_tensor_in_half(t, layer, first, ZT_ROLE_K_NORM, ZT_WEIGHT),
        .rope = true,
        .out = zt_linear_of(t, layer, first, ZT_ROLE_ATTENTION_OUT, "attention projection",
                            "attention projection gradient"),
        .mixed = zt_inputs_of(t, ZT_ROLE_ATTENTION_OUT),
        .mixed_name = "attention",
        .mixed_gradient = "attention gradient"};
    *m = (struct zt_half_form){
        .mix = ZT_MIX_SWIGLU,
        .norm = norm(0, "residual", "norm 2", "norm 2 rstd", "norm 2 gradient"),
        .n_in = 2,
        .in = {zt_linear_of(t, layer, second, ZT_ROLE_GATE, "mlp gate", NULL),
               zt_linear_of(t, layer, second, ZT_ROLE_UP, "mlp up", NULL)},
        .q_norm = -1,
        .k_norm = -1,
        .out = zt_linear_of(t, layer, second, ZT_ROLE_DOWN, "mlp projection",
                            "mlp projection gradient"),
        .mixed = zt_inputs_of(t, ZT_ROLE_DOWN),
        .mixed_name = "mlp product",
        .mixed_gradient = "mlp gradient"};
}
