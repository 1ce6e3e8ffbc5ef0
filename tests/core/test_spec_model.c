/* SPDX-License-Identifier: Apache-2.0 */
/* What run.yaml says of the model and of tensor parallelism: each refusal with its place, its words and the
 * values that would do; presets with their rotary scaling. Other lines may stand beside the one that is
 * looked for. */
#include "spec_helper.h"

#define LLAMA                                                                                      \
    "version: 1\n"                                                                                 \
    "name: good\n"                                                                                 \
    "model: {preset: llama-nano}\n"                                                                \
    "dataset: {path: /data/text}\n"                                                                \
    "training: {steps: 200, seq_len: 128, local_batch_size: 8}\n"

/* message is one whole line of the refusal. */
static void expect_line(const char *text, const char *const *set, const char *message) {
    const size_t n = strlen(message);
    cr_assert_eq(parse_with(text, set), ZT_EINVAL, "accepted: %s", text);
    for (const char *line = err.msg; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, message, n) == 0 && (line[n] == '\n' || line[n] == '\0'))
            return;
    }
    cr_assert(false, "\"%s\" is not in:\n%s", message, err.msg);
}

static void expect_text(const char *text, const char *message) { expect_line(text, NULL, message); }

static void expect_set(const char *set, const char *message) {
    const char *const list[] = {set, NULL};
    expect_line(GOOD, list, message);
}

static void expect_llama(const char *set, const char *message) {
    const char *const list[] = {set, NULL};
    expect_line(LLAMA, list, message);
}

/* gpt2-nano: 4 heads, ffn 512; llama-nano: 4 heads, 2 key/value heads, ffn 352. */
Test(spec_model, tensor_degree) {
    expect_text(LLAMA "parallelism:\n  tensor_parallel_degree: 4\n",
                "run.yaml:7:3: parallelism.tensor_parallel_degree: 4 does not divide the model's kv_heads 2 "
                "(allowed: 1 2)");
    expect_text(LLAMA "parallelism: {mode: fsdp, tensor_parallel_degree: 3}\n",
                "run.yaml:6:27: parallelism.tensor_parallel_degree: 3 does not divide the model's heads 4, "
                "kv_heads 2, ffn_dim 352 (allowed: 1 2)");
    expect_set("parallelism.tensor_parallel_degree=8",
               "--set parallelism.tensor_parallel_degree: 8 does not divide the model's heads 4, kv_heads 4 "
               "(allowed: 1 2 4)");
    const char *const odd_ffn[] = {"model.ffn_dim=510", "parallelism.tensor_parallel_degree=4", NULL};
    expect_line(GOOD, odd_ffn,
                "--set parallelism.tensor_parallel_degree: 4 does not divide the model's ffn_dim 510 (allowed: 1 2)");
}

Test(spec_model, sequence_parallel) {
    expect_text(LLAMA "parallelism: {sequence_parallel: true}\n",
                "run.yaml:6:15: parallelism.sequence_parallel: true needs a tensor_parallel_degree above 1, as it "
                "cuts what that leaves whole (the model allows 1 2); leave it out");
    expect_text("version: 1\nname: good\nmodel: {preset: gpt2-nano}\ndataset: {path: x}\ntraining:\n  steps: 3\n"
                "  seq_len: 126\n  local_batch_size: 1\n"
                "parallelism: {tensor_parallel_degree: 4, sequence_parallel: true}\n",
                "run.yaml:7:3: training.seq_len: 126 is not divisible by tensor_parallel_degree 4, between whose "
                "ranks sequence_parallel cuts it; give a multiple of 4");
    expect_text(LLAMA "parallelism: {mode: fsdp, reshard_after_forward: 2, tensor_parallel_degree: 2}\n",
                "run.yaml:6:27: parallelism.reshard_after_forward: 2 with tensor_parallel_degree 2; a number needs "
                "tensor_parallel_degree 1 (allowed: true, false, default)");
}

/* Without sequence parallelism a sequence may have any length. */
Test(spec_model, a_sequence_that_is_not_cut) {
    const char *const set[] = {"training.seq_len=127", "parallelism.tensor_parallel_degree=2", NULL};
    if (parse_with(GOOD, set))
        cr_assert_null(strstr(err.msg, "seq_len"), "%s", err.msg);
    zt_spec_free(&spec);
}

Test(spec_model, keys_of_the_other_family) {
    static const char *const keys[] = {"kv_heads=2", "qkv_bias=true", "qk_norm=true", "rope_theta=10000",
                                       "rope_scaling=llama3", "rope_scaling.factor=4"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char set[80], want[160];
        snprintf(set, sizeof set, "model.%s", keys[i]);
        snprintf(want, sizeof want, "--set model.%.*s: is read by the llama family only; this model is gpt2",
                 (int)strcspn(keys[i], "="), keys[i]);
        expect_set(set, want);
    }
    expect_text("version: 1\nname: good\nmodel: {preset: gpt2-nano, family: llama}\ndataset: {path: x}\n"
                "training: {steps: 3, seq_len: 8, local_batch_size: 1}\n",
                "run.yaml:3:28: model.family: llama beside preset gpt2-nano, which is of the other family; leave it "
                "out, or give the numbers without a preset");
}

Test(spec_model, shapes) {
    expect_llama("model.kv_heads=3", "--set model.kv_heads: 3 does not divide heads 4");
    expect_llama("model.head_dim=33", "--set model.head_dim: 33 is odd, but rotary positions turn pairs; give an even "
                                      "number");
}

Test(spec_model, rotary_scaling) {
    static const char *const others[] = {"linear", "dynamic", "yarn", "longrope"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char set[80], want[200];
        snprintf(set, sizeof set, "model.rope_scaling=%s", others[i]);
        snprintf(want, sizeof want,
                 "--set model.rope_scaling: \"%s\" is a scaling of the rotary positions that is not computed here; it is "
                 "one of: none | llama3", others[i]);
        expect_llama(set, want);
    }
    expect_text("version: 1\nname: good\nmodel:\n  preset: llama-nano\n  rope_scaling:\n    type: yarn\n"
                "dataset: {path: x}\ntraining: {steps: 3, seq_len: 8, local_batch_size: 1}\n",
                "run.yaml:6:11: model.rope_scaling.type: \"yarn\" is a scaling of the rotary positions that is not "
                "computed here; it is one of: none | llama3");
    expect_llama("model.rope_scaling=default",
                 "--set model.rope_scaling: \"default\" is not known (did you mean \"none\"?)");
    expect_llama("model.rope_scaling.factor=4",
                 "--set model.rope_scaling.factor: is read with type llama3 only; add it: rope_scaling: {type: llama3, "
                 "...}");
    expect_text("version: 1\nname: good\nmodel:\n  preset: llama-nano\n  rope_scaling: {type: llama3, low_freq_factor: 4}\n"
                "dataset: {path: x}\ntraining: {steps: 3, seq_len: 8, local_batch_size: 1}\n",
                "run.yaml:5:3: model.rope_scaling.high_freq_factor: 4 is not above low_freq_factor 4");
    expect_llama("model.rope_scaling={rope_type: llama3}",
                 "--set model.rope_scaling.rope_type: unknown key (did you mean \"model.rope_scaling.type\"?)");
}

Test(spec_model, recomputation) {
    expect_set("activation_checkpoint={mode: full, every: 5}",
               "--set activation_checkpoint.every: 5 blocks, but the model has 4; give at most that");
    expect_set("activation_checkpoint.every=2",
               "--set activation_checkpoint.every: has no effect with mode none; leave it out, or choose selective or "
               "full");
}

Test(spec_model, loss) {
    expect_set("loss.chunk_tokens=-1", "--set loss.chunk_tokens: -1 is out of range: must be 0 or more");
    static const char *const set[2][3] = {{"dataset.path=train.bin", "loss.average=sample", NULL},
                                          {"dataset.tokenizer=none", "loss.average=square", NULL}};
    for (int i = 0; i < 2; i++) {
        char want[200];
        snprintf(want, sizeof want,
                 "--set loss.average: %s weighs documents, and token shards do not mark them; give .jsonl examples as "
                 "the dataset, or average: token", i ? "square" : "sample");
        expect_line(GOOD, set[i], want);
    }
}

Test(spec_model, adapters) {
    expect_set("training.lora={rank: 8}",
               "run.yaml: training.lora.targets: \"*.q_proj\" matches no linear layer of the blocks; names look like "
               "transformer.h.3.mlp.c_proj");
    expect_text("version: 1\nname: good\nmodel: {preset: llama-nano}\ndataset: {path: x}\ntraining:\n  steps: 3\n"
                "  seq_len: 8\n  local_batch_size: 1\n  lora:\n    targets: [\"*.norm\"]\n",
                "run.yaml:10:5: training.lora.targets: \"*.norm\" matches no linear layer of the blocks; names look like "
                "model.layers.3.mlp.down_proj");
    expect_text("version: 1\nname: good\nmodel: {preset: llama-nano}\ndataset: {path: x}\ntraining:\n  steps: 3\n"
                "  seq_len: 8\n  local_batch_size: 1\n  trainable: [\"*.norm.*\"]\n  lora: {rank: 4}\n",
                "run.yaml:9:3: training.trainable: given together with training.lora, where adapters alone train; give "
                "one of them");
    expect_text("version: 1\nname: good\nmodel: {preset: llama-nano}\ndataset: {path: x}\ntraining:\n  steps: 3\n"
                "  seq_len: 8\n  local_batch_size: 1\n  lora: {rank: 129}\n",
                "run.yaml:9:10: training.lora.rank: 129 is above 128, the shorter side of the largest linear layer named, and "
                "so more than a whole matrix has; give less, or train the layers themselves (training.trainable)");
}
