/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_int.h: the trainer's own struct and the pieces train.c is made of. Private to
 * engine/ (train*.c) and its tests. One trainer per process; every function runs on the trainer
 * thread. */
#ifndef ZT_ENGINE_TRAIN_INT_H
#define ZT_ENGINE_TRAIN_INT_H
#include "core/units.h"
#include "engine/checkpoint/source.h"
#include "engine/data/data.h"
#include "engine/device/sim.h"
#include "engine/model/model.h"
#include "engine/optim/scaler.h"
#include "engine/shard/runtime.h"
#include "engine/train.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

struct zt_trainer;

/* The micro-batches of one optimizer step, copied out of the loader: how many tokens count has to
 * be known before the first backward. Host memory, grown once to the largest window. */
struct zt_window {
    int64_t seq_len, micros, capacity_micros, capacity_rows;
    struct zt_row all; /* micro i starts at i * capacity_rows * seq_len */
    int64_t *rows;     /* of each micro */
    int64_t *ids;      /* samples, as the rows lie: micro i from i * capacity_rows on */
    int64_t total_rows, input_tokens, valid_tokens, padding_tokens;
    struct zt_fixsum weight; /* of its targets, when they have weights */
};
/* 0, or ZT_ENOTFOUND at the end of the last epoch. local_batch bounds the rows of a micro-batch. */
int zt_window_load(struct zt_window *w, struct zt_loader *l, int64_t local_batch, int64_t seq_len,
                   struct zt_error *err);
/* A full window of which nobody reads a token. */
int zt_window_simulate(struct zt_window *w, int64_t micros, int64_t local_batch, int64_t seq_len,
                       struct zt_error *err);
void zt_window_free(struct zt_window *w);
/* Sum mod 2^64 over this rank's rows of XXH3-64 of (place of the row in the global window i64, sample
 * i64): summed over the data-parallel ranks the same for every mesh. 0: simulated. */
uint64_t zt_window_sample_hash(const struct zt_window *w, int dp_index, int dp_size);
/* What this rank's losses are divided by when they are told alone: its targets, or their weights. */
double zt_window_weight(const struct zt_window *w);
/* The same over all ranks: every token loss is divided by `weight`. Of ranks that see the same data
 * one speaks; all call. */
struct zt_window_total { int64_t valid; double weight; };
int zt_window_total(const struct zt_window *w, bool speaks, struct zt_comm *control,
                    struct zt_stream *compute, int64_t step, struct zt_window_total *total,
                    struct zt_error *err);

/* `rows` rows from host memory to the device, as the batch *b; `before`: rows of this rank's earlier
 * ones in the step. */
int zt_trainer_feed(struct zt_trainer *t, const struct zt_row *from, int64_t rows, int64_t before,
                    struct zt_batch *b, struct zt_error *err);

/* Compute segments, forward and backward time, and progress, taken at the unit boundaries. */
struct zt_probe {
    struct zt_unit_source inner;
    struct zt_device *device;
    struct zt_intervals *intervals;
    struct zt_progress *progress;
    struct zt_runtime *runtime;
    bool running, backward, failed;  /* running: between begin and end */
    int64_t mark_ns, begin_ns;       /* start of the running compute segment, of the phase */
    int64_t forward_ns, backward_ns; /* of this step */
};
struct zt_unit_source zt_probe_source(struct zt_probe *p);
void zt_probe_step(struct zt_probe *p);  /* zeroes the step's times */
void zt_probe_begin(struct zt_probe *p); /* around zt_model_step */
int zt_probe_end(struct zt_probe *p, struct zt_error *err);
/* zt_tensor_group.busy, arg the probe: the model waits for its tensor group, or goes on. */
void zt_probe_busy(void *arg, bool computing);

/* Allocated bytes at the end of steady steps: equal to those of this generation's second, or somebody
 * leaks. */
struct zt_growth {
    int64_t steps; /* seen */
    bool set;
    int64_t base_total, base[ZT_TAG_COUNT], reported;
};
/* True when there is something new to report; message names the tag and the bytes. */
bool zt_growth_check(struct zt_growth *g, const struct zt_ledger *l, int rank, int64_t step,
                     char *message, size_t n);

/* For the hook `collectives`: arrays of cap entries (shares: twice as many). */
struct zt_trace {
    int64_t steps; /* of this generation, the one in progress included */
    int64_t after; /* newest record of the event log when the step began */
    struct zt_coll_record *records;
    struct zt_interval *spans;
    int64_t *shares;
    int64_t cap;
};

enum zt_stage { ZT_STAGE_OPEN = 0, ZT_STAGE_DATA, ZT_STAGE_COMM, ZT_STAGE_LOAD, ZT_STAGE_RUN };

struct zt_trainer {
    const struct zt_train_config *config;
    const struct zt_train_hooks *hooks;
    const struct zt_spec *spec;
    const struct zt_recipe *recipe;
    enum zt_stage stage;
    struct zt_mesh mesh;
    int dp_index, dp_size;
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    const struct zt_kernels *kernels;
    const struct zt_ops *ops;
    struct zt_ops_ctx *ctx;
    struct zt_model_table table;
    struct zt_dataset *train_set, *valid_set;
    struct zt_loader *loader;
    struct zt_model *model;
    struct zt_tensor_group group;
    struct zt_comm *world, *tensor, *dp_shard, *dp_replicate, *reshard, *control;
    struct zt_runtime *runtime;
    struct zt_intervals intervals;
    struct zt_probe probe;
    struct zt_schedule schedule;
    struct zt_loss_scaler scaler; /* when the recipe scales the loss */
    int64_t skipped;              /* steps so far */
    struct zt_window window;
    struct zt_growth growth;
    struct zt_saver *saver; /* NULL: this run saves nothing */
    int64_t saves_skipped;
    struct zt_trace trace;
    struct zt_row feed;        /* device, one micro-batch */
    int64_t *words;            /* host, control messages: world * ZT_CONTROL_WORDS */
    int64_t total_steps, step; /* step in progress, from 1 */
    int64_t resumed;           /* step of the checkpoint it goes on from; 0: none */
    int64_t tokens;            /* supervised, of all ranks, so far */
    struct zt_window_peak init_peak, load_peak; /* told with the first step */
    bool counts_static, stop, dtypes_told;
    bool saving; /* on some rank a save was in flight when the step's control message went */
    int diverged; /* rank that train_agree.c found to be wrong, -1 */
    struct zt_step_report report;
};
#define ZT_CONTROL_WORDS 16

/* train_open.c */
int zt_trainer_open(struct zt_trainer *t, struct zt_error *err);
/* The loader of the training data, in place of the one there is; from `at` on. */
int zt_trainer_open_loader(struct zt_trainer *t, struct zt_cursor at, struct zt_error *err);
/* What comm.measure_seconds asks for: times of collectives, as events COMM_MEASURED. */
int zt_trainer_measure(struct zt_trainer *t, struct zt_error *err);
void zt_trainer_close(struct zt_trainer *t, bool failed);

/* train_agree.c */
/* Before step 1: one specification, the same samples, the same weights on every rank. */
int zt_trainer_agree(struct zt_trainer *t, struct zt_error *err);
/* All ranks hold one set of parameters: hashes agree over the replicas, over the ranks of a tensor
 * group for what each holds whole, and over all that is stored whole. `global` is the hash of the
 * whole model. ZT_EDIVERGED names rank, unit and tensor; t->diverged is the rank where a majority
 * says which one it is, else -1. */
int zt_trainer_check_hash(struct zt_trainer *t, struct zt_hash128 *global, struct zt_error *err);

/* train_save.c: around a step that is over; nothing of it fails training. */
int zt_trainer_save_open(struct zt_trainer *t, struct zt_error *err);
bool zt_trainer_save_busy(const struct zt_trainer *t); /* what this rank says of its writer */
void zt_trainer_save(struct zt_trainer *t, bool last);  /* copies, when it is due */
void zt_trainer_save_write(struct zt_trainer *t);       /* after the step was reported */
void zt_trainer_save_finish(struct zt_trainer *t);      /* before the end */

/* train_load.c: into an open trainer. Every rank calls each in this order.
 *
 * The manifest's tensors are the model's: ZT_EINVAL names one that is missing, too many, of another
 * shape, or trained in one of the two only. */
int zt_load_check_tensors(const struct zt_trainer *t, const struct zt_manifest *m,
                          struct zt_error *err);
/* Step, updates, schedule, scaler, data cursor. other_length: training.seq_len is another one, so the
 * data begin with the next epoch. */
int zt_load_position(struct zt_trainer *t, const struct zt_position *p, bool other_length,
                     struct zt_error *err);
/* Parameters, master and moments of this rank from the source; weights: parameters (and master) alone,
 * from the kind that counts. */
int zt_load_tensors(struct zt_trainer *t, const struct zt_tensor_source *source, bool weights,
                    struct zt_error *err);
/* What is there now has the manifest's hashes (weights: of parameters); else ZT_ECORRUPT. */
int zt_load_check_hash(struct zt_trainer *t, const struct zt_manifest *m, bool weights,
                       struct zt_error *err);
/* train_resume.c: phase load, between the runtime and the first step: the checkpoint or the weights that
 * the configuration and model.init_from name; nothing where they name none. ZT_ECORRUPT: not what was
 * written; an older checkpoint may do. */
int zt_trainer_load(struct zt_trainer *t, struct zt_error *err);
/* Tells checkpoint.loaded what this rank goes on after, and what it read since start (device clock). */
int zt_load_acknowledge(const struct zt_trainer *t, int64_t start, const struct zt_tensor_source *s,
                        struct zt_error *err);
/* train_weights.c: parameters alone, from whatever the folder is (engine/checkpoint/weights.h). */
int zt_load_weights(struct zt_trainer *t, const char *folder, const struct zt_sha256 *manifest,
                    struct zt_error *err);
static inline const struct zt_sys *zt_load_sys(const struct zt_trainer *t) {
    const struct zt_checkpoint_config *c = t->config->checkpoint;
    return c && c->sys ? c->sys : &zt_sys_posix;
}

/* State hash of the whole model (moments); every rank calls. */
int zt_trainer_state_hash(struct zt_trainer *t, struct zt_hash128 *global, struct zt_error *err);

/* train_step.c: one window, from data to update; the report's loss and time fields */
int zt_trainer_step(struct zt_trainer *t, struct zt_error *err);
/* train_eval.c */
int zt_trainer_eval(struct zt_trainer *t, struct zt_error *err);

/* train_trace.c: around a step; end hands a captured step's collectives to the hook */
void zt_trace_begin(struct zt_trainer *t);
int zt_trace_end(struct zt_trainer *t, struct zt_error *err);
void zt_trace_free(struct zt_trace *a);

/* train_report.c */
void zt_report_begin(struct zt_trainer *t); /* window peaks so far, fields to missing */
int zt_report_memory(struct zt_trainer *t, struct zt_error *err);
void zt_report_dtypes(struct zt_trainer *t); /* once, when there was an update */
void zt_report_window(const struct zt_ledger *l, const struct zt_runtime *r,
                      struct zt_window_peak *out);
void zt_progress_phase(struct zt_trainer *t, enum zt_phase p);
void zt_progress_state(struct zt_trainer *t, enum zt_trainer_state s);
enum zt_reason zt_train_reason(int code, enum zt_stage stage);

/* The run file gives the device less than the worker offers. */
static inline bool zt_trainer_limited(const struct zt_trainer *t) {
    double limit = t->spec->memory.limit_gib * (double)ZT_GIB;
    return limit > 0 && limit < (double)t->config->capacity_bytes;
}

/* On a simulated device: no data is read, no memory touched. */
static inline const struct zt_sim *zt_trainer_sim(const struct zt_trainer *t) {
    return t->config->sim;
}

static inline int64_t zt_trainer_now(const struct zt_trainer *t) {
    return zt_device_ops(t->device)->now_ns(t->device);
}

#endif
