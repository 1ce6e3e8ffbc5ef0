/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/keep.c: what trains decides, once, how far backward goes inside each half and what
 * forward saves for it; activation checkpointing saves less and computes it again. Nothing else is
 * held past its last use in forward, and each is freed at the point of backward that uses it last.
 *
 *   none       all that backward reads
 *   selective  what products and attention make; norms, rotations and GELU are done again
 *   full       the input of a block; all else is made again, inside the block's backward. Halves of
 *              one block in units of their own are each recomputed alone: the other's parameters
 *              are not there. */
#include "engine/model/model_int.h"

bool zt_model_trains(const struct zt_model *m, int unit, int tensor) {
    return tensor >= 0 && !m->table->tensors[m->table->units[unit].first_tensor + tensor].frozen;
}

static bool trains(const struct zt_model *m, const struct zt_half *k, int tensor) {
    return tensor >= 0 && zt_model_trains(m, k->unit, k->first + tensor);
}

/* The layer's weight or its adapter. */
static bool trains_weight(const struct zt_model *m, const struct zt_half *k,
                          const struct zt_linear_form *f) {
    return trains(m, k, f->weight) || trains(m, k, f->lora_a) || trains(m, k, f->lora_b);
}

/* below: something before this half trains, so its input's gradient is needed. */
static void plan_half(const struct zt_model *m, struct zt_half *k, bool below) {
    const struct zt_half_form *f = &k->form;
    bool biases = false;
    k->trains_in = false;
    for (int i = 0; i < f->n_in; i++) {
        k->trains_in |= trains_weight(m, k, &f->in[i]);
        biases |= trains(m, k, f->in[i].bias);
    }
    k->trains_out = trains_weight(m, k, &f->out);
    k->to_norm = below || trains(m, k, f->norm.weight) || trains(m, k, f->norm.bias);
    k->to_mixed =
        k->to_norm || k->trains_in || biases || trains(m, k, f->q_norm) || trains(m, k, f->k_norm);
    k->reached = k->to_mixed || k->trains_out || trains(m, k, f->out.bias);
}

static bool recomputed_with(const struct zt_half *a, const struct zt_half *b) {
    return zt_is_replayed(a) && a->block == b->block && a->unit == b->unit;
}

static void plan_recompute(struct zt_model *m, int h) {
    struct zt_half *k = &m->halves[h];
    bool chosen = m->env.recompute_every < 1 || k->block % m->env.recompute_every == 0;
    k->recompute = chosen ? m->env.recompute : ZT_RECOMPUTE_NONE;
    k->checkpoint = zt_is_replayed(k) && (h == 0 || !recomputed_with(&m->halves[h - 1], k));
}

void zt_plan(struct zt_model *m) {
    const struct zt_form *f = &m->form;
    int h = 0;
    m->trains_head = zt_model_trains(m, f->head_unit, f->head);
    m->trains_embeddings = zt_model_trains(m, f->embed_unit, f->tokens) ||
                           zt_model_trains(m, f->embed_unit, f->positions);
    bool below = m->trains_embeddings;
    for (int u = 0; u < m->table->n_units; u++) {
        if (u == f->embed_unit || u == f->head_unit) continue;
        for (int at = 0; at < m->table->units[u].n_tensors; h++) {
            struct zt_half *k = &m->halves[h];
            struct zt_half_form block[2];
            zt_block_form(m->table, h / 2, block);
            k->form = block[h % 2];
            k->block = h / 2;
            k->unit = u;
            k->first = at;
            plan_half(m, k, below);
            plan_recompute(m, h);
            below = k->reached;
            at += k->form.n_tensors;
        }
    }
    ZT_ASSERT(h == m->n_halves);
    m->to_final = below || zt_model_trains(m, f->head_unit, f->final.weight) ||
                  zt_model_trains(m, f->head_unit, f->final.bias);
}

/* All that backward reads of the half. The product of SwiGLU is made again from gate and up. */
static struct zt_kept kept_whole(const struct zt_half *k) {
    const bool attention = k->form.mix == ZT_MIX_ATTENTION, swiglu = k->form.mix == ZT_MIX_SWIGLU;
    return (struct zt_kept){.stream = k->to_norm,
                            .statistics = k->to_norm,
                            .norm = k->trains_in,
                            .wide = k->to_mixed || (swiglu && k->trains_out),
                            .normed = k->to_mixed && k->form.q_norm >= 0,
                            .mixed = (k->trains_out && !swiglu) || (attention && k->to_mixed),
                            .lse = attention && k->to_mixed};
}

/* Without what half.c and mix.c make again. */
static struct zt_kept kept_selective(const struct zt_half *k) {
    struct zt_kept kept = kept_whole(k);
    kept.stream |= kept.norm;
    kept.statistics = kept.norm = kept.normed = false;
    if (k->form.mix != ZT_MIX_GELU) return kept;
    kept.wide |= kept.mixed;
    kept.mixed = false;
    return kept;
}

struct zt_kept zt_kept(const struct zt_model *m, int h) {
    const struct zt_half *k = &m->halves[h];
    if (!m->keep || !k->reached) return (struct zt_kept){false};
    if (k->recompute == ZT_RECOMPUTE_SELECTIVE) return kept_selective(k);
    if (k->recompute == ZT_RECOMPUTE_FULL && !m->replaying)
        return (struct zt_kept){.stream = k->checkpoint};
    return kept_whole(k);
}
