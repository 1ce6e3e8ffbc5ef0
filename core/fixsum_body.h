/* SPDX-License-Identifier: Apache-2.0 */
/* core/fixsum_body.h: the hot loop of core/fixsum.c for one vector width. Included there once per
 * width with LANES (doubles per vector), TARGET (function attributes) and NAME(x) defined.
 *
 * For both levels above the last, S holds a constant plus the sum so far, always inside one binade,
 * so that adding an addend rounds it to S's grid and S_new - S is exactly what was taken; the rest
 * goes one level down. However ties fall at these levels, what is left is a multiple of the next
 * grid, so the total does not depend on S. At the last level the constant stays fixed and integers
 * are added: each addend is rounded to the grid 2^-104, ties to even, whatever came before it. */

typedef float NAME(vfloat) __attribute__((vector_size(LANES * 4)));
typedef double NAME(vdouble) __attribute__((vector_size(LANES * 8)));
typedef uint64_t NAME(vword) __attribute__((vector_size(LANES * 8)));

/* The limb sums of n floats (or their squares), n a multiple of LANES * CHAINS and at most BLOCK.
 * Returns false when some addend is too large, Inf or NaN; sum is then meaningless. */
TARGET static inline __attribute__((always_inline)) bool NAME(block)(const float *x, size_t n,
                                                                     bool square, int64_t sum[3]) {
    /* two chains, written out, hide the latency of the additions */
    const NAME(vdouble) zero = {0};
    NAME(vdouble) s0a = zero + MAGIC0, s0b = s0a, s1a = zero + MAGIC1, s1b = s1a;
    const NAME(vdouble) m2 = zero + MAGIC2;
    NAME(vword) s2a = {0}, s2b = {0}, big = {0};
    const NAME(vword) mask = ~((NAME(vword)){0} + ((uint64_t)1 << 63));
    const NAME(vdouble) limit = zero + FAST_LIMIT;
    for (size_t i = 0; i < n; i += LANES * CHAINS) {
        NAME(vfloat) fa, fb;
        memcpy(&fa, x + i, sizeof fa);
        memcpy(&fb, x + i + LANES, sizeof fb);
        NAME(vdouble) a = __builtin_convertvector(fa, NAME(vdouble));
        NAME(vdouble) b = __builtin_convertvector(fb, NAME(vdouble));
        if (square) {
            a = a * a;
            b = b * b;
        } else { /* sums of one sign show in S itself, these must be looked at one by one */
            big |= (NAME(vword))((NAME(vdouble))((NAME(vword))a & mask) >= limit);
            big |= (NAME(vword))((NAME(vdouble))((NAME(vword))b & mask) >= limit);
        }
        NAME(vdouble) ta = s0a + a, tb = s0b + b;
        a = a - (ta - s0a);
        b = b - (tb - s0b);
        s0a = ta;
        s0b = tb;
        ta = s1a + a;
        tb = s1b + b;
        a = a - (ta - s1a);
        b = b - (tb - s1b);
        s1a = ta;
        s1b = tb;
        s2a += (NAME(vword))(a + m2);
        s2b += (NAME(vword))(b + m2);
    }
    const uint64_t bits0 = ((NAME(vword))(zero + MAGIC0))[0],
                   bits1 = ((NAME(vword))(zero + MAGIC1))[0], bits2 = ((NAME(vword))m2)[0];
    uint64_t l0 = 0, l1 = 0, l2 = 0, bad = 0;
    for (int l = 0; l < LANES; l++) {
        bad |= big[l];
        bad |= !(s0a[l] >= MAGIC0_LOW && s0a[l] < MAGIC0_HIGH); /* left its binade, or NaN */
        bad |= !(s0b[l] >= MAGIC0_LOW && s0b[l] < MAGIC0_HIGH);
        l0 += ((NAME(vword))s0a)[l] + ((NAME(vword))s0b)[l] - 2 * bits0;
        l1 += ((NAME(vword))s1a)[l] + ((NAME(vword))s1b)[l] - 2 * bits1;
        l2 += s2a[l] + s2b[l];
    }
    l2 -= (uint64_t)n * bits2;
    sum[0] = (int64_t)l0;
    sum[1] = (int64_t)l1;
    sum[2] = (int64_t)l2;
    return bad == 0;
}

TARGET static bool NAME(squares)(const float *x, size_t n, int64_t sum[3]) {
    return NAME(block)(x, n, true, sum);
}

TARGET static bool NAME(floats)(const float *x, size_t n, int64_t sum[3]) {
    return NAME(block)(x, n, false, sum);
}
