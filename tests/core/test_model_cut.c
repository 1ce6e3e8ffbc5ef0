/* SPDX-License-Identifier: Apache-2.0 */
/* How tensor parallelism cuts a model: every element of every tensor, against a cut that is written
 * here element by element and by the tensors' names, as the rules are published. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/model.h"

#define PADDING (-1)

static bool ends(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool any(const char *name, const char *const *of) {
    for (; *of; of++)
        if (ends(name, *of))
            return true;
    return false;
}

static const char *const vocabulary[] = {"wte.weight", "embed_tokens.weight", "lm_head.weight", NULL};
static const char *const fused[] = {"c_attn.weight", "c_attn.bias", NULL};
static const char *const column[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias",
                                     "k_proj.bias",   "v_proj.bias",   "c_fc.weight",   "c_fc.bias",
                                     "gate_proj.weight", "up_proj.weight", NULL};
static const char *const row_cut[] = {"attn.c_proj.weight", "mlp.c_proj.weight", "o_proj.weight",
                                      "down_proj.weight", NULL};

/* Who of degree has element (r, c) of a [rows, cols] tensor: a rank, or -1: every one. */
static int owner(const char *name, int64_t rows, int64_t cols, int64_t r, int64_t c, int degree) {
    if (any(name, vocabulary))
        return (int)(r / ((rows + degree - 1) / degree));
    if (any(name, fused)) {
        const int64_t piece = rows / 3;
        return (int)((r % piece) / (piece / degree));
    }
    if (any(name, column))
        return (int)(r / (rows / degree));
    if (any(name, row_cut))
        return (int)(c / (cols / degree));
    return -1;
}

/* The rank's elements in order, as logical indices, with the padding that makes all ranks equal. */
static int64_t expected(const struct zt_tensor_def *d, int64_t rows, int64_t cols, int degree, int rank,
                        int64_t *index) {
    int64_t n = 0, most = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int who = owner(d->name, rows, cols, r, c, degree);
            if (who < 0 || who == rank)
                index[n++] = r * cols + c;
        }
    if (any(d->name, vocabulary))
        most = (rows + degree - 1) / degree * cols;
    while (n < most)
        index[n++] = PADDING;
    return n;
}

/* What the runs say, taken at most `step` at a time. */
static void check_runs(const struct zt_model_table *t, const struct zt_tensor_def *d, const int64_t *want,
                       int64_t step) {
    for (int64_t at = 0; at < d->numel;) {
        const int64_t n = d->numel - at < step ? d->numel - at : step;
        struct zt_part_run r = zt_tensor_run(t, d, at, n);
        cr_assert(r.count >= 1 && r.count <= n, "%s: %lld of %lld", d->name, (long long)r.count, (long long)n);
        for (int64_t i = 0; i < r.count; i++) {
            const int64_t k = r.span.at + i;
            const int64_t index = (int64_t)r.span.first + k / r.span.row * r.span.stride + k % r.span.row;
            cr_assert_eq(r.padding ? PADDING : index, want[at + i], "%s, %d of %d: element %lld", d->name,
                         t->tensor_rank, t->tensor_degree, (long long)(at + i));
        }
        cr_assert(r.count == n || (want[at + r.count] == PADDING) != r.padding, "%s: could be longer", d->name);
        at += r.count;
    }
}

static void check_cut(const struct zt_model_config *c, int degree) {
    struct zt_model_table whole, t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_table_build(c, ZT_WRAP_BLOCK, 1, &whole, &err), 0, "%s", err.msg);
    for (int k = 0; k < whole.n_tensors; k++) {
        const int64_t numel = whole.tensors[k].numel;
        int *held = calloc((size_t)numel, sizeof *held);
        int64_t *want = calloc((size_t)(numel + whole.tensors[k].shape[1] * degree), sizeof *want);
        cr_assert(held && want);
        for (int rank = 0; rank < degree; rank++) {
            cr_assert_eq(zt_model_table_build(c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
            cr_assert_eq(zt_model_table_cut(&t, degree, rank, &err), 0, "%s", err.msg);
            const struct zt_tensor_def *d = &t.tensors[k];
            int64_t n = expected(d, whole.tensors[k].shape[0], whole.tensors[k].shape[1], degree, rank, want);
            cr_assert_eq(d->numel, n, "%s: %lld, not %lld", d->name, (long long)d->numel, (long long)n);
            cr_assert_eq(d->shape[0] * d->shape[1], n);
            cr_assert_eq(t.parameters, whole.parameters);
            check_runs(&t, d, want, 1);
            check_runs(&t, d, want, 7);
            check_runs(&t, d, want, n);
            for (int64_t i = 0; i < n; i++)
                if (want[i] != PADDING)
                    held[want[i]]++;
            zt_model_table_free(&t);
        }
        const bool replicated = whole.tensors[k].tp_dim < 0;
        const enum zt_role role = whole.tensors[k].role;
        cr_assert_eq(whole.tensors[k].tp_sum,
                     role == ZT_ROLE_Q_NORM || role == ZT_ROLE_K_NORM ? ZT_TP_SUM_ALWAYS
                     : replicated && role != ZT_ROLE_POSITIONS        ? ZT_TP_SUM_SEQUENCE
                                                                      : ZT_TP_SUM_NEVER);
        for (int64_t i = 0; i < numel; i++)
            cr_assert_eq(held[i], replicated ? degree : 1, "%s: element %lld", whole.tensors[k].name, (long long)i);
        free(held);
        free(want);
    }
    zt_model_table_free(&whole);
}

static struct zt_model_config small(enum zt_family family, int64_t kv, int64_t vocabulary_size) {
    return (struct zt_model_config){.family = family, .layers = 2, .heads = family == ZT_GPT2 ? kv : 8,
                                    .kv_heads = kv, .head_dim = 2, .dim = family == ZT_GPT2 ? 2 * kv : 12,
                                    .ffn_dim = 20, .vocab_size = vocabulary_size, .seq_len_max = 6,
                                    .norm_eps = 1e-5, .rope_theta = 10000, .tied_head = true,
                                    .qkv_bias = true};
}

/* Vocabularies that 2 and 4 divide, do not divide, and that leave the last rank with padding alone. */
Test(model_cut, every_element_is_where_the_rules_say) {
    static const int64_t sizes[] = {12, 13, 5};
    for (int i = 0; i < 3; i++)
        for (int degree = 1; degree <= 4; degree *= 2) {
            struct zt_model_config c = small(ZT_GPT2, 4, sizes[i]);
            check_cut(&c, degree);
            c.tied_head = false;
            check_cut(&c, degree);
            c = small(ZT_LLAMA, 4, sizes[i]);
            check_cut(&c, degree);
            c.tied_head = c.qkv_bias = false;
            c.qk_norm = true;
            check_cut(&c, degree);
            if (degree <= 2) {
                c.kv_heads = 2;
                check_cut(&c, degree);
            }
        }
}

static int64_t local(const struct zt_model_table *t) {
    int64_t n = 0;
    for (int i = 0; i < t->n_tensors; i++)
        n += t->tensors[i].numel;
    return n;
}

/* (N - N_rep) / t + N_rep, and half a row more where half a vocabulary of odd size is a row and a half.
 * GPT-2's smallest: 62,641,536 without padding; Llama 3 8B: 4,015,263,744. */
Test(model_cut, what_a_rank_has) {
    static const struct { const char *preset; int degree; int64_t rank_has, replicated; } want[] = {
        {"gpt2-124m", 1, 124439808, 843264},
        {"gpt2-124m", 2, 62641536 + 768 / 2, 843264},
        {"llama3-8b", 2, 4015263744, 266240},
        {"llama3-8b", 8, (8030261248 - 266240) / 8 + 266240, 266240},
        /* 161 norms of 8192; a vocabulary that 8 divides */
        {"llama3-70b", 8, (70553706496 - 161 * 8192) / 8 + 161 * 8192, 161 * 8192},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_config c;
        struct zt_model_table t;
        struct zt_model_count n;
        struct zt_error err = {0};
        int64_t replicated = 0;
        cr_assert_eq(zt_model_preset(want[i].preset, &c, &err), 0);
        for (int rank = 0; rank < want[i].degree; rank++) {
            cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
            cr_assert_eq(zt_model_table_cut(&t, want[i].degree, rank, &err), 0, "%s", err.msg);
            cr_expect_eq(local(&t), want[i].rank_has, "%s: %lld", want[i].preset, (long long)local(&t));
            replicated = 0;
            for (int k = 0; k < t.n_tensors; k++)
                replicated += t.tensors[k].tp_dim < 0 ? t.tensors[k].numel : 0;
            cr_expect_eq(replicated, want[i].replicated, "%s", want[i].preset);
            zt_model_table_free(&t);
        }
        cr_assert_eq(zt_model_count(&c, &n, &err), 0);
        cr_expect_eq(n.replicated, replicated);
    }
}

#define D "parallelism.tensor_parallel_degree: "
Test(model_cut, refusals) {
    struct zt_model_config c = small(ZT_LLAMA, 4, 12);
    struct zt_model_table t;
    struct zt_error err = {0};
    static const struct { int degree; int64_t kv, ffn; const char *message; } want[] = {
        {3, 4, 20, D "3 does not divide the model's heads 8, kv_heads 4, ffn_dim 20 (allowed: 1 2 4)"},
        {8, 4, 16, D "8 does not divide the model's kv_heads 4 (allowed: 1 2 4)"},
        {8, 8, 20, D "8 does not divide the model's ffn_dim 20 (allowed: 1 2 4)"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        c.kv_heads = want[i].kv;
        c.ffn_dim = want[i].ffn;
        cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0, "%s", err.msg);
        const int64_t before = local(&t);
        cr_expect_eq(zt_model_table_cut(&t, want[i].degree, 0, &err), ZT_EINVAL);
        cr_expect_str_eq(err.msg, want[i].message);
        cr_expect_eq(local(&t), before, "untouched");
        zt_model_table_free(&t);
    }
    c = small(ZT_LLAMA, 4, 12);
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
    cr_expect_eq(zt_model_table_cut(&t, 2, 2, &err), ZT_EINVAL);
    cr_expect_eq(zt_model_table_cut(&t, 0, 0, &err), ZT_EINVAL);
    cr_expect_eq(zt_model_table_cut(&t, 2, 1, &err), 0);
    cr_expect_eq(zt_model_table_cut(&t, 2, 1, &err), ZT_EINVAL, "it is cut already");
    cr_expect_str_eq(err.msg, "model: tensor rank 1 of 2 from a table of rank 1 of 2");
    zt_model_table_free(&t);
}
