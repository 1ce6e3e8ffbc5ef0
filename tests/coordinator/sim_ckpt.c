/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim_ckpt.c: checkpoints in the simulated world: the files on the shared disk, the writer
 * thread of each trainer, the shell's row changes, people who pin and remove, and what must be true: what the
 * database calls committed is complete on the disk, and nothing a run may go on from is removed. */
#include "tests/coordinator/sim_internal.h"

#include <stdio.h>
#include <string.h>

static struct group *group_of(struct sim *s, const struct child *c) { return &s->group[c->group]; }
static struct file *file_of(struct sim *s, const char *run_id, int64_t step) {
    if (step < 1 || step > MAX_STEPS) return NULL;
    for (int i = 0; i < s->n_files; i++)
        if (!strcmp(s->files[i].run_id, run_id)) return &s->files[i].f[step];
    if (s->n_files == DB_RUNS) return NULL;
    memmove(s->files[s->n_files].run_id, run_id, strlen(run_id) + 1); /* both are of s */
    return &s->files[s->n_files++].f[step];
}
static void make_manifest(uint8_t out[32], uint32_t generation, int64_t step) {
    memset(out, 0, 32);
    memcpy(out, &generation, sizeof generation);
    memcpy(out + 8, &step, sizeof step);
    out[31] = 1;
}
static uint32_t generation_in(const uint8_t *manifest) {
    uint32_t g;
    memcpy(&g, manifest, sizeof g);
    return g;
}
int64_t sim_base(const struct db_run *r) {
    bool anew = r->attempt.from == ZT_START_SOURCE && r->row.config.source.weights_only;
    return r->attempt.from == ZT_START_FRESH || anew ? 0 : r->attempt.start_step;
}

/* ---- the writer thread of a trainer */
static void call(struct sim *s, int p, int kind, int64_t step) {
    struct proc *w = &s->proc[p];
    struct child *c = &w->child;
    c->call = (struct call){.on = true, .m = {.kind = kind, .at = c->at, .client = -1, .proc = p, .save = step}};
    c->call.m.id = ++w->next_id;
    c->writer = kind == ZT_EV_RANK_LOADED ? c->writer : WR_CALL;
}
void sim_send_call(struct sim *s, int p) {
    struct proc *w = &s->proc[p];
    struct call *k = &w->child.call;
    if (!w->child.alive || !k->on || s->now < k->at) return;
    if (k->sent && s->now - k->at < (k->m.kind == ZT_EV_GET_SHARDS ? 6 : 1) * SEC) return;
    k->sent = true;
    k->at = s->now;
    k->m.session = w->session;
    sim_send(s, W_TO_COORD, &k->m);
}
static void writer_idle(struct sim *s, struct child *c) {
    c->writer = WR_IDLE;
    c->call.on = false;
    group_of(s, c)->busy[c->at.rank] = false;
}
static void next_removal(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    if (!c->n_remove) {
        writer_idle(s, c);
        return;
    }
    int64_t step = c->remove[--c->n_remove];
    struct file *f = file_of(s, c->at.run_id, step);
    const struct db_run *r = sim_db_run(s, c->at.run_id);
    if (r && r->ckpt[step].state && r->ckpt[step].state != ZT_CKPT_DELETING)
        sim_break(s, "15: the files of step %lld of %s are removed, its row is %s", (long long)step, c->at.run_id,
                  zt_ckpt_state_name(r->ckpt[step].state));
    if (f) f->there = false;
    s->counters[SIM_REMOVED]++;
    call(s, p, ZT_EV_CKPT_REMOVED, step);
}
static void publish(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    struct file *f = file_of(s, c->at.run_id, c->save);
    for (int i = 0; i < c->world; i++)
        if (f->part_generation != c->at.generation || !f->part[i])
            sim_break(s, "14: rank 0 of %s publishes step %lld without the part of rank %d", c->at.run_id, (long long)c->save, i);
    f->there = true;
    f->damaged = false;
    f->generation = c->at.generation;
    call(s, p, ZT_EV_CKPT_COMMIT, c->save);
    c->call.m.last = 0;
    for (int i = 0; i < c->world; i++) c->call.m.last += 100 + i;
    make_manifest(c->call.m.manifest, c->at.generation, c->save);
}
void sim_writer_tick(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    if (c->writer == WR_CALL || c->writer == WR_IDLE || s->now < c->write_at) return;
    if (c->writer == WR_PUBLISH) {
        publish(s, p);
        return;
    }
    struct file *f = file_of(s, c->at.run_id, c->save);
    if (!s->gentle && sim_chance(s, 4)) {
        s->counters[SIM_SAVES_FAILED]++;
        call(s, p, ZT_EV_CKPT_FAILED, c->save);
        return;
    }
    if (f->part_generation < c->at.generation) {
        f->part_generation = c->at.generation;
        memset(f->part, 0, sizeof f->part);
    }
    if (f->part_generation == c->at.generation) f->part[c->at.rank] = true;
    call(s, p, ZT_EV_SHARD_DONE, c->save);
}
void sim_call_answered(struct sim *s, int p, const struct msg *m) {
    struct child *c = &s->proc[p].child;
    if (m->code == ZT_EBUSY && m->kind == ZT_EV_GET_SHARDS) return; /* a doubled one took its place */
    if (m->code == ZT_EBUSY || m->code == ZT_ECONFLICT) { /* tried again */
        c->call.sent = false;
        c->call.at = s->now + 300 * MS;
        return;
    }
    if (m->kind == ZT_EV_RANK_LOADED) {
        c->call.on = false;
        c->loaded = m->code == 0;
        return;
    }
    if (m->code) { /* stale, cancelled, refused: this save is over */
        if (m->code == ZT_EINVAL) sim_break(s, "a call of kind %d about step %lld was refused", m->kind, (long long)m->save);
        writer_idle(s, c);
        return;
    }
    c->call.on = false;
    switch (m->kind) {
    case ZT_EV_SHARD_DONE:
        if (c->at.rank)
            writer_idle(s, c);
        else
            call(s, p, ZT_EV_GET_SHARDS, c->save);
        break;
    case ZT_EV_GET_SHARDS:
        if (m->n_parts != c->world) sim_break(s, "14: rank 0 is told of %d parts of %d", m->n_parts, c->world);
        c->writer = WR_PUBLISH;
        c->write_at = s->now + sim_range(s, 5, 200) * MS;
        break;
    case ZT_EV_CKPT_COMMIT:
        s->counters[SIM_COMMITS]++;
        c->n_remove = m->n_remove;
        memcpy(c->remove, m->remove, sizeof c->remove);
        next_removal(s, p);
        break;
    case ZT_EV_CKPT_REMOVED:
        next_removal(s, p);
        break;
    default:
        writer_idle(s, c);
        break;
    }
}
/* All ranks decide alike: the first of the group to reach the boundary does, by what it then sees of all. */
static void decide(struct sim *s, struct group *g, const struct client *job, int64_t step) {
    if (g->decided >= step) return;
    bool busy = false;
    for (int i = 0; i < g->world; i++) busy |= g->busy[i];
    g->decided = step;
    if (g->stop && !g->stop_step && step < job->c.steps) g->stop_step = step;
    bool must = step == job->c.steps || g->stop_step == step;
    g->saves[step] = must || (step % job->interval == 0 && !busy);
    s->counters[SIM_SAVES] += g->saves[step];
}
bool sim_save(struct sim *s, int p, int64_t step) {
    struct child *c = &s->proc[p].child;
    struct group *g = group_of(s, c);
    const struct client *job = sim_client_of(s, c->at.run_id);
    if (!job->c.saves) return true;
    if (c->boundary < step) { /* this boundary was not handled yet */
        decide(s, g, job, step);
        if (g->saves[step]) {
            if (c->writer != WR_IDLE) return false;
            c->writer = WR_WRITE;
            c->write_at = s->now + sim_range(s, 10, 400) * MS;
            g->busy[c->at.rank] = true;
            c->save = step;
        }
        c->boundary = step;
    }
    bool last = step == job->c.steps || g->stop_step == step;
    if (last && c->writer != WR_IDLE) return false; /* the end waits for the writer */
    if (g->stop_step == step && step < job->c.steps) {
        s->counters[SIM_STOPPED_SAVED]++;
        g->done[c->at.rank] = true; /* its leaving is no loss to the others */
        sim_report_failure(s, p, ZT_REASON_DRAINED, -1);
        sim_kill_child(s, p, 0, 0, 5 * MS);
    }
    return true;
}
void sim_load(struct sim *s, int p) {
    struct child *c = &s->proc[p].child;
    const struct zt_desired *d = &c->from;
    const struct db_run *r = sim_db_run(s, c->at.run_id);
    const char *from = d->from == ZT_START_OWN || !r ? c->at.run_id : r->row.config.source.run_id;
    struct file *f = file_of(s, from, d->start_step);
    bool other = false;
    if (c->call.on) return;
    if (d->from == ZT_START_SOURCE && f && f->there && f->generation != generation_in(d->manifest))
        other = true; /* was found corrupt and saved anew by its own run: not what was asked for */
    else if (!f || !f->there || f->generation != generation_in(d->manifest)) {
        sim_break(s, "16: %s generation %u is to go on from step %lld of %s, which is not on the disk", c->at.run_id, c->at.generation,
                  (long long)d->start_step, from);
        return;
    }
    if (other || f->damaged) {
        s->counters[SIM_CORRUPT]++;
        sim_report_failure(s, p, ZT_REASON_CKPT_CORRUPT, -1);
        sim_kill_child(s, p, 1, 0, 10 * MS);
        return;
    }
    s->counters[SIM_RESUMED]++;
    call(s, p, ZT_EV_RANK_LOADED, c->base);
}

/* ---- the database */
static void check_committed(struct sim *s, const struct db_run *r, const struct zt_row_ckpt *c) {
    const struct file *f = file_of(s, c->run_id, c->step);
    bool full = r->row.config.source.run_id[0] && !r->row.config.source.weights_only;
    if (!f || !f->there || f->generation != generation_in(c->manifest))
        sim_break(s, "14: step %lld of %s is committed, and it is not on the disk", (long long)c->step, c->run_id);
    for (int64_t i = c->step + 1; i <= MAX_STEPS; i++)
        if (r->ckpt[i].state == ZT_CKPT_COMMITTED)
            sim_break(s, "14: step %lld of %s is committed after step %lld", (long long)c->step, c->run_id, (long long)i);
    for (int k = 0; k < r->row.workers; k++)
        for (int64_t i = r->row.config.elastic ? sim_base(r) + 1 : full ? r->row.config.source.step + 1 : 1; i <= c->step; i++)
            if (!r->step_generation[k][i])
                sim_break(s, "14: step %lld of %s is committed, and rank %d has no row of step %lld", (long long)c->step, c->run_id, k,
                          (long long)i);
}
static int others(const struct db_run *r, int64_t step) {
    int n = 0;
    for (int64_t i = 1; i <= MAX_STEPS; i++) n += i != step && r->ckpt[i].state == ZT_CKPT_COMMITTED && r->ckpt[i].verified;
    return n;
}
static void apply_set(struct sim *s, const struct zt_effect *e, struct zt_row_ckpt *c) {
    switch (e->u.ckpt_set.what) {
    case ZT_SET_PIN:
    case ZT_SET_UNPIN:
        c->pinned = e->u.ckpt_set.what == ZT_SET_PIN;
        break;
    case ZT_SET_VERIFIED:
        c->state = ZT_CKPT_COMMITTED;
        c->verified = true;
        break;
    case ZT_SET_CORRUPT:
        c->state = ZT_CKPT_CORRUPT;
        c->verified = false;
        break;
    case ZT_SET_DELETE:
        if (c->state == ZT_CKPT_COMMITTED && !others(sim_db_run(s, c->run_id), c->step))
            sim_break(s, "15: the last verified checkpoint of %s is let go", c->run_id);
        c->state = ZT_CKPT_DELETING;
        break;
    case ZT_SET_DELETED:
        *c = (struct zt_row_ckpt){0};
        break;
    }
}
void sim_apply_ckpt(struct sim *s, const struct zt_effect *e) {
    const char *run_id = e->kind == ZT_FX_ROW_PART ? e->u.part.run_id : e->kind == ZT_FX_CKPT_SET ? e->u.ckpt_set.run_id : e->u.ckpt.run_id;
    int64_t step = e->kind == ZT_FX_ROW_PART ? e->u.part.step : e->kind == ZT_FX_CKPT_SET ? e->u.ckpt_set.step : e->u.ckpt.step;
    struct db_run *r = sim_db_run(s, run_id);
    if (!r || step < 1 || step > MAX_STEPS) {
        sim_break(s, "a checkpoint row of %s step %lld", run_id, (long long)step);
        return;
    }
    struct zt_row_ckpt *c = &r->ckpt[step];
    if (e->kind == ZT_FX_ROW_PART) {
        r->part[step][e->u.part.part.rank] = e->u.part.part;
        return;
    }
    if (e->kind == ZT_FX_CKPT_SET) {
        if (c->state) apply_set(s, e, c);
        return;
    }
    struct zt_row_ckpt was = *c;
    *c = e->kind == ZT_FX_ROW_CKPT ? e->u.ckpt : (struct zt_row_ckpt){0};
    if (c->state != ZT_CKPT_WRITING || c->generation != was.generation || was.state != ZT_CKPT_WRITING)
        for (int i = 0; i < MAX_WORLD; i++) r->part[step][i].rank = -1;
    if (c->state == ZT_CKPT_COMMITTED && was.state != c->state) {
        bool repaired = was.state == ZT_CKPT_CORRUPT && zt_run_state_terminal(r->row.state); /* somebody has verified it since */
        if (!repaired && (was.state != ZT_CKPT_WRITING || was.generation != c->generation))
            sim_break(s, "14: step %lld of %s is committed out of state %s", (long long)step, run_id, zt_ckpt_state_name(was.state));
        if (!repaired) check_committed(s, r, c);
    }
    bool gone = c->state != ZT_CKPT_COMMITTED && c->state != ZT_CKPT_CORRUPT && was.state == ZT_CKPT_COMMITTED;
    if (gone && c->state != ZT_CKPT_DELETING)
        sim_break(s, "14: step %lld of %s was committed and is %s", (long long)step, run_id, zt_ckpt_state_name(c->state));
    if (gone && (was.pinned || !others(r, step)))
        sim_break(s, "15: step %lld of %s is let go: %s", (long long)step, run_id, was.pinned ? "it was pinned" : "it was the last verified one");
}
static const struct zt_row_ckpt *newest(const struct db_run *r) {
    for (int64_t i = MAX_STEPS; i > 0; i--)
        if (r->ckpt[i].state == ZT_CKPT_COMMITTED) return &r->ckpt[i];
    return NULL;
}
void sim_check_files(struct sim *s) {
    for (int i = 0; i < DB_RUNS; i++) {
        const struct db_run *r = &s->db.run[i];
        if (!r->used || s->n_files == 0) continue;
        for (int64_t k = 1; k <= MAX_STEPS; k++) {
            const struct zt_row_ckpt *c = &r->ckpt[k];
            const struct file *f = c->state == ZT_CKPT_COMMITTED ? file_of(s, r->row.run_id, k) : NULL;
            if (c->state == ZT_CKPT_COMMITTED && (!f || !f->there || f->generation != generation_in(c->manifest)))
                sim_break(s, "14: the database says step %lld of %s is committed, and it is not on the disk", (long long)k, r->row.run_id);
        }
        if (zt_run_state_terminal(r->row.state)) continue;
        const struct db_run *from = sim_db_run(s, r->row.config.source.run_id);
        int64_t step = r->row.config.source.step;
        bool needed = !r->row.config.source.weights_only || !r->row.saved_step;
        if (from && needed && !r->row.source_corrupt && (!from->ckpt[step].state || from->ckpt[step].state == ZT_CKPT_DELETING))
            sim_break(s, "15: step %lld of %s, which %s may have to begin from, is let go", (long long)step, from->row.run_id, r->row.run_id);
    }
}
/* A START that leaves now. Said late, to a rank that has ended meanwhile, it starts nothing any more. */
void sim_check_start(struct sim *s, const struct zt_desired *d) {
    const struct db_run *r = sim_db_run(s, d->run_id);
    const struct zt_row_ckpt *best = newest(r);
    if (r->row.state >= ZT_RUN_RUNNING) return;
    if (d->from == ZT_START_OWN) {
        const struct zt_row_ckpt *c = &r->ckpt[d->start_step];
        if ((c->state != ZT_CKPT_COMMITTED && c->state != ZT_CKPT_CORRUPT) || memcmp(c->manifest, d->manifest, sizeof d->manifest))
            sim_break(s, "16: %s is to go on from step %lld, which is %s", d->run_id, (long long)d->start_step, zt_ckpt_state_name(c->state));
        if (best && best->step > d->start_step)
            sim_break(s, "16: %s is to go on from step %lld, step %lld is committed", d->run_id, (long long)d->start_step, (long long)best->step);
    } else if (best || (r->row.saved_step && (d->from == ZT_START_FRESH || d->weights_only))) {
        sim_break(s, "16: %s is to begin anew, and it has saved step %lld", d->run_id, (long long)r->row.saved_step);
    }
}
void sim_check_ckpt_promise(struct sim *s, const struct msg *m) {
    const struct db_run *r = sim_db_run(s, m->at.run_id);
    const struct zt_row_ckpt *c = r && m->save >= 1 && m->save <= MAX_STEPS ? &r->ckpt[m->save] : NULL;
    if (!c) return;
    if (m->kind == ZT_EV_SHARD_DONE && (!c->state || (c->state == ZT_CKPT_WRITING && r->part[m->save][m->at.rank].rank < 0)))
        sim_break(s, "5: the part of rank %d of step %lld acknowledged, and it is not in the database", m->at.rank, (long long)m->save);
    if (m->kind == ZT_EV_CKPT_COMMIT && c->state != ZT_CKPT_COMMITTED && c->state != ZT_CKPT_DELETING && c->state != ZT_CKPT_CORRUPT)
        sim_break(s, "5: the commit of step %lld acknowledged, and it is not in the database", (long long)m->save);
    for (int i = 0; m->kind == ZT_EV_CKPT_COMMIT && i < m->n_remove; i++)
        if (r->ckpt[m->remove[i]].state && r->ckpt[m->remove[i]].state != ZT_CKPT_DELETING)
            sim_break(s, "15: step %lld is to be removed before that is durable", (long long)m->remove[i]);
}

/* ---- people, and what eats disks */
static bool pick(struct sim *s, enum zt_ckpt_state state, char run_id[ZT_RUN_ID_MAX + 1], int64_t *step) {
    int n = 0;
    for (int i = 0; i < DB_RUNS; i++)
        for (int64_t k = 1; k <= MAX_STEPS && s->db.run[i].used; k++)
            if (s->db.run[i].ckpt[k].state == state && sim_range(s, 0, n++) == 0) {
                snprintf(run_id, ZT_RUN_ID_MAX + 1, "%s", s->db.run[i].row.run_id);
                *step = k;
            }
    return n > 0;
}
static void mark_damaged(struct sim *s, const char *run_id) {
    const struct db_run *r = sim_db_run(s, run_id);
    for (int i = 0; r && i < s->n_clients; i++) {
        if (!strcmp(s->client[i].name, r->row.name)) s->client[i].damaged = true;
        if (!strcmp(s->client[i].c.source.run_id, run_id)) s->client[i].damaged = true;
    }
}
void sim_damage(struct sim *s) {
    char run_id[ZT_RUN_ID_MAX + 1];
    int64_t step;
    if (!pick(s, ZT_CKPT_COMMITTED, run_id, &step)) return;
    file_of(s, run_id, step)->damaged = true;
    mark_damaged(s, run_id);
    s->counters[SIM_DAMAGED]++;
    sim_log(s, "FAULT the files of step %lld of %s are damaged", (long long)step, run_id);
}
static void set(struct sim *s, const char *run_id, int64_t step, int what) {
    struct msg m = {.kind = ZT_EV_CKPT_SET, .proc = -1, .client = 0, .id = 1, .save = step, .what = what};
    snprintf(m.at.run_id, sizeof m.at.run_id, "%s", run_id);
    for (int i = 0; i < 16; i++) m.manifest[i] = (uint8_t)sim_range(s, 0, 255); /* the request's key */
    sim_send(s, W_TO_COORD, &m);
}
void sim_user(struct sim *s) {
    static const int what[] = {ZT_SET_PIN, ZT_SET_UNPIN, ZT_SET_VERIFIED, ZT_SET_CORRUPT, ZT_SET_DELETE, ZT_SET_DELETE};
    char run_id[ZT_RUN_ID_MAX + 1];
    int64_t step;
    int w = what[sim_range(s, 0, 5)];
    if (!pick(s, sim_chance(s, 80) ? ZT_CKPT_COMMITTED : ZT_CKPT_FAILED, run_id, &step)) return;
    if (w == ZT_SET_CORRUPT) mark_damaged(s, run_id);
    set(s, run_id, step, w);
}
void sim_user_answer(struct sim *s, const struct msg *m) {
    if (m->code && m->code != ZT_EINVAL && m->code != ZT_ENOTFOUND && m->code != ZT_EBUSY)
        sim_break(s, "a change to a checkpoint is answered %d", m->code);
    s->counters[SIM_SETS]++;
    if (m->code || m->what != ZT_SET_DELETE) return;
    struct file *f = file_of(s, m->at.run_id, m->save);
    const struct db_run *r = sim_db_run(s, m->at.run_id);
    if (r->ckpt[m->save].state && r->ckpt[m->save].state != ZT_CKPT_DELETING && r->ckpt[m->save].state != ZT_CKPT_WRITING)
        sim_break(s, "5: step %lld of %s may be removed, and its row is %s", (long long)m->save, m->at.run_id,
                  zt_ckpt_state_name(r->ckpt[m->save].state));
    if (r->ckpt[m->save].state == ZT_CKPT_DELETING) f->there = false;
    set(s, m->at.run_id, m->save, ZT_SET_DELETED);
}
void sim_find_source(struct sim *s, struct client *c) {
    struct zt_run_source *out = &c->c.source;
    char run_id[ZT_RUN_ID_MAX + 1];
    int64_t step;
    if (!pick(s, ZT_CKPT_COMMITTED, run_id, &step) || step >= c->c.steps) return;
    const struct file *f = file_of(s, run_id, step);
    *out = (struct zt_run_source){.step = step, .weights_only = sim_chance(s, 40)};
    snprintf(out->run_id, sizeof out->run_id, "%s", run_id);
    make_manifest(out->manifest, f->generation, step);
    c->damaged |= f->damaged;
    s->counters[SIM_FROM_OTHERS]++;
}
