/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout: element by element its definition (kernels/ops.h, with the words of core/rng.h), the
 * share that is kept, and that neither a cut of the rows nor the direction changes what is dropped.
 */
#include "core/rng.h"
#include "tests/kernels/half.h"

static bool dropped(const struct zt_dropout *d, uint64_t element) {
    uint32_t w[4];
    zt_rng_words(d->seed, ZT_RNG_DROPOUT, d->step, d->site, element / 4, w);
    return w[element % 4] < (uint32_t)((double)d->p * 4294967296.0);
}

static void follows_definition(struct zt_ops_ctx *x, int64_t n, uint64_t first,
                               const struct zt_dropout *d, enum zt_dtype t) {
    const struct zt_ops *o = zt_ops_cpu();
    struct pair in = operand(n, 3.0, t), out = room(n, t);
    OK(o->dropout(x, t, of(out, t), of(in, t), n, d, zt_span_plain(first, n), &err));
    for (int64_t i = 0; i < n; i++) {
        const float want =
            dropped(d, first + (uint64_t)i) ? 0.0f : in.w[i] * (1.0f / (1.0f - d->p));
        if (t == ZT_F32)
            cr_assert_eq(out.w[i], want, "element %lld of %lld from %llu", (long long)i,
                         (long long)n, (unsigned long long)first);
        out.w[i] = want;
    }
    rounded(out, n, t, "dropout");
    OK(o->dropout(x, t, of(in, t), of(in, t), n, d, zt_span_plain(first, n), &err)); /* in place */
    cr_assert_eq(memcmp(of(in, t), of(out, t), (size_t)n * zt_dtype_size(t)), 0);
    end_buffers();
}

Test(dropout, follows_its_definition) {
    static const int64_t lengths[] = {1, 3, 15, 16, 17, 1019, 1020, 1021, 8193, 40001};
    static const uint64_t firsts[] = {0, 1, 2, 7, (1ull << 34) - 6, (1ull << 45) + 3};
    static const struct zt_dropout streams[] = {
        {0.1f, 42, 17, 0}, {0.5f, 1ull << 60, 0, (1u << 24) - 1}, {0.999f, 0, UINT32_MAX, 3}};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int l = 0; l < 10; l++)
        for (int f = 0; f < 6; f++)
            for (int k = 0; k < FLOAT_TYPES; k++)
                follows_definition(x, lengths[l], firsts[f], &streams[(l + f) % 3], float_types[k]);
    zt_ops_cpu_destroy(x);
}

/* Of n independent draws a share 1 - p is kept, with the deviation sqrt(p (1 - p) / n). */
Test(dropout, keeps_its_share) {
    enum { N = 1 << 20 };
    static const float ps[] = {0.01f, 0.1f, 0.5f, 0.9f};
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    float *ones = buffer(N), *out = buffer(N);
    for (int i = 0; i < N; i++) ones[i] = 1.0f;
    for (int k = 0; k < 4; k++) {
        const struct zt_dropout d = {ps[k], 7, 1, 2};
        const double p = ps[k];
        int64_t kept = 0;
        OK(o->dropout(x, ZT_F32, out, ones, N, &d, zt_span_plain(0, N), &err));
        for (int i = 0; i < N; i++) kept += out[i] != 0.0f;
        cr_expect(fabs((double)kept / N - (1.0 - p)) <= 4.0 * sqrt(p * (1.0 - p) / N),
                  "%g keeps %lld", p, (long long)kept);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* At p = 1/2 two independent masks agree on half of the elements, with the deviation 1 / (2 sqrt
 * n). */
Test(dropout, streams_are_independent) {
    enum { N = 1 << 18 };
    static const struct zt_dropout others[] = {{0.5f, 8, 3, 5}, {0.5f, 7, 4, 5}, {0.5f, 7, 3, 6}};
    const struct zt_dropout one = {0.5f, 7, 3, 5};
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    float *ones = buffer(N), *a = buffer(N), *b = buffer(N);
    for (int i = 0; i < N; i++) ones[i] = 1.0f;
    OK(o->dropout(x, ZT_F32, a, ones, N, &one, zt_span_plain(0, N), &err));
    for (int k = 0; k < 3; k++) {
        int64_t same = 0;
        OK(o->dropout(x, ZT_F32, b, ones, N, &others[k], zt_span_plain(0, N), &err));
        for (int i = 0; i < N; i++) same += a[i] == b[i];
        cr_expect(fabs((double)same / N - 0.5) <= 4.0 * 0.5 / sqrt(N), "stream %d: %lld agree", k,
                  (long long)same);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* 6 samples of T rows: whole; in pieces of any size; and dealt to 2 ranks in turn, their rows cut
 * in two as sequence parallelism does. */
Test(dropout, any_cut_drops_the_same) {
    enum { S = 6, T = 7, C = 33, N = S * T * C, HALF = N / 4 };
    const struct zt_dropout d = {0.3f, 11, 2, 4};
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    float *in = random_buffer(N), *whole = buffer(N), *part = buffer(N);
    OK(o->dropout(x, ZT_F32, whole, in, N, &d, zt_span_plain(100, N), &err));
    for (int64_t at = 0, n; at < N; at += n) {
        n = N - at < 101 ? N - at : 101;
        OK(o->dropout(x, ZT_F32, part + at, in + at, n, &d, zt_span_plain(100 + (uint64_t)at, n),
                      &err));
    }
    same_bits(whole, part, N, "dropout in pieces", 2, "best");
    for (int rank = 0; rank < 2; rank++) {
        float *mine = buffer(N / 2), *out = buffer(N / 2);
        for (int s = 0; s < S / 2; s++)
            memcpy(mine + s * T * C, in + (2 * s + rank) * T * C, sizeof(float) * T * C);
        for (int half = 0; half < 2; half++) {
            const struct zt_span span = {100 + (uint64_t)(rank * T * C), half * HALF, T * C,
                                         2 * T * C};
            const int64_t n = half ? N / 2 - HALF : HALF;
            OK(o->dropout(x, ZT_F32, out + half * HALF, mine + half * HALF, n, &d, span, &err));
        }
        for (int s = 0; s < S / 2; s++)
            same_bits(whole + (2 * s + rank) * T * C, out + s * T * C, T * C,
                      "dropout of dealt samples", 2, "best");
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(dropout, gradient_has_the_mask_of_the_output) {
    enum { N = 5000 };
    const struct zt_dropout d = {0.4f, 3, 9, 1};
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    float *in = random_buffer(N), *dout = random_buffer(N), *out = buffer(N), *dx = buffer(N);
    OK(o->dropout(x, ZT_F32, out, in, N, &d, zt_span_plain(5, N), &err));
    OK(o->dropout(x, ZT_F32, dx, dout, N, &d, zt_span_plain(5, N), &err));
    for (int i = 0; i < N; i++) { /* d out / d in = 0 or 1 / (1 - p), read off the output */
        const double slope = out[i] == 0.0f ? 0.0 : 1.0 / (1.0 - (double)d.p);
        within(dx[i], dout[i] * slope, 4 * U32 * fabs(dout[i] * slope), "dx", i);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(dropout, nothing_is_dropped_at_0_and_what_is_dropped_is_0) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const struct zt_dropout none = {0}, most = {0.9999f, 0, 0, 0};
    const float in[4] = {-1.0f, INFINITY, NAN, 0.1f};
    float out[4];
    OK(o->dropout(x, ZT_F32, out, in, 4, &none, zt_span_plain(0, 4), &err));
    cr_assert_eq(memcmp(in, out, sizeof in), 0);
    for (uint64_t i = 0; i < 4; i++) cr_assert(dropped(&most, i));
    OK(o->dropout(x, ZT_F32, out, in, 4, &most, zt_span_plain(0, 4), &err));
    for (int i = 0; i < 4; i++) cr_assert(out[i] == 0.0f && !signbit(out[i]));
    zt_ops_cpu_destroy(x);
}

Test(dropout, what_cannot_be_is_refused) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    static const struct zt_dropout bad[] = {
        {-0.1f, 0, 0, 0}, {1.0f, 0, 0, 0}, {NAN, 0, 0, 0}, {0.5f, 0, 0, 1u << 24}};
    const struct zt_dropout good = {0.5f, 0, 0, 0};
    struct zt_error err = {0};
    float a[4] = {0};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(o->dropout(x, ZT_F32, a, a, 4, &bad[i], zt_span_plain(0, 4), &err), ZT_EINVAL);
        cr_assert(strstr(err.msg, i < 3 ? "outside [0, 1)" : "beyond 2^24 - 1"), "%s", err.msg);
    }
    cr_assert_eq(o->dropout(x, ZT_I32, a, a, 4, &good, zt_span_plain(0, 4), &err), ZT_EUNSUPPORTED);
    zt_ops_cpu_destroy(x);
}

enum { BITS_N = 50001 };
static struct pair bits;
static enum zt_dtype bits_type;
static void body_dropout(struct zt_ops_ctx *x, float *out) {
    const struct zt_dropout d = {0.2f, 5, 6, 7};
    const struct zt_span span = {3, 11, 130, 1000};
    OK(zt_ops_cpu()->dropout(x, bits_type, out, of(bits, bits_type), BITS_N, &d, span, &err));
}

Test(dropout, same_bits_for_threads_and_sets) {
    for (int k = 0; k < FLOAT_TYPES; k++) {
        bits_type = float_types[k];
        bits = operand(BITS_N, 2.0, bits_type);
        all_contexts_agree(body_dropout, (BITS_N * (int64_t)zt_dtype_size(bits_type) + 3) / 4,
                           "dropout");
        end_buffers();
    }
}
