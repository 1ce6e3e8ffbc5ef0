/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/save.c: one rank's saves, one at a time: the copy on the trainer thread, the rest on the
 * writer's. Ownership and thread rules: save.h.
 *
 *   trainer   IDLE --zt_saver_copy--> COPIED --zt_saver_write--> WRITING           IDLE ...
 *   writer                                                       | write_part        ^
 *                                                                | publish (rank 0)  |
 *                                                                +-------------------+
 *
 * `state`, `quit` and the notes are under `lock`; the buffer, the position and `previous` belong to the
 * trainer while IDLE or COPIED and to the writer while WRITING. */
#include "engine/checkpoint/save.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/checkpoint/stage.h"
#include "engine/report.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

#define NOTES 8            /* that nobody has heard yet; more than a save has */
#define WAIT_NS 200000000L /* between two looks at a writer that is waited for, and of a patient one */
#define AGAIN_NS INT64_C(1000000000)

enum state { SAVE_IDLE = 0, SAVE_COPIED, SAVE_WRITING };

struct zt_saver {
    struct zt_saver_config c;
    struct zt_checkpoint_config k; /* *c.checkpoint, zero on a simulated device */
    const struct zt_sys *sys;
    struct stage stage;
    struct zt_position position; /* of the copy */
    int copied;                  /* 0, or why there is none, with `fault` */
    struct zt_error fault;
    double stall_seconds;
    int64_t patient_until; /* CLOCK_MONOTONIC: a disk that fails is tried again until then */
    struct zt_sha256 previous; /* manifest of the checkpoint before; zero: none */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;
    bool quit, tried_again;
    _Atomic bool abandoned, waited_for, asking; /* asking: inside a hook, which may take any time */
    struct zt_save_note note[NOTES];
    int n_notes;
};

/* ---- notes, progress ---- */

static void tell(struct zt_saver *s, const char *kind, bool warning, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void tell(struct zt_saver *s, const char *kind, bool warning, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&s->lock);
    if (s->n_notes < NOTES) {
        struct zt_save_note *n = &s->note[s->n_notes++];
        snprintf(n->kind, sizeof n->kind, "%s", kind);
        n->warning = warning;
        vsnprintf(n->text, sizeof n->text, fmt, ap);
    }
    pthread_mutex_unlock(&s->lock);
    va_end(ap);
}

bool zt_saver_note(struct zt_saver *s, struct zt_save_note *out) {
    pthread_mutex_lock(&s->lock);
    bool any = s->n_notes > 0;
    if (any) {
        *out = s->note[0];
        memmove(s->note, s->note + 1, (size_t)--s->n_notes * sizeof *s->note);
    }
    pthread_mutex_unlock(&s->lock);
    return any;
}

static void touch(void *arg) {
    struct zt_saver *s = arg;
    if (s->c.progress)
        atomic_store(&s->c.progress->last_progress_ns, s->sys->monotonic_ns(s->sys->arg));
}

/* While training goes on the step loop speaks for itself: a writer that is busy must not hide that it
 * hangs. */
static bool on_progress(void *arg, int64_t bytes) {
    struct zt_saver *s = arg;
    (void)bytes;
    if (atomic_load(&s->waited_for)) touch(s);
    return !atomic_load(&s->abandoned);
}

/* ---- the copy ---- */

static struct zt_save_who who(const struct zt_saver *s) {
    struct zt_save_who w = {s->c.spec, s->c.table, zt_runtime_layout(s->c.runtime), s->c.mesh,
                            false};
    for (int g = 0; g < w.layout->n_groups; g++)
        if (zt_runtime_owned(s->c.runtime, g, ZT_SAVED_V)) w.moments = true;
    return w;
}

static bool simulated(const struct zt_saver *s) { return !zt_device_has_memory(s->c.device); }

static int copy(struct zt_saver *s, struct zt_error *err) {
    const struct zt_save_who w = who(s);
    char why[512];
    int rc = 0;
    if (simulated(s)) return stage_simulate(&w, s->c.rank, s->c.runtime, s->c.device, err);
    if (ZT_FAILPOINT("ckpt.copy")) TRY(zt_fail(err, ZT_EIO, "planted fault ckpt.copy"));
    TRY(stage_build(&s->stage, &w, s->c.rank, s->k.memory, why, sizeof why, err));
    if (why[0]) tell(s, "MEMORY_COPY_SKIPPED", true, "%s", why);
    TRY(stage_copy(&s->stage, s->c.runtime, s->c.rank, s->c.device, touch, s, err));
out:
    return rc;
}

void zt_saver_copy(struct zt_saver *s, const struct zt_position *p) {
    ZT_ASSERT(!zt_saver_busy(s));
    s->position = *p;
    s->fault = (struct zt_error){0};
    s->copied = copy(s, &s->fault);
    if (simulated(s)) return;
    pthread_mutex_lock(&s->lock);
    s->state = SAVE_COPIED;
    pthread_mutex_unlock(&s->lock);
}

int64_t zt_saver_host_bytes(const struct zt_saver *s) { return s->stage.layout.bytes; }

/* ---- the writer: this rank's part ---- */

/* Free space for the whole checkpoint and a fifth more, before anything is written. */
static int check_space(struct zt_saver *s, bool *disk_full, struct zt_error *err) {
    int64_t model = zt_save_model_bytes(&s->stage.parts), need = model + model / 5;
    int64_t free_bytes = zt_ckpt_free_bytes(s->sys, s->k.folder);
    if (free_bytes < 0 || free_bytes >= need) return 0;
    *disk_full = true;
    return zt_fail(err, ZT_EIO,
                   "%s: %lld bytes are free, a checkpoint of this run takes %lld and a fifth more is "
                   "kept free; make room, or lower checkpoint.keep_latest_k",
                   s->k.folder, (long long)free_bytes, (long long)model);
}

/* After a failure of the disk: true, a moment later, while there is patience left. */
static bool again(struct zt_saver *s, int rc, const struct zt_error *why) {
    int64_t now = s->sys->monotonic_ns(s->sys->arg), next = now + AGAIN_NS;
    if (rc != ZT_EIO || next > s->patient_until) return false;
    if (!s->tried_again)
        tell(s, "CHECKPOINT_RETRIED", true, "step %lld: %s; it is the last: tried again for %lld s",
             (long long)s->position.step, why->msg,
             (long long)((s->patient_until - now) / 1000000000));
    s->tried_again = true;
    for (; now < next && !atomic_load(&s->abandoned); now = s->sys->monotonic_ns(s->sys->arg)) {
        nanosleep(&(struct timespec){0, WAIT_NS}, NULL);
        touch(s);
    }
    return !atomic_load(&s->abandoned);
}

static int write_part(struct zt_saver *s, struct zt_shard_done *d, bool *disk_full,
                      struct zt_error *err) {
    const struct zt_save_parts *p = &s->stage.parts;
    struct zt_shard_write w = {.sys = s->sys,
                               .folder = s->k.folder,
                               .step = s->position.step,
                               .generation = s->c.generation,
                               .rank = s->c.rank,
                               .tensors = p->tensors,
                               .n_tensors = p->n_tensors,
                               .pieces = p->pieces,
                               .n_pieces = p->n_pieces,
                               .progress = on_progress,
                               .arg = s,
                               .memory = s->stage.memory};
    struct zt_shard_written written;
    int rc = s->copied;
    if (rc) {
        if (err) *err = s->fault;
        return rc;
    }
    do {
        *disk_full = false;
        rc = s->c.rank == 0 ? check_space(s, disk_full, err) : 0;
        if (rc == 0) rc = zt_shard_write(&w, &written, disk_full, err);
    } while (again(s, rc, err));
    TRY(rc);
    *d = (struct zt_shard_done){.rank = s->c.rank,
                                .step = s->position.step,
                                .bytes = written.bytes,
                                .index = written.index,
                                .parameter_hash = written.parameter_hash,
                                .state_hash = written.state_hash,
                                .stall_seconds = s->stall_seconds,
                                .write_seconds = written.seconds};
out:
    return rc;
}

/* ---- the writer of rank 0: the whole ---- */

static void describe(const struct zt_saver *s, struct zt_manifest *m) {
    const struct zt_spec *spec = s->c.spec;
    snprintf(m->run_id, sizeof m->run_id, "%s", s->k.run_id ? s->k.run_id : "");
    snprintf(m->run_name, sizeof m->run_name, "%s", s->k.run_name ? s->k.run_name : spec->name);
    snprintf(m->version, sizeof m->version, "%s", s->k.version ? s->k.version : "");
    snprintf(m->recipe, sizeof m->recipe, "%s", spec->precision.recipe);
    snprintf(m->mode, sizeof m->mode, "%s", zt_mode_name(spec->parallelism.mode));
    snprintf(m->config_hash, sizeof m->config_hash, "%s", spec->normalised_hash);
    m->generation = s->c.generation;
    m->world = zt_mesh_world(s->c.mesh);
    m->replicate = s->c.mesh.replicate;
    m->shard = s->c.mesh.shard;
    m->tensor = s->c.mesh.tensor;
    m->position = s->position;
    m->n_tensors = s->stage.parts.n_tensors;
    m->tensors = s->stage.parts.tensors;
    m->previous = s->previous;
    m->created_ms = s->sys->wall_ns(s->sys->arg) / 1000000;
}

/* Sums over the ranks' parts. */
static int64_t add_up(const struct zt_shard_done *all, struct zt_manifest *m) {
    int64_t bytes = 0;
    for (int i = 0; i < m->world; i++) {
        m->ranks[i] = (struct zt_manifest_rank){all[i].bytes, all[i].index};
        zt_hash128_add(&m->parameter_hash, all[i].parameter_hash);
        zt_hash128_add(&m->state_hash, all[i].state_hash);
        bytes += all[i].bytes;
    }
    return bytes;
}

/* What retention lets go. It comes again with the next commit when it fails here. */
static void remove_old(struct zt_saver *s, const int64_t *step, int n) {
    const struct zt_save_hooks *h = &s->k.hooks;
    for (int i = 0; i < n && !atomic_load(&s->abandoned); i++) {
        struct zt_error why = {0};
        int rc = zt_ckpt_remove(s->sys, s->k.folder, step[i], &why);
        if (rc == 0 && h->removed) rc = h->removed(h->arg, step[i], &why);
        if (rc && rc != ZT_ECANCELLED)
            tell(s, "CHECKPOINT_NOT_REMOVED", true, "step %lld: %s", (long long)step[i], why.msg);
    }
}

static int commit(struct zt_saver *s, struct zt_commit *c, struct zt_error *err) {
    const struct zt_save_hooks *h = &s->k.hooks;
    int64_t *old = NULL;
    int n = 0, rc = 0;
    if (!h->commit) {
        tell(s, c->adopted ? "CHECKPOINT_ADOPTED" : "CHECKPOINT_COMMITTED", false,
             "step %lld, %lld bytes", (long long)c->step, (long long)c->bytes);
    } else {
        if (ZT_FAILPOINT("ckpt.before_commit"))
            TRY(zt_fail(err, ZT_EIO, "planted fault ckpt.before_commit"));
        TRY(h->commit(h->arg, c, &old, &n, err));
        (void)ZT_FAILPOINT("ckpt.after_commit");
    }
    s->previous = c->manifest;
    remove_old(s, old, n);
out:
    free(old);
    return rc;
}

static int publish(struct zt_saver *s, const struct zt_shard_done *own, bool *disk_full,
                   struct zt_error *err) {
    const struct zt_save_hooks *h = &s->k.hooks;
    struct zt_manifest m = {.spec = NULL};
    struct zt_commit c = {.step = s->position.step, .folder = s->k.folder};
    int rc = 0;
    describe(s, &m);
    struct zt_shard_done *all = calloc((size_t)m.world, sizeof *all);
    m.ranks = calloc((size_t)m.world, sizeof *m.ranks);
    m.spec = zt_spec_normalise(s->c.spec);
    if (!all || !m.ranks || !m.spec) TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
    all[0] = *own;
    if (h->shards) TRY(h->shards(h->arg, c.step, all, m.world, err));
    c.bytes = add_up(all, &m);
    do {
        *disk_full = false;
        rc = zt_ckpt_publish(s->sys, s->k.folder, &m, &c.manifest, &c.adopted, disk_full, err);
    } while (again(s, rc, err));
    TRY(rc);
    c.parameter_hash = m.parameter_hash;
    c.state_hash = m.state_hash;
    TRY(commit(s, &c, err));
out:
    free(m.spec);
    free(m.ranks);
    free(all);
    return rc;
}

/* ---- the writer's thread ---- */

static int tell_done(struct zt_saver *s, const struct zt_shard_done *d, struct zt_error *err) {
    const struct zt_save_hooks *h = &s->k.hooks;
    if (ZT_FAILPOINT("ckpt.shard_done"))
        return zt_fail(err, ZT_EIO, "planted fault ckpt.shard_done");
    return h->shard_done ? h->shard_done(h->arg, d, err) : 0;
}

/* Somebody else's failure, or the end of this rank, is not told again. */
static void tell_failed(struct zt_saver *s, int rc, bool disk_full, const struct zt_error *why) {
    const struct zt_save_hooks *h = &s->k.hooks;
    if (rc == ZT_ECANCELLED || rc == ZT_ECONFLICT || rc == ZT_EUNREACHABLE) return;
    if (h->failed)
        h->failed(h->arg, s->position.step, disk_full, why->msg, NULL);
    else
        tell(s, "CHECKPOINT_FAILED", true, "step %lld: %s; training goes on",
             (long long)s->position.step, why->msg);
}

static void save(struct zt_saver *s) {
    struct zt_shard_done done = {0};
    struct zt_error why = {0};
    bool disk_full = false;
    int rc = write_part(s, &done, &disk_full, &why);
    bool off = rc != 0; /* nobody can publish this step any more */
    atomic_store(&s->asking, true);
    if (rc == 0) {
        rc = tell_done(s, &done, &why);
        off = rc == ZT_ECANCELLED && !atomic_load(&s->abandoned);
    }
    if (rc == 0 && s->c.rank == 0) rc = publish(s, &done, &disk_full, &why);
    if (rc) tell_failed(s, rc, disk_full, &why);
    /* Also by a rank that was late: rank 0 may have cleared up before it began. One whose part may have
     * been taken leaves the folder alone: rank 0 may be publishing it. */
    if (rc && (s->c.rank == 0 || off))
        (void)zt_ckpt_discard(s->sys, s->k.folder, s->position.step, s->c.generation, NULL);
    atomic_store(&s->asking, false);
}

static void *writer(void *arg) {
    struct zt_saver *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->state != SAVE_WRITING && !s->quit) pthread_cond_wait(&s->changed, &s->lock);
        if (s->state != SAVE_WRITING) break;
        pthread_mutex_unlock(&s->lock);
        save(s);
        pthread_mutex_lock(&s->lock);
        s->state = SAVE_IDLE;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The thread takes no signals: they belong to the trainer's own threads. */
static int start_writer(struct zt_saver *s, struct zt_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->thread, NULL, writer, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return zt_fail(err, ZT_EBUSY, "the checkpoint writer's thread could not be started: %s",
                       strerror(rc));
    pthread_setname_np(s->thread, "zt-save");
    s->started = true;
    return 0;
}

/* ---- the trainer's side ---- */

static int check(const struct zt_saver_config *c, struct zt_error *err) {
    const struct zt_checkpoint_config *k = c->checkpoint;
    if (!zt_device_has_memory(c->device)) return 0;
    if (!k || !k->folder || !k->folder[0])
        return zt_fail(err, ZT_EINVAL, "checkpoint: this run saves, and no folder was given");
    if (zt_mesh_world(c->mesh) > 1 &&
        (!k->hooks.shard_done || !k->hooks.shards || !k->hooks.commit || !k->hooks.failed))
        return zt_fail(err, ZT_EINVAL,
                       "checkpoint: %d ranks save, and they have no way to tell each other",
                       zt_mesh_world(c->mesh));
    return 0;
}

int zt_saver_create(const struct zt_saver_config *c, struct zt_saver **out, struct zt_error *err) {
    pthread_condattr_t a;
    *out = NULL;
    int rc = check(c, err);
    if (rc) return rc;
    struct zt_saver *s = calloc(1, sizeof *s);
    if (!s) return zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory");
    s->c = *c;
    if (c->checkpoint) s->k = *c->checkpoint;
    s->sys = s->k.sys ? s->k.sys : &zt_sys_posix;
    if (s->k.resume_manifest && !s->k.weights_only) s->previous = *s->k.resume_manifest;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &a);
    pthread_condattr_destroy(&a);
    if (!simulated(s)) rc = start_writer(s, err);
    if (rc) {
        zt_saver_destroy(s, true);
        return rc;
    }
    *out = s;
    return 0;
}

bool zt_saver_busy(struct zt_saver *s) {
    pthread_mutex_lock(&s->lock);
    bool busy = s->state == SAVE_WRITING;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

void zt_saver_write(struct zt_saver *s, double stall_seconds, double patience_seconds) {
    pthread_mutex_lock(&s->lock);
    if (s->state == SAVE_COPIED) {
        s->stall_seconds = stall_seconds;
        s->patient_until = s->sys->monotonic_ns(s->sys->arg) + (int64_t)(patience_seconds * 1e9);
        s->tried_again = false;
        s->state = SAVE_WRITING;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The wait is seen as progress while the writer waits for the coordinator, which may be away; its work on
 * the disk speaks for itself, so that a disk that hangs is found. */
void zt_saver_wait(struct zt_saver *s) {
    atomic_store(&s->waited_for, true);
    pthread_mutex_lock(&s->lock);
    while (s->state == SAVE_WRITING) {
        struct timespec t;
        if (atomic_load(&s->asking)) touch(s);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += WAIT_NS;
        t.tv_sec += t.tv_nsec / 1000000000L;
        t.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&s->changed, &s->lock, &t);
    }
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->waited_for, false);
}

void zt_saver_destroy(struct zt_saver *s, bool abandon) {
    if (!s) return;
    if (abandon && s->started && zt_saver_busy(s)) {
        atomic_store(&s->abandoned, true);
        if (s->k.hooks.cancel) s->k.hooks.cancel(s->k.hooks.arg);
    }
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    stage_free(&s->stage);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
