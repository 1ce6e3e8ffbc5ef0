/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime.h: the one gather/reduce runtime behind every mode. Owns parameter, gradient
 * and optimizer buffers of this rank, gives units to the model (zt_unit_source), reduces gradients
 * on the communication streams while backward goes on, steps the optimizer, gathers what was
 * updated. The stream/event graph with numbered cross-stream edges is drawn at the top of
 * runtime.c.
 *
 * Owner: the trainer; destroy frees all device memory it holds. After a failure abort the world
 * communicator first, so that destroy does not wait for a collective that cannot end. Thread rule:
 * the trainer thread. */
#ifndef ZT_ENGINE_RUNTIME_H
#define ZT_ENGINE_RUNTIME_H
#include "core/hash128.h"
#include "core/spec.h"
#include "engine/checkpoint/format.h"
#include "engine/comm/comm.h"
#include "engine/model/model.h"
#include "engine/shard/layout.h"
#include "engine/shard/policy.h"
#include "engine/trace/intervals.h"

struct zt_runtime;
struct zt_progress;

struct zt_runtime_env {
    const struct zt_spec *spec; /* resolved */
    const struct zt_model_table *table;
    struct zt_mesh mesh;
    int rank;
    struct zt_device *device;
    struct zt_alloc *alloc;
    struct zt_ledger *ledger;
    const struct zt_ops *ops;
    struct zt_ops_ctx *ctx;
    struct zt_comm *world, *dp_shard, *dp_replicate, *control; /* control: host-sized messages */
    struct zt_comm *tensor;  /* tensor_parallel_degree > 1: the ranks that share each layer */
    struct zt_comm *reshard; /* reshard_after_forward: m: this rank's m neighbours of dp_shard */
    struct zt_intervals *intervals; /* communication, stall and own compute intervals go here */
    struct zt_progress *progress;   /* touched when a collective ends; may be NULL */
};
/* Builds the unit layout of the table, which is that of this tensor rank; allocates parameters (and
 * m, v when eager), draws the weights by logical index (D10). Vocabulary padding stays zero. */
int zt_runtime_create(const struct zt_runtime_env *env, struct zt_runtime **out,
                      struct zt_error *err);
void zt_runtime_destroy(struct zt_runtime *r);

struct zt_unit_source zt_runtime_source(struct zt_runtime *r);

/* A window is one optimizer step (counted from 1): window_begin, then per micro-step
 * micro_begin(i, last) and the model, then update. eval_begin/eval_end wrap evaluation: forward
 * only, outside a window. */
int zt_runtime_window_begin(struct zt_runtime *r, int64_t step, struct zt_error *err);
int zt_runtime_micro_begin(struct zt_runtime *r, int64_t micro, bool last, struct zt_error *err);
int zt_runtime_eval_begin(struct zt_runtime *r, struct zt_error *err);
int zt_runtime_eval_end(struct zt_runtime *r, struct zt_error *err);
/* Issues the waits for this window's reductions on the compute stream, and sums over the tensor
 * group what of them is partial under sequence parallelism; update does it if it was not done.
 * Apart so that the trainer can read communication times before the update. */
int zt_runtime_wait_gradients(struct zt_runtime *r, struct zt_error *err);
/* An update: what the trainer asks for, then what came of it. */
struct zt_update {
    double lr;
    double loss_scale;   /* the gradients are this many times too large; 0 = not scaled */
    bool skip_nonfinite; /* gradients not finite: skip the update; else it is ZT_ENAN */
    bool skip;           /* skip it whatever the gradients are: the loss was not finite */
    /* out */
    double grad_norm;    /* over all ranks, unscaled, before clipping; NAN when not finite */
    double clip_coefficient; /* NAN when nothing was stepped */
    bool skipped;
    int64_t nonfinite_gradients; /* tensors with one, in this rank's own part */
};
/* Waits for the reductions, gets the exact gradient norm over all ranks, clips, steps AdamW,
 * gathers (per policy), drops the gradients. Every rank decides alike whether to step; a skipped
 * update leaves parameters, moments and the optimizer's step count as they were. ZT_ENAN: the same,
 * and names the first tensor and the rank that has it. */
int zt_runtime_update(struct zt_runtime *r, struct zt_update *u, struct zt_error *err);
/* Updates that were carried out: AdamW's step count and the schedule's position. */
int64_t zt_runtime_updates(const struct zt_runtime *r);

/* Takes the collectives finished since the last call out of the event log: their intervals go to
 * env.intervals, their bytes to the counter. Call it when none is in flight. */
int zt_runtime_collect(struct zt_runtime *r, struct zt_error *err);
/* The model queued a collective of its own: the log is read before it comes round. */
int zt_runtime_queued(struct zt_runtime *r, struct zt_error *err);
int64_t
zt_runtime_sent_bytes(const struct zt_runtime *r); /* since window_begin (D13), control apart */

/* Parameter hash (D12): sum mod 2^128 over this rank's own logical elements; the caller adds ranks.
 * What every tensor rank holds whole is in the sum of tensor rank 0 alone. per_tensor (may be
 * NULL): n_tensors entries, each of all own elements whatever the rank. */
int zt_runtime_parameter_hash(struct zt_runtime *r, struct zt_hash128 *own,
                              struct zt_hash128 *per_tensor, struct zt_error *err);
/* The same over what is stored whole though this rank owns a part of it (zero1, zero2, persistent
 * parameters): the stored values, by tensor; of other tensors zero. Equal on all data-parallel ranks. */
int zt_runtime_copy_hash(struct zt_runtime *r, struct zt_hash128 *per_tensor,
                         struct zt_error *err);

/* State hash (D12): the same of both moments, M under ZT_HASH_M | number and V under ZT_HASH_V | number,
 * added up. Zero where there are none yet (state_init lazy). */
int zt_runtime_state_hash(struct zt_runtime *r, struct zt_hash128 *own,
                          struct zt_hash128 *per_tensor, struct zt_error *err);

/* ---- what lasts, told by logical tensors: for saving and loading, between windows ---- */

/* A stretch of one tensor in this rank's lasting buffers: elements [0, count) of the span of the whole,
 * uncut tensor. at[k]: the first of them in the buffer of that kind (device memory), NULL where there is
 * none: no master in the recipe, no moments of what is frozen or, lazily, before the first update.
 * Vocabulary padding is in none. */
struct zt_state_piece {
    int tensor; /* of the table */
    struct zt_span span;
    int64_t count;
    void *at[ZT_SAVED_COUNT];
    enum zt_dtype type[ZT_SAVED_COUNT];
    int group;                   /* of the layout; with `walk` where to go on: all zero before the */
    struct zt_flat_piece walk;   /* first call */
};
/* The next piece that this rank owns, in order of the layout; false: no more. What several ranks own
 * alike (ddp, replicas, what a tensor group holds whole) each of them is told. */
bool zt_runtime_owned_next(const struct zt_runtime *r, struct zt_state_piece *p);
/* The next piece of all parameters that this rank stores, the kind PARAMETER alone: zero1 and zero2
 * store them whole and own a shard. */
bool zt_runtime_stored_next(const struct zt_runtime *r, struct zt_state_piece *p);
const struct zt_unit_layout *zt_runtime_layout(const struct zt_runtime *r);
/* First of the group's own elements in the buffer of that kind; NULL as above. */
void *zt_runtime_owned(const struct zt_runtime *r, int group, enum zt_saved kind);
/* For what is loaded: the updates that its moments and its step count are of. From 1 on the moments are
 * there, also where state_init is lazy. */
int zt_runtime_set_updates(struct zt_runtime *r, int64_t updates, struct zt_error *err);

/* Requested bytes (D4): P and O as they are now, G at its largest in the current (or last) window.
 */
struct zt_state_bytes zt_runtime_requested(const struct zt_runtime *r);
/* Fills the rows of *d that the runtime knows: what it allocated, what its kernels and collectives
 * were called with. Call it after an update and zt_runtime_collect. */
struct zt_dtypes_report;
void zt_runtime_dtypes(const struct zt_runtime *r, struct zt_dtypes_report *d);
/* For tests: logical tensor of this rank's copy (ddp: whole), NULL when not held. Gradients exist
 * from the unit's backward to the update. */
const float *zt_runtime_parameter(const struct zt_runtime *r, int tensor);
const float *zt_runtime_gradient(const struct zt_runtime *r, int tensor);

#endif
