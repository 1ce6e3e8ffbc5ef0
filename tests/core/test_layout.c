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
