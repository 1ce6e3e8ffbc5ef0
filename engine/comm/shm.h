/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/shm.h: what lies in the shared control memory of the processes of one host, and the
 * seam between shm_join.c (how they meet) and shm.c (barriers and collectives). Private.
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

struct shm_rank {
    _Alignas(64) _Atomic uint32_t state; /* enum shm_state */
    int32_t pid;
    /* a split's wish: name and list; group is the leader's answer */
    char name[16];
    int32_t n;
    uint16_t list[ZT_COMM_MAX_RANKS];
    uint64_t group;
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
    struct shm_control *control;
    size_t control_bytes;
    int control_fd;
    unsigned char **memory; /* of every rank; [rank] is our own device memory */
    size_t *memory_bytes;
    int *life;              /* read ends, -1 for ourselves */
    int life_write;
    int n_groups;           /* staging areas in use */
};

/* Per communicator. */
struct shm_comm {
    struct shm_world *w;
    struct shm_group *group;
    unsigned char **stage;  /* of every member */
    uint64_t barriers;      /* reached by this rank */
    uint32_t stage_turn;    /* uses of the staging areas; the same on all members */
    int64_t deadline, began;
    const struct zt_coll_record *record; /* of the collective that runs, for messages; may be NULL */
};

extern const struct zt_comm_impl zt_comm_shm;

size_t shm_arena_offset(int world);
size_t shm_stage_offset(int world);
size_t shm_control_bytes(int world);
size_t shm_group_bytes(int n);
/* Takes a staging area for c, which is in `group`; every member does, then meets the others. */
int shm_enter_group(struct zt_comm *c, struct shm_world *w, uint64_t group, struct zt_error *err);
/* Fills the addresses of all members' staging areas; after a barrier behind shm_enter_group. */
void shm_see_stages(struct zt_comm *c);
int shm_barrier(struct zt_comm *c, struct zt_error *err);
void shm_begin(struct zt_comm *c, const struct zt_coll_record *record, int64_t timeout_ns);
void shm_world_free(struct shm_world *w);
void shm_comm_free(struct zt_comm *c);

#endif
