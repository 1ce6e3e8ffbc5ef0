/* SPDX-License-Identifier: Apache-2.0 */
/* core/hash128.h: 128-bit hashes whose sums mod 2^128 do not depend on the order: of parameters and of
 * state (D12), of checkpoint pieces. Pure; any thread. */
#ifndef ZT_CORE_HASH128_H
#define ZT_CORE_HASH128_H
#include <stdbool.h>
#include <stdint.h>

/* What a moment's element is hashed under (D12): its tensor's number with one of these. */
#define ZT_HASH_M 0x40000000u
#define ZT_HASH_V 0x80000000u

struct zt_hash128 { uint64_t lo, hi; };
static inline void zt_hash128_add(struct zt_hash128 *a, struct zt_hash128 b) {
    const uint64_t lo = a->lo + b.lo;
    a->hi += b.hi + (lo < a->lo);
    a->lo = lo;
}

/* An element's message begins with its tensor's number; the moments' have these bits set in it, so that
 * no two of a parameter, its m and its v can be exchanged. Numbers stay below ZT_HASH_M. */
#define ZT_HASH_M 0x40000000u
#define ZT_HASH_V 0x80000000u
/* *sum += XXH3-128 of (word u32, first + i u64, bits of v[i] u32), all little-endian, over i < n. */
void zt_hash_elements(uint32_t word, uint64_t first, const float *v, int64_t n, struct zt_hash128 *sum);

void zt_hash_text(struct zt_hash128 h, char out[33]); /* 32 lower-case digits, high word first */
bool zt_hash_parse(const char *text, struct zt_hash128 *out);

#endif
