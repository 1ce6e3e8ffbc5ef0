/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model.c: the family-independent part: one micro-batch from tokens to loss and
 * gradients, and the layers that every family uses. Memory and thread rules: engine/model/model.h.
 */
#include "engine/model/model_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/units.h"

int zt_model_create(const struct zt_model_table *table, const struct zt_model_env *env,
                    struct zt_model **out, struct zt_error *err) {
    *out = NULL;
    if (table->config.family != ZT_GPT2)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.family: llama is not in this version; use a gpt2 preset");
    if (!table->config.tied_head)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.tied_head: false is not in this version; leave it out");
    if (env->grad != env->compute && env->grad != ZT_F32)
        return zt_fail(err, ZT_EINVAL, "model: gradients are of the compute type %s or fp32, not %s",
                       zt_dtype_name(env->compute), zt_dtype_name(env->grad));
    struct zt_model *m = calloc(1, sizeof *m);
    if (m == NULL) return zt_fail(err, ZT_ENOMEM, "model: out of host memory");
    m->table = table;
    m->env = *env;
    m->family = &zt_gpt2_impl;
    int rc = zt_model_walk_build(table, &m->walk, err);
    if (rc == 0) rc = m->family->create(m, err);
    if (rc == 0)
        *out = m;
    else {
        zt_model_walk_free(&m->walk);
        free(m);
    }
    return rc;
}

void zt_model_destroy(struct zt_model *m) {
    if (m == NULL) return;
    m->family->release(m);
    m->family->destroy(m);
    zt_model_walk_free(&m->walk);
    free(m);
}

void zt_model_set_trace(struct zt_model *m,
                        void (*fn)(void *arg, const char *name, int unit, int64_t start_ns,
                                   int64_t end_ns),
                        void *arg) {
    m->trace = fn;
    m->trace_arg = arg;
}

static int check_batch(const struct zt_model *m, const struct zt_batch *b, struct zt_error *err) {
    if (b->B < 1 || b->T < 1)
        return zt_fail(err, ZT_EINVAL,
                       "model: a batch of %lld x %lld tokens has nothing to compute",
                       (long long)b->B, (long long)b->T);
    if (b->T > m->table->config.seq_len_max)
        return zt_fail(err, ZT_EINVAL,
                       "training.seq_len: %lld is longer than the model's seq_len_max %lld",
                       (long long)b->T, (long long)m->table->config.seq_len_max);
    return 0;
}

/* The loss of all rows, in place: logits become their own gradient when `backward`. */
static int loss_in_place(struct zt_model *m, const struct zt_batch *b, void *logits,
                         float loss_scale, bool backward, struct zt_fixsum *loss_sum,
                         int64_t *valid, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    int64_t rows = b->B * b->T;
    void *losses = NULL;
    int rc =
        zt_model_buffer(m, rows, 1, ZT_F32, ZT_TAG_TEMPORARY, "token losses", -1, &losses, err);
    if (rc != 0) return rc;
    zt_model_segment_begin(m);
    rc = ops->cross_entropy(m->env.ctx, m->env.compute, logits, losses, b->targets, rows,
                            m->table->config.vocab_size, loss_scale, backward, err);
    if (rc == 0) rc = ops->sum_values(m->env.ctx, losses, rows, loss_sum, err);
    zt_model_segment_end(m, "loss", 0);
    zt_free(m->env.alloc, losses);
    if (rc != 0) return rc;
    return ops->count_targets(m->env.ctx, b->targets, rows, valid, err);
}

/* The unit calls of one forward, nothing computed. */
static int ask_for_units(struct zt_model *m, const struct zt_unit_source *src,
                         struct zt_error *err) {
    struct zt_unit_view v;
    int rc = 0;
    for (int i = 0; i < m->walk.n_forward && rc == 0; i++)
        if ((rc = src->forward_begin(src->arg, m->walk.forward[i], &v, err)) == 0)
            rc = src->forward_end(src->arg, m->walk.forward[i], err);
    return rc;
}

int zt_model_step(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                  float loss_scale, bool backward, bool eval, struct zt_fixsum *loss_sum,
                  int64_t *valid, struct zt_error *err) {
    ZT_ASSERT(!(backward && eval));
    zt_ledger_set_phase(m->env.ledger, eval ? ZT_PHASE_EVAL : ZT_PHASE_FORWARD);
    if (eval && b->B == 0) return ask_for_units(m, src, err);
    int rc = check_batch(m, b, err);
    if (rc != 0) return rc;
    void *logits = NULL;
    rc = m->family->forward(m, src, b, backward, &logits, err);
    if (rc == 0) rc = loss_in_place(m, b, logits, loss_scale, backward, loss_sum, valid, err);
    if (rc == 0 && backward) {
        zt_ledger_set_phase(m->env.ledger, ZT_PHASE_BACKWARD);
        void *dlogits = logits;
        logits = NULL;
        rc = m->family->backward(m, src, b, dlogits, err);
    }
    zt_free(m->env.alloc, logits);
    if (rc != 0) m->family->release(m);
    return rc;
}

int zt_model_logits(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    void *logits, struct zt_error *err) {
    int rc = check_batch(m, b, err);
    if (rc != 0) return rc;
    void *own = NULL;
    zt_ledger_set_phase(m->env.ledger, ZT_PHASE_EVAL);
    rc = m->family->forward(m, src, b, false, &own, err);
    if (rc == 0) {
        size_t bytes =
            (size_t)(b->B * b->T * m->table->config.vocab_size) * zt_dtype_size(m->env.compute);
        rc = m->env.ops->copy(m->env.ctx, logits, own, bytes, err);
    }
    zt_free(m->env.alloc, own);
    if (rc != 0) m->family->release(m);
    return rc;
}

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

void zt_model_drop(struct zt_model *m, void *p_of_pointer) {
    void **p = p_of_pointer;
    zt_free(m->env.alloc, *p);
    *p = NULL;
}

void zt_model_segment_begin(struct zt_model *m) {
    if (m->trace != NULL) m->segment_start_ns = zt_device_ops(m->env.device)->now_ns(m->env.device);
}

void zt_model_segment_end(struct zt_model *m, const char *name, int unit) {
    if (m->trace == NULL) return;
    int64_t end = zt_device_ops(m->env.device)->now_ns(m->env.device);
    m->trace(m->trace_arg, name, unit, m->segment_start_ns, end);
}

/* Runs one GEMM with the workspace its shape asks for. */
static int gemm(struct zt_model *m, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                const void *a, const void *b, const void *bias, void *c, bool accumulate,
                struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    void *workspace = NULL;
    size_t bytes = ops->gemm_workspace(op, M, N, K, m->env.compute);
    int rc = zt_malloc(m->env.alloc, bytes, zt_device_compute(m->env.device), ZT_TAG_TEMPORARY,
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

int zt_linear_backward(struct zt_model *m, int64_t rows, int64_t in, int64_t out, const void *x,
                       const void *w, const void *dy, void *dx, void *dw, void *db,
                       struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    int rc = 0;
    if (dx != NULL) rc = gemm(m, ZT_GEMM_DX, rows, in, out, dy, w, NULL, dx, false, err);
    if (rc == 0 && dw != NULL) rc = gemm(m, ZT_GEMM_DW, out, in, rows, dy, x, NULL, dw, true, err);
    if (rc != 0 || db == NULL) return rc;
    void *workspace = NULL;
    rc = zt_malloc(m->env.alloc, ops->bias_backward_workspace(rows, out),
                   zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "bias workspace", &workspace,
                   err);
    if (rc != 0) return rc;
    rc = ops->bias_backward(m->env.ctx, m->env.compute, m->env.grad, db, dy, rows, out, true,
                            workspace, err);
    zt_free(m->env.alloc, workspace);
    return rc;
}

int zt_norm_backward(struct zt_model *m, int64_t rows, int64_t width, const void *dout,
                     const void *in, const void *weight, const float *mean, const float *rstd,
                     void *dx, bool accumulate, void *dw, void *db, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    void *workspace = NULL;
    int rc = zt_malloc(m->env.alloc, ops->layernorm_backward_workspace(rows, width),
                       zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "norm workspace",
                       &workspace, err);
    if (rc != 0) return rc;
    rc = ops->layernorm_backward(m->env.ctx, m->env.compute, m->env.grad, dx, dw, db, dout, in,
                                 weight, mean, rstd, rows, width, accumulate, workspace, err);
    zt_free(m->env.alloc, workspace);
    return rc;
}
