/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/resume.c: `--resume RUN[@STEP]` of submit and run: whose checkpoint it is, and whether this run file may go
 * on from it. The newest step is chosen by the coordinator when it takes the run. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/local.h"
#include "core/resume.h"

static int load_stored(const struct zt_options *o, struct zt_run_file *f, const Zt__RunDetail *d, struct zt_error *err) {
    memset(f, 0, sizeof *f);
    snprintf(f->file, sizeof f->file, "the run file of %s", d->summary->name);
    f->text = strdup(d->normalised);
    if (!f->text)
        return zt_fail(err, ZT_ENOMEM, "no memory for the run file");
    f->bytes = strlen(f->text);
    return zt_run_file_sets(o, f, err);
}

/* Both with as many workers as they had or will have. Where that is not known here, what depends on it is left to the
 * coordinator, which checks all of it again, as the trainers do. */
static int check_resume(const struct zt_options *o, const struct zt_run_file *f, const Zt__RunDetail *d, struct zt_error *err) {
    struct zt_spec *saved = calloc(2, sizeof *saved), *now = saved + 1;
    const int had = (int)(d->replicate * d->shard * d->tensor);
    struct zt_error why;
    struct zt_load load;
    if (f->spec.checkpoint.enabled && zt_load_parse(f->spec.checkpoint.load, &load, &why) == 0 &&
        load.kind == ZT_LOAD_WEIGHTS_ONLY) { /* it begins anew, as another run may */
        free(saved);
        return 0;
    }
    if (!saved)
        return zt_fail(err, ZT_ENOMEM, "no memory for two run files");
    int rc = zt_spec_parse(d->normalised, strlen(d->normalised), "the stored run file", NULL, 0, saved, err);
    *now = f->spec;
    now->verbatim = NULL;
    bool known = rc == 0 && zt_spec_resolve(saved, had, "the stored run file", &why) == 0;
    if (rc == 0 && o->workers > 0)
        rc = zt_spec_resolve(now, o->workers, f->file, err);
    else if (rc == 0)
        known = zt_spec_resolve(now, 0, f->file, &why) == 0 && known;
    if (rc == 0 && (rc = zt_resume_check(saved, now, o->accept_batch_change || !known, err)) != 0)
        zt_fail_prefix(err, "cannot go on from run %s \"%s\"", d->summary->run_id, d->summary->name);
    zt_spec_free(saved);
    free(saved);
    return rc;
}

int zt_run_file_resume(const struct zt_options *o, struct zt_source *s, struct zt_run_file *f, struct zt_error *err) {
    struct zt_run_at at;
    struct zt_answer a = {0};
    int rc = zt_run_at_parse(o->resume, &at, err);
    if (rc == 0 && at.folder)
        rc = zt_fail(err, ZT_EINVAL, "--resume %.200s: a folder; name the run as RUN or RUN@STEP, or load its weights with "
                     "--set model.init_from=FOLDER", o->resume);
    if (rc == 0)
        rc = zt_fetch_run(s, at.run, false, &a, err);
    if (rc)
        return rc;
    const Zt__RunDetail *d = a.env->run_detail;
    if (!d->normalised || !d->normalised[0])
        rc = zt_fail(err, ZT_ENOTFOUND, "the coordinator does not have the configuration of run %s", d->summary->run_id);
    if (rc == 0 && !o->subject)
        rc = load_stored(o, f, d, err);
    if (rc == 0) {
        snprintf(f->resume.run, sizeof f->resume.run, "%s", d->summary->run_id); /* a name might be another's by then */
        f->resume.step = at.step;
        f->accept_batch_change = o->accept_batch_change;
        rc = check_resume(o, f, d, err);
    }
    zt_answer_free(&a);
    return rc;
}

int zt_run_file_resume_here(const struct zt_options *o, struct zt_run_file *file, char *dir, size_t n, struct zt_error *err) {
    char base[900];
    int rc = o->state ? 0 : zt_local_base(base, sizeof base, err);
    for (int i = 1; rc == 0 && i <= 64; i++) {
        struct zt_options there = *o;
        struct zt_source s;
        snprintf(dir, n, i == 1 ? "%s" : "%s-%d", o->state ? o->state : base, i);
        there.state = dir;
        rc = zt_source_open(&there, &s, err);
        if (rc == 0) {
            rc = zt_run_file_resume(o, &s, file, err);
            zt_source_close(&s);
        }
        if (rc != ZT_ENOTFOUND || o->state)
            return rc;
        rc = i == 1 || access(dir, F_OK) == 0 ? 0 : ZT_ENOTFOUND;
    }
    return zt_fail(err, ZT_ENOTFOUND, "--resume %.80s: no run of that name in %s; zctl --state DIR list shows those of another folder, "
                                      "zctl submit those of a coordinator", o->resume, base);
}
