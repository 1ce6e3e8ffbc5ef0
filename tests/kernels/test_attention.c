/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention, forward and backward, against a naive fp64 implementation. */
#include "tests/kernels/util.h"

struct shape {
    int64_t B, T, H, D;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1},     {2, 3, 1, 17},   {1, 16, 2, 16},  {2, 17, 3, 32},
    {1, 63, 1, 64},   {1, 64, 2, 64},  {1, 65, 1, 80},  {1, 100, 3, 5},
    {1, 128, 1, 128}, {1, 257, 2, 33}, {2, 150, 1, 96}, {1, 130, 1, 200},
};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

static int64_t in_at(const struct shape *s, int64_t b, int64_t t, int64_t which, int64_t h) {
    return (((b * s->T + t) * 3 + which) * s->H + h) * s->D;
}
static int64_t out_at(const struct shape *s, int64_t b, int64_t t, int64_t h) {
    return ((b * s->T + t) * s->H + h) * s->D;
}

static double dot64(const float *a, const float *b, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

/* One query of the definition: probabilities, output, log-sum-exp and, if asked, gradients. */
static void reference_row(const struct shape *s, int64_t b, int64_t h, int64_t t, const float *qkv,
                          const float *dout, double *out, double *lse, double *dqkv) {
    const double scale = 1.0 / sqrt((double)s->D);
    double *p = calloc((size_t)s->T, sizeof *p), top = -INFINITY, sum = 0.0, delta = 0.0;
    const float *q = qkv + in_at(s, b, t, 0, h);
    for (int64_t k = 0; k <= t; k++)
        top = fmax(top, p[k] = scale * dot64(q, qkv + in_at(s, b, k, 1, h), s->D));
    for (int64_t k = 0; k <= t; k++) sum += p[k] = exp(p[k] - top);
    lse[(b * s->H + h) * s->T + t] = top + log(sum);
    double *o = out + out_at(s, b, t, h);
    for (int64_t d = 0; d < s->D; d++) {
        o[d] = 0.0;
        for (int64_t k = 0; k <= t; k++) o[d] += p[k] / sum * qkv[in_at(s, b, k, 2, h) + d];
        delta += dout ? o[d] * dout[out_at(s, b, t, h) + d] : 0.0;
    }
    for (int64_t k = 0; dqkv && k <= t; k++) {
        const float *dy = dout + out_at(s, b, t, h), *key = qkv + in_at(s, b, k, 1, h);
        const double w = p[k] / sum;
        const double ds = scale * w * (dot64(dy, qkv + in_at(s, b, k, 2, h), s->D) - delta);
        for (int64_t d = 0; d < s->D; d++) {
            dqkv[in_at(s, b, t, 0, h) + d] += ds * key[d];
            dqkv[in_at(s, b, k, 1, h) + d] += ds * q[d];
            dqkv[in_at(s, b, k, 2, h) + d] += w * dy[d];
        }
    }
    free(p);
}

static double largest(const double *v, int64_t n) {
    double m = 0.0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(v[i]));
    return m;
}

static float *workspace(size_t bytes) { return bytes ? buffer((int64_t)((bytes + 3) / 4)) : NULL; }

static void check_shape(struct zt_ops_ctx *x, const struct shape *s, float size) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t n = s->B * s->T * s->H * s->D, rows = s->B * s->H * s->T;
    float *qkv = random_buffer(3 * n), *dout = random_buffer(n), *out = random_buffer(n);
    float *lse = random_buffer(rows), *dqkv = random_buffer(3 * n);
    double *want = calloc((size_t)(4 * n + rows), sizeof *want);
    for (int64_t i = 0; i < 3 * n; i++) qkv[i] *= size;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->H; h++)
            for (int64_t t = 0; t < s->T; t++)
                reference_row(s, b, h, t, qkv, dout, want, want + 4 * n, want + n);
    float *w1 = workspace(o->attention_workspace(s->B, s->T, s->H, s->D, ZT_F32));
    float *w2 = workspace(o->attention_backward_workspace(s->B, s->T, s->H, s->D, ZT_F32));
    OK(o->attention_forward(x, ZT_F32, out, lse, qkv, s->B, s->T, s->H, s->D, w1, &err));
    near(out, want, n, 1e-6 * size * (1.0 + size * size), "out");
    near(lse, want + 4 * n, rows, 2e-6 * (1.0 + size * size), "lse");
    OK(o->attention_backward(x, ZT_F32, dqkv, dout, qkv, out, lse, s->B, s->T, s->H, s->D, w2,
                             &err));
    near(dqkv, want + n, 3 * n, 3e-6 * (1.0 + size * size) * (1.0 + largest(want + n, 3 * n)),
         "dqkv");
    free(want);
    end_buffers();
}

Test(attention, follows_fp64) {
    for (int i = 0; i < ISA_NAMES; i++) {
        if (!zt_vec_find(isa_names[i])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[i], NULL);
        for (int s = 0; s < SHAPES; s++) check_shape(x, &shapes[s], s % 3 == 0 ? 4.0f : 1.0f);
        zt_ops_cpu_destroy(x);
    }
}

/* What comes after a query does not reach it: changing later positions leaves its bits alone. */
Test(attention, later_positions_do_not_reach_earlier_ones) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    const struct shape s = {1, 200, 2, 40};
    const int64_t n = s.T * s.H * s.D;
    float *qkv = random_buffer(3 * n), *out = buffer(n), *lse = buffer(s.H * s.T);
    OK(o->attention_forward(x, ZT_F32, out, lse, qkv, 1, s.T, s.H, s.D, NULL, &err));
    static const int64_t cuts[] = {1, 15, 16, 63, 64, 65, 130, 199};
    for (int c = 0; c < 8; c++) {
        float *other = copy_buffer(qkv, 3 * n), *out2 = buffer(n), *lse2 = buffer(s.H * s.T);
        for (int64_t i = cuts[c] * 3 * s.H * s.D; i < 3 * n; i++) other[i] = 1e4f * uniform();
        OK(o->attention_forward(x, ZT_F32, out2, lse2, other, 1, s.T, s.H, s.D, NULL, &err));
        same_bits(out, out2, cuts[c] * s.H * s.D, "out before the change", 2, "best");
        for (int64_t h = 0; h < s.H; h++)
            same_bits(lse + h * s.T, lse2 + h * s.T, cuts[c], "lse before the change", 2, "best");
        cr_assert_neq(memcmp(out + cuts[c] * s.H * s.D, out2 + cuts[c] * s.H * s.D, 4), 0);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* Adding one key to all scores (through q k = large) must not overflow: online softmax. */
Test(attention, large_scores_stay_finite) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const struct shape s = {1, 150, 1, 16};
    const int64_t n = s.T * s.D;
    float *qkv = random_buffer(3 * n), *out = buffer(n), *lse = buffer(s.T), *dqkv = buffer(3 * n);
    for (int64_t i = 0; i < 3 * n; i++) qkv[i] *= 100.0f;
    OK(o->attention_forward(x, ZT_F32, out, lse, qkv, 1, s.T, 1, s.D, NULL, &err));
    OK(o->attention_backward(x, ZT_F32, dqkv, out, qkv, out, lse, 1, s.T, 1, s.D, NULL, &err));
    for (int64_t i = 0; i < n; i++) cr_assert(fabsf(out[i]) <= 100.001f);
    for (int64_t i = 0; i < 3 * n; i++) cr_assert(isfinite(dqkv[i]));
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* Threads never matter. Instruction sets with fma (AVX2, AVX-512) agree; SSE2 has none. */
Test(attention, same_bits_for_threads_and_fma_sets) {
    const struct zt_ops *o = zt_ops_cpu();
    static const struct shape cases[] = {{2, 150, 3, 40}, {1, 257, 2, 64}, {3, 20, 2, 16}};
    for (int c = 0; c < 3; c++) {
        const struct shape *s = &cases[c];
        const int64_t n = s->B * s->T * s->H * s->D, rows = s->B * s->H * s->T;
        float *qkv = random_buffer(3 * n), *dout = random_buffer(n), *first[2] = {NULL, NULL};
        for (int i = 0; i < ISA_NAMES * THREAD_COUNTS; i++) {
            const char *isa = isa_names[i / THREAD_COUNTS];
            const struct zt_vec *v = zt_vec_find(isa);
            if (!v) continue;
            const int threads = thread_counts[i % THREAD_COUNTS];
            struct zt_ops_ctx *x = context(threads, isa, NULL);
            float *all = buffer(4 * n + rows);
            OK(o->attention_forward(x, ZT_F32, all, all + 4 * n, qkv, s->B, s->T, s->H, s->D, NULL,
                                    &err));
            OK(o->attention_backward(x, ZT_F32, all + n, dout, qkv, all, all + 4 * n, s->B, s->T,
                                     s->H, s->D, NULL, &err));
            if (!first[v->fma]) first[v->fma] = all;
            same_bits(first[v->fma], all, 4 * n + rows, "attention", threads, isa);
            zt_ops_cpu_destroy(x);
        }
        end_buffers();
    }
}

Test(attention, other_dtypes_are_refused) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_error err = {0};
    float a[3] = {0};
    cr_assert_eq(o->attention_forward(x, ZT_I32, a, a, a, 1, 1, 1, 1, NULL, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "attention_forward"), "%s", err.msg);
    zt_ops_cpu_destroy(x);
}
