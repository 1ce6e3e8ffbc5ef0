/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine.c: the machine's frame: tables, effects, dispatch, invariants. Its rules live
 * in machine_run.c (runs), machine_end.c (ends), machine_place.c (scheduler), machine_worker.c (workers),
 * machine_ckpt.c (checkpoints), machine_recover.c (a start). Ownership and thread rule: machine.h.
 *
 * Invariants. zt_machine_check asserts those that one state can show (*); the simulation asserts
 * the rest over histories. 1* A run has at most one live generation, and each formation uses a
 * number above every one used before, stored by us or presented by a worker. 2  Generation and
 * allocation are durable before any worker is told START. 3* A worker's lease belongs to at most
 * one run; lease and rank point at each other. 4  Nothing said for an older generation or by an
 * older incarnation changes a run. 5  An answer to a mutating request leaves only when all that was
 * written before it is durable. 6  A worker is leased again only after a positive word that its
 * trainer is gone: ChildExited, a new incarnation, a fresh registration without a child. A lost or
 * quarantined worker is not leased at all. 7* A run ends in exactly one terminal state. SUCCEEDED
 * needs every rank done, at the same step with the same parameter hash, and every step row durable.
 *  8  The first failure of a generation is its cause, unless it is a consequence (PEER_LOST,
 * COMM_TIMEOUT) and a cause arrives within cause_ms. Nothing un-fails a generation. 9* No two runs
 * that have not ended share a name. 10  An acknowledged cancel of a run that had not ended ends it
 * CANCELLED. 11* A communicator id is written once per (run, generation, group, index); it is a
 * secret, lives in memory only and goes when the run is RUNNING or its generation ends. 12  A pause
 * of the coordinator is nobody's silence: time limits count active time only, and no worker is
 *     declared lost or hung within lost_ms after a pause. 13* A save belongs to the live generation,
 * and its row counts the parts that are in. 14* A step is COMMITTED only with all parts in, of one
 * generation, and the step rows of every rank up to it durable; it is set once, and leaves that
 * state only for CORRUPT or DELETING. 15* Nothing is let go that a run which has not ended goes on
 * from or may have to, nothing pinned, and never the last verified one. 16* A generation begins
 * from the newest COMMITTED step of its run, else from the run's source; a run that has saved
 * never begins anew by itself.
 *
 * Runs. Arrows name the functions that take them.
 *
 *   SUBMITTED/QUEUED --allocate--> ALLOCATING --mc_committed_run--> STARTING
 * --mc_check_progressed--> FORMING |  ^(mc_on_submit)                | | | |  |
 * +----------mc_begin_stop--------+--------------------------------+ |  | | mc_check_progressed |
 * |                              v                                                               v
 *    |  |      +-stop_complete----- STOPPING <------------------mc_begin_stop----------------------
 * RUNNING |  |      v                       |     ^ | |  |  RESTARTING --allocate-->    |
 * +--mc_begin_stop-- COMPLETING <---mc_check_progressed-----+ |  |  (as QUEUED, after backoff)  | |
 *    |  |                        stop_complete              mc_check_progressed
 *    |  |                              v                            v
 *    +--+--mc_on_cancel--> CANCELLED / FAILED                  SUCCEEDED --free_if_over-->
 * (forgotten)
 *
 *   mc_on_start: RUNNING, COMPLETING -> RECOVERING --mc_check_progressed (all back)--> RUNNING
 *                                                  --mc_tick_run (grace over)--------> STOPPING
 *                ALLOCATING, STARTING, FORMING -> STOPPING (COORDINATOR_RESTART)
 *
 * Workers: mc_worker_state computes the state from the lease, the rank and the worker's own last
 * word.
 *
 *   CONNECTING --mc_on_register--> IDLE --allocate--> RESERVED --beat/READY--> STARTING, READY,
 * IN_COMM, RUNNING IDLE <--mc_unbind (stop_complete, free_if_over)-- STOPPING <--mc_begin_stop--
 * any of these RECLAIMING: holds a child no live generation owns; ABORT until ChildExited, then
 * IDLE LOST <--mc_tick_worker--; back by any beat.  QUARANTINED <--mc_tick_run (reap over)--; back
 * by ChildExited. GONE: was draining, has nothing left and hung up (mc_on_disconnected); back by
 * mc_on_register. */
#include "coordinator/machine_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ZT_MACHINE_PLANTS
int zt_machine_plant = MC_PLANT_NONE;
#endif

#define AFTER_EVERYTHING UINT64_MAX /* reply mark, resolved when the step ends */

const char *zt_run_state_name(enum zt_run_state s) {
    switch (s) {
    case ZT_RUN_SUBMITTED:
        return "SUBMITTED";
    case ZT_RUN_QUEUED:
        return "QUEUED";
    case ZT_RUN_ALLOCATING:
        return "ALLOCATING";
    case ZT_RUN_STARTING:
        return "STARTING";
    case ZT_RUN_FORMING:
        return "FORMING";
    case ZT_RUN_RUNNING:
        return "RUNNING";
    case ZT_RUN_COMPLETING:
        return "COMPLETING";
    case ZT_RUN_STOPPING:
        return "STOPPING";
    case ZT_RUN_RESTARTING:
        return "RESTARTING";
    case ZT_RUN_PAUSED:
        return "PAUSED";
    case ZT_RUN_RECOVERING:
        return "RECOVERING";
    case ZT_RUN_SUCCEEDED:
        return "SUCCEEDED";
    case ZT_RUN_FAILED:
        return "FAILED";
    case ZT_RUN_CANCELLED:
        return "CANCELLED";
    }
    return "UNKNOWN";
}
const char *zt_worker_state_name(enum zt_worker_state s) {
    static const char *const names[] = {"CONNECTING", "IDLE",    "RESERVED",   "STARTING",
                                        "READY",      "IN_COMM", "RUNNING",    "STOPPING",
                                        "RECLAIMING", "LOST",    "QUARANTINED", "GONE"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "UNKNOWN";
}
bool zt_run_state_terminal(enum zt_run_state s) {
    return s == ZT_RUN_SUCCEEDED || s == ZT_RUN_FAILED || s == ZT_RUN_CANCELLED;
}
bool zt_run_state_explained(enum zt_run_state s) {
    return zt_run_state_terminal(s) || s == ZT_RUN_STOPPING || s == ZT_RUN_RESTARTING;
}

/* ------------------------------------------------------------------------------ small things */
void mc_copy(char *dst, size_t size, const char *src) {
    size_t n = src ? strlen(src) : 0;
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)src[n] & 0xC0) == 0x80) n--;
    }
    if (n) memcpy(dst, src, n);
    dst[n] = 0;
}
bool mc_incarnation_equal(const struct zt_incarnation *a, const struct zt_incarnation *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
bool mc_elapsed(const struct zt_machine *m, int64_t since, int64_t ms) {
    return m->now - since >= ms * MC_MS;
}

static uint32_t hash_name(const char *s) {
    uint32_t h = 2166136261u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}
static int *hash_slot(const struct zt_machine *m, const char *worker_id) {
    uint32_t i = hash_name(worker_id) & (uint32_t)(m->hash_size - 1);
    while (m->hash[i] && strcmp(m->workers[m->hash[i] - 1].row.worker_id, worker_id))
        i = (i + 1) & (uint32_t)(m->hash_size - 1);
    return &m->hash[i];
}
int mc_find_worker(const struct zt_machine *m, const char *worker_id) {
    return worker_id ? *hash_slot(m, worker_id) - 1 : -1;
}

/* The slot of the worker that has been gone longest and holds nothing; -1 when all are needed. */
static int forgettable_worker(const struct zt_machine *m) {
    int best = -1;
    for (int i = 0; i < m->n_workers; i++) {
        const struct mc_worker *w = &m->workers[i];
        if (w->run >= 0 || w->touched || !(w->row.flags & ZT_WF_LOST) ||
            (w->row.flags & ZT_WF_CORDONED))
            continue;
        if (best < 0 || w->last_beat < m->workers[best].last_beat) best = i;
    }
    return best;
}
int mc_add_worker(struct zt_machine *m, const char *worker_id) {
    int i = m->n_workers;
    if (i < m->c.max_workers)
        m->n_workers++;
    else if ((i = forgettable_worker(m)) < 0)
        return -1;
    bool replaced = m->workers[i].used;
    struct mc_worker *w = &m->workers[i];
    *w = (struct mc_worker){.used = true, .run = -1, .rank = -1, .told.action = -1, .step = -1};
    mc_copy(w->row.worker_id, sizeof w->row.worker_id, worker_id);
    w->row.rank = w->row.local_rank = -1;
    if (replaced) { /* open addressing cannot delete: build the table anew */
        memset(m->hash, 0, sizeof(int) * (size_t)m->hash_size);
        for (int k = 0; k < m->n_workers; k++)
            if (k != i) *hash_slot(m, m->workers[k].row.worker_id) = k + 1;
    }
    *hash_slot(m, worker_id) = i + 1;
    return i;
}
struct mc_run *mc_find_run(struct zt_machine *m, const char *run_id) {
    if (!run_id || !run_id[0]) return NULL;
    for (int i = 0; i < m->n_runs; i++)
        if (m->runs[i].used && strcmp(m->runs[i].row.run_id, run_id) == 0) return &m->runs[i];
    return NULL;
}
struct mc_run *mc_new_run(struct zt_machine *m) {
    int i = 0;
    while (i < m->n_runs && m->runs[i].used) i++;
    if (i == m->c.max_runs) return NULL;
    if (i == m->n_runs) m->n_runs++;
    m->runs[i] = (struct mc_run){.used = true};
    return &m->runs[i];
}
struct mc_worker *mc_rank_worker(struct zt_machine *m, const struct mc_rank *k) {
    return k->worker < 0 ? NULL : &m->workers[k->worker];
}

/* ------------------------------------------------------------------------------ effects */
struct zt_effect *mc_emit(struct zt_machine *m, enum zt_effect_kind kind) {
    ZT_ASSERT(m->fx->n < m->fx->cap); /* reserve() holds the bound */
    struct zt_effect *e = &m->fx->v[m->fx->n++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    return e;
}
uint64_t mc_txn(struct zt_machine *m) {
    if (!m->txn_open) m->txn++;
    m->txn_open = true;
    return m->txn;
}
struct zt_effect *mc_emit_row(struct zt_machine *m, enum zt_effect_kind kind) {
    struct zt_effect *e = mc_emit(m, kind);
    e->txn = mc_txn(m);
    return e;
}
void mc_touch(struct zt_machine *m, int w) {
    m->schedule = true;
    if (w < 0 || m->workers[w].touched) return;
    m->workers[w].touched = true;
    m->touched[m->n_touched++] = w;
}
void mc_dirty_run(struct zt_machine *m, struct mc_run *r) {
    r->dirty = m->any_dirty = true;
    mc_txn(m);
}
void mc_dirty_attempt(struct zt_machine *m, struct mc_run *r) {
    r->attempt_dirty = m->any_dirty = true;
    mc_txn(m);
}
void mc_dirty_rank(struct zt_machine *m, struct mc_run *r, struct mc_rank *k) {
    k->dirty = true;
    mc_dirty_run(m, r);
}
void mc_dirty_worker(struct zt_machine *m, struct mc_worker *w) {
    w->dirty = true;
    mc_txn(m);
    mc_touch(m, (int)(w - m->workers));
}
struct zt_fx_reply *mc_reply(struct zt_machine *m, const struct zt_event *ev, int code,
                             bool durable) {
    if (!ev->request) return NULL;
    struct zt_fx_reply *p = &mc_emit(m, ZT_FX_REPLY)->u.reply;
    p->request = ev->request;
    p->code = code;
    p->to = ev->kind;
    p->epoch = m->epoch;
    p->after_txn = durable && !MC_PLANTED(MC_PLANT_ACK_EARLY) ? AFTER_EVERYTHING : 0;
    return p;
}
void mc_refuse(struct zt_machine *m, const struct zt_event *ev, int code, const char *fmt, ...) {
    struct zt_fx_reply *p = mc_reply(m, ev, code, false);
    if (!p) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, ap);
    va_end(ap);
}
void mc_event(struct zt_machine *m, struct mc_note note, const char *fmt, ...) {
    struct zt_row_event *e = &mc_emit_row(m, ZT_FX_ROW_EVENT)->u.event;
    e->at_ms = m->wall;
    e->level = note.level;
    mc_copy(e->kind, sizeof e->kind, note.kind);
    if (note.run) {
        mc_copy(e->run_id, sizeof e->run_id, note.run->row.run_id);
        e->generation = note.run->row.generation;
    }
    if (note.run_id) mc_copy(e->run_id, sizeof e->run_id, note.run_id);
    if (note.worker) mc_copy(e->worker_id, sizeof e->worker_id, note.worker->row.worker_id);
    e->rank = note.rank;
    e->reason = note.reason;
    mc_copy(e->from, sizeof e->from, note.from);
    mc_copy(e->to, sizeof e->to, note.to);
    mc_copy(e->actor, sizeof e->actor, note.actor ? note.actor : "coordinator");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
}
void zt_effects_free(struct zt_effects *fx) {
    free(fx->v);
    *fx = (struct zt_effects){0};
}
/* Room for the most that one step can emit, so that no allocation fails half-way through a
 * transition. A worker or rank yields at most rank, failure and worker rows, three events, a push;
 * a run at most its rows, two passes of state events and a reply. */
static int reserve(const struct zt_machine *m, const struct zt_event *ev, struct zt_effects *fx) {
    size_t need = 128 + ZT_CKPT_REMOVE_MAX + (12 + 3 * MC_SAVES_MAX) * (size_t)(m->n_runs + 2) + 12 * (size_t)m->n_workers +
                  (size_t)m->n_waiters;
    if (ev->kind == ZT_EV_START) {
        const struct zt_recovery *r = ev->u.start.recovery;
        need += r ? (12 + 3 * MC_SAVES_MAX) * r->n_runs + 12 * (r->n_ranks + r->n_workers) : 0;
    }
    fx->n = 0;
    if (need <= fx->cap) return 0;
    struct zt_effect *v = malloc(need * sizeof *v);
    if (!v) return ZT_ENOMEM;
    free(fx->v);
    fx->v = v;
    fx->cap = need;
    return 0;
}

/* ------------------------------------------------------------------------------ the end of a step
 */
static void refresh_worker(struct zt_machine *m, struct mc_worker *w) {
    enum zt_worker_state s = mc_worker_state(m, w);
    const struct mc_run *r = w->run >= 0 ? &m->runs[w->run] : NULL;
    const char *run_id = r ? r->row.run_id : "";
    bool moved = s != w->row.state || strcmp(run_id, w->row.run_id) ||
                 (r && r->row.generation != w->row.generation);
    if (!moved && !w->dirty) return;
    if (s != w->row.state)
        mc_event(m,
                 (struct mc_note){.level = s == ZT_WORKER_GONE   ? 1
                                           : s >= ZT_WORKER_LOST ? 2
                                                                 : 0,
                                  .kind = "WORKER_STATE",
                                  .run = r,
                                  .worker = w,
                                  .rank = w->rank,
                                  .from = zt_worker_state_name(w->row.state),
                                  .to = zt_worker_state_name(s)},
                 "worker %s is %s", w->row.worker_id, zt_worker_state_name(s));
    w->row.state = s;
    mc_copy(w->row.run_id, sizeof w->row.run_id, run_id);
    w->row.generation = r ? r->row.generation : 0;
    w->row.rank = w->rank;
    w->row.local_rank = r ? r->ranks[w->rank].row.local_rank : -1;
    w->row.at_ms = m->wall;
    w->dirty = false;
    struct zt_row_worker *row = &mc_emit_row(m, ZT_FX_ROW_WORKER)->u.worker;
    *row = w->row;
    row->flags &= ~(uint32_t)ZT_WF_SUSPECT;
}
static void flush_run(struct zt_machine *m, struct mc_run *r) {
    if (r->dirty) {
        struct zt_effect *e = mc_emit_row(m, ZT_FX_ROW_RUN);
        e->u.run = r->row;
        r->row.request = 0;
        r->row_txn = e->txn;
        for (int i = 0; i < r->world; i++) {
            if (!r->ranks[i].dirty) continue;
            mc_emit_row(m, ZT_FX_ROW_RANK)->u.rank = r->ranks[i].row;
            r->ranks[i].dirty = false;
        }
    }
    if (r->attempt_dirty) mc_emit_row(m, ZT_FX_ROW_ATTEMPT)->u.attempt = r->attempt;
    r->dirty = r->attempt_dirty = false;
}
static void tell(struct mc_worker *w, const struct zt_desired *d) {
    w->told.action = (int)d->action;
    w->told.generation = d->generation;
    mc_copy(w->told.run_id, sizeof w->told.run_id, d->run_id);
}
static void push_desired(struct zt_machine *m, int i) {
    struct mc_worker *w = &m->workers[i];
    struct zt_desired d;
    mc_desired(m, i, &d);
    bool told = w->told.action == (int)d.action && w->told.generation == d.generation &&
                !strcmp(w->told.run_id, d.run_id);
    if (told || !w->connected || i == m->reply_worker) return;
    struct zt_effect *e = mc_emit(m, ZT_FX_DESIRED);
    e->u.desired.session = w->session;
    mc_copy(e->u.desired.worker_id, sizeof e->u.desired.worker_id, w->row.worker_id);
    e->u.desired.desired = d;
    tell(w, &d);
}
static void finish_step(struct zt_machine *m) {
    if (m->schedule && m->live) mc_schedule(m);
    m->schedule = false;
    for (int i = 0; i < m->n_touched; i++) refresh_worker(m, &m->workers[m->touched[i]]);
    if (m->any_dirty)
        for (int i = 0; i < m->n_runs; i++)
            if (m->runs[i].used) flush_run(m, &m->runs[i]);
    m->any_dirty = false;
    for (int i = 0; i < m->n_touched; i++) push_desired(m, m->touched[i]);
    for (int i = 0; i < m->n_touched; i++) m->workers[m->touched[i]].touched = false;
    m->n_touched = 0;
    for (size_t i = 0; i < m->fx->n; i++) {
        struct zt_effect *e = &m->fx->v[i];
        if (e->kind == ZT_FX_REPLY && e->u.reply.after_txn == AFTER_EVERYTHING)
            e->u.reply.after_txn = m->txn > m->durable ? m->txn : 0;
    }
    if (m->reply_fx >= 0 && m->reply_worker >= 0) {
        struct zt_fx_reply *p = &m->fx->v[m->reply_fx].u.reply;
        p->has_desired = true;
        mc_desired(m, m->reply_worker, &p->desired);
        if (p->after_txn == 0) tell(&m->workers[m->reply_worker], &p->desired);
    }
}

/* ------------------------------------------------------------------------------ dispatch */
static void on_committed(struct zt_machine *m, const struct zt_event *ev) {
    if (ev->u.store.txn <= m->durable || ev->u.store.txn > m->txn) return;
    m->durable = ev->u.store.txn;
    if (m->store_failed) {
        m->store_failed = false;
        m->schedule = true;
        mc_event(m, (struct mc_note){.level = 1, .kind = "STORE_OK", .rank = -1},
                 "the database can be written again");
    }
    for (int i = 0; i < m->n_runs; i++)
        if (m->runs[i].used) mc_committed_run(m, &m->runs[i]);
}
static void on_store_failed(struct zt_machine *m, const struct zt_event *ev) {
    m->store_failed = true;
    mc_copy(m->store_message, sizeof m->store_message, ev->u.store.message);
}
static void on_tick(struct zt_machine *m) {
    if (!m->live) return;
    for (int i = 0; i < m->n_workers; i++) mc_tick_worker(m, i);
    for (int i = 0; i < m->n_runs; i++)
        if (m->runs[i].used) mc_tick_run(m, &m->runs[i]);
    while (m->n_keys && mc_elapsed(m, m->keys[m->key_first].at, m->c.key_ttl_ms)) {
        m->key_first = (m->key_first + 1) % m->c.max_keys;
        m->n_keys--;
    }
}
/* Active time: what passes between two events beyond pause_ms was a pause of this process. */
static void advance(struct zt_machine *m, const struct zt_event *ev, int64_t now_ns) {
    int64_t gap = now_ns - m->last_ns;
    ZT_ASSERT(gap >= 0 || m->last_ns == 0);
    bool first = m->last_ns == 0;
    m->last_ns = now_ns;
    m->wall = ev->wall_ms;
    if (!first && gap > m->c.pause_ms * MC_MS) {
        m->paused += gap - ZT_MACHINE_TICK_MS * MC_MS;
        m->grace_until = now_ns - m->paused + m->c.lost_ms * MC_MS;
    }
    m->now = now_ns - m->paused;
}
int zt_machine_step(struct zt_machine *m, const struct zt_event *ev, int64_t now_ns,
                    struct zt_effects *fx) {
    int rc = reserve(m, ev, fx);
    if (rc) return rc;
    advance(m, ev, now_ns);
    m->fx = fx;
    m->txn_open = false;
    m->reply_fx = m->reply_worker = -1;
    if (ev->kind == ZT_EV_START) {
        rc = mc_on_start(m, ev);
        if (rc) return rc;
    } else if (!m->live && ev->kind != ZT_EV_TICK && ev->kind != ZT_EV_COMMITTED) {
        mc_refuse(m, ev, ZT_EBUSY, "the coordinator is still reading its database; try again");
    } else
        switch (ev->kind) {
        case ZT_EV_START:
            break;
        case ZT_EV_TICK:
            on_tick(m);
            break;
        case ZT_EV_COMMITTED:
            on_committed(m, ev);
            break;
        case ZT_EV_STORE_FAILED:
            on_store_failed(m, ev);
            break;
        case ZT_EV_DISCONNECTED:
            mc_on_disconnected(m, ev);
            break;
        case ZT_EV_REGISTER:
            mc_on_register(m, ev);
            break;
        case ZT_EV_BEAT:
            mc_on_beat(m, ev);
            break;
        case ZT_EV_RANK_READY:
        case ZT_EV_RANK_IN_COMM:
        case ZT_EV_COMM_PUT:
        case ZT_EV_COMM_GET:
        case ZT_EV_STEPS:
        case ZT_EV_FAILURE:
        case ZT_EV_RANK_DONE:
        case ZT_EV_CHILD_EXITED:
        case ZT_EV_SHARD_DONE:
        case ZT_EV_GET_SHARDS:
        case ZT_EV_CKPT_COMMIT:
        case ZT_EV_CKPT_REMOVED:
        case ZT_EV_CKPT_FAILED:
        case ZT_EV_RANK_LOADED:
            mc_on_rank(m, ev);
            break;
        case ZT_EV_SUBMIT:
            mc_on_submit(m, ev);
            break;
        case ZT_EV_CANCEL:
            mc_on_cancel(m, ev);
            break;
        case ZT_EV_WORKER_SET:
            mc_on_worker_set(m, ev);
            break;
        case ZT_EV_CKPT_SET:
            mc_on_ckpt_set(m, ev);
            break;
        }
    finish_step(m);
    return 0;
}

/* ------------------------------------------------------------------------------ life */
void zt_machine_config_default(struct zt_machine_config *c) {
    *c = (struct zt_machine_config){.max_workers = 1024,
                                    .max_runs = 1024,
                                    .max_keys = 16384,
                                    .beat_ms = 1000,
                                    .suspect_ms = 3000,
                                    .lost_ms = 5000,
                                    .orphan_ms = 60000,
                                    .reattach_ms = 60000,
                                    .cause_ms = 2000,
                                    .reap_ms = 30000,
                                    .rows_ms = 120000,
                                    .exit_ms = 10000,
                                    .key_ttl_ms = 24LL * 3600 * 1000,
                                    .settle_ms = 1000,
                                    .pause_ms = 1000,
                                    .progress_floor_ms = 10000};
}
struct zt_machine *zt_machine_new(const struct zt_machine_config *c) {
    struct zt_machine *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    if (c)
        m->c = *c;
    else
        zt_machine_config_default(&m->c);
    size_t nw = (size_t)m->c.max_workers, nr = (size_t)m->c.max_runs;
    for (m->hash_size = 16; m->hash_size < 2 * m->c.max_workers;) m->hash_size *= 2;
    m->max_comms = 4 * m->c.max_workers + 64;
    m->max_waiters = 4 * m->c.max_workers + 64;
    m->workers = calloc(nw, sizeof *m->workers);
    m->hash = calloc((size_t)m->hash_size, sizeof *m->hash);
    m->touched = calloc(nw, sizeof *m->touched);
    m->runs = calloc(nr, sizeof *m->runs);
    m->keys = calloc((size_t)m->c.max_keys, sizeof *m->keys);
    m->comms = calloc((size_t)m->max_comms, sizeof *m->comms);
    m->waiters = calloc((size_t)m->max_waiters, sizeof *m->waiters);
    m->slots = calloc(nw, sizeof *m->slots);
    m->scratch = calloc(4 * nw, sizeof *m->scratch);
    m->order_buf = calloc(nw, sizeof *m->order_buf);
    m->queue = calloc(nr, sizeof *m->queue);
    if (m->workers && m->hash && m->touched && m->runs && m->keys && m->comms && m->waiters &&
        m->slots && m->scratch && m->order_buf && m->queue)
        return m;
    zt_machine_free(m);
    return NULL;
}
void zt_machine_free(struct zt_machine *m) {
    if (!m) return;
    for (int i = 0; i < m->n_runs; i++) {
        free(m->runs[i].ranks);
        mc_ckpt_free(&m->runs[i]);
    }
    free(m->workers);
    free(m->hash);
    free(m->touched);
    free(m->runs);
    free(m->keys);
    free(m->comms);
    free(m->waiters);
    free(m->slots);
    free(m->scratch);
    free(m->order_buf);
    free(m->queue);
    free(m);
}

/* ------------------------------------------------------------------------------ looking in */
int zt_machine_workers(const struct zt_machine *m) { return m->n_workers; }
static void view_worker(const struct zt_machine *m, const struct mc_worker *w, int64_t now_ns,
                        struct zt_worker_view *v) {
    const struct mc_run *r = w->run >= 0 ? &m->runs[w->run] : NULL;
    *v = (struct zt_worker_view){.worker_id = w->row.worker_id,
                                 .host = w->row.host,
                                 .run_id = r ? r->row.run_id : "",
                                 .state = mc_worker_state(m, w),
                                 .flags = w->row.flags,
                                 .generation = r ? r->row.generation : 0,
                                 .rank = w->rank,
                                 .local_rank = r ? r->ranks[w->rank].row.local_rank : -1,
                                 .phase = w->phase,
                                 .step = w->step,
                                 .connected = w->connected,
                                 .beat_age_seconds =
                                     (double)(now_ns - m->paused - w->last_beat) / 1e9};
}
void zt_machine_worker_at(const struct zt_machine *m, int i, int64_t now_ns,
                          struct zt_worker_view *v) {
    view_worker(m, &m->workers[i], now_ns, v);
}
int zt_machine_runs(const struct zt_machine *m) {
    int n = 0;
    for (int i = 0; i < m->n_runs; i++) n += m->runs[i].used;
    return n;
}
static const struct mc_run *run_at(const struct zt_machine *m, int i) {
    for (int k = 0; k < m->n_runs; k++)
        if (m->runs[k].used && i-- == 0) return &m->runs[k];
    return NULL;
}
void zt_machine_run_at(const struct zt_machine *m, int i, struct zt_run_view *v) {
    const struct mc_run *r = run_at(m, i);
    *v = (struct zt_run_view){.run_id = ""};
    if (!r) return;
    *v = (struct zt_run_view){.run_id = r->row.run_id,
                              .name = r->row.name,
                              .detail = r->row.detail,
                              .state = r->row.state,
                              .reason = r->row.reason,
                              .generation = r->row.generation,
                              .attempt = r->row.attempt,
                              .workers = r->row.workers,
                              .mesh = r->row.mesh,
                              .step = r->gen_step};
}
bool zt_machine_rank_at(const struct zt_machine *m, int run, int rank, int64_t now_ns,
                        struct zt_worker_view *v) {
    const struct mc_run *r = run_at(m, run);
    if (!r || rank < 0 || rank >= r->world) return false;
    const struct mc_rank *k = &r->ranks[rank];
    if (k->worker >= 0)
        view_worker(m, &m->workers[k->worker], now_ns, v);
    else
        *v = (struct zt_worker_view){
            .worker_id = k->row.worker_id, .host = k->row.host, .state = ZT_WORKER_LOST};
    v->run_id = r->row.run_id;
    v->generation = r->row.generation;
    v->rank = rank;
    v->local_rank = k->row.local_rank;
    v->step = k->step;
    return true;
}
bool zt_machine_has_key(const struct zt_machine *m, const uint8_t *key) { return mc_find_key(m, key) != NULL; }
uint64_t zt_machine_txn(const struct zt_machine *m) { return m->txn; }
uint64_t zt_machine_durable(const struct zt_machine *m) { return m->durable; }

static const char *check_run(const struct zt_machine *m, int i) {
    const struct mc_run *r = &m->runs[i];
    bool live = !zt_run_state_terminal(r->row.state);
    if (r->row.attempt > r->row.generation) return "1: more formations than generations";
    if (mc_run_active(r) && (r->world != r->row.workers || r->world < 1))
        return "1: a live generation without its ranks";
    if ((r->row.state == ZT_RUN_QUEUED || r->row.state == ZT_RUN_RESTARTING) && r->world)
        return "1: ranks outside a generation";
    for (int k = 0; k < r->world; k++) {
        int w = r->ranks[k].worker;
        if (r->ranks[k].row.generation != r->row.generation)
            return "1: a rank of another generation";
        if (w >= 0 && (m->workers[w].run != i || m->workers[w].rank != k))
            return "3: rank and lease disagree";
        if (r->row.state == ZT_RUN_SUCCEEDED &&
            (!r->ranks[k].row.done || r->ranks[k].row.done_steps != r->ranks[0].row.done_steps ||
             strcmp(r->ranks[k].row.parameter_hash, r->ranks[0].row.parameter_hash)))
            return "7: SUCCEEDED with ranks that disagree";
    }
    for (int k = 0; k < i && live; k++)
        if (m->runs[k].used && !zt_run_state_terminal(m->runs[k].row.state) &&
            !strcmp(m->runs[k].row.name, r->row.name))
            return "9: two live runs share a name";
    return NULL;
}
const char *zt_machine_check(const struct zt_machine *m) {
    for (int i = 0; i < m->n_runs; i++) {
        const char *broken = m->runs[i].used ? check_run(m, i) : NULL;
        if (!broken && m->runs[i].used) broken = mc_ckpt_check(m, &m->runs[i]);
        if (broken) return broken;
    }
    for (int i = 0; i < m->n_workers; i++) {
        const struct mc_worker *w = &m->workers[i];
        if (w->run >= 0 && (!m->runs[w->run].used || w->rank >= m->runs[w->run].world ||
                            m->runs[w->run].ranks[w->rank].worker != i))
            return "3: a lease on a rank that does not know it";
        if (mc_find_worker(m, w->row.worker_id) != i) return "3: a worker is not found by its name";
    }
    for (int i = 0; i < m->n_comms; i++) {
        const struct mc_comm *a = &m->comms[i];
        enum zt_run_state s = m->runs[a->run].row.state;
        if (!m->runs[a->run].used || (s != ZT_RUN_STARTING && s != ZT_RUN_FORMING))
            return "11: a communicator id outlived its use";
        for (int k = 0; k < i; k++)
            if (m->comms[k].run == a->run && m->comms[k].index == a->index &&
                !strcmp(m->comms[k].group, a->group))
                return "11: two ids under one key";
    }
    if (m->durable > m->txn) return "5: durable beyond what was written";
    return NULL;
}
