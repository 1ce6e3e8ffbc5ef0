/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model_int.h: the inside of a model. Private to engine/model and its tests.
 *
 * A model is an embedding, a chain of 2 L half blocks, and a head. Every half, whatever the family,
 * is
 *
 *   stream[h] = stream[h-1] + out (h > 0); normed = norm(stream[h]); wide = in(normed)
 *   mixed = attention(wide), gelu(wide) or silu(gate) up;  out = mixed Wout
 *
 * and logits = norm(stream[2L]) Whead, stream[2L] = stream[2L-1] + out. The residual is added by
 * the norm that follows, so between halves, and so between units, there are stream[h] and out. The
 * gradient of the stream is one buffer that flows down. A unit of the table is a run of
 * neighbouring halves (one, a block's two, or those of several blocks).
 *
 *   gpt2.c      which tensor is what: the form of the family's halves
 *   keep.c      what is computed, saved and recomputed
 *   half.c      a half forward, backward and once more from its input
 *   mix.c       what is between its linear layers
 *   chain.c     embedding, halves and head in the order of the units
 *   layer.c     buffers; linear and norm layers
 *
 * Every function runs on the trainer thread. Device buffers belong to the struct that points to
 * them until dropped. */
#ifndef ZT_ENGINE_MODEL_INT_H
#define ZT_ENGINE_MODEL_INT_H
#include "engine/model/model.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* ---- forms: which tensor is what ---- */

#define ZT_HALF_INPUTS 3 /* at most: q, k and v */
#define ZT_HALF_TENSORS 12

/* Tensors by index inside the half, or inside the unit for what is around the halves; -1: none.
 * Names are those of buffers in reports. */
struct zt_linear_form {
    int weight, bias;
    int64_t width; /* of the result */
    const char *name, *gradient;
};
struct zt_norm_form {
    int weight, bias; /* no bias: RMSNorm */
    const char *stream, *name, *mean, *rstd, *gradient;
};

enum zt_mix { ZT_MIX_ATTENTION = 0, ZT_MIX_GELU };

struct zt_half_form {
    enum zt_mix mix;
    int n_tensors; /* in table order, at most ZT_HALF_TENSORS */
    struct zt_norm_form norm;
    int n_in;
    struct zt_linear_form in[ZT_HALF_INPUTS], out;
    int64_t mixed; /* width of what goes into `out` */
    const char *mixed_name, *mixed_gradient;
};

struct zt_form {
    struct zt_half_form half[2]; /* attention, MLP */
    int embed_unit, head_unit;   /* the same with a tied head */
    int tokens, positions;       /* embeddings, in embed_unit */
    struct zt_norm_form final;   /* in head_unit */
    int head;                    /* weight, in head_unit */
};
void zt_gpt2_form(const struct zt_model_table *t, struct zt_form *f);

/* ---- state ---- */

struct zt_norm_state {
    void *out;         /* compute dtype */
    void *mean, *rstd; /* fp32 */
};

struct zt_half {
    const struct zt_half_form *form;
    int block, unit, first; /* its unit, the index of its first tensor there */
    /* What backward computes: the gradients of mixed, of normed (it has more to do further down or
     * in the norm itself), anything at all. */
    bool to_mixed, to_norm, reached;
    bool trains_in, trains_out; /* the weights: their gradients need normed and mixed */
    enum zt_recompute recompute;
    bool checkpoint; /* its input is all that is saved of it and the halves after it in its block */
    struct zt_norm_state norm;
    void *wide[ZT_HALF_INPUTS], *mixed; /* compute dtype */
    void *lse;                          /* attention: log-sum-exps, fp32 */
};

struct zt_model {
    const struct zt_model_table *table;
    struct zt_model_walk walk;
    struct zt_model_env env;
    struct zt_form form;
    int n_halves;
    struct zt_half *halves;
    void **stream; /* [n_halves + 1] */
    struct zt_norm_state final;
    bool trains_embeddings, trains_head;
    bool keep;      /* of this step: there will be a backward */
    bool replaying; /* a half is computed once more, inside its backward */
    /* in flight; here so that release finds them */
    void *out, *logits, *dstream, *dmixed, *dwide[ZT_HALF_INPUTS], *dnorm;
    void (*trace)(void *arg, const char *name, int unit, int64_t start_ns, int64_t end_ns);
    void *trace_arg;
    int64_t segment_start_ns;
};

/* ---- keep.c ---- */

/* Once, at create: how far backward goes inside each half. */
void zt_plan(struct zt_model *m);
/* What of half h stays, after the pass that computes it, for its backward. */
struct zt_kept {
    bool stream, statistics, norm, wide, mixed, lse;
};
struct zt_kept zt_kept(const struct zt_model *m, int h);
static inline enum zt_tag zt_tag_of(bool kept) {
    return kept ? ZT_TAG_ACTIVATIONS : ZT_TAG_TEMPORARY;
}

/* ---- half.c, mix.c, chain.c ---- */

/* stream[s] from what the half before left, unless it is there (the embedding's; a replay begins
 * with it), and its norm. */
int zt_norm_stream(struct zt_model *m, int64_t rows, int s, const struct zt_norm_form *f,
                   void *const *p, struct zt_kept kept, struct zt_norm_state *n,
                   struct zt_error *err);
int zt_half_forward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                    int h, struct zt_error *err);
/* dstream is the gradient after the half on entry, before it on return. Recomputes its block first
 * where only the block's input was saved. */
int zt_half_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                     int h, struct zt_error *err);
void zt_half_release(struct zt_model *m, int h);

/* mixed from wide; into a buffer of tag mixed, lse beside it. */
int zt_mix_forward(struct zt_model *m, const struct zt_batch *b, int h, struct zt_kept kept,
                   struct zt_error *err);
/* dwide from dmixed, which is dropped, as are wide and what else was saved. */
int zt_mix_backward(struct zt_model *m, const struct zt_batch *b, int h, struct zt_error *err);

/* Through the final norm and the head to m->logits [rows, V]. */
int zt_chain_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                     struct zt_error *err);
/* Consumes m->logits, their gradient by now, and what forward kept. */
int zt_chain_backward(struct zt_model *m, const struct zt_unit_source *src,
                      const struct zt_batch *b, struct zt_error *err);
void zt_chain_release(struct zt_model *m); /* every device buffer still held, after an error */

/* ---- layer.c ---- */

/* A buffer of rows x columns elements; `block` < 0 leaves the number out of its name. */
int zt_model_buffer(struct zt_model *m, int64_t rows, int64_t columns, enum zt_dtype t,
                    enum zt_tag tag, const char *what, int block, void **out, struct zt_error *err);
/* Workspace of an operator: tag temporary; 0 bytes: NULL. */
int zt_model_workspace(struct zt_model *m, size_t bytes, const char *what, void **out,
                       struct zt_error *err);
/* Frees *p and forgets it. */
void zt_model_drop(struct zt_model *m, void *p_of_pointer);
void zt_model_drop_unless(struct zt_model *m, bool kept, void *p_of_pointer);

/* Around the compute between a unit's begin and end. */
void zt_model_segment_begin(struct zt_model *m);
void zt_model_segment_end(struct zt_model *m, const char *name, int unit);

/* The tensor at an index, NULL for -1. */
static inline void *zt_tensor(void *const *tensors, int i) { return i < 0 ? NULL : tensors[i]; }
bool zt_model_trains(const struct zt_model *m, int unit, int tensor); /* false for -1 */
/* The gradient to add to, NULL for a frozen tensor and for none. */
void *zt_model_gradient(const struct zt_model *m, int unit, const struct zt_unit_view *v,
                        int tensor);

/* y[rows,out] = x[rows,in] w[out,in]^T + b */
int zt_linear_forward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                      const void *w, const void *b, void *y, struct zt_error *err);
/* dx = (or += ) dy w (dx NULL: not wanted); dw += dy^T x, db += column sums of dy (NULL: frozen or
 * absent) */
int zt_linear_backward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                       const void *w, const void *dy, void *dx, bool accumulate, void *dw, void *db,
                       struct zt_error *err);

/* The buffers of a norm: its result and statistics. */
int zt_norm_buffers(struct zt_model *m, const struct zt_norm_form *f, int64_t rows, int block,
                    struct zt_kept kept, struct zt_norm_state *n, struct zt_error *err);
void zt_norm_drop(struct zt_model *m, struct zt_norm_state *n);
/* n->out and the statistics from in, or from sum = in + residual (both NULL: in alone); buffers are
 * there. p: the tensors that the form's indices mean. */
int zt_norm_forward(struct zt_model *m, const struct zt_norm_form *f, void *const *p, int64_t rows,
                    const struct zt_norm_state *n, const void *in, const void *residual, void *sum,
                    struct zt_error *err);
/* dx = or += ; dw, db +=, NULL: frozen or absent */
int zt_norm_backward(struct zt_model *m, const struct zt_norm_form *f, void *const *p, int64_t rows,
                     const struct zt_norm_state *n, const void *dout, const void *in, void *dx,
                     bool accumulate, void *dw, void *db, struct zt_error *err);

#endif
