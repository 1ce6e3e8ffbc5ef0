/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of one to three faults, drawn from a seed, on four workers of two hosts: trainers, supervisors and the
 * coordinator killed or stopped, links cut, the disk of checkpoints full; during saves, during recoveries, two at once.
 * Every run ends SUCCEEDED with the parameters of the undisturbed one, its losses bit for bit, no gap, at most one
 * interval of work lost to a fault, and the checkpoint that the coordinator names is good. A schedule counts when steps
 * were recorded before its first fault and after its last.
 *
 * ZT_FAULT_ROUNDS: schedules (20); ZT_FAULT_SEED; ZT_FAULT_FIRST: number of the first, to see one again. Prints a line
 * of JSON a schedule, then detection and recovery in figures. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/integration/chaos.h"

#define WORLD 4
#define STEPS 60
#define INTERVAL 8
#define DISK_MIB 48
#define ROUNDS_MAX 2000

static const char *const modes[] = {
    "parallelism: {mode: ddp}\n",
    "parallelism: {mode: fsdp, data_parallel_shard_degree: 4}\n",
    "parallelism: {mode: zero2, data_parallel_shard_degree: 4}\n",
    "parallelism: {mode: zero1, data_parallel_shard_degree: 4}\n",
};

/* Steps long enough to be hit, and short enough that sixty take seconds. */
static const char *run_file(struct trial *t, const char *name, const char *extra) {
    char text[2048], file[128], data[400];
    snprintf(data, sizeof data, "%s", cluster_data(&t->c));
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: %d\n"
             "model: {family: gpt2, layers: 3, heads: 4, dim: 64, vocab_size: 256, seq_len_max: 64, dropout: 0.1}\n"
             "dataset: {path: %s, tokenizer: bytes}\n"
             "training: {steps: %d, seq_len: 64, local_batch_size: 4, seed: 7}\n"
             "timeouts: {progress: 4}\ncomm: {train_timeout_seconds: 8}\n"
             "checkpoint: {folder: %s/checkpoints, interval: %d, keep_latest_k: 2}\n%s",
             name, t->world, data, t->steps, t->c.dir, INTERVAL, extra);
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(&t->c, file, text);
}

/* ------------------------------------------------------------------------------------ what was seen */

static double time_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    struct tm tm = {0};
    int ms = 0;
    if (!s || sscanf(s, "%d-%d-%dT%d:%d:%d.%dZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms) != 7)
        return NAN;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return 1e3 * (double)timegm(&tm) + ms;
}

/* Of the recorded steps: wall clock of the first after `ms`; NAN: there is none. */
static double recorded_after(struct chaos *x, const char *run_id, double ms) {
    char path[400];
    sqlite3 *db;
    sqlite3_stmt *q;
    double at = NAN;
    snprintf(path, sizeof path, "%s/coord/ztrain.db", x->t.c.dir);
    cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK, "%s", path);
    sqlite3_busy_timeout(db, 5000);
    cr_assert_eq(sqlite3_prepare_v2(db, "SELECT min(at_ms) FROM step_rollup WHERE run_id = ?1 AND at_ms > ?2", -1, &q, NULL), SQLITE_OK,
                 "%s", sqlite3_errmsg(db));
    sqlite3_bind_text(q, 1, run_id, -1, SQLITE_STATIC);
    sqlite3_bind_double(q, 2, ms);
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW, "%s", sqlite3_errmsg(db));
    if (sqlite3_column_type(q, 0) != SQLITE_NULL) at = sqlite3_column_double(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return at;
}

struct series { int n; double v[ROUNDS_MAX * CHAOS_FAULTS_MAX]; };
static struct series detect[CHAOS_KINDS], recover[CHAOS_KINDS], part[4]; /* stop, start, form, load */

static void add(struct series *s, double v) {
    if (isfinite(v) && s->n < ROUNDS_MAX * CHAOS_FAULTS_MAX) s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct series *s, double q) {
    if (s->n == 0) return NAN;
    qsort(s->v, (size_t)s->n, sizeof *s->v, by_value);
    return s->v[(int)ceil(q * s->n) - 1 < 0 ? 0 : (int)ceil(q * s->n) - 1];
}

static void table(void) {
    static const char *const parts[4] = {"stop", "start", "form", "load"};
    printf("%-14s %5s  %18s  %18s\n", "fault", "runs", "detected p50 / p99", "recovered p50 / p99");
    for (int k = 0; k < CHAOS_KINDS; k++)
        if (recover[k].n)
            printf("%-14s %5d  %7.3f / %7.3f s  %7.3f / %7.3f s\n", chaos_kind_name((enum chaos_kind)k), recover[k].n,
                   quantile(&detect[k], 0.5), quantile(&detect[k], 0.99), quantile(&recover[k], 0.5), quantile(&recover[k], 0.99));
    for (int i = 0; i < 4; i++)
        if (part[i].n)
            printf("  of it %-6s %5d  %18s  %7.3f / %7.3f s\n", parts[i], part[i].n, "", quantile(&part[i], 0.5), quantile(&part[i], 0.99));
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------ judging */

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* What a fault that is none of the program's can end a generation with. */
static bool expected_reason(const char *reason) {
    static const char *const some[] = {"KILLED", "WORKER_LOST", "HANG", "COMM_ERROR", "COMM_INIT_TIMEOUT", "START_TIMEOUT",
                                       "COORDINATOR_RESTART", "DRAINED"};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (strcmp(reason, some[i]) == 0) return true;
    return false;
}

/* By generation: the newest step that was committed when it ended. */
struct commits { int n; int64_t at[64]; bool skipped; };

static void read_commits(struct chaos *x, const char *run, struct commits *c) {
    json_t *events = zctl_jsonl(&x->t.c, "events %s", run), *e;
    int64_t newest = 0, step;
    size_t i;
    *c = (struct commits){.n = 0};
    json_array_foreach(events, i, e) {
        const char *kind = json_string_value(json_object_get(e, "kind")), *text = json_string_value(json_object_get(e, "message"));
        if ((!strcmp(kind, "CHECKPOINT_COMMITTED") || !strcmp(kind, "CHECKPOINT_ADOPTED")) && sscanf(text, "step %" SCNd64, &step) == 1)
            newest = step;
        c->skipped |= !strcmp(kind, "CHECKPOINT_SKIPPED") || !strcmp(kind, "CHECKPOINT_FAILED");
        if (!strcmp(kind, "GENERATION_END") && c->n < 64) c->at[c->n++] = newest;
    }
    json_decref(events);
}

/* A generation goes on from the newest checkpoint that was committed when the one before it ended, and loses at most an
 * interval, and what was done while the next save was under way. After a drain nothing is lost. */
static int64_t check_lost_work(struct chaos *x, const char *run, const struct chaos_schedule *s, json_t *attempts) {
    struct commits c;
    int64_t most = 0;
    bool hindered = false; /* saves that could not be done in time */
    for (int i = 0; i < s->n; i++)
        hindered |= s->fault[i].kind != CHAOS_KILL_TRAINER && s->fault[i].kind != CHAOS_KILL_WORKER && s->fault[i].kind != CHAOS_DRAIN_WORKER;
    read_commits(x, run, &c);
    for (size_t i = 0; i + 1 < json_array_size(attempts); i++) {
        const json_t *a = json_array_get(attempts, i), *b = json_array_get(attempts, i + 1);
        const char *reason = json_string_value(json_object_get(a, "reason"));
        const int64_t begins = json_integer_value(json_object_get(b, "start_step")),
                      lost = json_integer_value(json_object_get(a, "last_step")) - begins;
        cr_expect_eq(begins, c.at[i], "%s: generation %zu begins after step %d, but %d was committed", run, i + 2, (int)begins, (int)c.at[i]);
        cr_expect(hindered || c.skipped || lost <= 2 * INTERVAL, "%s: generation %zu lost %d steps", run, i + 1, (int)lost);
        cr_expect(hindered || s->n > 1 || strcmp(reason, "DRAINED") || lost == 0, "%s: a drain lost %d steps", run, (int)lost);
        most = lost > most ? lost : most;
    }
    return most;
}

/* What the coordinator names is of the last step (a full disk is tried again, and is not full for long) and as it was
 * written. */
static void check_checkpoint(struct chaos *x, const char *run, const json_t *status) {
    const json_t *c = json_object_get(status, "checkpoint");
    cr_assert(json_is_object(c), "%s has no checkpoint", run);
    cr_expect_eq(json_integer_value(json_object_get(c, "step")), x->t.steps, "%s", run);
    cr_expect_str_eq(json_string_value(json_object_get(c, "parameter_hash")), x->t.hash);
    struct output o = zctl(&x->t.c, 60, "checkpoint verify %s", run);
    cr_expect_eq(o.code, 0, "%s: %s%s", run, o.out, o.err);
    output_free(&o);
}

/* Figures of a schedule of one fault, where nothing else can have been the cause. */
static void measure(struct chaos *x, const struct chaos_schedule *s, const json_t *status) {
    const json_t *attempts = json_object_get(status, "attempts"), *a = json_array_get(attempts, 0), *b = json_array_get(attempts, 1);
    const struct chaos_fault *f = &s->fault[0];
    if (s->n != 1 || json_array_size(attempts) != 2) return;
    add(&detect[f->kind], 1e-3 * (time_of(a, "ended") - f->at_ms));
    add(&recover[f->kind], 1e-3 * (recorded_after(x, json_string_value(json_object_get(status, "run")), time_of(a, "ended")) - f->at_ms));
    add(&part[0], number(a, "stop_seconds"));
    add(&part[1], number(b, "start_seconds"));
    add(&part[2], number(b, "form_seconds"));
    add(&part[3], number(b, "load_seconds"));
}

/* Its checkpoints: the disk is small. */
static void remove_run(const struct chaos *x, const char *run_id) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", x->folder, run_id);
    folder_remove(path);
}

/* True when it counts: there was progress before and after. */
static bool judge(struct chaos *x, const char *run, struct chaos_schedule *s) {
    int64_t generation = trial_check(&x->t, run, 300);
    json_t *status = zctl_json(&x->t.c, "status %s", run), *a, *faults = json_array(), *reasons = json_array(), *line;
    const char *id = json_string_value(json_object_get(status, "run"));
    const struct chaos_fault *first = &s->fault[0], *last = first;
    size_t i;
    for (int k = 0; k < s->n; k++) {
        const struct chaos_fault *f = &s->fault[k];
        if (f->at_ms > 0) last = f;
        json_array_append_new(faults, json_pack("{s:s, s:s, s:i, s:i, s:o, s:I}", "kind", chaos_kind_name(f->kind), "when",
                                                chaos_when_name(f->when), "victim", f->victim, "length_ms", f->length_ms, "at",
                                                f->at_ms > 0 ? json_real(f->at_ms) : json_null(), "step", (json_int_t)f->step));
    }
    json_array_foreach(json_object_get(status, "attempts"), i, a) {
        const char *reason = json_string_value(json_object_get(a, "reason"));
        json_array_append_new(reasons, reason ? json_string(reason) : json_null());
        cr_expect(!reason || expected_reason(reason), "%s: generation %zu ended with %s: %s", run, i + 1, reason,
                  json_string_value(json_object_get(a, "message")));
    }
    const int64_t lost = check_lost_work(x, run, s, json_object_get(status, "attempts"));
    check_checkpoint(x, run, status);
    bool counts = first->at_ms > 0 && first->step >= 1 && isfinite(recorded_after(x, id, last->at_ms));
    measure(x, s, status);
    line = json_pack("{s:i, s:s, s:b, s:I, s:I, s:o, s:o}", "schedule", s->round, "run", id, "counts", counts, "generations",
                     (json_int_t)generation, "steps_lost", (json_int_t)lost, "reasons", reasons, "faults", faults);
    char *text = json_dumps(line, JSON_COMPACT);
    printf("%s\n", text);
    fflush(stdout);
    free(text);
    remove_run(x, id);
    json_decref(line);
    json_decref(status);
    return counts;
}

Test(chaos, every_schedule_ends_as_if_nothing_had_happened) {
    static struct chaos x;
    const char *v = getenv("ZT_FAULT_FIRST");
    const int first = v ? atoi(v) : 0, rounds = trial_rounds(20), shm = trial_count_shm();
    int counted = 0;
    x.t.file = run_file;
    x.saves = true;
    chaos_start(&x, WORLD, STEPS, DISK_MIB);
    trial_undisturbed(&x.t);
    for (int round = first; round < first + rounds; round++) {
        struct chaos_schedule s;
        char run[32];
        chaos_draw(&x, round, &s);
        snprintf(run, sizeof run, "chaos%d", round);
        trial_wait_idle(&x.t);
        trial_submit(&x.t, run, modes[(size_t)round % (sizeof modes / sizeof *modes)]);
        chaos_carry_out(&x, run, &s);
        counted += judge(&x, run, &s);
    }
    table();
    cr_expect(4 * counted >= 3 * rounds, "only %d of %d schedules hit a run that had begun and went on", counted, rounds);
    chaos_stop(&x);
    trial_wait_shm(shm);
}
