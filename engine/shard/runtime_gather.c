/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_gather.c: parameters made whole and let go again. The edges are those of
 * runtime.c; ownership and thread rule: runtime.h. */
#include "engine/shard/runtime_int.h"

/* Queues the all-gather of a group's whole parameters from the shards. */
static int gather(struct zt_runtime *r, struct rt_group *g, const char *reason, struct zt_error *err) {
    enum zt_dtype t = g->def->dtype;
    struct zt_coll_why why = {g->def->name, reason, r->step, false};
    int rc = 0;
    if (!g->full) {
        RT_TRY(zt_malloc(r->env.alloc, (size_t)g->def->elements * zt_dtype_size(t),
                         zt_device_compute(r->env.device), ZT_TAG_PARAMETERS, g->def->name,
                         &g->full, err));
    }
    const void *send =
        g->full == g->store ? rt_at(g->store, r->shard_index * g->def->shard, t) : (char *)g->store;
    RT_TRY(rt_behind_compute(r, g->vacant, r->gather, err)); /* (4), (5) */
    RT_TRY(zt_all_gather(r->env.dp_shard, send, g->full, g->def->shard, t, r->gather, &why, err));
    RT_TRY(rt_collective_done(r, r->gather, g->gathered, err));
out:
    return rc;
}

int rt_acquire(struct zt_runtime *r, int unit, const char *reason, struct zt_error *err) {
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        int rc = 0;
        if (g->full) continue;
        if ((rc = gather(r, g, reason, err)) ||
            (rc = rt_compute_wait(r, g->gathered, err))) /* (3) */
            return rc;
    }
    return 0;
}

/* Lets gathered copies go. A group shared by several units is gathered again for the next of them.
 */
void rt_release(struct zt_runtime *r, int unit) {
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        if (g->full == g->store) continue;
        zt_free(r->env.alloc, g->full);
        g->full = NULL;
    }
}

/* reshard_after_forward: the default keeps the root unit, zero3 reshards everything. */
bool rt_kept_after_forward(const struct zt_runtime *r, int unit) {
    const struct zt_spec *s = r->env.spec;
    if (r->evaluating) return false;
    if (s->parallelism.reshard == ZT_RESHARD_FALSE) return true;
    return s->parallelism.reshard == ZT_RESHARD_DEFAULT && r->policy->mode != ZT_ZERO3 && unit == 0;
}

/* ---- after the update ---- */

int rt_gather_updated(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    if (r->policy->gather != ZT_GATHER_AFTER_UPDATE || r->shard == 1) return 0;
    return gather(r, g, "gather what was updated", err);
}

int rt_gather_updated_wait(struct zt_runtime *r, struct zt_error *err) {
    if (r->policy->gather != ZT_GATHER_AFTER_UPDATE || r->shard == 1) return 0;
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        int rc = g->def->trainable ? rt_compute_wait(r, g->gathered, err) : 0;
        if (rc) return rc;
    }
    return 0;
}
