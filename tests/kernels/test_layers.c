/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding, LayerNorm, bias gradient and cross-entropy against fp64. */
#include "tests/kernels/util.h"

struct size {
    int64_t N, C;
};
static const struct size sizes[] = {{1, 1},   {1, 17},   {3, 3},     {17, 100}, {100, 257},
                                    {33, 64}, {257, 48}, {1030, 16}, {5, 1000}};
#define SIZES 9

static void layernorm_reference(const float *in, const float *res, const float *w, const float *b,
                                int64_t N, int64_t C, double eps, double *out, double *mean,
                                double *rstd) {
    for (int64_t r = 0; r < N; r++) {
        double m = 0.0, v = 0.0;
        for (int64_t c = 0; c < C; c++) m += in[r * C + c] + (res ? (double)res[r * C + c] : 0.0);
        m /= (double)C;
        for (int64_t c = 0; c < C; c++)
            v += pow(in[r * C + c] + (res ? (double)res[r * C + c] : 0.0) - m, 2);
        mean[r] = m;
        rstd[r] = 1.0 / sqrt(v / (double)C + eps);
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] =
                (in[r * C + c] + (res ? (double)res[r * C + c] : 0.0) - m) * rstd[r] * w[c] + b[c];
    }
}

Test(layernorm, forward_follows_fp64) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int s = 0; s < 2 * SIZES; s++) {
        const int64_t N = sizes[s / 2].N, C = sizes[s / 2].C;
        float *in = random_buffer(N * C), *res = s % 2 ? random_buffer(N * C) : NULL;
        float *w = random_buffer(C), *b = random_buffer(C), *out = buffer(N * C),
              *sum = buffer(N * C);
        float *mean = buffer(N), *rstd = buffer(N);
        double *want = malloc((size_t)(N * C + 2 * N) * sizeof *want);
        layernorm_reference(in, res, w, b, N, C, 1e-5, want, want + N * C, want + N * C + N);
        OK(o->layernorm_forward(x, ZT_F32, out, mean, rstd, in, res, res ? sum : NULL, w, b, N, C,
                                1e-5, &err));
        /* a row of one element has variance 0: any error of the mean is multiplied by 316 */
        near(out, want, N * C, C == 1 ? 1e-4 : 2e-5, "layernorm");
        near(mean, want + N * C, N, 1e-6, "mean");
        for (int64_t r = 0; r < N; r++) cr_assert(fabs(rstd[r] / want[N * C + N + r] - 1.0) < 1e-4);
        for (int64_t i = 0; res && i < N * C; i++) cr_assert_eq(sum[i], in[i] + res[i]);
        free(want);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(layernorm, backward_follows_fp64) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int s = 0; s < 2 * SIZES; s++) {
        const int64_t N = sizes[s / 2].N, C = sizes[s / 2].C;
        const bool accumulate = s % 2;
        float *in = random_buffer(N * C), *dy = random_buffer(N * C), *w = random_buffer(C);
        float *mean = buffer(N), *rstd = buffer(N), *dx = random_buffer(N * C);
        float *dw = random_buffer(C), *db = random_buffer(C);
        double *rdx = malloc((size_t)(N * C) * sizeof *rdx), *rdw = malloc((size_t)C * 8),
               *rdb = malloc((size_t)C * 8);
        for (int64_t c = 0; c < C; c++) rdw[c] = dw[c], rdb[c] = db[c];
        for (int64_t r = 0; r < N; r++) {
            double m = 0.0, v = 0.0, a = 0.0, b = 0.0;
            for (int64_t c = 0; c < C; c++) m += in[r * C + c] / (double)C;
            for (int64_t c = 0; c < C; c++) v += pow(in[r * C + c] - m, 2) / (double)C;
            mean[r] = (float)m;
            rstd[r] = (float)(1.0 / sqrt(v + 1e-5));
            for (int64_t c = 0; c < C; c++) {
                const double n = ((double)in[r * C + c] - mean[r]) * rstd[r], d = dy[r * C + c];
                rdw[c] += d * n;
                rdb[c] += d;
                a += d * w[c] / (double)C;
                b += d * w[c] * n / (double)C;
            }
            for (int64_t c = 0; c < C; c++) {
                const double n = ((double)in[r * C + c] - mean[r]) * rstd[r];
                rdx[r * C + c] = (accumulate ? (double)dx[r * C + c] : 0.0) +
                                 (dy[r * C + c] * (double)w[c] - a - n * b) * rstd[r];
            }
        }
        size_t bytes = o->layernorm_backward_workspace(N, C);
        float *work = buffer((int64_t)(bytes / 4));
        OK(o->layernorm_backward(x, ZT_F32, ZT_F32, dx, dw, db, dy, in, w, mean, rstd, N, C,
                                 accumulate, work, &err));
        near(dx, rdx, N * C, C == 1 ? 1e-4 : C == 3 ? 1e-4 : 1e-5, "dx");
        near(dw, rdw, C, 1e-4, "dweight");
        near(db, rdb, C, 5e-5, "dbias");
        free(rdx), free(rdw), free(rdb);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(bias, backward_is_the_column_sum) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    for (int s = 0; s < 2 * SIZES; s++) {
        const int64_t N = sizes[s / 2].N, C = sizes[s / 2].C;
        float *dy = random_buffer(N * C), *db = random_buffer(C);
        double *want = malloc((size_t)C * 8);
        for (int64_t c = 0; c < C; c++) {
            want[c] = s % 2 ? (double)db[c] : 0.0;
            for (int64_t r = 0; r < N; r++) want[c] += dy[r * C + c];
        }
        float *work = buffer((int64_t)(o->bias_backward_workspace(N, C) / 4));
        OK(o->bias_backward(x, ZT_F32, ZT_F32, db, dy, N, C, s % 2, work, &err));
        near(db, want, C, 2e-5, "bias gradient");
        free(want);
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(bias, adding_to_zero_gives_the_same_bits_as_writing) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 300, C = 70 };
    float *dy = random_buffer(N * C), *a = buffer(C), *b = random_buffer(C);
    float *work = buffer((int64_t)(o->bias_backward_workspace(N, C) / 4));
    OK(o->bias_backward(x, ZT_F32, ZT_F32, a, dy, N, C, true, work, &err));
    OK(o->bias_backward(x, ZT_F32, ZT_F32, b, dy, N, C, false, work, &err));
    same_bits(a, b, C, "bias gradient", 2, "best");
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(embedding, forward_and_backward_are_exact) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    enum { B = 3, T = 17, V = 11 };
    static const int64_t widths[] = {1, 3, 64, 100, 257};
    int32_t tokens[B * T];
    for (int i = 0; i < B * T; i++) tokens[i] = i * 7 % V;
    for (int s = 0; s < 10; s++) {
        const int64_t C = widths[s / 2];
        float *wte = random_buffer(V * C), *wpe = s % 2 ? random_buffer(T * C) : NULL;
        float *out = buffer(B * T * C), *dout = random_buffer(B * T * C);
        float *dwte = random_buffer(V * C), *dwpe = wpe ? random_buffer(T * C) : NULL;
        float *want_te = copy_buffer(dwte, V * C), *want_pe = wpe ? copy_buffer(dwpe, T * C) : NULL;
        OK(o->embedding_forward(x, ZT_F32, out, tokens, wte, wpe, B, T, C, zt_vocab_all(V), &err));
        OK(o->embedding_backward(x, ZT_F32, ZT_F32, dwte, dwpe, dout, tokens, B, T, C, zt_vocab_all(V), NULL,
                                 &err));
        for (int64_t i = 0; i < B * T; i++) /* additions in token order, in fp32 */
            for (int64_t c = 0; c < C; c++) {
                const float e = wte[tokens[i] * C + c];
                cr_assert_eq(out[i * C + c], wpe ? e + wpe[i % T * C + c] : e);
                want_te[tokens[i] * C + c] += dout[i * C + c];
                if (wpe) want_pe[i % T * C + c] += dout[i * C + c];
            }
        same_bits(dwte, want_te, V * C, "token gradient", 3, "best");
        if (wpe) same_bits(dwpe, want_pe, T * C, "position gradient", 3, "best");
        end_buffers();
    }
    zt_ops_cpu_destroy(x);
}

Test(embedding, token_outside_the_vocabulary_is_named) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_error err = {0};
    const int32_t tokens[6] = {0, 1, 2, 0, 9, 1};
    float w[9] = {0}, out[18];
    cr_assert_eq(o->embedding_forward(x, ZT_F32, out, tokens, w, NULL, 2, 3, 3, zt_vocab_all(3), &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "token 9 at sample 1, position 1"), "%s", err.msg);
    zt_ops_cpu_destroy(x);
}

/* ---- cross-entropy ---- */

static void check_cross_entropy(struct zt_ops_ctx *x, int64_t N, int64_t V) {
    const struct zt_ops *o = zt_ops_cpu();
    float *z = random_buffer(N * V), *loss = random_buffer(N), *only = buffer(N);
    int32_t *target = malloc((size_t)N * 4);
    double *want = malloc((size_t)(N * V) * 8), *want_loss = malloc((size_t)N * 8);
    const double scale = 0.37;
    for (int64_t r = 0; r < N; r++) {
        target[r] = r % 5 == 4 ? -1 : (int32_t)(r * 13 % V);
        double top = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < V; v++) {
            z[r * V + v] *= 10.0f;
            top = fmax(top, z[r * V + v]);
        }
        for (int64_t v = 0; v < V; v++) sum += exp(z[r * V + v] - top);
        want_loss[r] = target[r] < 0 ? 0.0 : log(sum) + top - z[r * V + target[r]];
        for (int64_t v = 0; v < V; v++)
            want[r * V + v] =
                target[r] < 0 ? 0.0 : scale * (exp(z[r * V + v] - top) / sum - (v == target[r]));
    }
    float *again = copy_buffer(z, N * V);
    OK(o->cross_entropy(x, ZT_F32, z, loss, target, NULL, N, V, (float)scale, true, &err));
    OK(o->cross_entropy(x, ZT_F32, again, only, target, NULL, N, V, (float)scale, false, &err));
    near(loss, want_loss, N, 4e-6, "loss");
    near(z, want, N * V, 3e-7, "dlogits");
    same_bits(loss, only, N, "loss without backward", 0, "best");
    free(target), free(want), free(want_loss);
    end_buffers();
}

Test(cross_entropy, follows_fp64) {
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    static const struct size shapes[] = {{1, 1}, {1, 3}, {3, 17}, {17, 100}, {10, 257}, {7, 50257}};
    for (int i = 0; i < 6; i++) check_cross_entropy(x, shapes[i].N, shapes[i].C);
    zt_ops_cpu_destroy(x);
}

Test(cross_entropy, padded_and_extreme_logits) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const int32_t target[3] = {1, 0, 2};
    float z[3][4] = {{1.0f, 2.0f, -INFINITY, -INFINITY}, /* padded columns */
                     {1e30f, -1e30f, 0.0f, 0.0f},
                     {0.0f, NAN, 1.0f, 2.0f}};
    float loss[3];
    OK(o->cross_entropy(x, ZT_F32, z, loss, target, NULL, 3, 4, 1.0f, true, &err));
    cr_expect(fabs(loss[0] - log(1.0 + exp(-1.0))) < 1e-6);
    cr_expect(z[0][2] == 0.0f && z[0][3] == 0.0f);
    cr_expect(fabs(z[0][0] - 1.0 / (1.0 + exp(1.0))) < 1e-6);
    cr_expect(loss[1] == 0.0f && z[1][0] == 0.0f && z[1][1] == 0.0f);
    cr_expect(isnan(loss[2])); /* a NaN may not be lost on the way to the loss */
    zt_ops_cpu_destroy(x);
}

Test(cross_entropy, target_outside_is_named_and_nothing_is_touched) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    for (int bad = 0; bad < 2; bad++) {
        struct zt_error err = {0};
        const int32_t target[3] = {0, -1, bad ? -2 : 4};
        float z[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, loss[3];
        cr_assert_eq(o->cross_entropy(x, ZT_F32, z, loss, target, NULL, 3, 4, 1.0f, true, &err),
                     ZT_EDATA);
        cr_assert(strstr(err.msg, "row 2") && strstr(err.msg, bad ? "-2" : "target 4"), "%s",
                  err.msg);
        for (int i = 0; i < 12; i++) cr_assert_eq(z[i], (float)(i + 1));
    }
    zt_ops_cpu_destroy(x);
}

/* ---- bits ---- */

enum { BN = 777, BC = 129 };
static float bin[BN * BC], bdy[BN * BC], bw[BC], bb[BC], bmean[BN], brstd[BN];
static int32_t btarget[BN];

static void body_layernorm(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->layernorm_forward(x, ZT_F32, out, out + BN * BC, out + BN * BC + BN, bin, bdy,
                                       out + BN * BC + 2 * BN, bw, bb, BN, BC, 1e-5, &err));
}
static void body_layernorm_backward(struct zt_ops_ctx *x, float *out) {
    float *work = buffer((int64_t)(zt_ops_cpu()->layernorm_backward_workspace(BN, BC) / 4));
    OK(zt_ops_cpu()->layernorm_backward(x, ZT_F32, ZT_F32, out, out + BN * BC, out + BN * BC + BC,
                                        bdy, bin, bw, bmean, brstd, BN, BC, false, work, &err));
}
static void body_bias(struct zt_ops_ctx *x, float *out) {
    float *work = buffer((int64_t)(zt_ops_cpu()->bias_backward_workspace(BN, BC) / 4));
    OK(zt_ops_cpu()->bias_backward(x, ZT_F32, ZT_F32, out, bdy, BN, BC, false, work, &err));
}
static void body_cross_entropy(struct zt_ops_ctx *x, float *out) {
    memcpy(out, bin, sizeof bin);
    OK(zt_ops_cpu()->cross_entropy(x, ZT_F32, out, out + BN * BC, btarget, NULL, BN, BC, 0.1f, true,
                                   &err));
}
static void body_embedding_backward(struct zt_ops_ctx *x, float *out) {
    OK(zt_ops_cpu()->embedding_backward(x, ZT_F32, ZT_F32, out, out + BC * BC, bdy, btarget, 7,
                                        BN / 7, BC, zt_vocab_all(BC), NULL, &err));
}

Test(layers, same_bits_for_threads_and_sets) {
    for (int i = 0; i < BN * BC; i++) bin[i] = 3.0f * uniform(), bdy[i] = uniform();
    for (int i = 0; i < BC; i++) bw[i] = uniform(), bb[i] = uniform();
    for (int i = 0; i < BN; i++)
        bmean[i] = uniform(), brstd[i] = 1.0f + 0.5f * uniform(), btarget[i] = i * 31 % BC;
    all_contexts_agree(body_layernorm, 2 * BN * BC + 2 * BN, "layernorm_forward");
    all_contexts_agree(body_layernorm_backward, BN * BC + 2 * BC, "layernorm_backward");
    all_contexts_agree(body_bias, BC, "bias_backward");
    all_contexts_agree(body_cross_entropy, BN * BC + BN, "cross_entropy");
    all_contexts_agree(body_embedding_backward, BC * BC + BN / 7 * BC, "embedding_backward");
    end_buffers();
}
