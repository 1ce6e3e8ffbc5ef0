/* SPDX-License-Identifier: Apache-2.0 */
/* core/convert.c: see core/convert.h. Integer arithmetic on the bits: no rounding mode, no vector unit
 * has a say. */
#include "core/convert.h"
#include <string.h>
#include "core/error.h"

static uint32_t bits_of(float v) {
    uint32_t x;
    memcpy(&x, &v, sizeof x);
    return x;
}

static float of_bits(uint32_t x) {
    float v;
    memcpy(&v, &x, sizeof v);
    return v;
}

float zt_bf16_widen(uint16_t v) { return of_bits((uint32_t)v << 16); }

uint16_t zt_bf16_narrow(float v) {
    const uint32_t x = bits_of(v);
    if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}

float zt_f16_widen(uint16_t v) {
    const uint32_t sign = (uint32_t)(v & 0x8000u) << 16, exponent = v >> 10 & 31u, rest = v & 1023u;
    if (exponent == 31) return of_bits(sign | 0x7f800000u | rest << 13);
    if (exponent > 0) return of_bits(sign | (exponent + 112u) << 23 | rest << 13);
    const float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

uint16_t zt_f16_narrow(float v) {
    const uint32_t all = bits_of(v), sign = all >> 16 & 0x8000u, x = all & 0x7fffffffu;
    if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (x >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520, half way to what is not there */
    if (x < 0x38800000u) /* below 2^-14: the sum with 1/2 is rounded to a multiple of 2^-24 */
        return (uint16_t)(sign | (bits_of(of_bits(x) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (x + 0xfffu + (x >> 13 & 1u) - 0x38000000u) >> 13);
}

static float load(const void *p, enum zt_dtype t, int64_t i) {
    if (t == ZT_F32) return ((const float *)p)[i];
    const uint16_t v = ((const uint16_t *)p)[i];
    return t == ZT_BF16 ? zt_bf16_widen(v) : zt_f16_widen(v);
}

void zt_convert(void *dst, enum zt_dtype dt, const void *src, enum zt_dtype st, int64_t n) {
    ZT_ASSERT(dt <= ZT_F16 && st <= ZT_F16);
    if (dt == st)
        memmove(dst, src, (size_t)n * zt_dtype_size(dt));
    else if (dt == ZT_F32)
        for (int64_t i = 0; i < n; i++) ((float *)dst)[i] = load(src, st, i);
    else if (dt == ZT_BF16)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = zt_bf16_narrow(load(src, st, i));
    else
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = zt_f16_narrow(load(src, st, i));
}
