/* SPDX-License-Identifier: Apache-2.0 */
/* worker/supervisor.h: inside of the supervisor, shared by supervisor.c (session, beats, what is wanted),
 * job.c (one trainer of one generation), tell.c (what must still be told about it) and relay.c (what its
 * trainer asks about checkpoints).
 *
 *   coordinator <-- session --> supervisor <-- frames, pipes, mapping --> trainer child
 *
 * A job is made for a (run, generation) when START is heard, or for an ABORT of one that is not here, and
 * lives until the coordinator has acknowledged, in this order: step reports and traces, RankDone or
 * ReportFailure, ChildExited; and its log. Everything runs on one loop and one thread; nothing here ever waits for the
 * child or for the coordinator. */
#ifndef ZT_WORKER_SUPERVISOR_H
#define ZT_WORKER_SUPERVISOR_H
#include <stdbool.h>
#include <uv.h>
#include "proto/session.h"
#include "worker/child.h"
#include "worker/identity.h"
#include "worker/logs.h"
#include "worker/memory.h"
#include "worker/steps.h"
#include "worker/traces.h"

struct zw_options {
    char host[256];             /* coordinator */
    int port;
    const char *device, *host_name, *name, *address, *token_file, *state, *trainer_command;
    const char *isa, *gemm;
    int64_t memory_bytes;       /* 0 = default */
    int threads;                /* 0 = default */
};
int zw_supervise(const struct zw_options *o); /* the process's exit code */

struct zw_supervisor;

enum zw_told { ZW_NOT_YET = 0, ZW_SENT, ZW_ACKED };

struct zw_job {
    struct zw_supervisor *sup;
    struct zw_job *next;
    uint64_t serial;
    char run_id[64];
    uint32_t generation, rank;
    struct zw_child child;
    bool spawned;               /* there is or was a process */
    bool reaped;
    int status;                 /* waitpid's, when reaped */
    bool finished;              /* process gone and its channels read to the end */
    bool killed, drained;       /* by us; because of a drain */
    bool aborted;               /* the coordinator asked for it */
    bool save_on_drain;         /* a trainer that must go saves first */
    bool stop_told;             /* and has been asked to */
    double term_grace;          /* seconds it has for that */
    uint64_t started_at, killed_at, reaped_at;
    bool unkillable_told;
    Zt__TrainerPhase phase;
    uv_pipe_t channel, out, err;
    int open_pipes;             /* still reading */
    int handles;                /* not closed yet */
    struct zt_decoder decoder;
    char buf[65536];
    struct zw_steps steps;
    struct zw_logs logs;
    char *log_chunk;            /* ZW_LOG_CHUNK bytes */
    struct zw_batch batch;      /* sent, not acknowledged */
    uint64_t batch_seq;
    int64_t batch_last, step_acked; /* steps: of the newest report in the batch; up to which reports are durable */
    struct zw_relay *relays;    /* oldest first */
    struct zw_traces traces;
    struct zw_batch traces_out; /* sent, not acknowledged */
    uint64_t traces_dropped_told;
    Zt__DtypesReport *dtypes;   /* NULL: nothing was told, or all is */
    enum zw_told batch_told, traces_told, dtypes_told, log_told, verdict_told, exit_told;
    bool has_verdict;
    Zt__Envelope *verdict;      /* RankDone or ReportFailure */
    void *verdict_arena;
    bool log_end_sent, log_end_told; /* in the piece that is out; acknowledged, or nobody wants it */
    uint64_t retry_at;          /* after a refusal that may pass */
    bool reports_refused;       /* STALE: nothing more of this generation is wanted */
    size_t events_pending;
    uint64_t event_seq;
    bool dead;                  /* all told; waits for handles */
    int requests;               /* outstanding with this job as argument */
};

struct zw_past { char run_id[64]; uint32_t generation; };
#define ZW_PAST 64

struct zw_supervisor {
    struct zw_options o;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_signal_t sigchld, sigterm, sigint;
    struct zw_identity id;
    struct zt_client *client;
    struct zt_token token;
    char state[1024];
    char backend[96], isa[32];
    char address[64];           /* of its ranks: --address, else this end of the session's connection */
    int64_t half_memory;        /* half of MemAvailable when this process started */
    int cpus;
    int64_t capacity;           /* as registered */
    int threads;
    bool registered;
    uint64_t epoch, beat_seq, next_serial, next_batch;
    uint64_t beat_ms, next_beat, lost_since; /* lost_since 0 = connected */
    int beats_out;
    struct zw_job *jobs;        /* newest first */
    Zt__Envelope *wanted;       /* BeatReply whose START waits for the old child to go */
    void *wanted_arena;
    struct zw_past past[ZW_PAST]; /* generations that had their child */
    size_t n_past;
    bool draining, quitting, drain_heard;
    uint64_t drain_until, kill_at; /* kill_at 0: the trainer is not saving on our account */
    struct zw_memory memory;
    uint64_t memory_since;      /* its last trainer ended then */
    int exit_code;
    bool client_closed;
    uint64_t last_complaint;
};

/* Monotonic milliseconds of this loop turn. */
static inline uint64_t zw_now(const struct zw_supervisor *s) { return uv_now(&s->loop); }

/* tell.c */
/* What zt_client_request hands back; the job cannot go while one is out. */
struct zw_relay;
struct zw_ask { struct zw_job *job; uint64_t child_request; struct zw_relay *relay; };
struct zw_ask *zw_ask_new(struct zw_job *j); /* NULL: no memory */
int zw_ask_send(struct zw_ask *a, Zt__Envelope *env, zt_reply_fn fn); /* frees a when it returns an error */
/* After a refusal: true = try again later. reply NULL: the session is over. */
bool zw_may_pass(const Zt__Envelope *reply);
void zw_job_event(struct zw_job *j, const Zt__ReportEvent *from);
void zw_job_pump(struct zw_job *j); /* sends what is next */

/* job.c */
struct zw_job *zw_job_new(struct zw_supervisor *s, const char *run_id, uint32_t generation, uint32_t rank);
/* Starts the trainer of an assignment; a failure becomes the job's verdict. */
void zw_job_start(struct zw_job *j, const Zt__Assignment *a);
void zw_job_kill(struct zw_job *j);
bool zw_job_stop(struct zw_job *j); /* asks a trainer that is in its steps to save and end; false: it will not */
void zw_job_to_child(struct zw_job *j, const Zt__Envelope *env);
void zw_job_reaped(struct zw_job *j, int status);
void zw_job_tick(struct zw_job *j);
bool zw_job_told(const struct zw_job *j);  /* ChildExited is acknowledged */
bool zw_job_holds_child(const struct zw_job *j); /* a process that is not reaped */
bool zw_job_free_if_done(struct zw_job *j); /* true: freed */
void zw_job_close(struct zw_job *j);        /* at the end of the process: give up what is untold */

/* relay.c */
void zw_relay(struct zw_job *j, const Zt__Envelope *from); /* takes a copy */
void zw_relays_pump(struct zw_job *j);
void zw_relays_drop(struct zw_job *j); /* those that are not out */

/* supervisor.c */
void zw_log(const struct zw_supervisor *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void zw_supervisor_job_gone(const struct zw_job *gone); /* its process */
/* Folder for copies of the job's run's last checkpoint; NULL: there is none, which was told. */
char *zw_supervisor_memory(struct zw_job *j);

#endif
