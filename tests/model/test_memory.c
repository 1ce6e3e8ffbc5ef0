/* SPDX-License-Identifier: Apache-2.0 */
/* Activation memory, exactly: what is saved per layer under each kind of checkpointing, for both
 * families (docs/memory.md, "Activations, exactly"); the peak of activations; the peak with the
 * head in pieces. The formulas stand here, written from the document. 256 rows: every buffer is a
 * whole number of times 512 bytes. */
#include <criterion/criterion.h>

#include "kernels/workspace.h"
#include "tests/model/model_util.h"

#define SEQUENCES 16
#define LENGTH 16
#define N (SEQUENCES * LENGTH)
#define LAYERS 3

struct shape {
    const char *name;
    struct zt_model_config config;
};

static const struct shape shapes[] = {
    {"gpt2",
     {.family = ZT_GPT2,
      .layers = LAYERS,
      .heads = 2,
      .kv_heads = 2,
      .head_dim = 8,
      .dim = 16,
      .ffn_dim = 64,
      .vocab_size = 40,
      .seq_len_max = LENGTH,
      .norm_eps = 1e-5,
      .tied_head = true,
      .qkv_bias = true}},
    {"llama",
     {.family = ZT_LLAMA,
      .layers = LAYERS,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 8,
      .dim = 16,
      .ffn_dim = 48,
      .vocab_size = 40,
      .seq_len_max = LENGTH,
      .rope_theta = 1e4,
      .norm_eps = 1e-5}},
    {"qwen2",
     {.family = ZT_LLAMA,
      .layers = LAYERS,
      .heads = 2,
      .kv_heads = 1,
      .head_dim = 8,
      .dim = 16,
      .ffn_dim = 48,
      .vocab_size = 40,
      .seq_len_max = LENGTH,
      .rope_theta = 1e4,
      .norm_eps = 1e-5,
      .tied_head = true,
      .qkv_bias = true}},
    {"qwen3",
     {.family = ZT_LLAMA,
      .layers = LAYERS,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .dim = 16,
      .ffn_dim = 48,
      .vocab_size = 40,
      .seq_len_max = LENGTH,
      .rope_theta = 1e4,
      .norm_eps = 1e-5,
      .qk_norm = true}},
};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* Bytes of one layer. e: bytes of an element of the compute type. */
static int64_t layer_bytes(const struct zt_model_config *c, enum zt_recompute mode, int64_t e) {
    int64_t C = c->dim, F = c->ffn_dim, H = c->heads, KV = c->kv_heads;
    int64_t A = H * c->head_dim, K = KV * c->head_dim;
    bool gpt2 = c->family == ZT_GPT2;
    if (mode == ZT_RECOMPUTE_FULL) return N * C * e;
    if (mode == ZT_RECOMPUTE_SELECTIVE)
        return gpt2 ? N * ((6 * C + F) * e + 4 * H)
                    : N * ((2 * C + 2 * A + 2 * K + 2 * F) * e + 4 * H);
    if (gpt2) return N * ((8 * C + 2 * F) * e + 4 * (4 + H));
    int64_t bytes = N * ((4 * C + 2 * A + 2 * K + 2 * F) * e + 4 * (2 + H));
    return c->qk_norm ? bytes + N * ((A + K) * e + 4 * (H + KV)) : bytes;
}

/* Final stream and norm with its statistics, and logits unless the head is in pieces. */
static int64_t around_bytes(const struct zt_model_config *c, int64_t e, bool pieces) {
    int64_t statistics = c->family == ZT_GPT2 ? 2 : 1;
    return N * (2 * c->dim + (pieces ? 0 : c->vocab_size)) * e + N * 4 * statistics;
}

/* There from the start. */
static int64_t rope_bytes(const struct zt_model_config *c) {
    return c->family == ZT_LLAMA ? LENGTH * c->head_dim * 4 : 0;
}

static struct rig_options options(int s, enum zt_recompute mode, int64_t every, enum zt_dtype t) {
    return (struct rig_options){.config = shapes[s].config,
                                .B = SEQUENCES,
                                .T = LENGTH,
                                .compute = t,
                                .grad = t,
                                .recompute = mode,
                                .recompute_every = every};
}

Test(memory, saved_bytes_of_a_layer) {
    for (int s = 0; s < SHAPES; s++)
        for (int mode = ZT_RECOMPUTE_NONE; mode <= ZT_RECOMPUTE_FULL; mode++)
            for (int k = 0; k < 4; k++) {
                const enum zt_dtype t = k / 2 ? ZT_BF16 : ZT_F32;
                const int64_t every = 1 + k % 2, e = (int64_t)zt_dtype_size(t);
                const struct zt_model_config *c = &shapes[s].config;
                struct rig_options o = options(s, (enum zt_recompute)mode, every, t);
                struct rig r;
                int64_t want = rope_bytes(c) + around_bytes(c, e, false);
                for (int l = 0; l < LAYERS; l++)
                    want +=
                        layer_bytes(c, l % every ? ZT_RECOMPUTE_NONE : (enum zt_recompute)mode, e);
                rig_open(&r, &o);
                rig_step(&r, true);
                cr_expect_eq(r.saved_bytes, want, "%s mode %d every %d %s: %lld, not %lld",
                             shapes[s].name, mode, (int)every, zt_dtype_name(t),
                             (long long)r.saved_bytes, (long long)want);
                cr_expect_eq(r.ledger.requested[ZT_TAG_ACTIVATIONS], rope_bytes(c));
                cr_expect_eq(r.ledger.requested[ZT_TAG_TEMPORARY], 0);
                rig_close(&r);
            }
}

/* Under full checkpointing: the inputs of all layers and one layer whole, or what is around the
 * blocks while the head is at work. */
Test(memory, peak_of_full_checkpointing_is_inputs_and_one_layer) {
    for (int s = 0; s < SHAPES; s++) {
        const struct zt_model_config *c = &shapes[s].config;
        struct rig_options o = options(s, ZT_RECOMPUTE_FULL, 1, ZT_F32);
        struct rig r;
        int64_t input = layer_bytes(c, ZT_RECOMPUTE_FULL, 4);
        int64_t inside = layer_bytes(c, ZT_RECOMPUTE_NONE, 4) - input;
        int64_t around = around_bytes(c, 4, false);
        int64_t want = rope_bytes(c) + LAYERS * input + (inside > around ? inside : around);
        rig_open(&r, &o);
        zt_ledger_reset_peaks(&r.ledger);
        rig_step(&r, true);
        cr_expect_eq(r.ledger.category_max[ZT_TAG_ACTIVATIONS], want, "%s: %lld, not %lld",
                     shapes[s].name, (long long)r.ledger.category_max[ZT_TAG_ACTIVATIONS],
                     (long long)want);
        rig_close(&r);
    }
}

/* A halves' wrap recomputes each alone, so both inputs are there. */
Test(memory, halves_in_units_of_their_own_keep_both_inputs) {
    for (int s = 0; s < SHAPES; s++) {
        const struct zt_model_config *c = &shapes[s].config;
        struct rig_options o = options(s, ZT_RECOMPUTE_FULL, 1, ZT_F32);
        struct rig r;
        o.wrap = ZT_WRAP_PART;
        rig_open(&r, &o);
        rig_step(&r, true);
        cr_expect_eq(r.saved_bytes, rope_bytes(c) + around_bytes(c, 4, false) +
                                        2 * LAYERS * layer_bytes(c, ZT_RECOMPUTE_FULL, 4));
        rig_close(&r);
    }
}

/* Both families, every kind: a wide vocabulary makes the head's backward the peak of the step. In
 * pieces of n rows: no logits N V, but n V and n losses beside the same gradient of the norm. */
Test(memory, peak_falls_with_the_head_in_pieces) {
    const int64_t V = 1000, chunks[] = {96, 128, 200};
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < 3; i++) {
            int64_t peak[2], n = chunks[i];
            for (int k = 0; k < 2; k++) {
                struct rig_options o = options(s, ZT_RECOMPUTE_FULL, 1, ZT_F32);
                struct rig r;
                o.config.vocab_size = V;
                o.chunk_tokens = k ? n : 0;
                rig_open(&r, &o);
                zt_ledger_reset_peaks(&r.ledger);
                rig_step(&r, true);
                peak[k] = r.ledger.peak_allocated;
                rig_close(&r);
            }
            const struct zt_model_config *c = &shapes[s].config;
            const int64_t packed = (int64_t)zt_gemm_workspace(ZT_GEMM_FWD, n, V, c->dim, ZT_F32);
            const int64_t packed_dx = (int64_t)zt_gemm_workspace(ZT_GEMM_DX, n, c->dim, V, ZT_F32);
            const int64_t piece = (int64_t)zt_round_up((size_t)(n * V) * 4, 512);
            const int64_t losses = (int64_t)zt_round_up((size_t)n * 4, 512);
            int64_t most = packed > packed_dx ? packed : packed_dx;
            if (losses > most) most = losses;
            int64_t want = N * V * 4 - piece + packed_dx - most;
            cr_expect_eq(peak[0] - peak[1], want, "%s, pieces of %d: %lld lower, not %lld",
                         shapes[s].name, (int)n, (long long)(peak[0] - peak[1]), (long long)want);
        }
}

/* What evaluation holds with the head in pieces: the stream, its norm, a piece. */
Test(memory, evaluation_in_pieces_has_no_whole_logits) {
    for (int s = 0; s < SHAPES; s++) {
        struct rig_options o = options(s, ZT_RECOMPUTE_NONE, 1, ZT_F32);
        struct rig r;
        double whole, pieces;
        o.config.vocab_size = 4000;
        rig_open(&r, &o);
        whole = rig_step(&r, false);
        rig_close(&r);
        o.chunk_tokens = 16;
        rig_open(&r, &o);
        zt_ledger_reset_peaks(&r.ledger);
        pieces = rig_step(&r, false);
        cr_expect_lt(r.ledger.category_max[ZT_TAG_TEMPORARY], (int64_t)N * 4000 * 4);
        cr_expect_leq(fabs(whole / pieces - 1), 1e-6);
        cr_expect_eq(r.ledger.category_max[ZT_TAG_ACTIVATIONS], rope_bytes(&o.config));
        rig_close(&r);
    }
}
