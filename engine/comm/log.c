/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/log.c: the event log of collectives: a ring in one piece of memory, plain data
 * without pointers, so that it can lie in a mapping of the supervisor and be read after the
 * writer's death. A slot's id is 0 while it is written. Owner of the memory: whoever gave it.
 * Thread rule: one writer appends; start and end come from streams' threads; readers check the id
 * twice. */
#include <stddef.h>
#include <string.h>
#include "engine/comm/comm_impl.h"

#define MAGIC UINT64_C(0x315a474f4c4d4f43) /* "COMLOGZ1" */

/* ThreadSanitizer knows no fences; what it watches here is one process, where locks order enough.
 */
#if defined(__SANITIZE_THREAD__)
#define FENCE(order) ((void)0)
#else
#define FENCE(order) atomic_thread_fence(order)
#endif

struct slot {
    _Atomic int64_t id;
    struct zt_coll_record r;
};
struct zt_log_ring {
    uint64_t magic;
    uint64_t slot_bytes;
    int64_t entries;
    _Atomic int64_t newest; /* id of the newest record */
    struct slot slots[];
};

size_t zt_comm_log_bytes(int64_t entries) {
    if (entries < 1) entries = 1;
    return sizeof(struct zt_log_ring) + (size_t)entries * sizeof(struct slot);
}

void zt_log_format(void *memory, size_t bytes) {
    struct zt_log_ring *ring = memory;
    memset(memory, 0, bytes);
    ring->slot_bytes = sizeof(struct slot);
    ring->entries = (int64_t)((bytes - sizeof *ring) / sizeof(struct slot));
    ring->magic = MAGIC;
}

static struct slot *slot_of(struct zt_log_ring *ring, int64_t id) {
    return &ring->slots[(id - 1) % ring->entries];
}

int64_t zt_log_append(struct zt_log_ring *ring, struct zt_coll_record *r) {
    r->id = atomic_load_explicit(&ring->newest, memory_order_relaxed) + 1;
    struct slot *s = slot_of(ring, r->id);
    atomic_store_explicit(&s->id, 0, memory_order_relaxed);
    FENCE(memory_order_seq_cst);
    s->r = *r;
    atomic_store_explicit(&s->id, r->id, memory_order_release);
    atomic_store_explicit(&ring->newest, r->id, memory_order_release);
    return r->id;
}

/* The three fields that streams' threads write. */
static void put(int64_t *field, int64_t v) { __atomic_store_n(field, v, __ATOMIC_RELAXED); }
static int64_t take(const int64_t *field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }

void zt_log_start(struct zt_log_ring *ring, int64_t id, int64_t start_ns) {
    struct slot *s = slot_of(ring, id);
    if (atomic_load_explicit(&s->id, memory_order_acquire) == id) put(&s->r.start_ns, start_ns);
}

void zt_log_end(struct zt_log_ring *ring, int64_t id, int64_t end_ns, int64_t sent_bytes) {
    struct slot *s = slot_of(ring, id);
    if (atomic_load_explicit(&s->id, memory_order_acquire) != id) return;
    put(&s->r.sent_bytes, sent_bytes);
    put(&s->r.end_ns, end_ns);
}

int64_t zt_log_newest(const struct zt_log_ring *ring) {
    return atomic_load_explicit(&((struct zt_log_ring *)(uintptr_t)ring)->newest,
                                memory_order_acquire);
}

static void copy_record(struct zt_coll_record *to, const struct zt_coll_record *from) {
    const size_t sent = offsetof(struct zt_coll_record, sent_bytes);
    const size_t unit = offsetof(struct zt_coll_record, unit);
    const size_t start = offsetof(struct zt_coll_record, start_ns);
    memset(to, 0, sizeof *to);
    memcpy(to, from, sent);
    memcpy((char *)to + unit, (const char *)from + unit, start - unit);
    to->sent_bytes = take(&from->sent_bytes);
    to->start_ns = take(&from->start_ns);
    to->end_ns = take(&from->end_ns);
}

int64_t zt_comm_log_read(const void *memory, size_t bytes, int64_t after,
                         struct zt_coll_record *out, int64_t max) {
    struct zt_log_ring *ring = (struct zt_log_ring *)(uintptr_t)memory; /* atomics take no const */
    int64_t n = 0;
    if (bytes < sizeof *ring || ring->magic != MAGIC || ring->slot_bytes != sizeof(struct slot) ||
        ring->entries < 1 || (uint64_t)ring->entries > (bytes - sizeof *ring) / sizeof(struct slot))
        return ZT_EINVAL;
    int64_t newest = zt_log_newest(ring);
    int64_t id = after < 0 ? 1 : after + 1;
    if (id <= newest - ring->entries) id = newest - ring->entries + 1;
    for (; id <= newest && n < max; id++) {
        struct slot *s = slot_of(ring, id);
        if (atomic_load_explicit(&s->id, memory_order_acquire) != id) continue; /* overwritten */
        copy_record(&out[n], &s->r);
        FENCE(memory_order_acquire);
        if (atomic_load_explicit(&s->id, memory_order_relaxed) == id) n++;
    }
    return n;
}
