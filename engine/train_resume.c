/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_resume.c: what a generation begins from, opened and held against the run: a checkpoint
 * to go on from, or weights alone (checkpoint.load: weights_only, model.init_from). Phase load. Every
 * rank reads for itself; at the end all of them hold what the manifest's hashes are of, or none goes
 * on. Memory and thread rules: train_int.h. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/resume.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/write.h"
#include "engine/train_int.h"

static void tell(const struct zt_trainer *t, enum zt_event_level level, const char *kind,
                 const char *text) {
    if (t->hooks->event) t->hooks->event(t->hooks->arg, level, kind, text);
}

/* FOLDER/step-00001000, or with no step the folder itself. */
static int path_of(const struct zt_checkpoint_config *c, char out[ZT_PATH_MAX + 32],
                   struct zt_error *err) {
    char name[32] = "";
    if (c->resume_step > 0) zt_ckpt_step_name(c->resume_step, name);
    int n = snprintf(out, ZT_PATH_MAX + 32, "%s%s%s", c->resume_folder, name[0] ? "/" : "", name);
    return n < ZT_PATH_MAX + 32 ? 0
                                : zt_fail(err, ZT_EINVAL, "%.80s...: the path is too long",
                                          c->resume_folder);
}

/* No folder of the step: one that this host does not see is the host's fault, one that is gone from a
 * folder that is there is the checkpoint's, and an older one may do. */
static int missing(const struct zt_trainer *t, const struct zt_checkpoint_config *c,
                   struct zt_error *err) {
    const struct zt_sys *sys = zt_load_sys(t);
    int fd = sys->open(sys->arg, c->resume_folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return zt_fail(err, ZT_ENOTFOUND,
                       "%s: this host does not see the run's checkpoints; checkpoint.folder must be "
                       "one that all hosts share",
                       c->resume_folder);
    sys->close(sys->arg, fd);
    return zt_fail(err, ZT_ECORRUPT, "it is not there any more");
}

/* ---- a run that goes on ---- */

/* What the checkpoint was trained under, as far as the run may not differ from it. */
static int check_spec(const struct zt_trainer *t, const struct zt_manifest *m, bool *other_length,
                      struct zt_error *err) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    struct zt_spec *saved = calloc(1, sizeof *saved);
    bool parsed = false;
    int rc = 0;
    if (!saved) TRY(zt_fail(err, ZT_ENOMEM, "loading: no host memory"));
    if (!m->spec || !m->spec[0])
        TRY(zt_fail(err, ZT_EINVAL,
                    "it was imported and has weights alone: begin from it with model.init_from, or "
                    "with checkpoint.load: weights_only"));
    TRY(zt_spec_parse(m->spec, strlen(m->spec), "manifest.json", NULL, 0, saved, err));
    parsed = true;
    TRY(zt_spec_resolve(saved, m->world, "manifest.json", err));
    TRY(zt_resume_check(saved, t->spec, c->accept_batch_change, err));
    *other_length = saved->training.seq_len != t->spec->training.seq_len;
out:
    if (parsed) zt_spec_free(saved);
    free(saved);
    return rc;
}

/* A coordinator tells that and more; without one the trainer does. */
static bool tells(const struct zt_trainer *t) {
    return !t->config->checkpoint || !t->config->checkpoint->loaded;
}

static void tell_resumed(const struct zt_trainer *t, const char *path, double seconds) {
    char text[ZT_PATH_MAX + 200];
    struct zt_cursor at = zt_loader_cursor(t->loader);
    if (t->config->rank != 0 || !tells(t)) return;
    snprintf(text, sizeof text,
             "goes on after step %" PRId64 " of %" PRId64 ", epoch %" PRId64 ", sample %" PRId64
             " of it; loaded from %s in %.2f s",
             t->resumed, t->total_steps, at.epoch, at.consumed, path, seconds);
    tell(t, ZT_EVENT_INFO, "RESUMED", text);
}

int zt_load_acknowledge(const struct zt_trainer *t, int64_t start,
                       const struct zt_tensor_source *s, struct zt_error *err) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    if (!c || !c->loaded || !c->resume_folder) return 0;
    return c->loaded(c->hooks.arg, t->resumed, 1e-9 * (double)(zt_trainer_now(t) - start),
                     s->read_bytes(s->arg, false), s->read_bytes(s->arg, true), err);
}

static int resume(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    char path[ZT_PATH_MAX + 32] = "";
    struct zt_ckpt_open o = {.sys = zt_load_sys(t),
                             .folder = path,
                             .manifest = c->resume_manifest,
                             .memory = c->memory};
    struct zt_ckpt *k = NULL;
    bool other_length = false;
    int64_t start = zt_trainer_now(t);
    int rc = 0;
    TRY(path_of(c, path, err));
    rc = zt_ckpt_open(&o, &k, err);
    if (rc == ZT_ENOTFOUND) rc = missing(t, c, err);
    TRY(rc);
    const struct zt_manifest *m = zt_ckpt_manifest(k);
    struct zt_tensor_source source = zt_ckpt_source(k);
    if (m->position.step != c->resume_step)
        TRY(zt_fail(err, ZT_ECORRUPT, "manifest.json says step %" PRId64, m->position.step));
    TRY(check_spec(t, m, &other_length, err));
    TRY(zt_load_check_tensors(t, m, err));
    TRY(zt_load_position(t, &m->position, other_length, err));
    TRY(zt_load_tensors(t, &source, false, err));
    TRY(zt_load_check_hash(t, m, false, err));
    tell_resumed(t, path, 1e-9 * (double)(zt_trainer_now(t) - start));
    TRY(zt_load_acknowledge(t, start, &source, err));
out:
    if (rc && path[0]) zt_fail_prefix(err, "checkpoint %s", path);
    zt_ckpt_close(k);
    return rc;
}

/* ---- the beginning ---- */

/* model.init_from, where nothing else was said: a folder. A run's name was turned into one by the
 * coordinator. */
static int begin_from(struct zt_trainer *t, struct zt_error *err) {
    const char *from = t->spec->init_from;
    struct zt_load what;
    int rc = from[0] ? zt_init_from_parse(from, &what, err) : 0;
    if (rc) return zt_fail_prefix(err, "model.init_from");
    if (!from[0] || what.kind == ZT_LOAD_FRESH) return 0;
    if (what.kind == ZT_LOAD_RUN)
        return zt_fail(err, ZT_EINVAL,
                       "model.init_from: %s: which folder that is only a coordinator knows; submit "
                       "the run, or give the checkpoint's folder",
                       from);
    return zt_load_weights(t, from, NULL, err);
}

static bool loads(const struct zt_trainer *t) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    return (c && c->resume_folder) || (t->spec->init_from[0] && strcmp(t->spec->init_from, "fresh"));
}

static int load(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    char path[ZT_PATH_MAX + 32];
    int rc = 0;
    if (ZT_FAILPOINT("ckpt.load_begin")) TRY(zt_fail(err, ZT_EIO, "ckpt.load_begin"));
    if (!c || !c->resume_folder)
        TRY(begin_from(t, err));
    else if (!c->weights_only)
        TRY(resume(t, err));
    else {
        TRY(path_of(c, path, err));
        TRY(zt_load_weights(t, path, c->resume_manifest, err));
    }
    if (ZT_FAILPOINT("ckpt.load_end")) TRY(zt_fail(err, ZT_EIO, "ckpt.load_end"));
out:
    return rc;
}

/* A rank that reads from memory waits here for one that reads from a slow disk, as long as a first step
 * may take. */
static void patience(struct zt_trainer *t, bool more) {
    const struct zt_spec *s = t->spec;
    double seconds = s->comm.train_timeout_seconds;
    if (more && s->timeouts.first_step > seconds) seconds = s->timeouts.first_step;
    zt_comm_set_timeout(t->control, seconds);
}

int zt_trainer_load(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_sim *sim = zt_trainer_sim(t);
    if (sim ? sim->from == ZT_SIM_FRESH : !loads(t)) return 0;
    t->stage = ZT_STAGE_LOAD;
    zt_progress_phase(t, ZT_PHASE_LOAD);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_LOAD);
    zt_alloc_reset_peaks(t->alloc);
    patience(t, true);
    int rc = sim ? zt_runtime_set_updates(t->runtime, sim->from == ZT_SIM_RESUMED, err) : load(t, err);
    if (rc == ZT_ECORRUPT && tells(t)) tell(t, ZT_EVENT_ERROR, "CHECKPOINT_CORRUPT", err->msg);
    if (rc) return rc;
    patience(t, false);
    zt_report_window(&t->ledger, t->runtime, &t->load_peak);
    t->stage = ZT_STAGE_RUN;
    return 0;
}
