/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim_worker.c: model workers: a supervisor and its trainer as level-triggered
 * state machines, as machine.h asks of them, and the physics of a process group: a step ends for
 * nobody while one rank is missing. */
#include "tests/coordinator/sim_internal.h"

#include <stdio.h>
#include <string.h>

static struct group *group_of(struct sim *s, const struct child *c) { return &s->group[c->group]; }

static void post(struct sim *s, int p, struct msg m) {
    struct proc *w = &s->proc[p];
    if (w->n_out == OUTBOX) {
        sim_break(s, "the model worker's outbox is full");
        return;
    }
    m.id = ++w->next_id;
    m.proc = p;
    w->out[w->n_out++] = (struct item){.m = m};
}
static struct msg about_child(const struct child *c, int kind) {
    return (struct msg){.kind = kind, .at = c->at, .client = -1};
}

/* ---- trainer */
static void fence(struct proc *w, const char *run_id, uint32_t generation) {
    for (int i = 0; i < w->n_fence; i++)
        if (!strcmp(w->fence[i].run_id, run_id)) {
            if (generation > w->fence[i].generation) w->fence[i].generation = generation;
            return;
        }
    snprintf(w->fence[w->n_fence].run_id, sizeof w->fence[0].run_id, "%s", run_id);
    w->fence[w->n_fence++].generation = generation;
}
static uint32_t fenced(const struct proc *w, const char *run_id) {
    for (int i = 0; i < w->n_fence; i++)
        if (!strcmp(w->fence[i].run_id, run_id)) return w->fence[i].generation;
    return 0;
}
static int64_t base_of(const struct zt_desired *d) {
    return d->from == ZT_START_FRESH || d->weights_only ? 0 : d->start_step;
}
static int find_group(struct sim *s, const struct zt_desired *d) {
    for (int i = s->n_groups - 1; i >= 0; i--)
        if (same_at(&s->group[i].at, d->run_id, d->generation)) return i;
    s->group[s->n_groups] = (struct group){.world = d->world};
    snprintf(s->group[s->n_groups].at.run_id, sizeof s->group[0].at.run_id, "%s", d->run_id);
    s->group[s->n_groups].at.generation = d->generation;
    for (int i = 0; i < MAX_WORLD; i++) s->group[s->n_groups].step[i] = base_of(d);
    return s->n_groups++;
}
static void spawn(struct sim *s, int p, const struct zt_desired *d) {
    struct proc *w = &s->proc[p];
    if (w->child.alive || d->generation <= fenced(w, d->run_id)) return;
    if (s->n_groups == s->cap_groups) {
        sim_break(s, "too many generations");
        return;
    }
    fence(w, d->run_id, d->generation);
    int g = find_group(s, d);
    if (d->rank < 0 || d->rank >= d->world || d->world > MAX_WORLD || s->group[g].born[d->rank]) {
        sim_break(s, "1: two trainers for rank %d of %s generation %u", d->rank, d->run_id,
                  d->generation);
        return;
    }
    s->group[g].born[d->rank] = true;
    w->child = (struct child){.alive = true,
                              .group = g,
                              .world = d->world,
                              .phase = ZT_TP_STARTING,
                              .progress_at = s->now,
                              .ready_at = s->now + sim_range(s, 20, 400) * MS,
                              .next_at = s->now,
                              .base = base_of(d),
                              .step = base_of(d),
                              .reported = base_of(d),
                              .needs_load = d->from != ZT_START_FRESH,
                              .from = *d};
    w->child.at = s->group[g].at;
    w->child.at.rank = d->rank;
    sim_log(s, "  proc %d spawns %s g%u rank %d", p, d->run_id, d->generation, d->rank);
    sim_at(s, s->now + sim_range(s, 1, 50) * MS, W_CHILD, p, w->session);
}
void sim_kill_child(struct sim *s, int p, int exit_code, int signal, int64_t delay) {
    struct child *c = &s->proc[p].child;
    if (!c->alive || c->exiting) return;
    c->exiting = true;
    c->exit_code = exit_code;
    c->signal = signal;
    c->exit_at = s->now + delay;
}
void sim_report_failure(struct sim *s, int p, int reason, int peer) {
    struct msg m = about_child(&s->proc[p].child, ZT_EV_FAILURE);
    m.reason = reason;
    m.peer = peer;
    m.step = s->proc[p].child.step;
    m.exit_code = -1;
    post(s, p, m);
}
static void flush_steps(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    if (c->reported >= c->step) return;
    struct msg m = about_child(c, ZT_EV_STEPS);
    m.first = c->reported + 1;
    m.last = c->step;
    c->reported = c->step;
    post(s, p, m);
}
static void child_gone(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    struct child *c = &w->child;
    struct group *g = group_of(s, c);
    flush_steps(s, p);
    if (!g->done[c->at.rank]) g->dead[c->at.rank] = true;
    c->alive = false;
    struct msg m = about_child(c, ZT_EV_CHILD_EXITED);
    m.exit_code = c->signal ? -1 : c->exit_code;
    m.signal = c->signal;
    post(s, p, m);
    sim_log(s, "  proc %d: trainer of %s g%u rank %d exits (%d, signal %d)", p, c->at.run_id,
            c->at.generation, c->at.rank, c->exit_code, c->signal);
}
const struct client *sim_client_of(struct sim *s, const char *run_id) {
    for (int i = 0; i < s->n_clients; i++) {
        const struct db_run *r = sim_db_run(s, run_id);
        if (r && !strcmp(r->row.name, s->client[i].name)) return &s->client[i];
    }
    return &s->client[0];
}
static void form(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    struct child *c = &w->child;
    struct group *g = group_of(s, c);
    if (c->phase == ZT_TP_READY && !c->comm && s->now >= c->ask_at && w->registered) {
        struct msg m = about_child(c, c->at.rank == 0 ? ZT_EV_COMM_PUT : ZT_EV_COMM_GET);
        m.id = ++w->next_id;
        m.proc = p;
        m.session = w->session;
        m.comm = ++s->comm_ids; /* a retry mints another one: the stored one counts */
        c->ask_at = s->now + 700 * MS;
        sim_send(s, W_TO_COORD, &m);
    }
    if (c->phase == ZT_TP_READY && c->comm) {
        if (g->comm && g->comm != c->comm)
            sim_break(s, "11: two communicator ids in %s generation %u", c->at.run_id,
                      c->at.generation);
        g->comm = c->comm;
        c->phase = ZT_TP_IN_COMM;
        c->progress_at = s->now;
        g->in_comm[c->at.rank] = true;
        struct msg m = about_child(c, ZT_EV_RANK_IN_COMM);
        m.id = ++w->next_id;
        m.proc = p;
        m.session = w->session;
        if (w->registered) sim_send(s, W_TO_COORD, &m);
    }
    for (int i = 0; i < c->world; i++)
        if (!g->in_comm[i]) return;
    c->phase = c->phase == ZT_TP_IN_COMM ? ZT_TP_RUNNING : c->phase;
    c->next_at = s->now;
}
static void done(struct sim *s, int p);
static void step(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    struct group *g = group_of(s, c);
    const struct client *job = sim_client_of(s, c->at.run_id);
    if (c->needs_load && !c->loaded) {
        sim_load(s, p);
        return;
    }
    if (c->step > c->base && !sim_save(s, p, c->step)) return;
    if (c->exiting) return;
    if (c->step >= job->c.steps) {
        done(s, p);
        return;
    }
    for (int i = 0; i < c->world; i++)
        if (g->step[i] < c->step) return; /* waits for the others in a collective */
    if (s->now < c->next_at) return;
    int64_t next = c->step + 1;
    if (job->poison_step == next && c->at.rank == c->world - 1) {
        sim_report_failure(s, p, job->poison_reason, -1);
        sim_kill_child(s, p, 1, 0, 10 * MS);
        return;
    }
    c->step = g->step[c->at.rank] = next;
    c->progress_at = s->now;
    c->next_at = s->now + (int64_t)job->step_ns + sim_range(s, 0, 20) * MS;
    if (next % 3 == c->at.rank % 3) flush_steps(s, p);
    if (next == job->c.steps) flush_steps(s, p);
}
static void done(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    struct group *g = group_of(s, c);
    const struct client *job = sim_client_of(s, c->at.run_id);
    int64_t next = c->step;
    c->phase = ZT_TP_DONE;
    g->done[c->at.rank] = true;
    struct msg m = about_child(c, ZT_EV_RANK_DONE);
    m.step = next;
    snprintf(m.hash, sizeof m.hash, "h%s", job->name);
    post(s, p, m);
    sim_kill_child(s, p, 0, 0, sim_range(s, 5, 300) * MS);
}
static bool job_saves(struct sim *s, const struct child *c) { return sim_client_of(s, c->at.run_id)->c.saves; }
void sim_child_tick(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    struct child *c = &w->child;
    if (!w->alive || !c->alive) return;
    sim_at(s, s->now + sim_range(s, 20, 60) * MS, W_CHILD, p, w->session);
    if (c->exiting && s->now >= c->exit_at && !w->stopped) {
        child_gone(s, p);
        return;
    }
    if (c->exiting || c->stopped || (w->stopped && c->phase < ZT_TP_RUNNING)) return;
    struct group *g = group_of(s, c);
    if (c->phase == ZT_TP_STARTING && s->now >= c->ready_at) {
        c->phase = ZT_TP_READY;
        c->progress_at = s->now;
        struct msg m = about_child(c, ZT_EV_RANK_READY);
        m.id = ++w->next_id;
        m.proc = p;
        m.session = w->session;
        if (w->registered) sim_send(s, W_TO_COORD, &m);
    }
    if (c->phase == ZT_TP_READY || c->phase == ZT_TP_IN_COMM) form(s, p);
    for (int i = 0; i < c->world && c->phase >= ZT_TP_IN_COMM && c->phase < ZT_TP_DONE; i++) {
        if (!g->dead[i]) continue;
        sim_report_failure(s, p, ZT_REASON_PEER_LOST, i);
        sim_kill_child(s, p, 1, 0, sim_range(s, 1, 200) * MS);
        return;
    }
    sim_writer_tick(s, p);
    if (w->draining && job_saves(s, c)) g->stop = true;
    if (c->phase == ZT_TP_RUNNING) step(s, p);
}

/* ---- supervisor */
int sim_start_proc(struct sim *s, int worker) {
    if (s->n_procs == MAX_PROCS) {
        sim_break(s, "too many processes");
        return -1;
    }
    int p = s->n_procs++;
    struct proc *w = &s->proc[p];
    *w = (struct proc){.used = true, .alive = true, .worker = worker, .connect_at = s->now};
    for (int i = 0; i < 16; i += 8) {
        uint64_t r = sim_random(s);
        memcpy(w->incarnation.bytes + i, &r, 8);
    }
    w->session = ++s->sessions;
    sim_at(s, s->now, W_PROC, p, w->session);
    return p;
}
static void tell_closed(struct sim *s, int p) {
    struct msg m = {
        .kind = ZT_EV_DISCONNECTED, .proc = p, .session = s->proc[p].session, .client = -1};
    sim_send(s, W_TO_COORD, &m);
}
void sim_kill_proc(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    if (!w->alive) return;
    sim_log(s, "  proc %d (w%d) dies", p, w->worker);
    if (w->child.alive) {
        struct group *g = group_of(s, &w->child);
        if (!g->done[w->child.at.rank]) g->dead[w->child.at.rank] = true;
        w->child.alive = false;
    }
    if (w->connected) tell_closed(s, p);
    w->alive = w->connected = w->registered = false;
}
static void hang_up(struct sim *s, int p, int64_t wait_ms) {
    struct proc *w = &s->proc[p];
    if (w->connected) tell_closed(s, p);
    w->connected = w->registered = false;
    w->connect_at = s->now + wait_ms * MS;
    w->child.call.sent = false;
    for (int i = 0; i < w->n_out; i++)
        if (w->out[i].state == 1) w->out[i].state = 0;
}
static void name_child(const struct proc *w, struct msg *m) {
    m->phase = ZT_TP_NONE;
    m->step = m->age_ms = -1;
    if (w->child.alive) {
        m->at = w->child.at;
        m->phase = w->child.phase;
        m->step = w->child.step;
        return;
    }
    for (int i = 0; i < w->n_out; i++) /* gone, and its exit not acknowledged yet */
        if (w->out[i].m.kind == ZT_EV_CHILD_EXITED && w->out[i].state != 2) {
            m->at = w->out[i].m.at;
            m->phase = ZT_TP_EXITED;
        }
}
static void connect_session(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    w->session = ++s->sessions;
    w->life = s->life;
    w->connected = true;
    w->registered = false;
    w->heard_at = s->now;
    struct msg m = {.kind = ZT_EV_REGISTER,
                    .proc = p,
                    .session = w->session,
                    .client = -1,
                    .draining = w->draining};
    name_child(w, &m);
    m.id = w->register_id = ++w->next_id;
    sim_at(s, s->now + sim_range(s, 20, 60) * MS, W_PROC, p,
           w->session); /* timers follow the session */
    if (w->child.alive) sim_at(s, s->now + 1, W_CHILD, p, w->session);
    sim_send(s, W_TO_COORD, &m);
}
static void beat(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    struct msg m = {.kind = ZT_EV_BEAT,
                    .proc = p,
                    .session = w->session,
                    .client = -1,
                    .draining = w->draining,
                    .seq = ++w->seq};
    name_child(w, &m);
    if (w->child.alive) m.age_ms = (s->now - w->child.progress_at) / MS;
    m.id = ++w->next_id;
    w->next_beat = s->now + SEC;
    sim_send(s, W_TO_COORD, &m);
}
static void send_outbox(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    int n = 0;
    while (n < w->n_out && w->out[n].state == 2) n++;
    memmove(w->out, w->out + n, sizeof *w->out * (size_t)(w->n_out - n));
    w->n_out -= n;
    for (int i = 0; i < w->n_out && i < 3;
         i++) { /* up to three step reports on the way, and
                          "done" may overtake them; all else one by one */
        struct item *o = &w->out[i];
        bool early = o->m.kind == ZT_EV_STEPS || o->m.kind == ZT_EV_RANK_DONE;
        if (i > 0 && (!early || w->out[i - 1].m.kind != ZT_EV_STEPS)) break;
        if (o->state == 2 || (o->state == 1 && s->now - o->at < SEC) ||
            (o->state == 0 && s->now < o->at))
            continue;
        o->state = 1;
        o->at = s->now;
        o->m.session = w->session;
        sim_send(s, W_TO_COORD, &o->m);
    }
}
void sim_proc_tick(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    if (!w->alive) return;
    if (w->stopped && s->now < w->resume_at) {
        sim_at(s, w->resume_at, W_PROC, p, w->session);
        return;
    }
    w->stopped = false;
    if (w->doomed || (w->draining && !w->child.alive && w->n_out == 0 && s->now >= w->exit_at)) {
        sim_kill_proc(s, p);
        return;
    }
    if (!w->connected && s->now >= w->connect_at) {
        connect_session(s, p);
        return; /* the new session has its own timer */
    }
    bool reset = w->connected && w->life != s->life &&
                 s->now >= w->cut_until; /* the coordinator's process is another one */
    if (reset) hang_up(s, p, sim_range(s, 100, 1000));
    int64_t patience = w->registered ? 4 * SEC : 1500 * MS;
    if (w->connected && s->now - w->heard_at > patience) hang_up(s, p, sim_range(s, 100, 1000));
    if (w->registered && s->now >= w->next_beat) beat(s, p);
    if (w->registered) send_outbox(s, p);
    if (w->registered) sim_send_call(s, p);
    sim_at(s, s->now + sim_range(s, 30, 90) * MS, W_PROC, p, w->session);
}
static void obey(struct sim *s, int p, const struct zt_desired *d) {
    struct proc *w = &s->proc[p];
    struct child *c = &w->child;
    if (d->action == ZT_DESIRED_EXIT) {
        if (!c->alive)
            w->doomed = true;
        else
            sim_kill_child(s, p, 0, 9, sim_range(s, 5, 100) * MS);
    } else if (d->action == ZT_DESIRED_START) {
        spawn(s, p, d);
    } else if (d->action == ZT_DESIRED_ABORT) {
        fence(w, d->run_id, d->generation);
        if (c->alive && same_at(&c->at, d->run_id, d->generation)) {
            c->stopped = false; /* SIGKILL works on a stopped process */
            int64_t stuck =
                !s->calm && sim_chance(s, 2) ? 60 * SEC : 0; /* now and then one does not die */
            sim_kill_child(s, p, 0, 9, stuck + sim_range(s, 5, 150) * MS);
            return;
        }
        for (int i = 0; i < w->n_out; i++)
            if (w->out[i].m.kind == ZT_EV_CHILD_EXITED && w->out[i].state != 2 &&
                same_at(&w->out[i].m.at, d->run_id, d->generation))
                return;
        struct msg m = {.kind = ZT_EV_CHILD_EXITED, .client = -1, .exit_code = -1};
        snprintf(m.at.run_id, sizeof m.at.run_id, "%s", d->run_id);
        m.at.generation = d->generation;
        m.at.rank = d->rank;
        post(s, p, m);
    }
}
static void answer_to_item(struct sim *s, int p, const struct msg *m) {
    struct proc *w = &s->proc[p];
    for (int i = 0; i < w->n_out; i++) {
        struct item *o = &w->out[i];
        if (o->m.id != m->id || o->state == 2) continue;
        if (m->code == 0 || m->code == ZT_CODE_STALE) {
            o->state = 2;
            if (m->code) s->counters[SIM_STALE]++;
        } else {
            if (m->code == ZT_EBUSY) s->counters[SIM_GAPS]++;
            o->state = 0;
            o->at = s->now + 200 * MS;
        }
    }
}
void sim_to_proc(struct sim *s, const struct msg *m) {
    struct proc *w = &s->proc[m->proc];
    if (!w->alive || w->session != m->session || !w->connected) return;
    w->heard_at = s->now;
    if (m->code == ZT_CODE_SUPERSEDED) {
        s->counters[SIM_SUPERSEDED]++;
        w->doomed = true;
        return;
    }
    if (m->kind == ZT_EV_REGISTER && m->id == w->register_id && m->code == 0) {
        w->registered = true;
        w->next_beat = s->now;
    }
    if (m->kind == ZT_EV_BEAT && m->code) hang_up(s, m->proc, 100);
    if ((m->kind == ZT_EV_COMM_PUT || m->kind == ZT_EV_COMM_GET) && m->code == 0 &&
        w->child.alive && same_at(&w->child.at, m->at.run_id, m->at.generation) && !w->child.comm)
        w->child.comm = m->comm;
    if (m->id) answer_to_item(s, m->proc, m);
    if (m->id && w->child.alive && w->child.call.on && w->child.call.m.id == m->id) sim_call_answered(s, m->proc, m);
    if (m->has_desired) obey(s, m->proc, &m->desired);
}
int sim_pick_proc(struct sim *s, bool with_child) {
    int n = 0, found = -1;
    for (int p = 0; p < s->n_procs; p++) {
        if (!s->proc[p].alive || (with_child && !s->proc[p].child.alive)) continue;
        if (sim_range(s, 0, n++) == 0) found = p;
    }
    return found;
}
