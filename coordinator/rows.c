/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/oom.h"
#include "coordinator/rows_internal.h"
#include "coordinator/run_config.h"

/* ------------------------------------------------------------------------------ statements */
static const char *const sql_of[Q_COUNT] = {
    [Q_RUN] =
        "INSERT INTO runs (run_id, name, place, state, reason, detail, cause_rank, generation, attempt, restarts_counted,"
        " failures_in_row, cancel_requested, workers, replicate, shard, tensor, best_step, submitted_ms, started_ms,"
        " ended_ms, parameter_hash, priority, steps, config, init_timeouts, saved_step, no_progress, source_corrupt)"
        " VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27,?28)"
        " ON CONFLICT (run_id) DO UPDATE SET state=excluded.state, reason=excluded.reason, detail=excluded.detail,"
        " cause_rank=excluded.cause_rank, generation=excluded.generation, attempt=excluded.attempt,"
        " restarts_counted=excluded.restarts_counted, failures_in_row=excluded.failures_in_row,"
        " cancel_requested=excluded.cancel_requested, workers=excluded.workers, replicate=excluded.replicate,"
        " shard=excluded.shard, tensor=excluded.tensor, best_step=excluded.best_step,"
        " submitted_ms=excluded.submitted_ms, started_ms=excluded.started_ms, ended_ms=excluded.ended_ms,"
        " parameter_hash=excluded.parameter_hash, priority=excluded.priority, steps=excluded.steps,"
        " config=excluded.config, init_timeouts=excluded.init_timeouts, saved_step=excluded.saved_step,"
        " no_progress=excluded.no_progress, source_corrupt=excluded.source_corrupt",
    [Q_SPEC] = "INSERT INTO run_specs VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11) ON CONFLICT (run_id) DO NOTHING",
    [Q_ATTEMPT] = "INSERT OR REPLACE INTO attempts (run_id, generation, attempt, world, started_ms, ended_ms, reason, rank, worker_id,"
                  " message, last_step, steps_redone, counted, detect_seconds, stop_seconds, start_seconds, form_seconds,"
                  " load_seconds, start_from, start_step)"
                  " VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20)",
    [Q_RANK] = "INSERT OR REPLACE INTO assignments VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,"
               " coalesce((SELECT capacity_bytes FROM assignments WHERE run_id=?1 AND generation=?2 AND rank=?3),"
               " (SELECT capacity_bytes FROM workers WHERE worker_id=?6), 0))",
    [Q_FAILURE] = "INSERT INTO failures VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15)"
                  " ON CONFLICT (run_id, generation, rank) DO NOTHING",
    [Q_OOM_TOLD] = "SELECT count(*) FROM events WHERE run_id=?1 AND generation=?2 AND kind='OOM'",
    [Q_WORKER] = "INSERT OR REPLACE INTO workers VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)",
    [Q_KEY] = "INSERT OR REPLACE INTO rpc_dedup VALUES (?1,?2,?3,?4,?5)",
    [Q_KEY_PRUNE] = "DELETE FROM rpc_dedup WHERE at_ms < ?1",
    /* A look at the oldest ones only: what is old is at the front. */
    [Q_EVENT_PRUNE] = "DELETE FROM events WHERE at_ms < ?1 AND id IN (SELECT id FROM events"
                      " WHERE id <= (SELECT max(id) FROM events) - 10000 ORDER BY id LIMIT 5000)",
    [Q_WORKER_PRUNE] = "DELETE FROM workers WHERE run_id='' AND flags & ?1 = 0 AND ((state=?2 AND at_ms < ?3)"
                       " OR (state=?4 AND at_ms < ?5))",
    [Q_TRACE_PRUNE] = "DELETE FROM step_trace WHERE run_id IN (SELECT run_id FROM runs WHERE ended_ms > 0 AND ended_ms < ?1)",
    [Q_EVENT] = "INSERT INTO events (at_ms, run_id, worker_id, kind, from_state, to_state, reason, generation, rank,"
                " level, actor, message, seq) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)"
                " ON CONFLICT (run_id, generation, rank, seq) WHERE seq IS NOT NULL DO NOTHING",
    [Q_STEP_OLD] = "SELECT (SELECT generation FROM step_rank WHERE run_id=?1 AND step=?2 AND rank=?3),"
                   " (SELECT generation FROM step_rollup WHERE run_id=?1 AND step=?2)",
    [Q_STEP] = "INSERT OR REPLACE INTO step_rank VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
    [Q_WORLD] = "SELECT world, (SELECT tensor FROM runs WHERE run_id=?1) FROM attempts WHERE run_id=?1 AND generation=?2",
    [Q_SPEC_NUMBERS] = "SELECT per_rank_keep, warmup_steps FROM run_specs WHERE run_id=?1",
    [Q_WINDOW_RESERVED] = "UPDATE window_peak SET peak_reserved_bytes=?4 WHERE run_id=?1 AND rank=?2 AND window=?3",
    [Q_WINDOW_GET] = "SELECT generation, step, peak_allocated_bytes, peak_reserved_bytes FROM window_peak"
                     " WHERE run_id=?1 AND rank=?2 AND window=?3",
    [Q_WINDOW_PUT] = "INSERT OR REPLACE INTO window_peak VALUES (?1,?2,?3,?4,?5,?6,?7,?8)",
    [Q_STEP_COUNT] = "SELECT generation, count(*) FROM step_rank WHERE run_id=?1 AND step=?2 GROUP BY generation"
                     " ORDER BY generation DESC LIMIT 1",
    [Q_STEP_ROWS] = "SELECT report FROM step_rank WHERE run_id=?1 AND step=?2 AND generation=?3 ORDER BY rank",
    [Q_ROLLUP] = "INSERT INTO step_rollup VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20)"
                 " ON CONFLICT (run_id, step) DO UPDATE SET generation=excluded.generation, ranks=excluded.ranks,"
                 " at_ms=excluded.at_ms, loss=excluded.loss, tokens=excluded.tokens,"
                 " tokens_per_second=excluded.tokens_per_second, step_seconds=excluded.step_seconds,"
                 " mean_step_seconds=excluded.mean_step_seconds, exposed_comm_seconds=excluded.exposed_comm_seconds,"
                 " mean_exposed_comm_seconds=excluded.mean_exposed_comm_seconds,"
                 " peak_allocated_bytes=excluded.peak_allocated_bytes, peak_reserved_bytes=excluded.peak_reserved_bytes,"
                 " peak_rank=excluded.peak_rank, report=excluded.report, clip_coefficient=excluded.clip_coefficient,"
                 " loss_scale=excluded.loss_scale, skipped=excluded.skipped, skipped_steps=excluded.skipped_steps"
                 " WHERE excluded.generation >= step_rollup.generation",
    [Q_PROGRESS] = "INSERT INTO run_progress VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10) ON CONFLICT (run_id) DO UPDATE SET"
                   " generation=excluded.generation, step=excluded.step, loss=excluded.loss,"
                   " tokens_per_second=excluded.tokens_per_second, peak_allocated_bytes=excluded.peak_allocated_bytes,"
                   " exposed_share=excluded.exposed_share, at_ms=excluded.at_ms, loss_scale=excluded.loss_scale,"
                   " skipped_steps=excluded.skipped_steps"
                   " WHERE (excluded.generation, excluded.step) >= (run_progress.generation, run_progress.step)",
    /* Only rows that are in a roll-up: after an absence of ours one rank's reports come long before another's. */
    [Q_TRIM] = "DELETE FROM step_rank WHERE run_id=?1 AND step BETWEEN ?2 AND ?3 AND step % 100 <> 0 AND EXISTS"
               " (SELECT 1 FROM step_rollup r WHERE r.run_id=step_rank.run_id AND r.step=step_rank.step"
               " AND r.generation >= step_rank.generation)",
    /* Of ranks that an older, bigger generation had. */
    [Q_STEP_STALE] = "DELETE FROM step_rank WHERE run_id=?1 AND step=?2 AND generation<?3",
    [Q_RANK_KNOWN] = "SELECT 1 FROM assignments WHERE run_id=?1 AND generation=?2 AND rank=?3",
    [Q_LOG_NEXT] = "SELECT next FROM log_streams WHERE run_id=?1 AND generation=?2 AND rank=?3",
    [Q_LOG] = "INSERT INTO logs (run_id, generation, rank, offset, err, at_ms, data) VALUES (?1,?2,?3,?4,?5,?6,?7)",
    [Q_LOG_STREAM] = "INSERT OR REPLACE INTO log_streams VALUES (?1,?2,?3,?4,?5)",
    [Q_LOG_USAGE] = "INSERT INTO log_usage VALUES (?1, ?2, ?3) ON CONFLICT (run_id) DO UPDATE SET"
                    " stored = stored + excluded.stored, dropped = dropped + excluded.dropped",
    [Q_LOG_USAGE_GET] = "SELECT stored, dropped FROM log_usage WHERE run_id=?1",
    [Q_LOG_OLDEST] = "SELECT id, length(data) FROM logs WHERE run_id=?1 ORDER BY generation, id LIMIT 1",
    [Q_LOG_DELETE] = "DELETE FROM logs WHERE id=?1",
    [Q_TRACE_OLD] = "SELECT (SELECT max(generation) FROM step_trace WHERE run_id=?1 AND step=?2 AND rank=?3),"
                    " (SELECT max(generation) FROM step_trace WHERE run_id=?1 AND step=?2)",
    [Q_TRACE_DROP] = "DELETE FROM step_trace WHERE run_id=?1 AND step=?2 AND rank=?3 AND generation < ?4",
    [Q_TRACE] = "INSERT OR REPLACE INTO step_trace VALUES (?1,?2,?3,?4,?5,?6,?7)",
    [Q_TRACE_TRIM] = "DELETE FROM step_trace WHERE run_id=?1 AND step > 3 AND step IN (SELECT step FROM"
                     " (SELECT step, row_number() OVER newest AS place, sum(sum(bytes)) OVER newest AS total FROM step_trace"
                     " WHERE run_id=?1 GROUP BY step WINDOW newest AS (ORDER BY max(generation) DESC, step DESC))"
                     " WHERE place > ?2 OR (place > 1 AND total > ?3))",
    [Q_DTYPES] = "INSERT INTO rank_dtypes VALUES (?1,?2,?3,?4) ON CONFLICT (run_id, rank) DO UPDATE SET"
                 " generation=excluded.generation, report=excluded.report WHERE excluded.generation >= rank_dtypes.generation",
    [Q_CKPT] = "INSERT OR REPLACE INTO checkpoints VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19)",
    [Q_CKPT_GONE] = "DELETE FROM checkpoints WHERE run_id=?1 AND step=?2",
    [Q_CKPT_PIN] = "UPDATE checkpoints SET pinned=?3 WHERE run_id=?1 AND step=?2",
    [Q_CKPT_STATE] = "UPDATE checkpoints SET state=?3, verified=?4, message=?5 WHERE run_id=?1 AND step=?2",
    [Q_PART] = "INSERT OR REPLACE INTO checkpoint_shards VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
    [Q_PARTS_GONE] = "DELETE FROM checkpoint_shards WHERE run_id=?1 AND step=?2",
    [Q_SAVES] = "INSERT INTO run_saves VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11) ON CONFLICT (run_id) DO NOTHING",
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

void w_text(sqlite3_stmt *s, int i, const char *v) { sqlite3_bind_text(s, i, v, -1, SQLITE_STATIC); }

void w_blob(sqlite3_stmt *s, int i, const void *v, size_t n)
{
    if (v)
        sqlite3_bind_blob64(s, i, v, n, SQLITE_STATIC);
    else
        sqlite3_bind_null(s, i);
}

void w_number(sqlite3_stmt *s, int i, int has, int64_t v)
{
    if (has)
        sqlite3_bind_int64(s, i, v);
    else
        sqlite3_bind_null(s, i);
}

void w_real(sqlite3_stmt *s, int i, int has, double v)
{
    if (has)
        sqlite3_bind_double(s, i, v); /* NaN becomes NULL; the packed report keeps it */
    else
        sqlite3_bind_null(s, i);
}

int w_done(struct zt_writer *w, enum statement q, const char *what, struct zt_error *err)
{
    int rc = sqlite3_step(w->q[q]);
    int out = rc == SQLITE_DONE ? 0 : zt_db_fail(err, w->db, what);
    sqlite3_reset(w->q[q]);
    sqlite3_clear_bindings(w->q[q]);
    return out;
}

int w_two(struct zt_writer *w, enum statement q, int64_t none, int64_t *a, int64_t *b, bool *found,
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

int w_rank_known(struct zt_writer *w, const char *run_id, uint32_t generation, uint32_t rank, struct zt_error *err)
{
    int64_t one = 0;
    bool found;
    w_text(w->q[Q_RANK_KNOWN], 1, run_id);
    sqlite3_bind_int64(w->q[Q_RANK_KNOWN], 2, generation);
    sqlite3_bind_int64(w->q[Q_RANK_KNOWN], 3, rank);
    if (w_two(w, Q_RANK_KNOWN, 0, &one, NULL, &found, err))
        return err->code;
    return found ? 0 : zt_fail(err, ZT_ENOTFOUND, "no rank %u in generation %u of run %s", rank, generation, run_id);
}

/* ------------------------------------------------------------------------------ the machine's rows */
static int put_run(struct zt_writer *w, const struct zt_row_run *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_RUN];
    char *config = zt_run_config_to_json(&r->config);
    if (!config)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    w_text(s, 1, r->run_id);
    w_text(s, 2, r->name);
    sqlite3_bind_int64(s, 3, (int64_t)r->order);
    sqlite3_bind_int(s, 4, (int)r->state);
    sqlite3_bind_int(s, 5, (int)r->reason);
    w_text(s, 6, r->detail);
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
    w_text(s, 21, r->parameter_hash);
    sqlite3_bind_int(s, 22, r->config.priority);
    sqlite3_bind_int64(s, 23, r->config.steps);
    w_text(s, 24, config);
    sqlite3_bind_int64(s, 25, r->init_timeouts);
    sqlite3_bind_int64(s, 26, r->saved_step);
    sqlite3_bind_int64(s, 27, r->no_progress);
    sqlite3_bind_int(s, 28, r->source_corrupt);
    int code = w_done(w, Q_RUN, "run row", err);
    free(config);
    return code;
}

static int put_spec(struct zt_writer *w, const char *run_id, const struct zt_run_blobs *b, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_SPEC];
    w_text(s, 1, run_id);
    w_blob(s, 2, b->run_yaml ? b->run_yaml : "", b->run_yaml_bytes);
    w_text(s, 3, b->file ? b->file : "");
    w_text(s, 4, b->overrides ? b->overrides : "[]");
    w_text(s, 5, b->normalised ? b->normalised : "");
    w_text(s, 6, b->hash ? b->hash : "");
    w_text(s, 7, b->mode ? b->mode : "");
    w_blob(s, 8, b->plan, b->plan_bytes);
    sqlite3_bind_int64(s, 9, b->per_rank_keep);
    sqlite3_bind_int64(s, 10, b->warmup_steps);
    sqlite3_bind_int(s, 11, b->max_restarts);
    if (w_done(w, Q_SPEC, "run specification", err))
        return err->code;
    bool any = (b->saves.folder && b->saves.folder[0]) || (b->saves.source_run && b->saves.source_run[0]);
    return any ? w_saves(w, run_id, &b->saves, err) : 0;
}

static int put_attempt(struct zt_writer *w, const struct zt_row_attempt *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_ATTEMPT];
    w_text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int64(s, 3, r->attempt);
    sqlite3_bind_int(s, 4, r->world);
    sqlite3_bind_int64(s, 5, r->started_ms);
    sqlite3_bind_int64(s, 6, r->ended_ms);
    sqlite3_bind_int(s, 7, (int)r->reason);
    sqlite3_bind_int(s, 8, r->rank);
    w_text(s, 9, r->worker_id);
    w_text(s, 10, r->message);
    sqlite3_bind_int64(s, 11, r->last_step);
    sqlite3_bind_int64(s, 12, r->steps_redone);
    sqlite3_bind_int(s, 13, r->counted);
    sqlite3_bind_double(s, 14, r->detect_seconds);
    sqlite3_bind_double(s, 15, r->stop_seconds);
    sqlite3_bind_double(s, 16, r->start_seconds);
    sqlite3_bind_double(s, 17, r->form_seconds);
    sqlite3_bind_double(s, 18, r->load_seconds);
    sqlite3_bind_int(s, 19, (int)r->from);
    sqlite3_bind_int64(s, 20, r->start_step);
    return w_done(w, Q_ATTEMPT, "attempt row", err);
}

static int put_rank(struct zt_writer *w, const struct zt_row_rank *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_RANK];
    w_text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int(s, 3, r->rank);
    sqlite3_bind_int(s, 4, r->local_rank);
    sqlite3_bind_int(s, 5, r->workers_on_host);
    w_text(s, 6, r->worker_id);
    w_text(s, 7, r->host);
    w_blob(s, 8, r->incarnation.bytes, sizeof r->incarnation.bytes);
    sqlite3_bind_int(s, 9, r->done);
    sqlite3_bind_int(s, 10, r->released);
    sqlite3_bind_int64(s, 11, r->done_steps);
    w_text(s, 12, r->parameter_hash);
    return w_done(w, Q_RANK, "assignment row", err);
}

/* The first rank of a generation that ran out of memory: where, what helps, and what would have fitted. */
static int tell_oom(struct zt_writer *w, const struct zt_row_failure *r, const struct zt_failure_blobs *b,
                    struct zt_error *err)
{
    int64_t told = 0;
    bool found;
    w_text(w->q[Q_OOM_TOLD], 1, r->run_id);
    sqlite3_bind_int64(w->q[Q_OOM_TOLD], 2, r->generation);
    if (w_two(w, Q_OOM_TOLD, 0, &told, NULL, &found, err))
        return err->code;
    Zt__OomDetail *d = told ? NULL : zt__oom_detail__unpack(NULL, b->oom_bytes, b->oom);
    if (!d)
        return 0; /* told already; or short of memory: the failure's own row has it */
    int code = zt_oom_explain(w->db, r->run_id, r->generation, r->rank, r->step, d, err);
    if (!code) {
        struct zt_row_event e = { .at_ms = b->at_ms, .reason = r->reason, .generation = r->generation, .rank = r->rank,
                                  .level = 3 };
        snprintf(e.run_id, sizeof e.run_id, "%s", r->run_id);
        snprintf(e.worker_id, sizeof e.worker_id, "%s", r->worker_id);
        snprintf(e.kind, sizeof e.kind, "OOM");
        snprintf(e.actor, sizeof e.actor, "coordinator");
        snprintf(e.message, sizeof e.message, "%s%s%s", d->location,
                 d->first_change ? "; the first change that fits: " : "", d->first_change ? d->first_change : "");
        code = w_event(w, &e, -1, err);
    }
    zt__oom_detail__free_unpacked(d, NULL);
    return code;
}

static int put_failure(struct zt_writer *w, const struct zt_row_failure *r, const struct zt_failure_blobs *b,
                       struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_FAILURE];
    w_text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->generation);
    sqlite3_bind_int(s, 3, r->rank);
    sqlite3_bind_int64(s, 4, r->order);
    sqlite3_bind_int(s, 5, (int)r->reason);
    w_text(s, 6, r->worker_id);
    w_text(s, 7, r->message);
    sqlite3_bind_int64(s, 8, r->step);
    sqlite3_bind_int(s, 9, r->exit_code);
    sqlite3_bind_int(s, 10, r->signal);
    sqlite3_bind_int(s, 11, r->peer);
    sqlite3_bind_int64(s, 12, r->offset_ms);
    w_text(s, 13, b->phase);
    w_blob(s, 14, b->oom, b->oom_bytes);
    w_blob(s, 15, b->last_log, b->last_log_bytes);
    if (w_done(w, Q_FAILURE, "failure row", err))
        return err->code;
    return b->oom_bytes > 0 && sqlite3_changes(w->db) > 0 ? tell_oom(w, r, b, err) : 0;
}

static int put_worker(struct zt_writer *w, const struct zt_row_worker *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_WORKER];
    w_text(s, 1, r->worker_id);
    w_text(s, 2, r->host);
    w_text(s, 3, r->device);
    w_text(s, 4, r->version);
    w_text(s, 5, r->isa);
    w_text(s, 6, r->backend);
    w_text(s, 7, r->address);
    w_blob(s, 8, r->incarnation.bytes, sizeof r->incarnation.bytes);
    sqlite3_bind_int(s, 9, (int)r->state);
    sqlite3_bind_int64(s, 10, r->flags);
    sqlite3_bind_int64(s, 11, r->capacity_bytes);
    sqlite3_bind_int64(s, 12, r->threads);
    sqlite3_bind_int64(s, 13, (int64_t)r->pid);
    w_text(s, 14, r->run_id);
    sqlite3_bind_int64(s, 15, r->generation);
    sqlite3_bind_int(s, 16, r->rank);
    sqlite3_bind_int(s, 17, r->local_rank);
    sqlite3_bind_int64(s, 18, r->at_ms);
    return w_done(w, Q_WORKER, "worker row", err);
}

static int put_key(struct zt_writer *w, const struct zt_row_key *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_KEY];
    w_blob(s, 1, r->key, sizeof r->key);
    w_text(s, 2, r->verb);
    w_text(s, 3, r->run_id);
    w_text(s, 4, r->name);
    sqlite3_bind_int64(s, 5, r->at_ms);
    return w_done(w, Q_KEY, "request key", err);
}

#define DAY_MS ((int64_t)24 * 3600 * 1000)

int zt_writer_prune(struct zt_writer *w, int64_t now_ms, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_WORKER_PRUNE];
    sqlite3_bind_int64(w->q[Q_KEY_PRUNE], 1, now_ms - DAY_MS);
    sqlite3_bind_int64(w->q[Q_EVENT_PRUNE], 1, now_ms - 30 * DAY_MS);
    sqlite3_bind_int64(w->q[Q_TRACE_PRUNE], 1, now_ms - 30 * DAY_MS);
    sqlite3_bind_int(s, 1, ZT_WF_CORDONED);
    sqlite3_bind_int(s, 2, ZT_WORKER_GONE);
    sqlite3_bind_int64(s, 3, now_ms - DAY_MS);
    sqlite3_bind_int(s, 4, ZT_WORKER_LOST);
    sqlite3_bind_int64(s, 5, now_ms - 7 * DAY_MS);
    if (w_done(w, Q_KEY_PRUNE, "request keys", err) || w_done(w, Q_EVENT_PRUNE, "old events", err) ||
        w_done(w, Q_TRACE_PRUNE, "old traces", err) || w_done(w, Q_WORKER_PRUNE, "vanished workers", err))
        return err->code;
    return 0;
}

int w_event(struct zt_writer *w, const struct zt_row_event *r, int64_t seq, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_EVENT];
    sqlite3_bind_int64(s, 1, r->at_ms);
    w_text(s, 2, r->run_id);
    w_text(s, 3, r->worker_id);
    w_text(s, 4, r->kind);
    w_text(s, 5, r->from);
    w_text(s, 6, r->to);
    sqlite3_bind_int(s, 7, (int)r->reason);
    sqlite3_bind_int64(s, 8, r->generation);
    sqlite3_bind_int(s, 9, r->rank);
    sqlite3_bind_int(s, 10, r->level);
    w_text(s, 11, r->actor);
    w_text(s, 12, r->message);
    w_number(s, 13, seq >= 0, seq);
    return w_done(w, Q_EVENT, "event row", err);
}

static int put_dtypes(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_DTYPES];
    if (w_rank_known(w, c->u.dtypes.run_id, c->u.dtypes.generation, c->u.dtypes.rank, err))
        return err->code;
    w_text(s, 1, c->u.dtypes.run_id);
    sqlite3_bind_int64(s, 2, c->u.dtypes.rank);
    sqlite3_bind_int64(s, 3, c->u.dtypes.generation);
    w_blob(s, 4, c->u.dtypes.packed, c->u.dtypes.bytes);
    return w_done(w, Q_DTYPES, "number formats", err);
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
    case CH_EVENT: return w_event(w, c->u.event.row, c->u.event.seq, err);
    case CH_STEP: return w_step(w, c, err);
    case CH_LOG: return w_log(w, c, result, err);
    case CH_TRACE: return w_trace(w, c, err);
    case CH_DTYPES: return put_dtypes(w, c, err);
    case CH_CKPT: return w_ckpt(w, c->u.ckpt, err);
    case CH_CKPT_GONE: return w_ckpt_gone(w, c->u.ckpt_set.run_id, c->u.ckpt_set.step, err);
    case CH_PART: return w_part(w, c->u.part, err);
    case CH_CKPT_SET: return w_ckpt_set(w, c, err);
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
