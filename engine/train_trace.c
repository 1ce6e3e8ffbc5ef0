/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_trace.c: the collectives of a captured step, out of the event log, for the hook. What
 * a step is here is what step_seconds measures: from reading the data to the end of the update;
 * evaluation and hashing are no part of it. Memory: one set of arrays, grown to the longest step and
 * kept; thread rule: train_int.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train_int.h"

#define FIRST_STEPS 3 /* of a generation: the first is unlike the others, the third is usual */

static bool due(const struct zt_trainer *t) {
    return t->trace.steps <= FIRST_STEPS || t->step == t->total_steps ||
           t->step % t->spec->metrics.log_freq == 0;
}

void zt_trace_begin(struct zt_trainer *t) {
    t->trace.steps++;
    t->trace.after = zt_comm_log_newest(t->world);
}

static int grow(struct zt_trace *a, int64_t n) {
    if (n <= a->cap) return 0;
    size_t k = (size_t)n;
    free(a->records);
    free(a->spans);
    free(a->shares);
    a->records = malloc(k * sizeof *a->records);
    a->spans = malloc(k * sizeof *a->spans);
    a->shares = malloc(2 * k * sizeof *a->shares);
    a->cap = a->records && a->spans && a->shares ? n : 0;
    return a->cap ? 0 : ZT_ENOMEM;
}

static struct zt_interval span_of(const struct zt_coll_record *r, int64_t end_ns) {
    bool ran = r->start_ns > 0;
    return (struct zt_interval){.start_ns = ran ? r->start_ns : end_ns,
                                .end_ns = ran && !r->end_ns ? end_ns : r->end_ns,
                                .kind = ZT_IV_COMM,
                                .control = r->control};
}

int zt_trace_end(struct zt_trainer *t, struct zt_error *err) {
    enum { GROUPS = 16 };
    struct zt_trace *a = &t->trace;
    struct zt_comm_group groups[GROUPS];
    if (!t->hooks->collectives || !due(t)) return 0;
    int64_t queued = zt_comm_log_newest(t->world) - a->after;
    if (grow(a, queued ? queued : 1))
        return zt_fail(err, ZT_ENOMEM, "collectives of step %lld: no host memory",
                       (long long)t->step);
    struct zt_step_trace out = {.step = t->step, .start_ns = t->intervals.step_start_ns};
    out.end_ns = out.start_ns + llround(t->report.step_seconds * 1e9);
    out.records = a->records;
    out.n = zt_comm_log(t->world, a->after, a->records, queued);
    out.dropped = queued - out.n;
    for (int64_t i = 0; i < out.n; i++) a->spans[i] = span_of(&a->records[i], out.end_ns);
    out.exposed_ns = a->shares;
    out.stall_ns = a->shares + out.n;
    if (zt_intervals_share(&t->intervals, out.end_ns, a->spans, (size_t)out.n, a->shares,
                           a->shares + out.n))
        return zt_fail(err, ZT_ENOMEM, "collectives of step %lld: no host memory",
                       (long long)t->step);
    out.n_groups = zt_comm_groups(t->world, groups, GROUPS);
    if (out.n_groups > GROUPS) out.n_groups = GROUPS;
    out.groups = groups;
    out.intervals = &t->intervals;
    t->hooks->collectives(t->hooks->arg, &out);
    return 0;
}

void zt_trace_free(struct zt_trace *a) {
    free(a->records);
    free(a->spans);
    free(a->shares);
    memset(a, 0, sizeof *a);
}
