/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/layers.c: embedding, norms, rotary positions and bias gradient.
 *
 * Sums over rows are cut into blocks of rows by N alone; each block's sum goes to the workspace and
 * the blocks are added in order, so the bits do not depend on the threads. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* out[columns] of type gt (+)= the sum of `blocks` rows of `stride` floats, in order. */
static void add_blocks(const struct zt_vec *vec, enum zt_dtype gt, void *out, const float *part,
                       int64_t stride, int64_t blocks, int64_t columns, bool accumulate) {
    const size_t n = (size_t)columns;
    if (blocks == 0) {
        if (!accumulate) memset(out, 0, n * zt_dtype_size(gt));
        return;
    }
    /* the blocks first, then the old value: the same order whether or not there is one */
    float total[256];
    for (size_t at = 0; at < n; at += 256) {
        const size_t width = n - at < 256 ? n - at : 256;
        memcpy(total, part + at, width * sizeof *total);
        for (int64_t b = 1; b < blocks; b++)
            vec->of[ZT_F32].add(total, total, part + b * stride + (int64_t)at, width);
        void *to = zt_cpu_at(out, (int64_t)at, gt);
        if (accumulate)
            vec->of[gt].add_f32(to, total, width);
        else
            vec->of[gt].narrow(to, total, width);
    }
}

/* ---- bias gradient ---- */

struct column_sums {
    const struct zt_vec_of *of;
    enum zt_dtype t;
    float *part;
    const void *dy;
    int64_t C;
    int64_t rows;
};

static void column_block(void *arg, int64_t first, int64_t count, int thread) {
    const struct column_sums *j = arg;
    (void)thread;
    j->of->column_sums(j->part + first / j->rows * j->C, zt_cpu_at(j->dy, first * j->C, j->t),
                       count, j->C);
}

int zt_cpu_bias_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *db,
                         const void *dy, int64_t N, int64_t C, bool accumulate, void *workspace,
                         struct zt_error *err) {
    int rc = zt_cpu_need_result("bias_backward", t, gt, err);
    if (rc != ZT_OK) return rc;
    struct column_sums j = {&x->vec->of[t], t, workspace, dy, C, zt_block_rows(N)};
    zt_cpu_range(x, N, j.rows, column_block, &j);
    add_blocks(x->vec, gt, db, workspace, C, zt_block_count(N), C, accumulate);
    return ZT_OK;
}

/* ---- embedding ---- */

struct embedding {
    const struct zt_vec *vec;
    enum zt_dtype t, gt;
    void *out;
    const int32_t *tokens;
    const void *wte, *wpe;
    void *dwte, *dwpe;
    const void *dout;
    const uint64_t *order; /* `ordered` rows sorted by token: own token << 32 | row; only for a
                              16-bit gradient */
    int64_t ordered, rows, T, C;
    struct zt_vocab v;
};

/* The row of wte that row r of the batch reads, -1: another part's. */
static int64_t own_token(const struct embedding *j, int64_t r) {
    const int64_t token = j->tokens[r] - j->v.first;
    return token >= 0 && token < j->v.rows ? token : -1;
}

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
    const size_t n = (size_t)j->C, bytes = n * zt_dtype_size(j->t);
    (void)thread;
    for (int64_t r = first; r < first + count; r++) {
        const int64_t own = own_token(j, r);
        const void *token = own < 0 ? NULL : zt_cpu_at(j->wte, own * j->C, j->t);
        const void *position = j->wpe ? zt_cpu_at(j->wpe, r % j->T * j->C, j->t) : NULL;
        void *out = zt_cpu_at(j->out, r * j->C, j->t);
        if (token && position)
            j->vec->of[j->t].add(out, token, position, n);
        else if (token || position)
            memcpy(out, token ? token : position, bytes);
        else
            memset(out, 0, bytes);
    }
}

int zt_cpu_embedding_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, int64_t B,
                             int64_t T, int64_t C, struct zt_vocab v, struct zt_error *err) {
    int rc = zt_cpu_need_float("embedding_forward", t, err);
    if (rc == ZT_OK) rc = check_tokens(tokens, T, B * T, v.whole, err);
    if (rc != ZT_OK) return rc;
    struct embedding j = {.vec = x->vec,
                          .t = t,
                          .out = out,
                          .tokens = tokens,
                          .wte = wte,
                          .wpe = wpe,
                          .T = T,
                          .C = C,
                          .v = v};
    zt_cpu_range(x, B * T, zt_cpu_unit_rows(C), embed_rows, &j);
    return ZT_OK;
}

#define SLICE                                                                                      \
    64 /* columns of a unit of the embedding's gradient: no two units share an element             \
        */

/* dst[count] += row r's slice, in fp32. */
static void add_slice(const struct embedding *j, float *dst, int64_t r, int64_t first,
                      int64_t count) {
    const void *g = zt_cpu_at(j->dout, r * j->C + first, j->t);
    float wide[SLICE];
    if (j->t != ZT_F32) {
        j->vec->of[j->t].widen(wide, g, (size_t)count);
        g = wide;
    }
    j->vec->of[ZT_F32].add(dst, dst, g, (size_t)count);
}

/* An fp32 gradient: all rows in token order. */
static void embed_gradient_fp32(void *arg, int64_t first, int64_t count, int thread) {
    const struct embedding *j = arg;
    (void)thread;
    for (int64_t r = 0; r < j->rows; r++) {
        const int64_t own = own_token(j, r);
        if (j->dwte && own >= 0)
            add_slice(j, (float *)j->dwte + own * j->C + first, r, first, count);
        if (j->dwpe) add_slice(j, (float *)j->dwpe + r % j->T * j->C + first, r, first, count);
    }
}

/* A 16-bit gradient: the rows of one token are summed in fp32, in order, and added once; adding
 * them one by one would lose all but the first few. */
static void embed_gradient_16(void *arg, int64_t first, int64_t count, int thread) {
    const struct embedding *j = arg;
    const struct zt_vec_of *of = &j->vec->of[j->gt];
    float sum[SLICE];
    (void)thread;
    for (int64_t i = 0; i < j->ordered;) {
        const uint64_t token = j->order[i] >> 32;
        memset(sum, 0, sizeof sum);
        for (; i < j->ordered && j->order[i] >> 32 == token; i++)
            add_slice(j, sum, (int64_t)(j->order[i] & 0xffffffffu), first, count);
        of->add_f32(zt_cpu_at(j->dwte, (int64_t)token * j->C + first, j->gt), sum, (size_t)count);
    }
    for (int64_t p = 0; j->dwpe && p < j->T; p++) {
        memset(sum, 0, sizeof sum);
        for (int64_t r = p; r < j->rows; r += j->T) add_slice(j, sum, r, first, count);
        of->add_f32(zt_cpu_at(j->dwpe, p * j->C + first, j->gt), sum, (size_t)count);
    }
}

/* Stable sort of the rows with an own token, by token, a byte at a time; the second half of `work`
 * is room. */
static void order_tokens(struct embedding *j, uint64_t *work) {
    uint64_t *from = work, *to = work + j->rows;
    int64_t n = 0;
    for (int64_t r = 0; r < j->rows; r++) {
        const int64_t own = own_token(j, r);
        if (own >= 0) from[n++] = (uint64_t)own << 32 | (uint64_t)r;
    }
    for (int shift = 32; shift < 64 && (j->v.rows - 1) >> (shift - 32) > 0; shift += 8) {
        int64_t start[257] = {0};
        for (int64_t r = 0; r < n; r++) start[(from[r] >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++) start[b + 1] += start[b];
        for (int64_t r = 0; r < n; r++) to[start[from[r] >> shift & 255]++] = from[r];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    j->order = from;
    j->ordered = n;
}

int zt_cpu_embedding_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dwte,
                              void *dwpe, const void *dout, const int32_t *tokens, int64_t B,
                              int64_t T, int64_t C, struct zt_vocab v, void *workspace,
                              struct zt_error *err) {
    int rc = zt_cpu_need_result("embedding_backward", t, gt, err);
    if (rc == ZT_OK) rc = check_tokens(tokens, T, B * T, v.whole, err);
    if (rc != ZT_OK) return rc;
    struct embedding j = {.vec = x->vec,
                          .t = t,
                          .gt = gt,
                          .tokens = tokens,
                          .dwte = dwte,
                          .dwpe = dwpe,
                          .dout = dout,
                          .rows = B * T,
                          .T = T,
                          .C = C,
                          .v = v};
    if (gt != ZT_F32 && dwte) order_tokens(&j, workspace);
    zt_cpu_range(x, C, SLICE, gt == ZT_F32 ? embed_gradient_fp32 : embed_gradient_16, &j);
    return ZT_OK;
}

/* ---- LayerNorm and RMSNorm ---- */

struct norm {
    const struct zt_vec_of *of;
    enum zt_dtype t;
    void *out, *sum;
    float *mean, *rstd, *part; /* RMSNorm has no mean and no bias */
    const void *in, *residual, *weight, *bias, *dout;
    int64_t C, rows;
    float eps;
    bool accumulate;
};

static void layernorm_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct norm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->of->layernorm_forward(
        zt_cpu_at(j->out, at, j->t), j->mean + first, j->rstd + first, zt_cpu_at(j->in, at, j->t),
        j->residual ? zt_cpu_at(j->residual, at, j->t) : NULL,
        j->sum ? zt_cpu_at(j->sum, at, j->t) : NULL, j->weight, j->bias, count, j->C, j->eps);
}

int zt_cpu_layernorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *mean,
                             float *rstd, const void *in, const void *residual, void *sum,
                             const void *weight, const void *bias, int64_t N, int64_t C, double eps,
                             struct zt_error *err) {
    int rc = zt_cpu_need_float("layernorm_forward", t, err);
    if (rc != ZT_OK) return rc;
    if (residual && !sum)
        return zt_fail(err, ZT_EINVAL, "layernorm_forward: a residual needs a place for the sum");
    struct norm j = {.of = &x->vec->of[t],
                     .t = t,
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
    zt_cpu_range(x, N, zt_cpu_unit_rows(C), layernorm_rows, &j);
    return ZT_OK;
}

static void layernorm_block(void *arg, int64_t first, int64_t count, int thread) {
    const struct norm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->of->layernorm_backward(zt_cpu_at(j->out, at, j->t), j->part + first / j->rows * 2 * j->C,
                              zt_cpu_at(j->dout, at, j->t), zt_cpu_at(j->in, at, j->t), j->weight,
                              j->mean + first, j->rstd + first, count, j->C, j->accumulate);
}

int zt_cpu_layernorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                              void *dweight, void *dbias, const void *dout, const void *in,
                              const void *weight, const float *mean, const float *rstd, int64_t N,
                              int64_t C, bool accumulate_dx, void *workspace,
                              struct zt_error *err) {
    int rc = zt_cpu_need_result("layernorm_backward", t, gt, err);
    if (rc != ZT_OK) return rc;
    struct norm j = {.of = &x->vec->of[t],
                     .t = t,
                     .out = dx,
                     .part = workspace,
                     .in = in,
                     .weight = weight,
                     .dout = dout,
                     .C = C,
                     .rows = zt_block_rows(N),
                     .accumulate = accumulate_dx};
    /* only read here; the struct's pointers serve both directions */
    j.mean = (float *)(uintptr_t)mean;
    j.rstd = (float *)(uintptr_t)rstd;
    zt_cpu_range(x, N, j.rows, layernorm_block, &j);
    const float *part = workspace;
    if (dweight) add_blocks(x->vec, gt, dweight, part, 2 * C, zt_block_count(N), C, true);
    if (dbias) add_blocks(x->vec, gt, dbias, part + C, 2 * C, zt_block_count(N), C, true);
    return ZT_OK;
}

static void rmsnorm_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct norm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->of->rmsnorm_forward(zt_cpu_at(j->out, at, j->t), j->rstd + first, zt_cpu_at(j->in, at, j->t),
                           j->residual ? zt_cpu_at(j->residual, at, j->t) : NULL,
                           j->sum ? zt_cpu_at(j->sum, at, j->t) : NULL, j->weight, count, j->C,
                           j->eps);
}

int zt_cpu_rmsnorm_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *rstd,
                           const void *in, const void *residual, void *sum, const void *weight,
                           int64_t N, int64_t C, double eps, struct zt_error *err) {
    int rc = zt_cpu_need_float("rmsnorm_forward", t, err);
    if (rc != ZT_OK) return rc;
    if (residual && !sum)
        return zt_fail(err, ZT_EINVAL, "rmsnorm_forward: a residual needs a place for the sum");
    struct norm j = {.of = &x->vec->of[t],
                     .t = t,
                     .out = out,
                     .rstd = rstd,
                     .sum = sum,
                     .in = in,
                     .residual = residual,
                     .weight = weight,
                     .C = C,
                     .eps = (float)eps};
    zt_cpu_range(x, N, zt_cpu_unit_rows(C), rmsnorm_rows, &j);
    return ZT_OK;
}

static void rmsnorm_block(void *arg, int64_t first, int64_t count, int thread) {
    const struct norm *j = arg;
    const int64_t at = first * j->C;
    (void)thread;
    j->of->rmsnorm_backward(zt_cpu_at(j->out, at, j->t), j->part + first / j->rows * j->C,
                            zt_cpu_at(j->dout, at, j->t), zt_cpu_at(j->in, at, j->t), j->weight,
                            j->rstd + first, count, j->C, j->accumulate);
}

int zt_cpu_rmsnorm_backward(struct zt_ops_ctx *x, enum zt_dtype t, enum zt_dtype gt, void *dx,
                            void *dweight, const void *dout, const void *in, const void *weight,
                            const float *rstd, int64_t N, int64_t C, bool accumulate_dx,
                            void *workspace, struct zt_error *err) {
    int rc = zt_cpu_need_result("rmsnorm_backward", t, gt, err);
    if (rc != ZT_OK) return rc;
    struct norm j = {.of = &x->vec->of[t],
                     .t = t,
                     .out = dx,
                     .part = workspace,
                     .in = in,
                     .weight = weight,
                     .dout = dout,
                     .rstd = (float *)(uintptr_t)rstd, /* only read, as above */
                     .C = C,
                     .rows = zt_block_rows(N),
                     .accumulate = accumulate_dx};
    zt_cpu_range(x, N, j.rows, rmsnorm_block, &j);
    if (dweight) add_blocks(x->vec, gt, dweight, workspace, C, zt_block_count(N), C, true);
    return ZT_OK;
}

/* ---- rotary positions ---- */

struct rope {
    const struct zt_vec_of *of;
    enum zt_dtype t;
    void *v;
    const float *table;
    int64_t row, T, heads, D;
    float sign;
};

static void rope_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct rope *j = arg;
    (void)thread;
    for (int64_t r = first; r < first + count; r++)
        j->of->rope_row(zt_cpu_at(j->v, r * j->row, j->t), j->table + r % j->T * j->D, j->heads,
                        j->D, j->sign);
}

int zt_cpu_rope(struct zt_ops_ctx *x, enum zt_dtype t, void *v, int64_t row, const float *table,
                int64_t B, int64_t T, int64_t heads, int64_t D, bool inverse,
                struct zt_error *err) {
    int rc = zt_cpu_need_float("rope", t, err);
    if (rc != ZT_OK) return rc;
    if (D % 2 != 0)
        return zt_fail(err, ZT_EINVAL, "rope: heads of odd width %lld have no pairs", (long long)D);
    struct rope j = {&x->vec->of[t], t, v, table, row, T, heads, D, inverse ? -1.0f : 1.0f};
    zt_cpu_range(x, B * T, zt_cpu_unit_rows(heads * D), rope_rows, &j);
    return ZT_OK;
}
