/* SPDX-License-Identifier: Apache-2.0 */
/* bench/kernels/bench_kernels.c: the CPU operators, one JSON line each.
 *
 *   bench_kernels [threads [isa [onednn|openblas]]]
 *
 * Times are the best of several runs. With one thread the process' CPU time is used, so that other
 * load on the machine only shows through caches and clock; with more, the wall clock. GFLOP/s of
 * attention count the unmasked half only. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/ops.h"

static int threads = 1;
static struct zt_ops_ctx *ctx;
static const struct zt_ops *ops;
static struct zt_error err;

static double now(void) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *data(int64_t n) {
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    if (!p) exit(1);
    uint32_t s = 12345;
    for (int64_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        p[i] = (float)(s >> 8) * 0x1p-23f - 1.0f;
    }
    return p;
}

static void must(int rc) {
    if (rc != ZT_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

typedef void body_fn(void *arg);

static double best(body_fn *body, void *arg) {
    double least = 1e30, total = 0.0;
    body(arg);
    for (int i = 0; i < 40 && (i < 5 || total < 0.4); i++) {
        const double t = now();
        body(arg);
        const double d = now() - t;
        total += d;
        least = d < least ? d : least;
    }
    return least;
}

static void report(const char *name, const char *shape, double seconds, double flop, double bytes) {
    printf("{\"bench\":\"%s\",\"shape\":\"%s\",\"threads\":%d,\"ms\":%.4f", name, shape, threads,
           seconds * 1e3);
    if (flop > 0) printf(",\"gflops\":%.1f", flop / seconds * 1e-9);
    if (bytes > 0) printf(",\"gbytes\":%.1f", bytes / seconds * 1e-9);
    puts("}");
    fflush(stdout);
}

struct gemm {
    enum zt_gemm_op op;
    int64_t M, N, K;
    float *A, *B, *C, *work;
};

static void run_gemm(void *arg) {
    const struct gemm *g = arg;
    must(ops->gemm(ctx, g->op, g->M, g->N, g->K, ZT_F32, g->A, g->B, NULL, g->C, ZT_F32, false,
                   g->work, &err));
}

static void bench_gemm(int64_t rows, int64_t out, int64_t in) {
    static const char *const names[] = {"gemm_fwd", "gemm_dx", "gemm_dw"};
    for (int op = 0; op < 3; op++) {
        struct gemm g = {(enum zt_gemm_op)op, rows, out, in};
        if (op == ZT_GEMM_DX) g.N = in, g.K = out;
        if (op == ZT_GEMM_DW) g.M = out, g.N = in, g.K = rows;
        const size_t bytes = ops->gemm_workspace(g.op, g.M, g.N, g.K, ZT_F32);
        g.A = data(g.M * g.K), g.B = data(g.K * g.N), g.C = data(g.M * g.N);
        g.work = bytes ? data((int64_t)(bytes / sizeof(float))) : NULL;
        char shape[64];
        snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)rows, (long long)out,
                 (long long)in);
        report(names[op], shape, best(run_gemm, &g), 2.0 * (double)rows * (double)out * (double)in,
               0);
        free(g.A), free(g.B), free(g.C), free(g.work);
    }
}

struct attention {
    struct zt_attention a;
    float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
};

static void run_attention_forward(void *arg) {
    const struct attention *t = arg;
    must(ops->attention_forward(ctx, ZT_F32, t->out, t->lse, t->q, t->k, t->v, &t->a, NULL, &err));
}

static void run_attention_backward(void *arg) {
    const struct attention *t = arg;
    must(ops->attention_backward(ctx, ZT_F32, t->dq, t->dk, t->dv, t->dout, t->q, t->k, t->v,
                                 t->out, t->lse, &t->a, NULL, &err));
}

/* q, k and v side by side, as GPT-2 has them */
static void bench_attention(int64_t B, int64_t T, int64_t H, int64_t D) {
    const int64_t part = H * D, row = 3 * part, n = B * T * part;
    float *qkv = data(3 * n), *dqkv = data(3 * n);
    struct attention a = {{.B = B, .T = T, .H = H, .KV = H, .D = D},
                          qkv,
                          qkv + part,
                          qkv + 2 * part,
                          data(n),
                          data(B * T * H),
                          data(n),
                          dqkv,
                          dqkv + part,
                          dqkv + 2 * part};
    a.a.q_row = a.a.k_row = a.a.v_row = row;
    const double flop = 2.0 * (double)(B * H * T) * (double)(T + 1) * (double)D;
    char shape[64];
    snprintf(shape, sizeof shape, "B%lld T%lld H%lld D%lld", (long long)B, (long long)T,
             (long long)H, (long long)D);
    report("attention_forward", shape, best(run_attention_forward, &a), flop, 0);
    report("attention_backward", shape, best(run_attention_backward, &a), 2.5 * flop, 0);
    free(qkv), free(a.out), free(a.lse), free(a.dout), free(dqkv);
}

struct rows {
    int64_t N, C;
    float *a, *b, *c, *w, *mean, *rstd, *work;
    int32_t *target;
};

static void run_gelu_forward(void *arg) {
    const struct rows *r = arg;
    must(ops->gelu_forward(ctx, ZT_F32, r->b, r->a, r->N * r->C, &err));
}
static void run_gelu_backward(void *arg) {
    const struct rows *r = arg;
    must(ops->gelu_backward(ctx, ZT_F32, r->b, r->a, r->c, r->N * r->C, &err));
}
static void run_layernorm(void *arg) {
    const struct rows *r = arg;
    must(ops->layernorm_forward(ctx, ZT_F32, r->b, r->mean, r->rstd, r->a, NULL, NULL, r->w, r->w,
                                r->N, r->C, 1e-5, &err));
}
static void run_layernorm_backward(void *arg) {
    const struct rows *r = arg;
    must(ops->layernorm_backward(ctx, ZT_F32, ZT_F32, r->b, r->w + r->C, r->w + 2 * r->C, r->c,
                                 r->a, r->w, r->mean, r->rstd, r->N, r->C, false, r->work, &err));
}
static void run_bias(void *arg) {
    const struct rows *r = arg;
    must(ops->bias_backward(ctx, ZT_F32, ZT_F32, r->w, r->a, r->N, r->C, false, r->work, &err));
}
static void run_cross_entropy(void *arg) {
    const struct rows *r = arg;
    must(ops->cross_entropy(ctx, ZT_F32, r->a, r->mean, r->target, NULL, r->N, r->C, 1.0f, true, &err));
}

static void bench_rows(const char *name, body_fn *body, int64_t N, int64_t C, double passes) {
    const int64_t n = N * C;
    struct rows r = {N, C, data(n), data(n), data(n), data(3 * C), data(N), data(N), NULL, NULL};
    r.work = data((int64_t)(ops->layernorm_backward_workspace(N, C) / sizeof(float)) + C * 64);
    r.target = calloc((size_t)N, sizeof *r.target);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)N, (long long)C);
    report(name, shape, best(body, &r), 0, passes * 4.0 * (double)n);
    free(r.a), free(r.b), free(r.c), free(r.w), free(r.mean), free(r.rstd), free(r.work);
    free(r.target);
}

struct optim {
    int64_t n;
    float *p, *m, *v, *g;
};

static void run_adamw(void *arg) {
    const struct optim *o = arg;
    const struct zt_adamw_params a = {.lr = 1e-3,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .step = 1,
                                      .grad_scale = 1.0};
    const struct zt_adamw_buffers b = {.param = o->p, .m = o->m, .v = o->v, .grad = o->g};
    must(ops->adamw(ctx, &b, o->n, &a, &err));
}
static void run_sum_squares(void *arg) {
    const struct optim *o = arg;
    struct zt_fixsum s;
    zt_fixsum_zero(&s);
    must(ops->sum_squares(ctx, ZT_F32, o->g, o->n, &s, &err));
}
static void run_add(void *arg) {
    const struct optim *o = arg;
    must(ops->add(ctx, ZT_F32, o->p, o->g, o->m, o->n, &err));
}

static void bench_optim(int64_t n) {
    struct optim o = {n, data(n), data(n), data(n), data(n)};
    char shape[32];
    memset(o.v, 0, (size_t)n * sizeof(float));
    snprintf(shape, sizeof shape, "%lld", (long long)n);
    report("adamw", shape, best(run_adamw, &o), 0, 28.0 * (double)n);
    report("sum_squares", shape, best(run_sum_squares, &o), 0, 4.0 * (double)n);
    report("add", shape, best(run_add, &o), 0, 12.0 * (double)n);
    free(o.p), free(o.m), free(o.v), free(o.g);
}

/* The ceiling: independent multiply-adds in registers, one thread. */
__attribute__((target("avx512f"))) static double peak_avx512(void) {
    __m512 a[16], b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps((float)i);
    const double t = now();
    for (int64_t k = 0; k < 5000000; k++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_fmadd_ps(a[i], b, c);
    const double d = now() - t;
    float sink[16] = {0};
    for (int i = 0; i < 16; i++) _mm512_storeu_ps(sink, _mm512_add_ps(_mm512_loadu_ps(sink), a[i]));
    return sink[0] > 1e30f ? 0.0 : 5e6 * 16 * 32 / d * 1e-9;
}

int main(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 1;
    ops = zt_ops_cpu();
    must(zt_ops_cpu_create(threads, argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL, &ctx,
                           &err));
    printf("{\"context\":\"%s\"", zt_ops_cpu_describe(ctx));
    if (__builtin_cpu_supports("avx512f")) {
        double top = 0.0;
        for (int i = 0; i < 5; i++) {
            const double p = peak_avx512();
            top = p > top ? p : top;
        }
        printf(",\"peak_gflops_one_thread\":%.0f", top);
    }
    puts("}");
    bench_gemm(2048, 768, 256);
    bench_gemm(2048, 256, 256);
    bench_gemm(2048, 1024, 256);
    bench_gemm(2048, 256, 1024);
    bench_gemm(1024, 768, 768);
    bench_gemm(1024, 3072, 768);
    bench_gemm(512, 16384, 256);
    bench_attention(8, 256, 4, 64);
    bench_attention(8, 256, 6, 64);
    bench_attention(4, 1024, 4, 64);
    bench_attention(4, 256, 4, 128);
    bench_rows("gelu_forward", run_gelu_forward, 2048, 1024, 2);
    bench_rows("gelu_backward", run_gelu_backward, 2048, 1024, 3);
    bench_rows("layernorm_forward", run_layernorm, 2048, 256, 2);
    bench_rows("layernorm_backward", run_layernorm_backward, 2048, 256, 3);
    bench_rows("bias_backward", run_bias, 2048, 1024, 1);
    bench_rows("cross_entropy", run_cross_entropy, 2048, 256, 2);
    bench_rows("cross_entropy", run_cross_entropy, 128, 50304, 2);
    bench_optim(1000000);
    bench_optim(30000000);
    zt_ops_cpu_destroy(ctx);
    return 0;
}
