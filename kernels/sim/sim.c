/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/sim/sim.c: the operators as costs: each says what work it would be (core/cost.h) and
 * touches no memory. Bytes: each operand read once, each result written once, a result that is
 * added to read as well. What the host asks a device for is answered as a run in good health would:
 * nothing is masked, losses and gradients are 0 and so finite.
 *
 * Owner: the caller of create. Thread rule: kernels/ops.h. */
#include <stdlib.h>
#include "kernels/workspace.h"

struct sim_ctx {
    struct zt_kernels_config c;
};

static int work(struct zt_ops_ctx *x, struct zt_cost_work w) {
    const struct sim_ctx *s = (const struct sim_ctx *)(void *)x;
    if (s->c.work) s->c.work(s->c.work_arg, w);
    return 0;
}

static double size_of(enum zt_dtype t) { return (double)zt_dtype_size(t); }

/* n elements of type t, moved so many times */
static int move(struct zt_ops_ctx *x, int64_t n, double times, enum zt_dtype t) {
    return work(x, zt_work_bytes((double)n * times * size_of(t)));
}

/* The same of an operator that computes something for each of them */
static int rows(struct zt_ops_ctx *x, int64_t n, double times, enum zt_dtype t) {
    return work(x, zt_work_rows(n, (double)n * times * size_of(t), t));
}

static int gemm(struct zt_ops_ctx *x, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                enum zt_dtype t, const void *A, const void *B, const void *bias, void *C,
                enum zt_dtype ct, bool accumulate, void *workspace, struct zt_error *err) {
    (void)op, (void)A, (void)B, (void)bias, (void)C, (void)workspace, (void)err;
    return work(x, zt_work_gemm(M, N, K, t, ct, accumulate));
}

static int bias_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *db,
                         const void *dy, int64_t N, int64_t C, bool accumulate, void *workspace,
                         struct zt_error *err) {
    (void)gt, (void)db, (void)dy, (void)accumulate, (void)workspace, (void)err;
    return rows(x, N * C, 1, t);
}

static int embedding_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, int64_t B,
                             int64_t T, int64_t C, struct zt_vocab v, struct zt_error *err) {
    (void)out, (void)tokens, (void)wte, (void)v, (void)err;
    return move(x, B * T * C, wpe ? 3 : 2, t);
}

static int embedding_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dwte,
                              void *dwpe, const void *dout, const int32_t *tokens, int64_t B,
                              int64_t T, int64_t C, struct zt_vocab v, void *workspace,
                              struct zt_error *err) {
    (void)dout, (void)tokens, (void)v, (void)workspace, (void)err;
    double n = (double)(B * T * C), added = (dwte ? 2 : 0) + (dwpe ? 2 : 0);
    return work(x, zt_work_bytes(n * (size_of(t) + added * size_of(gt))));
}

static int layernorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *mean,
                             float *rstd, const void *in, const void *residual, void *sum,
                             const void *weight, const void *bias, int64_t N, int64_t C, double eps,
                             struct zt_error *err) {
    (void)out, (void)mean, (void)rstd, (void)in, (void)sum, (void)weight, (void)bias, (void)eps;
    (void)err;
    return rows(x, N * C, residual ? 4 : 2, t);
}

static int layernorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                              void *dweight, void *dbias, const void *dout, const void *in,
                              const void *weight, const float *mean, const float *rstd, int64_t N,
                              int64_t C, bool accumulate_dx, void *workspace,
                              struct zt_error *err) {
    (void)gt, (void)dx, (void)dweight, (void)dbias, (void)dout, (void)in, (void)weight, (void)mean;
    (void)rstd, (void)workspace, (void)err;
    return rows(x, N * C, accumulate_dx ? 4 : 3, t);
}

static int rmsnorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *rstd,
                           const void *in, const void *residual, void *sum, const void *weight,
                           int64_t N, int64_t C, double eps, struct zt_error *err) {
    (void)out, (void)rstd, (void)in, (void)sum, (void)weight, (void)eps, (void)err;
    return rows(x, N * C, residual ? 4 : 2, t);
}

static int rmsnorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                            void *dweight, const void *dout, const void *in, const void *weight,
                            const float *rstd, int64_t N, int64_t C, bool accumulate_dx,
                            void *workspace, struct zt_error *err) {
    (void)gt, (void)dx, (void)dweight, (void)dout, (void)in, (void)weight, (void)rstd;
    (void)workspace, (void)err;
    return rows(x, N * C, accumulate_dx ? 4 : 3, t);
}

static int dropout(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                   const struct zt_dropout *d, struct zt_span span, struct zt_error *err) {
    (void)out, (void)in, (void)span, (void)err;
    struct zt_cost_work w = zt_work_random(d->p > 0 ? n / 4 : 0, t); /* a draw serves four */
    w.bytes = 2 * (double)n * size_of(t);
    return work(x, w);
}

static int rope(struct zt_ops_ctx *x, enum zt_dtype t, void *v, int64_t row, const float *table,
                int64_t B, int64_t T, int64_t heads, int64_t D, bool inverse,
                struct zt_error *err) {
    (void)v, (void)row, (void)table, (void)inverse, (void)err;
    return rows(x, B * T * heads * D, 2, t);
}

static int gelu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                        struct zt_error *err) {
    (void)out, (void)in, (void)err;
    return rows(x, n, 2, t);
}

static int gelu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dx, const void *in,
                         const void *dout, int64_t n, struct zt_error *err) {
    (void)dx, (void)in, (void)dout, (void)err;
    return rows(x, n, 3, t);
}

static int swiglu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *gate,
                          const void *up, int64_t n, struct zt_error *err) {
    (void)out, (void)gate, (void)up, (void)err;
    return rows(x, n, 3, t);
}

static int swiglu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dgate, void *dup,
                           void *product, const void *gate, const void *up, const void *dout,
                           int64_t n, struct zt_error *err) {
    (void)dgate, (void)dup, (void)gate, (void)up, (void)dout, (void)err;
    return rows(x, n, product ? 6 : 5, t);
}

static int attention_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                             const void *q, const void *k, const void *v,
                             const struct zt_attention *a, void *workspace, struct zt_error *err) {
    (void)out, (void)lse, (void)q, (void)k, (void)v, (void)workspace, (void)err;
    return work(x, zt_work_attention(false, a->B, a->T, a->H, a->KV, a->D, t));
}

static int attention_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dq, void *dk, void *dv,
                              const void *dout, const void *q, const void *k, const void *v,
                              const void *out, const float *lse, const struct zt_attention *a,
                              void *workspace, struct zt_error *err) {
    (void)dq, (void)dk, (void)dv, (void)dout, (void)q, (void)k, (void)v, (void)out, (void)lse;
    (void)workspace, (void)err;
    return work(x, zt_work_attention(true, a->B, a->T, a->H, a->KV, a->D, t));
}

static int cross_entropy(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                         const int32_t *targets, const float *weights, int64_t N, int64_t V,
                         float scale, bool backward, struct zt_error *err) {
    (void)logits, (void)losses, (void)targets, (void)weights, (void)scale, (void)err;
    return rows(x, N * V, backward ? 3 : 1, t); /* read for maximum and sum; read and written */
}

static int vocab_max(struct zt_ops_ctx *x, enum zt_dtype t, float *max, const void *logits,
                     int64_t N, struct zt_vocab v, struct zt_error *err) {
    (void)max, (void)logits, (void)err;
    return rows(x, N * v.rows, 1, t);
}

static int vocab_sum(struct zt_ops_ctx *x, enum zt_dtype t, float *sums, const void *logits,
                     const float *max, const int32_t *targets, int64_t N, struct zt_vocab v,
                     struct zt_error *err) {
    (void)sums, (void)logits, (void)max, (void)targets, (void)err;
    return rows(x, N * v.rows, 1, t);
}

static int vocab_loss(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                      const float *sums, const float *max, const int32_t *targets,
                      const float *weights, int64_t N, struct zt_vocab v, float scale,
                      bool backward, struct zt_error *err) {
    (void)logits, (void)losses, (void)sums, (void)max, (void)targets, (void)weights, (void)scale;
    (void)err;
    return backward ? rows(x, N * v.rows, 2, t) : move(x, N, 3, ZT_F32); /* sums, losses */
}

/* m, v and what holds the value are read and written, the gradient is read, a 16-bit copy written.
 */
static int adamw(struct zt_ops_ctx *x, const struct zt_adamw_buffers *b, int64_t n,
                 const struct zt_adamw_params *a, struct zt_error *err) {
    (void)a, (void)err;
    double value = b->master ? 8 + size_of(b->param_type) : 2 * size_of(b->param_type);
    double bytes = value + 4 * size_of(b->moment_type) + size_of(b->grad_type);
    return work(x, zt_work_bytes((double)n * bytes));
}

static int sum_squares(struct zt_ops_ctx *x, enum zt_dtype t, const void *g, int64_t n,
                       struct zt_fixsum *s, struct zt_error *err) {
    (void)g, (void)s, (void)err;
    return move(x, n, 1, t);
}

static int sum_values(struct zt_ops_ctx *x, const float *v, int64_t n, struct zt_fixsum *s,
                      struct zt_error *err) {
    (void)v, (void)s, (void)err;
    return move(x, n, 1, ZT_F32);
}

static int add(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *a, const void *b,
               int64_t n, struct zt_error *err) {
    (void)out, (void)a, (void)b, (void)err;
    return move(x, n, 3, t);
}

static int scale(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float factor, int64_t n,
                 struct zt_error *err) {
    (void)v, (void)factor, (void)err;
    return move(x, n, 2, t);
}

static int fill(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float value, int64_t n,
                struct zt_error *err) {
    (void)v, (void)value, (void)err;
    return move(x, n, 1, t);
}

static int copy(struct zt_ops_ctx *x, void *dst, const void *src, size_t bytes,
                struct zt_error *err) {
    (void)dst, (void)src, (void)err;
    return work(x, zt_work_bytes(2 * (double)bytes));
}

static int cast(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                enum zt_dtype st, int64_t n, struct zt_error *err) {
    (void)dst, (void)src, (void)err;
    return work(x, zt_work_bytes((double)n * (size_of(dt) + size_of(st))));
}

static int accumulate(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                      enum zt_dtype st, int64_t n, struct zt_error *err) {
    (void)dst, (void)src, (void)err;
    return work(x, zt_work_bytes((double)n * (2 * size_of(dt) + size_of(st))));
}

static int round_stochastic(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const float *src,
                            int64_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                            struct zt_span span, struct zt_error *err) {
    (void)dst, (void)src, (void)seed, (void)step, (void)tensor, (void)span, (void)err;
    return work(x, zt_work_random(n, dt));
}

static int fill_normal(struct zt_ops_ctx *x, enum zt_dtype t, void *v, uint64_t seed,
                       uint32_t tensor, struct zt_span span, int64_t n, double std,
                       struct zt_error *err) {
    (void)v, (void)seed, (void)tensor, (void)span, (void)std, (void)err;
    return work(x, zt_work_random(n, t));
}

static int count_targets(struct zt_ops_ctx *x, const int32_t *targets, int64_t n, int64_t *valid,
                         struct zt_error *err) {
    (void)x, (void)targets, (void)err;
    *valid += n;
    return 0;
}

static int hash_values(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       struct zt_span span, int64_t n, uint64_t sum[2], struct zt_error *err) {
    (void)x, (void)t, (void)v, (void)tensor, (void)span, (void)n, (void)sum, (void)err;
    return 0; /* 0 on every rank: they agree */
}

static const struct zt_ops *table(void) {
    static const struct zt_ops ops = {
        .device = "sim",
        .gemm_workspace = zt_gemm_workspace,
        .gemm = gemm,
        .bias_backward_workspace = zt_bias_backward_workspace,
        .bias_backward = bias_backward,
        .embedding_forward = embedding_forward,
        .embedding_backward_workspace = zt_embedding_backward_workspace,
        .embedding_backward = embedding_backward,
        .layernorm_forward = layernorm_forward,
        .layernorm_backward_workspace = zt_layernorm_backward_workspace,
        .layernorm_backward = layernorm_backward,
        .rmsnorm_forward = rmsnorm_forward,
        .rmsnorm_backward_workspace = zt_rmsnorm_backward_workspace,
        .rmsnorm_backward = rmsnorm_backward,
        .dropout = dropout,
        .rope = rope,
        .gelu_forward = gelu_forward,
        .gelu_backward = gelu_backward,
        .swiglu_forward = swiglu_forward,
        .swiglu_backward = swiglu_backward,
        .attention_workspace = zt_attention_workspace,
        .attention_forward = attention_forward,
        .attention_backward_workspace = zt_attention_workspace,
        .attention_backward = attention_backward,
        .cross_entropy = cross_entropy,
        .vocab_max = vocab_max,
        .vocab_sum = vocab_sum,
        .vocab_loss = vocab_loss,
        .adamw = adamw,
        .sum_squares = sum_squares,
        .sum_values = sum_values,
        .add = add,
        .scale = scale,
        .fill = fill,
        .copy = copy,
        .cast = cast,
        .accumulate = accumulate,
        .round_stochastic = round_stochastic,
        .fill_normal = fill_normal,
        .count_targets = count_targets,
        .hash_values = hash_values,
    };
    return &ops;
}

static int create(const struct zt_kernels_config *c, struct zt_ops_ctx **out,
                  struct zt_error *err) {
    struct sim_ctx *s = calloc(1, sizeof *s);
    *out = (struct zt_ops_ctx *)(void *)s;
    if (!s) return zt_fail(err, ZT_ENOMEM, "kernels: host memory");
    s->c = *c;
    return 0;
}
static void destroy(struct zt_ops_ctx *x) { free(x); }
static const char *describe(const struct zt_ops_ctx *x) {
    (void)x;
    return "simulated";
}
static const char *compute(const struct zt_ops_ctx *x, enum zt_dtype t) {
    (void)x;
    return zt_dtype_name(t);
}

const struct zt_kernels zt_kernels_sim = {"sim", table, create, destroy, describe, compute};
