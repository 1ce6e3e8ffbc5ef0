/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_gather.c: parameters made whole and let go again, along the walk. Which
 * groups are asked for when, and which stay, is walk.h's; the edges are those of runtime.c;
 * ownership and thread rule: runtime.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/shard/reasons.h"
#include "engine/shard/runtime_int.h"

static int walk_end(const struct zt_runtime *r) {
    return r->evaluating ? r->walk.n_forward : r->walk.n;
}

static int walk_on(struct zt_runtime *r, int unit, bool backward, struct zt_error *err) {
    const struct zt_walk *w = &r->walk;
    int next = r->at + 1;
    if (r->evaluating && next == w->n_forward) next = 0; /* the next batch */
    if (backward && r->at < 0) next = w->n_forward;      /* gradients made without a forward */
    if (next >= walk_end(r) || w->unit[next] != unit || (next >= w->n_forward) != backward)
        return zt_fail(err, ZT_EINTERNAL, "%s of unit %s is not the next of the walk (place %d)",
                       backward ? "backward" : "forward", r->env.table->units[unit].name, next);
    r->at = next;
    return 0;
}

/* ---- build, free ---- */

static void build_segments(struct zt_runtime *r) {
    for (int u = 0; u < r->layout.n_units; u++)
        for (int k = r->layout.unit_first[u]; k < r->layout.unit_first[u + 1]; k++) {
            const struct zt_flat_group *d = &r->layout.groups[r->layout.unit_groups[k]];
            struct rt_segment *s = &r->segments[k];
            for (int i = d->first_entry; i < d->first_entry + d->n_entries; i++) {
                const struct zt_flat_entry *e = &r->layout.entries[i];
                if (e->unit != u) continue;
                if (!s->count) s->from = e->offset;
                s->count = e->offset + e->numel - s->from;
            }
        }
}

static void build_group(struct zt_runtime *r, struct rt_group *g) {
    enum zt_dtype sent = zt_recipe_gathered(r->recipe, g->def->trainable);
    bool same = sent == g->def->dtype;
    g->gathered =
        r->policy->gather == ZT_GATHER_BEFORE_USE && !g->def->persistent && (r->shard > 1 || !same);
    g->held = g->gathered ? sent : g->def->dtype;
    g->full = g->gathered ? NULL : g->store;
    g->backward_units = zt_walk_backward_units(&r->walk, (int)(g - r->groups));
}

int rt_gather_build(struct zt_runtime *r, struct zt_error *err) {
    size_t tensors = (size_t)r->env.table->n_tensors, units = (size_t)r->layout.n_units;
    int rc =
        zt_walk_build(r->env.spec, r->policy, r->shard, r->env.table, &r->layout, &r->walk, err);
    if (rc) return rc;
    int m = r->walk.slices;
    if (m && (!r->env.reshard || zt_comm_size(r->env.reshard) != m))
        return zt_fail(err, ZT_EINTERNAL, "no communicator of the %d ranks that keep slices", m);
    r->at = -1;
    r->view_param = calloc(tensors, sizeof *r->view_param);
    r->view_grad = calloc(tensors, sizeof *r->view_grad);
    r->open = calloc(units, sizeof *r->open);
    r->segments = calloc((size_t)r->layout.unit_first[units] + 1, sizeof *r->segments);
    if (!r->view_param || !r->view_grad || !r->open || !r->segments)
        return zt_fail(err, ZT_ENOMEM, "sharding runtime: no host memory");
    build_segments(r);
    for (int i = 0; i < r->layout.n_groups; i++) build_group(r, &r->groups[i]);
    return 0;
}

void rt_gather_free(struct zt_runtime *r) {
    for (int i = 0; r->groups && i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        if (g->gathered) zt_free(r->env.alloc, g->full);
        zt_free(r->env.alloc, g->slice);
    }
    for (int k = 0; r->segments && k < r->layout.unit_first[r->layout.n_units]; k++)
        zt_free(r->env.alloc, r->segments[k].copy);
    zt_walk_free(&r->walk);
    free(r->view_param);
    free(r->view_grad);
    free(r->open);
    free(r->segments);
}

/* ---- gathers ---- */

/* Queues an all-gather into `recv` and its event. */
static int gather(struct zt_runtime *r, struct rt_group *g, struct zt_comm *c, const void *send,
                  void *recv, enum zt_dtype t, const char *reason, struct zt_error *err) {
    struct zt_coll_why why = {g->def->name, reason, r->step, false};
    int64_t count = g->def->elements / zt_comm_size(c);
    int rc = 0;
    RT_TRY(rt_behind_compute(r, g->vacant, r->gather, err)); /* (4), (5) */
    RT_TRY(zt_all_gather(c, send, recv, count, t, r->gather, &why, err));
    RT_TRY(rt_collective_done(r, r->gather, g->arrived, err));
    g->arriving = true;
out:
    return rc;
}

/* Afterwards `full` may be read by what is queued on compute. */
static int arrived(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (!g->arriving) return 0;
    int rc = rt_compute_wait(r, g->arrived, err); /* (3) */
    if (rc) return rc;
    g->arriving = false;
    zt_free(r->env.alloc, g->slice);
    g->slice = NULL;
    return 0;
}

static const char *reason(const struct zt_runtime *r, const struct rt_group *g, int place) {
    static const char *const text[2][3][2] = {
        {{ZT_WHY_FORWARD, ZT_WHY_FORWARD_AHEAD},
         {ZT_WHY_BACKWARD, ZT_WHY_BACKWARD_AHEAD},
         {ZT_WHY_EVAL, ZT_WHY_EVAL_AHEAD}},
        {{ZT_WHY_SLICES_FORWARD, ZT_WHY_SLICES_FORWARD_AHEAD},
         {ZT_WHY_SLICES_BACKWARD, ZT_WHY_SLICES_BACKWARD_AHEAD},
         {ZT_WHY_SLICES_EVAL, ZT_WHY_SLICES_EVAL_AHEAD}}};
    int when = r->evaluating ? 2 : place >= r->walk.n_forward;
    return text[g->slice != NULL][when][place > r->at];
}

/* Asks for the whole of a group for its use at `place`. Where it is held in another type than it is
 * stored, this rank's part is cast right into its place. */
static int make_whole(struct zt_runtime *r, struct rt_group *g, int place, struct zt_error *err) {
    const void *send = g->slice ? g->slice : g->store;
    int rc = 0;
    RT_TRY(rt_buffer(r, g, g->def->elements, g->held, ZT_TAG_PARAMETERS, "gathered", &g->full, NULL,
                     err));
    if (g->def->trainable) rt_stored(r, ZT_ROW_GATHERED, g->held);
    if (!g->slice && g->held != g->def->dtype) {
        void *part = rt_at(g->full, g->store_from, g->held);
        int64_t start = rt_now(r);
        RT_TRY(r->env.ops->cast(r->env.ctx, part, g->held, g->store, g->def->dtype, g->store_count,
                                err));
        RT_TRY(rt_interval(r, ZT_IV_COMPUTE, "cast parameters", start, err));
        send = part;
    }
    if (r->shard == 1) return 0;
    RT_TRY(gather(r, g, g->slice ? r->env.reshard : r->env.dp_shard, send, g->full, g->held,
                  reason(r, g, place), err));
    if (!r->env.spec->parallelism.overlap) RT_TRY(arrived(r, g, err));
out:
    return rc;
}

static int ask(struct zt_runtime *r, int place, struct zt_error *err) {
    int unit = r->walk.unit[place], rc = 0;
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1] && !rc; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        if (!g->full) rc = make_whole(r, g, place, err);
    }
    return rc;
}

/* ---- units ---- */

/* Kernels take another type than the one that is held: a copy, for as long as the unit is open. */
static int compute_copy(struct zt_runtime *r, struct rt_group *g, struct rt_segment *s,
                        struct zt_error *err) {
    enum zt_dtype t = r->recipe->compute;
    int rc = 0;
    if (g->held == t) return 0;
    RT_TRY(rt_buffer(r, g, s->count, t, ZT_TAG_TEMPORARY, "compute copy", &s->copy, NULL, err));
    int64_t start = rt_now(r);
    RT_TRY(r->env.ops->cast(r->env.ctx, s->copy, t, rt_at(g->full, s->from, g->held), g->held,
                            s->count, err));
    RT_TRY(rt_interval(r, ZT_IV_COMPUTE, "cast parameters", start, err));
out:
    return rc;
}

static void show(struct zt_runtime *r, int unit) {
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        const struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        const struct rt_segment *s = &r->segments[k];
        rt_stored(r, ZT_ROW_COMPUTE, s->copy ? r->recipe->compute : g->held);
        rt_used(r, ZT_ROW_COMPUTE, s->copy ? r->recipe->compute : g->held);
        for (int i = g->def->first_entry; i < g->def->first_entry + g->def->n_entries; i++) {
            const struct zt_flat_entry *e = &r->layout.entries[i];
            if (e->unit != unit) continue;
            r->view_param[e->tensor] = s->copy
                                           ? rt_at(s->copy, e->offset - s->from, r->recipe->compute)
                                           : rt_at(g->full, e->offset, g->held);
        }
    }
}

int rt_acquire(struct zt_runtime *r, int unit, bool backward, struct zt_error *err) {
    const int *first = &r->layout.unit_first[unit];
    int rc = 0;
    RT_TRY(walk_on(r, unit, backward, err));
    ZT_ASSERT(!r->open[unit]);
    RT_TRY(ask(r, r->at, err));
    for (int k = first[0]; k < first[1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        RT_TRY(arrived(r, g, err));
        g->opened++;
    }
    r->open[unit] = true;
    for (int i = r->at + 1; i <= r->at + r->walk.prefetch && i < walk_end(r); i++)
        RT_TRY(ask(r, i, err));
    for (int k = first[0]; k < first[1]; k++)
        RT_TRY(compute_copy(r, &r->groups[r->layout.unit_groups[k]], &r->segments[k], err));
    show(r, unit);
out:
    return rc;
}

/* reshard_after_forward: m. Neighbours in the shard group keep one slice each. */
static int keep_slice(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    int64_t count = g->def->elements / r->walk.slices;
    int rc = 0;
    ZT_ASSERT(!g->slice);
    RT_TRY(rt_buffer(r, g, count, g->held, ZT_TAG_PARAMETERS, "slice", &g->slice, NULL, err));
    int64_t start = rt_now(r);
    RT_TRY(r->env.ops->copy(r->env.ctx, g->slice,
                            rt_at(g->full, r->shard_index % r->walk.slices * count, g->held),
                            (size_t)count * zt_dtype_size(g->held), err));
    RT_TRY(rt_interval(r, ZT_IV_COMPUTE, "keep slices", start, err));
out:
    return rc;
}

static int let_go(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_walk_fate fate = zt_walk_after(&r->walk, (int)(g - r->groups), r->at, walk_end(r));
    int rc = 0;
    if (fate == ZT_WALK_STAYS) return 0;
    if (fate == ZT_WALK_SLICED) rc = keep_slice(r, g, err);
    zt_free(r->env.alloc, g->full);
    g->full = NULL;
    return rc;
}

int rt_release(struct zt_runtime *r, int unit, struct zt_error *err) {
    const struct zt_unit_def *u = &r->env.table->units[unit];
    int rc = 0;
    if (!r->open[unit]) return 0;
    r->open[unit] = false;
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) r->view_param[t] = NULL;
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        zt_free(r->env.alloc, r->segments[k].copy);
        r->segments[k].copy = NULL;
        if (--g->opened == 0 && g->gathered && (rc = let_go(r, g, err))) return rc;
    }
    return 0;
}

/* ---- after the update ---- */

/* zero1 and zero2, and persistent parameters: whole on every rank, each stepped its own part. */
static bool stepped_in_parts(const struct rt_group *g) {
    return g->def->trainable && g->own_count < g->store_count;
}

int rt_gather_updated(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (!stepped_in_parts(g)) return 0;
    int rc = gather(r, g, r->env.dp_shard, rt_at(g->store, g->own_from, g->def->dtype), g->store,
                    g->def->dtype, ZT_WHY_UPDATED, err);
    return rc || r->env.spec->parallelism.overlap ? rc : arrived(r, g, err);
}

int rt_gather_updated_wait(struct zt_runtime *r, struct zt_error *err) {
    int rc = 0;
    for (int i = 0; i < r->layout.n_groups && !rc; i++)
        if (stepped_in_parts(&r->groups[i])) rc = arrived(r, &r->groups[i], err);
    return rc;
}
