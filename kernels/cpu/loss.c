/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/loss.c: cross-entropy over a whole vocabulary and over parts of one. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct loss {
    const struct zt_vec *vec;
    enum zt_dtype t;
    void *logits;
    float *max, *sums, *losses;
    const int32_t *targets;
    const float *weights;
    int64_t N;
    struct zt_vocab v;
    float scale;
    bool backward;
};

static int check_targets(const int32_t *targets, int64_t N, int64_t V, struct zt_error *err) {
    for (int64_t i = 0; i < N; i++)
        if (targets[i] < -1 || targets[i] >= V)
            return zt_fail(
                err, ZT_EDATA,
                "cross-entropy: target %d of row %lld is outside 0..%lld (and is not -1, "
                "which masks a row); the data was made for another vocabulary",
                targets[i], (long long)i, (long long)(V - 1));
    return ZT_OK;
}

static float weight_of(const struct loss *j, int64_t r) {
    return j->weights ? j->weights[r] : 1.0f;
}

static void *row_of(const struct loss *j, int64_t r) {
    return zt_cpu_at(j->logits, r * j->v.rows, j->t);
}

/* ---- the whole vocabulary ---- */

static void cross_entropy_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct loss *j = arg;
    (void)thread;
    for (int64_t r = first; r < first + count; r++) {
        const float w = weight_of(j, r);
        j->vec->of[j->t].cross_entropy_row(row_of(j, r), j->losses + r, j->v.rows, j->targets[r],
                                           j->scale * w, j->backward);
        j->losses[r] *= w;
    }
}

int zt_cpu_cross_entropy(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                         const int32_t *targets, const float *weights, int64_t N, int64_t V,
                         float scale, bool backward, struct zt_error *err) {
    int rc = zt_cpu_need_float("cross_entropy", t, err);
    if (rc == ZT_OK) rc = check_targets(targets, N, V, err);
    if (rc != ZT_OK) return rc;
    struct loss j = {.vec = x->vec,
                     .t = t,
                     .logits = logits,
                     .losses = losses,
                     .targets = targets,
                     .weights = weights,
                     .v = zt_vocab_all(V),
                     .scale = scale,
                     .backward = backward};
    zt_cpu_range(x, N, zt_cpu_unit_rows(V), cross_entropy_rows, &j);
    return ZT_OK;
}

/* ---- parts ---- */

static void max_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct loss *j = arg;
    (void)thread;
    for (int64_t r = first; r < first + count; r++)
        j->max[r] = j->vec->of[j->t].row_max(row_of(j, r), zt_vocab_valid(j->v));
}

int zt_cpu_vocab_max(struct zt_ops_ctx *x, enum zt_dtype t, float *max, const void *logits,
                     int64_t N, struct zt_vocab v, struct zt_error *err) {
    int rc = zt_cpu_need_float("vocab_max", t, err);
    if (rc != ZT_OK) return rc;
    struct loss j = {
        .vec = x->vec, .t = t, .logits = (void *)(uintptr_t)logits, .max = max, .v = v};
    zt_cpu_range(x, N, zt_cpu_unit_rows(v.rows), max_rows, &j);
    return ZT_OK;
}

/* The column of row r's target, -1: another part's, or masked. */
static int64_t own_target(const struct loss *j, int64_t r) {
    const int64_t target = j->targets[r] - j->v.first;
    return j->targets[r] >= 0 && target >= 0 && target < j->v.rows ? target : -1;
}

static void sum_rows(void *arg, int64_t first, int64_t count, int thread) {
    const struct loss *j = arg;
    const struct zt_vec_of *of = &j->vec->of[j->t];
    (void)thread;
    for (int64_t r = first; r < first + count; r++) {
        const int64_t target = own_target(j, r);
        float *sum = j->sums + r, *picked = j->sums + j->N + r;
        *sum = *picked = 0.0f;
        if (j->targets[r] < 0) continue;
        *sum = of->exp_sum(row_of(j, r), zt_vocab_valid(j->v), j->max[r]);
        if (target < 0) continue;
        of->widen(picked, zt_cpu_at(row_of(j, r), target, j->t), 1);
        *picked -= j->max[r];
    }
}

int zt_cpu_vocab_sum(struct zt_ops_ctx *x, enum zt_dtype t, float *sums, const void *logits,
                     const float *max, const int32_t *targets, int64_t N, struct zt_vocab v,
                     struct zt_error *err) {
    int rc = zt_cpu_need_float("vocab_sum", t, err);
    if (rc == ZT_OK) rc = check_targets(targets, N, v.whole, err);
    if (rc != ZT_OK) return rc;
    struct loss j = {.vec = x->vec,
                     .t = t,
                     .logits = (void *)(uintptr_t)logits, /* only read, as max */
                     .max = (float *)(uintptr_t)max,
                     .sums = sums,
                     .targets = targets,
                     .N = N,
                     .v = v};
    zt_cpu_range(x, N, zt_cpu_unit_rows(v.rows), sum_rows, &j);
    return ZT_OK;
}

/* As cross_entropy_row from where the maximum and the sums are known. */
static void loss_row(const struct loss *j, int64_t r) {
    const int64_t valid = zt_vocab_valid(j->v);
    const float w = weight_of(j, r), sum = j->sums[r], scale = j->scale * w;
    const bool masked = j->targets[r] < 0;
    float log_sum = 0.0f;
    if (!masked) j->vec->log(&log_sum, &sum, 1);
    j->losses[r] = masked ? 0.0f : w * (log_sum - j->sums[j->N + r]);
    if (!j->backward) return;
    const int64_t zeros = masked ? 0 : valid;
    if (!masked)
        j->vec->of[j->t].softmax_gradient(row_of(j, r), valid, j->max[r], scale / sum,
                                          own_target(j, r), scale);
    memset(zt_cpu_at(row_of(j, r), zeros, j->t), 0,
           (size_t)(j->v.rows - zeros) * zt_dtype_size(j->t));
}

static void loss_rows(void *arg, int64_t first, int64_t count, int thread) {
    (void)thread;
    for (int64_t r = first; r < first + count; r++) loss_row(arg, r);
}

int zt_cpu_vocab_loss(struct zt_ops_ctx *x, enum zt_dtype t, void *logits, float *losses,
                      const float *sums, const float *max, const int32_t *targets,
                      const float *weights, int64_t N, struct zt_vocab v, float scale,
                      bool backward, struct zt_error *err) {
    int rc = zt_cpu_need_float("vocab_loss", t, err);
    if (rc == ZT_OK) rc = check_targets(targets, N, v.whole, err);
    if (rc != ZT_OK) return rc;
    struct loss j = {.vec = x->vec,
                     .t = t,
                     .logits = logits,
                     .losses = losses,
                     .sums = (float *)(uintptr_t)sums, /* only read, as max */
                     .max = (float *)(uintptr_t)max,
                     .targets = targets,
                     .weights = weights,
                     .N = N,
                     .v = v,
                     .scale = scale,
                     .backward = backward};
    zt_cpu_range(x, N, zt_cpu_unit_rows(v.rows), loss_rows, &j);
    return ZT_OK;
}
