/* SPDX-License-Identifier: Apache-2.0 */
/* core/model_cut.c: a model's tensors as one rank of a tensor group has them, and where its elements
 * are in the whole ones (Megatron-LM's rules: Shoeybi et al. 2019, Korthikanti et al. 2022). Pure. */
#include "core/model.h"
#include <stdio.h>
#include "core/units.h"

int64_t zt_model_degrees(const struct zt_model_config *c) {
    return zt_gcd(zt_gcd(c->heads, c->kv_heads), c->ffn_dim);
}

int zt_model_cut_check(const struct zt_model_config *c, int degree, struct zt_error *err) {
    const struct { const char *key; int64_t value; } divided[] = {
        {"heads", c->heads}, {"kv_heads", c->kv_heads}, {"ffn_dim", c->ffn_dim}};
    char what[120] = "", list[128];
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        if (divided[i].value % degree != 0)
            n += (size_t)snprintf(what + n, sizeof what - n, "%s%s %lld", n ? ", " : "", divided[i].key,
                                  (long long)divided[i].value);
    if (n == 0)
        return 0;
    return zt_fail(err, ZT_EINVAL,
                   "parallelism.tensor_parallel_degree: %d does not divide the model's %s (allowed: %s)", degree,
                   what, zt_divisors(zt_model_degrees(c), list, sizeof list));
}

/* Rows of the vocabulary, which alone is padded. */
static bool of_vocabulary(const struct zt_tensor_def *d) {
    return d->role == ZT_ROLE_EMBEDDING || d->role == ZT_ROLE_HEAD;
}

int zt_model_table_cut(struct zt_model_table *t, int degree, int rank, struct zt_error *err) {
    if (t->tensor_degree != 1 || degree < 1 || rank < 0 || rank >= degree)
        return zt_fail(err, ZT_EINVAL, "model: tensor rank %d of %d from a table of rank %d of %d", rank, degree,
                       t->tensor_rank, t->tensor_degree);
    int rc = zt_model_cut_check(&t->config, degree, err);
    if (rc)
        return rc;
    t->tensor_degree = degree;
    t->tensor_rank = rank;
    t->vocab_rows = zt_ceil_div(t->config.vocab_size, degree);
    for (int i = 0; i < t->n_tensors; i++) {
        struct zt_tensor_def *d = &t->tensors[i];
        if (d->tp_dim < 0)
            continue;
        int64_t *cut = &d->shape[d->tp_dim];
        *cut = of_vocabulary(d) ? t->vocab_rows : *cut / degree;
        d->numel = d->shape[0] * d->shape[1];
    }
    return 0;
}

static struct zt_part_run plain(int64_t first, int64_t n) {
    return (struct zt_part_run){n, zt_span_plain((uint64_t)first, n), false};
}

/* Whole rows from row rank * vocab_rows on, as many as the vocabulary has. */
static struct zt_part_run vocabulary_run(const struct zt_model_table *t, const struct zt_tensor_def *d,
                                         int64_t at, int64_t n) {
    const int64_t first = t->tensor_rank * t->vocab_rows, left = d->whole[0] - first;
    const int64_t rows = left < 0 ? 0 : left < t->vocab_rows ? left : t->vocab_rows;
    const int64_t real = rows * d->whole[1] - at;
    if (real <= 0)
        return (struct zt_part_run){n, zt_span_plain(0, n), true};
    return plain(first * d->whole[1] + at, real < n ? real : n);
}

struct zt_part_run zt_tensor_run(const struct zt_model_table *t, const struct zt_tensor_def *d,
                                 int64_t at, int64_t n) {
    const int64_t whole = d->whole[0] * d->whole[1];
    ZT_ASSERT(at >= 0 && n >= 0 && at + n <= d->numel);
    if (d->tp_dim < 0)
        return plain(at, n);
    if (of_vocabulary(d))
        return vocabulary_run(t, d, at, n);
    if (d->tp_dim == 0 && !d->tp_heads)
        return plain(t->tensor_rank * d->numel + at, n);
    /* rows of the rank's stretch, one in each row of the matrix, or one in each piece of the fused three */
    const int64_t rows = d->tp_dim == 1 ? d->whole[0] : d->tp_heads, row = d->numel / rows;
    return (struct zt_part_run){n, {(uint64_t)(t->tensor_rank * row), at, row, whole / rows}, false};
}
