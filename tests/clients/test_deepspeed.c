/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed configurations as run files. What keys mean is taken from DeepSpeed's documentation: sizes are
 * numbers of elements, train_batch_size = micro-batch x accumulation x ranks, gradients are not clipped and
 * weights not decayed unless it is asked for. The fixture's run file and report are golden files. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clients/zctl/deepspeed.h"
#include "core/spec.h"

static struct zt_ds_result r;
static struct zt_error err;

static int convert(const char *json, int workers) {
    zt_ds_free(&r);
    memset(&err, 0, sizeof err);
    return zt_ds_convert(json, strlen(json), "ds.json", workers, &r, &err);
}

static const struct zt_ds_row *row_of(const char *key) {
    for (int i = 0; i < r.n; i++)
        if (strcmp(r.row[i].key, key) == 0)
            return &r.row[i];
    return NULL;
}

static void expect_row(const char *key, enum zt_ds_outcome o, const char *says) {
    const struct zt_ds_row *row = row_of(key);
    cr_assert(row, "no row of %s", key);
    cr_expect_eq(row->outcome, o, "%s: %s: %s", key, zt_ds_outcome_name(row->outcome), row->text);
    cr_expect(strstr(row->text, says), "%s: %s", key, row->text);
}

static void expect_line(const char *line) {
    cr_assert(r.yaml);
    cr_expect(strstr(r.yaml, line), "no \"%s\" in:\n%s", line, r.yaml);
}

static void expect_no(const char *text) {
    cr_assert(r.yaml);
    cr_expect_not(strstr(r.yaml, text), "\"%s\" in:\n%s", text, r.yaml);
}

/* One key in a file that is good without it. */
static void with(const char *more, int workers) {
    char json[2048];
    snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 2,\n%s}", more);
    cr_assert_eq(convert(json, workers), 0, "%s: %s", more, err.msg);
}

static char *slurp(const char *path) {
    FILE *f = fopen(path, "re");
    cr_assert(f, "%s", path);
    char *text = calloc(1, 1 << 16);
    size_t n = fread(text, 1, (1 << 16) - 1, f);
    cr_assert_gt(n, 0);
    fclose(f);
    return text;
}

static int run(const char *words, char *out, size_t n) {
    char command[1024];
    snprintf(command, sizeof command, "cd " GOLDEN " && ZCTL_OUTPUT= " ZCTL " %s", words);
    FILE *f = popen(command, "r");
    cr_assert(f);
    size_t got = fread(out, 1, n - 1, f);
    out[got] = '\0';
    int status = pclose(f);
    cr_assert(WIFEXITED(status), "%s", words);
    return WEXITSTATUS(status);
}

static char text[65536];

/* micro 2 x accumulation 8 x 4 ranks = 64; 5e8 elements are 1 GB as bf16 and 2 GB as fp32. */
Test(convert, fixture) {
    char *yaml = slurp(GOLDEN "/ds_config.run.yaml"), *report = slurp(GOLDEN "/ds_config.report.txt");
    char path[64] = "/tmp/zctl-convert-XXXXXX", words[200];
    cr_assert(mkdtemp(path));
    strcat(path, "/r.yaml");
    snprintf(words, sizeof words, "convert ds_config.json --workers 4 -o %s 2>&1", path);
    cr_assert_eq(run(words, text, sizeof text), 0, "%s", text);
    cr_assert_str_eq(text, report);
    char *written = slurp(path);
    cr_assert_str_eq(written, yaml);
    cr_assert(strstr(yaml, "global_batch_size: 64") && strstr(yaml, "mode: zero3"));
    cr_assert(strstr(report, "1 GB as bf16, 2 GB as fp32, twice with overlap_comm"));
    /* what was filled in by hand is not written over */
    cr_assert_eq(run(words, text, sizeof text), 5, "%s", text);
    cr_assert(strstr(text, "exists already"), "%s", text);
    /* to standard output without -o, the report on standard error */
    cr_assert_eq(run("convert ds_config.json --workers 4 2>/dev/null", text, sizeof text), 0);
    cr_assert_str_eq(text, yaml);
    cr_assert_eq(run("convert ds_config.json 2>/dev/null", text, sizeof text), 0);
    cr_assert(strstr(text, "global_batch_size: FILL_IN      # 2 x 8 accumulated = 16 x K_dp"), "%s", text);
    /* and it is not a run yet */
    snprintf(words, sizeof words, "validate %s 2>&1", path);
    cr_assert_eq(run(words, text, sizeof text), 2, "%s", text);
    cr_assert(strstr(text, "training.seq_len: FILL_IN stands for a value that is still to be given"), "%s", text);
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    free(yaml);
    free(report);
    free(written);
}

/* Filled in, what comes out is a good run file that means the same. */
Test(convert, filled_in_it_is_valid) {
    static struct zt_spec s;
    const char *const set[] = {"model.preset=gpt2-nano", "dataset.path=/d", "training.steps=9", "training.seq_len=8"};
    with("\"gradient_accumulation_steps\": 8, \"gradient_clipping\": 1.0,\n"
         "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.01}},\n"
         "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": 3, \"total_num_steps\": 9,"
         " \"warmup_type\": \"linear\"}},\n"
         "\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 262144, \"overlap_comm\": false}",
         4);
    cr_assert_eq(zt_spec_parse(r.yaml, strlen(r.yaml), "r.yaml", set, 4, &s, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&s, 0, "r.yaml", &err), 0, "%s", err.msg);
    cr_expect_eq(s.parallelism.mode, ZT_ZERO2);
    cr_expect_eq(s.training.global_batch_size, 64);
    cr_expect_eq(zt_spec_accumulation(&s), 8);
    cr_expect_eq(s.parallelism.bucket_mib, 1); /* 262,144 elements of fp32 */
    cr_expect_not(s.parallelism.overlap);
    cr_expect_eq(s.optimizer.max_norm, 1);
    cr_expect_eq(s.optimizer.beta2, 0.999);
    cr_expect(s.optimizer.decay_1d);
    cr_expect_eq(s.lr_scheduler.decay_type, ZT_DECAY_LINEAR);
    cr_expect_eq(s.training.steps, 9);
    cr_expect_eq(r.count[ZT_DS_WARNED], 0);
    zt_spec_free(&s);
}

Test(convert, batch_sizes) {
    static const struct { const char *json; int workers; const char *key; enum zt_ds_outcome o; const char *says, *line; } row[] = {
        {"{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 8}", 4,
         "train_batch_size", ZT_DS_MAPPED, "64", "global_batch_size: 64"},
        {"{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 8}", 2,
         "train_batch_size", ZT_DS_REFUSED, "2 x 8 x 2 = 32, not 64", NULL},
        {"{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 8}", 0,
         "train_batch_size", ZT_DS_REFUSED, "64 is not a multiple of 3 x 8 x 1", NULL},
        {"{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2}", 0, "train_batch_size", ZT_DS_MAPPED, "64",
         "local_batch_size: 2"},
        {"{\"train_batch_size\": 64, \"gradient_accumulation_steps\": 4}", 8, "train_batch_size", ZT_DS_MAPPED, "64",
         "local_batch_size: 2"},
        {"{\"train_batch_size\": 64}", 8, "train_batch_size", ZT_DS_MAPPED, "64", "local_batch_size: 8"},
        {"{\"train_batch_size\": 64}", 0, "train_micro_batch_size_per_gpu", ZT_DS_OPEN, "FILL_IN", "local_batch_size: FILL_IN"},
        {"{\"train_batch_size\": 64}", 7, "train_batch_size", ZT_DS_REFUSED, "64 is not a multiple of 1 x 1 x 7", NULL},
        {"{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 1}", 0, "gradient_accumulation_steps",
         ZT_DS_SAME, "one micro-step", "local_batch_size: 4"},
        {"{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 8}", 4, "gradient_accumulation_steps",
         ZT_DS_OPEN, "FILL_IN", "global_batch_size: FILL_IN      # local_batch_size x 8 accumulated x ranks"},
        {"{\"train_batch_size\": 0}", 0, "train_batch_size", ZT_DS_REFUSED, "at least 1", NULL},
        {"{\"train_batch_size\": 2.5}", 0, "train_batch_size", ZT_DS_REFUSED, "whole number", NULL},
        {"{\"train_batch_size\": \"many\"}", 0, "train_batch_size", ZT_DS_REFUSED, "whole number", NULL},
        {"{\"train_batch_size\": true}", 0, "train_batch_size", ZT_DS_REFUSED, "whole number", NULL},
        {"{\"train_batch_size\": 1e300}", 0, "train_batch_size", ZT_DS_REFUSED, "whole number", NULL},
        {"{\"train_micro_batch_size_per_gpu\": 2000000000, \"gradient_accumulation_steps\": 2000000000}", 4,
         "gradient_accumulation_steps", ZT_DS_REFUSED, "more than 2147483647 sequences", NULL},
        {"{}", 0, "train_micro_batch_size_per_gpu", ZT_DS_OPEN, "FILL_IN", "local_batch_size: FILL_IN"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        cr_assert_eq(convert(row[i].json, row[i].workers), 0, "%s: %s", row[i].json, err.msg);
        expect_row(row[i].key, row[i].o, row[i].says);
        cr_expect_eq(r.yaml == NULL, row[i].line == NULL, "%s", row[i].json);
        if (row[i].line)
            expect_line(row[i].line);
    }
}

Test(convert, stages_and_sizes) {
    with("\"zero_optimization\": {\"stage\": 0, \"reduce_bucket_size\": 5e8}", 0);
    expect_line("mode: ddp");
    expect_no("bucket_mib");
    with("\"zero_optimization\": {\"stage\": 1, \"reduce_bucket_size\": 5e8}, \"bf16\": {\"enabled\": true}", 0);
    expect_line("mode: zero1");
    expect_line("bucket_mib: 953.67431640625"); /* 1e9 / 2^20 */
    expect_no("prefetch");
    with("\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8, \"allgather_bucket_size\": 2e8}", 0);
    expect_line("bucket_mib: 1907.3486328125"); /* 2e9 / 2^20 */
    expect_row("zero_optimization.allgather_bucket_size", ZT_DS_WARNED, "one size for both ways");
    with("\"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": 0, \"overlap_comm\": false}", 0);
    expect_line("prefetch: 0");
    expect_line("overlap: false");
    expect_row("zero_optimization.stage3_param_persistence_threshold", ZT_DS_ABSENT, "1e5 elements");
    with("\"zero_optimization\": true", 0);
    expect_line("mode: zero1");
    with("\"zero_optimization\": {\"stage\": 4}", 0);
    expect_row("zero_optimization.stage", ZT_DS_REFUSED, "stages 0 to 3");
    with("\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 8}", 16);
    expect_line("reshard_after_forward: 8");
    with("\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 4}", 8);
    expect_line("data_parallel_shard_degree: 4");
    with("\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 4}", 6);
    expect_row("zero_optimization.mics_shard_size", ZT_DS_REFUSED, "do not divide 6 workers");
    with("\"zero_optimization\": {\"stage\": 2, \"stage3_param_persistence_threshold\": 9}", 0);
    expect_row("zero_optimization.stage3_param_persistence_threshold", ZT_DS_SAME, "stage 3 only");
    with("\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"stage3_max_live_parameters\": 1e8}", 0);
    expect_row("zero_optimization.reduce_bucket_size", ZT_DS_SAME, "auto");
    expect_row("zero_optimization.stage3_max_live_parameters", ZT_DS_WARNED, "prefetch");
    with("\"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": 1e9, \"sub_group_size\": 1000000000}", 0);
    expect_row("zero_optimization.stage3_max_live_parameters", ZT_DS_SAME, "prefetch");
    expect_row("zero_optimization.sub_group_size", ZT_DS_SAME, "");
}

Test(convert, offload_is_refused_by_name) {
    with("\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"pin_memory\": true},\n"
         "\"offload_optimizer\": {\"device\": \"none\", \"pin_memory\": true}}",
         0);
    cr_assert_null(r.yaml);
    expect_row("zero_optimization.offload_param.device", ZT_DS_REFUSED, "offload of parameters is not in this version");
    expect_row("zero_optimization.offload_optimizer.device", ZT_DS_SAME, "nothing is offloaded");
    cr_assert_eq(row_of("zero_optimization.offload_param.device")->line, 2);
    with("\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}", 0);
    expect_row("zero_optimization.cpu_offload", ZT_DS_REFUSED, "offload");
    with("\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}", 0);
    expect_row("zero_optimization.zero_quantized_weights", ZT_DS_REFUSED, "qwZ");
}

Test(convert, optimizer_and_schedule) {
    with("\"optimizer\": {\"type\": \"Lamb\"}", 0);
    expect_row("optimizer.type", ZT_DS_REFUSED, "there is AdamW");
    with("\"optimizer\": {\"type\": \"AdamW\"}", 0); /* what FusedAdam does without parameters */
    expect_line("lr: 0.001");
    expect_line("beta2: 0.999");
    expect_line("weight_decay: 0 ");
    expect_line("max_norm: 0 ");
    with("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}}", 0);
    expect_line("weight_decay: 0.01"); /* torch.optim.AdamW */
    with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"weight_decay\": 0.1}}", 0);
    expect_row("optimizer.params.adam_w_mode", ZT_DS_REFUSED, "added to the gradient");
    with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", 0);
    expect_row("optimizer.params.adam_w_mode", ZT_DS_SAME, "the two are one");
    with("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9]}}", 0);
    expect_row("optimizer.params.betas", ZT_DS_REFUSED, "two numbers");
    with("\"gradient_clipping\": 1.5", 0);
    expect_line("max_norm: 1.5");
    expect_line("lr: FILL_IN"); /* made in code */
    with("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},\n"
         "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 2e-3, \"warmup_num_steps\": 50}}", 0);
    expect_line("lr: 0.002"); /* the schedule wins */
    expect_line("decay_type: constant");
    expect_line("warmup_steps: 50");
    expect_row("scheduler.params.warmup_type", ZT_DS_WARNED, "logarithmic");
    cr_expect_eq(row_of("scheduler.params.warmup_type")->line, 0);
    with("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 200, \"warmup_type\": \"linear\"}}", 0);
    expect_line("decay_type: cosine");
    expect_line("steps: 200");
    expect_line("warmup_steps: 1000"); /* default there */
    expect_line("min_lr_factor: 0.0001");
    expect_row("scheduler.params.warmup_type", ZT_DS_MAPPED, "linear");
    with("\"scheduler\": {\"type\": \"OneCycle\"}", 0);
    expect_row("scheduler.type", ZT_DS_REFUSED, "WarmupCosineLR");
}

Test(convert, number_formats) {
    with("\"train_batch_size\": 2", 1);
    expect_no("precision"); /* fp32 is the default of both */
    with("\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}", 0);
    expect_line("recipe: mixed16 ");
    expect_line("reduce_dtype: bf16");
    with("\"bf16\": {\"enabled\": true}", 0); /* without ZeRO gradients are added up in fp32 */
    expect_line("recipe: mixed16_g32");
    with("\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"zero_optimization\": {\"stage\": 2},"
         "\"communication_data_type\": \"fp32\"", 0);
    expect_line("recipe: mixed16_g32");
    expect_line("reduce_dtype: fp32");
    with("\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true},"
         "\"zero_optimization\": {\"stage\": 2}", 0);
    expect_line("recipe: pure_bf16");
    with("\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 32, \"hysteresis\": 2}", 0);
    expect_line("recipe: fp16");
    expect_line("scaler: deepspeed");
    expect_row("fp16.initial_scale_power", ZT_DS_WARNED, "has 16");
    expect_row("fp16.hysteresis", ZT_DS_SAME, "has 2");
    with("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}", 0);
    expect_row("fp16.loss_scale", ZT_DS_REFUSED, "fixed scale");
    with("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}", 0);
    expect_row("fp16.enabled", ZT_DS_REFUSED, "both enabled");
    with("\"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"}", 0);
    expect_line("recipe: FILL_IN");
    with("\"fp16\": {\"enabled\": false, \"loss_scale\": 128}", 0);
    expect_row("fp16.loss_scale", ZT_DS_SAME, "");
    with("\"torch_autocast\": {\"enabled\": true, \"dtype\": \"bfloat16\"}", 0);
    expect_line("recipe: autocast");
    with("\"amp\": {\"enabled\": true, \"opt_level\": \"O1\"}", 0);
    expect_row("amp.enabled", ZT_DS_REFUSED, "autocast");
    with("\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp16\"", 0);
    expect_row("communication_data_type", ZT_DS_REFUSED, "fp32 or as bf16");
}

/* Four groups of two ranks see four micro-batches: 2 x 3 x 4 = 24 sequences, not 48. */
Test(convert, tensor_parallelism) {
    with("\"tensor_parallel\": {\"autotp_size\": 2, \"tp_overlap_comm\": true, \"preset_model\": \"llama\",\n"
         "\"tp\": {\"tp_size\": 2}, \"partition_config\": {\"layer_specs\": [1]}}, \"gradient_accumulation_steps\": 3", 8);
    expect_row("tensor_parallel.autotp_size", ZT_DS_MAPPED, "parallelism.tensor_parallel_degree: 2");
    expect_row("tensor_parallel.tp_overlap_comm", ZT_DS_WARNED, "waits");
    expect_row("tensor_parallel.preset_model", ZT_DS_SAME, "");
    expect_row("tensor_parallel.tp.tp_size", ZT_DS_SAME, "autotp_size");
    expect_row("tensor_parallel.partition_config.layer_specs", ZT_DS_WARNED, "place in the model");
    expect_line("  tensor_parallel_degree: 2");
    expect_line("global_batch_size: 24");
    expect_line("workers: 8");
    with("\"tensor_parallel\": {\"autotp_size\": 2}, \"train_batch_size\": 16", 8);
    expect_line("global_batch_size: 16");
    with("\"tensor_parallel\": {\"autotp_size\": 2}, \"train_batch_size\": 8, \"gradient_accumulation_steps\": 2", 8);
    expect_row("train_batch_size", ZT_DS_REFUSED, "2 x 2 x 4");
    with("\"tensor_parallel\": {\"autotp_size\": 3}", 8);
    expect_row("tensor_parallel.autotp_size", ZT_DS_REFUSED, "groups of 3 do not divide 8 workers");
    with("\"tensor_parallel\": {\"autotp_size\": 1}", 8);
    expect_row("tensor_parallel.autotp_size", ZT_DS_SAME, "");
    expect_no("tensor_parallel_degree");
    with("\"tensor_parallel\": {\"autotp_size\": 2}, \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 8}", 8);
    expect_row("zero_optimization.mics_shard_size", ZT_DS_REFUSED, "groups of 8 do not divide 4 data-parallel ranks");
    with("\"sequence_parallel_size\": 2", 8);
    expect_row("sequence_parallel_size", ZT_DS_REFUSED, "Ulysses");
}

/* Every key has exactly one row; nothing is dropped. */
Test(convert, every_key_has_its_row) {
    static const char *const keys[] = {"a", "steps_per_print", "wandb.enabled", "wandb.project", "elasticity.enabled",
                                       "activation_checkpointing.partition_activations", "checkpoint", "flops_profiler.enabled",
                                       "train_micro_batch_size_per_gpu", "zero_optimization.stage", "zero_optimization.reduce_bucket",
                                       "compression_training.x.y", "pipeline.stages", "zero_optimization.list", "comms_logger.enabled"};
    with("\"a\": null, \"steps_per_print\": 10, \"wandb\": {\"enabled\": true, \"project\": \"p\"},\n"
         "\"elasticity\": {\"enabled\": false}, \"activation_checkpointing\": {\"partition_activations\": true},\n"
         "\"checkpoint\": {}, \"flops_profiler\": {\"enabled\": false}, \"comms_logger\": {\"enabled\": true},\n"
         "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket\": 5, \"list\": [{\"stage\": 1}, \"x\"]},\n"
         "\"compression_training\": {\"x\": {\"y\": 1}}, \"pipeline\": {\"stages\": 2}",
         0);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int n = 0;
        for (int j = 0; j < r.n; j++)
            n += strcmp(r.row[j].key, keys[i]) == 0 && r.row[j].line > 0;
        cr_expect_eq(n, 1, "%s: %d rows", keys[i], n);
    }
    int in_file = 0;
    for (int j = 0; j < r.n; j++)
        in_file += r.row[j].line > 0;
    cr_expect_eq(in_file, 15);
    expect_row("zero_optimization.reduce_bucket", ZT_DS_WARNED, "did you mean \"zero_optimization.reduce_bucket_size\"");
    expect_row("a", ZT_DS_WARNED, "unknown key");
    expect_row("elasticity.enabled", ZT_DS_SAME, "switched off");
    expect_row("compression_training.x.y", ZT_DS_REFUSED, "compressed");
    expect_row("pipeline.stages", ZT_DS_REFUSED, "pipeline");
    cr_expect_eq(row_of("compression_training.x.y")->line, 6);
    cr_expect_eq(row_of("zero_optimization.list")->line, 5);
    cr_expect_eq(row_of("zero_optimization.list")->column, 55);
}

static void refused(const char *json, const char *message) {
    cr_assert_eq(convert(json, 0), ZT_EINVAL, "%s", json);
    cr_expect(strstr(err.msg, message), "%s", err.msg);
    cr_assert_null(r.yaml);
    cr_assert_null(r.row);
}

/* What is no configuration is refused with its place; nothing crashes. */
/* A section that is empty says nothing; one that is no mapping is refused by what it is. */
Test(convert, sections_without_keys) {
    with("\"zero_optimization\": null", 1);
    expect_row("zero_optimization", ZT_DS_SAME, "empty");
    with("\"zero_optimization\": {}, \"optimizer\": {\"params\": {}}", 1);
    expect_row("zero_optimization", ZT_DS_SAME, "empty");
    expect_row("optimizer.params", ZT_DS_SAME, "empty");
    expect_line("mode: ddp");
    with("\"zero_optimization\": {\"zeropp_loco_param\": {}}", 1);
    expect_row("zero_optimization.zeropp_loco_param", ZT_DS_REFUSED, "quantised");
    with("\"zero_optimization\": 3", 1);
    expect_row("zero_optimization", ZT_DS_REFUSED, "expected a mapping");
}

Test(convert, hostile_files) {
    refused("", "ds.json:1:1: not valid JSON");
    refused("{\"a\": 1,}", "ds.json:1:9: not valid JSON");
    refused("{\n\"a\": 1 // one\n}", "ds.json:2:8: not valid JSON");
    refused("[1]", "ds.json:1:1: not a configuration");
    refused("\"x\"", "not a configuration");
    refused("{\"a\": 1, \"a\": 2}", "duplicate");
    refused("{\"a\": 1e999}", "real number overflow");
    refused("{\"a\": 99999999999999999999}", "too big");
    refused("{\"a\": \"\xff\"}", "not valid JSON");
    refused("{\"a\": \"\\u0000\"}", "not valid JSON");
    refused("{\"a\": NaN}", "not valid JSON");
    size_t n = 1 << 21;
    char *big = malloc(n + 1);
    memset(big, ' ', n);
    big[n] = '\0';
    cr_assert_eq(zt_ds_convert(big, n, "ds.json", 0, &r, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "2097152 bytes; a configuration has at most 1048576"), "%s", err.msg);
    memset(big, '[', 100000);
    big[100000] = '\0';
    refused(big, "not valid JSON");
    size_t used = 0; /* 40 mappings deep */
    for (int i = 0; i < 40; i++)
        used += (size_t)sprintf(big + used, "{\"a\":");
    used += (size_t)sprintf(big + used, "1");
    for (int i = 0; i < 40; i++)
        big[used++] = '}';
    big[used] = '\0';
    refused(big, "nested deeper than 16");
    /* many keys, long keys, strange keys */
    used = (size_t)sprintf(big, "{");
    for (int i = 0; i < 5000; i++)
        used += (size_t)sprintf(big + used, "\"k%d\": %d,", i, i);
    memset(big + used, 'x', 4000);
    big[used] = '"';
    used += 4000;
    sprintf(big + used, "\": {\"\\u001b[31m\\n\": {}}}");
    cr_assert_eq(convert(big, 0), 0, "%s", err.msg);
    cr_assert_geq(r.n, 5001);
    for (int i = 0; i < r.n; i++)
        for (const char *p = r.row[i].key; *p; p++)
            cr_assert_geq((unsigned char)*p, 0x20, "a control character of the file: %s", r.row[i].key);
    free(big);
}

Test(convert, exit_codes) {
    cr_assert_eq(run("convert /nonexistent.json 2>&1", text, sizeof text), 2);
    cr_assert(strstr(text, "/nonexistent.json: cannot be read"), "%s", text);
    cr_assert_eq(run("convert 2>&1", text, sizeof text), 2);
    cr_assert_eq(run("convert ds_config.json -o /nonexistent/x.yaml 2>&1", text, sizeof text), 2);
    cr_assert(strstr(text, "/nonexistent/x.yaml: cannot be written"), "%s", text);
    cr_assert_eq(run("status -o x.yaml 2>&1", text, sizeof text), 2);
    cr_assert(strstr(text, "--output x.yaml: expected one of table, json"), "%s", text);
    char command[400] = "convert - 2>&1 <<'E'\n{\"train_batch_size\": 8, \"elasticity\": {\"enabled\": true}}\nE\n";
    cr_assert_eq(run(command, text, sizeof text), 2);
    cr_assert(strstr(text, "nothing was written: 1 refused; take it out"), "%s", text);
    cr_assert_eq(run("convert ds_config.json -o json", text, sizeof text), 0);
    cr_assert(strstr(text, "\"outcome\": \"no counterpart\"") && strstr(text, "\"converted\": true"), "%s", text);
}
