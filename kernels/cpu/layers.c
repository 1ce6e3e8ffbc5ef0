/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/layers.c: embedding, LayerNorm, bias gradient and cross-entropy.
 *
 * Sums over rows are cut into blocks of rows by N alone; each block's sum goes to the workspace and
 * the blocks are added in order, so the bits do not depend on the threads. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Rows of C elements that make a unit of work of about 16 Ki elements. */
static int64_t rows_per_unit(int64_t C) {
    const int64_t rows = 16384 / (C > 0 ? C : 1);
    return rows < 1 ? 1 : rows;
}

static int64_t block_count(int64_t N) {
    const int64_t rows = zt_cpu_block_rows(N);
    return (N + rows - 1) / rows;
}

/* out[columns] (+)= the sum of `blocks` rows of `stride` floats, in order. */
static void add_blocks(const struct zt_vec *vec, float *out, const float *part, int64_t stride,
                       int64_t blocks, int64_t columns, bool accumulate) {
    const size_t n = (size_t)columns;
    if (blocks == 0) {
        if (!accumulate) memset(out, 0, n * sizeof *out);
        return;
    }
    /* the blocks first, then the old value: the same order whether or not there is one */
    float total[256];
    for (size_t at = 0; at < n; at += 256) {
        const size_t width = n - at < 256 ? n - at : 256;
        memcpy(total, part + at, width * sizeof *total);
        for (int64_t b = 1; b < blocks; b++)
            vec->add(total, total, part + b * stride + (int64_t)at, width);
        if (accumulate)
            vec->add(out + at, out + at, total, width);
        else
            memcpy(out + at, total, width * sizeof *total);
    }
}

/* ---- bias gradient ---- */

struct column_sums {
    const struct zt_vec *vec;
    float *part;
    const float *dy;
    int64_t C;
    int64_t rows;
};

static void column_block(void *arg, int64_t first, int64_t count, int thread) {
    const struct column_sums *j = arg;
    (void)thread;
    j->vec->column_sums(j->part + first / j->rows * j->C, j->dy + first * j->C, count, j->C);
}

size_t zt_cpu_bias_backward_workspace(int64_t N, int64_t C) {
    return (size_t)block_count(N) * (size_t)C * sizeof(float);
}

int zt_cpu_bias_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *db,
                         const void *dy, int64_t N, int64_t C, bool accumulate, void *workspace,
                         struct zt_error *err) {
    int rc = zt_cpu_need_f32("bias_backward", t, err);
    if (rc == ZT_OK) rc = zt_cpu_need_f32("bias_backward (gradient)", gt, err);
    if (rc != ZT_OK) return rc;
    struct column_sums j = {x->vec, workspace, dy, C, zt_cpu_block_rows(N)};
    zt_cpu_range(x, N, j.rows, column_block, &j);
    add_blocks(x->vec, db, workspace, C, block_count(N), C, accumulate);
    return ZT_OK;
}

/* ---- embedding ---- */

struct embedding {
    const struct zt_vec *vec;
    float *out;
    const int32_t *tokens;
    const float *wte, *wpe;
    float *dwte, *dwpe;
    const float *dout;
    int64_t rows, T, C;
};

static int check_tokens(const int32_t *tokens, int64_t T, int64_t rows, int64_t V,
                        struct zt_error *err) {
    for (int64_t i = 0; i < rows; i++)
        if (tokens[i] < 0 || tokens[i] >= V)
            return zt_fail(err, ZT_EDATA,
                           "token %d at sample %lld, position %lld of the batch is outside the "
                           "vocabulary 0..%lld; the data was made for another tokenizer or "
                           "model.vocab is too small",
                           tokens[i], (long long)(i / T), (long long)(i % T), (long long)(V - 1));
    return ZT_OK;
}

static void embed_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct embedding *j = arg;
    const size_t n = (size_t)j->C;
    (void)thread;
    for (int64_t r = first; r < first + count; r++) {
        const float *token = j->wte + j->tokens[r] * j->C;
        if (j->wpe)
            j->vec->add(j->out + r * j->C, token, j->wpe + r % j->T * j->C, n);
        else
            memcpy(j->out + r * j->C, token, n * sizeof *token);
    }
}

int zt_cpu_embedding_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, int64_t B,
                             int64_t T, int64_t C, int64_t V, struct zt_error *err) {
    int rc = zt_cpu_need_f32("embedding_forward", t, err);
    if (rc == ZT_OK) rc = check_tokens(tokens, T, B * T, V, err);
    if (rc != ZT_OK) return rc;
    struct embedding j = {
        .vec = x->vec, .out = out, .tokens = tokens, .wte = wte, .wpe = wpe, .T = T, .C = C};
    zt_cpu_range(x, B * T, rows_per_unit(C), embed_rows, &j);
    return ZT_OK;
}

/* A slice of columns, all rows in token order: no two units touch one element. */
static void embed_gradient_columns(void *arg, int64_t first, int64_t count, int thread) {
    const struct embedding *j = arg;
    (void)thread;
    for (int64_t r = 0; r < j->rows; r++) {
        const float *g = j->dout + r * j->C + first;
        if (j->dwte) {
            float *token = j->dwte + j->tokens[r] * j->C + first;
            j->vec->add(token, token, g, (size_t)count);
        }
        if (j->dwpe) {
            float *position = j->dwpe + r % j->T * j->C + first;
            j->vec->add(position, position, g, (size_t)count);
        }
    }
}

size_t zt_cpu_embedding_backward_workspace(int64_t N, enum zt_dtype gt) {
    (void)N, (void)gt;
    return 0;
}

int zt_cpu_embedding_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dwte,
                              void *dwpe, const void *dout, const int32_t *tokens, int64_t B,
                              int64_t T, int64_t C, int64_t V, void *workspace,
                              struct zt_error *err) {
    (void)workspace;
    int rc = zt_cpu_need_f32("embedding_backward", t, err);
    if (rc == ZT_OK) rc = zt_cpu_need_f32("embedding_backward (gradient)", gt, err);
    if (rc == ZT_OK) rc = check_tokens(tokens, T, B * T, V, err);
    if (rc != ZT_OK) return rc;
    struct embedding j = {.vec = x->vec,
                          .tokens = tokens,
                          .dwte = dwte,
                          .dwpe = dwpe,
                          .dout = dout,
                          .rows = B * T,
                          .T = T,
                          .C = C};
    zt_cpu_range(x, C, 64, embed_gradient_columns, &j);
    return ZT_OK;
}

/* ---- LayerNorm ---- */

struct layernorm {
    const struct zt_vec *vec;
    float *out, *mean, *rstd, *sum, *part;
    const float *in, *residual, *weight, *bias, *dout;
    int64_t C, rows;
    float eps;
    bool accumulate;
};

static void layernorm_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct layernorm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->vec->layernorm_forward(j->out + at, j->mean + first, j->rstd + first, j->in + at,
                              j->residual ? j->residual + at : NULL, j->sum ? j->sum + at : NULL,
                              j->weight, j->bias, count, j->C, j->eps);
}

int zt_cpu_layernorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *mean,
                             float *rstd, const void *in, const void *residual, void *sum,
                             const void *weight, const void *bias, int64_t N, int64_t C, double eps,
                             struct zt_error *err) {
    int rc = zt_cpu_need_f32("layernorm_forward", t, err);
    if (rc != ZT_OK) return rc;
    if (residual && !sum)
        return zt_fail(err, ZT_EINVAL, "layernorm_forward: a residual needs a place for the sum");
    struct layernorm j = {.vec = x->vec,
                          .out = out,
                          .mean = mean,
                          .rstd = rstd,
                          .sum = sum,
                          .in = in,
                          .residual = residual,
                          .weight = weight,
                          .bias = bias,
                          .C = C,
                          .eps = (float)eps};
    zt_cpu_range(x, N, rows_per_unit(C), layernorm_rows, &j);
    return ZT_OK;
}

static void layernorm_block(void *arg, int64_t first, int64_t count, int thread) {
    const struct layernorm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->vec->layernorm_backward(j->out + at, j->part + first / j->rows * 2 * j->C, j->dout + at,
                               j->in + at, j->weight, j->mean + first, j->rstd + first, count, j->C,
                               j->accumulate);
}

size_t zt_cpu_layernorm_backward_workspace(int64_t N, int64_t C) {
    return (size_t)block_count(N) * 2 * (size_t)C * sizeof(float);
}

int zt_cpu_layernorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                              void *dweight, void *dbias, const void *dout, const void *in,
                              const void *weight, const float *mean, const float *rstd, int64_t N,
                              int64_t C, bool accumulate_dx, void *workspace,
                              struct zt_error *err) {
    int rc = zt_cpu_need_f32("layernorm_backward", t, err);
    if (rc == ZT_OK) rc = zt_cpu_need_f32("layernorm_backward (gradient)", gt, err);
    if (rc != ZT_OK) return rc;
    struct layernorm j = {.vec = x->vec,
                          .out = dx,
                          .part = workspace,
                          .in = in,
                          .weight = weight,
                          .dout = dout,
                          .C = C,
                          .rows = zt_cpu_block_rows(N),
                          .accumulate = accumulate_dx};
    /* only read here; the struct's pointers serve both directions */
    j.mean = (float *)(uintptr_t)mean;
    j.rstd = (float *)(uintptr_t)rstd;
    zt_cpu_range(x, N, j.rows, layernorm_block, &j);
    const float *part = workspace;
    if (dweight) add_blocks(x->vec, dweight, part, 2 * C, block_count(N), C, true);
    if (dbias) add_blocks(x->vec, dbias, part + C, 2 * C, block_count(N), C, true);
    return ZT_OK;
}

/* ---- cross-entropy ---- */

struct cross_entropy {
    const struct zt_vec *vec;
    float *logits, *losses;
    const int32_t *targets;
    int64_t V;
    float scale;
    bool backward;
};

static void cross_entropy_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct cross_entropy *j = arg;
    (void)thread;
    for (int64_t r = first; r < first + count; r++)
        j->vec->cross_entropy_row(j->logits + r * j->V, j->losses + r, j->V, j->targets[r],
                                  j->scale, j->backward);
}

int zt_cpu_cross_entropy(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                         const int32_t *targets, int64_t N, int64_t V, float scale, bool backward,
                         struct zt_error *err) {
    int rc = zt_cpu_need_f32("cross_entropy", t, err);
    if (rc != ZT_OK) return rc;
    for (int64_t i = 0; i < N; i++)
        if (targets[i] < -1 || targets[i] >= V)
            return zt_fail(
                err, ZT_EDATA,
                "cross-entropy: target %d of row %lld is outside 0..%lld (and is not -1, "
                "which masks a row); the data was made for another vocabulary",
                targets[i], (long long)i, (long long)(V - 1));
    struct cross_entropy j = {x->vec, logits, losses, targets, V, scale, backward};
    zt_cpu_range(x, N, rows_per_unit(V), cross_entropy_rows, &j);
    return ZT_OK;
}
