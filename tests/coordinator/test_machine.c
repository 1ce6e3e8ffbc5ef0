/* SPDX-License-Identifier: Apache-2.0 */
/* The machine, transition by transition: formation, names and keys, queue, fencing, communicator
 * ids, cancel, drain, the database that cannot be written. Failures and time limits:
 * test_machine_faults.c; restarts: test_machine_recover.c. */
#include "tests/coordinator/machine_bench.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(machine, .init = bench_open, .fini = bench_close);

static void workers(int n) {
    static const char *names[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    for (int i = 0; i < n; i++) bench_worker(names[i], "a");
    bench_wait(1.2); /* settled */
}
static void finish(int run) {
    for (int k = 0; k < B.run[run].workers; k++) {
        cr_assert_eq(bench_steps(run, k, 1, 10, 0.1), 0);
        cr_assert_eq(bench_done(run, k, 10, "abc"), 0);
    }
    bench_exit_all(run, 0, 0);
}

/* ---- a life */
Test(machine, a_whole_life) {
    workers(2);
    B.hold_commits = true;
    int r = bench_submit("job", bench_config(2));
    cr_assert_eq(r, 0);
    cr_assert_str_eq(B.reply.name, "job");
    cr_assert_gt(B.reply.after_txn, 0, "a submit is answered after its commit");
    cr_assert_eq(bench_state(r), ZT_RUN_ALLOCATING);
    cr_assert_eq(B.run[r].generation, 1);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_IDLE,
                 "nobody hears of a generation before it is durable");
    bench_beat(0);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_IDLE);
    bench_commit();
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    for (int w = 0; w < 2; w++) {
        cr_assert_eq(B.w[w].desired.action, ZT_DESIRED_START);
        cr_assert_eq(B.w[w].desired.generation, 1);
        cr_assert_eq(B.w[w].desired.rank, w);
        cr_assert_eq(B.w[w].desired.world, 2);
        cr_assert_eq(B.w[w].desired.mesh.replicate, 2);
        cr_assert_eq(B.w[w].desired.workers_on_host, 2);
    }
    B.hold_commits = false;
    bench_rank(r, 0, ZT_EV_RANK_READY);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    bench_rank(r, 1, ZT_EV_RANK_READY);
    cr_assert_eq(bench_state(r), ZT_RUN_FORMING);
    bench_wait(2);
    bench_rank(r, 0, ZT_EV_RANK_IN_COMM);
    bench_rank(r, 1, ZT_EV_RANK_IN_COMM);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_RUN);
    cr_assert_eq(B.w[1].row.state, ZT_WORKER_RUNNING);
    cr_assert(B.run[r].started_ms > 0);
    cr_assert_float_eq(B.attempt[r].form_seconds, 2.0, 1e-6);
    bench_steps(r, 0, 1, 10, 0.1);
    bench_done(r, 0, 10, "abc");
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_steps(r, 1, 1, 10, 0.1);
    bench_done(r, 1, 10, "abc");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
    cr_assert_str_eq(B.run[r].parameter_hash, "abc");
    cr_assert_eq(B.run[r].reason, ZT_REASON_NONE);
    cr_assert_eq(B.attempt[r].last_step, 10);
    cr_assert_eq(zt_machine_runs(B.m), 1, "it holds its workers until their trainers are gone");
    bench_exit_all(r, 0, 0);
    cr_assert_eq(zt_machine_runs(B.m), 0);
    bench_beat(0);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_IDLE);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_IDLE);
}
Test(machine, success_waits_for_the_rows) {
    workers(1);
    int r = bench_submit("job", bench_config(1));
    bench_running(r);
    bench_steps(r, 0, 1, 9, 0.1);
    bench_done(r, 0, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_COMPLETING, "step 10 has not come");
    B.hold_commits = true;
    bench_steps(r, 0, 10, 10, 0.1);
    cr_assert_eq(bench_state(r), ZT_RUN_COMPLETING, "step 10 is not durable");
    bench_commit();
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
}
Test(machine, steps_come_without_gaps) {
    workers(1);
    int r = bench_submit("job", bench_config(1));
    bench_running(r);
    cr_assert_eq(bench_steps(r, 0, 2, 3, 0.1), ZT_EBUSY);
    cr_assert(strstr(B.reply.message, "step 1 is missing"), "%s", B.reply.message);
    cr_assert_eq(bench_steps(r, 0, 1, 3, 0.1), 0);
    cr_assert_eq(bench_steps(r, 0, 1, 3, 0.1), 0, "a repeat is acknowledged again");
    cr_assert_eq(bench_steps(r, 0, 3, 5, 0.1), 0, "an overlap too");
    cr_assert_eq(bench_steps(r, 0, 0, 5, 0.1), ZT_EINVAL);
    cr_assert_eq(bench_steps(r, 0, 5, 4, 0.1), ZT_EINVAL);
}
Test(machine, ranks_by_host_and_local_ranks) {
    bench_worker("1", "b");
    bench_worker("0", "b");
    bench_worker("0", "a");
    bench_worker("1", "a");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(4);
    c.tensor = 2;
    int r = bench_submit("job", c);
    static const char *want[] = {"a/0", "a/1", "b/0", "b/1"};
    for (int k = 0; k < 4; k++) {
        cr_assert_str_eq(B.rank[r][k].worker_id, want[k]);
        cr_assert_eq(B.rank[r][k].local_rank, k % 2);
        cr_assert_eq(B.rank[r][k].workers_on_host, 2);
    }
    cr_assert_eq(B.run[r].mesh.replicate, 2);
    cr_assert_eq(B.run[r].mesh.tensor, 2);
    cr_assert_null(bench_find_event("TENSOR_GROUP_SPLIT"));
}
/* Three workers here, one there: the second pair is on both. */
Test(machine, a_tensor_group_over_two_hosts_is_told) {
    static const char *names[] = {"0", "1", "2"};
    for (int i = 0; i < 3; i++) bench_worker(names[i], "a");
    bench_worker("0", "b");
    bench_wait(1.2);
    struct zt_run_config c = bench_config(4);
    c.tensor = 2;
    int r = bench_submit("job", c);
    cr_assert_eq(B.run[r].workers, 4);
    cr_assert_str_eq(B.rank[r][1].worker_id, "a/1", "what fits on a host stays there");
    const struct zt_row_event *e = bench_find_event("TENSOR_GROUP_SPLIT");
    cr_assert(e);
    cr_assert_eq(e->level, 2);
    cr_assert(strstr(e->message, "ranks 2 to 3: rank 2 is on a, rank 3 on b"), "%s", e->message);
}
Test(machine, a_run_without_workers_fills_the_idle_ones) {
    for (int i = 0; i < 5; i++) bench_worker((char[2]){(char)('0' + i), 0}, "a");
    struct zt_run_config c = bench_config(0);
    c.shard = -1;
    c.fill_shard = true;
    memset(c.allowed, 0, sizeof c.allowed);
    c.allowed[0] = 1u << 0 | 1u << 1 | 1u << 3 | 1u << 7; /* 1, 2, 4 and 8 divide the batch */
    int r = bench_submit("job", c);
    cr_assert_eq(bench_state(r), ZT_RUN_QUEUED, "workers may still be coming");
    bench_wait(1.2);
    cr_assert_eq(B.run[r].workers, 4);
    cr_assert_eq(B.run[r].mesh.shard, 4);
    cr_assert_eq(B.run[r].mesh.replicate, 1);
    bench_running(r);
    bench_fail(r, 2, ZT_REASON_SIGNAL, -1);
    bench_exit_all(r, 0, 9);
    bench_worker("5", "a");
    bench_worker("6", "a");
    bench_worker("7", "a");
    bench_wait(4);
    cr_assert_eq(B.run[r].generation, 2);
    cr_assert_eq(B.run[r].workers, 4, "a restart keeps the mesh, or its numbers would differ");
}
Test(machine, two_runs_at_once) { /* two jobs side by side do not meet */
    workers(4);
    int a = bench_submit("a", bench_config(2)), b = bench_submit("b", bench_config(2));
    bench_running(a);
    bench_running(b);
    cr_assert_eq(bench_state(a), ZT_RUN_RUNNING);
    cr_assert_eq(bench_state(b), ZT_RUN_RUNNING);
    bench_fail(a, 0, ZT_REASON_SIGNAL, -1);
    bench_exit_all(a, 0, 9);
    cr_assert_eq(bench_state(a), ZT_RUN_RESTARTING);
    cr_assert_eq(bench_state(b), ZT_RUN_RUNNING);
    finish(b);
    cr_assert_eq(bench_state(b), ZT_RUN_SUCCEEDED);
    bench_wait(2);
    bench_running(a);
    finish(a);
    cr_assert_eq(bench_state(a), ZT_RUN_SUCCEEDED);
    cr_assert_eq(B.run[a].generation, 2);
}

/* ---- names and keys */
Test(machine, a_repeated_submit_is_one_run) {
    workers(1);
    int r = bench_submit_key("job", bench_config(1), 7);
    uint64_t order = B.run[r].order;
    cr_assert_eq(bench_submit_key("job", bench_config(1), 7), r);
    cr_assert_eq(B.n_runs, 1);
    cr_assert_eq(B.run[r].order, order);
    bench_running(r);
    finish(r);
    cr_assert_eq(zt_machine_runs(B.m), 0);
    cr_assert_eq(bench_submit_key("job", bench_config(1), 7), r, "also after its end");
    cr_assert_eq(B.n_runs, 1);
}
Test(machine, a_repeat_before_the_commit_waits_for_it_too) {
    B.hold_commits = true;
    bench_submit_key("job", bench_config(1), 7);
    uint64_t first = B.reply.after_txn;
    bench_submit_key("job", bench_config(1), 7);
    cr_assert_geq(B.reply.after_txn, first);
}
Test(machine, keys_live_a_day) {
    bench_submit_key("job", bench_config(9), 7);
    B.now += 23LL * 3600 * 1000000000;
    bench_tick(200); /* counts as a pause: it does not age keys */
    cr_assert_eq(bench_submit_key("job", bench_config(9), 7), 0);
}
Test(machine, a_key_serves_one_purpose) {
    int r = bench_submit_key("job", bench_config(1), 7);
    cr_assert_eq(bench_cancel(r, 7), ZT_ECONFLICT);
    cr_assert_eq(bench_cancel(r, 8), 0);
    cr_assert_eq(bench_submit_key("other", bench_config(1), 8), ZT_ECONFLICT);
}
Test(machine, a_name_is_taken_while_its_run_lives) {
    int r = bench_submit("job", bench_config(1));
    cr_assert_eq(bench_submit("job", bench_config(1)), ZT_ECONFLICT);
    cr_assert(strstr(B.reply.message, B.run[r].run_id), "%s", B.reply.message);
    cr_assert_eq(bench_cancel(r, 1), 0);
    cr_assert_eq(bench_submit("job", bench_config(1)), 1);
    cr_assert_str_neq(B.run[0].run_id, B.run[1].run_id);
}
Test(machine, impossible_degrees_are_refused) {
    struct zt_run_config c = bench_config(4);
    c.tensor = 3;
    cr_assert_eq(bench_submit("job", c), ZT_EINVAL);
    c = bench_config(4);
    c.replicate = 2;
    cr_assert_eq(bench_submit("job", c), ZT_EINVAL);
    c = bench_config(ZT_MACHINE_WORLD_MAX + 1);
    cr_assert_eq(bench_submit("job", c), ZT_EINVAL);
}

/* ---- queue */
Test(machine, a_waiting_run_says_why) {
    workers(7);
    B.w[5].silent = B.w[6].silent = true;
    bench_wait(7);
    int r = bench_submit("big", bench_config(8));
    cr_assert_eq(bench_state(r), ZT_RUN_QUEUED);
    cr_assert_str_eq(B.run[r].detail, "need 8 workers, 5 idle, 2 lost");
    cr_assert_str_eq(B.reply.message, "need 8 workers, 5 idle, 2 lost");
    cr_assert_eq(B.reply.position, 1);
    int s = bench_submit("small", bench_config(2));
    cr_assert_eq(bench_state(s), ZT_RUN_STARTING,
                 "what can never start now does not hold back others");
    cr_assert_str_eq(B.run[r].detail, "need 8 workers, 3 idle, 2 busy, 2 lost");
}
Test(machine, priority_then_order_and_no_starving) {
    workers(4);
    int a = bench_submit("a", bench_config(3));
    int big = bench_submit("big", bench_config(4)), small = bench_submit("small", bench_config(1));
    cr_assert_eq(bench_state(big), ZT_RUN_QUEUED);
    cr_assert_eq(bench_state(small), ZT_RUN_QUEUED, "one is idle, but the big one is next");
    cr_assert_str_eq(B.run[small].detail, "waiting behind big (priority 0)");
    struct zt_run_config c = bench_config(1);
    c.priority = 5;
    int urgent = bench_submit("urgent", c);
    cr_assert_eq(bench_state(urgent), ZT_RUN_STARTING);
    bench_running(a);
    finish(a);
    cr_assert_eq(bench_state(big), ZT_RUN_QUEUED);
    bench_running(urgent);
    finish(urgent);
    cr_assert_eq(bench_state(big), ZT_RUN_STARTING);
    cr_assert_eq(bench_state(small), ZT_RUN_QUEUED);
}
Test(machine, a_restarting_run_keeps_its_turn) {
    workers(2);
    int a = bench_submit("a", bench_config(2));
    bench_running(a);
    int b = bench_submit("b", bench_config(2));
    bench_fail(a, 0, ZT_REASON_SIGNAL, -1);
    bench_exit_all(a, 0, 9);
    cr_assert_eq(bench_state(a), ZT_RUN_RESTARTING);
    cr_assert_eq(bench_state(b), ZT_RUN_QUEUED);
    bench_wait(1.2);
    cr_assert_eq(bench_state(a), ZT_RUN_STARTING);
    cr_assert_eq(bench_state(b), ZT_RUN_QUEUED);
}
Test(machine, memory_and_device_are_asked_for) {
    workers(2);
    struct zt_run_config c = bench_config(2);
    c.memory_bytes = 2LL << 30;
    int r = bench_submit("job", c);
    cr_assert_str_eq(B.run[r].detail, "need 2 workers, 0 idle, 2 with too little memory");
    c = bench_config(1);
    strcpy(c.device, "cuda");
    int s = bench_submit("gpu", c);
    cr_assert_str_eq(B.run[s].detail, "need 1 worker, 0 idle");
}

/* ---- fencing */
Test(machine, older_generations_change_nothing) {
    workers(2);
    int r = bench_submit("job", bench_config(2));
    bench_running(r);
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    bench_exit_all(r, 0, 9);
    bench_wait(1.2);
    cr_assert_eq(B.run[r].generation, 2);
    bench_running(r);
    for (enum zt_event_kind k = ZT_EV_RANK_READY; k <= ZT_EV_RANK_DONE; k++) {
        struct zt_event ev = bench_event(k, 0);
        ev.at = (struct zt_on_child){B.run[r].run_id, 1, 0};
        ev.u.failure.reason = ZT_REASON_NAN_LOSS;
        if (k == ZT_EV_STEPS) ev.u.steps.first = ev.u.steps.last = 1;
        if (k == ZT_EV_COMM_PUT || k == ZT_EV_COMM_GET) ev.u.comm.group = "world";
        if (k == ZT_EV_RANK_DONE) ev.u.done.steps = 10;
        cr_assert_eq(bench_step(&ev), ZT_CODE_STALE, "kind %d", k);
        cr_assert(B.reply.has_desired);
        cr_assert_eq(B.reply.desired.action, ZT_DESIRED_RUN);
        cr_assert_eq(B.reply.desired.generation, 2);
    }
    struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, 0);
    ev.at = (struct zt_on_child){B.run[r].run_id, 1, 0};
    cr_assert_eq(bench_step(&ev), 0,
                 "an exit of long ago is acknowledged, so that the worker may forget it");
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(bench_steps(r, 0, 1, 1, 0.1), 0, "step 1 of generation 1 was not counted");
}
Test(machine, a_rank_is_reported_by_its_holder_only) {
    workers(3);
    int r = bench_submit("job", bench_config(2));
    bench_running(r);
    struct zt_event ev = bench_event(ZT_EV_FAILURE, 2);
    ev.at = (struct zt_on_child){B.run[r].run_id, 1, 0};
    ev.u.failure.reason = ZT_REASON_NAN_LOSS;
    cr_assert_eq(bench_step(&ev), ZT_CODE_STALE);
    ev.at.run_id = "no-such-run";
    cr_assert_eq(bench_step(&ev), ZT_CODE_STALE);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
}
Test(machine, the_newest_process_of_a_name_wins) {
    workers(2);
    int r = bench_submit("job", bench_config(2));
    bench_running(r);
    struct zt_event old = bench_event(ZT_EV_BEAT, 0);
    old.u.beat.seq = 1000;
    bench_restart_worker(0);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_eq(B.run[r].cause_rank, 0);
    cr_assert_eq(bench_step(&old), ZT_CODE_SUPERSEDED);
    cr_assert_eq(B.reply.desired.action, ZT_DESIRED_EXIT);
    old.kind = ZT_EV_REGISTER;
    old.u.reg.host = old.u.reg.device = "cpu";
    cr_assert_eq(bench_step(&old), ZT_CODE_SUPERSEDED, "it cannot come back either");
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT);
    bench_exit(r, 1, 0, 9);
    bench_wait(1.2);
    cr_assert_eq(B.run[r].generation, 2, "a quick rejoin ends in one new generation");
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
}
Test(machine, an_older_connection_is_not_heard) {
    workers(1);
    struct zt_event old = bench_event(ZT_EV_BEAT, 0);
    old.u.beat.seq = 999;
    bench_register(0);
    cr_assert_eq(bench_step(&old), ZT_ECONFLICT);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = old.session};
    bench_step(&gone);
    int r = bench_submit("job", bench_config(1));
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING,
                 "the end of the older connection is not the end of the worker");
}
Test(machine, who_has_not_registered_is_told_so) {
    struct zt_event ev = {.kind = ZT_EV_BEAT, .worker_id = "x/0", .session = 1};
    cr_assert_eq(bench_step(&ev), ZT_ECONFLICT);
}
Test(machine, older_beats_are_ignored) {
    workers(1);
    struct zt_event ev = bench_event(ZT_EV_BEAT, 0);
    ev.u.beat.seq = 1; /* the bench is beyond that */
    ev.at = (struct zt_on_child){"OTHER", 3, 0};
    ev.u.beat.phase = ZT_TP_RUNNING;
    cr_assert_eq(bench_step(&ev), 0);
    cr_assert_eq(B.reply.desired.action, ZT_DESIRED_IDLE);
}
Test(machine, a_child_nobody_owns_is_aborted_first) {
    int w = bench_worker("0", "a");
    bench_wait(1.2);
    strcpy(B.w[w].run_id, "GHOST");
    B.w[w].generation = 4;
    B.w[w].rank = 1;
    B.w[w].phase = ZT_TP_RUNNING;
    bench_beat(w);
    cr_assert_eq(B.w[w].desired.action, ZT_DESIRED_ABORT);
    cr_assert_str_eq(B.w[w].desired.run_id, "GHOST");
    cr_assert_eq(B.w[w].desired.generation, 4);
    cr_assert_eq(B.w[w].row.state, ZT_WORKER_RECLAIMING);
    int r = bench_submit("job", bench_config(1));
    cr_assert_str_eq(B.run[r].detail, "need 1 worker, 0 idle, 1 draining or set aside");
    struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, w);
    ev.at = (struct zt_on_child){"GHOST", 4, 1};
    B.w[w].phase = ZT_TP_NONE;
    cr_assert_eq(bench_step(&ev), 0);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
}

/* ---- communicator ids */
static int comm(int run, int rank, enum zt_event_kind kind, const char *group, const char *id) {
    struct zt_event ev = bench_event(kind, bench_holder(run, rank));
    ev.at = (struct zt_on_child){B.run[run].run_id, B.run[run].generation, rank};
    ev.u.comm.group = group;
    ev.u.comm.id = id;
    ev.u.comm.bytes = id ? strlen(id) : 0;
    return bench_step(&ev);
}
Test(machine, the_first_communicator_id_counts) {
    workers(3);
    int r = bench_submit("job", bench_config(3));
    bench_form(r);
    cr_assert_eq(comm(r, 1, ZT_EV_COMM_GET, "world", NULL), 1, "waits: no answer yet");
    cr_assert_eq(comm(r, 2, ZT_EV_COMM_GET, "world", NULL), 1);
    int before = B.n_replies;
    cr_assert_eq(comm(r, 0, ZT_EV_COMM_PUT, "world", "first"), 0);
    cr_assert_eq(B.n_replies, before + 3, "the put and both who waited are answered");
    cr_assert_eq(B.reply.comm_id_bytes, 5);
    cr_assert_eq(comm(r, 0, ZT_EV_COMM_PUT, "world", "second"), 0);
    cr_assert_eq(memcmp(B.reply.comm_id, "first", 5), 0);
    cr_assert_eq(comm(r, 0, ZT_EV_COMM_PUT, "tensor", "other"), 0);
    cr_assert_eq(comm(r, 2, ZT_EV_COMM_GET, "world", NULL), 0);
    cr_assert_eq(memcmp(B.reply.comm_id, "first", 5), 0);
    cr_assert_eq(comm(r, 0, ZT_EV_COMM_PUT, "world", ""), ZT_EINVAL);
    for (int k = 0; k < 3; k++) bench_rank(r, k, ZT_EV_RANK_IN_COMM);
    cr_assert_eq(comm(r, 1, ZT_EV_COMM_GET, "world", NULL), ZT_CODE_STALE,
                 "gone once the run is RUNNING");
}
Test(machine, communicator_ids_do_not_cross_generations) {
    workers(2);
    int r = bench_submit("job", bench_config(2));
    bench_form(r);
    comm(r, 0, ZT_EV_COMM_PUT, "world", "one");
    cr_assert_eq(comm(r, 1, ZT_EV_COMM_GET, "tensor", NULL), 1);
    int before = B.n_replies;
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    cr_assert_eq(B.n_replies, before + 2, "who waited is told that it waits in vain");
    bench_exit_all(r, 0, 9);
    bench_wait(1.2);
    bench_form(r);
    cr_assert_eq(comm(r, 1, ZT_EV_COMM_GET, "world", NULL), 1,
                 "the id of generation 1 is not handed out in 2");
    cr_assert_eq(comm(r, 0, ZT_EV_COMM_PUT, "world", "two"), 0);
    cr_assert_eq(comm(r, 1, ZT_EV_COMM_GET, "world", NULL), 0);
    cr_assert_eq(memcmp(B.reply.comm_id, "two", 3), 0);
}

/* ---- cancel */
Test(machine, cancel_in_every_state) {
    workers(2);
    int q = bench_submit("queued", bench_config(8));
    cr_assert_eq(bench_cancel(q, 1), 0);
    cr_assert_eq(bench_state(q), ZT_RUN_CANCELLED);
    cr_assert_eq(B.reply.state, ZT_RUN_CANCELLED);
    B.hold_commits = true;
    int a = bench_submit("allocating", bench_config(2));
    cr_assert_eq(bench_cancel(a, 2), 0);
    cr_assert_eq(bench_state(a), ZT_RUN_CANCELLED, "nobody was told: nobody needs to stop");
    cr_assert_gt(B.reply.after_txn, 0);
    B.hold_commits = false;
    bench_commit();
    for (int stage = 0; stage < 4; stage++) {
        int r = bench_submit("job", bench_config(2));
        if (stage == 1) bench_form(r);
        if (stage >= 2) bench_running(r);
        if (stage == 3) bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
        cr_assert_eq(bench_cancel(r, 10 + stage), 0);
        cr_assert_eq(B.reply.state, ZT_RUN_STOPPING);
        cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
        cr_assert_eq(bench_cancel(r, 10 + stage), 0, "a repeat gets an answer too");
        bench_exit_all(r, 0, 9);
        cr_assert_eq(bench_state(r), ZT_RUN_CANCELLED, "stage %d", stage);
        cr_assert_eq(B.run[r].reason, ZT_REASON_USER_CANCEL);
        cr_assert_eq(B.n_runs, 3 + stage);
    }
}
Test(machine, cancel_during_the_backoff) {
    workers(1);
    int r = bench_submit("job", bench_config(1));
    bench_running(r);
    bench_fail(r, 0, ZT_REASON_SIGNAL, -1);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(bench_cancel(r, 1), 0);
    cr_assert_eq(bench_state(r), ZT_RUN_CANCELLED);
    bench_wait(3);
    cr_assert_eq(B.run[r].generation, 1);
}
Test(machine, cancel_of_an_ended_run_says_how_it_ended) {
    workers(1);
    int r = bench_submit("job", bench_config(1));
    bench_running(r);
    finish(r);
    cr_assert_eq(bench_cancel(r, 1), 0);
    cr_assert_eq(B.reply.state, ZT_RUN_SUCCEEDED);
    cr_assert_eq(B.run[r].state, ZT_RUN_SUCCEEDED);
    uint8_t key[16] = {9};
    struct zt_event ev = {.kind = ZT_EV_CANCEL, .u.cancel = {key, "OLD", ZT_RUN_FAILED, false}};
    cr_assert_eq(bench_step(&ev), 0, "one that ended long ago: the database knows");
    cr_assert_eq(B.reply.state, ZT_RUN_FAILED);
    ev.u.cancel.stored = ZT_RUN_QUEUED;
    cr_assert_eq(bench_step(&ev), ZT_ENOTFOUND);
}

/* ---- drain and cordon */
Test(machine, a_draining_worker_gives_its_rank_away) {
    workers(3);
    int r = bench_submit("job", bench_config(2));
    bench_running(r);
    B.w[0].draining = true;
    bench_beat(0);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_DRAINED);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_EXIT);
    bench_wait(1.2);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    cr_assert_eq(B.run[r].restarts_counted, 0);
    cr_assert_str_eq(B.rank[r][0].worker_id, "a/1");
    cr_assert_str_eq(B.rank[r][1].worker_id, "a/2");
}
Test(machine, a_drained_worker_that_hangs_up_is_gone) {
    workers(2);
    int r = bench_submit("job", bench_config(2));
    bench_running(r);
    B.w[0].draining = true;
    bench_beat(0);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = B.w[0].session};
    bench_step(&gone);
    cr_assert_neq(B.w[0].row.state, ZT_WORKER_GONE, "its trainer may live");
    bench_register(0);
    bench_exit_all(r, 0, 9);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_IDLE);
    gone.session = B.w[0].session;
    B.w[0].silent = true;
    bench_step(&gone);
    cr_assert_eq(B.w[0].row.state, ZT_WORKER_GONE, "at once, not when its beats are missed");
    bench_wait(1.2);
    cr_assert_str_eq(B.run[r].detail, "need 2 workers, 1 idle", "nobody waits for it");
    /* a new process of that name is as good as any */
    B.w[0].draining = B.w[0].silent = false;
    bench_restart_worker(0);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
}
Test(machine, a_worker_that_hangs_up_is_not_given_a_rank) {
    workers(2);
    struct zt_event gone = {.kind = ZT_EV_DISCONNECTED, .session = B.w[1].session};
    bench_step(&gone);
    cr_assert_eq(B.w[1].row.state, ZT_WORKER_IDLE, "it was not draining: it may be back");
    int r = bench_submit("job", bench_config(2));
    cr_assert_str_eq(B.run[r].detail, "need 2 workers, 1 idle, 1 lost");
    bench_register(1);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
}
Test(machine, a_cordoned_worker_gets_nothing_new) {
    workers(2);
    struct zt_event ev = {.kind = ZT_EV_WORKER_SET, .u.worker_set = {"a/0", ZT_WF_CORDONED, 0}};
    cr_assert_eq(bench_step(&ev), 0);
    int r = bench_submit("job", bench_config(2));
    cr_assert_str_eq(B.run[r].detail, "need 2 workers, 1 idle, 1 draining or set aside");
    ev.u.worker_set.set = 0;
    ev.u.worker_set.clear = ZT_WF_CORDONED;
    bench_step(&ev);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    ev.u.worker_set.worker_id = "a/9";
    cr_assert_eq(bench_step(&ev), ZT_ENOTFOUND);
}

Test(machine, a_full_table_of_request_keys_is_not_a_full_queue) {
    struct zt_machine_config c;
    zt_machine_config_default(&c);
    c.max_keys = 2;
    zt_machine_free(B.m);
    B.m = zt_machine_new(&c);
    struct zt_recovery none = {.epoch = 1};
    struct zt_event ev = {.kind = ZT_EV_START, .u.start.recovery = &none};
    bench_step(&ev);
    cr_assert_geq(bench_submit("a", bench_config(4)), 0);
    bench_wait(90);
    cr_assert_geq(bench_submit("b", bench_config(4)), 0);
    cr_assert_eq(bench_submit("c", bench_config(4)), ZT_EBUSY);
    cr_assert(strstr(B.reply.message, "2 requests were taken in the last 24 hours"), "%s", B.reply.message);
    cr_assert(strstr(B.reply.message, "forgotten in 1439 minutes"), "%s", B.reply.message);
    cr_assert_null(strstr(B.reply.message, "queue"), "%s", B.reply.message);
}

/* ---- the database */
Test(machine, a_database_that_cannot_be_written) {
    workers(2);
    int r = bench_submit("running", bench_config(1));
    bench_running(r);
    B.hold_commits = true;
    bench_steps(r, 0, 1, 1, 0.1);
    struct zt_event bad = {.kind = ZT_EV_STORE_FAILED,
                           .u.store = {zt_machine_txn(B.m), "disk full"}};
    bench_step(&bad);
    cr_assert_eq(bench_submit("new", bench_config(1)), ZT_EBUSY);
    cr_assert(strstr(B.reply.message, "disk full"), "%s", B.reply.message);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "training goes on");
    cr_assert_eq(bench_steps(r, 0, 2, 2, 0.1), 0);
    cr_assert_gt(B.reply.after_txn, 0, "and is not acknowledged");
    B.hold_commits = false;
    bench_commit();
    cr_assert_geq(bench_submit("new", bench_config(1)), 0);
}
Test(machine, tables_that_are_full_say_so) {
    struct zt_machine_config c;
    zt_machine_config_default(&c);
    c.max_workers = 2;
    c.max_runs = 2;
    zt_machine_free(B.m);
    B.m = zt_machine_new(&c);
    struct zt_recovery none = {.epoch = 1};
    struct zt_event ev = {.kind = ZT_EV_START, .u.start.recovery = &none};
    bench_step(&ev);
    workers(2);
    cr_assert_geq(bench_submit("a", bench_config(4)), 0);
    cr_assert_geq(bench_submit("b", bench_config(4)), 0);
    cr_assert_eq(bench_submit("c", bench_config(4)), ZT_EBUSY);
    cr_assert(strstr(B.reply.message, "the queue is full: 2 runs"), "%s", B.reply.message);
    struct zt_event more = {.kind = ZT_EV_REGISTER,
                            .worker_id = "z/9",
                            .session = 99,
                            .u.reg = {.host = "z", .device = "cpu"}};
    cr_assert_eq(bench_step(&more), ZT_EBUSY);
    B.w[0].silent = true;
    bench_wait(7);
    cr_assert_eq(bench_step(&more), 0, "a lost worker's place is free");
    bench_wait(1);
    cr_assert_eq(zt_machine_workers(B.m), 2);
}
