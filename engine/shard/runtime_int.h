/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_int.h: the runtime's own struct, shared by runtime.c (windows, units,
 * edges), runtime_gather.c, runtime_reduce.c, runtime_state.c (lasting buffers, initial weights,
 * hash) and runtime_update.c (norm, optimizer).
 * Private to engine/shard and its tests. */
#ifndef ZT_ENGINE_RUNTIME_INT_H
#define ZT_ENGINE_RUNTIME_INT_H
#include "engine/optim/optim.h"
#include "engine/shard/layout.h"
#include "engine/shard/runtime.h"

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
    void *full;                      /* all of them: == store, or gathered, or NULL */
    float *master;                   /* own elements; NULL when the stored value is the authority */
    void *m, *v;                     /* own elements, of the recipe's moment type; NULL until there */
    void *grad;     /* all gradients; NULL before first use and after the reduce/update */
    void *grad_own; /* own gradients summed over micro-steps (sharded gradients) */
    struct zt_optim_run *runs; /* own elements by decay flag, offsets from own_from */
    int n_runs;
    int units_left; /* units whose backward of this micro-step is still to end */
    bool in_flight; /* a reduction was queued and not waited for */
    /* `ready` belongs to the reduce stream, `vacant` to the gather stream: an event is recorded
     * again only after the wait on its last record is known to be over. */
    struct zt_event *ready, *reduced, *vacant, *gathered;
};

struct zt_runtime {
    struct zt_runtime_env env;
    const struct zt_policy *policy;
    const struct zt_recipe *recipe;
    struct zt_unit_layout layout;
    struct rt_group *groups;
    struct zt_model_walk walk;
    void **view_param, **view_grad; /* by tensor of the table: what the open units see */
    struct zt_stream *reduce, *gather; /* NULL when nothing is ever sent */
    int shard, replicate;              /* degrees */
    int shard_index;
    int64_t step;    /* of the window */
    int64_t updates; /* carried out; behind `step` when some were skipped */
    bool last_micro, in_window, evaluating;
    int *launched;
    int n_launched; /* groups with a reduction in flight, in launch order */
    int64_t log_seen, sent_bytes;
    int dtype_stored[ZT_ROW_COUNT], dtype_used[ZT_ROW_COUNT]; /* as seen; -1 = not yet */
    int64_t requested_p, requested_o, requested_g, peak_g;
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
int rt_acquire(struct zt_runtime *r, int unit, const char *reason, struct zt_error *err);
void rt_release(struct zt_runtime *r, int unit);
bool rt_kept_after_forward(const struct zt_runtime *r, int unit);
/* A group was stepped: sends the own part where every rank keeps it whole. _wait: all of them. */
int rt_gather_updated(struct zt_runtime *r, struct rt_group *g, struct zt_error *err);
int rt_gather_updated_wait(struct zt_runtime *r, struct zt_error *err);

/* runtime_reduce.c */
int rt_gradient_use(struct zt_runtime *r, struct rt_group *g,
                    struct zt_error *err); /* zeroed at first use */
void rt_gradient_drop(struct zt_runtime *r, struct rt_group *g);
int rt_group_finished(struct zt_runtime *r, struct rt_group *g, struct zt_error *err);
int rt_wait_launched(struct zt_runtime *r, struct zt_error *err);
/* Gradient of the own elements after zt_runtime_wait_gradients, and its type; NULL: there is none. */
void *rt_own_gradient(const struct zt_runtime *r, const struct rt_group *g, enum zt_dtype *t);

/* runtime.c */
int rt_compute_wait(struct zt_runtime *r, struct zt_event *e, struct zt_error *err);
int rt_behind_compute(struct zt_runtime *r, struct zt_event *e, struct zt_stream *s,
                      struct zt_error *err);
int rt_collective_done(struct zt_runtime *r, struct zt_stream *s, struct zt_event *e,
                       struct zt_error *err);
int rt_interval(struct zt_runtime *r, enum zt_interval_kind k, const char *name, int64_t from,
                struct zt_error *err);
int64_t rt_now(const struct zt_runtime *r);

static inline size_t rt_grad_size(const struct zt_runtime *r) {
    return zt_dtype_size(r->recipe->grad);
}
static inline char *rt_at(void *base, int64_t elements, enum zt_dtype t) {
    return (char *)base + (size_t)elements * zt_dtype_size(t);
}

#endif
