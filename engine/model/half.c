/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/half.c: a half block forward and backward, and what activation checkpointing
 * computes once more. The order of allocations is part of the plan: a function of form, batch and
 * keep.c. */
#include "engine/model/model_int.h"

void zt_half_release(struct zt_model *m, int h) {
    struct zt_half *k = &m->halves[h];
    zt_norm_drop(m, &k->norm);
    for (int i = 0; i < ZT_HALF_INPUTS; i++) zt_model_drop(m, &k->wide[i]);
    for (int i = 0; i < 2; i++) {
        zt_model_drop(m, &k->normed[i]);
        zt_model_drop(m, &k->normed_rstd[i]);
    }
    zt_model_drop(m, &k->mixed);
    zt_model_drop(m, &k->lse);
}

/* ---- forward ---- */

int zt_norm_stream(struct zt_model *m, int64_t rows, int s, const struct zt_norm_form *f,
                   void *const *p, struct zt_kept kept, struct zt_norm_state *n,
                   struct zt_error *err) {
    int block = s < m->n_halves ? m->halves[s].block : -1;
    bool there = m->stream[s] != NULL;
    int rc;
    if (!there)
        TRY(zt_model_buffer(m, rows, m->table->config.dim, m->env.compute, zt_tag_of(kept.stream),
                            f->stream, block, &m->stream[s], err));
    TRY(zt_norm_buffers(m, f, rows, block, kept, n, err));
    TRY(zt_norm_forward(m, f, p, rows, n, m->stream[there ? s : s - 1], m->out,
                        there ? NULL : m->stream[s], err));
    zt_model_drop(m, &m->out);
    if (!there) zt_model_drop_unless(m, zt_kept(m, s - 1).stream, &m->stream[s - 1]);
    zt_model_drop_unless(m, kept.statistics, &n->mean);
    zt_model_drop_unless(m, kept.statistics, &n->rstd);
out:
    return rc;
}

/* wide from normed, whose rows of all ranks are gathered first where they are cut. */
static int in_forward(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                      struct zt_kept kept, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    const void *x = k->norm.out;
    int64_t rows = b->B * b->T;
    int rc = 0;
    if (zt_tensor_sequence(m)) {
        TRY(zt_tensor_gather(m, b, k->unit, k->norm.out, f->norm.name, k->block, &m->whole,
                             ZT_WHY_TENSOR_ROWS, err));
        x = m->whole;
    }
    for (int i = 0; i < f->n_in; i++) {
        const struct zt_linear_form *in = &f->in[i];
        TRY(zt_model_buffer(m, rows, in->width, m->env.compute, zt_tag_of(kept.wide), in->name,
                            k->block, &k->wide[i], err));
        TRY(zt_layer_forward(m, in, p, rows, m->table->config.dim, x, zt_tensor(p, in->bias),
                             k->wide[i], err));
    }
    zt_model_drop(m, &m->whole);
out:
    return rc;
}

/* Up to mixed; `out` is what follows. */
static int to_mixed_forward(struct zt_model *m, const struct zt_batch *b, void *const *p, int h,
                            struct zt_kept kept, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    int rc;
    TRY(zt_norm_stream(m, zt_own_rows(m, b), h, &f->norm, p, kept, &k->norm, err));
    TRY(in_forward(m, b, p, h, kept, err));
    zt_model_drop_unless(m, kept.norm, &k->norm.out);
    TRY(zt_mix_forward(m, b, p, h, kept, err));
    for (int i = 0; i < f->n_in; i++) zt_model_drop_unless(m, kept.wide, &k->wide[i]);
    zt_model_drop_unless(m, kept.lse, &k->lse);
out:
    return rc;
}

/* The bias is added once: to the first rank's part of the sum. */
static void *bias_of(const struct zt_model *m, const struct zt_linear_form *f, void *const *p) {
    return m->env.tensor == NULL || m->env.tensor->rank == 0 ? zt_tensor(p, f->bias) : NULL;
}

int zt_half_forward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                    int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_linear_form *out = &k->form.out;
    void *const *p = v->param + k->first;
    struct zt_kept kept = zt_kept(m, h);
    int64_t rows = b->B * b->T;
    int rc;
    TRY(to_mixed_forward(m, b, p, h, kept, err));
    TRY(zt_model_buffer(m, rows, out->width, m->env.compute, ZT_TAG_TEMPORARY, out->name, k->block,
                        &m->out, err));
    TRY(zt_layer_forward(m, out, p, rows, k->form.mixed, k->mixed, bias_of(m, out, p), m->out,
                         err));
    zt_model_drop_unless(m, kept.mixed, &k->mixed);
    TRY(zt_tensor_sum(m, b, k->unit, &m->out, ZT_TAG_TEMPORARY, out->name, k->block,
                      ZT_WHY_TENSOR_SUM, err));
    TRY(zt_dropout_rows(m, b, ZT_SITE_RESIDUAL(h), m->out, m->out, err));
out:
    return rc;
}

/* ---- once more ---- */

/* The halves of h's block from its saved input on; of h, the last, what its backward reads. */
static int replay(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v, int h,
                  struct zt_error *err) {
    int first = h, rc;
    while (!m->halves[first].checkpoint) first--;
    m->replaying = true;
    for (int i = first; i < h; i++) TRY(zt_half_forward(m, b, v, i, err));
    struct zt_kept kept = zt_kept(m, h);
    TRY(to_mixed_forward(m, b, v->param + m->halves[h].first, h, kept, err));
    zt_model_drop_unless(m, kept.mixed, &m->halves[h].mixed);
    zt_model_drop_unless(m, kept.stream, &m->stream[h]);
out:
    m->replaying = false;
    return rc;
}

/* Whether h's backward begins that of a block of which only the input was saved. */
static bool replays(const struct zt_model *m, int h) {
    const struct zt_half *k = &m->halves[h], *above = k + 1;
    if (!zt_is_replayed(k)) return false;
    return h + 1 == m->n_halves || above->block != k->block || above->unit != k->unit;
}

/* normed and its statistics, from the saved stream. */
static int norm_again(struct zt_model *m, int64_t rows, void *const *p, int h,
                      struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    int rc;
    if (k->recompute != ZT_RECOMPUTE_SELECTIVE || !(k->to_norm || k->trains_in)) return 0;
    const struct zt_kept kept = {.norm = k->trains_in, .statistics = k->to_norm};
    TRY(zt_norm_buffers(m, &k->form.norm, rows, k->block, kept, &k->norm, err));
    TRY(zt_norm_forward(m, &k->form.norm, p, rows, &k->norm, m->stream[h], NULL, NULL, err));
    zt_model_drop_unless(m, k->trains_in, &k->norm.out);
    if (k->to_norm) return 0;
    zt_model_drop(m, &k->norm.mean);
    zt_model_drop(m, &k->norm.rstd);
    zt_model_drop(m, &m->stream[h]);
out:
    return rc;
}

/* ---- backward ---- */

/* The gradient of the output layer's result: *own, of this rank's rows, and *all: dstream, behind
 * the dropout, and gathered, where there are those. */
static int out_gradient(struct zt_model *m, const struct zt_batch *b, int h, const void **own,
                        const void **all, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_linear_form *f = &k->form.out;
    int rc = 0;
    *own = m->dstream;
    if (zt_drops(m)) {
        TRY(zt_model_buffer(m, zt_own_rows(m, b), f->width, m->env.compute, ZT_TAG_TEMPORARY,
                            f->gradient, k->block, &m->dout, err));
        TRY(zt_dropout_rows(m, b, ZT_SITE_RESIDUAL(h), m->dout, m->dstream, err));
        *own = m->dout;
    }
    *all = *own;
    if (zt_tensor_sequence(m)) {
        TRY(zt_tensor_gather(m, b, k->unit, *own, f->gradient, k->block, &m->whole,
                             ZT_WHY_TENSOR_GRADIENT_ROWS, err));
        *all = m->whole;
    }
out:
    return rc;
}

/* dmixed from dstream, and the output layer's gradients. SwiGLU's own backward comes before that of
 * the weight: it makes the product that was not saved. */
static int out_backward(struct zt_model *m, const struct zt_batch *b, void *const *p,
                        void *const *dp, int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    const bool swiglu = f->mix == ZT_MIX_SWIGLU;
    const void *own, *all;
    int64_t rows = b->B * b->T;
    int rc;
    TRY(out_gradient(m, b, h, &own, &all, err));
    if (k->to_mixed) {
        TRY(zt_model_buffer(m, rows, f->mixed, m->env.compute, ZT_TAG_TEMPORARY, f->mixed_gradient,
                            k->block, &m->dmixed, err));
        TRY(zt_layer_backward(m, &f->out, p, NULL, rows, f->mixed, NULL, all, m->dmixed, false,
                              err));
    }
    if (swiglu && k->to_mixed)
        TRY(zt_mix_backward(m, b, p, dp, h, err));
    else if (k->trains_out && k->mixed == NULL)
        TRY(zt_mix_forward(m, b, p, h, (struct zt_kept){.mixed = true}, err));
    TRY(zt_layer_backward(m, &f->out, p, dp, rows, f->mixed, k->mixed, all, NULL, false, err));
    TRY(zt_bias_backward(m, zt_own_rows(m, b), f->out.width, own, zt_tensor(dp, f->out.bias), err));
    zt_model_drop(m, &m->whole);
    zt_model_drop(m, &m->dout);
    if (f->mix != ZT_MIX_ATTENTION || !k->to_mixed) zt_model_drop(m, &k->mixed);
    for (int i = 0; i < f->n_in && !k->to_mixed; i++) zt_model_drop(m, &k->wide[i]);
out:
    return rc;
}

/* dnorm from dwide, and the input layers' gradients. */
static int in_backward(struct zt_model *m, const struct zt_batch *b, void *const *p,
                       void *const *dp, int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    int64_t C = m->table->config.dim, rows = b->B * b->T;
    const void *x = k->norm.out;
    int rc = 0;
    if (zt_tensor_sequence(m) && k->trains_in) {
        TRY(zt_tensor_gather(m, b, k->unit, k->norm.out, f->norm.name, k->block, &m->whole,
                             ZT_WHY_TENSOR_ROWS_AGAIN, err));
        x = m->whole;
    }
    if (k->to_norm)
        TRY(zt_model_buffer(m, rows, C, m->env.compute, ZT_TAG_TEMPORARY, f->norm.gradient,
                            k->block, &m->dnorm, err));
    for (int i = 0; i < f->n_in; i++) {
        const struct zt_linear_form *in = &f->in[i];
        TRY(zt_layer_backward(m, in, p, dp, rows, C, x, m->dwide[i], m->dnorm, i > 0, err));
        TRY(zt_bias_backward(m, rows, in->width, m->dwide[i], zt_tensor(dp, in->bias), err));
        zt_model_drop(m, &m->dwide[i]);
    }
    zt_model_drop(m, &m->whole);
    zt_model_drop(m, &k->norm.out);
    if (k->to_norm)
        TRY(zt_tensor_sum(m, b, k->unit, &m->dnorm, ZT_TAG_TEMPORARY, f->norm.gradient, k->block,
                          ZT_WHY_TENSOR_GRADIENT_SUM, err));
out:
    return rc;
}

int zt_half_backward(struct zt_model *m, const struct zt_batch *b, const struct zt_unit_view *v,
                     int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = &k->form;
    void *const *p = v->param + k->first, *dp[ZT_HALF_TENSORS];
    int64_t rows = zt_own_rows(m, b);
    int rc = 0;
    if (!k->reached) return 0;
    for (int i = 0; i < f->n_tensors; i++) dp[i] = zt_model_gradient(m, k->unit, v, k->first + i);
    if (replays(m, h)) TRY(replay(m, b, v, h, err));
    TRY(out_backward(m, b, p, dp, h, err));
    if (!k->to_mixed) goto out;
    if (f->mix != ZT_MIX_SWIGLU) TRY(zt_mix_backward(m, b, p, dp, h, err));
    TRY(norm_again(m, rows, p, h, err));
    TRY(in_backward(m, b, p, dp, h, err));
    if (!k->to_norm) goto out;
    TRY(zt_norm_backward(m, &f->norm, p, rows, &k->norm, m->dnorm, m->stream[h], m->dstream, true,
                         dp[f->norm.weight], zt_tensor(dp, f->norm.bias), err));
    zt_model_drop(m, &m->dnorm);
    zt_norm_drop(m, &k->norm);
    zt_model_drop(m, &m->stream[h]);
out:
    return rc;
}
