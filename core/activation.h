/* SPDX-License-Identifier: Apache-2.0 */
/* core/activation.h: bytes of activations that one transformer layer keeps from its forward to its
 * backward, in closed form, for those who know a model's numbers (docs/planner.md, "Activations").
 * What a run holds besides (embeddings, final norm, logits, temporaries, slack of blocks) is counted
 * by a plan. s sequence, b batch, h width, a heads, q = a x head width, k = kv heads x head width,
 * f width of the MLP, t tensor-parallel ranks. Pure; any thread. */
#ifndef ZT_CORE_ACTIVATION_H
#define ZT_CORE_ACTIVATION_H
#include "core/dtype.h"
#include "core/spec.h"

/* Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
 * (arXiv 2205.05198), section 4 and table 2: 16-bit activations, one byte an element of a dropout
 * mask, attention whose probabilities are stored, MLP of 4h. Per layer:
 *   none        s b h (34 + 5 a s / h)             selective   34 s b h
 *   TP          s b h (10 + 24/t + 5 a s / (h t))              s b h (10 + 24/t)
 *   TP + SP     s b h (34 + 5 a s / h) / t                     34 s b h / t
 *   full        2 s b h; TP + SP 2 s b h / t: the layer's input */
struct zt_korthikanti {
    int64_t sequence, batch, width, heads;
    int tensor;
    bool sequence_parallel;
};
int64_t zt_activation_korthikanti(const struct zt_korthikanti *k, enum zt_recompute recompute);
/* The same in symbols: "sbh(10 + 24/t)". */
const char *zt_activation_korthikanti_formula(bool tensor, bool sequence_parallel,
                                              enum zt_recompute recompute);

/* Of an MLP with a gate, what is kept of gate, up, silu(gate) and their product. Without a gate: what
 * goes into the activation function and what comes out of it, in each of them. */
enum zt_activation_mlp {
    ZT_MLP_ALL = 0, /* all four */
    ZT_MLP_PRODUCT, /* SwiGLU in one kernel: gate, up, product */
    ZT_MLP_INPUTS,  /* gate and up; the product is made again (this program) */
};

/* A layer of this program: attention keeps no probabilities but a log-sum-exp per token and head, norms
 * keep their input, what comes out of them and one figure a token (RMSNorm) or two (LayerNorm) in
 * fp32. c bytes an element of an activation, per token:
 *   none        c (4 h + 2 q + 2 k + mlp), and of the statistics 4 a + 8 (Llama) or 4 a + 16
 *   selective   c (2 h + 2 q + 2 k + f or 2 f): norms and activation functions are done again; 4 a
 *   full        c h: the layer's input; while a layer is recomputed its `none` comes on top, once
 * mlp: 4 f, 3 f, 2 f as above; 2 f without a gate. Tensor parallelism divides q, k, f, a by t,
 * sequence parallelism the rest too. */
struct zt_activation_case {
    const struct zt_model_config *model;
    int64_t sequence, batch;
    int tensor;
    bool sequence_parallel;
    enum zt_dtype type;
    enum zt_activation_mlp mlp;
};
struct zt_activation { int64_t tensors, statistics; };
struct zt_activation zt_activation_layer(const struct zt_activation_case *c,
                                         enum zt_recompute recompute);
#endif
