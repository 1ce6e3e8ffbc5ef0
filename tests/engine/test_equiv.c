/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_equiv.c: the sharding mode and every option change memory and traffic, never
 * the result: parameters, moments, losses and norms bit for bit, against the reference of equiv.h
 * that has no collective and no shard in it. */
#include <criterion/criterion.h>

#include "tests/engine/equiv_product.h"

#define STEPS 20

/* Runs the case and holds it against its reference; says what differs. */
static int differs(const struct eq_case *c) {
    char text[EQ_WHY], why[EQ_WHY] = "a rank failed";
    struct eq_job *reference = eq_reference_of(c), *j = eq_run(c);
    bool same = reference && j && eq_same(j, reference, why);
    if (!same) fprintf(stderr, "%s: %s\n", eq_text(c, text), why);
    if (j) eq_free(j);
    return !same;
}

Test(equiv, pairwise_cover_of_all_options, .timeout = 600) {
    static int rows[EQ_ROWS_MAX][EQ_FACTORS];
    static struct eq_pairs pairs;
    int n = eq_pairwise(rows, &pairs), bad = 0;
    cr_assert_eq(eq_pairs_missing(&pairs), 0, "%d pairs are not covered", eq_pairs_missing(&pairs));
    for (int i = 0; i < n; i++) {
        struct eq_case c = eq_case_of(rows[i], STEPS);
        bad += differs(&c);
    }
    cr_assert_eq(bad, 0, "%d of %d cases differ from their reference", bad, n);
}

/* Eight ranks, every mode once with options that differ from mode to mode. */
Test(equiv, eight_ranks, .timeout = 300) {
    int bad = 0;
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        int row[EQ_FACTORS] = {m,     3,     m % 2,  m,      m,      m % 4,
                               m % 3, m % 3, m == 2, m == 3, m == 4, m % 2};
        for (int i = 0; i < EQ_FACTORS; i++) row[i] %= i == EQ_WORLD ? 5 : eq_levels[i];
        eq_fix(row);
        struct eq_case c = eq_case_of(row, STEPS);
        bad += differs(&c);
    }
    cr_assert_eq(bad, 0, "%d modes differ from their reference", bad);
}

/* The sums' order differs between numbers of ranks, the numbers do not by more than rounding. */
Test(equiv, worlds_agree_at_one_global_batch, .timeout = 300) {
    for (int clip = 0; clip < 2; clip++) {
        struct eq_case c = {
            .world = 1, .shard = 1, .micros = 1, .steps = STEPS, .rows = 24, .clip = clip};
        struct eq_job *one = eq_reference_of(&c);
        cr_assert(one);
        cr_assert_lt(eq_loss(one, STEPS, 1), eq_loss(one, 1, 1) - 0.01, "it trains");
        cr_assert_gt(one->step[STEPS][0].norm, 0.25, "the clip is at work to the end");
        for (c.world = 2; c.world <= 8; c.world += c.world == 4 ? 4 : 1) {
            struct eq_job *j = eq_reference_of(&c);
            cr_assert(j);
            cr_assert_lt(eq_loss_distance(j, 1, one, 1), 1e-6, "world %d: losses %g", c.world,
                         eq_loss_distance(j, 1, one, 1));
            cr_assert_lt(eq_gradient_distance(j, one), 1e-6, "world %d: gradients %g", c.world,
                         eq_gradient_distance(j, one));
        }
    }
}

/* Reduced once per window or every micro-step: rounding apart, and only by that. */
Test(equiv, classes_agree, .timeout = 300) {
    struct eq_case a = {.world = 4,
                        .shard = 4,
                        .micros = 2,
                        .steps = STEPS,
                        .rows = 24,
                        .mode = ZT_ZERO1},
                   b = a;
    b.mode = ZT_ZERO2;
    struct eq_job *x = eq_reference_of(&a), *y = eq_reference_of(&b);
    cr_assert(x && y);
    cr_assert_lt(eq_loss_distance(x, 1, y, 1), 1e-6);
    cr_assert_lt(eq_gradient_distance(x, y), 1e-6);
    cr_assert(eq_differ(eq_hash(x, STEPS, 0, false), eq_hash(y, STEPS, 0, false)),
              "two classes, not one");
}

/* Shards within replicas: bit for bit the sum that nests the same way, equal on all replicas, and
 * rounding apart from the flat sum of ddp. */
Test(equiv, hybrid, .timeout = 600) {
    static const int mesh[][2] = {{2, 2}, {2, 4}, {4, 2}};
    int bad = 0;
    for (int i = 0; i < 3; i++)
        for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            int row[EQ_FACTORS] = {m,     0, (m + i) % 2, m + i,  m,      i,
                                   m % 3, i, i == 1,      m == 3, m == 4, i % 2};
            for (int k = 0; k < EQ_FACTORS; k++) row[k] %= eq_levels[k];
            eq_fix(row);
            struct eq_case c = eq_case_of(row, STEPS), flat;
            c.world = mesh[i][0] * mesh[i][1];
            c.shard = mesh[i][1];
            c.reshard_int = 2;
            c.micros = row[EQ_MICROS] ? 3 : 1;
            bad += differs(&c);
            flat = c;
            flat.mode = ZT_DDP;
            flat.shard = 1;
            struct eq_job *x = eq_reference_of(&c), *y = eq_reference_of(&flat);
            cr_assert(x && y);
            cr_assert_lt(eq_loss_distance(x, 1, y, 1), 1e-6);
            cr_assert_lt(eq_gradient_distance(x, y), 1e-6);
            cr_assert(eq_differ(eq_hash(x, STEPS, 0, false), eq_hash(y, STEPS, 0, false)));
        }
    cr_assert_eq(bad, 0, "%d cases differ from their reference", bad);
}

/* The comparison sees a single bit: other ranks, other class, other clip are told apart. */
Test(equiv, the_comparison_can_fail, .timeout = 100) {
    char why[EQ_WHY];
    struct eq_case c = {
        .world = 2, .shard = 2, .mode = ZT_ZERO2, .micros = 3, .steps = 2, .rows = 24};
    struct eq_job *j = eq_run(&c), *own = eq_reference_of(&c);
    cr_assert(j && own);
    cr_assert(eq_same(j, own, why), "%s", why);
    eq_data(j, 0, EQ_M)[j->n - 1] = nextafterf(eq_data(j, 0, EQ_M)[j->n - 1], 1);
    cr_assert(!eq_same(j, own, why));
    cr_assert(strstr(why, ", m ") && strstr(why, "h.4.mlp.c_proj.bias"), "%s", why);
    c.mode = ZT_ZERO1;
    cr_assert(!eq_same(j, eq_reference_of(&c), why));
    eq_free(j);
}
