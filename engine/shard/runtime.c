/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime.c: windows, units and the edges between streams.
 *
 *   compute  fwd u0 u1 .. uL      bwd u0.. uL  uL-1 .. u1  u0        norm  AdamW
 *               ^     |                      |    |          \        ^      |
 *             (3)   (4)                     (1)  (1)         (1)     (2)    (5)
 *               |     v                      v    v            v      |      v
 *   gather   AG u1  AG u2 ..        reduce   RS|AR uL, uL-1, .. u0 ---+    AG (zero1, zero2)
 *
 *   (1) compute -> reduce   `ready` of the group: the last backward of its units is queued; its
 *                           gradients may be read. Window's last micro-step, or each (policy.when).
 *   (2) reduce -> compute   `reduced` of the group: waited for in launch order, either before the
 *                           update or, where sharded gradients are added up, before the next
 *                           reduction is launched and before the group's next backward. After it
 *                           a gradient buffer may be freed or written again.
 *   (3) gather -> compute   `gathered` of the group: the whole parameters are there.
 *   (4) compute -> gather   before a gather into a new buffer: the memory may be that of a gathered
 *                           copy that compute has just finished with.
 *   (5) compute -> gather   after the update: the stepped shard may be sent.
 *
 * Waits are issued at fixed points of program order and buffers are freed only after the wait that
 * covers them, so the sequence of allocator calls depends on the program alone. Which edges occur
 * is read from the policy row: ddp uses (1) and (2) only. Ownership and thread rule: runtime.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"
#include "engine/shard/runtime_int.h"

int64_t rt_now(const struct zt_runtime *r) {
    return zt_device_ops(r->env.device)->now_ns(r->env.device);
}

int rt_interval(struct zt_runtime *r, enum zt_interval_kind k, const char *name, int64_t from,
                struct zt_error *err) {
    struct zt_interval iv = {from, rt_now(r), k, NULL, name, false};
    if (!r->env.intervals || iv.end_ns <= from) return 0;
    if (zt_intervals_add(r->env.intervals, iv))
        return zt_fail(err, ZT_ENOMEM, "step intervals: no host memory");
    return 0;
}

/* ---- create, destroy ---- */

static int check_mode(const struct zt_runtime_env *env, const struct zt_policy *row,
                      const struct zt_recipe *recipe, struct zt_error *err) {
    const struct zt_spec *s = env->spec;
    if (!row->supported)
        return zt_fail(err, ZT_EUNSUPPORTED, "parallelism.mode: %s is not in this version; use ddp",
                       zt_mode_name(row->mode));
    if (!recipe || !recipe->supported)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "precision.recipe: %s is not in this version; use fp32",
                       s->precision.recipe);
    if (s->precision.reduce_dtype != recipe->grad)
        return zt_fail(
            err, ZT_EUNSUPPORTED,
            "precision.reduce_dtype: %s with %s gradients is not in this version; use %s",
            zt_dtype_name(s->precision.reduce_dtype), zt_dtype_name(recipe->grad),
            zt_dtype_name(recipe->grad));
    if (env->mesh.tensor != 1)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "parallelism.tensor_parallel_degree: %d is not in this "
                       "version; use 1",
                       env->mesh.tensor);
    if (row->mode == ZT_DDP && env->mesh.shard != 1)
        return zt_fail(err, ZT_EINVAL,
                       "parallelism.data_parallel_shard_degree: %d, but ddp keeps "
                       "everything whole and needs 1; use the replicate degree",
                       env->mesh.shard);
    return 0;
}

static int create_events(struct zt_runtime *r, struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    int rc = 0;
    if (r->shard * r->replicate == 1) return 0; /* nothing is ever sent */
    RT_TRY(dev->stream_create(r->env.device, ZT_STREAM_REDUCE, &r->reduce, err));
    if (r->policy->gather != ZT_GATHER_NEVER)
        RT_TRY(dev->stream_create(r->env.device, ZT_STREAM_GATHER, &r->gather, err));
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        RT_TRY(dev->event_create(r->env.device, &g->ready, err));
        RT_TRY(dev->event_create(r->env.device, &g->reduced, err));
        RT_TRY(dev->event_create(r->env.device, &g->vacant, err));
        RT_TRY(dev->event_create(r->env.device, &g->gathered, err));
    }
out:
    return rc;
}

int rt_create(const struct zt_runtime_env *env, const struct zt_policy *row,
              struct zt_runtime **out, struct zt_error *err) {
    const struct zt_spec *s = env->spec;
    int rc = 0;
    *out = NULL;
    struct zt_runtime *r = calloc(1, sizeof *r);
    if (!r) return zt_fail(err, ZT_ENOMEM, "sharding runtime: no host memory");
    r->env = *env;
    r->policy = row;
    r->recipe = zt_recipe_find(s->precision.recipe);
    r->shard = env->mesh.shard;
    r->replicate = env->mesh.replicate;
    r->shard_index = zt_mesh_coords(env->mesh, env->rank).shard;
    RT_TRY(check_mode(env, row, r->recipe, err));
    struct zt_layout_options o = {
        .shard_degree = r->shard,
        .dtype = r->recipe->param,
        .bucket_bytes = s->parallelism.bucket_mib * 1048576.0,
        .reduce_dtype = s->precision.reduce_dtype,
        .persistence_threshold =
            row->gather == ZT_GATHER_BEFORE_USE ? s->parallelism.persistence_threshold : 0};
    RT_TRY(zt_unit_layout_build(env->table, &o, &r->layout, err));
    RT_TRY(zt_model_walk_build(env->table, &r->walk, err));
    RT_TRY(rt_state_build(r, err));
    if (s->optimizer.state_init == ZT_STATE_EAGER) RT_TRY(rt_state_moments(r, err));
    RT_TRY(create_events(r, err));
    *out = r;
out:
    if (rc) zt_runtime_destroy(r);
    return rc;
}

int zt_runtime_create(const struct zt_runtime_env *env, struct zt_runtime **out,
                      struct zt_error *err) {
    return rt_create(env, zt_policy(env->spec->parallelism.mode), out, err);
}

void zt_runtime_destroy(struct zt_runtime *r) {
    if (!r) return;
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    if (r->reduce)
        dev->stream_destroy(r->reduce); /* waits for queued work: buffers are free after */
    if (r->gather) dev->stream_destroy(r->gather);
    rt_state_free(r);
    zt_unit_layout_free(&r->layout);
    free(r);
}

/* ---- edges ---- */

int rt_compute_wait(struct zt_runtime *r, struct zt_event *e, struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    int64_t stalled = 0, end;
    int rc = dev->stream_wait_event(zt_device_compute(r->env.device), e, &stalled, err);
    if (rc) return rc;
    end = rt_now(r);
    return stalled > 0 ? rt_interval(r, ZT_IV_STALL, "wait", end - stalled, err) : 0;
}

/* Runs on the stream after a collective: the supervisor sees that communication goes on. */
static int touch_progress(void *arg, struct zt_error *err) {
    struct zt_runtime *r = arg;
    (void)err;
    atomic_store(&r->env.progress->last_progress_ns, rt_now(r));
    return 0;
}

int rt_collective_done(struct zt_runtime *r, struct zt_stream *s, struct zt_event *e,
                       struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    int rc = r->env.progress ? dev->submit(s, touch_progress, r, err) : 0;
    return rc ? rc : dev->event_record(e, s, err);
}

/* Orders `s` behind everything queued on compute so far, by event e: edges (1), (4), (5). */
int rt_behind_compute(struct zt_runtime *r, struct zt_event *e, struct zt_stream *s,
                      struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    int rc = dev->event_record(e, zt_device_compute(r->env.device), err);
    return rc ? rc : dev->stream_wait_event(s, e, NULL, err);
}

int zt_runtime_wait_gradients(struct zt_runtime *r, struct zt_error *err) {
    ZT_ASSERT(r->in_window);
    return rt_wait_launched(r, err);
}

/* ---- windows ---- */

int zt_runtime_window_begin(struct zt_runtime *r, int64_t step, struct zt_error *err) {
    if (r->evaluating || r->n_launched)
        return zt_fail(err, ZT_EINTERNAL, "step %lld begins while %s is open", (long long)step,
                       r->evaluating ? "an evaluation" : "a reduction");
    r->step = step;
    r->in_window = true;
    r->peak_g = r->requested_g;
    r->sent_bytes = 0;
    return 0;
}

int zt_runtime_micro_begin(struct zt_runtime *r, int64_t micro, bool last, struct zt_error *err) {
    if (!r->in_window)
        return zt_fail(err, ZT_EINTERNAL, "micro-step %lld outside a window", (long long)micro);
    r->last_micro = last;
    for (int i = 0; i < r->layout.n_groups; i++)
        r->groups[i].units_left = r->groups[i].def->n_units;
    return 0;
}

int zt_runtime_eval_begin(struct zt_runtime *r, struct zt_error *err) {
    if (r->in_window) return zt_fail(err, ZT_EINTERNAL, "evaluation inside a window");
    r->evaluating = true;
    return 0;
}

int zt_runtime_eval_end(struct zt_runtime *r, struct zt_error *err) {
    if (!r->evaluating) return zt_fail(err, ZT_EINTERNAL, "evaluation ends without a beginning");
    r->evaluating = false;
    return 0;
}

/* ---- units ---- */

static void fill_view(struct zt_runtime *r, int unit, bool gradients, struct zt_unit_view *view) {
    const struct zt_unit_def *u = &r->env.table->units[unit];
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) {
        const struct zt_flat_entry *e = &r->layout.entries[r->layout.entry_of[t]];
        struct rt_group *g = &r->groups[r->layout.group_of[t]];
        r->view_param[t] = rt_at(g->full, e->offset, g->def->dtype);
        r->view_grad[t] =
            gradients && g->grad ? rt_at(g->grad, e->offset, r->recipe->grad) : NULL;
    }
    view->param = r->view_param + u->first_tensor;
    view->grad = r->view_grad + u->first_tensor;
}

static int forward_begin(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    struct zt_runtime *r = arg;
    if (!r->in_window && !r->evaluating)
        return zt_fail(err, ZT_EINTERNAL, "forward of unit %d outside a window and an evaluation",
                       unit);
    int rc = rt_acquire(r, unit, r->evaluating ? "gather for evaluation" : "gather for forward", err);
    if (rc == 0) fill_view(r, unit, false, view);
    return rc;
}

static int forward_end(void *arg, int unit, struct zt_error *err) {
    struct zt_runtime *r = arg;
    (void)err;
    if (!rt_kept_after_forward(r, unit)) rt_release(r, unit);
    return 0;
}

static int backward_begin(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    struct zt_runtime *r = arg;
    if (!r->in_window)
        return zt_fail(err, ZT_EINTERNAL, "backward of unit %d outside a window", unit);
    int rc = rt_acquire(r, unit, "gather for backward: freed after forward", err);
    if (rc) return rc;
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        /* Its buffer of the last micro-step may still be read by the reduce stream. */
        if (g->in_flight && (rc = rt_wait_launched(r, err))) return rc;
        if ((rc = rt_gradient_use(r, g, err))) return rc;
    }
    fill_view(r, unit, true, view);
    return 0;
}

static int parameters_done(void *arg, int unit, struct zt_error *err) {
    (void)err;
    rt_release(arg, unit);
    return 0;
}

static int backward_end(void *arg, int unit, struct zt_error *err) {
    struct zt_runtime *r = arg;
    rt_release(r, unit);
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++) {
        struct rt_group *g = &r->groups[r->layout.unit_groups[k]];
        ZT_ASSERT(g->units_left > 0);
        int rc = --g->units_left ? 0 : rt_group_finished(r, g, err);
        if (rc) return rc;
    }
    return 0;
}

struct zt_unit_source zt_runtime_source(struct zt_runtime *r) {
    return (struct zt_unit_source){r, forward_begin, forward_end, backward_begin, parameters_done,
                                   backward_end};
}
