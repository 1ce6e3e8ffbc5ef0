/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, rotary positions and SwiGLU: in fp32 against fp64, with bounds that count the roundings
 * (u each; 1 ulp of the exponential is 2 u); in bf16 and fp16 the fp32 result on the widened
 * operands, rounded once, bit for bit. */
#include "tests/kernels/half.h"

/* ---- RMSNorm ---- */

struct size {
    int64_t N, C;
};
static const struct size sizes[] = {{1, 1},    {1, 17},    {3, 3},    {17, 100}, {100, 257},
                                    {257, 48}, {1030, 16}, {5, 1000}, {66, 64}};
#define SIZES 9

/* The mean square is off by gamma_{C+2}, its root by half of that and 3 u with the quotient, the
 * result by 2 u more. */
static void rmsnorm_forward64(const float *out, const float *rstd, const float *in, const float *w,
                              const struct size *s) {
    const double lost = gamma_n((double)s->C / 2 + 8);
    for (int64_t r = 0; r < s->N; r++) {
        double squares = 0.0;
        for (int64_t c = 0; c < s->C; c++) squares += pow(in[r * s->C + c], 2);
        const double rs = 1.0 / sqrt(squares / (double)s->C + (double)1e-5f);
        within(rstd[r], rs, lost * rs, "rstd", r);
        for (int64_t c = 0; c < s->C; c++) {
            const double want = in[r * s->C + c] * rs * w[c];
            within(out[r * s->C + c], want, lost * fabs(want), "rmsnorm", r * s->C + c);
        }
    }
}

static void rmsnorm_forward(struct zt_ops_ctx *x, const struct size *s, enum zt_dtype t, bool res) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = s->N, C = s->C, n = N * C;
    struct pair in = operand(n, 3.0, t), more = operand(n, 1.0, t), w = operand(C, 1.0, t);
    struct pair out = room(n, t), sum = room(n, t);
    float *stat = buffer(2 * N);
    if (res) { /* the sum is rounded, and that is what is normalised */
        for (int64_t i = 0; i < n; i++) sum.w[i] = in.w[i] + more.w[i];
        void *to = t == ZT_F32 ? (void *)buffer(n) : sum.h;
        OK(o->rmsnorm_forward(x, t, of(out, t), stat, of(in, t), of(more, t), to, of(w, t), N, C,
                              1e-5, &err));
        rounded(sum, n, t, "residual sum");
        if (t == ZT_F32) same_bits(to, sum.w, n, "residual sum", 3, "best");
        for (int64_t i = 0; t != ZT_F32 && i < n; i++) sum.w[i] = (float)value16(sum.h[i], t);
        in = sum;
    } else
        OK(o->rmsnorm_forward(x, t, of(out, t), stat, of(in, t), NULL, NULL, of(w, t), N, C, 1e-5,
                              &err));
    OK(o->rmsnorm_forward(x, ZT_F32, out.w, stat + N, in.w, NULL, NULL, w.w, N, C, 1e-5, &err));
    rounded(out, n, t, "rmsnorm");
    same_bits(stat, stat + N, N, "rstd", 3, "best");
    rmsnorm_forward64(out.w, stat, in.w, w.w, s);
    OK(o->rmsnorm_forward(x, t, of(in, t), stat, of(in, t), NULL, NULL, of(w, t), N, C, 1e-5,
                          &err)); /* in place */
    cr_assert_eq(memcmp(of(in, t), of(out, t), (size_t)n * zt_dtype_size(t)), 0);
    end_buffers();
}

/* dn n has three roundings and its mean gamma_{C+3} of the absolute one; three more to dx, one to
 * add. A column's sum has two roundings an addend and gamma_N of the absolute sum. */
static void rmsnorm_backward64(const float *dx, const float *old, const float *dw,
                               const float *old_dw, const float *dy, const float *in,
                               const float *w, const float *rstd, const struct size *s) {
    const int64_t N = s->N, C = s->C;
    double *sum = calloc((size_t)C, sizeof *sum), *size = calloc((size_t)C, sizeof *size);
    for (int64_t r = 0; r < N; r++) {
        double b = 0.0, top = 0.0;
        for (int64_t c = 0; c < C; c++) {
            const double n = (double)in[r * C + c] * rstd[r], g = dy[r * C + c] * n;
            b += g * w[c] / (double)C;
            top += fabs(g * w[c]) / (double)C;
            sum[c] += g;
            size[c] += fabs(g);
        }
        for (int64_t c = 0; c < C; c++) {
            const double n = (double)in[r * C + c] * rstd[r], dn = (double)dy[r * C + c] * w[c];
            const double before = old ? (double)old[r * C + c] : 0.0;
            within(dx[r * C + c], before + (dn - n * b) * rstd[r],
                   gamma_n((double)C + 9) * (fabs(dn) + fabs(n) * top) * rstd[r] +
                       U32 * fabs(before),
                   "dx", r * C + c);
        }
    }
    for (int64_t c = 0; c < C; c++)
        within(dw[c], old_dw[c] + sum[c], gamma_n((double)N + 3) * (size[c] + fabsf(old_dw[c])),
               "dweight", c);
    free(sum), free(size);
}

static void rmsnorm_backward(struct zt_ops_ctx *x, const struct size *s, enum zt_dtype t,
                             enum zt_dtype gt, bool accumulate) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = s->N, C = s->C, n = N * C;
    struct pair in = operand(n, 2.0, t), dy = operand(n, 1.0, t), w = operand(C, 1.0, t);
    struct pair dx = operand(n, 1.0, t), dw = operand(C, 1.0, t);
    float *rstd = buffer(N), *old = copy_buffer(dx.w, n), *old_dw = copy_buffer(dw.w, C);
    float *wide_dw = copy_buffer(dw.w, C);
    float *work = buffer((int64_t)(o->rmsnorm_backward_workspace(N, C) / 4));
    for (int64_t r = 0; r < N; r++) rstd[r] = 1.0f + 0.5f * uniform();
    if (t != ZT_F32)
        OK(o->rmsnorm_backward(x, t, gt, dx.h, gt == ZT_F32 ? (void *)wide_dw : dw.h, dy.h, in.h,
                               w.h, rstd, N, C, accumulate, work, &err));
    OK(o->rmsnorm_backward(x, ZT_F32, ZT_F32, dx.w, dw.w, dy.w, in.w, w.w, rstd, N, C, accumulate,
                           work, &err));
    rounded(dx, n, t, "rmsnorm dx");
    if (gt != ZT_F32)
        is_rounded(dw.h, dw.w, C, gt, "rmsnorm dweight");
    else if (t != ZT_F32)
        same_bits(dw.w, wide_dw, C, "rmsnorm dweight", 3, "best");
    rmsnorm_backward64(dx.w, accumulate ? old : NULL, dw.w, old_dw, dy.w, in.w, w.w, rstd, s);
    if (!accumulate) { /* in place, and without a weight's gradient */
        OK(o->rmsnorm_backward(x, t, gt, of(dy, t), NULL, of(dy, t), of(in, t), of(w, t), rstd, N,
                               C, false, work, &err));
        cr_assert_eq(memcmp(of(dy, t), of(dx, t), (size_t)n * zt_dtype_size(t)), 0);
    }
    end_buffers();
}

Test(rmsnorm, follows_fp64) {
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < FLOAT_TYPES; k++)
        for (int s = 0; s < SIZES; s++)
            for (int v = 0; v < 2; v++) {
                rmsnorm_forward(x, &sizes[s], float_types[k], v);
                rmsnorm_backward(x, &sizes[s], float_types[k], float_types[k], v);
                rmsnorm_backward(x, &sizes[s], float_types[k], ZT_F32, !v);
            }
    zt_ops_cpu_destroy(x);
}

/* ---- SwiGLU ---- */

struct swiglu64 {
    double silu, slope, slope_size;
};
static struct swiglu64 swiglu64(double z) {
    const double s = 1.0 / (1.0 + exp(-z)), rest = 1.0 / (1.0 + exp(z));
    return (struct swiglu64){z * s, s * (1.0 + z * rest), s * (1.0 + fabs(z * rest))};
}

/* The sigmoid is off by at most 6 u (exponential 2, sum 1, quotient 1, product 1; the exponential
 * counts twice), below e^-87 it is 0. */
#define SIGMOID_GONE 0x1p-118 /* z e^-|z| there */

static void swiglu(struct zt_ops_ctx *x, int64_t n, enum zt_dtype t) {
    const struct zt_ops *o = zt_ops_cpu();
    struct pair z = operand(n, 16.0, t), up = operand(n, 3.0, t), dy = operand(n, 1.0, t);
    struct pair out = room(n, t), dz = room(n, t), dup = room(n, t), again = room(n, t);
    for (int64_t i = 0; t == ZT_F32 && i < n; i += 7) z.w[i] *= 8.0f;
    OK(o->swiglu_forward(x, ZT_F32, out.w, z.w, up.w, n, &err));
    OK(o->swiglu_backward(x, ZT_F32, dz.w, dup.w, again.w, z.w, up.w, dy.w, n, &err));
    same_bits(out.w, again.w, n, "product", 3, "best");
    for (int64_t i = 0; i < n; i++) {
        const struct swiglu64 w = swiglu64(z.w[i]);
        const double u = up.w[i], d = dy.w[i];
        within(out.w[i], w.silu * u, (gamma_n(8) * fabs(w.silu) + SIGMOID_GONE) * fabs(u), "swiglu",
               i);
        within(dup.w[i], w.silu * d, (gamma_n(8) * fabs(w.silu) + SIGMOID_GONE) * fabs(d), "dup",
               i);
        within(dz.w[i], w.slope * u * d, (gamma_n(18) * w.slope_size + SIGMOID_GONE) * fabs(u * d),
               "dgate", i);
    }
    if (t != ZT_F32) {
        OK(o->swiglu_forward(x, t, out.h, z.h, up.h, n, &err));
        OK(o->swiglu_backward(x, t, dz.h, dup.h, NULL, z.h, up.h, dy.h, n, &err));
        rounded(out, n, t, "swiglu");
        rounded(dz, n, t, "dgate");
        rounded(dup, n, t, "dup");
    }
    /* a result in any operand's place: two of the six orders, every result in two places */
    const size_t bytes = (size_t)n * zt_dtype_size(t);
    struct pair z2 = copy_of(z, n, t), up2 = copy_of(up, n, t), dy2 = copy_of(dy, n, t);
    OK(o->swiglu_backward(x, t, of(z2, t), of(up2, t), of(dy2, t), of(z2, t), of(up2, t),
                          of(dy2, t), n, &err));
    cr_assert(!memcmp(of(z2, t), of(dz, t), bytes) && !memcmp(of(up2, t), of(dup, t), bytes) &&
              !memcmp(of(dy2, t), of(out, t), bytes));
    struct pair z3 = copy_of(z, n, t), up3 = copy_of(up, n, t), dy3 = copy_of(dy, n, t);
    OK(o->swiglu_backward(x, t, of(dy3, t), of(z3, t), of(up3, t), of(z3, t), of(up3, t),
                          of(dy3, t), n, &err));
    cr_assert(!memcmp(of(dy3, t), of(dz, t), bytes) && !memcmp(of(z3, t), of(dup, t), bytes) &&
              !memcmp(of(up3, t), of(out, t), bytes));
    OK(o->swiglu_forward(x, t, of(z, t), of(z, t), of(up, t), n, &err));
    cr_assert_eq(memcmp(of(z, t), of(out, t), bytes), 0);
    end_buffers();
}

Test(swiglu, follows_fp64) {
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 100, 1023, 40001};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < FLOAT_TYPES; k++)
        for (int l = 0; l < 8; l++) swiglu(x, lengths[l], float_types[k]);
    zt_ops_cpu_destroy(x);
}

Test(swiglu, at_the_ends) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const float z[6] = {-1e30f, 1e30f, 0.0f, -0.0f, NAN, 1.0f};
    const float one[6] = {1, 1, 1, 1, 1, NAN};
    float out[6], dz[6], dup[6];
    OK(o->swiglu_forward(x, ZT_F32, out, z, one, 6, &err));
    OK(o->swiglu_backward(x, ZT_F32, dz, dup, NULL, z, one, one, 6, &err));
    cr_expect(out[0] == 0.0f && out[1] == 1e30f && out[2] == 0.0f && out[3] == 0.0f);
    cr_expect(dz[0] == 0.0f && dz[1] == 1.0f && dz[2] == 0.5f && dz[3] == 0.5f);
    cr_expect(dup[0] == 0.0f && dup[1] == 1e30f);
    cr_expect(isnan(out[4]) && isnan(dz[4]) && isnan(dup[4]) && isnan(out[5]) && isnan(dz[5]));
    zt_ops_cpu_destroy(x);
}

/* ---- rotary positions ---- */

struct turn {
    int64_t B, T, heads, D, more; /* elements of a row beyond the heads */
};

/* Any table will do: two products and a sum, a rounding each. */
static void rope(struct zt_ops_ctx *x, const struct turn *s, enum zt_dtype t, bool inverse) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t row = s->heads * s->D + s->more, n = s->B * s->T * row, half = s->D / 2;
    struct pair v = operand(n, 2.0, t);
    float *table = random_buffer(s->T * s->D), *old = copy_buffer(v.w, n);
    OK(o->rope(x, ZT_F32, v.w, row, table, s->B, s->T, s->heads, s->D, inverse, &err));
    if (t != ZT_F32) OK(o->rope(x, t, v.h, row, table, s->B, s->T, s->heads, s->D, inverse, &err));
    rounded(v, n, t, "rope");
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = i / row, at = i % row, d = at % s->D, pair = d % half;
        if (at >= s->heads * s->D) {
            cr_assert_eq(v.w[i], old[i], "element %lld behind the heads was changed", (long long)i);
            continue;
        }
        const float *angle = table + r % s->T * s->D;
        const double c = angle[pair], si = inverse ? -angle[half + pair] : angle[half + pair];
        const double other = d < half ? -old[i + half] : old[i - half];
        within(v.w[i], old[i] * c + other * si, gamma_n(2) * (fabs(old[i] * c) + fabs(other * si)),
               "rope", i);
    }
    end_buffers();
}

Test(rope, follows_fp64) {
    static const struct turn shapes[] = {{1, 1, 1, 2, 0},   {2, 3, 2, 6, 5},     {3, 17, 4, 32, 64},
                                         {2, 65, 1, 64, 1}, {1, 33, 3, 80, 240}, {2, 9, 5, 128, 0},
                                         {4, 300, 2, 34, 7}};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < FLOAT_TYPES; k++)
        for (int s = 0; s < 7; s++)
            for (int inverse = 0; inverse < 2; inverse++)
                rope(x, &shapes[s], float_types[k], inverse);
    zt_ops_cpu_destroy(x);
}

/* ---- the same bits for any number of threads and on every set ---- */

enum { BN = 300, BC = 90, BT = 75, BD = 18 };
static enum zt_dtype bits_type;
static struct pair bits_in, bits_more, bits_weight;
static float bits_angles[BT * BD], bits_rstd[BN];

static void *element(void *base, int64_t i) {
    return (char *)base + (size_t)i * zt_dtype_size(bits_type);
}

/* Every operator, results one after another. */
static void body_all(struct zt_ops_ctx *x, float *out) {
    const struct zt_ops *o = zt_ops_cpu();
    const enum zt_dtype t = bits_type;
    const int64_t n = BN * BC;
    void *in = of(bits_in, t), *more = of(bits_more, t), *w = of(bits_weight, t);
    float *work = buffer((int64_t)(o->rmsnorm_backward_workspace(BN, BC) / 4));
    OK(o->rmsnorm_forward(x, t, out, buffer(BN), in, more, element(out, n), w, BN, BC, 1e-5, &err));
    OK(o->rmsnorm_backward(x, t, t, element(out, 2 * n), element(out, 7 * n), more, in, w,
                           bits_rstd, BN, BC, false, work, &err));
    OK(o->swiglu_forward(x, t, element(out, 3 * n), in, more, n, &err));
    OK(o->swiglu_backward(x, t, element(out, 4 * n), element(out, 5 * n), NULL, in, more, more, n,
                          &err));
    memcpy(element(out, 6 * n), in, (size_t)n * zt_dtype_size(t));
    OK(o->rope(x, t, element(out, 6 * n), BC, bits_angles, BN / BT, BT, BC / BD, BD, true, &err));
}

Test(llama, same_bits_for_threads_and_sets) {
    for (int k = 0; k < FLOAT_TYPES; k++) {
        bits_type = float_types[k];
        bits_in = operand(BN * BC, 3.0, bits_type);
        bits_more = operand(BN * BC, 1.0, bits_type);
        bits_weight = operand(BC, 1.0, bits_type);
        for (int i = 0; i < BT * BD; i++) bits_angles[i] = uniform();
        for (int i = 0; i < BN; i++) bits_rstd[i] = 1.0f + 0.5f * uniform();
        all_contexts_agree(body_all, (7 * BN * BC + BC) * (int64_t)zt_dtype_size(bits_type) / 4,
                           zt_dtype_name(bits_type));
        end_buffers();
    }
}

Test(llama, what_cannot_be_done_is_refused) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_error err = {0};
    float a[16] = {0};
    cr_assert_eq(o->rmsnorm_forward(x, ZT_F32, a, a, a, a, NULL, a, 1, 4, 1e-5, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "rmsnorm_forward") && strstr(err.msg, "sum"), "%s", err.msg);
    cr_assert_eq(o->rmsnorm_forward(x, ZT_I32, a, a, a, NULL, NULL, a, 1, 4, 1e-5, &err),
                 ZT_EUNSUPPORTED);
    cr_assert_eq(o->rmsnorm_backward(x, ZT_BF16, ZT_F16, a, a, a, a, a, a, 1, 4, false, a, &err),
                 ZT_EUNSUPPORTED);
    cr_assert_eq(o->swiglu_forward(x, ZT_U8, a, a, a, 4, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->swiglu_backward(x, ZT_I64, a, a, a, a, a, a, 1, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->rope(x, ZT_I32, a, 4, a, 1, 1, 1, 4, false, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->rope(x, ZT_F32, a, 5, a, 1, 1, 1, 5, false, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "odd width 5"), "%s", err.msg);
    zt_ops_cpu_destroy(x);
}
