/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate_comm.c: collectives between forked ranks: within a host over shared memory, across two
 * hosts over TCP (two host names on loopback addresses; what a real network adds is not in it). */
#include "worker/calibrate_int.h"

#include <stdio.h>
#include <string.h>

#include "core/units.h"

#define INNER_SECONDS 2e-3
#define INNER_MOST 32
#define MEET_SECONDS 30.0
#define LEAST_BYTES 4096

static const struct { enum zt_coll coll; enum zt_cost_coll cost; } kinds[CAL_COLLS] = {
    {ZT_COLL_ALL_REDUCE, ZT_COST_ALL_REDUCE},
    {ZT_COLL_ALL_GATHER, ZT_COST_ALL_GATHER},
    {ZT_COLL_REDUCE_SCATTER, ZT_COST_REDUCE_SCATTER}};

struct wire {
    struct cal_rank *r;
    struct zt_device *device;
    struct zt_stream *stream;
    struct zt_comm *comm;
    void *full, *part;
    size_t full_bytes, part_bytes;
};

/* 4 KiB, 16 KiB, ... */
static int64_t size_of(int i)
{
    return (int64_t)LEAST_BYTES << (2 * i);
}

static void open_wire(struct wire *w)
{
    struct cal_rank *r = w->r;
    struct zt_error err = {0};
    struct zt_comm_door *door = NULL;
    w->full_bytes = zt_round_up((size_t)r->most + (size_t)r->ranks * 4, 2 * ZT_MIB);
    w->part_bytes = zt_round_up((size_t)(r->most / r->ranks) + 4, 2 * ZT_MIB);
    struct zt_device_config dc = {.name = "cpu", .capacity_bytes = w->full_bytes + w->part_bytes};
    zw_cal_must(zt_device_open(&dc, &w->device, &err), &err);
    const struct zt_device_ops *ops = zt_device_ops(w->device);
    zw_cal_must(ops->segment_alloc(w->device, w->full_bytes, &w->full, &err), &err);
    zw_cal_must(ops->segment_alloc(w->device, w->part_bytes, &w->part, &err), &err);
    zw_cal_must(ops->stream_create(w->device, ZT_STREAM_REDUCE, &w->stream, &err), &err);
    if (r->across) {
        bool second = r->rank >= r->ranks / 2;
        struct zt_comm_site site = {second ? "calibrate-b" : "calibrate-a", second ? "127.0.0.3" : "127.0.0.2", 0};
        zw_cal_must(zt_comm_door_open(&site, &door, &err), &err);
    }
    if (r->rank == 0) {
        zw_cal_must(zt_comm_mint_at(door, &r->board->id, &err), &err);
    }
    zw_cal_meet(r->board);
    zw_cal_must(zt_comm_init_at(door, &r->board->id, r->rank, r->ranks, w->device, MEET_SECONDS, &w->comm, &err),
                &err);
}

static void close_wire(struct wire *w)
{
    const struct zt_device_ops *ops = zt_device_ops(w->device);
    zt_comm_destroy(w->comm);
    ops->stream_destroy(w->stream);
    ops->segment_free(w->device, w->full, w->full_bytes);
    ops->segment_free(w->device, w->part, w->part_bytes);
    zt_device_close(w->device);
}

/* Zeros are added to zeros: the values stay, and cost what others do. */
static void launch(struct wire *w, enum zt_coll kind, int64_t share)
{
    static const struct zt_coll_why why = {.unit = "calibrate", .reason = "measured"};
    struct zt_error err = {0};
    int rc = 0;
    if (kind == ZT_COLL_ALL_REDUCE) {
        rc = zt_all_reduce(w->comm, w->full, share * w->r->ranks, ZT_F32, ZT_SUM, w->stream, &why, &err);
    } else if (kind == ZT_COLL_ALL_GATHER) {
        rc = zt_all_gather(w->comm, w->part, w->full, share, ZT_F32, w->stream, &why, &err);
    } else {
        rc = zt_reduce_scatter(w->comm, w->full, w->part, share, ZT_F32, ZT_SUM, w->stream, &why, &err);
    }
    zw_cal_must(rc, &err);
    zw_cal_must(zt_device_ops(w->device)->stream_sync(w->stream, &err), &err);
}

/* Floats of one rank's share of a message. */
static int64_t share_of(const struct wire *w, int size)
{
    return zt_ceil_div(size_of(size) / 4, w->r->ranks);
}

/* The sum of ones is the number of ranks; the times of a link that adds wrongly are worth nothing. */
static void check(struct wire *w)
{
    int64_t share = share_of(w, 0), n = share * w->r->ranks;
    float *v = w->full;
    struct zt_error err;
    for (int64_t i = 0; i < n; i++) {
        v[i] = 1;
    }
    launch(w, ZT_COLL_ALL_REDUCE, share);
    for (int64_t i = 0; i < n; i++) {
        if (v[i] != (float)w->r->ranks) {
            zw_cal_must(zt_fail(&err, ZT_EINTERNAL, "an all-reduce of ones gave %g", (double)v[i]), &err);
        }
        v[i] = 0;
    }
}

/* One kind on one size: a meeting, then as many in a row as the first said. */
static double measure(struct wire *w, int kind, int size, int times)
{
    int64_t share = share_of(w, size);
    zw_cal_meet(w->r->board);
    double from = zw_cal_now();
    for (int i = 0; i < times; i++) {
        launch(w, kinds[kind].coll, share);
    }
    return (zw_cal_now() - from) / times;
}

/* How often to repeat a size so that a measurement has some length; rank 0's word. */
static int agree(struct wire *w, int value)
{
    struct cal_board *b = w->r->board;
    zw_cal_meet(b);
    if (w->r->rank == 0) {
        b->more = value;
    }
    zw_cal_meet(b);
    return b->more;
}

/* Ascending sizes once, to warm up, to see how often each can be repeated and how far time goes: a size
 * is left out when all that is still to be measured would not fit the budget. */
static int explore(struct wire *w, int times[CAL_SIZES])
{
    double spent = 0;
    int n = 0;
    while (n < CAL_SIZES && size_of(n) <= w->r->most) {
        double slowest = 0;
        for (int k = 0; k < CAL_COLLS; k++) {
            double t = measure(w, k, n, 1);
            t = measure(w, k, n, 1);
            slowest = t > slowest ? t : slowest;
        }
        double fit = INNER_SECONDS / (slowest > 1e-9 ? slowest : 1e-9);
        times[n] = agree(w, fit < 1 ? 1 : fit > INNER_MOST ? INNER_MOST : (int)fit);
        spent += slowest * CAL_COLLS * (times[n] + 2);
        n++;
        /* the next size takes four times as long, five times over: twice here, then three rounds */
        double next = 4 * slowest * CAL_COLLS * 5 + 3 * spent;
        if (!agree(w, n < 3 || zw_cal_now() + next < w->r->until)) {
            break;
        }
    }
    return n;
}

static void print_row(const struct wire *w, int kind, int size, double *seconds, int rounds)
{
    const struct cal_rank *r = w->r;
    int64_t bytes = share_of(w, size) * r->ranks * 4;
    printf("{\"collective\":\"%s\",\"link\":\"%s\",\"ranks\":%d,\"per_host\":%d,\"bytes\":%lld,\"sent_bytes\":%.17g,"
           "\"rounds\":%d,\"seconds\":%.9g}\n",
           zt_coll_name(kinds[kind].coll), r->across ? "across" : "within", r->ranks,
           r->across ? r->ranks / 2 : r->ranks, (long long)bytes, zt_cost_sent(kinds[kind].cost, r->ranks, bytes),
           zt_cost_rounds(kinds[kind].cost, r->ranks), zw_cal_median(seconds, rounds));
}

void zw_cal_collectives(struct cal_rank *r)
{
    static double seconds[CAL_SIZES][CAL_COLLS][CAL_ROUNDS];
    struct wire w = {.r = r};
    int times[CAL_SIZES];
    open_wire(&w);
    check(&w);
    int sizes = explore(&w, times), rounds = 0;
    if (r->rank == 0 && sizes < CAL_SIZES && size_of(sizes) <= r->most) {
        printf("{\"cut\":\"messages %s up to %lld bytes: larger ones do not fit the time\"}\n",
               r->across ? "across hosts" : "within a host", (long long)size_of(sizes - 1));
    }
    do {
        for (int s = 0; s < sizes; s++) {
            for (int k = 0; k < CAL_COLLS; k++) {
                seconds[s][k][rounds] = measure(&w, k, s, times[s]);
            }
        }
        rounds++;
    } while (agree(&w, rounds < 3 || (rounds < CAL_ROUNDS && zw_cal_now() < r->until)));
    for (int s = 0; r->rank == 0 && s < sizes; s++) {
        for (int k = 0; k < CAL_COLLS; k++) {
            print_row(&w, k, s, seconds[s][k], rounds);
        }
    }
    close_wire(&w);
}
