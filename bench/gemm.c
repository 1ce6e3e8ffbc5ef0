/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gemm.c: one GEMM of a linear layer, as the trainer calls it.
 *   gemm [--op fwd|dx|dw] [--rows 2048] [--in 768] [--out 3072] [--threads 2] [--repeat 15]
 *        [--type fp32|bf16|fp16] [--gemm auto|onednn|openblas]      -> one JSON line
 * ms is wall time; cpu_ms, the process' CPU time, is the one to compare on a busy machine. */
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

/* n numbers of p as type t; *p becomes what they are then worth. */
static void *stored(struct zt_ops_ctx *x, enum zt_dtype t, float *p, int64_t n) {
    struct zt_error err = {0};
    void *h = aligned_alloc(64, ((size_t)n * zt_dtype_size(t) + 63) / 64 * 64);
    if (!h) bench_fail("gemm", "no memory");
    if (zt_ops_cpu()->cast(x, h, t, p, ZT_F32, n, &err) != 0 ||
        zt_ops_cpu()->cast(x, p, ZT_F32, h, t, n, &err) != 0)
        bench_fail("gemm", err.msg);
    return h;
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
    bench_check_args(argc, argv, " op rows in out threads repeat type gemm ");
    int64_t rows = bench_int(argc, argv, "rows", 2048), in = bench_int(argc, argv, "in", 768),
            out = bench_int(argc, argv, "out", 3072), repeat = bench_int(argc, argv, "repeat", 15);
    int threads = (int)bench_int(argc, argv, "threads", 2);
    const char *name = bench_text(argc, argv, "op", "fwd");
    enum zt_gemm_op op = strcmp(name, "dx") == 0   ? ZT_GEMM_DX
                         : strcmp(name, "dw") == 0 ? ZT_GEMM_DW
                                                   : ZT_GEMM_FWD;
    const char *type = bench_text(argc, argv, "type", "fp32");
    enum zt_dtype dtype = strcmp(type, "bf16") == 0   ? ZT_BF16
                          : strcmp(type, "fp16") == 0 ? ZT_F16
                                                      : ZT_F32;
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    if (dtype == ZT_F32 && strcmp(type, "fp32")) bench_fail("gemm", "--type is fp32, bf16 or fp16");
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
    size_t bytes = ops->gemm_workspace(op, m, n, k, dtype);
    void *work = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    void *sa = stored(x, dtype, a, op == ZT_GEMM_FWD ? rows * in : rows * out),
         *sb = stored(x, dtype, b, op == ZT_GEMM_DW ? rows * in : out * in),
         *sc = stored(x, dtype, c, m * n);
    double t[1000], cpu[1000];
    struct bench_load load = {0};
    for (int64_t i = -2; i < repeat; i++) {
        if (i == 0) load = bench_load_now();
        double t0 = bench_now(), c0 = bench_cpu();
        if (ops->gemm(x, op, m, n, k, dtype, sa, sb, NULL, sc, dtype, false, work, &err) != 0)
            bench_fail("gemm", err.msg);
        if (i < 0) continue;
        t[i] = bench_now() - t0;
        cpu[i] = bench_cpu() - c0;
    }
    double other = bench_other_load(load), unit = dtype == ZT_F32   ? 0
                                                  : dtype == ZT_F16 ? 0x1p-11
                                                                    : 0x1p-8;
    if (ops->cast(x, c, ZT_F32, sc, dtype, m * n, &err) != 0) bench_fail("gemm", err.msg);
    for (int64_t s = 0; s < 64; s++) {
        int64_t i = s * 7919 % m, j = s * 104729 % n;
        double want = element(op, a, b, rows, in, out, i, j);
        if (!(fabs((double)c[i * n + j] - want) < 1e-4 * sqrt((double)k) + unit * fabs(want)))
            bench_fail("gemm", "the product is wrong");
    }
    double ms = bench_median(t, (int)repeat) * 1e3, cpu_ms = bench_median(cpu, (int)repeat) * 1e3;
    printf("{\"bench\":\"gemm\",\"impl\":\"ztrain\",\"op\":\"%s\",\"rows\":%lld,\"in\":%lld,"
           "\"out\":%lld,\"type\":\"%s\","
           "\"threads\":%d,\"ms\":%.4f,\"min_ms\":%.4f,\"cpu_ms\":%.4f,\"gflops\":%.1f,"
           "\"kernels\":\"%s\",\"other_load\":%.2f}\n",
           name, (long long)rows, (long long)in, (long long)out, type, threads, ms, t[0] * 1e3,
           cpu_ms, 2e-6 * (double)m * (double)n * (double)k / ms, zt_ops_cpu_describe(x), other);
    free(a);
    free(b);
    free(c);
    free(sa);
    free(sb);
    free(sc);
    free(work);
    zt_ops_cpu_destroy(x);
    return 0;
}
