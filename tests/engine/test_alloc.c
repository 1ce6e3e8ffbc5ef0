/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_alloc.c: the caching allocator: the table of PyTorch's rules row by row, each
 * rule on its own, and a brute-force model (linear searches, every figure recounted from nothing)
 * that must pick the same addresses over thousands of seeded operations. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/falloc.h>
#include "core/units.h"
#include "engine/device/alloc.h"
#include "engine/device/backend.h"

#define KIB ZT_KIB
#define MIB ZT_MIB

struct rig {
    struct zt_device *d;
    struct zt_ledger l;
    struct zt_alloc *a;
    struct zt_error err;
};

/* Pages on first touch only: the model test moves tens of GiB of segments it hardly writes to. */
static int sparse_fallocate(int fd, int mode, int64_t offset, int64_t bytes) {
    return mode & FALLOC_FL_PUNCH_HOLE ? zt_cpu_os_linux.fallocate(fd, mode, offset, bytes) : 0;
}
static int64_t unknown(void) { return -1; }
static void no_populate(void *address, size_t bytes) { (void)address, (void)bytes; }
static const struct zt_cpu_os sparse = {sparse_fallocate, unknown, no_populate};

static void rig_open(struct rig *r, size_t capacity, const struct zt_alloc_options *o) {
    struct zt_device_config c = {"cpu", capacity};
    memset(r, 0, sizeof *r);
    zt_ledger_init(&r->l);
    cr_assert_eq(zt_device_open(&c, &r->d, &r->err), 0, "%s", r->err.msg);
    cr_assert_eq(zt_alloc_create(r->d, &r->l, o, &r->a, &r->err), 0, "%s", r->err.msg);
}
static void rig_close(struct rig *r) {
    zt_alloc_destroy(r->a);
    cr_assert_eq(r->l.allocated, 0);
    cr_assert_eq(r->l.reserved, 0);
    zt_device_close(r->d);
}
static void *get(struct rig *r, size_t n) {
    void *p = NULL;
    cr_assert_eq(zt_malloc(r->a, n, NULL, ZT_TAG_ACTIVATIONS, "x", &p, &r->err), 0, "%s",
                 r->err.msg);
    if (p) memset(p, 1, n); /* the bytes are real */
    return p;
}
static void row(const struct rig *r, int64_t allocated, int64_t reserved, int64_t split,
                int64_t requested) {
    const struct zt_alloc_stats *s = zt_alloc_stats(r->a);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].current, allocated);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].current, reserved);
    cr_assert_eq(s->inactive_split_bytes[ZT_POOL_ALL].current, split);
    cr_assert_eq(s->requested_bytes[ZT_POOL_ALL].current, requested);
    cr_assert_eq(r->l.allocated, allocated);
    cr_assert_eq(r->l.reserved, reserved);
}

Test(alloc, table) {
    struct rig r;
    rig_open(&r, 256 * MIB, NULL);
    char *a = get(&r, MIB);
    row(&r, 1048576, 2097152, 1048576, 1048576);
    char *b = get(&r, MIB);
    row(&r, 2097152, 2097152, 0, 2097152);
    cr_assert_eq(b, a + MIB);
    char *c = get(&r, 3 * MIB);
    row(&r, 5242880, 23068672, 17825792, 5242880);
    char *d = get(&r, 17 * MIB);
    row(&r, 23068672, 23068672, 0, 23068672);
    zt_free(r.a, c);
    row(&r, 19922944, 23068672, 3145728, 19922944);
    char *e = get(&r, 5 * MIB / 2);
    row(&r, 23068672, 23068672, 0, 22544384);
    cr_assert_eq(e, c);
    char *f = get(&r, 10 * MIB + 1);
    row(&r, 33554944, 35651584, 2096640, 33030145);
    char *g = get(&r, 100);
    row(&r, 33555456, 37748736, 4193280, 33030245);
    cr_assert_eq(r.l.max_unused_reserved, 17825792);
    zt_free(r.a, g);
    zt_free(r.a, a), zt_free(r.a, b), zt_free(r.a, d), zt_free(r.a, e), zt_free(r.a, f);
    row(&r, 0, 37748736, 0, 0);
    zt_alloc_empty_cache(r.a);
    row(&r, 0, 0, 0, 0);
    const struct zt_alloc_stats *s = zt_alloc_stats(r.a);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].peak, 33555456);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].peak, 37748736);
    cr_assert_eq(s->num_device_alloc, 4);
    cr_assert_eq(s->num_device_free, 4);
    cr_assert_eq(s->num_sync_all_streams, 1);
    cr_assert_eq(s->num_alloc_retries, 0);
    cr_assert_eq(s->num_ooms, 0);
    cr_assert_eq(s->max_split_size, -1);
    /* split by pool: small a b g, large c d e f */
    cr_assert_eq(s->allocation[ZT_POOL_SMALL].allocated, 3);
    cr_assert_eq(s->allocation[ZT_POOL_LARGE].freed, 4);
    cr_assert_eq(s->segment[ZT_POOL_SMALL].peak, 2);
    cr_assert_eq(s->segment[ZT_POOL_LARGE].peak, 2);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_SMALL].allocated, 2 * 1048576 + 512);
    zt_alloc_reset_peaks(r.a);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].peak, 0);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].peak, 0);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].allocated, s->allocated_bytes[ZT_POOL_ALL].freed);
    rig_close(&r);
}

Test(alloc, edges_of_the_size_classes) {
    /* size, segment it makes on an empty allocator, block it gets */
    const size_t t[][3] = {
        {1, 2 * MIB, 512},
        {511, 2 * MIB, 512},
        {512, 2 * MIB, 512},
        {513, 2 * MIB, 1024},
        {MIB - 512, 2 * MIB, MIB - 512},
        {MIB, 2 * MIB, MIB},
        {MIB + 1, 20 * MIB, MIB + 512},
        {10 * MIB - 512, 20 * MIB, 10 * MIB - 512},
        {10 * MIB - 511, 10 * MIB, 10 * MIB},
        {10 * MIB, 10 * MIB, 10 * MIB},
        {10 * MIB + 1, 12 * MIB, 10 * MIB + 512},
        {11 * MIB, 12 * MIB, 12 * MIB},             /* the rest is 1 MiB: not above 1 MiB, kept */
        {11 * MIB - 512, 12 * MIB, 11 * MIB - 512}, /* the rest is 1 MiB + 512: cut */
        {20 * MIB, 20 * MIB, 20 * MIB},
        {33 * MIB + 1, 34 * MIB, 34 * MIB}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct rig r;
        rig_open(&r, 64 * MIB, NULL);
        void *p = get(&r, t[i][0]);
        row(&r, (int64_t)t[i][2], (int64_t)t[i][1], (int64_t)(t[i][1] - t[i][2]), (int64_t)t[i][0]);
        cr_assert_eq(r.l.requested[ZT_TAG_ACTIVATIONS], (int64_t)((t[i][0] + 511) / 512 * 512));
        cr_assert_eq(r.l.block[ZT_TAG_ACTIVATIONS], (int64_t)t[i][2]);
        zt_free(r.a, p);
        rig_close(&r);
    }
    struct rig r;
    rig_open(&r, 64 * MIB, NULL);
    cr_assert_null(get(&r, 0));
    zt_free(r.a, NULL);
    row(&r, 0, 0, 0, 0);
    rig_close(&r);
}

Test(alloc, options_are_checked) {
    struct rig r;
    struct zt_alloc *a = NULL;
    rig_open(&r, 64 * MIB, NULL);
    struct zt_alloc_options bad[] = {{.max_split_size = 20 * MIB},
                                     {.max_split_size = 1},
                                     {.gc_threshold = -0.1},
                                     {.gc_threshold = 1.0},
                                     {.gc_threshold = 0.0 / 0.0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(zt_alloc_create(r.d, &r.l, &bad[i], &a, &r.err), ZT_EINVAL);
        cr_assert_null(a);
        cr_assert(strstr(r.err.msg, "memory."), "%s", r.err.msg);
    }
    void *p = NULL;
    cr_assert_eq(zt_malloc(r.a, 8, NULL, ZT_TAG_COUNT, "x", &p, &r.err), ZT_EINVAL);
    rig_close(&r);
}

/* A reset between steps keeps what lives: no later peak may be below it. */
Test(alloc, reset_peaks_keeps_live_bytes) {
    struct rig r;
    rig_open(&r, 64 * MIB, NULL);
    void *p = get(&r, 3 * MIB), *q = get(&r, 5 * MIB);
    zt_free(r.a, q);
    zt_ledger_set_phase(&r.l, ZT_PHASE_FORWARD);
    zt_alloc_reset_peaks(r.a);
    const struct zt_alloc_stats *s = zt_alloc_stats(r.a);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].peak, (int64_t)(3 * MIB));
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].peak, (int64_t)(20 * MIB));
    cr_assert_eq(r.l.peak_allocated, (int64_t)(3 * MIB));
    cr_assert_eq(r.l.phase_of_peak, ZT_PHASE_FORWARD);
    zt_free(r.a, p);
    cr_assert_eq(r.l.peak_allocated, (int64_t)(3 * MIB));
    rig_close(&r);
}

Test(alloc, empty_cache_leaves_live_segments) {
    struct rig r;
    rig_open(&r, 128 * MIB, NULL);
    void *p = get(&r, 3 * MIB), *q = get(&r, 30 * MIB), *s = get(&r, 100);
    zt_free(r.a, q);
    memset(p, 7, 3 * MIB);
    zt_alloc_empty_cache(r.a);
    row(&r, (int64_t)(3 * MIB) + 512, (int64_t)(22 * MIB), (int64_t)(17 * MIB + 2 * MIB) - 512,
        (int64_t)(3 * MIB) + 100);
    cr_assert_eq(((char *)p)[3 * MIB - 1], 7);
    zt_free(r.a, p), zt_free(r.a, s);
    rig_close(&r);
}

/* ---- out of memory ---- */

Test(alloc, capacity_report) {
    struct rig r;
    rig_open(&r, 32 * MIB, NULL);
    void *p = NULL, *w = NULL, *g = NULL;
    cr_assert_eq(zt_malloc(r.a, 20 * MIB, NULL, ZT_TAG_PARAMETERS, "h.0", &w, &r.err), 0);
    cr_assert_eq(zt_malloc(r.a, 300, NULL, ZT_TAG_GRADIENTS, "grad", &g, &r.err), 0);
    zt_ledger_set_phase(&r.l, ZT_PHASE_OPTIMIZER);
    cr_assert_eq(zt_malloc(r.a, 12 * MIB, NULL, ZT_TAG_OPTIMIZER, "m and v", &p, &r.err), ZT_EOOM);
    cr_assert_null(p);
    const struct zt_oom *o = zt_alloc_last_oom(r.a);
    cr_assert_eq(o->request, (int64_t)(12 * MIB));
    cr_assert_eq(o->capacity, (int64_t)(32 * MIB));
    cr_assert_eq(o->reserved, (int64_t)(22 * MIB));
    cr_assert_eq(o->allocated, (int64_t)(20 * MIB) + 512);
    cr_assert_eq(o->free_device, (int64_t)(10 * MIB));
    cr_assert_eq(o->largest_free_block, (int64_t)(2 * MIB) - 512);
    cr_assert_eq(o->inactive_split_bytes, (int64_t)(2 * MIB) - 512);
    cr_assert_eq(o->tag, ZT_TAG_OPTIMIZER);
    cr_assert_eq(o->phase, ZT_PHASE_OPTIMIZER);
    cr_assert_not(o->fragmentation);
    cr_assert_str_eq(o->what, "m and v");
    cr_assert_eq(o->by_tag[ZT_TAG_PARAMETERS], (int64_t)(20 * MIB));
    cr_assert_eq(o->by_tag[ZT_TAG_GRADIENTS], 512);
    const char *parts[] = {"\"m and v\" (optimizer)",
                           "12582912",
                           "phase optimizer",
                           "capacity 33554432",
                           "reserved 23068672",
                           "allocated 20972032",
                           "free on the device 10485760",
                           "largest free block 2096640",
                           "inactive_split 2096640",
                           "parameters 20971520",
                           "gradients 512",
                           "biggest: h.0 (parameters) 20971520",
                           "cause: capacity",
                           "--memory-gib"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_assert(strstr(r.err.msg, parts[i]), "%s not in: %s", parts[i], r.err.msg);
    cr_assert_null(strstr(r.err.msg, "fragmentation"));
    cr_assert_eq(zt_alloc_stats(r.a)->num_ooms, 1);
    cr_assert_eq(zt_alloc_stats(r.a)->num_alloc_retries, 1);
    p = get(&r, 10 * MIB); /* it goes on working */
    zt_free(r.a, p), zt_free(r.a, w), zt_free(r.a, g);
    cr_assert_eq(zt_malloc(r.a, SIZE_MAX, NULL, ZT_TAG_TEMPORARY, "huge", &p, &r.err), ZT_EOOM);
    cr_assert_eq(zt_alloc_last_oom(r.a)->request, INT64_MAX);
    rig_close(&r);
}

/* 16 MiB lie free in one block, but of the pool of large blocks: no segment for the small ones. */
Test(alloc, a_block_of_the_other_pool_is_no_fragmentation) {
    struct rig r;
    rig_open(&r, 20 * MIB, NULL);
    void *p = get(&r, 4 * MIB), *q = NULL;
    cr_assert_eq(zt_malloc(r.a, 512, NULL, ZT_TAG_TEMPORARY, "token losses", &q, &r.err), ZT_EOOM);
    cr_assert_eq(zt_alloc_last_oom(r.a)->largest_free_block, (int64_t)(16 * MIB));
    cr_assert_not(zt_alloc_last_oom(r.a)->fragmentation);
    cr_assert(strstr(r.err.msg, "cause: capacity"), "%s", r.err.msg);
    zt_free(r.a, p);
    rig_close(&r);
}

/* Two 20 MiB segments with 4 MiB in use in the middle of each: 32 MiB lie unused, no hole has 12.
 */
Test(alloc, fragmentation_report) {
    struct rig r;
    rig_open(&r, 40 * MIB, NULL);
    void *p[10], *q = NULL;
    for (int i = 0; i < 10; i++) p[i] = get(&r, 4 * MIB);
    for (int i = 0; i < 10; i++)
        if (i != 2 && i != 7) zt_free(r.a, p[i]);
    row(&r, (int64_t)(8 * MIB), (int64_t)(40 * MIB), (int64_t)(32 * MIB), (int64_t)(8 * MIB));
    cr_assert_eq(zt_malloc(r.a, 12 * MIB, NULL, ZT_TAG_TEMPORARY, "ws", &q, &r.err), ZT_EOOM);
    cr_assert(zt_alloc_last_oom(r.a)->fragmentation);
    cr_assert_eq(zt_alloc_last_oom(r.a)->largest_free_block, (int64_t)(8 * MIB));
    cr_assert(strstr(r.err.msg, "cause: fragmentation"), "%s", r.err.msg);
    /* 33 MiB is beyond what lies unused: capacity, though fragmented too */
    cr_assert_eq(zt_malloc(r.a, 32 * MIB + 1, NULL, ZT_TAG_TEMPORARY, "ws", &q, &r.err), ZT_EOOM);
    cr_assert_not(zt_alloc_last_oom(r.a)->fragmentation);
    zt_free(r.a, p[2]), zt_free(r.a, p[7]);
    rig_close(&r);
}

/* A cached segment is given back when the capacity is needed in another shape: one retry, no OOM.
 */
Test(alloc, retry_after_release) {
    struct rig r;
    rig_open(&r, 32 * MIB, NULL);
    zt_free(r.a, get(&r, 3 * MIB));
    void *p = get(&r, 30 * MIB);
    const struct zt_alloc_stats *s = zt_alloc_stats(r.a);
    cr_assert_eq(s->num_alloc_retries, 1);
    cr_assert_eq(s->num_ooms, 0);
    cr_assert_eq(s->num_sync_all_streams, 1);
    row(&r, (int64_t)(30 * MIB), (int64_t)(30 * MIB), 0, (int64_t)(30 * MIB));
    zt_free(r.a, p);
    rig_close(&r);
}

/* ---- other streams ---- */

struct gate {
    _Atomic int open;
};
static int wait_gate(void *arg, struct zt_error *err) {
    struct gate *g = arg;
    (void)err;
    while (!atomic_load(&g->open)) sched_yield();
    return 0;
}

Test(alloc, record_stream_keeps_the_block_active, .timeout = 60) {
    struct rig r;
    struct zt_stream *s = NULL, *t = NULL;
    struct gate gs = {0}, gt = {0};
    rig_open(&r, 64 * MIB, NULL);
    const struct zt_device_ops *ops = zt_device_ops(r.d);
    const struct zt_alloc_stats *st = zt_alloc_stats(r.a);
    cr_assert_eq(ops->stream_create(r.d, ZT_STREAM_GATHER, &s, &r.err), 0);
    cr_assert_eq(ops->stream_create(r.d, ZT_STREAM_REDUCE, &t, &r.err), 0);
    void *p = get(&r, MIB), *q = get(&r, MIB);
    cr_assert_eq(zt_record_stream(r.a, p, zt_device_compute(r.d), &r.err), 0); /* own: no effect */
    cr_assert_eq(zt_record_stream(r.a, p, s, &r.err), 0);
    cr_assert_eq(zt_record_stream(r.a, p, t, &r.err), 0);
    cr_assert_eq(zt_record_stream(r.a, p, t, &r.err), 0);
    cr_assert_eq(ops->submit(s, wait_gate, &gs, &r.err), 0);
    cr_assert_eq(ops->submit(t, wait_gate, &gt, &r.err), 0);
    zt_free(r.a, p);
    cr_assert_eq(st->allocated_bytes[ZT_POOL_ALL].current, (int64_t)MIB); /* at once */
    cr_assert_eq(st->active_bytes[ZT_POOL_ALL].current, (int64_t)(2 * MIB));
    cr_assert_eq(st->requested_bytes[ZT_POOL_ALL].current, (int64_t)(2 * MIB));
    cr_assert_eq(r.l.allocated, (int64_t)MIB);
    void *n = get(&r, MIB); /* must not be p */
    cr_assert_neq(n, p);
    zt_free(r.a, q); /* its neighbour is pending: not merged */
    cr_assert_eq(st->inactive_split[ZT_POOL_ALL].current, 2);
    atomic_store(&gs.open, 1);
    cr_assert_eq(ops->stream_sync(s, &r.err), 0);
    zt_free(r.a, get(&r, MIB + 1));
    cr_assert_eq(st->active[ZT_POOL_SMALL].current, 2); /* t still holds it */
    atomic_store(&gt.open, 1);
    zt_alloc_empty_cache(r.a); /* waits for t */
    row(&r, (int64_t)MIB, (int64_t)(2 * MIB), (int64_t)MIB, (int64_t)MIB);
    cr_assert_eq(zt_record_stream(r.a, q, s, &r.err), ZT_EINVAL); /* freed */
    cr_assert_eq(zt_record_stream(r.a, NULL, s, &r.err), 0);
    zt_free(r.a, n);
    zt_alloc_destroy(r.a);
    ops->stream_destroy(s), ops->stream_destroy(t);
    zt_device_close(r.d);
}

Test(alloc, a_block_serves_its_own_stream_only) {
    struct rig r;
    struct zt_stream *s = NULL;
    void *p = NULL, *q = NULL;
    rig_open(&r, 64 * MIB, NULL);
    const struct zt_device_ops *ops = zt_device_ops(r.d);
    cr_assert_eq(ops->stream_create(r.d, ZT_STREAM_GATHER, &s, &r.err), 0);
    cr_assert_eq(zt_malloc(r.a, 512, s, ZT_TAG_TEMPORARY, "s", &p, &r.err), 0);
    cr_assert_eq(zt_malloc(r.a, 512, NULL, ZT_TAG_TEMPORARY, "c", &q, &r.err), 0);
    cr_assert_eq(zt_alloc_stats(r.a)->num_device_alloc, 2); /* not cut from s's segment */
    zt_free(r.a, p);
    void *again = NULL;
    cr_assert_eq(zt_malloc(r.a, 512, s, ZT_TAG_TEMPORARY, "s", &again, &r.err), 0);
    cr_assert_eq(again, p);
    zt_free(r.a, again), zt_free(r.a, q);
    rig_close(&r);
    ops->stream_destroy(s);
}

/* ---- options ---- */

Test(alloc, max_split_size) {
    struct rig r;
    struct zt_alloc_options o = {.max_split_size = 32 * MIB};
    rig_open(&r, 200 * MIB, &o);
    const struct zt_alloc_stats *s = zt_alloc_stats(r.a);
    cr_assert_eq(s->max_split_size, (int64_t)(32 * MIB));
    void *p = get(&r, 64 * MIB);
    cr_assert_eq(s->oversize_allocations, 1);
    cr_assert_eq(s->oversize_segments, 1);
    zt_free(r.a, p);
    cr_assert_eq(s->oversize_allocations, 0);
    void *q = get(&r, 24 * MIB); /* below the limit: must not take the 64 MiB block */
    cr_assert_eq(s->num_device_alloc, 2);
    void *b = get(&r, 50 * MIB); /* above: takes it whole, 14 MiB of slack is within 20 */
    cr_assert_eq(b, p);
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].current, (int64_t)(88 * MIB));
    cr_assert_eq(r.l.requested[ZT_TAG_ACTIVATIONS], (int64_t)(74 * MIB));
    cr_assert_eq(r.l.block[ZT_TAG_ACTIVATIONS], (int64_t)(88 * MIB));
    zt_free(r.a, b);
    void *c = get(&r, 44 * MIB - 512); /* slack above 20 MiB: not taken, a new segment */
    cr_assert_eq(s->num_device_alloc, 3);
    zt_free(r.a, c);
    /* 24 + 64 + 44 = 132 reserved; 80 more is 212 > 200: just the largest needed goes, no retry */
    void *e = get(&r, 80 * MIB);
    cr_assert_eq(s->num_alloc_retries, 0);
    cr_assert_eq(s->num_device_free, 2); /* no single one has 80: 64, then 44 */
    row(&r, (int64_t)(104 * MIB), (int64_t)(104 * MIB), 0, (int64_t)(104 * MIB));
    zt_free(r.a, e), zt_free(r.a, q);
    rig_close(&r);
}

/* Threshold 0.5 of 100 MiB. A and B are free, 60 MiB reserved; a third segment triggers the sweep:
 * ages (searches since freed) are A 2, B 1, average 1.5: A goes, 30 MiB covers the excess of 10. */
Test(alloc, garbage_collection_by_age) {
    struct rig r;
    struct zt_alloc_options o = {.gc_threshold = 0.5};
    rig_open(&r, 100 * MIB, &o);
    void *a = get(&r, 30 * MIB), *b = get(&r, 30 * MIB);
    zt_free(r.a, a);
    zt_free(r.a, get(&r, 100));  /* small pool: has its own clock */
    void *c = get(&r, 34 * MIB); /* search 3; reserved 60 + 2 > 50: only a is free, so it goes */
    const struct zt_alloc_stats *s = zt_alloc_stats(r.a);
    cr_assert_eq(s->num_device_free, 1);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].current, (int64_t)(66 * MIB));
    zt_free(r.a, b);
    zt_free(r.a, c);
    zt_free(r.a, get(&r, 30 * MIB)); /* b again: younger than c now */
    void *e = get(&r, 36 * MIB);     /* ages b 1, c 2, average 1.5, excess 16: c's 34 cover it */
    cr_assert_eq(s->num_device_free, 2);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_LARGE].current, (int64_t)(66 * MIB));
    cr_assert_eq(s->num_alloc_retries, 0);
    cr_assert_eq(get(&r, 30 * MIB), b);
    zt_free(r.a, b), zt_free(r.a, e);
    rig_close(&r);
}

static int collect(void *arg, const char *name, enum zt_tag tag, int64_t bytes) {
    char *text = arg;
    sprintf(text + strlen(text), "%s:%s:%lld ", name, zt_tag_name(tag), (long long)bytes);
    return strstr(text, "stop") != NULL;
}
Test(alloc, each_in_descending_size) {
    struct rig r;
    char text[512] = "";
    const size_t sizes[] = {600, 5 * MIB, 512, 70000};
    const char *names[] = {"a", "b", "never", "stop"};
    void *p[4];
    rig_open(&r, 64 * MIB, NULL);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(zt_malloc(r.a, sizes[i], NULL, (enum zt_tag)i, names[i], &p[i], &r.err), 0);
    zt_alloc_each(r.a, collect, text);
    cr_assert_str_eq(text, "b:gradients:5242880 stop:activations:70144 ");
    for (int i = 0; i < 4; i++) zt_free(r.a, p[i]);
    rig_close(&r);
}

Test(alloc, freeing_twice_is_a_broken_invariant, .signal = 6) {
    struct rig r;
    rig_open(&r, 64 * MIB, NULL);
    void *p = get(&r, 100);
    zt_free(r.a, p);
    zt_free(r.a, p);
}

/* ---- the brute-force model ---- */

enum state { FREE, LIVE, PENDING };
struct mblock {
    size_t size, requested;
    enum state state;
    int tag, gate;
};
struct mseg {
    char *base;
    size_t size;
    int stream;
    bool small;
    int n;
    struct mblock b[4096];
};
enum { MAX_SEGS = 64, MAX_LIVE = 600 };
struct model {
    struct mseg *seg[MAX_SEGS];
    int n;
    size_t capacity, max_split;
    int64_t peak_allocated, peak_reserved, peak_active, ooms, retries;
};
struct pick {
    int seg, block;
};

static size_t round512(size_t n) { return n < 512 ? 512 : (n + 511) / 512 * 512; }
static size_t seg_size(size_t r) {
    return r <= MIB ? 2 * MIB : r < 10 * MIB ? 20 * MIB : (r + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}
static size_t reserved(const struct model *m) {
    size_t n = 0;
    for (int i = 0; i < m->n; i++) n += m->seg[i]->size;
    return n;
}
static char *address(const struct model *m, struct pick p) {
    char *at = m->seg[p.seg]->base;
    for (int i = 0; i < p.block; i++) at += m->seg[p.seg]->b[i].size;
    return at;
}
static void normalise(struct mseg *s) { /* merges free neighbours */
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (n && s->b[n - 1].state == FREE && s->b[i].state == FREE)
            s->b[n - 1].size += s->b[i].size;
        else
            s->b[n++] = s->b[i];
    }
    s->n = n;
}
/* Blocks whose event lies before gate number `open` in the other stream. */
static void finish_pending(struct model *m, int open) {
    for (int i = 0; i < m->n; i++) {
        for (int j = 0; j < m->seg[i]->n; j++)
            if (m->seg[i]->b[j].state == PENDING && m->seg[i]->b[j].gate < open)
                m->seg[i]->b[j].state = FREE;
        normalise(m->seg[i]);
    }
}
static void drop_segment(struct model *m, int i) {
    free(m->seg[i]);
    m->seg[i] = m->seg[--m->n];
}
static bool whole_free(const struct mseg *s) { return s->n == 1 && s->b[0].state == FREE; }
static void drop_cached(struct model *m) {
    for (int i = m->n; i-- > 0;)
        if (whole_free(m->seg[i])) drop_segment(m, i);
}
static bool best_fit(const struct model *m, int stream, size_t r, struct pick *out) {
    bool found = false;
    size_t best = 0;
    for (int i = 0; i < m->n; i++) {
        const struct mseg *s = m->seg[i];
        if (s->stream != stream || s->small != (r <= MIB)) continue;
        for (int j = 0; j < s->n; j++) {
            if (s->b[j].state != FREE || s->b[j].size < r) continue;
            struct pick p = {i, j};
            if (found &&
                (s->b[j].size > best || (s->b[j].size == best && address(m, p) > address(m, *out))))
                continue;
            found = true;
            best = s->b[j].size;
            *out = p;
        }
    }
    /* the limits apply to the best fit alone, they do not look for the next one */
    if (found && r < m->max_split && best >= m->max_split) return false;
    if (found && r >= m->max_split && best >= r + 20 * MIB) return false;
    return found;
}
/* Big cached segments of the stream, largest first, until `want` is covered. */
static bool drop_available(struct model *m, int stream, bool small, size_t r) {
    if (m->max_split == SIZE_MAX) return false;
    size_t want = r < m->max_split ? m->max_split : r, got = 0;
    int single = -1;
    for (int i = 0; i < m->n; i++) {
        const struct mseg *s = m->seg[i];
        if (s->stream != stream || s->small != small || !whole_free(s) || s->size < want) continue;
        if (single < 0 || s->size < m->seg[single]->size ||
            (s->size == m->seg[single]->size && s->base < m->seg[single]->base))
            single = i;
    }
    if (single >= 0) {
        drop_segment(m, single);
        return true;
    }
    while (got < want) {
        int big = -1;
        for (int i = 0; i < m->n; i++) {
            const struct mseg *s = m->seg[i];
            if (s->stream != stream || s->small != small || !whole_free(s) ||
                s->size < m->max_split)
                continue;
            if (big < 0 || s->size > m->seg[big]->size ||
                (s->size == m->seg[big]->size && s->base > m->seg[big]->base))
                big = i;
        }
        if (big < 0) return false;
        got += m->seg[big]->size;
        drop_segment(m, big);
    }
    return true;
}

/* What the model does with a request: found block, or a new segment, or OOM. */
enum outcome { HIT, NEW_SEGMENT, OOM };
static enum outcome model_place(struct model *m, int stream, size_t r, struct pick *p) {
    size_t bytes = seg_size(r);
    if (best_fit(m, stream, r, p)) return HIT;
    if (reserved(m) + bytes <= m->capacity) return NEW_SEGMENT;
    if (drop_available(m, stream, r <= MIB, r) && reserved(m) + bytes <= m->capacity)
        return NEW_SEGMENT;
    drop_cached(m);
    m->retries++;
    if (reserved(m) + bytes <= m->capacity) return NEW_SEGMENT;
    m->ooms++;
    return OOM;
}
static void model_take(struct model *m, struct pick p, size_t r, size_t requested, int tag) {
    struct mseg *s = m->seg[p.seg];
    struct mblock *b = &s->b[p.block];
    size_t rest = b->size - r;
    bool cut = s->small ? rest >= 512 : (r < m->max_split && rest > MIB);
    if (cut) {
        cr_assert_lt(s->n, 4095);
        memmove(b + 1, b, sizeof *b * (size_t)(s->n - p.block));
        s->n++;
        b[1].size = rest;
        b->size = r;
    }
    b->state = LIVE;
    b->requested = requested;
    b->tag = tag;
}

static void check_stat(const struct zt_stat *s, int64_t all, int64_t small) {
    cr_assert_eq(s[ZT_POOL_ALL].current, all);
    cr_assert_eq(s[ZT_POOL_SMALL].current, small);
    cr_assert_eq(s[ZT_POOL_LARGE].current, all - small);
    for (int i = 0; i < ZT_POOL_COUNT; i++) {
        cr_assert_eq(s[i].allocated - s[i].freed, s[i].current);
        cr_assert_geq(s[i].peak, s[i].current);
    }
}
/* Recounts everything: [0] all, [1] small. */
static void check(struct model *m, const struct rig *r) {
    const struct zt_alloc_stats *s = zt_alloc_stats(r->a);
    int64_t live[2] = {0}, live_b[2] = {0}, act[2] = {0}, act_b[2] = {0}, split[2] = {0},
            split_b[2] = {0}, req[2] = {0}, seg[2] = {0}, seg_b[2] = {0}, tag[ZT_TAG_COUNT] = {0},
            tag_r[ZT_TAG_COUNT] = {0};
    int64_t over = 0, over_seg = 0;
    for (int i = 0; i < m->n; i++) {
        const struct mseg *g = m->seg[i];
        size_t sum = 0;
        for (int k = 0; k < (g->small ? 2 : 1); k++) seg[k]++, seg_b[k] += (int64_t)g->size;
        over_seg += g->size >= m->max_split;
        for (int j = 0; j < g->n; j++) {
            const struct mblock *b = &g->b[j];
            int64_t n = (int64_t)b->size;
            sum += b->size;
            for (int k = 0; k < (g->small ? 2 : 1); k++) {
                if (b->state == LIVE) live[k]++, live_b[k] += n;
                if (b->state != FREE) act[k]++, act_b[k] += n, req[k] += (int64_t)b->requested;
                if (b->state == FREE && g->n > 1) split[k]++, split_b[k] += n;
            }
            if (b->state == LIVE) {
                tag[b->tag] += n;
                tag_r[b->tag] += (int64_t)round512(b->requested);
                over += b->size >= m->max_split;
            }
            if (j) cr_assert(!(g->b[j - 1].state == FREE && b->state == FREE));
        }
        cr_assert_eq(sum, g->size);
        for (int j = i + 1; j < m->n; j++) /* segments do not overlap */
            cr_assert(g->base + g->size <= m->seg[j]->base ||
                      m->seg[j]->base + m->seg[j]->size <= g->base);
    }
    check_stat(s->allocation, live[0], live[1]);
    check_stat(s->allocated_bytes, live_b[0], live_b[1]);
    check_stat(s->active, act[0], act[1]);
    check_stat(s->active_bytes, act_b[0], act_b[1]);
    check_stat(s->inactive_split, split[0], split[1]);
    check_stat(s->inactive_split_bytes, split_b[0], split_b[1]);
    check_stat(s->requested_bytes, req[0], req[1]);
    check_stat(s->segment, seg[0], seg[1]);
    check_stat(s->reserved_bytes, seg_b[0], seg_b[1]);
    cr_assert_eq(s->oversize_allocations, over);
    cr_assert_eq(s->oversize_segments, over_seg);
    cr_assert_eq(s->num_device_alloc - s->num_device_free, seg[0]);
    cr_assert_eq(s->num_ooms, m->ooms);
    cr_assert_eq(s->num_alloc_retries, m->retries);
    if (live_b[0] > m->peak_allocated) m->peak_allocated = live_b[0];
    if (seg_b[0] > m->peak_reserved) m->peak_reserved = seg_b[0];
    if (act_b[0] > m->peak_active) m->peak_active = act_b[0];
    cr_assert_eq(s->allocated_bytes[ZT_POOL_ALL].peak, m->peak_allocated);
    cr_assert_eq(s->active_bytes[ZT_POOL_ALL].peak, m->peak_active);
    cr_assert_eq(s->reserved_bytes[ZT_POOL_ALL].peak, m->peak_reserved);
    int64_t at_peak = 0;
    for (int t = 0; t < ZT_TAG_COUNT; t++) {
        cr_assert_eq(r->l.block[t], tag[t]);
        cr_assert_eq(r->l.requested[t], tag_r[t]);
        at_peak += r->l.at_peak[t];
    }
    cr_assert_eq(r->l.allocated, live_b[0]);
    cr_assert_eq(r->l.peak_allocated, m->peak_allocated);
    cr_assert_eq(at_peak, m->peak_allocated);
}

static uint64_t rng_state;
static uint64_t rnd(uint64_t n) {
    rng_state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = rng_state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % n;
}
static size_t random_size(void) {
    switch (rnd(6)) {
    case 0:
        return 1 + rnd(2048);
    case 1:
        return 1 + rnd(MIB + MIB / 8);
    case 2:
        return 512 * (1 + rnd(4096));
    case 3:
        return 1 + rnd(12 * MIB);
    case 4:
        return MIB * (1 + rnd(24));
    default:
        return 1 + rnd(48 * MIB);
    }
}

struct held {
    void *p;
    bool recorded;
};
struct fuzz {
    struct rig r;
    struct model m;
    struct zt_stream *streams[2], *other;
    struct held live[MAX_LIVE];
    int n_live, n_gates;
    struct gate gates[1024];
    bool closed;
};

static void close_gate(struct fuzz *f) {
    if (f->closed) return;
    cr_assert_lt(f->n_gates, 1024);
    cr_assert_eq(
        zt_device_ops(f->r.d)->submit(f->other, wait_gate, &f->gates[f->n_gates], &f->r.err), 0);
    f->closed = true;
}
static void open_gate(struct fuzz *f) {
    if (!f->closed) return;
    atomic_store(&f->gates[f->n_gates++].open, 1);
    cr_assert_eq(zt_device_ops(f->r.d)->stream_sync(f->other, &f->r.err), 0);
    f->closed = false;
}
/* Would this request have to give memory back first? Then events are waited for: open the gate. */
static bool tight(const struct model *m, int stream, size_t r) {
    struct pick p;
    return !best_fit(m, stream, r, &p) && reserved(m) + seg_size(r) > m->capacity;
}

static void fuzz_malloc(struct fuzz *f) {
    struct model *m = &f->m;
    size_t want = random_size(), r = round512(want);
    int stream = (int)rnd(4) == 0, tag = (int)rnd(ZT_TAG_COUNT);
    struct pick p = {0, 0};
    void *got = NULL;
    if (f->n_live == MAX_LIVE) return;
    if (tight(m, stream, r)) open_gate(f);
    finish_pending(m, f->n_gates);
    enum outcome o = model_place(m, stream, r, &p);
    int64_t before = zt_alloc_stats(f->r.a)->num_device_alloc;
    int rc = zt_malloc(f->r.a, want, stream ? f->streams[1] : NULL, (enum zt_tag)tag, "fuzz", &got,
                       &f->r.err);
    cr_assert_eq(rc, o == OOM ? ZT_EOOM : 0);
    if (o == OOM) {
        cr_assert_null(got);
        return;
    }
    cr_assert_eq(zt_alloc_stats(f->r.a)->num_device_alloc - before, o == NEW_SEGMENT);
    if (o == NEW_SEGMENT) {
        struct mseg *s = calloc(1, sizeof *s);
        cr_assert(s && m->n < MAX_SEGS);
        *s = (struct mseg){
            .base = got, .size = seg_size(r), .stream = stream, .small = r <= MIB, .n = 1};
        s->b[0].size = s->size;
        p = (struct pick){m->n, 0};
        m->seg[m->n++] = s;
    }
    cr_assert_eq((char *)got, address(m, p));
    model_take(m, p, r, want, tag);
    memset(got, 0xab, want < 64 ? want : 64);
    f->live[f->n_live++] = (struct held){got, false};
}

static struct mblock *model_find(struct model *m, const void *at, struct mseg **seg) {
    for (int i = 0; i < m->n; i++) {
        char *a = m->seg[i]->base;
        for (int j = 0; j < m->seg[i]->n; a += m->seg[i]->b[j++].size)
            if (a == at && m->seg[i]->b[j].state == LIVE) {
                *seg = m->seg[i];
                return &m->seg[i]->b[j];
            }
    }
    return NULL;
}

static void fuzz_free(struct fuzz *f) {
    if (!f->n_live) return;
    int i = (int)rnd((uint64_t)f->n_live);
    struct held h = f->live[i];
    struct mseg *s = NULL;
    struct mblock *b = model_find(&f->m, h.p, &s);
    cr_assert_not_null(b);
    if (h.recorded) close_gate(f);
    zt_free(f->r.a, h.p);
    b->state = h.recorded ? PENDING : FREE;
    b->gate = f->n_gates;
    normalise(s);
    f->live[i] = f->live[--f->n_live];
}

static void fuzz_run(uint64_t seed, size_t capacity, struct zt_alloc_options o, int ops_count) {
    static struct fuzz f;
    memset(&f, 0, sizeof f);
    rng_state = seed;
    rig_open(&f.r, capacity, &o);
    zt_device_cpu_set_os(f.r.d, &sparse);
    f.m.capacity = capacity;
    f.m.max_split = o.max_split_size ? o.max_split_size : SIZE_MAX;
    const struct zt_device_ops *ops = zt_device_ops(f.r.d);
    cr_assert_eq(ops->stream_create(f.r.d, ZT_STREAM_GATHER, &f.streams[1], &f.r.err), 0);
    cr_assert_eq(ops->stream_create(f.r.d, ZT_STREAM_REDUCE, &f.other, &f.r.err), 0);
    for (int i = 0; i < ops_count; i++) {
        uint64_t what = rnd(100),
                 shrink = (uint64_t)i / 200 % 2; /* waves of growth and of decline */
        if (what < (shrink ? 35 : 55)) {
            fuzz_malloc(&f);
        } else if (what < 90) {
            fuzz_free(&f);
        } else if (what < 95 && f.n_live) {
            struct held *h = &f.live[rnd((uint64_t)f.n_live)];
            cr_assert_eq(zt_record_stream(f.r.a, h->p, f.other, &f.r.err), 0);
            h->recorded = true;
        } else if (what < 97) {
            open_gate(&f);
        } else if (what < 98) {
            open_gate(&f);
            zt_alloc_empty_cache(f.r.a);
            finish_pending(&f.m, f.n_gates);
            drop_cached(&f.m);
        } else if (what < 99) {
            zt_alloc_reset_peaks(f.r.a);
            f.m.peak_allocated = f.m.peak_reserved = f.m.peak_active = 0;
        }
        check(&f.m, &f.r);
    }
    open_gate(&f);
    while (f.n_live) zt_free(f.r.a, f.live[--f.n_live].p);
    zt_alloc_destroy(f.r.a);
    cr_assert_eq(f.r.l.reserved, 0);
    for (int i = 0; i < f.m.n; i++) free(f.m.seg[i]);
    ops->stream_destroy(f.streams[1]);
    ops->stream_destroy(f.other);
    zt_device_close(f.r.d);
}

Test(alloc, against_the_model_roomy, .timeout = 120) {
    for (uint64_t seed = 1; seed <= 4; seed++)
        fuzz_run(seed, 600 * MIB, (struct zt_alloc_options){0}, 2500);
}
Test(alloc, against_the_model_tight, .timeout = 120) {
    for (uint64_t seed = 11; seed <= 16; seed++)
        fuzz_run(seed, 120 * MIB, (struct zt_alloc_options){0}, 2000);
}
Test(alloc, against_the_model_max_split, .timeout = 120) {
    for (uint64_t seed = 21; seed <= 26; seed++)
        fuzz_run(seed, 220 * MIB, (struct zt_alloc_options){.max_split_size = 24 * MIB}, 2000);
}

/* Order is a function of the program alone: the same calls give the same offsets. */
static void offsets(uint64_t seed, size_t *out, int n) {
    struct rig r;
    void *live[64] = {0};
    int fd;
    void *base = NULL;
    size_t bytes;
    rng_state = seed;
    rig_open(&r, 900 * MIB, NULL);
    zt_device_cpu_set_os(r.d, &sparse);
    cr_assert_eq(zt_device_cpu_memory(r.d, &fd, &base, &bytes), 0);
    for (int i = 0; i < n; i++) {
        int k = (int)rnd(64);
        zt_free(r.a, live[k]);
        live[k] = NULL;
        cr_assert_eq(
            zt_malloc(r.a, 1 + rnd(6 * MIB), NULL, ZT_TAG_TEMPORARY, "t", &live[k], &r.err), 0);
        out[i] = (size_t)((char *)live[k] - (char *)base);
    }
    for (int k = 0; k < 64; k++) zt_free(r.a, live[k]);
    rig_close(&r);
}
Test(alloc, same_program_same_offsets, .timeout = 60) {
    static size_t x[2000], y[2000];
    offsets(5, x, 2000);
    void *noise = malloc(12345); /* another layout of the host's heap */
    offsets(5, y, 2000);
    free(noise);
    cr_assert_arr_eq(x, y, sizeof x);
}
