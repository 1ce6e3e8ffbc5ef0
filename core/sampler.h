/* SPDX-License-Identifier: Apache-2.0 */
/* core/sampler.h: which sample goes to which data-parallel rank, identical to PyTorch's
 * DistributedSampler, plus evaluation without duplicates and the data cursor. Pure; the permutation
 * is malloc'ed and owned by the struct. One thread per struct. */
#ifndef ZT_CORE_SAMPLER_H
#define ZT_CORE_SAMPLER_H
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"

struct zt_sampler {
    int64_t n;        /* samples in the data set */
    int world;        /* data-parallel ranks */
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t epoch;
    int64_t per_rank; /* samples per rank and epoch */
    int64_t *perm;    /* the epoch's list: the first per_rank * world places are its global sample
                         ids; at least n places, of which the first n are the whole permutation */
};
int zt_sampler_init(struct zt_sampler *s, int64_t n, int world, bool shuffle, bool drop_last,
                    uint64_t seed, struct zt_error *err);
int zt_sampler_set_epoch(struct zt_sampler *s, int64_t epoch, struct zt_error *err);
/* i-th sample of `rank` in this epoch: perm[i * world + rank]. */
int64_t zt_sampler_get(const struct zt_sampler *s, int rank, int64_t i);
void zt_sampler_free(struct zt_sampler *s);

/* Evaluation: rows [0, n) split with no duplicate and no padding; rank gets rank, rank + world, ... */
int64_t zt_eval_count(int64_t n, int world, int rank);

/* Data cursor: (epoch, samples consumed globally in it); survives a change of world size. */
struct zt_cursor { int64_t epoch, consumed; };

#endif
