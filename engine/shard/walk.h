/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/walk.h: the walk of a micro-step over units and groups, and which gathered groups
 * stay between two uses. Read by the runtime, which does it, and by traffic.c, which only tells of
 * it.
 *
 * The walk is forward and backward as one sequence of units; that of an evaluation batch is its
 * forward part alone. When a unit begins, its own groups are gathered unless they are whole or on
 * their way, then those of the next `prefetch` units are asked for, then it computes. When its use
 * of a group ends, the group goes, unless the walk needs it again
 *   - so soon that the next begin would ask for it (a unit that follows itself, as the head's
 *     backward follows its forward; a merged group until its last unit): it would be gathered
 *     twice for nothing; or
 *   - later, and reshard_after_forward keeps it (false: every group; default: those of the first
 * and the last unit of forward, but in zero3 none). A number m keeps a slice, 1/m of it, and
 * gathers that again. Nothing is asked for beyond the end of the walk and nothing is kept there:
 * the update that may follow would make it stale, and what is held between steps is a rank's own
 * part alone.
 *
 * Pure; the caller owns the struct (zt_walk_free) and the layout, which must outlive it. */
#ifndef ZT_ENGINE_WALK_H
#define ZT_ENGINE_WALK_H
#include "core/spec.h"
#include "engine/shard/layout.h"
#include "engine/shard/policy.h"

struct zt_walk {
    const struct zt_unit_layout *layout;
    int *unit, n, n_forward; /* forward is [0, n_forward), backward [n_forward, n) */
    enum zt_reshard reshard; /* as the mode means it: true, false or default */
    int slices;              /* m; 0: what goes leaves nothing */
    int prefetch;
};
int zt_walk_build(const struct zt_spec *spec, const struct zt_policy *policy, int shard_degree,
                  const struct zt_model_table *table, const struct zt_unit_layout *layout,
                  struct zt_walk *out, struct zt_error *err);
void zt_walk_free(struct zt_walk *w);

bool zt_walk_uses(const struct zt_walk *w, int place, int group);
/* Units of backward that add to the group's gradients. */
int zt_walk_backward_units(const struct zt_walk *w, int group);

enum zt_walk_fate { ZT_WALK_GOES = 0, ZT_WALK_STAYS, ZT_WALK_SLICED };
/* What becomes of a gathered group when its use at place `at` ends; end: n, or n_forward. */
enum zt_walk_fate zt_walk_after(const struct zt_walk *w, int group, int at, int end);

#endif
