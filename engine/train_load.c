/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_load.c: what is stored into the trainer, before its first step: tensors from any source
 * into the lasting buffers of this rank, whatever mode, mesh and recipe it has and whoever wrote them;
 * where training stood. The device gets no byte beyond what init allocated (but for moments under
 * state_init lazy, which the first update would allocate); the host a buffer of LOAD_BUFFER beside the
 * source's own. Opening what is stored is train_resume.c. Thread rule: the trainer thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train_int.h"

#define LOAD_BUFFER ((int64_t)4 << 20)

struct load {
    struct zt_trainer *t;
    const struct zt_tensor_source *source;
    bool weights; /* parameters alone; the kind that counts is read, whatever is stored here */
    char *buffer;
};

/* ---- tensors ---- */

static bool has(const struct load *l, const struct zt_tensor_def *d, enum zt_saved kind) {
    return l->source->has(l->source->arg, d->name, kind);
}

/* What a stored parameter is read from. Of a run that goes on the stored copy is there in the same
 * format; else it is the nearest to the value that counts. */
static enum zt_saved parameter_of(const struct load *l, const struct zt_tensor_def *d) {
    return l->weights && has(l, d, ZT_SAVED_MASTER) ? ZT_SAVED_MASTER : ZT_SAVED_PARAMETER;
}

static bool is_adapter(const struct zt_tensor_def *d) {
    return d->piece == ZT_LORA_A || d->piece == ZT_LORA_B;
}

/* Into the buffer of kind `into`, from the stored kind `from`. */
static int fill(struct load *l, const struct zt_state_piece *p, enum zt_saved into,
                enum zt_saved from, struct zt_error *err) {
    struct zt_trainer *t = l->t;
    const struct zt_device_ops *dev = zt_device_ops(t->device);
    struct zt_stream *compute = zt_device_compute(t->device);
    const struct zt_tensor_def *d = &t->table.tensors[p->tensor];
    const enum zt_dtype type = p->type[into];
    const int64_t size = (int64_t)zt_dtype_size(type);
    int rc = 0;
    for (int64_t at = 0, n; at < p->count; at += n) {
        struct zt_span span = p->span;
        span.at += at;
        n = p->count - at < LOAD_BUFFER / size ? p->count - at : LOAD_BUFFER / size;
        TRY(l->source->read(l->source->arg, d->name, from, d->ndim, d->whole, span, n, type,
                            l->buffer, err));
        TRY(dev->copy(compute, (char *)p->at[into] + at * size, l->buffer, (size_t)(n * size),
                      err));
        TRY(dev->stream_sync(compute, err)); /* the buffer is written again */
        zt_progress_phase(t, ZT_PHASE_LOAD);
    }
out:
    return rc;
}

/* All that this rank stores of the parameters; an adapter that is not there stays as it was drawn. */
static int load_parameters(struct load *l, struct zt_error *err) {
    for (struct zt_state_piece p = {0}; zt_runtime_stored_next(l->t->runtime, &p);) {
        const struct zt_tensor_def *d = &l->t->table.tensors[p.tensor];
        const enum zt_saved from = parameter_of(l, d);
        if (l->weights && is_adapter(d) && !has(l, d, from)) continue;
        int rc = fill(l, &p, ZT_SAVED_PARAMETER, from, err);
        if (rc) return rc;
    }
    return 0;
}

/* Of what this rank owns, the kind where there is a buffer for it. Moments are there before the first
 * update too, as zeros, and need not be stored then. */
static int load_owned(struct load *l, enum zt_saved kind, struct zt_error *err) {
    for (struct zt_state_piece p = {0}; zt_runtime_owned_next(l->t->runtime, &p);) {
        const struct zt_tensor_def *d = &l->t->table.tensors[p.tensor];
        enum zt_saved from = kind;
        if (!p.at[kind]) continue;
        if (l->weights) from = parameter_of(l, d);
        if (l->weights && is_adapter(d) && !has(l, d, from)) continue;
        if (!has(l, d, from) && kind != ZT_SAVED_MASTER && zt_runtime_updates(l->t->runtime) == 0)
            continue;
        if (!has(l, d, from))
            return zt_fail(err, ZT_ECORRUPT,
                           "%s%s is not in the checkpoint: training cannot go on from zeros in its "
                           "place",
                           d->name, zt_saved_suffix(from));
        int rc = fill(l, &p, kind, from, err);
        if (rc) return rc;
    }
    return 0;
}

int zt_load_tensors(struct zt_trainer *t, const struct zt_tensor_source *source, bool weights,
                    struct zt_error *err) {
    struct load l = {t, source, weights, malloc((size_t)LOAD_BUFFER)};
    int rc = 0;
    if (!l.buffer) TRY(zt_fail(err, ZT_ENOMEM, "loading: no host memory"));
    TRY(load_parameters(&l, err));
    TRY(load_owned(&l, ZT_SAVED_MASTER, err));
    for (int k = ZT_SAVED_M; !weights && k < ZT_SAVED_COUNT; k++)
        TRY(load_owned(&l, (enum zt_saved)k, err));
out:
    free(l.buffer);
    return rc;
}

/* ---- names and shapes ---- */

static const struct zt_saved_tensor *find_saved(const struct zt_manifest *m, const char *name) {
    for (int i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i].name, name)) return &m->tensors[i];
    return NULL;
}

static bool in_table(const struct zt_model_table *t, const char *name) {
    for (int i = 0; i < t->n_tensors; i++)
        if (!strcmp(t->tensors[i].name, name)) return true;
    return false;
}

/* The first tensor of the checkpoint that the model does not have, NULL: none. */
static const char *unknown_tensor(const struct zt_trainer *t, const struct zt_manifest *m) {
    for (int i = 0; i < m->n_tensors; i++)
        if (!in_table(&t->table, m->tensors[i].name)) return m->tensors[i].name;
    return NULL;
}

static int same_tensor(const struct zt_tensor_def *d, const struct zt_saved_tensor *s,
                       struct zt_error *err) {
    if (s->ndim != d->ndim || memcmp(s->shape, d->whole, sizeof s->shape))
        return zt_fail(err, ZT_EINVAL,
                       "%s is %" PRId64 " x %" PRId64 " in the checkpoint, %" PRId64 " x %" PRId64
                       " in the model",
                       d->name, s->shape[0], s->shape[1], d->whole[0], d->whole[1]);
    if (s->frozen != d->frozen)
        return zt_fail(err, ZT_EINVAL,
                       "%s %s in the checkpoint and %s now; what is trained cannot change when a "
                       "run goes on",
                       d->name, s->frozen ? "was frozen" : "was trained",
                       d->frozen ? "is frozen" : "is trained");
    if (s->number != d->number)
        return zt_fail(err, ZT_EINVAL, "%s is tensor %u in the checkpoint, %u in the model",
                       d->name, s->number, d->number);
    return 0;
}

int zt_load_check_tensors(const struct zt_trainer *t, const struct zt_manifest *m,
                          struct zt_error *err) {
    const char *extra = unknown_tensor(t, m);
    for (int i = 0; i < t->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &t->table.tensors[i];
        const struct zt_saved_tensor *s = find_saved(m, d->name);
        if (!s)
            return zt_fail(err, ZT_EINVAL, "%s is not in the checkpoint%s%s%s", d->name,
                           extra ? ", which has " : "", extra ? extra : "",
                           extra ? ", a tensor the model has not" : "");
        int rc = same_tensor(d, s, err);
        if (rc) return rc;
    }
    if (extra)
        return zt_fail(err, ZT_EINVAL, "the checkpoint has %s, a tensor the model has not", extra);
    return 0;
}

/* ---- where training stood ---- */

/* The cursor means samples of one data set. With another length of sequences (which the user has
 * accepted) the next epoch begins. */
static int load_cursor(struct zt_trainer *t, const struct zt_position *p, bool other_length,
                       struct zt_error *err) {
    struct zt_cursor at = p->cursor;
    const int64_t samples = zt_dataset_samples(t->train_set);
    if (other_length)
        at = (struct zt_cursor){at.epoch + (at.consumed > 0), 0};
    else if (p->epoch_samples != samples || p->data_digest != zt_dataset_digest(t->train_set))
        return zt_fail(err, ZT_EDATA,
                       "%s: other files than those the checkpoint was trained on (%" PRId64
                       " samples now, %" PRId64 " then; or names or lengths differ): a run that "
                       "goes on must find its data as they were. To train its weights on other "
                       "data start a new run with model.init_from",
                       t->spec->dataset.path, samples, p->epoch_samples);
    if (at.epoch < 0 || at.consumed < 0 || at.consumed >= samples)
        return zt_fail(err, ZT_ECORRUPT,
                       "the checkpoint's place in the data is sample %" PRId64 " of %" PRId64
                       " in epoch %" PRId64,
                       at.consumed, samples, at.epoch);
    return zt_trainer_open_loader(t, at, err);
}

static int load_length(struct zt_trainer *t, const struct zt_position *p, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    t->total_steps =
        s->training.epochs ? p->step + zt_loader_windows_left(t->loader) : s->training.steps;
    if (p->step > t->total_steps)
        return zt_fail(err, ZT_EINVAL,
                       "training.steps: %" PRId64 ", but the checkpoint is of step %" PRId64
                       "; give more steps, or an older checkpoint",
                       t->total_steps, p->step);
    t->schedule = zt_spec_schedule(s, t->total_steps);
    return 0;
}

static int load_scaler(struct zt_trainer *t, const struct zt_position *p, struct zt_error *err) {
    if (p->scaled != (t->recipe->scaled != 0))
        return zt_fail(err, ZT_ECORRUPT, "the checkpoint %s a loss scale, recipe %s %s one",
                       p->scaled ? "has" : "lacks", t->recipe->name,
                       t->recipe->scaled ? "needs" : "has not");
    if (!p->scaled) return 0;
    t->scaler.scale = p->scale;
    t->scaler.good = p->scale_good;
    t->scaler.hysteresis_left = p->scale_hysteresis_left;
    return 0;
}

int zt_load_position(struct zt_trainer *t, const struct zt_position *p, bool other_length,
                     struct zt_error *err) {
    int rc = 0;
    if (p->step < 1 || p->updates < 0 || p->skipped < 0 || p->updates + p->skipped != p->step)
        TRY(zt_fail(err, ZT_ECORRUPT,
                    "the checkpoint's step %" PRId64 " has %" PRId64 " updates and %" PRId64
                    " skipped",
                    p->step, p->updates, p->skipped));
    TRY(load_scaler(t, p, err));
    TRY(load_cursor(t, p, other_length, err));
    TRY(load_length(t, p, err));
    TRY(zt_runtime_set_updates(t->runtime, p->updates, err));
    t->resumed = p->step;
    t->skipped = p->skipped;
    t->tokens = p->tokens;
out:
    return rc;
}

/* ---- what was loaded ---- */

/* Of ranks that own the same one speaks. */
int zt_trainer_state_hash(struct zt_trainer *t, struct zt_hash128 *global, struct zt_error *err) {
    struct zt_coll_why why = {"", "state hash", t->step, true};
    const struct zt_coords c = zt_mesh_coords(t->mesh, t->config->rank);
    const bool cut = zt_policy(t->spec->parallelism.mode)->shard_optimizer;
    struct zt_hash128 own, *all = calloc((size_t)t->config->world, sizeof *all);
    int rc = 0;
    *global = (struct zt_hash128){0, 0};
    if (!all) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    TRY(zt_runtime_state_hash(t->runtime, &own, NULL, err));
    if (c.replicate || (!cut && c.shard)) own = (struct zt_hash128){0, 0};
    TRY(zt_all_gather(t->control, &own, all, sizeof own / sizeof(int64_t), ZT_I64,
                      zt_device_compute(t->device), &why, err));
    for (int i = 0; i < t->config->world; i++) zt_hash128_add(global, all[i]);
out:
    free(all);
    return rc;
}

/* Every rank comes here. A difference is a fault of what was stored or of who cut it, never of the
 * mesh: both hashes are of logical elements. */
int zt_load_check_hash(struct zt_trainer *t, const struct zt_manifest *m, bool weights,
                       struct zt_error *err) {
    struct zt_hash128 parameters, state;
    char stored[33], loaded[33];
    int rc = 0;
    TRY(zt_trainer_check_hash(t, &parameters, err));
    zt_hash_text(m->parameter_hash, stored);
    zt_hash_text(parameters, loaded);
    if (strcmp(stored, loaded))
        TRY(zt_fail(err, ZT_ECORRUPT,
                    "the parameters of step %" PRId64 " have hash %s; as they were loaded, %s",
                    m->position.step, stored, loaded));
    if (weights) goto out;
    TRY(zt_trainer_state_hash(t, &state, err));
    zt_hash_text(m->state_hash, stored);
    zt_hash_text(state, loaded);
    if (strcmp(stored, loaded))
        TRY(zt_fail(err, ZT_ECORRUPT,
                    "the moments of step %" PRId64 " have hash %s; as they were loaded, %s",
                    m->position.step, stored, loaded));
out:
    return rc;
}
