/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/pairwise.h: products of options too big to walk. A factor has levels; a row picks
 * one of each. pw_cover makes rows in which every two levels of any two factors that can go
 * together do so at least once; pw_random_row draws from the whole product. Which levels can be is
 * said by `fix`, which sets the others back to level 0. Always the same rows for the same product.
 */
#ifndef ZT_TESTS_ENGINE_PAIRWISE_H
#define ZT_TESTS_ENGINE_PAIRWISE_H
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

#define PW_FACTORS_MAX 28
#define PW_LEVELS_MAX 10
#define PW_ROWS_MAX 160

struct pw_product {
    int n;                 /* factors */
    const int *levels;     /* of each */
    int governing;         /* the first so many decide which levels of the others can be */
    void (*fix)(int *row); /* level 0 of every factor can always be */
};
struct pw_pairs {
    bool wanted[PW_FACTORS_MAX][PW_LEVELS_MAX][PW_FACTORS_MAX][PW_LEVELS_MAX],
        covered[PW_FACTORS_MAX][PW_LEVELS_MAX][PW_FACTORS_MAX][PW_LEVELS_MAX];
};

/* Slow flavours (sanitizers) run every n-th row, which the others run all of: ZT_TEST_EVERY=n. */
static inline int pw_every(void) {
    const char *v = getenv("ZT_TEST_EVERY");
    int n = v ? atoi(v) : 1;
    return n < 1 ? 1 : n;
}

/* Which pairs exist: some setting of the governing factors leaves both levels alone. */
static inline void pw_wanted(const struct pw_product *f, struct pw_pairs *p) {
    int settings = 1;
    memset(p, 0, sizeof *p);
    for (int k = 0; k < f->governing; k++) settings *= f->levels[k];
    for (int i = 0; i < f->n; i++)
        for (int j = 0; j < i; j++)
            for (int a = 0; a < f->levels[i]; a++)
                for (int b = 0; b < f->levels[j]; b++)
                    for (int g = 0; g < settings && !p->wanted[i][a][j][b]; g++) {
                        int row[PW_FACTORS_MAX] = {0}, rest = g;
                        for (int k = 0; k < f->governing; k++) {
                            row[k] = rest % f->levels[k];
                            rest /= f->levels[k];
                        }
                        row[i] = a;
                        row[j] = b;
                        f->fix(row);
                        p->wanted[i][a][j][b] = row[i] == a && row[j] == b;
                    }
}

/* New pairs that a row brings; enters them when `take`. */
static inline int pw_new(const struct pw_product *f, struct pw_pairs *p, const int *row,
                         bool take) {
    int n = 0;
    for (int i = 0; i < f->n; i++)
        for (int j = 0; j < i; j++) {
            bool *c = &p->covered[i][row[i]][j][row[j]];
            n += p->wanted[i][row[i]][j][row[j]] && !*c;
            if (take) *c = true;
        }
    return n;
}

/* Wanted pairs that no row has yet; `last` (may be NULL) gets one of them: {i, a, j, b}. */
static inline int pw_missing(const struct pw_product *f, const struct pw_pairs *p, int *last) {
    int n = 0;
    for (int i = 0; i < f->n; i++)
        for (int j = 0; j < i; j++)
            for (int a = 0; a < f->levels[i]; a++)
                for (int b = 0; b < f->levels[j]; b++) {
                    const int pair[4] = {i, a, j, b};
                    if (!p->wanted[i][a][j][b] || p->covered[i][a][j][b]) continue;
                    if (last) memcpy(last, pair, sizeof pair);
                    n++;
                }
    return n;
}

static inline void pw_random_row(const struct pw_product *f, int *row, uint64_t *draw) {
    for (int i = 0; i < f->n; i++) {
        uint32_t w[4];
        zt_rng_words(11, ZT_RNG_TEST, 0, 0, (*draw)++, w);
        row[i] = (int)(w[0] % (uint32_t)f->levels[i]);
    }
}

/* Greedy: of many drawn rows the one with most new pairs, until no wanted pair is left. A pair that
 * chance does not bring is put into the drawn rows by hand. Returns how many rows. */
static inline int pw_cover(const struct pw_product *f, int rows[PW_ROWS_MAX][PW_FACTORS_MAX],
                           struct pw_pairs *p) {
    uint64_t draw = 0;
    int n = 0, seed[4];
    pw_wanted(f, p);
    while (n < PW_ROWS_MAX && pw_missing(f, p, seed)) {
        int best = 0;
        for (int k = 0; k < 400; k++) {
            int row[PW_FACTORS_MAX] = {0};
            pw_random_row(f, row, &draw);
            row[seed[0]] = seed[1];
            row[seed[2]] = seed[3];
            f->fix(row);
            int gain = pw_new(f, p, row, false);
            if (gain > best) {
                best = gain;
                memcpy(rows[n], row, sizeof row);
            }
        }
        if (best) pw_new(f, p, rows[n++], true);
    }
    return n;
}

#endif
