/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train.h: the trainer as a library: one rank, from the specification to the last step. The
 * worker calls it to train, engine/plan on a simulated device to plan.
 *
 * zt_train blocks; hooks are called on the same thread. It never exits the process and never waits
 * for the coordinator except in `comm_id`. */
#ifndef ZT_ENGINE_TRAIN_H
#define ZT_ENGINE_TRAIN_H
#include "core/reason.h"
#include "core/spec.h"
#include "engine/checkpoint/save.h"
#include "engine/comm/comm.h"
#include "engine/device/alloc.h"
#include "engine/report.h"
#include "kernels/ops.h"

struct zt_train_config {
    const struct zt_spec *spec;   /* resolved for `world` */
    int rank, local_rank, world;
    uint32_t generation;
    const char *device;           /* "cpu", "sim" */
    int64_t capacity_bytes;
    int threads;
    const struct zt_kernels *kernels; /* of the device: zt_kernels_cpu, zt_kernels_sim */
    const char *isa, *gemm;       /* cpu; NULL = best */
    const struct zt_sim *sim;     /* sim: what is simulated; no data set is opened */
    struct zt_alloc_watch watch;  /* of the allocator; fn NULL = nobody */
    struct zt_progress *progress; /* may be NULL */
    size_t progress_bytes;
    bool several_hosts;           /* the ranks are on more than one */
    const char *host, *address;   /* then: where this one is (comm.h, struct zt_comm_site) */
    /* For the benchmark of what measuring costs: steps with no intervals (so no exposed
     * communication), no times of forward and backward and no memory outside the allocator. May be
     * changed in the step hook, for the next step. */
    bool unmeasured;
    const struct zt_checkpoint_config *checkpoint; /* saving and going on; NULL = neither */
    const struct zt_comm_inject *inject; /* tests, benchmarks: a link that costs something; NULL = none */
};

/* The collectives that one step queued, in this order, with the exposed time and the stall of compute
 * that belong to each (they sum to the step's, control apart). Times are of the device clock; end_ns 0
 * in a record: not over when the step was. Borrowed for the call. */
struct zt_step_trace {
    int64_t step, start_ns, end_ns;
    const struct zt_coll_record *records;
    const int64_t *exposed_ns, *stall_ns; /* beside records */
    int64_t n;
    int64_t dropped;              /* older ones that the event log had no room for */
    const struct zt_comm_group *groups; /* of this rank */
    int n_groups;
    const struct zt_intervals *intervals; /* of the step: what it computed and where it stood still */
};

enum zt_event_level { ZT_EVENT_INFO = 0, ZT_EVENT_WARNING, ZT_EVENT_ERROR };

struct zt_train_hooks {
    void *arg;
    /* model built, data opened */
    int (*ready)(void *arg, struct zt_error *err);
    /* rank 0: *id was minted, publish it; others: fill *id. May block up to its own deadline. */
    int (*comm_id)(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err);
    int (*in_comm)(void *arg, struct zt_error *err);
    int (*step)(void *arg, const struct zt_step_report *r, struct zt_error *err);
    /* before `step`, for steps 1 to 3 of a generation, every metrics.log_freq-th and the last */
    void (*collectives)(void *arg, const struct zt_step_trace *t);
    /* once, after the generation's first update: the number formats that are really there */
    void (*dtypes)(void *arg, const struct zt_dtypes_report *d);
    /* kind: "MEMORY_GROWTH", "DATA_SKIPPED", ... (upper case, stable) */
    void (*event)(void *arg, enum zt_event_level level, const char *kind, const char *message);
    /* asked between steps; true = stop after this step with ZT_ECANCELLED */
    bool (*stop)(void *arg);
};

struct zt_train_result {
    int64_t steps;                /* finished */
    enum zt_reason reason;        /* NONE on success; what the failure is */
    char parameter_hash[33];
    struct zt_oom oom;            /* when reason is OOM_DEVICE */
    bool has_oom;
    enum zt_phase phase;          /* where it failed */
    int64_t failed_step;          /* step in progress when it failed */
    int peer;                     /* global rank of a lost or missing peer; of the replica that differs
                                   * from most others (REPLICA_DIVERGED); -1: not known */
};

int zt_train(const struct zt_train_config *c, const struct zt_train_hooks *h,
             struct zt_train_result *result, struct zt_error *err);

/* Default capacity of D17: half of MemAvailable / workers_on_host, rounded down to 2 MiB. */
int64_t zt_default_capacity(int workers_on_host);

#endif
