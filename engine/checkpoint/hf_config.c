/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_config.c: see hf_config.h. The values that a key has where it is left out are
 * those of the published configuration classes. */
#include "engine/checkpoint/hf_config.h"
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ---- */

static const struct arch {
    const char *type, *name, *bare; /* model_type; with a head, without */
    enum zt_family family;
    bool qkv_bias, qk_norm, tied;   /* tied: where tie_word_embeddings is left out */
    bool own_head_dim, own_kv_heads; /* the class has a number of its own: must be given */
} archs[] = {
    {"gpt2", "GPT2LMHeadModel", "GPT2Model", ZT_GPT2, true, false, true, false, false},
    {"llama", "LlamaForCausalLM", "LlamaModel", ZT_LLAMA, false, false, false, false, false},
    {"qwen2", "Qwen2ForCausalLM", "Qwen2Model", ZT_LLAMA, true, false, false, false, true},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3Model", ZT_LLAMA, false, true, false, true, true},
};
#define N_ARCHS ((int)(sizeof archs / sizeof archs[0]))

/* ---- reading: one key each, the first problem stays ---- */

struct reading {
    json_t *root;
    const char *file;
    struct zt_hf_config *out;
    struct zt_error *err;
    int rc;
};

static void refuse(struct reading *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void refuse(struct reading *r, int code, const char *fmt, ...) {
    char text[600];
    va_list ap;
    if (r->rc) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->rc = zt_fail(r->err, code, "%s: %s", r->file, text);
}

static void note(struct reading *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct reading *r, const char *fmt, ...) {
    char *to = r->out->note;
    size_t n = strlen(to), size = sizeof r->out->note;
    va_list ap;
    if (n > 0 && n + 2 < size) n += (size_t)snprintf(to + n, size - n, "; ");
    va_start(ap, fmt);
    vsnprintf(to + n, size - n, fmt, ap);
    va_end(ap);
}

/* The value of a key; NULL when it is not there or null. */
static const json_t *get(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

#define NEEDED INT64_MIN
/* fallback NEEDED: the key must be there. */
static int64_t whole_in(struct reading *r, const json_t *object, const char *key, int64_t fallback) {
    const json_t *v = get(object, key);
    if (!v && fallback == NEEDED) refuse(r, ZT_EINVAL, "%s is missing", key);
    if (v && !json_is_integer(v)) refuse(r, ZT_EINVAL, "%s: expected a whole number", key);
    return v && json_is_integer(v) ? json_integer_value(v) : fallback == NEEDED ? 1 : fallback;
}
static int64_t whole(struct reading *r, const char *key, int64_t fallback) {
    return whole_in(r, r->root, key, fallback);
}

/* fallback NAN: the key must be there. */
static double real_in(struct reading *r, const json_t *object, const char *key, double fallback) {
    const json_t *v = get(object, key);
    if (!v && isnan(fallback)) refuse(r, ZT_EINVAL, "%s is missing", key);
    if (v && !json_is_number(v)) refuse(r, ZT_EINVAL, "%s: expected a number", key);
    return v && json_is_number(v) ? json_number_value(v) : isnan(fallback) ? 1 : fallback;
}
static double real(struct reading *r, const char *key, double fallback) {
    return real_in(r, r->root, key, fallback);
}

static bool truth(struct reading *r, const char *key, bool fallback) {
    const json_t *v = get(r->root, key);
    if (v && !json_is_boolean(v)) refuse(r, ZT_EINVAL, "%s: expected true or false", key);
    return v && json_is_boolean(v) ? json_is_true(v) : fallback;
}

static const char *words_in(struct reading *r, const json_t *object, const char *key, const char *fallback) {
    const json_t *v = get(object, key);
    if (v && !json_is_string(v)) refuse(r, ZT_EINVAL, "%s: expected a string", key);
    return v && json_is_string(v) ? json_string_value(v) : fallback;
}

/* Models that have this switched on compute something else. */
static void must_be(struct reading *r, const char *key, bool wanted, const char *what) {
    if (truth(r, key, wanted) != wanted)
        refuse(r, ZT_EUNSUPPORTED, "%s is %s: %s", key, wanted ? "false" : "true", what);
}

/* ---- what kind of model ---- */

static const struct arch *find_arch(struct reading *r) {
    const char *type = words_in(r, r->root, "model_type", NULL);
    const json_t *names = get(r->root, "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    const struct arch *a = NULL;
    if (!type) refuse(r, ZT_EINVAL, "model_type is missing");
    for (int i = 0; i < N_ARCHS && type; i++)
        if (strcmp(archs[i].type, type) == 0) a = &archs[i];
    if (!a)
        refuse(r, ZT_EUNSUPPORTED, "model_type \"%.40s\" is not one of gpt2, llama, qwen2, qwen3", type ? type : "");
    if (a && names && (!json_is_array(names) || json_array_size(names) != 1 || !name))
        refuse(r, ZT_EINVAL, "architectures: expected a list of one name");
    else if (a && name && strcmp(name, a->name) != 0 && strcmp(name, a->bare) != 0)
        refuse(r, ZT_EUNSUPPORTED, "architectures: \"%.60s\" is not %s, which is what \"model_type\": \"%s\" has here",
               name, a->name, a->type);
    return r->rc ? NULL : a;
}

static void check_common(struct reading *r) {
    if (get(r->root, "quantization_config"))
        refuse(r, ZT_EUNSUPPORTED, "quantization_config: quantized weights are not read; save the model in bf16 or fp32");
    if (get(r->root, "auto_map"))
        refuse(r, ZT_EUNSUPPORTED,
               "auto_map: the model is defined by code of its own, which is not run here; remove the key if it computes "
               "what the published model does");
}

static void read_dtype(struct reading *r) {
    static const struct { const char *name; enum zt_dtype type; } names[] = {
        {"float32", ZT_F32}, {"bfloat16", ZT_BF16}, {"float16", ZT_F16}};
    const char *key = get(r->root, "torch_dtype") ? "torch_dtype" : "dtype";
    const char *v = words_in(r, r->root, key, NULL);
    for (int i = 0; i < 3 && v; i++)
        if (strcmp(names[i].name, v) == 0) {
            r->out->has_dtype = true;
            r->out->dtype = names[i].type;
        }
    if (v && !r->out->has_dtype) note(r, "%s \"%.24s\" is passed over: the files say what they hold", key, v);
}

static void read_end_token(struct reading *r) {
    const json_t *v = get(r->root, "eos_token_id");
    r->out->end_token = json_is_integer(v) ? json_integer_value(v) : -1;
    if (r->out->end_token < 0 || r->out->end_token >= r->out->model.vocab_size) r->out->end_token = -1;
}

/* ---- gpt2 ---- */

static void read_gpt2(struct reading *r) {
    struct zt_model_config *c = &r->out->model;
    const char *act = words_in(r, r->root, "activation_function", "gelu_new");
    c->layers = whole(r, "n_layer", NEEDED);
    c->heads = c->kv_heads = whole(r, "n_head", NEEDED);
    c->dim = whole(r, "n_embd", NEEDED);
    c->seq_len_max = whole(r, "n_positions", NEEDED);
    c->ffn_dim = whole(r, "n_inner", c->dim > 0 && c->dim < INT32_MAX ? 4 * c->dim : 1);
    c->norm_eps = real(r, "layer_norm_epsilon", 1e-5);
    if (c->heads < 1 || c->dim % c->heads != 0)
        refuse(r, ZT_EINVAL, "n_head: %lld does not divide n_embd %lld", (long long)c->heads, (long long)c->dim);
    else
        c->head_dim = c->dim / c->heads;
    if (strcmp(act, "gelu_new") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        refuse(r, ZT_EUNSUPPORTED, "activation_function: \"%.40s\" is not computed here; only gelu_new", act);
    must_be(r, "scale_attn_weights", true, "attention scores are always scaled here");
    must_be(r, "scale_attn_by_inverse_layer_idx", false, "attention scores are scaled alike in every layer here");
    must_be(r, "add_cross_attention", false, "there is no cross attention here");
    double p = real(r, "resid_pdrop", 0.1);
    if (real(r, "embd_pdrop", 0.1) == p && real(r, "attn_pdrop", 0.1) == p)
        c->dropout = p;
    else
        note(r, "resid_pdrop, embd_pdrop and attn_pdrop differ, and there is one model.dropout here: set it yourself");
}

/* ---- llama and its kin ---- */

static void read_scaling(struct reading *r, const json_t *s, const char *where) {
    struct zt_model_config *c = &r->out->model;
    if (!s) return;
    if (!json_is_object(s)) {
        refuse(r, ZT_EINVAL, "%s: expected an object", where);
        return;
    }
    const char *type = words_in(r, s, get(s, "rope_type") ? "rope_type" : "type", NULL);
    if (!type) refuse(r, ZT_EINVAL, "%s: rope_type is missing", where);
    if (!type || strcmp(type, "default") == 0) return;
    if (strcmp(type, "llama3") != 0) {
        refuse(r, ZT_EUNSUPPORTED, "%s: \"%.40s\" is not computed here; only llama3", where, type);
        return;
    }
    c->rope_scaling.type = ZT_ROPE_LLAMA3;
    c->rope_scaling.factor = real_in(r, s, "factor", NAN);
    c->rope_scaling.low_freq_factor = real_in(r, s, "low_freq_factor", NAN);
    c->rope_scaling.high_freq_factor = real_in(r, s, "high_freq_factor", NAN);
    c->rope_scaling.original_max = whole_in(r, s, "original_max_position_embeddings", NEEDED);
    if (!r->rc && !(c->rope_scaling.factor >= 1 && c->rope_scaling.low_freq_factor > 0 &&
                    c->rope_scaling.original_max >= 1))
        refuse(r, ZT_EINVAL, "%s: factor, low_freq_factor and original_max_position_embeddings must be 1 or more, above 0, "
               "and 1 or more", where);
}

static void read_rope(struct reading *r) {
    struct zt_model_config *c = &r->out->model;
    const json_t *both = get(r->root, "rope_parameters"), *scaling = get(r->root, "rope_scaling");
    c->rope_scaling = (struct zt_rope){ZT_ROPE_NONE, 8, 1, 4, 8192};
    c->rope_theta = real(r, "rope_theta", 10000.0);
    if (both && json_is_object(both))
        c->rope_theta = real_in(r, both, "rope_theta", get(r->root, "rope_theta") ? c->rope_theta : NAN);
    if (both && scaling && !json_equal(both, scaling))
        refuse(r, ZT_EINVAL, "rope_parameters and rope_scaling are both there and differ");
    read_scaling(r, both ? both : scaling, both ? "rope_parameters" : "rope_scaling");
    if (real(r, "partial_rotary_factor", 1.0) != 1.0)
        refuse(r, ZT_EUNSUPPORTED, "partial_rotary_factor: the whole head is turned here");
}

/* A window is in use where it is switched on, or where it is given and there is no switch. */
static void check_windows(struct reading *r, const struct arch *a) {
    const json_t *kinds = get(r->root, "layer_types");
    bool qwen = a->own_kv_heads;
    must_be(r, "use_sliding_window", false, "there is no sliding window here");
    if (!qwen && get(r->root, "sliding_window"))
        refuse(r, ZT_EUNSUPPORTED, "sliding_window: there is no sliding window here");
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || strcmp(kind, "full_attention") != 0)
            refuse(r, ZT_EUNSUPPORTED, "layer_types: \"%.40s\" is not computed here; only full_attention", kind ? kind : "?");
    }
}

static void read_llama(struct reading *r, const struct arch *a) {
    struct zt_model_config *c = &r->out->model;
    const char *act = words_in(r, r->root, "hidden_act", "silu");
    c->layers = whole(r, "num_hidden_layers", NEEDED);
    c->heads = whole(r, "num_attention_heads", NEEDED);
    c->kv_heads = whole(r, "num_key_value_heads", a->own_kv_heads ? NEEDED : c->heads);
    c->dim = whole(r, "hidden_size", NEEDED);
    c->ffn_dim = whole(r, "intermediate_size", NEEDED);
    c->seq_len_max = whole(r, "max_position_embeddings", NEEDED);
    c->norm_eps = real(r, "rms_norm_eps", 1e-6);
    c->head_dim = whole(r, "head_dim", a->own_head_dim ? NEEDED : 0);
    if (c->head_dim == 0) {
        if (c->heads < 1 || c->dim % c->heads != 0)
            refuse(r, ZT_EINVAL, "num_attention_heads: %lld does not divide hidden_size %lld", (long long)c->heads,
                   (long long)c->dim);
        else
            c->head_dim = c->dim / c->heads;
    }
    if (c->kv_heads < 1) refuse(r, ZT_EINVAL, "num_key_value_heads: %lld is below 1", (long long)c->kv_heads);
    if (strcmp(act, "silu") != 0)
        refuse(r, ZT_EUNSUPPORTED, "hidden_act: \"%.40s\" is not computed here; only silu", act);
    /* of Qwen2 the biases on queries, keys and values are part of the architecture, without a switch */
    if (strcmp(a->type, "qwen2") != 0)
        must_be(r, "attention_bias", false, "there are no biases on all four linears of attention here");
    must_be(r, "mlp_bias", false, "there are no biases in the feed-forward layer here");
    if (real(r, "attention_dropout", 0.0) != 0)
        note(r, "attention_dropout is not taken: model.dropout of the run file says what is dropped");
    read_rope(r);
    check_windows(r, a);
}

int zt_hf_config_read(const char *text, size_t bytes, const char *file, struct zt_hf_config *out,
                      struct zt_error *err) {
    json_error_t where;
    struct reading r = {.file = file, .out = out, .err = err};
    memset(out, 0, sizeof *out);
    if (bytes > ZT_HF_CONFIG_MAX)
        return zt_fail(err, ZT_EINVAL, "%s: larger than %zu bytes", file, ZT_HF_CONFIG_MAX);
    r.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!r.root)
        return zt_fail(err, ZT_EINVAL, "%s:%d:%d: %s", file, where.line, where.column, where.text);
    const struct arch *a = json_is_object(r.root) ? find_arch(&r) : NULL;
    if (!json_is_object(r.root)) refuse(&r, ZT_EINVAL, "not a JSON object");
    if (a) {
        snprintf(out->type, sizeof out->type, "%s", a->type);
        out->model.family = a->family;
        out->model.qkv_bias = a->qkv_bias;
        out->model.qk_norm = a->qk_norm;
        out->model.tied_head = truth(&r, "tie_word_embeddings", a->tied);
        out->model.vocab_size = whole(&r, "vocab_size", NEEDED);
        check_common(&r);
        if (a->family == ZT_GPT2)
            read_gpt2(&r);
        else
            read_llama(&r, a);
        read_dtype(&r);
        read_end_token(&r);
    }
    if (r.rc == 0 && zt_model_config_check(&out->model, err)) r.rc = zt_fail_prefix(err, "%s", file);
    json_decref(r.root);
    return r.rc;
}

/* ---- writing ---- */

const char *zt_hf_number(double v, char *buf, size_t n) {
    if (fabs(v) < 1e15 && v == floor(v)) {
        snprintf(buf, n, "%.1f", v);
        return buf;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, n, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    return buf;
}

static const struct arch *arch_of(const struct zt_model_config *c) {
    for (int i = 0; i < N_ARCHS; i++)
        if (archs[i].family == c->family &&
            (c->family == ZT_GPT2 || (archs[i].qkv_bias == c->qkv_bias && archs[i].qk_norm == c->qk_norm)))
            return &archs[i];
    return NULL;
}

static void write_gpt2(FILE *f, const struct zt_model_config *c) {
    char a[40], b[40];
    fprintf(f, "  \"n_layer\": %lld,\n  \"n_head\": %lld,\n  \"n_embd\": %lld,\n", (long long)c->layers,
            (long long)c->heads, (long long)c->dim);
    fprintf(f, "  \"n_inner\": %lld,\n  \"n_positions\": %lld,\n  \"n_ctx\": %lld,\n", (long long)c->ffn_dim,
            (long long)c->seq_len_max, (long long)c->seq_len_max);
    fprintf(f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": %s,\n",
            zt_hf_number(c->norm_eps, a, sizeof a));
    zt_hf_number(c->dropout, b, sizeof b);
    fprintf(f, "  \"attn_pdrop\": %s,\n  \"embd_pdrop\": %s,\n  \"resid_pdrop\": %s,\n", b, b, b);
}

static void write_scaling(FILE *f, const struct zt_rope *s) {
    char a[40], b[40], d[40];
    if (s->type == ZT_ROPE_NONE) {
        fputs("  \"rope_scaling\": null,\n", f);
        return;
    }
    fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
               "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %lld},\n",
            zt_hf_number(s->factor, a, sizeof a), zt_hf_number(s->low_freq_factor, b, sizeof b),
            zt_hf_number(s->high_freq_factor, d, sizeof d), (long long)s->original_max);
}

static void write_llama(FILE *f, const struct zt_model_config *c, const struct arch *a) {
    char eps[40], theta[40];
    fprintf(f, "  \"num_hidden_layers\": %lld,\n  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n",
            (long long)c->layers, (long long)c->heads, (long long)c->kv_heads);
    fprintf(f, "  \"head_dim\": %lld,\n  \"hidden_size\": %lld,\n  \"intermediate_size\": %lld,\n",
            (long long)c->head_dim, (long long)c->dim, (long long)c->ffn_dim);
    fprintf(f, "  \"max_position_embeddings\": %lld,\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": %s,\n",
            (long long)c->seq_len_max, zt_hf_number(c->norm_eps, eps, sizeof eps));
    fprintf(f, "  \"rope_theta\": %s,\n", zt_hf_number(c->rope_theta, theta, sizeof theta));
    write_scaling(f, &c->rope_scaling);
    fputs("  \"attention_dropout\": 0.0,\n", f);
    if (a->own_kv_heads)
        fputs("  \"use_sliding_window\": false,\n", f);
    else
        fputs("  \"mlp_bias\": false,\n", f);
    if (strcmp(a->type, "qwen2") != 0) fputs("  \"attention_bias\": false,\n", f);
}

int zt_hf_config_write(const struct zt_model_config *c, enum zt_dtype dtype, int64_t end_token, char **text,
                       struct zt_error *err) {
    const struct arch *a = arch_of(c);
    size_t n = 0;
    *text = NULL;
    if (!a)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "model.qkv_bias with model.qk_norm: no architecture that other programs load has both");
    FILE *f = open_memstream(text, &n);
    if (!f) return zt_fail(err, ZT_ENOMEM, "no host memory for config.json");
    fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"vocab_size\": %lld,\n", a->name, a->type,
            (long long)c->vocab_size);
    if (c->family == ZT_GPT2)
        write_gpt2(f, c);
    else
        write_llama(f, c, a);
    fputs("  \"bos_token_id\": null,\n", f);
    if (end_token >= 0)
        fprintf(f, "  \"eos_token_id\": %lld,\n", (long long)end_token);
    else
        fputs("  \"eos_token_id\": null,\n", f);
    fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\"\n}\n", c->tied_head ? "true" : "false",
            dtype == ZT_F32 ? "float32" : dtype == ZT_BF16 ? "bfloat16" : "float16");
    if (fclose(f) == 0) return 0;
    free(*text);
    *text = NULL;
    return zt_fail(err, ZT_ENOMEM, "no host memory for config.json");
}

/* ---- the model section of a run file ---- */

char *zt_model_section(const struct zt_model_config *c, const char *init_from) {
    char *text = NULL, a[40], b[40], d[40];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "model:\n  family: %s\n  layers: %lld\n  heads: %lld\n", c->family == ZT_GPT2 ? "gpt2" : "llama",
            (long long)c->layers, (long long)c->heads);
    if (c->family == ZT_LLAMA)
        fprintf(f, "  kv_heads: %lld\n  head_dim: %lld\n", (long long)c->kv_heads, (long long)c->head_dim);
    fprintf(f, "  dim: %lld\n  ffn_dim: %lld\n  vocab_size: %lld\n  seq_len_max: %lld\n", (long long)c->dim,
            (long long)c->ffn_dim, (long long)c->vocab_size, (long long)c->seq_len_max);
    if (c->family == ZT_LLAMA) {
        const struct zt_rope *s = &c->rope_scaling;
        fprintf(f, "  rope_theta: %s\n", zt_hf_number(c->rope_theta, a, sizeof a));
        if (s->type == ZT_ROPE_LLAMA3)
            fprintf(f, "  rope_scaling: {type: llama3, factor: %s, low_freq_factor: %s, high_freq_factor: %s, "
                       "original_max: %lld}\n",
                    zt_hf_number(s->factor, a, sizeof a), zt_hf_number(s->low_freq_factor, b, sizeof b),
                    zt_hf_number(s->high_freq_factor, d, sizeof d), (long long)s->original_max);
        fprintf(f, "  qkv_bias: %s\n  qk_norm: %s\n", c->qkv_bias ? "true" : "false", c->qk_norm ? "true" : "false");
    }
    fprintf(f, "  norm_eps: %s\n  tied_head: %s\n  dropout: %s\n", zt_hf_number(c->norm_eps, a, sizeof a),
            c->tied_head ? "true" : "false", zt_hf_number(c->dropout, b, sizeof b));
    if (init_from) {
        fputs("  init_from: \"", f);
        for (const char *p = init_from; *p; p++) {
            if (*p == '"' || *p == '\\') fputc('\\', f);
            fputc(*p, f);
        }
        fputs("\"\n", f);
    }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}
