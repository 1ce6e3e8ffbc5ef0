/* SPDX-License-Identifier: Apache-2.0 */
/* core/dtype.h: element types and the byte recipes (bytes per parameter by what is kept).
 * Pure; any thread. Sources: sharding semantics 1.3 in docs/memory.md. */
#ifndef ZT_CORE_DTYPE_H
#define ZT_CORE_DTYPE_H
#include <stddef.h>
#include <stdint.h>

enum zt_dtype { ZT_F32 = 0, ZT_BF16 = 1, ZT_F16 = 2, ZT_I32 = 3, ZT_I64 = 4, ZT_U8 = 5, ZT_DTYPE_COUNT };

size_t zt_dtype_size(enum zt_dtype t);        /* bytes of one element */
const char *zt_dtype_name(enum zt_dtype t);   /* "fp32", "bf16", ... */

/* What a recipe stores: one row per recipe name of run.yaml's precision.recipe. A whole gradient is
 * kept in `grad`, a sharded one in `own`. The gathered copy of a unit is of type `gathered`; where
 * that is not `compute`, the kernels get a temporary copy for as long as the unit is in use. */
struct zt_recipe {
    const char *name;
    enum zt_dtype param;    /* stored parameter */
    enum zt_dtype frozen;   /* the same of a frozen one */
    enum zt_dtype gathered; /* what is sent by a parameter gather and held while a unit is whole */
    enum zt_dtype compute;  /* operand and activation type of the kernels */
    enum zt_dtype grad;     /* what backward writes */
    enum zt_dtype own;      /* gradient shard, summed over micro-steps */
    enum zt_dtype moment;   /* m and v */
    int has_master;         /* a separate fp32 master copy beside param */
    int stochastic;         /* updates are rounded stochastically: no master, 16-bit parameters */
    int scaled;             /* fp16: the loss is scaled */
    int supported;          /* 0: named and refused with "not in this version" */
};
/* The things of a run that have a number format; `zctl dtypes` has a row for each. */
enum zt_dtype_row {
    ZT_ROW_PARAMETER = 0, /* stored parameters */
    ZT_ROW_GATHERED,      /* a unit's whole parameters; sent by a gather */
    ZT_ROW_COMPUTE,       /* operands of the kernels */
    ZT_ROW_ACTIVATION,    /* what forward saves for backward */
    ZT_ROW_GRADIENT,      /* what backward wrote */
    ZT_ROW_REDUCE,        /* what the ranks add up */
    ZT_ROW_OWN_GRADIENT,  /* what the optimizer reads */
    ZT_ROW_MASTER,
    ZT_ROW_M,
    ZT_ROW_V,
    ZT_ROW_FROZEN,        /* stored parameters that do not train */
    ZT_ROW_COUNT
};
const char *zt_dtype_row_name(enum zt_dtype_row row); /* "parameter", "gathered", ... */

/* NULL when there is no such recipe. */
const struct zt_recipe *zt_recipe_find(const char *name);
const struct zt_recipe *zt_recipe_row(int i); /* NULL past the end */
/* What a parameter is stored in, and what of it a gather sends. */
enum zt_dtype zt_recipe_stored(const struct zt_recipe *r, int trainable);
enum zt_dtype zt_recipe_gathered(const struct zt_recipe *r, int trainable);
/* Bytes per parameter that the optimizer keeps (master + m + v). */
size_t zt_recipe_optimizer_bytes(const struct zt_recipe *r);

#endif
