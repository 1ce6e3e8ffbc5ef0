/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_json.h: a plan (engine/plan/plan.h) as the JSON that is stored with a run and printed by
 * the commands that plan. Field names are stable (docs/manual.md); what is not known is null. Reads no file.
 * Each function returns a new object of the caller's. One thread. */
#ifndef ZT_ZCTL_PLAN_JSON_H
#define ZT_ZCTL_PLAN_JSON_H
#include <jansson.h>
#include "engine/plan/plan.h"

#define ZT_PLAN_JSON_VERSION 1

/* {parameters, gradients, optimizer, activations, temporary, communication}: bytes by tag. */
/* Where a simulated run ran out of memory. */
json_t *zt_plan_json_oom(const struct zt_oom *m, int64_t step);
json_t *zt_plan_json_tags(const int64_t bytes[ZT_TAG_COUNT]);
/* {peak_allocated_bytes, peak_reserved_bytes, phase_of_peak, at_peak{}, persistent_bytes{}}: what stands under
 * `predicted` beside `measured`. */
json_t *zt_plan_json_window(const struct zt_window_peak *w);
/* The whole plan of one capacity:
 *   version device capacity_bytes outside_bytes fits oom{} peak_allocated_bytes peak_reserved_bytes peak_window
 *   phase_of_peak at_peak{} persistent_bytes{} shapes[{rank, dp_from, dp_to, windows{init{}, ...}}] parameters
 *   trainable workers data_parallel accumulation global_batch tokens_per_step total_steps total_tokens
 *   step_seconds_estimate forward_seconds_estimate backward_seconds_estimate optimizer_seconds_estimate
 *   exposed_comm_seconds_estimate tokens_per_second_estimate flops_per_token sent_bytes_per_step
 * Windows that do not occur are left out; without details (schedule, spans, curve). capacity_bytes <= 0 in p, or
 * ZT_PLAN_NO_LIMIT and more: null, and so is fits. */
#define ZT_PLAN_NO_LIMIT ((int64_t)1 << 50)
json_t *zt_plan_json(const struct zt_plan *p, const struct zt_cost_device *device);
/* [{rank, window, predicted{}}], ranks in order, for every rank of the world. */
json_t *zt_plan_json_ranks(const struct zt_plan *p);
/* A row of a comparison of modes: {mode, fits, peak_allocated_bytes, peak_reserved_bytes, phase_of_peak, at_peak{},
 * persistent_bytes{}, sent_bytes_per_step, step_seconds_estimate, exposed_comm_seconds_estimate,
 * tokens_per_second_estimate}; p NULL: the mode cannot take the run, all null but `why`. */
json_t *zt_plan_json_mode(const char *mode, const struct zt_plan *p, const char *why);
/* [{seconds_estimate, phase, what, allocated_bytes, reserved_bytes, by_tag{}}]: the steady step, a point for every
 * change; empty without details. */
json_t *zt_plan_json_curve(const struct zt_plan *p);

#endif
