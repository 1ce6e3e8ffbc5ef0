/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_runtime.c: the sharding runtime on forked ranks: bytes against the formulas,
 * bits against one rank and between modes, order and bytes of collectives, and what must fail. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/train_int.h"
#include "tests/engine/bench.h"

static struct bench_job *run(int world, struct bench_options o, int64_t global, int64_t micros) {
    struct bench_job *j = ranks_map(sizeof *j);
    j->o = o;
    j->global = global;
    j->micros = micros;
    cr_assert_eq(ranks_run(world, 120, bench_steps, j, NULL), 0, "world %d mode %s", world,
                 o.row ? zt_mode_name(o.row->mode) : "ddp");
    return j;
}

/* Hash of the model: own hashes of the shard ranks of replica 0, or one rank's when all own all. */
static struct zt_hash128 model_hash(const struct bench_job *j, int s, int shards) {
    struct zt_hash128 sum = {0, 0};
    for (int r = 0; r < shards; r++)
        zt_hash128_add(&sum, (struct zt_hash128){j->r[s][r].hash[0], j->r[s][r].hash[1]});
    return sum;
}

static double loss(const struct bench_job *j, int s, int world) {
    double sum = 0;
    for (int r = 0; r < world; r++) sum += j->r[s][r].loss;
    return sum;
}

Test(runtime, replicas_are_equal_and_worlds_agree, .timeout = 200) {
    struct bench_job *one = run(1, (struct bench_options){0}, 12, 1);
    for (int world = 2; world <= 4; world++) {
        struct bench_job *j = run(world, (struct bench_options){0}, 12, 1);
        for (int s = 0; s <= BENCH_STEPS; s++) {
            for (int r = 1; r < world; r++)
                cr_assert_arr_eq(j->r[s][r].hash, j->r[s][0].hash, 16, "world %d step %d", world,
                                 s);
            if (!s) {
                cr_assert_arr_eq(j->r[0][0].hash, one->r[0][0].hash, 16, "weights drawn by index");
                continue;
            }
            double a = loss(one, s, 1), b = loss(j, s, world);
            cr_assert_float_eq(a, b, 1e-6 * a, "world %d step %d: %.9g %.9g", world, s, a, b);
            cr_assert_float_eq(one->r[s][0].norm, j->r[s][0].norm, 1e-5 * one->r[s][0].norm);
        }
        cr_assert_neq(j->r[BENCH_STEPS][0].hash[0], j->r[0][0].hash[0], "it did train");
    }
}

Test(runtime, threads_do_not_change_bits, .timeout = 100) {
    struct bench_job *a = run(2, (struct bench_options){.threads = 1}, 8, 2);
    struct bench_job *b = run(2, (struct bench_options){.threads = 3}, 8, 2);
    for (int s = 0; s <= BENCH_STEPS; s++) cr_assert_arr_eq(a->r[s][0].hash, b->r[s][0].hash, 16);
}

/* Overlap, bucket sizes and lazy state change when things happen, never what comes out. */
Test(runtime, options_do_not_change_bits, .timeout = 400) {
    struct bench_job *plain = run(2, (struct bench_options){0}, 8, 2);
    const struct bench_options other[] = {{.no_overlap = true},
                                          {.bucket_mib = 0.004},
                                          {.bucket_mib = 0.06},
                                          {.bucket_mib = 100},
                                          {.more = "optimizer: {state_init: lazy}\n"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct bench_job *j = run(2, other[i], 8, 2);
        for (int s = 0; s <= BENCH_STEPS; s++) {
            cr_assert_arr_eq(j->r[s][0].hash, plain->r[s][0].hash, 16, "option %zu step %d", i, s);
            if (s) cr_assert_eq(j->r[s][0].norm, plain->r[s][0].norm);
        }
    }
    for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
        struct bench_job *base =
            run(2, (struct bench_options){.row = bench_mode((enum zt_mode)m), .shard = 2}, 8, 2);
        for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
            struct bench_options o = other[i];
            o.row = bench_mode((enum zt_mode)m);
            o.shard = 2;
            struct bench_job *j = run(2, o, 8, 2);
            for (int s = 0; s <= BENCH_STEPS; s++)
                cr_assert_eq(model_hash(j, s, 2).lo, model_hash(base, s, 2).lo,
                             "mode %d option %zu step %d", m, i, s);
        }
    }
}

/* Every mode gives ddp's bits at the same number of ranks (one micro-step: both classes are one).
 */
Test(runtime, modes_are_bitwise_equal, .timeout = 400) {
    for (int world = 2; world <= 4; world++) {
        struct bench_job *ddp = run(world, (struct bench_options){0}, 12, 1);
        for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            struct bench_options o = {.row = bench_mode((enum zt_mode)m), .shard = world};
            struct bench_job *j = run(world, o, 12, 1);
            for (int s = 0; s <= BENCH_STEPS; s++) {
                struct zt_hash128 a = model_hash(ddp, s, 1), b = model_hash(j, s, world);
                cr_assert(a.lo == b.lo && a.hi == b.hi, "world %d mode %s step %d", world,
                          zt_mode_name((enum zt_mode)m), s);
                if (s) cr_assert_eq(ddp->r[s][0].norm, j->r[s][world - 1].norm);
            }
        }
    }
}

/* Accumulation: zero1 reduces once like ddp; zero2, zero3 and fsdp reduce every micro-step. */
Test(runtime, accumulation_classes, .timeout = 200) {
    struct bench_job *ddp = run(2, (struct bench_options){0}, 12, 3);
    struct bench_job *z1 =
        run(2, (struct bench_options){.row = bench_mode(ZT_ZERO1), .shard = 2}, 12, 3);
    struct bench_job *z2 =
        run(2, (struct bench_options){.row = bench_mode(ZT_ZERO2), .shard = 2}, 12, 3);
    struct bench_job *z3 =
        run(2, (struct bench_options){.row = bench_mode(ZT_FSDP), .shard = 2}, 12, 3);
    for (int s = 1; s <= BENCH_STEPS; s++) {
        cr_assert_eq(model_hash(ddp, s, 1).lo, model_hash(z1, s, 2).lo);
        cr_assert_eq(model_hash(z2, s, 2).lo, model_hash(z3, s, 2).lo);
        cr_assert_float_eq(loss(ddp, s, 2), loss(z2, s, 2), 1e-5 * loss(ddp, s, 2));
    }
}

/* Replicas of shards: the replicas agree, and ddp's loss comes out. */
Test(runtime, hybrid_replicas_agree, .timeout = 200) {
    struct bench_job *ddp = run(4, (struct bench_options){0}, 12, 1);
    for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
        struct bench_job *j =
            run(4, (struct bench_options){.row = bench_mode((enum zt_mode)m), .shard = 2}, 12, 1);
        for (int s = 0; s <= BENCH_STEPS; s++) {
            cr_assert_arr_eq(j->r[s][0].hash, j->r[s][2].hash, 16);
            cr_assert_arr_eq(j->r[s][1].hash, j->r[s][3].hash, 16);
            if (s) cr_assert_float_eq(loss(ddp, s, 4), loss(j, s, 4), 1e-6 * loss(ddp, s, 4));
        }
    }
}

/* A shard axis of one is not an excuse to train alone: replicate 4 x shard 1 equals ddp. */
Test(runtime, shard_axis_of_one_still_reduces, .timeout = 200) {
    struct bench_job *ddp = run(4, (struct bench_options){0}, 12, 1);
    struct bench_job *j =
        run(4, (struct bench_options){.row = bench_mode(ZT_FSDP), .shard = 1}, 12, 1);
    for (int s = 0; s <= BENCH_STEPS; s++)
        for (int r = 0; r < 4; r++) cr_assert_arr_eq(j->r[s][r].hash, ddp->r[s][0].hash, 16);
}

/* ---- bytes ---- */

static int bytes_rank(int rank, int world, void *arg) {
    struct bench_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    int shard = j->o.shard ? j->o.shard : 1;
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    struct zt_state_bytes want =
        zt_state_formula(&b.table, b.spec.parallelism.mode, shard, zt_recipe_find("fp32"));
    for (int s = 1; s <= 2; s++) {
        OK(bench_window(&b, s, 0, j->global, j->micros, &e));
        struct zt_state_bytes at = zt_runtime_requested(b.runtime);
        if (!b.runtime->policy->shard_gradients) {
            EXPECT(at.gradients == want.gradients, "gradients %lld", (long long)at.gradients);
            EXPECT(b.ledger.requested[ZT_TAG_GRADIENTS] == want.gradients, "ledger gradients");
        }
        OK(bench_update(&b, 1e-3, &e));
        at = zt_runtime_requested(b.runtime);
        EXPECT(at.parameters == want.parameters, "parameters %lld", (long long)at.parameters);
        EXPECT(at.optimizer == want.optimizer, "optimizer %lld", (long long)at.optimizer);
        /* gathered copies, the root's too, are gone between steps */
        EXPECT(b.ledger.requested[ZT_TAG_PARAMETERS] == want.parameters, "ledger parameters");
        EXPECT(b.ledger.requested[ZT_TAG_OPTIMIZER] == want.optimizer, "ledger optimizer");
        EXPECT(b.ledger.requested[ZT_TAG_GRADIENTS] == 0, "gradients stay after the update");
        EXPECT(b.ledger.block[ZT_TAG_TEMPORARY] == 0, "temporaries stay");
        int64_t sum = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++) sum += b.ledger.at_peak[t];
        EXPECT(sum == b.ledger.peak_allocated, "composition");
    }
    bench_close(&b);
    return 0;
}

Test(runtime, bytes_equal_the_formulas, .timeout = 200) {
    for (int world = 1; world <= 4; world++)
        for (int m = ZT_DDP; m < ZT_MODE_COUNT; m++) {
            struct bench_job *j = ranks_map(sizeof *j);
            j->o = (struct bench_options){.row = bench_mode((enum zt_mode)m),
                                          .shard = m == ZT_DDP ? 1 : world};
            j->global = 12;
            j->micros = 1;
            cr_assert_eq(ranks_run(world, 60, bytes_rank, j, NULL), 0, "world %d mode %d", world,
                         m);
        }
}

/* ---- traffic ---- */

static int traffic_rank(int rank, int world, void *arg) {
    struct bench_job *j = arg;
    struct bench b;
    struct zt_coll_record log[64];
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    int64_t before = zt_comm_log(b.comm, 0, log, 64);
    EXPECT(before < 64, "log");
    int64_t after = before ? log[before - 1].id : 0;
    OK(bench_step(&b, 1, 0, 12, 3, &e));
    int64_t n = zt_comm_log(b.comm, after, log, 64);
    /* once per window and unit, last units first, the root last: it is done when all is done */
    EXPECT(n == b.table.n_units, "%lld collectives", (long long)n);
    for (int i = 0; i < n; i++) {
        const char *unit = b.table.units[i == n - 1 ? 0 : b.table.n_units - 1 - i].name;
        EXPECT(!strcmp(log[i].unit, unit), "collective %d is of %s", i, log[i].unit);
        EXPECT(log[i].kind == ZT_COLL_ALL_REDUCE && !strcmp(log[i].group, "dp_replicate"), "kind");
        EXPECT(log[i].step == 1 && !log[i].control, "step");
    }
    int64_t bytes = zt_model_padded(&b.table, 1) * 4;
    EXPECT(zt_runtime_sent_bytes(b.runtime) == 2 * bytes * (world - 1) / world, "sent %lld",
           (long long)zt_runtime_sent_bytes(b.runtime));
    bench_close(&b);
    return 0;
}

Test(runtime, ddp_sends_once_a_window_in_backward_order, .timeout = 60) {
    struct bench_job *j = ranks_map(sizeof *j);
    cr_assert_eq(ranks_run(2, 60, traffic_rank, j, NULL), 0);
    struct bench_job *k = ranks_map(sizeof *k);
    cr_assert_eq(ranks_run(4, 60, traffic_rank, k, NULL), 0);
}

/* ---- weight of tokens ---- */

/* Two ranks with 100 and 300 tokens whose gradients are 1 and 2 per token. */
static const int64_t weighed_tokens[] = {100, 300};
static float weighed_share; /* of this rank's process: what its tokens add together */

static void fill_weighted(struct bench *b, int unit, const struct zt_unit_view *v) {
    const struct zt_unit_def *u = &b->table.units[unit];
    for (int i = 0; i < u->n_tensors; i++)
        for (int64_t k = 0; k < b->table.tensors[u->first_tensor + i].numel; k++)
            ((float *)v->grad[i])[k] += weighed_share;
}

/* The window of one example of n tokens; `weights` has room for them. */
static struct zt_window window_of_one(int64_t n, enum zt_average average, float *weights) {
    struct zt_window w = {.valid_tokens = n};
    double own = average == ZT_AVERAGE_SAMPLE ? 1.0 / (double)n : 1.0 / sqrt((double)n);
    zt_fixsum_zero(&w.weight);
    if (average == ZT_AVERAGE_TOKEN) return w;
    for (int64_t i = 0; i < n; i++) weights[i] = (float)own;
    zt_fixsum_add_floats(&w.weight, weights, (size_t)n);
    w.all.weights = weights;
    return w;
}

static int weight_rank(int rank, int world, void *arg) {
    /* of the first rank: 1/4, 1/2 and sqrt(100) / (sqrt(100) + sqrt(300)) */
    const double first[] = {0.25, 0.5, 10 / (10 + sqrt(300.0))};
    struct bench_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    float weights[300];
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    for (int a = 0; a < 3; a++) {
        struct zt_window_total all = {0, 0};
        struct zt_window w = window_of_one(weighed_tokens[rank], (enum zt_average)a, weights);
        OK(zt_window_total(&w, true, b.control, zt_device_compute(b.device), 1, &all, &e));
        double share = zt_window_weight(&w) / all.weight, own = rank ? 1 - first[a] : first[a];
        EXPECT(all.valid == 400, "%lld", (long long)all.valid);
        EXPECT(fabs(share - own) < 1e-7, "average %d: rank %d weighs %.9g", a, rank, share);
        weighed_share = (float)((rank + 1) * share);
        OK(zt_runtime_window_begin(b.runtime, a + 1, &e));
        OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
        OK(bench_backward(&b, fill_weighted, &e));
        OK(zt_runtime_wait_gradients(b.runtime, &e));
        double want = 2 - first[a]; /* 1.75, 1.5, 1.634 */
        for (int t = 0; t < b.table.n_tensors; t++) {
            const float *g = zt_runtime_gradient(b.runtime, t);
            for (int64_t k = 0; k < b.table.tensors[t].numel; k++)
                EXPECT(fabs((double)g[k] - want) < 1e-6, "average %d tensor %d element %lld is %g",
                       a, t, (long long)k, (double)g[k]);
        }
        OK(bench_update(&b, 1e-3, &e));
        want *= sqrt((double)b.table.parameters);
        EXPECT(fabs(b.norm - want) < 1e-6 * want, "norm %.12g, expected %.12g", b.norm, want);
    }
    bench_close(&b);
    return 0;
}

Test(runtime, tokens_weigh_by_the_average, .timeout = 60) {
    struct bench_job *j = ranks_map(sizeof *j);
    cr_assert_eq(ranks_run(2, 60, weight_rank, j, NULL), 0);
}

/* Gradients with masked targets: ranks with few and many valid tokens give the gradient of one rank
 * that sees all rows. */
static int masked_rank(int rank, int world, void *arg) {
    struct bench_job *j = arg;
    struct bench b;
    struct zt_fixsum sum;
    struct zt_error e = {0};
    int64_t valid = 0, all = 0, rows_here = 2 / world;
    struct zt_coll_why why = {"", "tokens", 1, true};
    zt_fixsum_zero(&sum);
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    for (int64_t i = 0; i < rows_here; i++) {
        int64_t sample = rank * rows_here + i;
        bench_row(&b, i, sample);
        for (int64_t k = sample == 0 ? 4 : 12; k < BENCH_T; k++) b.targets[i * BENCH_T + k] = -1;
        all += sample == 0 ? 4 : 12;
    }
    OK(zt_all_reduce(b.control, &all, 1, ZT_I64, ZT_SUM, zt_device_compute(b.device), &why, &e));
    EXPECT(all == 16, "valid tokens");
    struct zt_unit_source s = zt_runtime_source(b.runtime);
    struct zt_batch batch = {b.tokens, b.targets, rows_here, BENCH_T};
    OK(zt_runtime_window_begin(b.runtime, 1, &e));
    OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
    OK(zt_model_step(b.model, &s, &batch, (float)(1.0 / 16), true, false, &sum, &valid, &e));
    OK(bench_update(&b, 1e-3, &e));
    j->r[0][rank] = (struct bench_result){.norm = b.norm, .loss = zt_fixsum_value(&sum) / 16};
    bench_close(&b);
    return 0;
}

Test(runtime, masked_targets_weigh_by_their_count, .timeout = 60) {
    struct bench_job *one = ranks_map(sizeof *one), *two = ranks_map(sizeof *two);
    cr_assert_eq(ranks_run(1, 60, masked_rank, one, NULL), 0);
    cr_assert_eq(ranks_run(2, 60, masked_rank, two, NULL), 0);
    cr_assert_float_eq(one->r[0][0].norm, two->r[0][0].norm, 1e-5 * one->r[0][0].norm);
    cr_assert_eq(two->r[0][0].norm, two->r[0][1].norm);
    cr_assert_float_eq(one->r[0][0].loss, two->r[0][0].loss + two->r[0][1].loss,
                       1e-6 * one->r[0][0].loss);
}

/* ---- what must fail ---- */

static void fill_nan(struct bench *b, int unit, const struct zt_unit_view *v) {
    if (unit == 1 && b->rank == b->world - 1)
        ((float *)v->grad[2])[5] = NAN; /* one element of one rank */
}

static int nan_rank(int rank, int world, void *arg) {
    struct bench_job *j = arg;
    struct bench b;
    struct zt_hash128 before, after;
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    OK(zt_runtime_parameter_hash(b.runtime, &before, NULL, &e));
    OK(zt_runtime_window_begin(b.runtime, 1, &e));
    OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
    OK(bench_backward(&b, fill_nan, &e));
    EXPECT(bench_update(&b, 1e-3, &e) == ZT_ENAN, "update went through");
    OK(zt_runtime_parameter_hash(b.runtime, &after, NULL, &e));
    EXPECT(before.lo == after.lo && before.hi == after.hi, "parameters were touched");
    bench_close(&b);
    return 0;
}

Test(runtime, non_finite_norm_stops_before_the_update, .timeout = 60) {
    struct bench_job *j = ranks_map(sizeof *j), *k = ranks_map(sizeof *k);
    cr_assert_eq(ranks_run(2, 60, nan_rank, j, NULL), 0);
    k->o = (struct bench_options){.row = bench_mode(ZT_ZERO2), .shard = 2};
    cr_assert_eq(ranks_run(2, 60, nan_rank, k, NULL), 0, "the norm travels with its flag");
}

Test(runtime, refuses_what_it_does_not_have) {
    struct bench b;
    struct zt_error e = {0};
    struct zt_policy row = *zt_policy(ZT_ZERO2);
    struct bench_options o = {.row = &row};
    row.supported = false;
    cr_assert_eq(bench_open(&b, 0, 1, NULL, &o, &e), ZT_EUNSUPPORTED);
    cr_assert(strstr(e.msg, "zero2") && strstr(e.msg, "not in this version"), "%s", e.msg);
    bench_close(&b);
}

/* The clip works: one step with a tiny limit barely moves a parameter, without it Adam moves by lr.
 */
static float largest_move(const char *more) {
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = {.more = more};
    float *was, most = 0;
    cr_assert_eq(bench_open(&b, 0, 1, NULL, &o, &e), 0, "%s", e.msg);
    size_t n = (size_t)b.runtime->groups[1].def->elements;
    was = malloc(n * sizeof *was);
    memcpy(was, b.runtime->groups[1].store, n * sizeof *was);
    cr_assert_eq(bench_step(&b, 1, 0, 4, 1, &e), 0, "%s", e.msg);
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(((float *)b.runtime->groups[1].store)[i] - was[i]));
    free(was);
    bench_close(&b);
    return most;
}

Test(runtime, clipping_has_an_effect) {
    cr_assert_lt(largest_move("optimizer: {weight_decay: 0, max_norm: 1.0e-10}\n"),
                 0.0099f * 1e-2f);
    float free_move = largest_move("optimizer: {weight_decay: 0, max_norm: 0}\n");
    cr_assert_float_eq(free_move, 1e-2f, 1e-4f);
}

/* ---- recipes ---- */

struct recipe_case {
    const char *recipe;
    enum zt_dtype reduce;
    enum zt_reshard reshard;
    int m;
};
static void tune_recipe(struct zt_spec *s, const void *arg) {
    const struct recipe_case *c = arg;
    snprintf(s->precision.recipe, sizeof s->precision.recipe, "%s", c->recipe);
    s->precision.reduce_dtype = c->reduce;
    s->parallelism.reshard = c->reshard;
    s->parallelism.reshard_int = c->m;
}

static struct zt_hash128 recipe_hash(struct recipe_case c, enum zt_mode m, int world, int step) {
    struct bench_options o = {.row = bench_mode(m),
                              .shard = m == ZT_DDP ? 1 : world,
                              .tune = tune_recipe,
                              .tune_arg = &c};
    struct bench_job *j = run(world, o, 12, 1);
    cr_assert_neq(model_hash(j, 0, o.shard).lo, model_hash(j, step, o.shard).lo, "it did train");
    return model_hash(j, step, o.shard);
}

/* Where whole and cut gradients are kept in one type, every mode has the same bits; in fsdp_mixed,
 * which keeps the shard in fp32, zero3 and fsdp have, however they reshard. */
Test(runtime, recipes_give_equal_bits_in_every_mode, .timeout = 400) {
    static const struct recipe_case of[] = {{"autocast", ZT_F32},   {"mixed16_g32", ZT_F32},
                                            {"mixed16", ZT_F32},    {"mixed16", ZT_BF16},
                                            {"pure_bf16", ZT_F32},  {"mixed16_nomaster", ZT_F32},
                                            {"fsdp_mixed", ZT_F32}, {"fsdp_mixed", ZT_BF16}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        bool cut_only = !strcmp(of[i].recipe, "fsdp_mixed");
        struct zt_hash128 want = recipe_hash(of[i], cut_only ? ZT_ZERO3 : ZT_DDP, 2, BENCH_STEPS);
        for (int m = cut_only ? ZT_FSDP : ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            struct zt_hash128 h = recipe_hash(of[i], (enum zt_mode)m, 2, BENCH_STEPS);
            cr_assert(h.lo == want.lo && h.hi == want.hi, "%s reduced in %s: %s", of[i].recipe,
                      zt_dtype_name(of[i].reduce), zt_mode_name((enum zt_mode)m));
        }
    }
    struct recipe_case c = {"fsdp_mixed", ZT_F32, ZT_RESHARD_DEFAULT, 0};
    struct zt_hash128 want = recipe_hash(c, ZT_FSDP, 4, BENCH_STEPS);
    for (int k = ZT_RESHARD_TRUE; k <= ZT_RESHARD_INT; k++) {
        c.reshard = (enum zt_reshard)k;
        c.m = 2;
        struct zt_hash128 h = recipe_hash(c, ZT_FSDP, 4, BENCH_STEPS);
        cr_assert(h.lo == want.lo && h.hi == want.hi, "fsdp_mixed, reshard %d", k);
    }
}

/* Alone, a mode holds what it holds and has the bits of ddp. */
Test(runtime, one_rank_in_every_recipe, .timeout = 100) {
    static const char *const of[] = {"fp32", "autocast", "mixed16", "mixed16_g32", "pure_bf16"};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct recipe_case c = {of[i], ZT_F32, ZT_RESHARD_DEFAULT, 0};
        struct zt_hash128 want = recipe_hash(c, ZT_DDP, 1, BENCH_STEPS);
        for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            struct zt_hash128 h = recipe_hash(c, (enum zt_mode)m, 1, BENCH_STEPS);
            cr_assert(h.lo == want.lo && h.hi == want.hi, "%s %s", of[i],
                      zt_mode_name((enum zt_mode)m));
        }
    }
}
