/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/tcp_join.c: how the ranks of a world of several hosts meet, and how groups are made.
 *
 *   1. every rank knocks at rank 0's door, whose address is in the id, and says where it is; these
 *      connections, the star, stay until the world has formed
 *   2. rank 0 hands out the table of all places (or word of what went wrong)
 *   3. the ranks of one host (equal host names) meet in shared memory, see shm_join.c
 *   4. every pair of ranks of different hosts gets its watch and its first data connection: the
 * higher rank knocks
 *   5. first barrier; the star is given up: from now on the watch connections tell
 *
 * A split shows all lists to all members of the parent, then makes the near part and the
 * connections of the new group. A rank that fails on the way says so (star or watch), so the others
 * do not wait.
 *
 * Ownership and thread rule: tcp.h. */
#include "engine/comm/tcp.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <openssl/crypto.h>

#define VERDICT_NS INT64_C(1000000000)
#define WORD_NS INT64_C(2000000000)
#define WORLD_TAG 1

/* ---- the star ---- */

/* A message on the star: word of a failure (code, text of n bytes) or, with code 0, the table. */
struct word {
    int32_t code, rank;
    uint32_t n, unused;
    uint8_t mac[TCP_MAC];
};

struct join {
    struct zt_comm *c;
    struct tcp_world *w;
    struct tcp_want *spoke; /* rank 0: of every rank but itself; others: one, to rank 0 */
    int n_spokes;
    int64_t began, deadline;
    bool told;
};

static void mac_word(const uint8_t *key, const char *way, const struct word *word, const void *body,
                     uint8_t mac[TCP_MAC]) {
    tcp_mac(key, way, word, offsetof(struct word, mac), body, word->n, mac);
}

static int say_word(const struct tcp_want *s, const char *way, struct word *word, const void *body,
                    int64_t deadline) {
    mac_word(s->key, way, word, body, word->mac);
    int rc = tcp_send_all(s->fd, word, sizeof *word, deadline);
    return rc ? rc : tcp_send_all(s->fd, body, word->n, deadline);
}

/* The body has room for `room` bytes. 0 or -errno. */
static int hear_word(const struct tcp_want *s, const char *way, struct word *word, void *body,
                     size_t room, int64_t deadline) {
    uint8_t mac[TCP_MAC];
    int rc = tcp_recv_all(s->fd, word, sizeof *word, deadline);
    if (!rc && word->n > room) rc = -EPROTO;
    if (!rc) rc = tcp_recv_all(s->fd, body, word->n, deadline);
    if (rc) return rc;
    mac_word(s->key, way, word, body, mac);
    return CRYPTO_memcmp(mac, word->mac, TCP_MAC) ? -EPROTO : 0;
}

static const char *const up = "zt-mesh-up", *const down = "zt-mesh-down";

/* Tells of a failure: rank 0 all others, the others rank 0. */
static void tell(struct join *j, int code, int rank, const char *text) {
    if (j->told) return;
    j->told = true;
    for (int i = 0; i < j->n_spokes; i++) {
        struct word word = {.code = code, .rank = rank};
        word.n = (uint32_t)strnlen(text, TCP_TEXT - 1);
        if (j->spoke[i].fd >= 0)
            say_word(&j->spoke[i], j->w->rank == 0 ? down : up, &word, text,
                     zt_clock_ns() + WORD_NS);
    }
}

static int fail_join(struct join *j, int code, int rank, const char *text, struct zt_error *err) {
    atomic_store(&j->c->shared->failed_rank, rank);
    return zt_fail(err, code, "%s", text);
}

/* Something came, or the other end is gone. */
static int hear_failure(struct join *j, struct tcp_want *s, struct zt_error *err) {
    struct word word;
    char text[TCP_TEXT];
    const bool zero = j->w->rank == 0;
    const int other = zero ? s->who.from : 0;
    int rc = hear_word(s, zero ? up : down, &word, text, sizeof text - 1, zt_clock_ns() + WORD_NS);
    if (!rc && word.code < 0 && word.rank >= -1 && word.rank < j->w->world) {
        text[word.n] = 0;
        rc = fail_join(j, word.code, word.rank, text, err);
    } else {
        snprintf(text, sizeof text, "rank %d (pid %d) died while the ranks were meeting", other,
                 zero ? s->who.place.pid : j->w->place[0].pid);
        rc = fail_join(j, ZT_EPEER, other, text, err);
    }
    close(s->fd);
    s->fd = -1;
    return rc;
}

static int look_at_star(void *arg, struct zt_error *err) {
    struct join *j = arg;
    for (int i = 0; i < j->n_spokes; i++) {
        struct pollfd p = {.fd = j->spoke[i].fd, .events = POLLIN};
        if (p.fd >= 0 && poll(&p, 1, 0) > 0 && p.revents) return hear_failure(j, &j->spoke[i], err);
    }
    return 0;
}

/* ---- 1 and 2: to know where all are ---- */

static struct tcp_who who_am_i(const struct tcp_world *w, uint32_t purpose, int from, int to,
                               uint64_t tag) {
    struct tcp_who who;
    memset(&who, 0, sizeof who);
    who.purpose = purpose;
    who.world = w->world;
    who.from = from;
    who.to = to;
    who.tag = tag;
    snprintf(who.build, sizeof who.build, "%s", ZT_VERSION);
    who.place = w->place[w->rank];
    return who;
}

static void close_wants(struct tcp_want *want, int n) {
    for (int i = 0; i < n; i++)
        if (want[i].fd >= 0) close(want[i].fd);
}

static int fail_missing(struct join *j, struct zt_error *err) {
    char list[512] = "";
    size_t used = 0;
    int first = -1, n = 0;
    for (int i = 0; i < j->n_spokes; i++) {
        if (j->spoke[i].fd >= 0) continue;
        int r = j->spoke[i].who.from;
        int k = snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", r);
        if (k > 0 && (size_t)k < sizeof list - used) used += (size_t)k;
        if (first < 0) first = r;
        n++;
    }
    atomic_store(&j->c->shared->failed_rank, first);
    return zt_fail(err, ZT_ETIMEOUT,
                   "the communicator did not form within %.1f s: rank%s %s of %d did not come "
                   "(comm.init_timeout_seconds)",
                   (double)(zt_clock_ns() - j->began) / 1e9, n > 1 ? "s" : "", list, j->w->world);
}

static int gather_places(struct join *j, struct zt_error *err) {
    struct tcp_world *w = j->w;
    const struct tcp_set set = {w->door,     w->secret,    j->spoke, j->n_spokes,
                                j->deadline, look_at_star, j};
    for (int i = 0; i < j->n_spokes; i++) {
        j->spoke[i].who = who_am_i(w, TCP_JOIN, i + 1, 0, 0);
        j->spoke[i].fd = -1;
    }
    int rc = tcp_connect_set(&set, err);
    if (rc == ZT_ETIMEOUT) rc = fail_missing(j, err);
    if (rc) return rc;
    for (int i = 0; i < j->n_spokes; i++) w->place[i + 1] = j->spoke[i].who.place;
    for (int i = 0; i < j->n_spokes; i++) {
        struct word word = {.n = (uint32_t)((size_t)w->world * sizeof *w->place)};
        int e = say_word(&j->spoke[i], down, &word, w->place, j->deadline);
        if (e) return hear_failure(j, &j->spoke[i], err);
    }
    return 0;
}

static int check_table(const struct tcp_world *w, struct zt_error *err) {
    for (int r = 0; r < w->world; r++) {
        struct tcp_place *p = &w->place[r];
        if (memchr(p->host, 0, sizeof p->host) && memchr(p->address, 0, sizeof p->address) &&
            p->port > 0 && p->port <= 65535)
            continue;
        return zt_fail(err, ZT_EPROTO, "rank 0 sent a table in which rank %d has no place", r);
    }
    return 0;
}

static int ask_for_places(struct join *j, const struct tcp_place *zero, struct zt_error *err) {
    struct tcp_world *w = j->w;
    struct tcp_want *s = &j->spoke[0];
    const struct tcp_set set = {w->door, w->secret, s, 1, j->deadline, NULL, NULL};
    size_t bytes = (size_t)w->world * sizeof *w->place;
    struct word word;
    s->who = who_am_i(w, TCP_JOIN, w->rank, 0, 0);
    s->to = zero;
    int rc = tcp_connect_set(&set, err);
    if (rc) atomic_store(&j->c->shared->failed_rank, 0);
    if (rc == ZT_ETIMEOUT)
        return zt_fail(err, ZT_ETIMEOUT,
                       "rank 0 of %d did not open its door at %s:%d within %.1f s "
                       "(comm.init_timeout_seconds); rank %d waited",
                       w->world, zero->address, zero->port,
                       (double)(zt_clock_ns() - j->began) / 1e9, w->rank);
    if (rc) return rc;
    /* Rank 0 knows who is missing: leave the verdict to it. */
    int64_t verdict = zt_clock_ns() + s->left_ns + VERDICT_NS;
    if (s->left_ns > 0 && verdict > j->deadline) j->deadline = verdict;
    char *body = calloc(1, bytes + TCP_TEXT);
    if (!body) return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    int e = hear_word(s, down, &word, body, bytes + TCP_TEXT - 1, j->deadline);
    if (e == -ETIMEDOUT) {
        rc = zt_fail(err, ZT_ETIMEOUT,
                     "rank %d met rank 0, but the communicator did not form within %.1f s "
                     "(comm.init_timeout_seconds)",
                     w->rank, (double)(zt_clock_ns() - j->began) / 1e9);
    } else if (e || (!word.code && word.n != bytes) || word.code > 0) {
        atomic_store(&j->c->shared->failed_rank, 0);
        rc = zt_fail(
            err, ZT_EPEER,
            "rank 0 hung up on rank %d while the ranks were meeting (%s): it died, or the two "
            "have different ids",
            w->rank, strerror(-e));
    } else if (word.code) {
        rc = fail_join(j, word.code, word.rank, body, err);
    } else {
        memcpy(w->place, body, bytes);
        rc = check_table(w, err);
    }
    free(body);
    return rc;
}

/* ---- 3: the ranks of this host ---- */

static int near_ranks(const struct tcp_world *w, const struct zt_comm *c, int *ranks) {
    int n = 0;
    for (int i = 0; i < c->size; i++)
        if (tcp_is_near(w, c->ranks[i])) ranks[n++] = c->ranks[i];
    return n;
}

static int meet_near(struct join *j, struct zt_comm **out, struct zt_error *err) {
    struct tcp_world *w = j->w;
    struct shm_id id;
    uint8_t name[TCP_MAC];
    int ranks[ZT_COMM_MAX_RANKS], n = near_ranks(w, j->c, ranks);
    const char *host = w->place[w->rank].host;
    struct zt_comm *near =
        zt_comm_new(j->c->shared, j->c->device, j->c->name, ranks, n, w->rank, w->world, err);
    if (!near) return ZT_ENOMEM;
    tcp_mac(w->secret, "zt-mesh-near-name", NULL, 0, host, strlen(host), name);
    memcpy(id.name, name, sizeof id.name);
    tcp_mac(w->secret, "zt-mesh-near-secret", NULL, 0, host, strlen(host), id.secret);
    int64_t left = j->deadline - zt_clock_ns();
    const struct shm_watch watch = {look_at_star, j};
    int rc = shm_open_world(near, &id, left > 0 ? left : 1, &watch, err);
    if (rc)
        zt_comm_free(near);
    else
        *out = near;
    return rc;
}

/* ---- 4: connections ---- */

/* The connection of this purpose with a rank of another host. */
static struct tcp_want want_of(const struct tcp_world *w, int rank, uint32_t purpose,
                               uint64_t tag) {
    bool knock = w->rank > rank;
    struct tcp_want want = {.fd = -1, .to = knock ? &w->place[rank] : NULL};
    want.who = who_am_i(w, purpose, knock ? w->rank : rank, knock ? rank : w->rank, tag);
    return want;
}

/* Gives every link of c its socket, and with `watch` every far rank its watch connection. */
static int connect_links(struct zt_comm *c, bool watch, int64_t deadline,
                         int (*look)(void *, struct zt_error *), void *arg, struct zt_error *err) {
    struct tcp_comm *t = c->state;
    struct tcp_world *w = t->w;
    int n = t->n_links;
    struct tcp_want *want = calloc(2 * (size_t)n + 1, sizeof *want);
    if (!want) return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    for (int i = 0; i < n; i++) {
        int rank = c->ranks[t->link[i].member];
        want[i] = want_of(w, rank, TCP_DATA, t->tag);
        want[n + i] = want_of(w, rank, TCP_WATCH, 0);
    }
    const struct tcp_set set = {w->door, w->secret, want, watch ? 2 * n : n, deadline, look, arg};
    int rc = tcp_connect_set(&set, err);
    if (rc == ZT_ETIMEOUT) {
        for (int i = set.n - 1; i >= 0; i--)
            if (want[i].fd < 0)
                atomic_store(&c->shared->failed_rank, c->ranks[t->link[i % n].member]);
        rc = zt_fail_prefix(err, "group \"%s\", rank %d", c->name, w->rank);
    }
    if (rc) close_wants(want, set.n);
    for (int i = 0; i < n && !rc; i++) {
        struct tcp_peer *p = &w->peer[c->ranks[t->link[i].member]];
        t->link[i].fd = want[i].fd;
        if (!watch) continue;
        p->watch = want[n + i].fd;
        tcp_watch_socket(p->watch);
    }
    free(want);
    return rc;
}

/* ---- the world ---- */

static struct tcp_world *world_new(struct zt_comm *c, const uint8_t *secret,
                                   struct zt_comm_door *door) {
    struct tcp_world *w = calloc(1, sizeof *w);
    size_t n = (size_t)c->world_size;
    if (w) w->place = calloc(n, sizeof *w->place);
    if (w) w->peer = calloc(n, sizeof *w->peer);
    if (!w || !w->place || !w->peer) {
        if (w) free(w->place);
        if (w) free(w->peer);
        free(w);
        zt_comm_door_close(door);
        return NULL;
    }
    w->world = c->world_size;
    w->rank = c->world_rank;
    w->door = door;
    memcpy(w->secret, secret, sizeof w->secret);
    pthread_mutex_init(&w->lock, NULL);
    for (size_t i = 0; i < n; i++) w->peer[i].watch = -1;
    struct tcp_place *own = &w->place[w->rank];
    snprintf(own->host, sizeof own->host, "%s", door->host);
    snprintf(own->address, sizeof own->address, "%s", door->address);
    own->port = door->port;
    own->pid = getpid();
    return w;
}

void tcp_world_free(struct tcp_world *w) {
    tcp_say_leaving(w);
    for (int i = 0; i < w->world; i++)
        if (w->peer[i].watch >= 0) close(w->peer[i].watch);
    zt_comm_door_close(w->door);
    pthread_mutex_destroy(&w->lock);
    OPENSSL_cleanse(w->secret, sizeof w->secret);
    free(w->place);
    free(w->peer);
    free(w);
}

/* The world's state from its parts. From the moment that the near part owns w, c frees both. */
static int form(struct join *j, struct zt_comm *near, struct zt_error *err) {
    struct zt_comm *c = j->c;
    struct tcp_world *w = j->w;
    struct shm_signature call = {.kind = (int32_t)ZT_COLL_BARRIER};
    w->near = ((struct shm_comm *)near->state)->w;
    w->near->far = w;
    int rc = tcp_comm_new(c, w, near, WORLD_TAG, err);
    if (rc) {
        zt_comm_destroy(near);
        return rc;
    }
    rc = connect_links(c, true, j->deadline, look_at_star, j, err);
    if (rc) return rc;
    int64_t left = j->deadline - zt_clock_ns();
    shm_begin(near, NULL, left > 1000000 ? left : 1000000);
    return tcp_meet(c, &call, NULL, 0, err);
}

int tcp_open(struct zt_comm *c, const struct shm_id *id, const struct tcp_place *zero,
             struct zt_comm_door *door, int64_t timeout_ns, struct zt_error *err) {
    struct join j = {
        .c = c, .began = zt_clock_ns(), .n_spokes = c->world_rank ? 1 : c->world_size - 1};
    struct zt_comm *near = NULL;
    bool owned = false; /* by the near part */
    j.deadline = j.began + timeout_ns;
    j.w = world_new(c, id->secret, door);
    j.spoke = calloc((size_t)j.n_spokes, sizeof *j.spoke);
    for (int i = 0; j.spoke && i < j.n_spokes; i++) j.spoke[i].fd = -1;
    int rc = j.w && j.spoke ? 0 : zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    if (!rc) rc = c->world_rank == 0 ? gather_places(&j, err) : ask_for_places(&j, zero, err);
    if (!rc) rc = meet_near(&j, &near, err);
    if (!rc) {
        owned = true;
        rc = form(&j, near, err);
    }
    int rank = atomic_load(&c->shared->failed_rank);
    if (rc && c->state) {
        shm_record(j.w->near, rc, rank, err->msg);
        tcp_tell_failure(j.w);
    }
    if (rc && j.w && j.spoke) tell(&j, rc, rank, err->msg);
    if (j.spoke) close_wants(j.spoke, j.n_spokes);
    free(j.spoke);
    if (rc && c->state)
        tcp_comm_free(c);
    else if (rc && j.w && !owned)
        tcp_world_free(j.w);
    return rc;
}

/* ---- groups ---- */

static uint64_t tag_of_child(uint64_t tag, int64_t seq) {
    uint64_t z = tag * UINT64_C(0xD1342543DE82EF95) + (uint64_t)seq + 1;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static bool is_member(const struct zt_comm *c, int rank) {
    for (int i = 0; i < c->size; i++)
        if (c->ranks[i] == rank) return true;
    return false;
}

/* Shows this rank's list to all members of the parent; of_far receives the wishes from other hosts.
 */
static int compare_lists(struct zt_comm *parent, const struct zt_comm *child,
                         const struct shm_signature *call, struct shm_wish *of_far,
                         struct zt_error *err) {
    struct tcp_comm *t = parent->state;
    struct shm_rank *ranks = t->w->near->control->ranks;
    const struct shm_wish *wish[ZT_COMM_MAX_RANKS];
    shm_fill_wish(&ranks[t->w->rank].wish, child);
    int rc = tcp_meet(parent, call, &ranks[t->w->rank].wish, sizeof *of_far, err);
    for (int i = 0; i < parent->size && !rc; i++) {
        const int l = t->link_of[i];
        wish[i] = &ranks[parent->ranks[i]].wish;
        if (l < 0) continue;
        bool ok = t->link[l].head.payload == sizeof *of_far;
        memcpy(&of_far[l], t->link[l].stage, sizeof *of_far);
        wish[i] = &of_far[l];
        ok = ok && of_far[l].n >= 1 && of_far[l].n <= parent->size;
        for (int k = 0; ok && k < of_far[l].n; k++) ok = is_member(parent, of_far[l].list[k]);
        if (!ok)
            rc = shm_fail_first(t->near, ZT_EPROTO, parent->ranks[i], err,
                                "rank %d sent a list for a split of group \"%s\" that is none",
                                parent->ranks[i], parent->name);
    }
    return rc ? rc : shm_check_lists(t->near, parent, wish, err);
}

/* While connections are made: those that are missing are waited for. */
static int look_at_world(void *arg, struct zt_error *err) {
    struct zt_comm *near = arg;
    int none[1];
    return shm_look(near, none, 0, -1, err);
}

/* The parts of a group with members on other hosts. */
static int make_far_child(struct zt_comm *parent, struct zt_comm *child, uint64_t group, int *ranks,
                          int n, struct zt_error *err) {
    struct tcp_comm *t = parent->state;
    const struct shm_comm *m = t->near->state;
    struct zt_comm *near = zt_comm_new(parent->shared, parent->device, child->name, ranks, n,
                                       t->w->rank, t->w->world, err);
    if (!near) return ZT_ENOMEM;
    int rc = shm_enter_group(near, t->w->near, group, err);
    if (!rc) rc = tcp_comm_new(child, t->w, near, tag_of_child(t->tag, parent->last_seq), err);
    if (rc) {
        if (near->state) shm_comm_free(near);
        zt_comm_free(near);
        return rc;
    }
    return connect_links(child, false, m->deadline, look_at_world, t->near, err);
}

int tcp_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err) {
    struct tcp_comm *t = parent->state;
    struct tcp_world *w = t->w;
    struct zt_coll_record record = {.seq = parent->last_seq, .kind = ZT_COLL_SPLIT};
    const struct shm_signature call = {.seq = record.seq, .kind = (int32_t)ZT_COLL_SPLIT};
    struct shm_wish *of_far = calloc((size_t)t->n_links + 1, sizeof *of_far);
    int ranks[ZT_COMM_MAX_RANKS], n = near_ranks(w, child, ranks);
    struct shm_rank *all = w->near->control->ranks;
    int rc = of_far ? 0 : zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    shm_begin(t->near, &record, atomic_load(&parent->timeout_ns));
    if (!rc) rc = compare_lists(parent, child, &call, of_far, err);
    if (!rc && ranks[0] == w->rank) all[w->rank].group = shm_arena_take(w->near, n);
    if (!rc) rc = shm_barrier(t->near, err);
    if (rc) goto out;
    uint64_t group = all[ranks[0]].group;
    if (!group)
        rc = zt_fail(err, ZT_ENOMEM, "split of group \"%s\": no place for another group",
                     parent->name);
    else if (n == child->size)
        rc = shm_enter_group(child, w->near, group, err);
    else
        rc = make_far_child(parent, child, group, ranks, n, err);
    if (!rc) rc = tcp_meet(parent, &call, NULL, 0, err); /* all have theirs */
    if (!rc) shm_see_stages(n == child->size ? child : ((struct tcp_comm *)child->state)->near);
out:
    ((struct shm_comm *)t->near->state)->record = NULL;
    free(of_far);
    if (rc && child->state) child->impl->destroy(child);
    return rc;
}
