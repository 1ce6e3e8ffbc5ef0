/* SPDX-License-Identifier: Apache-2.0 */
/* core/units.h: sizes, times and checked arithmetic, each written once. Pure. */
#ifndef ZT_CORE_UNITS_H
#define ZT_CORE_UNITS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZT_KIB ((size_t)1 << 10)
#define ZT_MIB ((size_t)1 << 20)
#define ZT_GIB ((size_t)1 << 30)

static inline size_t zt_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int64_t zt_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t zt_gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}
/* false on overflow */
static inline bool zt_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/* "12.34 GiB", "512 B"; "1.23 ms"; "1h02m". Each writes into buf and returns it. */
const char *zt_format_bytes(double bytes, char *buf, size_t n);
const char *zt_format_seconds(double s, char *buf, size_t n);
const char *zt_format_count(int64_t v, char *buf, size_t n); /* 1,234,567 */
/* "1 2 4 8": the divisors of n up to 65536, as many as fit. */
const char *zt_divisors(int64_t n, char *buf, size_t size);

/* Levenshtein-nearest of names[0..n) to `word`, NULL when nothing is near enough to suggest. */
const char *zt_nearest(const char *word, const char *const *names, int n);

#endif
