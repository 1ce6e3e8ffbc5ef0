/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_plan_exact.c: what the planner says of memory is what the trainer does, to the
 * byte, on every rank, in every window; and so are the collectives of a step, one by one.
 *
 * CI runs a pairwise cover of all options; with ZT_PLAN_RUNS=N (the soak) N rows drawn from the
 * whole product too. */
#include <criterion/criterion.h>

#include "tests/engine/pairwise.h"
#include "tests/engine/plan_exact.h"

TestSuite(plan_exact, .init = data_setup, .fini = data_teardown, .timeout = 1800);

#define MIB ((int64_t)1 << 20)
#define CAPACITY (192 * MIB)

/* ---- the product ---- */

enum factor {
    F_MODE = 0,
    F_RECIPE,
    F_MESH,
    F_MICROS, /* the first four decide which other levels can be */
    F_SIZE,
    F_LENGTH,
    F_RESHARD,
    F_PREFETCH,
    F_WRAP,
    F_BUCKET,
    F_PERSIST,
    F_OVERLAP,
    F_INFLIGHT,
    F_NO_SYNC,
    F_LAZY,
    F_REDUCE,
    F_TRAINABLE,
    F_EVAL,
    F_ROWS,
    F_SPLIT,
    F_GC,
    F_FAMILY,
    F_RECOMPUTE,
    F_CHUNK,
    F_DROPOUT,
    F_TENSOR,
    F_SAVE,
    FACTORS
};
static const char *const recipes[] = {"fp32",        "autocast",   "mixed16",
                                      "mixed16_g32", "fsdp_mixed", "mixed16_nomaster",
                                      "pure_bf16",   "fp16",       "frozen16"};
static const int meshes[][2] = {{1, 2}, {2, 2}, {1, 4}, {1, 3}, {1, 1}, {1, 8}, {2, 4}, {4, 2}};
/* The cover takes the first five meshes and lengths; the product all. */
static const int cover_levels[FACTORS] = {5, 9, 5, 3, 3, 5, 4, 3, 3, 4, 3, 2, 2,
                                          2, 2, 2, 6, 4, 4, 2, 2, 3, 4, 2, 2, 3, 3};
static const int whole_levels[FACTORS] = {5, 9, 8, 3, 3, 6, 4, 3, 3, 4, 3, 2, 2,
                                          2, 2, 2, 6, 4, 4, 2, 2, 3, 4, 2, 2, 3, 3};

static void fix(int *row) {
    bool gathers = px_gathers((enum zt_mode)row[F_MODE]);
    if (!gathers) row[F_RESHARD] = row[F_PREFETCH] = row[F_PERSIST] = 0;
    if (!gathers && !strcmp(recipes[row[F_RECIPE]], "fsdp_mixed")) row[F_RECIPE] = 0;
    if (!gathers || !row[F_MICROS]) row[F_NO_SYNC] = 0;
    if (row[F_OVERLAP]) row[F_INFLIGHT] = 0; /* level 1: off, then there is nothing in flight */
    if (!row[F_RECIPE]) row[F_REDUCE] = 0;
    if (row[F_EVAL] == 3) row[F_ROWS] = 0; /* none */
    const int *mesh = meshes[row[F_MESH]];
    if (mesh[0] * mesh[1] % 2) row[F_TENSOR] = 0;
    if (row[F_TENSOR] && row[F_RESHARD] == 3) row[F_RESHARD] = 0; /* refused */
}
static const struct pw_product cover = {FACTORS, cover_levels, 4, fix},
                               whole = {FACTORS, whole_levels, 4, fix};

/* Rows of evaluation: every rank has as many; one left over for rank 0; all but one rank have a
 * full last batch; as many batches as validation.steps says. */
static void set_eval(struct px_case *c, int every, int rows) {
    const int64_t per_step = (int64_t)px_models[c->size].batch * px_dp(c);
    c->eval_every = every == 0 ? 1 : every == 1 ? 3 : every == 2 ? c->steps : 0;
    c->eval_rows = rows == 1 ? per_step + 1 : rows == 2 ? 2 * per_step - 1 : 2 * per_step;
    c->eval_batches = rows == 3;
}

/* Two ranks of what there are share the data: of a shard group, else of the replicas. */
static void set_tensor(struct px_case *c, int level) {
    if (!level) return;
    *(c->shard % 2 ? &c->replicate : &c->shard) /= 2;
    c->tensor = 2;
    c->sequence = level == 2;
}

static struct px_case case_of(const int *row) {
    static const struct {
        int steps, warmup;
    } length[] = {{5, 2}, {9, 1}, {3, 5}, {8, 0}, {7, 5}, {20, 1}};
    static const enum zt_reshard reshard[] = {ZT_RESHARD_DEFAULT, ZT_RESHARD_TRUE, ZT_RESHARD_FALSE,
                                              ZT_RESHARD_INT};
    static const int prefetch[] = {1, 0, 2}, wrap[] = {1, 2, 0};
    static const double bucket[] = {0, 0.004, 0.03, 100};
    static const int64_t persist[] = {0, 60, 3000};
    static const char *const trainable[][6] = {{NULL, "*.h.1.*", "*.h.0.*", "*.mlp.*"},
                                               {NULL, "*.layers.1.*", "*.layers.0.*", "*.mlp.*"}};
    static const char *const lora[][6] = {{[4] = "*.c_attn", [5] = "*.h.*"},
                                          {[4] = "*.q_proj", [5] = "*.layers.*"}};
    static const enum zt_recompute recompute[] = {ZT_RECOMPUTE_NONE, ZT_RECOMPUTE_SELECTIVE,
                                                  ZT_RECOMPUTE_FULL, ZT_RECOMPUTE_FULL};
    const int *mesh = meshes[row[F_MESH]];
    struct px_case c = {.replicate = mesh[0],
                        .shard = mesh[1],
                        .mode = (enum zt_mode)row[F_MODE],
                        .recipe = recipes[row[F_RECIPE]],
                        .reduce16 = row[F_REDUCE] == 1,
                        .size = (enum px_size)row[F_SIZE],
                        .micros = 1 + row[F_MICROS],
                        .steps = length[row[F_LENGTH]].steps,
                        .warmup = length[row[F_LENGTH]].warmup,
                        .reshard = reshard[row[F_RESHARD]],
                        .prefetch = prefetch[row[F_PREFETCH]],
                        .inflight = 1 + row[F_INFLIGHT],
                        .wrap = wrap[row[F_WRAP]],
                        .bucket_mib = bucket[row[F_BUCKET]],
                        .persistence = persist[row[F_PERSIST]],
                        .no_overlap = row[F_OVERLAP] == 1,
                        .no_sync = row[F_NO_SYNC] == 1,
                        .lazy = row[F_LAZY] == 1,
                        .trainable = trainable[row[F_FAMILY] > 0][row[F_TRAINABLE]],
                        .lora = lora[row[F_FAMILY] > 0][row[F_TRAINABLE]],
                        .family = (enum px_family)row[F_FAMILY],
                        .recompute = recompute[row[F_RECOMPUTE]],
                        .every = row[F_RECOMPUTE] == 3 ? 2 : 1,
                        .chunk = row[F_CHUNK] ? 20 : 0, /* the last is a smaller one */
                        .dropout = row[F_DROPOUT] ? 0.1 : 0,
                        .max_split_mib = row[F_SPLIT] ? 20.25 : 0,
                        .gc_threshold = row[F_GC] ? 0.15 : 0,
                        .capacity = CAPACITY};
    set_tensor(&c, row[F_TENSOR]);
    if (c.mode == ZT_DDP) {
        c.replicate *= c.shard;
        c.shard = 1;
    }
    if (c.reshard == ZT_RESHARD_INT) /* the largest own divisor of S */
        for (c.slices = c.shard > 1 ? c.shard / 2 : 1; c.shard % c.slices;) c.slices--;
    set_eval(&c, row[F_EVAL], row[F_ROWS]);
    if (row[F_SAVE]) c.save_every = row[F_SAVE] == 1 ? 1 : c.steps / 2;
    return c;
}

Test(plan_exact, pairwise_cover_of_all_options) {
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    int n = pw_cover(&cover, rows, &pairs), missing = pw_missing(&cover, &pairs, NULL), bad = 0;
    cr_assert_eq(missing, 0, "%d pairs are not covered", missing);
    cr_assert_geq(n, 40);
    for (int i = 0; i < n; i += pw_every()) {
        struct px_case c = case_of(rows[i]);
        bad += px_differs(&c, NULL) != 0;
    }
    cr_assert_eq(bad, 0, "%d of %d runs differ from their plan", bad, n);
}

/* Examples, whose counts travel before each step, and those with weights and document starts, which
 * take memory. */
Test(plan_exact, examples_weights_and_document_starts) {
    int bad = 0;
    for (int m = 0; m < ZT_MODE_COUNT; m++)
        for (int data = PX_DATA_EXAMPLES; data <= PX_DATA_WEIGHED; data++) {
            int row[FACTORS];
            for (int i = 0; i < FACTORS; i++) row[i] = (m + 2 * data + i * i) % cover_levels[i];
            row[F_MODE] = m;
            row[F_SIZE] = (m + data) % 2;
            /* with half the tokens a step some gradient leaves fp16, and no plan foresees that */
            if (!strcmp(recipes[row[F_RECIPE]], "fp16")) row[F_TENSOR] = 0;
            fix(row);
            struct px_case c = case_of(row);
            c.data = (enum px_data)data;
            bad += px_differs(&c, NULL) != 0;
        }
    cr_assert_eq(bad, 0, "%d runs differ from their plan", bad);
}

/* Eight ranks, every mode once, with options that differ from mode to mode. */
Test(plan_exact, eight_ranks) {
    int bad = 0;
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        int row[FACTORS];
        for (int i = 0; i < FACTORS; i++) row[i] = (m + i * i) % cover_levels[i];
        row[F_MODE] = m;
        row[F_MESH] = 5 + m % 3;
        row[F_SIZE] = m % 2;
        fix(row);
        struct px_case c = case_of(row);
        bad += px_differs(&c, NULL) != 0;
    }
    cr_assert_eq(bad, 0, "%d runs differ from their plan", bad);
}

/* Rows that chance draws from everything: a few here, many in the soak. */
Test(plan_exact, drawn_from_the_product, .timeout = 36000) {
    const char *runs = getenv("ZT_PLAN_RUNS");
    int64_t n = runs ? strtoll(runs, NULL, 10) : 6, bad = 0;
    uint64_t draw = 1 << 20; /* not those of the cover */
    for (int64_t i = 0; i < n; i++) {
        int row[FACTORS];
        pw_random_row(&whole, row, &draw);
        fix(row);
        struct px_case c = case_of(row);
        bad += px_differs(&c, NULL) != 0;
        if ((i + 1) % 100 == 0)
            printf("%" PRId64 " runs, %" PRId64 " differ from their plan\n", i + 1, bad);
        fflush(stdout);
    }
    if (runs) printf("%" PRId64 " runs, %" PRId64 " differ from their plan\n", n, bad);
    cr_assert_eq(bad, 0, "%" PRId64 " of %" PRId64 " runs differ from their plan", bad, n);
}

/* ---- the comparison can fail ---- */

static const struct px_case plain = {.replicate = 1,
                                     .shard = 2,
                                     .mode = ZT_FSDP,
                                     .recipe = "fp32",
                                     .size = PX_WIDE,
                                     .micros = 1,
                                     .steps = 4,
                                     .warmup = 1,
                                     .prefetch = 1,
                                     .inflight = 1,
                                     .wrap = 1,
                                     .eval_every = 2,
                                     .eval_rows = 5,
                                     .capacity = CAPACITY};

/* What the comparison prints about a run held against the plan of another. */
static char *told(const struct px_run *r, const struct px_case *planned, int *differences) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    struct px_plan p;
    struct zt_error err = {0};
    cr_assert(out);
    cr_assert_eq(px_make(planned, NULL, &p, &err), 0, "%s", err.msg);
    *differences = px_compare(out, r, &p);
    px_plan_free(&p);
    fclose(out);
    return text;
}

Test(plan_exact, the_comparison_can_fail) {
    struct px_run *r = px_train(&plain);
    struct px_case c = plain;
    int n;
    cr_assert(r);
    char *text = told(r, &c, &n);
    cr_assert(n == 0 && text[0] == 0, "%s", text);
    free(text);

    c.prefetch = 0; /* other peaks */
    text = told(r, &c, &n);
    cr_assert_gt(n, 0);
    cr_assert(strstr(text, "window steady") && strstr(text, "first difference of the allocators") &&
                  strstr(text, "gathered"),
              "%s", text);
    free(text);

    c = plain; /* the same bytes in other collectives */
    c.bucket_mib = 100;
    c.mode = r->c.mode;
    text = told(r, &c, &n);
    cr_assert_gt(n, 0, "%s", text);
    free(text);

    c = plain; /* a window less */
    c.eval_every = 0;
    text = told(r, &c, &n);
    cr_assert_gt(n, 0);
    cr_assert(strstr(text, "window eval"), "%s", text);
    free(text);

    /* one byte, in the last window of the last rank */
    r->rank[1].report[4].eval.at_peak[ZT_TAG_TEMPORARY]++;
    r->rank[1].report[2].eval.at_peak[ZT_TAG_TEMPORARY]++;
    text = told(r, &plain, &n);
    cr_assert_eq(n, 1, "%s", text);
    cr_assert(strstr(text, "rank 1, window eval"), "%s", text);
    free(text);
    r->rank[1].report[4].eval.at_peak[ZT_TAG_TEMPORARY]--;
    r->rank[1].report[2].eval.at_peak[ZT_TAG_TEMPORARY]--;

    r->rank[0].record[3].bytes++; /* of one collective */
    text = told(r, &plain, &n);
    cr_assert_eq(n, 1, "%s", text);
    cr_assert(strstr(text, "collective 4"), "%s", text);
    free(text);
    r->rank[0].record[3].bytes--;

    r->rank[0].trace.event[40].size += 512; /* one call of the allocator */
    text = told(r, &plain, &n);
    cr_assert_eq(n, 1, "%s", text);
    cr_assert(strstr(text, "event 41 "), "%s", text);
    free(text);
    px_free(r);
}

/* ---- capacities ---- */

/* Capacities from enough to far too little, in steps of a segment; of neighbours that end alike a
 * few. Where the run runs out, in which phase and for what; where it only fits because the
 * allocator gives cached segments back. */
struct climb {
    unsigned phases; /* bit p: one ran out in phase p */
    int fits, squeezed;
};

static void climb(const struct px_case *base, struct climb *found) {
    enum { ALIKE = 3 };
    struct px_case c = *base;
    struct px_plan p;
    struct zt_error err = {0};
    int64_t last = -1;
    int bad = 0, alike = 0;
    cr_assert_eq(px_make(base, NULL, &p, &err), 0, "%s", err.msg);
    int64_t most = p.plan->peak_reserved_bytes;
    cr_assert(p.plan->fits);
    px_plan_free(&p);
    for (c.capacity = most; c.capacity > 0; c.capacity -= 2 * MIB) {
        cr_assert_eq(px_make(&c, NULL, &p, &err), 0, "%s", err.msg);
        const struct zt_oom *oom = &p.plan->oom;
        int64_t end = p.plan->fits ? -2 : (int64_t)oom->phase * ZT_TAG_COUNT + (int64_t)oom->tag;
        alike = end == last ? alike + 1 : 0;
        last = end;
        if (alike < ALIKE) {
            struct px_run *r = px_train(&c);
            cr_assert(r);
            bad += px_compare(stderr, r, &p) != 0;
            px_free(r);
        }
        found->fits += p.plan->fits;
        found->squeezed += p.plan->fits && c.capacity < most;
        if (!p.plan->fits) found->phases |= 1u << oom->phase;
        px_plan_free(&p);
    }
    cr_assert_eq(bad, 0, "%d capacities differ from their plan", bad);
}

Test(plan_exact, runs_out_where_planned) {
    struct climb found = {0};
    struct px_case c = plain;
    climb(&c, &found);
    c.lazy = true; /* the moments come last, and are the first buffers above 1 MiB */
    c.recipe = "mixed16_nomaster";
    c.reduce16 = true;
    c.mode = ZT_DDP;
    c.replicate = 2;
    c.shard = 1;
    climb(&c, &found);
    c = plain;
    c.size = PX_VOCABULARY; /* the logits' segment is too big to be split, and free at the update */
    c.mode = ZT_ZERO2;
    c.max_split_mib = 20.25;
    c.lazy = true;
    c.eval_every = 0;
    climb(&c, &found);
    cr_assert(found.phases & 1u << ZT_PHASE_INIT);
    cr_assert(found.phases & 1u << ZT_PHASE_FORWARD);
    cr_assert(found.phases & 1u << ZT_PHASE_BACKWARD);
    cr_assert(found.phases & 1u << ZT_PHASE_OPTIMIZER);
    cr_assert_geq(found.fits, 3);
    cr_assert_geq(found.squeezed, 1, "no capacity made the allocator give cached segments back");
}

/* memory.limit_gib is the capacity when it is less. */
Test(plan_exact, limit_of_the_run_file) {
    struct px_case c = plain;
    c.limit_gib = 0.0625;
    cr_assert_eq(px_differs(&c, NULL), 0);
    c.limit_gib = 0.0078125; /* 8 MiB */
    struct px_plan p;
    cr_assert_eq(px_differs(&c, &p), 0);
    cr_assert(!p.plan->fits);
    cr_assert_eq(p.plan->oom.capacity, 8 * MIB);
    px_plan_free(&p);
}

/* Two epochs, the last window of each of one micro-step instead of three: smaller, so the full ones
 * decide. */
Test(plan_exact, epochs_with_a_short_tail) {
    struct px_case c = plain;
    c.epochs = 2;
    c.micros = 3;
    c.warmup = 2;
    c.eval_every = 4;
    c.tail = PX_FILE / 2 / px_models[c.size].batch / 3 + 1;
    c.steps = 2 * c.tail;
    cr_assert_eq(px_differs(&c, NULL), 0);
}

/* Bytes do not depend on what the device can do, where the ranks are, or whether one is slow. */
Test(plan_exact, bytes_do_not_depend_on_time) {
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    struct zt_cost_device queued = px_device;
    struct zt_error err = {0};
    int n = pw_cover(&cover, rows, &pairs);
    queued.queued = true;
    queued.host_ns = 5000;
    const struct zt_plan_config other[] = {
        {.device = &queued, .ranks_per_host = 1},
        {.device = &px_device, .straggler = 3},
        {.device = &queued, .straggler = 3, .on_straggler = true}};
    for (int i = 0; i < n; i++) {
        struct px_case c = case_of(rows[i]);
        struct px_plan a, b;
        cr_assert_eq(px_make(&c, NULL, &a, &err), 0, "%s", err.msg);
        cr_assert_eq(px_make(&c, &other[i % 3], &b, &err), 0, "%s", err.msg);
        cr_assert_eq(a.trace->n, b.trace->n);
        cr_assert_eq(px_first_difference(a.trace, b.trace, a.trace->n), a.trace->n);
        cr_assert_eq(a.plan->n_collectives, b.plan->n_collectives);
        cr_assert_eq(a.plan->n_shapes, b.plan->n_shapes);
        for (int k = 0; k < a.plan->n_shapes; k++)
            for (int w = 0; w < ZT_WINDOW_COUNT; w++)
                cr_assert(!a.plan->shape[k].occurs[w] ||
                          px_same_peak(&a.plan->shape[k].window[w], &b.plan->shape[k].window[w]));
        px_plan_free(&a);
        px_plan_free(&b);
    }
}
