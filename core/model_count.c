/* SPDX-License-Identifier: Apache-2.0 */
/* core/model_count.c: how many parameters a model has, from its numbers alone. Pure. */
#include "core/model.h"

static void layer(struct zt_model_count *n, int64_t copies, int64_t matrix, int64_t bias) {
    n->parameters += copies * (matrix + bias);
    if (matrix + bias > n->largest_layer)
        n->largest_layer = matrix + bias;
}

static void replicated(struct zt_model_count *n, int64_t copies, int64_t elements) {
    n->parameters += copies * elements;
    n->replicated += copies * elements;
}

/* Norms have weight and bias; of the four matrices of a block two are cut by row, and their biases are whole. */
static void count_gpt2(const struct zt_model_config *c, struct zt_model_count *n) {
    const int64_t h = c->dim, f = c->ffn_dim, L = c->layers;
    replicated(n, 1, c->seq_len_max * h + 2 * h);
    replicated(n, L, 4 * h);
    layer(n, L, 3 * h * h, 3 * h);
    layer(n, L, h * h, h);
    layer(n, L, f * h, f);
    layer(n, L, h * f, h);
    n->replicated += L * 2 * h;
    if (c->seq_len_max * h > n->largest_layer)
        n->largest_layer = c->seq_len_max * h;
}

/* Norms have a weight alone; queries, keys and values may have biases, which are cut with their columns. */
static void count_llama(const struct zt_model_config *c, struct zt_model_count *n) {
    const int64_t h = c->dim, f = c->ffn_dim, L = c->layers;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    replicated(n, 1, h);
    replicated(n, L, 2 * h + (c->qk_norm ? 2 * c->head_dim : 0));
    layer(n, L, h * q, c->qkv_bias ? q : 0);
    layer(n, 2 * L, h * kv, c->qkv_bias ? kv : 0);
    layer(n, L, q * h, 0);
    layer(n, 3 * L, h * f, 0);
}

int zt_model_count(const struct zt_model_config *c, struct zt_model_count *out, struct zt_error *err) {
    *out = (struct zt_model_count){0, 0, 0};
    int rc = zt_model_config_check(c, err);
    if (rc)
        return rc;
    layer(out, c->tied_head ? 1 : 2, c->vocab_size * c->dim, 0);
    if (c->family == ZT_GPT2)
        count_gpt2(c, out);
    else
        count_llama(c, out);
    return 0;
}
