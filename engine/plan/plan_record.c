/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan_record.c: one run of the trainer on the simulated device, and what is kept of
 * it: the windows of D6 (as the coordinator makes them from step reports), the last report, and
 * with details the last step's collectives, intervals and memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan/plan_int.h"

#define LOG_ENTRIES 65536

/* ---- windows ---- */

/* The composition is that of the highest allocated peak; the reserved peak is a maximum of its own.
 */
static void offer(struct zt_plan_shape *s, enum zt_window_name w, const struct zt_window_peak *p) {
    struct zt_window_peak *o = &s->window[w];
    int64_t reserved = p->peak_reserved_bytes;
    if (s->occurs[w] && o->peak_reserved_bytes > reserved) reserved = o->peak_reserved_bytes;
    if (!s->occurs[w] || p->peak_allocated_bytes > o->peak_allocated_bytes) *o = *p;
    o->peak_reserved_bytes = reserved;
    s->occurs[w] = true;
}

static int on_step(void *arg, const struct zt_step_report *r, struct zt_error *err) {
    struct plan_run *run = arg;
    int64_t warmup = run->spec->metrics.warmup_steps;
    struct zt_window_peak p = {
        r->peak_allocated_bytes,
        r->peak_reserved_bytes,
        r->phase_of_peak,
        {0},
        {r->persistent_parameters, r->persistent_gradients, r->persistent_optimizer}};
    memcpy(p.at_peak, r->at_peak, sizeof p.at_peak);
    if (r->init.peak_allocated_bytes >= 0) offer(&run->shape, ZT_WINDOW_INIT, &r->init);
    if (r->step == 1) offer(&run->shape, ZT_WINDOW_FIRST_STEP, &p);
    if (r->step > warmup) offer(&run->shape, ZT_WINDOW_STEADY, &p);
    if (r->eval.peak_allocated_bytes >= 0) offer(&run->shape, ZT_WINDOW_EVAL, &r->eval);
    if (r->load.peak_allocated_bytes >= 0) offer(&run->shape, ZT_WINDOW_LOAD, &r->load);
    if (r->save.peak_allocated_bytes >= 0) offer(&run->shape, ZT_WINDOW_SAVE, &r->save);
    run->last = *r;
    run->curve.n = 0; /* what follows is of the next step */
    if (run->overrun)
        return zt_fail(
            err, ZT_EINVAL,
            "plan: the simulated steps would take more than a hundred years on %s; look at "
            "the sizes under model and at training.local_batch_size, or at the figures of "
            "the device",
            run->c->device->name);
    return run->rc ? zt_fail(err, run->rc, "plan: no host memory") : 0;
}

/* ---- the last step in detail ---- */

static bool is_last(const struct plan_run *run, int64_t step) {
    return run->details && step == run->sim.total_steps;
}

static void keep_point(struct plan_run *run) {
    struct plan_curve *k = &run->curve;
    if (k->n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 1024;
        struct zt_plan_point *more = realloc(k->at, cap * sizeof *more);
        if (!more) {
            run->rc = ZT_ENOMEM;
            return;
        }
        k->at = more;
        k->cap = cap;
    }
    k->at[k->n++] = k->now;
}

/* Every change of memory since the step before was told; kept from there on for the last step, and
 * in front of them what there was when it began. */
static void on_alloc(void *arg, const struct zt_alloc_event *e) {
    struct plan_run *run = arg;
    struct plan_curve *k = &run->curve;
    const struct zt_alloc_watch *w = &run->c->watch;
    if (w->fn && run->into) w->fn(w->arg, e);
    int64_t sign = e->action == ZT_ALLOC_BLOCK || e->action == ZT_ALLOC_SEGMENT ? 1 : -1;
    bool block = e->action == ZT_ALLOC_BLOCK || e->action == ZT_FREE_BLOCK;
    bool kept = run->details && run->last.step + 1 == run->sim.total_steps;
    if (kept && k->n == 0) keep_point(run);
    *(block ? &k->now.by_tag[e->tag] : &k->now.reserved) += sign * e->size;
    k->now.at_ns = e->at_ns;
    k->now.phase = e->phase;
    strncpy(k->now.what, block ? e->name : "", sizeof k->now.what - 1);
    if (kept && block) keep_point(run);
}

static void *copy_of(const void *from, size_t n, size_t size) {
    void *p = malloc(n * size + 1);
    if (p && n) memcpy(p, from, n * size);
    return p;
}

static void take_spans(struct zt_plan *p, const struct zt_intervals *iv) {
    p->spans = copy_of(iv->items, iv->n, sizeof *iv->items);
    for (size_t i = 0; p->spans && i < iv->n; i++) {
        if (iv->items[i].kind == ZT_IV_COMM) continue; /* among the collectives */
        p->spans[p->n_spans] = iv->items[i];
        p->spans[p->n_spans].start_ns -= iv->step_start_ns;
        p->spans[p->n_spans++].end_ns -= iv->step_start_ns;
    }
}

/* The groups with their ranks and names behind them, in one piece. */
static int take_groups(struct zt_plan *p, const struct zt_comm_group *g, int n) {
    enum { NAME = 16 };
    size_t ranks = 0, count = (size_t)n;
    for (size_t i = 0; i < count; i++) ranks += (size_t)g[i].size;
    p->groups = malloc(count * (sizeof *p->groups + NAME) + ranks * sizeof(int) + 1);
    if (!p->groups) return ZT_ENOMEM;
    int *at = (int *)(void *)(p->groups + count);
    char *name = (char *)(at + ranks);
    for (size_t i = 0; i < count; i++) {
        snprintf(name, NAME, "%s", g[i].name);
        memcpy(at, g[i].ranks, (size_t)g[i].size * sizeof *at);
        p->groups[i] = (struct zt_comm_group){name, at, g[i].size};
        at += g[i].size;
        name += NAME;
    }
    p->n_groups = n;
    return 0;
}

static void add_traffic(struct plan_run *run, const struct zt_coll_record *r, int64_t exposed_ns) {
    struct zt_plan_traffic *t = run->traffic;
    int i = 0;
    while (i < run->n_traffic &&
           (strcmp(t[i].group, r->group) || t[i].kind != r->kind || t[i].control != r->control))
        i++;
    ZT_ASSERT(i < ZT_PLAN_TRAFFIC_MAX); /* a few groups, each used in a way or two */
    if (i == run->n_traffic) {
        t[i] = (struct zt_plan_traffic){.kind = r->kind, .control = r->control};
        memcpy(t[i].group, r->group, sizeof t[i].group);
        run->n_traffic++;
    }
    t[i].count++;
    t[i].bytes += r->bytes;
    t[i].sent_bytes += r->sent_bytes;
    t[i].ns += r->end_ns - r->start_ns;
    t[i].exposed_ns += exposed_ns;
}

/* Of a first run that did not fit, when its last step was whole. */
static void drop_details(struct zt_plan *p) {
    free(p->collectives);
    free(p->exposed_ns);
    free(p->stall_ns);
    free(p->spans);
    free(p->curve);
    free(p->groups);
    p->collectives = NULL;
    p->exposed_ns = p->stall_ns = NULL;
    p->spans = NULL;
    p->curve = NULL;
    p->groups = NULL;
    p->n_spans = 0;
}

static void take_curve(struct zt_plan *p, struct plan_run *run, int64_t start_ns) {
    if (run->curve.n == 0) keep_point(run); /* a step in which nothing came or went */
    size_t from = 0; /* before the first step: what initialisation did, but for what it left */
    while (from + 1 < run->curve.n && run->curve.at[from + 1].at_ns < start_ns) from++;
    size_t n = run->curve.n - from;
    p->curve = copy_of(run->curve.at + from, n, sizeof *run->curve.at);
    if (!p->curve) return;
    p->n_curve = n;
    for (size_t i = 0; i < p->n_curve; i++) p->curve[i].at_ns -= start_ns;
    if (p->n_curve == 0) return;
    p->curve[0].at_ns = 0;
    p->curve[0].phase = ZT_PHASE_FORWARD;
    memset(p->curve[0].what, 0, sizeof p->curve[0].what);
}

static void on_collectives(void *arg, const struct zt_step_trace *t) {
    struct plan_run *run = arg;
    struct zt_plan *p = run->into;
    size_t n = (size_t)t->n;
    if (!is_last(run, t->step)) return;
    for (size_t i = 0; i < n; i++) add_traffic(run, &t->records[i], t->exposed_ns[i]);
    if (!p) return;
    drop_details(p);
    p->step_ns = t->end_ns - t->start_ns;
    p->collectives = copy_of(t->records, n, sizeof *t->records);
    p->exposed_ns = copy_of(t->exposed_ns, n, sizeof *t->exposed_ns);
    p->stall_ns = copy_of(t->stall_ns, n, sizeof *t->stall_ns);
    take_spans(p, t->intervals);
    take_curve(p, run, t->start_ns);
    if (!p->collectives || !p->exposed_ns || !p->stall_ns || !p->spans || !p->curve ||
        take_groups(p, t->groups, t->n_groups)) {
        run->rc = ZT_ENOMEM;
        return;
    }
    p->n_collectives = t->n;
    p->dropped = t->dropped;
    for (size_t i = 0; i < n; i++) {
        p->collectives[i].queued_ns -= t->start_ns;
        p->collectives[i].start_ns -= t->start_ns;
        p->collectives[i].end_ns -= t->start_ns;
    }
}

/* ---- the run ---- */

int plan_run(struct plan_run *run, struct zt_error *err) {
    struct zt_train_hooks hooks = {.arg = run, .step = on_step};
    struct zt_train_config c = {.spec = run->spec,
                                .rank = run->rank,
                                .world = zt_mesh_world(zt_spec_mesh(run->spec)),
                                .generation = 1,
                                .device = "sim",
                                .capacity_bytes = run->capacity,
                                .kernels = &zt_kernels_sim,
                                .sim = &run->sim};
    memset(&run->shape, 0, sizeof run->shape);
    memset(&run->last, 0, sizeof run->last);
    run->rc = 0;
    run->n_traffic = 0;
    run->overrun = false;
    run->sim.overrun = &run->overrun;
    if (run->details || (run->into && run->c->watch.fn))
        c.watch = (struct zt_alloc_watch){on_alloc, run};
    if (run->details) {
        hooks.collectives = on_collectives;
        run->sim.log_bytes = zt_comm_log_bytes(LOG_ENTRIES);
        run->sim.log = malloc(run->sim.log_bytes);
        if (!run->sim.log) return zt_fail(err, ZT_ENOMEM, "plan: no host memory");
    }
    int rc = zt_train(&c, &hooks, &run->result, err);
    free(run->sim.log);
    run->sim.log = NULL;
    free(run->curve.at);
    run->curve = (struct plan_curve){0};
    return rc;
}
