/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_optim.c: the clip coefficient and AdamW over runs. Expected values:
 * PyTorch 1.13, torch.optim.AdamW (lr 1e-3, betas .9 .95, eps 1e-8) and clip_grad_norm_, on the
 * inputs below. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/optim/optim.h"

static struct zt_ops_ctx *context(void) {
    struct zt_ops_ctx *x;
    struct zt_error err = {0};
    cr_assert_eq(zt_ops_cpu_create(1, NULL, NULL, &x, &err), 0, "%s", err.msg);
    return x;
}

Test(optim, clip_coefficient) {
    /* gradients [3,0],[4], max 1: norm 5 */
    float c = (float)zt_clip_coefficient(5.0, 1.0);
    cr_assert_float_eq(3.0f * c, 0.5999999f, 1e-7);
    cr_assert_float_eq(4.0f * c, 0.7999998f, 1e-7);
    cr_assert_eq(zt_clip_coefficient(0.5, 1.0), 1.0);
    cr_assert_eq(zt_clip_coefficient(1e30, 0.0), 1.0, "0 is no clipping");
    cr_assert_float_eq(zt_clip_coefficient(1.0, 1e-10), 1e-10 / (1.0 + 1e-6), 1e-20);
    cr_assert_lt(zt_clip_coefficient(1.0, 1.0), 1.0, "the 1e-6 is in the denominator");
}

static const float grads[3][4] = {{.1f, -.2f, .3f, 0}, {.05f, .1f, -.3f, 1e-9f}, {-.1f, 0, .2f, 2}};

static void three_steps(double wd, const struct zt_optim_run *runs, int n, float *p, double scale) {
    struct zt_ops_ctx *x = context();
    struct zt_optim_config c = {.beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = wd};
    struct zt_error err = {0};
    float m[4] = {0}, v[4] = {0}, g[4];
    for (int t = 1; t <= 3; t++) {
        for (int i = 0; i < 4; i++) g[i] = (float)((double)grads[t - 1][i] / scale);
        struct zt_adamw_buffers s = {.param = p, .m = m, .v = v, .grad = g}; /* all fp32 */
        cr_assert_eq(zt_optim_adamw(zt_ops_cpu(), x, &c, &s, runs, n, 1e-3, scale, t, &err), 0,
                     "%s", err.msg);
    }
    zt_ops_cpu_destroy(x);
}

Test(optim, adamw_against_torch) {
    static const double decayed[4] = {0.9976502657, -1.9979215860, 0.4986657202, 2.9984278679};
    static const double plain[4] = {0.9979499578, -1.9985214472, 0.4988155067, 2.9993276596};
    struct zt_optim_run all = {.count = 4, .decay = true};
    float p[4] = {1, -2, .5f, 3};
    three_steps(0.1, &all, 1, p, 1.0);
    for (int i = 0; i < 4; i++) cr_assert_float_eq(p[i], decayed[i], 1e-6 * fabs(decayed[i]));
    float q[4] = {1, -2, .5f, 3};
    all.decay = false;
    three_steps(0.1, &all, 1, q, 1.0);
    for (int i = 0; i < 4; i++) cr_assert_float_eq(q[i], plain[i], 1e-6 * fabs(plain[i]));
}

Test(optim, runs_touch_their_elements_with_their_decay) {
    static const double decayed[4] = {0.9976502657, -1.9979215860, 0.4986657202, 2.9984278679};
    static const double plain[4] = {0.9979499578, -1.9985214472, 0.4988155067, 2.9993276596};
    struct zt_optim_run runs[2] = {{.count = 1, .decay = true}, {.offset = 2, .count = 1}};
    float p[4] = {1, -2, .5f, 3};
    three_steps(0.1, runs, 2, p, 1.0);
    cr_assert_float_eq(p[0], decayed[0], 1e-6);
    cr_assert_eq(p[1], -2.0f);
    cr_assert_float_eq(p[2], plain[2], 1e-6);
    cr_assert_eq(p[3], 3.0f);
}

/* The clip coefficient multiplies the gradient: gradients four times as large, times 1/4, are the
 * same. */
Test(optim, scale_is_applied_to_the_gradient) {
    struct zt_optim_run all = {.count = 4, .decay = true};
    float p[4] = {1, -2, .5f, 3}, q[4] = {1, -2, .5f, 3};
    three_steps(0.1, &all, 1, p, 1.0);
    three_steps(0.1, &all, 1, q, 0.25);
    for (int i = 0; i < 4; i++) cr_assert_eq(p[i], q[i]);
}
