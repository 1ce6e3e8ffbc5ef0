/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_families_train.c: the Llama family, activation checkpointing and the head in
 * pieces, and adapters, through the whole trainer, as a run file asks for them: it learns; the
 * sharding mode and what is recomputed change no bit; every recipe trains it. */
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(families, .init = data_setup, .fini = data_teardown, .timeout = 300);

/* grouped queries, biases, norms of q and k, an untied head, a prime vocabulary */
#define LLAMA                                                                                      \
    "model: {family: llama, layers: 3, heads: 4, kv_heads: 2, dim: 24, head_dim: 8, ffn_dim: 40, " \
    "vocab_size: 257, seq_len_max: 32, qkv_bias: true, qk_norm: true"
#define GPT2                                                                                       \
    "model: {family: gpt2, layers: 3, heads: 2, dim: 20, ffn_dim: 50, vocab_size: 257, "           \
    "seq_len_max: 32"
#define STEPS 6

/* `more` ends the model's line and goes on: "}\n...". */
static struct train_job *run(int world, const char *model, const char *more,
                             const char *parallelism) {
    return train_ok(world, train_yaml("%s%s\ndataset: {path: %s/quickstart_text.txt}\n"
                                      "training: {steps: %d, seq_len: 16, local_batch_size: 2}\n"
                                      "optimizer: {lr: 3.0e-3, max_norm: 0.5}\n"
                                      "metrics: {parameter_hash_every: 1}\nparallelism: {%s}\n",
                                      model, more, ZT_GOLDEN_DIR, STEPS, parallelism));
}

/* 20 steps of batches of 4 over `world` ranks. */
static struct train_job *drop(int world, const char *model, const char *p, int local,
                              const char *parallelism) {
    return train_ok(world, train_yaml("%s, dropout: %s}\ndataset: {path: %s/quickstart_text.txt}\n"
                                      "training: {steps: 20, seq_len: 16, local_batch_size: %d}\n"
                                      "optimizer: {lr: 3.0e-3}\nparallelism: {%s}\n"
                                      "metrics: {parameter_hash_every: 1}\n",
                                      model, p, ZT_GOLDEN_DIR, local, parallelism));
}

static void same_run(const struct train_job *a, const struct train_job *b, const char *what) {
    cr_assert_eq(a->rank[0].result.steps, b->rank[0].result.steps, "%s", what);
    for (int s = 1; s <= a->rank[0].result.steps; s++) {
        const struct zt_step_report *x = &a->rank[0].report[s], *y = &b->rank[0].report[s];
        cr_assert_eq(x->loss, y->loss, "%s: step %d: %.17g, %.17g", what, s, x->loss, y->loss);
        cr_assert_eq(x->grad_norm, y->grad_norm, "%s: step %d", what, s);
        cr_assert_str_eq(x->parameter_hash, y->parameter_hash, "%s: step %d", what, s);
        cr_assert(x->eval_loss == y->eval_loss || (isnan(x->eval_loss) && isnan(y->eval_loss)),
                  "%s: step %d: evaluated %.17g, %.17g", what, s, x->eval_loss, y->eval_loss);
    }
}

Test(families, a_llama_learns_text) {
    struct train_job *j =
        train_ok(2, train_yaml("model: {preset: llama-nano}\n"
                               "dataset: {path: %s/quickstart_text.txt}\n"
                               "training: {steps: 30, seq_len: 64, local_batch_size: 2}\n"
                               "optimizer: {lr: 3.0e-3}\nparallelism: {mode: fsdp}\n",
                               ZT_GOLDEN_DIR));
    double first = j->rank[0].report[1].loss, last = j->rank[0].report[30].loss;
    cr_expect(fabs(first - log(256.0)) < 0.2, "begins as even guesses do: %g", first);
    cr_expect(last < 0.65 * first, "%g after %g", last, first);
}

Test(families, the_mode_changes_no_bit_of_a_llama) {
    static const char *const modes[] = {
        "mode: zero1, wrap: part",
        "mode: zero2",
        "mode: zero3, prefetch: 2",
        "mode: fsdp, reshard_after_forward: false, overlap: false",
        "mode: fsdp, persistence_threshold: 30, bucket_mib: 0.01",
    };
    const struct train_job *ddp = run(2, LLAMA, "}", "mode: ddp");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        same_run(run(2, LLAMA, "}", modes[i]), ddp, modes[i]);
    const struct train_job *tied = run(2, LLAMA, ", tied_head: true}", "mode: ddp");
    same_run(run(2, LLAMA, ", tied_head: true}", "mode: zero3"), tied, "tied");
    cr_assert_neq(tied->rank[0].report[1].grad_norm, ddp->rank[0].report[1].grad_norm);
}

Test(families, recomputing_changes_no_bit) {
    static const char *const models[] = {LLAMA, GPT2},
                             *const modes[] = {"mode: ddp, wrap: part", "mode: zero3"},
                             *const kinds[] = {"selective", "full, every: 2", "full"};
    for (int m = 0; m < 2; m++) {
        const struct train_job *plain = run(2, models[m], "}", "mode: ddp");
        for (int k = 0; k < 6; k++) {
            char more[96];
            snprintf(more, sizeof more, "}\nactivation_checkpoint: {mode: %s}", kinds[k / 2]);
            same_run(run(2, models[m], more, modes[k % 2]), plain, more);
        }
    }
}

/* Dropout is drawn by place, not by pass, micro-step or rank: recomputing, the mode and the number
 * of ranks of a batch change nothing, 20 steps long. */
Test(families, dropout_is_the_same_however_it_is_computed) {
    static const char *const models[] = {LLAMA, GPT2},
                             *const how[] = {
                                 "mode: ddp}\nactivation_checkpoint: {mode: full",
                                 "mode: ddp}\nactivation_checkpoint: {mode: selective",
                                 "mode: zero3",
                                 "mode: zero3}\nactivation_checkpoint: {mode: full",
                             };
    for (int m = 0; m < 2; m++) {
        const struct train_job *plain = drop(2, models[m], "0.1", 2, "mode: ddp");
        for (int k = 0; k < 4; k++) same_run(drop(2, models[m], "0.1", 2, how[k]), plain, how[k]);
        const struct train_job *alone = drop(1, models[m], "0.1", 4, "mode: ddp"),
                               *none = drop(2, models[m], "0.0", 2, "mode: ddp");
        cr_expect_float_eq(alone->rank[0].report[1].loss, plain->rank[0].report[1].loss,
                           1e-6 * plain->rank[0].report[1].loss, "a batch on one rank");
        cr_expect_neq(none->rank[0].report[2].loss, plain->rank[0].report[2].loss);
    }
}

Test(families, the_head_in_pieces_agrees) {
    static const char *const models[] = {LLAMA, GPT2};
    for (int m = 0; m < 2; m++) {
        const struct train_job *whole = run(2, models[m], "}", "mode: fsdp"),
                               *pieces =
                                   run(2, models[m], "}\nloss: {chunk_tokens: 12}", "mode: fsdp");
        const struct zt_step_report *x = &whole->rank[0].report[1], *y = &pieces->rank[0].report[1];
        cr_expect_float_eq(x->loss, y->loss, 1e-6 * x->loss);
        cr_expect_float_eq(x->grad_norm, y->grad_norm, 1e-6 * x->grad_norm);
        for (int s = 2; s <= STEPS; s++)
            cr_expect_float_eq(whole->rank[0].report[s].loss, pieces->rank[0].report[s].loss, 1e-4,
                               "step %d", s);
        cr_expect_lt(pieces->rank[0].report[2].peak_allocated_bytes,
                     whole->rank[0].report[2].peak_allocated_bytes);
    }
}

/* On two tensor ranks: recomputing changes no bit, dropout drops what one rank drops, and the loss
 * in pieces is the loss. */
Test(families, on_tensor_ranks_as_well) {
    static const char *const models[] = {LLAMA, GPT2};
    for (int k = 0; k < 4; k++) {
        const char *model = models[k / 2];
        char tensor[96], again[160], pieces[160];
        snprintf(tensor, sizeof tensor,
                 "mode: ddp, tensor_parallel_degree: 2, sequence_parallel: %s",
                 k % 2 ? "true" : "false");
        snprintf(again, sizeof again, "%s}\nactivation_checkpoint: {mode: full", tensor);
        snprintf(pieces, sizeof pieces, "%s}\nloss: {chunk_tokens: 12", tensor);
        const struct train_job *one = drop(1, model, "0.1", 4, "mode: ddp"),
                               *two = drop(2, model, "0.1", 4, tensor);
        const double loss = one->rank[0].report[1].loss;
        cr_expect_float_eq(two->rank[0].report[1].loss, loss, 1e-5 * loss, "%s: %.9g, not %.9g",
                           tensor, two->rank[0].report[1].loss, loss);
        same_run(drop(2, model, "0.1", 4, again), two, again);
        cr_expect_float_eq(drop(2, model, "0.1", 4, pieces)->rank[0].report[1].loss,
                           two->rank[0].report[1].loss, 1e-6 * loss, "%s", pieces);
    }
}

Test(families, every_recipe_trains_a_llama) {
    static const char *const recipes[] = {"autocast",         "mixed16",   "mixed16_g32",
                                          "mixed16_nomaster", "pure_bf16", "fp16"};
    const struct train_job *plain = run(2, LLAMA, "}", "mode: zero2");
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        char more[128];
        snprintf(more, sizeof more, "}\nprecision: {recipe: %s, reduce_dtype: fp32}", recipes[i]);
        const struct train_job *j = run(2, LLAMA, more, "mode: zero2");
        for (int s = 1; s <= STEPS; s++)
            cr_expect_float_eq(j->rank[0].report[s].loss, plain->rank[0].report[s].loss, 2e-2,
                               "%s step %d: %g, not %g", recipes[i], s, j->rank[0].report[s].loss,
                               plain->rank[0].report[s].loss);
    }
}

/* ---- adapters ---- */

/* Adapters: B starts at zero, so the first loss is that of the model without them; what trains and
 * has moments is rank x (in + out) of each c_attn, 4 x 8 x (128 + 384), in a group of its own per
 * block; modes agree in bits. */
static void train_adapters(const char *path, const char *precision, int64_t parameters) {
    const char *const mode[] = {"ddp", "zero1", "fsdp"};
    double first = 0, last[3] = {0};
    for (int i = 0; i < 4; i++) {
        struct train_job *j =
            train_ok(2, train_yaml("model: {preset: gpt2-nano}\ndataset: {path: %s}\n"
                                   "training: {steps: 5, seq_len: 32, local_batch_size: 2%s}\n"
                                   "parallelism: {mode: %s}\nprecision: %s\n",
                                   path,
                                   i ? ", lora: {rank: 8, targets: [\"*.c_attn\"]}"
                                     : ", trainable: [\"*.h.3.*\"]",
                                   mode[i ? i - 1 : 0], precision));
        const struct zt_step_report *r = j->rank[0].report;
        if (i == 0) {
            first = r[1].loss;
            continue;
        }
        cr_expect_eq(r[1].loss, first, "%s: %.17g, %.17g", mode[i - 1], r[1].loss, first);
        cr_expect_lt(r[5].loss, r[1].loss);
        cr_expect_eq(r[1].persistent_optimizer, 8 * 4 * 8 * (128 + 384) / (i == 1 ? 1 : 2));
        if (i == 1)
            cr_expect_eq(r[1].persistent_parameters, parameters, "%lld",
                         (long long)r[1].persistent_parameters);
        last[i - 1] = r[5].loss;
    }
    cr_expect(last[0] == last[1] && last[1] == last[2], "%.17g %.17g %.17g", last[0], last[1],
              last[2]);
}

/* Parameters of the root and of a block, 65,792 and 198,272, and 4,096 of a block's adapters: each
 * of the three kinds of buffer rounded up to 512 bytes. */
Test(families, adapters) {
    train_adapters(data_text("train.txt", 40000, 7), "{recipe: fp32}",
                   4 * 65792 + 4 * (4 * 198272 + 4 * 4096));
}

/* The base in bf16, adapters in fp32 without a master. */
Test(families, adapters_of_another_type_than_the_base) {
    train_adapters(data_text("train.txt", 40000, 7), "{recipe: frozen16, reduce_dtype: fp32}",
                   2 * 65792 + 4 * (775 * 512 + 4 * 4096));
}

/* Adapters on every linear layer (one of them in a norm's group of small tensors), dropout and an evaluation:
 * the mode, its options, recomputation, and how blocks become units change no bit. */
static struct train_job *adapt_on(int world, const char *model, const char *recipe,
                                  const char *how) {
    return train_ok(world, train_yaml("%s, dropout: 0.1}\ndataset: {path: %s}\n"
                                  "training: {steps: 4, seq_len: 16, local_batch_size: 2, "
                                  "global_batch_size: 16, lora: {rank: 3, alpha: 6, targets: [\"*\"]}}\n"
                                  "validation: {path: %s, every_steps: 2}\n"
                                  "optimizer: {lr: 3.0e-3, max_norm: 0.5, weight_decay: 0.3}\n"
                                  "precision: {recipe: %s, reduce_dtype: fp32}\n"
                                  "metrics: {parameter_hash_every: 1}\nparallelism: {%s}\n",
                                  model, data_text("train.txt", 40000, 7),
                                  data_text("valid.txt", 9 * 16 + 1, 11), recipe, how));
}
static struct train_job *adapt(const char *model, const char *recipe, const char *how) {
    return adapt_on(4, model, recipe, how);
}

Test(families, adapters_in_every_mode_have_the_same_bits) {
    static const char *const once[] = {
        "mode: zero1, wrap: part", "mode: zero1, wrap: 2, bucket_mib: 0.004",
        "mode: zero1}\nactivation_checkpoint: {mode: full",
        "mode: zero3, no_sync: true, prefetch: 2, persistence_threshold: 70",
        "mode: fsdp, no_sync: true, reshard_after_forward: 2",
        "mode: fsdp, no_sync: true, wrap: part}\nactivation_checkpoint: {mode: selective"};
    static const char *const every[] = {
        "mode: zero2, bucket_mib: 0.004, overlap: false",
        "mode: zero3, persistence_threshold: 70}\nactivation_checkpoint: {mode: full, every: 2",
        "mode: fsdp, reshard_after_forward: 2, wrap: part",
        "mode: fsdp, wrap: 3, bucket_mib: 1}\nactivation_checkpoint: {mode: full"};
    static const char *const models[] = {LLAMA, GPT2}, *const recipes[] = {"fp32", "frozen16"};
    for (int k = 0; k < 4; k++) {
        const char *model = models[k / 2], *recipe = recipes[k % 2];
        const struct train_job *ddp = adapt(model, recipe, "mode: ddp"), *zero2 = adapt(model, recipe, "mode: zero2");
        for (size_t i = 0; i < sizeof once / sizeof *once; i++) same_run(adapt(model, recipe, once[i]), ddp, once[i]);
        for (size_t i = 0; i < sizeof every / sizeof *every; i++)
            same_run(adapt(model, recipe, every[i]), zero2, every[i]);
        for (int s = 2; s <= 4; s += 2)
            cr_expect_float_eq(zero2->rank[0].report[s].eval_loss, ddp->rank[0].report[s].eval_loss, 1e-4);
        cr_expect_neq(ddp->rank[0].report[4].eval_loss, ddp->rank[0].report[2].eval_loss, "adapters are evaluated");
    }
}

/* And over two tensor ranks: recomputation changes no bit, and it is what one rank computes. */
Test(families, adapters_over_tensor_ranks) {
    static const char *const models[] = {LLAMA, GPT2};
    for (int k = 0; k < 4; k++) {
        const char *model = models[k / 2], *sequence = k % 2 ? "true" : "false";
        char tensor[160], full[240], selective[240];
        snprintf(tensor, sizeof tensor, "mode: fsdp, tensor_parallel_degree: 2, sequence_parallel: %s", sequence);
        snprintf(full, sizeof full, "%s, wrap: part}\nactivation_checkpoint: {mode: full", tensor);
        snprintf(selective, sizeof selective, "%s}\nactivation_checkpoint: {mode: selective", tensor);
        const struct train_job *two = adapt_on(2, model, "fp32", "mode: fsdp"), *four = adapt(model, "fp32", tensor);
        same_run(adapt(model, "fp32", full), four, full);
        same_run(adapt(model, "fp32", selective), four, selective);
        same_run(adapt(model, "frozen16", full), adapt(model, "frozen16", tensor), full);
        for (int s = 1; s <= 4; s++) {
            const struct zt_step_report *x = &four->rank[0].report[s], *y = &two->rank[0].report[s];
            cr_expect_float_eq(x->loss, y->loss, 1e-5 * y->loss, "%s: step %d: %.9g, not %.9g", tensor, s, x->loss, y->loss);
            cr_expect_float_eq(x->grad_norm, y->grad_norm, 1e-3 * y->grad_norm, "%s: step %d: %.9g, not %.9g", tensor, s,
                               x->grad_norm, y->grad_norm);
        }
    }
}
