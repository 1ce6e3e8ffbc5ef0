/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/traffic.c: walks the units of a step as the runtime does, without doing anything. */
#include "engine/shard/traffic.h"

#include <stdlib.h>

#include "engine/shard/walk.h"

struct walker {
    const struct zt_spec *spec;
    const struct zt_unit_layout *layout;
    const struct zt_policy *policy;
    const struct zt_recipe *recipe;
    struct zt_walk walk;
    int at; /* place of the walk */
    int shard, replicate;
    bool *whole, *sliced;      /* by group: gathered, kept in slices */
    int *backward, *left;      /* by group: units of backward that add to it */
    bool every_micro, last;
    int64_t micro, held;       /* bytes of gathered copies */
    struct zt_traffic_peak peak;
    int (*each)(void *, const struct zt_traffic_event *);
    void *arg;
};

static enum zt_dtype sent_type(const struct walker *w, int group) {
    return zt_recipe_gathered(w->recipe, w->layout->groups[group].trainable);
}

static bool gathered(const struct walker *w, int group) {
    return w->policy->gather == ZT_GATHER_BEFORE_USE && !w->layout->groups[group].persistent &&
           (w->shard > 1 || sent_type(w, group) != w->layout->groups[group].dtype);
}

static int64_t copy_bytes(const struct walker *w, int group, int parts) {
    return w->layout->groups[group].elements / parts *
           (int64_t)zt_dtype_size(sent_type(w, group));
}

static int tell(struct walker *w, enum zt_traffic_kind kind, enum zt_traffic_why why,
                enum zt_axis axis, int size, int group, int64_t elements, enum zt_dtype type) {
    struct zt_traffic_event e = {kind, why, axis, size, group, w->micro, type, elements, 0};
    int64_t once = elements / size * (size - 1) * (int64_t)zt_dtype_size(type);
    /* elements of a replica's shard need not divide by the replicas: 2 (R-1)/R, rounded as counted */
    e.sent = kind == ZT_TRAFFIC_REDUCE
                 ? 2 * elements * (int64_t)zt_dtype_size(type) * (size - 1) / size
                 : once;
    return size > 1 ? w->each(w->arg, &e) : 0;
}

/* ---- parameters ---- */

static int ask(struct walker *w, int place) {
    const struct zt_unit_layout *l = w->layout;
    int unit = w->walk.unit[place], rc = 0;
    for (int k = l->unit_first[unit]; k < l->unit_first[unit + 1] && !rc; k++) {
        int g = l->unit_groups[k];
        if (!gathered(w, g) || w->whole[g]) continue;
        int size = w->sliced[g] ? w->walk.slices : w->shard;
        w->whole[g] = true;
        w->held += copy_bytes(w, g, 1) - (w->sliced[g] ? copy_bytes(w, g, w->walk.slices) : 0);
        w->sliced[g] = false;
        rc = tell(w, ZT_TRAFFIC_GATHER,
                  place < w->walk.n_forward ? ZT_TRAFFIC_FORWARD : ZT_TRAFFIC_BACKWARD,
                  ZT_AXIS_SHARD, size, g, l->groups[g].elements, sent_type(w, g));
    }
    return rc;
}

static void let_go(struct walker *w, int group) {
    enum zt_walk_fate fate = zt_walk_after(&w->walk, group, w->at, w->walk.n);
    if (fate == ZT_WALK_STAYS) return;
    w->whole[group] = false;
    w->held -= copy_bytes(w, group, 1);
    if (fate == ZT_WALK_SLICED) {
        w->sliced[group] = true;
        w->held += copy_bytes(w, group, w->walk.slices);
    }
}

/* ---- gradients ---- */

static int reduce(struct walker *w, int group) {
    const struct zt_flat_group *d = &w->layout->groups[group];
    enum zt_dtype t = w->spec->precision.reduce_dtype;
    bool scatter = w->policy->reduce == ZT_REDUCE_SCATTER && w->shard > 1;
    int rc = 0;
    if (scatter)
        rc = tell(w, ZT_TRAFFIC_SCATTER, ZT_TRAFFIC_GRADIENTS, ZT_AXIS_SHARD, w->shard, group,
                  d->elements, t);
    return rc ? rc
              : tell(w, ZT_TRAFFIC_REDUCE, ZT_TRAFFIC_GRADIENTS, ZT_AXIS_REPLICATE, w->replicate,
                     group, scatter ? d->shard : d->elements, t);
}

/* ---- the walk ---- */

static int visit(struct walker *w) {
    const struct zt_unit_layout *l = w->layout;
    const bool backward = w->at >= w->walk.n_forward;
    int64_t *peak = backward ? &w->peak.backward : &w->peak.forward;
    int unit = w->walk.unit[w->at], rc = 0;
    for (int i = w->at; i <= w->at + w->walk.prefetch && i < w->walk.n && !rc; i++)
        rc = ask(w, i);
    if (w->held > *peak) *peak = w->held;
    for (int k = l->unit_first[unit]; k < l->unit_first[unit + 1] && !rc; k++) {
        int g = l->unit_groups[k];
        if (gathered(w, g)) let_go(w, g);
        if (backward && l->groups[g].trainable && --w->left[g] == 0 && (w->every_micro || w->last))
            rc = reduce(w, g);
    }
    return rc;
}

static int micro_step(struct walker *w) {
    int rc = 0;
    for (int g = 0; g < w->layout->n_groups; g++) w->left[g] = w->backward[g];
    for (w->at = 0; w->at < w->walk.n && !rc; w->at++) rc = visit(w);
    return rc;
}

/* What every rank keeps whole and steps in part. */
static int updated(struct walker *w) {
    int rc = 0;
    w->micro = -1;
    for (int g = 0; g < w->layout->n_groups && !rc; g++) {
        const struct zt_flat_group *d = &w->layout->groups[g];
        bool whole = w->policy->gather == ZT_GATHER_AFTER_UPDATE ||
                     (w->policy->shard_parameters && d->persistent);
        if (d->trainable && whole)
            rc = tell(w, ZT_TRAFFIC_GATHER, ZT_TRAFFIC_UPDATED, ZT_AXIS_SHARD, w->shard, g,
                      d->elements, d->dtype);
    }
    return rc;
}

/* Once per window, over the own parts of all groups. */
static int partial(struct walker *w, const struct zt_model_table *table, struct zt_error *err) {
    enum zt_dtype t = w->policy->shard_gradients ? w->recipe->own : w->recipe->grad;
    int64_t elements;
    int rc = zt_partial_elements(w->layout, table, w->spec->parallelism.sequence_parallel,
                                 w->policy->shard_optimizer, &elements, err);
    w->micro = -1;
    if (rc || !elements) return rc;
    return tell(w, ZT_TRAFFIC_REDUCE, ZT_TRAFFIC_PARTIAL, ZT_AXIS_TENSOR, table->tensor_degree, -1,
                elements, t);
}

static int prepare(struct walker *w, const struct zt_model_table *table, struct zt_error *err) {
    const struct zt_spec *s = w->spec;
    size_t groups = (size_t)w->layout->n_groups + 1;
    int rc = zt_walk_build(s, w->policy, s->parallelism.shard, table, w->layout, &w->walk, err);
    if (rc) return rc;
    w->shard = s->parallelism.shard;
    w->replicate = s->parallelism.replicate;
    w->every_micro = w->policy->when == ZT_WHEN_EVERY_MICRO_STEP && !s->parallelism.no_sync;
    w->whole = calloc(groups, sizeof *w->whole);
    w->sliced = calloc(groups, sizeof *w->sliced);
    w->backward = calloc(groups, sizeof *w->backward);
    w->left = calloc(groups, sizeof *w->left);
    if (!w->whole || !w->sliced || !w->backward || !w->left)
        return zt_fail(err, ZT_ENOMEM, "no host memory for the collectives of a step");
    for (int g = 0; g < w->layout->n_groups; g++)
        w->backward[g] = zt_walk_backward_units(&w->walk, g);
    return 0;
}

int zt_traffic_step(const struct zt_spec *spec, const struct zt_model_table *table,
                    const struct zt_unit_layout *layout,
                    int (*each)(void *arg, const struct zt_traffic_event *e), void *arg,
                    struct zt_traffic_peak *peak, struct zt_error *err) {
    struct walker w = {.spec = spec,
                       .layout = layout,
                       .policy = zt_policy(spec->parallelism.mode),
                       .recipe = zt_recipe_find(spec->precision.recipe),
                       .each = each,
                       .arg = arg};
    int64_t n = zt_spec_accumulation(spec);
    int rc = prepare(&w, table, err);
    for (w.micro = 0; w.micro < n && !rc; w.micro++) {
        w.last = w.micro == n - 1;
        rc = micro_step(&w);
    }
    if (!rc) rc = partial(&w, table, err);
    if (!rc) rc = updated(&w);
    if (!rc && peak) *peak = w.peak;
    zt_walk_free(&w.walk);
    free(w.whole);
    free(w.sliced);
    free(w.backward);
    free(w.left);
    return rc;
}
