/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl estimate` as it is typed. Expected figures are the published ones: the ZeRO paper's table, bytes per parameter
 * of the recipes, DeepSpeed's and accelerate's own estimates, ring volumes, nccl-tests' bandwidths; and what must be
 * refused. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[1 << 18];

/* Standard output and error of zctl estimate with these words; the exit code. */
static int run(const char *words) {
    char command[2048];
    snprintf(command, sizeof command, "ZCTL_OUTPUT= " ZCTL " estimate %s 2>&1", words);
    FILE *f = popen(command, "r");
    cr_assert(f);
    size_t got = fread(text, 1, sizeof text - 1, f);
    text[got] = '\0';
    int status = pclose(f);
    cr_assert(WIFEXITED(status), "%s", words);
    return WEXITSTATUS(status);
}

static json_t *json(const char *words) {
    char line[1024];
    json_error_t e;
    snprintf(line, sizeof line, "%s -o json", words);
    cr_assert_eq(run(line), 0, "%s: %s", words, text);
    json_t *j = json_loads(text, 0, &e);
    cr_assert(j, "%s: %s", words, text);
    return j;
}

static double at(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static const json_t *find(const json_t *rows, const char *key, const char *value, const char *key2, const char *value2) {
    size_t i;
    const json_t *row;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const char *a = json_string_value(json_object_get(row, key)),
                   *b = key2 ? json_string_value(json_object_get(row, key2)) : NULL;
        if (a && strcmp(a, value) == 0 && (!key2 || (b && strcmp(b, value2) == 0)))
            return row;
    }
    cr_assert_fail("no row with %s %s", key, value);
    return NULL;
}

static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3/fsdp"};

/* Totals of the four modes, to the byte; the parts sum to them; GB and GiB are of the same bytes. */
static void expect_totals(const char *words, const int64_t want[4]) {
    json_t *j = json(words);
    for (int i = 0; i < 4; i++) {
        const json_t *r = find(json_object_get(j, "modes"), "mode", modes[i], NULL, NULL);
        cr_assert_eq((int64_t)at(r, "total"), want[i], "%s, %s: %.0f", words, modes[i], at(r, "total"));
        double sum = at(r, "parameters") + at(r, "gradients") + at(r, "optimizer");
        if (json_object_get(r, "buckets"))
            sum += at(r, "buckets");
        cr_assert_eq((int64_t)sum, want[i], "%s, %s", words, modes[i]);
        cr_assert_float_eq(at(r, "total_gb"), (double)want[i] / 1e9, 1e-9);
        cr_assert_float_eq(at(r, "total_gib"), (double)want[i] / 1073741824.0, 1e-9);
    }
    json_decref(j);
}

/* The paper's tables for 1e9 on 8 and 7.5e9 on 64 ranks; Llama 3 8B on 8; a model of 35,712 parameters in fp32 at one
 * and at four ranks; GPT-2's largest on 8: 23.2 and 8.0 GiB. */
Test(estimate, state_of_every_mode) {
    expect_totals("--params 1e9 --shards 8", (int64_t[]){16000000000, 5500000000, 3750000000, 2000000000});
    expect_totals("--params 7.5e9 --shards 64", (int64_t[]){120000000000, 31406250000, 16640625000, 1875000000});
    expect_totals("--params 8030261248 --shards 8", (int64_t[]){128484179968, 44166436864, 30113479680, 16060522496});
    expect_totals("--model llama3-8b --shards 8", (int64_t[]){128484179968, 44166436864, 30113479680, 16060522496});
    expect_totals("--params 35712 --recipe fp32 --shards 4", (int64_t[]){571392, 357120, 249984, 142848});
    expect_totals("--params 35712 --recipe fp32", (int64_t[]){571392, 571392, 571392, 571392});
    expect_totals("--model gpt2-1558m --shards 8", (int64_t[]){24921779200, 8566861600, 5841042000, 3115222400});
    json_t *j = json("--model gpt2-1558m --shards 8");
    cr_assert_float_eq(at(json_array_get(json_object_get(j, "modes"), 0), "total_gib"), 23.2, 0.05);
    cr_assert_float_eq(at(json_array_get(json_object_get(j, "modes"), 1), "total_gib"), 8.0, 0.05);
    json_decref(j);
}

/* 10 parameters on 8 ranks: shards of 2. */
Test(estimate, what_does_not_divide_is_padded) {
    expect_totals("--params 10 --shards 8", (int64_t[]){160, 20 + 20 + 24, 20 + 4 + 24, 4 + 4 + 24});
    expect_totals("--params 1 --shards 1000", (int64_t[]){16, 16, 16, 16});
}

/* 16 N / K of Llama 3 8B in GiB. */
Test(estimate, llama_over_more_ranks) {
    static const struct { int k; double gib; } row[] = {{8, 14.958}, {16, 7.479}, {32, 3.739}, {64, 1.870}, {128, 0.935}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[80];
        snprintf(words, sizeof words, "--params 8030261248 --shards %d", row[i].k);
        json_t *j = json(words);
        cr_assert_float_eq(at(find(json_object_get(j, "modes"), "mode", "zero3/fsdp", NULL, NULL), "total_gib"), row[i].gib,
                           6e-4, "%s", words);
        json_decref(j);
    }
}

/* 1e9 whole: 16, 16, 18, 12, 8 GB; parameters, gradients, optimizer. fp32's m and v: 8 GB. */
Test(estimate, recipes) {
    static const struct { const char *recipe; double p, g, o; } row[] = {
        {"fp32", 4, 4, 8}, {"autocast", 4, 4, 8}, {"frozen16", 4, 4, 8}, {"mixed16", 2, 2, 12}, {"fp16", 2, 2, 12},
        {"mixed16_g32", 2, 4, 12}, {"mixed16_nomaster", 2, 2, 8}, {"pure_bf16", 2, 2, 4}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[80];
        snprintf(words, sizeof words, "--params 1e9 --recipe %s", row[i].recipe);
        json_t *j = json(words);
        const json_t *r = json_array_get(json_object_get(j, "modes"), 0);
        cr_assert(at(r, "parameters_gb") == row[i].p && at(r, "gradients_gb") == row[i].g && at(r, "optimizer_gb") == row[i].o,
                  "%s", words);
        json_decref(j);
    }
}

/* fsdp_mixed gathers in bf16 what it stores in fp32: modes that gather nothing are left out, and it is said. */
Test(estimate, recipe_of_gathering_modes) {
    json_t *j = json("--params 1e9 --shards 8 --recipe fsdp_mixed");
    const json_t *rows = json_object_get(j, "modes");
    cr_assert_eq(json_array_size(rows), 1);
    cr_assert_eq(at(json_array_get(rows, 0), "total"), 2e9);
    json_decref(j);
    cr_assert_eq(run("--params 1e9 --shards 8 --recipe fsdp_mixed"), 0);
    cr_assert(strstr(text, "do not take it"), "%s", text);
}

/* 1e9 of which 1e7 train: 2.0 + 0.02 + 0.12 GB. Adapters of 6,815,744 beside Llama 3 8B: 16.16957 GB, an eighth of it. */
Test(estimate, part_of_it_trains) {
    json_t *j = json("--params 1e9 --trainable 1e7");
    const json_t *r = json_array_get(json_object_get(j, "modes"), 0);
    cr_assert(at(r, "parameters") == 2e9 && at(r, "gradients") == 2e7 && at(r, "optimizer") == 1.2e8);
    json_decref(j);
    j = json("--model llama3-8b --lora-params 6815744");
    cr_assert_float_eq(at(json_array_get(json_object_get(j, "modes"), 0), "total_gb"), 16.16957, 6e-6);
    json_decref(j);
    j = json("--model llama3-8b --lora-params 6815744 --shards 8");
    cr_assert_float_eq(at(json_array_get(json_object_get(j, "modes"), 3), "total_gb"), 2.02120, 6e-6);
    json_decref(j);
    j = json("--params 1e9 --trainable 0 --shards 8");
    cr_assert_eq(at(json_array_get(json_object_get(j, "modes"), 0), "total"), 2e9, "all frozen");
    json_decref(j);
}

/* 16 ranks, two of them tensor-parallel, 2 x 4 of the rest: 8, 3.5, 2.75 and 2 GB; a global batch of 64. What no
 * tensor-parallel rank cuts: GPT-2's smallest has 62,641,536 parameters left on each of two. */
Test(estimate, mesh) {
    const char words[] = "--params 1e9 --tp 2 --replicas 2 --shards 4 --micro-batch 2 --micro-steps 4";
    expect_totals(words, (int64_t[]){8000000000, 3500000000, 2750000000, 2000000000});
    json_t *j = json(words), *mesh = json_object_get(j, "mesh");
    cr_assert(at(mesh, "world") == 16 && at(mesh, "data_parallel") == 8 && at(mesh, "shards") == 4);
    cr_assert_eq(at(j, "global_batch"), 64);
    json_decref(j);
    static const struct { const char *words; int64_t local; } row[] = {
        {"--model gpt2-124m --tp 2", 62641536}, {"--model llama3-8b --tp 2", 4015263744},
        {"--params 124439808 --tp 2 --tp-replicated 843264", 62641536}, {"--params 1e9 --tp 1", 1000000000}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        j = json(row[i].words);
        cr_assert_eq((int64_t)at(j, "parameters_of_a_tensor_rank"), row[i].local, "%s", row[i].words);
        json_decref(j);
    }
}

/* Gradients beside their buckets: 20 GB instead of 16 for 1e9 in fp32, in ddp alone. */
Test(estimate, gradients_beside_their_buckets) {
    expect_totals("--params 1e9 --recipe fp32 --shards 8",
                  (int64_t[]){16000000000, 9000000000, 5500000000, 2000000000});
    expect_totals("--params 1e9 --recipe fp32 --shards 8 --no-bucket-view",
                  (int64_t[]){20000000000, 9000000000, 5500000000, 2000000000});
}

Test(estimate, weights) {
    json_t *j = json("--params 1e9 --weights-only");
    static const struct { const char *name; double gb; } row[] = {
        {"fp32", 4}, {"bf16", 2}, {"fp16", 2}, {"int8", 1}, {"int4", 0.5}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const json_t *r = find(json_object_get(j, "formats"), "format", row[i].name, NULL, NULL);
        cr_assert_eq(at(r, "whole_gb"), row[i].gb, "%s", row[i].name);
        cr_assert_float_eq(at(r, "whole_gib"), row[i].gb * 1e9 / 1073741824.0, 1e-12);
    }
    json_decref(j);
    j = json("--params 5 --weights-only --shards 2"); /* 3 a shard; two int4 in a byte */
    const json_t *r = find(json_object_get(j, "formats"), "format", "int4", NULL, NULL);
    cr_assert(at(r, "whole") == 3 && at(r, "rank") == 2);
    json_decref(j);
}

/* DeepSpeed's functions for 1e9 parameters, a largest layer of 1e8, 8 GPUs of one node: GPU 4.25 = 2 + 18/8, 2, 2.65 =
 * 0.4 + 18/8, 0.65, 0.4 GB; host 48 = 4 x 8 x 1.5, 48 = 32 x 1.5, 4.8, 24, 27 GB. */
Test(estimate, like_deepspeed) {
    static const struct { const char *name; double gpu, host, ours, difference; } row[] = {
        {"stage 1", -1, -1, 5.5e9, -1},
        {"stage 2", 4.25e9, 48e9, 3.75e9, 0.5e9},
        {"stage 2, optimizer on the host", 2e9, 48e9, -1, -1},
        {"stage 3", 2.65e9, 4.8e9, 2e9, 0.65e9},
        {"stage 3, optimizer on the host", 0.65e9, 24e9, -1, -1},
        {"stage 3, parameters on the host too", 0.4e9, 27e9, -1, -1}};
    json_t *j = json("--params 1e9 --shards 8 --like deepspeed --largest-layer 1e8");
    const json_t *rows = json_object_get(json_object_get(j, "like"), "rows");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const json_t *r = find(rows, "estimator", row[i].name, NULL, NULL);
        const struct { const char *key; double want; } cell[] = {
            {"gpu", row[i].gpu}, {"host", row[i].host}, {"ours", row[i].ours}, {"difference", row[i].difference}};
        for (int k = 0; k < 4; k++) {
            if (cell[k].want < 0)
                cr_assert(json_is_null(json_object_get(r, cell[k].key)), "%s, %s", row[i].name, cell[k].key);
            else
                cr_assert_eq(at(r, cell[k].key), cell[k].want, "%s, %s", row[i].name, cell[k].key);
        }
        cr_assert_gt(strlen(json_string_value(json_object_get(r, "why"))), 20, "no reason");
    }
    json_decref(j);
    /* two nodes of 8: hosts hold half each; 64 x 1.5 for the offloaded optimizer */
    j = json("--params 1e9 --shards 16 --like deepspeed --largest-layer 1e8");
    rows = json_object_get(json_object_get(j, "like"), "rows");
    cr_assert_eq(at(find(rows, "estimator", "stage 2, optimizer on the host", NULL, NULL), "host"), 96e9);
    cr_assert_eq(at(find(rows, "estimator", "stage 3, parameters on the host too", NULL, NULL), "host"), 13.5e9);
    json_decref(j);
    /* without the largest layer stage 3 is not guessed */
    j = json("--params 1e9 --shards 8 --like deepspeed");
    const json_t *r = find(json_object_get(json_object_get(j, "like"), "rows"), "estimator", "stage 3", NULL, NULL);
    cr_assert(json_is_null(json_object_get(r, "gpu")));
    cr_assert(strstr(json_string_value(json_object_get(r, "why")), "--largest-layer"));
    json_decref(j);
    cr_assert_eq(run("--params 1e9 --shards 8 --like deepspeed"), 0);
    cr_assert(strstr(text, "stage 3, optimizer on the host  "), "%s", text);
}

/* bert-base in fp32 with its buffers: 413.18 MiB, of which accelerate says that training takes 1.61 GiB (4 x). In 16
 * bits it says 2 x the fp32 model. */
Test(estimate, like_accelerate) {
    cr_assert_eq(run("--params 108312320 --like accelerate"), 0, "%s", text);
    cr_assert(strstr(text, "413.18 MiB") && strstr(text, "1.61 GiB"), "%s", text);
    json_t *j = json("--params 1e9 --like accelerate");
    const json_t *rows = json_object_get(json_object_get(j, "like"), "rows"), *r;
    r = find(rows, "dtype", "float32", NULL, NULL);
    cr_assert(at(r, "model") == 4e9 && at(r, "training") == 16e9 && at(r, "difference") == 0);
    r = find(rows, "dtype", "float16", NULL, NULL);
    cr_assert(at(r, "model") == 2e9 && at(r, "training") == 8e9 && at(r, "ours") == 16e9);
    r = find(rows, "dtype", "int4", NULL, NULL);
    cr_assert(at(r, "model") == 5e8 && json_is_null(json_object_get(r, "training")));
    json_decref(j);
}

/* 1e9 on 8 ranks: ddp 3.5 (bf16) and 7.0 (fp32), fsdp 7.0 (bf16 gathered, fp32 reduced), 5.25 (bf16 both), 3.5 (kept);
 * all-gather and reduce-scatter of bf16 1.75 each. 2 x 4: 3.0, 3.0, 1.0. 3.5 GB at 25 GB/s: 0.14 s. */
Test(estimate, traffic) {
    static const struct { const char *words, *mode, *reduced; double gather, scatter, all_reduce, seconds; } row[] = {
        {"--shards 8", "ddp", "bf16", 0, 0, 3.5, 0.14},
        {"--shards 8", "ddp", "fp32", 0, 0, 7, 0.28},
        {"--shards 4 --replicas 2", "ddp", "bf16", 0, 0, 3.5, 0.14},
        {"--shards 8", "zero1", "bf16", 1.75, 1.75, 0, 0.14},
        {"--shards 8", "zero2", "bf16", 1.75, 1.75, 0, 0.14},
        {"--shards 8 --micro-steps 4", "zero1", "bf16", 1.75, 1.75, 0, 0.14},
        {"--shards 8 --micro-steps 4", "zero2", "bf16", 1.75, 7, 0, 0.35},
        {"--shards 8", "zero3/fsdp", "fp32", 3.5, 3.5, 0, 0.28},
        {"--shards 8", "zero3/fsdp", "bf16", 3.5, 1.75, 0, 0.21},
        {"--shards 8", "fsdp, reshard false", "bf16", 1.75, 1.75, 0, 0.14},
        {"--shards 8 --recipe fsdp_mixed", "zero3/fsdp", "fp32", 3.5, 3.5, 0, 0.28},
        {"--shards 4 --replicas 2", "zero3/fsdp", "fp32", 3, 3, 1, 0.28},
        {"--shards 8 --tp 2", "ddp", "bf16", 0, 0, 1.75, 0.07},
        {"--shards 8 --trainable 5e8", "zero3/fsdp", "fp32", 3.5, 1.75, 0, 0.21},
        {"--shards 8 --trainable 5e8", "zero1", "bf16", 0.875, 0.875, 0, 0.07},
        {"", "ddp", "fp32", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[160];
        snprintf(words, sizeof words, "--params 1e9 --traffic --bandwidth 25e9 %s", row[i].words);
        json_t *j = json(words);
        const json_t *r = find(json_object_get(j, "modes"), "mode", row[i].mode, "reduced_as", row[i].reduced);
        cr_assert_eq(at(r, "all_gather_gb"), row[i].gather, "%s, %s", words, row[i].mode);
        cr_assert_eq(at(r, "reduce_scatter_gb"), row[i].scatter, "%s, %s", words, row[i].mode);
        cr_assert_eq(at(r, "all_reduce_gb"), row[i].all_reduce, "%s, %s", words, row[i].mode);
        cr_assert_float_eq(at(r, "seconds"), row[i].seconds, 1e-12, "%s, %s", words, row[i].mode);
        json_decref(j);
    }
    json_t *j = json("--params 1e9 --shards 8 --traffic --reduce-dtype fp32");
    cr_assert_eq(json_array_size(json_object_get(j, "modes")), 5, "a row a mode");
    json_decref(j);
}

/* 2 GB on 8 ranks in 0.14 s: algbw 14.29, busbw 25.0 GB/s; each of the three makes the others, and none of them makes
 * 0.245 s = sent / algbw. */
Test(estimate, collective) {
    static const struct { const char *words; double sent, seconds, algbw, busbw; } row[] = {
        {"all_reduce --bytes 2e9 --ranks 8 --seconds 0.14", 3.5e9, 0.14, 2e9 / 0.14, 25e9},
        {"all_reduce --bytes 2e9 --ranks 8 --busbw 25e9", 3.5e9, 0.14, 2e9 / 0.14, 25e9},
        {"all_reduce --bytes 2e9 --ranks 8 --algbw 14285714285.714286", 3.5e9, 0.14, 2e9 / 0.14, 25e9},
        {"all_gather --bytes 2e9 --ranks 8 --seconds 0.07", 1.75e9, 0.07, 2e9 / 0.07, 25e9},
        {"reduce_scatter --bytes 2e9 --ranks 8 --busbw 25e9", 1.75e9, 0.07, 2e9 / 0.07, 25e9},
        {"broadcast --bytes 2e9 --ranks 8 --algbw 25e9", 2e9, 0.08, 25e9, 25e9},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[160];
        snprintf(words, sizeof words, "--collective %s", row[i].words);
        json_t *j = json(words);
        cr_assert_eq(at(j, "sent_bytes"), row[i].sent, "%s", words);
        cr_assert_float_eq(at(j, "seconds"), row[i].seconds, 1e-9, "%s", words);
        cr_assert_float_eq(at(j, "algbw_bytes_per_second") / row[i].algbw, 1, 1e-9, "%s", words);
        cr_assert_float_eq(at(j, "busbw_bytes_per_second") / row[i].busbw, 1, 1e-9, "%s", words);
        json_decref(j);
    }
    cr_assert_eq(run("--collective all_reduce --bytes 2e9 --ranks 8 --seconds 0.14"), 0);
    cr_assert(strstr(text, "14.29 GB/s   bytes / time") && strstr(text, "25.00 GB/s   sent / time = algbw x 1.75"), "%s", text);
    cr_assert_eq(run("--collective all_gather --bytes 2e9 --ranks 8"), 0);
    cr_assert(strstr(text, "1.750 GB") && !strstr(text, "algbw  "), "%s", text);
}

/* 5e8 elements: 2 GB in fp32, 1 GB in bf16. A unit of 218,112,000: FSDP2's 872,448,000 and 2,181,120,000 bytes. */
Test(estimate, bucket_and_unit) {
    json_t *j = json("--bucket 5e8");
    cr_assert_eq(at(find(json_object_get(j, "types"), "type", "bf16", NULL, NULL), "size"), 1e9);
    cr_assert_eq(at(find(json_object_get(j, "types"), "type", "fp32", NULL, NULL), "size"), 2e9);
    json_decref(j);
    static const struct { const char *words, *who; double forward, backward; } row[] = {
        {"--unit-params 218112000 --recipe fsdp_mixed", "PyTorch FSDP2", 872448000, 2181120000},
        {"--unit-params 218112000 --recipe fsdp_mixed", "zero3/fsdp", 872448000, 2181120000},
        {"--unit-params 1000 --recipe fsdp_mixed --reduce-dtype bf16", "PyTorch FSDP2", 4000, 8000},
        {"--unit-params 1000 --recipe fp32", "zero3/fsdp", 8000, 16000},
        {"--unit-params 1000 --recipe mixed16", "zero2", 0, 6000},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        j = json(row[i].words);
        const json_t *r = find(json_object_get(j, "peaks"), "who", row[i].who, NULL, NULL);
        cr_assert(at(r, "forward") == row[i].forward && at(r, "backward") == row[i].backward, "%s", row[i].words);
        json_decref(j);
    }
}

/* A row of zctl estimate --seq: bytes of a layer, GB of a layer or GiB of all, within half of the last digit. */
static void expect_activations(const char *words, const char *kept, const char *recompute, const char *key, double want,
                               double digit) {
    json_t *j = json(words);
    const json_t *r = find(json_object_get(j, "rows"), "kept", kept, "recompute", recompute);
    cr_assert_float_eq(at(r, key), want, digit / 2, "%s, %s, %s: %.6f", words, recompute, key, at(r, key));
    json_decref(j);
}

/* GPT-3's layer (2,048 tokens, width 12288, 96 heads) by Korthikanti et al.: 2.8689 GB; on 8 tensor-parallel ranks 0.5788,
 * with sequence parallelism 0.3586, with selective recomputation too 0.10695; full 0.05033 and 0.00629. */
Test(estimate, activations_of_gpt3) {
    static const struct { const char *cut, *recompute; double gb, digit; } row[] = {
        {"", "none", 2.8689, 1e-4}, {"--tp 8", "none", 0.5788, 1e-4}, {"--tp 8 --sequence-parallel", "none", 0.3586, 1e-4},
        {"--tp 8 --sequence-parallel", "selective", 0.10695, 1e-5}, {"--tp 8", "full", 0.05033, 1e-5},
        {"--tp 8 --sequence-parallel", "full", 0.00629, 1e-5}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[160];
        snprintf(words, sizeof words, "--seq 2048 --micro-batch 1 --dim 12288 --heads 96 --layers 96 --like korthikanti %s", row[i].cut);
        expect_activations(words, "Korthikanti et al.", row[i].recompute, "layer_gb", row[i].gb, row[i].digit);
    }
}

/* Llama 3 8B, 8,192 tokens: bytes a token and layer, and GiB of 32 layers. */
Test(estimate, activations_of_llama) {
    static const struct { const char *kept, *recompute; double tensors, with, gib, with_gib; } row[] = {
        {"every result", "none", 167936, 168072, 41.0, 41.03}, {"SwiGLU's product too", "none", 139264, 139400, 34.0, 34.03},
        {"as this program", "none", 110592, 110728, 27.0, 27.03}, {"as this program", "full", 8192, 8192, 2.0, 2.0}};
    const char words[] = "--model llama3-8b --seq 8192";
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        expect_activations(words, row[i].kept, row[i].recompute, "bytes_per_token", row[i].tensors, 1e-6);
        expect_activations(words, row[i].kept, row[i].recompute, "with_statistics_per_token", row[i].with, 1e-6);
        expect_activations(words, row[i].kept, row[i].recompute, "tensors_gib", row[i].gib, 1e-9);
        expect_activations(words, row[i].kept, row[i].recompute, "total_gib", row[i].with_gib, 0.01);
    }
    /* while a layer is recomputed: 31 inputs and what one layer keeps */
    expect_activations(words, "as this program", "full", "peak", 8192.0 * (31 * 8192 + 110728), 0.5);
    expect_activations("--model llama3-8b --seq 8192 --micro-batch 2 --recompute full", "as this program", "full", "total_gib", 4, 1e-9);
    cr_assert_eq(run(words), 0);
    cr_assert(strstr(text, "110592") && strstr(text, "27.03") && strstr(text, "q = 4096") && strstr(text, "k = 1024"), "%s", text);
    json_t *j = json("--model llama3-8b --seq 8192 --recompute selective");
    cr_assert_eq(json_array_size(json_object_get(j, "rows")), 1);
    json_decref(j);
}

/* Units are named; what the figures leave out is said. */
Test(estimate, table_says_what_it_is) {
    cr_assert_eq(run("--params 1e9 --shards 8"), 0);
    static const char *const words[] = {
        "persistent state, lower bound", "in GB (1e9 bytes)", "in GiB (2^30 bytes)", "TOTAL GB", "TOTAL GiB", "16.000", "5.500",
        "3.750", "2.000", "14.901", "16,000,000,000", "activations, temporaries, communication buffers", "zctl plan FILE"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_assert(strstr(text, words[i]), "%s: %s", words[i], text);
    cr_assert_eq(run("--params 1e9 --shards 8 -o csv"), 0);
    cr_assert(strstr(text, "mode,parameters,parameters_gb,parameters_gib,") == text, "%s", text);
    cr_assert(strstr(text, "\nzero1,2000000000,"), "%s", text);
}

/* The chart of 1e9 on 8 ranks has its four totals on the bars; without gnuplot the package is named. */
Test(estimate, chart) {
    cr_assert_eq(run("--params 1e9 --shards 8 --svg -"), 0, "%s", text);
    static const char *const words[] = {"<svg", ">16.00<", ">5.50<", ">3.75<", ">2.00<", ">zero3/fsdp<", "</svg>"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_assert(strstr(text, words[i]), "%s: %s", words[i], text);
    char path[] = "/tmp/zt-estimate-XXXXXX", line[200];
    close(mkstemp(path));
    snprintf(line, sizeof line, "--params 1e9 --shards 8 --svg %s", path);
    cr_assert_eq(run(line), 0, "%s", text);
    cr_assert(strstr(text, "16.000"), "the table comes with the chart");
    FILE *f = fopen(path, "r");
    cr_assert(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    cr_assert(strstr(text, ">16.00<") && strstr(text, "</svg>"));
    setenv("PATH", "/nowhere", 1);
    FILE *p = popen("ZCTL_OUTPUT= " ZCTL " estimate --params 1e9 --svg - 2>&1", "r");
    cr_assert(p);
    text[fread(text, 1, sizeof text - 1, p)] = '\0';
    cr_assert_eq(WEXITSTATUS(pclose(p)), 2);
    cr_assert(strstr(text, "gnuplot-nox"), "%s", text);
}

/* Refused with exit code 2, by the option's name, in one line. */
Test(estimate, refusals) {
    static const struct { const char *words, *names; } row[] = {
        {"", "--params"},
        {"--shards 8", "--params"},
        {"--params 1e300", "--params"},
        {"--params nan", "--params"},
        {"--params inf", "--params"},
        {"--params -1", "--params"},
        {"--params 0", "--params"},
        {"--params 1e9.5", "--params"},
        {"--params 1.5", "is not whole"},
        {"--params 1e-9", "is not whole"},
        {"--params 7B", "write 7e9"},
        {"--params 7.5B", "write 7.5e9"},
        {"--params 124M", "write 124e6"},
        {"--params 1e9B", "suffixes are not read"},
        {"--params 1,000,000", "separators"},
        {"--params 1_000", "separators"},
        {"--params 0x10", "--params"},
        {"--params ' 1e9'", "--params"},
        {"--params '1e9 '", "--params"},
        {"--params ''", "--params"},
        {"--params +5", "--params"},
        {"--params 1e16", "--params"},
        {"--params 9223372036854775808", "--params"},
        {"--params 18446744073709551617", "--params"},
        {"--params 1e99999999999999999999", "--params"},
        {"--params 11111111111111111111111111111111111111111111e-40", "--params"},
        {"--params 1e9 --model gpt2-124m", "--model"},
        {"--model gpt2-125m", "gpt2-124m"},
        {"--params 1e9 --shards 0", "--shards"},
        {"--params 1e9 --shards -8", "--shards"},
        {"--params 1e9 --shards '8 shards'", "--shards"},
        {"--params 1e9 --shards 2.5", "--shards"},
        {"--params 1e9 --shards 1e9", "--shards"},
        {"--params 1e9 --shards 1e5 --replicas 1e5", "ranks"},
        {"--params 1e9 --replicas 0", "--replicas"},
        {"--params 1e9 --tp 0", "--tp"},
        {"--params 1e9 --tp-replicated 5", "--tp"},
        {"--params 1e9 --tp 2 --tp-replicated 2e9", "--tp-replicated"},
        {"--params 1e9 --trainable 2e9", "--trainable"},
        {"--params 1e9 --trainable 1e7 --lora-params 5", "--lora-params"},
        {"--params 1e9 --trainable 1e7 --tp 2", "--tp"},
        {"--params 1e9 --recipe mixed61", "mixed16"},
        {"--params 1e9 --like megatron", "--like"},
        {"--params 1e9 --like deepspeed --recipe fp32", "--recipe"},
        {"--params 1e9 --like deepspeed --replicas 2", "--replicas"},
        {"--params 1e9 --shards 12 --like deepspeed", "--node-size"},
        {"--params 1e15 --shards 1048576 --like deepspeed", "more bytes than can be counted"},
        {"--params 1e9 --largest-layer 5", "--largest-layer"},
        {"--params 1e9 --like accelerate --tp 2", "--tp"},
        {"--params 1e9 --weights-only --traffic", "--traffic"},
        {"--params 1e9 --weights-only --recipe fp32", "--recipe"},
        {"--params 1e9 --traffic --svg x", "--svg"},
        {"--params 1e9 --traffic --like deepspeed", "--like"},
        {"--params 1e9 --bandwidth 25e9", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth 0", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth -1", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth nan", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth 1e400", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth 1e-320", "--bandwidth"},
        {"--params 1e9 --traffic --bandwidth 25GB/s", "write 25e9"},
        {"--collective all_reduce --bytes 2e9 --ranks 8 --seconds 1e-320", "--seconds"},
        {"--collective all_reduce --bytes 2e9 --ranks 8 --busbw 1e-9", "--busbw"},
        {"--params 1e9 --traffic --reduce-dtype int8", "--reduce-dtype"},
        {"--params 1e9 --traffic --recipe fp32 --reduce-dtype bf16", "--reduce-dtype"},
        {"--params 1e15 --shards 8 --traffic --micro-steps 1e6", "more bytes than can be counted"},
        {"--collective allreduce --bytes 1 --ranks 2", "all_reduce"},
        {"--collective all_reduce --bytes 2e9", "--ranks"},
        {"--collective all_reduce --bytes 2e9 --ranks 1", "--ranks"},
        {"--collective all_reduce --bytes 0 --ranks 8", "--bytes"},
        {"--collective all_reduce --bytes 2GB --ranks 8", "write 2e9"},
        {"--collective all_reduce --bytes 2e9 --ranks 8 --seconds 0", "--seconds"},
        {"--collective all_reduce --bytes 2e9 --ranks 8 --seconds 0.14 --algbw 1e9", "--algbw"},
        {"--collective all_reduce --bytes 2e9 --ranks 8 --params 1e9", "--params"},
        {"--seconds 1 --params 1e9", "--seconds"},
        {"--bucket 0", "--bucket"},
        {"--bucket 5e8 --shards 8", "--shards"},
        {"--unit-params x", "--unit-params"},
        {"--params 1e9 --micro-batch 0", "--micro-batch"},
        {"--params 1e9 --svg /nowhere/at/all.svg", "/nowhere/at/all.svg"},
        {"--seq 0 --model llama3-8b", "--seq"},
        {"--seq 8192", "--model"},
        {"--seq 8192 --params 1e9", "--params"},
        {"--seq 8192 --model llama3-8c", "llama3-8b"},
        {"--seq 8192 --model llama3-8b --dim 5", "--dim"},
        {"--seq 8192 --dim 100 --heads 3 --layers 1", "--heads 3"},
        {"--seq 8192 --model llama3-8b --recompute half", "--recompute"},
        {"--seq 8192 --model llama3-8b --tp 3", "--tp 3"},
        {"--seq 8192 --model llama3-8b --sequence-parallel", "--tp"},
        {"--seq 8190 --model llama3-8b --tp 8 --sequence-parallel", "--seq 8190"},
        {"--seq 8192 --model llama3-8b --like korthikanti", "korthikanti"},
        {"--seq 8192 --model llama3-8b --like deepspeed", "--like"},
        {"--params 1e9 --like korthikanti", "--like"},
        {"--seq 2e8 --dim 16384 --heads 128 --layers 126", "more bytes than can be counted"},
        {"--params 1e9 --recompute full", "--recompute"},
        {"1e9", "too much"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        cr_assert_eq(run(row[i].words), 2, "%s: %s", row[i].words, text);
        cr_assert(strstr(text, row[i].names), "%s: %s", row[i].words, text);
        cr_assert(strncmp(text, "zctl: ", 6) == 0 && strchr(text, '\n') == text + strlen(text) - 1, "%s: %s", row[i].words,
                  text);
    }
}

/* Numbers as they may be written. */
Test(estimate, numbers) {
    static const struct { const char *words; int64_t n; } row[] = {
        {"1e9", 1000000000}, {"1E9", 1000000000}, {"1e+9", 1000000000}, {"1.0e9", 1000000000}, {"7.5e9", 7500000000},
        {"8030261248", 8030261248}, {"0001000", 1000}, {"1000e-3", 1}, {"1e15", 1000000000000000},
        {"123456789.012345e6", 123456789012345}, {"999999999999999", 999999999999999}, {"2.50e1", 25},
        {"1.00000000000000000000000000000000000000000000000e3", 1000}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char words[160];
        snprintf(words, sizeof words, "--params %s", row[i].words);
        json_t *j = json(words);
        cr_assert_eq((int64_t)json_integer_value(json_object_get(j, "parameters")), row[i].n, "%s", words);
        json_decref(j);
    }
}
