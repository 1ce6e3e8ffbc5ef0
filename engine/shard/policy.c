/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/policy.c: the table of modes. To add a mode, add a row; the runtime needs no new
 * code as long as the row is made of the choices there are. */
#include "engine/shard/policy.h"

#include "core/error.h"

/* clang-format off */
static const struct zt_policy table[ZT_MODE_COUNT] = {
    /* mode, shard P G O, gather, reduce, when, in this version */
    {ZT_DDP, false, false, false, ZT_GATHER_NEVER, ZT_REDUCE_ALL, ZT_WHEN_WINDOW_END, true},
    {ZT_ZERO1, false, false, true, ZT_GATHER_AFTER_UPDATE, ZT_REDUCE_SCATTER, ZT_WHEN_WINDOW_END, true},
    {ZT_ZERO2, false, true, true, ZT_GATHER_AFTER_UPDATE, ZT_REDUCE_SCATTER, ZT_WHEN_EVERY_MICRO_STEP, true},
    {ZT_ZERO3, true, true, true, ZT_GATHER_BEFORE_USE, ZT_REDUCE_SCATTER, ZT_WHEN_EVERY_MICRO_STEP, true},
    {ZT_FSDP, true, true, true, ZT_GATHER_BEFORE_USE, ZT_REDUCE_SCATTER, ZT_WHEN_EVERY_MICRO_STEP, true},
};
/* clang-format on */

const struct zt_policy *zt_policy(enum zt_mode m) {
    ZT_ASSERT((int)m >= 0 && m < ZT_MODE_COUNT);
    return &table[m];
}
