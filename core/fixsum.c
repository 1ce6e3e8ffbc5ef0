/* SPDX-License-Identifier: Apache-2.0 */
/* core/fixsum.c: exact sums in integer limbs. Pure; a struct belongs to its caller; any thread.
 *
 * The definition is zt_fixsum_add: round x to the grid 2^-104 (ties to even), cut the result into
 * limbs, add, carry. The hot loops (fixsum_body.h) peel limbs off with floating-point additions to
 * big constants and reach the same integer. Integer sums commute and carrying makes the limbs
 * unique, so lanes, blocks and instruction sets cannot matter. Blocks that hold a value too large
 * for the constants (or Inf, NaN) are done again by the definition. */
#include "core/fixsum.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/error.h"

#define LIMB_BITS 40
#define LIMB_MASK (((int64_t)1 << LIMB_BITS) - 1)
#define ADDEND_LIMIT 0x1p38
#define TOP_LIMIT ((int64_t)1 << 42) /* |word[4]|: 2^58 in value, 2^62 after 2^20 merges */

void zt_fixsum_zero(struct zt_fixsum *s) { memset(s, 0, sizeof *s); }

/* floor(v / 2^40); the compilers make an arithmetic shift of it, which C leaves open for v < 0 */
static int64_t carry_of(int64_t v) { return (v - (v & LIMB_MASK)) / ((int64_t)1 << LIMB_BITS); }

void zt_fixsum_normalise(struct zt_fixsum *s) {
    int64_t *w = s->word;
    int64_t c = carry_of(w[2]);
    w[2] &= LIMB_MASK;
    w[1] += c;
    c = carry_of(w[1]);
    w[1] &= LIMB_MASK;
    w[0] += c;
    c = carry_of(w[0]);
    w[0] &= LIMB_MASK;
    w[4] += c;
    w[3] = w[3] != 0 || w[4] >= TOP_LIMIT || w[4] < -TOP_LIMIT;
    /* A sum out of range must not wrap while it goes on growing. */
    if (w[4] >= TOP_LIMIT)
        w[4] = TOP_LIMIT;
    else if (w[4] < -TOP_LIMIT)
        w[4] = -TOP_LIMIT;
}

/* Adds without carrying. */
static void add_raw(struct zt_fixsum *s, double x) {
    if (!(fabs(x) < ADDEND_LIMIT)) {
        s->word[3] = 1;
        return;
    }
    int64_t l0 = (int64_t)(x * 0x1p24);
    x -= (double)l0 * 0x1p-24; /* exact: what is left are x's low bits */
    int64_t l1 = (int64_t)(x * 0x1p64);
    x -= (double)l1 * 0x1p-64;
    /* below 2^40 now; adding 1.5 x 2^52 rounds it to an integer, ties to even. l0 and l1 weigh even
     * multiples of this grid, so even here is even for the whole. */
    int64_t l2 = (int64_t)((x * 0x1p104 + 0x1.8p52) - 0x1.8p52);
    s->word[0] += l0;
    s->word[1] += l1;
    s->word[2] += l2;
}

void zt_fixsum_add(struct zt_fixsum *s, double x) {
    add_raw(s, x);
    zt_fixsum_normalise(s);
}

void zt_fixsum_merge(struct zt_fixsum *s, const struct zt_fixsum *other) {
    for (int i = 0; i < ZT_FIXSUM_WORDS; i++) s->word[i] += other->word[i];
    zt_fixsum_normalise(s);
}

/* ---- hot loops ---- */

#define CHAINS 2
#define STEP 16               /* of the widest: 8 lanes x 2 */
#define BLOCK 2048            /* floats: at most 512 additions to one lane's S (the narrowest) */
#define MAGIC0 (1.5 * 0x1p28) /* ulp 2^-24; room for 2^27 on either side */
#define MAGIC0_LOW 0x1p28
#define MAGIC0_HIGH 0x1p29
#define MAGIC1 (1.5 * 0x1p-12) /* ulp 2^-64; 512 rests of at most 2^-25 need 2^-16 of its 2^-13 */
#define MAGIC2 (1.5 * 0x1p-52) /* ulp 2^-104 */
#define FAST_LIMIT 0x1p18      /* 512 signed addends stay within MAGIC0's room */

#define LANES 2
#define TARGET
#define NAME(x) x##_base
#include "core/fixsum_body.h"
#undef LANES
#undef TARGET
#undef NAME

typedef bool block_fn(const float *x, size_t n, int64_t sum[3]);

#if defined(__x86_64__) && !defined(ZT_FIXSUM_BASE_ONLY) /* a test builds the plain path */
#define LANES 4
#define TARGET __attribute__((target("avx2")))
#define NAME(x) x##_avx2
#include "core/fixsum_body.h"
#undef LANES
#undef TARGET
#undef NAME
#define LANES 8
#define TARGET __attribute__((target("avx512f,avx512dq")))
#define NAME(x) x##_avx512
#include "core/fixsum_body.h"

static block_fn *choose(bool square) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return square ? squares_avx512 : floats_avx512;
    if (__builtin_cpu_supports("avx2")) return square ? squares_avx2 : floats_avx2;
    return square ? squares_base : floats_base;
}
#else
static block_fn *choose(bool square) { return square ? squares_base : floats_base; }
#endif

static void add_block_slow(struct zt_fixsum *s, const float *x, size_t n, bool square) {
    for (size_t i = 0; i < n; i++)
        zt_fixsum_add(s, square ? (double)x[i] * (double)x[i] : (double)x[i]);
}

static void add_array(struct zt_fixsum *s, const float *x, size_t n, bool square) {
    block_fn *fn = choose(square);
    zt_fixsum_normalise(s); /* leave room for a whole block */
    for (size_t at = 0; at < n;) {
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        size_t body = len / STEP * STEP;
        int64_t sum[3];
        if (body > 0 && fn(x + at, body, sum)) {
            for (int i = 0; i < 3; i++) s->word[i] += sum[i];
            zt_fixsum_normalise(s);
        } else {
            add_block_slow(s, x + at, body, square);
        }
        add_block_slow(s, x + at + body, len - body, square);
        at += len;
    }
}

void zt_fixsum_add_squares(struct zt_fixsum *s, const float *x, size_t n) {
    add_array(s, x, n, true);
}

void zt_fixsum_add_floats(struct zt_fixsum *s, const float *x, size_t n) {
    add_array(s, x, n, false);
}

/* ---- rounding ---- */

static unsigned window64(const uint64_t b[3], int top, uint64_t *window) {
    /* bits top..top-63 of the 192-bit number; returns whether any lower bit is set */
    uint64_t w = 0;
    bool sticky = false;
    for (int bit = 0; bit < 64; bit++) {
        int p = top - bit;
        w = w << 1 | (p >= 0 ? (b[p / 64] >> (p % 64)) & 1u : 0u);
    }
    for (int p = top - 64; p >= 0; p--) sticky |= (b[p / 64] >> (p % 64)) & 1u;
    *window = w;
    return sticky;
}

double zt_fixsum_value(const struct zt_fixsum *s) {
    struct zt_fixsum t = *s;
    zt_fixsum_normalise(&t);
    if (t.word[3]) return NAN;
    bool negative = t.word[4] < 0;
    if (negative) {
        for (int i = 0; i < ZT_FIXSUM_WORDS; i++) t.word[i] = -t.word[i];
        zt_fixsum_normalise(&t);
    }
    uint64_t d0 = (uint64_t)t.word[0], d1 = (uint64_t)t.word[1], d2 = (uint64_t)t.word[2],
             d4 = (uint64_t)t.word[4];
    const uint64_t b[3] = {d2 | d1 << 40, d1 >> 24 | d0 << 16 | d4 << 56, d4 >> 8};
    int top = 191;
    while (top >= 0 && !((b[top / 64] >> (top % 64)) & 1u)) top--;
    if (top < 0) return 0.0;
    uint64_t w;
    unsigned sticky = window64(b, top, &w);
    uint64_t keep = w >> 11, rest = w & 0x7ffu;
    if (rest > 0x400u || (rest == 0x400u && (sticky || (keep & 1u)))) keep++;
    double v = ldexp((double)keep, top - 63 + 11 - 104);
    return negative ? -v : v;
}
