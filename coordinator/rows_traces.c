/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows_traces.c: traces of captured steps, and which of them are kept (rows.h). The newest step is
 * that of the newest generation: after a restart the steps are done again, from lower numbers. */
#include "coordinator/rows_internal.h"

#define STEPS_KEPT 32
#define BYTES_KEPT ((int64_t)64 << 20) /* of a run; the newest step and steps 1 to 3 stay whatever they take */

static int place(struct zt_writer *w, const struct change *c, int64_t *of_rank, int64_t *of_step, struct zt_error *err)
{
    bool found;
    sqlite3_stmt *s = w->q[Q_TRACE_OLD];
    w_text(s, 1, c->u.trace.run_id);
    sqlite3_bind_int64(s, 2, c->u.trace.step);
    sqlite3_bind_int64(s, 3, c->u.trace.rank);
    return w_two(w, Q_TRACE_OLD, -1, of_rank, of_step, &found, err);
}

/* A newer generation's trace may have fewer parts. */
static int drop_older(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_TRACE_DROP];
    w_text(s, 1, c->u.trace.run_id);
    sqlite3_bind_int64(s, 2, c->u.trace.step);
    sqlite3_bind_int64(s, 3, c->u.trace.rank);
    sqlite3_bind_int64(s, 4, c->u.trace.generation);
    return w_done(w, Q_TRACE_DROP, "trace of an older generation", err);
}

static int trim(struct zt_writer *w, const char *run_id, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_TRACE_TRIM];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, STEPS_KEPT);
    sqlite3_bind_int64(s, 3, BYTES_KEPT);
    return w_done(w, Q_TRACE_TRIM, "trimming traces", err);
}

int w_trace(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    int64_t of_rank = -1, of_step = -1, generation = c->u.trace.generation;
    if (w_rank_known(w, c->u.trace.run_id, c->u.trace.generation, c->u.trace.rank, err) ||
        place(w, c, &of_rank, &of_step, err))
        return err->code;
    if (of_rank > generation)
        return 0; /* an older generation never replaces a newer row */
    if (of_rank >= 0 && of_rank < generation && drop_older(w, c, err))
        return err->code;
    sqlite3_stmt *s = w->q[Q_TRACE];
    w_text(s, 1, c->u.trace.run_id);
    sqlite3_bind_int64(s, 2, c->u.trace.step);
    sqlite3_bind_int64(s, 3, c->u.trace.rank);
    sqlite3_bind_int64(s, 4, c->u.trace.part);
    sqlite3_bind_int64(s, 5, generation);
    sqlite3_bind_int64(s, 6, (int64_t)c->u.trace.bytes);
    w_blob(s, 7, c->u.trace.packed, c->u.trace.bytes);
    if (w_done(w, Q_TRACE, "trace", err))
        return err->code;
    return of_step < generation ? trim(w, c->u.trace.run_id, err) : 0; /* the first row of a captured step */
}
