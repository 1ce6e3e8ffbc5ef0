/* SPDX-License-Identifier: Apache-2.0 */
/* Plans beside runs: stored as they came and given back by get_run and get_memory; what a rank's worker offered when
 * it got the rank; and what is told of an out-of-memory: the line of its place, the plan's first change, one event. */
#include "coordinator/oom.h"
#include "tests/coordinator/store_util.h"

static struct bench b;
static sqlite3 *db;

static void setup(void)
{
    bench_folder(&b);
    bench_open(&b, NULL);
    db = open_reader(&b);
}

static void teardown(void)
{
    sqlite3_close(db);
    bench_end(&b);
}

TestSuite(plans, .init = setup, .fini = teardown);

#define GIB (INT64_C(1) << 30)

static void put_worker(struct zt_batch *batch, int i, int64_t capacity)
{
    struct zt_row_worker w = { .state = ZT_WORKER_IDLE, .capacity_bytes = capacity };
    snprintf(w.worker_id, sizeof w.worker_id, "box/cpu-%d", i);
    snprintf(w.host, sizeof w.host, "box");
    snprintf(w.device, sizeof w.device, "cpu");
    zt_batch_worker(batch, &w);
}

/* A run of `world` ranks on workers of 1 GiB (rank 1: `second`), with that plan (NULL: none). */
static void put_run(const char *plan, int world, int64_t second)
{
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(RUN1, "llama", 1, ZT_RUN_RUNNING, 1, world);
    struct zt_run_blobs blobs = { .run_yaml = "version: 1\n", .run_yaml_bytes = 11, .file = "run.yaml", .normalised = "version: 1\n",
                                  .hash = "00", .mode = "ddp", .overrides = "[]", .plan = plan,
                                  .plan_bytes = plan ? strlen(plan) : 0, .per_rank_keep = 1000, .max_restarts = 3 };
    for (int i = 0; i < world; i++)
        put_worker(batch, i, i == 1 ? second : GIB);
    zt_batch_run(batch, &r, &blobs);
    add_generation(batch, RUN1, 1, world);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

static Zt__Envelope *ask_run(void)
{
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    Zt__GetRun get = ZT__GET_RUN__INIT;
    struct zt_error err = { 0 };
    get.run = (char *)"llama";
    req.body_case = ZT__ENVELOPE__BODY_GET_RUN;
    req.get_run = &get;
    cr_assert_eq(zt_query(db, &req, &reply, &err), 0, "%s", err.msg);
    return reply;
}

static Zt__Envelope *ask_memory(uint32_t from)
{
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    Zt__GetMemory get = ZT__GET_MEMORY__INIT;
    struct zt_error err = { 0 };
    get.run = (char *)"llama";
    get.has_from_rank = 1;
    get.from_rank = from;
    req.body_case = ZT__ENVELOPE__BODY_GET_MEMORY;
    req.get_memory = &get;
    cr_assert_eq(zt_query(db, &req, &reply, &err), 0, "%s", err.msg);
    return reply;
}

static bool is_text(const ProtobufCBinaryData *d, const char *text)
{
    return d->len == strlen(text) && memcmp(d->data, text, d->len) == 0;
}

Test(plans, are_given_back_as_they_came) {
    static const char plan[] = "{\"version\":1,  \"first_change\":null}";
    put_run(plan, 2, 2 * GIB);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (int64_t step = 1; step <= 3; step++)
            cr_assert_eq(commit_step(&b, RUN1, rank, step, 1), 0);
    Zt__Envelope *r = ask_run();
    const Zt__RunDetail *d = r->run_detail;
    cr_assert(d->has_plan && is_text(&d->plan, plan));
    /* of each window the highest: rank 1 has 512 more in every step */
    cr_assert_eq(d->n_windows, 2);
    cr_expect_str_eq(d->windows[0]->window, "first_step");
    cr_expect_eq(d->windows[0]->rank, 1);
    cr_expect_eq(d->windows[0]->measured->peak_allocated_bytes, 1000512);
    cr_expect_str_eq(d->windows[1]->window, "steady");
    cr_expect_eq(d->windows[1]->measured->peak_allocated_bytes, 1000512 + 4096);
    cr_expect_eq(d->windows[1]->capacity_bytes, 2 * GIB);
    zt_query_free(r);
    r = ask_memory(0);
    const Zt__Memory *m = r->memory;
    cr_assert(m->has_plan && is_text(&m->plan, plan));
    cr_expect_eq(m->replicate * 100 + m->shard * 10 + m->tensor, 211, "the mesh of add_generation's run");
    cr_assert_eq(m->n_rows, 4);
    cr_expect_eq(m->rows[0]->capacity_bytes, GIB);
    cr_expect_eq(m->rows[2]->capacity_bytes, 2 * GIB);
    zt_query_free(r);
    r = ask_memory(1); /* a later page */
    cr_expect(!r->memory->has_plan);
    cr_expect_eq(r->memory->n_rows, 2);
    zt_query_free(r);
}

Test(plans, a_run_without_one_has_none) {
    put_run(NULL, 1, 0);
    cr_assert_eq(commit_step(&b, RUN1, 0, 1, 1), 0);
    Zt__Envelope *r = ask_run();
    cr_expect(!r->run_detail->has_plan);
    cr_expect_eq(r->run_detail->n_windows, 2, "first_step is steady too without a warm-up");
    zt_query_free(r);
    r = ask_memory(0);
    cr_expect(!r->memory->has_plan);
    zt_query_free(r);
}

/* A worker that comes back with another size says nothing about the rank it held. */
Test(plans, the_capacity_is_that_of_the_moment_the_rank_was_given) {
    put_run(NULL, 2, GIB / 2);
    struct zt_batch *batch = zt_batch_new();
    put_worker(batch, 1, 3 * GIB);
    struct zt_row_rank again = { .generation = 1, .rank = 1, .local_rank = 1, .workers_on_host = 2, .done = true };
    snprintf(again.run_id, sizeof again.run_id, RUN1);
    snprintf(again.worker_id, sizeof again.worker_id, "box/cpu-1");
    snprintf(again.host, sizeof again.host, "box");
    zt_batch_rank(batch, &again); /* its row is written again whenever it changes */
    add_generation(batch, RUN1, 2, 2);
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_expect_eq(number_of(db, "SELECT capacity_bytes FROM assignments WHERE generation = 1 AND rank = 1"), GIB / 2);
    cr_expect_eq(number_of(db, "SELECT done FROM assignments WHERE generation = 1 AND rank = 1"), 1);
    cr_expect_eq(number_of(db, "SELECT capacity_bytes FROM assignments WHERE generation = 2 AND rank = 1"), 3 * GIB);
}

/* ------------------------------------------------------------------------------ out of memory */
static void put_oom(int32_t rank, const char *phase, int64_t step, int64_t capacity, int64_t reserved, int64_t request, int order)
{
    Zt__OomDetail d = ZT__OOM_DETAIL__INIT;
    Zt__TagBytes t = ZT__TAG_BYTES__INIT;
    uint8_t packed[512];
    d.request = request;
    d.capacity = capacity;
    d.reserved = reserved;
    d.tag = (char *)"activations";
    d.phase = (char *)phase;
    d.what = (char *)"block 0: qkv";
    d.by_tag = &t;
    d.location = (char *)"what a worker says here counts for nothing";
    t.has_activations = 1;
    t.activations = 5;
    struct zt_row_failure f = { .generation = 1, .rank = rank, .reason = ZT_REASON_OOM_DEVICE, .order = (uint32_t)order,
                                .step = step, .exit_code = -1, .peer = -1 };
    snprintf(f.run_id, sizeof f.run_id, RUN1);
    snprintf(f.worker_id, sizeof f.worker_id, "box/cpu-%d", rank);
    struct zt_row_attempt a = { .generation = 1, .attempt = 1, .world = 2, .rank = 1, .reason = ZT_REASON_OOM_DEVICE,
                                .detect_seconds = -1, .stop_seconds = -1, .start_seconds = -1, .form_seconds = -1 };
    snprintf(a.run_id, sizeof a.run_id, RUN1);
    size_t n = zt__oom_detail__pack(&d, packed);
    struct zt_batch *batch = zt_batch_new();
    zt_batch_failure(batch, &f, &(struct zt_failure_blobs){ .oom = packed, .oom_bytes = n, .at_ms = 77 });
    zt_batch_attempt(batch, &a);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

/* Location and first change as get_run tells them; "" where there is none. */
static void told(char *where, char *change)
{
    Zt__Envelope *r = ask_run();
    cr_assert_eq(r->run_detail->n_attempts, 1);
    const Zt__OomDetail *d = r->run_detail->attempts[0]->oom;
    cr_assert_not_null(d);
    snprintf(where, 1024, "%s", d->location ? d->location : "");
    snprintf(change, 1024, "%s", d->first_change ? d->first_change : "");
    zt_query_free(r);
}

Test(plans, an_oom_has_its_line_the_first_change_and_one_event) {
    char where[1024], change[1024];
    put_run("{\"version\":1,\"first_change\":\"zero1: 9 MiB of 10\"}", 2, GIB);
    put_oom(1, "forward", 1, GIB, GIB - 100, 4096, 0);
    told(where, change);
    cr_expect_eq(strncmp(where, "forward, activations most of it: ", 33), 0, "%s", where);
    cr_expect_str_eq(change, "zero1: 9 MiB of 10");
    put_oom(0, "forward", 1, GIB, GIB - 100, 4096, 1); /* the next rank runs out too: told once */
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'OOM'"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'OOM' AND generation = 1 AND rank = 1 AND level = 3"
                               " AND worker_id = 'box/cpu-1' AND at_ms = 77 AND reason = 4"
                               " AND message LIKE 'forward, activations most of it: %; the first change that fits: zero1: 9 MiB of 10'"), 1);
}

/* 4 KiB want a segment of 2 MiB; rank 0's worker has twice the memory of rank 1's. */
Test(plans, one_rank_only_is_the_one_whose_worker_is_smaller) {
    char where[1024], change[1024];
    put_run(NULL, 2, GIB / 2);
    put_oom(1, "backward", 1, GIB / 2, GIB / 2 - 100, 4096, 0);
    told(where, change);
    cr_expect_eq(strncmp(where, "one rank only: ", 15), 0, "%s", where);
    cr_expect_str_eq(change, "", "no plan, no change");
}

Test(plans, a_little_less_memory_is_not_the_cause) {
    char where[1024], change[1024];
    put_run(NULL, 2, GIB - 4096); /* rank 0 had no room for that segment either */
    put_oom(1, "backward", 1, GIB - 2 * 1048576, GIB - 2 * 1048576, 30 * 1048576, 0);
    told(where, change);
    cr_expect_eq(strncmp(where, "backward, activations most of it: ", 34), 0, "%s", where);
}

Test(plans, a_limit_of_the_run_file_is_no_fault_of_one_worker) {
    char where[1024], change[1024];
    put_run(NULL, 2, GIB);
    put_oom(1, "eval", 9, GIB / 4, GIB / 4, 4096, 0);
    told(where, change);
    cr_expect_eq(strncmp(where, "eval: ", 6), 0, "%s", where);
}

static void put_plan(const char *run_id, uint64_t seq, const char *plan)
{
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(run_id, "llama", seq, ZT_RUN_RUNNING, 1, 2);
    struct zt_run_blobs blobs = { .run_yaml = "v", .run_yaml_bytes = 1, .file = "f", .normalised = "v", .hash = "0",
                                  .mode = "ddp", .overrides = "[]", .plan = plan, .plan_bytes = strlen(plan) };
    zt_batch_run(batch, &r, &blobs);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

static Zt__OomDetail *detail_of(const char *phase)
{
    Zt__OomDetail *d = calloc(1, sizeof *d);
    Zt__TagBytes *t = calloc(1, sizeof *t);
    zt__oom_detail__init(d);
    zt__tag_bytes__init(t);
    d->by_tag = t;
    d->phase = strdup(phase);
    d->tag = strdup("temporary");
    d->what = strdup("logits");
    return d;
}

/* Memory in pieces is the cause where the plan's blocks would fit without gaps, and not where they are too many. */
Test(plans, fragmentation_is_no_cause_of_what_is_too_big) {
    static const struct { const char *plan, *where; } row[] = {
        { "{\"plans\":[{\"peak_allocated_bytes\":1073741825}]}", "eval: " },
        { "{\"plans\":[{\"peak_allocated_bytes\":1073741824}]}", "fragmentation: " },
        { "{\"plans\":[{\"peak_allocated_bytes\":\"2e9\"}]}", "fragmentation: " },
        { "{\"plans\":[]}", "fragmentation: " } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        Zt__OomDetail *d = detail_of("eval");
        struct zt_error err = { 0 };
        char name[27] = RUN1;
        name[25] = (char)('A' + i);
        put_plan(name, 10 + i, row[i].plan);
        d->fragmentation = 1;
        d->capacity = d->reserved = GIB;
        d->allocated = GIB / 2;
        cr_expect_eq(zt_oom_explain(db, name, 1, 0, 1, d, &err), 0, "%s", err.msg);
        cr_expect_eq(strncmp(d->location, row[i].where, strlen(row[i].where)), 0, "%s: %s", row[i].plan, d->location);
        zt__oom_detail__free_unpacked(d, NULL);
    }
}

/* Whatever is stored there: an out-of-memory is told all the same. */
Test(plans, odd_documents_name_no_change) {
    static char deep[8001];
    static const char *const odd[] = { "{\"first_change\":5}", "{\"first_change\":{\"a\":1}}", "{\"first_change\":null}", "{}",
                                       "[]", "not json", "", deep };
    memset(deep, '[', 4000);
    memset(deep + 4000, ']', 4000);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        char name[27] = RUN1;
        name[25] = (char)('A' + i);
        put_plan(name, 10 + i, odd[i]);
        Zt__OomDetail *d = detail_of("eval");
        struct zt_error err = { 0 };
        cr_expect_eq(zt_oom_explain(db, name, 1, 0, 4, d, &err), 0, "%s: %s", odd[i], err.msg);
        cr_expect_null(d->first_change, "%s", odd[i]);
        cr_expect(d->location && strncmp(d->location, "eval: ", 6) == 0);
        zt__oom_detail__free_unpacked(d, NULL);
    }
}
