/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/ckpt_made.h: checkpoints of made-up values without a trainer: every element of a tensor is a
 * function of the tensor's number and its index, so that it is known whoever wrote it. Written by any
 * number of writers, which have rows, stretches of elements (as the sharding modes cut), or the parts of a
 * tensor group. */
#ifndef ZT_TESTS_ENGINE_CKPT_MADE_H
#define ZT_TESTS_ENGINE_CKPT_MADE_H
#include "core/convert.h"
#include "engine/checkpoint/write.h"
#include "tests/engine/hf_util.h"

enum made_cut { MADE_ROWS = 0, MADE_FLAT, MADE_TENSOR };
struct made {
    const char *yaml;             /* all but version and name */
    enum made_cut cut;
    int world;
    bool master;                  /* bf16 parameters beside an fp32 master */
    bool bf16;                    /* bf16 parameters alone; adapters are fp32 */
};

static inline float made_value(uint32_t number, int64_t index) {
    uint64_t x = ((uint64_t)number << 40 ^ (uint64_t)index) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return ((float)(x & 0xffffff) / (float)(1 << 24) - 0.5f) * 0.25f;
}

struct made_writer {
    const struct made *m;
    const struct zt_saved_tensor *tensors;
    struct zt_saved_piece piece[4096];
    int n, nth[512][ZT_SAVED_COUNT];
};

/* The rectangle's values of one kind, as a piece. */
static inline void made_piece(struct made_writer *w, int tensor, enum zt_saved kind, struct zt_rect r) {
    const struct zt_saved_tensor *t = &w->tensors[tensor];
    const int64_t n = r.size[0] * r.size[1], columns = t->ndim > 1 ? t->shape[1] : 1;
    float *wide = malloc((size_t)n * sizeof *wide);
    void *values = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        wide[i] = made_value(t->number, (r.from[0] + i / r.size[1]) * columns + r.from[1] + i % r.size[1]);
    zt_convert(values, t->type[kind], wide, ZT_F32, n);
    free(wide);
    cr_assert_lt(w->n, 4096);
    w->piece[w->n++] = (struct zt_saved_piece){tensor, kind, t->type[kind], w->nth[tensor][kind]++, r, values};
}

static inline void made_rect(struct made_writer *w, int tensor, struct zt_rect r) {
    if (r.size[0] == 0) return;
    made_piece(w, tensor, ZT_SAVED_PARAMETER, r);
    if (w->tensors[tensor].has[ZT_SAVED_MASTER]) made_piece(w, tensor, ZT_SAVED_MASTER, r);
}

/* What this writer has of a tensor. */
static inline void made_part(struct made_writer *w, const struct zt_model_table *whole, const struct zt_model_table *own,
                             int tensor, int rank) {
    const struct zt_tensor_def *d = &whole->tensors[tensor];
    const int64_t W = w->m->world, R = d->whole[0], C = d->whole[1], n = R * C;
    struct zt_rect r[ZT_SPAN_RECTS];
    if (w->m->cut == MADE_ROWS) {
        made_rect(w, tensor, (struct zt_rect){{R * rank / W, 0}, {R * (rank + 1) / W - R * rank / W, C}});
    } else if (w->m->cut == MADE_FLAT) {
        const int64_t from = n * rank / W, count = n * (rank + 1) / W - from;
        const int k = count ? zt_span_rects(zt_span_plain((uint64_t)from, count), count, C, r) : 0;
        for (int i = 0; i < k; i++) made_rect(w, tensor, r[i]);
    } else if (own->tensors[tensor].tp_dim >= 0 || rank == 0) {
        const struct zt_tensor_def *o = &own->tensors[tensor];
        for (int64_t at = 0; at < o->numel;) {
            struct zt_part_run run = zt_tensor_run(own, o, at, o->numel - at);
            const int k = run.padding ? 0 : zt_span_rects(run.span, run.count, C, r);
            for (int i = 0; i < k; i++) made_rect(w, tensor, r[i]);
            at += run.count;
        }
    }
}

/* FOLDER/step-00000003. */
static inline void made_write(const struct made *m, const char *folder) {
    struct zt_spec *s = calloc(1, sizeof *s);
    struct zt_model_table whole = {0};
    struct zt_error e = {0};
    char yaml[2048];
    snprintf(yaml, sizeof yaml, "version: 1\nname: made\n%s", m->yaml);
    cr_assert_eq(zt_spec_parse(yaml, strlen(yaml), "made", NULL, 0, s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve(s, m->world, "made", &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_table(s, &whole, &e), 0, "%s", e.msg);
    struct zt_saved_tensor *tensors = calloc((size_t)whole.n_tensors, sizeof *tensors);
    for (int i = 0; i < whole.n_tensors; i++) {
        const struct zt_tensor_def *d = &whole.tensors[i];
        struct zt_saved_tensor *t = &tensors[i];
        snprintf(t->name, sizeof t->name, "%s", d->name);
        t->ndim = d->ndim;
        memcpy(t->shape, d->whole, sizeof t->shape);
        t->number = d->number;
        t->has[ZT_SAVED_PARAMETER] = true;
        t->type[ZT_SAVED_PARAMETER] = (m->master || m->bf16) && d->piece < ZT_LORA_A ? ZT_BF16 : ZT_F32;
        t->has[ZT_SAVED_MASTER] = m->master;
    }
    struct zt_manifest man = {.generation = 1, .world = m->world, .replicate = m->world, .shard = 1, .tensor = 1,
                              .position = {.step = 3, .total_steps = 10}, .n_tensors = whole.n_tensors, .tensors = tensors};
    snprintf(man.run_name, sizeof man.run_name, "made");
    snprintf(man.recipe, sizeof man.recipe, "%s", s->precision.recipe);
    snprintf(man.mode, sizeof man.mode, "ddp");
    man.spec = zt_spec_normalise(s);
    man.ranks = calloc((size_t)m->world, sizeof *man.ranks);
    struct made_writer *w = calloc(1, sizeof *w);
    for (int rank = 0; rank < m->world; rank++) {
        struct zt_model_table own = {0};
        struct zt_shard_written done;
        bool full;
        *w = (struct made_writer){.m = m, .tensors = tensors};
        cr_assert_eq(zt_spec_table(s, &own, &e), 0);
        if (m->cut == MADE_TENSOR) cr_assert_eq(zt_model_table_cut(&own, m->world, rank, &e), 0, "%s", e.msg);
        for (int i = 0; i < whole.n_tensors; i++) made_part(w, &whole, &own, i, rank);
        struct zt_shard_write x = {.sys = &zt_sys_posix, .folder = folder, .step = 3, .generation = 1, .rank = rank,
                                   .tensors = tensors, .n_tensors = whole.n_tensors, .pieces = w->piece, .n_pieces = w->n};
        cr_assert_eq(zt_shard_write(&x, &done, &full, &e), 0, "%s", e.msg);
        man.ranks[rank] = (struct zt_manifest_rank){done.bytes, done.index};
        zt_hash128_add(&man.parameter_hash, done.parameter_hash);
        for (int i = 0; i < w->n; i++) free((void *)(uintptr_t)w->piece[i].values);
        zt_model_table_free(&own);
    }
    struct zt_sha256 sha;
    bool adopted, full;
    cr_assert_eq(zt_ckpt_publish(&zt_sys_posix, folder, &man, &sha, &adopted, &full, &e), 0, "%s", e.msg);
    free(w);
    free(man.ranks);
    free(man.spec);
    free(tensors);
    zt_model_table_free(&whole);
    zt_spec_free(s);
    free(s);
}

#endif
