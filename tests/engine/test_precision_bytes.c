/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_precision_bytes.c: what each recipe keeps in each mode, to the byte: requested
 * bytes of parameters, gradients and optimizer state on every rank, as the runtime counts them and
 * as the ledger does, against the formulas of core/layout.h; and bytes per parameter of a model of
 * ten million at eight ranks. */
#include "tests/engine/prec.h"

static bool takes(const char *recipe, enum zt_mode m) {
    return strcmp(recipe, "fsdp_mixed") != 0 || m == ZT_ZERO3 || m == ZT_FSDP;
}

/* The formula over the groups as they were cut. */
static struct zt_state_bytes of_groups(const struct bench *b, int shard) {
    const struct zt_unit_layout *l = &b->runtime->layout;
    struct zt_group_size g[64];
    for (int i = 0; i < l->n_groups; i++)
        g[i] = (struct zt_group_size){l->groups[i].elements, l->groups[i].trainable,
                                      l->groups[i].persistent};
    return zt_state_of_groups(g, l->n_groups, b->spec.parallelism.mode, shard, b->runtime->recipe);
}

static int expect_bytes(const struct bench *b, const char *when, struct zt_state_bytes want,
                        bool gradients) {
    const int64_t *have = b->ledger.requested;
    struct zt_state_bytes said = zt_runtime_requested(b->runtime);
    EXPECT(have[ZT_TAG_PARAMETERS] == want.parameters, "%s: parameters %lld, expected %lld", when,
           (long long)have[ZT_TAG_PARAMETERS], (long long)want.parameters);
    EXPECT(have[ZT_TAG_OPTIMIZER] == want.optimizer, "%s: optimizer %lld, expected %lld", when,
           (long long)have[ZT_TAG_OPTIMIZER], (long long)want.optimizer);
    EXPECT(have[ZT_TAG_GRADIENTS] == (gradients ? want.gradients : 0),
           "%s: gradients %lld, expected %lld", when, (long long)have[ZT_TAG_GRADIENTS],
           (long long)want.gradients);
    EXPECT(have[ZT_TAG_COMMUNICATION] == 0 && have[ZT_TAG_TEMPORARY] == 0,
           "%s: staging or copies stay", when);
    EXPECT(said.parameters == want.parameters && said.optimizer == want.optimizer, "%s: said",
           when);
    if (gradients)
        EXPECT(said.gradients == want.gradients, "%s: gradients said to be %lld", when,
               (long long)said.gradients);
    return 0;
}

static int bytes_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    const struct prec_case *c = &j->c;
    struct bench b;
    struct bench_options o = prec_options(c);
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    struct zt_state_bytes want = of_groups(&b, c->shard);
    if (c->bucket_mib == 0 && !c->persistence) { /* the same from the table alone */
        struct zt_state_bytes t =
            zt_state_formula(&b.table, c->mode, c->shard, zt_recipe_find(c->recipe));
        EXPECT(t.parameters == want.parameters && t.gradients == want.gradients &&
                   t.optimizer == want.optimizer,
               "the two formulas");
    }
    if (expect_bytes(&b, "init", want, false)) return 1;
    for (int s = 1; s <= 2; s++) {
        OK(bench_window(&b, s, 0, c->rows, c->micros, &e));
        if (expect_bytes(&b, "before the update", want, true)) return 1;
        OK(bench_update(&b, 1e-3, &e));
        if (expect_bytes(&b, "after the update", want, false)) return 1;
        OK(zt_runtime_collect(b.runtime, &e));
    }
    bench_close(&b);
    return 0;
}

static void expect_case(struct prec_case c) {
    struct prec_job *j = ranks_map(sizeof *j);
    if (!c.shard) c.shard = c.mode == ZT_DDP ? 1 : c.world;
    if (!c.micros) c.micros = 2;
    c.rows = 2 * c.world;
    j->c = c;
    cr_assert_eq(ranks_run(c.world, 120, bytes_rank, j, NULL), 0, "%s", prec_name(&c));
    prec_free(j);
}

/* Every recipe in every mode, numbers of ranks taken in turn; ZT_TEST_FULL: all of them. */
Test(precision_bytes, equal_the_formulas, .timeout = 900) {
    static const int world[] = {1, 2, 3, 4, 8};
    bool all = getenv("ZT_TEST_FULL") != NULL;
    for (int i = 0; i < PREC_RECIPES; i++)
        for (int m = 0; m < ZT_MODE_COUNT; m++)
            for (int k = 0; k < 5; k++) {
                struct prec_case c = {.recipe = prec_recipes[i],
                                      .mode = (enum zt_mode)m,
                                      .world = world[k],
                                      .reduce16 = (i + k) % 2 && i};
                if (takes(c.recipe, c.mode) && (all || k == (i + 2 * m) % 5)) expect_case(c);
            }
}

/* Buckets, small tensors kept whole, units of half a block, frozen tensors, replicas (which divide
 * nothing), slices kept from forward to backward. */
Test(precision_bytes, options_equal_the_formulas, .timeout = 300) {
    const struct prec_case c[] = {
        {.recipe = "mixed16", .mode = ZT_FSDP, .world = 3, .persistence = 60},
        {.recipe = "fsdp_mixed",
         .mode = ZT_FSDP,
         .world = 3,
         .persistence = 60,
         .bucket_mib = 0.02},
        {.recipe = "mixed16_g32", .mode = ZT_ZERO2, .world = 3, .bucket_mib = 0.02},
        {.recipe = "pure_bf16", .mode = ZT_ZERO1, .world = 2, .bucket_mib = 100},
        {.recipe = "fp16", .mode = ZT_ZERO3, .world = 4, .shard = 2, .wrap = ZT_WRAP_PART},
        {.recipe = "autocast", .mode = ZT_FSDP, .world = 4, .shard = 2, .persistence = 30},
        {.recipe = "mixed16", .mode = ZT_DDP, .world = 2, .trainable = "*.h.1.*"},
        {.recipe = "fsdp_mixed", .mode = ZT_FSDP, .world = 2, .trainable = "*.h.1.*"},
        {.recipe = "mixed16_nomaster", .mode = ZT_ZERO2, .world = 3, .trainable = "*bias"},
        {.recipe = "mixed16",
         .mode = ZT_FSDP,
         .world = 4,
         .reshard = ZT_RESHARD_INT,
         .reshard_int = 2,
         .wrap = ZT_WRAP_N,
         .wrap_n = 2},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) expect_case(c[i]);
}

/* ---- bytes per parameter ---- */

#define TEN_MILLION "layers: 6, heads: 6, dim: 372, vocab_size: 67"

struct big_job {
    struct ranks_shared shared;
    enum zt_mode mode;
    int64_t parameters;
    int64_t bytes[RANKS_MAX], padded;
};

static void big_tune(struct zt_spec *s, const void *arg) {
    (void)arg;
    snprintf(s->precision.recipe, sizeof s->precision.recipe, "mixed16");
    s->precision.reduce_dtype = ZT_BF16;
}

static int big_rank(int rank, int world, void *arg) {
    struct big_job *j = arg;
    struct bench b;
    struct bench_options o = {.row = bench_mode(j->mode),
                              .shard = j->mode == ZT_DDP ? 1 : world,
                              .capacity = (size_t)400 << 20,
                              .model = TEN_MILLION,
                              .tune = big_tune};
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    for (int s = 1; s <= 2; s++) {
        OK(bench_window(&b, s, 0, world, 1, &e));
        j->bytes[rank] = b.ledger.requested[ZT_TAG_PARAMETERS] +
                         b.ledger.requested[ZT_TAG_GRADIENTS] +
                         b.ledger.requested[ZT_TAG_OPTIMIZER];
        OK(bench_update(&b, 1e-3, &e));
        OK(zt_runtime_collect(b.runtime, &e));
    }
    j->parameters = b.table.parameters;
    j->padded = zt_model_padded(&b.table, o.shard);
    bench_close(&b);
    return 0;
}

/* mixed16 at eight ranks: 16, 5.5, 3.75 and 2 bytes per parameter: of the padded number exactly,
 * but for the 512 bytes that each unit's five buffers end on. */
Test(precision_bytes, sixteen_to_two_per_parameter, .timeout = 300) {
    static const double each[ZT_MODE_COUNT] = {16, 5.5, 3.75, 2, 2};
    for (int m = 0; m < ZT_FSDP; m++) {
        struct big_job *j = ranks_map(sizeof *j);
        j->mode = (enum zt_mode)m;
        cr_assert_eq(ranks_run(8, 200, big_rank, j, NULL), 0, "%s", zt_mode_name(j->mode));
        cr_assert_gt(j->parameters, 10000000);
        for (int r = 0; r < 8; r++) {
            double more = (double)j->bytes[r] - each[m] * (double)j->padded;
            cr_assert(more >= 0 && more < 7 * 5 * 512, "%s rank %d: %g bytes more",
                      zt_mode_name(j->mode), r, more);
        }
        double measured = (double)j->bytes[0] / (double)j->parameters;
        cr_log_info("%s: %.4f bytes per parameter", zt_mode_name(j->mode), measured);
        cr_assert_float_eq(measured, each[m], 1e-3 * each[m]);
        munmap(j, sizeof *j);
    }
}
