/* SPDX-License-Identifier: Apache-2.0 */
/* core/model.h: what a model is before any memory exists: its numbers, presets, the tensor table
 * and the ordered list of units. Pure; the table's arrays belong to the caller.
 *
 * A unit is what is gathered and reduced at once. With a tied head the first one, "root", holds the
 * embeddings, the final norm and the head, which is the token embedding; then come the blocks, in
 * forward order. Untied: "embed", the blocks, and last "head" with the final norm, so that neither
 * of the two big matrices is gathered with the other. */
#ifndef ZT_CORE_MODEL_H
#define ZT_CORE_MODEL_H
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"
#include "core/rope.h"
#include "core/span.h"

enum zt_family { ZT_GPT2 = 0, ZT_LLAMA = 1 };

/* Activation checkpointing: what backward computes once more instead of reading it. */
enum zt_recompute { ZT_RECOMPUTE_NONE = 0, ZT_RECOMPUTE_SELECTIVE, ZT_RECOMPUTE_FULL };

struct zt_model_config {
    enum zt_family family;
    int64_t layers, heads, kv_heads, head_dim, dim, ffn_dim, vocab_size, seq_len_max;
    double rope_theta, norm_eps, dropout;
    bool tied_head, qkv_bias, qk_norm;
    struct zt_rope rope_scaling;
};

/* Fills *c from a preset; ZT_ENOTFOUND names the nearest preset. */
int zt_model_preset(const char *name, struct zt_model_config *c, struct zt_error *err);
/* Name of the i-th preset, NULL past the end. */
const char *zt_model_preset_name(int i);
int zt_model_config_check(const struct zt_model_config *c, struct zt_error *err);

/* Parameters in closed form; the same numbers as the tables'. */
struct zt_model_count {
    int64_t parameters;    /* a tied head counts once */
    int64_t replicated;    /* whole on every tensor-parallel rank: norms, biases behind a row cut, positions. A rank
                            * of t has (parameters - replicated) / t + replicated, and padding of its vocabulary */
    int64_t largest_layer; /* of one layer: a matrix with its bias */
};
int zt_model_count(const struct zt_model_config *c, struct zt_model_count *out, struct zt_error *err);

enum zt_init { ZT_INIT_NORMAL, ZT_INIT_ZERO, ZT_INIT_ONE };

/* What a tensor is for, the same in every family. QKV: queries, keys and values in one (gpt2); Q, K, V
 * apart (llama). UP is gpt2's c_fc. A tied head has no tensor of its own. */
enum zt_role {
    ZT_ROLE_EMBEDDING = 0, ZT_ROLE_POSITIONS,
    ZT_ROLE_NORM1, ZT_ROLE_QKV, ZT_ROLE_Q, ZT_ROLE_K, ZT_ROLE_V, ZT_ROLE_Q_NORM, ZT_ROLE_K_NORM,
    ZT_ROLE_ATTENTION_OUT, ZT_ROLE_NORM2, ZT_ROLE_GATE, ZT_ROLE_UP, ZT_ROLE_DOWN,
    ZT_ROLE_FINAL_NORM, ZT_ROLE_HEAD,
};
enum zt_piece { ZT_WEIGHT = 0, ZT_BIAS, ZT_LORA_A, ZT_LORA_B };

/* Never; under sequence parallelism (norms and row biases see a part of the rows); always (norms inside
 * the heads see the rank's own heads). */
enum zt_tp_sum { ZT_TP_SUM_NEVER = 0, ZT_TP_SUM_SEQUENCE, ZT_TP_SUM_ALWAYS };

struct zt_tensor_def {
    char name[96];          /* Hugging Face name, e.g. "transformer.h.3.attn.c_attn.weight" */
    uint32_t number;        /* draws, hashes and rounding know it by this: its index, and those of adapters come
                             * after all others', so that these stay what they are without adapters */
    int unit;               /* index into the units */
    int layer;              /* -1 outside the blocks */
    enum zt_role role;
    enum zt_piece piece;
    int ndim;               /* 1 or 2 */
    int64_t whole[2];       /* of the model: [out, in] for weights (torch Linear order), [1] = 1 for 1-D */
    int64_t shape[2];       /* of this tensor rank; whole unless the table is cut. With vocabulary padding. */
    int64_t numel;          /* shape[0] x shape[1] */
    int tp_dim;             /* dimension cut by tensor parallelism, -1 = replicated */
    int tp_heads;           /* fused qkv: 3 pieces, each cut per head; 0 = plain cut */
    enum zt_tp_sum tp_sum;  /* when a rank's gradient of a replicated tensor is a part, to be summed over the
                             * tensor group */
    bool frozen;
    bool decay;             /* weight decay applies (ndim >= 2 unless optimizer.decay_1d) */
    enum zt_init init;
    double init_std;        /* NORMAL: 0.02, residual outputs 0.02/sqrt(2 L) */
};

static inline bool zt_tensor_is_partial(const struct zt_tensor_def *d, bool sequence_parallel) {
    return d->tp_sum == ZT_TP_SUM_ALWAYS || (d->tp_sum == ZT_TP_SUM_SEQUENCE && sequence_parallel);
}

struct zt_unit_def { char name[32]; int first_tensor, n_tensors; };

/* How blocks become units: one each; `blocks` of them together ("blocks0-1"); or two units each, up
 * to the attention's residual and after it ("block0.attn", "block0.mlp"). */
enum zt_wrap { ZT_WRAP_BLOCK = 0, ZT_WRAP_N, ZT_WRAP_PART };

struct zt_model_table {
    struct zt_model_config config;
    int n_tensors, n_units;
    struct zt_tensor_def *tensors;  /* in table order: by unit, then by layer order */
    struct zt_unit_def *units;
    int64_t parameters;             /* of the whole model, however it is cut; a tied head counts once */
    int tensor_degree, tensor_rank; /* 1, 0 until it is cut */
    int64_t vocab_rows;             /* of this rank's embedding and head: ceil(V / degree), the last ones padding */
};

/* Tensors of a block, in order; H heads and KV key/value heads of width D, C dim, F ffn_dim:
 *   gpt2   ln_1.weight .bias, attn.c_attn.weight [3C,C] .bias, attn.c_proj.weight [C,C] .bias,
 *          ln_2.weight .bias, mlp.c_fc.weight [F,C] .bias, mlp.c_proj.weight [C,F] .bias
 *   llama  input_layernorm.weight, self_attn.q_proj.weight [HD,C], k_proj and v_proj [KV D,C] (each with
 *          its .bias under qkv_bias), q_norm.weight and k_norm.weight [D] under qk_norm,
 *          o_proj.weight [C,HD], post_attention_layernorm.weight, mlp.gate_proj.weight and
 *          up_proj [F,C], down_proj [C,F]
 * Outside: gpt2 wte.weight [V,C] wpe.weight [S,C], ln_f.weight .bias; llama embed_tokens.weight,
 * norm.weight; lm_head.weight [V,C] unless tied. Initial values: norms 1, biases 0, else normal. */
int zt_model_table_build(const struct zt_model_config *c, enum zt_wrap wrap, int blocks,
                         struct zt_model_table *t, struct zt_error *err);
/* Adapters: freezes what there is and puts two tensors behind each linear [out,in] whose module ("*.q_proj":
 * patterns over names without ".weight") is a target, in its unit: "MODULE.lora_A.weight" [rank,in], normal,
 * and "MODULE.lora_B.weight" [out,rank], zero, so that the model starts as it was. The variance of A is
 * 1 / (3 in), which is that of the uniform draw that PEFT makes, so that its learning rates hold here. On
 * gpt2's c_attn an adapter is one pair for queries, keys and values together: they share A, and B is cut
 * per head as c_attn is. Before a cut. ZT_EINVAL names a pattern that matches no linear of a block, and
 * a rank that no layer named can have. */
int zt_model_table_add_lora(struct zt_model_table *t, int64_t rank, const char *const *targets, int n,
                            struct zt_error *err);
/* The degree must divide heads, kv_heads and ffn_dim: ZT_EINVAL names what it does not divide, and the
 * degrees that there are, the divisors of zt_model_degrees. */
int zt_model_cut_check(const struct zt_model_config *c, int degree, struct zt_error *err);
int64_t zt_model_degrees(const struct zt_model_config *c);
/* Makes a whole table that of one rank of a tensor group: shapes and numel become the rank's part, the
 * configuration stays the model's. Columns of a linear are its outputs (dimension 0), rows its inputs
 * (dimension 1); heads are never cut. Every rank's table has the same shapes. ZT_EINVAL as above. */
int zt_model_table_cut(struct zt_model_table *t, int degree, int rank, struct zt_error *err);

/* The longest stretch of d's elements [at, at + n) of this rank that one span describes; d is a tensor of
 * the table. padding: rows past the vocabulary, which stand for no element (kept zero, never drawn,
 * counted or stored); there the span says nothing. n >= 1 gives count >= 1. */
struct zt_part_run { int64_t count; struct zt_span span; bool padding; };
struct zt_part_run zt_tensor_run(const struct zt_model_table *t, const struct zt_tensor_def *d,
                                 int64_t at, int64_t n);
/* Index of a tensor, -1 when the model has none such. */
int zt_model_find(const struct zt_model_table *t, int layer, enum zt_role role, enum zt_piece piece);
/* Patterns over tensor names (fnmatch: "*.ln_1.*"); what none matches is frozen. ZT_EINVAL names a
 * pattern without a match, and a list that leaves nothing to train. */
int zt_model_set_trainable(struct zt_model_table *t, const char *const *patterns, int n,
                           struct zt_error *err);

/* The order in which a micro-step asks for units: forward[n_forward], then backward[n_backward]. A
 * tied root is there twice in forward, and once in backward, where it comes first; untied, every unit
 * is there once each way. Backward ends at the first unit in forward order that has something to
 * train: no gradient flows further. The arrays hold n_units + 1 entries each. */
struct zt_model_walk { int n_forward, n_backward; int *forward, *backward; };
int zt_model_walk_build(const struct zt_model_table *t, struct zt_model_walk *w,
                        struct zt_error *err);
void zt_model_walk_free(struct zt_model_walk *w);
void zt_model_table_free(struct zt_model_table *t);

#endif
