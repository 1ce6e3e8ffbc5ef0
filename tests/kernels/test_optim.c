/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW against the T-ADAM table and fp64, and the exact sums. */
#include "tests/kernels/util.h"

static const struct zt_adamw_params t_adam = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0};

static struct zt_adamw_buffers all_fp32(float *p, float *m, float *v, const float *g) {
    return (struct zt_adamw_buffers){.param = p, .m = m, .v = v, .grad = g};
}

/* Prints to ten digits, as the table was. */
static void equals_digits(float got, const char *want, const char *what) {
    char text[32];
    const char *dot = strchr(want, '.');
    snprintf(text, sizeof text, "%.*f", (int)strlen(dot + 1), (double)got);
    cr_expect(strcmp(text, want) == 0, "%s is %s, the table has %s", what, text, want);
}

static void run_t_adam(struct zt_ops_ctx *x, double wd, float *p, float *m, float *v) {
    static const float g[3][4] = {
        {0.1f, -0.2f, 0.3f, 0.0f}, {0.05f, 0.1f, -0.3f, 1e-9f}, {-0.1f, 0.0f, 0.2f, 2.0f}};
    struct zt_adamw_params a = t_adam;
    a.weight_decay = wd;
    for (int s = 0; s < 3; s++) {
        a.step = s + 1;
        const struct zt_adamw_buffers b = all_fp32(p, m, v, g[s]);
        OK(zt_ops_cpu()->adamw(x, &b, 4, &a, &err));
    }
}

/* The table's digits come from PyTorch in fp32; one float more or less shows in its last digit, so
 * parameters are held to half a unit of the eighth decimal and moments to the digits given. */
Test(adamw, table_t_adam) {
    static const char *const want[2][4] = {
        {"0.9976502657", "-1.9979215860", "0.4986657202", "2.9984278679"},
        {"0.9979499578", "-1.9985214472", "0.4988155067", "2.9993276596"}};
    for (int s = 0; s < ISA_NAMES; s++) {
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[s], NULL);
        for (int wd = 0; wd < 2; wd++) {
            float p[4] = {1.0f, -2.0f, 0.5f, 3.0f}, m[4] = {0}, v[4] = {0};
            run_t_adam(x, wd ? 0.0 : 0.1, p, m, v);
            for (int i = 0; i < 4; i++) equals_digits(p[i], want[wd][i], "p");
            static const char *const want_m[] = {"0.0026", "-0.0072", "0.0173", "0.2000"};
            static const char *const want_v[] = {"0.00107", "0.00228", "0.01033625", "0.20000"};
            for (int i = 0; i < 4; i++) {
                equals_digits(m[i], want_m[i], "m");
                equals_digits(v[i], want_v[i], "v");
            }
        }
        zt_ops_cpu_destroy(x);
    }
}

Test(adamw, follows_fp64_over_steps_and_sizes) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    static const int64_t sizes[] = {1, 3, 17, 100, 257, 16384, 16385, 50001};
    for (int s = 0; s < 8; s++) {
        const int64_t n = sizes[s];
        float *p = random_buffer(n), *m = buffer(n), *v = buffer(n), *g = random_buffer(n);
        double *rp = malloc((size_t)n * 24), *rm = rp + n, *rv = rm + n;
        for (int64_t i = 0; i < n; i++) rp[i] = p[i], rm[i] = 0.0, rv[i] = 0.0;
        const struct zt_adamw_buffers b = all_fp32(p, m, v, g);
        struct zt_adamw_params a = t_adam;
        a.grad_scale = 0.25;
        for (int step = 1; step <= 3; step++) {
            a.step = step;
            OK(o->adamw(x, &b, n, &a, &err));
            for (int64_t i = 0; i < n; i++) {
                const double gr = g[i] * a.grad_scale;
                rp[i] *= 1.0 - a.lr * a.weight_decay;
                rm[i] += (1.0 - a.beta1) * (gr - rm[i]);
                rv[i] = a.beta2 * rv[i] + (1.0 - a.beta2) * gr * gr;
                rp[i] -= a.lr / (1.0 - pow(a.beta1, step)) * rm[i] /
                         (sqrt(rv[i]) / sqrt(1.0 - pow(a.beta2, step)) + a.eps);
            }
        }
        near(p, rp, n, 5e-7, "p");
        near(m, rm, n, 1e-7, "m");
        near(v, rv, n, 1e-7, "v");
        free(rp);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

/* A clipped gradient moves the parameters as the clipped value would: the coefficient is applied
 * before the moments, always. Clip 1e-10, decay 0, eps 1e-8: the move is at most 0.0099 lr. */
Test(adamw, grad_scale_comes_before_the_moments) {
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_adamw_params a = t_adam;
    a.weight_decay = 0.0;
    a.step = 1;
    float p[1] = {0.0f}, m[1] = {0}, v[1] = {0}, g[1] = {1.0f};
    const struct zt_adamw_buffers b = all_fp32(p, m, v, g);
    a.grad_scale = 1e-10;
    OK(zt_ops_cpu()->adamw(x, &b, 1, &a, &err));
    cr_expect(fabs(fabsf(p[0]) / a.lr - 1e-10 / (1e-10 + 1e-8)) < 1e-6);
    p[0] = m[0] = v[0] = 0.0f;
    a.grad_scale = 1.0;
    OK(zt_ops_cpu()->adamw(x, &b, 1, &a, &err));
    cr_expect(fabs(fabsf(p[0]) / a.lr - 1.0) < 1e-6);
    zt_ops_cpu_destroy(x);
}

Test(adamw, rounded_copy_and_refusals) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 17001 };
    float *p = random_buffer(N), *m = buffer(N), *v = buffer(N), *g = random_buffer(N);
    static uint16_t copy[N], want[N];
    struct zt_adamw_params a = t_adam;
    a.step = 1;
    struct zt_adamw_buffers b = all_fp32(p, m, v, g);
    b.master = p;
    b.param = copy;
    b.param_type = ZT_BF16;
    OK(o->adamw(x, &b, N, &a, &err));
    OK(o->cast(x, want, ZT_BF16, p, ZT_F32, N, &err));
    cr_assert_eq(memcmp(copy, want, sizeof copy), 0);
    struct zt_error err = {0};
    struct zt_adamw_buffers wrong = b;
    wrong.grad_type = ZT_I32;
    cr_assert_eq(o->adamw(x, &wrong, N, &a, &err), ZT_EUNSUPPORTED);
    wrong = b;
    wrong.param_type = ZT_F32;
    cr_assert_eq(o->adamw(x, &wrong, N, &a, &err), ZT_EUNSUPPORTED);
    a.step = 0;
    cr_assert_eq(o->adamw(x, &b, N, &a, &err), ZT_EINVAL);
    end_buffers();
    zt_ops_cpu_destroy(x);
}

enum { BITS = 50001 };
static float bp[BITS], bg[BITS];
static void body_adamw(struct zt_ops_ctx *x, float *out) {
    struct zt_adamw_params a = t_adam;
    const struct zt_adamw_buffers b = all_fp32(out, out + BITS, out + 2 * BITS, bg);
    memcpy(out, bp, sizeof bp);
    a.grad_scale = 0.7;
    for (a.step = 1; a.step <= 3; a.step++) OK(zt_ops_cpu()->adamw(x, &b, BITS, &a, &err));
}

Test(adamw, same_bits_for_threads_and_sets) {
    for (int i = 0; i < BITS; i++) bp[i] = uniform(), bg[i] = uniform();
    all_contexts_agree(body_adamw, 3 * BITS, "adamw");
    end_buffers();
}

Test(sums, do_not_depend_on_threads_or_cuts) {
    const struct zt_ops *o = zt_ops_cpu();
    enum { N = 100003 };
    float *g = random_buffer(N);
    double exact = 0.0;
    for (int i = 0; i < N; i++) {
        g[i] *= (float)pow(10.0, i % 10 - 6);
        exact += (double)g[i] * g[i];
    }
    struct zt_fixsum first = {0};
    for (int t = 0; t < THREAD_COUNTS; t++) {
        struct zt_ops_ctx *x = context(thread_counts[t], NULL, NULL);
        struct zt_fixsum whole, parts;
        zt_fixsum_zero(&whole);
        zt_fixsum_zero(&parts);
        OK(o->sum_squares(x, ZT_F32, g, N, &whole, &err));
        for (int64_t at = N; at > 0; at -= 10007) { /* other pieces, from the end */
            const int64_t from = at > 10007 ? at - 10007 : 0;
            OK(o->sum_squares(x, ZT_F32, g + from, at - from, &parts, &err));
        }
        if (t == 0) first = whole;
        cr_assert_eq(memcmp(&whole, &first, sizeof whole), 0, "%d threads", thread_counts[t]);
        cr_assert_eq(memcmp(&parts, &first, sizeof parts), 0, "%d threads, in parts",
                     thread_counts[t]);
        cr_assert(fabs(zt_fixsum_value(&whole) / exact - 1.0) < 1e-12);
        zt_ops_cpu_destroy(x);
    }
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    struct zt_fixsum s;
    const float v[5] = {1.5f, -2.25f, 3.0f, 0.125f, -0.5f};
    zt_fixsum_zero(&s);
    OK(o->sum_values(x, v, 5, &s, &err));
    cr_assert_eq(zt_fixsum_value(&s), 1.875);
    g[77] = NAN;
    OK(o->sum_squares(x, ZT_F32, g, N, &s, &err));
    cr_assert(isnan(zt_fixsum_value(&s)));
    zt_ops_cpu_destroy(x);
    end_buffers();
}
