/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/equiv_product.h: every option of the sharding runtime as a factor with levels; a row
 * picks a level of each and becomes a case (equiv.h). CI runs a pairwise cover, the soak walks the
 * whole product. Levels that a mode does not know are set back to level 0. */
#ifndef ZT_TESTS_ENGINE_EQUIV_PRODUCT_H
#define ZT_TESTS_ENGINE_EQUIV_PRODUCT_H
#include "tests/engine/equiv.h"
#include "tests/engine/pairwise.h"

enum eq_factor {
    EQ_MODE = 0,
    EQ_WORLD,
    EQ_MICROS, /* the first three decide which other levels can be */
    EQ_RESHARD,
    EQ_PREFETCH,
    EQ_BUCKET,
    EQ_PERSIST,
    EQ_WRAP,
    EQ_OVERLAP,
    EQ_INFLIGHT,
    EQ_NO_SYNC,
    EQ_CLIP,
    EQ_THREADS,
    EQ_DELAYS, /* late collectives over poisoned memory: a hazard would show */
    EQ_TRANSPORT,
    EQ_FACTORS
};
#define EQ_GOVERNING 3
static const int eq_levels[EQ_FACTORS] = {5, 3, 2, 4, 4, 4, 3, 3, 2, 2, 2, 2, 3, 2, 3};
static const int eq_worlds[] = {2, 3, 4, 8, 1}; /* the cover takes the first three */
static const int eq_micros[] = {3, 4, 2, 3, 6}; /* of EQ_MICROS level 1, for each of them */

static inline void eq_fix(int *row) {
    bool before_use = row[EQ_MODE] == ZT_ZERO3 || row[EQ_MODE] == ZT_FSDP;
    if (!before_use) row[EQ_RESHARD] = row[EQ_PREFETCH] = row[EQ_PERSIST] = 0;
    if (!before_use || !row[EQ_MICROS]) row[EQ_NO_SYNC] = 0;
    if (row[EQ_OVERLAP]) row[EQ_INFLIGHT] = 0; /* level 1: off, then there is nothing in flight */
}

static inline struct eq_case eq_case_of(const int *row, int steps) {
    static const int prefetch[] = {1, 0, 2, 4}, threads[] = {1, 2, 3};
    static const int per_host[] = {0, 1, 2}; /* shared memory, tcp, both */
    static const double bucket[] = {0, 0.004, 0.03, 100};
    static const int64_t persist[] = {0, 20, 600};
    static const enum zt_wrap wrap[] = {ZT_WRAP_BLOCK, ZT_WRAP_N, ZT_WRAP_PART};
    static const enum zt_reshard reshard[] = {ZT_RESHARD_DEFAULT, ZT_RESHARD_TRUE, ZT_RESHARD_FALSE,
                                              ZT_RESHARD_INT};
    int world = eq_worlds[row[EQ_WORLD]];
    struct eq_case c = {.world = world,
                        .mode = (enum zt_mode)row[EQ_MODE],
                        .steps = steps,
                        .rows = 24,
                        .clip = row[EQ_CLIP] == 0,
                        .reshard = reshard[row[EQ_RESHARD]],
                        .prefetch = prefetch[row[EQ_PREFETCH]],
                        .bucket_mib = bucket[row[EQ_BUCKET]],
                        .persistence = persist[row[EQ_PERSIST]],
                        .wrap = wrap[row[EQ_WRAP]],
                        .wrap_n = row[EQ_WRAP] == 1 ? 2 : 0,
                        .no_overlap = row[EQ_OVERLAP] == 1,
                        .inflight = 1 + row[EQ_INFLIGHT],
                        .no_sync = row[EQ_NO_SYNC] == 1,
                        .threads = threads[row[EQ_THREADS]],
                        .per_host = per_host[row[EQ_TRANSPORT]],
                        .poison = row[EQ_DELAYS] == 0};
    for (int i = 0; i < EQ_FACTORS && c.poison; i++) c.delays = c.delays * 7 + (uint64_t)row[i] + 1;
    c.shard = c.mode == ZT_DDP ? 1 : world;
    c.micros = row[EQ_MICROS] ? eq_micros[row[EQ_WORLD]] : 1;
    if (c.reshard == ZT_RESHARD_INT) /* the largest own divisor of S, else S itself */
        for (c.reshard_int = world > 1 ? world / 2 : 1; world % c.reshard_int;) c.reshard_int--;
    return c;
}

static const struct pw_product eq_product = {EQ_FACTORS, eq_levels, EQ_GOVERNING, eq_fix};

/* ---- references, each made once ---- */

static inline struct eq_job *eq_reference_of(const struct eq_case *c) {
    static struct {
        struct eq_case key;
        struct eq_job *job;
    } made[128];
    static int n;
    struct eq_case key;
    memset(&key, 0, sizeof key); /* padding too: keys are compared as bytes */
    key.world = c->world;
    key.shard = c->shard;
    key.mode = eq_class_b(c) && c->micros > 1 ? ZT_ZERO2 : ZT_DDP;
    key.micros = c->micros;
    key.steps = c->steps;
    key.rows = c->rows;
    key.clip = c->clip;
    key.trainable = c->trainable;
    key.model = c->model;
    if (key.mode == ZT_DDP && c->shard == c->world)
        key.shard = 1; /* one level of sums either way */
    for (int i = 0; i < n; i++)
        if (!memcmp(&made[i].key, &key, sizeof key)) return made[i].job;
    struct eq_job *j = eq_reference(&key);
    if (j && n < (int)(sizeof made / sizeof *made)) {
        made[n].key = key;
        made[n++].job = j;
    }
    return j;
}

#endif
