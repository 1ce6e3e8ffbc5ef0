/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM on 16-bit operands: real bf16 where this processor has it, and emulation everywhere. */
#include "kernels/cpu/gemm.h"
#include "tests/kernels/half.h"

struct shape {
    int64_t M, N, K;
};
static const struct shape shapes[] = {
    {1, 1, 1},      {1, 3, 17},     {3, 1, 100},    {17, 100, 3},   {100, 257, 17},
    {257, 64, 64},  {64, 17, 257},  {300, 130, 33}, {513, 48, 80},  {130, 769, 40},
    {20, 8200, 24}, {24, 20, 8200}, {257, 8193, 5}, {128, 5, 1000}, {70, 96, 3000},
};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* What one call is made of. ct is t or fp32. */
struct call {
    enum zt_gemm_op op;
    struct shape s;
    enum zt_dtype t, ct;
    bool bias, accumulate, packed;
};

struct operands {
    struct pair A, B, bias, C; /* C.w is used when ct is fp32 */
};

static struct operands operands_of(const struct call *c) {
    const struct shape *s = &c->s;
    struct operands o = {random_pair(s->M * s->K, 1.0, c->t), random_pair(s->K * s->N, 1.0, c->t),
                         random_pair(s->N, 1.0, c->t), random_pair(s->M * s->N, 1.0, c->t)};
    if (c->ct == ZT_F32)
        for (int64_t i = 0; i < s->M * s->N; i++) o.C.w[i] = uniform();
    return o;
}

static void *workspace(const struct call *c, enum zt_dtype t) {
    const size_t bytes = zt_ops_cpu()->gemm_workspace(c->op, c->s.M, c->s.N, c->s.K, t);
    return bytes && c->packed ? buffer((int64_t)(bytes / 4)) : NULL;
}

/* In 16 bits, or with `wide` the same call in fp32 on the same numbers. */
static void run(struct zt_ops_ctx *x, const struct call *c, const struct operands *o, void *C,
                bool wide) {
    const struct shape *s = &c->s;
    const enum zt_dtype t = wide ? ZT_F32 : c->t;
    const void *bias = !c->bias ? NULL : wide ? (void *)o->bias.w : o->bias.h;
    OK(zt_ops_cpu()->gemm(x, c->op, s->M, s->N, s->K, t, wide ? (void *)o->A.w : o->A.h,
                          wide ? (void *)o->B.w : o->B.h, bias, C, wide ? ZT_F32 : c->ct,
                          c->accumulate, workspace(c, t), &err));
}

/* K products (exact in fp32 for two 16-bit numbers) and at most two more addends: gamma_{K+2} of
 * the absolute sum, in whatever order; then the one rounding of a 16-bit result. Every element if
 * they are few, else a fixed sample. */
static void check_fp64(const struct call *c, const struct operands *o, const float *before,
                       const void *C, const char *what) {
    const struct shape *s = &c->s;
    const int64_t total = s->M * s->N, step = total > 2000 ? total / 2000 * 2 + 1 : 1;
    for (int64_t e = 0; e < total; e += step) {
        const int64_t i = e / s->N, j = e % s->N;
        double sum = (c->bias ? o->bias.w[j] : 0.0) + (c->accumulate ? before[e] : 0.0);
        double size =
            (c->bias ? fabsf(o->bias.w[j]) : 0.0) + (c->accumulate ? fabsf(before[e]) : 0.0);
        for (int64_t k = 0; k < s->K; k++) {
            const float a = o->A.w[c->op == ZT_GEMM_DW ? k * s->M + i : i * s->K + k];
            const float b = o->B.w[c->op == ZT_GEMM_FWD ? j * s->K + k : k * s->N + j];
            sum += (double)a * b;
            size += fabs((double)a * b);
        }
        const double lost = gamma_n((double)s->K + 2) * size;
        if (c->ct == ZT_F32)
            cr_assert(fabs((double)((const float *)C)[e] - sum) <= lost + U32 * fabs(sum),
                      "%s op %d %lldx%lldx%lld element %lld: %.9g, expected %.9g", what, (int)c->op,
                      (long long)s->M, (long long)s->N, (long long)s->K, (long long)e,
                      (double)((const float *)C)[e], sum);
        else
            near16(((const uint16_t *)C)[e], sum, lost, c->t, what, e);
    }
}

static void check_call(struct zt_ops_ctx *x, const struct call *c, const char *what) {
    const int64_t n = c->s.M * c->s.N;
    struct operands o = operands_of(c);
    float *before = copy_buffer(o.C.w, n);
    void *C = c->ct == ZT_F32 ? (void *)o.C.w : o.C.h;
    run(x, c, &o, C, false);
    check_fp64(c, &o, before, C, what);
    if (strstr(zt_ops_cpu_compute(x, c->t), "emulated")) { /* then it is the fp32 GEMM, rounded */
        run(x, c, &o, before, true);
        if (c->ct == ZT_F32)
            same_bits(C, before, n, what, 2, "emulated");
        else
            is_rounded(C, before, n, c->t, what);
    }
    end_buffers();
}

/* All orientations, types of the result, with and without bias, old value and packing. */
static void check_shapes(const char *isa, const char *library, enum zt_dtype t) {
    struct zt_ops_ctx *x = context(2, isa, library);
    for (int n = 0; n < SHAPES * 3; n++)
        for (int v = 0; v < 4; v++) {
            const struct call c = {(enum zt_gemm_op)(n % 3), shapes[n / 3],        t,
                                   v & 1 ? ZT_F32 : t,       n % 3 == 0 && v != 3, v >= 2,
                                   (n + v) % 4 != 0};
            check_call(x, &c, library);
        }
    zt_ops_cpu_destroy(x);
}

Test(half_gemm, bf16_on_the_best_this_processor_has) { check_shapes(NULL, "onednn", ZT_BF16); }
Test(half_gemm, bf16_emulated_on_onednn) { check_shapes("avx2", "onednn", ZT_BF16); }
Test(half_gemm, bf16_emulated_on_openblas) { check_shapes(NULL, "openblas", ZT_BF16); }
Test(half_gemm, fp16_is_emulated) { check_shapes(NULL, "onednn", ZT_F16); }

/* Adding to zeros is writing; and what was packed gives what plain weights give, to the bound. */
Test(half_gemm, adding_to_zero_gives_the_same_numbers_as_writing) {
    for (int isa = 0; isa < 2; isa++) {
        struct zt_ops_ctx *x = context(2, NULL, isa ? "openblas" : "onednn");
        for (int n = 0; n < SHAPES * 6; n++) {
            struct call c = {(enum zt_gemm_op)(n / 2 % 3),
                             shapes[n / 6],
                             ZT_BF16,
                             n % 2 ? ZT_F32 : ZT_BF16,
                             false,
                             false,
                             true};
            const int64_t count = c.s.M * c.s.N;
            struct operands o = operands_of(&c);
            void *zero = buffer(count), *C = c.ct == ZT_F32 ? (void *)o.C.w : o.C.h;
            run(x, &c, &o, C, false);
            c.accumulate = true;
            run(x, &c, &o, zero, false);
            for (int64_t i = 0; i < count; i++)
                cr_assert(c.ct == ZT_F32 ? ((float *)zero)[i] == ((float *)C)[i]
                                         : value16(((uint16_t *)zero)[i], c.t) ==
                                               value16(((uint16_t *)C)[i], c.t),
                          "op %d shape %d element %lld", (int)c.op, n / 6, (long long)i);
            end_buffers();
        }
        zt_ops_cpu_destroy(x);
    }
}

static const struct shape big[] = {{512, 256, 256}, {300, 130, 33},  {1000, 384, 128},
                                   {64, 768, 768},  {700, 8192, 16}, {768, 192, 2048}};

static void same_for_threads(const char *isa, enum zt_dtype t) {
    for (int n = 0; n < 6 * 3; n++) {
        const struct call c = {(enum zt_gemm_op)(n % 3),
                               big[n / 3],
                               t,
                               n / 3 % 2 ? ZT_F32 : t,
                               n % 3 == 0,
                               true,
                               true};
        const int64_t count = c.s.M * c.s.N;
        struct operands o = operands_of(&c);
        void *start = c.ct == ZT_F32 ? (void *)o.C.w : o.C.h, *first = NULL;
        const size_t bytes = (size_t)count * zt_dtype_size(c.ct);
        for (int i = 0; i < THREAD_COUNTS; i++) {
            struct zt_ops_ctx *x = context(thread_counts[i], isa, NULL);
            void *C = buffer(count);
            memcpy(C, start, bytes);
            run(x, &c, &o, C, false);
            first = first ? first : C;
            cr_assert_eq(memcmp(C, first, bytes), 0, "op %d shape %d with %d threads", (int)c.op,
                         n / 3, thread_counts[i]);
            zt_ops_cpu_destroy(x);
        }
        end_buffers();
    }
}

Test(half_gemm, same_bits_for_any_number_of_threads) { same_for_threads(NULL, ZT_BF16); }
Test(half_gemm, same_bits_for_any_number_of_threads_emulated) { same_for_threads("avx2", ZT_BF16); }
Test(half_gemm, same_bits_for_any_number_of_threads_fp16) { same_for_threads(NULL, ZT_F16); }

/* A batch split over ranks computes what the whole batch would (brgemm only). */
Test(half_gemm, rows_do_not_depend_on_the_batch) {
    struct zt_ops_ctx *x = context(2, NULL, "onednn");
    if (!strstr(zt_ops_cpu_describe(x), "brg:")) cr_skip_test("this processor has no brgemm");
    enum { M = 2048, N = 192, K = 160 };
    for (int op = ZT_GEMM_FWD; op <= ZT_GEMM_DX; op++) {
        struct call c = {(enum zt_gemm_op)op, {M, N, K}, ZT_BF16, ZT_BF16, false, false, true};
        struct operands o = operands_of(&c);
        uint16_t *whole = half_buffer(M * N), *C = half_buffer(M * N);
        run(x, &c, &o, whole, false);
        for (int64_t parts = 2; parts <= 8; parts *= 2) {
            c.s.M = M / parts;
            struct operands part = o;
            for (int64_t p = 0; p < parts; p++) {
                part.A.h = o.A.h + p * c.s.M * K;
                run(x, &c, &part, C + p * c.s.M * N, false);
            }
            cr_assert_eq(memcmp(C, whole, sizeof *C * M * N), 0, "op %d in %d parts", op,
                         (int)parts);
        }
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

/* The layout of packed bf16 by its definition: pairs of rows of w beside each other. */
Test(half_gemm, packing_puts_every_element_in_its_place) {
    static const struct shape packs[] = {{0, 64, 32}, {0, 1, 1},   {0, 63, 33},
                                         {0, 17, 64}, {0, 64, 95}, {0, 40, 100}};
    for (int i = 0; i < ISA_NAMES; i++) {
        const struct zt_vec *v = zt_vec_find(isa_names[i]);
        for (int n = 0; v && n < 12; n++) {
            const int64_t N = packs[n / 2].N, K = packs[n / 2].K, width = 64;
            const int64_t rows = (K + 31) / 32 * 32, ks = n % 2 ? 1 : N, ns = n % 2 ? K : 1;
            struct pair w = random_pair(N * K, 1.0, ZT_BF16);
            uint16_t *out = half_buffer(rows * width);
            memset(out, 0xff, (size_t)(rows * width) * sizeof *out);
            v->pack_bf16(out, w.h, ks, ns, K, N, width);
            for (int64_t k = 0; k < rows; k++)
                for (int64_t c = 0; c < width; c++) {
                    const uint16_t want = k < K && c < N ? w.h[k * ks + c * ns] : 0;
                    cr_assert_eq(out[(k / 2 * width + c) * 2 + k % 2], want, "%s (%lld, %lld)",
                                 isa_names[i], (long long)k, (long long)c);
                }
            end_buffers();
        }
    }
}

/* Sizes are of the shape and the type alone: the same whether the product is real or emulated. */
Test(half_gemm, workspace_is_a_function_of_shape_and_type) {
    const struct zt_ops *o = zt_ops_cpu();
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_FWD, 5, 100, 65, ZT_BF16), (size_t)128 * 128 * 2);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_DX, 5, 768, 256, ZT_BF16), (size_t)768 * 256 * 2);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_DW, 768, 256, 5, ZT_BF16), 0);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_FWD, 5, 50304, 768, ZT_BF16), 0);
    cr_expect_eq(o->gemm_workspace(ZT_GEMM_FWD, 5, 768, 768, ZT_F16), 0);
}

Test(half_gemm, empty_sums_and_empty_outputs) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const float values[4] = {1, 2, 3, 4}, ten[2] = {10, 20};
    for (int k = 0; k < 2; k++) {
        struct pair c = pair_of(values, 4, halves[k]), bias = pair_of(ten, 2, halves[k]);
        OK(o->gemm(x, ZT_GEMM_FWD, 0, 2, 3, halves[k], c.h, c.h, NULL, c.h, halves[k], false, NULL,
                   &err));
        cr_expect(value16(c.h[0], halves[k]) == 1 && value16(c.h[3], halves[k]) == 4);
        OK(o->gemm(x, ZT_GEMM_FWD, 2, 2, 0, halves[k], c.h, c.h, bias.h, c.h, halves[k], true, NULL,
                   &err));
        cr_expect(value16(c.h[0], halves[k]) == 11 && value16(c.h[1], halves[k]) == 22 &&
                  value16(c.h[2], halves[k]) == 13 && value16(c.h[3], halves[k]) == 24);
        OK(o->gemm(x, ZT_GEMM_FWD, 2, 2, 0, halves[k], c.h, c.h, bias.h, c.w, ZT_F32, false, NULL,
                   &err));
        cr_expect(c.w[0] == 10 && c.w[1] == 20 && c.w[2] == 10 && c.w[3] == 20);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

/* What computes is said: by the description and for `zctl dtypes`. */
Test(half_gemm, says_what_it_computes_in) {
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const bool native = strstr(zt_ops_cpu_describe(x), "bf16 brg:") != NULL;
    const char *c = zt_ops_cpu_compute(x, ZT_BF16);
    cr_expect(strncmp(c, native ? "bf16" : "fp32 (bf16 emulated", native ? 4 : 19) == 0, "%s", c);
    cr_expect_str_eq(zt_ops_cpu_compute(x, ZT_F32), "fp32");
    cr_expect(strncmp(zt_ops_cpu_compute(x, ZT_F16), "fp32 (fp16 emulated", 19) == 0);
    cr_expect(!zt_ops_cpu_compute(x, ZT_I32));
    zt_ops_cpu_destroy(x);
    x = context(1, NULL, "openblas");
    cr_expect(strstr(zt_ops_cpu_describe(x), "bf16 emulated in fp32"), "%s",
              zt_ops_cpu_describe(x));
    cr_expect(strncmp(zt_ops_cpu_compute(x, ZT_BF16), "fp32 (bf16 emulated", 19) == 0);
    zt_ops_cpu_destroy(x);
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) return;
    x = context(1, NULL, NULL);
    cr_expect(native || getenv("DNNL_MAX_CPU_ISA"), "%s: this processor multiplies bf16",
              zt_ops_cpu_describe(x));
    zt_ops_cpu_destroy(x);
}

Test(half_gemm, a_narrower_set_is_emulated) {
    struct zt_ops_ctx *x = context(1, "avx2", NULL);
    cr_expect(strstr(zt_ops_cpu_describe(x), "bf16 emulated in fp32"), "%s",
              zt_ops_cpu_describe(x));
    zt_ops_cpu_destroy(x);
}
