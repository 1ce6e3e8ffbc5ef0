/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/layer.c: buffers from the allocator, and the linear and norm layers with explicit
 * forward and backward. Memory and thread rules: engine/model/model.h. */
#include <stdio.h>

#include "core/units.h"
#include "engine/model/model_int.h"

int zt_model_buffer(struct zt_model *m, int64_t rows, int64_t columns, enum zt_dtype t,
                    enum zt_tag tag, const char *what, int block, void **out,
                    struct zt_error *err) {
    char name[64];
    size_t elements, bytes;
    if (!zt_mul_size((size_t)rows, (size_t)columns, &elements) ||
        !zt_mul_size(elements, zt_dtype_size(t), &bytes))
        return zt_fail(err, ZT_EINVAL, "model: %s of %lld x %lld does not fit an address space",
                       what, (long long)rows, (long long)columns);
    if (block >= 0)
        snprintf(name, sizeof name, "block %d: %s", block, what);
    else
        snprintf(name, sizeof name, "%s", what);
    return zt_malloc(m->env.alloc, bytes, zt_device_compute(m->env.device), tag, name, out, err);
}

int zt_model_workspace(struct zt_model *m, size_t bytes, const char *what, void **out,
                       struct zt_error *err) {
    return zt_malloc(m->env.alloc, bytes, zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, what,
                     out, err);
}

void zt_model_drop(struct zt_model *m, void *p_of_pointer) {
    void **p = p_of_pointer;
    zt_free(m->env.alloc, *p);
    *p = NULL;
}

void zt_model_drop_unless(struct zt_model *m, bool kept, void *p_of_pointer) {
    if (!kept) zt_model_drop(m, p_of_pointer);
}

void zt_model_segment_begin(struct zt_model *m) {
    if (m->trace != NULL) m->segment_start_ns = zt_device_ops(m->env.device)->now_ns(m->env.device);
}

void zt_model_segment_end(struct zt_model *m, const char *name, int unit) {
    if (m->trace == NULL) return;
    int64_t end = zt_device_ops(m->env.device)->now_ns(m->env.device);
    m->trace(m->trace_arg, name, unit, m->segment_start_ns, end);
}

void *zt_model_gradient(const struct zt_model *m, int unit, const struct zt_unit_view *v,
                        int tensor) {
    return zt_model_trains(m, unit, tensor) ? v->grad[tensor] : NULL;
}

/* ---- linear ---- */

/* Runs one GEMM with the workspace its shape asks for. */
static int gemm(struct zt_model *m, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                const void *a, const void *b, const void *bias, void *c, bool accumulate,
                struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    void *workspace = NULL;
    int rc = zt_model_workspace(m, ops->gemm_workspace(op, M, N, K, m->env.compute),
                                "gemm workspace", &workspace, err);
    if (rc != 0) return rc;
    enum zt_dtype ct = op == ZT_GEMM_DW ? m->env.grad : m->env.compute;
    rc = ops->gemm(m->env.ctx, op, M, N, K, m->env.compute, a, b, bias, c, ct, accumulate,
                   workspace, err);
    zt_free(m->env.alloc, workspace);
    return rc;
}

int zt_linear_forward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                      const void *w, const void *b, void *y, struct zt_error *err) {
    return gemm(m, ZT_GEMM_FWD, rows, out, in, x, w, b, y, false, err);
}

int zt_bias_backward(struct zt_model *m, int64_t rows, int64_t out, const void *dy, void *db,
                     struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    void *workspace = NULL;
    if (db == NULL) return 0;
    int rc = zt_model_workspace(m, ops->bias_backward_workspace(rows, out), "bias workspace",
                                &workspace, err);
    if (rc != 0) return rc;
    rc = ops->bias_backward(m->env.ctx, m->env.compute, m->env.grad, db, dy, rows, out, true,
                            workspace, err);
    zt_free(m->env.alloc, workspace);
    return rc;
}

int zt_linear_backward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                       const void *w, const void *dy, void *dx, bool accumulate, void *dw, void *db,
                       struct zt_error *err) {
    int rc = 0;
    if (dx != NULL) rc = gemm(m, ZT_GEMM_DX, rows, in, out, dy, w, NULL, dx, accumulate, err);
    if (rc == 0 && dw != NULL) rc = gemm(m, ZT_GEMM_DW, out, in, rows, dy, x, NULL, dw, true, err);
    return rc == 0 ? zt_bias_backward(m, rows, out, dy, db, err) : rc;
}

/* ---- adapters ---- */

/* *u = scale x A^T, or scale dy B: what goes through the narrow middle. */
static int narrow(struct zt_model *m, enum zt_gemm_op op, const struct zt_linear_form *f,
                  int64_t rows, int64_t wide, const void *x, const void *w, void **u,
                  struct zt_error *err) {
    int rc;
    TRY(zt_model_buffer(m, rows, f->rank, m->env.compute, ZT_TAG_TEMPORARY, "adapter", -1, u, err));
    TRY(gemm(m, op, rows, f->rank, wide, x, w, NULL, *u, false, err));
    TRY(m->env.ops->scale(m->env.ctx, m->env.compute, *u, (float)m->env.lora_scale, rows * f->rank,
                          err));
out:
    return rc;
}

int zt_layer_forward(struct zt_model *m, const struct zt_linear_form *f, void *const *p,
                     int64_t rows, int64_t in, const void *x, const void *bias, void *y,
                     struct zt_error *err) {
    void *u = NULL;
    int rc;
    TRY(zt_linear_forward(m, rows, in, f->width, x, p[f->weight], bias, y, err));
    if (f->lora_a < 0) return 0;
    TRY(narrow(m, ZT_GEMM_FWD, f, rows, in, x, p[f->lora_a], &u, err));
    TRY(gemm(m, ZT_GEMM_FWD, rows, f->width, f->rank, u, p[f->lora_b], NULL, y, true, err));
out:
    zt_free(m->env.alloc, u);
    return rc;
}

/* dB += dy^T u */
static int adapter_out_gradient(struct zt_model *m, const struct zt_linear_form *f, void *const *p,
                                void *db, int64_t rows, int64_t in, const void *x, const void *dy,
                                struct zt_error *err) {
    void *u = NULL;
    int rc;
    TRY(narrow(m, ZT_GEMM_FWD, f, rows, in, x, p[f->lora_a], &u, err));
    TRY(gemm(m, ZT_GEMM_DW, f->width, f->rank, rows, dy, u, NULL, db, true, err));
out:
    zt_free(m->env.alloc, u);
    return rc;
}

int zt_layer_backward(struct zt_model *m, const struct zt_linear_form *f, void *const *p,
                      void *const *dp, int64_t rows, int64_t in, const void *x, const void *dy,
                      void *dx, bool accumulate, struct zt_error *err) {
    void *dw = dp != NULL ? dp[f->weight] : NULL, *du = NULL;
    int rc;
    TRY(zt_linear_backward(m, rows, in, f->width, x, p[f->weight], dy, dx, accumulate, dw, NULL,
                           err));
    if (f->lora_a < 0) return 0;
    void *da = dp != NULL ? dp[f->lora_a] : NULL, *db = dp != NULL ? dp[f->lora_b] : NULL;
    if (dx != NULL || da != NULL)
        TRY(narrow(m, ZT_GEMM_DX, f, rows, f->width, dy, p[f->lora_b], &du, err));
    if (dx != NULL)
        TRY(gemm(m, ZT_GEMM_DX, rows, in, f->rank, du, p[f->lora_a], NULL, dx, true, err));
    if (da != NULL) TRY(gemm(m, ZT_GEMM_DW, f->rank, in, rows, du, x, NULL, da, true, err));
    if (db != NULL) TRY(adapter_out_gradient(m, f, p, db, rows, in, x, dy, err));
out:
    zt_free(m->env.alloc, du);
    return rc;
}

/* ---- norm ---- */

int zt_norm_buffers(struct zt_model *m, const struct zt_norm_form *f, int64_t rows, int block,
                    struct zt_kept kept, struct zt_norm_state *n, struct zt_error *err) {
    enum zt_tag statistics = zt_tag_of(kept.statistics);
    int rc = zt_model_buffer(m, rows, m->table->config.dim, m->env.compute, zt_tag_of(kept.norm),
                             f->name, block, &n->out, err);
    if (rc == 0 && f->bias >= 0)
        rc = zt_model_buffer(m, rows, 1, ZT_F32, statistics, f->mean, block, &n->mean, err);
    if (rc == 0)
        rc = zt_model_buffer(m, rows, 1, ZT_F32, statistics, f->rstd, block, &n->rstd, err);
    return rc;
}

void zt_norm_drop(struct zt_model *m, struct zt_norm_state *n) {
    zt_model_drop(m, &n->out);
    zt_model_drop(m, &n->mean);
    zt_model_drop(m, &n->rstd);
}

int zt_norm_forward(struct zt_model *m, const struct zt_norm_form *f, void *const *p, int64_t rows,
                    const struct zt_norm_state *n, const void *in, const void *residual, void *sum,
                    struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    enum zt_dtype t = m->env.compute;
    if (f->bias < 0)
        return ops->rmsnorm_forward(m->env.ctx, t, n->out, n->rstd, in, residual, sum, p[f->weight],
                                    rows, c->dim, c->norm_eps, err);
    return ops->layernorm_forward(m->env.ctx, t, n->out, n->mean, n->rstd, in, residual, sum,
                                  p[f->weight], p[f->bias], rows, c->dim, c->norm_eps, err);
}

int zt_norm_backward(struct zt_model *m, const struct zt_norm_form *f, void *const *p, int64_t rows,
                     const struct zt_norm_state *n, const void *dout, const void *in, void *dx,
                     bool accumulate, void *dw, void *db, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    const bool rms = f->bias < 0;
    enum zt_dtype t = m->env.compute, gt = m->env.grad;
    int64_t width = m->table->config.dim;
    void *workspace = NULL;
    int rc = zt_model_workspace(m,
                                rms ? ops->rmsnorm_backward_workspace(rows, width)
                                    : ops->layernorm_backward_workspace(rows, width),
                                "norm workspace", &workspace, err);
    if (rc != 0) return rc;
    if (rms)
        rc = ops->rmsnorm_backward(m->env.ctx, t, gt, dx, dw, dout, in, p[f->weight], n->rstd, rows,
                                   width, accumulate, workspace, err);
    else
        rc = ops->layernorm_backward(m->env.ctx, t, gt, dx, dw, db, dout, in, p[f->weight], n->mean,
                                     n->rstd, rows, width, accumulate, workspace, err);
    zt_free(m->env.alloc, workspace);
    return rc;
}
