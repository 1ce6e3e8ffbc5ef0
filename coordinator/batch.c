/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/batch.c: filling a batch (rows.h): copies of all it is given, in one arena. */
#include <stdlib.h>
#include <string.h>
#include "coordinator/rows_internal.h"
#include "proto/trace.h"

struct block { struct block *next; size_t used, cap; _Alignas(16) uint8_t bytes[]; };

struct zt_batch *zt_batch_new(void)
{
    struct zt_batch *b = calloc(1, sizeof *b);
    if (b)
        b->last = &b->first;
    return b;
}

void zt_batch_free(struct zt_batch *b)
{
    if (!b)
        return;
    for (struct block *next; b->blocks; b->blocks = next) {
        next = b->blocks->next;
        free(b->blocks);
    }
    free(b);
}

size_t zt_batch_bytes(const struct zt_batch *b) { return b->bytes; }
size_t zt_batch_changes(const struct zt_batch *b) { return b->changes; }

int zt_batch_error(const struct zt_batch *b, struct zt_error *err)
{
    return b->code ? zt_fail(err, b->code, "%s", b->why) : 0;
}

static void spoil(struct zt_batch *b, int code, const char *why)
{
    if (!b->code) {
        b->code = code;
        b->why = why;
    }
}

static void *take(struct zt_batch *b, size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (!b->blocks || b->blocks->cap - b->blocks->used < n) {
        size_t cap = n > 4096 ? n : 4096;
        struct block *k = malloc(sizeof *k + cap);
        if (!k) {
            spoil(b, ZT_ENOMEM, "out of memory");
            return NULL;
        }
        k->next = b->blocks;
        k->used = 0;
        k->cap = cap;
        b->blocks = k;
        b->bytes += sizeof *k + cap;
    }
    void *p = b->blocks->bytes + b->blocks->used;
    b->blocks->used += n;
    return p;
}

static const void *copy(struct zt_batch *b, const void *from, size_t n)
{
    if (!from)
        return NULL;
    void *p = take(b, n ? n : 1);
    if (p && n)
        memcpy(p, from, n);
    return p;
}

static const char *copy_text(struct zt_batch *b, const char *s)
{
    return s ? copy(b, s, strlen(s) + 1) : NULL;
}

static struct change *add(struct zt_batch *b, enum change_kind kind)
{
    struct change *c = take(b, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->kind = kind;
    *b->last = c;
    b->last = &c->next;
    b->changes++;
    return c;
}

void zt_batch_run(struct zt_batch *b, const struct zt_row_run *row, const struct zt_run_blobs *blobs)
{
    struct change *c = add(b, CH_RUN);
    if (c)
        c->u.run = copy(b, row, sizeof *row);
    if (!blobs || !(c = add(b, CH_SPEC)))
        return;
    c->u.spec.run_id = copy_text(b, row->run_id);
    struct zt_run_blobs *t = &c->u.spec.b;
    *t = *blobs;
    t->run_yaml = copy(b, blobs->run_yaml, blobs->run_yaml_bytes);
    t->file = copy_text(b, blobs->file);
    t->normalised = copy_text(b, blobs->normalised);
    t->hash = copy_text(b, blobs->hash);
    t->mode = copy_text(b, blobs->mode);
    t->overrides = copy_text(b, blobs->overrides);
    t->plan = copy(b, blobs->plan, blobs->plan_bytes);
    t->saves.folder = copy_text(b, blobs->saves.folder);
    t->saves.source_run = copy_text(b, blobs->saves.source_run);
    t->saves.source_name = copy_text(b, blobs->saves.source_name);
    t->saves.source_folder = copy_text(b, blobs->saves.source_folder);
}

void zt_batch_attempt(struct zt_batch *b, const struct zt_row_attempt *row)
{
    struct change *c = add(b, CH_ATTEMPT);
    if (c)
        c->u.attempt = copy(b, row, sizeof *row);
}

void zt_batch_rank(struct zt_batch *b, const struct zt_row_rank *row)
{
    struct change *c = add(b, CH_RANK);
    if (c)
        c->u.rank = copy(b, row, sizeof *row);
}

void zt_batch_failure(struct zt_batch *b, const struct zt_row_failure *row, const struct zt_failure_blobs *blobs)
{
    struct change *c = add(b, CH_FAILURE);
    if (!c)
        return;
    c->u.failure.row = copy(b, row, sizeof *row);
    if (!blobs)
        return;
    c->u.failure.b = *blobs;
    c->u.failure.b.phase = copy_text(b, blobs->phase);
    c->u.failure.b.oom = copy(b, blobs->oom, blobs->oom_bytes);
    c->u.failure.b.last_log = copy(b, blobs->last_log, blobs->last_log_bytes);
}

void zt_batch_worker(struct zt_batch *b, const struct zt_row_worker *row)
{
    struct change *c = add(b, CH_WORKER);
    if (c)
        c->u.worker = copy(b, row, sizeof *row);
}

void zt_batch_key(struct zt_batch *b, const struct zt_row_key *row)
{
    struct change *c = add(b, CH_KEY);
    if (c)
        c->u.key = copy(b, row, sizeof *row);
}

void zt_batch_event(struct zt_batch *b, const struct zt_row_event *row, int64_t seq)
{
    struct change *c = add(b, CH_EVENT);
    if (!c)
        return;
    c->u.event.row = copy(b, row, sizeof *row);
    c->u.event.seq = seq;
}

void zt_batch_steps(struct zt_batch *b, const char *run_id, Zt__StepReport *const *steps, size_t n)
{
    const char *id = copy_text(b, run_id);
    for (size_t i = 0; i < n && id; i++) {
        if (steps[i]->step < 1) {
            spoil(b, ZT_EINVAL, "a step report's step is not positive");
            return;
        }
        struct change *c = add(b, CH_STEP);
        size_t bytes = zt__step_report__get_packed_size(steps[i]);
        uint8_t *packed = take(b, bytes);
        if (!c || !packed)
            return;
        zt__step_report__pack(steps[i], packed);
        c->u.step.run_id = id;
        c->u.step.columns = *steps[i];
        c->u.step.has_init = steps[i]->init_peak != NULL;
        c->u.step.has_eval = steps[i]->eval_peak != NULL;
        c->u.step.has_save = steps[i]->save_peak != NULL;
        c->u.step.has_load = steps[i]->load_peak != NULL;
        c->u.step.packed = packed;
        c->u.step.bytes = bytes;
    }
}

void zt_batch_log(struct zt_batch *b, const char *run_id, uint32_t generation, uint32_t rank, uint64_t offset,
                  bool err, bool end, const void *data, size_t bytes, int64_t at_ms)
{
    if (offset > INT64_MAX / 2 || bytes > INT32_MAX) {
        spoil(b, ZT_EINVAL, "a log piece lies beyond any possible offset");
        return;
    }
    struct change *c = add(b, CH_LOG);
    if (!c)
        return;
    c->u.log.run_id = copy_text(b, run_id);
    c->u.log.generation = generation;
    c->u.log.rank = rank;
    c->u.log.offset = offset;
    c->u.log.err = err;
    c->u.log.end = end;
    c->u.log.data = copy(b, data ? data : "", bytes);
    c->u.log.bytes = bytes;
    c->u.log.at_ms = at_ms;
}

void zt_batch_traces(struct zt_batch *b, const char *run_id, Zt__StepTrace *const *traces, size_t n)
{
    const char *id = copy_text(b, run_id);
    for (size_t i = 0; i < n && id; i++) {
        const char *bad = zt_trace_check(traces[i]);
        if (bad) {
            spoil(b, ZT_EINVAL, bad);
            return;
        }
        struct change *c = add(b, CH_TRACE);
        size_t bytes = zt__step_trace__get_packed_size(traces[i]);
        uint8_t *packed = take(b, bytes);
        if (!c || !packed)
            return;
        zt__step_trace__pack(traces[i], packed);
        c->u.trace.run_id = id;
        c->u.trace.generation = traces[i]->generation;
        c->u.trace.rank = traces[i]->rank;
        c->u.trace.part = traces[i]->part;
        c->u.trace.step = traces[i]->step;
        c->u.trace.packed = packed;
        c->u.trace.bytes = bytes;
    }
}

void zt_batch_dtypes(struct zt_batch *b, const char *run_id, const Zt__DtypesReport *r)
{
    struct change *c = add(b, CH_DTYPES);
    size_t bytes = zt__dtypes_report__get_packed_size(r);
    uint8_t *packed = take(b, bytes);
    if (!c || !packed)
        return;
    zt__dtypes_report__pack(r, packed);
    c->u.dtypes.run_id = copy_text(b, run_id);
    c->u.dtypes.generation = r->generation;
    c->u.dtypes.rank = r->rank;
    c->u.dtypes.packed = packed;
    c->u.dtypes.bytes = bytes;
}

void zt_batch_ckpt(struct zt_batch *b, const struct zt_row_ckpt *row)
{
    struct change *c = add(b, CH_CKPT);
    if (c)
        c->u.ckpt = copy(b, row, sizeof *row);
}

void zt_batch_part(struct zt_batch *b, const struct zt_row_part *row)
{
    struct change *c = add(b, CH_PART);
    if (c)
        c->u.part = copy(b, row, sizeof *row);
}

static void ckpt_change(struct zt_batch *b, enum change_kind kind, const char *run_id, int64_t step, enum zt_ckpt_set what,
                        const char *message)
{
    struct change *c = add(b, kind);
    if (!c)
        return;
    c->u.ckpt_set.run_id = copy_text(b, run_id);
    c->u.ckpt_set.step = step;
    c->u.ckpt_set.what = what;
    c->u.ckpt_set.message = copy_text(b, message);
}

void zt_batch_ckpt_gone(struct zt_batch *b, const char *run_id, int64_t step) { ckpt_change(b, CH_CKPT_GONE, run_id, step, ZT_SET_DELETED, NULL); }

void zt_batch_ckpt_set(struct zt_batch *b, const char *run_id, int64_t step, enum zt_ckpt_set what, const char *message)
{
    ckpt_change(b, CH_CKPT_SET, run_id, step, what, message);
}
