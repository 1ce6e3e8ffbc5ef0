/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/alloc.c: the caching allocator, with PyTorch's rules and statistics.
 *
 * A segment comes from the device and is cut into blocks, chained by prev/next in address order.
 * Free blocks wait in two sorted arrays (small and large pool; order: stream, size, address), so
 * that the best fit is one binary search. Live blocks are found by address in a hash table. All
 * host memory that an allocation can need is made before its first change of state (make_room), so
 * a failure leaves everything as it was.
 *
 * life of a block:   free --take--> live --zt_free--> free (merged with free neighbours)
 *                                        \-> pending: another stream still uses it; active but not
 *                                            allocated, until the recorded events are done
 *
 * The caller owns what zt_malloc gave until zt_free. Thread rule: the trainer thread. */
#include "engine/device/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/units.h"

#if defined(__SANITIZE_ADDRESS__)
#define ZT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZT_ASAN 1
#endif
#endif
#ifdef ZT_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define JUNK 0xFF /* options.poison: NaN in every type */
#define MIN_BLOCK ((size_t)512)
#define SMALL_LIMIT ZT_MIB /* requests up to this go to the small pool */
#define SMALL_SEGMENT (2 * ZT_MIB)
#define LARGE_LIMIT (10 * ZT_MIB) /* below: a LARGE_SEGMENT; else rounded to ROUND_LARGE */
#define LARGE_SEGMENT (20 * ZT_MIB)
#define ROUND_LARGE (2 * ZT_MIB)
#define MAX_STREAMS 32

struct pool;
struct block {
    unsigned char *address;
    size_t size, requested;
    struct block *prev, *next; /* neighbours in the segment; next also chains spare nodes */
    struct pool *pool;
    int stream; /* index into streams[] */
    bool allocated;
    uint32_t uses;     /* bit i: streams[i] was recorded */
    int events;        /* not yet done */
    uint64_t age_base; /* pool->searches when it became free */
    enum zt_tag tag;
    char name[64];
};
/* A block among its pool's free ones. What it is sorted by stands beside it: the search touches no
 * block. */
struct waiting {
    uint64_t key; /* stream and size */
    uintptr_t address;
    struct block *block;
};
struct pool {
    enum zt_pool kind;
    bool addresses_only; /* there is no memory that a tool could watch */
    struct waiting *free;
    size_t n;
    uint64_t searches;
};
struct pending {
    struct zt_event *event;
    struct block *block;
    struct pending *next;
};
struct slab {
    struct slab *next;
    struct block blocks[128];
};

struct zt_alloc {
    struct zt_device *device;
    const struct zt_device_ops *ops;
    struct zt_ledger *ledger;
    size_t max_split;
    double gc_threshold;
    bool poison;
    struct zt_alloc_watch watch;
    struct zt_alloc_stats stats;
    struct zt_oom oom;
    struct pool small, large;
    struct zt_stream *streams[MAX_STREAMS];
    int n_streams;
    struct pending *first[MAX_STREAMS], *last[MAX_STREAMS], *idle_pending;
    struct slab *slabs;
    struct block *spare;
    size_t n_spare, n_blocks; /* unused nodes; nodes that exist */
    struct block **live;      /* hash by address, open addressing */
    struct block **order;     /* scratch for zt_alloc_each */
    size_t n_live, room_live; /* room is a power of two */
};

/* ---- statistics ---- */

static void stat_add(struct zt_stat *stats, enum zt_pool pool, int64_t delta) {
    const int index[2] = {ZT_POOL_ALL, (int)pool};
    if (!delta) return;
    for (int i = 0; i < 2; i++) {
        struct zt_stat *s = &stats[index[i]];
        s->current += delta;
        ZT_ASSERT(s->current >= 0);
        if (s->current > s->peak) s->peak = s->current;
        if (delta > 0) s->allocated += delta;
        if (delta < 0) s->freed -= delta;
    }
}

/* ASan's view of a block: may it be touched? */
static void close_block(const struct block *b) {
    if (!b->pool->addresses_only) POISON(b->address, b->size);
}
static void open_block(const struct block *b) {
    if (!b->pool->addresses_only) UNPOISON(b->address, b->size);
}

static void tell(const struct zt_alloc *a, enum zt_alloc_action action, const struct block *b) {
    if (!a->watch.fn) return;
    struct zt_alloc_event e = {
        action, b->tag, a->ledger->phase, (int64_t)b->size, a->ops->now_ns(a->device), b->name};
    a->watch.fn(a->watch.arg, &e);
}

static bool is_split(const struct block *b) { return b->prev || b->next; }

/* ---- poison ---- */

/* Under options.poison every byte of every block in a pool is JUNK. POISON above is ASan's. */
static void fill_junk(const struct zt_alloc *a, struct block *b) {
    if (a->poison) memset(b->address, JUNK, b->size);
}

static int check_junk(const struct zt_alloc *a, const struct block *b, struct zt_error *err) {
    const unsigned char *p = b->address;
    size_t i = 0;
    if (!a->poison || (p[0] == JUNK && !memcmp(p, p + 1, b->size - 1))) return 0;
    while (p[i] == JUNK) i++;
    return zt_fail(err, ZT_EINTERNAL,
                   "the memory for \"%s\" was written while it was free, first at byte %zu of %zu: "
                   "somebody used a buffer after its zt_free, a stream that was not waited for?",
                   b->name, i, b->size);
}

/* ---- host memory ---- */

static int add_slab(struct zt_alloc *a) {
    const size_t n = sizeof a->slabs->blocks / sizeof *a->slabs->blocks;
    size_t total = a->n_blocks + n;
    struct waiting *f = realloc(a->small.free, total * sizeof *f);
    if (f) a->small.free = f;
    struct waiting *g = realloc(a->large.free, total * sizeof *g);
    if (g) a->large.free = g;
    struct block **o = realloc(a->order, total * sizeof *o);
    if (o) a->order = o;
    struct slab *s = f && g && o ? calloc(1, sizeof *s) : NULL;
    if (!s) return ZT_ENOMEM;
    s->next = a->slabs;
    a->slabs = s;
    for (size_t i = 0; i < n; i++) {
        s->blocks[i].next = a->spare;
        a->spare = &s->blocks[i];
    }
    a->n_spare += n;
    a->n_blocks = total;
    return 0;
}

static struct block *node_new(struct zt_alloc *a) {
    struct block *b = a->spare;
    ZT_ASSERT(b);
    a->spare = b->next;
    a->n_spare--;
    memset(b, 0, sizeof *b);
    return b;
}

static void set_name(struct block *b, const char *name) {
    size_t n = strnlen(name, sizeof b->name - 1);
    memcpy(b->name, name, n);
    b->name[n] = '\0';
}

static void node_release(struct zt_alloc *a, struct block *b) {
    b->next = a->spare;
    a->spare = b;
    a->n_spare++;
}

static size_t hash_slot(const struct zt_alloc *a, const void *address) {
    uint64_t h = ((uint64_t)(uintptr_t)address >> 9) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 32) & (a->room_live - 1);
}

static void live_insert(struct zt_alloc *a, struct block *b) {
    size_t i = hash_slot(a, b->address);
    while (a->live[i]) i = (i + 1) & (a->room_live - 1);
    a->live[i] = b;
    a->n_live++;
}

static struct block *live_find(const struct zt_alloc *a, const void *address, size_t *slot) {
    size_t i = hash_slot(a, address);
    for (; a->live[i]; i = (i + 1) & (a->room_live - 1))
        if (a->live[i]->address == address) {
            *slot = i;
            return a->live[i];
        }
    return NULL;
}

/* Closes the gap so that no probe sequence breaks. */
static void live_remove(struct zt_alloc *a, size_t gap) {
    size_t mask = a->room_live - 1;
    for (size_t i = (gap + 1) & mask; a->live[i]; i = (i + 1) & mask) {
        size_t home = hash_slot(a, a->live[i]->address);
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            a->live[gap] = a->live[i];
            gap = i;
        }
    }
    a->live[gap] = NULL;
    a->n_live--;
}

/* After it an allocation (two nodes, one hash entry) cannot fail for want of host memory. */
static int make_room(struct zt_alloc *a, struct zt_error *err) {
    if (a->n_spare < 2 && add_slab(a))
        return zt_fail(err, ZT_ENOMEM, "host memory for the allocator's blocks");
    if (2 * (a->n_live + 1) > a->room_live) {
        size_t old_room = a->room_live;
        struct block **old = a->live, **bigger = calloc(2 * old_room, sizeof *bigger);
        if (!bigger) return zt_fail(err, ZT_ENOMEM, "host memory for the allocator's table");
        a->live = bigger;
        a->room_live = 2 * old_room;
        a->n_live = 0;
        for (size_t i = 0; i < old_room; i++)
            if (old[i]) live_insert(a, old[i]);
        free(old);
    }
    return 0;
}

static int stream_index(struct zt_alloc *a, struct zt_stream *s, struct zt_error *err) {
    if (!s) s = zt_device_compute(a->device);
    for (int i = 0; i < a->n_streams; i++)
        if (a->streams[i] == s) return i;
    if (a->n_streams == MAX_STREAMS)
        return zt_fail(err, ZT_EBUSY, "the allocator knows %d streams at most", MAX_STREAMS);
    a->streams[a->n_streams] = s;
    return a->n_streams++;
}

/* ---- pools ---- */

/* Orders by stream, then size. No block is as large as SIZE_MOST: that is a request which no block
 * can serve. */
#define SIZE_MOST (UINT64_C(1) << 58)
_Static_assert(MAX_STREAMS <= 1 << 6, "stream and size share 64 bits");
static uint64_t key_of(int stream, size_t size) {
    return (uint64_t)stream << 58 | (size < SIZE_MOST ? size : SIZE_MOST - 1);
}

/* First entry not before (stream, size, address). */
static size_t lower_bound(const struct pool *p, int stream, size_t size, const void *address) {
    const uint64_t key = key_of(stream, size);
    size_t lo = 0, hi = p->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct waiting *w = &p->free[mid];
        if (w->key != key ? w->key < key : w->address < (uintptr_t)address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void pool_insert(struct block *b) {
    struct pool *p = b->pool;
    size_t at = lower_bound(p, b->stream, b->size, b->address);
    memmove(p->free + at + 1, p->free + at, (p->n - at) * sizeof *p->free);
    p->free[at] = (struct waiting){key_of(b->stream, b->size), (uintptr_t)b->address, b};
    p->n++;
    b->age_base = p->searches;
    close_block(b);
}

static void pool_take(struct pool *p, size_t at) {
    p->n--;
    memmove(p->free + at, p->free + at + 1, (p->n - at) * sizeof *p->free);
}

static void pool_remove(struct block *b) {
    struct pool *p = b->pool;
    size_t at = lower_bound(p, b->stream, b->size, b->address);
    ZT_ASSERT(at < p->n && p->free[at].block == b);
    pool_take(p, at);
}

/* Gives a wholly free segment back to the device. */
static void release_segment(struct zt_alloc *a, struct block *b) {
    ZT_ASSERT(!is_split(b));
    pool_remove(b);
    open_block(b);
    a->ops->segment_free(a->device, b->address, b->size);
    a->stats.num_device_free++;
    stat_add(a->stats.segment, b->pool->kind, -1);
    stat_add(a->stats.reserved_bytes, b->pool->kind, -(int64_t)b->size);
    if (b->size >= a->max_split) a->stats.oversize_segments--;
    zt_ledger_reserve(a->ledger, -(int64_t)b->size);
    tell(a, ZT_FREE_SEGMENT, b);
    node_release(a, b);
}

/* ---- freeing ---- */

/* Takes a free neighbour into dst; returns its size, 0 when it is in use. */
static size_t merge(struct zt_alloc *a, struct block *dst, struct block *src) {
    if (!src || src->allocated || src->events || src->uses) return 0;
    size_t size = src->size;
    pool_remove(src);
    if (dst->prev == src) {
        dst->address = src->address;
        dst->prev = src->prev;
        if (dst->prev) dst->prev->next = dst;
    } else {
        dst->next = src->next;
        if (dst->next) dst->next->prev = dst;
    }
    dst->size += size;
    node_release(a, src);
    return size;
}

static void free_block(struct zt_alloc *a, struct block *b) {
    int64_t size = (int64_t)b->size, split_count = 0, split_bytes = 0;
    struct block *neighbours[2] = {b->prev, b->next};
    ZT_ASSERT(!b->allocated && !b->events && !b->uses);
    fill_junk(a, b);
    for (int i = 0; i < 2; i++) {
        size_t merged = merge(a, b, neighbours[i]);
        if (merged) split_count--;
        split_bytes -= (int64_t)merged;
    }
    pool_insert(b);
    if (is_split(b)) {
        split_count++;
        split_bytes += (int64_t)b->size;
    }
    stat_add(a->stats.inactive_split, b->pool->kind, split_count);
    stat_add(a->stats.inactive_split_bytes, b->pool->kind, split_bytes);
    stat_add(a->stats.active, b->pool->kind, -1);
    stat_add(a->stats.active_bytes, b->pool->kind, -size);
    stat_add(a->stats.requested_bytes, b->pool->kind, -(int64_t)b->requested);
}

static struct pending *pending_new(struct zt_alloc *a) {
    struct pending *p = a->idle_pending;
    if (p) {
        a->idle_pending = p->next;
        return p;
    }
    p = calloc(1, sizeof *p);
    if (p && a->ops->event_create(a->device, &p->event, NULL) != 0) {
        free(p);
        p = NULL;
    }
    return p;
}

static void pending_idle(struct zt_alloc *a, struct pending *p) {
    p->next = a->idle_pending;
    a->idle_pending = p;
}

/* An event on every stream that used b; the block becomes free when all are done. Without host
 * memory for an event the stream is waited for instead: slower, never wrong. */
static void insert_events(struct zt_alloc *a, struct block *b) {
    uint32_t uses = b->uses;
    b->uses = 0;
    for (int i = 0; i < a->n_streams; i++) {
        if (!(uses >> i & 1)) continue;
        struct pending *p = pending_new(a);
        if (!p || a->ops->event_record(p->event, a->streams[i], NULL) != 0) {
            a->ops->stream_sync(a->streams[i], NULL);
            if (p) pending_idle(a, p);
            continue;
        }
        p->block = b;
        p->next = NULL;
        if (a->last[i])
            a->last[i]->next = p;
        else
            a->first[i] = p;
        a->last[i] = p;
        b->events++;
    }
    if (!b->events) free_block(a, b);
}

/* Blocks whose events are done become free; with `all`, every event is waited for. */
static void process_events(struct zt_alloc *a, bool all) {
    for (int i = 0; i < a->n_streams; i++) {
        if (all && a->first[i]) a->ops->stream_sync(a->streams[i], NULL);
        while (a->first[i] && a->ops->event_done(a->first[i]->event)) {
            struct pending *p = a->first[i];
            a->first[i] = p->next;
            if (!p->next) a->last[i] = NULL;
            if (--p->block->events == 0) free_block(a, p->block);
            pending_idle(a, p);
        }
        ZT_ASSERT(!all || !a->first[i]);
    }
}

static void release_cached(struct zt_alloc *a) {
    struct pool *pools[2] = {&a->large, &a->small};
    a->stats.num_sync_all_streams++;
    process_events(a, true);
    for (int k = 0; k < 2; k++)
        for (size_t i = pools[k]->n; i-- > 0;)
            if (!is_split(pools[k]->free[i].block)) release_segment(a, pools[k]->free[i].block);
}

/* Under max_split_size: gives back just enough big cached segments of this stream. */
static bool release_available(struct zt_alloc *a, struct pool *p, int stream, size_t size) {
    if (a->max_split == SIZE_MAX) return false;
    size_t want = size < a->max_split ? a->max_split : size, released = 0;
    size_t at = lower_bound(p, stream, want, NULL);
    if (at < p->n && p->free[at].block->stream == stream) {
        release_segment(a, p->free[at].block);
        return true;
    }
    while (at-- > 0 && released < want) {
        struct block *b = p->free[at].block;
        if (b->size < a->max_split || b->stream != stream) break;
        if (is_split(b)) continue;
        released += b->size;
        release_segment(a, b);
    }
    return released >= want;
}

/* Above the threshold: frees unsplit large blocks of at least average age, oldest generations
 * first, until the excess is reclaimed. */
static void collect_garbage(struct zt_alloc *a) {
    size_t total = (size_t)a->stats.reserved_bytes[ZT_POOL_ALL].current, reclaimed = 0, n = 0;
    size_t threshold = (size_t)(a->gc_threshold * (double)zt_device_capacity(a->device));
    double age = 0;
    bool freed = true;
    if (total <= threshold) return;
    for (size_t i = 0; i < a->large.n; i++)
        if (!is_split(a->large.free[i].block)) {
            age += (double)(a->large.searches - a->large.free[i].block->age_base);
            n++;
        }
    while (reclaimed < total - threshold && freed && n > 0) {
        double average = age / (double)n;
        freed = false;
        for (size_t i = 0; i < a->large.n;) {
            struct block *b = a->large.free[i].block;
            double own = (double)(a->large.searches - b->age_base);
            if (is_split(b) || own < average) {
                i++;
                continue;
            }
            freed = true;
            reclaimed += b->size;
            age -= own;
            n--;
            release_segment(a, b); /* the next one moves to place i */
        }
    }
}

/* ---- allocating ---- */

static size_t round_size(size_t size) {
    if (size > SIZE_MAX / 4) size = SIZE_MAX / 4; /* refused by the capacity, without overflow */
    return size < MIN_BLOCK ? MIN_BLOCK : zt_round_up(size, MIN_BLOCK);
}

static size_t segment_size(size_t size) {
    if (size <= SMALL_LIMIT) return SMALL_SEGMENT;
    if (size < LARGE_LIMIT) return LARGE_SEGMENT;
    return zt_round_up(size, ROUND_LARGE);
}

/* Best fit of the stream's free blocks, removed from its pool; NULL when there is none. */
static struct block *get_free_block(struct zt_alloc *a, struct pool *p, int stream, size_t size) {
    if (a->gc_threshold > 0) p->searches++;
    size_t at = lower_bound(p, stream, size, NULL);
    if (at == p->n || p->free[at].block->stream != stream) return NULL;
    struct block *b = p->free[at].block;
    if (size < a->max_split && b->size >= a->max_split) return NULL;
    if (size >= a->max_split && b->size >= size + LARGE_SEGMENT) return NULL;
    pool_take(p, at);
    return b;
}

static struct block *new_segment(struct zt_alloc *a, struct pool *p, int stream, size_t size,
                                 bool retry, int *rc, struct zt_error *err) {
    size_t bytes = segment_size(size);
    void *address = NULL;
    if (retry) a->stats.num_alloc_retries++;
    *rc = a->ops->segment_alloc(a->device, bytes, &address, err);
    if (*rc) return NULL;
    ZT_ASSERT(bytes < SIZE_MOST);
    struct block *b = node_new(a);
    b->address = address;
    b->size = bytes;
    b->pool = p;
    b->stream = stream;
    fill_junk(a, b);
    close_block(b);
    stat_add(a->stats.segment, p->kind, 1);
    stat_add(a->stats.reserved_bytes, p->kind, (int64_t)bytes);
    if (bytes >= a->max_split) a->stats.oversize_segments++;
    a->stats.num_device_alloc++;
    zt_ledger_reserve(a->ledger, (int64_t)bytes);
    tell(a, ZT_ALLOC_SEGMENT, b);
    return b;
}

static struct block *find_block(struct zt_alloc *a, struct pool *p, int stream, size_t size,
                                int *rc, struct zt_error *err) {
    struct block *b = get_free_block(a, p, stream, size);
    if (b) return b;
    if (a->gc_threshold > 0) collect_garbage(a);
    b = new_segment(a, p, stream, size, false, rc, err);
    if (!b && (*rc == ZT_EOOM || *rc == ZT_ENOMEM) && release_available(a, p, stream, size))
        b = new_segment(a, p, stream, size, false, rc, err);
    if (!b && (*rc == ZT_EOOM || *rc == ZT_ENOMEM)) {
        release_cached(a);
        b = new_segment(a, p, stream, size, true, rc, err);
    }
    return b;
}

/* Cuts the front of b off when what remains is worth keeping; returns the block to hand out. */
static struct block *split(struct zt_alloc *a, struct block *b, size_t size) {
    size_t remaining = b->size - size;
    bool was_split = is_split(b);
    bool cut = b->pool->kind == ZT_POOL_SMALL ? remaining >= MIN_BLOCK
                                              : size < a->max_split && remaining > SMALL_LIMIT;
    if (!cut) {
        if (was_split) {
            stat_add(a->stats.inactive_split, b->pool->kind, -1);
            stat_add(a->stats.inactive_split_bytes, b->pool->kind, -(int64_t)b->size);
        }
        return b;
    }
    struct block *front = node_new(a);
    front->address = b->address;
    front->size = size;
    front->pool = b->pool;
    front->stream = b->stream;
    front->prev = b->prev;
    if (front->prev) front->prev->next = front;
    front->next = b;
    b->prev = front;
    b->address += size;
    b->size = remaining;
    pool_insert(b);
    if (was_split) {
        stat_add(a->stats.inactive_split_bytes, b->pool->kind, -(int64_t)size);
    } else {
        stat_add(a->stats.inactive_split, b->pool->kind, 1);
        stat_add(a->stats.inactive_split_bytes, b->pool->kind, (int64_t)remaining);
    }
    return front;
}

/* ---- the out-of-memory report ---- */

static int64_t largest_free(const struct zt_alloc *a) {
    size_t best = 0;
    for (size_t i = 0; i < a->small.n; i++)
        if (a->small.free[i].block->size > best) best = a->small.free[i].block->size;
    for (size_t i = 0; i < a->large.n; i++)
        if (a->large.free[i].block->size > best) best = a->large.free[i].block->size;
    return (int64_t)best;
}

static void fill_oom(struct zt_alloc *a, size_t request, size_t rounded, enum zt_tag tag,
                     const char *name) {
    struct zt_oom *o = &a->oom;
    memset(o, 0, sizeof *o);
    o->request = request > INT64_MAX ? INT64_MAX : (int64_t)request;
    o->capacity = (int64_t)zt_device_capacity(a->device);
    o->reserved = a->stats.reserved_bytes[ZT_POOL_ALL].current;
    o->allocated = a->stats.allocated_bytes[ZT_POOL_ALL].current;
    o->free_device = o->capacity - o->reserved;
    o->largest_free_block = largest_free(a);
    o->inactive_split_bytes = a->stats.inactive_split_bytes[ZT_POOL_ALL].current;
    o->tag = tag;
    o->phase = a->ledger->phase;
    /* A block that is big enough may belong to the other pool: what lacks then is a segment. */
    o->fragmentation =
        o->reserved - o->allocated >= (int64_t)rounded && o->largest_free_block < (int64_t)rounded;
    snprintf(o->what, sizeof o->what, "%s", name ? name : "");
    memcpy(o->by_tag, a->ledger->block, sizeof o->by_tag);
}

struct biggest {
    char *text;
    size_t room, used;
    int left;
};
static int add_biggest(void *arg, const char *name, enum zt_tag tag, int64_t bytes) {
    struct biggest *b = arg;
    int n = snprintf(b->text + b->used, b->room - b->used, "%s%s (%s) %lld", b->used ? ", " : "",
                     name, zt_tag_name(tag), (long long)bytes);
    if (n > 0) b->used += (size_t)n < b->room - b->used ? (size_t)n : b->room - b->used - 1;
    return --b->left <= 0;
}

static int report_oom(struct zt_alloc *a, int code, struct zt_error *err) {
    const struct zt_oom *o = &a->oom;
    char tags[256] = "", big[320] = "none", human[32], machine[600] = "";
    size_t used = 0;
    for (int t = 0; t < ZT_TAG_COUNT; t++)
        used += (size_t)snprintf(tags + used, sizeof tags - used, "%s%s %lld", t ? ", " : "",
                                 zt_tag_name((enum zt_tag)t), (long long)o->by_tag[t]);
    struct biggest b = {big, sizeof big, 0, 3};
    zt_alloc_each(a, add_biggest, &b);
    if (code == ZT_ENOMEM && err) snprintf(machine, sizeof machine, "; %.560s", err->msg);
    return zt_fail(
        err, code,
        "out of device memory: \"%s\" (%s) asked for %lld bytes (%s) in phase %s; capacity %lld, "
        "reserved %lld, allocated %lld, free on the device %lld, largest free block %lld, "
        "inactive_split %lld; ledger: %s; biggest: %s; cause: %s%s",
        o->what, zt_tag_name(o->tag), (long long)o->request,
        zt_format_bytes((double)o->request, human, sizeof human), zt_phase_name(o->phase),
        (long long)o->capacity, (long long)o->reserved, (long long)o->allocated,
        (long long)o->free_device, (long long)o->largest_free_block,
        (long long)o->inactive_split_bytes, tags, big,
        o->fragmentation
            ? "fragmentation: reserved - allocated would cover the request, but no free block "
              "does; set memory.max_split_size_mib or give more with --memory-gib"
            : "capacity: give more with --memory-gib, lower training.local_batch_size or "
              "training.seq_len, or shard over more workers",
        machine);
}

/* ---- interface ---- */

int zt_alloc_create(struct zt_device *d, struct zt_ledger *ledger, const struct zt_alloc_options *o,
                    struct zt_alloc **out, struct zt_error *err) {
    size_t max_split = o ? o->max_split_size : 0;
    double gc = o ? o->gc_threshold : 0;
    *out = NULL;
    if (max_split && max_split <= LARGE_SEGMENT)
        return zt_fail(err, ZT_EINVAL,
                       "memory.max_split_size_mib: %zu bytes is not above 20 MiB, the size of a "
                       "large segment; give more, or 0 for no limit",
                       max_split);
    if (!(gc >= 0 && gc < 1))
        return zt_fail(err, ZT_EINVAL, "memory.gc_threshold: %g is not in [0, 1)", gc);
    if (o && o->poison && strcmp(zt_device_ops(d)->name, "cpu"))
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "allocator: poison needs memory that the host can write; device %s has none",
                       zt_device_ops(d)->name);
    struct zt_alloc *a = calloc(1, sizeof *a);
    if (!a) return zt_fail(err, ZT_ENOMEM, "host memory for the allocator");
    a->device = d;
    a->ops = zt_device_ops(d);
    a->ledger = ledger;
    a->max_split = max_split ? max_split : SIZE_MAX;
    a->stats.max_split_size = max_split ? (int64_t)max_split : -1;
    a->gc_threshold = gc;
    a->poison = o && o->poison;
    if (o) a->watch = o->watch;
    a->small.addresses_only = a->large.addresses_only = !zt_device_has_memory(d);
    a->small.kind = ZT_POOL_SMALL;
    a->large.kind = ZT_POOL_LARGE;
    a->room_live = 256;
    a->live = calloc(a->room_live, sizeof *a->live);
    if (!a->live || add_slab(a)) {
        zt_alloc_destroy(a);
        return zt_fail(err, ZT_ENOMEM, "host memory for the allocator");
    }
    *out = a;
    return 0;
}

int zt_malloc(struct zt_alloc *a, size_t size, struct zt_stream *s, enum zt_tag tag,
              const char *name, void **out, struct zt_error *err) {
    struct zt_error why; /* 2 KiB: filled where something fails */
    int rc = 0;
    *out = NULL;
    if (!size) return 0;
    if ((unsigned)tag >= ZT_TAG_COUNT)
        return zt_fail(err, ZT_EINVAL, "\"%s\": memory tag %d is not known", name ? name : "",
                       (int)tag);
    int stream = stream_index(a, s, err);
    if (stream < 0) return stream;
    process_events(a, false);
    rc = make_room(a, err);
    if (rc) return rc;
    size_t rounded = round_size(size);
    struct pool *p = rounded <= SMALL_LIMIT ? &a->small : &a->large;
    struct block *b = find_block(a, p, stream, rounded, &rc, &why);
    if (!b) {
        if (err) *err = why;
        if (rc != ZT_EOOM && rc != ZT_ENOMEM) return rc;
        a->stats.num_ooms++;
        fill_oom(a, size, rounded, tag, name);
        return report_oom(a, rc, err);
    }
    b = split(a, b, rounded);
    b->allocated = true;
    b->requested = size;
    b->tag = tag;
    set_name(b, name ? name : "");
    live_insert(a, b);
    open_block(b);
    stat_add(a->stats.allocation, p->kind, 1);
    stat_add(a->stats.allocated_bytes, p->kind, (int64_t)b->size);
    stat_add(a->stats.active, p->kind, 1);
    stat_add(a->stats.active_bytes, p->kind, (int64_t)b->size);
    stat_add(a->stats.requested_bytes, p->kind, (int64_t)b->requested);
    if (b->size >= a->max_split) a->stats.oversize_allocations++;
    zt_ledger_alloc(a->ledger, tag, (int64_t)rounded, (int64_t)b->size);
    tell(a, ZT_ALLOC_BLOCK, b);
    rc = check_junk(a, b, err);
    if (rc)
        zt_free(a, b->address);
    else
        *out = b->address;
    return rc;
}

void zt_free(struct zt_alloc *a, void *p) {
    size_t slot = 0;
    if (!p) return;
    struct block *b = live_find(a, p, &slot);
    ZT_ASSERT(b && b->allocated); /* else: freed twice, or not ours */
    live_remove(a, slot);
    b->allocated = false;
    stat_add(a->stats.allocation, b->pool->kind, -1);
    stat_add(a->stats.allocated_bytes, b->pool->kind, -(int64_t)b->size);
    if (b->size >= a->max_split) a->stats.oversize_allocations--;
    zt_ledger_free(a->ledger, b->tag, (int64_t)round_size(b->requested), (int64_t)b->size);
    tell(a, ZT_FREE_BLOCK, b);
    if (b->uses)
        insert_events(a, b);
    else
        free_block(a, b);
}

int zt_record_stream(struct zt_alloc *a, void *p, struct zt_stream *s, struct zt_error *err) {
    size_t slot = 0;
    if (!p) return 0;
    struct block *b = live_find(a, p, &slot);
    if (!b) return zt_fail(err, ZT_EINVAL, "record_stream: %p is not a live block", p);
    int stream = stream_index(a, s, err);
    if (stream < 0) return stream;
    if (stream != b->stream) b->uses |= UINT32_C(1) << stream;
    return 0;
}

void zt_alloc_empty_cache(struct zt_alloc *a) { release_cached(a); }

static void reset_peak(struct zt_stat *s) {
    for (int i = 0; i < ZT_POOL_COUNT; i++) s[i].peak = s[i].current;
}

void zt_alloc_reset_peaks(struct zt_alloc *a) {
    struct zt_alloc_stats *s = &a->stats;
    struct zt_stat *all[] = {
        s->allocation,      s->segment,        s->active,       s->inactive_split,
        s->allocated_bytes, s->reserved_bytes, s->active_bytes, s->inactive_split_bytes,
        s->requested_bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) reset_peak(all[i]);
    zt_ledger_reset_peaks(a->ledger);
}

const struct zt_alloc_stats *zt_alloc_stats(const struct zt_alloc *a) { return &a->stats; }
const struct zt_oom *zt_alloc_last_oom(const struct zt_alloc *a) { return &a->oom; }

static int by_size(const void *x, const void *y) {
    const struct block *a = *(struct block *const *)x, *b = *(struct block *const *)y;
    if (a->size != b->size) return a->size < b->size ? 1 : -1;
    return (a->address > b->address) - (a->address < b->address);
}

void zt_alloc_each(const struct zt_alloc *a,
                   int (*fn)(void *arg, const char *name, enum zt_tag tag, int64_t bytes),
                   void *arg) {
    size_t n = 0;
    for (size_t i = 0; i < a->room_live; i++)
        if (a->live[i]) a->order[n++] = a->live[i];
    qsort(a->order, n, sizeof *a->order, by_size);
    for (size_t i = 0; i < n; i++)
        if (fn(arg, a->order[i]->name, a->order[i]->tag, (int64_t)a->order[i]->size)) break;
}

void zt_alloc_destroy(struct zt_alloc *a) {
    if (!a) return;
    if (a->n_live) {
        char names[320] = "";
        struct biggest b = {names, sizeof names, 0, 3};
        zt_alloc_each(a, add_biggest, &b);
        fprintf(stderr, "allocator: %zu blocks are still live at its end, the biggest: %s\n",
                a->n_live, names);
        for (size_t i = 0; i < a->room_live;) {
            struct block *live = a->live[i];
            if (live)
                zt_free(a, live->address); /* may move another block to place i */
            else
                i++;
        }
    }
    if (a->slabs) release_cached(a);
    for (int i = 0; i < a->n_streams; i++) ZT_ASSERT(!a->first[i]);
    while (a->idle_pending) {
        struct pending *p = a->idle_pending;
        a->idle_pending = p->next;
        a->ops->event_destroy(p->event);
        free(p);
    }
    while (a->slabs) {
        struct slab *s = a->slabs;
        a->slabs = s->next;
        free(s);
    }
    free(a->small.free);
    free(a->large.free);
    free(a->order);
    free(a->live);
    free(a);
}
