/* SPDX-License-Identifier: Apache-2.0 */
/* What is drawn, rounded, stepped or hashed by logical index (struct zt_span): a cut of a matrix by
 * columns, begun and ended inside a row, gets what those elements of the whole matrix get. */
#include <inttypes.h>

#include "tests/kernels/half.h"

enum { R = 37, C = 611, FROM = 200, W = 301, N = R * C, AT = 77, PART = R * W - AT - 33 };

/* The part: elements [AT, AT + PART) of columns [FROM, FROM + W), whose tensor begins at `first`.
 */
static struct zt_span part(uint64_t first) { return (struct zt_span){first + FROM, AT, W, C}; }
static int64_t in_whole(int64_t i) { return (AT + i) / W * C + FROM + (AT + i) % W; }

static void cut(const void *whole, void *to, size_t size) {
    for (int64_t i = 0; i < PART; i++)
        memcpy((char *)to + (size_t)i * size, (const char *)whole + (size_t)in_whole(i) * size,
               size);
}

Test(span, run_is_the_formula) {
    const struct zt_span s = part(1000);
    for (int64_t i = 0, n; i < PART; i += n) {
        uint64_t index;
        n = zt_span_run(&s, i, PART - i < 90 ? PART - i : 90, &index);
        cr_assert(n >= 1 && n <= 90);
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(index + (uint64_t)k, 1000 + (uint64_t)in_whole(i + k));
    }
}

Test(span, fill_normal) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    float *whole = buffer(N), *some = buffer(PART), *expected = buffer(PART);
    OK(o->fill_normal(x, ZT_F32, whole, 7, 5, zt_span_plain(0, N), N, 0.02, &err));
    OK(o->fill_normal(x, ZT_F32, some, 7, 5, part(0), PART, 0.02, &err));
    cut(whole, expected, sizeof *whole);
    same_bits(expected, some, PART, "fill_normal of columns", 3, "best");
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(span, round_stochastic) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    float *in = random_buffer(N), *own = buffer(PART);
    uint16_t *whole = half_buffer(N), *some = half_buffer(PART), *expected = half_buffer(PART);
    OK(o->round_stochastic(x, whole, ZT_BF16, in, N, 5, 2, 8, zt_span_plain(9, N), &err));
    cut(in, own, sizeof *in);
    OK(o->round_stochastic(x, some, ZT_BF16, own, PART, 5, 2, 8, part(9), &err));
    cut(whole, expected, sizeof *whole);
    cr_assert_eq(memcmp(expected, some, PART * sizeof *some), 0);
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* All three that are stored in bf16. */
Test(span, adamw_in_bf16) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    struct zt_adamw_params a = {.lr = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .step = 3,
                                .grad_scale = 1,
                                .stochastic = true,
                                .seed = 3,
                                .tensor = 4,
                                .span = zt_span_plain(50, N)};
    struct pair in[4]; /* parameter, m, v, gradient */
    uint16_t *own[4];
    for (int k = 0; k < 4; k++) {
        in[k] = random_pair(N, 1.0, ZT_BF16);
        own[k] = half_buffer(PART);
        for (int i = 0; k == 2 && i < N; i++) in[k].h[i] &= 0x7fff; /* v is a square */
        cut(in[k].h, own[k], sizeof *own[k]);
    }
    struct zt_adamw_buffers b = {.param = in[0].h,
                                 .param_type = ZT_BF16,
                                 .m = in[1].h,
                                 .v = in[2].h,
                                 .moment_type = ZT_BF16,
                                 .grad = in[3].h,
                                 .grad_type = ZT_BF16};
    OK(o->adamw(x, &b, N, &a, &err));
    b = (struct zt_adamw_buffers){.param = own[0],
                                  .param_type = ZT_BF16,
                                  .m = own[1],
                                  .v = own[2],
                                  .moment_type = ZT_BF16,
                                  .grad = own[3],
                                  .grad_type = ZT_BF16};
    a.span = part(50);
    OK(o->adamw(x, &b, PART, &a, &err));
    for (int k = 0; k < 3; k++) {
        uint16_t *expected = half_buffer(PART);
        cut(in[k].h, expected, sizeof *expected);
        cr_assert_eq(memcmp(expected, own[k], PART * sizeof *expected), 0, "buffer %d", k);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* The columns left, in the middle and right of two cuts add up to the whole. */
Test(span, hash_values) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    float *in = random_buffer(N), *own = buffer(N);
    const int64_t edge[] = {0, FROM, FROM + W, C};
    uint64_t all[2] = {0, 0}, sum[2] = {0, 0};
    OK(o->hash_values(x, ZT_F32, in, 6, zt_span_plain(0, N), N, all, &err));
    for (int k = 0; k < 3; k++) {
        const int64_t w = edge[k + 1] - edge[k];
        for (int64_t r = 0; r < R; r++)
            memcpy(own + r * w, in + r * C + edge[k], (size_t)w * sizeof *own);
        const struct zt_span s = {(uint64_t)edge[k], 0, w, C};
        OK(o->hash_values(x, ZT_F32, own, 6, s, R * w, sum, &err));
    }
    cr_assert(sum[0] == all[0] && sum[1] == all[1]);
    cr_assert(all[0] != 0);
    end_buffers();
    zt_ops_cpu_destroy(x);
}
