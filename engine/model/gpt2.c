/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/gpt2.c: GPT-2: learned positions, pre-LayerNorm blocks, GELU (tanh), tied head, biases.
 *
 *   stream[0] = wte[token] + wpe[position]
 *   block l:  norm1 = LN(stream[l]); qkv = norm1 Wqkv; att = attention(qkv)
 *             mid = stream[l] + att Wproj; norm2 = LN(mid); fc = norm2 Wfc; act = gelu(fc)
 *             stream[l+1] = mid + act Wdown
 *   logits = LN(stream[L]) wte^T
 *
 * Saved for backward, per block and token: stream 1, norm1 1, qkv 3, att 1, mid 1, norm2 1 widths, fc and
 * act 4 each (16 C elements), plus 4 statistics and one log-sum-exp per head, fp32. Each is freed at the
 * point of backward that uses it last. The gradient of the stream is one buffer that flows down.
 *
 * Thread rule: the trainer thread. Device buffers belong to struct gpt2 until dropped. */
#include <stdlib.h>

#include "engine/model/model_int.h"

#define TRY(call)                      \
    do {                               \
        rc = (call);                   \
        if (rc != 0) goto out;         \
    } while (0)

/* Index of a tensor inside its unit, in table order (core/model.h). */
enum root_tensor { WTE = 0, WPE, LNF_W, LNF_B };
enum block_tensor { LN1_W = 0, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, DOWN_W, DOWN_B };

struct gpt2_block {
    void *norm1, *qkv, *att, *mid, *norm2, *fc, *act; /* compute dtype */
    void *mean1, *rstd1, *lse, *mean2, *rstd2;        /* fp32 */
};

struct gpt2 {
    struct gpt2_block *blocks; /* [layers] */
    void **stream;             /* [layers + 1]: the residual stream before each block and after the last */
    void *norm, *mean, *rstd;  /* final norm */
    void *dstream, *tmp, *tmp2; /* in flight inside one function; here so that release finds them */
};

static int gpt2_create(struct zt_model *m, struct zt_error *err) {
    size_t layers = (size_t)m->table->config.layers;
    struct gpt2 *g = calloc(1, sizeof *g);
    if (g != NULL) {
        g->blocks = calloc(layers, sizeof *g->blocks);
        g->stream = calloc(layers + 1, sizeof *g->stream);
    }
    if (g == NULL || g->blocks == NULL || g->stream == NULL) {
        if (g != NULL) {
            free(g->blocks);
            free(g->stream);
        }
        free(g);
        return zt_fail(err, ZT_ENOMEM, "model: out of host memory for %zu layers", layers);
    }
    m->state = g;
    return 0;
}

static void gpt2_destroy(struct zt_model *m) {
    struct gpt2 *g = m->state;
    free(g->blocks);
    free(g->stream);
    free(g);
}

static void release_block(struct zt_model *m, struct gpt2_block *k) {
    zt_model_drop(m, &k->norm1);
    zt_model_drop(m, &k->qkv);
    zt_model_drop(m, &k->att);
    zt_model_drop(m, &k->mid);
    zt_model_drop(m, &k->norm2);
    zt_model_drop(m, &k->fc);
    zt_model_drop(m, &k->act);
    zt_model_drop(m, &k->mean1);
    zt_model_drop(m, &k->rstd1);
    zt_model_drop(m, &k->lse);
    zt_model_drop(m, &k->mean2);
    zt_model_drop(m, &k->rstd2);
}

static void gpt2_release(struct zt_model *m) {
    struct gpt2 *g = m->state;
    for (int64_t l = 0; l < m->table->config.layers; l++) {
        release_block(m, &g->blocks[l]);
        zt_model_drop(m, &g->stream[l]);
    }
    zt_model_drop(m, &g->stream[m->table->config.layers]);
    zt_model_drop(m, &g->norm);
    zt_model_drop(m, &g->mean);
    zt_model_drop(m, &g->rstd);
    zt_model_drop(m, &g->dstream);
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &g->tmp2);
}

/* The attention half: stream[l] -> tmp = att Wproj (the residual is added by the next norm). */
static int attention_half(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                          int l, enum zt_tag tag, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    struct gpt2 *g = m->state;
    struct gpt2_block *k = &g->blocks[l];
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T, C = c->dim;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_buffer(m, rows, C, t, tag, "norm 1", l, &k->norm1, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "norm 1 mean", l, &k->mean1, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "norm 1 rstd", l, &k->rstd1, err));
    TRY(ops->layernorm_forward(m->env.ctx, t, k->norm1, k->mean1, k->rstd1, g->stream[l], NULL, NULL,
                               v->param[LN1_W], v->param[LN1_B], rows, C, c->norm_eps, err));
    TRY(zt_model_buffer(m, rows, 3 * C, t, tag, "qkv", l, &k->qkv, err));
    TRY(zt_linear_forward(m, rows, C, 3 * C, k->norm1, v->param[QKV_W], v->param[QKV_B], k->qkv, err));
    TRY(zt_model_buffer(m, rows, C, t, tag, "attention", l, &k->att, err));
    TRY(zt_model_buffer(m, rows, c->heads, ZT_F32, tag, "attention lse", l, &k->lse, err));
    TRY(zt_malloc(m->env.alloc, ops->attention_workspace(b->B, b->T, c->heads, c->head_dim, t),
                  zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "attention workspace", &workspace,
                  err));
    TRY(ops->attention_forward(m->env.ctx, t, k->att, k->lse, k->qkv, b->B, b->T, c->heads, c->head_dim,
                               workspace, err));
    TRY(zt_model_buffer(m, rows, C, t, ZT_TAG_TEMPORARY, "attention projection", l, &g->tmp, err));
    TRY(zt_linear_forward(m, rows, C, C, k->att, v->param[PROJ_W], v->param[PROJ_B], g->tmp, err));
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

/* The MLP half: mid = stream[l] + tmp, then stream[l+1]. */
static int mlp_half(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v, int l,
                    enum zt_tag tag, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    struct gpt2 *g = m->state;
    struct gpt2_block *k = &g->blocks[l];
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T, C = c->dim, F = c->ffn_dim;
    int rc;
    TRY(zt_model_buffer(m, rows, C, t, tag, "residual", l, &k->mid, err));
    TRY(zt_model_buffer(m, rows, C, t, tag, "norm 2", l, &k->norm2, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "norm 2 mean", l, &k->mean2, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "norm 2 rstd", l, &k->rstd2, err));
    TRY(ops->layernorm_forward(m->env.ctx, t, k->norm2, k->mean2, k->rstd2, g->stream[l], g->tmp, k->mid,
                               v->param[LN2_W], v->param[LN2_B], rows, C, c->norm_eps, err));
    zt_model_drop(m, &g->tmp);
    TRY(zt_model_buffer(m, rows, F, t, tag, "mlp hidden", l, &k->fc, err));
    TRY(zt_linear_forward(m, rows, C, F, k->norm2, v->param[FC_W], v->param[FC_B], k->fc, err));
    TRY(zt_model_buffer(m, rows, F, t, tag, "mlp gelu", l, &k->act, err));
    TRY(ops->gelu_forward(m->env.ctx, t, k->act, k->fc, rows * F, err));
    TRY(zt_model_buffer(m, rows, C, t, tag, "stream", l + 1, &g->stream[l + 1], err));
    TRY(zt_linear_forward(m, rows, F, C, k->act, v->param[DOWN_W], v->param[DOWN_B], g->stream[l + 1],
                          err));
    TRY(ops->add(m->env.ctx, t, g->stream[l + 1], k->mid, g->stream[l + 1], rows * C, err));
out:
    return rc;
}

static int forward_embedding(struct zt_model *m, const struct zt_unit_source *src,
                             const struct zt_batch *b, enum zt_tag tag, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, 0, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, b->B * b->T, c->dim, m->env.compute, tag, "stream", 0, &g->stream[0], err));
    TRY(m->env.ops->embedding_forward(m->env.ctx, m->env.compute, g->stream[0], b->tokens, v.param[WTE],
                                      v.param[WPE], b->B, b->T, c->dim, c->vocab_size, err));
    zt_model_segment_end(m, "embedding forward", 0);
    TRY(src->forward_end(src->arg, 0, err));
out:
    return rc;
}

static int forward_head(struct zt_model *m, const struct zt_unit_source *src,
                        const struct zt_batch *b, bool keep, enum zt_tag tag, void **logits,
                        struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, 0, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, rows, c->dim, t, tag, "final norm", -1, &g->norm, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "final norm mean", -1, &g->mean, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag, "final norm rstd", -1, &g->rstd, err));
    TRY(m->env.ops->layernorm_forward(m->env.ctx, t, g->norm, g->mean, g->rstd, g->stream[c->layers],
                                      NULL, NULL, v.param[LNF_W], v.param[LNF_B], rows, c->dim,
                                      c->norm_eps, err));
    TRY(zt_model_buffer(m, rows, c->vocab_size, t, tag, "logits", -1, logits, err));
    TRY(zt_linear_forward(m, rows, c->dim, c->vocab_size, g->norm, v.param[WTE], NULL, *logits, err));
    if (!keep) {
        zt_model_drop(m, &g->norm);
        zt_model_drop(m, &g->mean);
        zt_model_drop(m, &g->rstd);
        zt_model_drop(m, &g->stream[c->layers]);
    }
    zt_model_segment_end(m, "head forward", 0);
    TRY(src->forward_end(src->arg, 0, err));
out:
    return rc;
}

static int gpt2_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                        bool keep, void **logits, struct zt_error *err) {
    struct gpt2 *g = m->state;
    int layers = (int)m->table->config.layers;
    enum zt_tag tag = keep ? ZT_TAG_ACTIVATIONS : ZT_TAG_TEMPORARY;
    struct zt_unit_view v;
    int rc;
    TRY(forward_embedding(m, src, b, tag, err));
    for (int l = 0; l < layers; l++) {
        TRY(src->forward_begin(src->arg, l + 1, &v, err));
        zt_model_segment_begin(m);
        TRY(attention_half(m, b, &v, l, tag, err));
        TRY(mlp_half(m, b, &v, l, tag, err));
        if (!keep) {
            release_block(m, &g->blocks[l]);
            zt_model_drop(m, &g->stream[l]);
        }
        zt_model_segment_end(m, "block forward", l + 1);
        TRY(src->forward_end(src->arg, l + 1, err));
    }
    TRY(forward_head(m, src, b, keep, tag, logits, err));
out:
    return rc;
}

static int backward_head(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                         void **dlogits, struct zt_unit_view *root, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T;
    int rc;
    TRY(src->backward_begin(src->arg, 0, root, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, "final norm gradient", -1, &g->tmp, err));
    TRY(zt_linear_backward(m, rows, c->dim, c->vocab_size, g->norm, root->param[WTE], *dlogits, g->tmp,
                           root->grad[WTE], NULL, err));
    zt_model_drop(m, dlogits);
    zt_model_drop(m, &g->norm);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, "stream gradient", -1, &g->dstream, err));
    TRY(zt_norm_backward(m, rows, c->dim, g->tmp, g->stream[c->layers], root->param[LNF_W], g->mean,
                         g->rstd, g->dstream, false, root->grad[LNF_W], root->grad[LNF_B], err));
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &g->mean);
    zt_model_drop(m, &g->rstd);
    zt_model_drop(m, &g->stream[c->layers]);
    zt_model_segment_end(m, "head backward", 0);
    TRY(src->parameters_done(src->arg, 0, err));
out:
    return rc;
}

/* dstream is the gradient of stream[l+1] on entry and of mid on return. */
static int mlp_half_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                             int l, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct gpt2_block *k = &g->blocks[l];
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T, C = c->dim, F = c->ffn_dim;
    int rc;
    TRY(zt_model_buffer(m, rows, F, t, ZT_TAG_TEMPORARY, "mlp gradient", l, &g->tmp, err));
    TRY(zt_linear_backward(m, rows, F, C, k->act, v->param[DOWN_W], g->dstream, g->tmp, v->grad[DOWN_W],
                           v->grad[DOWN_B], err));
    zt_model_drop(m, &k->act);
    TRY(m->env.ops->gelu_backward(m->env.ctx, t, g->tmp, k->fc, g->tmp, rows * F, err));
    zt_model_drop(m, &k->fc);
    TRY(zt_model_buffer(m, rows, C, t, ZT_TAG_TEMPORARY, "norm 2 gradient", l, &g->tmp2, err));
    TRY(zt_linear_backward(m, rows, C, F, k->norm2, v->param[FC_W], g->tmp, g->tmp2, v->grad[FC_W],
                           v->grad[FC_B], err));
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &k->norm2);
    TRY(zt_norm_backward(m, rows, C, g->tmp2, k->mid, v->param[LN2_W], k->mean2, k->rstd2, g->dstream,
                         true, v->grad[LN2_W], v->grad[LN2_B], err));
    zt_model_drop(m, &g->tmp2);
    zt_model_drop(m, &k->mid);
    zt_model_drop(m, &k->mean2);
    zt_model_drop(m, &k->rstd2);
out:
    return rc;
}

/* dstream is the gradient of mid on entry and of stream[l] on return. */
static int attention_half_backward(struct zt_model *m, const struct zt_batch *b,
                                   const struct zt_unit_view *v, int l, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    struct gpt2 *g = m->state;
    struct gpt2_block *k = &g->blocks[l];
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T, C = c->dim;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_buffer(m, rows, C, t, ZT_TAG_TEMPORARY, "attention gradient", l, &g->tmp, err));
    TRY(zt_linear_backward(m, rows, C, C, k->att, v->param[PROJ_W], g->dstream, g->tmp, v->grad[PROJ_W],
                           v->grad[PROJ_B], err));
    TRY(zt_model_buffer(m, rows, 3 * C, t, ZT_TAG_TEMPORARY, "qkv gradient", l, &g->tmp2, err));
    TRY(zt_malloc(m->env.alloc, ops->attention_backward_workspace(b->B, b->T, c->heads, c->head_dim, t),
                  zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "attention workspace", &workspace,
                  err));
    TRY(ops->attention_backward(m->env.ctx, t, g->tmp2, g->tmp, k->qkv, k->att, k->lse, b->B, b->T,
                                c->heads, c->head_dim, workspace, err));
    zt_free(m->env.alloc, workspace);
    workspace = NULL;
    zt_model_drop(m, &k->qkv);
    zt_model_drop(m, &k->att);
    zt_model_drop(m, &k->lse);
    TRY(zt_linear_backward(m, rows, C, 3 * C, k->norm1, v->param[QKV_W], g->tmp2, g->tmp, v->grad[QKV_W],
                           v->grad[QKV_B], err));
    zt_model_drop(m, &g->tmp2);
    zt_model_drop(m, &k->norm1);
    TRY(zt_norm_backward(m, rows, C, g->tmp, g->stream[l], v->param[LN1_W], k->mean1, k->rstd1,
                         g->dstream, true, v->grad[LN1_W], v->grad[LN1_B], err));
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &k->mean1);
    zt_model_drop(m, &k->rstd1);
    zt_model_drop(m, &g->stream[l]);
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

static int gpt2_backward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                         void *dlogits, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct zt_unit_view root, v;
    int rc;
    TRY(backward_head(m, src, b, &dlogits, &root, err));
    for (int l = (int)c->layers - 1; l >= 0; l--) {
        TRY(src->backward_begin(src->arg, l + 1, &v, err));
        zt_model_segment_begin(m);
        TRY(mlp_half_backward(m, b, &v, l, err));
        TRY(attention_half_backward(m, b, &v, l, err));
        zt_model_segment_end(m, "block backward", l + 1);
        TRY(src->backward_end(src->arg, l + 1, err));
    }
    zt_model_segment_begin(m);
    if (root.grad[WTE] != NULL || root.grad[WPE] != NULL)
        TRY(m->env.ops->embedding_backward(m->env.ctx, m->env.compute, root.grad[WTE], root.grad[WPE],
                                           g->dstream, b->tokens, b->B, b->T, c->dim, c->vocab_size,
                                           err));
    zt_model_drop(m, &g->dstream);
    zt_model_segment_end(m, "embedding backward", 0);
    TRY(src->backward_end(src->arg, 0, err));
out:
    zt_model_drop(m, &dlogits);
    return rc;
}

const struct zt_family_impl zt_gpt2_impl = {gpt2_create, gpt2_destroy, gpt2_forward, gpt2_backward,
                                            gpt2_release};
