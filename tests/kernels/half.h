/* SPDX-License-Identifier: Apache-2.0 */
/* tests/kernels/half.h: 16-bit formats by their definition, in double: what an encoding is worth
 * and what a number rounds to. Nothing here uses the code under test. */
#ifndef ZT_TESTS_KERNELS_HALF_H
#define ZT_TESTS_KERNELS_HALF_H
#include "tests/kernels/util.h"

#define U32 0x1p-24 /* unit roundoff of fp32 */

static const enum zt_dtype halves[] = {ZT_BF16, ZT_F16};

/* Significant bits, and the least and greatest exponent of a normal number. */
static UNUSED int bits_of(enum zt_dtype t) { return t == ZT_BF16 ? 8 : 11; }
static UNUSED int low_of(enum zt_dtype t) { return t == ZT_BF16 ? -126 : -14; }
static UNUSED int high_of(enum zt_dtype t) { return t == ZT_BF16 ? 127 : 15; }

static UNUSED double value16(uint16_t h, enum zt_dtype t) {
    const int stored = bits_of(t) - 1, ones = (1 << (15 - stored)) - 1;
    const int mantissa = h & ((1 << stored) - 1), exponent = h >> stored & ones;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == ones) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, low_of(t) - stored);
    return sign * ldexp(mantissa + (1 << stored), exponent - 1 + low_of(t) - stored);
}

/* Distance of neighbours at x. */
static UNUSED double ulp16(double x, enum zt_dtype t) {
    const int e = x == 0.0 ? low_of(t) : ilogb(x);
    return ldexp(1.0, (e < low_of(t) ? low_of(t) : e) - (bits_of(t) - 1));
}

/* Nearest, ties to even (nearbyint's default); beyond the greatest number, infinity. */
static UNUSED double round16(double x, enum zt_dtype t) {
    if (!isfinite(x)) return x;
    const double u = ulp16(x, t), r = nearbyint(x / u) * u;
    return fabs(r) >= ldexp(1.0, high_of(t) + 1) ? copysign((double)INFINITY, x) : copysign(r, x);
}

/* n elements that end where the guard begins; a write before the first shows as well when n is
 * even. */
static UNUSED uint16_t *half_buffer(int64_t n) {
    return (uint16_t *)(void *)(buffer((n + 1) / 2) + (n + 1) / 2) - n;
}

/* Random 16-bit numbers in [-size, size) and, exactly, the same in fp32. */
struct pair {
    uint16_t *h;
    float *w;
};

static UNUSED uint16_t encode16(double x, enum zt_dtype t) { /* of a representable number */
    const int stored = bits_of(t) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (isinf(x)) return (uint16_t)(sign | (t == ZT_BF16 ? 0x7f80 : 0x7c00));
    const double unit = ldexp(1.0, low_of(t) - stored);
    if (x < ldexp(1.0, low_of(t))) return (uint16_t)(sign | (int)(x / unit));
    const int e = ilogb(x);
    const int m = (int)ldexp(x, stored - e) - (1 << stored);
    return (uint16_t)(sign | (e - low_of(t) + 1) << stored | m);
}

static UNUSED struct pair pair_of(const float *values, int64_t n, enum zt_dtype t) {
    struct pair p = {half_buffer(n), buffer(n)};
    for (int64_t i = 0; i < n; i++) {
        p.h[i] = encode16(round16((double)values[i], t), t);
        p.w[i] = (float)value16(p.h[i], t);
    }
    return p;
}

/* bf16 is the upper half of an fp32; fp16 is drawn by its bits, size / 16 to size or so. */
static UNUSED struct pair random_pair(int64_t n, double size, enum zt_dtype t) {
    struct pair p = {half_buffer(n), buffer(n)};
    for (int64_t i = 0; i < n; i++) {
        float v = (float)(uniform() * size);
        uint32_t u;
        memcpy(&u, &v, 4);
        if (t == ZT_BF16) {
            p.h[i] = (uint16_t)(u >> 16);
            u &= 0xffff0000u;
            memcpy(&p.w[i], &u, 4);
        } else {
            const uint32_t e = (uint32_t)(ilogb(size) + 14 - (int)(u & 3));
            p.h[i] = (uint16_t)((u >> 16 & 0x8000) | e << 10 | (u >> 2 & 0x3ff));
            p.w[i] = (float)value16(p.h[i], t);
        }
    }
    return p;
}

static UNUSED struct pair copy_pair(struct pair from, int64_t n) {
    struct pair p = {half_buffer(n), copy_buffer(from.w, n)};
    memcpy(p.h, from.h, (size_t)n * sizeof *p.h);
    return p;
}

/* got is wide, rounded once: exactly. */
static UNUSED void is_rounded(const uint16_t *got, const float *wide, int64_t n, enum zt_dtype t,
                              const char *what) {
    for (int64_t i = 0; i < n; i++) {
        const double g = value16(got[i], t), w = round16((double)wide[i], t);
        cr_assert((isnan(g) && isnan(w)) || (g == w && !signbit(g) == !signbit(w)),
                  "%s (%s): element %lld is %a, fp32 gives %a, rounded %a", what, zt_dtype_name(t),
                  (long long)i, g, (double)wide[i], w);
    }
}

/* |got - want| <= half an ulp of the type and what the fp32 arithmetic may have lost. */
static UNUSED void near16(uint16_t got, double want, double lost, enum zt_dtype t, const char *what,
                          int64_t i) {
    const double g = value16(got, t), bound = lost + ulp16(fabs(want) + lost, t) / 2;
    cr_assert(fabs(g - want) <= bound, "%s (%s): element %lld is %.9g, expected %.9g (bound %g)",
              what, zt_dtype_name(t), (long long)i, g, want, bound);
}

/* The bound n u / (1 - n u) of n roundings. */
static UNUSED double gamma_n(double n) { return n * U32 / (1.0 - n * U32); }

/* ---- the same test for fp32 and the 16-bit types ---- */

static const enum zt_dtype float_types[] = {ZT_F32, ZT_BF16, ZT_F16};
#define FLOAT_TYPES 3

/* Operands of a type and, exactly, in fp32; and what an operator of that type is handed. */
static UNUSED struct pair operand(int64_t n, double size, enum zt_dtype t) {
    if (t != ZT_F32) return random_pair(n, size, t);
    struct pair p = {NULL, random_buffer(n)};
    for (int64_t i = 0; i < n; i++) p.w[i] *= (float)size;
    return p;
}
static UNUSED void *of(struct pair p, enum zt_dtype t) { return t == ZT_F32 ? (void *)p.w : p.h; }
static UNUSED struct pair room(int64_t n, enum zt_dtype t) {
    struct pair p = {t == ZT_F32 ? NULL : half_buffer(n), buffer(n)};
    return p;
}
static UNUSED struct pair copy_of(struct pair from, int64_t n, enum zt_dtype t) {
    if (t != ZT_F32) return copy_pair(from, n);
    struct pair p = {NULL, copy_buffer(from.w, n)};
    return p;
}
/* The narrow result, if there is one, is the wide one rounded. */
static UNUSED void rounded(struct pair p, int64_t n, enum zt_dtype t, const char *what) {
    if (t != ZT_F32) is_rounded(p.h, p.w, n, t, what);
}

static UNUSED void within(float got, double want, double lost, const char *what, int64_t i) {
    cr_assert(fabs((double)got - want) <= lost,
              "%s: element %lld is %.9g, expected %.9g (bound %g)", what, (long long)i, (double)got,
              want, lost);
}

#endif
