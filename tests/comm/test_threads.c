/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/test_threads.c: streams, events, allocator and communicators with every rank a thread
 * of one process, under a plain main, so that ThreadSanitizer sees both sides of every hand-over
 * and the leak checker sees everything at exit; on one host, on three, and on two. Values are
 * checked too. Exit code 0 = all well. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/units.h"
#include "engine/comm/comm.h"
#include "engine/device/alloc.h"

enum { WORLD = 3, N = 50000, ROUNDS = 15, PAIRS = 20 };
#define NEED(e)                                                                                    \
    do {                                                                                           \
        if (!(e)) {                                                                                \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #e, err.msg);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct zt_comm_id id;
static const char *hosts; /* of every rank, a letter; NULL = one host */
static struct zt_comm_door *doors[WORLD];
static _Atomic int logs, late, told;
static const struct zt_coll_why why = {"h.0", "gradients", 1, false};

/* What a trainer does: compute fills a buffer, a stream reduces it, compute waits and checks. */
static void rounds(struct zt_device *d, struct zt_alloc *a, struct zt_comm *c, struct zt_comm *g,
                   struct zt_stream *s, struct zt_stream *t, int rank) {
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *compute = zt_device_compute(d);
    static struct zt_coll_record rec[WORLD][64];
    struct zt_error err = {0};
    for (int round = 0; round < ROUNDS; round++) {
        struct zt_event *ready = NULL, *done = NULL;
        float *x = NULL, *y = NULL;
        int64_t stalled = 0, n = round % 2 ? N : 100;
        NEED(!ops->event_create(d, &ready, &err) && !ops->event_create(d, &done, &err));
        NEED(!zt_malloc(a, (size_t)n * 4, compute, ZT_TAG_GRADIENTS, "x", (void **)&x, &err));
        NEED(!zt_malloc(a, (size_t)n * 4 * WORLD, compute, ZT_TAG_PARAMETERS, "y", (void **)&y,
                        &err));
        for (int64_t i = 0; i < n; i++) x[i] = (float)(rank + round);
        NEED(!ops->event_record(ready, compute, &err));
        NEED(!ops->stream_wait_event(s, ready, NULL, &err));
        NEED(!zt_all_reduce(c, x, n, ZT_F32, ZT_SUM, s, &why, &err));
        NEED(!zt_all_gather(c, x, y, n, ZT_F32, t, &why, &err)); /* same group, other stream */
        NEED(!zt_barrier(g, s, &why, &err));
        NEED(!zt_record_stream(a, x, s, &err) && !zt_record_stream(a, x, t, &err));
        NEED(zt_comm_log(c, 0, rec[rank], 64) > 0); /* while streams write times */
        NEED(!ops->event_record(done, t, &err));
        NEED(!ops->stream_wait_event(compute, done, &stalled, &err));
        float want = (float)(WORLD * (WORLD - 1) / 2 + WORLD * round);
        for (int64_t i = 0; i < n * WORLD; i++) NEED(y[i] == want);
        zt_free(a, x);
        zt_free(a, y);
        ops->event_destroy(ready);
        ops->event_destroy(done);
    }
    NEED(!ops->stream_sync(s, &err) && !ops->stream_sync(t, &err));
}

/* Two groups of the same ranks, each on a stream of its own: what they share must bear it. */
static void two_groups(struct zt_device *d, struct zt_comm *c, struct zt_comm *h,
                       struct zt_stream *s, struct zt_stream *t, int rank) {
    const struct zt_device_ops *ops = zt_device_ops(d);
    static float x[WORLD][40000], y[WORLD][3000 * WORLD];
    struct zt_error err = {0};
    const struct zt_comm_inject late_ones = {11, 150000000, 0, 0};
    float *own = x[rank], *all = y[rank];
    for (int i = 0; i < 40000; i++) own[i] = 1;
    for (int i = 0; i < 3000; i++) all[rank * 3000 + i] = (float)rank;
    for (int k = 0; k < 2 * PAIRS; k++) {
        if (k == 2 * PAIRS - 8) zt_comm_inject(c, &late_ones); /* so that both streams wait for long */
        NEED(!zt_all_reduce(c, own, k % 2 ? 40000 : 100, ZT_F32, ZT_MAX, s, &why, &err));
        NEED(!zt_all_gather(h, all + rank * 3000, all, 3000, ZT_F32, t, &why, &err));
    }
    NEED(!ops->stream_sync(s, &err) && !ops->stream_sync(t, &err));
    for (int i = 0; i < 3000 * WORLD; i++) NEED(all[i] == (float)(i / 3000));
}

static void *aborter(void *arg) {
    while (atomic_load(&late) < WORLD - 1) sched_yield();
    zt_comm_abort(arg);
    return NULL;
}

static void *rank_main(void *arg) {
    const int rank = (int)(intptr_t)arg;
    struct zt_device_config config = {"cpu", 64 * ZT_MIB};
    struct zt_device *d = NULL;
    struct zt_ledger ledger;
    struct zt_alloc *a = NULL;
    struct zt_comm *c = NULL, *g = NULL, *h = NULL;
    struct zt_stream *s = NULL, *t = NULL;
    struct zt_error err = {0};
    const int pair[2][2] = {{0, 1}, {2}};
    zt_ledger_init(&ledger);
    NEED(!zt_device_open(&config, &d, &err));
    const struct zt_device_ops *ops = zt_device_ops(d);
    NEED(!zt_alloc_create(d, &ledger, NULL, &a, &err));
    NEED(!ops->stream_create(d, ZT_STREAM_REDUCE, &s, &err));
    NEED(!ops->stream_create(d, ZT_STREAM_GATHER, &t, &err));
    NEED(!zt_comm_init_at(doors[rank], &id, rank, WORLD, d, 60, &c, &err));
    NEED(!zt_comm_split(c, "pair", pair[rank / 2], rank / 2 ? 1 : 2, &g, &err));
    NEED(!zt_comm_split(c, "dp", (const int[]){0, 1, 2}, 3, &h, &err));
    rounds(d, a, c, g, s, t, rank);
    two_groups(d, c, h, s, t, rank);
    atomic_fetch_add(&logs, (int)zt_comm_totals(c).collectives);
    zt_alloc_destroy(a);
    NEED(ledger.reserved == 0 && ledger.allocated == 0);
    /* the last rank never comes; a second thread of rank 0 ends the wait of the others */
    pthread_t helper;
    float x = 0;
    if (rank == 0) pthread_create(&helper, NULL, aborter, c);
    if (rank < WORLD - 1) {
        NEED(!zt_all_reduce(c, &x, 1, ZT_F32, ZT_SUM, s, &why, &err));
        atomic_fetch_add(&late, 1);
        NEED(ops->stream_sync(s, &err) == ZT_ECOMM && strstr(err.msg, "aborted by rank 0"));
        atomic_fetch_add(&told, 1);
    } else { /* nor does it leave, before they know */
        while (atomic_load(&told) < WORLD - 1) sched_yield();
    }
    if (rank == 0) pthread_join(helper, NULL);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
    zt_comm_destroy(g);
    zt_comm_destroy(h);
    zt_comm_destroy(c);
    zt_device_close(d);
    return NULL;
}

static void open_doors(void) {
    struct zt_error err = {0};
    for (int i = 0; i < WORLD; i++) {
        char host[8], address[16];
        doors[i] = NULL;
        if (!hosts) continue;
        snprintf(host, sizeof host, "host-%c", hosts[i]);
        snprintf(address, sizeof address, "127.0.0.%d", 2 + hosts[i] - 'a');
        NEED(!zt_comm_door_open(&(struct zt_comm_site){host, address, 0}, &doors[i], &err));
    }
    NEED(!zt_comm_mint_at(doors[0], &id, &err));
}

int main(void) {
    static const char *const variants[] = {NULL, "abc", "aab"};
    struct zt_error err = {0};
    pthread_t ranks[WORLD];
    for (int v = 0; v < 3; v++) {
        hosts = variants[v];
        atomic_store(&logs, 0);
        atomic_store(&late, 0);
        atomic_store(&told, 0);
        open_doors();
        for (int i = 0; i < WORLD; i++)
            NEED(!pthread_create(&ranks[i], NULL, rank_main, (void *)(intptr_t)i));
        for (int i = 0; i < WORLD; i++) pthread_join(ranks[i], NULL);
        NEED(logs == WORLD * 2 * (ROUNDS + PAIRS));
    }
    return 0;
}
