/* SPDX-License-Identifier: Apache-2.0 */
/* What a run says about the inside of a step, through real daemons: the collectives of captured steps add up to
 * the metrics of the same step and rank, a rank that stood still is named, a newer generation's steps replace
 * an older one's, and the state folder alone answers the same. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "tests/integration/harness.h"

static double number(const json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s is not a number in %.400s", key, json_dumps(row, JSON_COMPACT));
    return json_number_value(v);
}

static const char *text(const json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    cr_assert(s != NULL, "%s is no text in %.400s", key, json_dumps(row, JSON_COMPACT));
    return s;
}

static bool near(double a, double b) { return fabs(a - b) < 1e-9; }

static void submit(struct cluster *c, const char *file, const char *more) {
    struct output o = zctl(c, 30, "submit %s%s", file, more);
    cr_assert_eq(o.code, 0, "submit: exit %d: %s", o.code, o.err);
    output_free(&o);
}

/* Exposed time of one pair in `exposed_by` of a metrics row, 0 when it is not there. */
static double exposed_by(const json_t *row, const char *group, const char *kind) {
    json_t *list = json_object_get(row, "exposed_by"), *e;
    size_t i;
    json_array_foreach(list, i, e) {
        if (strcmp(text(e, "group"), group) == 0 && strcmp(text(e, "kind"), kind) == 0) return number(e, "seconds");
    }
    return 0;
}

/* Rank rows of metrics: exposed_by sums to exposed, and to what the step's collectives say. */
static void check_step(const json_t *explained, const json_t *rank_rows) {
    json_t *row, *sum, *coll;
    size_t i, k;
    int checked = 0;
    json_array_foreach(rank_rows, i, row) {
        double exposed = 0, sent = 0, by = 0, stall = 0;
        if (number(row, "step") != number(explained, "step")) continue;
        cr_assert_eq(number(row, "generation"), number(explained, "generation"));
        json_array_foreach(json_object_get(row, "exposed_by"), k, sum) by += number(sum, "seconds");
        cr_expect(near(by, number(row, "exposed_comm_seconds")), "exposed_by sums to %.9f, exposed is %.9f", by,
                  number(row, "exposed_comm_seconds"));
        json_array_foreach(json_object_get(explained, "summary"), k, sum) {
            if (number(sum, "rank") != number(row, "rank") || json_is_true(json_object_get(sum, "control"))) continue;
            cr_expect(near(number(sum, "exposed_seconds"), exposed_by(row, text(sum, "group"), text(sum, "kind"))),
                      "%s/%s", text(sum, "group"), text(sum, "kind"));
            exposed += number(sum, "exposed_seconds");
            stall += number(sum, "stall_seconds");
            sent += number(sum, "sent_bytes");
        }
        cr_expect(near(exposed, number(row, "exposed_comm_seconds")));
        cr_expect_leq(stall, number(row, "stall_seconds") + 1e-9);
        cr_expect_eq(sent, number(row, "sent_bytes"));
        checked++;
    }
    cr_assert_eq(checked, (int)json_array_size(json_object_get(explained, "ranks")));
    json_array_foreach(json_object_get(explained, "collectives"), k, coll) {
        cr_expect_leq(number(coll, "queued_seconds"), number(coll, "started_seconds"));
        cr_expect_leq(number(coll, "started_seconds"), number(coll, "ended_seconds"));
        cr_expect(near(number(coll, "seconds"), number(coll, "transfer_seconds") + number(coll, "wait_seconds")));
        cr_expect(strlen(text(coll, "reason")) > 0);
    }
}

static bool holds(const json_t *explained, const int *steps, size_t n) {
    json_t *held = json_object_get(explained, "held");
    bool same = json_array_size(held) == n;
    for (size_t i = 0; i < n && same; i++)
        same = json_integer_value(json_object_get(json_array_get(held, i), "step")) == steps[i];
    return same;
}

Test(explain, collectives_add_up_to_the_metrics) {
    static const int steps[] = {1, 2, 3, 5, 10, 12};
    struct cluster c;
    char state[300];
    cluster_start(&c, 3);
    submit(&c, cluster_run_file(&c, "sums", 12, 3, "metrics: {log_freq: 5}\n"), "");
    wait_run(&c, "sums", "SUCCEEDED", 60);
    json_t *rows = zctl_jsonl(&c, "metrics sums --rank all");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        json_t *j = zctl_json(&c, "explain sums --step %d --rank all", steps[i]);
        cr_assert(holds(j, steps, sizeof steps / sizeof *steps), "%s", json_dumps(json_object_get(j, "held"), 0));
        cr_assert_eq(json_array_size(json_object_get(j, "missing_ranks")), 0);
        cr_assert_eq(json_array_size(json_object_get(j, "ranks")), 3);
        check_step(j, rows);
        /* root and two blocks, once per window, and the exchange of loss and counts */
        cr_expect_eq(json_array_size(json_object_get(j, "collectives")), 3 * 4);
        json_decref(j);
    }
    json_decref(rows);

    /* without a step: the newest that is held; one rank: the slowest */
    json_t *newest = zctl_json(&c, "explain sums");
    cr_expect_eq(number(newest, "step"), 12);
    json_t *first = json_array_get(json_object_get(newest, "collectives"), 0);
    cr_expect_eq(number(first, "rank"), number(newest, "slowest_rank"));
    cr_expect_str_eq(text(first, "group"), "dp_replicate");
    cr_expect_str_eq(text(first, "dtype"), "fp32");
    cr_expect_eq(json_array_size(json_object_get(first, "group_ranks")), 3);

    struct output table = zctl(&c, 20, "explain sums --step 10 --rank 1 --unit block0");
    cr_assert_eq(table.code, 0, "%s", table.err);
    cr_expect(strstr(table.out, "generation 1, step 10, 3 ranks\n") != NULL, "%s", table.out);
    cr_expect(strstr(table.out, "gradients of the window") != NULL && strstr(table.out, "block0  all_reduce") != NULL, "%s", table.out);
    cr_expect_null(strstr(table.out, "block1"), "%s", table.out);
    cr_expect(strstr(table.out, "waited for: rank ") != NULL, "%s", table.out);
    output_free(&table);

    static const struct { const char *args; int code; const char *says; } refused[] = {
        {"explain sums --step 7", 3, "step 7 of run sums is not held; held are 1-3, 5, 10, 12 ("},
        {"explain sums --rank 3", 3, "rank 3 has not told about step 12"},
        {"explain sums --unit blok0", 3, "there are: block1, block0, root"},
        {"explain sums --step 1:3", 2, "takes one step"},
        {"explain sum", 3, "did you mean \"sums\""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct output o = zctl(&c, 20, "%s", refused[i].args);
        cr_expect_eq(o.code, refused[i].code, "%s: exit %d", refused[i].args, o.code);
        cr_expect(strstr(o.err, refused[i].says) != NULL, "%s: %s", refused[i].args, o.err);
        output_free(&o);
    }
    kill(c.coord, SIGTERM);
    snprintf(state, sizeof state, "%s/coord", c.dir);
    json_t *offline = zctl_json(&c, "--state %s explain sums", state);
    cr_expect(json_equal(offline, newest));
    json_decref(offline);
    json_decref(newest);
    cluster_stop(&c);
}

/* Whether some step that is held says that rank 1 held up the others for long. */
static bool named(struct cluster *c) {
    json_t *newest = zctl_json(c, "explain still"), *h;
    bool found = false;
    size_t i;
    json_array_foreach(json_object_get(newest, "held"), i, h) {
        struct output o = zctl(c, 20, "explain still --step %d -o json", (int)number(h, "step"));
        json_t *j = o.code == 0 ? json_loads(o.out, 0, NULL) : NULL; /* it may have made room for newer ones */
        output_free(&o);
        json_t *ranks = json_object_get(j, "ranks");
        if (json_array_size(ranks) == 2 && number(json_array_get(ranks, 1), "held_up_seconds") > 0.4) {
            found = true;
            cr_expect_eq(number(j, "slowest_rank"), 1);
            cr_expect_gt(number(json_array_get(ranks, 0), "waited_seconds"), 0.4);
        }
        json_decref(j);
    }
    json_decref(newest);
    return found;
}

/* All traces that were under way have arrived: the newest step stays the same. */
static void until_told(struct cluster *c) {
    double before = -1, now = 0;
    for (double end = now_s() + 5; now_s() < end && now != before; nap_ms(150)) {
        json_t *j = zctl_json(c, "explain still");
        before = now;
        now = number(j, "step");
        json_decref(j);
    }
}

/* With shards, replicas, slices, prefetch and reductions in flight: two streams at once, and the sums still hold. */
Test(explain, sums_hold_in_every_group) {
    static const struct { const char *name, *set, *groups[3]; } runs[] = {
        {"fsdp4", " --set parallelism.mode=fsdp --set parallelism.prefetch=2 --set parallelism.max_inflight_reduces=2",
         {"dp_shard"}},
        {"hsdp", " --set parallelism.mode=fsdp --set parallelism.data_parallel_replicate_degree=2"
                 " --set parallelism.data_parallel_shard_degree=2 --set training.global_batch_size=16",
         {"dp_shard", "dp_replicate"}},
        {"slices", " --set parallelism.mode=fsdp --set parallelism.reshard_after_forward=2", {"dp_shard", "dp_reshard"}},
        {"zero2", " --set parallelism.mode=zero2", {"dp_shard"}},
    };
    struct cluster c;
    cluster_start(&c, 4);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char file[512];
        snprintf(file, sizeof file, "%s", cluster_run_file(&c, runs[i].name, 4, 4, ""));
        submit(&c, file, runs[i].set);
        wait_run(&c, runs[i].name, "SUCCEEDED", 60);
        json_t *rows = zctl_jsonl(&c, "metrics %s --rank all", runs[i].name);
        for (int step = 1; step <= 4; step++) {
            json_t *j = zctl_json(&c, "explain %s --step %d --rank all", runs[i].name, step), *sum;
            size_t k;
            bool seen[3] = {false};
            check_step(j, rows);
            json_array_foreach(json_object_get(j, "summary"), k, sum) {
                bool known = json_is_true(json_object_get(sum, "control"));
                for (int g = 0; g < 3 && runs[i].groups[g]; g++) {
                    bool it = strcmp(text(sum, "group"), runs[i].groups[g]) == 0;
                    seen[g] |= it;
                    known |= it;
                }
                cr_expect(known, "%s: group %s", runs[i].name, text(sum, "group"));
            }
            for (int g = 0; g < 3 && runs[i].groups[g]; g++)
                cr_expect(seen[g], "%s: nothing in group %s", runs[i].name, runs[i].groups[g]);
            json_decref(j);
        }
        json_decref(rows);
    }
    cluster_stop(&c);
}

/* Rank 1 stands still for half a second in some step, and is the one that this step's explanation names. Then
 * both stand still, so that the step is among the newest while we look. It may have stood inside a collective,
 * where nobody can tell it from a slow transfer: then once more. */
Test(explain, the_rank_that_stood_still_is_named) {
    struct cluster c;
    cluster_init(&c);
    cluster_start_coord(&c);
    cluster_start_worker(&c, 0, "--name w0");
    cluster_start_worker(&c, 1, "--name w1");
    submit(&c, cluster_run_file(&c, "still", 100000, 2, "metrics: {log_freq: 1}\n"), " --set training.local_batch_size=32");
    wait_step(&c, "still", 5, 60);
    json_t *status = zctl_json(&c, "status still");
    const char *second = text(json_array_get(json_object_get(status, "ranks"), 1), "worker");
    int victim = second[strlen(second) - 1] - '0';
    cr_assert(victim == 0 || victim == 1, "%s", second);
    pid_t child = trainer_of(c.worker[victim]), other = trainer_of(c.worker[1 - victim]);
    cr_assert(child > 0 && other > 0);
    bool found = false;
    for (int i = 0; i < 8 && !found; i++) {
        kill(child, SIGSTOP);
        nap_ms(600);
        kill(child, SIGCONT);
        nap_ms(50);
        kill(child, SIGSTOP);
        kill(other, SIGSTOP);
        until_told(&c);
        found = named(&c);
        kill(child, SIGCONT);
        kill(other, SIGCONT);
    }
    cr_expect(found, "no step says that rank 0 waited for rank 1");
    struct output o = zctl(&c, 20, "cancel still");
    cr_expect_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    json_decref(status);
    cluster_stop(&c);
}

/* After a restart the steps of the new generation take the place of the old ones, and none is shown twice. */
Test(explain, a_newer_generation_replaces) {
    struct cluster c;
    cluster_start(&c, 2);
    submit(&c, cluster_run_file(&c, "again", 40, 2, "metrics: {log_freq: 10}\nrestart: {backoff_seconds: {initial: 0.1}}\n"),
           " --set training.local_batch_size=8");
    wait_step(&c, "again", 3, 60);
    pid_t child = trainer_of(c.worker[1]);
    if (child > 0) kill(child, SIGKILL);
    wait_run(&c, "again", "SUCCEEDED", 90);
    json_t *status = zctl_json(&c, "status again"), *rows = zctl_jsonl(&c, "metrics again --rank all");
    double generation = number(status, "generation");
    static const int steps[] = {1, 2, 3, 10, 20, 30, 40};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        json_t *j = zctl_json(&c, "explain again --step %d --rank all", steps[i]);
        cr_expect_eq(number(j, "generation"), generation);
        check_step(j, rows);
        json_decref(j);
    }
    json_decref(status);
    json_decref(rows);
    cluster_stop(&c);
}

/* Every rank tells what it found after its first update; fp32 is fp32 everywhere and has no master. */
Test(explain, number_formats_are_told_by_every_rank) {
    struct cluster c;
    cluster_start(&c, 2);
    submit(&c, cluster_run_file(&c, "types", 2, 2, ""), " --set parallelism.mode=fsdp");
    wait_run(&c, "types", "SUCCEEDED", 60);
    json_t *j = zctl_json(&c, "dtypes types"), *ranks = json_object_get(j, "ranks"), *r, *t;
    size_t i, k;
    cr_assert_eq(json_array_size(ranks), 2);
    cr_expect_eq(number(j, "world"), 2);
    cr_expect(json_is_false(json_object_get(j, "mixed")));
    json_array_foreach(ranks, i, r) {
        cr_expect_eq(number(r, "rank"), (double)i);
        cr_expect_eq(number(r, "step"), 1);
        cr_expect_str_eq(text(r, "recipe"), "fp32");
        cr_expect_eq(json_array_size(json_object_get(r, "types")), 11);
        json_array_foreach(json_object_get(r, "types"), k, t) {
            bool master = strcmp(text(t, "what"), "master") == 0;
            bool frozen = strcmp(text(t, "what"), "frozen") == 0; /* nothing is */
            cr_expect_eq(json_is_null(json_object_get(t, "stored")), master || frozen, "%s", text(t, "what"));
            if (!master) cr_expect_str_eq(text(t, "configured"), "fp32");
            if (!json_is_null(json_object_get(t, "used"))) cr_expect_str_eq(text(t, "used"), "fp32");
        }
    }
    struct output o = zctl(&c, 20, "dtypes types");
    cr_expect_eq(o.code, 0, "%s", o.err);
    cr_expect(strstr(o.out, "\nranks 0-1: recipe fp32, read after step 1\n") != NULL, "%s", o.out);
    output_free(&o);
    json_t *rows = zctl_jsonl(&c, "metrics types");
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 0), "loss_scale")));
    cr_expect(json_is_false(json_object_get(json_array_get(rows, 0), "skipped")));
    cr_expect_eq(number(json_array_get(rows, 1), "skipped_steps"), 0);
    cr_expect_leq(number(json_array_get(rows, 1), "clip_coefficient"), 1);
    json_decref(rows);
    json_decref(j);
    cluster_stop(&c);
}

/* A learning rate that drives the loss out of bounds: steps are skipped, the scale comes down, and all who look
 * are told, but not of each one. */
Test(explain, skipped_steps_and_the_loss_scale_are_told) {
    struct cluster c;
    cluster_start(&c, 2);
    submit(&c, cluster_run_file(&c, "scaled", 6, 2, "precision: {recipe: fp16, reduce_dtype: fp16, nonfinite: skip}\n"),
           " --set optimizer.lr=30000");
    wait_run(&c, "scaled", "SUCCEEDED", 60);
    json_t *rows = zctl_jsonl(&c, "metrics scaled"), *ranks = zctl_jsonl(&c, "metrics scaled --rank all"), *row;
    size_t i;
    cr_assert_eq(json_array_size(rows), 6);
    json_array_foreach(rows, i, row) {
        bool skipped = json_is_true(json_object_get(row, "skipped"));
        cr_expect_eq(skipped, i > 0, "step %zu", i + 1);
        cr_expect_eq(number(row, "skipped_steps"), (double)i);
        /* 2^16, halved by each step that was skipped before */
        cr_expect_eq(number(row, "loss_scale"), 65536 / pow(2, i > 1 ? (double)i - 1 : 0));
        cr_expect_eq(json_is_null(json_object_get(row, "clip_coefficient")), skipped);
        json_t *first = json_array_get(ranks, 2 * i), *second = json_array_get(ranks, 2 * i + 1);
        cr_expect_eq(number(first, "loss_scale"), number(second, "loss_scale"));
        if (skipped) cr_expect_gt(number(first, "nonfinite_gradients"), 0);
    }
    json_t *status = zctl_json(&c, "status scaled");
    cr_expect_eq(number(status, "skipped_steps"), 5);
    cr_expect_eq(number(status, "loss_scale"), 4096);
    struct output o = zctl(&c, 20, "status scaled"), table = zctl(&c, 20, "metrics scaled"), logs = zctl(&c, 20, "logs scaled --rank 0");
    cr_expect(strstr(o.out, "loss scale 4096  steps skipped 5") != NULL, "%s", o.out);
    cr_expect(strstr(table.out, "  SCALE  SKIPPED  ") != NULL, "%s", table.out);
    cr_expect(strstr(logs.out, "  scale: 4096  skipped: 5 (this one)\n") != NULL, "%s", logs.out);
    output_free(&o);
    output_free(&table);
    output_free(&logs);
    json_t *events = zctl_json(&c, "events scaled"), *e;
    int told = 0;
    json_array_foreach(json_object_get(events, "events"), i, e) told += strcmp(text(e, "kind"), "STEP_SKIPPED") == 0;
    cr_expect_eq(told, 3, "the first, the second and the fourth of five");
    json_decref(events);
    json_decref(status);
    json_decref(ranks);
    json_decref(rows);
    cluster_stop(&c);
}
