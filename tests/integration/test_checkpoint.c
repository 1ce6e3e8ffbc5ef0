/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints with real daemons: what a killed trainer costs, a slow disk (B25), a coordinator that is away, what
 * retention leaves (B27), a run that diverges (B29), draining, copies in memory. What the database names is there, is
 * what was written, and is what the run goes on from: it ends with the bits of an undisturbed run.
 * A build without failpoints skips what needs them. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/trial.h"

#define LIMIT 120.0 /* seconds that anything may take */

/* ------------------------------------------------------------------------------------------ runs */

/* fsdp over two workers, a save every fifth step; more lines of `extra` may follow. */
static const char *run_file(struct trial *t, const char *name, const char *extra) {
    char text[2048];
    bool saves = strstr(extra, "checkpoint:") != NULL;
    snprintf(text, sizeof text, "parallelism: {mode: fsdp}\n%s%s%s%s%s", saves ? "" : "checkpoint: {folder: ", saves ? "" : t->c.dir,
             saves ? "" : "/ck, interval: 5, keep_latest_k: 2}\n",
             strstr(extra, "restart:") ? "" : "restart: {backoff_seconds: {initial: 0.1, max: 0.1}}\n", extra);
    return cluster_run_file(&t->c, name, t->steps, t->world, text);
}

static void begin(struct trial *t, int world, int steps) {
    *t = (struct trial){.world = world, .steps = steps, .file = run_file};
    cluster_init(&t->c);
    cluster_start_coord(&t->c);
}

/* A worker that sleeps at a step of saving once, at the first process that comes there, or at every step. */
static void start_worker(struct trial *t, int i, const char *fail) {
    char once[300];
    snprintf(once, sizeof once, "%s/acted", t->c.dir);
    setenv("ZT_FAIL", fail != NULL ? fail : "", 1);
    if (fail != NULL && strncmp(fail, "ckpt.", 5) == 0) setenv("ZT_FAIL_ONCE", once, 1);
    cluster_start_worker(&t->c, i, NULL);
    unsetenv("ZT_FAIL");
    unsetenv("ZT_FAIL_ONCE");
}

static void start_workers(struct trial *t) {
    for (int i = 0; i < t->world; i++) start_worker(t, i, NULL);
    cluster_wait_idle(&t->c, t->world);
}

static void kill_and_reap(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* An idle one, in place of that one: the coordinator has heard that it went. */
static void replace_worker(struct trial *t, int i, const char *fail) {
    kill(t->c.worker[i], SIGTERM);
    waitpid(t->c.worker[i], NULL, 0);
    start_worker(t, i, fail);
}

static void replace_workers(struct trial *t, const char *fail_0, const char *fail_1) {
    trial_wait_idle(t);
    replace_worker(t, 0, fail_0);
    replace_worker(t, 1, fail_1);
    trial_wait_idle(t);
}

/* The end of an experiment, which the next one in this cluster does not see. */
static void forget_act(struct trial *t) {
    char path[300];
    snprintf(path, sizeof path, "%s/acted", t->c.dir);
    unlink(path);
}
static bool has_acted(void *arg) {
    char path[300];
    snprintf(path, sizeof path, "%s/acted", ((struct trial *)arg)->c.dir);
    return access(path, F_OK) == 0;
}

static bool with_failpoints(void) {
#ifdef ZT_FAILPOINTS
    return true;
#else
    return false;
#endif
}

/* ------------------------------------------------------------------------------------ looking in */

static json_int_t number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

struct look { struct trial *t; const char *run; json_int_t committed, saving; char folder[400]; };

/* Newest committed step and the one in progress; -1: none, or the coordinator is away. */
static void look(struct look *l) {
    struct output o = zctl(&l->t->c, 20, "status %s -o json --timeout 5", l->run);
    json_t *s = o.code == 0 ? json_loads(o.out, 0, NULL) : NULL, *c = json_object_get(s, "checkpoint");
    l->committed = number(c, "step");
    l->saving = number(json_object_get(s, "saving"), "step");
    if (json_is_object(c)) snprintf(l->folder, sizeof l->folder, "%s", json_string_value(json_object_get(c, "folder")));
    json_decref(s);
    output_free(&o);
}
static bool has_committed(void *arg) {
    look(arg);
    return ((struct look *)arg)->committed > 0;
}
static bool saves_the_next(void *arg) {
    struct look *l = arg;
    look(l);
    return l->committed > 0 && l->saving > l->committed;
}

static int events_of(struct trial *t, const char *run, const char *kind, char *text, size_t n) {
    json_t *all = zctl_jsonl(&t->c, "events %s", run), *e;
    size_t i;
    int found = 0;
    json_array_foreach(all, i, e) {
        const char *k = json_string_value(json_object_get(e, "kind")), *m = json_string_value(json_object_get(e, "message"));
        if (k == NULL || strcmp(k, kind) != 0) continue;
        if (found++ == 0 && text != NULL) snprintf(text, n, "%s", m != NULL ? m : "");
    }
    json_decref(all);
    return found;
}

/* Steps that the database calls committed, newest first; each of them verifies, byte for byte. */
static int committed_steps(struct trial *t, const char *run, json_int_t *steps, int max) {
    json_t *l = zctl_json(&t->c, "checkpoint ls %s", run), *c;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(l, "checkpoints"), i, c)
        if (strcmp(json_string_value(json_object_get(c, "state")), "COMMITTED") == 0 && n < max) steps[n++] = number(c, "step");
    json_decref(l);
    for (int k = 0; k < n; k++) {
        struct output o = zctl(&t->c, 60, "checkpoint verify %s@%lld", run, (long long)steps[k]);
        cr_expect_eq(o.code, 0, "%s@%lld: %s%s", run, (long long)steps[k], o.out, o.err);
        output_free(&o);
    }
    return n;
}

/* Beginnings of folders in the run's folder. */
static int folders(const char *folder, const char *part) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    if (d != NULL) closedir(d);
    return n;
}

/* Every row is of the generation that went on before it, the newest of them: nothing is kept of steps that were done
 * again, nothing was done twice or skipped. Returns where the newest generation began. */
static json_int_t check_generations(struct trial *t, const char *run) {
    json_t *s = zctl_json(&t->c, "status %s", run), *rows = zctl_jsonl(&t->c, "metrics %s", run), *r;
    json_t *attempts = json_object_get(s, "attempts");
    json_int_t generation = number(s, "generation"), began = 0;
    size_t i;
    json_array_foreach(attempts, i, r)
        if (number(r, "generation") == generation && number(r, "start_step") > 0) began = number(r, "start_step");
    json_array_foreach(rows, i, r) {
        json_int_t step = number(r, "step"), g = number(r, "generation");
        cr_expect(step > began ? g == generation : g < generation, "%s: step %lld is of generation %lld; %lld began after %lld", run,
                  (long long)step, (long long)g, (long long)generation, (long long)began);
    }
    json_decref(rows);
    json_decref(s);
    return began;
}

/* The bits of the undisturbed run, whatever happened, and nothing left in the way. */
static json_int_t check_end(struct trial *t, const char *run, int64_t *generation) {
    json_int_t steps[8];
    struct look l = {.t = t, .run = run};
    *generation = trial_check(t, run, LIMIT);
    json_int_t began = check_generations(t, run);
    int n = committed_steps(t, run, steps, 8);
    cr_expect_geq(n, 1, "%s", run);
    cr_expect_eq(steps[0], t->steps, "%s: the last step is not saved", run);
    look(&l);
    cr_expect_eq(folders(l.folder, ".tmp-"), 0, "%s: a folder of a save that is no more is left in %s", run, l.folder);
    return began;
}

/* -------------------------------------------------------------------------------- kill -9, plainly */

/* Each rank after a commit: the next generation goes on after the last committed step. */
Test(checkpoint, a_killed_trainer_costs_the_steps_since_the_last_commit) {
    struct trial t;
    begin(&t, 2, 200);
    start_workers(&t);
    trial_undisturbed(&t);
    for (int rank = 0; rank < 2; rank++) {
        char run[32];
        int64_t generation;
        snprintf(run, sizeof run, "rank%d", rank);
        replace_workers(&t, "worker.step:sleep=10", NULL);
        trial_submit(&t, run, "");
        struct look l = {.t = &t, .run = run};
        wait_for(has_committed, &l, LIMIT, "a committed checkpoint");
        kill(trainer_of(t.c.worker[rank]), SIGKILL);
        json_int_t began = check_end(&t, run, &generation);
        cr_expect_eq(generation, 2);
        cr_expect_geq(began, l.committed, "it began after step %lld, committed was %lld", (long long)began, (long long)l.committed);
        cr_expect_eq(began % 5, 0);
        cr_expect_eq(events_of(&t, run, "RESUMED", NULL, 0), 1);
        json_t *s = zctl_json(&t.c, "status %s", run), *a = json_array_get(json_object_get(s, "attempts"), 1);
        static const char *const parts[] = {"start_seconds", "form_seconds", "load_seconds"};
        for (int i = 0; i < 3; i++) cr_expect(json_is_number(json_object_get(a, parts[i])), "%s is not measured", parts[i]);
        a = json_array_get(json_object_get(s, "attempts"), 0);
        cr_expect_str_eq(json_string_value(json_object_get(a, "reason")), "KILLED");
        cr_expect_eq(number(a, "rank"), rank);
        cr_expect(json_is_number(json_object_get(a, "detect_seconds")) && json_is_number(json_object_get(a, "stop_seconds")));
        json_decref(s);
    }
    cluster_stop(&t.c);
}

/* ------------------------------------------------------------------------- a slow disk: B25, twice */

/* The second save of rank 1 takes a minute; step 5 is committed, step 10 is being written. */
static void begin_slow(struct trial *t, const char *run, struct look *l) {
    forget_act(t);
    replace_workers(t, "worker.step:sleep=100", "ckpt.shard_done:nth=2:sleep=60000");
    trial_submit(t, run, "");
    *l = (struct look){.t = t, .run = run};
    wait_for(saves_the_next, l, LIMIT, "a checkpoint and one in the writing");
    wait_for(has_acted, t, LIMIT, "the slow part");
    look(l);
    cr_expect_eq(l->committed, 5);
    cr_expect_eq(l->saving, 10);
    cr_expect_eq(folders(l->folder, "step-00000010.tmp-g1"), 1);
    cr_expect_eq(folders(l->folder, "step-00000005"), 1);
}

Test(reported, B25_killed_while_step_10_is_written) {
    struct trial t;
    struct look l;
    char text[512] = "";
    int64_t generation;
    if (!with_failpoints()) cr_skip_test("a build without failpoints");
    begin(&t, 2, 40);
    start_workers(&t);
    trial_undisturbed(&t);

    begin_slow(&t, "worker", &l);
    kill_and_reap(t.c.worker[1]);
    start_worker(&t, 1, NULL);
    json_int_t began = check_end(&t, "worker", &generation);
    cr_expect_eq(generation, 2);
    cr_expect_eq(began, 5, "it went on after step %lld", (long long)began);
    cr_expect_eq(events_of(&t, "worker", "CHECKPOINT_SWEPT", text, sizeof text), 1, "the remains of step 10 are not told");

    begin_slow(&t, "coordinator", &l);
    kill_and_reap(t.c.coord);
    cluster_start_coord(&t.c);
    wait_for(has_committed, &l, LIMIT, "the coordinator");
    cr_expect_eq(l.committed, 5, "step %lld is called committed", (long long)l.committed);
    kill_and_reap(t.c.worker[1]); /* the slow writer will not end in time */
    start_worker(&t, 1, NULL);
    began = check_end(&t, "coordinator", &generation);
    cr_expect_eq(generation, 2);
    cr_expect_eq(began, 5, "it went on after step %lld", (long long)began);
    cluster_stop(&t.c);
}

/* A coordinator that is away during a save: the save waits for it, training does not. */
Test(checkpoint, a_save_outlives_the_coordinator) {
    struct trial t;
    struct look l;
    int64_t generation;
    json_int_t steps[8];
    if (!with_failpoints()) cr_skip_test("a build without failpoints");
    begin(&t, 2, 40);
    start_workers(&t);
    trial_undisturbed(&t);
    replace_workers(&t, "worker.step:sleep=50", "ckpt.shard_done:nth=2:sleep=1500");
    trial_submit(&t, "away", "checkpoint: {folder: ck, interval: 5, keep_latest_k: 0}\n");
    l = (struct look){.t = &t, .run = "away"};
    wait_for(saves_the_next, &l, LIMIT, "a checkpoint and one in the writing");
    kill_and_reap(t.c.coord);
    cluster_start_coord(&t.c);
    check_end(&t, "away", &generation);
    cr_expect_eq(generation, 1, "the coordinator's restart cost a generation");
    int n = committed_steps(&t, "away", steps, 8), found = 0;
    for (int i = 0; i < n; i++) found += steps[i] == l.saving;
    cr_expect_eq(found, 1, "step %lld, begun before, is not committed", (long long)l.saving);
    cluster_stop(&t.c);
}

/* ------------------------------------------------------------------------------------- retention */

Test(reported, B27_the_newest_two_remain) {
    struct trial t;
    json_int_t steps[16];
    struct look l = {.t = &t, .run = "base"};
    begin(&t, 2, 12);
    for (int i = 0; i < 2; i++) start_worker(&t, i, i == 0 ? "worker.step:sleep=700" : NULL);
    cluster_wait_idle(&t.c, 2);
    trial_submit(&t, "base", "checkpoint: {folder: ck, interval: 1, keep_latest_k: 2}\n");
    wait_run(&t.c, "base", "SUCCEEDED", LIMIT);
    int n = committed_steps(&t, "base", steps, 16);
    cr_assert_eq(n, 2);
    cr_expect_eq(steps[0], 12);
    /* a machine that writes slower than it trains leaves a step out, and says so */
    if (events_of(&t, "base", "CHECKPOINT_SKIPPED", NULL, 0) == 0) cr_expect_eq(steps[1], 11);
    else cr_expect_geq(steps[1], 8, "an old one was kept");
    look(&l);
    cr_expect_eq(folders(l.folder, "step-"), 2);
    cr_expect_eq(folders(l.folder, "step-00000012"), 1);
    cluster_stop(&t.c);
}

/* A run that diverges ends with its reason; what it has kept is finite. */
Test(reported, B29_nothing_that_is_not_finite_is_kept) {
    struct trial t;
    json_int_t steps[16];
    char state[32];
    begin(&t, 2, 60);
    for (int i = 0; i < 2; i++) start_worker(&t, i, i == 0 ? "worker.step:sleep=20" : NULL);
    cluster_wait_idle(&t.c, 2);
    trial_submit(&t, "base", "optimizer: {lr: 1.0e+6}\nrestart: {max_restarts: 3, backoff_seconds: {initial: 0.1, max: 0.1}}\n");
    struct output o = zctl(&t.c, LIMIT, "wait base");
    cr_expect_eq(o.code, 1, "exit code %d: %s", o.code, o.out);
    output_free(&o);
    json_t *s = zctl_json(&t.c, "status base");
    snprintf(state, sizeof state, "%s", json_string_value(json_object_get(s, "state")));
    cr_expect_str_eq(state, "FAILED");
    cr_expect_str_eq(json_string_value(json_object_get(s, "reason")), "NAN_LOSS");
    cr_expect_eq(number(s, "generation"), 1, "it was tried again");
    json_decref(s);
    committed_steps(&t, "base", steps, 16); /* verifying refuses what is not finite */
    cluster_stop(&t.c);
}

/* ----------------------------------------------------------------------------------------- drain */

static bool worker_gone(void *arg) {
    pid_t *pid = arg;
    return waitpid(*pid, NULL, WNOHANG) == *pid;
}

/* SIGTERM to one worker of three: the run saves after its step and goes on elsewhere from there. */
Test(drain, a_run_saves_and_goes_on_elsewhere) {
    struct trial t;
    int64_t generation;
    json_int_t step;
    begin(&t, 2, 200);
    start_workers(&t);
    trial_undisturbed(&t);
    replace_workers(&t, "worker.step:sleep=20", NULL);
    trial_submit(&t, "drained", "");
    wait_step(&t.c, "drained", 7, LIMIT);
    kill(t.c.worker[1], SIGTERM);
    wait_for(worker_gone, &t.c.worker[1], LIMIT, "the drained worker's end");
    t.c.worker[1] = 0;
    start_worker(&t, 1, NULL);
    json_int_t began = check_end(&t, "drained", &generation);
    cr_expect_eq(generation, 2);
    json_t *s = zctl_json(&t.c, "status drained"), *a = json_array_get(json_object_get(s, "attempts"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(a, "reason")), "DRAINED");
    step = number(a, "last_step");
    cr_expect_eq(began, step, "it went on after step %lld, %lld was the last", (long long)began, (long long)step);
    cr_expect_eq(number(a, "steps_redone") > 0, 0);
    json_decref(s);
    cluster_stop(&t.c);
}

/* --------------------------------------------------------------------------------- copies in memory */

static void memory_folder(struct trial *t, const char *run, char *path, size_t n) {
    json_t *s = zctl_json(&t->c, "status %s", run);
    const char *id = json_string_value(json_object_get(s, "run"));
    DIR *d = opendir("/dev/shm");
    path[0] = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, id) != NULL) snprintf(path, n, "/dev/shm/%.200s", e->d_name);
    if (d != NULL) closedir(d);
    json_decref(s);
    cr_assert(path[0] != 0, "no folder of %s in /dev/shm", run);
}

/* Calls fn for files of the folder whose names contain `part`. */
static int each(const char *folder, const char *part, void (*fn)(const char *path)) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[800];
        if (e->d_name[0] == '.' || strstr(e->d_name, part) == NULL) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        fn(path);
        n++;
    }
    if (d != NULL) closedir(d);
    return n;
}
static void unreadable(const char *path) {
    char to[820];
    snprintf(to, sizeof to, "%s.away", path);
    cr_expect_eq(rename(path, to), 0);
}
static void flip(const char *path) {
    char b = 0;
    int fd = open(path, O_RDWR);
    off_t at = lseek(fd, 0, SEEK_END) - 1;
    cr_expect(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 1;
    cr_expect_eq(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

struct loaded { struct trial *t; const char *run; json_int_t bytes, memory; };
static bool all_resumed(void *arg) {
    struct loaded *l = arg;
    char text[600];
    return events_of(l->t, l->run, "RESUMED", text, sizeof text) > 0;
}

/* Saves once, after step 100 (and the last); prepared, then killed, in the second half. */
static void resume_with(struct trial *t, const char *run, void (*prepare)(struct trial *t, const char *run, const char *folder),
                        char *text, size_t n) {
    struct look l = {.t = t, .run = run};
    char extra[512];
    snprintf(extra, sizeof extra, "checkpoint: {folder: %s/ck, interval: 100, keep_latest_k: 2}\n", t->c.dir);
    trial_wait_idle(t);
    trial_submit(t, run, extra);
    wait_for(has_committed, &l, LIMIT, "a committed checkpoint");
    char step[500];
    snprintf(step, sizeof step, "%s/step-%08lld", l.folder, (long long)l.committed);
    prepare(t, run, step);
    kill(trainer_of(t->c.worker[1]), SIGKILL);
    struct loaded a = {.t = t, .run = run};
    wait_for(all_resumed, &a, LIMIT, "the next generation to have loaded");
    events_of(t, run, "RESUMED", text, n);
    cr_expect_eq(trial_check(t, run, LIMIT), 2);
    cr_expect_eq(check_generations(t, run), l.committed);
}

static void disk_is_gone(struct trial *t, const char *run, const char *folder) {
    (void)t, (void)run;
    cr_expect_gt(each(folder, ".safetensors", unreadable), 0);
}
static void memory_is_damaged(struct trial *t, const char *run, const char *folder) {
    char path[300];
    (void)folder;
    memory_folder(t, run, path, sizeof path);
    cr_expect_gt(each(path, ".safetensors", flip), 0);
}

static bool loaded(const char *text, long long *files, long long *memory) {
    const char *at = strstr(text, "loading took");
    at = at != NULL ? strchr(at, ',') : NULL;
    return at != NULL && sscanf(at, ", %lld bytes from files, %lld from copies in memory", files, memory) == 2;
}

Test(memory, resumes_when_the_disk_has_nothing_and_not_from_damaged_copies) {
    struct trial t;
    char text[600], id[2][64];
    long long files = 0, memory = 0;
    begin(&t, 2, 200);
    for (int i = 0; i < 2; i++) start_worker(&t, i, i == 0 ? "worker.step:sleep=30" : NULL);
    cluster_wait_idle(&t.c, 2);
    trial_undisturbed(&t);
    resume_with(&t, "disk-gone", disk_is_gone, text, sizeof text);
    cr_expect(loaded(text, &files, &memory) && files == 0 && memory > 0, "%s", text);
    resume_with(&t, "copy-damaged", memory_is_damaged, text, sizeof text);
    cr_expect(loaded(text, &files, &memory) && files > 0, "%s", text);
    /* the folder of a run that is over is gone already; the others' with their workers */
    for (int i = 0; i < 2; i++) {
        json_t *s = zctl_json(&t.c, "status %s", i == 0 ? "disk-gone" : "copy-damaged");
        snprintf(id[i], sizeof id[i], "%s", json_string_value(json_object_get(s, "run")));
        json_decref(s);
    }
    cluster_stop(&t.c);
    for (int i = 0; i < 2; i++) cr_expect_eq(folders("/dev/shm", id[i]), 0, "copies in memory are left");
}

/* Two hosts, each with the other's part too: ddp, where every rank reads everything, goes on from memory alone. */
struct copies { char path[2][300]; };
static bool both_have_both(void *arg) {
    struct copies *c = arg;
    int n = 0;
    for (int i = 0; i < 2; i++) n += folders(c->path[i], "rank-0000");
    return n == 4;
}

static struct copies copies_of(struct trial *t, const char *run) {
    struct copies c;
    json_t *s = zctl_json(&t->c, "status %s", run);
    for (int i = 0; i < 2; i++)
        snprintf(c.path[i], sizeof c.path[i], "/dev/shm/ztrain-%u-ckpt-host-%c-%s", (unsigned)geteuid(), 'a' + i,
                 json_string_value(json_object_get(s, "run")));
    json_decref(s);
    return c;
}

static void disk_is_gone_on_two_hosts(struct trial *t, const char *run, const char *folder) {
    struct copies c = copies_of(t, run);
    wait_for(both_have_both, &c, LIMIT, "copies of both parts on both hosts");
    cr_expect_gt(each(folder, ".safetensors", unreadable), 0);
}

static const char *ddp_file(struct trial *t, const char *name, const char *extra) {
    char text[1024];
    snprintf(text, sizeof text, "parallelism: {mode: ddp}\ncheckpoint: {folder: %s/ck, interval: 100, memory_copies: 2}\n"
             "restart: {backoff_seconds: {initial: 0.1, max: 0.1}}\n", t->c.dir);
    (void)extra;
    return cluster_run_file(&t->c, name, t->steps, t->world, text);
}

Test(memory, another_hosts_part) {
    struct trial t;
    char text[600];
    long long files = 0, memory = 0;
    begin(&t, 2, 200);
    t.file = ddp_file;
    setenv("ZT_FAIL", "worker.step:sleep=30", 1);
    cluster_start_worker(&t.c, 0, "--host ckpt-host-a");
    unsetenv("ZT_FAIL");
    cluster_start_worker(&t.c, 1, "--host ckpt-host-b");
    trial_wait_idle(&t);
    trial_undisturbed(&t);
    resume_with(&t, "disk-gone", disk_is_gone_on_two_hosts, text, sizeof text);
    cr_expect(loaded(text, &files, &memory) && files == 0 && memory > 0, "%s", text);
    struct copies c = copies_of(&t, "disk-gone");
    cluster_stop(&t.c);
    for (int i = 0; i < 2; i++) cr_expect_neq(access(c.path[i], F_OK), 0, "%s is left", c.path[i]);
}
