/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_reduce.c: gradient buffers and their reductions.
 *
 * Backward adds into a buffer of the whole group, which appears, zeroed, at the group's first
 * backward. When the last of its units has ended (in each micro-step, or in the window's last) it
 * is reduced: scattered in the shard group, then summed over the replicas.
 *   - Whole gradients (ddp, zero1): in place; the buffer stays for the update.
 *   - Gradient shards (zero2, zero3, fsdp): the first reduction of a window ends right in the
 *     shard, later ones are added to it; the whole buffer goes when the reduction is over.
 * Where gradients travel in another type than backward writes, they are cast into a staging buffer
 * first, and a gradient that is to be cut goes at once.
 *
 * Reductions that hold a buffer which goes when they are over are bounded: before a unit's are
 * launched, those of all but the last max_inflight_reduces - 1 units are waited for. What a
 * micro-step leaves in flight is waited for before the next one's last forward, where activations
 * are largest.
 *
 * The edges are those of runtime.c; ownership and thread rule: runtime.h. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "core/sys.h"
#include "engine/shard/reasons.h"
#include "engine/shard/runtime_int.h"

int rt_reduce_build(struct zt_runtime *r, struct zt_error *err) {
    const struct zt_spec *s = r->env.spec;
    r->launched = calloc((size_t)r->layout.n_groups, sizeof *r->launched);
    if (!r->launched) return zt_fail(err, ZT_ENOMEM, "sharding runtime: no host memory");
    r->reduce_type = s->precision.reduce_dtype;
    r->every_micro = r->policy->when == ZT_WHEN_EVERY_MICRO_STEP && !s->parallelism.no_sync;
    r->bounded = r->policy->shard_gradients || r->reduce_type != r->recipe->grad;
    return 0;
}

/* ---- buffers ---- */

static enum zt_dtype own_type(const struct zt_runtime *r) {
    return r->policy->shard_gradients ? r->recipe->own : r->recipe->grad;
}

int rt_gradient_use(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = r->recipe->grad;
    int rc = 0;
    if (g->in_flight) RT_TRY(rt_reduce_wait(r, 0, err)); /* of a micro-step without a forward */
    if (g->grad || !g->def->trainable) return 0;
    RT_TRY(
        rt_buffer(r, g, g->def->elements, t, ZT_TAG_GRADIENTS, "gradients", &g->grad, NULL, err));
    rt_stored(r, ZT_ROW_GRADIENT, t);
    if (!r->policy->shard_gradients) rt_stored(r, ZT_ROW_OWN_GRADIENT, t);
    int64_t start = rt_now(r);
    RT_TRY(r->env.ops->fill(r->env.ctx, t, g->grad, 0.0f, g->def->elements, err));
    RT_TRY(rt_interval(r, ZT_IV_COMPUTE, "zero gradients", start, err));
out:
    return rc;
}

static int own_buffer(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    rt_stored(r, ZT_ROW_OWN_GRADIENT, own_type(r));
    return rt_buffer(r, g, g->own_count, own_type(r), ZT_TAG_GRADIENTS, "gradient shard",
                     &g->grad_own, NULL, err);
}

static void drop(struct zt_runtime *r, void **p) {
    zt_free(r->env.alloc, *p);
    *p = NULL;
}

void rt_gradient_drop(struct zt_runtime *r, struct rt_group *g) {
    drop(r, &g->grad);
    drop(r, &g->grad_own);
}

void rt_reduce_free(struct zt_runtime *r) {
    for (int i = 0; r->groups && i < r->layout.n_groups; i++) {
        rt_gradient_drop(r, &r->groups[i]);
        drop(r, &r->groups[i].staged);
    }
    free(r->launched);
}

void *rt_own_gradient(const struct zt_runtime *r, const struct rt_group *g, enum zt_dtype *t) {
    *t = own_type(r);
    if (r->policy->shard_gradients) return g->grad_own;
    return g->grad ? rt_at(g->grad, g->own_from, *t) : NULL;
}

void rt_reduce_account(struct zt_runtime *r) {
    int64_t sum = 0;
    for (int i = 0; i < r->layout.n_groups; i++) {
        const struct rt_group *g = &r->groups[i];
        if (g->grad && !g->in_flight) sum += rt_requested(g->def->elements, r->recipe->grad);
        if (g->grad_own) sum += rt_requested(g->own_count, own_type(r));
    }
    if (sum > r->peak_g) r->peak_g = sum;
}

/* ---- one reduction ---- */

static int convert(struct zt_runtime *r, void *to, enum zt_dtype tt, const void *from,
                   enum zt_dtype ft, int64_t n, struct zt_error *err) {
    if (tt == ft) return r->env.ops->copy(r->env.ctx, to, from, (size_t)n * zt_dtype_size(tt), err);
    return r->env.ops->cast(r->env.ctx, to, tt, from, ft, n, err);
}

/* Gradients in the type in which they travel. */
static int stage(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    int rc = 0;
    RT_TRY(rt_buffer(r, g, g->def->elements, r->reduce_type, ZT_TAG_COMMUNICATION, "staging",
                     &g->staged, NULL, err));
    int64_t start = rt_now(r);
    RT_TRY(convert(r, g->staged, r->reduce_type, g->grad, r->recipe->grad, g->def->elements, err));
    RT_TRY(rt_interval(r, ZT_IV_COMPUTE, "cast gradients", start, err));
    if (r->policy->shard_gradients) drop(r, &g->grad);
out:
    return rc;
}

static int launch(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = r->reduce_type;
    struct zt_coll_why why = {g->def->name, r->every_micro ? ZT_WHY_MICRO_STEP : ZT_WHY_WINDOW,
                              r->step, false};
    bool scatter = r->policy->reduce == ZT_REDUCE_SCATTER && r->shard > 1;
    int rc = 0;
    rt_used(r, ZT_ROW_GRADIENT, r->recipe->grad);
    rt_stored(r, ZT_ROW_REDUCE, t);
    if (t != r->recipe->grad) RT_TRY(stage(r, g, err));
    void *whole = g->staged ? g->staged : g->grad;
    void *part = scatter ? rt_at(whole, g->own_from, t) : whole;
    int64_t count = scatter ? g->own_count : g->def->elements;
    if (scatter && r->policy->shard_gradients && !g->grad_own && t == own_type(r)) {
        RT_TRY(own_buffer(r, g, err));
        part = g->grad_own;
        g->direct = true;
    }
    RT_TRY(rt_behind_compute(r, g->ready, r->reduce, err)); /* (1) */
    if (scatter)
        RT_TRY(zt_reduce_scatter(r->env.dp_shard, whole, part, count, t, ZT_SUM, r->reduce, &why,
                                 err));
    if (r->replicate > 1) {
        if (scatter)
            why.reason = r->every_micro ? ZT_WHY_MICRO_STEP_REPLICAS : ZT_WHY_WINDOW_REPLICAS;
        RT_TRY(zt_all_reduce(r->env.dp_replicate, part, count, t, ZT_SUM, r->reduce, &why, err));
    }
    RT_TRY(rt_collective_done(r, r->reduce, g->reduced, err));
    g->in_flight = true;
    r->launched[r->n_launched++] = (struct rt_launch){(int)(g - r->groups), r->batch};
out:
    return rc;
}

/* The own part joins the gradient shard. A buffer that is all own becomes it. */
static int join_shard(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = g->staged ? r->reduce_type : r->recipe->grad, own = own_type(r);
    const void *part = rt_at(g->staged ? g->staged : g->grad, g->own_from, t);
    if (g->grad_own)
        return r->env.ops->accumulate(r->env.ctx, g->grad_own, own, part, t, g->own_count, err);
    if (g->grad && t == own && g->own_count == g->def->elements) {
        rt_stored(r, ZT_ROW_OWN_GRADIENT, own);
        g->grad_own = g->grad;
        g->grad = NULL;
        return 0;
    }
    int rc = own_buffer(r, g, err);
    return rc ? rc : convert(r, g->grad_own, own, part, t, g->own_count, err);
}

/* Whole gradients are read in the type in which backward writes them. */
static int write_back(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = r->recipe->grad;
    return convert(r, rt_at(g->grad, g->own_from, t), t,
                   rt_at(g->staged, g->own_from, r->reduce_type), r->reduce_type, g->own_count,
                   err);
}

/* What was reduced (or, alone, need not be) goes where the update reads it; the rest goes. */
static int settle(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    int64_t start = rt_now(r);
    int rc = 0;
    rt_used(r, ZT_ROW_GRADIENT, r->recipe->grad);
    if (r->policy->shard_gradients)
        rc = g->direct ? 0 : join_shard(r, g, err);
    else if (g->staged)
        rc = write_back(r, g, err);
    g->direct = false;
    drop(r, &g->staged);
    if (r->policy->shard_gradients) drop(r, &g->grad);
    return rc ? rc : rt_interval(r, ZT_IV_UPDATE, "add gradients", start, err);
}

/* ---- order ---- */

/* The reductions of the oldest unit in flight. */
static int wait_oldest(struct zt_runtime *r, struct zt_error *err) {
    int n = 0, rc = 0;
    while (n < r->n_launched && r->launched[n].batch == r->launched[0].batch) {
        struct rt_group *g = &r->groups[r->launched[n++].group];
        RT_TRY(rt_compute_wait(r, g->reduced, err)); /* (2) */
        g->in_flight = false;
        RT_TRY(settle(r, g, err));
    }
    r->n_launched -= n;
    for (int i = 0; i < r->n_launched; i++) r->launched[i] = r->launched[i + n];
out:
    return rc;
}

int rt_reduce_wait(struct zt_runtime *r, int batches, struct zt_error *err) {
    int rc = 0;
    while (rc == 0 && r->n_launched && r->batch - r->launched[0].batch > batches)
        rc = wait_oldest(r, err);
    return rc;
}

/* The planted fault of the loss scaler's test: a gradient of this rank alone that is not finite. */
static int plant_infinity(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (!ZT_FAILPOINT("engine.infinity")) return 0;
    return r->env.ops->fill(r->env.ctx, r->recipe->grad, g->grad, INFINITY, 1, err);
}

int rt_reduce_unit(struct zt_runtime *r, int unit, struct zt_error *err) {
    const int *first = &r->layout.unit_first[unit];
    bool now = r->every_micro || r->last_micro, waited = false,
         alone = r->shard * r->replicate == 1;
    int rc = 0;
    for (int k = first[0]; k < first[1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        if (!g->def->trainable) continue;
        ZT_ASSERT(g->units_left > 0);
        if (--g->units_left || !now) continue;
        RT_TRY(plant_infinity(r, g, err));
        if (alone) {
            if (r->policy->shard_gradients) RT_TRY(settle(r, g, err));
            continue;
        }
        if (r->bounded && !waited)
            RT_TRY(rt_reduce_wait(r, r->env.spec->parallelism.max_inflight_reduces - 1, err));
        waited = true;
        RT_TRY(launch(r, g, err));
    }
    r->batch += waited;
    if (!r->env.spec->parallelism.overlap) RT_TRY(rt_reduce_wait(r, 0, err));
out:
    return rc;
}

int zt_runtime_wait_gradients(struct zt_runtime *r, struct zt_error *err) {
    ZT_ASSERT(r->in_window);
    int rc = rt_reduce_wait(r, 0, err);
    if (rc == 0) rt_reduce_account(r);
    return rc ? rc : rt_tensor_sum(r, err);
}
