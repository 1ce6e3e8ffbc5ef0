/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rollup.h: one step over all ranks. Pure arithmetic on reports, shared by the writer and tests.
 *   summed:  tokens, tokens_input, tokens_supervised, tokens_padding, sent_bytes; sample_hash mod 2^64
 *   max:     every time, peaks, category_max, persistent, max_unused_reserved, end_of_step, outside;
 *            exposed_by per (group, kind)
 *   global:  loss, grad_norm, lr, global_batch, parameter_hash, state_hash, eval_*: the lowest rank that has it
 *   of the rank with the highest peak (the lowest of equals): phase_of_peak, at_peak, reserved_at_peak
 * A field no rank measured stays absent. */
#ifndef ZT_COORDINATOR_ROLLUP_H
#define ZT_COORDINATOR_ROLLUP_H
#include <stdbool.h>
#include <stddef.h>
#include "proto/ztrain.pb-c.h"

#define ZT_ROLLUP_PAIRS 64 /* (group, kind) pairs kept */

struct zt_rollup {
    Zt__StepReport report; /* points into the reports it was made of and into this struct */
    Zt__TagBytes category_max, persistent;
    Zt__ExposedBy pair[ZT_ROLLUP_PAIRS], *pairs[ZT_ROLLUP_PAIRS];
    size_t ranks;
    bool has_mean_step, has_mean_exposed, has_peak;
    double mean_step_seconds, mean_exposed_comm_seconds, tokens_per_second; /* tokens_per_second < 0: not known */
    uint32_t peak_rank;
};
/* reports: n >= 1, of one step and generation, ascending ranks. `tensor` ranks, neighbours, see the same
 * tokens: the first of them counts. */
void zt_rollup_make(struct zt_rollup *r, Zt__StepReport *const *reports, size_t n, int tensor);

#endif
