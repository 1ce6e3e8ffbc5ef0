/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl plan FILE` as it is typed. Expected figures come from elsewhere: published parameter counts, the batch's
 * arithmetic, bytes per parameter of the ZeRO paper, ring volumes. What the planner itself computes is held to
 * relations, and against real runs in tests/integration. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[4 << 20], folder[64];

/* No coordinator and no table of devices of this machine's. */
static void alone(void) {
    snprintf(folder, sizeof folder, "/tmp/zt-plan-XXXXXX");
    cr_assert(mkdtemp(folder));
    setenv("XDG_STATE_HOME", folder, 1);
    setenv("XDG_CONFIG_HOME", folder, 1);
    unsetenv("ZTRAIN_TOKEN_FILE");
    unsetenv("ZCTL_OUTPUT");
    setenv("ZCTL_COORD", "127.0.0.1:1", 1);
}
static void gone(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}
TestSuite(plan, .init = alone, .fini = gone);

/* Standard output and error of zctl with these words; the exit code. */
static int run(const char *words) {
    char command[1024];
    snprintf(command, sizeof command, ZCTL " %s 2>&1", words);
    FILE *f = popen(command, "r");
    cr_assert(f);
    size_t got = fread(text, 1, sizeof text - 1, f);
    text[got] = '\0';
    int status = pclose(f);
    cr_assert(WIFEXITED(status), "%s", words);
    return WEXITSTATUS(status);
}

static json_t *plan(int code, const char *words) {
    char line[900];
    json_error_t e;
    snprintf(line, sizeof line, "plan %s -o json", words);
    cr_assert_eq(run(line), code, "%s: %s", words, text);
    json_t *j = json_loads(text, 0, &e);
    cr_assert(j, "%s: %s", words, text);
    return j;
}

static const json_t *get(const json_t *j, const char *path) {
    char key[64];
    while (j && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        j = json_object_get(j, key);
        path += n + (path[n] == '.');
    }
    return j;
}
static int64_t whole(const json_t *j, const char *path) {
    const json_t *v = get(j, path);
    cr_assert(json_is_integer(v), "%s", path);
    return json_integer_value(v);
}
static double real(const json_t *j, const char *path) {
    const json_t *v = get(j, path);
    cr_assert(json_is_number(v), "%s", path);
    return json_number_value(v);
}
static const char *word(const json_t *j, const char *path) {
    const json_t *v = get(j, path);
    cr_assert(json_is_string(v), "%s", path);
    return json_string_value(v);
}

static const char *written(const char *name, const char *yaml) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(yaml, f) >= 0 && fclose(f) == 0);
    return path;
}

/* GPT-2's published counts; the untrained part apart. */
Test(plan, parameters_are_the_published_ones) {
    static const struct { const char *preset; int64_t n; } row[] = {
        {"gpt2-124m", 124439808}, {"gpt2-350m", 354823168}, {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[256];
        snprintf(words, sizeof words, EXAMPLES "/gpt2-124m.yaml --workers 4 --capacity-gib 2000 --set model.preset=%s",
                 row[i].preset);
        json_t *j = plan(0, words);
        cr_assert_eq(whole(j, "model.parameters"), row[i].n);
        cr_assert_eq(whole(j, "model.trainable"), row[i].n);
        json_decref(j);
    }
    /* the last block and the final norm: 12 h^2 + 13 h and 2 h with h = 128 */
    json_t *j = plan(0, EXAMPLES "/frozen.yaml");
    cr_assert_eq(whole(j, "model.trainable"), 12 * 128 * 128 + 13 * 128 + 2 * 128);
    json_decref(j);
}

Test(plan, a_batch_is_written_out) {
    json_t *j = plan(0, EXAMPLES "/gpt2-124m.yaml --workers 4 --set training.local_batch_size=2 "
                        "--set training.global_batch_size=48 --set training.steps=1000");
    cr_assert_eq(whole(j, "batch.accumulation"), 6);
    cr_assert_eq(whole(j, "batch.data_parallel"), 4);
    cr_assert_eq(whole(j, "batch.global_batch"), 2 * 6 * 4);
    cr_assert_eq(whole(j, "batch.tokens_per_step"), 48 * 1024);
    cr_assert_eq(whole(j, "batch.total_tokens"), 48 * 1024 * 1000);
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/gpt2-124m.yaml --workers 4 --set training.local_batch_size=2 "
                     "--set training.global_batch_size=48 --set training.steps=1000"), 0);
    cr_assert(strstr(text, "48 sequences = 2 (micro-batch) x 6 (accumulation) x 4 (data-parallel ranks)"), "%s", text);
    cr_assert(strstr(text, "49,152 tokens per step"), "%s", text);
    cr_assert(strstr(text, "49,152,000 tokens in all"), "%s", text);
}

/* 100 samples of 64 bytes, 2 ranks, micro-batches of 4, windows of 4: 50 rows a rank, 12 micro-batches, 3 windows
 * an epoch. Whether the data are there is told. */
Test(plan, epochs_are_counted_in_the_data) {
    char bytes[6402], yaml[600];
    memset(bytes, 'a', 6401);
    bytes[6401] = '\0';
    snprintf(yaml, sizeof yaml, "version: 1\nname: e\nworkers: 2\nmodel: {preset: gpt2-nano}\ndataset: {path: %s}\n"
             "training: {epochs: 2, seq_len: 64, local_batch_size: 4, global_batch_size: 32}\n", written("data.txt", bytes));
    char words[256];
    snprintf(words, sizeof words, "%s", written("e.yaml", yaml));
    json_t *j = plan(0, words);
    cr_assert_eq(whole(j, "batch.total_steps"), 6);
    cr_assert_eq(whole(j, "batch.total_tokens"), 6 * 32 * 64);
    cr_assert_eq(json_array_size(get(j, "assumed")), 1); /* the built-in cpu's figures */
    cr_assert(strstr(json_string_value(json_array_get(get(j, "assumed"), 0)), "are a guess; zctl calibrate"));
    json_decref(j);
    cr_assert_eq(unlink(written("data.txt", "")), 0);
    j = plan(0, words);
    cr_assert(json_is_null(get(j, "batch.total_steps")));
    cr_assert(strstr(json_string_value(json_array_get(get(j, "assumed"), 0)), "data.txt"));
    json_decref(j);
}

/* Five rows for evaluation on four ranks: one of them has two. */
Test(plan, ranks_that_differ_are_apart) {
    char bytes[322], yaml[600], words[256];
    memset(bytes, 'a', 321);
    bytes[321] = '\0';
    snprintf(yaml, sizeof yaml, "version: 1\nname: e\nworkers: 4\nmodel: {preset: gpt2-nano}\n"
             "dataset: {path: /usr/share/common-licenses}\nvalidation: {path: %s, every_steps: 5}\n"
             "training: {steps: 100, seq_len: 64, local_batch_size: 4}\n", written("valid.txt", bytes));
    snprintf(words, sizeof words, "%s", written("v.yaml", yaml));
    json_t *j = plan(0, words), *row;
    int64_t eval[4] = {0};
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)get(j, "chosen.ranks"), i, row)
        if (strcmp(word(row, "window"), "eval") == 0)
            eval[whole(row, "rank")] = whole(row, "predicted.peak_allocated_bytes");
    cr_assert_gt(eval[0], eval[1]);
    cr_assert(eval[1] == eval[2] && eval[2] == eval[3] && eval[1] > 0);
    json_decref(j);
}

static const json_t *mode(const json_t *j, const char *name) {
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)(uintptr_t)get(j, "modes"), i, row)
        if (strcmp(word(row, "mode"), name) == 0)
            return row;
    cr_assert_fail("no mode %s", name);
    return NULL;
}

/* mixed16 on 8 ranks, per parameter: 16, 4 + 12/8, 2 + 14/8, 16/8 (the ZeRO paper); each group of each unit is
 * rounded up to 512 bytes, and padded by less than 128 elements. */
Test(plan, persistent_bytes_by_mode) {
    static const struct { const char *mode; double p, g, o; } row[] = {
        {"ddp", 2, 2, 12}, {"zero1", 2, 2, 1.5}, {"zero2", 2, 0.25, 1.5}, {"zero3", 0.25, 0.25, 1.5}, {"fsdp", 0.25, 0.25, 1.5}};
    json_t *j = plan(0, EXAMPLES "/gpt2-124m.yaml --workers 8 --capacity-gib 100 --set precision.recipe=mixed16 "
                        "--set precision.reduce_dtype=bf16 --set training.global_batch_size=32 --set parallelism.mode=ddp");
    const double n = 124439808;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const json_t *b = get(mode(j, row[i].mode), "persistent_bytes");
        cr_assert_float_eq(real(b, "parameters") / n, row[i].p, 1e-3, "%s", row[i].mode);
        cr_assert_float_eq(real(b, "gradients") / n, row[i].g, 1e-3, "%s", row[i].mode);
        cr_assert_float_eq(real(b, "optimizer") / n, row[i].o, 1e-3, "%s", row[i].mode);
        cr_assert_gt(whole(mode(j, row[i].mode), "peak_allocated_bytes"), whole(b, "parameters") + whole(b, "optimizer"));
    }
    /* an all-reduce of 2-byte gradients: 2 x 7/8 x 2 N; zero1 sends as much in two parts */
    cr_assert_float_eq(real(mode(j, "ddp"), "sent_bytes_per_step") / n, 2 * 7.0 / 8 * 2, 2e-3);
    cr_assert_float_eq(real(mode(j, "zero1"), "sent_bytes_per_step") / n, 2 * 7.0 / 8 * 2, 2e-3);
    cr_assert_str_eq(word(j, "first_that_fits.mode"), "ddp");
    json_decref(j);
}

/* Parameters, m and v of fp32 alone are 12 N = 1.39 GiB: what does not fit in one GiB runs out before the first step. */
Test(plan, what_does_not_fit_names_the_buffer) {
    json_t *j = plan(7, EXAMPLES "/gpt2-124m.yaml --workers 2 --capacity-gib 1 --set parallelism.mode=ddp");
    cr_assert(json_is_false(get(j, "chosen.fits")));
    cr_assert_str_eq(word(j, "chosen.oom.phase"), "init");
    char what[128];
    snprintf(what, sizeof what, "\"%s\" (%s) asks for", word(j, "chosen.oom.what"), word(j, "chosen.oom.tag"));
    cr_assert_gt(strlen(word(j, "chosen.oom.what")), 0);
    cr_assert_gt(whole(j, "chosen.peak_allocated_bytes"), INT64_C(1) << 30, "figures of a device without a limit");
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/gpt2-124m.yaml --workers 2 --capacity-gib 1 --set parallelism.mode=ddp"), 7);
    cr_assert(strstr(text, "DOES NOT FIT") && strstr(text, what), "%s", text);
}

/* The first row with room in 0.92 of the capacity; those before it have none. */
Test(plan, the_first_that_fits) {
    static const double gib[] = {100, 4.0, 3.5, 3.0, 2.8, 2.6, 0.5};
    bool seen_none = false, seen_other = false;
    for (size_t i = 0; i < sizeof gib / sizeof gib[0]; i++) {
        char words[256];
        snprintf(words, sizeof words, "plan " EXAMPLES "/gpt2-124m.yaml --workers 8 --capacity-gib %g -o json "
                 "--set training.local_batch_size=2 --set training.global_batch_size=16 --set parallelism.mode=ddp", gib[i]);
        run(words);
        json_t *j = json_loads(text, 0, NULL), *row;
        cr_assert(j, "%s", text);
        double limit = 0.92 * gib[i] * 1073741824.0;
        const char *first = json_string_value(get(j, "first_that_fits.mode"));
        bool found = false;
        size_t k;
        cr_assert_float_eq(real(j, "first_that_fits.limit_bytes"), limit, 2);
        json_array_foreach((json_t *)(uintptr_t)get(j, "modes"), k, row) {
            bool room = json_is_true(get(row, "fits")) && real(row, "peak_allocated_bytes") <= limit;
            if (found)
                break;
            found = room;
            if (room)
                cr_assert_str_eq(first ? first : "", word(row, "mode"), "%g GiB", gib[i]);
        }
        cr_assert_eq(found, first != NULL);
        seen_none = seen_none || !first;
        seen_other = seen_other || (first && strcmp(first, "ddp") != 0);
        json_decref(j);
    }
    cr_assert(seen_none && seen_other);
}

/* A recipe that gathers in 16 bits what it stores in 32 needs a mode that gathers: the others say so. */
Test(plan, a_mode_that_cannot_says_why) {
    json_t *j = plan(0, EXAMPLES "/fsdp-mixed.yaml");
    cr_assert(json_is_null(get(mode(j, "zero1"), "fits")));
    cr_assert(json_is_null(get(mode(j, "zero1"), "peak_allocated_bytes")));
    cr_assert(strstr(word(mode(j, "zero1"), "why"), "fsdp_mixed"));
    cr_assert(json_is_true(get(mode(j, "fsdp"), "fits")));
    json_decref(j);
}

Test(plan, the_schedule_adds_up) {
    json_t *j = plan(0, EXAMPLES "/hsdp.yaml --schedule"), *row;
    const json_t *chosen = get(j, "chosen");
    int64_t sent = 0, traffic = 0;
    double exposed = 0, last = 0;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)get(chosen, "schedule"), i, row) {
        if (json_is_true(get(row, "control")))
            continue;
        sent += whole(row, "sent_bytes");
        exposed += real(row, "exposed_seconds_estimate");
        cr_assert_geq(real(row, "queued_seconds_estimate"), last, "in the order of queueing");
        last = real(row, "queued_seconds_estimate");
        cr_assert_gt(strlen(word(row, "reason")), 0);
    }
    json_array_foreach((json_t *)(uintptr_t)get(chosen, "traffic"), i, row)
        traffic += json_is_true(get(row, "control")) ? 0 : whole(row, "sent_bytes");
    cr_assert_eq(sent, whole(chosen, "sent_bytes_per_step"));
    cr_assert_eq(traffic, sent);
    cr_assert_float_eq(exposed, real(chosen, "exposed_comm_seconds_estimate"), 1e-6);
    json_decref(j);
}

Test(plan, hosts_and_ranks) {
    json_t *j = plan(0, EXAMPLES "/quickstart.yaml --nodes 2 --gpus-per-node 4 --set parallelism.mode=fsdp");
    cr_assert_eq(whole(j, "mesh.shard"), 8);
    cr_assert_eq(whole(j, "mesh.hosts"), 2);
    cr_assert_eq(json_array_size(get(j, "modes")), 6, "with the replicas on hosts");
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/hsdp.yaml --nodes 2 --rank 2"), 0);
    cr_assert(strstr(text, "host 1:  2 (1,0,0)   3 (1,1,0)\n"), "%s", text);
    cr_assert(strstr(text, "rank      2 (1,0,0) on host 1"), "%s", text);
    cr_assert(strstr(text, "dp_shard with 2 3\n") && strstr(text, "dp_replicate with 0 2\n"), "%s", text);
    cr_assert_eq(run("plan " EXAMPLES "/hsdp.yaml --rank 4"), 2);
    cr_assert(strstr(text, "ranks 0 to 3"), "%s", text);
    cr_assert_eq(run("plan " EXAMPLES "/hsdp.yaml --nodes 3"), 2);
    cr_assert(strstr(text, "not the same number on each of 3 hosts"), "%s", text);
    cr_assert_eq(run("plan " EXAMPLES "/quickstart.yaml --workers 9 --nodes 2 --gpus-per-node 4"), 2);
    cr_assert_eq(run("plan " EXAMPLES "/quickstart.yaml --workers 4096 --gpus-per-node 8 --set parallelism.mode=fsdp"), 0);
    cr_assert(strstr(text, "          ...\n          host 511:  ranks 4088 (0,4088,0) to 4095 (0,4095,0)\n"), "%s", text);
}

Test(plan, units_are_folded) {
    json_t *j = plan(0, EXAMPLES "/gpt2-124m.yaml --workers 2 --units --set parallelism.mode=fsdp");
    const json_t *units = get(j, "chosen.units"), *blocks = json_array_get(units, 1);
    cr_assert_eq(json_array_size(units), 2);
    cr_assert_str_eq(word(blocks, "unit"), "block0 .. block11");
    cr_assert_eq(whole(blocks, "units"), 12);
    cr_assert_eq(whole(blocks, "parameters"), 7087872, "12 h^2 + 13 h");
    cr_assert_str_eq(word(blocks, "after_forward"), "freed");
    cr_assert_str_eq(word(json_array_get(units, 0), "after_forward"), "kept");
    json_decref(j);
}

Test(plan, a_sweep_has_a_row_for_each) {
    json_t *j = plan(0, EXAMPLES "/fsdp.yaml --sweep training.local_batch_size=1,2,4 --sweep parallelism.prefetch=1,9"), *row;
    const json_t *rows = get(j, "sweep");
    int64_t last = 0;
    size_t i;
    cr_assert_eq(json_array_size(rows), 6);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const json_t *set = get(row, "set");
        if (strcmp(json_string_value(json_object_get(set, "parallelism.prefetch")), "9") == 0) {
            cr_assert(json_is_null(get(row, "fits")) && strstr(word(row, "why"), "parallelism.prefetch"));
            continue;
        }
        cr_assert_gt(whole(row, "peak_allocated_bytes"), last, "more sequences, more memory");
        last = whole(row, "peak_allocated_bytes");
    }
    /* the last of them is the file itself */
    cr_assert_eq(last, whole(j, "chosen.peak_allocated_bytes"));
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --sweep training.seed=1,2,3,4,5,6,7,8,9 "
                     "--sweep dataset.seed=1,2,3,4,5,6,7,8"), 2);
    cr_assert(strstr(text, "72 combinations; at most 64"), "%s", text);
}

/* Pairs fit on hosts of two; on hosts of one, and of three, some do not. */
Test(plan, a_tensor_group_over_hosts_is_told) {
    static const struct { const char *hosts; bool told; } cases[] = {
        {"--nodes 1 --gpus-per-node 4", false}, {"--nodes 2 --gpus-per-node 2", false},
        {"--nodes 4 --gpus-per-node 1", true},
        {"--nodes 2 --gpus-per-node 3 --set workers=6 --set parallelism.data_parallel_shard_degree=3", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[512];
        snprintf(line, sizeof line, EXAMPLES "/tensor.yaml --device h200 %s", cases[i].hosts);
        json_t *j = plan(0, line), *w;
        bool told = false;
        size_t k;
        json_array_foreach((json_t *)(uintptr_t)get(j, "warnings"), k, w)
            told |= strstr(json_string_value(w), "the tensor group of ranks") != NULL;
        cr_assert_eq(told, cases[i].told, "%s", cases[i].hosts);
        cr_assert_eq(whole(j, "mesh.tensor"), 2);
        json_decref(j);
    }
}

Test(plan, a_slow_rank_is_waited_for) {
    json_t *j = plan(0, EXAMPLES "/fsdp.yaml --straggler 3");
    double with = real(j, "chosen.step_seconds_estimate"), without = real(j, "chosen.step_seconds_without_straggler_estimate");
    cr_assert_gt(with, 2 * without);
    cr_assert_lt(with, 3.1 * without);
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --straggler 1"), 2);
}

Test(plan, what_is_refused_says_what_there_is) {
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --device h20"), 3);
    cr_assert(strstr(text, "h200") && strstr(text, "cpu"), "%s", text);
    cr_assert_eq(run("plan /nowhere.yaml"), 2);
    cr_assert_eq(run("plan"), 0);
    cr_assert(strstr(text, "usage: zctl plan FILE"), "%s", text);
}

/* FLOPs per token over the data sheet: MFU where there is one. */
Test(plan, mfu_needs_a_peak) {
    json_t *j = plan(0, EXAMPLES "/gpt2-124m.yaml --device h200 --workers 8 --set precision.recipe=mixed16 "
                        "--set precision.reduce_dtype=bf16");
    /* 6 (N - 1024 x 768) + 12 x 12 x 12 x 64 x 1024 */
    double flops = 6.0 * (124439808 - 786432) + 12.0 * 12 * 12 * 64 * 1024;
    cr_assert_float_eq(real(j, "chosen.flops_per_token"), flops, 0.5);
    cr_assert_float_eq(real(j, "chosen.mfu_estimate"),
                       flops * real(j, "chosen.tokens_per_second_estimate") / (8 * 989e12), 1e-9);
    json_decref(j);
    j = plan(0, EXAMPLES "/fsdp.yaml --device cpu");
    cr_assert(json_is_null(get(j, "chosen.mfu_estimate")));
    cr_assert(strstr(json_string_value(json_array_get(get(j, "chosen.caveats"), 0)), "guess"), "the built-in cpu is one");
    json_decref(j);
}

/* Standard output holds the trace or the chart and nothing else; with both there is no saying which. */
Test(plan, a_file_on_standard_output_stands_alone) {
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --device h200 --trace - 2>/dev/null"), 0);
    json_t *j = json_loads(text, 0, NULL);
    cr_assert(json_is_array(json_object_get(j, "traceEvents")), "%s", text);
    json_decref(j);
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --device h200 --svg - 2>/dev/null"), 0);
    cr_assert_eq(strncmp(text, "<?xml", 5), 0, "%.80s", text);
    cr_assert_str_eq(strstr(text, "</svg>"), "</svg>\n\n", "%.80s", text);
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --device h200 --svg - --trace -"), 2);
    cr_assert(strstr(text, "--svg - and --trace -") && strchr(text, '\n') == text + strlen(text) - 1, "%s", text);
    cr_assert_eq(run("plan " EXAMPLES "/fsdp.yaml --device h200 --capacity-gib 0.004 --trace - 2>/dev/null"), 7, "the code is the plan's");
}

/* 16 ranks as 2 replicas of 4 shards of 2 tensor ranks on hosts of 4: a global batch of 64 from 2 sequences, 4
 * micro-steps and 8 data-parallel ranks; tensor ranks are neighbours, shards 2 apart, replicas 8. */
Test(plan, ranks_and_groups_of_a_mesh) {
    static const char words[] =
        "plan " EXAMPLES "/tensor.yaml --device h200 --nodes 4 --gpus-per-node 4 --rank 0,9,14 --set workers=16 "
        "--set training.local_batch_size=2 --set training.global_batch_size=64 "
        "--set parallelism.data_parallel_replicate_degree=2 --set parallelism.data_parallel_shard_degree=4 "
        "--set parallelism.tensor_parallel_degree=2";
    static const char *const parts[] = {
        "replicate 2 x shard 4 x tensor 2 = 16 ranks on 4 hosts", "tensor: 2 ranks in a group, on one host",
        "64 sequences = 2 (micro-batch) x 4 (accumulation) x 8 (data-parallel ranks)",
        "rank      0 (0,0,0)", "dp_shard with 0 2 4 6\n", "dp_replicate with 0 8\n", "tensor with 0 1\n",
        "rank      9 (1,0,1)", "dp_shard with 9 11 13 15\n", "dp_replicate with 1 9\n", "tensor with 8 9\n",
        "rank      14 (1,3,0)", "dp_shard with 8 10 12 14\n", "dp_replicate with 6 14\n", "tensor with 14 15\n"};
    cr_assert_eq(run(words), 0, "%s", text);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_assert(strstr(text, parts[i]), "%s: %s", parts[i], text);
}

/* A page for a terminal of 100 columns: exact, estimated and stated figures under their headings. */
Test(plan, the_page) {
    cr_assert_eq(run("plan " EXAMPLES "/hsdp.yaml --units --device h200 --nodes 2"), 0);
    static const char *const parts[] = {"\nmemory of a rank: exact", "persistent (lower bound)", "(stated", "times estimated (~)",
                                        "\na steady step: estimated", "first that fits: ", "\nunits\n"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_assert(strstr(text, parts[i]), "%s: %s", parts[i], text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        cr_assert_leq(strlen(line), 112, "%s", line);
}
