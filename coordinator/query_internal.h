/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query_internal.h: what the parts of the read side share. Same thread and ownership rules as
 * query.h. Replies are built of malloc'ed messages, so that protobuf-c's free_unpacked frees them. */
#ifndef ZT_COORDINATOR_QUERY_INTERNAL_H
#define ZT_COORDINATOR_QUERY_INTERNAL_H
#include <stdbool.h>
#include "coordinator/machine.h"
#include "coordinator/query.h"
#include "proto/frame.h"

struct zt_run_ref {
    char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1];
    enum zt_run_state state;
    uint32_t generation;
    int32_t replicate, shard, tensor;
};
/* Id, name (the newest run of it), "@latest", or unique prefix of an id, in this order. */
int zt_query_resolve(sqlite3 *db, const char *text, struct zt_run_ref *ref, struct zt_error *err);

/* A committed checkpoint that something may begin from. */
struct zt_ckpt_source {
    char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1];
    int64_t step;
    uint8_t manifest[32];
    int world;        /* ranks that saved it */
    bool weights_only; /* nothing else of it is wanted; the caller's */
    char *folder;     /* holds step-NNNNNNNN; malloc'ed, as the next */
    char *normalised; /* specification of that run */
};
/* step < 0: the newest. ZT_ENOTFOUND says which there are. */
int zt_query_ckpt_source(sqlite3 *db, const char *run, int64_t step, struct zt_ckpt_source *out, struct zt_error *err);
void zt_ckpt_source_free(struct zt_ckpt_source *s);
/* What a change to one depends on; others: verified and committed ones of its run beside it. */
struct zt_ckpt_facts { bool found, pinned; enum zt_ckpt_state state; int others; };
int zt_query_ckpt_facts(sqlite3 *db, const char *run_id, int64_t step, struct zt_ckpt_facts *f, struct zt_error *err);

/* One query in preparation: the statement, what was bound to it, and whether memory ran out on the way. */
struct query { sqlite3 *db; sqlite3_stmt *s; struct zt_error *err; int code; bool oom; };
/* Prepares sql; q->code is set on failure and every later call is a no-op that returns false. */
void q_open(struct query *q, sqlite3 *db, const char *sql, struct zt_error *err);
void q_text(struct query *q, int i, const char *v);
void q_int(struct query *q, int i, int64_t v);
bool q_row(struct query *q);  /* false at the end or on failure (q->code) */
int q_close(struct query *q); /* 0, or what went wrong; ZT_ENOMEM when a builder below ran dry */

void *q_new(struct query *q, const ProtobufCMessageDescriptor *type); /* an empty message; NULL sets oom */
#define Q_NEW(q, type, lower) ((type *)q_new(q, &lower##__descriptor))
char *q_string(struct query *q, int column);                          /* malloc'ed, "" for NULL */
char *q_string_or_null(struct query *q, int column);                  /* NULL for NULL and "" */
ProtobufCBinaryData q_blob(struct query *q, int column);
char *q_copy(struct query *q, const char *text);
bool q_has(struct query *q, int column);
/* Appends to a repeated field. */
bool q_push(struct query *q, void ***list, size_t *n, void *item);

int zt_query_metrics(sqlite3 *db, const Zt__GetMetrics *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_memory(sqlite3 *db, const Zt__GetMemory *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_logs(sqlite3 *db, const Zt__GetLogs *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_events(sqlite3 *db, const Zt__GetEvents *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_dtypes(sqlite3 *db, const Zt__GetDtypes *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_trace(sqlite3 *db, const Zt__GetTrace *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_list_runs(sqlite3 *db, const Zt__ListRuns *req, Zt__Envelope *reply, struct zt_error *err);
int zt_query_get_run(sqlite3 *db, const Zt__GetRun *req, Zt__Envelope *reply, struct zt_error *err);
/* The plan beside: of each window of the newest generation the row with the highest allocated peak. */
int zt_query_highest_windows(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err);
int zt_query_checkpoints(sqlite3 *db, const Zt__ListCheckpoints *req, Zt__Envelope *reply, struct zt_error *err);
/* The newest committed checkpoint, the one being saved, and what the run began from. */
int zt_query_run_saves(sqlite3 *db, const char *run_id, Zt__RunDetail *d, struct zt_error *err);
int zt_query_workers(sqlite3 *db, Zt__Envelope *reply, struct zt_error *err);
int zt_query_status(sqlite3 *db, Zt__Envelope *reply, struct zt_error *err);

#endif
