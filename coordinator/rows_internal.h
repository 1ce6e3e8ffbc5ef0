/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows_internal.h: what the files behind rows.h share:
 *   batch.c       batches: typed changes and their memory
 *   rows.c        statements, the machine's rows, one batch after the other
 *   rows_steps.c  step rows, windows, roll-ups, trimming
 *   rows_logs.c   output of the trainers and its quota
 *   rows_traces.c collectives of captured steps
 *   rows_ckpt.c   checkpoints and their parts
 * Ownership and thread rule: rows.h. */
#ifndef ZT_COORDINATOR_ROWS_INTERNAL_H
#define ZT_COORDINATOR_ROWS_INTERNAL_H
#include "coordinator/migrate.h"
#include "coordinator/rows.h"

enum change_kind { CH_RUN, CH_SPEC, CH_ATTEMPT, CH_RANK, CH_FAILURE, CH_WORKER, CH_KEY, CH_EVENT, CH_STEP, CH_LOG, CH_TRACE, CH_DTYPES,
                   CH_CKPT, CH_CKPT_GONE, CH_PART, CH_CKPT_SET };

struct change {
    struct change *next;
    enum change_kind kind;
    union {
        const struct zt_row_run *run;
        struct { const char *run_id; struct zt_run_blobs b; } spec;
        const struct zt_row_attempt *attempt;
        const struct zt_row_rank *rank;
        struct { const struct zt_row_failure *row; struct zt_failure_blobs b; } failure;
        const struct zt_row_worker *worker;
        const struct zt_row_key *key;
        struct { const struct zt_row_event *row; int64_t seq; } event;
        struct {
            const char *run_id;
            Zt__StepReport columns; /* numbers only: its pointers are not ours */
            bool has_init, has_eval, has_save, has_load;
            const uint8_t *packed; size_t bytes;
        } step;
        struct {
            const char *run_id; uint32_t generation, rank; uint64_t offset; bool err, end;
            const uint8_t *data; size_t bytes; int64_t at_ms;
        } log;
        struct {
            const char *run_id; uint32_t generation, rank, part; int64_t step;
            const uint8_t *packed; size_t bytes;
        } trace;
        struct { const char *run_id; uint32_t generation, rank; const uint8_t *packed; size_t bytes; } dtypes;
        const struct zt_row_ckpt *ckpt;
        const struct zt_row_part *part;
        struct { const char *run_id; int64_t step; enum zt_ckpt_set what; const char *message; } ckpt_set; /* CH_CKPT_GONE: its key */
    } u;
};

struct zt_batch {
    struct block *blocks;
    struct change *first, **last;
    size_t bytes, changes;
    int code;
    const char *why;
};

enum statement {
    Q_RUN, Q_SPEC, Q_ATTEMPT, Q_RANK, Q_FAILURE, Q_OOM_TOLD, Q_WORKER, Q_KEY, Q_KEY_PRUNE, Q_EVENT_PRUNE, Q_WORKER_PRUNE, Q_TRACE_PRUNE, Q_EVENT,
    Q_STEP_OLD, Q_STEP, Q_WORLD, Q_SPEC_NUMBERS, Q_WINDOW_GET, Q_WINDOW_PUT, Q_WINDOW_RESERVED,
    Q_STEP_COUNT, Q_STEP_ROWS, Q_ROLLUP, Q_PROGRESS, Q_TRIM, Q_STEP_STALE,
    Q_RANK_KNOWN, Q_LOG_NEXT, Q_LOG, Q_LOG_STREAM, Q_LOG_USAGE, Q_LOG_USAGE_GET, Q_LOG_OLDEST, Q_LOG_DELETE,
    Q_TRACE_OLD, Q_TRACE_DROP, Q_TRACE, Q_TRACE_TRIM, Q_DTYPES,
    Q_CKPT, Q_CKPT_GONE, Q_CKPT_PIN, Q_CKPT_STATE, Q_PART, Q_PARTS_GONE, Q_SAVES, Q_COUNT
};

struct touched { char run_id[ZT_RUN_ID_MAX + 1]; int64_t step; };

struct zt_writer {
    sqlite3 *db;
    int64_t log_quota;
    sqlite3_stmt *q[Q_COUNT];
    bool saves;             /* of this transaction: zt_writer_saves */
    struct touched *touched;
    size_t n_touched, cap_touched;
    struct { char run_id[ZT_RUN_ID_MAX + 1]; int64_t keep, warmup; } spec; /* of the run last asked for */
};

/* rows.c: binding, and running what gives no rows */
void w_text(sqlite3_stmt *s, int i, const char *v);
void w_blob(sqlite3_stmt *s, int i, const void *v, size_t n);
void w_number(sqlite3_stmt *s, int i, int has, int64_t v); /* not has: NULL */
void w_real(sqlite3_stmt *s, int i, int has, double v);    /* NaN too; the packed report keeps it */
/* Runs a statement that gives no rows and makes it ready for its next use. */
int w_done(struct zt_writer *w, enum statement q, const char *what, struct zt_error *err);
/* One row of one or two integers; *found false when there is none. NULL columns give `none`. */
int w_two(struct zt_writer *w, enum statement q, int64_t none, int64_t *a, int64_t *b, bool *found,
          struct zt_error *err);
/* ZT_ENOTFOUND when the generation has no such rank. */
int w_rank_known(struct zt_writer *w, const char *run_id, uint32_t generation, uint32_t rank, struct zt_error *err);
int w_event(struct zt_writer *w, const struct zt_row_event *r, int64_t seq, struct zt_error *err);

/* rows_ckpt.c */
int w_ckpt(struct zt_writer *w, const struct zt_row_ckpt *r, struct zt_error *err);
int w_ckpt_gone(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err);
int w_ckpt_parts_gone(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err);
int w_part(struct zt_writer *w, const struct zt_row_part *r, struct zt_error *err);
int w_ckpt_set(struct zt_writer *w, const struct change *c, struct zt_error *err);
int w_saves(struct zt_writer *w, const char *run_id, const struct zt_run_saves *b, struct zt_error *err);

/* rows_steps.c, rows_logs.c, rows_traces.c */
int w_step(struct zt_writer *w, const struct change *c, struct zt_error *err);
int w_trace(struct zt_writer *w, const struct change *c, struct zt_error *err);
int w_log(struct zt_writer *w, const struct change *c, struct zt_batch_result *result, struct zt_error *err);

#endif
