/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/migrate.h"
#include "coordinator/rollup.h"
#include "coordinator/run_config.h"

/* ------------------------------------------------------------------------------ batches */
enum change_kind { CH_RUN, CH_SPEC, CH_ATTEMPT, CH_RANK, CH_FAILURE, CH_WORKER, CH_KEY, CH_EVENT, CH_STEP, CH_LOG };

struct change {
    struct change *next;
    enum change_kind kind;
    union {
        const struct zt_row_run *run;
        struct { const char *run_id; struct zt_run_blobs b; } spec;
        const struct zt_row_attempt *attempt;
        const struct zt_row_rank *rank;
        struct { const struct zt_row_failure *row; struct zt_failure_blobs b; } failure;
        const struct zt_row_worker *worker;
        const struct zt_row_key *key;
        struct { const struct zt_row_event *row; int64_t seq; } event;
        struct {
            const char *run_id;
            Zt__StepReport columns; /* numbers only: its pointers are not ours */
            bool has_init, has_eval;
            const uint8_t *packed; size_t bytes;
        } step;
        struct {
            const char *run_id; uint32_t generation, rank; uint64_t offset; bool err;
            const uint8_t *data; size_t bytes; int64_t at_ms;
        } log;
    } u;
};

struct block { struct block *next; size_t used, cap; _Alignas(16) uint8_t bytes[]; };

struct zt_batch {
    struct block *blocks;
    struct change *first, **last;
    size_t bytes, changes;
    int code;
    const char *why;
};

struct zt_batch *zt_batch_new(void)
{
    struct zt_batch *b = calloc(1, sizeof *b);
    if (b)
        b->last = &b->first;
    return b;
}

void zt_batch_free(struct zt_batch *b)
{
    if (!b)
        return;
    for (struct block *next; b->blocks; b->blocks = next) {
        next = b->blocks->next;
        free(b->blocks);
    }
    free(b);
}

size_t zt_batch_bytes(const struct zt_batch *b) { return b->bytes; }
size_t zt_batch_changes(const struct zt_batch *b) { return b->changes; }

int zt_batch_error(const struct zt_batch *b, struct zt_error *err)
{
    return b->code ? zt_fail(err, b->code, "%s", b->why) : 0;
}

static void spoil(struct zt_batch *b, int code, const char *why)
{
    if (!b->code) {
        b->code = code;
        b->why = why;
    }
}

static void *take(struct zt_batch *b, size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (!b->blocks || b->blocks->cap - b->blocks->used < n) {
        size_t cap = n > 4096 ? n : 4096;
        struct block *k = malloc(sizeof *k + cap);
        if (!k) {
            spoil(b, ZT_ENOMEM, "out of memory");
            return NULL;
        }
        k->next = b->blocks;
        k->used = 0;
        k->cap = cap;
        b->blocks = k;
        b->bytes += sizeof *k + cap;
    }
    void *p = b->blocks->bytes + b->blocks->used;
    b->blocks->used += n;
    return p;
}

static const void *copy(struct zt_batch *b, const void *from, size_t n)
{
    if (!from)
        return NULL;
    void *p = take(b, n ? n : 1);
    if (p && n)
        memcpy(p, from, n);
    return p;
}

static const char *copy_text(struct zt_batch *b, const char *s)
{
    return s ? copy(b, s, strlen(s) + 1) : NULL;
}

static struct change *add(struct zt_batch *b, enum change_kind kind)
{
    struct change *c = take(b, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->kind = kind;
    *b->last = c;
    b->last = &c->next;
    b->changes++;
    return c;
}

void zt_batch_run(struct zt_batch *b, const struct zt_row_run *row, const struct zt_run_blobs *blobs)
{
    struct change *c = add(b, CH_RUN);
    if (c)
        c->u.run = copy(b, row, sizeof *row);
    if (!blobs || !(c = add(b, CH_SPEC)))
        return;
    c->u.spec.run_id = copy_text(b, row->run_id);
    struct zt_run_blobs *t = &c->u.spec.b;
    *t = *blobs;
    t->run_yaml = copy(b, blobs->run_yaml, blobs->run_yaml_bytes);
    t->file = copy_text(b, blobs->file);
    t->normalised = copy_text(b, blobs->normalised);
    t->hash = copy_text(b, blobs->hash);
    t->mode = copy_text(b, blobs->mode);
    t->overrides = copy_text(b, blobs->overrides);
    t->plan = copy(b, blobs->plan, blobs->plan_bytes);
}

void zt_batch_attempt(struct zt_batch *b, const struct zt_row_attempt *row)
{
    struct change *c = add(b, CH_ATTEMPT);
    if (c)
        c->u.attempt = copy(b, row, sizeof *row);
}

void zt_batch_rank(struct zt_batch *b, const struct zt_row_rank *row)
{
    struct change *c = add(b, CH_RANK);
    if (c)
        c->u.rank = copy(b, row, sizeof *row);
}

void zt_batch_failure(struct zt_batch *b, const struct zt_row_failure *row, const struct zt_failure_blobs *blobs)
{
    struct change *c = add(b, CH_FAILURE);
    if (!c)
        return;
    c->u.failure.row = copy(b, row, sizeof *row);
    if (!blobs)
        return;
    c->u.failure.b = *blobs;
    c->u.failure.b.phase = copy_text(b, blobs->phase);
    c->u.failure.b.oom = copy(b, blobs->oom, blobs->oom_bytes);
    c->u.failure.b.last_log = copy(b, blobs->last_log, blobs->last_log_bytes);
}

void zt_batch_worker(struct zt_batch *b, const struct zt_row_worker *row)
{
    struct change *c = add(b, CH_WORKER);
    if (c)
        c->u.worker = copy(b, row, sizeof *row);
}

void zt_batch_key(struct zt_batch *b, const struct zt_row_key *row)
{
    struct change *c = add(b, CH_KEY);
    if (c)
        c->u.key = copy(b, row, sizeof *row);
}

void zt_batch_event(struct zt_batch *b, const struct zt_row_event *row, int64_t seq)
{
    struct change *c = add(b, CH_EVENT);
    if (!c)
        return;
    c->u.event.row = copy(b, row, sizeof *row);
    c->u.event.seq = seq;
}

void zt_batch_steps(struct zt_batch *b, const char *run_id, Zt__StepReport *const *steps, size_t n)
{
    const char *id = copy_text(b, run_id);
    for (size_t i = 0; i < n && id; i++) {
        if (steps[i]->step < 1) {
            spoil(b, ZT_EINVAL, "a step report's step is not positive");
            return;
        }
        struct change *c = add(b, CH_STEP);
        size_t bytes = zt__step_report__get_packed_size(steps[i]);
        uint8_t *packed = take(b, bytes);
        if (!c || !packed)
            return;
        zt__step_report__pack(steps[i], packed);
        c->u.step.run_id = id;
        c->u.step.columns = *steps[i];
        c->u.step.has_init = steps[i]->init_peak != NULL;
        c->u.step.has_eval = steps[i]->eval_peak != NULL;
        c->u.step.packed = packed;
        c->u.step.bytes = bytes;
    }
}

void zt_batch_log(struct zt_batch *b, const char *run_id, uint32_t generation, uint32_t rank, uint64_t offset,
                  bool err, const void *data, size_t bytes, int64_t at_ms)
{
    if (offset > INT64_MAX / 2 || bytes > INT32_MAX) {
        spoil(b, ZT_EINVAL, "a log piece lies beyond any possible offset");
        return;
    }
    struct change *c = add(b, CH_LOG);
    if (!c)
        return;
    c->u.log.run_id = copy_text(b, run_id);
    c->u.log.generation = generation;
    c->u.log.rank = rank;
    c->u.log.offset = offset;
    c->u.log.err = err;
    c->u.log.data = copy(b, data ? data : "", bytes);
    c->u.log.bytes = bytes;
    c->u.log.at_ms = at_ms;
}

/* ------------------------------------------------------------------------------ statements */
enum statement {
    Q_RUN, Q_SPEC, Q_ATTEMPT, Q_RANK, Q_FAILURE, Q_WORKER, Q_KEY, Q_KEY_PRUNE, Q_EVENT,
    Q_STEP_OLD, Q_STEP, Q_WORLD, Q_SPEC_NUMBERS, Q_WINDOW_GET, Q_WINDOW_PUT, Q_WINDOW_RESERVED,
    Q_STEP_COUNT, Q_STEP_ROWS, Q_ROLLUP, Q_PROGRESS, Q_TRIM,
    Q_LOG_KNOWN, Q_LOG_NEXT, Q_LOG, Q_LOG_STREAM, Q_LOG_USAGE, Q_LOG_USAGE_GET, Q_LOG_OLDEST, Q_LOG_DELETE, Q_COUNT
};

static const char *const sql_of[Q_COUNT] = {
    [Q_RUN] =
        "INSERT INTO runs (run_id, name, place, state, reason, detail, cause_rank, generation, attempt, restarts_counted,"
        " failures_in_row, cancel_requested, workers, replicate, shard, tensor, best_step, submitted_ms, started_ms,"
        " ended_ms, parameter_hash, priority, steps, config)"
        " VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24)"
        " ON CONFLICT (run_id) DO UPDATE SET state=excluded.state, reason=excluded.reason, detail=excluded.detail,"
        " cause_rank=excluded.cause_rank, generation=excluded.generation, attempt=excluded.attempt,"
        " restarts_counted=excluded.restarts_counted, failures_in_row=excluded.failures_in_row,"
        " cancel_requested=excluded.cancel_requested, workers=excluded.workers, replicate=excluded.replicate,"
        " shard=excluded.shard, tensor=excluded.tensor, best_step=excluded.best_step,"
        " submitted_ms=excluded.submitted_ms, started_ms=excluded.started_ms, ended_ms=excluded.ended_ms,"
        " parameter_hash=excluded.parameter_hash, priority=excluded.priority, steps=excluded.steps,"
        " config=excluded.config",
    [Q_SPEC] = "INSERT INTO run_specs VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11) ON CONFLICT (run_id) DO NOTHING",
    [Q_ATTEMPT] = "INSERT OR REPLACE INTO attempts VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)",
    [Q_RANK] = "INSERT OR REPLACE INTO assignments VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
    [Q_FAILURE] = "INSERT INTO failures VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15)"
                  " ON CONFLICT (run_id, generation, rank) DO NOTHING",
    [Q_WORKER] = "INSERT OR REPLACE INTO workers VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)",
    [Q_KEY] = "INSERT OR REPLACE INTO rpc_dedup VALUES (?1,?2,?3,?4,?5)",
    [Q_KEY_PRUNE] = "DELETE FROM rpc_dedup WHERE at_ms < ?1",
    [Q_EVENT] = "INSERT INTO events (at_ms, run_id, worker_id, kind, from_state, to_state, reason, generation, rank,"
                " level, actor, message, seq) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)"
                " ON CONFLICT (run_id, generation, rank, seq) WHERE seq IS NOT NULL DO NOTHING",
    [Q_STEP_OLD] = "SELECT (SELECT generation FROM step_rank WHERE run_id=?1 AND step=?2 AND rank=?3),"
                   " (SELECT generation FROM step_rollup WHERE run_id=?1 AND step=?2)",
    [Q_STEP] = "INSERT OR REPLACE INTO step_rank VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)",
    [Q_WORLD] = "SELECT world FROM attempts WHERE run_id=?1 AND generation=?2",
    [Q_SPEC_NUMBERS] = "SELECT per_rank_keep, warmup_steps FROM run_specs WHERE run_id=?1",
    [Q_WINDOW_RESERVED] = "UPDATE window_peak SET peak_reserved_bytes=?4 WHERE run_id=?1 AND rank=?2 AND window=?3",
    [Q_WINDOW_GET] = "SELECT generation, step, peak_allocated_bytes, peak_reserved_bytes FROM window_peak"
                     " WHERE run_id=?1 AND rank=?2 AND window=?3",
    [Q_WINDOW_PUT] = "INSERT OR REPLACE INTO window_peak VALUES (?1,?2,?3,?4,?5,?6,?7,?8)",
    [Q_STEP_COUNT] = "SELECT generation, count(*) FROM step_rank WHERE run_id=?1 AND step=?2 GROUP BY generation"
                     " ORDER BY generation DESC LIMIT 1",
    [Q_STEP_ROWS] = "SELECT report FROM step_rank WHERE run_id=?1 AND step=?2 AND generation=?3 ORDER BY rank",
    [Q_ROLLUP] = "INSERT INTO step_rollup VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)"
                 " ON CONFLICT (run_id, step) DO UPDATE SET generation=excluded.generation, ranks=excluded.ranks,"
                 " at_ms=excluded.at_ms, loss=excluded.loss, tokens=excluded.tokens,"
                 " tokens_per_second=excluded.tokens_per_second, step_seconds=excluded.step_seconds,"
                 " mean_step_seconds=excluded.mean_step_seconds, exposed_comm_seconds=excluded.exposed_comm_seconds,"
                 " mean_exposed_comm_seconds=excluded.mean_exposed_comm_seconds,"
                 " peak_allocated_bytes=excluded.peak_allocated_bytes, peak_reserved_bytes=excluded.peak_reserved_bytes,"
                 " peak_rank=excluded.peak_rank, report=excluded.report WHERE excluded.generation >= step_rollup.generation",
    [Q_PROGRESS] = "INSERT INTO run_progress VALUES (?1,?2,?3,?4,?5,?6,?7,?8) ON CONFLICT (run_id) DO UPDATE SET"
                   " generation=excluded.generation, step=excluded.step, loss=excluded.loss,"
                   " tokens_per_second=excluded.tokens_per_second, peak_allocated_bytes=excluded.peak_allocated_bytes,"
                   " exposed_share=excluded.exposed_share, at_ms=excluded.at_ms"
                   " WHERE (excluded.generation, excluded.step) >= (run_progress.generation, run_progress.step)",
    /* Only rows that are in a roll-up: after an absence of ours one rank's reports come long before another's. */
    [Q_TRIM] = "DELETE FROM step_rank WHERE run_id=?1 AND step BETWEEN ?2 AND ?3 AND step % 100 <> 0 AND EXISTS"
               " (SELECT 1 FROM step_rollup r WHERE r.run_id=step_rank.run_id AND r.step=step_rank.step"
               " AND r.generation >= step_rank.generation)",
    [Q_LOG_KNOWN] = "SELECT 1 FROM assignments WHERE run_id=?1 AND generation=?2 AND rank=?3",
    [Q_LOG_NEXT] = "SELECT next FROM log_streams WHERE run_id=?1 AND generation=?2 AND rank=?3",
    [Q_LOG] = "INSERT INTO logs (run_id, generation, rank, offset, err, at_ms, data) VALUES (?1,?2,?3,?4,?5,?6,?7)",
    [Q_LOG_STREAM] = "INSERT OR REPLACE INTO log_streams VALUES (?1,?2,?3,?4)",
    [Q_LOG_USAGE] = "INSERT INTO log_usage VALUES (?1, ?2, ?3) ON CONFLICT (run_id) DO UPDATE SET"
                    " stored = stored + excluded.stored, dropped = dropped + excluded.dropped",
    [Q_LOG_USAGE_GET] = "SELECT stored, dropped FROM log_usage WHERE run_id=?1",
    [Q_LOG_OLDEST] = "SELECT id, length(data) FROM logs WHERE run_id=?1 ORDER BY generation, id LIMIT 1",
    [Q_LOG_DELETE] = "DELETE FROM logs WHERE id=?1",
};

struct touched { char run_id[ZT_RUN_ID_MAX + 1]; int64_t step; };

struct zt_writer {
    sqlite3 *db;
    int64_t log_quota;
    sqlite3_stmt *q[Q_COUNT];
    struct touched *touched;
    size_t n_touched, cap_touched;
    struct { char run_id[ZT_RUN_ID_MAX + 1]; int64_t keep, warmup; } spec; /* of the run last asked for */
};

int zt_writer_new(sqlite3 *db, int64_t log_quota, struct zt_writer **out, struct zt_error *err)
{
    struct zt_writer *w = calloc(1, sizeof *w);
    if (!w)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    w->db = db;
    w->log_quota = log_quota > 0 ? log_quota : ZT_LOG_QUOTA_DEFAULT;
    for (int i = 0; i < Q_COUNT; i++)
        if (sqlite3_prepare_v3(db, sql_of[i], -1, SQLITE_PREPARE_PERSISTENT, &w->q[i], NULL)) {
            zt_db_fail(err, db, sql_of[i]);
            zt_writer_free(w);
            return err->code;
        }
    *out = w;
    return 0;
}

void zt_writer_free(struct zt_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < Q_COUNT; i++)
        sqlite3_finalize(w->q[i]);
    free(w->touched);
    free(w);
}

static void text(sqlite3_stmt *s, int i, const char *v) { sqlite3_bind_text(s, i, v, -1, SQLITE_STATIC); }

static void blob(sqlite3_stmt *s, int i, const void *v, size_t n)
{
    if (v)
        sqlite3_bind_blob64(s, i, v, n, SQLITE_STATIC);
    else
        sqlite3_bind_null(s, i);
}

static void number(sqlite3_stmt *s, int i, int has, int64_t v)
{
    if (has)
        sqlite3_bind_int64(s, i, v);
    else
        sqlite3_bind_null(s, i);
}

static void real(sqlite3_stmt *s, int i, int has, double v)
{
    if (has)
        sqlite3_bind_double(s, i, v); /* NaN becomes NULL; the packed report keeps it */
    else
        sqlite3_bind_null(s, i);
}

/* Runs a statement that gives no rows and makes it ready for its next use. */
static int done(struct zt_writer *w, enum statement q, const char *what, struct zt_error *err)
{
    int rc = sqlite3_step(w->q[q]);
    int out = rc == SQLITE_DONE ? 0 : zt_db_fail(err, w->db, what);
    sqlite3_reset(w->q[q]);
    sqlite3_clear_bindings(w->q[q]);
    return out;
}

/* One row of two integers; *found false when there is none. NULL columns give `none`. */
static int two(struct zt_writer *w, enum statement q, int64_t none, int64_t *a, int64_t *b, bool *found,
               struct zt_error *err)
{
    sqlite3_stmt *s = w->q[q];
    int rc = sqlite3_step(s), out = 0;
    *found = rc == SQLITE_ROW;
    if (*found) {
        *a = sqlite3_column_type(s, 0) == SQLITE_NULL ? none : sqlite3_column_int64(s, 0);
        if (b)
            *b = sqlite3_column_type(s, 1) == SQLITE_NULL ? none : sqlite3_column_int64(s, 1);
    } else if (rc != SQLITE_DONE) {
        out = zt_db_fail(err, w->db, sql_of[q]);
    }
    sqlite3_reset(s);
    return out;
}

/* ------------------------------------------------------------------------------ the machine's rows */
static int put_run(struct zt_writer *w, const struct zt_row_run *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_RUN];
    char *config = zt_run_config_to_json(&r->config);
    if (!config)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    text(s, 1, r->run_id);
    text(s, 2, r->name);
    sqlite3_bind_int64(s, 3, (int64_t)r->order);
    sqlite3_bind_int(s, 4, (int)r->state);
    sqlite3_bind_int(s, 5, (int)r->reason);
    text(s, 6, r->detail);
    sqlite3_bind_int(s, 7, r->cause_rank);
    sqlite3_bind_int64(s, 8, r->generation);
    sqlite3_bind_int64(s, 9, r->attempt);
    sqlite3_bind_int64(s, 10, r->restarts_counted);
    sqlite3_bind_int64(s, 11, r->failures_in_row);
    sqlite3_bind_int(s, 12, r->cancel_requested);
    sqlite3_bind_int(s, 13, r->workers);
    sqlite3_bind_int(s, 14, r->workers > 0 ? r->mesh.replicate : 0);
    sqlite3_bind_int(s, 15, r->workers > 0 ? r->mesh.shard : 0);
    sqlite3_bind_int(s, 16, r->workers > 0 ? r->mesh.tensor : 0);
    sqlite3_bind_int64(s, 17, r->best_step);
    sqlite3_bind_int64(s, 18, r->submitted_ms);
    sqlite3_bind_int64(s, 19, r->started_ms);
    sqlite3_bind_int64(s, 20, r->ended_ms);
    text(s, 21, r->parameter_hash);
    sqlite3_bind_int(s, 22, r->config.priority);
    sqlite3_bind_int64(s, 23, r->config.steps);
    text(s, 24, config);
    int code = done(w, Q_RUN, "run row", err);
    free(config);
    return code;
}

static int put_spec(struct zt_writer *w, const char *run_id, const struct zt_run_blobs *b, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_SPEC];
    text(s, 1, run_id);
    blob(s, 2, b->run_yaml ? b->run_yaml : "", b->run_yaml_bytes);
    text(s, 3, b->file ? b->file : "");
    text(s, 4, b->overrides ? b->overrides : "[]");
    text(s, 5, b->normalised ? b->normalised : "");
    text(s, 6, b->hash ? b->hash : "");
    text(s, 7, b->mode ? b->mode : "");
    blob(s, 8, b->plan, b->plan_bytes);
    sqlite3_bind_int64(s, 9, b->per_rank_keep);
    sqlite3_bind_int64(s, 10, b->warmup_steps);
    sqlite3_bind_int(s, 11, b->max_restarts);
    return done(w, Q_SPEC, "run specification", err);
}

static int put_attempt(struct zt_writer *w, const struct zt_row_attempt *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_ATTEMPT];
    text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int64(s, 3, r->attempt);
    sqlite3_bind_int(s, 4, r->world);
    sqlite3_bind_int64(s, 5, r->started_ms);
    sqlite3_bind_int64(s, 6, r->ended_ms);
    sqlite3_bind_int(s, 7, (int)r->reason);
    sqlite3_bind_int(s, 8, r->rank);
    text(s, 9, r->worker_id);
    text(s, 10, r->message);
    sqlite3_bind_int64(s, 11, r->last_step);
    sqlite3_bind_int64(s, 12, r->steps_redone);
    sqlite3_bind_int(s, 13, r->counted);
    sqlite3_bind_double(s, 14, r->detect_seconds);
    sqlite3_bind_double(s, 15, r->stop_seconds);
    sqlite3_bind_double(s, 16, r->start_seconds);
    sqlite3_bind_double(s, 17, r->form_seconds);
    return done(w, Q_ATTEMPT, "attempt row", err);
}

static int put_rank(struct zt_writer *w, const struct zt_row_rank *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_RANK];
    text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int(s, 3, r->rank);
    sqlite3_bind_int(s, 4, r->local_rank);
    sqlite3_bind_int(s, 5, r->workers_on_host);
    text(s, 6, r->worker_id);
    text(s, 7, r->host);
    blob(s, 8, r->incarnation.bytes, sizeof r->incarnation.bytes);
    sqlite3_bind_int(s, 9, r->done);
    sqlite3_bind_int(s, 10, r->released);
    sqlite3_bind_int64(s, 11, r->done_steps);
    text(s, 12, r->parameter_hash);
    return done(w, Q_RANK, "assignment row", err);
}

static int put_failure(struct zt_writer *w, const struct zt_row_failure *r, const struct zt_failure_blobs *b,
                       struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_FAILURE];
    text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int(s, 3, r->rank);
    sqlite3_bind_int64(s, 4, r->order);
    sqlite3_bind_int(s, 5, (int)r->reason);
    text(s, 6, r->worker_id);
    text(s, 7, r->message);
    sqlite3_bind_int64(s, 8, r->step);
    sqlite3_bind_int(s, 9, r->exit_code);
    sqlite3_bind_int(s, 10, r->signal);
    sqlite3_bind_int(s, 11, r->peer);
    sqlite3_bind_int64(s, 12, r->offset_ms);
    text(s, 13, b->phase);
    blob(s, 14, b->oom, b->oom_bytes);
    blob(s, 15, b->last_log, b->last_log_bytes);
    return done(w, Q_FAILURE, "failure row", err);
}

static int put_worker(struct zt_writer *w, const struct zt_row_worker *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_WORKER];
    text(s, 1, r->worker_id);
    text(s, 2, r->host);
    text(s, 3, r->device);
    text(s, 4, r->version);
    text(s, 5, r->isa);
    text(s, 6, r->backend);
    text(s, 7, r->address);
    blob(s, 8, r->incarnation.bytes, sizeof r->incarnation.bytes);
    sqlite3_bind_int(s, 9, (int)r->state);
    sqlite3_bind_int64(s, 10, r->flags);
    sqlite3_bind_int64(s, 11, r->capacity_bytes);
    sqlite3_bind_int64(s, 12, r->threads);
    sqlite3_bind_int64(s, 13, (int64_t)r->pid);
    text(s, 14, r->run_id);
    sqlite3_bind_int64(s, 15, r->generation);
    sqlite3_bind_int(s, 16, r->rank);
    sqlite3_bind_int(s, 17, r->local_rank);
    sqlite3_bind_int64(s, 18, r->at_ms);
    return done(w, Q_WORKER, "worker row", err);
}

static int put_key(struct zt_writer *w, const struct zt_row_key *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_KEY];
    blob(s, 1, r->key, sizeof r->key);
    text(s, 2, r->verb);
    text(s, 3, r->run_id);
    text(s, 4, r->name);
    sqlite3_bind_int64(s, 5, r->at_ms);
    return done(w, Q_KEY, "request key", err);
}

int zt_writer_prune_keys(struct zt_writer *w, int64_t older_than_ms, struct zt_error *err)
{
    sqlite3_bind_int64(w->q[Q_KEY_PRUNE], 1, older_than_ms);
    return done(w, Q_KEY_PRUNE, "request keys", err);
}

static int put_event(struct zt_writer *w, const struct zt_row_event *r, int64_t seq, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_EVENT];
    sqlite3_bind_int64(s, 1, r->at_ms);
    text(s, 2, r->run_id);
    text(s, 3, r->worker_id);
    text(s, 4, r->kind);
    text(s, 5, r->from);
    text(s, 6, r->to);
    sqlite3_bind_int(s, 7, (int)r->reason);
    sqlite3_bind_int64(s, 8, r->generation);
    sqlite3_bind_int(s, 9, r->rank);
    sqlite3_bind_int(s, 10, r->level);
    text(s, 11, r->actor);
    text(s, 12, r->message);
    number(s, 13, seq >= 0, seq);
    return done(w, Q_EVENT, "event row", err);
}

/* ------------------------------------------------------------------------------ steps */
static int spec_numbers(struct zt_writer *w, const char *run_id, struct zt_error *err)
{
    if (strcmp(w->spec.run_id, run_id) == 0)
        return 0;
    bool found;
    int64_t keep = 0, warmup = 0;
    text(w->q[Q_SPEC_NUMBERS], 1, run_id);
    if (two(w, Q_SPEC_NUMBERS, 0, &keep, &warmup, &found, err))
        return err->code;
    if (!found)
        return zt_fail(err, ZT_ENOTFOUND, "no run %s", run_id);
    snprintf(w->spec.run_id, sizeof w->spec.run_id, "%s", run_id);
    w->spec.keep = keep;
    w->spec.warmup = warmup;
    return 0;
}

static int touch(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    if (w->n_touched == w->cap_touched) {
        size_t cap = w->cap_touched ? w->cap_touched * 2 : 256;
        struct touched *t = realloc(w->touched, cap * sizeof *t);
        if (!t)
            return zt_fail(err, ZT_ENOMEM, "out of memory");
        w->touched = t;
        w->cap_touched = cap;
    }
    struct touched *t = &w->touched[w->n_touched++];
    snprintf(t->run_id, sizeof t->run_id, "%s", run_id);
    t->step = step;
    return 0;
}

struct window { int64_t generation, step, allocated, reserved; bool found; };

static int window_get(struct zt_writer *w, const char *run_id, uint32_t rank, const char *name, struct window *o,
                      struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_WINDOW_GET];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, rank);
    text(s, 3, name);
    int rc = sqlite3_step(s), code = 0;
    o->found = rc == SQLITE_ROW;
    if (o->found) {
        o->generation = sqlite3_column_int64(s, 0);
        o->step = sqlite3_column_int64(s, 1);
        o->allocated = sqlite3_column_int64(s, 2);
        o->reserved = sqlite3_column_int64(s, 3);
    } else if (rc != SQLITE_DONE) {
        code = zt_db_fail(err, w->db, "window peak");
    }
    sqlite3_reset(s);
    return code;
}

static int window_put(struct zt_writer *w, const char *run_id, const Zt__StepReport *r, const char *name,
                      const Zt__WindowPeak *p, int64_t reserved, struct zt_error *err)
{
    size_t n = zt__window_peak__get_packed_size(p);
    uint8_t *packed = malloc(n ? n : 1);
    if (!packed)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    zt__window_peak__pack(p, packed);
    sqlite3_stmt *s = w->q[Q_WINDOW_PUT];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->rank);
    text(s, 3, name);
    sqlite3_bind_int64(s, 4, r->generation);
    sqlite3_bind_int64(s, 5, r->step);
    sqlite3_bind_int64(s, 6, p->peak_allocated_bytes);
    sqlite3_bind_int64(s, 7, reserved);
    blob(s, 8, packed, n);
    int code = done(w, Q_WINDOW_PUT, "window peak", err);
    free(packed);
    return code;
}

/* keep_max: the window's highest peak stays (steady, eval); otherwise the newest report replaces it. The
 * reserved peak is a maximum of its own: it need not belong to the step of the allocated one. */
static int window_offer(struct zt_writer *w, const char *run_id, const Zt__StepReport *r, const char *name,
                        const Zt__WindowPeak *p, bool keep_max, struct zt_error *err)
{
    struct window o;
    if (window_get(w, run_id, r->rank, name, &o, err))
        return err->code;
    int64_t reserved = p->peak_reserved_bytes;
    if (o.found && o.generation > r->generation)
        return 0;
    if (o.found && o.generation == r->generation && keep_max) {
        if (o.reserved > reserved)
            reserved = o.reserved;
        if (p->peak_allocated_bytes <= o.allocated) {
            if (reserved == o.reserved)
                return 0;
            sqlite3_stmt *s = w->q[Q_WINDOW_RESERVED];
            text(s, 1, run_id);
            sqlite3_bind_int64(s, 2, r->rank);
            text(s, 3, name);
            sqlite3_bind_int64(s, 4, reserved);
            return done(w, Q_WINDOW_RESERVED, "window peak", err);
        }
    }
    return window_put(w, run_id, r, name, p, reserved, err);
}

/* Windows of decision D6. The first step of a generation is the lowest one the rank reported in it. */
static int put_windows(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const Zt__StepReport *col = &c->u.step.columns;
    const char *run_id = c->u.step.run_id;
    struct window first, steady;
    if (window_get(w, run_id, col->rank, "first_step", &first, err) || spec_numbers(w, run_id, err))
        return err->code;
    if (first.found && first.generation > col->generation)
        return 0;
    bool is_first = !first.found || first.generation < col->generation || col->step <= first.step;
    bool is_steady = !is_first && col->step - first.step >= w->spec.warmup;
    if (is_first && w->spec.warmup == 0)
        is_steady = true;
    bool has_peak = col->has_peak_allocated_bytes && col->has_peak_reserved_bytes;
    bool step_peak = has_peak && is_first;
    if (has_peak && is_steady) {
        if (window_get(w, run_id, col->rank, "steady", &steady, err))
            return err->code;
        step_peak = step_peak || !steady.found || steady.generation < col->generation ||
                    col->peak_allocated_bytes > steady.allocated || col->peak_reserved_bytes > steady.reserved;
    }
    if (!step_peak && !c->u.step.has_init && !c->u.step.has_eval)
        return 0;
    Zt__StepReport *r = zt__step_report__unpack(NULL, c->u.step.bytes, c->u.step.packed);
    if (!r)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    Zt__TagBytes none = ZT__TAG_BYTES__INIT;
    Zt__WindowPeak p = ZT__WINDOW_PEAK__INIT;
    p.peak_allocated_bytes = r->peak_allocated_bytes;
    p.peak_reserved_bytes = r->peak_reserved_bytes;
    p.phase_of_peak = r->phase_of_peak ? r->phase_of_peak : (char *)"";
    p.at_peak = r->at_peak ? r->at_peak : &none;
    p.persistent = r->persistent;
    int code = 0;
    if (r->init_peak)
        code = window_offer(w, run_id, r, "init", r->init_peak, false, err);
    if (!code && has_peak && is_first)
        code = window_offer(w, run_id, r, "first_step", &p, false, err);
    if (!code && step_peak && is_steady)
        code = window_offer(w, run_id, r, "steady", &p, true, err);
    if (!code && r->eval_peak)
        code = window_offer(w, run_id, r, "eval", r->eval_peak, true, err);
    zt__step_report__free_unpacked(r, NULL);
    return code;
}

static int put_step(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const Zt__StepReport *r = &c->u.step.columns;
    const char *run_id = c->u.step.run_id;
    int64_t row = -1, rollup = -1;
    bool found;
    sqlite3_stmt *s = w->q[Q_STEP_OLD];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int64(s, 3, r->rank);
    if (two(w, Q_STEP_OLD, -1, &row, &rollup, &found, err))
        return err->code;
    if (row > (int64_t)r->generation)
        return 0; /* an older generation never replaces a newer row */
    if (row < 0 && rollup >= (int64_t)r->generation)
        return 0; /* a late repeat of a row that was counted and trimmed since */
    s = w->q[Q_STEP];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int64(s, 3, r->rank);
    sqlite3_bind_int64(s, 4, r->generation);
    real(s, 5, r->has_loss, r->loss);
    number(s, 6, r->has_tokens, r->tokens);
    real(s, 7, r->has_step_seconds, r->step_seconds);
    real(s, 8, r->has_exposed_comm_seconds, r->exposed_comm_seconds);
    number(s, 9, r->has_peak_allocated_bytes, r->peak_allocated_bytes);
    number(s, 10, r->has_peak_reserved_bytes, r->peak_reserved_bytes);
    blob(s, 11, c->u.step.packed, c->u.step.bytes);
    if (done(w, Q_STEP, "step row", err) || put_windows(w, c, err))
        return err->code;
    return touch(w, run_id, r->step, err);
}

static int put_rollup(struct zt_writer *w, const char *run_id, const struct zt_rollup *r, int64_t wall_ms,
                      struct zt_error *err)
{
    const Zt__StepReport *p = &r->report;
    size_t n = zt__step_report__get_packed_size(p);
    uint8_t *packed = malloc(n ? n : 1);
    if (!packed)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    zt__step_report__pack(p, packed);
    sqlite3_stmt *s = w->q[Q_ROLLUP];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, p->step);
    sqlite3_bind_int64(s, 3, p->generation);
    sqlite3_bind_int64(s, 4, (int64_t)r->ranks);
    sqlite3_bind_int64(s, 5, wall_ms);
    real(s, 6, p->has_loss, p->loss);
    number(s, 7, p->has_tokens, p->tokens);
    real(s, 8, r->tokens_per_second >= 0, r->tokens_per_second);
    real(s, 9, p->has_step_seconds, p->step_seconds);
    real(s, 10, r->has_mean_step, r->mean_step_seconds);
    real(s, 11, p->has_exposed_comm_seconds, p->exposed_comm_seconds);
    real(s, 12, r->has_mean_exposed, r->mean_exposed_comm_seconds);
    number(s, 13, p->has_peak_allocated_bytes, p->peak_allocated_bytes);
    number(s, 14, p->has_peak_reserved_bytes, p->peak_reserved_bytes);
    number(s, 15, r->has_peak, r->peak_rank);
    blob(s, 16, packed, n);
    int code = done(w, Q_ROLLUP, "roll-up", err);
    free(packed);
    if (code)
        return code;
    s = w->q[Q_PROGRESS];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, p->generation);
    sqlite3_bind_int64(s, 3, p->step);
    real(s, 4, p->has_loss, p->loss);
    real(s, 5, r->tokens_per_second >= 0, r->tokens_per_second);
    number(s, 6, p->has_peak_allocated_bytes, p->peak_allocated_bytes);
    real(s, 7, r->has_mean_step && r->has_mean_exposed && r->mean_step_seconds > 0,
         r->mean_step_seconds > 0 ? r->mean_exposed_comm_seconds / r->mean_step_seconds : 0);
    sqlite3_bind_int64(s, 8, wall_ms);
    return done(w, Q_PROGRESS, "run progress", err);
}

/* Normally exactly one step falls out of the window; every hundredth time all that was left behind is swept. */
static int trim(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    if (spec_numbers(w, run_id, err))
        return err->code;
    int64_t upto = step - w->spec.keep;
    if (upto < 1)
        return 0;
    sqlite3_stmt *s = w->q[Q_TRIM];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, step % 100 == 0 || upto <= 10 ? 0 : upto - 10);
    sqlite3_bind_int64(s, 3, upto);
    return done(w, Q_TRIM, "trimming step rows", err);
}

static int roll_up(struct zt_writer *w, const char *run_id, int64_t step, int64_t wall_ms, struct zt_error *err)
{
    int64_t generation = 0, count = 0, world = 0;
    bool found;
    text(w->q[Q_STEP_COUNT], 1, run_id);
    sqlite3_bind_int64(w->q[Q_STEP_COUNT], 2, step);
    if (two(w, Q_STEP_COUNT, 0, &generation, &count, &found, err))
        return err->code;
    if (!found)
        return 0;
    text(w->q[Q_WORLD], 1, run_id);
    sqlite3_bind_int64(w->q[Q_WORLD], 2, generation);
    if (two(w, Q_WORLD, 0, &world, NULL, &found, err))
        return err->code;
    if (!found || count < world)
        return 0;

    Zt__StepReport **reports = calloc((size_t)count, sizeof *reports);
    struct zt_rollup *r = malloc(sizeof *r);
    size_t n = 0;
    int code = reports && r ? 0 : zt_fail(err, ZT_ENOMEM, "out of memory");
    sqlite3_stmt *s = w->q[Q_STEP_ROWS];
    text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_int64(s, 3, generation);
    int rc = SQLITE_DONE;
    while (!code && (rc = sqlite3_step(s)) == SQLITE_ROW && n < (size_t)count) {
        reports[n] = zt__step_report__unpack(NULL, (size_t)sqlite3_column_bytes(s, 0), sqlite3_column_blob(s, 0));
        if (!reports[n])
            code = zt_fail(err, ZT_EIO, "a stored report of run %s step %" PRId64 " cannot be read", run_id, step);
        else
            n++;
    }
    if (!code && rc != SQLITE_DONE && rc != SQLITE_ROW)
        code = zt_db_fail(err, w->db, "roll-up");
    sqlite3_reset(s);
    if (!code) {
        zt_rollup_make(r, reports, n);
        code = put_rollup(w, run_id, r, wall_ms, err);
    }
    for (size_t i = 0; i < n; i++)
        zt__step_report__free_unpacked(reports[i], NULL);
    free(reports);
    free(r);
    return code ? code : trim(w, run_id, step, err);
}

static int by_run_and_step(const void *a, const void *b)
{
    const struct touched *x = a, *y = b;
    int c = strcmp(x->run_id, y->run_id);
    return c ? c : (x->step > y->step) - (x->step < y->step);
}

int zt_writer_finish(struct zt_writer *w, int64_t wall_ms, struct zt_error *err)
{
    if (w->n_touched > 1)
        qsort(w->touched, w->n_touched, sizeof *w->touched, by_run_and_step);
    for (size_t i = 0; i < w->n_touched; i++) {
        if (i > 0 && by_run_and_step(&w->touched[i - 1], &w->touched[i]) == 0)
            continue;
        if (roll_up(w, w->touched[i].run_id, w->touched[i].step, wall_ms, err))
            return err->code;
    }
    return 0;
}

void zt_writer_forget(struct zt_writer *w)
{
    w->n_touched = 0;
    w->spec.run_id[0] = 0;
}

/* ------------------------------------------------------------------------------ logs */
static int insert_log(struct zt_writer *w, const struct change *c, int64_t offset, bool err_stream, const void *data,
                      size_t n, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_LOG];
    text(s, 1, c->u.log.run_id);
    sqlite3_bind_int64(s, 2, c->u.log.generation);
    sqlite3_bind_int64(s, 3, c->u.log.rank);
    sqlite3_bind_int64(s, 4, offset);
    sqlite3_bind_int(s, 5, err_stream);
    sqlite3_bind_int64(s, 6, c->u.log.at_ms);
    blob(s, 7, data, n);
    return done(w, Q_LOG, "log piece", err);
}

static int add_usage(struct zt_writer *w, const char *run_id, int64_t stored, int64_t dropped, struct zt_error *err)
{
    text(w->q[Q_LOG_USAGE], 1, run_id);
    sqlite3_bind_int64(w->q[Q_LOG_USAGE], 2, stored);
    sqlite3_bind_int64(w->q[Q_LOG_USAGE], 3, dropped);
    return done(w, Q_LOG_USAGE, "log usage", err);
}

/* The newest output explains a failure, so the oldest goes. Said once per run, in an event. */
static int enforce_quota(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const char *run_id = c->u.log.run_id;
    int64_t stored = 0, dropped = 0;
    bool found;
    text(w->q[Q_LOG_USAGE_GET], 1, run_id);
    if (two(w, Q_LOG_USAGE_GET, 0, &stored, &dropped, &found, err))
        return err->code;
    if (stored <= w->log_quota)
        return 0;
    if (dropped == 0) {
        struct zt_row_event e = { .at_ms = c->u.log.at_ms, .rank = -1, .level = 2 };
        snprintf(e.run_id, sizeof e.run_id, "%s", run_id);
        snprintf(e.kind, sizeof e.kind, "LOG_QUOTA");
        snprintf(e.actor, sizeof e.actor, "coordinator");
        snprintf(e.message, sizeof e.message,
                 "the run has written more than %" PRId64 " bytes of output: the oldest is dropped from here on",
                 w->log_quota);
        if (put_event(w, &e, -1, err))
            return err->code;
    }
    int64_t gone = 0;
    while (stored - gone > w->log_quota) {
        int64_t id = 0, bytes = 0;
        text(w->q[Q_LOG_OLDEST], 1, run_id);
        if (two(w, Q_LOG_OLDEST, 0, &id, &bytes, &found, err))
            return err->code;
        if (!found)
            break;
        sqlite3_bind_int64(w->q[Q_LOG_DELETE], 1, id);
        if (done(w, Q_LOG_DELETE, "log quota", err))
            return err->code;
        gone += bytes;
    }
    return add_usage(w, run_id, -gone, gone, err);
}

static int put_log(struct zt_writer *w, const struct change *c, struct zt_batch_result *result, struct zt_error *err)
{
    int64_t next = 0, one = 0, offset = (int64_t)c->u.log.offset;
    const uint8_t *data = c->u.log.data;
    size_t n = c->u.log.bytes;
    bool found;
    enum statement keyed[] = { Q_LOG_KNOWN, Q_LOG_NEXT };
    for (int i = 0; i < 2; i++) {
        text(w->q[keyed[i]], 1, c->u.log.run_id);
        sqlite3_bind_int64(w->q[keyed[i]], 2, c->u.log.generation);
        sqlite3_bind_int64(w->q[keyed[i]], 3, c->u.log.rank);
    }
    if (two(w, Q_LOG_KNOWN, 0, &one, NULL, &found, err))
        return err->code;
    if (!found)
        return zt_fail(err, ZT_ENOTFOUND, "no rank %u in generation %u of run %s", c->u.log.rank, c->u.log.generation,
                       c->u.log.run_id);
    if (two(w, Q_LOG_NEXT, 0, &next, NULL, &found, err))
        return err->code;
    result->log_next = (uint64_t)next;
    if (offset + (int64_t)n <= next)
        return 0;
    if (offset < next) {
        data += next - offset;
        n -= (size_t)(next - offset);
        offset = next;
    }
    int64_t added = (int64_t)n;
    if (offset > next) {
        char gap[80];
        int len = snprintf(gap, sizeof gap, "[%" PRId64 " bytes of output are missing here]\n", offset - next);
        if (insert_log(w, c, next, true, gap, (size_t)len, err))
            return err->code;
        added += len;
    }
    if (insert_log(w, c, offset, c->u.log.err, data, n, err))
        return err->code;
    sqlite3_stmt *s = w->q[Q_LOG_STREAM];
    text(s, 1, c->u.log.run_id);
    sqlite3_bind_int64(s, 2, c->u.log.generation);
    sqlite3_bind_int64(s, 3, c->u.log.rank);
    sqlite3_bind_int64(s, 4, offset + (int64_t)n);
    result->log_next = (uint64_t)(offset + (int64_t)n);
    if (done(w, Q_LOG_STREAM, "log stream", err) || add_usage(w, c->u.log.run_id, added, 0, err))
        return err->code;
    return enforce_quota(w, c, err);
}

/* ------------------------------------------------------------------------------ a batch */
static int apply(struct zt_writer *w, const struct change *c, struct zt_batch_result *result, struct zt_error *err)
{
    switch (c->kind) {
    case CH_RUN: return put_run(w, c->u.run, err);
    case CH_SPEC: return put_spec(w, c->u.spec.run_id, &c->u.spec.b, err);
    case CH_ATTEMPT: return put_attempt(w, c->u.attempt, err);
    case CH_RANK: return put_rank(w, c->u.rank, err);
    case CH_FAILURE: return put_failure(w, c->u.failure.row, &c->u.failure.b, err);
    case CH_WORKER: return put_worker(w, c->u.worker, err);
    case CH_KEY: return put_key(w, c->u.key, err);
    case CH_EVENT: return put_event(w, c->u.event.row, c->u.event.seq, err);
    case CH_STEP: return put_step(w, c, err);
    case CH_LOG: return put_log(w, c, result, err);
    }
    return zt_fail(err, ZT_EINTERNAL, "unknown change %d", (int)c->kind);
}

int zt_writer_apply(struct zt_writer *w, const struct zt_batch *b, struct zt_batch_result *result, struct zt_error *err)
{
    memset(result, 0, sizeof *result);
    for (const struct change *c = b->first; c; c = c->next)
        if (apply(w, c, result, err))
            return err->code;
    return 0;
}
