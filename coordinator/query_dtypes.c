/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_dtypes.c: get_dtypes: what number formats the ranks of a run found in use, paged by rank. */
#include <stdlib.h>
#include "coordinator/query_internal.h"

static int reports(sqlite3 *db, const char *run_id, uint32_t from, Zt__Dtypes *d, struct zt_error *err)
{
    struct query q;
    size_t bytes = 0;
    q_open(&q, db, "SELECT report FROM rank_dtypes WHERE run_id = ?1 AND rank >= ?2 AND generation ="
                   " (SELECT max(generation) FROM rank_dtypes WHERE run_id = ?1) ORDER BY rank", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, from);
    while (q_row(&q)) {
        size_t n = (size_t)sqlite3_column_bytes(q.s, 0);
        if (d->n_reports > 0 && bytes + n > ZT_FRAME_PAGE) {
            d->more = 1;
            break;
        }
        bytes += n;
        Zt__DtypesReport *r = zt__dtypes_report__unpack(NULL, n, sqlite3_column_blob(q.s, 0));
        if (!r) {
            q.code = zt_fail(err, ZT_EIO, "a stored report of number formats cannot be read: the database is damaged");
            break;
        }
        if (!q_push(&q, (void ***)&d->reports, &d->n_reports, r)) {
            zt__dtypes_report__free_unpacked(r, NULL);
            break;
        }
    }
    return q_close(&q);
}

static int world(sqlite3 *db, const char *run_id, Zt__Dtypes *d, struct zt_error *err)
{
    struct query q;
    if (d->n_reports == 0)
        return 0;
    q_open(&q, db, "SELECT world FROM attempts WHERE run_id = ?1 AND generation = ?2", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, d->reports[0]->generation);
    d->has_world = q_row(&q);
    if (d->has_world)
        d->world = (uint32_t)sqlite3_column_int64(q.s, 0);
    return q_close(&q);
}

int zt_query_dtypes(sqlite3 *db, const Zt__GetDtypes *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q = { .db = db, .err = err };
    uint32_t from = req->has_from_rank ? req->from_rank : 0;
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    Zt__Dtypes *d = Q_NEW(&q, Zt__Dtypes, zt__dtypes);
    if (!d)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_DTYPES;
    reply->dtypes = d;
    d->run_id = q_copy(&q, ref.run_id);
    d->name = q_copy(&q, ref.name);
    d->state = q_copy(&q, zt_run_state_name(ref.state));
    d->has_more = 1;
    if (q_close(&q) || reports(db, ref.run_id, from, d, err) || world(db, ref.run_id, d, err))
        return err->code;
    if (d->n_reports == 0 && from == 0)
        return zt_fail(err, ZT_ENOTFOUND, "run %s has not told its number formats yet: they are read after its first update",
                       ref.name);
    return 0;
}
