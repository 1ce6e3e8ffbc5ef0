/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine.h: the coordinator's brain as a pure function.
 *
 *   zt_machine_step(machine, event, now_ns, effects)
 *
 * No clock, socket, database, thread or global inside: the shell turns frames, timers and the store's
 * answers into events and carries the effects out, in order. Given the same events and times the machine
 * gives the same effects, which is what the simulation in tests/coordinator drives.
 *
 * What the shell must do
 *  - Tick at least every ZT_MACHINE_TICK_MS with CLOCK_MONOTONIC: every time limit is judged on ticks. A
 *    longer gap is taken for a pause of the coordinator itself, and costs nobody anything.
 *  - ZT_FX_ROW_* and ZT_FX_STORE_STEPS of one call carry one `txn` number and are one transaction. Numbers
 *    grow by one. Transactions commit in order (a group commit may merge several); after a commit of all up
 *    to n: event ZT_EV_COMMITTED(n). When a commit fails: ZT_EV_STORE_FAILED, keep the transactions and try
 *    them again in order, later ones behind them. Nothing durable may be skipped.
 *  - ZT_FX_REPLY with after_txn n leaves only once n is durable (a FIFO: numbers never decrease).
 *    0 = at once. ZT_FX_DESIRED leaves at once: the machine has waited for the commit itself.
 *  - `request` is the shell's handle of a request; it comes back in replies and in the rows that belong to
 *    blobs the machine does not carry (run.yaml, plan, OOM details, last log lines): keep those blobs under
 *    it until the reply has been given.
 *  - `session` is the shell's handle of a connection, never used twice. Worker events carry the worker_id
 *    and incarnation of the session's Register.
 *
 * What a worker must do (the machine relies on it, the simulation's model workers do it)
 *  - Desired is level-triggered. START(run, g): spawn a child once per (run, generation), never again after it
 *    exited or was aborted. RUN: go on. ABORT(run, g): kill that child; with no child of g alive, answer
 *    ChildExited(run, g, rank) all the same (unless one is on its way): a worker is handed out again only
 *    after this positive report. IDLE: start nothing (a child that must go is named by ABORT). EXIT: stop the
 *    supervisor.
 *  - Nothing that came over an older connection is obeyed once a newer one has registered.
 *  - A child it holds is named in Register and in every beat until ChildExited of it was acknowledged.
 *  - Step reports of one rank and generation go in ascending order without gaps, from the step after the one
 *    it began from; a batch holds one rank of one generation. A batch beyond the next missing step is refused (ZT_EBUSY, naming that step): send the oldest
 *    unacknowledged ones first. RankDone, ReportFailure and ChildExited are sent until acknowledged, in that
 *    order, behind the step reports.
 *  - Of a save: every rank's SHARD_DONE, each behind its step reports up to that step; rank 0's GET_SHARDS, which
 *    waits until all parts are in; its CKPT_COMMIT, tried again on ZT_EBUSY. ZT_ECANCELLED: a rank could not save
 *    this step. The steps that the answer to a commit names are removed, each followed by CKPT_REMOVED; naming one
 *    again is no error.
 *  - ZT_CODE_STALE: drop what was sent. ZT_CODE_SUPERSEDED: another process took this worker's name; exit.
 *
 * Ownership: events borrow their pointers for the call; effects hold their strings inline. Memory of the
 * machine is zt_machine_new's plus one rank array per allocation. Thread rule: one thread (the loop's). */
#ifndef ZT_COORDINATOR_MACHINE_H
#define ZT_COORDINATOR_MACHINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"
#include "core/mesh.h"
#include "core/reason.h"

#define ZT_MACHINE_TICK_MS 200
#define ZT_MACHINE_WORLD_MAX 1024  /* ranks of one run */
#define ZT_RUN_ID_MAX 31           /* a ULID has 26 characters */
#define ZT_RUN_NAME_MAX 63
#define ZT_WORKER_ID_MAX 191
#define ZT_HOST_MAX 127
#define ZT_MESSAGE_MAX 767
#define ZT_HASH_MAX 32
#define ZT_COMM_ID_BYTES 128
#define ZT_COMM_GROUP_MAX 31
#define ZT_CKPT_MESSAGE_MAX 511
#define ZT_CKPT_REMOVE_MAX 32      /* steps that one commit lets go */

/* In replies, beside 0 and enum zt_code: negative of proto's Code. */
#define ZT_CODE_STALE (-24)
#define ZT_CODE_SUPERSEDED (-25)

/* Stored as numbers: never reuse one. */
enum zt_run_state {
    ZT_RUN_SUBMITTED = 0, ZT_RUN_QUEUED = 1, ZT_RUN_ALLOCATING = 2, ZT_RUN_STARTING = 3, ZT_RUN_FORMING = 4,
    ZT_RUN_RUNNING = 5, ZT_RUN_COMPLETING = 6, ZT_RUN_STOPPING = 7, ZT_RUN_RESTARTING = 8,
    ZT_RUN_PAUSED = 9,      /* reserved */
    ZT_RUN_RECOVERING = 10, /* was running when the coordinator stopped; its workers are expected back */
    ZT_RUN_SUCCEEDED = 20, ZT_RUN_FAILED = 21, ZT_RUN_CANCELLED = 22,
};
enum zt_worker_state {
    ZT_WORKER_CONNECTING = 0, ZT_WORKER_IDLE = 1, ZT_WORKER_RESERVED = 2, ZT_WORKER_STARTING = 3,
    ZT_WORKER_READY = 4, ZT_WORKER_IN_COMM = 5, ZT_WORKER_RUNNING = 6, ZT_WORKER_STOPPING = 7,
    ZT_WORKER_RECLAIMING = 8, /* holds a child that no live generation owns */
    ZT_WORKER_LOST = 9, ZT_WORKER_QUARANTINED = 10,
    ZT_WORKER_GONE = 11,      /* was draining and hung up when it had nothing left */
};
enum zt_worker_flag { ZT_WF_CORDONED = 1, ZT_WF_DRAINING = 2, ZT_WF_SUSPECT = 4, ZT_WF_LOST = 8, ZT_WF_QUARANTINED = 16 };
enum zt_trainer_phase { /* = proto's TrainerPhase */
    ZT_TP_NONE = 0, ZT_TP_STARTING = 1, ZT_TP_READY = 2, ZT_TP_IN_COMM = 3, ZT_TP_RUNNING = 4, ZT_TP_DONE = 5, ZT_TP_EXITED = 6,
};
enum zt_activity { ZT_ACT_STEP = 0, ZT_ACT_LONG = 1 }; /* LONG: evaluation, saving, loading: first_step's limit */
enum zt_desired_action { ZT_DESIRED_IDLE = 0, ZT_DESIRED_START = 1, ZT_DESIRED_RUN = 2, ZT_DESIRED_ABORT = 3, ZT_DESIRED_EXIT = 4 };

/* Of a checkpoint. Stored as numbers: never reuse one. */
enum zt_ckpt_state {
    ZT_CKPT_WRITING = 1,   /* parts come in */
    ZT_CKPT_COMMITTED = 2, /* all of it is durable; the only state that anything goes on from */
    ZT_CKPT_CORRUPT = 3,   /* was committed; its bytes are not what was written */
    ZT_CKPT_DELETING = 4,  /* let go; its files may be there in part */
    ZT_CKPT_FAILED = 5,    /* a rank could not save it, or its generation ended before */
};
/* What a generation begins from. Stored as numbers. */
enum zt_start { ZT_START_FRESH = 0, ZT_START_OWN = 1 /* a checkpoint of the run itself */, ZT_START_SOURCE = 2 /* run_config.source */ };

const char *zt_ckpt_state_name(enum zt_ckpt_state s);     /* "COMMITTED"; never NULL */
const char *zt_run_state_name(enum zt_run_state s);       /* "RUNNING"; never NULL */
const char *zt_worker_state_name(enum zt_worker_state s); /* "IDLE"; never NULL */
bool zt_run_state_terminal(enum zt_run_state s);
/* The reason of the newest stop explains this state: the run ended, stops, or waits to be tried again. One whose
 * next generation is under way is well. */
bool zt_run_state_explained(enum zt_run_state s);

struct zt_incarnation { uint8_t bytes[16]; };

/* ------------------------------------------------------------------------------ the machine */
struct zt_machine_config {
    int max_workers, max_runs, max_keys; /* tables; full = ZT_EBUSY. max_runs counts runs not ended */
    int64_t beat_ms;            /* 1000: told to workers */
    int64_t suspect_ms;         /* 3000 */
    int64_t lost_ms;            /* 5000 without beat and without a new step of its group */
    int64_t orphan_ms;          /* 60000: silent for so long = lost although its group advances */
    int64_t reattach_ms;        /* 60000: workers of running runs are expected back after a start */
    int64_t cause_ms;           /* 2000: how long a consequence waits for its cause */
    int64_t reap_ms;            /* 30000: after term_grace, before a worker is quarantined */
    int64_t rows_ms;            /* 120000: all ranks done, step rows still missing */
    int64_t exit_ms;            /* 10000: a finished trainer that does not exit is aborted */
    int64_t key_ttl_ms;         /* 24 h */
    int64_t settle_ms;          /* 1000: a run that fills the idle workers waits until no new one came for so long */
    int64_t pause_ms;           /* 1000: a gap between events that counts as a pause of the coordinator */
    int64_t progress_floor_ms;  /* 10000: automatic progress limit = max(this, 10 x EWMA of the step) */
};
void zt_machine_config_default(struct zt_machine_config *c);

/* A checkpoint of another run to begin from, resolved at submit. */
struct zt_run_source {
    char run_id[ZT_RUN_ID_MAX + 1]; /* "" = none */
    int64_t step;
    uint8_t manifest[32];       /* SHA-256 */
    bool weights_only;          /* step, moments, schedule and data begin anew */
};
/* What the machine needs to know of a run; the shell fills it from core/spec.h. */
struct zt_run_config {
    int priority;               /* 0..100, higher first */
    int workers;                /* 0 = as many idle ones as `allowed` permits; fixed by the first allocation */
    int replicate, shard, tensor; /* degrees; -1 = fill */
    bool elastic;               /* workers 0; each formation takes as many as there are and `allowed` permits, replicas
                                 * go first, then the shard degree shrinks (zt_mesh_shrink); degrees are the most */
    bool fill_shard;            /* with both data-parallel degrees open: fill shard (else replicate) */
    uint64_t allowed[ZT_MACHINE_WORLD_MAX / 64]; /* bit w-1: w workers pass zt_spec_resolve; read if workers is 0 */
    char device[16];            /* "" = any */
    int64_t memory_bytes;       /* least capacity of a worker; 0 = any */
    int64_t steps;              /* 0 = not known (epochs) */
    int max_restarts;
    double backoff_initial, backoff_max;                     /* seconds */
    double start, first_step, progress /* 0 = auto */, term_grace, time_limit, queue, comm_init; /* seconds; 0 = none
                                                                for time_limit and queue */
    bool saves;                 /* it makes checkpoints */
    bool on_preempt;            /* one more when a worker of it drains */
    int64_t keep_latest_k, keep_every; /* 0 = all; 0 = none of them */
    int no_progress_limit;      /* generations in a row without a new checkpoint; 0 = no limit */
    struct zt_run_source source;
};
struct zt_machine;
/* NULL only when memory is short. c == NULL: defaults. */
struct zt_machine *zt_machine_new(const struct zt_machine_config *c);
void zt_machine_free(struct zt_machine *m);

/* ------------------------------------------------------------------------------ rows
 * Upserts by the key named first. *_ms are wall-clock milliseconds, for people only. 0 = not yet. */
struct zt_row_run { /* key run_id; the blobs of `request` (when not 0) belong to it */
    char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1];
    uint64_t request;           /* of the Submit, in the first row of a run only */
    uint64_t order;             /* FIFO position, grows with every submit */
    enum zt_run_state state;
    enum zt_reason reason;      /* cause of the newest stop; of the end in a terminal state */
    int32_t cause_rank;         /* -1 = none */
    uint32_t generation;        /* newest ever used */
    uint32_t attempt;           /* formations so far */
    uint32_t restarts_counted;  /* against max_restarts */
    uint32_t failures_in_row;   /* drives the backoff */
    uint32_t init_timeouts;     /* formations in a row whose ranks did not meet in time */
    bool cancel_requested;
    int32_t workers;            /* 0 until the first allocation */
    struct zt_mesh mesh;        /* valid when workers > 0 */
    int64_t best_step;          /* furthest step that all ranks of a generation have reported */
    int64_t saved_step;         /* highest step ever committed as a checkpoint; 0 = none */
    uint32_t no_progress;       /* generations in a row that committed none beyond saved_step */
    bool source_corrupt;        /* config.source was found damaged */
    int64_t submitted_ms, started_ms /* first RUNNING */, ended_ms;
    char parameter_hash[ZT_HASH_MAX + 1]; /* set when SUCCEEDED */
    char detail[ZT_MESSAGE_MAX + 1]; /* pending reason, or why it stopped */
    struct zt_run_config config; /* so that recovery needs no parsing */
};
struct zt_row_attempt { /* key run_id, generation: a formation and how it ended */
    char run_id[ZT_RUN_ID_MAX + 1];
    uint32_t generation, attempt;
    int32_t world;
    int64_t started_ms, ended_ms;
    enum zt_reason reason;      /* NONE while it lives and when it succeeded */
    int32_t rank;               /* root cause; -1 = none */
    char worker_id[ZT_WORKER_ID_MAX + 1], message[ZT_MESSAGE_MAX + 1];
    int64_t last_step, steps_redone; /* last step any rank finished; steps of it that earlier ones had done */
    enum zt_start from;
    int64_t start_step;         /* of the checkpoint it began from; 0 = none */
    bool counted;
    double detect_seconds, stop_seconds, start_seconds, form_seconds, load_seconds; /* < 0 = not measured */
};
struct zt_row_rank { /* key run_id, generation, rank: the assignment and the lease */
    char run_id[ZT_RUN_ID_MAX + 1];
    uint32_t generation;
    int32_t rank, local_rank, workers_on_host;
    char worker_id[ZT_WORKER_ID_MAX + 1], host[ZT_HOST_MAX + 1];
    struct zt_incarnation incarnation;
    bool done, released;        /* released: its process is known to be gone, or its worker lost */
    int64_t done_steps;
    char parameter_hash[ZT_HASH_MAX + 1];
};
struct zt_row_failure { /* key run_id, generation, rank: the first report of each rank, in order of arrival */
    char run_id[ZT_RUN_ID_MAX + 1];
    uint64_t request;           /* of the report: the shell adds OOM details and last log lines; 0 = our own verdict */
    uint32_t generation;
    int32_t rank;
    enum zt_reason reason;
    char worker_id[ZT_WORKER_ID_MAX + 1], message[ZT_MESSAGE_MAX + 1];
    int64_t step;               /* -1 = not known */
    int32_t exit_code, signal, peer; /* -1, 0, -1 = none */
    int64_t offset_ms;
    uint32_t order;             /* 0 = first in this generation */
};
struct zt_row_worker { /* key worker_id */
    char worker_id[ZT_WORKER_ID_MAX + 1], host[ZT_HOST_MAX + 1], device[16], version[32], isa[32], backend[96], address[64];
    struct zt_incarnation incarnation;
    enum zt_worker_state state;
    uint32_t flags;             /* enum zt_worker_flag; SUSPECT is never stored */
    int64_t capacity_bytes;
    uint32_t threads;
    uint64_t pid;
    char run_id[ZT_RUN_ID_MAX + 1]; /* "" = none */
    uint32_t generation;
    int32_t rank, local_rank;
    int64_t at_ms;
};
struct zt_row_ckpt { /* key run_id, step */
    char run_id[ZT_RUN_ID_MAX + 1];
    int64_t step;
    uint32_t generation;        /* that saved it */
    enum zt_ckpt_state state;
    int32_t world;              /* parts it has */
    struct zt_mesh mesh;
    uint8_t manifest[32];       /* SHA-256; zero until committed */
    int64_t bytes;              /* of the parts that are in */
    int64_t created_ms, committed_ms;
    bool pinned;
    bool verified;              /* read back whole: by the ranks before the commit, or by somebody since */
    double stall_seconds, write_seconds; /* highest of the parts that are in */
    char parameter_hash[ZT_HASH_MAX + 1], state_hash[ZT_HASH_MAX + 1];
    char message[ZT_CKPT_MESSAGE_MAX + 1]; /* why CORRUPT or FAILED */
};
/* One rank's part of a checkpoint that is WRITING: key run_id, step, rank. Gone with that state. */
struct zt_ckpt_part {
    int32_t rank;               /* -1 = not in */
    int64_t bytes;
    uint8_t index[32];          /* SHA-256 of its index file */
    uint8_t parameter_hash[16], state_hash[16]; /* its share of the sums, little-endian */
    double stall_seconds, write_seconds;
};
struct zt_row_part { char run_id[ZT_RUN_ID_MAX + 1]; int64_t step; uint32_t generation; struct zt_ckpt_part part; };
struct zt_row_key { /* key: a mutating client request that was accepted */
    uint8_t key[16];
    char verb[8];               /* "submit", "cancel", "ckpt" */
    char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1];
    int64_t at_ms;
};
struct zt_row_event { /* append-only */
    int64_t at_ms;
    char run_id[ZT_RUN_ID_MAX + 1], worker_id[ZT_WORKER_ID_MAX + 1]; /* "" = none */
    char kind[32];              /* RUN_STATE, WORKER_STATE, FAILURE, CONSEQUENCE, HANG, ... */
    char from[16], to[16];
    enum zt_reason reason;
    uint32_t generation; int32_t rank; /* -1 = none */
    int level;                  /* 0 debug, 1 info, 2 warning, 3 error */
    char actor[16];             /* coordinator, user, worker */
    char message[ZT_MESSAGE_MAX + 1];
};

/* ------------------------------------------------------------------------------ events */
enum zt_event_kind {
    ZT_EV_START = 1,    /* once, first: recovery data */
    ZT_EV_TICK, ZT_EV_COMMITTED, ZT_EV_STORE_FAILED, ZT_EV_DISCONNECTED,
    ZT_EV_REGISTER, ZT_EV_BEAT, ZT_EV_RANK_READY, ZT_EV_RANK_IN_COMM, ZT_EV_COMM_PUT, ZT_EV_COMM_GET,
    ZT_EV_STEPS, ZT_EV_FAILURE, ZT_EV_RANK_DONE, ZT_EV_CHILD_EXITED,
    ZT_EV_SUBMIT, ZT_EV_CANCEL, ZT_EV_WORKER_SET,
    ZT_EV_SHARD_DONE, ZT_EV_GET_SHARDS, ZT_EV_CKPT_COMMIT, ZT_EV_CKPT_REMOVED, ZT_EV_CKPT_FAILED, ZT_EV_RANK_LOADED,
    ZT_EV_CKPT_SET,
};
enum zt_ckpt_set { /* = proto's SetCheckpoint.What */
    ZT_SET_PIN = 1, ZT_SET_UNPIN = 2, ZT_SET_VERIFIED = 3, ZT_SET_CORRUPT = 4, ZT_SET_DELETE = 5, ZT_SET_DELETED = 6,
};
struct zt_recovery { /* everything that was durable; pointers are borrowed */
    uint64_t epoch;
    const struct zt_row_run *runs;       size_t n_runs;     /* not terminal ones, any order */
    const struct zt_row_attempt *attempts; size_t n_attempts; /* newest of each of those runs */
    const struct zt_row_rank *ranks;     size_t n_ranks;    /* newest generation of those runs */
    const int64_t *rank_step;            /* beside ranks: highest contiguous step durable in that generation */
    const struct zt_row_worker *workers; size_t n_workers;
    const struct zt_row_key *keys;       size_t n_keys;     /* younger than 24 h, oldest first */
    const int64_t *key_age_ms;           /* beside keys */
    const int64_t *run_age_ms;           /* beside runs: since submitted */
    const int64_t *run_started_age_ms;   /* beside runs: since started_ms, -1 = never */
    const struct zt_row_ckpt *ckpts;     size_t n_ckpts;    /* of those runs, by step within a run */
    const struct zt_row_part *parts;     size_t n_parts;    /* of those that are WRITING */
    uint64_t last_order;                 /* highest `order` of any run ever */
};
struct zt_on_child { char const *run_id; uint32_t generation; int32_t rank; }; /* run_id NULL or "" = none */
struct zt_event {
    enum zt_event_kind kind;
    int64_t wall_ms;             /* for rows only, never compared */
    uint64_t request;            /* 0 = no reply wanted */
    uint64_t session;            /* worker events, DISCONNECTED */
    const char *worker_id;       /* worker events */
    struct zt_incarnation incarnation;
    struct zt_on_child at;       /* what the event is about: run, generation, rank */
    union {
        struct { const struct zt_recovery *recovery; } start;
        struct { uint64_t txn; const char *message; } store; /* COMMITTED, STORE_FAILED */
        struct {
            const char *host, *device, *version, *isa, *backend, *address;
            int64_t capacity_bytes; uint32_t threads; uint64_t pid;
            enum zt_trainer_phase phase; int64_t step; /* of `at`, -1 = not given */
            bool draining;
        } reg;
        struct {
            uint64_t seq; enum zt_trainer_phase phase;
            int64_t step;        /* last finished; -1 = not given */
            int64_t progress_age_ms; /* -1 = not given */
            enum zt_activity activity; bool draining;
            uint32_t held_by;    /* 1 + the rank it waits for in a collective; 0 = it waits for none */
        } beat;
        struct { const char *group; uint32_t index; const void *id; size_t bytes; } comm; /* PUT, GET */
        struct { int64_t first, last; double step_seconds /* NAN = not measured */; uint64_t seq; } steps;
        struct {
            enum zt_reason reason; const char *message;
            int64_t step;        /* in progress, for people: what was finished is known from STEPS; -1 = not known */
            int32_t exit_code, signal, peer; int64_t offset_ms;
        } failure;
        struct { int64_t steps; const char *parameter_hash; } done;
        struct { int32_t exit_code, signal; } exited; /* exit_code -1 = by signal or unknown */
        struct {
            const uint8_t *key;  /* 16 bytes */
            const char *run_id;  /* fresh, made by the shell; unused when the key is a repeat */
            const char *name; const struct zt_run_config *config;
            uint64_t read_txn;   /* durable when config->source was looked up */
        } submit;
        struct {
            const uint8_t *key; const char *run_id; /* resolved by the shell */
            enum zt_run_state stored; /* from the database; used only when the run is not live here */
            bool now;
        } cancel;
        struct { const char *worker_id; uint32_t set, clear; } worker_set; /* CORDONED, DRAINING, QUARANTINED */
        struct { int64_t step; struct zt_ckpt_part part; /* rank: at.rank */ } shard;
        struct {
            int64_t step;        /* GET_SHARDS, CKPT_REMOVED: this alone */
            int64_t bytes; const uint8_t *manifest; /* 32 bytes */
            const char *parameter_hash, *state_hash; /* hex; "" = not given */
            bool adopted;
        } commit;
        struct { int64_t step; const char *message; bool disk_full; } ckpt_failed;
        struct { int64_t step; double seconds; /* NAN = not measured */ int64_t bytes, memory_bytes; } loaded;
        struct {
            const uint8_t *key; const char *run_id; int64_t step; enum zt_ckpt_set what; const char *message;
            uint64_t read_txn;   /* durable when what follows was read; used only when the run is not live here */
            bool found; enum zt_ckpt_state state; bool pinned; int others; /* verified and committed ones beside it */
        } ckpt_set;
    } u;
};

/* ------------------------------------------------------------------------------ effects */
enum zt_effect_kind {
    ZT_FX_ROW_RUN = 1, ZT_FX_ROW_ATTEMPT, ZT_FX_ROW_RANK, ZT_FX_ROW_FAILURE, ZT_FX_ROW_WORKER, ZT_FX_ROW_KEY,
    ZT_FX_ROW_EVENT,
    ZT_FX_ROW_CKPT,     /* also drops its parts, once it is not WRITING */
    ZT_FX_ROW_CKPT_GONE, /* the row goes; u.ckpt has its key */
    ZT_FX_ROW_PART,
    ZT_FX_CKPT_SET,     /* a change to a row of a run that is not live */
    ZT_FX_STORE_STEPS,  /* write the batch of `request` into this transaction */
    ZT_FX_REPLY, ZT_FX_DESIRED,
};
struct zt_desired {
    enum zt_desired_action action;
    char run_id[ZT_RUN_ID_MAX + 1]; uint32_t generation; int32_t rank;
    /* START and RUN: the assignment; the shell adds run.yaml, name and overrides by run_id */
    int32_t local_rank, workers_on_host, world; struct zt_mesh mesh; uint32_t attempt; double init_timeout_seconds, term_grace_seconds;
    enum zt_start from; int64_t start_step; uint8_t manifest[32]; bool weights_only, save_on_drain;
};
struct zt_fx_reply {
    uint64_t request, after_txn;
    int code;                    /* 0, enum zt_code, ZT_CODE_STALE, ZT_CODE_SUPERSEDED */
    enum zt_event_kind to;       /* which kind of event is answered: gives the reply's body */
    bool has_desired; struct zt_desired desired; /* REGISTER, BEAT, and every refusal of a worker */
    uint64_t epoch, seq;         /* REGISTER, BEAT, STEPS */
    uint8_t comm_id[ZT_COMM_ID_BYTES]; size_t comm_id_bytes; /* COMM_PUT, COMM_GET */
    char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1]; /* SUBMIT, CANCEL */
    enum zt_run_state state; uint32_t position; /* SUBMIT (position 1 = next), CANCEL */
    char message[ZT_MESSAGE_MAX + 1]; /* refusals; SUBMIT: the pending reason */
    const struct zt_ckpt_part *parts; int n_parts; /* GET_SHARDS: of the machine, until its next step */
    int64_t remove[ZT_CKPT_REMOVE_MAX]; int n_remove; /* CKPT_COMMIT */
};
struct zt_effect {
    enum zt_effect_kind kind;
    uint64_t txn;                /* ROW_* and STORE_STEPS */
    union {
        struct zt_row_run run; struct zt_row_attempt attempt; struct zt_row_rank rank; struct zt_row_failure failure;
        struct zt_row_worker worker; struct zt_row_key key; struct zt_row_event event;
        struct zt_row_ckpt ckpt; struct zt_row_part part;
        struct { char run_id[ZT_RUN_ID_MAX + 1]; int64_t step; enum zt_ckpt_set what; char message[ZT_CKPT_MESSAGE_MAX + 1]; } ckpt_set;
        struct { uint64_t request; char run_id[ZT_RUN_ID_MAX + 1]; uint32_t generation; int32_t rank; } steps;
        struct zt_fx_reply reply;
        struct { uint64_t session; char worker_id[ZT_WORKER_ID_MAX + 1]; struct zt_desired desired; } desired; /* push */
    } u;
};
struct zt_effects { struct zt_effect *v; size_t n, cap; };
void zt_effects_free(struct zt_effects *fx);

/* Handles one event. fx is emptied first and keeps its memory between calls. Times must not decrease.
 * Returns 0, or ZT_ENOMEM with the machine unchanged: answer ZT_EBUSY and go on. START also returns ZT_EBUSY
 * when the recovered rows do not fit max_workers and max_runs. */
int zt_machine_step(struct zt_machine *m, const struct zt_event *ev, int64_t now_ns, struct zt_effects *fx);

/* ------------------------------------------------------------------------------ looking in (status, tests) */
struct zt_worker_view {
    const char *worker_id, *host, *run_id; enum zt_worker_state state; uint32_t flags, generation; int32_t rank, local_rank;
    double beat_age_seconds; enum zt_trainer_phase phase; int64_t step; bool connected;
};
struct zt_run_view {
    const char *run_id, *name, *detail; enum zt_run_state state; enum zt_reason reason; uint32_t generation, attempt;
    int32_t workers; struct zt_mesh mesh; int64_t step; /* highest step of this generation heard of */
};
int zt_machine_workers(const struct zt_machine *m);
void zt_machine_worker_at(const struct zt_machine *m, int i, int64_t now_ns, struct zt_worker_view *v);
int zt_machine_runs(const struct zt_machine *m); /* not ended, or ended and not yet durable or not yet released */
void zt_machine_run_at(const struct zt_machine *m, int i, struct zt_run_view *v);
/* The rank's live view; false past the world or without an allocation. */
bool zt_machine_rank_at(const struct zt_machine *m, int run, int rank, int64_t now_ns, struct zt_worker_view *v);
/* A request with this key (16 bytes) was taken and is remembered. */
bool zt_machine_has_key(const struct zt_machine *m, const uint8_t *key);
uint64_t zt_machine_txn(const struct zt_machine *m);     /* newest transaction issued */
uint64_t zt_machine_durable(const struct zt_machine *m);
/* Asserts every invariant numbered in machine.c; returns NULL or the text of a broken one. */
const char *zt_machine_check(const struct zt_machine *m);

/* ------------------------------------------------------------------------------ placement (schedule.c) */
struct zt_slot { const char *host, *worker_id; int index; }; /* an idle worker; index is the caller's */
/* Orders `world` of the n slots as ranks 0..world-1 of `mesh`: tensor groups on one host first, then shard
 * groups within a host where they fit; as few hosts as possible, hosts and names in natural order. Writes
 * indices into slots to order[world]. scratch has room for 4 n ints. Returns 0, or ZT_ENOPLACE when n < world. */
int zt_schedule_place(const struct zt_slot *slots, int n, struct zt_mesh mesh, int *order, int *scratch);
/* strcmp that reads runs of digits as numbers: "w2" < "w10". */
int zt_natural_compare(const char *a, const char *b);

#endif
