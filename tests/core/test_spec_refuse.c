/* SPDX-License-Identifier: Apache-2.0 */
/* Every refusal of run.yaml with its exact place and words: a value that is wrong in itself at the
 * value, everything else at the key. */
#include "spec_helper.h"

static void expect_text(const char *text, const char *message) {
    cr_assert_eq(parse(text), ZT_EINVAL, "accepted: %s", text);
    cr_assert_str_eq(err.msg, message);
    cr_assert_null(spec.verbatim);
}

static void expect_set(const char *set, const char *message) {
    cr_assert_eq(parse_set(set), ZT_EINVAL, "accepted: %s", set);
    cr_assert_str_eq(err.msg, message);
}

/* GOOD with the training section's lines replaced. */
#define TRAINING(...)                                                                              \
    "version: 1\nname: good\nmodel: {preset: gpt2-nano}\ndataset: {path: x}\ntraining:\n" __VA_ARGS__

Test(refuse, yaml_features) {
    expect_text("", "run.yaml:1:1: empty; it needs at least version, name, model, dataset and training");
    expect_text("# nothing\n",
                "run.yaml:2:1: empty; it needs at least version, name, model, dataset and training");
    expect_text("hello\n",
                "run.yaml:1:1: not a run file; it starts with keys such as \"version: 1\"");
    expect_text("version: 1\nname: &x good\n", "run.yaml:2:7: anchors (&name) are not read; leave it out");
    expect_text("version: 1\nname: *x\n",
                "run.yaml:2:7: aliases (*name) are not read; write the value again");
    expect_text("version: !!int 1\n", "run.yaml:1:10: tags (!name) are not read; leave it out");
    expect_text("version: 1\nmodel: !x {preset: gpt2-nano}\n",
                "run.yaml:2:8: tags (!name) are not read; leave it out");
    expect_text("version: 1\n---\nversion: 1\n",
                "run.yaml:2:1: a second document (---); a run file is one document");
    expect_text("%YAML 1.1\n---\nversion: 1\n",
                "run.yaml:1:1: directives (%...) are not read; leave them out");
    expect_text("version: 1\ntraining:\n\tsteps: 1\n",
                "run.yaml:3:1: a tab in the indentation; use spaces");
    expect_text("version: 1\ntraining:\n  \tsteps: 1\n",
                "run.yaml:3:3: a tab in the indentation; use spaces");
    expect_text("version: 1\nname: a\nversion: 1\n",
                "run.yaml:3:1: version: given twice; the first is at line 1");
    expect_text("training: {steps: 1,\n  steps: 2}\n",
                "run.yaml:2:3: steps: given twice; the first is at line 1");
    expect_text("[a, b]: 1\n", "run.yaml:1:1: a key must be a word");
    expect_text("a: [1, 2\n", "run.yaml:2:1: not valid YAML: did not find expected ',' or ']', while "
                              "parsing a flow sequence");
    expect_text("name: \"a\\0b\"\n", "run.yaml:1:7: a NUL character in a value");
    expect_text("name: \xff\n",
                "run.yaml:1:1: not UTF-8 text, or a control character (byte 6)");
}

Test(refuse, limits) {
    size_t n = 300 * 1024;
    char *big = malloc(n + 1);
    memset(big, '#', n);
    big[n] = '\0';
    expect_text(big, "run.yaml: 307200 bytes; a run file has at most 262144 (256 KiB). Is it the right "
                     "file?");
    char deep[64] = "a: ";
    memset(deep + 3, '[', 40);
    expect_text(deep, "run.yaml:1:19: nested deeper than 16");
    /* 5,000 items are two events each at least */
    size_t used = (size_t)snprintf(big, n, "a: [");
    for (int i = 0; i < 10000; i++)
        used += (size_t)snprintf(big + used, n - used, "1,");
    snprintf(big + used, n - used, "1]\n");
    cr_assert_eq(parse(big), ZT_EINVAL);
    cr_assert(strstr(err.msg, ": more than 10000 YAML items; a run file has a few hundred"), "%s",
              err.msg);
    free(big);
}

Test(refuse, unknown_keys) {
    expect_text(TRAINING("  stepz: 3\n  steps: 3\n  seq_len: 8\n  local_batch_size: 1\n"),
                "run.yaml:6:3: training.stepz: unknown key (did you mean \"training.steps\"?)");
    expect_text(GOOD "trainning: {steps: 1}\n",
                "run.yaml:10:1: trainning: unknown key (did you mean \"training\"?)");
    /* a key of another section, other programs' words, and slips of those */
    expect_text(TRAINING("  steps: 3\n  max_norm: 1\n  seq_len: 8\n  local_batch_size: 1\n"),
                "run.yaml:7:3: training.max_norm: unknown key (did you mean \"optimizer.max_norm\"?)");
    expect_text(GOOD "optimizer: {learning_rate: 1}\n",
                "run.yaml:10:13: optimizer.learning_rate: unknown key (did you mean \"optimizer.lr\"?)");
    expect_text(GOOD "optimizer: {clpi: 1.0}\n",
                "run.yaml:10:13: optimizer.clpi: unknown key (did you mean \"optimizer.max_norm\"?)");
    expect_set("train.clpi=1",
               "--set train.clpi: unknown key (did you mean \"optimizer.max_norm\"?)");
    expect_set("training.stepz=1",
               "--set training.stepz: unknown key (did you mean \"training.steps\"?)");
    expect_text(GOOD "gradient_accumulation_steps: 4\n",
                "run.yaml:10:1: gradient_accumulation_steps: unknown key (did you mean "
                "\"training.global_batch_size\"?)");
    expect_text(GOOD "zero_stage: 3\n",
                "run.yaml:10:1: zero_stage: unknown key (did you mean \"parallelism.mode: zero3\"?)");
    expect_text(GOOD "loss: {qqqqq: 1}\n",
                "run.yaml:10:8: loss.qqqqq: unknown key; loss has: average, chunk_tokens");
    expect_text(GOOD "<<: {steps: 1}\n",
                "run.yaml:10:1: <<: unknown key; the file has: version, name, labels, priority, workers, "
                "requirements, model, dataset, validation, training, loss, optimizer, lr_scheduler, "
                "precision, parallelism, activation_checkpoint, checkpoint, memory, comm, restart, "
                "timeouts, metrics");
    expect_text(GOOD "training.steps: 3\n",
                "run.yaml:10:1: training.steps: a dotted key works with --set only; here write steps below "
                "training:");
}

Test(refuse, whole_numbers) {
    static const char *const key = "training.steps";
    static const struct { const char *value, *why; } row[] = {
        {"0x10", "0x10: only decimal numbers are read; write it in decimal"},
        {"0o17", "0o17: only decimal numbers are read; write it in decimal"},
        {"010", "010 is ambiguous (octal or decimal?); write it without the leading zero"},
        {"1_000", "1_000: underscores in numbers are not read; leave them out"},
        {"1e3", "1e3: a count is written in digits; write 1000"},
        {"2.0", "2.0: a count is written in digits; write 2"},
        {"2.5", "2.5 is not a whole number"},
        {"ten", "\"ten\" is not a whole number"},
        {"1:30", "\"1:30\" is not a whole number"},
        {"5 ", "\"5 \" is not a whole number"},
        {"", "has no value; expected a whole number"},
        {".inf", ".inf is not a finite number"},
        {"0", "0 is out of range: must be 1..1000000000000"},
        {"-5", "-5 is out of range: must be 1..1000000000000"},
        {"2000000000000", "2000000000000 is out of range: must be 1..1000000000000"},
        {"99999999999999999999", "99999999999999999999 is too large for a whole number here"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char set[80], want[200];
        snprintf(set, sizeof set, "%s=%s", key, row[i].value);
        snprintf(want, sizeof want, "--set %s: %s", key, row[i].why);
        expect_set(set, want);
    }
    expect_text(TRAINING("  steps: \"200\"\n  seq_len: 8\n  local_batch_size: 1\n"),
                "run.yaml:6:10: training.steps: \"200\" in quotes is text; write 200 without quotes");
    expect_text(TRAINING("  steps: [1]\n  seq_len: 8\n  local_batch_size: 1\n"),
                "run.yaml:6:3: training.steps: a list is not expected here");
}

Test(refuse, floats) {
    static const struct { const char *value, *why; } row[] = {
        {"3e-4x", "\"3e-4x\" is not a number"},
        {".nan", ".nan is not a finite number"},
        {".inf", ".inf is not a finite number"},
        {"-.INF", "-.INF is not a finite number"},
        {"nan", "nan is not a finite number"},
        {"1e400", "1e400 is too large for a number here"},
        {"1e-400", "1e-400 is too small: it would be read as 0"},
        {"-3e-4", "-3e-4 is out of range: must be above 0, at most 1000000000"},
        {"0", "0 is out of range: must be above 0, at most 1000000000"},
        {"0x1p3", "0x1p3: only decimal numbers are read; write it in decimal"},
        {"01.5", "01.5 is ambiguous (octal or decimal?); write it without the leading zero"},
        {"1_0.5", "1_0.5: underscores in numbers are not read; leave them out"},
        {"1,5", "\"1,5\" is not a number"},
        {".", "\".\" is not a number"},
        {"e5", "\"e5\" is not a number"},
        {"1e", "\"1e\" is not a number"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char set[80], want[200];
        snprintf(set, sizeof set, "optimizer.lr=%s", row[i].value);
        snprintf(want, sizeof want, "--set optimizer.lr: %s", row[i].why);
        expect_set(set, want);
    }
    expect_text(GOOD "optimizer: {lr: \"3e-4\"}\n",
                "run.yaml:10:17: optimizer.lr: \"3e-4\" in quotes is text; write 3e-4 without quotes");
    expect_text(GOOD "optimizer:\n  beta1: 1\n",
                "run.yaml:11:10: optimizer.beta1: 1 is out of range: must be at least 0 and below 1");
}

Test(refuse, booleans_and_words) {
    static const struct { const char *word, *instead; } row[] = {
        {"yes", "true"}, {"on", "true"}, {"True", "true"}, {"no", "false"}, {"off", "false"},
        {"FALSE", "false"}, {"0", "false"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[600], want[200];
        snprintf(text, sizeof text, GOOD "optimizer: {decay_1d: %s}\n", row[i].word);
        snprintf(want, sizeof want,
                 "run.yaml:10:23: optimizer.decay_1d: \"%s\" is not true or false; write %s", row[i].word,
                 row[i].instead);
        expect_text(text, want);
    }
    expect_text(GOOD "optimizer: {decay_1d: \"true\"}\n",
                "run.yaml:10:23: optimizer.decay_1d: \"true\" in quotes is text; write true without "
                "quotes");
    expect_text(GOOD "optimizer: {decay_1d: perhaps}\n",
                "run.yaml:10:23: optimizer.decay_1d: \"perhaps\" is not true or false");
    expect_set("dataset.tokenizer=byte",
               "--set dataset.tokenizer: \"byte\" is not known (did you mean \"bytes\"?)");
    expect_set("dataset.tokenizer=tiktoken",
               "--set dataset.tokenizer: \"tiktoken\" is not known; it is one of: bytes | none");
    expect_set("model.preset=gpt2-nan0",
               "--set model.preset: no preset \"gpt2-nan0\" (did you mean \"gpt2-nano\"?)");
}

Test(refuse, names_and_texts) {
    const char *why = "is not a run name: lower-case letters, digits, '.', '_' and '-', the first a "
                      "letter or a digit, at most 63";
    static const char *const bad[] = {"Good", "-a", ".a", "a/b", "a b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char set[80], want[300];
        snprintf(set, sizeof set, "name=%s", bad[i]);
        snprintf(want, sizeof want, "--set name: \"%s\" %s", bad[i], why);
        expect_set(set, want);
    }
    expect_set("name=", "--set name: has no value");
    char name[160] = "name=";
    memset(name + 5, 'a', 64);
    expect_set(name, "--set name: 64 characters; at most 63");
    expect_text(GOOD "labels: {a: \"b\\nc\"}\n",
                "run.yaml:10:10: labels: has a control character at position 2");
    expect_text(GOOD "labels: [a]\n", "run.yaml:10:1: labels: a list is not expected here");
    expect_set("labels={a: {b: c}}", "--set labels: the value of a label must be a word");
}

Test(refuse, missing_keys) {
    expect_text("name: a\n",
                "run.yaml: version: missing; write version: 1\n"
                "run.yaml: training.seq_len: missing\n"
                "run.yaml: training.local_batch_size: missing\n"
                "run.yaml: model: missing; give {preset: gpt2-nano}, or its numbers\n"
                "run.yaml: dataset.path: missing; give the file, folder or glob to train on\n"
                "run.yaml: training.steps: missing; give steps or epochs");
    expect_text("version: 2\nname: a\nmodel: {preset: gpt2-nano}\ndataset: {path: x}\n"
                "training: {steps: 1, seq_len: 8, local_batch_size: 1}\n",
                "run.yaml:1:10: version: 2 is out of range: must be 1..1");
    expect_text("version: 1\nname: a\nmodel: {layers: 2}\ndataset: {path: x}\n"
                "training: {steps: 1, seq_len: 8, local_batch_size: 1}\n",
                "run.yaml:3:1: model.heads: missing; give it, or start from a preset\n"
                "run.yaml:3:1: model.dim: missing; give it, or start from a preset\n"
                "run.yaml:3:1: model.vocab_size: missing; give it, or start from a preset\n"
                "run.yaml:3:1: model.seq_len_max: missing; give it, or start from a preset");
    expect_text(GOOD "validation: {steps: 2}\n",
                "run.yaml:10:1: validation.path: missing; give path, or fraction (0.1 keeps a tenth)");
    expect_text(GOOD "validation:\n",
                "run.yaml:10:1: validation: expected keys below it (a mapping), got a single value");
}

/* More problems than fit are counted. */
Test(refuse, many_at_once) {
    char text[600] = GOOD, want[1200] = "";
    for (int i = 0; i < 11; i++) {
        size_t n = strlen(text), m = strlen(want);
        snprintf(text + n, sizeof text - n, "clip%d: 1\n", i);
        if (i < 8)
            snprintf(want + m, sizeof want - m,
                     "run.yaml:%d:1: clip%d: unknown key (did you mean \"optimizer.max_norm\"?)\n", 10 + i,
                     i);
    }
    strcat(want, "(and 3 more)");
    expect_text(text, want);
}

Test(refuse, values_that_contradict) {
    expect_set("training.epochs=2",
               "--set training.epochs: given together with training.steps; give one of them");
    expect_set("training.seq_len=512",
               "--set training.seq_len: 512 is longer than the model's seq_len_max 256");
    expect_set("training.accumulation_tail=drop",
               "--set training.accumulation_tail: is read with training.epochs only; with steps, windows "
               "run on across epochs");
    expect_set("model.vocab_size=255",
               "--set model.vocab_size: 255 is too small for tokenizer bytes, whose ids go up to 255; "
               "give 256 or more");
    expect_set("model.heads=3", "--set model.heads: 3 does not divide dim 128");
    expect_set("model.head_dim=16",
               "run.yaml:3:1: model.heads: 4 heads x head_dim 16 = 64, but gpt2 needs dim 128");
    expect_set("model.kv_heads=2",
               "--set model.kv_heads: is read by the llama family only; this model is gpt2");
    expect_set("lr_scheduler.warmup_steps=201",
               "--set lr_scheduler.warmup_steps: 201 is more than training.steps 200");
    expect_set("lr_scheduler.min_lr_factor=0.1",
               "--set lr_scheduler.min_lr_factor: has no effect with decay_type constant; choose linear, "
               "cosine or sqrt, or leave it out");
    expect_set("optimizer.eps=1e-50",
               "--set optimizer.eps: 1e-50 is 0 in fp32, so that zero gradients would give NaN; give "
               "1.2e-38 or more");
    expect_set("model.norm_eps=1e-39",
               "--set model.norm_eps: 1e-39 is 0 in fp32, so that a row of zeros would give NaN; give "
               "1.2e-38 or more");
    expect_set("memory.max_split_size_mib=20",
               "--set memory.max_split_size_mib: 20 is not above 20, the size of a large segment; give "
               "more, or 0 for no limit");
    expect_set("memory.limit_gib=0.0019",
               "--set memory.limit_gib: 0.0019 is less than one segment of 2 MiB (0.002); give more, or "
               "0 for what the worker offers");
    expect_set("memory.gc_threshold=1",
               "--set memory.gc_threshold: 1 is out of range: must be at least 0 and below 1");
    expect_set("training.global_batch_size=2147483648",
               "--set training.global_batch_size: 2147483648 is out of range: must be 1..2147483647");
    expect_set("validation={fraction: 0.1, every_steps: 201}",
               "--set validation.every_steps: 201 is never reached in 200 steps");
    expect_set("validation={fraction: 0.1, path: x}",
               "--set validation.fraction: given together with validation.path; give one of them");
    expect_set("timeouts.progress=100",
               "run.yaml: comm.train_timeout_seconds: 100 must be above timeouts.progress (100), so that "
               "a hang is found before its consequences");
    expect_set("comm.train_timeout_seconds=10",
               "--set comm.train_timeout_seconds: 10 must be above timeouts.progress (auto: at least "
               "10), so that a hang is found before its consequences");
    expect_set("restart.backoff_seconds.initial=90",
               "--set restart.backoff_seconds.initial: 90 is above restart.backoff_seconds.max 60");
    expect_text(GOOD "checkpoint: {interval: 200, keep_latest_k: 1}\n",
                "run.yaml:10:29: checkpoint.keep_latest_k: 1 would leave nothing to fall back on; give 0 "
                "(all) or 2 and more");
}

Test(refuse, what_nobody_can_load) {
    expect_text(GOOD "checkpoint: {load: newest}\n",
                "run.yaml:10:14: checkpoint.load: \"newest\" says nothing to load; give auto, never, step:N, run:ID, run:ID@N "
                "or weights_only");
    expect_set("model.init_from=run:a@", "--set model.init_from: \"run:a@\" says nothing to begin with; give fresh, run:ID, "
                                         "run:ID@N or a folder");
}

Test(refuse, workers_and_degrees_in_the_file) {
    expect_text("version: 1\nname: a\nworkers: 8\nmodel: {preset: gpt2-nano}\ndataset: {path: x}\n"
                "training:\n  steps: 10\n  seq_len: 8\n  local_batch_size: 1\nparallelism:\n"
                "    data_parallel_replicate_degree: 3\n",
                "run.yaml:11:5: parallelism.data_parallel_replicate_degree: 3 does not divide 8 workers "
                "(allowed: 1 2 4 8)");
    const char *const product[] = {"workers=8", "parallelism.data_parallel_replicate_degree=4", NULL};
    cr_assert_eq(parse_with(GOOD, product), ZT_EINVAL);
    cr_assert_str_eq(err.msg,
                     "--set parallelism.data_parallel_replicate_degree: replicate 4 x shard 1 x tensor 1 "
                     "= 4, but there are 8 workers; leave a degree out to have it filled");
    const char *const batch[] = {"workers=3", "training.global_batch_size=32", NULL};
    cr_assert_eq(parse_with(GOOD, batch), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "--set training.global_batch_size: 32 is not a multiple of "
                              "local_batch_size 8 x 3 data-parallel ranks = 24; give 24 or 48, or "
                              "another local_batch_size");
    expect_set("training.global_batch_size=4",
               "--set training.global_batch_size: 4 sequences are fewer than one local_batch_size of 8");
    expect_set("training.global_batch_size=0",
               "--set training.global_batch_size: 0 is out of range: must be 1..2147483647");
    expect_set("training.local_batch_size=-2",
               "--set training.local_batch_size: -2 is out of range: must be 1..1048576");
    expect_set("workers=0", "--set workers: 0 is out of range: must be 1..65536");
    expect_set("parallelism.data_parallel_replicate_degree=0",
               "--set parallelism.data_parallel_replicate_degree: 0 is out of range: must be -1 or "
               "1..65536");
}

static void expect_resolve(const char *const *set, int workers, const char *message) {
    cr_assert_eq(parse_with(GOOD, set), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&spec, workers, "run.yaml", &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, message);
    zt_spec_free(&spec);
}

Test(refuse, elastic) {
    expect_set("workers.min=2", "--set workers.min: an elastic run needs both; write workers: {min: N, max: M}");
    expect_set("workers.max=2", "--set workers.max: an elastic run needs both; write workers: {min: N, max: M}");
    expect_resolve((const char *const[]){"workers.min=1", "workers.max=4", "training.global_batch_size=96",
                                         "parallelism.mode=fsdp", "parallelism.data_parallel_shard_degree=2", NULL}, 3,
                   "--set workers.max: no mesh of 3 workers: the tensor degree 1 stays, replicas go first, then the shard "
                   "degree shrinks");
}

Test(refuse, resolve) {
    expect_resolve((const char *const[]){NULL}, 0,
                   "run.yaml: workers: the file does not say how many; add workers: N, or give --workers "
                   "N");
    expect_resolve((const char *const[]){NULL}, 70000,
                   "run.yaml: workers: 70000 is out of range: must be 1..65536");
    expect_resolve((const char *const[]){NULL}, 257,
                   "run.yaml: workers: 257 ranks are more than the 256 that a run may have in this version; "
                   "take fewer, smaller degrees or more accumulation");
    expect_resolve((const char *const[]){"workers=300", NULL}, 0,
                   "--set workers: 300 ranks are more than the 256 that a run may have in this version; "
                   "take fewer, smaller degrees or more accumulation");
    cr_assert_eq(parse_with(GOOD, NULL), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&spec, 256, "run.yaml", &err), 0, "%s", err.msg);
    zt_spec_free(&spec);
    expect_resolve((const char *const[]){"workers.min=2", "workers.max=4", "training.global_batch_size=96", NULL}, 0,
                   "--set workers.max: the run is elastic (2 to 4 workers): say for how many with --workers N");
    expect_resolve((const char *const[]){"workers.min=2", "workers.max=4", "training.global_batch_size=96", NULL}, 5,
                   "--set workers.max: 5 workers are not within workers.min 2 and workers.max 4");
    expect_resolve((const char *const[]){"workers=2", NULL}, 3,
                   "--set workers: the run file asks for 2, but there are 3; change one of them");
    expect_resolve((const char *const[]){"parallelism.data_parallel_replicate_degree=2", NULL}, 3,
                   "--set parallelism.data_parallel_replicate_degree: 2 does not divide 3 workers "
                   "(allowed: 1 3)");
    expect_resolve((const char *const[]){"training.global_batch_size=8", NULL}, 2,
                   "--set training.global_batch_size: 8 is not a multiple of local_batch_size 8 x 2 "
                   "data-parallel ranks = 16; give 16, or another local_batch_size");
    expect_resolve((const char *const[]){"training.global_batch_size=40", NULL}, 4,
                   "--set training.global_batch_size: 40 is not a multiple of local_batch_size 8 x 4 "
                   "data-parallel ranks = 32; give 32 or 64, or another local_batch_size");
}

/* Known to the schema, refused by this version: key, value, message. */
Test(refuse, not_in_this_version) {
    static const struct { const char *set, *why; } row[] = {
        {"requirements.device=cuda", "\"cuda\" is not in this version (only cpu)"},
        {"requirements.gpu_name=H200", "not in this version; leave it out"},
        {"requirements.exclude=[a]", "\"[a]\" is not in this version (only [])"},
        {"memory.expandable_segments=true", "\"true\" is not in this version (only false)"},
        {"comm.trace_buf_size=128", "\"128\" is not in this version (only 4096)"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char want[300];
        snprintf(want, sizeof want, "--set %.*s: %s", (int)strcspn(row[i].set, "="), row[i].set,
                 row[i].why);
        expect_set(row[i].set, want);
    }
}

Test(refuse, bad_set_syntax) {
    expect_set("training.steps", "--set training.steps: write it as key=value, e.g. training.steps=100");
    expect_set("=5", "--set =5: write it as key=value, e.g. training.steps=100");
    expect_set("validation={fraction: 0.1", "--set validation: not valid YAML: did not find expected ',' "
                                            "or '}', while parsing a flow mapping");
    expect_set("validation=&a {fraction: 0.1}",
               "--set validation: anchors (&name) are not read; leave it out");
}
