/* SPDX-License-Identifier: Apache-2.0 */
/* What was predicted against what real trainers measured, through the daemons: every window of every rank to the
 * byte; runs that do not fit are refused before they start; a run that ran out names its line and where it was. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/harness.h"

#define NANO "model: {preset: gpt2-nano}\n"

/* rows of seq_len 32 and one token more */
static const char *data_file(struct cluster *c, const char *name, int rows) {
    static char path[4][400];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 400, "%s/%s", c->dir, name);
    FILE *f = fopen(p, "w");
    cr_assert(f != NULL, "%s: %s", p, strerror(errno));
    for (int i = 0; i < rows * 32 + 1; i++) fputc('a' + (i * 7 + i / 13) % 26, f);
    fclose(f);
    return p;
}

static const char *run_file(struct cluster *c, const char *name, const char *data, const char *more) {
    char text[4096], file[80];
    snprintf(text, sizeof text, "version: 1\nname: %s\n" NANO "dataset: {path: %s, tokenizer: bytes}\n%s", name, data, more);
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(c, file, text);
}

static void expect(struct output o, int code, const char *text, const char *what) {
    cr_expect_eq(o.code, code, "%s: exit %d, wanted %d: %s%s", what, o.code, code, o.out, o.err);
    cr_expect(strstr(o.err, text) != NULL || strstr(o.out, text) != NULL, "%s: no '%s' in: %s%s", what, text, o.out, o.err);
    output_free(&o);
}

static void run_to_the_end(struct cluster *c, const char *name, const char *file) {
    struct output o = zctl(c, 60, "submit -f %s", file);
    cr_assert_eq(o.code, 0, "%s: exit %d: %s%s", name, o.code, o.out, o.err);
    output_free(&o);
}

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s is not a number in %s", key, json_dumps(row, JSON_COMPACT));
    return json_number_value(v);
}

/* Every row's prediction is its measurement: peaks, phase, composition, persistent bytes. */
static void expect_exact(struct cluster *c, const char *name, const char *windows, int ranks) {
    char seen[512] = "", want[512] = "";
    json_t *j = zctl_json(c, "memory %s", name), *row;
    size_t i;
    json_array_foreach(json_object_get(j, "ranks"), i, row) {
        json_t *p = json_object_get(row, "predicted"), *m = json_object_get(row, "measured");
        char *a = json_dumps(p, JSON_COMPACT | JSON_ENCODE_ANY), *b = json_dumps(m, JSON_COMPACT | JSON_ENCODE_ANY);
        cr_expect(json_equal(p, m), "%s rank %g %s:\npredicted %s\nmeasured  %s", name, number(row, "rank"),
                  json_string_value(json_object_get(row, "window")), a, b);
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s%s", strcmp(seen, "") ? " " : "",
                 json_string_value(json_object_get(row, "window")));
        free(a);
        free(b);
    }
    for (int r = 0; r < ranks; r++) snprintf(want + strlen(want), sizeof want - strlen(want), "%s%s", r ? " " : "", windows);
    cr_expect_str_eq(seen, want, "%s", name);
    cr_expect(json_is_null(json_object_get(j, "unpredicted")));
    json_decref(j);
    expect(zctl(c, 30, "status %s", name), 0, ": equal to the byte\n", name);
}

/* Two ranks, workers of different sizes, the number of them left to what there is; 11 validation rows in batches
 * of 2 are 6 and 5: the ranks' last batches differ. */
Test(memory, predicted_is_measured_to_the_byte_in_every_window) {
    static const struct { const char *name, *more; } runs[] = {
        {"ddp", "parallelism: {mode: ddp}\n"},
        {"zero3", "parallelism: {mode: zero3}\n"},
        {"mixed", "parallelism: {mode: fsdp, wrap: part}\nprecision: {recipe: mixed16, reduce_dtype: fp32}\n"},
        {"lazy", "parallelism: {mode: zero2}\noptimizer: {state_init: lazy}\n"},
    };
    struct cluster c;
    char file[512], data[400], valid[400];
    cluster_init(&c);
    cluster_start_coord(&c);
    cluster_start_worker(&c, 0, "--memory-gib 0.25");
    cluster_start_worker(&c, 1, "--memory-gib 0.5");
    cluster_wait_idle(&c, 2);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 90));
    snprintf(valid, sizeof valid, "%s", data_file(&c, "valid.txt", 11));
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char more[1200];
        snprintf(more, sizeof more,
                 "workers: 2\nvalidation: {path: %s, every_steps: 3}\n"
                 "training: {steps: 8, seq_len: 32, local_batch_size: 2, global_batch_size: 8}\n%s", valid, runs[i].more);
        snprintf(file, sizeof file, "%s", run_file(&c, runs[i].name, data, more));
        run_to_the_end(&c, runs[i].name, file);
        expect_exact(&c, runs[i].name, "init first_step steady eval", 2);
    }
    /* by epochs, without validation, as many workers as there are */
    snprintf(file, sizeof file, "%s", run_file(&c, "epochs", data,
             "training: {epochs: 1, seq_len: 32, local_batch_size: 4}\nparallelism: {mode: zero1}\n"));
    expect(zctl(&c, 60, "submit -f %s", file), 0, "plan: 2 workers, as many as are there now and fit the file", "epochs");
    expect_exact(&c, "epochs", "init first_step steady", 2);
    cluster_stop(&c);
}

/* The highest point of the curve is the steady peak: both are the planner's, one from the ledger. */
Test(memory, the_curve_of_a_steady_step_peaks_where_the_window_does) {
    struct cluster c;
    char file[512], data[400];
    cluster_start(&c, 2);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 90));
    snprintf(file, sizeof file, "%s", run_file(&c, "curve", data,
             "workers: 2\ntraining: {steps: 6, seq_len: 32, local_batch_size: 2}\nparallelism: {mode: zero3}\n"));
    run_to_the_end(&c, "curve", file);
    json_t *j = zctl_json(&c, "memory curve --curve"), *m = zctl_json(&c, "memory curve --rank 1"), *point, *row;
    double most = 0, steady = 0;
    size_t i;
    json_array_foreach(json_object_get(j, "curve"), i, point) most = number(point, "allocated_bytes") > most ? number(point, "allocated_bytes") : most;
    json_array_foreach(json_object_get(m, "ranks"), i, row) {
        cr_expect_eq(number(row, "rank"), 1);
        if (strcmp(json_string_value(json_object_get(row, "window")), "steady") == 0)
            steady = number(json_object_get(row, "measured"), "peak_allocated_bytes");
    }
    cr_expect_gt(most, 0);
    cr_expect_eq(most, steady);
    json_decref(j);
    json_decref(m);
    struct output o = zctl(&c, 30, "memory curve --curve");
    cr_expect_eq(o.code, 0, "%s", o.err);
    static const char *const words[] = {"forward", "backward", "optimizer", "block 0", "block 3", "root", "################################"};
    for (i = 0; i < sizeof words / sizeof words[0]; i++) cr_expect(strstr(o.out, words[i]) != NULL, "no %s in %s", words[i], o.out);
    output_free(&o);
    cluster_stop(&c);
}

/* ------------------------------------------------------------------------------------ runs that do not fit */

static void check_advice(struct cluster *c, const char *name) {
    json_t *s = zctl_json(c, "status %s", name), *m = zctl_json(c, "memory %s", name);
    json_t *real = json_object_get(json_array_get(json_object_get(s, "attempts"), 0), "oom");
    json_t *plan = json_array_get(json_object_get(json_object_get(m, "plan"), "plans"), 0), *planned = json_object_get(plan, "oom");
    cr_assert(json_is_object(real) && json_is_object(planned), "%s", json_dumps(s, JSON_COMPACT));
    /* the planner ran out at the same request of the same buffer */
    static const char *const same[] = {"phase", "what", "tag", "request_bytes", "capacity_bytes", "reserved_bytes",
                                       "allocated_bytes", "largest_free_block_bytes", "cause", "by_tag"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        cr_expect(json_equal(json_object_get(real, same[i]), json_object_get(planned, same[i])), "%s: planned %s, real %s", same[i],
                  json_dumps(json_object_get(planned, same[i]), JSON_ENCODE_ANY | JSON_COMPACT),
                  json_dumps(json_object_get(real, same[i]), JSON_ENCODE_ANY | JSON_COMPACT));
    const char *where = json_string_value(json_object_get(real, "location"));
    cr_assert(where != NULL);
    cr_expect(strncmp(where, "forward, activations most of it: ", 33) == 0 && strstr(where, "local_batch_size") != NULL, "%s", where);
    /* status and the event say the same words */
    expect(zctl(c, 30, "status %s", name), 0, where, "status");
    expect(zctl(c, 30, "memory %s", name), 0, where, "memory");
    expect(zctl(c, 30, "events %s", name), 0, "OOM", "events");
    expect(zctl(c, 30, "events %s", name), 0, where, "events");
    const char *change = json_string_value(json_object_get(real, "first_change"));
    cr_assert(change != NULL && strstr(change, "--set ") != NULL, "%s", change);
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(m, "plan"), "first_change")), change);
    expect(zctl(c, 30, "status %s", name), 0, change, "status");
    expect(zctl(c, 30, "events %s", name), 0, "; the first change that fits: --set ", "events");
    json_decref(s);
    json_decref(m);
}

/* 24 MiB: the state of nano (13 MiB with gradients) fits, the activations of 16 rows do not. */
#define BIG "workers: 2\ntraining: {steps: 7, seq_len: 32, local_batch_size: 16}\nparallelism: {mode: ddp}\n"

Test(memory, a_run_that_fits_no_worker_is_refused_unless_forced) {
    struct cluster c;
    char file[512], data[400];
    cluster_init(&c);
    cluster_start_coord(&c);
    for (int i = 0; i < 2; i++) cluster_start_worker(&c, i, "--memory-gib 0.0234375"); /* 24 MiB */
    cluster_wait_idle(&c, 2);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 200));
    snprintf(file, sizeof file, "%s", run_file(&c, "big", data, BIG));
    struct output o = zctl(&c, 30, "submit %s", file);
    cr_expect_eq(o.code, 7, "exit %d: %s%s", o.code, o.out, o.err);
    cr_expect_str_eq(o.out, "", "nothing was submitted");
    static const char *const words[] = {"run \"big\" in mode ddp does not fit any connected worker", "CAPACITY", "24.00 MiB", "MISSING",
                                        "PARAMS", "ACTIV", "PHASE", "backward", "it runs out in phase forward of step 1",
                                        "what helps: ", "zctl advise", "--force"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) cr_expect(strstr(o.err, words[i]) != NULL, "no '%s' in: %s", words[i], o.err);
    output_free(&o);
    json_t *list = zctl_json(&c, "list");
    cr_expect_eq(json_array_size(json_object_get(list, "runs")), 0);
    json_decref(list);
    expect(zctl(&c, 60, "submit --force -f %s", file), 1, "OOM_DEVICE", "forced");
    check_advice(&c, "big");
    /* a change that helps is taken at once */
    expect(zctl(&c, 60, "submit -f %s --name less --set training.local_batch_size=1", file), 0, "SUCCEEDED", "less");
    /* one of three workers has room, two are needed: taken, and said */
    cluster_start_worker(&c, 2, "--memory-gib 0.25");
    cluster_wait_idle(&c, 3);
    expect(zctl(&c, 30, "submit %s", file), 0, "plan: it fits 1 of the connected workers and needs 2; requirements.memory_gib", "one");
    expect(zctl(&c, 30, "cancel big"), 0, "run ", "cancel");
    /* with the rest kept off there is one that fits; it waits for another of that size */
    expect(zctl(&c, 30, "submit %s --name roomy --set requirements.memory_gib=0.1", file), 0, "plan: peak allocated ", "roomy");
    json_t *j = zctl_json(&c, "status roomy");
    cr_expect_str_eq(json_string_value(json_object_get(j, "state")), "QUEUED");
    json_decref(j);
    cluster_stop(&c);
}

/* The limit of the run file counts like the worker's memory; zctl run refuses before it starts anything. */
Test(memory, a_limit_and_zctl_run_are_held_against_the_plan_too) {
    struct cluster c;
    char file[512], data[400];
    cluster_start(&c, 2);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 200));
    snprintf(file, sizeof file, "%s", run_file(&c, "big", data, BIG));
    expect(zctl(&c, 30, "submit %s --set memory.limit_gib=0.0234375", file), 7, "24.00 MiB", "limit");
    expect(zctl(&c, 60, "submit --force -f %s --set memory.limit_gib=0.0234375", file), 1, "OOM_DEVICE", "limit, forced");
    check_advice(&c, "big");
    expect(zctl(&c, 60, "submit -f %s", file), 0, "SUCCEEDED", "without");
    expect_exact(&c, "big", "init first_step steady", 2);
    cluster_stop(&c);
    cluster_init(&c);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 200));
    snprintf(file, sizeof file, "%s", run_file(&c, "big", data, BIG));
    expect(zctl(&c, 60, "run %s --workers 2 --memory-gib 0.0234375", file), 7, "does not fit any connected worker", "run");
    pid_t left[4];
    cr_expect_eq(cluster_processes(&c, left, 4), 0, "nothing was started");
    expect(zctl(&c, 60, "run %s --force --workers 2 --memory-gib 0.0234375", file), 1, "OOM_DEVICE", "run, forced");
    cluster_stop(&c);
}

/* ------------------------------------------------------------------------------------ what is not known */

/* Nobody there to be asked, no data to be counted: taken, said, and still exact where nothing had to be assumed. */
Test(memory, no_worker_and_no_data_do_not_stop_a_submit) {
    struct cluster c;
    char file[512], later[400];
    cluster_init(&c);
    cluster_start_coord(&c);
    snprintf(later, sizeof later, "%s/later.txt", c.dir);
    snprintf(file, sizeof file, "%s", run_file(&c, "early", later,
             "workers: 2\nvalidation: {fraction: 0.1, every_steps: 2}\n"
             "training: {steps: 8, seq_len: 32, local_batch_size: 2}\nparallelism: {mode: ddp}\n"));
    struct output o = zctl(&c, 30, "submit %s", file);
    cr_expect_eq(o.code, 0, "%s", o.err);
    cr_expect(strstr(o.err, "plan: no worker is connected: whether it fits is not known") != NULL, "%s", o.err);
    cr_expect(strstr(o.err, "is not read on this machine") != NULL && strstr(o.err, "full batches are assumed") != NULL, "%s", o.err);
    output_free(&o);
    expect(zctl(&c, 30, "status early"), 0, "memory   peak predicted ", "before it runs");
    data_file(&c, "later.txt", 400); /* 40 rows of validation: whole batches of 2 on 2 ranks */
    for (int i = 0; i < 2; i++) cluster_start_worker(&c, i, NULL);
    wait_run(&c, "early", "SUCCEEDED", 60);
    expect_exact(&c, "early", "init first_step steady eval", 2);
    /* without workers their number is not known either */
    snprintf(file, sizeof file, "%s", run_file(&c, "open", later, "training: {steps: 2, seq_len: 32, local_batch_size: 1}\n"));
    for (int i = 0; i < 2; i++) cr_assert_eq(kill(c.worker[i], SIGTERM), 0);
    cluster_stop(&c);
    cluster_init(&c);
    cluster_start_coord(&c);
    snprintf(file, sizeof file, "%s", run_file(&c, "open", data_file(&c, "train.txt", 40), "training: {steps: 2, seq_len: 32, local_batch_size: 1}\n"));
    expect(zctl(&c, 30, "submit %s", file), 0, "plan: none: no worker is connected and the file does not say how many it needs", "open");
    cluster_start_worker(&c, 0, NULL);
    wait_run(&c, "open", "SUCCEEDED", 60);
    expect(zctl(&c, 30, "status open"), 0, "memory   peak predicted -, measured ", "open");
    expect(zctl(&c, 30, "memory open"), 0, "predicted -   no plan could be made when it was submitted", "open");
    cluster_stop(&c);
}

/* A run of an older client: measured as ever, predicted "-", and why; read from the folder without a daemon. */
Test(memory, a_run_without_a_plan_says_so) {
    struct cluster c;
    char file[512], data[400], path[400];
    sqlite3 *db;
    cluster_start(&c, 1);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 90));
    snprintf(file, sizeof file, "%s", run_file(&c, "old", data, "training: {steps: 3, seq_len: 32, local_batch_size: 2}\n"));
    run_to_the_end(&c, "old", file);
    snprintf(path, sizeof path, "%s/coord/ztrain.db", c.dir);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    cr_assert_eq(sqlite3_exec(db, "UPDATE run_specs SET plan = NULL", NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
    expect(zctl(&c, 30, "--state %s/coord memory old", c.dir), 0, "predicted -   it was submitted without a plan", "memory");
    expect(zctl(&c, 30, "status old"), 0, "it was submitted without a plan", "status");
    json_t *j = zctl_json(&c, "memory old"), *row = json_array_get(json_object_get(j, "ranks"), 0);
    cr_expect(json_is_null(json_object_get(row, "predicted")) && json_is_object(json_object_get(row, "measured")));
    cr_expect(json_is_null(json_object_get(j, "plan")));
    cr_expect_str_eq(json_string_value(json_object_get(j, "unpredicted")), "it was submitted without a plan");
    json_decref(j);
    expect(zctl(&c, 30, "memory old --curve"), 0, "one steady step as planned", "the curve is planned again");
    cluster_stop(&c);
}
