/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_reduce.c: gradient buffers and their reductions. The edges are those of
 * runtime.c; ownership and thread rule: runtime.h. */
#include "engine/shard/runtime_int.h"

/* ---- buffers ---- */

static int gradient_buffer(struct zt_runtime *r, struct rt_group *g, int64_t elements,
                           const char *what, void **out, struct zt_error *err) {
    int rc = rt_buffer(r, g, elements, r->recipe->grad, ZT_TAG_GRADIENTS, what, out,
                       &r->requested_g, err);
    if (rc) return rc;
    if (r->requested_g > r->peak_g) r->peak_g = r->requested_g;
    int64_t start = rt_now(r);
    rc = r->env.ops->fill(r->env.ctx, r->recipe->grad, *out, 0.0f, elements, err);
    return rc ? rc : rt_interval(r, ZT_IV_COMPUTE, "zero gradients", start, err);
}

int rt_gradient_use(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (g->grad || !g->def->trainable) return 0;
    return gradient_buffer(r, g, g->def->elements, "gradients", &g->grad, err);
}

static int gradient_own(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (g->grad_own) return 0;
    return gradient_buffer(r, g, g->own_count, "gradient shard", &g->grad_own, err);
}

static void drop(struct zt_runtime *r, void **p, int64_t elements) {
    if (!*p) return;
    zt_free(r->env.alloc, *p);
    *p = NULL;
    r->requested_g -= rt_requested(elements, r->recipe->grad);
}

void rt_gradient_drop(struct zt_runtime *r, struct rt_group *g) {
    drop(r, &g->grad, g->def->elements);
    drop(r, &g->grad_own, g->own_count);
}

void *rt_own_gradient(const struct zt_runtime *r, const struct rt_group *g, enum zt_dtype *t) {
    *t = r->recipe->grad;
    if (r->policy->shard_gradients) return g->grad_own;
    return g->grad ? rt_at(g->grad, g->own_from, *t) : NULL;
}

/* ---- reductions ---- */

/* Queues the reduction of a group's gradients: in the shard group, then over the replicas. */
static int reduce(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = r->recipe->grad;
    struct zt_coll_why why = {g->def->name, "gradients of the window", r->step, false};
    bool scatter = r->policy->reduce == ZT_REDUCE_SCATTER;
    void *part = scatter ? rt_at(g->grad, g->own_from, t) : g->grad;
    int64_t count = scatter ? g->own_count : g->def->elements;
    int rc = 0;
    if (r->policy->when == ZT_WHEN_EVERY_MICRO_STEP) why.reason = "gradients of the micro-step";
    RT_TRY(rt_behind_compute(r, g->ready, r->reduce, err)); /* (1) */
    if (r->shard > 1) {
        if (scatter)
            RT_TRY(zt_reduce_scatter(r->env.dp_shard, g->grad, part, count, t, ZT_SUM, r->reduce,
                                     &why, err));
        else
            RT_TRY(zt_all_reduce(r->env.dp_shard, part, count, t, ZT_SUM, r->reduce, &why, err));
    }
    if (r->replicate > 1)
        RT_TRY(zt_all_reduce(r->env.dp_replicate, part, count, t, ZT_SUM, r->reduce, &why, err));
    RT_TRY(rt_collective_done(r, r->reduce, g->reduced, err));
    g->in_flight = true;
    r->launched[r->n_launched++] = (int)(g - r->groups);
out:
    return rc;
}

/* Adds a reduced micro-step into the gradient shard and lets the whole buffer go. */
static int keep_shard(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = r->recipe->grad;
    int rc = gradient_own(r, g, err);
    if (rc) return rc;
    int64_t start = rt_now(r);
    rc = r->env.ops->add(r->env.ctx, t, g->grad_own, g->grad_own, rt_at(g->grad, g->own_from, t),
                         g->own_count, err);
    drop(r, &g->grad, g->def->elements);
    return rc ? rc : rt_interval(r, ZT_IV_UPDATE, "add gradients", start, err);
}

/* Edge (2) for every launched group, oldest first. */
int rt_wait_launched(struct zt_runtime *r, struct zt_error *err) {
    for (int i = 0; i < r->n_launched; i++) {
        struct rt_group *g = &r->groups[r->launched[i]];
        int rc = rt_compute_wait(r, g->reduced, err);
        if (rc) return rc;
        g->in_flight = false;
        if (r->policy->shard_gradients && (rc = keep_shard(r, g, err))) return rc;
    }
    r->n_launched = 0;
    return 0;
}

/* The last backward of the group's units in this micro-step is queued. */
int rt_group_finished(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    int rc = 0;
    bool now = r->policy->when == ZT_WHEN_EVERY_MICRO_STEP || r->last_micro;
    if (!g->def->trainable || !now) return 0;
    if (r->shard * r->replicate == 1) return r->policy->shard_gradients ? keep_shard(r, g, err) : 0;
    /* Sharded gradients: one whole buffer in flight at a time bounds the memory. */
    if (r->policy->shard_gradients) RT_TRY(rt_wait_launched(r, err));
    RT_TRY(reduce(r, g, err));
    if (!r->env.spec->parallelism.overlap) RT_TRY(rt_wait_launched(r, err));
out:
    return rc;
}
