/* SPDX-License-Identifier: Apache-2.0 */
/* tests/model/model_util.h: a GPT-2 on the CPU device with parameters and gradients of its own, for
 * tests of the model without the sharding runtime.
 *
 * The rig's unit source is strict: begin hands out fresh copies of a unit's tensors, and what is no
 * longer the model's to read (after forward_end, parameters_done, backward_end) is overwritten with
 * NaN. So a model that reads a parameter too late, or writes a gradient after the end, gives other
 * numbers. It writes down every call, and the ledger at the first backward_begin. */
#ifndef ZT_TESTS_MODEL_UTIL_H
#define ZT_TESTS_MODEL_UTIL_H
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/device/alloc.h"
#include "engine/model/model.h"

#define RIG_TENSORS 96
#define RIG_CALLS 64

struct rig_options {
    struct zt_model_config config;
    int64_t B, T;
    enum zt_wrap wrap;
    int blocks;
    const char *trainable[4]; /* patterns; none = everything */
    enum zt_dtype compute, grad;
    int threads;
    const char *gemm;
    double dropout; /* into config */
    uint64_t seed;  /* of dropout; with the step and the first sequence's place in it */
    int64_t step, first_sample, sample_stride;
    enum zt_recompute recompute;
    int64_t recompute_every, chunk_tokens;
    const char *lora[4]; /* targets of adapters; none = no adapters */
    int64_t lora_rank;
    double lora_scale;
};

struct rig_call {
    char kind; /* f F: forward begin, end; b p B: backward begin, parameters done, end */
    int unit;
};

struct rig {
    struct rig_options o;
    struct zt_model_table table;
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    struct zt_ops_ctx *ctx;
    const struct zt_ops *ops;
    struct zt_model *model;
    float *master[RIG_TENSORS], *m[RIG_TENSORS], *v[RIG_TENSORS]; /* fp32 */
    void *param[RIG_TENSORS], *grad[RIG_TENSORS]; /* of the compute and gradient types */
    int32_t *tokens, *targets;
    int32_t *starts; /* NULL: none; rig_device's, as weights */
    float *weights;  /* NULL: the mean over the targets that count; else they sum to 1 */
    /* the source */
    void *lent_param[RIG_TENSORS], *lent_grad[RIG_TENSORS];
    bool full_gradients; /* frozen tensors get a buffer too: the model must leave it alone */
    void **dead;         /* poisoned copies, freed at close */
    int n_dead;
    struct rig_call call[RIG_CALLS];
    int n_calls;
    int64_t saved_bytes; /* requested activations at the first backward_begin of a step */
};

static inline void ok(int rc, const struct zt_error *e) {
    cr_assert_eq(rc, 0, "%d: %s", rc, e->msg);
}

static inline void *rig_device(struct rig *r, size_t bytes, enum zt_tag tag, const char *what) {
    struct zt_error e = {0};
    void *p = NULL;
    ok(zt_malloc(r->alloc, bytes, zt_device_compute(r->device), tag, what, &p, &e), &e);
    memset(p, 0, bytes);
    return p;
}

static inline size_t rig_bytes(const struct rig *r, int tensor, enum zt_dtype t) {
    return (size_t)r->table.tensors[tensor].numel * zt_dtype_size(t);
}

/* ---- the source ---- */

static inline void rig_note(struct rig *r, char kind, int unit) {
    cr_assert_lt(r->n_calls, RIG_CALLS);
    r->call[r->n_calls++] = (struct rig_call){kind, unit};
}

static inline void *rig_lend(const void *from, size_t bytes) {
    void *p = aligned_alloc(64, zt_round_up(bytes, 64));
    cr_assert(p != NULL);
    memcpy(p, from, bytes);
    return p;
}

/* 0xff..: NaN in each of fp32, bf16 and fp16 */
static inline void rig_poison(struct rig *r, void **p, size_t bytes) {
    if (*p == NULL) return;
    memset(*p, 0xff, bytes);
    r->dead = realloc(r->dead, ((size_t)r->n_dead + 1) * sizeof *r->dead);
    cr_assert(r->dead != NULL);
    r->dead[r->n_dead++] = *p;
    *p = NULL;
}

static inline void rig_lend_unit(struct rig *r, int unit, bool gradients, struct zt_unit_view *v) {
    const struct zt_unit_def *u = &r->table.units[unit];
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        cr_assert(r->lent_param[i] == NULL && r->lent_grad[i] == NULL, "unit %d is open", unit);
        r->lent_param[i] = rig_lend(r->param[i], rig_bytes(r, i, r->o.compute));
        if (gradients && (r->full_gradients || !r->table.tensors[i].frozen))
            r->lent_grad[i] = rig_lend(r->grad[i], rig_bytes(r, i, r->o.grad));
    }
    v->param = r->lent_param + u->first_tensor;
    v->grad = r->lent_grad + u->first_tensor;
}

static inline void rig_take_parameters(struct rig *r, int unit) {
    const struct zt_unit_def *u = &r->table.units[unit];
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        rig_poison(r, &r->lent_param[i], rig_bytes(r, i, r->o.compute));
}

static inline int rig_forward_begin(void *arg, int unit, struct zt_unit_view *v,
                                    struct zt_error *err) {
    (void)err;
    rig_note(arg, 'f', unit);
    rig_lend_unit(arg, unit, false, v);
    return 0;
}
static inline int rig_forward_end(void *arg, int unit, struct zt_error *err) {
    (void)err;
    rig_note(arg, 'F', unit);
    rig_take_parameters(arg, unit);
    return 0;
}
static inline int rig_backward_begin(void *arg, int unit, struct zt_unit_view *v,
                                     struct zt_error *err) {
    struct rig *r = arg;
    (void)err;
    bool first = true;
    for (int i = 0; i < r->n_calls; i++) first &= r->call[i].kind != 'b';
    if (first) r->saved_bytes = r->ledger.requested[ZT_TAG_ACTIVATIONS];
    rig_note(r, 'b', unit);
    rig_lend_unit(r, unit, true, v);
    return 0;
}
static inline int rig_parameters_done(void *arg, int unit, struct zt_error *err) {
    (void)err;
    rig_note(arg, 'p', unit);
    rig_take_parameters(arg, unit);
    return 0;
}
static inline int rig_backward_end(void *arg, int unit, struct zt_error *err) {
    struct rig *r = arg;
    const struct zt_unit_def *u = &r->table.units[unit];
    (void)err;
    rig_note(r, 'B', unit);
    rig_take_parameters(r, unit);
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        if (r->lent_grad[i] == NULL) continue;
        memcpy(r->grad[i], r->lent_grad[i], rig_bytes(r, i, r->o.grad));
        rig_poison(r, &r->lent_grad[i], rig_bytes(r, i, r->o.grad));
    }
    return 0;
}
static inline struct zt_unit_source rig_source(struct rig *r) {
    return (struct zt_unit_source){r,
                                   rig_forward_begin,
                                   rig_forward_end,
                                   rig_backward_begin,
                                   rig_parameters_done,
                                   rig_backward_end};
}

/* ---- open, close ---- */

/* Rounds the master copy of every tensor to what the model computes with. */
static inline void rig_set_parameters(struct rig *r) {
    struct zt_error e = {0};
    for (int i = 0; i < r->table.n_tensors; i++)
        ok(r->ops->cast(r->ctx, r->param[i], r->o.compute, r->master[i], ZT_F32,
                        r->table.tensors[i].numel, &e),
           &e);
}

/* Made-up weights (biases too: a zero bias hides a lost one) and tokens; some targets are masked.
 */
static inline void rig_draw(struct rig *r) {
    struct zt_error e = {0};
    for (int i = 0; i < r->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &r->table.tensors[i];
        ok(r->ops->fill_normal(r->ctx, ZT_F32, r->master[i], 5, (uint32_t)i,
                               zt_span_plain(0, d->numel), d->numel, 0.08, &e),
           &e);
        for (int64_t k = 0; d->init == ZT_INIT_ONE && k < d->numel; k++) r->master[i][k] += 1.0f;
    }
    uint32_t x = 12345;
    for (int64_t k = 0; k < r->o.B * r->o.T; k++) {
        x = x * 1664525u + 1013904223u;
        r->tokens[k] = (int32_t)((x >> 8) % (uint32_t)r->o.config.vocab_size);
        x = x * 1664525u + 1013904223u;
        r->targets[k] =
            (x >> 28) == 0 ? -1 : (int32_t)((x >> 8) % (uint32_t)r->o.config.vocab_size);
    }
    rig_set_parameters(r);
}

static inline void rig_open(struct rig *r, const struct rig_options *o) {
    struct zt_error e = {0};
    int n = 0;
    memset(r, 0, sizeof *r);
    r->o = *o;
    r->o.config.dropout = o->dropout;
    ok(zt_model_table_build(&r->o.config, o->wrap, o->blocks, &r->table, &e), &e);
    while (n < 4 && o->lora[n]) n++;
    if (n > 0) ok(zt_model_table_add_lora(&r->table, o->lora_rank, o->lora, n, &e), &e);
    n = 0;
    cr_assert_leq(r->table.n_tensors, RIG_TENSORS);
    while (n < 4 && o->trainable[n]) n++;
    if (n > 0) ok(zt_model_set_trainable(&r->table, o->trainable, n, &e), &e);
    struct zt_device_config dc = {"cpu", 128u << 20};
    ok(zt_device_open(&dc, &r->device, &e), &e);
    zt_ledger_init(&r->ledger);
    ok(zt_alloc_create(r->device, &r->ledger, NULL, &r->alloc, &e), &e);
    ok(zt_ops_cpu_create(o->threads ? o->threads : 1, NULL, o->gemm, &r->ctx, &e), &e);
    r->ops = zt_ops_cpu();
    for (int i = 0; i < r->table.n_tensors; i++) {
        const char *name = r->table.tensors[i].name;
        r->master[i] = rig_device(r, rig_bytes(r, i, ZT_F32), ZT_TAG_OPTIMIZER, name);
        r->m[i] = rig_device(r, rig_bytes(r, i, ZT_F32), ZT_TAG_OPTIMIZER, name);
        r->v[i] = rig_device(r, rig_bytes(r, i, ZT_F32), ZT_TAG_OPTIMIZER, name);
        r->param[i] = rig_device(r, rig_bytes(r, i, o->compute), ZT_TAG_PARAMETERS, name);
        r->grad[i] = rig_device(r, rig_bytes(r, i, o->grad), ZT_TAG_GRADIENTS, name);
    }
    size_t bytes = (size_t)(o->B * o->T) * sizeof *r->tokens;
    r->tokens = rig_device(r, bytes, ZT_TAG_PARAMETERS, "tokens"); /* not counted in activations */
    r->targets = rig_device(r, bytes, ZT_TAG_PARAMETERS, "targets");
    struct zt_model_env env = {.ops = r->ops,
                               .ctx = r->ctx,
                               .alloc = r->alloc,
                               .device = r->device,
                               .ledger = &r->ledger,
                               .compute = o->compute,
                               .grad = o->grad,
                               .recompute = o->recompute,
                               .recompute_every = o->recompute_every,
                               .chunk_tokens = o->chunk_tokens,
                               .lora_scale = o->lora_scale,
                               .dropout_seed = o->seed};
    ok(zt_model_create(&r->table, &env, &r->model, &e), &e);
    rig_draw(r);
}

static inline void rig_close(struct rig *r) {
    zt_model_destroy(r->model);
    for (int i = 0; i < r->table.n_tensors; i++) {
        zt_free(r->alloc, r->param[i]);
        zt_free(r->alloc, r->grad[i]);
        zt_free(r->alloc, r->master[i]);
        zt_free(r->alloc, r->m[i]);
        zt_free(r->alloc, r->v[i]);
    }
    zt_free(r->alloc, r->tokens);
    zt_free(r->alloc, r->targets);
    zt_free(r->alloc, r->starts);
    zt_free(r->alloc, r->weights);
    for (int i = 0; i < r->n_dead; i++) free(r->dead[i]);
    free(r->dead);
    zt_alloc_destroy(r->alloc);
    zt_ops_cpu_destroy(r->ctx);
    zt_device_close(r->device);
    zt_model_table_free(&r->table);
}

/* ---- steps ---- */

static inline int64_t rig_valid(const struct rig *r) {
    int64_t n = 0;
    for (int64_t i = 0; i < r->o.B * r->o.T; i++) n += r->targets[i] != -1;
    return n;
}

static inline struct zt_batch rig_batch(const struct rig *r, int64_t first, int64_t rows) {
    int64_t at = first * r->o.T;
    return (struct zt_batch){.tokens = r->tokens + at,
                             .targets = r->targets + at,
                             .B = rows,
                             .T = r->o.T,
                             .weights = r->weights ? r->weights + at : NULL,
                             .starts = r->starts ? r->starts + at : NULL,
                             .first_sample = r->o.first_sample + first,
                             .sample_stride = r->o.sample_stride,
                             .step = r->o.step};
}

/* What the losses are divided by. */
static inline double rig_divisor(const struct rig *r) {
    return r->weights ? 1.0 : (double)rig_valid(r);
}

/* Rows [first, first + rows) of the batch, gradients scaled for the whole batch and by `scale`. */
static inline void rig_pass(struct rig *r, int64_t first, int64_t rows, bool backward, bool eval,
                            double scale, struct zt_fixsum *sum, int64_t *valid) {
    struct zt_error e = {0};
    struct zt_unit_source src = rig_source(r);
    struct zt_batch batch = rig_batch(r, first, rows);
    r->n_calls = 0;
    ok(zt_model_step(r->model, &src, &batch, (float)(scale / rig_divisor(r)), backward, eval, sum,
                     valid, &e),
       &e);
}

static inline void rig_rows(struct rig *r, int64_t first, int64_t rows, bool backward, double scale,
                            struct zt_fixsum *sum, int64_t *valid) {
    rig_pass(r, first, rows, backward, !backward, scale, sum, valid);
}

/* What these rows add to the loss of the batch. */
static inline double rig_part(struct rig *r, int64_t first, int64_t rows, bool backward,
                              bool eval) {
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    rig_pass(r, first, rows, backward, eval, 1.0, &sum, &valid);
    return zt_fixsum_value(&sum) / rig_divisor(r);
}

/* Loss of the batch: trained, or evaluated. */
static inline double rig_step(struct rig *r, bool backward) {
    return rig_part(r, 0, r->o.B, backward, !backward);
}

static inline void rig_zero_gradients(struct rig *r) {
    for (int i = 0; i < r->table.n_tensors; i++) memset(r->grad[i], 0, rig_bytes(r, i, r->o.grad));
}

/* Value k of a buffer of type t, exactly. */
static inline double rig_at(const void *p, enum zt_dtype t, int64_t k) {
    if (t == ZT_F32) return (double)((const float *)p)[k];
    uint16_t h = ((const uint16_t *)p)[k];
    if (t == ZT_BF16) {
        uint32_t bits = (uint32_t)h << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double a = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h >> 15 ? -a : a;
}

/* One AdamW step from the gradients there are, clipped at norm 1; returns the norm before. */
static inline double rig_update(struct rig *r, int64_t step, double lr) {
    struct zt_error e = {0};
    struct zt_fixsum squares;
    zt_fixsum_zero(&squares);
    for (int i = 0; i < r->table.n_tensors; i++)
        ok(r->ops->sum_squares(r->ctx, r->o.grad, r->grad[i], r->table.tensors[i].numel, &squares,
                               &e),
           &e);
    double norm = sqrt(zt_fixsum_value(&squares)), coef = 1.0 / (norm + 1e-6);
    for (int i = 0; i < r->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &r->table.tensors[i];
        struct zt_adamw_params a = {.lr = lr,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = d->ndim > 1 ? 0.1 : 0.0,
                                    .step = step,
                                    .grad_scale = coef < 1 ? coef : 1};
        struct zt_adamw_buffers b = {.param = r->master[i],
                                     .param_type = ZT_F32,
                                     .m = r->m[i],
                                     .v = r->v[i],
                                     .moment_type = ZT_F32,
                                     .grad = r->grad[i],
                                     .grad_type = r->o.grad};
        ok(r->ops->adamw(r->ctx, &b, d->numel, &a, &e), &e);
    }
    rig_set_parameters(r);
    return norm;
}

#endif
