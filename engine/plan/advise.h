/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise.h: which changes make a run fit, each planned (plan.h), none guessed; which row of
 * the table for choosing a mode holds for this model and machine; and where there is room, what could be
 * given up for speed.
 *
 * A change is one or more keys of the run file. What it does to the result orders changes first: those
 * that keep every bit, those that keep the global batch, more workers, other number formats, another
 * global batch. Among equals the estimated step time orders, in whole percent; among equals of that, the
 * table for choosing a mode. The number of plans is bounded and never the time, so that the same question
 * has the same answer on every machine.
 *
 * While searching, two steps of two micro-steps are planned; what is told of is planned again with all
 * its steps, of four micro-steps, and the first of it as the run will be. What does not fit then is not
 * told of.
 *
 * The caller owns an advice until zt_advice_free. Pure but for malloc; any thread. */
#ifndef ZT_ENGINE_ADVISE_H
#define ZT_ENGINE_ADVISE_H
#include "engine/plan/plan.h"

#define ZT_ADVISE_PLANS 200      /* at most, unless asked otherwise */
#define ZT_ADVISE_FIRST_PLANS 48 /* of zt_advise_first */
#define ZT_ADVISE_SHARE 0.92     /* of the limit is the budget, unless given */
#define ZT_ADVISE_EDITS 12
#define ZT_ADVISE_CHANGES 8

/* What a change does to the result, the cheapest first. */
enum zt_advise_effect {
    ZT_EFFECT_NONE = 0,    /* the same bits */
    ZT_EFFECT_ROUNDING,    /* the same global batch, summed in another order */
    ZT_EFFECT_WORKERS,     /* more workers; the same global batch */
    ZT_EFFECT_FORMAT,      /* other number formats */
    ZT_EFFECT_BATCH,       /* another global batch */
    ZT_EFFECT_DATA,        /* other samples: a note, never a change of its own accord */
    ZT_EFFECT_COUNT
};
const char *zt_effect_name(enum zt_advise_effect e); /* "same_bits", "same_batch", ... */
const char *zt_effect_text(enum zt_advise_effect e); /* the same for people */

struct zt_advise_edit {
    char key[64], from[40], to[40];
    bool implied;          /* follows from the others where the file leaves it open: need not be set */
};

struct zt_advise_figures {
    bool fits;             /* in the budget */
    int64_t peak_allocated_bytes, peak_reserved_bytes, at_peak[ZT_TAG_COUNT];
    enum zt_window_name peak_window;
    enum zt_phase phase_of_peak;
    struct zt_state_bytes persistent;
    double step_seconds, exposed_seconds; /* estimated */
    int64_t sent_bytes, accumulation, workers;
};

struct zt_advise_change {
    int n_edits, changes;   /* keys; changes that they are made of */
    struct zt_advise_edit edit[ZT_ADVISE_EDITS];
    enum zt_advise_effect effect;
    struct zt_advise_figures figures;
    enum zt_tag shrank;     /* the category that fell most at the peak ... */
    int64_t shrank_bytes;   /* ... by so much */
    char why[320];          /* what it does to memory, and what that costs */
};

struct zt_advise_config {
    struct zt_plan_config plan; /* details and watch are not looked at; capacity_bytes: the limit */
    int64_t budget_bytes;       /* 0: ZT_ADVISE_SHARE of the limit; more than the limit: the limit */
    int max_plans;              /* 0: ZT_ADVISE_PLANS */
};

struct zt_advice {
    int64_t limit_bytes, budget_bytes;
    struct zt_advise_figures base;
    bool fits_limit;        /* base.fits is about the budget */
    struct zt_oom oom;      /* where it runs out: at the limit, else at the budget; when not base.fits */
    int64_t oom_step;
    /* it does not fit: changes that fit, the cheapest first (one key or several) ... */
    int n_changes;
    struct zt_advise_change change[ZT_ADVISE_CHANGES];
    int n_partial;          /* ... and, when none of one key does, those that save most */
    struct zt_advise_change partial[4];
    /* nothing fits: the smallest peak that was reached, and by what (0 edits: none is smaller) */
    struct zt_advise_change smallest;
    /* it fits: what would make it faster and still fit, the fastest first, and the cheapest change that
     * lowers the peak by a tenth, for when it runs out all the same (0 edits: there is none) */
    int n_speed;
    struct zt_advise_change speed[ZT_ADVISE_CHANGES];
    struct zt_advise_change reserve;
    bool shorter_fits;      /* a note: with sequences cut to ... it would fit */
    struct zt_advise_change shorter;
    int n_later;            /* what would change memory too and is not in this version */
    struct { char key[64]; const char *why; } later[4];
    int n_plans;
    bool cut;               /* the bound on plans ended the search */
};

int zt_advise_make(const struct zt_advise_config *c, struct zt_advice **out, struct zt_error *err);
void zt_advice_free(struct zt_advice *a);

/* "--set KEY=VALUE --set ..." of what has to be set. */
const char *zt_advise_sets(const struct zt_advise_change *c, char *buf, size_t n);
/* For a submit, by at most ZT_ADVISE_FIRST_PLANS plans: the first change that fits c's capacity, or, for a run
 * that fits, what to change if it runs out all the same, as a sentence that begins with the sets.
 * ZT_ENOTFOUND: no such change. */
int zt_advise_first(const struct zt_plan_config *c, char *text, size_t n, struct zt_error *err);

/* The table for choosing a mode (docs/planner.md), row by row: does its premise hold here? */
enum { ZT_SELECT_DDP = 0, ZT_SELECT_ZERO1, ZT_SELECT_ZERO2, ZT_SELECT_CUT, ZT_SELECT_HYBRID, ZT_SELECT_ACTIVATIONS,
       ZT_SELECT_LAYER, ZT_SELECT_OFFLOAD, ZT_SELECT_ROWS };
struct zt_selection_row {
    const char *premise, *take;
    bool planned;            /* figures are of a plan of this row's run */
    bool holds;
    struct zt_advise_figures figures;
    char numbers[240];       /* why it holds or not */
};
struct zt_selection {
    int64_t limit_bytes, budget_bytes;
    int first;               /* the first row whose premise holds; -1: none */
    struct zt_selection_row row[ZT_SELECT_ROWS];
    int n_plans;
};
int zt_advise_select(const struct zt_advise_config *c, struct zt_selection *out, struct zt_error *err);

#endif
