/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/chain.c: embedding, half blocks and head, in the order of the units
 * (engine/model/model.h, core/model.h). */
#include "engine/model/model_int.h"

void zt_chain_release(struct zt_model *m) {
    for (int h = 0; h < m->n_halves; h++) zt_half_release(m, h);
    for (int s = 0; s <= m->n_halves; s++) zt_model_drop(m, &m->stream[s]);
    zt_norm_drop(m, &m->final);
    zt_model_drop(m, &m->out);
    zt_model_drop(m, &m->whole);
    zt_model_drop(m, &m->logits);
    zt_model_drop(m, &m->dstream);
    zt_model_drop(m, &m->dout);
    zt_model_drop(m, &m->dmixed);
    for (int i = 0; i < ZT_HALF_INPUTS; i++) zt_model_drop(m, &m->dwide[i]);
    zt_model_drop(m, &m->dnorm);
}

/* ---- dropout ---- */

struct zt_dropout zt_dropout_of(const struct zt_model *m, const struct zt_batch *b, uint32_t site) {
    return (struct zt_dropout){.p = zt_drops(m) ? (float)m->table->config.dropout : 0.0f,
                               .seed = m->env.dropout_seed,
                               .step = (uint32_t)b->step,
                               .site = site};
}

int zt_dropout_rows(struct zt_model *m, const struct zt_batch *b, uint32_t site, void *out,
                    const void *in, struct zt_error *err) {
    if (!zt_drops(m)) return 0;
    const int64_t rows = zt_own_rows(m, b), sample = b->T * m->table->config.dim;
    const int64_t stride = b->sample_stride > 0 ? b->sample_stride : 1;
    const struct zt_dropout d = zt_dropout_of(m, b, site);
    const struct zt_span span = {
        .first = (uint64_t)(b->first_sample * sample),
        .at = zt_tensor_sequence(m) ? m->env.tensor->rank * rows * m->table->config.dim : 0,
        .row = sample,
        .stride = stride * sample};
    return m->env.ops->dropout(m->env.ctx, m->env.compute, out, in, rows * m->table->config.dim, &d,
                               span, err);
}

/* ---- forward ---- */

static int forward_embedding(struct zt_model *m, const struct zt_unit_source *src,
                             const struct zt_batch *b, struct zt_error *err) {
    const struct zt_form *f = &m->form;
    const enum zt_tag tag = zt_tag_of(zt_kept(m, 0).stream);
    const int64_t C = m->table->config.dim;
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, f->embed_unit, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_model_buffer(m, b->B * b->T, C, m->env.compute,
                        zt_tensor_sequence(m) ? ZT_TAG_TEMPORARY : tag, "stream", 0, &m->stream[0],
                        err));
    /* positions are added once: to the first rank's part of the sum */
    TRY(m->env.ops->embedding_forward(
        m->env.ctx, m->env.compute, m->stream[0], b->tokens, v.param[f->tokens],
        m->env.tensor == NULL || m->env.tensor->rank == 0 ? zt_tensor(v.param, f->positions) : NULL,
        b->B, b->T, C, zt_vocab_of(m), err));
    TRY(zt_tensor_sum(m, b, f->embed_unit, &m->stream[0], tag, "stream", 0, ZT_WHY_TENSOR_EMBEDDING,
                      err));
    TRY(zt_dropout_rows(m, b, ZT_SITE_EMBEDDING, m->stream[0], m->stream[0], err));
    zt_model_segment_end(m, "embedding forward", f->embed_unit);
    TRY(src->forward_end(src->arg, f->embed_unit, err));
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
    TRY(zt_head_forward(m, src, b, err));
out:
    return rc;
}

/* ---- backward ---- */

static int backward_embedding(struct zt_model *m, const struct zt_batch *b,
                              const struct zt_unit_view *v, struct zt_error *err) {
    const struct zt_form *f = &m->form;
    const struct zt_ops *ops = m->env.ops;
    const void *dout = m->dstream;
    void *workspace = NULL;
    int unit = f->embed_unit, rc;
    zt_model_segment_begin(m);
    TRY(zt_dropout_rows(m, b, ZT_SITE_EMBEDDING, m->dstream, m->dstream, err));
    if (zt_tensor_sequence(m)) {
        TRY(zt_tensor_gather(m, b, unit, m->dstream, "stream gradient", -1, &m->whole,
                             ZT_WHY_TENSOR_GRADIENT_ROWS, err));
        dout = m->whole;
    }
    TRY(zt_model_workspace(m, ops->embedding_backward_workspace(b->B * b->T, m->env.grad),
                           "embedding workspace", &workspace, err));
    TRY(ops->embedding_backward(m->env.ctx, m->env.compute, m->env.grad,
                                zt_model_gradient(m, unit, v, f->tokens),
                                zt_model_gradient(m, unit, v, f->positions), dout, b->tokens, b->B,
                                b->T, m->table->config.dim, zt_vocab_of(m), workspace, err));
    zt_model_segment_end(m, "embedding backward", unit);
out:
    zt_free(m->env.alloc, workspace);
    zt_model_drop(m, &m->whole);
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
    TRY(zt_head_backward(m, b, &root, err));
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
