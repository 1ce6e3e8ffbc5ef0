/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/drill.c: `zctl drill FILE`: is going on from a checkpoint the same as not having stopped?
 *
 *   straight   2n steps in one go; nothing is saved before the last one
 *   stopped    the same run, saved after step n and cancelled once that checkpoint is committed
 *   resumed    goes on from it, to step 2n
 *
 * Each is a run of the private coordinator and workers of zctl run, in one state folder. Compared (drill.h): straight with
 * stopped up to step n, which shows that saving changes nothing, and with resumed from there on. */
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/drill.h"
#include "clients/zctl/json.h"
#include "clients/zctl/local.h"
#include "clients/zctl/out.h"

#define STEPS 10
enum part { STRAIGHT = 0, STOPPED, RESUMED, PARTS };
static const char *const part_names[PARTS] = {"straight", "stopped", "resumed"};

struct drill {
    const struct zt_options *o;
    int64_t n;                   /* steps before the stop, and after it */
    int workers;                 /* of the first two */
    int64_t batch;               /* sequences of an update, for all three */
    int64_t resume_local;        /* local_batch_size of the resumed one; 0: the file's */
    char dir[900];
    bool made_dir;
    enum part part;
    char run[PARTS][64];
    struct zt_drill_step *step[2]; /* straight; stopped, then resumed; 2n each */
    int n_step[2];
    struct zt_drill_difference difference;
};

/* ---------------------------------------------------------------------------------- what came of a run */

static double real_at(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int64_t int_at(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}

static void text_at(const json_t *row, const char *key, char *out, size_t n) {
    const char *s = json_string_value(json_object_get(row, key));
    snprintf(out, n, "%s", s ? s : "");
}

static void add_step(struct drill *d, const json_t *row) {
    int side = d->part == STRAIGHT ? 0 : 1;
    int64_t step = int_at(row, "step");
    bool wanted = d->part == STRAIGHT || (d->part == STOPPED ? step <= d->n : step > d->n);
    if (!wanted || d->n_step[side] == 2 * d->n)
        return;
    struct zt_drill_step *s = &d->step[side][d->n_step[side]++];
    *s = (struct zt_drill_step){.step = step, .lr = real_at(row, "lr"), .loss = real_at(row, "loss"),
                                .grad_norm = real_at(row, "grad_norm"), .loss_scale = real_at(row, "loss_scale"),
                                .eval_loss = real_at(row, "eval_loss"), .tokens = int_at(row, "tokens"),
                                .global_batch = int_at(row, "global_batch")};
    text_at(row, "sample_hash", s->sample_hash, sizeof s->sample_hash);
    text_at(row, "parameter_hash", s->parameter_hash, sizeof s->parameter_hash);
    text_at(row, "state_hash", s->state_hash, sizeof s->state_hash);
}

static bool has_saved(const struct drill *d, const Zt__RunDetail *r) { return r->checkpoint && r->checkpoint->step >= d->n; }

static bool enough(void *arg, struct zt_source *s, const Zt__RunDetail *r) {
    (void)s;
    return has_saved(arg, r);
}

/* Its steps; a run that did not get where it had to is the end of the drill. */
static int tell(void *arg, struct zt_source *s, const Zt__RunDetail *r) {
    struct drill *d = arg;
    const struct zt_options all = {.command = ZT_CMD_METRICS};
    struct zt_error err;
    char line[1024];
    json_t *rows = json_array(), *row;
    size_t i;
    int end = zt_exit_of_state(r->summary->state);
    bool there = d->part == STOPPED ? has_saved(d, r) : end == ZT_EXIT_OK;
    snprintf(d->run[d->part], sizeof d->run[0], "%s", r->summary->run_id);
    int rc = there ? zt_fetch_metrics(s, &all, r->summary->run_id, false, 0, rows, NULL, &err) : 0;
    json_array_foreach(rows, i, row)
        add_step(d, row);
    json_decref(rows);
    if (rc)
        return zt_report(rc, &err);
    if (there)
        return ZT_EXIT_OK;
    fprintf(stderr, "zctl: drill: the %s run %s: %s%s\n", part_names[d->part], r->summary->run_id, zt_state_line(r, line, sizeof line),
            d->part == STOPPED ? "; it has no checkpoint of the step that it should have been stopped at" : "");
    return end > 0 ? end : ZT_EXIT_FAILED;
}

/* ---------------------------------------------------------------------------------- the runs */

static int set_number(struct zt_run_file *f, const char *key, int64_t v, struct zt_error *err) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    return zt_run_file_set(f, key, text, err);
}

/* The file's run but for its length, its folder of checkpoints, and what has to be told for the comparison. */
static int prepare(struct drill *d, struct zt_run_file *f, struct zt_error *err) {
    struct zt_options o = *d->o;
    char text[1100];
    o.name = NULL;
    int rc = zt_run_file_load(&o, f, err);
    if (rc)
        return rc;
    snprintf(text, sizeof text, "%.45s-drill-%s", f->spec.name, part_names[d->part]);
    rc = zt_run_file_set(f, "name", text, err);
    if (rc == 0)
        rc = zt_run_file_shorten(f, 2 * d->n, err);
    if (rc == 0 && f->spec.validation.enabled)
        rc = set_number(f, "validation.every_steps", d->n, err);
    snprintf(text, sizeof text, "%s/checkpoints", d->dir);
    if (rc == 0)
        rc = zt_run_file_set(f, "checkpoint.folder", text, err);
    if (rc == 0)
        rc = set_number(f, "checkpoint.interval", d->part == STRAIGHT ? 2 * d->n : d->n, err);
    if (rc == 0)
        rc = zt_run_file_set(f, "checkpoint.keep_latest_k", "0", err);
    if (rc == 0)
        rc = zt_run_file_set(f, "checkpoint.load", "auto", err);
    if (rc == 0)
        rc = zt_run_file_set(f, "metrics.parameter_hash_every", "1", err);
    if (rc == 0)
        rc = zt_run_file_set(f, "restart.max_restarts", "0", err);
    if (rc == 0 && d->batch > 0)
        rc = set_number(f, "training.global_batch_size", d->batch, err);
    if (rc == 0 && d->part == RESUMED && d->resume_local > 0) { /* with other workers */
        rc = set_number(f, "training.local_batch_size", d->resume_local, err);
        if (rc == 0 && f->spec.workers > 0)
            rc = set_number(f, "workers", d->o->resume_workers, err);
    }
    if (rc == 0)
        rc = zt_run_file_parse(f, err);
    if (rc == 0 && d->part == RESUMED) {
        snprintf(f->resume.run, sizeof f->resume.run, "%s", d->run[STOPPED]);
        f->resume.step = d->n;
    }
    return rc;
}

/* With other workers the batch stays what it was; each of them then takes as many sequences at once as divide its part. */
static int fit_resumed(struct drill *d, const struct zt_spec *spec, struct zt_error *err) {
    const int dp = d->o->resume_workers / spec->parallelism.tensor;
    if (d->o->resume_workers == 0)
        return 0;
    if (dp < 1 || d->batch % dp != 0)
        return zt_fail(err, ZT_EINVAL, "--resume-workers %d: the global batch of %lld sequences is not a multiple of %d data-parallel ranks",
                       d->o->resume_workers, (long long)d->batch, dp);
    d->resume_local = spec->training.local_batch_size;
    while (d->batch / dp % d->resume_local != 0)
        d->resume_local--;
    return 0;
}

/* How many workers the file means, and the batch with them: the same for all three, whatever the resumed one has. */
static int measure(struct drill *d, struct zt_run_file *f, struct zt_error *err) {
    static struct zt_spec spec;
    int rc = prepare(d, f, err);
    spec = f->spec;
    spec.verbatim = NULL;
    if (rc == 0)
        rc = zt_spec_resolve(&spec, d->o->workers, f->file, err);
    d->workers = spec.workers;
    d->batch = spec.training.global_batch_size;
    rc = rc ? rc : fit_resumed(d, &spec, err);
    zt_run_file_free(f);
    return rc;
}

static int run_part(struct drill *d, enum part part, struct zt_run_file *f) {
    const struct zt_run_end end = {.tell = tell, .arg = d, .enough = part == STOPPED ? enough : NULL};
    struct zt_options o = *d->o;
    struct zt_error err;
    o.state = d->dir;
    o.workers = part == RESUMED && d->o->resume_workers > 0 ? d->o->resume_workers : d->workers;
    d->part = part;
    if (d->o->format == ZT_FORMAT_TABLE)
        fprintf(stderr, "drill: %s: %s%lld steps on %d worker%s\n", part_names[part], part == RESUMED ? "the last " : "",
                (long long)(part == STRAIGHT ? 2 * d->n : d->n), o.workers, o.workers == 1 ? "" : "s");
    int rc = prepare(d, f, &err);
    int code = rc ? zt_report_bare(rc, &err) : zt_run_here(&o, f, &end);
    zt_run_file_free(f);
    return code == ZT_EXIT_OK && zt_interrupts() > 0 ? ZT_EXIT_INTERRUPT : code;
}

/* ---------------------------------------------------------------------------------- verdict */

static bool other_mesh(const struct drill *d) { return d->o->resume_workers > 0 && d->o->resume_workers != d->workers; }

static json_t *verdict_json(const struct drill *d, bool equal) {
    json_t *o = json_object(), *runs = json_object(), *first = json_object();
    for (int p = 0; p < PARTS; p++)
        json_object_set_new(runs, part_names[p], zt_json_text(d->run[p]));
    json_object_set_new(first, "step", json_integer(d->difference.step));
    json_object_set_new(first, "field", zt_json_text(d->difference.field));
    json_object_set_new(first, "straight", zt_json_text(d->difference.straight));
    json_object_set_new(first, "resumed", zt_json_text(d->difference.resumed));
    json_object_set_new(o, "equal", json_boolean(equal));
    json_object_set_new(o, "exact", json_boolean(!other_mesh(d)));
    json_object_set_new(o, "steps", json_integer(2 * d->n));
    json_object_set_new(o, "stopped_after", json_integer(d->n));
    json_object_set_new(o, "workers", json_integer(d->workers));
    json_object_set_new(o, "resume_workers", json_integer(other_mesh(d) ? d->o->resume_workers : d->workers));
    json_object_set_new(o, "runs", runs);
    json_object_set_new(o, "first_difference", equal ? json_null() : json_incref(first));
    json_object_set_new(o, "state_folder", equal && d->made_dir ? json_null() : zt_json_text(d->dir));
    json_decref(first);
    return o;
}

static void say_verdict(const struct drill *d, bool equal) {
    const struct zt_drill_step *last = &d->step[0][d->n_step[0] > 0 ? d->n_step[0] - 1 : 0];
    const struct zt_drill_difference *x = &d->difference;
    if (!equal) {
        printf("DIFFERENT: step %lld, %s: straight %s, %s %s\n", (long long)x->step, x->field, x->straight,
               part_names[x->step <= d->n ? STOPPED : RESUMED], x->resumed);
        printf("more       zctl --state %s metrics %s -o jsonl; the other one is %s\n", d->dir, d->run[STRAIGHT],
               d->run[x->step <= d->n ? STOPPED : RESUMED]);
        return;
    }
    printf("EQUAL: %lld steps straight, and %lld + stop + resume + %lld", (long long)(2 * d->n), (long long)d->n, (long long)d->n);
    if (other_mesh(d))
        printf(", on %d and then %d workers: samples, tokens and learning rate of every step are the same, losses and norms agree "
               "to %g\n", d->workers, d->o->resume_workers, ZT_DRILL_TOLERANCE);
    else
        printf(" on %d worker%s: samples, tokens, learning rate, loss, norm, parameters and moments of every step have the same bits\n",
               d->workers, d->workers == 1 ? "" : "s");
    printf("loss   %.6f -> %.6f; parameters after the last step %s\n", d->step[0][0].loss, last->loss, last->parameter_hash);
}

static int verdict(struct drill *d) {
    bool equal = zt_drill_equal(d->step[0], d->n_step[0], d->step[1], d->n_step[1], 2 * d->n,
                                other_mesh(d) ? ZT_DRILL_CLOSE : ZT_DRILL_EXACT, &d->difference);
    if (d->o->format == ZT_FORMAT_TABLE) {
        say_verdict(d, equal);
    } else {
        json_t *j = verdict_json(d, equal);
        if (d->o->format == ZT_FORMAT_JSON)
            zt_print_json(stdout, j);
        else
            zt_print_json_line(stdout, j);
        json_decref(j);
    }
    return equal ? ZT_EXIT_OK : ZT_EXIT_FAILED;
}

/* ---------------------------------------------------------------------------------- command */

static int make_dir(struct drill *d, struct zt_error *err) {
    char full[4096];
    int n;
    if (d->o->state) {
        n = snprintf(d->dir, sizeof d->dir, "%s", d->o->state);
        if (n < 0 || (size_t)n >= sizeof d->dir)
            return zt_fail(err, ZT_EINVAL, "--state is too long");
        int rc = zt_make_folders(d->dir, err);
        if (rc == 0 && (!realpath(d->dir, full) || strlen(full) >= sizeof d->dir))
            rc = zt_fail(err, ZT_EINVAL, "--state %s: %s", d->o->state, strerror(errno));
        if (rc == 0)
            memcpy(d->dir, full, strlen(full) + 1);
        return rc;
    }
    int rc = zt_local_base(full, sizeof full, err);
    n = rc == 0 ? snprintf(d->dir, sizeof d->dir, "%s-drill-XXXXXX", full) : 0;
    if (rc == 0 && (n < 0 || (size_t)n >= sizeof d->dir))
        rc = zt_fail(err, ZT_EINVAL, "the state folder's path is too long; give --state DIR");
    if (rc == 0)
        rc = zt_make_folders(full, err);
    if (rc == 0 && !mkdtemp(d->dir))
        rc = zt_fail(err, ZT_EIO, "cannot make %s: %s", d->dir, strerror(errno));
    d->made_dir = rc == 0;
    return rc;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *f) {
    (void)st;
    (void)flag;
    (void)f;
    return remove(path);
}

int zt_cmd_drill(const struct zt_options *o) {
    static struct zt_run_file file;
    static struct drill d;
    struct zt_error err;
    int code = ZT_EXIT_OK;
    d.o = o;
    d.n = o->steps > 0 ? o->steps : STEPS;
    for (int i = 0; i < 2; i++)
        d.step[i] = calloc((size_t)(2 * d.n), sizeof *d.step[i]);
    int rc = d.step[0] && d.step[1] ? measure(&d, &file, &err) : zt_fail(&err, ZT_ENOMEM, "no memory for %lld steps", (long long)(2 * d.n));
    if (rc == 0)
        rc = make_dir(&d, &err);
    if (rc)
        code = zt_report_bare(rc, &err);
    for (int p = 0; p < PARTS && code == ZT_EXIT_OK; p++)
        code = run_part(&d, (enum part)p, &file);
    if (code == ZT_EXIT_OK)
        code = verdict(&d);
    else if (d.dir[0])
        fprintf(stderr, "zctl: drill: what there is of it: zctl --state %s list\n", d.dir);
    if (d.made_dir && code == ZT_EXIT_OK)
        nftw(d.dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(d.step[0]);
    free(d.step[1]);
    return code;
}
