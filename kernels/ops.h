/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/ops.h: the operators, one table per device. kernels/cpu implements it here; cuda in the
 * same order with the same names; sim only costs it.
 *
 * Rules (decisions D1-D3): kernels never allocate device memory: outputs and workspace are handed
 * in; every operator that needs scratch has a *_workspace(shape) that is a pure function of the
 * shape. Results have the same bits for any number of threads. Kernels know nothing of training.
 *
 * Letters: B batch, T sequence, N = B*T rows, C width, V vocabulary (padded width given apart),
 * H heads, D head width, F feed-forward width. Matrices are row-major. All pointers are device
 * pointers of `t`; gradients of parameters are of `gt`, which is t or fp32; statistics, losses and
 * log-sum-exps are always fp32. Arithmetic and sums are fp32 whatever the types: an operand is
 * widened exactly, a result is rounded once, to nearest even. A dtype that an operator does
 * not have answers ZT_EUNSUPPORTED, never something else. Thread rule: one caller at a time
 * per zt_ops_ctx (the compute stream); the context's pool works underneath. */
#ifndef ZT_KERNELS_OPS_H
#define ZT_KERNELS_OPS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/cost.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/fixsum.h"
#include "core/span.h"

struct zt_ops_ctx; /* pool, GEMM plans, dispatch level: created per trainer */

/* C[M,N] = A[M,K] B, in the three orientations of a linear layer (W is [out,in] = torch's order):
 *   FWD: y[rows,out]  = x[rows,in] W^T (+ bias[out])      M=rows N=out K=in
 *   DX : dx[rows,in]  = dy[rows,out] W                    M=rows N=in  K=out
 *   DW : dw[out,in]   = dy^T x                            M=out  N=in  K=rows */
enum zt_gemm_op { ZT_GEMM_FWD = 0, ZT_GEMM_DX, ZT_GEMM_DW };

struct zt_adamw_params {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;      /* t, from 1 */
    double grad_scale; /* clip coefficient, multiplied into g (1.0 = none) */
    /* Stochastic rounding of what is stored in bf16 (D10): keyed by seed, step, tensor and logical
     * index in it, which `span` tells. Else nearest even, and nobody looks at `span`. */
    bool stochastic;
    uint64_t seed;
    uint32_t tensor;
    struct zt_span span;
};

/* What AdamW reads and writes, n elements each. One of
 *   param fp32, no master;
 *   param bf16 or fp16 beside an fp32 master: the master is stepped, param gets its nearest-even copy;
 *   param bf16, no master: stepped in fp32 from the bf16 value and rounded once.
 * Moments fp32 or bf16; a gradient of any float type. All arithmetic is fp32. */
struct zt_adamw_buffers {
    void *param;
    enum zt_dtype param_type;
    float *master; /* NULL: param is the authoritative value */
    void *m, *v;
    enum zt_dtype moment_type;
    const void *grad;
    enum zt_dtype grad_type;
};

/* Dropout by counter: element e of a stream draws word e % 4 of zt_rng_words(seed, ZT_RNG_DROPOUT,
 * step, site, e / 4) and is dropped when that is below (uint32_t)(p 2^32); what is kept is
 * multiplied by 1 / (1 - p). So forward, backward and a recomputation drop the same, whatever the
 * threads, tiles or ranks. 0 <= p < 1; p = 0: none. site < 2^24: the place in the model. */
struct zt_dropout {
    float p;
    uint64_t seed;
    uint32_t step, site;
};

/* Causal attention with grouped queries. q [B*T, H, D], k and v [B*T, KV, D], each with its own
 * distance between rows in elements, so that parts of one fused buffer and separate buffers both
 * do; dq, dk and dv have the distances of q, k and v. Query head h reads key-value head
 * h / (H / KV). Position t of a sequence attends to starts[row] .. t, where 0 <= starts[row] <= t:
 * the first position of the document it belongs to. Dropout is on the probabilities, of element
 * ((sample heads_all + head) T + query) T4 + key, T4 = T rounded up to a multiple of 4; row b of the
 * batch is sample first_sample + b sample_stride (0 reads as 1), heads count from first_head. */
struct zt_attention {
    int64_t B, T, H, KV, D; /* of this rank; KV divides H */
    int64_t q_row, k_row, v_row;
    const int32_t *starts; /* [B*T] in device memory, or NULL: all 0 */
    struct zt_dropout dropout;
    /* this rank's place among all, for dropout alone */
    int64_t first_sample, sample_stride, first_head, heads_all;
};

/* Rows [first, first + rows) of a vocabulary of `whole`, one rank's part of it; what lies beyond
 * `whole` is padding, which stands for no token. */
struct zt_vocab {
    int64_t first, rows, whole;
};
static inline struct zt_vocab zt_vocab_all(int64_t V) { return (struct zt_vocab){0, V, V}; }
/* How many of the rows are no padding. */
static inline int64_t zt_vocab_valid(struct zt_vocab v) {
    const int64_t left = v.whole - v.first;
    return left < 0 ? 0 : left < v.rows ? left : v.rows;
}

struct zt_ops {
    const char *device; /* "cpu", "cuda", "sim" */

    /* One GEMM interface. t: type of A, B and the bias; ct: type of C, t or fp32 (the fp32 gradient of
     * 16-bit operands). accumulate: C += ..., where the old C enters the sum is the library's choice
     * (fixed by the shape; adding to zeros gives what writing gives); bias only with FWD, may be NULL.
     * workspace holds the packed weights of FWD and DX (gemm_workspace bytes; 0 for DW and for heads,
     * N or K >= 8192). NULL workspace: plain weights, slower. lda etc. are dense. */
    size_t (*gemm_workspace)(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K, enum zt_dtype t);
    int (*gemm)(struct zt_ops_ctx *x, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                enum zt_dtype t, const void *A, const void *Bm, const void *bias, void *Cm,
                enum zt_dtype ct, bool accumulate, void *workspace, struct zt_error *err);

    /* db[C] (+)= column sums of dy[N,C] */
    size_t (*bias_backward_workspace)(int64_t N, int64_t C);
    int (*bias_backward)(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *db,
                         const void *dy, int64_t N, int64_t C, bool accumulate, void *workspace,
                         struct zt_error *err);

    /* out[B*T,C] = wte[token] + wpe[position] (wpe NULL: no positions). wte [v.rows, C]; a token
     * that is another part's counts as a row of zeros. ZT_EDATA names the place of a token outside the
     * whole vocabulary. */
    int (*embedding_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const int32_t *tokens,
                             const void *wte, const void *wpe, int64_t B, int64_t T, int64_t C,
                             struct zt_vocab v, struct zt_error *err);
    /* dwte[v.rows,C] += , dwpe[T..,C] +=, either may be NULL; tokens of other parts add to dwpe alone.
     * Additions in token order, so bits do not depend on threads. The workspace (N = B*T rows) orders
     * the tokens of a 16-bit gradient, whose rows are summed in fp32 and rounded once; none for an
     * fp32 one. */
    size_t (*embedding_backward_workspace)(int64_t N, enum zt_dtype gt);
    int (*embedding_backward)(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dwte,
                              void *dwpe, const void *dout, const int32_t *tokens, int64_t B,
                              int64_t T, int64_t C, struct zt_vocab v, void *workspace,
                              struct zt_error *err);

    /* LayerNorm over the last dimension; residual != NULL: first sum = in + residual (written to
     * `sum`, which later layers read), then normalise it. mean, rstd [N] fp32. */
    int (*layernorm_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *mean,
                             float *rstd, const void *in, const void *residual, void *sum,
                             const void *weight, const void *bias, int64_t N, int64_t C, double eps,
                             struct zt_error *err);
    size_t (*layernorm_backward_workspace)(int64_t N, int64_t C);
    /* dx = or += (accumulate_dx) ; dweight, dbias +=, either may be NULL */
    int (*layernorm_backward)(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                              void *dweight, void *dbias, const void *dout, const void *in,
                              const void *weight, const float *mean, const float *rstd, int64_t N,
                              int64_t C, bool accumulate_dx, void *workspace,
                              struct zt_error *err);

    /* RMSNorm over the last dimension: out = in rstd weight, rstd [N] fp32 = (mean(in^2) + eps)^-1/2;
     * residual and sum as in layernorm_forward. out may alias in (or sum). */
    int (*rmsnorm_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *rstd,
                           const void *in, const void *residual, void *sum, const void *weight,
                           int64_t N, int64_t C, double eps, struct zt_error *err);
    size_t (*rmsnorm_backward_workspace)(int64_t N, int64_t C);
    /* dx = or += (accumulate_dx), may alias dout; dweight +=, may be NULL */
    int (*rmsnorm_backward)(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                            void *dweight, const void *dout, const void *in, const void *weight,
                            const float *rstd, int64_t N, int64_t C, bool accumulate_dx,
                            void *workspace, struct zt_error *err);

    /* Dropout of n elements; element i is the stream's element that `span` tells, so any cut of the
     * rows drops the same. out = in / (1 - p) where kept, else 0; may alias. It is its own gradient:
     * backward hands in the output's gradient. ZT_EINVAL for a p or a site that cannot be. */
    int (*dropout)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                   const struct zt_dropout *d, struct zt_span span, struct zt_error *err);

    /* Rotary positions, in place on `heads` neighbouring heads of width D in each of B*T rows that
     * are `row` elements apart. Half-split pairs: (a, b) = (v[i], v[i + D/2]) becomes (a cos - b sin,
     * b cos + a sin); inverse: by the angle's negative, which is its gradient. table [T, 2, D/2] fp32:
     * a position's cosines, then its sines (core/rope.h). ZT_EINVAL for an odd D. */
    int (*rope)(struct zt_ops_ctx *x, enum zt_dtype t, void *v, int64_t row, const float *table,
                int64_t B, int64_t T, int64_t heads, int64_t D, bool inverse, struct zt_error *err);

    /* GELU, tanh form. n elements. dx may alias dout. */
    int (*gelu_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                        struct zt_error *err);
    int (*gelu_backward)(struct zt_ops_ctx *x, enum zt_dtype t, void *dx, const void *in,
                         const void *dout, int64_t n, struct zt_error *err);

    /* SwiGLU: out = silu(gate) up, silu(z) = z / (1 + e^-z). n elements; out may alias gate or up. */
    int (*swiglu_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *gate,
                          const void *up, int64_t n, struct zt_error *err);
    /* product (NULL: not wanted) = forward's out again, with its bits. Each element of gate, up and
     * dout is read before the results of that element are written: a result may alias any of them. */
    int (*swiglu_backward)(struct zt_ops_ctx *x, enum zt_dtype t, void *dgate, void *dup,
                           void *product, const void *gate, const void *up, const void *dout,
                           int64_t n, struct zt_error *err);

    /* Tiled with online softmax: no T x T matrix exists. out [B*T, H, D] dense, lse [B,H,T] =
     * log-sum-exp of the scaled scores, without dropout. softmax scale = 1/sqrt(D). Tiles that are
     * masked whole, above the diagonal or before all starts, cost nothing. The workspaces depend on
     * the shape in `a` alone. dk and dv sum over the heads of a group in their order; dq, dk and dv
     * overlap nothing that is read. ZT_EINVAL: sizes, distances or p that cannot be; ZT_EDATA names
     * the row of a start outside [0, t]. */
    size_t (*attention_workspace)(const struct zt_attention *a, enum zt_dtype t);
    int (*attention_forward)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                             const void *q, const void *k, const void *v,
                             const struct zt_attention *a, void *workspace, struct zt_error *err);
    size_t (*attention_backward_workspace)(const struct zt_attention *a, enum zt_dtype t);
    int (*attention_backward)(struct zt_ops_ctx *x, enum zt_dtype t, void *dq, void *dk, void *dv,
                              const void *dout, const void *q, const void *k, const void *v,
                              const void *out, const float *lse, const struct zt_attention *a,
                              void *workspace, struct zt_error *err);

    /* Softmax cross-entropy fused in place: logits[N,V] become dlogits = scale weight (softmax -
     * onehot) when `backward`, else are left undefined. losses[N] fp32, times the row's weight (0
     * where target = -1). weights [N] fp32, NULL: all 1. Rows with target -1 get zero gradient.
     * ZT_EDATA names the row of a target outside [0,V). */
    int (*cross_entropy)(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                         const int32_t *targets, const float *weights, int64_t N, int64_t V,
                         float scale, bool backward, struct zt_error *err);

    /* The same over parts of the vocabulary, in three steps; between them max is combined over the
     * parts by maximum and sums by addition, three floats a row. logits[N, v.rows] are the columns of
     * this part; padding columns are not read and get gradient 0. One part without padding gives
     * cross_entropy's bits.
     *   vocab_max   max[N] of the part's logits; -inf where there are none
     *   vocab_sum   sums[2][N]: the sum of e^(logit - max); the target's logit - max, 0 where the
     *               target is another part's. Both 0 where target = -1. ZT_EDATA as cross_entropy.
     *   vocab_loss  as cross_entropy; losses are those of the whole vocabulary, on every part */
    int (*vocab_max)(struct zt_ops_ctx *x, enum zt_dtype t, float *max, const void *logits, int64_t N,
                     struct zt_vocab v, struct zt_error *err);
    int (*vocab_sum)(struct zt_ops_ctx *x, enum zt_dtype t, float *sums, const void *logits,
                     const float *max, const int32_t *targets, int64_t N, struct zt_vocab v,
                     struct zt_error *err);
    int (*vocab_loss)(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                      const float *sums, const float *max, const int32_t *targets,
                      const float *weights, int64_t N, struct zt_vocab v, float scale, bool backward,
                      struct zt_error *err);

    /* AdamW, T-ADAM's order */
    int (*adamw)(struct zt_ops_ctx *x, const struct zt_adamw_buffers *b, int64_t n,
                 const struct zt_adamw_params *a, struct zt_error *err);

    /* s += sum of squares (or of values) of n elements, exact and order-independent (D44) */
    int (*sum_squares)(struct zt_ops_ctx *x, enum zt_dtype t, const void *g, int64_t n,
                       struct zt_fixsum *s, struct zt_error *err);
    int (*sum_values)(struct zt_ops_ctx *x, const float *v, int64_t n, struct zt_fixsum *s,
                      struct zt_error *err);

    /* elementwise */
    int (*add)(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *a, const void *b,
               int64_t n, struct zt_error *err);              /* out = a + b */
    int (*scale)(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float factor, int64_t n,
                 struct zt_error *err);
    int (*fill)(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float value, int64_t n,
                struct zt_error *err);
    int (*copy)(struct zt_ops_ctx *x, void *dst, const void *src, size_t bytes, struct zt_error *err);
    /* between fp32, bf16 and fp16, to nearest even */
    int (*cast)(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src, enum zt_dtype st,
                int64_t n, struct zt_error *err);
    /* dst = dst + src, added in fp32 and rounded once; any two of fp32, bf16, fp16 */
    int (*accumulate)(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                      enum zt_dtype st, int64_t n, struct zt_error *err);
    /* bf16 from fp32, up with the probability of the part that is cut off: 16 random bits are added
     * and the low half is cleared. NaN and infinity stay. Drawn by logical index (D10), so any cut
     * of a tensor draws the same. */
    int (*round_stochastic)(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const float *src,
                            int64_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                            struct zt_span span, struct zt_error *err);
    /* Fills n elements of a logical tensor: N(0, std) by Philox, each by its logical index (D10).
     */
    int (*fill_normal)(struct zt_ops_ctx *x, enum zt_dtype t, void *v, uint64_t seed,
                       uint32_t tensor, struct zt_span span, int64_t n, double std,
                       struct zt_error *err);

    /* What the host asks the device for, besides the sums above. */
    /* *valid += targets that are not -1 */
    int (*count_targets)(struct zt_ops_ctx *x, const int32_t *targets, int64_t n, int64_t *valid,
                         struct zt_error *err);
    /* sum (low, high word) += XXH3-128 of (tensor u32, logical index u64, bits of v[i] as fp32
     * u32), all little-endian, over i < n, mod 2^128 (D12). fp32, bf16, fp16. */
    int (*hash_values)(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       struct zt_span span, int64_t n, uint64_t sum[2], struct zt_error *err);
};

/* How the operators of a device come to be: what a trainer is given. create: the context is the
 * caller's until destroy. describe, compute: see zt_ops_cpu_describe, zt_ops_cpu_compute. */
struct zt_kernels_config {
    int threads;           /* cpu; < 1 = 1 */
    const char *isa, *gemm; /* cpu; NULL = best */
    /* sim: told of the work that an operator would be */
    void (*work)(void *arg, struct zt_cost_work w);
    void *work_arg;
};
struct zt_kernels {
    const char *device;
    const struct zt_ops *(*table)(void);
    int (*create)(const struct zt_kernels_config *c, struct zt_ops_ctx **out, struct zt_error *err);
    void (*destroy)(struct zt_ops_ctx *x);
    const char *(*describe)(const struct zt_ops_ctx *x);
    const char *(*compute)(const struct zt_ops_ctx *x, enum zt_dtype t);
};
extern const struct zt_kernels zt_kernels_cpu; /* kernels/cpu */
extern const struct zt_kernels zt_kernels_sim; /* kernels/sim: operators that only cost */

/* CPU. threads >= 1; isa NULL = best of sse2, avx2, avx512 that the machine has; gemm NULL or "auto"
 * = onednn, else "openblas" or "onednn". Refuses what is not there. */
int zt_ops_cpu_create(int threads, const char *isa, const char *gemm, struct zt_ops_ctx **out,
                      struct zt_error *err);
void zt_ops_cpu_destroy(struct zt_ops_ctx *x);
const struct zt_ops *zt_ops_cpu(void);
/* e.g. "avx512, oneDNN 2.6.3 brg:avx512_core, 2 threads, gemm rule 1": recorded by the coordinator. */
const char *zt_ops_cpu_describe(const struct zt_ops_ctx *x);
/* What a GEMM on operands of type t computes in, e.g. "bf16, fp32 sums" or "fp32 (bf16 emulated)";
 * NULL for a type it does not take. */
const char *zt_ops_cpu_compute(const struct zt_ops_ctx *x, enum zt_dtype t);

#endif
