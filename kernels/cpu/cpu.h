/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/cpu.h: what the files of the CPU backend share: the context and the operators that
 * cpu.c puts in the table. The contract of each operator is in kernels/ops.h. */
#ifndef ZT_KERNELS_CPU_CPU_H
#define ZT_KERNELS_CPU_CPU_H
#include "core/rng.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/ops.h"
#include "kernels/workspace.h"

struct zt_ops_ctx {
    struct zt_pool *pool;
    const struct zt_vec *vec;
    struct zt_gemm *gemm;
    struct zt_fixsum *partial_sum; /* one a thread */
    float **scratch;               /* one a thread, for attention; grows, outside the allocator */
    size_t scratch_floats;
    char text[256];
};

/* ZT_EUNSUPPORTED, naming the operator, unless t is fp32, bf16 or fp16; and unless gt, the type of
 * a parameter's gradient or of a result, is t or fp32. */
int zt_cpu_need_float(const char *op, enum zt_dtype t, struct zt_error *err);
int zt_cpu_need_result(const char *op, enum zt_dtype t, enum zt_dtype gt, struct zt_error *err);

/* The last counter word of a draw (core/rng.h); refuses an ordinal that would alias a purpose. */
int zt_cpu_stream(const char *op, enum zt_purpose p, uint32_t tensor, uint32_t *stream,
                  struct zt_error *err);

/* What a draw of d is compared with; where it is drawn is the caller's. Refuses a p outside [0, 1).
 */
int zt_cpu_dropout_draw(const char *op, const struct zt_dropout *d, struct zt_vec_dropout *out,
                        struct zt_error *err);

/* The element `index` of a buffer of type t. */
static inline void *zt_cpu_at(const void *buffer, int64_t index, enum zt_dtype t) {
    return (char *)(uintptr_t)buffer + index * (int64_t)(t == ZT_F32 ? sizeof(float) : 2);
}

/* Runs fn over [0, n) in pieces of `grain` elements (grain a multiple of 16: the cut, and so the
 * tails, depend on n alone). */
typedef void zt_cpu_range_fn(void *arg, int64_t first, int64_t count, int thread);
void zt_cpu_range(struct zt_ops_ctx *x, int64_t n, int64_t grain, zt_cpu_range_fn *fn, void *arg);

/* Rows of C elements that make a unit of work of about 16 Ki elements. */
static inline int64_t zt_cpu_unit_rows(int64_t C) {
    const int64_t rows = 16384 / (C > 0 ? C : 1);
    return rows < 1 ? 1 : rows;
}

/* elementwise.c */
int zt_cpu_add(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *a, const void *b,
               int64_t n, struct zt_error *err);
int zt_cpu_scale(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float factor, int64_t n,
                 struct zt_error *err);
int zt_cpu_fill(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float value, int64_t n,
                struct zt_error *err);
int zt_cpu_copy(struct zt_ops_ctx *x, void *dst, const void *src, size_t bytes,
                struct zt_error *err);
int zt_cpu_cast(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                enum zt_dtype st, int64_t n, struct zt_error *err);
int zt_cpu_accumulate(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                      enum zt_dtype st, int64_t n, struct zt_error *err);
int zt_cpu_round_stochastic(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const float *src,
                            int64_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                            struct zt_span span, struct zt_error *err);
int zt_cpu_fill_normal(struct zt_ops_ctx *x, enum zt_dtype t, void *v, uint64_t seed,
                       uint32_t tensor, struct zt_span span, int64_t n, double std,
                       struct zt_error *err);
int zt_cpu_gelu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                        struct zt_error *err);
int zt_cpu_gelu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dx, const void *in,
                         const void *dout, int64_t n, struct zt_error *err);
int zt_cpu_swiglu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *gate,
                          const void *up, int64_t n, struct zt_error *err);
int zt_cpu_swiglu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dgate, void *dup,
                           void *product, const void *gate, const void *up, const void *dout,
                           int64_t n, struct zt_error *err);
int zt_cpu_dropout(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                   const struct zt_dropout *d, struct zt_span span, struct zt_error *err);
int zt_cpu_count_targets(struct zt_ops_ctx *x, const int32_t *targets, int64_t n, int64_t *valid,
                         struct zt_error *err);

/* hash.c */
int zt_cpu_hash_values(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       struct zt_span span, int64_t n, uint64_t sum[2], struct zt_error *err);

/* optim.c */
int zt_cpu_adamw(struct zt_ops_ctx *x, const struct zt_adamw_buffers *b, int64_t n,
                 const struct zt_adamw_params *a, struct zt_error *err);
int zt_cpu_sum_squares(struct zt_ops_ctx *x, enum zt_dtype t, const void *g, int64_t n,
                       struct zt_fixsum *s, struct zt_error *err);
int zt_cpu_sum_values(struct zt_ops_ctx *x, const float *v, int64_t n, struct zt_fixsum *s,
                      struct zt_error *err);

/* layers.c */
int zt_cpu_bias_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *db,
                         const void *dy, int64_t N, int64_t C, bool accumulate, void *workspace,
                         struct zt_error *err);
int zt_cpu_embedding_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, int64_t B,
                             int64_t T, int64_t C, struct zt_vocab v, struct zt_error *err);
int zt_cpu_embedding_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dwte,
                              void *dwpe, const void *dout, const int32_t *tokens, int64_t B,
                              int64_t T, int64_t C, struct zt_vocab v, void *workspace,
                              struct zt_error *err);
int zt_cpu_layernorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *mean,
                             float *rstd, const void *in, const void *residual, void *sum,
                             const void *weight, const void *bias, int64_t N, int64_t C, double eps,
                             struct zt_error *err);
int zt_cpu_layernorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                              void *dweight, void *dbias, const void *dout, const void *in,
                              const void *weight, const float *mean, const float *rstd, int64_t N,
                              int64_t C, bool accumulate_dx, void *workspace, struct zt_error *err);
int zt_cpu_rmsnorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *rstd,
                           const void *in, const void *residual, void *sum, const void *weight,
                           int64_t N, int64_t C, double eps, struct zt_error *err);
int zt_cpu_rmsnorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                            void *dweight, const void *dout, const void *in, const void *weight,
                            const float *rstd, int64_t N, int64_t C, bool accumulate_dx,
                            void *workspace, struct zt_error *err);
int zt_cpu_rope(struct zt_ops_ctx *x, enum zt_dtype t, void *v, int64_t row, const float *table,
                int64_t B, int64_t T, int64_t heads, int64_t D, bool inverse, struct zt_error *err);

/* loss.c */
int zt_cpu_cross_entropy(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                         const int32_t *targets, const float *weights, int64_t N, int64_t V,
                         float scale, bool backward, struct zt_error *err);
int zt_cpu_vocab_max(struct zt_ops_ctx *x, enum zt_dtype t, float *max, const void *logits,
                     int64_t N, struct zt_vocab v, struct zt_error *err);
int zt_cpu_vocab_sum(struct zt_ops_ctx *x, enum zt_dtype t, float *sums, const void *logits,
                     const float *max, const int32_t *targets, int64_t N, struct zt_vocab v,
                     struct zt_error *err);
int zt_cpu_vocab_loss(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                      const float *sums, const float *max, const int32_t *targets,
                      const float *weights, int64_t N, struct zt_vocab v, float scale,
                      bool backward, struct zt_error *err);

/* attention.c */
int zt_cpu_attention_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                             const void *q, const void *k, const void *v,
                             const struct zt_attention *a, void *workspace, struct zt_error *err);
int zt_cpu_attention_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dq, void *dk, void *dv,
                              const void *dout, const void *q, const void *k, const void *v,
                              const void *out, const float *lse, const struct zt_attention *a,
                              void *workspace, struct zt_error *err);

#endif
