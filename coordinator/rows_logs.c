/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows_logs.c: pieces of trainers' output at their byte offsets, and the quota of a run
 * (rows.h). */
#include <inttypes.h>
#include <stdio.h>
#include "coordinator/rows_internal.h"

static int insert_log(struct zt_writer *w, const struct change *c, int64_t offset, bool err_stream, const void *data,
                      size_t n, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_LOG];
    w_text(s, 1, c->u.log.run_id);
    sqlite3_bind_int64(s, 2, c->u.log.generation);
    sqlite3_bind_int64(s, 3, c->u.log.rank);
    sqlite3_bind_int64(s, 4, offset);
    sqlite3_bind_int(s, 5, err_stream);
    sqlite3_bind_int64(s, 6, c->u.log.at_ms);
    w_blob(s, 7, data, n);
    return w_done(w, Q_LOG, "log piece", err);
}

static int add_usage(struct zt_writer *w, const char *run_id, int64_t stored, int64_t dropped, struct zt_error *err)
{
    w_text(w->q[Q_LOG_USAGE], 1, run_id);
    sqlite3_bind_int64(w->q[Q_LOG_USAGE], 2, stored);
    sqlite3_bind_int64(w->q[Q_LOG_USAGE], 3, dropped);
    return w_done(w, Q_LOG_USAGE, "log usage", err);
}

/* The newest output explains a failure, so the oldest goes. Said once per run, in an event. */
static int enforce_quota(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const char *run_id = c->u.log.run_id;
    int64_t stored = 0, dropped = 0;
    bool found;
    w_text(w->q[Q_LOG_USAGE_GET], 1, run_id);
    if (w_two(w, Q_LOG_USAGE_GET, 0, &stored, &dropped, &found, err))
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
        if (w_event(w, &e, -1, err))
            return err->code;
    }
    int64_t gone = 0;
    while (stored - gone > w->log_quota) {
        int64_t id = 0, bytes = 0;
        w_text(w->q[Q_LOG_OLDEST], 1, run_id);
        if (w_two(w, Q_LOG_OLDEST, 0, &id, &bytes, &found, err))
            return err->code;
        if (!found)
            break;
        sqlite3_bind_int64(w->q[Q_LOG_DELETE], 1, id);
        if (w_done(w, Q_LOG_DELETE, "log quota", err))
            return err->code;
        gone += bytes;
    }
    return add_usage(w, run_id, -gone, gone, err);
}

static int put_stream(struct zt_writer *w, const struct change *c, int64_t next, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_LOG_STREAM];
    w_text(s, 1, c->u.log.run_id);
    sqlite3_bind_int64(s, 2, c->u.log.generation);
    sqlite3_bind_int64(s, 3, c->u.log.rank);
    sqlite3_bind_int64(s, 4, next);
    sqlite3_bind_int(s, 5, c->u.log.end);
    return w_done(w, Q_LOG_STREAM, "log stream", err);
}

int w_log(struct zt_writer *w, const struct change *c, struct zt_batch_result *result, struct zt_error *err)
{
    int64_t next = 0, offset = (int64_t)c->u.log.offset;
    const uint8_t *data = c->u.log.data;
    size_t n = c->u.log.bytes;
    bool found;
    if (w_rank_known(w, c->u.log.run_id, c->u.log.generation, c->u.log.rank, err))
        return err->code;
    w_text(w->q[Q_LOG_NEXT], 1, c->u.log.run_id);
    sqlite3_bind_int64(w->q[Q_LOG_NEXT], 2, c->u.log.generation);
    sqlite3_bind_int64(w->q[Q_LOG_NEXT], 3, c->u.log.rank);
    if (w_two(w, Q_LOG_NEXT, 0, &next, NULL, &found, err))
        return err->code;
    result->log_next = (uint64_t)next;
    if (offset + (int64_t)n <= next) /* there already, or nothing but the word that it ends here */
        return c->u.log.end ? put_stream(w, c, next, err) : 0;
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
    result->log_next = (uint64_t)(offset + (int64_t)n);
    if (put_stream(w, c, offset + (int64_t)n, err) || add_usage(w, c->u.log.run_id, added, 0, err))
        return err->code;
    return enforce_quota(w, c, err);
}
