/* SPDX-License-Identifier: Apache-2.0 */
/* A run as a user starts one: zcoord, workers, submit, status, metrics, memory, logs, events; sums over
 * ranks equal the roll-up; rows are in SQLite; ranks are placed by host; losses and parameters do not
 * depend on the number of workers. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <string.h>

#include "tests/integration/harness.h"

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s is not a number in %s", key, json_dumps(row, JSON_COMPACT));
    return json_number_value(v);
}

static void has(json_t *row, const char *const *keys) {
    for (; *keys != NULL; keys++)
        cr_expect(json_object_get(row, *keys) != NULL, "field %s is missing in %.300s", *keys,
                  json_dumps(row, JSON_COMPACT));
}

static void submit(struct cluster *c, const char *file) {
    struct output o = zctl(c, 30, "submit %s", file);
    cr_assert_eq(o.code, 0, "submit: exit %d: %s", o.code, o.err);
    output_free(&o);
}

static const char *const step_fields[] = {
    "run", "generation", "step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds",
    "data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "checkpoint_seconds",
    "eval_seconds", "comm_seconds", "exposed_comm_seconds", "stall_seconds", "tail_seconds",
    "straggler_wait_seconds", "idle_seconds", "exposed_by", "peak_allocated_bytes", "peak_reserved_bytes",
    "peak_rank", "eval_loss", "eval_tokens", "tokens_input", "tokens_supervised", "tokens_padding",
    "global_batch", NULL};
static const char *const rank_fields[] = {
    "rank", "coords", "phase_of_peak", "at_peak", "category_max", "reserved_at_peak_bytes",
    "max_unused_reserved_bytes", "end_of_step_allocated_bytes", "outside_allocator_bytes", "sent_bytes",
    "parameter_hash", NULL};
static const char *const status_fields[] = {"run", "name", "state", "reason", "step", "steps", "generation",
                                            "parameter_hash", "mesh", "ranks", "checkpoint", "attempts", NULL};
static const char *const tags[] = {"parameters", "gradients", "optimizer", "activations", "temporary",
                                   "communication"};

/* Every figure of a roll-up row from the rows of its ranks (decision D23). */
static void check_rollup(json_t *row, json_t *ranks, int world) {
    double step = number(row, "step"), tokens = 0, slowest = 0, exposed = 0, peak = 0, reserved = 0;
    int n = 0;
    size_t i;
    json_t *r;
    json_array_foreach(ranks, i, r) {
        if (number(r, "step") != step) continue;
        n++;
        tokens += number(r, "tokens");
        slowest = fmax(slowest, number(r, "step_seconds"));
        exposed = fmax(exposed, number(r, "exposed_comm_seconds"));
        peak = fmax(peak, number(r, "peak_allocated_bytes"));
        reserved = fmax(reserved, number(r, "peak_reserved_bytes"));
        cr_expect_eq(number(r, "loss"), number(row, "loss"));
        double sum = 0;
        for (int t = 0; t < 6; t++) sum += number(json_object_get(r, "at_peak"), tags[t]);
        cr_expect_eq(sum, number(r, "peak_allocated_bytes"), "at_peak sums to %.0f", sum);
        cr_expect_geq(number(r, "comm_seconds"), number(r, "exposed_comm_seconds"));
    }
    cr_expect_eq(n, world, "step %.0f has %d rank rows", step, n);
    cr_expect_eq(tokens, number(row, "tokens"));
    cr_expect_eq(slowest, number(row, "step_seconds"));
    cr_expect_eq(exposed, number(row, "exposed_comm_seconds"));
    cr_expect_eq(peak, number(row, "peak_allocated_bytes"));
    cr_expect_eq(reserved, number(row, "peak_reserved_bytes"));
}

/* How often a word is in the first line of a text. */
static int in_first_line(const char *text, const char *word) {
    const char *end = text + strcspn(text, "\n");
    int n = 0;
    for (const char *p = strstr(text, word); p && p < end; p = strstr(p + 1, word)) n++;
    return n;
}

static int64_t count_rows(struct cluster *c, const char *sql) {
    char path[400];
    sqlite3 *db;
    sqlite3_stmt *s;
    snprintf(path, sizeof path, "%s/coord/ztrain.db", c->dir);
    cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(s), SQLITE_ROW, "%s", sqlite3_errmsg(db));
    int64_t n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return n;
}

Test(run, by_hand) {
    struct cluster c;
    cluster_start(&c, 2);
    submit(&c, cluster_run_file(&c, "hand", 12, 2, ""));
    wait_run(&c, "hand", "SUCCEEDED", 60);

    json_t *status = zctl_json(&c, "status hand");
    has(status, status_fields);
    cr_expect_str_eq(json_string_value(json_object_get(status, "state")), "SUCCEEDED");
    cr_expect_eq(json_integer_value(json_object_get(status, "step")), 12);
    cr_expect_eq(strlen(json_string_value(json_object_get(status, "parameter_hash"))), 32);

    json_t *rows = zctl_jsonl(&c, "metrics hand"), *ranks = zctl_jsonl(&c, "metrics hand --rank all");
    cr_expect_eq(json_array_size(rows), 12);
    cr_expect_eq(json_array_size(ranks), 24);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        has(row, step_fields);
        cr_expect_eq(number(row, "step"), (double)i + 1);
        cr_expect_eq(number(row, "tokens"), 2 * 2 * 32);
        cr_expect_eq(number(row, "global_batch"), 4);
        check_rollup(row, ranks, 2);
    }
    has(json_array_get(ranks, 0), step_fields);
    has(json_array_get(ranks, 0), rank_fields);
    cr_expect_lt(number(json_array_get(rows, 11), "loss"), number(json_array_get(rows, 0), "loss"));

    cr_expect_eq(count_rows(&c, "SELECT count(*) FROM step_rollup"), 12);
    cr_expect_eq(count_rows(&c, "SELECT count(*) FROM step_rank"), 24);

    json_t *memory = zctl_json(&c, "memory hand"), *list = json_object_get(memory, "ranks");
    cr_expect_geq(json_array_size(list), 4, "two ranks with at least first_step and steady");
    struct output logs = zctl(&c, 20, "logs hand --rank all"), events = zctl(&c, 20, "events hand");
    struct output all = zctl(&c, 20, "events hand --all");
    cr_expect_eq(logs.code, 0);
    cr_expect(strstr(logs.out, "loss") != NULL, "logs: %.300s", logs.out);
    cr_expect_eq(in_first_line(logs.out, " thread"), 1, "%.300s", logs.out);
    cr_expect(strstr(events.out, "RUNNING") != NULL && strstr(events.out, "SUCCEEDED") != NULL, "%s", events.out);
    cr_expect_null(strstr(events.out, "WORKER_STATE"), "level debug is for --all: %s", events.out);
    cr_expect(strstr(all.out, "  debug   WORKER_STATE") != NULL, "%s", all.out);
    output_free(&logs);
    output_free(&events);
    output_free(&all);

    /* the same answers from the state folder when no daemon is there */
    kill(c.coord, SIGTERM);
    char state[300];
    snprintf(state, sizeof state, "%s/coord", c.dir);
    struct output offline = zctl(&c, 20, "--state %s metrics hand -o jsonl", state);
    cr_expect_eq(offline.code, 0, "%s", offline.err);
    int lines = 0;
    for (char *p = offline.out; *p != 0; p++) lines += *p == '\n';
    cr_expect_eq(lines, 12);
    output_free(&offline);
    json_decref(status);
    json_decref(rows);
    json_decref(ranks);
    json_decref(memory);
    cluster_stop(&c);
}

/* One global batch on 1, 2, 3 and 4 workers: the losses agree to 1e-6 relative. */
Test(run, losses_do_not_depend_on_the_number_of_workers) {
    struct cluster c;
    double first[6] = {0};
    cluster_start(&c, 4);
    for (int world = 1; world <= 4; world++) {
        char name[32], file[512], extra[64];
        snprintf(name, sizeof name, "world%d", world);
        snprintf(file, sizeof file, "%s", cluster_run_file(&c, name, 6, world, ""));
        snprintf(extra, sizeof extra, "%d", 12 / world);
        struct output o = zctl(&c, 30, "submit %s --set training.local_batch_size=%s", file, extra);
        cr_assert_eq(o.code, 0, "%s", o.err);
        output_free(&o);
        wait_run(&c, name, "SUCCEEDED", 60);
        json_t *rows = zctl_jsonl(&c, "metrics %s", name);
        for (size_t i = 0; i < 6; i++) {
            double loss = number(json_array_get(rows, i), "loss");
            if (world == 1) first[i] = loss;
            cr_expect_leq(fabs(loss / first[i] - 1), 1e-6, "world %d step %d: %.9f, alone %.9f", world, (int)i + 1,
                          loss, first[i]);
            cr_expect_eq(number(json_array_get(rows, i), "global_batch"), 12);
        }
        json_decref(rows);
    }
    cluster_stop(&c);
}

/* Ranks go host by host, whatever order the workers came in; rank, local rank and device are apart. */
Test(run, gang_is_ordered_by_host) {
    struct cluster c;
    cluster_init(&c);
    cluster_start_coord(&c);
    const char *extra[] = {"--host b --name n1", "--host a --name n10", "--host b --name n2", "--host a --name n2"};
    for (int i = 0; i < 4; i++) cluster_start_worker(&c, i, extra[i]);
    json_t *w = NULL;
    double end = now_s() + 30;
    do {
        json_decref(w);
        w = zctl_json(&c, "workers");
        nap_ms(20);
    } while (json_array_size(json_is_array(w) ? w : json_object_get(w, "workers")) < 4 && now_s() < end);
    json_decref(w);
    char file[512];
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "gang", 3, 4, ""));
    struct output o = zctl(&c, 30, "submit %s", file);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    /* hosts that are names only: all ranks are on this machine, and shm needs that */
    wait_step(&c, "gang", 0, 30);
    json_t *ranks = NULL, *status = NULL;
    end = now_s() + 30;
    do {
        json_decref(status);
        status = zctl_json(&c, "status gang");
        ranks = json_object_get(status, "ranks");
        nap_ms(20);
    } while (json_array_size(ranks) < 4 && now_s() < end);
    const char *host[] = {"a", "a", "b", "b"}, *worker[] = {"a/n2", "a/n10", "b/n1", "b/n2"};
    const int local[] = {0, 1, 0, 1};
    for (size_t i = 0; i < 4; i++) {
        json_t *r = json_array_get(ranks, i);
        cr_expect_eq(number(r, "rank"), (double)i);
        cr_expect_eq(number(r, "local_rank"), local[i]);
        cr_expect_str_eq(json_string_value(json_object_get(r, "host")), host[i]);
        cr_expect_str_eq(json_string_value(json_object_get(r, "worker")), worker[i]);
        cr_expect_str_eq(json_string_value(json_object_get(r, "device")), "cpu");
        json_t *at = json_object_get(r, "coords");
        cr_expect_eq(number(at, "replicate"), (double)i);
        cr_expect_eq(number(at, "shard"), 0);
        cr_expect_eq(number(at, "tensor"), 0);
    }
    json_decref(status);
    cluster_stop(&c);
}

/* The last line of a trainer is written when it is done and comes when it is gone: a moment after the run's end. */
Test(run, whoever_follows_sees_the_last_lines) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "last", 2, 2, ""));
    for (int i = 0; i < 2; i++) {
        struct output o = zctl(&c, 60, "submit -f %s", file);
        cr_expect_eq(o.code, 0, "%s", o.err);
        cr_expect(strstr(o.out, ":0| done: 2 steps, parameter hash ") != NULL, "submit -f %d: %s", i, o.out);
        output_free(&o);
        o = zctl(&c, 60, "logs last -f");
        cr_expect(strstr(o.out, ":0| done: 2 steps") != NULL && strstr(o.out, ":1| done: 2 steps") != NULL, "logs -f %d: %s", i, o.out);
        output_free(&o);
    }
    cluster_stop(&c);
}
