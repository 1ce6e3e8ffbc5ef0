/* SPDX-License-Identifier: Apache-2.0 */
/* What the asking commands make of an answer: a run after a restart, step rows of more than one generation, and
 * the ledger of a run that ran out of memory. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"

static char *text(const char *s) { return (char *)(uintptr_t)s; }

static Zt__RunSummary summary = ZT__RUN_SUMMARY__INIT;
static Zt__RunDetail detail = ZT__RUN_DETAIL__INIT;
static Zt__Attempt first = ZT__ATTEMPT__INIT, second = ZT__ATTEMPT__INIT, *attempts[2] = {&first, &second};
static Zt__TagBytes tags = ZT__TAG_BYTES__INIT;
static Zt__OomDetail oom = ZT__OOM_DETAIL__INIT;

/* Generation 1 was killed, generation 2 trains. */
static void restarted(void) {
    summary.run_id = text("01A");
    summary.name = text("n");
    summary.state = text("RUNNING");
    summary.has_generation = summary.has_attempt = true;
    summary.generation = summary.attempt = 2;
    first.generation = 1;
    first.reason = text("KILLED");
    first.has_rank = true;
    first.rank = 1;
    first.worker = text("box/cpu-1");
    second.generation = 2;
    detail.summary = &summary;
    detail.replicate = 2;
    detail.shard = detail.tensor = 1;
    detail.has_max_restarts = true;
    detail.max_restarts = 3;
    detail.attempts = attempts;
    detail.n_attempts = 2;
}

static char *printed(void) {
    struct zt_options o = {.color = ZT_COLOR_NEVER};
    char *out = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&out, &n);
    zt_print_run(f, &o, &detail);
    fclose(f);
    return out;
}

Test(read, a_healthy_run_is_not_explained_by_an_old_fault) {
    restarted();
    char *out = printed();
    cr_assert_null(strstr(out, "because"), "%s", out);
    cr_assert(strstr(out, "attempts 2   restarts counted 0 of 3   last restart: KILLED rank 1\n"), "%s", out);
    free(out);
    /* while it waits to be tried again, the reason is the run's own */
    summary.state = text("RESTARTING");
    summary.reason = text("KILLED");
    out = printed();
    cr_assert(strstr(out, "because  RESTARTING: KILLED\n"), "%s", out);
    cr_assert_null(strstr(out, "last restart"), "%s", out);
    free(out);
}

#define SAVES                                                                                                         \
    "version: 1\nname: n\nmodel: {preset: gpt2-nano}\ndataset: {path: /d}\ntraining: {steps: 100, seq_len: 8, "       \
    "local_batch_size: 1}\n"

/* The newest one, when the next is due, the one in progress, what the run began from. */
Test(read, status_says_what_a_restart_would_go_on_from) {
    static Zt__Checkpoint c = ZT__CHECKPOINT__INIT, w = ZT__CHECKPOINT__INIT;
    restarted();
    char *out = printed();
    cr_expect(strstr(out, "ckpt     none yet; a restart begins at step 0\n"), "%s", out);
    free(out);
    detail.normalised = text(SAVES);
    out = printed();
    cr_expect(strstr(out, "ckpt     none: the run file has no section checkpoint; a restart begins at step 0\n"), "%s", out);
    free(out);
    c.step = 1000;
    c.generation = 2;
    c.state = text("COMMITTED");
    c.has_bytes = c.has_world = c.has_verified = c.has_pinned = true;
    c.bytes = 3 << 20;
    c.world = 8;
    c.verified = c.pinned = true;
    detail.checkpoint = &c;
    w.step = 1500;
    w.state = text("WRITING");
    w.has_world = w.has_shards = true;
    w.world = 8;
    w.shards = 5;
    detail.saving = &w;
    detail.resumed_from = text("run base (01B) step 7, weights only");
    out = printed();
    cr_expect(strstr(out, "ckpt     step 1,000 (generation 2) committed, 3.00 MiB in 8 shards, verified, pinned\n"), "%s", out);
    cr_expect(strstr(out, "saving   step 1,500: 5 of 8 parts are in\n"), "%s", out);
    cr_expect(strstr(out, "from     run base (01B) step 7, weights only\n"), "%s", out);
    free(out);
    /* a run that ended well but whose last save failed says so */
    detail.normalised = text(SAVES "checkpoint: {interval: 500}\n");
    detail.saving = NULL;
    summary.state = text("SUCCEEDED");
    summary.has_step = true;
    summary.step = 1200;
    out = printed();
    cr_expect(strstr(out, "pinned; the last step, 1,200, is not saved: zctl events says why\n"), "%s", out);
    free(out);
    summary.step = 1000;
    out = printed();
    cr_expect(strstr(out, "verified, pinned\n"), "%s", out);
    free(out);
    /* one that goes on: when the next is due */
    summary.state = text("RUNNING");
    summary.has_steps = true;
    summary.steps = 5000;
    summary.step = 1234;
    out = printed();
    cr_expect(strstr(out, "pinned; next after step 1,500\n"), "%s", out);
    free(out);
    detail.checkpoint = detail.saving = NULL;
    detail.resumed_from = detail.normalised = NULL;
}

/* What a fault cost, in parts, and how far back it threw the run. */
Test(read, status_has_the_times_of_a_recovery) {
    restarted();
    second.has_detect_seconds = second.has_stop_seconds = second.has_start_seconds = second.has_form_seconds = true;
    second.detect_seconds = 0.25;
    second.stop_seconds = 0.5;
    second.start_seconds = 1.5;
    second.form_seconds = 0.125;
    second.has_load_seconds = second.has_start_step = second.has_steps_redone = true;
    second.load_seconds = 2.5;
    second.start_step = 1000;
    second.steps_redone = 37;
    char *out = printed();
    cr_expect(strstr(out, "DETECT") && strstr(out, "STOP") && strstr(out, "START") && strstr(out, "FORM"), "%s", out);
    cr_expect(strstr(out, "LOAD") && strstr(out, "FROM") && strstr(out, "REDONE"), "%s", out);
    cr_expect(strstr(out, "2.50 s  1,000      37"), "%s", out);
    free(out);
    json_t *j = zt_json_run(&detail), *a = json_array_get(json_object_get(j, "attempts"), 1);
    cr_expect_eq(json_number_value(json_object_get(a, "load_seconds")), 2.5);
    cr_expect_eq(json_integer_value(json_object_get(a, "start_step")), 1000);
    json_decref(j);
}

/* One window was measured, and the stored plan is about it. */
static char *printed_memory(const char *plan, int64_t allocated, int64_t reserved) {
    static Zt__WindowPeak peak = ZT__WINDOW_PEAK__INIT;
    static Zt__MemoryRow row = ZT__MEMORY_ROW__INIT, *rows[1] = {&row};
    restarted();
    peak.phase_of_peak = text("backward");
    peak.at_peak = &tags;
    peak.peak_allocated_bytes = allocated;
    peak.peak_reserved_bytes = reserved;
    row.rank = 1;
    row.window = text("first_step");
    row.measured = &peak;
    row.has_capacity_bytes = true;
    row.capacity_bytes = 64 << 20;
    detail.has_plan = plan != NULL;
    detail.plan.data = (uint8_t *)(uintptr_t)plan;
    detail.plan.len = plan ? strlen(plan) : 0;
    detail.windows = rows;
    detail.n_windows = allocated > 0;
    return printed();
}

#define PLAN                                                                                                          \
    "{\"version\": 1, \"mesh\": {\"replicate\": 2, \"shard\": 1, \"tensor\": 1}, \"plans\": [{\"capacity_bytes\": 67108864, "           \
    "\"fits\": true, \"peak_allocated_bytes\": 3145728, \"peak_reserved_bytes\": 4194304, \"shapes\": [{\"dp_from\": 0, "             \
    "\"dp_to\": 2, \"windows\": {\"first_step\": {\"peak_allocated_bytes\": 2097152, \"peak_reserved_bytes\": 4194304}}}]}]}"

Test(read, status_holds_what_was_measured_against_the_plan) {
    static const struct { const char *plan; int64_t allocated, reserved; const char *line; } cases[] = {
        {PLAN, 0, 0, "memory   peak predicted 3.00 MiB, nothing measured\n"},
        {PLAN, 2 << 20, 4 << 20, "memory   peak predicted 2.00 MiB, measured 2.00 MiB: equal to the byte\n"},
        {PLAN, (2 << 20) + 512, 4 << 20,
         "memory   peak predicted 2.00 MiB, measured 2.00 MiB: +512 bytes in first_step of rank 1; zctl memory shows where\n"},
        {PLAN, 2 << 20, 2 << 20,
         "memory   peak predicted 2.00 MiB, measured 2.00 MiB: -2,097,152 bytes in first_step of rank 1; zctl memory shows where\n"},
        {NULL, 2 << 20, 4 << 20, "memory   peak predicted -, measured 2.00 MiB: it was submitted without a plan\n"},
        {"{\"version\": 7}", 2 << 20, 4 << 20, "memory   peak predicted -, measured 2.00 MiB: its plan is of another version of zctl\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *out = printed_memory(cases[i].plan, cases[i].allocated, cases[i].reserved);
        cr_expect(strstr(out, cases[i].line), "no \"%s\" in:\n%s", cases[i].line, out);
        free(out);
    }
    char *out = printed_memory(NULL, 0, 0);
    cr_expect_null(strstr(out, "memory "), "nothing to say:\n%s", out);
    free(out);
}

/* Header of the i-th column. */
static const char *header(const json_t *rows, bool ranks, int i) {
    static struct zt_column c[ZT_STEP_COLUMNS];
    zt_step_columns(rows, ranks, c);
    return c[i].header;
}

static bool has_header(const json_t *rows, bool ranks, const char *name) {
    for (int i = 0; header(rows, ranks, i); i++)
        if (strcmp(header(rows, ranks, i), name) == 0)
            return true;
    return false;
}

Test(read, loss_scale_and_skipped_steps_have_columns_where_there_are_any) {
    json_t *none = json_loads("[{\"generation\": 1, \"loss_scale\": null, \"skipped_steps\": 0}]", 0, NULL);
    json_t *scaled = json_loads("[{\"loss_scale\": 65536.0, \"skipped_steps\": 0}, {\"loss_scale\": 32768.0, \"skipped_steps\": 1}]",
                                0, NULL);
    json_t *skipped = json_loads("[{\"loss_scale\": null, \"skipped_steps\": 0}, {\"skipped_steps\": 2}]", 0, NULL);
    cr_expect(!has_header(none, false, "SCALE") && !has_header(none, false, "SKIPPED"));
    cr_expect(has_header(scaled, false, "SCALE") && has_header(scaled, false, "SKIPPED"));
    cr_expect(!has_header(skipped, false, "SCALE") && has_header(skipped, false, "SKIPPED"));
    cr_expect(has_header(none, false, "EXPOSED BY") && has_header(scaled, false, "EXPOSED BY"));
    json_decref(none);
    json_decref(scaled);
    json_decref(skipped);
    restarted();
    summary.has_loss = summary.has_loss_scale = summary.has_skipped_steps = true;
    summary.loss_scale = 32768;
    summary.skipped_steps = 3;
    char *out = printed();
    cr_expect(strstr(out, "  loss scale 32768  steps skipped 3\n"), "%s", out);
    free(out);
    summary.has_loss_scale = false;
    summary.skipped_steps = 0;
    out = printed();
    cr_expect(!strstr(out, "scale") && !strstr(out, "skipped"), "%s", out);
    free(out);
}

Test(read, generations_are_told_apart_when_there_are_two) {
    json_t *one = json_loads("[{\"generation\": 2, \"step\": 1}, {\"generation\": 2, \"step\": 2}]", 0, NULL);
    json_t *two = json_loads("[{\"generation\": 2, \"step\": 1}, {\"generation\": 1, \"step\": 2}]", 0, NULL);
    json_t *none = json_array();
    for (int ranks = 0; ranks < 2; ranks++) {
        cr_assert_str_eq(header(one, ranks, 0), "STEP");
        cr_assert_str_eq(header(none, ranks, 0), "STEP");
        cr_assert_str_eq(header(two, ranks, 0), "GEN");
        cr_assert_str_eq(header(two, ranks, 1), "STEP");
    }
    cr_assert_str_eq(header(one, true, 1), "RANK");
    cr_assert_str_eq(header(one, false, 1), "LOSS");
    json_decref(one);
    json_decref(two);
    json_decref(none);
}

static void ran_out(Zt__Attempt *a) {
    restarted();
    tags.has_activations = true;
    tags.activations = 20 << 20;
    oom.request = 4 << 20;
    oom.capacity = 50 << 20;
    oom.reserved = 32 << 20;
    oom.allocated = 30 << 20;
    oom.free_device = 18 << 20;
    oom.largest_free_block = 512 << 10;
    oom.tag = text("activations");
    oom.phase = text("forward");
    oom.what = text("block 0: \033[1mattention");
    oom.by_tag = &tags;
    a->oom = &oom;
}

Test(read, ledger_of_a_run_that_ran_out) {
    struct zt_error err;
    char *out = NULL;
    size_t n = 0;
    restarted();
    json_t *none = zt_oom_of(&detail);
    cr_assert(json_is_null(none));
    json_decref(none);
    ran_out(&first);
    json_t *o = zt_oom_of(&detail);
    cr_assert_eq(json_integer_value(json_object_get(o, "generation")), 1);
    cr_assert_eq(json_integer_value(json_object_get(o, "rank")), 1);
    cr_assert_eq(json_integer_value(json_object_get(o, "request_bytes")), 4 << 20);
    FILE *f = open_memstream(&out, &n);
    cr_assert_eq(zt_print_oom(f, o, &err), 0, "%s", err.msg);
    fclose(f);
    const char *want = "out of memory in generation 1: rank 1 on box/cpu-1: \"block 0: \\033[1mattention\" asked for "
                       "4.00 MiB (activations) in phase forward; cause: capacity\n";
    cr_assert_eq(strncmp(out, want, strlen(want)), 0, "%s", out);
    static const char *const figures[] = {"CAPACITY", "LARGEST BLOCK", "ACTIV", "50.00 MiB", "32.00 MiB", "30.00 MiB",
                                          "18.00 MiB", "512.00 KiB", "20.00 MiB"};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        cr_assert(strstr(out, figures[i]), "%s in: %s", figures[i], out);
    free(out);
    json_decref(o);
}

/* What fills memory there, and the change that fits, or where to get it; text from elsewhere is escaped. */
Test(read, status_says_what_helps_where_it_ran_out) {
    ran_out(&second);
    oom.location = text("forward, activations most of it: x; what helps: y");
    oom.first_change = text("zero1: 9 MiB of 10\033[1m");
    char *out = printed();
    cr_expect(strstr(out, "oom      forward, activations most of it: x; what helps: y\n"), "%s", out);
    cr_expect(strstr(out, "oom      the first change that fits: zero1: 9 MiB of 10\\033[1m\n"), "%s", out);
    cr_expect_null(strstr(out, "advise"), "%s", out);
    free(out);
    oom.first_change = NULL;
    out = printed();
    cr_expect(strstr(out, "oom      zctl advise FILE shows the changes that fit"), "%s", out);
    free(out);
}

Test(read, the_newest_ledger_is_shown) {
    ran_out(&second);
    first.oom = &oom;
    json_t *o = zt_oom_of(&detail);
    cr_assert_eq(json_integer_value(json_object_get(o, "generation")), 2);
    json_decref(o);
}
