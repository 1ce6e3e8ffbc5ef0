/* SPDX-License-Identifier: Apache-2.0 */
/* zctl probe on real workers: a whole run is a fit and equal to its plan; anything less is not called one; what runs
 * out of memory is a result, with what the plan expected; Ctrl-C leaves nothing behind. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/harness.h"

static const char *nano(struct cluster *c, const char *more) {
    static char text[2048];
    char data[400];
    snprintf(data, sizeof data, "%s/train.txt", c->dir);
    FILE *f = fopen(data, "w");
    cr_assert(f);
    for (int i = 0; i < 30000; i++) fputc('a' + (i * 7 + i / 13) % 26, f);
    fclose(f);
    snprintf(text, sizeof text,
             "version: 1\nname: nano\nmodel: {preset: gpt2-nano}\ndataset: {path: train.txt, tokenizer: bytes}\n"
             "validation: {fraction: 0.2, every_steps: 100}\nparallelism: {mode: zero2}\n"
             "lr_scheduler: {warmup_steps: 50, decay_type: cosine}\n%s", more);
    return cluster_file(c, "nano.yaml", text);
}
#define LONG "training: {steps: 100000, seq_len: 64, local_batch_size: 2}\nmetrics: {warmup_steps: 20}\n"

static json_t *probe_json(struct output o, int code) {
    json_t *j = json_loads(o.out, 0, NULL);
    cr_assert_eq(o.code, code, "exit %d, wanted %d: %s%s", o.code, code, o.out, o.err);
    cr_assert(j, "%s", o.out);
    output_free(&o);
    return j;
}

static const char *text_of(json_t *j, const char *key) {
    const char *s = json_string_value(json_object_get(j, key));
    cr_assert(s, "no %s in %s", key, json_dumps(j, 0));
    return s;
}

/* All windows of both ranks, each predicted peak the measured one. */
static void expect_whole(json_t *j, int steps) {
    static const char *const windows[] = {"init", "first_step", "steady", "eval"};
    json_t *row;
    size_t i;
    cr_expect_str_eq(text_of(j, "verdict"), "fits");
    cr_expect_str_eq(text_of(j, "name"), "nano-probe");
    cr_expect_eq(json_integer_value(json_object_get(j, "steps")), steps);
    cr_assert_eq(json_array_size(json_object_get(j, "windows")), 4);
    json_array_foreach(json_object_get(j, "windows"), i, row) {
        cr_expect_str_eq(text_of(row, "window"), windows[i]);
        cr_expect_str_eq(text_of(row, "verdict"), "fits");
        cr_expect_eq(json_integer_value(json_object_get(row, "ranks")), 2);
        cr_assert(json_is_integer(json_object_get(row, "difference_bytes")));
        cr_expect_eq(json_integer_value(json_object_get(row, "difference_bytes")), 0);
    }
    cr_assert_eq(json_array_size(json_object_get(j, "ranks")), 8);
    json_array_foreach(json_object_get(j, "ranks"), i, row)
        cr_expect(json_equal(json_object_get(row, "predicted"), json_object_get(row, "measured")));
}

/* On workers of its own: nothing runs before, nothing after. */
Test(probe, on_workers_of_its_own) {
    struct cluster c;
    char file[512];
    pid_t left[4];
    cluster_init(&c);
    snprintf(file, sizeof file, "%s", nano(&c, LONG));
    json_t *j = probe_json(zctl(&c, 120, "probe %s --workers 2 --state %s/own -o json", file, c.dir), 0);
    expect_whole(j, 3);
    json_decref(j);
    snprintf(file, sizeof file, "%s", nano(&c, "training: {epochs: 40, seq_len: 64, local_batch_size: 2}\n"));
    j = probe_json(zctl(&c, 120, "probe %s --workers 2 --steps 5 --state %s/own -o json", file, c.dir), 0);
    expect_whole(j, 5);
    json_decref(j);
    struct output o = zctl(&c, 120, "probe %s --workers 2 --state %s/own", file, c.dir);
    cr_expect_eq(o.code, 0, "%s", o.err);
    cr_expect(strstr(o.out, "fits: 4 windows of 2 ranks in 3 whole steps; as planned, to the byte\n"), "%s", o.out);
    output_free(&o);
    cr_expect_eq(cluster_processes(&c, left, 4), 0);
    cluster_stop(&c);
}

/* On connected ones; their runs' names are free for it, and the probe is a run like any other afterwards. */
Test(probe, on_connected_workers) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s", nano(&c, LONG));
    json_t *j = probe_json(zctl(&c, 120, "probe %s --workers 2 -o json", file), 0);
    expect_whole(j, 3);
    json_decref(j);
    wait_run(&c, "nano-probe", "SUCCEEDED", 5);
    j = probe_json(zctl(&c, 120, "probe %s --workers 2 --name other -o json", file), 0);
    cr_expect_str_eq(text_of(j, "name"), "other");
    json_decref(j);
    cluster_stop(&c);
}

/* Fewer steps than three, or a run that ends on the way: never a fit. */
Test(probe, less_than_a_whole_run_is_no_fit) {
    static const struct { const char *steps, *word; } row[] = {
        {"1", "not a fit: only 3 of 4 windows ran (not steady)"}, {"2", "not a fit: only 2 of 3 steps ran"}};
    struct cluster c;
    char file[512];
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s", nano(&c, LONG));
    for (int i = 0; i < 2; i++) {
        struct output o = zctl(&c, 120, "probe %s --workers 2 --steps %s", file, row[i].steps);
        cr_expect_eq(o.code, 1, "exit %d: %s%s", o.code, o.out, o.err);
        cr_expect(strstr(o.out, row[i].word), "no '%s' in %s", row[i].word, o.out);
        output_free(&o);
    }
    struct output o = zctl(&c, 120, "probe %s --workers 2 --set optimizer.lr=1e9 --set optimizer.max_norm=0", file);
    cr_expect_eq(o.code, 1, "exit %d: %s%s", o.code, o.out, o.err);
    cr_expect(strstr(o.out, "not a fit: only "), "%s", o.out);
    cr_expect(!strstr(o.out, "\nfits: "), "%s", o.out);
    output_free(&o);
    cluster_stop(&c);
}

/* 10 MiB hold the state and not the step: exit code 7, where it ended, and that the plan knew it to the byte. 15 MiB hold
 * it all: reserved are 14. */
Test(probe, what_runs_out_is_a_result) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s", nano(&c, LONG));
    json_t *j = probe_json(zctl(&c, 120, "probe %s --workers 2 --set memory.limit_gib=0.01 -o json", file), 7);
    json_t *oom = json_object_get(j, "oom"), *planned = json_object_get(j, "planned_oom");
    static const char *const same[] = {"phase", "what", "tag", "request_bytes", "allocated_bytes", "reserved_bytes"};
    cr_expect_str_eq(text_of(j, "verdict"), "does not fit");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        cr_assert(json_object_get(oom, same[i]), "%s", same[i]);
        cr_expect(json_equal(json_object_get(oom, same[i]), json_object_get(planned, same[i])), "%s", same[i]);
    }
    json_t *first = json_array_get(json_object_get(j, "windows"), 1);
    cr_expect_str_eq(text_of(first, "verdict"), "does not fit");
    cr_expect(json_is_integer(json_object_get(first, "predicted_peak_allocated_bytes")));
    json_decref(j);
    struct output o = zctl(&c, 120, "probe %s --workers 2 --set memory.limit_gib=0.01", file);
    cr_expect_eq(o.code, 7);
    cr_expect(strstr(o.out, "does not fit: memory ran out in window first_step\n"), "%s", o.out);
    cr_expect(strstr(o.out, "expected that: in phase forward of step 1") && strstr(o.out, "; equal to the byte"), "%s", o.out);
    output_free(&o);
    j = probe_json(zctl(&c, 120, "probe %s --workers 2 --set memory.limit_gib=0.0146484375 -o json", file), 0);
    expect_whole(j, 3);
    json_decref(j);
    cluster_stop(&c);
}

static bool is_running(void *arg) {
    char state[32] = "";
    int64_t step = 0;
    run_state(arg, "nano-probe", state, sizeof state, &step);
    return strcmp(state, "RUNNING") == 0;
}

/* Interrupted on connected workers: the run is cancelled, exit code 9, and the workers are idle again. */
Test(probe, interrupted) {
    struct cluster c;
    char file[512];
    int status = 0;
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s",
             nano(&c, "training: {steps: 100000, seq_len: 256, local_batch_size: 16, global_batch_size: 64}\n"));
    pid_t pid = fork();
    if (pid == 0) {
        char port[64];
        snprintf(port, sizeof port, "127.0.0.1:%d", c.port);
        setenv("ZCTL_COORD", port, 1);
        char state[300];
        snprintf(state, sizeof state, "%s/coord", c.dir);
        setenv("ZTRAIN_STATE", state, 1);
        execl(zctl_path(), "zctl", "probe", file, "--workers", "2", "--steps", "1000", (char *)NULL);
        _exit(99);
    }
    wait_for(is_running, &c, 60, "the probe to run");
    cr_assert_eq(kill(pid, SIGINT), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 9, "status %x", status);
    wait_run(&c, "nano-probe", "CANCELLED", 10);
    cluster_wait_idle(&c, 2);
    cluster_stop(&c);
}
