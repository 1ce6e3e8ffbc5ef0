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
#include "engine/comm/tcp.h"
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
#include "core/sys.h"
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
void shm_record(struct shm_world *w, int code, int rank, const char *text) {
    uint32_t none = 0;
    struct shm_control *k = w->control;
    if (!atomic_compare_exchange_strong(&k->failed, &none, 1)) return;
    k->code = code;
    k->rank = rank;
    snprintf(k->text, sizeof k->text, "%s", text);
    atomic_store(&k->failed, 2);
}

/* This rank found out by itself. */
int shm_fail_first(struct zt_comm *c, int code, int rank, struct zt_error *err, const char *fmt,
                   ...) {
    struct shm_comm *m = c->state;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    shm_record(m->w, code, rank, text);
    atomic_store(&c->shared->failed_rank, rank);
    return zt_fail(err, code, "%s", text);
}

/* Somebody else did; the record says what. */
int shm_fail_recorded(struct zt_comm *c, struct zt_error *err) {
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

bool shm_failed(const struct shm_world *w) { return atomic_load(&w->control->failed) != 0; }

/* "all_reduce #17 of group "dp" (unit h.3)" */
const char *shm_describe(const struct zt_comm *c, char *buf, size_t n) {
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

int shm_late(const struct zt_comm *c, int *late) {
    const struct shm_comm *m = c->state;
    int n = 0;
    for (int i = 0; i < c->size; i++)
        if (atomic_load(&m->group->member[i].arrived) < m->barriers) late[n++] = c->ranks[i];
    return n;
}

static bool rank_left(const struct shm_world *w, int r) {
    return atomic_load(&w->control->ranks[r].state) == SHM_LEFT || (w->far && tcp_left(w->far, r));
}

/* 1 + the rank that r waits for, 0 = none. */
static int waits_for(const struct shm_world *w, int r) {
    uint32_t v = atomic_load(&w->control->ranks[r].waits_for);
    if (!v && w->far) v = tcp_waits_for(w->far, r);
    return v > (uint32_t)w->world ? 0 : (int)v;
}

/* A late rank that itself waits for another is not to blame: puts the ends of the chains in its
 * place. A chain that comes back to us or never ends tells nothing. */
static int find_culprits(const struct shm_world *w, int *late, int n) {
    bool blamed[ZT_COMM_MAX_RANKS] = {false};
    for (int i = 0; i < n; i++) {
        int r = late[i], next, hops = 0;
        while ((next = waits_for(w, r) - 1) >= 0 && hops++ < w->world && next != w->rank) r = next;
        blamed[next < 0 ? r : late[i]] = true;
    }
    n = 0;
    for (int r = 0; r < w->world; r++)
        if (blamed[r]) late[n++] = r;
    return n;
}

static const char *list_ranks(const int *ranks, int n, char *list, size_t room) {
    size_t used = 0;
    list[0] = 0;
    for (int i = 0; i < n; i++) {
        int k = snprintf(list + used, room - used, "%s%d", used ? ", " : "", ranks[i]);
        if (k > 0 && (size_t)k < room - used) used += (size_t)k;
    }
    return list;
}

/* Tells whoever wants to know for whom this rank has been waiting; -1 = for none any more. */
static void say_waiting(struct zt_comm *c, int rank) {
    struct shm_world *w = ((struct shm_comm *)c->state)->w;
    _Atomic uint32_t *said = &w->control->ranks[w->rank].waits_for;
    if (c->shared->held_by) atomic_store(c->shared->held_by, rank + 1);
    if (atomic_exchange(said, (uint32_t)(rank + 1)) != (uint32_t)(rank + 1) && w->far)
        tcp_say_waiting(w->far, rank);
}

void shm_wait_over(struct zt_comm *c) {
    struct shm_world *w = ((struct shm_comm *)c->state)->w;
    if (atomic_load(&w->control->ranks[w->rank].waits_for)) say_waiting(c, -1);
}

static int fail_late(struct zt_comm *c, int *late, int n, int64_t now, struct zt_error *err) {
    const struct shm_comm *m = c->state;
    char what[160], list[512];
    double waited = (double)(now - m->began) / 1e9;
    shm_describe(c, what, sizeof what);
    if (!n)
        return shm_fail_first(
            c, ZT_ETIMEOUT, -1, err,
            "rank %d waited %.1f s in %s; all ranks have arrived, but the last one was "
            "stopped before it could wake the others",
            c->world_rank, waited, what);
    n = find_culprits(m->w, late, n);
    return shm_fail_first(
        c, ZT_ETIMEOUT, late[0], err,
        "rank %d waited %.1f s in %s for rank%s %s, alive but not arrived; look at "
        "what they do, or raise comm.train_timeout_seconds",
        c->world_rank, waited, what, n > 1 ? "s" : "", list_ranks(late, n, list, sizeof list));
}

/* A rank may leave once it has done its part, and then its last message may still be on its way: what
 * counts is the barrier of this host, or the end of its connection. Asked after it has left, so that
 * what it did before is seen. */
static bool did_its_part(const struct zt_comm *c, int rank, int ended) {
    const struct shm_comm *m = c->state;
    for (int i = 0; i < c->size; i++)
        if (c->ranks[i] == rank) return atomic_load(&m->group->member[i].arrived) >= m->barriers;
    return rank != ended;
}

#ifdef ZT_FAILPOINTS
/* For tests: the look lasts until the rank waited for has left. */
static void wait_for_leaving(struct zt_comm *c, int rank) {
    const struct timespec nap = {0, 2000000};
    struct shm_world *w = ((struct shm_comm *)c->state)->w;
    struct zt_error ignored;
    for (int i = 0; i < 5000 && !rank_left(w, rank); i++) {
        nanosleep(&nap, NULL);
        if (w->far) tcp_look(w->far, c, &ignored);
    }
}
#endif

int shm_look(struct zt_comm *c, int *late, int n, int ended, struct zt_error *err) {
    struct shm_comm *m = c->state;
    char what[160];
    if (shm_failed(m->w)) return shm_fail_recorded(c, err);
    int dead = dead_rank(m->w);
    if (dead >= 0)
        return shm_fail_first(
            c, ZT_EPEER, dead, err,
            "rank %d (pid %d) died; rank %d noticed in %s; the cause is in the end of "
            "rank %d's log",
            dead, m->w->control->ranks[dead].pid, c->world_rank, shm_describe(c, what, sizeof what),
            dead);
    int rc = m->w->far ? tcp_look(m->w->far, c, err) : 0;
    if (rc) return rc;
    say_waiting(c, n ? late[0] : -1);
#ifdef ZT_FAILPOINTS
    if (n && m->record && ZT_FAILPOINT("comm.until_left")) wait_for_leaving(c, late[0]);
#endif
    for (int i = 0; i < n; i++)
        if (rank_left(m->w, late[i]) && !did_its_part(c, late[i], ended))
            return shm_fail_first(c, ZT_EPEER, late[i], err,
                                  "rank %d left the world while rank %d waits for it in %s",
                                  late[i], c->world_rank, shm_describe(c, what, sizeof what));
    int64_t now = zt_clock_ns();
    return now >= m->deadline + (n ? 0 : GRACE_NS) ? fail_late(c, late, n, now, err) : 0;
}

void shm_arrive(struct zt_comm *c) {
    struct shm_comm *m = c->state;
    struct shm_group *g = m->group;
    m->phase = atomic_load(&g->phase);
    atomic_store(&g->member[c->rank].arrived, ++m->barriers);
    if (atomic_fetch_add(&g->count, 1) + 1 != (uint32_t)g->n) return;
    atomic_store(&g->count, 0);
    atomic_store(&g->phase, m->phase + 1);
    if (atomic_load(&g->sleepers)) futex(&g->phase, FUTEX_WAKE, INT_MAX, NULL);
}

int shm_await(struct zt_comm *c, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct shm_group *g = m->group;
    const uint32_t phase = m->phase;
    for (int i = 0; i < m->w->spins; i++) {
        if (atomic_load_explicit(&g->phase, memory_order_acquire) != phase) return 0;
        zt_cpu_relax();
    }
    while (atomic_load(&g->phase) == phase) {
        int late[ZT_COMM_MAX_RANKS];
        int64_t left = m->deadline - zt_clock_ns();
        struct timespec slice = {0, left <= 0 ? 1000000 : left < SLICE_NS ? left : SLICE_NS};
        atomic_fetch_add(&g->sleepers, 1);
        futex(&g->phase, FUTEX_WAIT, phase, &slice);
        atomic_fetch_sub(&g->sleepers, 1);
        if (atomic_load(&g->phase) != phase) break;
        int rc = shm_look(c, late, shm_late(c, late), -1, err);
        if (rc) return rc;
    }
    shm_wait_over(c);
    return 0;
}

int shm_barrier(struct zt_comm *c, struct zt_error *err) {
    shm_arrive(c);
    return shm_await(c, err);
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

int shm_compare(struct zt_comm *c, const int *ranks, const struct shm_signature *const *signature,
                int n, struct zt_error *err) {
    const struct shm_signature *zero = signature[0];
    for (int i = 1; i < n; i++) {
        const struct shm_signature *s = signature[i];
        char a[128], b[128];
        if (same_call(zero, s)) continue;
        return shm_fail_first(
            c, ZT_EMISMATCH, ranks[i], err,
            "the ranks called different collectives: call #%lld of group \"%s\" is %s "
            "on rank %d, but call #%lld is %s on rank %d; every rank must make the same "
            "calls in the same order",
            (long long)zero->seq, c->name, describe_call(zero, a, sizeof a), ranks[0],
            (long long)s->seq, describe_call(s, b, sizeof b), ranks[i]);
    }
    return 0;
}

struct shm_signature *shm_signature(struct zt_comm *c, int member, int64_t seq) {
    struct shm_comm *m = c->state;
    return &m->group->member[member].signature[seq & 1];
}

/* Meets the others and compares: all see the same signatures, so all come to the same verdict. */
static int meet(struct zt_comm *c, const struct shm_signature *own, struct zt_error *err) {
    const struct shm_signature *all[ZT_COMM_MAX_RANKS];
    for (int i = 0; i < c->size; i++) all[i] = shm_signature(c, i, own->seq);
    *shm_signature(c, c->rank, own->seq) = *own;
    int rc = shm_barrier(c, err);
    return rc ? rc : shm_compare(c, c->ranks, all, c->size, err);
}

/* ---- data in place ---- */

unsigned char *shm_peer(struct zt_comm *c, int member, uint64_t offset, size_t bytes) {
    struct shm_comm *m = c->state;
    int r = c->ranks[member];
    ZT_ASSERT(offset <= m->w->memory_bytes[r] && bytes <= m->w->memory_bytes[r] - offset);
    return m->w->memory[r] + offset;
}

int shm_copy(struct zt_comm *c, void *dst, const void *src, size_t bytes, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const size_t piece = 16 * LOOK; /* above the size that bypasses the caches */
    for (size_t at = 0; at < bytes; at += piece) {
        if (shm_failed(m->w)) return shm_fail_recorded(c, err);
        zt_copy((char *)dst + at, (const char *)src + at, bytes - at < piece ? bytes - at : piece);
    }
    return 0;
}

/* Reduces elements [lo, hi), given as addresses of element lo, looking at the failure record. */
static int reduce_looking(struct zt_comm *c, const struct shm_call *k, const void **src, int n_dst,
                          void **dst, size_t count, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const size_t piece = LOOK / k->size;
    for (size_t at = 0; at < count; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        if (shm_failed(m->w)) return shm_fail_recorded(c, err);
        zt_reduce(k->dtype, k->op, c->size, src, n_dst, dst, n);
        for (int j = 0; j < c->size; j++) src[j] = (const char *)src[j] + n * k->size;
        for (int j = 0; j < n_dst; j++) dst[j] = (char *)dst[j] + n * k->size;
    }
    return 0;
}

static int in_place(struct zt_comm *c, const struct shm_call *k, struct zt_error *err) {
    struct shm_comm *m = c->state;
    const int64_t seq = m->record->seq;
    const void *src[ZT_COMM_MAX_RANKS];
    void *dst[ZT_COMM_MAX_RANKS];
    size_t bytes = (size_t)k->count * k->size;
    int64_t lo = 0, hi = k->count;
    int rc = 0;
    switch (k->kind) {
    case ZT_COLL_ALL_REDUCE:
        zt_share(k->count, c->size, c->rank, &lo, &hi);
        for (int j = 0; j < c->size; j++) {
            dst[j] = shm_peer(c, j, shm_signature(c, j, seq)->recv, bytes) + (size_t)lo * k->size;
            src[j] = dst[j];
        }
        rc = reduce_looking(c, k, src, c->size, dst, (size_t)(hi - lo), err);
        break;
    case ZT_COLL_REDUCE_SCATTER:
        for (int j = 0; j < c->size; j++)
            src[j] = shm_peer(c, j, shm_signature(c, j, seq)->send, bytes * (size_t)c->size) +
                     (size_t)c->rank * bytes;
        dst[0] = k->recv;
        rc = reduce_looking(c, k, src, 1, dst, (size_t)k->count, err);
        break;
    case ZT_COLL_ALL_GATHER:
        for (int i = 0; i < c->size && !rc; i++) {
            int j = (c->rank + i) % c->size; /* not all from the same rank at once */
            char *to = (char *)k->recv + (size_t)j * bytes;
            const void *from = i ? shm_peer(c, j, shm_signature(c, j, seq)->send, bytes) : k->send;
            if (to != from) rc = shm_copy(c, to, from, bytes, err);
        }
        break;
    case ZT_COLL_BROADCAST:
        if (c->rank != k->root)
            rc = shm_copy(c, k->recv,
                          shm_peer(c, k->root, shm_signature(c, k->root, seq)->recv, bytes), bytes,
                          err);
        break;
    default:
        break;
    }
    return rc ? rc : shm_barrier(c, err); /* nobody's buffer is in use any more */
}

/* ---- data through staging areas ---- */

/* Every rank's payload lies in its half already; each takes what it needs. */
static void small(struct zt_comm *c, const struct shm_call *k, size_t half) {
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
static int staged_all_reduce(struct zt_comm *c, const struct shm_call *k, size_t half, int64_t at,
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

static int staged(struct zt_comm *c, const struct shm_call *k, struct zt_error *err) {
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

uint64_t shm_offset(const struct shm_world *w, const void *p, size_t bytes) {
    const unsigned char *base = w->memory[w->rank], *at = p;
    size_t room = w->memory_bytes[w->rank];
    if (at < base || at >= base + room || bytes > room - (size_t)(at - base)) return SHM_STAGED;
    return (uint64_t)(at - base);
}

/* Bytes read from or written to peers (D13 of the decisions), the same for every path. */
int64_t shm_sent_bytes(const struct zt_comm *c, const struct shm_call *k) {
    return zt_comm_sent_bytes(c, k->kind, k->count, k->size, k->root);
}

void shm_begin(struct zt_comm *c, const struct zt_coll_record *record, int64_t timeout_ns) {
    struct shm_comm *m = c->state;
    m->record = record;
    m->began = zt_clock_ns();
    m->deadline = m->began + timeout_ns;
}

bool shm_in_place(struct zt_comm *c, int64_t seq) {
    for (int i = 0; i < c->size; i++) {
        const struct shm_signature *s = shm_signature(c, i, seq);
        if (s->send == SHM_STAGED || s->recv == SHM_STAGED) return false;
    }
    return true;
}

static int shm_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                          const void *send, void *recv, int64_t count, int group_root,
                          struct zt_coll_record *record, struct zt_error *err) {
    struct shm_comm *m = c->state;
    struct shm_call k = {kind, op, t, send, recv, count, group_root, zt_dtype_size(t)};
    size_t bytes = (size_t)count * k.size;
    size_t send_bytes = bytes * (kind == ZT_COLL_REDUCE_SCATTER ? (size_t)c->size : 1);
    size_t recv_bytes = bytes * (kind == ZT_COLL_ALL_GATHER ? (size_t)c->size : 1);
    shm_begin(c, record, atomic_load(&c->timeout_ns));
    if (shm_failed(m->w)) return shm_fail_recorded(c, err);
    if (c->size == 1)
        return zt_self_collective(c, kind, op, t, send, recv, count, group_root, record, err);
    struct shm_signature own = {record->seq,
                                count,
                                (int32_t)kind,
                                (int32_t)op,
                                (int32_t)t,
                                group_root,
                                shm_offset(m->w, send, send_bytes),
                                shm_offset(m->w, recv, recv_bytes)};
    bool is_small = count > 0 && send_bytes <= SHM_SMALL;
    size_t half = (m->stage_turn & 1) * SHM_HALF;
    if (is_small && (kind != ZT_COLL_BROADCAST || c->rank == group_root))
        memcpy(m->stage[c->rank] + half, send, send_bytes);
    int rc = meet(c, &own, err);
    if (rc) return rc;
    record->sent_bytes = shm_sent_bytes(c, &k);
    if (!count) return 0;
    if (is_small) {
        m->stage_turn++;
        small(c, &k, half);
        return 0;
    }
    return shm_in_place(c, own.seq) ? in_place(c, &k, err) : staged(c, &k, err);
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
    if (c->size == 1 && w->here == w->world) return 0; /* else it is a part of a group */
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
uint64_t shm_arena_take(struct shm_world *w, int n) {
    uint64_t bytes = shm_group_bytes(n), at = atomic_fetch_add(&w->control->next, bytes);
    if (at + bytes > w->control->arena_end) return 0;
    struct shm_group *g = (struct shm_group *)(void *)((unsigned char *)w->control + at);
    g->n = n;
    return at;
}

/* wish[i] is of the parent's member i. Every member of a list must have given that same list: the
 * lists then partition the parent. */
int shm_check_lists(struct zt_comm *c, const struct zt_comm *parent,
                    const struct shm_wish *const *wish, struct zt_error *err) {
    const struct shm_wish *of[ZT_COMM_MAX_RANKS] = {NULL};
    for (int i = 0; i < parent->size; i++) of[parent->ranks[i]] = wish[i];
    for (int i = 0; i < parent->size; i++) {
        const struct shm_wish *a = wish[i];
        for (int j = 0; j < a->n; j++) {
            const struct shm_wish *b = of[a->list[j]];
            if (a->n == b->n && !memcmp(a->list, b->list, (size_t)a->n * sizeof *a->list) &&
                !strncmp(a->name, b->name, sizeof a->name))
                continue;
            return shm_fail_first(
                c, ZT_EMISMATCH, a->list[j], err,
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
            return shm_fail_first(
                parent, ZT_ENOMEM, parent->ranks[i], err,
                "split of group \"%s\": rank %d has no memory or no place for another "
                "group",
                parent->name, parent->ranks[i]);
    return 0;
}

void shm_fill_wish(struct shm_wish *wish, const struct zt_comm *child) {
    memcpy(wish->name, child->name, sizeof wish->name);
    wish->n = child->size;
    for (int i = 0; i < child->size; i++) wish->list[i] = (uint16_t)child->ranks[i];
}

static int shm_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err) {
    struct shm_comm *m = parent->state;
    struct shm_world *w = m->w;
    struct shm_rank *own = &w->control->ranks[w->rank];
    struct zt_coll_record record = {.seq = parent->last_seq, .kind = ZT_COLL_SPLIT};
    struct shm_signature call = {record.seq, 0, (int32_t)ZT_COLL_SPLIT, 0, 0, 0, 0, 0};
    const struct shm_wish *wish[ZT_COMM_MAX_RANKS];
    struct zt_error trouble = {0};
    shm_begin(parent, &record, atomic_load(&parent->timeout_ns));
    if (shm_failed(w)) return shm_fail_recorded(parent, err);
    shm_fill_wish(&own->wish, child);
    for (int i = 0; i < parent->size; i++) wish[i] = &w->control->ranks[parent->ranks[i]].wish;
    m->group->member[parent->rank].trouble = 0;
    int rc = meet(parent, &call, err);
    if (!rc) rc = shm_check_lists(parent, parent, wish, err);
    if (!rc && child->rank == 0) own->group = shm_arena_take(w, child->size);
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
    if (w->far) tcp_world_free(w->far);
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
    shm_record(m->w, ZT_ECOMM, c->world_rank, text);
    futex(&m->group->phase, FUTEX_WAKE, INT_MAX, NULL);
    if (m->w->far) tcp_tell_failure(m->w->far);
}

const struct zt_comm_impl zt_comm_shm = {.name = "shm",
                                         .collective = shm_collective,
                                         .split = shm_split,
                                         .destroy = shm_comm_free,
                                         .abort = shm_abort};
