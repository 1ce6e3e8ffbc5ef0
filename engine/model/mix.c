/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/mix.c: what is between a half's linear layers: attention, with norms and rotary
 * positions on q and k where the family has them, GELU, SwiGLU. Rules of memory:
 * engine/model/model_int.h. */
#include "engine/model/model_int.h"

/* Heads of q, k or v (input 0, 1, 2) on this rank. */
static int64_t heads_of(const struct zt_model *m, int input) {
    const struct zt_model_config *c = &m->table->config;
    return (input == 0 ? c->heads : c->kv_heads) / zt_tensor_degree(m);
}

static struct zt_attention attention_of(const struct zt_model *m, const struct zt_batch *b, int h) {
    const struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    const bool fused = f->n_in == 1;
    const int64_t H = heads_of(m, 0);
    return (struct zt_attention){
        .B = b->B,
        .T = b->T,
        .H = H,
        .KV = heads_of(m, 1),
        .D = m->table->config.head_dim,
        .q_row = f->in[0].width,
        .k_row = f->in[fused ? 0 : 1].width,
        .v_row = f->in[fused ? 0 : 2].width,
        .starts = b->starts,
        .dropout = zt_dropout_of(m, b, ZT_SITE_ATTENTION(k->block)),
        .first_sample = b->first_sample,
        .sample_stride = b->sample_stride,
        .first_head = m->env.tensor != NULL ? m->env.tensor->rank * H : 0,
        .heads_all = m->table->config.heads,
    };
}

/* q, k or v in their buffers, of which there is one when the layer is fused. */
static void *part(const struct zt_model *m, const struct zt_half_form *f, void *const *of, int i) {
    const int64_t D = m->table->config.head_dim;
    if (f->n_in > 1) return of[i];
    const int64_t at = i == 0 ? 0 : (heads_of(m, 0) + (i - 1) * heads_of(m, 1)) * D;
    return (char *)of[0] + (size_t)at * zt_dtype_size(m->env.compute);
}

/* ---- q and k ---- */

static int rotate(struct zt_model *m, const struct zt_batch *b, void *v, int input, bool inverse,
                  struct zt_error *err) {
    const int64_t D = m->table->config.head_dim, heads = heads_of(m, input);
    return m->env.ops->rope(m->env.ctx, m->env.compute, v, heads * D, m->rope, b->B, b->T, heads, D,
                            inverse, err);
}

/* normed[i] from q or k, and turned; `wide` stays as it is. */
static int head_norm(struct zt_model *m, const struct zt_batch *b, void *const *p, int h, int i,
                     enum zt_tag tag, struct zt_error *err) {
    static const char *const name[] = {"q normed", "k normed"}, *const rstd[] = {"q rstd",
                                                                                 "k rstd"};
    const struct zt_model_config *c = &m->table->config;
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    int64_t rows = b->B * b->T, heads = heads_of(m, i);
    int rc;
    TRY(zt_model_buffer(m, rows, f->in[i].width, m->env.compute, tag, name[i], k->block,
                        &k->normed[i], err));
    TRY(zt_model_buffer(m, rows, heads, ZT_F32, tag, rstd[i], k->block, &k->normed_rstd[i], err));
    TRY(m->env.ops->rmsnorm_forward(m->env.ctx, m->env.compute, k->normed[i], k->normed_rstd[i],
                                    k->wide[i], NULL, NULL, p[i == 0 ? f->q_norm : f->k_norm],
                                    rows * heads, c->head_dim, c->norm_eps, err));
    TRY(rotate(m, b, k->normed[i], i, false, err));
out:
    return rc;
}

static int head_norm_backward(struct zt_model *m, const struct zt_batch *b, void *const *p,
                              void *const *dp, int h, int i, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    struct zt_half *k = &m->halves[h];
    const int64_t rows = b->B * b->T * heads_of(m, i), D = m->table->config.head_dim;
    const int weight = i == 0 ? k->form.q_norm : k->form.k_norm;
    void *workspace = NULL;
    int rc = zt_model_workspace(m, ops->rmsnorm_backward_workspace(rows, D), "norm workspace",
                                &workspace, err);
    if (rc != 0) return rc;
    rc = ops->rmsnorm_backward(m->env.ctx, m->env.compute, m->env.grad, m->dwide[i], dp[weight],
                               m->dwide[i], k->wide[i], p[weight], k->normed_rstd[i], rows, D,
                               false, workspace, err);
    zt_free(m->env.alloc, workspace);
    zt_model_drop(m, &k->normed_rstd[i]);
    return rc;
}

static bool norms_heads(const struct zt_half_form *f) { return f->q_norm >= 0; }

/* What attention reads: q and k normed, turned. */
static int prepare(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                   enum zt_tag tag, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    int rc = 0;
    for (int i = 0; i < 2; i++)
        if (norms_heads(&k->form))
            TRY(head_norm(m, b, p, h, i, tag, err));
        else if (k->form.rope)
            TRY(rotate(m, b, k->wide[i], i, false, err));
out:
    return rc;
}

static void attention_inputs(const struct zt_model *m, const struct zt_half *k, void *in[3]) {
    for (int i = 0; i < 3; i++)
        in[i] = i < 2 && k->normed[i] != NULL ? k->normed[i] : part(m, &k->form, k->wide, i);
}

/* ---- attention ---- */

static int attention_forward(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                             struct zt_kept kept, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    const struct zt_attention a = attention_of(m, b, h);
    struct zt_half *k = &m->halves[h];
    void *workspace = NULL, *in[3];
    int rc;
    TRY(zt_model_buffer(m, b->B * b->T, a.H, ZT_F32, zt_tag_of(kept.lse), "attention lse", k->block,
                        &k->lse, err));
    TRY(prepare(m, b, p, h, zt_tag_of(kept.normed), err));
    attention_inputs(m, k, in);
    TRY(zt_model_workspace(m, ops->attention_workspace(&a, m->env.compute), "attention workspace",
                           &workspace, err));
    TRY(ops->attention_forward(m->env.ctx, m->env.compute, k->mixed, k->lse, in[0], in[1], in[2],
                               &a, workspace, err));
    for (int i = 0; i < 2; i++) {
        zt_model_drop_unless(m, kept.normed, &k->normed[i]);
        zt_model_drop_unless(m, kept.normed, &k->normed_rstd[i]);
    }
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

/* dwide: of q and k as attention read them. */
static int attention_core_backward(struct zt_model *m, const struct zt_batch *b, int h,
                                   struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    const struct zt_attention a = attention_of(m, b, h);
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    void *workspace = NULL, *in[3];
    int rc;
    for (int i = 0; i < f->n_in; i++)
        TRY(zt_model_buffer(m, b->B * b->T, f->in[i].width, m->env.compute, ZT_TAG_TEMPORARY,
                            f->in[i].gradient, k->block, &m->dwide[i], err));
    attention_inputs(m, k, in);
    TRY(zt_model_workspace(m, ops->attention_backward_workspace(&a, m->env.compute),
                           "attention workspace", &workspace, err));
    TRY(ops->attention_backward(m->env.ctx, m->env.compute, part(m, f, m->dwide, 0),
                                part(m, f, m->dwide, 1), part(m, f, m->dwide, 2), m->dmixed, in[0],
                                in[1], in[2], k->mixed, k->lse, &a, workspace, err));
    zt_model_drop(m, &m->dmixed);
    zt_model_drop(m, &k->mixed);
    zt_model_drop(m, &k->lse);
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

static int attention_backward(struct zt_model *m, const struct zt_batch *b, void *const *p,
                              void *const *dp, int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    int rc;
    if (norms_heads(f) && k->normed[0] == NULL) TRY(prepare(m, b, p, h, ZT_TAG_ACTIVATIONS, err));
    TRY(attention_core_backward(m, b, h, err));
    for (int i = 0; i < 2 && f->rope; i++) {
        zt_model_drop(m, &k->normed[i]);
        TRY(rotate(m, b, m->dwide[i], i, true, err));
        if (norms_heads(f)) TRY(head_norm_backward(m, b, p, dp, h, i, err));
    }
out:
    return rc;
}

/* ---- SwiGLU ---- */

/* The gradients take the places of gate and up, the product that of its own gradient. */
static int swiglu_backward(struct zt_model *m, const struct zt_batch *b, int h,
                           struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    int rc;
    TRY(m->env.ops->swiglu_backward(m->env.ctx, m->env.compute, k->wide[0], k->wide[1],
                                    k->trains_out ? m->dmixed : NULL, k->wide[0], k->wide[1],
                                    m->dmixed, b->B * b->T * k->form.mixed, err));
    for (int i = 0; i < 2; i++) {
        m->dwide[i] = k->wide[i];
        k->wide[i] = NULL;
    }
    k->mixed = m->dmixed;
    m->dmixed = NULL;
out:
    return rc;
}

/* ---- all ---- */

int zt_mix_forward(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                   struct zt_kept kept, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T;
    int rc;
    TRY(zt_model_buffer(m, rows, f->mixed, t, zt_tag_of(kept.mixed), f->mixed_name, k->block,
                        &k->mixed, err));
    if (f->mix == ZT_MIX_ATTENTION)
        TRY(attention_forward(m, b, p, h, kept, err));
    else if (f->mix == ZT_MIX_GELU)
        TRY(ops->gelu_forward(m->env.ctx, t, k->mixed, k->wide[0], rows * f->mixed, err));
    else
        TRY(ops->swiglu_forward(m->env.ctx, t, k->mixed, k->wide[0], k->wide[1], rows * f->mixed,
                                err));
out:
    return rc;
}

int zt_mix_backward(struct zt_model *m, const struct zt_batch *b, void *const *p, void *const *dp,
                    int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    int rc;
    if (f->mix == ZT_MIX_ATTENTION)
        TRY(attention_backward(m, b, p, dp, h, err));
    else if (f->mix == ZT_MIX_SWIGLU)
        TRY(swiglu_backward(m, b, h, err));
    else {
        TRY(m->env.ops->gelu_backward(m->env.ctx, m->env.compute, m->dmixed, k->wide[0], m->dmixed,
                                      b->B * b->T * f->mixed, err));
        m->dwide[0] = m->dmixed;
        m->dmixed = NULL;
    }
    for (int i = 0; i < f->n_in; i++) zt_model_drop(m, &k->wide[i]);
out:
    return rc;
}
