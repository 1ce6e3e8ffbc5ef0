/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/equiv_product.h: every option of the sharding runtime as a factor with levels; a row
 * picks a level of each and becomes a case (equiv.h). eq_pairwise makes rows in which every two
 * levels of any two factors that can go together do so at least once; the whole product is walked
 * by the soak. Levels that a mode does not know are set back to level 0. */
#ifndef ZT_TESTS_ENGINE_EQUIV_PRODUCT_H
#define ZT_TESTS_ENGINE_EQUIV_PRODUCT_H
#include "tests/engine/equiv.h"

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

/* ---- pairwise ---- */

#define EQ_ROWS_MAX 100
struct eq_pairs {
    bool wanted[EQ_FACTORS][5][EQ_FACTORS][5], covered[EQ_FACTORS][5][EQ_FACTORS][5];
};

/* Which pairs exist: some setting of the governing factors leaves both levels alone. */
static inline void eq_pairs_wanted(struct eq_pairs *p) {
    memset(p, 0, sizeof *p);
    for (int i = 0; i < EQ_FACTORS; i++)
        for (int j = 0; j < i; j++)
            for (int a = 0; a < eq_levels[i]; a++)
                for (int b = 0; b < eq_levels[j]; b++)
                    for (int g = 0; g < 5 * 3 * 2; g++) {
                        int row[EQ_FACTORS] = {g % 5, g / 5 % 3, g / 15};
                        row[i] = a;
                        row[j] = b;
                        eq_fix(row);
                        if (row[i] == a && row[j] == b) p->wanted[i][a][j][b] = true;
                    }
}

/* New pairs that a row brings; enters them when `take`. */
static inline int eq_pairs_new(struct eq_pairs *p, const int *row, bool take) {
    int n = 0;
    for (int i = 0; i < EQ_FACTORS; i++)
        for (int j = 0; j < i; j++) {
            bool *c = &p->covered[i][row[i]][j][row[j]];
            n += p->wanted[i][row[i]][j][row[j]] && !*c;
            if (take) *c = true;
        }
    return n;
}

static inline int eq_pairs_missing(const struct eq_pairs *p) {
    int n = 0;
    for (int i = 0; i < EQ_FACTORS; i++)
        for (int j = 0; j < i; j++)
            for (int a = 0; a < 5; a++)
                for (int b = 0; b < 5; b++) n += p->wanted[i][a][j][b] && !p->covered[i][a][j][b];
    return n;
}

static inline void eq_random_row(int *row, uint64_t *draw) {
    for (int i = 0; i < EQ_FACTORS; i++) {
        uint32_t w[4];
        zt_rng_words(11, ZT_RNG_TEST, 0, 0, (*draw)++, w);
        row[i] = (int)(w[0] % (uint32_t)eq_levels[i]);
    }
}

/* Greedy: of many drawn rows the one with most new pairs, until no wanted pair is left. A pair that
 * chance does not bring is put into the drawn rows by hand. */
static inline int eq_pairwise(int rows[EQ_ROWS_MAX][EQ_FACTORS], struct eq_pairs *p) {
    uint64_t draw = 0;
    int n = 0;
    eq_pairs_wanted(p);
    while (n < EQ_ROWS_MAX && eq_pairs_missing(p)) {
        int best = 0, seed[4] = {0};
        for (int i = 0; i < EQ_FACTORS; i++)
            for (int j = 0; j < i; j++)
                for (int a = 0; a < eq_levels[i]; a++)
                    for (int b = 0; b < eq_levels[j]; b++)
                        if (p->wanted[i][a][j][b] && !p->covered[i][a][j][b]) {
                            const int s[4] = {i, a, j, b};
                            memcpy(seed, s, sizeof s);
                        }
        for (int k = 0; k < 400; k++) {
            int row[EQ_FACTORS];
            eq_random_row(row, &draw);
            row[seed[0]] = seed[1];
            row[seed[2]] = seed[3];
            eq_fix(row);
            int gain = eq_pairs_new(p, row, false);
            if (gain > best) {
                best = gain;
                memcpy(rows[n], row, sizeof row);
            }
        }
        if (best) eq_pairs_new(p, rows[n++], true);
    }
    return n;
}

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
