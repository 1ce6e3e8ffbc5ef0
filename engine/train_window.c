/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_window.c: a window of micro-batches, and the probe at the unit boundaries. Memory
 * and thread rules: train_int.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/train_int.h"

static int grow(struct zt_window *w, int64_t micros, struct zt_error *err) {
    if (micros <= w->capacity_micros) return 0;
    size_t n = (size_t)micros * (size_t)w->capacity_rows * (size_t)w->seq_len;
    if (!n) n = 1;
    int32_t *tokens = realloc(w->tokens, n * sizeof *tokens);
    if (tokens) w->tokens = tokens;
    int32_t *targets = realloc(w->targets, n * sizeof *targets);
    if (targets) w->targets = targets;
    int64_t *rows = realloc(w->rows, (size_t)micros * sizeof *rows);
    if (rows) w->rows = rows;
    if (!tokens || !targets || !rows)
        return zt_fail(err, ZT_ENOMEM, "window of %lld micro-batches: no host memory",
                       (long long)micros);
    w->capacity_micros = micros;
    return 0;
}

static void put(struct zt_window *w, const struct zt_micro_batch *b) {
    size_t n = (size_t)(b->rows * w->seq_len);
    size_t at = (size_t)(w->micros * w->capacity_rows * w->seq_len);
    memcpy(w->tokens + at, b->tokens, n * sizeof *w->tokens);
    memcpy(w->targets + at, b->targets, n * sizeof *w->targets);
    w->rows[w->micros++] = b->rows;
    w->total_rows += b->rows;
    w->input_tokens += (int64_t)n;
    for (size_t i = 0; i < n; i++) w->valid_tokens += b->targets[i] != -1;
}

int zt_window_load(struct zt_window *w, struct zt_loader *l, int64_t local_batch, int64_t seq_len,
                   struct zt_error *err) {
    struct zt_micro_batch b;
    int rc = 0;
    w->seq_len = seq_len;
    w->capacity_rows = local_batch;
    w->micros = w->total_rows = w->input_tokens = w->valid_tokens = 0;
    do {
        if ((rc = zt_loader_next(l, &b, err))) return rc;
        if (b.rows > local_batch || b.micro != w->micros)
            return zt_fail(err, ZT_EINTERNAL, "loader gave %lld rows as micro-batch %lld of %lld",
                           (long long)b.rows, (long long)b.micro, (long long)b.window_micros);
        if ((rc = grow(w, b.window_micros, err))) return rc;
        put(w, &b);
    } while (w->micros < b.window_micros);
    return 0;
}

int zt_window_simulate(struct zt_window *w, int64_t micros, int64_t local_batch, int64_t seq_len,
                       struct zt_error *err) {
    w->seq_len = seq_len;
    w->capacity_rows = 0; /* every micro-batch "is" at the start of an empty array */
    int rc = grow(w, micros, err);
    if (rc) return rc;
    w->micros = micros;
    for (int64_t i = 0; i < micros; i++) w->rows[i] = local_batch;
    w->total_rows = micros * local_batch;
    w->input_tokens = w->valid_tokens = w->total_rows * seq_len;
    return 0;
}

void zt_window_free(struct zt_window *w) {
    free(w->tokens);
    free(w->targets);
    free(w->rows);
    memset(w, 0, sizeof *w);
}

int zt_window_valid(const struct zt_window *w, bool counts_static, int dp_size,
                    struct zt_comm *control, struct zt_stream *compute, int64_t step,
                    int64_t *global, struct zt_error *err) {
    struct zt_coll_why why = {"", "valid tokens of the window", step, true};
    *global = w->valid_tokens;
    if (counts_static) {
        *global *= dp_size;
        return 0;
    }
    return zt_all_reduce(control, global, 1, ZT_I64, ZT_SUM, compute, &why, err);
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
    return (struct zt_unit_source){p, probe_forward_begin, probe_forward_end, probe_backward_begin,
                                   probe_parameters_done, probe_backward_end};
}

void zt_probe_step(struct zt_probe *p) { p->forward_ns = p->backward_ns = 0; }

void zt_probe_begin(struct zt_probe *p) {
    p->backward = p->failed = false;
    p->mark_ns = p->begin_ns = now(p);
}

/* Nothing is computed after the last unit's end: a segment here would only hide the tail. */
int zt_probe_end(struct zt_probe *p, struct zt_error *err) {
    int64_t t = now(p);
    *(p->backward ? &p->backward_ns : &p->forward_ns) += t - p->begin_ns;
    return p->failed ? zt_fail(err, ZT_ENOMEM, "step intervals: no host memory") : 0;
}
