/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_lanes.h: 16 virtual float lanes on the instruction set of the compile.
 *
 * `v16` is one AVX-512, two AVX2 or four SSE2 registers. Every operation here is an IEEE operation
 * of its own (no contraction), so the lanes hold the same bits on every set. Included by vec_*.c
 * only; everything is static. */
#ifndef ZT_KERNELS_CPU_VEC_LANES_H
#define ZT_KERNELS_CPU_VEC_LANES_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(ZT_VEC_AVX512)
#define PARTS 1
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
#define F(name) _mm512_##name##_ps
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vl_add(vi a, vi b) { return _mm512_add_epi64(a, b); }
INLINE vi vl_sub(vi a, vi b) { return _mm512_sub_epi64(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define vi_sra(a, n) _mm512_srai_epi32(a, n)
INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_of_bits(vf a) { return _mm512_castps_si512(a); }
INLINE vf vf_of_bits(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vf_round(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
INLINE vm vf_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi vi_xor3(vi a, vi b, vi c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
INLINE vi vi_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(uint32_t *p, vi a) { _mm512_storeu_si512(p, a); }
typedef __m512d vd; /* doubles: + - * / are the compiler's own */
INLINE vd vd_set1(double x) { return _mm512_set1_pd(x); }
INLINE vd vd_sqrt(vd a) { return _mm512_sqrt_pd(a); }
INLINE vi vd_bits(vd a) { return _mm512_castpd_si512(a); }
INLINE vd vi_doubles(vi a) { return _mm512_castsi512_pd(a); }
INLINE vi vd_lt(vd a, vd b) { /* all ones or zeros */
    return _mm512_movm_epi64(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ));
}
INLINE vd vd_of_i32(const uint32_t *p) {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void vd_store_f32(float *p, vd a) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(a)); }
INLINE vi vl_mul(vi a, vi b) { return _mm512_mul_epu32(a, b); }
#define vl_shl(a, n) _mm512_slli_epi64(a, n)
#define vl_shr(a, n) _mm512_srli_epi64(a, n)
INLINE vi vl_set1(uint64_t x) { return _mm512_set1_epi64((int64_t)x); }
#elif defined(ZT_VEC_AVX2)
#define PARTS 2
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;
#define F(name) _mm256_##name##_ps
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vl_add(vi a, vi b) { return _mm256_add_epi64(a, b); }
INLINE vi vl_sub(vi a, vi b) { return _mm256_sub_epi64(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define vi_sra(a, n) _mm256_srai_epi32(a, n)
INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi vi_of_bits(vf a) { return _mm256_castps_si256(a); }
INLINE vf vf_of_bits(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi vf_round(vf a) { return _mm256_cvtps_epi32(a); }
INLINE vf vi_float(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vm vf_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE vf vf_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vm vi_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
INLINE vm vf_nan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vi vi_xor3(vi a, vi b, vi c) { return vi_xor(vi_xor(a, b), c); }
INLINE vi vi_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void vi_store(uint32_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
typedef __m256d vd;
INLINE vd vd_set1(double x) { return _mm256_set1_pd(x); }
INLINE vd vd_sqrt(vd a) { return _mm256_sqrt_pd(a); }
INLINE vi vd_bits(vd a) { return _mm256_castpd_si256(a); }
INLINE vd vi_doubles(vi a) { return _mm256_castsi256_pd(a); }
INLINE vi vd_lt(vd a, vd b) { return _mm256_castpd_si256(_mm256_cmp_pd(a, b, _CMP_LT_OQ)); }
INLINE vd vd_of_i32(const uint32_t *p) {
    return _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)p));
}
INLINE void vd_store_f32(float *p, vd a) { _mm_storeu_ps(p, _mm256_cvtpd_ps(a)); }
INLINE vi vl_mul(vi a, vi b) { return _mm256_mul_epu32(a, b); }
#define vl_shl(a, n) _mm256_slli_epi64(a, n)
#define vl_shr(a, n) _mm256_srli_epi64(a, n)
INLINE vi vl_set1(uint64_t x) { return _mm256_set1_epi64x((int64_t)x); }
#else
#define PARTS 4
typedef __m128 vf;
typedef __m128i vi;
typedef __m128 vm;
#define F(name) _mm_##name##_ps
INLINE vi vi_add(vi a, vi b) { return _mm_add_epi32(a, b); }
INLINE vi vl_add(vi a, vi b) { return _mm_add_epi64(a, b); }
INLINE vi vl_sub(vi a, vi b) { return _mm_sub_epi64(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm_sub_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm_and_si128(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm_or_si128(a, b); }
#define vi_shl(a, n) _mm_slli_epi32(a, n)
#define vi_shr(a, n) _mm_srli_epi32(a, n)
#define vi_sra(a, n) _mm_srai_epi32(a, n)
INLINE vi vi_set1(int32_t x) { return _mm_set1_epi32(x); }
INLINE vi vi_of_bits(vf a) { return _mm_castps_si128(a); }
INLINE vf vf_of_bits(vi a) { return _mm_castsi128_ps(a); }
INLINE vi vf_round(vf a) { return _mm_cvtps_epi32(a); }
INLINE vf vi_float(vi a) { return _mm_cvtepi32_ps(a); }
INLINE vm vf_lt(vf a, vf b) { return _mm_cmplt_ps(a, b); }
INLINE vf vf_select(vm m, vf yes, vf no) {
    return _mm_or_ps(_mm_and_ps(m, yes), _mm_andnot_ps(m, no));
}
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
INLINE vm vi_gt(vi a, vi b) { return _mm_castsi128_ps(_mm_cmpgt_epi32(a, b)); }
INLINE vm vf_nan(vf a) { return _mm_cmpunord_ps(a, a); }
INLINE vi vi_xor(vi a, vi b) { return _mm_xor_si128(a, b); }
INLINE vi vi_xor3(vi a, vi b, vi c) { return vi_xor(vi_xor(a, b), c); }
INLINE vi vi_load(const uint32_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE void vi_store(uint32_t *p, vi a) { _mm_storeu_si128((__m128i *)p, a); }
typedef __m128d vd;
INLINE vd vd_set1(double x) { return _mm_set1_pd(x); }
INLINE vd vd_sqrt(vd a) { return _mm_sqrt_pd(a); }
INLINE vi vd_bits(vd a) { return _mm_castpd_si128(a); }
INLINE vd vi_doubles(vi a) { return _mm_castsi128_pd(a); }
INLINE vi vd_lt(vd a, vd b) { return _mm_castpd_si128(_mm_cmplt_pd(a, b)); }
INLINE vd vd_of_i32(const uint32_t *p) {
    return _mm_cvtepi32_pd(_mm_loadl_epi64((const __m128i *)p));
}
INLINE void vd_store_f32(float *p, vd a) {
    _mm_storel_epi64((__m128i *)p, _mm_castps_si128(_mm_cvtpd_ps(a)));
}
INLINE vi vl_mul(vi a, vi b) { return _mm_mul_epu32(a, b); }
#define vl_shl(a, n) _mm_slli_epi64(a, n)
#define vl_shr(a, n) _mm_srli_epi64(a, n)
INLINE vi vl_set1(uint64_t x) { return _mm_set1_epi64x((int64_t)x); }
#endif

#define LANES (16 / PARTS)
typedef struct {
    vf p[PARTS];
} v16;
typedef struct {
    vi p[PARTS];
} i16v;
typedef struct {
    vm p[PARTS];
} m16;

#if PARTS == 1
#define EACH(type, e0, e1, e2, e3) ((type){{e0}})
#elif PARTS == 2
#define EACH(type, e0, e1, e2, e3) ((type){{e0, e1}})
#else
#define EACH(type, e0, e1, e2, e3) ((type){{e0, e1, e2, e3}})
#endif
#define MAP1(type, f, a) EACH(type, f((a).p[0]), f((a).p[1]), f((a).p[2]), f((a).p[3]))
#define MAP2(type, f, a, b)                                                                        \
    EACH(type, f((a).p[0], (b).p[0]), f((a).p[1], (b).p[1]), f((a).p[2], (b).p[2]),                \
         f((a).p[3], (b).p[3]))
#define MAP3(type, f, a, b, c)                                                                     \
    EACH(type, f((a).p[0], (b).p[0], (c).p[0]), f((a).p[1], (b).p[1], (c).p[1]),                   \
         f((a).p[2], (b).p[2], (c).p[2]), f((a).p[3], (b).p[3], (c).p[3]))

INLINE v16 v_load(const float *p) {
    return EACH(v16, F(loadu)(p), F(loadu)(p + LANES), F(loadu)(p + 2 * LANES),
                F(loadu)(p + 3 * LANES));
}
INLINE void v_store(float *p, v16 a) {
    for (int i = 0; i < PARTS; i++) F(storeu)(p + i * LANES, a.p[i]);
}
INLINE v16 v_set1(float x) { return EACH(v16, F(set1)(x), F(set1)(x), F(set1)(x), F(set1)(x)); }
INLINE v16 v_zero(void) { return v_set1(0.0f); }
INLINE v16 v_add(v16 a, v16 b) { return MAP2(v16, F(add), a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return MAP2(v16, F(sub), a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return MAP2(v16, F(mul), a, b); }
INLINE v16 v_div(v16 a, v16 b) { return MAP2(v16, F(div), a, b); }
INLINE v16 v_sqrt(v16 a) { return MAP1(v16, F(sqrt), a); }
/* Of a NaN and a number the second operand is returned, on every set. */
INLINE v16 v_max(v16 a, v16 b) { return MAP2(v16, F(max), a, b); }
INLINE v16 v_min(v16 a, v16 b) { return MAP2(v16, F(min), a, b); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return MAP3(v16, vf_fma, a, b, c); }
INLINE m16 v_lt(v16 a, v16 b) { return MAP2(m16, vf_lt, a, b); }
INLINE m16 v_nan(v16 a) { return MAP1(m16, vf_nan, a); }
INLINE v16 v_select(m16 m, v16 yes, v16 no) { return MAP3(v16, vf_select, m, yes, no); }
INLINE i16v v_bits(v16 a) { return MAP1(i16v, vi_of_bits, a); }
INLINE v16 i_bits(i16v a) { return MAP1(v16, vf_of_bits, a); }
INLINE i16v v_round(v16 a) { return MAP1(i16v, vf_round, a); }
INLINE v16 i_float(i16v a) { return MAP1(v16, vi_float, a); }
INLINE i16v i_set1(int32_t x) { return EACH(i16v, vi_set1(x), vi_set1(x), vi_set1(x), vi_set1(x)); }
INLINE i16v i_add(i16v a, i16v b) { return MAP2(i16v, vi_add, a, b); }
INLINE i16v i_sub(i16v a, i16v b) { return MAP2(i16v, vi_sub, a, b); }
INLINE i16v i_and(i16v a, i16v b) { return MAP2(i16v, vi_and, a, b); }
INLINE i16v i_or(i16v a, i16v b) { return MAP2(i16v, vi_or, a, b); }
INLINE i16v i_xor(i16v a, i16v b) { return MAP2(i16v, vi_xor, a, b); }
INLINE i16v i_xor3(i16v a, i16v b, i16v c) { return MAP3(i16v, vi_xor3, a, b, c); }
/* 64-bit lanes: the product of the low (even) halves; the odd halves moved into the low place; and
 * the low halves of two such vectors side by side again. */
#define ODD(a) vl_shr(a, 32)
#define JOIN(e, o) vi_or(vi_and(e, vl_set1(0xffffffffu)), vl_shl(o, 32))
INLINE i16v i_mul_even(i16v a, i16v b) { return MAP2(i16v, vl_mul, a, b); }
INLINE i16v i_odd(i16v a) { return MAP1(i16v, ODD, a); }
INLINE i16v i_join(i16v even, i16v odd) { return MAP2(i16v, JOIN, even, odd); }
INLINE m16 i_gt(i16v a, i16v b) { return MAP2(m16, vi_gt, a, b); } /* signed */
INLINE i16v i_load(const uint32_t *p) {
    return EACH(i16v, vi_load(p), vi_load(p + LANES), vi_load(p + 2 * LANES),
                vi_load(p + 3 * LANES));
}
INLINE void i_store(uint32_t *p, i16v a) {
    for (int i = 0; i < PARTS; i++) vi_store(p + i * LANES, a.p[i]);
}
INLINE i16v i_select(m16 m, i16v yes, i16v no) {
    return v_bits(v_select(m, i_bits(yes), i_bits(no)));
}
#define SHL13(a) vi_shl(a, 13)
#define SHL16(a) vi_shl(a, 16)
#define SHL23(a) vi_shl(a, 23)
#define SHR13(a) vi_shr(a, 13)
#define SHR16(a) vi_shr(a, 16)
#define SHR23(a) vi_shr(a, 23)
#define HALF(a) vi_sra(a, 1)
INLINE i16v i_half(i16v a) { return MAP1(i16v, HALF, a); }
INLINE i16v i_shl13(i16v a) { return MAP1(i16v, SHL13, a); }
INLINE i16v i_shl16(i16v a) { return MAP1(i16v, SHL16, a); }
INLINE i16v i_shl23(i16v a) { return MAP1(i16v, SHL23, a); }
INLINE i16v i_shr13(i16v a) { return MAP1(i16v, SHR13, a); }
INLINE i16v i_shr16(i16v a) { return MAP1(i16v, SHR16, a); }
INLINE i16v i_shr23(i16v a) { return MAP1(i16v, SHR23, a); }

INLINE v16 lane_numbers(void) {
    static const float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return v_load(numbers);
}

/* ---- 16-bit storage: lanes are always fp32 ---- */

/* 16 unsigned halves, widened with zeros; and the low halves of 16 lanes. */
#if PARTS == 1
INLINE i16v i_load_u16(const uint16_t *p) {
    return (i16v){{_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p))}};
}
INLINE void i_store_u16(uint16_t *p, i16v a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a.p[0]));
}
#elif PARTS == 2
INLINE i16v i_load_u16(const uint16_t *p) {
    return (i16v){{_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                   _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)))}};
}
INLINE void i_store_u16(uint16_t *p, i16v a) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    const __m256i both =
        _mm256_packus_epi32(_mm256_and_si256(a.p[0], low), _mm256_and_si256(a.p[1], low));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}
#else
INLINE i16v i_load_u16(const uint16_t *p) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i a = _mm_loadu_si128((const __m128i *)p);
    const __m128i b = _mm_loadu_si128((const __m128i *)(p + 8));
    return (i16v){{_mm_unpacklo_epi16(a, zero), _mm_unpackhi_epi16(a, zero),
                   _mm_unpacklo_epi16(b, zero), _mm_unpackhi_epi16(b, zero)}};
}
/* sign-extended first, so that the signed pack keeps every half */
#define LOW_HALF(a) _mm_srai_epi32(_mm_slli_epi32(a, 16), 16)
INLINE void i_store_u16(uint16_t *p, i16v a) {
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(LOW_HALF(a.p[0]), LOW_HALF(a.p[1])));
    _mm_storeu_si128((__m128i *)(p + 8), _mm_packs_epi32(LOW_HALF(a.p[2]), LOW_HALF(a.p[3])));
}
#endif

INLINE v16 bf16_widen(i16v half) { return i_bits(i_shl16(half)); }

/* Nearest, ties to even; a NaN stays one (the rounding could carry it to infinity). */
INLINE i16v bf16_narrow(v16 a) {
    const i16v u = v_bits(a), high = i_shr16(u);
    const i16v odd = i_and(high, i_set1(1));
    const i16v near = i_shr16(i_add(u, i_add(odd, i_set1(0x7fff))));
    return i_select(v_nan(a), i_or(high, i_set1(0x40)), near);
}

/* `noise` in [0, 65536) is added below the cut; NaN and infinity stay. */
INLINE i16v bf16_narrow_noisy(v16 a, i16v noise) {
    const i16v u = v_bits(a), mag = i_and(u, i_set1(0x7fffffff));
    const i16v high = i_shr16(u);
    const m16 special = i_gt(mag, i_set1(0x7f7fffff));
    const i16v kept = i_select(v_nan(a), i_or(high, i_set1(0x40)), high);
    return i_select(special, kept, i_shr16(i_add(u, noise)));
}

INLINE v16 f16_widen(i16v half) {
    const i16v sign = i_shl16(i_and(half, i_set1(0x8000))), mag = i_and(half, i_set1(0x7fff));
    const i16v wide = i_shl13(mag), mantissa = i_and(mag, i_set1(0x3ff));
    const i16v normal = i_add(wide, i_set1(112 << 23));
    const i16v tiny = v_bits(v_mul(i_float(mantissa), v_set1(0x1p-24f)));
    const i16v quiet = i_select(i_gt(mantissa, i_set1(0)), i_set1(0x400000), i_set1(0));
    const i16v special = i_or(i_or(wide, i_set1(0x7f800000)), quiet);
    i16v u = i_select(i_gt(i_set1(0x400), mag), tiny, normal);
    u = i_select(i_gt(mag, i_set1(0x7bff)), special, u);
    return i_bits(i_or(u, sign));
}

/* Nearest, ties to even; 65520 and above give infinity. */
INLINE i16v f16_narrow(v16 a) {
    const i16v u = v_bits(a), sign = i_and(i_shr16(u), i_set1(0x8000));
    const i16v mag = i_and(u, i_set1(0x7fffffff));
    const i16v odd = i_and(i_shr13(mag), i_set1(1));
    const i16v shifted = i_sub(mag, i_set1(0x38000000));
    const i16v normal = i_shr13(i_add(shifted, i_add(odd, i_set1(0xfff))));
    /* subnormal: adding 0.5 lets the FPU round at 2^-24 */
    const i16v tiny = i_sub(v_bits(v_add(i_bits(mag), v_set1(0.5f))), i_set1(0x3f000000));
    const i16v nan = i_or(i_set1(0x7e00), i_and(i_shr13(mag), i_set1(0x3ff)));
    i16v h = i_select(i_gt(i_set1(0x38800000), mag), tiny, normal);
    h = i_select(i_gt(mag, i_set1(0x477fffff)), i_set1(0x7c00), h);
    h = i_select(v_nan(a), nan, h);
    return i_or(h, sign);
}

/* Tails: n in 1..15 floats; lanes beyond n hold `fill`. Nothing beyond p[n-1] is touched. */
INLINE v16 v_load_tail(const float *p, size_t n, float fill) {
#if PARTS == 1
    return (v16){{_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)((1u << n) - 1u), p)}};
#else
    float t[16];
    for (size_t i = 0; i < 16; i++) t[i] = i < n ? p[i] : fill;
    return v_load(t);
#endif
}
INLINE void v_store_tail(float *p, size_t n, v16 a) {
#if PARTS == 1
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), a.p[0]);
#else
    float t[16];
    v_store(t, a);
    memcpy(p, t, n * sizeof *p);
#endif
}

/* The fixed trees: lanes 8 apart, then 4, 2, 1. */
INLINE float v_sum(v16 a) {
    float t[16];
    v_store(t, a);
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}
/* NaN if any lane is NaN. */
INLINE float v_highest(v16 a) {
    float t[16];
    v_store(t, a);
    float best = t[0];
    for (int i = 1; i < 16; i++) best = t[i] > best || t[i] != t[i] ? t[i] : best;
    return best;
}

/* e^x, Cody-Waite reduction by ln 2 in two parts and Cephes' polynomial of degree 5 beyond 1 + r.
 * Below -87.33 (where the result would be subnormal) exactly 0; NaN stays NaN. */
INLINE v16 v_exp_scaled(v16 x, int split) {
    const v16 low = v_set1(-87.336544f);
    v16 c = v_min(v_set1(88.722839f), v_max(low, x));
    i16v n = v_round(v_mul(c, v_set1(1.44269504088896341f)));
    v16 z = i_float(n);
    v16 r = v_sub(c, v_mul(z, v_set1(0.693359375f)));
    r = v_sub(r, v_mul(z, v_set1(-2.12194440e-4f)));
    v16 y = v_set1(1.9875691500e-4f);
    y = v_add(v_mul(y, r), v_set1(1.3981999507e-3f));
    y = v_add(v_mul(y, r), v_set1(8.3334519073e-3f));
    y = v_add(v_mul(y, r), v_set1(4.1665795894e-2f));
    y = v_add(v_mul(y, r), v_set1(1.6666665459e-1f));
    y = v_add(v_mul(y, r), v_set1(5.0000001201e-1f));
    y = v_add(v_add(v_mul(y, v_mul(r, r)), r), v_set1(1.0f));
    if (split) { /* n may be 128 and 2^128 is no float: two exact halves */
        i16v half = i_half(n);
        y = v_mul(y, i_bits(i_shl23(i_add(half, i_set1(127)))));
        y = v_mul(y, i_bits(i_shl23(i_add(i_sub(n, half), i_set1(127)))));
        y = v_select(v_lt(v_set1(88.722839f), x), v_set1(__builtin_inff()), y);
    } else {
        y = v_mul(y, i_bits(i_shl23(i_add(n, i_set1(127)))));
    }
    return v_select(v_lt(x, low), v_zero(), y);
}
INLINE v16 v_exp(v16 x) { return v_exp_scaled(x, 1); }
/* For x <= 88 (softmax: x <= 0) or NaN: the same bits with less work. */
INLINE v16 v_exp_negative(v16 x) { return v_exp_scaled(x, 0); }

/* 2^t, Cephes' polynomial of degree 6 on [-0.5, 0.5]; t at most 127; below -126 exactly 0; NaN
 * stays NaN. `step` is one Horner step a x + b: with or without fma. */
#define EXP2_BODY(step)                                                                            \
    const v16 low = v_set1(-126.0f);                                                               \
    v16 c = v_max(low, t);                                                                         \
    i16v n = v_round(c);                                                                           \
    v16 r = v_sub(c, i_float(n));                                                                  \
    v16 y = v_set1(1.535336188319500e-4f);                                                         \
    y = step(y, r, v_set1(1.339887440266574e-3f));                                                 \
    y = step(y, r, v_set1(9.618437357674640e-3f));                                                 \
    y = step(y, r, v_set1(5.550332471162809e-2f));                                                 \
    y = step(y, r, v_set1(2.402264791363012e-1f));                                                 \
    y = step(y, r, v_set1(6.931472028550421e-1f));                                                 \
    y = step(y, r, v_set1(1.0f));                                                                  \
    y = i_bits(i_add(v_bits(y), i_shl23(n)));                                                      \
    return v_select(v_lt(t, low), v_zero(), y);
INLINE v16 v_muladd(v16 a, v16 b, v16 c) { return v_add(v_mul(a, b), c); }
INLINE v16 v_exp2(v16 t){EXP2_BODY(v_muladd)} INLINE v16 v_exp2_fma(v16 t){EXP2_BODY(v_fma)}

/* ln x for normal x > 0 (Cephes' logf); +Inf and NaN stay what they are. */
INLINE v16 v_log(v16 x) {
    i16v bits = v_bits(x);
    v16 e = i_float(i_sub(i_shr23(bits), i_set1(126)));
    v16 m = i_bits(i_or(i_and(bits, i_set1(0x007fffff)), i_set1(0x3f000000))); /* [0.5, 1) */
    m16 small = v_lt(m, v_set1(0.707106781186547524f));
    e = v_sub(e, v_select(small, v_set1(1.0f), v_zero()));
    v16 f = v_sub(v_add(m, v_select(small, m, v_zero())), v_set1(1.0f));
    v16 z = v_mul(f, f);
    v16 y = v_set1(7.0376836292e-2f);
    y = v_add(v_mul(y, f), v_set1(-1.1514610310e-1f));
    y = v_add(v_mul(y, f), v_set1(1.1676998740e-1f));
    y = v_add(v_mul(y, f), v_set1(-1.2420140846e-1f));
    y = v_add(v_mul(y, f), v_set1(1.4249322787e-1f));
    y = v_add(v_mul(y, f), v_set1(-1.6668057665e-1f));
    y = v_add(v_mul(y, f), v_set1(2.0000714765e-1f));
    y = v_add(v_mul(y, f), v_set1(-2.4999993993e-1f));
    y = v_add(v_mul(y, f), v_set1(3.3333331174e-1f));
    y = v_mul(v_mul(y, f), z);
    y = v_add(y, v_mul(e, v_set1(-2.12194440e-4f)));
    y = v_sub(y, v_mul(z, v_set1(0.5f)));
    v16 r = v_add(v_add(f, y), v_mul(e, v_set1(0.693359375f)));
    return v_select(v_lt(x, v_set1(__builtin_inff())), r, x);
}

#endif
