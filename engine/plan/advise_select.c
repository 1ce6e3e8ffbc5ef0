/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise_select.c: the table for choosing a mode, each premise computed by planning the
 * run of its row. Ownership and thread rule: advise.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/plan/advise_int.h"

static const struct {
    const char *premise, *take;
} table[ZT_SELECT_ROWS] = {
    [ZT_SELECT_DDP] = {"state and activations fit with room", "ddp"},
    [ZT_SELECT_ZERO1] = {"only the optimizer state is too big", "zero1"},
    [ZT_SELECT_ZERO2] = {"gradients are too big too", "zero2"},
    [ZT_SELECT_CUT] = {"parameters are too big too", "fsdp or zero3"},
    [ZT_SELECT_HYBRID] = {"links between hosts are slow, and the state fits cut within one host",
                          "fsdp with replicas"},
    [ZT_SELECT_ACTIVATIONS] = {"activations are most of the peak",
                               "a smaller local_batch_size, 16-bit activations"},
    [ZT_SELECT_LAYER] = {"one unit is too big at batch 1, though its share of the state fits",
                         "tensor parallelism, wrap: part"},
    [ZT_SELECT_OFFLOAD] = {"the state is too big even when all ranks share it",
                           "more workers; offload (not in this version)"},
};

/* What features that came later make of a row, where the schema has them. */
static const char *take_of(int row) {
    if (row == ZT_SELECT_ACTIVATIONS && advise_has(ADVISE_RECOMPUTE))
        return "activation checkpointing, a smaller local_batch_size, 16-bit activations";
    if (row == ZT_SELECT_LAYER && advise_has(ADVISE_TENSOR))
        return "tensor parallelism, wrap: part";
    return table[row].take;
}

struct picks {
    struct search *s;
    struct zt_selection *out;
    const struct zt_spec *base;
    int dp, per_host;
};

static void set(struct zt_advise_edit *e, int *n, const char *key, const char *to) {
    snprintf(e[*n].key, sizeof e[*n].key, "%s", key);
    snprintf(e[(*n)++].to, sizeof e[0].to, "%s", to);
}

static void set_number(struct zt_advise_edit *e, int *n, const char *key, int64_t to) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)to);
    set(e, n, key, text);
}

enum as { AS_IT_IS = 0, CHECKPOINTED, ALONE, ALONE_ON_TWO };

/* The base in a mode, as it is; with blocks recomputed; one sequence at a time and nothing gathered
 * ahead; so, and each layer cut over two ranks. */
static int plan_mode(struct picks *p, enum zt_mode mode, int replicate, enum as as,
                     struct zt_advise_figures *f, char *why, size_t n, struct zt_error *err) {
    const int dp = as == ALONE_ON_TWO ? p->dp / 2 : p->dp;
    struct zt_advise_edit e[ZT_ADVISE_EDITS] = {0};
    struct zt_spec *spec = NULL;
    struct zt_error bad = {0};
    int k = 0;
    set(e, &k, "parallelism.mode", zt_mode_name(mode));
    set_number(e, &k, "parallelism.data_parallel_replicate_degree",
               mode == ZT_DDP ? dp : replicate);
    set_number(e, &k, "parallelism.data_parallel_shard_degree",
               mode == ZT_DDP ? 1 : dp / replicate);
    if (mode == ZT_ZERO2) set(e, &k, "parallelism.no_sync", "false");
    if (as == CHECKPOINTED) set(e, &k, ADVISE_RECOMPUTE, "full");
    if (as == ALONE_ON_TWO) set_number(e, &k, ADVISE_TENSOR, 2 * p->base->parallelism.tensor);
    if (as >= ALONE) {
        set_number(e, &k, "training.local_batch_size", 1);
        set(e, &k, "parallelism.prefetch", "0");
        set(e, &k, "parallelism.reshard_after_forward", "true");
    }
    int rc = advise_apply(p->base, e, k, &spec, &bad);
    if (!rc) rc = advise_plan(p->s, spec, ADVISE_SEARCH, f, &bad);
    advise_spec_free(spec);
    if (rc == ZT_ENOMEM) return zt_fail(err, rc, "%s", bad.msg);
    if (rc) snprintf(why, n, "not possible: %.200s", bad.msg);
    return rc ? ZT_EINVAL : 0;
}

static const char *bytes(int64_t b, char *buf, size_t n) {
    return zt_format_bytes((double)b, buf, n);
}
#define BYTES(b) bytes(b, (char[32]){0}, 32)

static int64_t state_of(const struct zt_advise_figures *f) {
    return f->persistent.parameters + f->persistent.gradients + f->persistent.optimizer;
}

static void say_state(const struct picks *p, struct zt_selection_row *r) {
    const struct zt_advise_figures *f = &r->figures;
    snprintf(r->numbers, sizeof r->numbers,
             "parameters %s + gradients %s + optimizer %s = %s; peak reserved %s of %s",
             BYTES(f->persistent.parameters), BYTES(f->persistent.gradients),
             BYTES(f->persistent.optimizer), BYTES(state_of(f)), BYTES(f->peak_reserved_bytes),
             BYTES(p->s->budget));
}

/* The first four rows: each is for what the one before does not hold. */
static int whole_to_cut(struct picks *p, struct zt_error *err) {
    static const enum zt_mode modes[] = {ZT_DDP, ZT_ZERO1, ZT_ZERO2, ZT_FSDP};
    bool found = false;
    for (int i = 0; i < 4; i++) {
        struct zt_selection_row *r = &p->out->row[i];
        if (i > 0 && p->dp == 1) {
            snprintf(r->numbers, sizeof r->numbers, "one rank: there is nobody to share with");
            continue;
        }
        int rc =
            plan_mode(p, modes[i], 1, AS_IT_IS, &r->figures, r->numbers, sizeof r->numbers, err);
        if (rc == ZT_ENOMEM) return rc;
        r->planned = rc == 0;
        if (!r->planned) continue;
        say_state(p, r);
        r->holds = r->figures.fits && !found;
        found = found || r->holds;
    }
    struct zt_selection_row *cut = &p->out->row[ZT_SELECT_CUT];
    struct zt_advise_figures f;
    char why[8];
    if (cut->planned && !cut->figures.fits &&
        !plan_mode(p, ZT_ZERO3, 1, AS_IT_IS, &f, why, sizeof why, err) && f.fits) {
        cut->figures = f; /* without the root kept */
        say_state(p, cut);
        cut->holds = !found;
    }
    return 0;
}

static int hybrid(struct picks *p, struct zt_error *err) {
    struct zt_selection_row *r = &p->out->row[ZT_SELECT_HYBRID], *cut = &p->out->row[ZT_SELECT_CUT];
    const struct zt_cost_device *d = p->s->c->plan.device;
    if (p->per_host <= 0 || p->dp <= p->per_host || p->dp % p->per_host != 0) {
        snprintf(r->numbers, sizeof r->numbers, "all ranks are on one host, or hosts are not full");
        return 0;
    }
    int rc = plan_mode(p, ZT_FSDP, p->dp / p->per_host, AS_IT_IS, &r->figures, r->numbers,
                       sizeof r->numbers, err);
    if (rc) return rc == ZT_ENOMEM ? rc : 0;
    r->planned = true;
    bool slow = d->across.bytes_per_second < d->within.bytes_per_second;
    bool pays = !cut->planned || r->figures.step_seconds < cut->figures.step_seconds;
    snprintf(r->numbers, sizeof r->numbers,
             "%.3g GB/s between hosts, %.3g GB/s within; peak reserved %s of %s; step %.3g s, cut "
             "over all ranks %.3g s (estimates)",
             1e-9 * d->across.bytes_per_second, 1e-9 * d->within.bytes_per_second,
             BYTES(r->figures.peak_reserved_bytes), BYTES(p->s->budget), r->figures.step_seconds,
             cut->figures.step_seconds);
    r->holds = slow && pays && r->figures.fits &&
               (cut->holds || !cut->planned || !cut->figures.fits) &&
               !p->out->row[ZT_SELECT_DDP].holds && !p->out->row[ZT_SELECT_ZERO1].holds &&
               !p->out->row[ZT_SELECT_ZERO2].holds;
    if (r->holds && cut->holds) { /* the finer row of the two */
        size_t used = strlen(cut->numbers);
        cut->holds = false;
        snprintf(cut->numbers + used, sizeof cut->numbers - used, "; within a host is faster");
    }
    return 0;
}

/* What a row's remedy would make of the peak. */
static int remedy(struct picks *p, struct zt_selection_row *r, enum zt_mode mode, enum as as,
                  const char *what, struct zt_error *err) {
    struct zt_advise_figures f;
    char why[8];
    size_t used = strlen(r->numbers);
    int rc = plan_mode(p, mode, 1, as, &f, why, sizeof why, err);
    if (rc) return rc == ZT_ENOMEM ? rc : 0;
    snprintf(r->numbers + used, sizeof r->numbers - used, "; with %s peak reserved %s", what,
             BYTES(f.peak_reserved_bytes));
    return 0;
}

static int activations(struct picks *p, struct zt_error *err) {
    struct zt_selection_row *r = &p->out->row[ZT_SELECT_ACTIVATIONS];
    const struct zt_selection_row *of = &p->out->row[p->dp > 1 ? ZT_SELECT_CUT : ZT_SELECT_DDP];
    if (!of->planned) {
        snprintf(r->numbers, sizeof r->numbers, "no plan in the mode that cuts most");
        return 0;
    }
    const int64_t *at = of->figures.at_peak;
    int64_t a = at[ZT_TAG_ACTIVATIONS] + at[ZT_TAG_TEMPORARY],
            all = of->figures.peak_allocated_bytes;
    r->holds = 2 * a > all;
    snprintf(r->numbers, sizeof r->numbers,
             "in %s activations and temporary buffers are %s of %s at the peak (%.0f %%)",
             p->dp > 1 ? "fsdp" : "ddp", BYTES(a), BYTES(all),
             all > 0 ? 100.0 * (double)a / (double)all : 0.0);
    if (!r->holds || !advise_has(ADVISE_RECOMPUTE)) return 0;
    return remedy(p, r, p->dp > 1 ? ZT_FSDP : ZT_DDP, CHECKPOINTED, "full checkpointing", err);
}

static int layer_and_state(struct picks *p, struct zt_error *err) {
    struct zt_selection_row *l = &p->out->row[ZT_SELECT_LAYER],
                            *o = &p->out->row[ZT_SELECT_OFFLOAD];
    int rc = plan_mode(p, ZT_ZERO3, 1, ALONE, &l->figures, l->numbers, sizeof l->numbers, err);
    if (rc) {
        snprintf(o->numbers, sizeof o->numbers, "%s", l->numbers);
        return rc == ZT_ENOMEM ? rc : 0;
    }
    l->planned = true;
    int64_t state = state_of(&l->figures), beside = l->figures.peak_allocated_bytes - state;
    l->holds = !l->figures.fits && state <= p->s->budget;
    o->holds = !l->figures.fits && state > p->s->budget;
    snprintf(
        l->numbers, sizeof l->numbers,
        "zero3 at batch 1, nothing gathered ahead: %s beside %s of state; peak reserved %s of %s",
        BYTES(beside), BYTES(state), BYTES(l->figures.peak_reserved_bytes), BYTES(p->s->budget));
    snprintf(o->numbers, sizeof o->numbers, "a rank's share of the state in zero3 is %s of %s",
             BYTES(state), BYTES(p->s->budget));
    if (!l->holds || !advise_has(ADVISE_TENSOR) || p->dp % 2) return 0;
    return remedy(p, l, ZT_ZERO3, ALONE_ON_TWO, "each layer over two ranks", err);
}

int zt_advise_select(const struct zt_advise_config *c, struct zt_selection *out,
                     struct zt_error *err) {
    struct search s;
    struct picks p = {.s = &s, .out = out, .base = c->plan.spec};
    int rc = advise_open(&s, c, err);
    memset(out, 0, sizeof *out);
    out->first = -1;
    if (rc) return rc;
    for (int i = 0; i < ZT_SELECT_ROWS; i++) {
        out->row[i].premise = table[i].premise;
        out->row[i].take = take_of(i);
    }
    out->limit_bytes = s.limit;
    out->budget_bytes = s.budget;
    p.dp = zt_mesh_dp(zt_spec_mesh(p.base));
    p.per_host = c->plan.ranks_per_host ? c->plan.ranks_per_host : c->plan.device->ranks_per_host;
    p.per_host /= p.per_host > p.base->parallelism.tensor ? p.base->parallelism.tensor : 1;
    rc = whole_to_cut(&p, err);
    if (!rc) rc = hybrid(&p, err);
    if (rc) return rc;
    rc = activations(&p, err);
    if (!rc) rc = layer_and_state(&p, err);
    for (int i = ZT_SELECT_ROWS - 1; i >= 0; i--)
        if (out->row[i].holds) out->first = i;
    out->n_plans = s.n_plans;
    return rc;
}
