/* SPDX-License-Identifier: Apache-2.0 */
/* Padding and persistent bytes per rank: worked values of the ZeRO paper's accounting, and sums by
 * hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "core/layout.h"

/* A model of one unit with one tensor: bytes are then N times the recipe's, nothing else. */
static struct zt_tensor_def one_tensor;
static struct zt_unit_def one_unit = {"root", 0, 1};

static struct zt_model_table single(int64_t numel) {
    struct zt_model_table t = {.n_tensors = 1, .n_units = 1, .tensors = &one_tensor,
                               .units = &one_unit, .parameters = numel};
    memset(&one_tensor, 0, sizeof one_tensor);
    one_tensor.numel = numel;
    return t;
}

static double total_gb(int64_t n, enum zt_mode mode, int shard) {
    struct zt_model_table t = single(n);
    struct zt_state_bytes s = zt_state_formula(&t, mode, shard, zt_recipe_find("mixed16"));
    return (double)(s.parameters + s.gradients + s.optimizer) / 1e9;
}

static void expect_row(int64_t n, int k, double ddp, double z1, double z2, double z3, double tol) {
    cr_assert_float_eq(total_gb(n, ZT_DDP, 1), ddp, tol);
    cr_assert_float_eq(total_gb(n, ZT_ZERO1, k), z1, tol);
    cr_assert_float_eq(total_gb(n, ZT_ZERO2, k), z2, tol);
    cr_assert_float_eq(total_gb(n, ZT_ZERO3, k), z3, tol);
    cr_assert_float_eq(total_gb(n, ZT_FSDP, k), z3, tol);
}

/* Bytes per parameter times N; buffers end on 512 bytes, hence the few bytes of tolerance. */
Test(layout, paper_values) {
    expect_row(1000000000, 8, 16.0, 5.5, 3.75, 2.0, 3e-6);
    expect_row(7500000000, 64, 120, 31.40625, 16.640625, 1.875, 3e-6);
    expect_row(8030261248, 8, 128.484179968, 44.166436864, 30.11347968, 16.060522496, 3e-6);
    static const struct { int k; double gib; } llama8b[] = {
        {8, 14.958}, {16, 7.479}, {32, 3.739}, {64, 1.870}, {128, 0.935}};
    for (int i = 0; i < 5; i++)
        cr_assert_float_eq(total_gb(8030261248, ZT_ZERO3, llama8b[i].k) * 1e9 / 1073741824.0,
                           llama8b[i].gib, 6e-4);
}

/* Bytes per parameter: parameter, gradient, optimizer; and 1e9 of them in GB, whole on one rank. */
Test(layout, recipes) {
    static const struct { const char *name; int p, g, own, o; } rows[] = {
        {"fp32", 4, 4, 4, 8},      {"mixed16", 2, 2, 2, 12},        {"mixed16_g32", 2, 4, 4, 12},
        {"fp16", 2, 2, 2, 12},     {"mixed16_nomaster", 2, 2, 2, 8}, {"pure_bf16", 2, 2, 2, 4},
        {"autocast", 4, 4, 4, 8},  {"fsdp_mixed", 4, 2, 4, 8},      {"frozen16", 4, 4, 4, 8},
    };
    static const int64_t n = 1 << 20; /* whole buffers of 512 bytes, also in eighths */
    struct zt_model_table t = single(n);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct zt_recipe *r = zt_recipe_find(rows[i].name);
        cr_assert_not_null(r, "%s", rows[i].name);
        struct zt_state_bytes ddp = zt_state_formula(&t, ZT_DDP, 1, r);
        cr_assert_eq(ddp.parameters, rows[i].p * n, "%s", rows[i].name);
        cr_assert_eq(ddp.gradients, rows[i].g * n, "%s", rows[i].name);
        cr_assert_eq(ddp.optimizer, rows[i].o * n, "%s", rows[i].name);
        struct zt_state_bytes z1 = zt_state_formula(&t, ZT_ZERO1, 8, r);
        cr_assert(z1.parameters == ddp.parameters && z1.gradients == ddp.gradients);
        cr_assert_eq(z1.optimizer, rows[i].o * n / 8);
        struct zt_state_bytes z2 = zt_state_formula(&t, ZT_ZERO2, 8, r);
        cr_assert_eq(z2.parameters, ddp.parameters);
        cr_assert_eq(z2.gradients, rows[i].own * n / 8, "%s", rows[i].name);
        cr_assert_eq(z2.optimizer, rows[i].o * n / 8);
        for (int m = ZT_ZERO3; m <= ZT_FSDP; m++) {
            struct zt_state_bytes z3 = zt_state_formula(&t, (enum zt_mode)m, 8, r);
            cr_assert(z3.parameters == rows[i].p * n / 8 && z3.gradients == z2.gradients &&
                      z3.optimizer == z2.optimizer, "%s", rows[i].name);
        }
    }
}

/* 16 ranks as tensor 2 x replicate 2 x shard 4, 1e9 parameters all cut by tensor: each rank holds
 * what one of 4 shards of 5e8 holds; the replicas divide nothing. */
Test(layout, only_the_shard_degree_divides) {
    cr_assert_float_eq(total_gb(500000000, ZT_FSDP, 4), 2.0, 1e-5);
    cr_assert_float_eq(total_gb(500000000, ZT_ZERO2, 4), 2.75, 1e-5);
    cr_assert_float_eq(total_gb(500000000, ZT_ZERO1, 4), 3.5, 1e-5);
    cr_assert_float_eq(total_gb(500000000, ZT_DDP, 1), 8.0, 1e-5);
}

/* A frozen base and a small part that trains. */
static double partial_gb(int64_t frozen, int64_t trainable, enum zt_mode mode, int shard) {
    struct zt_tensor_def tensors[2] = {{.numel = trainable}, {.numel = frozen, .frozen = true}};
    struct zt_unit_def unit = {"root", 0, 2};
    struct zt_model_table t = {.n_tensors = 2, .n_units = 1, .tensors = tensors, .units = &unit};
    struct zt_state_bytes s = zt_state_formula(&t, mode, shard, zt_recipe_find("mixed16"));
    return (double)(s.parameters + s.gradients + s.optimizer) / 1e9;
}

Test(layout, partial_training) {
    /* 1e9, of which 1e7 train: 2.0 + 0.02 + 0.12 */
    cr_assert_float_eq(partial_gb(990000000, 10000000, ZT_DDP, 1), 2.14, 1e-6);
    /* Llama3-8B and adapters of rank 16 on q and v: 2 (N + n) + 14 n */
    cr_assert_float_eq(partial_gb(8030261248, 6815744, ZT_DDP, 1), 16.16957, 6e-6);
    cr_assert_float_eq(partial_gb(8030261248, 6815744, ZT_FSDP, 8), 2.02120, 6e-6);
}

/* Groups as the engine builds them: small tensors kept whole, gradients and moments cut all the
 * same. 992 and 96 elements at shard 2, mixed16:
 * P 992/2*2 = 992 -> 1024, 96*2 = 192 -> 512; G 1024, 96/2*2 = 96 -> 512;
 * O 3 x (496*4 = 1984 -> 2048) + 3 x (48*4 = 192 -> 512). */
Test(layout, persistent_groups) {
    static const struct zt_group_size g[3] = {
        {992, true, false}, {96, true, true}, {32, false, true}};
    struct zt_state_bytes s = zt_state_of_groups(g, 2, ZT_FSDP, 2, zt_recipe_find("mixed16"));
    cr_assert_eq(s.parameters, 1024 + 512);
    cr_assert_eq(s.gradients, 1024 + 512);
    cr_assert_eq(s.optimizer, 3 * (2048 + 512));
    s = zt_state_of_groups(g, 3, ZT_FSDP, 2, zt_recipe_find("mixed16"));
    cr_assert(s.parameters == 1024 + 512 + 512 && s.gradients == 1024 + 512, "a frozen one");
}

Test(layout, padding) {
    static const int64_t n[] = {1, 16, 17, 100};
    /* 16 + 16 + 32 + 112 = 176 */
    cr_assert_eq(zt_group_padded(n, 4, 1), 176);
    cr_assert_eq(zt_group_padded(n, 4, 2), 192);
    cr_assert_eq(zt_group_padded(n, 4, 3), 192);
    cr_assert_eq(zt_group_padded(n, 4, 11), 176);
    cr_assert_eq(zt_group_padded(n, 4, 64), 1024);
    cr_assert_eq(zt_group_padded(n, 0, 4), 0);
}

Test(layout, gpt2_nano_by_hand) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error err;
    cr_assert_eq(zt_model_preset("gpt2-nano", &c, &err), 0);
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
    /* every size is a multiple of 16: no padding at shard 1 */
    cr_assert_eq(zt_model_padded(&t, 1), t.parameters);
    /* root 65792, block 198272; in steps of 48: 65808, 198288 */
    cr_assert_eq(zt_model_padded(&t, 3), 65808 + 4 * 198288);
    struct zt_state_bytes s = zt_state_formula(&t, ZT_DDP, 1, zt_recipe_find("fp32"));
    /* 65792 * 4 = 263168 = 514 * 512; 198272 * 4 = 793088 = 1549 * 512 */
    cr_assert_eq(s.parameters, 263168 + 4 * 793088);
    cr_assert_eq(s.gradients, s.parameters);
    cr_assert_eq(s.optimizer, 2 * s.parameters);
    /* shard 3, fp32: a third of root 21936 * 4 = 87744 -> 88064, of a block 66096 * 4 = 264384 -> 264704 */
    s = zt_state_formula(&t, ZT_ZERO3, 3, zt_recipe_find("fp32"));
    cr_assert_eq(s.parameters, 88064 + 4 * 264704);
    cr_assert_eq(s.gradients, s.parameters);
    cr_assert_eq(s.optimizer, 2 * s.parameters);
    /* zero1 keeps parameters and gradients whole, padded for 3: 65808 * 4 = 263232 -> 263680,
     * 198288 * 4 = 793152 -> 793600 */
    s = zt_state_formula(&t, ZT_ZERO1, 3, zt_recipe_find("fp32"));
    cr_assert_eq(s.parameters, 263680 + 4 * 793600);
    cr_assert_eq(s.gradients, s.parameters);
    cr_assert_eq(s.optimizer, 2 * (88064 + 4 * 264704));
    s = zt_state_formula(&t, ZT_ZERO2, 3, zt_recipe_find("fp32"));
    cr_assert_eq(s.parameters, 263680 + 4 * 793600);
    cr_assert_eq(s.gradients, 88064 + 4 * 264704);
    zt_model_table_free(&t);
}

/* Frozen tensors are stored, but have no gradient and no optimizer state. */
Test(layout, frozen) {
    struct zt_tensor_def tensors[2] = {{.numel = 1024}, {.numel = 2048, .frozen = true}};
    struct zt_unit_def unit = {"root", 0, 2};
    struct zt_model_table t = {.n_tensors = 2, .n_units = 1, .tensors = tensors, .units = &unit};
    struct zt_state_bytes s = zt_state_formula(&t, ZT_DDP, 1, zt_recipe_find("mixed16"));
    cr_assert_eq(s.parameters, 2 * (1024 + 2048));
    cr_assert_eq(s.gradients, 2 * 1024);
    cr_assert_eq(s.optimizer, 12 * 1024);
    cr_assert_eq(zt_model_padded(&t, 4), 1024 + 2048);
}

Test(layout, mode_names) {
    static const char *const names[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};
    for (int m = 0; m < ZT_MODE_COUNT; m++)
        cr_assert_str_eq(zt_mode_name((enum zt_mode)m), names[m]);
    cr_assert_str_eq(zt_mode_name((enum zt_mode)9), "?");
}

/* Published volumes, in bytes per parameter: sharding reference T-VOL (K = 8, one micro-step), T-RING,
 * T-HSDPVOL (2 replicas of 4 shards), and n micro-steps by the formulas 2G; G + P; nG + P; n (2P + G). */
Test(layout, volumes_of_a_step) {
    static const struct {
        const char *recipe;
        struct zt_volume_case c;
        double gather, scatter, all_reduce;
    } row[] = {
        {"fp32", {.mode = ZT_DDP, .replicate = 8, .shard = 1, .micro_steps = 1, .reduce = ZT_F32}, 0, 0, 7},
        {"mixed16", {.mode = ZT_DDP, .replicate = 8, .shard = 1, .micro_steps = 1, .reduce = ZT_BF16}, 0, 0, 3.5},
        {"mixed16", {.mode = ZT_DDP, .replicate = 8, .shard = 1, .micro_steps = 5, .reduce = ZT_BF16}, 0, 0, 3.5},
        {"mixed16", {.mode = ZT_ZERO1, .replicate = 1, .shard = 8, .micro_steps = 4, .reduce = ZT_BF16}, 1.75, 1.75, 0},
        {"mixed16", {.mode = ZT_ZERO2, .replicate = 1, .shard = 8, .micro_steps = 4, .reduce = ZT_BF16}, 1.75, 7, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 1, .shard = 8, .micro_steps = 1, .reduce = ZT_F32}, 3.5, 3.5, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 1, .shard = 8, .micro_steps = 1, .reduce = ZT_BF16}, 3.5, 1.75, 0},
        {"fsdp_mixed", {.mode = ZT_ZERO3, .replicate = 1, .shard = 8, .micro_steps = 3, .reduce = ZT_BF16}, 10.5, 5.25, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 1, .shard = 8, .micro_steps = 1, .keep = true, .reduce = ZT_BF16}, 1.75, 1.75, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 1, .shard = 8, .micro_steps = 2, .no_sync = true, .reduce = ZT_BF16}, 7, 1.75, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 1, .shard = 8, .micro_steps = 1, .slices = 2, .reduce = ZT_BF16}, 1.75 + 1, 1.75, 0},
        {"fsdp_mixed", {.mode = ZT_FSDP, .replicate = 2, .shard = 4, .micro_steps = 1, .reduce = ZT_F32}, 3, 3, 1},
        {"fp32", {.mode = ZT_ZERO3, .replicate = 1, .shard = 1, .micro_steps = 9, .reduce = ZT_F32}, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_volume v = zt_volume_formula(&row[i].c, zt_recipe_find(row[i].recipe));
        cr_assert_eq(v.gather, row[i].gather, "row %zu: gather %g", i, v.gather);
        cr_assert_eq(v.scatter, row[i].scatter, "row %zu: scatter %g", i, v.scatter);
        cr_assert_eq(v.all_reduce, row[i].all_reduce, "row %zu: all-reduce %g", i, v.all_reduce);
    }
}

/* The plain formula: bytes per parameter times the shard, to the byte; a shard is ceil(N / S). */
Test(layout, plain_formula) {
    static const struct { int64_t n; int k; enum zt_mode mode; int64_t p, g, o; } row[] = {
        {1000000000, 8, ZT_DDP, 2000000000, 2000000000, 12000000000},
        {1000000000, 8, ZT_ZERO1, 2000000000, 2000000000, 1500000000},
        {1000000000, 8, ZT_ZERO2, 2000000000, 250000000, 1500000000},
        {1000000000, 8, ZT_ZERO3, 250000000, 250000000, 1500000000},
        {1000000000, 8, ZT_FSDP, 250000000, 250000000, 1500000000},
        {10, 8, ZT_ZERO3, 4, 4, 24}, /* 2 elements a rank */
        {10, 8, ZT_ZERO1, 20, 20, 24},
        {1, 8, ZT_FSDP, 2, 2, 12},
        {0, 8, ZT_FSDP, 0, 0, 0},
        {1000000000000000, 1, ZT_DDP, 2000000000000000, 2000000000000000, 12000000000000000},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_state_bytes s = zt_state_plain(row[i].n, true, row[i].mode, row[i].k, zt_recipe_find("mixed16"));
        cr_assert_eq(s.parameters, row[i].p, "row %zu", i);
        cr_assert_eq(s.gradients, row[i].g, "row %zu", i);
        cr_assert_eq(s.optimizer, row[i].o, "row %zu", i);
        s = zt_state_plain(row[i].n, false, row[i].mode, row[i].k, zt_recipe_find("mixed16"));
        cr_assert(s.parameters == row[i].p && s.gradients == 0 && s.optimizer == 0, "frozen, row %zu", i);
    }
}

/* A block of Llama 3 8B, bf16 gathered and fp32 reduced: 872,448,000 and 2,181,120,000 bytes; 8 and 16 bytes per
 * element in fp32; each unit ahead and each reduction in flight on top. */
Test(layout, peak_of_equal_units) {
    const struct zt_recipe *mixed = zt_recipe_find("fsdp_mixed"), *full = zt_recipe_find("fp32");
    struct zt_unit_peak p = zt_unit_peak_formula(218112000, true, 1, 1, ZT_F32, mixed);
    cr_assert(p.forward == 872448000 && p.backward == 2181120000);
    p = zt_unit_peak_formula(1000, true, 1, 1, ZT_F32, full);
    cr_assert(p.forward == 8000 && p.backward == 16000);
    p = zt_unit_peak_formula(1000, true, 1, 1, ZT_BF16, mixed);
    cr_assert(p.forward == 4000 && p.backward == 8000);
    p = zt_unit_peak_formula(1000, true, 3, 2, ZT_F32, mixed);
    cr_assert(p.forward == 8000 && p.backward == 18000);
    p = zt_unit_peak_formula(1000, false, 1, 1, ZT_F32, mixed);
    cr_assert(p.forward == 0 && p.backward == 6000);
}

/* T-TPFSDP: 16 ranks as tensor 2 x (replicate 2 x shard 4), all of 1e9 parameters cut by the tensor degree: what is
 * left is divided by the shard degree alone, and by mode. 16 bytes a parameter. */
Test(layout, tensor_degree_and_shards_divide_one_after_the_other) {
    static const struct { enum zt_mode mode; int64_t bytes; } want[] = {
        {ZT_DDP, 8000000000}, {ZT_ZERO1, 3500000000}, {ZT_ZERO2, 2750000000},
        {ZT_ZERO3, 2000000000}, {ZT_FSDP, 2000000000}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_state_bytes s = zt_state_plain(1000000000 / 2, true, want[i].mode, 4, zt_recipe_find("mixed16"));
        cr_assert_eq(s.parameters + s.gradients + s.optimizer, want[i].bytes, "%s", zt_mode_name(want[i].mode));
    }
}

/* The formulas read a cut table's own shapes. Every tensor of these parts is a multiple of 16 S elements and every
 * buffer of 512 bytes: (N - N_rep) / t + N_rep parameters, 16 bytes each, over the shards. */
Test(layout, formulas_of_a_cut_table) {
    struct zt_model_config c;
    struct zt_model_count n;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset("llama-nano", &c, &err), 0);
    c.ffn_dim = 512;
    cr_assert_eq(zt_model_count(&c, &n, &err), 0);
    for (int degree = 1; degree <= 2; degree++) {
        struct zt_model_table t;
        const int64_t rank_has = (n.parameters - n.replicated) / degree + n.replicated;
        cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
        cr_assert_eq(zt_model_table_cut(&t, degree, degree - 1, &err), 0, "%s", err.msg);
        cr_assert_eq(zt_model_padded(&t, 1), rank_has);
        struct zt_state_bytes s = zt_state_formula(&t, ZT_DDP, 1, zt_recipe_find("fp32"));
        cr_assert_eq(s.parameters + s.gradients + s.optimizer, 16 * rank_has);
        zt_model_table_free(&t);
    }
}
