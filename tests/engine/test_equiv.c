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
