/* SPDX-License-Identifier: Apache-2.0 */
/* worker/report.c: struct zt_step_report to Zt__StepReport. Not measured (NAN, negative) = absent, so
 * that nobody reads a zero that nobody measured. No allocation. */
#include <math.h>
#include <string.h>

#include "worker/trainer.h"

#define PUT_DOUBLE(field, value)                                                                         \
    do {                                                                                                 \
        double v_ = (value);                                                                             \
        out->has_##field = !isnan(v_);                                                                   \
        out->field = v_;                                                                                 \
    } while (0)
#define PUT_COUNT(field, value)                                                                          \
    do {                                                                                                 \
        int64_t v_ = (value);                                                                            \
        out->has_##field = v_ >= 0;                                                                      \
        out->field = v_;                                                                                 \
    } while (0)

static void put_tags(Zt__TagBytes *out, const int64_t bytes[ZT_TAG_COUNT])
{
    zt__tag_bytes__init(out);
    PUT_COUNT(parameters, bytes[ZT_TAG_PARAMETERS]);
    PUT_COUNT(gradients, bytes[ZT_TAG_GRADIENTS]);
    PUT_COUNT(optimizer, bytes[ZT_TAG_OPTIMIZER]);
    PUT_COUNT(activations, bytes[ZT_TAG_ACTIVATIONS]);
    PUT_COUNT(temporary, bytes[ZT_TAG_TEMPORARY]);
    PUT_COUNT(communication, bytes[ZT_TAG_COMMUNICATION]);
}

static void put_persistent(Zt__TagBytes *out, int64_t parameters, int64_t gradients, int64_t optimizer)
{
    zt__tag_bytes__init(out);
    PUT_COUNT(parameters, parameters);
    PUT_COUNT(gradients, gradients);
    PUT_COUNT(optimizer, optimizer);
}

static Zt__WindowPeak *put_window(Zt__WindowPeak *out, Zt__TagBytes *at, Zt__TagBytes *persistent,
                                  const struct zt_window_peak *w)
{
    if (w->peak_allocated_bytes < 0) {
        return NULL;
    }
    zt__window_peak__init(out);
    out->peak_allocated_bytes = w->peak_allocated_bytes;
    out->peak_reserved_bytes = w->peak_reserved_bytes;
    out->phase_of_peak = (char *)(uintptr_t)zt_phase_name(w->phase_of_peak);
    put_tags(at, w->at_peak);
    out->at_peak = at;
    put_persistent(persistent, w->persistent[0], w->persistent[1], w->persistent[2]);
    out->persistent = persistent;
    return out;
}

static void put_exposed(struct zw_report_box *box, const struct zt_exposed *e)
{
    Zt__StepReport *out = &box->report;
    PUT_DOUBLE(comm_seconds, e->comm_seconds);
    PUT_DOUBLE(exposed_comm_seconds, e->exposed_comm_seconds);
    PUT_DOUBLE(stall_seconds, e->stall_seconds);
    PUT_DOUBLE(tail_seconds, e->tail_seconds);
    PUT_DOUBLE(idle_seconds, e->idle_seconds);
    PUT_DOUBLE(compute_seconds, e->compute_seconds);
    PUT_DOUBLE(overlapped_seconds, e->overlapped_seconds);
    int n = e->n_by < 0 ? 0 : e->n_by > ZT_EXPOSED_BY_MAX ? ZT_EXPOSED_BY_MAX : e->n_by;
    for (int i = 0; i < n; i++) {
        zt__exposed_by__init(&box->by[i]);
        box->by[i].group = (char *)(uintptr_t)(e->by[i].group ? e->by[i].group : "");
        box->by[i].kind = (char *)(uintptr_t)(e->by[i].kind ? e->by[i].kind : "");
        box->by[i].seconds = e->by[i].seconds;
        box->by_list[i] = &box->by[i];
    }
    out->n_exposed_by = (size_t)n;
    out->exposed_by = box->by_list;
}

static void put_memory(struct zw_report_box *box, const struct zt_step_report *r)
{
    Zt__StepReport *out = &box->report;
    out->phase_of_peak = (char *)(uintptr_t)zt_phase_name(r->phase_of_peak);
    PUT_COUNT(peak_allocated_bytes, r->peak_allocated_bytes);
    PUT_COUNT(peak_reserved_bytes, r->peak_reserved_bytes);
    PUT_COUNT(reserved_at_peak_bytes, r->reserved_at_peak_bytes);
    PUT_COUNT(max_unused_reserved_bytes, r->max_unused_reserved_bytes);
    PUT_COUNT(end_of_step_allocated_bytes, r->end_of_step_allocated_bytes);
    PUT_COUNT(outside_allocator_bytes, r->outside_allocator_bytes);
    put_tags(&box->at_peak, r->at_peak);
    put_tags(&box->category_max, r->category_max);
    put_persistent(&box->persistent, r->persistent_parameters, r->persistent_gradients,
                   r->persistent_optimizer);
    out->at_peak = &box->at_peak;
    out->category_max = &box->category_max;
    out->persistent = &box->persistent;
    out->init_peak = put_window(&box->init, &box->init_at, &box->init_persistent, &r->init);
    out->eval_peak = put_window(&box->eval, &box->eval_at, &box->eval_persistent, &r->eval);
    out->save_peak = put_window(&box->save, &box->save_at, &box->save_persistent, &r->save);
    out->load_peak = put_window(&box->load, &box->load_at, &box->load_persistent, &r->load);
}

static char *dtype(int t)
{
    return t < 0 ? NULL : (char *)(uintptr_t)zt_dtype_name((enum zt_dtype)t);
}

void zw_dtypes_fill(struct zw_dtypes_box *box, const struct zt_dtypes_report *d)
{
    Zt__DtypesReport *out = &box->report;
    zt__dtypes_report__init(out);
    out->rank = (uint32_t)d->rank;
    out->generation = d->generation;
    out->step = d->step;
    out->recipe = (char *)(uintptr_t)d->recipe;
    out->compute = d->compute[0] ? (char *)(uintptr_t)d->compute : NULL;
    out->kernels = d->kernels[0] ? (char *)(uintptr_t)d->kernels : NULL;
    for (int i = 0; i < ZT_ROW_COUNT; i++) {
        Zt__DtypeRow *r = &box->row[i];
        zt__dtype_row__init(r);
        r->what = (char *)(uintptr_t)zt_dtype_row_name((enum zt_dtype_row)i);
        r->configured = dtype(d->row[i].configured);
        r->stored = dtype(d->row[i].stored);
        r->used = dtype(d->row[i].used);
        box->rows[i] = r;
    }
    out->n_rows = ZT_ROW_COUNT;
    out->rows = box->rows;
}

void zw_report_fill(struct zw_report_box *box, const struct zt_step_report *r)
{
    Zt__StepReport *out = &box->report;
    memset(box, 0, sizeof(*box));
    zt__step_report__init(out);
    out->rank = (uint32_t)r->rank;
    out->generation = r->generation;
    out->step = r->step;
    PUT_DOUBLE(loss, r->loss);
    PUT_DOUBLE(local_loss, r->local_loss);
    PUT_DOUBLE(grad_norm, r->grad_norm);
    PUT_DOUBLE(lr, r->lr);
    PUT_DOUBLE(clip_coefficient, r->clip_coefficient);
    PUT_DOUBLE(loss_scale, r->loss_scale);
    out->has_skipped = 1;
    out->skipped = r->skipped;
    PUT_COUNT(skipped_steps, r->skipped_steps);
    PUT_COUNT(nonfinite_gradients, r->nonfinite_gradients);
    PUT_COUNT(tokens, r->tokens);
    PUT_COUNT(tokens_input, r->tokens_input);
    PUT_COUNT(tokens_supervised, r->tokens_supervised);
    PUT_COUNT(tokens_padding, r->tokens_padding);
    PUT_COUNT(global_batch, r->global_batch);
    PUT_DOUBLE(step_seconds, r->step_seconds);
    PUT_DOUBLE(data_seconds, r->data_seconds);
    PUT_DOUBLE(forward_seconds, r->forward_seconds);
    PUT_DOUBLE(backward_seconds, r->backward_seconds);
    PUT_DOUBLE(optimizer_seconds, r->optimizer_seconds);
    PUT_DOUBLE(checkpoint_seconds, r->checkpoint_seconds);
    PUT_DOUBLE(eval_seconds, r->eval_seconds);
    PUT_DOUBLE(straggler_wait_seconds, r->straggler_wait_seconds);
    put_exposed(box, &r->exposed);
    put_memory(box, r);
    PUT_COUNT(sent_bytes, r->sent_bytes);
    if (r->parameter_hash[0]) {
        out->parameter_hash = (char *)(uintptr_t)r->parameter_hash;
    }
    if (r->state_hash[0]) {
        out->state_hash = (char *)(uintptr_t)r->state_hash;
    }
    out->has_sample_hash = 1;
    out->sample_hash = r->sample_hash;
    PUT_DOUBLE(eval_loss, r->eval_loss);
    PUT_COUNT(eval_tokens, r->eval_tokens);
    PUT_COUNT(eval_rows, r->eval_rows);
    out->has_last = out->last = r->last;
}
