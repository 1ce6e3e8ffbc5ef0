/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention, forward and backward, against a naive fp64 implementation: grouped queries,
 * starts of documents, dropout, any distance between rows. */
#include "core/rng.h"
#include "tests/kernels/fused.h"
#include "tests/kernels/util.h"

/* ---- the definition, in double ---- */

/* The tensors of one call; buffers of random numbers with guards (util.h). */
struct tensors {
    struct zt_attention a;
    float *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
    int64_t n_q, n_k, n_v, n_out, n_lse; /* elements of each with its kind */
};
struct expected {
    double *out, *lse, *dq, *dk, *dv;
};

static double dot64(const float *a, const float *b, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

/* What dropout multiplies the probability of key k for query t with (kernels/ops.h). */
static double factor(const struct zt_attention *a, int64_t b, int64_t h, int64_t t, int64_t k) {
    const struct zt_dropout *d = &a->dropout;
    if (d->p <= 0.0f) return 1.0;
    const int64_t sample = a->first_sample + b * (a->sample_stride ? a->sample_stride : 1);
    const int64_t all = sample * a->heads_all + a->first_head + h;
    const uint64_t e = (uint64_t)((all * a->T + t) * ((a->T + 3) / 4 * 4) + k);
    uint32_t words[4];
    zt_rng_words(d->seed, ZT_RNG_DROPOUT, d->step, d->site, e / 4, words);
    return words[e % 4] < (uint32_t)((double)d->p * 4294967296.0) ? 0.0
                                                                  : 1.0 / (1.0 - (double)d->p);
}

/* One query of one head. */
static void reference_row(const struct tensors *x, int64_t b, int64_t h, int64_t t,
                          struct expected *e) {
    const struct zt_attention *a = &x->a;
    const double scale = 1.0 / sqrt((double)a->D);
    const int64_t row = b * a->T + t, kv = h / (a->H / a->KV) * a->D;
    const int64_t q_at = row * a->q_row + h * a->D, o_at = (row * a->H + h) * a->D;
    double *p = calloc((size_t)a->T * 2, sizeof *p), *f = p + a->T;
    double top = -INFINITY, sum = 0.0, delta = 0.0;
    const int64_t start = a->starts ? a->starts[row] : 0, first = b * a->T;
    for (int64_t k = start; k <= t; k++) {
        f[k] = factor(a, b, h, t, k);
        p[k] = scale * dot64(x->q + q_at, x->k + (first + k) * a->k_row + kv, a->D);
        top = fmax(top, p[k]);
    }
    for (int64_t k = start; k <= t; k++) sum += p[k] = exp(p[k] - top);
    e->lse[(b * a->H + h) * a->T + t] = top + log(sum);
    for (int64_t d = 0; d < a->D; d++) {
        double o = 0.0;
        for (int64_t k = start; k <= t; k++)
            o += f[k] * p[k] / sum * x->v[(first + k) * a->v_row + kv + d];
        e->out[o_at + d] = o;
        delta += o * x->dout[o_at + d];
    }
    for (int64_t k = start; k <= t; k++) {
        const float *key = x->k + (first + k) * a->k_row + kv, *dy = x->dout + o_at;
        const double w = p[k] / sum;
        const double dp = f[k] * dot64(dy, x->v + (first + k) * a->v_row + kv, a->D);
        const double ds = scale * w * (dp - delta);
        for (int64_t d = 0; d < a->D; d++) {
            e->dq[q_at + d] += ds * key[d];
            e->dk[(first + k) * a->k_row + kv + d] += ds * x->q[q_at + d];
            e->dv[(first + k) * a->v_row + kv + d] += f[k] * w * dy[d];
        }
    }
    free(p);
}

static struct expected reference(const struct tensors *x) {
    const struct zt_attention *a = &x->a;
    struct expected e;
    e.out = calloc((size_t)(x->n_out + x->n_lse + x->n_q + x->n_k + x->n_v), sizeof *e.out);
    e.lse = e.out + x->n_out;
    e.dq = e.lse + x->n_lse;
    e.dk = e.dq + x->n_q;
    e.dv = e.dk + x->n_k;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t t = 0; t < a->T; t++) reference_row(x, b, h, t, &e);
    return e;
}

/* ---- calls ---- */

static struct tensors tensors_of(struct zt_attention a, float size) {
    const int64_t rows = a.B * a.T;
    struct tensors x = {.a = a};
    x.n_q = rows * a.q_row;
    x.n_k = rows * a.k_row;
    x.n_v = rows * a.v_row;
    x.n_out = rows * a.H * a.D;
    x.n_lse = rows * a.H;
    x.q = random_buffer(x.n_q);
    x.k = random_buffer(x.n_k);
    x.v = random_buffer(x.n_v);
    x.dout = random_buffer(x.n_out);
    for (int64_t i = 0; i < x.n_q; i++) x.q[i] *= size;
    for (int64_t i = 0; i < x.n_k; i++) x.k[i] *= size;
    for (int64_t i = 0; i < x.n_v; i++) x.v[i] *= size;
    return x;
}

static void run(struct zt_ops_ctx *c, struct tensors *x) {
    const struct zt_ops *o = zt_ops_cpu();
    x->out = buffer(x->n_out);
    x->lse = buffer(x->n_lse);
    x->dq = buffer(x->n_q);
    x->dk = buffer(x->n_k);
    x->dv = buffer(x->n_v);
    cr_assert_eq(o->attention_workspace(&x->a, ZT_F32), 0);
    cr_assert_eq(o->attention_backward_workspace(&x->a, ZT_F32), 0);
    OK(o->attention_forward(c, ZT_F32, x->out, x->lse, x->q, x->k, x->v, &x->a, NULL, &err));
    OK(o->attention_backward(c, ZT_F32, x->dq, x->dk, x->dv, x->dout, x->q, x->k, x->v, x->out,
                             x->lse, &x->a, NULL, &err));
}

static double largest(const double *v, int64_t n) {
    double m = 0.0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(v[i]));
    return m;
}

/* Dropout multiplies what is kept, and so its error too. */
static void check_against(const struct tensors *x, const struct expected *e, double size) {
    const double f = 1.0 / (1.0 - (double)x->a.dropout.p), bound = 3e-6 * f * (1.0 + size * size);
    near(x->out, e->out, x->n_out, 1e-6 * f * size * (1.0 + size * size), "out");
    near(x->lse, e->lse, x->n_lse, 2e-6 * (1.0 + size * size), "lse");
    near(x->dq, e->dq, x->n_q, bound * (1.0 + largest(e->dq, x->n_q)), "dq");
    near(x->dk, e->dk, x->n_k, bound * (1.0 + largest(e->dk, x->n_k)), "dk");
    near(x->dv, e->dv, x->n_v, bound * (1.0 + largest(e->dv, x->n_v)), "dv");
}

static void check(struct zt_attention a, float size) {
    struct tensors x = tensors_of(a, size);
    struct expected e = reference(&x);
    for (int i = 0; i < ISA_NAMES; i++) {
        if (!zt_vec_find(isa_names[i])) continue;
        struct zt_ops_ctx *c = context(2, isa_names[i], NULL);
        run(c, &x);
        check_against(&x, &e, (double)size);
        zt_ops_cpu_destroy(c);
    }
    free(e.out);
    end_buffers();
}

/* ---- what a call may look like ---- */

enum starts { ONE, DOCUMENTS, ITSELF, ANYWHERE, BLOCKS, STARTS };

static uint32_t draw(uint32_t below) {
    return (uint32_t)((uniform() + 1.0f) * 0.5f * (float)below);
}

static const int32_t *starts_of(enum starts kind, int64_t B, int64_t T) {
    if (kind == ONE) return NULL;
    int32_t *s = (int32_t *)(void *)buffer(B * T);
    for (int64_t b = 0; b < B; b++)
        for (int32_t t = 0, at = 0; t < T; t++) {
            if (kind == DOCUMENTS && draw(40) == 0) at = t;
            if (kind == BLOCKS && t % 64 == 0) at = t;
            if (kind == ITSELF) at = t;
            if (kind == ANYWHERE) at = (int32_t)draw((uint32_t)t + 1);
            s[b * T + t] = at < t ? at : t;
        }
    return s;
}

/* Dense rows, or rows as far apart as in one buffer of all three and a bit more, each differently.
 */
static void set_rows(struct zt_attention *a, bool dense) {
    const int64_t all = (a->H + 2 * a->KV) * a->D;
    a->q_row = dense ? a->H * a->D : all + 3;
    a->k_row = dense ? a->KV * a->D : all + 1;
    a->v_row = dense ? a->KV * a->D : all + 2;
}

static void set_dropout(struct zt_attention *a, float p) {
    a->dropout = (struct zt_dropout){.p = p, .seed = 0x123456789abcdef0u, .step = 7, .site = 5};
    a->first_sample = 3;
    a->first_head = 2;
    a->heads_all = a->H + 5;
}

/* Sizes, heads, starts, dropout and rows: lists of lengths that share no divisor go round. */
static struct zt_attention case_of(int i) {
    static const int64_t T[] = {1,   2,   3,   7,   16,  17,  31,  64,  63, 65,
                                100, 127, 128, 129, 150, 191, 200, 257, 299};
    static const int64_t D[] = {16, 64, 17, 128, 33, 80, 24, 96, 32, 5, 40};
    static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {8, 2}, {3, 3}, {6, 2}, {7, 1}};
    static const float p[] = {0.0f, 0.1f, 0.0f, 0.5f, 0.9f};
    struct zt_attention a = {.B = i % 3 == 0 ? 2 : 1, .T = T[i % 19], .D = D[i % 11]};
    a.H = heads[i % 7][0];
    a.KV = heads[i % 7][1];
    a.starts = starts_of((enum starts)(i % STARTS), a.B, a.T);
    set_rows(&a, i % 2 == 0);
    set_dropout(&a, p[(i / 2) % 5]);
    a.sample_stride = i % 4;
    return a;
}

Test(attention, follows_fp64, .timeout = 200) {
    for (int i = 0; i < 57; i++) check(case_of(i), i % 4 == 0 ? 4.0f : 1.0f);
}

/* Every head width and every group at a length that no tile divides. */
Test(attention, follows_fp64_for_all_heads, .timeout = 200) {
    for (int64_t H = 1; H <= 8; H++)
        for (int64_t KV = 1; KV <= H; KV++) {
            if (H % KV != 0) continue;
            struct zt_attention a = {.B = 1, .T = 77, .H = H, .KV = KV, .D = 16 * H};
            a.starts = starts_of((H + KV) % 2 == 0 ? DOCUMENTS : ONE, 1, a.T);
            set_rows(&a, KV % 2 == 0);
            set_dropout(&a, H % 2 == 0 ? 0.25f : 0.0f);
            check(a, 1.0f);
        }
}

/* ---- what a query sees ---- */

/* What comes after a query does not reach it: changing later positions leaves its bits alone. */
Test(attention, later_positions_do_not_reach_earlier_ones) {
    struct zt_ops_ctx *x = context(2, NULL, NULL);
    const struct zt_attention a = fused(1, 200, 2, 40);
    const int64_t n = a.T * a.H * a.D;
    float *qkv = random_buffer(3 * n), *out = buffer(n), *lse = buffer(a.H * a.T);
    OK(fused_forward(x, ZT_F32, out, lse, qkv, a, &err));
    static const int64_t cuts[] = {1, 15, 16, 63, 64, 65, 130, 199};
    for (int c = 0; c < 8; c++) {
        float *other = copy_buffer(qkv, 3 * n), *out2 = buffer(n), *lse2 = buffer(a.H * a.T);
        for (int64_t i = cuts[c] * 3 * a.H * a.D; i < 3 * n; i++) other[i] = 1e4f * uniform();
        OK(fused_forward(x, ZT_F32, out2, lse2, other, a, &err));
        same_bits(out, out2, cuts[c] * a.H * a.D, "out before the change", 2, "best");
        for (int64_t h = 0; h < a.H; h++)
            same_bits(lse + h * a.T, lse2 + h * a.T, cuts[c], "lse before the change", 2, "best");
        cr_assert_neq(memcmp(out + cuts[c] * a.H * a.D, out2 + cuts[c] * a.H * a.D, 4), 0);
    }
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* Two documents: nothing of the first reaches the second, in either direction, wherever it begins.
 */
Test(attention, documents_do_not_reach_each_other) {
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    static const int64_t cuts[] = {1, 16, 63, 64, 100, 128, 190};
    for (int i = 0; i < 7; i++) {
        const int64_t cut = cuts[i];
        struct zt_attention a = {.B = 1, .T = 200, .H = 4, .KV = 2, .D = 24};
        int32_t *starts = (int32_t *)(void *)buffer(a.T);
        for (int64_t t = cut; t < a.T; t++) starts[t] = (int32_t)cut;
        a.starts = starts;
        set_rows(&a, true);
        set_dropout(&a, i % 2 ? 0.3f : 0.0f);
        struct tensors x = tensors_of(a, 1.0f), y;
        run(c, &x);
        y = x;
        y.q = copy_buffer(x.q, x.n_q);
        y.k = copy_buffer(x.k, x.n_k);
        y.v = copy_buffer(x.v, x.n_v);
        y.dout = copy_buffer(x.dout, x.n_out);
        for (int64_t j = 0; j < cut * a.q_row; j++) y.q[j] = 9.0f * uniform();
        for (int64_t j = 0; j < cut * a.k_row; j++) y.k[j] = 9.0f * uniform();
        for (int64_t j = 0; j < cut * a.v_row; j++) y.v[j] = 9.0f * uniform();
        for (int64_t j = 0; j < cut * a.q_row; j++) y.dout[j] = 9.0f * uniform();
        run(c, &y);
        const int64_t q = cut * a.q_row, k = cut * a.k_row;
        same_bits(x.out + q, y.out + q, x.n_out - q, "out of the second", 2, "best");
        same_bits(x.dq + q, y.dq + q, x.n_q - q, "dq of the second", 2, "best");
        same_bits(x.dk + k, y.dk + k, x.n_k - k, "dk of the second", 2, "best");
        same_bits(x.dv + k, y.dv + k, x.n_v - k, "dv of the second", 2, "best");
        cr_assert_neq(memcmp(x.out, y.out, 4), 0);
        end_buffers();
    }
    zt_ops_cpu_destroy(c);
}

/* Tiles before all starts are not even read: NaN there changes nothing. */
Test(attention, tiles_that_are_masked_whole_are_skipped) {
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    struct zt_attention a = {.B = 1, .T = 256, .H = 2, .KV = 1, .D = 32};
    a.starts = starts_of(BLOCKS, 1, a.T);
    set_rows(&a, true);
    struct tensors x = tensors_of(a, 1.0f);
    for (int64_t i = 0; i < 128 * a.k_row; i++) x.k[i] = x.v[i] = NAN;
    run(c, &x);
    for (int64_t i = 128 * a.q_row; i < x.n_q; i++)
        cr_assert(isfinite(x.out[i]) && isfinite(x.dq[i]));
    for (int64_t i = 128 * a.k_row; i < x.n_k; i++)
        cr_assert(isfinite(x.dk[i]) && isfinite(x.dv[i]));
    end_buffers();
    zt_ops_cpu_destroy(c);
}

/* A longer sequence whose tail attends to itself and has no gradient leaves the bits before it
 * alone. Without dropout, whose counters know the length. */
Test(attention, a_masked_tail_changes_no_bits) {
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    static const int64_t lengths[] = {100, 101, 128, 129, 163, 164, 230};
    struct zt_attention a = {.B = 1, .T = 230, .H = 4, .KV = 2, .D = 40};
    set_rows(&a, true);
    struct tensors all = tensors_of(a, 1.0f), first = {.n_q = 0};
    for (int i = 0; i < 7; i++) {
        struct tensors x = all;
        x.a.T = lengths[i];
        int32_t *starts = (int32_t *)(void *)buffer(a.T);
        for (int64_t t = 100; t < a.T; t++) starts[t] = 100;
        x.a.starts = starts;
        run(c, &x);
        if (i == 0) first = x;
        same_bits(first.out, x.out, 100 * a.q_row, "out", 2, "best");
        same_bits(first.dq, x.dq, 100 * a.q_row, "dq", 2, "best");
        same_bits(first.dk, x.dk, 100 * a.k_row, "dk", 2, "best");
        same_bits(first.dv, x.dv, 100 * a.v_row, "dv", 2, "best");
        for (int64_t h = 0; h < a.H; h++)
            same_bits(first.lse + h * 100, x.lse + h * x.a.T, 100, "lse", 2, "best");
    }
    end_buffers();
    zt_ops_cpu_destroy(c);
}

/* Adding one key to all scores (through q k = large) must not overflow: online softmax. */
Test(attention, large_scores_stay_finite) {
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    const struct zt_attention a = fused(1, 150, 1, 16);
    const int64_t n = a.T * a.D;
    float *qkv = random_buffer(3 * n), *out = buffer(n), *lse = buffer(a.T), *dqkv = buffer(3 * n);
    for (int64_t i = 0; i < 3 * n; i++) qkv[i] *= 100.0f;
    OK(fused_forward(x, ZT_F32, out, lse, qkv, a, &err));
    OK(fused_backward(x, ZT_F32, dqkv, out, qkv, out, lse, a, &err));
    for (int64_t i = 0; i < n; i++) cr_assert(fabsf(out[i]) <= 100.001f);
    for (int64_t i = 0; i < 3 * n; i++) cr_assert(isfinite(dqkv[i]));
    end_buffers();
    zt_ops_cpu_destroy(x);
}

/* ---- bits ---- */

static void same_results(const struct tensors *x, const struct tensors *y, int threads,
                         const char *isa) {
    same_bits(x->out, y->out, x->n_out, "out", threads, isa);
    same_bits(x->lse, y->lse, x->n_lse, "lse", threads, isa);
    same_bits(x->dq, y->dq, x->n_q, "dq", threads, isa);
    same_bits(x->dk, y->dk, x->n_k, "dk", threads, isa);
    same_bits(x->dv, y->dv, x->n_v, "dv", threads, isa);
}

/* Threads never matter. Instruction sets with fma (AVX2, AVX-512) agree; SSE2 has none. */
Test(attention, same_bits_for_threads_and_fma_sets) {
    static const int64_t cases[][5] = {
        {2, 150, 3, 3, 40}, {1, 257, 4, 2, 64}, {3, 20, 2, 2, 16}, {1, 200, 6, 1, 33}};
    for (int c = 0; c < 8; c++) {
        const int64_t *s = cases[c / 2];
        struct zt_attention a = {.B = s[0], .T = s[1], .H = s[2], .KV = s[3], .D = s[4]};
        set_rows(&a, c % 4 == 3);
        if (c % 2 == 1) {
            a.starts = starts_of(DOCUMENTS, a.B, a.T);
            set_dropout(&a, 0.2f);
        }
        struct tensors x = tensors_of(a, 1.0f), first[2];
        bool had[2] = {false, false};
        for (int i = 0; i < ISA_NAMES * THREAD_COUNTS; i++) {
            const char *isa = isa_names[i / THREAD_COUNTS];
            const struct zt_vec *v = zt_vec_find(isa);
            if (!v) continue;
            const int threads = thread_counts[i % THREAD_COUNTS];
            struct zt_ops_ctx *ctx = context(threads, isa, NULL);
            run(ctx, &x);
            if (!had[v->fma]) first[v->fma] = x;
            had[v->fma] = true;
            same_results(&first[v->fma], &x, threads, isa);
            zt_ops_cpu_destroy(ctx);
        }
        end_buffers();
    }
}

/* One buffer or three, and a copy of the keys for every query head or one for a group: q, k, v and
 * the results have the same bits. */
Test(attention, rows_and_groups_do_not_change_bits) {
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    struct zt_attention a = {.B = 2, .T = 140, .H = 6, .KV = 2, .D = 24};
    const int64_t rows = a.B * a.T;
    set_rows(&a, true);
    struct tensors x = tensors_of(a, 1.0f), y = x;
    run(c, &x);
    y.a.KV = a.H;
    y.a.q_row = y.a.k_row = y.a.v_row = 3 * a.H * a.D;
    y.n_q = y.n_k = y.n_v = rows * y.a.q_row;
    y.q = buffer(y.n_q);
    y.k = buffer(y.n_k);
    y.v = buffer(y.n_v);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t h = 0; h < a.H; h++) {
            const int64_t to = i * y.a.q_row + h * a.D, kv = i * a.k_row + h / 3 * a.D;
            memcpy(y.q + to, x.q + i * a.q_row + h * a.D, (size_t)a.D * sizeof *y.q);
            memcpy(y.k + to, x.k + kv, (size_t)a.D * sizeof *y.k);
            memcpy(y.v + to, x.v + kv, (size_t)a.D * sizeof *y.v);
        }
    run(c, &y);
    same_bits(x.out, y.out, x.n_out, "out", 2, "best");
    same_bits(x.lse, y.lse, x.n_lse, "lse", 2, "best");
    for (int64_t i = 0; i < rows; i++)
        same_bits(x.dq + i * a.q_row, y.dq + i * y.a.q_row, a.H * a.D, "dq", 2, "best");
    end_buffers();
    zt_ops_cpu_destroy(c);
}

/* ---- dropout ---- */

/* The heads and samples of one call, computed by calls on parts of them that say which: the same
 * bits, so nobody's dropout depends on how the work is cut. */
Test(attention, dropout_of_a_part_is_that_of_the_whole) {
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    struct zt_attention a = {.B = 2, .T = 90, .H = 4, .KV = 2, .D = 16, .heads_all = 4};
    a.dropout = (struct zt_dropout){.p = 0.3f, .seed = 9, .step = 4, .site = 11};
    set_rows(&a, true);
    struct tensors x = tensors_of(a, 1.0f);
    run(c, &x);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t half = 0; half < 2; half++) {
            struct tensors y = x;
            const int64_t row = b * a.T, q = row * a.q_row + half * 2 * a.D;
            const int64_t k = row * a.k_row + half * a.D;
            y.a.B = 1;
            y.a.H = 2;
            y.a.KV = 1;
            y.a.first_sample = b;
            y.a.first_head = 2 * half;
            y.q = x.q + q;
            y.k = x.k + k;
            y.v = x.v + k;
            y.n_out = a.T * 2 * a.D;
            y.n_lse = a.T * 2;
            y.dout = buffer(y.n_out);
            for (int64_t t = 0; t < a.T; t++)
                memcpy(y.dout + t * 2 * a.D, x.dout + q + t * a.q_row, (size_t)(2 * a.D) * 4);
            run(c, &y);
            for (int64_t t = 0; t < a.T; t++) {
                const int64_t o = q + t * a.q_row;
                same_bits(x.out + o, y.out + t * 2 * a.D, 2 * a.D, "out", 2, "best");
                same_bits(x.dq + o, y.dq + t * a.q_row, 2 * a.D, "dq", 2, "best");
                same_bits(x.dk + k + t * a.k_row, y.dk + t * a.k_row, a.D, "dk", 2, "best");
                same_bits(x.dv + k + t * a.v_row, y.dv + t * a.v_row, a.D, "dv", 2, "best");
            }
        }
    end_buffers();
    zt_ops_cpu_destroy(c);
}

/* 100 positions take 2500 draws a head, so number 2^32 is drawn inside head 1717986 of all: the
 * counter's words carry within a vector. */
Test(attention, dropout_counters_carry) {
    struct zt_attention a = {.B = 1, .T = 100, .H = 2, .KV = 1, .D = 16, .heads_all = 2};
    a.first_sample = 1717986 / 2;
    a.dropout = (struct zt_dropout){.p = 0.4f, .seed = 2, .step = 1, .site = 1};
    set_rows(&a, true);
    check(a, 1.0f);
}

/* With all values 1 and all scores equal, the output of query t is the mean of t + 1 factors, whose
 * expectation is 1 and variance p / (1 - p) / (t + 1). The mean of all queries must be within five
 * standard deviations; another step draws anew. */
Test(attention, dropout_keeps_the_expected_value) {
    static const float p[] = {0.05f, 0.1f, 0.5f, 0.9f};
    struct zt_ops_ctx *c = context(2, NULL, NULL);
    struct zt_attention a = {.B = 2, .T = 203, .H = 8, .KV = 4, .D = 16, .heads_all = 8};
    set_rows(&a, true);
    for (int i = 0; i < 4; i++) {
        struct tensors x = tensors_of(a, 0.0f);
        for (int64_t j = 0; j < x.n_v; j++) x.v[j] = 1.0f;
        x.a.dropout = (struct zt_dropout){.p = p[i], .seed = 1, .step = 1, .site = 1};
        run(c, &x);
        double sum = 0.0, variance = 0.0;
        for (int64_t j = 0; j < x.n_out; j += a.D) sum += (double)x.out[j];
        for (int64_t t = 0; t < a.T; t++)
            variance += (double)(a.B * a.H) * (double)p[i] / (1.0 - (double)p[i]) / (double)(t + 1);
        const double n = (double)x.n_lse;
        cr_assert_leq(fabs(sum - n), 5.0 * sqrt(variance), "p %g: mean %g", (double)p[i], sum / n);
        struct tensors y = x;
        y.a.dropout.step = 2;
        run(c, &y);
        cr_assert_neq(memcmp(x.out, y.out, (size_t)x.n_out * 4), 0);
        end_buffers();
    }
    zt_ops_cpu_destroy(c);
}

/* ---- what is refused ---- */

#define REFUSED(change, code, word)                                                                \
    do {                                                                                           \
        struct zt_attention a = good;                                                              \
        struct zt_error err = {0};                                                                 \
        change;                                                                                    \
        cr_assert_eq(o->attention_forward(x, ZT_F32, out, lse, q, q, q, &a, NULL, &err), code,     \
                     #change);                                                                     \
        cr_assert(strstr(err.msg, "attention_forward") && strstr(err.msg, word), "%s", err.msg);   \
        cr_assert_eq(                                                                              \
            o->attention_backward(x, ZT_F32, dq, dk, dv, q, q, q, q, out, lse, &a, NULL, &err),    \
            code, #change);                                                                        \
        cr_assert(strstr(err.msg, "attention_backward") && strstr(err.msg, word), "%s", err.msg);  \
    } while (0)

Test(attention, what_cannot_be_is_refused) {
    const struct zt_ops *o = zt_ops_cpu();
    struct zt_ops_ctx *x = context(1, NULL, NULL);
    float q[64] = {0}, out[64], lse[16], dq[64], dk[64], dv[64];
    int32_t starts[3] = {0, 1, 2};
    const struct zt_attention good = {.B = 1,
                                      .T = 3,
                                      .H = 2,
                                      .KV = 2,
                                      .D = 4,
                                      .q_row = 8,
                                      .k_row = 8,
                                      .v_row = 8,
                                      .starts = starts,
                                      .heads_all = 2,
                                      .dropout = {.p = 0.5f}};
    OK(o->attention_forward(x, ZT_F32, out, lse, q, q, q, &good, NULL, &err));
    REFUSED((a.H = 3, a.q_row = 12), ZT_EINVAL, "KV divides H");
    REFUSED(a.KV = 0, ZT_EINVAL, "KV 0");
    REFUSED(a.T = 0, ZT_EINVAL, "T 0");
    REFUSED(a.q_row = 7, ZT_EINVAL, "rows 7, 8, 8");
    REFUSED(a.k_row = 7, ZT_EINVAL, "rows 8, 7, 8");
    REFUSED(a.v_row = 7, ZT_EINVAL, "rows 8, 8, 7");
    REFUSED(a.dropout.p = 1.0f, ZT_EINVAL, "dropout 1 is outside");
    REFUSED(a.dropout.p = -0.1f, ZT_EINVAL, "dropout -0.1");
    REFUSED(a.dropout.p = NAN, ZT_EINVAL, "dropout");
    REFUSED(a.dropout.site = 1u << 24, ZT_EINVAL, "16777216");
    REFUSED(a.heads_all = 1, ZT_EINVAL, "place of the heads");
    REFUSED(a.first_head = 1, ZT_EINVAL, "place of the heads");
    starts[1] = 2;
    REFUSED((void)a, ZT_EDATA, "row 1 attends from position 2");
    starts[1] = -1;
    REFUSED((void)a, ZT_EDATA, "row 1 attends from position -1");
    struct zt_error err = {0};
    cr_assert_eq(fused_forward(x, ZT_I32, out, lse, q, fused(1, 1, 1, 1), &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "attention_forward"), "%s", err.msg);
    zt_ops_cpu_destroy(x);
}
