/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate_comm.c: collectives between forked ranks: within a host over shared memory, across two
 * hosts over TCP (two host names on loopback addresses; what a real network adds is not in it: that is
 * measured on connected workers, comm.measure_seconds). */
#include "worker/calibrate_int.h"

#include <stdio.h>

#include "core/units.h"
#include "engine/comm/measure.h"

#define MEET_SECONDS 30.0

struct wire {
    struct cal_rank *r;
    struct zt_device *device;
    struct zt_stream *stream;
    struct zt_comm *comm;
    void *full, *part;
    size_t full_bytes, part_bytes;
};

static void open_wire(struct wire *w)
{
    struct cal_rank *r = w->r;
    struct zt_error err = {0};
    struct zt_comm_door *door = NULL;
    w->full_bytes = zt_round_up((size_t)zt_measure_full(r->most, r->ranks) * 4, 2 * ZT_MIB);
    w->part_bytes = zt_round_up((size_t)zt_measure_part(r->most, r->ranks) * 4, 2 * ZT_MIB);
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

static void print_row(void *arg, const struct zt_measured *m)
{
    const struct cal_rank *r = arg;
    char text[512];
    zt_measured_json(m, r->across, r->across ? r->ranks / 2 : r->ranks, text, sizeof(text));
    if (r->rank == 0) {
        puts(text);
    }
}

void zw_cal_collectives(struct cal_rank *r)
{
    struct wire w = {.r = r};
    struct zt_error err = {0};
    int64_t largest;
    open_wire(&w);
    struct zt_measure m = {.comm = w.comm, .control = w.comm, .device = w.device, .stream = w.stream, .full = w.full,
                           .part = w.part, .most = r->most, .seconds = r->until - zw_cal_now(), .arg = r,
                           .row = print_row};
    zw_cal_must(zt_comm_measure(&m, &largest, &err), &err);
    if (r->rank == 0 && largest < r->most) {
        printf("{\"cut\":\"messages %s up to %lld bytes: larger ones do not fit the time\"}\n",
               r->across ? "across hosts" : "within a host", (long long)largest);
    }
    close_wire(&w);
}
