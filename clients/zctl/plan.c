/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan.c: `zctl plan FILE`: loads the file, plans it (planning.h), prints. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/plan_charts.h"
#include "clients/zctl/planning.h"
#include "engine/plan/devices.h"

/* With a straggler: the same without it. */
static int make_even(struct zt_planning *p, struct zt_error *err) {
    struct zt_plan_config c = p->config;
    struct zt_plan *even = NULL;
    if (c.straggler <= 1)
        return 0;
    c.straggler = 0;
    int rc = zt_plan_make(&c, &even, err);
    if (rc == 0)
        p->even_seconds = even->step_seconds;
    zt_plan_free(even);
    return rc;
}

static void say(void *list, const char *sentence) { zt_planning_say(list, "%s", sentence); }

/* What the device's figures are worth for this plan. */
static void say_caveats(struct zt_planning *p) {
    int64_t least = 0, most = 0;
    for (int64_t i = 0; i < p->plan->n_collectives; i++) {
        const struct zt_coll_record *r = &p->plan->collectives[i];
        if (r->control || r->sent_bytes == 0)
            continue;
        least = least == 0 || r->bytes < least ? r->bytes : least;
        most = r->bytes > most ? r->bytes : most;
    }
    zt_device_caveats(p->device, p->ranks_per_host, least, most, say, p->assumed);
}

static int make(struct zt_planning *p, struct zt_error *err) {
    struct zt_plan_config c = p->config;
    c.details = true;
    int rc = zt_plan_make(&c, &p->plan, err);
    if (rc == 0)
        say_caveats(p);
    rc = rc ? rc : make_even(p, err);
    rc = rc ? rc : zt_planning_modes(p, err);
    return rc == 0 && p->o->n_sweep > 0 ? zt_planning_sweep(p, err) : rc;
}

/* What csv and jsonl are rows of. */
static const json_t *rows_of(const struct zt_options *o, const json_t *doc) {
    const json_t *chosen = json_object_get(doc, "chosen");
    return o->n_sweep > 0  ? json_object_get(doc, "sweep")
           : o->schedule   ? json_object_get(chosen, "schedule")
           : o->curve      ? json_object_get(chosen, "curve")
           : o->units      ? json_object_get(chosen, "units")
                           : json_object_get(doc, "modes");
}

static int print(struct zt_planning *p, struct zt_error *err) {
    json_t *doc = zt_planning_json(p);
    int rc = p->o->format == ZT_FORMAT_TABLE ? zt_planning_print(stdout, p, doc, err)
                                             : zt_print_rows(stdout, p->o, doc, rows_of(p->o, doc), NULL, err);
    json_decref(doc);
    return rc;
}

static bool is_standard(const char *path) { return path && strcmp(path, "-") == 0; }

/* What goes to standard output stands there alone. */
static bool page_wanted(const struct zt_options *o) { return !is_standard(o->svg) && !is_standard(o->trace); }

static int check_output(const struct zt_options *o, struct zt_error *err) {
    if (is_standard(o->svg) && is_standard(o->trace))
        return zt_fail(err, ZT_EINVAL, "--svg - and --trace - would mix on standard output; give one of them a file");
    return 0;
}

/* Files beside the page. */
static int draw(const struct zt_planning *p, struct zt_error *err) {
    struct zt_plan_bar bars[ZT_PLANNED_MODES];
    char name[ZT_PLANNED_MODES][40];
    int rc = 0;
    for (int i = 0; i < p->n_modes; i++)
        bars[i] = (struct zt_plan_bar){zt_planned_mode_name(&p->mode[i], name[i], sizeof name[i]), p->mode[i].plan,
                                       p->mode[i].chosen};
    if (p->o->svg)
        rc = zt_plan_draw(p->plan, &p->spec, p->device, bars, p->n_modes, p->o->svg, err);
    return rc == 0 && p->o->trace ? zt_plan_write_trace(p->plan, &p->spec, p->o->trace, err) : rc;
}

int zt_cmd_plan(const struct zt_options *o) {
    static struct zt_run_file f;
    static struct zt_planning p;
    struct zt_error err = {0};
    int rc = check_output(o, &err);
    if (rc)
        return zt_report(rc, &err);
    rc = zt_run_file_load(o, &f, &err);
    if (rc) {
        zt_run_file_free(&f);
        return zt_report_bare(rc, &err);
    }
    zt_print_notes(&f.spec);
    rc = zt_planning_open(o, &f, &p, &err);
    rc = rc ? rc : make(&p, &err);
    rc = rc ? rc : draw(&p, &err);
    rc = rc || !page_wanted(o) ? rc : print(&p, &err);
    bool fits = p.plan && p.plan->fits;
    zt_planning_close(&p);
    zt_run_file_free(&f);
    return rc ? zt_report(rc, &err) : fits ? ZT_EXIT_OK : ZT_EXIT_NOPLACE;
}
