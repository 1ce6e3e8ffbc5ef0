/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/walk.c: the rules are those at the top of walk.h. Pure. */
#include "engine/shard/walk.h"

#include <stdlib.h>
#include <string.h>

static int set_reshard(struct zt_walk *w, const struct zt_spec *s, const struct zt_policy *policy,
                       int shard, struct zt_error *err) {
    int m = s->parallelism.reshard_int;
    w->reshard = s->parallelism.reshard;
    w->prefetch = s->parallelism.prefetch;
    if (policy->mode == ZT_ZERO3 && w->reshard == ZT_RESHARD_DEFAULT)
        w->reshard = ZT_RESHARD_TRUE; /* the root too */
    if (w->reshard != ZT_RESHARD_INT || policy->gather != ZT_GATHER_BEFORE_USE) return 0;
    if (m < 1 || shard % m)
        return zt_fail(err, ZT_EINVAL,
                       "parallelism.reshard_after_forward: %d does not divide the shard degree %d",
                       m, shard);
    w->reshard = m == 1 ? ZT_RESHARD_FALSE : ZT_RESHARD_TRUE;
    if (m > 1 && m < shard) w->slices = m;
    return 0;
}

int zt_walk_build(const struct zt_spec *spec, const struct zt_policy *policy, int shard_degree,
                  const struct zt_model_table *table, const struct zt_unit_layout *layout,
                  struct zt_walk *out, struct zt_error *err) {
    struct zt_model_walk m;
    memset(out, 0, sizeof *out);
    int rc = zt_model_walk_build(table, &m, err);
    if (rc) return rc;
    out->layout = layout;
    out->n_forward = m.n_forward;
    out->n = m.n_forward + m.n_backward;
    out->unit = calloc((size_t)out->n + 1, sizeof *out->unit);
    if (out->unit) {
        memcpy(out->unit, m.forward, (size_t)m.n_forward * sizeof *m.forward);
        memcpy(out->unit + m.n_forward, m.backward, (size_t)m.n_backward * sizeof *m.backward);
        rc = set_reshard(out, spec, policy, shard_degree, err);
    } else
        rc = zt_fail(err, ZT_ENOMEM, "no host memory for the walk of %d units", out->n);
    zt_model_walk_free(&m);
    if (rc) zt_walk_free(out);
    return rc;
}

void zt_walk_free(struct zt_walk *w) {
    free(w->unit);
    memset(w, 0, sizeof *w);
}

bool zt_walk_uses(const struct zt_walk *w, int place, int group) {
    const int *first = &w->layout->unit_first[w->unit[place]];
    for (int k = first[0]; k < first[1]; k++)
        if (w->layout->unit_groups[k] == group) return true;
    return false;
}

int zt_walk_backward_units(const struct zt_walk *w, int group) {
    int n = 0;
    for (int i = w->n_forward; i < w->n && w->layout->groups[group].trainable; i++)
        n += zt_walk_uses(w, i, group);
    return n;
}

static bool kept(const struct zt_walk *w, int group) {
    return w->reshard == ZT_RESHARD_FALSE ||
           (w->reshard == ZT_RESHARD_DEFAULT &&
            (zt_walk_uses(w, 0, group) || zt_walk_uses(w, w->n_forward - 1, group)));
}

enum zt_walk_fate zt_walk_after(const struct zt_walk *w, int group, int at, int end) {
    int next = at + 1;
    while (next < end && !zt_walk_uses(w, next, group)) next++;
    if (next == end) return ZT_WALK_GOES;
    if (next <= at + 1 + w->prefetch || kept(w, group)) return ZT_WALK_STAYS;
    return w->slices ? ZT_WALK_SLICED : ZT_WALK_GOES;
}
