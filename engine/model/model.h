/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model.h: a transformer with forward and backward written by hand, on one device, over
 * parameters it does not own. Where parameters and gradients come from (whole, sharded, gathered) is
 * the sharding runtime's business: the model asks for a unit before it uses it and gives it back after.
 *
 * Activations come from the allocator (tag activations: saved for backward; temporary: not saved),
 * allocated and freed at fixed points of program order. Gradients are accumulated (+=) into the
 * unit's gradient buffers. Thread rule: the trainer thread. */
#ifndef ZT_ENGINE_MODEL_H
#define ZT_ENGINE_MODEL_H
#include "core/model.h"
#include "engine/comm/comm.h"
#include "engine/device/alloc.h"
#include "kernels/ops.h"

/* Pointers to a unit's tensors by their index inside the unit (table order); n_tensors of each. The
 * arrays belong to the source and are good until the unit's end. Parameters are of the model's
 * compute type, gradients of its gradient type. */
struct zt_unit_view { void *const *param; void *const *grad; };

/* The runtime's side. Called in this order for a tied GPT-2 of units 0..U and one micro-batch:
 *   forward_begin(0) embedding forward_end(0), forward_begin(1) blocks forward_end(1), ... (U),
 *   forward_begin(0) final norm + head forward_end(0);
 *   backward_begin(0) head + final norm, backward_begin(U) blocks backward_end(U), ..., (1),
 *   embedding, backward_end(0).
 * Untied, the embeddings' unit comes first and the head's last, each once forward and once backward.
 * Backward ends at the lowest unit that trains. With frozen embeddings backward_end(0) follows the
 * final norm. zt_model_walk (core/model.h) gives the order of the begins for every table: a source may
 * rely on it to fetch ahead. begin fills *view and returns when the pointers are ready; backward_begin
 * also provides gradient buffers (zeroed at the window's first use); those of frozen tensors are not
 * looked at.
 * parameters_done, between backward_begin and backward_end: the unit's parameters (not its
 * gradients) are needed no more; called where the unit stays open after that (the tied root, open
 * until the embedding's gradient is in). */
struct zt_unit_source {
    void *arg;
    int (*forward_begin)(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err);
    int (*forward_end)(void *arg, int unit, struct zt_error *err);
    int (*backward_begin)(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err);
    int (*parameters_done)(void *arg, int unit, struct zt_error *err);
    int (*backward_end)(void *arg, int unit, struct zt_error *err);
};

/* Tensor parallelism: this rank's place in the group whose ranks hold the parts of every layer, see
 * the same rows and run the same calls. Collectives run on the compute stream; busy(arg, false) and
 * busy(arg, true) are called around each, so that compute intervals leave them out. sequence: what is
 * between the cut layers (norms, residuals) is cut by rows, [B*T] in `degree` equal parts, which
 * degree must divide. comm may be filled in after the model was made, the rest not. */
struct zt_tensor_group {
    struct zt_comm *comm;
    int degree, rank;
    bool sequence;
    void *arg;
    void (*busy)(void *arg, bool computing); /* NULL: nobody measures */
};

struct zt_model;
struct zt_model_env {
    const struct zt_ops *ops; struct zt_ops_ctx *ctx;
    struct zt_alloc *alloc; struct zt_device *device; struct zt_ledger *ledger;
    enum zt_dtype compute; /* parameters as handed over, activations */
    enum zt_dtype grad;    /* parameter gradients: compute or fp32 */
    /* Activation checkpointing of every n-th block (0: as 1). The same bits whatever is recomputed. */
    enum zt_recompute recompute;
    int64_t recompute_every;
    /* Head and loss in pieces of so many rows: logits never exist whole. 0: whole. */
    int64_t chunk_tokens;
    int64_t positions;     /* the longest sequence there will be; 0: seq_len_max */
    uint64_t dropout_seed;
    double lora_scale;     /* of adapters: alpha / rank */
    const struct zt_tensor_group *tensor; /* NULL: none; must outlive the model */
};
/* One micro-batch; tokens, targets and what belongs to them are device pointers [B*T]. targets -1 =
 * not counted. weights: factors of the tokens' losses and gradients, NULL = 1. starts: the first
 * position of its sequence that a position attends to, NULL = 0 (kernels/ops.h). Row b is sequence
 * first_sample + b * sample_stride (0 as 1) among all of the optimizer step `step`: with them
 * dropout depends on neither ranks nor micro-batches. */
struct zt_batch {
    const int32_t *tokens, *targets;
    int64_t B, T;
    const float *weights;
    const int32_t *starts;
    int64_t first_sample, sample_stride, step;
};

/* The table stays as it is while the model lives: what is frozen decides what is computed and saved. */
int zt_model_create(const struct zt_model_table *table, const struct zt_model_env *env,
                    struct zt_model **out, struct zt_error *err);
void zt_model_destroy(struct zt_model *m);

/* Forward, loss and (when backward) gradients scaled by loss_scale: the loss whose gradient is taken
 * is loss_scale * sum over valid tokens of -weight log p. Adds the weighted token losses to *loss_sum
 * and the valid tokens to *valid, on every tensor rank those of the whole batch. Sets the ledger
 * phases forward and backward itself (eval = true: phase eval). Two facts apart: without `backward`
 * nothing is saved; with `eval` there is no dropout. In evaluation a batch of no rows (B = 0) asks
 * for the same units in the same order and computes nothing: a rank that has run out of rows keeps in
 * step with the others. */
int zt_model_step(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                  float loss_scale, bool backward, bool eval, struct zt_fixsum *loss_sum,
                  int64_t *valid, struct zt_error *err);

/* For tests and tools: logits [B*T, V] of one batch into a caller's device buffer, without dropout;
 * on a tensor rank those of its part of the vocabulary. */
int zt_model_logits(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    void *logits, struct zt_error *err);

/* Called around each compute segment when set, for the intervals (name: static string). */
void zt_model_set_trace(struct zt_model *m, void (*fn)(void *arg, const char *name, int unit,
                                                       int64_t start_ns, int64_t end_ns), void *arg);
#endif
