/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_precision.c: every recipe in every mode: the same bits, the same norm, a loss
 * that follows fp32's, updates that do not vanish in 16 bits, clipping that has an effect, and
 * noise that does not know of ranks. */
#include <xxhash.h>

#include "tests/engine/prec.h"

static bool whole_mode(enum zt_mode m) { return m != ZT_ZERO3 && m != ZT_FSDP; }

/* fsdp_mixed is about what is gathered; the other modes gather nothing before use. */
static bool takes(const char *recipe, enum zt_mode m) {
    return strcmp(recipe, "fsdp_mixed") != 0 || !whole_mode(m);
}

static void expect_same(const struct prec_job *a, const struct prec_job *b) {
    for (int s = 0; s <= a->c.steps; s++) {
        struct zt_hash128 x = prec_hash(a, s), y = prec_hash(b, s);
        cr_assert(x.lo == y.lo && x.hi == y.hi, "step %d: %s differs from %s", s, prec_name(&a->c),
                  prec_name(&b->c));
        for (int r = 0; s && r < b->c.world; r++)
            cr_assert_eq(a->step[s][0].norm, b->step[s][r].norm, "step %d: norm of %s", s,
                         prec_name(&b->c));
    }
}

/* The norm that is reported against a plain sum over what the optimizers hold; replicas hold the
 * same and count once. */
static void expect_norm(const struct prec_job *j) {
    bool cut = zt_policy(j->c.mode)->shard_optimizer;
    double scale = zt_recipe_find(j->c.recipe)->scaled ? 1024 : 1;
    for (int s = 1; s <= j->c.steps; s++) {
        double sum = 0;
        for (int r = 0; r < (cut ? j->c.shard : 1); r++) sum += j->step[s][r].squares;
        double want = sqrt(sum) / scale;
        cr_assert_float_eq(j->step[s][0].norm, want, 1e-12 * want,
                           "step %d: norm of %s: %.17g %.17g", s, prec_name(&j->c),
                           j->step[s][0].norm, want);
    }
}

/* One recipe, one number of ranks, one reduce type: all modes and what fsdp can be told. */
static void modes_agree(const char *recipe, int world, bool reduce16) {
    struct prec_case base = {
        .recipe = recipe, .world = world, .reduce16 = reduce16, .max_norm = 0.5};
    base.mode = takes(recipe, ZT_DDP) ? ZT_DDP : ZT_ZERO3;
    struct prec_case other[8];
    int n = 0;
    for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++)
        if (takes(recipe, (enum zt_mode)m)) {
            other[n] = base;
            other[n++].mode = (enum zt_mode)m;
        }
    other[n] = base;
    other[n].mode = ZT_FSDP;
    other[n].reshard = ZT_RESHARD_FALSE;
    other[n++].bucket_mib = 0.03;
    other[n] = base;
    other[n].mode = ZT_FSDP;
    other[n].reshard = ZT_RESHARD_TRUE;
    other[n].wrap = ZT_WRAP_PART;
    other[n++].persistence = 50;
    if (world == 4) {
        other[n] = base;
        other[n].mode = ZT_FSDP;
        other[n].reshard = ZT_RESHARD_INT;
        other[n++].reshard_int = 2;
    }
    struct prec_job *first = prec_run(base);
    expect_norm(first);
    for (int i = 0; i < n; i++) {
        struct prec_job *j = prec_run(other[i]);
        expect_same(first, j);
        expect_norm(j);
        prec_free(j);
    }
    prec_free(first);
}

/* At the same number of ranks the mode changes nothing, in any recipe. Odd and even numbers of
 * ranks and both reduce types are dealt over the recipes; scripts/soak.sh runs the product. */
Test(precision, modes_are_bitwise_equal, .timeout = 600) {
    bool all = getenv("ZT_TEST_FULL") != NULL;
    for (int i = 1; i < PREC_RECIPES; i++)
        for (int k = 0; k < (all ? 6 : 1); k++) {
            int turn = all ? k : i;
            modes_agree(prec_recipes[i], 2 + turn % 3, turn % 2 == 0);
        }
}

/* Two ways to the same numbers: fp32 weights cast for the kernels (autocast) are a master and its
 * rounded copy (mixed16_g32); both write fp32 gradients and step in fp32. */
Test(precision, autocast_is_a_master_with_fp32_gradients, .timeout = 60) {
    for (int world = 1; world <= 3; world += 2) {
        struct prec_case c = {.recipe = "autocast", .world = world, .steps = 6, .max_norm = 0.5};
        struct prec_job *a = prec_run(c);
        c.recipe = "mixed16_g32";
        c.mode = ZT_ZERO2;
        struct prec_job *b = prec_run(c);
        expect_same(a, b);
        prec_free(a);
        prec_free(b);
    }
}

/* Replicas of shards agree, in bits, with each other. */
Test(precision, hybrid_replicas_agree, .timeout = 120) {
    static const char *const recipes[] = {"fsdp_mixed", "pure_bf16", "fp16"};
    for (int i = 0; i < 3; i++) {
        struct prec_job *j = prec_run((struct prec_case){
            .recipe = recipes[i], .mode = ZT_FSDP, .world = 4, .shard = 2, .reduce16 = i == 1});
        for (int s = 0; s <= j->c.steps; s++)
            for (int r = 0; r < 2; r++)
                cr_assert_arr_eq(j->step[s][r].hash, j->step[s][r + 2].hash, 16, "%s", recipes[i]);
        expect_norm(j);
        prec_free(j);
    }
}

/* The hash by its definition, over the authoritative value: sum of XXH3-128 over ordinal of the
 * tensor, logical index and bits of the value as fp32. */
static int hash_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_hash128 h, want = {0, 0};
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    OK(bench_window(&b, 1, 0, 8, 1, &e));
    OK(bench_update(&b, 1e-2, &e));
    OK(zt_runtime_parameter_hash(b.runtime, &h, NULL, &e));
    for (int i = 0; i < b.runtime->layout.n_entries; i++) {
        const struct zt_flat_entry *t = &b.runtime->layout.entries[i];
        const struct rt_group *g = &b.runtime->groups[b.runtime->layout.group_of[t->tensor]];
        for (int64_t k = 0; k < t->numel; k++) {
            unsigned char m[16];
            uint32_t ordinal = (uint32_t)t->tensor;
            float value = (float)prec_value(g, t->offset + k);
            memcpy(m, &ordinal, 4);
            memcpy(m + 4, &k, 8);
            memcpy(m + 12, &value, 4);
            XXH128_hash_t x = XXH3_128bits(m, sizeof m);
            zt_hash128_add(&want, (struct zt_hash128){x.low64, x.high64});
        }
    }
    EXPECT(h.lo == want.lo && h.hi == want.hi, "another hash");
    bench_close(&b);
    return 0;
}

Test(precision, hash_by_its_definition, .timeout = 60) {
    static const char *const trainable[] = {NULL, "*.mlp.*"}; /* frozen tensors have no master */
    for (int i = 0; i < 2 * PREC_RECIPES; i++) {
        struct prec_job *j = ranks_map(sizeof *j);
        j->c = (struct prec_case){.recipe = prec_recipes[i / 2],
                                  .mode = ZT_FSDP,
                                  .world = 1,
                                  .shard = 1,
                                  .trainable = trainable[i % 2]};
        cr_assert_eq(ranks_run(1, 60, hash_rank, j, NULL), 0, "%s", prec_recipes[i / 2]);
        prec_free(j);
    }
}

/* A master starts from the same draw as fp32's parameters, in all its digits. */
Test(precision, masters_start_as_fp32_does, .timeout = 60) {
    struct prec_job *one = prec_run((struct prec_case){.recipe = "fp32", .world = 1});
    for (int i = 1; i < PREC_RECIPES; i++) {
        struct prec_job *j = prec_run((struct prec_case){
            .recipe = prec_recipes[i], .world = 2, .mode = ZT_FSDP, .reduce16 = i % 2});
        const struct zt_recipe *r = zt_recipe_find(prec_recipes[i]);
        bool same = r->has_master || r->param == ZT_F32;
        struct zt_hash128 a = prec_hash(one, 0), b = prec_hash(j, 0);
        cr_assert_eq(a.lo == b.lo && a.hi == b.hi, same, "%s", prec_recipes[i]);
        prec_free(j);
    }
    prec_free(one);
}

/* Twenty steps on one batch: the loss of every recipe at four ranks follows that of fp32 alone, and
 * its own at one rank. */
Test(precision, loss_follows_fp32, .timeout = 300) {
    struct prec_case fp32 = {.recipe = "fp32", .world = 1, .steps = 20, .lr = 2e-3, .max_norm = 1};
    struct prec_job *want = prec_run(fp32);
    cr_assert_lt(prec_loss(want, 20), 0.8 * prec_loss(want, 1), "it learns");
    for (int i = 1; i < PREC_RECIPES; i++) {
        struct prec_case c = fp32;
        c.recipe = prec_recipes[i];
        c.mode = ZT_FSDP;
        struct prec_job *one = prec_run(c);
        c.world = 4;
        c.reduce16 = i % 2;
        struct prec_job *four = prec_run(c);
        for (int s = 1; s <= 20; s++) {
            double a = prec_loss(want, s), b = prec_loss(one, s), d = prec_loss(four, s);
            cr_assert_float_eq(b, a, 1e-2 * a, "%s, step %d: %g, fp32 %g", c.recipe, s, b, a);
            cr_assert_float_eq(d, b, 1e-2 * b, "%s, step %d: %g at 4 ranks, %g at 1", c.recipe, s,
                               d, b);
        }
        prec_free(one);
        prec_free(four);
    }
    prec_free(want);
}

/* ---- clipping ---- */

/* A limit of 1e-10: m after one step is (1 - beta1) g clip, so its norm is 1e-11 whatever the
 * gradients were; no value of a recipe that rounds to nearest moves by a hundredth of lr, where
 * without a limit some move by all of it. The reported norm is the one before clipping. */
static void expect_clipped(const char *recipe, enum zt_mode mode, bool reduce16) {
    struct prec_case c = {.recipe = recipe,
                          .mode = mode,
                          .world = 2,
                          .steps = 1,
                          .max_norm = 1e-10,
                          .reduce16 = reduce16};
    struct prec_job *j = prec_run(c);
    c.max_norm = 0;
    struct prec_job *unlimited = prec_run(c);
    bool noisy = zt_recipe_find(recipe)->stochastic;
    double sum = 0, norm = j->step[1][0].norm, most = 0;
    for (int r = 0; r < j->c.shard; r++) sum += j->step[1][r].moment;
    /* bf16 moments keep 8 bits, rounded stochastically */
    double tolerance = zt_recipe_find(recipe)->moment == ZT_BF16 ? 1e-3 : 1e-5;
    cr_assert_float_eq(sqrt(sum), 1e-11, tolerance * 1e-11, "%s: m %g", prec_name(&j->c),
                       sqrt(sum));
    cr_assert_gt(norm, 0.1, "the logged norm is the one before clipping");
    for (int r = 0; r < 2; r++) {
        cr_assert_float_eq(j->step[1][r].clip, 1e-10 / (norm + 1e-6), 1e-20);
        cr_assert_eq(unlimited->step[1][r].clip, 1);
        cr_assert_eq(unlimited->step[1][r].norm, norm);
        if (!noisy) cr_assert_leq(j->step[1][r].moved, 0.0099 * 1e-2, "%s", prec_name(&j->c));
        most = fmax(most, unlimited->step[1][r].moved);
    }
    if (!noisy) cr_assert_float_eq(most, 1e-2, 1e-4, "%s: %g", prec_name(&j->c), most);
    prec_free(j);
    prec_free(unlimited);
}

Test(precision, clipping_has_an_effect_in_every_recipe, .timeout = 300) {
    for (int i = 0; i < PREC_RECIPES; i++)
        for (int m = 0; m < ZT_MODE_COUNT; m++)
            if (takes(prec_recipes[i], (enum zt_mode)m))
                expect_clipped(prec_recipes[i], (enum zt_mode)m, (i + m) % 2 && i);
}

/* ---- updates in 16 bits ---- */

static void fill_ones(struct bench *b, int unit, const struct zt_unit_view *v) {
    const struct zt_unit_def *u = &b->table.units[unit];
    enum zt_dtype t = b->runtime->recipe->grad;
    for (int i = 0; i < u->n_tensors; i++) {
        int64_t n = b->table.tensors[u->first_tensor + i].numel;
        struct zt_error e;
        /* all from rank 0: the sum over ranks is exact in every type and at every number of ranks
         */
        if (v->grad[i])
            zt_ops_cpu()->fill(b->ctx, t, v->grad[i], b->rank ? 0.0f : (float)b->scale, n, &e);
    }
}

static int given_step(struct bench *b, int64_t step, double lr, struct zt_error *e) {
    int rc = 0;
    RT_TRY(zt_runtime_window_begin(b->runtime, step, e));
    RT_TRY(zt_runtime_micro_begin(b->runtime, 0, true, e));
    RT_TRY(bench_backward(b, fill_ones, e));
    RT_TRY(bench_update(b, lr, e));
    RT_TRY(zt_runtime_collect(b->runtime, e));
out:
    return rc;
}

/* A constant gradient: Adam moves every element by lr a step. 100 steps of 6e-4 from 1.0 end at
 * 0.94. Each such step is less than half the distance to the next bf16 number below 1 (2^-9), so
 * rounding to nearest would leave 1.0 for ever. Stochastic rounding gets there on average: an
 * element's deviation is at most 2^-8 sqrt(100) / 2 = 0.02, the mean's over n elements 0.02 /
 * sqrt(n); four of these are allowed. */
static int moves_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_error e = {0};
    double sum = 0;
    int64_t n = 0, still = 0;
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    for (int s = 1; s <= 100; s++) OK(given_step(&b, s, 6e-4, &e));
    for (int i = 0; i < b.runtime->layout.n_entries; i++) {
        const struct zt_flat_entry *t = &b.runtime->layout.entries[i];
        const struct rt_group *g = &b.runtime->groups[b.runtime->layout.group_of[t->tensor]];
        struct zt_flat_part p = zt_flat_part(t, g->own_from, g->own_from + g->own_count);
        if (b.table.tensors[t->tensor].init != ZT_INIT_ONE) continue;
        for (int64_t k = 0; k < p.count; k++, n++) {
            double x = prec_value(g, p.at + k);
            sum += x;
            still += x == 1.0;
            if (!b.runtime->recipe->stochastic)
                EXPECT(fabs(x - 0.94) < 1e-5, "element %lld is %.9g", (long long)k, x);
        }
    }
    double mean = sum / (double)n;
    EXPECT(n > 50 && still == 0, "%lld of %lld elements did not move", (long long)still,
           (long long)n);
    EXPECT(fabs(mean - 0.94) < 4 * 0.02 / sqrt((double)n), "mean %.6g of %lld", mean, (long long)n);
    bench_close(&b);
    return 0;
}

Test(precision, small_updates_do_not_vanish, .timeout = 300) {
    for (int i = 0; i < PREC_RECIPES; i++) {
        struct prec_job *j = ranks_map(sizeof *j);
        enum zt_mode mode = i % 2                              ? ZT_FSDP
                            : takes(prec_recipes[i], ZT_ZERO1) ? ZT_ZERO1
                                                               : ZT_ZERO3;
        j->c = (struct prec_case){.recipe = prec_recipes[i], .mode = mode, .world = 2, .shard = 2};
        cr_assert_eq(ranks_run(2, 120, moves_rank, j, NULL), 0, "%s", prec_name(&j->c));
        prec_free(j);
    }
}

/* The same with the gradients of training: 100 steps of 6e-4 on one batch, and the norms' weights
 * have moved away from 1 as far as fp32's have, on average within a tenth; hardly one stands still.
 */
static int trained_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    for (int s = 1; s <= 100; s++) {
        OK(bench_window(&b, s, 0, 8, 1, &e));
        OK(bench_update(&b, 6e-4, &e));
        OK(zt_runtime_collect(b.runtime, &e));
    }
    double moved = 0, still = 0, n = 0;
    for (int i = 0; i < b.runtime->layout.n_entries; i++) {
        const struct zt_flat_entry *t = &b.runtime->layout.entries[i];
        const struct rt_group *g = &b.runtime->groups[b.runtime->layout.group_of[t->tensor]];
        struct zt_flat_part p = zt_flat_part(t, g->own_from, g->own_from + g->own_count);
        if (b.table.tensors[t->tensor].init != ZT_INIT_ONE) continue;
        for (int64_t k = 0; k < p.count; k++, n++) {
            double x = fabs(prec_value(g, p.at + k) - 1);
            moved += x;
            still += x == 0;
        }
    }
    j->step[0][rank] = (struct prec_step){.squares = moved / n, .moment = still / n};
    bench_close(&b);
    return 0;
}

Test(precision, norm_weights_move_as_in_fp32, .timeout = 300) {
    double fp32 = 0;
    for (int i = 0; i < PREC_RECIPES; i++) {
        struct prec_job *j = ranks_map(sizeof *j);
        j->c = (struct prec_case){
            .recipe = prec_recipes[i], .mode = ZT_FSDP, .world = 1, .shard = 1, .max_norm = 1};
        cr_assert_eq(ranks_run(1, 120, trained_rank, j, NULL), 0, "%s", prec_recipes[i]);
        double moved = j->step[0][0].squares, still = j->step[0][0].moment;
        if (!i) fp32 = moved;
        cr_assert_gt(moved, 4e-3, "%s: %g", prec_recipes[i], moved);
        cr_assert_float_eq(moved, fp32, 0.1 * fp32, "%s: %g, fp32 %g", prec_recipes[i], moved,
                           fp32);
        cr_assert_lt(still, 0.15, "%s: %g", prec_recipes[i], still);
        prec_free(j);
    }
}

/* ---- noise ---- */

static int noise_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_hash128 h;
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    for (int s = 0; s <= j->c.steps; s++) {
        if (s) OK(given_step(&b, s, 1e-3, &e));
        OK(zt_runtime_parameter_hash(b.runtime, &h, NULL, &e));
        j->step[s][rank].hash[0] = h.lo;
        j->step[s][rank].hash[1] = h.hi;
        j->step[s][rank].norm = b.norm;
    }
    bench_close(&b);
    return 0;
}

static struct prec_job *noise(struct prec_case c) {
    struct prec_job *j = ranks_map(sizeof *j);
    c.steps = 5;
    c.shard = c.mode == ZT_DDP ? 1 : c.shard ? c.shard : c.world;
    j->c = c;
    cr_assert_eq(ranks_run(c.world, 120, noise_rank, j, NULL), 0, "%s", prec_name(&c));
    return j;
}

/* Equal gradients give equal bits whatever the number of ranks, the mode, the cut into groups: the
 * noise is drawn by logical element. */
Test(precision, noise_does_not_know_of_ranks, .timeout = 300) {
    static const char *const recipes[] = {"pure_bf16", "mixed16_nomaster"};
    for (int i = 0; i < 2; i++) {
        struct prec_case c = {.recipe = recipes[i], .world = 1};
        struct prec_job *one = noise(c);
        const struct prec_case other[] = {
            {.recipe = c.recipe, .world = 8, .mode = ZT_FSDP},
            {.recipe = c.recipe, .world = 8, .mode = ZT_DDP},
            {.recipe = c.recipe, .world = 3, .mode = ZT_ZERO1, .bucket_mib = 0.02},
            {.recipe = c.recipe, .world = 4, .mode = ZT_ZERO2, .shard = 2, .wrap = ZT_WRAP_PART},
            {.recipe = c.recipe, .world = 4, .mode = ZT_ZERO3, .persistence = 100}};
        for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
            struct prec_job *j = noise(other[k]);
            expect_same(one, j);
            prec_free(j);
        }
        prec_free(one);
    }
}

/* Another seed rounds otherwise: there is noise to speak of. */
static int seeds_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b[2];
    struct bench_options o = prec_options(&j->c);
    struct zt_hash128 h[2];
    struct zt_error e = {0};
    for (int k = 0; k < 2; k++) {
        OK(bench_open(&b[k], rank, world, NULL, &o, &e));
        b[k].spec.training.seed += (uint64_t)k; /* after the weights were drawn */
        for (int s = 1; s <= 2; s++) OK(given_step(&b[k], s, 1e-3, &e));
        OK(zt_runtime_parameter_hash(b[k].runtime, &h[k], NULL, &e));
        bench_close(&b[k]);
    }
    j->step[0][0].hash[0] = h[0].lo;
    j->step[0][0].hash[1] = h[1].lo;
    return 0;
}

Test(precision, the_seed_decides_the_noise, .timeout = 60) {
    struct prec_job *j = ranks_map(sizeof *j);
    j->c = (struct prec_case){.recipe = "pure_bf16", .world = 1, .shard = 1};
    cr_assert_eq(ranks_run(1, 60, seeds_rank, j, NULL), 0);
    cr_assert_neq(j->step[0][0].hash[0], j->step[0][0].hash[1]);
    j->c.recipe = "mixed16";
    cr_assert_eq(ranks_run(1, 60, seeds_rank, j, NULL), 0);
    cr_assert_eq(j->step[0][0].hash[0], j->step[0][0].hash[1], "a master needs no noise");
    prec_free(j);
}

/* ---- numbers that are not finite ---- */

#define BAD_RANK 1

static void fill_some_bad(struct bench *b, int unit, const struct zt_unit_view *v) {
    fill_ones(b, unit, v);
    if (b->rank != BAD_RANK || unit != 1) return;
    enum zt_dtype t = b->runtime->recipe->grad;
    if (t == ZT_F32)
        ((float *)v->grad[2])[5] = INFINITY;
    else
        ((uint16_t *)v->grad[2])[5] = t == ZT_BF16 ? 0x7f80 : 0x7c00;
}

/* Step 2 of 3 has one infinity on one rank: nothing moves, AdamW's step count neither, on any rank;
 * the two good steps give what they give alone. */
static int skip_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_hash128 before, after;
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    OK(given_step(&b, 1, 1e-3, &e));
    OK(zt_runtime_parameter_hash(b.runtime, &before, NULL, &e));
    double m = prec_squares(&b, 1);
    OK(zt_runtime_window_begin(b.runtime, 2, &e));
    OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
    OK(bench_backward(&b, fill_some_bad, &e));
    struct zt_update u = {.lr = 1e-3, .loss_scale = b.scale, .skip_nonfinite = true};
    OK(zt_runtime_update(b.runtime, &u, &e));
    EXPECT(u.skipped && isnan(u.grad_norm) && isnan(u.clip_coefficient), "skipped %d norm %g",
           u.skipped, u.grad_norm);
    EXPECT(zt_runtime_updates(b.runtime) == 1, "the step count moved");
    OK(zt_runtime_parameter_hash(b.runtime, &after, NULL, &e));
    EXPECT(before.lo == after.lo && before.hi == after.hi, "parameters moved");
    EXPECT(m == prec_squares(&b, 1), "moments moved");
    EXPECT(b.ledger.requested[ZT_TAG_GRADIENTS] == 0, "gradients stay");
    j->step[0][rank].loss = (double)u.nonfinite_gradients;
    OK(given_step(&b, 3, 1e-3, &e));
    OK(zt_runtime_parameter_hash(b.runtime, &after, NULL, &e));
    j->step[0][rank].hash[0] = after.lo;
    j->step[0][rank].hash[1] = after.hi;
    bench_close(&b);
    return 0;
}

static void expect_no_trace(struct prec_case c) {
    struct prec_job *j = ranks_map(sizeof *j);
    j->c = c;
    cr_assert_eq(ranks_run(c.world, 60, skip_rank, j, NULL), 0, "%s", prec_name(&c));
    double bad = 0;
    for (int r = 0; r < c.shard; r++) bad += j->step[0][r].loss;
    cr_assert_eq(bad, 1, "one tensor has it");
    struct prec_job *good = noise(c); /* the same gradients without the bad step */
    for (int r = 0; r < c.world; r++)
        cr_assert_arr_eq(j->step[0][r].hash, good->step[2][r].hash, 16, "%s", prec_name(&c));
    prec_free(good);
    prec_free(j);
}

Test(precision, a_skipped_step_leaves_no_trace, .timeout = 300) {
    static const char *const recipes[] = {"fp32", "fp16", "pure_bf16", "mixed16"};
    for (int i = 0; i < 4; i++) {
        for (int m = 0; m < ZT_MODE_COUNT; m++)
            expect_no_trace((struct prec_case){.recipe = recipes[i],
                                               .mode = (enum zt_mode)m,
                                               .world = 3,
                                               .shard = m == ZT_DDP ? 1 : 3});
        expect_no_trace((struct prec_case){
            .recipe = recipes[i], .mode = ZT_FSDP, .world = 4, .shard = 2}); /* two replicas */
    }
}

/* The error names the tensor and the rank that has it, on every rank alike. */
static int named_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    OK(zt_runtime_window_begin(b.runtime, 1, &e));
    OK(zt_runtime_micro_begin(b.runtime, 0, true, &e));
    OK(bench_backward(&b, fill_some_bad, &e));
    EXPECT(bench_update(&b, 1e-3, &e) == ZT_ENAN, "went through");
    EXPECT(strstr(e.msg, "transformer.h.0.attn.c_attn.weight"), "%s", e.msg);
    if (j->c.mode == ZT_ZERO2) EXPECT(strstr(e.msg, "rank 0's part"), "%s", e.msg);
    bench_close(&b);
    return 0;
}

Test(precision, what_is_not_finite_is_named, .timeout = 60) {
    for (int m = ZT_DDP; m <= ZT_ZERO2; m++) {
        struct prec_job *j = ranks_map(sizeof *j);
        j->c = (struct prec_case){.recipe = "fp32", .mode = (enum zt_mode)m, .world = 2};
        j->c.shard = m == ZT_DDP ? 1 : 2;
        cr_assert_eq(ranks_run(2, 60, named_rank, j, NULL), 0, "%s", prec_name(&j->c));
        prec_free(j);
    }
}
