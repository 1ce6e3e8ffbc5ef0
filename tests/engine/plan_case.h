/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/plan_case.h: a run as a value, for plan_exact.h: its run file, its data, its name in
 * messages. Files lie in the folder of data_util.h. One thread. */
#ifndef ZT_TESTS_ENGINE_PLAN_CASE_H
#define ZT_TESTS_ENGINE_PLAN_CASE_H
#include <inttypes.h>
#include <stdarg.h>

#include "core/spec.h"
#include "tests/engine/data_util.h"

#define PX_TEXT 1024
#define PX_FILE 100 /* samples in the training file */

enum px_size { PX_SMALL = 0, PX_WIDE, PX_VOCABULARY, PX_SIZES };
/* Blocks below 1 MiB only; layers above it; logits above 10 MiB. No width is a multiple of 16 S. */
static const struct px_model {
    const char *fields, *llama; /* llama: what is said of heads beside them */
    int seq, batch;
} px_models[PX_SIZES] = {
    {"layers: 3, dim: 20, ffn_dim: 50, vocab_size: 259, heads: 2", "kv_heads: 2, head_dim: 6", 16,
     2},
    {"layers: 3, dim: 164, ffn_dim: 600, vocab_size: 259, heads: 4", "kv_heads: 2, head_dim: 42",
     32, 2},
    {"layers: 2, dim: 18, ffn_dim: 70, vocab_size: 84001, heads: 2", "kv_heads: 2, head_dim: 10",
     64, 1},
};

/* Text; examples; examples that are weighed, which do not see each other. */
enum px_data { PX_DATA_TEXT = 0, PX_DATA_EXAMPLES, PX_DATA_WEIGHED };

enum px_family { PX_GPT2 = 0, PX_LLAMA, PX_QWEN, PX_FAMILIES };
/* Untied; tied, with biases and normed queries and keys. */
static const char *const px_families[PX_FAMILIES] = {
    "family: gpt2", "family: llama, tied_head: false",
    "family: llama, tied_head: true, qkv_bias: true, qk_norm: true"};

struct px_case {
    int replicate, shard, tensor; /* tensor 0: as 1 */
    bool sequence;
    enum px_family family;
    enum zt_recompute recompute;
    int every; /* 0: as 1 */
    int64_t chunk;
    double dropout;
    enum zt_mode mode;
    const char *recipe;
    bool reduce16;
    enum px_size size;
    int micros;
    int64_t steps, warmup;
    enum px_data data;
    int64_t epochs,
        tail; /* epochs of PX_FILE samples, which make so many steps; each tail-th is short */
    enum zt_reshard reshard;
    int slices, prefetch, inflight, wrap; /* wrap 0: part */
    double bucket_mib;
    int64_t persistence;
    bool no_overlap, no_sync, lazy;
    const char *trainable;           /* NULL = all */
    const char *lora;                /* adapters on these layers, which alone train; NULL = none */
    int64_t eval_every;              /* 0 = no validation */
    int64_t eval_rows, eval_batches; /* batches 0 = every row */
    int64_t save_every;              /* 0 = nothing is saved */
    double max_split_mib, gc_threshold, limit_gib;
    int64_t capacity;
};

static inline int px_tensor(const struct px_case *c) { return c->tensor ? c->tensor : 1; }
static inline int px_dp(const struct px_case *c) { return c->replicate * c->shard; }
static inline int px_world(const struct px_case *c) { return px_dp(c) * px_tensor(c); }

struct px_text {
    char *at;
    size_t room;
};
static void px_add(struct px_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void px_add(struct px_text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->at, t->room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= t->room) abort();
    t->at += n;
    t->room -= (size_t)n;
}

static inline bool px_gathers(enum zt_mode m) { return m == ZT_ZERO3 || m == ZT_FSDP; }

/* Keys that a mode does not read are left out: they are refused. */
static inline void px_parallelism(const struct px_case *c, struct px_text *t) {
    static const char *const reshard[] = {"default", "true", "false"};
    px_add(t, "parallelism: {mode: %s, data_parallel_replicate_degree: %d, ", zt_mode_name(c->mode),
           c->replicate);
    px_add(t, "data_parallel_shard_degree: %d, bucket_mib: %g, overlap: %s, ", c->shard,
           c->bucket_mib, c->no_overlap ? "false" : "true");
    if (!c->no_overlap) px_add(t, "max_inflight_reduces: %d, ", c->inflight);
    if (c->no_sync) px_add(t, "no_sync: true, ");
    if (c->tensor)
        px_add(t, "tensor_parallel_degree: %d, sequence_parallel: %s, ", c->tensor,
               c->sequence ? "true" : "false");
    if (px_gathers(c->mode)) {
        px_add(t, "prefetch: %d, persistence_threshold: %" PRId64 ", ", c->prefetch,
               c->persistence);
        if (c->reshard == ZT_RESHARD_INT)
            px_add(t, "reshard_after_forward: %d, ", c->slices);
        else
            px_add(t, "reshard_after_forward: %s, ", reshard[c->reshard]);
    }
    if (c->wrap)
        px_add(t, "wrap: %d}\n", c->wrap);
    else
        px_add(t, "wrap: part}\n");
}

static inline const char *px_file(const struct px_case *c, const char *name) {
    char file[32];
    snprintf(file, sizeof file, "%s.%s", name, c->data ? "jsonl" : "txt");
    return data_path(file);
}

static inline void px_yaml(const struct px_case *c, char *text, size_t room) {
    const struct px_model *m = &px_models[c->size];
    struct px_text t = {text, room};
    bool half = strcmp(c->recipe, "fp32") != 0;
    px_add(&t, "version: 1\nname: exact\nmodel: {%s, %s%s%s, seq_len_max: %d, dropout: %g}\n",
           px_families[c->family], m->fields, c->family ? ", " : "", c->family ? m->llama : "",
           m->seq, c->dropout);
    px_add(&t, "dataset: {path: %s, document_masks: %s}\n", px_file(c, "train"),
           c->data == PX_DATA_WEIGHED ? "true" : "false");
    px_add(&t, "loss: {average: %s, chunk_tokens: %" PRId64 "}\n",
           c->data == PX_DATA_WEIGHED ? "square" : "token", c->chunk);
    if (c->eval_every)
        px_add(&t, "validation: {path: %s, every_steps: %" PRId64 ", steps: %" PRId64 "}\n",
               px_file(c, "valid"), c->eval_every, c->eval_batches);
    px_add(&t, "training: {%s: %" PRId64 ", seq_len: %d, local_batch_size: %d, ",
           c->epochs ? "epochs" : "steps", c->epochs ? c->epochs : c->steps, m->seq, m->batch);
    px_add(&t, "global_batch_size: %d, ", m->batch * px_dp(c) * c->micros);
    if (c->lora)
        px_add(&t, "lora: {rank: 3, alpha: 6, targets: [\"%s\"]}}\n", c->lora);
    else
        px_add(&t, "trainable: [\"%s\"]}\n", c->trainable ? c->trainable : "*");
    px_add(&t, "optimizer: {lr: 1.0e-4, state_init: %s}\n", c->lazy ? "lazy" : "eager");
    px_add(&t, "precision: {recipe: %s%s}\n", c->recipe,
           !half                       ? ""
           : !c->reduce16              ? ", reduce_dtype: fp32"
           : strcmp(c->recipe, "fp16") ? ", reduce_dtype: bf16"
                                       : ", reduce_dtype: fp16");
    if (c->save_every)
        px_add(&t, "checkpoint: {interval: %" PRId64 "}\n", c->save_every);
    if (c->recompute)
        px_add(&t, "activation_checkpoint: {mode: %s, every: %d}\n",
               c->recompute == ZT_RECOMPUTE_FULL ? "full" : "selective", c->every ? c->every : 1);
    px_parallelism(c, &t);
    px_add(&t, "memory: {max_split_size_mib: %g, gc_threshold: %g, limit_gib: %g}\n",
           c->max_split_mib, c->gc_threshold, c->limit_gib);
    px_add(&t, "metrics: {warmup_steps: %" PRId64 ", log_freq: 1}\n", c->warmup);
}

static inline int px_spec(const struct px_case *c, struct zt_spec *spec, struct zt_error *err) {
    char text[4096];
    px_yaml(c, text, sizeof text);
    int rc = zt_spec_parse(text, strlen(text), "exact.yaml", NULL, 0, spec, err);
    if (rc == 0) rc = zt_spec_resolve(spec, px_world(c), "exact.yaml", err);
    if (rc) fprintf(stderr, "%s\n%s\n", text, err->msg);
    return rc;
}

/* Two examples a sample, of T + 1 tokens together. */
static inline void px_examples(const char *name, size_t samples, size_t T) {
    char *text = malloc(samples * (T + 128)), *p = text;
    for (size_t i = 0; i < samples * 2; i++) {
        size_t first = 1 + i / 2 % (T - 5), n = i % 2 ? T - 3 - first : first;
        p += sprintf(p, "{\"prompt\": \"a\", \"completion\": \"");
        memset(p, (int)('b' + i % 20), n);
        p += n;
        p += sprintf(p, "\"}\n");
    }
    data_write(name, text, (size_t)(p - text));
    free(text);
}

static inline void px_files(const struct px_case *c) {
    const size_t T = (size_t)px_models[c->size].seq;
    if (c->data) {
        px_examples("train.jsonl", PX_FILE, T);
        if (c->eval_every) px_examples("valid.jsonl", (size_t)c->eval_rows, T);
        return;
    }
    data_text("train.txt", PX_FILE * T + 1, 7);
    if (c->eval_every) data_text("valid.txt", (size_t)c->eval_rows * T + 1, 11);
}

static inline const char *px_name(const struct px_case *c, char text[PX_TEXT]) {
    static const char *const family[] = {"gpt2", "llama", "qwen"};
    static const char *const size[] = {"small", "wide", "vocabulary"};
    static const char *const reshard[] = {"default", "true", "false", "int"};
    snprintf(text, PX_TEXT,
             "%s %dx%dx%d%s %s%s, %s %s, data %d, recompute %d every %d, chunk %" PRId64
             ", dropout %g, %d micros, %" PRId64 " steps, warmup %" PRId64
             ", reshard %s %d, prefetch %d, wrap %d, bucket %g, persist %" PRId64
             ", inflight %d%s%s%s, trainable %s%s, eval every %" PRId64 ": %" PRId64
             " rows, batches %" PRId64 ", save every %" PRId64 ", max_split %g, gc %g, limit %g GiB, capacity %" PRId64,
             zt_mode_name(c->mode), c->replicate, c->shard, px_tensor(c), c->sequence ? "s" : "",
             c->recipe, c->reduce16 ? " reduced in 16 bits" : "", family[c->family], size[c->size],
             (int)c->data, (int)c->recompute, c->every, c->chunk, c->dropout, c->micros, c->steps,
             c->warmup, reshard[c->reshard], c->slices, c->prefetch, c->wrap, c->bucket_mib,
             c->persistence, c->inflight, c->no_overlap ? ", no overlap" : "",
             c->no_sync ? ", no_sync" : "", c->lazy ? ", lazy" : "", c->lora ? "adapters on " : "",
             c->lora        ? c->lora
             : c->trainable ? c->trainable
                            : "*",
             c->eval_every, c->eval_rows, c->eval_batches, c->save_every, c->max_split_mib, c->gc_threshold,
             c->limit_gib, c->capacity);
    return text;
}

#endif
