/* SPDX-License-Identifier: Apache-2.0 */
/* Kill any process at any instant: the run ends SUCCEEDED with the same parameters as an undisturbed one,
 * one loss row per step and no gap, no process and no acknowledged row lost. Instants are drawn from a
 * seed; ZT_FAULT_ROUNDS (default 5) says how many per kind, ZT_FAULT_SEED where they start. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "core/rng.h"
#include "tests/integration/harness.h"

#define WORLD 3
#define STEPS 300

static int rounds(void) {
    const char *v = getenv("ZT_FAULT_ROUNDS");
    return v != NULL ? atoi(v) : 5;
}
static uint32_t draw(int round, uint32_t what, uint32_t below) {
    const char *v = getenv("ZT_FAULT_SEED");
    uint32_t w[4];
    zt_rng_words(v != NULL ? strtoull(v, NULL, 10) : 1, ZT_RNG_TEST, 0, what, (uint64_t)round, w);
    return w[0] % below;
}

struct trial {
    struct cluster c;
    char hash[40];    /* of the undisturbed run */
    double loss[STEPS];
};

static void start_run(struct trial *t, const char *name) {
    char file[512];
    snprintf(file, sizeof file, "%s", cluster_run_file(&t->c, name, STEPS, WORLD, ""));
    struct output o = zctl(&t->c, 30, "submit %s", file);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
}

static void final_hash(struct trial *t, const char *name, char hash[40], int64_t *generation) {
    json_t *s = zctl_json(&t->c, "status %s", name);
    const char *h = json_string_value(json_object_get(s, "parameter_hash"));
    cr_assert(h != NULL && strlen(h) == 32, "no parameter hash: %s", json_dumps(s, JSON_COMPACT));
    snprintf(hash, 40, "%s", h);
    *generation = json_integer_value(json_object_get(s, "generation"));
    json_decref(s);
}

static void read_losses(struct trial *t, const char *name, double *loss) {
    json_t *rows = zctl_jsonl(&t->c, "metrics %s", name), *ranks = zctl_jsonl(&t->c, "metrics %s --rank all", name);
    cr_assert_eq(json_array_size(rows), STEPS, "%zu rows", json_array_size(rows));
    cr_assert_eq(json_array_size(ranks), STEPS * WORLD, "%zu rank rows", json_array_size(ranks));
    for (size_t i = 0; i < STEPS; i++) {
        json_t *r = json_array_get(rows, i);
        cr_assert_eq(json_integer_value(json_object_get(r, "step")), (json_int_t)i + 1);
        loss[i] = json_number_value(json_object_get(r, "loss"));
    }
    json_decref(rows);
    json_decref(ranks);
}

static void undisturbed(struct trial *t) {
    int64_t generation;
    cluster_start(&t->c, WORLD);
    start_run(t, "base");
    wait_run(&t->c, "base", "SUCCEEDED", 120);
    final_hash(t, "base", t->hash, &generation);
    cr_assert_eq(generation, 1);
    read_losses(t, "base", t->loss);
}

/* The end that every fault must come to, in generation `want`. On a busy machine a process may have been ended when its
 * work was done: with `late` the first generation is right too, since read_losses finds the last row of every rank.
 * True: the fault cost a generation. */
static bool check_end(struct trial *t, const char *name, int64_t want, bool late) {
    char hash[40];
    int64_t generation;
    static double loss[STEPS];
    wait_run(&t->c, name, "SUCCEEDED", 120);
    final_hash(t, name, hash, &generation);
    cr_expect_str_eq(hash, t->hash, "%s", name);
    if (!late || generation != 1) cr_expect_eq(generation, want, "%s: generation %d", name, (int)generation);
    read_losses(t, name, loss);
    cr_expect_eq(memcmp(loss, t->loss, sizeof loss), 0, "%s: the loss series differs", name);
    return generation == 2;
}

static bool same_workers_idle(void *arg) {
    struct cluster *c = arg;
    json_t *j = zctl_json(c, "workers"), *list = json_is_array(j) ? j : json_object_get(j, "workers"), *w;
    size_t i;
    int idle = 0;
    json_array_foreach(list, i, w) idle += strcmp(json_string_value(json_object_get(w, "state")), "IDLE") == 0;
    json_decref(j);
    return idle == WORLD;
}

/* Until `step` is recorded, then some milliseconds more: an instant somewhere inside a step. */
static void until_instant(struct trial *t, const char *name, int round, uint32_t what) {
    wait_step(&t->c, name, 1 + (int64_t)draw(round, what, STEPS / 2), 60);
    nap_ms((int)draw(round, what + 100, 40));
}

/* Named shared memory, but for what the test library (bxf...) keeps of its own. */
static int count_shm(void) {
    DIR *d = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' && strncmp(e->d_name, "bxf", 3) != 0;
    if (d != NULL) closedir(d);
    return n;
}

Test(faults, kill_trainer) {
    struct trial t = {0};
    int shm = count_shm(), hits = 0;
    undisturbed(&t);
    for (int r = 0; r < rounds(); r++) {
        char name[32];
        snprintf(name, sizeof name, "trainer%d", r);
        wait_for(same_workers_idle, &t.c, 30, "idle workers");
        start_run(&t, name);
        until_instant(&t, name, r, 1);
        pid_t child = trainer_of(t.c.worker[draw(r, 2, WORLD)]);
        if (child > 0) kill(child, SIGKILL);
        if (check_end(&t, name, 2, true)) {
            hits++;
            json_t *s = zctl_json(&t.c, "status %s", name);
            json_t *a = json_array_get(json_object_get(s, "attempts"), 0);
            cr_expect_str_eq(json_string_value(json_object_get(a, "reason")), "KILLED");
            cr_expect_eq(json_integer_value(json_object_get(a, "rank")), (json_int_t)draw(r, 2, WORLD));
            json_decref(s);
        }
    }
    cr_expect(2 * hits >= rounds(), "only %d of %d trainers were ended in the middle of a run", hits, rounds());
    cluster_stop(&t.c);
    cr_expect_eq(count_shm(), shm);
}

Test(faults, kill_supervisor) {
    struct trial t = {0};
    int hits = 0;
    undisturbed(&t);
    for (int r = 0; r < rounds(); r++) {
        char name[32];
        int victim = (int)draw(r, 3, WORLD);
        snprintf(name, sizeof name, "supervisor%d", r);
        wait_for(same_workers_idle, &t.c, 30, "idle workers");
        start_run(&t, name);
        until_instant(&t, name, r, 4);
        pid_t child = trainer_of(t.c.worker[victim]);
        kill(t.c.worker[victim], SIGKILL);
        waitpid(t.c.worker[victim], NULL, 0);
        /* its trainer dies with it */
        double end = now_s() + 5;
        while (child > 0 && kill(child, 0) == 0 && now_s() < end) nap_ms(10);
        cr_expect(child == 0 || kill(child, 0) != 0, "trainer %d outlived its supervisor", (int)child);
        cluster_start_worker(&t.c, victim, NULL);
        hits += check_end(&t, name, 2, true);
    }
    cr_expect(2 * hits >= rounds(), "only %d of %d supervisors were ended in the middle of a run", hits, rounds());
    cluster_stop(&t.c);
}

Test(faults, kill_coordinator) {
    struct trial t = {0};
    undisturbed(&t);
    for (int r = 0; r < rounds(); r++) {
        char name[32];
        snprintf(name, sizeof name, "coordinator%d", r);
        wait_for(same_workers_idle, &t.c, 30, "idle workers");
        start_run(&t, name);
        until_instant(&t, name, r, 5);
        json_t *before = zctl_jsonl(&t.c, "metrics %s --rank all", name);
        kill(t.c.coord, SIGKILL);
        waitpid(t.c.coord, NULL, 0);
        nap_ms(1000);
        cluster_start_coord(&t.c);
        json_t *after = zctl_jsonl(&t.c, "metrics %s --rank all", name), *row, *now;
        size_t i, k = 0;
        json_array_foreach(before, i, row) { /* both by step, then rank; after may have ranks in between */
            while ((now = json_array_get(after, k++)) != NULL && !json_equal(now, row)) {}
            cr_assert(now != NULL, "row %zu that was shown is gone or another", i);
        }
        json_decref(before);
        json_decref(after);
        check_end(&t, name, 1, false); /* no step and no generation lost */
    }
    cluster_stop(&t.c);
}

Test(faults, stopped_trainer_is_a_hang) {
    struct trial t = {0};
    int hits = 0;
    undisturbed(&t);
    for (int r = 0; r < rounds(); r++) {
        char file[512], name[32];
        int victim = (int)draw(r, 7, WORLD);
        snprintf(name, sizeof name, "hang%d", r);
        snprintf(file, sizeof file, "%s",
                 cluster_run_file(&t.c, name, STEPS, WORLD,
                                  "timeouts: {progress: 2}\ncomm: {train_timeout_seconds: 4}\n"));
        wait_for(same_workers_idle, &t.c, 30, "idle workers");
        struct output o = zctl(&t.c, 30, "submit %s", file);
        cr_assert_eq(o.code, 0, "%s", o.err);
        output_free(&o);
        until_instant(&t, name, r, 6);
        pid_t child = trainer_of(t.c.worker[victim]);
        if (child > 0) kill(child, SIGSTOP);
        if (!check_end(&t, name, 2, true)) continue;
        hits++;
        json_t *s = zctl_json(&t.c, "status %s", name), *a = json_array_get(json_object_get(s, "attempts"), 0);
        cr_expect_str_eq(json_string_value(json_object_get(a, "reason")), "HANG");
        cr_expect_eq(json_integer_value(json_object_get(a, "rank")), victim);
        /* another rank may have finished the step in which this one stood still */
        json_int_t failed = json_integer_value(json_object_get(a, "failed_step"));
        json_int_t last = json_integer_value(json_object_get(a, "last_step"));
        cr_expect(failed == last || failed == last + 1, "failed in %lld, last finished %lld", (long long)failed, (long long)last);
        json_decref(s);
    }
    cr_expect(2 * hits >= rounds(), "only %d of %d trainers were stopped in the middle of a run", hits, rounds());
    cluster_stop(&t.c);
}
