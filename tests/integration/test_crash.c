/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 at every step of a save, of its publishing, of a removal and of a load, of each rank, and of the coordinator
 * around its commit: the run ends with the parameters and losses of the undisturbed one, its next generation goes on
 * from what the database had committed, what the database names verifies, and nothing half done stays (B25). */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/trial.h"

#define WORLD 2
#define STEPS 60 /* so that three saves are committed however slow the disk is */
#define INTERVAL 6

static const char *run_file(struct trial *t, const char *name, const char *extra) {
    char text[2048], file[128], data[400];
    snprintf(data, sizeof data, "%s", cluster_data(&t->c));
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: %d\n"
             "model: {family: gpt2, layers: 2, heads: 4, dim: 64, vocab_size: 256, seq_len_max: 64}\n"
             "dataset: {path: %s, tokenizer: bytes}\n"
             "training: {steps: %d, seq_len: 64, local_batch_size: 4, seed: 7}\n"
             "parallelism: {mode: zero2}\n"
             "restart: {backoff_seconds: {initial: 0.1, max: 1}}\n"
             "checkpoint: {folder: %s/checkpoints, interval: %d, keep_latest_k: 2}\n%s",
             name, t->world, data, t->steps, t->c.dir, INTERVAL, extra);
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(&t->c, file, text);
}

/* ZT_FAIL of the processes started next; the file that tells it was done, for as long as it is not. */
static void plan_fault(struct trial *t, const char *name, const char *fail, char once[400]) {
    snprintf(once, 400, "%s/done-%s", t->c.dir, name);
    setenv("ZT_FAIL", fail, 1);
    setenv("ZT_FAIL_ONCE", once, 1);
}
static void plan_nothing(void) {
    unsetenv("ZT_FAIL");
    unsetenv("ZT_FAIL_ONCE");
}

/* The worker again, with what was planned. */
static void renew_worker(struct trial *t, int i) {
    kill(t->c.worker[i], SIGTERM);
    waitpid(t->c.worker[i], NULL, 0);
    cluster_start_worker(&t->c, i, NULL);
    trial_wait_idle(t);
}

/* Names in the run's folder that begin or end so. */
static int leftovers(struct trial *t, const char *run_id) {
    char path[500];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints/%s", t->c.dir, run_id);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) n += strstr(e->d_name, ".tmp") != NULL;
    if (d) closedir(d);
    strcat(path, "/trash");
    d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* The newest step that was committed when the first generation ended; -1: it did not end. */
static int64_t committed_then(struct trial *t, const char *run) {
    json_t *events = zctl_jsonl(&t->c, "events %s", run), *e;
    int64_t newest = 0, then = -1;
    size_t i;
    json_array_foreach(events, i, e) {
        const char *kind = json_string_value(json_object_get(e, "kind"));
        int step;
        if ((!strcmp(kind, "CHECKPOINT_COMMITTED") || !strcmp(kind, "CHECKPOINT_ADOPTED")) &&
            sscanf(json_string_value(json_object_get(e, "message")), "step %d", &step) == 1)
            newest = step;
        if (!strcmp(kind, "GENERATION_END") && then < 0) then = newest;
    }
    json_decref(events);
    return then;
}

/* generations: how many there must be; begins: what the second begins after, -1 = what was committed. */
static void check(struct trial *t, const char *run, int generations, int64_t begins) {
    cr_expect_eq(trial_check(t, run, 120), generations, "%s", run);
    json_t *s = zctl_json(&t->c, "status %s", run), *c = json_object_get(s, "checkpoint");
    const char *id = json_string_value(json_object_get(s, "run"));
    cr_expect_eq(json_integer_value(json_object_get(c, "step")), STEPS, "%s", run);
    cr_expect_str_eq(json_string_value(json_object_get(c, "parameter_hash")), t->hash, "%s", run);
    if (generations > 1) {
        const json_t *b = json_array_get(json_object_get(s, "attempts"), 1);
        cr_expect_eq(json_integer_value(json_object_get(b, "start_step")), begins < 0 ? committed_then(t, run) : begins, "%s", run);
    }
    cr_expect_eq(leftovers(t, id), 0, "%s: something half done is left", run);
    struct output o = zctl(&t->c, 60, "checkpoint verify %s", run);
    cr_expect_eq(o.code, 0, "%s: %s%s", run, o.out, o.err);
    output_free(&o);
    json_decref(s);
}

static int shm;

static void begin(struct trial *t) {
    shm = trial_count_shm();
    *t = (struct trial){.world = WORLD, .steps = STEPS, .file = run_file};
    cluster_start(&t->c, WORLD);
    trial_undisturbed(t);
    trial_wait_idle(t);
}

static void end(struct trial *t) {
    cluster_stop(&t->c);
    trial_wait_shm(shm);
}

struct point { const char *name; int nth; bool first_rank_only; };

/* In the second save, so that there is one to fall back on, and in the first, where there is none; removals are of
 * the third. */
static const struct point saving[] = {
    {"ckpt.copy", 2, false},         {"ckpt.tmp_folder", 2, false},   {"ckpt.write", 7, false},
    {"ckpt.before_fsync", 5, false}, {"ckpt.after_fsync", 5, false},  {"ckpt.readback", 5, false},
    {"ckpt.shard_done", 2, false},   {"ckpt.before_manifest", 2, true}, {"ckpt.after_manifest", 2, true},
    {"ckpt.before_rename", 2, true}, {"ckpt.after_rename", 2, true},  {"ckpt.before_commit", 2, true},
    {"ckpt.after_commit", 2, true},  {"ckpt.before_remove", 1, true}, {"ckpt.trashed", 1, true},
    {"ckpt.write", 1, false},        {"ckpt.before_rename", 1, true}, {"ckpt.after_rename", 1, true},
};

#ifdef ZT_FAILPOINTS
Test(crash, a_rank_at_every_step_of_a_save) {
    static struct trial t;
    int n = 0;
    begin(&t);
    for (size_t i = 0; i < sizeof saving / sizeof *saving; i++)
        for (int rank = 0; rank < (saving[i].first_rank_only ? 1 : WORLD); rank++) {
            char name[32], fail[80], once[400];
            snprintf(name, sizeof name, "save%d", n++);
            snprintf(fail, sizeof fail, "%s:nth=%d:kill", saving[i].name, saving[i].nth);
            plan_fault(&t, name, fail, once);
            renew_worker(&t, rank); /* w0 is rank 0: gangs are in the order of names */
            plan_nothing();
            trial_submit(&t, name, "");
            fprintf(stderr, "%s: rank %d is killed at %s\n", name, rank, fail);
            check(&t, name, 2, -1);
            cr_expect_eq(access(once, F_OK), 0, "%s: %s was never come to", name, fail);
            trial_wait_idle(&t);
        }
    end(&t);
}

Test(crash, a_rank_at_every_step_of_a_load) {
    static const char *const points[] = {"ckpt.load_begin", "ckpt.load_end"};
    static struct trial t;
    begin(&t);
    for (int i = 0; i < 4; i++) {
        char name[32], fail[80], once[400], again[400];
        const int rank = i % 2;
        snprintf(name, sizeof name, "load%d", i);
        snprintf(fail, sizeof fail, "%s:kill", points[i / 2]);
        /* the other rank dies after the second save, and then this one while it loads */
        plan_fault(&t, name, fail, once);
        renew_worker(&t, rank);
        char other[32];
        snprintf(other, sizeof other, "load%d-first", i);
        plan_fault(&t, other, "ckpt.copy:nth=3:kill", again);
        renew_worker(&t, 1 - rank);
        plan_nothing();
        trial_submit(&t, name, "");
        check(&t, name, 3, -1);
        cr_expect(access(once, F_OK) == 0 && access(again, F_OK) == 0, "%s: %s was never come to", name, fail);
        trial_wait_idle(&t);
    }
    end(&t);
}

/* It comes back and hears of the save again: no generation is lost, and no save. */
Test(crash, the_coordinator_around_its_commit) {
    static const char *const points[] = {"db.ckpt_before_commit:nth=1:kill", "db.ckpt_before_commit:nth=2:kill",
                                         "db.ckpt_after_commit:nth=1:kill", "db.ckpt_after_commit:nth=2:kill",
                                         "coord.before_commit_reply:nth=1:kill", "coord.before_commit_reply:nth=2:kill"};
    static struct trial t;
    begin(&t);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        char name[32], once[400];
        snprintf(name, sizeof name, "coord%zu", i);
        kill(t.c.coord, SIGTERM);
        waitpid(t.c.coord, NULL, 0);
        plan_fault(&t, name, points[i], once);
        cluster_start_coord(&t.c);
        plan_nothing();
        trial_wait_idle(&t);
        trial_submit(&t, name, "");
        int status = 0;
        for (double end = now_s() + 60; waitpid(t.c.coord, &status, WNOHANG) == 0; nap_ms(10))
            cr_assert(now_s() < end, "%s: %s was never come to", name, points[i]);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        cluster_start_coord(&t.c);
        fprintf(stderr, "%s: the coordinator was killed at %s\n", name, points[i]);
        check(&t, name, 1, -1);
        trial_wait_idle(&t);
    }
    end(&t);
}
#endif
