/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_logs.c: get_logs and get_events, both paged by the id of the last row seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"

#define EVENTS_DEFAULT 200
#define EVENTS_MAX 1000
#define TAIL_LINES_MAX 10000

static bool rank_wanted(const Zt__GetLogs *req, uint32_t rank)
{
    for (size_t i = 0; i < req->n_rank; i++)
        if (req->rank[i] == rank)
            return true;
    return req->n_rank == 0;
}

static Zt__LogPiece *read_piece(struct query *q)
{
    Zt__LogPiece *p = Q_NEW(q, Zt__LogPiece, zt__log_piece);
    if (!p)
        return NULL;
    p->id = (uint64_t)sqlite3_column_int64(q->s, 0);
    p->generation = (uint32_t)sqlite3_column_int64(q->s, 1);
    p->rank = (uint32_t)sqlite3_column_int64(q->s, 2);
    p->has_err = p->has_at_ms = 1;
    p->err = sqlite3_column_int(q->s, 3);
    p->at_ms = sqlite3_column_int64(q->s, 4);
    p->data = q_blob(q, 5);
    p->worker = q_string(q, 6);
    return p;
}

/* Drops all but the last `keep` lines of a piece; lines are counted by their ends. */
static void cut_front(ProtobufCBinaryData *d, size_t keep)
{
    size_t seen = 0, at = d->len;
    while (at > 0) {
        if (d->data[at - 1] == '\n' && seen++ == keep)
            break;
        at--;
    }
    memmove(d->data, d->data + at, d->len - at);
    d->len -= at;
}

static void reverse(Zt__Logs *l)
{
    for (size_t i = 0; i + 1 < l->n_pieces - i; i++) {
        Zt__LogPiece *t = l->pieces[i];
        l->pieces[i] = l->pieces[l->n_pieces - 1 - i];
        l->pieces[l->n_pieces - 1 - i] = t;
    }
}

#define LOG_SQL "SELECT l.id, l.generation, l.rank, l.err, l.at_ms, l.data, a.worker_id FROM logs l" \
                " LEFT JOIN assignments a ON a.run_id = l.run_id AND a.generation = l.generation AND a.rank = l.rank" \
                " WHERE l.run_id = ?1 AND l.generation = ?2 AND l.id > ?3 ORDER BY l.id "

/* The newest pieces backwards until there are enough lines, then turned round and cut. An unfinished last
 * line counts as one. */
static int tail(sqlite3 *db, const char *run_id, uint32_t generation, const Zt__GetLogs *req, size_t max,
                Zt__Logs *l, struct zt_error *err)
{
    struct query q;
    size_t lines = 0, bytes = 0, want = req->tail_lines > TAIL_LINES_MAX ? TAIL_LINES_MAX : req->tail_lines;
    q_open(&q, db, LOG_SQL "DESC", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    q_int(&q, 3, 0);
    while (bytes < max && lines < want && q_row(&q)) {
        if ((uint64_t)sqlite3_column_int64(q.s, 0) > l->next)
            l->next = (uint64_t)sqlite3_column_int64(q.s, 0);
        if (!rank_wanted(req, (uint32_t)sqlite3_column_int64(q.s, 2)))
            continue;
        Zt__LogPiece *p = read_piece(&q);
        if (!q_push(&q, (void ***)&l->pieces, &l->n_pieces, p) || !p->data.data)
            break;
        size_t here = p->data.len > 0 && p->data.data[p->data.len - 1] != '\n' && l->n_pieces == 1;
        for (size_t i = 0; i < p->data.len; i++)
            here += p->data.data[i] == '\n';
        if (lines + here >= want) {
            bool open_end = p->data.len > 0 && p->data.data[p->data.len - 1] != '\n';
            cut_front(&p->data, want - lines - (open_end && l->n_pieces == 1));
        }
        lines += here;
        bytes += p->data.len;
    }
    if (l->n_pieces > 1)
        reverse(l);
    return q_close(&q);
}

static int forward(sqlite3 *db, const char *run_id, uint32_t generation, const Zt__GetLogs *req, size_t max,
                   Zt__Logs *l, struct zt_error *err)
{
    struct query q;
    size_t bytes = 0;
    q_open(&q, db, LOG_SQL, err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    q_int(&q, 3, (int64_t)req->after);
    while (q_row(&q)) {
        if (!rank_wanted(req, (uint32_t)sqlite3_column_int64(q.s, 2))) {
            l->next = (uint64_t)sqlite3_column_int64(q.s, 0);
            continue;
        }
        size_t n = (size_t)sqlite3_column_bytes(q.s, 5);
        if (l->n_pieces > 0 && bytes + n > max) {
            l->more = 1;
            break;
        }
        bytes += n + 64;
        l->next = (uint64_t)sqlite3_column_int64(q.s, 0);
        if (!q_push(&q, (void ***)&l->pieces, &l->n_pieces, read_piece(&q)))
            break;
    }
    return q_close(&q);
}

/* Streams of the ranks asked for that may still grow. */
static int count_open(sqlite3 *db, const char *run_id, uint32_t generation, const Zt__GetLogs *req, Zt__Logs *l,
                      struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT a.rank FROM assignments a LEFT JOIN log_streams s ON s.run_id = a.run_id AND s.generation = a.generation"
                   " AND s.rank = a.rank WHERE a.run_id = ?1 AND a.generation = ?2 AND coalesce(s.ended, 0) = 0", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    l->has_open = 1;
    while (q_row(&q))
        l->open += rank_wanted(req, (uint32_t)sqlite3_column_int64(q.s, 0));
    return q_close(&q);
}

int zt_query_logs(sqlite3 *db, const Zt__GetLogs *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q = { .db = db, .err = err };
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    Zt__Logs *l = Q_NEW(&q, Zt__Logs, zt__logs);
    if (!l)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_LOGS;
    reply->logs = l;
    l->state = q_copy(&q, zt_run_state_name(ref.state));
    l->has_next = l->has_more = 1;
    l->next = req->has_after ? req->after : 0;
    if (q_close(&q))
        return q.code;
    uint32_t generation = req->has_generation && req->generation ? req->generation : ref.generation;
    size_t max = req->has_max_bytes && req->max_bytes > 0 ? req->max_bytes : ZT_FRAME_PAGE;
    if (max > 2 * ZT_FRAME_PAGE)
        max = 2 * ZT_FRAME_PAGE;
    if (count_open(db, ref.run_id, generation, req, l, err))
        return err->code;
    if (req->has_tail_lines && req->tail_lines > 0 && !(req->has_after && req->after > 0))
        return tail(db, ref.run_id, generation, req, max, l, err);
    return forward(db, ref.run_id, generation, req, max, l, err);
}

/* ------------------------------------------------------------------------------ events */
static Zt__Event *read_event(struct query *q)
{
    Zt__Event *e = Q_NEW(q, Zt__Event, zt__event);
    if (!e)
        return NULL;
    enum zt_reason reason = (enum zt_reason)sqlite3_column_int(q->s, 7);
    e->id = (uint64_t)sqlite3_column_int64(q->s, 0);
    e->at_ms = sqlite3_column_int64(q->s, 1);
    e->run_id = q_string_or_null(q, 2);
    e->worker = q_string_or_null(q, 3);
    e->kind = q_string(q, 4);
    e->from = q_string_or_null(q, 5);
    e->to = q_string_or_null(q, 6);
    if (reason != ZT_REASON_NONE)
        e->reason = q_copy(q, zt_reason_name(reason));
    e->message = q_string_or_null(q, 8);
    e->generation = (uint32_t)sqlite3_column_int64(q->s, 9);
    e->has_generation = e->generation > 0;
    e->rank = sqlite3_column_int(q->s, 10);
    e->has_rank = e->rank >= 0;
    e->has_level = 1;
    e->level = (uint32_t)sqlite3_column_int64(q->s, 11);
    e->actor = q_string_or_null(q, 12);
    return e;
}

int zt_query_events(sqlite3 *db, const Zt__GetEvents *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref = { .run_id = "" };
    struct query q;
    bool one = req->run && req->run[0];
    if (one && zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    int64_t limit = req->has_limit && req->limit > 0 ? req->limit : EVENTS_DEFAULT;
    if (limit > EVENTS_MAX)
        limit = EVENTS_MAX;
    q_open(&q, db, one ? "SELECT id, at_ms, run_id, worker_id, kind, from_state, to_state, reason, message, generation,"
                         " rank, level, actor FROM events WHERE id > ?1 AND run_id = ?3 ORDER BY id LIMIT ?2"
                       : "SELECT id, at_ms, run_id, worker_id, kind, from_state, to_state, reason, message, generation,"
                         " rank, level, actor FROM events WHERE id > ?1 ORDER BY id LIMIT ?2", err);
    q_int(&q, 1, req->has_after ? (int64_t)req->after : 0);
    q_int(&q, 2, limit + 1);
    if (one)
        q_text(&q, 3, ref.run_id);
    Zt__Events *l = Q_NEW(&q, Zt__Events, zt__events);
    if (l) {
        reply->body_case = ZT__ENVELOPE__BODY_EVENTS;
        reply->events = l;
        if (one)
            l->state = q_copy(&q, zt_run_state_name(ref.state));
        l->has_next = l->has_more = 1;
        l->next = req->has_after ? req->after : 0;
    }
    size_t bytes = 0;
    while (l && q_row(&q)) {
        if (l->n_events == (size_t)limit || bytes > ZT_FRAME_PAGE) {
            l->more = 1;
            break;
        }
        bytes += (size_t)sqlite3_column_bytes(q.s, 8) + 256;
        l->next = (uint64_t)sqlite3_column_int64(q.s, 0);
        if (!q_push(&q, (void ***)&l->events, &l->n_events, read_event(&q)))
            break;
    }
    return q_close(&q);
}
