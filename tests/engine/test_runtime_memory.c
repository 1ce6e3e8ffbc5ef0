/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_runtime_memory.c: what a rank holds, to the byte: persistent state against
 * core/layout.h for every mode, K in {1, 2, 3, 4, 8}; initialisation; and the transient peaks of
 * forward and backward against the formulas of docs/memory.md.
 *
 * The walk runs without a model, so that the ledger knows parameters, gradients, optimizer state
 * and staging alone, and its peak is the formula's. Buffers stay below 1 MiB, where the allocator
 * gives what was asked for, rounded up to 512. */
#include <criterion/criterion.h>

#include "tests/engine/bench.h"

#define LAYERS 6

struct memory_case {
    const char *name, *recipe;
    enum zt_mode mode;
    enum zt_dtype reduce;
    int world, shard, prefetch, inflight, micros;
    enum zt_reshard reshard;
    int m;
    bool no_sync;
    int64_t persistence;
    double bucket_mib;
};
struct memory_job {
    struct ranks_shared shared;
    struct memory_case c;
};

static void tune(struct zt_spec *s, const void *arg) {
    const struct memory_case *c = arg;
    if (c->recipe) snprintf(s->precision.recipe, sizeof s->precision.recipe, "%s", c->recipe);
    s->precision.reduce_dtype = c->reduce;
    s->parallelism.reshard = c->reshard;
    s->parallelism.reshard_int = c->m;
    s->parallelism.prefetch = c->prefetch;
    s->parallelism.max_inflight_reduces = c->inflight ? c->inflight : 1;
    s->parallelism.no_sync = c->no_sync;
    s->parallelism.persistence_threshold = c->persistence;
    s->parallelism.bucket_mib = c->bucket_mib;
}

static struct bench_options options(const struct memory_case *c) {
    return (struct bench_options){.row = bench_mode(c->mode),
                                  .shard = c->shard,
                                  .model = "layers: 6, heads: 2, dim: 32, vocab_size: 200",
                                  .tune = tune,
                                  .tune_arg = c};
}

static int64_t buffer(int64_t elements, enum zt_dtype t) {
    return (elements * (int64_t)zt_dtype_size(t) + 511) / 512 * 512;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- persistent state, initialisation ---- */

static struct zt_state_bytes state_of(const struct bench *b, enum zt_mode mode,
                                      const struct memory_case *c) {
    struct zt_group_size g[64];
    const struct zt_unit_layout *l = &b->runtime->layout;
    for (int i = 0; i < l->n_groups; i++)
        g[i] = (struct zt_group_size){l->groups[i].elements, l->groups[i].trainable,
                                      l->groups[i].persistent};
    return zt_state_of_groups(g, l->n_groups, mode, c->shard,
                              zt_recipe_find(c->recipe ? c->recipe : "fp32"));
}

static int state_rank(int rank, int world, void *arg) {
    struct memory_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = options(&j->c);
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    const struct zt_ledger *l = &b.ledger;
    struct zt_state_bytes want = state_of(&b, j->c.mode, &j->c), at;
    /* Nothing but what stays was ever there: no rank held more of the model than it keeps. */
    EXPECT(l->peak_allocated == want.parameters + want.optimizer + l->block[ZT_TAG_ACTIVATIONS],
           "%s: init held %lld at its peak, it keeps %lld and %lld", j->c.name,
           (long long)l->peak_allocated, (long long)want.parameters, (long long)want.optimizer);
    if (!j->c.recipe && !j->c.persistence && j->c.bucket_mib == 0) {
        struct zt_state_bytes f =
            zt_state_formula(&b.table, j->c.mode, j->c.shard, zt_recipe_find("fp32"));
        EXPECT(!memcmp(&f, &want, sizeof f), "%s: the formulas disagree", j->c.name);
    }
    for (int s = 1; s <= 2; s++) {
        OK(bench_window(&b, s, 0, 24 * j->c.micros, j->c.micros, &e));
        at = zt_runtime_requested(b.runtime);
        int64_t lasting = want.gradients;
        if (j->c.no_sync && j->c.micros > 1) /* whole ones, from micro-step to micro-step */
            lasting = state_of(&b, ZT_DDP, &j->c).gradients;
        EXPECT(at.gradients == lasting, "%s: gradients %lld, formula %lld", j->c.name,
               (long long)at.gradients, (long long)lasting);
        EXPECT(l->requested[ZT_TAG_GRADIENTS] == want.gradients, "%s: ledger gradients %lld",
               j->c.name, (long long)l->requested[ZT_TAG_GRADIENTS]);
        OK(zt_runtime_update(b.runtime, &(struct zt_update){.lr = 1e-3}, &e));
        at = zt_runtime_requested(b.runtime);
        EXPECT(at.parameters == want.parameters && at.optimizer == want.optimizer, "%s: state",
               j->c.name);
        /* gathered copies, the root's too, are gone between steps */
        EXPECT(l->requested[ZT_TAG_PARAMETERS] == want.parameters, "%s: parameters", j->c.name);
        EXPECT(l->requested[ZT_TAG_OPTIMIZER] == want.optimizer, "%s: optimizer", j->c.name);
        EXPECT(l->requested[ZT_TAG_GRADIENTS] == 0, "%s: gradients stay", j->c.name);
        EXPECT(l->requested[ZT_TAG_COMMUNICATION] == 0, "%s: staging stays", j->c.name);
        EXPECT(l->requested[ZT_TAG_TEMPORARY] == 0, "%s: temporaries stay", j->c.name);
        int64_t sum = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++) sum += l->at_peak[t];
        EXPECT(sum == l->peak_allocated, "composition");
    }
    bench_close(&b);
    return 0;
}

static void run(struct memory_case c, int (*fn)(int, int, void *)) {
    struct memory_job *j = ranks_map(sizeof *j);
    char name[128];
    if (!c.micros) c.micros = 1;
    snprintf(name, sizeof name, "%s %s %dx%d reduce %s prefetch %d inflight %d reshard %d",
             c.recipe ? c.recipe : "fp32", zt_mode_name(c.mode), c.world / c.shard, c.shard,
             zt_dtype_name(c.reduce), c.prefetch, c.inflight, (int)c.reshard);
    c.name = name;
    j->c = c;
    cr_assert_eq(ranks_run(c.world, 60, fn, j, NULL), 0, "%s", name);
    munmap(j, sizeof *j);
}

Test(state, equals_the_formulas, .timeout = 200) {
    static const int worlds[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int m = ZT_DDP; m < ZT_MODE_COUNT; m++)
            run((struct memory_case){.mode = (enum zt_mode)m,
                                     .world = worlds[i],
                                     .shard = m == ZT_DDP ? 1 : worlds[i],
                                     .prefetch = 1},
                state_rank);
    for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) /* replicas never divide */
        run((struct memory_case){.mode = (enum zt_mode)m, .world = 4, .shard = 2, .prefetch = 1},
            state_rank);
    run((struct memory_case){.mode = ZT_FSDP, .world = 2, .shard = 2, .no_sync = true, .micros = 3},
        state_rank);
    run((struct memory_case){.mode = ZT_ZERO3, .world = 2, .shard = 2, .persistence = 100},
        state_rank);
    run((struct memory_case){.mode = ZT_ZERO3, .world = 2, .shard = 2, .bucket_mib = 0.01},
        state_rank);
    run((struct memory_case){.mode = ZT_ZERO2, .world = 2, .shard = 2, .bucket_mib = 100},
        state_rank);
}

/* ---- transient peaks ---- */

/* Bytes beyond the persistent state. U, W: padded elements of a block and of the tied root. */
struct peaks {
    int64_t forward, backward;
};

static struct peaks peak_formula(const struct bench *b, const struct memory_case *c) {
    const struct zt_recipe *r = zt_recipe_find(c->recipe ? c->recipe : "fp32");
    const int L = LAYERS, d = c->prefetch, S = c->shard, in = c->inflight ? c->inflight : 1;
    const int64_t U = b->runtime->layout.groups[1].elements,
                  W = b->runtime->layout.groups[0].elements;
    const bool gathers = c->mode >= ZT_ZERO3, kept = gathers && c->reshard == ZT_RESHARD_FALSE,
               root_kept = kept || (c->mode == ZT_FSDP && c->reshard == ZT_RESHARD_DEFAULT),
               staged = c->reduce != r->grad, shards = c->mode >= ZT_ZERO2,
               direct = c->reduce == r->own;
    const int64_t cu = gathers ? buffer(U, r->gathered) : 0,
                  cw = gathers ? buffer(W, r->gathered) : 0;
    const int64_t gu = buffer(U, r->grad), gw = buffer(W, r->grad);
    const int64_t xu = buffer(U, c->reduce), xw = buffer(W, c->reduce); /* while it is reduced */
    const int64_t ou = buffer(U / S, r->own), ow = buffer(W / S, r->own);
    struct peaks p = {0, 0};
    ZT_ASSERT(shards && !c->m && L > d + 2);

    /* forward: the root and what was asked for; block i; the head */
    p.forward = cw + d * cu;
    for (int i = 1; i <= L; i++) {
        int whole = 1 + (d < L - i ? d : L - i); /* this block and those ahead */
        if (kept) whole += i - 1;
        int64_t root = root_kept || i + d >= L + 1 ? cw : 0;
        p.forward = most(p.forward, whole * cu + root);
    }
    int kept_blocks = kept ? L : d / 2 < L ? d / 2 : L, asked = d > 0 ? d - 1 : 0;
    p.forward = most(p.forward, cw + most(kept_blocks, asked) * cu);

    /* backward: the head, then block i with those ahead, its gradients, the reductions in flight,
     * the shards there are, and the root's gradients all along */
    p.backward = cw + most(kept ? L : 0, d) * cu + gw;
    for (int i = L; i >= 1; i--) {
        int whole = kept ? i : 1 + (d < i - 1 ? d : i - 1);
        int flying = L - i < in ? L - i : in, made = direct ? L - i : L - i - flying;
        if (S == 1) made = L - i - flying;
        int64_t rest = gw + made * ou;
        p.backward = most(p.backward, whole * cu + gu + flying * xu + rest);
        if (staged) { /* parameters and older reductions are gone when it is cast */
            int still = flying < in - 1 ? flying : in - 1;
            p.backward =
                most(p.backward, (whole - 1) * cu + gu + xu + still * xu + gw + (L - i) * ou);
        }
    }
    /* the end: the root's gradients are cast, scattered */
    int64_t flying = in - 1; /* blocks still in flight */
    int64_t before = flying * xu + (direct ? L : L - flying) * ou;
    p.backward = most(p.backward, before + (staged ? gw + xw : gw));
    p.backward = most(p.backward, before + xw + ow);
    return p;
}

/* reshard_after_forward: m, at most one unit ahead: a slice is made beside what it is cut from, and
 * goes when the gather from the slices has arrived. */
static struct peaks slices_formula(const struct bench *b, const struct memory_case *c) {
    const int L = LAYERS, d = c->prefetch, S = c->shard;
    const int64_t U = b->runtime->layout.groups[1].elements,
                  W = b->runtime->layout.groups[0].elements;
    const int64_t cu = buffer(U, ZT_F32), cw = buffer(W, ZT_F32), ou = buffer(U / S, ZT_F32),
                  ow = buffer(W / S, ZT_F32), su = buffer(U / c->m, ZT_F32),
                  sw = buffer(W / c->m, ZT_F32);
    struct peaks p = {cw + d * cu + sw, cw + d * cu + L * su + cw};
    for (int i = 1; i <= L; i++) {
        bool root = i + d > L; /* asked for */
        int ahead = d && i < L;
        p.forward = most(p.forward, (1 + ahead) * cu + (root ? cw : 0) + sw + i * su);
    }
    p.forward = most(p.forward, cw + L * su + (d ? 0 : sw));
    for (int i = L; i >= 1; i--) {
        int whole = 1 + (d && i > 1), flying = i < L;
        p.backward = most(p.backward, (whole + 1 + flying) * cu + cw + (i - 1) * su + (L - i) * ou);
    }
    p.backward = most(p.backward, cw + ow + L * ou);
    return p;
}

static int forward(struct bench *b, struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    struct zt_model_walk w;
    struct zt_unit_view v;
    int rc = zt_model_walk_build(&b->table, &w, e);
    for (int i = 0; i < w.n_forward && rc == 0; i++)
        if ((rc = s.forward_begin(s.arg, w.forward[i], &v, e)) == 0)
            rc = s.forward_end(s.arg, w.forward[i], e);
    zt_model_walk_free(&w);
    return rc;
}

static int peak_rank(int rank, int world, void *arg) {
    struct memory_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = options(&j->c);
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    struct peaks want = j->c.m ? slices_formula(&b, &j->c) : peak_formula(&b, &j->c);
    int64_t steady = b.ledger.allocated;
    for (int step = 1; step <= 2; step++) {
        OK(zt_runtime_window_begin(b.runtime, step, &e));
        OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
        zt_alloc_reset_peaks(b.alloc);
        OK(forward(&b, &e));
        int64_t got = b.ledger.peak_allocated - steady;
        EXPECT(got == want.forward, "%s: forward peak %lld, formula %lld", j->c.name,
               (long long)got, (long long)want.forward);
        zt_alloc_reset_peaks(b.alloc);
        OK(bench_backward(&b, NULL, &e));
        OK(zt_runtime_wait_gradients(b.runtime, &e));
        got = b.ledger.peak_allocated - steady;
        EXPECT(got == want.backward, "%s: backward peak %lld, formula %lld", j->c.name,
               (long long)got, (long long)want.backward);
        OK(zt_runtime_update(b.runtime, &(struct zt_update){.lr = 1e-3}, &e));
        EXPECT(b.ledger.allocated == steady, "%s: %lld bytes stay", j->c.name,
               (long long)(b.ledger.allocated - steady));
    }
    bench_close(&b);
    return 0;
}

Test(peak, equals_the_formula_in_fp32, .timeout = 300) {
    static const int worlds[] = {1, 2, 3, 4, 8};
    for (int i = 1; i < 5; i++)
        for (int m = ZT_ZERO2; m < ZT_MODE_COUNT; m++)
            for (int d = m == ZT_ZERO2 ? 1 : 0; d <= (m == ZT_ZERO2 || worlds[i] > 2 ? 1 : 3); d++)
                run((struct memory_case){.mode = (enum zt_mode)m,
                                         .world = worlds[i],
                                         .shard = worlds[i],
                                         .prefetch = d},
                    peak_rank);
    for (int m = ZT_ZERO2; m < ZT_MODE_COUNT; m++)
        run(
            (struct memory_case){
                .mode = (enum zt_mode)m, .world = 2, .shard = 2, .prefetch = 1, .inflight = 2},
            peak_rank);
    for (int k = ZT_RESHARD_TRUE; k <= ZT_RESHARD_FALSE; k++)
        run((struct memory_case){.mode = ZT_FSDP,
                                 .world = 4,
                                 .shard = 2,
                                 .prefetch = 1,
                                 .reshard = (enum zt_reshard)k},
            peak_rank);
}

Test(peak, equals_the_formula_with_slices, .timeout = 60) {
    for (int d = 0; d <= 1; d++)
        run((struct memory_case){.mode = ZT_FSDP,
                                 .world = 4,
                                 .shard = 4,
                                 .prefetch = d,
                                 .reshard = ZT_RESHARD_INT,
                                 .m = 2},
            peak_rank);
}

Test(peak, equals_the_formula_in_16_bits, .timeout = 300) {
    static const struct {
        const char *recipe;
        enum zt_dtype reduce;
    } of[] = {
        {"fsdp_mixed", ZT_F32}, {"fsdp_mixed", ZT_BF16}, {"mixed16", ZT_F32},
        {"mixed16", ZT_BF16},   {"mixed16_g32", ZT_F32}, {"pure_bf16", ZT_F32},
    };
    for (int i = 0; i < 6; i++)
        for (int in = 1; in <= 2; in++)
            run((struct memory_case){.recipe = of[i].recipe,
                                     .mode = in == 1 ? ZT_ZERO3 : ZT_FSDP,
                                     .reduce = of[i].reduce,
                                     .world = 2,
                                     .shard = 2,
                                     .prefetch = 1,
                                     .inflight = in},
                peak_rank);
}

/* At one unit ahead the blocks' transient is FSDP2's: 2 b_c P_b forward, (2 b_c + b_g + b_r) P_b
 * backward; here against the measured peaks, the root and the shards taken off. */
static int bound_rank(int rank, int world, void *arg) {
    struct memory_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = options(&j->c);
    const struct zt_recipe *r = zt_recipe_find(j->c.recipe ? j->c.recipe : "fp32");
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    int64_t U = b.runtime->layout.groups[1].elements, W = b.runtime->layout.groups[0].elements;
    int64_t steady = b.ledger.allocated;
    OK(zt_runtime_window_begin(b.runtime, 1, &e));
    OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
    OK(forward(&b, &e));
    int64_t got = b.ledger.peak_allocated - steady - buffer(W, r->gathered);
    EXPECT(got <= 2 * buffer(U, r->gathered), "%s: forward %lld", j->c.name, (long long)got);
    zt_alloc_reset_peaks(b.alloc);
    OK(bench_backward(&b, NULL, &e));
    got = b.ledger.peak_allocated - steady - buffer(W, r->grad) -
          LAYERS * buffer(U / j->c.shard, r->own);
    EXPECT(got <= 2 * buffer(U, r->gathered) + buffer(U, r->grad) + buffer(U, j->c.reduce),
           "%s: backward %lld", j->c.name, (long long)got);
    bench_close(&b);
    return 0;
}

Test(peak, is_no_more_than_that_of_fsdp2, .timeout = 60) {
    for (int k = ZT_RESHARD_DEFAULT; k <= ZT_RESHARD_TRUE; k++) {
        run((struct memory_case){.mode = ZT_FSDP,
                                 .world = 2,
                                 .shard = 2,
                                 .prefetch = 1,
                                 .reshard = (enum zt_reshard)k},
            bound_rank);
        run((struct memory_case){.recipe = "fsdp_mixed",
                                 .mode = ZT_FSDP,
                                 .world = 2,
                                 .shard = 2,
                                 .prefetch = 1,
                                 .reshard = (enum zt_reshard)k},
            bound_rank);
    }
}
