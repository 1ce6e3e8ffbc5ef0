/* SPDX-License-Identifier: Apache-2.0 */
/* core/model_table.c: the tensor table of each family and its units. A family is two lists of rows,
 * one for what is outside the blocks and one for a block; what a tensor starts from and how tensor
 * parallelism cuts it follow from its role. Pure; the table is one malloc per array, owned by the
 * caller (zt_model_table_free). */
#include "core/model.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- families */

#define MAX_ROWS 16

/* cols 0 = one dimension. */
struct row {
    const char *name;
    enum zt_role role;
    enum zt_piece piece;
    int64_t rows, cols;
};

/* Rows of a family: of the embeddings and the head, where `split` is the first that is used at the end of
 * forward; of a block, where it is the first after the attention's residual. */
struct rows { int n, split; struct row row[MAX_ROWS]; };

static void put(struct rows *r, const char *name, enum zt_role role, enum zt_piece piece,
                int64_t rows, int64_t cols) {
    ZT_ASSERT(r->n < MAX_ROWS);
    r->row[r->n++] = (struct row){name, role, piece, rows, cols};
}

static void gpt2_ends(const struct zt_model_config *c, struct rows *r) {
    const int64_t V = c->vocab_size, S = c->seq_len_max, C = c->dim;
    put(r, "transformer.wte.weight", ZT_ROLE_EMBEDDING, ZT_WEIGHT, V, C);
    put(r, "transformer.wpe.weight", ZT_ROLE_POSITIONS, ZT_WEIGHT, S, C);
    r->split = r->n;
    put(r, "transformer.ln_f.weight", ZT_ROLE_FINAL_NORM, ZT_WEIGHT, C, 0);
    put(r, "transformer.ln_f.bias", ZT_ROLE_FINAL_NORM, ZT_BIAS, C, 0);
    if (!c->tied_head)
        put(r, "lm_head.weight", ZT_ROLE_HEAD, ZT_WEIGHT, V, C);
}

static void gpt2_block(const struct zt_model_config *c, struct rows *r) {
    const int64_t C = c->dim, F = c->ffn_dim;
    put(r, "ln_1.weight", ZT_ROLE_NORM1, ZT_WEIGHT, C, 0);
    put(r, "ln_1.bias", ZT_ROLE_NORM1, ZT_BIAS, C, 0);
    put(r, "attn.c_attn.weight", ZT_ROLE_QKV, ZT_WEIGHT, 3 * C, C);
    put(r, "attn.c_attn.bias", ZT_ROLE_QKV, ZT_BIAS, 3 * C, 0);
    put(r, "attn.c_proj.weight", ZT_ROLE_ATTENTION_OUT, ZT_WEIGHT, C, C);
    put(r, "attn.c_proj.bias", ZT_ROLE_ATTENTION_OUT, ZT_BIAS, C, 0);
    r->split = r->n;
    put(r, "ln_2.weight", ZT_ROLE_NORM2, ZT_WEIGHT, C, 0);
    put(r, "ln_2.bias", ZT_ROLE_NORM2, ZT_BIAS, C, 0);
    put(r, "mlp.c_fc.weight", ZT_ROLE_UP, ZT_WEIGHT, F, C);
    put(r, "mlp.c_fc.bias", ZT_ROLE_UP, ZT_BIAS, F, 0);
    put(r, "mlp.c_proj.weight", ZT_ROLE_DOWN, ZT_WEIGHT, C, F);
    put(r, "mlp.c_proj.bias", ZT_ROLE_DOWN, ZT_BIAS, C, 0);
}

static void llama_ends(const struct zt_model_config *c, struct rows *r) {
    const int64_t V = c->vocab_size, C = c->dim;
    put(r, "model.embed_tokens.weight", ZT_ROLE_EMBEDDING, ZT_WEIGHT, V, C);
    r->split = r->n;
    put(r, "model.norm.weight", ZT_ROLE_FINAL_NORM, ZT_WEIGHT, C, 0);
    if (!c->tied_head)
        put(r, "lm_head.weight", ZT_ROLE_HEAD, ZT_WEIGHT, V, C);
}

static void llama_block(const struct zt_model_config *c, struct rows *r) {
    const int64_t C = c->dim, F = c->ffn_dim, D = c->head_dim;
    const struct { const char *weight, *bias; enum zt_role role; int64_t out; } qkv[] = {
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias", ZT_ROLE_Q, c->heads * D},
        {"self_attn.k_proj.weight", "self_attn.k_proj.bias", ZT_ROLE_K, c->kv_heads * D},
        {"self_attn.v_proj.weight", "self_attn.v_proj.bias", ZT_ROLE_V, c->kv_heads * D},
    };
    put(r, "input_layernorm.weight", ZT_ROLE_NORM1, ZT_WEIGHT, C, 0);
    for (int i = 0; i < 3; i++) {
        put(r, qkv[i].weight, qkv[i].role, ZT_WEIGHT, qkv[i].out, C);
        if (c->qkv_bias)
            put(r, qkv[i].bias, qkv[i].role, ZT_BIAS, qkv[i].out, 0);
    }
    if (c->qk_norm) {
        put(r, "self_attn.q_norm.weight", ZT_ROLE_Q_NORM, ZT_WEIGHT, D, 0);
        put(r, "self_attn.k_norm.weight", ZT_ROLE_K_NORM, ZT_WEIGHT, D, 0);
    }
    put(r, "self_attn.o_proj.weight", ZT_ROLE_ATTENTION_OUT, ZT_WEIGHT, C, c->heads * D);
    r->split = r->n;
    put(r, "post_attention_layernorm.weight", ZT_ROLE_NORM2, ZT_WEIGHT, C, 0);
    put(r, "mlp.gate_proj.weight", ZT_ROLE_GATE, ZT_WEIGHT, F, C);
    put(r, "mlp.up_proj.weight", ZT_ROLE_UP, ZT_WEIGHT, F, C);
    put(r, "mlp.down_proj.weight", ZT_ROLE_DOWN, ZT_WEIGHT, C, F);
}

static const struct family {
    const char *block; /* prefix of a block's names, with the layer's number */
    void (*ends)(const struct zt_model_config *c, struct rows *r);
    void (*of_block)(const struct zt_model_config *c, struct rows *r);
} families[] = {
    [ZT_GPT2] = {"transformer.h.%d.", gpt2_ends, gpt2_block},
    [ZT_LLAMA] = {"model.layers.%d.", llama_ends, llama_block},
};

/* ---------------------------------------------------------------------------------- roles */

static bool is_norm(enum zt_role r) {
    return r == ZT_ROLE_NORM1 || r == ZT_ROLE_NORM2 || r == ZT_ROLE_FINAL_NORM ||
           r == ZT_ROLE_Q_NORM || r == ZT_ROLE_K_NORM;
}

/* Linears whose outputs are added to the residual: their inputs are cut, so their biases are not. */
static bool is_row_cut(enum zt_role r) { return r == ZT_ROLE_ATTENTION_OUT || r == ZT_ROLE_DOWN; }

static void set_cut(struct zt_tensor_def *d) {
    const bool whole = is_norm(d->role) || d->role == ZT_ROLE_POSITIONS;
    if (whole || (is_row_cut(d->role) && d->piece == ZT_BIAS))
        d->tp_dim = -1;
    else
        d->tp_dim = is_row_cut(d->role) ? 1 : 0;
    d->tp_heads = d->role == ZT_ROLE_QKV ? 3 : 0;
    if (d->role == ZT_ROLE_Q_NORM || d->role == ZT_ROLE_K_NORM)
        d->tp_sum = ZT_TP_SUM_ALWAYS;
    else /* the embedding's gradient is taken of all rows on every rank, and so is that of positions */
        d->tp_sum = d->tp_dim < 0 && d->role != ZT_ROLE_POSITIONS ? ZT_TP_SUM_SEQUENCE : ZT_TP_SUM_NEVER;
}

static void set_init(struct zt_tensor_def *d, int64_t layers) {
    if (d->piece == ZT_BIAS)
        d->init = ZT_INIT_ZERO;
    else if (is_norm(d->role))
        d->init = ZT_INIT_ONE;
    else {
        d->init = ZT_INIT_NORMAL;
        d->init_std = is_row_cut(d->role) ? 0.02 / sqrt(2.0 * (double)layers) : 0.02;
    }
}

/* ---------------------------------------------------------------------------------- table */

static void add(struct zt_model_table *t, int unit, int layer, const struct row *r) {
    struct zt_tensor_def *d = &t->tensors[t->n_tensors];
    size_t n = 0;
    d->number = (uint32_t)t->n_tensors++;
    if (layer >= 0) {
        snprintf(d->name, sizeof d->name, families[t->config.family].block, layer);
        n = strlen(d->name);
    }
    snprintf(d->name + n, sizeof d->name - n, "%s", r->name);
    d->unit = unit;
    d->layer = layer;
    d->role = r->role;
    d->piece = r->piece;
    d->ndim = r->cols ? 2 : 1;
    d->shape[0] = d->whole[0] = r->rows;
    d->shape[1] = d->whole[1] = r->cols ? r->cols : 1;
    d->numel = d->shape[0] * d->shape[1];
    d->decay = d->ndim >= 2;
    set_cut(d);
    set_init(d, t->config.layers);
    t->parameters += d->numel;
    t->units[unit].n_tensors++;
}

/* Rows [from, to) at the end of the table, in a unit. */
static void add_rows(struct zt_model_table *t, int unit, int layer, const struct rows *r, int from,
                     int to) {
    for (int i = from; i < to; i++)
        add(t, unit, layer, &r->row[i]);
}

static struct zt_unit_def *begin_unit(struct zt_model_table *t) {
    struct zt_unit_def *u = &t->units[t->n_units++];
    u->first_tensor = t->n_tensors;
    return u;
}

static void add_parts(struct zt_model_table *t, const struct rows *r) {
    for (int layer = 0; layer < (int)t->config.layers; layer++)
        for (int mlp = 0; mlp < 2; mlp++) {
            struct zt_unit_def *u = begin_unit(t);
            snprintf(u->name, sizeof u->name, "block%d.%s", layer, mlp ? "mlp" : "attn");
            add_rows(t, t->n_units - 1, layer, r, mlp ? r->split : 0, mlp ? r->n : r->split);
        }
}

static void add_blocks(struct zt_model_table *t, const struct rows *r, int blocks) {
    const int layers = (int)t->config.layers;
    for (int first = 0; first < layers; first += blocks) {
        const int last = first + blocks < layers ? first + blocks : layers;
        struct zt_unit_def *u = begin_unit(t);
        if (last - first == 1)
            snprintf(u->name, sizeof u->name, "block%d", first);
        else
            snprintf(u->name, sizeof u->name, "blocks%d-%d", first, last - 1);
        for (int layer = first; layer < last; layer++)
            add_rows(t, t->n_units - 1, layer, r, 0, r->n);
    }
}

static void add_all(struct zt_model_table *t, enum zt_wrap wrap, int blocks, const struct rows *ends,
                    const struct rows *block) {
    const bool tied = t->config.tied_head;
    snprintf(begin_unit(t)->name, sizeof t->units->name, "%s", tied ? "root" : "embed");
    add_rows(t, 0, -1, ends, 0, tied ? ends->n : ends->split);
    if (wrap == ZT_WRAP_PART)
        add_parts(t, block);
    else
        add_blocks(t, block, blocks);
    if (tied)
        return;
    snprintf(begin_unit(t)->name, sizeof t->units->name, "head");
    add_rows(t, t->n_units - 1, -1, ends, ends->split, ends->n);
}

int zt_model_table_build(const struct zt_model_config *c, enum zt_wrap wrap, int blocks,
                         struct zt_model_table *t, struct zt_error *err) {
    struct rows ends = {0}, block = {0};
    memset(t, 0, sizeof *t);
    int rc = zt_model_config_check(c, err);
    if (rc)
        return rc;
    if (wrap != ZT_WRAP_N)
        blocks = 1;
    if (blocks < 1)
        return zt_fail(err, ZT_EINVAL, "parallelism.wrap: %d blocks a unit; give 1 or more", blocks);
    t->config = *c;
    t->tensor_degree = 1;
    t->vocab_rows = c->vocab_size;
    families[c->family].ends(c, &ends);
    families[c->family].of_block(c, &block);
    const size_t layers = (size_t)c->layers;
    const size_t tensors = layers * (size_t)block.n + (size_t)ends.n, units = 2 * layers + 2;
    t->tensors = calloc(tensors, sizeof *t->tensors);
    t->units = calloc(units, sizeof *t->units);
    if (!t->tensors || !t->units) {
        zt_model_table_free(t);
        return zt_fail(err, ZT_ENOMEM, "no host memory for a table of %zu tensors", tensors);
    }
    add_all(t, wrap, blocks, &ends, &block);
    return 0;
}

void zt_model_table_free(struct zt_model_table *t) {
    free(t->tensors);
    free(t->units);
    memset(t, 0, sizeof *t);
}

int zt_model_find(const struct zt_model_table *t, int layer, enum zt_role role, enum zt_piece piece) {
    for (int i = 0; i < t->n_tensors; i++) {
        const struct zt_tensor_def *d = &t->tensors[i];
        if (d->layer == layer && d->role == role && d->piece == piece)
            return i;
    }
    return -1;
}

/* ------------------------------------------------------------------------------ trainable */

int zt_model_set_trainable(struct zt_model_table *t, const char *const *patterns, int n,
                           struct zt_error *err) {
    int64_t trainable = 0;
    for (int i = 0; i < t->n_tensors; i++)
        t->tensors[i].frozen = true;
    for (int p = 0; p < n; p++) {
        int matches = 0;
        for (int i = 0; i < t->n_tensors; i++) {
            struct zt_tensor_def *d = &t->tensors[i];
            if (fnmatch(patterns[p], d->name, 0) != 0)
                continue;
            d->frozen = false;
            matches++;
        }
        if (!matches)
            return zt_fail(err, ZT_EINVAL,
                           "training.trainable: \"%s\" matches no tensor; names look like %s",
                           patterns[p], t->tensors[t->n_tensors - 1].name);
    }
    for (int i = 0; i < t->n_tensors; i++)
        trainable += t->tensors[i].frozen ? 0 : t->tensors[i].numel;
    if (!trainable)
        return zt_fail(err, ZT_EINVAL, "training.trainable: nothing is left to train");
    return 0;
}

/* ----------------------------------------------------------------------------------- walk */

static bool is_embedding(enum zt_role r) { return r == ZT_ROLE_EMBEDDING || r == ZT_ROLE_POSITIONS; }

/* Does the unit train anything that is used where forward first comes to it? Of a tied root that is the
 * embeddings. */
static bool trains(const struct zt_model_table *t, int unit) {
    const struct zt_unit_def *u = &t->units[unit];
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        if (!t->tensors[i].frozen && (unit > 0 || is_embedding(t->tensors[i].role)))
            return true;
    return false;
}

int zt_model_walk_build(const struct zt_model_table *t, struct zt_model_walk *w,
                        struct zt_error *err) {
    const bool tied = t->config.tied_head;
    int lowest = 0;
    memset(w, 0, sizeof *w);
    w->forward = calloc((size_t)t->n_units + 1, sizeof *w->forward);
    w->backward = calloc((size_t)t->n_units + 1, sizeof *w->backward);
    if (!w->forward || !w->backward) {
        zt_model_walk_free(w);
        return zt_fail(err, ZT_ENOMEM, "no host memory for the order of %d units", t->n_units);
    }
    for (int u = 0; u < t->n_units; u++)
        w->forward[w->n_forward++] = u;
    while (lowest < t->n_units && !trains(t, lowest))
        lowest++;
    if (tied) { /* final norm and head; the root stays open until the embeddings have their gradients */
        w->forward[w->n_forward++] = 0;
        w->backward[w->n_backward++] = 0;
        lowest = lowest ? lowest : 1;
    }
    for (int u = t->n_units - 1; u >= lowest; u--)
        w->backward[w->n_backward++] = u;
    return 0;
}

void zt_model_walk_free(struct zt_model_walk *w) {
    free(w->forward);
    free(w->backward);
    memset(w, 0, sizeof *w);
}
