/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_internal.h: the machine's tables and what its files share. For machine*.c and the
 * machine's own tests only. Prefix mc_. All times are "active" nanoseconds: the shell's monotonic time
 * less the pauses of the coordinator itself. */
#ifndef ZT_COORDINATOR_MACHINE_INTERNAL_H
#define ZT_COORDINATOR_MACHINE_INTERNAL_H
#include "coordinator/machine.h"

/* Bugs that tests plant to show that the simulation sees them. Absent from what we ship. */
enum mc_plant {
    MC_PLANT_NONE = 0, MC_PLANT_ACK_EARLY, MC_PLANT_NO_GENERATION_CHECK, MC_PLANT_REUSE_GENERATION,
    MC_PLANT_START_EARLY, MC_PLANT_FREE_EARLY, MC_PLANT_DONE_EARLY, MC_PLANT_COMM_OVERWRITE,
    MC_PLANT_FORGET_KEYS, MC_PLANT_NO_LOSS,
    MC_PLANT_COMMIT_EARLY, MC_PLANT_RESUME_WRITING, MC_PLANT_KEEP_NOTHING, MC_PLANT_FORGET_PARTS, MC_PLANT_FRESH_START,
    MC_PLANT_COMMIT_WITHOUT_ROWS, MC_PLANT_COUNT,
};
#ifdef ZT_MACHINE_PLANTS
extern int zt_machine_plant;
#define MC_PLANTED(p) (zt_machine_plant == (p))
#else
#define MC_PLANTED(p) false
#endif

#define MC_MS 1000000LL
#define MC_SECOND 1000000000LL
static inline double mc_seconds(int64_t ns) { return (double)ns / 1e9; }
static inline int64_t mc_to_ms(double seconds) { return (int64_t)(seconds * 1e3); }
#define MC_OLD_INCARNATIONS 4
#define MC_ENDED 64
#define MC_SAVES_MAX 8           /* checkpoints of a run that are WRITING at once; two are normal at the end of a run */
#define MC_FAILED_KEPT 8         /* rows of failed saves kept per run */

struct mc_rank {
    struct zt_row_rank row;      /* the durable part */
    int worker;                  /* index of the bound worker, -1 when unbound */
    bool dirty;
    bool seen;                   /* a child of this generation was reported alive */
    bool ready, in_comm, back;   /* back: reattached after a start of the coordinator */
    bool failed;                 /* has a failure row */
    bool drained;                /* ended as asked, with the others to follow */
    bool loaded;                 /* goes on from the generation's checkpoint */
    int64_t loaded_bytes, loaded_memory; /* read for that, from files; from copies in memory */
    enum zt_activity activity;
    int64_t step;                /* last finished step heard of */
    int64_t progress_at;         /* of its last progress, or when we began to watch it */
    uint32_t held_by;            /* 1 + the rank it waits for in a collective, as its last beat said; 0 = none */
    int64_t have;                /* steps 1..have were handed to the store */
    uint64_t have_txn;
};
struct mc_ckpt {
    struct zt_row_ckpt row;
    struct zt_ckpt_part *parts;  /* row.world of them while WRITING, else NULL */
    int n_in;
    uint64_t request;            /* rank 0 waits for the parts; 0 = it does not */
};
struct mc_start { enum zt_start from; int64_t step; const uint8_t *manifest; bool weights_only; };
struct mc_run {
    bool used, dirty, attempt_dirty;
    struct zt_row_run row;
    struct zt_row_attempt attempt;
    struct mc_rank *ranks;       /* row.workers of them, NULL without an allocation */
    int world;                   /* 0 without an allocation */
    uint64_t row_txn;            /* transaction of the newest run row */
    int64_t state_at;            /* when the state was entered */
    int64_t stop_at;             /* when STOPPING was entered */
    int64_t submitted_at, started_at, retry_at;
    bool started;
    uint32_t generation_floor;   /* highest generation any worker presented */
    struct { bool on; enum zt_reason reason; int rank, peer; int64_t at; char message[ZT_MESSAGE_MAX + 1]; } pending;
    uint32_t n_failures;         /* failure rows of this generation */
    int64_t gen_step;            /* furthest step in this generation */
    int64_t evidence_at;         /* when gen_step last grew */
    double ewma_ns;              /* of one step; 0 = not known */
    struct mc_ckpt *ckpts; int n_ckpts, cap_ckpts; /* by step */
    int64_t save_floor;          /* highest step that this generation has begun to save */
    bool committed;              /* this generation has committed beyond what there was */
    bool waits;                  /* rank 0 has waited for parts */
    uint64_t ckpt_txn;           /* of the newest change to a checkpoint row */
    struct { bool on; int rank; int64_t at; } drain; /* a worker of it drains: the ranks are stopping by themselves */
};
struct mc_changed { char run_id[ZT_RUN_ID_MAX + 1]; uint64_t txn; }; /* checkpoints of a run that is not live */
struct mc_child { bool any; char run_id[ZT_RUN_ID_MAX + 1]; uint32_t generation; int32_t rank; };
struct mc_told { int action; uint32_t generation; char run_id[ZT_RUN_ID_MAX + 1]; };
struct mc_worker {
    bool used, registered, connected, touched, dirty;
    struct zt_row_worker row;
    uint64_t session, beat_seq;
    int64_t last_beat;
    struct mc_child child;       /* what it holds, by its own last word */
    enum zt_trainer_phase phase;
    int64_t step;
    int run, rank;               /* its lease; run -1 = none */
    struct zt_incarnation old[MC_OLD_INCARNATIONS];
    int n_old;
    struct mc_told told;         /* the last desired state sent on this session; action -1 = none */
};
struct mc_key { uint8_t key[16]; char verb[8]; char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1]; int64_t at; };
struct mc_comm { int run; uint32_t index; char group[ZT_COMM_GROUP_MAX + 1]; uint8_t id[ZT_COMM_ID_BYTES]; size_t bytes; };
struct mc_waiter { int run, worker; uint64_t request, session; uint32_t index; char group[ZT_COMM_GROUP_MAX + 1]; };
struct mc_ended { char run_id[ZT_RUN_ID_MAX + 1]; enum zt_run_state state; };

struct zt_machine {
    struct zt_machine_config c;
    bool live;                   /* ZT_EV_START was handled */
    uint64_t epoch, order, txn, durable;
    bool txn_open;               /* this step has a transaction */
    bool store_failed;
    char store_message[256];
    int64_t last_ns, paused, now, grace_until, started_at, fresh_at; /* fresh_at: last new registration */
    int64_t wall;
    struct zt_effects *fx;
    int reply_fx, reply_worker;  /* the reply of this step that carries a worker's desired state, -1 */
    bool schedule;               /* something changed that may let a run start */
    bool any_dirty;
    struct mc_worker *workers; int n_workers;
    int *hash; int hash_size;    /* worker_id -> index + 1 */
    int *touched; int n_touched;
    struct mc_run *runs; int n_runs; /* n_runs = high-water mark of used slots */
    struct mc_key *keys; int key_first, n_keys;
    struct mc_comm *comms; int n_comms, max_comms;
    struct mc_waiter *waiters; int n_waiters, max_waiters;
    struct mc_ended ended[MC_ENDED]; int n_ended;
    struct mc_changed changed[MC_ENDED]; int n_changed;
    struct zt_slot *slots; int *scratch, *order_buf, *queue; /* of the scheduler */
};

/* machine.c: effects */
void mc_copy(char *dst, size_t size, const char *src); /* truncates at a UTF-8 boundary */
struct zt_effect *mc_emit(struct zt_machine *m, enum zt_effect_kind kind);
struct zt_effect *mc_emit_row(struct zt_machine *m, enum zt_effect_kind kind); /* opens the transaction */
uint64_t mc_txn(struct zt_machine *m);
void mc_touch(struct zt_machine *m, int w);
void mc_dirty_run(struct zt_machine *m, struct mc_run *r);
void mc_dirty_attempt(struct zt_machine *m, struct mc_run *r);
void mc_dirty_rank(struct zt_machine *m, struct mc_run *r, struct mc_rank *k);
void mc_dirty_worker(struct zt_machine *m, struct mc_worker *w);
/* A reply to ev; NULL when it wants none. `durable`: it waits for all that was written so far. */
struct zt_fx_reply *mc_reply(struct zt_machine *m, const struct zt_event *ev, int code, bool durable);
void mc_refuse(struct zt_machine *m, const struct zt_event *ev, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
struct mc_note { int level; const char *kind; const struct mc_run *run; const struct mc_worker *worker; int rank;
                 enum zt_reason reason; const char *from, *to, *actor, *run_id; /* of a run that is not here */ };
void mc_event(struct zt_machine *m, struct mc_note note, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool mc_incarnation_equal(const struct zt_incarnation *a, const struct zt_incarnation *b);
bool mc_elapsed(const struct zt_machine *m, int64_t since, int64_t ms);
struct mc_run *mc_find_run(struct zt_machine *m, const char *run_id);
int mc_find_worker(const struct zt_machine *m, const char *worker_id);
int mc_add_worker(struct zt_machine *m, const char *worker_id); /* -1 = table full */
struct mc_run *mc_new_run(struct zt_machine *m);                /* NULL = table full */
struct mc_worker *mc_rank_worker(struct zt_machine *m, const struct mc_rank *k); /* NULL when unbound */

/* machine_end.c: how a generation ends */
void mc_free_if_over(struct zt_machine *m, struct mc_run *r);
void mc_finish_run(struct zt_machine *m, struct mc_run *r, enum zt_run_state s);
void mc_stop_complete(struct zt_machine *m, struct mc_run *r); /* every trainer gone, or its worker: what now? */
int64_t mc_redone(const struct mc_run *r);
void mc_decide_pending(struct zt_machine *m, struct mc_run *r); /* only consequences came: the best explanation */
void mc_check_drain(struct zt_machine *m, struct mc_run *r);
bool mc_peer_gone(struct zt_machine *m, const struct mc_run *r);

/* machine_run.c: runs */
bool mc_run_active(const struct mc_run *r);    /* has a generation whose trainers should live */
void mc_set_state(struct zt_machine *m, struct mc_run *r, enum zt_run_state s);
void mc_fail(struct zt_machine *m, struct mc_run *r, int rank, const struct zt_event *report, enum zt_reason reason,
             int peer, const char *fmt, ...) __attribute__((format(printf, 7, 8)));
void mc_begin_stop(struct zt_machine *m, struct mc_run *r, enum zt_reason reason, int rank, const char *message);
void mc_release_rank(struct zt_machine *m, struct mc_run *r, int rank);
void mc_check_progressed(struct zt_machine *m, struct mc_run *r); /* all ready, in comm, back, done, durable? */
void mc_tick_run(struct zt_machine *m, struct mc_run *r);
void mc_committed_run(struct zt_machine *m, struct mc_run *r);
void mc_drop_comms(struct zt_machine *m, const struct mc_run *r, const char *why);
void mc_on_submit(struct zt_machine *m, const struct zt_event *ev);
void mc_on_cancel(struct zt_machine *m, const struct zt_event *ev);
void mc_end_without_start(struct zt_machine *m, struct mc_run *r); /* FAILED: mc_pick_start found none */
struct mc_key *mc_find_key(const struct zt_machine *m, const uint8_t *key);
void mc_store_key(struct zt_machine *m, const uint8_t *key, const char *verb, const char *run_id, const char *name);
/* A worker of it drains: its ranks stop by themselves behind a checkpoint, within term_grace. */
void mc_begin_drain(struct zt_machine *m, struct mc_run *r, int rank);
void mc_drained(struct zt_machine *m, struct mc_run *r, int rank, const struct zt_event *report, const char *text);
int64_t mc_backoff(const struct mc_run *r);
int mc_laggard(const struct zt_machine *m, const struct mc_run *r);
bool mc_worker_silent(const struct zt_machine *m, const struct mc_worker *w);

/* machine_place.c: the scheduler */
void mc_schedule(struct zt_machine *m);
/* The mesh of `world` workers; false when the degrees do not fit it. An open tensor degree is 1. */
bool mc_mesh_for(const struct zt_run_config *c, int world, struct zt_mesh *mesh);
uint32_t mc_position(struct zt_machine *m, const struct mc_run *r);

/* machine_worker.c: workers and what their ranks say */
enum zt_worker_state mc_worker_state(const struct zt_machine *m, const struct mc_worker *w);
void mc_desired(const struct zt_machine *m, int w, struct zt_desired *d);
void mc_unbind(struct zt_machine *m, int w);
void mc_on_register(struct zt_machine *m, const struct zt_event *ev);
void mc_on_beat(struct zt_machine *m, const struct zt_event *ev);
void mc_on_disconnected(struct zt_machine *m, const struct zt_event *ev);
void mc_on_worker_set(struct zt_machine *m, const struct zt_event *ev);
void mc_on_rank(struct zt_machine *m, const struct zt_event *ev); /* READY .. CHILD_EXITED, COMM, STEPS */
void mc_tick_worker(struct zt_machine *m, int w);

/* machine_ckpt.c: what is saved, and what a generation goes on from */
int64_t mc_base(const struct mc_run *r);       /* the step this generation goes on after */
/* False: what there was is damaged, and a fresh start would be a silent loss. */
bool mc_pick_start(const struct mc_run *r, struct mc_start *s);
void mc_start_of(const struct mc_run *r, struct mc_start *s); /* what the live generation began from */
void mc_say_no_start(const struct mc_run *r, char *text, size_t n);
void mc_on_ckpt(struct zt_machine *m, const struct zt_event *ev, struct mc_run *r); /* SHARD_DONE .. RANK_LOADED */
void mc_ckpt_steps(struct zt_machine *m, struct mc_run *r); /* more step rows are with the store */
void mc_ckpt_stopping(struct zt_machine *m, struct mc_run *r); /* nobody waits for parts any more */
void mc_ckpt_ended(struct zt_machine *m, struct mc_run *r); /* every trainer is gone: what was WRITING failed */
void mc_ckpt_condemn(struct zt_machine *m, struct mc_run *r, const char *message); /* what it began from is damaged */
int mc_ckpt_recover(struct mc_run *r, const struct zt_recovery *rec); /* 0 or ZT_ENOMEM */
void mc_ckpt_free(struct mc_run *r);
const char *mc_ckpt_check(const struct zt_machine *m, const struct mc_run *r);
struct mc_ckpt *mc_ckpt_find(const struct mc_run *r, int64_t step); /* NULL = none */
void mc_ckpt_put(struct zt_machine *m, struct mc_run *r, const struct mc_ckpt *c);
void mc_ckpt_drop(struct zt_machine *m, struct mc_run *r, struct mc_ckpt *c);
bool mc_ckpt_in_use(const struct zt_machine *m, const char *run_id, int64_t step); /* something may have to go on from it */
void mc_ckpt_say_removed(struct zt_machine *m, const char *run_id, int64_t step, const char *actor);

/* machine_ckpt_set.c */
void mc_on_ckpt_set(struct zt_machine *m, const struct zt_event *ev);
/* A change to a row of a run that is not live. */
void mc_ckpt_set_stored(struct zt_machine *m, const char *run_id, int64_t step, enum zt_ckpt_set what, const char *message);
/* What a submit begins from is not, or may not be, what was looked up at read_txn; why says so. */
bool mc_source_changed(struct zt_machine *m, const struct zt_run_source *s, uint64_t read_txn, char *why, size_t n);
void mc_note_changed(struct zt_machine *m, const char *run_id, uint64_t txn);

/* machine_recover.c */
int mc_on_start(struct zt_machine *m, const struct zt_event *ev); /* fails before it changes anything */

#endif
