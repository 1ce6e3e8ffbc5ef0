/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gemm.c: one GEMM of a linear layer, fp32, as the trainer calls it.
 *   gemm [--op fwd|dx|dw] [--rows 2048] [--in 768] [--out 3072] [--threads 2] [--repeat 15]
 *        [--gemm auto|onednn|openblas]                              -> one JSON line */
#include <math.h>

#include "bench/bench.h"
#include "core/rng.h"
#include "kernels/ops.h"

static float *random_matrix(int64_t n, uint32_t tensor) {
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    if (!p) bench_fail("gemm", "no memory");
    for (int64_t i = 0; i < n;
         i++) { /* uniform in [-1, 1); zeros would run faster than data does */
        uint32_t w[4];
        zt_rng_words(1, ZT_RNG_TEST, 0, tensor, (uint64_t)i, w);
        p[i] = (float)((double)w[0] * 0x1p-31 - 1);
    }
    return p;
}

/* Element (i, j) of the result in double, from the meaning of the operation. */
static double element(enum zt_gemm_op op, const float *a, const float *b, int64_t rows, int64_t in,
                      int64_t out, int64_t i, int64_t j) {
    double s = 0;
    if (op == ZT_GEMM_FWD)
        for (int64_t k = 0; k < in; k++) s += (double)a[i * in + k] * (double)b[j * in + k];
    else if (op == ZT_GEMM_DX)
        for (int64_t k = 0; k < out; k++) s += (double)a[i * out + k] * (double)b[k * in + j];
    else
        for (int64_t k = 0; k < rows; k++) s += (double)a[k * out + i] * (double)b[k * in + j];
    return s;
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " op rows in out threads repeat gemm ");
    int64_t rows = bench_int(argc, argv, "rows", 2048), in = bench_int(argc, argv, "in", 768),
            out = bench_int(argc, argv, "out", 3072), repeat = bench_int(argc, argv, "repeat", 15);
    int threads = (int)bench_int(argc, argv, "threads", 2);
    const char *name = bench_text(argc, argv, "op", "fwd");
    enum zt_gemm_op op = strcmp(name, "dx") == 0   ? ZT_GEMM_DX
                         : strcmp(name, "dw") == 0 ? ZT_GEMM_DW
                                                   : ZT_GEMM_FWD;
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    if (rows < 1 || in < 1 || out < 1 || repeat < 1 || repeat > 1000 ||
        (op == ZT_GEMM_FWD && strcmp(name, "fwd")))
        bench_fail("gemm", "--op is fwd, dx or dw; sizes and --repeat are at least 1");
    if (zt_ops_cpu_create(threads, NULL, bench_text(argc, argv, "gemm", NULL), &x, &err) != 0)
        bench_fail("gemm", err.msg);
    const struct zt_ops *ops = zt_ops_cpu();
    int64_t m = op == ZT_GEMM_DW ? out : rows, n = op == ZT_GEMM_FWD ? out : in,
            k = op == ZT_GEMM_FWD  ? in
                : op == ZT_GEMM_DX ? out
                                   : rows;
    float *a = random_matrix(op == ZT_GEMM_FWD ? rows * in : rows * out, 1),
          *b = random_matrix(op == ZT_GEMM_DW ? rows * in : out * in, 2),
          *c = random_matrix(m * n, 3);
    size_t bytes = ops->gemm_workspace(op, m, n, k, ZT_F32);
    void *work = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    double t[1000];
    struct bench_load load = {0};
    for (int64_t i = -2; i < repeat; i++) {
        if (i == 0) load = bench_load_now();
        double t0 = bench_now();
        if (ops->gemm(x, op, m, n, k, ZT_F32, a, b, NULL, c, ZT_F32, false, work, &err) != 0)
            bench_fail("gemm", err.msg);
        if (i >= 0) t[i] = bench_now() - t0;
    }
    for (int64_t s = 0; s < 64; s++) {
        int64_t i = s * 7919 % m, j = s * 104729 % n;
        double want = element(op, a, b, rows, in, out, i, j);
        if (!(fabs((double)c[i * n + j] - want) < 1e-4 * sqrt((double)k)))
            bench_fail("gemm", "the product is wrong");
    }
    double other = bench_other_load(load), ms = bench_median(t, (int)repeat) * 1e3;
    printf("{\"bench\":\"gemm\",\"impl\":\"ztrain\",\"op\":\"%s\",\"rows\":%lld,\"in\":%lld,"
           "\"out\":%lld,"
           "\"threads\":%d,\"ms\":%.4f,\"min_ms\":%.4f,\"gflops\":%.1f,\"kernels\":\"%s\",\"other_"
           "load\":%.2f}\n",
           name, (long long)rows, (long long)in, (long long)out, threads, ms, t[0] * 1e3,
           2e-6 * (double)m * (double)n * (double)k / ms, zt_ops_cpu_describe(x), other);
    free(a);
    free(b);
    free(c);
    free(work);
    zt_ops_cpu_destroy(x);
    return 0;
}
