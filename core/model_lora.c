/* SPDX-License-Identifier: Apache-2.0 */
/* core/model_lora.c: low-rank adapters as tensors of the table (Hu et al. 2021: y = W x + alpha/r B A x).
 * Pure. */
#include "core/model.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A linear of the blocks, which alone take adapters. */
static bool is_linear(const struct zt_tensor_def *d) {
    return d->piece == ZT_WEIGHT && d->layer >= 0 && d->ndim == 2;
}

/* Its module's name: "model.layers.0.self_attn.q_proj". */
static void stem(const struct zt_tensor_def *d, char *to, size_t n) {
    snprintf(to, n, "%.*s", (int)(strrchr(d->name, '.') - d->name), d->name);
}

static bool targeted(const struct zt_tensor_def *d, const char *pattern) {
    char name[sizeof d->name];
    stem(d, name, sizeof name);
    return is_linear(d) && fnmatch(pattern, name, 0) == 0;
}

/* Marks what the patterns name; the number of linears, or an error. */
static int choose(const struct zt_model_table *t, const char *const *patterns, int n, bool *chosen,
                  struct zt_error *err) {
    int linears = 0;
    for (int p = 0; p < n; p++) {
        bool any = false;
        for (int i = 0; i < t->n_tensors; i++)
            if (targeted(&t->tensors[i], patterns[p])) {
                linears += !chosen[i];
                any = chosen[i] = true;
            }
        if (!any) {
            char name[sizeof t->tensors->name];
            int last = t->n_tensors - 1;
            while (!is_linear(&t->tensors[last]))
                last--;
            stem(&t->tensors[last], name, sizeof name);
            return zt_fail(err, ZT_EINVAL,
                           "training.lora.targets: \"%s\" matches no linear layer of the blocks; names look like %s",
                           patterns[p], name);
        }
    }
    if (!linears)
        return zt_fail(err, ZT_EINVAL, "training.lora.targets: no linear layer is named");
    return linears;
}

/* The product of B and A has at most the rank of a whole matrix: more is memory for nothing on every one. */
static int check_rank(const struct zt_model_table *t, const bool *chosen, int64_t rank, struct zt_error *err) {
    int64_t most = 0;
    for (int i = 0; i < t->n_tensors; i++) {
        const int64_t *d = t->tensors[i].whole, side = d[0] < d[1] ? d[0] : d[1];
        most = chosen[i] && side > most ? side : most;
    }
    if (rank <= most)
        return 0;
    return zt_fail(err, ZT_EINVAL,
                   "training.lora.rank: %lld is above %lld, the shorter side of the largest linear layer named, and so more "
                   "than a whole matrix has; give less, or train the layers themselves (training.trainable)",
                   (long long)rank, (long long)most);
}

/* Outputs cut: A is whole on every rank and B is cut as the linear. Inputs cut: A is cut as the linear and
 * B is whole. What reaches the whole one's gradient on a rank comes from the rank's own part of the other. */
static struct zt_tensor_def adapter(const struct zt_tensor_def *linear, enum zt_piece piece, int64_t rank,
                                    uint32_t number) {
    struct zt_tensor_def d = *linear;
    const bool a = piece == ZT_LORA_A, cut = a == (linear->tp_dim == 1);
    char name[sizeof d.name];
    stem(linear, name, sizeof name);
    snprintf(d.name, sizeof d.name, "%.70s.lora_%c.weight", name, a ? 'A' : 'B');
    d.piece = piece;
    d.number = number;
    d.whole[0] = d.shape[0] = a ? rank : linear->whole[0];
    d.whole[1] = d.shape[1] = a ? linear->whole[1] : rank;
    d.numel = d.whole[0] * d.whole[1];
    d.tp_dim = cut ? linear->tp_dim : -1;
    d.tp_heads = cut ? linear->tp_heads : 0;
    d.tp_sum = cut ? ZT_TP_SUM_NEVER : ZT_TP_SUM_ALWAYS;
    d.frozen = false;
    d.decay = true;
    d.init = a ? ZT_INIT_NORMAL : ZT_INIT_ZERO;
    d.init_std = a ? 1.0 / sqrt(3.0 * (double)linear->whole[1]) : 0;
    return d;
}

/* The table again, with the two adapters behind the last tensor of each chosen linear. */
static void insert(struct zt_model_table *t, struct zt_tensor_def *to, const bool *chosen, int64_t rank) {
    int n = 0;
    uint32_t number = (uint32_t)t->n_tensors;
    for (int u = 0; u < t->n_units; u++) {
        struct zt_unit_def *unit = &t->units[u];
        const int from = unit->first_tensor, end = from + unit->n_tensors;
        const struct zt_tensor_def *open = NULL;
        unit->first_tensor = n;
        for (int i = from; i < end; i++) {
            const struct zt_tensor_def *d = &t->tensors[i];
            const bool bias_next = i + 1 < end && d[1].piece == ZT_BIAS && d[1].role == d->role;
            to[n] = *d;
            to[n++].frozen = true;
            open = chosen[i] ? d : open;
            if (!open || bias_next)
                continue;
            to[n++] = adapter(open, ZT_LORA_A, rank, number++);
            to[n++] = adapter(open, ZT_LORA_B, rank, number++);
            t->parameters += to[n - 2].numel + to[n - 1].numel;
            open = NULL;
        }
        unit->n_tensors = n - unit->first_tensor;
    }
    free(t->tensors);
    t->tensors = to;
    t->n_tensors = n;
}

int zt_model_table_add_lora(struct zt_model_table *t, int64_t rank, const char *const *targets, int n,
                            struct zt_error *err) {
    struct zt_tensor_def *to = NULL;
    ZT_ASSERT(rank >= 1 && t->tensor_degree == 1);
    bool *chosen = calloc((size_t)t->n_tensors, sizeof *chosen);
    int linears = chosen ? choose(t, targets, n, chosen, err) : 0;
    int rc = linears < 0 ? linears : linears > 0 ? check_rank(t, chosen, rank, err) : 0;
    if (rc == 0 && linears > 0)
        to = calloc((size_t)(t->n_tensors + 2 * linears), sizeof *to);
    if (rc == 0 && !to)
        rc = zt_fail(err, ZT_ENOMEM, "training.lora: no host memory for the table of adapters");
    if (rc == 0)
        insert(t, to, chosen, rank);
    free(chosen);
    return rc;
}
