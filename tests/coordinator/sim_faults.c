/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim_faults.c: what goes wrong and when, the clients, and what must be true at
 * the end. */
#include "tests/coordinator/sim_internal.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------ the plan of one
 * seed */
static void plan_client(struct sim *s, int i, int64_t latest) {
    struct client *c = &s->client[i];
    *c = (struct client){.used = true, .next_at = sim_range(s, 0, latest)};
    snprintf(c->name, sizeof c->name, "job%d", i);
    for (int k = 0; k < 16; k++) {
        c->key[k] = (uint8_t)sim_range(s, 0, 255);
        c->cancel_key[k] = (uint8_t)sim_range(s, 0, 255);
    }
    int tensor = s->n_ids >= 2 && sim_chance(s, 25) ? 2 : 1;
    int groups = (int)sim_range(s, 1, s->n_ids / tensor);
    c->c = (struct zt_run_config){.priority = (int)sim_range(s, 0, 3),
                                  .workers = sim_chance(s, 20) ? 0 : groups * tensor,
                                  .replicate = -1,
                                  .shard = sim_chance(s, 50) ? -1 : 1,
                                  .tensor = tensor,
                                  .fill_shard = true,
                                  .steps = sim_range(s, 3, MAX_STEPS),
                                  .max_restarts = (int)sim_range(s, 0, 3),
                                  .backoff_initial = 0.5,
                                  .backoff_max = 4,
                                  .start = 30,
                                  .first_step = 20,
                                  .term_grace = 1,
                                  .comm_init = 20};
    memset(c->c.allowed, 0xff, sizeof c->c.allowed);
    if (c->c.workers == 0 && sim_chance(s, 60)) c->c.elastic = true;
    if (sim_chance(s, 65)) {
        c->c.saves = true;
        c->c.on_preempt = sim_chance(s, 70);
        c->interval = sim_range(s, 2, 20);
        c->c.keep_latest_k = sim_chance(s, 20) ? 0 : sim_range(s, 2, 3);
        c->c.keep_every = sim_chance(s, 30) ? 3 * c->interval : 0;
        c->c.no_progress_limit = sim_chance(s, 20) ? (int)sim_range(s, 2, 4) : 0;
        c->c.term_grace = (double)sim_range(s, 1, 4);
    }
    c->wants_source = i > 0 && !s->gentle && sim_chance(s, 30);
    c->step_ns = (uint64_t)sim_range(s, 40, 300) * (uint64_t)MS;
    if (s->gentle) return;
    if (sim_chance(s, 15)) {
        c->wants_cancel = true;
        c->cancel_at = sim_range(s, 0, s->calm_at);
    }
    if (sim_chance(s, 8)) {
        c->poison_step = (int)sim_range(s, 1, c->c.steps);
        c->poison_reason = sim_chance(s, 60) ? ZT_REASON_EXIT_NONZERO : ZT_REASON_OOM_DEVICE;
    }
}
void sim_plan(struct sim *s) {
    s->gentle = s->seed % 8 == 0; /* nothing that may cost a generation */
    s->n_ids = (int)sim_range(s, 2, 8);
    s->n_clients = (int)sim_range(s, 1, s->gentle ? 2 : MAX_CLIENTS);
    s->calm_at = sim_range(s, 8, 120) * SEC;
    s->end_at = s->calm_at + 900 * SEC;
    s->delay_ms = sim_chance(s, 50) ? sim_range(s, 1, 20) : sim_range(s, 20, s->gentle ? 60 : 400);
    s->loss = s->gentle || sim_chance(s, 40) ? 0 : (int)sim_range(s, 1, 10);
    s->twice = sim_chance(s, 40) ? 0 : (int)sim_range(s, 1, 10);
    s->disk_ms = sim_range(s, 2, 150);
    for (int i = 0; i < s->n_clients; i++) {
        plan_client(s, i, s->gentle ? SEC : s->calm_at);
        sim_at(s, s->client[i].next_at, W_CLIENT, i, 0);
    }
    for (int i = 0; i < s->n_ids; i++) sim_start_proc(s, i);
    for (int64_t n = sim_range(s, 0, 40); n > 0; n--)
        sim_at(s, sim_range(s, SEC, s->calm_at), W_FAULT, F_ANY, sim_random(s));
    sim_at(s, SEC, W_PROC_START, 0, 0);
    sim_at(s, s->calm_at, W_CALM, 0, 0);
}

/* ------------------------------------------------------------------------------ faults */
static void crash(struct sim *s, int64_t most_ms) {
    s->counters[SIM_CRASHES]++;
    sim_log(s, "FAULT the coordinator is killed");
    sim_at(s, s->now, W_FAULT, F_CRASH, 0);
    sim_at(s, s->now + sim_range(s, 100, most_ms) * MS, W_COORD_START, 0, 0);
}
static void pause_coordinator(struct sim *s) {
    s->counters[SIM_PAUSES]++;
    int64_t until = s->now + sim_range(s, 1, 30) * SEC;
    if (until > s->paused_until) s->paused_until = until; /* one that is under way is not cut short by another */
    sim_log(s, "FAULT the coordinator is stopped until %.3f", (double)s->paused_until / 1e9);
}
/* Every run is beyond forming, on the disk and in memory: then a restart must cost nothing. */
static bool settled(struct sim *s) {
    if (!s->up || s->now < s->paused_until) return false;
    for (int i = 0; i < zt_machine_runs(s->m); i++) {
        struct zt_run_view v;
        zt_machine_run_at(s->m, i, &v);
        const struct db_run *r = sim_db_run(s, v.run_id);
        bool memory = v.state == ZT_RUN_RUNNING || v.state == ZT_RUN_COMPLETING ||
                      v.state == ZT_RUN_RECOVERING || v.state == ZT_RUN_SUCCEEDED;
        if (!memory || !r || r->row.state < ZT_RUN_RUNNING || r->row.state == ZT_RUN_STOPPING)
            return false;
    }
    for (int i = 0; i < s->n_clients; i++)
        if (!s->client[i].acked) return false;
    return true;
}
static void gentle_fault(struct sim *s, uint64_t tag) {
    int p = sim_pick_proc(s, false);
    if (!settled(s)) return;
    if (tag % 3 == 0)
        crash(s, 4000);
    else if (tag % 3 == 1)
        pause_coordinator(s);
    else if (p >= 0) {
        s->counters[SIM_CUTS]++;
        s->proc[p].cut_until = s->now + sim_range(s, 200, 2000) * MS;
    }
}
static void fault_in_trainer(struct sim *s, uint64_t kind) {
    int p = sim_pick_proc(s, true);
    if (p < 0 || s->proc[p].child.exiting) return;
    const struct db_run *r = sim_db_run(s, s->proc[p].child.at.run_id);
    switch (kind) {
    case 0:
        s->counters[SIM_KILLS]++;
        sim_kill_child(s, p, 0, 9, MS);
        break;
    case 1: /* a crash: the supervisor may say so first */
        if (sim_chance(s, 60)) sim_report_failure(s, p, ZT_REASON_SIGNAL, -1);
        sim_kill_child(s, p, 0, 11, MS);
        break;
    case 2:
        s->counters[SIM_STOPS]++;
        s->proc[p].child.stopped = true;
        sim_at(s, s->now + sim_range(s, 1, 40) * SEC, W_FAULT, F_CONTINUE, (uint64_t)p);
        break;
    default:
        if (!sim_chance(s, 15)) break;
        sim_report_failure(s, p, ZT_REASON_NAN_LOSS, -1);
        sim_kill_child(s, p, 1, 0, MS);
        for (int i = 0; r && i < s->n_clients; i++)
            if (!strcmp(r->row.name, s->client[i].name)) s->client[i].poisoned = true;
        break;
    }
    sim_log(s, "FAULT trainer of proc %d, kind %d", p, (int)kind);
}
void sim_fault(struct sim *s, int index, uint64_t tag) {
    if (index == F_CONTINUE) {
        s->proc[tag].child.stopped = false;
        return;
    }
    if (s->gentle) {
        gentle_fault(s, tag);
        return;
    }
    int p = sim_pick_proc(s, false);
    if (p < 0) return;
    struct proc *w = &s->proc[p];
    int64_t some = sim_range(s, 200, 15000) * MS;
    if (sim_chance(s, 12)) sim_damage(s);
    if (sim_chance(s, 40)) sim_user(s);
    switch (tag % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        fault_in_trainer(s, tag % 16 == 4 ? 0 : tag % 16);
        break;
    case 5:
    case 6:
        s->counters[SIM_KILLS]++;
        sim_kill_proc(s, p);
        break;
    case 7:
    case 8:
        s->counters[SIM_CUTS]++;
        w->cut_until = s->now + some;
        sim_log(s, "FAULT proc %d is cut off until %.3f", p, (double)w->cut_until / 1e9);
        break;
    case 9:
        s->counters[SIM_STOPS]++;
        w->stopped = true;
        w->resume_at = s->now + some;
        sim_log(s, "FAULT proc %d is stopped until %.3f", p, (double)w->resume_at / 1e9);
        break;
    case 10:
    case 11:
        if (s->up) crash(s, 15000);
        break;
    case 12:
        pause_coordinator(s);
        break;
    case 13:
        s->counters[SIM_DISK_FULL]++;
        s->disk_bad_until = s->now + some / 2;
        break;
    case 14:
        w->draining = true;
        w->exit_at = s->now + SEC;
        sim_log(s, "FAULT proc %d drains", p);
        break;
    default:
        sim_log(s, "FAULT a second process takes the name of proc %d", p);
        sim_start_proc(s, w->worker);
        break;
    }
    if (sim_chance(s, 10))
        s->wall_jump =
            sim_range(s, -300000, 300000) * 1000; /* the wall clock is nobody's business */
}
/* A worker whose process has been gone for 20 s must be known as lost, and no run may still count
 * on it. */
static void check_noticed(struct sim *s, int id) {
    if (!s->up || s->now - s->undisturbed < 30 * SEC) return;
    char name[40];
    snprintf(name, sizeof name, "h%d/w%d", id / 3, id);
    for (int i = 0; i < zt_machine_workers(s->m); i++) {
        struct zt_worker_view v;
        zt_machine_worker_at(s->m, i, s->now + SEC, &v);
        if (strcmp(v.worker_id, name) == 0 && !(v.flags & ZT_WF_LOST))
            sim_break(s, "worker %s has been dead for 20 s and is %s", name,
                      zt_worker_state_name(v.state));
    }
}
void sim_systemd(struct sim *s) {
    sim_at(s, s->now + SEC / 2, W_PROC_START, 0, 0);
    if (!s->up || s->now < s->paused_until) s->undisturbed = s->now;
    for (int i = 0; i < s->n_ids; i++) {
        bool there = false;
        for (int p = 0; p < s->n_procs; p++) there |= s->proc[p].alive && s->proc[p].worker == i;
        if (there) {
            s->gone_at[i] = 0;
            continue;
        }
        if (!s->gone_at[i]) { /* most come back soon, some hosts are away for a while */
            s->gone_at[i] = s->now;
            s->away_until[i] = s->now + (sim_chance(s, 30) ? sim_range(s, 20, 60) * SEC
                                                           : sim_range(s, 0, 3) * SEC);
        }
        if (s->now - s->gone_at[i] > 20 * SEC) check_noticed(s, i);
        if (s->now < s->away_until[i]) continue;
        s->gone_at[i] = 0;
        sim_start_proc(s, i);
    }
}
void sim_be_calm(struct sim *s) {
    sim_log(s, "no more faults");
    s->calm = true;
    s->disk_bad_until = 0;
    for (int p = 0; p < s->n_procs; p++) {
        struct proc *w = &s->proc[p];
        w->cut_until = 0;
        if (w->stopped) w->resume_at = s->now;
        w->child.stopped = false;
        if (w->alive) sim_at(s, s->now, W_PROC, p, w->session);
    }
    sim_at(s, s->now + SEC, W_COORD_START, 0, 0);
}

/* ------------------------------------------------------------------------------ clients */
void sim_client_tick(struct sim *s, int i) {
    struct client *c = &s->client[i];
    struct msg m = {.proc = -1, .client = i, .id = 1};
    bool cancel = c->acked && c->wants_cancel && !c->cancel_acked && s->now >= c->cancel_at;
    if ((!c->acked || cancel) && s->now >= c->next_at) {
        m.kind = cancel ? ZT_EV_CANCEL : ZT_EV_SUBMIT;
        if (!cancel && c->sent++ == 1) s->counters[SIM_REPEATED_SUBMITS]++;
        c->next_at = s->now + 1500 * MS;
        sim_send(s, W_TO_COORD, &m);
    }
    if (!c->acked || (c->wants_cancel && !c->cancel_acked))
        sim_at(s, s->now + 200 * MS, W_CLIENT, i, 0);
}
void sim_to_client(struct sim *s, const struct msg *m) {
    struct client *c = &s->client[m->client];
    if (m->kind == ZT_EV_CKPT_SET) {
        sim_user_answer(s, m);
        return;
    }
    if (m->code == ZT_EBUSY) { /* tries again; what it begins from is looked up anew */
        if (m->kind == ZT_EV_SUBMIT) c->c.source = (struct zt_run_source){0};
        return;
    }
    if (m->code) {
        sim_break(s, "client %d: request kind %d is refused with %d", m->client, m->kind, m->code);
        return;
    }
    if (m->kind == ZT_EV_SUBMIT) {
        if (c->acked && strcmp(c->run_id, m->run_id))
            sim_break(s, "one submit became two runs: %s and %s", c->run_id, m->run_id);
        snprintf(c->run_id, sizeof c->run_id, "%s", m->run_id);
        c->acked = true;
        return;
    }
    bool over = m->state == ZT_RUN_SUCCEEDED || m->state == ZT_RUN_FAILED;
    if (!c->cancel_acked) c->cancel_was_terminal = over;
    c->cancel_acked = true;
}

/* ------------------------------------------------------------------------------ the end */
void sim_check_end(struct sim *s) {
    for (int i = 0; i < s->n_clients; i++) {
        const struct client *c = &s->client[i];
        const struct db_run *found = NULL;
        for (int k = 0; k < DB_RUNS; k++) {
            const struct db_run *r = &s->db.run[k];
            if (!r->used || strcmp(r->row.name, c->name)) continue;
            if (found)
                sim_break(s, "two runs of one submit: %s and %s", found->row.run_id, r->row.run_id);
            found = r;
        }
        if (!found || strcmp(found->row.run_id, c->run_id)) {
            sim_break(s, "the run of client %d vanished", i);
            continue;
        }
        enum zt_run_state state = found->row.state;
        uint32_t most = (uint32_t)c->c.max_restarts;
        if (c->cancel_acked && !c->cancel_was_terminal && state != ZT_RUN_CANCELLED)
            sim_break(s, "10: cancel of %s was acknowledged, and it ended %s", c->run_id,
                      zt_run_state_name(state));
        if (state == ZT_RUN_CANCELLED && !c->wants_cancel)
            sim_break(s, "%s was cancelled by nobody", c->run_id);
        if (state == ZT_RUN_SUCCEEDED && c->poison_step > (c->c.source.weights_only ? 0 : c->c.source.step))
            sim_break(s, "%s SUCCEEDED beyond a step that always fails", c->run_id);
        bool gave_up = found->row.restarts_counted >= most && found->attempt.counted,
             never = c->poisoned || c->poison_reason == ZT_REASON_OOM_DEVICE;
        bool idle = found->row.reason == ZT_REASON_NO_PROGRESS && c->c.no_progress_limit &&
                    found->row.no_progress >= (uint32_t)c->c.no_progress_limit;
        bool lost = found->row.reason == ZT_REASON_CKPT_CORRUPT && c->damaged;
        s->counters[SIM_NO_PROGRESS] += idle;
        if (state == ZT_RUN_FAILED && !gave_up && !never && !idle && !lost)
            sim_break(s, "%s FAILED for no reason of its own: %s", c->run_id, found->row.detail);
        if (found->counted > most + 1 && !c->c.saves)
            sim_break(s, "%s failed %u times, max_restarts is %u", c->run_id, found->counted, most);
        if (s->gentle && found->row.generation != 1)
            sim_break(s, "%s is at generation %u though nothing happened that may cost one",
                      c->run_id, found->row.generation);
        s->counters[SIM_GAVE_UP] += state == ZT_RUN_FAILED && gave_up;
        s->counters[SIM_KEPT_GENERATION] +=
            s->gentle && s->counters[SIM_CRASHES] + s->counters[SIM_PAUSES] > 0;
        s->counters[SIM_SUCCEEDED] += state == ZT_RUN_SUCCEEDED;
        s->counters[SIM_FAILED] += state == ZT_RUN_FAILED;
        s->counters[SIM_CANCELLED] += state == ZT_RUN_CANCELLED;
    }
}
