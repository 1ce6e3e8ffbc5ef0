/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of activations of a layer: the figures that Korthikanti et al.'s formulas give for GPT-3, Llama 3 8B's
 * counted tensor by tensor, and what blocks of GPT-2's largest take in docs/planner.md. */
#include <criterion/criterion.h>

#include "core/activation.h"

static struct zt_model_config preset(const char *name) {
    struct zt_model_config c;
    cr_assert_eq(zt_model_preset(name, &c, NULL), 0, "%s", name);
    return c;
}

/* b 1, s 2048, h 12288, a 96; GB a layer to the digits printed. 34 sbh = 855,638,016; 5 a s^2 b = 2,013,265,920. */
Test(activation, korthikanti_gpt3) {
    static const struct {
        int tensor;
        bool sequence;
        enum zt_recompute recompute;
        int64_t bytes;
        double gb, digit;
    } row[] = {{1, false, ZT_RECOMPUTE_NONE, 2868903936, 2.8689, 1e-4},
               {8, false, ZT_RECOMPUTE_NONE, 251658240 + (603979776 + INT64_C(2013265920)) / 8, 0.5788, 1e-4},
               {8, true, ZT_RECOMPUTE_NONE, 2868903936 / 8, 0.3586, 1e-4},
               {8, true, ZT_RECOMPUTE_SELECTIVE, 855638016 / 8, 0.10695, 1e-5},
               {8, false, ZT_RECOMPUTE_SELECTIVE, 251658240 + 603979776 / 8, 0.32716, 1e-5},
               {1, false, ZT_RECOMPUTE_SELECTIVE, 855638016, 0.85564, 1e-5},
               {1, false, ZT_RECOMPUTE_FULL, 50331648, 0.05033, 1e-5},
               {8, false, ZT_RECOMPUTE_FULL, 50331648, 0.05033, 1e-5},
               {8, true, ZT_RECOMPUTE_FULL, 6291456, 0.00629, 1e-5}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_korthikanti k = {2048, 1, 12288, 96, row[i].tensor, row[i].sequence};
        int64_t got = zt_activation_korthikanti(&k, row[i].recompute);
        cr_expect_eq(got, row[i].bytes, "case %zu: %lld", i, (long long)got);
        cr_expect_float_eq((double)got / 1e9, row[i].gb, row[i].digit / 2, "case %zu", i);
    }
}

/* h 4096, q 4096, k 1024, f 14336, 32 heads; 8,192 tokens in 32 layers, bf16. Bytes a token and layer: norm inputs and
 * what comes out of them 4 x 2h, q 2h, k and v 4k, attention 2h, MLP 8f, 6f or 4f; statistics 4a + 8. */
Test(activation, llama3_8b) {
    static const struct {
        enum zt_activation_mlp mlp;
        enum zt_recompute recompute;
        int64_t tensors, statistics;
        double gib, with;
    } row[] = {{ZT_MLP_ALL, ZT_RECOMPUTE_NONE, 167936, 136, 41.0, 41.03},
               {ZT_MLP_PRODUCT, ZT_RECOMPUTE_NONE, 139264, 136, 34.0, 34.03},
               {ZT_MLP_INPUTS, ZT_RECOMPUTE_NONE, 110592, 136, 27.0, 27.03},
               {ZT_MLP_INPUTS, ZT_RECOMPUTE_SELECTIVE, 110592 - 2 * 2 * 4096, 128, 23.0, 23.03},
               {ZT_MLP_INPUTS, ZT_RECOMPUTE_FULL, 8192, 0, 2.0, 2.0}};
    const struct zt_model_config m = preset("llama3-8b");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_activation_case c = {&m, 8192, 1, 1, false, ZT_BF16, row[i].mlp};
        struct zt_activation a = zt_activation_layer(&c, row[i].recompute);
        cr_expect_eq(a.tensors, 8192 * row[i].tensors, "case %zu: %lld", i, (long long)a.tensors);
        cr_expect_eq(a.statistics, 8192 * row[i].statistics, "case %zu", i);
        cr_expect_float_eq((double)a.tensors * 32 / 1073741824.0, row[i].gib, 1e-9, "case %zu", i);
        cr_expect_float_eq((double)(a.tensors + a.statistics) * 32 / 1073741824.0, row[i].with, 0.005, "case %zu", i);
    }
}

/* Norms' inputs and outputs stay whole without sequence parallelism. 4h bf16 = 32,768; the rest 77,824 over 8. */
Test(activation, llama3_8b_over_eight_tensor_ranks) {
    const struct zt_model_config m = preset("llama3-8b");
    struct zt_activation_case c = {&m, 8192, 1, 8, false, ZT_BF16, ZT_MLP_INPUTS};
    struct zt_activation a = zt_activation_layer(&c, ZT_RECOMPUTE_NONE);
    cr_expect(a.tensors == 8192 * (32768 + 77824 / 8) && a.statistics == 8192 * (8 + 128 / 8));
    cr_expect_eq(zt_activation_layer(&c, ZT_RECOMPUTE_FULL).tensors, 8192 * 8192);
    c.sequence_parallel = true;
    a = zt_activation_layer(&c, ZT_RECOMPUTE_NONE);
    cr_expect(a.tensors == 1024 * 110592 && a.statistics == 1024 * 136);
    cr_expect_eq(zt_activation_layer(&c, ZT_RECOMPUTE_FULL).tensors, 1024 * 8192);
}

/* Batch 2 x 1,024: 48 blocks of 16 w, w = 6,553,600, and 4 + 25 fp32 figures a token (docs/planner.md). */
Test(activation, gpt2_1558m) {
    const struct zt_model_config m = preset("gpt2-1558m");
    struct zt_activation_case c = {&m, 1024, 2, 1, false, ZT_BF16, ZT_MLP_INPUTS};
    struct zt_activation a = zt_activation_layer(&c, ZT_RECOMPUTE_NONE);
    cr_expect_eq((a.tensors + a.statistics) * 48, 5044568064);
    cr_expect_eq(a.tensors, 16 * 6553600);
    c.type = ZT_F32;
    cr_expect_eq(zt_activation_layer(&c, ZT_RECOMPUTE_NONE).tensors, 2 * 16 * 6553600);
    cr_expect_eq(zt_activation_layer(&c, ZT_RECOMPUTE_SELECTIVE).statistics, 2048 * 4 * 25);
}
