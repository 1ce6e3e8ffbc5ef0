/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_ckpt_set.c: what people decide about checkpoints, of runs that live and of those that have
 * ended: these are rows of the database, of which the machine knows what it was told and what it changed since.
 * Ownership and thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------ rows of runs that are not live */
void mc_note_changed(struct zt_machine *m, const char *run_id, uint64_t txn) {
    struct mc_changed *e = &m->changed[m->n_changed++ % MC_ENDED];
    mc_copy(e->run_id, sizeof e->run_id, run_id);
    e->txn = txn;
}
/* What was read of a run's checkpoints may be older than a change to them. */
static bool outdated(const struct zt_machine *m, const char *run_id, uint64_t read_txn) {
    int n = m->n_changed < MC_ENDED ? m->n_changed : MC_ENDED;
    uint64_t oldest = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        if (m->changed[i].txn < oldest) oldest = m->changed[i].txn;
        if (m->changed[i].txn > read_txn && !strcmp(m->changed[i].run_id, run_id)) return true;
    }
    return m->n_changed > MC_ENDED && read_txn < oldest;
}
bool mc_source_changed(struct zt_machine *m, const struct zt_run_source *s, uint64_t read_txn, char *why, size_t n) {
    const struct mc_run *r = mc_find_run(m, s->run_id);
    const struct mc_ckpt *c = r ? mc_ckpt_find(r, s->step) : NULL;
    bool good = r ? c && c->row.state == ZT_CKPT_COMMITTED && !memcmp(c->row.manifest, s->manifest, sizeof s->manifest)
                  : !outdated(m, s->run_id, read_txn);
    if (!good)
        snprintf(why, n, "the checkpoints of run %s have just changed; zctl checkpoint ls %s shows them: submit again", s->run_id,
                 s->run_id);
    return !good;
}
void mc_ckpt_set_stored(struct zt_machine *m, const char *run_id, int64_t step, enum zt_ckpt_set what, const char *message) {
    struct zt_effect *e = mc_emit_row(m, ZT_FX_CKPT_SET);
    mc_copy(e->u.ckpt_set.run_id, sizeof e->u.ckpt_set.run_id, run_id);
    e->u.ckpt_set.step = step;
    e->u.ckpt_set.what = what;
    mc_copy(e->u.ckpt_set.message, sizeof e->u.ckpt_set.message, message);
    mc_note_changed(m, run_id, e->txn);
}

/* ------------------------------------------------------------------------------ what people decide */
/* NULL, or why the state does not allow it. others: verified and committed ones beside it. */
static const char *forbidden(enum zt_ckpt_set what, enum zt_ckpt_state s, bool pinned, int others, bool used, bool live) {
    switch (what) {
    case ZT_SET_PIN:
    case ZT_SET_UNPIN:
        return s == ZT_CKPT_DELETING || s == ZT_CKPT_WRITING ? "only what is complete and stays can be pinned" : NULL;
    case ZT_SET_VERIFIED:
        if (s == ZT_CKPT_COMMITTED || (s == ZT_CKPT_CORRUPT && !live)) return NULL;
        return s == ZT_CKPT_CORRUPT ? "it was found damaged, and its run has gone on without it" : "it is not committed";
    case ZT_SET_CORRUPT:
        return s == ZT_CKPT_COMMITTED || s == ZT_CKPT_CORRUPT ? NULL : "it is not committed";
    case ZT_SET_DELETE:
        if (s == ZT_CKPT_WRITING) return "it is being written; wait for it, or cancel the run";
        if (s == ZT_CKPT_DELETING) return NULL;
        if (pinned) return "it is pinned; zctl checkpoint pin --off first";
        if (used) return "a run that has not ended goes on from it, or may have to";
        return s != ZT_CKPT_COMMITTED || others > 0 ? NULL : "it is the last verified one of its run";
    case ZT_SET_DELETED:
        return s == ZT_CKPT_DELETING ? NULL : "it was not to be removed; delete it first";
    }
    return "unknown change";
}
/* A run that is still in the machine. */
static void set_live(struct zt_machine *m, struct mc_run *r, struct mc_ckpt *c, enum zt_ckpt_set what, const char *message) {
    switch (what) {
    case ZT_SET_PIN:
    case ZT_SET_UNPIN:
        c->row.pinned = what == ZT_SET_PIN;
        break;
    case ZT_SET_VERIFIED:
        c->row.verified = true;
        break;
    case ZT_SET_CORRUPT:
        c->row.state = ZT_CKPT_CORRUPT;
        c->row.verified = false;
        mc_copy(c->row.message, sizeof c->row.message, message);
        break;
    case ZT_SET_DELETE:
        c->row.state = ZT_CKPT_DELETING;
        break;
    case ZT_SET_DELETED:
        mc_ckpt_say_removed(m, r->row.run_id, c->row.step, "user");
        mc_ckpt_drop(m, r, c);
        return;
    }
    mc_ckpt_put(m, r, c);
}
static int verified_beside(const struct mc_run *r, const struct mc_ckpt *c) {
    int n = 0;
    for (int i = 0; i < r->n_ckpts; i++)
        n += &r->ckpts[i] != c && r->ckpts[i].row.state == ZT_CKPT_COMMITTED && r->ckpts[i].row.verified;
    return n;
}
void mc_on_ckpt_set(struct zt_machine *m, const struct zt_event *ev) {
    const char *run_id = ev->u.ckpt_set.run_id, *why = NULL;
    int64_t step = ev->u.ckpt_set.step;
    enum zt_ckpt_set what = ev->u.ckpt_set.what;
    const struct mc_key *k = mc_find_key(m, ev->u.ckpt_set.key);
    if (k && (strcmp(k->verb, "ckpt") || strcmp(k->run_id, run_id))) {
        mc_refuse(m, ev, ZT_ECONFLICT, "this request key was used for a %s of run %s; take a fresh one", k->verb, k->run_id);
        return;
    }
    struct mc_run *r = mc_find_run(m, run_id);
    bool live = r && !zt_run_state_terminal(r->row.state);
    struct mc_ckpt *c = r ? mc_ckpt_find(r, step) : NULL;
    bool found = r ? c != NULL : ev->u.ckpt_set.found;
    if (!k && !r && outdated(m, run_id, ev->u.ckpt_set.read_txn)) {
        mc_refuse(m, ev, ZT_EBUSY, "the checkpoints of run %s have just changed; try again", run_id);
        return;
    }
    if (k || (!found && what == ZT_SET_DELETED)) { /* done, or done before */
        mc_reply(m, ev, 0, true);
        return;
    }
    if (!found) {
        mc_refuse(m, ev, ZT_ENOTFOUND, "run %s has no checkpoint of step %" PRId64 "; zctl checkpoint ls %s shows those there are",
                  run_id, step, run_id);
        return;
    }
    enum zt_ckpt_state s = c ? c->row.state : ev->u.ckpt_set.state;
    why = forbidden(what, s, c ? c->row.pinned : ev->u.ckpt_set.pinned, c ? verified_beside(r, c) : ev->u.ckpt_set.others,
                    mc_ckpt_in_use(m, run_id, step), live);
    if (why) {
        mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 " of run %s is %s: %s", step, run_id, zt_ckpt_state_name(s), why);
        return;
    }
    mc_store_key(m, ev->u.ckpt_set.key, "ckpt", run_id, "");
    if (what == ZT_SET_CORRUPT && s == ZT_CKPT_COMMITTED)
        mc_event(m, (struct mc_note){.level = 3, .kind = "CHECKPOINT_CORRUPT", .run_id = run_id, .rank = -1, .actor = "user"},
                 "run %s: step %" PRId64 " is damaged: %.400s", run_id, step, ev->u.ckpt_set.message);
    if (c && !live && what == ZT_SET_VERIFIED) c->row.state = ZT_CKPT_COMMITTED; /* repaired, and its run has ended */
    if (r && c) {
        set_live(m, r, c, what, ev->u.ckpt_set.message);
    } else {
        if (what == ZT_SET_DELETED) mc_ckpt_say_removed(m, run_id, step, "user");
        mc_ckpt_set_stored(m, run_id, step, what, ev->u.ckpt_set.message);
    }
    mc_reply(m, ev, 0, true);
}
