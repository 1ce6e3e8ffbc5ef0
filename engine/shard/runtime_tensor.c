/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_tensor.c: what the ranks of a tensor group do with each other. They see the
 * same data and hold parts of the same tensors (or, of norms and row biases, the whole of them), so
 * nothing of their parameters is gathered; the model's own collectives are inside its layers.
 *
 * Under sequence parallelism a rank's gradients of those whole tensors come from its part of the
 * rows; those of norms inside the heads always come from its own heads. They are added up once per
 * window, in one collective over the parts that this rank owns, after the data-parallel reduction:
 * sums over the two axes commute, ranks of one tensor group own the same elements, and so it takes
 * 1/S of the bytes and one latency where a sum before each reduction takes one per unit and
 * micro-step. Ownership and thread rule: runtime.h. */
#include "engine/shard/reasons.h"
#include "engine/shard/runtime_int.h"

bool rt_piece_next(const struct zt_runtime *r, const struct rt_group *g, int64_t from,
                   int64_t count, struct zt_flat_piece *p) {
    return zt_flat_piece_next(&r->layout, r->env.table, g->def, from, count, p);
}

bool rt_speaks(const struct zt_runtime *r, int tensor) {
    return zt_table_speaks(r->env.table, tensor);
}

/* The next piece of own elements whose gradient is partial. */
static bool partial_next(const struct zt_runtime *r, const struct rt_group *g, struct zt_flat_piece *p) {
    while (g->def->trainable && rt_piece_next(r, g, g->own_from, g->own_count, p))
        if (zt_tensor_is_partial(&r->env.table->tensors[p->tensor],
                                 r->env.spec->parallelism.sequence_parallel))
            return true;
    return false;
}

int rt_tensor_build(struct zt_runtime *r, struct zt_error *err) {
    return zt_partial_elements(&r->layout, r->env.table, r->env.spec->parallelism.sequence_parallel,
                               r->policy->shard_optimizer, &r->partial, err);
}

static enum zt_dtype own_type(const struct zt_runtime *r) {
    enum zt_dtype t;
    rt_own_gradient(r, &r->groups[0], &t);
    return t;
}

/* Between the groups' gradients and one buffer. */
static int move(struct zt_runtime *r, void *packed, bool in, struct zt_error *err) {
    int64_t start = rt_now(r), at = 0;
    enum zt_dtype t = own_type(r);
    for (int i = 0; i < r->layout.n_groups; i++)
        for (struct zt_flat_piece p = {0}; partial_next(r, &r->groups[i], &p); at += p.count) {
            void *base = rt_own_gradient(r, &r->groups[i], &t);
            if (!base)
                return zt_fail(err, ZT_EINTERNAL, "group %s has no gradient in step %lld",
                               r->groups[i].def->name, (long long)r->step);
            void *own = rt_at(base, p.at, t), *there = rt_at(packed, at, t);
            int rc = r->env.ops->copy(r->env.ctx, in ? there : own, in ? own : there,
                                      (size_t)p.count * zt_dtype_size(t), err);
            if (rc) return rc;
        }
    /* up to what the shard with most of them has, zeros travel */
    int rc = in && at < r->partial
                 ? r->env.ops->fill(r->env.ctx, t, rt_at(packed, at, t), 0.0f, r->partial - at, err)
                 : 0;
    return rc ? rc : rt_interval(r, ZT_IV_UPDATE, "partial gradients", start, err);
}

int rt_tensor_sum(struct zt_runtime *r, struct zt_error *err) {
    struct zt_coll_why why = {"", ZT_WHY_PARTIAL, r->step, false};
    struct zt_stream *compute = zt_device_compute(r->env.device);
    const enum zt_dtype t = own_type(r);
    void *packed = NULL;
    int rc = 0;
    if (r->tensor_summed || !r->partial) return 0;
    RT_TRY(zt_malloc(r->env.alloc, (size_t)r->partial * zt_dtype_size(t), compute,
                     ZT_TAG_COMMUNICATION, "partial gradients", &packed, err));
    RT_TRY(move(r, packed, true, err));
    RT_TRY(zt_all_reduce(r->env.tensor, packed, r->partial, t, ZT_SUM, compute, &why, err));
    RT_TRY(zt_runtime_queued(r, err));
    RT_TRY(move(r, packed, false, err));
    r->tensor_summed = true;
out:
    zt_free(r->env.alloc, packed);
    return rc;
}
