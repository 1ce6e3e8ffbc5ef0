/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model_int.h: the inside of a model. Private to engine/model and its tests.
 *
 * A model is an embedding, a chain of 2 L half blocks, and a head. Every half, whatever the family,
 * is
 *
 *   stream[h] = stream[h-1] + out (h > 0); normed = norm(stream[h]); wide = in(normed)
 *   mixed = attention(wide), gelu(wide) or silu(gate) up;  out = dropout(mixed Wout)
 *
 * and logits = norm(stream[2L]) Whead, stream[2L] = stream[2L-1] + out. The residual is added by
 * the norm that follows, so between halves, and so between units, there are stream[h] and out. The
 * gradient of the stream is one buffer that flows down. A unit of the table is a run of
 * neighbouring halves (one, a block's two, or those of several blocks).
 *
 *   gpt2.c, llama.c   which tensor is what: the form of the family's halves
 *   form.c            forms from the table
 *   keep.c            what is computed, saved and recomputed
 *   half.c            a half forward, backward and once more from its input
 *   mix.c             what is between its linear layers
 *   head.c            final norm, head and loss
 *   chain.c           embedding, halves and head in the order of the units
 *   tensor.c          what tensor parallelism sends
 *   layer.c           buffers; linear and norm layers
 *
 * Rows: with sequence parallelism a rank has B T / degree of the stream, "own rows", and all rows
 * of what is inside a half; else both are B T.
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
#define ZT_HALF_TENSORS 24

/* Tensors by index inside the half, or inside the unit for what is around the halves; -1: none.
 * Names are those of buffers in reports. */
struct zt_linear_form {
    int weight, bias;
    int lora_a, lora_b;  /* adapter: y += scale (x A^T) B^T (Hu et al. 2021); both or none */
    int64_t width, rank; /* of the result, of the adapter */
    const char *name, *gradient;
};
struct zt_norm_form {
    int weight, bias; /* no bias: RMSNorm */
    const char *stream, *name, *mean, *rstd, *gradient;
};

enum zt_mix { ZT_MIX_ATTENTION = 0, ZT_MIX_GELU, ZT_MIX_SWIGLU };

struct zt_half_form {
    enum zt_mix mix;
    int n_tensors; /* in table order, at most ZT_HALF_TENSORS */
    struct zt_norm_form norm;
    int n_in;
    struct zt_linear_form in[ZT_HALF_INPUTS], out; /* q, k, v or one for all; gate, up */
    int q_norm, k_norm;                            /* both or none */
    bool rope;
    int64_t mixed; /* width of what goes into `out` */
    const char *mixed_name, *mixed_gradient;
};

struct zt_form {
    int embed_unit, head_unit; /* the same with a tied head */
    int tokens, positions;     /* embeddings, in embed_unit */
    struct zt_norm_form final; /* in head_unit */
    int head;                  /* weight, in head_unit */
    int64_t vocab_rows;        /* of embedding and head on this rank, with padding */
};
void zt_form_build(const struct zt_model_table *t, struct zt_form *f);
/* A block's halves, attention and MLP. */
void zt_block_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]);
void zt_gpt2_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]);
void zt_llama_form(const struct zt_model_table *t, int layer, struct zt_half_form half[2]);
/* For these: of a tensor or linear layer in a block's half that begins with the norm `first`; -1
 * where there is none such. */
int zt_tensor_in_half(const struct zt_model_table *t, int layer, enum zt_role first,
                      enum zt_role role, enum zt_piece piece);
struct zt_linear_form zt_linear_of(const struct zt_model_table *t, int layer, enum zt_role first,
                                   enum zt_role role, const char *name, const char *gradient);
int64_t zt_inputs_of(const struct zt_model_table *t,
                     enum zt_role role); /* width of a layer's input */

/* ---- state ---- */

struct zt_norm_state {
    void *out;         /* compute dtype */
    void *mean, *rstd; /* fp32 */
};

struct zt_half {
    struct zt_half_form form;
    int block, unit, first; /* its unit, the index of its first tensor there */
    /* What backward computes: the gradients of mixed, of normed (it has more to do further down or
     * in the norm itself), anything at all. */
    bool to_mixed, to_norm, reached;
    bool trains_in, trains_out; /* the weights: their gradients need normed and mixed */
    enum zt_recompute recompute;
    bool checkpoint; /* its input is all that is saved of it and the halves after it in its block */
    struct zt_norm_state norm;
    void *wide[ZT_HALF_INPUTS], *mixed; /* compute dtype */
    void *normed[2], *normed_rstd[2];   /* q and k behind norms of their own; rstd fp32 */
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
    void *rope; /* [positions, 2, head_dim / 2] fp32 */
    bool trains_embeddings, trains_head;
    bool to_final; /* something below the head trains, or the final norm */
    /* of this call */
    bool keep;        /* there will be a backward */
    bool training;    /* dropout */
    bool want_logits; /* whole, no loss */
    bool replaying;   /* a half is computed once more, inside its backward */
    struct {
        float scale;
        struct zt_fixsum *sum;
    } loss;
    /* in flight; here so that release finds them. whole: rows gathered from all tensor ranks */
    void *out, *whole, *logits, *dstream, *dout, *dmixed, *dwide[ZT_HALF_INPUTS], *dnorm;
    void (*trace)(void *arg, const char *name, int unit, int64_t start_ns, int64_t end_ns);
    void *trace_arg;
    int64_t segment_start_ns;
};

/* ---- keep.c ---- */

/* Once, at create: how far backward goes inside each half. */
void zt_plan(struct zt_model *m);
/* What of half h stays, after the pass that computes it, for its backward. */
struct zt_kept {
    bool stream, statistics, norm, wide, normed, mixed, lse;
};
struct zt_kept zt_kept(const struct zt_model *m, int h);
/* Under full checkpointing: whether backward reads something of what the half computes. */
static inline bool zt_is_replayed(const struct zt_half *k) {
    return k->recompute == ZT_RECOMPUTE_FULL && (k->to_mixed || k->trains_out);
}
static inline enum zt_tag zt_tag_of(bool kept) {
    return kept ? ZT_TAG_ACTIVATIONS : ZT_TAG_TEMPORARY;
}

/* ---- half.c, mix.c, head.c, chain.c ---- */

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

/* mixed from wide, in a buffer of its own; p, dp: the half's tensors and gradients. */
int zt_mix_forward(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                   struct zt_kept kept, struct zt_error *err);
/* dwide from dmixed, which is dropped, as are wide and what else was saved. SwiGLU: mixed is made
 * again when a weight needs it. */
int zt_mix_backward(struct zt_model *m, const struct zt_batch *b, void *const *p, void *const *dp,
                    int h, struct zt_error *err);

/* The last visit of forward: final norm and head, to m->logits [rows, vocab_rows]; in pieces and
 * without a backward the loss too, with one the norm alone. */
int zt_head_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    struct zt_error *err);
/* Adds the loss; m->logits become their own gradient when there will be a backward. */
int zt_head_loss(struct zt_model *m, const struct zt_batch *b, struct zt_error *err);
/* dstream, from m->logits, which it consumes. */
int zt_head_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                     struct zt_error *err);

int zt_chain_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                     struct zt_error *err);
/* Consumes m->logits and what forward kept. */
int zt_chain_backward(struct zt_model *m, const struct zt_unit_source *src,
                      const struct zt_batch *b, struct zt_error *err);
void zt_chain_release(struct zt_model *m); /* every device buffer still held, after an error */

/* Dropout, counted as in kernels/ops.h; nothing without it. Sites: a place in the model each. */
#define ZT_SITE_EMBEDDING 0u
#define ZT_SITE_ATTENTION(block) (1u + 3u * (uint32_t)(block))
#define ZT_SITE_RESIDUAL(half) (2u + 3u * (uint32_t)((half) / 2) + (uint32_t)((half) % 2))
static inline bool zt_drops(const struct zt_model *m) {
    return m->training && m->table->config.dropout > 0;
}
struct zt_dropout zt_dropout_of(const struct zt_model *m, const struct zt_batch *b, uint32_t site);
/* out = in without what is dropped, own rows of the model's width; may alias. */
int zt_dropout_rows(struct zt_model *m, const struct zt_batch *b, uint32_t site, void *out,
                    const void *in, struct zt_error *err);

/* ---- tensor.c ---- */

/* Why the collectives happen, as struct zt_coll_why has them; at most 47 characters. */
#define ZT_WHY_TENSOR_EMBEDDING "tensor: sum of the embedding's parts"
#define ZT_WHY_TENSOR_ROWS "tensor: rows for a layer cut by columns"
#define ZT_WHY_TENSOR_ROWS_AGAIN "tensor: rows again, for a weight's gradient"
#define ZT_WHY_TENSOR_SUM "tensor: sum behind a layer cut by rows"
#define ZT_WHY_TENSOR_GRADIENT_ROWS "tensor: gradient rows for a layer cut by rows"
#define ZT_WHY_TENSOR_GRADIENT_SUM "tensor: gradient sum before columns"
#define ZT_WHY_TENSOR_LARGEST "tensor: largest logit of each token"
#define ZT_WHY_TENSOR_SOFTMAX "tensor: softmax sums of each token"

static inline int zt_tensor_degree(const struct zt_model *m) {
    return m->env.tensor != NULL ? m->env.tensor->degree : 1;
}
static inline bool zt_tensor_sequence(const struct zt_model *m) {
    return zt_tensor_degree(m) > 1 && m->env.tensor->sequence;
}
static inline int64_t zt_own_rows(const struct zt_model *m, const struct zt_batch *b) {
    return b->B * b->T / (zt_tensor_sequence(m) ? m->env.tensor->degree : 1);
}
/* This rank's rows of the vocabulary. */
static inline struct zt_vocab zt_vocab_of(const struct zt_model *m) {
    const int64_t rows = m->form.vocab_rows, rank = m->env.tensor != NULL ? m->env.tensor->rank : 0;
    return (struct zt_vocab){rank * rows, rows, m->table->config.vocab_size};
}
/* All-reduce of n elements in place; nothing in a group of one. */
int zt_tensor_reduce(struct zt_model *m, const struct zt_batch *b, int unit, void *v, int64_t n,
                     enum zt_dtype t, enum zt_redop op, const char *reason, struct zt_error *err);
/* With sequence parallelism: *whole, a new buffer of all rows, from own ones, of the model's width.
 */
int zt_tensor_gather(struct zt_model *m, const struct zt_batch *b, int unit, const void *own,
                     const char *name, int block, void **whole, const char *reason,
                     struct zt_error *err);
/* *v, parts of all rows' sums, becomes the sums: of own rows, in a new buffer, with sequence
 * parallelism, else of all in place. */
int zt_tensor_sum(struct zt_model *m, const struct zt_batch *b, int unit, void **v, enum zt_tag tag,
                  const char *name, int block, const char *reason, struct zt_error *err);

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

/* A layer of a half with its adapter. forward: bias NULL leaves it out. backward: what is not
 * wanted (dx NULL; dp NULL: no weights) needs no operands; the bias's gradient is apart. */
int zt_layer_forward(struct zt_model *m, const struct zt_linear_form *f, void *const *p,
                     int64_t rows, int64_t in, const void *x, const void *bias, void *y,
                     struct zt_error *err);
int zt_layer_backward(struct zt_model *m, const struct zt_linear_form *f, void *const *p,
                      void *const *dp, int64_t rows, int64_t in, const void *x, const void *dy,
                      void *dx, bool accumulate, struct zt_error *err);

/* y[rows,out] = x[rows,in] w[out,in]^T + b */
int zt_linear_forward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                      const void *w, const void *b, void *y, struct zt_error *err);
/* dx = (or += ) dy w (dx NULL: not wanted); dw += dy^T x, db += column sums of dy (NULL: frozen or
 * absent). What is not wanted needs no operands. */
int zt_linear_backward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                       const void *w, const void *dy, void *dx, bool accumulate, void *dw, void *db,
                       struct zt_error *err);
int zt_bias_backward(struct zt_model *m, int64_t rows, int64_t out, const void *dy, void *db,
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
