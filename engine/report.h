/* SPDX-License-Identifier: Apache-2.0 */
/* engine/report.h: what one rank says about one step, and the progress page that outlives it. Plain
 * data; the worker turns it into proto messages. Missing doubles are NAN, missing counts -1. */
#ifndef ZT_ENGINE_REPORT_H
#define ZT_ENGINE_REPORT_H
#include <stdatomic.h>
#include "core/dtype.h"
#include "engine/device/ledger.h"
#include "engine/trace/intervals.h"

struct zt_step_report {
    int rank;
    uint32_t generation;
    int64_t step;                 /* 1-based optimizer step just finished */
    bool last;                    /* the run's last step */
    double loss, local_loss, grad_norm, lr; /* grad_norm: before clipping, unscaled; NAN when not finite */
    double clip_coefficient;      /* multiplied into every gradient; NAN when nothing was stepped */
    double loss_scale;            /* of this step; NAN when the recipe does not scale the loss */
    bool skipped;                 /* loss or gradients not finite: parameters, moments, step count kept */
    int64_t skipped_steps;        /* so far in this run, this step included */
    int64_t nonfinite_gradients;  /* tensors of this rank's own part with one; -1 = not counted */
    int64_t tokens; /* supervised tokens of this rank in this step (sum over data-parallel ranks =
                       global) */
    int64_t tokens_input, tokens_supervised, tokens_padding;
    int64_t global_batch;         /* sequences really in this window, all ranks */
    double step_seconds, data_seconds, forward_seconds, backward_seconds, optimizer_seconds,
        checkpoint_seconds, eval_seconds;
    struct zt_exposed exposed;
    double straggler_wait_seconds;
    /* memory of this step: composition at the peak instant */
    enum zt_phase phase_of_peak;
    int64_t peak_allocated_bytes, peak_reserved_bytes;
    int64_t at_peak[ZT_TAG_COUNT], category_max[ZT_TAG_COUNT];
    int64_t reserved_at_peak_bytes, max_unused_reserved_bytes, end_of_step_allocated_bytes,
        outside_allocator_bytes;
    int64_t persistent_parameters, persistent_gradients, persistent_optimizer; /* requested bytes */
    int64_t sent_bytes;
    char parameter_hash[33];      /* "" when not computed in this step */
    char state_hash[33];          /* with it: of moments */
    uint64_t sample_hash;         /* sum mod 2^64 over this rank's rows of a hash of (place in the window, sample id) */
    double eval_loss;             /* NAN when no evaluation after this step */
    int64_t eval_tokens, eval_rows;
    /* windows besides the step itself: init (with step 1) and eval peaks, -1 when they did not occur */
    struct zt_window_peak {
        int64_t peak_allocated_bytes, peak_reserved_bytes; /* -1: did not occur */
        enum zt_phase phase_of_peak;
        int64_t at_peak[ZT_TAG_COUNT];
        int64_t persistent[3];
    } init, eval, save, load;     /* load: with the first step after it; save: its copy into host memory */
};

/* What number formats a run really has: one row for each thing that has one. configured: what the recipe
 * and run.yaml ask for; stored: the type of the buffers that were allocated for it; used: the type that
 * the kernels and collectives were called with. Each an enum zt_dtype, or -1: there is no such thing
 * (fp32 has no master, one rank reduces nothing, only a 16-bit compute copy is a buffer of its own). */
struct zt_dtypes_report {
    int rank;
    uint32_t generation;
    int64_t step;          /* after which it was read: the generation's first that was not skipped */
    char recipe[24];
    struct { int configured, stored, used; } row[ZT_ROW_COUNT];
    char compute[64];      /* how a GEMM multiplies, e.g. "bf16, fp32 sums", "fp32 (bf16 emulated)" */
    char kernels[128];     /* e.g. "avx512, oneDNN 2.6.3 brg:avx512_core_bf16, 2 threads, ..." */
};

/* Shared mapping owned by the supervisor, written by the trainer, read after its death too. */
struct zt_progress {
    _Atomic int64_t step;             /* last finished step */
    _Atomic int64_t last_progress_ns; /* CLOCK_MONOTONIC of the last phase change or collective end */
    _Atomic int32_t phase;            /* enum zt_phase */
    _Atomic int32_t state;            /* enum zt_trainer_state */
    _Atomic int64_t micro;
    _Atomic int32_t held_by;          /* 1 + the rank this one has been waiting for in a collective; 0 = none */
    /* the collective ring (zt_comm_log_place) follows at offset ZT_PROGRESS_RING */
};
#define ZT_PROGRESS_RING 4096
enum zt_trainer_state { ZT_TRAINER_STARTING = 0, ZT_TRAINER_READY, ZT_TRAINER_IN_COMM, ZT_TRAINER_RUNNING, ZT_TRAINER_DONE };

#endif
