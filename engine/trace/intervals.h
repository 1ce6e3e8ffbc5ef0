/* SPDX-License-Identifier: Apache-2.0 */
/* engine/trace/intervals.h: from the intervals of one step to exposed communication, by unions and
 * never by sums. One arithmetic for cpu, cuda and sim. Fed by the trainer thread; the strings are
 * static and belong to nobody; the array belongs to the struct (zt_intervals_free). */
#ifndef ZT_ENGINE_INTERVALS_H
#define ZT_ENGINE_INTERVALS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* UPDATE is compute too (adding up and stepping), but of the kind that waits for communication: the
 * step's tail begins where forward and backward end, whatever is computed after that. */
enum zt_interval_kind { ZT_IV_COMPUTE = 0, ZT_IV_COMM, ZT_IV_COPY, ZT_IV_STALL, ZT_IV_UPDATE };
struct zt_interval {
    int64_t start_ns, end_ns;
    enum zt_interval_kind kind;
    const char *group; /* comm: "dp_shard", ...; static string */
    const char *name;  /* comm: collective kind; compute: segment; static string */
    bool control;      /* comm of the control group: counted apart, never in exposed */
};
struct zt_intervals {
    struct zt_interval *items;
    size_t n, cap;
    int64_t step_start_ns;
    bool off; /* nothing is kept: every figure comes out 0 but the step's own time */
};

#define ZT_EXPOSED_BY_MAX 12
struct zt_exposed {
    double step_seconds, compute_seconds, comm_seconds, exposed_comm_seconds, overlapped_seconds,
        stall_seconds, tail_seconds, idle_seconds;
    int n_by; /* sums to exposed_comm_seconds; more than 12 pairs: the last row is "other" */
    struct {
        const char *group, *kind;
        double seconds;
    } by[ZT_EXPOSED_BY_MAX]; /* exposed per group and kind */
};
void zt_intervals_begin_step(struct zt_intervals *iv, int64_t now_ns); /* drops the previous step */
int zt_intervals_add(struct zt_intervals *iv, struct zt_interval item); /* ZT_ENOMEM */
/* Union of the communication intervals so far, control left out (the straggler figure); 0 or
 * ZT_ENOMEM. */
int zt_intervals_comm_ns(const struct zt_intervals *iv, int64_t end_ns, int64_t *ns);
/* Everything is clipped to [step_start, end]. tail = exposed communication after the last COMPUTE
 * interval of the step. An instant of exposed time belongs to the earliest-started collective that
 * runs then. 0 or ZT_ENOMEM. */
int zt_intervals_finish(const struct zt_intervals *iv, int64_t end_ns, struct zt_exposed *out);
/* The same by collective: for each of comm[n] (ZT_IV_COMM, in the order of queueing) the exposed time
 * and the stall of compute that belong to it. With the step's collectives exposed_ns sums to
 * exposed_comm_seconds; stall_ns to what of stall_seconds fell into a collective. 0 or ZT_ENOMEM. */
int zt_intervals_share(const struct zt_intervals *iv, int64_t end_ns, struct zt_interval *comm,
                       size_t n, int64_t *exposed_ns, int64_t *stall_ns);
void zt_intervals_free(struct zt_intervals *iv);

#endif
