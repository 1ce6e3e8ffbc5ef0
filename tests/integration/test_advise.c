/* SPDX-License-Identifier: Apache-2.0 */
/* A run that ends for want of memory, asked what would have helped, and run again with the first answer: it
 * succeeds and needs what was told, to the byte. Where the plan says that it runs out, it did. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "tests/integration/harness.h"

static int64_t whole(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    cr_assert(json_is_integer(v), "%s", key);
    return json_integer_value(v);
}

static const char *word(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    cr_assert(s, "%s", key);
    return s;
}

/* The place, the request and what was live: the plan's and the run's. */
static void same_place(const json_t *doc) {
    const json_t *plan = json_object_get(doc, "oom"), *run = json_object_get(doc, "measured_oom"), *v;
    static const char *const words[] = {"phase", "tag", "what", "where", "location", "cause"},
                      *const numbers[] = {"request_bytes", "capacity_bytes", "reserved_bytes", "allocated_bytes"};
    const char *key;
    cr_assert(json_is_object(run) && json_is_object(plan));
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_assert_str_eq(word(plan, words[i]), word(run, words[i]), "%s", words[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cr_assert_eq(whole(plan, numbers[i]), whole(run, numbers[i]), "%s", numbers[i]);
    json_object_foreach(json_object_get(plan, "by_tag"), key, v)
        cr_assert_eq(json_integer_value(v), whole(json_object_get(run, "by_tag"), key), "%s", key);
}

static int64_t reserved_peak(struct cluster *c, const char *name) {
    json_t *j = zctl_json(c, "memory %s", name), *row;
    int64_t most = 0;
    size_t i;
    json_array_foreach(json_object_get(j, "ranks"), i, row) {
        int64_t b = whole(json_object_get(row, "measured"), "peak_reserved_bytes");
        most = b > most ? b : most;
    }
    json_decref(j);
    return most;
}

/* A run that cannot fit is refused where plans go with submits, unless forced. */
static const char *force(struct cluster *c) {
    struct output o = zctl(c, 20, "help submit");
    bool has = strstr(o.out, "--force") != NULL;
    output_free(&o);
    return has ? "--force" : "";
}

static void fails_then_succeeds(struct cluster *c, const char *name, const char *limit, int changes, const char *effect) {
    char yaml[600], sets[600] = "";
    snprintf(yaml, sizeof yaml,
             "version: 1\nname: %s\nmodel: {preset: gpt2-nano}\ndataset: {path: data.txt, tokenizer: bytes}\n"
             "training: {steps: 3, seq_len: 64, local_batch_size: 4}\nmemory: {limit_gib: %s}\n"
             "metrics: {warmup_steps: 1}\nparallelism: {mode: ddp}\n", name, limit);
    const char *file = cluster_file(c, "advised.yaml", yaml);
    struct output o = zctl(c, 60, "submit %s -w 2 -f %s", file, force(c));
    cr_assert_eq(o.code, 1, "%s: %s%s", name, o.out, o.err);
    cr_assert(strstr(o.out, "OOM_DEVICE"), "%s: %s", name, o.out);
    output_free(&o);
    json_t *of_run = zctl_json(c, "advise %s", name), *of_file = zctl_json(c, "advise %s --workers 2", file), *set;
    const json_t *first = json_array_get(json_object_get(of_run, "changes"), 0);
    size_t i;
    cr_assert(first, "%s: nothing is advised", name);
    cr_assert_eq(whole(first, "changes"), changes, "%s: %s", name, word(first, "change"));
    cr_assert_str_eq(word(first, "effect"), effect, "%s: %s", name, word(first, "change"));
    cr_assert_str_eq(word(first, "command"), word(json_array_get(json_object_get(of_file, "changes"), 0), "command"));
    same_place(of_run);
    json_array_foreach(json_object_get(first, "set"), i, set)
        snprintf(sets + strlen(sets), sizeof sets - strlen(sets), " --set %s", json_string_value(set));
    o = zctl(c, 60, "submit %s -w 2 -f%s --name %s-2", file, sets, name);
    cr_assert_eq(o.code, 0, "%s:%s: %s%s", name, sets, o.out, o.err);
    output_free(&o);
    char again[80];
    snprintf(again, sizeof again, "%s-2", name);
    cr_assert_eq(reserved_peak(c, again), whole(first, "peak_reserved_bytes"), "%s", name);
    json_decref(of_run);
    json_decref(of_file);
}

Test(advise, a_run_that_ran_out_succeeds_with_the_first_change, .timeout = 300) {
    struct cluster c = {0};
    cluster_init(&c);
    cluster_start(&c, 2);
    cluster_run_file(&c, "data", 1, 2, NULL); /* makes data.txt */
    fails_then_succeeds(&c, "state", "0.021", 1, "same_bits"); /* a mode */
    fails_then_succeeds(&c, "both", "0.012", 2, "same_batch"); /* cut layers and a smaller micro-batch */
    cluster_stop(&c);
}
