/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_ckpt.c: checkpoints: the parts of a save, the commit that makes it count, what is
 * let go after it, and what a generation begins from. The numbered invariants are at the top of
 * machine.c. Ownership and thread rule: machine.h.
 *
 *   (none) --SHARD_DONE--> WRITING --CKPT_COMMIT--> COMMITTED --retention, a user--> DELETING --CKPT_REMOVED--> (none)
 *                             |                        |
 *          CKPT_FAILED, or its generation ended        | its bytes are not what was written
 *                             v                        v
 *                          FAILED                   CORRUPT       both are saved anew, or removed by a user */
#include "coordinator/machine_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/hash128.h"
#include "core/units.h"

const char *zt_ckpt_state_name(enum zt_ckpt_state s) {
    static const char *const names[] = {"UNKNOWN", "WRITING", "COMMITTED", "CORRUPT", "DELETING", "FAILED"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : names[0];
}

/* ------------------------------------------------------------------------------ the table of a run */
struct mc_ckpt *mc_ckpt_find(const struct mc_run *r, int64_t step) {
    int lo = 0, hi = r->n_ckpts;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (r->ckpts[mid].row.step < step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n_ckpts && r->ckpts[lo].row.step == step ? &r->ckpts[lo] : NULL;
}
/* The entry of a step, a new one in its place; NULL when memory is short, with nothing changed. */
static struct mc_ckpt *place(struct mc_run *r, int64_t step) {
    struct mc_ckpt *c = mc_ckpt_find(r, step);
    if (c) return c;
    if (r->n_ckpts == r->cap_ckpts) {
        int cap = r->cap_ckpts ? 2 * r->cap_ckpts : 8;
        struct mc_ckpt *more = realloc(r->ckpts, sizeof *more * (size_t)cap);
        if (!more) return NULL;
        r->ckpts = more;
        r->cap_ckpts = cap;
    }
    int at = r->n_ckpts++;
    for (; at > 0 && r->ckpts[at - 1].row.step > step; at--) r->ckpts[at] = r->ckpts[at - 1];
    c = &r->ckpts[at];
    *c = (struct mc_ckpt){.row = {.step = step}};
    mc_copy(c->row.run_id, sizeof c->row.run_id, r->row.run_id);
    return c;
}
void mc_ckpt_put(struct zt_machine *m, struct mc_run *r, const struct mc_ckpt *c) {
    struct zt_effect *e = mc_emit_row(m, ZT_FX_ROW_CKPT);
    e->u.ckpt = c->row;
    r->ckpt_txn = e->txn;
}
static void forget_parts(struct mc_ckpt *c) {
    free(c->parts);
    c->parts = NULL;
    c->n_in = 0;
}
void mc_ckpt_drop(struct zt_machine *m, struct mc_run *r, struct mc_ckpt *c) {
    struct zt_effect *e = mc_emit_row(m, ZT_FX_ROW_CKPT_GONE);
    e->u.ckpt = c->row;
    r->ckpt_txn = e->txn;
    forget_parts(c);
    int at = (int)(c - r->ckpts);
    r->n_ckpts--;
    memmove(c, c + 1, sizeof *c * (size_t)(r->n_ckpts - at));
}
void mc_ckpt_free(struct mc_run *r) {
    for (int i = 0; i < r->n_ckpts; i++) free(r->ckpts[i].parts);
    free(r->ckpts);
    r->ckpts = NULL;
    r->n_ckpts = r->cap_ckpts = 0;
}
static struct mc_ckpt *newest_committed(const struct mc_run *r) {
    for (int i = r->n_ckpts - 1; i >= 0; i--)
        if (r->ckpts[i].row.state == ZT_CKPT_COMMITTED ||
            (MC_PLANTED(MC_PLANT_RESUME_WRITING) && r->ckpts[i].row.state == ZT_CKPT_FAILED))
            return &r->ckpts[i];
    return NULL;
}

/* ------------------------------------------------------------------------------ what to begin from */
bool mc_pick_start(const struct mc_run *r, struct mc_start *s) {
    const struct zt_run_source *from = &r->row.config.source;
    const struct mc_ckpt *own = newest_committed(r);
    *s = (struct mc_start){.from = ZT_START_FRESH};
    if (own) {
        *s = (struct mc_start){.from = ZT_START_OWN, .step = own->row.step, .manifest = own->row.manifest};
        return true;
    }
    bool lost = r->row.saved_step > 0; /* there was one: none is left that can be trusted */
    if (MC_PLANTED(MC_PLANT_FRESH_START)) lost = false;
    if (from->run_id[0]) {
        if (r->row.source_corrupt || (lost && from->weights_only)) return false;
        *s = (struct mc_start){
            .from = ZT_START_SOURCE, .step = from->step, .manifest = from->manifest, .weights_only = from->weights_only};
        return true;
    }
    return !lost;
}
void mc_start_of(const struct mc_run *r, struct mc_start *s) {
    static const uint8_t none[32];
    const struct zt_run_source *from = &r->row.config.source;
    *s = (struct mc_start){.from = r->attempt.from, .step = r->attempt.start_step, .manifest = none};
    const struct mc_ckpt *own = s->from == ZT_START_OWN ? mc_ckpt_find(r, s->step) : NULL;
    if (own) s->manifest = own->row.manifest;
    if (s->from != ZT_START_SOURCE) return;
    s->manifest = from->manifest;
    s->weights_only = from->weights_only;
}
int64_t mc_base(const struct mc_run *r) {
    bool anew = r->attempt.from == ZT_START_SOURCE && r->row.config.source.weights_only;
    return r->attempt.from == ZT_START_FRESH || anew ? 0 : r->attempt.start_step;
}
void mc_say_no_start(const struct mc_run *r, char *text, size_t n) {
    const struct zt_run_source *from = &r->row.config.source;
    if (r->row.saved_step == 0)
        snprintf(text, n,
                 "the checkpoint to begin from (run %s step %" PRId64 ") is damaged; zctl checkpoint ls %s shows others: submit "
                 "again with --resume %s@STEP, or without --resume to begin anew",
                 from->run_id, from->step, from->run_id, from->run_id);
    else
        snprintf(text, n,
                 "no checkpoint of this run is left that can be trusted (the last one was of step %" PRId64 "), and it is not "
                 "begun anew without being asked: submit it again to begin from step 0, or repair the files, check "
                 "them with zctl checkpoint verify %s and submit with --resume %s",
                 r->row.saved_step, r->row.run_id, r->row.run_id);
}
/* Something may have to go on from this step: nothing of it is removed. What a run began from in full is its oldest
 * checkpoint, for as long as it lives; weights alone are of no use once it has saved. */
bool mc_ckpt_in_use(const struct zt_machine *m, const char *run_id, int64_t step) {
    for (int i = 0; i < m->n_runs; i++) {
        const struct mc_run *q = &m->runs[i];
        if (!q->used || zt_run_state_terminal(q->row.state)) continue;
        const struct zt_run_source *from = &q->row.config.source;
        const struct mc_ckpt *own = newest_committed(q);
        bool began = q->world && q->attempt.from == ZT_START_SOURCE;
        bool needed = !from->weights_only || q->row.saved_step == 0 || began;
        if (needed && !q->row.source_corrupt && from->step == step && !strcmp(from->run_id, run_id)) return true;
        if (strcmp(q->row.run_id, run_id)) continue;
        if (own && own->row.step == step) return true;
        if (q->world && q->attempt.from == ZT_START_OWN && q->attempt.start_step == step) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------ a save fails */
static void refuse_failed(struct zt_machine *m, const struct zt_event *ev, const struct mc_ckpt *c) {
    mc_refuse(m, ev, ZT_ECANCELLED, "step %" PRId64 " is not saved: %s", c->row.step, c->row.message);
}
static void end_waiting(struct zt_machine *m, struct mc_ckpt *c, int code, const char *why) {
    struct zt_event ev = {.kind = ZT_EV_GET_SHARDS, .request = c->request};
    if (c->request) mc_refuse(m, &ev, code, "step %" PRId64 ": %s", c->row.step, why);
    c->request = 0;
}
/* Few are kept: a disk that stays full must not fill the database too. */
static void thin_failed(struct zt_machine *m, struct mc_run *r) {
    int n = 0;
    for (int i = r->n_ckpts - 1; i >= 0; i--)
        if (r->ckpts[i].row.state == ZT_CKPT_FAILED && ++n > MC_FAILED_KEPT) mc_ckpt_drop(m, r, &r->ckpts[i]);
}
static void fail_save(struct zt_machine *m, struct mc_run *r, struct mc_ckpt *c, int rank, const char *message) {
    c->row.state = ZT_CKPT_FAILED;
    mc_copy(c->row.message, sizeof c->row.message, message);
    forget_parts(c);
    mc_ckpt_put(m, r, c);
    mc_event(m, (struct mc_note){.level = 2, .kind = "CHECKPOINT_FAILED", .run = r, .rank = rank},
             "step %" PRId64 " is not saved: %s", c->row.step, message);
    end_waiting(m, c, ZT_ECANCELLED, c->row.message);
}
static bool writing(const struct mc_run *r, int i) { return r->ckpts[i].row.state == ZT_CKPT_WRITING; }

void mc_ckpt_stopping(struct zt_machine *m, struct mc_run *r) {
    for (int i = 0; i < r->n_ckpts; i++)
        if (writing(r, i)) end_waiting(m, &r->ckpts[i], ZT_CODE_STALE, "this generation has ended");
}
void mc_ckpt_ended(struct zt_machine *m, struct mc_run *r) {
    char why[96];
    snprintf(why, sizeof why, "generation %u ended before it was complete", r->row.generation);
    for (int i = 0; i < r->n_ckpts; i++)
        if (writing(r, i)) fail_save(m, r, &r->ckpts[i], -1, why);
    thin_failed(m, r);
}

/* ------------------------------------------------------------------------------ parts come in */
/* Opens the save of a step, or says why not and returns NULL. What was CORRUPT or FAILED is saved anew. */
static struct mc_ckpt *open_save(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r, int64_t step) {
    const struct mc_ckpt *old = mc_ckpt_find(r, step);
    int n = 0;
    for (int i = 0; i < r->n_ckpts; i++) n += writing(r, i);
    if (!r->row.config.saves || step <= mc_base(r)) {
        mc_refuse(m, ev, ZT_EINVAL, "run %s does not save step %" PRId64 ": %s", r->row.run_id, step,
                  r->row.config.saves ? "this generation goes on after it" : "its file has no checkpoint section");
        return NULL;
    }
    if (old && old->row.state == ZT_CKPT_COMMITTED) {
        mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 " was saved by generation %u", step, old->row.generation);
        return NULL;
    }
    if (old && old->row.state == ZT_CKPT_DELETING) { /* somebody may be at its folder */
        mc_refuse(m, ev, ZT_ECANCELLED, "step %" PRId64 " is not saved: what generation %u saved of it is being removed", step,
                  old->row.generation);
        return NULL;
    }
    if (step <= r->save_floor) { /* its row is gone: a repeat that comes late */
        mc_refuse(m, ev, ZT_ECANCELLED, "step %" PRId64 " is not saved: step %" PRId64 " came after it", step, r->save_floor);
        return NULL;
    }
    if (n == MC_SAVES_MAX) {
        mc_refuse(m, ev, ZT_EINVAL, "%d checkpoints of run %s are being saved already", n, r->row.run_id);
        return NULL;
    }
    struct zt_ckpt_part *parts = calloc((size_t)r->world, sizeof *parts);
    struct mc_ckpt *c = parts ? place(r, step) : NULL;
    if (!c) {
        free(parts);
        mc_refuse(m, ev, ZT_EBUSY, "the coordinator is short of memory; send it again");
        return NULL;
    }
    for (int i = 0; i < r->world; i++) parts[i].rank = -1;
    *c = (struct mc_ckpt){.parts = parts,
                          .row = {.step = step,
                                  .generation = r->row.generation,
                                  .state = ZT_CKPT_WRITING,
                                  .world = r->world,
                                  .mesh = r->row.mesh,
                                  .created_ms = m->wall}};
    mc_copy(c->row.run_id, sizeof c->row.run_id, r->row.run_id);
    r->save_floor = step;
    return c;
}
/* All parts are in, and the step rows of every rank up to it are with the store: what goes on from it later
 * leaves no hole in the series. */
static bool complete(const struct mc_run *r, const struct mc_ckpt *c) {
    if (c->n_in < c->row.world) return MC_PLANTED(MC_PLANT_COMMIT_EARLY) && c->n_in > 0;
    for (int i = 0; i < r->world && !MC_PLANTED(MC_PLANT_COMMIT_WITHOUT_ROWS); i++)
        if (r->ranks[i].have < c->row.step) return false;
    return true;
}
static void answer_shards(struct zt_machine *m, struct mc_run *r, struct mc_ckpt *c) {
    if (!c->request || !complete(r, c)) return;
    struct zt_event ev = {.kind = ZT_EV_GET_SHARDS, .request = c->request};
    struct zt_fx_reply *p = mc_reply(m, &ev, 0, true);
    c->request = 0;
    if (!p) return;
    p->parts = c->parts;
    p->n_parts = c->row.world;
}
void mc_ckpt_steps(struct zt_machine *m, struct mc_run *r) {
    for (int i = r->n_ckpts - 1; i >= 0 && r->waits; i--)
        if (writing(r, i)) answer_shards(m, r, &r->ckpts[i]);
}
static void store_part(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r, struct mc_ckpt *c) {
    struct zt_ckpt_part *p = &c->parts[ev->at.rank];
    *p = ev->u.shard.part;
    p->rank = ev->at.rank;
    c->n_in++;
    c->row.bytes += p->bytes;
    if (p->stall_seconds > c->row.stall_seconds) c->row.stall_seconds = p->stall_seconds;
    if (p->write_seconds > c->row.write_seconds) c->row.write_seconds = p->write_seconds;
    mc_ckpt_put(m, r, c);
    struct zt_effect *e = mc_emit_row(m, ZT_FX_ROW_PART);
    mc_copy(e->u.part.run_id, sizeof e->u.part.run_id, r->row.run_id);
    e->u.part.step = c->row.step;
    e->u.part.generation = c->row.generation;
    e->u.part.part = *p;
}
static void on_shard_done(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    int64_t step = ev->u.shard.step;
    struct mc_ckpt *c = mc_ckpt_find(r, step);
    if (c && c->row.generation == r->row.generation && c->row.state == ZT_CKPT_FAILED) {
        refuse_failed(m, ev, c);
        return;
    }
    bool ours = c && c->row.generation == r->row.generation;
    if (!ours && !(c = open_save(m, ev, r, step))) return;
    if (c->row.state == ZT_CKPT_WRITING) { /* else it is a repeat: every part was in */
        const struct zt_ckpt_part *was = &c->parts[ev->at.rank];
        if (was->rank < 0) {
            store_part(m, ev, r, c);
        } else if (memcmp(was->index, ev->u.shard.part.index, sizeof was->index)) {
            mc_refuse(m, ev, ZT_EINVAL, "rank %d has told of another part of step %" PRId64 " before", ev->at.rank, step);
            return;
        }
    }
    mc_reply(m, ev, 0, true);
    answer_shards(m, r, c);
}
static void on_get_shards(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_ckpt *c = mc_ckpt_find(r, ev->u.commit.step);
    if (!c || c->row.generation != r->row.generation ||
        (c->row.state != ZT_CKPT_WRITING && c->row.state != ZT_CKPT_FAILED)) {
        mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 " of run %s is not being saved", ev->u.commit.step, r->row.run_id);
    } else if (c->row.state == ZT_CKPT_FAILED) {
        refuse_failed(m, ev, c);
    } else if (r->row.state == ZT_RUN_STOPPING) {
        mc_refuse(m, ev, ZT_CODE_STALE, "this generation has ended");
    } else {
        end_waiting(m, c, ZT_EBUSY, "asked for again");
        c->request = ev->request;
        r->waits = true;
        answer_shards(m, r, c);
    }
}

/* ------------------------------------------------------------------------------ the commit */
static struct zt_hash128 little_endian(const uint8_t b[16]) {
    struct zt_hash128 h = {0};
    for (int i = 7; i >= 0; i--) {
        h.lo = h.lo << 8 | b[i];
        h.hi = h.hi << 8 | b[8 + i];
    }
    return h;
}
static void add_hashes(struct mc_ckpt *c) {
    struct zt_hash128 p = {0}, s = {0};
    for (int i = 0; i < c->row.world; i++) {
        zt_hash128_add(&p, little_endian(c->parts[i].parameter_hash));
        zt_hash128_add(&s, little_endian(c->parts[i].state_hash));
    }
    snprintf(c->row.parameter_hash, sizeof c->row.parameter_hash, "%016" PRIx64 "%016" PRIx64, p.hi, p.lo);
    snprintf(c->row.state_hash, sizeof c->row.state_hash, "%016" PRIx64 "%016" PRIx64, s.hi, s.lo);
}
static bool differs(const char *given, const char *sum) { return given && given[0] && strcmp(given, sum); }

/* Newest first: the newest k, every step that keep_every divides, what is pinned, and what something may have to
 * go on from. The newest is committed and was read back, so that never the last verified one is among the rest. */
static void retain(struct zt_machine *m, struct mc_run *r) {
    const struct zt_run_config *c = &r->row.config;
    int64_t newer = 0;
    int n = 0;
    for (int i = r->n_ckpts - 1; i >= 0 && n < ZT_CKPT_REMOVE_MAX; i--) {
        struct mc_ckpt *k = &r->ckpts[i];
        if (k->row.state != ZT_CKPT_COMMITTED) continue;
        bool kept = newer++ < c->keep_latest_k || c->keep_latest_k == 0;
        kept |= k->row.pinned || (c->keep_every > 0 && k->row.step % c->keep_every == 0);
        kept |= mc_ckpt_in_use(m, r->row.run_id, k->row.step);
        if (MC_PLANTED(MC_PLANT_KEEP_NOTHING)) kept = newer == 1;
        if (kept) continue;
        k->row.state = ZT_CKPT_DELETING;
        mc_ckpt_put(m, r, k);
        n++;
    }
}
static void reply_commit(struct zt_machine *m, const struct zt_event *ev, const struct mc_run *r) {
    struct zt_fx_reply *p = mc_reply(m, ev, 0, true);
    for (int i = 0; p && i < r->n_ckpts && p->n_remove < ZT_CKPT_REMOVE_MAX; i++)
        if (r->ckpts[i].row.state == ZT_CKPT_DELETING) p->remove[p->n_remove++] = r->ckpts[i].row.step;
}
static void commit(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r, struct mc_ckpt *c) {
    c->row.state = ZT_CKPT_COMMITTED;
    c->row.committed_ms = m->wall;
    c->row.verified = true; /* every rank has read its files back before it told of them */
    memcpy(c->row.manifest, ev->u.commit.manifest, sizeof c->row.manifest);
    end_waiting(m, c, ZT_EBUSY, "it is committed");
    forget_parts(c);
    mc_ckpt_put(m, r, c);
    char size[32], stall[32], write[32];
    mc_event(m, (struct mc_note){.level = 1, .kind = ev->u.commit.adopted ? "CHECKPOINT_ADOPTED" : "CHECKPOINT_COMMITTED",
                                 .run = r, .rank = -1},
             "step %" PRId64 " is saved%s: %s in %d part%s; the step loop stood still for %s, written in %s", c->row.step,
             ev->u.commit.adopted ? " (complete files of an earlier generation were there)" : "",
             zt_format_bytes((double)c->row.bytes, size, sizeof size), c->row.world, c->row.world == 1 ? "" : "s",
             zt_format_seconds(c->row.stall_seconds, stall, sizeof stall),
             zt_format_seconds(c->row.write_seconds, write, sizeof write));
    if (c->row.step > r->row.saved_step) { /* progress: what it may cost begins anew */
        r->committed = true;
        r->row.saved_step = c->row.step;
        r->row.restarts_counted = r->row.failures_in_row = r->row.no_progress = 0;
        mc_dirty_run(m, r);
    }
    retain(m, r);
}
static void on_commit(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_ckpt *c = mc_ckpt_find(r, ev->u.commit.step);
    if (!c || c->row.generation != r->row.generation) {
        mc_refuse(m, ev, ZT_EINVAL, "no rank of generation %u has told of a part of step %" PRId64, r->row.generation,
                  ev->u.commit.step);
        return;
    }
    if (c->row.state == ZT_CKPT_FAILED) {
        refuse_failed(m, ev, c);
        return;
    }
    if (c->row.state == ZT_CKPT_WRITING) {
        if (!complete(r, c)) {
            mc_refuse(m, ev, ZT_EBUSY, "step %" PRId64 ": %d of %d parts are in; try again", c->row.step, c->n_in, c->row.world);
            return;
        }
        add_hashes(c);
        if (ev->u.commit.bytes != c->row.bytes || differs(ev->u.commit.parameter_hash, c->row.parameter_hash) ||
            differs(ev->u.commit.state_hash, c->row.state_hash)) {
            mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 ": the commit speaks of %" PRId64 " bytes and hashes %.32s %.32s, its parts "
                      "of %" PRId64 " bytes and %s %s", c->row.step, ev->u.commit.bytes, ev->u.commit.parameter_hash,
                      ev->u.commit.state_hash, c->row.bytes, c->row.parameter_hash, c->row.state_hash);
            return;
        }
        commit(m, ev, r, c);
    } else if (memcmp(c->row.manifest, ev->u.commit.manifest, sizeof c->row.manifest)) {
        mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 " is committed with another manifest", c->row.step);
        return;
    }
    reply_commit(m, ev, r);
}
void mc_ckpt_say_removed(struct zt_machine *m, const char *run_id, int64_t step, const char *actor) {
    mc_event(m, (struct mc_note){.level = 1, .kind = "CHECKPOINT_REMOVED", .run_id = run_id, .rank = -1, .actor = actor},
             "the files of step %" PRId64 " are removed", step);
}
static void on_removed(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_ckpt *c = mc_ckpt_find(r, ev->u.commit.step);
    if (c && c->row.state != ZT_CKPT_DELETING) {
        mc_refuse(m, ev, ZT_EINVAL, "step %" PRId64 " is %s: it was not to be removed", c->row.step,
                  zt_ckpt_state_name(c->row.state));
        return;
    }
    if (c) {
        mc_ckpt_say_removed(m, r->row.run_id, c->row.step, "worker");
        mc_ckpt_drop(m, r, c);
    }
    mc_reply(m, ev, 0, true);
}
static void on_failed(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    int64_t step = ev->u.ckpt_failed.step;
    struct mc_ckpt *c = mc_ckpt_find(r, step);
    char why[ZT_CKPT_MESSAGE_MAX + 1];
    snprintf(why, sizeof why, "rank %d%s: %.460s", ev->at.rank, ev->u.ckpt_failed.disk_full ? ", disk full" : "",
             ev->u.ckpt_failed.message);
    bool ours = c && c->row.generation == r->row.generation;
    if (!ours && !(c = open_save(m, ev, r, step))) return;
    if (c->row.state == ZT_CKPT_WRITING) fail_save(m, r, c, ev->at.rank, why);
    thin_failed(m, r);
    mc_reply(m, ev, 0, true);
}

/* ------------------------------------------------------------------------------ loading */
static void on_loaded(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    struct mc_rank *k = &r->ranks[ev->at.rank];
    struct mc_start s;
    mc_start_of(r, &s);
    if (ev->u.loaded.step != mc_base(r)) {
        if (mc_run_active(r))
            mc_fail(m, r, ev->at.rank, NULL, ZT_REASON_CKPT_ERROR, -1,
                    "rank %d goes on after step %" PRId64 ", it was to go on after step %" PRId64, ev->at.rank,
                    ev->u.loaded.step, mc_base(r));
        mc_refuse(m, ev, ZT_EINVAL, "this generation goes on after step %" PRId64, mc_base(r));
        return;
    }
    double seconds = ev->u.loaded.seconds;
    if (isfinite(seconds) && seconds >= 0 && seconds > r->attempt.load_seconds) {
        r->attempt.load_seconds = seconds;
        mc_dirty_attempt(m, r);
    }
    char took[32];
    bool last = !k->loaded;
    double files = 0, memory = 0; /* for people: no overflow, whatever a worker says */
    k->loaded = true;
    k->loaded_bytes = ev->u.loaded.bytes;
    k->loaded_memory = ev->u.loaded.memory_bytes;
    for (int i = 0; i < r->world; i++) {
        last &= r->ranks[i].loaded;
        files += (double)r->ranks[i].loaded_bytes;
        memory += (double)r->ranks[i].loaded_memory;
    }
    if (last && s.from != ZT_START_FRESH && !s.weights_only)
        mc_event(m, (struct mc_note){.level = 1, .kind = "RESUMED", .run = r, .rank = -1},
                 "generation %u goes on after step %" PRId64 "%s%s; loading took %s, %.0f bytes from files, %.0f from copies in memory",
                 r->row.generation, s.step,
                 s.from == ZT_START_SOURCE ? " of run " : "", s.from == ZT_START_SOURCE ? r->row.config.source.run_id : "",
                 zt_format_seconds(r->attempt.load_seconds, took, sizeof took), files, memory);
    mc_reply(m, ev, 0, true);
}
void mc_ckpt_condemn(struct zt_machine *m, struct mc_run *r, const char *message) {
    struct mc_start was, next;
    mc_start_of(r, &was);
    struct mc_run *q = was.from == ZT_START_SOURCE ? mc_find_run(m, r->row.config.source.run_id) : r;
    struct mc_ckpt *c = q ? mc_ckpt_find(q, was.step) : NULL;
    bool same = c && !memcmp(c->row.manifest, was.manifest, sizeof c->row.manifest); /* else it was saved anew since */
    if (c && same && c->row.state == ZT_CKPT_COMMITTED) {
        c->row.state = ZT_CKPT_CORRUPT;
        c->row.verified = false;
        mc_copy(c->row.message, sizeof c->row.message, message);
        mc_ckpt_put(m, q, c);
    } else if (!q) {
        mc_ckpt_set_stored(m, r->row.config.source.run_id, was.step, ZT_SET_CORRUPT, message);
    }
    if (was.from == ZT_START_SOURCE) r->row.source_corrupt = true;
    mc_dirty_run(m, r);
    char after[ZT_MESSAGE_MAX + 1];
    if (!mc_pick_start(r, &next))
        mc_say_no_start(r, after, sizeof after);
    else
        snprintf(after, sizeof after, "the next generation goes on after step %" PRId64, next.step);
    mc_event(m, (struct mc_note){.level = 3, .kind = "CHECKPOINT_CORRUPT", .run = r, .rank = r->row.cause_rank},
             "step %" PRId64 " is damaged (%.360s); %.380s", was.step, message, after);
}

void mc_on_ckpt(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r) {
    if (zt_run_state_terminal(r->row.state)) {
        mc_refuse(m, ev, ZT_CODE_STALE, "run %s has ended", r->row.run_id);
        return;
    }
    switch (ev->kind) {
    case ZT_EV_SHARD_DONE:
        on_shard_done(m, ev, r);
        break;
    case ZT_EV_GET_SHARDS:
        on_get_shards(m, ev, r);
        break;
    case ZT_EV_CKPT_COMMIT:
        on_commit(m, ev, r);
        break;
    case ZT_EV_CKPT_REMOVED:
        on_removed(m, ev, r);
        break;
    case ZT_EV_CKPT_FAILED:
        on_failed(m, ev, r);
        break;
    case ZT_EV_RANK_LOADED:
        on_loaded(m, ev, r);
        break;
    default:
        break;
    }
}

/* ------------------------------------------------------------------------------ a start of the coordinator */
static bool recover_parts(struct mc_run *r, struct mc_ckpt *c, const struct zt_recovery *rec) {
    c->parts = calloc((size_t)(c->row.world > 0 ? c->row.world : 1), sizeof *c->parts);
    if (!c->parts) return false;
    for (int i = 0; i < c->row.world; i++) c->parts[i].rank = -1;
    for (size_t k = 0; k < rec->n_parts && !MC_PLANTED(MC_PLANT_FORGET_PARTS); k++) {
        const struct zt_row_part *p = &rec->parts[k];
        if (p->step != c->row.step || p->generation != c->row.generation || strcmp(p->run_id, r->row.run_id) ||
            p->part.rank < 0 || p->part.rank >= c->row.world)
            continue;
        c->n_in += c->parts[p->part.rank].rank < 0;
        c->parts[p->part.rank] = p->part;
    }
    return true;
}
int mc_ckpt_recover(struct mc_run *r, const struct zt_recovery *rec) {
    for (size_t i = 0; i < rec->n_ckpts; i++) {
        const struct zt_row_ckpt *row = &rec->ckpts[i];
        if (strcmp(row->run_id, r->row.run_id)) continue;
        struct mc_ckpt *c = place(r, row->step);
        if (!c) return ZT_ENOMEM;
        c->row = *row;
        if (row->state == ZT_CKPT_WRITING && !recover_parts(r, c, rec)) return ZT_ENOMEM;
        if (row->generation == r->row.generation && row->step > r->save_floor) r->save_floor = row->step;
    }
    return 0;
}

const char *mc_ckpt_check(const struct zt_machine *m, const struct mc_run *r) {
    bool live = !zt_run_state_terminal(r->row.state);
    for (int i = 0; i < r->n_ckpts; i++) {
        const struct mc_ckpt *c = &r->ckpts[i];
        int in = 0;
        if (i && r->ckpts[i - 1].row.step >= c->row.step) return "13: two rows of one step";
        for (int k = 0; c->parts && k < c->row.world; k++) in += c->parts[k].rank == k;
        if ((c->row.state == ZT_CKPT_WRITING) != (c->parts != NULL) || in != c->n_in)
            return "13: a save whose parts are not what was counted";
        if (c->row.state == ZT_CKPT_WRITING && (!r->world || c->row.generation != r->row.generation))
            return "13: a save outlived its generation";
        if (c->request && c->row.state != ZT_CKPT_WRITING) return "13: somebody waits for parts of what is not being saved";
        if (c->row.state == ZT_CKPT_COMMITTED && live && c->row.step > r->row.saved_step)
            return "14: a committed step above the highest";
        if (c->row.state == ZT_CKPT_DELETING && mc_ckpt_in_use(m, r->row.run_id, c->row.step))
            return "15: what something may go on from is removed";
    }
    struct mc_start s;
    mc_start_of(r, &s);
    const struct mc_ckpt *own = r->world && s.from == ZT_START_OWN ? mc_ckpt_find(r, s.step) : NULL;
    if (r->world && live && s.from == ZT_START_OWN && (!own || (own->row.state != ZT_CKPT_COMMITTED && own->row.state != ZT_CKPT_CORRUPT)))
        return "16: a generation began from what is not a checkpoint";
    return NULL;
}
