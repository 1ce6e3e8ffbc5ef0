/* SPDX-License-Identifier: Apache-2.0 */
/* Modes and number formats in run.yaml: names of other programs are read as ours and told; a key that
 * its mode or recipe does not read is refused with the next step, or told where --set chose the mode. */
#include "core/modes.h"
#include "spec_helper.h"

#define BASE                                                                                       \
    "version: 1\nname: good\nmodel: {preset: gpt2-nano}\ndataset: {path: /d}\n"                    \
    "training: {steps: 200, seq_len: 128, local_batch_size: 8}\n"

static void refused(const char *text, const char *message) {
    cr_assert_eq(parse(text), ZT_EINVAL, "accepted: %s", text);
    cr_assert_str_eq(err.msg, message);
}

static void refused_set(const char *set, const char *message) {
    cr_assert_eq(parse_set(set), ZT_EINVAL, "accepted: %s", set);
    cr_assert_str_eq(err.msg, message);
}

/* What each word is here, by hand; a DeepSpeed stage N is zeroN, FULL_SHARD and its kin are fsdp. */
Test(shard, words_of_other_programs) {
    static const struct { const char *word; enum zt_mode mode; } row[] = {
        {"full_shard", ZT_FSDP}, {"FULL_SHARD", ZT_FSDP}, {"ShardingStrategy.FULL_SHARD", ZT_FSDP},
        {"fully_shard", ZT_FSDP}, {"fsdp2", ZT_FSDP}, {"FSDP", ZT_FSDP}, {"no_shard", ZT_DDP},
        {"zero-3", ZT_ZERO3}, {"zero_3", ZT_ZERO3}, {"ZeRO-3", ZT_ZERO3}, {"ZeRO2", ZT_ZERO2},
        {"zero_1", ZT_ZERO1}, {"3", ZT_ZERO3}, {"2", ZT_ZERO2}, {"1", ZT_ZERO1}, {"0", ZT_DDP},
        {"stage3", ZT_ZERO3}, {"zero-stage-2", ZT_ZERO2}, {"DDP", ZT_DDP},
        {"distributed_optimizer", ZT_ZERO1}, {"optim_grads_params", ZT_ZERO3}, {"optim_grads", ZT_ZERO2}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char set[80], want[120];
        snprintf(set, sizeof set, "parallelism.mode=%s", row[i].word);
        cr_assert_eq(parse_set(set), 0, "%s: %s", set, err.msg);
        cr_assert_eq(spec.parallelism.mode, row[i].mode, "%s", row[i].word);
        cr_assert_eq(spec.notes.n, 1, "%s", row[i].word);
        snprintf(want, sizeof want, "--set parallelism.mode: %s is read as %s", row[i].word,
                 zt_mode_name(row[i].mode));
        cr_assert_eq(strncmp(spec.notes.item[0], want, strlen(want)), 0, "%s", spec.notes.item[0]);
    }
    zt_spec_free(&spec);
}

/* Every row of the table is found by its own word, and our own words are said without a note. */
Test(shard, table_of_words) {
    int ours = 0;
    for (int i = 0; zt_mode_word(i); i++) {
        cr_assert_eq(zt_mode_word_find(zt_mode_word(i)->word), zt_mode_word(i), "%s", zt_mode_word(i)->word);
        ours += zt_mode_word(i)->from == NULL;
    }
    cr_assert_geq(ours, ZT_MODE_COUNT);
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        char set[64];
        snprintf(set, sizeof set, "parallelism.mode=%s", zt_mode_name((enum zt_mode)m));
        cr_assert_eq(parse_set(set), 0, "%s", err.msg);
        cr_assert_eq((int)spec.parallelism.mode, m);
        cr_assert_eq(spec.notes.n, 0, "%s", spec.notes.item[0]);
    }
    static const char *const none[] = {"", "-", "zero", "zero4", "4", "fsd", "shard", "full", "hybrid"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        cr_assert_null(zt_mode_word_find(none[i]), "%s", none[i]);
    zt_spec_free(&spec);
}

Test(shard, notes_say_what_and_why) {
    cr_assert_eq(parse(BASE "parallelism:\n  mode: FULL_SHARD\n"), 0, "%s", err.msg);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:7:3: parallelism.mode: FULL_SHARD is read as fsdp; a word of PyTorch FSDP: "
                     "gathered parameters are freed after forward, those of the root kept");
    cr_assert_eq(parse(BASE "parallelism: {zero_stage: 3}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_ZERO3);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:6:15: parallelism.mode: zero_stage: 3 is read as zero3; a word of DeepSpeed");
    cr_assert_eq(parse(BASE "parallelism: {sharding_strategy: HYBRID_SHARD, "
                            "data_parallel_replicate_degree: 2}\n"),
                 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_FSDP);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:6:15: parallelism.mode: sharding_strategy: HYBRID_SHARD is read as fsdp with "
                     "data_parallel_replicate_degree above 1; a word of PyTorch FSDP: the state is cut within "
                     "a group of ranks, and each group holds a replica; PyTorch takes one group per node, "
                     "here the two degrees say it");
    zt_spec_free(&spec);
}

/* SHARD_GRAD_OP says more than a mode; what it says may be repeated, not contradicted. */
Test(shard, words_that_keep) {
    cr_assert_eq(parse(BASE "parallelism: {mode: SHARD_GRAD_OP}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_FSDP);
    cr_assert_eq(spec.parallelism.reshard, ZT_RESHARD_FALSE);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:6:15: parallelism.mode: SHARD_GRAD_OP is read as fsdp with "
                     "reshard_after_forward: false; a word of PyTorch FSDP: gathered parameters are kept from "
                     "forward to backward and freed after it; it is not ZeRO-2, which never cuts the "
                     "parameters and sends updated ones once per step: mode zero2");
    cr_assert_eq(parse(BASE "parallelism: {mode: SHARD_GRAD_OP, reshard_after_forward: false}\n"), 0, "%s",
                 err.msg);
    refused(BASE "parallelism: {mode: SHARD_GRAD_OP, reshard_after_forward: true}\n",
            "run.yaml:6:36: parallelism.reshard_after_forward: contradicts the mode: SHARD_GRAD_OP means "
            "false; leave it out, or write mode: fsdp");
    cr_assert_eq(parse(BASE "parallelism: {mode: _HYBRID_SHARD_ZERO2, data_parallel_replicate_degree: 2}\n"), 0,
                 "%s", err.msg);
    cr_assert_eq(spec.parallelism.reshard, ZT_RESHARD_FALSE);
    cr_assert_eq(spec.parallelism.replicate, 2);
    zt_spec_free(&spec);
}

/* A number that says nothing else is what it says: 1 keeps everything, S as much as the state. */
Test(shard, reshard_after_forward) {
    static const struct { const char *value; int workers; enum zt_reshard want; int number; } row[] = {
        {"default", 4, ZT_RESHARD_DEFAULT, 0}, {"true", 4, ZT_RESHARD_TRUE, 0},
        {"false", 4, ZT_RESHARD_FALSE, 0},     {"1", 4, ZT_RESHARD_FALSE, 1},
        {"4", 4, ZT_RESHARD_TRUE, 4},          {"2", 4, ZT_RESHARD_INT, 2},
        {"3", 6, ZT_RESHARD_INT, 3}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[400];
        snprintf(text, sizeof text, BASE "parallelism: {mode: zero3, reshard_after_forward: %s}\n", row[i].value);
        cr_assert_eq(parse(text), 0, "%s", err.msg);
        cr_assert_eq(zt_spec_resolve(&spec, row[i].workers, "run.yaml", &err), 0, "%s", err.msg);
        cr_assert_eq(spec.parallelism.reshard, row[i].want, "%s", row[i].value);
        if (row[i].want == ZT_RESHARD_INT)
            cr_assert_eq(spec.parallelism.reshard_int, row[i].number);
    }
    refused(BASE "workers: 8\nparallelism: {mode: zero3, reshard_after_forward: 3}\n",
            "run.yaml:7:28: parallelism.reshard_after_forward: 3 does not divide the shard degree 8 (allowed: 1 "
            "2 4 8)");
    refused(BASE "workers: 4\nparallelism: {mode: zero3, reshard_after_forward: 8}\n",
            "run.yaml:7:28: parallelism.reshard_after_forward: 8 does not divide the shard degree 4 (allowed: 1 "
            "2 4)");
    refused(BASE "parallelism: {mode: fsdp, reshard_after_forward: 0}\n",
            "run.yaml:6:50: parallelism.reshard_after_forward: 0 is out of range: must be 1..65536");
    refused(BASE "parallelism: {mode: fsdp, reshard_after_forward: 2, tensor_parallel_degree: 2}\n",
            "run.yaml:6:27: parallelism.reshard_after_forward: 2 with tensor_parallel_degree 2; a number needs "
            "tensor_parallel_degree 1 (allowed: true, false, default)");
    zt_spec_free(&spec);
}

/* Keys that these modes do read. */
Test(shard, keys_that_the_mode_reads) {
    cr_assert_eq(parse(BASE "parallelism: {mode: zero3, prefetch: 0, persistence_threshold: 100000, no_sync: true,\n"
                            "  max_inflight_reduces: 2, bucket_mib: 1, wrap: 2}\n"),
                 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.prefetch, 0);
    cr_assert_eq(spec.parallelism.persistence_threshold, 100000);
    cr_assert(spec.parallelism.no_sync);
    cr_assert_eq(spec.parallelism.max_inflight_reduces, 2);
    cr_assert_eq(spec.parallelism.bucket_mib, 1);
    cr_assert_eq(spec.parallelism.wrap_n, 2);
    cr_assert_eq(spec.notes.n, 0);
    cr_assert_eq(parse(BASE "parallelism: {mode: zero1, max_inflight_reduces: 2, bucket_mib: 25, wrap: part}\n"), 0,
                 "%s", err.msg);
    zt_spec_free(&spec);
}

/* The spec that is meant is the one that our words give: same normalised text, same hash. */
Test(shard, same_spec_as_our_words) {
    static const struct { const char *theirs, *ours; } row[] = {
        {"{stage: 2}", "{mode: zero2}"},
        {"{mode: SHARD_GRAD_OP}", "{mode: fsdp, reshard_after_forward: false}"},
        {"{mode: fsdp, reshard_after_forward: 1}", "{mode: fsdp, reshard_after_forward: false}"},
        {"{sharding_strategy: NO_SHARD}", "{mode: ddp}"},
        {"{mode: hsdp, data_parallel_replicate_degree: 2}", "{mode: fsdp, data_parallel_replicate_degree: 2}"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[600], hash[33];
        snprintf(text, sizeof text, BASE "parallelism: %s\n", row[i].ours);
        cr_assert_eq(parse(text), 0, "%s", err.msg);
        memcpy(hash, spec.normalised_hash, sizeof hash);
        snprintf(text, sizeof text, BASE "parallelism: %s\n", row[i].theirs);
        cr_assert_eq(parse(text), 0, "%s", err.msg);
        cr_assert_str_eq(spec.normalised_hash, hash, "%s", row[i].theirs);
        char *normal = zt_spec_normalise(&spec);
        cr_assert_eq(parse(normal), 0, "%s", err.msg);
        cr_assert_str_eq(spec.normalised_hash, hash, "%s", row[i].theirs);
        cr_assert_eq(spec.notes.n, 0);
        free(normal);
    }
    zt_spec_free(&spec);
}

Test(shard, words_that_contradict) {
    refused(BASE "parallelism: {mode: zero2, stage: 2}\n",
            "run.yaml:6:28: parallelism.stage: another name of parallelism.mode, which is given at line 6; "
            "keep one of them");
    refused(BASE "parallelism:\n  zero_stage: 1\n  sharding_strategy: NO_SHARD\n",
            "run.yaml:8:3: parallelism.sharding_strategy: another name of parallelism.zero_stage, which is "
            "given at line 7; keep one of them");
    refused(BASE "parallelism: {mode: HYBRID_SHARD}\n",
            "run.yaml:6:15: parallelism.mode: HYBRID_SHARD needs data_parallel_replicate_degree above 1, the "
            "number of groups that each hold a replica (elsewhere often the number of nodes); for one group "
            "write mode: fsdp");
    refused(BASE "parallelism: {mode: zero4}\n",
            "run.yaml:6:21: parallelism.mode: \"zero4\" is not known; it is one of: ddp | zero1 | zero2 | "
            "zero3 | fsdp (names elsewhere: zctl explain modes)");
    refused(BASE "parallelism: {zero_stage: 7}\n",
            "run.yaml:6:27: parallelism.mode: \"7\" is not known; it is one of: ddp | zero1 | zero2 | zero3 | "
            "fsdp (names elsewhere: zctl explain modes)");
    /* in other sections they are unknown keys, with the place where they belong */
    refused(BASE "zero_stage: 3\n",
            "run.yaml:6:1: zero_stage: unknown key (did you mean \"parallelism.mode: zero3\"?)");
}

/* --set takes the same words and overrides the file's, whichever name either has. */
Test(shard, words_in_set) {
    static const struct { const char *file, *set; enum zt_mode mode; } row[] = {
        {"parallelism: {stage: 1}\n", "parallelism.mode=zero3", ZT_ZERO3},
        {"parallelism: {mode: zero1}\n", "parallelism.zero_stage=2", ZT_ZERO2},
        {"parallelism: {zero_stage: 1}\n", "parallelism.sharding_strategy=FULL_SHARD", ZT_FSDP},
        {"", "parallelism={stage: 3}", ZT_ZERO3},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[400];
        const char *const set[] = {row[i].set, NULL};
        snprintf(text, sizeof text, BASE "%s", row[i].file);
        cr_assert_eq(parse_with(text, set), 0, "%s: %s", row[i].set, err.msg);
        cr_assert_eq(spec.parallelism.mode, row[i].mode, "%s", row[i].set);
    }
    zt_spec_free(&spec);
}

/* A mode that is left out: fsdp as soon as there is something to cut. */
Test(shard, mode_by_default) {
    cr_assert_eq(parse(BASE), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_DDP);
    cr_assert_eq(parse(BASE "parallelism: {data_parallel_shard_degree: 1}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_DDP);
    cr_assert_eq(parse(BASE "parallelism: {data_parallel_shard_degree: 2}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.mode, ZT_FSDP);
    cr_assert_eq(zt_spec_resolve(&spec, 4, "run.yaml", &err), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.replicate, 2);
    zt_spec_free(&spec);
}

Test(shard, degrees) {
    refused_set("parallelism.data_parallel_shard_degree=2",
                "--set parallelism.data_parallel_shard_degree: 2 with mode ddp, which keeps everything whole; "
                "give 1 (its replicas are data_parallel_replicate_degree) or another mode");
    refused_set("parallelism.sequence_parallel=true",
                "--set parallelism.sequence_parallel: true needs a tensor_parallel_degree above 1, as it cuts what that "
                "leaves whole (the model allows 1 2 4); leave it out");
}

/* T-MESH: 16 ranks, the tensor degree outside the batch: 2 sequences x 8 data ranks x 4 micro-steps. */
Test(shard, mesh_of_sixteen) {
    cr_assert_eq(parse("version: 1\nname: good\nmodel: {preset: gpt2-nano}\ndataset: {path: /d}\n"
                       "training: {steps: 200, seq_len: 128, local_batch_size: 2, global_batch_size: 64}\n"
                       "parallelism: {mode: zero3, data_parallel_shard_degree: 4, tensor_parallel_degree: 2, "
                       "sequence_parallel: true}\n"),
                 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&spec, 16, "run.yaml", &err), 0, "%s", err.msg);
    struct zt_mesh m = zt_spec_mesh(&spec);
    cr_assert(m.replicate == 2 && m.shard == 4 && m.tensor == 2);
    cr_assert_eq(zt_mesh_dp(m), 8);
    cr_assert_eq(zt_spec_accumulation(&spec), 4);
    zt_spec_free(&spec);
}

#define GATHERS(m)                                                                                 \
    m " keeps its parameters whole and gathers none; only zero3 and fsdp read it; leave it out"
Test(shard, keys_that_the_mode_does_not_read) {
    refused(BASE "parallelism: {mode: ddp, prefetch: 2}\n",
            "run.yaml:6:26: parallelism.prefetch: " GATHERS("ddp"));
    refused(BASE "parallelism: {mode: zero1, reshard_after_forward: false}\n",
            "run.yaml:6:28: parallelism.reshard_after_forward: " GATHERS("zero1"));
    refused(BASE "parallelism: {mode: zero2, persistence_threshold: 10}\n",
            "run.yaml:6:28: parallelism.persistence_threshold: " GATHERS("zero2"));
    refused(BASE "parallelism: {mode: ddp, no_sync: true}\n",
            "run.yaml:6:26: parallelism.no_sync: ddp reduces once per accumulation window as it is; leave it "
            "out");
    refused(BASE "parallelism: {mode: zero1, no_sync: true}\n",
            "run.yaml:6:28: parallelism.no_sync: zero1 reduces once per accumulation window as it is; leave "
            "it out");
    refused(BASE "parallelism: {mode: zero2, no_sync: true}\n",
            "run.yaml:6:28: parallelism.no_sync: zero2 cuts its gradients in every micro-step, so that there "
            "is no whole sum to wait with; zero1 reduces once per window; leave it out");
    refused(BASE "parallelism: {mode: zero2, overlap: false, max_inflight_reduces: 2}\n",
            "run.yaml:6:44: parallelism.max_inflight_reduces: with overlap: false each reduction is waited "
            "for before the next; leave it out");
    /* their defaults say nothing */
    cr_assert_eq(parse(BASE "parallelism: {mode: ddp, prefetch: 1, reshard_after_forward: default, "
                            "persistence_threshold: 0, no_sync: false}\n"),
                 0, "%s", err.msg);
    zt_spec_free(&spec);
}

/* One file for several modes: --set may choose another one, and is told what then counts for nothing. */
Test(shard, set_of_another_mode_leaves_keys_aside) {
    const char *const ddp[] = {"parallelism.mode=ddp", NULL};
    const char *text = BASE "parallelism: {mode: fsdp, prefetch: 2,\n  persistence_threshold: 64}\n";
    cr_assert_eq(parse_with(text, ddp), 0, "%s", err.msg);
    cr_assert_eq(spec.parallelism.prefetch, 1);
    cr_assert_eq(spec.parallelism.persistence_threshold, 0);
    cr_assert_eq(spec.notes.n, 2);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:6:27: parallelism.prefetch: left aside, as --set chose mode ddp: ddp keeps its "
                     "parameters whole and gathers none; only zero3 and fsdp read it");
    cr_assert_str_eq(spec.notes.item[1],
                     "run.yaml:7:3: parallelism.persistence_threshold: left aside, as --set chose mode ddp: "
                     "ddp keeps its parameters whole and gathers none; only zero3 and fsdp read it");
    /* but two --set that contradict each other are refused */
    const char *const both[] = {"parallelism.mode=ddp", "parallelism.prefetch=2", NULL};
    cr_assert_eq(parse_with(BASE, both), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "--set parallelism.prefetch: " GATHERS("ddp"));
}

Test(shard, units) {
    cr_assert_eq(parse_set("parallelism.wrap=4"), 0, "%s", err.msg);
    refused_set("parallelism.wrap=5",
                "--set parallelism.wrap: 5 blocks a unit, but the model has 4; give at most that");
    cr_assert_eq(parse_set("parallelism.wrap=part"), 0, "%s", err.msg);
    cr_assert_eq(parse_set("parallelism.bucket_mib=0.001"), 0, "%s", err.msg);
    refused_set("parallelism.bucket_mib=0.0009",
                "--set parallelism.bucket_mib: 0.0009 is less than 1 KiB (0.001); it is a size in MiB, and a "
                "tensor is never cut: give more, or 0 for one collective per unit");
    refused_set("parallelism.bucket_mib=5e8",
                "--set parallelism.bucket_mib: 5e8 is out of range: must be at least 0 and at most 65536");
    zt_spec_free(&spec);
}

/* gpt2-nano: 4 blocks of 198,272 elements are 3,172,352 bytes in fp32, 3.03 MiB. */
Test(shard, a_bucket_of_the_whole_model) {
    cr_assert_eq(parse(BASE "parallelism: {mode: zero3, bucket_mib: 4}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.notes.n, 1);
    cr_assert_str_eq(spec.notes.item[0],
                     "run.yaml:6:28: parallelism.bucket_mib: 4 MiB hold all blocks of the model (3.03 MiB): they are "
                     "gathered at once, and zero3 then holds them whole while it computes");
    cr_assert_eq(parse(BASE "parallelism: {mode: zero3, bucket_mib: 3}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.notes.n, 0);
    cr_assert_eq(parse(BASE "parallelism: {mode: zero2, bucket_mib: 4}\n"), 0, "%s", err.msg);
    cr_assert_eq(spec.notes.n, 0);
    zt_spec_free(&spec);
}

/* Patterns are held against the tensors' names where the file is read. */
Test(shard, trainable) {
    cr_assert_eq(parse_set("training.trainable=[\"*.ln_1.*\", \"*.h.3.*\"]"), 0, "%s", err.msg);
    refused("version: 1\nname: good\nmodel: {preset: gpt2-nano}\ndataset: {path: /d}\ntraining:\n"
            "  steps: 2\n  seq_len: 8\n  local_batch_size: 1\n  trainable: [\"*\", \"*.ln_9.*\"]\n",
            "run.yaml:9:3: training.trainable: \"*.ln_9.*\" matches no tensor; names look like "
            "transformer.h.3.mlp.c_proj.bias");
    refused_set("training.trainable=[]", "--set training.trainable: nothing is left to train");
}

/* What zctl convert leaves open is refused by name, with what it stands for, once each. */
#define FILL "FILL_IN stands for a value that is still to be given: "
Test(shard, places_to_fill_in) {
    refused("version: 1\nname: a\nmodel: {preset: FILL_IN}\ndataset: {path: FILL_IN}\ntraining:\n"
            "  steps: FILL_IN\n  seq_len: FILL_IN\n  local_batch_size: FILL_IN\n",
            "run.yaml:3:17: model.preset: " FILL
            "A model by name: gpt2-nano, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, llama-nano, llama3-1b, "
            "llama3-8b, llama3-70b, llama3-405b, qwen2.5-0.5b, qwen2.5-7b.\n"
            "run.yaml:4:17: dataset.path: " FILL
            "File, folder or glob: text, `.bin` token shards (llm.c and nanoGPT headers), `.jsonl` examples (docs/data.md). A relative path is "
            "taken from the run file's folder.\n"
            "run.yaml:6:10: training.steps: " FILL "Optimizer steps. Give this or epochs.\n"
            "run.yaml:7:12: training.seq_len: " FILL "Tokens in a sequence.\n"
            "run.yaml:8:21: training.local_batch_size: " FILL
            "Sequences per data-parallel rank and micro-step.");
    refused_set("training.global_batch_size=FILL_IN",
                "--set training.global_batch_size: " FILL
                "Sequences per optimizer step. Accumulation = global / (local x data-parallel ranks) must be a "
                "whole number.");
}

static const char *const recipe_names[] = {"fp32",    "fsdp_mixed",       "autocast",  "mixed16",
                                           "mixed16_g32", "mixed16_nomaster", "pure_bf16", "fp16"};

/* A recipe takes fp32 and its own 16-bit format, and says so; fsdp_mixed needs a mode that gathers. */
Test(shard, recipes_formats_and_modes) {
    static const char *const own[] = {NULL, "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "fp16"};
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"}, *const types[] = {"fp32", "bf16", "fp16"};
    for (int r = 0; r < 8; r++)
        for (int t = 0; t < 3; t++)
            for (int m = 0; m < 5; m++) {
                char text[600];
                snprintf(text, sizeof text, BASE "precision: {recipe: %s, reduce_dtype: %s}\nparallelism: {mode: %s}\n",
                         recipe_names[r], types[t], modes[m]);
                bool good = (t == 0 || (own[r] && strcmp(own[r], types[t]) == 0)) && (r != 1 || m >= 3);
                cr_assert_eq(parse(text), good ? 0 : ZT_EINVAL, "%s: %s", text, err.msg);
            }
    zt_spec_free(&spec);
}

Test(shard, precision) {
    refused(BASE "precision: {recipe: fsdp_mixed, reduce_dtype: fp32}\nparallelism: {mode: zero2}\n",
            "run.yaml:6:13: precision.recipe: fsdp_mixed keeps cut parameters in fp32 and gathers them in bf16, but "
            "zero2 gathers none; give mode fsdp or zero3, or recipe autocast, which computes in bf16 from whole "
            "parameters");
    refused(BASE "precision: {recipe: fp32, reduce_dtype: bf16}\n",
            "run.yaml:6:27: precision.reduce_dtype: bf16 with recipe fp32, which computes in fp32; give fp32");
    refused(BASE "precision: {recipe: mixed16, reduce_dtype: fp16}\n",
            "run.yaml:6:30: precision.reduce_dtype: fp16 with recipe mixed16, which computes in bf16; give fp32 or bf16");
    refused(BASE "precision: {recipe: fp16, reduce_dtype: bf16}\n",
            "run.yaml:6:27: precision.reduce_dtype: bf16 with recipe fp16, which computes in fp16; give fp32 or fp16");
    for (int r = 1; r < 8; r++) { /* said, not guessed */
        char text[400], want[300];
        snprintf(text, sizeof text, BASE "precision: {recipe: %s}\nparallelism: {mode: fsdp}\n", recipe_names[r]);
        snprintf(want, sizeof want,
                 "run.yaml:6:1: precision.reduce_dtype: missing; recipe %s computes in 16 bits, so say in which format "
                 "gradients are summed (fp32 is the safe one)",
                 recipe_names[r]);
        refused(text, want);
    }
    refused(BASE "precision: {recipe: bf16, reduce_dtype: fp32}\n",
            "run.yaml:6:21: precision.recipe: \"bf16\" is not known (did you mean \"fsdp_mixed\"?)");
}

/* The scaler is fp16's; what to do about numbers that are not finite is everybody's. */
Test(shard, scaler) {
    refused(BASE "precision: {scaler: deepspeed}\n",
            "run.yaml:6:13: precision.scaler: recipe fp32 has no loss scaler; only fp16 reads it; leave it out");
    refused(BASE "precision: {recipe: mixed16, reduce_dtype: fp32, scaler: deepspeed}\n",
            "run.yaml:6:50: precision.scaler: recipe mixed16 has no loss scaler; only fp16 reads it; leave it out");
    cr_assert_eq(parse(BASE "precision: {recipe: fp16, reduce_dtype: fp32, scaler: deepspeed, nonfinite: skip}\n"), 0,
                 "%s", err.msg);
    cr_assert_eq(spec.precision.scaler, ZT_SCALER_DEEPSPEED);
    cr_assert_eq(parse(BASE "precision: {nonfinite: skip}\n"), 0, "%s", err.msg);
    zt_spec_free(&spec);
}
