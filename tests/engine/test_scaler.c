/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_scaler.c: the loss scale, step by step. Expected values: the worked table of
 * torch.cuda.amp.GradScaler (growth interval 2), and DeepSpeed's dynamic scaler walked by hand:
 * window 4, hysteresis 2. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/optim/scaler.h"

/* Steps as letters: o = good, x = overflow. */
static void expect(struct zt_loss_scaler *s, const char *steps, const double *scale) {
    for (int i = 0; steps[i]; i++) {
        zt_loss_scaler_update(s, steps[i] == 'x');
        cr_assert_eq(s->scale, scale[i], "after step %d (%c): %g, expected %g", i + 1, steps[i],
                     s->scale, scale[i]);
    }
}

Test(scaler, defaults) {
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_TORCH);
    cr_assert(s.scale == 65536 && s.growth == 2 && s.backoff == 0.5 && s.interval == 2000);
    zt_loss_scaler_init(&s, ZT_SCALER_DEEPSPEED);
    cr_assert(s.scale == 65536 && s.interval == 1000 && s.hysteresis == 2 && s.least == 1);
}

Test(scaler, torch_table) {
    static const double want[] = {65536, 131072, 65536, 65536, 32768, 32768, 65536};
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_TORCH);
    s.interval = 2;
    expect(&s, "ooxoxoo", want);
}

/* An overflow in between starts the count anew: 1999 good, one bad, 1999 good: no growth yet. */
Test(scaler, torch_counts_good_steps_in_a_row) {
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_TORCH);
    for (int i = 0; i < 1999; i++) zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 65536);
    zt_loss_scaler_update(&s, true);
    for (int i = 0; i < 1999; i++) zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 32768);
    zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 65536);
}

Test(scaler, grows_only_while_finite) {
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_TORCH);
    s.interval = 1;
    s.scale = 0x1p126;
    zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 0x1p127);
    zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 0x1p127, "2^128 is not finite in fp32");
}

Test(scaler, torch_never_reaches_zero) {
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_TORCH);
    for (int i = 0; i < 5000; i++) zt_loss_scaler_update(&s, true);
    cr_assert(s.scale > 0 && isfinite((float)(1.0 / s.scale)));
}

/* Window 4, hysteresis 2. x: only the hysteresis goes (65536). x: half (32768). o o o o: the fourth
 * good step in a row doubles (65536) and fills the hysteresis. x: hysteresis again. o o o: three
 * good. x: the hysteresis was not filled, as nothing grew: half. */
Test(scaler, deepspeed_walk) {
    static const double want[] = {65536, 32768, 32768, 32768, 32768, 65536,
                                  65536, 65536, 65536, 65536, 32768};
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_DEEPSPEED);
    s.interval = 4;
    expect(&s,
           "xxoooo"
           "xooox",
           want);
}

Test(scaler, deepspeed_floor) {
    struct zt_loss_scaler s;
    zt_loss_scaler_init(&s, ZT_SCALER_DEEPSPEED);
    for (int i = 0; i < 17; i++) zt_loss_scaler_update(&s, true);
    cr_assert_eq(s.scale, 1, "one for the hysteresis, sixteen halvings");
    cr_assert(zt_loss_scaler_exhausted(&s));
    zt_loss_scaler_update(&s, true);
    cr_assert_eq(s.scale, 1);
    for (int i = 0; i < 1000; i++) zt_loss_scaler_update(&s, false);
    cr_assert_eq(s.scale, 2);
    cr_assert_not(zt_loss_scaler_exhausted(&s));
}
