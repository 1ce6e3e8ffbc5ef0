/* SPDX-License-Identifier: Apache-2.0 */
/* worker/traces.h: traces of captured steps that the coordinator has not acknowledged, packed, in the order
 * they came, in bounded memory: over the bound the oldest go and are counted. Also how a trace is made of
 * what the engine says.
 * Memory: everything belongs to the struct; a batch belongs to its taker. One thread. */
#ifndef ZT_WORKER_TRACES_H
#define ZT_WORKER_TRACES_H
#include "engine/train.h"
#include "worker/steps.h"

#define ZW_TRACES_MAX ((size_t)8 << 20)

struct zw_trace;
struct zw_traces {
    struct zw_trace *first, *last;
    size_t bytes, max;
    uint64_t dropped;    /* parts of traces, ever */
    int64_t dropped_step; /* the newest step with one */
};
void zw_traces_init(struct zw_traces *t);
void zw_traces_clear(struct zw_traces *t);
int zw_traces_push(struct zw_traces *t, const Zt__StepTrace *s, struct zt_error *err);
/* Takes the oldest out; b->n 0 when there are none. */
void zw_traces_take(struct zw_traces *t, struct zw_batch *b);

/* Calls `part` with each part of a step's trace; what it is given lives for the call. Stops at the first
 * code other than 0. */
int zw_trace_parts(const struct zt_step_trace *t, int (*part)(void *arg, Zt__StepTrace *s, struct zt_error *err),
                   void *arg, struct zt_error *err);

#endif
