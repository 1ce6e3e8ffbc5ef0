/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/advise.c: `zctl advise FILE|RUN`: which changes make a run fit, computed by planning them. A run
 * that is there is planned as it was submitted, with the memory that it had. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/advise.h"
#include "core/units.h"

/* A run's name is no path. */
static bool is_file(const char *subject) {
    size_t n = strlen(subject);
    return strcmp(subject, "-") == 0 || strchr(subject, '/') || access(subject, F_OK) == 0 ||
           (n > 5 && strcmp(subject + n - 5, ".yaml") == 0) || (n > 4 && strcmp(subject + n - 4, ".yml") == 0);
}

/* ---------------------------------------------------------------------------------- a run */

struct of_run {
    char id[64], file[128];
    json_t *oom;          /* null: it did not run out */
    int64_t failed_step;
    struct zt_options o;  /* as if its file had been given */
};

/* The failure that zt_oom_of tells of. */
static int64_t failed_step(const Zt__RunDetail *d) {
    for (size_t i = d->n_attempts; i-- > 0;)
        if (d->attempts[i]->oom)
            return d->attempts[i]->has_failed_step ? d->attempts[i]->failed_step : -1;
    return -1;
}

/* The normalised text writes degrees that the file left open as -1: still open, so that advice need not set them. */
static void open_degrees(struct zt_spec *s) {
    const char *key;
    if (s->parallelism.replicate != -1 || s->parallelism.shard != -1)
        return;
    for (int i = 0; (key = zt_spec_key(i)); i++)
        if (strstr(key, "parallelism.data_parallel_") == key)
            s->mark[i].line = 0;
}

static int take_run(const struct zt_options *o, const Zt__RunDetail *d, struct of_run *r, struct zt_run_file *f,
                    struct zt_error *err) {
    int64_t world = (int64_t)d->replicate * d->shard * d->tensor;
    snprintf(r->id, sizeof r->id, "%s", d->summary->run_id);
    snprintf(r->file, sizeof r->file, "run %s", d->summary->run_id);
    r->oom = zt_oom_of(d);
    r->failed_step = failed_step(d);
    if (!d->normalised || !d->normalised[0])
        return zt_fail(err, ZT_ENOTFOUND, "run %s: its configuration is not kept", r->id);
    memset(f, 0, sizeof *f);
    snprintf(f->file, sizeof f->file, "%s", r->file);
    f->text = strdup(d->normalised);
    if (!f->text)
        return zt_fail(err, ZT_ENOMEM, "no memory for a run file");
    f->bytes = strlen(f->text);
    for (int i = 0; i < o->n_set; i++)
        f->set[f->n_set++] = o->set[i];
    r->o = *o;
    if (o->workers == 0 && o->nodes == 0 && world > 0 && world <= ZT_PLAN_RANKS_MAX)
        r->o.workers = (int)world;
    int64_t capacity = json_integer_value(json_object_get(r->oom, "capacity_bytes"));
    if (o->capacity_gib <= 0 && !o->device && capacity > 0)
        r->o.capacity_gib = (double)capacity / (double)ZT_GIB;
    int rc = zt_spec_parse(f->text, f->bytes, f->file, f->set, f->n_set, &f->spec, err);
    if (rc == 0)
        open_degrees(&f->spec);
    return rc;
}

static int load_run(const struct zt_options *o, struct of_run *r, struct zt_run_file *f, struct zt_error *err) {
    struct zt_source s;
    struct zt_answer a;
    int rc = zt_source_open(o, &s, err);
    if (rc)
        return rc;
    rc = zt_fetch_run(&s, o->subject, false, &a, err);
    if (rc == 0) {
        rc = take_run(o, a.env->run_detail, r, f, err);
        zt_answer_free(&a);
    }
    zt_source_close(&s);
    return rc;
}

/* ---------------------------------------------------------------------------------- the command */

static int advise(const struct zt_options *o, struct zt_advising *a, struct zt_advice **made, struct zt_selection *s,
                  struct zt_error *err) {
    struct zt_advise_config c = {.plan = a->of->config,
                                 .budget_bytes = (int64_t)(o->budget_gib * (double)ZT_GIB)};
    int rc = o->select ? 0 : zt_advise_make(&c, made, err);
    if (rc == 0)
        rc = zt_advise_select(&c, s, err);
    a->advice = *made;
    a->selection = s;
    return rc;
}

static int print(const struct zt_options *o, const struct zt_advising *a, struct zt_error *err) {
    json_t *doc = zt_advise_json(a);
    int rc = o->format == ZT_FORMAT_TABLE ? zt_advise_print(stdout, a, doc, o->select, err)
                                          : zt_print_rows(stdout, o, doc, zt_advise_rows(doc, o->select), NULL, err);
    json_decref(doc);
    return rc;
}

int zt_cmd_advise(const struct zt_options *o) {
    static struct zt_run_file f;
    static struct zt_planning p;
    static struct zt_selection selection;
    struct of_run r = {.failed_step = -1};
    struct zt_advice *made = NULL;
    struct zt_error err = {0};
    bool file = is_file(o->subject);
    int rc = file ? zt_run_file_load(o, &f, &err) : load_run(o, &r, &f, &err);
    if (rc) {
        zt_run_file_free(&f);
        json_decref(r.oom);
        return file ? zt_report_bare(rc, &err) : zt_report(rc, &err);
    }
    zt_print_notes(&f.spec);
    rc = zt_planning_open(file ? o : &r.o, &f, &p, &err);
    struct zt_advising a = {.of = &p, .run = file ? NULL : r.id, .measured = r.oom, .failed_step = r.failed_step};
    rc = rc ? rc : advise(o, &a, &made, &selection, &err);
    rc = rc ? rc : print(o, &a, &err);
    bool found = !made || made->base.fits || made->n_changes > 0;
    zt_advice_free(made);
    zt_planning_close(&p);
    zt_run_file_free(&f);
    json_decref(r.oom);
    return rc ? zt_report(rc, &err) : found ? ZT_EXIT_OK : ZT_EXIT_NOPLACE;
}
