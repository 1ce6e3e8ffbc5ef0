/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise_int.h: between advise.c (the search), advise_moves.c (what may be changed) and
 * advise_select.c (the table for choosing a mode). Private to engine/plan. */
#ifndef ZT_ENGINE_ADVISE_INT_H
#define ZT_ENGINE_ADVISE_INT_H
#include "engine/plan/advise.h"

/* A step of the search: keys that change together. */
struct move {
    int n;
    struct zt_advise_edit edit[6];
    const char *why;
    bool data; /* changes the samples: tried last, told as a note */
};
#define MOVES_MAX 64

/* Of the file as it was given: what it says itself. */
struct given {
    bool degrees, global_batch, reduce_dtype;
};
struct given advise_given(const struct zt_spec *s);

enum direction { LESS_MEMORY = 0, MORE_SPEED };
/* Single changes of a resolved spec in the order of the table; at most MOVES_MAX. ranks_per_host 0:
 * all on one. */
int advise_moves(const struct zt_spec *s, struct given g, int ranks_per_host, enum direction d,
                 struct move *out);
/* `times` as many workers, all of them sharding, at the same global batch where that can be; else false. */
bool advise_more_workers(const struct zt_spec *s, struct given g, int times, struct move *out);
/* Shorter sequences: a `by`-th. */
void advise_shorter(const struct zt_spec *s, int64_t by, struct move *out);
#define ADVISE_RECOMPUTE "activation_checkpoint.mode"
#define ADVISE_TENSOR "parallelism.tensor_parallel_degree"
/* Whether a key's feature is in this version: what the schema says. Moves of one that is not are not
 * among advise_moves. */
bool advise_has(const char *key);
/* Keys that change memory too, in this version or not: i from 0; NULL past the end. */
const char *advise_later(int i, const char **why);

/* The spec with the edits; resolved for the same ranks (or those of an edit of `workers`). *out is to be
 * released with advise_spec_free. */
int advise_apply(const struct zt_spec *s, const struct zt_advise_edit *e, int n, struct zt_spec **out,
                 struct zt_error *err);
void advise_spec_free(struct zt_spec *s);
enum zt_advise_effect advise_effect(const struct zt_spec *before, const struct zt_spec *after);

/* advise_plan.c */
struct search {
    const struct zt_advise_config *c;
    int64_t limit, budget;
    int n_plans, max_plans;
    bool cut;
};
int advise_open(struct search *s, const struct zt_advise_config *c, struct zt_error *err);
/* The whole run at a capacity. ZT_EBUSY: the bound on plans is reached (s->cut). */
int advise_plan_at(struct search *s, const struct zt_spec *spec, int64_t capacity, struct zt_plan **p,
                   struct zt_error *err);
void advise_take(struct zt_advise_figures *f, const struct zt_plan *p);
/* How much of a run is planned, of its repetitions: 2 steps of 2 micro-steps; all steps of a plan, 4
 * micro-steps each; all of it. Times and traffic are of a whole step. */
enum advise_length { ADVISE_SEARCH = 0, ADVISE_STEADY, ADVISE_RUN };
/* At the budget. */
int advise_plan(struct search *s, const struct zt_spec *spec, enum advise_length length,
                struct zt_advise_figures *out, struct zt_error *err);

#endif
