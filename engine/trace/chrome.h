/* SPDX-License-Identifier: Apache-2.0 */
/* engine/trace/chrome.h: what one rank did in a step as a file for trace viewers: the JSON trace
 * event format, which chrome://tracing and ui.perfetto.dev open, with the names and arguments by
 * which profilers' analysers (HTA and its kind) tell communication from computation:
 *
 *   cat "kernel", name ncclDevKernel_...   a collective of the data: what exposed time is made of
 *   cat "kernel", any other name           computation
 *   cat "gpu_memcpy"                       a copy
 *   other cats                             control traffic, waits, phases, and around each collective
 *                                          the unit it is for and why: neither of them
 *
 * Process = rank, thread = stream. Times are nanoseconds of one clock, of any origin, and are written
 * in microseconds without rounding. Slices of one thread lie apart or one inside the other, if the
 * streams' own intervals lie apart.
 *
 * The caller owns the file, the struct and every string; a call only writes. Errors of writing are
 * told at the end. One thread. */
#ifndef ZT_ENGINE_CHROME_H
#define ZT_ENGINE_CHROME_H
#include <stdio.h>
#include "engine/comm/comm.h"
#include "engine/device/ledger.h"
#include "engine/trace/intervals.h"

struct zt_chrome {
    FILE *to;
    int rank;
    bool some; /* an event was written */
};
struct zt_chrome_head {
    const char *backend; /* of the communicator: "shm", "nccl", "sim" */
    const char *process; /* what the viewer calls the rank; any text */
    const char *note;    /* shown beside it; NULL: nothing */
    int rank, world;
};

/* Opens the document and names the process and the streams below. */
void zt_chrome_begin(struct zt_chrome *t, FILE *to, const struct zt_chrome_head *h);
/* A step or a part of it, on a track of its own; parts come after what they are a part of. */
void zt_chrome_phase(struct zt_chrome *t, const char *name, int64_t start_ns, int64_t end_ns);
/* Computation, copies, stalls. Intervals of communication are refused: they lack what a record has. */
void zt_chrome_interval(struct zt_chrome *t, const struct zt_interval *iv);
/* group: of the record's name, NULL when not known. One that has not begun is left out (start and end
 * 0), one that has not ended (end before start) is open to the trace's end. */
void zt_chrome_collective(struct zt_chrome *t, const struct zt_coll_record *r,
                          const struct zt_comm_group *group, int64_t exposed_ns, int64_t stall_ns);
/* Bytes from this instant on, by category; the counters "allocated" and "reserved" hold the sums. */
void zt_chrome_memory(struct zt_chrome *t, int64_t at_ns, const int64_t by_tag[ZT_TAG_COUNT],
                      int64_t reserved);
/* Closes the document, not the file. ZT_EIO: something could not be written. */
int zt_chrome_end(struct zt_chrome *t, struct zt_error *err);

#endif
