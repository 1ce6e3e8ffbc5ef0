/* SPDX-License-Identifier: Apache-2.0 */
/* engine/generate.c: see generate.h. */
#include "engine/generate.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/rng.h"
#include "core/units.h"
#include "engine/device/sim.h"
#include "engine/model/model.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

struct zt_generator {
    struct zt_model_table table;  /* a copy of the weights' own */
    int64_t positions;
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    const struct zt_kernels *kernels;
    struct zt_ops_ctx *ctx;
    struct zt_model *model;
    void **param;                 /* by tensor, fp32 */
    int32_t *tokens;
    float *logits;                /* [positions, V] */
};

/* ---- parameters: all there, all the time ---- */

static int begin(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    struct zt_generator *s = arg;
    (void)err;
    *view = (struct zt_unit_view){(void *const *)(s->param + s->table.units[unit].first_tensor), NULL};
    return 0;
}

static int end(void *arg, int unit, struct zt_error *err) {
    (void)arg;
    (void)unit;
    (void)err;
    return 0;
}

/* ---- life ---- */

static int copy_table(const struct zt_model_table *from, struct zt_model_table *to, struct zt_error *err) {
    *to = *from;
    to->tensors = calloc((size_t)from->n_tensors, sizeof *to->tensors);
    to->units = calloc((size_t)from->n_units, sizeof *to->units);
    if (!to->tensors || !to->units) return zt_fail(err, ZT_ENOMEM, "no host memory for the table of tensors");
    memcpy(to->tensors, from->tensors, (size_t)from->n_tensors * sizeof *to->tensors);
    memcpy(to->units, from->units, (size_t)from->n_units * sizeof *to->units);
    return 0;
}

static int block(struct zt_generator *s, int64_t n, enum zt_tag tag, const char *name, void **out, struct zt_error *err) {
    return zt_malloc(s->alloc, (size_t)n * sizeof(float), zt_device_compute(s->device), tag, name, out, err);
}

static int allocate(struct zt_generator *s, struct zt_error *err) {
    void *p = NULL;
    int rc = 0;
    s->param = calloc((size_t)s->table.n_tensors, sizeof *s->param);
    if (!s->param) return zt_fail(err, ZT_ENOMEM, "no host memory for the table of tensors");
    for (int i = 0; i < s->table.n_tensors && rc == 0; i++)
        rc = block(s, s->table.tensors[i].numel, ZT_TAG_PARAMETERS, s->table.tensors[i].name, &s->param[i], err);
    if (rc == 0) rc = block(s, s->positions, ZT_TAG_ACTIVATIONS, "tokens", &p, err);
    s->tokens = p;
    if (rc == 0) rc = block(s, s->positions * s->table.config.vocab_size, ZT_TAG_TEMPORARY, "logits", &p, err);
    s->logits = rc == 0 ? p : NULL;
    return rc;
}

static void ignore_work(void *arg, struct zt_cost_work w) {
    (void)arg;
    (void)w;
}

static int open_on(struct zt_generator *s, const struct zt_model_table *table, double lora_scale,
                   const struct zt_device_config *device, const struct zt_kernels *kernels, int threads,
                   struct zt_error *err) {
    struct zt_kernels_config kc = {.threads = threads, .work = ignore_work};
    int rc = 0;
    s->kernels = kernels;
    TRY(copy_table(table, &s->table, err));
    TRY(zt_device_open(device, &s->device, err));
    zt_ledger_init(&s->ledger);
    TRY(zt_alloc_create(s->device, &s->ledger, NULL, &s->alloc, err));
    TRY(kernels->create(&kc, &s->ctx, err));
    const struct zt_model_env env = {.ops = kernels->table(), .ctx = s->ctx, .alloc = s->alloc, .device = s->device,
                                     .ledger = &s->ledger, .compute = ZT_F32, .grad = ZT_F32, .positions = s->positions,
                                     .lora_scale = lora_scale};
    TRY(allocate(s, err));
    TRY(zt_model_create(&s->table, &env, &s->model, err));
out:
    return rc;
}

void zt_generator_close(struct zt_generator *s) {
    if (!s) return;
    zt_model_destroy(s->model);
    for (int i = 0; s->param && i < s->table.n_tensors; i++) zt_free(s->alloc, s->param[i]);
    if (s->alloc) {
        zt_free(s->alloc, s->tokens);
        zt_free(s->alloc, s->logits);
        zt_alloc_destroy(s->alloc);
    }
    if (s->ctx) s->kernels->destroy(s->ctx);
    if (s->device) zt_device_close(s->device);
    free(s->param);
    zt_model_table_free(&s->table);
    free(s);
}

static int forward(struct zt_generator *s, int64_t n, struct zt_error *err) {
    const struct zt_batch b = {.tokens = s->tokens, .targets = s->tokens, .B = 1, .T = n};
    const struct zt_unit_source whole = {.arg = s, .forward_begin = begin, .forward_end = end};
    return zt_model_logits(s->model, &whole, &b, s->logits, err);
}

static struct zt_generator *generator_new(int64_t positions) {
    struct zt_generator *s = calloc(1, sizeof *s);
    if (s) s->positions = positions;
    return s;
}

/* ---- how much ---- */

/* The simulated device asks what its work costs; here nobody looks at the time. */
static const struct zt_cost_device any_device = {.memory_bytes = INT64_C(1) << 55, .memory_bytes_per_second = 1e12};

int zt_generator_bytes(const struct zt_model_table *t, double lora_scale, int64_t positions, int64_t *bytes,
                     struct zt_error *err) {
    const struct zt_sim sim = {.device = &any_device};
    const struct zt_device_config device = {"sim", (size_t)1 << 55, &sim};
    struct zt_generator *s = generator_new(positions);
    if (!s) return zt_fail(err, ZT_ENOMEM, "no host memory for a generator");
    int rc = open_on(s, t, lora_scale, &device, &zt_kernels_sim, 1, err);
    if (rc == 0) rc = forward(s, positions, err);
    *bytes = s->ledger.peak_reserved;
    zt_generator_close(s);
    return rc;
}

/* ---- open, use ---- */

static int load(struct zt_generator *s, const struct zt_weights *w, struct zt_error *err) {
    int rc = 0;
    for (int i = 0; i < s->table.n_tensors && rc == 0; i++) {
        const struct zt_tensor_def *d = &s->table.tensors[i];
        rc = w->source.read(w->source.arg, d->name, zt_weights_kind(w, d->name), d->ndim, d->whole,
                            zt_span_plain(0, d->numel), d->numel, ZT_F32, s->param[i], err);
    }
    return rc;
}

int zt_generator_open(const struct zt_weights *w, const struct zt_kernels *kernels, int threads, int64_t positions,
                    struct zt_generator **out, struct zt_error *err) {
    int64_t bytes = 0;
    *out = NULL;
    if (positions < 1 || positions > w->model.seq_len_max)
        return zt_fail(err, ZT_EINVAL, "%lld tokens do not fit the model's seq_len_max %lld", (long long)positions,
                       (long long)w->model.seq_len_max);
    int rc = zt_generator_bytes(&w->table, w->lora_scale, positions, &bytes, err);
    if (rc) return rc;
    struct zt_generator *s = generator_new(positions);
    if (!s) return zt_fail(err, ZT_ENOMEM, "no host memory for a generator");
    const struct zt_device_config device = {"cpu", zt_round_up((size_t)bytes, 2 * ZT_MIB), NULL};
    rc = open_on(s, &w->table, w->lora_scale, &device, kernels, threads, err);
    if (rc == 0) rc = load(s, w, err);
    if (rc == 0)
        *out = s;
    else
        zt_generator_close(s);
    return rc;
}

int zt_generator_logits(struct zt_generator *s, const int32_t *tokens, int64_t n, const float **logits,
                      struct zt_error *err) {
    const int64_t V = s->table.config.vocab_size;
    if (n < 1 || n > s->positions)
        return zt_fail(err, ZT_EINVAL, "%lld tokens, and 1 to %lld can be", (long long)n, (long long)s->positions);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= V)
            return zt_fail(err, ZT_EINVAL, "token %lld is %d, which is not in the vocabulary of %lld", (long long)i, tokens[i],
                           (long long)V);
    memcpy(s->tokens, tokens, (size_t)n * sizeof *tokens);
    int rc = forward(s, n, err);
    *logits = s->logits + (n - 1) * V;
    return rc;
}

/* ---- the choice ---- */

/* a before b: the larger logit, of equals the lower id. */
static bool before(const float *logits, int64_t a, int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* What comes next in that order after `last` (-1: the first). top_k passes over the logits are cheap beside a
 * forward pass, and need no memory. */
static int64_t next_after(const float *logits, int64_t V, int64_t last) {
    int64_t best = -1;
    for (int64_t i = 0; i < V; i++)
        if ((last < 0 || before(logits, last, i)) && (best < 0 || before(logits, i, best))) best = i;
    return best;
}

/* 53 bits of (seed, position) in [0, 1). */
static double uniform(uint64_t seed, int64_t position) {
    uint32_t word[4];
    zt_rng_words(seed, ZT_RNG_SAMPLE, 0, 0, (uint64_t)position, word);
    return (double)((uint64_t)word[0] << 21 | word[1] >> 11) * 0x1p-53;
}

int32_t zt_pick_token(const struct zt_pick *p, const float *logits, int64_t V, int64_t position, double *scratch) {
    for (int64_t i = 0; i < V; i++)
        if (!(fabsf(logits[i]) <= FLT_MAX)) return -1;
    const int64_t first = next_after(logits, V, -1);
    if (p->temperature <= 0 || p->top_k == 1) return (int32_t)first;
    int64_t last = first;
    for (int64_t k = 1; k < p->top_k && k < V; k++) last = next_after(logits, V, last);
    double sum = 0;
    for (int64_t i = 0; i < V; i++) {
        const bool in = p->top_k == 0 || i == last || before(logits, i, last);
        scratch[i] = in ? exp(((double)logits[i] - (double)logits[first]) / p->temperature) : 0;
        sum += scratch[i];
    }
    double left = uniform(p->seed, position) * sum;
    int64_t chosen = first;
    for (int64_t i = 0; i < V; i++) {
        if (scratch[i] == 0) continue;
        chosen = i;
        if ((left -= scratch[i]) < 0) break;
    }
    return (int32_t)chosen;
}
