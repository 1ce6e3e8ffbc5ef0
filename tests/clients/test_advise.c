/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl advise FILE` as it is typed, without a coordinator. Its first change, typed after --set, is planned to
 * fit by the same command. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[1 << 20], path[64];

static int run(const char *words) {
    char command[2048];
    snprintf(command, sizeof command, "ZCTL_OUTPUT= ZTRAIN_TOKEN_FILE=/nonexistent " ZCTL " %s 2>&1", words);
    FILE *f = popen(command, "r");
    cr_assert(f);
    size_t got = fread(text, 1, sizeof text - 1, f);
    text[got] = '\0';
    int status = pclose(f);
    cr_assert(WIFEXITED(status), "%s", words);
    return WEXITSTATUS(status);
}

static void write_file(void) {
    FILE *f;
    snprintf(path, sizeof path, "/tmp/zt-advise-%d.yaml", (int)getpid());
    f = fopen(path, "w");
    cr_assert(f);
    fputs("version: 1\nname: advised\nmodel: {preset: gpt2-nano}\ndataset: {path: /nowhere, tokenizer: bytes}\n"
          "training: {steps: 20, seq_len: 128, local_batch_size: 4}\nparallelism: {mode: ddp}\n", f);
    cr_assert_eq(fclose(f), 0);
}

static void remove_file(void) { unlink(path); }

static json_t *advise(const char *words, int code) {
    char line[1500];
    json_error_t e;
    snprintf(line, sizeof line, "advise %s --device cpu --workers 2 -o json %s", path, words);
    cr_assert_eq(run(line), code, "%s: %s", words, text);
    json_t *j = json_loads(text, 0, &e);
    cr_assert(j, "%s: %s", words, text);
    return j;
}

static int64_t whole(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    cr_assert(json_is_integer(v), "%s", key);
    return json_integer_value(v);
}

static bool is_true(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    cr_assert(json_is_boolean(v), "%s", key);
    return json_is_true(v);
}

TestSuite(advise, .init = write_file, .fini = remove_file);

Test(advise, the_first_change_fits_when_typed) {
    json_t *j = advise("--budget-gib 0.028", 0), *again;
    const json_t *first = json_array_get(json_object_get(j, "changes"), 0), *shares = json_object_get(json_object_get(j, "base"), "at_peak"), *v;
    const char *key;
    int64_t sum = 0;
    cr_assert_not(is_true(j, "fits"));
    cr_assert(json_is_object(json_object_get(j, "oom")));
    cr_assert_eq(whole(j, "budget_bytes"), (int64_t)(0.028 * 1073741824.0));
    json_object_foreach((json_t *)(uintptr_t)shares, key, v) sum += json_integer_value(v);
    cr_assert_eq(sum, whole(json_object_get(j, "base"), "peak_allocated_bytes"));
    cr_assert_str_eq(json_string_value(json_object_get(first, "command")), "--set parallelism.mode=zero1");
    cr_assert_str_eq(json_string_value(json_object_get(first, "effect")), "same_bits");
    cr_assert_eq(whole(first, "room_bytes"), whole(j, "budget_bytes") - whole(first, "peak_reserved_bytes"));
    again = advise("--budget-gib 0.028 --set parallelism.mode=zero1", 0);
    cr_assert(is_true(again, "fits"));
    cr_assert_eq(whole(json_object_get(again, "base"), "peak_reserved_bytes"), whole(first, "peak_reserved_bytes"));
    cr_assert_eq(json_array_size(json_object_get(again, "changes")), 0);
    json_decref(j);
    json_decref(again);
}

/* 20 MiB, of which 1.7 are free in pieces when 0.75 are asked for: of a peak of 28.4 MiB allocated that is not the cause. */
Test(advise, free_pieces_are_no_cause_of_what_is_too_big) {
    json_t *j = advise("--capacity-gib 0.021", 0);
    const json_t *oom = json_object_get(j, "oom");
    cr_assert_str_eq(json_string_value(json_object_get(oom, "cause")), "fragmentation", "the allocator's word: pieces too small");
    cr_assert_gt(whole(json_object_get(j, "base"), "peak_allocated_bytes"), whole(oom, "capacity_bytes"));
    cr_assert_str_eq(json_string_value(json_object_get(oom, "where")), "forward, state most of it");
    json_decref(j);
    static const struct { const char *gib; bool pieces; } row[] = {{"0.021", false}, {"0.031", true}};
    for (size_t i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof line, "plan %s --device cpu --workers 2 --capacity-gib %s", path, row[i].gib);
        cr_assert_eq(run(line), 7);
        cr_assert_eq(strstr(text, "what is free is in pieces") != NULL, row[i].pieces, "%s", text);
    }
}

/* 92 % of what is given, and of memory.limit_gib where that is less. */
Test(advise, the_budget) {
    json_t *j = advise("--capacity-gib 1", 0);
    cr_assert_eq(whole(j, "limit_bytes"), 1 << 30);
    cr_assert_eq(whole(j, "budget_bytes"), (int64_t)(0.92 * (1 << 30)));
    cr_assert(is_true(j, "fits"));
    json_decref(j);
    j = advise("--capacity-gib 1 --set memory.limit_gib=0.5 --budget-gib 0.75", 0);
    cr_assert_eq(whole(j, "limit_bytes"), 1 << 29);
    cr_assert_eq(whole(j, "budget_bytes"), 1 << 29);
    json_decref(j);
}

Test(advise, nothing_fits) {
    json_t *j = advise("--budget-gib 0.003", 7);
    const json_t *s = json_object_get(j, "smallest");
    cr_assert_eq(json_array_size(json_object_get(j, "changes")), 0);
    cr_assert(json_is_object(s));
    cr_assert_lt(whole(s, "room_bytes"), 0);
    cr_assert_gt(json_array_size(json_object_get(j, "partial")), 0);
    json_decref(j);
    char line[200];
    snprintf(line, sizeof line, "advise %s --device cpu --workers 2 --budget-gib 0.003", path);
    cr_assert_eq(run(line), 7);
    cr_assert(strstr(text, "nothing that was tried fits; the smallest peak is "), "%s", text);
}

Test(advise, a_page_for_people) {
    char line[200];
    snprintf(line, sizeof line, "advise %s --device cpu --workers 2 --budget-gib 0.028", path);
    cr_assert_eq(run(line), 0, "%s", text);
    static const char *const parts[] = {"planned: ", "helps: ", "changes that fit, the cheapest first:", "mode: ddp -> zero1",
                                        "1: --set parallelism.mode=zero1", "the same bits", "estimate",
                                        "table for choosing a mode"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_assert(strstr(text, parts[i]), "no \"%s\" in:\n%s", parts[i], text);
}

Test(advise, the_table_for_choosing_a_mode) {
    json_t *j = advise("--budget-gib 0.028 --select", 0);
    const json_t *rows = json_object_get(j, "selection"), *row;
    size_t i;
    int first = 0;
    cr_assert_eq(json_array_size(rows), 8);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        cr_assert_gt(json_string_length(json_object_get(row, "numbers")), 0);
        if (is_true(row, "first")) {
            first++;
            cr_assert(is_true(row, "holds"));
            cr_assert_str_eq(json_string_value(json_object_get(row, "take")), "zero1");
        }
    }
    cr_assert_eq(first, 1);
    json_decref(j);
}

Test(advise, bad_input) {
    static const struct { const char *words; int code; const char *says; } row[] = {
        {"--budget-gib 0", 2, "a number above 0"},     {"--budget-gib -1", 2, "a number above 0"},
        {"--budget-gib nan", 2, "a number above 0"},   {"--budget-gib inf", 2, "a number above 0"},
        {"--budget-gib 1e-9", 2, "less than one segment"},
        {"--set parallelism.mode=zero9", 2, "zero9"},  {"--set training.local_batch_size=0", 2, "out of range"},
        {"--set parallelism.data_parallel_shard_degree=3", 2, "3"}, {"--device nosuch", 3, "nosuch"},
        {"--step 1", 2, "has no option --step"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char line[400];
        snprintf(line, sizeof line, "advise %s --workers 2 %s", path, row[i].words);
        cr_assert_eq(run(line), row[i].code, "%s: %s", row[i].words, text);
        cr_assert(strstr(text, row[i].says), "%s: %s", row[i].words, text);
    }
    cr_assert_eq(run("advise /nonexistent/run.yaml"), 2, "%s", text);
    cr_assert_neq(run("advise some-run"), 0);
}
