/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/head.c: final norm, head and loss; whole, or in pieces of rows so that logits never
 * exist whole. In pieces, forward of a training step ends with the final norm: the factor of the
 * loss is known, so backward makes the logits of a piece, turns them into their own gradient and
 * uses that at once. With tensor parallelism every rank has its columns of the logits, and three
 * numbers a token are summed over the group. */
#include "engine/model/model_int.h"

static bool in_pieces(const struct zt_model *m) {
    return m->env.chunk_tokens > 0 && !m->want_logits;
}

/* Of the head's backward: what is above it needs no gradient where only the head trains. */
static struct zt_kept kept_of_head(const struct zt_model *m) {
    return (struct zt_kept){.stream = m->keep && m->to_final,
                            .statistics = m->keep && m->to_final,
                            .norm = m->keep && (m->trains_head || in_pieces(m))};
}

/* ---- loss ---- */

static int vocab_loss(struct zt_model *m, const struct zt_batch *b, int64_t at, int64_t rows,
                      float *losses, struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    const struct zt_vocab v = zt_vocab_of(m);
    const int32_t *targets = b->targets + at;
    const float *weights = b->weights != NULL ? b->weights + at : NULL;
    enum zt_dtype t = m->env.compute;
    void *max = NULL, *sums = NULL;
    int unit = m->form.head_unit, rc;
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, ZT_TAG_TEMPORARY, "largest logits", -1, &max, err));
    TRY(zt_model_buffer(m, rows, 2, ZT_F32, ZT_TAG_TEMPORARY, "softmax sums", -1, &sums, err));
    TRY(ops->vocab_max(m->env.ctx, t, max, m->logits, rows, v, err));
    TRY(zt_tensor_reduce(m, b, unit, max, rows, ZT_F32, ZT_MAX, ZT_WHY_TENSOR_LARGEST, err));
    TRY(ops->vocab_sum(m->env.ctx, t, sums, m->logits, max, targets, rows, v, err));
    TRY(zt_tensor_reduce(m, b, unit, sums, 2 * rows, ZT_F32, ZT_SUM, ZT_WHY_TENSOR_SOFTMAX, err));
    TRY(ops->vocab_loss(m->env.ctx, t, m->logits, losses, sums, max, targets, weights, rows, v,
                        m->loss.scale, m->keep, err));
out:
    zt_free(m->env.alloc, sums);
    zt_free(m->env.alloc, max);
    return rc;
}

/* Of rows [at, at + rows), whose logits become their own gradient when there will be a backward. */
static int loss_in_place(struct zt_model *m, const struct zt_batch *b, int64_t at, int64_t rows,
                         struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    void *losses = NULL;
    int rc;
    TRY(zt_model_buffer(m, rows, 1, ZT_F32, ZT_TAG_TEMPORARY, "token losses", -1, &losses, err));
    if (zt_tensor_degree(m) > 1)
        TRY(vocab_loss(m, b, at, rows, losses, err));
    else
        TRY(ops->cross_entropy(m->env.ctx, m->env.compute, m->logits, losses, b->targets + at,
                               b->weights != NULL ? b->weights + at : NULL, rows,
                               m->table->config.vocab_size, m->loss.scale, m->keep, err));
    TRY(ops->sum_values(m->env.ctx, losses, rows, m->loss.sum, err));
out:
    zt_free(m->env.alloc, losses);
    return rc;
}

int zt_head_loss(struct zt_model *m, const struct zt_batch *b, struct zt_error *err) {
    if (in_pieces(m)) return 0;
    zt_model_segment_begin(m);
    int rc = loss_in_place(m, b, 0, b->B * b->T, err);
    zt_model_segment_end(m, "loss", m->form.head_unit);
    return rc;
}

/* ---- pieces ---- */

static const void *row_at(const struct zt_model *m, const void *v, int64_t row) {
    const size_t bytes = (size_t)m->table->config.dim * zt_dtype_size(m->env.compute);
    return (const char *)v + (size_t)row * bytes;
}

static int64_t piece_rows(const struct zt_model *m, int64_t left) {
    return left < m->env.chunk_tokens ? left : m->env.chunk_tokens;
}

/* x: normed rows, all of them. With dx (or dw) the piece's gradient is used at once. */
static int pieces(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                  const void *x, void *dx, void *dw, struct zt_error *err) {
    const int64_t C = m->table->config.dim, W = m->form.vocab_rows, rows = b->B * b->T;
    const void *w = v->param[m->form.head];
    int rc;
    TRY(zt_model_buffer(m, piece_rows(m, rows), W, m->env.compute, ZT_TAG_TEMPORARY, "logits", -1,
                        &m->logits, err));
    for (int64_t at = 0, n; at < rows; at += n) {
        const void *xs = row_at(m, x, at);
        n = piece_rows(m, rows - at);
        TRY(zt_linear_forward(m, n, C, W, xs, w, NULL, m->logits, err));
        TRY(loss_in_place(m, b, at, n, err));
        TRY(zt_linear_backward(m, n, C, W, xs, w, m->logits,
                               dx != NULL ? (void *)(uintptr_t)row_at(m, dx, at) : NULL, false, dw,
                               NULL, err));
    }
    zt_model_drop(m, &m->logits);
out:
    return rc;
}

/* ---- forward ---- */

/* *x: all rows of the final norm's result. */
static int all_rows(struct zt_model *m, const struct zt_batch *b, const char *why, const void **x,
                    struct zt_error *err) {
    *x = m->final.out;
    if (!zt_tensor_sequence(m)) return 0;
    int rc = zt_tensor_gather(m, b, m->form.head_unit, m->final.out, m->form.final.name, -1,
                              &m->whole, why, err);
    *x = m->whole;
    return rc;
}

static int logits_forward(struct zt_model *m, const struct zt_batch *b,
                          const struct zt_unit_view *v, struct zt_error *err) {
    const int64_t rows = b->B * b->T, W = m->form.vocab_rows;
    const void *x;
    int rc;
    if (in_pieces(m) && m->keep) return 0;
    TRY(all_rows(m, b, ZT_WHY_TENSOR_ROWS, &x, err));
    if (in_pieces(m)) {
        TRY(pieces(m, b, v, x, NULL, NULL, err));
    } else {
        TRY(zt_model_buffer(m, rows, W, m->env.compute, zt_tag_of(m->keep), "logits", -1,
                            &m->logits, err));
        TRY(zt_linear_forward(m, rows, m->table->config.dim, W, x, v->param[m->form.head], NULL,
                              m->logits, err));
    }
    zt_model_drop(m, &m->whole);
out:
    return rc;
}

int zt_head_forward(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    struct zt_error *err) {
    const int unit = m->form.head_unit;
    const struct zt_kept kept = kept_of_head(m);
    struct zt_unit_view v;
    int rc;
    TRY(src->forward_begin(src->arg, unit, &v, err));
    zt_model_segment_begin(m);
    TRY(zt_norm_stream(m, zt_own_rows(m, b), m->n_halves, &m->form.final, v.param, kept, &m->final,
                       err));
    zt_model_drop_unless(m, kept.stream, &m->stream[m->n_halves]);
    TRY(logits_forward(m, b, &v, err));
    zt_model_drop_unless(m, kept.norm, &m->final.out);
    zt_model_segment_end(m, "head forward", unit);
    TRY(src->forward_end(src->arg, unit, err));
out:
    return rc;
}

/* ---- backward ---- */

/* dnorm, all rows of it, and the head's gradient. */
static int logits_backward(struct zt_model *m, const struct zt_batch *b,
                           const struct zt_unit_view *v, struct zt_error *err) {
    const struct zt_form *f = &m->form;
    const int64_t C = m->table->config.dim, rows = b->B * b->T;
    void *dw = zt_model_gradient(m, f->head_unit, v, f->head);
    const void *x = m->final.out;
    int rc = 0;
    if (m->final.out != NULL) TRY(all_rows(m, b, ZT_WHY_TENSOR_ROWS_AGAIN, &x, err));
    if (m->to_final)
        TRY(zt_model_buffer(m, rows, C, m->env.compute, ZT_TAG_TEMPORARY, f->final.gradient, -1,
                            &m->dnorm, err));
    if (in_pieces(m))
        TRY(pieces(m, b, v, x, m->dnorm, dw, err));
    else
        TRY(zt_linear_backward(m, rows, C, f->vocab_rows, x, v->param[f->head], m->logits, m->dnorm,
                               false, dw, NULL, err));
    zt_model_drop(m, &m->logits);
    zt_model_drop(m, &m->whole);
    zt_model_drop(m, &m->final.out);
out:
    return rc;
}

int zt_head_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                     struct zt_error *err) {
    const struct zt_norm_form *n = &m->form.final;
    const int64_t rows = zt_own_rows(m, b);
    int unit = m->form.head_unit, rc;
    zt_model_segment_begin(m);
    TRY(logits_backward(m, b, v, err));
    if (m->to_final) {
        TRY(zt_tensor_sum(m, b, unit, &m->dnorm, ZT_TAG_TEMPORARY, n->gradient, -1,
                          ZT_WHY_TENSOR_GRADIENT_SUM, err));
        TRY(zt_model_buffer(m, rows, m->table->config.dim, m->env.compute, ZT_TAG_TEMPORARY,
                            "stream gradient", -1, &m->dstream, err));
        TRY(zt_norm_backward(m, n, v->param, rows, &m->final, m->dnorm, m->stream[m->n_halves],
                             m->dstream, false, zt_model_gradient(m, unit, v, n->weight),
                             zt_model_gradient(m, unit, v, n->bias), err));
        zt_model_drop(m, &m->dnorm);
        zt_norm_drop(m, &m->final);
        zt_model_drop(m, &m->stream[m->n_halves]);
    }
    zt_model_segment_end(m, "head backward", unit);
out:
    return rc;
}
