/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/hash.c: the parameter hash (D12), one element at a time, so that any cut of a tensor
 * over ranks adds up to the same. */
#include <endian.h>
#include <string.h>
#define XXH_INLINE_ALL /* a call per element would cost more than the hash */
#include <xxhash.h>

#include "kernels/cpu/cpu.h"

/* Little-endian whatever the host; compilers make one store of each. */
static void put_le32(unsigned char *p, uint32_t v) {
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}
static void put_le64(unsigned char *p, uint64_t v) {
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static uint32_t bits_at(const void *v, enum zt_dtype t, int64_t i) {
    uint32_t bits;
    uint16_t half;
    if (t == ZT_F32) {
        memcpy(&bits, (const float *)v + i, sizeof bits);
        return bits;
    }
    memcpy(&half, (const uint16_t *)v + i, sizeof half);
    return (uint32_t)half << 16;
}

int zt_cpu_hash_values(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       uint64_t first, int64_t n, uint64_t sum[2], struct zt_error *err) {
    unsigned char message[16];
    (void)x;
    if (t != ZT_F32 && t != ZT_BF16)
        return zt_fail(err, ZT_EUNSUPPORTED, "hash_values: %s; it takes fp32 and bf16",
                       zt_dtype_name(t));
    put_le32(message, tensor);
    for (int64_t i = 0; i < n; i++) {
        put_le64(message + 4, first + (uint64_t)i);
        put_le32(message + 12, bits_at(v, t, i));
        XXH128_hash_t h = XXH3_128bits(message, sizeof message);
        sum[0] += h.low64;
        sum[1] += h.high64 + (sum[0] < h.low64);
    }
    return 0;
}
