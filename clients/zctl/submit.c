/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/submit.c: validate and submit: run files (run_file.c) checked here and handed to the coordinator. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/disk_space.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "clients/zctl/predict.h"

void zt_print_notes(const struct zt_spec *s) {
    for (int i = 0; i < s->notes.n; i++) {
        char *text = zt_escape(s->notes.item[i], strlen(s->notes.item[i]), false);
        fprintf(stderr, "note: %s\n", text ? text : "");
        free(text);
    }
}

void zt_print_disk_space(const struct zt_spec *s) {
    struct zt_disk_space d;
    char text[ZT_PATH_MAX + 256];
    if (zt_disk_space(s, 0, &d) && zt_disk_space_short(&d))
        fprintf(stderr, "warning: %s\n", zt_disk_space_text(&d, text, sizeof text));
}

/* Cross-checks for as many workers as are known; a copy, so that what is sent stays as it was. */
static int check_workers(const struct zt_run_file *f, int workers, struct zt_spec *resolved,
                         struct zt_error *err) {
    *resolved = f->spec;
    resolved->verbatim = NULL;
    return zt_spec_resolve(resolved, workers, f->file, err);
}

int zt_submit_request_fill(struct zt_submit_request *r, const struct zt_run_file *f, int workers, const char *plan,
                           bool force, struct zt_error *err) {
    memset(r, 0, sizeof *r);
    zt__envelope__init(&r->env);
    zt__submit__init(&r->submit);
    if (zt_sys_posix.random(zt_sys_posix.arg, r->key, sizeof r->key) < 0)
        return zt_fail(err, ZT_EIO, "no random bytes from the kernel");
    for (int i = 0; i < f->n_set; i++)
        r->sets[i] = (char *)(uintptr_t)f->set[i];
    r->submit.request_key.data = r->key;
    r->submit.request_key.len = sizeof r->key;
    r->submit.run_yaml.data = (uint8_t *)f->text;
    r->submit.run_yaml.len = f->bytes;
    r->submit.file = (char *)(uintptr_t)f->file;
    r->submit.overrides = r->sets;
    r->submit.n_overrides = (size_t)f->n_set;
    r->submit.has_workers = workers > 0;
    r->submit.workers = (uint32_t)workers;
    r->submit.has_plan = plan != NULL;
    r->submit.plan.data = (uint8_t *)(uintptr_t)plan;
    r->submit.plan.len = plan ? strlen(plan) : 0;
    r->submit.has_force = force;
    r->submit.force = force;
    r->submit.resume_run = f->resume.run[0] ? (char *)(uintptr_t)f->resume.run : NULL;
    r->submit.has_resume_step = f->resume.run[0] && f->resume.step >= 0;
    r->submit.resume_step = f->resume.step;
    r->submit.has_accept_batch_change = f->accept_batch_change;
    r->submit.accept_batch_change = f->accept_batch_change;
    r->env.body_case = ZT__ENVELOPE__BODY_SUBMIT;
    r->env.submit = &r->submit;
    return 0;
}

/* ---------------------------------------------------------------------------------- validate */

/* What a person wants to hear about a good file. */
static void say_valid(const struct zt_run_file *f, const struct zt_spec *s, bool resolved) {
    struct zt_model_table t;
    struct zt_error err;
    printf("%s: valid: run \"%s\"", f->file, f->spec.name);
    if (zt_model_table_build(&f->spec.model, f->spec.parallelism.wrap, f->spec.parallelism.wrap_n,
                             &t, &err) == 0) {
        printf(", %lld parameters", (long long)t.parameters);
        zt_model_table_free(&t);
    }
    printf(", mode %s", zt_mode_name(f->spec.parallelism.mode));
    if (resolved)
        printf(", %d workers = replicate %d x shard %d x tensor %d, global batch %lld = %lld x %d x %lld "
               "(local batch x data-parallel ranks x accumulation)",
               s->workers, s->parallelism.replicate, s->parallelism.shard, s->parallelism.tensor,
               (long long)s->training.global_batch_size, (long long)s->training.local_batch_size,
               zt_mesh_dp(zt_spec_mesh(s)), (long long)zt_spec_accumulation(s));
    else
        printf("; how many workers is not said, so what depends on it was not checked (--workers N)");
    putchar('\n');
    struct zt_disk_space d;
    char text[ZT_PATH_MAX + 256];
    if (zt_disk_space(&f->spec, 0, &d))
        puts(zt_disk_space_text(&d, text, sizeof text));
}

int zt_cmd_validate(const struct zt_options *o) {
    static struct zt_run_file f;
    static struct zt_spec s;
    struct zt_error err;
    int rc = zt_run_file_load(o, &f, &err);
    bool known = o->workers > 0 || f.spec.workers > 0;
    if (rc == 0 && !known) /* all degrees given? */
        known = check_workers(&f, 0, &s, &err) == 0;
    else if (rc == 0)
        rc = check_workers(&f, o->workers, &s, &err);
    if (rc) {
        zt_run_file_free(&f);
        return zt_report_bare(rc, &err);
    }
    char *text = o->show ? zt_spec_normalise(known ? &s : &f.spec) : NULL;
    if (o->format == ZT_FORMAT_TABLE)
        zt_print_notes(&f.spec);
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = json_object(), *notes = json_array();
        for (int i = 0; i < f.spec.notes.n; i++)
            json_array_append_new(notes, zt_json_text(f.spec.notes.item[i]));
        json_object_set_new(j, "file", zt_json_text(f.file));
        json_object_set_new(j, "valid", json_true());
        json_object_set_new(j, "name", zt_json_text(f.spec.name));
        json_object_set_new(j, "hash", zt_json_text(f.spec.normalised_hash));
        json_object_set_new(j, "workers", zt_json_int(known, s.workers));
        json_object_set_new(j, "global_batch_size", zt_json_int(known, s.training.global_batch_size));
        json_object_set_new(j, "accumulation", zt_json_int(known, known ? zt_spec_accumulation(&s) : 0));
        json_object_set_new(j, "notes", notes);
        json_object_set_new(j, "configuration", zt_json_text(text));
        zt_print_json_line(stdout, j);
        json_decref(j);
    } else if (text) {
        fputs(text, stdout);
    } else {
        say_valid(&f, &s, known);
    }
    free(text);
    zt_run_file_free(&f);
    return ZT_EXIT_OK;
}

/* ---------------------------------------------------------------------------------- submit */

static void say_submitted(const struct zt_options *o, const Zt__SubmitReply *r) {
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = json_object();
        json_object_set_new(j, "run", zt_json_text(r->run_id));
        json_object_set_new(j, "name", zt_json_text(r->name));
        json_object_set_new(j, "state", zt_json_text(r->state));
        json_object_set_new(j, "detail", zt_json_text(r->detail));
        json_object_set_new(j, "position", zt_json_int(r->has_position && r->position > 0, r->position));
        zt_print_json_line(stdout, j);
        json_decref(j);
        return;
    }
    char *detail = zt_escape(r->detail ? r->detail : "", r->detail ? strlen(r->detail) : 0, false);
    printf("run %s \"%s\" %s", r->run_id, r->name, r->state);
    if (r->has_position && r->position > 0)
        printf(": position %u", r->position);
    if (detail && detail[0])
        printf("%s%s", r->has_position && r->position > 0 ? ", " : ": ", detail);
    putchar('\n');
    fflush(stdout);
    free(detail);
}

/* Follows until the end; the exit code says how it ended. */
static int follow_run(const struct zt_options *o, struct zt_source *s, const char *run) {
    struct zt_options fo = *o;
    struct zt_error err = {0};
    struct zt_answer a = {0};
    char line[1024];
    fo.follow = true;
    fo.rank[0] = 0; /* rank 0 speaks for all */
    fo.n_rank = 1;
    struct zt_follow *f = zt_follow_new(&fo, run);
    if (!f)
        return zt_report(zt_fail(&err, ZT_ENOMEM, "no memory"), &err);
    zt_detach_on_interrupt();
    int rc = zt_follow_to_end(f, s, true, true, stdout, &a, &err);
    zt_follow_flush(f, stdout);
    int code = rc ? zt_report(rc, &err) : zt_exit_of_state(a.env->run_detail->summary->state);
    if (rc == 0)
        printf("run %s %s\n", run, zt_state_line(a.env->run_detail, line, sizeof line));
    zt_answer_free(&a);
    zt_follow_free(f);
    return code;
}

int zt_plan_submit(const struct zt_options *o, const struct zt_run_file *f, const struct zt_connected *c, char **plan,
                   bool *forced, struct zt_error *err) {
    struct zt_predicted p;
    int rc = zt_predict(&f->spec, f->file, o->workers, c, &p, err);
    *plan = NULL;
    *forced = false;
    if (rc)
        return rc;
    *forced = p.none_fits && o->force;
    json_object_set_new(p.doc, "forced", json_boolean(*forced));
    if (o->format == ZT_FORMAT_TABLE || p.none_fits)
        zt_predict_say(stderr, o, f->spec.name, &p);
    if (p.none_fits && !o->force)
        rc = zt_fail(err, ZT_ENOPLACE, "not submitted");
    else if (!(*plan = zt_predict_text(p.doc)))
        fprintf(stderr, "plan: not sent: it is larger than 64 KiB\n");
    json_decref(p.doc);
    return rc;
}

/* The workers that are there; a coordinator too busy to say is no reason not to submit. */
static int ask_connected(struct zt_source *s, const struct zt_spec *spec, struct zt_connected *c, struct zt_error *err) {
    int rc = zt_connected_ask(s, spec, c, err);
    return rc == ZT_EBUSY || rc == ZT_EUNSUPPORTED ? 0 : rc;
}

int zt_submit_planned(const struct zt_options *o, const struct zt_run_file *f, struct zt_source *s, struct zt_answer *a,
                      struct zt_error *err) {
    struct zt_submit_request req;
    struct zt_connected connected;
    char *plan = NULL;
    bool forced = false;
    int rc = ask_connected(s, &f->spec, &connected, err);
    if (rc == 0)
        rc = zt_plan_submit(o, f, &connected, &plan, &forced, err);
    if (rc == 0)
        rc = zt_submit_request_fill(&req, f, o->workers, plan, forced, err);
    if (rc == 0)
        rc = zt_source_ask_surely(s, &req.env, a, err);
    free(plan);
    return rc;
}

int zt_cmd_submit(const struct zt_options *o) {
    static struct zt_run_file f;
    static struct zt_spec s;
    struct zt_source source;
    struct zt_answer a;
    struct zt_error err;
    char run[64];
    if (o->accept_batch_change && !o->resume)
        return zt_report(zt_fail(&err, ZT_EINVAL, "--accept-batch-change goes with --resume RUN"), &err);
    int rc = o->subject ? zt_run_file_load(o, &f, &err) : 0; /* else it comes from the run that is gone on from */
    if (rc == 0 && o->subject && o->workers > 0)
        rc = check_workers(&f, o->workers, &s, &err);
    if (rc) {
        zt_run_file_free(&f);
        return zt_report_bare(rc, &err);
    }
    rc = zt_source_open(o, &source, &err);
    if (rc == 0 && o->resume)
        rc = zt_run_file_resume(o, &source, &f, &err);
    if (rc == 0) {
        zt_print_notes(&f.spec);
        zt_print_disk_space(&f.spec);
        rc = zt_submit_planned(o, &f, &source, &a, &err);
    }
    zt_run_file_free(&f);
    if (rc) {
        zt_source_close(&source);
        return zt_report(rc, &err);
    }
    say_submitted(o, a.env->submit_reply);
    snprintf(run, sizeof run, "%s", a.env->submit_reply->run_id);
    zt_answer_free(&a);
    int code = o->follow ? follow_run(o, &source, run) : ZT_EXIT_OK;
    zt_source_close(&source);
    return code;
}
