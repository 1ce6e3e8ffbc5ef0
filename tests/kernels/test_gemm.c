/* SPDX-License-Identifier: Apache-2.0 */
/* The GEMM interface: both libraries against fp64, the cut, bits over threads, concurrency. */
#include "tests/kernels/util.h"
#include "kernels/cpu/gemm.h"

struct shape {
    int64_t M, N, K;
};
static const struct shape shapes[] = {
    {1, 1, 1},      {1, 3, 17},     {3, 1, 100},    {17, 100, 3},   {100, 257, 17},
    {257, 64, 64},  {64, 17, 257},  {300, 130, 33}, {513, 48, 80},  {130, 769, 40},
    {20, 8200, 24}, {24, 20, 8200}, {257, 8193, 5}, {128, 5, 1000},
};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))
static const char *const libraries[] = {"onednn", "openblas"};

static float a_at(enum zt_gemm_op op, const struct shape *s, const float *A, int64_t i, int64_t k) {
    return op == ZT_GEMM_DW ? A[k * s->M + i] : A[i * s->K + k];
}
static float b_at(enum zt_gemm_op op, const struct shape *s, const float *B, int64_t k, int64_t j) {
    return op == ZT_GEMM_FWD ? B[j * s->K + k] : B[k * s->N + j];
}

/* Every element if they are few, else a fixed sample. The bound is the classical one with the
 * number of terms held to 64: sums of random signs stay far below it. */
static void check_product(enum zt_gemm_op op, const struct shape *s, const float *A, const float *B,
                          const float *bias, const float *before, const float *C, const char *lib) {
    const int64_t total = s->M * s->N, step = total > 4000 ? total / 4000 * 2 + 1 : 1;
    const double terms = s->K + 2 < 64 ? (double)s->K + 2.0 : 64.0;
    for (int64_t e = 0; e < total; e += step) {
        const int64_t i = e / s->N, j = e % s->N;
        double sum = (bias ? (double)bias[j] : 0.0) + (before ? (double)before[e] : 0.0);
        double size = (bias ? fabs(bias[j]) : 0.0) + (before ? fabs(before[e]) : 0.0);
        for (int64_t k = 0; k < s->K; k++) {
            const double t = (double)a_at(op, s, A, i, k) * b_at(op, s, B, k, j);
            sum += t;
            size += fabs(t);
        }
        cr_assert(fabs(C[e] - sum) <= terms * 0x1p-24 * size,
                  "%s op %d %lldx%lldx%lld element (%lld, %lld): %.9g, expected %.9g", lib, (int)op,
                  (long long)s->M, (long long)s->N, (long long)s->K, (long long)i, (long long)j,
                  (double)C[e], sum);
    }
}

static float *workspace_for(enum zt_gemm_op op, const struct shape *s) {
    size_t bytes = zt_ops_cpu()->gemm_workspace(op, s->M, s->N, s->K, ZT_F32);
    return bytes ? buffer((int64_t)(bytes / 4)) : NULL;
}

static void check_shapes(const char *lib) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, lib);
    for (int n = 0; n < SHAPES * 3; n++) {
        const struct shape *s = &shapes[n / 3];
        const enum zt_gemm_op op = (enum zt_gemm_op)(n % 3);
        float *A = random_buffer(s->M * s->K), *B = random_buffer(s->K * s->N);
        float *bias = random_buffer(s->N), *C = buffer(s->M * s->N);
        float *before = random_buffer(s->M * s->N), *work = workspace_for(op, s);
        OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, NULL, C, ZT_F32, false, work, &err));
        check_product(op, s, A, B, NULL, NULL, C, lib);
        OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, NULL, C, ZT_F32, false, NULL, &err));
        check_product(op, s, A, B, NULL, NULL, C, lib);
        memcpy(C, before, (size_t)(s->M * s->N) * 4);
        OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, NULL, C, ZT_F32, true, work, &err));
        check_product(op, s, A, B, NULL, before, C, lib);
        if (op == ZT_GEMM_FWD) {
            OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, bias, C, ZT_F32, false, work, &err));
            check_product(op, s, A, B, bias, NULL, C, lib);
            memcpy(C, before, (size_t)(s->M * s->N) * 4);
            OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, bias, C, ZT_F32, true, work, &err));
            check_product(op, s, A, B, bias, before, C, lib);
        }
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(gemm, onednn_follows_fp64) { check_shapes("onednn"); }
Test(gemm, openblas_follows_fp64) { check_shapes("openblas"); }

/* C += A B into zeros is C = A B, so a first micro-step may do either. */
Test(gemm, adding_to_zeros_equals_writing) {
    const struct zt_ops *o = zt_ops_cpu();
    for (int l = 0; l < 2; l++) {
        struct zt_ops_ctx *x = context(2, NULL, libraries[l]);
        for (int n = 0; n < SHAPES * 3; n++) {
            const struct shape *s = &shapes[n / 3];
            const enum zt_gemm_op op = (enum zt_gemm_op)(n % 3);
            float *A = random_buffer(s->M * s->K), *B = random_buffer(s->K * s->N);
            float *C = buffer(s->M * s->N), *D = buffer(s->M * s->N), *work = workspace_for(op, s);
            OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, NULL, C, ZT_F32, false, work, &err));
            OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, NULL, D, ZT_F32, true, work, &err));
            for (int64_t i = 0; i < s->M * s->N; i++)
                cr_assert_eq(C[i], D[i], "%s op %d shape %d element %lld", libraries[l], (int)op,
                             n / 3, (long long)i);
            end_buffers();
        }
        zt_ops_cpu_destroy(x);
    }
}

Test(gemm, same_bits_for_any_number_of_threads) {
    const struct zt_ops *o = zt_ops_cpu();
    static const struct shape big[] = {{512, 256, 256}, {300, 130, 33},  {1000, 384, 128},
                                       {64, 768, 768},  {700, 8192, 16}, {768, 192, 2048}};
    for (int l = 0; l < 2; l++)
        for (int n = 0; n < 6 * 3; n++) {
            const struct shape *s = &big[n / 3];
            const enum zt_gemm_op op = (enum zt_gemm_op)(n % 3);
            float *A = random_buffer(s->M * s->K), *B = random_buffer(s->K * s->N);
            float *bias = op == ZT_GEMM_FWD ? random_buffer(s->N) : NULL;
            float *start = random_buffer(s->M * s->N), *first = NULL, *work = workspace_for(op, s);
            for (int t = 0; t < THREAD_COUNTS; t++) {
                struct zt_ops_ctx *x = context(thread_counts[t], NULL, libraries[l]);
                float *C = copy_buffer(start, s->M * s->N);
                OK(o->gemm(x, op, s->M, s->N, s->K, ZT_F32, A, B, bias, C, ZT_F32, true, work,
                           &err));
                first = first ? first : C;
                same_bits(first, C, s->M * s->N, libraries[l], thread_counts[t], "best");
                zt_ops_cpu_destroy(x);
            }
            end_buffers();
        }
}

/* Row strips: a row's bits do not depend on how many rows there are, so a batch split over ranks
 * computes what the whole batch would. Claimed for brgemm only. */
Test(gemm, rows_do_not_depend_on_the_batch) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, "onednn");
    if (!strstr(zt_ops_cpu_describe(x), "brg:")) cr_skip_test("this processor has no brgemm");
    enum { M = 2048, N = 192, K = 160 };
    for (int op = ZT_GEMM_FWD; op <= ZT_GEMM_DX; op++) {
        const struct shape s = {M, N, K};
        float *A = random_buffer(M * K), *B = random_buffer(K * N), *whole = buffer(M * N);
        float *work = workspace_for((enum zt_gemm_op)op, &s);
        OK(o->gemm(x, (enum zt_gemm_op)op, M, N, K, ZT_F32, A, B, NULL, whole, ZT_F32, false, work,
                   &err));
        for (int64_t parts = 2; parts <= 8; parts *= 2) {
            float *C = buffer(M * N);
            const int64_t rows = M / parts;
            for (int64_t p = 0; p < parts; p++)
                OK(o->gemm(x, (enum zt_gemm_op)op, rows, N, K, ZT_F32, A + p * rows * K, B, NULL,
                           C + p * rows * N, ZT_F32, false, work, &err));
            same_bits(whole, C, M * N, "row shards", (int)parts, "best");
        }
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

/* Sanitizers cannot see into the libraries: concurrent tiles are compared byte for byte. */
Test(gemm, concurrent_tiles_never_disturb_each_other) {
    const struct zt_ops *o = zt_ops_cpu();
    for (int l = 0; l < 2; l++) {
        struct zt_ops_ctx *x = context(8, NULL, libraries[l]);
        const struct shape s = {512, 256, 96};
        for (int op = 0; op < 3; op++) {
            float *A = random_buffer(s.M * s.K), *B = random_buffer(s.K * s.N);
            float *first = buffer(s.M * s.N), *C = buffer(s.M * s.N);
            float *work = workspace_for((enum zt_gemm_op)op, &s);
            for (int rep = 0; rep < 100; rep++) {
                float *out = rep ? C : first;
                memset(out, 0xff, (size_t)(s.M * s.N) * 4);
                OK(o->gemm(x, (enum zt_gemm_op)op, s.M, s.N, s.K, ZT_F32, A, B, NULL, out, ZT_F32,
                           false, work, &err));
                cr_assert_eq(memcmp(out, first, (size_t)(s.M * s.N) * 4), 0, "%s op %d call %d",
                             libraries[l], op, rep);
            }
            end_buffers();
        }
        zt_ops_cpu_destroy(x);
    }
}

/* Rule 1, worked by hand from decision D1. */
Test(gemm, cut_is_the_rule) {
    static const struct {
        enum zt_gemm_op op;
        int64_t M, N, K, r, c, nr, nc;
    } want[] = {
        {ZT_GEMM_FWD, 2048, 768, 256, 256, 768, 8, 1},
        {ZT_GEMM_FWD, 1024, 768, 256, 128, 768, 8, 1},
        {ZT_GEMM_DX, 512, 768, 256, 64, 768, 8, 1},
        {ZT_GEMM_DX, 100, 768, 256, 64, 768, 2, 1},
        {ZT_GEMM_FWD, 1, 768, 256, 1, 768, 1, 1},
        {ZT_GEMM_FWD, 1024, 50304, 768, 256, 384, 4, 131},
        {ZT_GEMM_DX, 1024, 768, 50304, 256, 384, 4, 2},
        {ZT_GEMM_DW, 3072, 768, 2048, 256, 768, 12, 1},
        /* 3 tiles; the longer side is halved: columns to 384 (6 tiles), again to 192 (12) */
        {ZT_GEMM_DW, 768, 768, 2048, 256, 192, 3, 4},
        {ZT_GEMM_DW, 256, 256, 2048, 128, 128, 2, 2},
        {ZT_GEMM_DW, 64, 64, 2048, 64, 64, 1, 1},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_gemm_cut c = zt_gemm_cut_onednn(want[i].op, want[i].M, want[i].N, want[i].K);
        cr_expect(c.r == want[i].r && c.c == want[i].c && c.nr == want[i].nr && c.nc == want[i].nc,
                  "row %zu: %lld x %lld in %lld x %lld tiles", i, (long long)c.r, (long long)c.c,
                  (long long)c.nr, (long long)c.nc);
    }
    struct zt_gemm_cut b = zt_gemm_cut_openblas(ZT_GEMM_FWD, 4096, 768, 64);
    cr_expect(b.r == 1024 && b.c == 384 && b.nr == 4 && b.nc == 2);
}

Test(gemm, workspace_is_the_formula) {
    const struct zt_ops *o = zt_ops_cpu();
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_FWD, 5, 100, 65, ZT_F32), (size_t)128 * 128 * 4);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_DX, 5, 768, 256, ZT_F32), (size_t)768 * 256 * 4);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_DW, 768, 256, 5, ZT_F32), 0);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_FWD, 5, 50304, 768, ZT_F32), 0);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_DX, 5, 768, 50304, ZT_F32), 0);
}

Test(gemm, empty_sums_and_empty_outputs) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    float c[4] = {1, 2, 3, 4}, bias[2] = {10, 20}, none = 0;
    OK(o->gemm(x, ZT_GEMM_FWD, 0, 2, 3, ZT_F32, &none, &none, NULL, c, ZT_F32, false, NULL, &err));
    cr_expect(c[0] == 1 && c[3] == 4);
    OK(o->gemm(x, ZT_GEMM_FWD, 2, 2, 0, ZT_F32, &none, &none, bias, c, ZT_F32, true, NULL, &err));
    cr_expect(c[0] == 11 && c[1] == 22 && c[2] == 13 && c[3] == 24);
    OK(o->gemm(x, ZT_GEMM_DX, 2, 2, 0, ZT_F32, &none, &none, NULL, c, ZT_F32, false, NULL, &err));
    cr_expect(c[0] == 0 && c[3] == 0);
    zt_ops_cpu_destroy(x);
}

Test(gemm, refusals_name_the_cause) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL), *none = NULL;
    struct zt_error e = {0};
    float a[4] = {0};
    cr_expect_eq(o->gemm(x, ZT_GEMM_FWD, 2, 2, 1, ZT_I32, a, a, NULL, a, ZT_F32, false, NULL, &e),
                 ZT_EUNSUPPORTED);
    cr_expect(strstr(e.msg, "gemm") && strstr(e.msg, "int32"));
    cr_expect_eq(o->gemm(x, ZT_GEMM_FWD, 2, 2, 1, ZT_BF16, a, a, NULL, a, ZT_F16, false, NULL, &e),
                 ZT_EUNSUPPORTED);
    cr_expect(strstr(e.msg, "gemm") && strstr(e.msg, "fp16"));
    cr_expect_eq(o->gemm(x, ZT_GEMM_DX, 2, 2, 1, ZT_F32, a, a, a, a, ZT_F32, false, NULL, &e),
                 ZT_EINVAL);
    cr_expect_eq(o->gemm(x, ZT_GEMM_DX, -1, 2, 1, ZT_F32, a, a, NULL, a, ZT_F32, false, NULL, &e),
                 ZT_EINVAL);
    cr_expect_eq(zt_ops_cpu_create(1, "avx9", NULL, &none, &e), ZT_EINVAL);
    cr_expect(strstr(e.msg, "avx9") && !none);
    cr_expect_eq(zt_ops_cpu_create(1, NULL, "mkl", &none, &e), ZT_EINVAL);
    cr_expect(strstr(e.msg, "mkl") && !none);
    cr_expect_eq(zt_ops_cpu_create(0, NULL, NULL, &none, &e), ZT_EINVAL);
    cr_expect(strstr(e.msg, "--threads") && !none);
    zt_ops_cpu_destroy(x);
}

Test(gemm, description_names_set_library_threads_and_rule) {
    struct zt_ops_ctx *x = context(2, "avx2", "onednn");
    const char *d = zt_ops_cpu_describe(x);
    cr_expect(strncmp(d, "avx2, oneDNN 2.", 15) == 0 && strstr(d, "2 threads, gemm rule 1"), "%s",
              d);
    cr_expect(!strstr(d, "avx512"), "%s: an explicit set limits oneDNN too", d);
    zt_ops_cpu_destroy(x);
    x = context(1, NULL, "openblas");
    d = zt_ops_cpu_describe(x);
    cr_expect(strstr(d, "OpenBLAS ") && strstr(d, "1 thread, gemm rule 1"), "%s", d);
    zt_ops_cpu_destroy(x);
}

/* More shapes than the plan cache holds: evicted plans are made again and still right. */
Test(gemm, plans_are_evicted_and_remade) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, "onednn");
    for (int64_t round = 0; round < 2; round++)
        for (int64_t m = 1; m <= ZT_GEMM_PLANS + 20; m++) {
            const struct shape s = {m, 5, 3};
            float *A = random_buffer(m * 3), *B = random_buffer(15), *C = buffer(m * 5);
            OK(o->gemm(x, ZT_GEMM_FWD, m, 5, 3, ZT_F32, A, B, NULL, C, ZT_F32, false, NULL, &err));
            check_product(ZT_GEMM_FWD, &s, A, B, NULL, NULL, C, "onednn");
            end_buffers();
        }
    zt_ops_cpu_destroy(x);
}
