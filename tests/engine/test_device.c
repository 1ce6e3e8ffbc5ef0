/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_device.c: the cpu device: names, segments and their pages, streams and events.
 * Order is forced by gates (functions that wait for a flag), never by time. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/falloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "core/units.h"
#include "engine/device/backend.h"
#include "engine/device/device.h"

#define SEG (2 * ZT_MIB)

static struct zt_device *cpu(size_t capacity) {
    struct zt_device *d = NULL;
    struct zt_error err = {0};
    struct zt_device_config c = {"cpu", capacity};
    cr_assert_eq(zt_device_open(&c, &d, &err), 0, "%s", err.msg);
    return d;
}

static int open_code(const char *name, size_t capacity, struct zt_error *err) {
    struct zt_device *d = NULL;
    struct zt_device_config c = {name, capacity};
    int rc = zt_device_open(&c, &d, err);
    cr_assert((rc == 0) == (d != NULL));
    zt_device_close(d);
    return rc;
}

Test(device, names) {
    struct zt_error err = {0};
    cr_assert_eq(open_code("cpu", SEG, &err), 0);
    cr_assert_eq(open_code("cuda", SEG, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "libzt_cuda.so") && strstr(err.msg, "not in this version"));
    cr_assert_eq(open_code("cuda:7", SEG, &err), ZT_EUNSUPPORTED);
    cr_assert_eq(open_code("sim", SEG, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "sim"));
    const char *bad[] = {"cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999", "gpu", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(open_code(bad[i], SEG, &err), ZT_EINVAL, "%s", bad[i]);
        cr_assert(strstr(err.msg, "device"), "%s", err.msg);
    }
    cr_assert_eq(open_code(NULL, SEG, &err), ZT_EINVAL);
    cr_assert_eq(open_code("cpu", SEG - 1, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "--memory-gib"));
    cr_assert_eq(open_code("cpu", SIZE_MAX, &err), ZT_EINVAL);
}

static int64_t file_pages(struct zt_device *d) { /* bytes the memory file really holds */
    int fd = -1;
    void *base = NULL;
    size_t bytes = 0;
    struct stat st;
    cr_assert_eq(zt_device_cpu_memory(d, &fd, &base, &bytes), 0);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq((size_t)st.st_size, bytes);
    return st.st_blocks * 512;
}

Test(device, segments) {
    struct zt_device *d = cpu(5 * SEG + 12345);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_error err = {0};
    void *p[5], *q = NULL;
    cr_assert_eq(zt_device_capacity(d), 5 * SEG);
    cr_assert_eq(file_pages(d), 0);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(ops->segment_alloc(d, SEG, &p[i], &err), 0);
        cr_assert_eq((uintptr_t)p[i] % 4096, 0);
        if (i) cr_assert_eq((char *)p[i], (char *)p[i - 1] + SEG); /* first fit: in order */
        cr_assert_eq(file_pages(d), (int64_t)(SEG * (size_t)(i + 1)));
        memset(p[i], i + 1, SEG);
    }
    cr_assert_eq(ops->segment_alloc(d, SEG, &q, &err), ZT_EOOM);
    cr_assert_null(q);
    cr_assert(strstr(err.msg, "capacity 10485760") && strstr(err.msg, "free 0"), "%s", err.msg);
    ops->segment_free(d, p[1], SEG);
    ops->segment_free(d, p[3], SEG);
    cr_assert_eq(file_pages(d), (int64_t)(3 * SEG)); /* punched out */
    /* 2 segments are free, but not side by side: capacity is a sum, so this must work. */
    cr_assert_eq(ops->segment_alloc(d, 2 * SEG, &q, &err), 0, "%s", err.msg);
    memset(q, 9, 2 * SEG);
    for (int i = 0; i < 5; i += 2) cr_assert_eq(((unsigned char *)p[i])[SEG - 1], i + 1);
    ops->segment_free(d, q, 2 * SEG);
    cr_assert_eq(ops->segment_alloc(d, SEG, &q, &err), 0);
    cr_assert_eq(q, p[1]); /* lowest hole; its old bytes are gone */
    cr_assert_eq(((unsigned char *)q)[0], 0);
    zt_device_close(d);
}

/* Another mapping of the file sees the same bytes, and nobody can change the file's length. */
Test(device, memory_is_shared_and_sealed) {
    struct zt_device *d = cpu(2 * SEG);
    void *p = NULL, *base = NULL;
    int fd = -1;
    size_t bytes = 0;
    cr_assert_eq(zt_device_ops(d)->segment_alloc(d, SEG, &p, NULL), 0);
    cr_assert_eq(zt_device_cpu_memory(d, &fd, &base, &bytes), 0);
    char *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(other, MAP_FAILED);
    ((char *)p)[77] = 42;
    cr_assert_eq(other[((char *)p - (char *)base) + 77], 42);
    cr_assert_eq(ftruncate(fd, 4096), -1);
    cr_assert_eq(errno, EPERM);
    munmap(other, bytes);
    zt_device_close(d);
}

static int calls_left, fail_with;
static int failing_fallocate(int fd, int mode, int64_t offset, int64_t bytes) {
    if (!(mode & FALLOC_FL_PUNCH_HOLE) && calls_left-- == 0) return fail_with;
    return zt_cpu_os_linux.fallocate(fd, mode, offset, bytes);
}
static int64_t plenty(void) { return INT64_MAX; }
static int64_t little(void) { return (int64_t)SEG; }

Test(device, a_full_machine_is_an_error) {
    const struct zt_cpu_os failing = {failing_fallocate, plenty, zt_cpu_os_linux.populate},
                           poor = {failing_fallocate, little, zt_cpu_os_linux.populate};
    const int codes[] = {-ENOMEM, -ENOSPC, -EIO}, want[] = {ZT_ENOMEM, ZT_ENOMEM, ZT_EIO};
    struct zt_device *d = cpu(4 * SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_error err = {0};
    void *p = NULL, *q = NULL;
    zt_device_cpu_set_os(d, &failing);
    for (int i = 0; i < 3; i++) {
        calls_left = 1;
        fail_with = codes[i];
        cr_assert_eq(ops->segment_alloc(d, SEG, &p, &err), 0);
        cr_assert_eq(ops->segment_alloc(d, SEG, &q, &err), want[i]);
        cr_assert_null(q);
        cr_assert(strstr(err.msg, "2097152"), "%s", err.msg);
        cr_assert_eq(file_pages(d), (int64_t)SEG);
        calls_left = 100;
        cr_assert_eq(ops->segment_alloc(d, 3 * SEG, &q, &err), 0); /* nothing was lost */
        ops->segment_free(d, q, 3 * SEG);
        ops->segment_free(d, p, SEG);
    }
    zt_device_cpu_set_os(d, &poor); /* refused before the kernel has to kill somebody */
    cr_assert_eq(ops->segment_alloc(d, SEG, &q, &err), ZT_ENOMEM);
    cr_assert(strstr(err.msg, "available on the machine"), "%s", err.msg);
    zt_device_close(d);
}

/* ---- streams ---- */

struct gate { _Atomic int open, entered; };
static int wait_gate(void *arg, struct zt_error *err) {
    struct gate *g = arg;
    (void)err;
    atomic_store(&g->entered, 1);
    while (!atomic_load(&g->open)) sched_yield();
    return 0;
}
static void until(_Atomic int *flag) {
    while (!atomic_load(flag)) sched_yield();
}

struct log { _Atomic int n; int value[4096]; };
struct entry { struct log *log; int value; };
static int append(void *arg, struct zt_error *err) {
    struct entry *e = arg;
    (void)err;
    e->log->value[atomic_load(&e->log->n)] = e->value;
    atomic_fetch_add(&e->log->n, 1);
    return 0;
}
static int nap(void *arg, struct zt_error *err) {
    (void)err;
    nanosleep(arg, NULL);
    return 0;
}
static int broken(void *arg, struct zt_error *err) {
    return zt_fail(err, ZT_EIO, "planted failure %d", *(int *)arg);
}

Test(device, compute_is_the_calling_thread, .timeout = 60) {
    struct zt_device *d = cpu(SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *c = zt_device_compute(d);
    struct log log = {0};
    struct entry e = {&log, 5};
    struct zt_error err = {0};
    char src[8] = "abcdefg", dst[8] = "";
    cr_assert_eq(ops->submit(c, append, &e, &err), 0);
    cr_assert_eq(log.n, 1);
    cr_assert_eq(ops->copy(c, dst, src, 8, &err), 0);
    cr_assert_str_eq(dst, src);
    cr_assert_eq(ops->stream_sync(c, &err), 0);
    int n = 3;
    cr_assert_eq(ops->submit(c, broken, &n, &err), ZT_EIO);
    cr_assert_str_eq(err.msg, "planted failure 3");
    cr_assert_eq(ops->submit(c, append, &e, &err), ZT_EIO); /* poisoned */
    cr_assert_eq(log.n, 1);
    zt_device_close(d);
}

Test(device, a_stream_is_a_fifo_on_its_own_thread, .timeout = 60) {
    enum { N = 3000 };
    struct zt_device *d = cpu(SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *s = NULL;
    static struct log log;
    static struct entry e[N];
    struct gate g = {0};
    struct zt_error err = {0};
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_COMPUTE, &s, &err), ZT_EINVAL);
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_GATHER, &s, &err), 0);
    cr_assert_eq(ops->submit(s, wait_gate, &g, &err), 0);
    until(&g.entered); /* it runs while we go on: real overlap */
    for (int i = 0; i < N; i++) {
        e[i] = (struct entry){&log, i};
        cr_assert_eq(ops->submit(s, append, &e[i], &err), 0);
    }
    cr_assert_eq(log.n, 0);
    atomic_store(&g.open, 1);
    cr_assert_eq(ops->stream_sync(s, &err), 0);
    cr_assert_eq(log.n, N);
    for (int i = 0; i < N; i++) cr_assert_eq(log.value[i], i);
    /* copies are in order with functions */
    int a = 1, b = 2, c = 0;
    cr_assert_eq(ops->copy(s, &b, &a, sizeof a, &err), 0);
    cr_assert_eq(ops->copy(s, &c, &b, sizeof a, &err), 0);
    ops->stream_destroy(s); /* waits */
    cr_assert_eq(c, 1);
    zt_device_close(d);
}

Test(device, events, .timeout = 60) {
    struct zt_device *d = cpu(SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *s = NULL, *t = NULL, *c = zt_device_compute(d);
    struct zt_event *e = NULL;
    struct zt_error err = {0};
    struct log log = {0};
    struct entry one = {&log, 1}, two = {&log, 2};
    int64_t stalled = -1;
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_GATHER, &s, &err), 0);
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_REDUCE, &t, &err), 0);
    cr_assert_eq(ops->event_create(d, &e, &err), 0);
    cr_assert(ops->event_done(e)); /* never recorded: nothing to wait for */
    cr_assert_eq(ops->stream_wait_event(c, e, &stalled, &err), 0);
    cr_assert_eq(stalled, 0);
    for (int round = 0; round < 200; round++) { /* reuse of one event */
        struct gate g = {0};
        atomic_store(&log.n, 0);
        cr_assert_eq(ops->submit(s, wait_gate, &g, &err), 0);
        cr_assert_eq(ops->submit(s, append, &one, &err), 0);
        cr_assert_eq(ops->event_record(e, s, &err), 0);
        cr_assert_eq(ops->stream_wait_event(t, e, &stalled, &err), 0); /* queued, no block */
        cr_assert_eq(stalled, 0);
        cr_assert_eq(ops->submit(t, append, &two, &err), 0);
        cr_assert_not(ops->event_done(e));
        cr_assert_eq(log.n, 0);
        atomic_store(&g.open, 1);
        cr_assert_eq(ops->stream_wait_event(c, e, &stalled, &err), 0);
        cr_assert(ops->event_done(e));
        cr_assert_geq(stalled, 0);
        cr_assert_geq(atomic_load(&log.n), 1);
        cr_assert_eq(ops->stream_sync(t, &err), 0);
        cr_assert_eq(log.value[0], 1);
        cr_assert_eq(log.value[1], 2);
    }
    /* destroyed while queued: the queue keeps it alive */
    struct gate g = {0};
    cr_assert_eq(ops->submit(s, wait_gate, &g, &err), 0);
    cr_assert_eq(ops->event_record(e, s, &err), 0);
    cr_assert_eq(ops->stream_wait_event(t, e, NULL, &err), 0);
    ops->event_destroy(e);
    atomic_store(&g.open, 1);
    cr_assert_eq(ops->stream_sync(t, &err), 0);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
    zt_device_close(d);
}

Test(device, stall_is_the_time_stood_still, .timeout = 60) {
    struct zt_device *d = cpu(SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *s = NULL, *c = zt_device_compute(d);
    struct zt_event *e = NULL;
    struct zt_error err = {0};
    struct timespec ms5 = {0, 5000000};
    int64_t stalled = -1;
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_COPY, &s, &err), 0);
    cr_assert_eq(ops->event_create(d, &e, &err), 0);
    cr_assert_eq(ops->submit(s, NULL, NULL, &err), ZT_EINVAL);
    int64_t from = ops->now_ns(d);
    cr_assert_eq(ops->submit(s, nap, &ms5, &err), 0);
    cr_assert_eq(ops->event_record(e, s, &err), 0);
    cr_assert_eq(ops->stream_wait_event(c, e, &stalled, &err), 0);
    cr_assert_leq(stalled, ops->now_ns(d) - from);
    cr_assert_geq(ops->now_ns(d) - from, 5000000);
    ops->stream_destroy(s);
    ops->event_destroy(e);
    zt_device_close(d);
}

Test(device, a_failure_poisons_its_stream_and_its_waiters, .timeout = 60) {
    struct zt_device *d = cpu(SEG);
    const struct zt_device_ops *ops = zt_device_ops(d);
    struct zt_stream *s = NULL, *t = NULL, *c = zt_device_compute(d);
    struct zt_event *before = NULL, *after = NULL;
    struct zt_error err = {0};
    struct log log = {0};
    struct entry one = {&log, 1};
    int first = 1, second = 2;
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_GATHER, &s, &err), 0);
    cr_assert_eq(ops->stream_create(d, ZT_STREAM_REDUCE, &t, &err), 0);
    cr_assert_eq(ops->event_create(d, &before, &err), 0);
    cr_assert_eq(ops->event_create(d, &after, &err), 0);
    cr_assert_eq(ops->event_record(before, s, &err), 0);
    cr_assert_eq(ops->submit(s, broken, &first, &err), 0);
    cr_assert_eq(ops->submit(s, broken, &second, &err), 0);
    cr_assert_eq(ops->submit(s, append, &one, &err), 0);
    cr_assert_eq(ops->event_record(after, s, &err), 0);
    cr_assert_eq(ops->stream_wait_event(t, after, NULL, &err), 0);
    cr_assert_eq(ops->submit(t, append, &one, &err), 0);
    cr_assert_eq(ops->stream_sync(s, &err), ZT_EIO);
    cr_assert_str_eq(err.msg, "planted failure 1"); /* the first one counts */
    cr_assert_eq(ops->stream_sync(t, &err), ZT_EIO);
    cr_assert_eq(log.n, 0);
    cr_assert_eq(ops->stream_wait_event(c, before, NULL, &err), 0); /* earlier work was fine */
    memset(&err, 0, sizeof err);
    cr_assert_eq(ops->stream_wait_event(c, after, NULL, &err), ZT_EIO);
    cr_assert_str_eq(err.msg, "planted failure 1");
    ops->stream_destroy(s);
    ops->stream_destroy(t);
    ops->event_destroy(before);
    ops->event_destroy(after);
    zt_device_close(d);
}

Test(device, closing_leaves_no_descriptor_or_thread, .timeout = 60) {
    int lowest = dup(0);
    close(lowest);
    for (int i = 0; i < 20; i++) {
        struct zt_device *d = cpu(SEG);
        struct zt_stream *s = NULL;
        cr_assert_eq(zt_device_ops(d)->stream_create(d, ZT_STREAM_GATHER, &s, NULL), 0);
        zt_device_ops(d)->stream_destroy(s);
        zt_device_close(d);
    }
    int again = dup(0);
    close(again);
    cr_assert_eq(again, lowest);
}
