/* SPDX-License-Identifier: Apache-2.0 */
/* engine/trace/intervals.c: interval unions. Every figure is the length of a union of half-open
 * intervals, so overlapping work is never counted twice (a sum over streams would claim more
 * communication than the step has time). Memory: scratch copies, freed before return. */
#include "engine/trace/intervals.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

struct span {
    int64_t from, to;
    const struct zt_interval *source;
};
struct spans {
    struct span *items;
    size_t n;
};

void zt_intervals_begin_step(struct zt_intervals *iv, int64_t now_ns) {
    iv->n = 0;
    iv->step_start_ns = now_ns;
}

int zt_intervals_add(struct zt_intervals *iv, struct zt_interval item) {
    if (iv->off) return 0;
    if (iv->n == iv->cap) {
        size_t cap = iv->cap ? iv->cap * 2 : 256;
        struct zt_interval *items = realloc(iv->items, cap * sizeof *items);
        if (!items) return ZT_ENOMEM;
        iv->items = items;
        iv->cap = cap;
    }
    iv->items[iv->n++] = item;
    return 0;
}

void zt_intervals_free(struct zt_intervals *iv) {
    free(iv->items);
    memset(iv, 0, sizeof *iv);
}

static int by_start(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    /* Equal starts: the one queued first is the earlier one. */
    return x->source < y->source ? -1 : x->source > y->source;
}

#define KIND(k) (1u << (k))

/* Intervals of the kinds in `mask`, clipped to the step, sorted by start and made disjoint: each
 * span keeps only what no earlier-started one covers, so spans are the union and also say who owns
 * it. */
static int spans_of(const struct zt_intervals *iv, unsigned mask, int64_t end, struct spans *out) {
    out->n = 0;
    out->items = malloc((iv->n ? iv->n : 1) * sizeof *out->items);
    if (!out->items) return ZT_ENOMEM;
    for (size_t i = 0; i < iv->n; i++) {
        const struct zt_interval *it = &iv->items[i];
        if (!(mask & KIND(it->kind)) || (it->kind == ZT_IV_COMM && it->control)) continue;
        int64_t from = it->start_ns < iv->step_start_ns ? iv->step_start_ns : it->start_ns;
        int64_t to = it->end_ns > end ? end : it->end_ns;
        if (to > from) out->items[out->n++] = (struct span){from, to, it};
    }
    qsort(out->items, out->n, sizeof *out->items, by_start);
    size_t kept = 0;
    int64_t covered = INT64_MIN;
    for (size_t i = 0; i < out->n; i++) {
        struct span s = out->items[i];
        if (s.to <= covered) continue;
        if (s.from < covered) s.from = covered;
        covered = s.to;
        out->items[kept++] = s;
    }
    out->n = kept;
    return 0;
}

static int64_t length(const struct spans *s) {
    int64_t sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->items[i].to - s->items[i].from;
    return sum;
}

static void by_add(struct zt_exposed *out, const struct zt_interval *it, int64_t ns) {
    const char *group = it->group ? it->group : "", *kind = it->name ? it->name : "";
    int i;
    for (i = 0; i < out->n_by; i++)
        if (!strcmp(out->by[i].group, group) && !strcmp(out->by[i].kind, kind)) break;
    if (i == ZT_EXPOSED_BY_MAX) {
        i = ZT_EXPOSED_BY_MAX - 1;
        out->by[i].group = out->by[i].kind = "other";
    } else if (i == out->n_by) {
        out->by[i].group = group;
        out->by[i].kind = kind;
        out->by[i].seconds = 0;
        out->n_by++;
    }
    out->by[i].seconds += 1e-9 * (double)ns;
}

/* How much of [at, c->to) no span of `cover` covers. Both are asked in ascending order: *j is where
 * to look first. */
static int64_t bare_of(const struct span *c, int64_t at, const struct spans *cover, size_t *j) {
    int64_t bare = 0;
    while (*j < cover->n && cover->items[*j].to <= at) ++*j;
    for (size_t k = *j; k < cover->n && cover->items[k].from < c->to; k++) {
        if (cover->items[k].from > at) bare += cover->items[k].from - at;
        at = cover->items[k].to;
    }
    return at < c->to ? bare + (c->to - at) : bare;
}

/* |comm \ compute| from instant `after` on, and by owner where `out` is given. Both lists are
 * sorted and disjoint. */
static int64_t exposed_of(const struct spans *comm, const struct spans *compute, int64_t after,
                          struct zt_exposed *out) {
    int64_t sum = 0;
    size_t j = 0;
    for (size_t i = 0; i < comm->n; i++) {
        const struct span *c = &comm->items[i];
        int64_t bare = bare_of(c, c->from > after ? c->from : after, compute, &j);
        if (bare && out) by_add(out, c->source, bare);
        sum += bare;
    }
    return sum;
}

int zt_intervals_share(const struct zt_intervals *iv, int64_t end_ns, struct zt_interval *comm,
                       size_t n, int64_t *exposed_ns, int64_t *stall_ns) {
    struct zt_intervals own = {comm, n, n, iv->step_start_ns};
    struct spans spans = {0}, compute = {0}, stall = {0};
    size_t j = 0, k = 0;
    int rc;
    if ((rc = spans_of(&own, KIND(ZT_IV_COMM), end_ns, &spans)) ||
        (rc = spans_of(iv, KIND(ZT_IV_COMPUTE) | KIND(ZT_IV_UPDATE), end_ns, &compute)) ||
        (rc = spans_of(iv, KIND(ZT_IV_STALL), end_ns, &stall)))
        goto out;
    memset(exposed_ns, 0, n * sizeof *exposed_ns);
    memset(stall_ns, 0, n * sizeof *stall_ns);
    for (size_t i = 0; i < spans.n; i++) {
        const struct span *c = &spans.items[i];
        exposed_ns[c->source - comm] += bare_of(c, c->from, &compute, &j);
        stall_ns[c->source - comm] += c->to - c->from - bare_of(c, c->from, &stall, &k);
    }
out:
    free(spans.items);
    free(compute.items);
    free(stall.items);
    return rc;
}

int zt_intervals_comm_ns(const struct zt_intervals *iv, int64_t end_ns, int64_t *ns) {
    struct spans comm;
    int rc = spans_of(iv, KIND(ZT_IV_COMM), end_ns, &comm);
    if (rc) return rc;
    *ns = length(&comm);
    free(comm.items);
    return 0;
}

int zt_intervals_finish(const struct zt_intervals *iv, int64_t end_ns, struct zt_exposed *out) {
    struct spans work = {0}, compute = {0}, comm = {0}, stall = {0}, busy = {0};
    int rc;
    memset(out, 0, sizeof *out);
    if ((rc = spans_of(iv, KIND(ZT_IV_COMPUTE), end_ns, &work)) ||
        (rc = spans_of(iv, KIND(ZT_IV_COMPUTE) | KIND(ZT_IV_UPDATE), end_ns, &compute)) ||
        (rc = spans_of(iv, KIND(ZT_IV_COMM), end_ns, &comm)) ||
        (rc = spans_of(iv, KIND(ZT_IV_STALL), end_ns, &stall)) ||
        (rc = spans_of(
             iv, KIND(ZT_IV_COMPUTE) | KIND(ZT_IV_UPDATE) | KIND(ZT_IV_COMM) | KIND(ZT_IV_COPY),
             end_ns, &busy)))
        goto out;
    int64_t step = end_ns > iv->step_start_ns ? end_ns - iv->step_start_ns : 0;
    int64_t exposed = exposed_of(&comm, &compute, iv->step_start_ns, out);
    int64_t last = work.n ? work.items[work.n - 1].to : iv->step_start_ns;
    out->step_seconds = 1e-9 * (double)step;
    out->compute_seconds = 1e-9 * (double)length(&compute);
    out->comm_seconds = 1e-9 * (double)length(&comm);
    out->exposed_comm_seconds = 1e-9 * (double)exposed;
    out->overlapped_seconds = 1e-9 * (double)(length(&comm) - exposed);
    out->stall_seconds = 1e-9 * (double)length(&stall);
    out->tail_seconds = 1e-9 * (double)exposed_of(&comm, &compute, last, NULL);
    out->idle_seconds = 1e-9 * (double)(step - length(&busy));
out:
    free(work.items);
    free(compute.items);
    free(comm.items);
    free(stall.items);
    free(busy.items);
    return rc;
}
