/* SPDX-License-Identifier: Apache-2.0 */
/* core/hash128.h: 128-bit hashes whose sums mod 2^128 do not depend on the order: of parameters and of
 * state (D12), of checkpoint pieces. Pure; any thread. */
#ifndef ZT_CORE_HASH128_H
#define ZT_CORE_HASH128_H
#include <stdint.h>

struct zt_hash128 { uint64_t lo, hi; };
static inline void zt_hash128_add(struct zt_hash128 *a, struct zt_hash128 b) {
    const uint64_t lo = a->lo + b.lo;
    a->hi += b.hi + (lo < a->lo);
    a->lo = lo;
}

#endif
