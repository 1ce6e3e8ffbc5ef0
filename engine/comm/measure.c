/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/measure.c: see measure.h. Ranks agree on everything that decides what is called next:
 * all of them must call the same collectives. */
#include "engine/comm/measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/cost.h"
#include "core/units.h"

#define INNER_SECONDS 2e-3 /* calls are repeated until so much time is measured at once */
#define INNER_MOST 32
enum { SIZES = 10, KINDS = 3, ROUNDS = 128, LEAST_SIZES = 3, LEAST_ROUNDS = 3 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((rc = (call)) != 0) goto out;                                                          \
    } while (0)

static const struct {
    enum zt_coll coll;
    enum zt_cost_coll cost;
} kinds[KINDS] = {{ZT_COLL_ALL_REDUCE, ZT_COST_ALL_REDUCE},
                  {ZT_COLL_ALL_GATHER, ZT_COST_ALL_GATHER},
                  {ZT_COLL_REDUCE_SCATTER, ZT_COST_REDUCE_SCATTER}};

struct session {
    const struct zt_measure *m;
    int64_t *words; /* one of each rank of control */
    int64_t until_ns;
    int n, rounds; /* sizes, rounds */
    int times[SIZES];
    double seconds[SIZES][KINDS][ROUNDS];
};

static int64_t size_of(int i) { return (int64_t)ZT_MEASURE_LEAST_BYTES << (2 * i); }

static int ranks(const struct zt_measure *m) { return m->comm ? zt_comm_size(m->comm) : 1; }

/* Floats of one rank's share of a message. */
static int64_t share_of(int64_t bytes, int size) { return zt_ceil_div(bytes / 4, size); }

int64_t zt_measure_part(int64_t most, int size) { return share_of(most, size); }
int64_t zt_measure_full(int64_t most, int size) { return share_of(most, size) * size; }

static int64_t now(const struct zt_measure *m) {
    return zt_device_ops(m->device)->now_ns(m->device);
}

/* The least word of all ranks; all are here when it is known. */
static int agree(struct session *s, int64_t own, int64_t *least, struct zt_error *err) {
    static const struct zt_coll_why why = {"", "measuring: what comes next", 0, true};
    const struct zt_measure *m = s->m;
    int rc = zt_all_gather(m->control, &own, s->words, 1, ZT_I64, m->stream, &why, err);
    if (rc == 0) rc = zt_device_ops(m->device)->stream_sync(m->stream, err);
    *least = own;
    for (int i = 0; rc == 0 && i < zt_comm_size(m->control); i++)
        if (s->words[i] < *least) *least = s->words[i];
    return rc;
}

/* Zeros are added to zeros: the values stay, and cost what others do. */
static int launch(const struct zt_measure *m, enum zt_coll kind, int64_t share,
                  struct zt_error *err) {
    static const struct zt_coll_why why = {"", "measuring", 0, false};
    int rc;
    if (kind == ZT_COLL_ALL_REDUCE)
        rc =
            zt_all_reduce(m->comm, m->full, share * ranks(m), ZT_F32, ZT_SUM, m->stream, &why, err);
    else if (kind == ZT_COLL_ALL_GATHER)
        rc = zt_all_gather(m->comm, m->part, m->full, share, ZT_F32, m->stream, &why, err);
    else
        rc = zt_reduce_scatter(m->comm, m->full, m->part, share, ZT_F32, ZT_SUM, m->stream, &why,
                               err);
    return rc ? rc : zt_device_ops(m->device)->stream_sync(m->stream, err);
}

static int fill(const struct zt_measure *m, float *v, int64_t n, float value,
                struct zt_error *err) {
    float *host = malloc((size_t)n * sizeof *host);
    if (!host) return zt_fail(err, ZT_ENOMEM, "measuring: no host memory");
    for (int64_t i = 0; i < n; i++) host[i] = value;
    int rc = zt_device_ops(m->device)->copy(m->stream, v, host, (size_t)n * sizeof *v, err);
    if (rc == 0) rc = zt_device_ops(m->device)->stream_sync(m->stream, err);
    free(host);
    return rc;
}

/* The sum of ones is the number of ranks; the times of a link that adds wrongly are worth nothing.
 */
static int check(const struct zt_measure *m, struct zt_error *err) {
    int64_t share = share_of(size_of(0), ranks(m)), n = share * ranks(m);
    float *host = NULL;
    int rc;
    TRY(fill(m, m->full, n, 1, err));
    TRY(launch(m, ZT_COLL_ALL_REDUCE, share, err));
    host = malloc((size_t)n * sizeof *host);
    if (!host) TRY(zt_fail(err, ZT_ENOMEM, "measuring: no host memory"));
    TRY(zt_device_ops(m->device)->copy(m->stream, host, m->full, (size_t)n * sizeof *host, err));
    TRY(zt_device_ops(m->device)->stream_sync(m->stream, err));
    for (int64_t i = 0; i < n; i++)
        if (host[i] != (float)ranks(m))
            TRY(zt_fail(err, ZT_EINTERNAL, "measuring: the sum of ones over %d ranks is %g",
                        ranks(m), (double)host[i]));
    TRY(fill(m, m->full, n, 0, err));
out:
    free(host);
    return rc;
}

/* One kind on one size, `times` in a row, all ranks beginning together. */
static int measure(struct session *s, int kind, int size, int times, double *seconds,
                   struct zt_error *err) {
    const struct zt_measure *m = s->m;
    int64_t share = share_of(size_of(size), ranks(m)), ignored;
    int rc;
    TRY(agree(s, 0, &ignored, err));
    int64_t from = now(m);
    for (int i = 0; i < times && ranks(m) > 1; i++) TRY(launch(m, kinds[kind].coll, share, err));
    *seconds = 1e-9 * (double)(now(m) - from) / times;
out:
    return rc;
}

/* Ascending sizes once, to warm up, to see how often each can be repeated and how far time goes: a
 * size is left out when all that is still to be measured would not fit the time. */
static int explore(struct session *s, struct zt_error *err) {
    double spent = 0, slowest = 0, t = 0;
    int64_t word = 1;
    int rc = 0;
    while (s->n < SIZES && size_of(s->n) <= s->m->most && word) {
        slowest = 1e-9;
        for (int k = 0; k < KINDS; k++) {
            TRY(measure(s, k, s->n, 1, &t, err));
            TRY(measure(s, k, s->n, 1, &t, err));
            slowest = t > slowest ? t : slowest;
        }
        double fit = INNER_SECONDS / slowest;
        TRY(agree(s, fit < 1 ? 1 : fit > INNER_MOST ? INNER_MOST : (int64_t)fit, &word, err));
        s->times[s->n++] = (int)word;
        spent += slowest * KINDS * (double)(word + 2);
        /* the next size takes four times as long, five times over: twice here, then three rounds */
        double next = 4 * slowest * KINDS * 5 + 3 * spent;
        TRY(agree(s, s->n < LEAST_SIZES || (double)now(s->m) + 1e9 * next < (double)s->until_ns,
                  &word, err));
    }
out:
    return rc;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static int rounds(struct session *s, struct zt_error *err) {
    int64_t more = 1;
    int rc = 0;
    while (more) {
        for (int i = 0; i < s->n; i++)
            for (int k = 0; k < KINDS; k++)
                TRY(measure(s, k, i, s->times[i], &s->seconds[i][k][s->rounds], err));
        s->rounds++;
        TRY(agree(s, s->rounds < LEAST_ROUNDS || (s->rounds < ROUNDS && now(s->m) < s->until_ns),
                  &more, err));
    }
out:
    return rc;
}

int zt_comm_measure(const struct zt_measure *m, int64_t *largest, struct zt_error *err) {
    struct session *s = calloc(1, sizeof *s);
    int rc = 0;
    *largest = 0;
    if (s) s->words = calloc((size_t)zt_comm_size(m->control), sizeof *s->words);
    if (!s || !s->words) TRY(zt_fail(err, ZT_ENOMEM, "measuring: no host memory"));
    s->m = m;
    s->until_ns = now(m) + (int64_t)(1e9 * m->seconds);
    if (ranks(m) > 1) TRY(check(m, err));
    TRY(explore(s, err));
    TRY(rounds(s, err));
    for (int i = 0; i < s->n && ranks(m) > 1; i++)
        for (int k = 0; k < KINDS; k++) {
            struct zt_measured one = {kinds[k].coll, share_of(size_of(i), ranks(m)) * ranks(m) * 4,
                                      ranks(m), median(s->seconds[i][k], s->rounds)};
            m->row(m->arg, &one);
        }
    *largest = size_of(s->n - 1);
out:
    if (s) free(s->words);
    free(s);
    return rc;
}

int zt_measured_json(const struct zt_measured *m, bool across, int per_host, char *text, size_t n) {
    int k = 0;
    while (kinds[k].coll != m->kind) k++;
    return snprintf(
        text, n,
        "{\"collective\":\"%s\",\"link\":\"%s\",\"ranks\":%d,\"per_host\":%d,\"bytes\":%lld,"
        "\"sent_bytes\":%.17g,\"rounds\":%d,\"seconds\":%.9g}",
        zt_coll_name(m->kind), across ? "across" : "within", m->ranks, per_host,
        (long long)m->bytes, zt_cost_sent(kinds[k].cost, m->ranks, m->bytes),
        zt_cost_rounds(kinds[k].cost, m->ranks), m->seconds);
}
