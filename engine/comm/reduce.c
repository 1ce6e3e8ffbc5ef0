/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/reduce.c: element-wise reductions and copies. fp32 sums have a loop of their own over
 * 16-float vectors, compiled for three instruction sets and chosen at the first use; every element
 * is its own chain of adds, so the bits do not depend on the choice. All other types go through a
 * block of accumulators that stays in the first cache. Pure; any thread. */
#include "engine/comm/reduce.h"
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define BLOCK 1024                    /* elements */
#define STREAM_FROM ((size_t)8 << 20) /* copies from here on bypass the caches */

bool zt_reduce_supported(enum zt_dtype t, enum zt_redop op) {
    if (op < ZT_SUM || op > ZT_AVG) return false;
    if (t == ZT_F32 || t == ZT_BF16 || t == ZT_F16) return true;
    return (t == ZT_I32 || t == ZT_I64 || t == ZT_U8) && op != ZT_AVG;
}

void zt_share(int64_t count, int n, int r, int64_t *lo, int64_t *hi) {
    int64_t per = (count + n - 1) / n;
    if (count % n) per = (per + 15) / 16 * 16;
    *lo = per * r < count ? per * r : count;
    *hi = *lo + per < count ? *lo + per : count;
}

/* ---- fp32 sums ---- */

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));

#define SUM_F32(name, attribute)                                                                   \
    attribute static void name(int n, const void *const *src, int n_dst, void *const *dst,         \
                               size_t count, bool scaled, float scale) {                           \
        size_t i = 0;                                                                              \
        for (; i + 16 <= count; i += 16) {                                                         \
            vec acc = *(const vec *)((const float *)src[0] + i);                                   \
            if (scaled) acc *= scale;                                                              \
            for (int j = 1; j < n; j++) {                                                          \
                vec x = *(const vec *)((const float *)src[j] + i);                                 \
                if (scaled) x *= scale;                                                            \
                acc += x;                                                                          \
            }                                                                                      \
            for (int k = 0; k < n_dst; k++) *(vec *)((float *)dst[k] + i) = acc;                   \
        }                                                                                          \
        for (; i < count; i++) {                                                                   \
            float acc = ((const float *)src[0])[i];                                                \
            if (scaled) acc *= scale;                                                              \
            for (int j = 1; j < n; j++) {                                                          \
                float x = ((const float *)src[j])[i];                                              \
                if (scaled) x *= scale;                                                            \
                acc += x;                                                                          \
            }                                                                                      \
            for (int k = 0; k < n_dst; k++) ((float *)dst[k])[i] = acc;                            \
        }                                                                                          \
    }
SUM_F32(sum_f32_plain, )
#if defined(__x86_64__)
SUM_F32(sum_f32_avx2, __attribute__((target("avx2"))))
SUM_F32(sum_f32_avx512, __attribute__((target("avx512f"))))
#endif

static void sum_f32(int n, const void *const *src, int n_dst, void *const *dst, size_t count,
                    bool scaled, float scale) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        sum_f32_avx512(n, src, n_dst, dst, count, scaled, scale);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        sum_f32_avx2(n, src, n_dst, dst, count, scaled, scale);
        return;
    }
#endif
    sum_f32_plain(n, src, n_dst, dst, count, scaled, scale);
}

/* ---- everything else: accumulators of one block ---- */

static float max_f32(float a, float b) { return b > a || isnan(b) ? b : a; }
static float min_f32(float a, float b) { return b < a || isnan(b) ? b : a; }

static float as_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint32_t as_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static float from_bf16(uint16_t h) { return as_float((uint32_t)h << 16); }
static uint16_t to_bf16(float f) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits = as_bits(f);
    if (isnan(f)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* fp16 in plain integer and fp32 operations that both compilers vectorise. Subnormals are numbers
 * around a constant whose last place is theirs: 2^-24 of 0.5, and the difference to 2^-14. */
static float from_f16(uint16_t h) {
    uint32_t low = (uint32_t)(h & 0x7fff) << 13, e = h & 0x7c00;
    uint32_t normal = low + (112u << 23), special = low + (224u << 23);
    uint32_t tiny = as_bits(as_float(low + (113u << 23)) - 0x1p-14f);
    uint32_t bits = e == 0x7c00 ? special : e ? normal : tiny;
    return as_float(bits | (uint32_t)(h & 0x8000) << 16);
}
static uint16_t to_f16(float f) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits = as_bits(f), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    uint32_t normal = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    uint32_t tiny = as_bits(as_float(a) + 0.5f) - as_bits(0.5f);
    uint32_t nan = 0x7e00 | (a >> 13 & 0x3ff);
    uint32_t h = a > 0x7f800000    ? nan
                 : a >= 0x477ff000 ? 0x7c00 /* 65520 and above */
                 : a >= 0x38800000 ? normal
                                   : tiny;
    return (uint16_t)(sign | h);
}

static void add_block(float *restrict acc, const float *restrict x, size_t n, enum zt_redop op) {
    if (op == ZT_MAX)
        for (size_t i = 0; i < n; i++) acc[i] = max_f32(acc[i], x[i]);
    else if (op == ZT_MIN)
        for (size_t i = 0; i < n; i++) acc[i] = min_f32(acc[i], x[i]);
    else
        for (size_t i = 0; i < n; i++) acc[i] += x[i];
}

static void load_block(float *restrict to, enum zt_dtype t, const void *src, size_t at, size_t n,
                       bool scaled, float scale) {
    if (t == ZT_BF16)
        for (size_t i = 0; i < n; i++) to[i] = from_bf16(((const uint16_t *)src)[at + i]);
    else if (t == ZT_F16)
        for (size_t i = 0; i < n; i++) to[i] = from_f16(((const uint16_t *)src)[at + i]);
    else
        memcpy(to, (const float *)src + at, n * sizeof *to);
    if (scaled)
        for (size_t i = 0; i < n; i++) to[i] *= scale;
}

static void reduce_float(enum zt_dtype t, enum zt_redop op, int n_src, const void *const *src,
                         int n_dst, void *const *dst, size_t count, float scale) {
    float acc[BLOCK], x[BLOCK];
    uint16_t half[BLOCK];
    const size_t size = zt_dtype_size(t);
    const void *from = t == ZT_F32 ? (const void *)acc : half;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        load_block(acc, t, src[0], at, n, op == ZT_AVG, scale);
        for (int j = 1; j < n_src; j++) {
            load_block(x, t, src[j], at, n, op == ZT_AVG, scale);
            add_block(acc, x, n, op);
        }
        if (t == ZT_BF16)
            for (size_t i = 0; i < n; i++) half[i] = to_bf16(acc[i]);
        else if (t == ZT_F16)
            for (size_t i = 0; i < n; i++) half[i] = to_f16(acc[i]);
        for (int k = 0; k < n_dst; k++) memcpy((char *)dst[k] + at * size, from, n * size);
    }
}

/* Sums wrap: they are taken in the unsigned type of the same width. */
#define REDUCE_INT(name, type, unsigned_type)                                                      \
    static void name(enum zt_redop op, int n_src, const void *const *src, int n_dst,               \
                     void *const *dst, size_t count) {                                             \
        type acc[BLOCK];                                                                           \
        for (size_t at = 0; at < count; at += BLOCK) {                                             \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                    \
            memcpy(acc, (const type *)src[0] + at, n * sizeof *acc);                               \
            for (int j = 1; j < n_src; j++) {                                                      \
                const type *x = (const type *)src[j] + at;                                         \
                if (op == ZT_MAX)                                                                  \
                    for (size_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] ? x[i] : acc[i];         \
                else if (op == ZT_MIN)                                                             \
                    for (size_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] ? x[i] : acc[i];         \
                else                                                                               \
                    for (size_t i = 0; i < n; i++)                                                 \
                        acc[i] = (type)((unsigned_type)acc[i] + (unsigned_type)x[i]);              \
            }                                                                                      \
            for (int k = 0; k < n_dst; k++) memcpy((type *)dst[k] + at, acc, n * sizeof *acc);     \
        }                                                                                          \
    }
REDUCE_INT(reduce_i32, int32_t, uint32_t)
REDUCE_INT(reduce_i64, int64_t, uint64_t)
REDUCE_INT(reduce_u8, uint8_t, uint32_t)

void zt_reduce(enum zt_dtype t, enum zt_redop op, int n_src, const void *const *src, int n_dst,
               void *const *dst, size_t count) {
    float scale = (float)(1.0 / n_src);
    ZT_ASSERT(zt_reduce_supported(t, op) && n_src > 0);
    if (n_src == 1 && op != ZT_AVG) {
        for (int k = 0; k < n_dst; k++)
            if (dst[k] != src[0]) memmove(dst[k], src[0], count * zt_dtype_size(t));
        return;
    }
    switch (t) {
    case ZT_F32:
        if (op == ZT_SUM || op == ZT_AVG)
            sum_f32(n_src, src, n_dst, dst, count, op == ZT_AVG, scale);
        else
            reduce_float(t, op, n_src, src, n_dst, dst, count, scale);
        break;
    case ZT_BF16:
    case ZT_F16:
        reduce_float(t, op, n_src, src, n_dst, dst, count, scale);
        break;
    case ZT_I32:
        reduce_i32(op, n_src, src, n_dst, dst, count);
        break;
    case ZT_I64:
        reduce_i64(op, n_src, src, n_dst, dst, count);
        break;
    case ZT_U8:
        reduce_u8(op, n_src, src, n_dst, dst, count);
        break;
    default:
        break;
    }
}

void zt_copy(void *dst, const void *src, size_t bytes) {
#if defined(__x86_64__)
    if (bytes >= STREAM_FROM) {
        unsigned char *d = dst;
        const unsigned char *s = src;
        size_t head = (size_t)(-(uintptr_t)d & 63);
        memcpy(d, s, head);
        d += head, s += head, bytes -= head;
        for (; bytes >= 64; d += 64, s += 64, bytes -= 64)
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128((__m128i *)(void *)(d + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)(s + i)));
        _mm_sfence();
        memcpy(d, s, bytes);
        return;
    }
#endif
    memcpy(dst, src, bytes);
}
