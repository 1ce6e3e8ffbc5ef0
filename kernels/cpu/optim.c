/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/optim.c: AdamW and the exact sums (norm, loss). */
#include "kernels/cpu/cpu.h"

#include <math.h>

#define GRAIN 16384
#define PIECE                                                                                      \
    ZT_VEC_RANDOM /* elements that are stepped at a time: wide copies stay in the cache            \
                   */

struct adamw {
    const struct zt_vec *vec;
    struct zt_adamw_buffers b;
    struct zt_vec_adamw a;
    bool stochastic;
    uint64_t seed;
    struct zt_span span;
    uint32_t step, stream;
};

/* n elements as fp32: where they lie, or widened into `room`. */
static float *wide_of(const struct adamw *j, void *at, enum zt_dtype t, float *room, size_t n) {
    if (t == ZT_F32) return at;
    j->vec->of[t].widen(room, at, n);
    return room;
}

/* Rounds what was stepped in `wide` back to its storage; fp32 already lies there. */
static void store(const struct adamw *j, void *at, enum zt_dtype t, const float *wide,
                  const uint32_t *noise, size_t n) {
    if (t == ZT_F32) return;
    if (j->stochastic)
        j->vec->round_noisy(at, wide, noise, n);
    else
        j->vec->of[t].narrow(at, wide, n);
}

/* index: logical, of element i. */
static void adamw_piece(const struct adamw *j, int64_t i, size_t n, uint64_t index) {
    const struct zt_adamw_buffers *b = &j->b;
    float room[4][PIECE];
    uint32_t noise[4][PIECE];
    void *param = zt_cpu_at(b->param, i, b->param_type);
    void *m = zt_cpu_at(b->m, i, b->moment_type), *v = zt_cpu_at(b->v, i, b->moment_type);
    float *wm = wide_of(j, m, b->moment_type, room[1], n);
    float *wv = wide_of(j, v, b->moment_type, room[2], n);
    float *g = wide_of(j, zt_cpu_at(b->grad, i, b->grad_type), b->grad_type, room[3], n);
    float *wp = b->master ? b->master + i : wide_of(j, param, b->param_type, room[0], n);
    if (j->stochastic) j->vec->random(noise, j->seed, j->step, j->stream, index, n);
    j->vec->adamw(wp, wm, wv, g, n, &j->a);
    if (b->master)
        j->vec->of[b->param_type].narrow(param, wp, n);
    else
        store(j, param, b->param_type, wp, noise[0], n);
    store(j, m, b->moment_type, wm, noise[1], n);
    store(j, v, b->moment_type, wv, noise[2], n);
}

static void adamw_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct adamw *j = arg;
    const bool whole =
        j->b.param_type == ZT_F32 && j->b.moment_type == ZT_F32 && j->b.grad_type == ZT_F32;
    const int64_t piece = whole ? count : PIECE;
    (void)thread;
    for (int64_t i = 0, n; i < count; i += n) {
        uint64_t index = 0;
        n = count - i < piece ? count - i : piece;
        if (j->stochastic) n = zt_span_run(&j->span, first + i, n, &index);
        adamw_piece(j, first + i, (size_t)n, index);
    }
}

static int adamw_check(const struct zt_adamw_buffers *b, const struct zt_adamw_params *a,
                       struct zt_error *err) {
    const enum zt_dtype p = b->param_type;
    int rc = zt_cpu_need_float("adamw (gradient)", b->grad_type, err);
    if (rc != ZT_OK) return rc;
    if (b->moment_type != ZT_F32 && b->moment_type != ZT_BF16)
        return zt_fail(err, ZT_EUNSUPPORTED, "adamw: moments are fp32 or bf16, not %s",
                       zt_dtype_name(b->moment_type));
    if (b->master ? p != ZT_BF16 && p != ZT_F16 : p != ZT_F32 && p != ZT_BF16)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "adamw: parameters are fp32 or bf16 alone, or bf16 or fp16 beside an fp32 "
                       "master; %s %s a master is none of these",
                       zt_dtype_name(p), b->master ? "with" : "without");
    if (a->step < 1 || a->step > UINT32_MAX)
        return zt_fail(err, ZT_EINVAL, "adamw: step %lld; steps count from 1 to 2^32 - 1",
                       (long long)a->step);
    return ZT_OK;
}

int zt_cpu_adamw(struct zt_ops_ctx *x, const struct zt_adamw_buffers *b, int64_t n,
                 const struct zt_adamw_params *a, struct zt_error *err) {
    int rc = adamw_check(b, a, err);
    if (rc != ZT_OK) return rc;
    const double bc1 = 1.0 - pow(a->beta1, (double)a->step);
    const double bc2 = 1.0 - pow(a->beta2, (double)a->step);
    struct adamw j = {.vec = x->vec,
                      .b = *b,
                      .a =
                          {
                              .grad_scale = (float)a->grad_scale,
                              .decay = (float)(1.0 - a->lr * a->weight_decay),
                              .one_m_b1 = (float)(1.0 - a->beta1),
                              .beta2 = (float)a->beta2,
                              .one_m_b2 = (float)(1.0 - a->beta2),
                              .sqrt_bc2 = (float)sqrt(bc2),
                              .eps = (float)a->eps,
                              .step_size = (float)(a->lr / bc1),
                          },
                      .stochastic = a->stochastic && ((!b->master && b->param_type == ZT_BF16) ||
                                                      b->moment_type == ZT_BF16),
                      .seed = a->seed,
                      .span = a->span,
                      .step = (uint32_t)a->step};
    if (j.stochastic) rc = zt_cpu_stream("adamw", ZT_RNG_ROUNDING, a->tensor, &j.stream, err);
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN, adamw_range, &j);
    return rc;
}

struct sum {
    const struct zt_vec *vec;
    struct zt_fixsum *partial;
    const void *v;
    enum zt_dtype t;
    bool squares;
};

static void sum_piece(const struct sum *s, struct zt_fixsum *to, const float *v, size_t n) {
    if (s->squares)
        zt_fixsum_add_squares(to, v, n);
    else
        zt_fixsum_add_floats(to, v, n);
}

static void sum_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct sum *s = arg;
    struct zt_fixsum *to = &s->partial[thread];
    float wide[1024];
    if (s->t == ZT_F32) {
        sum_piece(s, to, (const float *)s->v + first, (size_t)count);
        return;
    }
    for (int64_t i = 0; i < count; i += 1024) {
        const size_t n = (size_t)(count - i < 1024 ? count - i : 1024);
        s->vec->of[s->t].widen(wide, zt_cpu_at(s->v, first + i, s->t), n);
        sum_piece(s, to, wide, n);
    }
}

/* Integer sums: which thread took which piece does not show in the result. */
static void sum_all(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, int64_t n, bool squares,
                    struct zt_fixsum *out) {
    struct sum s = {x->vec, x->partial_sum, v, t, squares};
    const int threads = zt_pool_threads(x->pool);
    for (int i = 0; i < threads; i++) zt_fixsum_zero(&x->partial_sum[i]);
    zt_cpu_range(x, n, GRAIN, sum_range, &s);
    for (int i = 0; i < threads; i++) zt_fixsum_merge(out, &x->partial_sum[i]);
    zt_fixsum_normalise(out);
}

int zt_cpu_sum_squares(struct zt_ops_ctx *x, enum zt_dtype t, const void *g, int64_t n,
                       struct zt_fixsum *s, struct zt_error *err) {
    int rc = zt_cpu_need_float("sum_squares", t, err);
    if (rc == ZT_OK) sum_all(x, t, g, n, true, s);
    return rc;
}

int zt_cpu_sum_values(struct zt_ops_ctx *x, const float *v, int64_t n, struct zt_fixsum *s,
                      struct zt_error *err) {
    (void)err;
    sum_all(x, ZT_F32, v, n, false, s);
    return ZT_OK;
}
