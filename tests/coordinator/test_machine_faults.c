/* SPDX-License-Identifier: Apache-2.0 */
/* The machine and what goes wrong: reasons and their retries, causes and consequences, lost
 * workers, hangs, time limits, teardown. */
#include "tests/coordinator/machine_bench.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(faults, .init = bench_open, .fini = bench_close);

static int running(int n) {
    for (int i = 0; i < n; i++) bench_worker((char[2]){(char)('0' + i), 0}, "a");
    bench_wait(1.2);
    int r = bench_submit("job", bench_config(n));
    bench_running(r);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    return r;
}
static void step_all(int r, int64_t first, int64_t last, double seconds) {
    for (int k = 0; k < B.run[r].workers; k++)
        cr_assert_eq(bench_steps(r, k, first, last, seconds), 0);
}

/* ---- reasons: the table of D26 */
static const struct {
    enum zt_reason reason;
    enum zt_retry retry;
} table[] = {
    {ZT_REASON_CONFIG_ERROR, ZT_RETRY_NEVER},   {ZT_REASON_VERSION_MISMATCH, ZT_RETRY_NEVER},
    {ZT_REASON_NAN_LOSS, ZT_RETRY_NEVER},       {ZT_REASON_OOM_DEVICE, ZT_RETRY_NEVER},
    {ZT_REASON_DATA_ERROR, ZT_RETRY_NEVER},     {ZT_REASON_REPLICA_DIVERGED, ZT_RETRY_NEVER},
    {ZT_REASON_EXIT_NONZERO, ZT_RETRY_COUNTED}, {ZT_REASON_SIGNAL, ZT_RETRY_COUNTED},
    {ZT_REASON_OOM_HOST, ZT_RETRY_COUNTED},     {ZT_REASON_CKPT_ERROR, ZT_RETRY_COUNTED},
    {ZT_REASON_KILLED, ZT_RETRY_FREE},          {ZT_REASON_COMM_ERROR, ZT_RETRY_FREE},
    {ZT_REASON_PREEMPTED, ZT_RETRY_FREE},       {ZT_REASON_HANG, ZT_RETRY_FREE}};
Test(faults, every_reason_is_retried_as_decided) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        bench_close();
        bench_open();
        int r = running(2);
        cr_assert_eq(bench_fail(r, 1, table[i].reason, -1), 0);
        cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
        cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
        cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT);
        bench_exit_all(r, 0, 9);
        const char *name = zt_reason_name(table[i].reason);
        cr_assert_eq(bench_state(r),
                     table[i].retry == ZT_RETRY_NEVER ? ZT_RUN_FAILED : ZT_RUN_RESTARTING, "%s",
                     name);
        cr_assert_eq(B.run[r].reason, table[i].reason, "%s", name);
        cr_assert_eq(B.run[r].cause_rank, 1);
        cr_assert_eq(B.run[r].restarts_counted, table[i].retry == ZT_RETRY_COUNTED, "%s", name);
        cr_assert_eq(B.attempt[r].counted, table[i].retry == ZT_RETRY_COUNTED, "%s", name);
        cr_assert_eq(B.attempt[r].reason, table[i].reason);
        cr_assert_str_eq(B.attempt[r].worker_id, "a/1");
        cr_assert_eq(B.failure[0].reason, table[i].reason);
        cr_assert_eq(B.n_failures, 1, "exits by our own ABORT are no failures");
        bench_wait(1.2);
        cr_assert_eq(B.run[r].generation, table[i].retry == ZT_RETRY_NEVER ? 1 : 2, "%s", name);
    }
}
/* All replicas report a divergence, the good ones first maybe; where a majority knows, they name who it is. */
Test(faults, a_divergence_is_blamed_on_the_rank_that_is_named) {
    for (int named = 0; named < 2; named++) {
        bench_close();
        bench_open();
        int r = running(3);
        cr_assert_eq(bench_fail(r, 0, ZT_REASON_REPLICA_DIVERGED, named ? 2 : -1), 0);
        bench_exit_all(r, 0, 9);
        cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
        cr_assert_eq(B.run[r].reason, ZT_REASON_REPLICA_DIVERGED);
        cr_assert_eq(B.run[r].cause_rank, named ? 2 : 0);
        cr_assert_str_eq(B.attempt[r].worker_id, named ? "a/2" : "a/0");
        cr_assert_eq(B.failure[0].rank, 0, "who reported it is kept");
        cr_assert_eq(B.failure[0].peer, named ? 2 : -1);
    }
}
Test(faults, a_reason_of_a_newer_version_counts_as_an_exit) {
    int r = running(1);
    bench_fail(r, 0, (enum zt_reason)999, -1);
    cr_assert_eq(B.run[r].reason, ZT_REASON_EXIT_NONZERO);
    cr_assert(strstr(B.run[r].detail, "999"), "%s", B.run[r].detail);
}
Test(faults, exit_codes) {
    static const struct {
        int code, signal;
        enum zt_reason reason;
    } exits[] = {{-1, 9, ZT_REASON_KILLED},       {-1, 11, ZT_REASON_SIGNAL},
                 {-1, 6, ZT_REASON_SIGNAL},       {1, 0, ZT_REASON_EXIT_NONZERO},
                 {0, 0, ZT_REASON_EXIT_NONZERO},  {75, 0, ZT_REASON_EXIT_NONZERO},
                 {78, 0, ZT_REASON_CONFIG_ERROR}, {85, 0, ZT_REASON_PREEMPTED},
                 {93, 0, ZT_REASON_CONFIG_ERROR}};
    for (size_t i = 0; i < sizeof exits / sizeof *exits; i++) {
        bench_close();
        bench_open();
        int r = running(2);
        bench_exit(r, 0, exits[i].code, exits[i].signal);
        cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
        cr_assert_eq(B.run[r].reason, exits[i].reason, "exit %d, signal %d", exits[i].code,
                     exits[i].signal);
        cr_assert_eq(B.run[r].cause_rank, 0);
        bench_exit(r, 1, -1, 9);
        cr_assert_neq(bench_state(r), ZT_RUN_STOPPING);
    }
}
/* Events name the fault while the run stops and waits, not once the next generation is under way. */
Test(faults, a_change_of_state_is_explained_until_the_next_generation) {
    int r = running(1);
    bench_exit(r, 0, -1, 9);
    const struct zt_row_event *e = bench_find_event("RUN_STATE");
    cr_assert_str_eq(e->to, "RESTARTING");
    cr_assert_eq(e->reason, ZT_REASON_KILLED);
    bench_wait(1.2);
    e = bench_find_event("RUN_STATE");
    cr_assert_str_eq(e->to, "STARTING");
    cr_assert_eq(e->reason, ZT_REASON_NONE);
    bench_running(r);
    cr_assert_str_eq(bench_find_event("RUN_STATE")->to, "RUNNING");
    cr_assert_eq(bench_find_event("RUN_STATE")->reason, ZT_REASON_NONE);
    cr_assert_eq(B.run[r].reason, ZT_REASON_KILLED, "the row keeps it");
}
/* A job that fails at the same step for ever, max_restarts 2: three attempts with growing pauses,
 * then FAILED. */
Test(faults, the_same_failure_is_not_repeated_for_ever) {
    bench_worker("0", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(1);
    c.max_restarts = 2;
    int r = bench_submit("job", c);
    int64_t pause[3] = {0};
    for (int attempt = 0; attempt < 3; attempt++) {
        cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
        cr_assert_eq(B.run[r].attempt, (uint32_t)attempt + 1);
        bench_running(r);
        bench_steps(r, 0, 1, 2, 0.1);
        bench_fail(r, 0, ZT_REASON_EXIT_NONZERO, -1);
        bench_exit_all(r, 1, 0);
        int64_t from = B.now;
        for (int i = 0; i < 100 && bench_state(r) == ZT_RUN_RESTARTING; i++) bench_wait(0.2);
        pause[attempt] = B.now - from;
    }
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(B.run[r].reason, ZT_REASON_EXIT_NONZERO);
    cr_assert_eq(B.run[r].restarts_counted, 2);
    cr_assert(strstr(B.run[r].detail, "max_restarts 2") && strstr(B.run[r].detail, "it broke"),
              "%s", B.run[r].detail);
    cr_assert_eq(pause[0], 1000000000);
    cr_assert_eq(pause[1], 2000000000);
}
Test(faults, the_backoff_doubles_to_its_most_and_starts_anew_after_progress) {
    bench_worker("0", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(1);
    c.backoff_max = 5;
    int r = bench_submit("job", c);
    static const int want[] = {
        1, 1, 2, 4, 5, 5, 1}; /* the first and the last one got further than any before */
    static const int reached[] = {2, 3, 3, 3, 1, 3, 4};
    for (int i = 0; i < 7; i++) {
        bench_running(r);
        bench_steps(r, 0, 1, reached[i], 0.1);
        bench_exit(r, 0, -1, 9);
        cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
        int64_t from = B.now;
        for (int k = 0; k < 100 && bench_state(r) == ZT_RUN_RESTARTING; k++) bench_wait(0.2);
        cr_assert_eq((B.now - from) / 1000000000, want[i], "attempt %d", i);
    }
    cr_assert_eq(B.run[r].restarts_counted, 0, "a SIGKILL from outside is not the run's fault");
    cr_assert_eq(B.run[r].best_step, 4);
}

/* The same failure each time; how far the other rank got by then is chance and no progress. */
Test(faults, a_step_that_one_rank_finished_alone_is_no_progress) {
    struct zt_run_config c = bench_config(2);
    c.max_restarts = 9;
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    int r = bench_submit("job", c);
    static const int ahead[] = {2, 3, 4}, want[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        bench_running(r);
        bench_steps(r, 0, 1, ahead[i], 0.1);
        bench_steps(r, 1, 1, i == 0 ? 1 : 2, 0.1);
        bench_fail(r, 1, ZT_REASON_EXIT_NONZERO, -1);
        if (i == 0) bench_steps(r, 1, 2, 2, 0.1); /* the report of step 2 was still on its way */
        bench_exit_all(r, 1, 0);
        cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
        int64_t from = B.now;
        for (int k = 0; k < 100 && bench_state(r) == ZT_RUN_RESTARTING; k++) bench_wait(0.2);
        cr_assert_eq((B.now - from) / 1000000000, want[i], "attempt %d", i);
        cr_assert_eq(B.run[r].best_step, 2);
    }
}

/* A failure names the step it happened in; the last finished one is what the rank reported before. */
Test(faults, a_step_that_failed_was_not_finished) {
    struct zt_run_config c = bench_config(1);
    bench_worker("0", "a");
    bench_wait(1.2);
    int r = bench_submit("job", c);
    static const int finished[] = {0, 2};
    for (int i = 0; i < 2; i++) {
        bench_running(r);
        if (finished[i]) bench_steps(r, 0, 1, finished[i], 0.1);
        bench_fail_in(r, 0, ZT_REASON_EXIT_NONZERO, finished[i] + 1);
        cr_assert_eq(B.attempt[r].last_step, finished[i]);
        bench_exit_all(r, 1, 0);
        cr_assert_eq(B.attempt[r].last_step, finished[i]);
        cr_assert_eq(B.run[r].best_step, finished[i]);
        for (int k = 0; k < 100 && bench_state(r) == ZT_RUN_RESTARTING; k++) bench_wait(0.2);
    }
    bench_running(r);
    bench_fail_in(r, 0, ZT_REASON_OOM_DEVICE, 3);
    cr_assert_eq(B.attempt[r].last_step, 0);
    cr_assert_eq(B.attempt[r].steps_redone, 0);
    bench_exit_all(r, 1, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
}

/* Steps that an earlier generation had done: none of a run that nothing happened to, two where one had done two. */
Test(faults, steps_done_again_are_those_that_had_been_done) {
    for (int failed = 0; failed < 2; failed++) {
        bench_close();
        bench_open();
        int r = running(1);
        if (failed) {
            bench_steps(r, 0, 1, 2, 0.1);
            bench_fail(r, 0, ZT_REASON_KILLED, -1);
            bench_exit_all(r, 0, 9);
            for (int k = 0; k < 100 && bench_state(r) == ZT_RUN_RESTARTING; k++) bench_wait(0.2);
            bench_running(r);
        }
        bench_steps(r, 0, 1, 10, 0.1);
        bench_done(r, 0, 10, "h");
        cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
        cr_assert_eq(B.attempt[r].steps_redone, failed ? 2 : 0);
        cr_assert_eq(B.attempt[r].last_step, 10);
    }
}

/* ---- cause and consequence */
Test(faults, a_consequence_waits_for_its_cause) {
    int r = running(3);
    bench_fail(r, 0, ZT_REASON_PEER_LOST, 2);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(1);
    bench_fail(r, 1, ZT_REASON_PEER_LOST, 2);
    bench_exit(r, 0, 1, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING,
                 "the exit of a rank that has explained itself is no new cause");
    bench_fail(r, 2, ZT_REASON_OOM_HOST, -1);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_OOM_HOST);
    cr_assert_eq(B.run[r].cause_rank, 2);
    cr_assert_eq(B.n_failures, 3);
    for (uint32_t i = 0; i < 3; i++) cr_assert_eq(B.failure[i].order, i);
}
Test(faults, the_first_cause_wins) {
    int r = running(3);
    bench_fail(r, 1, ZT_REASON_SIGNAL, -1);
    bench_fail(r, 2, ZT_REASON_NAN_LOSS, -1);
    bench_fail(r, 0, ZT_REASON_PEER_LOST, 1);
    cr_assert_eq(B.run[r].reason, ZT_REASON_SIGNAL);
    cr_assert_eq(B.run[r].cause_rank, 1);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    cr_assert_eq(B.n_failures, 3, "the others are kept as consequences");
    cr_assert(bench_find_event("CONSEQUENCE"));
}
Test(faults, only_consequences_and_a_silent_worker) {
    int r = running(3);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = B.w[2].session};
    B.w[2].silent = true;
    bench_step(&gone);
    bench_fail(r, 0, ZT_REASON_PEER_LOST, -1);
    bench_wait(1.8);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(0.4);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_eq(B.run[r].cause_rank, 2);
    cr_assert(strstr(B.run[r].detail, "does not answer; rank 0: it broke"), "%s", B.run[r].detail);
}
/* Killed with its trainer: the peer's word and the end of its connection are enough, within a tick. */
Test(faults, a_peer_whose_supervisor_hung_up_is_lost_at_once) {
    int r = running(3);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = B.w[2].session};
    bench_fail(r, 0, ZT_REASON_PEER_LOST, 2);
    bench_wait(0.4);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "it is still there, and may know the cause");
    B.w[2].silent = true;
    bench_step(&gone);
    bench_wait(0.25);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_eq(B.run[r].cause_rank, 2);
}
/* A connection alone says nothing: the group may well go on. */
Test(faults, a_supervisor_that_hung_up_is_not_lost_yet) {
    int r = running(3);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = B.w[2].session};
    B.w[2].silent = true;
    bench_step(&gone);
    bench_wait(2.5);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
}
Test(faults, only_consequences_and_everybody_there) {
    int r = running(3);
    bench_fail(r, 0, ZT_REASON_PEER_LOST, 1);
    bench_wait(2.2);
    cr_assert_eq(B.run[r].reason, ZT_REASON_COMM_ERROR);
    cr_assert_eq(B.run[r].cause_rank, 1, "the rank its peer names");
}
Test(faults, a_timeout_in_a_collective_is_a_hang_of_who_is_missing) {
    int r = running(3);
    step_all(r, 1, 3, 0.1);
    bench_steps(r, 0, 4, 4, 0.1);
    bench_steps(r, 2, 4, 4, 0.1);
    bench_fail(r, 0, ZT_REASON_COMM_TIMEOUT, -1);
    bench_wait(2.2);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
    cr_assert_eq(B.run[r].cause_rank, 1, "its step is the lowest");
}

/* ---- lost workers */
Test(faults, five_seconds_without_a_beat) {
    int r = running(2);
    bench_wait(1);
    B.w[1].silent = true;
    bench_beat(1);
    bench_wait(4.8);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(0.4);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_eq(B.run[r].cause_rank, 1);
    cr_assert_eq(B.w[1].row.state, ZT_WORKER_LOST);
    cr_assert_float_eq(B.attempt[r].detect_seconds, 5.0, 0.21);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
    bench_exit(r, 0, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING,
                 "nobody waits for the exit of a lost worker's trainer");
    bench_wait(1.2);
    cr_assert_str_eq(B.run[r].detail, "need 2 workers, 1 idle, 1 lost");
    /* it was only cut off: it comes back with its child, which must go before it gets another one
     */
    bench_beat(1);
    B.w[1].silent = false;
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT);
    cr_assert_eq(B.w[1].desired.generation, 1);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, 1);
    ev.at = (struct zt_on_child){B.run[r].run_id, 1, 1};
    B.w[1].phase = ZT_TP_NONE;
    bench_step(&ev);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    cr_assert_eq(B.run[r].generation, 2);
}
Test(faults, a_step_of_the_group_proves_a_silent_rank_alive) {
    int r = running(2);
    B.w[1].silent = true;
    for (int64_t step = 1; step <= 9; step++) {
        bench_wait(3);
        cr_assert_eq(bench_steps(r, 0, step, step, 3.0), 0);
        cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "step %d", (int)step);
    }
    bench_wait(6);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST, "no more steps, no beat");
}
Test(faults, silent_for_a_minute_is_lost_whatever_its_group_does) {
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(2);
    c.steps = 1000;
    int r = bench_submit("job", c);
    bench_running(r);
    bench_beat(1);
    B.w[1].silent = true;
    int64_t from = B.now;
    for (int64_t step = 1; step <= 40 && bench_state(r) == ZT_RUN_RUNNING; step++) {
        bench_wait(2);
        bench_steps(r, 0, step, step, 2.0);
    }
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_float_eq((double)(B.now - from) / 1e9, 60, 2.5);
}
Test(faults, a_pause_of_the_coordinator_costs_nobody_anything) {
    int r = running(2);
    step_all(r, 1, 2, 0.1);
    bench_tick(30000);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    for (int i = 0; i < 20; i++)
        bench_tick(200); /* a grace round of the usual length, without a beat yet */
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    for (int i = 0; i < 10; i++) bench_tick(200);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST, "after it, silence is silence");
}
Test(faults, the_wall_clock_is_nobody_s_business) {
    int r = running(2);
    B.wall += 300000;
    bench_wait(3);
    B.wall -= 600000;
    bench_wait(3);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.w[0].row.flags & ZT_WF_LOST, 0);
    B.wall += 600000;
    B.w[0].silent = true;
    bench_wait(6);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST, "and keeps nobody alive either");
}
Test(faults, an_idle_worker_is_lost_and_found) {
    bench_worker("0", "a");
    B.w[0].silent = true;
    bench_wait(6);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_LOST);
    bench_beat(0);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_IDLE);
}
Test(faults, a_finished_rank_may_lose_its_worker) {
    int r = running(2);
    step_all(r, 1, 10, 0.1);
    bench_done(r, 1, 10, "h");
    B.w[1].silent = true;
    bench_wait(7);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "all it had to say is durable");
    bench_done(r, 0, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
}
Test(faults, a_finished_rank_whose_rows_are_missing_may_not) {
    int r = running(2);
    bench_steps(r, 0, 1, 10, 0.1);
    bench_steps(r, 1, 1, 9, 0.1);
    bench_done(r, 1, 10, "h");
    bench_restart_worker(1);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
}

/* ---- hangs */
static void beats_with_age(int n, int64_t ms) {
    for (int w = 0; w < n; w++) {
        B.w[w].age_ms = ms;
        bench_beat(w);
    }
}
/* Rank `stuck` makes no progress from now on, the others stand still a little later. */
static void hang(int r, int stuck, double seconds) {
    for (double t = 0; t < seconds && bench_state(r) == ZT_RUN_RUNNING; t += 1) {
        for (int w = 0; w < B.n_workers; w++)
            B.w[w].age_ms = (int64_t)(t * 1000) + (w == stuck ? 300 : 0);
        bench_wait(1);
    }
}
Test(faults, a_hang_names_the_rank_that_stopped_first) {
    int r = running(3);
    step_all(r, 1, 5, 0.1);
    beats_with_age(3, 0);
    hang(r, 1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    beats_with_age(3, 0); /* it moved after all */
    hang(r, 1, 14);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
    cr_assert_eq(B.run[r].cause_rank, 1);
    cr_assert_gt(B.attempt[r].detect_seconds, 9.9);
    cr_assert_lt(B.attempt[r].detect_seconds, 13);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    cr_assert_eq(B.run[r].restarts_counted, 0);
}
/* Ages say rank 0, by a hair; the collectives say whom they wait for. */
Test(faults, a_hang_names_the_rank_that_the_others_wait_for) {
    int r = running(3);
    step_all(r, 1, 5, 0.1);
    beats_with_age(3, 0);
    B.w[0].held_by = B.w[2].held_by = 1 + 1;
    hang(r, 0, 14);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
    cr_assert_eq(B.run[r].cause_rank, 1);
}
/* 0 waits for 2 in one group, 2 waits for 1 in another: 1 is the end of the chain. */
Test(faults, a_hang_names_the_end_of_a_chain_of_waits) {
    int r = running(3);
    step_all(r, 1, 5, 0.1);
    beats_with_age(3, 0);
    B.w[0].held_by = 1 + 2;
    B.w[2].held_by = 1 + 1;
    hang(r, 2, 14);
    cr_assert_eq(B.run[r].cause_rank, 1);
}
Test(faults, a_hang_names_the_rank_that_is_a_step_behind) {
    int r = running(3);
    step_all(r, 1, 5, 0.1);
    bench_steps(r, 0, 6, 6, 0.1);
    bench_steps(r, 1, 6, 6, 0.1);
    for (int i = 0; i < 14 && bench_state(r) == ZT_RUN_RUNNING; i++) {
        for (int w = 0; w < 3; w++) B.w[w].age_ms = i * 1000 - (w == 2 ? 200 : 0);
        bench_wait(1);
    }
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
    cr_assert_eq(B.run[r].cause_rank, 2,
                 "its own clock says it moved last, its step says it is behind");
}
Test(faults, slow_steps_are_no_hang) {
    int r = running(2);
    step_all(r, 1, 5, 4.0); /* 10 x 4 s */
    hang(r, 0, 38);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    hang(r, 0, 45);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
    cr_assert_eq(B.run[r].cause_rank, 0);
}
Test(faults, a_fixed_progress_limit) {
    bench_worker("0", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(1);
    c.progress = 3;
    int r = bench_submit("job", c);
    bench_running(r);
    bench_steps(r, 0, 1, 1, 5.0);
    B.w[0].age_ms = -1;
    bench_wait(2.6);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(0.8);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
}
Test(faults, first_step_and_evaluation_have_their_own_limit) {
    int r = running(2);
    B.w[0].age_ms = B.w[1].age_ms = -1;
    bench_wait(590);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "the first step may take 600 s");
    step_all(r, 1, 1, 0.1);
    B.w[0].activity = ZT_ACT_LONG; /* rank 0 evaluates, rank 1 waits for it */
    bench_beat(0);
    bench_wait(590);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(12);
    cr_assert_eq(B.run[r].reason, ZT_REASON_HANG);
}

/* ---- time limits */
static int waiting_run(double start, double comm_init) {
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(2);
    c.start = start;
    c.comm_init = comm_init;
    return bench_submit("job", c);
}
Test(faults, start_timeout) {
    int r = waiting_run(30, 20);
    bench_rank(r, 0, ZT_EV_RANK_READY);
    bench_wait(29);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    bench_wait(1.4);
    cr_assert_eq(B.run[r].reason, ZT_REASON_START_TIMEOUT);
    cr_assert_eq(B.run[r].cause_rank, 1, "the one that is not ready");
}
Test(faults, formation_timeout) {
    int r = waiting_run(30, 20);
    bench_form(r);
    bench_rank(r, 1, ZT_EV_RANK_IN_COMM);
    bench_wait(20.4);
    cr_assert_eq(B.run[r].reason, ZT_REASON_COMM_INIT_TIMEOUT);
    cr_assert_eq(B.run[r].cause_rank, 0);
    bench_exit_all(r, 0, 9);
    bench_wait(1.2);
    cr_assert_eq(B.run[r].generation, 2, "a new generation, and with it a new communicator id");
}
/* Ranks that never meet: two formations are free, the rest count, and it says so; a formation that works makes
 * it begin anew. */
Test(faults, formations_that_never_work_end_the_run) {
    int r = waiting_run(10000, 20); /* max_restarts 3 */
    for (uint32_t g = 1; g <= 9; g++) {
        cr_assert_eq(B.run[r].generation, g, "%u: %s", B.run[r].generation, zt_run_state_name(bench_state(r)));
        cr_assert_eq(B.run[r].restarts_counted, g > 6 ? g - 6 : 0);
        if (g == 3) { /* this one works, and is killed */
            bench_running(r);
            bench_exit(r, 0, -1, 9);
        } else {
            bench_form(r);
            bench_wait(20.4);
            cr_assert_eq(B.run[r].reason, ZT_REASON_COMM_INIT_TIMEOUT);
        }
        cr_assert_eq(B.attempt[r].counted, g >= 6, "generation %u", g);
        cr_assert_eq(strstr(B.run[r].detail, "times in a row: counted against") != NULL, g >= 6, "%s", B.run[r].detail);
        bench_exit_all(r, 0, 9);
        if (g == 7) { /* how many there were is on disk */
            bench_reopen();
            for (int w = 0; w < B.n_workers; w++) bench_register(w);
        }
        bench_wait(61.4);
    }
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(B.run[r].reason, ZT_REASON_COMM_INIT_TIMEOUT);
    cr_assert(strstr(B.run[r].detail, "gave up after 3 counted restarts"), "%s", B.run[r].detail);
    cr_assert(strstr(B.run[r].detail, "did not meet 6 times in a row"), "%s", B.run[r].detail);
}
Test(faults, queue_timeout) {
    struct zt_run_config c = bench_config(4);
    c.queue = 10;
    int r = bench_submit("job", c);
    bench_wait(10.4);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(B.run[r].reason, ZT_REASON_QUEUE_TIMEOUT);
    cr_assert(strstr(B.run[r].detail, "need 4 workers"), "%s", B.run[r].detail);
}
Test(faults, time_limit) {
    bench_worker("0", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(1);
    c.time_limit = 20;
    int r = bench_submit("job", c);
    bench_running(r);
    bench_wait(20.4);
    cr_assert_eq(B.run[r].reason, ZT_REASON_TIME_LIMIT);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
}
Test(faults, rows_that_never_come) {
    int r = running(1);
    bench_steps(r, 0, 1, 4, 0.1);
    bench_done(r, 0, 10, "h");
    bench_wait(119);
    cr_assert_eq(bench_state(r), ZT_RUN_COMPLETING);
    bench_wait(2);
    cr_assert_eq(B.run[r].reason, ZT_REASON_COMM_ERROR);
    cr_assert(strstr(B.run[r].detail, "after step 4"), "%s", B.run[r].detail);
}

/* ---- the end of a run */
Test(faults, replicas_that_end_differently) {
    int r = running(3);
    step_all(r, 1, 10, 0.1);
    bench_done(r, 0, 10, "aaaa");
    bench_done(r, 1, 10, "bbbb");
    bench_done(r, 2, 10, "aaaa");
    cr_assert_eq(B.run[r].reason, ZT_REASON_REPLICA_DIVERGED);
    cr_assert_eq(B.run[r].cause_rank, 1, "the one that stands alone");
    bench_exit_all(r, 0, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
}
Test(faults, done_too_early_is_a_failure) {
    int r = running(1);
    bench_steps(r, 0, 1, 9, 0.1);
    bench_done(r, 0, 9, "h");
    cr_assert_eq(B.run[r].reason, ZT_REASON_EXIT_NONZERO);
    cr_assert(strstr(B.run[r].detail, "step 9 of 10"), "%s", B.run[r].detail);
}
Test(faults, without_a_number_of_steps_all_must_agree) {
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(2);
    c.steps = 0;
    int r = bench_submit("job", c);
    bench_running(r);
    step_all(r, 1, 8, 0.1);
    bench_done(r, 0, 8, "");
    bench_done(r, 1, 7, "");
    cr_assert_eq(B.run[r].reason, ZT_REASON_REPLICA_DIVERGED);
}

/* ---- teardown */
Test(faults, workers_are_free_only_when_every_trainer_is_gone) {
    int r = running(2);
    int next = bench_submit("next", bench_config(1));
    bench_fail(r, 0, ZT_REASON_NAN_LOSS, -1);
    bench_exit(r, 0, 1, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(bench_state(next), ZT_RUN_QUEUED);
    bench_wait(3);
    cr_assert_eq(bench_state(next), ZT_RUN_QUEUED);
    bench_exit(r, 1, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(bench_state(next), ZT_RUN_STARTING);
    cr_assert_float_eq(B.attempt[r].stop_seconds, 3.0, 1e-6);
}
Test(faults, a_trainer_that_does_not_die) {
    int r = running(2);
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    bench_exit(r, 0, -1, 11);
    bench_wait(44.6);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    bench_wait(0.8); /* term_grace 15 s + reap 30 s */
    cr_assert_eq(B.w[1].row.state, ZT_WORKER_QUARANTINED);
    cr_assert_neq(bench_state(r), ZT_RUN_STOPPING);
    bench_worker("2", "a");
    bench_wait(2);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING, "the run goes on elsewhere");
    cr_assert_str_eq(B.rank[r][1].worker_id, "a/2");
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT, "and is still told to get rid of it");
    struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, 1);
    ev.at = (struct zt_on_child){B.run[r].run_id, 1, 1};
    B.w[1].phase = ZT_TP_NONE;
    bench_step(&ev);
    cr_assert_eq(B.w[1].row.state, ZT_WORKER_IDLE);
}
Test(faults, a_worker_that_never_started_its_trainer_says_so) {
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    int r = bench_submit("job", bench_config(2));
    bench_rank(r, 0, ZT_EV_RANK_READY);
    bench_fail(r, 0, ZT_REASON_DATA_ERROR, -1);
    bench_exit(r, 0, 1, 0);
    bench_wait(2);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING,
                 "START may still be on its way to rank 1: a beat proves nothing");
    bench_exit(r, 1, -1, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
}
Test(faults, a_new_connection_without_a_child_is_a_proof) {
    int r = running(2);
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    bench_exit(r, 0, -1, 11);
    B.w[1].phase = ZT_TP_NONE;
    bench_register(1);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
}
Test(faults, a_finished_trainer_that_does_not_exit_is_aborted) {
    int r = running(1);
    step_all(r, 1, 10, 0.1);
    bench_done(r, 0, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
    bench_wait(9);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_RUN);
    bench_wait(1.4);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
    bench_exit(r, 0, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_IDLE);
}
Test(faults, failures_after_done_change_nothing) {
    int r = running(2);
    step_all(r, 1, 10, 0.1);
    bench_done(r, 0, 10, "h");
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    bench_exit(r, 0, -1, 11);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_done(r, 1, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
}
