/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_equiv_plain.c: equivalence under a plain main, for ThreadSanitizer, which
 * Criterion does not survive, and for the soak.
 *
 *   test_equiv_plain                    B11: zero2 for 50 steps, overlap on and off, small, default
 *                                       and huge buckets; then each mode at its busiest
 *   test_equiv_plain --product [N]      N cases (all when left out) of the whole product of options
 *                                       in a scattered order; clip, threads, delays and
 *                                       transport take turns */
#include "tests/engine/equiv_product.h"

static int differs(const struct eq_case *c) {
    char text[EQ_WHY], why[EQ_WHY] = "a rank failed";
    struct eq_job *reference = eq_reference_of(c), *j = eq_run(c);
    bool same = reference && j && eq_same(j, reference, why);
    if (!same) fprintf(stderr, "%s: %s\n", eq_text(c, text), why);
    if (j) eq_free(j);
    return !same;
}

static int small_set(void) {
    static const double bucket[] = {0.0625, 0, 100}; /* 64 KiB, one per unit, one for all */
    int bad = 0;
    for (int overlap = 0; overlap < 2; overlap++)
        for (int i = 0; i < 3; i++) {
            struct eq_case c = {.world = 2,
                                .shard = 2,
                                .mode = ZT_ZERO2,
                                .micros = 2,
                                .steps = EQ_STEPS_MAX,
                                .rows = 4,
                                .prefetch = 1,
                                .bucket_mib = bucket[i],
                                .no_overlap = !overlap,
                                .poison = true,
                                .delays = (uint64_t)i + 1};
            bad += differs(&c);
        }
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        struct eq_case c = {.world = 4,
                            .shard = m == ZT_DDP ? 1 : 2,
                            .mode = (enum zt_mode)m,
                            .micros = 2,
                            .steps = 3,
                            .rows = 8,
                            .clip = true,
                            .prefetch = 2,
                            .inflight = 2,
                            .bucket_mib = 0.004,
                            .threads = 2,
                            .poison = true,
                            .per_host = m % 3,
                            .delays = (uint64_t)m + 1};
        bad += differs(&c);
    }
    return bad;
}

/* Case `i` of the product: mixed radix over the factors before EQ_CLIP. False: a level that its
 * mode does not know, so the case is another one's twin. */
static bool product_case(int64_t i, struct eq_case *c) {
    int row[EQ_FACTORS] = {0}, fixed[EQ_FACTORS];
    int64_t rest = i;
    for (int f = 0; f < EQ_CLIP; f++) {
        int levels = f == EQ_WORLD ? 5 : eq_levels[f];
        row[f] = (int)(rest % levels);
        rest /= levels;
    }
    row[EQ_CLIP] = (int)(i * 7 / 3 % 2);
    row[EQ_THREADS] = (int)(i * 11 / 5 % 3);
    row[EQ_DELAYS] = (int)(i * 13 / 7 % 2);
    row[EQ_TRANSPORT] = (int)(i * 17 / 11 % 3);
    memcpy(fixed, row, sizeof row);
    eq_fix(fixed);
    *c = eq_case_of(row, 20);
    return !memcmp(fixed, row, sizeof row);
}

static int product(int64_t most) {
    const int64_t step = 2147483647; /* a prime: i * step mod n meets every i once */
    int64_t n = 1, runs = 0, bad = 0;
    struct eq_case c;
    for (int f = 0; f < EQ_CLIP; f++) n *= f == EQ_WORLD ? 5 : eq_levels[f];
    for (int64_t i = 0; i < n && runs < most; i++)
        if (product_case(i * (step % n) % n, &c)) {
            bad += differs(&c);
            if (++runs % 500 == 0)
                printf("%lld cases, %lld differ\n", (long long)runs, (long long)bad);
        }
    printf("%lld cases, %lld differ\n", (long long)runs, (long long)bad);
    return bad != 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--product"))
        return product(argc > 2 ? strtoll(argv[2], NULL, 10) : INT64_MAX);
    return small_set() != 0;
}
