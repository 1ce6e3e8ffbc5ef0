/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face folders as PyTorch wrote them (tests/golden/gen_hf.py): the same logits, every stretch of
 * every tensor as the file has it by the published format, and what is refused by name. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "core/convert.h"
#include "tests/engine/hf_util.h"
#include "tests/model/golden_model.h"

/* ---- what PyTorch computes ---- */

/* max |ours - fp64|, over logits of the size of 1 to 5. */
static double logit_difference(const char *folder, const char *key) {
    struct golden g;
    struct zt_error e = {0};
    struct zt_hf *h = hf_open(golden_folder(folder));
    cr_assert_eq(golden_open(golden_folder("expected.bin"), &g), 0);
    struct golden_array tokens = golden_need(&g, key, ":tokens"), want = golden_need(&g, key, ":logits");
    struct rig r;
    struct rig_options o = {.config = zt_hf_config(h)->model, .B = tokens.dim[0], .T = tokens.dim[1], .threads = 2};
    rig_open(&r, &o);
    struct zt_tensor_source s = zt_hf_source(h);
    for (int i = 0; i < r.table.n_tensors; i++) {
        const struct zt_tensor_def *d = &r.table.tensors[i];
        ok(s.read(s.arg, d->name, ZT_SAVED_PARAMETER, d->ndim, d->whole, zt_span_plain(0, d->numel), d->numel, ZT_F32,
                  r.master[i], &e), &e);
    }
    rig_set_parameters(&r);
    memcpy(r.tokens, tokens.data, (size_t)tokens.numel * 4);
    float *logits = rig_device(&r, (size_t)want.numel * 4, ZT_TAG_TEMPORARY, "logits");
    struct zt_unit_source src = rig_source(&r);
    struct zt_batch batch = rig_batch(&r, 0, o.B);
    ok(zt_model_logits(r.model, &src, &batch, logits, &e), &e);
    double most = 0, size = 0;
    for (int64_t i = 0; i < want.numel; i++) {
        most = fmax(most, fabs((double)logits[i] - golden_f64(&want, i)));
        size = fmax(size, fabs(golden_f64(&want, i)));
    }
    cr_expect_gt(size, 0.5, "%s: logits of next to nothing prove little", folder);
    zt_free(r.alloc, logits);
    rig_close(&r);
    golden_close(&g);
    s.close(s.arg);
    return most;
}

Test(hf, logits_of_pytorch) {
    const char *const folders[][2] = {
        {"gpt2", "gpt2"}, {"gpt2-long", "gpt2"}, {"llama", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}};
    for (int i = 0; i < 5; i++) {
        double off = logit_difference(folders[i][0], folders[i][1]);
        cr_expect_leq(off, 1e-5, "%s: logits are off by %g", folders[i][0], off);
    }
}

/* ---- stretches ---- */

/* A span of rows or columns read at once is what its elements are one by one. */
static void check_spans(struct zt_tensor_source *s, const struct zt_tensor_def *d, const float *whole) {
    struct zt_error e = {0};
    float *got = calloc((size_t)d->numel, sizeof *got);
    const int64_t C = d->whole[1], R = d->whole[0];
    const struct { struct zt_span span; int64_t n; } tries[] = {
        {zt_span_plain(1, d->numel - 1), d->numel - 1},                              /* ends inside rows */
        {{(uint64_t)(R / 2 * C), 0, d->numel, d->numel}, d->numel - R / 2 * C},      /* a part of the rows */
        {{(uint64_t)(C / 3), 0, C - C / 3, C}, R * (C - C / 3)},                     /* of the columns */
        {{(uint64_t)(C / 3), (C - C / 3) / 2, C - C / 3, C}, (R - 1) * (C - C / 3)}, /* begins inside one */
        {zt_span_plain((uint64_t)(d->numel / 2), 1), 1},
    };
    for (size_t t = 0; t < sizeof tries / sizeof *tries; t++) {
        ok(s->read(s->arg, d->name, ZT_SAVED_PARAMETER, d->ndim, d->whole, tries[t].span, tries[t].n, ZT_F32, got, &e), &e);
        for (int64_t i = 0; i < tries[t].n; i++) {
            uint64_t index;
            zt_span_run(&tries[t].span, i, 1, &index);
            cr_assert_eq(got[i], whole[index], "%s, span %zu, element %lld", d->name, t, (long long)i);
        }
    }
    free(got);
}

/* Against the file's bytes, read here by the published format: header, offsets, and GPT-2's linears turned. */
Test(hf, every_tensor_as_the_file_has_it) {
    const char *const folders[] = {"gpt2", "gpt2-long", "qwen2", "qwen3"};
    for (int f = 0; f < 4; f++) {
        struct zt_error e = {0};
        struct zt_hf *h = hf_open(golden_folder(folders[f]));
        struct zt_tensor_source s = zt_hf_source(h);
        struct raw_file raw;
        const char *name;
        int n = 0;
        raw_open(golden_path(folders[f], "model.safetensors"), &raw);
        for (; (name = s.name_at(s.arg, n)) != NULL; n++) {
            const struct zt_tensor_def *d = &zt_hf_table(h)->tensors[n];
            const bool turned = strncmp(folders[f], "gpt2", 4) == 0 && d->layer >= 0 && d->ndim == 2;
            float *got = calloc((size_t)d->numel, sizeof *got);
            cr_assert(s.has(s.arg, name, ZT_SAVED_PARAMETER) && !s.has(s.arg, name, ZT_SAVED_MASTER));
            ok(s.read(s.arg, name, ZT_SAVED_PARAMETER, d->ndim, d->whole, zt_span_plain(0, d->numel), d->numel, ZT_F32, got,
                      &e), &e);
            const char *stored = strcmp(folders[f], "gpt2") == 0 ? name + strlen("transformer.") : name;
            for (int64_t i = 0; i < d->numel; i++) {
                const int64_t row = i / d->whole[1], column = i % d->whole[1];
                const int64_t at = turned ? column * d->whole[0] + row : i;
                cr_assert_eq(got[i], raw_at(&raw, stored, at), "%s %s[%lld]", folders[f], name, (long long)i);
            }
            check_spans(&s, d, got);
            free(got);
        }
        cr_assert_eq(n, zt_hf_table(h)->n_tensors);
        cr_expect_leq(s.buffer_bytes(s.arg), 2 << 20);
        raw_close(&raw);
        s.close(s.arg);
    }
}

/* A narrower format is rounded to nearest even once. */
Test(hf, other_formats_are_rounded_once) {
    struct zt_error e = {0};
    struct zt_hf *h = hf_open(golden_folder("gpt2"));
    struct zt_tensor_source s = zt_hf_source(h);
    const struct zt_tensor_def *d = &zt_hf_table(h)->tensors[0];
    float *wide = calloc((size_t)d->numel, sizeof *wide);
    uint16_t *narrow = calloc((size_t)d->numel, sizeof *narrow);
    ok(s.read(s.arg, d->name, ZT_SAVED_PARAMETER, 2, d->whole, zt_span_plain(0, d->numel), d->numel, ZT_F32, wide, &e), &e);
    ok(s.read(s.arg, d->name, ZT_SAVED_PARAMETER, 2, d->whole, zt_span_plain(0, d->numel), d->numel, ZT_BF16, narrow, &e), &e);
    for (int64_t i = 0; i < d->numel; i++) cr_assert_eq(narrow[i], zt_bf16_narrow(wide[i]));
    const int64_t other[2] = {d->whole[0], d->whole[1] + 1};
    cr_expect_eq(s.read(s.arg, d->name, ZT_SAVED_PARAMETER, 2, other, zt_span_plain(0, 1), 1, ZT_F32, wide, &e), ZT_EINVAL);
    cr_expect_eq(s.read(s.arg, "transformer.none", ZT_SAVED_PARAMETER, 2, other, zt_span_plain(0, 1), 1, ZT_F32, wide, &e),
                 ZT_EINVAL);
    free(wide);
    free(narrow);
    s.close(s.arg);
}

/* ---- config.json ---- */

Test(hf, configurations) {
    struct zt_hf *h = hf_open(golden_folder("llama"));
    const struct zt_model_config *c = &zt_hf_config(h)->model;
    cr_expect(c->family == ZT_LLAMA && !c->tied_head && !c->qkv_bias && !c->qk_norm);
    cr_expect(c->rope_scaling.type == ZT_ROPE_LLAMA3 && c->rope_scaling.factor == 8 && c->rope_scaling.original_max == 32);
    cr_expect(c->heads == 2 && c->kv_heads == 1 && c->head_dim == 16 && c->rope_theta == 100.0);
    cr_expect_eq(zt_hf_config(h)->end_token, -1, "several end tokens are none");
    zt_hf_close(h);
    h = hf_open(golden_folder("qwen2"));
    c = &zt_hf_config(h)->model;
    cr_expect(c->qkv_bias && c->tied_head && c->rope_theta == 1e6 && c->norm_eps == 1e-6);
    cr_expect_eq(zt_hf_config(h)->end_token, 3);
    /* config.json says bfloat16, the file is fp16: the file counts, and it is said */
    cr_expect_not_null(strstr(zt_hf_config(h)->note, "config.json says bf16"), "%s", zt_hf_config(h)->note);
    cr_expect_eq(zt_hf_type(h, 0), ZT_F16);
    zt_hf_close(h);
    h = hf_open(golden_folder("qwen3"));
    c = &zt_hf_config(h)->model;
    cr_expect(c->qk_norm && !c->qkv_bias && c->head_dim == 8 && c->rope_theta == 1e6);
    cr_expect_str_eq(zt_hf_config(h)->note, "");
    zt_hf_close(h);
    h = hf_open(golden_folder("gpt2"));
    c = &zt_hf_config(h)->model;
    cr_expect(c->family == ZT_GPT2 && c->tied_head && c->ffn_dim == 128 && c->dropout == 0.1 && c->seq_len_max == 24);
    zt_hf_close(h);
}

/* What is put in the place of a key's value (or added), and what the refusal must name. */
Test(hf, configurations_that_are_refused) {
    static const struct { const char *folder, *key, *value, *names; int code; } tries[] = {
        {"gpt2", "activation_function", "\"gelu\"", "activation_function", ZT_EUNSUPPORTED},
        {"gpt2", "activation_function", "\"relu\"", "\"relu\"", ZT_EUNSUPPORTED},
        {"gpt2", "model_type", "\"bert\"", "\"bert\"", ZT_EUNSUPPORTED},
        {"gpt2", "model_type", "null", "model_type is missing", ZT_EINVAL},
        {"gpt2", "architectures", "[\"GPT2ForSequenceClassification\"]", "GPT2ForSequenceClassification", ZT_EUNSUPPORTED},
        {"gpt2", "architectures", "[]", "architectures", ZT_EINVAL},
        {"gpt2", "architectures", "\"GPT2LMHeadModel\"", "architectures", ZT_EINVAL},
        {"gpt2", "n_layer", "\"2\"", "n_layer", ZT_EINVAL},
        {"gpt2", "n_layer", "2.5", "n_layer", ZT_EINVAL},
        {"gpt2", "n_layer", "null", "n_layer is missing", ZT_EINVAL},
        {"gpt2", "n_layer", "0", "layers", ZT_EINVAL},
        {"gpt2", "n_layer", "100000", "layers", ZT_EINVAL},
        {"gpt2", "n_layer", "-9223372036854775808", "layers", ZT_EINVAL},
        {"gpt2", "n_head", "0", "n_head", ZT_EINVAL},
        {"gpt2", "n_head", "5", "n_head", ZT_EINVAL},
        {"gpt2", "n_embd", "9223372036854775807", "n_embd", ZT_EINVAL},
        {"gpt2", "vocab_size", "4611686018427387904", "vocab_size", ZT_EINVAL},
        {"gpt2", "layer_norm_epsilon", "0", "norm_eps", ZT_EINVAL},
        {"gpt2", "layer_norm_epsilon", "\"1e-5\"", "layer_norm_epsilon", ZT_EINVAL},
        {"gpt2", "scale_attn_weights", "false", "scale_attn_weights", ZT_EUNSUPPORTED},
        {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx", ZT_EUNSUPPORTED},
        {"gpt2", "add_cross_attention", "true", "add_cross_attention", ZT_EUNSUPPORTED},
        {"gpt2", "tie_word_embeddings", "1", "tie_word_embeddings", ZT_EINVAL},
        {"gpt2", "quantization_config", "{\"bits\": 4}", "quantization_config", ZT_EUNSUPPORTED},
        {"gpt2", "auto_map", "{}", "auto_map", ZT_EUNSUPPORTED},
        {"llama", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}", "\"linear\"", ZT_EUNSUPPORTED},
        {"llama", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2.0}", "\"yarn\"", ZT_EUNSUPPORTED},
        {"llama", "rope_scaling", "{\"rope_type\": \"dynamic\"}", "\"dynamic\"", ZT_EUNSUPPORTED},
        {"llama", "rope_scaling", "{\"rope_type\": \"longrope\"}", "\"longrope\"", ZT_EUNSUPPORTED},
        {"llama", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor is missing", ZT_EINVAL},
        {"llama", "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 0, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 32}", "factor", ZT_EINVAL},
        {"llama", "rope_scaling", "[]", "rope_scaling", ZT_EINVAL},
        {"llama", "rope_theta", "-1.0", "rope_theta", ZT_EINVAL},
        {"llama", "partial_rotary_factor", "0.5", "partial_rotary_factor", ZT_EUNSUPPORTED},
        {"llama", "attention_bias", "true", "attention_bias", ZT_EUNSUPPORTED},
        {"llama", "mlp_bias", "true", "mlp_bias", ZT_EUNSUPPORTED},
        {"llama", "hidden_act", "\"gelu\"", "hidden_act", ZT_EUNSUPPORTED},
        {"llama", "sliding_window", "4096", "sliding_window", ZT_EUNSUPPORTED},
        {"llama", "num_key_value_heads", "0", "num_key_value_heads", ZT_EINVAL},
        {"qwen2", "use_sliding_window", "true", "use_sliding_window", ZT_EUNSUPPORTED},
        {"qwen2", "layer_types", "[\"full_attention\", \"sliding_attention\"]", "sliding_attention", ZT_EUNSUPPORTED},
        {"qwen2", "num_key_value_heads", "null", "num_key_value_heads is missing", ZT_EINVAL},
        {"qwen3", "head_dim", "null", "head_dim is missing", ZT_EINVAL},
        {"qwen3", "rope_scaling", "{\"rope_type\": \"default\"}", "differ", ZT_EINVAL},
        {"qwen3", "rope_parameters", "{\"rope_type\": \"default\"}", "rope_theta is missing", ZT_EINVAL},
        {"qwen3", "rope_parameters", "{\"full_attention\": {\"rope_theta\": 5.0}, \"rope_theta\": 5.0}", "rope_type is missing",
         ZT_EINVAL},
        {"llama", "rope_scaling", "{\"factor\": 8.0}", "rope_type is missing", ZT_EINVAL},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct zt_hf_config c;
        struct zt_error e = {0};
        char *text = config_with(tries[i].folder, tries[i].key, tries[i].value);
        int rc = zt_hf_config_read(text, strlen(text), "x/config.json", &c, &e);
        cr_expect_eq(rc, tries[i].code, "%s %s: %d %s", tries[i].key, tries[i].value, rc, e.msg);
        cr_expect(strstr(e.msg, tries[i].names) && strstr(e.msg, "x/config.json"), "%s %s: %s", tries[i].key, tries[i].value,
                  e.msg);
        free(text);
    }
}

Test(hf, texts_that_are_no_configuration) {
    static const char *const texts[] = {"", "{", "[]", "1", "null", "{\"model_type\": \"gpt2\", \"model_type\": \"llama\"}",
                                        "{\"model_type\": \"\\u0000\"}", "{\"model_type\": \"gpt2\"} x", "\xff\xfe",
                                        "{\"vocab_size\": 99999999999999999999}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct zt_hf_config c;
        struct zt_error e = {0};
        cr_expect_eq(zt_hf_config_read(texts[i], strlen(texts[i]), "c", &c, &e), ZT_EINVAL, "%s", texts[i]);
        cr_expect_neq(e.msg[0], '\0');
    }
    size_t deep = 200000;
    char *text = malloc(deep + 1);
    memset(text, '[', deep);
    text[deep] = '\0';
    struct zt_hf_config c;
    struct zt_error e = {0};
    cr_expect_eq(zt_hf_config_read(text, deep, "c", &c, &e), ZT_EINVAL);
    free(text);
    char *big = malloc(ZT_HF_CONFIG_MAX + 1);
    memset(big, ' ', ZT_HF_CONFIG_MAX + 1);
    cr_expect_eq(zt_hf_config_read(big, ZT_HF_CONFIG_MAX + 1, "c", &c, &e), ZT_EINVAL);
    cr_expect_not_null(strstr(e.msg, "larger than"));
    free(big);
}

/* Written and read again: the same model, every number to its last bit. */
Test(hf, configurations_round_trip) {
    const char *const folders[] = {"gpt2", "llama", "qwen2", "qwen3"};
    for (int i = 0; i < 4; i++) {
        struct zt_error e = {0};
        struct zt_hf_config again;
        struct zt_hf *h = hf_open(golden_folder(folders[i]));
        struct zt_model_config c = zt_hf_config(h)->model;
        c.norm_eps = 1.0 / 3e5; /* no short decimal */
        char *text = NULL;
        ok(zt_hf_config_write(&c, ZT_BF16, 7, &text, &e), &e);
        ok(zt_hf_config_read(text, strlen(text), "again", &again, &e), &e);
        const struct zt_model_config *d = &again.model;
        cr_expect(d->family == c.family && d->layers == c.layers && d->heads == c.heads && d->kv_heads == c.kv_heads &&
                  d->head_dim == c.head_dim && d->dim == c.dim && d->ffn_dim == c.ffn_dim && d->vocab_size == c.vocab_size &&
                  d->seq_len_max == c.seq_len_max, "%s", text);
        cr_expect(d->tied_head == c.tied_head && d->qkv_bias == c.qkv_bias && d->qk_norm == c.qk_norm &&
                  d->norm_eps == c.norm_eps && d->dropout == (c.family == ZT_GPT2 ? c.dropout : 0), "%s", text);
        cr_expect(c.family == ZT_GPT2 || (d->rope_theta == c.rope_theta && d->rope_scaling.type == c.rope_scaling.type &&
                                          d->rope_scaling.original_max == c.rope_scaling.original_max), "%s", text);
        cr_expect(again.has_dtype && again.dtype == ZT_BF16 && again.end_token == 7);
        cr_expect_str_eq(again.note, "");
        free(text);
        zt_hf_close(h);
    }
}

/* The model section that import prints is that model again, through the run file's own parser. */
Test(hf, the_model_section_is_the_model) {
    const char *const folders[] = {"gpt2", "llama", "qwen2", "qwen3"};
    for (int i = 0; i < 4; i++) {
        struct zt_error e = {0};
        struct zt_hf *h = hf_open(golden_folder(folders[i]));
        char *section = zt_model_section(&zt_hf_config(h)->model, NULL), yaml[2048];
        struct zt_spec *s = calloc(1, sizeof *s);
        snprintf(yaml, sizeof yaml, "version: 1\nname: x\n%sdataset: {path: x, tokenizer: none}\ntraining: {steps: 1, seq_len: 4, "
                 "local_batch_size: 1}\n", section);
        ok(zt_spec_parse(yaml, strlen(yaml), "x.yaml", NULL, 0, s, &e), &e);
        char *a = NULL, *b = NULL;
        ok(zt_hf_config_write(&zt_hf_config(h)->model, ZT_F32, -1, &a, &e), &e);
        ok(zt_hf_config_write(&s->model, ZT_F32, -1, &b, &e), &e);
        cr_expect_str_eq(a, b, "%s", section);
        free(a);
        free(b);
        free(section);
        zt_spec_free(s);
        free(s);
        zt_hf_close(h);
    }
}

/* ---- tensors that are not what they should be ---- */

static void expect_refused(const char *folder, int code, const char *names) {
    struct zt_hf *h = NULL;
    struct zt_error e = {0};
    int rc = zt_hf_open(NULL, folder, &h, &e);
    cr_expect_eq(rc, code, "%s: %d %s", names, rc, e.msg);
    cr_expect(strstr(e.msg, names), "\"%s\" is not in: %s", names, e.msg);
    cr_expect_null(h);
}

Test(hf, tensors_missing_extra_twice_or_of_another_shape) {
    static const struct { const char *from, *to, *names; int code; } tries[] = {
        /* names of the same length, so that the header stays as long as it is */
        {"\"h.1.ln_2.bias\"", "\"h.1.ln_2.bia_\"", "h.1.ln_2.bia_", ZT_EINVAL},
        {"\"wpe.weight\"", "\"wpx.weight\"", "wpx.weight", ZT_EINVAL},
        {"\"h.0.attn.bias\"", "\"h.0.ln_1.bias\"", "h.0.ln_1.bias", ZT_EINVAL},     /* there twice */
        {"\"h.1.ln_1.bias\"", "\"h.1.attn.bias\"", "h.1.attn.bias", ZT_EINVAL},     /* twice, by its own name */
        {"\"h.0.attn.bias\"", "\"h.9.attn.bixs\"", "h.9.attn.bixs", ZT_EINVAL},
        {"[61,32]", "[32,61]", "wte.weight", ZT_EINVAL},
        {"[32,96]", "[96,32]", "gpt2 stores its linears [in, out]", ZT_EINVAL},
        {"[32,128]", "[128,32]", "mlp.c_fc.weight", ZT_EINVAL},
        {"\"dtype\":\"F32\",\"shape\":[61,32]", "\"dtype\":\"I32\",\"shape\":[61,32]", "I32", ZT_EUNSUPPORTED},
        {"\"dtype\":\"F32\",\"shape\":[61,32]", "\"dtype\":\"F64\",\"shape\":[61,16]", "F64", ZT_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char folder[128];
        copy_folder("gpt2", folder);
        edit_file(folder, "model.safetensors", tries[i].from, tries[i].to);
        expect_refused(folder, tries[i].code, tries[i].names);
        remove_folder(folder);
    }
}

/* The head of a tied model is passed over when it is the embedding, and nothing else. */
Test(hf, a_tied_head_is_the_embedding) {
    char folder[128];
    struct raw_file raw;
    copy_folder("gpt2-long", folder);
    raw_open(path_in(folder, "model.safetensors"), &raw);
    flip_bit(folder, "model.safetensors", raw_place(&raw, "lm_head.weight") + 4 * 61 * 32 - 4);
    raw_close(&raw);
    expect_refused(folder, ZT_EINVAL, "lm_head.weight");
    edit_file(folder, "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\":false");
    struct zt_hf *h = hf_open(folder); /* a head of its own */
    cr_expect_geq(zt_model_find(zt_hf_table(h), -1, ZT_ROLE_HEAD, ZT_WEIGHT), 0);
    zt_hf_close(h);
    remove_folder(folder);
    copy_folder("gpt2", folder);
    edit_file(folder, "config.json", "\"summary_type\": \"cls_index\",", "\"tie_word_embeddings\":false,");
    expect_refused(folder, ZT_EINVAL, "lm_head.weight"); /* untied, and there is none */
    remove_folder(folder);
}

Test(hf, folders_that_are_none) {
    char folder[128];
    expect_refused("/nonexistent/folder", ZT_ENOTFOUND, "config.json");
    copy_folder("gpt2", folder);
    unlink(path_in(folder, "model.safetensors"));
    expect_refused(folder, ZT_ENOTFOUND, "model.safetensors.index.json");
    mkfifo(path_in(folder, "model.safetensors"), 0600); /* opening it must not wait for a writer */
    expect_refused(folder, ZT_EINVAL, "not a regular file");
    unlink(path_in(folder, "model.safetensors"));
    write_file(folder, "model.safetensors", "");
    expect_refused(folder, ZT_EINVAL, "model.safetensors");
    remove_folder(folder);
    copy_folder("llama", folder);
    unlink(path_in(folder, "model-00002-of-00002.safetensors"));
    expect_refused(folder, ZT_ENOTFOUND, "model-00002-of-00002.safetensors");
    remove_folder(folder);
    copy_folder("llama", folder); /* the index names the other file */
    edit_file(folder, "model.safetensors.index.json", "\"lm_head.weight\": \"model-00001", "\"lm_head.weight\": \"model-00002");
    expect_refused(folder, ZT_EINVAL, "lm_head.weight");
    remove_folder(folder);
}

/* ---- B67: names in the index ---- */

/* The secret is a valid file with what is asked for: were it opened, it would be read. The kernel tells of
 * every open of it. */
Test(hf, B67_names_in_the_index_do_not_leave_the_folder) {
    char outer[] = "/tmp/zt-hf-outer-XXXXXX", folder[128], inner[128], secret[128], link[256];
    cr_assert_not_null(mkdtemp(outer));
    copy_folder("llama", folder);
    snprintf(inner, sizeof inner, "%s/model", outer);
    cr_assert_eq(rename(folder, inner), 0);
    snprintf(secret, sizeof secret, "%s/secret.safetensors", outer);
    snprintf(link, sizeof link, "%s/model-00001-of-00002.safetensors", inner);
    cr_assert_eq(rename(link, secret), 0);
    int watch = inotify_init1(IN_NONBLOCK);
    cr_assert_geq(inotify_add_watch(watch, secret, IN_OPEN), 0);
    const struct { const char *name, *says; } tries[] = {
        {"../secret.safetensors", "not in the folder"}, {secret, "absolute path"}, {"", "empty"},
        {"model-00001-of-00002.safetensors\\u0000", "NUL"}, {"..", ".safetensors"}, {".", ".safetensors"},
        {"config.json", ".safetensors"}, {"./../secret.safetensors", "not in the folder"},
        {"x/../../secret.safetensors", "not in the folder"}, {".safetensors", ".safetensors"},
    };
    char *index = read_whole(path_in(inner, "model.safetensors.index.json"));
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char *text = replace_all(index, "model-00001-of-00002.safetensors", tries[i].name);
        write_file(inner, "model.safetensors.index.json", text);
        free(text);
        expect_refused(inner, ZT_EINVAL, tries[i].says);
    }
    /* a link out of the folder by a good name */
    write_file(inner, "model.safetensors.index.json", index);
    cr_assert_eq(symlink("../secret.safetensors", link), 0);
    expect_refused(inner, ZT_EINVAL, "leaves the folder");
    unlink(link);
    cr_assert_eq(symlink(secret, link), 0);
    expect_refused(inner, ZT_EINVAL, "leaves the folder");
    unlink(link);
    char event[512];
    cr_expect_eq(read(watch, event, sizeof event), -1, "the file outside was opened");
    cr_assert_eq(rename(secret, link), 0); /* and where it belongs it is opened, and seen to be */
    struct zt_hf *h = hf_open(inner);
    zt_hf_close(h);
    cr_expect_gt(read(watch, event, sizeof event), 0, "the watch sees nothing");
    close(watch);
    free(index);
    remove_folder(inner);
    rmdir(outer);
}
