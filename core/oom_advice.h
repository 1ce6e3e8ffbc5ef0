/* SPDX-License-Identifier: Apache-2.0 */
/* core/oom_advice.h: from the place where memory ran out to what fills memory there and what helps. One
 * table; the line is a function of the arguments alone. Constant data; any thread. */
#ifndef ZT_CORE_OOM_ADVICE_H
#define ZT_CORE_OOM_ADVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a report of an out-of-memory says. Words are those of the reports; NULL or "": not told. */
struct zt_oom_site {
    const char *phase, *tag; /* phase: init, forward, ...; tag: what the request was for */
    int64_t step;            /* in progress, 1 = first of its generation; 0: before it; -1: not told */
    bool fragmentation;      /* enough was reserved, in pieces too small (the allocator's word) */
    bool one_rank;           /* others of the same shape had room: this one was given less memory */
    int64_t request, reserved, allocated;
    int64_t capacity, needs; /* needs: allocated peak of the plan without a limit; either 0: not told */
    int64_t parameters, gradients, optimizer, activations, temporary, communication; /* live then */
};

enum zt_oom_place {
    ZT_OOM_AT_INIT = 0, ZT_OOM_AT_FORWARD_ACTIVATIONS, ZT_OOM_AT_FORWARD_STATE, ZT_OOM_AT_BACKWARD_ACTIVATIONS,
    ZT_OOM_AT_BACKWARD_STATE, ZT_OOM_AT_OPTIMIZER, ZT_OOM_AT_EVAL, ZT_OOM_AT_SAVE, ZT_OOM_AT_LOAD,
    ZT_OOM_GROWN, ZT_OOM_ONE_RANK, ZT_OOM_FRAGMENTED, ZT_OOM_PLACE_COUNT
};
struct zt_oom_line {
    const char *where;   /* "backward, activations most of it" */
    const char *holds;   /* what memory is full of there */
    const char *change;  /* what helps, the cheapest first; keys of the run file by name */
};

/* A share of the reserved memory that is free in too small pieces is always there; from this much on it is what to
 * look at first: 1/8. */
#define ZT_OOM_CUT_UP 8
/* Steps of a generation from the third on repeat the second: what they lack room for has grown. */
#define ZT_OOM_GROWN_STEP 3

enum zt_oom_place zt_oom_place_of(const struct zt_oom_site *s);
const struct zt_oom_line *zt_oom_line(enum zt_oom_place p);
/* "backward, activations most of it: HOLDS; what helps: CHANGE". */
const char *zt_oom_text(const struct zt_oom_site *s, char *buf, size_t n);

#endif
