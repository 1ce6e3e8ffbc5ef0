/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime.c: windows, units and the edges between streams.
 *
 * Parameters gathered before use (zero3, fsdp), one unit ahead: u1 computes while u2 travels.
 *
 *   compute   fwd u1  fwd u2 ..  head fwd, bwd  bwd u2  bwd u1     norm, AdamW
 *             ^   |   ^                         ^    \  ^    \     ^        \
 *            (3) (4) (3)                       (3)  (1)(3)  (1)   (2)       (5)
 *             |   v   |                         |     \ |     \    |         \
 *   gather   AG u1   AG u2 ..              AG u2, AG u1 .  .  \ .  |  . . .  AG (zero1, zero2)
 *   reduce                                           RS u2 .. RS u1 +
 *
 *   (1) compute -> reduce  `ready`: the last backward of the group's units is queued, and the
 *                          cast into the type that travels; its gradients may be read.
 *   (2) reduce -> compute  `reduced`, waited for in launch order: when the bound on reductions in
 *                          flight asks for it, before the last forward of the next micro-step,
 *                          and before the update. After it a buffer may be freed or written again.
 *   (3) gather -> compute  `arrived`, waited for when the unit begins: its parameters are whole.
 *   (4) compute -> gather  `vacant`, before a gather into a new buffer: its memory may be that of
 *                          a buffer that compute, or a reduction which compute waited for (2), is
 *                          only just done with; and the own part may still be cast into it.
 *   (5) compute -> gather  `vacant`, after the group was stepped: the new part may be sent.
 *
 * Waits are issued at fixed points of program order and buffers are freed only after the wait that
 * covers them, so the sequence of allocator calls depends on the program alone. Everything is
 * allocated from the compute stream: who uses memory next is behind compute, or comes through (1),
 * (4) or (5).
 *
 * An event is recorded again only when the wait on its last record is over on the device, not only
 * issued: `vacant` is recorded on compute behind (3), which is behind the gather that waited for
 * it; `arrived` on the gather stream behind (4), which is behind compute's wait (3); `ready` and
 * `reduced` likewise through (2) and (1).
 *
 * Which edges occur is read from the policy row: ddp uses (1) and (2) only. Gathers:
 * runtime_gather.c; reductions: runtime_reduce.c. Ownership and thread rule: runtime.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"
#include "engine/shard/runtime_int.h"

#define COLLECT_EVERY 8 /* collectives; comm.trace_buf_size is at least 16 */

/* ---- create, destroy ---- */

static int check_mode(const struct zt_runtime_env *env, const struct zt_policy *row,
                      const struct zt_recipe *recipe, struct zt_error *err) {
    const struct zt_spec *s = env->spec;
    if (!row->supported)
        return zt_fail(err, ZT_EUNSUPPORTED, "parallelism.mode: %s is not in this version; use ddp",
                       zt_mode_name(row->mode));
    if (!recipe)
        return zt_fail(err, ZT_EUNSUPPORTED, "precision.recipe: there is no %s",
                       s->precision.recipe);
    if (row->mode == ZT_ZERO2 && s->parallelism.no_sync)
        return zt_fail(err, ZT_EINVAL,
                       "parallelism.no_sync: zero2 cuts its gradients in every micro-step and "
                       "keeps no whole ones; zero1 reduces once per window");
    if (env->table->tensor_degree != env->mesh.tensor || (env->mesh.tensor > 1 && !env->tensor))
        return zt_fail(err, ZT_EINTERNAL, "a table cut %d times for a mesh of tensor degree %d",
                       env->table->tensor_degree, env->mesh.tensor);
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
    if (r->shard > 1 && r->policy->gather != ZT_GATHER_NEVER)
        RT_TRY(dev->stream_create(r->env.device, ZT_STREAM_GATHER, &r->gather, err));
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        RT_TRY(dev->event_create(r->env.device, &g->ready, err));
        RT_TRY(dev->event_create(r->env.device, &g->reduced, err));
        RT_TRY(dev->event_create(r->env.device, &g->vacant, err));
        RT_TRY(dev->event_create(r->env.device, &g->arrived, err));
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
    const struct zt_layout_options o = zt_layout_options_of(s, row, r->shard);
    RT_TRY(zt_unit_layout_build(env->table, &o, &r->layout, err));
    RT_TRY(rt_state_build(r, err));
    RT_TRY(rt_gather_build(r, err));
    RT_TRY(rt_reduce_build(r, err));
    RT_TRY(rt_tensor_build(r, err));
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
    rt_gather_free(r);
    rt_reduce_free(r);
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
    if (rc == 0) rc = dev->event_record(e, s, err);
    return rc ? rc : zt_runtime_queued(r, err);
}

/* The log is a ring: it is read before it comes round. */
int zt_runtime_queued(struct zt_runtime *r, struct zt_error *err) {
    return ++r->queued < COLLECT_EVERY ? 0 : zt_runtime_collect(r, err);
}

/* Orders `s` behind everything queued on compute so far, by event e: edges (1), (4), (5). */
int rt_behind_compute(struct zt_runtime *r, struct zt_event *e, struct zt_stream *s,
                      struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    int rc = dev->event_record(e, zt_device_compute(r->env.device), err);
    return rc ? rc : dev->stream_wait_event(s, e, NULL, err);
}

/* ---- windows ---- */

/* Between walks nothing is gathered, on its way or open. */
static int check_idle(const struct zt_runtime *r, const char *what, struct zt_error *err) {
    int end = r->evaluating ? r->walk.n_forward : r->walk.n;
    for (int i = 0; i < r->layout.n_groups; i++) {
        const struct rt_group *g = &r->groups[i];
        if (g->arriving || g->opened || g->slice || (g->gathered && g->full))
            return zt_fail(err, ZT_EINTERNAL, "%s while parameters of %s are in use", what,
                           g->def->name);
    }
    if (r->at >= 0 && r->at != end - 1)
        return zt_fail(err, ZT_EINTERNAL, "%s at place %d of a walk of %d units", what, r->at, end);
    return 0;
}

int zt_runtime_window_begin(struct zt_runtime *r, int64_t step, struct zt_error *err) {
    if (r->evaluating || r->n_launched)
        return zt_fail(err, ZT_EINTERNAL, "step %lld begins while %s is open", (long long)step,
                       r->evaluating ? "an evaluation" : "a reduction");
    r->step = step;
    r->in_window = true;
    r->peak_g = 0;
    r->batch = 0;
    r->tensor_summed = false;
    rt_sent_begin(r);
    return 0;
}

int zt_runtime_micro_begin(struct zt_runtime *r, int64_t micro, bool last, struct zt_error *err) {
    if (!r->in_window)
        return zt_fail(err, ZT_EINTERNAL, "micro-step %lld outside a window", (long long)micro);
    int rc = check_idle(r, "a micro-step begins", err);
    if (rc) return rc;
    rt_reduce_account(r);
    r->at = -1;
    r->last_micro = last;
    for (int i = 0; i < r->layout.n_groups; i++)
        r->groups[i].units_left = r->groups[i].backward_units;
    return 0;
}

int zt_runtime_eval_begin(struct zt_runtime *r, struct zt_error *err) {
    if (r->in_window) return zt_fail(err, ZT_EINTERNAL, "evaluation inside a window");
    int rc = check_idle(r, "an evaluation begins", err);
    r->evaluating = true;
    r->at = -1;
    return rc;
}

int zt_runtime_eval_end(struct zt_runtime *r, struct zt_error *err) {
    if (!r->evaluating) return zt_fail(err, ZT_EINTERNAL, "evaluation ends without a beginning");
    int rc = check_idle(r, "an evaluation ends", err);
    r->evaluating = false;
    r->at = -1;
    return rc;
}

/* ---- units ---- */

static void show_unit(const struct zt_runtime *r, int unit, struct zt_unit_view *view) {
    view->param = r->view_param + r->env.table->units[unit].first_tensor;
    view->grad = r->view_grad + r->env.table->units[unit].first_tensor;
}

static int forward_begin(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    struct zt_runtime *r = arg;
    int rc = 0;
    if (!r->in_window && !r->evaluating)
        return zt_fail(err, ZT_EINTERNAL, "forward of unit %d outside a window and an evaluation",
                       unit);
    /* What the micro-step before left in flight: its buffers go before activations are largest. */
    if (r->at + 1 == r->walk.n_forward - 1) rc = rt_reduce_wait(r, 0, err);
    if (rc == 0) rc = rt_acquire(r, unit, false, err);
    show_unit(r, unit, view);
    return rc;
}

static int forward_end(void *arg, int unit, struct zt_error *err) {
    return rt_release(arg, unit, err);
}

static void show_gradients(struct zt_runtime *r, int unit) {
    const struct zt_unit_def *u = &r->env.table->units[unit];
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) {
        const struct rt_group *g = &r->groups[r->layout.group_of[t]];
        int64_t at = r->layout.entries[r->layout.entry_of[t]].offset;
        r->view_grad[t] = g->grad ? rt_at(g->grad, at, r->recipe->grad) : NULL;
    }
}

static int backward_begin(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    struct zt_runtime *r = arg;
    int rc = 0;
    if (!r->in_window)
        return zt_fail(err, ZT_EINTERNAL, "backward of unit %d outside a window", unit);
    RT_TRY(rt_acquire(r, unit, true, err));
    for (int k = r->layout.unit_first[unit]; k < r->layout.unit_first[unit + 1]; k++)
        RT_TRY(rt_gradient_use(r, &r->groups[r->layout.unit_groups[k]], err));
    show_gradients(r, unit);
    show_unit(r, unit, view);
out:
    return rc;
}

static int parameters_done(void *arg, int unit, struct zt_error *err) {
    return rt_release(arg, unit, err);
}

/* Parameters go first, then older reductions, and only then is a buffer taken to send from: so a
 * unit's backward holds the least (docs/memory.md). */
static int backward_end(void *arg, int unit, struct zt_error *err) {
    int rc = rt_release(arg, unit, err);
    return rc ? rc : rt_reduce_unit(arg, unit, err);
}

struct zt_unit_source zt_runtime_source(struct zt_runtime *r) {
    return (struct zt_unit_source){
        r, forward_begin, forward_end, backward_begin, parameters_done, backward_end};
}
