/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/mix.c: what is between a half's linear layers: attention and GELU. Rules of memory:
 * engine/model/model_int.h. */
#include "engine/model/model_int.h"

/* All queries have keys of their own; q, k and v are the three parts of a row of wide[0]. */
static struct zt_attention attention_of(const struct zt_model *m, const struct zt_batch *b) {
    const struct zt_model_config *c = &m->table->config;
    return (struct zt_attention){.B = b->B,
                                 .T = b->T,
                                 .H = c->heads,
                                 .KV = c->heads,
                                 .D = c->head_dim,
                                 .q_row = 3 * c->dim,
                                 .k_row = 3 * c->dim,
                                 .v_row = 3 * c->dim};
}

/* q, k or v: part 0, 1 or 2 */
static void *part_of(const struct zt_model *m, void *wide, int part) {
    const size_t at = (size_t)(part * m->table->config.dim);
    return (char *)wide + at * zt_dtype_size(m->env.compute);
}

static int attention_forward(struct zt_model *m, const struct zt_batch *b, int h,
                             struct zt_error *err) {
    const struct zt_attention a = attention_of(m, b);
    const struct zt_ops *ops = m->env.ops;
    struct zt_half *k = &m->halves[h];
    enum zt_dtype t = m->env.compute;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_workspace(m, ops->attention_workspace(&a, t), "attention workspace", &workspace,
                           err));
    TRY(ops->attention_forward(m->env.ctx, t, k->mixed, k->lse, k->wide[0],
                               part_of(m, k->wide[0], 1), part_of(m, k->wide[0], 2), &a, workspace,
                               err));
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

int zt_mix_forward(struct zt_model *m, const struct zt_batch *b, int h, struct zt_kept kept,
                   struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = k->form;
    int64_t rows = b->B * b->T;
    int rc;
    TRY(zt_model_buffer(m, rows, f->mixed, m->env.compute, zt_tag_of(kept.mixed), f->mixed_name,
                        k->block, &k->mixed, err));
    if (f->mix == ZT_MIX_GELU) {
        TRY(m->env.ops->gelu_forward(m->env.ctx, m->env.compute, k->mixed, k->wide[0],
                                     rows * f->mixed, err));
        goto out;
    }
    TRY(zt_model_buffer(m, rows, m->table->config.heads, ZT_F32, zt_tag_of(kept.lse),
                        "attention lse", k->block, &k->lse, err));
    TRY(attention_forward(m, b, h, err));
out:
    return rc;
}

static int attention_backward(struct zt_model *m, const struct zt_batch *b, int h,
                              struct zt_error *err) {
    const struct zt_attention a = attention_of(m, b);
    const struct zt_ops *ops = m->env.ops;
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = k->form;
    enum zt_dtype t = m->env.compute;
    void *workspace = NULL;
    int rc;
    TRY(zt_model_buffer(m, b->B * b->T, f->in[0].width, t, ZT_TAG_TEMPORARY, f->in[0].gradient,
                        k->block, &m->dwide[0], err));
    TRY(zt_model_workspace(m, ops->attention_backward_workspace(&a, t), "attention workspace",
                           &workspace, err));
    TRY(ops->attention_backward(m->env.ctx, t, m->dwide[0], part_of(m, m->dwide[0], 1),
                                part_of(m, m->dwide[0], 2), m->dmixed, k->wide[0],
                                part_of(m, k->wide[0], 1), part_of(m, k->wide[0], 2), k->mixed,
                                k->lse, &a, workspace, err));
    zt_model_drop(m, &m->dmixed);
    zt_model_drop(m, &k->mixed);
    zt_model_drop(m, &k->lse);
out:
    zt_free(m->env.alloc, workspace);
    return rc;
}

int zt_mix_backward(struct zt_model *m, const struct zt_batch *b, int h, struct zt_error *err) {
    struct zt_half *k = &m->halves[h];
    const struct zt_half_form *f = k->form;
    int rc;
    if (f->mix == ZT_MIX_ATTENTION)
        TRY(attention_backward(m, b, h, err));
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
