/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/form.c: forms from the table: by role, so that neither their order in a unit nor the
 * wrap matters; widths are those of this rank's parts. */
#include "engine/model/model_int.h"

int zt_tensor_in_half(const struct zt_model_table *t, int layer, enum zt_role first,
                      enum zt_role role, enum zt_piece piece) {
    int i = zt_model_find(t, layer, role, piece);
    return i < 0 ? -1 : i - zt_model_find(t, layer, first, ZT_WEIGHT);
}

struct zt_linear_form zt_linear_of(const struct zt_model_table *t, int layer, enum zt_role first,
                                   enum zt_role role, const char *name, const char *gradient) {
    const int adapter = zt_model_find(t, layer, role, ZT_LORA_A);
    return (struct zt_linear_form){
        .weight = zt_tensor_in_half(t, layer, first, role, ZT_WEIGHT),
        .bias = zt_tensor_in_half(t, layer, first, role, ZT_BIAS),
        .lora_a = zt_tensor_in_half(t, layer, first, role, ZT_LORA_A),
        .lora_b = zt_tensor_in_half(t, layer, first, role, ZT_LORA_B),
        .width = t->tensors[zt_model_find(t, layer, role, ZT_WEIGHT)].shape[0],
        .rank = adapter < 0 ? 0 : t->tensors[adapter].shape[0],
        .name = name,
        .gradient = gradient};
}

int64_t zt_inputs_of(const struct zt_model_table *t, enum zt_role role) {
    return t->tensors[zt_model_find(t, 0, role, ZT_WEIGHT)].shape[1];
}

/* Index inside its unit of a tensor outside the blocks, -1: none. */
static int outside(const struct zt_model_table *t, enum zt_role role, enum zt_piece piece) {
    int i = zt_model_find(t, -1, role, piece);
    return i < 0 ? -1 : i - t->units[t->tensors[i].unit].first_tensor;
}

void zt_block_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]) {
    const int begin = zt_model_find(t, layer, ZT_ROLE_NORM1, ZT_WEIGHT);
    const int second = zt_model_find(t, layer, ZT_ROLE_NORM2, ZT_WEIGHT);
    int end = second;
    (t->config.family == ZT_LLAMA ? zt_llama_form : zt_gpt2_form)(t, layer, half);
    while (end < t->n_tensors && t->tensors[end].layer == layer) end++;
    half[0].n_tensors = second - begin;
    half[1].n_tensors = end - second;
}

void zt_form_build(const struct zt_model_table *t, struct zt_form *f) {
    const int tokens = zt_model_find(t, -1, ZT_ROLE_EMBEDDING, ZT_WEIGHT);
    const int head = zt_model_find(t, -1, ZT_ROLE_HEAD, ZT_WEIGHT);
    f->embed_unit = t->tensors[tokens].unit;
    f->head_unit = t->tensors[head < 0 ? tokens : head].unit;
    f->tokens = outside(t, ZT_ROLE_EMBEDDING, ZT_WEIGHT);
    f->positions = outside(t, ZT_ROLE_POSITIONS, ZT_WEIGHT);
    f->head = head < 0 ? f->tokens : outside(t, ZT_ROLE_HEAD, ZT_WEIGHT);
    f->final = (struct zt_norm_form){outside(t, ZT_ROLE_FINAL_NORM, ZT_WEIGHT),
                                     outside(t, ZT_ROLE_FINAL_NORM, ZT_BIAS),
                                     "stream",
                                     "final norm",
                                     "final norm mean",
                                     "final norm rstd",
                                     "final norm gradient"};
    f->vocab_rows = t->tensors[tokens].shape[0];
}
