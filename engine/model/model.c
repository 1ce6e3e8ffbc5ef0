/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model.c: a model's life, and one micro-batch from tokens to loss and gradients.
 * Memory and thread rules: engine/model/model.h. */
#include "engine/model/model_int.h"

#include <stdlib.h>

static int allocate(struct zt_model *m, struct zt_error *err) {
    m->n_halves = 2 * (int)m->table->config.layers;
    m->halves = calloc((size_t)m->n_halves, sizeof *m->halves);
    m->stream = calloc((size_t)m->n_halves + 1, sizeof *m->stream);
    if (m->halves == NULL || m->stream == NULL)
        return zt_fail(err, ZT_ENOMEM, "model: out of host memory for %d half blocks", m->n_halves);
    return 0;
}

/* The table of rotary angles: an input that stays, as the batch's tokens do, so tag activations. */
static int make_rope(struct zt_model *m, struct zt_error *err) {
    const struct zt_model_config *c = &m->table->config;
    const struct zt_device_ops *dev = zt_device_ops(m->env.device);
    struct zt_stream *compute = zt_device_compute(m->env.device);
    const int64_t T = m->env.positions > 0 ? m->env.positions : c->seq_len_max;
    const size_t bytes = (size_t)(T * c->head_dim) * sizeof(float);
    if (!m->halves[0].form.rope) return 0;
    int rc = zt_model_buffer(m, T, c->head_dim, ZT_F32, ZT_TAG_ACTIVATIONS, "rotary angles", -1,
                             &m->rope, err);
    if (rc != 0 || !zt_device_has_memory(m->env.device)) return rc;
    float *angles = malloc(bytes);
    if (angles == NULL) return zt_fail(err, ZT_ENOMEM, "model: out of host memory");
    zt_rope_table(c->rope_theta, &c->rope_scaling, c->head_dim, T, angles);
    rc = dev->copy(compute, m->rope, angles, bytes, err);
    if (rc == 0) rc = dev->stream_sync(compute, err);
    free(angles);
    return rc;
}

static void destroy(struct zt_model *m) {
    zt_model_drop(m, &m->rope);
    zt_model_walk_free(&m->walk);
    free(m->halves);
    free(m->stream);
    free(m);
}

int zt_model_create(const struct zt_model_table *table, const struct zt_model_env *env,
                    struct zt_model **out, struct zt_error *err) {
    *out = NULL;
    if (env->grad != env->compute && env->grad != ZT_F32)
        return zt_fail(err, ZT_EINVAL,
                       "model: gradients are of the compute type %s or fp32, not %s",
                       zt_dtype_name(env->compute), zt_dtype_name(env->grad));
    struct zt_model *m = calloc(1, sizeof *m);
    if (m == NULL) return zt_fail(err, ZT_ENOMEM, "model: out of host memory");
    m->table = table;
    m->env = *env;
    zt_form_build(table, &m->form);
    int rc = zt_model_walk_build(table, &m->walk, err);
    if (rc == 0) rc = allocate(m, err);
    if (rc == 0) zt_plan(m);
    if (rc == 0) rc = make_rope(m, err);
    if (rc != 0) {
        destroy(m);
        return rc;
    }
    *out = m;
    return 0;
}

void zt_model_destroy(struct zt_model *m) {
    if (m == NULL) return;
    zt_chain_release(m);
    destroy(m);
}

void zt_model_set_trace(struct zt_model *m,
                        void (*fn)(void *arg, const char *name, int unit, int64_t start_ns,
                                   int64_t end_ns),
                        void *arg) {
    m->trace = fn;
    m->trace_arg = arg;
}

static int check_batch(const struct zt_model *m, const struct zt_batch *b, struct zt_error *err) {
    if (b->B < 1 || b->T < 1)
        return zt_fail(err, ZT_EINVAL,
                       "model: a batch of %lld x %lld tokens has nothing to compute",
                       (long long)b->B, (long long)b->T);
    int64_t longest = m->env.positions > 0 ? m->env.positions : m->table->config.seq_len_max;
    if (b->T > longest)
        return zt_fail(err, ZT_EINVAL,
                       "training.seq_len: %lld is longer than the model's seq_len_max %lld",
                       (long long)b->T, (long long)longest);
    if (zt_tensor_sequence(m) && b->T % m->env.tensor->degree != 0)
        return zt_fail(
            err, ZT_EINVAL,
            "training.seq_len: %lld is not divisible by tensor_parallel_degree %d, which "
            "parallelism.sequence_parallel needs",
            (long long)b->T, m->env.tensor->degree);
    return 0;
}

/* The unit calls of one forward, nothing computed. */
static int ask_for_units(struct zt_model *m, const struct zt_unit_source *src,
                         struct zt_error *err) {
    struct zt_unit_view v;
    int rc = 0;
    for (int i = 0; i < m->walk.n_forward && rc == 0; i++)
        if ((rc = src->forward_begin(src->arg, m->walk.forward[i], &v, err)) == 0)
            rc = src->forward_end(src->arg, m->walk.forward[i], err);
    return rc;
}

int zt_model_step(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                  float loss_scale, bool backward, bool eval, struct zt_fixsum *loss_sum,
                  int64_t *valid, struct zt_error *err) {
    ZT_ASSERT(!(backward && eval));
    zt_ledger_set_phase(m->env.ledger, eval ? ZT_PHASE_EVAL : ZT_PHASE_FORWARD);
    if (eval && b->B == 0) return ask_for_units(m, src, err);
    int rc = check_batch(m, b, err);
    if (rc != 0) return rc;
    m->keep = backward;
    m->training = !eval;
    m->want_logits = false;
    m->loss.scale = loss_scale;
    m->loss.sum = loss_sum;
    rc = zt_chain_forward(m, src, b, err);
    if (rc == 0) rc = zt_head_loss(m, b, err);
    if (rc == 0 && backward) {
        zt_ledger_set_phase(m->env.ledger, ZT_PHASE_BACKWARD);
        rc = zt_chain_backward(m, src, b, err);
    }
    zt_model_drop(m, &m->logits);
    if (rc != 0) zt_chain_release(m);
    return rc != 0 ? rc
                   : m->env.ops->count_targets(m->env.ctx, b->targets, b->B * b->T, valid, err);
}

int zt_model_logits(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    void *logits, struct zt_error *err) {
    int rc = check_batch(m, b, err);
    if (rc != 0) return rc;
    m->keep = m->training = false;
    m->want_logits = true;
    zt_ledger_set_phase(m->env.ledger, ZT_PHASE_EVAL);
    rc = zt_chain_forward(m, src, b, err);
    if (rc == 0) {
        size_t bytes = (size_t)(b->B * b->T * m->form.vocab_rows) * zt_dtype_size(m->env.compute);
        rc = m->env.ops->copy(m->env.ctx, logits, m->logits, bytes, err);
    }
    zt_model_drop(m, &m->logits);
    if (rc != 0) zt_chain_release(m);
    return rc;
}
