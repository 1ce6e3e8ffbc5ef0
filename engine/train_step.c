/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_step.c: one optimizer step of one rank: window, micro-steps, one control message,
 * update. Memory and thread rules: train_int.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/train_int.h"

/* What every rank says about its window, once per step, before the update. */
enum word { W_LOSS = 0, W_VALID = ZT_FIXSUM_WORDS, W_ROWS, W_INPUT, W_COMM_NS, W_STOP, W_SAVING, W_COUNT };
_Static_assert((int)W_COUNT <= ZT_CONTROL_WORDS, "control message");

struct totals {
    struct zt_fixsum loss;
    int64_t valid, rows, least_comm_ns;
    bool stop, saving;
};

static int exchange(struct zt_trainer *t, const struct zt_fixsum *loss, int64_t comm_ns,
                    struct totals *all, struct zt_error *err) {
    struct zt_coll_why why = {"", "loss, counts and waits of the step", t->step, true};
    int64_t own[W_COUNT];
    memcpy(own, loss->word, sizeof loss->word);
    own[W_VALID] = t->window.valid_tokens;
    own[W_ROWS] = t->window.total_rows;
    own[W_INPUT] = t->window.input_tokens;
    own[W_COMM_NS] = comm_ns;
    own[W_STOP] = t->hooks->stop && t->hooks->stop(t->hooks->arg);
    own[W_SAVING] = zt_trainer_save_busy(t);
    int rc = zt_all_gather(t->control, own, t->words, W_COUNT, ZT_I64, zt_device_compute(t->device),
                           &why, err);
    if (rc) return rc;
    *all = (struct totals){.least_comm_ns = INT64_MAX};
    for (int i = 0; i < t->config->world; i++) {
        const int64_t *w = t->words + (ptrdiff_t)i * W_COUNT;
        if (w[W_COMM_NS] < all->least_comm_ns) all->least_comm_ns = w[W_COMM_NS];
        all->stop |= w[W_STOP] != 0;
        all->saving |= w[W_SAVING] != 0;
        /* Tensor ranks see the same data; the first of them speaks for it. */
        if (zt_mesh_coords(t->mesh, i).tensor != 0) continue;
        struct zt_fixsum s;
        memcpy(s.word, w, sizeof s.word);
        zt_fixsum_merge(&all->loss, &s);
        all->valid += w[W_VALID];
        all->rows += w[W_ROWS];
    }
    return 0;
}

/* Forward and backward of the window's micro-batches. */
static int micro_steps(struct zt_trainer *t, double scale, struct zt_fixsum *loss, int64_t *valid,
                       struct zt_error *err) {
    const struct zt_window *w = &t->window;
    struct zt_unit_source source = zt_probe_source(&t->probe);
    int64_t before = 0;
    int rc = 0;
    for (int64_t i = 0; i < w->micros; i++) {
        struct zt_row from = zt_row_at(&w->all, i * w->capacity_rows * w->seq_len);
        struct zt_batch b;
        if (t->config->progress) atomic_store(&t->config->progress->micro, i);
        zt_progress_phase(t, ZT_PHASE_FORWARD);
        TRY(zt_trainer_feed(t, &from, w->rows[i], before, &b, err));
        before += w->rows[i];
        TRY(zt_runtime_micro_begin(t->runtime, i, i == w->micros - 1, err));
        zt_probe_begin(&t->probe);
        TRY(zt_model_step(t->model, &source, &b, (float)scale, true, false, loss, valid, err));
        TRY(zt_probe_end(&t->probe, err));
    }
out:
    return rc;
}

/* Counts are static when no target can be masked: every data-parallel rank has as many as this one,
 * and no message is needed. Of a simulated window all count, whatever is said. */
static int window_total(struct zt_trainer *t, struct zt_window_total *total, struct zt_error *err) {
    const struct zt_window *w = &t->window;
    if (!t->counts_static) {
        bool speaks = zt_mesh_coords(t->mesh, t->config->rank).tensor == 0;
        int rc = zt_window_total(w, speaks, t->control, zt_device_compute(t->device), t->step,
                                 total, err);
        if (rc || !zt_trainer_sim(t)) return rc;
    }
    total->valid = w->valid_tokens * t->dp_size;
    total->weight = (double)total->valid;
    return 0;
}

/* Loads the next window that has a token to learn from. */
static int next_window(struct zt_trainer *t, struct zt_window_total *total, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    if (zt_trainer_sim(t)) {
        int rc = zt_window_simulate(&t->window, zt_spec_accumulation(s),
                                    s->training.local_batch_size, s->training.seq_len, err);
        return rc ? rc : window_total(t, total, err);
    }
    for (;;) {
        int rc = zt_window_load(&t->window, t->loader, s->training.local_batch_size,
                                s->training.seq_len, err);
        if (rc == 0) rc = window_total(t, total, err);
        if (rc || total->valid > 0) return rc;
        if (t->hooks->event)
            t->hooks->event(t->hooks->arg, ZT_EVENT_WARNING, "WINDOW_SKIPPED",
                            "every target of the window is masked on every rank: skipped");
    }
}

static void report_loss(struct zt_trainer *t, const struct zt_fixsum *own, int64_t comm_ns,
                        const struct zt_window_total *total, const struct totals *all) {
    struct zt_step_report *r = &t->report;
    const struct zt_window *w = &t->window;
    r->loss = zt_fixsum_value(&all->loss) / total->weight;
    if (w->valid_tokens) r->local_loss = zt_fixsum_value(own) / zt_window_weight(w);
    r->tokens = r->tokens_supervised = w->valid_tokens;
    r->tokens_input = w->input_tokens;
    r->tokens_padding = w->padding_tokens;
    r->global_batch = all->rows;
    r->straggler_wait_seconds = 1e-9 * (double)(comm_ns - all->least_comm_ns);
}

/* A skipped step is told when their number has doubled, so that many of them do not fill the log.
 */
static void tell_skipped(const struct zt_trainer *t, double scale) {
    const struct zt_step_report *r = &t->report;
    char text[256];
    if (!t->hooks->event || t->config->rank != 0 || (r->skipped_steps & (r->skipped_steps - 1)))
        return;
    int n =
        snprintf(text, sizeof text,
                 "step %lld: the %s not finite; no parameter was changed (skipped so far: %lld)",
                 (long long)r->step, isfinite(r->loss) ? "gradients are" : "loss is",
                 (long long)r->skipped_steps);
    if (!isnan(scale))
        snprintf(text + n, sizeof text - (size_t)n, ", loss scale %g, next %g", scale,
                 t->scaler.scale);
    t->hooks->event(t->hooks->arg, t->recipe->scaled ? ZT_EVENT_INFO : ZT_EVENT_WARNING,
                    "STEP_SKIPPED", text);
}

/* A scale that falls is told with the step that was skipped for it. */
static void tell_grown(const struct zt_trainer *t, double before) {
    char text[128];
    if (!t->hooks->event || t->config->rank != 0 || !(t->scaler.scale > before)) return;
    snprintf(text, sizeof text, "step %lld: loss scale %g -> %g after %lld good steps in a row",
             (long long)t->step, before, t->scaler.scale, (long long)t->scaler.interval);
    t->hooks->event(t->hooks->arg, ZT_EVENT_INFO, "SCALE_CHANGED", text);
}

/* The loss does not carry the loss scale, so one that is not finite is never the scaler's doing. A
 * gradient that is not finite is, until the scale has come down to 1. */
static int update(struct zt_trainer *t, struct zt_error *err) {
    struct zt_step_report *r = &t->report;
    bool skip = t->spec->precision.nonfinite == ZT_NONFINITE_SKIP, scaled = t->recipe->scaled;
    struct zt_update u = {.lr = zt_schedule_lr(&t->schedule, zt_runtime_updates(t->runtime)),
                          .loss_scale = scaled ? t->scaler.scale : 0,
                          .skip_nonfinite =
                              skip || (scaled && !zt_loss_scaler_exhausted(&t->scaler)),
                          .skip = !isfinite(r->loss)};
    int rc = 0;
    int64_t start = zt_trainer_now(t);
    if (u.skip && !skip) /* every rank has the same sum, so all of them stop here */
        TRY(zt_fail(err, ZT_ENAN,
                    "step %lld: the loss is not finite; no parameter was changed. Lower "
                    "optimizer.lr, look at the data of this step, or set precision.nonfinite: skip",
                    (long long)t->step));
    zt_progress_phase(t, ZT_PHASE_OPTIMIZER);
    TRY(zt_runtime_update(t->runtime, &u, err));
    TRY(zt_runtime_collect(t->runtime, err));
    if (scaled) {
        zt_loss_scaler_update(&t->scaler, u.skipped);
        tell_grown(t, u.loss_scale);
    }
    t->skipped += u.skipped;
    r->lr = u.lr;
    r->grad_norm = u.grad_norm;
    r->clip_coefficient = u.clip_coefficient;
    r->nonfinite_gradients = u.nonfinite_gradients;
    r->loss_scale = scaled ? u.loss_scale : NAN;
    r->skipped = u.skipped;
    r->skipped_steps = t->skipped;
    if (u.skipped) tell_skipped(t, r->loss_scale);
    r->optimizer_seconds = 1e-9 * (double)(zt_trainer_now(t) - start);
out:
    return rc;
}

int zt_trainer_step(struct zt_trainer *t, struct zt_error *err) {
    struct zt_step_report *r = &t->report;
    struct zt_fixsum loss;
    struct totals all;
    struct zt_window_total total = {0, 0};
    int64_t counted = 0, comm_ns = 0, start = zt_trainer_now(t);
    double scale = t->recipe->scaled ? t->scaler.scale : 1.0;
    int rc = 0;
    zt_fixsum_zero(&loss);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_FORWARD); /* else data that fails does so in "eval" */
    zt_intervals_begin_step(&t->intervals, start);
    t->intervals.off = t->config->unmeasured;
    zt_probe_step(&t->probe);
    TRY(next_window(t, &total, err));
    r->sample_hash = zt_window_sample_hash(&t->window, t->dp_index, t->dp_size);
    r->data_seconds = 1e-9 * (double)(zt_trainer_now(t) - start);
    TRY(zt_runtime_window_begin(t->runtime, t->step, err));
    TRY(micro_steps(t, scale / total.weight, &loss, &counted, err));
    TRY(zt_runtime_wait_gradients(t->runtime, err));
    TRY(zt_runtime_collect(t->runtime, err));
    if (zt_intervals_comm_ns(&t->intervals, INT64_MAX, &comm_ns))
        TRY(zt_fail(err, ZT_ENOMEM, "step intervals: no host memory"));
    TRY(exchange(t, &loss, comm_ns, &all, err));
    if (counted != t->window.valid_tokens || all.valid != total.valid)
        TRY(zt_fail(err, ZT_EINTERNAL, "step %lld: %lld tokens were counted, %lld announced",
                    (long long)t->step, (long long)all.valid, (long long)total.valid));
    report_loss(t, &loss, comm_ns, &total, &all);
    TRY(update(t, err));
    t->stop = all.stop;
    t->saving = all.saving;
    t->tokens += all.valid;
    int64_t end = zt_trainer_now(t);
    if (zt_intervals_finish(&t->intervals, end, &r->exposed))
        TRY(zt_fail(err, ZT_ENOMEM, "step intervals: no host memory"));
    r->step_seconds = 1e-9 * (double)(end - start);
    r->forward_seconds = 1e-9 * (double)t->probe.forward_ns;
    r->backward_seconds = 1e-9 * (double)t->probe.backward_ns;
    r->sent_bytes = zt_runtime_sent_bytes(t->runtime);
out:
    return rc;
}
