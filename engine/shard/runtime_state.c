/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_state.c: the buffers of a rank that last: parameters, moments; the initial
 * weights; the parameter hash.
 *
 * One buffer per group and kind, from the allocator, under its tag. Which part of a group a rank
 * stores and which it owns (steps, counts, hashes) follows from the policy row alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/report.h"
#include "engine/shard/runtime_int.h"

int64_t rt_requested(int64_t elements, enum zt_dtype t) {
    return (int64_t)zt_round_up((size_t)elements * zt_dtype_size(t), 512);
}

int rt_buffer(struct zt_runtime *r, const struct rt_group *g, int64_t elements, enum zt_dtype t,
              enum zt_tag tag, const char *what, void *out_pointer, int64_t *account,
              struct zt_error *err) {
    char name[64];
    void *p = NULL;
    snprintf(name, sizeof name, "%s %s", g->def->name, what);
    int rc = zt_malloc(r->env.alloc, (size_t)elements * zt_dtype_size(t),
                       zt_device_compute(r->env.device), tag, name, &p, err);
    if (rc) return rc;
    if (account) *account += rt_requested(elements, t);
    memcpy(out_pointer, &p, sizeof p);
    return 0;
}

/* Own elements as runs of one decay flag; neighbours with the same flag join over the gap, unless
 * rounding has to know which element it is of which tensor. What lies in a gap is zero and stays
 * so: it has no gradient. */
static int build_runs(struct zt_runtime *r, struct rt_group *g) {
    size_t n = 1;
    for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);) n++;
    g->runs = calloc(n, sizeof *g->runs);
    if (!g->runs) return ZT_ENOMEM;
    for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);) {
        const struct zt_tensor_def *d = &r->env.table->tensors[p.tensor];
        struct zt_optim_run *last = g->n_runs ? &g->runs[g->n_runs - 1] : NULL;
        if (last && last->decay == d->decay && !r->recipe->stochastic)
            last->count = p.at + p.count - last->offset;
        else
            g->runs[g->n_runs++] =
                (struct zt_optim_run){p.at, p.count, d->decay, d->number, p.span};
    }
    return 0;
}

static void set_ranges(struct zt_runtime *r, struct rt_group *g) {
    const struct zt_flat_range stored = zt_flat_stored(r->policy, g->def, r->shard_index),
                               owned = zt_flat_owned(r->policy, g->def, r->shard_index);
    g->store_from = stored.from;
    g->store_count = stored.count;
    g->own_from = owned.from;
    g->own_count = owned.count;
}

/* Draws elements [from, from + count) of a group by logical index, so any cut gives the same
 * weights.
 */
static int draw(struct zt_runtime *r, const struct rt_group *g, void *base, enum zt_dtype t,
                int64_t from, int64_t count, struct zt_error *err) {
    const struct zt_ops *ops = r->env.ops;
    int rc = ops->fill(r->env.ctx, t, base, 0.0f, count, err);
    for (struct zt_flat_piece p = {0}; rc == 0 && rt_piece_next(r, g, from, count, &p);) {
        const struct zt_tensor_def *d = &r->env.table->tensors[p.tensor];
        void *at = rt_at(base, p.at, t);
        if (d->init == ZT_INIT_NORMAL)
            rc = ops->fill_normal(r->env.ctx, t, at, r->env.spec->training.seed, d->number, p.span,
                                  p.count, d->init_std, err);
        else if (d->init == ZT_INIT_ONE)
            rc = ops->fill(r->env.ctx, t, at, 1.0f, p.count, err);
    }
    return rc;
}

/* The stored parameters, and the master beside them: both drawn, so the master starts with all of
 * fp32's digits and the stored value is its nearest neighbour, as after every update. */
static int group_parameters(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    enum zt_dtype t = g->def->dtype;
    int rc = 0;
    RT_TRY(rt_buffer(r, g, g->store_count, t, ZT_TAG_PARAMETERS, "parameters", &g->store,
                     &r->requested_p, err));
    rt_stored(r, g->def->trainable ? ZT_ROW_PARAMETER : ZT_ROW_FROZEN, t);
    RT_TRY(draw(r, g, g->store, t, g->store_from, g->store_count, err));
    if (!r->recipe->has_master || !g->def->trainable) return 0;
    RT_TRY(rt_buffer(r, g, g->own_count, ZT_F32, ZT_TAG_OPTIMIZER, "master", &g->master,
                     &r->requested_o, err));
    rt_stored(r, ZT_ROW_MASTER, ZT_F32);
    RT_TRY(draw(r, g, g->master, ZT_F32, g->own_from, g->own_count, err));
out:
    return rc;
}

int rt_state_build(struct zt_runtime *r, struct zt_error *err) {
    int n = r->layout.n_groups;
    for (int i = 0; i < ZT_ROW_COUNT; i++) r->dtype_stored[i] = r->dtype_used[i] = -1;
    r->groups = calloc((size_t)n, sizeof *r->groups);
    if (!r->groups)
        return zt_fail(err, ZT_ENOMEM, "sharding runtime: no host memory for %d groups", n);
    for (int i = 0; i < n; i++) {
        struct rt_group *g = &r->groups[i];
        g->def = &r->layout.groups[i];
        set_ranges(r, g);
        if (build_runs(r, g))
            return zt_fail(err, ZT_ENOMEM, "sharding runtime: no host memory for group %s",
                           g->def->name);
        int rc = group_parameters(r, g, err);
        if (rc) return rc;
    }
    return 0;
}

static int group_moments(struct zt_runtime *r, struct rt_group *g, struct zt_error *err) {
    const struct zt_ops *ops = r->env.ops;
    enum zt_dtype t = r->recipe->moment;
    int rc = 0;
    RT_TRY(rt_buffer(r, g, g->own_count, t, ZT_TAG_OPTIMIZER, "m", &g->m, &r->requested_o, err));
    RT_TRY(ops->fill(r->env.ctx, t, g->m, 0.0f, g->own_count, err));
    RT_TRY(rt_buffer(r, g, g->own_count, t, ZT_TAG_OPTIMIZER, "v", &g->v, &r->requested_o, err));
    RT_TRY(ops->fill(r->env.ctx, t, g->v, 0.0f, g->own_count, err));
    rt_stored(r, ZT_ROW_M, t);
    rt_stored(r, ZT_ROW_V, t);
out:
    return rc;
}

int rt_state_moments(struct zt_runtime *r, struct zt_error *err) {
    for (int i = 0; i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        int rc = g->def->trainable && !g->v ? group_moments(r, g, err) : 0;
        if (rc) return rc;
    }
    return 0;
}

void rt_state_free(struct zt_runtime *r) {
    const struct zt_device_ops *dev = zt_device_ops(r->env.device);
    for (int i = 0; r->groups && i < r->layout.n_groups; i++) {
        struct rt_group *g = &r->groups[i];
        if (!g->def) continue;
        zt_free(r->env.alloc, g->store);
        zt_free(r->env.alloc, g->master);
        zt_free(r->env.alloc, g->m);
        zt_free(r->env.alloc, g->v);
        if (g->ready) dev->event_destroy(g->ready);
        if (g->reduced) dev->event_destroy(g->reduced);
        if (g->vacant) dev->event_destroy(g->vacant);
        if (g->arrived) dev->event_destroy(g->arrived);
        free(g->runs);
    }
    free(r->groups);
    r->groups = NULL;
}

/* ---- hash ---- */

/* The authoritative value of the own element at `at`, and its type. */
static const void *value_at(const struct rt_group *g, int64_t at, enum zt_dtype *t) {
    *t = g->master ? ZT_F32 : g->def->dtype;
    return g->master ? g->master + at
                     : (void *)rt_at(g->store, g->own_from - g->store_from + at, g->def->dtype);
}

static int hash_piece(struct zt_runtime *r, const struct zt_flat_piece *p, enum zt_dtype t,
                      const void *v, struct zt_hash128 *h, struct zt_error *err) {
    uint64_t sum[2] = {0, 0};
    int rc = r->env.ops->hash_values(r->env.ctx, t, v, r->env.table->tensors[p->tensor].number,
                                     p->span, p->count, sum, err);
    *h = (struct zt_hash128){sum[0], sum[1]};
    return rc;
}

static int hash_group(struct zt_runtime *r, const struct rt_group *g, struct zt_hash128 *own,
                      struct zt_hash128 *per_tensor, struct zt_error *err) {
    for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);) {
        bool speaks = rt_speaks(r, p.tensor);
        if (!speaks && !per_tensor) continue;
        enum zt_dtype t;
        const void *v = value_at(g, p.at, &t);
        struct zt_hash128 h;
        int rc = hash_piece(r, &p, t, v, &h, err);
        if (rc) return rc;
        if (speaks) zt_hash128_add(own, h);
        if (per_tensor) zt_hash128_add(&per_tensor[p.tensor], h);
    }
    return 0;
}

int zt_runtime_parameter_hash(struct zt_runtime *r, struct zt_hash128 *own,
                              struct zt_hash128 *per_tensor, struct zt_error *err) {
    int rc = 0;
    *own = (struct zt_hash128){0, 0};
    if (per_tensor) memset(per_tensor, 0, (size_t)r->env.table->n_tensors * sizeof *per_tensor);
    for (int i = 0; rc == 0 && i < r->layout.n_groups; i++)
        rc = hash_group(r, &r->groups[i], own, per_tensor, err);
    return rc;
}

int zt_runtime_copy_hash(struct zt_runtime *r, struct zt_hash128 *per_tensor,
                         struct zt_error *err) {
    memset(per_tensor, 0, (size_t)r->env.table->n_tensors * sizeof *per_tensor);
    for (int i = 0; i < r->layout.n_groups; i++) {
        const struct rt_group *g = &r->groups[i];
        if (g->own_count == g->store_count) continue;
        for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->store_from, g->store_count, &p);) {
            struct zt_hash128 h;
            int rc = hash_piece(r, &p, g->def->dtype, rt_at(g->store, p.at, g->def->dtype), &h, err);
            if (rc) return rc;
            zt_hash128_add(&per_tensor[p.tensor], h);
        }
    }
    return 0;
}

/* ---- looking in ---- */

struct zt_state_bytes zt_runtime_requested(const struct zt_runtime *r) {
    return (struct zt_state_bytes){r->requested_p, r->peak_g, r->requested_o};
}

void zt_runtime_dtypes(const struct zt_runtime *r, struct zt_dtypes_report *d) {
    const struct zt_recipe *c = r->recipe;
    const int configured[ZT_ROW_COUNT] = {
        [ZT_ROW_PARAMETER] = (int)c->param,
        [ZT_ROW_GATHERED] = (int)c->gathered,
        [ZT_ROW_COMPUTE] = (int)c->compute,
        [ZT_ROW_ACTIVATION] = (int)c->compute,
        [ZT_ROW_GRADIENT] = (int)c->grad,
        [ZT_ROW_REDUCE] = (int)r->env.spec->precision.reduce_dtype,
        [ZT_ROW_OWN_GRADIENT] = (int)c->own,
        [ZT_ROW_MASTER] = c->has_master ? (int)ZT_F32 : -1,
        [ZT_ROW_M] = (int)c->moment,
        [ZT_ROW_V] = (int)c->moment,
        [ZT_ROW_FROZEN] = (int)c->frozen,
    };
    for (int i = 0; i < ZT_ROW_COUNT; i++) {
        d->row[i].configured = configured[i];
        d->row[i].stored = r->dtype_stored[i];
        d->row[i].used = r->dtype_used[i];
    }
}

const float *zt_runtime_parameter(const struct zt_runtime *r, int tensor) {
    const struct rt_group *g = &r->groups[r->layout.group_of[tensor]];
    if (!g->full || g->held != ZT_F32) return NULL;
    return (const float *)g->full + r->layout.entries[r->layout.entry_of[tensor]].offset;
}

const float *zt_runtime_gradient(const struct zt_runtime *r, int tensor) {
    const struct rt_group *g = &r->groups[r->layout.group_of[tensor]];
    if (!g->grad || r->recipe->grad != ZT_F32) return NULL;
    return (const float *)g->grad + r->layout.entries[r->layout.entry_of[tensor]].offset;
}
