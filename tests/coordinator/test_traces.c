/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of captured steps: what replaces what, which steps are kept, what is refused, and how a step is read
 * back, page by page. The numbers 3 and 32 and 64 MiB are those of the manual. */
#include "proto/trace.h"
#include "tests/coordinator/store_util.h"

static struct bench b;
static sqlite3 *db;

static void setup(void)
{
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "llama", 1, 2, 1000, 0);
    db = open_reader(&b);
}

static void teardown(void)
{
    sqlite3_close(db);
    bench_end(&b);
}

TestSuite(traces, .init = setup, .fini = teardown);

static void new_generation(uint32_t generation)
{
    struct zt_batch *batch = zt_batch_new();
    add_generation(batch, RUN1, generation, 2);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

static int64_t held(int64_t step)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM step_trace WHERE step = %ld", (long)step);
    return number_of(db, sql);
}

static Zt__Envelope *get(int64_t step, uint32_t rank, uint32_t part, int want, struct zt_error *err)
{
    Zt__GetTrace get = ZT__GET_TRACE__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    get.run = (char *)"llama";
    get.has_step = step > 0;
    get.step = step;
    get.has_from_rank = get.has_from_part = 1;
    get.from_rank = rank;
    get.from_part = part;
    req.body_case = ZT__ENVELOPE__BODY_GET_TRACE;
    req.get_trace = &get;
    int code = zt_query(db, &req, &reply, err);
    cr_assert_eq(code, want, "%d: %s", code, err->msg);
    if (reply) {
        uint8_t *frame;
        size_t n;
        cr_assert_eq(zt_frame_pack(reply, &frame, &n, err), 0, "the reply must fit a frame: %s", err->msg);
        free(frame);
    }
    return reply;
}

Test(traces, newer_generations_replace_older_ones) {
    cr_assert_eq(commit_trace(&b, RUN1, 0, 5, 1, 3), 0);
    cr_assert_eq(commit_trace(&b, RUN1, 1, 5, 1, 3), 0);
    cr_assert_eq(commit_trace(&b, RUN1, 1, 5, 1, 3), 0, "a repeat");
    cr_expect_eq(held(5), 2);
    new_generation(2);
    /* generation 1 had two parts of rank 0, generation 2 has one */
    struct a_trace t;
    Zt__StepTrace *list[1] = { trace(&t, 0, 5, 1, 3) };
    list[0]->part = 1;
    list[0]->parts = 2;
    struct zt_batch *batch = zt_batch_new();
    zt_batch_traces(batch, RUN1, list, 1);
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_expect_eq(held(5), 3);
    cr_assert_eq(commit_trace(&b, RUN1, 0, 5, 2, 4), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace WHERE rank = 0"), 1);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_trace WHERE rank = 0"), 2);
    cr_assert_eq(commit_trace(&b, RUN1, 0, 5, 1, 3), 0, "a zombie is told that nobody wants it, by an answer");
    cr_expect_eq(number_of(db, "SELECT generation FROM step_trace WHERE rank = 0"), 2);
    /* of a step that two generations have, the newer one is shown, whoever of its ranks has told */
    struct zt_error err;
    Zt__Envelope *r = get(5, 0, 0, 0, &err);
    cr_expect_eq(r->trace->generation, 2);
    cr_expect_eq(r->trace->world, 2);
    cr_assert_eq(r->trace->n_traces, 1);
    cr_expect_eq(r->trace->traces[0]->n_records, 4);
    zt_query_free(r);
}

Test(traces, unknown_runs_and_ranks_are_refused) {
    cr_expect_eq(commit_trace(&b, RUN2, 0, 1, 1, 1), ZT_ENOTFOUND);
    cr_expect_eq(commit_trace(&b, RUN1, 2, 1, 1, 1), ZT_ENOTFOUND);
    cr_expect_eq(commit_trace(&b, RUN1, 0, 1, 2, 1), ZT_ENOTFOUND);
    cr_expect_eq(commit_trace(&b, RUN1, 0, 0, 1, 1), ZT_EINVAL);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace"), 0);
}

Test(traces, the_first_three_and_the_newest_32_steps_are_kept) {
    for (int64_t step = 1; step <= 3; step++)
        commit_trace(&b, RUN1, 0, step, 1, 1);
    for (int64_t step = 10; step <= 400; step += 10)
        for (uint32_t rank = 0; rank < 2; rank++)
            cr_assert_eq(commit_trace(&b, RUN1, rank, step, 1, 1), 0);
    cr_expect_eq(held(1) + held(2) + held(3), 3);
    cr_expect_eq(held(80), 0);
    cr_expect_eq(held(90), 2);
    cr_expect_eq(held(400), 2);
    cr_expect_eq(number_of(db, "SELECT count(DISTINCT step) FROM step_trace"), 3 + 32);
    /* a restart begins with low numbers, and these are the newest */
    new_generation(2);
    for (int64_t step = 1; step <= 3; step++)
        commit_trace(&b, RUN1, 0, step, 2, 1);
    cr_assert_eq(commit_trace(&b, RUN1, 0, 10, 2, 1), 0);
    cr_expect_eq(held(10), 1);
    cr_expect_eq(held(120), 0, "1 to 3 and 10 are four of the newest 32, 400 down to 130 the others");
    cr_expect_eq(held(130), 2);
    cr_expect_eq(number_of(db, "SELECT count(DISTINCT step) FROM step_trace"), 32);
    struct zt_error err;
    Zt__Envelope *r = get(0, 0, 0, 0, &err);
    cr_expect_eq(r->trace->step, 10, "the newest is the newest generation's");
    cr_expect_eq(r->trace->n_held, 32);
    zt_query_free(r);
    get(57, 0, 0, ZT_ENOTFOUND, &err);
    cr_expect(strstr(err.msg, "step 57 of run llama is not held; held are 1-3, 10, 130, 140, ") && strstr(err.msg, ", 400 (captured are"),
              "%s", err.msg);
}

Test(traces, the_newest_step_of_all_ranks_is_shown_first) {
    struct zt_error err;
    static const int64_t want[] = { 1, 1, 1, 2, 2 };
    static const struct { int64_t step; uint32_t rank; } said[] = { { 1, 0 }, { 1, 1 }, { 2, 0 }, { 2, 1 }, { 3, 0 } };
    for (int i = 0; i < 5; i++) {
        commit_trace(&b, RUN1, said[i].rank, said[i].step, 1, 1);
        Zt__Envelope *r = get(0, 0, 0, 0, &err);
        cr_expect_eq(r->trace->step, want[i], "after %d", i + 1);
        cr_expect_eq(r->trace->held[r->trace->n_held - 1]->ranks, 1 + said[i].rank);
        zt_query_free(r);
    }
}

/* What no worker of ours would send so much of: rows are put in by hand. */
Test(traces, large_traces_are_kept_for_fewer_steps) {
    sqlite3 *w;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    cr_assert_eq(sqlite3_open(path, &w), SQLITE_OK);
    sqlite3_busy_timeout(w, 5000);
    cr_assert_eq(sqlite3_exec(w, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)"
                                 " INSERT INTO step_trace SELECT '" RUN1 "', i, 0, 0, 1, 10 << 20, x'00' FROM n", NULL, NULL, NULL),
                 SQLITE_OK, "%s", sqlite3_errmsg(w));
    sqlite3_close(w);
    cr_assert_eq(commit_trace(&b, RUN1, 0, 11, 1, 1), 0);
    /* 6 x 10 MiB and the new one are below 64 MiB */
    for (int64_t step = 1; step <= 11; step++)
        cr_expect_eq(held(step), step <= 3 || step >= 5, "step %ld", (long)step);
}

Test(traces, pages_by_rank_and_part) {
    struct zt_error err;
    enum { WORLD = 80, PARTS = 3 };
    static struct a_trace t;
    struct zt_batch *batch = zt_batch_new();
    add_generation(batch, RUN1, 3, WORLD);
    cr_assert_eq(bench_commit(&b, batch), 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (uint32_t part = 0; part < PARTS; part++) {
            Zt__StepTrace *list[1] = { trace(&t, rank, 7, 3, 64) };
            list[0]->part = part;
            list[0]->parts = PARTS;
            batch = zt_batch_new();
            zt_batch_traces(batch, RUN1, list, 1);
            cr_assert_eq(bench_commit(&b, batch), 0);
        }
    uint32_t rank = 0, part = 0, seen = 0, pages = 0;
    for (bool more = true; more; pages++) {
        Zt__Envelope *r = get(7, rank, part, 0, &err);
        cr_assert_gt(r->trace->n_traces, 0);
        for (size_t i = 0; i < r->trace->n_traces; i++, seen++) {
            cr_assert_eq(r->trace->traces[i]->rank, seen / PARTS);
            cr_assert_eq(r->trace->traces[i]->part, seen % PARTS);
            cr_assert_eq(r->trace->traces[i]->n_records, 64);
        }
        rank = seen / PARTS;
        part = seen % PARTS;
        more = r->trace->more;
        zt_query_free(r);
    }
    cr_expect_eq(seen, WORLD * PARTS);
    cr_expect_gt(pages, 1);
}

Test(traces, nothing_held_and_damage_are_said) {
    struct zt_error err;
    get(0, 0, 0, ZT_ENOTFOUND, &err);
    cr_expect(strstr(err.msg, "no step of run llama is held yet"), "%s", err.msg);
    sqlite3 *w;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    cr_assert_eq(sqlite3_open(path, &w), SQLITE_OK);
    sqlite3_busy_timeout(w, 5000);
    sqlite3_exec(w, "INSERT INTO step_trace VALUES ('" RUN1 "', 9, 0, 0, 1, 3, x'ffffff')", NULL, NULL, NULL);
    sqlite3_close(w);
    get(9, 0, 0, ZT_EIO, &err);
    cr_expect(strstr(err.msg, "damaged"), "%s", err.msg);
}

/* Number formats are kept like traces, but for one row per rank. */
static int commit_dtypes(const char *run, uint32_t rank, uint32_t generation, const char *used)
{
    Zt__DtypesReport r = ZT__DTYPES_REPORT__INIT;
    Zt__DtypeRow row = ZT__DTYPE_ROW__INIT, *rows[1] = { &row };
    struct zt_batch *batch = zt_batch_new();
    row.what = (char *)"compute";
    row.configured = (char *)"bf16";
    row.used = (char *)(uintptr_t)used;
    r.rank = rank;
    r.generation = generation;
    r.step = 1;
    r.recipe = (char *)"autocast";
    r.n_rows = 1;
    r.rows = rows;
    zt_batch_dtypes(batch, run, &r);
    return bench_commit(&b, batch);
}

static Zt__Envelope *get_dtypes(uint32_t from, int want, struct zt_error *err)
{
    Zt__GetDtypes get = ZT__GET_DTYPES__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    get.run = (char *)"llama";
    get.has_from_rank = 1;
    get.from_rank = from;
    req.body_case = ZT__ENVELOPE__BODY_GET_DTYPES;
    req.get_dtypes = &get;
    int code = zt_query(db, &req, &reply, err);
    cr_assert_eq(code, want, "%d: %s", code, err->msg);
    return reply;
}

Test(traces, number_formats_of_the_newest_generation) {
    struct zt_error err;
    get_dtypes(0, ZT_ENOTFOUND, &err);
    cr_expect(strstr(err.msg, "after its first update"), "%s", err.msg);
    cr_assert_eq(commit_dtypes(RUN1, 0, 1, "bf16"), 0);
    cr_assert_eq(commit_dtypes(RUN1, 1, 1, "bf16"), 0);
    cr_assert_eq(commit_dtypes(RUN1, 2, 1, "bf16"), ZT_ENOTFOUND);
    Zt__Envelope *r = get_dtypes(0, 0, &err);
    cr_assert_eq(r->dtypes->n_reports, 2);
    cr_expect_eq(r->dtypes->world, 2);
    cr_expect_str_eq(r->dtypes->reports[1]->rows[0]->used, "bf16");
    cr_expect_null(r->dtypes->reports[1]->rows[0]->stored);
    zt_query_free(r);
    new_generation(2);
    cr_assert_eq(commit_dtypes(RUN1, 1, 2, "fp32"), 0);
    cr_assert_eq(commit_dtypes(RUN1, 1, 1, "bf16"), 0, "a zombie");
    r = get_dtypes(0, 0, &err);
    cr_assert_eq(r->dtypes->n_reports, 1, "rank 0 of generation 2 has not told yet");
    cr_expect_str_eq(r->dtypes->reports[0]->rows[0]->used, "fp32");
    cr_expect_eq(r->dtypes->world, 2);
    zt_query_free(r);
    r = get_dtypes(2, 0, &err);
    cr_expect(r->dtypes->n_reports == 0 && !r->dtypes->more);
    zt_query_free(r);
}

/* One field after the other out of its place. */
Test(traces, what_a_reader_relies_on_is_checked) {
    struct a_trace t;
    uint32_t twice[2] = { 1, 1 };
    char long_word[80];
    memset(long_word, 'x', sizeof long_word);
    long_word[64] = 0;
    cr_expect_null(zt_trace_check(trace(&t, 0, 1, 1, 64)));
#define BAD(change, word)                                                                                      \
    do {                                                                                                       \
        Zt__StepTrace *s = trace(&t, 0, 1, 1, 2);                                                              \
        Zt__TraceRecord *r = s->records[1];                                                                    \
        (void)r;                                                                                               \
        change;                                                                                                \
        const char *bad = zt_trace_check(s);                                                                   \
        cr_expect(bad && strstr(bad, word), "%s: %s", #change, bad ? bad : "passed");                          \
    } while (0)
    BAD(s->step = 0, "step");
    BAD(s->step = INT64_MAX, "step");
    BAD(s->parts = 0, "part");
    BAD(s->part = 1, "part");
    BAD(s->parts = 1025, "part");
    BAD(s->step_ns = UINT64_MAX, "step_ns");
    BAD((s->has_dropped = 1, s->dropped = UINT64_MAX), "dropped");
    BAD(s->n_words = 4097, "words");
    BAD(s->words[3] = long_word, "words");
    BAD(s->n_groups = 33, "groups");
    BAD(s->groups[0]->name = (char *)"", "groups");
    BAD(s->groups[0]->ranks = twice, "groups");
    BAD(s->n_records = 1025, "records");
    BAD(r->group = 1, "group");
    BAD(r->kind = 4, "word");
    BAD(r->dtype = 4, "word");
    BAD(r->unit = 4, "word");
    BAD(r->reason = UINT32_MAX, "word");
    BAD(r->bytes = UINT64_MAX, "bytes");
    BAD(r->count = UINT64_MAX, "bytes");
    BAD((r->has_sent_bytes = 1, r->sent_bytes = UINT64_MAX), "bytes");
    BAD(r->queued_ns = INT64_MIN, "queued");
    BAD(r->queued_ns = INT64_MAX, "queued");
    BAD(r->started_ns = UINT64_MAX, "queued");
    BAD(r->ended_ns = 9, "queued");
    BAD(r->has_started_ns = 0, "queued");
    BAD((r->has_exposed_ns = 1, r->exposed_ns = UINT64_MAX), "time");
    BAD((r->has_stall_ns = 1, r->stall_ns = UINT64_MAX), "time");
}
