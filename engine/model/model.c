/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/model.c: the family-independent part: one micro-batch from tokens to loss and
 * gradients, and the layers that every family uses. Memory and thread rules: engine/model/model.h.
 */
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

static void destroy(struct zt_model *m) {
    zt_model_walk_free(&m->walk);
    free(m->halves);
    free(m->stream);
    free(m);
}

int zt_model_create(const struct zt_model_table *table, const struct zt_model_env *env,
                    struct zt_model **out, struct zt_error *err) {
    *out = NULL;
    if (table->config.family != ZT_GPT2)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.family: llama is not in this version; use a gpt2 preset");
    if (!table->config.tied_head)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.tied_head: false is not in this version; leave it out");
    if (env->tensor && env->tensor->degree > 1)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "parallelism.tensor_parallel_degree: %d is not in this version; use 1",
                       env->tensor->degree);
    if (env->grad != env->compute && env->grad != ZT_F32)
        return zt_fail(err, ZT_EINVAL,
                       "model: gradients are of the compute type %s or fp32, not %s",
                       zt_dtype_name(env->compute), zt_dtype_name(env->grad));
    struct zt_model *m = calloc(1, sizeof *m);
    if (m == NULL) return zt_fail(err, ZT_ENOMEM, "model: out of host memory");
    m->table = table;
    m->env = *env;
    int rc = zt_model_walk_build(table, &m->walk, err);
    if (rc == 0) rc = allocate(m, err);
    if (rc != 0) {
        destroy(m);
        return rc;
    }
    zt_gpt2_form(table, &m->form);
    zt_plan(m);
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
    if (b->T > m->table->config.seq_len_max)
        return zt_fail(err, ZT_EINVAL,
                       "training.seq_len: %lld is longer than the model's seq_len_max %lld",
                       (long long)b->T, (long long)m->table->config.seq_len_max);
    return 0;
}

/* The loss of all rows, in place: logits become their own gradient when `backward`. */
static int loss_in_place(struct zt_model *m, const struct zt_batch *b, float loss_scale,
                         bool backward, struct zt_fixsum *loss_sum, int64_t *valid,
                         struct zt_error *err) {
    const struct zt_ops *ops = m->env.ops;
    int64_t rows = b->B * b->T;
    void *losses = NULL;
    int rc =
        zt_model_buffer(m, rows, 1, ZT_F32, ZT_TAG_TEMPORARY, "token losses", -1, &losses, err);
    if (rc != 0) return rc;
    zt_model_segment_begin(m);
    rc = ops->cross_entropy(m->env.ctx, m->env.compute, m->logits, losses, b->targets, NULL,
                            rows, m->table->config.vocab_size, loss_scale, backward, err);
    if (rc == 0) rc = ops->sum_values(m->env.ctx, losses, rows, loss_sum, err);
    zt_model_segment_end(m, "loss", 0);
    zt_free(m->env.alloc, losses);
    if (rc != 0) return rc;
    return ops->count_targets(m->env.ctx, b->targets, rows, valid, err);
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
    rc = zt_chain_forward(m, src, b, err);
    if (rc == 0) rc = loss_in_place(m, b, loss_scale, backward, loss_sum, valid, err);
    if (rc == 0 && backward) {
        zt_ledger_set_phase(m->env.ledger, ZT_PHASE_BACKWARD);
        rc = zt_chain_backward(m, src, b, err);
    }
    zt_model_drop(m, &m->logits);
    if (rc != 0) zt_chain_release(m);
    return rc;
}

int zt_model_logits(struct zt_model *m, const struct zt_unit_source *src, const struct zt_batch *b,
                    void *logits, struct zt_error *err) {
    int rc = check_batch(m, b, err);
    if (rc != 0) return rc;
    m->keep = false;
    zt_ledger_set_phase(m->env.ledger, ZT_PHASE_EVAL);
    rc = zt_chain_forward(m, src, b, err);
    if (rc == 0) {
        size_t bytes =
            (size_t)(b->B * b->T * m->table->config.vocab_size) * zt_dtype_size(m->env.compute);
        rc = m->env.ops->copy(m->env.ctx, logits, m->logits, bytes, err);
    }
    zt_model_drop(m, &m->logits);
    if (rc != 0) zt_chain_release(m);
    return rc;
}
