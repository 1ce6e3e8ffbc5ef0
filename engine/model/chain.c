/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/chain.c: embedding, half blocks and head, in the order of the units
 * (engine/model/model.h, core/model.h). */
#include "engine/model/model_int.h"

void zt_chain_release(struct zt_model *m) {
    for (int h = 0; h < m->n_halves; h++) zt_half_release(m, h);
    for (int s = 0; s <= m->n_halves; s++) zt_model_drop(m, &m->stream[s]);
    zt_norm_drop(m, &m->final);
    zt_model_drop(m, &m->out);
    zt_model_drop(m, &m->logits);
    zt_model_drop(m, &m->dstream);
    zt_model_drop(m, &m->dmixed);
    for (int i = 0; i < ZT_HALF_INPUTS; i++) zt_model_drop(m, &m->dwide[i]);
    zt_model_drop(m, &m->dnorm);
}

/* ---- forward ---- */

static int forward_embedding(struct zt_model *m, const struct zt_unit_source *src,
                             const struct zt_batch *b, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_form *f = &m->form;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, f->embed_unit, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, b->B * b->T, c->dim, m->env.compute, zt_tag_of(zt_kept(m, 0).stream),
                        "stream", 0, &m->stream[0], err));
    TRY(m->env.ops->embedding_forward(m->env.ctx, m->env.compute, m->stream[0], b->tokens,
                                      v.param[f->tokens], zt_tensor(v.param, f->positions), b->B,
                                      b->T, c->dim, zt_vocab_all(c->vocab_size), err));
    zt_model_segment_end(m, "embedding forward", f->embed_unit);
    TRY(src->forward_end(src->arg, f->embed_unit, err));
out:
    return rc;
}

static int forward_head(struct zt_model *m, const struct zt_unit_source *src,
                        const struct zt_batch *b, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_form *f = &m->form;
    const struct zt_kept kept = {
        .stream = m->keep, .statistics = m->keep, .norm = m->keep && m->trains_head};
    int64_t rows = b->B * b->T;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, f->head_unit, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_norm_stream(m, rows, m->n_halves, &f->final, v.param, kept, &m->final, err));
    zt_model_drop_unless(m, kept.stream, &m->stream[m->n_halves]);
    TRY(zt_model_buffer(m, rows, c->vocab_size, m->env.compute, zt_tag_of(m->keep), "logits", -1,
                        &m->logits, err));
    TRY(zt_linear_forward(m, rows, c->dim, c->vocab_size, m->final.out, v.param[f->head], NULL,
                          m->logits, err));
    zt_model_drop_unless(m, kept.norm, &m->final.out);
    zt_model_segment_end(m, "head forward", f->head_unit);
    TRY(src->forward_end(src->arg, f->head_unit, err));
out:
    return rc;
}

int zt_chain_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                     struct zt_error *err) {
    struct zt_unit_view v;
    int rc;
    TRY(forward_embedding(m, src, b, err));
    for (int h = 0; h < m->n_halves;) {
        int u = m->halves[h].unit;
        TRY(src->forward_begin(src->arg, u, &v, err));
        zt_model_segment_begin(m);
        for (; h < m->n_halves && m->halves[h].unit == u; h++)
            TRY(zt_half_forward(m, b, &v, h, err));
        zt_model_segment_end(m, "block forward", u);
        TRY(src->forward_end(src->arg, u, err));
    }
    TRY(forward_head(m, src, b, err));
out:
    return rc;
}

/* ---- backward ---- */

/* The final norm is always passed: whatever trains, a norm or something below it, needs its
 * gradient. */
static int backward_head(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                         struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_form *f = &m->form;
    const struct zt_norm_form *n = &f->final;
    enum zt_dtype t = m->env.compute;
    int64_t rows = b->B * b->T;
    int unit = f->head_unit, rc;
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, n->gradient, -1, &m->dnorm, err));
    TRY(zt_linear_backward(m, rows, c->dim, c->vocab_size, m->final.out, v->param[f->head],
                           m->logits, m->dnorm, false, zt_model_gradient(m, unit, v, f->head), NULL,
                           err));
    zt_model_drop(m, &m->logits);
    zt_model_drop(m, &m->final.out);
    TRY(zt_model_buffer(m, rows, c->dim, t, ZT_TAG_TEMPORARY, "stream gradient", -1, &m->dstream,
                        err));
    TRY(zt_norm_backward(m, n, v->param, rows, &m->final, m->dnorm, m->stream[m->n_halves],
                         m->dstream, false, zt_model_gradient(m, unit, v, n->weight),
                         zt_model_gradient(m, unit, v, n->bias), err));
    zt_model_drop(m, &m->dnorm);
    zt_norm_drop(m, &m->final);
    zt_model_drop(m, &m->stream[m->n_halves]);
    zt_model_segment_end(m, "head backward", unit);
out:
    return rc;
}

static int backward_embedding(struct zt_model *m, const struct zt_batch *b,
                              const struct zt_unit_view *v, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_form *f = &m->form;
    const struct zt_ops *ops = m->env.ops;
    int unit = f->embed_unit;
    void *workspace = NULL;
    zt_model_segment_begin(m);
    int rc = zt_model_workspace(m, ops->embedding_backward_workspace(b->B * b->T, m->env.grad),
                                "embedding workspace", &workspace, err);
    if (rc == 0)
        rc = ops->embedding_backward(m->env.ctx, m->env.compute, m->env.grad,
                                     zt_model_gradient(m, unit, v, f->tokens),
                                     zt_model_gradient(m, unit, v, f->positions), m->dstream,
                                     b->tokens, b->B, b->T, c->dim, zt_vocab_all(c->vocab_size),
                                     workspace, err);
    zt_free(m->env.alloc, workspace);
    zt_model_segment_end(m, "embedding backward", unit);
    return rc;
}

/* The head's unit, open until the embedding's gradient is in when it is the embedding's as well. */
static int head_done(struct zt_model *m, const struct zt_unit_source *src, struct zt_error *err) {
    const struct zt_form *f = &m->form;
    bool open = f->head_unit == f->embed_unit && m->trains_embeddings;
    return (open ? src->parameters_done : src->backward_end)(src->arg, f->head_unit, err);
}

int zt_chain_backward(struct zt_model *m, const struct zt_unit_source *src,
                      const struct zt_batch *b, struct zt_error *err) {
    const struct zt_form *f = &m->form;
    struct zt_unit_view root, v;
    int rc;
    TRY(src->backward_begin(src->arg, f->head_unit, &root, err));
    TRY(backward_head(m, b, &root, err));
    TRY(head_done(m, src, err));
    for (int h = m->n_halves - 1; h >= 0 && m->halves[h].reached;) {
        int u = m->halves[h].unit;
        TRY(src->backward_begin(src->arg, u, &v, err));
        zt_model_segment_begin(m);
        for (; h >= 0 && m->halves[h].unit == u; h--) TRY(zt_half_backward(m, b, &v, h, err));
        zt_model_segment_end(m, "block backward", u);
        TRY(src->backward_end(src->arg, u, err));
    }
    if (m->trains_embeddings) {
        if (f->embed_unit != f->head_unit)
            TRY(src->backward_begin(src->arg, f->embed_unit, &root, err));
        TRY(backward_embedding(m, b, &root, err));
        TRY(src->backward_end(src->arg, f->embed_unit, err));
    }
    zt_model_drop(m, &m->dstream);
out:
    return rc;
}
