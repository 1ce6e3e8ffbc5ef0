/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/cpu.c: the CPU backend's context and operator table. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int zt_cpu_need_float(const char *op, enum zt_dtype t, struct zt_error *err) {
    if (t == ZT_F32 || t == ZT_BF16 || t == ZT_F16) return ZT_OK;
    return zt_fail(err, ZT_EUNSUPPORTED, "%s: elements are fp32, bf16 or fp16, not %s", op,
                   zt_dtype_name(t));
}

int zt_cpu_need_result(const char *op, enum zt_dtype t, enum zt_dtype gt, struct zt_error *err) {
    int rc = zt_cpu_need_float(op, t, err);
    if (rc != ZT_OK || gt == t || gt == ZT_F32) return rc;
    return zt_fail(err, ZT_EUNSUPPORTED,
                   "%s: what is computed from %s is stored as that or fp32, not %s", op,
                   zt_dtype_name(t), zt_dtype_name(gt));
}

int zt_cpu_stream(const char *op, enum zt_purpose p, uint32_t tensor, uint32_t *stream,
                  struct zt_error *err) {
    if (tensor >= 1u << 24)
        return zt_fail(err, ZT_EINVAL, "%s: tensor ordinal %u is beyond 2^24 - 1", op, tensor);
    *stream = (uint32_t)p << 24 | tensor;
    return ZT_OK;
}

int zt_cpu_dropout_draw(const char *op, const struct zt_dropout *d, struct zt_vec_dropout *out,
                        struct zt_error *err) {
    if (!(d->p >= 0.0f && d->p < 1.0f))
        return zt_fail(err, ZT_EINVAL, "%s: dropout %g is outside [0, 1)", op, (double)d->p);
    *out = (struct zt_vec_dropout){.on = d->p > 0.0f,
                                   .threshold = (uint32_t)((double)d->p * 0x1p32),
                                   .factor = 1.0f / (1.0f - d->p),
                                   .seed = d->seed,
                                   .step = d->step};
    return zt_cpu_stream(op, ZT_RNG_DROPOUT, d->site, &out->stream, err);
}

struct range {
    zt_cpu_range_fn *fn;
    void *arg;
    int64_t n, grain;
};

static void range_unit(void *arg, int64_t unit, int thread) {
    const struct range *r = arg;
    const int64_t first = unit * r->grain, left = r->n - first;
    r->fn(r->arg, first, left < r->grain ? left : r->grain, thread);
}

void zt_cpu_range(struct zt_ops_ctx *x, int64_t n, int64_t grain, zt_cpu_range_fn *fn, void *arg) {
    if (n <= 0) return;
    struct range r = {fn, arg, n, grain};
    zt_pool_run(x->pool, (n + grain - 1) / grain, range_unit, &r);
}

static int gemm(struct zt_ops_ctx *x, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                enum zt_dtype t, const void *A, const void *B, const void *bias, void *C,
                enum zt_dtype ct, bool accumulate, void *workspace, struct zt_error *err) {
    int rc = zt_cpu_need_result("gemm", t, ct, err);
    if (rc != ZT_OK) return rc;
    const struct zt_gemm_shape s = {
        op, M, N, K, t, ct, accumulate, bias != NULL, workspace != NULL};
    return zt_gemm_run(x->gemm, &s, A, B, bias, C, workspace, err);
}

static int refuse_isa(const char *isa, struct zt_error *err) {
    static const char *const known[] = {"sse2", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(isa, known[i]) == 0)
            return zt_fail(err, ZT_EUNSUPPORTED,
                           "instruction set %s is not on this processor; leave it out to take the "
                           "best one there is (%s)",
                           isa, zt_vec_find(NULL)->name);
    return zt_fail(err, ZT_EINVAL, "instruction set \"%s\" is not known; use sse2, avx2 or avx512",
                   isa);
}

int zt_ops_cpu_create(int threads, const char *isa, const char *gemm_library,
                      struct zt_ops_ctx **out, struct zt_error *err) {
    *out = NULL;
    const struct zt_vec *vec = zt_vec_find(isa);
    if (!vec) return refuse_isa(isa, err);
    struct zt_ops_ctx *x = calloc(1, sizeof *x);
    if (!x) return zt_fail(err, ZT_ENOMEM, "CPU operators: no memory for the context");
    x->vec = vec;
    int rc = zt_pool_create(threads, zt_gemm_thread_start, &x->pool, err);
    if (rc != ZT_OK) goto fail;
    x->partial_sum = calloc((size_t)threads, sizeof *x->partial_sum);
    x->scratch = calloc((size_t)threads, sizeof *x->scratch);
    if (!x->partial_sum || !x->scratch) {
        rc = zt_fail(err, ZT_ENOMEM, "CPU operators: no memory for %d threads", threads);
        goto fail;
    }
    rc = zt_gemm_create(x->pool, vec, isa, gemm_library, &x->gemm, err);
    if (rc != ZT_OK) goto fail;
    snprintf(x->text, sizeof x->text, "%s, %s, %d thread%s, gemm rule %d", vec->name,
             zt_gemm_describe(x->gemm), threads, threads == 1 ? "" : "s", ZT_GEMM_RULE_VERSION);
    *out = x;
    return ZT_OK;
fail:
    zt_ops_cpu_destroy(x);
    return rc;
}

void zt_ops_cpu_destroy(struct zt_ops_ctx *x) {
    if (!x) return;
    zt_gemm_destroy(x->gemm);
    for (int t = 0; x->scratch && x->pool && t < zt_pool_threads(x->pool); t++) free(x->scratch[t]);
    free(x->scratch);
    free(x->partial_sum);
    zt_pool_destroy(x->pool);
    free(x);
}

const char *zt_ops_cpu_describe(const struct zt_ops_ctx *x) { return x->text; }

const char *zt_ops_cpu_compute(const struct zt_ops_ctx *x, enum zt_dtype t) {
    return zt_gemm_compute(x->gemm, t);
}

const struct zt_ops *zt_ops_cpu(void) {
    static const struct zt_ops table = {
        .device = "cpu",
        .gemm_workspace = zt_gemm_workspace,
        .gemm = gemm,
        .bias_backward_workspace = zt_bias_backward_workspace,
        .bias_backward = zt_cpu_bias_backward,
        .embedding_forward = zt_cpu_embedding_forward,
        .embedding_backward_workspace = zt_embedding_backward_workspace,
        .embedding_backward = zt_cpu_embedding_backward,
        .layernorm_forward = zt_cpu_layernorm_forward,
        .layernorm_backward_workspace = zt_layernorm_backward_workspace,
        .layernorm_backward = zt_cpu_layernorm_backward,
        .rmsnorm_forward = zt_cpu_rmsnorm_forward,
        .rmsnorm_backward_workspace = zt_rmsnorm_backward_workspace,
        .rmsnorm_backward = zt_cpu_rmsnorm_backward,
        .dropout = zt_cpu_dropout,
        .rope = zt_cpu_rope,
        .gelu_forward = zt_cpu_gelu_forward,
        .gelu_backward = zt_cpu_gelu_backward,
        .swiglu_forward = zt_cpu_swiglu_forward,
        .swiglu_backward = zt_cpu_swiglu_backward,
        .attention_workspace = zt_attention_workspace,
        .attention_forward = zt_cpu_attention_forward,
        .attention_backward_workspace = zt_attention_workspace,
        .attention_backward = zt_cpu_attention_backward,
        .cross_entropy = zt_cpu_cross_entropy,
        .vocab_max = zt_cpu_vocab_max,
        .vocab_sum = zt_cpu_vocab_sum,
        .vocab_loss = zt_cpu_vocab_loss,
        .adamw = zt_cpu_adamw,
        .sum_squares = zt_cpu_sum_squares,
        .sum_values = zt_cpu_sum_values,
        .add = zt_cpu_add,
        .scale = zt_cpu_scale,
        .fill = zt_cpu_fill,
        .copy = zt_cpu_copy,
        .cast = zt_cpu_cast,
        .accumulate = zt_cpu_accumulate,
        .round_stochastic = zt_cpu_round_stochastic,
        .fill_normal = zt_cpu_fill_normal,
        .count_targets = zt_cpu_count_targets,
        .hash_values = zt_cpu_hash_values,
    };
    return &table;
}

static int create(const struct zt_kernels_config *c, struct zt_ops_ctx **out,
                  struct zt_error *err) {
    return zt_ops_cpu_create(c->threads < 1 ? 1 : c->threads, c->isa, c->gemm, out, err);
}

const struct zt_kernels zt_kernels_cpu = {
    "cpu", zt_ops_cpu, create, zt_ops_cpu_destroy, zt_ops_cpu_describe, zt_ops_cpu_compute};
