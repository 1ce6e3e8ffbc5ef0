/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/reasons.h: why the runtime's collectives happen, word for word as they stand in the
 * event log and as `zctl explain` prints them. Stable; at most 47 characters (struct
 * zt_coll_record). */
#ifndef ZT_ENGINE_REASONS_H
#define ZT_ENGINE_REASONS_H

/* parameters of a unit that is about to be used ("gather") or comes next ("prefetch") */
#define ZT_WHY_FORWARD "gather for forward"
#define ZT_WHY_FORWARD_AHEAD "prefetch for forward"
#define ZT_WHY_EVAL "gather for evaluation"
#define ZT_WHY_EVAL_AHEAD "prefetch for evaluation"
#define ZT_WHY_BACKWARD "gather for backward: freed after forward"
#define ZT_WHY_BACKWARD_AHEAD "prefetch for backward: freed after forward"
/* reshard_after_forward: m, over the group that keeps the m slices */
#define ZT_WHY_SLICES_FORWARD "gather for forward: kept in slices"
#define ZT_WHY_SLICES_FORWARD_AHEAD "prefetch for forward: kept in slices"
#define ZT_WHY_SLICES_EVAL "gather for evaluation: kept in slices"
#define ZT_WHY_SLICES_EVAL_AHEAD "prefetch for evaluation: kept in slices"
#define ZT_WHY_SLICES_BACKWARD "gather for backward: kept in slices"
#define ZT_WHY_SLICES_BACKWARD_AHEAD "prefetch for backward: kept in slices"
/* parameters that every rank keeps whole, each stepped in part */
#define ZT_WHY_UPDATED "gather what was updated"
/* gradients: every micro-step, or once per window; then over the replicas, where there are any */
#define ZT_WHY_MICRO_STEP "gradients of the micro-step"
#define ZT_WHY_MICRO_STEP_REPLICAS "gradients of the micro-step, over the replicas"
#define ZT_WHY_WINDOW "gradients of the window"
#define ZT_WHY_WINDOW_REPLICAS "gradients of the window, over the replicas"
/* over the tensor group: a rank has seen a part of the rows, or of the heads, that a norm or a row
 * bias is for */
#define ZT_WHY_PARTIAL "gradients of parts, over the tensor group"

#endif
