/* SPDX-License-Identifier: Apache-2.0 */
/* Reading run files: values, defaults, numbers, overrides, the normalised text and what resolving for
 * a number of workers fills in. */
#include <locale.h>
#include <xxhash.h>
#include "spec_helper.h"

Test(spec, minimal_and_defaults) {
    cr_assert_eq(parse(GOOD), 0, "%s", err.msg);
    cr_assert_eq(spec.version, 1);
    cr_assert_str_eq(spec.name, "good");
    cr_assert_eq(spec.priority, 50);
    cr_assert_eq(spec.workers, 0);
    cr_assert_str_eq(spec.requirements.device, "cpu");
    cr_assert_eq(spec.model.dim, 128);
    cr_assert_eq(spec.model.vocab_size, 256);
    cr_assert_str_eq(spec.dataset.path, "/data/text");
    cr_assert_eq(spec.dataset.tokenizer, ZT_TOKENIZER_BYTES);
    cr_assert(spec.dataset.shuffle && spec.dataset.drop_last);
    cr_assert(!spec.validation.enabled && !spec.checkpoint.enabled && !spec.training.lora.enabled);
    cr_assert_eq(spec.training.steps, 200);
    cr_assert_eq(spec.training.epochs, 0);
    cr_assert_eq(spec.training.global_batch_size, 0);
    cr_assert_eq(spec.training.seed, 0);
    cr_assert_eq(spec.optimizer.lr, 3e-4);
    cr_assert_eq(spec.optimizer.beta1, 0.9);
    cr_assert_eq(spec.optimizer.beta2, 0.95);
    cr_assert_eq(spec.optimizer.eps, 1e-8);
    cr_assert_eq(spec.optimizer.weight_decay, 0.1);
    cr_assert_eq(spec.optimizer.max_norm, 1.0);
    cr_assert(!spec.optimizer.decay_1d);
    cr_assert_eq(spec.optimizer.state_init, ZT_STATE_EAGER);
    cr_assert_eq(spec.lr_scheduler.warmup_steps, 0);
    cr_assert_eq(spec.lr_scheduler.decay_type, ZT_DECAY_CONSTANT);
    cr_assert_lt(spec.lr_scheduler.decay_ratio, 0);
    cr_assert_str_eq(spec.precision.recipe, "fp32");
    cr_assert_eq(spec.precision.reduce_dtype, ZT_F32);
    cr_assert_eq(spec.parallelism.replicate, -1);
    cr_assert_eq(spec.parallelism.shard, -1);
    cr_assert_eq(spec.parallelism.tensor, 1);
    cr_assert_eq(spec.parallelism.prefetch, 1);
    cr_assert(spec.parallelism.overlap);
    cr_assert_eq(spec.timeouts.progress, 0);
    cr_assert_eq(spec.comm.train_timeout_seconds, 100);
    cr_assert_eq(spec.restart.max_restarts, 3);
    cr_assert_eq(spec.restart.backoff_max, 60);
    cr_assert_eq(spec.metrics.log_freq, 10);
    cr_assert_eq(spec.metrics.parameter_hash_every, 0);
    cr_assert_eq(spec.verbatim_bytes, strlen(GOOD));
    cr_assert_str_eq(spec.verbatim, GOOD);
    zt_spec_free(&spec);
}

Test(spec, every_value_is_read) {
    const char *text =
        "version: 1\n"
        "name: a.b_c-9\n"
        "labels: {team: pretrain, n: 12}\n"
        "priority: 100\n"
        "workers: 4\n"
        "requirements: {device: cpu, memory_gib: \">=1.5\"}\n"
        "model: {layers: 2, heads: 2, dim: 64, vocab_size: 300, seq_len_max: 64, norm_eps: 1e-6}\n"
        "dataset: {path: 'a b/*.bin', tokenizer: none, shuffle: false, drop_last: false, seed: 9}\n"
        "validation: {path: v.bin, every_steps: 7, steps: 3}\n"
        "training: {epochs: 2, seq_len: 64, local_batch_size: 2, global_batch_size: 24,\n"
        "  accumulation_tail: drop, seed: 42}\n"
        "optimizer: {lr: 1, beta1: 0, beta2: 0.5, eps: 1e-6, weight_decay: 0, decay_1d: true,\n"
        "  max_norm: 0, state_init: lazy}\n"
        "lr_scheduler: {warmup_steps: 5, decay_type: sqrt, decay_ratio: 0.5, min_lr_factor: 0.1}\n"
        "memory: {max_split_size_mib: 64, gc_threshold: 0.5}\n"
        "comm: {init_timeout_seconds: 5, train_timeout_seconds: 50, trace_buf_size: 4096}\n"
        "restart: {max_restarts: 0, backoff_seconds: {initial: 0.5, max: 2}, no_progress_limit: 3}\n"
        "timeouts: {start: 1, first_step: 2, progress: 3, term_grace: 4, time_limit: 5, queue: 6}\n"
        "metrics: {log_freq: 1, warmup_steps: 0, per_rank_keep: 0, parameter_hash_every: 1}\n";
    cr_assert_eq(parse(text), 0, "%s", err.msg);
    cr_assert_str_eq(spec.name, "a.b_c-9");
    cr_assert_eq(spec.labels.n, 2);
    cr_assert_str_eq(spec.labels.item[1].key, "n");
    cr_assert_str_eq(spec.labels.item[1].value, "12");
    cr_assert_eq(spec.priority, 100);
    cr_assert_eq(spec.workers, 4);
    cr_assert_eq(spec.requirements.memory_gib, 1.5);
    cr_assert_eq(spec.model.family, ZT_GPT2);
    cr_assert_eq(spec.model.head_dim, 32);
    cr_assert_eq(spec.model.kv_heads, 2);
    cr_assert_eq(spec.model.ffn_dim, 256);
    cr_assert_eq(spec.model.norm_eps, 1e-6);
    cr_assert(spec.model.tied_head);
    cr_assert_str_eq(spec.dataset.path, "a b/*.bin");
    cr_assert_eq(spec.dataset.tokenizer, ZT_TOKENIZER_NONE);
    cr_assert(!spec.dataset.shuffle && !spec.dataset.drop_last);
    cr_assert_eq(spec.dataset.seed, 9);
    cr_assert(spec.validation.enabled);
    cr_assert_str_eq(spec.validation.path, "v.bin");
    cr_assert_eq(spec.validation.every_steps, 7);
    cr_assert_eq(spec.validation.steps, 3);
    cr_assert_eq(spec.training.epochs, 2);
    cr_assert_eq(spec.training.global_batch_size, 24);
    cr_assert_eq(spec.training.accumulation_tail, ZT_TAIL_DROP);
    cr_assert_eq(spec.training.seed, 42);
    cr_assert_eq(spec.optimizer.lr, 1);
    cr_assert_eq(spec.optimizer.beta1, 0);
    cr_assert_eq(spec.optimizer.beta2, 0.5);
    cr_assert(spec.optimizer.decay_1d);
    cr_assert_eq(spec.optimizer.state_init, ZT_STATE_LAZY);
    cr_assert_eq(spec.lr_scheduler.warmup_steps, 5);
    cr_assert_eq(spec.lr_scheduler.decay_type, ZT_DECAY_SQRT);
    cr_assert_eq(spec.lr_scheduler.decay_ratio, 0.5);
    cr_assert_eq(spec.memory.max_split_size_mib, 64);
    cr_assert_eq(spec.restart.max_restarts, 0);
    cr_assert_eq(spec.restart.backoff_initial, 0.5);
    cr_assert_eq(spec.timeouts.progress, 3);
    cr_assert_eq(spec.timeouts.queue, 6);
    cr_assert_eq(spec.metrics.per_rank_keep, 0);
    cr_assert_eq(spec.metrics.parameter_hash_every, 1);
    zt_spec_free(&spec);
}

/* Keys beside a preset override it, whatever their order, and what follows from them follows. */
Test(spec, preset_overridden) {
    cr_assert_eq(parse("version: 1\nname: a\nmodel: {dim: 64, preset: gpt2-nano, layers: 2}\n"
                       "dataset: {path: x}\ntraining: {steps: 1, seq_len: 8, local_batch_size: 1}\n"),
                 0, "%s", err.msg);
    cr_assert_eq(spec.model.layers, 2);
    cr_assert_eq(spec.model.dim, 64);
    cr_assert_eq(spec.model.head_dim, 16);
    cr_assert_eq(spec.model.ffn_dim, 256);
    cr_assert_eq(spec.model.heads, 4);
    cr_assert_str_eq(spec.preset, "gpt2-nano");
    zt_spec_free(&spec);
}

/* The spellings of a float that mean 0.0003, and no other reading of them. */
Test(spec, float_spellings) {
    static const char *const same[] = {"3e-4", "3E-4", "3.0e-4", ".0003", "0.0003", "+3e-4", "3.e-4"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char set[64];
        snprintf(set, sizeof set, "optimizer.lr=%s", same[i]);
        cr_assert_eq(parse_set(set), 0, "%s: %s", same[i], err.msg);
        cr_assert_eq(spec.optimizer.lr, 0.0003, "%s", same[i]);
        char *text = zt_spec_normalise(&spec);
        cr_assert(strstr(text, "\n  lr: 0.0003\n"), "%s", text);
        free(text);
    }
    zt_spec_free(&spec);
}

Test(spec, numbers_do_not_depend_on_the_locale) {
    /* Not every machine has one with a comma; the C locale passes too, but proves less. */
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        setlocale(LC_ALL, "");
    cr_assert_eq(parse_set("optimizer.lr=0.125"), 0, "%s", err.msg);
    cr_assert_eq(spec.optimizer.lr, 0.125);
    char *text = zt_spec_normalise(&spec);
    cr_assert(strstr(text, "\n  lr: 0.125\n"));
    free(text);
    zt_spec_free(&spec);
}

Test(spec, overrides) {
    const char *const set[] = {"training.steps=7", "validation.fraction=0.1", "labels.team=x y",
                               "parallelism={mode: ddp, tensor_parallel_degree: 1}",
                               "dataset.path=/a b#c: d", "restart.backoff_seconds.max=9", NULL};
    cr_assert_eq(parse_with(GOOD, set), 0, "%s", err.msg);
    cr_assert_eq(spec.training.steps, 7);
    cr_assert(spec.validation.enabled);
    cr_assert_eq(spec.validation.fraction, 0.1);
    cr_assert_eq(spec.validation.every_steps, 7);
    cr_assert_str_eq(spec.labels.item[0].value, "x y");
    cr_assert_str_eq(spec.dataset.path, "/a b#c: d");
    cr_assert_eq(spec.restart.backoff_max, 9);
    /* The last one wins; the file's bytes are kept as they were. */
    const char *const twice[] = {"training.steps=7", "training.steps=8", NULL};
    cr_assert_eq(parse_with(GOOD, twice), 0);
    cr_assert_eq(spec.training.steps, 8);
    cr_assert_str_eq(spec.verbatim, GOOD);
    zt_spec_free(&spec);
}

/* Reading the normalised text again gives the same text, and the hash is of that text. */
static void expect_fixed_point(const char *text, const char *const *set) {
    cr_assert_eq(parse_with(text, set), 0, "%s", err.msg);
    char *once = zt_spec_normalise(&spec), hash[33];
    XXH128_hash_t h = XXH3_128bits(once, strlen(once));
    snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    cr_assert_str_eq(spec.normalised_hash, hash);
    cr_assert_eq(parse(once), 0, "%s\n%s", err.msg, once);
    char *again = zt_spec_normalise(&spec);
    cr_assert_str_eq(once, again);
    cr_assert_str_eq(spec.normalised_hash, hash);
    free(once);
    free(again);
    zt_spec_free(&spec);
}

Test(spec, normalised_text_is_a_fixed_point) {
    expect_fixed_point(GOOD, NULL);
    const char *const set[] = {"optimizer.lr=0.1234567890123456789", "validation.path=q\"\\ é",
                               "labels={a: 'b: c', \"d e\": '#'}", "timeouts.progress=12.5",
                               "dataset.path=null", "lr_scheduler.decay_type=linear",
                               "lr_scheduler.decay_ratio=1e-300", "training.seed=9000000000000000",
                               NULL};
    expect_fixed_point(GOOD, set);
}

/* What an elastic run was resolved to is the run of that many workers: its checkpoints carry that text. */
Test(spec, an_elastic_run_resolved_can_be_read_again) {
    const char *const set[] = {"workers.min=2", "workers.max=4", "training.global_batch_size=96", NULL};
    expect_fixed_point(GOOD, set);
    cr_assert_eq(parse_with(GOOD, set), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&spec, 3, "run.yaml", &err), 0, "%s", err.msg);
    char *text = zt_spec_normalise(&spec);
    cr_assert(strstr(text, "\nworkers: 3\n") && !strstr(text, "min: 2"), "%s", text);
    zt_spec_free(&spec);
    cr_assert_eq(parse(text), 0, "%s\n%s", err.msg, text);
    cr_assert_eq(spec.workers, 3);
    free(text);
    zt_spec_free(&spec);
}

Test(spec, comments_and_order_do_not_change_the_hash) {
    cr_assert_eq(parse(GOOD), 0);
    char hash[33];
    memcpy(hash, spec.normalised_hash, sizeof hash);
    cr_assert_eq(parse("# c\nparallelism: {mode: ddp}\ntraining: {local_batch_size: 8, seq_len: 128,\n"
                       "  steps: 200}\ndataset: {path: \"/data/text\"}\nmodel:\n  preset: 'gpt2-nano'\n"
                       "name: good # d\nversion: 1\n"),
                 0, "%s", err.msg);
    cr_assert_str_eq(spec.normalised_hash, hash);
    cr_assert_eq(parse_set("training.steps=201"), 0);
    cr_assert_str_neq(spec.normalised_hash, hash);
    zt_spec_free(&spec);
}

Test(spec, resolve_fills_the_degrees) {
    cr_assert_eq(parse(GOOD), 0);
    cr_assert_eq(zt_spec_resolve(&spec, 4, "run.yaml", &err), 0, "%s", err.msg);
    struct zt_mesh m = zt_spec_mesh(&spec);
    cr_assert(m.replicate == 4 && m.shard == 1 && m.tensor == 1);
    cr_assert_eq(spec.workers, 4);
    cr_assert_eq(spec.training.global_batch_size, 32);
    cr_assert_eq(zt_spec_accumulation(&spec), 1);
    cr_assert_eq(parse_set("training.global_batch_size=96"), 0);
    cr_assert_eq(zt_spec_resolve(&spec, 3, "run.yaml", &err), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_accumulation(&spec), 4);
    /* 0: as the file says */
    cr_assert_eq(parse_set("parallelism.data_parallel_replicate_degree=3"), 0);
    cr_assert_eq(zt_spec_resolve(&spec, 0, "run.yaml", &err), 0, "%s", err.msg);
    cr_assert_eq(spec.workers, 3);
    cr_assert_eq(parse_set("workers=2"), 0);
    cr_assert_eq(zt_spec_resolve(&spec, 0, "run.yaml", &err), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.replicate, 2);
    /* resolving again changes nothing */
    cr_assert_eq(zt_spec_resolve(&spec, 2, "run.yaml", &err), 0, "%s", err.msg);
    zt_spec_free(&spec);
}

Test(spec, elastic) {
    const char *const set[] = {"workers.min=1", "workers.max=4", "training.global_batch_size=96", "parallelism.mode=fsdp",
                               "parallelism.data_parallel_replicate_degree=2", "parallelism.data_parallel_shard_degree=2", NULL};
    static const struct { int workers, replicate, shard, accumulation; } want[] = {{1, 1, 1, 12}, {2, 1, 2, 6}, {4, 2, 2, 3}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        cr_assert_eq(parse_with(GOOD, set), 0, "%s", err.msg);
        cr_assert_eq(zt_spec_resolve(&spec, want[i].workers, "run.yaml", &err), 0, "%s", err.msg);
        cr_expect_eq(spec.parallelism.replicate, want[i].replicate);
        cr_expect_eq(spec.parallelism.shard, want[i].shard);
        cr_expect_eq(spec.training.global_batch_size, 96, "it is kept");
        cr_expect_eq(zt_spec_accumulation(&spec), want[i].accumulation);
        cr_assert_eq(zt_spec_resolve(&spec, want[i].workers, "run.yaml", &err), 0, "again: %s", err.msg);
        cr_expect_eq(spec.parallelism.replicate, want[i].replicate);
        zt_spec_free(&spec);
    }
}

Test(spec, schedule) {
    const char *const set[] = {"lr_scheduler.warmup_steps=10", "lr_scheduler.decay_type=cosine",
                               "lr_scheduler.min_lr_factor=0.5", "optimizer.lr=0.25", NULL};
    cr_assert_eq(parse_with(GOOD, set), 0, "%s", err.msg);
    struct zt_schedule s = zt_spec_schedule(&spec, 200);
    cr_assert_eq(s.lr, 0.25);
    cr_assert_eq(s.warmup_steps, 10);
    cr_assert_eq(s.total_steps, 200);
    cr_assert_eq(s.decay, ZT_DECAY_COSINE);
    cr_assert_lt(s.decay_ratio, 0);
    cr_assert_eq(s.min_lr_factor, 0.5);
    zt_spec_free(&spec);
}

Test(spec, limits_that_are_allowed) {
    char *big = malloc(ZT_SPEC_MAX_BYTES + 1);
    size_t n = strlen(GOOD);
    memcpy(big, GOOD, n);
    memset(big + n, '#', ZT_SPEC_MAX_BYTES - n);
    cr_assert_eq(zt_spec_parse(big, ZT_SPEC_MAX_BYTES, "run.yaml", NULL, 0, &spec, &err), 0, "%s",
                 err.msg);
    zt_spec_free(&spec);
    free(big);
    char name[160] = "name=";
    memset(name + 5, 'a', 63);
    cr_assert_eq(parse_set(name), 0, "%s", err.msg);
    cr_assert_eq(parse_set("dataset.seed=9000000000000000"), 0, "%s", err.msg);
    zt_spec_free(&spec);
}
