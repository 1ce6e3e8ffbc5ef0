/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_pieces.c: what a rank keeps from step to step, told by logical tensors, so that
 * it can be saved and loaded by code that knows nothing of groups; and the state hash over it.
 * Ownership and thread rule: runtime.h. */
#include <string.h>

#include "engine/shard/runtime_int.h"

const struct zt_unit_layout *zt_runtime_layout(const struct zt_runtime *r) { return &r->layout; }

static enum zt_dtype type_of(const struct zt_runtime *r, const struct rt_group *g,
                             enum zt_saved kind) {
    if (kind == ZT_SAVED_PARAMETER) return g->def->dtype;
    return kind == ZT_SAVED_MASTER ? ZT_F32 : r->recipe->moment;
}

void *zt_runtime_owned(const struct zt_runtime *r, int group, enum zt_saved kind) {
    const struct rt_group *g = &r->groups[group];
    switch (kind) {
    case ZT_SAVED_PARAMETER:
        return rt_at(g->store, g->own_from - g->store_from, g->def->dtype);
    case ZT_SAVED_MASTER:
        return g->master;
    case ZT_SAVED_M:
        return g->m;
    default:
        return g->v;
    }
}

/* Goes on in the group, else in the next that has something. */
static bool next(const struct zt_runtime *r, bool owned, struct zt_state_piece *p) {
    for (; p->group < r->layout.n_groups; p->group++) {
        const struct rt_group *g = &r->groups[p->group];
        int64_t from = owned ? g->own_from : g->store_from;
        int64_t count = owned ? g->own_count : g->store_count;
        if (rt_piece_next(r, g, from, count, &p->walk)) return true;
        memset(&p->walk, 0, sizeof p->walk);
    }
    return false;
}

static void tell(struct zt_state_piece *p) {
    p->tensor = p->walk.tensor;
    p->span = p->walk.span;
    p->count = p->walk.count;
    memset(p->at, 0, sizeof p->at);
}

bool zt_runtime_owned_next(const struct zt_runtime *r, struct zt_state_piece *p) {
    if (!next(r, true, p)) return false;
    tell(p);
    for (int k = 0; k < ZT_SAVED_COUNT; k++) {
        void *base = zt_runtime_owned(r, p->group, (enum zt_saved)k);
        p->type[k] = type_of(r, &r->groups[p->group], (enum zt_saved)k);
        if (base) p->at[k] = rt_at(base, p->walk.at, p->type[k]);
    }
    return true;
}

bool zt_runtime_stored_next(const struct zt_runtime *r, struct zt_state_piece *p) {
    if (!next(r, false, p)) return false;
    const struct rt_group *g = &r->groups[p->group];
    tell(p);
    p->type[ZT_SAVED_PARAMETER] = g->def->dtype;
    p->at[ZT_SAVED_PARAMETER] = rt_at(g->store, p->walk.at, g->def->dtype);
    return true;
}

int zt_runtime_set_updates(struct zt_runtime *r, int64_t updates, struct zt_error *err) {
    ZT_ASSERT(!r->in_window && updates >= 0);
    int rc = updates > 0 ? rt_state_moments(r, err) : 0;
    if (rc == 0) r->updates = updates;
    return rc;
}

static int hash_moment(struct zt_runtime *r, const struct zt_state_piece *p, enum zt_saved kind,
                       struct zt_hash128 *sum, struct zt_error *err) {
    uint32_t word = r->env.table->tensors[p->tensor].number;
    uint64_t part[2] = {0, 0};
    word |= kind == ZT_SAVED_M ? ZT_HASH_M : ZT_HASH_V;
    int rc = r->env.ops->hash_values(r->env.ctx, p->type[kind], p->at[kind], word, p->span,
                                     p->count, part, err);
    zt_hash128_add(sum, (struct zt_hash128){part[0], part[1]});
    return rc;
}

int zt_runtime_state_hash(struct zt_runtime *r, struct zt_hash128 *own,
                          struct zt_hash128 *per_tensor, struct zt_error *err) {
    *own = (struct zt_hash128){0, 0};
    if (per_tensor) memset(per_tensor, 0, (size_t)r->env.table->n_tensors * sizeof *per_tensor);
    for (struct zt_state_piece p = {0}; zt_runtime_owned_next(r, &p);) {
        struct zt_hash128 sum = {0, 0};
        bool speaks = rt_speaks(r, p.tensor);
        if (!p.at[ZT_SAVED_V] || (!speaks && !per_tensor)) continue;
        int rc = hash_moment(r, &p, ZT_SAVED_M, &sum, err);
        if (rc == 0) rc = hash_moment(r, &p, ZT_SAVED_V, &sum, err);
        if (rc) return rc;
        if (speaks) zt_hash128_add(own, sum);
        if (per_tensor) zt_hash128_add(&per_tensor[p.tensor], sum);
    }
    return 0;
}
