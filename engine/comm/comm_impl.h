/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/comm_impl.h: what the front (comm.c) and the implementations (self.c, shm.c) share.
 * Private to this folder. An implementation fills impl and state of a struct zt_comm and answers the
 * calls of struct zt_comm_impl; everything else is the front's.
 *
 * Thread rule: the front's fields are written by the trainer thread; those marked atomic also by
 * the threads of streams. */
#ifndef ZT_ENGINE_COMM_IMPL_H
#define ZT_ENGINE_COMM_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include "engine/comm/comm.h"

#define ZT_COMM_MAX_RANKS ZT_RANKS_MAX
#define ZT_COMM_TIMEOUT_NS INT64_C(300000000000)
#define ZT_COLL_SPLIT ZT_COLL_COUNT /* a split takes its turn like a collective */

struct zt_comm_op;
struct zt_log_ring;

/* One per world communicator, shared by its groups; freed with the last of them. */
struct zt_comm_shared {
    _Atomic int refs;
    struct zt_log_ring *ring;
    bool ring_is_ours;
    struct zt_comm *groups;      /* in the order of their making; trainer thread */
    _Atomic int32_t *held_by;    /* zt_comm_watch; NULL = nobody watches */
    pthread_mutex_t lock;        /* guards the list of idle operations and `why` */
    struct zt_comm_op *idle, *all;
    _Atomic int broken;          /* code of the first failure; 0 = healthy */
    _Atomic int failed_rank;
    struct zt_error why;
    struct zt_comm_inject inject; /* all zero = none; the trainer thread */
};

struct zt_comm {
    const struct zt_comm_impl *impl;
    void *state;                 /* the implementation's */
    struct zt_comm_shared *shared;
    struct zt_comm *next_group;
    struct zt_device *device;
    char name[16];
    int rank, size;              /* in the group */
    int world_rank, world_size;
    int *ranks;                  /* global rank of every member, ascending */
    _Atomic int64_t timeout_ns;
    int64_t last_seq;
    _Atomic uint32_t turn;       /* low bits of the sequence number that may run; a futex */
    _Atomic int64_t totals[4];   /* in the order of struct zt_comm_totals */
};

/* comm.c, for implementations */
struct zt_comm *zt_comm_new(struct zt_comm_shared *shared, struct zt_device *d, const char *name,
                            const int *ranks, int size, int world_rank, int world_size,
                            struct zt_error *err); /* shared NULL = a new world; no impl yet */
void zt_comm_free(struct zt_comm *c);
/* Bytes read from or written to peers by a call of count elements (D13), the same for every path. */
int64_t zt_comm_sent_bytes(const struct zt_comm *c, enum zt_coll kind, int64_t count, size_t size, int root);
int64_t zt_clock_ns(void);
void zt_cpu_relax(void);

/* self.c */
extern const struct zt_comm_impl zt_comm_self;
/* The collective of a group of one: copies, and avg's multiplication by 1. */
int zt_self_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                       const void *send, void *recv, int64_t count, int group_root,
                       struct zt_coll_record *record, struct zt_error *err);

/* sim.c */
extern const struct zt_comm_impl zt_comm_sim;

/* log.c */
#define ZT_LOG_ENTRIES 4096
void zt_log_format(void *memory, size_t bytes); /* makes an empty ring */
/* Enters a record (id is set) and returns its id. Trainer thread. */
int64_t zt_log_append(struct zt_log_ring *ring, struct zt_coll_record *r);
/* Any thread; ignored when the ring has moved on. */
void zt_log_start(struct zt_log_ring *ring, int64_t id, int64_t start_ns);
void zt_log_end(struct zt_log_ring *ring, int64_t id, int64_t end_ns, int64_t sent_bytes);
int64_t zt_log_newest(const struct zt_log_ring *ring);

#endif
