/* SPDX-License-Identifier: Apache-2.0 */
/* core/model.h: what a model is before any memory exists: its numbers, presets, the tensor table
 * and the ordered list of units. Pure; the table is one malloc owned by the caller.
 *
 * A unit is what is gathered and reduced at once: with a tied head the root unit (0) holds
 * [embeddings, final norm, head]; then one unit per transformer block, in forward order. */
#ifndef ZT_CORE_MODEL_H
#define ZT_CORE_MODEL_H
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"

enum zt_family { ZT_GPT2 = 0, ZT_LLAMA = 1 };

struct zt_model_config {
    enum zt_family family;
    int64_t layers, heads, kv_heads, head_dim, dim, ffn_dim, vocab_size, seq_len_max;
    double rope_theta, norm_eps, dropout;
    bool tied_head, qkv_bias, qk_norm;
};

/* Fills *c from a preset; ZT_ENOTFOUND names the nearest preset. */
int zt_model_preset(const char *name, struct zt_model_config *c, struct zt_error *err);
/* Name of the i-th preset, NULL past the end. */
const char *zt_model_preset_name(int i);
int zt_model_config_check(const struct zt_model_config *c, struct zt_error *err);

/* Parameters in closed form, for every family, also one that has no table yet. */
struct zt_model_count {
    int64_t parameters;    /* a tied head counts once */
    int64_t replicated;    /* whole on every tensor-parallel rank: norms, biases behind a row cut, positions */
    int64_t largest_layer; /* of one layer: a matrix with its bias */
};
int zt_model_count(const struct zt_model_config *c, struct zt_model_count *out, struct zt_error *err);

enum zt_init { ZT_INIT_NORMAL, ZT_INIT_ZERO, ZT_INIT_ONE };

struct zt_tensor_def {
    char name[96];          /* Hugging Face name, e.g. "transformer.h.3.attn.c_attn.weight" */
    int unit;               /* index into the units */
    int ndim;               /* 1 or 2 */
    int64_t shape[2];       /* [out, in] for weights (torch Linear order), shape[1] = 1 for 1-D */
    int64_t numel;
    int tp_dim;             /* dimension cut by tensor parallelism, -1 = replicated */
    int tp_heads;           /* fused qkv: 3 pieces, each cut per head; 0 = plain cut */
    bool frozen;
    bool decay;             /* weight decay applies (ndim >= 2 unless optimizer.decay_1d) */
    enum zt_init init;
    double init_std;        /* NORMAL: 0.02, residual outputs 0.02/sqrt(2 L) */
};

struct zt_unit_def { char name[32]; int first_tensor, n_tensors; };

/* How blocks become units: one each; `blocks` of them together ("blocks0-1"); or two units each, up
 * to the attention's residual and after it ("block0.attn", "block0.mlp"). */
enum zt_wrap { ZT_WRAP_BLOCK = 0, ZT_WRAP_N, ZT_WRAP_PART };

struct zt_model_table {
    struct zt_model_config config;
    int n_tensors, n_units;
    struct zt_tensor_def *tensors;  /* in table order: by unit, then by layer order */
    struct zt_unit_def *units;
    int64_t parameters;             /* sum of numel; a tied head counts once */
};

/* GPT-2 tensor order inside a block: ln_1.weight ln_1.bias attn.c_attn.weight [3C,C]
 * attn.c_attn.bias attn.c_proj.weight [C,C] attn.c_proj.bias ln_2.weight ln_2.bias
 * mlp.c_fc.weight [F,C] mlp.c_fc.bias mlp.c_proj.weight [C,F] mlp.c_proj.bias.
 * Root: wte.weight [V,C] wpe.weight [S,C] ln_f.weight ln_f.bias. */
int zt_model_table_build(const struct zt_model_config *c, enum zt_wrap wrap, int blocks,
                         struct zt_model_table *t, struct zt_error *err);
/* Patterns over tensor names (fnmatch: "*.ln_1.*"); what none matches is frozen. ZT_EINVAL names a
 * pattern without a match, and a list that leaves nothing to train. */
int zt_model_set_trainable(struct zt_model_table *t, const char *const *patterns, int n,
                           struct zt_error *err);

/* The order in which a micro-step asks for units: forward[n_forward], then backward[n_backward]. A
 * unit that is open twice in forward (the tied root) is there twice. Backward ends at the first
 * unit in forward order that has something to train: no gradient flows further. The arrays hold
 * n_units + 1 entries each. */
struct zt_model_walk { int n_forward, n_backward; int *forward, *backward; };
int zt_model_walk_build(const struct zt_model_table *t, struct zt_model_walk *w,
                        struct zt_error *err);
void zt_model_walk_free(struct zt_model_walk *w);
void zt_model_table_free(struct zt_model_table *t);

#endif
