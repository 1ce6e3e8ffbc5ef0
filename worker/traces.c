/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/traces.h"

#include <stdlib.h>
#include <string.h>
#include "proto/trace.h"

/* ---------------------------------------------------------------------------------------- store */

struct zw_trace { struct zw_trace *next; int64_t step; struct zw_report packed; };

void zw_traces_init(struct zw_traces *t)
{
    *t = (struct zw_traces){.max = ZW_TRACES_MAX};
}

static struct zw_report pop(struct zw_traces *t)
{
    struct zw_trace *e = t->first;
    struct zw_report r = e->packed;
    t->first = e->next;
    if (!t->first) {
        t->last = NULL;
    }
    t->bytes -= r.n;
    free(e);
    return r;
}

void zw_traces_clear(struct zw_traces *t)
{
    while (t->first) {
        free(pop(t).bytes);
    }
}

int zw_traces_push(struct zw_traces *t, const Zt__StepTrace *s, struct zt_error *err)
{
    size_t n = zt__step_trace__get_packed_size(s);
    struct zw_trace *e = malloc(sizeof(*e));
    uint8_t *bytes = malloc(n ? n : 1);
    if (!e || !bytes) {
        free(e);
        free(bytes);
        return zt_fail(err, ZT_ENOMEM, "no memory for a step's trace");
    }
    zt__step_trace__pack(s, bytes);
    *e = (struct zw_trace){.step = s->step, .packed = {.bytes = bytes, .n = (uint32_t)n}};
    *(t->last ? &t->last->next : &t->first) = e;
    t->last = e;
    t->bytes += n;
    while (t->bytes > t->max && t->first != t->last) {
        t->dropped++;
        t->dropped_step = t->first->step;
        free(pop(t).bytes);
    }
    return 0;
}

void zw_traces_take(struct zw_traces *t, struct zw_batch *b)
{
    size_t bytes = 0;
    b->n = 0;
    while (t->first && b->n < ZW_BATCH_REPORTS && bytes < ZW_BATCH_BYTES) {
        b->reports[b->n] = pop(t);
        bytes += b->reports[b->n++].n;
    }
}

/* --------------------------------------------------------------------------------------- making */

/* One part in the making. A record brings four words at most. */
struct maker {
    Zt__StepTrace s;
    Zt__TraceRecord record[ZT_TRACE_PART_RECORDS], *records[ZT_TRACE_PART_RECORDS];
    char *words[4 * ZT_TRACE_PART_RECORDS];
    Zt__TraceGroup group[ZT_TRACE_GROUPS], *groups[ZT_TRACE_GROUPS];
};
_Static_assert(4 * ZT_TRACE_PART_RECORDS <= ZT_TRACE_WORDS, "words of a part");

static uint32_t word(struct maker *m, const char *text)
{
    for (size_t i = 0; i < m->s.n_words; i++) {
        if (strcmp(m->words[i], text) == 0) {
            return (uint32_t)i;
        }
    }
    m->words[m->s.n_words] = (char *)(uintptr_t)text;
    return (uint32_t)m->s.n_words++;
}

static uint64_t since(int64_t from, int64_t to)
{
    return to > from ? (uint64_t)(to - from) : 0;
}

static void put_record(struct maker *m, const struct zt_step_trace *t, int64_t i)
{
    const struct zt_coll_record *c = &t->records[i];
    Zt__TraceRecord *r = &m->record[m->s.n_records];
    zt__trace_record__init(r);
    while (r->group < m->s.n_groups && strcmp(m->group[r->group].name, c->group) != 0) {
        r->group++;
    }
    r->kind = word(m, zt_coll_name(c->kind));
    r->dtype = word(m, zt_dtype_name(c->dtype));
    r->unit = word(m, c->unit);
    r->reason = word(m, c->reason);
    r->seq = (uint64_t)c->seq;
    r->count = (uint64_t)c->count;
    r->bytes = (uint64_t)c->bytes;
    r->has_sent_bytes = 1;
    r->sent_bytes = (uint64_t)c->sent_bytes;
    r->queued_ns = c->queued_ns - t->start_ns;
    r->has_started_ns = c->start_ns > 0;
    r->started_ns = since(c->queued_ns, c->start_ns);
    r->has_ended_ns = r->has_started_ns && c->end_ns > 0;
    r->ended_ns = since(c->queued_ns, c->end_ns);
    r->has_control = r->control = c->control;
    if (!c->control) {
        r->has_exposed_ns = r->has_stall_ns = 1;
        r->exposed_ns = (uint64_t)t->exposed_ns[i];
        r->stall_ns = (uint64_t)t->stall_ns[i];
    }
    m->records[m->s.n_records++] = r;
}

static bool has_group(const struct maker *m, const char *name)
{
    for (size_t i = 0; i < m->s.n_groups; i++) {
        if (strcmp(m->group[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The groups of the rank, and those of records whose group the engine did not name: members not known. */
static void put_groups(struct maker *m, const struct zt_step_trace *t, int64_t from, int64_t to)
{
    int64_t n = t->n_groups + (to - from);
    for (int64_t i = 0; i < n && m->s.n_groups < ZT_TRACE_GROUPS; i++) {
        const struct zt_comm_group *g = i < t->n_groups ? &t->groups[i] : NULL;
        const char *name = g ? g->name : t->records[from + i - t->n_groups].group;
        if (has_group(m, name)) {
            continue;
        }
        Zt__TraceGroup *out = &m->group[m->s.n_groups];
        zt__trace_group__init(out);
        out->name = (char *)(uintptr_t)name;
        out->n_ranks = g ? (size_t)g->size : 0;
        out->ranks = g ? (uint32_t *)(uintptr_t)g->ranks : NULL; /* ranks are never negative */
        m->groups[m->s.n_groups++] = out;
    }
}

static void begin_part(struct maker *m, const struct zt_step_trace *t, int64_t from, int64_t to)
{
    zt__step_trace__init(&m->s);
    m->s.step = t->step;
    m->s.step_ns = since(t->start_ns, t->end_ns);
    m->s.words = m->words;
    m->s.groups = m->groups;
    m->s.records = m->records;
    put_groups(m, t, from, to);
}

int zw_trace_parts(const struct zt_step_trace *t, int (*part)(void *arg, Zt__StepTrace *s, struct zt_error *err),
                   void *arg, struct zt_error *err)
{
    int64_t parts = t->n > 0 ? (t->n + ZT_TRACE_PART_RECORDS - 1) / ZT_TRACE_PART_RECORDS : 1;
    struct maker *m = malloc(sizeof(*m));
    int rc = m ? 0 : zt_fail(err, ZT_ENOMEM, "no memory for the trace of step %lld", (long long)t->step);
    for (int64_t p = 0; p < parts && p < ZT_TRACE_PARTS && rc == 0; p++) {
        int64_t from = p * ZT_TRACE_PART_RECORDS, to = from + ZT_TRACE_PART_RECORDS;
        to = to < t->n ? to : t->n;
        begin_part(m, t, from, to);
        m->s.part = (uint32_t)p;
        m->s.parts = (uint32_t)(parts < ZT_TRACE_PARTS ? parts : ZT_TRACE_PARTS);
        m->s.has_dropped = p == 0;
        m->s.dropped = (uint64_t)t->dropped;
        for (int64_t i = from; i < to; i++) {
            put_record(m, t, i);
        }
        rc = part(arg, &m->s, err);
    }
    free(m);
    return rc;
}
