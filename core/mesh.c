/* SPDX-License-Identifier: Apache-2.0 */
/* core/mesh.c: rank arithmetic of the replicate x shard x tensor mesh. Pure; any thread. */
#include "core/mesh.h"

int zt_mesh_world(struct zt_mesh m) { return m.replicate * m.shard * m.tensor; }

int zt_mesh_dp(struct zt_mesh m) { return m.replicate * m.shard; }

struct zt_coords zt_mesh_coords(struct zt_mesh m, int rank) {
    ZT_ASSERT(rank >= 0 && rank < zt_mesh_world(m));
    struct zt_coords c;
    c.tensor = rank % m.tensor;
    c.shard = rank / m.tensor % m.shard;
    c.replicate = rank / m.tensor / m.shard;
    return c;
}

int zt_mesh_rank(struct zt_mesh m, struct zt_coords c) {
    ZT_ASSERT(c.replicate >= 0 && c.replicate < m.replicate);
    ZT_ASSERT(c.shard >= 0 && c.shard < m.shard);
    ZT_ASSERT(c.tensor >= 0 && c.tensor < m.tensor);
    return (c.replicate * m.shard + c.shard) * m.tensor + c.tensor;
}

int zt_mesh_dp_index(struct zt_mesh m, int rank) {
    struct zt_coords c = zt_mesh_coords(m, rank);
    return c.replicate * m.shard + c.shard;
}

/* Whether coordinates a and b are in one group along the axis: equal in all the others. */
static int same_group(enum zt_axis axis, struct zt_coords a, struct zt_coords b) {
    switch (axis) {
    case ZT_AXIS_WORLD: return 1;
    case ZT_AXIS_TENSOR: return a.replicate == b.replicate && a.shard == b.shard;
    case ZT_AXIS_SHARD: return a.replicate == b.replicate && a.tensor == b.tensor;
    case ZT_AXIS_REPLICATE: return a.shard == b.shard && a.tensor == b.tensor;
    case ZT_AXIS_DP: return a.tensor == b.tensor;
    }
    return 0;
}

int zt_mesh_group(struct zt_mesh m, enum zt_axis axis, int rank, int *ranks) {
    struct zt_coords mine = zt_mesh_coords(m, rank);
    int n = 0, world = zt_mesh_world(m);
    for (int r = 0; r < world; r++)
        if (same_group(axis, mine, zt_mesh_coords(m, r)))
            ranks[n++] = r;
    return n;
}

bool zt_mesh_shrink(struct zt_mesh given, bool fill_shard, int world, struct zt_mesh *out) {
    int r = given.replicate, s = given.shard, t = given.tensor < 1 ? 1 : given.tensor;
    int dp = world / t;
    if (world < 1 || world % t) return false;
    if (s < 0 && (fill_shard || r > 0)) {
        for (r = r < 0 ? 1 : r; dp % r; r--) {}
        s = dp / r;
    } else {
        int most = r;
        s = s < 0 ? 1 : s;
        r = dp % s == 0 ? dp / s : 0;
        if (r == 0 || (most > 0 && r > most)) { /* a part of one shard group is left */
            if (dp > s) return false;
            r = 1;
            s = dp;
        }
    }
    *out = (struct zt_mesh){r, s, t};
    return true;
}
