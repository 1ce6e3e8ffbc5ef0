/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/gpt2.c: GPT-2: learned positions, pre-LayerNorm blocks, GELU (tanh), tied head,
 * biases.
 *
 * A block is two halves of one form, so the model is a chain of 2 L halves; a unit of the table is
 * a run of neighbouring halves (one, a block's two, or those of several blocks):
 *
 *   stream[0] = wte[token] + wpe[position]
 *   half h:   stream[h] = stream[h-1] + out (h > 0); norm = LN(stream[h]); wide = norm Win
 *             mixed = attention(wide) or gelu(wide);  out = mixed Wout
 *   logits    = LN(stream[2L]) wte^T, stream[2L] = stream[2L-1] + out
 *
 * The residual is added by the norm that follows, so between halves, and so between units, there
 * are stream[h] and out. The gradient of the stream is one buffer that flows down.
 *
 * What trains decides, once, how far backward goes inside each half and what forward saves for it
 * (plan_half); nothing else is held past its last use in forward. With everything trained that is,
 * per block and token: stream 2, norm 2, qkv 3, att 1 widths, hidden and gelu 4 each (16 C
 * elements), plus 4 statistics and one log-sum-exp per head, fp32. Each is freed at the point of
 * backward that uses it last.
 *
 * Thread rule: the trainer thread. Device buffers belong to struct gpt2 until dropped. */
#include <stdlib.h>

#include "engine/model/model_int.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* Index of a tensor inside the root unit, and inside a half, in table order (core/model.h). */
enum root_tensor { WTE = 0, WPE, LNF_W, LNF_B };
enum half_tensor { NORM_W = 0, NORM_B, IN_W, IN_B, OUT_W, OUT_B, HALF_TENSORS };

struct norm {
    void *out;         /* compute dtype */
    void *mean, *rstd; /* fp32 */
};

struct half {
    int unit, first; /* its unit, the index of its first tensor there */
    /* What backward computes: the gradients of mixed, of norm (it has more to do further down or in
     * the norm itself), anything at all. */
    bool to_mixed, to_norm, reached;
    bool trains_in, trains_out; /* the weights: their gradients need norm and mixed */
    struct norm norm;
    void *wide, *mixed; /* compute dtype */
    void *lse;          /* attention: log-sum-exps, fp32 */
};

struct gpt2 {
    int n_halves;
    struct half *halves;
    void **stream; /* [n_halves + 1] */
    struct norm norm;
    bool trains_wte, trains_embeddings;
    bool keep;                        /* of this step: there will be a backward */
    void *out, *dstream, *tmp, *tmp2; /* in flight; here so that release finds them */
};

static bool is_attention(int h) { return h % 2 == 0; }

/* What buffers are called in reports: of attention halves, of MLP halves, around the head. */
static const struct names {
    const char *stream, *norm, *mean, *rstd, *wide, *mixed, *out, *dmixed, *dnorm;
} names[] = {
    {"stream", "norm 1", "norm 1 mean", "norm 1 rstd", "qkv", "attention", "attention projection",
     "attention gradient", "norm 1 gradient"},
    {"residual", "norm 2", "norm 2 mean", "norm 2 rstd", "mlp hidden", "mlp gelu", "mlp projection",
     "mlp gradient", "norm 2 gradient"},
    {"stream", "final norm", "final norm mean", "final norm rstd", NULL, NULL, NULL, NULL,
     "final norm gradient"},
};

/* ---- what is computed and kept ---- */

static bool trains(const struct zt_model *m, int unit, int tensor) {
    return !m->table->tensors[m->table->units[unit].first_tensor + tensor].frozen;
}

/* below: something before this half trains, so its input's gradient is needed. */
static void plan_half(const struct zt_model *m, struct half *k, bool below) {
    bool t[HALF_TENSORS];
    for (int i = 0; i < HALF_TENSORS; i++) t[i] = trains(m, k->unit, k->first + i);
    k->to_norm = below || t[NORM_W] || t[NORM_B];
    k->to_mixed = k->to_norm || t[IN_W] || t[IN_B];
    k->reached = k->to_mixed || t[OUT_W] || t[OUT_B];
    k->trains_in = t[IN_W];
    k->trains_out = t[OUT_W];
}

static void plan(struct zt_model *m, struct gpt2 *g) {
    int h = 0;
    g->trains_wte = trains(m, 0, WTE);
    g->trains_embeddings = g->trains_wte || trains(m, 0, WPE);
    bool below = g->trains_embeddings;
    for (int u = 1; u < m->table->n_units; u++)
        for (int at = 0; at < m->table->units[u].n_tensors; at += HALF_TENSORS, h++) {
            struct half *k = &g->halves[h];
            k->unit = u;
            k->first = at;
            plan_half(m, k, below);
            below = k->reached;
        }
    ZT_ASSERT(h == g->n_halves);
}

/* Whether a norm's input, mean and rstd are saved. The final norm is always on the way. */
static bool keeps_stream(const struct gpt2 *g, int s) {
    return g->keep && (s == g->n_halves || g->halves[s].to_norm);
}

static enum zt_tag tag_of(bool kept) { return kept ? ZT_TAG_ACTIVATIONS : ZT_TAG_TEMPORARY; }

static void drop_unless(struct zt_model *m, bool kept, void *p_of_pointer) {
    if (!kept) zt_model_drop(m, p_of_pointer);
}

/* ---- create, destroy ---- */

static int gpt2_create(struct zt_model *m, struct zt_error *err) {
    int n = 2 * (int)m->table->config.layers;
    struct gpt2 *g = calloc(1, sizeof *g);
    if (g != NULL) {
        g->n_halves = n;
        g->halves = calloc((size_t)n, sizeof *g->halves);
        g->stream = calloc((size_t)n + 1, sizeof *g->stream);
    }
    if (g == NULL || g->halves == NULL || g->stream == NULL) {
        if (g != NULL) {
            free(g->halves);
            free(g->stream);
        }
        free(g);
        return zt_fail(err, ZT_ENOMEM, "model: out of host memory for %d half blocks", n);
    }
    plan(m, g);
    m->state = g;
    return 0;
}

static void gpt2_destroy(struct zt_model *m) {
    struct gpt2 *g = m->state;
    free(g->halves);
    free(g->stream);
    free(g);
}

static void release_norm(struct zt_model *m, struct norm *n) {
    zt_model_drop(m, &n->out);
    zt_model_drop(m, &n->mean);
    zt_model_drop(m, &n->rstd);
}

static void gpt2_release(struct zt_model *m) {
    struct gpt2 *g = m->state;
    for (int h = 0; h < g->n_halves; h++) {
        struct half *k = &g->halves[h];
        release_norm(m, &k->norm);
        zt_model_drop(m, &k->wide);
        zt_model_drop(m, &k->mixed);
        zt_model_drop(m, &k->lse);
    }
    for (int s = 0; s <= g->n_halves; s++) zt_model_drop(m, &g->stream[s]);
    release_norm(m, &g->norm);
    zt_model_drop(m, &g->out);
    zt_model_drop(m, &g->dstream);
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &g->tmp2);
}

/* ---- forward ---- */

/* stream[s] = stream[s-1] + out, then its norm. */
static int norm_forward(struct zt_model *m, int64_t rows, int s, struct norm *n, const void *w,
                        const void *bias, bool keep_out, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    enum zt_dtype t = m->env.compute;
    bool keep = keeps_stream(g, s);
    bool last = s == g->n_halves;
    const struct names *name = &names[last ? 2 : s % 2];
    int block = last ? -1 : s / 2, rc;
    if (s > 0)
        TRY(zt_model_buffer(m, rows, c->dim, t, tag_of(keep), name->stream, block, &g->stream[s],
                            err));
    TRY(zt_model_buffer(m, rows, c->dim, t, tag_of(keep_out), name->norm, block, &n->out, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag_of(keep), name->mean, block, &n->mean, err));
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, tag_of(keep), name->rstd, block, &n->rstd, err));
    TRY(m->env.ops->layernorm_forward(
        m->env.ctx, t, n->out, n->mean, n->rstd, g->stream[s > 0 ? s - 1 : 0], g->out,
        s > 0 ? g->stream[s] : NULL, w, bias, rows, c->dim, c->norm_eps, err));
    zt_model_drop(m, &g->out);
    if (s > 0) drop_unless(m, keeps_stream(g, s - 1), &g->stream[s - 1]);
    drop_unless(m, keep, &n->mean);
    drop_unless(m, keep, &n->rstd);
out:
    return rc;
}

/* mixed = attention(wide) */
static int attention_forward(struct zt_model *m, const struct zt_batch *b, int h, enum zt_tag tag,
                             struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    struct half *k = &((struct gpt2 *)m->state)->halves[h];
    enum zt_dtype t = m->env.compute;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_buffer(m, b->B * b->T, c->heads, ZT_F32, tag, "attention lse", h / 2, &k->lse,
                        err));
    TRY(zt_malloc(m->env.alloc, ops->attention_workspace(b->B, b->T, c->heads, c->head_dim, t),
                  zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "attention workspace",
                  &workspace, err));
    TRY(ops->attention_forward(m->env.ctx, t, k->mixed, k->lse, k->wide, b->B, b->T, c->heads,
                               c->head_dim, workspace, err));
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

static int half_forward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                        int h, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct half *k = &g->halves[h];
    const struct names *name = &names[h % 2];
    void *const *p = v->param + k->first;
    enum zt_dtype t = m->env.compute;
    bool attention = is_attention(h);
    bool keep_norm = g->keep && k->trains_in, keep_wide = g->keep && k->to_mixed;
    bool keep_mixed = g->keep && (k->trains_out || (attention && k->to_mixed));
    int64_t rows = b->B * b->T, C = c->dim;
    int64_t wide = attention ? 3 * C : c->ffn_dim, mixed = attention ? C : c->ffn_dim;
    int block = h / 2, rc;
    TRY(norm_forward(m, rows, h, &k->norm, p[NORM_W], p[NORM_B], keep_norm, err));
    TRY(zt_model_buffer(m, rows, wide, t, tag_of(keep_wide), name->wide, block, &k->wide, err));
    TRY(zt_linear_forward(m, rows, C, wide, k->norm.out, p[IN_W], p[IN_B], k->wide, err));
    drop_unless(m, keep_norm, &k->norm.out);
    TRY(zt_model_buffer(m, rows, mixed, t, tag_of(keep_mixed), name->mixed, block, &k->mixed, err));
    if (attention)
        TRY(attention_forward(m, b, h, tag_of(keep_wide), err));
    else
        TRY(m->env.ops->gelu_forward(m->env.ctx, t, k->mixed, k->wide, rows * wide, err));
    drop_unless(m, keep_wide, &k->wide);
    drop_unless(m, keep_wide, &k->lse);
    TRY(zt_model_buffer(m, rows, C, t, ZT_TAG_TEMPORARY, name->out, block, &g->out, err));
    TRY(zt_linear_forward(m, rows, mixed, C, k->mixed, p[OUT_W], p[OUT_B], g->out, err));
    drop_unless(m, keep_mixed, &k->mixed);
out:
    return rc;
}

static int forward_embedding(struct zt_model *m, const struct zt_unit_source *src,
                             const struct zt_batch *b, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, 0, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, b->B * b->T, c->dim, m->env.compute, tag_of(keeps_stream(g, 0)),
                        "stream", 0, &g->stream[0], err));
    TRY(m->env.ops->embedding_forward(m->env.ctx, m->env.compute, g->stream[0], b->tokens,
                                      v.param[WTE], v.param[WPE], b->B, b->T, c->dim, c->vocab_size,
                                      err));
    zt_model_segment_end(m, "embedding forward", 0);
    TRY(src->forward_end(src->arg, 0, err));
out:
    return rc;
}

static int forward_head(struct zt_model *m, const struct zt_unit_source *src,
                        const struct zt_batch *b, void **logits, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    int64_t rows = b->B * b->T;
    bool keep_norm = g->keep && g->trains_wte;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, 0, &v, err));
    zt_model_segment_begin(m);
    TRY(norm_forward(m, rows, g->n_halves, &g->norm, v.param[LNF_W], v.param[LNF_B], keep_norm,
                     err));
    drop_unless(m, g->keep, &g->stream[g->n_halves]);
    TRY(zt_model_buffer(m, rows, c->vocab_size, m->env.compute, tag_of(g->keep), "logits", -1,
                        logits, err));
    TRY(zt_linear_forward(m, rows, c->dim, c->vocab_size, g->norm.out, v.param[WTE], NULL, *logits,
                          err));
    drop_unless(m, keep_norm, &g->norm.out);
    zt_model_segment_end(m, "head forward", 0);
    TRY(src->forward_end(src->arg, 0, err));
out:
    return rc;
}

static int gpt2_forward(struct zt_model *m, const struct zt_unit_source *src,
                        const struct zt_batch *b, bool keep, void **logits, struct zt_error *err) {
    struct gpt2 *g = m->state;
    struct zt_unit_view v;
    int h = 0, rc;
    g->keep = keep;
    TRY(forward_embedding(m, src, b, err));
    for (int u = 1; u < m->table->n_units; u++) {
        TRY(src->forward_begin(src->arg, u, &v, err));
        zt_model_segment_begin(m);
        for (; h < g->n_halves && g->halves[h].unit == u; h++) TRY(half_forward(m, b, &v, h, err));
        zt_model_segment_end(m, "block forward", u);
        TRY(src->forward_end(src->arg, u, err));
    }
    TRY(forward_head(m, src, b, logits, err));
out:
    return rc;
}

/* ---- backward ---- */

/* The gradient to add to, NULL for a frozen tensor. */
static void *gradient(const struct zt_model *m, int unit, const struct zt_unit_view *v,
                      int tensor) {
    return trains(m, unit, tensor) ? v->grad[tensor] : NULL;
}

/* The final norm is always passed: whatever trains, a norm or something below it, needs its
 * gradient. */
static int backward_head(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                         void **dlogits, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T;
    int rc;
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, names[2].dnorm, -1, &g->tmp, err));
    TRY(zt_linear_backward(m, rows, c->dim, c->vocab_size, g->norm.out, v->param[WTE], *dlogits,
                           g->tmp, gradient(m, 0, v, WTE), NULL, err));
    zt_model_drop(m, dlogits);
    zt_model_drop(m, &g->norm.out);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, "stream gradient", -1, &g->dstream,
                        err));
    TRY(zt_norm_backward(m, rows, c->dim, g->tmp, g->stream[g->n_halves], v->param[LNF_W],
                         g->norm.mean, g->norm.rstd, g->dstream, false, gradient(m, 0, v, LNF_W),
                         gradient(m, 0, v, LNF_B), err));
    zt_model_drop(m, &g->tmp);
    release_norm(m, &g->norm);
    zt_model_drop(m, &g->stream[g->n_halves]);
    zt_model_segment_end(m, "head backward", 0);
out:
    return rc;
}

/* tmp: the gradient of mixed on entry, of wide on return. */
static int attention_backward(struct zt_model *m, const struct zt_batch *b, int h,
                              struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    struct gpt2 *g = m->state;
    struct half *k = &g->halves[h];
    enum zt_dtype t = m->env.compute;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_buffer(m, b->B * b->T, 3 * c->dim, t, ZT_TAG_TEMPORARY, "qkv gradient", h / 2,
                        &g->tmp2, err));
    TRY(zt_malloc(m->env.alloc,
                  ops->attention_backward_workspace(b->B, b->T, c->heads, c->head_dim, t),
                  zt_device_compute(m->env.device), ZT_TAG_TEMPORARY, "attention workspace",
                  &workspace, err));
    TRY(ops->attention_backward(m->env.ctx, t, g->tmp2, g->tmp, k->wide, k->mixed, k->lse, b->B,
                                b->T, c->heads, c->head_dim, workspace, err));
    zt_model_drop(m, &g->tmp);
    g->tmp = g->tmp2;
    g->tmp2 = NULL;
    zt_model_drop(m, &k->mixed);
    zt_model_drop(m, &k->lse);
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

/* tmp and mixed as in attention_backward. */
static int mix_backward(struct zt_model *m, const struct zt_batch *b, int h, struct zt_error *err) {
    struct gpt2 *g = m->state;
    struct half *k = &g->halves[h];
    int64_t n = b->B * b->T * m->table->config.ffn_dim;
    int rc;
    if (is_attention(h))
        TRY(attention_backward(m, b, h, err));
    else
        TRY(m->env.ops->gelu_backward(m->env.ctx, m->env.compute, g->tmp, k->wide, g->tmp, n, err));
    zt_model_drop(m, &k->wide);
out:
    return rc;
}

/* dstream is the gradient after the half on entry, before it on return. */
static int half_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                         int h, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    struct gpt2 *g = m->state;
    struct half *k = &g->halves[h];
    const struct names *name = &names[h % 2];
    void *const *p = v->param + k->first, *dp[HALF_TENSORS];
    enum zt_dtype t = m->env.compute;
    bool attention = is_attention(h);
    int64_t rows = b->B * b->T, C = c->dim;
    int64_t wide = attention ? 3 * C : c->ffn_dim, mixed = attention ? C : c->ffn_dim;
    int block = h / 2, rc = 0;
    if (!k->reached) return 0;
    for (int i = 0; i < HALF_TENSORS; i++) dp[i] = gradient(m, k->unit, v, k->first + i);
    if (k->to_mixed)
        TRY(zt_model_buffer(m, rows, mixed, t, ZT_TAG_TEMPORARY, name->dmixed, block, &g->tmp,
                            err));
    TRY(zt_linear_backward(m, rows, mixed, C, k->mixed, p[OUT_W], g->dstream, g->tmp, dp[OUT_W],
                           dp[OUT_B], err));
    if (!attention || !k->to_mixed) zt_model_drop(m, &k->mixed);
    if (!k->to_mixed) goto out;
    TRY(mix_backward(m, b, h, err));
    if (k->to_norm)
        TRY(zt_model_buffer(m, rows, C, t, ZT_TAG_TEMPORARY, name->dnorm, block, &g->tmp2, err));
    TRY(zt_linear_backward(m, rows, C, wide, k->norm.out, p[IN_W], g->tmp, g->tmp2, dp[IN_W],
                           dp[IN_B], err));
    zt_model_drop(m, &g->tmp);
    zt_model_drop(m, &k->norm.out);
    if (!k->to_norm) goto out;
    TRY(zt_norm_backward(m, rows, C, g->tmp2, g->stream[h], p[NORM_W], k->norm.mean, k->norm.rstd,
                         g->dstream, true, dp[NORM_W], dp[NORM_B], err));
    zt_model_drop(m, &g->tmp2);
    release_norm(m, &k->norm);
    zt_model_drop(m, &g->stream[h]);
out:
    return rc;
}

static int backward_embedding(struct zt_model *m, const struct zt_batch *b,
                              const struct zt_unit_view *v, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_ops *ops = m->env.ops;
    const size_t bytes = ops->embedding_backward_workspace(b->B * b->T, m->env.grad);
    struct gpt2 *g = m->state;
    void *workspace = NULL;
    int rc = 0;
    zt_model_segment_begin(m);
    if (bytes > 0)
        rc = zt_malloc(m->env.alloc, bytes, zt_device_compute(m->env.device), ZT_TAG_TEMPORARY,
                       "embedding workspace", &workspace, err);
    if (rc == 0)
        rc = ops->embedding_backward(m->env.ctx, m->env.compute, m->env.grad,
                                     gradient(m, 0, v, WTE), gradient(m, 0, v, WPE), g->dstream,
                                     b->tokens, b->B, b->T, c->dim, c->vocab_size, workspace, err);
    zt_free(m->env.alloc, workspace);
    zt_model_segment_end(m, "embedding backward", 0);
    return rc;
}

static int gpt2_backward(struct zt_model *m, const struct zt_unit_source *src,
                         const struct zt_batch *b, void *dlogits, struct zt_error *err) {
    struct gpt2 *g = m->state;
    struct zt_unit_view root, v;
    int h = g->n_halves - 1, rc;
    TRY(src->backward_begin(src->arg, 0, &root, err));
    TRY(backward_head(m, b, &root, &dlogits, err));
    TRY((g->trains_embeddings ? src->parameters_done : src->backward_end)(src->arg, 0, err));
    for (int u = m->table->n_units - 1; h >= 0 && g->halves[h].reached; u--) {
        TRY(src->backward_begin(src->arg, u, &v, err));
        zt_model_segment_begin(m);
        for (; h >= 0 && g->halves[h].unit == u; h--) TRY(half_backward(m, b, &v, h, err));
        zt_model_segment_end(m, "block backward", u);
        TRY(src->backward_end(src->arg, u, err));
    }
    if (g->trains_embeddings) {
        TRY(backward_embedding(m, b, &root, err));
        TRY(src->backward_end(src->arg, 0, err));
    }
    zt_model_drop(m, &g->dstream);
out:
    zt_model_drop(m, &dlogits);
    return rc;
}

const struct zt_family_impl zt_gpt2_impl = {gpt2_create, gpt2_destroy, gpt2_forward, gpt2_backward,
                                            gpt2_release};
