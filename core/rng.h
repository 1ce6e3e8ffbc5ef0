/* SPDX-License-Identifier: Apache-2.0 */
/* core/rng.h: Philox4x32-10 (Salmon et al., SC'11), keyed so that a draw depends on what is drawn,
 * never on rank, thread or micro-step: key = seed, counter = (index lo, index hi, step,
 * purpose << 24 | tensor). Pure; any thread. Also MT19937, only for PyTorch's randperm. */
#ifndef ZT_CORE_RNG_H
#define ZT_CORE_RNG_H
#include <stddef.h>
#include <stdint.h>

enum zt_purpose { ZT_RNG_INIT = 1, ZT_RNG_DROPOUT = 2, ZT_RNG_ROUNDING = 3, ZT_RNG_TEST = 4,
                  ZT_RNG_SAMPLE = 5 };

void zt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* The four words of (seed, purpose, step, tensor, index). */
void zt_rng_words(uint64_t seed, enum zt_purpose p, uint32_t step, uint32_t tensor, uint64_t index,
                  uint32_t out[4]);
/* Standard normal of logical element `index`, by Box-Muller in double from words 0 and 1. */
double zt_rng_normal(uint64_t seed, enum zt_purpose p, uint32_t step, uint32_t tensor,
                     uint64_t index);

struct zt_mt19937 { uint32_t state[624]; int pos; };
void zt_mt19937_seed(struct zt_mt19937 *g, uint32_t seed);
uint32_t zt_mt19937_next(struct zt_mt19937 *g);
/* torch.randperm(n) on CPU after manual_seed(seed); out has n entries. n < 2^32/20 (~214 M). */
int zt_randperm(int64_t n, uint64_t seed, int64_t *out);

#endif
