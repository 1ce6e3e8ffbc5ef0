/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/shell.h: the inside of `zcoord serve`, shared by its files:
 *   serve.c     life: folders, token, store, recovery, socket, timer, signals, stop
 *   dispatch.c  messages -> events of the machine, or reads, or log pieces; dispatch_ckpt.c: those of checkpoints
 *   submit.c    Submit: the file checked again, what it begins from, the run's blobs
 *   effects.c   effects of the machine -> store batches, replies (after durability), pushes
 *   requests.c  requests that wait for an answer, and sessions
 *   readers.c   read requests on libuv's thread pool, each with its own database connection
 *   live.c      puts what only the machine knows (beat ages, ranks' steps) into replies read from the database
 *
 *   frame -> dispatch -> zt_machine_step -> effects -> store --commit--> COMMITTED -> replies
 *
 * Everything here runs on the loop's thread; the loop never touches SQLite. */
#ifndef ZT_COORDINATOR_SHELL_H
#define ZT_COORDINATOR_SHELL_H
#include <sqlite3.h>
#include <stdbool.h>
#include <uv.h>
#include "coordinator/machine.h"
#include "coordinator/query_internal.h"
#include "coordinator/recover.h"
#include "coordinator/store.h"
#include "proto/session.h"

struct zt_shell;

/* ---------------------------------------------------------------- requests.c */
/* A connection that said hello. Its id is never used twice; the machine knows it by this. */
struct zt_session {
    uint64_t id;
    struct zt_peer *peer;       /* NULL once closed */
    struct zt_session *next, **link;
    bool registered;
    char worker_id[ZT_WORKER_ID_MAX + 1];
    struct zt_incarnation incarnation;
};
/* A request the machine or the store has not answered yet. It outlives its connection: the rows that need its
 * blobs may come later, its answer then goes nowhere. */
struct zt_request {
    uint64_t id;                /* the machine's handle */
    uint64_t session;           /* id; the peer is looked up, never kept */
    uint64_t wire_id;           /* request_id on the wire */
    struct zt_request *next;    /* hash chain */
    Zt__Envelope *env; void *arena; /* a copy, for blobs; NULL when none are needed */
    struct zt_run_blobs run;    /* Submit: texts owned below */
    char *normalised, *overrides, *hash;
    char *mode, *folder;
    struct zt_ckpt_source source;    /* Submit that begins from another run's checkpoint */
    uint8_t *oom; size_t oom_bytes; /* ReportFailure */
    bool client;                /* may be answered BUSY when the disk refuses */
    bool answered;
};
#define ZT_REQUEST_BUCKETS 4096

struct zt_session *zt_session_add(struct zt_shell *sh, struct zt_peer *peer);
struct zt_session *zt_session_find(struct zt_shell *sh, uint64_t id);
void zt_session_remove(struct zt_shell *sh, struct zt_session *s);

struct zt_request *zt_request_new(struct zt_shell *sh, const struct zt_session *s, const Zt__Envelope *env, bool keep_copy,
                                  struct zt_error *err);
struct zt_request *zt_request_find(struct zt_shell *sh, uint64_t id);
void zt_request_end(struct zt_shell *sh, uint64_t id); /* answered: forget it */
/* Drops a closed session's waiting GetCommId and GetShards requests, which the machine forgets without an answer. */
void zt_requests_drop_waiting(struct zt_shell *sh, uint64_t session);
void zt_requests_free(struct zt_shell *sh);
/* Answers by session and wire id; nothing happens when the connection is gone. */
void zt_answer(struct zt_shell *sh, uint64_t session, uint64_t wire_id, Zt__Envelope *env);
void zt_answer_error(struct zt_shell *sh, uint64_t session, uint64_t wire_id, int code, const char *message);

/* ---------------------------------------------------------------- effects.c */
struct zt_wait_reply { struct zt_wait_reply *next; struct zt_fx_reply reply; struct zt_ckpt_part *parts; /* of the reply */ };
/* What a live run's assignments are made of. */
struct zt_run_info { struct zt_run_info *next; struct zt_run_text text; char **overrides; size_t n_overrides; };

/* One event through the machine, and its effects. audit may be NULL: an event row written in the same transaction. */
void zt_shell_step(struct zt_shell *sh, struct zt_event *ev, const struct zt_row_event *audit);
void zt_shell_committed(struct zt_shell *sh);            /* after completions: sh->committed moved */
void zt_shell_store_state(struct zt_shell *sh, int code, const char *message);
int zt_run_info_add(struct zt_shell *sh, const struct zt_run_text *t, struct zt_error *err); /* takes the texts over */
void zt_effects_end(struct zt_shell *sh);                /* frees what waits */
void zt_audit(struct zt_shell *sh, struct zt_row_event *e, const struct zt_session *s, const char *verb, const char *run_id,
              const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* ---------------------------------------------------------------- dispatch.c */
void zt_dispatch(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env);
void zt_dispatch_closed(struct zt_shell *sh, uint64_t session);
/* The second half of Cancel, once a reader has found the run. */
void zt_dispatch_cancel(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, const struct zt_run_ref *ref);
void zt_refuse(struct zt_session *s, const Zt__Envelope *env, int code, const char *message);
/* Registers the request and runs the event. keep_copy: its blobs are needed later. */
void zt_dispatch_step(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env, struct zt_event *ev, bool keep_copy);
/* NULL, or what is wrong with the place a worker's message names. */
const char *zt_bad_place(const char *run_id, uint32_t rank);

/* ---------------------------------------------------------------- dispatch_ckpt.c */
void zt_dispatch_ckpt(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env); /* ShardDone .. RankLoaded */
void zt_on_set_checkpoint(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env);
/* The second half, once a reader has found run and row; read_txn: durable when it began. */
void zt_dispatch_set_checkpoint(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, const struct zt_run_ref *ref,
                                const struct zt_ckpt_facts *facts, uint64_t read_txn);

/* ---------------------------------------------------------------- submit.c */
void zt_on_submit(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env);
/* Reader's thread: the checkpoint of another run that this submit begins from, or 0 with an empty run_id. */
int zt_submit_resolve(sqlite3 *db, const Zt__Submit *m, struct zt_ckpt_source *out, struct zt_error *err);
/* The second half. source: taken over, also on failure; NULL or an empty run_id = none. */
void zt_dispatch_submit(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, struct zt_ckpt_source *source, uint64_t read_txn);

/* ---------------------------------------------------------------- readers.c */
struct zt_readers;
int zt_readers_new(struct zt_shell *sh, struct zt_readers **out, struct zt_error *err);
/* Answers the read request (or resolves a Cancel's run) on a pool thread; the answer leaves on the loop. */
void zt_readers_submit(struct zt_readers *r, const struct zt_session *s, const Zt__Envelope *env);
size_t zt_readers_busy(const struct zt_readers *r);
void zt_readers_free(struct zt_readers *r); /* none may be busy */

/* ---------------------------------------------------------------- live.c */
void zt_live_overlay(struct zt_shell *sh, Zt__Envelope *reply);

/* ---------------------------------------------------------------- serve.c */
struct zt_shell {
    char state_dir[1024];
    uv_loop_t loop;
    struct zt_store *store;
    struct zt_machine *machine;
    struct zt_effects fx;
    struct zt_server *server;
    struct zt_readers *readers;
    uv_timer_t tick;
    uv_signal_t sigterm, sigint;
    uint64_t epoch;

    /* requests.c */
    uint64_t next_session, next_request;
    struct zt_session *sessions[ZT_REQUEST_BUCKETS];
    struct zt_request *requests[ZT_REQUEST_BUCKETS];
    size_t n_requests;

    /* effects.c */
    bool stepping;               /* a machine step is being carried out: no other may begin */
    uint64_t *closed; size_t n_closed, cap_closed; /* sessions that closed meanwhile */
    uint64_t committed, durable; /* newest transaction known to be durable; told to the machine */
    struct zt_wait_reply *waiting, **waiting_last;
    struct zt_run_info *infos;
    int store_state; char store_message[320]; /* of the newest failure to write, 0 when all is well */

    /* stop */
    bool running, stopping, server_closed, store_closing;
    int exit_code;
};
int64_t zt_shell_now_ns(void);
int64_t zt_shell_wall_ms(void);
void zt_shell_stop(struct zt_shell *sh, int exit_code, const char *why);
void zt_shell_check_stop(struct zt_shell *sh); /* goes on with a stop when what it waited for is over */
/* A line of the log on standard error: time, level, event, then FORMAT, which holds key=value pairs. */
void zt_coord_log(const char *level, const char *event, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
