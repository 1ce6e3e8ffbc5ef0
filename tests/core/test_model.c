/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter counts, tensor order and initial values of the tensor table. Counts are the published
 * ones, or the closed formula V h + s h + L (12 h^2 + 13 h) + 2 h. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/model.h"
#include "core/units.h"

static struct zt_model_table build(const char *preset) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset(preset, &c, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0, "%s", err.msg);
    return t;
}

Test(model, published_counts) {
    static const struct { const char *preset; int64_t parameters; int tensors; } want[] = {
        {"gpt2-124m", 124439808, 148},
        {"gpt2-350m", 354823168, 292},
        {"gpt2-774m", 774030080, 436},
        {"gpt2-1558m", 1557611200, 580},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_table t = build(want[i].preset);
        cr_assert_eq(t.parameters, want[i].parameters, "%s: %lld", want[i].preset,
                     (long long)t.parameters);
        cr_assert_eq(t.n_tensors, want[i].tensors);
        zt_model_table_free(&t);
    }
}

Test(model, small_counts) {
    struct zt_model_config c = {.family = ZT_GPT2, .layers = 4, .heads = 4, .kv_heads = 4,
                                .head_dim = 16, .dim = 64, .ffn_dim = 256, .vocab_size = 65,
                                .seq_len_max = 64, .norm_eps = 1e-5, .tied_head = true};
    struct zt_model_table t;
    struct zt_error err;
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0);
    cr_assert_eq(t.parameters, 208320);
    int64_t block = 0;
    for (int i = 0; i < t.units[1].n_tensors; i++)
        block += t.tensors[t.units[1].first_tensor + i].numel;
    cr_assert_eq(block, 49984);
    zt_model_table_free(&t);
    struct zt_model_table nano = build("gpt2-nano");
    int64_t h = 128;
    cr_assert_eq(nano.parameters, 256 * h + 256 * h + 4 * (12 * h * h + 13 * h) + 2 * h);
    zt_model_table_free(&nano);
}

Test(model, tensor_order) {
    struct zt_model_table t = build("gpt2-124m");
    static const char *const root[] = {"transformer.wte.weight", "transformer.wpe.weight",
                                       "transformer.ln_f.weight", "transformer.ln_f.bias"};
    static const struct { const char *name; int64_t rows, cols; } block[] = {
        {"ln_1.weight", 768, 1},         {"ln_1.bias", 768, 1},
        {"attn.c_attn.weight", 2304, 768}, {"attn.c_attn.bias", 2304, 1},
        {"attn.c_proj.weight", 768, 768}, {"attn.c_proj.bias", 768, 1},
        {"ln_2.weight", 768, 1},         {"ln_2.bias", 768, 1},
        {"mlp.c_fc.weight", 3072, 768},  {"mlp.c_fc.bias", 3072, 1},
        {"mlp.c_proj.weight", 768, 3072}, {"mlp.c_proj.bias", 768, 1},
    };
    cr_assert_eq(t.n_units, 13);
    cr_assert_str_eq(t.units[0].name, "root");
    for (int i = 0; i < 4; i++)
        cr_assert_str_eq(t.tensors[i].name, root[i]);
    for (int layer = 0; layer < 12; layer++) {
        const struct zt_unit_def *u = &t.units[layer + 1];
        cr_assert_eq(u->first_tensor, 4 + layer * 12);
        cr_assert_eq(u->n_tensors, 12);
        for (int i = 0; i < 12; i++) {
            const struct zt_tensor_def *d = &t.tensors[u->first_tensor + i];
            char name[96];
            snprintf(name, sizeof name, "transformer.h.%d.%s", layer, block[i].name);
            cr_assert_str_eq(d->name, name);
            cr_assert_eq(d->unit, layer + 1);
            cr_assert_eq(d->shape[0], block[i].rows);
            cr_assert_eq(d->shape[1], block[i].cols);
            cr_assert_eq(d->numel, block[i].rows * block[i].cols);
            cr_assert_eq(d->ndim, block[i].cols > 1 ? 2 : 1);
            cr_assert_eq(d->decay, block[i].cols > 1);
        }
    }
    zt_model_table_free(&t);
}

Test(model, initial_values) {
    struct zt_model_table t = build("gpt2-nano");
    int residual = 0, plain = 0;
    for (int i = 0; i < t.n_tensors; i++) {
        const struct zt_tensor_def *d = &t.tensors[i];
        const char *dot = strrchr(d->name, '.');
        if (strcmp(dot, ".bias") == 0)
            cr_assert_eq(d->init, ZT_INIT_ZERO, "%s", d->name);
        else if (strstr(d->name, "ln_"))
            cr_assert_eq(d->init, ZT_INIT_ONE, "%s", d->name);
        else {
            bool r = strstr(d->name, "c_proj") != NULL;
            cr_assert_eq(d->init, ZT_INIT_NORMAL, "%s", d->name);
            cr_assert_float_eq(d->init_std, r ? 0.02 / sqrt(8) : 0.02, 1e-18, "%s", d->name);
            residual += r;
            plain += !r;
        }
    }
    cr_assert_eq(residual, 8);
    cr_assert_eq(plain, 10);
    zt_model_table_free(&t);
}

/* Published sizes: https://huggingface.co/meta-llama, https://huggingface.co/Qwen. The small one by hand:
 * L (2 h^2 + 2 h d kv + 3 h f + 2 h) + 2 V h + h = 4 x 46,208 + 32,832. */
Test(model, llama_counts) {
    static const struct { const char *preset; int64_t parameters; int tensors, units; } want[] = {
        {"llama3-1b", 1235814400, 2 + 16 * 9, 17},
        {"llama3-8b", 8030261248, 3 + 32 * 9, 34},
        {"llama3-70b", 70553706496, 3 + 80 * 9, 82},
        {"llama3-405b", 405853388800, 3 + 126 * 9, 128},
        {"qwen2.5-0.5b", 494032768, 2 + 24 * 12, 25},
        {"qwen2.5-7b", 7615616512, 3 + 28 * 12, 30},
        /* 4 (2 x 128^2 + 2 x 128 x 64 + 3 x 128 x 352 + 256) + 2 x 256 x 128 + 128 */
        {"llama-nano", 803968, 3 + 4 * 9, 6},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_table t = build(want[i].preset);
        cr_expect_eq(t.parameters, want[i].parameters, "%s: %lld", want[i].preset,
                     (long long)t.parameters);
        cr_expect_eq(t.n_tensors, want[i].tensors, "%s", want[i].preset);
        cr_expect_eq(t.n_units, want[i].units, "%s", want[i].preset);
        zt_model_table_free(&t);
    }
    struct zt_model_config c = {.family = ZT_LLAMA, .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 16,
                                .dim = 64, .ffn_dim = 176, .vocab_size = 256, .seq_len_max = 64,
                                .norm_eps = 1e-5, .rope_theta = 10000};
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0, "%s", err.msg);
    cr_expect_eq(t.parameters, 217664);
    int64_t block = 0;
    for (int i = 0; i < t.units[1].n_tensors; i++)
        block += t.tensors[t.units[1].first_tensor + i].numel;
    cr_expect_eq(block, 46208);
    zt_model_table_free(&t);
}

/* Names as Hugging Face's files have them. */
static const struct { const char *name; int64_t rows, cols; int with; } llama_block[] = {
    {"input_layernorm.weight", 96, 1, 0},
    {"self_attn.q_proj.weight", 64, 96, 0},
    {"self_attn.q_proj.bias", 64, 1, 1},
    {"self_attn.k_proj.weight", 32, 96, 0},
    {"self_attn.k_proj.bias", 32, 1, 1},
    {"self_attn.v_proj.weight", 32, 96, 0},
    {"self_attn.v_proj.bias", 32, 1, 1},
    {"self_attn.q_norm.weight", 16, 1, 2},
    {"self_attn.k_norm.weight", 16, 1, 2},
    {"self_attn.o_proj.weight", 96, 64, 0},
    {"post_attention_layernorm.weight", 96, 1, 0},
    {"mlp.gate_proj.weight", 160, 96, 0},
    {"mlp.up_proj.weight", 160, 96, 0},
    {"mlp.down_proj.weight", 96, 160, 0},
};

static void check_llama(bool tied, int with, enum zt_wrap wrap) {
    const struct zt_model_config c = {
        .family = ZT_LLAMA, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .dim = 96,
        .ffn_dim = 160, .vocab_size = 300, .seq_len_max = 64, .norm_eps = 1e-5, .rope_theta = 10000,
        .tied_head = tied, .qkv_bias = with & 1, .qk_norm = with & 2};
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_table_build(&c, wrap, 1, &t, &err), 0, "%s", err.msg);
    int at = 0;
    cr_expect_str_eq(t.tensors[at++].name, "model.embed_tokens.weight");
    if (tied)
        cr_expect_str_eq(t.tensors[at++].name, "model.norm.weight");
    cr_expect_str_eq(t.units[0].name, tied ? "root" : "embed");
    for (int layer = 0; layer < 2; layer++)
        for (size_t k = 0; k < sizeof llama_block / sizeof llama_block[0]; k++) {
            if (llama_block[k].with && !(llama_block[k].with & with))
                continue;
            const struct zt_tensor_def *d = &t.tensors[at++];
            const int mlp = k >= 10, unit = wrap == ZT_WRAP_PART ? 1 + 2 * layer + mlp : 1 + layer;
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, llama_block[k].name);
            cr_expect_str_eq(d->name, name);
            cr_expect_eq(d->shape[0], llama_block[k].rows, "%s", name);
            cr_expect_eq(d->shape[1], llama_block[k].cols, "%s", name);
            cr_expect_eq(d->unit, unit, "%s", name);
            cr_expect_eq(d->layer, layer);
            cr_expect_eq(zt_model_find(&t, layer, d->role, d->piece), at - 1, "%s", name);
            const bool norm = strstr(name, "norm"), out = strstr(name, "o_proj") || strstr(name, "down");
            cr_expect_eq(d->init, strstr(name, "bias") ? ZT_INIT_ZERO : norm ? ZT_INIT_ONE : ZT_INIT_NORMAL);
            if (d->init == ZT_INIT_NORMAL)
                cr_expect_float_eq(d->init_std, out ? 0.02 / 2 : 0.02, 1e-18, "%s", name);
        }
    if (!tied) {
        const struct zt_unit_def *head = &t.units[t.n_units - 1];
        cr_expect_str_eq(head->name, "head");
        cr_expect(head->first_tensor == at && head->n_tensors == 2);
        cr_expect_str_eq(t.tensors[at++].name, "model.norm.weight");
        cr_expect_str_eq(t.tensors[at].name, "lm_head.weight");
        cr_expect(t.tensors[at].shape[0] == 300 && t.tensors[at].shape[1] == 96);
        at++;
    }
    cr_expect_eq(at, t.n_tensors);
    cr_expect_eq(t.n_units, 1 + (wrap == ZT_WRAP_PART ? 4 : 2) + !tied);
    cr_expect_eq(zt_model_find(&t, 0, ZT_ROLE_QKV, ZT_WEIGHT), -1);
    cr_expect_eq(zt_model_find(&t, 0, ZT_ROLE_Q, ZT_BIAS) >= 0, with & 1);
    zt_model_table_free(&t);
}

Test(model, llama_tensor_order) {
    for (int with = 0; with < 4; with++)
        for (int tied = 0; tied < 2; tied++) {
            check_llama(tied, with, ZT_WRAP_BLOCK);
            check_llama(tied, with, ZT_WRAP_PART);
        }
}

/* An untied head is a unit of its own, last in forward and first in backward; GPT-2's likewise. */
Test(model, walk_of_an_untied_head) {
    static const struct { const char *trainable; int n; int backward[6]; } want[] = {
        {"*", 6, {5, 4, 3, 2, 1, 0}},
        {"*.layers.2.*", 3, {5, 4, 3}},
        {"lm_head.weight", 1, {5}},
        {"model.embed_tokens.weight", 6, {5, 4, 3, 2, 1, 0}},
    };
    struct zt_model_table t = build("llama-nano");
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_walk w;
        struct zt_error err = {0};
        cr_assert_eq(zt_model_set_trainable(&t, &want[i].trainable, 1, &err), 0, "%s", err.msg);
        cr_assert_eq(zt_model_walk_build(&t, &w, &err), 0, "%s", err.msg);
        cr_assert_eq(w.n_forward, 6);
        for (int u = 0; u < 6; u++)
            cr_expect_eq(w.forward[u], u);
        cr_assert_eq(w.n_backward, want[i].n, "%s", want[i].trainable);
        for (int u = 0; u < want[i].n; u++)
            cr_expect_eq(w.backward[u], want[i].backward[u], "%s", want[i].trainable);
        zt_model_walk_free(&w);
    }
    struct zt_model_config c = t.config;
    zt_model_table_free(&t);
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset("gpt2-nano", &c, &err), 0);
    c.tied_head = false;
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_N, 2, &t, &err), 0, "%s", err.msg);
    static const char *const names[] = {"embed", "blocks0-1", "blocks2-3", "head"};
    cr_assert_eq(t.n_units, 4);
    for (int u = 0; u < 4; u++)
        cr_expect_str_eq(t.units[u].name, names[u]);
    cr_expect_str_eq(t.tensors[t.n_tensors - 1].name, "lm_head.weight");
    cr_expect_str_eq(t.tensors[t.n_tensors - 2].name, "transformer.ln_f.bias");
    zt_model_table_free(&t);
}

/* What the published configurations say of the rotary positions. */
Test(model, rope_of_the_presets) {
    static const struct { const char *preset; double theta; enum zt_rope_scaling type; double factor; } want[] = {
        {"llama3-1b", 500000, ZT_ROPE_LLAMA3, 32},  {"llama3-8b", 500000, ZT_ROPE_NONE, 0},
        {"llama3-405b", 500000, ZT_ROPE_LLAMA3, 8}, {"qwen2.5-7b", 1000000, ZT_ROPE_NONE, 0},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_config c;
        struct zt_error err;
        cr_assert_eq(zt_model_preset(want[i].preset, &c, &err), 0);
        cr_expect_eq(c.rope_theta, want[i].theta);
        cr_expect_eq(c.rope_scaling.type, want[i].type, "%s", want[i].preset);
        if (c.rope_scaling.type == ZT_ROPE_LLAMA3)
            cr_expect(c.rope_scaling.factor == want[i].factor && c.rope_scaling.low_freq_factor == 1 &&
                      c.rope_scaling.high_freq_factor == 4 && c.rope_scaling.original_max == 8192);
    }
}

Test(model, refusals) {
    struct zt_model_config c, bad;
    struct zt_error err;
    cr_assert_eq(zt_model_preset("gpt2-124M", &c, &err), ZT_ENOTFOUND);
    cr_assert_str_eq(err.msg, "no preset \"gpt2-124M\" (did you mean \"gpt2-124m\"?)");
    cr_assert_eq(zt_model_preset("xyz", &c, &err), ZT_ENOTFOUND);
    cr_assert(strstr(err.msg, "there are: gpt2-nano, gpt2-124m,"), "%s", err.msg);
    cr_assert_eq(zt_model_preset("gpt2-nano", &c, &err), 0);
    bad = c;
    bad.heads = 0;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "model.heads: 0 is not in 1..16384");
    bad = c;
    bad.head_dim = 16;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg,
                     "model.heads: 4 heads x head_dim 16 = 64, but gpt2 needs dim 128");
    bad = c;
    bad.norm_eps = NAN;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    bad = c;
    bad.dropout = 1;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    bad = c;
    bad.vocab_size = INT64_MAX;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    struct zt_model_config llama;
    cr_assert_eq(zt_model_preset("llama-nano", &llama, &err), 0);
    bad = llama;
    bad.head_dim = 33;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "model.head_dim: 33 is odd, but rotary positions turn pairs; give an even number");
    bad = llama;
    bad.kv_heads = 3;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "model.kv_heads: 3 does not divide heads 4");
    bad = llama;
    bad.rope_theta = 0;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    bad = llama;
    bad.rope_scaling.type = ZT_ROPE_LLAMA3;
    bad.rope_scaling.low_freq_factor = 4;
    cr_assert_eq(zt_model_config_check(&bad, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "model.rope_scaling.high_freq_factor: 4 is not above low_freq_factor 4");
    cr_assert_null(zt_model_preset_name(-1));
    cr_assert_null(zt_model_preset_name(12));
    cr_assert_str_eq(zt_model_preset_name(0), "gpt2-nano");
}

/* ---- wraps, trainable patterns, the order of units ---- */

static struct zt_model_table wrapped(int64_t layers, enum zt_wrap wrap, int blocks) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset("gpt2-nano", &c, &err), 0);
    c.layers = layers;
    cr_assert_eq(zt_model_table_build(&c, wrap, blocks, &t, &err), 0, "%s", err.msg);
    return t;
}

Test(model, wraps_cut_the_same_tensors_into_units) {
    static const struct {
        enum zt_wrap wrap;
        int blocks;
        const char *names[12];
        int tensors[12];
    } want[] = {
        {ZT_WRAP_BLOCK, 1, {"root", "block0", "block1", "block2", "block3", "block4"},
         {4, 12, 12, 12, 12, 12}},
        {ZT_WRAP_N, 2, {"root", "blocks0-1", "blocks2-3", "block4"}, {4, 24, 24, 12}},
        {ZT_WRAP_N, 5, {"root", "blocks0-4"}, {4, 60}},
        {ZT_WRAP_N, 9, {"root", "blocks0-4"}, {4, 60}},
        {ZT_WRAP_PART, 1,
         {"root", "block0.attn", "block0.mlp", "block1.attn", "block1.mlp", "block2.attn", "block2.mlp",
          "block3.attn", "block3.mlp", "block4.attn", "block4.mlp"},
         {4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6}},
    };
    struct zt_model_table block = wrapped(5, ZT_WRAP_BLOCK, 1);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_table t = wrapped(5, want[i].wrap, want[i].blocks);
        int n = 0, first = 0;
        while (n < 12 && want[i].names[n]) n++;
        cr_assert_eq(t.n_units, n);
        for (int u = 0; u < n; u++) {
            cr_expect_str_eq(t.units[u].name, want[i].names[u]);
            cr_expect_eq(t.units[u].n_tensors, want[i].tensors[u]);
            cr_expect_eq(t.units[u].first_tensor, first);
            first += t.units[u].n_tensors;
        }
        cr_assert_eq(t.n_tensors, block.n_tensors);
        cr_expect_eq(t.parameters, block.parameters);
        for (int k = 0; k < t.n_tensors; k++)
            cr_expect_str_eq(t.tensors[k].name, block.tensors[k].name);
        zt_model_table_free(&t);
    }
    zt_model_table_free(&block);
}

Test(model, trainable_patterns) {
    struct zt_model_table t = wrapped(3, ZT_WRAP_BLOCK, 1);
    struct zt_error err = {0};
    const char *two[] = {"*.h.1.*", "transformer.ln_f.bias"};
    cr_assert_eq(zt_model_set_trainable(&t, two, 2, &err), 0, "%s", err.msg);
    int trained = 0;
    for (int i = 0; i < t.n_tensors; i++) {
        bool want = strstr(t.tensors[i].name, ".h.1.") || strstr(t.tensors[i].name, "ln_f.bias");
        cr_expect_eq(t.tensors[i].frozen, !want, "%s", t.tensors[i].name);
        trained += want;
    }
    cr_expect_eq(trained, 13);
    const char *all[] = {"*"};
    cr_assert_eq(zt_model_set_trainable(&t, all, 1, &err), 0, "an earlier choice does not stick");
    for (int i = 0; i < t.n_tensors; i++) cr_expect(!t.tensors[i].frozen);
    const char *none[] = {"*.h.1.*", "*.h.9.*"};
    cr_expect_eq(zt_model_set_trainable(&t, none, 2, &err), ZT_EINVAL);
    cr_expect_str_eq(err.msg, "training.trainable: \"*.h.9.*\" matches no tensor; names look like "
                              "transformer.h.2.mlp.c_proj.bias");
    cr_expect_eq(zt_model_set_trainable(&t, none, 0, &err), ZT_EINVAL);
    cr_expect_str_eq(err.msg, "training.trainable: nothing is left to train");
    zt_model_table_free(&t);
}

/* Totals as the models' own cards and configurations give them; what tensor parallelism does not cut: 843,264 of
 * GPT-2's smallest (positions, 25 norms, 24 biases), 266,240 of Llama 3 8B (65 norms). */
Test(model, closed_form_counts) {
    static const struct { const char *preset; int64_t parameters, replicated, largest; } want[] = {
        {"gpt2-124m", 124439808, 843264, 50257 * 768},
        {"gpt2-350m", 354823168, -1, -1},
        {"gpt2-774m", 774030080, -1, -1},
        {"gpt2-1558m", 1557611200, -1, 50257 * 1600},
        {"llama3-1b", 1235814400, -1, -1},
        {"llama3-8b", 8030261248, 266240, 525336576},
        {"llama3-70b", 70553706496, -1, -1},
        {"llama3-405b", 405853388800, -1, -1},
        {"qwen2.5-0.5b", 494032768, -1, -1},
        {"qwen2.5-7b", 7615616512, -1, -1},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_config c;
        struct zt_model_count n;
        struct zt_error err = {0};
        cr_assert_eq(zt_model_preset(want[i].preset, &c, &err), 0, "%s", err.msg);
        cr_assert_eq(zt_model_count(&c, &n, &err), 0, "%s", err.msg);
        cr_assert_eq(n.parameters, want[i].parameters, "%s: %lld", want[i].preset, (long long)n.parameters);
        cr_assert(want[i].replicated < 0 || n.replicated == want[i].replicated, "%s: %lld", want[i].preset,
                  (long long)n.replicated);
        cr_assert(want[i].largest < 0 || n.largest_layer == want[i].largest, "%s: %lld", want[i].preset,
                  (long long)n.largest_layer);
    }
}

/* The table and the closed form agree: the total, and what no rank cuts. A layer is what shares a name up to its
 * last dot. */
Test(model, closed_form_is_the_tables) {
    static const char *const presets[] = {"gpt2-nano",   "gpt2-124m",    "gpt2-1558m", "llama-nano", "llama3-1b",
                                          "llama3-8b", "llama3-405b", "qwen2.5-0.5b", "qwen2.5-7b"};
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        struct zt_model_table t = build(presets[i]);
        struct zt_model_count n;
        struct zt_error err = {0};
        int64_t whole = 0, largest = 0, layer = 0;
        for (int k = 0; k < t.n_tensors; k++) {
            const char *name = t.tensors[k].name, *before = k ? t.tensors[k - 1].name : "";
            size_t stem = (size_t)(strrchr(name, '.') - name);
            whole += t.tensors[k].tp_dim < 0 ? t.tensors[k].numel : 0;
            layer = (k && strncmp(name, before, stem + 1) == 0 ? layer : 0) + t.tensors[k].numel;
            largest = layer > largest ? layer : largest;
        }
        cr_assert_eq(zt_model_count(&t.config, &n, &err), 0, "%s", err.msg);
        cr_assert_eq(n.parameters, t.parameters);
        cr_assert_eq(n.replicated, whole, "%s: %lld, %lld", presets[i], (long long)n.replicated, (long long)whole);
        cr_assert_eq(n.largest_layer, largest, "%s", presets[i]);
        zt_model_table_free(&t);
    }
}

Test(model, a_count_of_nonsense_is_refused) {
    struct zt_model_config c = {0};
    struct zt_model_count n;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_count(&c, &n, &err), ZT_EINVAL);
}

/* docs/models.md: the row of every preset has its count and its tensor degrees. */
Test(model, page_of_presets) {
    static char page[1 << 16];
    FILE *f = fopen(ZT_ROOT "/docs/models.md", "r");
    cr_assert(f);
    page[fread(page, 1, sizeof page - 1, f)] = '\0';
    fclose(f);
    for (int i = 0; zt_model_preset_name(i); i++) {
        struct zt_model_config c;
        struct zt_model_count n;
        struct zt_error e;
        char head[64], tail[128], count[32], degrees[64];
        cr_assert_eq(zt_model_preset(zt_model_preset_name(i), &c, &e), 0);
        cr_assert_eq(zt_model_count(&c, &n, &e), 0);
        snprintf(head, sizeof head, "\n| `%s`", zt_model_preset_name(i));
        snprintf(tail, sizeof tail, "| %s | %s |\n", zt_format_count(n.parameters, count, sizeof count),
                 zt_divisors(zt_model_degrees(&c), degrees, sizeof degrees));
        const char *row = strstr(page, head), *end = row ? strstr(row, tail) : NULL;
        cr_assert(end && end < strchr(row + 1, '\n'), "%s: not %s", zt_model_preset_name(i), tail);
    }
}
