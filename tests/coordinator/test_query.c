/* SPDX-License-Identifier: Apache-2.0 */
/* The read side: which run a word means, lists, one run, pages that fit a frame, logs and their tails, events,
 * workers, status; a folder without a coordinator; what a reader refuses. */
#include "coordinator/run_config.h"
#include "tests/coordinator/store_util.h"

static struct bench b;
static sqlite3 *db;

static void setup(void)
{
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "llama", 1, 2, 1000, 0);
    add_run(&b, RUN2, "gpt", 2, 2, 1000, 0);
    db = open_reader(&b);
}

static void teardown(void)
{
    sqlite3_close(db);
    bench_end(&b);
}

TestSuite(query, .init = setup, .fini = teardown);

static Zt__Envelope *ask(Zt__Envelope__BodyCase which, void *body, int want)
{
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    struct zt_error err = { 0 };
    req.body_case = which;
    req.get_run = body; /* one pointer for all members of the union */
    int code = zt_query(db, &req, &reply, &err);
    cr_assert_eq(code, want, "%d: %s", code, err.msg);
    if (reply) {
        uint8_t *frame;
        size_t n;
        cr_assert_eq(zt_frame_pack(reply, &frame, &n, &err), 0, "the reply must fit a frame: %s", err.msg);
        free(frame);
    }
    return reply;
}

static int resolve(const char *text, struct zt_run_ref *ref, struct zt_error *err)
{
    memset(ref, 0, sizeof *ref);
    return zt_query_resolve(db, text, ref, err);
}

Test(query, which_run) {
    struct zt_run_ref r;
    struct zt_error err;
    cr_expect_eq(resolve(RUN1, &r, &err), 0);
    cr_expect_str_eq(r.name, "llama");
    cr_expect_eq(resolve("gpt", &r, &err), 0);
    cr_expect_str_eq(r.run_id, RUN2);
    cr_expect_eq(resolve("@latest", &r, &err), 0);
    cr_expect_str_eq(r.run_id, RUN2);
    cr_expect_eq(resolve("01J8ZK4QA", &r, &err), 0);
    cr_expect_str_eq(r.run_id, RUN1);
    cr_expect_eq(resolve("01j8zk4qb", &r, &err), 0, "ids may be typed in lower case");
    cr_expect_str_eq(r.run_id, RUN2);
    cr_expect_eq(resolve("01J8", &r, &err), ZT_EINVAL);
    cr_expect(strstr(err.msg, RUN1) && strstr(err.msg, RUN2), "%s", err.msg);
    cr_expect_eq(resolve("lama", &r, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "\"llama\"") != NULL, "%s", err.msg);
    cr_expect_eq(resolve("", &r, &err), ZT_ENOTFOUND);
    cr_expect_eq(resolve("%", &r, &err), ZT_ENOTFOUND);
    cr_expect_eq(resolve("' OR 1=1 --", &r, &err), ZT_ENOTFOUND);
    /* a name is taken up again: the newest run of it is meant */
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run again = a_run("01J8ZK4QCCCCCCCCCCCCCCCCCC", "llama", 3, ZT_RUN_QUEUED, 0, 0);
    zt_batch_run(batch, &again, NULL);
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_expect_eq(resolve("llama", &r, &err), 0);
    cr_expect_str_eq(r.run_id, "01J8ZK4QCCCCCCCCCCCCCCCCCC");
}

Test(query, lists_and_states) {
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run failed = a_run(RUN1, "llama", 1, ZT_RUN_FAILED, 1, 2);
    failed.reason = ZT_REASON_OOM_DEVICE;
    zt_batch_run(batch, &failed, NULL);
    cr_assert_eq(bench_commit(&b, batch), 0);
    commit_step(&b, RUN2, 0, 1, 1);
    commit_step(&b, RUN2, 1, 1, 1);
    Zt__ListRuns all = ZT__LIST_RUNS__INIT, active = ZT__LIST_RUNS__INIT, one = ZT__LIST_RUNS__INIT;
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_LIST_RUNS, &all, 0);
    cr_assert_eq(r->run_list->n_runs, 2);
    cr_expect_str_eq(r->run_list->runs[0]->name, "gpt");
    cr_expect_eq(r->run_list->runs[0]->step, 1);
    cr_expect_eq(r->run_list->runs[0]->loss, 4.0 - 1.0 / 64);
    cr_expect_str_eq(r->run_list->runs[1]->state, "FAILED");
    cr_expect_str_eq(r->run_list->runs[1]->reason, "OOM_DEVICE");
    zt_query_free(r);
    active.has_active_only = active.active_only = 1;
    r = ask(ZT__ENVELOPE__BODY_LIST_RUNS, &active, 0);
    cr_expect_eq(r->run_list->n_runs, 1);
    zt_query_free(r);
    one.state = (char *)"failed";
    r = ask(ZT__ENVELOPE__BODY_LIST_RUNS, &one, 0);
    cr_expect_eq(r->run_list->n_runs, 1);
    zt_query_free(r);
    one.state = (char *)"BROKEN";
    ask(ZT__ENVELOPE__BODY_LIST_RUNS, &one, ZT_EINVAL);
}

static Zt__RunSummary *newest(Zt__Envelope **r)
{
    Zt__ListRuns all = ZT__LIST_RUNS__INIT;
    *r = ask(ZT__ENVELOPE__BODY_LIST_RUNS, &all, 0);
    return (*r)->run_list->runs[0];
}

static void store_run(const struct zt_row_run *row)
{
    struct zt_batch *batch = zt_batch_new();
    zt_batch_run(batch, row, NULL);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

/* The row keeps the cause of the newest stop; a healthy run is not shown with it. */
Test(query, a_reason_explains_what_ended_or_waits) {
    static const struct { enum zt_run_state state; bool shown; } rows[] = {
        { ZT_RUN_STOPPING, true }, { ZT_RUN_RESTARTING, true }, { ZT_RUN_ALLOCATING, false }, { ZT_RUN_STARTING, false },
        { ZT_RUN_FORMING, false }, { ZT_RUN_RUNNING, false }, { ZT_RUN_RECOVERING, false }, { ZT_RUN_COMPLETING, false },
        { ZT_RUN_FAILED, true }, { ZT_RUN_CANCELLED, true } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Zt__Envelope *r;
        struct zt_row_run run = a_run(RUN2, "gpt", 2, rows[i].state, 2, 2);
        run.reason = ZT_REASON_KILLED;
        store_run(&run);
        const Zt__RunSummary *s = newest(&r);
        cr_expect_str_eq(s->state, zt_run_state_name(rows[i].state));
        cr_expect_str_eq(s->reason ? s->reason : "", rows[i].shown ? "KILLED" : "", "%s", s->state);
        zt_query_free(r);
    }
}

/* What was asked for until there is an allocation; absent when the run takes what there is. */
Test(query, workers_of_a_run_that_waits) {
    static const struct { int asked, allocated; uint32_t shown; } rows[] = { { 3, 0, 3 }, { 0, 0, 0 }, { 0, 4, 4 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char id[32], name[16];
        Zt__Envelope *r;
        snprintf(id, sizeof id, "01J8ZK4QC%017zu", i);
        snprintf(name, sizeof name, "wait-%zu", i);
        struct zt_row_run run = a_run(id, name, 10 + i, ZT_RUN_QUEUED, 0, rows[i].allocated);
        run.config.workers = rows[i].asked;
        store_run(&run);
        const Zt__RunSummary *s = newest(&r);
        cr_expect_str_eq(s->name, name);
        cr_expect_eq(s->has_workers, rows[i].shown > 0);
        cr_expect_eq(s->workers, rows[i].shown);
        zt_query_free(r);
    }
}

/* A generation that lives shows the step of its rows; one that ended what was written then. */
Test(query, last_step_of_the_living_generation) {
    commit_step(&b, RUN1, 0, 1, 1);
    commit_step(&b, RUN1, 1, 1, 1);
    Zt__GetRun get = ZT__GET_RUN__INIT;
    get.run = (char *)"llama";
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_RUN, &get, 0);
    cr_assert_eq(r->run_detail->n_attempts, 1);
    cr_expect_eq(r->run_detail->attempts[0]->last_step, 1);
    zt_query_free(r);
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_attempt a = { .run_id = RUN1, .generation = 1, .attempt = 1, .world = 2, .reason = ZT_REASON_KILLED, .rank = 0,
                                .ended_ms = 9, .last_step = 0 };
    zt_batch_attempt(batch, &a);
    cr_assert_eq(bench_commit(&b, batch), 0);
    r = ask(ZT__ENVELOPE__BODY_GET_RUN, &get, 0);
    cr_expect_eq(r->run_detail->attempts[0]->last_step, 0);
    zt_query_free(r);
}

Test(query, one_run_in_full) {
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_attempt a = { .run_id = RUN1, .generation = 1, .attempt = 1, .world = 2, .reason = ZT_REASON_WORKER_LOST, .rank = 1,
                                .worker_id = "box/cpu-1", .message = "beats stopped", .detect_seconds = 3.5, .stop_seconds = -1,
                                .start_seconds = -1, .form_seconds = -1, .ended_ms = 9 };
    struct zt_row_failure cause = { .run_id = RUN1, .generation = 1, .rank = 1, .reason = ZT_REASON_WORKER_LOST, .worker_id = "box/cpu-1",
                                    .step = 4, .peer = -1, .exit_code = -1 };
    struct zt_row_failure after = { .run_id = RUN1, .generation = 1, .rank = 0, .reason = ZT_REASON_PEER_LOST, .worker_id = "box/cpu-0",
                                    .message = "lost rank 1", .order = 1, .peer = 1 };
    struct zt_failure_blobs blobs = { .phase = "forward" };
    zt_batch_attempt(batch, &a);
    zt_batch_failure(batch, &cause, &blobs);
    zt_batch_failure(batch, &after, &blobs);
    cr_assert_eq(bench_commit(&b, batch), 0);
    Zt__GetRun get = ZT__GET_RUN__INIT;
    get.run = (char *)"llama";
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_RUN, &get, 0);
    Zt__RunDetail *d = r->run_detail;
    cr_assert_eq(d->n_ranks, 2);
    cr_expect_eq(d->ranks[1]->replicate, 1);
    cr_expect_str_eq(d->ranks[1]->worker, "box/cpu-1");
    cr_expect_eq(d->run_yaml.len, 11);
    cr_expect_str_eq(d->mode, "ddp");
    cr_expect_eq(d->max_restarts, 3);
    cr_assert_eq(d->n_attempts, 1);
    cr_expect_str_eq(d->attempts[0]->reason, "WORKER_LOST");
    cr_expect_eq(d->attempts[0]->detect_seconds, 3.5);
    cr_expect(d->attempts[0]->has_failed_step && d->attempts[0]->failed_step == 4, "the cause's, not the consequence's");
    cr_expect_eq(d->attempts[0]->has_stop_seconds, 0, "not measured is absent");
    cr_assert_eq(d->attempts[0]->n_consequences, 1, "the cause is no consequence of itself");
    cr_expect(strstr(d->attempts[0]->consequences[0], "PEER_LOST rank 0") != NULL);
    zt_query_free(r);
    get.run = (char *)"nosuch";
    ask(ZT__ENVELOPE__BODY_GET_RUN, &get, ZT_ENOTFOUND);
}

static void fill_steps(const char *run, int64_t to)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        for (int64_t from = 1; from <= to;) {
            struct a_report *a = calloc(128, sizeof *a);
            Zt__StepReport *list[128];
            size_t n = 0;
            for (; n < 128 && from <= to; n++, from++)
                list[n] = report(&a[n], rank, from, 1);
            struct zt_batch *batch = zt_batch_new();
            zt_batch_steps(batch, run, list, n);
            cr_assert_eq(bench_commit(&b, batch), 0);
            free(a);
        }
}

Test(query, metrics_are_paged_without_loss) {
    fill_steps(RUN1, 2500);
    Zt__GetMetrics get = ZT__GET_METRICS__INIT;
    get.run = (char *)"llama";
    int64_t next = 1;
    int pages = 0;
    bool more = true;
    for (get.has_after_step = 1; more && pages < 100; pages++) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_METRICS, &get, 0);
        for (size_t i = 0; i < r->metrics->n_rows; i++, next++) {
            cr_assert_eq(r->metrics->rows[i]->step, next, "gapless and ascending");
            cr_assert_eq(r->metrics->rows[i]->max->tokens, 2 * (1000 + next) + 10);
        }
        get.after_step = next - 1;
        more = r->metrics->more;
        zt_query_free(r);
    }
    cr_expect_eq(next, 2501);
    cr_expect(pages > 1);
    /* per rank: whole steps on every page, the newest 1,000 and each hundredth */
    int64_t rows = 0, last = 0;
    get.has_ranks = get.ranks = 1;
    get.has_limit = 1;
    get.limit = 33;
    get.after_step = 0;
    more = true;
    for (int p = 0; more && p < 500; p++) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_METRICS, &get, 0);
        cr_assert_eq(r->metrics->n_ranks % 2, 0, "a step is never cut in two");
        for (size_t i = 0; i < r->metrics->n_ranks; i += 2) {
            cr_assert_eq(r->metrics->ranks[i]->step, r->metrics->ranks[i + 1]->step);
            cr_assert_eq(r->metrics->ranks[i]->rank, 0);
            cr_assert_gt(r->metrics->ranks[i]->step, last);
            last = r->metrics->ranks[i]->step;
            rows++;
        }
        get.after_step = last;
        more = r->metrics->more;
        zt_query_free(r);
    }
    cr_expect_eq(rows, 1000 + 15, "steps 1501 to 2500, and 100, 200, ..., 1500");
    uint32_t only = 1;
    get.rank = &only;
    get.n_rank = 1;
    get.after_step = 2490;
    get.limit = 1000;
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_METRICS, &get, 0);
    cr_assert_eq(r->metrics->n_ranks, 10);
    cr_expect_eq(r->metrics->ranks[0]->rank, 1);
    cr_expect_eq(r->metrics->more, 0);
    zt_query_free(r);
}

static void put_log(uint32_t rank, uint64_t at, const char *text)
{
    struct zt_batch *batch = zt_batch_new();
    zt_batch_log(batch, RUN1, 1, rank, at, false, false, text, strlen(text), 1);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

static void joined(const Zt__Logs *l, char *out, size_t n)
{
    out[0] = 0;
    for (size_t i = 0; i < l->n_pieces; i++)
        snprintf(out + strlen(out), n - strlen(out), "%.*s", (int)l->pieces[i]->data.len, (const char *)l->pieces[i]->data.data);
}

/* 1,024 ranks with long reports: one step of them is more than a frame. */
Test(query, steps_of_many_ranks_are_cut_into_pages) {
    enum { WORLD = 1024, PAIRS = 12 };
    static struct a_report a;
    static Zt__ExposedBy by[PAIRS], *list[PAIRS];
    static char names[PAIRS][40];
    Zt__WindowPeak init = ZT__WINDOW_PEAK__INIT;
    struct zt_batch *batch = zt_batch_new();
    add_generation(batch, RUN1, 2, WORLD);
    cr_assert_eq(bench_commit(&b, batch), 0);
    batch = zt_batch_new();
    for (int64_t step = 1; step <= 2; step++)
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            Zt__StepReport *r = report(&a, rank, step, 2);
            for (int i = 0; i < PAIRS; i++) {
                zt__exposed_by__init(&by[i]);
                snprintf(names[i], sizeof names[i], "a_group_with_quite_a_long_name_%d", i);
                by[i].group = by[i].kind = names[i];
                list[i] = &by[i];
            }
            r->exposed_by = list;
            r->n_exposed_by = PAIRS;
            init.phase_of_peak = (char *)"init";
            init.at_peak = r->at_peak;
            r->init_peak = &init;
            zt_batch_steps(batch, RUN1, &r, 1);
        }
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_assert_gt(number_of(db, "SELECT sum(length(report)) FROM step_rank WHERE step = 1"), 1 << 20, "more than a frame");
    Zt__GetMetrics get = ZT__GET_METRICS__INIT;
    get.run = (char *)"llama";
    get.has_ranks = get.ranks = get.has_after_step = get.has_after_rank = 1;
    get.after_rank = UINT32_MAX;
    int64_t seen = 0;
    int pages = 0;
    for (bool more = true; more; pages++) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_METRICS, &get, 0);
        const Zt__Metrics *m = r->metrics;
        cr_assert_gt(m->n_ranks, 0);
        for (size_t i = 0; i < m->n_ranks; i++, seen++)
            cr_assert(m->ranks[i]->step == 1 + seen / WORLD && m->ranks[i]->rank == seen % WORLD);
        get.after_step = m->ranks[m->n_ranks - 1]->step;
        get.after_rank = m->ranks[m->n_ranks - 1]->rank;
        more = m->more;
        zt_query_free(r);
    }
    cr_expect_eq(seen, 2 * WORLD);
    cr_expect_gt(pages, 4);
    Zt__GetMemory memory = ZT__GET_MEMORY__INIT;
    memory.run = (char *)"llama";
    memory.has_from_rank = 1;
    seen = pages = 0;
    for (bool more = true; more; pages++) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_MEMORY, &memory, 0);
        const Zt__Memory *m = r->memory;
        cr_assert_gt(m->n_rows, 0);
        for (size_t i = 0; i < m->n_rows; i++, seen++)
            cr_assert(m->rows[i]->rank == seen / 3, "init, first_step and steady of each rank");
        memory.from_rank = m->rows[m->n_rows - 1]->rank + 1;
        more = m->more;
        zt_query_free(r);
    }
    cr_expect_eq(seen, 3 * WORLD);
}

Test(query, logs_forward_and_tail) {
    char text[4096];
    put_log(0, 0, "a1\na2\n");
    put_log(1, 0, "b1\n");
    put_log(0, 6, "a3\na4\nhalf");
    Zt__GetLogs get = ZT__GET_LOGS__INIT;
    get.run = (char *)"llama";
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
    joined(r->logs, text, sizeof text);
    cr_expect_str_eq(text, "a1\na2\nb1\na3\na4\nhalf");
    cr_expect_str_eq(r->logs->pieces[1]->worker, "box/cpu-1");
    uint64_t end = r->logs->next;
    zt_query_free(r);
    uint32_t zero = 0;
    get.rank = &zero;
    get.n_rank = 1;
    static const struct { uint32_t lines; const char *want; } tails[] = {
        { 1, "half" }, { 2, "a4\nhalf" }, { 3, "a3\na4\nhalf" }, { 4, "a2\na3\na4\nhalf" }, { 99, "a1\na2\na3\na4\nhalf" } };
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        get.has_tail_lines = 1;
        get.tail_lines = tails[i].lines;
        r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
        joined(r->logs, text, sizeof text);
        cr_expect_str_eq(text, tails[i].want, "the last %u lines: \"%s\"", tails[i].lines, text);
        cr_expect_eq(r->logs->next, end, "following goes on from the end");
        zt_query_free(r);
    }
    put_log(0, 16, " more\n");
    get.has_after = 1;
    get.after = end;
    r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
    joined(r->logs, text, sizeof text);
    cr_expect_str_eq(text, " more\n");
    cr_expect_eq(r->logs->open, 1, "rank 0 may say more");
    zt_query_free(r);
    struct zt_batch *batch = zt_batch_new();
    zt_batch_log(batch, RUN1, 1, 0, 22, false, true, "", 0, 1);
    cr_assert_eq(bench_commit(&b, batch), 0);
    r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
    cr_expect_eq(r->logs->open, 0);
    zt_query_free(r);
    get.n_rank = 0;
    r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
    cr_expect_eq(r->logs->open, 1, "rank 1");
    zt_query_free(r);
}

Test(query, logs_come_in_pages) {
    static char big[60000];
    memset(big, 'x', sizeof big - 1);
    for (uint64_t i = 0; i < 20; i++)
        put_log(0, i * (sizeof big - 1), big);
    Zt__GetLogs get = ZT__GET_LOGS__INIT;
    get.run = (char *)"llama";
    get.has_after = 1;
    size_t bytes = 0;
    bool more = true;
    int pages = 0;
    for (; more && pages < 50; pages++) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_LOGS, &get, 0);
        for (size_t i = 0; i < r->logs->n_pieces; i++)
            bytes += r->logs->pieces[i]->data.len;
        get.after = r->logs->next;
        more = r->logs->more;
        zt_query_free(r);
    }
    cr_expect_eq(bytes, 20 * (sizeof big - 1));
    cr_expect(pages > 2);
}

Test(query, events_and_their_pages) {
    for (int i = 0; i < 7; i++) {
        struct zt_batch *batch = zt_batch_new();
        struct zt_row_event e = { .kind = "RUN_STATE", .from = "QUEUED", .to = "RUNNING", .generation = 1, .rank = -1, .level = 1,
                                  .actor = "coordinator", .reason = i == 3 ? ZT_REASON_HANG : ZT_REASON_NONE };
        snprintf(e.run_id, sizeof e.run_id, "%s", i % 2 ? RUN1 : RUN2);
        zt_batch_event(batch, &e, -1);
        cr_assert_eq(bench_commit(&b, batch), 0);
    }
    Zt__GetEvents get = ZT__GET_EVENTS__INIT;
    get.has_limit = 1;
    get.limit = 3;
    size_t n = 0;
    bool more = true;
    for (get.has_after = 1; more && n < 20;) {
        Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_EVENTS, &get, 0);
        n += r->events->n_events;
        get.after = r->events->next;
        more = r->events->more;
        zt_query_free(r);
    }
    cr_expect_eq(n, 7);
    get.run = (char *)"llama";
    get.after = 0;
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_GET_EVENTS, &get, 0);
    cr_assert_eq(r->events->n_events, 3);
    cr_expect_str_eq(r->events->events[1]->reason, "HANG");
    cr_expect_null(r->events->events[0]->reason);
    cr_expect_eq(r->events->events[0]->has_rank, 0);
    cr_expect_str_eq(r->events->state, "RUNNING");
    zt_query_free(r);
}

Test(query, workers_and_status) {
    static const enum zt_worker_state states[] = { ZT_WORKER_IDLE, ZT_WORKER_RUNNING, ZT_WORKER_LOST, ZT_WORKER_GONE };
    static const uint32_t flags[] = { ZT_WF_DRAINING, 0, ZT_WF_LOST, ZT_WF_DRAINING | ZT_WF_LOST };
    struct zt_batch *batch = zt_batch_new();
    for (int i = 0; i < 4; i++) {
        struct zt_row_worker w = { .state = states[i], .flags = flags[i], .capacity_bytes = 1000 - i, .rank = -1 };
        snprintf(w.worker_id, sizeof w.worker_id, "box/cpu-%d", i);
        snprintf(w.host, sizeof w.host, "box");
        snprintf(w.device, sizeof w.device, "cpu");
        zt_batch_worker(batch, &w);
    }
    cr_assert_eq(bench_commit(&b, batch), 0);
    Zt__ListWorkers list = ZT__LIST_WORKERS__INIT;
    Zt__Envelope *r = ask(ZT__ENVELOPE__BODY_LIST_WORKERS, &list, 0);
    cr_assert_eq(r->worker_list->n_workers, 4);
    cr_expect_str_eq(r->worker_list->workers[0]->flags, "DRAINING");
    cr_expect_str_eq(r->worker_list->workers[2]->state, "LOST");
    cr_expect_str_eq(r->worker_list->workers[3]->state, "GONE");
    cr_expect_str_eq(r->worker_list->workers[3]->flags, "DRAINING");
    zt_query_free(r);
    Zt__GetStatus get = ZT__GET_STATUS__INIT;
    r = ask(ZT__ENVELOPE__BODY_GET_STATUS, &get, 0);
    cr_expect_eq(r->cluster_status->epoch, 1);
    cr_expect_eq(r->cluster_status->workers_idle, 1);
    cr_expect_eq(r->cluster_status->workers_busy, 1);
    cr_expect_eq(r->cluster_status->workers_lost, 1);
    cr_expect_eq(r->cluster_status->n_runs, 2);
    cr_expect_str_eq(r->cluster_status->state_folder, b.dir);
    zt_query_free(r);
    Zt__Cancel cancel = ZT__CANCEL__INIT;
    cancel.run = (char *)"llama";
    ask(ZT__ENVELOPE__BODY_CANCEL, &cancel, ZT_EUNSUPPORTED);
}

Test(query, a_folder_without_a_coordinator) {
    struct zt_error err;
    sqlite3 *other = NULL;
    sqlite3_close(db);
    db = NULL;
    bench_close(&b);
    cr_assert_eq(zt_query_open(b.dir, &db, &err), 0, "%s", err.msg);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM runs"), 2);
    cr_expect_neq(zt_db_exec(db, "DELETE FROM runs", &err), 0, "a reader must not be able to write");
    cr_expect_eq(zt_query_open("/tmp/no-such-folder-of-ztrain", &other, &err), ZT_ENOTFOUND);
    cr_expect_null(other);
}

Test(query, run_config_survives_json) {
    struct zt_run_config c = a_run(RUN1, "x", 1, ZT_RUN_QUEUED, 0, 0).config, back;
    struct zt_error err;
    c.fill_shard = true;
    c.backoff_initial = 0.1;
    c.memory_bytes = INT64_C(1) << 40;
    for (int i = 0; i < ZT_MACHINE_WORLD_MAX / 64; i++)
        c.allowed[i] = UINT64_C(0x0123456789ABCDEF) * (uint64_t)(i + 1);
    char *text = zt_run_config_to_json(&c);
    cr_assert_not_null(text);
    cr_assert_eq(zt_run_config_from_json(text, &back, &err), 0, "%s", err.msg);
    cr_expect_eq(memcmp(&c, &back, sizeof c), 0, "%s", text);
    free(text);
    cr_expect_eq(zt_run_config_from_json("{\"workers\": \"many\"}", &back, &err), ZT_EIO);
    cr_expect_eq(zt_run_config_from_json("{", &back, &err), ZT_EIO);
    cr_expect_eq(zt_run_config_from_json("{\"of_the_future\": 1}", &back, &err), 0);
    cr_expect(zt_run_name_valid("a.b_c-9") && !zt_run_name_valid("") && !zt_run_name_valid("-a") && !zt_run_name_valid("A") &&
              !zt_run_name_valid("a/b") && !zt_run_name_valid("0123456789012345678901234567890123456789012345678901234567890123"));
}
