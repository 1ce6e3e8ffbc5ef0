/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_tensor_memory.c: activations of a tensor rank, to the byte, as the trainer
 * reports them (docs/memory.md, "Activations, exactly"): both families, degree 1 and 2, sequence
 * parallelism on and off, every kind of checkpointing. 512 rows: every buffer is a whole number of
 * times 512 bytes; the wide vocabulary makes the end of forward the instant of most activations. */
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(tensor_memory, .timeout = 300);

#define N 512 /* 8 sequences of 64 */
#define LENGTH 64
#define LAYERS 3
#define VOCABULARY 1001

struct family {
    const char *yaml;
    bool gpt2, qk_norm;
    int64_t C, F, H, KV, D;
};

static const struct family families[] = {
    {"family: gpt2, dim: 16, heads: 2, ffn_dim: 64", true, false, 16, 64, 2, 2, 8},
    {"family: llama, dim: 16, heads: 4, kv_heads: 2, head_dim: 8, ffn_dim: 48", false, false, 16,
     48, 4, 2, 8},
    {"family: llama, dim: 16, heads: 4, kv_heads: 2, head_dim: 8, ffn_dim: 48, qk_norm: true",
     false, true, 16, 48, 4, 2, 8},
};

/* Of a layer: t the degree, s what sequence parallelism divides by. fp32. */
static int64_t layer_bytes(const struct family *f, enum zt_recompute mode, int64_t t, int64_t s) {
    int64_t C = f->C, F = f->F, A = f->H * f->D, K = f->KV * f->D;
    int64_t lse = f->H / t;
    if (mode == ZT_RECOMPUTE_FULL) return 4 * N / s * C;
    if (mode == ZT_RECOMPUTE_SELECTIVE)
        return f->gpt2 ? 4 * N * (2 * C / s + (4 * C + F) / t + lse)
                       : 4 * N * (2 * C / s + (2 * A + 2 * K + 2 * F) / t + lse);
    if (f->gpt2) return 4 * N * ((4 * C + 4) / s + (4 * C + 2 * F) / t + lse);
    int64_t bytes = 4 * (N / s * (4 * C + 2) + N * ((2 * A + 2 * K + 2 * F) / t + lse));
    return f->qk_norm ? bytes + 4 * N * (A + K + f->H + f->KV) / t : bytes;
}

static int64_t most(const struct family *f, enum zt_recompute mode, int64_t t, int64_t s) {
    int64_t rows = (VOCABULARY + t - 1) / t;
    int64_t around = 4 * N / s * (2 * f->C + (f->gpt2 ? 2 : 1)) + 4 * N * rows;
    int64_t rope = f->gpt2 ? 0 : 4 * LENGTH * f->D;
    return LAYERS * layer_bytes(f, mode, t, s) + around + rope + 2 * 4 * N;
}

Test(tensor_memory, activations_of_a_rank) {
    static const char *const kinds[] = {"none", "selective", "full"};
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        for (int mode = 0; mode < 3; mode++)
            for (int how = 0; how < 3; how++) { /* 1; 2; 2 with sequence parallelism */
                const struct family *f = &families[k];
                int t = how ? 2 : 1;
                struct train_job *j = train_ok(
                    t, train_yaml("model: {%s, layers: %d, vocab_size: %d, seq_len_max: %d}\n"
                                  "dataset: {path: %s/quickstart_text.txt}\n"
                                  "training: {steps: 2, seq_len: %d, local_batch_size: %d}\n"
                                  "activation_checkpoint: {mode: %s}\n"
                                  "parallelism: {mode: ddp, tensor_parallel_degree: %d, "
                                  "sequence_parallel: %s}\n",
                                  f->yaml, LAYERS, VOCABULARY, LENGTH, ZT_GOLDEN_DIR, LENGTH,
                                  N / LENGTH, kinds[mode], t, how == 2 ? "true" : "false"));
                int64_t want = most(f, (enum zt_recompute)mode, t, how == 2 ? 2 : 1);
                for (int r = 0; r < t; r++) {
                    int64_t got = j->rank[r].report[2].category_max[ZT_TAG_ACTIVATIONS];
                    cr_expect_eq(got, want, "%s, %s, %d of %d, case %d: %lld, not %lld", f->yaml,
                                 kinds[mode], r, t, how, (long long)got, (long long)want);
                }
            }
}
