/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/sim.c: the simulated device: addresses without memory, streams that are clocks.
 * What is submitted runs at once, in program order, so every run of a program gives the same times.
 *
 * Two kinds (zt_cost_device.queued):
 *   cpu   the compute stream is the host: it stands still in a wait, and what it submits to another
 *         stream starts no earlier than the moment of submitting.
 *   gpu   the host has a clock of its own, which advances by host_ns with every operator; a stream
 *         works on an item once the host has queued it and its last one is done.
 * Owner and thread rule: engine/device/sim.h. */
#include "engine/device/sim.h"
#include <stdlib.h>
#include "engine/device/backend.h"

#define BASE ((uintptr_t)1 << 40) /* of all addresses; nothing is ever mapped there */
#define ROOM ((size_t)1 << 60)
#define CLOCK_MAX (INT64_MAX / 2) /* a clock that has come so far stands still: 146 years */

struct zt_stream {
    struct zt_device *device;
    int64_t at_ns;
    int code; /* of the first function that failed; later work is skipped */
    struct zt_error error;
};
struct zt_event {
    int64_t at_ns;
};

struct sim_device {
    struct zt_device base;
    const struct zt_sim *sim;
    struct zt_places segments;
    struct zt_stream *running; /* whose item is being carried out */
    int64_t host_ns;           /* of the host, when it is not the compute stream */
};

static struct sim_device *of(struct zt_device *d) { return (struct sim_device *)d; }

static bool queued(const struct sim_device *d) { return d->sim->device->queued; }

/* When the host gets to it. */
static int64_t host_now(const struct sim_device *d) {
    return queued(d) ? d->host_ns : d->base.compute->at_ns;
}

static void at_least(int64_t *clock, int64_t instant) {
    if (*clock < instant) *clock = instant;
}

/* A cost that no int64 holds comes as a negative one. */
static void advance(const struct sim_device *d, int64_t *clock, int64_t ns) {
    *clock = ns >= 0 && ns < CLOCK_MAX - *clock ? *clock + ns : CLOCK_MAX;
    if (*clock == CLOCK_MAX && d->sim->overrun) *d->sim->overrun = true;
}

/* ---- memory ---- */

static int segment_alloc(struct zt_device *base, size_t bytes, void **address,
                         struct zt_error *err) {
    struct sim_device *d = of(base);
    size_t offset = 0;
    *address = NULL;
    int rc = zt_places_take(&d->segments, bytes, &offset, err);
    if (rc) return rc;
    *address = (void *)(BASE + offset);
    return 0;
}

static void segment_free(struct zt_device *base, void *address, size_t bytes) {
    struct sim_device *d = of(base);
    zt_places_give(&d->segments, (uintptr_t)address - BASE, bytes);
}

/* ---- streams ---- */

static int stream_create(struct zt_device *d, enum zt_stream_kind kind, struct zt_stream **out,
                         struct zt_error *err) {
    (void)kind;
    *out = calloc(1, sizeof **out);
    if (!*out) return zt_fail(err, ZT_ENOMEM, "device \"sim\": host memory for a stream");
    (*out)->device = d;
    (*out)->at_ns = 1; /* 0 is "not yet" to those who read times */
    return 0;
}
static void stream_destroy(struct zt_stream *s) { free(s); }

static int report(const struct zt_stream *s, struct zt_error *err) {
    if (s->code && err) *err = s->error;
    return s->code;
}

static int submit(struct zt_stream *s, int (*fn)(void *arg, struct zt_error *err), void *arg,
                  struct zt_error *err) {
    struct sim_device *d = of(s->device);
    struct zt_stream *before = d->running;
    struct zt_error local; /* 2 KiB: filled where something fails */
    if (s->code) return s == d->base.compute ? report(s, err) : 0;
    at_least(&s->at_ns, host_now(d));
    d->running = s;
    local.msg[0] = '\0';
    int rc = fn(arg, &local);
    d->running = before;
    if (!rc) return 0;
    s->code = local.code = rc;
    s->error = local;
    return s == d->base.compute ? report(s, err) : 0;
}

static int stream_sync(struct zt_stream *s, struct zt_error *err) {
    struct sim_device *d = of(s->device);
    at_least(queued(d) ? &d->host_ns : &d->base.compute->at_ns, s->at_ns);
    return report(s, err);
}

static int event_create(struct zt_device *d, struct zt_event **out, struct zt_error *err) {
    (void)d;
    *out = calloc(1, sizeof **out);
    return *out ? 0 : zt_fail(err, ZT_ENOMEM, "device \"sim\": host memory for an event");
}
static void event_destroy(struct zt_event *e) { free(e); }

static int event_record(struct zt_event *e, struct zt_stream *s, struct zt_error *err) {
    at_least(&s->at_ns, host_now(of(s->device)));
    e->at_ns = s->at_ns;
    return report(s, err);
}

static int stream_wait_event(struct zt_stream *s, struct zt_event *e, int64_t *stalled_ns,
                             struct zt_error *err) {
    at_least(&s->at_ns, host_now(of(s->device)));
    int64_t from = s->at_ns;
    at_least(&s->at_ns, e->at_ns);
    if (stalled_ns) *stalled_ns = s->at_ns - from;
    return report(s, err);
}

static bool event_done(struct zt_event *e) {
    (void)e;
    return true; /* whoever asks must not depend on it; the allocator does not */
}

static int64_t now_ns(struct zt_device *d) { return of(d)->running->at_ns; }

static int copy(struct zt_stream *s, void *dst, const void *src, size_t bytes,
                struct zt_error *err) {
    (void)dst, (void)src;
    struct sim_device *d = of(s->device);
    struct zt_stream *before = d->running;
    d->running = s;
    zt_sim_work(s->device, zt_cost_ns(d->sim->device, zt_work_bytes(2.0 * (double)bytes)));
    d->running = before;
    return report(s, err);
}

/* ---- the seams ---- */

void zt_sim_work(struct zt_device *base, int64_t ns) {
    struct sim_device *d = of(base);
    struct zt_stream *s = d->running;
    if (queued(d)) advance(d, &d->host_ns, d->sim->device->host_ns);
    at_least(&s->at_ns, host_now(d));
    double slow = d->sim->slowdown > 1 && s == base->compute ? (double)ns * d->sim->slowdown : 0;
    advance(d, &s->at_ns, slow < (double)CLOCK_MAX ? (slow > 0 ? (int64_t)slow : ns) : CLOCK_MAX);
}

void zt_sim_until(struct zt_device *base, int64_t instant_ns) {
    struct sim_device *d = of(base);
    int64_t *clock = &d->running->at_ns;
    if (instant_ns > *clock) advance(d, clock, instant_ns - *clock);
}

static const struct zt_device_ops sim_ops = {
    .name = "sim",
    .segment_alloc = segment_alloc,
    .segment_free = segment_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .submit = submit,
    .stream_sync = stream_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .stream_wait_event = stream_wait_event,
    .event_done = event_done,
    .now_ns = now_ns,
    .copy = copy,
};

const struct zt_sim *zt_device_sim(const struct zt_device *d) {
    return d->ops == &sim_ops ? ((const struct sim_device *)d)->sim : NULL;
}

static void sim_close(struct zt_device *base) {
    struct sim_device *d = of(base);
    free(base->compute);
    zt_places_free(&d->segments);
    free(d);
}

static int sim_open(int ordinal, const struct zt_device_config *c, struct zt_device **out,
                    struct zt_error *err) {
    (void)ordinal;
    *out = NULL;
    if (!c->sim || !c->sim->device)
        return zt_fail(err, ZT_EINVAL,
                       "device \"sim\" is described by its caller; it is for plans: zctl plan");
    struct sim_device *d = calloc(1, sizeof *d);
    if (!d) return zt_fail(err, ZT_ENOMEM, "device \"sim\": host memory");
    d->base.ops = &sim_ops;
    d->base.addresses_only = true;
    d->base.capacity = c->capacity_bytes;
    d->base.close = sim_close;
    d->sim = c->sim;
    d->segments.room = ROOM;
    d->segments.capacity = c->capacity_bytes;
    int rc = stream_create(&d->base, ZT_STREAM_COMPUTE, &d->base.compute, err);
    if (rc) {
        free(d);
        return rc;
    }
    d->running = d->base.compute;
    *out = &d->base;
    return 0;
}
const struct zt_device_backend zt_sim_backend = {ZT_BACKEND_ABI, "sim", sim_open};
