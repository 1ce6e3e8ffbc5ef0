/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/submit.c: Submit: the file is checked again, what the run begins from is looked up once, and the
 * run's texts are made (shell.h). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/run_config.h"
#include "coordinator/shell.h"
#include "core/resume.h"
#include "core/spec.h"
#include "core/sys.h"

#define OVERRIDES_MAX 128
#define PLAN_MAX ((size_t)64 * 1024)

/* 26 characters: 48 bits of milliseconds, 80 random bits, so that ids sort by time. */
static int make_run_id(char out[ZT_RUN_ID_MAX + 1], struct zt_error *err)
{
    static const char digit[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    uint8_t random[10];
    if (zt_sys_posix.random(zt_sys_posix.arg, random, sizeof random))
        return zt_fail(err, ZT_EIO, "the system gives no random bytes");
    uint64_t ms = (uint64_t)zt_shell_wall_ms();
    for (int i = 9; i >= 0; i--, ms >>= 5)
        out[i] = digit[ms & 31];
    for (int half = 0; half < 2; half++) {
        uint64_t v = 0;
        for (int i = 0; i < 5; i++)
            v = v << 8 | random[half * 5 + i];
        for (int i = 7; i >= 0; i--, v >>= 5)
            out[10 + half * 8 + i] = digit[v & 31];
    }
    out[26] = 0;
    return 0;
}

static char *overrides_json(const Zt__Submit *m)
{
    json_t *j = json_array();
    bool whole = j != NULL;
    for (size_t i = 0; whole && i < m->n_overrides; i++)
        whole = json_array_append_new(j, json_string(m->overrides[i])) == 0;
    char *text = whole ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

/* The run's own folder of checkpoints: no two runs meet in one. */
static int make_folder(struct zt_request *q, const struct zt_spec *spec, const char *run_id, struct zt_error *err)
{
    const char *in = spec->checkpoint.folder;
    size_t n = strlen(in) + ZT_RUN_ID_MAX + 2;
    if (!spec->checkpoint.enabled)
        return 0;
    if (in[0] != '/')
        return zt_fail(err, ZT_EINVAL, "%s: checkpoint.folder: %s is not absolute; zctl makes it so against the folder of the file: "
                       "submit with it, or give an absolute path", q->env->submit->file, in[0] ? in : "the default");
    q->folder = malloc(n);
    if (!q->folder)
        return zt_fail(err, ZT_EBUSY, "the coordinator is short of memory; try again");
    snprintf(q->folder, n, "%s%s%s", in, in[strlen(in) - 1] == '/' ? "" : "/", run_id);
    if (strlen(q->folder) >= ZT_PATH_MAX)
        return zt_fail(err, ZT_EINVAL, "%s: checkpoint.folder: longer than %d bytes with the run's id", q->env->submit->file, ZT_PATH_MAX - 1);
    return 0;
}

static struct zt_run_saves saves_of(const struct zt_request *q, const struct zt_spec *spec)
{
    const Zt__Submit *m = q->env->submit;
    return (struct zt_run_saves){ .folder = q->folder ? q->folder : "", .interval = spec->checkpoint.interval,
                                  .keep_latest_k = spec->checkpoint.keep_latest_k, .keep_every = spec->checkpoint.keep_every,
                                  .source_run = q->source.run_id, .source_name = q->source.name,
                                  .source_folder = q->source.folder, .source_step = q->source.step,
                                  .weights_only = q->source.weights_only,
                                  .accept_batch_change = m->has_accept_batch_change && m->accept_batch_change };
}

static int fill_blobs(struct zt_request *q, const struct zt_spec *spec, const char *run_id, struct zt_error *err)
{
    const Zt__Submit *m = q->env->submit;
    if (make_folder(q, spec, run_id, err))
        return err->code;
    q->normalised = zt_spec_normalise(spec);
    q->overrides = overrides_json(m);
    q->hash = strdup(spec->normalised_hash);
    q->mode = strdup(zt_mode_name(spec->parallelism.mode));
    if (!q->normalised || !q->overrides || !q->hash || !q->mode)
        return zt_fail(err, ZT_EBUSY, "the coordinator is short of memory; try again");
    q->run = (struct zt_run_blobs){ .run_yaml = m->run_yaml.data, .run_yaml_bytes = m->run_yaml.len, .file = m->file,
                                    .normalised = q->normalised, .hash = q->hash, .mode = q->mode, .overrides = q->overrides,
                                    .plan = m->has_plan ? m->plan.data : NULL, .plan_bytes = m->has_plan ? m->plan.len : 0,
                                    .per_rank_keep = spec->metrics.per_rank_keep,
                                    .warmup_steps = spec->metrics.warmup_steps, .max_restarts = spec->restart.max_restarts,
                                    .saves = saves_of(q, spec) };
    return 0;
}

/* Kept as it is; but who reads it may rely on its being one, and on its text being UTF-8 without NUL. */
static bool is_json_object(const ProtobufCBinaryData *d)
{
    json_t *j = json_loadb((const char *)d->data, d->len, JSON_REJECT_DUPLICATES, NULL);
    bool is = json_is_object(j);
    json_decref(j);
    return is;
}

static const char *bad_submit(const Zt__Submit *m)
{
    if (m->request_key.len != 16)
        return "request_key: 16 random bytes are required";
    if (m->run_yaml.len > ZT_SPEC_MAX_BYTES)
        return "the run file is larger than 256 KiB";
    if (m->n_overrides > OVERRIDES_MAX)
        return "more than 128 overrides (--set)";
    if (m->file[0] == 0 || strlen(m->file) > ZT_PATH_MAX)
        return "file: 1 to 1024 bytes are allowed";
    if (m->name && m->name[0] && !zt_run_name_valid(m->name))
        return "name: [a-z0-9][a-z0-9._-]{0,62} is allowed";
    if (m->has_plan && m->plan.len > PLAN_MAX)
        return "plan: larger than 64 KiB; submit without one, or with the program of this version";
    if (m->has_plan && !is_json_object(&m->plan))
        return "plan: not a JSON object; submit without one, or with the program of this version";
    _Static_assert(ZT_RANKS_MAX == 256, "the number below");
    if (m->resume_run && strlen(m->resume_run) > ZT_RUN_NAME_MAX)
        return "resume_run: at most 63 bytes are allowed";
    if (m->has_workers && m->workers > ZT_RANKS_MAX)
        return "workers: a run may have at most 256 ranks in this version";
    return NULL;
}

/* ------------------------------------------------------------------------------ what it begins from */
struct want { char run[ZT_RUN_NAME_MAX + 1]; int64_t step; bool weights_only; }; /* run "": nothing */

static int want_of(const Zt__Submit *m, const struct zt_spec *spec, struct want *w, struct zt_error *err)
{
    struct zt_load load = { .kind = ZT_LOAD_AUTO, .step = -1 }, init = { .kind = ZT_LOAD_FRESH, .step = -1 };
    *w = (struct want){ .step = -1 };
    if (spec->checkpoint.enabled && zt_load_parse(spec->checkpoint.load, &load, err))
        return zt_fail_prefix(err, "%s: checkpoint.load", m->file);
    if (zt_init_from_parse(spec->init_from[0] ? spec->init_from : "fresh", &init, err))
        return zt_fail_prefix(err, "%s: model.init_from", m->file);
    w->weights_only = load.kind == ZT_LOAD_WEIGHTS_ONLY;
    if (m->resume_run && m->resume_run[0]) {
        if (load.kind == ZT_LOAD_NEVER || load.kind == ZT_LOAD_RUN)
            return zt_fail(err, ZT_EINVAL, "%s: checkpoint.load: %s contradicts --resume %s; leave one of them out", m->file,
                           spec->checkpoint.load, m->resume_run);
        snprintf(w->run, sizeof w->run, "%s", m->resume_run);
        w->step = m->has_resume_step ? m->resume_step : load.kind == ZT_LOAD_STEP ? load.step : -1;
    } else if (load.kind == ZT_LOAD_RUN) {
        snprintf(w->run, sizeof w->run, "%s", load.run);
        w->step = load.step;
    } else if (load.kind == ZT_LOAD_STEP) { /* this run has none yet: of the newest run of its name */
        snprintf(w->run, sizeof w->run, "%s", m->name && m->name[0] ? m->name : spec->name);
        w->step = load.step;
    } else if (init.kind == ZT_LOAD_RUN) {
        snprintf(w->run, sizeof w->run, "%s", init.run);
        w->step = init.step;
        w->weights_only = true;
    } else if (load.kind == ZT_LOAD_WEIGHTS_ONLY && init.kind == ZT_LOAD_FRESH) {
        return zt_fail(err, ZT_EINVAL, "%s: checkpoint.load: weights_only needs a checkpoint to take them from: submit with "
                       "--resume RUN[@STEP], or name it in model.init_from", m->file);
    }
    return 0;
}

int zt_submit_resolve(sqlite3 *db, const Zt__Submit *m, struct zt_ckpt_source *out, struct zt_error *err)
{
    struct want w;
    struct zt_spec *spec = malloc(sizeof *spec);
    const char *bad = bad_submit(m);
    memset(out, 0, sizeof *out);
    if (bad || !spec) {
        free(spec);
        return bad ? zt_fail(err, ZT_EINVAL, "%s", bad) : zt_fail(err, ZT_EBUSY, "the coordinator is short of memory; try again");
    }
    memset(spec, 0, sizeof *spec);
    int code = zt_spec_parse((const char *)m->run_yaml.data, m->run_yaml.len, m->file, (const char *const *)m->overrides,
                             (int)m->n_overrides, spec, err);
    if (!code)
        code = want_of(m, spec, &w, err);
    zt_spec_free(spec);
    free(spec);
    if (!code && w.run[0])
        code = zt_query_ckpt_source(db, w.run, w.step, out, err);
    out->weights_only = !code && w.weights_only;
    return code;
}

/* Refused now rather than by its trainers: what may not differ from the run it goes on from. */
static int check_resume(const struct zt_ckpt_source *from, const struct zt_spec *spec, int workers, bool accept, const char *file,
                        struct zt_error *err)
{
    struct zt_spec *saved = calloc(2, sizeof *saved), *now = saved ? saved + 1 : NULL;
    struct zt_error quiet;
    if (!saved)
        return zt_fail(err, ZT_EBUSY, "the coordinator is short of memory; try again");
    int code = zt_spec_parse(from->normalised, strlen(from->normalised), from->run_id, NULL, 0, saved, err);
    if (!code)
        code = zt_spec_resolve(saved, from->world, from->run_id, err);
    *now = *spec;
    now->verbatim = NULL;
    /* where the number of workers is open: as many as before, if that fits, so that only what is given counts */
    bool resolved = !code && zt_spec_resolve(now, workers, file, &quiet) == 0;
    if (!code && !resolved) {
        *now = *spec;
        now->verbatim = NULL;
        resolved = zt_spec_resolve(now, from->world, file, &quiet) == 0;
    }
    if (!code && resolved && zt_resume_check(saved, now, accept, err))
        code = zt_fail_prefix(err, "%s cannot go on from run %s (%s) step %lld", file, from->name, from->run_id, (long long)from->step);
    zt_spec_free(saved);
    free(saved);
    return code;
}

/* ------------------------------------------------------------------------------ the submit itself */
/* Checked again although zctl has: a client of another version, or none of ours, gets the same answer. */
static int check_submit(struct zt_request *q, const char *run_id, struct zt_spec *spec, struct zt_run_config *config, char *name,
                        size_t name_size, struct zt_error *err)
{
    const Zt__Submit *m = q->env->submit;
    const char *bad = bad_submit(m);
    if (bad)
        return zt_fail(err, ZT_EINVAL, "%s", bad);
    if (zt_spec_parse((const char *)m->run_yaml.data, m->run_yaml.len, m->file, (const char *const *)m->overrides,
                      (int)m->n_overrides, spec, err))
        return err->code;
    int code = zt_run_config_from_spec(spec, m->has_workers ? (int)m->workers : 0, m->file, config, err);
    if (!code && q->source.run_id[0] && !q->source.weights_only)
        code = check_resume(&q->source, spec, config->workers, m->has_accept_batch_change && m->accept_batch_change, m->file, err);
    snprintf(config->source.run_id, sizeof config->source.run_id, "%s", q->source.run_id);
    config->source.step = q->source.step;
    config->source.weights_only = q->source.weights_only;
    memcpy(config->source.manifest, q->source.manifest, sizeof config->source.manifest);
    snprintf(name, name_size, "%s", m->name && m->name[0] ? m->name : spec->name);
    if (!code && !zt_run_name_valid(name))
        code = zt_fail(err, ZT_EINVAL, "%s: name: the run has no name: give `name:` in the file", m->file);
    if (!code)
        code = fill_blobs(q, spec, run_id, err);
    zt_spec_free(spec);
    return code;
}

void zt_on_submit(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const char *bad = bad_submit(env->submit);
    if (bad)
        zt_refuse(s, env, ZT_EINVAL, bad);
    else
        zt_readers_submit(sh->readers, s, env); /* comes back in zt_dispatch_submit */
}

void zt_dispatch_submit(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, struct zt_ckpt_source *source, uint64_t read_txn)
{
    struct zt_error err = { 0 };
    struct zt_row_event audit;
    struct zt_run_config config;
    char name[ZT_RUN_NAME_MAX + 1], run_id[ZT_RUN_ID_MAX + 1];
    struct zt_session *s = zt_session_find(sh, session);
    if (!s || !s->peer || sh->stopping)
        return; /* the client is gone and will ask again with the same key, or not */
    struct zt_request *q = zt_request_new(sh, s, env, true, &err);
    struct zt_spec *spec = calloc(1, sizeof *spec);
    if (!q || !spec) {
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        goto refused;
    }
    q->source = *source;
    memset(source, 0, sizeof *source);
    if (make_run_id(run_id, &err) || check_submit(q, run_id, spec, &config, name, sizeof name, &err)) {
        zt_refuse(s, env, err.code, err.msg);
        goto refused;
    }
    zt_audit(sh, &audit, s, "submit", "", "name %s, %zu bytes, spec %s%s%s%s", name, q->run.run_yaml_bytes, q->hash,
             q->env->submit->has_force && q->env->submit->force ? ", forced: its plan fits no worker" : "",
             q->source.run_id[0] ? ", begins from run " : "", q->source.run_id);
    struct zt_event ev = { .kind = ZT_EV_SUBMIT, .request = q->id };
    ev.u.submit.key = q->env->submit->request_key.data;
    ev.u.submit.run_id = run_id;
    ev.u.submit.name = name;
    ev.u.submit.config = &config;
    ev.u.submit.read_txn = read_txn;
    zt_shell_step(sh, &ev, &audit);
    free(spec);
    return;
refused:
    if (q)
        zt_request_end(sh, q->id);
    free(spec);
}
