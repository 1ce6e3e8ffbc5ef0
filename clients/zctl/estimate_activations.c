/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate_activations.c: what layers keep for backward, whole, selectively and fully recomputed; beside
 * it, when asked for, the published formula of Korthikanti et al. (core/activation.h has both). */
#include <stdio.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/estimate.h"
#include "clients/zctl/number.h"
#include "core/activation.h"
#include "core/units.h"

#define BYTES_MOST 4e18

struct activations {
    struct zt_model_config model;
    int64_t sequence, batch;
    enum zt_dtype type;
    bool sequence_parallel;
    int recompute;  /* -1: all of them */
};

static const char *const recompute_names[] = {"none", "selective", "full"};

/* ---------------------------------------------------------------------------------- reading */

static int number(const struct zt_options *o, enum zt_estimate_option id, const char *name, int64_t most, int64_t *out,
                  struct zt_error *err) {
    return o->estimate[id] ? zt_number_count(name, o->estimate[id], 1, most, out, err) : 0;
}

/* Layers of GPT's kind, from three numbers. */
static int read_numbers(const struct zt_options *o, struct zt_model_config *m, struct zt_error *err) {
    *m = (struct zt_model_config){.family = ZT_GPT2};
    int rc = number(o, ZT_EST_DIM, "--dim", 1 << 24, &m->dim, err);
    rc = rc ? rc : number(o, ZT_EST_HEADS, "--heads", 1 << 16, &m->heads, err);
    rc = rc ? rc : number(o, ZT_EST_LAYERS, "--layers", 1 << 16, &m->layers, err);
    if (rc)
        return rc;
    if (!m->dim || !m->heads || !m->layers)
        return zt_fail(err, ZT_EINVAL, "--seq needs --model PRESET, or --dim N, --heads N and --layers N, e.g.: zctl estimate "
                       "--model llama3-8b --seq 8192");
    if (m->dim % m->heads)
        return zt_fail(err, ZT_EINVAL, "--heads %lld does not divide --dim %lld", (long long)m->heads, (long long)m->dim);
    m->kv_heads = m->heads;
    m->head_dim = m->dim / m->heads;
    m->ffn_dim = 4 * m->dim;
    return 0;
}

static int read_model(const struct zt_options *o, struct zt_model_config *m, struct zt_error *err) {
    const char *preset = o->estimate[ZT_EST_MODEL];
    if (!preset)
        return read_numbers(o, m, err);
    if (o->estimate[ZT_EST_DIM] || o->estimate[ZT_EST_HEADS] || o->estimate[ZT_EST_LAYERS])
        return zt_fail(err, ZT_EINVAL, "--model and --dim, --heads, --layers both say what a layer is; give one");
    if (zt_model_preset(preset, m, err) == 0)
        return 0;
    zt_fail_prefix(err, "--model");
    return err->code = ZT_EINVAL;
}

static int read_recompute(const struct zt_options *o, struct activations *a, struct zt_error *err) {
    const char *name = o->estimate[ZT_EST_RECOMPUTE];
    a->recompute = -1;
    for (int i = 0; name && i < 3; i++)
        if (strcmp(name, recompute_names[i]) == 0)
            a->recompute = i;
    return !name || a->recompute >= 0 ? 0
                                      : zt_fail(err, ZT_EINVAL, "--recompute \"%.40s\": expected none, selective or full", name);
}

/* What tensor and sequence parallelism cut must divide. */
static int check_cut(const struct zt_estimate *e, const struct activations *a, struct zt_error *err) {
    const struct zt_model_config *m = &a->model;
    if (a->sequence_parallel && e->tp == 1)
        return zt_fail(err, ZT_EINVAL, "--sequence-parallel cuts the sequence over tensor-parallel ranks; give --tp too");
    if (m->heads % e->tp || m->kv_heads % e->tp || m->ffn_dim % e->tp)
        return zt_fail(err, ZT_EINVAL, "--tp %d does not divide %lld heads, %lld of keys and values, and an MLP of %lld", e->tp,
                       (long long)m->heads, (long long)m->kv_heads, (long long)m->ffn_dim);
    if (a->sequence_parallel && a->sequence % e->tp)
        return zt_fail(err, ZT_EINVAL, "--sequence-parallel: --tp %d does not divide --seq %lld", e->tp, (long long)a->sequence);
    if (e->like == ZT_LIKE_KORTHIKANTI && (m->family != ZT_GPT2 || m->ffn_dim != 4 * m->dim || m->kv_heads != m->heads))
        return zt_fail(err, ZT_EINVAL, "--like korthikanti: their layer is GPT's: as many key heads as heads, an MLP of 4 x width "
                       "without a gate; this model's is not");
    return 0;
}

static int read_all(const struct zt_options *o, const struct zt_estimate *e, struct activations *a, struct zt_error *err) {
    *a = (struct activations){.batch = e->micro_batch ? e->micro_batch : 1, .type = e->recipe->compute,
                              .sequence_parallel = o->estimate[ZT_EST_SEQUENCE_PARALLEL] != NULL};
    int rc = number(o, ZT_EST_SEQ, "--seq", 1 << 28, &a->sequence, err);
    rc = rc ? rc : read_model(o, &a->model, err);
    rc = rc ? rc : read_recompute(o, a, err);
    rc = rc ? rc : check_cut(e, a, err);
    const struct zt_model_config *m = &a->model;
    const double tokens = (double)a->sequence * (double)a->batch, wide = (double)(m->dim + m->ffn_dim) * 64;
    if (rc == 0 && tokens * (double)m->layers * (wide + 8 * (double)m->heads * (double)a->sequence) > BYTES_MOST)
        rc = zt_fail(err, ZT_EINVAL, "--seq: more bytes than can be counted; a smaller --seq, --micro-batch or model");
    return rc;
}

/* ---------------------------------------------------------------------------------- rows */

static void row(json_t *rows, const struct activations *a, const char *who, int recompute, struct zt_activation layer,
                int64_t again, const char *formula) {
    const int64_t whole = layer.tensors + layer.statistics;
    json_t *r = json_pack("{s:s, s:s, s:f, s:f}", "recompute", recompute_names[recompute], "kept", who, "bytes_per_token",
                          (double)layer.tensors / ((double)a->sequence * (double)a->batch), "with_statistics_per_token",
                          (double)whole / ((double)a->sequence * (double)a->batch));
    zt_estimate_set(r, "layer", whole);
    zt_estimate_set(r, "tensors", layer.tensors * a->model.layers);
    zt_estimate_set(r, "total", whole * a->model.layers);
    zt_estimate_set(r, "peak", whole * a->model.layers + again);
    json_object_set_new(r, "formula", json_string(formula));
    json_array_append_new(rows, r);
}

static bool wanted(const struct activations *a, int recompute) { return a->recompute < 0 || a->recompute == recompute; }

/* In this program, and without a recomputation what other ways of writing a gated MLP keep. */
static void own_rows(const struct zt_estimate *e, const struct activations *a, json_t *rows) {
    static const char *const kept[] = {"every result", "SwiGLU's product too", "as this program"};
    static const char *const gated[] = {"c(4h + 2q + 2k + 4f)", "c(4h + 2q + 2k + 3f)", "c(4h + 2q + 2k + 2f)"};
    const bool gate = a->model.family == ZT_LLAMA;
    struct zt_activation_case c = {&a->model, a->sequence, a->batch, e->tp, a->sequence_parallel, a->type, ZT_MLP_ALL};
    for (int i = gate ? 0 : ZT_MLP_INPUTS; i <= ZT_MLP_INPUTS && wanted(a, ZT_RECOMPUTE_NONE); i++) {
        c.mlp = (enum zt_activation_mlp)i;
        row(rows, a, kept[i], ZT_RECOMPUTE_NONE, zt_activation_layer(&c, ZT_RECOMPUTE_NONE), 0, gated[i]);
    }
    c.mlp = ZT_MLP_INPUTS;
    if (wanted(a, ZT_RECOMPUTE_SELECTIVE))
        row(rows, a, kept[2], ZT_RECOMPUTE_SELECTIVE, zt_activation_layer(&c, ZT_RECOMPUTE_SELECTIVE), 0,
            gate ? "c(2h + 2q + 2k + 2f)" : "c(2h + 2q + 2k + f)");
    const struct zt_activation once = zt_activation_layer(&c, ZT_RECOMPUTE_NONE), full = zt_activation_layer(&c, ZT_RECOMPUTE_FULL);
    if (wanted(a, ZT_RECOMPUTE_FULL))
        row(rows, a, kept[2], ZT_RECOMPUTE_FULL, full, once.tensors + once.statistics - full.tensors, "ch");
}

static void their_rows(const struct zt_estimate *e, const struct activations *a, json_t *rows) {
    const struct zt_korthikanti k = {a->sequence, a->batch, a->model.dim, a->model.heads, e->tp, a->sequence_parallel};
    for (int i = 0; i < 3; i++) {
        const enum zt_recompute r = (enum zt_recompute)i;
        if (wanted(a, i))
            row(rows, a, "Korthikanti et al.", i, (struct zt_activation){zt_activation_korthikanti(&k, r), 0},
                r == ZT_RECOMPUTE_FULL ? zt_activation_korthikanti(&k, ZT_RECOMPUTE_NONE) : 0,
                zt_activation_korthikanti_formula(e->tp > 1, a->sequence_parallel, r));
    }
}

/* ---------------------------------------------------------------------------------- printing */

static void print_head(const struct zt_estimate *e, const struct activations *a) {
    const struct zt_model_config *m = &a->model;
    char s[32], text[500], cut[80] = "";
    if (e->tp > 1)
        snprintf(cut, sizeof cut, "; %d tensor-parallel ranks%s", e->tp, a->sequence_parallel ? ", the sequence cut over them" : "");
    snprintf(text, sizeof text, "activations that layers keep from forward to backward, on each rank: %s%s%lld layers of width h = %lld, "
             "%lld heads (q = %lld), %lld of keys and values (k = %lld), MLP of f = %lld; %lld x %s tokens, %s (c = %zu bytes)%s",
             e->preset ? e->preset : "", e->preset ? ": " : "", (long long)m->layers, (long long)m->dim, (long long)m->heads,
             (long long)(m->heads * m->head_dim), (long long)m->kv_heads, (long long)(m->kv_heads * m->head_dim),
             (long long)m->ffn_dim, (long long)a->batch, zt_format_count(a->sequence, s, sizeof s), zt_dtype_name(a->type),
             zt_dtype_size(a->type), cut);
    zt_wrap(stdout, 0, 0, text);
    puts("GB: 1e9 bytes, GiB: 2^30\n");
}

static void print_foot(const struct zt_estimate *e, const struct activations *a) {
    putchar('\n');
    zt_wrap(stdout, 0, 0, "WITH STATISTICS: the norms' figures and attention's log-sum-exps too, in fp32. PEAK: with full recomputation "
            "what one layer keeps with none comes on top while it is recomputed (its input is among both).");
    if (e->tp > 1)
        zt_wrap(stdout, 0, 0, a->sequence_parallel ? "All of it is cut over the tensor-parallel ranks."
                                                   : "Tensor parallelism cuts q, k, f and their statistics; 4h (2h, h) stay whole "
                                                     "without --sequence-parallel.");
    if (e->like == ZT_LIKE_KORTHIKANTI)
        zt_wrap(stdout, 0, 0, "Korthikanti et al. (arXiv 2205.05198): 16-bit activations, dropout masks of a byte an element (5sbh of "
                "the 34), attention whose probabilities are stored (5as^2b), which selective recomputation and flash attention "
                "remove alike. This program's attention never stores them; its selective does norms and activation functions "
                "again.");
    zt_wrap(stdout, 0, 0, "Not in it: embeddings, final norm, logits, temporaries of an operator, slack of blocks. zctl plan FILE counts "
            "those.");
}

int zt_estimate_activations(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"RECOMPUTE", "recompute", ZT_CELL_TEXT, 0}, {"KEPT", "kept", ZT_CELL_TEXT, 0},
        {"BYTES A TOKEN", "bytes_per_token", ZT_CELL_FIXED, 0}, {"WITH STATISTICS", "with_statistics_per_token", ZT_CELL_FIXED, 0},
        {"A LAYER GB", "layer_gb", ZT_CELL_FIXED, 5}, {"ALL GiB", "tensors_gib", ZT_CELL_FIXED, 2},
        {"WITH STATISTICS", "total_gib", ZT_CELL_FIXED, 2}, {"PEAK GiB", "peak_gib", ZT_CELL_FIXED, 2},
        {"FORMULA", "formula", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    struct activations a;
    int rc = read_all(o, e, &a, err);
    if (rc)
        return rc;
    json_t *rows = json_array();
    if (e->like == ZT_LIKE_KORTHIKANTI)
        their_rows(e, &a, rows);
    own_rows(e, &a, rows);
    json_t *j = json_pack("{s:s, s:s?, s:I, s:I, s:I, s:s, s:i, s:b, s:O}", "heading", "activations that layers keep", "model",
                          e->preset, "layers", (json_int_t)a.model.layers, "sequence", (json_int_t)a.sequence, "batch",
                          (json_int_t)a.batch, "dtype", zt_dtype_name(a.type), "tensor", e->tp, "sequence_parallel",
                          (int)a.sequence_parallel, "rows", rows);
    if (o->format == ZT_FORMAT_TABLE)
        print_head(e, &a);
    rc = zt_print_rows(stdout, o, j, rows, columns, err);
    if (rc == 0 && o->format == ZT_FORMAT_TABLE)
        print_foot(e, &a);
    json_decref(j);
    json_decref(rows);
    return rc;
}
