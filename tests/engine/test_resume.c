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
 * updates were done. Parameters, master or moments that are read as zeros are found by their hash. */
Test(resume, nothing_starts_from_zero) {
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};
    static const char *const recipe[] = {"fp32", "mixed16", "mixed16", "mixed16"}; /* by kind */
    for (int m = 0; m < 5; m++)
        for (int kind = ZT_SAVED_PARAMETER; kind < ZT_SAVED_COUNT; kind++) {
            char more[300], why[GO_WHY] = "";
            snprintf(more, sizeof more, SMALL "precision: {recipe: %s, reduce_dtype: fp32}\n", recipe[kind]);
            struct go_job *whole, *rest = small(2, modes[m], more), *bad = small(2, modes[m], more);
            struct go_store *s = kept(small(2, modes[m], more), 10, &whole);
            cr_assert_eq(s->position.updates, 10);
            rest->from = bad->from = s;
            bad->forget = 1 + kind;
            go_ok(rest);
            cr_assert(go_same_steps(whole, rest, 10, why), "%s: %s", modes[m], why);
            go_go(bad);
            for (int r = 0; r < 2; r++) {
                cr_assert_eq(bad->rc[r], ZT_ECORRUPT, "%s, kind %d: %s", modes[m], kind, bad->err[r].msg);
                cr_assert(strstr(bad->err[r].msg, kind < ZT_SAVED_M ? "the parameters of step 10 have hash"
                                                                     : "the moments of step 10 have hash"),
                          "%s", bad->err[r].msg);
            }
            go_store_free(s);
            go_free(whole);
            go_free(rest);
            go_free(bad);
        }
}

/* B23: warm-up 10, cosine to 100, stopped after 5, 10 and 50. The rate of update i by its formula: (i + 1) / 10
 * of it, then a cosine with one virtual step more than there are. The first step is the saved one + 1. */
Test(resume, the_schedule_neither_lags_nor_jumps) {
    static const int64_t at[] = {5, 10, 50};
    const char *const more = "training: {steps: 100, seq_len: 8, local_batch_size: 1}\n"
                             "optimizer: {lr: 3.0e-4}\nlr_scheduler: {warmup_steps: 10, decay_type: cosine}\n";
    for (int k = 0; k < 3; k++) {
        struct go_job *whole, *rest = small(1, "ddp", more);
        struct go_store *s = kept(small(1, "ddp", more), at[k], &whole);
        char why[GO_WHY] = "";
        rest->from = s;
        go_ok(rest);
        cr_assert(go_same_steps(whole, rest, at[k], why), "%s", why);
        for (int64_t i = 0; i < 100; i++) {
            double factor = i < 10 ? (double)(i + 1) / 10
                                   : 0.5 * (1 + cos(3.14159265358979323846 * (double)(i + 1 - 11) / 90));
            cr_assert_float_eq(whole->step[i + 1].lr, 3e-4 * factor, 1e-15);
            cr_assert(i < at[k] ? isnan(rest->step[i + 1].lr) : rest->step[i + 1].lr == whole->step[i + 1].lr,
                      "step %lld", (long long)i + 1);
        }
        go_store_free(s);
        go_free(whole);
        go_free(rest);
    }
}

#ifdef ZT_FAILPOINTS
/* A gradient that is not finite in step 2: the scale has moved, or its patience, when the run stops after
 * step 4. It goes on with both, and with the count of good steps and of skipped ones. */
Test(resume, the_loss_scale_goes_on) {
    static const char *const rule[] = {"torch", "deepspeed"};
    for (int k = 0; k < 2; k++) {
        char more[300], why[GO_WHY] = "";
        snprintf(more, sizeof more, SMALL "precision: {recipe: fp16, reduce_dtype: fp32, scaler: %s}\n", rule[k]);
        struct go_job *first = small(2, "zero2", more), *whole, *rest = small(2, "zero2", more);
        strcpy(first->fail, "engine.infinity:nth=2:error");
        first->end = go_store_new();
        rest->end = go_store_new();
        struct go_store *s = kept(first, 4, &whole);
        cr_assert_eq(s->position.skipped, 1);
        cr_assert_eq(s->position.updates, 3);
        cr_assert_eq(s->position.scale, k ? 65536 : 32768);
        cr_assert_eq(s->position.scale_hysteresis_left, k ? 1 : s->position.scale_hysteresis_left);
        rest->from = s;
        go_ok(rest);
        cr_assert(go_same_steps(whole, rest, 4, why), "%s: %s", rule[k], why);
        cr_assert(go_same_store(whole->end, rest->end, why), "%s: %s", rule[k], why);
        go_store_free(s);
        go_free(whole);
        go_free(rest);
    }
}
#endif

/* Exactly at the end of an epoch, and of the last one: nothing is repeated, and nothing is left. */
Test(resume, at_the_end_of_an_epoch) {
    const char *const more = "training: {epochs: 2, seq_len: 8, local_batch_size: 20}\n";
    for (int64_t at = 10; at <= 20; at += 10) { /* 400 samples: 2 ranks x 20, ten windows an epoch */
        struct go_job *whole, *rest = small(2, "zero2", more);
        struct go_store *s = kept(small(2, "zero2", more), at, &whole);
        char why[GO_WHY] = "";
        cr_assert_eq(s->position.cursor.epoch, at / 10);
        cr_assert_eq(s->position.cursor.consumed, 0);
        rest->from = s;
        rest->end = go_store_new();
        go_ok(rest);
        cr_assert_eq(rest->total_steps, 20);
        if (at == 20)
            cr_assert(isnan(rest->step[20].loss) && rest->done == 0, "nothing is trained twice");
        else
            cr_assert(go_same_steps(whole, rest, at, why), "%s", why);
        go_store_free(s);
        go_free(whole);
        go_free(rest);
    }
}

/* ---- what must be found ---- */

/* Goes on from s and fails on every rank with this. */
static void refused(struct go_job *j, const struct go_store *s, int code, const char *says) {
    j->from = s;
    go_go(j);
    for (int r = 0; r < j->world; r++) {
        cr_assert_eq(j->rc[r], code, "%d: %s", j->rc[r], j->err[r].msg);
        cr_assert(strstr(j->err[r].msg, says), "%s", j->err[r].msg);
    }
    go_free(j);
}

Test(resume, other_tensors_are_refused_by_name) {
    struct go_store *s = kept(small(2, "fsdp", SMALL), 2, NULL), *b = go_store_new();
    const char *const name = s->tensor[4].name;
    char says[300];
#define AGAIN memcpy(b, s, sizeof *b)
    AGAIN; /* renamed */
    strcpy(b->tensor[4].name, "transformer.h.0.other");
    snprintf(says, sizeof says, "%s is not in the checkpoint, which has transformer.h.0.other", name);
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, says);
    AGAIN; /* missing */
    b->n_tensors--;
    snprintf(says, sizeof says, "%s is not in the checkpoint", s->tensor[s->n_tensors - 1].name);
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, says);
    AGAIN; /* one more */
    b->tensor[b->n_tensors] = b->tensor[0];
    strcpy(b->tensor[b->n_tensors++].name, "extra.weight");
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, "the checkpoint has extra.weight, a tensor the model has not");
    AGAIN; /* turned round */
    int wide = 0;
    while (b->tensor[wide].shape[0] == b->tensor[wide].shape[1]) wide++;
    b->tensor[wide].shape[0] = s->tensor[wide].shape[1];
    b->tensor[wide].shape[1] = s->tensor[wide].shape[0];
    snprintf(says, sizeof says, "%s is %lld x %lld in the checkpoint, %lld x %lld in the model", b->tensor[wide].name,
             (long long)s->tensor[wide].shape[1], (long long)s->tensor[wide].shape[0],
             (long long)s->tensor[wide].shape[0], (long long)s->tensor[wide].shape[1]);
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, says);
    AGAIN; /* frozen then */
    b->tensor[4].frozen = true;
    snprintf(says, sizeof says, "%s was frozen in the checkpoint and is trained now", name);
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, says);
    AGAIN; /* another number: draws and hashes would be of others */
    b->tensor[4].number = 77;
    refused(small(2, "fsdp", SMALL), b, ZT_EINVAL, "is tensor 77 in the checkpoint, 4 in the model");
    AGAIN; /* no first moment of it */
    b->tensor[4].has[ZT_SAVED_M] = false;
    snprintf(says, sizeof says, "%s.exp_avg is not in the checkpoint", name);
    struct go_job *j = small(1, "ddp", SMALL);
    refused(j, b, ZT_ECORRUPT, says);
    /* adapters are other tensors, and freeze the rest */
    refused(small(2, "fsdp", "training: {steps: 20, seq_len: 8, local_batch_size: 2, lora: {rank: 2, targets: "
                             "[\"*.mlp.*\"]}}\noptimizer: {lr: 1.0e-2}\n"),
            s, ZT_EINVAL, "was trained in the checkpoint and is frozen now");
    refused(small(2, "fsdp", "training: {steps: 20, seq_len: 8, local_batch_size: 2, trainable: [\"*.mlp.*\"]}\n"
                             "optimizer: {lr: 1.0e-2}\n"),
            s, ZT_EINVAL, "was trained in the checkpoint and is frozen now");
    go_store_free(s);
    go_store_free(b);
}

Test(resume, other_data_and_lengths_are_refused) {
    struct go_store *s = kept(small(2, "zero1", SMALL), 6, NULL), *b = go_store_new();
    AGAIN;
    b->position.epoch_samples++;
    refused(small(2, "zero1", SMALL), b, ZT_EDATA, "other files than those the checkpoint was trained on (400 samples "
                                                   "now, 401 then");
    AGAIN;
    b->position.data_digest ^= 1;
    refused(small(2, "zero1", SMALL), b, ZT_EDATA, "model.init_from");
    AGAIN;
    b->position.cursor.consumed = 400;
    refused(small(2, "zero1", SMALL), b, ZT_ECORRUPT, "sample 400 of 400");
    AGAIN;
    b->position.updates = 5;
    refused(small(2, "zero1", SMALL), b, ZT_ECORRUPT, "step 6 has 5 updates and 0 skipped");
    AGAIN;
    b->position.scaled = true;
    refused(small(2, "zero1", SMALL), b, ZT_ECORRUPT, "has a loss scale, recipe fp32 has not one");
    refused(small(2, "zero1", "training: {steps: 5, seq_len: 8, local_batch_size: 2}\n"), s, ZT_EINVAL,
            "training.steps: 5, but the checkpoint is of step 6");
    /* more steps, and fewer, are fine; as many as are done: nothing is left */
    struct go_job *j = small(2, "zero1", "training: {steps: 6, seq_len: 8, local_batch_size: 2}\n");
    j->from = s;
    go_ok(j);
    cr_assert_eq(j->done, 0);
    go_free(j);
    go_store_free(s);
    go_store_free(b);
}

/* ---- what may change ---- */

/* A larger batch, accepted: the next window begins where the last one ended. Another length of sequences: with
 * the next epoch. */
Test(resume, an_accepted_batch) {
    struct go_store *s = kept(small(2, "ddp", SMALL), 10, NULL);
    struct go_job *j = small(2, "ddp", "training: {steps: 20, seq_len: 8, local_batch_size: 3}\n"),
                  *whole = small(2, "ddp", SMALL);
    j->from = s; /* that it was asked for is checked where specifications are: test_core_resume */
    go_ok(j);
    go_ok(whole);
    for (int i = 0; i < 12; i++) /* windows of 6 against windows of 4 */
        cr_assert_eq(j->step[11 + i / 6].id[i % 6], whole->step[11 + i / 4].id[i % 4]);
    cr_assert_eq(j->step[11].global_batch, 6);
    go_free(j);
    j = small(2, "ddp", "training: {steps: 20, seq_len: 4, local_batch_size: 2}\n");
    j->from = s;
    j->accept = true;
    go_ok(j);
    struct zt_sampler order;
    cr_assert_eq(zt_sampler_init(&order, 800, 1, true, true, 0, NULL), 0);
    cr_assert_eq(zt_sampler_set_epoch(&order, 1, NULL), 0);
    for (int i = 0; i < 40; i++) cr_assert_eq(j->step[11 + i / 4].id[i % 4], order.perm[i], "%d", i);
    zt_sampler_free(&order);
    go_free(j);
    go_free(whole);
    go_store_free(s);
}

/* ---- weights alone ---- */

/* To nearest even. */
static float bf16_near(float v) {
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    b = (b + 0x7fff + (b >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &b, sizeof v);
    return v;
}

/* From every recipe into every other, on another mesh: what counts is what was there, as near as the new
 * formats are; moments are zero, and step, rate and data begin anew. */
Test(resume, weights_alone_begin_anew) {
    static const char *const recipe[] = {"fp32", "mixed16", "pure_bf16"};
    for (int from = 0; from < 3; from++) {
        char more[400];
        const char *const fmt = SMALL "lr_scheduler: {warmup_steps: 10}\nprecision: {recipe: %s, reduce_dtype: fp32}\n";
        snprintf(more, sizeof more, fmt, recipe[from]);
        struct go_store *s = kept(small(3, "zero2", more), 5, NULL);
        for (int to = 0; to < 3; to++) {
            snprintf(more, sizeof more, fmt, recipe[to]);
            struct go_job *j = small(2, "fsdp", more), *fresh = small(2, "fsdp", more);
            j->from = s;
            j->weights = true;
            j->loaded = go_store_new();
            go_ok(j);
            go_ok(fresh);
            const struct go_store *l = j->loaded;
            for (int64_t e = 0; e < l->first[l->n_tensors]; e++) {
                float v = s->value[from == 1 ? ZT_SAVED_MASTER : ZT_SAVED_PARAMETER][e];
                float stored = to ? bf16_near(v) : v;
                cr_assert_eq(memcmp(&l->value[ZT_SAVED_PARAMETER][e], &stored, sizeof stored), 0, "%s to %s: %.9g, not %.9g",
                             recipe[from], recipe[to], (double)l->value[ZT_SAVED_PARAMETER][e], (double)stored);
                if (to == 1) cr_assert_eq(memcmp(&l->value[ZT_SAVED_MASTER][e], &v, sizeof v), 0);
                cr_assert(l->value[ZT_SAVED_M][e] == 0 && l->value[ZT_SAVED_V][e] == 0);
            }
            cr_assert_eq(j->done, 20);
            for (int i = 1; i <= 20; i++) {
                cr_assert_eq(j->step[i].lr, fresh->step[i].lr);
                cr_assert_eq(memcmp(j->step[i].id, fresh->step[i].id, sizeof j->step[i].id), 0);
            }
            cr_assert_lt(j->step[1].loss, fresh->step[1].loss - 0.1, "it has learned something");
            go_free(j);
            go_free(fresh);
        }
        go_store_free(s);
    }
}

/* Adapters over a trained base: the base is what was there, the adapters are as drawn, and so the first loss is
 * that of the base. */
Test(resume, adapters_begin_over_weights) {
    struct go_store *s = kept(small(2, "ddp", SMALL), 10, NULL);
    const char *const lora = "training: {steps: 4, seq_len: 8, local_batch_size: 2, lora: {rank: 2, targets: "
                             "[\"*.mlp.*\", \"*.c_attn\"]}}\noptimizer: {lr: 1.0e-2}\n";
    struct go_job *base = small(2, "zero3", SMALL), *j = small(2, "zero3", lora), *fresh = small(2, "zero3", lora);
    base->from = j->from = s;
    base->weights = j->weights = true;
    base->last = 1;
    j->loaded = go_store_new();
    fresh->loaded = go_store_new();
    go_ok(base);
    go_ok(j);
    go_ok(fresh);
    int adapters = 0;
    for (int i = 0; i < j->loaded->n_tensors; i++) {
        const char *name = j->loaded->tensor[i].name;
        const bool own = strstr(name, ".lora_") != NULL;
        const struct go_store *want = own ? fresh->loaded : s;
        const int k = go_find(want, name);
        adapters += own;
        cr_assert_geq(k, 0, "%s", name);
        cr_assert_eq(memcmp(&j->loaded->value[0][j->loaded->first[i]], &want->value[0][want->first[k]],
                            sizeof(float) * (size_t)(want->first[k + 1] - want->first[k])), 0, "%s", name);
    }
    cr_assert_eq(adapters, 2 * 2 * 3);
    cr_assert_eq(j->step[1].loss, base->step[1].loss);
    go_free(base);
    go_free(j);
    go_free(fresh);
    go_store_free(s);
}
