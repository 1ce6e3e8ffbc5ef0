/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_update.c: the end of a window: exact gradient norm, clip, AdamW, the gather
 * of what was stepped. Ownership and thread rule: runtime.h.
 *
 * The norm is a sum of squares in integer limbs (core/fixsum.h): the same number for any cut of the
 * gradients over ranks, so clipping cannot make modes differ. Padding and alignment gaps are left
 * out, and so are copies: when the limbs travel, only replicate coordinate 0 contributes, and of
 * what a tensor group's ranks all hold, its first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/sys.h"
#include "engine/shard/runtime_int.h"

struct norm {
    struct zt_fixsum sum; /* of squares, still times the loss scale squared */
    int64_t bad; /* own tensors with a gradient that is not finite, and the first of them */
    int first_bad;
};

static int squares_of(struct zt_runtime *r, struct rt_group *g, struct norm *n,
                      struct zt_error *err) {
    enum zt_dtype t;
    void *base = rt_own_gradient(r, g, &t);
    if (!base)
        return zt_fail(err, ZT_EINTERNAL, "group %s has no gradient in step %lld: no backward ran",
                       g->def->name, (long long)r->step);
    int bad = -1; /* the last of them: a tensor may be in several pieces */
    for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);) {
        struct zt_fixsum one;
        if (!rt_speaks(r, p.tensor)) continue;
        zt_fixsum_zero(&one);
        int rc = r->env.ops->sum_squares(r->env.ctx, t, rt_at(base, p.at, t), p.count, &one, err);
        if (rc) return rc;
        if (isnan(zt_fixsum_value(&one))) {
            n->bad += p.tensor != bad;
            bad = p.tensor;
            if (n->first_bad < 0 || bad < n->first_bad) n->first_bad = bad;
        }
        zt_fixsum_merge(&n->sum, &one);
    }
    return 0;
}

/* Whether ranks own different elements, so that sums of them have to travel. */
static bool owners_differ(const struct zt_runtime *r) {
    return (r->shard > 1 && r->policy->shard_optimizer) || r->env.mesh.tensor > 1;
}

/* Adds the limbs of all ranks; the flag of a value that is not finite travels with them. */
static int sum_over_ranks(struct zt_runtime *r, struct zt_fixsum *sum, struct zt_error *err) {
    struct zt_coll_why why = {"", "gradient norm", r->step, true};
    if (!owners_differ(r)) return 0;
    if (zt_mesh_coords(r->env.mesh, r->env.rank).replicate != 0) zt_fixsum_zero(sum);
    int rc = zt_all_reduce(r->env.control, sum->word, ZT_FIXSUM_WORDS, ZT_I64, ZT_SUM,
                           zt_device_compute(r->env.device), &why, err);
    zt_fixsum_normalise(sum);
    return rc;
}

static int gradient_norm(struct zt_runtime *r, struct norm *n, struct zt_error *err) {
    int64_t start = rt_now(r);
    n->bad = 0;
    n->first_bad = -1;
    zt_fixsum_zero(&n->sum);
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        int rc = g->def->trainable ? squares_of(r, g, n, err) : 0;
        if (rc) return rc;
    }
    int rc = rt_interval(r, ZT_IV_UPDATE, "gradient norm", start, err);
    return rc ? rc : sum_over_ranks(r, &n->sum, err);
}

/* Every rank comes here in the same step: the flag was summed. Says which tensor, and who has it.
 */
static int refuse_nonfinite(struct zt_runtime *r, const struct norm *n, struct zt_error *err) {
    struct zt_coll_why why = {"", "gradient that is not finite", r->step, true};
    int world = zt_mesh_world(r->env.mesh), rank = r->env.rank, rc;
    int64_t own = n->first_bad, first = own, *all = NULL;
    if (owners_differ(r)) {
        all = calloc((size_t)world, sizeof *all);
        if (!all) return zt_fail(err, ZT_ENOMEM, "gradient norm: no host memory");
        rc = zt_all_gather(r->env.control, &own, all, 1, ZT_I64, zt_device_compute(r->env.device),
                           &why, err);
        for (rank = 0; rc == 0 && rank < world - 1 && all[rank] < 0;) rank++;
        first = all[rank];
        free(all);
        if (rc) return rc;
    }
    return zt_fail(err, ZT_ENAN,
                   "step %lld: the gradient of %s is not finite, or above 524288, where the exact "
                   "norm ends (first such tensor; in rank %d's part, after the sum over ranks); "
                   "no parameter was changed. Lower optimizer.lr, "
                   "look at the data of this step, or set precision.nonfinite: skip",
                   (long long)r->step, first < 0 ? "?" : r->env.table->tensors[first].name, rank);
}

static int step_group(struct zt_runtime *r, struct rt_group *g, double lr, double factor,
                      struct zt_error *err) {
    const struct zt_spec *s = r->env.spec;
    struct zt_optim_config c = {.beta1 = s->optimizer.beta1,
                                .beta2 = s->optimizer.beta2,
                                .eps = s->optimizer.eps,
                                .weight_decay = s->optimizer.weight_decay,
                                .stochastic = r->recipe->stochastic,
                                .seed = s->training.seed};
    struct zt_adamw_buffers b = {.param =
                                     rt_at(g->store, g->own_from - g->store_from, g->def->dtype),
                                 .param_type = g->def->dtype,
                                 .master = g->master,
                                 .m = g->m,
                                 .v = g->v,
                                 .moment_type = r->recipe->moment};
    b.grad = rt_own_gradient(r, g, &b.grad_type);
    rt_used(r, ZT_ROW_PARAMETER, b.param_type);
    rt_used(r, ZT_ROW_OWN_GRADIENT, b.grad_type);
    rt_used(r, ZT_ROW_M, b.moment_type);
    rt_used(r, ZT_ROW_V, b.moment_type);
    if (b.master) rt_used(r, ZT_ROW_MASTER, ZT_F32);
    return zt_optim_adamw(r->env.ops, r->env.ctx, &c, &b, g->runs, g->n_runs, lr, factor,
                          r->updates, err);
}

/* AdamW on what this rank owns; what was stepped is gathered while the next groups are stepped. */
/* The intervals leave out where this rank waits for others: it is not computing then. */
static int step_all(struct zt_runtime *r, struct zt_update *u, struct zt_error *err) {
    int64_t start = rt_now(r);
    int rc = 0;
    RT_TRY(rt_state_moments(r, err));
    u->clip_coefficient = zt_clip_coefficient(u->grad_norm, r->env.spec->optimizer.max_norm);
    /* Divided and clipped by one factor: a second rounding could only lose bits. */
    double factor = u->clip_coefficient / (u->loss_scale > 0 ? u->loss_scale : 1.0);
    r->updates++;
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        if (!g->def->trainable) continue;
        RT_TRY(step_group(r, g, u->lr, factor, err));
        RT_TRY(rt_interval(r, ZT_IV_UPDATE, "update", start, err));
        RT_TRY(rt_gather_updated(r, g, err));
        start = rt_now(r);
    }
out:
    return rc;
}

/* ---- planted faults of the divergence tests: one bit of what lasts ---- */

/* Of a value that this rank owns; `shared`: of a tensor that its tensor group holds whole. */
static void flip_own(struct zt_runtime *r, bool shared) {
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        const enum zt_dtype t = g->master ? ZT_F32 : g->def->dtype;
        char *own = g->master ? (char *)g->master : rt_at(g->store, g->own_from - g->store_from, t);
        for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);) {
            if (shared && r->env.table->tensors[p.tensor].tp_dim >= 0) continue;
            rt_at(own, p.at, t)[zt_dtype_size(t) - 2] ^= 0x10; /* in the mantissa */
            return;
        }
    }
}

/* Of a frozen value that this rank stores and another owns. */
static void flip_stored(struct zt_runtime *r) {
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        const int64_t other = g->own_from ? 0 : g->own_count;
        if (g->def->trainable || g->own_count == g->store_count) continue;
        rt_at(g->store, other, g->def->dtype)[zt_dtype_size(g->def->dtype) - 2] ^= 0x10;
        return;
    }
}

static void plant_flips(struct zt_runtime *r) {
    if (ZT_FAILPOINT("engine.flip_own")) flip_own(r, false);
    if (ZT_FAILPOINT("engine.flip_shared")) flip_own(r, true);
    if (ZT_FAILPOINT("engine.flip_stored")) flip_stored(r);
}

int zt_runtime_update(struct zt_runtime *r, struct zt_update *u, struct zt_error *err) {
    struct norm n;
    int rc = 0;
    ZT_ASSERT(r->in_window && r->last_micro);
    zt_ledger_set_phase(r->env.ledger, ZT_PHASE_OPTIMIZER);
    RT_TRY(zt_runtime_wait_gradients(r, err));
    RT_TRY(gradient_norm(r, &n, err));
    u->grad_norm = sqrt(zt_fixsum_value(&n.sum)) / (u->loss_scale > 0 ? u->loss_scale : 1.0);
    u->clip_coefficient = NAN;
    u->nonfinite_gradients = n.bad;
    u->skipped = u->skip || (u->skip_nonfinite && !isfinite(u->grad_norm));
    if (!u->skipped && !isfinite(u->grad_norm)) RT_TRY(refuse_nonfinite(r, &n, err));
    if (!u->skipped) RT_TRY(step_all(r, u, err));
    if (!u->skipped) RT_TRY(rt_gather_updated_wait(r, err));
    for (int i = 0; i < r->layout.n_groups; i++) rt_gradient_drop(r, &r->groups[i]);
    plant_flips(r);
    r->in_window = false;
out:
    return rc;
}

int64_t zt_runtime_updates(const struct zt_runtime *r) { return r->updates; }
