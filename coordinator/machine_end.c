/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_end.c: how a generation ends: failures and their cause, drains, teardown, and what comes
 * after it: another generation or the end of the run. The state diagram and the numbered invariants are at
 * the top of machine.c. Ownership and thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ the end of a
 * generation */
int64_t mc_backoff(const struct mc_run *r) {
    double s = r->row.config.backoff_initial > 0 ? r->row.config.backoff_initial : 1.0;
    double most = r->row.config.backoff_max > 0 ? r->row.config.backoff_max : 60.0;
    for (uint32_t i = 1; i < r->row.failures_in_row && s < most; i++) s *= 2;
    return (int64_t)((s < most ? s : most) * 1e9);
}
void mc_free_if_over(struct zt_machine *m, struct mc_run *r) {
    if (!zt_run_state_terminal(r->row.state) || r->dirty || r->row_txn > m->durable) return;
    for (int i = 0; i < r->world; i++)
        if (!r->ranks[i].row.released) return;
    for (int i = 0; i < r->world; i++)
        if (r->ranks[i].worker >= 0) mc_unbind(m, r->ranks[i].worker);
    struct mc_ended *e = &m->ended[m->n_ended++ % MC_ENDED];
    mc_copy(e->run_id, sizeof e->run_id, r->row.run_id);
    e->state = r->row.state;
    if (r->ckpt_txn) mc_note_changed(m, r->row.run_id, r->ckpt_txn);
    free(r->ranks);
    mc_ckpt_free(r);
    *r = (struct mc_run){0};
}
void mc_finish_run(struct zt_machine *m, struct mc_run *r, enum zt_run_state s) {
    r->row.ended_ms = m->wall;
    mc_set_state(m, r, s);
}
/* Steps of this generation that every rank has reported. A step that one rank finished alone is no
 * progress: how far the others are when a rank fails is a matter of chance. */
static int64_t done_by_all(const struct mc_run *r) {
    int64_t done = r->world > 0 ? r->ranks[0].have : 0;
    for (int i = 1; i < r->world; i++)
        if (r->ranks[i].have < done) done = r->ranks[i].have;
    return done;
}
/* Steps of this generation that earlier ones had done. */
int64_t mc_redone(const struct mc_run *r) {
    int64_t upto = r->gen_step < r->row.best_step ? r->gen_step : r->row.best_step;
    return upto > mc_base(r) ? upto - mc_base(r) : 0;
}
/* Asked when all trainers are gone: a worker tells of an exit behind the reports it still had. */
static void note_progress(struct mc_run *r) {
    int64_t done = done_by_all(r), best = r->row.best_step;
    if (r->world > 0 && r->gen_step > r->attempt.last_step) {
        r->attempt.last_step = r->gen_step;
        r->attempt.steps_redone = mc_redone(r);
    }
    if (done <= best) return;
    r->row.best_step = done;
    r->row.failures_in_row = 0; /* it got further than ever: the backoff starts anew */
}
/* Ends that say nothing of whether the run can get on. */
static bool blameless(enum zt_reason reason) {
    return reason == ZT_REASON_DRAINED || reason == ZT_REASON_PREEMPTED || reason == ZT_REASON_COORDINATOR_RESTART ||
           reason == ZT_REASON_CKPT_CORRUPT;
}
/* Counts generations in a row that have made no checkpoint; true when there were too many. */
static bool stands_still(struct mc_run *r) {
    const struct zt_run_config *c = &r->row.config;
    if (!c->saves || c->no_progress_limit == 0 || r->committed || blameless(r->row.reason)) return false;
    return ++r->row.no_progress >= (uint32_t)c->no_progress_limit;
}
static void fail_with(struct zt_machine *m, struct mc_run *r, enum zt_reason reason, const char *detail) {
    r->row.reason = reason;
    mc_copy(r->row.detail, sizeof r->row.detail, detail);
    mc_finish_run(m, r, ZT_RUN_FAILED);
}
static void try_again(struct zt_machine *m, struct mc_run *r) {
    struct mc_start next;
    char why[ZT_MESSAGE_MAX + 1];
    if (!mc_pick_start(r, &next)) {
        mc_end_without_start(m, r);
    } else if (stands_still(r)) {
        snprintf(why, sizeof why,
                 "%u generation%s in a row made no checkpoint (restart.no_progress_limit %d): save more often "
                 "(checkpoint.interval), or see why it ends: %.500s",
                 r->row.no_progress, r->row.no_progress == 1 ? "" : "s", r->row.config.no_progress_limit, r->row.detail);
        fail_with(m, r, ZT_REASON_NO_PROGRESS, why);
    } else {
        r->row.restarts_counted += r->attempt.counted;
        r->row.failures_in_row++;
        r->retry_at = m->now + mc_backoff(r);
        mc_set_state(m, r, ZT_RUN_RESTARTING);
    }
}
void mc_end_without_start(struct zt_machine *m, struct mc_run *r) {
    char why[ZT_MESSAGE_MAX + 1];
    mc_say_no_start(r, why, sizeof why);
    fail_with(m, r, ZT_REASON_CKPT_CORRUPT, why);
}
/* Every trainer of the generation is gone, or its worker is: what now? */
void mc_stop_complete(struct zt_machine *m, struct mc_run *r) {
    for (int i = 0; i < r->world; i++)
        if (!r->ranks[i].row.released && !MC_PLANTED(MC_PLANT_FREE_EARLY)) return;
    for (int i = 0; i < r->world; i++) {
        if (r->ranks[i].worker >= 0) mc_unbind(m, r->ranks[i].worker);
        if (r->ranks[i].dirty) mc_emit_row(m, ZT_FX_ROW_RANK)->u.rank = r->ranks[i].row;
    }
    note_progress(r);
    mc_ckpt_ended(m, r);
    if (r->world) {
        r->attempt.stop_seconds = mc_seconds(m->now - r->stop_at);
        mc_dirty_attempt(m, r);
    }
    free(r->ranks);
    r->ranks = NULL;
    r->world = 0;
    enum zt_retry retry = zt_reason_retry(r->row.reason);
    if (r->row.cancel_requested) {
        r->row.reason = ZT_REASON_USER_CANCEL;
        mc_finish_run(m, r, ZT_RUN_CANCELLED);
    } else if (retry == ZT_RETRY_NEVER || r->row.reason == ZT_REASON_TIME_LIMIT) {
        mc_finish_run(m, r, ZT_RUN_FAILED);
    } else if (r->attempt.counted &&
               r->row.restarts_counted >= (uint32_t)r->row.config.max_restarts) {
        char why[ZT_MESSAGE_MAX + 1];
        snprintf(why, sizeof why,
                 "gave up after %u counted restart%s (restart.max_restarts %d): %.600s",
                 r->row.restarts_counted, r->row.restarts_counted == 1 ? "" : "s",
                 r->row.config.max_restarts, r->row.detail);
        mc_copy(r->row.detail, sizeof r->row.detail, why);
        mc_finish_run(m, r, ZT_RUN_FAILED);
    } else {
        try_again(m, r);
    }
}
void mc_release_rank(struct zt_machine *m, struct mc_run *r, int rank) {
    struct mc_rank *k = &r->ranks[rank];
    if (k->row.released) return;
    k->row.released = true;
    mc_dirty_rank(m, r, k);
    mc_touch(m, k->worker);
}
static double detect_seconds(struct zt_machine *m, const struct mc_run *r, int rank) {
    if (rank < 0) return -1;
    const struct mc_worker *w = mc_rank_worker(m, &r->ranks[rank]);
    int64_t since =
        r->row.reason == ZT_REASON_WORKER_LOST && w ? w->last_beat : r->ranks[rank].progress_at;
    return since && since <= m->now ? mc_seconds(m->now - since) : -1;
}
/* Ranks that do not meet, time and again, will not by themselves: from the third formation in a row on
 * each counts, so that the run ends. */
#define INIT_TIMEOUTS_FREE 2
static bool counts(struct mc_run *r, enum zt_reason reason) {
    if (reason != ZT_REASON_COMM_INIT_TIMEOUT)
        r->row.init_timeouts = 0;
    else
        r->row.init_timeouts++;
    return zt_reason_retry(reason) == ZT_RETRY_COUNTED || r->row.init_timeouts > INIT_TIMEOUTS_FREE;
}
/* Ends the generation: everybody gets ABORT at once (that can do no harm, whatever the database
 * does). */
void mc_begin_stop(struct zt_machine *m, struct mc_run *r, enum zt_reason reason, int rank,
                   const char *message) {
    ZT_ASSERT(mc_run_active(r));
    bool untold = r->row.state == ZT_RUN_ALLOCATING && !MC_PLANTED(MC_PLANT_START_EARLY);
    r->pending.on = false;
    bool counted = counts(r, reason);
    char why[ZT_MESSAGE_MAX + 1];
    if (r->row.init_timeouts > INIT_TIMEOUTS_FREE) {
        snprintf(why, sizeof why,
                 "%.600s (the ranks did not meet %u times in a row: counted against restart.max_restarts)",
                 message, r->row.init_timeouts);
        message = why;
    }
    r->row.reason = reason;
    r->row.cause_rank = rank;
    r->stop_at = m->now;
    mc_copy(r->row.detail, sizeof r->row.detail, message);
    struct zt_row_attempt *a = &r->attempt;
    a->ended_ms = m->wall;
    a->reason = reason;
    a->rank = rank;
    a->worker_id[0] = 0;
    if (rank >= 0) mc_copy(a->worker_id, sizeof a->worker_id, r->ranks[rank].row.worker_id);
    mc_copy(a->message, sizeof a->message, message);
    a->last_step = r->gen_step;
    a->steps_redone = mc_redone(r);
    a->counted = counted && !r->row.cancel_requested;
    a->detect_seconds = detect_seconds(m, r, rank);
    mc_dirty_attempt(m, r);
    mc_event(m,
             (struct mc_note){.level = reason == ZT_REASON_USER_CANCEL ? 1 : 3,
                              .kind = "GENERATION_END",
                              .run = r,
                              .worker = rank >= 0 ? mc_rank_worker(m, &r->ranks[rank]) : NULL,
                              .rank = rank,
                              .reason = reason},
             "generation %u ends: %s%s%s", r->row.generation, zt_reason_name(reason),
             message[0] ? ": " : "", message);
    mc_set_state(m, r, ZT_RUN_STOPPING);
    mc_drop_comms(m, r, "this generation has ended");
    mc_ckpt_stopping(m, r);
    if (reason == ZT_REASON_CKPT_CORRUPT) mc_ckpt_condemn(m, r, message);
    if (untold)
        for (int i = 0; i < r->world; i++) mc_release_rank(m, r, i);
    mc_stop_complete(m, r);
}

/* ------------------------------------------------------------------------------ failures */
static void failure_row(struct zt_machine *m, struct mc_run *r, int rank,
                        const struct zt_event *report, enum zt_reason reason, int peer,
                        const char *message) {
    struct zt_row_failure *f = &mc_emit_row(m, ZT_FX_ROW_FAILURE)->u.failure;
    mc_copy(f->run_id, sizeof f->run_id, r->row.run_id);
    f->generation = r->row.generation;
    f->rank = rank;
    f->reason = reason;
    mc_copy(f->worker_id, sizeof f->worker_id, r->ranks[rank].row.worker_id);
    mc_copy(f->message, sizeof f->message, message);
    bool stepping = r->row.state == ZT_RUN_RUNNING && r->ranks[rank].step >= 0;
    f->step = stepping ? r->ranks[rank].step + 1 : -1; /* in progress */
    f->exit_code = -1;
    f->peer = peer;
    f->order = r->n_failures++;
    r->ranks[rank].failed = true;
    if (!report) return;
    f->request = report->kind == ZT_EV_FAILURE ? report->request : 0;
    if (report->kind == ZT_EV_FAILURE) {
        if (report->u.failure.step >= 0) f->step = report->u.failure.step;
        f->exit_code = report->u.failure.exit_code;
        f->signal = report->u.failure.signal;
        f->offset_ms = report->u.failure.offset_ms;
    } else if (report->kind == ZT_EV_CHILD_EXITED) {
        f->exit_code = report->u.exited.exit_code;
        f->signal = report->u.exited.signal;
    }
}
void mc_fail(struct zt_machine *m, struct mc_run *r, int rank, const struct zt_event *report,
             enum zt_reason reason, int peer, const char *fmt, ...) {
    char message[ZT_MESSAGE_MAX + 1];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    bool active = mc_run_active(r), consequence = zt_reason_is_consequence(reason) || !active;
    if (!r->ranks[rank].failed) failure_row(m, r, rank, report, reason, peer, message);
    if (consequence)
        mc_event(m,
                 (struct mc_note){.level = 1,
                                  .kind = "CONSEQUENCE",
                                  .run = r,
                                  .worker = mc_rank_worker(m, &r->ranks[rank]),
                                  .rank = rank,
                                  .reason = reason,
                                  .actor = report ? "worker" : NULL},
                 "%s", message);
    if (!active) return;
    if (!consequence) { /* every replica reports a divergence, and names the one that went astray */
        const bool named = reason == ZT_REASON_REPLICA_DIVERGED && peer >= 0 && peer < r->world;
        mc_begin_stop(m, r, reason, named ? peer : rank, message);
        return;
    }
    if (r->pending.on) return;
    r->pending.on = true;
    r->pending.reason = reason;
    r->pending.rank = rank;
    r->pending.peer = peer >= 0 && peer < r->world && peer != rank ? peer : -1;
    r->pending.at = m->now;
    mc_copy(r->pending.message, sizeof r->pending.message, message);
}
bool mc_worker_silent(const struct zt_machine *m, const struct mc_worker *w) {
    return !w->registered || !w->connected || mc_elapsed(m, w->last_beat, m->c.suspect_ms);
}
/* How many ranks wait for rank i in a collective. */
static int waiting_for(const struct mc_run *r, int i) {
    int n = 0;
    for (int k = 0; k < r->world; k++) n += r->ranks[k].held_by == (uint32_t)i + 1;
    return n;
}
/* Who holds the others up: the rank that others wait for and that waits for none itself (the end of a chain
 * of waits), else the one most wait for; without such evidence, or when it is even, the lowest step, and of
 * these the one whose last progress is oldest. Ages alone would not do: all ranks of a group stop within
 * milliseconds of each other. */
int mc_laggard(const struct zt_machine *m, const struct mc_run *r) {
    (void)m;
    int best = -1, best_votes = 0;
    for (int i = 0; i < r->world; i++) {
        const struct mc_rank *k = &r->ranks[i];
        if (k->row.done || k->row.released) continue;
        int votes = waiting_for(r, i);
        if (votes > 0 && k->held_by == 0) votes += r->world;
        const struct mc_rank *b = best < 0 ? NULL : &r->ranks[best];
        bool older = b && (k->step < b->step ||
                           (k->step == b->step && k->progress_at < b->progress_at));
        if (b && (votes < best_votes || (votes == best_votes && !older))) continue;
        best = i;
        best_votes = votes;
    }
    return best;
}
/* Only consequences came and the time for a cause is over: the best explanation there is. */
void mc_decide_pending(struct zt_machine *m, struct mc_run *r) {
    int silent = -1, peer = r->pending.peer;
    for (int i = 0; i < r->world && silent < 0; i++) {
        struct mc_worker *w = mc_rank_worker(m, &r->ranks[i]);
        if (!r->ranks[i].row.done && (!w || mc_worker_silent(m, w))) silent = i;
    }
    if (peer >= 0) { /* the named rank first */
        struct mc_worker *w = mc_rank_worker(m, &r->ranks[peer]);
        if (!w || mc_worker_silent(m, w)) silent = peer;
    }
    int by = r->pending.rank;
    const char *said = r->pending.message; /* opens with the rank that says it */
    if (silent >= 0) {
        mc_fail(m, r, silent, NULL, ZT_REASON_WORKER_LOST, -1,
                "worker %s (rank %d) does not answer; %.400s",
                r->ranks[silent].row.worker_id, silent, said);
    } else if (r->pending.reason == ZT_REASON_COMM_TIMEOUT) {
        int who = peer >= 0 ? peer : mc_laggard(m, r);
        if (who < 0) who = by;
        mc_fail(m, r, who, NULL, ZT_REASON_HANG, -1,
                "rank %d on %s held up its group at step %lld; %.400s", who,
                r->ranks[who].row.worker_id, (long long)r->ranks[who].step + 1, said);
    } else {
        int who = peer >= 0 ? peer : by;
        mc_fail(m, r, who, NULL, ZT_REASON_COMM_ERROR, -1,
                "rank %d lost a peer, and no rank reports why; %.400s", by, said);
    }
}

/* A rank lost a peer whose supervisor has hung up as well: both are gone, and no cause will come. A trainer that
 * dies alone is told of by its supervisor, a supervisor that lost its connection still has its trainer, and one that
 * drained has left on purpose. */
bool mc_peer_gone(struct zt_machine *m, const struct mc_run *r) {
    if (r->pending.reason != ZT_REASON_PEER_LOST || r->pending.peer < 0) return false;
    const struct mc_rank *k = &r->ranks[r->pending.peer];
    const struct mc_worker *w = mc_rank_worker(m, k);
    return !k->drained && (!w || !w->connected);
}

/* ------------------------------------------------------------------------------ drain */
void mc_begin_drain(struct zt_machine *m, struct mc_run *r, int rank) {
    if (r->drain.on) return;
    r->drain.on = true;
    r->drain.rank = rank;
    r->drain.at = m->now;
    mc_event(m,
             (struct mc_note){.level = 1, .kind = "DRAIN", .run = r, .worker = mc_rank_worker(m, &r->ranks[rank]), .rank = rank,
                              .reason = ZT_REASON_DRAINED},
             "worker %s is draining: the run saves, stops and moves; it has timeouts.term_grace %.0f s for it",
             r->ranks[rank].row.worker_id, r->row.config.term_grace);
}
static void end_drain(struct zt_machine *m, struct mc_run *r, const char *how) {
    char text[ZT_MESSAGE_MAX + 1];
    snprintf(text, sizeof text, "worker %s is draining: its rank %d moves elsewhere; %s", r->ranks[r->drain.rank].row.worker_id,
             r->drain.rank, how);
    mc_begin_stop(m, r, ZT_REASON_DRAINED, r->drain.rank, text);
}
/* One rank has left; the others follow when their part of the checkpoint is written, rank 0 the last. */
void mc_drained(struct zt_machine *m, struct mc_run *r, int rank, const struct zt_event *report, const char *text) {
    struct mc_rank *k = &r->ranks[rank];
    mc_begin_drain(m, r, rank);
    if (!k->failed) failure_row(m, r, rank, report, ZT_REASON_DRAINED, -1, text);
    k->drained = true;
    mc_check_progressed(m, r);
}
static bool all_done(const struct mc_run *r) {
    for (int i = 0; i < r->world; i++)
        if (!r->ranks[i].row.done) return false;
    return true;
}
static bool has_left(const struct mc_rank *k) { return k->drained || k->row.released || k->row.done; }
void mc_check_drain(struct zt_machine *m, struct mc_run *r) {
    bool left = true;
    if (!r->drain.on || r->row.state != ZT_RUN_RUNNING || all_done(r)) return;
    for (int i = 0; i < r->world; i++) left &= has_left(&r->ranks[i]);
    if (left)
        end_drain(m, r, "every rank has stopped");
    else if (mc_elapsed(m, r->drain.at, mc_to_ms(r->row.config.term_grace)))
        end_drain(m, r, "timeouts.term_grace was over before every rank had stopped");
}
