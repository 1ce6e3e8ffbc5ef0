/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_window.c: a window of micro-batches, and the probe at the unit boundaries. Memory
 * and thread rules: train_int.h. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/train_int.h"

/* Of the micro-batches held so far nothing is kept: it grows before a window's first. */
static int grow(struct zt_window *w, int64_t micros, bool starts, bool weights,
                struct zt_error *err) {
    if (micros <= w->capacity_micros) return 0;
    int64_t *rows = realloc(w->rows, (size_t)micros * sizeof *rows);
    if (rows) w->rows = rows;
    size_t ids = (size_t)(micros * w->capacity_rows) * sizeof *w->ids;
    zt_row_free(&w->all);
    free(w->ids);
    w->ids = malloc(ids ? ids : 1);
    w->capacity_micros = 0;
    if (!rows || !w->ids || !zt_row_alloc(&w->all, micros * w->capacity_rows, w->seq_len, starts, weights))
        return zt_fail(err, ZT_ENOMEM, "window of %lld micro-batches: no host memory",
                       (long long)micros);
    w->capacity_micros = micros;
    return 0;
}

static void put(struct zt_window *w, const struct zt_micro_batch *b) {
    size_t n = (size_t)(b->rows * w->seq_len);
    struct zt_row to = zt_row_at(&w->all, w->micros * w->capacity_rows * w->seq_len);
    memcpy(to.tokens, b->all.tokens, n * sizeof *to.tokens);
    memcpy(to.targets, b->all.targets, n * sizeof *to.targets);
    if (to.starts) memcpy(to.starts, b->all.starts, n * sizeof *to.starts);
    if (to.weights) {
        memcpy(to.weights, b->all.weights, n * sizeof *to.weights);
        zt_fixsum_add_floats(&w->weight, to.weights, n);
    }
    memcpy(w->ids + w->micros * w->capacity_rows, b->sample_ids, (size_t)b->rows * sizeof *w->ids);
    w->rows[w->micros++] = b->rows;
    w->total_rows += b->rows;
    w->input_tokens += (int64_t)n;
    w->padding_tokens += b->all.padding;
    for (size_t i = 0; i < n; i++) w->valid_tokens += to.targets[i] != -1;
}

static void empty(struct zt_window *w, int64_t local_batch, int64_t seq_len) {
    w->seq_len = seq_len;
    w->capacity_rows = local_batch;
    w->micros = w->total_rows = w->input_tokens = w->valid_tokens = w->padding_tokens = 0;
    zt_fixsum_zero(&w->weight);
}

int zt_window_load(struct zt_window *w, struct zt_loader *l, int64_t local_batch, int64_t seq_len,
                   struct zt_error *err) {
    struct zt_micro_batch b;
    int rc = 0;
    empty(w, local_batch, seq_len);
    do {
        if ((rc = zt_loader_next(l, &b, err))) return rc;
        if (b.rows > local_batch || b.micro != w->micros)
            return zt_fail(err, ZT_EINTERNAL, "loader gave %lld rows as micro-batch %lld of %lld",
                           (long long)b.rows, (long long)b.micro, (long long)b.window_micros);
        if ((rc = grow(w, b.window_micros, b.all.starts, b.all.weights, err))) return rc;
        put(w, &b);
    } while (w->micros < b.window_micros);
    return 0;
}

int zt_window_simulate(struct zt_window *w, int64_t micros, int64_t local_batch, int64_t seq_len,
                       struct zt_error *err) {
    empty(w, 0, seq_len); /* every micro-batch "is" at the start of an empty array */
    int rc = grow(w, micros, true, true, err);
    if (rc) return rc;
    w->micros = micros;
    for (int64_t i = 0; i < micros; i++) w->rows[i] = local_batch;
    w->total_rows = micros * local_batch;
    w->input_tokens = w->valid_tokens = w->total_rows * seq_len;
    zt_fixsum_add(&w->weight, (double)w->valid_tokens);
    return 0;
}

void zt_window_free(struct zt_window *w) {
    zt_row_free(&w->all);
    free(w->rows);
    free(w->ids);
    memset(w, 0, sizeof *w);
}

uint64_t zt_window_sample_hash(const struct zt_window *w, int dp_index, int dp_size) {
    uint64_t sum = 0;
    int64_t before = 0;
    for (int64_t m = 0; m < w->micros && w->capacity_rows > 0; m++)
        for (int64_t r = 0; r < w->rows[m]; r++, before++) {
            const int64_t word[2] = {before * dp_size + dp_index, w->ids[m * w->capacity_rows + r]};
            sum += XXH3_64bits(word, sizeof word);
        }
    return sum;
}

double zt_window_weight(const struct zt_window *w) {
    return w->all.weights ? zt_fixsum_value(&w->weight) : (double)w->valid_tokens;
}

/* Sums that do not depend on the order of the ranks, nor on how the rows lie on them. */
int zt_window_total(const struct zt_window *w, bool speaks, struct zt_comm *control,
                    struct zt_stream *compute, int64_t step, struct zt_window_total *total,
                    struct zt_error *err) {
    struct zt_coll_why why = {"", "valid tokens of the window", step, true};
    int64_t words[ZT_FIXSUM_WORDS + 1] = {0};
    struct zt_fixsum sum;
    if (speaks) {
        memcpy(words, w->weight.word, sizeof w->weight.word);
        words[ZT_FIXSUM_WORDS] = w->valid_tokens;
    }
    int rc = zt_all_reduce(control, words, ZT_FIXSUM_WORDS + 1, ZT_I64, ZT_SUM, compute, &why, err);
    if (rc) return rc;
    memcpy(sum.word, words, sizeof sum.word);
    zt_fixsum_normalise(&sum);
    total->valid = words[ZT_FIXSUM_WORDS];
    total->weight = w->all.weights ? zt_fixsum_value(&sum) : (double)total->valid;
    return 0;
}

int zt_trainer_feed(struct zt_trainer *t, const struct zt_row *from, int64_t rows, int64_t before,
                    struct zt_batch *b, struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(t->device);
    struct zt_stream *compute = zt_device_compute(t->device);
    const struct zt_row *to = &t->feed;
    int rc = 0;
    /* Every rank in turn is dealt a sample. */
    *b = (struct zt_batch){.tokens = to->tokens,
                           .targets = to->targets,
                           .B = rows,
                           .T = t->spec->training.seq_len,
                           .weights = to->weights,
                           .starts = to->starts,
                           .first_sample = before * t->dp_size + t->dp_index,
                           .sample_stride = t->dp_size,
                           .step = t->step};
    size_t bytes = (size_t)(b->B * b->T) * sizeof *to->tokens; /* a float is as large */
    TRY(dev->copy(compute, to->tokens, from->tokens, bytes, err));
    TRY(dev->copy(compute, to->targets, from->targets, bytes, err));
    if (to->starts) TRY(dev->copy(compute, to->starts, from->starts, bytes, err));
    if (to->weights) TRY(dev->copy(compute, to->weights, from->weights, bytes, err));
out:
    return rc;
}

/* ---- probe ---- */

static int64_t now(const struct zt_probe *p) { return zt_device_ops(p->device)->now_ns(p->device); }

/* Ends the running compute segment: from here on the runtime works or waits. */
static int64_t leave_compute(struct zt_probe *p) {
    if (p->intervals->off && !p->progress) return p->mark_ns;
    int64_t t = now(p);
    struct zt_interval iv = {
        p->mark_ns, t, ZT_IV_COMPUTE, NULL, p->backward ? "backward" : "forward", false};
    if (t > p->mark_ns && zt_intervals_add(p->intervals, iv)) p->failed = true;
    if (p->progress) atomic_store(&p->progress->last_progress_ns, t);
    return t;
}

static void enter_compute(struct zt_probe *p) {
    if (!p->intervals->off || p->progress) p->mark_ns = now(p);
}

static int probe_forward_begin(void *arg, int unit, struct zt_unit_view *v, struct zt_error *err) {
    struct zt_probe *p = arg;
    leave_compute(p);
    int rc = p->inner.forward_begin(p->inner.arg, unit, v, err);
    enter_compute(p);
    return rc;
}

static int probe_forward_end(void *arg, int unit, struct zt_error *err) {
    struct zt_probe *p = arg;
    leave_compute(p);
    int rc = p->inner.forward_end(p->inner.arg, unit, err);
    enter_compute(p);
    return rc;
}

static int probe_backward_begin(void *arg, int unit, struct zt_unit_view *v, struct zt_error *err) {
    struct zt_probe *p = arg;
    int64_t t = leave_compute(p);
    if (!p->backward) { /* the first of the micro-step: the loss is done */
        p->backward = true;
        p->forward_ns += t - p->begin_ns;
        p->begin_ns = t;
        if (p->progress) atomic_store(&p->progress->phase, ZT_PHASE_BACKWARD);
    }
    int rc = p->inner.backward_begin(p->inner.arg, unit, v, err);
    enter_compute(p);
    return rc;
}

static int probe_parameters_done(void *arg, int unit, struct zt_error *err) {
    struct zt_probe *p = arg;
    leave_compute(p);
    int rc = p->inner.parameters_done(p->inner.arg, unit, err);
    enter_compute(p);
    return rc;
}

static int probe_backward_end(void *arg, int unit, struct zt_error *err) {
    struct zt_probe *p = arg;
    leave_compute(p);
    int rc = p->inner.backward_end(p->inner.arg, unit, err);
    enter_compute(p);
    return rc;
}

struct zt_unit_source zt_probe_source(struct zt_probe *p) {
    return (struct zt_unit_source){p,
                                   probe_forward_begin,
                                   probe_forward_end,
                                   probe_backward_begin,
                                   probe_parameters_done,
                                   probe_backward_end};
}

void zt_probe_busy(void *arg, bool computing) {
    struct zt_probe *p = arg;
    if (p->running && !computing) leave_compute(p);
    if (computing && zt_runtime_queued(p->runtime, NULL)) p->failed = true;
    if (p->running && computing) enter_compute(p);
}

void zt_probe_step(struct zt_probe *p) { p->forward_ns = p->backward_ns = 0; }

void zt_probe_begin(struct zt_probe *p) {
    p->backward = p->failed = false;
    p->running = true;
    p->mark_ns = p->begin_ns = now(p);
}

/* Nothing is computed after the last unit's end: a segment here would only hide the tail. */
int zt_probe_end(struct zt_probe *p, struct zt_error *err) {
    int64_t t = now(p);
    p->running = false;
    *(p->backward ? &p->backward_ns : &p->forward_ns) += t - p->begin_ns;
    return p->failed ? zt_fail(err, ZT_ENOMEM, "step intervals: no host memory") : 0;
}
