/* SPDX-License-Identifier: Apache-2.0 */
/* What zctl drill calls equal: every field of every step, and the first that differs is named with both values; nothing
 * that nobody reported is equal. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "clients/zctl/drill.h"

#define N 6
static struct zt_drill_step a[N], b[N];
static struct zt_drill_difference d;

static void make(struct zt_drill_step *s) {
    for (int i = 0; i < N; i++) {
        s[i] = (struct zt_drill_step){.step = i + 1, .lr = 1e-3 * (i + 1), .loss = 5.5 - 0.1 * i, .grad_norm = 1.25, .loss_scale = NAN,
                                      .eval_loss = i == 2 ? 5.0 : NAN, .tokens = 64, .global_batch = 8};
        snprintf(s[i].sample_hash, sizeof s[i].sample_hash, "%016x", 17 * i + 1);
        snprintf(s[i].parameter_hash, sizeof s[i].parameter_hash, "%032x", 31 * i + 1);
        snprintf(s[i].state_hash, sizeof s[i].state_hash, "%032x", 37 * i + 1);
    }
}

static bool equal(enum zt_drill_how how) {
    memset(&d, 0, sizeof d);
    return zt_drill_equal(a, N, b, N, N, how, &d);
}

static void both(void) {
    make(a);
    make(b);
}

Test(drill, the_same_is_equal, .init = both) {
    cr_expect(equal(ZT_DRILL_EXACT));
    cr_expect(equal(ZT_DRILL_CLOSE));
}

/* Each field in turn, in the last step. */
#define DIFFERS(how, change, name)                                                                                    \
    do {                                                                                                              \
        both();                                                                                                       \
        struct zt_drill_step *s = &b[N - 1];                                                                          \
        change;                                                                                                       \
        cr_expect_not(equal(how), "%s", name);                                                                        \
        cr_expect(d.step == N && d.field && strcmp(d.field, name) == 0, "step %lld %s, not %s", (long long)d.step,    \
                  d.field ? d.field : "-", name);                                                                     \
    } while (0)

Test(drill, every_field_counts) {
    for (int how = ZT_DRILL_EXACT; how <= ZT_DRILL_CLOSE; how++) {
        DIFFERS((enum zt_drill_how)how, s->step = 9, "step");
        DIFFERS((enum zt_drill_how)how, s->lr = nextafter(s->lr, 1), "lr");
        DIFFERS((enum zt_drill_how)how, s->sample_hash[15] = 'f', "sample_hash");
        DIFFERS((enum zt_drill_how)how, s->tokens++, "tokens");
        DIFFERS((enum zt_drill_how)how, s->global_batch--, "global_batch");
        DIFFERS((enum zt_drill_how)how, s->loss_scale = 2, "loss_scale");
        DIFFERS((enum zt_drill_how)how, s->loss *= 1 + 2e-5, "loss");
        DIFFERS((enum zt_drill_how)how, s->grad_norm *= 1 + 2e-5, "grad_norm");
        DIFFERS((enum zt_drill_how)how, s->eval_loss = 1, "eval_loss");
    }
    DIFFERS(ZT_DRILL_EXACT, s->loss = nextafter(s->loss, 9), "loss");
    DIFFERS(ZT_DRILL_EXACT, s->grad_norm = nextafter(s->grad_norm, 9), "grad_norm");
    DIFFERS(ZT_DRILL_EXACT, s->parameter_hash[0] = 'f', "parameter_hash");
    DIFFERS(ZT_DRILL_EXACT, s->state_hash[0] = 'f', "state_hash");
}

/* On another mesh sums are added in another order: figures agree, bits need not. */
Test(drill, another_mesh_is_close, .init = both) {
    b[3].loss *= 1 + 0.9e-5;
    b[3].grad_norm *= 1 - 0.9e-5;
    b[3].parameter_hash[0] = b[3].state_hash[0] = 'f';
    cr_expect(equal(ZT_DRILL_CLOSE));
    cr_expect_not(equal(ZT_DRILL_EXACT));
    cr_expect_str_eq(d.field, "loss");
}

Test(drill, the_first_difference_is_told_with_both_values, .init = both) {
    b[4].loss = 1;
    b[1].lr = 0.5;
    b[1].loss = 1;
    cr_expect_not(equal(ZT_DRILL_EXACT));
    cr_expect_eq(d.step, 2);
    cr_expect_str_eq(d.field, "lr");
    cr_expect_str_eq(d.straight, "0.002");
    cr_expect_str_eq(d.resumed, "0.5");
}

/* Two runs in which nobody computed a hash would agree on nothing. */
Test(drill, what_was_not_reported_is_not_equal, .init = both) {
    a[5].parameter_hash[0] = b[5].parameter_hash[0] = '\0';
    cr_expect_not(equal(ZT_DRILL_EXACT));
    cr_expect_str_eq(d.field, "parameter_hash");
    cr_expect_str_eq(d.straight, "not reported");
    cr_expect_str_eq(d.resumed, "not reported");
    both();
    a[0].loss = b[0].loss = NAN;
    cr_expect_not(equal(ZT_DRILL_CLOSE));
    cr_expect_str_eq(d.field, "loss");
    both();
    a[0].sample_hash[0] = b[0].sample_hash[0] = '\0';
    cr_expect_not(equal(ZT_DRILL_CLOSE));
    cr_expect_str_eq(d.field, "sample_hash");
    both();
    a[0].tokens = b[0].tokens = -1;
    cr_expect_not(equal(ZT_DRILL_CLOSE));
    cr_expect_str_eq(d.field, "tokens");
}

Test(drill, missing_steps_are_a_difference, .init = both) {
    cr_expect_not(zt_drill_equal(a, N, b, N - 1, N, ZT_DRILL_EXACT, &d));
    cr_expect(d.step == N && strcmp(d.field, "step") == 0);
    cr_expect_str_eq(d.resumed, "not reported");
    cr_expect_not(zt_drill_equal(a, 0, b, 0, N, ZT_DRILL_EXACT, &d), "nothing is not equal to nothing");
    memmove(&b[2], &b[3], 3 * sizeof b[0]); /* a hole */
    cr_expect_not(zt_drill_equal(a, N, b, N - 1, N, ZT_DRILL_EXACT, &d));
    cr_expect_eq(d.step, 3);
    cr_expect_str_eq(d.resumed, "4");
}
