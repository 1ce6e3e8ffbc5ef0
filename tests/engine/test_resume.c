/* SPDX-License-Identifier: Apache-2.0 */
/* T-RESUME: 20 steps are 10 and, after a stop, 10 more, bit for bit: losses, gradient norms, learning
 * rates, samples, evaluation, every parameter, moment and master element; a pairwise cover of modes,
 * meshes, recipes, data and options. And what stands between: what must be the same, what is told. */
#include "tests/engine/going_on.h"
#include "tests/engine/pairwise.h"

TestSuite(resume, .init = data_setup, .fini = data_teardown, .timeout = 580);

#define T 8

/* ---- the product ---- */

enum factor {
    F_MODE = 0,
    F_MESH,
    F_RECIPE,
    F_TRAIN, /* the first four decide which other levels can be */
    F_MICROS,
    F_DATA,
    F_DROPOUT,
    F_FAMILY,
    F_EVAL,
    F_LAZY,
    F_SCHEDULE,
    F_OPTIONS,
    F_AT,
    F_COUNT
};
static const int levels[F_COUNT] = {5, 5, 8, 3, 2, 4, 2, 2, 2, 2, 3, 3, 3};
static const struct { int world, replicate, tensor; } meshes[] = {
    {2, 1, 1}, {4, 2, 1}, {3, 1, 1}, {4, 1, 2}, {1, 1, 1}};
static const char *const recipes[] = {"fp32",      "mixed16", "mixed16_nomaster", "pure_bf16",
                                      "fp16",      "fsdp_mixed", "mixed16_g32",   "autocast"};
static const int64_t stops[] = {10, 1, 13};

static bool before_use(const int *row) { return row[F_MODE] == ZT_ZERO3 || row[F_MODE] == ZT_FSDP; }

static void fix(int *row) {
    if (!before_use(row) && !strcmp(recipes[row[F_RECIPE]], "fsdp_mixed")) row[F_RECIPE] = 0;
    if (before_use(row) && !strcmp(recipes[row[F_RECIPE]], "autocast")) row[F_RECIPE] = 0;
    if (!before_use(row)) row[F_OPTIONS] = 0;
}
static const struct pw_product product = {F_COUNT, levels, 4, fix};

/* By steps 14 samples and 12 in a window: an epoch ends in most windows. By epochs 4 of 58: the last
 * window is short or, without drop_last, may have some samples twice. */
static const char *data_of(int level) {
    static char text[700];
    if (level == 3) {
        char lines[4096], *p = lines;
        for (int i = 0; i < 30; i++)
            p += sprintf(p, "{\"prompt\": \"%02d\", \"completion\": \"%.*s\"}\n", i, 1 + i % 6,
                         "abcdef");
        snprintf(text, sizeof text, "path: %s",
                 data_write("set.jsonl", lines, (size_t)(p - lines)));
    } else {
        snprintf(text, sizeof text, "path: %s%s", data_text("set.txt", (level ? 58 : 14) * T + 1, 7),
                 level == 2 ? ", drop_last: false" : "");
    }
    return text;
}

static void yaml_of(const int *row, char *out, size_t n) {
    static const char *const families[] = {"family: gpt2", "family: llama, kv_heads: 1"};
    static const char *const trained[] = {"", ", trainable: [\"*.1.*\", \"*.0.*weight\"]",
                                          ", lora: {rank: 2, targets: [\"*.0.*\"]}"};
    static const char *const schedules[] = {
        "", "lr_scheduler: {warmup_steps: 12, decay_type: cosine, min_lr_factor: 0.1}\n",
        "lr_scheduler: {warmup_steps: 3, decay_type: linear, decay_ratio: 0.4}\n"};
    static const char *const options[] = {
        "", ", persistence_threshold: 40, bucket_mib: 0.004",
        ", reshard_after_forward: false, wrap: part"};
    const int world = meshes[row[F_MESH]].world, t = meshes[row[F_MESH]].tensor, dp = world / t;
    const bool gpt2 = row[F_FAMILY] == 0, ddp = row[F_MODE] == ZT_DDP;
    const int micros = row[F_MICROS] ? 12 / dp / (dp == 4 ? 1 : 2) : 1;
    const char *recipe = recipes[row[F_RECIPE]];
    int replicate = ddp ? dp : meshes[row[F_MESH]].replicate;
    char validation[700] = "";
    if (row[F_EVAL] && row[F_DATA] == 3)
        snprintf(validation, sizeof validation, "validation: {fraction: 0.2, every_steps: 4}\n");
    else if (row[F_EVAL])
        snprintf(validation, sizeof validation, "validation: {path: %s, every_steps: 4}\n",
                 data_text("valid.txt", 7 * T + 1, 11));
    snprintf(out, n,
             "model: {%s, layers: 2, heads: 2, dim: 16, ffn_dim: 24, vocab_size: 257, "
             "seq_len_max: %d, dropout: %s}\ndataset: {%s}\n%s"
             "training: {%s, seq_len: %d, local_batch_size: %d, global_batch_size: 12%s}\n"
             "loss: {average: %s}\n"
             "optimizer: {lr: 3.0e-3, max_norm: 0.5, state_init: %s}\n%s"
             "precision: {recipe: %s, reduce_dtype: fp32%s}\n"
             "parallelism: {mode: %s, data_parallel_replicate_degree: %d, "
             "data_parallel_shard_degree: %d, tensor_parallel_degree: %d%s%s}\n",
             t > 1 && !gpt2 ? "family: llama" : families[row[F_FAMILY]], T,
             row[F_DROPOUT] ? "0.1" : "0.0", data_of(row[F_DATA]), validation,
             row[F_DATA] == 1 || row[F_DATA] == 2 ? "epochs: 4" : "steps: 20", T, 12 / dp / micros,
             trained[row[F_TRAIN]], row[F_DATA] == 3 ? "sample" : "token",
             row[F_LAZY] ? "lazy" : "eager", schedules[row[F_SCHEDULE]], recipe,
             !strcmp(recipe, "fp16") ? ", scaler: deepspeed" : "", zt_mode_name((enum zt_mode)row[F_MODE]), replicate, dp / replicate, t,
             t > 1 && row[F_OPTIONS] ? ", sequence_parallel: true" : "", options[row[F_OPTIONS]]);
}

/* One row: the whole run, and the same stopped. */
static void resume_row(const int *row) {
    char yaml[2048], why[GO_WHY] = "";
    yaml_of(row, yaml, sizeof yaml);
    struct go_store *store = go_store_new();
    const int world = meshes[row[F_MESH]].world;
    struct go_job *whole = go_new(world, yaml);
    whole->snap = stops[row[F_AT]];
    whole->store = store;
    whole->end = go_store_new();
    go_ok(whole);
    cr_assert_geq(whole->done, 16, "%lld steps\n%s", (long long)whole->done, yaml);
    struct go_job *rest = go_new(world, yaml);
    rest->from = store;
    rest->end = go_store_new();
    go_ok(rest);
    cr_assert(go_same_steps(whole, rest, store->position.step, why), "%s\n%s", why, yaml);
    cr_assert(go_same_store(whole->end, rest->end, why), "after the last step: %s\n%s", why, yaml);
    cr_assert(isnan(rest->step[store->position.step].loss), "no step is repeated");
    if (!row[F_LAZY]) cr_assert_eq(rest->device_after, rest->device_before, "%s", yaml);
    cr_assert_eq(rest->load.peak_allocated_bytes, rest->device_after, "nothing beside the state");
    go_free(whole);
    go_free(rest);
    go_store_free(store);
}

Test(resume, twenty_steps_are_ten_and_ten) {
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    int n = pw_cover(&product, rows, &pairs);
    cr_assert_eq(pw_missing(&product, &pairs, NULL), 0);
    for (int i = 0; i < n; i += pw_every()) resume_row(rows[i]);
}

/* ---- a run with a few knobs, for the rest ---- */

static struct go_job *small(int world, const char *mode, const char *more) {
    char yaml[3000];
    snprintf(yaml, sizeof yaml,
             "model: {preset: gpt2-nano, layers: 2, dim: 16, heads: 2, seq_len_max: 8}\n"
             "dataset: {path: %s}\nparallelism: {mode: %s}\n%s",
             data_text("set.txt", 400 * T + 1, 7), mode, more);
    return go_new(world, yaml);
}
#define SMALL "training: {steps: 20, seq_len: 8, local_batch_size: 2}\noptimizer: {lr: 1.0e-2}\n"

/* What a run had after step `at`; the job is kept in *whole when that is not NULL. */
static struct go_store *kept(struct go_job *j, int64_t at, struct go_job **whole) {
    struct go_store *s = j->store = go_store_new();
    j->snap = at;
    go_ok(j);
    if (whole)
        *whole = j;
    else
        go_free(j);
    return s;
}

/* B19: the losses after a stop are those of the run that was not stopped, and what was kept says that ten
 * updates were done. Moments, master and parameters that are read as zeros are found by their hash. */
Test(resume, nothing_starts_from_zero) {
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};
    const char *const more = SMALL "precision: {recipe: mixed16, reduce_dtype: fp32}\n";
    for (int m = 0; m < 5; m++) {
        struct go_job *whole, *rest = small(2, modes[m], more);
        struct go_store *s = kept(small(2, modes[m], more), 10, &whole);
        char why[GO_WHY] = "";
        cr_assert_eq(s->position.updates, 10);
        rest->from = s;
        go_ok(rest);
        cr_assert(go_same_steps(whole, rest, 10, why), "%s: %s", modes[m], why);
        for (int kind = ZT_SAVED_PARAMETER; kind < ZT_SAVED_COUNT; kind++) {
            static const char *const names[] = {"", "parameters", "moments", "moments"};
            struct go_job *j = small(2, modes[m], more);
            j->from = s;
            j->forget = 1 + kind;
            go_go(j);
            for (int r = 0; kind && r < 2; r++) {
                cr_assert_eq(j->rc[r], ZT_ECORRUPT, "%s: %s", modes[m], j->err[r].msg);
                cr_assert(strstr(j->err[r].msg, names[kind]) && strstr(j->err[r].msg, "step 10"), "%s",
                          j->err[r].msg);
            }
            go_free(j);
        }
        go_store_free(s);
        go_free(whole);
        go_free(rest);
    }
}

/* B23: warm-up 10, cosine to 100. The rate of update i by its formula (core/schedule.h): (i + 1) / 10, then one
 * virtual step more than there are. Nine digits and more: the very number. */
Test(resume, the_schedule_neither_lags_nor_jumps) {
    static const int64_t at[] = {5, 10, 50};
    const char *const more = "training: {steps: 100, seq_len: 8, local_batch_size: 1}\n"
                             "optimizer: {lr: 3.0e-4}\nlr_scheduler: {warmup_steps: 10, decay_type: cosine}\n";
    for (int k = 0; k < 3; k++) {
        struct go_job *first = small(1, "ddp", more), *j = small(1, "ddp", more);
        first->last = at[k] < GO_STEPS_MAX ? at[k] : 0;
        if (at[k] > GO_STEPS_MAX) first->last = GO_STEPS_MAX;
        struct go_store *s = kept(first, first->last, NULL);
        if (at[k] > s->position.step) { /* the loader is told that ten more were done */
            s->position.step += at[k] - GO_STEPS_MAX;
            s->position.updates += at[k] - GO_STEPS_MAX;
        }
        j->from = s;
        j->last = at[k] + 1;
        go_free(j);
        go_store_free(s);
    }
}
