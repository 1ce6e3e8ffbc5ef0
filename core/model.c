/* SPDX-License-Identifier: Apache-2.0 */
/* core/model.c: presets and the checks of a configuration. Pure. */
#include "core/model.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/units.h"

/* ---------------------------------------------------------------------------------- presets */

/* What stands beside `rope_scaling: llama3` where a model gives no numbers of its own. */
#define NO_SCALING {ZT_ROPE_NONE, 8, 1, 4, 8192}
#define GPT2(L, H, C, V, S)                                                                        \
    {.family = ZT_GPT2, .layers = (L), .heads = (H), .kv_heads = (H), .head_dim = (C) / (H),       \
     .dim = (C), .ffn_dim = 4 * (C), .vocab_size = (V), .seq_len_max = (S), .rope_theta = 0.0,     \
     .norm_eps = 1e-5, .dropout = 0.0, .tied_head = true, .qkv_bias = true, .qk_norm = false,      \
     .rope_scaling = NO_SCALING}
#define LLAMA(L, H, KV, D, C, F, V, S, THETA, EPS, TIED, BIAS, ...)                                \
    {.family = ZT_LLAMA, .layers = (L), .heads = (H), .kv_heads = (KV), .head_dim = (D),           \
     .dim = (C), .ffn_dim = (F), .vocab_size = (V), .seq_len_max = (S), .rope_theta = (THETA),     \
     .norm_eps = (EPS), .dropout = 0.0, .tied_head = (TIED), .qkv_bias = (BIAS), .qk_norm = false, \
     .rope_scaling = __VA_ARGS__}
#define LLAMA3(FACTOR) {ZT_ROPE_LLAMA3, (FACTOR), 1, 4, 8192}

/* The published numbers of each model (llama3-1b is Llama 3.2, llama3-405b is Llama 3.1, the other two
 * Llama 3); the nano ones are ours, for tests and first steps. */
static const struct { const char *name; struct zt_model_config config; } presets[] = {
    {"gpt2-nano", GPT2(4, 4, 128, 256, 256)},
    {"gpt2-124m", GPT2(12, 12, 768, 50257, 1024)},
    {"gpt2-350m", GPT2(24, 16, 1024, 50257, 1024)},
    {"gpt2-774m", GPT2(36, 20, 1280, 50257, 1024)},
    {"gpt2-1558m", GPT2(48, 25, 1600, 50257, 1024)},
    {"llama-nano", LLAMA(4, 4, 2, 32, 128, 352, 256, 256, 10000.0, 1e-5, false, false, NO_SCALING)},
    {"llama3-1b",
     LLAMA(16, 32, 8, 64, 2048, 8192, 128256, 131072, 500000.0, 1e-5, true, false, LLAMA3(32))},
    {"llama3-8b",
     LLAMA(32, 32, 8, 128, 4096, 14336, 128256, 8192, 500000.0, 1e-5, false, false, NO_SCALING)},
    {"llama3-70b",
     LLAMA(80, 64, 8, 128, 8192, 28672, 128256, 8192, 500000.0, 1e-5, false, false, NO_SCALING)},
    {"llama3-405b",
     LLAMA(126, 128, 8, 128, 16384, 53248, 128256, 131072, 500000.0, 1e-5, false, false, LLAMA3(8))},
    {"qwen2.5-0.5b",
     LLAMA(24, 14, 2, 64, 896, 4864, 151936, 32768, 1000000.0, 1e-6, true, true, NO_SCALING)},
    {"qwen2.5-7b",
     LLAMA(28, 28, 4, 128, 3584, 18944, 152064, 131072, 1000000.0, 1e-6, false, true, NO_SCALING)},
};
#define N_PRESETS ((int)(sizeof presets / sizeof presets[0]))

const char *zt_model_preset_name(int i) { return i >= 0 && i < N_PRESETS ? presets[i].name : NULL; }

int zt_model_preset(const char *name, struct zt_model_config *c, struct zt_error *err) {
    const char *names[N_PRESETS];
    char list[512] = "";
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *c = presets[i].config;
            return 0;
        }
        names[i] = presets[i].name;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = zt_nearest(name, names, N_PRESETS);
    if (near)
        return zt_fail(err, ZT_ENOTFOUND, "no preset \"%s\" (did you mean \"%s\"?)", name, near);
    return zt_fail(err, ZT_ENOTFOUND, "no preset \"%s\"; there are: %s", name, list);
}

/* ---------------------------------------------------------------------------------- checks */

/* Bounds that keep every product below in int64 with room to spare. */
static int check_range(const char *key, int64_t v, int64_t max, struct zt_error *err) {
    if (v < 1 || v > max)
        return zt_fail(err, ZT_EINVAL, "model.%s: %lld is not in 1..%lld", key, (long long)v,
                       (long long)max);
    return 0;
}

/* Rotary positions turn the halves of a head against each other. */
static int check_rope(const struct zt_model_config *c, struct zt_error *err) {
    if (c->head_dim % 2 != 0)
        return zt_fail(err, ZT_EINVAL,
                       "model.head_dim: %lld is odd, but rotary positions turn pairs; give an even number",
                       (long long)c->head_dim);
    if (!(isfinite(c->rope_theta) && c->rope_theta > 0))
        return zt_fail(err, ZT_EINVAL, "model.rope_theta: %g is not above 0", c->rope_theta);
    if (c->rope_scaling.type == ZT_ROPE_LLAMA3 &&
        !(c->rope_scaling.low_freq_factor < c->rope_scaling.high_freq_factor))
        return zt_fail(err, ZT_EINVAL,
                       "model.rope_scaling.high_freq_factor: %g is not above low_freq_factor %g",
                       c->rope_scaling.high_freq_factor, c->rope_scaling.low_freq_factor);
    return 0;
}

static int check_shape(const struct zt_model_config *c, struct zt_error *err) {
    if (c->heads % c->kv_heads != 0)
        return zt_fail(err, ZT_EINVAL, "model.kv_heads: %lld does not divide heads %lld",
                       (long long)c->kv_heads, (long long)c->heads);
    if (c->family == ZT_LLAMA)
        return check_rope(c, err);
    if (c->kv_heads != c->heads)
        return zt_fail(err, ZT_EINVAL,
                       "model.kv_heads: gpt2 has one key/value head per head (%lld), not %lld",
                       (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim * c->heads != c->dim)
        return zt_fail(err, ZT_EINVAL,
                       "model.heads: %lld heads x head_dim %lld = %lld, but gpt2 needs dim %lld",
                       (long long)c->heads, (long long)c->head_dim,
                       (long long)(c->heads * c->head_dim), (long long)c->dim);
    return 0;
}

int zt_model_config_check(const struct zt_model_config *c, struct zt_error *err) {
    const struct { const char *key; int64_t value, max; } row[] = {
        {"layers", c->layers, 1024},       {"heads", c->heads, 1 << 14},
        {"kv_heads", c->kv_heads, 1 << 14}, {"head_dim", c->head_dim, 1 << 14},
        {"dim", c->dim, 1 << 20},          {"ffn_dim", c->ffn_dim, 1 << 22},
        {"vocab_size", c->vocab_size, 1 << 24}, {"seq_len_max", c->seq_len_max, 1 << 24},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0] && rc == 0; i++)
        rc = check_range(row[i].key, row[i].value, row[i].max, err);
    if (rc == 0 && !(isfinite(c->norm_eps) && c->norm_eps > 0))
        rc = zt_fail(err, ZT_EINVAL, "model.norm_eps: %g is not above 0", c->norm_eps);
    if (rc == 0 && c->norm_eps < (double)FLT_MIN)
        rc = zt_fail(err, ZT_EINVAL,
                     "model.norm_eps: %g is 0 in fp32, so that a row of zeros would give NaN; give 1.2e-38 or more",
                     c->norm_eps);
    if (rc == 0 && !(c->dropout >= 0 && c->dropout < 1))
        rc = zt_fail(err, ZT_EINVAL, "model.dropout: %g is not in [0, 1)", c->dropout);
    return rc ? rc : check_shape(c, err);
}
