/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/attention.c: cuts attention into units of work for the pool.
 *
 * Forward: a unit is a block of queries of one head. Backward: a unit is one head, whose tiles are
 * visited in one fixed order, so dq, dk and dv are added to in that order whatever the threads. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

struct attention {
    struct zt_ops_ctx *x;
    enum zt_dtype t;
    const void *qkv, *dout, *saved;
    void *out, *dqkv;
    float *lse;
    int64_t B, T, H, D, blocks;
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

static struct zt_vec_attention head_of(const struct attention *j, int64_t head, int64_t after,
                                       int thread) {
    const int64_t b = head / j->H, h = head % j->H;
    const int64_t in = b * j->T * 3 * j->H * j->D + h * j->D, k = j->H * j->D;
    const int64_t at = b * j->T * j->H * j->D + h * j->D;
    struct zt_vec_attention a = {
        .q = zt_cpu_at(j->qkv, in, j->t),
        .k = zt_cpu_at(j->qkv, in + k, j->t),
        .v = zt_cpu_at(j->qkv, in + 2 * k, j->t),
        .lse = j->lse + head * j->T,
        .stride = 3 * k,
        .ostride = k,
        .T = j->T,
        .D = j->D,
        .scale = (float)(1.0 / sqrt((double)j->D)),
        .scratch = j->x->scratch[thread],
    };
    const int64_t next = after / j->H * j->T * 3 * k + after % j->H * j->D;
    if (after < j->B * j->H) {
        a.next_k = zt_cpu_at(j->qkv, next + k, j->t);
        a.next_v = zt_cpu_at(j->qkv, next + 2 * k, j->t);
    }
    if (j->dqkv) {
        a.out = zt_cpu_at(j->saved, at, j->t);
        a.dout = zt_cpu_at(j->dout, at, j->t);
        a.dq = zt_cpu_at(j->dqkv, in, j->t);
        a.dk = zt_cpu_at(j->dqkv, in + k, j->t);
        a.dv = zt_cpu_at(j->dqkv, in + 2 * k, j->t);
    } else {
        a.o = zt_cpu_at(j->out, at, j->t);
    }
    return a;
}

static void forward_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    struct zt_vec_attention a =
        head_of(j, unit / j->blocks, (unit + zt_pool_threads(j->x->pool)) / j->blocks, thread);
    /* A head's blocks follow each other, its keys stay in the cache; the last blocks have the most
     * keys, so the long units come first. */
    j->x->vec->of[j->t].attention_forward(&a, j->blocks - 1 - unit % j->blocks);
}

static void backward_unit(void *arg, int64_t unit, int thread) {
    const struct attention *j = arg;
    struct zt_vec_attention a = head_of(j, unit, unit + zt_pool_threads(j->x->pool), thread);
    j->x->vec->of[j->t].attention_backward(&a);
}

int zt_cpu_attention_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                             const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D,
                             void *workspace, struct zt_error *err) {
    (void)workspace;
    int rc = zt_cpu_need_float("attention_forward", t, err);
    if (rc == ZT_OK) rc = need_scratch(x, T, D, err);
    if (rc != ZT_OK) return rc;
    struct attention j = {.x = x,
                          .t = t,
                          .qkv = qkv,
                          .out = out,
                          .lse = lse,
                          .B = B,
                          .T = T,
                          .H = H,
                          .D = D,
                          .blocks = (T + ZT_ATTENTION_BLOCK - 1) / ZT_ATTENTION_BLOCK};
    zt_pool_run(x->pool, B * H * j.blocks, forward_unit, &j);
    return ZT_OK;
}

int zt_cpu_attention_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dqkv, const void *dout,
                              const void *qkv, const void *out, const float *lse, int64_t B,
                              int64_t T, int64_t H, int64_t D, void *workspace,
                              struct zt_error *err) {
    (void)workspace;
    int rc = zt_cpu_need_float("attention_backward", t, err);
    if (rc == ZT_OK) rc = need_scratch(x, T, D, err);
    if (rc != ZT_OK) return rc;
    struct attention j = {.x = x,
                          .t = t,
                          .qkv = qkv,
                          .dout = dout,
                          .saved = out,
                          .dqkv = dqkv,
                          .B = B,
                          .T = T,
                          .H = H,
                          .D = D};
    j.lse = (float *)(uintptr_t)lse; /* only read in backward */
    zt_pool_run(x->pool, B * H, backward_unit, &j);
    return ZT_OK;
}
