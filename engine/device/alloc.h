/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/alloc.h: the caching allocator, one for every device, with PyTorch's rules
 * (rounding 512; small pool <= 1 MiB from 2 MiB segments; 20 MiB segments below 10 MiB; larger
 * rounded to 2 MiB; best fit by (stream, size, address); split rules; merge inside a segment).
 * allocated counts blocks, frees count at once; reserved counts segments.
 *
 * Allocation order is a function of the program alone: one thread calls (the trainer), blocks are
 * freed at fixed points of program order. Bookkeeping lives in host memory. The caller owns what it
 * got until zt_free. */
#ifndef ZT_ENGINE_ALLOC_H
#define ZT_ENGINE_ALLOC_H
#include "engine/device/device.h"
#include "engine/device/ledger.h"

struct zt_alloc;

enum zt_pool { ZT_POOL_ALL = 0, ZT_POOL_SMALL, ZT_POOL_LARGE, ZT_POOL_COUNT };
struct zt_stat { int64_t current, peak, allocated, freed; };
struct zt_alloc_stats { /* PyTorch's memory_stats, index by enum zt_pool */
    struct zt_stat allocation[ZT_POOL_COUNT], segment[ZT_POOL_COUNT], active[ZT_POOL_COUNT],
        inactive_split[ZT_POOL_COUNT];                                      /* counts */
    struct zt_stat allocated_bytes[ZT_POOL_COUNT], reserved_bytes[ZT_POOL_COUNT],
        active_bytes[ZT_POOL_COUNT], inactive_split_bytes[ZT_POOL_COUNT],
        requested_bytes[ZT_POOL_COUNT];
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size, oversize_allocations, oversize_segments;
};

/* What an out-of-memory report says; filled on every ZT_EOOM. */
struct zt_oom {
    int64_t request, capacity, reserved, allocated, free_device, largest_free_block,
        inactive_split_bytes;
    enum zt_tag tag;
    enum zt_phase phase;
    bool fragmentation; /* reserved - allocated would have covered the request and no block did */
    char what[64];      /* the name given to zt_malloc */
    int64_t by_tag[ZT_TAG_COUNT];
};

/* poison (for tests; cpu only): memory is filled with 0xFF, which is NaN in every floating-point type,
 * when it comes from the device and when its block becomes free. Who reads a freed or a new buffer
 * reads NaN; a block that was written while it was free is ZT_EINTERNAL at its next zt_malloc. The
 * fill happens on the calling thread at zt_free's place in program order (after record_stream: when
 * the recorded streams have passed), so work of another stream that was not waited for sees it. */
/* Told of every step of the allocator, in program order: what two runs are compared by, and what a curve of
 * memory is drawn from. size: bytes of the block (of the segment). The ledger has counted it already. */
enum zt_alloc_action { ZT_ALLOC_BLOCK = 0, ZT_FREE_BLOCK, ZT_ALLOC_SEGMENT, ZT_FREE_SEGMENT };
struct zt_alloc_event {
    enum zt_alloc_action action;
    enum zt_tag tag;
    enum zt_phase phase;
    int64_t size, at_ns; /* device clock */
    const char *name;    /* good during the call */
};
struct zt_alloc_watch { void (*fn)(void *arg, const struct zt_alloc_event *e); void *arg; };
struct zt_alloc_options { size_t max_split_size; double gc_threshold; bool poison; struct zt_alloc_watch watch; };

int zt_alloc_create(struct zt_device *d, struct zt_ledger *ledger, const struct zt_alloc_options *o,
                    struct zt_alloc **out, struct zt_error *err);
void zt_alloc_destroy(struct zt_alloc *a); /* returns every segment; live blocks are a bug and logged */
/* size 0 gives NULL and success. ZT_EOOM fills *zt_alloc_last_oom(a) and a message with all of it. */
int zt_malloc(struct zt_alloc *a, size_t size, struct zt_stream *s, enum zt_tag tag,
              const char *name, void **out, struct zt_error *err);
void zt_free(struct zt_alloc *a, void *p); /* NULL is fine */
/* Another stream uses p: after zt_free the block stays active until that stream passed this point. */
int zt_record_stream(struct zt_alloc *a, void *p, struct zt_stream *s, struct zt_error *err);
void zt_alloc_empty_cache(struct zt_alloc *a);
void zt_alloc_reset_peaks(struct zt_alloc *a); /* stats and ledger */
const struct zt_alloc_stats *zt_alloc_stats(const struct zt_alloc *a);
const struct zt_oom *zt_alloc_last_oom(const struct zt_alloc *a);
/* Biggest live blocks, for reports: calls fn in descending size until it returns non-zero. */
void zt_alloc_each(const struct zt_alloc *a,
                   int (*fn)(void *arg, const char *name, enum zt_tag tag, int64_t bytes), void *arg);

#endif
