/* SPDX-License-Identifier: Apache-2.0 */
/* The commands about checkpoints as a user types them, against real daemons: what is listed, read, pinned, removed,
 * collected and compared; a fault on disk that verify finds and the coordinator remembers; going on from one by
 * --resume, with the figures of the run that was not stopped; zctl drill, which says so of itself. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/integration/harness.h"

static struct cluster c;

/* The first save of a run and its last one are taken whatever the speed of the disk; others may be skipped. */
#define SAVES "checkpoint: {folder: saved, interval: 10, keep_latest_k: 0}\nmetrics: {parameter_hash_every: 1}\n"

/* zctl and what it must say (on either output), with its exit code. */
#define TYPED(wanted_code, wanted, ...)                                                                               \
    do {                                                                                                              \
        struct output out = zctl(&c, 180, __VA_ARGS__);                                                               \
        cr_assert(out.code == (wanted_code) && (strstr(out.out, wanted) || strstr(out.err, wanted)),                  \
                  "line %d: exit %d, wanted %d and \"%s\"\n%s%s", __LINE__, out.code, wanted_code, wanted, out.out, out.err); \
        output_free(&out);                                                                                            \
    } while (0)

static json_t *checkpoint(json_t *list, int64_t step) {
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(list, "checkpoints"), i, row)
        if (json_integer_value(json_object_get(row, "step")) == step)
            return row;
    return NULL;
}

/* "20 COMMITTED, 15 CORRUPT": all there are, as the coordinator knows them. */
static const char *listed(const char *run) {
    static char text[256];
    json_t *list = zctl_json(&c, "checkpoint ls %s", run), *row;
    size_t i;
    text[0] = '\0';
    json_array_foreach(json_object_get(list, "checkpoints"), i, row)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld %s", i ? ", " : "",
                 (long long)json_integer_value(json_object_get(row, "step")), json_string_value(json_object_get(row, "state")));
    json_decref(list);
    return text;
}

static char folder[PATH_MAX]; /* of the run's checkpoints */

/* A run of 20 steps on two workers that saved after 10 and 20. */
static void trained(void) {
    cluster_init(&c);
    cluster_start(&c, 2);
    TYPED(0, "run ", "submit %s", cluster_run_file(&c, "base", 20, 2, SAVES));
    wait_run(&c, "base", "SUCCEEDED", 180);
    json_t *list = zctl_json(&c, "checkpoint ls base");
    snprintf(folder, sizeof folder, "%s", json_string_value(json_object_get(list, "folder")));
    json_decref(list);
}

static void ended(void) { cluster_stop(&c); }

/* One bit of a file of that step, near its end: a value, not a header. */
static void flip(int64_t step, const char *prefix) {
    char path[PATH_MAX + 64], file[PATH_MAX + 400] = "";
    struct dirent *e;
    struct stat st;
    unsigned char byte;
    snprintf(path, sizeof path, "%s/step-%08lld", folder, (long long)step);
    DIR *d = opendir(path);
    cr_assert(d, "%s", path);
    while ((e = readdir(d)) != NULL)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0)
            snprintf(file, sizeof file, "%s/%s", path, e->d_name);
    closedir(d);
    int fd = open(file, O_RDWR);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &byte, 1, st.st_size - 5) == 1, "%s", file);
    byte ^= 0x04;
    cr_assert_eq(pwrite(fd, &byte, 1, st.st_size - 5), 1);
    close(fd);
}

Test(checkpoint_cli, listed_read_and_compared, .init = trained, .fini = ended, .timeout = 800) {
    char want[PATH_MAX + 64], real[PATH_MAX];
    json_t *list = zctl_json(&c, "checkpoint ls base"), *row = checkpoint(list, 10), *j;
    cr_expect_str_eq(listed("base"), "20 COMMITTED, 10 COMMITTED");
    /* relative to the run file, a folder of its own for each run */
    cr_assert(realpath(c.dir, real));
    snprintf(want, sizeof want, "%s/saved/%s", real, json_string_value(json_object_get(list, "run")));
    cr_expect_str_eq(folder, want);
    cr_expect_eq(json_integer_value(json_object_get(row, "shards")), 2);
    cr_expect_gt(json_number_value(json_object_get(row, "write_seconds")), 0);
    cr_expect_eq(strlen(json_string_value(json_object_get(row, "manifest_sha256"))), 64);

    /* what is on disk is what the coordinator counts; hashes are those that training reported */
    json_t *show = zctl_json(&c, "checkpoint show base@10"), *steps = zctl_jsonl(&c, "metrics base --step 10");
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(show, "bytes"), "all")),
                 json_integer_value(json_object_get(row, "bytes")));
    cr_expect(json_equal(json_object_get(show, "parameter_hash"), json_object_get(json_array_get(steps, 0), "parameter_hash")));
    cr_expect(json_equal(json_object_get(show, "state_hash"), json_object_get(json_array_get(steps, 0), "state_hash")));
    cr_expect(json_is_string(json_object_get(show, "state_hash")));
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(show, "position"), "step")), 10);
    json_decref(show);
    json_decref(steps);
    json_decref(list);

    TYPED(0, "base@10 verified: ", "checkpoint verify base@10");
    TYPED(0, "base@20 verified: ", "checkpoint verify base");
    TYPED(1, "DIFFERENT: ", "checkpoint diff base@10 base@20");
    TYPED(0, "EQUAL: ", "checkpoint diff base@10 %s/step-00000010", folder);
    TYPED(3, "has no checkpoint of step 7; there are: 20, 10", "checkpoint show base@7");
    TYPED(3, "nosuch", "checkpoint ls nosuch");
    j = zctl_json(&c, "status base");
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(j, "checkpoint"), "step")), 20);
    json_decref(j);
    TYPED(0, "ckpt     step 20 (generation 1) committed", "status base");
    TYPED(0, "CHECKPOINT_COMMITTED", "events base");

    /* without a daemon: reading works, changing is refused */
    cr_assert_eq(kill(c.coord, SIGTERM), 0);
    cr_assert_eq(waitpid(c.coord, NULL, 0), c.coord);
    c.coord = 0;
    TYPED(0, "COMMITTED", "--state %s/coord checkpoint ls base", c.dir);
    TYPED(0, "verified: ", "--state %s/coord checkpoint verify base@10", c.dir);
    TYPED(0, "position step 10 of 20", "--state %s/coord checkpoint show base@10", c.dir);
    TYPED(2, "--state only reads", "--state %s/coord checkpoint pin base@10", c.dir);
    TYPED(0, "ON_DISK", "checkpoint ls %s", folder);
    cluster_start_coord(&c);
}

Test(checkpoint_cli, pinned_removed_and_collected, .init = trained, .fini = ended, .timeout = 800) {
    char path[PATH_MAX + 64];
    struct stat st;
    TYPED(2, "say which one", "checkpoint pin base");
    TYPED(0, "base@10 is pinned", "checkpoint pin base@10");
    TYPED(2, "pinned", "checkpoint rm base@10");
    TYPED(0, "not pinned any more", "checkpoint unpin base@10");
    TYPED(0, "base@10 is removed", "checkpoint rm base@10");
    snprintf(path, sizeof path, "%s/step-00000010", folder);
    cr_expect(stat(path, &st) < 0, "its files are gone");
    cr_expect_str_eq(listed("base"), "20 COMMITTED");
    TYPED(3, "no checkpoint of step 10", "checkpoint rm base@10");
    TYPED(2, "", "checkpoint rm base@20"); /* the last one that is good */
    cr_expect_str_eq(listed("base"), "20 COMMITTED");

    /* what a killed save left is told, and goes; what nobody committed stays */
    snprintf(path, sizeof path, "%s/step-00000017.tmp-g1", folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/step-00000017", folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    TYPED(0, "would remove step-00000017.tmp-g1", "checkpoint gc base --dry-run");
    snprintf(path, sizeof path, "%s/step-00000017.tmp-g1", folder);
    cr_expect_eq(stat(path, &st), 0, "a dry run removes nothing");
    TYPED(0, "removed step-00000017.tmp-g1", "checkpoint gc base");
    cr_expect(stat(path, &st) < 0);
    snprintf(path, sizeof path, "%s/step-00000017", folder);
    cr_expect_eq(stat(path, &st), 0);
    cr_expect_str_eq(listed("base"), "20 COMMITTED");
}

/* A fault on disk is found, remembered, and not gone on from; what is left that is good cannot be removed. */
Test(checkpoint_cli, a_fault_is_remembered, .init = trained, .fini = ended, .timeout = 800) {
    flip(20, "optim-");
    TYPED(1, "base@20 is CORRUPT: ", "checkpoint verify base");
    cr_expect_str_eq(listed("base"), "20 CORRUPT, 10 COMMITTED");
    TYPED(0, "ckpt     step 10 ", "status base");
    TYPED(2, "", "checkpoint rm base@10");
    cr_expect_str_eq(listed("base"), "20 CORRUPT, 10 COMMITTED");
    TYPED(0, "run ", "submit --resume base --name next --set training.steps=12");
    wait_run(&c, "next", "SUCCEEDED", 180);
    TYPED(0, "step 10", "status next");
    TYPED(0, "base@20 is removed", "checkpoint rm base@20");
    cr_expect_str_eq(listed("base"), "10 COMMITTED");
}

/* Steps of a run by number, as JSON objects. */
static json_t *step_of(json_t *rows, int64_t step) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
        if (json_integer_value(json_object_get(row, "step")) == step)
            return row;
    cr_assert_fail("no step %lld", (long long)step);
    return NULL;
}

static void same_steps(const char *run, int64_t from, int64_t to) {
    static const char *const fields[] = {"loss", "grad_norm", "lr", "tokens", "sample_hash", "parameter_hash", "state_hash"};
    json_t *a = zctl_jsonl(&c, "metrics base"), *b = zctl_jsonl(&c, "metrics %s", run);
    for (int64_t s = from; s <= to; s++)
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
            json_t *x = json_object_get(step_of(a, s), fields[i]), *y = json_object_get(step_of(b, s), fields[i]);
            cr_expect(x && !json_is_null(x) && json_equal(x, y), "step %lld %s", (long long)s, fields[i]);
        }
    json_decref(a);
    json_decref(b);
}

Test(checkpoint_cli, goes_on_from_another_run, .init = trained, .fini = ended, .timeout = 800) {
    char file[PATH_MAX];
    /* without a file: the run's own, with what is set on top */
    TYPED(0, "run ", "submit --resume base@10 --name again --set training.steps=24");
    wait_run(&c, "again", "SUCCEEDED", 180);
    same_steps("again", 11, 20);
    json_t *j = zctl_json(&c, "status again"), *steps = zctl_jsonl(&c, "metrics again");
    const char *from = json_string_value(json_object_get(j, "resumed_from"));
    cr_expect(from && strstr(from, "base") && strstr(from, "10") && !strstr(from, "weights"), "%s", from ? from : "-");
    cr_expect_eq(json_array_size(steps), 14, "11 to 24");
    json_t *attempt = json_array_get(json_object_get(j, "attempts"), 0);
    cr_expect_eq(json_integer_value(json_object_get(attempt, "start_step")), 10);
    cr_expect_gt(json_number_value(json_object_get(attempt, "load_seconds")), 0);
    json_decref(j);
    json_decref(steps);
    TYPED(0, "from     ", "status again");
    TYPED(0, "RESUMED", "events again");

    /* what must not change is named, before anything is sent */
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "other", 30, 2, SAVES));
    TYPED(2, "optimizer.beta1: 0.9 in the checkpoint, 0.8 now", "submit %s --resume base --set optimizer.beta1=0.8", file);
    TYPED(2, "training.global_batch_size: 4 in the checkpoint, 8 now", "submit %s --resume base --set training.global_batch_size=8", file);
    TYPED(2, "--accept-batch-change goes with --resume", "submit %s --accept-batch-change", file);
    TYPED(3, "nosuch", "submit %s --resume nosuch", file);
    TYPED(3, "", "submit %s --resume base@7", file);
    TYPED(2, "a folder; name the run", "submit %s --resume ./saved", file);
    TYPED(0, "run ", "submit %s --resume base --accept-batch-change --set training.global_batch_size=8 --set training.steps=22", file);
    wait_run(&c, "other", "SUCCEEDED", 180);
}

/* ---------------------------------------------------------------------------------- without a coordinator */

static void empty(void) {
    cluster_init(&c);
    unsetenv("ZT_FAIL");
}

Test(checkpoint_cli, run_saves_and_goes_on, .init = empty, .fini = ended, .timeout = 800) {
    const char *file = cluster_run_file(&c, "local", 15, 2, SAVES);
    TYPED(0, "CHECKPOINT_COMMITTED  step 10", "run %s", file);
    TYPED(0, "goes on after step 10", "run --resume local@10 --set training.steps=17");
    TYPED(3, "no run of that name in", "run --resume nosuch --workers 2");
    struct output o = zctl(&c, 30, "--state %s/xdg/ztrain/local metrics local -o jsonl", c.dir);
    cr_expect_eq(strncmp(o.out, "{\"run\"", 6), 0, "%s%s", o.out, o.err);
    cr_expect(strstr(o.out, "\"step\":11,") && !strstr(o.out, "\"step\":10,"), "the newest of that name began at 11: %s", o.out);
    output_free(&o);
}

/* A probe of a run that saves looks at the window of its save too, and says what it leaves. */
Test(checkpoint_cli, probe_looks_at_the_save, .init = empty, .fini = ended, .timeout = 800) {
    const char *file = cluster_run_file(&c, "p", 100, 2, SAVES);
    TYPED(0, "fits: 4 windows of 2 ranks in 3 whole steps; as planned, to the byte", "probe %s", file);
    TYPED(0, "has the checkpoint of the last step; rm -r it", "probe %s", file);
    TYPED(0, "\"window\": \"save\"", "probe %s -o json", file);
}

Test(checkpoint_cli, drill, .init = empty, .fini = ended, .timeout = 800) {
    const char *file = cluster_run_file(&c, "d", 100, 2, "parallelism: {mode: fsdp}\n");
    DIR *d;
    struct dirent *e;
    char state[300];
    TYPED(0, "EQUAL: 6 steps straight, and 3 + stop + resume + 3 on 2 workers", "drill %s --steps 3 --set model.dropout=0.1", file);
    TYPED(0, "on 2 and then 4 workers", "drill %s --steps 3 --resume-workers 4", file);
    TYPED(2, "not a multiple of 3 data-parallel ranks", "drill %s --steps 3 --resume-workers 3", file);
    snprintf(state, sizeof state, "%s/xdg/ztrain", c.dir);
    d = opendir(state);
    cr_assert(d);
    while ((e = readdir(d)) != NULL)
        cr_expect_null(strstr(e->d_name, "-drill-"), "%s was left", e->d_name);
    closedir(d);
    json_t *j = zctl_json(&c, "drill %s --steps 2", file);
    cr_expect(json_is_true(json_object_get(j, "equal")) && json_is_null(json_object_get(j, "first_difference")));
    json_decref(j);
    /* nothing was saved: that is no equal */
    setenv("ZT_FAIL", "ckpt.shard_done:error", 1);
    TYPED(1, "it has no checkpoint of the step", "drill %s --steps 2", file);
    unsetenv("ZT_FAIL");
}
