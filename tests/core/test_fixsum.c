/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: one set of limbs whatever the order, partition or code path; values against rational
 * arithmetic (goldens) and against 113-bit arithmetic where that is exact. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/fixsum.h"
#include "core/rng.h"
#include "tests/core/golden.h"

static bool same(const struct zt_fixsum *a, const struct zt_fixsum *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static float draw(uint64_t i, int low, int high) {
    uint32_t w[4];
    zt_rng_words(7, ZT_RNG_TEST, 0, 0, i, w);
    double m = 1.0 + (double)w[0] * 0x1p-32;
    int e = low + (int)(w[1] % (uint32_t)(high - low + 1));
    return (float)ldexp((w[2] & 1u) ? m : -m, e);
}

static struct zt_fixsum by_definition(const float *x, size_t n, bool square) {
    struct zt_fixsum s;
    zt_fixsum_zero(&s);
    for (size_t i = 0; i < n; i++)
        zt_fixsum_add(&s, square ? (double)x[i] * (double)x[i] : (double)x[i]);
    return s;
}

static void check_group(const float *x, size_t n, double squares, double floats, int group) {
    struct zt_fixsum s, t;
    zt_fixsum_zero(&s);
    zt_fixsum_zero(&t);
    zt_fixsum_add_squares(&s, x, n);
    zt_fixsum_add_floats(&t, x, n);
    cr_assert_eq(zt_fixsum_value(&s), squares, "group %d: %a, want %a", group, zt_fixsum_value(&s),
                 squares);
    cr_assert_eq(zt_fixsum_value(&t), floats, "group %d: %a, want %a", group, zt_fixsum_value(&t),
                 floats);
    struct zt_fixsum ds = by_definition(x, n, true), df = by_definition(x, n, false);
    cr_assert(same(&s, &ds) && same(&t, &df), "group %d", group);
}

Test(fixsum, equals_rational_arithmetic) {
    FILE *f = golden_open("fixsum.txt");
    char line[256];
    float x[1024];
    size_t n = 0;
    double squares = 0;
    int groups = 0;
    while (fgets(line, sizeof line, f)) {
        char *p = strchr(line, ' ');
        if (line[0] == '#') continue;
        cr_assert_not_null(p);
        double v = strtod(p, NULL);
        if (strncmp(line, "F ", 2) == 0) {
            cr_assert(n < 1024);
            x[n++] = (float)v;
        } else if (strncmp(line, "SQUARES", 7) == 0) {
            squares = v;
        } else {
            check_group(x, n, squares, v, groups++);
            n = 0;
        }
    }
    fclose(f);
    cr_assert_eq(groups, 8);
}

/* Exponents in [-10, 4]: every square is a multiple of 2^-66 and the sum is below 2^30, so 113 bits
 * hold it exactly; rounding it once must give the same double. */
Test(fixsum, equals_wide_arithmetic) {
    enum { N = 100003 };
    float *x = malloc(N * sizeof *x);
    __float128 squares = 0, floats = 0;
    for (size_t i = 0; i < N; i++) {
        x[i] = draw(i, -10, 4);
        squares += (__float128)x[i] * (__float128)x[i];
        floats += (__float128)x[i];
    }
    check_group(x, N, (double)squares, (double)floats, 0);
    free(x);
}

Test(fixsum, any_order_and_any_partition_gives_the_same_limbs) {
    enum { N = 9001 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    int64_t *perm = malloc(N * sizeof *perm);
    for (size_t i = 0; i < N; i++)
        x[i] = draw(i, -70, 14); /* some blocks take the slow path, some the fast one */
    for (int square = 0; square < 2; square++) {
        struct zt_fixsum want = by_definition(x, N, square);
        for (uint64_t seed = 0; seed < 20; seed++) {
            cr_assert_eq(zt_randperm(N, seed, perm), 0);
            for (size_t i = 0; i < N; i++) y[i] = x[perm[i]];
            /* split into uneven parts, each its own sum, merged in two ways */
            struct zt_fixsum merged, words;
            zt_fixsum_zero(&merged);
            zt_fixsum_zero(&words);
            for (size_t at = 0, part = 1; at < N; part++) {
                size_t len = (part * 7919 * (seed + 1)) % 4999 + (part & 1);
                if (len > N - at) len = N - at;
                struct zt_fixsum one;
                zt_fixsum_zero(&one);
                if (square)
                    zt_fixsum_add_squares(&one, y + at, len);
                else
                    zt_fixsum_add_floats(&one, y + at, len);
                zt_fixsum_merge(&merged, &one);
                for (int w = 0; w < ZT_FIXSUM_WORDS; w++)
                    words.word[w] += one.word[w]; /* what an all-reduce does */
                at += len;
            }
            zt_fixsum_normalise(&words);
            cr_assert(same(&merged, &want) && same(&words, &want), "seed %d", (int)seed);
        }
    }
    free(x);
    free(y);
    free(perm);
}

Test(fixsum, every_length_and_offset) {
    float x[64];
    for (size_t i = 0; i < 64; i++) x[i] = draw(i + 5000, -60, 10);
    for (size_t at = 0; at < 20; at++)
        for (size_t n = 0; at + n <= 64; n++)
            for (int square = 0; square < 2; square++) {
                struct zt_fixsum want = by_definition(x + at, n, square), got;
                zt_fixsum_zero(&got);
                if (square)
                    zt_fixsum_add_squares(&got, x + at, n);
                else
                    zt_fixsum_add_floats(&got, x + at, n);
                cr_assert(same(&got, &want), "at %zu n %zu", at, n);
            }
}

Test(fixsum, rounds_once_to_nearest_even) {
    static const struct {
        double a, b, c, want;
    } row[] = {
        {1, 0x1p-53, 0, 1},                             /* tie, even below */
        {1, 0x1p-53, 0x1p-104, 1 + 0x1p-52},            /* just above the tie */
        {1 + 0x1p-52, 0x1p-53, 0, 1 + 0x1p-51},         /* tie, even above */
        {1 + 0x1p-52, 0x1p-53, -0x1p-104, 1 + 0x1p-52}, /* just below the tie */
        {-1, -0x1p-53, 0, -1},
        {-1, -0x1p-53, -0x1p-104, -1 - 0x1p-52},
        {0x1p37, 0x1p-104, 0, 0x1p37},
        {0x1p37, -0x1p37, 0x1p-104, 0x1p-104}, /* nothing lost to cancellation */
        {0x1p37, -0x1p37, -0x1.8p-100, -0x1.8p-100},
        {0x1.fffffffffffffp0, 0x1p-53, 0, 2}, /* carry into a new power of two */
        {0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_fixsum s;
        zt_fixsum_zero(&s);
        zt_fixsum_add(&s, row[i].a);
        zt_fixsum_add(&s, row[i].b);
        zt_fixsum_add(&s, row[i].c);
        cr_assert_eq(zt_fixsum_value(&s), row[i].want, "row %zu: %a", i, zt_fixsum_value(&s));
    }
}

Test(fixsum, rounds_each_addend_to_the_grid) {
    static const struct {
        double x, want;
    } row[] = {
        {0x1.8p-105, 0x1p-104},
        {0x1p-105, 0},
        {0x1.0000000000001p-105, 0x1p-104}, /* 0.75, tie, above it */
        {0x1.8p-104, 0x1p-103},
        {0x1.4p-103, 0x1p-103},
        {0x1.cp-103, 0x1p-102}, /* 1.5, 2.5, 3.5 units */
        {0x1p-300, 0},
        {0x1p-1074, 0},
        {0x1p-64 + 0x1p-105, 0x1p-64},
        {0x1.8p-64, 0x1.8p-64},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int negative = 0; negative < 2; negative++) {
            double sign = negative ? -1 : 1;
            struct zt_fixsum s;
            zt_fixsum_zero(&s);
            for (int k = 0; k < 3; k++) /* alone, not as a sum */
                zt_fixsum_add(&s, sign * row[i].x);
            cr_assert_eq(zt_fixsum_value(&s), 3 * sign * row[i].want, "row %zu: %a", i,
                         zt_fixsum_value(&s));
        }
}

/* Ties and near-ties at every level of the fast path, whatever was added before them. */
Test(fixsum, fast_path_ties_do_not_depend_on_what_came_before) {
    static const float hard[] = {0x1p-25f,        0x1.8p-25f,      0x1.000002p-25f,  0x1p-65f,
                                 0x1.8p-65f,      0x1.000002p-65f, 0x1p-105f,        0x1.8p-105f,
                                 0x1.8p-104f,     0x1.4p-103f,     0x1.000002p-105f, 0x1p-24f,
                                 0x1.fffffep-26f, 0x1.fffffep-66f, 0x1.fffffep-106f, 0x1p17f};
    enum { N = 2048 };
    float x[N];
    for (int square = 0; square < 2; square++)
        for (uint64_t seed = 0; seed < 50; seed++) {
            for (uint64_t i = 0; i < N; i++) {
                uint32_t w[4];
                zt_rng_words(seed, ZT_RNG_TEST, 1, 0, i, w);
                float v = hard[w[0] % 16];
                if (square) /* exact squares near the same places */
                    v = (float)ldexp((double)(float)sqrt((double)v), (int)(w[3] % 2));
                x[i] = (w[1] & 1u) ? -v : v;
            }
            struct zt_fixsum want = by_definition(x, N, square), got;
            zt_fixsum_zero(&got);
            if (square)
                zt_fixsum_add_squares(&got, x, N);
            else
                zt_fixsum_add_floats(&got, x, N);
            cr_assert(same(&got, &want), "seed %d square %d", (int)seed, square);
        }
}

/* Big addends that cancel: the running sum wanders far and comes back. */
Test(fixsum, cancelling_addends) {
    enum { N = 2048 };
    float x[N];
    int64_t perm[N];
    for (int high = 16; high < 31; high++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            cr_assert_eq(zt_randperm(N, seed, perm), 0);
            for (int i = 0; i < N; i += 2) {
                uint64_t at = seed * N + (uint64_t)i;
                float v = draw(at, (i & 2) ? high : -70, (i & 2) ? high : -20);
                x[perm[i]] = v;
                x[perm[i + 1]] = (i & 2) ? -v : draw(at + 1, -70, -20);
            }
            struct zt_fixsum want = by_definition(x, N, false), got;
            zt_fixsum_zero(&got);
            zt_fixsum_add_floats(&got, x, N);
            cr_assert(same(&got, &want), "2^%d seed %d", high, (int)seed);
        }
}

Test(fixsum, many_addends_do_not_overflow_a_limb) {
    /* 2^24 equal addends: the sum is their square times 2^24, exactly */
    struct zt_fixsum s, t;
    zt_fixsum_zero(&s);
    float x[4096];
    for (int i = 0; i < 4096; i++)
        x[i] = 0x1.fffffep8f; /* squares just below 2^18, every bit of theirs set */
    for (int i = 0; i < 4096; i++) zt_fixsum_add_squares(&s, x, 4096);
    double square = (double)x[0] * (double)x[0];
    cr_assert_eq(zt_fixsum_value(&s), square * 0x1p24);
    /* 2^20 ranks' words, each near 2^38, added without a carry between */
    zt_fixsum_zero(&t);
    struct zt_fixsum one;
    zt_fixsum_zero(&one);
    zt_fixsum_add(&one, 0x1.fffffffffffffp36);
    for (int i = 0; i < 1 << 20; i++)
        for (int w = 0; w < ZT_FIXSUM_WORDS; w++) t.word[w] += one.word[w];
    cr_assert_eq(zt_fixsum_value(&t), 0x1.fffffffffffffp56);
    for (int w = 0; w < ZT_FIXSUM_WORDS; w++) t.word[w] = -t.word[w];
    cr_assert_eq(zt_fixsum_value(&t), -0x1.fffffffffffffp56);
}

static void expect_flag(const float *x, size_t n, size_t at, float bad, bool square) {
    float y[64];
    memcpy(y, x, n * sizeof *y);
    y[at] = bad;
    struct zt_fixsum s, d = by_definition(y, n, square);
    zt_fixsum_zero(&s);
    if (square)
        zt_fixsum_add_squares(&s, y, n);
    else
        zt_fixsum_add_floats(&s, y, n);
    cr_assert(isnan(zt_fixsum_value(&s)) && s.word[3] == 1 && same(&s, &d), "%g at %zu",
              (double)bad, at);
    struct zt_fixsum clean;
    zt_fixsum_zero(&clean);
    zt_fixsum_add(&clean, 1);
    zt_fixsum_merge(&clean, &s); /* the flag travels */
    cr_assert(isnan(zt_fixsum_value(&clean)));
}

Test(fixsum, flags_what_does_not_fit) {
    float x[64];
    for (size_t i = 0; i < 64; i++) x[i] = draw(i, -5, 5);
    for (size_t at = 0; at < 64; at++) {
        expect_flag(x, 64, at, (float)NAN, true);
        expect_flag(x, 64, at, (float)INFINITY, true);
        expect_flag(x, 64, at, -(float)INFINITY, false);
        expect_flag(x, 64, at, (float)NAN, false);
        expect_flag(x, 64, at, 0x1p19f, true); /* its square is 2^38 */
        expect_flag(x, 64, at, -0x1p38f, false);
        expect_flag(x, 64, at, 3e38f, true);
    }
    struct zt_fixsum s;
    zt_fixsum_zero(&s);
    zt_fixsum_add(&s, nextafter(0x1p38, 0)); /* the largest that does */
    cr_assert_eq(zt_fixsum_value(&s), nextafter(0x1p38, 0));
    zt_fixsum_add(&s, 0x1p38);
    cr_assert(isnan(zt_fixsum_value(&s)));
}

Test(fixsum, a_sum_out_of_range_is_flagged_and_stays_so) {
    struct zt_fixsum s, big;
    zt_fixsum_zero(&big);
    big.word[4] = (int64_t)1 << 41; /* 2^57 */
    s = big;
    cr_assert_eq(zt_fixsum_value(&s), 0x1p57);
    zt_fixsum_merge(&s, &big);
    cr_assert(isnan(zt_fixsum_value(&s)));
    for (int i = 0; i < 100; i++) zt_fixsum_merge(&s, &s);
    cr_assert(isnan(zt_fixsum_value(&s)));
}
