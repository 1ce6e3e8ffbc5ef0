/* SPDX-License-Identifier: Apache-2.0 */
/* Fine-tuning on .jsonl examples as a user starts it: the plan's head, a run of two workers with document
 * masks and weighed examples, what its events and metrics say, predicted memory beside measured; a bad
 * line ends a run by file and line. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/harness.h"

static double number(const json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s is not a number", key);
    return json_number_value(v);
}

/* Sums to learn, one an empty line, one too long for a sample. */
static void write_examples(struct cluster *c) {
    static char text[64 * 1024];
    char *p = text;
    for (int i = 0; i < 400; i++) {
        if (i == 7) *p++ = '\n';
        int n = i == 11 ? 90 : i % 9 + 1;
        p += sprintf(p, "{\"prompt\": \"%d + %d = \", \"completion\": \"%0*d\"}\n", i % 10, i / 10 % 10, n,
                     i % 10 + i / 10 % 10);
    }
    cluster_file(c, "sums.jsonl", text);
}

static const char *run_file(struct cluster *c, const char *name, const char *data, const char *extra) {
    static char text[2048], file[64];
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: 2\n"
             "model: {family: gpt2, layers: 2, heads: 2, dim: 32, vocab_size: 256, seq_len_max: 64}\n"
             "dataset: {path: %s, document_masks: true}\n"
             "training: {steps: 30, seq_len: 64, local_batch_size: 2, global_batch_size: 8}\n"
             "optimizer: {lr: 3.0e-3}\nloss: {average: square}\nparallelism: {mode: fsdp}\n%s",
             name, data, extra);
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(c, file, text);
}

static bool has_event(const json_t *events, const char *kind, const char *word) {
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)(uintptr_t)events, i, e)
        if (strcmp(json_string_value(json_object_get(e, "kind")), kind) == 0 &&
            strstr(json_string_value(json_object_get(e, "message")), word)) return true;
    return false;
}

static void check_metrics(struct cluster *c) {
    json_t *rows = zctl_jsonl(c, "metrics sums"), *row;
    double first = 0, last = 0;
    size_t i;
    cr_assert_eq(json_array_size(rows), 30);
    /* At most 9 characters and the end count, behind a prompt of 8; of the one line that is cut, all but the prompt. */
    const double most = 7 * 64 * 10 / 18.0 + (64 - 8);
    json_array_foreach(rows, i, row) {
        double supervised = number(row, "tokens_supervised");
        cr_expect_eq(number(row, "tokens_input"), 8 * 64);
        cr_expect(supervised > 0 && supervised <= most, "step %zu: %.0f", i + 1, supervised);
        cr_expect_eq(number(row, "tokens"), supervised);
        cr_expect(number(row, "tokens_padding") >= 0 && number(row, "tokens_padding") < 8 * 20);
        last = number(row, "loss");
        if (i == 0) first = last;
    }
    cr_expect_lt(last, first - 1.0, "the loss falls: %g, %g", first, last);
    cr_expect_gt(number(json_array_get(rows, 9), "eval_loss"), number(json_array_get(rows, 29), "eval_loss"));
    json_decref(rows);
}

/* Of every window of every rank. */
static void check_memory(struct cluster *c) {
    json_t *j = zctl_json(c, "memory sums"), *rows = json_object_get(j, "ranks"), *row;
    size_t i;
    cr_expect_eq(json_array_size(rows), 2 * 4); /* init, first_step, steady, eval */
    json_array_foreach(rows, i, row)
        cr_expect(json_equal(json_object_get(row, "predicted"), json_object_get(row, "measured")), "%s",
                  json_dumps(row, JSON_COMPACT));
    json_decref(j);
}

Test(sft, a_run_over_examples) {
    struct cluster c;
    cluster_start(&c, 2);
    write_examples(&c);
    char file[512];
    snprintf(file, sizeof file, "%s",
             run_file(&c, "sums", "sums.jsonl", "validation: {fraction: 0.1, every_steps: 10}\n"));
    struct output o = zctl(&c, 60, "plan %s --workers 2", file);
    cr_expect_eq(o.code, 0, "%s", o.err);
    cr_expect(strstr(o.out, "loss      average square: an example of n tokens weighs sqrt(n)"), "%.2000s", o.out);
    output_free(&o);
    o = zctl(&c, 120, "submit -f %s", file);
    cr_assert_eq(o.code, 0, "exit %d: %s%s", o.code, o.out, o.err);
    output_free(&o);
    json_t *events = zctl_jsonl(&c, "events sums");
    cr_expect(has_event(events, "DATA_PACKED", "400 examples and 0 texts"));
    cr_expect(has_event(events, "DATA_CUT", "sums.jsonl:13"));
    cr_expect(has_event(events, "DATA_SKIPPED", "1 empty lines are passed over, the first at"));
    json_decref(events);
    check_metrics(&c);
    check_memory(&c);
    cluster_stop(&c);
}

Test(sft, a_bad_line_ends_the_run_by_file_and_line) {
    struct cluster c;
    cluster_start(&c, 2);
    cluster_file(&c, "bad.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n");
    struct output o = zctl(&c, 60, "submit -f %s", run_file(&c, "bad", "bad.jsonl", ""));
    cr_expect_eq(o.code, 1);
    cr_expect(strstr(o.out, "DATA_ERROR") || strstr(o.err, "DATA_ERROR"), "%s%s", o.out, o.err);
    cr_expect(strstr(o.out, "bad.jsonl:2: the key \"completion\" is missing") ||
                  strstr(o.err, "bad.jsonl:2: the key \"completion\" is missing"),
              "%s%s", o.out, o.err);
    output_free(&o);
    cluster_stop(&c);
}
