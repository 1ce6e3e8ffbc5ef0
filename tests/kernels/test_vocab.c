/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy and embedding over parts of the vocabulary, combined here as ranks would, and
 * weights of rows: against the whole vocabulary and fp64. */
#include "tests/kernels/half.h"

/* ---- cross-entropy ---- */

struct rows { /* of logits and what belongs to them */
    enum zt_dtype t;
    int64_t N, V;
    struct pair logits;
    int32_t *targets;
    float *weights, scale;
};

static struct rows some_rows(int64_t N, int64_t V, enum zt_dtype t) {
    struct rows r = {
        t, N, V, operand(N * V, 8.0, t), (int32_t *)(void *)buffer(N), random_buffer(N), 0.37f};
    for (int64_t i = 0; i < N; i++) {
        r.targets[i] = i % 5 == 3 ? -1 : (int32_t)(i * 101 % V);
        r.weights[i] = i == 1 ? 0.0f : fabsf(r.weights[i]);
    }
    r.targets[0] = (int32_t)V - 1; /* in the part with the padding */
    return r;
}

struct result {
    float *losses;
    struct pair grads; /* [N, V] */
};

static size_t bytes(enum zt_dtype t, int64_t n) { return (size_t)n * zt_dtype_size(t); }
static char *element(void *base, int64_t i, enum zt_dtype t) { return (char *)base + bytes(t, i); }

/* The columns of one part, the padding full of NaN. */
static void *columns(const struct rows *r, void *logits, struct zt_vocab v, enum zt_dtype t) {
    void *part = t == ZT_F32 ? (void *)buffer(r->N * v.rows) : (void *)half_buffer(r->N * v.rows);
    memset(part, 0x7f, bytes(t, r->N * v.rows));
    for (int64_t i = 0; i < r->N; i++)
        memcpy(element(part, i * v.rows, t), element(logits, i * r->V + v.first, t),
               bytes(t, zt_vocab_valid(v)));
    return part;
}

/* Losses and gradients over so many equal parts; every part has the same losses, and its padding no
 * gradient. */
static void over_parts(struct zt_ops_ctx *x, const struct rows *r, enum zt_dtype t, void *logits,
                       int parts, const float *weights, float *losses, void *grads) {
    const struct zt_ops *o = zt_ops_cpu();
    const int64_t N = r->N, each = (r->V + parts - 1) / parts;
    float *max = buffer(N), *sums = buffer(2 * N), *one = buffer(2 * N), *again = buffer(N);
    void *part[4];
    for (int p = 0; p < parts; p++) {
        const struct zt_vocab v = {p * each, each, r->V};
        part[p] = columns(r, logits, v, t);
        OK(o->vocab_max(x, t, one, part[p], N, v, &err));
        for (int64_t i = 0; i < N; i++) max[i] = p == 0 ? one[i] : fmaxf(max[i], one[i]);
    }
    for (int p = 0; p < parts; p++) {
        const struct zt_vocab v = {p * each, each, r->V};
        OK(o->vocab_sum(x, t, one, part[p], max, r->targets, N, v, &err));
        for (int64_t i = 0; i < 2 * N; i++) sums[i] = p == 0 ? one[i] : sums[i] + one[i];
    }
    for (int p = 0; p < parts; p++) {
        const struct zt_vocab v = {p * each, each, r->V};
        float *to = p == 0 ? losses : again;
        OK(o->vocab_loss(x, t, part[p], to, sums, max, r->targets, weights, N, v, r->scale, true,
                         &err));
        same_bits(losses, to, N, "losses of the parts", 3, "best");
        for (int64_t i = 0; i < N; i++) {
            const int64_t valid = zt_vocab_valid(v);
            const char *row = element(part[p], i * each, t);
            memcpy(element(grads, i * r->V + v.first, t), row, bytes(t, valid));
            for (size_t k = bytes(t, valid); k < bytes(t, each); k++)
                cr_assert_eq(row[k], 0, "padding of row %lld has a gradient", (long long)i);
        }
    }
}

/* A row's loss and gradient in fp64. p = e^(x - top) / sum: the argument is off by u |x - top|, the
 * exponential by 1 ulp, the sum by gamma_V; five more roundings (a sum over parts, the weight). */
static void rows_follow_fp64(const struct rows *r, const float *in, const float *weights,
                             const struct result *got) {
    for (int64_t i = 0; i < r->N; i++) {
        const float *x = in + i * r->V;
        const int32_t target = r->targets[i];
        const double w = weights ? (double)weights[i] : 1.0;
        double top = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < r->V; v++) top = fmax(top, (double)x[v]);
        for (int64_t v = 0; v < r->V; v++) sum += exp(x[v] - top);
        const double loss = target < 0 ? 0.0 : w * (log(sum) + top - x[target]);
        within(got->losses[i], loss, 1e-6 * fmax(1.0, loss), "loss", i);
        for (int64_t v = 0; v < r->V; v++) {
            const double p = exp(x[v] - top) / sum, hot = v == target, s = w * (double)r->scale;
            const double lost =
                s * ((gamma_n((double)r->V + 8) + 2 * 16.0 * U32) * p + 2 * U32 * hot);
            const int64_t at = i * r->V + v;
            within(got->grads.w[at], target < 0 ? 0.0 : s * (p - hot), lost, "dlogits", at);
        }
    }
}

static void check_parts(struct zt_ops_ctx *x, int64_t N, int64_t V, int parts, enum zt_dtype t,
                        bool weighted) {
    const struct zt_ops *o = zt_ops_cpu();
    const struct rows r = some_rows(N, V, t);
    const float *weights = weighted ? r.weights : NULL;
    const struct result whole = {buffer(N), copy_of(r.logits, N * V, t)};
    const struct result cut = {buffer(N), room(N * V, t)};
    float *only = buffer(N), *in = copy_buffer(r.logits.w, N * V);
    OK(o->cross_entropy(x, t, of(whole.grads, t), whole.losses, r.targets, weights, N, V, r.scale,
                        true, &err));
    if (t != ZT_F32) {
        OK(o->cross_entropy(x, ZT_F32, whole.grads.w, only, r.targets, weights, N, V, r.scale, true,
                            &err));
        same_bits(whole.losses, only, N, "losses", 3, "best");
        rounded(whole.grads, N * V, t, "dlogits");
        over_parts(x, &r, t, r.logits.h, parts, weights, cut.losses, cut.grads.h);
    }
    over_parts(x, &r, ZT_F32, r.logits.w, parts, weights, only, cut.grads.w);
    if (t != ZT_F32) same_bits(cut.losses, only, N, "losses over parts", 3, "best");
    memcpy(cut.losses, only, bytes(ZT_F32, N));
    rounded(cut.grads, N * V, t, "dlogits over parts");
    rows_follow_fp64(&r, in, weights, &whole);
    rows_follow_fp64(&r, in, weights, &cut);
    for (int64_t i = 0; i < N; i++)
        within(cut.losses[i], whole.losses[i], 1e-6 * fmax(1.0, (double)whole.losses[i]),
               "loss over parts", i);
    if (parts == 1) {
        same_bits(cut.losses, whole.losses, N, "losses of one part", 3, "best");
        cr_assert_eq(memcmp(of(cut.grads, t), of(whole.grads, t), bytes(t, N * V)), 0);
    }
    end_buffers();
}

Test(vocab, parts_give_the_loss_of_the_whole) {
    static const struct {
        int64_t N, V;
        int parts;
    } cuts[] = {
        {9, 1, 1},   {9, 17, 1},  {9, 17, 3},  {9, 5, 4}, /* the fourth part is padding alone */
        {9, 257, 1}, {9, 257, 2}, {9, 257, 4}, {4, 50257, 1}, {4, 50257, 2}};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int c = 0; c < 9; c++)
        for (int k = 0; k < FLOAT_TYPES; k++)
            for (int weighted = 0; weighted < 2; weighted++)
                check_parts(x, cuts[c].N, cuts[c].V, cuts[c].parts, float_types[k], weighted);
    zt_ops_cpu_destroy(x);
}

Test(vocab, weights_of_one_change_nothing) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    enum { N = 10, V = 257 };
    const struct rows r = some_rows(N, V, ZT_F32);
    float *a = copy_buffer(r.logits.w, N * V), *b = copy_buffer(r.logits.w, N * V),
          *loss = buffer(2 * N);
    for (int i = 0; i < N; i++) r.weights[i] = 1.0f;
    OK(o->cross_entropy(x, ZT_F32, a, loss, r.targets, NULL, N, V, 0.1f, true, &err));
    OK(o->cross_entropy(x, ZT_F32, b, loss + N, r.targets, r.weights, N, V, 0.1f, true, &err));
    same_bits(a, b, N * V, "dlogits", 2, "best");
    same_bits(loss, loss + N, N, "losses", 2, "best");
    end_buffers();
    zt_ops_cpu_destroy(x);
}

Test(vocab, a_nan_reaches_the_loss) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const struct zt_vocab v = {4, 4, 20};
    float z[4] = {0.0f, NAN, 1.0f, 2.0f}, max[1], sums[2], loss[1];
    const int32_t target[1] = {6};
    OK(o->vocab_max(x, ZT_F32, max, z, 1, v, &err));
    cr_expect(max[0] == 2.0f);
    OK(o->vocab_sum(x, ZT_F32, sums, z, max, target, 1, v, &err));
    OK(o->vocab_loss(x, ZT_F32, z, loss, sums, max, target, NULL, 1, v, 1.0f, false, &err));
    cr_expect(isnan(sums[0]) && sums[1] == -1.0f && isnan(loss[0]));
    zt_ops_cpu_destroy(x);
}

/* A target or token that no part has is told by every part, and nothing is touched. */
Test(vocab, what_is_outside_the_whole_is_named) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    struct zt_error err = {0};
    const struct zt_vocab v = {4, 4, 7};
    for (int bad = 0; bad < 2; bad++) {
        const int32_t target[3] = {0, -1, bad ? -2 : 7};
        float z[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, max[3] = {4, 8, 12}, sums[6] = {9},
              loss[3] = {9};
        cr_assert_eq(o->vocab_sum(x, ZT_F32, sums, z, max, target, 3, v, &err), ZT_EDATA);
        cr_assert(strstr(err.msg, "row 2") && strstr(err.msg, bad ? "-2" : "target 7"), "%s",
                  err.msg);
        cr_assert_eq(
            o->vocab_loss(x, ZT_F32, z, loss, sums, max, target, NULL, 3, v, 1.0f, true, &err),
            ZT_EDATA);
        cr_assert(sums[0] == 9.0f && loss[0] == 9.0f);
        for (int i = 0; i < 12; i++) cr_assert_eq(z[i], (float)(i + 1));
    }
    const int32_t tokens[4] = {5, 0, 7, 1}; /* 7 is a row of the part, but padding */
    float w[8] = {0}, out[8];
    cr_assert_eq(o->embedding_forward(x, ZT_F32, out, tokens, w, NULL, 2, 2, 2, v, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "token 7 at sample 1, position 0"), "%s", err.msg);
    cr_assert_eq(
        o->embedding_backward(x, ZT_F32, ZT_F32, w, NULL, out, tokens, 2, 2, 2, v, NULL, &err),
        ZT_EDATA);
    cr_assert_eq(o->vocab_max(x, ZT_I32, w, w, 1, v, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->vocab_sum(x, ZT_U8, w, w, w, tokens, 1, v, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(o->vocab_loss(x, ZT_I64, w, w, w, w, tokens, NULL, 1, v, 1.0f, true, &err),
                 ZT_EUNSUPPORTED);
    zt_ops_cpu_destroy(x);
}

/* ---- embedding ---- */

/* Forward: the parts' sum is the whole's row. Backward: each part's rows have the bits of the
 * whole's, and any part has the positions' gradient. */
static void embedding_parts(struct zt_ops_ctx *x, int64_t V, int64_t C, int parts, enum zt_dtype t,
                            enum zt_dtype gt) {
    const struct zt_ops *o = zt_ops_cpu();
    enum { B = 3, T = 17, N = B * T };
    const int64_t each = (V + parts - 1) / parts, padded = each * parts;
    int32_t *tokens = (int32_t *)(void *)buffer(N);
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)(i * 37 % V);
    struct pair wte = operand(padded * C, 1.0, t), wpe = operand(T * C, 1.0, t),
                dout = operand(N * C, 1.0, t);
    struct pair out = room(N * C, t), one = room(N * C, t);
    float *sum = buffer(N * C),
          *work = buffer((int64_t)(o->embedding_backward_workspace(N, gt) / 4));
    struct pair want = operand(padded * C, 1.0, gt), dwte = copy_of(want, padded * C, gt);
    struct pair want_pe = operand(T * C, 1.0, gt), before = copy_of(want_pe, T * C, gt);
    OK(o->embedding_forward(x, t, of(out, t), tokens, of(wte, t), of(wpe, t), B, T, C,
                            zt_vocab_all(V), &err));
    OK(o->embedding_backward(x, t, gt, of(want, gt), of(want_pe, gt), of(dout, t), tokens, B, T, C,
                             zt_vocab_all(V), work, &err));
    for (int p = 0; p < parts; p++) {
        const struct zt_vocab v = {p * each, each, V};
        struct pair dwpe = copy_of(before, T * C, gt);
        OK(o->embedding_forward(x, t, of(one, t), tokens, element(of(wte, t), p * each * C, t),
                                p == 0 ? of(wpe, t) : NULL, B, T, C, v, &err));
        OK(o->embedding_backward(x, t, gt, element(of(dwte, gt), p * each * C, gt), of(dwpe, gt),
                                 of(dout, t), tokens, B, T, C, v, work, &err));
        cr_assert_eq(memcmp(of(dwpe, gt), of(want_pe, gt), bytes(gt, T * C)), 0);
        for (int64_t i = 0; i < N * C; i++) {
            const float e = t == ZT_F32 ? one.w[i] : (float)value16(one.h[i], t);
            const bool own = tokens[i / C] >= v.first && tokens[i / C] < v.first + each;
            cr_assert(own || p == 0 || e == 0.0f);
            sum[i] += e;
        }
    }
    cr_assert_eq(memcmp(of(dwte, gt), of(want, gt), bytes(gt, padded * C)), 0);
    for (int64_t i = 0; t == ZT_F32 && i < N * C; i++) cr_assert_eq(sum[i], out.w[i]);
    if (t != ZT_F32) is_rounded(out.h, sum, N * C, t, "embedding");
    end_buffers();
}

Test(vocab, parts_of_an_embedding) {
    static const struct {
        int64_t V, C;
        int parts;
    } cuts[] = {{1, 3, 1}, {5, 17, 4}, {257, 64, 2}, {257, 100, 4}};
    struct zt_ops_ctx *x = context(3, NULL, NULL);
    for (int c = 0; c < 4; c++)
        for (int k = 0; k < FLOAT_TYPES; k++) {
            embedding_parts(x, cuts[c].V, cuts[c].C, cuts[c].parts, float_types[k], ZT_F32);
            embedding_parts(x, cuts[c].V, cuts[c].C, cuts[c].parts, float_types[k], float_types[k]);
        }
    zt_ops_cpu_destroy(x);
}

/* ---- the same bits for any number of threads and on every set ---- */

static struct rows bits;
static void body_parts(struct zt_ops_ctx *x, float *out) {
    float *losses = buffer(bits.N);
    over_parts(x, &bits, bits.t, of(bits.logits, bits.t), 2, bits.weights, losses, out);
    memcpy(element(out, bits.N * bits.V, bits.t), losses, bytes(ZT_F32, bits.N));
}

Test(vocab, same_bits_for_threads_and_sets) {
    for (int k = 0; k < FLOAT_TYPES; k++) {
        bits = some_rows(300, 131, float_types[k]);
        all_contexts_agree(body_parts,
                           bits.N * bits.V * (int64_t)zt_dtype_size(float_types[k]) / 4 + bits.N,
                           "vocab");
        end_buffers();
    }
}
