/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec.h: the run specification: run.yaml parsed, defaulted and checked.
 *
 * One schema table (core/spec_schema.c) drives parsing, defaults, messages, hints, the reference
 * page docs/run-yaml.md and `zctl validate`. Errors read
 *   run.yaml:14:5: parallelism.tensor_parallel_degree: 3 does not divide 8 workers
 * Ownership: zt_spec holds its strings inline (bounded), so it can be copied by value except for
 * `verbatim`, which zt_spec_free releases. Pure apart from malloc; one thread per struct. */
#ifndef ZT_CORE_SPEC_H
#define ZT_CORE_SPEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "core/error.h"
#include "core/layout.h"
#include "core/mesh.h"
#include "core/model.h"
#include "core/schedule.h"

#define ZT_SPEC_MAX_BYTES (256 * 1024)
#define ZT_SPEC_MAX_DEPTH 16
#define ZT_NAME_MAX 63       /* [a-z0-9][a-z0-9._-]{0,62} */
#define ZT_PATH_MAX 1024
#define ZT_SPEC_MAX_KEYS 160 /* rows of the schema table, at most */
#define ZT_SPEC_MAX_LIST 16  /* items of a list in run.yaml */
#define ZT_SPEC_MAX_NOTES 8
/* What `zctl convert` writes where it does not know a value; refused by name wherever it stands. */
#define ZT_FILL_IN "FILL_IN"

enum zt_reshard { ZT_RESHARD_DEFAULT = 0, ZT_RESHARD_TRUE, ZT_RESHARD_FALSE, ZT_RESHARD_INT };
enum zt_tokenizer { ZT_TOKENIZER_BYTES = 0, ZT_TOKENIZER_NONE };
enum zt_state_init { ZT_STATE_EAGER = 0, ZT_STATE_LAZY };
enum zt_tail { ZT_TAIL_SHORT = 0, ZT_TAIL_DROP };
enum zt_average { ZT_AVERAGE_TOKEN = 0, ZT_AVERAGE_SAMPLE, ZT_AVERAGE_SQUARE };
enum zt_scaler { ZT_SCALER_TORCH = 0, ZT_SCALER_DEEPSPEED };
enum zt_nonfinite { ZT_NONFINITE_ABORT = 0, ZT_NONFINITE_SKIP };

struct zt_strings { int n; char item[ZT_SPEC_MAX_LIST][64]; };
struct zt_labels { int n; struct { char key[64], value[64]; } item[ZT_SPEC_MAX_LIST]; };
struct zt_sources { int n; struct { char path[ZT_PATH_MAX]; double weight; } item[ZT_SPEC_MAX_LIST]; };

struct zt_spec {
    int version;
    char name[ZT_NAME_MAX + 1];
    struct zt_labels labels;
    int priority;                 /* 0..100 */
    int workers;                  /* 0 = not given: product of the degrees, else what is there */
    int workers_min, workers_max; /* elastic; 0 = not given */
    struct {
        char device[16], gpu_name[64];
        double memory_gib;        /* at least; 0 = any */
        struct zt_strings exclude;
    } requirements;
    char preset[64];              /* "" when the model is given by its fields */
    struct zt_model_config model; /* complete after parsing */
    char init_from[ZT_PATH_MAX];  /* "fresh", a folder, "run:ID@N" */
    struct {
        char path[ZT_PATH_MAX];   /* "" when sources are given */
        struct zt_sources sources;
        enum zt_tokenizer tokenizer;
        bool shuffle, drop_last, document_masks;
        uint64_t seed;
    } dataset;
    struct {
        bool enabled;
        char path[ZT_PATH_MAX];   /* "" with fraction > 0: the file's tail */
        double fraction;
        int64_t every_steps, steps; /* steps 0 = every row exactly once */
    } validation;
    struct {
        int64_t steps;            /* 0 when epochs is given */
        int64_t epochs;
        int64_t seq_len, local_batch_size;
        int64_t global_batch_size; /* sequences per update; 0 = local x K_dp */
        enum zt_tail accumulation_tail;
        uint64_t seed;
        struct zt_strings trainable;
        struct { bool enabled; int64_t rank; double alpha; struct zt_strings targets; } lora;
    } training;
    struct { enum zt_average average; int64_t chunk_tokens; } loss;
    struct {
        char name[16];
        double lr, beta1, beta2, eps, weight_decay, max_norm;
        bool decay_1d;
        enum zt_state_init state_init;
    } optimizer;
    struct { int64_t warmup_steps; enum zt_decay decay_type; double decay_ratio, min_lr_factor; } lr_scheduler;
    struct {
        char recipe[24];
        enum zt_dtype reduce_dtype;
        enum zt_scaler scaler;
        enum zt_nonfinite nonfinite;
    } precision;
    struct {
        enum zt_mode mode; bool mode_given;
        int replicate, shard, tensor;      /* -1 = fill */
        bool sequence_parallel;
        enum zt_reshard reshard; int reshard_int;
        enum zt_wrap wrap; int wrap_n;
        int prefetch;
        double bucket_mib;
        bool overlap, no_sync;
        int max_inflight_reduces;
        int64_t persistence_threshold;
    } parallelism;
    struct { enum zt_recompute mode; int64_t every; } activation_checkpoint;
    struct {
        bool enabled;
        char folder[ZT_PATH_MAX], load[ZT_PATH_MAX];
        int64_t interval, keep_latest_k, keep_every, memory_copies;
        bool on_preempt;
    } checkpoint;
    struct { double limit_gib; bool expandable_segments; double max_split_size_mib, gc_threshold; } memory;
    struct { double init_timeout_seconds, train_timeout_seconds, measure_seconds; int64_t trace_buf_size; } comm;
    struct { int max_restarts; double backoff_initial, backoff_max; int no_progress_limit; } restart;
    struct { double start, first_step, progress /* 0 = auto */, term_grace, time_limit, queue; } timeouts;
    struct { int64_t log_freq, warmup_steps, per_rank_keep, parameter_hash_every; } metrics;

    char *verbatim;               /* the file's bytes, for the record */
    size_t verbatim_bytes;
    char normalised_hash[33];     /* XXH3-128, hex, of zt_spec_normalise's text right after parsing */

    /* What was accepted and needs a word: names of other programs, keys that a --set made idle. Each is
     * "run.yaml:9:22: KEY: text"; not part of the normalised text. */
    struct { int n; char item[ZT_SPEC_MAX_NOTES][512]; } notes;

    /* Where each key of the schema was read, by its row: line 0 = not given, column 0 = --set. */
    struct { uint32_t line, column; } mark[ZT_SPEC_MAX_KEYS];
};

/* Parses and checks everything that does not need the number of workers. `file` names the input in
 * messages. overrides: "a.b=value" strings of --set, applied after the file. On error *err has the
 * first problem; more problems than one are joined by newlines (up to 8). */
int zt_spec_parse(const char *text, size_t bytes, const char *file, const char *const *overrides,
                  int n_overrides, struct zt_spec *spec, struct zt_error *err);

/* Fills the degrees left open for `workers` workers (0: `workers:` of the file, else the product of
 * the degrees when all are given) and runs the cross-checks that need them:
 * product = workers, batch divisibility, heads % t, .... After it spec->workers, parallelism.*
 * and training.global_batch_size hold final numbers. */
int zt_spec_resolve(struct zt_spec *spec, int workers, const char *file, struct zt_error *err);

/* The same for more ranks than a run may have: for plans, most up to ZT_PLAN_RANKS_MAX. */
int zt_spec_resolve_up_to(struct zt_spec *spec, int workers, int most, const char *file, struct zt_error *err);

/* The run's tensors, uncut: by its model and wrap, with adapters or with what is frozen, and what decays.
 * zt_model_table_free releases it. */
int zt_spec_table(const struct zt_spec *s, struct zt_model_table *t, struct zt_error *err);
/* What an adapter's output is scaled by: alpha / rank; 0 without adapters. */
double zt_spec_lora_scale(const struct zt_spec *s);

struct zt_mesh zt_spec_mesh(const struct zt_spec *s);              /* after resolve */
int64_t zt_spec_accumulation(const struct zt_spec *s);             /* micro-steps per full window */
struct zt_schedule zt_spec_schedule(const struct zt_spec *s, int64_t total_steps);

/* The effective configuration as YAML in schema order (malloc'ed, caller frees). Parsing it again
 * gives the same spec. */
char *zt_spec_normalise(const struct zt_spec *s);
/* Markdown reference of every key: type, default, range, meaning; for docs/run-yaml.md. */
void zt_spec_reference(FILE *out);
/* "key: short help" of the whole schema for completion; NULL past the end. */
const char *zt_spec_key(int i);
void zt_spec_free(struct zt_spec *s);

#endif
