/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim.c: the clock, the network, the disk and the shell around the machine; the
 * invariants that need histories. See sim.h. */
#include "tests/coordinator/sim_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sim_counter_names[SIM_COUNTERS] = {
    "succeeded",  "failed",           "cancelled",   "generations",    "hangs", "workers_lost",
    "reattached", "reformed",         "quarantined", "drained",        "gaps",  "stale",
    "superseded", "crashes",          "pauses",      "disk_full",      "kills", "stops",
    "cuts",       "repeated_submits", "gave_up",     "kept_generation",
    "saves", "commits", "saves_failed", "resumed", "removed", "damaged", "corrupt", "stopped_saved", "sets", "from_others", "no_progress", "resized"};

/* ------------------------------------------------------------------------------ small things */
uint64_t sim_random(struct sim *s) { /* splitmix64 */
    uint64_t z = s->rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
int64_t sim_range(struct sim *s, int64_t lo, int64_t hi) {
    return lo + (int64_t)(sim_random(s) % (uint64_t)(hi - lo + 1));
}
bool sim_chance(struct sim *s, int percent) { return sim_range(s, 0, 99) < percent; }
bool same_at(const struct at *a, const char *run_id, uint32_t generation) {
    return a->generation == generation && !strcmp(a->run_id, run_id);
}
void sim_break(struct sim *s, const char *fmt, ...) {
    if (s->broken[0]) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->broken, sizeof s->broken, fmt, ap);
    va_end(ap);
}
void sim_log(struct sim *s, const char *fmt, ...) {
    if (s->talk == SIM_QUIET) return;
    char *line = s->log[s->n_log++ % 50];
    int n = snprintf(line, sizeof s->log[0], "#%llu %.3f s  ", (unsigned long long)s->n_events,
                     (double)s->now / 1e9);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof s->log[0] - (size_t)n, fmt, ap);
    va_end(ap);
    if (s->talk == SIM_TRACE) printf("%s\n", line);
}
static void mix(struct sim *s, uint64_t v) {
    s->hash = (s->hash ^ v) * 0x100000001b3u + (s->hash >> 29);
}
static void mix_text(struct sim *s, const char *t) {
    for (; *t; t++) mix(s, (unsigned char)*t);
}

/* ------------------------------------------------------------------------------ what happens when
 */
static bool earlier(const struct happening *a, const struct happening *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}
static void push(struct sim *s, struct happening h) {
    if (s->n_heap == s->cap_heap) {
        s->cap_heap = s->cap_heap ? 2 * s->cap_heap : 1024;
        s->heap = realloc(s->heap, sizeof *s->heap * (size_t)s->cap_heap);
        ZT_ASSERT(s->heap);
    }
    h.order = ++s->order;
    int i = s->n_heap++;
    for (; i > 0 && earlier(&h, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = h;
}
static struct happening pop(struct sim *s) {
    struct happening top = s->heap[0], last = s->heap[--s->n_heap];
    int i = 0;
    for (int k; (k = 2 * i + 1) < s->n_heap; i = k) {
        if (k + 1 < s->n_heap && earlier(&s->heap[k + 1], &s->heap[k])) k++;
        if (!earlier(&s->heap[k], &last)) break;
        s->heap[i] = s->heap[k];
    }
    s->heap[i] = last;
    return top;
}
void sim_at(struct sim *s, int64_t at, int what, int index, uint64_t tag) {
    push(s, (struct happening){.at = at, .what = what, .index = index, .tag = tag, .slot = -1});
}
static bool cut(const struct sim *s, const struct msg *m) {
    return m->proc >= 0 && s->now < s->proc[m->proc].cut_until;
}
/* One copy, or none, or two; each with its own delay. A message belongs to one life of the
 * coordinator's process. */
void sim_send(struct sim *s, int what, const struct msg *m) {
    if (!s->calm && sim_chance(s, s->loss)) return;
    if (cut(s, m)) return;
    for (int copies = 1 + (!s->calm && sim_chance(s, s->twice)); copies > 0; copies--) {
        if (s->n_free == 0) {
            int old = s->cap_slots;
            s->cap_slots = old ? 2 * old : 256;
            s->slots = realloc(s->slots, sizeof *s->slots * (size_t)s->cap_slots);
            s->free_slots = realloc(s->free_slots, sizeof *s->free_slots * (size_t)s->cap_slots);
            ZT_ASSERT(s->slots && s->free_slots);
            for (int i = s->cap_slots - 1; i >= old; i--) s->free_slots[s->n_free++] = i;
        }
        int slot = s->free_slots[--s->n_free];
        s->slots[slot] = *m;
        int64_t delay = sim_range(s, MS / 10, (s->calm ? 5 : s->delay_ms) * MS);
        push(s,
             (struct happening){.at = s->now + delay, .what = what, .tag = s->life, .slot = slot});
    }
}

/* ------------------------------------------------------------------------------ the disk */
struct db_run *sim_db_run(struct sim *s, const char *run_id) {
    for (int i = 0; i < DB_RUNS; i++)
        if (s->db.run[i].used && !strcmp(s->db.run[i].row.run_id, run_id)) return &s->db.run[i];
    return NULL;
}
static void check_success(struct sim *s, const struct db_run *r) {
    for (int k = 0; k < r->row.workers; k++) {
        if (!r->rank[k].done || r->rank[k].generation != r->row.generation)
            sim_break(s, "7: SUCCEEDED, rank %d is not done in the database", k);
        for (int64_t i = sim_base(r) + 1; i <= r->row.config.steps; i++)
            if (r->step_generation[k][i] != r->row.generation)
                sim_break(s, "7: SUCCEEDED, rank %d has no row of step %lld in generation %u", k,
                          (long long)i, r->row.generation);
    }
}
static void apply_run(struct sim *s, const struct zt_row_run *row) {
    struct db_run *r = sim_db_run(s, row->run_id);
    for (int i = 0; i < DB_RUNS && !r; i++)
        if (!s->db.run[i].used) {
            r = &s->db.run[i];
            r->used = true;
            r->row = *row;
            for (int k = 0; k <= MAX_STEPS * MAX_WORLD + MAX_WORLD - 1; k++) r->part[k / MAX_WORLD][k % MAX_WORLD].rank = -1;
        }
    if (!r) {
        sim_break(s, "more runs in the database than were submitted");
        return;
    }
    if (row->order > s->db.order) s->db.order = row->order;
    if (row->generation < r->row.generation)
        sim_break(s, "1: generation of %s falls from %u to %u", row->run_id, r->row.generation,
                  row->generation);
    if (zt_run_state_terminal(r->row.state) && row->state != r->row.state)
        sim_break(s, "7: %s leaves %s for %s", row->run_id, zt_run_state_name(r->row.state),
                  zt_run_state_name(row->state));
    if (row->generation > r->row.generation) s->counters[SIM_GENERATIONS]++;
    if (row->workers != r->row.workers && r->row.workers) {
        s->counters[SIM_RESIZED]++;
        if (!row->config.elastic) sim_break(s, "%s is resized, and it is not elastic", row->run_id);
    }
    if (row->state == ZT_RUN_RUNNING && r->row.state == ZT_RUN_RECOVERING)
        s->counters[SIM_REATTACHED]++;
    if (row->reason == ZT_REASON_COORDINATOR_RESTART && r->row.reason != row->reason)
        s->counters[SIM_REFORMED]++;
    if (row->reason == ZT_REASON_HANG && r->row.reason != row->reason) s->counters[SIM_HANGS]++;
    if (row->reason == ZT_REASON_DRAINED && r->row.reason != row->reason)
        s->counters[SIM_DRAINED]++;
    r->ended_now |= row->state == ZT_RUN_SUCCEEDED && r->row.state != ZT_RUN_SUCCEEDED;
    if (row->restarts_counted > (uint32_t)row->config.max_restarts)
        sim_break(s, "%s: more restarts than max_restarts", row->run_id);
    r->row = *row;
    r->was_running |= row->state == ZT_RUN_RUNNING;
}
static void apply_rank(struct sim *s, const struct zt_row_rank *row) {
    struct db_run *r = sim_db_run(s, row->run_id);
    if (!r || row->rank < 0 || row->rank >= MAX_WORLD) {
        sim_break(s, "a rank row without its run");
        return;
    }
    struct zt_row_rank *k = &r->rank[row->rank];
    if (row->generation < k->generation)
        sim_break(s, "1: a rank row of %s falls back to generation %u", row->run_id,
                  row->generation);
    if (row->generation == k->generation &&
        memcmp(&k->incarnation, &row->incarnation, sizeof k->incarnation))
        sim_break(s, "1: rank %d of %s generation %u given out twice", row->rank, row->run_id,
                  row->generation);
    *k = *row;
}
static void apply(struct sim *s, const struct row *w) {
    const struct zt_effect *e = &w->e;
    struct db_run *r;
    switch (e->kind) {
    case ZT_FX_ROW_RUN:
        apply_run(s, &e->u.run);
        break;
    case ZT_FX_ROW_RANK:
        apply_rank(s, &e->u.rank);
        break;
    case ZT_FX_ROW_ATTEMPT:
        r = sim_db_run(s, e->u.attempt.run_id);
        if (!r) {
            sim_break(s, "an attempt without its run");
            break;
        }
        if (e->u.attempt.counted && !r->attempt.counted &&
            e->u.attempt.generation == r->attempt.generation)
            r->counted++;
        r->attempt = e->u.attempt;
        break;
    case ZT_FX_ROW_WORKER:
        for (int i = 0; i <= s->db.n_workers && i < 16; i++) {
            if (i < s->db.n_workers && strcmp(s->db.worker[i].worker_id, e->u.worker.worker_id))
                continue;
            if (i == s->db.n_workers) s->db.n_workers++;
            if (e->u.worker.state == ZT_WORKER_LOST && s->db.worker[i].state != ZT_WORKER_LOST)
                s->counters[SIM_WORKERS_LOST]++;
            if (e->u.worker.state == ZT_WORKER_QUARANTINED &&
                s->db.worker[i].state != e->u.worker.state)
                s->counters[SIM_QUARANTINED]++;
            s->db.worker[i] = e->u.worker;
            break;
        }
        break;
    case ZT_FX_ROW_KEY:
        if (s->db.n_keys == 256) {
            sim_break(s, "too many keys");
            break;
        }
        s->db.key[s->db.n_keys] = e->u.key;
        s->db.key_at[s->db.n_keys++] = s->now;
        break;
    case ZT_FX_ROW_CKPT:
    case ZT_FX_ROW_CKPT_GONE:
    case ZT_FX_ROW_PART:
    case ZT_FX_CKPT_SET:
        sim_apply_ckpt(s, e);
        break;
    case ZT_FX_STORE_STEPS: /* a row is replaced by one of its own or a newer generation */
        r = sim_db_run(s, e->u.steps.run_id);
        for (int64_t i = w->first; r && i <= w->last && i <= MAX_STEPS; i++)
            if (e->u.steps.generation >= r->step_generation[e->u.steps.rank][i])
                r->step_generation[e->u.steps.rank][i] = e->u.steps.generation;
        break;
    default:
        break;
    }
}
static void commit_up_to(struct sim *s, uint64_t txn) {
    while (s->row_first && s->row_first->e.txn <= txn) {
        struct row *w = s->row_first;
        apply(s, w);
        s->row_first = w->next;
        free(w);
    }
    if (!s->row_first) s->row_last = NULL;
    if (txn > s->durable) s->durable = txn;
    for (int i = 0; i < DB_RUNS; i++) {
        if (s->db.run[i].ended_now) check_success(s, &s->db.run[i]);
        s->db.run[i].ended_now = false;
    }
    sim_check_files(s);
}
static void start_commit(struct sim *s) {
    if (s->committing || !s->row_first || !s->up) return;
    s->committing = true;
    sim_at(s, s->now + sim_range(s, MS, s->disk_ms * MS), W_COMMIT, 0, s->life);
}

/* ------------------------------------------------------------------------------ the shell around
 * the machine */
static void step_machine(struct sim *s, struct zt_event *ev);

/* An answer leaves: what it promises must be on the disk now. */
static void check_promise(struct sim *s, const struct msg *m) {
    if (m->code) return;
    sim_check_ckpt_promise(s, m);
    struct db_run *r = sim_db_run(
        s, m->kind == ZT_EV_SUBMIT || m->kind == ZT_EV_CANCEL ? m->run_id : m->at.run_id);
    if (m->kind == ZT_EV_SUBMIT && !r)
        sim_break(s, "5: submit of %s acknowledged, and it is not in the database", m->run_id);
    if (m->kind == ZT_EV_CANCEL && r && !r->row.cancel_requested &&
        !zt_run_state_terminal(r->row.state))
        sim_break(s, "5: cancel of %s acknowledged, and it is not in the database", m->run_id);
    if (m->kind == ZT_EV_STEPS)
        for (int64_t i = m->first; i <= m->last && i <= MAX_STEPS; i++)
            if (!r || r->step_generation[m->at.rank][i] < m->at.generation)
                sim_break(s, "5: step %lld of rank %d acknowledged, and it is not in the database",
                          (long long)i, m->at.rank);
    if (m->kind == ZT_EV_RANK_DONE && r && r->row.generation == m->at.generation &&
        !r->rank[m->at.rank].done &&
        (r->row.state == ZT_RUN_RUNNING || r->row.state == ZT_RUN_COMPLETING))
        sim_break(s, "5: rank %d done acknowledged, and it is not in the database", m->at.rank);
}
static void release(struct sim *s, const struct msg *m) {
    check_promise(s, m);
    sim_send(s, m->proc < 0 ? W_TO_CLIENT : W_TO_PROC, m);
}
static void release_held(struct sim *s) {
    while (s->first_held < s->n_held && s->held[s->first_held].after <= s->durable)
        release(s, &s->held[s->first_held++].m);
    if (s->first_held == s->n_held) s->first_held = s->n_held = 0;
}
static void check_told(struct sim *s, const struct msg *m) {
    const struct zt_desired *d = &m->desired;
    if (!m->has_desired || (d->action != ZT_DESIRED_START && d->action != ZT_DESIRED_RUN)) return;
    const struct db_run *r = sim_db_run(s, d->run_id);
    if (!r || r->row.generation < d->generation) {
        sim_break(s, "2: a worker is told generation %u of %s before it is durable", d->generation,
                  d->run_id);
        return;
    }
    if (r->row.generation != d->generation) {
        sim_break(s, "1: generation %u of %s is told, %u is live", d->generation, d->run_id,
                  r->row.generation);
        return;
    }
    const struct proc *w = &s->proc[m->proc];
    if (d->action == ZT_DESIRED_RUN) return;
    sim_check_start(s, d);
    if (r->rank[d->rank].generation != d->generation ||
        memcmp(&r->rank[d->rank].incarnation, &w->incarnation, sizeof w->incarnation))
        sim_break(s, "2: START of %s generation %u rank %d to a worker without that lease",
                  d->run_id, d->generation, d->rank);
    if (w->alive && w->session == m->session && w->child.alive &&
        !same_at(&w->child.at, d->run_id, d->generation))
        sim_break(s, "6: worker w%d is told START while its trainer of %s generation %u lives",
                  w->worker, w->child.at.run_id, w->child.at.generation);
}
static void on_reply(struct sim *s, const struct zt_fx_reply *p) {
    struct msg m = s->requests[p->request - 1];
    m.code = p->code;
    m.has_desired = p->has_desired;
    if (p->has_desired) m.desired = p->desired;
    memcpy(&m.comm, p->comm_id, sizeof m.comm);
    m.state = (int)p->state;
    m.n_parts = p->n_parts;
    m.n_remove = p->n_remove;
    memcpy(m.remove, p->remove, sizeof m.remove);
    if (p->run_id[0]) snprintf(m.run_id, sizeof m.run_id, "%s", p->run_id);
    mix(s, p->request);
    mix(s, (uint64_t)p->code);
    mix(s, p->after_txn);
    sim_log(s, "   reply to request %llu kind %d code %d after %llu%s%s",
            (unsigned long long)p->request, (int)p->to, p->code, (unsigned long long)p->after_txn,
            p->message[0] ? ": " : "", p->message);
    check_told(s, &m);
    if (p->after_txn <= s->durable) {
        release(s, &m);
        return;
    }
    if (s->n_held == s->cap_held) {
        s->cap_held = s->cap_held ? 2 * s->cap_held : 64;
        s->held = realloc(s->held, sizeof *s->held * (size_t)s->cap_held);
        ZT_ASSERT(s->held);
    }
    s->held[s->n_held++] = (struct held){.after = p->after_txn, .m = m};
}
static void on_desired(struct sim *s, const struct zt_effect *e) {
    struct msg m = {.kind = ZT_EV_BEAT,
                    .client = -1,
                    .proc = -1,
                    .session = e->u.desired.session,
                    .has_desired = true,
                    .desired = e->u.desired.desired};
    for (int p = 0; p < s->n_procs; p++)
        if (s->proc[p].used && s->proc[p].session == m.session) m.proc = p;
    mix(s, 77);
    mix(s, (uint64_t)m.desired.action);
    sim_log(s, "   push to proc %d (%s): action %d %s g%u rank %d", m.proc, e->u.desired.worker_id,
            (int)m.desired.action, m.desired.run_id, m.desired.generation, m.desired.rank);
    if (m.proc < 0) return; /* that connection is history */
    check_told(s, &m);
    sim_send(s, W_TO_PROC, &m);
}
static void on_row(struct sim *s, const struct zt_effect *e) {
    struct row *w = calloc(1, sizeof *w);
    ZT_ASSERT(w);
    w->e = *e;
    if (e->kind == ZT_FX_STORE_STEPS) {
        const struct msg *m = &s->requests[e->u.steps.request - 1];
        w->first = m->first;
        w->last = m->last;
        struct zt_run_view v;
        for (int i = 0; i < zt_machine_runs(s->m); i++) {
            zt_machine_run_at(s->m, i, &v);
            if (!strcmp(v.run_id, e->u.steps.run_id) && v.generation != m->at.generation)
                sim_break(s, "4: step rows of generation %u are stored, %u is live",
                          m->at.generation, v.generation);
        }
    }
    if (e->kind == ZT_FX_ROW_EVENT) {
        mix_text(s, e->u.event.kind);
        sim_log(s, "   event %s %s: %s", e->u.event.kind, e->u.event.run_id, e->u.event.message);
    }
    mix(s, (uint64_t)e->kind);
    mix(s, e->txn);
    if (s->row_last)
        s->row_last->next = w;
    else
        s->row_first = w;
    s->row_last = w;
}
static void step_machine(struct sim *s, struct zt_event *ev) {
    ev->wall_ms = s->now / MS + s->wall_jump;
    s->n_events++;
    mix(s, (uint64_t)ev->kind);
    mix(s, (uint64_t)s->now);
    sim_log(s, "event kind %d worker %s %s g%u rank %d", (int)ev->kind,
            ev->worker_id ? ev->worker_id : "-", ev->at.run_id ? ev->at.run_id : "-",
            ev->at.generation, ev->at.rank);
    int rc = zt_machine_step(s->m, ev, s->now + SEC, &s->fx);
    if (rc) sim_break(s, "the machine refused a step: %d", rc);
    for (size_t i = 0; i < s->fx.n && !rc; i++) {
        struct zt_effect *e = &s->fx.v[i];
        if (e->kind == ZT_FX_REPLY)
            on_reply(s, &e->u.reply);
        else if (e->kind == ZT_FX_DESIRED)
            on_desired(s, e);
        else
            on_row(s, e);
    }
    const char *broken = zt_machine_check(s->m);
    if (broken) sim_break(s, "%s", broken);
    start_commit(s);
}
static int64_t durable_step(const struct db_run *r, int rank) {
    int64_t n = sim_base(r);
    while (n < MAX_STEPS && r->step_generation[rank][n + 1] == r->rank[rank].generation &&
           r->rank[rank].generation)
        n++;
    return n;
}
static void start_coordinator(struct sim *s) {
    struct zt_machine_config c;
    zt_machine_config_default(&c);
    c.max_workers = 16;
    c.max_runs = 16;
    c.max_keys = 256;
    c.reattach_ms = 12000;
    s->m = zt_machine_new(&c);
    ZT_ASSERT(s->m);
    s->up = true;
    s->life++;
    s->epoch++;
    s->durable = 0;
    s->committing = false;
    static struct zt_row_ckpt ckpts[DB_RUNS * (MAX_STEPS + 1)];
    static struct zt_row_part parts[DB_RUNS * (MAX_STEPS + 1)];
    struct zt_row_run runs[DB_RUNS];
    struct zt_row_attempt attempts[DB_RUNS];
    struct zt_row_rank ranks[DB_RUNS * MAX_WORLD];
    int64_t steps[DB_RUNS * MAX_WORLD], age[DB_RUNS], started[DB_RUNS], key_age[256];
    struct zt_recovery rec = {.epoch = s->epoch,
                              .runs = runs,
                              .attempts = attempts,
                              .ranks = ranks,
                              .rank_step = steps,
                              .workers = s->db.worker,
                              .n_workers = (size_t)s->db.n_workers,
                              .keys = s->db.key,
                              .n_keys = (size_t)s->db.n_keys,
                              .key_age_ms = key_age,
                              .run_age_ms = age,
                              .run_started_age_ms = started,
                              .ckpts = ckpts,
                              .parts = parts,
                              .last_order = s->db.order};
    for (int i = 0; i < s->db.n_keys; i++) key_age[i] = (s->now - s->db.key_at[i]) / MS;
    for (int i = 0; i < DB_RUNS; i++) {
        const struct db_run *r = &s->db.run[i];
        if (!r->used || zt_run_state_terminal(r->row.state)) continue;
        age[rec.n_runs] = 0;
        started[rec.n_runs] = r->row.started_ms ? 0 : -1;
        runs[rec.n_runs++] = r->row;
        attempts[rec.n_attempts++] = r->attempt;
        for (int64_t k = 1; k <= MAX_STEPS; k++) {
            if (!r->ckpt[k].state) continue;
            ckpts[rec.n_ckpts++] = r->ckpt[k];
            for (int j = 0; j < MAX_WORLD && r->ckpt[k].state == ZT_CKPT_WRITING; j++) {
                if (r->part[k][j].rank < 0) continue;
                struct zt_row_part *p = &parts[rec.n_parts++];
                *p = (struct zt_row_part){.step = k, .generation = r->ckpt[k].generation, .part = r->part[k][j]};
                snprintf(p->run_id, sizeof p->run_id, "%s", r->row.run_id);
            }
        }
        for (int k = 0; k < r->row.workers; k++) {
            if (r->rank[k].generation != r->row.generation) continue;
            steps[rec.n_ranks] = durable_step(r, k);
            ranks[rec.n_ranks++] = r->rank[k];
        }
    }
    struct zt_event ev = {.kind = ZT_EV_START, .u.start.recovery = &rec};
    step_machine(s, &ev);
    sim_at(s, s->now, W_TICK, 0, s->life);
}
/* kill -9: of the transactions on their way a prefix may have reached the disk. */
static void crash_coordinator(struct sim *s) {
    uint64_t newest = zt_machine_txn(s->m);
    if (newest > s->durable)
        commit_up_to(s, s->durable + (uint64_t)sim_range(s, 0, (int64_t)(newest - s->durable)));
    while (s->row_first) {
        struct row *w = s->row_first;
        s->row_first = w->next;
        free(w);
    }
    s->row_last = NULL;
    s->first_held = s->n_held = 0;
    zt_machine_free(s->m);
    s->m = NULL;
    s->up = false;
    s->life++;
    s->paused_until = 0;
}

/* ------------------------------------------------------------------------------ delivery */
static void to_coordinator(struct sim *s, const struct msg *m) {
    if (s->n_requests == s->cap_requests) {
        s->cap_requests = s->cap_requests ? 2 * s->cap_requests : 1024;
        s->requests = realloc(s->requests, sizeof *s->requests * s->cap_requests);
        ZT_ASSERT(s->requests);
    }
    s->requests[s->n_requests++] = *m;
    char name[40], host[16], run_id[ZT_RUN_ID_MAX + 1];
    struct zt_event ev = {.kind = (enum zt_event_kind)m->kind,
                          .request = m->kind == ZT_EV_DISCONNECTED ? 0 : s->n_requests,
                          .session = m->session,
                          .at = {m->at.run_id, m->at.generation, m->at.rank}};
    if (m->proc >= 0) {
        const struct proc *w = &s->proc[m->proc];
        snprintf(host, sizeof host, "h%d", w->worker / 3);
        snprintf(name, sizeof name, "h%d/w%d", w->worker / 3, w->worker);
        ev.worker_id = name;
        ev.incarnation = w->incarnation;
    }
    uint8_t comm[ZT_COMM_ID_BYTES] = {0};
    memcpy(comm, &m->comm, sizeof m->comm);
    switch (m->kind) {
    case ZT_EV_REGISTER:
        ev.u.reg.host = host;
        ev.u.reg.device = "cpu";
        ev.u.reg.capacity_bytes = 1 << 30;
        ev.u.reg.phase = (enum zt_trainer_phase)m->phase;
        ev.u.reg.step = m->step;
        ev.u.reg.draining = m->draining;
        break;
    case ZT_EV_BEAT:
        ev.u.beat.seq = m->seq;
        ev.u.beat.phase = (enum zt_trainer_phase)m->phase;
        ev.u.beat.step = m->step;
        ev.u.beat.progress_age_ms = m->age_ms;
        ev.u.beat.draining = m->draining;
        break;
    case ZT_EV_COMM_PUT:
    case ZT_EV_COMM_GET:
        ev.u.comm.group = "world";
        ev.u.comm.id = comm;
        ev.u.comm.bytes = sizeof comm;
        break;
    case ZT_EV_STEPS:
        ev.u.steps.first = m->first;
        ev.u.steps.last = m->last;
        ev.u.steps.step_seconds = 0.2;
        break;
    case ZT_EV_FAILURE:
        ev.u.failure.reason = (enum zt_reason)m->reason;
        ev.u.failure.message = "as simulated";
        ev.u.failure.step = m->step;
        ev.u.failure.exit_code = m->exit_code;
        ev.u.failure.peer = m->peer;
        break;
    case ZT_EV_RANK_DONE:
        ev.u.done.steps = m->step;
        ev.u.done.parameter_hash = m->hash;
        break;
    case ZT_EV_CHILD_EXITED:
        ev.u.exited.exit_code = m->exit_code;
        ev.u.exited.signal = m->signal;
        break;
    case ZT_EV_SHARD_DONE:
        ev.u.shard.step = m->save;
        ev.u.shard.part = (struct zt_ckpt_part){.bytes = 100 + m->at.rank, .index = {(uint8_t)(m->at.rank + 1)},
                                                .parameter_hash = {1}, .state_hash = {2}};
        break;
    case ZT_EV_GET_SHARDS:
    case ZT_EV_CKPT_REMOVED:
        ev.u.commit.step = m->save;
        break;
    case ZT_EV_CKPT_COMMIT:
        ev.u.commit.step = m->save;
        ev.u.commit.bytes = m->last;
        ev.u.commit.manifest = m->manifest;
        ev.u.commit.parameter_hash = ev.u.commit.state_hash = "";
        break;
    case ZT_EV_CKPT_FAILED:
        ev.u.ckpt_failed.step = m->save;
        ev.u.ckpt_failed.message = "as simulated";
        break;
    case ZT_EV_RANK_LOADED:
        ev.u.loaded.step = m->save;
        ev.u.loaded.seconds = 0.1;
        break;
    case ZT_EV_CKPT_SET: {
        const struct db_run *r = sim_db_run(s, m->at.run_id);
        const struct zt_row_ckpt *c = r ? &r->ckpt[m->save] : NULL;
        ev.u.ckpt_set.key = m->manifest;
        ev.u.ckpt_set.run_id = m->at.run_id;
        ev.u.ckpt_set.step = m->save;
        ev.u.ckpt_set.what = (enum zt_ckpt_set)m->what;
        ev.u.ckpt_set.message = "as simulated";
        ev.u.ckpt_set.read_txn = s->durable;
        ev.u.ckpt_set.found = c && c->state;
        ev.u.ckpt_set.state = c ? c->state : (enum zt_ckpt_state)0;
        ev.u.ckpt_set.pinned = c && c->pinned;
        for (int64_t k = 1; c && k <= MAX_STEPS; k++)
            ev.u.ckpt_set.others += k != m->save && r->ckpt[k].state == ZT_CKPT_COMMITTED && r->ckpt[k].verified;
        break;
    }
    case ZT_EV_SUBMIT:
        if (s->client[m->client].wants_source && !s->client[m->client].c.source.run_id[0]) sim_find_source(s, &s->client[m->client]);
        ev.u.submit.read_txn = s->durable;
        snprintf(run_id, sizeof run_id, "RUN%llu", (unsigned long long)++s->run_ids);
        ev.u.submit.key = s->client[m->client].key;
        ev.u.submit.run_id = run_id;
        ev.u.submit.name = s->client[m->client].name;
        ev.u.submit.config = &s->client[m->client].c;
        break;
    case ZT_EV_CANCEL: {
        const struct db_run *r = sim_db_run(s, s->client[m->client].run_id);
        ev.u.cancel.key = s->client[m->client].cancel_key;
        ev.u.cancel.run_id = s->client[m->client].run_id;
        ev.u.cancel.stored = r ? r->row.state : ZT_RUN_QUEUED;
        break;
    }
    default:
        break;
    }
    step_machine(s, &ev);
}
static void on_commit(struct sim *s) {
    s->committing = false;
    if (s->now < s->disk_bad_until) {
        struct zt_event ev = {.kind = ZT_EV_STORE_FAILED, .u.store = {s->durable + 1, "disk full"}};
        s->committing = true; /* tries again */
        sim_at(s, s->now + 500 * MS, W_COMMIT, 0, s->life);
        step_machine(s, &ev);
        return;
    }
    commit_up_to(s, zt_machine_txn(s->m));
    release_held(s);
    struct zt_event ev = {.kind = ZT_EV_COMMITTED, .u.store.txn = s->durable};
    step_machine(s, &ev);
}
static bool for_coordinator(int what) {
    return what == W_TICK || what == W_COMMIT || what == W_TO_COORD;
}
static void happen(struct sim *s, struct happening h) {
    if (for_coordinator(h.what)) {
        bool dropped = !s->up || h.tag != s->life || (h.slot >= 0 && cut(s, &s->slots[h.slot]));
        if (!dropped && s->now < s->paused_until) { /* stopped: it finds all this when it goes on */
            h.at = s->paused_until;
            push(s, h);
            return;
        }
        if (dropped) {
            if (h.slot >= 0) s->free_slots[s->n_free++] = h.slot;
            return;
        }
    }
    struct msg m = {0};
    if (h.slot >= 0) {
        m = s->slots[h.slot];
        s->free_slots[s->n_free++] = h.slot;
    }
    struct zt_event tick = {.kind = ZT_EV_TICK};
    switch (h.what) {
    case W_TICK:
        sim_at(s, s->now + ZT_MACHINE_TICK_MS * MS, W_TICK, 0, s->life);
        step_machine(s, &tick);
        break;
    case W_COMMIT:
        on_commit(s);
        break;
    case W_TO_COORD:
        to_coordinator(s, &m);
        break;
    case W_TO_PROC:
        if (cut(s, &m)) break;
        if (s->proc[m.proc].stopped &&
            s->now < s->proc[m.proc].resume_at) { /* it reads this when it goes on */
            s->slots[h.slot = s->free_slots[--s->n_free]] = m;
            h.at = s->proc[m.proc].resume_at;
            push(s, h);
            break;
        }
        sim_to_proc(s, &m);
        break;
    case W_TO_CLIENT:
        sim_to_client(s, &m);
        break;
    case W_PROC:
        if (s->proc[h.index].session == h.tag) sim_proc_tick(s, h.index);
        break;
    case W_CHILD:
        if (s->proc[h.index].session == h.tag) sim_child_tick(s, h.index);
        break;
    case W_CLIENT:
        sim_client_tick(s, h.index);
        break;
    case W_COORD_START:
        if (!s->up) start_coordinator(s);
        break;
    case W_PROC_START:
        sim_systemd(s);
        break;
    case W_FAULT:
        if (s->calm) break;
        if (h.index != F_CRASH)
            sim_fault(s, h.index, h.tag);
        else if (s->up)
            crash_coordinator(s);
        break;
    case W_CALM:
        sim_be_calm(s);
        break;
    default:
        break;
    }
}

/* Over: every client has its answers, every run its end, every worker its peace. */
static bool all_over(struct sim *s) {
    if (!s->calm || !s->up) return false;
    for (int i = 0; i < s->n_clients; i++)
        if (!s->client[i].acked || (s->client[i].wants_cancel && !s->client[i].cancel_acked))
            return false;
    if (zt_machine_runs(s->m)) return false;
    for (int i = 0; i < DB_RUNS; i++)
        if (s->db.run[i].used && !zt_run_state_terminal(s->db.run[i].row.state)) return false;
    for (int i = 0; i < zt_machine_workers(s->m); i++) {
        struct zt_worker_view v;
        zt_machine_worker_at(s->m, i, s->now + SEC, &v);
        if (v.state != ZT_WORKER_IDLE) return false;
    }
    return true;
}
static void free_sim(struct sim *s) {
    while (s->row_first) {
        struct row *w = s->row_first;
        s->row_first = w->next;
        free(w);
    }
    zt_machine_free(s->m);
    zt_effects_free(&s->fx);
    free(s->heap);
    free(s->slots);
    free(s->free_slots);
    free(s->requests);
    free(s->held);
    free(s->group);
    free(s);
}
void sim_run(uint64_t seed, enum sim_talk talk, struct sim_result *out) {
    struct sim *s = calloc(1, sizeof *s);
    ZT_ASSERT(s);
    s->seed = seed;
    s->rng = seed * 0x9e3779b97f4a7c15u + 1;
    s->hash = 0xcbf29ce484222325u;
    s->talk = talk;
    s->cap_groups = 512;
    s->group = calloc((size_t)s->cap_groups, sizeof *s->group);
    ZT_ASSERT(s->group);
    sim_plan(s);
    start_coordinator(s);
    int64_t checked = 0;
    bool over = false;
    while (!s->broken[0] && !over && s->n_heap) {
        struct happening h = pop(s);
        s->now = h.at;
        if (s->now > s->end_at)
            sim_break(s, "not over %lld s after the last fault",
                      (long long)((s->end_at - s->calm_at) / SEC));
        else
            happen(s, h);
        if (s->calm && s->now - checked > SEC) {
            checked = s->now;
            over = all_over(s);
        }
    }
    if (!s->broken[0]) sim_check_end(s);
    *out =
        (struct sim_result){.event = s->n_events, .hash = s->hash, .seconds = (double)s->now / 1e9};
    snprintf(out->broken, sizeof out->broken, "%s", s->broken);
    memcpy(out->counters, s->counters, sizeof out->counters);
    if (talk != SIM_QUIET && s->broken[0]) {
        for (int i = talk == SIM_TRACE ? s->n_log
                     : s->n_log > 50   ? s->n_log - 50
                                       : 0;
             i < s->n_log; i++)
            printf("%s\n", s->log[i % 50]);
        for (int i = 0; s->m && i < zt_machine_workers(s->m); i++) {
            struct zt_worker_view v;
            zt_machine_worker_at(s->m, i, s->now + SEC, &v);
            printf("worker %s: %s, run %s rank %d, last beat %.1f s ago\n", v.worker_id,
                   zt_worker_state_name(v.state), v.run_id, v.rank, v.beat_age_seconds);
        }
        for (int i = 0; s->m && i < zt_machine_runs(s->m); i++) {
            struct zt_run_view v;
            zt_machine_run_at(s->m, i, &v);
            printf("run %s %s: %s g%u step %lld: %s\n", v.run_id, v.name,
                   zt_run_state_name(v.state), v.generation, (long long)v.step, v.detail);
        }
    }
    free_sim(s);
}
