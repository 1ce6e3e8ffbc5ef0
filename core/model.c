/* SPDX-License-Identifier: Apache-2.0 */
/* core/model.c: presets, configuration checks and the tensor table. Pure; the table is one malloc
 * per array, owned by the caller (zt_model_table_free). */
#include "core/model.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/units.h"

/* ---------------------------------------------------------------------------------- presets */

#define GPT2(L, H, C, V, S)                                                                        \
    {.family = ZT_GPT2, .layers = (L), .heads = (H), .kv_heads = (H), .head_dim = (C) / (H),       \
     .dim = (C), .ffn_dim = 4 * (C), .vocab_size = (V), .seq_len_max = (S), .rope_theta = 0.0,     \
     .norm_eps = 1e-5, .dropout = 0.0, .tied_head = true, .qkv_bias = true, .qk_norm = false}
#define LLAMA(L, H, KV, D, C, F, V, S, THETA, EPS, TIED, BIAS)                                     \
    {.family = ZT_LLAMA, .layers = (L), .heads = (H), .kv_heads = (KV), .head_dim = (D),           \
     .dim = (C), .ffn_dim = (F), .vocab_size = (V), .seq_len_max = (S), .rope_theta = (THETA),     \
     .norm_eps = (EPS), .dropout = 0.0, .tied_head = (TIED), .qkv_bias = (BIAS), .qk_norm = false}

/* The published numbers of each model; the nano ones are ours, for tests and first steps. */
static const struct { const char *name; struct zt_model_config config; } presets[] = {
    {"gpt2-nano", GPT2(4, 4, 128, 256, 256)},
    {"gpt2-124m", GPT2(12, 12, 768, 50257, 1024)},
    {"gpt2-350m", GPT2(24, 16, 1024, 50257, 1024)},
    {"gpt2-774m", GPT2(36, 20, 1280, 50257, 1024)},
    {"gpt2-1558m", GPT2(48, 25, 1600, 50257, 1024)},
    {"llama-nano", LLAMA(4, 4, 2, 32, 128, 352, 256, 256, 10000.0, 1e-5, false, false)},
    {"llama3-1b", LLAMA(16, 32, 8, 64, 2048, 8192, 128256, 131072, 500000.0, 1e-5, true, false)},
    {"llama3-8b", LLAMA(32, 32, 8, 128, 4096, 14336, 128256, 8192, 500000.0, 1e-5, false, false)},
    {"llama3-70b", LLAMA(80, 64, 8, 128, 8192, 28672, 128256, 8192, 500000.0, 1e-5, false, false)},
    {"llama3-405b",
     LLAMA(126, 128, 8, 128, 16384, 53248, 128256, 131072, 500000.0, 1e-5, false, false)},
    {"qwen2.5-0.5b", LLAMA(24, 14, 2, 64, 896, 4864, 151936, 32768, 1000000.0, 1e-6, true, true)},
    {"qwen2.5-7b", LLAMA(28, 28, 4, 128, 3584, 18944, 152064, 131072, 1000000.0, 1e-6, false, true)},
};
#define N_PRESETS ((int)(sizeof presets / sizeof presets[0]))

const char *zt_model_preset_name(int i) { return i >= 0 && i < N_PRESETS ? presets[i].name : NULL; }

int zt_model_preset(const char *name, struct zt_model_config *c, struct zt_error *err) {
    const char *names[N_PRESETS];
    char list[512] = "";
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *c = presets[i].config;
            return 0;
        }
        names[i] = presets[i].name;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = zt_nearest(name, names, N_PRESETS);
    if (near)
        return zt_fail(err, ZT_ENOTFOUND, "no preset \"%s\" (did you mean \"%s\"?)", name, near);
    return zt_fail(err, ZT_ENOTFOUND, "no preset \"%s\"; there are: %s", name, list);
}

/* ---------------------------------------------------------------------------------- checks */

/* Bounds that keep every product below in int64 with room to spare. */
static int check_range(const char *key, int64_t v, int64_t max, struct zt_error *err) {
    if (v < 1 || v > max)
        return zt_fail(err, ZT_EINVAL, "model.%s: %lld is not in 1..%lld", key, (long long)v,
                       (long long)max);
    return 0;
}

static int check_shape(const struct zt_model_config *c, struct zt_error *err) {
    if (c->heads % c->kv_heads != 0)
        return zt_fail(err, ZT_EINVAL, "model.kv_heads: %lld does not divide heads %lld",
                       (long long)c->kv_heads, (long long)c->heads);
    if (c->family != ZT_GPT2)
        return 0;
    if (c->kv_heads != c->heads)
        return zt_fail(err, ZT_EINVAL,
                       "model.kv_heads: gpt2 has one key/value head per head (%lld), not %lld",
                       (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim * c->heads != c->dim)
        return zt_fail(err, ZT_EINVAL,
                       "model.heads: %lld heads x head_dim %lld = %lld, but gpt2 needs dim %lld",
                       (long long)c->heads, (long long)c->head_dim,
                       (long long)(c->heads * c->head_dim), (long long)c->dim);
    return 0;
}

int zt_model_config_check(const struct zt_model_config *c, struct zt_error *err) {
    const struct { const char *key; int64_t value, max; } row[] = {
        {"layers", c->layers, 1024},       {"heads", c->heads, 1 << 14},
        {"kv_heads", c->kv_heads, 1 << 14}, {"head_dim", c->head_dim, 1 << 14},
        {"dim", c->dim, 1 << 20},          {"ffn_dim", c->ffn_dim, 1 << 22},
        {"vocab_size", c->vocab_size, 1 << 24}, {"seq_len_max", c->seq_len_max, 1 << 24},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0] && rc == 0; i++)
        rc = check_range(row[i].key, row[i].value, row[i].max, err);
    if (rc == 0 && !(isfinite(c->norm_eps) && c->norm_eps > 0))
        rc = zt_fail(err, ZT_EINVAL, "model.norm_eps: %g is not above 0", c->norm_eps);
    if (rc == 0 && !(c->dropout >= 0 && c->dropout < 1))
        rc = zt_fail(err, ZT_EINVAL, "model.dropout: %g is not in [0, 1)", c->dropout);
    return rc ? rc : check_shape(c, err);
}

/* ---------------------------------------------------------------------------------- table */

#define GPT2_BLOCK_TENSORS 12
#define GPT2_ROOT_TENSORS 4
#define GPT2_ATTENTION_TENSORS 6 /* of a block, up to the residual */
#define GPT2_EMBEDDINGS 2        /* of the root */

/* What a table needs to know of a tensor; cols 0 = one dimension. */
struct row {
    const char *name;
    int64_t rows, cols;
    int tp_dim, tp_heads;
    enum zt_init init;
    double std;
};

static void add(struct zt_model_table *t, int unit, const char *prefix, const struct row *r) {
    struct zt_tensor_def *d = &t->tensors[t->n_tensors++];
    snprintf(d->name, sizeof d->name, "%s%s", prefix, r->name);
    d->unit = unit;
    d->ndim = r->cols ? 2 : 1;
    d->shape[0] = r->rows;
    d->shape[1] = r->cols ? r->cols : 1;
    d->numel = d->shape[0] * d->shape[1];
    d->tp_dim = r->tp_dim;
    d->tp_heads = r->tp_heads;
    d->decay = d->ndim >= 2;
    d->init = r->init;
    d->init_std = r->init == ZT_INIT_NORMAL ? r->std : 0.0;
    t->parameters += d->numel;
    t->units[unit].n_tensors++;
}

static void begin_unit(struct zt_model_table *t, int unit) {
    t->units[unit].first_tensor = t->n_tensors;
    t->units[unit].n_tensors = 0;
}

static void gpt2_root(struct zt_model_table *t) {
    const struct zt_model_config *c = &t->config;
    const struct row rows[GPT2_ROOT_TENSORS] = {
        {"wte.weight", c->vocab_size, c->dim, 0, 0, ZT_INIT_NORMAL, 0.02},
        {"wpe.weight", c->seq_len_max, c->dim, -1, 0, ZT_INIT_NORMAL, 0.02},
        {"ln_f.weight", c->dim, 0, -1, 0, ZT_INIT_ONE, 0},
        {"ln_f.bias", c->dim, 0, -1, 0, ZT_INIT_ZERO, 0},
    };
    begin_unit(t, 0);
    snprintf(t->units[0].name, sizeof t->units[0].name, "root");
    for (int i = 0; i < GPT2_ROOT_TENSORS; i++)
        add(t, 0, "transformer.", &rows[i]);
}

/* Tensors [from, to) of a block go into a unit of their own; unit is the one they belong to. */
static void gpt2_block(struct zt_model_table *t, int layer, int unit, int from, int to) {
    const int64_t C = t->config.dim, F = t->config.ffn_dim;
    const double residual = 0.02 / sqrt(2.0 * (double)t->config.layers);
    const struct row rows[GPT2_BLOCK_TENSORS] = {
        {"ln_1.weight", C, 0, -1, 0, ZT_INIT_ONE, 0},
        {"ln_1.bias", C, 0, -1, 0, ZT_INIT_ZERO, 0},
        {"attn.c_attn.weight", 3 * C, C, 0, 3, ZT_INIT_NORMAL, 0.02},
        {"attn.c_attn.bias", 3 * C, 0, 0, 3, ZT_INIT_ZERO, 0},
        {"attn.c_proj.weight", C, C, 1, 0, ZT_INIT_NORMAL, residual},
        {"attn.c_proj.bias", C, 0, -1, 0, ZT_INIT_ZERO, 0},
        {"ln_2.weight", C, 0, -1, 0, ZT_INIT_ONE, 0},
        {"ln_2.bias", C, 0, -1, 0, ZT_INIT_ZERO, 0},
        {"mlp.c_fc.weight", F, C, 0, 0, ZT_INIT_NORMAL, 0.02},
        {"mlp.c_fc.bias", F, 0, 0, 0, ZT_INIT_ZERO, 0},
        {"mlp.c_proj.weight", C, F, 1, 0, ZT_INIT_NORMAL, residual},
        {"mlp.c_proj.bias", C, 0, -1, 0, ZT_INIT_ZERO, 0},
    };
    char prefix[48];
    snprintf(prefix, sizeof prefix, "transformer.h.%d.", layer);
    for (int i = from; i < to; i++)
        add(t, unit, prefix, &rows[i]);
}

/* Blocks as units; the root is unit 0 and there already. */
static void gpt2_blocks(struct zt_model_table *t, enum zt_wrap wrap, int blocks) {
    const int layers = (int)t->config.layers;
    for (int u = 1; u < t->n_units; u++) {
        char *name = t->units[u].name;
        const size_t room = sizeof t->units[u].name;
        begin_unit(t, u);
        if (wrap == ZT_WRAP_PART) {
            const int layer = (u - 1) / 2;
            const bool mlp = (u - 1) % 2;
            snprintf(name, room, "block%d.%s", layer, mlp ? "mlp" : "attn");
            gpt2_block(t, layer, u, mlp ? GPT2_ATTENTION_TENSORS : 0,
                       mlp ? GPT2_BLOCK_TENSORS : GPT2_ATTENTION_TENSORS);
            continue;
        }
        const int first = (u - 1) * blocks;
        const int last = first + blocks < layers ? first + blocks : layers;
        if (last - first == 1)
            snprintf(name, room, "block%d", first);
        else
            snprintf(name, room, "blocks%d-%d", first, last - 1);
        for (int l = first; l < last; l++)
            gpt2_block(t, l, u, 0, GPT2_BLOCK_TENSORS);
    }
}

int zt_model_table_build(const struct zt_model_config *c, enum zt_wrap wrap, int blocks,
                         struct zt_model_table *t, struct zt_error *err) {
    memset(t, 0, sizeof *t);
    int rc = zt_model_config_check(c, err);
    if (rc)
        return rc;
    if (c->family != ZT_GPT2)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.family: llama is not in this version; use a gpt2 preset");
    if (!c->tied_head)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.tied_head: false is not in this version; leave it out");
    if (wrap != ZT_WRAP_N)
        blocks = 1;
    if (blocks < 1)
        return zt_fail(err, ZT_EINVAL, "parallelism.wrap: %d blocks a unit; give 1 or more", blocks);
    int layers = (int)c->layers;
    t->config = *c;
    t->n_units = 1 + (wrap == ZT_WRAP_PART ? 2 * layers : (layers + blocks - 1) / blocks);
    size_t n = (size_t)layers * GPT2_BLOCK_TENSORS + GPT2_ROOT_TENSORS;
    t->tensors = calloc(n, sizeof *t->tensors);
    t->units = calloc((size_t)t->n_units, sizeof *t->units);
    if (!t->tensors || !t->units) {
        zt_model_table_free(t);
        return zt_fail(err, ZT_ENOMEM, "no host memory for a table of %zu tensors", n);
    }
    gpt2_root(t);
    gpt2_blocks(t, wrap, blocks);
    return 0;
}

void zt_model_table_free(struct zt_model_table *t) {
    free(t->tensors);
    free(t->units);
    memset(t, 0, sizeof *t);
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

static bool has_trainable(const struct zt_model_table *t, int unit, int from, int to) {
    const struct zt_unit_def *u = &t->units[unit];
    for (int i = from; i < to && i < u->n_tensors; i++)
        if (!t->tensors[u->first_tensor + i].frozen)
            return true;
    return false;
}

int zt_model_walk_build(const struct zt_model_table *t, struct zt_model_walk *w,
                        struct zt_error *err) {
    memset(w, 0, sizeof *w);
    w->forward = calloc((size_t)t->n_units + 1, sizeof *w->forward);
    w->backward = calloc((size_t)t->n_units + 1, sizeof *w->backward);
    if (!w->forward || !w->backward) {
        zt_model_walk_free(w);
        return zt_fail(err, ZT_ENOMEM, "no host memory for the order of %d units", t->n_units);
    }
    for (int u = 0; u < t->n_units; u++)
        w->forward[w->n_forward++] = u;
    w->forward[w->n_forward++] = 0; /* final norm and tied head */
    /* The embeddings come first in the root; without one to train, backward ends at the lowest unit
     * that trains. */
    int lowest = 1;
    if (!has_trainable(t, 0, 0, GPT2_EMBEDDINGS))
        while (lowest < t->n_units && !has_trainable(t, lowest, 0, t->units[lowest].n_tensors))
            lowest++;
    w->backward[w->n_backward++] = 0;
    for (int u = t->n_units - 1; u >= lowest; u--)
        w->backward[w->n_backward++] = u;
    return 0;
}

void zt_model_walk_free(struct zt_model_walk *w) {
    free(w->forward);
    free(w->backward);
    memset(w, 0, sizeof *w);
}
