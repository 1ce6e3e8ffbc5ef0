/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate.h: what `zctl calibrate` starts: zworker --calibrate measures this machine with the
 * kernels and transports that train on it and prints one JSON object a line:
 *
 *   {"machine": {...}}                                what it measured on
 *   {"operator": "gemm", "type": "fp32", ...}         one operator, seconds: median of `rounds`
 *   {"collective": "all_reduce", "link": "within", ...}
 *   {"cut": "..."}                                    something was left out, and why
 *   {"done": true}                                    last; without it the measurement is not whole
 *
 * It forks `ranks` processes that compute at the same time, as ranks on one host do, each with its own
 * threads; a time is that of the slowest of them in a round, the median over rounds in which all cases
 * take turns. Nothing else of zworker runs: no coordinator, no state. One thread in the parent. */
#ifndef ZT_WORKER_CALIBRATE_H
#define ZT_WORKER_CALIBRATE_H
#include <stdbool.h>

struct zw_calibration {
    int ranks;        /* processes at once, 1 to 64 */
    int threads;      /* of each; 0: its share of the cores */
    double seconds;   /* about so long in all; below 5 only small shapes */
    bool comm;        /* collectives too: at least two ranks, within a host and across two */
    const char *isa, *gemm;
};

/* The exit code: 0, 2 for what is not there, 10 for a failed measurement (said on stderr). */
int zw_calibrate(const struct zw_calibration *o);

#endif
