/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/trace.h"

#include <string.h>

#define BYTES_MAX (UINT64_C(1) << 50)

static const char *bad_groups(const Zt__StepTrace *t)
{
    if (t->n_groups > ZT_TRACE_GROUPS) {
        return "groups: more than 32";
    }
    for (size_t i = 0; i < t->n_groups; i++) {
        const Zt__TraceGroup *g = t->groups[i];
        if (!g->name[0] || strlen(g->name) > ZT_TRACE_WORD_BYTES) {
            return "groups: a name of 1 to 63 bytes is required";
        }
        for (size_t k = 1; k < g->n_ranks; k++) {
            if (g->ranks[k] <= g->ranks[k - 1]) {
                return "groups: ranks must ascend";
            }
        }
    }
    return NULL;
}

static const char *bad_record(const Zt__StepTrace *t, const Zt__TraceRecord *r)
{
    if (r->group >= t->n_groups) {
        return "records: no such group";
    }
    if (r->kind >= t->n_words || r->dtype >= t->n_words || r->unit >= t->n_words || r->reason >= t->n_words) {
        return "records: no such word";
    }
    if (r->count > BYTES_MAX || r->bytes > BYTES_MAX || (r->has_sent_bytes && r->sent_bytes > BYTES_MAX)) {
        return "records: a count of bytes is out of range";
    }
    if (r->queued_ns < -ZT_TRACE_NS_MAX || r->queued_ns > ZT_TRACE_NS_MAX ||
        (r->has_started_ns && r->started_ns > ZT_TRACE_NS_MAX) ||
        (r->has_ended_ns && (r->ended_ns > ZT_TRACE_NS_MAX || !r->has_started_ns || r->ended_ns < r->started_ns))) {
        return "records: queued, started and ended must follow each other";
    }
    if ((r->has_exposed_ns && r->exposed_ns > ZT_TRACE_NS_MAX) || (r->has_stall_ns && r->stall_ns > ZT_TRACE_NS_MAX)) {
        return "records: a time is out of range";
    }
    return NULL;
}

const char *zt_trace_check(const Zt__StepTrace *t)
{
    if (t->step < 1 || t->step > INT64_MAX / 2) {
        return "step: 1 or more is required";
    }
    if (t->parts < 1 || t->parts > ZT_TRACE_PARTS || t->part >= t->parts) {
        return "part: there are 1 to 1024, counted from 0";
    }
    if (t->step_ns > ZT_TRACE_NS_MAX || (t->has_dropped && t->dropped > BYTES_MAX)) {
        return "step_ns, dropped: out of range";
    }
    if (t->n_words > ZT_TRACE_WORDS) {
        return "words: more than 4096";
    }
    for (size_t i = 0; i < t->n_words; i++) {
        if (strlen(t->words[i]) > ZT_TRACE_WORD_BYTES) {
            return "words: at most 63 bytes each";
        }
    }
    const char *bad = bad_groups(t);
    if (!bad && t->n_records > ZT_TRACE_PART_RECORDS) {
        bad = "records: at most 1024 in a part";
    }
    for (size_t i = 0; !bad && i < t->n_records; i++) {
        bad = bad_record(t, t->records[i]);
    }
    return bad;
}
