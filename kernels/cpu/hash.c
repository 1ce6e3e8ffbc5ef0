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

int zt_cpu_hash_values(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       struct zt_span span, int64_t n, uint64_t sum[2], struct zt_error *err) {
    enum { CHUNK = 256 };
    unsigned char message[16];
    float wide[CHUNK];
    int rc = zt_cpu_need_float("hash_values", t, err);
    if (rc) return rc;
    put_le32(message, tensor);
    for (int64_t i = 0, run; i < n; i += run) {
        uint64_t index;
        run = zt_span_run(&span, i, n - i < CHUNK ? n - i : CHUNK, &index);
        x->vec->of[t].widen(wide, zt_cpu_at(v, i, t), (size_t)run); /* exact: 16 bits fit in fp32 */
        for (int64_t k = 0; k < run; k++) {
            uint32_t bits;
            memcpy(&bits, &wide[k], sizeof bits);
            put_le64(message + 4, index + (uint64_t)k);
            put_le32(message + 12, bits);
            XXH128_hash_t h = XXH3_128bits(message, sizeof message);
            sum[0] += h.low64;
            sum[1] += h.high64 + (sum[0] < h.low64);
        }
    }
    return 0;
}
