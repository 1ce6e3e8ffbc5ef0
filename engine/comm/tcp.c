/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/tcp.c: collectives of groups whose members are on several hosts.
 *
 * Every pair of members moves its own data: through shared memory on one host (as in shm.c: in
 * place where buffers are in device memory, else through the staging areas), over their connection
 * between two. The member to whom a slice belongs adds it up from all members in group-rank order,
 * so the bits are those of shm and do not depend on who is where.
 *
 * course of a collective:
 *   show the signature (and a small payload) to all -> compare all signatures -> reduce and / or
 * gather reduce   every member sends slice j to member j, which adds piece by piece as it comes in
 *     gather   every member sends its slice to all others, which receive it where it belongs
 *
 * No cycle of waits: whoever waits at a barrier of its host has handed all its data to the kernel,
 * and whoever waits for data sends and receives on all its connections as they get ready. So the
 * member that is behind all others finds all it needs on its way.
 *
 * Memory: one staging buffer for each connection, made with the group, outside the allocator (D3).
 * Sent bytes are counted where data move: what a rank takes in to reduce, to gather or from a root,
 * and what it gives out of a slice that it has reduced (D13). Small collectives go in one message
 * to all and count like the others. Ownership and thread rule: tcp.h. */
#include "engine/comm/tcp.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "engine/comm/reduce.h"

#define STAGES ((size_t)8 << 20) /* of all links of a group together, within the next two */
#define MAX_STAGE ((size_t)256 << 10)
#define MIN_STAGE ((size_t)64 << 10)
#define SLICE_NS (TCP_SLICE_MS * INT64_C(1000000))
#define HANG_UP_NS INT64_C(2000000000)
#define COPY ((size_t)8 << 20)

/* ---- the connections ---- */

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The ranks that this one waits for: on connections, and at the last barrier of this host. */
static int late_ranks(const struct zt_comm *c, int *late) {
    const struct tcp_comm *t = c->state;
    int n = shm_late(t->near, late);
    for (int i = 0; i < t->n_links; i++)
        if (t->link[i].rx_left || t->link[i].tx_left) late[n++] = c->ranks[t->link[i].member];
    qsort(late, (size_t)n, sizeof *late, by_number);
    return n;
}

/* ended: rank whose connection has ended, -1: none. */
static int look(struct zt_comm *c, int ended, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    int late[ZT_COMM_MAX_RANKS], n = late_ranks(c, late);
    t->looked = zt_clock_ns();
    return shm_look(t->near, late, n, ended, err);
}

/* The end of a connection is a consequence: the watch connections tell of what. */
static int hung_up(struct zt_comm *c, const struct tcp_link *l, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    int rank = c->ranks[l->member];
    char what[160];
    for (int64_t until = zt_clock_ns() + HANG_UP_NS; zt_clock_ns() < until;) {
        const struct timespec pause = {0, 5000000};
        int rc = look(c, rank, err);
        if (rc) return rc;
        nanosleep(&pause, NULL);
    }
    return shm_fail_first(t->near, ZT_EPEER, rank, err,
                          "rank %d closed its connection to rank %d, which was in %s", rank,
                          c->world_rank, shm_describe(t->near, what, sizeof what));
}

/* Sends and receives what goes at once; false when the connection has ended. */
static bool move(struct tcp_link *l, bool *moved) {
    if (l->tx_left) {
        ssize_t k = send(l->fd, l->tx, l->tx_left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (k > 0) {
            l->tx += k;
            l->tx_left -= (size_t)k;
            *moved = true;
        }
    }
    if (l->rx_left) {
        ssize_t k = recv(l->fd, l->rx, l->rx_left, MSG_DONTWAIT);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (k > 0) {
            l->rx += k;
            l->rx_left -= (size_t)k;
            *moved = true;
        }
    }
    return true;
}

static int move_all(struct zt_comm *c, bool *moved, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    *moved = false;
    for (int i = 0; i < t->n_links; i++)
        if (!move(&t->link[i], moved)) return hung_up(c, &t->link[i], err);
    return 0;
}

static void wait_ready(struct tcp_comm *t, int64_t deadline) {
    nfds_t n = 0;
    int64_t left = (deadline - zt_clock_ns()) / 1000000 + 1;
    for (int i = 0; i < t->n_links; i++) {
        const struct tcp_link *l = &t->link[i];
        short events = (short)((l->rx_left ? POLLIN : 0) | (l->tx_left ? POLLOUT : 0));
        if (events) t->fds[n++] = (struct pollfd){.fd = l->fd, .events = events};
    }
    poll(t->fds, n, left < 1 ? 1 : left < TCP_SLICE_MS ? (int)left : TCP_SLICE_MS);
}

/* Until all that is to be received is in, and with `sent` also all that is to be sent is on its
 * way. */
static int pump(struct zt_comm *c, bool sent, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    const struct shm_comm *m = t->near->state;
    for (;;) {
        bool busy = false, moved;
        int rc = move_all(c, &moved, err);
        if (rc) return rc;
        for (int i = 0; i < t->n_links; i++)
            busy |= t->link[i].rx_left || (sent && t->link[i].tx_left);
        if (!busy) break;
        if (!moved) wait_ready(t, m->deadline);
        if (zt_clock_ns() - t->looked < SLICE_NS) continue;
        rc = look(c, -1, err);
        if (rc) return rc;
    }
    shm_wait_over(t->near);
    return 0;
}

static void post_tx(struct tcp_link *l, const void *p, size_t bytes) {
    l->tx = p;
    l->tx_left = bytes;
}
static void post_rx(struct tcp_link *l, void *p, size_t bytes) {
    l->rx = p;
    l->rx_left = bytes;
}

/* ---- signatures ---- */

static int take_payloads(struct zt_comm *c, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    for (int i = 0; i < t->n_links; i++) {
        struct tcp_link *l = &t->link[i];
        if (l->head.payload > SHM_SMALL)
            return shm_fail_first(t->near, ZT_EPROTO, c->ranks[l->member], err,
                                  "rank %d sent something that is no message of group \"%s\"",
                                  c->ranks[l->member], c->name);
        post_rx(l, l->stage, l->head.payload);
    }
    return pump(c, true, err);
}

int tcp_meet(struct zt_comm *c, const struct shm_signature *own, const void *payload, size_t bytes,
             struct zt_error *err) {
    struct tcp_comm *t = c->state;
    const struct shm_signature *all[ZT_COMM_MAX_RANKS];
    const struct tcp_head head = {*own, bytes};
    memcpy(t->message, &head, sizeof head);
    if (bytes) memcpy(t->message + sizeof head, payload, bytes);
    *shm_signature(t->near, t->near->rank, own->seq) = *own;
    shm_arrive(t->near);
    for (int i = 0; i < t->n_links; i++) {
        post_tx(&t->link[i], t->message, sizeof head + bytes);
        post_rx(&t->link[i], (unsigned char *)&t->link[i].head, sizeof head);
    }
    int rc = pump(c, false, err);
    if (!rc) rc = take_payloads(c, err);
    if (!rc) rc = shm_await(t->near, err);
    if (rc) return rc;
    for (int i = 0; i < c->size; i++)
        all[i] = t->link_of[i] >= 0 ? &t->link[t->link_of[i]].head.signature
                                    : shm_signature(t->near, t->near_of[i], own->seq);
    return shm_compare(t->near, c->ranks, all, c->size, err);
}

/* ---- data ---- */

/* One collective under way. */
struct run {
    struct zt_comm *c;
    struct tcp_comm *t;
    struct shm_comm *near;
    const struct shm_call *k;
    int64_t seq, moved; /* bytes, for D13 */
    bool in_place;      /* on this host */
};
struct span {
    int64_t lo, hi;
}; /* elements of the full buffer */

static struct span slice_of(const struct run *r, int member) {
    struct span s = {r->k->count * member, r->k->count * (member + 1)};
    if (r->k->kind == ZT_COLL_ALL_REDUCE) zt_share(r->k->count, r->c->size, member, &s.lo, &s.hi);
    return s;
}
/* Elements [at, at + room) of a member's slice, counted from its begin. */
static struct span piece_of(const struct run *r, int member, int64_t at, int64_t room) {
    struct span s = slice_of(r, member);
    s.lo = s.hi - s.lo > at ? s.lo + at : s.hi;
    s.hi = s.hi - s.lo > room ? s.lo + room : s.hi;
    return s;
}
static size_t bytes_of(const struct run *r, struct span s) {
    return (size_t)(s.hi - s.lo) * r->k->size;
}
/* How much of every slice goes at a time; slice 0 is the longest. */
static int64_t room_for(const struct run *r, int parts, int64_t longest) {
    int64_t room = (int64_t)(SHM_HALF / r->k->size) / parts;
    return r->in_place ? longest : room;
}
static size_t take_half(struct run *r) {
    return r->in_place ? 0 : (r->near->stage_turn++ & 1) * SHM_HALF;
}
static const struct shm_signature *sign_of(const struct run *r, int near) {
    return shm_signature(r->t->near, near, r->seq);
}

/* Copies and keeps the connections busy meanwhile. */
static int copy(const struct run *r, void *to, const void *from, size_t bytes,
                struct zt_error *err) {
    int rc = 0;
    for (size_t at = 0; at < bytes && !rc; at += COPY) {
        bool moved;
        zt_copy((char *)to + at, (const char *)from + at, bytes - at < COPY ? bytes - at : COPY);
        rc = shm_failed(r->near->w) ? shm_fail_recorded(r->t->near, err)
                                    : move_all(r->c, &moved, err);
    }
    return rc;
}

/* Adds up n elements from all members: src points at those of this host, the others' come in. */
static int add_up(struct run *r, const void **src, void *dst, int64_t n, struct zt_error *err) {
    const int64_t step = (int64_t)(r->t->stage_bytes / r->k->size);
    for (int64_t at = 0; at < n; at += step) {
        size_t m = (size_t)(n - at < step ? n - at : step), bytes = m * r->k->size;
        for (int i = 0; i < r->t->n_links; i++) {
            struct tcp_link *l = &r->t->link[i];
            post_rx(l, l->stage, bytes);
            src[l->member] = l->stage;
        }
        int rc = pump(r->c, false, err);
        if (rc) return rc;
        zt_reduce(r->k->dtype, r->k->op, r->c->size, src, 1, &dst, m);
        for (int i = 0; i < r->c->size; i++) src[i] = (const char *)src[i] + bytes;
        dst = (char *)dst + bytes;
        r->moved += (int64_t)bytes * (r->c->size - 1);
    }
    return 0;
}

/* This rank's pieces for the members of its host, side by side in its staging area. */
static int stage_pieces(struct run *r, int64_t at, int64_t room, size_t half,
                        struct zt_error *err) {
    struct zt_comm *near = r->t->near;
    unsigned char *to = r->near->stage[near->rank] + half;
    for (int i = 0, member = 0; member < r->c->size; member++) {
        if (r->t->near_of[member] < 0) continue;
        struct span p = piece_of(r, member, at, room);
        memcpy(to + (size_t)i++ * (size_t)room * r->k->size,
               (const char *)r->k->send + (size_t)p.lo * r->k->size, bytes_of(r, p));
    }
    return shm_barrier(near, err);
}

/* own = the sum of this rank's slice. */
static int reduce_slices(struct run *r, void *own, struct zt_error *err) {
    struct zt_comm *near = r->t->near;
    const struct span first = slice_of(r, 0);
    const int64_t longest = first.hi - first.lo, room = room_for(r, near->size, longest);
    const size_t whole = (size_t)slice_of(r, r->c->size - 1).hi * r->k->size;
    int rc = 0;
    for (int64_t at = 0; at < longest && !rc; at += room) {
        const void *src[ZT_COMM_MAX_RANKS] = {NULL};
        const struct span mine = piece_of(r, r->c->rank, at, room);
        const size_t half = take_half(r);
        if (!r->in_place) rc = stage_pieces(r, at, room, half, err);
        if (rc) break;
        for (int i = 0; i < r->t->n_links; i++) {
            struct span p = piece_of(r, r->t->link[i].member, at, room);
            post_tx(&r->t->link[i], (const unsigned char *)r->k->send + (size_t)p.lo * r->k->size,
                    bytes_of(r, p));
        }
        for (int member = 0; member < r->c->size; member++) {
            int i = r->t->near_of[member];
            if (i < 0) continue;
            src[member] =
                r->in_place
                    ? shm_peer(near, i, sign_of(r, i)->send, whole) + (size_t)mine.lo * r->k->size
                    : r->near->stage[i] + half + (size_t)near->rank * (size_t)room * r->k->size;
        }
        rc = add_up(r, src, (char *)own + (size_t)at * r->k->size, mine.hi - mine.lo, err);
        if (!rc) rc = pump(r->c, true, err);
    }
    return !rc && r->in_place ? shm_barrier(near, err) : rc;
}

/* The slice of a member of this host, as far as it goes now, into this rank's full buffer. */
static int copy_near(struct run *r, int member, int64_t at, int64_t room, size_t half,
                     int64_t *taken, struct zt_error *err) {
    const int i = r->t->near_of[member];
    const struct span p = piece_of(r, member, at, room);
    const struct shm_signature *s = sign_of(r, i);
    const size_t bytes = bytes_of(r, p);
    char *to = (char *)r->k->recv + (size_t)p.lo * r->k->size;
    const void *from = r->near->stage[i] + half;
    if (!bytes) return 0;
    if (r->in_place && r->k->kind == ZT_COLL_ALL_REDUCE)
        from = shm_peer(r->t->near, i, s->recv + (size_t)p.lo * r->k->size, bytes);
    else if (r->in_place)
        from = shm_peer(r->t->near, i, s->send + (size_t)at * r->k->size, bytes);
    *taken += (int64_t)bytes;
    return copy(r, to, from, bytes, err);
}

/* All slices to all; own is this rank's. */
static int gather_slices(struct run *r, const void *own, struct zt_error *err) {
    struct zt_comm *near = r->t->near;
    const struct span first = slice_of(r, 0);
    const int64_t longest = first.hi - first.lo, room = room_for(r, 1, longest);
    const struct span whole = slice_of(r, r->c->rank);
    char *place = (char *)r->k->recv + (size_t)whole.lo * r->k->size;
    int64_t taken = 0;
    int rc = 0;
    if (place != own) memcpy(place, own, bytes_of(r, whole));
    for (int64_t at = 0; at < longest && !rc; at += room) {
        const struct span mine = piece_of(r, r->c->rank, at, room);
        const size_t half = take_half(r), bytes = bytes_of(r, mine);
        const unsigned char *from = (const unsigned char *)own + (size_t)at * r->k->size;
        if (!r->in_place) {
            if (bytes) memcpy(r->near->stage[near->rank] + half, from, bytes);
            rc = shm_barrier(near, err);
        }
        for (int i = 0; i < r->t->n_links; i++) {
            struct tcp_link *l = &r->t->link[i];
            struct span p = piece_of(r, l->member, at, room);
            post_tx(l, from, bytes);
            post_rx(l, (unsigned char *)r->k->recv + (size_t)p.lo * r->k->size, bytes_of(r, p));
            taken += (int64_t)bytes_of(r, p);
        }
        for (int member = 0; member < r->c->size && !rc; member++)
            if (r->t->near_of[member] >= 0 && member != r->c->rank)
                rc = copy_near(r, member, at, room, half, &taken, err);
        if (!rc) rc = pump(r->c, true, err);
        if (r->k->kind == ZT_COLL_ALL_REDUCE) r->moved += (int64_t)bytes * (r->c->size - 1);
    }
    if (r->k->kind == ZT_COLL_ALL_GATHER) r->moved += taken;
    return !rc && r->in_place ? shm_barrier(near, err) : rc;
}

/* The root's buffer to all: over connections at once, on its host in place or piece by piece. */
static int broadcast(struct run *r, struct zt_error *err) {
    struct zt_comm *near = r->t->near;
    const int root = r->k->root, i = r->t->near_of[root];
    const size_t bytes = (size_t)r->k->count * r->k->size;
    const bool mine = r->c->rank == root;
    int rc = 0;
    if (!mine) r->moved += (int64_t)bytes;
    if (i < 0) {
        post_rx(&r->t->link[r->t->link_of[root]], r->k->recv, bytes);
        return pump(r->c, true, err);
    }
    for (int l = 0; mine && l < r->t->n_links; l++) post_tx(&r->t->link[l], r->k->recv, bytes);
    if (r->in_place) {
        if (!mine)
            rc = copy(r, r->k->recv, shm_peer(near, i, sign_of(r, i)->recv, bytes), bytes, err);
        if (!rc) rc = pump(r->c, true, err);
        return rc ? rc : shm_barrier(near, err);
    }
    for (size_t at = 0; at < bytes && !rc; at += SHM_HALF) {
        size_t n = bytes - at < SHM_HALF ? bytes - at : SHM_HALF, half = take_half(r);
        if (mine) memcpy(r->near->stage[i] + half, (char *)r->k->recv + at, n);
        if (mine) rc = pump(r->c, true, err);
        if (!rc) rc = shm_barrier(near, err);
        if (!rc && !mine) rc = copy(r, (char *)r->k->recv + at, r->near->stage[i] + half, n, err);
    }
    return rc;
}

/* Every member's payload is here. */
static void small(struct run *r, size_t half) {
    const struct shm_call *k = r->k;
    const void *src[ZT_COMM_MAX_RANKS];
    size_t bytes = (size_t)k->count * k->size;
    size_t skip = k->kind == ZT_COLL_REDUCE_SCATTER ? (size_t)r->c->rank * bytes : 0;
    for (int j = 0; j < r->c->size; j++)
        src[j] = (r->t->link_of[j] >= 0 ? r->t->link[r->t->link_of[j]].stage
                                        : r->near->stage[r->t->near_of[j]] + half) +
                 skip;
    if (k->kind == ZT_COLL_ALL_REDUCE || k->kind == ZT_COLL_REDUCE_SCATTER)
        zt_reduce(k->dtype, k->op, r->c->size, src, 1, (void *const *)&k->recv, (size_t)k->count);
    else if (k->kind == ZT_COLL_ALL_GATHER)
        for (int j = 0; j < r->c->size; j++)
            memcpy((char *)k->recv + (size_t)j * bytes, src[j], bytes);
    else if (r->c->rank != k->root)
        memcpy(k->recv, src[k->root], bytes);
}

static int large(struct run *r, struct zt_error *err) {
    const struct shm_call *k = r->k;
    int rc;
    switch (k->kind) {
    case ZT_COLL_REDUCE_SCATTER:
        return reduce_slices(r, k->recv, err);
    case ZT_COLL_ALL_GATHER:
        return gather_slices(r, k->send, err);
    case ZT_COLL_BROADCAST:
        return broadcast(r, err);
    case ZT_COLL_ALL_REDUCE: {
        char *own = (char *)k->recv + (size_t)slice_of(r, r->c->rank).lo * k->size;
        rc = reduce_slices(r, own, err);
        return rc ? rc : gather_slices(r, own, err);
    }
    default:
        return 0;
    }
}

static int tcp_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                          const void *send, void *recv, int64_t count, int group_root,
                          struct zt_coll_record *record, struct zt_error *err) {
    struct tcp_comm *state = c->state;
    struct shm_comm *near = state->near->state;
    const struct shm_call k = {kind, op, t, send, recv, count, group_root, zt_dtype_size(t)};
    struct run r = {.c = c, .t = state, .near = near, .k = &k, .seq = record->seq};
    size_t bytes = (size_t)count * k.size;
    size_t send_bytes = bytes * (kind == ZT_COLL_REDUCE_SCATTER ? (size_t)c->size : 1);
    size_t recv_bytes = bytes * (kind == ZT_COLL_ALL_GATHER ? (size_t)c->size : 1);
    const struct shm_signature own = {record->seq,
                                      count,
                                      (int32_t)kind,
                                      (int32_t)op,
                                      (int32_t)t,
                                      group_root,
                                      shm_offset(near->w, send, send_bytes),
                                      shm_offset(near->w, recv, recv_bytes)};
    bool is_small = count > 0 && send_bytes <= SHM_SMALL;
    bool gives = is_small && (kind != ZT_COLL_BROADCAST || c->rank == group_root);
    size_t half = (near->stage_turn & 1) * SHM_HALF;
    shm_begin(state->near, record, atomic_load(&c->timeout_ns));
    int rc = look(c, -1, err);
    if (rc) return rc;
    if (gives) memcpy(near->stage[state->near->rank] + half, send, send_bytes);
    rc = tcp_meet(c, &own, send, gives ? send_bytes : 0, err);
    if (rc) return rc;
    if (!count) return 0;
    record->sent_bytes = shm_sent_bytes(c, &k);
    if (is_small) {
        near->stage_turn++;
        small(&r, half);
        return 0;
    }
    r.in_place = shm_in_place(state->near, r.seq);
    rc = large(&r, err);
    ZT_ASSERT(rc || r.moved == record->sent_bytes);
    return rc;
}

/* ---- groups ---- */

static void close_links(struct tcp_comm *t) {
    for (int i = 0; i < t->n_links; i++)
        if (t->link[i].fd >= 0) close(t->link[i].fd);
}

static void free_parts(struct tcp_comm *t) {
    free(t->link);
    free(t->link_of);
    free(t->near_of);
    free(t->fds);
    free(t->stages);
    free(t->message);
    free(t);
}

int tcp_comm_new(struct zt_comm *c, struct tcp_world *w, struct zt_comm *near, uint64_t tag,
                 struct zt_error *err) {
    struct tcp_comm *t = calloc(1, sizeof *t);
    size_t n = (size_t)c->size, far = n - (size_t)near->size;
    if (!t) return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    t->stage_bytes = far ? STAGES / far / 64 * 64 : 0;
    if (t->stage_bytes > MAX_STAGE) t->stage_bytes = MAX_STAGE;
    if (t->stage_bytes < MIN_STAGE) t->stage_bytes = MIN_STAGE;
    t->link = calloc(far + 1, sizeof *t->link);
    t->link_of = malloc(n * sizeof *t->link_of);
    t->near_of = malloc(n * sizeof *t->near_of);
    t->fds = calloc(far + 1, sizeof *t->fds);
    t->stages = malloc(far * t->stage_bytes + 1);
    t->message = malloc(sizeof(struct tcp_head) + SHM_SMALL);
    if (!t->link || !t->link_of || !t->near_of || !t->fds || !t->stages || !t->message) {
        free_parts(t);
        return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    }
    t->w = w;
    t->near = near;
    t->tag = tag;
    for (int i = 0, k = 0; i < c->size; i++) {
        t->link_of[i] = t->near_of[i] = -1;
        if (k < near->size && near->ranks[k] == c->ranks[i]) {
            t->near_of[i] = k++;
            continue;
        }
        struct tcp_link *l = &t->link[t->link_of[i] = t->n_links];
        l->fd = -1;
        l->member = i;
        l->stage = t->stages + (size_t)t->n_links++ * t->stage_bytes;
    }
    c->state = t;
    c->impl = &zt_comm_tcp;
    return 0;
}

void tcp_comm_free(struct zt_comm *c) {
    struct tcp_comm *t = c->state;
    close_links(t);
    zt_comm_destroy(t->near);
    free_parts(t);
    c->state = NULL;
}

static void tcp_abort(struct zt_comm *c) {
    struct tcp_comm *t = c->state;
    t->near->impl->abort(t->near); /* which tells the other hosts too */
}

const struct zt_comm_impl zt_comm_tcp = {.name = "tcp",
                                         .collective = tcp_collective,
                                         .split = tcp_split,
                                         .destroy = tcp_comm_free,
                                         .abort = tcp_abort};
