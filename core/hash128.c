/* SPDX-License-Identifier: Apache-2.0 */
/* core/hash128.c: see hash128.h. One element at a time, so that any cut of a tensor over ranks and
 * files adds up to the same. */
#include "core/hash128.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL /* a call per element would cost more than the hash */
#include <xxhash.h>

/* Little-endian whatever the host; compilers make one store of each. */
static void put_le32(unsigned char *p, uint32_t v) {
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}
static void put_le64(unsigned char *p, uint64_t v) {
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

void zt_hash_elements(uint32_t word, uint64_t first, const float *v, int64_t n, struct zt_hash128 *sum) {
    unsigned char message[16];
    struct zt_hash128 s = *sum;
    put_le32(message, word);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        put_le64(message + 4, first + (uint64_t)i);
        put_le32(message + 12, bits);
        const XXH128_hash_t h = XXH3_128bits(message, sizeof message);
        zt_hash128_add(&s, (struct zt_hash128){h.low64, h.high64});
    }
    *sum = s;
}

void zt_hash_text(struct zt_hash128 h, char out[33]) {
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo);
}

bool zt_hash_parse(const char *text, struct zt_hash128 *out) {
    static const char digits[] = "0123456789abcdef";
    uint64_t w[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d) return false;
        w[i / 16] = w[i / 16] << 4 | (uint64_t)(d - digits);
    }
    *out = (struct zt_hash128){w[1], w[0]};
    return text[32] == '\0';
}
