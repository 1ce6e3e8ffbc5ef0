/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/comm.c: the front of all communicators: checks arguments, numbers and logs the
 * collectives, queues them on streams and keeps their order, and remembers the first failure of the
 * world. How data moves is behind struct zt_comm_impl.
 *
 * Order: the collectives of a group run by their sequence number, on whatever streams they were
 * queued; `turn` is the number that may run. This cannot deadlock: an earlier collective was queued
 * earlier, so what it waits for was queued earlier still.
 * Thread rule and ownership: comm.h. */
#include "engine/comm/comm.h"
#include <stdio.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "engine/comm/comm_impl.h"
#include "engine/comm/reduce.h"
#include "engine/comm/tcp.h"
#include "engine/device/sim.h"
#include "core/sys.h"
#include "core/units.h"

#define TURN_SLICE_NS 50000000
#define TURN_SPINS 100

struct zt_comm_op {
    struct zt_comm *c;
    enum zt_coll kind;
    enum zt_redop op;
    enum zt_dtype dtype;
    const void *send;
    void *recv;
    int64_t count; /* of the call, not of the full buffer */
    int root;
    int64_t delay_ns, alpha_ns; /* zt_comm_inject */
    double ns_per_byte;
    struct zt_coll_record record;
    struct zt_comm_op *next_idle, *next;
};

const char *zt_coll_name(enum zt_coll c) {
    static const char *const names[] = {"broadcast",      "all_reduce", "all_gather",
                                        "reduce_scatter", "barrier",    "split"};
    return (unsigned)c <= ZT_COLL_SPLIT ? names[c] : "unknown";
}

int64_t zt_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void zt_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* splitmix64 of a seed and a number */
static uint64_t mix64(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* ---- making and freeing ---- */

static struct zt_comm_shared *shared_new(void) {
    struct zt_comm_shared *s = calloc(1, sizeof *s);
    size_t bytes = zt_comm_log_bytes(ZT_LOG_ENTRIES);
    void *ring = malloc(bytes);
    if (!s || !ring) {
        free(s);
        free(ring);
        return NULL;
    }
    zt_log_format(ring, bytes);
    s->ring = ring;
    s->ring_is_ours = true;
    atomic_store(&s->failed_rank, -1);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void shared_unref(struct zt_comm_shared *s) {
    if (atomic_fetch_sub(&s->refs, 1) != 1) return;
    while (s->all) {
        struct zt_comm_op *op = s->all;
        s->all = op->next;
        free(op);
    }
    if (s->ring_is_ours) free(s->ring);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

struct zt_comm *zt_comm_new(struct zt_comm_shared *shared, struct zt_device *d, const char *name,
                            const int *ranks, int size, int world_rank, int world_size,
                            struct zt_error *err) {
    struct zt_comm *c = calloc(1, sizeof *c);
    int *copy = malloc((size_t)size * sizeof *copy);
    if (!shared && c && copy) shared = shared_new();
    if (!c || !copy || !shared) {
        free(c);
        free(copy);
        zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
        return NULL;
    }
    atomic_fetch_add(&shared->refs, 1);
    c->shared = shared;
    c->device = d;
    c->ranks = copy;
    c->size = size;
    c->world_rank = world_rank;
    c->world_size = world_size;
    for (int i = 0; i < size; i++) {
        copy[i] = ranks ? ranks[i] : i;
        if (copy[i] == world_rank) c->rank = i;
    }
    strncpy(c->name, name, sizeof c->name - 1);
    atomic_store(&c->timeout_ns, ZT_COMM_TIMEOUT_NS);
    atomic_store(&c->turn, 1);
    return c;
}

/* Into the list of groups, where the parts of an implementation are not. */
static void enlist(struct zt_comm *c) {
    struct zt_comm **last = &c->shared->groups;
    while (*last) last = &(*last)->next_group;
    *last = c;
}

void zt_comm_free(struct zt_comm *c) {
    if (!c) return;
    struct zt_comm **at = &c->shared->groups;
    while (*at && *at != c) at = &(*at)->next_group;
    if (*at) *at = c->next_group;
    shared_unref(c->shared);
    free(c->ranks);
    free(c);
}

/* ---- the id ---- */

#define ID_MAGIC "ztcomm\0\2"
/* What ranks need to meet. port 0: all of them are on one host. */
struct id_layout {
    char magic[8];
    struct shm_id shm;
    int32_t port;
    char address[TCP_ADDRESS];
};
_Static_assert(sizeof(struct id_layout) <= sizeof(struct zt_comm_id), "it fits");

int zt_comm_mint_at(const struct zt_comm_door *door, struct zt_comm_id *id, struct zt_error *err) {
    struct id_layout l = {.magic = ID_MAGIC};
    int rc = zt_sys_posix.random(zt_sys_posix.arg, &l.shm, sizeof l.shm);
    if (rc)
        return zt_fail(err, ZT_EIO, "communicator id: no random bytes from the kernel: %s",
                       strerror(-rc));
    if (door) {
        l.port = door->port;
        memcpy(l.address, door->address, sizeof l.address);
    }
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &l, sizeof l);
    return 0;
}

int zt_comm_mint(struct zt_comm_id *id, struct zt_error *err) {
    return zt_comm_mint_at(NULL, id, err);
}

static int open_world(struct zt_comm *c, const struct zt_comm_id *id, struct zt_comm_door **door,
                      double timeout_s, struct zt_error *err) {
    struct id_layout l;
    struct tcp_place zero = {{0}, {0}, 0, 0};
    int64_t timeout_ns = (int64_t)(timeout_s * 1e9);
    memcpy(&l, id->bytes, sizeof l);
    if (memcmp(l.magic, ID_MAGIC, sizeof l.magic) != 0)
        return zt_fail(err, ZT_EINVAL,
                       "communicator: the id was not minted by this version (zt_comm_mint)");
    if (!*door != !l.port)
        return zt_fail(
            err, ZT_EINVAL,
            "communicator: rank 0 made the id for ranks on %s, but rank %d came for ranks on "
            "%s",
            l.port ? "several hosts" : "one host", c->world_rank,
            *door ? "several hosts" : "one host");
    if (!*door) return shm_open_world(c, &l.shm, timeout_ns, NULL, err);
    struct zt_comm_door *d = *door;
    *door = NULL; /* the world's now */
    memcpy(zero.address, l.address, sizeof zero.address);
    zero.address[sizeof zero.address - 1] = 0;
    zero.port = l.port;
    return tcp_open(c, &l.shm, &zero, d, timeout_ns, err);
}

static int check_init(const struct zt_comm_id *id, int rank, int world, bool simulated,
                      double timeout_s, struct zt_error *err) {
    const int most = simulated ? ZT_PLAN_RANKS_MAX : ZT_COMM_MAX_RANKS;
    if (world < 1 || world > most)
        return zt_fail(err, ZT_EINVAL, "communicator: a world of %d ranks is not in 1 to %d", world,
                       most);
    if (rank < 0 || rank >= world)
        return zt_fail(err, ZT_EINVAL, "communicator: rank %d is not in a world of %d", rank,
                       world);
    if (!(timeout_s > 0 && timeout_s < 1e9))
        return zt_fail(err, ZT_EINVAL, "communicator: a time-out of %g s is not above 0",
                       timeout_s);
    if (world > 1 && !id && !simulated)
        return zt_fail(err, ZT_EINVAL, "communicator: rank %d has no id to meet the others by",
                       rank);
    return 0;
}

int zt_comm_init_at(struct zt_comm_door *door, const struct zt_comm_id *id, int rank, int world,
                    struct zt_device *d, double timeout_s, struct zt_comm **out,
                    struct zt_error *err) {
    struct zt_error local = {0};
    struct zt_comm *c = NULL;
    if (!err) err = &local;
    *out = NULL;
    const bool simulated = zt_device_sim(d) != NULL;
    int rc = check_init(id, rank, world, simulated, timeout_s, err);
    if (!rc) {
        c = zt_comm_new(NULL, d, "world", NULL, world, rank, world, err);
        rc = c ? 0 : ZT_ENOMEM;
    }
    if (!rc && simulated)
        c->impl = &zt_comm_sim;
    else if (!rc && world == 1)
        c->impl = &zt_comm_self;
    else if (!rc)
        rc = open_world(c, id, &door, timeout_s, err);
    zt_comm_door_close(door);
    if (rc) {
        zt_comm_free(c);
        return rc;
    }
    enlist(c);
    *out = c;
    return 0;
}

int zt_comm_init(const struct zt_comm_id *id, int rank, int world, struct zt_device *d,
                 double timeout_s, struct zt_comm **out, struct zt_error *err) {
    return zt_comm_init_at(NULL, id, rank, world, d, timeout_s, out, err);
}

void zt_comm_destroy(struct zt_comm *c) {
    if (!c) return;
    c->impl->destroy(c);
    zt_comm_free(c);
}

/* Remembers the first failure of the world. */
static void mark_broken(struct zt_comm *c, int code, const char *msg) {
    struct zt_comm_shared *s = c->shared;
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->broken)) {
        zt_fail(&s->why, code, "%s", msg);
        atomic_store(&s->broken, code);
    }
    pthread_mutex_unlock(&s->lock);
}

static int report_broken(struct zt_comm *c, struct zt_error *err) {
    struct zt_comm_shared *s = c->shared;
    pthread_mutex_lock(&s->lock);
    int code = atomic_load(&s->broken);
    if (code) zt_fail(err, code, "an earlier collective failed: %.1900s", s->why.msg);
    pthread_mutex_unlock(&s->lock);
    return code;
}

void zt_comm_abort(struct zt_comm *c) {
    char msg[64];
    snprintf(msg, sizeof msg, "the communicator was aborted by rank %d", c->world_rank);
    mark_broken(c, ZT_ECOMM, msg);
    c->impl->abort(c);
}

int zt_comm_rank(const struct zt_comm *c) { return c->rank; }
int zt_comm_size(const struct zt_comm *c) { return c->size; }

int zt_comm_groups(const struct zt_comm *world, struct zt_comm_group *out, int max) {
    int n = 0;
    for (const struct zt_comm *c = world->shared->groups; c; c = c->next_group, n++)
        if (n < max) out[n] = (struct zt_comm_group){c->name, c->ranks, c->size};
    return n;
}

double zt_comm_set_timeout(struct zt_comm *c, double seconds) {
    if (!(seconds > 0)) seconds = 1e-9;
    if (seconds > 1e9) seconds = 1e9;
    return (double)atomic_exchange(&c->timeout_ns, (int64_t)(seconds * 1e9)) / 1e9;
}

int zt_comm_failed_rank(const struct zt_comm *c) { return atomic_load(&c->shared->failed_rank); }

struct zt_comm_totals zt_comm_totals(const struct zt_comm *c) {
    struct zt_comm *m = (struct zt_comm *)(uintptr_t)c; /* atomics take no const */
    return (struct zt_comm_totals){atomic_load(&m->totals[0]), atomic_load(&m->totals[1]),
                                   atomic_load(&m->totals[2]), atomic_load(&m->totals[3])};
}

/* ---- order ---- */

static int wait_turn(struct zt_comm *c, int64_t seq, struct zt_error *err) {
    uint32_t want = (uint32_t)seq;
    int64_t deadline = 0;
    for (int i = 0; i < TURN_SPINS; i++) {
        if (atomic_load_explicit(&c->turn, memory_order_acquire) == want) return 0;
        zt_cpu_relax();
    }
    for (;;) {
        uint32_t seen = atomic_load_explicit(&c->turn, memory_order_acquire);
        struct timespec slice = {0, TURN_SLICE_NS};
        if (seen == want) return 0;
        if (atomic_load(&c->shared->broken)) return report_broken(c, err);
        int64_t now = zt_clock_ns();
        if (!deadline) deadline = now + atomic_load(&c->timeout_ns);
        if (now > deadline)
            return zt_fail(err, ZT_ETIMEOUT,
                           "group \"%s\", rank %d: collective %lld still waits for an earlier one "
                           "of its own group that was queued on another stream and has not run",
                           c->name, c->world_rank, (long long)seq);
        syscall(SYS_futex, &c->turn, FUTEX_WAIT_PRIVATE, seen, &slice, NULL, 0);
    }
}

static void end_turn(struct zt_comm *c, int64_t seq) {
    atomic_store_explicit(&c->turn, (uint32_t)(seq + 1), memory_order_release);
    syscall(SYS_futex, &c->turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- one collective ---- */

int64_t zt_comm_sent_bytes(const struct zt_comm *c, enum zt_coll kind, int64_t count, size_t size,
                           int root) {
    int64_t lo, hi, others = c->size - 1, bytes = count * (int64_t)size;
    switch (kind) {
    case ZT_COLL_ALL_REDUCE:
        zt_share(count, c->size, c->rank, &lo, &hi);
        return 2 * others * (hi - lo) * (int64_t)size;
    case ZT_COLL_REDUCE_SCATTER:
    case ZT_COLL_ALL_GATHER:
        return others * bytes;
    case ZT_COLL_BROADCAST:
        return c->rank == root ? 0 : bytes;
    default:
        return 0;
    }
}

static struct zt_comm_op *op_new(struct zt_comm_shared *s) {
    pthread_mutex_lock(&s->lock);
    struct zt_comm_op *op = s->idle;
    if (op) s->idle = op->next_idle;
    pthread_mutex_unlock(&s->lock);
    if (op) return op;
    op = calloc(1, sizeof *op);
    if (!op) return NULL;
    op->next = s->all; /* the trainer thread alone touches this list */
    s->all = op;
    return op;
}

static void op_idle(struct zt_comm_shared *s, struct zt_comm_op *op) {
    pthread_mutex_lock(&s->lock);
    op->next_idle = s->idle;
    s->idle = op;
    pthread_mutex_unlock(&s->lock);
}

/* Asleep for that long, but not once the world is broken. */
static void linger(struct zt_comm *c, int64_t ns) {
    int64_t until = zt_clock_ns() + ns, left;
    while ((left = until - zt_clock_ns()) > 0 && !atomic_load(&c->shared->broken)) {
        struct timespec slice = {0, left < TURN_SLICE_NS ? left : TURN_SLICE_NS};
        nanosleep(&slice, NULL);
    }
}

static void draw_cost(struct zt_comm_op *o) {
    const struct zt_comm_inject *j = &o->c->shared->inject;
    uint64_t key = (uint64_t)o->record.id << 9 | (uint64_t)o->c->world_rank;
    bool none = o->record.control;
    o->delay_ns = none || j->max_delay_ns <= 0
                      ? 0
                      : (int64_t)(mix64(j->seed, key) % ((uint64_t)j->max_delay_ns + 1));
    o->alpha_ns = none || o->c->size == 1 ? 0 : j->alpha_ns;
    o->ns_per_byte = none ? 0 : j->ns_per_byte;
}

/* On the stream. */
static int run_op(void *arg, struct zt_error *err) {
    struct zt_comm_op *op = arg;
    struct zt_comm *c = op->c;
    struct zt_coll_record *r = &op->record;
    struct zt_log_ring *ring = c->shared->ring;
    const struct zt_device_ops *ops = zt_device_ops(c->device);
    int rc = wait_turn(c, r->seq, err);
    if (!rc && atomic_load(&c->shared->broken)) rc = report_broken(c, err);
    if (!rc) {
        zt_log_start(ring, r->id, ops->now_ns(c->device));
        linger(c, op->delay_ns);
        rc = c->impl->collective(c, op->kind, op->op, op->dtype, op->send, op->recv, op->count,
                                 op->root, r, err);
        linger(c, op->alpha_ns + (int64_t)((double)r->sent_bytes * op->ns_per_byte));
    }
    if (!rc) {
        int at = r->control ? 2 : 0;
        zt_log_end(ring, r->id, ops->now_ns(c->device), r->sent_bytes);
        atomic_fetch_add(&c->totals[at], 1);
        atomic_fetch_add(&c->totals[at + 1], r->sent_bytes);
    } else {
        mark_broken(c, rc, err->msg);
        c->impl->abort(c); /* no other rank may wait for this one */
    }
    end_turn(c, r->seq);
    op_idle(c->shared, op);
    return rc;
}

static int fail_call(const struct zt_comm *c, enum zt_coll kind, const struct zt_coll_why *why,
                     struct zt_error *err, const char *text) {
    return zt_fail(err, ZT_EINVAL, "%s in group \"%s\", rank %d%s%s: %s", zt_coll_name(kind),
                   c->name, c->world_rank, why && why->unit ? ", unit " : "",
                   why && why->unit ? why->unit : "", text);
}

static bool overlap(const void *a, const void *b, size_t an, size_t bn) {
    const char *x = a, *y = b;
    return x < y + bn && y < x + an;
}

/* What can be wrong with a call on this rank alone. */
static int check_call(const struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                      const void *send, const void *recv, int64_t count,
                      const struct zt_coll_why *why, struct zt_error *err) {
    bool reduces = kind == ZT_COLL_ALL_REDUCE || kind == ZT_COLL_REDUCE_SCATTER;
    bool wide = kind == ZT_COLL_ALL_GATHER || kind == ZT_COLL_REDUCE_SCATTER;
    char text[192];
    if ((unsigned)t >= ZT_DTYPE_COUNT)
        return fail_call(c, kind, why, err, "the element type is not known");
    size_t size = zt_dtype_size(t), bytes = 0, full = 0;
    if (reduces && !zt_reduce_supported(t, op)) {
        snprintf(text, sizeof text,
                 "reduction %d is not defined for %s; defined are sum, max and min for fp32, bf16, "
                 "fp16, int32, int64 and uint8, and avg for fp32, bf16 and fp16",
                 (int)op, zt_dtype_name(t));
        return fail_call(c, kind, why, err, text);
    }
    if (count < 0 || !zt_mul_size((size_t)count, size, &bytes) ||
        !zt_mul_size(bytes, wide ? (size_t)c->size : 1, &full) || full > (size_t)1 << 48) {
        snprintf(text, sizeof text, "a count of %lld elements is out of range", (long long)count);
        return fail_call(c, kind, why, err, text);
    }
    if (!count) return 0;
    if (!send || !recv) return fail_call(c, kind, why, err, "a buffer is NULL");
    if ((uintptr_t)send % size || (uintptr_t)recv % size)
        return fail_call(c, kind, why, err, "a buffer is not aligned to its element type");
    if (wide) {
        const char *big = kind == ZT_COLL_ALL_GATHER ? recv : send;
        const char *part = kind == ZT_COLL_ALL_GATHER ? send : recv;
        if (part != big + (size_t)c->rank * bytes && overlap(big, part, full, bytes))
            return fail_call(c, kind, why, err,
                             "the buffers overlap, and the small one is not this rank's slice of "
                             "the large one");
    }
    return 0;
}

static void fill_record(struct zt_coll_record *r, const struct zt_comm *c, enum zt_coll kind,
                        enum zt_dtype t, int64_t count, const struct zt_coll_why *why) {
    bool wide = kind == ZT_COLL_ALL_GATHER || kind == ZT_COLL_REDUCE_SCATTER;
    memset(r, 0, sizeof *r);
    memcpy(r->group, c->name, sizeof r->group);
    r->kind = kind;
    r->dtype = t;
    r->count = count * (wide ? c->size : 1);
    r->bytes = r->count * (int64_t)zt_dtype_size(t);
    r->step = -1;
    if (why) {
        if (why->unit) strncpy(r->unit, why->unit, sizeof r->unit - 1);
        if (why->reason) strncpy(r->reason, why->reason, sizeof r->reason - 1);
        r->step = why->step;
        r->control = why->control;
    }
}

static int enqueue(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                   const void *send, void *recv, int64_t count, int root, struct zt_stream *s,
                   const struct zt_coll_why *why, struct zt_error *err) {
    struct zt_error local = {0};
    if (!err) err = &local;
    int rc = check_call(c, kind, op, t, send, recv, count, why, err);
    if (rc) return rc;
    if (atomic_load(&c->shared->broken)) return report_broken(c, err);
    struct zt_comm_op *o = op_new(c->shared);
    if (!o) return zt_fail(err, ZT_ENOMEM, "host memory for a collective");
    o->c = c;
    o->kind = kind;
    o->op = op;
    o->dtype = t;
    o->send = send;
    o->recv = recv;
    o->count = count;
    o->root = root;
    fill_record(&o->record, c, kind, t, count, why);
    o->record.seq = c->last_seq + 1;
    o->record.queued_ns = zt_device_ops(c->device)->now_ns(c->device);
    zt_log_append(c->shared->ring, &o->record);
    draw_cost(o);
    if (!s) s = zt_device_compute(c->device);
    c->last_seq++;
    rc = zt_device_ops(c->device)->submit(s, run_op, o, err);
    /* The others wait for a collective that will not come from this rank: tell them. A poisoned
     * compute stream skips the work just like a thread that is out of memory. */
    if (rc && !atomic_load(&c->shared->broken)) {
        mark_broken(c, rc, err->msg);
        c->impl->abort(c);
    }
    return rc;
}

int zt_broadcast(struct zt_comm *c, void *buf, int64_t count, enum zt_dtype t, int global_root,
                 int group_root, struct zt_stream *s, const struct zt_coll_why *why,
                 struct zt_error *err) {
    char text[160];
    int root = -1;
    if ((global_root == ZT_ROOT_NONE) == (group_root == ZT_ROOT_NONE)) {
        snprintf(text, sizeof text, "%s root was given; give the global rank or the group rank%s",
                 group_root == ZT_ROOT_NONE ? "no" : "a global and a group",
                 group_root == ZT_ROOT_NONE ? "" : ", not both");
        return fail_call(c, ZT_COLL_BROADCAST, why, err, text);
    }
    for (int i = 0; i < c->size; i++)
        if (group_root == i || (group_root == ZT_ROOT_NONE && c->ranks[i] == global_root)) root = i;
    if (root < 0) {
        snprintf(text, sizeof text, "root: %s rank %d is not in this group of %d",
                 group_root == ZT_ROOT_NONE ? "global" : "group",
                 group_root == ZT_ROOT_NONE ? global_root : group_root, c->size);
        return fail_call(c, ZT_COLL_BROADCAST, why, err, text);
    }
    return enqueue(c, ZT_COLL_BROADCAST, ZT_SUM, t, buf, buf, count, root, s, why, err);
}

int zt_all_reduce(struct zt_comm *c, void *buf, int64_t count, enum zt_dtype t, enum zt_redop op,
                  struct zt_stream *s, const struct zt_coll_why *why, struct zt_error *err) {
    return enqueue(c, ZT_COLL_ALL_REDUCE, op, t, buf, buf, count, ZT_ROOT_NONE, s, why, err);
}

int zt_all_gather(struct zt_comm *c, const void *send, void *recv, int64_t count, enum zt_dtype t,
                  struct zt_stream *s, const struct zt_coll_why *why, struct zt_error *err) {
    return enqueue(c, ZT_COLL_ALL_GATHER, ZT_SUM, t, send, recv, count, ZT_ROOT_NONE, s, why, err);
}

int zt_reduce_scatter(struct zt_comm *c, const void *send, void *recv, int64_t count,
                      enum zt_dtype t, enum zt_redop op, struct zt_stream *s,
                      const struct zt_coll_why *why, struct zt_error *err) {
    return enqueue(c, ZT_COLL_REDUCE_SCATTER, op, t, send, recv, count, ZT_ROOT_NONE, s, why, err);
}

int zt_barrier(struct zt_comm *c, struct zt_stream *s, const struct zt_coll_why *why,
               struct zt_error *err) {
    return enqueue(c, ZT_COLL_BARRIER, ZT_SUM, ZT_U8, NULL, NULL, 0, ZT_ROOT_NONE, s, why, err);
}

/* ---- groups ---- */

static int check_split(const struct zt_comm *parent, const char *name, const int *ranks, int n,
                       struct zt_error *err) {
    bool mine = false;
    if (!name || !*name || strlen(name) >= sizeof parent->name)
        return zt_fail(err, ZT_EINVAL, "split of group \"%s\": the name must have 1 to %zu letters",
                       parent->name, sizeof parent->name - 1);
    if (n < 1 || n > parent->size)
        return zt_fail(err, ZT_EINVAL, "split of group \"%s\" into \"%s\": %d ranks of %d",
                       parent->name, name, n, parent->size);
    for (int i = 0, j = 0; i < n; i++) { /* both lists ascend */
        bool ascends = !i || ranks[i] > ranks[i - 1];
        while (ascends && j < parent->size && parent->ranks[j] < ranks[i]) j++;
        bool known = !ascends || (j < parent->size && parent->ranks[j] == ranks[i]);
        if (!known || !ascends)
            return zt_fail(err, ZT_EINVAL,
                           "split of group \"%s\" into \"%s\": rank %d at place %d is %s",
                           parent->name, name, ranks[i], i,
                           known ? "not in ascending order" : "not in the parent group");
        mine |= ranks[i] == parent->world_rank;
    }
    if (!mine)
        return zt_fail(err, ZT_EINVAL,
                       "split of group \"%s\" into \"%s\": rank %d called with a list that does "
                       "not contain it",
                       parent->name, name, parent->world_rank);
    return 0;
}

int zt_comm_split(struct zt_comm *parent, const char *name, const int *ranks, int n,
                  struct zt_comm **out, struct zt_error *err) {
    struct zt_error local = {0};
    if (!err) err = &local;
    *out = NULL;
    int rc = check_split(parent, name, ranks, n, err);
    if (rc) return rc;
    struct zt_comm *c = zt_comm_new(parent->shared, parent->device, name, ranks, n,
                                    parent->world_rank, parent->world_size, err);
    if (!c) return ZT_ENOMEM;
    c->impl = parent->impl;
    atomic_store(&c->timeout_ns, atomic_load(&parent->timeout_ns));
    int64_t seq = ++parent->last_seq;
    rc = wait_turn(parent, seq, err);
    if (!rc && atomic_load(&parent->shared->broken)) rc = report_broken(parent, err);
    if (!rc) rc = parent->impl->split(parent, c, err);
    if (rc) {
        mark_broken(parent, rc, err->msg);
        parent->impl->abort(parent);
    }
    end_turn(parent, seq);
    if (rc) {
        zt_comm_free(c);
        return rc;
    }
    enlist(c);
    *out = c;
    return 0;
}

/* ---- the log ---- */

int64_t zt_comm_log(struct zt_comm *world, int64_t after, struct zt_coll_record *out, int64_t max) {
    return zt_comm_log_read(world->shared->ring, SIZE_MAX, after, out, max);
}

int64_t zt_comm_log_newest(const struct zt_comm *world) {
    return zt_log_newest(world->shared->ring);
}

void zt_comm_watch(struct zt_comm *world, _Atomic int32_t *held_by) {
    world->shared->held_by = held_by;
}

void zt_comm_inject(struct zt_comm *world, const struct zt_comm_inject *o) {
    world->shared->inject = o ? *o : (struct zt_comm_inject){0};
}

int zt_comm_log_place(struct zt_comm *world, void *memory, size_t bytes) {
    struct zt_comm_shared *s = world->shared;
    if (!memory || (uintptr_t)memory % sizeof(int64_t) || bytes < zt_comm_log_bytes(1) ||
        zt_log_newest(s->ring))
        return ZT_EINVAL;
    zt_log_format(memory, bytes);
    if (s->ring_is_ours) free(s->ring);
    s->ring = memory;
    s->ring_is_ours = false;
    return 0;
}
