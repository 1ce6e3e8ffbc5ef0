/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim_internal.h: the simulated world. See sim.h. */
#ifndef ZT_TESTS_COORDINATOR_SIM_INTERNAL_H
#define ZT_TESTS_COORDINATOR_SIM_INTERNAL_H
#include "coordinator/machine.h"
#include "tests/coordinator/sim.h"

#define MS 1000000LL
#define SEC 1000000000LL
#define MAX_WORLD 8
#define MAX_STEPS 120
#define MAX_PROCS 128
#define MAX_CLIENTS 5
#define DB_RUNS 24
enum { F_ANY = 0, F_CRASH = 1, F_CONTINUE = 2 }; /* index of W_FAULT */
#define OUTBOX 160

struct at { char run_id[ZT_RUN_ID_MAX + 1]; uint32_t generation; int32_t rank; };

/* ---- what travels */
struct msg {
    int kind;                    /* enum zt_event_kind, of the request or of what is answered */
    uint64_t id, session;        /* id: the sender's, repeated in the reply; 0 = push */
    int proc, client;            /* proc -1: a client's */
    struct at at;
    int phase, activity; int64_t step, age_ms; bool draining; uint64_t seq;
    uint64_t comm;               /* a communicator id */
    int64_t first, last;
    int reason, peer, exit_code, signal;
    char hash[20];
    int code; bool has_desired; struct zt_desired desired; /* replies and pushes */
    char run_id[ZT_RUN_ID_MAX + 1]; int state;
    int64_t save;                /* step of a checkpoint */
    uint8_t manifest[32]; int what, n_parts, n_remove; int64_t remove[ZT_CKPT_REMOVE_MAX];
};

/* ---- the physical world */
struct group { struct at at; int world; bool born[MAX_WORLD], dead[MAX_WORLD], in_comm[MAX_WORLD], done[MAX_WORLD]; int64_t step[MAX_WORLD];
               uint64_t comm; bool busy[MAX_WORLD] /* its writer */, stop; int64_t decided; bool saves[MAX_STEPS + 1]; int64_t stop_step; };
/* ---- checkpoints: one call to the coordinator at a time, as the writer thread makes them */
enum writer { WR_IDLE = 0, WR_WRITE, WR_PUBLISH, WR_CALL };
struct call { bool on, sent; int64_t at; struct msg m; };
struct file { bool there, damaged; uint32_t generation; uint32_t part_generation; bool part[MAX_WORLD]; };
struct files { char run_id[ZT_RUN_ID_MAX + 1]; struct file f[MAX_STEPS + 1]; };
struct child {
    bool alive; struct at at; int group, world, phase;
    bool stopped, exiting; int64_t exit_at; int exit_code, signal;
    int64_t ready_at, next_at, step, progress_at, reported, ask_at; uint64_t comm;
    int64_t base; bool needs_load, loaded; struct zt_desired from; /* what it begins from */
    struct call call; int writer; int64_t save, write_at, boundary; int64_t remove[ZT_CKPT_REMOVE_MAX]; int n_remove; bool stopping;
};
struct item { int state; /* 0 to send, 1 sent, 2 acknowledged */ int64_t at; struct msg m; };
struct proc { /* one zworker process */
    bool used, alive, stopped, draining, doomed; int64_t resume_at, cut_until, exit_at;
    int worker; struct zt_incarnation incarnation;
    uint64_t session, life; bool connected, registered; int64_t connect_at, next_beat, heard_at; uint64_t seq, next_id, register_id;
    struct child child;
    struct item out[OUTBOX]; int n_out;
    struct { char run_id[ZT_RUN_ID_MAX + 1]; uint32_t generation; } fence[DB_RUNS]; int n_fence;
};
struct client {
    bool used, acked, wants_cancel, cancel_acked, cancel_was_terminal; int64_t next_at, cancel_at; uint8_t key[16], cancel_key[16];
    char name[16], run_id[ZT_RUN_ID_MAX + 1]; struct zt_run_config c; uint64_t step_ns;
    int poison_step, poison_reason; /* 0 = none: this step always ends so */
    bool poisoned;                  /* some rank reported a reason that is never retried */
    int sent;
    int64_t interval; bool wants_source; bool damaged; /* something it saved was */
};

/* ---- the simulated disk */
struct db_run { bool used; struct zt_row_run row; struct zt_row_attempt attempt; struct zt_row_rank rank[MAX_WORLD];
                uint32_t step_generation[MAX_WORLD][MAX_STEPS + 1]; uint32_t counted;
                struct zt_row_ckpt ckpt[MAX_STEPS + 1]; /* state 0: none */ struct zt_ckpt_part part[MAX_STEPS + 1][MAX_WORLD]; bool was_running, ended_now; };
struct db { struct db_run run[DB_RUNS]; struct zt_row_worker worker[16]; int n_workers; struct zt_row_key key[256]; int64_t key_at[256];
            int n_keys; uint64_t order; };
struct row { struct zt_effect e; int64_t first, last; struct row *next; };
struct held { uint64_t after; struct msg m; bool check; };

enum sim_what { W_TICK = 1, W_COMMIT, W_TO_COORD, W_TO_PROC, W_TO_CLIENT, W_PROC, W_CHILD, W_CLIENT, W_FAULT, W_COORD_START, W_PROC_START,
                W_COMMITTED, W_CALM };
struct happening { int64_t at; uint64_t order; int what, index; uint64_t tag; int slot; };

struct sim {
    uint64_t seed, rng, hash, n_events, order;
    int64_t now, calm_at, end_at; bool calm, gentle; enum sim_talk talk;
    char broken[256];
    struct happening *heap; int n_heap, cap_heap;
    struct msg *slots; int *free_slots; int n_free, cap_slots;
    /* network */
    int64_t delay_ms; int loss, twice; /* percent */
    /* the coordinator */
    struct zt_machine *m; struct zt_effects fx; bool up; uint64_t epoch, life; int64_t paused_until, wall_jump;
    struct msg *requests; uint64_t n_requests, cap_requests;
    struct row *row_first, *row_last; uint64_t durable; bool committing; int64_t disk_ms, disk_bad_until; bool disk_told;
    struct held *held; int n_held, first_held, cap_held;
    struct db db;
    /* workers and clients */
    int n_ids; int64_t gone_at[16], away_until[16]; /* of a worker without a process */
    int64_t undisturbed; /* since when the coordinator runs and is heard */ uint64_t sessions, comm_ids, run_ids; struct proc proc[MAX_PROCS]; int n_procs; struct group *group; int n_groups, cap_groups;
    struct client client[MAX_CLIENTS]; int n_clients;
    struct files files[DB_RUNS]; int n_files;
    uint64_t counters[SIM_COUNTERS];
    char log[50][200]; int n_log;
};

/* sim.c */
uint64_t sim_random(struct sim *s);
int64_t sim_range(struct sim *s, int64_t lo, int64_t hi); /* both ends in */
bool sim_chance(struct sim *s, int percent);
void sim_at(struct sim *s, int64_t at, int what, int index, uint64_t tag);
void sim_break(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_log(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_send(struct sim *s, int what, const struct msg *m); /* through the network */
struct db_run *sim_db_run(struct sim *s, const char *run_id);
bool same_at(const struct at *a, const char *run_id, uint32_t generation);

/* sim_ckpt.c */
bool sim_save(struct sim *s, int p, int64_t step); /* a step boundary: false = this rank must wait for its writer */
void sim_writer_tick(struct sim *s, int p);
void sim_call_answered(struct sim *s, int p, const struct msg *m);
void sim_send_call(struct sim *s, int p);
void sim_load(struct sim *s, int p);
void sim_apply_ckpt(struct sim *s, const struct zt_effect *e);
void sim_check_files(struct sim *s); /* after a commit of the database */
void sim_check_start(struct sim *s, const struct zt_desired *d);
void sim_check_ckpt_promise(struct sim *s, const struct msg *m);
void sim_damage(struct sim *s);
void sim_user(struct sim *s);          /* somebody pins, looks at or removes a checkpoint */
void sim_user_answer(struct sim *s, const struct msg *m);
void sim_find_source(struct sim *s, struct client *c);
int64_t sim_base(const struct db_run *r); /* the step its live generation goes on after */
const struct client *sim_client_of(struct sim *s, const char *run_id);

/* sim_worker.c */
int sim_start_proc(struct sim *s, int worker);
void sim_proc_tick(struct sim *s, int p);
void sim_child_tick(struct sim *s, int p);
void sim_to_proc(struct sim *s, const struct msg *m);
void sim_kill_proc(struct sim *s, int p);
void sim_kill_child(struct sim *s, int p, int exit_code, int signal, int64_t delay);
void sim_report_failure(struct sim *s, int p, int reason, int peer);
int sim_pick_proc(struct sim *s, bool with_child); /* alive; -1 = none */

/* sim_faults.c */
void sim_plan(struct sim *s);
void sim_fault(struct sim *s, int index, uint64_t tag);
void sim_systemd(struct sim *s); /* starts workers that are not there */
void sim_be_calm(struct sim *s);
void sim_client_tick(struct sim *s, int c);
void sim_to_client(struct sim *s, const struct msg *m);
void sim_check_end(struct sim *s);

#endif
