/* SPDX-License-Identifier: Apache-2.0 */
/* core/fixsum.c: exact sums in integer limbs. Pure; a struct belongs to its caller; any thread.
 *
 * The definition is zt_fixsum_add: truncate |x| onto the grid 2^-104, cut the result into limbs,
 * give them x's sign, add, carry. The hot loops reach the same number another way. They peel limbs
 * off with the add-a-big-constant trick, which rounds to nearest and so leaves signed remainders;
 * only the last limb is corrected to the floor, so each addend contributes exactly the truncated
 * number, and carrying makes the limbs unique. Integer sums commute, so lanes, blocks and
 * instruction sets cannot matter. Blocks that hold a value too large for the trick (or Inf, NaN)
 * are done again by the definition. */
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

/* Adds without carrying; at most 2 addends may be in flight before a normalise. */
static void add_raw(struct zt_fixsum *s, double x) {
    double a = fabs(x);
    if (!(a < ADDEND_LIMIT)) {
        s->word[3] = 1;
        return;
    }
    int64_t l0 = (int64_t)(a * 0x1p24);
    a -= (double)l0 * 0x1p-24; /* exact: what is left are x's low bits */
    int64_t l1 = (int64_t)(a * 0x1p64);
    a -= (double)l1 * 0x1p-64;
    int64_t l2 = (int64_t)(a * 0x1p104);
    bool negative = x < 0;
    s->word[0] += negative ? -l0 : l0;
    s->word[1] += negative ? -l1 : l1;
    s->word[2] += negative ? -l2 : l2;
}

void zt_fixsum_add(struct zt_fixsum *s, double x) {
    add_raw(s, x);
    zt_fixsum_normalise(s);
}

void zt_fixsum_merge(struct zt_fixsum *s, const struct zt_fixsum *other) {
    for (int i = 0; i < ZT_FIXSUM_WORDS; i++)
        s->word[i] += other->word[i];
    zt_fixsum_normalise(s);
}

/* ---- hot loops ---- */

#define LANES 4
#define UNROLL 2
#define STEP (LANES * UNROLL)
#define BLOCK 2048           /* floats: 2048 x 2^51 (the first limb's bound) = 2^62 */
#define FAST_LIMIT 0x1p27    /* |addend| for the first constant below */
#define MAGIC0 (1.5 * 0x1p28)   /* ulp 2^-24 */
#define MAGIC1 (1.5 * 0x1p-12)  /* ulp 2^-64 */
#define MAGIC2 (1.5 * 0x1p-52)  /* ulp 2^-104 */

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef double vdouble __attribute__((vector_size(LANES * 8)));
/* Unsigned, because a lane of a block that will be thrown away may wrap. */
typedef uint64_t vword __attribute__((vector_size(LANES * 8)));

/* The limb sums of one block of n floats, n a multiple of STEP and at most BLOCK. Returns false when
 * some addend is too large for the trick; sum is then meaningless. */
static inline __attribute__((always_inline)) bool block_body(const float *x, size_t n, bool square,
                                                             int64_t sum[3]) {
    vword acc0[UNROLL] = {{0}}, acc1[UNROLL] = {{0}}, acc2[UNROLL] = {{0}}, good[UNROLL];
    const uint64_t sign = (uint64_t)1 << 63;
    const vword sign_bit = {sign, sign, sign, sign};
    const vdouble m0 = {MAGIC0, MAGIC0, MAGIC0, MAGIC0}, m1 = {MAGIC1, MAGIC1, MAGIC1, MAGIC1},
                  m2 = {MAGIC2, MAGIC2, MAGIC2, MAGIC2},
                  limit = {FAST_LIMIT, FAST_LIMIT, FAST_LIMIT, FAST_LIMIT};
    for (int u = 0; u < UNROLL; u++)
        good[u] = ~(vword){0};
    for (size_t i = 0; i < n; i += STEP) {
        for (int u = 0; u < UNROLL; u++) {
            vfloat f;
            memcpy(&f, x + i + (size_t)u * LANES, sizeof f);
            vdouble d = __builtin_convertvector(f, vdouble);
            vword negative = {0};
            vdouble a;
            if (square) {
                a = d * d;
            } else {
                a = (vdouble)((vword)d & ~sign_bit);
                negative = (vword)(d < 0.0);
            }
            good[u] &= (vword)(a < limit); /* false for NaN */
            vdouble t0 = a + m0;
            vdouble r = a - (t0 - m0);
            vdouble t1 = r + m1;
            r = r - (t1 - m1);
            vdouble t2 = r + m2;
            vword above = (vword)((t2 - m2) > r); /* a true lane is -1: the floor */
            if (square) { /* the constants' own bits are taken off once a block */
                acc0[u] += (vword)t0;
                acc1[u] += (vword)t1;
                acc2[u] += (vword)t2 + above;
            } else { /* (v ^ -1) - -1 = -v */
                acc0[u] += (((vword)t0 - (vword)m0) ^ negative) - negative;
                acc1[u] += (((vword)t1 - (vword)m1) ^ negative) - negative;
                acc2[u] += (((vword)t2 - (vword)m2 + above) ^ negative) - negative;
            }
        }
    }
    uint64_t all = ~(uint64_t)0, s0 = 0, s1 = 0, s2 = 0;
    for (int u = 0; u < UNROLL; u++)
        for (int l = 0; l < LANES; l++) {
            all &= good[u][l];
            s0 += acc0[u][l];
            s1 += acc1[u][l];
            s2 += acc2[u][l];
        }
    if (square) {
        s0 -= n * ((vword)m0)[0];
        s1 -= n * ((vword)m1)[0];
        s2 -= n * ((vword)m2)[0];
    }
    sum[0] = (int64_t)s0;
    sum[1] = (int64_t)s1;
    sum[2] = (int64_t)s2;
    return all != 0;
}

typedef bool block_fn(const float *x, size_t n, int64_t sum[3]);

static bool squares_base(const float *x, size_t n, int64_t sum[3]) {
    return block_body(x, n, true, sum);
}
static bool floats_base(const float *x, size_t n, int64_t sum[3]) {
    return block_body(x, n, false, sum);
}

#if defined(__x86_64__) && !defined(ZT_FIXSUM_BASE_ONLY) /* a test builds the plain path */
__attribute__((target("avx2"))) static bool squares_avx2(const float *x, size_t n, int64_t sum[3]) {
    return block_body(x, n, true, sum);
}
__attribute__((target("avx2"))) static bool floats_avx2(const float *x, size_t n, int64_t sum[3]) {
    return block_body(x, n, false, sum);
}
static bool have_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }
#else
#define squares_avx2 squares_base
#define floats_avx2 floats_base
static bool have_avx2(void) { return false; }
#endif

static void add_block_slow(struct zt_fixsum *s, const float *x, size_t n, bool square) {
    for (size_t i = 0; i < n; i++)
        zt_fixsum_add(s, square ? (double)x[i] * (double)x[i] : (double)x[i]);
}

static void add_array(struct zt_fixsum *s, const float *x, size_t n, bool square, block_fn *fn) {
    zt_fixsum_normalise(s); /* leave room for a whole block */
    for (size_t at = 0; at < n;) {
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        size_t body = len / STEP * STEP;
        int64_t sum[3];
        if (body > 0 && fn(x + at, body, sum)) {
            for (int i = 0; i < 3; i++)
                s->word[i] += sum[i];
            zt_fixsum_normalise(s);
        } else {
            add_block_slow(s, x + at, body, square);
        }
        add_block_slow(s, x + at + body, len - body, square);
        at += len;
    }
}

void zt_fixsum_add_squares(struct zt_fixsum *s, const float *x, size_t n) {
    add_array(s, x, n, true, have_avx2() ? squares_avx2 : squares_base);
}

void zt_fixsum_add_floats(struct zt_fixsum *s, const float *x, size_t n) {
    add_array(s, x, n, false, have_avx2() ? floats_avx2 : floats_base);
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
    for (int p = top - 64; p >= 0; p--)
        sticky |= (b[p / 64] >> (p % 64)) & 1u;
    *window = w;
    return sticky;
}

double zt_fixsum_value(const struct zt_fixsum *s) {
    struct zt_fixsum t = *s;
    zt_fixsum_normalise(&t);
    if (t.word[3])
        return NAN;
    bool negative = t.word[4] < 0;
    if (negative) {
        for (int i = 0; i < ZT_FIXSUM_WORDS; i++)
            t.word[i] = -t.word[i];
        zt_fixsum_normalise(&t);
    }
    uint64_t d0 = (uint64_t)t.word[0], d1 = (uint64_t)t.word[1], d2 = (uint64_t)t.word[2],
             d4 = (uint64_t)t.word[4];
    const uint64_t b[3] = {d2 | d1 << 40, d1 >> 24 | d0 << 16 | d4 << 56, d4 >> 8};
    int top = 191;
    while (top >= 0 && !((b[top / 64] >> (top % 64)) & 1u))
        top--;
    if (top < 0)
        return 0.0;
    uint64_t w;
    unsigned sticky = window64(b, top, &w);
    uint64_t keep = w >> 11, rest = w & 0x7ffu;
    if (rest > 0x400u || (rest == 0x400u && (sticky || (keep & 1u))))
        keep++;
    double v = ldexp((double)keep, top - 63 + 11 - 104);
    return negative ? -v : v;
}
