/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl explain MODE` as it is typed. Expected figures are the published ones: bytes per parameter of the
 * ZeRO paper and of the recipes, ring volumes of a step. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "core/modes.h"

/* Standard output and error of zctl with these words; the exit code. */
static int run(const char *words, char *out, size_t n) {
    char command[1024];
    snprintf(command, sizeof command, "ZCTL_OUTPUT= " ZCTL " %s 2>&1", words);
    FILE *f = popen(command, "r");
    cr_assert(f);
    size_t got = fread(out, 1, n - 1, f);
    out[got] = '\0';
    int status = pclose(f);
    cr_assert(WIFEXITED(status), "%s", words);
    return WEXITSTATUS(status);
}

static char text[65536];

static json_t *explain(const char *words) {
    char line[512];
    json_error_t e;
    snprintf(line, sizeof line, "explain %s -o json", words);
    cr_assert_eq(run(line, text, sizeof text), 0, "%s: %s", words, text);
    json_t *j = json_loads(text, 0, &e);
    cr_assert(j, "%s: %s", words, text);
    return j;
}

static double at(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static const json_t *find(const json_t *rows, const char *key, const char *value) {
    size_t i;
    const json_t *row;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const char *s = json_string_value(json_object_get(row, key));
        if (s && strcmp(s, value) == 0)
            return row;
    }
    cr_assert_fail("no row with %s %s", key, value);
    return NULL;
}

/* 16, 5.5, 3.75 and 2 bytes per parameter for mixed16 at K = 8 (16 / 16.0 GB for 1e9); fp32: 16, 9, 5.5, 2;
 * three modes more; recipes of ddp: 16, 16, 16, 18, 12, 8. */
Test(explain, bytes_per_parameter) {
    static const struct { const char *words, *recipe; double p, g, o; } row[] = {
        {"ddp", "mixed16", 2, 2, 12},      {"zero1", "mixed16", 2, 2, 1.5},
        {"zero2", "mixed16", 2, 0.25, 1.5}, {"zero3", "mixed16", 0.25, 0.25, 1.5},
        {"fsdp", "mixed16", 0.25, 0.25, 1.5}, {"hsdp", "mixed16", 0.25, 0.25, 1.5},
        {"ddp", "fp32", 4, 4, 8},          {"zero1", "fp32", 4, 4, 1},
        {"zero2", "fp32", 4, 0.5, 1},      {"zero3", "fp32", 0.5, 0.5, 1},
        {"ddp", "mixed16_g32", 2, 4, 12},  {"ddp", "mixed16_nomaster", 2, 2, 8},
        {"ddp", "frozen16", 4, 4, 8},
        {"ddp", "pure_bf16", 2, 2, 4},     {"fsdp", "fsdp_mixed", 0.5, 0.5, 1},
        {"zero3 --shard 4", "fp32", 1, 1, 2}, {"zero1 --shard 3", "fp32", 4, 4, 8.0 / 3},
        {"zero2 --shard 1", "fp32", 4, 4, 8}, {"zero3 --replicate 4 --shard 2", "fp32", 2, 2, 4},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        json_t *j = explain(row[i].words);
        const json_t *r = find(json_object_get(j, "bytes_per_parameter"), "recipe", row[i].recipe);
        cr_assert_float_eq(at(r, "parameters"), row[i].p, 1e-12, "%s", row[i].words);
        cr_assert_float_eq(at(r, "gradients"), row[i].g, 1e-12, "%s", row[i].words);
        cr_assert_float_eq(at(r, "optimizer"), row[i].o, 1e-12, "%s", row[i].words);
        cr_assert_float_eq(at(r, "total"), row[i].p + row[i].g + row[i].o, 1e-12, "%s", row[i].words);
        json_decref(j);
    }
}

/* T-VOL: ddp 7 (fp32), 3.5 (bf16); fsdp 7 (bf16, reduced as fp32), 5.25 (all bf16), 3.5 (kept). T-HSDPVOL:
 * all-gather 3, reduce-scatter 3, all-reduce 1. */
Test(explain, bytes_per_step) {
    static const struct { const char *words, *reduced; double gather, scatter, all_reduce; } row[] = {
        {"ddp --recipe fp32", "fp32", 0, 0, 7},
        {"ddp --recipe mixed16", "bf16", 0, 0, 3.5},
        {"zero1 --recipe mixed16", "bf16", 1.75, 1.75, 0},
        {"fsdp --recipe fsdp_mixed", "fp32", 3.5, 3.5, 0},
        {"fsdp --recipe fsdp_mixed", "bf16", 3.5, 1.75, 0},
        {"SHARD_GRAD_OP --recipe fsdp_mixed", "bf16", 1.75, 1.75, 0},
        {"hsdp --recipe fsdp_mixed --shard 4 --replicate 2", "fp32", 3, 3, 1},
        {"hybrid_shard --recipe fsdp_mixed --shard 4", "fp32", 3, 3, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        json_t *j = explain(row[i].words);
        const json_t *r = find(json_object_get(j, "sent_bytes_per_parameter"), "reduced_as", row[i].reduced);
        cr_assert_float_eq(at(r, "all_gather"), row[i].gather, 1e-12, "%s", row[i].words);
        cr_assert_float_eq(at(r, "reduce_scatter"), row[i].scatter, 1e-12, "%s", row[i].words);
        cr_assert_float_eq(at(r, "all_reduce"), row[i].all_reduce, 1e-12, "%s", row[i].words);
        json_decref(j);
    }
}

/* Every name there is gets an explanation of the mode that it is, in lines that a terminal shows. */
Test(explain, every_name) {
    for (int i = 0; zt_mode_word(i); i++) {
        const struct zt_mode_word *w = zt_mode_word(i);
        char line[200], head[64];
        snprintf(line, sizeof line, "explain %s", w->word);
        cr_assert_eq(run(line, text, sizeof text), 0, "%s: %s", w->word, text);
        snprintf(head, sizeof head, "%s: ", w->hybrid ? "hsdp" : zt_mode_name(w->mode));
        const char *title = strncmp(text, head, strlen(head)) == 0 ? text : strstr(text, "\n\n");
        cr_assert(title && strncmp(title + (title == text ? 0 : 2), head, strlen(head)) == 0, "%s: %s", w->word, text);
        for (char *p = text; *p; p += strcspn(p, "\n") + 1) {
            cr_assert_leq(strcspn(p, "\n"), 104, "%s: %.*s", w->word, (int)strcspn(p, "\n"), p);
            if (!strchr(p, '\n'))
                break;
        }
    }
}

Test(explain, what_is_said_of_kin) {
    cr_assert_eq(run("explain zero3", text, sizeof text), 0);
    cr_assert(strstr(text, "zero3 and fsdp are one engine with one layout"), "%s", text);
    cr_assert(strstr(text, "DeepSpeed: stage 3"), "%s", text);
    cr_assert_eq(run("explain SHARD_GRAD_OP", text, sizeof text), 0);
    cr_assert(strstr(text, "it is not ZeRO-2"), "%s", text);
    cr_assert_not(strstr(text, "before its backward"), "a kept unit is not gathered again: %s", text);
    cr_assert_eq(run("explain fsdp", text, sizeof text), 0);
    cr_assert(strstr(text, "before its backward"), "%s", text);
    cr_assert_not(strstr(text, "dp_replicate"), "no replicas, nothing over them: %s", text);
    cr_assert_eq(run("explain fsdp --replicate 2", text, sizeof text), 0);
    cr_assert(strstr(text, "dp_replicate"), "%s", text);
}

Test(explain, modes_side_by_side) {
    static const struct { const char *mode; double held, sent, sent_4; } row[] = {
        {"ddp", 16, 7, 7}, {"zero1", 9, 7, 7}, {"zero2", 5.5, 7, 17.5}, {"zero3", 2, 10.5, 42},
        {"fsdp", 2, 10.5, 42}, {"fsdp, keep", 2, 7, 28}, {"hsdp", 4, 10, 40}};
    json_t *j = explain("modes");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const json_t *r = find(json_object_get(j, "modes"), "mode", row[i].mode);
        cr_assert_float_eq(at(r, "bytes_per_parameter"), row[i].held, 1e-12, "%s", row[i].mode);
        cr_assert_float_eq(at(r, "sent_1"), row[i].sent, 1e-12, "%s", row[i].mode);
        cr_assert_float_eq(at(r, "sent_4"), row[i].sent_4, 1e-12, "%s", row[i].mode);
    }
    json_decref(j);
    cr_assert_eq(run("explain modes", text, sizeof text), 0);
    cr_assert(strstr(text, "HYBRID_SHARD") && strstr(text, "optim_grads_params") && strstr(text, "stage 2"), "%s",
              text);
}

/* GPT-2 nano in four shards: a quarter of the root's 65,792 elements are 65,792 bytes, of a block's 198,272 as
 * many; buffers come in grains of 512 bytes: 66,048 + 4 x 198,656. */
Test(explain, a_models_bytes) {
    json_t *j = explain("zero3 --file " EXAMPLES "/quickstart.yaml -w 4");
    const json_t *m = json_object_get(j, "model"), *b = json_object_get(m, "persistent_bytes");
    cr_assert_eq(at(m, "parameters"), 858880);
    cr_assert_eq(at(m, "units"), 5);
    cr_assert_eq(at(b, "parameters"), 860672);
    cr_assert_eq(at(b, "gradients"), 860672);
    cr_assert_eq(at(b, "optimizer"), 2 * 860672);
    json_decref(j);
    j = explain("ddp --file " EXAMPLES "/quickstart.yaml -w 4");
    m = json_object_get(j, "model");
    cr_assert_eq(at(json_object_get(m, "persistent_bytes"), "parameters"), 4 * 858880);
    cr_assert_eq(at(m, "sent_bytes_per_step"), 6 * 858880); /* 2 x 3/4 x 4 bytes */
    json_decref(j);
}

Test(explain, refusals) {
    static const struct { const char *words; int code; const char *says; } row[] = {
        {"explain", 2, "zctl explain needs a MODE|RUN"},
        {"explain zero1 --recipe bf17", 2, "--recipe \"bf17\": no such recipe"},
        {"explain zero1 --recipe fsdp_mixed", 2, "casts what is gathered, and zero1 gathers nothing; see autocast"},
        {"explain zero1 --shard 0", 2, "--shard 0: expected a whole number from 1"},
        {"explain zero1 --file /nonexistent.yaml", 2, "/nonexistent.yaml: cannot be read"},
        {"explain modes --file x", 2, "--file goes with one mode"},
        {"explain hsdp --file " EXAMPLES "/quickstart.yaml -w 3", 2, "2 replicas do not divide 3 workers"},
        {"explain fsdp --file " EXAMPLES "/quickstart.yaml -w 2 --set training.stps=1", 2, "unknown key"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        cr_assert_eq(run(row[i].words, text, sizeof text), row[i].code, "%s: %s", row[i].words, text);
        cr_assert(strstr(text, row[i].says), "%s: %s", row[i].words, text);
    }
}
