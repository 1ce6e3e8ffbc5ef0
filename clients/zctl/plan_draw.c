/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_draw.c: see plan_charts.h. What is drawn is the plan's own figures; plot.h draws them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/plan_charts.h"
#include "clients/zctl/plot.h"
#include "core/units.h"

_Static_assert((int)ZT_PLOT_PARAMETERS == (int)ZT_TAG_PARAMETERS && (int)ZT_PLOT_GRADIENTS == (int)ZT_TAG_GRADIENTS &&
                   (int)ZT_PLOT_OPTIMIZER == (int)ZT_TAG_OPTIMIZER && (int)ZT_PLOT_ACTIVATIONS == (int)ZT_TAG_ACTIVATIONS &&
                   (int)ZT_PLOT_TEMPORARY == (int)ZT_TAG_TEMPORARY &&
                   (int)ZT_PLOT_COMMUNICATION == (int)ZT_TAG_COMMUNICATION && (int)ZT_PLOT_UNUSED == (int)ZT_TAG_COUNT,
               "the chart's categories are the ledger's, and what is left of the segments");

static void stack(int64_t out[ZT_PLOT_CATEGORIES], const int64_t by_tag[ZT_TAG_COUNT], int64_t reserved) {
    int64_t sum = 0;
    for (int i = 0; i < ZT_TAG_COUNT; i++)
        sum += out[i] = by_tag[i];
    out[ZT_PLOT_UNUSED] = reserved > sum ? reserved - sum : 0;
}

/* ---------------------------------------------------------------------------------- bars */

struct bar_text { char label[96], note[96]; };

static void bar(struct zt_plot_bar *out, struct bar_text *text, const struct zt_plan_bar *b) {
    const struct zt_plan *p = b->plan;
    char step[32];
    zt_format_seconds(p->step_seconds, step, sizeof step);
    snprintf(text->label, sizeof text->label, "%s%s", b->label, b->chosen ? " (this file)" : "");
    if (!p->fits)
        snprintf(text->note, sizeof text->note, "does not fit");
    else
        snprintf(text->note, sizeof text->note, "%s, %.0f %% exposed", step,
                 p->step_seconds > 0 ? 100 * p->exposed.exposed_comm_seconds / p->step_seconds : 0.0);
    *out = (struct zt_plot_bar){.label = text->label, .note = text->note, .alarm = !p->fits};
    stack(out->bytes, p->at_peak, p->peak_reserved_bytes);
}

/* ---------------------------------------------------------------------------------- step */

/* A chart is about a thousand dots wide. Of the points that fall on one dot the highest and the last are drawn:
 * a peak is never left out. */
#define DOTS 1000

struct curve {
    double *x;
    int64_t (*bytes)[ZT_PLOT_CATEGORIES];
    int n;
    double per_ns;      /* units of the axis */
    int64_t peak, peak_at_ns;
};

static int64_t sum_of(const struct zt_plan_point *p) {
    int64_t sum = 0;
    for (int i = 0; i < ZT_TAG_COUNT; i++)
        sum += p->by_tag[i];
    return sum;
}

static void keep(struct curve *c, const struct zt_plan_point *p, int64_t at_ns) {
    c->x[c->n] = (double)at_ns * c->per_ns;
    stack(c->bytes[c->n++], p->by_tag, p->reserved);
}

static void thin(struct curve *c, const struct zt_plan *p) {
    keep(c, &p->curve[0], 0);
    for (size_t i = 0, to; i < p->n_curve; i = to) {
        int64_t dot = p->curve[i].at_ns * DOTS / p->step_ns;
        size_t high = i;
        for (to = i; to < p->n_curve && p->curve[to].at_ns * DOTS / p->step_ns == dot; to++)
            if (sum_of(&p->curve[to]) > sum_of(&p->curve[high]))
                high = to;
        keep(c, &p->curve[high], p->curve[high].at_ns);
        if (to - 1 != high)
            keep(c, &p->curve[to - 1], p->curve[to - 1].at_ns);
        if (sum_of(&p->curve[high]) > c->peak) {
            c->peak = sum_of(&p->curve[high]);
            c->peak_at_ns = p->curve[high].at_ns;
        }
    }
    keep(c, &p->curve[p->n_curve - 1], p->step_ns);
}

static int curve(struct curve *c, const struct zt_plan *p, struct zt_error *err) {
    size_t most = 2 * (p->n_curve < DOTS + 1 ? p->n_curve : DOTS + 1) + 2; /* and the two ends */
    if (p->step_ns <= 0 || p->n_curve == 0)
        return zt_fail(err, ZT_EINTERNAL, "chart: the plan was made without its step in detail");
    c->x = calloc(most, sizeof *c->x);
    c->bytes = calloc(most, sizeof *c->bytes);
    if (!c->x || !c->bytes)
        return zt_fail(err, ZT_ENOMEM, "no host memory for a chart");
    thin(c, p);
    return 0;
}

struct marks {
    struct zt_plot_mark at[96];
    char text[96][64];
    int n;
};

/* Where the phases begin, as many as can be told apart; then the peak, a row further down. */
static void mark_phases(struct marks *m, const struct zt_plan *p, const struct curve *c) {
    enum { MOST = 4096 };
    struct zt_plan_phase part[MOST];
    int n = zt_plan_phases(p, part, MOST);
    int64_t told = -p->step_ns, apart = p->step_ns / 40;
    char peak[32];
    n = n < MOST ? n : MOST;
    for (int i = 0; i < n && m->n < 90; i++) {
        bool word = part[i].start_ns - told >= p->step_ns / 9 || part[i].phase == ZT_PHASE_OPTIMIZER;
        if (!word && part[i].start_ns - told < apart)
            continue;
        snprintf(m->text[m->n], sizeof m->text[0], "%s", word ? zt_phase_name(part[i].phase) : "");
        if (word && part[i].micro >= 0 && p->accumulation > 1)
            snprintf(m->text[m->n], sizeof m->text[0], "%s %d", zt_phase_name(part[i].phase), part[i].micro + 1);
        m->at[m->n] = (struct zt_plot_mark){(double)part[i].start_ns * c->per_ns, m->text[m->n], 0};
        m->n++;
        told = word ? part[i].start_ns : told;
    }
    zt_format_bytes((double)c->peak, peak, sizeof peak);
    snprintf(m->text[m->n], sizeof m->text[0], "peak %s allocated", peak);
    m->at[m->n] = (struct zt_plot_mark){(double)c->peak_at_ns * c->per_ns, m->text[m->n], 1};
    m->n++;
}

/* ---------------------------------------------------------------------------------- both */

struct words { char modes[256], step[256], x[64], capacity[128]; };

static void words(struct words *w, const struct zt_plan *p, const struct zt_spec *s, const struct zt_cost_device *d) {
    char capacity[32], step[32];
    const char *model = s->preset[0] ? s->preset : s->name;
    zt_format_bytes((double)p->capacity_bytes, capacity, sizeof capacity);
    zt_format_seconds(p->step_seconds, step, sizeof step);
    snprintf(w->modes, sizeof w->modes, "%s on %d x %s: memory of a rank at its peak, by mode (bytes exact, times estimated)",
             model, p->world, d->name);
    snprintf(w->step, sizeof w->step, "%s, replicate %d x shard %d, rank %d: memory over a usual step of %s%s",
             zt_mode_name(s->parallelism.mode), s->parallelism.replicate, s->parallelism.shard, p->shape[0].rank, step,
             p->fits ? "" : ", if there were room for it");
    snprintf(w->capacity, sizeof w->capacity, "capacity of the allocator: %s", capacity);
}

/* A line far above everything would leave nothing to see of what is below it. */
static int64_t line(int64_t capacity, int64_t most, int times) { return capacity <= times * most ? capacity : 0; }

static double unit_of(int64_t step_ns, const char **name) {
    *name = step_ns >= 10000000000 ? "s" : step_ns >= 2000000 ? "ms" : "us";
    return step_ns >= 10000000000 ? 1e-9 : step_ns >= 2000000 ? 1e-6 : 1e-3;
}

int zt_plan_draw(const struct zt_plan *p, const struct zt_spec *s, const struct zt_cost_device *d,
                 const struct zt_plan_bar *modes, int n, const char *path, struct zt_error *err) {
    struct zt_plot_bar bars[ZT_PLAN_BARS];
    struct bar_text text[ZT_PLAN_BARS];
    struct curve c = {0};
    struct marks m = {.n = 0};
    struct words w;
    const char *unit;
    int64_t most = 0;
    int n_bars = 0;
    c.per_ns = unit_of(p->step_ns, &unit);
    for (int i = 0; i < n && n_bars < ZT_PLAN_BARS; i++) {
        if (!modes[i].plan)
            continue;
        bar(&bars[n_bars], &text[n_bars], &modes[i]);
        most = modes[i].plan->peak_reserved_bytes > most ? modes[i].plan->peak_reserved_bytes : most;
        n_bars++;
    }
    int rc = curve(&c, p, err);
    if (rc == 0) {
        words(&w, p, s, d);
        snprintf(w.x, sizeof w.x, "%s since the step began (estimate)", unit);
        mark_phases(&m, p, &c);
        int64_t above = line(p->capacity_bytes, most, 5), over_step = line(p->capacity_bytes, p->peak_reserved_bytes, 2);
        const struct zt_plot_area area = {c.n, c.x, (const int64_t (*)[ZT_PLOT_CATEGORIES])c.bytes, m.n, m.at};
        const struct zt_plot_panel panels[] = {
            {.head = {w.modes, above ? NULL : w.capacity, above, w.capacity, true}, .bars = bars, .n_bars = n_bars},
            {.head = {w.step, w.x, over_step, w.capacity, true}, .area = &area}};
        rc = n_bars ? zt_plot_panels(path, panels, 2, err) : zt_plot_panels(path, panels + 1, 1, err);
    }
    free(c.x);
    free(c.bytes);
    return rc;
}
