/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_body.h: the vector routines, included by vec_sse2.c, vec_avx2.c and vec_avx512.c
 * after ZT_VEC_* and ZT_VEC_TABLE are defined. See vec.h for what each does. */
#include <math.h>
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_lanes.h"

static void vec_exp(float *out, const float *in, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(out + i, v_exp(v_load(in + i)));
    if (i < n) v_store_tail(out + i, n - i, v_exp(v_load_tail(in + i, n - i, 0.0f)));
}

static void vec_log(float *out, const float *in, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(out + i, v_log(v_load(in + i)));
    if (i < n) v_store_tail(out + i, n - i, v_log(v_load_tail(in + i, n - i, 0.0f)));
}

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

/* s = 1 / (1 + e^-z) and 1 - s from e^-|z|, which cannot overflow: both keep their relative accuracy
 * on either side. */
INLINE void sigmoid(v16 z, v16 *s, v16 *rest) {
    const v16 one = v_set1(1.0f), zero = v_zero();
    const v16 e = v_exp_negative(i_bits(i_or(v_bits(z), i_set1(INT32_MIN))));
    const v16 whole = v_div(one, v_add(one, e)), part = v_mul(e, whole);
    const m16 negative = v_lt(z, zero);
    *s = v_select(negative, part, whole);
    *rest = v_select(negative, whole, part);
}

INLINE v16 swiglu_one(v16 gate, v16 up) {
    v16 s, rest;
    sigmoid(gate, &s, &rest);
    return v_mul(v_mul(gate, s), up);
}

/* dup = dy z s, dgate = dy up s (1 + z (1 - s)), with z = gate */
INLINE void swiglu_slopes(v16 z, v16 up, v16 dy, v16 *dgate, v16 *dup, v16 *product) {
    v16 s, rest;
    sigmoid(z, &s, &rest);
    const v16 silu = v_mul(z, s);
    *product = v_mul(silu, up);
    *dup = v_mul(dy, silu);
    *dgate = v_mul(v_mul(dy, up), v_mul(s, v_add(v_set1(1.0f), v_mul(z, rest))));
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

/* The same of 32-bit words that are pairs of halves: out[j][i] = in[i][j], a row of `out` has
 * `ostride` words, a row of `in` has `istride` halves. */
INLINE void transpose_pairs(uint16_t *out, int64_t ostride, const uint16_t *in, int64_t istride) {
    __m128 r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)(in + i * istride)));
    _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
    for (int i = 0; i < 4; i++)
        _mm_storeu_si128((__m128i *)(out + 2 * i * ostride), _mm_castps_si128(r[i]));
}

static void vec_pack_f32(float *out, const float *w, int64_t k_stride, int64_t n_stride, int64_t K,
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

/* Two rows of w, 8 columns: their elements alternate. */
INLINE void interleave_8(uint16_t *out, const uint16_t *even, const uint16_t *odd) {
    const __m128i a = _mm_loadu_si128((const __m128i *)even);
    const __m128i b = _mm_loadu_si128((const __m128i *)odd);
    _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi16(a, b));
    _mm_storeu_si128((__m128i *)(out + 8), _mm_unpackhi_epi16(a, b));
}

/* out[column][2] of one pair of rows; `odd` NULL: there is no second row. */
static void pack_row_pair(uint16_t *out, const uint16_t *even, const uint16_t *odd, int64_t stride,
                          int64_t columns) {
    int64_t c = 0;
    for (; odd && stride == 1 && c + 8 <= columns; c += 8)
        interleave_8(out + 2 * c, even + c, odd + c);
    for (; c < columns; c++) {
        out[2 * c] = even[c * stride];
        out[2 * c + 1] = odd ? odd[c * stride] : 0;
    }
}

/* A pair of elements along K is one 32-bit word, so K-major weights are a transpose of words. */
static void vec_pack_bf16(uint16_t *out, const uint16_t *w, int64_t k_stride, int64_t n_stride,
                          int64_t K, int64_t columns, int64_t width) {
    const int64_t pairs = (K + 31) / 32 * 16, whole = K / 2;
    const int64_t zero_from = columns < width ? 0 : whole;
    memset(out + zero_from * width * 2, 0, (size_t)((pairs - zero_from) * width * 2) * sizeof *out);
    int64_t p = 0;
    for (; k_stride == 1 && p + 4 <= whole; p += 4) {
        int64_t c = 0;
        for (; c + 4 <= columns; c += 4)
            transpose_pairs(out + (p * width + c) * 2, width, w + c * n_stride + 2 * p, n_stride);
        for (; c < columns; c++)
            for (int64_t i = p; i < p + 4; i++)
                memcpy(out + (i * width + c) * 2, w + c * n_stride + 2 * i, 4);
    }
    for (; 2 * p < K; p++)
        pack_row_pair(out + p * width * 2, w + 2 * p * k_stride,
                      2 * p + 1 < K ? w + (2 * p + 1) * k_stride : NULL, n_stride, columns);
}

/* ---- Philox4x32-10 (core/rng.h) in 16 lanes, and what is drawn with it ---- */

/* Ten rounds on 64-bit lanes, `chains` counters at a time. Only the low halves of lanes count: a
 * product takes no notice of the high ones, so what xor leaves there never needs to be cleared. */
INLINE void philox(i16v (*c)[4], const int chains, uint64_t seed) {
    const i16v m0 = i_set1((int32_t)0xD2511F53u), m1 = i_set1((int32_t)0xCD9E8D57u);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
        for (int h = 0; h < chains; h++) {
            const i16v p0 = i_mul_even(c[h][0], m0), p1 = i_mul_even(c[h][2], m1);
            c[h][0] = i_xor3(i_odd(p1), c[h][1], i_set1((int32_t)k0));
            c[h][2] = i_xor3(i_odd(p0), c[h][3], i_set1((int32_t)k1));
            c[h][1] = p1;
            c[h][3] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

INLINE m16 i_above(i16v a, i16v b) { /* unsigned a > b */
    const i16v sign = i_set1(INT32_MIN);
    return i_gt(i_xor(a, sign), i_xor(b, sign));
}

/* The counters of 16 elements, lane i's being index + offset[i], even and odd ones apart. */
INLINE void counters(i16v even[4], i16v odd[4], uint64_t index, i16v offset, uint32_t step,
                     uint32_t stream) {
    const i16v from = i_set1((int32_t)(uint32_t)index), low = i_add(from, offset);
    const uint32_t high = (uint32_t)(index >> 32);
    const m16 carry = i_above(from, low);
    even[0] = low;
    even[1] = i_select(carry, i_set1((int32_t)(high + 1)), i_set1((int32_t)high));
    odd[0] = i_odd(even[0]);
    odd[1] = i_odd(even[1]);
    even[2] = odd[2] = i_set1((int32_t)step);
    even[3] = odd[3] = i_set1((int32_t)stream);
}

/* As many chains at once as the registers hold: enough to hide a product's latency. */
#define RANDOM_GROUPS (PARTS == 1 ? 2 : 1) /* of 16 elements */
INLINE void philox_groups(i16v (*c)[4], uint64_t seed) {
    if (PARTS == 1) {
        philox(c, 4, seed);
    } else {
        philox(c, 1, seed);
        philox(c + 1, 1, seed);
    }
}

static void vec_random(uint32_t (*out)[ZT_VEC_RANDOM], uint64_t seed, uint32_t step,
                       uint32_t stream, uint64_t first, size_t n) {
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (size_t i = 0; i < n; i += 16 * RANDOM_GROUPS) {
        i16v c[2 * RANDOM_GROUPS][4];
        for (size_t g = 0; g < RANDOM_GROUPS; g++)
            counters(c[2 * g], c[2 * g + 1], first + i + 16 * g, i_load(lanes), step, stream);
        philox_groups(c, seed);
        for (size_t g = 0; g < RANDOM_GROUPS; g++)
            for (int w = 0; w < 4; w++)
                i_store(out[w] + i + 16 * g, i_join(c[2 * g][w], c[2 * g + 1][w]));
    }
}

/* ---- normal numbers in double, the same IEEE operations on every set ---- */

INLINE vd vd_select(vi mask, vd yes, vd no) {
    const vi y = vi_and(mask, vd_bits(yes));
    return vi_doubles(vi_or(y, vi_xor(vd_bits(no), vi_and(mask, vd_bits(no)))));
}

/* a[0] + a[1] x + ... */
INLINE vd vd_polynomial(vd x, const double *a, const int n) {
    vd y = vd_set1(a[n - 1]);
#pragma GCC unroll 16
    for (int i = n - 2; i >= 0; i--) y = y * x + vd_set1(a[i]);
    return y;
}

/* ln x for normal x in (0, 1): x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh(f / (2 +
 * f)), f = m - 1 (exact). The series is cut where the next term is below 2^-57 of the sum. With e
 * != 0 the result is at least ln(2) / 2, so nothing cancels; e ln2's high part is exact. At most 3
 * ulp. */
INLINE vd vd_log(vd x) {
    static const double odd[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
    const vi bits = vd_bits(x), two52 = vd_bits(vd_set1(0x1p52));
    vd e = vi_doubles(vi_or(vl_shr(bits, 52), two52)) - vd_set1(0x1p52 + 1022.0);
    vd m = vi_doubles(vi_or(vi_and(bits, vl_set1(0x000fffffffffffffu)), vd_bits(vd_set1(0.5))));
    const vi small = vd_lt(m, vd_set1(0.70710678118654752));
    m = vd_select(small, m + m, m);
    e = e - vi_doubles(vi_and(small, vd_bits(vd_set1(1.0))));
    const vd f = m - vd_set1(1.0), s = f / (vd_set1(2.0) + f);
    const vd lnm = (s + s) * vd_polynomial(s * s, odd, 12);
    return e * vd_set1(0x1.62e42fefap-1) + (lnm + e * vd_set1(0x1.cf79abc9e3b3ap-40));
}

/* cos x for x in [0, 2 pi]: x = k pi/2 + r, pi/2 in three parts of which k times the first two are
 * exact, so r keeps its relative accuracy where cos is small. Taylor series on [-pi/4, pi/4], cut
 * below 2^-57. At most 3 ulp. */
INLINE vd vd_cos(vd x) {
    static const double even[] = {1.0,
                                  -1.0 / 2,
                                  1.0 / 24,
                                  -1.0 / 720,
                                  1.0 / 40320,
                                  -1.0 / 3628800,
                                  1.0 / 479001600,
                                  -1.0 / 87178291200.0,
                                  1.0 / 20922789888000.0,
                                  -1.0 / 6402373705728000.0};
    static const double odd[] = {1.0,
                                 -1.0 / 6,
                                 1.0 / 120,
                                 -1.0 / 5040,
                                 1.0 / 362880,
                                 -1.0 / 39916800,
                                 1.0 / 6227020800.0,
                                 -1.0 / 1307674368000.0,
                                 1.0 / 355687428096000.0,
                                 -1.0 / 121645100408832000.0};
    const vd magic = vd_set1(0x1.8p52), t = x * vd_set1(0.63661977236758134) + magic;
    const vd k = t - magic;
    vd r = x - k * vd_set1(0x1.921fb544p0);
    r = r - k * vd_set1(0x1.0b4611a6p-34);
    r = r - k * vd_set1(0x1.3198a2e037073p-69);
    const vd rr = r * r, c = vd_polynomial(rr, even, 10), s = r * vd_polynomial(rr, odd, 10);
    const vi n = vd_bits(t), one = vl_set1(1); /* its low bits are k */
    const vi is_odd = vl_sub(vl_set1(0), vi_and(n, one));
    const vi sign = vl_shl(vi_and(vl_add(n, one), vl_set1(2)), 62);
    return vi_doubles(vi_xor(vd_bits(vd_select(is_odd, s, c)), sign));
}

static size_t vec_normal(float *out, const uint32_t (*words)[ZT_VEC_RANDOM], size_t n, double std,
                         uint16_t *doubtful) {
    const size_t step = 8 / PARTS;
    float low[ZT_VEC_RANDOM], high[ZT_VEC_RANDOM];
    uint32_t w[2][ZT_VEC_RANDOM] = {{0}};
    size_t count = 0;
    for (size_t i = 0; i < n; i++) { /* as signed numbers, which every set converts */
        w[0][i] = words[0][i] ^ 0x80000000u;
        w[1][i] = words[1][i] ^ 0x80000000u;
    }
    for (size_t i = 0; i < n; i += step) {
        const vd u1 = (vd_of_i32(w[0] + i) + vd_set1(0x1p31 + 0.5)) * vd_set1(0x1p-32);
        const vd u2 = (vd_of_i32(w[1] + i) + vd_set1(0x1p31)) * vd_set1(0x1p-32);
        const vd angle = vd_set1(2.0 * 3.14159265358979323846) * u2;
        const vd z = vd_sqrt(vd_set1(-2.0) * vd_log(u1)) * vd_cos(angle);
        const vd y = z * vd_set1(std);
        vd_store_f32(low + i, y * vd_set1(1.0 - 0x1p-48));
        vd_store_f32(high + i, y * vd_set1(1.0 + 0x1p-48));
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = low[i];
        if (memcmp(&low[i], &high[i], sizeof low[i]) != 0) doubtful[count++] = (uint16_t)i;
    }
    return count;
}

static void vec_round_noisy(uint16_t *out, const float *in, const uint32_t *noise, size_t n) {
    const i16v low = i_set1(0xffff);
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        i_store_u16(out + i, bf16_narrow_noisy(v_load(in + i), i_and(i_load(noise + i), low)));
    if (i == n) return;
    uint32_t words[16] = {0};
    uint16_t halves[16];
    memcpy(words, noise + i, (n - i) * sizeof *words);
    i_store_u16(halves,
                bf16_narrow_noisy(v_load_tail(in + i, n - i, 0.0f), i_and(i_load(words), low)));
    memcpy(out + i, halves, (n - i) * sizeof *halves);
}

#include "kernels/cpu/vec_attention.h"

/* fp32 first: the other types use its row_load, row_store and scale. */
#define ELEM float
#define TY(name) name##_f32
#define LOAD(p) v_load(p)
#define STORE(p, x) v_store(p, x)
#define IS_F32 1
#include "kernels/cpu/vec_typed.h"

#define ELEM uint16_t
#define TY(name) name##_bf16
#define LOAD(p) bf16_widen(i_load_u16(p))
#define STORE(p, x) i_store_u16(p, bf16_narrow(x))
#define IS_F32 0
#include "kernels/cpu/vec_typed.h"

/* Calls, not inlined: fp16 is for correctness, and its conversions are long. */
static __attribute__((noinline)) v16 load_16_f16(const uint16_t *p) {
    return f16_widen(i_load_u16(p));
}
static __attribute__((noinline)) void store_16_f16(uint16_t *p, v16 x) {
    i_store_u16(p, f16_narrow(x));
}

#define ELEM uint16_t
#define TY(name) name##_f16
#define LOAD(p) load_16_f16(p)
#define STORE(p, x) store_16_f16(p, x)
#define IS_F32 0
#include "kernels/cpu/vec_typed.h"

#undef BLOCK

/* clang-format off */
#define VEC_OF(t)                                                                                  \
    {widen_##t, narrow_##t, add_##t, add_f32_##t, scale_##t, gelu_forward_##t, gelu_backward_##t,  \
     swiglu_forward_##t, swiglu_backward_##t, keep_##t, layernorm_forward_##t,                     \
     layernorm_backward_##t,                                                                       \
     rmsnorm_forward_##t, rmsnorm_backward_##t, rope_row_##t, column_sums_##t,                     \
     row_max_##t, exp_sum_##t, softmax_gradient_##t, cross_entropy_row_##t,                        \
     attention_forward_##t, attention_backward_##t}
/* clang-format on */

const struct zt_vec ZT_VEC_TABLE = {
    .name = ZT_VEC_NAME,
    .fma = ZT_VEC_FMA,
    .of = {[ZT_F32] = VEC_OF(f32), [ZT_BF16] = VEC_OF(bf16), [ZT_F16] = VEC_OF(f16)},
    .exp = vec_exp,
    .log = vec_log,
    .adamw = vec_adamw,
    .random = vec_random,
    .normal = vec_normal,
    .round_noisy = vec_round_noisy,
    .pack_f32 = vec_pack_f32,
    .pack_bf16 = vec_pack_bf16,
};
