/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_worker.c: registration, beats, loss, the desired state, and what ranks
 * report. The state diagram and the numbered invariants are at the top of machine.c. Ownership and
 * thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------ state and wish */
static struct mc_rank *leased_rank(const struct zt_machine *m, const struct mc_worker *w) {
    return w->run < 0 ? NULL : &m->runs[w->run].ranks[w->rank];
}
static bool holds(const struct mc_worker *w, const struct mc_run *r) {
    return w->child.any && w->child.generation == r->row.generation &&
           strcmp(w->child.run_id, r->row.run_id) == 0;
}
enum zt_worker_state mc_worker_state(const struct zt_machine *m, const struct mc_worker *w) {
    if (w->row.flags & ZT_WF_QUARANTINED) return ZT_WORKER_QUARANTINED;
    const struct mc_rank *k = leased_rank(m, w);
    if (w->row.flags & ZT_WF_LOST) {
        bool stopped = (w->row.flags & ZT_WF_DRAINING) && !w->child.any && !k;
        return stopped ? ZT_WORKER_GONE : ZT_WORKER_LOST;
    }
    if (!w->registered) return ZT_WORKER_CONNECTING;
    if (!k) return w->child.any ? ZT_WORKER_RECLAIMING : ZT_WORKER_IDLE;
    switch (m->runs[w->run].row.state) {
    case ZT_RUN_ALLOCATING:
        return ZT_WORKER_RESERVED;
    case ZT_RUN_STARTING:
    case ZT_RUN_FORMING:
        return k->in_comm ? ZT_WORKER_IN_COMM
               : k->ready ? ZT_WORKER_READY
               : k->seen  ? ZT_WORKER_STARTING
                          : ZT_WORKER_RESERVED;
    case ZT_RUN_RUNNING:
    case ZT_RUN_COMPLETING:
    case ZT_RUN_RECOVERING:
        return ZT_WORKER_RUNNING;
    default:
        return ZT_WORKER_STOPPING;
    }
}
static void wish_assignment(const struct zt_machine *m, const struct mc_worker *w,
                            struct zt_desired *d) {
    const struct mc_run *r = &m->runs[w->run];
    const struct mc_rank *k = &r->ranks[w->rank];
    mc_copy(d->run_id, sizeof d->run_id, r->row.run_id);
    d->generation = r->row.generation;
    d->rank = w->rank;
    d->local_rank = k->row.local_rank;
    d->workers_on_host = k->row.workers_on_host;
    d->world = r->world;
    d->mesh = r->row.mesh;
    d->attempt = r->row.attempt;
    struct mc_start start;
    mc_start_of(r, &start);
    d->from = start.from;
    d->start_step = start.step;
    memcpy(d->manifest, start.manifest, sizeof d->manifest);
    d->weights_only = start.weights_only;
    d->save_on_drain = r->row.config.saves && r->row.config.on_preempt;
    d->init_timeout_seconds = r->row.config.comm_init;
    d->term_grace_seconds = r->row.config.term_grace;
}
static enum zt_desired_action wish(const struct zt_machine *m, const struct mc_worker *w) {
    const struct mc_run *r = &m->runs[w->run];
    const struct mc_rank *k = &r->ranks[w->rank];
    if (k->row.released)
        return holds(w, r) ? ZT_DESIRED_ABORT
                           : ZT_DESIRED_IDLE; /* given up, yet back with its child */
    switch (r->row.state) {
    case ZT_RUN_ALLOCATING:
        return MC_PLANTED(MC_PLANT_START_EARLY) ? ZT_DESIRED_START
                                                : ZT_DESIRED_IDLE; /* invariant 2 */
    case ZT_RUN_RECOVERING:
        return holds(w, r) || k->row.done ? ZT_DESIRED_RUN : ZT_DESIRED_IDLE;
    case ZT_RUN_STOPPING:
        return ZT_DESIRED_ABORT;
    case ZT_RUN_SUCCEEDED:
        return mc_elapsed(m, r->state_at, m->c.exit_ms) ? ZT_DESIRED_ABORT : ZT_DESIRED_RUN;
    default:
        return k->seen ? ZT_DESIRED_RUN : ZT_DESIRED_START;
    }
}
void mc_desired(const struct zt_machine *m, int i, struct zt_desired *d) {
    const struct mc_worker *w = &m->workers[i];
    *d = (struct zt_desired){.action = ZT_DESIRED_IDLE, .rank = -1};
    bool foreign = w->child.any && (w->run < 0 || !holds(w, &m->runs[w->run]));
    if (foreign) { /* first get rid of what no live generation owns */
        d->action = ZT_DESIRED_ABORT;
        mc_copy(d->run_id, sizeof d->run_id, w->child.run_id);
        d->generation = w->child.generation;
        d->rank = w->child.rank;
    } else if (w->run >= 0) {
        d->action = wish(m, w);
        if (d->action != ZT_DESIRED_IDLE) wish_assignment(m, w, d);
    } else if (w->row.flags & ZT_WF_DRAINING) {
        d->action = ZT_DESIRED_EXIT;
    }
}
void mc_unbind(struct zt_machine *m, int i) {
    struct mc_worker *w = &m->workers[i];
    struct mc_rank *k = leased_rank(m, w);
    if (k) k->worker = -1;
    w->run = w->rank = -1;
    mc_touch(m, i);
}

/* ------------------------------------------------------------------------------ what a worker says
 * of itself */
static void set_flag(struct zt_machine *m, struct mc_worker *w, uint32_t flag, bool on) {
    uint32_t flags = on ? w->row.flags | flag : w->row.flags & ~flag;
    if (flags == w->row.flags) return;
    w->row.flags = flags;
    mc_dirty_worker(m, w);
}
/* A worker that presents a generation above ours: our database is older than the world (a restored
 * backup). Its number is never used again, and the generation we thought live is not. */
static void adopt_generation(struct zt_machine *m, struct mc_run *r, uint32_t generation) {
    if (generation <= r->row.generation || generation <= r->generation_floor) return;
    r->generation_floor = generation;
    mc_event(m, (struct mc_note){.level = 2, .kind = "GENERATION_ADOPTED", .run = r, .rank = -1},
             "a worker presents generation %u of run %s, the database knows %u: the next one is %u",
             generation, r->row.name, r->row.generation, generation + 1);
    if (mc_run_active(r))
        mc_begin_stop(m, r, ZT_REASON_COORDINATOR_RESTART, -1,
                      "a worker holds a newer generation than the database knows");
}
static void set_child(struct zt_machine *m, int i, const struct zt_on_child *at,
                      enum zt_trainer_phase phase) {
    struct mc_worker *w = &m->workers[i];
    bool any = at->run_id && at->run_id[0] && phase != ZT_TP_NONE && phase != ZT_TP_EXITED;
    bool same =
        any == w->child.any &&
        (!any || (at->generation == w->child.generation && !strcmp(at->run_id, w->child.run_id)));
    w->phase = phase;
    if (!any) set_flag(m, w, ZT_WF_QUARANTINED, false);
    if (same) return;
    w->child = (struct mc_child){
        .any = any, .generation = any ? at->generation : 0, .rank = any ? at->rank : -1};
    if (any) mc_copy(w->child.run_id, sizeof w->child.run_id, at->run_id);
    mc_touch(m, i);
    struct mc_run *r = any ? mc_find_run(m, at->run_id) : NULL;
    if (r) adopt_generation(m, r, at->generation);
}
static void advance_rank(struct zt_machine *m, struct mc_run *r, struct mc_rank *k, int64_t step) {
    if (step > k->step) k->step = step;
    if (step <= r->gen_step) return;
    r->gen_step = step;
    r->evidence_at = m->now;
}
/* The worker's word about the trainer of its lease, from a beat or a registration. */
static void hear_of_rank(struct zt_machine *m, int i, enum zt_trainer_phase phase, int64_t step,
                         int64_t age_ms, enum zt_activity activity) {
    struct mc_worker *w = &m->workers[i];
    struct mc_rank *k = leased_rank(m, w);
    if (!k || !holds(w, &m->runs[w->run])) return;
    struct mc_run *r = &m->runs[w->run];
    bool news = !k->seen || !k->back || (phase >= ZT_TP_READY && !k->ready) ||
                (phase >= ZT_TP_IN_COMM && !k->in_comm);
    k->seen = k->back = true;
    k->ready |= phase >= ZT_TP_READY;
    k->in_comm |= phase >= ZT_TP_IN_COMM;
    k->activity = activity;
    advance_rank(m, r, k, step);
    if (age_ms >= 0 && m->now - age_ms * MC_MS > k->progress_at)
        k->progress_at = m->now - age_ms * MC_MS;
    if (!news) return;
    mc_touch(m, i);
    mc_check_progressed(m, r);
}
static void set_draining(struct zt_machine *m, int i, bool draining) {
    struct mc_worker *w = &m->workers[i];
    set_flag(m, w, ZT_WF_DRAINING, draining || (w->row.flags & ZT_WF_DRAINING));
    struct mc_run *r = w->run < 0 ? NULL : &m->runs[w->run];
    if (!(w->row.flags & ZT_WF_DRAINING) || !r || !mc_run_active(r) || r->ranks[w->rank].row.done)
        return;
    if (r->row.state == ZT_RUN_RUNNING && r->row.config.saves && r->row.config.on_preempt)
        mc_begin_drain(m, r, w->rank);
    else
        mc_fail(m, r, w->rank, NULL, ZT_REASON_DRAINED, -1,
                "worker %s is draining: its rank %d moves elsewhere", w->row.worker_id, w->rank);
}

/* ------------------------------------------------------------------------------ loss */
/* The process behind this lease is gone for us. */
static void lose_lease(struct zt_machine *m, int i, const char *how) {
    struct mc_worker *w = &m->workers[i];
    if (w->run < 0) return;
    struct mc_run *r = &m->runs[w->run];
    int rank = w->rank;
    struct mc_rank *k = &r->ranks[rank];
    bool saved = k->row.done && k->have >= k->row.done_steps && k->have_txn <= m->durable;
    saved |= k->drained && k->row.released; /* it had left as it was asked to */
    mc_release_rank(m, r, rank);
    if (mc_run_active(r) && !saved)
        mc_fail(m, r, rank, NULL, ZT_REASON_WORKER_LOST, -1, "worker %s (rank %d) %s",
                w->row.worker_id, rank, how);
    else
        mc_check_progressed(m, r);
}
void mc_tick_worker(struct zt_machine *m, int i) {
    struct mc_worker *w = &m->workers[i];
    if (!w->used || MC_PLANTED(MC_PLANT_NO_LOSS)) return;
    const struct mc_run *r = w->run < 0 ? NULL : &m->runs[w->run];
    bool suspect = w->registered && mc_elapsed(m, w->last_beat, m->c.suspect_ms);
    if (suspect != !!(w->row.flags & ZT_WF_SUSPECT)) {
        w->row.flags ^= ZT_WF_SUSPECT;
        mc_touch(m, i);
    }
    if ((w->row.flags & ZT_WF_LOST) || m->now < m->grace_until) return;
    if (r && r->row.state == ZT_RUN_RECOVERING && !mc_elapsed(m, m->started_at, m->c.reattach_ms))
        return;
    if (!mc_elapsed(m, w->last_beat, w->registered ? m->c.lost_ms : m->c.reattach_ms)) return;
    /* A synchronous step proves all ranks alive: silent, but not dead, for a while. */
    bool lives = r && r->row.state == ZT_RUN_RUNNING &&
                 !mc_elapsed(m, r->evidence_at, m->c.lost_ms) && r->evidence_at > w->last_beat &&
                 !mc_elapsed(m, w->last_beat, m->c.orphan_ms);
    if (lives) return;
    set_flag(m, w, ZT_WF_LOST, true);
    mc_event(m,
             (struct mc_note){.level = 2,
                              .kind = "WORKER_LOST",
                              .run = r,
                              .worker = w,
                              .rank = w->rank,
                              .reason = ZT_REASON_WORKER_LOST},
             "no beat from worker %s for %.1f s", w->row.worker_id,
             (double)(m->now - w->last_beat) / 1e9);
    lose_lease(m, i,
               w->registered ? "sends no beats, and its group makes no steps"
                             : "did not come back after the coordinator's restart");
}
/* It was draining, its trainer is gone and no generation waits for it: it hung up because it is done. */
static bool drained(const struct zt_machine *m, const struct mc_worker *w) {
    const struct mc_rank *k = leased_rank(m, w);
    return (w->row.flags & ZT_WF_DRAINING) && !w->child.any &&
           (!k || (k->row.released && !mc_run_active(&m->runs[w->run])));
}
void mc_on_disconnected(struct zt_machine *m, const struct zt_event *ev) {
    for (int i = 0; i < m->n_workers; i++) {
        struct mc_worker *w = &m->workers[i];
        if (!w->used || !w->connected || w->session != ev->session) continue;
        w->connected = false;
        w->told.action = -1;
        if (drained(m, w)) set_flag(m, w, ZT_WF_LOST, true);
        mc_touch(m, i);
    }
}

/* ------------------------------------------------------------------------------ registration and
 * beats */
static void refuse_superseded(struct zt_machine *m, const struct zt_event *ev) {
    struct zt_fx_reply *p = mc_reply(m, ev, ZT_CODE_SUPERSEDED, false);
    if (!p) return;
    p->has_desired = true;
    p->desired = (struct zt_desired){.action = ZT_DESIRED_EXIT, .rank = -1};
    mc_copy(p->message, sizeof p->message,
            "another zworker process has taken this worker's name; stop one of the two, or give it "
            "its own --name");
}
static void replace_incarnation(struct zt_machine *m, int i, const struct zt_event *ev) {
    struct mc_worker *w = &m->workers[i];
    lose_lease(m, i, "lost its supervisor: a new process has registered under its name");
    if (w->run >= 0) mc_unbind(m, i);
    if (w->n_old == MC_OLD_INCARNATIONS) {
        memmove(w->old, w->old + 1, sizeof w->old - sizeof *w->old);
        w->n_old--;
    }
    w->old[w->n_old++] = w->row.incarnation;
    if (w->connected) { /* the old process still talks to us: it must go */
        struct zt_effect *e = mc_emit(m, ZT_FX_DESIRED);
        e->u.desired.session = w->session;
        mc_copy(e->u.desired.worker_id, sizeof e->u.desired.worker_id, w->row.worker_id);
        e->u.desired.desired = (struct zt_desired){.action = ZT_DESIRED_EXIT, .rank = -1};
    }
    w->row.incarnation = ev->incarnation;
    w->row.flags &= ZT_WF_CORDONED; /* what the old process was is no longer true */
    w->child = (struct mc_child){.rank = -1};
    w->step = -1;
    m->fresh_at = m->now;
}
static void note_worker(struct zt_machine *m, struct mc_worker *w, const struct zt_event *ev) {
    struct zt_row_worker *r = &w->row;
    mc_copy(r->host, sizeof r->host, ev->u.reg.host);
    mc_copy(r->device, sizeof r->device, ev->u.reg.device);
    mc_copy(r->version, sizeof r->version, ev->u.reg.version);
    mc_copy(r->isa, sizeof r->isa, ev->u.reg.isa);
    mc_copy(r->backend, sizeof r->backend, ev->u.reg.backend);
    mc_copy(r->address, sizeof r->address, ev->u.reg.address);
    r->capacity_bytes = ev->u.reg.capacity_bytes;
    r->threads = ev->u.reg.threads;
    r->pid = ev->u.reg.pid;
    mc_dirty_worker(m, w);
}
void mc_on_register(struct zt_machine *m, const struct zt_event *ev) {
    int i = mc_find_worker(m, ev->worker_id);
    bool fresh = i < 0;
    if (fresh && (i = mc_add_worker(m, ev->worker_id)) < 0) {
        mc_refuse(m, ev, ZT_EBUSY,
                  "this coordinator holds %d workers already; worker %s was not added",
                  m->c.max_workers, ev->worker_id);
        return;
    }
    struct mc_worker *w = &m->workers[i];
    for (int k = 0; k < w->n_old; k++)
        if (mc_incarnation_equal(&w->old[k], &ev->incarnation)) {
            refuse_superseded(m, ev);
            return;
        }
    if (fresh) {
        w->row.incarnation = ev->incarnation;
        m->fresh_at = m->now;
    } else if (!mc_incarnation_equal(&w->row.incarnation, &ev->incarnation)) {
        replace_incarnation(m, i, ev);
    }
    w->registered = w->connected = true;
    w->session = ev->session;
    w->told.action = -1;
    w->beat_seq = 0;
    w->last_beat = m->now;
    note_worker(m, w, ev);
    set_flag(m, w, ZT_WF_LOST, false);
    set_child(m, i, &ev->at, ev->u.reg.phase);
    if (ev->u.reg.step >= 0) w->step = ev->u.reg.step;
    hear_of_rank(m, i, ev->u.reg.phase, ev->u.reg.step, 0, ZT_ACT_STEP);
    set_draining(m, i, ev->u.reg.draining);
    /* A fresh connection, no child, and nothing that came over the old one is obeyed: its trainer
     * is gone. */
    if (w->run >= 0 && m->runs[w->run].row.state == ZT_RUN_STOPPING &&
        !holds(w, &m->runs[w->run])) {
        struct mc_run *r = &m->runs[w->run];
        mc_release_rank(m, r, w->rank);
        mc_check_progressed(m, r);
    }
    if (mc_reply(m, ev, 0, false)) {
        m->reply_fx = (int)m->fx->n - 1;
        m->reply_worker = i;
    }
}

/* The worker that may speak: registered, newest incarnation, newest connection. Answers the others.
 */
static int speaker(struct zt_machine *m, const struct zt_event *ev) {
    int i = mc_find_worker(m, ev->worker_id);
    if (i < 0 || !m->workers[i].registered) {
        mc_refuse(m, ev, ZT_ECONFLICT,
                  "worker %s has not registered with this coordinator; register first",
                  ev->worker_id ? ev->worker_id : "?");
        return -1;
    }
    if (!mc_incarnation_equal(&m->workers[i].row.incarnation, &ev->incarnation)) {
        refuse_superseded(m, ev);
        return -1;
    }
    if (m->workers[i].session != ev->session) {
        mc_refuse(m, ev, ZT_ECONFLICT,
                  "worker %s has registered over a newer connection; use that one", ev->worker_id);
        return -1;
    }
    return i;
}
void mc_on_beat(struct zt_machine *m, const struct zt_event *ev) {
    int i = speaker(m, ev);
    if (i < 0) return;
    struct mc_worker *w = &m->workers[i];
    if (ev->u.beat.seq > w->beat_seq) {
        w->beat_seq = ev->u.beat.seq;
        w->last_beat = m->now;
        if (w->row.flags & (ZT_WF_LOST | ZT_WF_SUSPECT)) {
            w->row.flags &= ~(uint32_t)ZT_WF_SUSPECT;
            set_flag(m, w, ZT_WF_LOST, false);
            mc_touch(m, i);
        }
        set_child(m, i, &ev->at, ev->u.beat.phase);
        struct mc_rank *k = leased_rank(m, w);
        if (k && holds(w, &m->runs[w->run])) k->held_by = ev->u.beat.held_by;
        if (ev->u.beat.step >= 0) w->step = ev->u.beat.step;
        hear_of_rank(m, i, ev->u.beat.phase, ev->u.beat.step, ev->u.beat.progress_age_ms,
                     ev->u.beat.activity);
        set_draining(m, i, ev->u.beat.draining);
    }
    struct zt_fx_reply *p = mc_reply(m, ev, 0, false);
    if (!p) return;
    p->seq = ev->u.beat.seq;
    m->reply_fx = (int)m->fx->n - 1;
    m->reply_worker = i;
}
void mc_on_worker_set(struct zt_machine *m, const struct zt_event *ev) {
    int i = mc_find_worker(m, ev->u.worker_set.worker_id);
    if (i < 0) {
        mc_refuse(m, ev, ZT_ENOTFOUND, "no worker %s; zctl workers shows those there are",
                  ev->u.worker_set.worker_id);
        return;
    }
    const uint32_t settable =
        ZT_WF_CORDONED | ZT_WF_DRAINING; /* quarantine is only ever cleared by hand */
    struct mc_worker *w = &m->workers[i];
    set_flag(m, w, ev->u.worker_set.clear & (settable | ZT_WF_QUARANTINED), false);
    set_flag(m, w, ev->u.worker_set.set & settable, true);
    set_draining(m, i, false);
    mc_reply(m, ev, 0, true);
}

/* ------------------------------------------------------------------------------ what ranks report
 */
/* Communicator ids are asked for by worker and generation, without a rank (-1): any rank of it will
 * do. */
static bool holds_rank(const struct mc_run *r, int rank, int worker) {
    if (rank >= 0) return rank < r->world && r->ranks[rank].worker == worker;
    for (int k = 0; k < r->world; k++)
        if (r->ranks[k].worker == worker) return true;
    return false;
}

/* The run this report is about, if it is of its live generation and comes from the worker that
 * holds the rank; else answers STALE and returns NULL. */
static struct mc_run *reporter(struct zt_machine *m, const struct zt_event *ev, int i) {
    const struct mc_worker *w = &m->workers[i];
    struct mc_run *r =
        w->run >= 0 && ev->at.run_id && !strcmp(m->runs[w->run].row.run_id, ev->at.run_id)
            ? &m->runs[w->run]
            : mc_find_run(m, ev->at.run_id);
    bool fenced = !MC_PLANTED(MC_PLANT_NO_GENERATION_CHECK);
    if (r && fenced) adopt_generation(m, r, ev->at.generation);
    if (r && r->world && (ev->at.generation == r->row.generation || !fenced) &&
        holds_rank(r, ev->at.rank, i))
        return r;
    struct zt_fx_reply *p = mc_reply(m, ev, ZT_CODE_STALE, false);
    if (!p) return NULL;
    mc_copy(p->message, sizeof p->message,
            "this generation of the run has ended, or the rank belongs to another worker: drop it");
    m->reply_fx = (int)m->fx->n - 1;
    m->reply_worker = i;
    return NULL;
}
static struct mc_comm *find_comm(struct zt_machine *m, int run, const struct zt_event *ev) {
    for (int i = 0; i < m->n_comms; i++) {
        struct mc_comm *c = &m->comms[i];
        if (c->run == run && c->index == ev->u.comm.index && !strcmp(c->group, ev->u.comm.group))
            return c;
    }
    return NULL;
}
static void reply_comm(struct zt_machine *m, uint64_t request, const struct mc_comm *c) {
    struct zt_event ev = {.kind = ZT_EV_COMM_GET, .request = request};
    struct zt_fx_reply *p = mc_reply(m, &ev, 0, false);
    if (!p) return;
    memcpy(p->comm_id, c->id, c->bytes);
    p->comm_id_bytes = c->bytes;
}
static void on_comm_put(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    int run = (int)(r - m->runs);
    if (ev->u.comm.bytes == 0 || ev->u.comm.bytes > ZT_COMM_ID_BYTES ||
        strlen(ev->u.comm.group) > ZT_COMM_GROUP_MAX) {
        mc_refuse(m, ev, ZT_EINVAL,
                  "a communicator id has 1 to %d bytes and its group at most %d characters",
                  ZT_COMM_ID_BYTES, ZT_COMM_GROUP_MAX);
        return;
    }
    if (r->row.state != ZT_RUN_STARTING && r->row.state != ZT_RUN_FORMING) {
        mc_refuse(m, ev, ZT_CODE_STALE, "run %s generation %u is not forming", r->row.run_id,
                  r->row.generation);
        return;
    }
    struct mc_comm *c = find_comm(m, run, ev);
    bool fresh = !c;
    if (fresh && m->n_comms == m->max_comms) {
        mc_refuse(m, ev, ZT_EBUSY, "too many communicator ids at once (%d)", m->max_comms);
        return;
    }
    if (fresh) c = &m->comms[m->n_comms++];
    if (fresh || MC_PLANTED(MC_PLANT_COMM_OVERWRITE)) {
        *c = (struct mc_comm){.run = run, .index = ev->u.comm.index, .bytes = ev->u.comm.bytes};
        mc_copy(c->group, sizeof c->group, ev->u.comm.group);
        memcpy(c->id, ev->u.comm.id, c->bytes);
    }
    reply_comm(m, ev->request, c);
    if (m->fx->n && ev->request) m->fx->v[m->fx->n - 1].u.reply.to = ZT_EV_COMM_PUT;
    int n = 0;
    for (int k = 0; k < m->n_waiters; k++) {
        const struct mc_waiter *w = &m->waiters[k];
        if (w->run == run && w->index == c->index && !strcmp(w->group, c->group))
            reply_comm(m, w->request, c);
        else
            m->waiters[n++] = *w;
    }
    m->n_waiters = n;
}
static void on_comm_get(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r, int i) {
    int run = (int)(r - m->runs);
    const struct mc_comm *c = find_comm(m, run, ev);
    if (c) {
        reply_comm(m, ev->request, c);
        return;
    }
    if (r->row.state != ZT_RUN_STARTING && r->row.state != ZT_RUN_FORMING) {
        mc_refuse(m, ev, ZT_CODE_STALE, "run %s generation %u is not forming", r->row.run_id,
                  r->row.generation);
        return;
    }
    int n = 0; /* a rank waits once per id: a repeat takes the place of the older one, whose
                  connection may be gone */
    for (int k = 0; k < m->n_waiters; k++) {
        const struct mc_waiter *w = &m->waiters[k];
        bool old = w->worker == i && w->session != ev->session;
        if (!old) m->waiters[n++] = *w;
    }
    m->n_waiters = n;
    if (m->n_waiters == m->max_waiters) {
        mc_refuse(m, ev, ZT_EBUSY, "too many ranks wait for communicator ids (%d)", m->max_waiters);
        return;
    }
    if (!ev->request) return;
    struct mc_waiter *w = &m->waiters[m->n_waiters++];
    *w = (struct mc_waiter){.run = run,
                            .worker = i,
                            .request = ev->request,
                            .session = ev->session,
                            .index = ev->u.comm.index};
    mc_copy(w->group, sizeof w->group, ev->u.comm.group);
}
static void on_steps(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_rank *k = &r->ranks[ev->at.rank];
    int64_t first = ev->u.steps.first, last = ev->u.steps.last;
    if (first < 1 || last < first) {
        mc_refuse(m, ev, ZT_EINVAL, "rank %d reports steps %lld to %lld", ev->at.rank,
                  (long long)first, (long long)last);
        return;
    }
    if (first > k->have + 1) {
        mc_refuse(m, ev, ZT_EBUSY,
                  "rank %d reports step %lld, step %lld is missing: send the oldest unacknowledged "
                  "ones first",
                  ev->at.rank, (long long)first, (long long)k->have + 1);
        return;
    }
    if (last > k->have) {
        struct zt_effect *e = mc_emit_row(m, ZT_FX_STORE_STEPS);
        e->u.steps.request = ev->request;
        mc_copy(e->u.steps.run_id, sizeof e->u.steps.run_id, r->row.run_id);
        e->u.steps.generation = ev->at.generation;
        e->u.steps.rank = ev->at.rank;
        k->have = last;
        k->have_txn = e->txn;
        double ns = ev->u.steps.step_seconds * 1e9;
        if (isfinite(ns) && ns > 0) r->ewma_ns = r->ewma_ns > 0 ? 0.8 * r->ewma_ns + 0.2 * ns : ns;
        mc_ckpt_steps(m, r);
    }
    if (last > k->step) k->progress_at = m->now;
    advance_rank(m, r, k, last);
    struct zt_fx_reply *p = mc_reply(m, ev, 0, true);
    if (p) p->seq = ev->u.steps.seq;
}
static void on_failure(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    enum zt_reason reason = ev->u.failure.reason;
    if (reason == ZT_REASON_CKPT_CORRUPT && r->attempt.from == ZT_START_FRESH)
        reason = ZT_REASON_CKPT_ERROR; /* nothing of ours was loaded: it counts, so that it ends */
    const char *text = ev->u.failure.message ? ev->u.failure.message : "";
    bool known = strncmp(zt_reason_name(reason), "UNKNOWN", 7) != 0 && reason != ZT_REASON_NONE;
    struct mc_rank *k = &r->ranks[ev->at.rank];
    if (k->row.done)
        mc_event(m,
                 (struct mc_note){.level = 2,
                                  .kind = "FAILURE_AFTER_DONE",
                                  .run = r,
                                  .rank = ev->at.rank,
                                  .reason = reason,
                                  .actor = "worker"},
                 "rank %d reports a failure after it was done: %.600s", ev->at.rank, text);
    else if (reason == ZT_REASON_DRAINED && r->row.state == ZT_RUN_RUNNING && r->row.config.saves)
        mc_drained(m, r, ev->at.rank, ev, text);
    else if (known)
        mc_fail(m, r, ev->at.rank, ev, reason, ev->u.failure.peer, "rank %d: %.700s", ev->at.rank,
                text);
    else
        mc_fail(m, r, ev->at.rank, ev, ZT_REASON_EXIT_NONZERO, ev->u.failure.peer,
                "rank %d reports reason %d, unknown here: %.600s", ev->at.rank, (int)reason, text);
    mc_reply(m, ev, 0, true);
}
static void on_done(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_rank *k = &r->ranks[ev->at.rank];
    int64_t steps = ev->u.done.steps;
    if (!k->row.done && r->row.config.steps > 0 && steps != r->row.config.steps) {
        mc_fail(m, r, ev->at.rank, ev, ZT_REASON_EXIT_NONZERO, -1,
                "rank %d says done at step %lld of %lld", ev->at.rank, (long long)steps,
                (long long)r->row.config.steps);
    } else if (!k->row.done && r->row.state != ZT_RUN_STOPPING) {
        k->row.done = true;
        k->row.done_steps = steps;
        mc_copy(k->row.parameter_hash, sizeof k->row.parameter_hash, ev->u.done.parameter_hash);
        k->ready = k->in_comm = k->back = true;
        advance_rank(m, r, k, steps);
        mc_dirty_rank(m, r, k);
        mc_check_progressed(m, r);
    }
    mc_reply(m, ev, 0, true);
}
/* Exit codes as trainers promise them: 0 done, 75 retry, 78 configuration, 85 preempted, 93 do not
 * restart. */
static enum zt_reason exit_reason(int32_t code, int32_t signal, const char **what) {
    *what = "exited before it was done";
    if (signal == 9) {
        *what = "was killed (SIGKILL) from outside";
        return ZT_REASON_KILLED;
    }
    if (signal > 0) {
        *what = "died of a signal";
        return ZT_REASON_SIGNAL;
    }
    if (code == 0) {
        *what = "exited 0 but never said it was done";
        return ZT_REASON_EXIT_NONZERO;
    }
    if (code == 78) {
        *what = "found its configuration wrong";
        return ZT_REASON_CONFIG_ERROR;
    }
    if (code == 85) {
        *what = "was preempted";
        return ZT_REASON_PREEMPTED;
    }
    if (code == 93) {
        *what = "asked not to be started again";
        return ZT_REASON_CONFIG_ERROR;
    }
    return ZT_REASON_EXIT_NONZERO;
}
static void on_child_exited(struct zt_machine *m, const struct zt_event *ev, int i) {
    struct mc_worker *w = &m->workers[i];
    const struct zt_on_child *at = &ev->at;
    bool named = at->run_id && at->run_id[0];
    if (named && w->child.any && w->child.generation == at->generation &&
        !strcmp(w->child.run_id, at->run_id)) {
        struct zt_on_child none = {.rank = -1};
        set_child(m, i, &none, ZT_TP_EXITED);
    }
    if (!w->child.any) set_flag(m, w, ZT_WF_QUARANTINED, false);
    struct mc_run *r = w->run < 0 ? NULL : &m->runs[w->run];
    bool mine = r && named && !strcmp(r->row.run_id, at->run_id) && w->rank == at->rank &&
                (r->row.generation == at->generation || MC_PLANTED(MC_PLANT_NO_GENERATION_CHECK));
    if (mine && r->row.state != ZT_RUN_ALLOCATING) {
        struct mc_rank *k = &r->ranks[w->rank];
        bool explained = k->row.done || k->failed || k->row.released;
        mc_release_rank(m, r, at->rank);
        if (!explained && mc_run_active(r)) {
            const char *what;
            enum zt_reason reason = exit_reason(ev->u.exited.exit_code, ev->u.exited.signal, &what);
            mc_fail(m, r, at->rank, ev, reason, -1,
                    "the trainer of rank %d on %s %s (exit code %d, signal %d)", at->rank,
                    w->row.worker_id, what, ev->u.exited.exit_code, ev->u.exited.signal);
        } else {
            mc_check_progressed(m, r);
        }
    }
    mc_reply(m, ev, 0, true); /* of any generation: the worker may forget it */
}
static void on_phase(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r, int i) {
    struct mc_rank *k = &r->ranks[ev->at.rank];
    k->seen = k->ready = true;
    k->in_comm |= ev->kind == ZT_EV_RANK_IN_COMM;
    mc_touch(m, i);
    mc_check_progressed(m, r);
    mc_reply(m, ev, 0,
             false); /* promises nothing: a coordinator that restarts now forms a new generation */
}
void mc_on_rank(struct zt_machine *m, const struct zt_event *ev) {
    int i = speaker(m, ev);
    if (i < 0) return;
    if (ev->kind == ZT_EV_CHILD_EXITED) {
        on_child_exited(m, ev, i);
        return;
    }
    struct mc_run *r = reporter(m, ev, i);
    if (!r) return;
    switch (ev->kind) {
    case ZT_EV_RANK_READY:
    case ZT_EV_RANK_IN_COMM:
        on_phase(m, ev, r, i);
        break;
    case ZT_EV_COMM_PUT:
        on_comm_put(m, ev, r);
        break;
    case ZT_EV_COMM_GET:
        on_comm_get(m, ev, r, i);
        break;
    case ZT_EV_STEPS:
        on_steps(m, ev, r);
        break;
    case ZT_EV_FAILURE:
        on_failure(m, ev, r);
        break;
    case ZT_EV_RANK_DONE:
        on_done(m, ev, r);
        break;
    default:
        mc_on_ckpt(m, ev, r);
        break;
    }
}
