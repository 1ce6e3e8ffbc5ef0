/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/dispatch_ckpt.c: messages about checkpoints become events of the machine (shell.h). What comes from
 * the network is checked here for shape and size. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "coordinator/shell.h"

#define STEP_MAX (INT64_MAX / 2)
#define BYTES_MAX ((int64_t)1 << 58) /* a sum over all ranks stays a number */

static double seconds_said(int has, double v) { return has && isfinite(v) && v >= 0 ? v : 0; }

static const char *shard_done(const Zt__ShardDone *m, struct zt_event *ev)
{
    struct zt_ckpt_part *p = &ev->u.shard.part;
    ev->kind = ZT_EV_SHARD_DONE;
    ev->at = (struct zt_on_child){ m->run_id, m->generation, (int32_t)m->rank };
    if (m->bytes < 0 || m->bytes > BYTES_MAX)
        return "bytes: out of range";
    if (m->index_sha256.len != sizeof p->index)
        return "index_sha256: 32 bytes are required";
    if (m->parameter_hash.len != sizeof p->parameter_hash || m->state_hash.len != sizeof p->state_hash)
        return "parameter_hash, state_hash: 16 bytes are required";
    ev->u.shard.step = m->step;
    p->bytes = m->bytes;
    memcpy(p->index, m->index_sha256.data, sizeof p->index);
    memcpy(p->parameter_hash, m->parameter_hash.data, sizeof p->parameter_hash);
    memcpy(p->state_hash, m->state_hash.data, sizeof p->state_hash);
    p->stall_seconds = seconds_said(m->has_stall_seconds, m->stall_seconds);
    p->write_seconds = seconds_said(m->has_write_seconds, m->write_seconds);
    return NULL;
}

static const char *own_folder(struct zt_shell *sh, const char *run_id)
{
    for (struct zt_run_info *i = sh->infos; i; i = i->next)
        if (strcmp(i->text.run_id, run_id) == 0)
            return i->text.folder;
    return NULL; /* not live: the machine says so */
}

static const char *commit(struct zt_shell *sh, const Zt__CkptCommit *m, struct zt_event *ev)
{
    const char *folder = own_folder(sh, m->run_id);
    ev->kind = ZT_EV_CKPT_COMMIT;
    ev->at = (struct zt_on_child){ m->run_id, m->generation, 0 };
    if (m->manifest_sha256.len != 32)
        return "manifest_sha256: 32 bytes are required";
    if (folder && m->folder && strcmp(folder, m->folder) != 0)
        return "folder: not the one this run was given to save in";
    if ((m->parameter_hash && strlen(m->parameter_hash) > ZT_HASH_MAX) || (m->state_hash && strlen(m->state_hash) > ZT_HASH_MAX))
        return "parameter_hash, state_hash: at most 32 characters";
    ev->u.commit.step = m->step;
    ev->u.commit.bytes = m->bytes;
    ev->u.commit.manifest = m->manifest_sha256.data;
    ev->u.commit.parameter_hash = m->parameter_hash ? m->parameter_hash : "";
    ev->u.commit.state_hash = m->state_hash ? m->state_hash : "";
    ev->u.commit.adopted = m->has_adopted && m->adopted;
    return NULL;
}

void zt_dispatch_ckpt(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    struct zt_event ev = { 0 };
    const char *bad = NULL;
    int64_t step = 1;
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_SHARD_DONE:
        step = env->shard_done->step;
        bad = shard_done(env->shard_done, &ev);
        break;
    case ZT__ENVELOPE__BODY_GET_SHARDS: /* rank 0's alone, as the next two */
        ev.kind = ZT_EV_GET_SHARDS;
        ev.at = (struct zt_on_child){ env->get_shards->run_id, env->get_shards->generation, 0 };
        ev.u.commit.step = step = env->get_shards->step;
        break;
    case ZT__ENVELOPE__BODY_CKPT_COMMIT:
        step = env->ckpt_commit->step;
        bad = commit(sh, env->ckpt_commit, &ev);
        break;
    case ZT__ENVELOPE__BODY_CKPT_REMOVED:
        ev.kind = ZT_EV_CKPT_REMOVED;
        ev.at = (struct zt_on_child){ env->ckpt_removed->run_id, env->ckpt_removed->generation, 0 };
        ev.u.commit.step = step = env->ckpt_removed->step;
        break;
    case ZT__ENVELOPE__BODY_CKPT_FAILED:
        ev.kind = ZT_EV_CKPT_FAILED;
        ev.at = (struct zt_on_child){ env->ckpt_failed->run_id, env->ckpt_failed->generation, (int32_t)env->ckpt_failed->rank };
        ev.u.ckpt_failed.step = step = env->ckpt_failed->step;
        ev.u.ckpt_failed.message = env->ckpt_failed->message;
        ev.u.ckpt_failed.disk_full = env->ckpt_failed->has_disk_full && env->ckpt_failed->disk_full;
        break;
    default:
        ev.kind = ZT_EV_RANK_LOADED;
        ev.at = (struct zt_on_child){ env->rank_loaded->run_id, env->rank_loaded->generation, (int32_t)env->rank_loaded->rank };
        ev.u.loaded.step = env->rank_loaded->step;
        ev.u.loaded.seconds = env->rank_loaded->has_seconds ? env->rank_loaded->seconds : NAN;
        ev.u.loaded.bytes = env->rank_loaded->has_bytes ? env->rank_loaded->bytes : 0;
        ev.u.loaded.memory_bytes = env->rank_loaded->has_memory_bytes ? env->rank_loaded->memory_bytes : 0;
        break;
    }
    if (!bad && (step < 1 || step > STEP_MAX))
        bad = "step: out of range";
    if (!bad)
        bad = zt_bad_place(ev.at.run_id, (uint32_t)ev.at.rank);
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    zt_dispatch_step(sh, s, env, &ev, ev.kind == ZT_EV_GET_SHARDS);
}

/* ------------------------------------------------------------------------------ clients */
void zt_on_set_checkpoint(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__SetCheckpoint *m = env->set_checkpoint;
    const char *bad = NULL;
    if (m->request_key.len != 16)
        bad = "request_key: 16 random bytes are required";
    else if (m->step < 1 || m->step > STEP_MAX)
        bad = "step: out of range";
    else if (m->what < ZT__SET_CHECKPOINT__WHAT__PIN || m->what > ZT__SET_CHECKPOINT__WHAT__DELETED)
        bad = "what: not one this coordinator knows; use the same version on both sides";
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    zt_readers_submit(sh->readers, s, env); /* comes back in zt_dispatch_set_checkpoint */
}

void zt_dispatch_set_checkpoint(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, const struct zt_run_ref *ref,
                                const struct zt_ckpt_facts *facts, uint64_t read_txn)
{
    static const char *const verbs[] = { "", "pin", "unpin", "verified", "corrupt", "delete", "deleted" };
    const Zt__SetCheckpoint *m = env->set_checkpoint;
    struct zt_error err;
    struct zt_row_event audit;
    struct zt_session *s = zt_session_find(sh, session);
    if (!s || !s->peer || sh->stopping)
        return; /* the client is gone and will ask again with the same key, or not */
    struct zt_request *q = zt_request_new(sh, s, env, false, &err);
    if (!q) {
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        return;
    }
    zt_audit(sh, &audit, s, "checkpoint", ref->run_id, "%s step %lld of %s", verbs[m->what], (long long)m->step, ref->name);
    struct zt_event ev = { .kind = ZT_EV_CKPT_SET, .request = q->id };
    ev.u.ckpt_set.key = m->request_key.data;
    ev.u.ckpt_set.run_id = ref->run_id;
    ev.u.ckpt_set.step = m->step;
    ev.u.ckpt_set.what = (enum zt_ckpt_set)m->what;
    ev.u.ckpt_set.message = m->message ? m->message : "";
    ev.u.ckpt_set.read_txn = read_txn;
    ev.u.ckpt_set.found = facts->found;
    ev.u.ckpt_set.state = facts->state;
    ev.u.ckpt_set.pinned = facts->pinned;
    ev.u.ckpt_set.others = facts->others;
    zt_shell_step(sh, &ev, &audit);
}
