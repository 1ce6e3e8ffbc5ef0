/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise.c: the search: single changes, then changes of what saved most, then more of
 * them, until one fits. Ownership and thread rule: advise.h. */
#include "engine/plan/advise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/plan/advise_int.h"

#define PARENTS 4    /* single changes that pairs are made of */
#define DEPTH 5      /* changes in a row, at most */
#define KEPT_BACK 12 /* plans for what is told of */
#define WORKERS_TIMES 64

const char *zt_effect_name(enum zt_advise_effect e) {
    static const char *const names[ZT_EFFECT_COUNT] = {
        "same_bits", "same_batch", "more_workers", "number_formats", "other_batch", "other_data"};
    return (unsigned)e < ZT_EFFECT_COUNT ? names[e] : "?";
}

const char *zt_effect_text(enum zt_advise_effect e) {
    static const char *const texts[ZT_EFFECT_COUNT] = {"the same bits",
                                                       "the same global batch, rounded differently",
                                                       "more workers, the same global batch",
                                                       "other number formats",
                                                       "another global batch",
                                                       "other samples"};
    return (unsigned)e < ZT_EFFECT_COUNT ? texts[e] : "?";
}

/* ---- candidates ---- */

struct candidate {
    struct zt_spec *spec;
    struct zt_advise_change ch;
    int order, level;
    enum advise_length length; /* of what the figures are from */
    bool parent;               /* has been one */
};
struct pool {
    struct search *s;
    const struct zt_spec *base;
    const struct zt_advise_figures *now;
    struct given given;
    struct candidate *at;
    int n, cap;
};

static void pool_free(struct pool *p) {
    for (int i = 0; i < p->n; i++) advise_spec_free(p->at[i].spec);
    free(p->at);
}

static bool known(const struct pool *p, const struct zt_spec *spec) {
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->at[i].spec->normalised_hash, spec->normalised_hash) == 0 &&
            p->at[i].spec->workers == spec->workers)
            return true;
    return false;
}

static void merge(struct zt_advise_change *ch, const struct move *m) {
    for (int k = 0; k < m->n; k++) {
        int i = 0;
        while (i < ch->n_edits && strcmp(ch->edit[i].key, m->edit[k].key) != 0) i++;
        if (i == ZT_ADVISE_EDITS) continue;
        if (i == ch->n_edits) {
            ch->edit[ch->n_edits++] = m->edit[k];
            continue;
        }
        snprintf(ch->edit[i].to, sizeof ch->edit[i].to, "%s", m->edit[k].to);
        ch->edit[i].implied = m->edit[k].implied;
    }
    size_t used = strlen(ch->why);
    snprintf(ch->why + used, sizeof ch->why - used, "%s%s", used ? "; " : "", m->why);
}

static void compare(struct zt_advise_change *ch, const struct zt_advise_figures *now) {
    ch->shrank_bytes = 0;
    for (int t = 0; t < ZT_TAG_COUNT; t++) {
        int64_t less = now->at_peak[t] - ch->figures.at_peak[t];
        if (less <= ch->shrank_bytes) continue;
        ch->shrank = (enum zt_tag)t;
        ch->shrank_bytes = less;
    }
}

/* Plans what `parent` (NULL: the run as it is) becomes by m. 0, also when the rules refuse it. */
static int offer(struct pool *p, const struct candidate *parent, const struct move *m, int order,
                 struct zt_error *err) {
    struct candidate c = {.order = order, .level = parent ? parent->level + 1 : 1};
    struct zt_error why;
    if (parent) c.ch = parent->ch;
    if (advise_apply(parent ? parent->spec : p->base, m->edit, m->n, &c.spec, &why)) return 0;
    int rc = known(p, c.spec) ? ZT_ENOTFOUND
                              : advise_plan(p->s, c.spec, ADVISE_SEARCH, &c.ch.figures, &why);
    if (rc) { /* known, over the bound, or refused by the trainer */
        advise_spec_free(c.spec);
        return rc == ZT_ENOMEM ? zt_fail(err, rc, "%s", why.msg) : 0;
    }
    merge(&c.ch, m);
    c.ch.effect = advise_effect(p->base, c.spec);
    c.ch.changes = c.level;
    compare(&c.ch, p->now);
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 64;
        struct candidate *more = realloc(p->at, (size_t)cap * sizeof *more);
        if (!more) {
            advise_spec_free(c.spec);
            return zt_fail(err, ZT_ENOMEM, "advise: no host memory");
        }
        p->at = more;
        p->cap = cap;
    }
    p->at[p->n++] = c;
    return 0;
}

static int expand(struct pool *p, int parent, enum direction d, struct zt_error *err) {
    struct move *moves = calloc(MOVES_MAX, sizeof *moves);
    if (!moves) return zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    int per_host = p->s->c->plan.ranks_per_host ? p->s->c->plan.ranks_per_host
                                                : p->s->c->plan.device->ranks_per_host;
    int n = advise_moves(parent < 0 ? p->base : p->at[parent].spec, p->given, per_host, d, moves),
        rc = 0;
    for (int i = 0; i < n && !rc && !p->s->cut; i++) {
        struct candidate from =
            parent < 0 ? (struct candidate){0} : p->at[parent]; /* offer moves them */
        rc = offer(p, parent < 0 ? NULL : &from, &moves[i], i, err);
    }
    free(moves);
    return rc;
}

/* ---- order ---- */

struct key {
    int effect, level, order;
    long percent;
};

static struct key key_of(const struct candidate *c, double base_seconds) {
    double share = base_seconds > 0 ? c->ch.figures.step_seconds / base_seconds : 1;
    return (struct key){(int)c->ch.effect, c->level, c->order, lround(100 * fmin(share, 1e6))};
}

static bool before(const struct candidate *a, const struct candidate *b, double base_seconds) {
    struct key x = key_of(a, base_seconds), y = key_of(b, base_seconds);
    if (x.effect != y.effect) return x.effect < y.effect;
    if (x.percent != y.percent) return x.percent < y.percent;
    if (x.level != y.level) return x.level < y.level;
    return x.order < y.order;
}

static bool faster(const struct candidate *a, const struct candidate *b, double unused) {
    (void)unused;
    if (a->ch.figures.step_seconds != b->ch.figures.step_seconds)
        return a->ch.figures.step_seconds < b->ch.figures.step_seconds;
    return a->order < b->order;
}

static bool smaller(const struct zt_advise_figures *a, const struct zt_advise_figures *b) {
    if (a->peak_reserved_bytes != b->peak_reserved_bytes)
        return a->peak_reserved_bytes < b->peak_reserved_bytes;
    return a->peak_allocated_bytes < b->peak_allocated_bytes;
}

typedef bool (*choice)(const struct pool *p, const struct candidate *c);
typedef bool (*rank)(const struct candidate *a, const struct candidate *b, double base_seconds);

static int best_of(const struct pool *p, choice yes, rank comes_before, const bool *taken) {
    int best = -1;
    for (int i = 0; i < p->n; i++)
        if (!taken[i] && yes(p, &p->at[i]) &&
            (best < 0 || comes_before(&p->at[i], &p->at[best], p->now->step_seconds)))
            best = i;
    return best;
}

/* 0 (also when it is chosen no more) or ZT_EBUSY, ZT_ENOMEM. */
static int plan_again(struct pool *p, struct candidate *c, enum advise_length length,
                      struct zt_error *err) {
    bool same =
        length == ADVISE_RUN && c->length == ADVISE_STEADY && zt_spec_accumulation(c->spec) <= 4;
    if (same || c->length >= length) return 0;
    int rc = advise_plan(p->s, c->spec, length, &c->ch.figures, err);
    compare(&c->ch, p->now);
    c->length = length;
    return rc;
}

/* The first `most` of those that are chosen, in order, planned again with all steps, and the first
 * of them as the run will be; those that are then chosen no more are left out. */
static int tell(struct pool *p, choice yes, rank comes_before, struct zt_advise_change *out,
                int most, int *n, struct zt_error *err) {
    bool *taken = calloc((size_t)p->n + 1, sizeof *taken);
    struct candidate *told = calloc((size_t)most, sizeof *told);
    int rc = taken && told ? 0 : zt_fail(err, ZT_ENOMEM, "advise: no host memory"), i;
    *n = 0;
    while (!rc && *n < most && (i = best_of(p, yes, comes_before, taken)) >= 0) {
        struct candidate *c = &p->at[i];
        taken[i] = true;
        rc = plan_again(p, c, ADVISE_STEADY, err);
        if (rc || !yes(p, c)) continue;
        int at = (*n)++;
        for (; at > 0 && comes_before(c, &told[at - 1], p->now->step_seconds); at--)
            told[at] = told[at - 1];
        told[at] = *c;
    }
    bool confirmed = false;
    while ((!rc || rc == ZT_EBUSY) && *n > 0 && !confirmed) {
        rc = plan_again(p, &told[0], ADVISE_RUN, err);
        confirmed = rc || yes(p, &told[0]);
        if (!confirmed) memmove(told, told + 1, (size_t)-- * n * sizeof *told);
    }
    for (int k = 0; told && k < *n; k++) out[k] = told[k].ch;
    free(taken);
    free(told);
    return rc == ZT_EBUSY ? 0 : rc; /* what was told of so far stands */
}

static bool fits(const struct pool *p, const struct candidate *c) {
    (void)p;
    return c->ch.figures.fits && c->ch.effect < ZT_EFFECT_DATA;
}

static bool fits_shorter(const struct pool *p, const struct candidate *c) {
    (void)p;
    return c->ch.figures.fits && c->ch.effect == ZT_EFFECT_DATA;
}

/* On as many workers as there are. */
static bool any_smaller(const struct pool *p, const struct candidate *c) {
    return c->ch.effect < ZT_EFFECT_DATA && c->spec->workers == p->base->workers &&
           smaller(&c->ch.figures, p->now);
}

static bool partial(const struct pool *p, const struct candidate *c) {
    return c->level == 1 && !c->ch.figures.fits && any_smaller(p, c);
}

static bool saves_more(const struct candidate *a, const struct candidate *b, double unused) {
    (void)unused;
    if (smaller(&a->ch.figures, &b->ch.figures)) return true;
    return !smaller(&b->ch.figures, &a->ch.figures) && a->order < b->order;
}

static bool speeds_up(const struct pool *p, const struct candidate *c) {
    return c->ch.figures.fits && c->ch.figures.step_seconds < 0.995 * p->now->step_seconds;
}

static bool reserves(const struct pool *p, const struct candidate *c) {
    return c->ch.effect <= ZT_EFFECT_ROUNDING &&
           (double)c->ch.figures.peak_allocated_bytes < 0.9 * (double)p->now->peak_allocated_bytes;
}

/* ---- when it does not fit ---- */

static bool any(const struct pool *p, choice yes) {
    for (int i = 0; i < p->n; i++)
        if (yes(p, &p->at[i])) return true;
    return false;
}

static bool fits_as_it_is(const struct pool *p, const struct candidate *c) {
    return fits(p, c) && c->ch.effect <= ZT_EFFECT_ROUNDING;
}

/* The fewest workers that hold it: a multiple of what there are, such that the global batch stays;
 * where none of those does, one that makes it larger. */
static int more_workers(struct pool *p, struct zt_error *err) {
    int rc = 0;
    bool found = false;
    for (int pass = 0; pass < 2; pass++)
        for (int times = 2; times <= WORKERS_TIMES && !found && !rc && !p->s->cut;
             times += pass ? times : 1) {
            struct move m;
            int n = p->n;
            if (p->base->workers > ZT_PLAN_RANKS_MAX / times) break;
            bool keeps = advise_more_workers(p->base, p->given, times, &m);
            if (keeps == (pass == 0)) rc = offer(p, NULL, &m, MOVES_MAX + times, err);
            found = p->n > n && p->at[n].ch.figures.fits;
        }
    return rc;
}

static int shorter(struct pool *p, struct zt_error *err) {
    int rc = 0;
    for (int64_t by = 2; by <= 64 && p->base->training.seq_len % by == 0 && !rc && !p->s->cut;
         by *= 2) {
        struct move m;
        int n = p->n;
        advise_shorter(p->base, by, &m);
        rc = offer(p, NULL, &m, 2 * MOVES_MAX, err);
        if (p->n > n && p->at[n].ch.figures.fits) break;
    }
    return rc;
}

static bool may_be_parent(const struct pool *p, const struct candidate *c) {
    return !c->parent && any_smaller(p, c) && c->level == 1;
}

static bool kept_parent(const struct pool *p, const struct candidate *c) {
    return may_be_parent(p, c) && c->ch.effect <= ZT_EFFECT_ROUNDING;
}

static int pairs(struct pool *p, struct zt_error *err) {
    int rc = 0, parents[PARENTS], n = 0;
    bool *taken = calloc((size_t)p->n + 1, sizeof *taken);
    if (!taken) return zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    while (n < PARENTS) { /* the last may be of any kind */
        int i = best_of(p, n < PARENTS - 1 ? kept_parent : may_be_parent, saves_more, taken);
        if (i < 0) i = best_of(p, may_be_parent, saves_more, taken);
        if (i < 0) break;
        taken[i] = true;
        p->at[i].parent = true;
        parents[n++] = i;
    }
    free(taken);
    for (int i = 0; i < n && !rc && !p->s->cut; i++) rc = expand(p, parents[i], LESS_MEMORY, err);
    return rc;
}

/* From the smallest on, one change after the other. */
static int descend(struct pool *p, struct zt_error *err) {
    int rc = 0;
    for (int depth = 0; depth < DEPTH && !rc && !p->s->cut && !any(p, fits); depth++) {
        bool *none = calloc((size_t)p->n + 1, sizeof *none);
        if (!none) return zt_fail(err, ZT_ENOMEM, "advise: no host memory");
        int best = best_of(p, any_smaller, saves_more, none);
        free(none);
        if (best < 0 || p->at[best].parent || p->at[best].level >= DEPTH) break;
        p->at[best].parent = true;
        rc = expand(p, best, LESS_MEMORY, err);
    }
    return rc;
}

static int make_fit(struct pool *p, struct zt_advice *a, struct zt_error *err) {
    int n = 0, rc = expand(p, -1, LESS_MEMORY, err);
    if (!rc) rc = more_workers(p, err);
    if (!rc && !any(p, fits_as_it_is)) rc = pairs(p, err);
    if (!rc && !any(p, fits)) rc = descend(p, err);
    if (!rc) rc = shorter(p, err);
    p->s->max_plans += KEPT_BACK;
    if (!rc) rc = tell(p, fits, before, a->change, ZT_ADVISE_CHANGES, &a->n_changes, err);
    if (!rc && a->n_changes == 0) rc = tell(p, any_smaller, saves_more, &a->smallest, 1, &n, err);
    bool alone = a->n_changes > 0 && a->change[0].changes == 1;
    if (!rc && !alone) rc = tell(p, partial, saves_more, a->partial, 3, &a->n_partial, err);
    if (!rc) rc = tell(p, fits_shorter, before, &a->shorter, 1, &n, err);
    a->shorter_fits = a->shorter.n_edits > 0;
    return rc;
}

/* ---- when it fits ---- */

static int make_use(struct pool *p, bool speed, struct zt_advice *a, struct zt_error *err) {
    int n = 0, rc = speed ? expand(p, -1, MORE_SPEED, err) : 0;
    p->s->max_plans += KEPT_BACK / 2;
    if (!rc && speed)
        rc = tell(p, speeds_up, faster, a->speed, ZT_ADVISE_CHANGES / 2, &a->n_speed, err);
    if (!rc) rc = expand(p, -1, LESS_MEMORY, err);
    p->s->max_plans += KEPT_BACK - KEPT_BACK / 2;
    return rc ? rc : tell(p, reserves, before, &a->reserve, 1, &n, err);
}

static void later(struct zt_advice *a) {
    const char *key, *why;
    for (int i = 0; (key = advise_later(i, &why)) && a->n_later < 4; i++) {
        if (advise_has(key)) continue;
        snprintf(a->later[a->n_later].key, sizeof a->later[0].key, "%s", key);
        a->later[a->n_later++].why = why;
    }
}

static int run(const struct zt_advise_config *c, bool speed, struct zt_advice *a,
               struct zt_error *err) {
    struct search s;
    struct pool pool = {.s = &s, .base = c->plan.spec, .now = &a->base};
    struct zt_plan *p = NULL;
    int rc = advise_open(&s, c, err);
    if (rc) return rc;
    s.max_plans = s.max_plans > KEPT_BACK ? s.max_plans - KEPT_BACK : 1;
    pool.given = advise_given(c->plan.spec);
    a->limit_bytes = s.limit;
    a->budget_bytes = s.budget;
    rc = advise_plan_at(&s, c->plan.spec, s.budget, &p, err);
    if (rc) return rc;
    advise_take(&a->base, p);
    a->fits_limit = p->fits;
    a->oom = p->oom;
    a->oom_step = p->oom_step;
    zt_plan_free(p);
    if (!a->base.fits && s.limit > s.budget) {
        rc = advise_plan_at(&s, c->plan.spec, s.limit, &p, err);
        if (rc) return rc;
        a->fits_limit = p->fits;
        if (!p->fits) {
            a->oom = p->oom;
            a->oom_step = p->oom_step;
        }
        zt_plan_free(p);
    }
    rc = a->base.fits ? make_use(&pool, speed, a, err) : make_fit(&pool, a, err);
    later(a);
    a->n_plans = s.n_plans;
    a->cut = s.cut;
    pool_free(&pool);
    return rc;
}

int zt_advise_make(const struct zt_advise_config *c, struct zt_advice **out, struct zt_error *err) {
    struct zt_advice *a = calloc(1, sizeof *a);
    *out = NULL;
    int rc = a ? run(c, true, a, err) : zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    if (rc)
        zt_advice_free(a);
    else
        *out = a;
    return rc;
}

void zt_advice_free(struct zt_advice *a) { free(a); }

/* ---- for people ---- */

const char *zt_advise_sets(const struct zt_advise_change *c, char *buf, size_t n) {
    size_t used = 0;
    if (n) buf[0] = '\0';
    for (int i = 0; i < c->n_edits && used < n; i++)
        if (!c->edit[i].implied)
            used += (size_t)snprintf(buf + used, n - used, "%s--set %s=%s", used ? " " : "",
                                     c->edit[i].key, c->edit[i].to);
    return buf;
}

int zt_advise_first(const struct zt_plan_config *plan, char *text, size_t n, struct zt_error *err) {
    struct zt_advise_config c = {.plan = *plan, .max_plans = ZT_ADVISE_FIRST_PLANS};
    struct zt_advice *a = calloc(1, sizeof *a);
    char sets[1024], was[32], is[32], less[32];
    int rc = a ? run(&c, false, a, err) : zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    if (rc) goto out;
    const struct zt_advise_change *first = a->base.fits ? &a->reserve : &a->change[0];
    if (first->n_edits == 0) {
        rc = zt_fail(err, ZT_ENOTFOUND, "advise: of %d plans none %s", a->n_plans,
                     a->base.fits ? "needs a tenth less" : "fits");
        goto out;
    }
    double step =
        a->base.step_seconds > 0 ? first->figures.step_seconds / a->base.step_seconds - 1 : 0;
    snprintf(text, n,
             "%s (%s): peak reserved %s instead of %s, %s %s less; step time %+.0f %% (estimate)",
             zt_advise_sets(first, sets, sizeof sets), zt_effect_text(first->effect),
             zt_format_bytes((double)first->figures.peak_reserved_bytes, is, sizeof is),
             zt_format_bytes((double)a->base.peak_reserved_bytes, was, sizeof was),
             zt_tag_name(first->shrank),
             zt_format_bytes((double)first->shrank_bytes, less, sizeof less), 100 * step);
out:
    zt_advice_free(a);
    return rc;
}
