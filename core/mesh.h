/* SPDX-License-Identifier: Apache-2.0 */
/* core/mesh.h: the replicate x shard x tensor mesh and its rank order.
 * rank = (replicate*S + shard)*T + tensor: tensor innermost, then shard, then replicate.
 * Pure; any thread; no ownership. */
#ifndef ZT_CORE_MESH_H
#define ZT_CORE_MESH_H
#include <stdbool.h>
#include "core/error.h"

struct zt_mesh { int replicate, shard, tensor; };   /* degrees, each >= 1 */
struct zt_coords { int replicate, shard, tensor; }; /* 0-based */

/* Most ranks of a communicator, and so of a run. */
#define ZT_RANKS_MAX 256
/* Most ranks that a plan may be made for. */
#define ZT_PLAN_RANKS_MAX 65536

enum zt_axis { ZT_AXIS_WORLD = 0, ZT_AXIS_TENSOR, ZT_AXIS_SHARD, ZT_AXIS_REPLICATE, ZT_AXIS_DP };

int zt_mesh_world(struct zt_mesh m);                          /* R*S*T */
int zt_mesh_dp(struct zt_mesh m);                             /* R*S: data-parallel ranks */
struct zt_coords zt_mesh_coords(struct zt_mesh m, int rank);
int zt_mesh_rank(struct zt_mesh m, struct zt_coords c);
int zt_mesh_dp_index(struct zt_mesh m, int rank);             /* replicate*S + shard */
/* Ranks of `rank`'s group along an axis, ascending; returns the count (<= world). DP: same tensor
 * coordinate, all replicate and shard ones. ranks has room for zt_mesh_world(m) entries. */
int zt_mesh_group(struct zt_mesh m, enum zt_axis axis, int rank, int *ranks);
/* The mesh of an elastic run on `world` ranks. `given` has its degrees as the most there are (-1: open); the
 * tensor degree stays, replicas go first, then the shard degree shrinks. Both open: fill_shard says which is
 * filled. False: no mesh of that many ranks. */
bool zt_mesh_shrink(struct zt_mesh given, bool fill_shard, int world, struct zt_mesh *out);

#endif
