/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/step_trace.c: see step_trace.h. */
#include "clients/zctl/step_trace.h"
#include <stdlib.h>
#include <string.h>

/* The same collective on all ranks of its group: group and number. Groups of one name do not share ranks, so
 * the first rank tells them apart. */
static int by_key(const void *a, const void *b) {
    const struct zt_trace_coll *x = *(struct zt_trace_coll *const *)a, *y = *(struct zt_trace_coll *const *)b;
    const Zt__TraceGroup *g = zt_trace_group(x), *h = zt_trace_group(y);
    int c = strcmp(g->name, h->name);
    if (c == 0 && (g->n_ranks == 0 || h->n_ranks == 0))
        c = (g->n_ranks > 0) - (h->n_ranks > 0);
    else if (c == 0)
        c = (g->ranks[0] > h->ranks[0]) - (g->ranks[0] < h->ranks[0]);
    if (c == 0)
        c = (x->r->seq > y->r->seq) - (x->r->seq < y->r->seq);
    return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

static bool same_call(const struct zt_trace_coll *x, const struct zt_trace_coll *y) {
    return strcmp(zt_trace_kind(x), zt_trace_kind(y)) == 0 && strcmp(zt_trace_unit(x), zt_trace_unit(y)) == 0 &&
           x->r->bytes == y->r->bytes;
}

static struct zt_trace_rank *find_rank(struct zt_step_trace_set *s, uint32_t rank) {
    size_t i = 0;
    while (s->ranks[i].rank != rank)
        i++;
    return &s->ranks[i];
}

/* One collective as its ranks lived it: v[0..n) have one group and one number. */
static void compare(struct zt_step_trace_set *s, struct zt_trace_coll *const *v, size_t n) {
    const struct zt_trace_coll *last = NULL;
    int64_t longest = 0;
    size_t ended = 0;
    for (size_t i = 0; i < n; i++) {
        if (!same_call(v[i], v[0])) {
            s->mismatched++;
            return;
        }
        if (v[i]->took_ns < 0)
            continue;
        ended++;
        longest = v[i]->took_ns > longest ? v[i]->took_ns : longest;
        if (!last || v[i]->took_ns < last->took_ns)
            last = v[i];
    }
    /* a rank that has not told may have come later still */
    if (ended < zt_trace_group(v[0])->n_ranks || ended == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        v[i]->transfer_ns = last->took_ns;
        v[i]->wait_ns = v[i]->took_ns - last->took_ns;
        v[i]->waited_for = v[i]->wait_ns > 0 ? (int32_t)last->rank : -1;
        find_rank(s, v[i]->rank)->waited += 1e-9 * (double)v[i]->wait_ns;
    }
    if (longest > last->took_ns) {
        struct zt_trace_rank *r = find_rank(s, last->rank);
        r->held_up += 1e-9 * (double)(longest - last->took_ns);
        r->came_last++;
    }
}

static int compare_all(struct zt_step_trace_set *s, struct zt_error *err) {
    struct zt_trace_coll **v = malloc((s->n_all + 1) * sizeof *v);
    if (!v)
        return zt_fail(err, ZT_ENOMEM, "no memory for a trace");
    for (size_t i = 0; i < s->n_all; i++)
        v[i] = &s->all[i];
    qsort(v, s->n_all, sizeof *v, by_key);
    for (size_t i = 0, to; i < s->n_all; i = to) {
        const Zt__TraceGroup *g = zt_trace_group(v[i]), *h = g;
        for (to = i + 1; to < s->n_all && v[to]->r->seq == v[i]->r->seq; to++) {
            h = zt_trace_group(v[to]);
            if (strcmp(h->name, g->name) != 0 || h->n_ranks != g->n_ranks ||
                (g->n_ranks > 0 && h->ranks[0] != g->ranks[0]))
                break;
        }
        if (g->n_ranks > 0)
            compare(s, v + i, to - i);
    }
    free(v);
    return 0;
}

static void add_part(struct zt_step_trace_set *s, struct zt_trace_rank *r, const Zt__StepTrace *t) {
    for (size_t i = 0; i < t->n_records; i++) {
        const Zt__TraceRecord *c = t->records[i];
        struct zt_trace_coll *to = &s->all[s->n_all++];
        *to = (struct zt_trace_coll){.rank = t->rank, .part = t, .r = c, .took_ns = -1, .transfer_ns = -1, .wait_ns = -1,
                                     .waited_for = -1};
        if (c->has_started_ns && c->has_ended_ns)
            to->took_ns = (int64_t)(c->ended_ns - c->started_ns);
        r->exposed += c->has_exposed_ns ? 1e-9 * (double)c->exposed_ns : 0;
        r->stall += c->has_stall_ns ? 1e-9 * (double)c->stall_ns : 0;
        r->n++;
    }
    r->dropped += t->has_dropped ? t->dropped : 0;
}

int zt_trace_set_make(struct zt_step_trace_set *s, Zt__StepTrace *const *parts, size_t n, struct zt_error *err) {
    size_t records = 0;
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < n; i++)
        records += parts[i]->n_records;
    s->all = calloc(records + 1, sizeof *s->all);
    s->ranks = calloc(n + 1, sizeof *s->ranks);
    if (!s->all || !s->ranks) {
        zt_trace_set_free(s);
        return zt_fail(err, ZT_ENOMEM, "no memory for a trace");
    }
    for (size_t i = 0, seen = 0; i < n; i++) {
        struct zt_trace_rank *r = s->n_ranks ? &s->ranks[s->n_ranks - 1] : NULL;
        if (!r || r->rank != parts[i]->rank) {
            r = &s->ranks[s->n_ranks++];
            *r = (struct zt_trace_rank){.rank = parts[i]->rank, .v = s->all + s->n_all,
                                        .step_ns = (int64_t)parts[i]->step_ns};
            seen = 0;
        }
        seen++;
        add_part(s, r, parts[i]);
        r->whole = seen == parts[i]->parts && r->dropped == 0;
    }
    int rc = compare_all(s, err);
    if (rc)
        zt_trace_set_free(s);
    return rc;
}

void zt_trace_set_free(struct zt_step_trace_set *s) {
    free(s->all);
    free(s->ranks);
    memset(s, 0, sizeof *s);
}

const struct zt_trace_rank *zt_trace_slowest(const struct zt_step_trace_set *s) {
    const struct zt_trace_rank *best = NULL;
    for (size_t i = 0; i < s->n_ranks; i++) {
        const struct zt_trace_rank *r = &s->ranks[i];
        if (!best || r->held_up > best->held_up ||
            (r->held_up == best->held_up && r->step_ns > best->step_ns))
            best = r;
    }
    return best;
}

static struct zt_trace_sum *sum_of(struct zt_trace_sum *v, int *n, const struct zt_trace_coll *c) {
    const char *group = zt_trace_group(c)->name, *kind = zt_trace_kind(c);
    for (int i = 0; i < *n; i++)
        if (v[i].control == zt_trace_control(c) && strcmp(v[i].group, group) == 0 && strcmp(v[i].kind, kind) == 0)
            return &v[i];
    if (*n == ZT_TRACE_SUMS)
        return NULL;
    v[*n] = (struct zt_trace_sum){.group = group, .kind = kind, .control = zt_trace_control(c)};
    return &v[(*n)++];
}

int zt_trace_sums(const struct zt_trace_rank *r, const char *unit, struct zt_trace_sum out[ZT_TRACE_SUMS]) {
    int n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct zt_trace_coll *c = &r->v[i];
        struct zt_trace_sum *s = unit && strcmp(unit, zt_trace_unit(c)) != 0 ? NULL : sum_of(out, &n, c);
        if (!s)
            continue;
        s->count++;
        s->bytes += (double)c->r->bytes;
        s->sent_bytes += c->r->has_sent_bytes ? (double)c->r->sent_bytes : 0;
        s->took += c->took_ns > 0 ? 1e-9 * (double)c->took_ns : 0;
        s->exposed += c->r->has_exposed_ns ? 1e-9 * (double)c->r->exposed_ns : 0;
        s->stall += c->r->has_stall_ns ? 1e-9 * (double)c->r->stall_ns : 0;
        s->waited += c->wait_ns > 0 ? 1e-9 * (double)c->wait_ns : 0;
    }
    return n;
}
