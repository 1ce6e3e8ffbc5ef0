/* SPDX-License-Identifier: Apache-2.0 */
/* What checkpoint.load and model.init_from may say, and what may differ when a run goes on. */
#include "spec_helper.h"
#include "core/resume.h"
#include "core/spec_schema.h"

Test(resume, what_to_load) {
    static const struct { const char *text; struct zt_load want; } good[] = {
        {"auto", {ZT_LOAD_AUTO, "", -1}},
        {"never", {ZT_LOAD_NEVER, "", -1}},
        {"weights_only", {ZT_LOAD_WEIGHTS_ONLY, "", -1}},
        {"step:1", {ZT_LOAD_STEP, "", 1}},
        {"step:100000", {ZT_LOAD_STEP, "", 100000}},
        {"run:a", {ZT_LOAD_RUN, "a", -1}},
        {"run:01M8MWDRD75PJH16PFB7CJK78E@20", {ZT_LOAD_RUN, "01M8MWDRD75PJH16PFB7CJK78E", 20}},
        {"run:llama-1b.x_2@500", {ZT_LOAD_RUN, "llama-1b.x_2", 500}},
    };
    static const char *const bad[] = {"", "latest", "none", "Auto", "step:", "step:0", "step:07", "step:-1", "step:x",
                                      "step:1 ", "step:9999999999999999", "run:", "run:@4", "run:a@", "run:a@0",
                                      "run:a@newest", "run:a b", "run:a/../b", "run:a@4@5", "/a/folder"};
    struct zt_load got;
    struct zt_error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(zt_load_parse(good[i].text, &got, &e), 0, "%s", good[i].text);
        cr_assert_eq(got.kind, good[i].want.kind, "%s", good[i].text);
        cr_assert_str_eq(got.run, good[i].want.run);
        cr_assert_eq(got.step, good[i].want.step, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(zt_load_parse(bad[i], &got, &e), ZT_EINVAL, "%s", bad[i]);
        cr_assert(strstr(e.msg, "run:ID@N or weights_only"), "%s", e.msg);
    }
    /* an id of 63 letters is the longest */
    char id[80] = "run:";
    memset(id + 4, 'a', 63);
    cr_assert_eq(zt_load_parse(id, &got, &e), 0);
    cr_assert_eq(strlen(got.run), 63u);
    id[4 + 63] = 'a';
    cr_assert_eq(zt_load_parse(id, &got, &e), ZT_EINVAL);
}

Test(resume, what_to_begin_with) {
    struct zt_load got;
    struct zt_error e;
    cr_assert(zt_init_from_parse("fresh", &got, &e) == 0 && got.kind == ZT_LOAD_FRESH);
    cr_assert(zt_init_from_parse("run:a@7", &got, &e) == 0 && got.kind == ZT_LOAD_RUN && got.step == 7);
    cr_assert(zt_init_from_parse("/models/llama", &got, &e) == 0 && got.kind == ZT_LOAD_FOLDER);
    cr_assert(zt_init_from_parse("models/run:a", &got, &e) == 0 && got.kind == ZT_LOAD_FOLDER);
    cr_assert_eq(zt_init_from_parse("", &got, &e), ZT_EINVAL);
    cr_assert_eq(zt_init_from_parse("run:a@", &got, &e), ZT_EINVAL);
    cr_assert(strstr(e.msg, "\"run:a@\" says nothing to begin with; give fresh, run:ID, run:ID@N or a folder"), "%s",
              e.msg);
}

/* A new key of the schema has to be given a rule: it fails here until it has. */
Test(resume, every_key_has_a_rule) {
    for (int i = 0; i < zt_schema_count(); i++)
        cr_assert_neq(zt_resume_rule(zt_schema_key(i)->path), ZT_RESUME_UNKNOWN, "%s", zt_schema_key(i)->path);
    cr_assert_eq(zt_resume_rule("modelx"), ZT_RESUME_UNKNOWN, "a section is a whole word");
    cr_assert_eq(zt_resume_rule("nothing.known"), ZT_RESUME_UNKNOWN);
}

#define SMALL                                                                                                          \
    "version: 1\nname: t\nmodel: {family: llama, layers: 2, heads: 2, dim: 16, ffn_dim: 24, vocab_size: 256, "        \
    "seq_len_max: 64}\ndataset: {path: data.txt}\n"                                                                    \
    "training: {steps: 20, seq_len: 16, local_batch_size: 2, global_batch_size: 8}\n"

static struct zt_spec parsed(const char *more, const char *const *set, int n) {
    char text[4096];
    struct zt_error e;
    struct zt_spec s;
    snprintf(text, sizeof text, "%s%s", SMALL, more);
    cr_assert_eq(zt_spec_parse(text, strlen(text), "run.yaml", set, n, &s, &e), 0, "%s", e.msg);
    return s;
}

static int check(const char *before, const char *now, bool accept, struct zt_error *e) {
    struct zt_spec a = parsed("", &before, 1), b = parsed("", &now, 1);
    int rc = zt_resume_check(&a, &b, accept, e);
    zt_spec_free(&a);
    zt_spec_free(&b);
    return rc;
}

/* The list of what may change, by its own words: each of these changes passes. */
Test(resume, what_may_change) {
    static const char *const change[] = {
        "training.steps=50",
        "optimizer.lr=1e-5",
        "lr_scheduler={warmup_steps: 5, decay_type: cosine, decay_ratio: 0.5, min_lr_factor: 0.1}",
        "restart={max_restarts: 9, backoff_seconds: {initial: 2, max: 3}}",
        "metrics={log_freq: 1, warmup_steps: 2, per_rank_keep: 3, parameter_hash_every: 4}",
        "timeouts={start: 9, first_step: 9, progress: 9, term_grace: 9, time_limit: 9, queue: 9}",
        "comm.train_timeout_seconds=300",
        "workers=4",
        "name=other",
        "labels={a: b}",
        "priority=3",
        "requirements.memory_gib=1",
        "memory={limit_gib: 1, gc_threshold: 0.5}",
        "parallelism={mode: fsdp, prefetch: 2, wrap: part, data_parallel_shard_degree: 2}",
        "parallelism={tensor_parallel_degree: 2, sequence_parallel: true}",
        "activation_checkpoint.mode=full",
        "validation={path: v.txt, every_steps: 3, steps: 4}",
        "loss.chunk_tokens=16",
        "training.local_batch_size=1",
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        struct zt_error e = {0};
        cr_assert_eq(check("name=t", change[i], false, &e), 0, "%s: %s", change[i], e.msg);
    }
}

/* All else is refused by name, with both values. */
Test(resume, what_may_not) {
    static const struct { const char *change, *says; } row[] = {
        {"model.dropout=0.1", "model.dropout: 0 in the checkpoint, 0.1 now"},
        {"model.layers=3", "model.layers: 2 in the checkpoint, 3 now"},
        {"model.rope_theta=1000", "model.rope_theta: 500000 in the checkpoint, 1000 now"},
        {"model.rope_scaling={type: llama3, factor: 4}", "model.rope_scaling"},
        {"model.tied_head=true", "model.tied_head: false in the checkpoint, true now"},
        {"dataset.path=other.txt", "dataset.path: data.txt in the checkpoint, other.txt now"},
        {"dataset.shuffle=false", "dataset.shuffle: true in the checkpoint, false now"},
        {"dataset.drop_last=false", "dataset.drop_last: true in the checkpoint, false now"},
        {"dataset.seed=1", "dataset.seed: 0 in the checkpoint, 1 now"},
        {"dataset.document_masks=true", "dataset.document_masks"},
        {"validation.fraction=0.25", "validation.fraction: not given in the checkpoint, 0.25 now"},
        {"training.seed=1", "training.seed: 0 in the checkpoint, 1 now"},
        {"training.trainable=[\"*.mlp.*\"]", "training.trainable"},
        {"training.lora={rank: 4}", "training.lora: not given in the checkpoint, given now"},
        {"optimizer.beta1=0.8", "optimizer.beta1: 0.9 in the checkpoint, 0.8 now"},
        {"optimizer.beta2=0.99", "optimizer.beta2: 0.95 in the checkpoint, 0.99 now"},
        {"optimizer.eps=1e-6", "optimizer.eps: 1e-08 in the checkpoint, 1e-06 now"},
        {"optimizer.weight_decay=0", "optimizer.weight_decay: 0.1 in the checkpoint, 0 now"},
        {"optimizer.max_norm=2", "optimizer.max_norm: 1 in the checkpoint, 2 now"},
        {"optimizer.decay_1d=true", "optimizer.decay_1d: false in the checkpoint, true now"},
        {"optimizer.state_init=lazy", "optimizer.state_init: eager in the checkpoint, lazy now"},
        {"precision={recipe: autocast, reduce_dtype: fp32}", "precision.recipe: fp32 in the checkpoint, autocast now"},
        {"precision.nonfinite=skip", "precision.nonfinite: abort in the checkpoint, skip now"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct zt_error e = {0};
        cr_assert_eq(check("name=t", row[i].change, true, &e), ZT_EINVAL, "%s", row[i].change);
        cr_assert(strstr(e.msg, row[i].says), "%s: %s", row[i].change, e.msg);
        cr_assert(strstr(e.msg, "model.init_from: run:ID@N, or checkpoint.load: weights_only"), "%s", e.msg);
    }
}

Test(resume, a_batch_changes_when_it_is_accepted) {
    static const struct { const char *change, *says; } row[] = {
        {"training.global_batch_size=16", "training.global_batch_size: 8 in the checkpoint, 16 now"},
        {"training.seq_len=32", "training.seq_len: 16 in the checkpoint, 32 now"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct zt_error e = {0};
        cr_assert_eq(check("name=t", row[i].change, false, &e), ZT_EINVAL);
        cr_assert(strstr(e.msg, row[i].says) && strstr(e.msg, "--accept-batch-change"), "%s", e.msg);
        cr_assert_eq(check("name=t", row[i].change, true, &e), 0, "%s", e.msg);
    }
}

/* Without a global batch in the file another number of workers has another one: how to keep it is told. */
Test(resume, how_to_keep_the_batch_is_told) {
    static const struct { int before, now; const char *says; } row[] = {
        {2, 4, "training.global_batch_size: 8 in the checkpoint, 16 now; the steps that follow would be other ones. Give "
                  "training.global_batch_size: 8 (with training.local_batch_size: 2 on these 4 data-parallel ranks), or "
                  "accept that with --accept-batch-change"},
        {4, 2, "Give training.global_batch_size: 16 (with training.local_batch_size: 4 on these 2 data-parallel ranks)"},
        {3, 2, "Give training.global_batch_size: 12 (with training.local_batch_size: 3 on these 2 data-parallel ranks)"},
        {2, 3, "8 sequences are not divided by 3 data-parallel ranks: give another number of workers"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *const set[] = {"training={steps: 20, seq_len: 16, local_batch_size: 4}", "parallelism={mode: ddp}"};
        struct zt_spec a = parsed("", set, 2), b = parsed("", set, 2);
        struct zt_error e = {0};
        cr_assert_eq(zt_spec_resolve(&a, row[i].before, "run.yaml", &e), 0, "%s", e.msg);
        cr_assert_eq(zt_spec_resolve(&b, row[i].now, "run.yaml", &e), 0, "%s", e.msg);
        cr_assert_eq(zt_resume_check(&a, &b, false, &e), ZT_EINVAL);
        cr_assert(strstr(e.msg, row[i].says), "%s", e.msg);
        zt_spec_free(&a);
        zt_spec_free(&b);
    }
}

/* Sample numbers of another length mean other text: with counted epochs that has no right answer. */
Test(resume, a_length_with_epochs_is_refused) {
    static const char *const a[] = {"training={epochs: 2, seq_len: 16, local_batch_size: 2, global_batch_size: 8}"},
                      *const b[] = {"training={epochs: 2, seq_len: 32, local_batch_size: 2, global_batch_size: 8}"};
    struct zt_error e = {0};
    cr_assert_eq(check(a[0], b[0], true, &e), ZT_EINVAL);
    cr_assert(strstr(e.msg, "training.seq_len: 16 in the checkpoint, 32 now") && strstr(e.msg, "training.steps"), "%s",
              e.msg);
}

/* However many keys differ, the message fits and names the first. */
Test(resume, many_differences_fit) {
    const char *const many[] = {"model={family: gpt2, layers: 9, heads: 4, dim: 32, vocab_size: 999, seq_len_max: 99}",
                                "optimizer={beta1: 0.1, beta2: 0.2, eps: 0.5, weight_decay: 7, max_norm: 8}",
                                "dataset={path: x.txt, shuffle: false, drop_last: false, seed: 77}",
                                "training.seed=5"};
    struct zt_spec a = parsed("", NULL, 0), b = parsed("", many, 4);
    struct zt_error e = {0};
    cr_assert_eq(zt_resume_check(&a, &b, false, &e), ZT_EINVAL);
    cr_assert(strncmp(e.msg, "model.family: llama in the checkpoint, gpt2 now; ", 49) == 0, "%s", e.msg);
    cr_assert(strstr(e.msg, "weights_only"), "%s", e.msg);
    zt_spec_free(&a);
    zt_spec_free(&b);
}
