/* SPDX-License-Identifier: Apache-2.0 */
/* Philox against the authors' known answers, the counter layout and normals against an independent
 * program, MT19937 against its paper's values. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/rng.h"
#include "tests/core/golden.h"

Test(rng, philox_known_answers) {
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t out[4];
        zt_philox4x32(kat[i].ctr, kat[i].key, out);
        cr_assert_arr_eq(out, kat[i].out, sizeof out, "vector %zu", i);
    }
}

Test(rng, counter_layout_and_normals) {
    FILE *f = golden_open("rng.txt");
    char line[512];
    int rows = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        char *p = line;
        int64_t v[9];
        double z;
        for (int i = 0; i < 9; i++) cr_assert(golden_int(&p, &v[i]));
        cr_assert(golden_double(&p, &z));
        uint32_t w[4];
        uint64_t seed = (uint64_t)v[0], index = (uint64_t)v[4];
        zt_rng_words(seed, (enum zt_purpose)v[1], (uint32_t)v[2], (uint32_t)v[3], index, w);
        for (int i = 0; i < 4; i++)
            cr_assert_eq(w[i], (uint32_t)v[5 + i], "row %d word %d", rows, i);
        double got =
            zt_rng_normal(seed, (enum zt_purpose)v[1], (uint32_t)v[2], (uint32_t)v[3], index);
        cr_assert(fabs(got - z) <= 4e-16 * fmax(1.0, fabs(z)), "row %d: %a, want %a", rows, got, z);
        rows++;
    }
    fclose(f);
    cr_assert_eq(rows, 60);
}

/* Moments of 200,000 draws, each within 5 standard errors (a fixed seed: never flaky). */
Test(rng, normals_are_standard_and_independent) {
    enum { N = 200000 };
    double sum = 0, squares = 0, fourth = 0, neighbour = 0, last = 0;
    int tail = 0;
    for (int i = 0; i < N; i++) {
        double z = zt_rng_normal(42, ZT_RNG_INIT, 0, 5, (uint64_t)i);
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
        neighbour += z * last;
        tail += fabs(z) > 1.959963984540054;
        last = z;
    }
    double se = 1 / sqrt((double)N);
    cr_assert(fabs(sum / N) < 5 * se);
    cr_assert(fabs(squares / N - 1) < 5 * sqrt(2) * se);
    cr_assert(fabs(fourth / N - 3) < 5 * sqrt(96) * se);
    cr_assert(fabs(neighbour / N) < 5 * se);
    cr_assert(fabs((double)tail / N - 0.05) < 5 * sqrt(0.05 * 0.95) * se);
}

Test(rng, mt19937_published_values) {
    struct zt_mt19937 g;
    zt_mt19937_seed(&g, 5489);
    cr_assert_eq(zt_mt19937_next(&g), 3499211612u);
    for (int i = 2; i < 10000; i++) zt_mt19937_next(&g);
    cr_assert_eq(zt_mt19937_next(&g),
                 4123659995u); /* the 10,000th, as the C++ standard states it */
}

Test(rng, randperm_is_torch) {
    FILE *f = golden_open("sampler.txt");
    char *line = NULL;
    size_t cap = 0;
    int rows = 0;
    while (getline(&line, &cap, f) > 0) {
        if (line[0] != 'P') continue;
        char *p = line + 1;
        int64_t n, seed, want, got[2000];
        cr_assert(golden_int(&p, &n) && golden_int(&p, &seed) && n <= 2000);
        cr_assert_eq(zt_randperm(n, (uint64_t)seed, got), 0);
        for (int64_t i = 0; i < n; i++) {
            cr_assert(golden_int(&p, &want));
            cr_assert_eq(got[i], want, "n %" PRId64 " seed %" PRId64 " place %" PRId64, n, seed, i);
        }
        rows++;
    }
    free(line);
    fclose(f);
    cr_assert_eq(rows, 7);
}

Test(rng, randperm_refuses_what_it_cannot_imitate) {
    int64_t unused = -7;
    cr_assert_eq(zt_randperm(214748364, 0, &unused), ZT_EUNSUPPORTED);
    cr_assert_eq(zt_randperm(-1, 0, &unused), ZT_EUNSUPPORTED);
    cr_assert_eq(zt_randperm(0, 0, &unused), 0);
    cr_assert_eq(unused, -7);
}
