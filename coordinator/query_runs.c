/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_runs.c: list_runs, get_run, list_workers, get_status. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/migrate.h"
#include "coordinator/oom.h"
#include "coordinator/query_internal.h"

#define LIST_DEFAULT 50
#define LIST_MAX 200          /* x about 1.1 KB stays inside a page */
#define ATTEMPTS_MAX 50
#define CONSEQUENCES_MAX 8
#define ATTEMPT_TEXT ((size_t)96 * 1024)
#define TERMINAL "(20, 21, 22)"

#define SUMMARY_COLUMNS                                                                                     \
    "r.run_id, r.name, r.state, r.reason, r.steps, r.generation, r.attempt, r.submitted_ms, r.started_ms,"  \
    " r.ended_ms, CASE WHEN r.workers > 0 THEN r.workers ELSE json_extract(r.config, '$.workers') END, r.detail, r.priority, p.step, p.loss, p.tokens_per_second,"                    \
    " p.peak_allocated_bytes, p.exposed_share, p.loss_scale, p.skipped_steps"
#define SUMMARY_N 20 /* columns */
#define SUMMARY_FROM " FROM runs r LEFT JOIN run_progress p ON p.run_id = r.run_id"

static void set_time(struct query *q, int column, int64_t *out, protobuf_c_boolean *has)
{
    *out = sqlite3_column_int64(q->s, column);
    *has = *out != 0;
}

static Zt__RunSummary *read_summary(struct query *q)
{
    Zt__RunSummary *r = Q_NEW(q, Zt__RunSummary, zt__run_summary);
    if (!r)
        return NULL;
    enum zt_reason reason = (enum zt_reason)sqlite3_column_int(q->s, 3);
    enum zt_run_state state = (enum zt_run_state)sqlite3_column_int(q->s, 2);
    r->run_id = q_string(q, 0);
    r->name = q_string(q, 1);
    r->state = q_copy(q, zt_run_state_name(state));
    if (reason != ZT_REASON_NONE && zt_run_state_explained(state)) /* else it is among the attempts */
        r->reason = q_copy(q, zt_reason_name(reason));
    r->has_steps = sqlite3_column_int64(q->s, 4) > 0;
    r->steps = sqlite3_column_int64(q->s, 4);
    r->has_generation = r->has_attempt = r->has_priority = r->has_step = 1;
    r->generation = (uint32_t)sqlite3_column_int64(q->s, 5);
    r->attempt = (uint32_t)sqlite3_column_int64(q->s, 6);
    set_time(q, 7, &r->submitted_ms, &r->has_submitted_ms);
    set_time(q, 8, &r->started_ms, &r->has_started_ms);
    set_time(q, 9, &r->ended_ms, &r->has_ended_ms);
    r->workers = (uint32_t)sqlite3_column_int64(q->s, 10); /* allocated, before that asked for */
    r->has_workers = r->workers > 0;
    r->detail = q_string_or_null(q, 11);
    r->priority = (uint32_t)sqlite3_column_int64(q->s, 12);
    r->step = sqlite3_column_int64(q->s, 13); /* NULL reads as 0 */
    r->has_loss = q_has(q, 14);
    r->loss = sqlite3_column_double(q->s, 14);
    r->has_tokens_per_second = q_has(q, 15);
    r->tokens_per_second = sqlite3_column_double(q->s, 15);
    r->has_peak_allocated_bytes = q_has(q, 16);
    r->peak_allocated_bytes = sqlite3_column_int64(q->s, 16);
    r->has_exposed_share = q_has(q, 17);
    r->exposed_share = sqlite3_column_double(q->s, 17);
    r->has_loss_scale = q_has(q, 18);
    r->loss_scale = sqlite3_column_double(q->s, 18);
    r->has_skipped_steps = q_has(q, 19);
    r->skipped_steps = sqlite3_column_int64(q->s, 19);
    return r;
}

static int state_by_name(const char *name, struct zt_error *err)
{
    for (int s = 0; s <= ZT_RUN_CANCELLED; s++) {
        const char *n = zt_run_state_name((enum zt_run_state)s);
        if (strcasecmp(n, name) == 0)
            return s;
    }
    return zt_fail(err, ZT_EINVAL, "no run state \"%.40s\"; states are QUEUED, ALLOCATING, STARTING, FORMING, RUNNING, "
                   "COMPLETING, STOPPING, RESTARTING, RECOVERING, SUCCEEDED, FAILED, CANCELLED", name);
}

int zt_query_list_runs(sqlite3 *db, const Zt__ListRuns *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct query q;
    int state = -1;
    if (req->state && req->state[0] && (state = state_by_name(req->state, err)) < 0)
        return state;
    int64_t limit = req->has_limit && req->limit > 0 ? req->limit : LIST_DEFAULT;
    q_open(&q, db, "SELECT " SUMMARY_COLUMNS SUMMARY_FROM
                   " WHERE (?1 < 0 OR r.state = ?1) AND (?2 = 0 OR r.state NOT IN " TERMINAL ")"
                   " ORDER BY r.place DESC LIMIT ?3", err);
    q_int(&q, 1, state);
    q_int(&q, 2, req->has_active_only && req->active_only);
    q_int(&q, 3, limit > LIST_MAX ? LIST_MAX : limit);
    Zt__RunList *l = reply->run_list = Q_NEW(&q, Zt__RunList, zt__run_list);
    if (l)
        reply->body_case = ZT__ENVELOPE__BODY_RUN_LIST;
    while (l && q_row(&q))
        q_push(&q, (void ***)&l->runs, &l->n_runs, read_summary(&q));
    return q_close(&q);
}

/* ------------------------------------------------------------------------------ one run */
static int read_ranks(sqlite3 *db, const struct zt_run_ref *ref, Zt__RunDetail *d, struct zt_error *err)
{
    struct query q;
    struct zt_mesh mesh = { ref->replicate, ref->shard, ref->tensor };
    if (ref->replicate < 1 || ref->shard < 1 || ref->tensor < 1)
        return 0; /* never allocated */
    q_open(&q, db, "SELECT a.rank, a.local_rank, a.worker_id, a.host, w.device, a.done, a.released, w.state,"
                   " w.run_id = a.run_id AND w.generation = a.generation, a.done_steps, p.step"
                   " FROM assignments a LEFT JOIN workers w ON w.worker_id = a.worker_id"
                   " LEFT JOIN run_progress p ON p.run_id = a.run_id AND p.generation = a.generation"
                   " WHERE a.run_id = ?1 AND a.generation = ?2 ORDER BY a.rank", err);
    q_text(&q, 1, ref->run_id);
    q_int(&q, 2, ref->generation);
    while (q_row(&q)) {
        Zt__RankInfo *r = Q_NEW(&q, Zt__RankInfo, zt__rank_info);
        if (!q_push(&q, (void ***)&d->ranks, &d->n_ranks, r))
            break;
        struct zt_coords c = zt_mesh_coords(mesh, sqlite3_column_int(q.s, 0));
        r->rank = (uint32_t)sqlite3_column_int64(q.s, 0);
        r->local_rank = (uint32_t)sqlite3_column_int64(q.s, 1);
        r->worker = q_string(&q, 2);
        r->host = q_string(&q, 3);
        r->device = q_string(&q, 4);
        r->replicate = (uint32_t)c.replicate;
        r->shard = (uint32_t)c.shard;
        r->tensor = (uint32_t)c.tensor;
        bool is_done = sqlite3_column_int(q.s, 5), released = sqlite3_column_int(q.s, 6);
        const char *state = is_done    ? "DONE"
                            : released ? "EXITED"
                            : sqlite3_column_int(q.s, 8)
                                ? zt_worker_state_name((enum zt_worker_state)sqlite3_column_int(q.s, 7))
                                : "UNKNOWN";
        r->state = q_copy(&q, state);
        r->has_step = is_done || q_has(&q, 10);
        r->step = is_done ? sqlite3_column_int64(q.s, 9) : sqlite3_column_int64(q.s, 10);
    }
    return q_close(&q);
}

static void set_seconds(struct query *q, int column, double *out, protobuf_c_boolean *has)
{
    *out = sqlite3_column_double(q->s, column);
    *has = *out >= 0;
}

/* Every failure after the first is a consequence: kept, shown, never blamed. */
static int read_failures(sqlite3 *db, const char *run_id, Zt__Attempt *a, size_t *budget, struct zt_error *err)
{
    struct query q;
    char line[ZT_MESSAGE_MAX + ZT_WORKER_ID_MAX + 128];
    q_open(&q, db, "SELECT rank, worker_id, reason, message, step, oom FROM failures"
                   " WHERE run_id = ?1 AND generation = ?2 ORDER BY place, rank", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, a->generation);
    while (q_row(&q)) {
        bool cause = a->has_rank && a->rank == sqlite3_column_int(q.s, 0);
        if (cause && q_has(&q, 5))
            a->oom = zt__oom_detail__unpack(NULL, (size_t)sqlite3_column_bytes(q.s, 5), sqlite3_column_blob(q.s, 5));
        if (cause && a->oom && zt_oom_explain(db, run_id, a->generation, a->rank, sqlite3_column_int64(q.s, 4), a->oom, err)) {
            q.code = err->code;
            break;
        }
        if (cause || a->n_consequences >= CONSEQUENCES_MAX)
            continue;
        int n = snprintf(line, sizeof line, "%s rank %d on %s: %s",
                         zt_reason_name((enum zt_reason)sqlite3_column_int(q.s, 2)), sqlite3_column_int(q.s, 0),
                         sqlite3_column_text(q.s, 1), sqlite3_column_text(q.s, 3));
        if (n > 0 && (size_t)n < *budget) {
            *budget -= (size_t)n;
            q_push(&q, (void ***)&a->consequences, &a->n_consequences, q_copy(&q, line));
        }
    }
    return q_close(&q);
}

static int read_attempts(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err)
{
    struct query q;
    size_t budget = ATTEMPT_TEXT;
    q_open(&q, db, "SELECT * FROM (SELECT a.generation, reason, rank, worker_id, message, started_ms, ended_ms,"
                   " CASE WHEN ended_ms > 0 THEN last_step ELSE max(last_step, coalesce(p.step, 0)) END,"
                   " detect_seconds, stop_seconds, start_seconds, form_seconds, counted, steps_redone,"
                   " (SELECT f.step FROM failures f WHERE f.run_id = a.run_id AND f.generation = a.generation AND f.rank = a.rank)"
                   " AS failed_step, load_seconds, start_step FROM attempts a"
                   " LEFT JOIN run_progress p ON p.run_id = a.run_id AND p.generation = a.generation"
                   " WHERE a.run_id = ?1 ORDER BY a.generation DESC LIMIT ?2) ORDER BY generation", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, ATTEMPTS_MAX);
    while (q_row(&q)) {
        Zt__Attempt *a = Q_NEW(&q, Zt__Attempt, zt__attempt);
        if (!q_push(&q, (void ***)&d->attempts, &d->n_attempts, a))
            break;
        enum zt_reason reason = (enum zt_reason)sqlite3_column_int(q.s, 1);
        a->generation = (uint32_t)sqlite3_column_int64(q.s, 0);
        if (reason != ZT_REASON_NONE)
            a->reason = q_copy(&q, zt_reason_name(reason));
        a->rank = sqlite3_column_int(q.s, 2);
        a->has_rank = a->rank >= 0;
        a->worker = q_string_or_null(&q, 3);
        a->message = q_string_or_null(&q, 4);
        set_time(&q, 5, &a->started_ms, &a->has_started_ms);
        set_time(&q, 6, &a->ended_ms, &a->has_ended_ms);
        a->has_last_step = 1;
        a->last_step = sqlite3_column_int64(q.s, 7);
        set_seconds(&q, 8, &a->detect_seconds, &a->has_detect_seconds);
        set_seconds(&q, 9, &a->stop_seconds, &a->has_stop_seconds);
        set_seconds(&q, 10, &a->start_seconds, &a->has_start_seconds);
        set_seconds(&q, 11, &a->form_seconds, &a->has_form_seconds);
        a->has_counted = a->has_steps_redone = 1;
        a->counted = sqlite3_column_int(q.s, 12);
        a->steps_redone = sqlite3_column_int64(q.s, 13);
        a->failed_step = sqlite3_column_int64(q.s, 14);
        a->has_failed_step = q_has(&q, 14) && a->failed_step >= 0;
        set_seconds(&q, 15, &a->load_seconds, &a->has_load_seconds);
        a->has_start_step = 1;
        a->start_step = sqlite3_column_int64(q.s, 16);
        if (read_failures(db, run_id, a, &budget, err)) {
            q.code = err->code;
            break;
        }
    }
    return q_close(&q);
}

static int read_spec(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err)
{
    struct query q;
    sqlite3_int64 epoch = 0;
    if (zt_db_int(db, "SELECT epoch FROM meta", 0, &epoch, err))
        return err->code;
    d->has_epoch = 1;
    d->epoch = (uint64_t)epoch;
    q_open(&q, db, "SELECT run_yaml, normalised, file, mode, max_restarts, plan FROM run_specs WHERE run_id = ?1", err);
    q_text(&q, 1, run_id);
    if (q_row(&q)) {
        d->has_run_yaml = 1;
        d->run_yaml = q_blob(&q, 0);
        d->normalised = q_string_or_null(&q, 1);
        d->file = q_string_or_null(&q, 2);
        d->mode = q_string_or_null(&q, 3);
        d->has_max_restarts = 1;
        d->max_restarts = (uint32_t)sqlite3_column_int64(q.s, 4);
        d->has_plan = q_has(&q, 5);
        if (d->has_plan)
            d->plan = q_blob(&q, 5);
    }
    return q_close(&q);
}

int zt_query_get_run(sqlite3 *db, const Zt__GetRun *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q;
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    q_open(&q, db, "SELECT " SUMMARY_COLUMNS ", r.parameter_hash, r.restarts_counted" SUMMARY_FROM " WHERE r.run_id = ?1", err);
    q_text(&q, 1, ref.run_id);
    Zt__RunDetail *d = Q_NEW(&q, Zt__RunDetail, zt__run_detail);
    if (d && q_row(&q)) {
        d->summary = read_summary(&q);
        d->replicate = (uint32_t)ref.replicate;
        d->shard = (uint32_t)ref.shard;
        d->tensor = (uint32_t)ref.tensor;
        d->parameter_hash = q_string_or_null(&q, SUMMARY_N);
        d->has_restarts_counted = 1;
        d->restarts_counted = (uint32_t)sqlite3_column_int64(q.s, SUMMARY_N + 1);
    }
    if (d) {
        reply->body_case = ZT__ENVELOPE__BODY_RUN_DETAIL;
        reply->run_detail = d;
    }
    if (q_close(&q))
        return q.code;
    if (zt_query_run_saves(db, ref.run_id, d, err) || read_ranks(db, &ref, d, err) || read_attempts(db, ref.run_id, d, err) || read_spec(db, ref.run_id, d, err) ||
        zt_query_highest_windows(db, ref.run_id, d, err))
        return err->code;
    return 0;
}

/* ------------------------------------------------------------------------------ workers, status */
static char *flag_names(struct query *q, unsigned flags)
{
    char text[96] = "";
    static const struct { unsigned bit; const char *name; } known[] = {
        { ZT_WF_CORDONED, "CORDONED" }, { ZT_WF_DRAINING, "DRAINING" }, { ZT_WF_SUSPECT, "SUSPECT" },
        { ZT_WF_LOST, "LOST" }, { ZT_WF_QUARANTINED, "QUARANTINED" } };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (flags & known[i].bit)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? "," : "", known[i].name);
    return text[0] ? q_copy(q, text) : NULL;
}

int zt_query_workers(sqlite3 *db, Zt__Envelope *reply, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT worker_id, host, device, state, flags, capacity_bytes, threads, backend, version, run_id, rank,"
                   " pid, generation, local_rank, address FROM workers ORDER BY host, worker_id LIMIT 1000", err);
    Zt__WorkerList *l = reply->worker_list = Q_NEW(&q, Zt__WorkerList, zt__worker_list);
    if (l)
        reply->body_case = ZT__ENVELOPE__BODY_WORKER_LIST;
    while (l && q_row(&q)) {
        Zt__WorkerInfo *w = Q_NEW(&q, Zt__WorkerInfo, zt__worker_info);
        if (!q_push(&q, (void ***)&l->workers, &l->n_workers, w))
            break;
        w->worker_id = q_string(&q, 0);
        w->host = q_string(&q, 1);
        w->device = q_string(&q, 2);
        enum zt_worker_state state = (enum zt_worker_state)sqlite3_column_int(q.s, 3);
        unsigned flags = (unsigned)sqlite3_column_int(q.s, 4);
        w->state = q_copy(&q, zt_worker_state_name(state));
        w->flags = flag_names(&q, state == ZT_WORKER_GONE ? flags & ~(unsigned)ZT_WF_LOST : flags);
        w->has_capacity_bytes = w->has_threads = w->has_pid = 1;
        w->capacity_bytes = (uint64_t)sqlite3_column_int64(q.s, 5);
        w->threads = (uint32_t)sqlite3_column_int64(q.s, 6);
        w->backend = q_string_or_null(&q, 7);
        w->version = q_string_or_null(&q, 8);
        w->run_id = q_string_or_null(&q, 9);
        if (w->run_id) {
            w->has_rank = w->has_generation = w->has_local_rank = 1;
            w->rank = (uint32_t)sqlite3_column_int64(q.s, 10);
            w->generation = (uint32_t)sqlite3_column_int64(q.s, 12);
            w->local_rank = (uint32_t)sqlite3_column_int64(q.s, 13);
        }
        w->pid = (uint64_t)sqlite3_column_int64(q.s, 11);
        w->address = q_string_or_null(&q, 14);
    }
    return q_close(&q);
}

static void count_workers(struct query *q, Zt__ClusterStatus *c)
{
    while (q_row(q)) {
        enum zt_worker_state s = (enum zt_worker_state)sqlite3_column_int(q->s, 0);
        uint32_t n = (uint32_t)sqlite3_column_int64(q->s, 1);
        if (s == ZT_WORKER_LOST || s == ZT_WORKER_QUARANTINED)
            c->workers_lost += n;
        else if (s == ZT_WORKER_IDLE || s == ZT_WORKER_CONNECTING)
            c->workers_idle += n;
        else if (s != ZT_WORKER_GONE)
            c->workers_busy += n;
    }
}

static char *state_folder(struct query *q, sqlite3 *db)
{
    const char *file = sqlite3_db_filename(db, "main");
    char *copied = q_copy(q, file && file[0] ? file : "./x");
    if (!copied)
        return NULL;
    char *out = q_copy(q, dirname(copied));
    free(copied);
    return out;
}

int zt_query_status(sqlite3 *db, Zt__Envelope *reply, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT epoch, started_ms FROM meta", err);
    Zt__ClusterStatus *c = reply->cluster_status = Q_NEW(&q, Zt__ClusterStatus, zt__cluster_status);
    if (!c)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_CLUSTER_STATUS;
    c->version = q_copy(&q, ZT_VERSION);
    c->protocol_major = ZT_PROTOCOL_MAJOR;
    c->protocol_minor = ZT_PROTOCOL_MINOR;
    c->state_folder = state_folder(&q, db);
    if (q_row(&q)) {
        c->epoch = (uint64_t)sqlite3_column_int64(q.s, 0);
        set_time(&q, 1, &c->started_ms, &c->has_started_ms);
    }
    if (q_close(&q))
        return q.code;
    q_open(&q, db, "SELECT state, count(*) FROM workers GROUP BY state", err);
    count_workers(&q, c);
    if (q_close(&q))
        return q.code;
    q_open(&q, db, "SELECT " SUMMARY_COLUMNS SUMMARY_FROM " WHERE r.state NOT IN " TERMINAL
                   " ORDER BY r.place DESC LIMIT ?1", err);
    q_int(&q, 1, LIST_MAX);
    while (q_row(&q))
        q_push(&q, (void ***)&c->runs, &c->n_runs, read_summary(&q));
    return q_close(&q);
}
