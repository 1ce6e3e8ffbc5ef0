/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows_ckpt.c: rows of checkpoints, of their parts, and of where a run saves (rows.h). */
#include "coordinator/rows_internal.h"

int w_ckpt(struct zt_writer *w, const struct zt_row_ckpt *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_CKPT];
    w_text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int64(s, 3, r->generation);
    sqlite3_bind_int(s, 4, (int)r->state);
    sqlite3_bind_int(s, 5, r->world);
    sqlite3_bind_int(s, 6, r->mesh.replicate);
    sqlite3_bind_int(s, 7, r->mesh.shard);
    sqlite3_bind_int(s, 8, r->mesh.tensor);
    w_blob(s, 9, r->manifest, sizeof r->manifest);
    sqlite3_bind_int64(s, 10, r->bytes);
    sqlite3_bind_int64(s, 11, r->created_ms);
    sqlite3_bind_int64(s, 12, r->committed_ms);
    sqlite3_bind_int(s, 13, r->pinned);
    sqlite3_bind_int(s, 14, r->verified);
    sqlite3_bind_double(s, 15, r->stall_seconds);
    sqlite3_bind_double(s, 16, r->write_seconds);
    w_text(s, 17, r->parameter_hash);
    w_text(s, 18, r->state_hash);
    w_text(s, 19, r->message);
    w->saves |= r->state == ZT_CKPT_COMMITTED;
    if (w_done(w, Q_CKPT, "checkpoint row", err) || r->state == ZT_CKPT_WRITING)
        return err->code;
    return w_ckpt_parts_gone(w, r->run_id, r->step, err);
}

int w_ckpt_parts_gone(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    w_text(w->q[Q_PARTS_GONE], 1, run_id);
    sqlite3_bind_int64(w->q[Q_PARTS_GONE], 2, step);
    return w_done(w, Q_PARTS_GONE, "parts of a checkpoint", err);
}

int w_ckpt_gone(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    w_text(w->q[Q_CKPT_GONE], 1, run_id);
    sqlite3_bind_int64(w->q[Q_CKPT_GONE], 2, step);
    if (w_done(w, Q_CKPT_GONE, "checkpoint row", err))
        return err->code;
    return w_ckpt_parts_gone(w, run_id, step, err);
}

int w_part(struct zt_writer *w, const struct zt_row_part *r, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_PART];
    w_text(s, 1, r->run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int(s, 3, r->part.rank);
    sqlite3_bind_int64(s, 4, r->generation);
    sqlite3_bind_int64(s, 5, r->part.bytes);
    w_blob(s, 6, r->part.index, sizeof r->part.index);
    w_blob(s, 7, r->part.parameter_hash, sizeof r->part.parameter_hash);
    w_blob(s, 8, r->part.state_hash, sizeof r->part.state_hash);
    sqlite3_bind_double(s, 9, r->part.stall_seconds);
    sqlite3_bind_double(s, 10, r->part.write_seconds);
    return w_done(w, Q_PART, "part of a checkpoint", err);
}

int w_ckpt_set(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    static const enum statement of[] = { [ZT_SET_PIN] = Q_CKPT_PIN, [ZT_SET_UNPIN] = Q_CKPT_PIN, [ZT_SET_VERIFIED] = Q_CKPT_STATE,
                                         [ZT_SET_CORRUPT] = Q_CKPT_STATE, [ZT_SET_DELETE] = Q_CKPT_STATE };
    enum zt_ckpt_set what = c->u.ckpt_set.what;
    if (what == ZT_SET_DELETED)
        return w_ckpt_gone(w, c->u.ckpt_set.run_id, c->u.ckpt_set.step, err);
    sqlite3_stmt *s = w->q[of[what]];
    w_text(s, 1, c->u.ckpt_set.run_id);
    sqlite3_bind_int64(s, 2, c->u.ckpt_set.step);
    if (of[what] == Q_CKPT_PIN) {
        sqlite3_bind_int(s, 3, what == ZT_SET_PIN);
    } else {
        sqlite3_bind_int(s, 3, what == ZT_SET_VERIFIED ? ZT_CKPT_COMMITTED : what == ZT_SET_CORRUPT ? ZT_CKPT_CORRUPT : ZT_CKPT_DELETING);
        sqlite3_bind_int(s, 4, what == ZT_SET_VERIFIED);
        w_text(s, 5, c->u.ckpt_set.message ? c->u.ckpt_set.message : "");
    }
    return w_done(w, of[what], "checkpoint row", err);
}

int w_saves(struct zt_writer *w, const char *run_id, const struct zt_run_saves *b, struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_SAVES];
    w_text(s, 1, run_id);
    w_text(s, 2, b->folder ? b->folder : "");
    sqlite3_bind_int64(s, 3, b->interval);
    sqlite3_bind_int64(s, 4, b->keep_latest_k);
    sqlite3_bind_int64(s, 5, b->keep_every);
    w_text(s, 6, b->source_run ? b->source_run : "");
    w_text(s, 7, b->source_name ? b->source_name : "");
    sqlite3_bind_int64(s, 8, b->source_step);
    w_text(s, 9, b->source_folder ? b->source_folder : "");
    sqlite3_bind_int(s, 10, b->weights_only);
    sqlite3_bind_int(s, 11, b->accept_batch_change);
    return w_done(w, Q_SAVES, "where a run saves", err);
}
