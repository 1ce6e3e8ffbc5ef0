/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic rounding, and AdamW on every combination of storage types. */
#include "core/rng.h"
#include "tests/kernels/half.h"

/* The definition: the draw's low half is added below the cut, the low half cleared. */
static uint16_t noisy(float x, uint32_t word) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (isnan(x)) return (uint16_t)(u >> 16 | 0x40);
    return isinf(x) ? (uint16_t)(u >> 16) : (uint16_t)((u + (word & 0xffff)) >> 16);
}

static uint32_t word_of(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t index, int word) {
    uint32_t w[4];
    zt_rng_words(seed, ZT_RNG_ROUNDING, step, tensor, index, w);
    return w[word];
}

Test(stochastic, follows_the_definition_on_every_set) {
    static const uint64_t firsts[] = {0, 5, 0xfffffff0u, 0xffffffffffull, UINT64_MAX - 100000};
    const struct zt_ops *o = zt_ops_cpu();
    enum { N = 9001 };
    float *in = buffer(N);
    for (int i = 0; i < N; i++) in[i] = uniform() * (i % 7 ? 1.0f : 1e30f);
    for (int s = 0; s < ISA_NAMES; s++) {
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(3, isa_names[s], NULL);
        for (int f = 0; f < 5; f++) {
            uint16_t *out = half_buffer(N);
            OK(o->round_stochastic(x, out, ZT_BF16, in, N, 0x123456789abcdefull, 7, 42,
                                   zt_span_plain(firsts[f], N), &err));
            for (int i = 0; i < N; i++)
                cr_assert_eq(out[i], noisy(in[i], word_of(0x123456789abcdefull, 7, 42,
                                                          firsts[f] + (uint64_t)i, 0)));
        }
        zt_ops_cpu_destroy(x);
    }
    end_buffers();
}

/* 1 + 2^-10 lies an eighth of the way from 1 to its neighbour 1 + 2^-7: of a million roundings an
 * eighth goes up, to within 4 sigma. The seed is fixed, so the test has one outcome. */
Test(stochastic, is_unbiased) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 1000000 };
    static float in[N];
    static uint16_t out[N];
    for (int sign = -1; sign <= 1; sign += 2) {
        double ups = 0.0;
        for (int i = 0; i < N; i++) in[i] = (float)sign * (1.0f + 0x1p-10f);
        OK(o->round_stochastic(x, out, ZT_BF16, in, N, 3, 1, 0, zt_span_plain(0, N), &err));
        for (int i = 0; i < N; i++) {
            const double v = fabs(value16(out[i], ZT_BF16));
            cr_assert(v == 1.0 || v == 1.0078125);
            ups += v > 1.0;
        }
        cr_assert(fabs(ups - N / 8.0) < 4.0 * sqrt(N * 0.125 * 0.875), "%g of %d went up", ups, N);
    }
    zt_ops_cpu_destroy(x);
}

Test(stochastic, exact_values_nan_and_infinity_stay) {
    const struct zt_ops *o = zt_ops_cpu();
    enum { N = 65536 };
    static float in[N];
    static uint16_t out[N];
    for (int s = 0; s < ISA_NAMES; s++) {
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[s], NULL);
        for (uint32_t step = 1; step <= 3; step++) {
            for (int i = 0; i < N; i++) in[i] = (float)value16((uint16_t)i, ZT_BF16);
            const uint32_t low_only = 0x7f800001;
            memcpy(&in[0x7f81], &low_only, 4); /* a NaN by its low half alone */
            OK(o->round_stochastic(x, out, ZT_BF16, in, N, 9, step, 1, zt_span_plain(0, N), &err));
            for (int i = 0; i < N; i++)
                cr_assert(isnan(in[i]) ? isnan(value16(out[i], ZT_BF16)) : out[i] == i,
                          "%04x became %04x", i, out[i]);
        }
        zt_ops_cpu_destroy(x);
    }
}

/* Any split of the range over calls, so over ranks, draws the same noise. */
Test(stochastic, cuts_do_not_show) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    enum { N = 20000 };
    float *in = random_buffer(N);
    uint16_t *whole = half_buffer(N), *parts = half_buffer(N);
    OK(o->round_stochastic(x, whole, ZT_BF16, in, N, 5, 2, 8, zt_span_plain(1000, N), &err));
    for (int64_t size = 1; size < N; size = size * 3 + 1) {
        memset(parts, 0, N * sizeof *parts);
        for (int64_t at = 0; at < N; at += size) {
            const int64_t n = N - at < size ? N - at : size;
            OK(o->round_stochastic(x, parts + at, ZT_BF16, in + at, n, 5, 2, 8,
                                   zt_span_plain(1000 + (uint64_t)at, N), &err));
        }
        cr_assert_eq(memcmp(whole, parts, N * sizeof *parts), 0, "parts of %lld", (long long)size);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(stochastic, seed_step_tensor_and_index_all_matter) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    enum { N = 1000 };
    static uint16_t out[5][N];
    float *in = random_buffer(N);
    OK(o->round_stochastic(x, out[0], ZT_BF16, in, N, 5, 2, 8, zt_span_plain(0, N), &err));
    OK(o->round_stochastic(x, out[1], ZT_BF16, in, N, 6, 2, 8, zt_span_plain(0, N), &err));
    OK(o->round_stochastic(x, out[2], ZT_BF16, in, N, 5, 3, 8, zt_span_plain(0, N), &err));
    OK(o->round_stochastic(x, out[3], ZT_BF16, in, N, 5, 2, 9, zt_span_plain(0, N), &err));
    OK(o->round_stochastic(x, out[4], ZT_BF16, in, N, 5, 2, 8, zt_span_plain(1, N), &err));
    for (int i = 1; i < 5; i++) cr_assert_neq(memcmp(out[0], out[i], sizeof out[0]), 0, "%d", i);
    struct zt_error err = {0};
    cr_expect_eq(o->round_stochastic(x, out[0], ZT_F16, in, N, 5, 2, 8, zt_span_plain(0, N), &err),
                 ZT_EUNSUPPORTED);
    cr_expect_eq(
        o->round_stochastic(x, out[0], ZT_BF16, in, N, 5, 2, 1 << 24, zt_span_plain(0, N), &err),
        ZT_EINVAL);
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* ---- AdamW ---- */

static const struct zt_adamw_params t_adam = {.lr = 1e-3,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-8,
                                              .weight_decay = 0.1,
                                              .grad_scale = 1.0,
                                              .seed = 77,
                                              .tensor = 5,
                                              .span = {123, 0, INT64_MAX, 0}};

/* A tensor in its storage type and the fp32 numbers that it holds. */
struct stored {
    enum zt_dtype t;
    struct pair p;
};

static void *data(const struct stored *s) { return s->t == ZT_F32 ? (void *)s->p.w : s->p.h; }

static struct stored stored(int64_t n, double size, enum zt_dtype t) {
    struct stored s = {t, random_pair(n, size, t == ZT_F32 ? ZT_BF16 : t)};
    for (int64_t i = 0; t == ZT_F32 && i < n; i++) s.p.w[i] = (float)(uniform() * size);
    return s;
}

/* After w was stepped in fp32: what must now be stored; w becomes its value. */
static void check_stored(struct stored *s, int64_t n, const struct zt_adamw_params *a, bool noise,
                         int word, const char *what) {
    for (int64_t i = 0; s->t != ZT_F32 && i < n; i++) {
        const float w = s->p.w[i];
        const uint32_t drawn =
            word_of(a->seed, (uint32_t)a->step, a->tensor, a->span.first + (uint64_t)i, word);
        const uint16_t want = noise ? noisy(w, drawn) : encode16(round16((double)w, s->t), s->t);
        cr_assert_eq(s->p.h[i], want, "%s element %lld is %04x, not %04x", what, (long long)i,
                     s->p.h[i], want);
        s->p.w[i] = (float)value16(want, s->t);
    }
}

/* Three steps, each held to the fp32 operator on the numbers stored before it (which test_optim
 * holds to fp64) and the rounding that the combination asks for. */
static void combination(struct zt_ops_ctx *x, int64_t n, enum zt_dtype pt, bool master,
                        enum zt_dtype mt, enum zt_dtype gt, bool stochastic) {
    const struct zt_ops *o = zt_ops_cpu();
    struct stored p = stored(n, 1.0, pt), m = stored(n, 0.1, mt), v = stored(n, 0.1, mt);
    for (int64_t i = 0; i < n; i++) { /* second moments are not negative */
        v.p.w[i] = fabsf(v.p.w[i]);
        v.p.h[i] &= 0x7fff;
    }
    float *value = master ? random_buffer(n) : NULL, *step = master ? copy_buffer(value, n) : p.p.w;
    struct zt_adamw_params a = t_adam;
    a.stochastic = stochastic;
    a.grad_scale = 0.7;
    struct zt_adamw_buffers b = {.param = data(&p),
                                 .param_type = pt,
                                 .master = value,
                                 .m = data(&m),
                                 .v = data(&v),
                                 .moment_type = mt};
    float *pw = copy_buffer(step, n), *mw = copy_buffer(m.p.w, n), *vw = copy_buffer(v.p.w, n);
    for (a.step = 1; a.step <= 3; a.step++) {
        struct stored g = stored(n, 1.0, gt);
        b.grad = data(&g);
        b.grad_type = gt;
        OK(o->adamw(x, &b, n, &a, &err));
        const struct zt_adamw_buffers wide = {.param = pw, .m = mw, .v = vw, .grad = g.p.w};
        OK(o->adamw(x, &wide, n, &a, &err));
        if (master) same_bits(value, pw, n, "master", 2, "best");
        memcpy(p.p.w, pw, (size_t)n * sizeof *pw);
        memcpy(m.p.w, mw, (size_t)n * sizeof *mw);
        memcpy(v.p.w, vw, (size_t)n * sizeof *vw);
        check_stored(&p, n, &a, stochastic && !master, 0, "parameter");
        check_stored(&m, n, &a, stochastic, 1, "m");
        check_stored(&v, n, &a, stochastic, 2, "v");
        if (pt == ZT_F32) same_bits(data(&p), pw, n, "parameter", 2, "best");
        if (!master) memcpy(pw, p.p.w, (size_t)n * sizeof *pw);
        memcpy(mw, m.p.w, (size_t)n * sizeof *mw);
        memcpy(vw, v.p.w, (size_t)n * sizeof *vw);
    }
    end_buffers();
}

Test(adamw16, every_combination) {
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    static const struct {
        enum zt_dtype p;
        bool master;
    } parameters[] = {{ZT_F32, false}, {ZT_BF16, true}, {ZT_F16, true}, {ZT_BF16, false}};
    static const int64_t sizes[] = {1, 17, 257, 16384, 40001};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int c = 0; c < 4 * 2 * 3 * 2; c++) /* parameters, moments, gradient, rounding */
        combination(x, sizes[c % 5], parameters[c % 4].p, parameters[c % 4].master,
                    c / 4 % 2 ? ZT_BF16 : ZT_F32, types[c / 8 % 3], c / 24);
    zt_ops_cpu_destroy(x);
}

static void t_adam_step(struct zt_ops_ctx *x, struct zt_adamw_buffers *b, int64_t n, int64_t copies,
                        struct zt_adamw_params *a) {
    static const float g[3][4] = {
        {0.1f, -0.2f, 0.3f, 0.0f}, {0.05f, 0.1f, -0.3f, 1e-9f}, {-0.1f, 0.0f, 0.2f, 2.0f}};
    float *grad = malloc((size_t)n * sizeof *grad);
    for (int64_t i = 0; i < n; i++) grad[i] = g[a->step - 1][i / copies];
    b->grad = grad;
    OK(zt_ops_cpu()->adamw(x, b, n, a, &err));
    free(grad);
}

static const float t_adam_start[4] = {1.0f, -2.0f, 0.5f, 3.0f};
static const double t_adam_p[4] = {0.9976502657, -1.9979215860, 0.4986657202, 2.9984278679};
static const double t_adam_m[4] = {0.0026, -0.0072, 0.0173, 0.2000};
static const double t_adam_v[4] = {0.00107, 0.00228, 0.01033625, 0.20000};

/* The T-ADAM table beside a master, in both 16-bit types: the master has the table's digits, the
 * parameter their nearest neighbour. */
Test(adamw16, table_t_adam_with_a_master) {
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    for (int k = 0; k < 2; k++) {
        uint16_t h[4];
        float master[4], m[4] = {0}, v[4] = {0};
        memcpy(master, t_adam_start, sizeof master);
        struct zt_adamw_params a = t_adam;
        struct zt_adamw_buffers b = {
            .param = h, .param_type = halves[k], .master = master, .m = m, .v = v};
        for (a.step = 1; a.step <= 3; a.step++) t_adam_step(x, &b, 4, 1, &a);
        for (int i = 0; i < 4; i++) {
            cr_expect(fabs(master[i] - t_adam_p[i]) < 2e-7 * fabs(t_adam_p[i]));
            cr_expect_eq(value16(h[i], halves[k]), round16(t_adam_p[i], halves[k]));
        }
    }
    zt_ops_cpu_destroy(x);
}

/* Without a master the steps of T-ADAM (7e-4 and less) are below half a bf16 step: rounded to
 * nearest the parameters never move; rounded stochastically their mean over 2^18 elements is the
 * table's value within 4 sigma (a rounding has at most half an ulp of deviation, three of them; the
 * update is linear in p, so rounding adds no bias). */
Test(adamw16, table_t_adam_without_a_master) {
    enum { COPIES = 1 << 18, N = 4 * COPIES };
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    uint16_t *h = malloc(N * sizeof *h);
    float *m = malloc(N * sizeof *m), *v = malloc(N * sizeof *v);
    for (int stochastic = 0; stochastic < 2; stochastic++) {
        struct zt_adamw_params a = t_adam;
        a.stochastic = stochastic;
        for (int i = 0; i < N; i++) h[i] = encode16(t_adam_start[i / COPIES], ZT_BF16);
        memset(m, 0, N * sizeof *m);
        memset(v, 0, N * sizeof *v);
        struct zt_adamw_buffers b = {.param = h, .param_type = ZT_BF16, .m = m, .v = v};
        for (a.step = 1; a.step <= 3; a.step++) t_adam_step(x, &b, N, COPIES, &a);
        for (int e = 0; e < 4; e++) {
            if (!stochastic && e == 2) continue; /* 0.5 has finer steps below it */
            double sum = 0.0;
            for (int i = 0; i < COPIES; i++) sum += value16(h[e * COPIES + i], ZT_BF16);
            const double mean = sum / COPIES, want = stochastic ? t_adam_p[e] : t_adam_start[e];
            const double sigma = ulp16(t_adam_start[e], ZT_BF16) / 2 * sqrt(3.0) / sqrt(COPIES);
            cr_expect(fabs(mean - want) <= (stochastic ? 4.0 * sigma + 2e-7 : 0.0),
                      "element %d: mean %.9g, expected %.9g (sigma %g)", e, mean, want, sigma);
        }
    }
    free(h), free(m), free(v);
    zt_ops_cpu_destroy(x);
}

/* Moments kept in bf16 are exponential averages, linear in what is stored: stochastic rounding
 * keeps their means at the table's values. v's of the second element falls to 0.95 of itself each
 * step. */
Test(adamw16, moments_in_bf16_keep_their_mean) {
    enum { COPIES = 1 << 18, N = 4 * COPIES };
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    float *p = malloc(N * sizeof *p);
    uint16_t *m = calloc(N, sizeof *m), *v = calloc(N, sizeof *v);
    for (int i = 0; i < N; i++) p[i] = t_adam_start[i / COPIES];
    struct zt_adamw_params a = t_adam;
    a.stochastic = true;
    struct zt_adamw_buffers b = {.param = p, .m = m, .v = v, .moment_type = ZT_BF16};
    for (a.step = 1; a.step <= 3; a.step++) t_adam_step(x, &b, N, COPIES, &a);
    for (int e = 0; e < 4; e++) {
        double sm = 0.0, sv = 0.0;
        for (int i = 0; i < COPIES; i++) {
            sm += value16(m[e * COPIES + i], ZT_BF16);
            sv += value16(v[e * COPIES + i], ZT_BF16);
        }
        /* the largest values on the way: |m| <= 0.3, v <= 0.2 */
        const double sigma = ulp16(0.25, ZT_BF16) / 2 * sqrt(3.0) / sqrt(COPIES);
        cr_expect(fabs(sm / COPIES - t_adam_m[e]) < 4.0 * sigma, "m of %d: %g", e, sm / COPIES);
        cr_expect(fabs(sv / COPIES - t_adam_v[e]) < 4.0 * sigma, "v of %d: %g", e, sv / COPIES);
    }
    free(p), free(m), free(v);
    zt_ops_cpu_destroy(x);
}

Test(adamw16, refusals) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    float p[4] = {0}, m[4] = {0}, v[4] = {0}, g[4] = {0};
    struct zt_adamw_params a = t_adam;
    a.step = 1;
    const struct zt_adamw_buffers good = {.param = p, .m = m, .v = v, .grad = g};
    struct zt_error err = {0};
    struct zt_adamw_buffers b = good;
    b.param_type = ZT_F16; /* fp16 has no range for updates of its own */
    cr_expect_eq(o->adamw(x, &b, 4, &a, &err), ZT_EUNSUPPORTED);
    cr_expect(strstr(err.msg, "fp16") && strstr(err.msg, "master"), "%s", err.msg);
    b = good;
    b.master = p; /* fp32 never has a second master */
    cr_expect_eq(o->adamw(x, &b, 4, &a, &err), ZT_EUNSUPPORTED);
    b = good;
    b.moment_type = ZT_F16;
    cr_expect_eq(o->adamw(x, &b, 4, &a, &err), ZT_EUNSUPPORTED);
    cr_expect(strstr(err.msg, "moments"), "%s", err.msg);
    b = good;
    b.grad_type = ZT_U8;
    cr_expect_eq(o->adamw(x, &b, 4, &a, &err), ZT_EUNSUPPORTED);
    a.step = 0;
    cr_expect_eq(o->adamw(x, &good, 4, &a, &err), ZT_EINVAL);
    zt_ops_cpu_destroy(x);
}

/* Any cut of the range over calls gives the same bits, and so does any set and thread count. */
enum { BITS = 30002 };
static struct pair bits_p, bits_g;
static void body_pure_bf16(struct zt_ops_ctx *x, float *out) {
    uint16_t *h = (uint16_t *)(void *)out;
    memset(out, 0, 3 * BITS * sizeof *h);
    memcpy(h, bits_p.h, BITS * sizeof *h);
    struct zt_adamw_params a = t_adam;
    a.stochastic = true;
    const int64_t piece =
        7000 + (int64_t)((uintptr_t)x >> 4) % 5000; /* another cut in each context */
    for (a.step = 1; a.step <= 3; a.step++)
        for (int64_t at = 0; at < BITS; at += piece) {
            const int64_t n = BITS - at < piece ? BITS - at : piece;
            const struct zt_adamw_buffers b = {.param = h + at,
                                               .param_type = ZT_BF16,
                                               .m = h + BITS + at,
                                               .v = h + 2 * BITS + at,
                                               .moment_type = ZT_BF16,
                                               .grad = bits_g.h + at,
                                               .grad_type = ZT_BF16};
            a.span = zt_span_plain((uint64_t)at, n);
            OK(zt_ops_cpu()->adamw(x, &b, n, &a, &err));
        }
}

Test(adamw16, same_bits_for_threads_sets_and_cuts) {
    bits_p = random_pair(BITS, 1.0, ZT_BF16);
    bits_g = random_pair(BITS, 1.0, ZT_BF16);
    all_contexts_agree(body_pure_bf16, 3 * BITS / 2, "pure bf16 adamw");
    end_buffers();
}
