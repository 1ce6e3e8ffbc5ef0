/* SPDX-License-Identifier: Apache-2.0 */
/* bench/adamw.c: one AdamW update of n parameters, and the exact gradient norm over them.
 *   adamw [--n 30000000] [--threads 2] [--repeat 9] [--recipe fp32]  -> one JSON line
 * --recipe: a name of precision.recipe, for what is stored in which type. ms is wall time; cpu_ms,
 * the process' CPU time of an update, is the one to compare on a busy machine. */
#include <math.h>

#include "bench/bench.h"
#include "kernels/ops.h"

static void *filled(struct zt_ops_ctx *x, enum zt_dtype t, int64_t n, float value) {
    struct zt_error err = {0};
    void *p = aligned_alloc(64, ((size_t)n * zt_dtype_size(t) + 63) / 64 * 64);
    if (!p) bench_fail("adamw", "no memory");
    if (zt_ops_cpu()->fill(x, t, p, value, n, &err) != 0) bench_fail("adamw", err.msg);
    return p;
}

/* Mean of the first parameters. */
static double mean(struct zt_ops_ctx *x, const void *p, enum zt_dtype t, int64_t n) {
    struct zt_error err = {0};
    float wide[4096];
    double sum = 0;
    if (n > 4096) n = 4096;
    if (zt_ops_cpu()->cast(x, wide, ZT_F32, p, t, n, &err) != 0) bench_fail("adamw", err.msg);
    for (int64_t i = 0; i < n; i++) sum += (double)wide[i];
    return sum / (double)n;
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " n threads repeat recipe ");
    int64_t n = bench_int(argc, argv, "n", 30000000), repeat = bench_int(argc, argv, "repeat", 9);
    int threads = (int)bench_int(argc, argv, "threads", 2);
    const struct zt_recipe *recipe = zt_recipe_find(bench_text(argc, argv, "recipe", "fp32"));
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    if (!recipe) bench_fail("adamw", "--recipe is a name of precision.recipe");
    if (n < 1 || repeat < 1 || repeat > 1000 ||
        zt_ops_cpu_create(threads, NULL, NULL, &x, &err) != 0)
        bench_fail("adamw", err.msg[0] ? err.msg : "--n and --repeat must be at least 1");
    const struct zt_ops *ops = zt_ops_cpu();
    const struct zt_adamw_buffers b = {.param = filled(x, recipe->param, n, 1.0f),
                                       .param_type = recipe->param,
                                       .master =
                                           recipe->has_master ? filled(x, ZT_F32, n, 1.0f) : NULL,
                                       .m = filled(x, recipe->moment, n, 0),
                                       .v = filled(x, recipe->moment, n, 0),
                                       .moment_type = recipe->moment,
                                       .grad = filled(x, recipe->own, n, 0.25f),
                                       .grad_type = recipe->own};
    struct zt_adamw_params a = {.lr = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .grad_scale = 1,
                                .stochastic = recipe->stochastic};
    double update[1000], cpu[1000], norm[1000];
    struct bench_load load = {0};
    for (int64_t i = -2; i < repeat; i++) { /* two warm-up rounds */
        if (i == 0) load = bench_load_now();
        a.step++;
        double t0 = bench_now(), c0 = bench_cpu();
        if (ops->adamw(x, &b, n, &a, &err) != 0) bench_fail("adamw", err.msg);
        double t1 = bench_now(), c1 = bench_cpu();
        struct zt_fixsum s;
        zt_fixsum_zero(&s);
        if (ops->sum_squares(x, b.grad_type, b.grad, n, &s, &err) != 0)
            bench_fail("adamw", err.msg);
        double t2 = bench_now();
        if (zt_fixsum_value(&s) != (double)n * 0.0625) bench_fail("adamw", "the norm is wrong");
        if (i >= 0) {
            update[i] = t1 - t0;
            cpu[i] = c1 - c0;
            norm[i] = t2 - t1;
        }
    }
    double other = bench_other_load(load);
    /* the same gradient every step: m = g (1 - b1^t), v alike, so each update is lr (decayed
     * before); bf16 without a master is right in the mean */
    double want = 1,
           got = mean(x, b.master ? b.master : b.param, b.master ? ZT_F32 : b.param_type, n);
    for (int64_t t = 0; t < a.step; t++) want = want * (1 - 1e-4) - 1e-3;
    if (!(fabs(got - want) < (recipe->stochastic ? 0.02 : 1e-5 * fabs(want) + 1e-6)))
        bench_fail("adamw", "the parameters are wrong");
    size_t bytes = zt_dtype_size(recipe->own) + zt_dtype_size(recipe->param) * (b.master ? 1 : 2) +
                   (b.master ? 8 : 0) + 4 * zt_dtype_size(recipe->moment);
    double ms = bench_median(update, (int)repeat) * 1e3;
    printf("{\"bench\":\"adamw\",\"impl\":\"ztrain\",\"recipe\":\"%s\",\"n\":%lld,\"threads\":%d,"
           "\"ms\":%.4f,\"min_ms\":%.4f,\"cpu_ms\":%.4f,\"norm_ms\":%.4f,\"gb_per_s\":%.1f,"
           "\"kernels\":\"%s\",\"other_load\":%.2f}\n",
           recipe->name, (long long)n, threads, ms, update[0] * 1e3,
           bench_median(cpu, (int)repeat) * 1e3, bench_median(norm, (int)repeat) * 1e3,
           1e-6 * (double)bytes * (double)n / ms, zt_ops_cpu_describe(x), other);
    free(b.param);
    free(b.master);
    free(b.m);
    free(b.v);
    free((void *)(uintptr_t)b.grad);
    zt_ops_cpu_destroy(x);
    return 0;
}
