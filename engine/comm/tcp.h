/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/tcp.h: groups whose ranks are on several hosts. Private; the seam between
 *
 *   tcp_hello.c  the door (a listening socket), and connections whose two ends have proved to each
 *                other that they know the world's secret
 *   tcp_join.c   how the ranks of all hosts meet, and how a group is split
 *   tcp_watch.c  the watch connections: who died, what failed, who waits for whom
 *   tcp.c        the collectives
 *
 * Two ranks of one host have a shared mapping (shm.h). Two ranks of different hosts have one watch
 * connection for as long as the world lives, and one data connection in every group that both are
 * in, so that streams never share one. All sockets are non-blocking.
 *
 * Ownership: the far world belongs to this host's shm_world and goes with it. Thread rule: joining,
 * splitting and destroying on the trainer thread; the data connections of a group belong to the
 * stream that runs its collective; watch connections are shared under a lock. */
#ifndef ZT_ENGINE_COMM_TCP_H
#define ZT_ENGINE_COMM_TCP_H
#include <poll.h>
#include <pthread.h>
#include "engine/comm/shm.h"

#define TCP_SLICE_MS 50
enum { TCP_HOST = 128, TCP_ADDRESS = 64, TCP_NONCE = 16, TCP_MAC = 32, TCP_TEXT = 1024 };

/* ---- tcp_hello.c ---- */

struct zt_comm_door {
    int fd, port, socket_bytes;
    char host[TCP_HOST], address[TCP_ADDRESS];
};

/* Where a rank is: a row of the table that rank 0 hands out. */
struct tcp_place {
    char host[TCP_HOST], address[TCP_ADDRESS];
    int32_t port, pid;
};

enum tcp_purpose { TCP_JOIN = 1, TCP_WATCH, TCP_DATA };
/* What the connecting end says of the connection; proved together with the secret. */
struct tcp_who {
    uint32_t purpose;
    int32_t world, from, to; /* ranks; `from` connects */
    uint64_t tag;            /* of the group, for TCP_DATA */
    char build[16];
    struct tcp_place place;  /* where `from` is */
};

/* One connection that a set is to get. */
struct tcp_want {
    struct tcp_who who;         /* one end is this rank; the other's place is filled in when it comes */
    const struct tcp_place *to; /* where to connect; NULL: the other end comes to our door */
    int fd;                     /* the outcome; the caller's */
    uint8_t key[TCP_MAC];       /* known to both ends of this connection only */
    int64_t left_ns;            /* how long the accepting end waits for the rest of its set */
};
/* Makes all of them, accepting and connecting at once. `look` is asked now and then whether to go on.
 * Strangers are dropped without a word. On failure those that came about are there all the same; the
 * others have fd = -1. */
struct tcp_set {
    const struct zt_comm_door *door;
    const uint8_t *secret; /* 32 bytes */
    struct tcp_want *want;
    int n;
    int64_t deadline;
    int (*look)(void *arg, struct zt_error *err); /* may be NULL */
    void *arg;
};
int tcp_connect_set(const struct tcp_set *set, struct zt_error *err);
/* HMAC-SHA256 over a label and the digests of two pieces, which may be empty. */
void tcp_mac(const uint8_t *key, const char *label, const void *a, size_t an, const void *b, size_t bn,
             uint8_t mac[TCP_MAC]);
/* All of it or -errno; for short messages, with a deadline. */
int tcp_send_all(int fd, const void *p, size_t n, int64_t deadline);
int tcp_recv_all(int fd, void *p, size_t n, int64_t deadline);

/* ---- tcp_join.c ---- */

struct tcp_world;
/* c is the world; fills impl and state. The door is the world's from now on, also when this fails. */
int tcp_open(struct zt_comm *c, const struct shm_id *id, const struct tcp_place *zero,
             struct zt_comm_door *door, int64_t timeout_ns, struct zt_error *err);
int tcp_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err);
void tcp_world_free(struct tcp_world *w);

/* ---- tcp_watch.c ---- */

enum { TCP_HERE = 0, TCP_LEFT, TCP_GONE, TCP_SILENT };
struct tcp_note_head { uint32_t kind; int32_t code, rank; uint32_t length; };
struct tcp_peer {
    int watch;                  /* -1: on this host, or closed */
    _Atomic int state;
    _Atomic uint32_t waits_for; /* 1 + rank, 0 = none, as it said last */
    bool mute;                  /* its buffer was full in the middle of a note: nothing more is sent */
    size_t have;
    uint8_t in[sizeof(struct tcp_note_head) + TCP_TEXT];
};
struct tcp_world {
    struct shm_world *near;
    int world, rank;
    struct zt_comm_door *door;
    uint8_t secret[32];
    struct tcp_place *place; /* of every rank */
    struct tcp_peer *peer;   /* of every rank */
    pthread_mutex_t lock;    /* of peer, but for what is atomic */
    bool told;
};
void tcp_watch_socket(int fd); /* the kernel asks whether its other end lives */
bool tcp_is_near(const struct tcp_world *w, int rank);
/* Reads what the others say; a failure that came is recorded and returned. */
int tcp_look(struct tcp_world *w, struct zt_comm *c, struct zt_error *err);
bool tcp_left(struct tcp_world *w, int rank);
uint32_t tcp_waits_for(struct tcp_world *w, int rank);
void tcp_say_waiting(struct tcp_world *w, int rank);
/* Tells the ranks of other hosts the recorded failure, once. */
void tcp_tell_failure(struct tcp_world *w);
void tcp_say_leaving(struct tcp_world *w);

/* ---- tcp.c ---- */

/* What a rank is about to do; payloads of up to SHM_SMALL bytes follow it at once. */
struct tcp_head {
    struct shm_signature signature;
    uint64_t payload;
};
/* One data connection and what is under way on it. */
struct tcp_link {
    int fd, member; /* in the group */
    const unsigned char *tx;
    unsigned char *rx;
    size_t tx_left, rx_left;
    unsigned char *stage;
    struct tcp_head head;
};
struct tcp_comm {
    struct tcp_world *w;
    struct zt_comm *near; /* the members on this host, this rank among them */
    uint64_t tag;         /* of the group; the same on all members */
    int n_links;
    struct tcp_link *link;    /* the members on other hosts, ascending */
    int *link_of, *near_of;   /* by member; -1 */
    size_t stage_bytes;       /* of one link */
    unsigned char *stages, *message;
    struct pollfd *fds;
    int64_t looked;           /* at the others, last */
};
extern const struct zt_comm_impl zt_comm_tcp;
/* State for c, whose links have no sockets yet. near is c's from now on, unless this fails. */
int tcp_comm_new(struct zt_comm *c, struct tcp_world *w, struct zt_comm *near, uint64_t tag,
                 struct zt_error *err);
void tcp_comm_free(struct zt_comm *c);
/* Shows all members what this rank is about to do, with a payload, and compares. Afterwards the stage
 * of every link holds its member's payload. */
int tcp_meet(struct zt_comm *c, const struct shm_signature *own, const void *payload, size_t bytes,
             struct zt_error *err);

#endif
