/* SPDX-License-Identifier: Apache-2.0 */
/* The pool and the operators on it, as a plain program: Criterion cannot run under the thread
 * sanitizer, and this is what it should look at. Exit 0 when all sums are right. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"
#include "tests/kernels/fused.h"

#define CHECK(e)                                                                                   \
    do {                                                                                           \
        if (!(e)) {                                                                                \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #e);                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { MAX_UNITS = 1000 };
struct job {
    int64_t plain[MAX_UNITS]; /* not atomic: a unit run twice or a missed hand-over is a race */
    int threads;
    _Atomic int bad_thread;
};

static void count_unit(void *arg, int64_t unit, int thread) {
    struct job *j = arg;
    j->plain[unit] += unit + 1;
    if (thread < 0 || thread >= j->threads) atomic_store(&j->bad_thread, 1);
}

/* As many units as threads, and a unit ends only when all have begun: every thread holds one. The
 * helpers then dawdle, so a caller that does not wait for them sees their units missing. */
struct meeting {
    int threads;
    _Atomic int begun;
    int64_t done[256];
};

static void meet_unit(void *arg, int64_t unit, int thread) {
    struct meeting *m = arg;
    atomic_fetch_add(&m->begun, 1);
    while (atomic_load(&m->begun) < m->threads) sched_yield();
    for (volatile int i = 0; thread > 0 && i < 20000; i++) {
    }
    m->done[unit] = thread + 1;
}

static void test_all_take_part(struct zt_pool *p, int threads) {
    for (int round = 0; round < 50; round++) {
        static struct meeting m;
        memset(&m, 0, sizeof m);
        m.threads = threads;
        zt_pool_run(p, threads, meet_unit, &m);
        int64_t seen = 0;
        for (int u = 0; u < threads; u++) {
            CHECK(m.done[u] != 0);
            seen += m.done[u];
        }
        CHECK(seen == (int64_t)threads * (threads + 1) / 2); /* each thread once */
    }
}

static _Atomic int started;
static void on_start(void) { atomic_fetch_add(&started, 1); }

/* Every unit exactly once, for jobs of many sizes back to back. */
static void test_pool(int threads) {
    static struct job j;
    struct zt_pool *p;
    struct zt_error err;
    memset(&j, 0, sizeof j);
    j.threads = threads;
    atomic_store(&started, 0);
    CHECK(zt_pool_create(threads, on_start, &p, &err) == ZT_OK);
    CHECK(zt_pool_threads(p) == threads);
    int64_t runs[MAX_UNITS] = {0};
    for (int round = 0; round < 2000; round++) {
        const int64_t units = round % 37 == 0 ? MAX_UNITS : round % 11;
        zt_pool_run(p, units, count_unit, &j);
        for (int64_t u = 0; u < units; u++) runs[u]++;
    }
    for (int64_t u = 0; u < MAX_UNITS; u++) CHECK(j.plain[u] == runs[u] * (u + 1));
    CHECK(!atomic_load(&j.bad_thread));
    test_all_take_part(p, threads);
    zt_pool_destroy(p);
    CHECK(atomic_load(&started) == threads);
}

/* Operators of every kind on a pool, twice: the second result has the first one's bits. */
static void test_operators(int threads, const char *library) {
    enum { B = 2, T = 70, H = 3, D = 16, C = H * D, N = B * T, V = 33 };
    const struct zt_ops *o = zt_ops_cpu();
    const struct zt_attention shape = fused(B, T, H, D);
    struct zt_ops_ctx *x;
    struct zt_error err;
    if (zt_ops_cpu_create(threads, NULL, library, &x, &err) != ZT_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    static float qkv[N * 3 * C], out[2][N * C], lse[B * H * T], dqkv[2][N * 3 * C], w[C * C];
    static float y[2][N * C], dw[2][C * C], mean[N], rstd[N], logits[N * V], loss[2][N];
    static int32_t target[N];
    float *work = aligned_alloc(64, 1 << 20);
    CHECK(work);
    for (int i = 0; i < N * 3 * C; i++) qkv[i] = (float)(i * 7919 % 1000) / 500.0f - 1.0f;
    for (int i = 0; i < C * C; i++) w[i] = (float)(i * 104729 % 1000) / 500.0f - 1.0f;
    for (int r = 0; r < 2; r++) {
        CHECK(fused_forward(x, ZT_F32, out[r], lse, qkv, shape, &err) == 0);
        CHECK(fused_backward(x, ZT_F32, dqkv[r], out[r], qkv, out[r], lse, shape, &err) == 0);
        CHECK(o->gemm(x, ZT_GEMM_FWD, N, C, C, ZT_F32, out[r], w, NULL, y[r], ZT_F32, false, work,
                      &err) == 0);
        CHECK(o->gemm(x, ZT_GEMM_DW, C, C, N, ZT_F32, y[r], out[r], NULL, dw[r], ZT_F32, false,
                      NULL, &err) == 0);
        CHECK(o->layernorm_forward(x, ZT_F32, y[r], mean, rstd, y[r], NULL, NULL, w, w + C, N, C,
                                   1e-5, &err) == 0);
        CHECK(o->gelu_forward(x, ZT_F32, y[r], y[r], N * C, &err) == 0);
        for (int i = 0; i < N * V; i++) logits[i] = qkv[i % (N * 3 * C)];
        for (int i = 0; i < N; i++) target[i] = i % V;
        CHECK(o->cross_entropy(x, ZT_F32, logits, loss[r], target, NULL, N, V, 0.1f, true, &err) ==
              0);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0 &&
          memcmp(dqkv[0], dqkv[1], sizeof dqkv[0]) == 0);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(dw[0], dw[1], sizeof dw[0]) == 0);
    CHECK(memcmp(loss[0], loss[1], sizeof loss[0]) == 0);
    struct zt_fixsum s;
    zt_fixsum_zero(&s);
    CHECK(o->sum_squares(x, ZT_F32, qkv, N * 3 * C, &s, &err) == 0);
    free(work);
    zt_ops_cpu_destroy(x);
}

/* Row operators of several units each, in place where they may be. */
static void test_rows(int threads) {
    enum { N = 1200, C = 48, D = 16, T = 70, n = N * C };
    const struct zt_ops *o = zt_ops_cpu();
    const struct zt_dropout d = {0.3f, 1, 2, 3};
    const struct zt_vocab v = {10, C, 10 + C - 3};
    struct zt_ops_ctx *x;
    struct zt_error err;
    CHECK(zt_ops_cpu_create(threads, NULL, NULL, &x, &err) == ZT_OK);
    static float in[n], y[2][n], up[n], dgate[n], dw[2][C], rstd[N], max[N], sums[2 * N];
    static float loss[2][N], table[T * D];
    static int32_t target[N];
    float *work = aligned_alloc(64, 1 << 20);
    CHECK(work);
    for (int i = 0; i < n; i++) in[i] = (float)(i * 7919 % 1000) / 500.0f - 1.0f;
    for (int i = 0; i < T * D; i++) table[i] = in[i];
    for (int i = 0; i < N; i++) target[i] = i % (10 + C - 3);
    for (int r = 0; r < 2; r++) {
        memcpy(y[r], in, sizeof in);
        memcpy(up, in, sizeof in);
        memset(dw[r], 0, sizeof dw[r]);
        CHECK(o->rmsnorm_forward(x, ZT_F32, y[r], rstd, in, up, up, in, N, C, 1e-5, &err) == 0);
        CHECK(o->rope(x, ZT_F32, y[r], C, table, N / T, T, C / D, D, false, &err) == 0);
        CHECK(o->swiglu_forward(x, ZT_F32, y[r], y[r], up, n, &err) == 0);
        CHECK(o->dropout(x, ZT_F32, y[r], y[r], n, &d, zt_span_plain(5, n), &err) == 0);
        CHECK(o->swiglu_backward(x, ZT_F32, dgate, up, y[r], y[r], up, in, n, &err) == 0);
        CHECK(o->rmsnorm_backward(x, ZT_F32, ZT_F32, y[r], dw[r], y[r], dgate, in, rstd, N, C,
                                  false, work, &err) == 0);
        CHECK(o->vocab_max(x, ZT_F32, max, y[r], N, v, &err) == 0);
        CHECK(o->vocab_sum(x, ZT_F32, sums, y[r], max, target, N, v, &err) == 0);
        CHECK(o->vocab_loss(x, ZT_F32, y[r], loss[r], sums, max, target, rstd, N, v, 0.1f, true,
                            &err) == 0);
    }
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(dw[0], dw[1], sizeof dw[0]) == 0);
    CHECK(memcmp(loss[0], loss[1], sizeof loss[0]) == 0);
    free(work);
    zt_ops_cpu_destroy(x);
}

/* One key-value head for all queries: too few units for most pools, so backward goes in two passes.
 */
static void test_grouped_attention(int threads) {
    enum { T = 150, H = 3, D = 16, N = 3 * T * H * D };
    struct zt_attention shape = fused(1, T, H, D);
    struct zt_ops_ctx *x;
    struct zt_error err;
    CHECK(zt_ops_cpu_create(threads, NULL, NULL, &x, &err) == ZT_OK);
    static float qkv[N], out[N / 3], lse[H * T], dqkv[2][N];
    shape.KV = 1;
    shape.heads_all = H;
    shape.dropout = (struct zt_dropout){.p = 0.1f, .seed = 1, .step = 1, .site = 1};
    for (int i = 0; i < N; i++) qkv[i] = (float)(i * 7919 % 1000) / 500.0f - 1.0f;
    CHECK(fused_forward(x, ZT_F32, out, lse, qkv, shape, &err) == 0);
    for (int r = 0; r < 2; r++)
        CHECK(fused_backward(x, ZT_F32, dqkv[r], out, qkv, out, lse, shape, &err) == 0);
    CHECK(memcmp(dqkv[0], dqkv[1], sizeof dqkv[0]) == 0);
    zt_ops_cpu_destroy(x);
}

/* The operators in 16 bits, with what only they have: emulation's shared copies, sorted tokens,
 * noise.
 */
static void test_halves(int threads, const char *library, enum zt_dtype t) {
    enum { B = 2, T = 70, H = 3, D = 16, C = H * D, N = B * T, V = 33, BIG = 40000 };
    const struct zt_ops *o = zt_ops_cpu();
    const struct zt_attention shape = fused(B, T, H, D);
    struct zt_ops_ctx *x;
    struct zt_error err;
    CHECK(zt_ops_cpu_create(threads, NULL, library, &x, &err) == ZT_OK);
    static float wide[BIG], lse[B * H * T], dw[2][C * C], moment[2][BIG];
    static uint16_t qkv[N * 3 * C], out[2][N * C], dqkv[2][N * 3 * C], w[C * C], y[2][N * C];
    static uint16_t dwte[2][V * C], param[2][BIG], grad[BIG];
    static int32_t token[N];
    void *work = aligned_alloc(64, 1 << 20);
    CHECK(work);
    for (int i = 0; i < BIG; i++) wide[i] = (float)(i * 7919 % 1000) / 500.0f - 1.0f;
    for (int i = 0; i < N; i++) token[i] = i * i % V;
    CHECK(o->cast(x, qkv, t, wide, ZT_F32, N * 3 * C, &err) == 0);
    CHECK(o->cast(x, w, t, wide, ZT_F32, C * C, &err) == 0);
    CHECK(o->cast(x, grad, t, wide, ZT_F32, BIG, &err) == 0);
    for (int r = 0; r < 2; r++) {
        CHECK(fused_forward(x, t, out[r], lse, qkv, shape, &err) == 0);
        CHECK(fused_backward(x, t, dqkv[r], out[r], qkv, out[r], lse, shape, &err) == 0);
        CHECK(o->gemm(x, ZT_GEMM_FWD, N, C, C, t, out[r], w, NULL, y[r], t, false, work, &err) ==
              0);
        CHECK(o->gemm(x, ZT_GEMM_DW, C, C, N, t, y[r], out[r], NULL, dw[r], ZT_F32, false, NULL,
                      &err) == 0);
        memset(dwte[r], 0, sizeof dwte[r]);
        CHECK(o->embedding_backward(x, t, t, dwte[r], NULL, y[r], token, B, T, C, zt_vocab_all(V),
                                    work, &err) == 0);
        const struct zt_adamw_params a = {.lr = 1e-3,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .step = 1,
                                          .grad_scale = 1.0,
                                          .stochastic = true,
                                          .span = zt_span_plain(0, BIG)};
        memcpy(param[r], grad, sizeof grad);
        memset(moment, 0, sizeof moment);
        const struct zt_adamw_buffers b = {.param = param[r],
                                           .param_type = ZT_BF16,
                                           .m = moment[0],
                                           .v = moment[1],
                                           .grad = grad,
                                           .grad_type = t};
        CHECK(o->adamw(x, &b, BIG, &a, &err) == 0);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0 &&
          memcmp(dqkv[0], dqkv[1], sizeof dqkv[0]) == 0);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(dw[0], dw[1], sizeof dw[0]) == 0);
    CHECK(memcmp(dwte[0], dwte[1], sizeof dwte[0]) == 0);
    CHECK(memcmp(param[0], param[1], sizeof param[0]) == 0);
    free(work);
    zt_ops_cpu_destroy(x);
}

int main(void) {
    static const int counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++) {
        test_pool(counts[i]);
        test_operators(counts[i], "onednn");
        test_operators(counts[i], "openblas");
        test_rows(counts[i]);
        test_grouped_attention(counts[i]);
        test_halves(counts[i], "onednn", ZT_BF16);
        test_halves(counts[i], "openblas", ZT_BF16);
        test_halves(counts[i], "onednn", ZT_F16);
    }
    puts("pool and operators: every unit once, equal bits");
    return 0;
}
