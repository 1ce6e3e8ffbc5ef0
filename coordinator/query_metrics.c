/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_metrics.c: get_metrics (roll-ups, or rows per rank) and get_memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"

#define ROWS_DEFAULT 1000
#define ROWS_MAX 5000

static Zt__StepReport *read_report(struct query *q, int column)
{
    Zt__StepReport *r = zt__step_report__unpack(NULL, (size_t)sqlite3_column_bytes(q->s, column),
                                                sqlite3_column_blob(q->s, column));
    if (!r && !q->code)
        q->code = zt_fail(q->err, ZT_EIO, "a stored step report cannot be read: the database is damaged");
    return r;
}

static Zt__StepRow *read_rollup(struct query *q)
{
    Zt__StepRow *r = Q_NEW(q, Zt__StepRow, zt__step_row);
    if (!r)
        return NULL;
    r->step = sqlite3_column_int64(q->s, 0);
    r->generation = (uint32_t)sqlite3_column_int64(q->s, 1);
    r->ranks = (uint32_t)sqlite3_column_int64(q->s, 2);
    r->has_at_ms = 1;
    r->at_ms = sqlite3_column_int64(q->s, 3);
    r->has_tokens_per_second = q_has(q, 4);
    r->tokens_per_second = sqlite3_column_double(q->s, 4);
    r->has_mean_step_seconds = q_has(q, 5);
    r->mean_step_seconds = sqlite3_column_double(q->s, 5);
    r->has_mean_exposed_comm_seconds = q_has(q, 6);
    r->mean_exposed_comm_seconds = sqlite3_column_double(q->s, 6);
    r->has_peak_rank = q_has(q, 7);
    r->peak_rank = (uint32_t)sqlite3_column_int64(q->s, 7);
    r->max = read_report(q, 8);
    return r;
}

static int rollups(sqlite3 *db, const struct zt_run_ref *ref, int64_t after, int64_t last, int64_t limit,
                   Zt__Metrics *m, struct zt_error *err)
{
    struct query q;
    size_t bytes = 0;
    q_open(&q, db, "SELECT step, generation, ranks, at_ms, tokens_per_second, mean_step_seconds,"
                   " mean_exposed_comm_seconds, peak_rank, report FROM step_rollup"
                   " WHERE run_id = ?1 AND step > ?2 AND step <= ?3 ORDER BY step LIMIT ?4", err);
    q_text(&q, 1, ref->run_id);
    q_int(&q, 2, after);
    q_int(&q, 3, last);
    q_int(&q, 4, limit + 1);
    while (q_row(&q)) {
        if (m->n_rows == (size_t)limit || bytes > ZT_FRAME_PAGE) {
            m->more = 1;
            break;
        }
        Zt__StepRow *r = read_rollup(&q);
        bytes += (size_t)sqlite3_column_bytes(q.s, 8) + 64;
        if (!q_push(&q, (void ***)&m->rows, &m->n_rows, r))
            break;
    }
    return q_close(&q);
}

static bool wanted(const Zt__GetMetrics *req, uint32_t rank)
{
    for (size_t i = 0; i < req->n_rank; i++)
        if (req->rank[i] == rank)
            return true;
    return req->n_rank == 0;
}

/* A page ends anywhere when the next one can be asked for by step and rank; for a caller that knows steps only,
 * between two of them, however many ranks they have. */
static int rank_rows(sqlite3 *db, const struct zt_run_ref *ref, const Zt__GetMetrics *req, int64_t after, int64_t last,
                     int64_t limit, Zt__Metrics *m, struct zt_error *err)
{
    struct query q;
    size_t bytes = 0;
    int64_t step = 0;
    q_open(&q, db, "SELECT step, rank, report FROM step_rank WHERE run_id = ?1 AND (step, rank) > (?2, ?4) AND step <= ?3"
                   " ORDER BY step, rank", err);
    q_text(&q, 1, ref->run_id);
    q_int(&q, 2, after);
    q_int(&q, 3, last);
    q_int(&q, 4, req->has_after_rank ? req->after_rank : INT64_MAX);
    while (q_row(&q)) {
        int64_t at = sqlite3_column_int64(q.s, 0);
        if (!wanted(req, (uint32_t)sqlite3_column_int64(q.s, 1)))
            continue;
        if ((req->has_after_rank || at != step) && ((int64_t)m->n_ranks >= limit || bytes > ZT_FRAME_PAGE)) {
            m->more = 1;
            break;
        }
        step = at;
        bytes += (size_t)sqlite3_column_bytes(q.s, 2) + 8;
        if (!q_push(&q, (void ***)&m->ranks, &m->n_ranks, read_report(&q, 2)))
            break;
    }
    return q_close(&q);
}

int zt_query_metrics(sqlite3 *db, const Zt__GetMetrics *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q = { .db = db, .err = err };
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    Zt__Metrics *m = Q_NEW(&q, Zt__Metrics, zt__metrics);
    if (!m)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_METRICS;
    reply->metrics = m;
    m->run_id = q_copy(&q, ref.run_id);
    m->name = q_copy(&q, ref.name);
    m->state = q_copy(&q, zt_run_state_name(ref.state));
    m->has_more = m->has_replicate = m->has_shard = m->has_tensor = 1;
    m->replicate = (uint32_t)ref.replicate;
    m->shard = (uint32_t)ref.shard;
    m->tensor = (uint32_t)ref.tensor;
    if (q_close(&q))
        return q.code;
    int64_t limit = req->has_limit && req->limit > 0 ? req->limit : ROWS_DEFAULT;
    if (limit > ROWS_MAX)
        limit = ROWS_MAX;
    int64_t after = req->has_after_step ? req->after_step : -1;
    int64_t last = req->has_last_step ? req->last_step : INT64_MAX;
    return req->has_ranks && req->ranks ? rank_rows(db, &ref, req, after, last, limit, m, err)
                                        : rollups(db, &ref, after, last, limit, m, err);
}

/* ------------------------------------------------------------------------------ memory */
static int capacity(sqlite3 *db, const struct zt_run_ref *ref, Zt__Memory *m, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT min(w.capacity_bytes) FROM assignments a JOIN workers w ON w.worker_id = a.worker_id"
                   " WHERE a.run_id = ?1 AND a.generation = ?2", err);
    q_text(&q, 1, ref->run_id);
    q_int(&q, 2, ref->generation);
    if (q_row(&q) && q_has(&q, 0))
        m->capacity = q_string(&q, 0); /* bytes of the smallest worker, in decimal */
    return q_close(&q);
}

/* Columns of a window's row, in the order of ?. */
#define WINDOW_COLUMNS "p.rank, p.window, p.peak_reserved_bytes, p.peak, p.generation, a.capacity_bytes"
#define WINDOW_FROM                                                                                                   \
    " FROM window_peak p LEFT JOIN assignments a ON a.run_id = p.run_id AND a.generation = p.generation AND a.rank = p.rank" \
    " WHERE p.run_id = ?1 AND p.generation = (SELECT max(generation) FROM window_peak WHERE run_id = ?1)"
#define WINDOW_PLACE "CASE p.window WHEN 'init' THEN 0 WHEN 'first_step' THEN 1 WHEN 'steady' THEN 2 WHEN 'eval' THEN 3 WHEN 'save' THEN 4 ELSE 5 END"

static Zt__MemoryRow *read_window(struct query *q)
{
    Zt__MemoryRow *r = Q_NEW(q, Zt__MemoryRow, zt__memory_row);
    if (!r)
        return NULL;
    r->rank = (uint32_t)sqlite3_column_int64(q->s, 0);
    r->window = q_string(q, 1);
    r->measured = zt__window_peak__unpack(NULL, (size_t)sqlite3_column_bytes(q->s, 3), sqlite3_column_blob(q->s, 3));
    if (r->measured)
        r->measured->peak_reserved_bytes = sqlite3_column_int64(q->s, 2);
    else if (!q->code)
        q->code = zt_fail(q->err, ZT_EIO, "a stored memory peak cannot be read: the database is damaged");
    r->capacity_bytes = (uint64_t)sqlite3_column_int64(q->s, 5);
    r->has_capacity_bytes = r->capacity_bytes > 0;
    return r;
}

int zt_query_highest_windows(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT " WINDOW_COLUMNS WINDOW_FROM " ORDER BY " WINDOW_PLACE ", p.peak_allocated_bytes DESC, p.rank", err);
    q_text(&q, 1, run_id);
    while (q_row(&q)) {
        const char *window = (const char *)sqlite3_column_text(q.s, 1);
        if (d->n_windows > 0 && window && strcmp(d->windows[d->n_windows - 1]->window, window) == 0)
            continue;
        Zt__MemoryRow *r = read_window(&q);
        if (!q_push(&q, (void ***)&d->windows, &d->n_windows, r))
            break;
    }
    return q_close(&q);
}

static int plan(sqlite3 *db, const struct zt_run_ref *ref, Zt__Memory *m, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT plan FROM run_specs WHERE run_id = ?1", err);
    q_text(&q, 1, ref->run_id);
    m->has_plan = q_row(&q) && q_has(&q, 0);
    if (m->has_plan)
        m->plan = q_blob(&q, 0);
    return q_close(&q);
}

int zt_query_memory(sqlite3 *db, const Zt__GetMemory *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q;
    size_t bytes = 0;
    int64_t from = req->has_from_rank ? req->from_rank : 0;
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    q_open(&q, db, "SELECT " WINDOW_COLUMNS WINDOW_FROM " AND p.rank >= ?2 ORDER BY p.rank, " WINDOW_PLACE, err);
    q_text(&q, 1, ref.run_id);
    q_int(&q, 2, from);
    Zt__Memory *m = Q_NEW(&q, Zt__Memory, zt__memory);
    if (m) {
        reply->body_case = ZT__ENVELOPE__BODY_MEMORY;
        reply->memory = m;
        m->run_id = q_copy(&q, ref.run_id);
        m->name = q_copy(&q, ref.name);
        m->has_replicate = m->has_shard = m->has_tensor = 1;
        m->replicate = (uint32_t)ref.replicate;
        m->shard = (uint32_t)ref.shard;
        m->tensor = (uint32_t)ref.tensor;
    }
    while (m && q_row(&q)) {
        bool next_rank = m->n_rows > 0 && m->rows[m->n_rows - 1]->rank != (uint32_t)sqlite3_column_int64(q.s, 0);
        if (next_rank && bytes > ZT_FRAME_PAGE && req->has_from_rank) {
            m->has_more = m->more = 1;
            break;
        }
        bytes += (size_t)sqlite3_column_bytes(q.s, 3) + 40;
        Zt__MemoryRow *r = read_window(&q);
        if (!q_push(&q, (void ***)&m->rows, &m->n_rows, r))
            break;
        m->has_generation = 1;
        m->generation = (uint32_t)sqlite3_column_int64(q.s, 4);
    }
    if (q_close(&q) || (from == 0 && plan(db, &ref, m, err)))
        return err->code;
    return capacity(db, &ref, m, err);
}
