/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model_int.h: what the families share: the model's struct, buffers from the allocator,
 * and the linear and norm layers with explicit forward and backward. Private to engine/model.
 * Every function runs on the trainer thread; device buffers returned belong to the caller. */
#ifndef ZT_ENGINE_MODEL_INT_H
#define ZT_ENGINE_MODEL_INT_H
#include "engine/model/model.h"

/* What a family implements; state is the family's own saved activations. */
struct zt_family_impl {
    int (*create)(struct zt_model *m, struct zt_error *err);
    void (*destroy)(struct zt_model *m);
    /* Through the final norm and the head: *logits [N,V] is allocated here, the caller frees it. */
    int (*forward)(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                   bool keep, void **logits, struct zt_error *err);
    /* Consumes dlogits (frees it) and what forward kept. */
    int (*backward)(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    void *dlogits, struct zt_error *err);
    void (*release)(struct zt_model *m); /* frees every device buffer still held, after an error */
};
extern const struct zt_family_impl zt_gpt2_impl;

struct zt_model {
    const struct zt_model_table *table;
    struct zt_model_walk walk;
    struct zt_model_env env;
    const struct zt_family_impl *family;
    void *state;
    void (*trace)(void *arg, const char *name, int unit, int64_t start_ns, int64_t end_ns);
    void *trace_arg;
    int64_t segment_start_ns;
};

/* A buffer of rows x columns elements; `block` < 0 leaves the number out of its name. */
int zt_model_buffer(struct zt_model *m, int64_t rows, int64_t columns, enum zt_dtype t,
                    enum zt_tag tag, const char *what, int block, void **out, struct zt_error *err);
/* Frees *p and forgets it. */
void zt_model_drop(struct zt_model *m, void *p_of_pointer);

/* Around the compute between a unit's begin and end. */
void zt_model_segment_begin(struct zt_model *m);
void zt_model_segment_end(struct zt_model *m, const char *name, int unit);

/* y[rows,out] = x[rows,in] w[out,in]^T + b */
int zt_linear_forward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                      const void *w, const void *b, void *y, struct zt_error *err);
/* dx = dy w (dx NULL: not wanted); dw += dy^T x, db += column sums of dy (NULL: frozen or absent) */
int zt_linear_backward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                       const void *w, const void *dy, void *dx, void *dw, void *db,
                       struct zt_error *err);
/* LayerNorm backward with its workspace; adds into dx when accumulate. */
int zt_norm_backward(struct zt_model *m, int64_t rows, int64_t width, const void *dout,
                     const void *in, const void *weight, const float *mean, const float *rstd,
                     void *dx, bool accumulate, void *dw, void *db, struct zt_error *err);

#endif
