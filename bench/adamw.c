/* SPDX-License-Identifier: Apache-2.0 */
/* bench/adamw.c: one AdamW update of n fp32 parameters, and the exact gradient norm over them.
 *   adamw [--n 30000000] [--threads 2] [--repeat 9]                 -> one JSON line */
#include <math.h>

#include "bench/bench.h"
#include "kernels/ops.h"

static float *filled(struct zt_ops_ctx *x, int64_t n, float value) {
    struct zt_error err = {0};
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    if (!p) bench_fail("adamw", "no memory");
    if (zt_ops_cpu()->fill(x, ZT_F32, p, value, n, &err) != 0) bench_fail("adamw", err.msg);
    return p;
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " n threads repeat ");
    int64_t n = bench_int(argc, argv, "n", 30000000), repeat = bench_int(argc, argv, "repeat", 9);
    int threads = (int)bench_int(argc, argv, "threads", 2);
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    if (n < 1 || repeat < 1 || repeat > 1000 ||
        zt_ops_cpu_create(threads, NULL, NULL, &x, &err) != 0)
        bench_fail("adamw", err.msg[0] ? err.msg : "--n and --repeat must be at least 1");
    const struct zt_ops *ops = zt_ops_cpu();
    float *p = filled(x, n, 1.0f), *m = filled(x, n, 0), *v = filled(x, n, 0),
          *g = filled(x, n, 0.25f);
    const struct zt_adamw_buffers b = {.param = p, .m = m, .v = v, .grad = g};
    struct zt_adamw_params a = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1};
    double update[1000], norm[1000];
    struct bench_load load = {0};
    for (int64_t i = -2; i < repeat; i++) { /* two warm-up rounds */
        if (i == 0) load = bench_load_now();
        a.step++;
        double t0 = bench_now();
        if (ops->adamw(x, &b, n, &a, &err) != 0) bench_fail("adamw", err.msg);
        double t1 = bench_now();
        struct zt_fixsum s;
        zt_fixsum_zero(&s);
        if (ops->sum_squares(x, ZT_F32, g, n, &s, &err) != 0) bench_fail("adamw", err.msg);
        double t2 = bench_now();
        if (zt_fixsum_value(&s) != (double)n * 0.0625) bench_fail("adamw", "the norm is wrong");
        if (i >= 0) {
            update[i] = t1 - t0;
            norm[i] = t2 - t1;
        }
    }
    /* the same gradient every step: m = g (1 - b1^t), v alike, so each update is lr (decayed
     * before) */
    double want = 1;
    for (int64_t t = 0; t < a.step; t++) want = want * (1 - 1e-4) - 1e-3;
    if (!(fabs((double)p[n / 2] - want) < 1e-5 * fabs(want) + 1e-6))
        bench_fail("adamw", "the parameters are wrong");
    double other = bench_other_load(load), ms = bench_median(update, (int)repeat) * 1e3,
           norm_ms = bench_median(norm, (int)repeat) * 1e3;
    printf("{\"bench\":\"adamw\",\"impl\":\"ztrain\",\"n\":%lld,\"threads\":%d,\"ms\":%.4f,\"min_"
           "ms\":%.4f,"
           "\"norm_ms\":%.4f,\"gb_per_s\":%.1f,\"kernels\":\"%s\",\"other_load\":%.2f}\n",
           (long long)n, threads, ms, update[0] * 1e3, norm_ms, 28e-6 * (double)n / ms,
           zt_ops_cpu_describe(x), other);
    free(p);
    free(m);
    free(v);
    free(g);
    zt_ops_cpu_destroy(x);
    return 0;
}
