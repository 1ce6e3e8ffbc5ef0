/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_int.h: the runtime's own struct, shared by runtime.c (windows, units,
 * edges), runtime_gather.c, runtime_reduce.c, runtime_tensor.c (the tensor group), runtime_trace.c
 * (intervals, bytes), runtime_state.c (lasting buffers, initial weights, hash), runtime_pieces.c
 * (what is saved and loaded) and runtime_update.c (norm, optimizer).
 * Private to engine/shard and its tests. */
#ifndef ZT_ENGINE_RUNTIME_INT_H
#define ZT_ENGINE_RUNTIME_INT_H
#include "engine/optim/optim.h"
#include "engine/shard/layout.h"
#include "engine/shard/runtime.h"
#include "engine/shard/walk.h"

#define RT_TRY(call)                                                                               \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* One flat group on this rank. Ranges are in elements of the group. */
struct rt_group {
    const struct zt_flat_group *def;
    int64_t store_from, store_count; /* stored parameters: all, or this rank's shard */
    int64_t own_from, own_count;     /* authoritative elements: what this rank's optimizer steps */
    void *store;                     /* stored parameters */
    float *master;                   /* own elements; NULL when the stored value is the authority */
    void *m, *v;               /* own elements, of the recipe's moment type; NULL until there */
    struct zt_optim_run *runs; /* own elements by decay flag, offsets from own_from */
    int n_runs;
    /* parameters (runtime_gather.c) */
    bool gathered;      /* `full` is made before use and let go after; else full == store */
    bool arriving;      /* a gather was queued and not waited for */
    enum zt_dtype held; /* type of full and slice */
    void *full;         /* all parameters, or NULL */
    void *slice;        /* reshard_after_forward: m: what this rank keeps of full */
    int opened;         /* open units that use them */
    /* gradients (runtime_reduce.c) */
    void *grad;         /* all of them, as backward writes; NULL before first use and after */
    void *grad_own;     /* own elements, reduced, summed over micro-steps (sharded gradients) */
    void *staged;       /* all of them in the reduce type, while they are reduced */
    int backward_units; /* units of the walk whose backward adds to them */
    int units_left;     /* of those, in this micro-step */
    bool in_flight;     /* a reduction was queued and not waited for */
    bool direct;        /* it ends in grad_own */
    struct zt_event *ready, *reduced, *vacant, *arrived;
};

/* The part of a group that one unit uses, by the index of layout.unit_groups. */
struct rt_segment {
    int64_t from, count; /* elements of the group */
    void *copy;          /* in the compute type where full is not, while the unit is open */
};

struct rt_launch {
    int group, batch; /* batch: number of the unit's end at which it was launched */
};

struct zt_runtime {
    struct zt_runtime_env env;
    const struct zt_policy *policy;
    const struct zt_recipe *recipe;
    struct zt_unit_layout layout;
    struct rt_group *groups;
    struct zt_stream *reduce, *gather; /* NULL when nothing is ever sent */
    int shard, replicate;              /* degrees */
    int shard_index;
    int64_t step;    /* of the window */
    int64_t updates; /* carried out; behind `step` when some were skipped */
    bool last_micro, in_window, evaluating;
    int dtype_stored[ZT_ROW_COUNT], dtype_used[ZT_ROW_COUNT]; /* as seen; -1 = not yet */
    struct zt_walk walk;
    int at;                         /* place of the unit begun last; -1: none yet */
    bool *open;                     /* by unit: its parameters are in use */
    void **view_param, **view_grad; /* by tensor of the table: what the open units see */
    struct rt_segment *segments;
    /* reductions */
    enum zt_dtype reduce_type;
    bool every_micro;           /* reduced in every micro-step, else in the window's last */
    bool bounded;               /* a reduction holds a buffer that goes when it is over */
    struct rt_launch *launched; /* in flight, in launch order */
    int n_launched, batch;
    /* the tensor group: elements of the sum of partial gradients, and whether this window has it */
    int64_t partial;
    bool tensor_summed;
    int64_t log_seen, queued, sent_before; /* queued: collectives since the log was read */
    int64_t requested_p, requested_o, peak_g;
};

/* zt_runtime_create with the row given; the row may be one that users cannot have yet. */
int rt_create(const struct zt_runtime_env *env, const struct zt_policy *row,
              struct zt_runtime **out, struct zt_error *err);

/* runtime_state.c */
int rt_state_build(struct zt_runtime *r, struct zt_error *err);   /* groups, parameters, weights */
int rt_state_moments(struct zt_runtime *r, struct zt_error *err); /* m, v (and master) */
void rt_state_free(struct zt_runtime *r);
int64_t rt_requested(int64_t elements, enum zt_dtype t); /* bytes of a buffer (D4) */
/* A buffer of group g, named after both; its bytes are added to *account (NULL: nowhere). */
int rt_buffer(struct zt_runtime *r, const struct rt_group *g, int64_t elements, enum zt_dtype t,
              enum zt_tag tag, const char *what, void *out_pointer, int64_t *account,
              struct zt_error *err);

/* Notes the type of a buffer that was allocated, and of one that a kernel or collective took. */
static inline void rt_stored(struct zt_runtime *r, enum zt_dtype_row row, enum zt_dtype t) {
    r->dtype_stored[row] = (int)t;
}
static inline void rt_used(struct zt_runtime *r, enum zt_dtype_row row, enum zt_dtype t) {
    r->dtype_used[row] = (int)t;
}

/* runtime_gather.c */
int rt_gather_build(struct zt_runtime *r, struct zt_error *err); /* the walk, what is gathered */
void rt_gather_free(struct zt_runtime *r);
/* The next unit of the walk begins: its parameters are there when this returns. */
int rt_acquire(struct zt_runtime *r, int unit, bool backward, struct zt_error *err);
/* The unit needs its parameters no more. */
int rt_release(struct zt_runtime *r, int unit, struct zt_error *err);
/* A group was stepped: sends the own part where every rank keeps it whole. _wait: all of them. */
int rt_gather_updated(struct zt_runtime *r, struct rt_group *g, struct zt_error *err);
int rt_gather_updated_wait(struct zt_runtime *r, struct zt_error *err);

/* runtime_reduce.c */
int rt_reduce_build(struct zt_runtime *r, struct zt_error *err);
void rt_reduce_free(struct zt_runtime *r);
int rt_gradient_use(struct zt_runtime *r, struct rt_group *g,
                    struct zt_error *err); /* zeroed at first use */
void rt_gradient_drop(struct zt_runtime *r, struct rt_group *g);
/* The unit's gradients of this micro-step are all in. */
int rt_reduce_unit(struct zt_runtime *r, int unit, struct zt_error *err);
/* Waits for reductions, oldest first, until those of at most `batches` units are in flight. */
int rt_reduce_wait(struct zt_runtime *r, int batches, struct zt_error *err);
void rt_reduce_account(struct zt_runtime *r); /* gradient bytes that last beyond a unit */
/* Gradient of the own elements after zt_runtime_wait_gradients, and its type; NULL: there is none.
 */
void *rt_own_gradient(const struct zt_runtime *r, const struct rt_group *g, enum zt_dtype *t);

/* runtime_tensor.c */

/* The next piece of g's elements [from, from + count), in order; false: no more. */
bool rt_piece_next(const struct zt_runtime *r, const struct rt_group *g, int64_t from,
                   int64_t count, struct zt_flat_piece *p);
/* Whether this rank speaks for a tensor in sums over ranks: tensor rank 0 for what all hold whole.
 */
bool rt_speaks(const struct zt_runtime *r, int tensor);
int rt_tensor_build(struct zt_runtime *r, struct zt_error *err);
/* Adds up the gradients that are partial, once per window, after all other reductions. */
int rt_tensor_sum(struct zt_runtime *r, struct zt_error *err);

/* runtime_trace.c */
int64_t rt_now(const struct zt_runtime *r);
void rt_sent_begin(struct zt_runtime *r); /* zt_runtime_sent_bytes counts from here */
int rt_interval(struct zt_runtime *r, enum zt_interval_kind k, const char *name, int64_t from,
                struct zt_error *err);

/* runtime.c: the edges */
int rt_compute_wait(struct zt_runtime *r, struct zt_event *e, struct zt_error *err);
int rt_behind_compute(struct zt_runtime *r, struct zt_event *e, struct zt_stream *s,
                      struct zt_error *err);
int rt_collective_done(struct zt_runtime *r, struct zt_stream *s, struct zt_event *e,
                       struct zt_error *err);

static inline char *rt_at(void *base, int64_t elements, enum zt_dtype t) {
    return (char *)base + (size_t)elements * zt_dtype_size(t);
}

#endif
