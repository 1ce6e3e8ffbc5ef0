/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan.h: what a run will need and how long its step takes, before anything runs. Not a
 * formula beside the trainer: the trainer itself (engine/train.c) on a simulated device, so that
 *   exact      every byte that goes through the allocator: peaks, phases, composition, per rank
 *   estimated  every time (core/cost.h)
 *   stated     what lies outside the allocator (zt_cost_device.outside_bytes)
 *
 * One rank stands for all that are alike: ranks differ only in how many rows their last evaluation
 * batch has, so there are one or two shapes, however many ranks.
 *
 * What is simulated (D6): metrics.warmup_steps + 2 steps as the run would do them; where evaluations
 * come later, two of them with a step after each; saves as they fall, and that of the last step. Windows
 * that the run would not have do not occur. `load` is that of a generation which goes on from what a run
 * that saves has saved, simulated in a run of its own, of one step; or of one that begins from other weights.
 * A full window of micro-steps is assumed for every step. Where a run has very many of what is alike,
 * some stand for all: 16 steps of warm-up, 16 micro-steps of a step (its times and bytes sent are then
 * those of 16 and so many more of the last), 4 batches of an evaluation that are whole on every rank.
 *
 * The caller owns a plan until zt_plan_free. Pure but for malloc; no file, no thread; any thread. */
#ifndef ZT_ENGINE_PLAN_H
#define ZT_ENGINE_PLAN_H
#include "core/cost.h"
#include "core/spec.h"
#include "engine/comm/comm.h"
#include "engine/device/alloc.h"
#include "engine/report.h"

/* Micro-steps of a step that are simulated, at most. */
#define ZT_PLAN_MICROS_MAX 16

/* Rows of `zctl memory` (D6). */
enum zt_window_name {
    ZT_WINDOW_INIT = 0, ZT_WINDOW_FIRST_STEP, ZT_WINDOW_STEADY, ZT_WINDOW_EVAL, ZT_WINDOW_SAVE, ZT_WINDOW_LOAD,
    ZT_WINDOW_COUNT
};
const char *zt_window_name(enum zt_window_name w); /* "init", "first_step", ... */

struct zt_plan_config {
    const struct zt_spec *spec;          /* resolved */
    const struct zt_cost_device *device;
    int64_t capacity_bytes;              /* of the allocator, per rank; 0: device->memory_bytes - outside_bytes */
    int ranks_per_host;                  /* 0: device->ranks_per_host; of cpu: all */
    int64_t valid_samples;               /* of the validation set; -1: not known, its batches are full */
    int64_t total_steps;                 /* of a run by epochs, when known; else 0 */
    double straggler;                    /* > 1: one rank of the world computes so many times slower */
    bool on_straggler;                   /* the plan is of that rank; else of one that waits for it */
    bool details;                        /* schedule, spans and curve too */
    struct zt_alloc_watch watch;         /* of shape 0; fn NULL = nobody */
};

/* Ranks that are alike: data-parallel index in [dp_from, dp_to). */
struct zt_plan_shape {
    int rank, dp_from, dp_to;            /* rank: the lowest of them */
    bool occurs[ZT_WINDOW_COUNT];
    struct zt_window_peak window[ZT_WINDOW_COUNT];
};

/* A unit as it will be, after defaults. */
struct zt_plan_unit {
    char name[32];
    int64_t parameters, trainable;       /* logical elements */
    int64_t padded;                      /* elements of its groups with gaps and padding */
    int groups;                          /* collectives that gather it, or reduce it */
    bool gathered;                       /* made whole before use; else whole all the time (or a shared shard) */
    enum { ZT_AFTER_FORWARD_KEPT = 0, ZT_AFTER_FORWARD_FREED, ZT_AFTER_FORWARD_SLICED } after_forward;
    int slices;                          /* reshard_after_forward: m */
    int prefetch;                        /* units ahead */
};

/* What a rank does in a group in one step. */
#define ZT_PLAN_TRAFFIC_MAX 24
struct zt_plan_traffic {
    char group[16];
    enum zt_coll kind;
    bool control;
    int64_t count, bytes, sent_bytes; /* bytes: of the full buffers */
    int64_t ns, exposed_ns;           /* estimated */
};

/* Allocated bytes over one steady step, a point for every change. */
struct zt_plan_point { int64_t at_ns; enum zt_phase phase; int64_t by_tag[ZT_TAG_COUNT], reserved; char what[48]; };

/* Memory of the host that a rank takes beside the device's, in bytes: a stated figure, right in its
 * order of magnitude (docs/planner.md, "Host memory"). What is not among it: 8 bytes for each sample of
 * the training set, of which a plan does not know how many there are, and shared memory of the transport.
 * On cpu the device's memory is the host's too and comes on top. */
struct zt_plan_host {
    int64_t window;                      /* tokens and targets of one step's micro-steps */
    int64_t reader;                      /* micro-batches read ahead */
    int64_t staging;                     /* of tcp, where ranks are on several hosts */
    int64_t products;                    /* cpu, 16-bit recipes: fp32 copies of the largest product, where it is emulated */
    int64_t control;                     /* messages of all ranks, event log of collectives */
    int64_t checkpoint;                  /* buffer that saves are copied into: exact, of the rank that writes the most; */
    int checkpoint_rank;                 /* and which that is. A file in shared memory where a copy is kept there */
    int64_t neighbour;                   /* checkpoint.memory_copies 2 on several hosts: files of another rank, at most */
    int64_t program;                     /* code, libraries, two threads: an allowance */
    int64_t total;
};

struct zt_plan {
    bool fits;                           /* in capacity_bytes */
    struct zt_oom oom;                   /* when not: where the real device would run out ... */
    int64_t oom_step;
    /* ... and every figure below is that of a device without a limit */
    int64_t capacity_bytes, outside_bytes;
    struct zt_plan_host host;
    int64_t peak_allocated_bytes, peak_reserved_bytes; /* over all windows and shapes */
    enum zt_window_name peak_window;     /* of the allocated peak */
    enum zt_phase phase_of_peak;
    int64_t at_peak[ZT_TAG_COUNT];       /* sums to peak_allocated_bytes */
    struct zt_state_bytes persistent;    /* requested bytes (D4) */
    int n_shapes;
    struct zt_plan_shape shape[2];

    int64_t parameters, trainable;
    int world, dp_size;
    int64_t accumulation, global_batch, tokens_per_step, total_steps; /* total_steps 0: by epochs, not known */
    int64_t total_tokens;                /* 0: not known */
    int64_t micro_steps_simulated;       /* of accumulation; what is under details is of so many */

    /* one steady step (estimated; sent bytes exact) */
    double step_seconds, forward_seconds, backward_seconds, optimizer_seconds, tokens_per_second;
    double flops_per_token;              /* 6 (N - N_embed) + 12 L H Q T, less what frozen tensors save (docs/planner.md); MFU's numerator */
    struct zt_exposed exposed;
    int64_t sent_bytes;
    /* with details: the same by group and kind, of all micro-steps; counts and bytes exact */
    int n_traffic;
    struct zt_plan_traffic traffic[ZT_PLAN_TRAFFIC_MAX];

    int n_units;
    struct zt_plan_unit *units;
    /* details */
    int64_t step_ns;                     /* length of that step; all times below are since its start */
    int64_t n_collectives, dropped;      /* in order of queueing; older ones beyond 65536 are dropped */
    struct zt_coll_record *collectives;
    int64_t *exposed_ns, *stall_ns;      /* beside them */
    int n_groups;                        /* groups of the rank whose step it is (shape[0]) */
    struct zt_comm_group *groups;
    size_t n_spans;                      /* compute, updates, stalls */
    struct zt_interval *spans;
    size_t n_curve;
    struct zt_plan_point *curve;         /* the first: what the step begins with; what: the buffer that came or went */
};

/* 0, also when the run does not fit. Fails on a specification the trainer refuses. */
int zt_plan_make(const struct zt_plan_config *c, struct zt_plan **out, struct zt_error *err);
void zt_plan_free(struct zt_plan *p);

/* The same run in another mode on the same ranks: `mode` with its degrees (ddp: all replicate; the
 * others: as many replicas as the file asks for when it shards, else one). The copy shares `verbatim`
 * with spec and is not to be freed. ZT_EINVAL: the mode cannot take this run (recipe, divisibility);
 * the message says why. */
int zt_plan_mode(const struct zt_spec *spec, enum zt_mode mode, struct zt_spec *out, struct zt_error *err);

#endif
