/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/step_trace.h: the collectives of a step, those of all ranks put side by side: who waited for
 * whom. Clocks of hosts are never compared, only durations: all ranks of a collective leave it together, so
 * the one that was in it for the shortest time came last; its time is the transfer, what another rank took
 * beyond it is waiting.
 *
 * A struct owns its arrays, and borrows the messages it was made from. One thread. */
#ifndef ZT_ZCTL_STEP_TRACE_H
#define ZT_ZCTL_STEP_TRACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"
#include "proto/ztrain.pb-c.h"

struct zt_trace_coll {
    uint32_t rank;
    const Zt__StepTrace *part; /* its words and groups */
    const Zt__TraceRecord *r;
    int64_t took_ns;           /* -1: not over within the step */
    int64_t transfer_ns;       /* -1: not known: the others of its group have not told */
    int64_t wait_ns;           /* took - transfer, -1 where that is not known */
    int32_t waited_for;        /* the rank that came last; -1: none, or not known */
};
struct zt_trace_rank {
    uint32_t rank;
    struct zt_trace_coll *v; size_t n; /* in the order of queueing; in the step's array */
    int64_t step_ns;
    uint64_t dropped;          /* collectives that were not kept */
    bool whole;                /* all parts are here */
    double exposed, stall, waited; /* seconds */
    double held_up;            /* by how much the others' longest waits for it add up */
    size_t came_last;          /* collectives in which the others waited for it */
};
/* Sums are doubles: a hostile trace may say what no integer holds. */
struct zt_step_trace_set {
    struct zt_trace_coll *all; size_t n_all;
    struct zt_trace_rank *ranks; size_t n_ranks; /* ascending */
    size_t mismatched;         /* collectives that ranks of one group describe differently */
};

/* parts: those of one step and generation, by rank and part, each passed by zt_trace_check. */
int zt_trace_set_make(struct zt_step_trace_set *s, Zt__StepTrace *const *parts, size_t n, struct zt_error *err);
void zt_trace_set_free(struct zt_step_trace_set *s);
/* The rank that held up the others for longest; with equal ones the longest step. NULL: no rank at all. */
const struct zt_trace_rank *zt_trace_slowest(const struct zt_step_trace_set *s);

/* One rank's collectives by group and kind, those of `unit` or (NULL) all, in the order of their first one.
 * Returns how many rows; ZT_TRACE_SUMS are enough for what a checked trace of ours has, more are left out. */
struct zt_trace_sum {
    const char *group, *kind;
    bool control;
    size_t count;
    double bytes, sent_bytes;
    double took, exposed, stall, waited; /* seconds; took: sum, overlapping ones count twice */
};
#define ZT_TRACE_SUMS 64
int zt_trace_sums(const struct zt_trace_rank *r, const char *unit, struct zt_trace_sum out[ZT_TRACE_SUMS]);

static inline const char *zt_trace_unit(const struct zt_trace_coll *c) { return c->part->words[c->r->unit]; }
static inline const char *zt_trace_kind(const struct zt_trace_coll *c) { return c->part->words[c->r->kind]; }
static inline const Zt__TraceGroup *zt_trace_group(const struct zt_trace_coll *c) { return c->part->groups[c->r->group]; }
static inline bool zt_trace_control(const struct zt_trace_coll *c) { return c->r->has_control && c->r->control; }

#endif
