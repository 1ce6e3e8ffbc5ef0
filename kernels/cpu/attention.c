/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/attention.c: cuts attention into units of work for the pool.
 *
 * Forward: a unit is a block of queries of one head. Backward: a unit is a key-value head with the
 * query heads of its group, 5 products a tile. Where that is too few units for the threads, dk and
 * dv are summed first, a unit being a block of keys of such a head, and then dq, a unit as forward:
 * 4 and 3 products a tile and the weights twice, 8/5 of the work. Every element of dq, dk and dv is
 * added to in one fixed order of heads and tiles either way, so the bits depend neither on it nor
 * on the threads. */
#include "kernels/cpu/cpu.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct attention {
    struct zt_ops_ctx *x;
    const struct zt_attention *a;
    enum zt_dtype t;
    const void *q, *k, *v, *dout, *saved;
    void *out, *dq, *dk, *dv;
    float *lse;
    int64_t blocks, group; /* of queries; query heads of a key-value head */
    struct zt_vec_dropout dropout;
};

/* Scratch of each thread: outside the device allocator (it depends on the threads). */
static int need_scratch(struct zt_ops_ctx *x, int64_t T, int64_t D, struct zt_error *err) {
    const size_t floats = (zt_vec_attention_scratch(T, D) + 15) & ~(size_t)15;
    if (floats <= x->scratch_floats) return ZT_OK;
    for (int t = 0; t < zt_pool_threads(x->pool); t++) {
        float *fresh = aligned_alloc(64, floats * sizeof *fresh);
        if (!fresh)
            return zt_fail(err, ZT_ENOMEM, "attention: no memory for %zu bytes of scratch",
                           floats * sizeof *fresh);
        free(x->scratch[t]);
        x->scratch[t] = fresh;
    }
    x->scratch_floats = floats;
    return ZT_OK;
}

static int check_shape(const char *op, const struct zt_attention *a, struct zt_error *err) {
    if (a->B < 1 || a->T < 1 || a->D < 1 || a->KV < 1 || a->H < 1 || a->H % a->KV != 0)
        return zt_fail(err, ZT_EINVAL,
                       "%s: B %" PRId64 ", T %" PRId64 ", H %" PRId64 ", KV %" PRId64 ", D %" PRId64
                       ": all are at least 1 and KV divides H",
                       op, a->B, a->T, a->H, a->KV, a->D);
    if (a->q_row < a->H * a->D || a->k_row < a->KV * a->D || a->v_row < a->KV * a->D)
        return zt_fail(err, ZT_EINVAL,
                       "%s: rows %" PRId64 ", %" PRId64 ", %" PRId64
                       " elements apart do not hold the heads of q, k, v",
                       op, a->q_row, a->k_row, a->v_row);
    return ZT_OK;
}

static int check_starts(const char *op, const struct zt_attention *a, struct zt_error *err) {
    for (int64_t row = 0; a->starts && row < a->B * a->T; row++)
        if (a->starts[row] < 0 || a->starts[row] > row % a->T)
            return zt_fail(err, ZT_EDATA,
                           "%s: row %" PRId64 " attends from position %" PRId32
                           ", which is outside [0, %" PRId64 "], its own",
                           op, row, a->starts[row], row % a->T);
    return ZT_OK;
}

/* All but `first`, which differs from head to head. */
static int dropout_of(const char *op, const struct zt_attention *a, struct zt_vec_dropout *out,
                      struct zt_error *err) {
    int rc = zt_cpu_dropout_draw(op, &a->dropout, out, err);
    if (rc != ZT_OK || !out->on) return rc;
    if (a->first_sample < 0 || a->sample_stride < 0 || a->first_head < 0 ||
        a->first_head + a->H > a->heads_all)
        return zt_fail(err, ZT_EINVAL,
                       "%s: dropout needs the place of the heads: %" PRId64 " from %" PRId64
                       " of %" PRId64 ", sample %" PRId64 " and every %" PRId64,
                       op, a->H, a->first_head, a->heads_all, a->first_sample, a->sample_stride);
    out->quads = (a->T + 3) / 4;
    return ZT_OK;
}

static int prepare(const char *op, struct attention *j, struct zt_error *err) {
    const struct zt_attention *a = j->a;
    int rc = zt_cpu_need_float(op, j->t, err);
    if (rc == ZT_OK) rc = check_shape(op, a, err);
    if (rc == ZT_OK) rc = check_starts(op, a, err);
    if (rc == ZT_OK) rc = dropout_of(op, a, &j->dropout, err);
    if (rc == ZT_OK) rc = need_scratch(j->x, a->T, a->D, err);
    if (rc != ZT_OK) return rc;
    j->blocks = (a->T + ZT_ATTENTION_BLOCK - 1) / ZT_ATTENTION_BLOCK;
    j->group = a->H / a->KV;
    return ZT_OK;
}

/* Query head `head` of all samples' heads; `after` is the one this thread probably takes next. */
static struct zt_vec_attention head_of(const struct attention *j, int64_t head, int64_t after,
                                       int thread) {
    const struct zt_attention *a = j->a;
    const int64_t b = head / a->H, h = head % a->H, row = b * a->T, kv = h / j->group * a->D;
    const int64_t q = row * a->q_row + h * a->D, out = (row * a->H + h) * a->D;
    const int64_t k = row * a->k_row + kv, v = row * a->v_row + kv;
    struct zt_vec_attention u = {
        .q = zt_cpu_at(j->q, q, j->t),
        .k = zt_cpu_at(j->k, k, j->t),
        .v = zt_cpu_at(j->v, v, j->t),
        .lse = j->lse + head * a->T,
        .q_row = a->q_row,
        .k_row = a->k_row,
        .v_row = a->v_row,
        .out_row = a->H * a->D,
        .T = a->T,
        .D = a->D,
        .scale = (float)(1.0 / sqrt((double)a->D)),
        .starts = a->starts ? a->starts + row : NULL,
        .dropout = j->dropout,
        .scratch = j->x->scratch[thread],
    };
    const int64_t sample = a->first_sample + b * (a->sample_stride ? a->sample_stride : 1);
    const int64_t all = sample * a->heads_all + a->first_head + h;
    u.dropout.first = (uint64_t)all * (uint64_t)(a->T * j->dropout.quads);
    if (after < a->B * a->H) {
        const int64_t next_row = after / a->H * a->T, next_kv = after % a->H / j->group * a->D;
        u.next_k = zt_cpu_at(j->k, next_row * a->k_row + next_kv, j->t);
        u.next_v = zt_cpu_at(j->v, next_row * a->v_row + next_kv, j->t);
    }
    if (j->dq) {
        u.out = zt_cpu_at(j->saved, out, j->t);
        u.dout = zt_cpu_at(j->dout, out, j->t);
        u.dq = zt_cpu_at(j->dq, q, j->t);
        u.dk = zt_cpu_at(j->dk, k, j->t);
        u.dv = zt_cpu_at(j->dv, v, j->t);
    } else {
        u.o = zt_cpu_at(j->out, out, j->t);
    }
    return u;
}

static void forward_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    struct zt_vec_attention u =
        head_of(j, unit / j->blocks, (unit + zt_pool_threads(j->x->pool)) / j->blocks, thread);
    /* A head's blocks follow each other, its keys stay in the cache; the last blocks have the most
     * keys, so the long units come first. */
    j->x->vec->of[j->t].attention_forward(&u, j->blocks - 1 - unit % j->blocks);
}

/* The query heads of a group, in order: tiles of the part. */
static void group_part(const struct attention *j, int64_t group, int64_t next,
                       struct zt_vec_attention_part p, int thread) {
    for (int64_t i = 0; i < j->group; i++) {
        const int64_t head = group * j->group + i;
        p.first = i == 0;
        p.last = i == j->group - 1;
        struct zt_vec_attention u = head_of(j, head, p.last ? next * j->group : head, thread);
        j->x->vec->of[j->t].attention_backward(&u, &p);
    }
}

static void backward_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    const struct zt_vec_attention_part all = {
        .queries = j->blocks, .keys = j->blocks, .to_queries = true, .to_keys = true};
    group_part(j, unit, unit + zt_pool_threads(j->x->pool), all, thread);
}

/* The first blocks of keys are seen by the most queries. */
static void keys_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    const int64_t block = unit % j->blocks;
    const struct zt_vec_attention_part p = {
        .query = block, .queries = j->blocks - block, .key = block, .keys = 1, .to_keys = true};
    group_part(j, unit / j->blocks, unit / j->blocks, p, thread);
}

static void queries_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    const int64_t head = unit / j->blocks;
    const struct zt_vec_attention_part p = {.query = j->blocks - 1 - unit % j->blocks,
                                            .queries = 1,
                                            .keys = j->blocks,
                                            .to_queries = true};
    struct zt_vec_attention u = head_of(j, head, head, thread);
    j->x->vec->of[j->t].attention_backward(&u, &p);
}

static void run_backward(struct attention *j) {
    const int64_t groups = j->a->B * j->a->KV, threads = zt_pool_threads(j->x->pool);
    const int64_t rounds = (groups + threads - 1) / threads;
    if (5 * rounds * threads <= 8 * groups || j->blocks == 1) {
        zt_pool_run(j->x->pool, groups, backward_unit, j);
        return;
    }
    zt_pool_run(j->x->pool, groups * j->blocks, keys_unit, j);
    zt_pool_run(j->x->pool, groups * j->group * j->blocks, queries_unit, j);
}

int zt_cpu_attention_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                             const void *q, const void *k, const void *v,
                             const struct zt_attention *a, void *workspace, struct zt_error *err) {
    (void)workspace;
    struct attention j = {.x = x, .a = a, .t = t, .q = q, .k = k, .v = v, .out = out, .lse = lse};
    int rc = prepare("attention_forward", &j, err);
    if (rc == ZT_OK) zt_pool_run(x->pool, a->B * a->H * j.blocks, forward_unit, &j);
    return rc;
}

int zt_cpu_attention_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dq, void *dk, void *dv,
                              const void *dout, const void *q, const void *k, const void *v,
                              const void *out, const float *lse, const struct zt_attention *a,
                              void *workspace, struct zt_error *err) {
    (void)workspace;
    struct attention j = {.x = x,
                          .a = a,
                          .t = t,
                          .q = q,
                          .k = k,
                          .v = v,
                          .dout = dout,
                          .saved = out,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv};
    j.lse = (float *)(uintptr_t)lse; /* only read in backward */
    int rc = prepare("attention_backward", &j, err);
    if (rc == ZT_OK) run_backward(&j);
    return rc;
}
