/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/reduce.h: the loops of the collectives over plain memory: element-wise reductions in
 * the order of the sources, and copies. Pure; any thread; buffers belong to the caller. */
#ifndef ZT_ENGINE_COMM_REDUCE_H
#define ZT_ENGINE_COMM_REDUCE_H
#include "engine/comm/comm.h"

/* True when `op` is defined for `t`: fp32, bf16 and fp16 sum max min avg; int32, int64, u8 sum max min. */
bool zt_reduce_supported(enum zt_dtype t, enum zt_redop op);
/* dst[k][i] = src[0][i] op src[1][i] op ... for k < n_dst. fp32: one rounding per add, in this
 * order; avg multiplies every element by (float)(1.0 / n_src) first; bf16 and fp16 add in fp32 and
 * are rounded once, to nearest even, after the last source; integers wrap; max and min hand NaN on. A dst may be a src, else they do not overlap. */
void zt_reduce(enum zt_dtype t, enum zt_redop op, int n_src, const void *const *src, int n_dst,
               void *const *dst, size_t count);
/* memcpy that does not pull a big destination into the caches. */
void zt_copy(void *dst, const void *src, size_t bytes);
/* Elements [*lo, *hi) of count are rank r's share of n: equal shares when n divides count, else
 * shares of a multiple of 16 elements, the last ones short or empty. */
void zt_share(int64_t count, int n, int r, int64_t *lo, int64_t *hi);

#endif
