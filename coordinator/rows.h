/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows.h: what can be written to the database, and how. A batch is a list of typed changes that
 * the loop fills and hands to the store (store.h), whose writer thread applies it here, in one transaction.
 *
 * A batch owns copies of all it was given (one arena). Adding never fails at the call: a batch that ran out
 * of memory or was given something impossible remembers it and zt_batch_error says so.
 * Thread rule: a batch belongs to one thread at a time; the writer functions run on the writer thread. */
#ifndef ZT_COORDINATOR_ROWS_H
#define ZT_COORDINATOR_ROWS_H
#include <sqlite3.h>
#include "coordinator/machine.h"
#include "proto/ztrain.pb-c.h"

/* ---------------------------------------------------------------- batches (loop) */
struct zt_batch;

/* Where a run saves, and the checkpoint of another run it begins from (config.source), as resolved at submit. */
struct zt_run_saves {
    const char *folder;        /* "" = it saves nothing */
    int64_t interval, keep_latest_k, keep_every;
    const char *source_run, *source_name, *source_folder; int64_t source_step; /* "" = none */
    bool weights_only, accept_batch_change;
};
/* What was submitted; belongs to the first row of a run. Text is copied. */
struct zt_run_blobs {
    const void *run_yaml; size_t run_yaml_bytes;
    const char *file, *normalised, *hash, *mode;
    const char *overrides;     /* JSON array of strings */
    const void *plan; size_t plan_bytes;
    int64_t per_rank_keep, warmup_steps;
    int max_restarts;
    struct zt_run_saves saves;
};
/* What a failure report carries beyond the machine's row. */
struct zt_failure_blobs {
    const char *phase; const void *oom, *last_log; size_t oom_bytes, last_log_bytes;
    int64_t at_ms;             /* wall clock, of the event OOM */
};

struct zt_batch *zt_batch_new(void);            /* NULL: no memory */
void zt_batch_free(struct zt_batch *b);
size_t zt_batch_bytes(const struct zt_batch *b);
size_t zt_batch_changes(const struct zt_batch *b);
int zt_batch_error(const struct zt_batch *b, struct zt_error *err);

void zt_batch_run(struct zt_batch *b, const struct zt_row_run *row, const struct zt_run_blobs *blobs);
void zt_batch_attempt(struct zt_batch *b, const struct zt_row_attempt *row);
void zt_batch_rank(struct zt_batch *b, const struct zt_row_rank *row);
void zt_batch_failure(struct zt_batch *b, const struct zt_row_failure *row, const struct zt_failure_blobs *blobs);
void zt_batch_worker(struct zt_batch *b, const struct zt_row_worker *row);
void zt_batch_key(struct zt_batch *b, const struct zt_row_key *row);
void zt_batch_ckpt(struct zt_batch *b, const struct zt_row_ckpt *row);
void zt_batch_ckpt_gone(struct zt_batch *b, const char *run_id, int64_t step);
void zt_batch_part(struct zt_batch *b, const struct zt_row_part *row);
/* A change to a row of a run that is not live; a row that is not there stays away. */
void zt_batch_ckpt_set(struct zt_batch *b, const char *run_id, int64_t step, enum zt_ckpt_set what, const char *message);
/* seq < 0: none. A worker's event with a seq is stored once. */
void zt_batch_event(struct zt_batch *b, const struct zt_row_event *row, int64_t seq);
void zt_batch_steps(struct zt_batch *b, const char *run_id, Zt__StepReport *const *steps, size_t n);
/* ZT_EINVAL for one that zt_trace_check does not pass. */
void zt_batch_traces(struct zt_batch *b, const char *run_id, Zt__StepTrace *const *traces, size_t n);
/* One rank's number formats. */
void zt_batch_dtypes(struct zt_batch *b, const char *run_id, const Zt__DtypesReport *r);
/* A piece of a log stream at its byte offset; end: nothing follows it. Only one per batch: the result is the stream's new end. */
void zt_batch_log(struct zt_batch *b, const char *run_id, uint32_t generation, uint32_t rank, uint64_t offset,
                  bool err, bool end, const void *data, size_t bytes, int64_t at_ms);

/* ---------------------------------------------------------------- applying (writer thread) */
#define ZT_LOG_QUOTA_DEFAULT ((int64_t)256 << 20) /* bytes of logs kept per run */

struct zt_writer;
struct zt_batch_result { uint64_t log_next; };

int zt_writer_new(sqlite3 *db, int64_t log_quota, struct zt_writer **out, struct zt_error *err);
void zt_writer_free(struct zt_writer *w);
/* Applies one batch inside an open transaction. ZT_ENOTFOUND: the batch speaks of an unknown run or
 * generation. Roll-ups of touched steps wait for zt_writer_finish. */
int zt_writer_apply(struct zt_writer *w, const struct zt_batch *b, struct zt_batch_result *result, struct zt_error *err);
/* Computes the roll-ups of the steps touched since the transaction began: call before COMMIT. */
int zt_writer_finish(struct zt_writer *w, int64_t wall_ms, struct zt_error *err);
bool zt_writer_saves(const struct zt_writer *w); /* a checkpoint becomes COMMITTED by what was applied since the last forget */
void zt_writer_forget(struct zt_writer *w); /* after COMMIT or ROLLBACK: drops what was remembered of it */
/* What nobody asks for any more: request keys after a day; events after 30, but for the newest 10,000; workers
 * that were stopped a day ago or have not been heard of for a week; traces of runs that ended 30 days ago. */
int zt_writer_prune(struct zt_writer *w, int64_t now_ms, struct zt_error *err);

#endif
