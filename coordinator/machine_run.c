/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_run.c: the life of a run: submit, formation, end, time limits, cancel; machine_end.c:
 * how a generation ends. The state diagram and the numbered invariants are at the top of machine.c. Ownership and
 * thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mc_run_active(const struct mc_run *r) {
    switch (r->row.state) {
    case ZT_RUN_ALLOCATING:
    case ZT_RUN_STARTING:
    case ZT_RUN_FORMING:
    case ZT_RUN_RUNNING:
    case ZT_RUN_COMPLETING:
    case ZT_RUN_RECOVERING:
        return true;
    default:
        return false;
    }
}
static void touch_run(struct zt_machine *m, const struct mc_run *r) {
    m->schedule = true;
    for (int i = 0; i < r->world; i++)
        if (r->ranks[i].worker >= 0) mc_touch(m, r->ranks[i].worker);
}
void mc_set_state(struct zt_machine *m, struct mc_run *r, enum zt_run_state s) {
    bool bad = s == ZT_RUN_FAILED;
    mc_event(m,
             (struct mc_note){.level = bad ? 3 : 1,
                              .kind = "RUN_STATE",
                              .run = r,
                              .rank = -1,
                              .reason = zt_run_state_explained(s) ? r->row.reason : ZT_REASON_NONE,
                              .from = zt_run_state_name(r->row.state),
                              .to = zt_run_state_name(s)},
             "run %s is %s%s%s", r->row.name, zt_run_state_name(s), r->row.detail[0] ? ": " : "",
             r->row.detail);
    r->row.state = s;
    r->state_at = m->now;
    mc_dirty_run(m, r);
    touch_run(m, r);
}

/* ------------------------------------------------------------------------------ submit */
struct mc_key *mc_find_key(const struct zt_machine *m, const uint8_t *key) {
    for (int i = 0; i < m->n_keys && !MC_PLANTED(MC_PLANT_FORGET_KEYS); i++) {
        struct mc_key *k = &m->keys[(m->key_first + i) % m->c.max_keys];
        if (memcmp(k->key, key, sizeof k->key) == 0) return k;
    }
    return NULL;
}
void mc_store_key(struct zt_machine *m, const uint8_t *key, const char *verb, const char *run_id,
                  const char *name) {
    if (m->n_keys ==
        m->c.max_keys) { /* only Submit minds a full table: forget the oldest */
        m->key_first = (m->key_first + 1) % m->c.max_keys;
        m->n_keys--;
    }
    struct mc_key *k = &m->keys[(m->key_first + m->n_keys++) % m->c.max_keys];
    memcpy(k->key, key, sizeof k->key);
    mc_copy(k->verb, sizeof k->verb, verb);
    mc_copy(k->run_id, sizeof k->run_id, run_id);
    mc_copy(k->name, sizeof k->name, name);
    k->at = m->now;
    struct zt_row_key *row = &mc_emit_row(m, ZT_FX_ROW_KEY)->u.key;
    memcpy(row->key, key, sizeof row->key);
    mc_copy(row->verb, sizeof row->verb, verb);
    mc_copy(row->run_id, sizeof row->run_id, k->run_id);
    mc_copy(row->name, sizeof row->name, k->name);
    row->at_ms = m->wall;
}
static void reply_submit(struct zt_machine *m, const struct zt_event *ev, const char *run_id,
                         const char *name) {
    struct zt_fx_reply *p = mc_reply(m, ev, 0, true);
    if (!p) return;
    struct mc_run *r = mc_find_run(m, run_id);
    mc_copy(p->run_id, sizeof p->run_id, run_id);
    mc_copy(p->name, sizeof p->name, name);
    p->state =
        ZT_RUN_QUEUED; /* the stored answer: what a submit does, whatever became of it since */
    if (!r) return;
    p->position = r->row.state == ZT_RUN_QUEUED ? mc_position(m, r) : 0;
    mc_copy(p->message, sizeof p->message, r->row.detail);
}
static const char *bad_config(const struct zt_run_config *c) {
    if (c->workers < 0 || c->workers > ZT_MACHINE_WORLD_MAX) return "workers is out of range";
    if (c->replicate == 0 || c->shard == 0 || c->tensor == 0) return "a degree of 0";
    int64_t fixed = 1;
    const int degrees[3] = {c->replicate, c->shard, c->tensor};
    for (int i = 0; i < 3; i++) {
        if (degrees[i] > ZT_MACHINE_WORLD_MAX) return "a degree is out of range";
        if (degrees[i] > 0) fixed *= degrees[i];
    }
    struct zt_mesh mesh;
    if (fixed > ZT_MACHINE_WORLD_MAX) return "the product of the degrees is out of range";
    if (c->workers > 0 && !mc_mesh_for(c, c->workers, &mesh))
        return "the degrees do not divide, or do not fill, the workers";
    if (c->max_restarts < 0) return "max_restarts is negative";
    return NULL;
}
/* Until the oldest request key is forgotten, rounded up. */
static int64_t minutes_left(const struct zt_machine *m) {
    int64_t left = m->c.key_ttl_ms - (m->now - m->keys[m->key_first].at) / 1000000;
    return left > 0 ? (left + 59999) / 60000 : 1;
}
void mc_on_submit(struct zt_machine *m, const struct zt_event *ev) {
    const struct mc_key *k = mc_find_key(m, ev->u.submit.key);
    if (k && strcmp(k->verb, "submit") == 0) {
        reply_submit(m, ev, k->run_id, k->name);
        return;
    }
    if (k) {
        mc_refuse(m, ev, ZT_ECONFLICT,
                  "this request key was used for a %s of run %s; take a fresh one", k->verb,
                  k->run_id);
        return;
    }
    if (m->store_failed) {
        mc_refuse(m, ev, ZT_EBUSY,
                  "the coordinator cannot write its database (%s); free space or repair it, then "
                  "submit again",
                  m->store_message);
        return;
    }
    const char *bad = bad_config(ev->u.submit.config);
    if (bad) {
        mc_refuse(m, ev, ZT_EINVAL, "run %s: %s; correct the file and submit again",
                  ev->u.submit.name, bad);
        return;
    }
    for (int i = 0; i < m->n_runs; i++) {
        const struct mc_run *o = &m->runs[i];
        if (!o->used || zt_run_state_terminal(o->row.state) ||
            strcmp(o->row.name, ev->u.submit.name))
            continue;
        mc_refuse(m, ev, ZT_ECONFLICT,
                  "the name %s belongs to run %s, which is %s; choose another name, or cancel that "
                  "run first",
                  o->row.name, o->row.run_id, zt_run_state_name(o->row.state));
        return;
    }
    const struct zt_run_source *source = &ev->u.submit.config->source;
    char why[ZT_MESSAGE_MAX + 1];
    if (source->run_id[0] && mc_source_changed(m, source, ev->u.submit.read_txn, why, sizeof why)) {
        mc_refuse(m, ev, ZT_EBUSY, "%s", why);
        return;
    }
    if (mc_find_run(m, ev->u.submit.run_id)) {
        mc_refuse(m, ev, ZT_ECONFLICT, "run id %s exists; submit again", ev->u.submit.run_id);
        return;
    }
    if (m->n_keys == m->c.max_keys) { /* a repeat of a forgotten key would make the run twice */
        mc_refuse(m, ev, ZT_EBUSY,
                  "%d requests were taken in the last %lld hours, and no more are remembered; the "
                  "oldest is forgotten in %lld minutes: submit again then",
                  m->n_keys, (long long)(m->c.key_ttl_ms / 3600000), (long long)minutes_left(m));
        return;
    }
    struct mc_run *r = mc_new_run(m);
    if (!r) {
        mc_refuse(m, ev, ZT_EBUSY,
                  "the queue is full: %d runs have not ended; wait for some to end, or cancel some",
                  m->c.max_runs);
        return;
    }
    mc_copy(r->row.run_id, sizeof r->row.run_id, ev->u.submit.run_id);
    mc_copy(r->row.name, sizeof r->row.name, ev->u.submit.name);
    r->row.request = ev->request;
    r->row.order = ++m->order;
    r->row.cause_rank = -1;
    r->row.config = *ev->u.submit.config;
    r->row.submitted_ms = m->wall;
    r->submitted_at = m->now;
    mc_event(m,
             (struct mc_note){.level = 1, .kind = "SUBMIT", .run = r, .rank = -1, .actor = "user"},
             "run %s submitted", r->row.name);
    mc_set_state(m, r, ZT_RUN_QUEUED);
    mc_store_key(m, ev->u.submit.key, "submit", r->row.run_id, r->row.name);
    mc_schedule(m); /* so that the answer can say when it starts */
    reply_submit(m, ev, r->row.run_id, r->row.name);
}

/* ------------------------------------------------------------------------------ communicator ids
 */
void mc_drop_comms(struct zt_machine *m, const struct mc_run *r, const char *why) {
    int run = (int)(r - m->runs), n = 0;
    for (int i = 0; i < m->n_comms; i++) {
        if (m->comms[i].run != run) m->comms[n++] = m->comms[i];
    }
    memset(&m->comms[n], 0,
           sizeof *m->comms * (size_t)(m->n_comms - n)); /* secrets do not linger */
    m->n_comms = n;
    n = 0;
    for (int i = 0; i < m->n_waiters; i++) {
        if (m->waiters[i].run != run) {
            m->waiters[n++] = m->waiters[i];
            continue;
        }
        struct zt_event ev = {.kind = ZT_EV_COMM_GET, .request = m->waiters[i].request};
        mc_refuse(m, &ev, ZT_CODE_STALE, "run %s generation %u: %s", r->row.run_id,
                  r->row.generation, why);
    }
    m->n_waiters = n;
}

/* ------------------------------------------------------------------------------ progress through
 * the states */
static bool all_ranks(const struct mc_run *r, bool (*is)(const struct mc_rank *)) {
    for (int i = 0; i < r->world; i++)
        if (!is(&r->ranks[i])) return false;
    return r->world > 0;
}
static bool is_ready(const struct mc_rank *k) { return k->ready || k->in_comm; }
static bool is_in_comm(const struct mc_rank *k) { return k->in_comm; }
static bool is_back(const struct mc_rank *k) { return k->back || k->row.done; }
static bool is_done(const struct mc_rank *k) { return k->row.done; }
/* The rank whose hash fewest others share; -1 when all agree. Ranks without a hash have no say. */
static int diverged_rank(const struct mc_run *r) {
    int worst = -1, worst_same = r->world + 1;
    bool differ = false;
    for (int i = 0; i < r->world; i++) {
        const char *h = r->ranks[i].row.parameter_hash;
        int same = 0;
        for (int k = 0; k < r->world && h[0]; k++) {
            const char *o = r->ranks[k].row.parameter_hash;
            same += strcmp(h, o) == 0;
            differ |= o[0] && strcmp(h, o);
        }
        if (h[0] && same <= worst_same) {
            worst = i;
            worst_same = same;
        }
    }
    return differ ? worst : -1;
}
static void complete(struct zt_machine *m, struct mc_run *r) {
    int bad = diverged_rank(r);
    if (bad >= 0) {
        mc_fail(m, r, bad, NULL, ZT_REASON_REPLICA_DIVERGED, -1,
                "rank %d ends with parameter hash %s, others with %s: a replica went its own way",
                bad, r->ranks[bad].row.parameter_hash,
                r->ranks[bad ? 0 : r->world - 1].row.parameter_hash);
        return;
    }
    for (int i = 0; i < r->world; i++) {
        const struct mc_rank *k = &r->ranks[i];
        if (k->row.done_steps == r->ranks[0].row.done_steps) continue;
        mc_fail(m, r, i, NULL, ZT_REASON_REPLICA_DIVERGED, -1,
                "rank %d ends at step %lld, rank 0 at step %lld", i, (long long)k->row.done_steps,
                (long long)r->ranks[0].row.done_steps);
        return;
    }
    for (int i = 0; i < r->world && !MC_PLANTED(MC_PLANT_DONE_EARLY); i++)
        if (r->ranks[i].have < r->ranks[i].row.done_steps || r->ranks[i].have_txn > m->durable)
            return;
    r->gen_step = r->ranks[0].row.done_steps;
    r->attempt.steps_redone = mc_redone(r); /* of what was done before this generation */
    if (r->gen_step > r->row.best_step) r->row.best_step = r->gen_step;
    r->row.reason = ZT_REASON_NONE;
    r->row.cause_rank = -1;
    r->row.detail[0] = 0;
    mc_copy(r->row.parameter_hash, sizeof r->row.parameter_hash, r->ranks[0].row.parameter_hash);
    r->pending.on = false;
    mc_ckpt_ended(m, r);
    r->attempt.ended_ms = m->wall;
    r->attempt.last_step = r->gen_step;
    mc_dirty_attempt(m, r);
    mc_finish_run(m, r, ZT_RUN_SUCCEEDED);
}
static void enter_running(struct zt_machine *m, struct mc_run *r) {
    if (r->row.state == ZT_RUN_FORMING) {
        r->attempt.form_seconds = mc_seconds(m->now - r->state_at);
        mc_dirty_attempt(m, r);
    }
    if (!r->started) {
        r->started = true;
        r->started_at = m->now;
        r->row.started_ms = m->wall;
    }
    r->evidence_at = m->now;
    r->row.init_timeouts = 0;
    for (int i = 0; i < r->world; i++) r->ranks[i].progress_at = m->now;
    mc_set_state(m, r, ZT_RUN_RUNNING);
    mc_drop_comms(m, r, "every rank has its communicator");
}
void mc_check_progressed(struct zt_machine *m, struct mc_run *r) {
    if (r->row.state == ZT_RUN_STARTING && all_ranks(r, is_ready)) {
        r->attempt.start_seconds = mc_seconds(m->now - r->state_at);
        mc_dirty_attempt(m, r);
        mc_set_state(m, r, ZT_RUN_FORMING);
    }
    if (r->row.state == ZT_RUN_FORMING && all_ranks(r, is_in_comm)) enter_running(m, r);
    if (r->row.state == ZT_RUN_RECOVERING && all_ranks(r, is_back)) {
        mc_copy(r->row.detail, sizeof r->row.detail, "");
        enter_running(m, r);
    }
    mc_check_drain(m, r);
    if (r->row.state == ZT_RUN_RUNNING && all_ranks(r, is_done))
        mc_set_state(m, r, ZT_RUN_COMPLETING);
    if (r->row.state == ZT_RUN_COMPLETING) complete(m, r);
    if (r->row.state == ZT_RUN_STOPPING) mc_stop_complete(m, r);
    mc_free_if_over(m, r);
}
void mc_committed_run(struct zt_machine *m, struct mc_run *r) {
    if (r->row.state == ZT_RUN_ALLOCATING && r->row_txn <= m->durable && !r->dirty) {
        int64_t limit = m->now;
        for (int i = 0; i < r->world; i++) r->ranks[i].progress_at = limit;
        mc_set_state(m, r, ZT_RUN_STARTING);
    }
    mc_check_progressed(m, r);
}

/* ------------------------------------------------------------------------------ time limits */
static void end_unplaced(struct zt_machine *m, struct mc_run *r, enum zt_reason reason,
                         const char *detail) {
    r->row.reason = reason;
    mc_copy(r->row.detail, sizeof r->row.detail, detail);
    mc_finish_run(m, r, reason == ZT_REASON_USER_CANCEL ? ZT_RUN_CANCELLED : ZT_RUN_FAILED);
}
static void over_limit(struct zt_machine *m, struct mc_run *r, enum zt_reason reason, double limit,
                       bool (*is)(const struct mc_rank *), const char *what) {
    for (int i = 0; i < r->world; i++) {
        if (is(&r->ranks[i])) continue;
        mc_fail(m, r, i, NULL, reason, -1, "rank %d on %s did not %s within %.0f s", i,
                r->ranks[i].row.worker_id, what, limit);
        return;
    }
}
static void check_hang(struct zt_machine *m, struct mc_run *r) {
    const struct zt_run_config *c = &r->row.config;
    int64_t limit = m->c.progress_floor_ms;
    if (c->progress > 0)
        limit = mc_to_ms(c->progress);
    else if (10 * r->ewma_ns > (double)(limit * MC_MS))
        limit = (int64_t)(10 * r->ewma_ns / MC_MS);
    int64_t slow = mc_to_ms(c->first_step > 0 ? c->first_step : 600);
    if (slow < limit) slow = limit;
    int64_t oldest = m->now;
    for (int i = 0; i < r->world; i++) {
        const struct mc_rank *k = &r->ranks[i];
        if (k->row.done || k->row.released || k->drained) continue;
        if (k->step <= mc_base(r) || k->activity == ZT_ACT_LONG)
            limit = slow; /* the others wait for it with reason */
        const struct mc_worker *w = mc_rank_worker(m, k);
        if (w && !mc_worker_silent(m, w) && k->progress_at < oldest) oldest = k->progress_at;
    }
    if (!mc_elapsed(m, oldest, limit) || m->now < m->grace_until) return;
    int who = mc_laggard(m, r);
    mc_fail(m, r, who, NULL, ZT_REASON_HANG, -1,
            "rank %d on %s made no progress for %.1f s in step %lld (limit %.1f s); its beats are "
            "fine, its trainer stands still",
            who, r->ranks[who].row.worker_id, mc_seconds(m->now - r->ranks[who].progress_at),
            (long long)r->ranks[who].step + 1, (double)limit / 1e3);
}
static void quarantine_rank(struct zt_machine *m, struct mc_run *r, int i) {
    struct mc_worker *w = mc_rank_worker(m, &r->ranks[i]);
    bool empty =
        !w || (w->registered && !w->child.any && !mc_elapsed(m, w->last_beat, m->c.lost_ms));
    if (!empty) {
        w->row.flags |= ZT_WF_QUARANTINED;
        mc_event(
            m,
            (struct mc_note){.level = 3, .kind = "QUARANTINED", .run = r, .worker = w, .rank = i},
            "worker %s did not get rid of its trainer; it is set aside until it reports the exit, "
            "or restart zworker there",
            w->row.worker_id);
        mc_dirty_worker(m, w);
    }
    mc_release_rank(m, r, i);
}
static void tick_stopping(struct zt_machine *m, struct mc_run *r) {
    if (!mc_elapsed(m, r->stop_at, mc_to_ms(r->row.config.term_grace) + m->c.reap_ms)) return;
    for (int i = 0; i < r->world; i++)
        if (!r->ranks[i].row.released) quarantine_rank(m, r, i);
    mc_stop_complete(m, r);
}
static void tick_recovering(struct zt_machine *m, struct mc_run *r) {
    if (!mc_elapsed(m, m->started_at, m->c.reattach_ms) || m->now < m->grace_until) return;
    for (int i = 0; i < r->world; i++) {
        const struct mc_rank *k = &r->ranks[i];
        if (is_back(k)) continue;
        const struct mc_worker *w = mc_rank_worker(m, k);
        bool there = w && w->registered;
        mc_fail(m, r, i, NULL, there ? ZT_REASON_COORDINATOR_RESTART : ZT_REASON_WORKER_LOST, -1,
                there ? "worker %s came back without the trainer of rank %d"
                      : "worker %s (rank %d) did not come back after the coordinator's restart",
                k->row.worker_id, i);
        return;
    }
}
static void tick_active(struct zt_machine *m, struct mc_run *r) {
    const struct zt_run_config *c = &r->row.config;
    if (r->row.state == ZT_RUN_STARTING && mc_elapsed(m, r->state_at, mc_to_ms(c->start)))
        over_limit(m, r, ZT_REASON_START_TIMEOUT, c->start, is_ready, "get ready");
    else if (r->row.state == ZT_RUN_FORMING && mc_elapsed(m, r->state_at, mc_to_ms(c->comm_init)))
        over_limit(m, r, ZT_REASON_COMM_INIT_TIMEOUT, c->comm_init, is_in_comm,
                   "join the communicator");
    else if (r->row.state == ZT_RUN_RECOVERING)
        tick_recovering(m, r);
    else if (r->row.state == ZT_RUN_RUNNING) {
        mc_check_drain(m, r);
        if (r->row.state == ZT_RUN_RUNNING) check_hang(m, r);
    }
    else if (r->row.state == ZT_RUN_COMPLETING && mc_elapsed(m, r->state_at, m->c.rows_ms))
        for (int i = 0; i < r->world; i++) {
            const struct mc_rank *k = &r->ranks[i];
            if (k->have >= k->row.done_steps || m->durable < m->txn) continue;
            mc_fail(m, r, i, NULL, ZT_REASON_COMM_ERROR, -1,
                    "rank %d on %s is done, but its step reports after step %lld did not arrive", i,
                    k->row.worker_id, (long long)k->have);
            return;
        }
}
void mc_tick_run(struct zt_machine *m, struct mc_run *r) {
    const struct zt_run_config *c = &r->row.config;
    bool waits = r->row.state == ZT_RUN_QUEUED || r->row.state == ZT_RUN_RESTARTING;
    if (waits && r->started && c->time_limit > 0 &&
        mc_elapsed(m, r->started_at, mc_to_ms(c->time_limit))) {
        end_unplaced(m, r, ZT_REASON_TIME_LIMIT,
                     "timeouts.time_limit reached while it waited for workers");
    } else if (r->row.state == ZT_RUN_QUEUED && c->queue > 0 &&
               mc_elapsed(m, r->submitted_at, mc_to_ms(c->queue))) {
        char why[ZT_MESSAGE_MAX + 1];
        snprintf(why, sizeof why, "not placed within timeouts.queue %.0f s: %.500s", c->queue,
                 r->row.detail);
        end_unplaced(m, r, ZT_REASON_QUEUE_TIMEOUT, why);
    } else if (waits) {
        m->schedule |= r->row.state == ZT_RUN_QUEUED || m->now >= r->retry_at;
    } else if (mc_run_active(r)) {
        if (r->pending.on && (mc_peer_gone(m, r) || mc_elapsed(m, r->pending.at, m->c.cause_ms)))
            mc_decide_pending(m, r);
        if (mc_run_active(r)) tick_active(m, r);
        if (mc_run_active(r) && r->started && c->time_limit > 0 &&
            mc_elapsed(m, r->started_at, mc_to_ms(c->time_limit)))
            mc_begin_stop(m, r, ZT_REASON_TIME_LIMIT, -1, "timeouts.time_limit reached");
    } else if (r->row.state == ZT_RUN_STOPPING) {
        tick_stopping(m, r);
    } else if (r->row.state == ZT_RUN_SUCCEEDED && mc_elapsed(m, r->state_at, m->c.exit_ms)) {
        touch_run(m, r); /* a trainer that does not exit by itself now gets ABORT */
        if (mc_elapsed(m, r->state_at, m->c.exit_ms + m->c.reap_ms))
            for (int i = 0; i < r->world; i++)
                if (!r->ranks[i].row.released) quarantine_rank(m, r, i);
    }
    if (r->used) mc_free_if_over(m, r);
}

/* ------------------------------------------------------------------------------ cancel */
static void reply_cancel(struct zt_machine *m, const struct zt_event *ev, enum zt_run_state s) {
    struct zt_fx_reply *p = mc_reply(m, ev, 0, true);
    if (!p) return;
    mc_copy(p->run_id, sizeof p->run_id, ev->u.cancel.run_id);
    p->state = s;
}
void mc_on_cancel(struct zt_machine *m, const struct zt_event *ev) {
    struct mc_run *r = mc_find_run(m, ev->u.cancel.run_id);
    const struct mc_key *k = mc_find_key(m, ev->u.cancel.key);
    if (k && (strcmp(k->verb, "cancel") || strcmp(k->run_id, ev->u.cancel.run_id))) {
        mc_refuse(m, ev, ZT_ECONFLICT,
                  "this request key was used for a %s of run %s; take a fresh one", k->verb,
                  k->run_id);
        return;
    }
    if (!r) {
        enum zt_run_state s = ev->u.cancel.stored;
        for (int i = 0; i < MC_ENDED && i < m->n_ended; i++)
            if (!strcmp(m->ended[i].run_id, ev->u.cancel.run_id)) s = m->ended[i].state;
        if (zt_run_state_terminal(s))
            reply_cancel(m, ev, s);
        else
            mc_refuse(m, ev, ZT_ENOTFOUND, "no run %s; zctl list shows the runs there are",
                      ev->u.cancel.run_id);
        return;
    }
    if (k || zt_run_state_terminal(r->row.state)) {
        reply_cancel(m, ev, r->row.state);
        return;
    }
    mc_store_key(m, ev->u.cancel.key, "cancel", r->row.run_id, r->row.name);
    r->row.cancel_requested = true;
    mc_dirty_run(m, r);
    mc_event(m,
             (struct mc_note){.level = 1,
                              .kind = "CANCEL",
                              .run = r,
                              .rank = -1,
                              .reason = ZT_REASON_USER_CANCEL,
                              .actor = "user"},
             "run %s: cancel asked for", r->row.name);
    if (mc_run_active(r))
        mc_begin_stop(m, r, ZT_REASON_USER_CANCEL, -1, "cancelled by the user");
    else if (r->row.state != ZT_RUN_STOPPING)
        end_unplaced(m, r, ZT_REASON_USER_CANCEL, "cancelled by the user");
    reply_cancel(m, ev, r->row.state);
}
