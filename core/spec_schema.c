/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_schema.c: the one table of run.yaml's keys, what other programs call them, and the list
 * of what this version refuses. Constant data; any thread. The order of the rows is the order of the
 * normalised text and of the reference page. */
#include "core/spec_schema.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct zt_spec, field)
#define SIZE(field) sizeof(((struct zt_spec *)0)->field)
#define NAMES(...) ((const struct zt_key_name[]){__VA_ARGS__, {NULL, 0}})
#define NO_MAX 9.0e15

/* Kinds of rows; P path, F field, D default text, H help. */
#define SECTION(P, H) {.path = P, .kind = ZT_KEY_SECTION, .offset = ZT_KEY_NOWHERE, .help = H}
#define OPTIONAL(P, F, H) {.path = P, .kind = ZT_KEY_SECTION, .offset = AT(F), .help = H}
#define NUMBER(KIND, P, F, LO, HI, FLAGS, D, H)                                                    \
    {.path = P, .kind = KIND, .offset = AT(F), .size = SIZE(F), .min = LO, .max = HI,              \
     .flags = FLAGS, .fallback = D, .help = H}
#define INT(P, F, LO, HI, D, H) NUMBER(ZT_KEY_INT, P, F, LO, HI, 0, D, H)
#define INT64(P, F, LO, HI, D, H) NUMBER(ZT_KEY_INT64, P, F, LO, HI, 0, D, H)
#define FLOAT(P, F, LO, HI, FLAGS, D, H) NUMBER(ZT_KEY_FLOAT, P, F, LO, HI, FLAGS, D, H)
#define BOOL(P, F, D, H)                                                                           \
    {.path = P, .kind = ZT_KEY_BOOL, .offset = AT(F), .size = SIZE(F), .fallback = D, .help = H}
#define ENUM(P, F, N, D, H)                                                                        \
    {.path = P, .kind = ZT_KEY_ENUM, .offset = AT(F), .size = SIZE(F), .names = N, .fallback = D,  \
     .help = H}
#define STRING(P, F, FLAGS, D, H)                                                                  \
    {.path = P, .kind = ZT_KEY_STRING, .offset = AT(F), .size = SIZE(F), .flags = FLAGS,           \
     .fallback = D, .help = H}
#define CHOICE(P, F, N, D, H)                                                                      \
    {.path = P, .kind = ZT_KEY_STRING, .offset = AT(F), .size = SIZE(F), .names = N,               \
     .fallback = D, .help = H}
#define LIST(P, F, D, H)                                                                           \
    {.path = P, .kind = ZT_KEY_LIST, .offset = AT(F), .size = SIZE(F), .fallback = D, .help = H}
/* A model number: the preset's, or derived, or required when the model is given by its fields. */
#define MODEL(P, F, HI, FLAGS, HOW, H)                                                             \
    {.path = "model." P, .kind = ZT_KEY_INT64, .offset = AT(model.F), .size = SIZE(model.F),       \
     .min = 1, .max = HI, .flags = FLAGS, .computed = HOW, .help = H}
#define ROPE_SCALINGS NAMES({"none", ZT_ROPE_NONE}, {"llama3", ZT_ROPE_LLAMA3})
#define ROPE_NUMBER(P, F, LO, FLAGS, D, H)                                                         \
    {.path = "model.rope_scaling." P, .kind = ZT_KEY_FLOAT, .offset = AT(model.rope_scaling.F),    \
     .size = SIZE(model.rope_scaling.F), .min = LO, .max = 1e6, .flags = ZT_KEY_LLAMA | (FLAGS),   \
     .computed = "the preset's, else " D, .help = H}

static const struct zt_key keys[] = {
    {.path = "version", .kind = ZT_KEY_INT, .offset = AT(version), .size = SIZE(version), .min = 1,
     .max = 1, .flags = ZT_KEY_REQUIRED, .help = "Version of this schema."},
    STRING("name", name, ZT_KEY_REQUIRED, NULL,
           "Name of the run: `[a-z0-9][a-z0-9._-]{0,62}`. It may be used again once its run has "
           "ended."),
    {.path = "labels", .kind = ZT_KEY_LABELS, .offset = AT(labels), .size = SIZE(labels),
     .computed = "none", .help = "Free words for your own sorting, at most 16: `{team: pretrain}`."},
    INT("priority", priority, 0, 100, "50", "Higher runs are placed first."),
    NUMBER(ZT_KEY_INT, "workers", workers, 1, 65536, ZT_KEY_MAP_TOO | ZT_KEY_ZERO_UNSET, NULL,
           "Workers the run needs; or `{min: 4, max: 8}` for an elastic run. Default: the product of "
           "the degrees."),
    NUMBER(ZT_KEY_INT, "workers.min", workers_min, 1, 65536, ZT_KEY_ZERO_UNSET, NULL,
           "Fewest workers of an elastic run."),
    NUMBER(ZT_KEY_INT, "workers.max", workers_max, 1, 65536, ZT_KEY_ZERO_UNSET, NULL,
           "Most workers of an elastic run."),
    SECTION("requirements", "What a worker must have to be given a rank of this run."),
    CHOICE("requirements.device", requirements.device, NAMES({"cpu", 0}, {"cuda", 1}), "cpu",
           "Kind of device."),
    STRING("requirements.gpu_name", requirements.gpu_name, ZT_KEY_ZERO_UNSET, NULL,
           "Part of the GPU's name."),
    FLOAT("requirements.memory_gib", requirements.memory_gib, 0, 1e6, ZT_KEY_AT_LEAST, "0",
          "GiB of device memory, at least (`\">=80\"` means the same as `80`)."),
    LIST("requirements.exclude", requirements.exclude, "[]", "Workers or hosts not to use."),

    SECTION("model", "The model: a preset, or its numbers; a number beside a preset overrides it."),
    STRING("model.preset", preset, ZT_KEY_ZERO_UNSET, NULL,
           "A model by name: gpt2-nano, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, llama-nano, llama3-1b, "
           "llama3-8b, llama3-70b, llama3-405b, qwen2.5-0.5b, qwen2.5-7b."),
    {.path = "model.family", .kind = ZT_KEY_ENUM, .offset = AT(model.family),
     .size = SIZE(model.family), .names = NAMES({"gpt2", ZT_GPT2}, {"llama", ZT_LLAMA}),
     .computed = "the preset's", .help = "Architecture."},
    MODEL("layers", layers, 1024, 0, "the preset's", "Transformer blocks."),
    MODEL("heads", heads, 16384, 0, "the preset's", "Attention heads."),
    MODEL("kv_heads", kv_heads, 16384, ZT_KEY_LLAMA, "heads", "Key/value heads."),
    MODEL("head_dim", head_dim, 16384, 0, "dim / heads", "Width of a head."),
    MODEL("dim", dim, 1048576, 0, "the preset's", "Width of the residual stream."),
    MODEL("ffn_dim", ffn_dim, 4194304, 0, "gpt2: 4 x dim", "Width of the feed-forward layer."),
    MODEL("vocab_size", vocab_size, 16777216, 0, "the preset's", "Token ids are below this."),
    MODEL("seq_len_max", seq_len_max, 16777216, 0, "the preset's", "Longest sequence."),
    {.path = "model.rope_theta", .kind = ZT_KEY_FLOAT, .offset = AT(model.rope_theta),
     .size = SIZE(model.rope_theta), .max = 1e12, .flags = ZT_KEY_LLAMA | ZT_KEY_ABOVE_MIN,
     .computed = "the preset's, else 500000", .help = "Base of the rotary positions."},
    {.path = "model.rope_scaling", .kind = ZT_KEY_ENUM, .offset = AT(model.rope_scaling.type),
     .size = SIZE(model.rope_scaling.type), .flags = ZT_KEY_LLAMA | ZT_KEY_MAP_TOO,
     .names = ROPE_SCALINGS, .computed = "the preset's, else `none`",
     .help = "Stretching of the rotary positions; with numbers: `{type: llama3, factor: 32}`."},
    {.path = "model.rope_scaling.type", .kind = ZT_KEY_ENUM, .offset = AT(model.rope_scaling.type),
     .size = SIZE(model.rope_scaling.type), .flags = ZT_KEY_LLAMA, .names = ROPE_SCALINGS,
     .computed = "the preset's, else `none`", .help = "Kind of stretching."},
    ROPE_NUMBER("factor", factor, 1, 0, "8", "Longest wavelengths are divided by this."),
    ROPE_NUMBER("low_freq_factor", low_freq_factor, 0, ZT_KEY_ABOVE_MIN, "1",
                "Lower edge of the smooth part."),
    ROPE_NUMBER("high_freq_factor", high_freq_factor, 0, ZT_KEY_ABOVE_MIN, "4",
                "Upper edge of the smooth part."),
    {.path = "model.rope_scaling.original_max", .kind = ZT_KEY_INT64,
     .offset = AT(model.rope_scaling.original_max), .size = SIZE(model.rope_scaling.original_max),
     .min = 1, .max = 16777216, .flags = ZT_KEY_LLAMA, .computed = "the preset's, else 8192",
     .help = "Sequence length before stretching."},
    {.path = "model.norm_eps", .kind = ZT_KEY_FLOAT, .offset = AT(model.norm_eps),
     .size = SIZE(model.norm_eps), .max = 1, .flags = ZT_KEY_ABOVE_MIN,
     .computed = "the preset's, else 1e-05", .help = "Epsilon of the norms."},
    {.path = "model.tied_head", .kind = ZT_KEY_BOOL, .offset = AT(model.tied_head),
     .size = SIZE(model.tied_head), .computed = "the preset's, else gpt2: true, llama: false",
     .help = "The head is the token embedding."},
    {.path = "model.qkv_bias", .kind = ZT_KEY_BOOL, .offset = AT(model.qkv_bias),
     .size = SIZE(model.qkv_bias), .flags = ZT_KEY_LLAMA, .computed = "the preset's, else false",
     .help = "Biases on query, key and value (Qwen2)."},
    {.path = "model.qk_norm", .kind = ZT_KEY_BOOL, .offset = AT(model.qk_norm),
     .size = SIZE(model.qk_norm), .flags = ZT_KEY_LLAMA, .computed = "the preset's, else false",
     .help = "Norms on query and key (Qwen3)."},
    FLOAT("model.dropout", model.dropout, 0, 1, ZT_KEY_BELOW_MAX, "0",
          "Share of activations dropped in training."),
    STRING("model.init_from", init_from, 0, "fresh",
           "`fresh`, a Hugging Face folder, or `run:ID@N` (weights only)."),

    SECTION("dataset", "What to train on."),
    STRING("dataset.path", dataset.path, ZT_KEY_ZERO_UNSET, NULL,
           "File, folder or glob: text, `.bin` token shards (llm.c and nanoGPT headers), `.jsonl` examples "
           "(docs/data.md). A relative path is taken from the run file's folder."),
    {.path = "dataset.sources", .kind = ZT_KEY_SOURCES, .offset = AT(dataset.sources),
     .size = SIZE(dataset.sources), .computed = "none",
     .help = "Instead of path: a list of `{path: ..., weight: ...}`."},
    ENUM("dataset.tokenizer", dataset.tokenizer,
         NAMES({"bytes", ZT_TOKENIZER_BYTES}, {"none", ZT_TOKENIZER_NONE}), "bytes",
         "`bytes`: text, one token a byte (ids below 256); `none`: the files hold token ids."),
    BOOL("dataset.shuffle", dataset.shuffle, "true", "A new order every epoch."),
    BOOL("dataset.drop_last", dataset.drop_last, "true",
         "At the end of counted epochs, drop the samples that do not fill all ranks, instead of repeating some. "
         "With training.steps none is dropped or repeated: epochs follow one another without a seam."),
    INT64("dataset.seed", dataset.seed, 0, NO_MAX, "0", "Seed of the order."),
    BOOL("dataset.document_masks", dataset.document_masks, "false",
         "Attention does not cross the ends of documents: of the lines of `.jsonl` files, of documents in `.bin` "
         "shards whose header tells the tokenizer."),

    OPTIONAL("validation", validation.enabled, "Evaluation during training; absent: none."),
    STRING("validation.path", validation.path, ZT_KEY_ZERO_UNSET, NULL,
           "Like dataset.path. Give this or fraction."),
    FLOAT("validation.fraction", validation.fraction, 0, 1,
          ZT_KEY_ABOVE_MIN | ZT_KEY_BELOW_MAX | ZT_KEY_ZERO_UNSET, NULL,
          "Instead of path: this share at the end of each training file is kept for evaluation."),
    {.path = "validation.every_steps", .kind = ZT_KEY_INT64, .offset = AT(validation.every_steps),
     .size = SIZE(validation.every_steps), .min = 1, .max = NO_MAX,
     .computed = "500, or training.steps if that is less",
     .help = "Optimizer steps between evaluations."},
    INT64("validation.steps", validation.steps, 0, NO_MAX, "0",
          "Batches per evaluation; 0: every row exactly once."),

    SECTION("training", "How long, and how much per step."),
    NUMBER(ZT_KEY_INT64, "training.steps", training.steps, 1, 1e12, ZT_KEY_ZERO_UNSET, NULL,
           "Optimizer steps. Give this or epochs."),
    NUMBER(ZT_KEY_INT64, "training.epochs", training.epochs, 1, 1e6, ZT_KEY_ZERO_UNSET, NULL,
           "Passes over the data."),
    NUMBER(ZT_KEY_INT64, "training.seq_len", training.seq_len, 1, 16777216, ZT_KEY_REQUIRED, NULL,
           "Tokens in a sequence."),
    NUMBER(ZT_KEY_INT64, "training.local_batch_size", training.local_batch_size, 1, 1048576,
           ZT_KEY_REQUIRED, NULL, "Sequences per data-parallel rank and micro-step."),
    {.path = "training.global_batch_size", .kind = ZT_KEY_INT64,
     .offset = AT(training.global_batch_size), .size = SIZE(training.global_batch_size), .min = 1,
     .max = 2147483647, .flags = ZT_KEY_ZERO_UNSET,
     .computed = "local_batch_size x data-parallel ranks",
     .help = "Sequences per optimizer step. Accumulation = global / (local x data-parallel ranks) "
             "must be a whole number."},
    ENUM("training.accumulation_tail", training.accumulation_tail,
         NAMES({"short", ZT_TAIL_SHORT}, {"drop", ZT_TAIL_DROP}), "short",
         "With epochs: what becomes of an epoch's last, incomplete accumulation window."),
    INT64("training.seed", training.seed, 0, NO_MAX, "0", "Seed of the weights and of dropout."),
    LIST("training.trainable", training.trainable, "[\"*\"]",
         "Patterns over tensor names; others are frozen."),
    OPTIONAL("training.lora", training.lora.enabled, "Low-rank adapters; absent: none."),
    INT64("training.lora.rank", training.lora.rank, 1, 65536, "16", "Rank of an adapter."),
    FLOAT("training.lora.alpha", training.lora.alpha, 0, 1e6, ZT_KEY_ABOVE_MIN, "32",
          "An adapter's output is scaled by alpha / rank."),
    LIST("training.lora.targets", training.lora.targets, "[\"*.q_proj\", \"*.v_proj\"]",
         "Patterns over the names of linear layers (tensor names without `.weight`)."),

    SECTION("loss", "The loss."),
    ENUM("loss.average", loss.average,
         NAMES({"token", ZT_AVERAGE_TOKEN}, {"sample", ZT_AVERAGE_SAMPLE},
               {"square", ZT_AVERAGE_SQUARE}),
         "token",
         "How an example of n tokens weighs in the loss, and in evaluation: n, 1 or the root of n. `sample` and "
         "`square` need `.jsonl` examples."),
    INT64("loss.chunk_tokens", loss.chunk_tokens, 0, NO_MAX, "0",
          "Tokens whose logits exist at once; 0: all."),

    SECTION("optimizer", "The optimizer."),
    CHOICE("optimizer.name", optimizer.name, NAMES({"adamw", 0}), "adamw", "Kind of optimizer."),
    FLOAT("optimizer.lr", optimizer.lr, 0, 1e9, ZT_KEY_ABOVE_MIN, "3e-4", "Learning rate."),
    FLOAT("optimizer.beta1", optimizer.beta1, 0, 1, ZT_KEY_BELOW_MAX, "0.9",
          "Decay of the first moment."),
    FLOAT("optimizer.beta2", optimizer.beta2, 0, 1, ZT_KEY_BELOW_MAX, "0.95",
          "Decay of the second moment."),
    FLOAT("optimizer.eps", optimizer.eps, 0, 1, ZT_KEY_ABOVE_MIN, "1e-8",
          "Added to the root of the second moment."),
    FLOAT("optimizer.weight_decay", optimizer.weight_decay, 0, 1e6, 0, "0.1",
          "Decoupled weight decay."),
    BOOL("optimizer.decay_1d", optimizer.decay_1d, "false",
         "Weight decay also on tensors of one dimension."),
    FLOAT("optimizer.max_norm", optimizer.max_norm, 0, 1e9, 0, "1",
          "Gradients are clipped to this norm; 0: no clipping."),
    ENUM("optimizer.state_init", optimizer.state_init,
         NAMES({"eager", ZT_STATE_EAGER}, {"lazy", ZT_STATE_LAZY}), "eager",
         "When the moments are allocated: at the start, or at the first update."),

    SECTION("lr_scheduler", "Learning rate over time."),
    INT64("lr_scheduler.warmup_steps", lr_scheduler.warmup_steps, 0, 1e12, "0",
          "Steps of linear warm-up."),
    ENUM("lr_scheduler.decay_type", lr_scheduler.decay_type,
         NAMES({"constant", ZT_DECAY_CONSTANT}, {"linear", ZT_DECAY_LINEAR},
               {"cosine", ZT_DECAY_COSINE}, {"sqrt", ZT_DECAY_SQRT}),
         "constant", "Shape of the decay."),
    {.path = "lr_scheduler.decay_ratio", .kind = ZT_KEY_FLOAT,
     .offset = AT(lr_scheduler.decay_ratio), .size = SIZE(lr_scheduler.decay_ratio), .max = 1,
     .flags = ZT_KEY_ZERO_UNSET | ZT_KEY_ABOVE_MIN, .computed = "all steps after the warm-up",
     .help = "Share of all steps that decay, at the end."},
    FLOAT("lr_scheduler.min_lr_factor", lr_scheduler.min_lr_factor, 0, 1, 0, "0",
          "The decay ends at lr times this."),

    SECTION("precision", "Number formats."),
    CHOICE("precision.recipe", precision.recipe,
           NAMES({"fp32", 0}, {"fsdp_mixed", 0}, {"autocast", 0}, {"frozen16", 0}, {"mixed16", 0},
                 {"mixed16_g32", 0}, {"mixed16_nomaster", 0}, {"pure_bf16", 0}, {"fp16", 0}),
           "fp32", "What is stored in which format."),
    ENUM("precision.reduce_dtype", precision.reduce_dtype,
         NAMES({"fp32", ZT_F32}, {"bf16", ZT_BF16}, {"fp16", ZT_F16}), "fp32",
         "Format in which gradients are summed over ranks: fp32, or the 16-bit format of the recipe; to be given "
         "with a 16-bit recipe."),
    ENUM("precision.scaler", precision.scaler,
         NAMES({"torch", ZT_SCALER_TORCH}, {"deepspeed", ZT_SCALER_DEEPSPEED}), "torch",
         "Rules of the loss scaler, which recipe fp16 has."),
    ENUM("precision.nonfinite", precision.nonfinite,
         NAMES({"abort", ZT_NONFINITE_ABORT}, {"skip", ZT_NONFINITE_SKIP}), "abort",
         "On a loss or gradient that is not finite: end the run, or skip the step."),

    SECTION("parallelism", "How the model and its state are spread over the workers."),
    {.path = "parallelism.mode", .kind = ZT_KEY_ENUM, .offset = AT(parallelism.mode),
     .size = SIZE(parallelism.mode), .flags = ZT_KEY_MODE_WORDS,
     .names = NAMES({"ddp", ZT_DDP}, {"zero1", ZT_ZERO1}, {"zero2", ZT_ZERO2},
                    {"zero3", ZT_ZERO3}, {"fsdp", ZT_FSDP}),
     .computed = "ddp when the shard degree is 1 or not given, else fsdp",
     .help = "What every rank keeps whole and what it keeps a share of (`zctl explain modes`). Names of other "
             "programs (`FULL_SHARD`, `zero_stage: 3`) are read and told."},
    NUMBER(ZT_KEY_INT, "parallelism.data_parallel_replicate_degree", parallelism.replicate, -1,
           65536, ZT_KEY_NOT_ZERO, "-1",
           "Replicas; -1: fill the workers (with ddp; else 1)."),
    NUMBER(ZT_KEY_INT, "parallelism.data_parallel_shard_degree", parallelism.shard, -1, 65536,
           ZT_KEY_NOT_ZERO, "-1",
           "Ranks that share one copy; -1: fill the workers (ddp: always 1)."),
    INT("parallelism.tensor_parallel_degree", parallelism.tensor, 1, 65536, "1",
        "Ranks that share every layer."),
    BOOL("parallelism.sequence_parallel", parallelism.sequence_parallel, "false",
         "Cut the sequence between the tensor-parallel layers."),
    {.path = "parallelism.reshard_after_forward", .kind = ZT_KEY_ENUM_INT,
     .offset = AT(parallelism.reshard), .offset2 = AT(parallelism.reshard_int),
     .int_value = ZT_RESHARD_INT, .size = SIZE(parallelism.reshard), .min = 1, .max = 65536,
     .names = NAMES({"default", ZT_RESHARD_DEFAULT}, {"true", ZT_RESHARD_TRUE},
                    {"false", ZT_RESHARD_FALSE}),
     .fallback = "default",
     .help = "zero3, fsdp: drop gathered parameters after forward; `default`: zero3 all of them, fsdp not "
             "those of the root; a number: keep them cut in that many parts (1 is `false`, the shard degree "
             "`true`)."},
    {.path = "parallelism.wrap", .kind = ZT_KEY_ENUM_INT, .offset = AT(parallelism.wrap),
     .offset2 = AT(parallelism.wrap_n), .int_value = ZT_WRAP_N, .size = SIZE(parallelism.wrap),
     .min = 1, .max = 1024,
     .names = NAMES({"block", ZT_WRAP_BLOCK}, {"part", ZT_WRAP_PART}), .fallback = "block",
     .help = "Unit of gather and reduce: a block, that many blocks, or attention and MLP apart."},
    INT("parallelism.prefetch", parallelism.prefetch, 0, 4, "1",
        "zero3, fsdp: units gathered ahead of the one in use."),
    FLOAT("parallelism.bucket_mib", parallelism.bucket_mib, 0, 65536, 0, "0",
          "Size of a collective, in MiB of the reduce format; 0: one per unit. A tensor is never cut."),
    BOOL("parallelism.overlap", parallelism.overlap, "true",
         "Communicate while computing."),
    INT("parallelism.max_inflight_reduces", parallelism.max_inflight_reduces, 1, 2, "1",
        "Reductions under way at once; each more holds the gradients of a unit longer."),
    INT64("parallelism.persistence_threshold", parallelism.persistence_threshold, 0, NO_MAX, "0",
          "zero3, fsdp: tensors of at most this many elements stay whole."),
    BOOL("parallelism.no_sync", parallelism.no_sync, "false",
         "zero3, fsdp: reduce once per accumulation window instead of in every micro-step, for whole gradients "
         "in memory."),

    SECTION("activation_checkpoint", "Recompute activations instead of keeping them."),
    ENUM("activation_checkpoint.mode", activation_checkpoint.mode,
         NAMES({"none", ZT_RECOMPUTE_NONE}, {"selective", ZT_RECOMPUTE_SELECTIVE},
               {"full", ZT_RECOMPUTE_FULL}),
         "none", "What is recomputed."),
    INT64("activation_checkpoint.every", activation_checkpoint.every, 1, 1024, "1",
          "Every so many blocks."),

    OPTIONAL("checkpoint", checkpoint.enabled, "Saving; absent: no checkpoints."),
    STRING("checkpoint.folder", checkpoint.folder, ZT_KEY_ZERO_UNSET, NULL,
           "Folder of the checkpoints; default: the run's name."),
    INT64("checkpoint.interval", checkpoint.interval, 1, 1e12, "500", "Steps between saves."),
    INT64("checkpoint.keep_latest_k", checkpoint.keep_latest_k, 0, 1e6, "3",
          "Newest checkpoints that are kept, at least 2; 0: all."),
    INT64("checkpoint.keep_every", checkpoint.keep_every, 0, 1e12, "0",
          "Also keep each multiple of so many steps; 0: none."),
    INT64("checkpoint.memory_copies", checkpoint.memory_copies, 0, 2, "1",
          "Copies of the newest save in the hosts' memory, to go on from when a trainer ends. 0: none; 1: each "
          "rank's part on its host; 2: and on another host."),
    STRING("checkpoint.load", checkpoint.load, 0, "auto",
           "What to begin from: `auto` (the newest of this run, else a fresh start); `never` (nothing of another run); `step:N`; "
           "`run:ID` or `run:ID@N` (another run's); `weights_only` (parameters only: not a resume)."),
    BOOL("checkpoint.on_preempt", checkpoint.on_preempt, "true", "Save when asked to stop."),

    SECTION("memory", "The caching allocator of each rank."),
    FLOAT("memory.limit_gib", memory.limit_gib, 0, 1e6, 0, "0",
          "Capacity in GiB; 0: what the worker offers."),
    BOOL("memory.expandable_segments", memory.expandable_segments, "false",
         "Segments that grow in place."),
    FLOAT("memory.max_split_size_mib", memory.max_split_size_mib, 0, 1e9, 0, "0",
          "Bigger blocks are not split, above 20; 0: no limit."),
    FLOAT("memory.gc_threshold", memory.gc_threshold, 0, 1, ZT_KEY_BELOW_MAX, "0",
          "Free unused segments above this share of the capacity; 0: only when needed."),

    SECTION("comm", "Collectives."),
    FLOAT("comm.init_timeout_seconds", comm.init_timeout_seconds, 0, 1e6, ZT_KEY_ABOVE_MIN, "120",
          "Longest wait for all ranks to meet."),
    FLOAT("comm.train_timeout_seconds", comm.train_timeout_seconds, 0, 1e6, ZT_KEY_ABOVE_MIN,
          "100", "Longest wait inside a collective; more than timeouts.progress."),
    FLOAT("comm.measure_seconds", comm.measure_seconds, 0, 300, 0, "0",
          "Before step 1, measure collectives between the ranks of a host and over all hosts for about so "
          "long, and report the times as events; 0: no."),
    INT64("comm.trace_buf_size", comm.trace_buf_size, 16, 1048576, "4096",
          "Collectives each rank remembers."),

    SECTION("restart", "What happens after a fault."),
    INT("restart.max_restarts", restart.max_restarts, 0, 1000000, "3",
        "Restarts after faults of the program itself."),
    SECTION("restart.backoff_seconds", "Pause before a restart; doubles each time."),
    FLOAT("restart.backoff_seconds.initial", restart.backoff_initial, 0, 86400, 0, "1",
          "First pause."),
    FLOAT("restart.backoff_seconds.max", restart.backoff_max, 0, 86400, 0, "60", "Longest pause."),
    INT("restart.no_progress_limit", restart.no_progress_limit, 0, 1000000, "3",
        "Restarts in a row without a new checkpoint after which the run ends; 0: no limit."),

    SECTION("timeouts", "Seconds after which something counts as failed."),
    FLOAT("timeouts.start", timeouts.start, 0, 1e6, ZT_KEY_ABOVE_MIN, "300",
          "From the start of a rank until it is ready."),
    FLOAT("timeouts.first_step", timeouts.first_step, 0, 1e6, ZT_KEY_ABOVE_MIN, "600",
          "For the first step."),
    {.path = "timeouts.progress", .kind = ZT_KEY_FLOAT, .offset = AT(timeouts.progress),
     .size = SIZE(timeouts.progress), .max = 1e6, .flags = ZT_KEY_ABOVE_MIN,
     .names = NAMES({"auto", 0}), .fallback = "auto",
     .help = "Without progress; `auto`: ten steps, at least 10 s."},
    FLOAT("timeouts.term_grace", timeouts.term_grace, 0, 86400, 0, "15",
          "How long, with 30 s more, a worker has to get rid of a trainer before it is set aside "
          "(`QUARANTINED`). The trainer itself is killed at once."),
    FLOAT("timeouts.time_limit", timeouts.time_limit, 0, 1e9, 0, "0",
          "For the whole run; 0: none."),
    FLOAT("timeouts.queue", timeouts.queue, 0, 1e9, 0, "0", "For waiting in the queue; 0: none."),

    SECTION("metrics", "What is reported and kept."),
    INT64("metrics.log_freq", metrics.log_freq, 1, 1e12, "10", "Steps between lines of the log."),
    INT64("metrics.warmup_steps", metrics.warmup_steps, 0, 1e12, "5",
          "Steps left out of the steady figures."),
    INT64("metrics.per_rank_keep", metrics.per_rank_keep, 0, 1e9, "1000",
          "Newest steps whose rows per rank are kept."),
    INT64("metrics.parameter_hash_every", metrics.parameter_hash_every, 0, 1e12, "0",
          "Steps between parameter hashes; 0: only after the last step."),
};
#define N_KEYS ((int)(sizeof keys / sizeof keys[0]))
_Static_assert(sizeof keys / sizeof keys[0] <= ZT_SPEC_MAX_KEYS, "raise ZT_SPEC_MAX_KEYS");

/* Delete a line here when its feature arrives. */
static const struct zt_not_yet not_yet[] = {
    {"requirements.device", "cpu"},
    {"requirements.gpu_name", ""},
    {"requirements.exclude", "[]"},
    {"dataset.sources", "[]"},
    {"memory.expandable_segments", "false"},
    {"comm.trace_buf_size", "4096"},
};

/* Words of other programs, for "did you mean". */
static const struct { const char *word, *path; } aliases[] = {
    {"learning_rate", "optimizer.lr"},
    {"wd", "optimizer.weight_decay"},
    {"betas", "optimizer.beta1"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"epsilon", "optimizer.eps"},
    {"clip", "optimizer.max_norm"},
    {"clip_norm", "optimizer.max_norm"},
    {"grad_clip", "optimizer.max_norm"},
    {"gradient_clipping", "optimizer.max_norm"},
    {"max_grad_norm", "optimizer.max_norm"},
    {"warmup", "lr_scheduler.warmup_steps"},
    {"min_lr", "lr_scheduler.min_lr_factor"},
    {"batch_size", "training.local_batch_size"},
    {"micro_batch", "training.local_batch_size"},
    {"micro_batch_size", "training.local_batch_size"},
    {"per_device_train_batch_size", "training.local_batch_size"},
    {"train_micro_batch_size_per_gpu", "training.local_batch_size"},
    {"global_batch", "training.global_batch_size"},
    {"train_batch_size", "training.global_batch_size"},
    {"accumulation", "training.global_batch_size"},
    {"grad_accum", "training.global_batch_size"},
    {"gradient_accumulation_steps", "training.global_batch_size"},
    {"max_steps", "training.steps"},
    {"num_steps", "training.steps"},
    {"iterations", "training.steps"},
    {"num_epochs", "training.epochs"},
    {"block_size", "training.seq_len"},
    {"context_length", "training.seq_len"},
    {"sequence_length", "training.seq_len"},
    {"n_layer", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_embd", "model.dim"},
    {"d_model", "model.dim"},
    {"hidden_size", "model.dim"},
    {"intermediate_size", "model.ffn_dim"},
    {"n_positions", "model.seq_len_max"},
    {"max_position_embeddings", "model.seq_len_max"},
    {"tie_word_embeddings", "model.tied_head"},
    {"rope_type", "model.rope_scaling.type"},
    {"original_max_position_embeddings", "model.rope_scaling.original_max"},
    {"rms_norm_eps", "model.norm_eps"},
    {"data", "dataset.path"},
    {"data_path", "dataset.path"},
    {"dtype", "precision.recipe"},
    {"zero_stage", "parallelism.mode"},
    {"stage", "parallelism.mode"},
    {"sharding_strategy", "parallelism.mode"},
    {"replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"shard_degree", "parallelism.data_parallel_shard_degree"},
    {"tensor_parallel_size", "parallelism.tensor_parallel_degree"},
    {"tp_degree", "parallelism.tensor_parallel_degree"},
    {"autotp_size", "parallelism.tensor_parallel_degree"},
    {"tensor_model_parallel_size", "parallelism.tensor_parallel_degree"},
    {"world_size", "workers"},
    {"num_workers", "workers"},
    {"nproc_per_node", "workers"},
    {"gradient_checkpointing", "activation_checkpoint.mode"},
    {"activation_checkpointing", "activation_checkpoint.mode"},
    {"save_interval", "checkpoint.interval"},
    {"log_interval", "metrics.log_freq"},
    {"eval_interval", "validation.every_steps"},
};

static const struct { const char *path, *word, *ours; } value_aliases[] = {
    {"optimizer.name", "adam", "adamw"},
    {"lr_scheduler.decay_type", "none", "constant"},
    {"precision.recipe", "float32", "fp32"},
    {"precision.recipe", "bf16", "fsdp_mixed"},
    {"precision.recipe", "bfloat16", "fsdp_mixed"},
    {"activation_checkpoint.mode", "true", "full"},
    {"activation_checkpoint.mode", "false", "none"},
    {"model.rope_scaling", "default", "none"},
    {"model.rope_scaling.type", "default", "none"},
};

/* Scalings of the rotary positions as Hugging Face's configurations name them. */
static const char *const other_scalings[] = {"linear", "dynamic", "yarn", "longrope", "su"};

int zt_schema_count(void) { return N_KEYS; }

const struct zt_key *zt_schema_key(int i) { return i >= 0 && i < N_KEYS ? &keys[i] : NULL; }

int zt_schema_find(const char *path) {
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].path, path) == 0)
            return i;
    return -1;
}

int zt_schema_parent(int i) {
    const char *dot = strrchr(keys[i].path, '.');
    size_t n = dot ? (size_t)(dot - keys[i].path) : 0;
    for (int j = i - 1; n > 0 && j >= 0; j--)
        if (strncmp(keys[j].path, keys[i].path, n) == 0 && keys[j].path[n] == '\0')
            return j;
    return -1;
}

const struct zt_not_yet *zt_schema_not_yet(int i) {
    return i >= 0 && i < (int)(sizeof not_yet / sizeof not_yet[0]) ? &not_yet[i] : NULL;
}

const char *zt_schema_alias_word(int i) {
    return i >= 0 && i < (int)(sizeof aliases / sizeof aliases[0]) ? aliases[i].word : NULL;
}

const char *zt_schema_alias(const char *word) {
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(aliases[i].word, word) == 0)
            return aliases[i].path;
    return NULL;
}

const char *zt_schema_value_alias(const char *path, const char *word) {
    for (size_t i = 0; i < sizeof value_aliases / sizeof value_aliases[0]; i++)
        if (strcmp(value_aliases[i].path, path) == 0 && strcmp(value_aliases[i].word, word) == 0)
            return value_aliases[i].ours;
    return NULL;
}

const char *zt_schema_foreign_value(const char *path, const char *word) {
    if (strcmp(path, "model.rope_scaling") != 0 && strcmp(path, "model.rope_scaling.type") != 0)
        return NULL;
    for (size_t i = 0; i < sizeof other_scalings / sizeof other_scalings[0]; i++)
        if (strcmp(other_scalings[i], word) == 0)
            return "a scaling of the rotary positions that is not computed here";
    return NULL;
}

const char *zt_schema_range(const struct zt_key *k, char *buf, size_t n) {
    char lo[40], hi[40];
    bool whole = k->kind == ZT_KEY_INT || k->kind == ZT_KEY_INT64 || k->kind == ZT_KEY_ENUM_INT;
    bool open = k->max >= NO_MAX;
    snprintf(lo, sizeof lo, "%.15g", k->min);
    snprintf(hi, sizeof hi, "%.15g", k->max);
    if (!whole && k->kind != ZT_KEY_FLOAT)
        snprintf(buf, n, "%s", "");
    else if (k->flags & ZT_KEY_NOT_ZERO)
        snprintf(buf, n, "-1 or 1..%s", hi);
    else if (whole)
        open ? snprintf(buf, n, "%s or more", lo) : snprintf(buf, n, "%s..%s", lo, hi);
    else if (k->max >= 1e6)
        snprintf(buf, n, k->flags & ZT_KEY_ABOVE_MIN ? "above %s, at most %s" : "%s..%s", lo, hi);
    else
        snprintf(buf, n, "%s %s and %s %s", k->flags & ZT_KEY_ABOVE_MIN ? "above" : "at least", lo,
                 k->flags & ZT_KEY_BELOW_MAX ? "below" : "at most", hi);
    return buf;
}

const char *zt_schema_names(const struct zt_key *k, char *buf, size_t n) {
    size_t used = 0;
    buf[0] = '\0';
    for (const struct zt_key_name *m = k->names; m && m->name && used < n; m++)
        used += (size_t)snprintf(buf + used, n - used, "%s%s", used ? " | " : "", m->name);
    if (used < n && (k->kind == ZT_KEY_ENUM_INT || (k->kind == ZT_KEY_FLOAT && k->names)))
        snprintf(buf + used, n - used, k->kind == ZT_KEY_FLOAT ? " | number" : " | whole number");
    return buf;
}
