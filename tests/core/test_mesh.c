/* SPDX-License-Identifier: Apache-2.0 */
/* Rank order and groups of the mesh, names and rules of reasons, dtypes and recipes. */
#include <criterion/criterion.h>
#include <string.h>
#include "core/dtype.h"
#include "core/mesh.h"
#include "core/reason.h"

/* 16 ranks = replicate 2 x shard 4 x tensor 2, the worked example of docs/memory.md. */
static const struct zt_mesh mesh16 = {2, 4, 2};

static void expect_group(enum zt_axis axis, int rank, const int *want, int n) {
    int got[16];
    cr_assert_eq(zt_mesh_group(mesh16, axis, rank, got), n, "axis %d rank %d", axis, rank);
    cr_assert_eq(memcmp(got, want, (size_t)n * sizeof *want), 0, "axis %d rank %d", axis, rank);
}

Test(mesh, groups_of_sixteen) {
    static const int shard[4][4] = {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}};
    for (int r = 0; r < 16; r += 2) {
        int pair[2] = {r, r + 1};
        expect_group(ZT_AXIS_TENSOR, r, pair, 2);
        expect_group(ZT_AXIS_TENSOR, r + 1, pair, 2);
    }
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 4; i++)
            expect_group(ZT_AXIS_SHARD, shard[g][i], shard[g], 4);
    for (int r = 0; r < 8; r++) {
        int pair[2] = {r, r + 8};
        expect_group(ZT_AXIS_REPLICATE, r, pair, 2);
        expect_group(ZT_AXIS_REPLICATE, r + 8, pair, 2);
    }
    const int even[8] = {0, 2, 4, 6, 8, 10, 12, 14}, odd[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    expect_group(ZT_AXIS_DP, 0, even, 8);
    expect_group(ZT_AXIS_DP, 14, even, 8);
    expect_group(ZT_AXIS_DP, 9, odd, 8);
    int all[16];
    for (int r = 0; r < 16; r++)
        all[r] = r;
    expect_group(ZT_AXIS_WORLD, 11, all, 16);
}

Test(mesh, rank_order) {
    cr_assert_eq(zt_mesh_world(mesh16), 16);
    cr_assert_eq(zt_mesh_dp(mesh16), 8);
    for (int rep = 0; rep < 2; rep++)
        for (int s = 0; s < 4; s++)
            for (int t = 0; t < 2; t++) {
                int rank = (rep * 4 + s) * 2 + t;
                struct zt_coords c = {rep, s, t};
                cr_assert_eq(zt_mesh_rank(mesh16, c), rank);
                struct zt_coords back = zt_mesh_coords(mesh16, rank);
                cr_assert_eq(memcmp(&back, &c, sizeof c), 0);
                cr_assert_eq(zt_mesh_dp_index(mesh16, rank), rep * 4 + s);
            }
}

Test(mesh, single) {
    struct zt_mesh one = {1, 1, 1};
    int got[1];
    cr_assert_eq(zt_mesh_world(one), 1);
    for (int a = ZT_AXIS_WORLD; a <= ZT_AXIS_DP; a++) {
        cr_assert_eq(zt_mesh_group(one, (enum zt_axis)a, 0, got), 1);
        cr_assert_eq(got[0], 0);
    }
}

/* The lists of docs/internals.md, written out again. */
Test(reason, retry_rules) {
    static const char *const never[] = {"CONFIG_ERROR", "VERSION_MISMATCH", "NAN_LOSS", "OOM_DEVICE",
                                        "DATA_ERROR", "REPLICA_DIVERGED"};
    static const char *const counted[] = {"EXIT_NONZERO", "SIGNAL", "OOM_HOST", "CKPT_ERROR"};
    static const char *const uncounted[] = {"KILLED", "WORKER_LOST", "HANG", "COMM_ERROR",
                                            "COMM_INIT_TIMEOUT", "START_TIMEOUT", "PREEMPTED",
                                            "DRAINED", "CKPT_CORRUPT"};
    for (int i = 0; i < 6; i++)
        cr_assert_eq(zt_reason_retry(zt_reason_find(never[i])), ZT_RETRY_NEVER, "%s", never[i]);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(zt_reason_retry(zt_reason_find(counted[i])), ZT_RETRY_COUNTED, "%s", counted[i]);
    for (int i = 0; i < 9; i++)
        cr_assert_eq(zt_reason_retry(zt_reason_find(uncounted[i])), ZT_RETRY_FREE, "%s", uncounted[i]);
}

Test(reason, names) {
    int named = 0;
    for (int r = 1; r < 64; r++) {
        const char *name = zt_reason_name((enum zt_reason)r);
        if (strncmp(name, "UNKNOWN", 7) == 0)
            continue;
        named++;
        cr_assert_eq(zt_reason_find(name), (enum zt_reason)r, "%s", name);
        cr_assert_eq(zt_reason_is_consequence((enum zt_reason)r),
                     strcmp(name, "PEER_LOST") == 0 || strcmp(name, "COMM_TIMEOUT") == 0, "%s", name);
    }
    cr_assert_eq(named, 27);
    cr_assert_str_eq(zt_reason_name((enum zt_reason)999), "UNKNOWN(999)");
    cr_assert_eq(zt_reason_find("NO_SUCH"), ZT_REASON_NONE);
}

/* Bytes per parameter that each recipe keeps: parameter, gradient (as it is kept where it is cut), optimizer. */
Test(dtype, recipes) {
    static const struct { const char *name; size_t p, g, o; } want[] = {
        {"fp32", 4, 4, 8},        {"fsdp_mixed", 4, 4, 8}, {"autocast", 4, 4, 8},   {"frozen16", 4, 4, 8},
        {"mixed16", 2, 2, 12},    {"mixed16_g32", 2, 4, 12}, {"mixed16_nomaster", 2, 2, 8},
        {"pure_bf16", 2, 2, 4},   {"fp16", 2, 2, 12},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const struct zt_recipe *r = zt_recipe_find(want[i].name);
        cr_assert(r, "%s", want[i].name);
        cr_assert_eq(zt_dtype_size(r->param), want[i].p, "%s", want[i].name);
        cr_assert_eq(zt_dtype_size(r->own), want[i].g, "%s", want[i].name);
        cr_assert_eq(zt_recipe_optimizer_bytes(r), want[i].o, "%s", want[i].name);
    }
    cr_assert_null(zt_recipe_find("bf16"));
    cr_assert_str_eq(zt_dtype_name(ZT_BF16), "bf16");
    cr_assert_eq(zt_dtype_size(ZT_I64), 8);
}

/* {given}, fill_shard, world -> {mesh}; replicate 0: there is none. */
Test(mesh, elastic_meshes) {
    static const struct { struct zt_mesh given; bool fill; int world; struct zt_mesh want; } row[] = {
        {{2, 2, 1}, true, 4, {2, 2, 1}},  {{2, 2, 1}, true, 2, {1, 2, 1}},  {{2, 2, 1}, true, 1, {1, 1, 1}},
        {{2, 2, 1}, true, 3, {0, 0, 0}},  {{2, 2, 1}, true, 6, {0, 0, 0}},  {{2, 4, 1}, true, 3, {1, 3, 1}},
        {{4, 2, 2}, true, 12, {3, 2, 2}}, {{4, 2, 2}, true, 4, {1, 2, 2}},  {{4, 2, 2}, true, 2, {1, 1, 2}},
        {{4, 2, 2}, true, 5, {0, 0, 0}},  {{-1, -1, 1}, true, 5, {1, 5, 1}}, {{-1, 1, 1}, false, 5, {5, 1, 1}},
        {{4, 1, 1}, false, 3, {3, 1, 1}}, {{4, 1, 1}, false, 5, {0, 0, 0}}, {{2, -1, 1}, true, 6, {2, 3, 1}},
        {{2, -1, 1}, true, 3, {1, 3, 1}}, {{-1, 4, 1}, true, 8, {2, 4, 1}}, {{-1, 4, 1}, true, 6, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_mesh m = {0, 0, 0};
        bool any = zt_mesh_shrink(row[i].given, row[i].fill, row[i].world, &m);
        cr_expect_eq(any, row[i].want.replicate > 0, "row %zu", i);
        if (any)
            cr_expect(m.replicate == row[i].want.replicate && m.shard == row[i].want.shard && m.tensor == row[i].want.tensor,
                      "row %zu: %d x %d x %d", i, m.replicate, m.shard, m.tensor);
    }
}
