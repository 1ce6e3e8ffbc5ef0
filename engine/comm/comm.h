/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/comm.h: groups of ranks and their collectives. Implementations: self (one rank), shm
 * (processes of one host), tcp (processes of several hosts: shared memory inside a host, connections
 * across); nccl and sim have their place in the same table.
 *
 * A collective is queued on a stream and runs there in order; buffers belong to the caller and must
 * stay until an event recorded after it was waited for. All ranks of a group call the same
 * collectives in the same order with the same op, dtype and count; a signature is verified before
 * data are touched, and a mismatch is ZT_EMISMATCH on every rank, naming both ranks and both calls.
 * A dead peer is ZT_EPEER within 1 s on every other rank. Sums of fp32 are taken in group-rank order
 * 0..n-1, one rounding per add, independent of chunking: same bits for any path.
 *
 * After a failure every later collective of the world communicator and its groups fails too. Work
 * queued on a stream must be waited for (stream_sync) before its communicator is destroyed. A group
 * may be used from several streams: its collectives run in the order of the calls.
 *
 * Roots: give the global or the group rank; both is ZT_EINVAL. Thread rule: the trainer thread calls,
 * the stream's thread works. Every collective is appended to the event log (see zt_comm_log). */
#ifndef ZT_ENGINE_COMM_H
#define ZT_ENGINE_COMM_H
#include "core/dtype.h"
#include "core/mesh.h"
#include "engine/device/device.h"

struct zt_comm;
struct zt_comm_id { uint8_t bytes[128]; }; /* opaque; a secret; minted by rank 0 of a generation */

enum zt_coll { ZT_COLL_BROADCAST = 0, ZT_COLL_ALL_REDUCE, ZT_COLL_ALL_GATHER, ZT_COLL_REDUCE_SCATTER,
               ZT_COLL_BARRIER, ZT_COLL_COUNT };
/* Sums of bf16 and fp16 are taken in fp32 in rank order and rounded once, at the end. */
enum zt_redop { ZT_SUM = 0, ZT_MAX, ZT_MIN, ZT_AVG }; /* AVG = premultiply by (float)(1.0/K), then SUM */
const char *zt_coll_name(enum zt_coll c); /* "all_reduce", ... */

/* Why a collective happens now; kept in the log and shown by later commands. Static strings. */
struct zt_coll_why { const char *unit; const char *reason; int64_t step; bool control; };

struct zt_coll_record {
    int64_t id;                  /* over all groups of the world communicator, from 1 */
    int64_t seq;                 /* per group, from 1; a split takes a number too */
    char group[16];              /* "world", "tensor", "dp_shard", "dp_replicate", "dp_reshard", "dp",
                                    "control" */
    enum zt_coll kind;
    enum zt_dtype dtype;
    int64_t count, bytes;        /* elements and bytes of the full (largest) buffer */
    int64_t sent_bytes;          /* D13 */
    char unit[32], reason[48];
    int64_t step;
    bool control;
    int64_t queued_ns, start_ns, end_ns; /* device clock; end 0 = not finished */
};

/* For a world of several hosts every rank first opens a door: a socket that listens on its own address.
 * host: ranks of equal names share memory. address: numeric, of this host, loopback only (as for zcoord)
 * until connections are encrypted. socket_bytes: size of the sockets' buffers, 0 = the kernel's choice. */
struct zt_comm_site { const char *host, *address; int socket_bytes; };
struct zt_comm_door;
int zt_comm_door_open(const struct zt_comm_site *site, struct zt_comm_door **out, struct zt_error *err);
void zt_comm_door_close(struct zt_comm_door *door); /* NULL is fine */
bool zt_comm_address_allowed(const char *address);
/* As zt_comm_mint and zt_comm_init, which are these without a door. init takes the door over, also when
 * it fails; either all ranks have one or none. */
int zt_comm_mint_at(const struct zt_comm_door *door, struct zt_comm_id *id, struct zt_error *err);
int zt_comm_init_at(struct zt_comm_door *door, const struct zt_comm_id *id, int rank, int world,
                    struct zt_device *d, double timeout_s, struct zt_comm **out, struct zt_error *err);

/* A new id for a group on this host (rank 0 calls it, the others get the bytes). */
int zt_comm_mint(struct zt_comm_id *id, struct zt_error *err);
/* World communicator. Waits for all ranks up to timeout_s. world 1 gives `self` whatever the id. */
int zt_comm_init(const struct zt_comm_id *id, int rank, int world, struct zt_device *d,
                 double timeout_s, struct zt_comm **out, struct zt_error *err);
/* Sub-group of the ranks listed (global ranks, ascending). Called by all ranks of the parent, in the
 * same order, each with its own list (lists partition the parent). name as in zt_coll_record. */
int zt_comm_split(struct zt_comm *parent, const char *name, const int *ranks, int n,
                  struct zt_comm **out, struct zt_error *err);
void zt_comm_destroy(struct zt_comm *c);
/* Makes every pending and later collective of the whole world fail on all ranks. Any thread. */
void zt_comm_abort(struct zt_comm *c);

int zt_comm_rank(const struct zt_comm *c);  /* in the group */
int zt_comm_size(const struct zt_comm *c);
/* The groups of the world communicator that this rank is in, the world itself first, then in the order
 * of their making; ranks are global and ascending. Returns how many there are, fills at most max. What
 * it points to lives as long as the groups. The trainer thread. */
struct zt_comm_group { const char *name; const int *ranks; int size; };
int zt_comm_groups(const struct zt_comm *world, struct zt_comm_group *out, int max);
/* Deadline of a collective (default 300 s; a group made by split starts with its parent's);
 * returns the old one. */
double zt_comm_set_timeout(struct zt_comm *c, double seconds);
/* Global rank of the peer that died (ZT_EPEER), gave up (ZT_ECOMM) or did not arrive (ZT_ETIMEOUT; the
 * lowest), -1 when nothing failed or no rank is to blame. Any thread. */
int zt_comm_failed_rank(const struct zt_comm *c);
/* What this rank finished in this group since it was made; control traffic (why->control) apart. */
struct zt_comm_totals { int64_t collectives, sent_bytes, control_collectives, control_sent_bytes; };
struct zt_comm_totals zt_comm_totals(const struct zt_comm *c); /* any thread */

#define ZT_ROOT_NONE (-1)
int zt_broadcast(struct zt_comm *c, void *buf, int64_t count, enum zt_dtype t, int global_root,
                 int group_root, struct zt_stream *s, const struct zt_coll_why *why,
                 struct zt_error *err);
/* in place */
int zt_all_reduce(struct zt_comm *c, void *buf, int64_t count, enum zt_dtype t, enum zt_redop op,
                  struct zt_stream *s, const struct zt_coll_why *why, struct zt_error *err);
/* recv[size*count] from send[count]; send may be recv + rank*count (in place) */
int zt_all_gather(struct zt_comm *c, const void *send, void *recv, int64_t count, enum zt_dtype t,
                  struct zt_stream *s, const struct zt_coll_why *why, struct zt_error *err);
/* recv[count] = reduced slice `rank` of send[size*count]; recv may be send + rank*count */
int zt_reduce_scatter(struct zt_comm *c, const void *send, void *recv, int64_t count,
                      enum zt_dtype t, enum zt_redop op, struct zt_stream *s,
                      const struct zt_coll_why *why, struct zt_error *err);
int zt_barrier(struct zt_comm *c, struct zt_stream *s, const struct zt_coll_why *why,
               struct zt_error *err);

/* The event log: a ring of the newest `trace_buf_size` (default 4096) records over all groups of the
 * world communicator. Copies up to max records with id > after, oldest first; returns how many. The
 * trainer thread. */
int64_t zt_comm_log(struct zt_comm *world, int64_t after, struct zt_coll_record *out, int64_t max);
int64_t zt_comm_log_newest(const struct zt_comm *world); /* id of the newest record, 0 = none */
/* Puts the ring into memory that outlives this process (supervisor's mapping); before any collective.
 * bytes >= zt_comm_log_bytes(entries). */
size_t zt_comm_log_bytes(int64_t entries);
int zt_comm_log_place(struct zt_comm *world, void *memory, size_t bytes);
/* While a rank waits for another in a collective longer than a moment, *held_by is 1 + the global rank that
 * has not arrived, else 0; for a watcher in another process. NULL: nobody watches. Before any collective. */
void zt_comm_watch(struct zt_comm *world, _Atomic int32_t *held_by);
/* Reads a placed ring, also in another process and after the writer's death; < 0 = not a ring. */
int64_t zt_comm_log_read(const void *memory, size_t bytes, int64_t after,
                         struct zt_coll_record *out, int64_t max);

/* For tests and benchmarks: a link that costs something. Each collective of the world and its groups
 * that is not control traffic first waits a random time, drawn from (seed, global rank, number of the
 * collective), and then, in a group of more than one, takes alpha_ns + sent_bytes * ns_per_byte longer:
 * both inside its logged interval, both asleep. Changes no value. NULL: back to normal. The trainer thread;
 * holds for what is queued later. */
struct zt_comm_inject { uint64_t seed; int64_t max_delay_ns; int64_t alpha_ns; double ns_per_byte; };
void zt_comm_inject(struct zt_comm *world, const struct zt_comm_inject *o);

/* The table behind it all, for implementations. */
struct zt_comm_impl {
    const char *name; /* "self", "shm", "tcp", "nccl", "sim" */
    int (*collective)(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                      const void *send, void *recv, int64_t count, int group_root,
                      struct zt_coll_record *record, struct zt_error *err); /* on the stream */
    int (*split)(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err);
    void (*destroy)(struct zt_comm *c);
    void (*abort)(struct zt_comm *c);
};

#endif
