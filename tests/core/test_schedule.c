/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate factors against torch's LambdaLR and the rows of T-LR; windows by count. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/schedule.h"
#include "tests/core/golden.h"

static void expect_rows(struct zt_schedule s, const double *want, int n) {
    for (int i = 0; i < n; i++)
        cr_assert(fabs(zt_schedule_factor(&s, i) - want[i]) < 5e-7, "update %d: %.9g, want %.9g", i,
                  zt_schedule_factor(&s, i), want[i]);
}

Test(schedule, published_rows) {
    struct zt_schedule s = {.lr = 1, .warmup_steps = 2, .total_steps = 10, .decay_ratio = -1};
    s.decay = ZT_DECAY_LINEAR;
    expect_rows(s, (double[]){.5, 1, 1, .875, .75, .625, .5, .375, .25, .125}, 10);
    s.decay = ZT_DECAY_COSINE;
    s.min_lr_factor = .1;
    expect_rows(s, (double[]){.5, 1, 1, .965746, .868198, .722208, .55, .377792, .231802, .134254},
                10);
    s.min_lr_factor = 0;
    s.decay_ratio = .3;
    s.decay = ZT_DECAY_LINEAR;
    expect_rows(s, (double[]){.5, 1, 1, 1, 1, 1, 1, 1, .666667, .333333}, 10);
    s.decay = ZT_DECAY_SQRT;
    expect_rows(s, (double[]){.5, 1, 1, 1, 1, 1, 1, 1, .42265, .183503}, 10);
}

Test(schedule, equals_torch) {
    static const struct {
        const char *name;
        enum zt_decay decay;
    } kinds[] = {{"linear", ZT_DECAY_LINEAR}, {"cosine", ZT_DECAY_COSINE}, {"sqrt", ZT_DECAY_SQRT}};
    FILE *f = golden_open("schedule.txt");
    char *line = NULL;
    size_t cap = 0;
    int rows = 0;
    while (getline(&line, &cap, f) > 0) {
        if (line[0] == '#') continue;
        char kind[16];
        int used = 0;
        long long total, warmup;
        struct zt_schedule s = {.lr = 3e-4};
        cr_assert_eq(sscanf(line, "%lld %lld %15s %lf %lf%n", &total, &warmup, kind, &s.decay_ratio,
                            &s.min_lr_factor, &used),
                     5);
        s.total_steps = total;
        s.warmup_steps = warmup;
        for (int k = 0; k < 3; k++)
            if (strcmp(kind, kinds[k].name) == 0) s.decay = kinds[k].decay;
        char *p = line + used;
        for (int64_t i = 0; i < total; i++) {
            double want;
            cr_assert(golden_double(&p, &want));
            double got = zt_schedule_factor(&s, i);
            cr_assert(fabs(got - want) <= 2.3e-16 * 4, "%s update %lld: %a, want %a", kind,
                      (long long)i, got, want);
            cr_assert_eq(zt_schedule_lr(&s, i), 3e-4 * got);
        }
        rows++;
    }
    free(line);
    fclose(f);
    cr_assert_eq(rows, 216);
}

Test(schedule, edges) {
    struct zt_schedule s = {.lr = 1,
                            .warmup_steps = 3,
                            .total_steps = 10,
                            .decay = ZT_DECAY_CONSTANT,
                            .decay_ratio = -1,
                            .min_lr_factor = .1};
    cr_assert_eq(zt_schedule_factor(&s, 0), 1.0 / 3);
    for (int64_t i = 3; i < 20; i++) cr_assert_eq(zt_schedule_factor(&s, i), 1.0);
    s.decay = ZT_DECAY_LINEAR; /* past the planned end: stays at the minimum */
    cr_assert_float_eq(zt_schedule_factor(&s, 10), .1, 1e-15);
    cr_assert_float_eq(zt_schedule_factor(&s, 1000), .1, 1e-15);
    s.warmup_steps = 100; /* a warm-up longer than the run is cut to it */
    cr_assert_eq(zt_schedule_factor(&s, 4), .5);
    cr_assert_eq(zt_schedule_factor(&s, 9), 1.0);
}

Test(schedule, windows) {
    cr_assert_eq(zt_window_count(10, 4, 0), 3);
    cr_assert_eq(zt_window_size(10, 4, 0, 0), 4);
    cr_assert_eq(zt_window_size(10, 4, 0, 1), 4);
    cr_assert_eq(zt_window_size(10, 4, 0, 2), 2);
    cr_assert_eq(zt_window_count(10, 4, 1), 2);
    cr_assert_eq(zt_window_size(10, 4, 1, 1), 4);
    cr_assert_eq(zt_window_count(8, 4, 0), 2);
    cr_assert_eq(zt_window_count(3, 4, 0), 1);
    cr_assert_eq(zt_window_size(3, 4, 0, 0), 3);
    cr_assert_eq(zt_window_count(3, 4, 1), 0);
    cr_assert_eq(zt_window_count(0, 4, 0), 0);
    for (int64_t micro = 0; micro < 30; micro++)
        for (int64_t accum = 1; accum < 9; accum++) {
            int64_t sum = 0, full = 0;
            for (int64_t w = 0; w < zt_window_count(micro, accum, 0); w++)
                sum += zt_window_size(micro, accum, 0, w);
            for (int64_t w = 0; w < zt_window_count(micro, accum, 1); w++)
                full += zt_window_size(micro, accum, 1, w);
            cr_assert_eq(sum, micro);
            cr_assert_eq(full, micro - micro % accum);
        }
}
