/* SPDX-License-Identifier: Apache-2.0 */
/* bench/attention.c: causal attention alone, forward or backward, as the trainer calls it.
 *   attention [--pass forward|backward] [--batch 1] [--seq 1024] [--heads 8] [--kv-heads 8]
 *             [--head-dim 64] [--threads 2] [--repeat 5]         -> one JSON line
 * fp32. ms is wall time; cpu_ms, the process' CPU time, is the one to compare on a busy machine.
 * gflops counts the products of the half that is not masked: 2 of them forward, 5 backward. */
#include <math.h>

#include "bench/bench.h"
#include "core/rng.h"
#include "kernels/ops.h"

static float *random_rows(int64_t n, uint32_t tensor) {
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    if (!p) bench_fail("attention", "no memory");
    for (int64_t i = 0; i < n; i++) { /* uniform in [-1, 1) */
        uint32_t w[4];
        zt_rng_words(1, ZT_RNG_TEST, 0, tensor, (uint64_t)i, w);
        p[i] = (float)((double)w[0] * 0x1p-31 - 1);
    }
    return p;
}

struct tensors {
    struct zt_attention a;
    float *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
};

static double dot(const float *a, const float *b, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * (double)b[i];
    return s;
}

/* Row t of head h of the first sequence in double: the output, or the gradient of the query. */
static void row_of(const struct tensors *x, int64_t h, int64_t t, bool backward, double *row) {
    const struct zt_attention *a = &x->a;
    const int64_t kv = h / (a->H / a->KV) * a->D, at = t * a->q_row + h * a->D;
    double *p = malloc((size_t)(t + 1) * sizeof *p), sum = 0, delta = 0;
    if (!p) bench_fail("attention", "no memory");
    for (int64_t k = 0; k <= t; k++)
        sum += p[k] = exp(dot(x->q + at, x->k + k * a->k_row + kv, a->D) / sqrt((double)a->D));
    for (int64_t k = 0; k <= t; k++)
        delta += p[k] / sum * dot(x->dout + at, x->v + k * a->v_row + kv, a->D);
    for (int64_t d = 0; d < a->D; d++) row[d] = 0;
    for (int64_t k = 0; k <= t; k++) {
        const float *key = x->k + k * a->k_row + kv, *value = x->v + k * a->v_row + kv;
        const double dp = dot(x->dout + at, value, a->D);
        const double w = p[k] / sum * (backward ? (dp - delta) / sqrt((double)a->D) : 1);
        for (int64_t d = 0; d < a->D; d++) row[d] += w * (double)(backward ? key : value)[d];
    }
    free(p);
}

static void check(const struct tensors *x, bool backward) {
    const struct zt_attention *a = &x->a;
    double *want = malloc((size_t)a->D * sizeof *want);
    if (!want) bench_fail("attention", "no memory");
    for (int64_t s = 0; s < 16; s++) {
        const int64_t h = s % a->H, t = (s + 1) * a->T / 16 - 1;
        if (t < 0) continue;
        const float *got = (backward ? x->dq : x->out) + t * a->q_row + h * a->D;
        row_of(x, h, t, backward, want);
        for (int64_t d = 0; d < a->D; d++)
            if (!(fabs((double)got[d] - want[d]) < 1e-4))
                bench_fail("attention", "the result is wrong");
    }
    free(want);
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " pass batch seq heads kv-heads head-dim threads repeat ");
    const char *pass = bench_text(argc, argv, "pass", "forward");
    const bool backward = strcmp(pass, "backward") == 0;
    const int threads = (int)bench_int(argc, argv, "threads", 2);
    const int64_t repeat = bench_int(argc, argv, "repeat", 5);
    struct tensors x = {.a = {.B = bench_int(argc, argv, "batch", 1),
                              .T = bench_int(argc, argv, "seq", 1024),
                              .H = bench_int(argc, argv, "heads", 8),
                              .KV = bench_int(argc, argv, "kv-heads", 8),
                              .D = bench_int(argc, argv, "head-dim", 64)}};
    struct zt_attention *a = &x.a;
    struct zt_error err = {0};
    struct zt_ops_ctx *c;
    const struct zt_ops *ops = zt_ops_cpu();
    if ((!backward && strcmp(pass, "forward")) || repeat < 1 || repeat > 1000)
        bench_fail("attention", "--pass is forward or backward; --repeat is 1 to 1000");
    if (zt_ops_cpu_create(threads, NULL, NULL, &c, &err) != 0) bench_fail("attention", err.msg);
    const int64_t rows = a->B * a->T;
    a->q_row = a->H * a->D;
    a->k_row = a->v_row = a->KV * a->D;
    x.q = random_rows(rows * a->q_row, 1);
    x.k = random_rows(rows * a->k_row, 2);
    x.v = random_rows(rows * a->v_row, 3);
    x.dout = random_rows(rows * a->q_row, 4);
    x.out = random_rows(rows * a->q_row, 5);
    x.dq = random_rows(rows * a->q_row, 6);
    x.dk = random_rows(rows * a->k_row, 7);
    x.dv = random_rows(rows * a->v_row, 8);
    x.lse = random_rows(rows * a->H, 9);
    size_t bytes = backward ? ops->attention_backward_workspace(a, ZT_F32) : 0;
    const size_t need = ops->attention_workspace(a, ZT_F32);
    bytes = bytes > need ? bytes : need;
    void *work = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (ops->attention_forward(c, ZT_F32, x.out, x.lse, x.q, x.k, x.v, a, work, &err) != 0)
        bench_fail("attention", err.msg);
    double t[1000], cpu[1000];
    struct bench_load load = {0};
    for (int64_t i = -1; i < repeat; i++) {
        if (i == 0) load = bench_load_now();
        const double t0 = bench_now(), c0 = bench_cpu();
        const int rc = backward ? ops->attention_backward(c, ZT_F32, x.dq, x.dk, x.dv, x.dout, x.q,
                                                          x.k, x.v, x.out, x.lse, a, work, &err)
                                : ops->attention_forward(c, ZT_F32, x.out, x.lse, x.q, x.k, x.v, a,
                                                         work, &err);
        if (rc != 0) bench_fail("attention", err.msg);
        if (i < 0) continue;
        t[i] = bench_now() - t0;
        cpu[i] = bench_cpu() - c0;
    }
    const double other = bench_other_load(load);
    check(&x, backward);
    const double ms = bench_median(t, (int)repeat) * 1e3,
                 cpu_ms = bench_median(cpu, (int)repeat) * 1e3;
    const double flop =
        (backward ? 5.0 : 2.0) * (double)(rows * a->H) * (double)(a->T + 1) * (double)a->D;
    printf("{\"bench\":\"attention\",\"impl\":\"ztrain\",\"pass\":\"%s\",\"batch\":%lld,"
           "\"seq\":%lld,\"heads\":%lld,\"kv_heads\":%lld,\"head_dim\":%lld,\"threads\":%d,"
           "\"ms\":%.4f,\"min_ms\":%.4f,\"cpu_ms\":%.4f,\"gflops\":%.1f,\"kernels\":\"%s\","
           "\"other_load\":%.2f}\n",
           pass, (long long)a->B, (long long)a->T, (long long)a->H, (long long)a->KV,
           (long long)a->D, threads, ms, t[0] * 1e3, cpu_ms, 1e-6 * flop / ms,
           zt_ops_cpu_describe(c), other);
    float *all[] = {x.q, x.k, x.v, x.dout, x.out, x.dq, x.dk, x.dv, x.lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(work);
    zt_ops_cpu_destroy(c);
    return 0;
}
