/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_traces.c: get_trace: the collectives of a captured step on every rank, in pages by rank
 * and part. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"
#include "proto/trace.h"

/* Steps that are held, ascending, each with the newest generation that has it. */
static int held(sqlite3 *db, const char *run_id, Zt__Trace *t, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT step, generation, count(DISTINCT rank) FROM step_trace WHERE run_id = ?1 GROUP BY step, generation"
                   " ORDER BY step, generation", err);
    q_text(&q, 1, run_id);
    while (q_row(&q)) {
        Zt__HeldStep *h = t->n_held > 0 ? t->held[t->n_held - 1] : NULL;
        if (!h || h->step != sqlite3_column_int64(q.s, 0)) {
            h = Q_NEW(&q, Zt__HeldStep, zt__held_step);
            if (!q_push(&q, (void ***)&t->held, &t->n_held, h))
                break;
        }
        h->step = sqlite3_column_int64(q.s, 0);
        h->generation = (uint32_t)sqlite3_column_int64(q.s, 1);
        h->has_ranks = 1;
        h->ranks = (uint32_t)sqlite3_column_int64(q.s, 2);
    }
    return q_close(&q);
}

/* "1-3, 10, 20" */
static void held_text(const Zt__Trace *t, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0, last; i < t->n_held && at + 48 < n; i = last + 1) {
        for (last = i; last + 1 < t->n_held && t->held[last + 1]->step == t->held[last]->step + 1;)
            last++;
        at += (size_t)snprintf(out + at, n - at, "%s%" PRId64, i ? ", " : "", t->held[i]->step);
        if (last > i)
            at += (size_t)snprintf(out + at, n - at, "-%" PRId64, t->held[last]->step);
    }
}

#define CAPTURED "captured are steps 1 to 3 of a generation, every metrics.log_freq-th and the last"

static int world(sqlite3 *db, const char *run_id, uint32_t generation, uint32_t *out, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT world FROM attempts WHERE run_id = ?1 AND generation = ?2", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    *out = q_row(&q) ? (uint32_t)sqlite3_column_int64(q.s, 0) : 0;
    return q_close(&q);
}

/* The step asked for; or the newest of the newest generation, one that all ranks have told of where there is one. */
static const Zt__HeldStep *choose(const Zt__Trace *t, int64_t wanted, uint32_t ranks)
{
    const Zt__HeldStep *best = NULL;
    for (size_t i = 0; i < t->n_held; i++) {
        const Zt__HeldStep *h = t->held[i];
        if (wanted > 0) {
            if (h->step == wanted)
                return h;
        } else if (!best || h->generation > best->generation ||
                   (h->generation == best->generation && (h->ranks >= ranks || best->ranks < ranks))) {
            best = h;
        }
    }
    return best;
}

static int not_held(const struct zt_run_ref *ref, const Zt__Trace *t, int64_t wanted, struct zt_error *err)
{
    char list[1200];
    held_text(t, list, sizeof list);
    if (t->n_held == 0)
        return zt_fail(err, ZT_ENOTFOUND, "no step of run %s is held yet: " CAPTURED, ref->name);
    return zt_fail(err, ZT_ENOTFOUND, "step %" PRId64 " of run %s is not held; held are %s (" CAPTURED ", and of these "
                   "1 to 3 and the newest are kept)", wanted, ref->name, list);
}

static int page(sqlite3 *db, const char *run_id, const Zt__GetTrace *req, Zt__Trace *t, struct zt_error *err)
{
    struct query q;
    size_t bytes = 0;
    q_open(&q, db, "SELECT trace FROM step_trace WHERE run_id = ?1 AND step = ?2 AND generation = ?3"
                   " AND (rank, part) >= (?4, ?5) ORDER BY rank, part", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, t->step);
    q_int(&q, 3, t->generation);
    q_int(&q, 4, req->has_from_rank ? req->from_rank : 0);
    q_int(&q, 5, req->has_from_part ? req->from_part : 0);
    while (q_row(&q)) {
        size_t n = (size_t)sqlite3_column_bytes(q.s, 0);
        if (t->n_traces > 0 && bytes + n > ZT_FRAME_PAGE) {
            t->more = 1;
            break;
        }
        bytes += n;
        Zt__StepTrace *one = zt__step_trace__unpack(NULL, n, sqlite3_column_blob(q.s, 0));
        if (!one || zt_trace_check(one)) {
            zt__step_trace__free_unpacked(one, NULL);
            q.code = zt_fail(err, ZT_EIO, "a stored trace cannot be read: the database is damaged");
            break;
        }
        if (!q_push(&q, (void ***)&t->traces, &t->n_traces, one)) {
            zt__step_trace__free_unpacked(one, NULL);
            break;
        }
    }
    return q_close(&q);
}

int zt_query_trace(sqlite3 *db, const Zt__GetTrace *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q = { .db = db, .err = err };
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    Zt__Trace *t = Q_NEW(&q, Zt__Trace, zt__trace);
    if (!t)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_TRACE;
    reply->trace = t;
    t->run_id = q_copy(&q, ref.run_id);
    t->name = q_copy(&q, ref.name);
    t->state = q_copy(&q, zt_run_state_name(ref.state));
    t->has_more = 1;
    if (q_close(&q) || held(db, ref.run_id, t, err))
        return err->code;
    uint32_t newest = 0;
    for (size_t i = 0; i < t->n_held; i++)
        newest = t->held[i]->generation > newest ? t->held[i]->generation : newest;
    if (world(db, ref.run_id, newest, &t->world, err))
        return err->code;
    const Zt__HeldStep *h = choose(t, req->has_step ? req->step : 0, t->world);
    if (!h)
        return not_held(&ref, t, req->step, err);
    t->step = h->step;
    t->generation = h->generation;
    if (h->generation != newest && world(db, ref.run_id, h->generation, &t->world, err))
        return err->code;
    return page(db, ref.run_id, req, t, err);
}
