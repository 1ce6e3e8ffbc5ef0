/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/shm.c: collectives between the processes of one host.
 *
 * Buffers in device memory are read and written where they lie, in the peers' mappings of each
 * other's memory: all-reduce = every rank reduces its own share from all and stores it to all;
 * reduce-scatter = reduces its slice from all; all-gather and broadcast = copies from the owner.
 * Buffers elsewhere, on any rank of the group, go through staging areas in pieces; small ones
 * always do, in one piece. In every path a sum runs over the group's ranks 0..n-1 for each element.
 *
 * course of a collective:
 *   own signature (and a small payload) -> barrier -> compare all signatures -> move data
 *     -> barrier, when a peer's buffer was used in place
 * Staging halves and signature slots alternate: half h is written again only after a later barrier,
 * and every rank that reached that barrier had finished reading h.
 *
 * A wait spins a little (never when there are more processes than cores), then sleeps on a futex in
 * slices of 50 ms. Between slices it looks at the failure record, the peers' life pipes and the
 * deadline. The first rank that sees a failure records it for all.
 *
 * Thread rule: collectives run on stream threads, one at a time per communicator (the front keeps
 * the turn); split and destroy on the trainer thread. */
#include "engine/comm/shm.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "core/units.h"
#include "engine/comm/reduce.h"

#define SLICE_NS 50000000
#define GRACE_NS INT64_C(2000000000)
#define LOOK ((size_t)1 << 20) /* bytes between looks at the failure record */

/* ---- layout ---- */

size_t shm_arena_offset(int world) {
    return zt_round_up(sizeof(struct shm_control) + (size_t)world * sizeof(struct shm_rank), 4096);
}
size_t shm_group_bytes(int n) {
    return zt_round_up(sizeof(struct shm_group) + (size_t)n * sizeof(struct shm_member), 64);
}
size_t shm_stage_offset(int world) {
    return zt_round_up(shm_arena_offset(world) + SHM_SPLITS * (size_t)world * shm_group_bytes(1),
                       4096);
}
size_t shm_control_bytes(int world) {
    return shm_stage_offset(world) + (size_t)world * SHM_SPLITS * SHM_STAGE;
}

/* ---- failure ---- */

/* Enters a failure for all ranks unless there is one. */
static void record_failure(struct shm_world *w, int code, int rank, const char *text) {
    uint32_t none = 0;
    struct shm_control *k = w->control;
    if (!atomic_compare_exchange_strong(&k->failed, &none, 1)) return;
    k->code = code;
    k->rank = rank;
    snprintf(k->text, sizeof k->text, "%s", text);
    atomic_store(&k->failed, 2);
}

/* This rank found out by itself. */
static int fail_first(struct zt_comm *c, int code, int rank, struct zt_error *err, const char *fmt,
                      ...) __attribute__((format(printf, 5, 6)));
static int fail_first(struct zt_comm *c, int code, int rank, struct zt_error *err, const char *fmt,
                      ...) {
    struct shm_comm *m = c->state;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    record_failure(m->w, code, rank, text);
    atomic_store(&c->shared->failed_rank, rank);
    return zt_fail(err, code, "%s", text);
}

/* Somebody else did; the record says what. */
static int fail_recorded(struct zt_comm *c, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct shm_control *k = m->w->control;
    for (int i = 0; i < 100 && atomic_load(&k->failed) != 2; i++) {
        struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
    if (atomic_load(&k->failed) != 2)
        return zt_fail(err, ZT_ECOMM, "another rank failed and died while it wrote down why");
    atomic_store(&c->shared->failed_rank, k->rank);
    return zt_fail(err, k->code, "%s", k->text);
}

static bool world_failed(const struct shm_world *w) {
    return atomic_load(&w->control->failed) != 0;
}

/* "all_reduce #17 of group "dp" (unit h.3)" */
static const char *describe(const struct zt_comm *c, char *buf, size_t n) {
    const struct shm_comm *m = c->state;
    const struct zt_coll_record *r = m->record;
    if (!r)
        snprintf(buf, n, "the forming of group \"%s\"", c->name);
    else
        snprintf(buf, n, "%s #%lld of group \"%s\"%s%s%s", zt_coll_name(r->kind), (long long)r->seq,
                 c->name, r->unit[0] ? " (unit " : "", r->unit, r->unit[0] ? ")" : "");
    return buf;
}

/* ---- barrier ---- */

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* A rank whose life pipe hung up without it having left; -1 = all are there. */
static int dead_rank(const struct shm_world *w) {
    struct pollfd fds[ZT_COMM_MAX_RANKS];
    int who[ZT_COMM_MAX_RANKS], n = 0;
    for (int r = 0; r < w->world; r++)
        if (w->life[r] >= 0 && atomic_load(&w->control->ranks[r].state) != SHM_LEFT) {
            fds[n] = (struct pollfd){.fd = w->life[r], .events = POLLIN};
            who[n++] = r;
        }
    if (poll(fds, (nfds_t)n, 0) <= 0) return -1;
    for (int i = 0; i < n; i++)
        if (fds[i].revents & (POLLHUP | POLLERR | POLLNVAL) &&
            atomic_load(&w->control->ranks[who[i]].state) != SHM_LEFT)
            return who[i];
    return -1;
}

/* Global ranks of the group that have not reached barrier `mine`, as "2, 5"; returns the first and
 * in *left the first of them that has left for good. */
static int missing(const struct zt_comm *c, uint64_t mine, char *list, size_t room, int *left) {
    const struct shm_comm *m = c->state;
    int first = -1;
    size_t used = 0;
    *left = -1;
    list[0] = 0;
    for (int i = 0; i < c->size; i++) {
        if (atomic_load(&m->group->member[i].arrived) >= mine) continue;
        int r = c->ranks[i];
        if (first < 0) first = r;
        if (*left < 0 && atomic_load(&m->w->control->ranks[r].state) == SHM_LEFT) *left = r;
        int n = snprintf(list + used, room - used, "%s%d", used ? ", " : "", r);
        if (n > 0 && (size_t)n < room - used) used += (size_t)n;
    }
    return first;
}

/* Between two slices of sleep. */
static int look_around(struct zt_comm *c, uint64_t mine, struct zt_error *err) {
    struct shm_comm *m = c->state;
    char what[160], list[512];
    int left = -1;
    if (world_failed(m->w)) return fail_recorded(c, err);
    int dead = dead_rank(m->w);
    if (dead >= 0)
        return fail_first(
            c, ZT_EPEER, dead, err,
            "rank %d (pid %d) died; rank %d noticed in %s; the cause is in the end of "
            "rank %d's log",
            dead, m->w->control->ranks[dead].pid, c->world_rank, describe(c, what, sizeof what),
            dead);
    int first = missing(c, mine, list, sizeof list, &left);
    if (left >= 0)
        return fail_first(c, ZT_EPEER, left, err,
                          "rank %d left the world while rank %d waits for it in %s", left,
                          c->world_rank, describe(c, what, sizeof what));
    if (c->shared->held_by) atomic_store(c->shared->held_by, first + 1);
    int64_t now = zt_clock_ns();
    if (first < 0 && now >= m->deadline + GRACE_NS)
        return fail_first(
            c, ZT_ETIMEOUT, -1, err,
            "rank %d waited %.1f s in %s; all ranks have arrived, but the last one was "
            "stopped before it could wake the others",
            c->world_rank, (double)(now - m->began) / 1e9, describe(c, what, sizeof what));
    if (first >= 0 && now >= m->deadline)
        return fail_first(
            c, ZT_ETIMEOUT, first, err,
            "rank %d waited %.1f s in %s for rank%s %s, alive but not arrived; look at "
            "what they do, or raise comm.train_timeout_seconds",
            c->world_rank, (double)(now - m->began) / 1e9, describe(c, what, sizeof what),
            strchr(list, ',') ? "s" : "", list);
    return 0;
}

int shm_barrier(struct zt_comm *c, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct shm_group *g = m->group;
    uint32_t phase = atomic_load(&g->phase);
    uint64_t mine = ++m->barriers;
    atomic_store(&g->member[c->rank].arrived, mine);
    if (atomic_fetch_add(&g->count, 1) + 1 == (uint32_t)g->n) {
        atomic_store(&g->count, 0);
        atomic_store(&g->phase, phase + 1);
        if (atomic_load(&g->sleepers)) futex(&g->phase, FUTEX_WAKE, INT_MAX, NULL);
        return 0;
    }
    for (int i = 0; i < m->w->spins; i++) {
        if (atomic_load_explicit(&g->phase, memory_order_acquire) != phase) return 0;
        zt_cpu_relax();
    }
    while (atomic_load(&g->phase) == phase) {
        int64_t left = m->deadline - zt_clock_ns();
        struct timespec slice = {0, left <= 0 ? 1000000 : left < SLICE_NS ? left : SLICE_NS};
        atomic_fetch_add(&g->sleepers, 1);
        futex(&g->phase, FUTEX_WAIT, phase, &slice);
        atomic_fetch_sub(&g->sleepers, 1);
        if (atomic_load(&g->phase) != phase) break;
        int rc = look_around(c, mine, err);
        if (rc) return rc;
    }
    if (c->shared->held_by) atomic_store(c->shared->held_by, 0);
    return 0;
}

/* ---- signatures ---- */

static const char *describe_call(const struct shm_signature *s, char *buf, size_t n) {
    static const char *const redops[] = {"sum", "max", "min", "avg"};
    bool reduces = s->kind == ZT_COLL_ALL_REDUCE || s->kind == ZT_COLL_REDUCE_SCATTER;
    if (s->kind == ZT_COLL_BARRIER || s->kind == (int32_t)ZT_COLL_SPLIT)
        snprintf(buf, n, "%s", zt_coll_name((enum zt_coll)s->kind));
    else if (s->kind == ZT_COLL_BROADCAST)
        snprintf(buf, n, "broadcast(%s, count %lld, group root %d)",
                 zt_dtype_name((enum zt_dtype)s->dtype), (long long)s->count, s->root);
    else
        snprintf(buf, n, "%s(%s%s%s, count %lld)", zt_coll_name((enum zt_coll)s->kind),
                 reduces ? redops[s->op & 3] : "", reduces ? ", " : "",
                 zt_dtype_name((enum zt_dtype)s->dtype), (long long)s->count);
    return buf;
}

static bool same_call(const struct shm_signature *a, const struct shm_signature *b) {
    return a->seq == b->seq && a->count == b->count && a->kind == b->kind && a->op == b->op &&
           a->dtype == b->dtype && a->root == b->root;
}

/* Meets the others and compares: all see the same signatures, so all come to the same verdict. */
static int meet(struct zt_comm *c, const struct shm_signature *own, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct shm_group *g = m->group;
    int half = (int)(own->seq & 1);
    g->member[c->rank].signature[half] = *own;
    int rc = shm_barrier(c, err);
    if (rc) return rc;
    const struct shm_signature *zero = &g->member[0].signature[half];
    for (int i = 1; i < c->size; i++) {
        const struct shm_signature *s = &g->member[i].signature[half];
        char a[128], b[128];
        if (same_call(zero, s)) continue;
        return fail_first(
            c, ZT_EMISMATCH, c->ranks[i], err,
            "the ranks called different collectives: call #%lld of group \"%s\" is %s "
            "on rank %d, but call #%lld is %s on rank %d; every rank must make the same "
            "calls in the same order",
            (long long)zero->seq, c->name, describe_call(zero, a, sizeof a), c->ranks[0],
            (long long)s->seq, describe_call(s, b, sizeof b), c->ranks[i]);
    }
    return 0;
}

/* ---- data in place ---- */

static unsigned char *peer_memory(struct zt_comm *c, int member, uint64_t offset, size_t bytes) {
    struct shm_comm *m = c->state;
    int r = c->ranks[member];
    ZT_ASSERT(offset <= m->w->memory_bytes[r] && bytes <= m->w->memory_bytes[r] - offset);
    return m->w->memory[r] + offset;
}

static int copy_looking(struct zt_comm *c, void *dst, const void *src, size_t bytes,
                        struct zt_error *err) {
    struct shm_comm *m = c->state;
    const size_t piece = 16 * LOOK; /* above the size that bypasses the caches */
    for (size_t at = 0; at < bytes; at += piece) {
        if (world_failed(m->w)) return fail_recorded(c, err);
        zt_copy((char *)dst + at, (const char *)src + at, bytes - at < piece ? bytes - at : piece);
    }
    return 0;
}

struct call {
    enum zt_coll kind;
    enum zt_redop op;
    enum zt_dtype dtype;
    const void *send;
    void *recv;
    int64_t count;
    int root;
    size_t size; /* of an element */
};

/* Reduces elements [lo, hi), given as addresses of element lo, looking at the failure record. */
static int reduce_looking(struct zt_comm *c, const struct call *k, const void **src, int n_dst,
                          void **dst, size_t count, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const size_t piece = LOOK / k->size;
    for (size_t at = 0; at < count; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        if (world_failed(m->w)) return fail_recorded(c, err);
        zt_reduce(k->dtype, k->op, c->size, src, n_dst, dst, n);
        for (int j = 0; j < c->size; j++) src[j] = (const char *)src[j] + n * k->size;
        for (int j = 0; j < n_dst; j++) dst[j] = (char *)dst[j] + n * k->size;
    }
    return 0;
}

static int in_place(struct zt_comm *c, const struct call *k, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const struct shm_member *member = m->group->member;
    const int half = (int)(m->record->seq & 1);
    const void *src[ZT_COMM_MAX_RANKS];
    void *dst[ZT_COMM_MAX_RANKS];
    size_t bytes = (size_t)k->count * k->size;
    int64_t lo = 0, hi = k->count;
    int rc = 0;
    switch (k->kind) {
    case ZT_COLL_ALL_REDUCE:
        zt_share(k->count, c->size, c->rank, &lo, &hi);
        for (int j = 0; j < c->size; j++) {
            dst[j] =
                peer_memory(c, j, member[j].signature[half].recv, bytes) + (size_t)lo * k->size;
            src[j] = dst[j];
        }
        rc = reduce_looking(c, k, src, c->size, dst, (size_t)(hi - lo), err);
        break;
    case ZT_COLL_REDUCE_SCATTER:
        for (int j = 0; j < c->size; j++)
            src[j] = peer_memory(c, j, member[j].signature[half].send, bytes * (size_t)c->size) +
                     (size_t)c->rank * bytes;
        dst[0] = k->recv;
        rc = reduce_looking(c, k, src, 1, dst, (size_t)k->count, err);
        break;
    case ZT_COLL_ALL_GATHER:
        for (int i = 0; i < c->size && !rc; i++) {
            int j = (c->rank + i) % c->size; /* not all from the same rank at once */
            char *to = (char *)k->recv + (size_t)j * bytes;
            const void *from =
                i ? peer_memory(c, j, member[j].signature[half].send, bytes) : k->send;
            if (to != from) rc = copy_looking(c, to, from, bytes, err);
        }
        break;
    case ZT_COLL_BROADCAST:
        if (c->rank != k->root)
            rc = copy_looking(c, k->recv,
                              peer_memory(c, k->root, member[k->root].signature[half].recv, bytes),
                              bytes, err);
        break;
    default:
        break;
    }
    return rc ? rc : shm_barrier(c, err); /* nobody's buffer is in use any more */
}

/* ---- data through staging areas ---- */

/* Every rank's payload lies in its half already; each takes what it needs. */
static void small(struct zt_comm *c, const struct call *k, size_t half) {
    struct shm_comm *m = c->state;
    const void *src[ZT_COMM_MAX_RANKS];
    size_t bytes = (size_t)k->count * k->size;
    size_t skip = k->kind == ZT_COLL_REDUCE_SCATTER ? (size_t)c->rank * bytes : 0;
    for (int j = 0; j < c->size; j++) src[j] = m->stage[j] + half + skip;
    if (k->kind == ZT_COLL_ALL_REDUCE || k->kind == ZT_COLL_REDUCE_SCATTER)
        zt_reduce(k->dtype, k->op, c->size, src, 1, &k->recv, (size_t)k->count);
    else if (k->kind == ZT_COLL_ALL_GATHER)
        for (int j = 0; j < c->size; j++)
            memcpy((char *)k->recv + (size_t)j * bytes, src[j], bytes);
    else if (c->rank != k->root)
        memcpy(k->recv, src[k->root], bytes);
}

/* The second half of a staged all-reduce piece: shares are reduced where they lie, then read. */
static int staged_all_reduce(struct zt_comm *c, const struct call *k, size_t half, int64_t at,
                             int64_t n, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const void *src[ZT_COMM_MAX_RANKS];
    int64_t lo, hi;
    zt_share(n, c->size, c->rank, &lo, &hi);
    for (int j = 0; j < c->size; j++) src[j] = m->stage[j] + half + (size_t)lo * k->size;
    void *dst = m->stage[c->rank] + half + (size_t)lo * k->size;
    if (hi > lo) zt_reduce(k->dtype, k->op, c->size, src, 1, &dst, (size_t)(hi - lo));
    int rc = shm_barrier(c, err);
    if (rc) return rc;
    for (int j = 0; j < c->size; j++) {
        zt_share(n, c->size, j, &lo, &hi);
        memcpy((char *)k->recv + (size_t)(at + lo) * k->size,
               m->stage[j] + half + (size_t)lo * k->size, (size_t)(hi - lo) * k->size);
    }
    return 0;
}

static int staged(struct zt_comm *c, const struct call *k, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const void *src[ZT_COMM_MAX_RANKS];
    size_t whole = (size_t)k->count * k->size;
    bool scatter = k->kind == ZT_COLL_REDUCE_SCATTER;
    int64_t room = (int64_t)(SHM_HALF / k->size / (scatter ? (size_t)c->size : 1));
    for (int64_t at = 0; at < k->count; at += room) {
        int64_t n = k->count - at < room ? k->count - at : room;
        size_t bytes = (size_t)n * k->size, from = (size_t)at * k->size;
        size_t half = (m->stage_turn++ & 1) * SHM_HALF;
        unsigned char *own = m->stage[c->rank] + half;
        if (scatter)
            for (int j = 0; j < c->size; j++)
                memcpy(own + (size_t)j * bytes, (const char *)k->send + (size_t)j * whole + from,
                       bytes);
        else if (k->kind != ZT_COLL_BROADCAST || c->rank == k->root)
            memcpy(own, (const char *)k->send + from, bytes);
        int rc = shm_barrier(c, err);
        if (rc) return rc;
        if (scatter) {
            void *dst = (char *)k->recv + from;
            for (int j = 0; j < c->size; j++) src[j] = m->stage[j] + half + (size_t)c->rank * bytes;
            zt_reduce(k->dtype, k->op, c->size, src, 1, &dst, (size_t)n);
        } else if (k->kind == ZT_COLL_ALL_REDUCE) {
            rc = staged_all_reduce(c, k, half, at, n, err);
            if (rc) return rc;
        } else if (k->kind == ZT_COLL_ALL_GATHER) {
            for (int j = 0; j < c->size; j++)
                memcpy((char *)k->recv + (size_t)j * whole + from, m->stage[j] + half, bytes);
        } else if (c->rank != k->root) {
            memcpy((char *)k->recv + from, m->stage[k->root] + half, bytes);
        }
    }
    return 0;
}

/* ---- a collective ---- */

static uint64_t offset_of(const struct shm_world *w, const void *p, size_t bytes) {
    const unsigned char *base = w->memory[w->rank], *at = p;
    size_t room = w->memory_bytes[w->rank];
    if (at < base || at >= base + room || bytes > room - (size_t)(at - base)) return SHM_STAGED;
    return (uint64_t)(at - base);
}

/* Bytes read from or written to peers (D13 of the decisions), the same for every path. */
static int64_t sent_bytes(const struct zt_comm *c, const struct call *k) {
    int64_t lo, hi, others = c->size - 1, bytes = k->count * (int64_t)k->size;
    switch (k->kind) {
    case ZT_COLL_ALL_REDUCE:
        zt_share(k->count, c->size, c->rank, &lo, &hi);
        return 2 * others * (hi - lo) * (int64_t)k->size;
    case ZT_COLL_REDUCE_SCATTER:
    case ZT_COLL_ALL_GATHER:
        return others * bytes;
    case ZT_COLL_BROADCAST:
        return c->rank == k->root ? 0 : bytes;
    default:
        return 0;
    }
}

void shm_begin(struct zt_comm *c, const struct zt_coll_record *record, int64_t timeout_ns) {
    struct shm_comm *m = c->state;
    m->record = record;
    m->began = zt_clock_ns();
    m->deadline = m->began + timeout_ns;
}

static bool all_in_place(const struct zt_comm *c, int half) {
    const struct shm_comm *m = c->state;
    for (int i = 0; i < c->size; i++) {
        const struct shm_signature *s = &m->group->member[i].signature[half];
        if (s->send == SHM_STAGED || s->recv == SHM_STAGED) return false;
    }
    return true;
}

static int shm_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                          const void *send, void *recv, int64_t count, int group_root,
                          struct zt_coll_record *record, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct call k = {kind, op, t, send, recv, count, group_root, zt_dtype_size(t)};
    size_t bytes = (size_t)count * k.size;
    size_t send_bytes = bytes * (kind == ZT_COLL_REDUCE_SCATTER ? (size_t)c->size : 1);
    size_t recv_bytes = bytes * (kind == ZT_COLL_ALL_GATHER ? (size_t)c->size : 1);
    shm_begin(c, record, atomic_load(&c->timeout_ns));
    if (world_failed(m->w)) return fail_recorded(c, err);
    if (c->size == 1)
        return zt_self_collective(c, kind, op, t, send, recv, count, group_root, record, err);
    struct shm_signature own = {record->seq,
                                count,
                                (int32_t)kind,
                                (int32_t)op,
                                (int32_t)t,
                                group_root,
                                offset_of(m->w, send, send_bytes),
                                offset_of(m->w, recv, recv_bytes)};
    bool is_small = count > 0 && send_bytes <= SHM_SMALL;
    size_t half = (m->stage_turn & 1) * SHM_HALF;
    if (is_small && (kind != ZT_COLL_BROADCAST || c->rank == group_root))
        memcpy(m->stage[c->rank] + half, send, send_bytes);
    int rc = meet(c, &own, err);
    if (rc) return rc;
    record->sent_bytes = sent_bytes(c, &k);
    if (!count) return 0;
    if (is_small) {
        m->stage_turn++;
        small(c, &k, half);
        return 0;
    }
    return all_in_place(c, (int)(own.seq & 1)) ? in_place(c, &k, err) : staged(c, &k, err);
}

/* ---- groups ---- */

int shm_enter_group(struct zt_comm *c, struct shm_world *w, uint64_t group, struct zt_error *err) {
    struct shm_comm *m = calloc(1, sizeof *m);
    unsigned char **stage = calloc((size_t)c->size, sizeof *stage);
    if (!m || !stage) {
        free(m);
        free(stage);
        return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    }
    m->w = w;
    m->group = (struct shm_group *)(void *)((unsigned char *)w->control + group);
    m->stage = stage;
    c->state = m;
    c->impl = &zt_comm_shm;
    w->refs++;
    if (w->n_groups == SHM_SPLITS)
        return zt_fail(err, ZT_EBUSY, "rank %d is in %d groups already, the most there can be",
                       c->world_rank, SHM_SPLITS);
    size_t offset = shm_stage_offset(w->world) +
                    ((size_t)w->rank * SHM_SPLITS + (size_t)w->n_groups++) * SHM_STAGE;
    m->group->member[c->rank].stage = offset;
    if (c->size == 1) return 0;
    /* Pages now: touching one that the machine does not have would be SIGBUS. */
    while (fallocate(w->control_fd, 0, (off_t)offset, (off_t)SHM_STAGE) != 0)
        if (errno != EINTR)
            return zt_fail(err, ZT_ENOMEM,
                           "no %zu bytes of shared memory for the staging area of group \"%s\": %s",
                           SHM_STAGE, c->name, strerror(errno));
    return 0;
}

void shm_see_stages(struct zt_comm *c) {
    struct shm_comm *m = c->state;
    for (int i = 0; i < c->size; i++)
        m->stage[i] = (unsigned char *)m->w->control + m->group->member[i].stage;
}

/* Space for a group of n in the arena; 0 = used up. */
static uint64_t arena_take(struct shm_world *w, int n) {
    uint64_t bytes = shm_group_bytes(n), at = atomic_fetch_add(&w->control->next, bytes);
    if (at + bytes > w->control->arena_end) return 0;
    struct shm_group *g = (struct shm_group *)(void *)((unsigned char *)w->control + at);
    g->n = n;
    return at;
}

/* Every member of a list must have given that same list: the lists then partition the parent. */
static int check_lists(struct zt_comm *parent, struct zt_error *err) {
    struct shm_comm *m = parent->state;
    const struct shm_rank *ranks = m->w->control->ranks;
    for (int i = 0; i < parent->size; i++) {
        const struct shm_rank *a = &ranks[parent->ranks[i]];
        for (int j = 0; j < a->n; j++) {
            const struct shm_rank *b = &ranks[a->list[j]];
            if (a->n == b->n && !memcmp(a->list, b->list, (size_t)a->n * sizeof *a->list) &&
                !strncmp(a->name, b->name, sizeof a->name))
                continue;
            return fail_first(
                parent, ZT_EMISMATCH, a->list[j], err,
                "split of group \"%s\": rank %d made group \"%.16s\" of %d ranks with "
                "rank %d in it, but rank %d gave another list or name (\"%.16s\", %d "
                "ranks)",
                parent->name, parent->ranks[i], a->name, a->n, a->list[j], a->list[j], b->name,
                b->n);
        }
    }
    return 0;
}

static int check_troubles(struct zt_comm *parent, struct zt_error *err) {
    struct shm_comm *m = parent->state;
    for (int i = 0; i < parent->size; i++)
        if (m->group->member[i].trouble)
            return fail_first(
                parent, ZT_ENOMEM, parent->ranks[i], err,
                "split of group \"%s\": rank %d has no memory or no place for another "
                "group",
                parent->name, parent->ranks[i]);
    return 0;
}

static int shm_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err) {
    struct shm_comm *m = parent->state;
    struct shm_world *w = m->w;
    struct shm_rank *own = &w->control->ranks[w->rank];
    struct zt_coll_record record = {.seq = parent->last_seq, .kind = ZT_COLL_SPLIT};
    struct shm_signature call = {record.seq, 0, (int32_t)ZT_COLL_SPLIT, 0, 0, 0, 0, 0};
    struct zt_error trouble = {0};
    shm_begin(parent, &record, atomic_load(&parent->timeout_ns));
    if (world_failed(w)) return fail_recorded(parent, err);
    memcpy(own->name, child->name, sizeof own->name);
    own->n = child->size;
    for (int i = 0; i < child->size; i++) own->list[i] = (uint16_t)child->ranks[i];
    m->group->member[parent->rank].trouble = 0;
    int rc = meet(parent, &call, err);
    if (!rc) rc = check_lists(parent, err);
    if (!rc && child->rank == 0) own->group = arena_take(w, child->size);
    if (!rc) rc = shm_barrier(parent, err);
    if (rc) goto out;
    uint64_t group = w->control->ranks[child->ranks[0]].group;
    if (!group || shm_enter_group(child, w, group, &trouble))
        m->group->member[parent->rank].trouble = 1;
    rc = shm_barrier(parent, err);
    if (!rc) rc = check_troubles(parent, err);
    if (!rc) shm_see_stages(child);
out:
    m->record = NULL;
    if (rc && child->state) shm_comm_free(child);
    return rc;
}

/* ---- the end ---- */

void shm_world_free(struct shm_world *w) {
    if (!w) return;
    for (int r = 0; r < w->world; r++) {
        if (w->memory && w->memory[r] && r != w->rank) munmap(w->memory[r], w->memory_bytes[r]);
        if (w->life && w->life[r] >= 0) close(w->life[r]);
    }
    if (w->control) {
        atomic_store(&w->control->ranks[w->rank].state, SHM_LEFT);
        munmap(w->control, w->control_bytes);
    }
    if (w->life_write >= 0) close(w->life_write); /* after LEFT: this is no death */
    if (w->control_fd >= 0) close(w->control_fd);
    free(w->memory);
    free(w->memory_bytes);
    free(w->life);
    free(w);
}

void shm_comm_free(struct zt_comm *c) {
    struct shm_comm *m = c->state;
    if (--m->w->refs == 0) shm_world_free(m->w);
    free(m->stage);
    free(m);
    c->state = NULL;
}

/* Why this rank gives up, told to all; nothing when the failure came from the record itself. */
static void shm_abort(struct zt_comm *c) {
    struct shm_comm *m = c->state;
    char text[1024];
    pthread_mutex_lock(&c->shared->lock);
    snprintf(text, sizeof text, "rank %d gave up: %.900s", c->world_rank, c->shared->why.msg);
    pthread_mutex_unlock(&c->shared->lock);
    record_failure(m->w, ZT_ECOMM, c->world_rank, text);
    futex(&m->group->phase, FUTEX_WAKE, INT_MAX, NULL);
}

const struct zt_comm_impl zt_comm_shm = {.name = "shm",
                                         .collective = shm_collective,
                                         .split = shm_split,
                                         .destroy = shm_comm_free,
                                         .abort = shm_abort};
