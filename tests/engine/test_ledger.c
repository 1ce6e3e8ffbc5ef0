/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_ledger.c: the memory ledger against a diary worked out by hand. */
#include <criterion/criterion.h>
#include "engine/device/ledger.h"

static void sums(const struct zt_ledger *l) {
    int64_t now = 0, peak = 0;
    for (int t = 0; t < ZT_TAG_COUNT; t++) {
        now += l->block[t];
        peak += l->at_peak[t];
        cr_assert_leq(l->requested[t], l->block[t]);
        cr_assert_leq(l->at_peak[t], l->category_max[t]);
    }
    cr_assert_eq(now, l->allocated);
    cr_assert_eq(peak, l->peak_allocated);
    cr_assert_geq(l->peak_reserved, l->peak_allocated);
}

Test(ledger, names) {
    const char *tags[] = {"parameters",  "gradients", "optimizer",
                          "activations", "temporary", "communication"};
    const char *phases[] = {"init", "forward", "backward", "optimizer", "eval", "save", "load"};
    for (int i = 0; i < ZT_TAG_COUNT; i++) cr_assert_str_eq(zt_tag_name((enum zt_tag)i), tags[i]);
    for (int i = 0; i < ZT_PHASE_COUNT; i++)
        cr_assert_str_eq(zt_phase_name((enum zt_phase)i), phases[i]);
    cr_assert_str_eq(zt_tag_name(ZT_TAG_COUNT), "unknown");
    cr_assert_str_eq(zt_phase_name((enum zt_phase) - 1), "unknown");
}

/* parameters 1024 (512+... asked 600 -> 1024 requested, block 1536), activations grow and go while
 * gradients come: the peak is one instant, not the sum of the categories' own maxima. */
Test(ledger, composition_is_that_of_one_instant) {
    struct zt_ledger l;
    zt_ledger_init(&l);
    zt_ledger_reserve(&l, 20000);
    zt_ledger_alloc(&l, ZT_TAG_PARAMETERS, 1024, 1536);
    zt_ledger_set_phase(&l, ZT_PHASE_FORWARD);
    zt_ledger_alloc(&l, ZT_TAG_ACTIVATIONS, 4096, 4096);
    zt_ledger_alloc(&l, ZT_TAG_ACTIVATIONS, 2048, 2048); /* 7680: the peak */
    zt_ledger_set_phase(&l, ZT_PHASE_BACKWARD);
    zt_ledger_free(&l, ZT_TAG_ACTIVATIONS, 2048, 2048);
    zt_ledger_alloc(&l, ZT_TAG_GRADIENTS, 1024, 1024);
    zt_ledger_alloc(&l, ZT_TAG_GRADIENTS, 1024, 1024); /* 7680 again: the first instant stays */
    sums(&l);
    cr_assert_eq(l.peak_allocated, 7680);
    cr_assert_eq(l.phase_of_peak, ZT_PHASE_FORWARD);
    cr_assert_eq(l.at_peak[ZT_TAG_PARAMETERS], 1536);
    cr_assert_eq(l.at_peak[ZT_TAG_ACTIVATIONS], 6144);
    cr_assert_eq(l.at_peak[ZT_TAG_GRADIENTS], 0);
    cr_assert_eq(l.category_max[ZT_TAG_GRADIENTS], 2048);
    cr_assert_eq(l.requested[ZT_TAG_PARAMETERS], 1024);
    cr_assert_eq(l.block[ZT_TAG_PARAMETERS], 1536);
    cr_assert_eq(l.reserved_at_peak, 20000);
    cr_assert_eq(l.max_unused_reserved, 20000 - 1536);
    zt_ledger_alloc(&l, ZT_TAG_TEMPORARY, 512, 512);
    sums(&l);
    cr_assert_eq(l.phase_of_peak, ZT_PHASE_BACKWARD);
    cr_assert_eq(l.at_peak[ZT_TAG_GRADIENTS], 2048);
    cr_assert_eq(l.at_peak[ZT_TAG_ACTIVATIONS], 4096);
}

/* After a reset no peak is below what is live (a reset must never wipe live bytes). */
Test(ledger, reset_forgets_the_past_not_the_present) {
    struct zt_ledger l;
    zt_ledger_init(&l);
    zt_ledger_reserve(&l, 8192);
    zt_ledger_alloc(&l, ZT_TAG_PARAMETERS, 2048, 2048);
    zt_ledger_alloc(&l, ZT_TAG_TEMPORARY, 4096, 4096);
    zt_ledger_free(&l, ZT_TAG_TEMPORARY, 4096, 4096);
    zt_ledger_reserve(&l, -4096);
    zt_ledger_set_phase(&l, ZT_PHASE_EVAL);
    zt_ledger_reset_peaks(&l);
    sums(&l);
    cr_assert_eq(l.peak_allocated, 2048);
    cr_assert_eq(l.peak_reserved, 4096);
    cr_assert_eq(l.reserved_at_peak, 4096);
    cr_assert_eq(l.phase_of_peak, ZT_PHASE_EVAL);
    cr_assert_eq(l.category_max[ZT_TAG_TEMPORARY], 0);
    cr_assert_eq(l.max_unused_reserved, 2048);
    cr_assert_eq(l.block[ZT_TAG_PARAMETERS], 2048);
    zt_ledger_free(&l, ZT_TAG_PARAMETERS, 2048, 2048);
    sums(&l);
    cr_assert_eq(l.allocated, 0);
    cr_assert_eq(l.peak_allocated, 2048);
    cr_assert_eq(l.max_unused_reserved, 4096);
}

static int dies(struct zt_ledger *l) {
    zt_ledger_free(l, ZT_TAG_OPTIMIZER, 512, 512);
    return 0;
}
Test(ledger, freeing_what_is_not_there_is_a_broken_invariant, .signal = 6) {
    struct zt_ledger l;
    zt_ledger_init(&l);
    dies(&l);
}
