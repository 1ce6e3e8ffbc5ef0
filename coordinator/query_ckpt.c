/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_ckpt.c: list_checkpoints, what get_run says of checkpoints, and the checkpoint that a name
 * stands for. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"

#define COLUMNS                                                                                                        \
    "c.step, c.generation, c.state, c.manifest, c.bytes, c.created_ms, c.pinned, c.verified, c.stall_seconds,"         \
    " c.write_seconds, v.folder, c.world, c.parameter_hash, c.state_hash, c.message, c.committed_ms,"                  \
    " CASE WHEN c.state = 1 THEN (SELECT count(*) FROM checkpoint_shards p WHERE p.run_id = c.run_id AND p.step = c.step) END"
#define FROM " FROM checkpoints c LEFT JOIN run_saves v ON v.run_id = c.run_id WHERE c.run_id = ?1"
#define BYTES_EACH ((size_t)256 + 2 * 32 + 511) /* beside the folder */

static Zt__Checkpoint *read_checkpoint(struct query *q)
{
    Zt__Checkpoint *c = Q_NEW(q, Zt__Checkpoint, zt__checkpoint);
    if (!c)
        return NULL;
    enum zt_ckpt_state state = (enum zt_ckpt_state)sqlite3_column_int(q->s, 2);
    int64_t committed = sqlite3_column_int64(q->s, 15);
    c->step = sqlite3_column_int64(q->s, 0);
    c->generation = (uint32_t)sqlite3_column_int64(q->s, 1);
    c->state = q_copy(q, zt_ckpt_state_name(state));
    c->has_manifest_sha256 = committed > 0;
    if (c->has_manifest_sha256)
        c->manifest_sha256 = q_blob(q, 3);
    c->has_bytes = c->has_created_ms = c->has_pinned = c->has_verified = c->has_world = 1;
    c->bytes = sqlite3_column_int64(q->s, 4);
    c->created_ms = committed > 0 ? committed : sqlite3_column_int64(q->s, 5);
    c->pinned = sqlite3_column_int(q->s, 6);
    c->verified = sqlite3_column_int(q->s, 7);
    c->has_stall_seconds = c->has_write_seconds = 1;
    c->stall_seconds = sqlite3_column_double(q->s, 8);
    c->write_seconds = sqlite3_column_double(q->s, 9);
    c->folder = q_string_or_null(q, 10);
    c->world = (uint32_t)sqlite3_column_int64(q->s, 11);
    c->parameter_hash = q_string_or_null(q, 12);
    c->state_hash = q_string_or_null(q, 13);
    c->message = q_string_or_null(q, 14);
    c->has_shards = q_has(q, 16);
    c->shards = (uint32_t)sqlite3_column_int64(q->s, 16);
    return c;
}

static int read_keeping(sqlite3 *db, const char *run_id, Zt__CheckpointList *l, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT folder, interval, keep_latest_k, keep_every FROM run_saves WHERE run_id = ?1 AND folder <> ''", err);
    q_text(&q, 1, run_id);
    if (q_row(&q)) {
        l->folder = q_string(&q, 0);
        l->has_interval = l->has_keep_latest_k = l->has_keep_every = 1;
        l->interval = sqlite3_column_int64(q.s, 1);
        l->keep_latest_k = sqlite3_column_int64(q.s, 2);
        l->keep_every = sqlite3_column_int64(q.s, 3);
    }
    return q_close(&q);
}

int zt_query_checkpoints(sqlite3 *db, const Zt__ListCheckpoints *req, Zt__Envelope *reply, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q = { .db = db, .err = err };
    size_t bytes = 0;
    if (zt_query_resolve(db, req->run, &ref, err))
        return err->code;
    Zt__CheckpointList *l = Q_NEW(&q, Zt__CheckpointList, zt__checkpoint_list);
    if (!l)
        return q_close(&q);
    reply->body_case = ZT__ENVELOPE__BODY_CHECKPOINT_LIST;
    reply->checkpoint_list = l;
    l->run_id = q_copy(&q, ref.run_id);
    l->name = q_copy(&q, ref.name);
    l->state = q_copy(&q, zt_run_state_name(ref.state));
    if (q_close(&q) || read_keeping(db, ref.run_id, l, err))
        return err->code;
    q_open(&q, db, "SELECT " COLUMNS FROM " AND (?2 <= 0 OR c.step < ?2) ORDER BY c.step DESC", err);
    q_text(&q, 1, ref.run_id);
    q_int(&q, 2, req->has_before_step ? req->before_step : 0);
    while (q_row(&q)) {
        if (bytes > ZT_FRAME_PAGE) {
            l->has_more = l->more = 1;
            break;
        }
        bytes += BYTES_EACH + (size_t)sqlite3_column_bytes(q.s, 10);
        if (!q_push(&q, (void ***)&l->checkpoints, &l->n_checkpoints, read_checkpoint(&q)))
            break;
    }
    return q_close(&q);
}

/* ------------------------------------------------------------------------------ of one run */
static int newest(sqlite3 *db, const char *run_id, enum zt_ckpt_state state, Zt__Checkpoint **out, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT " COLUMNS FROM " AND c.state = ?2 ORDER BY c.step DESC LIMIT 1", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, state);
    if (q_row(&q))
        *out = read_checkpoint(&q);
    return q_close(&q);
}

int zt_query_run_saves(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err)
{
    struct query q;
    char text[ZT_RUN_ID_MAX + ZT_RUN_NAME_MAX + 96];
    q_open(&q, db, "SELECT source_run, source_name, source_step, weights_only FROM run_saves WHERE run_id = ?1"
                   " AND source_run <> ''", err);
    q_text(&q, 1, run_id);
    if (q_row(&q)) {
        snprintf(text, sizeof text, "run %s (%s) step %" PRId64 "%s", (const char *)sqlite3_column_text(q.s, 1),
                 (const char *)sqlite3_column_text(q.s, 0), (int64_t)sqlite3_column_int64(q.s, 2),
                 sqlite3_column_int(q.s, 3) ? ", weights only" : "");
        d->resumed_from = q_copy(&q, text);
    }
    if (q_close(&q) || newest(db, run_id, ZT_CKPT_COMMITTED, &d->checkpoint, err) ||
        newest(db, run_id, ZT_CKPT_WRITING, &d->saving, err))
        return err->code;
    return 0;
}

/* ------------------------------------------------------------------------------ which checkpoint */
/* "100, 200 and 300", the newest few, for whoever named one that is not there. */
static int committed_steps(sqlite3 *db, const char *run_id, char *out, size_t n, struct zt_error *err)
{
    struct query q;
    size_t k = 0;
    out[0] = 0;
    q_open(&q, db, "SELECT step FROM checkpoints WHERE run_id = ?1 AND state = 2 ORDER BY step DESC LIMIT 8", err);
    q_text(&q, 1, run_id);
    while (q_row(&q) && k + 24 < n)
        k += (size_t)snprintf(out + k, n - k, "%s%" PRId64, k ? ", " : "", (int64_t)sqlite3_column_int64(q.s, 0));
    return q_close(&q);
}

static int none_such(sqlite3 *db, const struct zt_run_ref *ref, int64_t step, struct zt_error *err)
{
    struct query q;
    char have[256], state[16] = "";
    if (committed_steps(db, ref->run_id, have, sizeof have, err))
        return err->code;
    if (!have[0])
        return zt_fail(err, ZT_ENOTFOUND, "run %s (%s) has no checkpoint to begin from: none of its saves was committed", ref->name,
                       ref->run_id);
    q_open(&q, db, "SELECT state FROM checkpoints WHERE run_id = ?1 AND step = ?2", err);
    q_text(&q, 1, ref->run_id);
    q_int(&q, 2, step);
    if (q_row(&q))
        snprintf(state, sizeof state, "%s", zt_ckpt_state_name((enum zt_ckpt_state)sqlite3_column_int(q.s, 0)));
    if (q_close(&q))
        return q.code;
    return zt_fail(err, ZT_ENOTFOUND, "step %" PRId64 " of run %s (%s) %s%s, so nothing can begin from it; committed are %s", step,
                   ref->name, ref->run_id, state[0] ? "is " : "was not saved", state, have);
}

int zt_query_ckpt_source(sqlite3 *db, const char *run, int64_t step, struct zt_ckpt_source *out, struct zt_error *err)
{
    struct zt_run_ref ref;
    struct query q;
    bool found = false;
    memset(out, 0, sizeof *out);
    if (zt_query_resolve(db, run, &ref, err))
        return err->code;
    q_open(&q, db, "SELECT c.step, c.manifest, v.folder, s.normalised, c.world FROM checkpoints c JOIN run_saves v ON v.run_id = c.run_id"
                   " JOIN run_specs s ON s.run_id = c.run_id WHERE c.run_id = ?1 AND c.state = 2 AND (?2 < 0 OR c.step = ?2)"
                   " ORDER BY c.step DESC LIMIT 1", err);
    q_text(&q, 1, ref.run_id);
    q_int(&q, 2, step);
    if (q_row(&q) && sqlite3_column_bytes(q.s, 1) == (int)sizeof out->manifest) {
        found = true;
        snprintf(out->run_id, sizeof out->run_id, "%s", ref.run_id);
        snprintf(out->name, sizeof out->name, "%s", ref.name);
        out->step = sqlite3_column_int64(q.s, 0);
        memcpy(out->manifest, sqlite3_column_blob(q.s, 1), sizeof out->manifest);
        out->folder = q_string(&q, 2);
        out->normalised = q_string(&q, 3);
        out->world = sqlite3_column_int(q.s, 4);
    }
    if (q_close(&q)) {
        zt_ckpt_source_free(out);
        return q.code;
    }
    return found ? 0 : none_such(db, &ref, step, err);
}

void zt_ckpt_source_free(struct zt_ckpt_source *s)
{
    free(s->folder);
    free(s->normalised);
    memset(s, 0, sizeof *s);
}

int zt_query_ckpt_facts(sqlite3 *db, const char *run_id, int64_t step, struct zt_ckpt_facts *f, struct zt_error *err)
{
    struct query q;
    memset(f, 0, sizeof *f);
    q_open(&q, db, "SELECT state, pinned, (SELECT count(*) FROM checkpoints o WHERE o.run_id = ?1 AND o.step <> ?2 AND o.state = 2"
                   " AND o.verified) FROM checkpoints WHERE run_id = ?1 AND step = ?2", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, step);
    if (q_row(&q))
        *f = (struct zt_ckpt_facts){ .found = true, .state = (enum zt_ckpt_state)sqlite3_column_int(q.s, 0),
                                     .pinned = sqlite3_column_int(q.s, 1) != 0, .others = sqlite3_column_int(q.s, 2) };
    return q_close(&q);
}
