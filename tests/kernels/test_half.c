/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on bf16 and fp16. Each is held to two things: its result is the fp32 operator's on
 * the widened operands, rounded once, bit for bit; and it lies within half an ulp of an fp64
 * reference and the error that the fp32 arithmetic may have made, derived at each place. */
#include "tests/kernels/fused.h"
#include "tests/kernels/half.h"

static const int64_t lengths[] = {1, 2, 15, 16, 17, 100, 1023, 40001};
#define LENGTHS 8

/* ---- conversions ---- */

Test(half, every_encoding_is_widened_exactly) {
    static uint16_t all[65536];
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (int s = 0; s < ISA_NAMES; s++) {
        const struct zt_vec *v = zt_vec_find(isa_names[s]);
        for (int k = 0; v && k < 2; k++) {
            const enum zt_dtype t = halves[k];
            static float wide[65536];
            static uint16_t back[65536];
            v->of[t].widen(wide, all, 65536);
            v->of[t].narrow(back, wide, 65536);
            for (int i = 0; i < 65536; i++) {
                const double want = value16(all[i], t);
                cr_assert(
                    isnan(want) ? isnan(wide[i])
                                : (double)wide[i] == want && !signbit(wide[i]) == !signbit(want),
                    "%s %04x on %s is %a", zt_dtype_name(t), i, isa_names[s], (double)wide[i]);
                cr_assert(isnan(want) ? isnan(value16(back[i], t)) : back[i] == all[i],
                          "%s %04x on %s comes back as %04x", zt_dtype_name(t), i, isa_names[s],
                          back[i]);
            }
        }
    }
}

/* Around every number of the format and every middle of two: the number itself and its fp32
 * neighbours on both sides. */
Test(half, rounding_is_to_nearest_even_everywhere) {
    enum { N = 65536 * 6 };
    float *in = buffer(N);
    uint16_t *out = half_buffer(N);
    for (int k = 0; k < 2; k++) {
        const enum zt_dtype t = halves[k];
        int n = 0;
        for (int h = 0; h < 65536; h++) {
            const double v = value16((uint16_t)h, t);
            if (!isfinite(v)) continue;
            const float at[2] = {(float)v, (float)(v + ulp16(v, t) / 2)};
            for (int j = 0; j < 2; j++) {
                in[n++] = at[j];
                in[n++] = nextafterf(at[j], INFINITY);
                in[n++] = nextafterf(at[j], -INFINITY);
            }
        }
        for (int s = 0; s < ISA_NAMES; s++) {
            const struct zt_vec *v = zt_vec_find(isa_names[s]);
            if (!v) continue;
            v->of[t].narrow(out, in, (size_t)n);
            is_rounded(out, in, n, t, isa_names[s]);
        }
    }
    end_buffers();
}

Test(half, nan_and_infinity_stay) {
    static const uint32_t bits[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000,
                                    0x7f80ffff, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff,
                                    0x00000001, 0x80000001, 0x00000000, 0x80000000, 0x7f80007f,
                                    0x7fa00000, 0x477fefff, 0x477ff000};
    enum { N = 18 };
    float in[N];
    memcpy(in, bits, sizeof in);
    for (int s = 0; s < ISA_NAMES; s++) {
        const struct zt_vec *v = zt_vec_find(isa_names[s]);
        for (int k = 0; v && k < 2; k++) {
            uint16_t out[N];
            v->of[halves[k]].narrow(out, in, N);
            is_rounded(out, in, N, halves[k], isa_names[s]);
            for (int i = 0; i < N; i++) cr_assert_eq(out[i] >> 15, bits[i] >> 31);
        }
    }
}

Test(half, casts_between_all_pairs) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 40001 };
    struct pair b = random_pair(N, 70000.0, ZT_BF16), f = random_pair(N, 60000.0, ZT_F16);
    uint16_t *h = half_buffer(N);
    float *w = buffer(N);
    OK(o->cast(x, h, ZT_F16, b.h, ZT_BF16, N, &err));
    is_rounded(h, b.w, N, ZT_F16, "bf16 to fp16");
    OK(o->cast(x, h, ZT_BF16, f.h, ZT_F16, N, &err));
    is_rounded(h, f.w, N, ZT_BF16, "fp16 to bf16");
    OK(o->cast(x, w, ZT_F32, f.h, ZT_F16, N, &err));
    same_bits(w, f.w, N, "fp16 to fp32", 2, "best");
    OK(o->cast(x, w, ZT_F32, b.h, ZT_BF16, N, &err));
    same_bits(w, b.w, N, "bf16 to fp32", 2, "best");
    OK(o->cast(x, h, ZT_BF16, b.h, ZT_BF16, N, &err));
    cr_assert_eq(memcmp(h, b.h, 2 * N), 0);
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* ---- elementwise ---- */

/* e^x to 1 ulp and a handful of operations on arguments of a few: GELU's fp32 error is below 16 u
 * of the value and of its argument's rounding, |x| u each (t = x(A + B x^2) is off by 4 u |t|,
 * which moves 2^t by 4 u |t| ln 2 of its value; |x| <= 6 here, |t| <= 36, so 100 u). */
#define GELU_LOST (100.0 * U32)

static double gelu64(double x) {
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope64(double x) {
    const double c = 0.7978845608028654, u = c * (x + 0.044715 * x * x * x), th = tanh(u);
    return 0.5 * (1.0 + th) + 0.5 * x * (1.0 - th * th) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

static void elementwise(struct zt_ops_ctx *x, int64_t n, enum zt_dtype t) {
    const struct zt_ops *o = zt_ops_cpu();
    struct pair a = random_pair(n, 6.0, t), b = random_pair(n, 3.0, t);
    uint16_t *h = half_buffer(n);
    float *w = buffer(n);
    OK(o->add(x, t, h, a.h, b.h, n, &err));
    for (int64_t i = 0; i < n; i++) w[i] = a.w[i] + b.w[i];
    is_rounded(h, w, n, t, "add");
    struct pair c = copy_pair(a, n);
    OK(o->scale(x, t, c.h, 0.3f, n, &err));
    for (int64_t i = 0; i < n; i++) w[i] = a.w[i] * 0.3f;
    is_rounded(c.h, w, n, t, "scale");
    OK(o->gelu_forward(x, t, h, a.h, n, &err));
    OK(o->gelu_forward(x, ZT_F32, w, a.w, n, &err));
    is_rounded(h, w, n, t, "gelu");
    for (int64_t i = 0; i < n; i++)
        near16(h[i], gelu64(a.w[i]), GELU_LOST * fabs(gelu64(a.w[i])) + 0x1p-126, t, "gelu", i);
    OK(o->gelu_backward(x, t, h, a.h, b.h, n, &err));
    OK(o->gelu_backward(x, ZT_F32, w, a.w, b.w, n, &err));
    is_rounded(h, w, n, t, "gelu gradient");
    for (int64_t i = 0; i < n; i++)
        near16(h[i], gelu_slope64(a.w[i]) * b.w[i], GELU_LOST * 2.0 * fabsf(b.w[i]), t,
               "gelu gradient", i);
    end_buffers();
}

Test(half, elementwise_operators) {
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < LENGTHS; l++) elementwise(x, lengths[l], halves[k]);
    zt_ops_cpu_destroy(x);
}

/* All nine pairs: dst + src in fp32, one rounding. */
Test(half, accumulate_adds_in_fp32) {
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    for (int l = 0; l < LENGTHS; l++)
        for (int p = 0; p < 9; p++) {
            const int64_t n = lengths[l];
            const enum zt_dtype dt = types[p / 3], st = types[p % 3];
            struct pair d = random_pair(n, 100.0, dt == ZT_F32 ? ZT_BF16 : dt);
            struct pair s = random_pair(n, 1.0, st == ZT_F32 ? ZT_F16 : st);
            float *want = buffer(n);
            if (dt == ZT_F32) d.w[0] = 1e-3f; /* no 16-bit number */
            for (int64_t i = 0; i < n; i++) want[i] = d.w[i] + s.w[i];
            OK(o->accumulate(x, dt == ZT_F32 ? (void *)d.w : d.h, dt,
                             st == ZT_F32 ? (void *)s.w : s.h, st, n, &err));
            if (dt == ZT_F32)
                same_bits(d.w, want, n, "accumulate", 2, "best");
            else
                is_rounded(d.h, want, n, dt, "accumulate");
            end_buffers();
        }
    zt_ops_cpu_destroy(x);
}

Test(half, sums_of_squares_are_exact) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < LENGTHS; l++) {
            struct pair a = random_pair(lengths[l], 5.0, halves[k]);
            struct zt_fixsum got, want;
            zt_fixsum_zero(&got);
            zt_fixsum_zero(&want);
            OK(o->sum_squares(x, halves[k], a.h, lengths[l], &got, &err));
            for (int64_t i = 0; i < lengths[l]; i++)
                zt_fixsum_add(&want, (double)a.w[i] * (double)a.w[i]);
            zt_fixsum_normalise(&want);
            cr_assert_eq(memcmp(&got, &want, sizeof got), 0);
            end_buffers();
        }
    zt_ops_cpu_destroy(x);
}

Test(half, initial_values_are_the_fp32_ones_rounded) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 5001 };
    for (int k = 0; k < 2; k++) {
        uint16_t *h = half_buffer(N);
        float *w = buffer(N);
        OK(o->fill_normal(x, halves[k], h, 7, 3, zt_span_plain(11, N), N, 0.02, &err));
        OK(o->fill_normal(x, ZT_F32, w, 7, 3, zt_span_plain(11, N), N, 0.02, &err));
        is_rounded(h, w, N, halves[k], "initial values");
        OK(o->fill(x, halves[k], h, 0.1f, N, &err));
        for (int i = 0; i < N; i++) w[i] = 0.1f;
        is_rounded(h, w, N, halves[k], "fill");
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

/* ---- layers ---- */

struct size {
    int64_t N, C;
};
static const struct size sizes[] = {{1, 1},   {1, 17},   {3, 3},     {17, 100}, {100, 257},
                                    {33, 64}, {257, 48}, {1030, 16}, {5, 1000}};
#define SIZES 9

/* fp32 error of y = (x - m) r w + b by rows of C, |x| <= X: m is off by e = gamma_{C+1} X, so x - m
 * by e + u |x - m|; v = sum (x - m)^2 / C by (gamma_{C+3} + 2u) v + e^2, with e only to second
 * order since the deviations sum to 0 up to C e; r = (v + eps)^-1/2 by half its relative error and
 * 3 u. */
static double layernorm_lost(double n, double r, double v, double w, double b, int64_t C,
                             double X) {
    const double e = gamma_n((double)C + 1) * X;
    const double rel = (gamma_n((double)C + 5) * v + 3 * e * e + e * e) / (v + 1e-5);
    const double dn = e * r + fabs(n) * (rel / 2 + 6 * U32);
    return 1.1 * (fabs(w) * dn + 3 * U32 * (fabs(n * w) + fabs(b)));
}

static void layernorm_forward64(const uint16_t *out, const float *in, const float *w,
                                const float *b, int64_t N, int64_t C, enum zt_dtype t) {
    for (int64_t r = 0; r < N; r++) {
        const float *x = in + r * C;
        double m = 0.0, v = 0.0, top = 0.0;
        for (int64_t c = 0; c < C; c++) m += x[c] / (double)C, top = fmax(top, fabs((double)x[c]));
        for (int64_t c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m) / (double)C;
        const double rstd = 1.0 / sqrt(v + (double)1e-5f);
        for (int64_t c = 0; c < C; c++) {
            const double n = (x[c] - m) * rstd;
            near16(out[r * C + c], n * w[c] + b[c], layernorm_lost(n, rstd, v, w[c], b[c], C, top),
                   t, "layernorm", r * C + c);
        }
    }
}

static void layernorm_forward(struct zt_ops_ctx *x, const struct size *s, enum zt_dtype t,
                              bool res) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = s->N, C = s->C, n = N * C;
    struct pair in = random_pair(n, 2.0, t), more = random_pair(n, 1.0, t);
    struct pair w = random_pair(C, 1.0, t), b = random_pair(C, 1.0, t);
    uint16_t *out = half_buffer(n), *sum = half_buffer(n);
    float *wide = buffer(n), *stat = buffer(4 * N);
    OK(o->layernorm_forward(x, t, out, stat, stat + N, in.h, res ? more.h : NULL, res ? sum : NULL,
                            w.h, b.h, N, C, 1e-5, &err));
    if (res) { /* the sum is rounded, and that is what is normalised */
        for (int64_t i = 0; i < n; i++) wide[i] = in.w[i] + more.w[i];
        is_rounded(sum, wide, n, t, "residual sum");
        for (int64_t i = 0; i < n; i++) in.w[i] = (float)value16(sum[i], t);
    }
    OK(o->layernorm_forward(x, ZT_F32, wide, stat + 2 * N, stat + 3 * N, in.w, NULL, NULL, w.w, b.w,
                            N, C, 1e-5, &err));
    is_rounded(out, wide, n, t, "layernorm");
    same_bits(stat, stat + 2 * N, 2 * N, "layernorm statistics", 3, "best");
    layernorm_forward64(out, in.w, w.w, b.w, N, C, t);
    end_buffers();
}

static void layernorm_backward(struct zt_ops_ctx *x, const struct size *s, enum zt_dtype t,
                               enum zt_dtype gt, bool accumulate) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = s->N, C = s->C, n = N * C;
    struct pair in = random_pair(n, 2.0, t), dy = random_pair(n, 1.0, t),
                w = random_pair(C, 1.0, t);
    struct pair dx = random_pair(n, 1.0, t), dw = random_pair(C, 1.0, t),
                db = random_pair(C, 1.0, t);
    float *stat = buffer(2 * N), *out = buffer(n);
    float *work = buffer((int64_t)(o->layernorm_backward_workspace(N, C) / 4));
    float *dw32 = copy_buffer(dw.w, C), *db32 = copy_buffer(db.w, C);
    OK(o->layernorm_forward(x, ZT_F32, out, stat, stat + N, in.w, NULL, NULL, w.w, w.w, N, C, 1e-5,
                            &err));
    const bool wide = gt == ZT_F32;
    OK(o->layernorm_backward(x, t, gt, dx.h, wide ? (void *)dw.w : dw.h, wide ? (void *)db.w : db.h,
                             dy.h, in.h, w.h, stat, stat + N, N, C, accumulate, work, &err));
    OK(o->layernorm_backward(x, ZT_F32, ZT_F32, dx.w, dw32, db32, dy.w, in.w, w.w, stat, stat + N,
                             N, C, accumulate, work, &err));
    is_rounded(dx.h, dx.w, n, t, "layernorm dx");
    if (wide) {
        same_bits(dw.w, dw32, C, "layernorm dweight", 3, "best");
        same_bits(db.w, db32, C, "layernorm dbias", 3, "best");
    } else {
        is_rounded(dw.h, dw32, C, t, "layernorm dweight");
        is_rounded(db.h, db32, C, t, "layernorm dbias");
    }
    end_buffers();
}

Test(half, layernorm) {
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < 2; k++)
        for (int s = 0; s < SIZES; s++)
            for (int v = 0; v < 2; v++) {
                layernorm_forward(x, &sizes[s], halves[k], v);
                layernorm_backward(x, &sizes[s], halves[k], v ? ZT_F32 : halves[k], s % 2);
                layernorm_backward(x, &sizes[s], halves[k], v ? ZT_F32 : halves[k], !(s % 2));
            }
    zt_ops_cpu_destroy(x);
}

/* N additions and the old value: gamma_N of the absolute sum. */
Test(half, bias_gradient) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    for (int i = 0; i < 4 * SIZES; i++) {
        const int64_t N = sizes[i / 4].N, C = sizes[i / 4].C;
        const enum zt_dtype t = halves[i % 2];
        const bool accumulate = i / 2 % 2;
        struct pair dy = random_pair(N * C, 1.0, t), db = random_pair(C, 1.0, t);
        float *work = buffer((int64_t)(o->bias_backward_workspace(N, C) / 4));
        float *want = copy_buffer(db.w, C), *wide = copy_buffer(db.w, C);
        double *sum = calloc((size_t)C, sizeof *sum), *size = calloc((size_t)C, sizeof *size);
        for (int64_t r = 0; r < N + accumulate; r++)
            for (int64_t c = 0; c < C; c++) {
                const double v = r < N ? dy.w[r * C + c] : db.w[c];
                sum[c] += v;
                size[c] += fabs(v);
            }
        OK(o->bias_backward(x, t, t, db.h, dy.h, N, C, accumulate, work, &err));
        OK(o->bias_backward(x, t, ZT_F32, wide, dy.h, N, C, accumulate, work, &err));
        OK(o->bias_backward(x, ZT_F32, ZT_F32, want, dy.w, N, C, accumulate, work, &err));
        is_rounded(db.h, want, C, t, "bias gradient");
        same_bits(wide, want, C, "fp32 bias gradient", 2, "best");
        for (int64_t c = 0; c < C; c++)
            near16(db.h[c], sum[c], gamma_n((double)N) * size[c], t, "bias gradient", c);
        free(sum), free(size);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

static void embedding(struct zt_ops_ctx *x, int64_t B, int64_t T, int64_t V, int64_t C,
                      enum zt_dtype t, int which) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = B * T;
    int32_t *tokens = (int32_t *)(void *)buffer(N);
    for (int64_t i = 0; i < N; i++)
        tokens[i] = (int32_t)((double)(uniform() + 1.0f) / 2.0 * (double)V);
    struct pair wte = random_pair(V * C, 1.0, t), wpe = random_pair(T * C, 1.0, t);
    struct pair dout = random_pair(N * C, 1.0, t);
    const bool token = which != 1, position = which != 2; /* which gradients are asked for */
    uint16_t *out = half_buffer(N * C);
    float *wide = buffer(N * C), *sum = buffer(V * C), *psum = buffer(T * C);
    OK(o->embedding_forward(x, t, out, tokens, wte.h, position ? wpe.h : NULL, B, T, C, zt_vocab_all(V), &err));
    OK(o->embedding_forward(x, ZT_F32, wide, tokens, wte.w, position ? wpe.w : NULL, B, T, C,
                            zt_vocab_all(V), &err));
    is_rounded(out, wide, N * C, t, "embedding");
    float *dwte32 = copy_buffer(wte.w, V * C), *dwpe32 = copy_buffer(wpe.w, T * C);
    for (int64_t i = 0; i < N * C; i++) { /* in token order, in fp32 */
        sum[tokens[i / C] * C + i % C] += dout.w[i];
        psum[i / C % T * C + i % C] += dout.w[i];
        dwte32[tokens[i / C] * C + i % C] += dout.w[i];
        dwpe32[i / C % T * C + i % C] += dout.w[i];
    }
    struct pair g = copy_pair(wte, V * C), p = copy_pair(wpe, T * C);
    OK(o->embedding_backward(x, t, ZT_F32, token ? g.w : NULL, position ? p.w : NULL, dout.h,
                             tokens, B, T, C, zt_vocab_all(V), NULL, &err));
    if (token) same_bits(g.w, dwte32, V * C, "fp32 dwte", 3, "best");
    if (position) same_bits(p.w, dwpe32, T * C, "fp32 dwpe", 3, "best");
    float *work = buffer((int64_t)(o->embedding_backward_workspace(N, t) / 4));
    OK(o->embedding_backward(x, t, t, token ? g.h : NULL, position ? p.h : NULL, dout.h, tokens, B,
                             T, C, zt_vocab_all(V), work, &err));
    for (int64_t i = 0; i < V * C; i++) sum[i] += wte.w[i];
    for (int64_t i = 0; i < T * C; i++) psum[i] += wpe.w[i];
    is_rounded(g.h, token ? sum : wte.w, V * C, t, "dwte");
    is_rounded(p.h, position ? psum : wpe.w, T * C, t, "dwpe");
    end_buffers();
}

/* The sum of a token's rows is rounded once: 17 rows a token or one, tokens of one to three bytes.
 */
Test(half, embedding) {
    static const int64_t vocabularies[] = {1, 3, 255, 256, 257, 70000};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int k = 0; k < 2; k++)
        for (int v = 0; v < 6; v++)
            for (int which = 0; which < 3; which++) {
                embedding(x, 3, 17, vocabularies[v], 3, halves[k], which);
                if (v < 4) embedding(x, 2, 70, vocabularies[v], 130, halves[k], which);
            }
    zt_ops_cpu_destroy(x);
}

/* 1000 rows of 2^-9 beside 1: added one by one to bf16 they would all vanish. */
Test(half, embedding_gradients_do_not_stall) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    enum { N = 1024 };
    int32_t *tokens = (int32_t *)(void *)buffer(N);
    float *ones = buffer(N),
          *work = buffer((int64_t)(o->embedding_backward_workspace(N, ZT_BF16) / 4));
    for (int i = 0; i < N; i++) ones[i] = 0x1p-9f;
    struct pair dout = pair_of(ones, N, ZT_BF16);
    ones[0] = 1.0f;
    struct pair dwte = pair_of(ones, 1, ZT_BF16);
    OK(o->embedding_backward(x, ZT_BF16, ZT_BF16, dwte.h, NULL, dout.h, tokens, 1, N, 1, zt_vocab_all(1), work,
                             &err));
    cr_assert_eq(value16(dwte.h[0], ZT_BF16), 3.0);
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* p = e^(x - top) / sum: the argument is off by u |x - top|, e^ by 1 ulp, the sum by gamma_V; three
 * more roundings. */
static void cross_entropy(struct zt_ops_ctx *x, int64_t N, int64_t V, enum zt_dtype t) {
    const struct zt_ops *o = zt_ops_cpu();
    const float scale = 0.37f;
    struct pair l = random_pair(N * V, 8.0, t);
    float *loss = buffer(N), *loss32 = buffer(N), *in = copy_buffer(l.w, N * V);
    int32_t *target = (int32_t *)(void *)buffer(N);
    struct pair eval = copy_pair(l, N * V);
    for (int64_t r = 0; r < N; r++) target[r] = r % 5 == 3 ? -1 : (int32_t)(r * 7 % V);
    OK(o->cross_entropy(x, t, eval.h, loss, target, NULL, N, V, scale, false, &err));
    OK(o->cross_entropy(x, ZT_F32, l.w, loss32, target, NULL, N, V, scale, true, &err));
    same_bits(loss, loss32, N, "loss without backward", 3, "best");
    OK(o->cross_entropy(x, t, l.h, loss, target, NULL, N, V, scale, true, &err));
    same_bits(loss, loss32, N, "loss", 3, "best");
    is_rounded(l.h, l.w, N * V, t, "dlogits");
    for (int64_t r = 0; r < N; r++) {
        double top = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < V; v++) top = fmax(top, (double)in[r * V + v]);
        for (int64_t v = 0; v < V; v++) sum += exp(in[r * V + v] - top);
        for (int64_t v = 0; v < V; v++) {
            const double p = exp(in[r * V + v] - top) / sum, hot = v == target[r];
            const double lost = (gamma_n((double)V + 6) + 2 * 16.0 * U32) * p * scale + U32 * hot;
            if (target[r] >= 0)
                near16(l.h[r * V + v], scale * (p - hot), lost, t, "dlogits", r * V + v);
            else
                cr_assert_eq(l.h[r * V + v], 0);
        }
    }
    end_buffers();
}

Test(half, cross_entropy) {
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    static const struct size shapes[] = {{1, 1}, {7, 3}, {10, 16}, {9, 33}, {40, 257}, {6, 5003}};
    for (int k = 0; k < 2; k++)
        for (int s = 0; s < 6; s++) cross_entropy(x, shapes[s].N, shapes[s].C, halves[k]);
    zt_ops_cpu_destroy(x);
}

/* ---- attention ---- */

struct heads {
    int64_t B, T, H, D;
};

static double dot(const float *a, const float *b, int64_t n, double *size) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) {
        s += (double)a[i] * b[i];
        *size += fabs((double)a[i] * b[i]);
    }
    return s;
}

/* One head of the definition. A score (kept in powers of two: two more factors) is off by
 * gamma_{D+4} of its absolute sum and its exponential by that and 4 u of itself; a weight by twice
 * the worst of those and gamma_T of the sum; the output by that times the weighted absolute values.
 */
static void attention_forward64(const struct heads *s, const float *qkv, const uint16_t *out,
                                enum zt_dtype t) {
    const int64_t D = s->D, row = 3 * s->H * D;
    double *p = calloc((size_t)s->T, sizeof *p);
    for (int64_t i = 0; i < s->B * s->T * s->H; i++) {
        const int64_t h = i % s->H, q = i / s->H % s->T, b = i / s->H / s->T;
        const float *base = qkv + b * s->T * row + h * D;
        double top = -INFINITY, sum = 0.0, worst = 0.0;
        for (int64_t k = 0; k <= q; k++) {
            double size = 0.0;
            p[k] = dot(base + q * row, base + k * row + s->H * D, D, &size) / sqrt((double)D);
            top = fmax(top, p[k]);
            worst = fmax(worst, gamma_n((double)D + 8) * size / sqrt((double)D));
        }
        for (int64_t k = 0; k <= q; k++) sum += p[k] = exp(p[k] - top);
        for (int64_t d = 0; d < D; d++) {
            double o = 0.0, size = 0.0;
            for (int64_t k = 0; k <= q; k++) {
                const double v = base[k * row + 2 * s->H * D + d];
                o += p[k] / sum * v;
                size += p[k] / sum * fabs(v);
            }
            near16(out[i * D + d], o, (4.0 * worst + gamma_n(2.0 * (double)s->T + 16)) * size, t,
                   "attention", i * D + d);
        }
    }
    free(p);
}

static void attention(struct zt_ops_ctx *x, const struct heads *s, enum zt_dtype t) {
    const int64_t n = s->B * s->T * s->H * s->D, rows = s->B * s->T * s->H;
    const struct zt_attention a = fused(s->B, s->T, s->H, s->D);
    struct pair qkv = random_pair(3 * n, 2.0, t), dout = random_pair(n, 1.0, t);
    uint16_t *out = half_buffer(n), *dqkv = half_buffer(3 * n);
    float *lse = buffer(rows), *lse32 = buffer(rows), *wide = buffer(3 * n);
    OK(fused_forward(x, t, out, lse, qkv.h, a, &err));
    OK(fused_forward(x, ZT_F32, wide, lse32, qkv.w, a, &err));
    is_rounded(out, wide, n, t, "attention");
    same_bits(lse, lse32, rows, "log-sum-exp", 2, "best");
    attention_forward64(s, qkv.w, out, t);
    float *saved = buffer(n);
    for (int64_t i = 0; i < n; i++) saved[i] = (float)value16(out[i], t);
    OK(fused_backward(x, t, dqkv, dout.h, qkv.h, out, lse, a, &err));
    OK(fused_backward(x, ZT_F32, wide, dout.w, qkv.w, saved, lse, a, &err));
    is_rounded(dqkv, wide, 3 * n, t, "attention gradient");
    end_buffers();
}

/* Grouped queries in three buffers, documents and dropout: the fp32 result of the widened operands,
 * rounded once. */
static void grouped_attention(struct zt_ops_ctx *x, int64_t T, int64_t D, enum zt_dtype t) {
    const struct zt_ops *o = zt_ops_cpu();
    int32_t *starts = (int32_t *)(void *)buffer(2 * T);
    for (int64_t i = 0; i < 2 * T; i++) starts[i] = (int32_t)(i % T / 37 * 37);
    const struct zt_attention a = {.B = 2,
                                   .T = T,
                                   .H = 6,
                                   .KV = 2,
                                   .D = D,
                                   .q_row = 6 * D,
                                   .k_row = 2 * D,
                                   .v_row = 2 * D,
                                   .starts = starts,
                                   .heads_all = 6,
                                   .dropout = {.p = 0.2f, .seed = 3, .step = 1, .site = 2}};
    const int64_t n = 2 * T * 6 * D, kn = n / 3, rows = 2 * T * 6;
    struct pair q = random_pair(n, 2.0, t), k = random_pair(kn, 2.0, t);
    struct pair v = random_pair(kn, 2.0, t), dout = random_pair(n, 1.0, t);
    uint16_t *out = half_buffer(n), *dq = half_buffer(n);
    uint16_t *dk = half_buffer(kn), *dv = half_buffer(kn);
    float *lse = buffer(rows), *out32 = buffer(n), *dq32 = buffer(n), *saved = buffer(n);
    float *dk32 = buffer(kn), *dv32 = buffer(kn);
    OK(o->attention_forward(x, ZT_F32, out32, lse, q.w, k.w, v.w, &a, NULL, &err));
    OK(o->attention_forward(x, t, out, lse, q.h, k.h, v.h, &a, NULL, &err));
    is_rounded(out, out32, n, t, "grouped attention");
    for (int64_t i = 0; i < n; i++) saved[i] = (float)value16(out[i], t);
    OK(o->attention_backward(x, t, dq, dk, dv, dout.h, q.h, k.h, v.h, out, lse, &a, NULL, &err));
    OK(o->attention_backward(x, ZT_F32, dq32, dk32, dv32, dout.w, q.w, k.w, v.w, saved, lse, &a,
                             NULL, &err));
    is_rounded(dq, dq32, n, t, "dq of grouped attention");
    is_rounded(dk, dk32, kn, t, "dk of grouped attention");
    is_rounded(dv, dv32, kn, t, "dv of grouped attention");
    end_buffers();
}

Test(half, attention, .timeout = 60) {
    static const struct heads shapes[] = {{1, 1, 1, 1},    {2, 3, 1, 17},  {1, 16, 2, 16},
                                          {2, 17, 3, 32},  {1, 65, 1, 80}, {1, 100, 3, 5},
                                          {1, 150, 2, 64}, {1, 257, 2, 33}};
    for (int i = 0; i < ISA_NAMES; i++) {
        if (!zt_vec_find(isa_names[i])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[i], NULL);
        for (int k = 0; k < 2; k++) {
            for (int s = 0; s < 8; s++) attention(x, &shapes[s], halves[k]);
            grouped_attention(x, 150, 64, halves[k]);
            grouped_attention(x, 67, 33, halves[k]);
        }
        zt_ops_cpu_destroy(x);
    }
}

/* ---- the same bits for any number of threads and on every set ---- */

enum { BN = 200, BC = 77, BT = 50 };
static enum zt_dtype bits_type;
static struct pair bits_in, bits_more, bits_weight;
static int32_t bits_token[BN];

/* Every operator but attention and GEMM, results one after another; `out` holds halves. */
static void body_all(struct zt_ops_ctx *x, float *out) {
    const struct zt_ops *o = zt_ops_cpu();
    const enum zt_dtype t = bits_type;
    const int64_t n = BN * BC;
    uint16_t *h = (uint16_t *)(void *)out;
    float *stat = buffer(2 * BN), *work = buffer(40000);
    OK(o->add(x, t, h, bits_in.h, bits_more.h, n, &err));
    OK(o->gelu_forward(x, t, h + n, bits_in.h, n, &err));
    OK(o->gelu_backward(x, t, h + 2 * n, bits_in.h, bits_more.h, n, &err));
    OK(o->layernorm_forward(x, t, h + 3 * n, stat, stat + BN, bits_in.h, bits_more.h, h + 4 * n,
                            bits_weight.h, bits_weight.h, BN, BC, 1e-5, &err));
    OK(o->layernorm_backward(x, t, t, h + 5 * n, h + 6 * n, h + 6 * n + BC, bits_more.h, bits_in.h,
                             bits_weight.h, stat, stat + BN, BN, BC, false, work, &err));
    OK(o->bias_backward(x, t, t, h + 6 * n + 2 * BC, bits_in.h, BN, BC, false, work, &err));
    OK(o->embedding_backward(x, t, t, h + 7 * n, h + 8 * n, bits_in.h, bits_token, BN / BT, BT, BC,
                             zt_vocab_all(BC), work, &err));
    memcpy(h + 9 * n, bits_in.h, (size_t)n * 2);
    OK(o->cross_entropy(x, t, h + 9 * n, stat, bits_token, NULL, BN, BC, 0.1f, true, &err));
    OK(o->accumulate(x, h + 4 * n, t, bits_more.w, ZT_F32, n, &err));
}

Test(half, same_bits_for_threads_and_sets) {
    for (int k = 0; k < 2; k++) {
        bits_type = halves[k];
        bits_in = random_pair(BN * BC, 3.0, bits_type);
        bits_more = random_pair(BN * BC, 1.0, bits_type);
        bits_weight = random_pair(BC, 1.0, bits_type);
        for (int i = 0; i < BN; i++) bits_token[i] = i * i % BC;
        all_contexts_agree(body_all, 10 * BN * BC / 2, zt_dtype_name(bits_type));
        end_buffers();
    }
}
