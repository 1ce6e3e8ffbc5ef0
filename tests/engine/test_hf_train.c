/* SPDX-License-Identifier: Apache-2.0 */
/* What was really trained, by any mode, exported and begun from again (forked ranks, zt_train): B61 from
 * ddp, zero3 and a tensor group; the parameters of the run to their hash; losses of a run that begins from
 * the exported folder to the bit. */
#include "engine/checkpoint/hf_export.h"
#include "engine/checkpoint/hf_import.h"
#include "tests/engine/hf_util.h"
#include "tests/engine/save_util.h"

TestSuite(hf_train, .init = data_setup, .fini = data_teardown, .timeout = 300);

/* 35,712 parameters with a tied head; 35,712 and some with q/k norms, an odd vocabulary, untied. */
#define G1 "family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 256, seq_len_max: 64"
#define QWEN3                                                                                      \
    "family: llama, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, dim: 32, ffn_dim: 48, vocab_size: 257, seq_len_max: 64, " \
    "qk_norm: true, tied_head: false, rope_scaling: {type: llama3, factor: 4, original_max: 32}"

struct shape { const char *mode; int replicate, shard, tensor; };

static const char *yaml_of(const char *model, const char *from, const struct shape *s, const char *recipe, const char *more) {
    return train_yaml("model: {%s, init_from: \"%s\"}\ndataset: {path: %s}\nmetrics: {parameter_hash_every: 1}\n"
                      "training: {steps: 3, seq_len: 16, local_batch_size: %d, global_batch_size: 8}\n"
                      "parallelism: {mode: %s, data_parallel_replicate_degree: %d, data_parallel_shard_degree: %d, "
                      "tensor_parallel_degree: %d}\nprecision: {recipe: %s, reduce_dtype: fp32}\n%s",
                      model, from, data_text("train.txt", 40000, 7), 8 / (s->replicate * s->shard), s->mode, s->replicate,
                      s->shard, s->tensor, recipe, more);
}

static struct train_job *run(const char *model, const char *from, const struct shape *s, const char *recipe, bool save) {
    const int world = s->replicate * s->shard * s->tensor;
    struct train_job *j = train_start(world, yaml_of(model, from, s, recipe, save ? "checkpoint: {interval: 100}\n" : ""));
    if (save) save_board(j);
    train_go(j, 0);
    for (int r = 0; r < world; r++) cr_assert_eq(j->rank[r].rc, 0, "%s, rank %d: %s", s->mode, r, j->rank[r].err.msg);
    return j;
}

/* Exported; returns the folder. */
static const char *out_of(const struct train_job *j, enum zt_dtype t, struct zt_hf_exported *done) {
    static char folder[8][300];
    static int turn;
    struct zt_error e = {0};
    struct zt_weights w;
    char *to = folder[turn++ % 8];
    snprintf(to, sizeof folder[0], "%s-hf", ((const struct save_board *)j->board)->folder);
    cr_assert_eq(zt_weights_open(NULL, ((const struct save_board *)j->board)->folder, NULL, &w, &e), 0, "%s", e.msg);
    struct zt_hf_export x = {.from = &w, .folder = to, .type = t};
    cr_assert_eq(zt_hf_export(&x, done, &e), 0, "%s", e.msg);
    zt_weights_close(&w);
    return to;
}

/* What was exported hashes to what the ranks said of their parameters at the end. */
static void check_hash(const char *folder, const struct train_job *j) {
    struct zt_error e = {0};
    struct zt_hf_imported back;
    char again[340], text[33];
    struct zt_hf *h = hf_open(folder);
    snprintf(again, sizeof again, "%s-again", folder);
    struct zt_hf_import x = {.from = h, .folder = again};
    cr_assert_eq(zt_hf_import(&x, &back, &e), 0, "%s", e.msg);
    zt_hash_text(back.parameter_hash, text);
    cr_expect_str_eq(text, j->rank[0].report[3].parameter_hash);
    zt_hf_close(h);
}

static bool same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = read_bytes_of(path_in(a, "model.safetensors"), &n), *y = read_bytes_of(path_in(b, "model.safetensors"), &m);
    bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

Test(hf_train, B61_exported_from_every_mode) {
    const struct shape shapes[] = {{"ddp", 2, 1, 1}, {"zero3", 1, 2, 1}, {"fsdp", 1, 2, 1}, {"ddp", 1, 1, 2}, {"fsdp", 1, 2, 2}};
    const char *folder[5];
    for (int i = 0; i < 5; i++) {
        struct zt_hf_exported done;
        struct raw_file raw;
        struct train_job *j = run(G1, "fresh", &shapes[i], "fp32", true);
        folder[i] = out_of(j, ZT_F32, &done);
        raw_open(path_in(folder[i], "model.safetensors"), &raw);
        cr_expect_eq((int64_t)raw.bytes - raw.at, 142848, "%s", shapes[i].mode);
        cr_expect_null(json_object_get(raw.head, "lm_head.weight"));
        raw_close(&raw);
        check_hash(folder[i], j);
    }
    cr_expect(same_file(folder[0], folder[1]) && same_file(folder[1], folder[2]), "the modes agree in bits, and so do their files");
}

/* Begun from the folder that was exported, or from the checkpoint itself: the same losses to the bit. */
static void check_begin(const char *model, const char *recipe, enum zt_dtype t) {
    const struct shape save = {"fsdp", 1, 2, 1}, begin[] = {{"ddp", 1, 1, 1}, {"fsdp", 1, 2, 2}};
    struct zt_hf_exported done;
    struct train_job *j = run(model, "fresh", &save, recipe, true);
    const char *hf = out_of(j, t, &done);
    for (int i = 0; i < 2; i++) {
        const struct train_job *a = run(model, hf, &begin[i], recipe, false);
        const struct train_job *b = run(model, ((const struct save_board *)j->board)->folder, &begin[i], recipe, false);
        const struct train_job *fresh = run(model, "fresh", &begin[i], recipe, false);
        cr_expect_gt(save_events(a, 0, "WEIGHTS_LOADED"), 0);
        for (int k = 1; k <= 3; k++) {
            cr_expect_eq(a->rank[0].report[k].loss, b->rank[0].report[k].loss, "%s, %s, step %d", recipe, begin[i].mode, k);
            cr_expect_str_eq(a->rank[0].report[k].parameter_hash, b->rank[0].report[k].parameter_hash);
            cr_expect_neq(a->rank[0].report[k].loss, fresh->rank[0].report[k].loss);
        }
    }
}

Test(hf_train, begun_from_what_was_exported) {
    check_begin(G1, "fp32", ZT_F32);
    check_begin(QWEN3, "fp32", ZT_F32);
    check_begin(QWEN3, "pure_bf16", ZT_BF16);
}

/* What a folder is not: named, before a step is trained. */
Test(hf_train, another_model_is_refused) {
    const struct shape one = {"ddp", 1, 1, 1};
    struct train_job *j = train_start(1, yaml_of(G1, golden_folder("gpt2"), &one, "fp32", ""));
    train_go(j, 1);
    cr_expect_neq(j->rank[0].rc, 0);
    cr_expect(strstr(j->rank[0].err.msg, "model.vocab_size: the run has 256") && strstr(j->rank[0].err.msg, "have 61"), "%s",
              j->rank[0].err.msg);
    cr_expect_eq(atomic_load(&j->rank[0].steps), 0);
}
