/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_body.h: the vector routines, included by vec_sse2.c, vec_avx2.c and vec_avx512.c
 * after ZT_VEC_* and ZT_VEC_TABLE are defined. See vec.h for what each does. */
#include <math.h>
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_lanes.h"

/* Applies `expr` of x (and y) to n elements: whole vectors, then the tail with the same expression.
 */
#define ELEMENTWISE1(out, in, n, fn)                                                               \
    do {                                                                                           \
        size_t i_ = 0;                                                                             \
        for (; i_ + 16 <= (n); i_ += 16) v_store((out) + i_, fn(v_load((in) + i_)));               \
        if (i_ < (n)) v_store_tail((out) + i_, (n)-i_, fn(v_load_tail((in) + i_, (n)-i_, 0.0f)));  \
    } while (0)
#define ELEMENTWISE2(out, a, b, n, fn)                                                             \
    do {                                                                                           \
        size_t i_ = 0;                                                                             \
        for (; i_ + 16 <= (n); i_ += 16)                                                           \
            v_store((out) + i_, fn(v_load((a) + i_), v_load((b) + i_)));                           \
        if (i_ < (n))                                                                              \
            v_store_tail(                                                                          \
                (out) + i_, (n)-i_,                                                                \
                fn(v_load_tail((a) + i_, (n)-i_, 0.0f), v_load_tail((b) + i_, (n)-i_, 0.0f)));     \
    } while (0)

static void vec_add(float *out, const float *a, const float *b, size_t n) {
    ELEMENTWISE2(out, a, b, n, v_add);
}

static void vec_scale(float *v, float factor, size_t n) {
    const v16 f = v_set1(factor);
#define TIMES_F(x) v_mul(x, f)
    ELEMENTWISE1(v, v, n, TIMES_F);
#undef TIMES_F
}

static void vec_exp(float *out, const float *in, size_t n) { ELEMENTWISE1(out, in, n, v_exp); }
static void vec_log(float *out, const float *in, size_t n) { ELEMENTWISE1(out, in, n, v_log); }

/* GELU, tanh form: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). The
 * right side needs no tanh and keeps its relative accuracy for negative x. e^(-2u) = 2^t with
 * t = x (A + B x^2); held to 2^126, where the quotient is 0 for all purposes. */
#define GELU_2K 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_CUBE 0.044715f
#define GELU_A (-2.302208198144325f)   /* -2 sqrt(2/pi) log2(e) */
#define GELU_B (-0.10294323958002349f) /* 0.044715 A */

INLINE v16 gelu_power(v16 x, v16 xx) {
    v16 t = v_mul(x, v_add(v_mul(xx, v_set1(GELU_B)), v_set1(GELU_A)));
    return v_exp2(v_min(v_set1(126.0f), t));
}

INLINE v16 gelu_one(v16 x) { return v_div(x, v_add(v_set1(1.0f), gelu_power(x, v_mul(x, x)))); }

/* d/dx = s + x s (1 - s) 2u', with s = 1 / (1 + e^(-2u)) and 1 - s = e^(-2u) s. */
INLINE v16 gelu_slope(v16 x, v16 dy) {
    v16 xx = v_mul(x, x), e = gelu_power(x, xx);
    v16 s = v_div(v_set1(1.0f), v_add(v_set1(1.0f), e));
    v16 du = v_add(v_mul(xx, v_set1(3.0f * GELU_CUBE * GELU_2K)), v_set1(GELU_2K));
    v16 g = v_add(s, v_mul(v_mul(v_mul(x, s), v_mul(e, s)), du));
    return v_mul(g, dy);
}

static void vec_gelu_forward(float *out, const float *in, size_t n) {
    ELEMENTWISE1(out, in, n, gelu_one);
}

static void vec_gelu_backward(float *dx, const float *in, const float *dout, size_t n) {
    ELEMENTWISE2(dx, in, dout, n, gelu_slope);
}

/* Loads 16 elements at i of a row of C, the tail's missing lanes holding `fill`. */
INLINE v16 row_load(const float *row, int64_t i, int64_t C, float fill) {
    return i + 16 <= C ? v_load(row + i) : v_load_tail(row + i, (size_t)(C - i), fill);
}

INLINE void row_store(float *row, int64_t i, int64_t C, v16 x) {
    if (i + 16 <= C)
        v_store(row + i, x);
    else
        v_store_tail(row + i, (size_t)(C - i), x);
}

static void vec_layernorm_forward(float *out, float *mean, float *rstd, const float *in,
                                  const float *residual, float *sum, const float *weight,
                                  const float *bias, int64_t rows, int64_t C, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        const float *x = in + r * C;
        v16 total = v_zero(), squares = v_zero();
        if (residual) {
            float *s = sum + r * C;
            for (int64_t i = 0; i < C; i += 16) {
                v16 t = v_add(row_load(x, i, C, 0.0f), row_load(residual + r * C, i, C, 0.0f));
                row_store(s, i, C, t);
                total = v_add(total, t);
            }
            x = s;
        } else {
            for (int64_t i = 0; i < C; i += 16) total = v_add(total, row_load(x, i, C, 0.0f));
        }
        const float mu = v_sum(total) / (float)C;
        const v16 mus = v_set1(mu);
        for (int64_t i = 0; i < C; i += 16) {
            v16 d = v_sub(row_load(x, i, C, mu), mus);
            squares = v_add(squares, v_mul(d, d));
        }
        const float rs = 1.0f / sqrtf(v_sum(squares) / (float)C + eps);
        const v16 rss = v_set1(rs);
        for (int64_t i = 0; i < C; i += 16) {
            v16 n = v_mul(v_sub(row_load(x, i, C, mu), mus), rss);
            v16 w = row_load(weight, i, C, 0.0f), b = row_load(bias, i, C, 0.0f);
            row_store(out + r * C, i, C, v_add(v_mul(n, w), b));
        }
        mean[r] = mu;
        rstd[r] = rs;
    }
}

/* dx = (dn - mean(dn) - n mean(dn n)) rstd, with n the normalised input and dn = dout weight. */
static void vec_layernorm_backward(float *dx, float *part, const float *dout, const float *in,
                                   const float *weight, const float *mean, const float *rstd,
                                   int64_t rows, int64_t C, bool accumulate_dx) {
    float *dw = part, *db = part + C;
    for (int64_t r = 0; r < rows; r++) {
        const float *dy = dout + r * C, *x = in + r * C;
        const v16 mu = v_set1(mean[r]), rs = v_set1(rstd[r]);
        v16 sum_dn = v_zero(), sum_dnn = v_zero();
        for (int64_t i = 0; i < C; i += 16) {
            v16 d = row_load(dy, i, C, 0.0f);
            v16 n = v_mul(v_sub(row_load(x, i, C, mean[r]), mu), rs);
            v16 dn = v_mul(d, row_load(weight, i, C, 0.0f));
            v16 dny = v_mul(d, n);
            sum_dn = v_add(sum_dn, dn);
            sum_dnn = v_add(sum_dnn, v_mul(dn, n));
            row_store(dw, i, C, r ? v_add(row_load(dw, i, C, 0.0f), dny) : dny);
            row_store(db, i, C, r ? v_add(row_load(db, i, C, 0.0f), d) : d);
        }
        const v16 a = v_set1(v_sum(sum_dn) / (float)C), b = v_set1(v_sum(sum_dnn) / (float)C);
        float *g = dx + r * C;
        for (int64_t i = 0; i < C; i += 16) {
            v16 dn = v_mul(row_load(dy, i, C, 0.0f), row_load(weight, i, C, 0.0f));
            v16 n = v_mul(v_sub(row_load(x, i, C, mean[r]), mu), rs);
            v16 v = v_mul(v_sub(v_sub(dn, a), v_mul(n, b)), rs);
            row_store(g, i, C, accumulate_dx ? v_add(row_load(g, i, C, 0.0f), v) : v);
        }
    }
}

static void vec_column_sums(float *part, const float *in, int64_t rows, int64_t C) {
    int64_t c = 0;
    for (; c + 64 <= C; c += 64) {
        v16 s0 = v_zero(), s1 = v_zero(), s2 = v_zero(), s3 = v_zero();
        for (int64_t r = 0; r < rows; r++) {
            const float *x = in + r * C + c;
            s0 = v_add(s0, v_load(x));
            s1 = v_add(s1, v_load(x + 16));
            s2 = v_add(s2, v_load(x + 32));
            s3 = v_add(s3, v_load(x + 48));
        }
        v_store(part + c, s0);
        v_store(part + c + 16, s1);
        v_store(part + c + 32, s2);
        v_store(part + c + 48, s3);
    }
    for (; c < C; c += 16) {
        v16 s = v_zero();
        for (int64_t r = 0; r < rows; r++) s = v_add(s, row_load(in + r * C, c, C, 0.0f));
        row_store(part, c, C, s);
    }
}

static void vec_cross_entropy_row(float *logits, float *loss, int64_t V, int64_t target,
                                  float scale, bool backward) {
    if (target < 0) {
        *loss = 0.0f;
        if (backward) memset(logits, 0, (size_t)V * sizeof *logits);
        return;
    }
    const float ninf = -__builtin_inff();
    v16 best = v_set1(ninf), total = v_zero();
    for (int64_t i = 0; i < V; i += 16) best = v_max(row_load(logits, i, V, ninf), best);
    const float top = v_highest(best), picked = logits[target];
    const v16 tops = v_set1(top);
    for (int64_t i = 0; i < V; i += 16) { /* a NaN logit makes the sum, so the loss, NaN */
        v16 e = v_exp_negative(v_sub(row_load(logits, i, V, ninf), tops));
        if (backward) row_store(logits, i, V, e);
        total = v_add(total, e);
    }
    const float sum = v_sum(total);
    float log_sum;
    vec_log(&log_sum, &sum, 1);
    *loss = log_sum + (top - picked);
    if (backward) {
        vec_scale(logits, scale / sum, (size_t)V);
        logits[target] -= scale;
    }
}

INLINE void adamw_16(v16 *p, v16 *m, v16 *v, v16 g, const struct zt_vec_adamw *a) {
    g = v_mul(g, v_set1(a->grad_scale));
    *p = v_mul(*p, v_set1(a->decay));
    *m = v_add(*m, v_mul(v_set1(a->one_m_b1), v_sub(g, *m)));
    *v = v_add(v_mul(*v, v_set1(a->beta2)), v_mul(v_mul(v_set1(a->one_m_b2), g), g));
    v16 denom = v_add(v_div(v_sqrt(*v), v_set1(a->sqrt_bc2)), v_set1(a->eps));
    *p = v_sub(*p, v_div(v_mul(v_set1(a->step_size), *m), denom));
}

static void vec_adamw(float *p, float *m, float *v, const float *g, size_t n,
                      const struct zt_vec_adamw *a) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 pp = v_load(p + i), mm = v_load(m + i), vv = v_load(v + i);
        adamw_16(&pp, &mm, &vv, v_load(g + i), a);
        v_store(p + i, pp);
        v_store(m + i, mm);
        v_store(v + i, vv);
    }
    if (i < n) {
        size_t t = n - i;
        v16 pp = v_load_tail(p + i, t, 0.0f), mm = v_load_tail(m + i, t, 0.0f);
        v16 vv = v_load_tail(v + i, t, 0.0f);
        adamw_16(&pp, &mm, &vv, v_load_tail(g + i, t, 0.0f), a);
        v_store_tail(p + i, t, pp);
        v_store_tail(m + i, t, mm);
        v_store_tail(v + i, t, vv);
    }
}

static void vec_f32_to_bf16(uint16_t *out, const float *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &in[i], 4);
        uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        uint32_t quiet = (u >> 16) | 0x40u; /* rounding could turn a NaN into infinity */
        out[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

static void vec_bf16_to_f32(float *out, const uint16_t *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)in[i] << 16;
        memcpy(&out[i], &u, 4);
    }
}

/* out[j][i] = in[i][j] of a 4 x 4 block. */
INLINE void transpose_4x4(float *out, int64_t ostride, const float *in, int64_t istride) {
    __m128 r0 = _mm_loadu_ps(in), r1 = _mm_loadu_ps(in + istride);
    __m128 r2 = _mm_loadu_ps(in + 2 * istride), r3 = _mm_loadu_ps(in + 3 * istride);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(out, r0);
    _mm_storeu_ps(out + ostride, r1);
    _mm_storeu_ps(out + 2 * ostride, r2);
    _mm_storeu_ps(out + 3 * ostride, r3);
}

/* out[c][r] = in[r][c] for rows x columns. */
INLINE void transpose(float *out, int64_t ostride, const float *in, int64_t istride, int64_t rows,
                      int64_t columns) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            transpose_4x4(out + c * ostride + r, ostride, in + r * istride + c, istride);
        for (; r < rows; r++)
            for (int64_t j = c; j < c + 4; j++) out[j * ostride + r] = in[r * istride + j];
    }
    for (; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) out[c * ostride + r] = in[r * istride + c];
}

static void vec_pack_16(float *out, const float *w, int64_t k_stride, int64_t n_stride, int64_t K,
                        int64_t columns, int64_t width) {
    const int64_t padded = (K + 15) / 16 * 16, zero_from = columns < width ? 0 : K;
    memset(out + zero_from * width, 0, (size_t)((padded - zero_from) * width) * sizeof *out);
    if (k_stride == 1) {
        for (int64_t k = 0; k < K; k += 16) /* short pieces of all rows: stays in the first cache */
            transpose(out + k * width, width, w + k, n_stride, columns, K - k < 16 ? K - k : 16);
        return;
    }
    for (int64_t k = 0; k < K; k++)
        memcpy(out + k * width, w + k * k_stride, (size_t)columns * sizeof *out);
}

#include "kernels/cpu/vec_attention.h"

const struct zt_vec ZT_VEC_TABLE = {
    .name = ZT_VEC_NAME,
    .fma = ZT_VEC_FMA,
    .add = vec_add,
    .scale = vec_scale,
    .exp = vec_exp,
    .log = vec_log,
    .gelu_forward = vec_gelu_forward,
    .gelu_backward = vec_gelu_backward,
    .layernorm_forward = vec_layernorm_forward,
    .layernorm_backward = vec_layernorm_backward,
    .column_sums = vec_column_sums,
    .cross_entropy_row = vec_cross_entropy_row,
    .adamw = vec_adamw,
    .f32_to_bf16 = vec_f32_to_bf16,
    .bf16_to_f32 = vec_bf16_to_f32,
    .pack_16 = vec_pack_16,
    .attention_forward = vec_attention_forward,
    .attention_backward = vec_attention_backward,
};
