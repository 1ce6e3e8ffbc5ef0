/* SPDX-License-Identifier: Apache-2.0 */
/* The model as a chain of units: the order of the calls for every wrap, trained and evaluated; the
 * same bits whatever the wrap; frozen tensors: what is computed, what is saved, where backward
 * ends. Expected orders, counts and bytes are written out by hand from the description of the
 * model. */
#include <criterion/criterion.h>

#include "engine/model/model_int.h"
#include "tests/model/model_util.h"

#define L 3
#define C 16
#define F 64
#define H 2
#define V 40

static const struct rig_options base = {
    .config = {.family = ZT_GPT2,
               .layers = L,
               .heads = H,
               .kv_heads = H,
               .head_dim = C / H,
               .dim = C,
               .ffn_dim = F,
               .vocab_size = V,
               .seq_len_max = 16,
               .norm_eps = 1e-5,
               .tied_head = true,
               .qkv_bias = true},
    .B = 2,
    .T = 12,
};

/* ---- counting GEMMs ---- */

static int gemms[3];
static struct zt_ops counting;

static int counted_gemm(struct zt_ops_ctx *x, enum zt_gemm_op op, int64_t m, int64_t n, int64_t k,
                        enum zt_dtype t, const void *A, const void *Bm, const void *bias, void *Cm,
                        enum zt_dtype ct, bool accumulate, void *workspace, struct zt_error *err) {
    gemms[op]++;
    return zt_ops_cpu()->gemm(x, op, m, n, k, t, A, Bm, bias, Cm, ct, accumulate, workspace, err);
}

static void count_gemms(struct rig *r) {
    counting = *zt_ops_cpu();
    counting.gemm = counted_gemm;
    memset(gemms, 0, sizeof gemms);
    r->model->env.ops = &counting;
}

/* ---- cases ---- */

/* What trains, and what follows: the lowest block (half block) that backward reaches, -1 = the
 * embeddings; input- and weight-gradient GEMMs of one backward; elements of the compute type and of
 * fp32 saved per row, beside the logits, from the list in docs/memory.md. */
static const struct freeze_case {
    const char *trainable[4];
    int lowest_half;
    bool root_stays_open;
    int dx, dw;
    int64_t elements, statistics;
} cases[] = {
    /* everything: 8 widths of C and 2 of F a block; final stream and norm */
    {{NULL}, -1, true, 1 + 4 * L, 1 + 4 * L, L *(8 * C + 2 * F) + 2 * C, L *(4 + H) + 2},
    /* the last bias: nothing but the way through the head */
    {{"transformer.h.2.mlp.c_proj.bias"}, 5, false, 1, 0, C, 2},
    /* the last weight: the gelu is its input */
    {{"transformer.h.2.mlp.c_proj.weight"}, 5, false, 1, 1, C + F, 2},
    /* the qkv weight of block 1: norm, qkv and attention there; above it stream, qkv | hidden, and
     * attention (its backward reads its result) but not gelu */
    {{"transformer.h.1.attn.c_attn.weight"},
     2,
     false,
     1 + 1 + 3 * 2,
     1,
     C + 5 * C + (C + F) + 5 * C + (C + F),
     2 + H + 2 + (2 + H) + 2},
    /* final norm alone: no block in backward */
    {{"*.ln_f.*"}, 6, false, 1, 0, C, 2},
    /* positions alone: through everything, no weight gradient, no norm's result, no gelu */
    {{"*.wpe.weight"}, -1, true, 1 + 4 * L, 0, L *(6 * C + F) + C, L *(4 + H) + 2},
    /* norms and up projections of the MLPs: block 0's attention is not reached */
    {{"*.mlp.c_fc.*", "*.ln_2.*"},
     1,
     false,
     1 + 2 + 4 * (L - 1),
     L,
     (2 * C + F) + (L - 1) * (7 * C + F) + C,
     2 + (L - 1) * (4 + H) + 2},
    /* the biases of what is added to the stream: block 0's attention has nothing to compute */
    {{"*.c_proj.bias"},
     0,
     false,
     1 + 2 + 4 * (L - 1),
     0,
     (C + F) + (L - 1) * (6 * C + F) + C,
     2 + (L - 1) * (4 + H) + 2},
    /* the embedding (and so the tied head): its own two GEMMs */
    {{"*.wte.weight"}, -1, true, 1 + 4 * L, 1, L *(6 * C + F) + 2 * C, L *(4 + H) + 2},
};
#define CASES ((int)(sizeof cases / sizeof cases[0]))

static const struct wrap {
    enum zt_wrap kind;
    int blocks, halves;
} wraps[] = {
    {ZT_WRAP_BLOCK, 1, 2}, {ZT_WRAP_PART, 1, 1}, {ZT_WRAP_N, 2, 4},
    {ZT_WRAP_N, 3, 6},     {ZT_WRAP_N, 7, 6},
};
#define WRAPS ((int)(sizeof wraps / sizeof wraps[0]))

static struct rig_options options(int c, int w) {
    struct rig_options o = base;
    memcpy(o.trainable, cases[c].trainable, sizeof o.trainable);
    o.wrap = wraps[w].kind;
    o.blocks = wraps[w].blocks;
    return o;
}

/* ---- order ---- */

static void expect_call(const struct rig *r, int *at, char kind, int unit) {
    cr_assert_lt(*at, r->n_calls, "no call %c%d", kind, unit);
    struct rig_call got = r->call[(*at)++];
    cr_expect(got.kind == kind && got.unit == unit, "call %d: %c%d, not %c%d", *at - 1, got.kind,
              got.unit, kind, unit);
}

static void expect_forward(const struct rig *r, int *at, int units) {
    for (int u = 0; u <= units; u++) {
        expect_call(r, at, 'f', u % units);
        expect_call(r, at, 'F', u % units);
    }
}

static int units_of(const struct wrap *w) { return 1 + (2 * L + w->halves - 1) / w->halves; }

static void expect_backward(const struct rig *r, int *at, const struct freeze_case *c,
                            const struct wrap *w) {
    int units = units_of(w);
    int lowest = c->lowest_half < 0 ? 1 : 1 + c->lowest_half / w->halves;
    expect_call(r, at, 'b', 0);
    expect_call(r, at, c->root_stays_open ? 'p' : 'B', 0);
    for (int u = units - 1; u >= lowest && c->lowest_half < 2 * L; u--) {
        expect_call(r, at, 'b', u);
        expect_call(r, at, 'B', u);
    }
    if (c->root_stays_open) expect_call(r, at, 'B', 0);
}

/* Units of an untied model are there once each way: embed, blocks, head. */
static void expect_untied(const struct rig *r, bool embeddings, int lowest) {
    int at = 0, head = r->table.n_units - 1;
    for (int u = 0; u <= head; u++) {
        expect_call(r, &at, 'f', u);
        expect_call(r, &at, 'F', u);
    }
    for (int u = head; u >= (embeddings ? 0 : lowest); u--) {
        expect_call(r, &at, 'b', u);
        expect_call(r, &at, 'B', u);
    }
    cr_expect_eq(at, r->n_calls);
}

/* The walk is what others fetch ahead by. */
static void expect_walk(const struct rig *r) {
    struct zt_error e = {0};
    struct zt_model_walk w;
    int forward = 0, backward = 0;
    ok(zt_model_walk_build(&r->table, &w, &e), &e);
    for (int i = 0; i < r->n_calls; i++) {
        if (r->call[i].kind == 'f') {
            cr_assert_lt(forward, w.n_forward);
            cr_expect_eq(w.forward[forward++], r->call[i].unit);
        }
        if (r->call[i].kind == 'b') {
            cr_assert_lt(backward, w.n_backward);
            cr_expect_eq(w.backward[backward++], r->call[i].unit);
        }
    }
    cr_expect_eq(forward, w.n_forward);
    cr_expect_eq(backward, w.n_backward);
    zt_model_walk_free(&w);
}

Test(units, order_of_calls_for_every_wrap_and_what_trains) {
    for (int c = 0; c < CASES; c++)
        for (int w = 0; w < WRAPS; w++) {
            struct rig_options o = options(c, w);
            struct rig r;
            int at = 0;
            rig_open(&r, &o);
            cr_assert_eq(r.table.n_units, units_of(&wraps[w]));
            rig_step(&r, true);
            expect_forward(&r, &at, r.table.n_units);
            expect_backward(&r, &at, &cases[c], &wraps[w]);
            cr_expect_eq(at, r.n_calls, "case %d wrap %d: %d calls more", c, w, r.n_calls - at);
            expect_walk(&r);
            rig_close(&r);
        }
}

Test(units, order_of_calls_with_an_untied_head) {
    static const struct {
        const char *trainable;
        bool embeddings;
        int lowest;
    } c[] = {
        {NULL, true, 0},
        {"*.wpe.weight", true, 0},
        {"transformer.h.1.*", false, 2},
        {"*lm_head.weight", false, L + 1},
    };
    for (int i = 0; i < 4; i++) {
        struct rig_options o = base;
        struct rig r;
        o.config.tied_head = false;
        o.trainable[0] = c[i].trainable;
        rig_open(&r, &o);
        count_gemms(&r);
        rig_step(&r, true);
        expect_untied(&r, c[i].embeddings, c[i].lowest);
        expect_walk(&r);
        cr_expect_eq(gemms[ZT_GEMM_DX] == 0, i == 3,
                     "a head that trains alone needs no gradient of its input");
        rig_close(&r);
    }
}

Test(units, evaluation_asks_for_the_same_units_with_and_without_rows) {
    for (int w = 0; w < WRAPS; w++) {
        struct rig_options o = options(0, w);
        struct rig r;
        struct zt_error e = {0};
        struct zt_fixsum sum;
        int64_t valid = 0;
        int at = 0;
        rig_open(&r, &o);
        zt_fixsum_zero(&sum);
        rig_step(&r, false);
        expect_forward(&r, &at, r.table.n_units);
        cr_expect_eq(at, r.n_calls);
        struct zt_unit_source src = rig_source(&r);
        struct zt_batch none = {r.tokens, r.targets, 0, o.T};
        int64_t peak;
        zt_ledger_reset_peaks(&r.ledger);
        peak = r.ledger.peak_allocated;
        r.n_calls = at = 0;
        ok(zt_model_step(r.model, &src, &none, 0.0f, false, true, &sum, &valid, &e), &e);
        expect_forward(&r, &at, r.table.n_units);
        cr_expect_eq(at, r.n_calls);
        cr_expect_eq(valid, 0);
        cr_expect_eq(zt_fixsum_value(&sum), 0.0);
        cr_expect_eq(r.ledger.peak_allocated, peak, "no rows need no memory");
        cr_expect_eq(r.ledger.phase, ZT_PHASE_EVAL);
        /* a training step without rows would leave its gradients out of the reductions */
        cr_expect_eq(zt_model_step(r.model, &src, &none, 1.0f, true, false, &sum, &valid, &e),
                     ZT_EINVAL);
        rig_close(&r);
    }
}

/* ---- bits ---- */

static void expect_same_gradients(const struct rig *a, const struct rig *b, int c, int w) {
    for (int i = 0; i < a->table.n_tensors; i++) {
        const char *name = a->table.tensors[i].name;
        const struct zt_tensor_def *d = &b->table.tensors[i];
        int k = 0;
        while (k < a->table.n_tensors && strcmp(b->table.tensors[k].name, name)) k++;
        cr_assert_eq(i, k, "the order of tensors does not depend on the wrap");
        if (d->frozen) continue;
        cr_expect_eq(memcmp(a->grad[i], b->grad[i], rig_bytes(a, i, a->o.grad)), 0,
                     "case %d wrap %d: %s", c, w, name);
    }
}

static void expect_same_bits(enum zt_dtype compute, enum zt_dtype grad) {
    struct rig_options whole = options(0, 0);
    struct rig a;
    whole.compute = compute;
    whole.grad = grad;
    rig_open(&a, &whole);
    double loss = rig_step(&a, true), eval = rig_step(&a, false);
    cr_expect_eq(loss, eval);
    for (int c = 0; c < CASES; c++)
        for (int w = 0; w < WRAPS; w++) {
            struct rig_options o = options(c, w);
            struct rig r;
            o.compute = compute;
            o.grad = grad;
            rig_open(&r, &o);
            cr_expect_eq(rig_step(&r, true), loss);
            expect_same_gradients(&a, &r, c, w);
            cr_expect_eq(rig_step(&r, false), loss);
            rig_close(&r);
        }
    rig_close(&a);
}

Test(units, same_bits_for_every_wrap_and_whatever_is_frozen) {
    expect_same_bits(ZT_F32, ZT_F32);
    expect_same_bits(ZT_BF16, ZT_BF16);
    expect_same_bits(ZT_BF16, ZT_F32);
}

/* Whatever is frozen and whatever the wrap: recomputing changes no bit and leaves nothing behind.
 */
Test(units, same_bits_when_recomputed) {
    struct rig a;
    rig_open(&a, &base);
    double loss = rig_step(&a, true);
    for (int c = 0; c < CASES; c++)
        for (int k = 0; k < 4 * WRAPS; k++) {
            struct rig_options o = options(c, k / 4);
            struct rig r;
            o.recompute = k % 2 ? ZT_RECOMPUTE_FULL : ZT_RECOMPUTE_SELECTIVE;
            o.recompute_every = 1 + k / 2 % 2;
            rig_open(&r, &o);
            cr_expect_eq(rig_step(&r, true), loss);
            expect_same_gradients(&a, &r, c, k / 4);
            cr_expect_eq(r.ledger.requested[ZT_TAG_ACTIVATIONS], 0);
            cr_expect_eq(r.ledger.requested[ZT_TAG_TEMPORARY], 0);
            rig_close(&r);
        }
    rig_close(&a);
}

Test(units, buffers_of_frozen_tensors_are_left_alone) {
    for (int c = 1; c < CASES; c++) {
        struct rig_options o = options(c, 0);
        struct rig r;
        rig_open(&r, &o);
        r.full_gradients = true;
        for (int i = 0; i < r.table.n_tensors; i++)
            if (r.table.tensors[i].frozen) memset(r.grad[i], 0x5a, rig_bytes(&r, i, o.grad));
        rig_step(&r, true);
        for (int i = 0; i < r.table.n_tensors; i++)
            for (size_t k = 0; r.table.tensors[i].frozen && k < rig_bytes(&r, i, o.grad); k++)
                cr_assert_eq(((const char *)r.grad[i])[k], 0x5a, "case %d: %s", c,
                             r.table.tensors[i].name);
        rig_close(&r);
    }
}

/* ---- work and memory ---- */

Test(units, nothing_is_computed_that_nobody_needs) {
    for (int c = 0; c < CASES; c++)
        for (int w = 0; w < WRAPS; w++) {
            struct rig_options o = options(c, w);
            struct rig r;
            rig_open(&r, &o);
            count_gemms(&r);
            rig_step(&r, true);
            cr_expect_eq(gemms[ZT_GEMM_FWD], 1 + 4 * L);
            cr_expect_eq(gemms[ZT_GEMM_DX], cases[c].dx, "case %d wrap %d: %d dX, not %d", c, w,
                         gemms[ZT_GEMM_DX], cases[c].dx);
            cr_expect_eq(gemms[ZT_GEMM_DW], cases[c].dw, "case %d wrap %d: %d dW, not %d", c, w,
                         gemms[ZT_GEMM_DW], cases[c].dw);
            rig_close(&r);
        }
}

/* All but the last layer of a block once more under full checkpointing; no product under selective.
 */
Test(units, recomputing_multiplies_no_more_than_it_must) {
    for (int k = 0; k < 2; k++) {
        struct rig_options o = base;
        struct rig r;
        o.recompute = k ? ZT_RECOMPUTE_FULL : ZT_RECOMPUTE_SELECTIVE;
        rig_open(&r, &o);
        count_gemms(&r);
        rig_step(&r, true);
        cr_expect_eq(gemms[ZT_GEMM_FWD], 1 + 4 * L + (k ? 3 * L : 0), "%d", gemms[ZT_GEMM_FWD]);
        cr_expect_eq(gemms[ZT_GEMM_DX], 1 + 4 * L);
        cr_expect_eq(gemms[ZT_GEMM_DW], 1 + 4 * L);
        rig_close(&r);
    }
}

/* 256 rows: every buffer is a whole number of times 512 bytes. */
static void expect_saved(enum zt_dtype t) {
    for (int c = 0; c < CASES; c++)
        for (int w = 0; w < WRAPS; w++) {
            struct rig_options o = options(c, w);
            struct rig r;
            o.B = 16;
            o.T = 16;
            o.compute = o.grad = t;
            const int64_t rows = o.B * o.T, size = (int64_t)zt_dtype_size(t);
            rig_open(&r, &o);
            rig_step(&r, true);
            int64_t want = rows * size * (cases[c].elements + V) + rows * 4 * cases[c].statistics;
            cr_expect_eq(r.saved_bytes, want, "case %d wrap %d: %lld bytes, not %lld", c, w,
                         (long long)r.saved_bytes, (long long)want);
            cr_expect_eq(r.ledger.requested[ZT_TAG_ACTIVATIONS], 0, "case %d: something is left",
                         c);
            cr_expect_eq(r.ledger.requested[ZT_TAG_TEMPORARY], 0, "case %d: something is left", c);
            rig_close(&r);
        }
}

Test(units, saved_activations_are_the_formula) {
    expect_saved(ZT_F32);
    expect_saved(ZT_BF16);
}

/* docs/memory.md, "Activations, exactly": the figures of gpt2-nano. */
Test(units, saved_activations_of_the_documented_example) {
    static const struct {
        enum zt_dtype type;
        int64_t bytes;
    } want[] = {{ZT_F32, 35790848}, {ZT_BF16, 17965056}, {ZT_F16, 17965056}};
    for (int i = 0; i < 3; i++) {
        struct rig_options o = {.B = 8, .T = 128, .compute = want[i].type, .grad = want[i].type};
        struct zt_error e = {0};
        struct rig r;
        ok(zt_model_preset("gpt2-nano", &o.config, &e), &e);
        rig_open(&r, &o);
        rig_step(&r, true);
        cr_expect_eq(r.saved_bytes, want[i].bytes, "%s: %lld", zt_dtype_name(o.compute),
                     (long long)r.saved_bytes);
        rig_close(&r);
    }
}

/* Evaluation saves nothing, and holds no more of a block than the layer at work needs: the stream
 * before and after, and the widest pair of neighbours. */
Test(units, evaluation_saves_nothing) {
    for (int w = 0; w < WRAPS; w++) {
        struct rig_options o = options(0, w);
        struct rig r;
        o.B = 16;
        o.T = 16;
        const int64_t rows = o.B * o.T;
        rig_open(&r, &o);
        zt_ledger_reset_peaks(&r.ledger);
        rig_step(&r, false);
        cr_expect_eq(r.ledger.category_max[ZT_TAG_ACTIVATIONS], 0);
        int64_t packed = (int64_t)zt_ops_cpu()->gemm_workspace(ZT_GEMM_FWD, rows, F, C, ZT_F32);
        int64_t packed_down =
            (int64_t)zt_ops_cpu()->gemm_workspace(ZT_GEMM_FWD, rows, C, F, ZT_F32);
        int64_t gelu = rows * 4 * (C + 2 * F);
        int64_t down = rows * 4 * (C + F + C) + packed_down;
        int64_t up = rows * 4 * (C + C + F) + packed;
        int64_t most = gelu > down ? gelu : down;
        most = most > up ? most : up;
        cr_expect_eq(r.ledger.category_max[ZT_TAG_TEMPORARY], most, "%lld, not %lld",
                     (long long)r.ledger.category_max[ZT_TAG_TEMPORARY], (long long)most);
        rig_close(&r);
    }
}

/* ---- one frozen layer ---- */

/* A projector W [2,2] that trains under a frozen head [1,2]: with input (1,1) and the loss y = head
 * W x, dy = 1, so dW = head^T x^T = [[1,1],[2,2]], and the head has no gradient. */
Test(units, a_frozen_layer_passes_its_input_gradient) {
    struct rig r;
    struct zt_error e = {0};
    float x[2] = {1, 1}, head[2] = {1, 2}, projector[4] = {3, 4, 5, 6};
    float hidden[2], dhidden[2] = {0, 0}, dy = 1, y, dprojector[4] = {0};
    rig_open(&r, &base);
    ok(zt_linear_forward(r.model, 1, 2, 2, x, projector, NULL, hidden, &e), &e);
    ok(zt_linear_forward(r.model, 1, 2, 1, hidden, head, NULL, &y, &e), &e);
    cr_expect_eq(y, (3 + 4) + 2 * (5 + 6));
    count_gemms(&r);
    ok(zt_linear_backward(r.model, 1, 2, 1, hidden, head, &dy, dhidden, false, NULL, NULL, &e), &e);
    cr_expect_eq(gemms[ZT_GEMM_DW], 0, "the frozen head's gradient was computed");
    ok(zt_linear_backward(r.model, 1, 2, 2, x, projector, dhidden, NULL, false, dprojector, NULL,
                          &e),
       &e);
    cr_expect_eq(gemms[ZT_GEMM_DX], 1, "nothing below the projector wants a gradient");
    cr_expect(dprojector[0] == 1 && dprojector[1] == 1 && dprojector[2] == 2 && dprojector[3] == 2,
              "[[%g,%g],[%g,%g]]", (double)dprojector[0], (double)dprojector[1],
              (double)dprojector[2], (double)dprojector[3]);
    rig_close(&r);
}
