/* SPDX-License-Identifier: Apache-2.0 */
/* The machine after a restart of the coordinator: what comes back, what goes on, what is formed
 * anew. */
#include "tests/coordinator/machine_bench.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(recover, .init = bench_open, .fini = bench_close);

static int submitted(int n) {
    for (int i = 0; i < n; i++) bench_worker((char[2]){(char)('0' + i), 0}, "a");
    bench_wait(1.2);
    return bench_submit("job", bench_config(n));
}
static int running(int n) {
    int r = submitted(n);
    bench_running(r);
    for (int k = 0; k < n; k++) bench_steps(r, k, 1, 4, 0.1);
    return r;
}

Test(recover, a_restart_costs_no_step_and_no_generation) {
    int r = running(3);
    bench_reopen();
    cr_assert_eq(bench_state(r), ZT_RUN_RECOVERING);
    bench_register(0);
    bench_register(1);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_RUN);
    cr_assert_eq(B.w[0].desired.generation, 1);
    bench_wait(20);
    cr_assert_eq(bench_state(r), ZT_RUN_RECOVERING, "one is still away, and has 60 s");
    bench_register(2);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.run[r].generation, 1);
    cr_assert_eq(B.reply.epoch, 2);
    cr_assert_eq(bench_steps(r, 0, 6, 6, 0.1), ZT_EBUSY,
                 "step 5 is what the database does not have");
    for (int k = 0; k < 3; k++) cr_assert_eq(bench_steps(r, k, 5, 10, 0.1), 0);
    for (int k = 0; k < 3; k++) bench_done(r, k, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
}
Test(recover, who_does_not_come_back_costs_a_generation) {
    int r = running(2);
    bench_reopen();
    bench_register(0);
    bench_wait(59);
    cr_assert_eq(bench_state(r), ZT_RUN_RECOVERING);
    bench_wait(1.6);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
    cr_assert_eq(B.run[r].cause_rank, 1);
    cr_assert(strstr(B.run[r].detail, "a/1 (rank 1) did not come back"), "%s", B.run[r].detail);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
    bench_exit(r, 0, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    bench_register(1);
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT,
                 "it comes too late, with a child of an older generation");
    struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, 1);
    ev.at = (struct zt_on_child){B.run[r].run_id, 1, 1};
    B.w[1].phase = ZT_TP_NONE;
    bench_step(&ev);
    bench_wait(1.2);
    cr_assert_eq(B.run[r].generation, 2);
}
Test(recover, who_comes_back_without_its_trainer) {
    int r = running(2);
    bench_reopen();
    bench_register(0);
    B.w[1].phase = ZT_TP_NONE; /* it died meanwhile; the report follows */
    bench_register(1);
    cr_assert_eq(bench_state(r), ZT_RUN_RECOVERING);
    bench_exit(r, 1, -1, 11);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_SIGNAL, "the cause is not lost");
}
Test(recover, who_was_replaced_meanwhile) {
    int r = running(2);
    bench_reopen();
    bench_register(0);
    bench_restart_worker(1);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_WORKER_LOST);
}
Test(recover, a_formation_is_done_again_under_a_new_generation) {
    for (int stage = 0; stage < 3; stage++) {
        bench_close();
        bench_open();
        int r = submitted(2);
        if (stage > 0) bench_rank(r, 0, ZT_EV_RANK_READY);
        if (stage > 1) bench_rank(r, 1, ZT_EV_RANK_READY);
        bench_reopen();
        cr_assert_eq(bench_state(r), ZT_RUN_STOPPING, "stage %d", stage);
        cr_assert_eq(B.run[r].reason, ZT_REASON_COORDINATOR_RESTART);
        bench_register(0);
        bench_register(1);
        for (int k = 0; k < 2; k++)
            if (!B.rank[r][k].released) {
                cr_assert_eq(B.w[k].desired.action, ZT_DESIRED_ABORT);
                bench_exit(r, k, -1, 9);
            }
        cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
        bench_wait(1.4);
        cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
        cr_assert_eq(B.run[r].generation, 2);
        cr_assert_eq(B.run[r].restarts_counted, 0);
    }
}
Test(recover, an_allocation_that_was_durable_but_told_to_nobody) {
    for (int i = 0; i < 2; i++) bench_worker((char[2]){(char)('0' + i), 0}, "a");
    bench_wait(1.2);
    B.hold_commits = true;
    int r = bench_submit("job", bench_config(2));
    cr_assert_eq(bench_state(r), ZT_RUN_ALLOCATING);
    B.hold_commits = false;
    bench_reopen();
    bench_register(0);
    bench_register(1);
    bench_wait(1.4);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    cr_assert_eq(B.run[r].generation, 2, "never the same number twice");
}
Test(recover, a_teardown_goes_on) {
    int r = running(2);
    bench_fail(r, 0, ZT_REASON_EXIT_NONZERO, -1);
    bench_exit(r, 0, 1, 0);
    bench_reopen();
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    bench_register(0);
    bench_register(1);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_IDLE);
    cr_assert_eq(B.w[1].desired.action, ZT_DESIRED_ABORT);
    bench_exit(r, 1, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    cr_assert_eq(B.run[r].restarts_counted, 1);
    cr_assert_eq(B.run[r].reason, ZT_REASON_EXIT_NONZERO);
}
Test(recover, a_cancel_is_not_forgotten) {
    int r = running(2);
    bench_cancel(r, 1);
    bench_reopen();
    bench_register(0);
    bench_register(1);
    bench_exit_all(r, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_CANCELLED);
    cr_assert_eq(bench_cancel(r, 1), 0);
}
Test(recover, queue_order_keys_and_names_come_back) {
    int a = bench_submit_key("a", bench_config(2), 1),
        b = bench_submit_key("b", bench_config(2), 2);
    bench_reopen();
    cr_assert_eq(bench_submit_key("a", bench_config(2), 1), a, "the key is known");
    cr_assert_eq(bench_submit_key("b", bench_config(2), 3), ZT_ECONFLICT, "the name is taken");
    int c = bench_submit_key("c", bench_config(2), 4);
    cr_assert_gt(B.run[c].order, B.run[b].order);
    bench_worker("0", "a");
    bench_worker("1", "a");
    cr_assert_eq(bench_state(a), ZT_RUN_STARTING);
    cr_assert_eq(bench_state(b), ZT_RUN_QUEUED);
}
Test(recover, a_backoff_starts_again) {
    int r = running(1);
    bench_exit(r, 0, -1, 11);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    bench_reopen();
    bench_register(0);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING);
    bench_wait(1.2);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
    cr_assert_eq(B.run[r].generation, 2);
}
Test(recover, a_run_that_was_done_needs_nobody) {
    int r = running(2);
    for (int k = 0; k < 2; k++) bench_steps(r, k, 5, 10, 0.1);
    bench_done(r, 0, 10, "h");
    bench_reopen();
    bench_register(1);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "rank 0 is done, rank 1 is back");
    bench_done(r, 1, 10, "h");
    cr_assert_eq(bench_state(r), ZT_RUN_SUCCEEDED);
}
/* A database restored from a backup: the workers are ahead of it. */
Test(recover, a_worker_from_the_future) {
    int r = running(2);
    bench_reopen();
    for (int w = 0; w < 2; w++) B.w[w].generation = 7;
    bench_register(0);
    cr_assert_eq(B.w[0].desired.action, ZT_DESIRED_ABORT);
    cr_assert_eq(B.w[0].desired.generation, 7);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    bench_register(1);
    for (int w = 0; w < 2; w++) {
        for (uint32_t g = 7; g >= 1;
             g -= 6) { /* the trainer of 7 goes, then the ABORT of 1 is answered */
            struct zt_event ev = bench_event(ZT_EV_CHILD_EXITED, w);
            ev.at = (struct zt_on_child){B.run[r].run_id, g, w};
            B.w[w].phase = ZT_TP_NONE;
            cr_assert_eq(bench_step(&ev), 0);
            if (g == 1) break;
        }
    }
    bench_wait(2);
    cr_assert_eq(B.run[r].generation, 8, "max + 1, never one that was used");
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING);
}
Test(recover, a_second_start_while_recovering) {
    int r = running(2);
    bench_reopen();
    bench_register(0);
    bench_reopen();
    cr_assert_eq(bench_state(r), ZT_RUN_RECOVERING);
    bench_register(0);
    bench_register(1);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.run[r].generation, 1);
}
Test(recover, nothing_is_heard_before_the_database_is_read) {
    zt_machine_free(B.m);
    B.m = zt_machine_new(NULL);
    cr_assert_eq(bench_submit("job", bench_config(1)), ZT_EBUSY);
    bench_tick(200);
}
