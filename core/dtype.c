/* SPDX-License-Identifier: Apache-2.0 */
/* core/dtype.c: element sizes and the recipe table. Pure; static data; any thread. */
#include "core/dtype.h"
#include <string.h>
#include "core/error.h"

static const struct { const char *name; size_t size; } dtypes[ZT_DTYPE_COUNT] = {
    [ZT_F32] = {"fp32", 4}, [ZT_BF16] = {"bf16", 2}, [ZT_F16] = {"fp16", 2},
    [ZT_I32] = {"int32", 4}, [ZT_I64] = {"int64", 8}, [ZT_U8] = {"uint8", 1},
};

size_t zt_dtype_size(enum zt_dtype t) {
    ZT_ASSERT((unsigned)t < ZT_DTYPE_COUNT);
    return dtypes[t].size;
}

const char *zt_dtype_name(enum zt_dtype t) {
    return (unsigned)t < ZT_DTYPE_COUNT ? dtypes[t].name : "?";
}

const char *zt_dtype_row_name(enum zt_dtype_row row) {
    static const char *const names[ZT_ROW_COUNT] = {
        [ZT_ROW_PARAMETER] = "parameter",   [ZT_ROW_GATHERED] = "gathered",
        [ZT_ROW_COMPUTE] = "compute",       [ZT_ROW_ACTIVATION] = "activation",
        [ZT_ROW_GRADIENT] = "gradient",     [ZT_ROW_REDUCE] = "reduce",
        [ZT_ROW_OWN_GRADIENT] = "own_gradient", [ZT_ROW_MASTER] = "master",
        [ZT_ROW_M] = "m",                   [ZT_ROW_V] = "v",
        [ZT_ROW_FROZEN] = "frozen",
    };
    return (unsigned)row < ZT_ROW_COUNT ? names[row] : "?";
}

/* fp32: the parameter is the master, so there is no second copy. fsdp_mixed stores an fp32 shard and
 * casts it to bf16 for the gathered copy only; autocast casts for the kernels only; frozen16 does so
 * with what trains (adapters above all), and holds in bf16 what does not. Recipes that store 16-bit
 * parameters without a master round stochastically, or small updates would vanish. */
/* clang-format off */
static const struct zt_recipe recipes[] = {
    /* name              param    frozen   gathered compute  grad     own      moment   master sr scaled here */
    {"fp32",             ZT_F32,  ZT_F32,  ZT_F32,  ZT_F32,  ZT_F32,  ZT_F32,  ZT_F32,  0, 0, 0, 1},
    {"fsdp_mixed",       ZT_F32,  ZT_F32,  ZT_BF16, ZT_BF16, ZT_BF16, ZT_F32,  ZT_F32,  0, 0, 0, 1},
    {"autocast",         ZT_F32,  ZT_F32,  ZT_F32,  ZT_BF16, ZT_F32,  ZT_F32,  ZT_F32,  0, 0, 0, 1},
    {"frozen16",         ZT_F32,  ZT_BF16, ZT_F32,  ZT_BF16, ZT_F32,  ZT_F32,  ZT_F32,  0, 0, 0, 1},
    {"mixed16",          ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_F32,  1, 0, 0, 1},
    {"mixed16_g32",      ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_F32,  ZT_F32,  ZT_F32,  1, 0, 0, 1},
    {"mixed16_nomaster", ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_F32,  0, 1, 0, 1},
    {"pure_bf16",        ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, ZT_BF16, 0, 1, 0, 1},
    {"fp16",             ZT_F16,  ZT_F16,  ZT_F16,  ZT_F16,  ZT_F16,  ZT_F16,  ZT_F32,  1, 0, 1, 1},
};
/* clang-format on */

const struct zt_recipe *zt_recipe_find(const char *name) {
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    return NULL;
}

const struct zt_recipe *zt_recipe_row(int i) {
    return i >= 0 && (size_t)i < sizeof recipes / sizeof recipes[0] ? &recipes[i] : NULL;
}

enum zt_dtype zt_recipe_stored(const struct zt_recipe *r, int trainable) {
    return trainable ? r->param : r->frozen;
}

enum zt_dtype zt_recipe_gathered(const struct zt_recipe *r, int trainable) {
    return trainable || r->frozen == r->param ? r->gathered : r->frozen;
}

size_t zt_recipe_optimizer_bytes(const struct zt_recipe *r) {
    return (r->has_master ? zt_dtype_size(ZT_F32) : 0) + 2 * zt_dtype_size(r->moment);
}
