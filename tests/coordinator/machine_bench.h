/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/machine_bench.h: a bench on which directed tests drive one machine by hand: short calls for events,
 * the newest row of each key, the last reply and desired state of each worker. One machine per process. */
#ifndef ZT_TESTS_COORDINATOR_MACHINE_BENCH_H
#define ZT_TESTS_COORDINATOR_MACHINE_BENCH_H
#include "coordinator/machine.h"

#define BENCH_RUNS 8
#define BENCH_WORKERS 24
#define BENCH_WORLD 8

struct bench_worker { char id[32]; struct zt_incarnation incarnation; uint64_t session, seq; struct zt_desired desired; struct zt_row_worker row;
                      char run_id[32]; uint32_t generation; int rank, phase; int64_t step, age_ms; bool silent, draining; int activity; uint32_t held_by; };
struct bench {
    struct zt_machine *m; struct zt_effects fx;
    int64_t now, wall; bool hold_commits; uint64_t n_ticks, n_requests, sessions, committed;
    struct zt_row_run run[BENCH_RUNS]; struct zt_row_attempt attempt[BENCH_RUNS]; int n_runs;
    struct zt_row_rank rank[BENCH_RUNS][BENCH_WORLD]; int64_t stored[BENCH_RUNS][BENCH_WORLD];
    struct zt_row_failure failure[64]; int n_failures;
    struct zt_row_key key[16]; int n_keys;
    struct zt_row_ckpt ckpt[64]; int n_ckpts; struct zt_row_part part[64]; int n_parts;
    uint64_t read_txn;           /* of the next submit that begins from another run */
    struct zt_ckpt_part shards[BENCH_WORLD]; int n_shards; /* of the last answer to GET_SHARDS */
    struct bench_worker w[BENCH_WORKERS]; int n_workers;
    struct zt_fx_reply reply; int n_replies; /* the last one */
    struct zt_row_event event[512]; int n_events;
};
extern struct bench B;

void bench_open(void);                          /* a machine with an empty database, at 100 s */
void bench_reopen(void);                        /* the process is killed; a new one recovers what was committed */
void bench_close(void);
int bench_step(struct zt_event *ev);            /* gives it a request number and carries the effects out; the reply's code */
void bench_commit(void);                        /* everything written so far is durable */
void bench_wait(double seconds);                /* ticks; workers that are not silent beat once a second */
void bench_tick(int64_t gap_ms);                /* one tick after a gap, no beats */

int bench_worker(const char *id, const char *host); /* registers; its index */
void bench_register(int w);                     /* again: a new connection of the same process, naming its child */
void bench_restart_worker(int w);               /* a new process of that name */
void bench_beat(int w);

struct zt_run_config bench_config(int workers);
int bench_submit(const char *name, struct zt_run_config c); /* index of the run, or the (negative) code */
int bench_submit_key(const char *name, struct zt_run_config c, int key);
int bench_cancel(int run, int key);
int bench_rank(int run, int rank, enum zt_event_kind kind); /* READY, IN_COMM: from the worker that holds the rank */
int bench_steps(int run, int rank, int64_t first, int64_t last, double seconds);
int bench_fail(int run, int rank, enum zt_reason reason, int peer);
int bench_fail_in(int run, int rank, enum zt_reason reason, int64_t step); /* step: the one in progress */
int bench_done(int run, int rank, int64_t steps, const char *hash);
int bench_exit(int run, int rank, int code, int signal);
int bench_holder(int run, int rank);            /* worker that holds the rank by the newest rows */
void bench_exit_all(int run, int code, int signal); /* answers every ABORT */
void bench_running(int run);                    /* takes the run from ALLOCATING to RUNNING */
void bench_form(int run);                       /* spawns and says READY on every rank */
enum zt_run_state bench_state(int run);
struct zt_event bench_event(enum zt_event_kind kind, int w);
const struct zt_row_event *bench_find_event(const char *kind); /* newest of that kind; NULL */

/* Checkpoints. The part of rank K has 100 + K bytes and hashes that are K + 1 and 2 (K + 1). */
int bench_shard(int run, int rank, int64_t step);
int bench_get_shards(int run, int64_t step);    /* 1 = it waits */
int bench_ckpt_commit(int run, int64_t step);   /* of what bench_shard's parts add up to */
int bench_commit_of(int run, int64_t step, int64_t bytes, const char *parameter_hash, int manifest);
int bench_removed(int run, int64_t step);
int bench_ckpt_failed(int run, int rank, int64_t step, bool disk_full);
int bench_loaded(int run, int rank, int64_t step);
int bench_loaded_all(int run, int64_t step);
int bench_set(int run, int64_t step, enum zt_ckpt_set what, int key); /* facts of B.ckpt for a run that is not live */
int bench_save(int run, int64_t step);          /* steps reported up to it, all parts, the commit; its code */
const struct zt_row_ckpt *bench_ckpt(int run, int64_t step); /* the stored row, NULL = none */

#endif
