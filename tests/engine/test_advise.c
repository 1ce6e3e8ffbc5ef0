/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_advise.c: what is advised is tried: the keys are set on the run file as a user
 * would set them, and that run is planned by itself. It must fit and need what was told, to the
 * byte. Which row of the table for choosing a mode holds is set by budgets between the peaks of two
 * modes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/spec_schema.h"
#include "engine/plan/advise_int.h"

#define FILE_OF(training, parallelism)                                                             \
    "version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n"     \
    "training: {steps: 20, seq_len: 64, " training "}\nparallelism: {" parallelism "}\n"
#define PLAIN FILE_OF("local_batch_size: 4", "mode: ddp")
/* large enough that segments of the allocator do not hide what a mode saves */
#define LARGE_OF(training, parallelism)                                                            \
    "version: 1\nname: t\nmodel: {preset: gpt2-124m}\ndataset: {path: /x, tokenizer: none}\n"      \
    "training: {steps: 20, seq_len: 64, " training "}\nparallelism: {" parallelism "}\n"
/* heads that no tensor degree divides: layers stay whole */
#define ONE_HEAD                                                                                   \
    "version: 1\nname: t\nmodel: {preset: gpt2-nano, heads: 1, head_dim: 128}\n"                   \
    "dataset: {path: /x, tokenizer: bytes}\n"                                                      \
    "training: {steps: 20, seq_len: 64, local_batch_size: 4}\nparallelism: {mode: ddp}\n"
#define LARGE_HEADS                                                                                \
    "version: 1\nname: t\nmodel: {preset: gpt2-124m, heads: 3, head_dim: 256}\n"                   \
    "dataset: {path: /x, tokenizer: none}\n"                                                       \
    "training: {steps: 20, seq_len: 64, local_batch_size: 8}\nparallelism: {mode: ddp}\n"
#define MIB ((int64_t)1 << 20)

static struct zt_cost_device table = {.name = "test",
                                      .memory_bytes = INT64_C(1) << 40,
                                      .memory_bytes_per_second = 1e10,
                                      .within = {100, 1e9, 0},
                                      .across = {1000, 1e7, 0}};

static int parse(const char *yaml, const char *const *set, int n, int ranks, struct zt_spec *s,
                 struct zt_error *e) {
    table.flops[ZT_COST_GEMM][ZT_F32] = 1e10;
    table.flops[ZT_COST_GEMM][ZT_BF16] = 2e10;
    int rc = zt_spec_parse(yaml, strlen(yaml), "t.yaml", set, n, s, e);
    return rc ? rc : zt_spec_resolve_up_to(s, ranks, ZT_PLAN_RANKS_MAX, "t.yaml", e);
}

static struct zt_spec *spec_of(const char *yaml, int ranks) {
    struct zt_spec *s = calloc(1, sizeof *s);
    struct zt_error e = {0};
    cr_assert_eq(parse(yaml, NULL, 0, ranks, s, &e), 0, "%s", e.msg);
    return s;
}

static void done(struct zt_spec *s) {
    zt_spec_free(s);
    free(s);
}

/* Of a run file with "--set A=B --set C=D", as zctl would take it; capacity 0: as much as it needs.
 */
static struct zt_plan *planned(const char *yaml, const char *sets, int ranks, int per_host,
                               int64_t capacity) {
    char text[2048], *word, *rest = text;
    const char *set[16];
    struct zt_error e = {0};
    struct zt_plan *p = NULL;
    int n = 0;
    struct zt_spec *s = calloc(1, sizeof *s);
    snprintf(text, sizeof text, "%s", sets);
    while ((word = strtok_r(rest, " ", &rest))) {
        if (strcmp(word, "--set") == 0) continue;
        if (strncmp(word, "workers=", 8) == 0) ranks = atoi(word + 8);
        set[n++] = word;
    }
    cr_assert_eq(parse(yaml, set, n, ranks, s, &e), 0, "%s: %s", sets, e.msg);
    struct zt_plan_config c = {.spec = s,
                               .device = &table,
                               .capacity_bytes = capacity,
                               .ranks_per_host = per_host,
                               .valid_samples = -1};
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s: %s", sets, e.msg);
    zt_spec_free(s);
    free(s);
    return p;
}

static int64_t peak_of(const char *yaml, const char *sets, int ranks) {
    struct zt_plan *p = planned(yaml, sets, ranks, 0, 0);
    int64_t peak = p->peak_reserved_bytes;
    zt_plan_free(p);
    return peak;
}

static struct zt_advice *advice(const char *yaml, int ranks, int per_host, int64_t budget) {
    struct zt_spec *s = spec_of(yaml, ranks);
    struct zt_error e = {0};
    struct zt_advice *a = NULL;
    struct zt_advise_config c = {
        .plan = {.spec = s, .device = &table, .ranks_per_host = per_host, .valid_samples = -1},
        .budget_bytes = budget};
    cr_assert_eq(zt_advise_make(&c, &a, &e), 0, "%s", e.msg);
    cr_assert_leq(a->n_plans, ZT_ADVISE_PLANS);
    zt_spec_free(s);
    free(s);
    return a;
}

/* Set as told, it fits the budget (or not) and needs what was told. */
static void holds(const char *yaml, int ranks, int per_host, int64_t budget,
                  const struct zt_advise_change *c, bool fits) {
    char sets[1024];
    zt_advise_sets(c, sets, sizeof sets);
    struct zt_plan *p = planned(yaml, sets, ranks, per_host, budget);
    cr_assert_eq(p->fits, fits, "%s", sets);
    cr_assert_eq(c->figures.fits, fits, "%s", sets);
    cr_assert_eq(p->peak_allocated_bytes, c->figures.peak_allocated_bytes, "%s", sets);
    cr_assert_eq(p->peak_reserved_bytes, c->figures.peak_reserved_bytes, "%s", sets);
    cr_assert_eq(p->sent_bytes, c->figures.sent_bytes, "%s: %lld, told %lld", sets,
                 (long long)p->sent_bytes, (long long)c->figures.sent_bytes);
    cr_assert_eq(memcmp(p->at_peak, c->figures.at_peak, sizeof p->at_peak), 0, "%s", sets);
    zt_plan_free(p);
}

static const struct {
    const char *yaml;
    int ranks, per_host;
    double share;
} cases[] = {
    {PLAIN, 4, 0, 0.9},
    {PLAIN, 4, 2, 0.6},
    {PLAIN, 1, 0, 0.7},
    {FILE_OF("local_batch_size: 2, global_batch_size: 64", "mode: ddp"), 4, 0, 0.8},
    {FILE_OF("local_batch_size: 2, global_batch_size: 64",
             "mode: fsdp, no_sync: true, prefetch: 3"),
     4, 0, 0.7},
    {FILE_OF("local_batch_size: 6",
             "mode: fsdp, reshard_after_forward: false, wrap: 4, max_inflight_reduces: 2"),
     2, 0, 0.6},
    {FILE_OF("local_batch_size: 1", "mode: fsdp, reshard_after_forward: false, bucket_mib: 64"), 8,
     0, 0.8},
    {FILE_OF("local_batch_size: 1", "mode: fsdp, data_parallel_replicate_degree: 4"), 8, 2, 0.8},
    {FILE_OF("local_batch_size: 4", "mode: zero1, data_parallel_shard_degree: 4"), 4, 0, 0.7},
    {"version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n"
     "validation: {path: /y, every_steps: 3}\ntraining: {steps: 20, seq_len: 128, "
     "local_batch_size: 2}\n"
     "precision: {recipe: mixed16_g32, reduce_dtype: fp32}\nparallelism: {mode: zero2}\n",
     4, 0, 0.8},
};
#define N_CASES (sizeof cases / sizeof cases[0])

Test(advise, what_is_told_fits_when_it_is_set) {
    for (size_t i = 0; i < N_CASES; i++) {
        int64_t budget =
            (int64_t)(cases[i].share * (double)peak_of(cases[i].yaml, "", cases[i].ranks));
        struct zt_advice *a = advice(cases[i].yaml, cases[i].ranks, cases[i].per_host, budget);
        cr_assert(!a->base.fits && a->n_changes > 0 && a->oom.request > 0, "case %zu", i);
        for (int k = 0; k < a->n_changes; k++) {
            holds(cases[i].yaml, cases[i].ranks, cases[i].per_host, budget, &a->change[k], true);
            cr_assert(k == 0 || a->change[k].effect >= a->change[k - 1].effect, "case %zu: order",
                      i);
        }
        for (int k = 0; k < a->n_partial; k++)
            holds(cases[i].yaml, cases[i].ranks, cases[i].per_host, budget, &a->partial[k], false);
        zt_advice_free(a);
    }
}

/* Between the peaks of two modes the less cut one is too large and the next is told first: it keeps
 * every bit and sends as many bytes, which over a slow link are the time. */
Test(advise, optimizer_state_alone_too_big) {
    table.within.bytes_per_second = 1e7;
    int64_t ddp = peak_of(PLAIN, "", 4), zero1 = peak_of(PLAIN, "parallelism.mode=zero1", 4);
    char sets[256];
    cr_assert_lt(zero1, ddp);
    struct zt_advice *a = advice(PLAIN, 4, 0, (ddp + zero1) / 2);
    const struct zt_advise_change *first = &a->change[0];
    cr_assert_str_eq(zt_advise_sets(first, sets, sizeof sets), "--set parallelism.mode=zero1");
    cr_assert_str_eq(first->edit[0].from, "ddp");
    cr_assert_eq(first->effect, ZT_EFFECT_NONE);
    cr_assert_eq(first->shrank, ZT_TAG_OPTIMIZER);
    zt_advice_free(a);
}

/* docs/manual.md: one class of rounding is ddp, zero1 and no_sync, the other zero2, zero3, fsdp;
 * with one micro-step there is no difference; replicas of shards sum in another order. */
Test(advise, what_a_change_does_to_the_result) {
    static const char one[] = FILE_OF("local_batch_size: 2", "mode: ddp"),
                      four[] = FILE_OF("local_batch_size: 2, global_batch_size: 32", "mode: ddp");
    static const char hybrid[] = "parallelism={mode: fsdp, data_parallel_replicate_degree: 2}";
    static const struct {
        const char *yaml, *set[2];
        enum zt_advise_effect effect;
    } rows[] = {
        {one, {"parallelism.mode=zero2"}, ZT_EFFECT_NONE},
        {four, {"parallelism.mode=zero1"}, ZT_EFFECT_NONE},
        {four, {"parallelism.mode=zero2"}, ZT_EFFECT_ROUNDING},
        {four, {"parallelism.mode=fsdp"}, ZT_EFFECT_ROUNDING},
        {four, {"parallelism={mode: fsdp, no_sync: true}"}, ZT_EFFECT_NONE},
        {one, {"parallelism={mode: fsdp, wrap: part, prefetch: 0, bucket_mib: 1}"}, ZT_EFFECT_NONE},
        {one, {hybrid}, ZT_EFFECT_ROUNDING},
        {one, {"training.local_batch_size=1", "training.global_batch_size=8"}, ZT_EFFECT_ROUNDING},
        {one, {"training.local_batch_size=1"}, ZT_EFFECT_BATCH},
        {one, {"precision.recipe=autocast", "precision.reduce_dtype=fp32"}, ZT_EFFECT_FORMAT},
        {one, {"training.seq_len=32"}, ZT_EFFECT_DATA},
    };
    struct zt_spec *before, *after = calloc(1, sizeof *after);
    struct zt_error e = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        before = spec_of(rows[i].yaml, 4);
        cr_assert_eq(parse(rows[i].yaml, rows[i].set, rows[i].set[1] ? 2 : 1, 4, after, &e), 0,
                     "%s", e.msg);
        cr_assert_eq(advise_effect(before, after), rows[i].effect, "%s", rows[i].set[0]);
        done(before);
        zt_spec_free(after);
    }
    free(after);
}

/* Where the mode alone is not enough, and the micro-batch alone is not: both. */
Test(advise, two_changes_where_one_is_not_enough) {
    static const char yaml[] = LARGE_HEADS;
    static const char batch[] = "training.local_batch_size=1 training.global_batch_size=32";
    static const char both[] =
        "parallelism.mode=fsdp training.local_batch_size=1 training.global_batch_size=32";
    int64_t budget = peak_of(yaml, both, 4) + 16 * MIB;
    cr_assert_gt(peak_of(yaml, "parallelism.mode=zero3", 4), budget);
    cr_assert_gt(peak_of(yaml, batch, 4), budget);
    struct zt_advice *a = advice(yaml, 4, 0, budget);
    cr_assert_gt(a->n_changes, 0);
    cr_assert_eq(a->change[0].changes, 2);
    cr_assert_leq(a->change[0].effect, ZT_EFFECT_ROUNDING);
    cr_assert_gt(a->n_partial, 0);
    holds(yaml, 4, 0, budget, &a->change[0], true);
    zt_advice_free(a);
}

static const char *const features[] = {"activation_checkpoint.mode", "loss.chunk_tokens",
                                       "parallelism.tensor_parallel_degree"};

static bool refused(const char *key) {
    const struct zt_not_yet *no;
    for (int i = 0; (no = zt_schema_not_yet(i)); i++)
        if (strcmp(no->path, key) == 0) return true;
    return false;
}

/* What the schema has is tried, in a mesh that can take it; what it has not is not offered. */
Test(advise, features_are_tried_when_the_schema_has_them) {
    static const char yaml[] = FILE_OF("local_batch_size: 16, global_batch_size: 64", "mode: fsdp");
    struct move moves[MOVES_MAX];
    struct zt_spec *s = spec_of(yaml, 4);
    int n = advise_moves(s, advise_given(s), 4, LESS_MEMORY, moves);
    for (int i = 0; i < 3; i++) {
        bool tried = false;
        for (int k = 0; k < n; k++) tried |= strcmp(moves[k].edit[0].key, features[i]) == 0;
        cr_assert_eq(tried, !refused(features[i]), "%s", features[i]);
    }
    done(s);
}

/* One rank, 4,096 tokens, activations most of the peak: selective checkpointing is the cheapest
 * change that keeps the bits; where that is not enough, full. */
Test(advise, checkpointing_comes_first) {
    static const char yaml[] = "version: 1\nname: t\nmodel: {preset: gpt2-124m}\n"
                               "dataset: {path: /x, tokenizer: none}\n"
                               "training: {steps: 20, seq_len: 512, local_batch_size: 8}\n"
                               "parallelism: {mode: ddp}\n";
    static const struct {
        int64_t budget;
        const char *mode;
    } row[] = {{4096 * MIB, "selective"}, {3600 * MIB, "full"}};
    for (int i = 0; i < 2; i++) {
        struct zt_advice *a = advice(yaml, 1, 0, row[i].budget);
        cr_assert(!a->base.fits && a->n_changes > 0);
        cr_assert_str_eq(a->change[0].edit[0].key, ADVISE_RECOMPUTE);
        cr_assert_str_eq(a->change[0].edit[0].from, "none");
        cr_assert_str_eq(a->change[0].edit[0].to, row[i].mode);
        cr_assert_eq(a->change[0].effect, ZT_EFFECT_NONE);
        cr_assert_eq(a->change[0].shrank, ZT_TAG_ACTIVATIONS);
        for (int k = 0; k < a->n_changes; k++)
            holds(yaml, 1, 0, row[i].budget, &a->change[k], true);
        zt_advice_free(a);
    }
}

Test(advise, nothing_fits) {
    struct zt_advice *a = advice(ONE_HEAD, 4, 0, 2 * MIB);
    struct zt_spec *s = spec_of(ONE_HEAD, 4);
    struct zt_plan_config c = {
        .spec = s, .device = &table, .capacity_bytes = 5 * MIB / 2, .valid_samples = -1};
    struct zt_error e = {0};
    char text[1024];
    cr_assert_eq(a->n_changes, 0);
    cr_assert_gt(a->smallest.n_edits, 0);
    cr_assert_lt(a->smallest.figures.peak_reserved_bytes, a->base.peak_reserved_bytes / 2);
    cr_assert_eq(a->smallest.figures.workers, 4);
    holds(ONE_HEAD, 4, 0, 2 * MIB, &a->smallest, false);
    for (int i = 0; i < 3; i++) { /* named while the schema refuses it, and no longer */
        bool named = false;
        for (int k = 0; k < a->n_later; k++)
            named |= strcmp(a->later[k].key, features[i]) == 0 && a->later[k].why;
        cr_assert_eq(named, refused(features[i]), "%s", features[i]);
    }
    cr_assert_eq(zt_advise_first(&c, text, sizeof text, &e), ZT_ENOTFOUND);
    cr_assert(strstr(e.msg, "none fits"), "%s", e.msg);
    zt_advice_free(a);
    done(s);
}

/* With room: the cuts that were not needed are given back, and the cheapest way to need a tenth
 * less is told. */
Test(advise, room_for_speed) {
    static const char yaml[] = FILE_OF("local_batch_size: 1, global_batch_size: 16", "mode: zero3");
    int64_t budget = 256 * MIB;
    struct zt_advice *a = advice(yaml, 4, 0, budget);
    cr_assert(a->base.fits && a->fits_limit && a->n_changes == 0);
    cr_assert_gt(a->n_speed, 0);
    for (int i = 0; i < a->n_speed; i++) {
        holds(yaml, 4, 0, budget, &a->speed[i], true);
        cr_assert_lt(a->speed[i].figures.step_seconds, a->base.step_seconds);
        cr_assert(i == 0 ||
                  a->speed[i].figures.step_seconds >= a->speed[i - 1].figures.step_seconds);
    }
    zt_advice_free(a);
    a = advice(PLAIN, 4, 0, budget);
    cr_assert_gt(a->reserve.n_edits, 0);
    cr_assert_leq((double)a->reserve.figures.peak_allocated_bytes,
                  0.9 * (double)a->base.peak_allocated_bytes);
    cr_assert_eq(a->reserve.effect,
                 ZT_EFFECT_NONE); /* a mode, though it was looked at for speed before */
    holds(PLAIN, 4, 0, budget, &a->reserve, true);
    zt_advice_free(a);
}

/* Too big for one rank whatever is cut in two: the fewest workers that hold it, at the same global
 * batch. */
Test(advise, more_workers) {
    static const char yaml[] = FILE_OF("local_batch_size: 1, global_batch_size: 32", "mode: fsdp");
    int64_t budget = (peak_of(yaml, "", 4) + peak_of(yaml, "", 8)) / 2;
    struct zt_advice *a = advice(yaml, 2, 0, budget);
    const struct zt_advise_change *c = NULL;
    for (int i = 0; i < a->n_changes; i++)
        if (a->change[i].effect == ZT_EFFECT_WORKERS) c = &a->change[i];
    cr_assert(c);
    struct zt_plan *less = planned(yaml, "", 4, 0, budget);
    holds(yaml, 2, 0, budget, c, true);
    cr_assert(c->figures.workers == 8 && !less->fits);
    zt_plan_free(less);
    zt_advice_free(a);
}

/* A submit's sentence begins with what is to be set, and that fits the capacity it was asked for.
 */
Test(advise, first_change_of_a_submit) {
    int64_t ddp = peak_of(PLAIN, "", 4), capacity = ddp - 1;
    struct zt_spec *s = spec_of(PLAIN, 4);
    struct zt_plan_config c = {
        .spec = s, .device = &table, .capacity_bytes = capacity, .valid_samples = -1};
    struct zt_error e = {0};
    char text[1024] = "", sets[512];
    cr_assert_eq(zt_advise_first(&c, text, sizeof text, &e), 0, "%s", e.msg);
    cr_assert(strncmp(text, "--set ", 6) == 0, "%s", text);
    snprintf(sets, sizeof sets, "%.*s", (int)(strstr(text, " (") - text), text);
    struct zt_plan *p = planned(PLAIN, sets, 4, 0, capacity);
    cr_assert(p->fits, "%s", text);
    zt_plan_free(p);
    c.capacity_bytes = 4 * ddp; /* fits: for when it runs out all the same */
    cr_assert_eq(zt_advise_first(&c, text, sizeof text, &e), 0, "%s", e.msg);
    snprintf(sets, sizeof sets, "%.*s", (int)(strstr(text, " (") - text), text);
    cr_assert_lt(peak_of(PLAIN, sets, 4), ddp);
    cr_assert_eq(zt_advise_first(&c, text, 8, &e), 0);
    cr_assert_eq(strlen(text), 7);
    done(s);
}

/* ---- the table for choosing a mode ---- */

static struct zt_selection select_for(const char *yaml, int ranks, int per_host, int64_t budget) {
    struct zt_spec *s = spec_of(yaml, ranks);
    struct zt_error e = {0};
    struct zt_selection sel;
    struct zt_advise_config c = {
        .plan = {.spec = s, .device = &table, .ranks_per_host = per_host, .valid_samples = -1},
        .budget_bytes = budget};
    cr_assert_eq(zt_advise_select(&c, &sel, &e), 0, "%s", e.msg);
    zt_spec_free(s);
    free(s);
    return sel;
}

Test(advise, selection_by_budgets_between_the_modes) {
    static const char yaml[] = LARGE_OF("local_batch_size: 1, global_batch_size: 8", "mode: zero1");
    static const enum zt_mode modes[] = {ZT_DDP, ZT_ZERO1, ZT_ZERO2, ZT_FSDP};
    int64_t peak[4];
    struct zt_model_table t = {0};
    struct zt_spec *s = spec_of(yaml, 4);
    cr_assert_eq(zt_model_table_build(&s->model, ZT_WRAP_BLOCK, 1, &t, NULL), 0);
    for (int i = 0; i < 4; i++) {
        char set[64];
        snprintf(set, sizeof set, "parallelism.mode=%s", zt_mode_name(modes[i]));
        peak[i] =
            i == 0
                ? peak_of(LARGE_OF("local_batch_size: 1, global_batch_size: 8", "mode: ddp"), "", 4)
                : peak_of(yaml, set, 4);
        cr_assert(i == 0 || peak[i] < peak[i - 1], "%d: no budget lies between", i);
    }
    for (int i = 0; i < 4; i++) {
        struct zt_selection sel = select_for(yaml, 4, 0, peak[i]);
        cr_assert_eq(sel.first, i, "%d", sel.first);
        for (int k = 0; k < 4; k++) {
            struct zt_state_bytes b =
                zt_state_formula(&t, modes[k], modes[k] == ZT_DDP ? 1 : 4, zt_recipe_find("fp32"));
            cr_assert(sel.row[k].planned && sel.row[k].holds == (k == i));
            cr_assert_eq(sel.row[k].figures.persistent.parameters, b.parameters);
            cr_assert_eq(sel.row[k].figures.persistent.gradients, b.gradients);
            cr_assert_eq(sel.row[k].figures.persistent.optimizer, b.optimizer);
        }
    }
    /* a state that no rank's share fits */
    struct zt_state_bytes b = zt_state_formula(&t, ZT_ZERO3, 4, zt_recipe_find("fp32"));
    struct zt_selection sel = select_for(yaml, 4, 0, b.parameters + b.gradients + b.optimizer - 1);
    cr_assert(sel.row[ZT_SELECT_OFFLOAD].holds && !sel.row[ZT_SELECT_LAYER].holds);
    sel = select_for(yaml, 4, 0, b.parameters + b.gradients + b.optimizer + 2 * MIB);
    cr_assert(!sel.row[ZT_SELECT_OFFLOAD].holds && sel.row[ZT_SELECT_LAYER].holds);
    zt_model_table_free(&t);
    done(s);
}

/* Two hosts of 8 with a link of a hundredth between them: replicas over hosts, where that fits;
 * with links alike, cut over all. */
Test(advise, selection_of_replicas_over_slow_links) {
    static const char yaml[] = LARGE_OF("local_batch_size: 1, global_batch_size: 16", "mode: fsdp");
    static const char hybrid[] =
        "parallelism.data_parallel_replicate_degree=2 parallelism.data_parallel_shard_degree=8";
    struct zt_plan *h = planned(yaml, hybrid, 16, 8, 0);
    int64_t budget = h->peak_reserved_bytes;
    zt_plan_free(h);
    cr_assert_gt(peak_of(yaml, "parallelism.mode=zero2", 16), budget);
    struct zt_selection sel = select_for(yaml, 16, 8, budget);
    cr_assert_eq(sel.first, ZT_SELECT_HYBRID);
    cr_assert_not(sel.row[ZT_SELECT_CUT].holds);
    table.across = table.within;
    sel = select_for(yaml, 16, 8, budget);
    cr_assert_eq(sel.first, ZT_SELECT_CUT);
    sel = select_for(yaml, 16, 16, budget);
    cr_assert(!sel.row[ZT_SELECT_HYBRID].planned && sel.first == ZT_SELECT_CUT);
    sel = select_for(yaml, 1, 4, 8192 * MIB);
    cr_assert_eq(sel.first, ZT_SELECT_DDP);
    for (int i = 1; i <= ZT_SELECT_HYBRID; i++)
        cr_assert(!sel.row[i].planned && sel.row[i].numbers[0]);
}

/* ---- bounds and bad input ---- */

Test(advise, plans_are_bounded_and_the_answer_is_the_same) {
    static const char yaml[] = "version: 1\nname: t\nmodel: {preset: gpt2-124m, layers: 96, dim: "
                               "12288, heads: 96, seq_len_max: 2048}\n"
                               "dataset: {path: /x, tokenizer: none}\ntraining: {steps: 20, "
                               "seq_len: 2048, local_batch_size: 1}\n"
                               "parallelism: {mode: fsdp}\n";
    struct zt_spec *s = spec_of(yaml, 1024);
    struct zt_advise_config c = {.plan = {.spec = s,
                                          .device = &table,
                                          .capacity_bytes = INT64_C(190) << 30,
                                          .valid_samples = -1},
                                 .max_plans = 40};
    struct zt_advice *a, *b;
    struct zt_error e = {0};
    cr_assert_eq(zt_advise_make(&c, &a, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_advise_make(&c, &b, &e), 0, "%s", e.msg);
    cr_assert(a->n_plans <= 40 && a->n_changes > 0 && a->change[0].figures.fits);
    cr_assert_eq(a->n_changes, b->n_changes);
    for (int i = 0; i < a->n_changes; i++) {
        char x[1024], y[1024];
        cr_assert_str_eq(zt_advise_sets(&a->change[i], x, sizeof x),
                         zt_advise_sets(&b->change[i], y, sizeof y));
    }
    zt_advice_free(a);
    zt_advice_free(b);
    c.max_plans = 1;
    c.plan.capacity_bytes = INT64_C(1) << 30;
    cr_assert_eq(zt_advise_make(&c, &a, &e), ZT_EBUSY);
    done(s);
}

Test(advise, bad_input) {
    struct zt_spec *s = spec_of(PLAIN, 4);
    struct zt_cost_device unknown = table;
    struct zt_advice *a = NULL;
    struct zt_selection sel;
    struct zt_error e = {0};
    unknown.memory_bytes = 0;
    const struct zt_advise_config good = {
        .plan = {.spec = s, .device = &table, .valid_samples = -1}};
    struct zt_advise_config c[5] = {good, good, good, good, good};
    c[0].budget_bytes = -1;
    c[1].plan.device = &unknown;
    c[2].plan.spec = NULL;
    c[3].plan.device = NULL;
    c[4].budget_bytes = 1;
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(zt_advise_make(&c[i], &a, &e), ZT_EINVAL, "%d", i);
        cr_assert(!a && strncmp(e.msg, "advise: ", 8) == 0, "%s", e.msg);
        cr_assert_eq(zt_advise_select(&c[i], &sel, &e), ZT_EINVAL, "%d", i);
    }
    /* a run that the trainer refuses is told as the planner tells it */
    s->model.dim = 7;
    struct zt_plan *p = NULL;
    struct zt_error plain = {0};
    int rc = zt_plan_make(&good.plan, &p, &plain);
    cr_assert_neq(rc, 0);
    cr_assert_eq(zt_advise_make(&good, &a, &e), rc);
    cr_assert_str_eq(e.msg, plain.msg);
    zt_advice_free(NULL);
    done(s);
}
