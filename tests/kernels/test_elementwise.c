/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators, casts and the vector exponential and logarithm, against fp64. */
#include "tests/kernels/util.h"
#include "core/rng.h"

static const int64_t sizes[] = {1, 3, 15, 16, 17, 100, 257, 32768, 32769, 70001};
#define SIZES 10

static double ulp_error(float got, double want) {
    const float w = (float)want;
    const double ulp = (double)nextafterf(fabsf(w), INFINITY) - (double)fabsf(w);
    return fabs((double)got - want) / ulp;
}

Test(vec, exp_is_within_one_ulp_and_equal_on_all_sets) {
    enum { N = 1 << 20 };
    float *in = buffer(N), *first = NULL;
    for (int i = 0; i < N; i++) in[i] = (float)(-87.33 + (88.72 + 87.33) * i / (N - 1));
    for (int s = 0; s < ISA_NAMES; s++) {
        const struct zt_vec *v = zt_vec_find(isa_names[s]);
        if (!v) continue;
        float *out = buffer(N);
        v->exp(out, in, N);
        double worst = 0.0;
        for (int i = 0; i < N; i++) worst = fmax(worst, ulp_error(out[i], exp((double)in[i])));
        cr_expect(worst <= 1.0, "%s: worst error of exp is %g ulp", v->name, worst);
        if (first) same_bits(first, out, N, "exp", 1, v->name);
        first = first ? first : out;
    }
    end_buffers();
}

Test(vec, exp_special_values) {
    const float in[] = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -87.4f, -1e30f, 88.8f, 1e30f};
    for (int s = 0; s < ISA_NAMES; s++) {
        const struct zt_vec *v = zt_vec_find(isa_names[s]);
        float out[9];
        if (!v) continue;
        v->exp(out, in, 9);
        cr_expect(out[0] == 1.0f && out[1] == 1.0f && out[2] == 0.0f && out[3] == INFINITY);
        cr_expect(isnan(out[4]) && out[5] == 0.0f && out[6] == 0.0f);
        cr_expect(out[7] == INFINITY && out[8] == INFINITY);
    }
}

Test(vec, log_is_within_one_ulp_and_equal_on_all_sets) {
    enum { N = 1 << 20 };
    float *in = buffer(N), *first = NULL;
    for (int i = 0; i < N; i++) /* all exponents, and densely around 1 */
        in[i] = i % 2 ? (float)exp(-87.0 + 175.0 * i / N) : (float)(0.5 + 1.5 * i / N);
    for (int s = 0; s < ISA_NAMES; s++) {
        const struct zt_vec *v = zt_vec_find(isa_names[s]);
        if (!v) continue;
        float *out = buffer(N);
        v->log(out, in, N);
        double worst = 0.0;
        for (int i = 0; i < N; i++)
            if (in[i] != 1.0f) worst = fmax(worst, ulp_error(out[i], log((double)in[i])));
        cr_expect(worst <= 1.0, "%s: worst error of log is %g ulp", v->name, worst);
        if (first) same_bits(first, out, N, "log", 1, v->name);
        first = first ? first : out;
    }
    const float special[] = {1.0f, INFINITY, NAN};
    float out[3];
    zt_vec_find(NULL)->log(out, special, 3);
    cr_expect(out[0] == 0.0f && out[1] == INFINITY && isnan(out[2]));
    end_buffers();
}

Test(elementwise, add_scale_fill_copy_are_exact) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s];
        float *a = random_buffer(n), *b = random_buffer(n), *c = buffer(n);
        OK(o->add(x, ZT_F32, c, a, b, n, &err));
        for (int64_t i = 0; i < n; i++) cr_assert_eq(c[i], a[i] + b[i]);
        OK(o->scale(x, ZT_F32, c, 0.3f, n, &err));
        for (int64_t i = 0; i < n; i++) cr_assert_eq(c[i], (a[i] + b[i]) * 0.3f);
        OK(o->copy(x, c, a, (size_t)n * 4, &err));
        cr_assert_eq(memcmp(c, a, (size_t)n * 4), 0);
        OK(o->fill(x, ZT_F32, c, -2.5f, n, &err));
        for (int64_t i = 0; i < n; i++) cr_assert_eq(c[i], -2.5f);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(elementwise, fill_of_every_dtype) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    uint16_t h[5] = {0};
    int32_t i32[3] = {0};
    int64_t i64[3] = {0};
    uint8_t u8[3] = {0};
    struct zt_error e;
    OK(o->fill(x, ZT_BF16, h, 1.5f, 4, &err));
    cr_assert(h[0] == 0x3fc0 && h[3] == 0x3fc0 && h[4] == 0);
    OK(o->fill(x, ZT_F16, h, 1.5f, 4, &err));
    cr_assert(h[0] == 0x3e00 && h[3] == 0x3e00 && h[4] == 0);
    OK(o->fill(x, ZT_I32, i32, -7.0f, 2, &err));
    cr_assert(i32[0] == -7 && i32[1] == -7 && i32[2] == 0);
    OK(o->fill(x, ZT_I64, i64, -1.0f, 2, &err));
    cr_assert(i64[0] == -1 && i64[1] == -1 && i64[2] == 0);
    OK(o->fill(x, ZT_U8, u8, 255.0f, 2, &err));
    cr_assert(u8[0] == 255 && u8[1] == 255 && u8[2] == 0);
    cr_assert_eq(o->fill(x, ZT_I32, i32, 0.5f, 2, &e), ZT_EINVAL);
    cr_assert_eq(o->fill(x, ZT_U8, u8, 256.0f, 2, &e), ZT_EINVAL);
    zt_ops_cpu_destroy(x);
}

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    const double k = sqrt(2.0 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
}

Test(elementwise, gelu_follows_fp64) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s];
        float *in = random_buffer(n), *dy = random_buffer(n), *y = buffer(n), *dx = buffer(n);
        for (int64_t i = 0; i < n; i++) in[i] *= i % 7 == 0 ? 30.0f : 5.0f;
        OK(o->gelu_forward(x, ZT_F32, y, in, n, &err));
        OK(o->gelu_backward(x, ZT_F32, dx, in, dy, n, &err));
        for (int64_t i = 0; i < n; i++) {
            const double v = in[i], bound = 1e-6 * (1.0 + fabs(v)) * 0.5;
            cr_assert(fabs(y[i] - gelu(v)) <= bound, "gelu(%g) = %g", v, (double)y[i]);
            cr_assert(fabs(dx[i] - gelu_slope(v) * dy[i]) <= 1e-6, "gelu'(%g) dy = %g", v,
                      (double)dx[i]);
        }
        OK(o->gelu_backward(x, ZT_F32, dy, in, dy, n, &err)); /* in place */
        cr_assert_eq(memcmp(dy, dx, (size_t)n * 4), 0);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(elementwise, gelu_at_the_ends) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const float in[5] = {-1e4f, 1e4f, -50.0f, 50.0f, NAN}, one[5] = {1, 1, 1, 1, 1};
    float y[5], dx[5];
    OK(o->gelu_forward(x, ZT_F32, y, in, 5, &err));
    OK(o->gelu_backward(x, ZT_F32, dx, in, one, 5, &err));
    cr_expect(fabsf(y[0]) < 1e-30f && y[1] == 1e4f && fabsf(y[2]) < 1e-30f && y[3] == 50.0f &&
              isnan(y[4]));
    cr_expect(fabsf(dx[0]) < 1e-20f && dx[1] == 1.0f && fabsf(dx[2]) < 1e-20f && dx[3] == 1.0f);
    cr_expect(isnan(dx[4]));
    zt_ops_cpu_destroy(x);
}

enum { BITS_N = 70001 };
static float bits_in[BITS_N], bits_dy[BITS_N];
static void body_gelu(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->gelu_forward(x, ZT_F32, out, bits_in, BITS_N, &err));
}
static void body_gelu_backward(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->gelu_backward(x, ZT_F32, out, bits_in, bits_dy, BITS_N, &err));
}
static void body_add(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->add(x, ZT_F32, out, bits_in, bits_dy, BITS_N, &err));
}
static void body_normal(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->fill_normal(x, ZT_F32, out, 42, 3, zt_span_plain(1000, BITS_N), BITS_N, 0.02,
                                 &err));
}

Test(elementwise, same_bits_for_threads_and_sets) {
    for (int i = 0; i < BITS_N; i++) {
        bits_in[i] = 8.0f * uniform();
        bits_dy[i] = uniform();
    }
    all_contexts_agree(body_gelu, BITS_N, "gelu_forward");
    all_contexts_agree(body_gelu_backward, BITS_N, "gelu_backward");
    all_contexts_agree(body_add, BITS_N, "add");
    all_contexts_agree(body_normal, BITS_N, "fill_normal");
    end_buffers();
}

/* Vector code with a fall back to the definition (core/rng.h) where it could round otherwise: there
 * are two such elements, 1193924 and 8079273, among the first ten million of this tensor. */
Test(elementwise, fill_normal_is_the_definition_on_every_set) {
    static const uint64_t firsts[] = {0, 1193900, 8079200, 0xffffff00u, (1ull << 40) - 3};
    const struct zt_ops *o = zt_ops_cpu();
    enum { N = 3001 };
    for (int s = 0; s < ISA_NAMES; s++) {
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[s], NULL);
        for (int f = 0; f < 5; f++) {
            float *out = buffer(N);
            OK(o->fill_normal(x, ZT_F32, out, 2, 3, zt_span_plain(firsts[f], N), N, 0.02, &err));
            for (int i = 0; i < N; i++) {
                const double z = zt_rng_normal(2, ZT_RNG_INIT, 0, 3, firsts[f] + (uint64_t)i);
                cr_assert_eq(out[i], (float)(z * 0.02), "%s %d: element %llu", isa_names[s], f,
                             (unsigned long long)firsts[f] + (unsigned long long)i);
            }
        }
        zt_ops_cpu_destroy(x);
    }
    end_buffers();
}

Test(elementwise, fill_normal_depends_on_the_logical_index_only) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 9000 };
    float *whole = buffer(N), *part = buffer(N);
    OK(o->fill_normal(x, ZT_F32, whole, 7, 5, zt_span_plain(0, N), N, 0.02, &err));
    OK(o->fill_normal(x, ZT_F32, part, 7, 5, zt_span_plain(0, 1234), 1234, 0.02, &err));
    OK(o->fill_normal(x, ZT_F32, part + 1234, 7, 5, zt_span_plain(1234, N), N - 1234, 0.02, &err));
    same_bits(whole, part, N, "fill_normal in two pieces", 2, "best");
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < N; i++) {
        cr_assert_eq(whole[i], (float)(zt_rng_normal(7, ZT_RNG_INIT, 0, 5, (uint64_t)i) * 0.02));
        sum += whole[i];
        squares += (double)whole[i] * whole[i];
    }
    /* mean 0 and deviation 0.02 within five standard errors */
    cr_expect(fabs(sum / N) < 5.0 * 0.02 / sqrt(N));
    cr_expect(fabs(sqrt(squares / N) / 0.02 - 1.0) < 5.0 / sqrt(2.0 * N));
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* Nearest bf16 of f by the definition: of the two neighbours the closer one, ties to the even. */
static uint16_t bf16_by_definition(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t low = (uint16_t)(u >> 16), high = (uint16_t)(low + 1);
    const uint32_t rest = u & 0xffffu;
    if (rest != 0x8000u) return rest < 0x8000u ? low : high;
    return low % 2 ? high : low;
}

Test(cast, bf16_rounds_to_nearest_even) {
    const struct zt_ops *o = zt_ops_cpu();
    enum { N = 5003 };
    for (int s = 0; s < ISA_NAMES; s++) {
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[s], NULL);
        float *in = random_buffer(N), *back = buffer(N);
        uint16_t h[N];
        for (int i = 0; i < N; i++) {
            uint32_t u;
            memcpy(&u, &in[i], 4);
            u = (u & 0xffff0000u) | (i % 3 == 0 ? 0x8000u : u & 0xffffu);
            u ^= (uint32_t)(i % 200) << 23;
            if ((u & 0x7f800000u) == 0x7f800000u) u &= 0xff7fffffu;
            memcpy(&in[i], &u, 4);
        }
        OK(o->cast(x, h, ZT_BF16, in, ZT_F32, N, &err));
        OK(o->cast(x, back, ZT_F32, h, ZT_BF16, N, &err));
        for (int i = 0; i < N; i++) {
            cr_assert_eq(h[i], bf16_by_definition(in[i]), "bf16 of %a", (double)in[i]);
            uint32_t wide = (uint32_t)h[i] << 16;
            cr_assert_eq(memcmp(&wide, &back[i], 4), 0);
        }
        const float special[4] = {INFINITY, -INFINITY, NAN, -0.0f};
        OK(o->cast(x, h, ZT_BF16, special, ZT_F32, 4, &err));
        cr_assert(h[0] == 0x7f80 && h[1] == 0xff80 && (h[2] & 0x7fff) > 0x7f80 && h[3] == 0x8000);
        zt_ops_cpu_destroy(x);
        end_buffers();
    }
}

Test(cast, every_fp16_goes_through_fp32_and_back) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    static uint16_t all[65536], back[65536];
    float *wide = buffer(65536);
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    OK(o->cast(x, wide, ZT_F32, all, ZT_F16, 65536, &err));
    OK(o->cast(x, back, ZT_F16, wide, ZT_F32, 65536, &err));
    for (int i = 0; i < 65536; i++) {
        const int e = i >> 10 & 31, m = i & 1023;
        if (e == 31 && m) {
            cr_assert(isnan(wide[i]) && (back[i] & 0x7fff) > 0x7c00);
            continue;
        }
        double want = e == 31 ? INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        cr_assert_eq((double)wide[i], i & 0x8000 ? -want : want, "fp16 %04x", i);
        cr_assert_eq(back[i], all[i], "fp16 %04x came back as %04x", i, back[i]);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(cast, fp16_rounds_to_nearest_even) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    /* halfway and just off halfway between neighbours; the largest; what overflows; subnormals */
    const float in[] = {1.0f + 0x1p-11f,
                        1.0f + 3 * 0x1p-11f,
                        1.0f + 0x1p-11f + 0x1p-23f,
                        65504.0f,
                        65519.996f,
                        65520.0f,
                        1e9f,
                        0x1p-25f,
                        0x1.000002p-25f,
                        0x1.8p-24f,
                        0x1p-26f,
                        0x1.ffcp-15f,
                        -1e-30f};
    const uint16_t want[] = {0x3c00, 0x3c02, 0x3c01, 0x7bff, 0x7bff, 0x7c00, 0x7c00,
                             0x0000, 0x0001, 0x0002, 0x0000, 0x0400, 0x8000};
    uint16_t out[13];
    OK(o->cast(x, out, ZT_F16, in, ZT_F32, 13, &err));
    for (int i = 0; i < 13; i++)
        cr_assert_eq(out[i], want[i], "fp16 of %a is %04x, expected %04x", (double)in[i], out[i],
                     want[i]);
    zt_ops_cpu_destroy(x);
}

Test(elementwise, other_dtypes_are_refused_by_name) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_error err = {0};
    float a[4] = {0};
    cr_assert_eq(o->add(x, ZT_I32, a, a, a, 4, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "add") && strstr(err.msg, "int32"), "%s", err.msg);
    cr_assert_eq(o->gelu_forward(x, ZT_U8, a, a, 4, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->accumulate(x, a, ZT_F32, a, ZT_I64, 1, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->bias_backward(x, ZT_F32, ZT_BF16, a, a, 1, 1, false, a, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "bias_backward") && strstr(err.msg, "bf16"), "%s", err.msg);
    cr_assert_eq(o->bias_backward(x, ZT_BF16, ZT_F16, a, a, 1, 1, false, a, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->cast(x, a, ZT_I32, a, ZT_F32, 1, &err), ZT_EUNSUPPORTED);
    zt_ops_cpu_destroy(x);
}
