/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/backend.h: what an implementation of a device is made of; for implementations and
 * zt_device_open only. A backend in a shared library exports one object of this type under the
 * symbol ZT_BACKEND_SYMBOL; the abi number must be equal. Every implementation begins its own struct
 * with struct zt_device. Thread rule: that of device.h. */
#ifndef ZT_ENGINE_DEVICE_BACKEND_H
#define ZT_ENGINE_DEVICE_BACKEND_H
#include "engine/device/device.h"

#define ZT_BACKEND_ABI 2
#define ZT_BACKEND_SYMBOL "zt_device_backend"
#define ZT_SEGMENT_ALIGN ((size_t)2 << 20)

struct zt_device {
    const struct zt_device_ops *ops;
    bool addresses_only;       /* sim */
    size_t capacity;           /* bytes that segments may hold together */
    struct zt_stream *compute;
    void (*close)(struct zt_device *d);
};

struct zt_device_backend {
    unsigned abi;
    const char *name;
    int (*open)(int ordinal, const struct zt_device_config *c, struct zt_device **out,
                struct zt_error *err); /* c->capacity_bytes is rounded already */
};
extern const struct zt_device_backend zt_cpu_backend, zt_sim_backend;

/* Where segments lie: the first hole that holds them, in every device that places them itself, so that
 * the allocator's choices (which go by address) are the same, and what does not fit is refused alike.
 * Offsets are in [0, room); the sum of the segments, not where they lie, counts against `capacity`. */
struct zt_places {
    struct zt_place { size_t offset, bytes; } *at; /* ascending, disjoint */
    size_t n, cap, room, capacity, used;
};
/* ZT_EOOM: above the capacity, or no hole is large enough; ZT_ENOMEM: host memory. */
int zt_places_take(struct zt_places *p, size_t bytes, size_t *offset, struct zt_error *err);
void zt_places_give(struct zt_places *p, size_t offset, size_t bytes);
void zt_places_free(struct zt_places *p);

/* The system calls behind cpu segments, so that a test can make the machine run out of memory. */
struct zt_cpu_os {
    int (*fallocate)(int fd, int mode, int64_t offset, int64_t bytes); /* 0 or -errno */
    int64_t (*available_bytes)(void); /* what the machine can still give; < 0 = unknown */
    void (*populate)(void *address, size_t bytes); /* page table entries now; only a hint */
};
extern const struct zt_cpu_os zt_cpu_os_linux;
/* For tests; d must be a cpu device; os must outlive it. */
void zt_device_cpu_set_os(struct zt_device *d, const struct zt_cpu_os *os);

#endif
