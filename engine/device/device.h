/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/device.h: what a device gives to the allocator, the collectives and the trainer:
 * segments of memory, streams, events, copies. Implementations: cpu.c (here), cuda (a later room:
 * libzt_cuda.so, resolved by zt_device_open through the same table), sim (addresses only).
 *
 * CPU: the compute stream is the calling thread (work is done when submit returns); every other
 * stream is a real thread with a FIFO, so overlap is real. An event is a point in a stream; waiting
 * on it from the compute stream blocks the caller, from another stream it queues the wait.
 * Segments live in one memfd of the device's capacity, mapped once, fallocate'd per segment and
 * punched out when freed, so that peers can map it (D17) and a full machine is an error, not SIGBUS.
 *
 * Ownership: create/destroy pairs; memory of a segment belongs to the device. Thread rule: functions
 * are called by the trainer thread; `submit`ted functions run on the stream's thread. */
#ifndef ZT_ENGINE_DEVICE_H
#define ZT_ENGINE_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"

enum zt_stream_kind { ZT_STREAM_COMPUTE = 0, ZT_STREAM_GATHER, ZT_STREAM_REDUCE, ZT_STREAM_COPY };

struct zt_device;
struct zt_stream;
struct zt_event; /* reusable: record again when the last use was waited for */

struct zt_device_ops {
    const char *name;
    /* size is a multiple of 2 MiB; ZT_EOOM when the capacity does not hold it, ZT_ENOMEM when the
     * machine does not. */
    int (*segment_alloc)(struct zt_device *d, size_t size, void **address, struct zt_error *err);
    void (*segment_free)(struct zt_device *d, void *address, size_t size);
    int (*stream_create)(struct zt_device *d, enum zt_stream_kind kind, struct zt_stream **out,
                         struct zt_error *err);
    void (*stream_destroy)(struct zt_stream *s); /* waits for queued work */
    /* Runs fn(arg) on the stream in order. A non-zero return poisons the stream: later work is
     * skipped and stream_sync / event_sync return the code with its message. */
    int (*submit)(struct zt_stream *s, int (*fn)(void *arg, struct zt_error *err), void *arg,
                  struct zt_error *err);
    int (*stream_sync)(struct zt_stream *s, struct zt_error *err);
    int (*event_create)(struct zt_device *d, struct zt_event **out, struct zt_error *err);
    void (*event_destroy)(struct zt_event *e);
    int (*event_record)(struct zt_event *e, struct zt_stream *s, struct zt_error *err);
    /* s waits for e. Compute stream: blocks; *stalled_ns (may be NULL) gets the time stood still. */
    int (*stream_wait_event)(struct zt_stream *s, struct zt_event *e, int64_t *stalled_ns,
                             struct zt_error *err);
    bool (*event_done)(struct zt_event *e);
    int64_t (*now_ns)(struct zt_device *d); /* device clock: CLOCK_MONOTONIC on cpu, virtual on sim */
    int (*copy)(struct zt_stream *s, void *dst, const void *src, size_t bytes, struct zt_error *err);
};

struct zt_sim;
struct zt_device_config {
    const char *name;      /* "cpu", "sim"; "cuda:N" answers ZT_EUNSUPPORTED in this version */
    size_t capacity_bytes; /* what segments may hold together; multiple of 2 MiB is taken (down) */
    const struct zt_sim *sim; /* for "sim": engine/device/sim.h; borrowed */
};
int zt_device_open(const struct zt_device_config *c, struct zt_device **out, struct zt_error *err);
void zt_device_close(struct zt_device *d);
const struct zt_device_ops *zt_device_ops(const struct zt_device *d);
struct zt_stream *zt_device_compute(struct zt_device *d);
size_t zt_device_capacity(const struct zt_device *d);
/* False for sim: addresses only, which nobody may read or write. */
bool zt_device_has_memory(const struct zt_device *d);

/* CPU only, for comm/shm: the memfd behind all segments and its base address in this process. */
int zt_device_cpu_memory(const struct zt_device *d, int *fd, void **base, size_t *bytes);

#endif
