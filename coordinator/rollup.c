/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/rollup.h"

#include <string.h>

#define SUM(field)                                                                                          \
    do {                                                                                                    \
        if (in->has_##field) {                                                                              \
            out->field = (out->has_##field ? out->field : 0) + in->field;                                   \
            out->has_##field = 1;                                                                           \
        }                                                                                                   \
    } while (0)
#define MAX(field)                                                                                          \
    do {                                                                                                    \
        if (in->has_##field && (!out->has_##field || in->field > out->field)) {                             \
            out->field = in->field;                                                                         \
            out->has_##field = 1;                                                                           \
        }                                                                                                   \
    } while (0)
#define FIRST(field)                                                                                        \
    do {                                                                                                    \
        if (in->has_##field && !out->has_##field) {                                                         \
            out->field = in->field;                                                                         \
            out->has_##field = 1;                                                                           \
        }                                                                                                   \
    } while (0)

static void max_tags(Zt__TagBytes *out, const Zt__TagBytes *in)
{
    MAX(parameters);
    MAX(gradients);
    MAX(optimizer);
    MAX(activations);
    MAX(temporary);
    MAX(communication);
}

static void add_exposed(struct zt_rollup *r, const Zt__ExposedBy *in)
{
    for (size_t i = 0; i < r->report.n_exposed_by; i++) {
        Zt__ExposedBy *have = r->pairs[i];
        if (strcmp(have->group, in->group) == 0 && strcmp(have->kind, in->kind) == 0) {
            if (in->seconds > have->seconds)
                have->seconds = in->seconds;
            return;
        }
    }
    size_t n = r->report.n_exposed_by;
    if (n == ZT_ROLLUP_PAIRS)
        return; /* groups x kinds are fewer than twenty; a hostile report must not grow us */
    r->pair[n] = *in;
    r->pairs[n] = &r->pair[n];
    r->report.n_exposed_by = n + 1;
}

static void add_tokens(Zt__StepReport *out, const Zt__StepReport *in)
{
    SUM(tokens);
    SUM(tokens_input);
    SUM(tokens_supervised);
    SUM(tokens_padding);
    SUM(sample_hash); /* wraps: a sum mod 2^64 */
}

static void add(struct zt_rollup *r, const Zt__StepReport *in)
{
    Zt__StepReport *out = &r->report;
    SUM(sent_bytes);
    FIRST(loss);
    FIRST(grad_norm);
    FIRST(lr);
    FIRST(clip_coefficient);
    FIRST(loss_scale);
    FIRST(skipped);
    FIRST(skipped_steps);
    FIRST(global_batch);
    FIRST(eval_loss);
    FIRST(eval_tokens);
    FIRST(eval_rows);
    FIRST(last);
    if (in->parameter_hash && !out->parameter_hash)
        out->parameter_hash = in->parameter_hash;
    if (in->state_hash && !out->state_hash)
        out->state_hash = in->state_hash;
    MAX(step_seconds);
    MAX(data_seconds);
    MAX(forward_seconds);
    MAX(backward_seconds);
    MAX(optimizer_seconds);
    MAX(checkpoint_seconds);
    MAX(eval_seconds);
    MAX(comm_seconds);
    MAX(exposed_comm_seconds);
    MAX(stall_seconds);
    MAX(tail_seconds);
    MAX(straggler_wait_seconds);
    MAX(idle_seconds);
    MAX(compute_seconds);
    MAX(overlapped_seconds);
    MAX(peak_reserved_bytes);
    MAX(max_unused_reserved_bytes);
    MAX(end_of_step_allocated_bytes);
    MAX(outside_allocator_bytes);
    for (size_t i = 0; i < in->n_exposed_by; i++)
        add_exposed(r, in->exposed_by[i]);
    if (in->category_max) {
        out->category_max = &r->category_max;
        max_tags(&r->category_max, in->category_max);
    }
    if (in->persistent) {
        out->persistent = &r->persistent;
        max_tags(&r->persistent, in->persistent);
    }
    if (in->has_peak_allocated_bytes && (!r->has_peak || in->peak_allocated_bytes > out->peak_allocated_bytes)) {
        r->has_peak = true;
        r->peak_rank = in->rank;
        out->has_peak_allocated_bytes = 1;
        out->peak_allocated_bytes = in->peak_allocated_bytes;
        out->phase_of_peak = in->phase_of_peak;
        out->at_peak = in->at_peak;
        out->has_reserved_at_peak_bytes = in->has_reserved_at_peak_bytes;
        out->reserved_at_peak_bytes = in->reserved_at_peak_bytes;
    }
}

void zt_rollup_make(struct zt_rollup *r, Zt__StepReport *const *reports, size_t n, int tensor)
{
    memset(r, 0, sizeof *r);
    zt__step_report__init(&r->report);
    zt__tag_bytes__init(&r->category_max);
    zt__tag_bytes__init(&r->persistent);
    r->report.exposed_by = r->pairs;
    r->report.step = reports[0]->step;
    r->report.generation = reports[0]->generation;
    r->ranks = n;
    double step_sum = 0, exposed_sum = 0;
    size_t step_n = 0, exposed_n = 0;
    for (size_t i = 0; i < n; i++) {
        add(r, reports[i]);
        if (reports[i]->rank % (uint32_t)tensor == 0)
            add_tokens(&r->report, reports[i]);
        if (reports[i]->has_step_seconds) {
            step_sum += reports[i]->step_seconds;
            step_n++;
        }
        if (reports[i]->has_exposed_comm_seconds) {
            exposed_sum += reports[i]->exposed_comm_seconds;
            exposed_n++;
        }
    }
    r->report.rank = r->has_peak ? r->peak_rank : reports[0]->rank;
    r->has_mean_step = step_n > 0;
    r->has_mean_exposed = exposed_n > 0;
    r->mean_step_seconds = step_n ? step_sum / (double)step_n : 0;
    r->mean_exposed_comm_seconds = exposed_n ? exposed_sum / (double)exposed_n : 0;
    r->tokens_per_second = r->report.has_tokens && r->report.has_step_seconds && r->report.step_seconds > 0
                               ? (double)r->report.tokens / r->report.step_seconds
                               : -1;
}
