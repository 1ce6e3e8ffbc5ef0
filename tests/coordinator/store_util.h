/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/store_util.h: a store in a temporary folder, rows to put into it, and a loop that is run
 * until something has happened. Header only; one thread. */
#ifndef ZT_TESTS_STORE_UTIL_H
#define ZT_TESTS_STORE_UTIL_H
#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/query_internal.h"
#include "coordinator/recover.h"
#include "coordinator/store.h"

#define RUN1 "01J8ZK4QAAAAAAAAAAAAAAAAAA"
#define RUN2 "01J8ZK4QBBBBBBBBBBBBBBBBBB"

struct bench {
    char dir[64];
    uv_loop_t loop;
    struct zt_store *store;
    int state;           /* last on_state */
    int state_changes;
    int done, failed;    /* completions so far */
    int last_code;
    uint64_t log_next;
};

static inline int remove_one(const char *p, const struct stat *st, int flag, struct FTW *f)
{
    (void)st, (void)flag, (void)f;
    return remove(p);
}
static inline void remove_tree(const char *dir) { nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static inline void bench_state(void *arg, int code, const char *message)
{
    struct bench *b = arg;
    (void)message;
    b->state = code;
    b->state_changes++;
}

static inline void bench_done(void *arg, const struct zt_commit *c)
{
    struct bench *b = arg;
    b->last_code = c->code;
    b->log_next = c->log_next;
    if (c->code)
        b->failed++;
    b->done++;
}

static inline void bench_folder(struct bench *b)
{
    memset(b, 0, sizeof *b);
    snprintf(b->dir, sizeof b->dir, "/tmp/zt-store-XXXXXX");
    cr_assert(mkdtemp(b->dir) != NULL);
}

static inline int bench_try_open(struct bench *b, const struct zt_store_config *more, struct zt_error *err)
{
    struct zt_store_config c = more ? *more : (struct zt_store_config){ 0 };
    uv_loop_init(&b->loop);
    c.state_dir = b->dir;
    c.loop = &b->loop;
    c.arg = b;
    c.on_state = bench_state;
    if (c.commit_ms == 0)
        c.commit_ms = 5;
    if (c.retry_ms == 0)
        c.retry_ms = 5;
    int code = zt_store_open(&c, &b->store, err);
    if (code) {
        uv_run(&b->loop, UV_RUN_NOWAIT);
        uv_loop_close(&b->loop);
        b->store = NULL;
    }
    return code;
}

static inline void bench_open(struct bench *b, const struct zt_store_config *more)
{
    struct zt_error err;
    int code = bench_try_open(b, more, &err);
    cr_assert_eq(code, 0, "%s", err.msg);
}

static inline void bench_close(struct bench *b)
{
    zt_store_close(b->store, 0.5, NULL, NULL);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&b->loop), 0);
    b->store = NULL;
}

static inline void bench_end(struct bench *b)
{
    if (b->store)
        bench_close(b);
    remove_tree(b->dir);
}

static inline void bench_tick(uv_timer_t *t) { (void)t; }

/* Runs the loop until `n` completions have come; bounded. */
static inline void bench_wait(struct bench *b, int n)
{
    uv_timer_t guard;
    uv_timer_init(&b->loop, &guard);
    uv_timer_start(&guard, bench_tick, 5, 5);
    for (int i = 0; i < 6000 && b->done < n; i++)
        uv_run(&b->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&b->loop, UV_RUN_NOWAIT);
    cr_assert(b->done >= n, "%d of %d completions came", b->done, n);
}

/* Commits one batch and returns the code of its completion, or of the refusal. */
static inline int bench_commit(struct bench *b, struct zt_batch *batch)
{
    struct zt_error err;
    int before = b->done;
    int code = zt_store_submit(b->store, batch, ZT_HURRY_YES, false, bench_done, b, &err);
    if (code)
        return code;
    bench_wait(b, before + 1);
    return b->last_code;
}

/* ------------------------------------------------------------------------------ rows */
static inline struct zt_row_run a_run(const char *id, const char *name, uint64_t order, enum zt_run_state state, uint32_t generation,
                                      int world)
{
    struct zt_row_run r = { .order = order, .state = state, .generation = generation, .attempt = generation, .cause_rank = -1,
                            .workers = world, .mesh = { world, 1, 1 }, .submitted_ms = 1000 };
    snprintf(r.run_id, sizeof r.run_id, "%s", id);
    snprintf(r.name, sizeof r.name, "%s", name);
    if (state == ZT_RUN_FAILED)
        r.reason = ZT_REASON_EXIT_NONZERO;
    if (state == ZT_RUN_CANCELLED)
        r.reason = ZT_REASON_USER_CANCEL;
    r.config.priority = 50;
    r.config.steps = 100;
    r.config.max_restarts = 3;
    r.config.start = 300;
    r.config.allowed[0] = 0xF0F;
    r.config.allowed[15] = UINT64_C(1) << 63;
    snprintf(r.config.device, sizeof r.config.device, "cpu");
    return r;
}

static inline void add_generation(struct zt_batch *b, const char *id, uint32_t generation, int world)
{
    struct zt_row_attempt a = { .generation = generation, .attempt = generation, .world = world, .rank = -1, .detect_seconds = -1,
                                .stop_seconds = -1, .start_seconds = 0.5, .form_seconds = -1 };
    snprintf(a.run_id, sizeof a.run_id, "%s", id);
    zt_batch_attempt(b, &a);
    for (int i = 0; i < world; i++) {
        struct zt_row_rank k = { .generation = generation, .rank = i, .local_rank = i, .workers_on_host = world };
        snprintf(k.run_id, sizeof k.run_id, "%s", id);
        snprintf(k.worker_id, sizeof k.worker_id, "box/cpu-%d", i);
        snprintf(k.host, sizeof k.host, "box");
        zt_batch_rank(b, &k);
    }
}

/* A run with one generation, as the machine and the shell would have written it. */
static inline void add_run_of(struct bench *b, const char *id, const char *name, uint64_t order, struct zt_mesh mesh, int64_t keep,
                              int64_t warmup)
{
    const int world = zt_mesh_world(mesh);
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(id, name, order, ZT_RUN_RUNNING, 1, world);
    r.mesh = mesh;
    struct zt_run_blobs blobs = { .run_yaml = "version: 1\n", .run_yaml_bytes = 11, .file = "run.yaml", .normalised = "version: 1\n",
                                  .hash = "00", .mode = "ddp", .overrides = "[\"training.steps=100\"]", .per_rank_keep = keep,
                                  .warmup_steps = warmup, .max_restarts = 3 };
    zt_batch_run(batch, &r, &blobs);
    add_generation(batch, id, 1, world);
    cr_assert_eq(bench_commit(b, batch), 0);
}
static inline void add_run(struct bench *b, const char *id, const char *name, uint64_t order, int world, int64_t keep, int64_t warmup)
{
    add_run_of(b, id, name, order, (struct zt_mesh){ world, 1, 1 }, keep, warmup);
}

struct a_report { Zt__StepReport r; Zt__TagBytes at, max, persistent; Zt__ExposedBy e; Zt__ExposedBy *list[1]; };
/* Distinct, exactly representable numbers that depend on rank, step and generation. */
static inline Zt__StepReport *report(struct a_report *a, uint32_t rank, int64_t step, uint32_t generation)
{
    memset(a, 0, sizeof *a);
    zt__step_report__init(&a->r);
    zt__tag_bytes__init(&a->at);
    zt__tag_bytes__init(&a->max);
    zt__tag_bytes__init(&a->persistent);
    zt__exposed_by__init(&a->e);
    a->r.rank = rank;
    a->r.step = step;
    a->r.generation = generation;
    a->r.has_loss = a->r.has_tokens = a->r.has_step_seconds = a->r.has_exposed_comm_seconds = 1;
    a->r.loss = 4.0 - (double)step / 64;
    a->r.tokens = 1000 + 10 * rank + step;
    a->r.step_seconds = 0.5 + 0.25 * rank;
    a->r.exposed_comm_seconds = 0.125 * (rank + 1);
    a->r.has_peak_allocated_bytes = a->r.has_peak_reserved_bytes = 1;
    a->r.peak_allocated_bytes = 1000000 + (int64_t)(rank * 512) + (step == 3 ? 4096 : 0);
    a->r.peak_reserved_bytes = 2000000 + (step == 5 ? 512 : 0);
    a->r.has_loss_scale = a->r.has_skipped = a->r.has_skipped_steps = a->r.has_clip_coefficient = 1;
    a->r.loss_scale = step == 4 ? 512 : 1024;
    a->r.skipped = step == 4;
    a->r.skipped_steps = step >= 4;
    a->r.clip_coefficient = 0.75;
    a->r.phase_of_peak = (char *)"backward";
    a->at.has_parameters = 1;
    a->at.parameters = 400 + rank;
    a->r.at_peak = &a->at;
    a->e.group = (char *)"dp_replicate";
    a->e.kind = (char *)"all_reduce";
    a->e.seconds = 0.0625 * (rank + 1);
    a->list[0] = &a->e;
    a->r.exposed_by = a->list;
    a->r.n_exposed_by = 1;
    return &a->r;
}

static inline int commit_step(struct bench *b, const char *run, uint32_t rank, int64_t step, uint32_t generation)
{
    struct a_report a;
    Zt__StepReport *list[1] = { report(&a, rank, step, generation) };
    struct zt_batch *batch = zt_batch_new();
    zt_batch_steps(batch, run, list, 1);
    return bench_commit(b, batch);
}

/* A step's trace on one rank: `n` all-gathers of unit "block0" in the group of both ranks. */
struct a_trace {
    Zt__StepTrace s;
    Zt__TraceGroup group, *groups[1];
    Zt__TraceRecord record[64], *records[64];
    char *words[4];
    uint32_t ranks[2];
};
static inline Zt__StepTrace *trace(struct a_trace *t, uint32_t rank, int64_t step, uint32_t generation, int n)
{
    static char *const words[] = { (char *)"all_gather", (char *)"fp32", (char *)"block0", (char *)"gather for forward" };
    memset(t, 0, sizeof *t);
    zt__step_trace__init(&t->s);
    zt__trace_group__init(&t->group);
    t->ranks[1] = 1;
    t->group.name = (char *)"dp_shard";
    t->group.ranks = t->ranks;
    t->group.n_ranks = 2;
    t->groups[0] = &t->group;
    memcpy(t->words, words, sizeof words);
    t->s.rank = rank;
    t->s.step = step;
    t->s.generation = generation;
    t->s.parts = 1;
    t->s.step_ns = 1000000 + rank;
    t->s.words = t->words;
    t->s.n_words = 4;
    t->s.groups = t->groups;
    t->s.n_groups = 1;
    t->s.records = t->records;
    for (int i = 0; i < n; i++) {
        Zt__TraceRecord *r = &t->record[i];
        zt__trace_record__init(r);
        r->dtype = 1;
        r->unit = 2;
        r->reason = 3;
        r->seq = (uint64_t)i + 1;
        r->bytes = 4096;
        r->count = 1024;
        r->queued_ns = 1000 * i;
        r->has_started_ns = r->has_ended_ns = 1;
        r->started_ns = 10;
        r->ended_ns = 500 + rank;
        t->records[i] = r;
        t->s.n_records++;
    }
    return &t->s;
}

static inline int commit_trace(struct bench *b, const char *run, uint32_t rank, int64_t step, uint32_t generation, int n)
{
    struct a_trace t;
    Zt__StepTrace *list[1] = { trace(&t, rank, step, generation, n) };
    struct zt_batch *batch = zt_batch_new();
    zt_batch_traces(batch, run, list, 1);
    return bench_commit(b, batch);
}

/* ------------------------------------------------------------------------------ reading */
static inline sqlite3 *open_reader(struct bench *b)
{
    sqlite3 *db = NULL;
    struct zt_error err;
    int code = zt_query_open(b->dir, &db, &err);
    cr_assert_eq(code, 0, "%s", err.msg);
    return db;
}

static inline int64_t number_of(sqlite3 *db, const char *sql)
{
    sqlite3_int64 v = 0;
    struct zt_error err;
    int code = zt_db_int(db, sql, -999, &v, &err);
    cr_assert_eq(code, 0, "%s: %s", sql, err.msg);
    return v;
}

static inline double real_of(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(s), SQLITE_ROW, "%s", sql);
    double v = sqlite3_column_double(s, 0);
    sqlite3_finalize(s);
    return v;
}

static inline void integrity(sqlite3 *db)
{
    sqlite3_stmt *s = NULL;
    cr_assert_eq(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &s, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_step(s), SQLITE_ROW, "%s", sqlite3_errmsg(db));
    cr_assert_str_eq((const char *)sqlite3_column_text(s, 0), "ok");
    sqlite3_finalize(s);
}

#endif
