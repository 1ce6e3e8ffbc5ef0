/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_recover.c: a start of the coordinator. What was durable comes back; runs that
 * were running wait for their workers and go on in the same generation; formations that were under
 * way are done again under a new one; teardowns go on. Ownership and thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <stdlib.h>
#include <string.h>

static bool has_generation(enum zt_run_state s) {
    return s != ZT_RUN_SUBMITTED && s != ZT_RUN_QUEUED && s != ZT_RUN_RESTARTING &&
           s != ZT_RUN_PAUSED && !zt_run_state_terminal(s);
}
static void recover_worker(struct zt_machine *m, const struct zt_row_worker *row) {
    int i = mc_add_worker(m, row->worker_id);
    struct mc_worker *w = &m->workers[i];
    w->row = *row;
    w->row.run_id[0] = 0;
    w->last_beat = m->now; /* it has reattach_ms from now */
    mc_touch(m, i);
}
static void recover_key(struct zt_machine *m, const struct zt_row_key *row, int64_t age_ms) {
    if (m->n_keys == m->c.max_keys) {
        m->key_first = (m->key_first + 1) % m->c.max_keys;
        m->n_keys--;
    }
    struct mc_key *k = &m->keys[(m->key_first + m->n_keys++) % m->c.max_keys];
    memcpy(k->key, row->key, sizeof k->key);
    mc_copy(k->verb, sizeof k->verb, row->verb);
    mc_copy(k->run_id, sizeof k->run_id, row->run_id);
    mc_copy(k->name, sizeof k->name, row->name);
    k->at = m->now - age_ms * MC_MS;
}
/* A rank whose worker is still the process it was leased to gets its lease back; of any other, the
 * trainer is gone. */
static void recover_rank(struct zt_machine *m, struct mc_run *r, const struct zt_row_rank *row,
                         int64_t step) {
    struct mc_rank *k = &r->ranks[row->rank];
    if (step < mc_base(r)) step = mc_base(r); /* none reported yet */
    *k = (struct mc_rank){.row = *row,
                          .worker = -1,
                          .progress_at = m->now,
                          .have = step,
                          .step = step,
                          .ready = true,
                          .in_comm = true};
    if (step > r->gen_step) r->gen_step = step;
    int w = mc_find_worker(m, row->worker_id);
    bool same = w >= 0 && m->workers[w].run < 0 &&
                mc_incarnation_equal(&m->workers[w].row.incarnation, &row->incarnation);
    if (same && !row->released) {
        k->worker = w;
        m->workers[w].run = (int)(r - m->runs);
        m->workers[w].rank = row->rank;
    } else if (!row->released) {
        mc_release_rank(m, r, row->rank);
    }
}
static void recover_ranks(struct zt_machine *m, struct mc_run *r, const struct zt_recovery *rec) {
    for (int i = 0; i < r->world; i++)
        r->ranks[i] = (struct mc_rank){
            .worker = -1, .row.released = true, .row.generation = r->row.generation, .row.rank = i};
    for (size_t i = 0; i < rec->n_ranks; i++) {
        const struct zt_row_rank *row = &rec->ranks[i];
        if (strcmp(row->run_id, r->row.run_id) || row->generation != r->row.generation ||
            row->rank < 0 || row->rank >= r->world)
            continue;
        recover_rank(m, r, row, rec->rank_step[i]);
    }
}
/* The first rank that cannot come back: released or its worker replaced, and not done; -1 = none.
 */
static int missing_rank(const struct mc_run *r) {
    for (int i = 0; i < r->world; i++)
        if (r->ranks[i].row.released && !r->ranks[i].row.done) return i;
    return -1;
}
static void resume_run(struct zt_machine *m, struct mc_run *r) {
    int gone;
    switch (r->row.state) {
    case ZT_RUN_SUBMITTED:
        mc_set_state(m, r, ZT_RUN_QUEUED);
        break;
    case ZT_RUN_RESTARTING:
        r->retry_at = m->now + mc_backoff(r);
        break;
    case ZT_RUN_ALLOCATING: /* its commit may have been told: treat it as told */
        r->row.state = ZT_RUN_STARTING;
        /* fall through */
    case ZT_RUN_STARTING:
    case ZT_RUN_FORMING:
        mc_begin_stop(m, r, ZT_REASON_COORDINATOR_RESTART, -1,
                      "the coordinator was restarted while the generation formed");
        break;
    case ZT_RUN_RUNNING:
    case ZT_RUN_COMPLETING:
    case ZT_RUN_RECOVERING:
        r->evidence_at = m->now;
        mc_copy(r->row.detail, sizeof r->row.detail,
                "the coordinator was restarted; its workers are expected back");
        mc_set_state(m, r, ZT_RUN_RECOVERING);
        gone = missing_rank(r);
        if (gone >= 0)
            mc_fail(m, r, gone, NULL, ZT_REASON_WORKER_LOST, -1,
                    "worker %s (rank %d) was replaced while the coordinator was away",
                    r->ranks[gone].row.worker_id, gone);
        else
            mc_check_progressed(m, r);
        break;
    case ZT_RUN_STOPPING:
        r->stop_at = m->now;
        mc_check_progressed(m, r);
        break;
    default:
        break;
    }
}
/* `made` holds what needed memory: the ranks and the checkpoints. */
static void recover_run(struct zt_machine *m, const struct zt_recovery *rec, size_t i,
                        const struct mc_run *made) {
    const struct zt_row_run *row = &rec->runs[i];
    struct mc_run *r = mc_new_run(m);
    r->ckpts = made->ckpts;
    r->n_ckpts = made->n_ckpts;
    r->cap_ckpts = made->cap_ckpts;
    r->save_floor = made->save_floor;
    r->row = *row;
    r->row.request = 0;
    r->state_at = m->now;
    r->submitted_at = m->now - rec->run_age_ms[i] * MC_MS;
    r->started = rec->run_started_age_ms[i] >= 0;
    r->started_at = m->now - rec->run_started_age_ms[i] * MC_MS;
    for (size_t k = 0; k < rec->n_attempts; k++)
        if (!strcmp(rec->attempts[k].run_id, row->run_id) &&
            rec->attempts[k].generation == row->generation)
            r->attempt = rec->attempts[k];
    if (!has_generation(row->state)) return;
    r->ranks = made->ranks;
    r->world = row->workers;
    mc_copy(r->attempt.run_id, sizeof r->attempt.run_id, row->run_id);
    r->attempt.generation = row->generation;
    if (r->save_floor < mc_base(r)) r->save_floor = mc_base(r);
    r->gen_step = mc_base(r);
    for (int k = 0; k < r->n_ckpts; k++) /* refilled by it, as it was before the start */
        r->committed |= r->ckpts[k].row.generation == row->generation && r->ckpts[k].row.step == row->saved_step;
    recover_ranks(m, r, rec);
}
int mc_on_start(struct zt_machine *m, const struct zt_event *ev) {
    const struct zt_recovery *rec = ev->u.start.recovery;
    ZT_ASSERT(!m->live && rec);
    if (rec->n_runs > (size_t)m->c.max_runs || rec->n_workers > (size_t)m->c.max_workers)
        return ZT_EBUSY;
    struct mc_run *made = calloc(rec->n_runs + 1, sizeof *made);
    int rc = made ? 0 : ZT_ENOMEM;
    for (size_t i = 0; i < rec->n_runs && !rc; i++) {
        made[i].row = rec->runs[i];
        rc = mc_ckpt_recover(&made[i], rec);
        if (rc || !has_generation(rec->runs[i].state)) continue;
        made[i].ranks = calloc((size_t)rec->runs[i].workers + 1, sizeof *made[i].ranks);
        if (!made[i].ranks) rc = ZT_ENOMEM;
    }
    for (size_t i = 0; i < rec->n_runs && rc && made; i++) {
        free(made[i].ranks);
        mc_ckpt_free(&made[i]);
    }
    if (rc) goto out;
    m->live = true;
    m->epoch = rec->epoch;
    m->order = rec->last_order;
    m->started_at = m->fresh_at = m->now;
    for (size_t i = 0; i < rec->n_workers; i++) recover_worker(m, &rec->workers[i]);
    for (size_t i = 0; i < rec->n_keys; i++) recover_key(m, &rec->keys[i], rec->key_age_ms[i]);
    for (size_t i = 0; i < rec->n_runs; i++) recover_run(m, rec, i, &made[i]);
    for (int i = 0; i < m->n_runs; i++) resume_run(m, &m->runs[i]);
    mc_event(m, (struct mc_note){.level = 1, .kind = "COORDINATOR_START", .rank = -1},
             "the coordinator has started (epoch %llu): %zu runs not ended, %zu workers known",
             (unsigned long long)m->epoch, rec->n_runs, rec->n_workers);
out:
    free(made);
    return rc;
}
