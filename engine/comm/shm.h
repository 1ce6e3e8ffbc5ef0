/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/shm.h: what lies in the shared control memory of the processes of one host, and the
 * seam between shm_join.c (how they meet), shm.c (barriers and collectives) and the tcp files (worlds
 * of several hosts, of which each host's part is one of these). Private. Ranks are global everywhere.
 *
 * Nothing here has a name in a file system: the control memory and every rank's device memory are
 * memfds handed over a socket, so they vanish with the last process, however it dies.
 *
 *   control memory:  struct shm_control | struct shm_rank[world] | arena of groups | staging areas
 *
 * A rank is alive while it holds the write end of its life pipe: all others hold the read end, which
 * hangs up when the process is gone. */
#ifndef ZT_ENGINE_COMM_SHM_H
#define ZT_ENGINE_COMM_SHM_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/comm/comm_impl.h"

#define SHM_MAGIC UINT64_C(0x315a544d4d4f4353)
#define SHM_SPLITS 64                       /* groups that one rank can be in */
#define SHM_HALF ((size_t)128 << 10)        /* a staging area has two halves, used in turn */
#define SHM_STAGE (2 * SHM_HALF)
#define SHM_SMALL ((size_t)4096)            /* up to this a collective is staged in one piece */
#define SHM_STAGED UINT64_MAX               /* buffer outside device memory */

enum shm_state { SHM_ABSENT = 0, SHM_IN, SHM_LEFT };

/* What a rank is about to do; compared before data is touched. */
struct shm_signature {
    int64_t seq, count;
    int32_t kind, op, dtype, root;
    uint64_t send, recv; /* offsets in the rank's device memory, or SHM_STAGED; not compared */
};

struct shm_member {
    _Alignas(64) _Atomic uint64_t arrived; /* barriers of the group this rank has reached */
    uint64_t stage;                        /* offset of its staging area in the control memory */
    int32_t trouble;                       /* split: what went wrong on this rank */
    struct shm_signature signature[2];     /* by parity of seq */
};

struct shm_group {
    _Alignas(64) _Atomic uint32_t count; /* arrivals at the current barrier */
    _Alignas(64) _Atomic uint32_t phase; /* barriers done; the futex */
    _Atomic uint32_t sleepers;
    int32_t n;
    struct shm_member member[];
};

/* What a rank wants of a split. */
struct shm_wish {
    char name[16];
    int32_t n;
    uint16_t list[ZT_COMM_MAX_RANKS];
};

struct shm_rank {
    _Alignas(64) _Atomic uint32_t state; /* enum shm_state */
    _Atomic uint32_t waits_for;          /* 1 + the rank it has been waiting for, 0 = none */
    int32_t pid;
    struct shm_wish wish;
    uint64_t group; /* of a split: the answer of the new group's first rank */
};

struct shm_control {
    uint64_t magic;
    int32_t world;
    _Atomic uint32_t failed; /* 0 no, 1 being written, 2 the next three are valid */
    int32_t code, rank;      /* of the failure: the rank to blame, -1 = none */
    char text[1024];
    _Atomic uint64_t next;   /* free space of the arena */
    uint64_t arena_end;
    struct shm_rank ranks[];
};

/* Per process. */
struct shm_world {
    int refs; /* communicators; trainer thread */
    int world, rank, spins;
    int here; /* ranks on this host; fewer than world: the others are far */
    struct shm_control *control;
    size_t control_bytes;
    int control_fd;
    unsigned char **memory; /* of every rank; [rank] is our own device memory */
    size_t *memory_bytes;
    int *life;              /* read ends, -1 for ourselves */
    int life_write;
    int n_groups;           /* staging areas in use */
    struct tcp_world *far;  /* the ranks of other hosts; NULL = there are none */
};

/* Per communicator. */
struct shm_comm {
    struct shm_world *w;
    struct shm_group *group;
    unsigned char **stage;  /* of every member */
    uint64_t barriers;      /* reached by this rank */
    uint32_t phase;         /* of the group when it reached the last one */
    uint32_t stage_turn;    /* uses of the staging areas; the same on all members */
    int64_t deadline, began;
    const struct zt_coll_record *record; /* of the collective that runs, for messages; may be NULL */
};

/* A collective as the front hands it over; count is of the call, not of the full buffer. */
struct shm_call {
    enum zt_coll kind;
    enum zt_redop op;
    enum zt_dtype dtype;
    const void *send;
    void *recv;
    int64_t count;
    int root;    /* in the group */
    size_t size; /* of an element */
};

/* Where the ranks of a host meet, and what strangers do not know. */
struct shm_id { uint8_t name[16], secret[32]; };

extern const struct zt_comm_impl zt_comm_shm;
/* shm_join.c: c->ranks are the ranks on this host (all of the world or not), c->rank is this one. Fills
 * impl and state. */
struct shm_watch { int (*look)(void *arg, struct zt_error *err); void *arg; }; /* whether to go on; NULL = yes */
int shm_open_world(struct zt_comm *c, const struct shm_id *id, int64_t timeout_ns,
                   const struct shm_watch *watch, struct zt_error *err);

size_t shm_arena_offset(int world);
size_t shm_stage_offset(int world);
size_t shm_control_bytes(int world);
size_t shm_group_bytes(int n);
/* Takes a staging area for c, which is in `group`; every member does, then meets the others. */
int shm_enter_group(struct zt_comm *c, struct shm_world *w, uint64_t group, struct zt_error *err);
/* Fills the addresses of all members' staging areas; after a barrier behind shm_enter_group. */
void shm_see_stages(struct zt_comm *c);
/* A barrier, whole or in two halves: `arrive` tells the others, `await` waits for them. */
int shm_barrier(struct zt_comm *c, struct zt_error *err);
void shm_arrive(struct zt_comm *c);
int shm_await(struct zt_comm *c, struct zt_error *err);
void shm_begin(struct zt_comm *c, const struct zt_coll_record *record, int64_t timeout_ns);

/* Failures. The first one of the world is recorded for all ranks of the host. */
bool shm_failed(const struct shm_world *w);
void shm_record(struct shm_world *w, int code, int rank, const char *text);
int shm_fail_first(struct zt_comm *c, int code, int rank, struct zt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int shm_fail_recorded(struct zt_comm *c, struct zt_error *err);
/* "all_reduce #17 of group "dp" (unit h.3)" */
const char *shm_describe(const struct zt_comm *c, char *buf, size_t n);
/* Between two slices of a wait for the n ranks in late (ascending): failures, deaths, the deadline; one that has left
 * without having come. ended: a rank of another host whose connection has ended, -1: none. */
int shm_look(struct zt_comm *c, int *late, int n, int ended, struct zt_error *err);
/* Members that have not reached this rank's last barrier, into late; returns how many. */
int shm_late(const struct zt_comm *c, int *late);
void shm_wait_over(struct zt_comm *c);

/* Pieces of a collective. signature[i] and own name the calls of all members; same verdict on all. */
int shm_compare(struct zt_comm *c, const int *ranks, const struct shm_signature *const *signature, int n,
                struct zt_error *err);
struct shm_signature *shm_signature(struct zt_comm *c, int member, int64_t seq);
uint64_t shm_offset(const struct shm_world *w, const void *p, size_t bytes);
unsigned char *shm_peer(struct zt_comm *c, int member, uint64_t offset, size_t bytes);
bool shm_in_place(struct zt_comm *c, int64_t seq); /* all members' buffers are in device memory */
int shm_copy(struct zt_comm *c, void *dst, const void *src, size_t bytes, struct zt_error *err);
int64_t shm_sent_bytes(const struct zt_comm *c, const struct shm_call *k); /* D13 */
uint64_t shm_arena_take(struct shm_world *w, int n); /* space for a group; 0 = used up */
void shm_fill_wish(struct shm_wish *wish, const struct zt_comm *child);
/* c: of this host's members of the parent. */
int shm_check_lists(struct zt_comm *c, const struct zt_comm *parent, const struct shm_wish *const *wish,
                    struct zt_error *err);
void shm_world_free(struct shm_world *w);
void shm_comm_free(struct zt_comm *c);

#endif
