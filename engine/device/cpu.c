/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/cpu.c: the cpu device's memory. One memfd holds all segments, mapped once, so that
 * another process of the host can map the same file and read or write a buffer where it lies.
 *
 * The file is RESERVE times as long as the capacity, and sparse: what counts against the capacity
 * is the sum of the segments, never where they lie, so a hole pattern cannot make one rank run out
 * where another does not. Pages are taken by fallocate before a segment is handed out, because
 * touching a page the machine does not have is SIGBUS, while fallocate fails with a code; they are
 * given back by punching a hole. The length is sealed: nobody can shorten the file under a reader.
 *
 * Owner: the device. Thread rule: segments are taken and returned by the trainer thread. */
#include "engine/device/cpu.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "core/units.h"

#define RESERVE ((size_t)4)
#define MACHINE_MARGIN ((int64_t)64 << 20) /* left to everybody else on the machine */

struct cpu_device {
    struct zt_device base;
    const struct zt_cpu_os *os;
    int fd;
    unsigned char *memory;
    struct zt_places segments; /* its room is the file's length */
};

static int linux_fallocate(int fd, int mode, int64_t offset, int64_t bytes) {
    while (fallocate(fd, mode, offset, bytes) != 0)
        if (errno != EINTR) return -errno;
    return 0;
}

/* First unsigned number after `key` in a small text file; -1 when there is none. */
static int64_t number_in_file(const char *path, const char *key) {
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    const char *at = strstr(text, key);
    if (!at) return -1;
    char *end = NULL;
    at += strlen(key);
    errno = 0;
    long long v = strtoll(at, &end, 10);
    return end == at || errno || v < 0 ? -1 : (int64_t)v;
}

static int64_t linux_available(void) {
    int64_t free_kib = number_in_file("/proc/meminfo", "MemAvailable:");
    int64_t swap_kib = number_in_file("/proc/meminfo", "SwapFree:");
    int64_t best = free_kib < 0 ? -1 : (free_kib + (swap_kib > 0 ? swap_kib : 0)) * 1024;
    /* Inside a container these two files are the container's own limit and use. */
    int64_t max = number_in_file("/sys/fs/cgroup/memory.max", "");
    int64_t use = number_in_file("/sys/fs/cgroup/memory.current", "");
    if (max >= 0 && use >= 0) {
        int64_t left = max > use ? max - use : 0;
        if (best < 0 || left < best) best = left;
    }
    return best;
}

/* Faults are taken here rather than in the middle of a step. */
static void linux_populate(void *address, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    madvise(address, bytes, MADV_POPULATE_WRITE);
#else
    (void)address;
    (void)bytes;
#endif
}
const struct zt_cpu_os zt_cpu_os_linux = {linux_fallocate, linux_available, linux_populate};

int64_t zt_cpu_now_ns(struct zt_device *d) {
    (void)d;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int take_pages(struct cpu_device *d, size_t offset, size_t bytes, struct zt_error *err) {
    int64_t available = d->os->available_bytes();
    int rc = 0;
    if (available >= 0 && (int64_t)bytes > available - MACHINE_MARGIN) rc = -ENOMEM;
    if (!rc) rc = d->os->fallocate(d->fd, 0, (int64_t)offset, (int64_t)bytes);
    if (!rc) return 0;
    d->os->fallocate(d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (int64_t)offset,
                     (int64_t)bytes);
    if (rc == -ENOMEM || rc == -ENOSPC)
        return zt_fail(
            err, ZT_ENOMEM,
            "the machine has no memory for a segment of %zu bytes, although the device's "
            "capacity of %zu bytes (%zu in segments) would hold it; %lld bytes are "
            "available on the machine: lower --memory-gib or stop other programs",
            bytes, d->base.capacity, d->segments.used, (long long)available);
    return zt_fail(err, ZT_EIO, "fallocate of a segment of %zu bytes failed: %s", bytes,
                   strerror(-rc));
}

static int segment_alloc(struct zt_device *base, size_t bytes, void **address,
                         struct zt_error *err) {
    struct cpu_device *d = (struct cpu_device *)base;
    size_t offset = 0;
    ZT_ASSERT(bytes && bytes % ZT_SEGMENT_ALIGN == 0);
    *address = NULL;
    int rc = zt_places_take(&d->segments, bytes, &offset, err);
    if (rc) return rc;
    rc = take_pages(d, offset, bytes, err);
    if (rc) {
        zt_places_give(&d->segments, offset, bytes);
        return rc;
    }
    *address = d->memory + offset;
    d->os->populate(*address, bytes);
    return 0;
}

static void segment_free(struct zt_device *base, void *address, size_t bytes) {
    struct cpu_device *d = (struct cpu_device *)base;
    size_t offset = (size_t)((unsigned char *)address - d->memory);
    zt_places_give(&d->segments, offset, bytes);
    /* Cannot fail for want of memory; were it refused, the pages stay until the device closes. */
    d->os->fallocate(d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (int64_t)offset,
                     (int64_t)bytes);
}

static void cpu_close(struct zt_device *base) {
    struct cpu_device *d = (struct cpu_device *)base;
    if (base->compute) zt_cpu_stream_destroy(base->compute);
    if (d->memory) munmap(d->memory, d->segments.room);
    if (d->fd >= 0) close(d->fd);
    zt_places_free(&d->segments);
    free(d);
}

static const struct zt_device_ops cpu_ops = {
    .name = "cpu",
    .segment_alloc = segment_alloc,
    .segment_free = segment_free,
    .stream_create = zt_cpu_stream_create,
    .stream_destroy = zt_cpu_stream_destroy,
    .submit = zt_cpu_submit,
    .stream_sync = zt_cpu_stream_sync,
    .event_create = zt_cpu_event_create,
    .event_destroy = zt_cpu_event_destroy,
    .event_record = zt_cpu_event_record,
    .stream_wait_event = zt_cpu_stream_wait_event,
    .event_done = zt_cpu_event_done,
    .now_ns = zt_cpu_now_ns,
    .copy = zt_cpu_stream_copy,
};

static int map_memory(struct cpu_device *d, struct zt_error *err) {
    d->fd = memfd_create("ztrain-device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (d->fd < 0)
        return zt_fail(err, ZT_EIO, "device \"cpu\": memfd_create failed: %s", strerror(errno));
    if (ftruncate(d->fd, (off_t)d->segments.room) != 0)
        return zt_fail(err, ZT_EIO,
                       "device \"cpu\": a memory file of %zu bytes cannot be made: %s; see "
                       "`ulimit -f`",
                       d->segments.room, strerror(errno));
    if (fcntl(d->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return zt_fail(err, ZT_EIO, "device \"cpu\": the memory file cannot be sealed: %s",
                       strerror(errno));
    void *p = mmap(NULL, d->segments.room, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
    if (p == MAP_FAILED)
        return zt_fail(err, ZT_ENOMEM,
                       "device \"cpu\": %zu bytes of addresses cannot be mapped: %s; see "
                       "`ulimit -v`",
                       d->segments.room, strerror(errno));
    d->memory = p;
    madvise(p, d->segments.room, MADV_HUGEPAGE); /* only a hint; most machines refuse it for shmem */
    madvise(p, d->segments.room, MADV_DONTDUMP); /* a core file without gigabytes of tensors */
    return 0;
}

static int cpu_open(int ordinal, const struct zt_device_config *c, struct zt_device **out,
                    struct zt_error *err) {
    const size_t capacity = c->capacity_bytes;
    (void)ordinal;
    struct cpu_device *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return zt_fail(err, ZT_ENOMEM, "device \"cpu\": host memory");
    d->base.ops = &cpu_ops;
    d->base.capacity = capacity;
    d->base.close = cpu_close;
    d->segments.capacity = capacity;
    d->os = &zt_cpu_os_linux;
    d->fd = -1;
    int rc = 0;
    if (!zt_mul_size(capacity, RESERVE, &d->segments.room) || d->segments.room > (size_t)1 << 46)
        rc = zt_fail(err, ZT_EINVAL, "device \"cpu\": a capacity of %zu bytes is beyond 16 TiB",
                     capacity);
    if (!rc) rc = map_memory(d, err);
    if (!rc) rc = zt_cpu_compute_create(&d->base, &d->base.compute, err);
    if (rc) {
        cpu_close(&d->base);
        return rc;
    }
    *out = &d->base;
    return 0;
}
const struct zt_device_backend zt_cpu_backend = {ZT_BACKEND_ABI, "cpu", cpu_open};

int zt_device_cpu_memory(const struct zt_device *base, int *fd, void **address, size_t *bytes) {
    if (base->ops != &cpu_ops) return ZT_EUNSUPPORTED;
    const struct cpu_device *d = (const struct cpu_device *)base;
    *fd = d->fd;
    *address = d->memory;
    *bytes = d->segments.room;
    return 0;
}

void zt_device_cpu_set_os(struct zt_device *base, const struct zt_cpu_os *os) {
    ZT_ASSERT(base->ops == &cpu_ops);
    ((struct cpu_device *)base)->os = os;
}
