/* SPDX-License-Identifier: Apache-2.0 */
/* core/sampler.c: the epoch's list of global sample ids and each rank's stride of it. The list is
 * malloc'ed once per struct and refilled in place by set_epoch; one thread per struct. */
#include "core/sampler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/units.h"

static int64_t samples_per_rank(int64_t n, int64_t world, bool drop_last) {
    if (!drop_last) return zt_ceil_div(n, world);
    if (n % world == 0) return n / world;
    return n < world ? 0 : zt_ceil_div(n - world, world);
}

/* All n ids come first even when the list is cut: a cursor taken under another world size may go on
 * past the cut. Places after them repeat the list from the front. */
static int fill_epoch(struct zt_sampler *s, struct zt_error *err) {
    int64_t list = s->per_rank * s->world > s->n ? s->per_rank * s->world : s->n;
    if (!s->shuffle) {
        for (int64_t i = 0; i < list; i++) s->perm[i] = i % s->n;
        return ZT_OK;
    }
    if (zt_randperm(s->n, s->seed + (uint64_t)s->epoch, s->perm) != ZT_OK)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "%" PRId64 " samples are too many to shuffle (the limit is 214,748,363); "
                       "set dataset.shuffle: false, or use longer sequences",
                       s->n);
    for (int64_t i = s->n; i < list; i++) s->perm[i] = s->perm[i % s->n];
    return ZT_OK;
}

int zt_sampler_init(struct zt_sampler *s, int64_t n, int world, bool shuffle, bool drop_last,
                    uint64_t seed, struct zt_error *err) {
    memset(s, 0, sizeof *s);
    if (world < 1)
        return zt_fail(err, ZT_EINVAL, "a sampler needs at least one rank, not %d", world);
    if (n < 1) return zt_fail(err, ZT_EDATA, "the data set has no samples");
    int64_t per = samples_per_rank(n, world, drop_last);
    if (per < 1)
        return zt_fail(err, ZT_EDATA,
                       "%" PRId64
                       " samples for %d data-parallel ranks leave some without any under "
                       "dataset.drop_last: true; use more data, fewer workers, or drop_last: false",
                       n, world);
    s->n = n;
    s->world = world;
    s->shuffle = shuffle;
    s->drop_last = drop_last;
    s->seed = seed;
    s->per_rank = per;
    /* The whole permutation is kept even when the list is shorter: randperm needs the room. */
    int64_t places = per * world > n ? per * world : n;
    size_t bytes;
    if (!zt_mul_size((size_t)places, sizeof *s->perm, &bytes) || !(s->perm = malloc(bytes)))
        return zt_fail(err, ZT_ENOMEM, "no memory for the order of %" PRId64 " samples", n);
    int rc = fill_epoch(s, err);
    if (rc != ZT_OK) zt_sampler_free(s);
    return rc;
}

int zt_sampler_set_epoch(struct zt_sampler *s, int64_t epoch, struct zt_error *err) {
    if (epoch < 0) return zt_fail(err, ZT_EINVAL, "epoch %" PRId64 " is negative", epoch);
    if (epoch == s->epoch) return ZT_OK;
    s->epoch = epoch;
    return s->shuffle ? fill_epoch(s, err) : ZT_OK;
}

int64_t zt_sampler_get(const struct zt_sampler *s, int rank, int64_t i) {
    ZT_ASSERT(rank >= 0 && rank < s->world && i >= 0 && i < s->per_rank);
    return s->perm[i * s->world + rank];
}

void zt_sampler_free(struct zt_sampler *s) {
    free(s->perm);
    s->perm = NULL;
}

int64_t zt_eval_count(int64_t n, int world, int rank) {
    ZT_ASSERT(n >= 0 && world >= 1 && rank >= 0 && rank < world);
    return n > rank ? (n - rank - 1) / world + 1 : 0;
}
