/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/prec.h: runs of the sharding runtime under a precision recipe, on forked ranks. A
 * case names recipe, ranks, mode and options; prec_run trains it for some steps on one repeated
 * batch and returns what came out of each. For forked ranks (see ranks.h, bench.h). */
#ifndef ZT_TESTS_ENGINE_PREC_H
#define ZT_TESTS_ENGINE_PREC_H
#include <criterion/criterion.h>
#include <math.h>

#include "tests/engine/bench.h"

#define PREC_STEPS_MAX 24

static const char *const prec_recipes[] = {"fp32",     "mixed16",          "mixed16_g32",
                                           "autocast", "mixed16_nomaster", "pure_bf16",
                                           "fp16",     "fsdp_mixed",       "frozen16"};
#define PREC_RECIPES ((int)(sizeof prec_recipes / sizeof *prec_recipes))

struct prec_case {
    const char *recipe;
    bool reduce16; /* gradients travel in the recipe's 16-bit type, else fp32 */
    enum zt_mode mode;
    int world, shard; /* ddp: shard 1 */
    int steps, micros;
    int64_t rows; /* global batch */
    double lr, max_norm;
    enum zt_reshard reshard;
    int reshard_int, wrap_n;
    enum zt_wrap wrap;
    double bucket_mib;
    int64_t persistence;
    const char *trainable; /* pattern, NULL = all */
};
struct prec_step {
    uint64_t hash[2]; /* own elements */
    double loss;      /* this rank's part */
    double norm, clip;
    double squares; /* of own gradients after the reduction, summed here in plain doubles */
    double moment;  /* sum of squares of own m after the update */
    double moved;   /* most that an own value has moved since the start */
};
struct prec_job {
    struct ranks_shared shared;
    struct prec_case c;
    struct prec_step step[PREC_STEPS_MAX + 1][RANKS_MAX]; /* 0: before the first */
};

static inline void prec_tune(struct zt_spec *s, const void *arg) {
    const struct prec_case *c = arg;
    const struct zt_recipe *r = zt_recipe_find(c->recipe);
    snprintf(s->precision.recipe, sizeof s->precision.recipe, "%s", c->recipe);
    s->precision.reduce_dtype = c->reduce16 ? r->compute : ZT_F32;
    s->optimizer.max_norm = c->max_norm;
    s->parallelism.reshard = c->reshard;
    s->parallelism.reshard_int = c->reshard_int;
    s->parallelism.wrap = c->wrap;
    s->parallelism.wrap_n = c->wrap_n;
    s->parallelism.bucket_mib = c->bucket_mib;
    s->parallelism.persistence_threshold = c->persistence;
    if (c->trainable) {
        s->training.trainable.n = 1;
        snprintf(s->training.trainable.item[0], sizeof s->training.trainable.item[0], "%s",
                 c->trainable);
    }
}

static inline struct bench_options prec_options(const struct prec_case *c) {
    return (struct bench_options){.row = bench_mode(c->mode),
                                  .shard = c->shard,
                                  .model = "layers: 3, heads: 2, dim: 28, ffn_dim: 50, "
                                           "vocab_size: 67",
                                  .tune = prec_tune,
                                  .tune_arg = c};
}

/* One element as the type says, widened. */
static inline double prec_at(const void *p, enum zt_dtype t, int64_t i) {
    union {
        uint32_t bits;
        float value;
    } u;
    if (t == ZT_F32) return (double)((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    if (t == ZT_BF16) {
        u.bits = (uint32_t)h << 16;
        return (double)u.value;
    }
    int e = h >> 10 & 31;
    double m = (double)(h & 1023), v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    if (e == 31) v = m > 0 ? NAN : INFINITY;
    return h & 0x8000 ? -v : v;
}

/* The authoritative value of own element i. */
static inline double prec_value(const struct rt_group *g, int64_t i) {
    if (g->master) return (double)g->master[i];
    return prec_at(g->store, g->def->dtype, g->own_from - g->store_from + i);
}

/* Sum over own logical elements of group gradients (which = 0) or m (1), squared. */
static inline double prec_squares(const struct bench *b, int which) {
    const struct zt_runtime *r = b->runtime;
    double sum = 0;
    for (int i = 0; i < r->layout.n_entries; i++) {
        const struct zt_flat_entry *e = &r->layout.entries[i];
        const struct rt_group *g = &r->groups[r->layout.group_of[e->tensor]];
        struct zt_flat_part p = zt_flat_part(e, g->own_from, g->own_from + g->own_count);
        enum zt_dtype t = r->recipe->moment;
        const void *base = which ? g->m : rt_own_gradient(r, g, &t);
        if (!g->def->trainable) continue;
        for (int64_t k = 0; k < p.count; k++) {
            double x = prec_at(base, t, p.at + k);
            sum += x * x;
        }
    }
    return sum;
}

/* Own logical elements, as they are now (malloc'ed). */
static inline double *prec_values(const struct bench *b, int64_t *n) {
    const struct zt_runtime *r = b->runtime;
    double *v = malloc((size_t)b->table.parameters * sizeof *v);
    *n = 0;
    for (int i = 0; v && i < r->layout.n_entries; i++) {
        const struct zt_flat_entry *e = &r->layout.entries[i];
        const struct rt_group *g = &r->groups[r->layout.group_of[e->tensor]];
        struct zt_flat_part p = zt_flat_part(e, g->own_from, g->own_from + g->own_count);
        for (int64_t k = 0; k < p.count; k++) v[(*n)++] = prec_value(g, p.at + k);
    }
    return v;
}

static inline double prec_moved(const struct bench *b, const double *was) {
    int64_t n;
    double most = 0, *v = prec_values(b, &n);
    for (int64_t i = 0; v && i < n; i++) most = fmax(most, fabs(v[i] - was[i]));
    free(v);
    return most;
}

static inline int prec_rank(int rank, int world, void *arg) {
    struct prec_job *j = arg;
    struct bench b;
    struct bench_options o = prec_options(&j->c);
    struct zt_hash128 h;
    struct zt_error e = {0};
    int64_t n;
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    double *was = prec_values(&b, &n);
    EXPECT(was, "memory");
    for (int s = 0; s <= j->c.steps; s++) {
        struct prec_step *out = &j->step[s][rank];
        if (s) {
            OK(bench_window(&b, s, 0, j->c.rows, j->c.micros, &e));
            out->squares = prec_squares(&b, 0);
            OK(bench_update(&b, j->c.lr, &e));
            OK(zt_runtime_collect(b.runtime, &e));
            out->moment = prec_squares(&b, 1);
            out->moved = prec_moved(&b, was);
        }
        OK(zt_runtime_parameter_hash(b.runtime, &h, NULL, &e));
        out->hash[0] = h.lo;
        out->hash[1] = h.hi;
        out->loss = b.loss;
        out->norm = b.norm;
        out->clip = b.update.clip_coefficient;
    }
    free(was);
    bench_close(&b);
    return 0;
}

static inline const char *prec_name(const struct prec_case *c) {
    static char text[4][160];
    static int turn;
    char *p = text[turn++ % 4];
    snprintf(p, sizeof text[0], "%s, reduced in %s, %s, %d ranks, shard %d", c->recipe,
             c->reduce16 ? "16 bits" : "fp32", zt_mode_name(c->mode), c->world, c->shard);
    return p;
}

/* Fills what was left out: 4 rows, one micro-step, 2 steps, lr 1e-2. */
static inline struct prec_job *prec_run(struct prec_case c) {
    struct prec_job *j = ranks_map(sizeof *j);
    if (!c.steps) c.steps = 2;
    if (!c.micros) c.micros = 1;
    if (!c.rows) c.rows = c.world == 3 ? 6 : 8;
    if (c.lr == 0) c.lr = 1e-2;
    if (!c.shard) c.shard = c.mode == ZT_DDP ? 1 : c.world;
    j->c = c;
    cr_assert_eq(ranks_run(c.world, 120, prec_rank, j, NULL), 0, "%s", prec_name(&c));
    return j;
}
static inline void prec_free(struct prec_job *j) { munmap(j, sizeof *j); }

/* Hash of the model after step s. */
static inline struct zt_hash128 prec_hash(const struct prec_job *j, int s) {
    struct zt_hash128 sum = {0, 0};
    for (int r = 0; r < j->c.shard; r++)
        zt_hash128_add(&sum, (struct zt_hash128){j->step[s][r].hash[0], j->step[s][r].hash[1]});
    return sum;
}
static inline double prec_loss(const struct prec_job *j, int s) {
    double sum = 0;
    for (int r = 0; r < j->c.world; r++) sum += j->step[s][r].loss;
    return sum;
}

#endif
