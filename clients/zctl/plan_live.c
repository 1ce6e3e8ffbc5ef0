/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_live.c: the coordinator's side of a plan: would the run start now, on which workers, does it
 * fit them, and what is different from the last run of its name. The rules of placement are the coordinator's
 * own (coordinator/machine.h). */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/json.h"
#include "clients/zctl/planning.h"
#include "clients/zctl/predict.h"
#include "coordinator/machine.h"
#include "core/units.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

/* ---------------------------------------------------------------------------------- workers */

static bool one_of(const char *word, const char *const *words) {
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words != NULL;
}

static void add_worker(struct zt_plan_live *l, const Zt__WorkerInfo *w, const struct zt_spec *spec) {
    static const char *const lost[] = {"LOST", "CONNECTING", NULL}, *const held[] = {"QUARANTINED", "RECLAIMING", NULL};
    if (strcmp(w->state, "GONE") == 0 || strcmp(w->device, spec->requirements.device) != 0)
        return;
    l->n++;
    bool has_run = w->run_id && w->run_id[0];
    bool aside = w->flags && (strstr(w->flags, "CORDONED") || strstr(w->flags, "DRAINING"));
    if ((double)w->capacity_bytes < spec->requirements.memory_gib * (double)ZT_GIB)
        l->small++;
    else if (!has_run && one_of(w->state, lost))
        l->lost++;
    else if (!has_run && (aside || one_of(w->state, held)))
        l->held++;
    else {
        struct zt_plan_worker *k = &l->worker[l->n_worker++];
        snprintf(k->id, sizeof k->id, "%.191s", w->worker_id);
        snprintf(k->host, sizeof k->host, "%.127s", w->host);
        k->capacity = zt_predict_capacity(spec, (int64_t)w->capacity_bytes);
        k->idle = !has_run;
        *(k->idle ? &l->idle : &l->busy) += 1;
    }
}

static int ask_workers(struct zt_plan_live *l, struct zt_source *s, const struct zt_spec *spec, struct zt_error *err) {
    Zt__ListWorkers list = ZT__LIST_WORKERS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    req.body_case = ZT__ENVELOPE__BODY_LIST_WORKERS;
    req.list_workers = &list;
    int rc = zt_source_ask(s, &req, &a, err);
    if (rc)
        return rc;
    const Zt__WorkerList *w = a.env->body_case == ZT__ENVELOPE__BODY_WORKER_LIST ? a.env->worker_list : NULL;
    l->worker = w ? calloc(w->n_workers + 1, sizeof *l->worker) : NULL;
    for (size_t i = 0; l->worker && i < w->n_workers; i++)
        add_worker(l, w->workers[i], spec);
    zt_answer_free(&a);
    return l->worker ? 0 : zt_fail(err, ZT_EPROTO, "the coordinator answered list_workers with something else");
}

/* Runs that wait and have their turn first: of a higher priority, or of the same and earlier. */
static int ask_queue(struct zt_plan_live *l, struct zt_source *s, const struct zt_spec *spec, struct zt_error *err) {
    Zt__ListRuns list = ZT__LIST_RUNS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    list.has_active_only = list.active_only = true;
    req.body_case = ZT__ENVELOPE__BODY_LIST_RUNS;
    req.list_runs = &list;
    int rc = zt_source_ask(s, &req, &a, err);
    if (rc)
        return rc;
    const Zt__RunList *r = a.env->body_case == ZT__ENVELOPE__BODY_RUN_LIST ? a.env->run_list : NULL;
    for (size_t i = 0; r && i < r->n_runs; i++) {
        const Zt__RunSummary *x = r->runs[i];
        if ((strcmp(x->state, "QUEUED") != 0 && strcmp(x->state, "RESTARTING") != 0) ||
            (x->has_priority && (int)x->priority < spec->priority))
            continue;
        if (l->queued++ == 0)
            snprintf(l->first_queued, sizeof l->first_queued, "%.63s", x->name);
    }
    zt_answer_free(&a);
    return 0;
}

void zt_plan_live_ask(struct zt_planning *p, struct zt_source *s, const struct zt_spec *spec) {
    struct zt_plan_live *l = &p->live;
    struct zt_error err = {0};
    int rc = ask_workers(l, s, spec, &err);
    rc = rc ? rc : ask_queue(l, s, spec, &err);
    l->answered = rc == 0;
    l->unreachable = rc == ZT_EUNREACHABLE;
    if (rc)
        snprintf(l->why, sizeof l->why, "%.500s", err.msg);
}

int zt_plan_live_place(struct zt_plan_live *l, struct zt_mesh mesh, struct zt_error *err) {
    int world = zt_mesh_world(mesh), n = 0;
    if (l->queued > 0 || l->idle < world)
        return 0;
    struct zt_slot *slots = calloc((size_t)l->idle, sizeof *slots);
    int *scratch = calloc(4 * (size_t)l->idle, sizeof *scratch);
    l->order = calloc((size_t)world, sizeof *l->order);
    int rc = slots && scratch && l->order ? 0 : zt_fail(err, ZT_ENOMEM, "no memory to place %d ranks", world);
    for (int i = 0; rc == 0 && i < l->n_worker; i++)
        if (l->worker[i].idle)
            slots[n++] = (struct zt_slot){l->worker[i].host, l->worker[i].id, i};
    if (rc == 0 && zt_schedule_place(slots, n, mesh, l->order, scratch) == 0) {
        for (int i = 0; i < world; i++)
            l->order[i] = slots[l->order[i]].index;
        l->n_order = world;
    }
    free(slots);
    free(scratch);
    return rc;
}

/* ---------------------------------------------------------------------------------- the last run */

static bool same_pace(const struct zt_spec *a, const struct zt_spec *b) {
    return a->optimizer.lr == b->optimizer.lr && a->lr_scheduler.warmup_steps == b->lr_scheduler.warmup_steps &&
           a->lr_scheduler.decay_type == b->lr_scheduler.decay_type &&
           a->lr_scheduler.decay_ratio == b->lr_scheduler.decay_ratio &&
           a->lr_scheduler.min_lr_factor == b->lr_scheduler.min_lr_factor;
}

static void differ(char *text, size_t n, const char *what, int64_t now, int64_t then) {
    char a[32], b[32];
    size_t used = strlen(text);
    if (now != then)
        snprintf(text + used, n - used, "%s%s %s instead of %s", used ? ", " : "", what, zt_format_count(now, a, sizeof a),
                 zt_format_count(then, b, sizeof b));
}

static void compare_with(struct zt_planning *p, const struct zt_spec *then, const char *run) {
    const struct zt_spec *now = &p->spec;
    char text[512] = "";
    int64_t now_step = now->training.global_batch_size * now->training.seq_len;
    int64_t then_step = then->training.global_batch_size * then->training.seq_len;
    if (!same_pace(now, then))
        return;
    differ(text, sizeof text, "global batch", now->training.global_batch_size, then->training.global_batch_size);
    differ(text, sizeof text, "tokens per step", now_step, then_step);
    if (now->training.steps > 0 && then->training.steps > 0)
        differ(text, sizeof text, "tokens in all", now_step * now->training.steps, then_step * then->training.steps);
    if (text[0])
        zt_planning_say(p->warnings, "%s, with the lr %g and the schedule of run %s", text, now->optimizer.lr, run);
}

void zt_plan_live_compare(struct zt_planning *p, struct zt_source *s) {
    struct zt_answer a;
    struct zt_error ignored;
    if (zt_fetch_run(s, p->spec.name, false, &a, &ignored))
        return; /* there was none */
    const Zt__RunDetail *d = a.env->run_detail;
    struct zt_spec *then = calloc(1, sizeof *then);
    int world = (int)(d->replicate * d->shard * d->tensor);
    if (then && d->normalised && world > 0 && world <= ZT_RANKS_MAX &&
        zt_spec_parse(d->normalised, strlen(d->normalised), "last run", NULL, 0, then, &ignored) == 0) {
        if (zt_spec_resolve(then, world, "last run", &ignored) == 0)
            compare_with(p, then, d->summary->run_id);
        zt_spec_free(then);
    }
    free(then);
    zt_answer_free(&a);
}

/* ---------------------------------------------------------------------------------- JSON */

/* A plan for each capacity that is registered, the largest first. */
static json_t *capacities(struct zt_planning *p) {
    const struct zt_plan_live *l = &p->live;
    json_t *rows = json_array();
    for (int64_t below = INT64_MAX;;) {
        int64_t bytes = -1;
        int workers = 0;
        for (int i = 0; i < l->n_worker; i++)
            if (l->worker[i].capacity < below && l->worker[i].capacity > bytes)
                bytes = l->worker[i].capacity;
        for (int i = 0; i < l->n_worker; i++)
            workers += l->worker[i].capacity == bytes;
        if (bytes < 0)
            return rows;
        below = bytes;
        struct zt_plan_config c = p->config;
        struct zt_plan *plan = NULL;
        struct zt_error err = {0};
        c.capacity_bytes = bytes;
        int rc = zt_plan_make(&c, &plan, &err);
        json_t *row = json_object();
        put(row, "capacity_bytes", json_integer(bytes));
        put(row, "workers", json_integer(workers));
        put(row, "fits", rc ? json_null() : json_boolean(plan->fits));
        put(row, "headroom_bytes", zt_json_int(rc == 0, rc ? 0 : plan->capacity_bytes - plan->peak_reserved_bytes));
        json_array_append_new(rows, row);
        zt_plan_free(plan);
    }
}

json_t *zt_plan_live_json(struct zt_planning *p) {
    const struct zt_plan_live *l = &p->live;
    json_t *o = json_object(), *on = json_array();
    for (int i = 0; i < l->n_order; i++)
        json_array_append_new(on, zt_json_text(l->worker[l->order[i]].id));
    put(o, "answered", json_boolean(l->answered));
    put(o, "why", zt_json_text(l->why));
    put(o, "workers", json_integer(l->n));
    put(o, "idle", json_integer(l->idle));
    put(o, "busy", json_integer(l->busy));
    put(o, "lost", json_integer(l->lost));
    put(o, "set_aside", json_integer(l->held));
    put(o, "too_small", json_integer(l->small));
    put(o, "queued_before", json_integer(l->queued));
    put(o, "starts_now", l->answered ? json_boolean(l->n_order > 0) : json_null());
    put(o, "on", on);
    put(o, "capacities", l->answered ? capacities(p) : json_array());
    return o;
}

/* ---------------------------------------------------------------------------------- text */

static void say_workers(FILE *out, const struct zt_plan_live *l) {
    fputs("starts now on ", out);
    for (int i = 0; i < l->n_order && i < 8; i++)
        fprintf(out, "%s%s", i ? ", " : "", l->worker[l->order[i]].id);
    if (l->n_order > 8)
        fprintf(out, " and %d more", l->n_order - 8);
    fputs(l->n_order > 1 ? " (in rank order)\n" : "\n", out);
}

static void say_wait(FILE *out, const struct zt_plan_live *l, int world) {
    const struct { int n; const char *what; } more[] = {{l->busy, "busy"}, {l->lost, "lost"},
                                                        {l->held, "draining or set aside"},
                                                        {l->small, "with too little memory"}};
    if (l->idle >= world && l->queued > 0)
        fprintf(out, "waits for its turn behind \"%s\"", l->first_queued);
    else
        fprintf(out, "waits for %d worker%s", world - l->idle, world - l->idle == 1 ? "" : "s");
    if (l->idle < world && l->queued > 0)
        fprintf(out, " and its turn behind \"%s\"", l->first_queued);
    if (l->queued > 1)
        fprintf(out, " and %d more", l->queued - 1);
    fprintf(out, ": needs %d, %d idle", world, l->idle);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (more[i].n)
            fprintf(out, ", %d %s", more[i].n, more[i].what);
    fputs(world > l->idle + l->busy ? "; there are not enough of them\n" : "\n", out);
}

void zt_plan_live_print(FILE *out, struct zt_planning *p, const json_t *live) {
    const struct zt_plan_live *l = &p->live;
    const json_t *row;
    size_t i;
    fputs("\nworkers   ", out);
    if (!l->answered) {
        char *safe = zt_escape(l->why, strlen(l->why), false), text[700];
        if (l->unreachable)
            snprintf(text, sizeof text, "no coordinator answers, so whether it starts now is not known (zcoord serve, --coord)");
        else
            snprintf(text, sizeof text, "not asked whether it starts now: %s", safe ? safe : "");
        zt_wrap(out, 10, 10, text);
        free(safe);
        return;
    }
    if (l->n_order > 0)
        say_workers(out, l);
    else
        say_wait(out, l, p->spec.workers);
    json_array_foreach(json_object_get(live, "capacities"), i, row) {
        char bytes[32], room[32];
        int64_t left = json_integer_value(json_object_get(row, "headroom_bytes"));
        const json_t *fits = json_object_get(row, "fits");
        fprintf(out, "          %lld with %s: %s", json_integer_value(json_object_get(row, "workers")),
                zt_format_bytes((double)json_integer_value(json_object_get(row, "capacity_bytes")), bytes, sizeof bytes),
                json_is_true(fits) ? "fits" : json_is_false(fits) ? "does not fit" : "not known");
        fprintf(out, left < 0 ? ", %s short of the reserved peak\n" : ", %s to spare\n",
                zt_format_bytes((double)(left < 0 ? -left : left), room, sizeof room));
    }
}
