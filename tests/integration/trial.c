/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/trial.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"

int trial_rounds(int by_default) {
    const char *v = getenv("ZT_FAULT_ROUNDS");
    return v != NULL ? atoi(v) : by_default;
}

uint32_t trial_draw(int round, uint32_t what, uint32_t below) {
    const char *v = getenv("ZT_FAULT_SEED");
    uint32_t w[4];
    zt_rng_words(v != NULL ? strtoull(v, NULL, 10) : 1, ZT_RNG_TEST, 0, what, (uint64_t)round, w);
    return w[0] % below;
}

void trial_submit(struct trial *t, const char *name, const char *extra) {
    char file[512];
    snprintf(file, sizeof file, "%s",
             t->file ? t->file(t, name, extra) : cluster_run_file(&t->c, name, t->steps, t->world, extra));
    struct output o = zctl(&t->c, 30, "submit %s", file);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
}

void trial_hash(struct trial *t, const char *name, char hash[40], int64_t *generation) {
    json_t *s = zctl_json(&t->c, "status %s", name);
    const char *h = json_string_value(json_object_get(s, "parameter_hash"));
    cr_assert(h != NULL && strlen(h) == 32, "no parameter hash: %s", json_dumps(s, JSON_COMPACT));
    snprintf(hash, 40, "%s", h);
    *generation = json_integer_value(json_object_get(s, "generation"));
    json_decref(s);
}

void trial_losses(struct trial *t, const char *name, double *loss) {
    json_t *rows = zctl_jsonl(&t->c, "metrics %s", name), *ranks = zctl_jsonl(&t->c, "metrics %s --rank all", name);
    cr_assert_eq(json_array_size(rows), (size_t)t->steps, "%s: %zu rows", name, json_array_size(rows));
    cr_assert_eq(json_array_size(ranks), (size_t)(t->steps * t->world), "%s: %zu rank rows", name, json_array_size(ranks));
    for (int i = 0; i < t->steps; i++) {
        json_t *r = json_array_get(rows, (size_t)i);
        cr_assert_eq(json_integer_value(json_object_get(r, "step")), (json_int_t)i + 1);
        loss[i] = json_number_value(json_object_get(r, "loss"));
    }
    json_decref(rows);
    json_decref(ranks);
}

void trial_undisturbed(struct trial *t) {
    int64_t generation;
    cr_assert_leq(t->steps, TRIAL_STEPS_MAX);
    trial_submit(t, "base", "");
    wait_run(&t->c, "base", "SUCCEEDED", 300);
    trial_hash(t, "base", t->hash, &generation);
    cr_assert_eq(generation, 1);
    trial_losses(t, "base", t->loss);
}

int64_t trial_check(struct trial *t, const char *name, double timeout_s) {
    char hash[40];
    int64_t generation;
    static double loss[TRIAL_STEPS_MAX];
    wait_run(&t->c, name, "SUCCEEDED", timeout_s);
    trial_hash(t, name, hash, &generation);
    cr_expect_str_eq(hash, t->hash, "%s", name);
    trial_losses(t, name, loss);
    for (int i = 0; i < t->steps; i++)
        if (memcmp(&loss[i], &t->loss[i], sizeof loss[i]) != 0) {
            cr_expect_fail("%s: the loss of step %d is %.17g, undisturbed %.17g", name, i + 1, loss[i], t->loss[i]);
            break;
        }
    return generation;
}

static bool idle(void *arg) {
    struct trial *t = arg;
    struct output o = zctl(&t->c, 20, "workers -o json");
    json_t *j = o.code == 0 ? json_loads(o.out, 0, NULL) : NULL, *w;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(j, "workers"), i, w)
        n += strcmp(json_string_value(json_object_get(w, "state")), "IDLE") == 0;
    json_decref(j);
    output_free(&o);
    return n == t->world;
}

void trial_wait_idle(struct trial *t) { wait_for(idle, t, 60, "idle workers"); }

static bool shm_is_back(void *arg) { return trial_count_shm() <= *(int *)arg; }
void trial_wait_shm(int before) { wait_for(shm_is_back, &before, 30, "shared memory to be as before"); }

/* Of another cluster on this machine: its workers hold a lock in the folder of copies of a checkpoint. */
static bool is_held(const char *name) {
    char path[400];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(path, sizeof path, "/dev/shm/%.250s/lock", name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool held = fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (fd >= 0) close(fd);
    return held;
}

int trial_count_shm(void) {
    DIR *d = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' && strncmp(e->d_name, "bxf", 3) != 0 && !is_held(e->d_name);
    if (d != NULL) closedir(d);
    return n;
}
