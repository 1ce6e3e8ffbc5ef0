/* SPDX-License-Identifier: Apache-2.0 */
/* core/activation.c: see activation.h. */
#include "core/activation.h"

#include "core/units.h"

/* A part that a tensor-parallel rank has whole, and one of which it has its share. */
static int64_t local(int64_t whole, int64_t cut, int tensor, bool sequence_parallel) {
    ZT_ASSERT(tensor >= 1);
    return sequence_parallel ? zt_ceil_div(whole + cut, tensor) : whole + zt_ceil_div(cut, tensor);
}

int64_t zt_activation_korthikanti(const struct zt_korthikanti *k, enum zt_recompute recompute) {
    const int64_t sbh = k->sequence * k->batch * k->width;
    const int64_t core = 5 * k->heads * k->sequence * k->sequence * k->batch;
    if (recompute == ZT_RECOMPUTE_FULL) return local(2 * sbh, 0, k->tensor, k->sequence_parallel);
    return local(10 * sbh, 24 * sbh + (recompute == ZT_RECOMPUTE_NONE ? core : 0), k->tensor,
                 k->sequence_parallel);
}

const char *zt_activation_korthikanti_formula(bool tensor, bool sequence_parallel,
                                              enum zt_recompute recompute) {
    static const char *const text[3][3] = {
        [ZT_RECOMPUTE_NONE] = {"sbh(34 + 5as/h)", "sbh(10 + 24/t + 5as/(ht))", "sbh(34 + 5as/h)/t"},
        [ZT_RECOMPUTE_SELECTIVE] = {"34sbh", "sbh(10 + 24/t)", "34sbh/t"},
        [ZT_RECOMPUTE_FULL] = {"2sbh", "2sbh", "2sbh/t"}};
    return text[recompute][tensor ? 1 + sequence_parallel : 0];
}

struct zt_activation zt_activation_layer(const struct zt_activation_case *c,
                                         enum zt_recompute recompute) {
    const struct zt_model_config *m = c->model;
    const bool gated = m->family == ZT_LLAMA, none = recompute == ZT_RECOMPUTE_NONE;
    const int64_t tokens = c->sequence * c->batch, size = (int64_t)zt_dtype_size(c->type);
    const int64_t heads = m->head_dim * (2 * m->heads + 2 * m->kv_heads); /* q, k, v, output */
    static const int64_t mlp[] = {[ZT_MLP_ALL] = 4, [ZT_MLP_PRODUCT] = 3, [ZT_MLP_INPUTS] = 2};
    if (recompute == ZT_RECOMPUTE_FULL)
        return (struct zt_activation){
            local(tokens * size * m->dim, 0, c->tensor, c->sequence_parallel), 0};
    const int64_t streams = (none ? 4 : 2) * m->dim;
    const int64_t wide = m->ffn_dim * (gated ? none ? mlp[c->mlp] : 2 : none ? 2 : 1);
    const int64_t norms = none ? (gated ? 2 : 4) * 4 : 0, lse = 4 * m->heads;
    return (struct zt_activation){
        local(tokens * size * streams, tokens * size * (heads + wide), c->tensor,
              c->sequence_parallel),
        local(tokens * norms, tokens * lse, c->tensor, c->sequence_parallel)};
}
