/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank adapters in the tensor table: how many they are (rank x (in + out) of each linear), where they
 * stand, what they start from and how a tensor group cuts them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/model.h"

static struct zt_model_table build(const char *preset, bool bias) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset(preset, &c, &err), 0, "%s", err.msg);
    c.qkv_bias = bias || c.qkv_bias;
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0, "%s", err.msg);
    return t;
}

/* Llama 3 8B: q 4096 -> 4096, v 4096 -> 1024: 32 x 16 x (8192 + 5120) = 6,815,744; with k and o, and the
 * three of 4096 <-> 14336, 41,943,040. GPT-2's smallest: 12 x 8 x (768 + 2304). */
Test(lora, counts) {
    static const struct { const char *preset, *targets[7]; int n; int64_t rank, adapters; } want[] = {
        {"llama3-8b", {"*.q_proj", "*.v_proj"}, 2, 16, 6815744},
        {"llama3-8b", {"*_proj"}, 1, 16, 41943040},
        {"llama3-8b", {"*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj", "*.gate_proj", "*.up_proj", "*.down_proj"},
         7, 16, 41943040},
        {"llama3-8b", {"*"}, 1, 16, 41943040},
        {"llama3-8b", {"*.layers.3.self_attn.q_proj", "*.layers.3.*.q_proj"}, 2, 16, 16 * 8192},
        {"gpt2-124m", {"*.c_attn"}, 1, 8, 12 * 8 * (768 + 2304)},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_table t = build(want[i].preset, false);
        struct zt_error err = {0};
        const int64_t base = t.parameters;
        int64_t trained = 0, all = 0;
        cr_assert_eq(zt_model_table_add_lora(&t, want[i].rank, want[i].targets, want[i].n, &err), 0, "%s", err.msg);
        for (int k = 0; k < t.n_tensors; k++) {
            const struct zt_tensor_def *d = &t.tensors[k];
            cr_expect_eq(d->frozen, strstr(d->name, ".lora_") == NULL, "%s", d->name);
            trained += d->frozen ? 0 : d->numel;
            all += d->numel;
        }
        cr_expect_eq(trained, want[i].adapters, "row %zu: %lld", i, (long long)trained);
        cr_expect_eq(all, base + want[i].adapters);
        cr_expect_eq(t.parameters, all);
        zt_model_table_free(&t);
    }
}

/* Draws and hashes of what was there before stay what they were. */
Test(lora, numbers) {
    const char *const targets[] = {"*.q_proj", "*.down_proj"};
    struct zt_model_table plain = build("llama-nano", false), t = build("llama-nano", false);
    struct zt_error err = {0};
    uint32_t base = 0, adapters = (uint32_t)plain.n_tensors;
    cr_assert_eq(zt_model_table_add_lora(&t, 4, targets, 2, &err), 0, "%s", err.msg);
    for (int i = 0; i < t.n_tensors; i++) {
        const bool adapter = strstr(t.tensors[i].name, ".lora_") != NULL;
        if (!adapter)
            cr_expect_str_eq(t.tensors[i].name, plain.tensors[base].name);
        cr_expect_eq(t.tensors[i].number, adapter ? adapters++ : base++, "%s", t.tensors[i].name);
    }
    cr_expect(base == (uint32_t)plain.n_tensors && adapters == base + 4 * 4);
    zt_model_table_free(&plain);
    zt_model_table_free(&t);
}

/* What trains of a unit decides how far backward goes; a unit of adapters alone is one that trains. */
Test(lora, stand_behind_their_linear) {
    static const char *const want[] = {
        "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias",
        "self_attn.q_proj.lora_A.weight", "self_attn.q_proj.lora_B.weight", "self_attn.k_proj.weight",
        "self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight",
        "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
        "mlp.down_proj.lora_A.weight", "mlp.down_proj.lora_B.weight"};
    const char *const targets[] = {"*.q_proj", "*.down_proj"};
    struct zt_model_table t = build("llama-nano", true);
    struct zt_model_walk w;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_table_add_lora(&t, 4, targets, 2, &err), 0, "%s", err.msg);
    cr_assert_eq(t.n_units, 6);
    int at = 1;
    for (int layer = 0; layer < 4; layer++) {
        cr_assert_eq(t.units[1 + layer].first_tensor, at);
        cr_assert_eq(t.units[1 + layer].n_tensors, 16);
        for (int i = 0; i < 16; i++, at++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, want[i]);
            cr_expect_str_eq(t.tensors[at].name, name);
            cr_expect_eq(t.tensors[at].unit, 1 + layer);
        }
        const int a = zt_model_find(&t, layer, ZT_ROLE_DOWN, ZT_LORA_A), b = zt_model_find(&t, layer, ZT_ROLE_DOWN, ZT_LORA_B);
        cr_expect(a == at - 2 && b == at - 1);
        cr_expect(t.tensors[a].shape[0] == 4 && t.tensors[a].shape[1] == 352 && t.tensors[a].init == ZT_INIT_NORMAL);
        cr_expect_float_eq(t.tensors[a].init_std, 1 / sqrt(3.0 * 352), 1e-15);
        cr_expect(t.tensors[b].shape[0] == 128 && t.tensors[b].shape[1] == 4 && t.tensors[b].init == ZT_INIT_ZERO);
    }
    cr_expect_str_eq(t.tensors[at].name, "model.norm.weight");
    cr_expect_eq(t.units[5].first_tensor, at);
    cr_assert_eq(zt_model_walk_build(&t, &w, &err), 0);
    cr_assert_eq(w.n_backward, 5, "the embedding is frozen and needs no backward");
    zt_model_walk_free(&w);
    zt_model_table_free(&t);
}

/* An A behind cut outputs is whole, one behind cut inputs is cut with them; B the other way round. Of a fused qkv
 * B's rows are cut inside each of the three. */
Test(lora, cut_with_their_linear) {
    static const struct { const char *preset; enum zt_role role; int64_t a[2], b[2], b_first[2]; } want[] = {
        {"llama-nano", ZT_ROLE_K, {4, 128}, {32, 4}, {128, 252}},
        {"llama-nano", ZT_ROLE_DOWN, {4, 176}, {128, 4}, {0, 508}},
        {"gpt2-nano", ZT_ROLE_QKV, {4, 128}, {192, 4}, {256, 1532}},
    };
    const char *const all[] = {"*"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct zt_model_table t = build(want[i].preset, false);
        struct zt_error err = {0};
        cr_assert_eq(zt_model_table_add_lora(&t, 4, all, 1, &err), 0, "%s", err.msg);
        cr_assert_eq(zt_model_table_cut(&t, 2, 1, &err), 0, "%s", err.msg);
        const struct zt_tensor_def *a = &t.tensors[zt_model_find(&t, 2, want[i].role, ZT_LORA_A)];
        const struct zt_tensor_def *b = &t.tensors[zt_model_find(&t, 2, want[i].role, ZT_LORA_B)];
        cr_expect(a->shape[0] == want[i].a[0] && a->shape[1] == want[i].a[1], "row %zu", i);
        cr_expect(b->shape[0] == want[i].b[0] && b->shape[1] == want[i].b[1], "row %zu", i);
        cr_expect_eq(a->tp_sum, a->tp_dim < 0 ? ZT_TP_SUM_ALWAYS : ZT_TP_SUM_NEVER);
        cr_expect_eq(b->tp_sum, b->tp_dim < 0 ? ZT_TP_SUM_ALWAYS : ZT_TP_SUM_NEVER);
        for (int k = 0; k < 2; k++) { /* first element, and first of the last row */
            struct zt_part_run r = zt_tensor_run(&t, b, k ? b->numel - 4 : 0, 4);
            uint64_t index;
            cr_expect_eq(zt_span_run(&r.span, 0, 4, &index), 4);
            cr_expect_eq((int64_t)index, want[i].b_first[k], "row %zu: %lld", i, (long long)index);
        }
        zt_model_table_free(&t);
    }
}

Test(lora, refusals) {
    struct zt_model_table t = build("llama-nano", false);
    struct zt_error err = {0};
    const int before = t.n_tensors;
    static const char *const none[] = {"*.q_proj", "lm_head"};
    cr_expect_eq(zt_model_table_add_lora(&t, 4, none, 2, &err), ZT_EINVAL);
    cr_expect_str_eq(err.msg, "training.lora.targets: \"lm_head\" matches no linear layer of the blocks; names look like "
                              "model.layers.3.mlp.down_proj");
    cr_expect_eq(zt_model_table_add_lora(&t, 4, none, 0, &err), ZT_EINVAL);
    cr_expect_str_eq(err.msg, "training.lora.targets: no linear layer is named");
    /* k_proj is [64, 128], q_proj [128, 128]: 128 is the whole of a matrix of the two */
    static const char *const k[] = {"*.k_proj"};
    cr_expect_eq(zt_model_table_add_lora(&t, 65, k, 1, &err), ZT_EINVAL);
    cr_expect_str_eq(err.msg, "training.lora.rank: 65 is above 64, the shorter side of the largest linear layer named, and so "
                              "more than a whole matrix has; give less, or train the layers themselves (training.trainable)");
    cr_expect_eq(t.n_tensors, before);
    for (int i = 0; i < t.n_tensors; i++)
        cr_expect(!t.tensors[i].frozen, "untouched");
    static const char *const both[] = {"*.k_proj", "*.q_proj"};
    cr_expect_eq(zt_model_table_add_lora(&t, 128, both, 2, &err), 0, "one of them has it: %s", err.msg);
    zt_model_table_free(&t);
}
