/* SPDX-License-Identifier: Apache-2.0 */
/* core/rng.c: Philox4x32-10 and MT19937. Philox is a pure function of what is drawn, so a draw
 * never depends on rank, thread or micro-step. A generator struct belongs to its caller. */
#include "core/rng.h"

#include <math.h>

#include "core/error.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

void zt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void zt_rng_words(uint64_t seed, enum zt_purpose p, uint32_t step, uint32_t tensor, uint64_t index,
                  uint32_t out[4]) {
    /* Both share one counter word; a larger ordinal would silently alias another purpose. */
    ZT_ASSERT(tensor < (1u << 24) && (uint32_t)p < 256);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), step,
                                 (uint32_t)p << 24 | tensor};
    zt_philox4x32(counter, key, out);
}

double zt_rng_normal(uint64_t seed, enum zt_purpose p, uint32_t step, uint32_t tensor,
                     uint64_t index) {
    uint32_t w[4];
    zt_rng_words(seed, p, step, tensor, index, w);
    /* u1 in (0, 1): the half keeps log finite. u2 in [0, 1). Both exact in double. */
    double u1 = ((double)w[0] + 0.5) * 0x1p-32, u2 = (double)w[1] * 0x1p-32;
    return sqrt(-2.0 * log(u1)) * cos(2.0 * 3.14159265358979323846 * u2);
}

#define MT_N 624
#define MT_M 397

void zt_mt19937_seed(struct zt_mt19937 *g, uint32_t seed) {
    g->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ (g->state[i - 1] >> 30)) + i;
    g->pos = MT_N;
}

static void mt_refill(struct zt_mt19937 *g) {
    uint32_t *s = g->state;
    for (int i = 0; i < MT_N; i++) {
        uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % MT_N] & 0x7fffffffu);
        s[i] = s[(i + MT_M) % MT_N] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
    }
    g->pos = 0;
}

uint32_t zt_mt19937_next(struct zt_mt19937 *g) {
    if (g->pos >= MT_N) mt_refill(g);
    uint32_t y = g->state[g->pos++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

int zt_randperm(int64_t n, uint64_t seed, int64_t *out) {
    /* From this size on PyTorch draws 64-bit words by another path: refused, not imitated. */
    if (n < 0 || n >= (int64_t)(UINT32_MAX / 20)) return ZT_EUNSUPPORTED;
    struct zt_mt19937 g;
    zt_mt19937_seed(&g, (uint32_t)seed); /* PyTorch keeps the low 32 bits of the seed too */
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)zt_mt19937_next(&g) % (n - i);
        int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
    return ZT_OK;
}
