/* SPDX-License-Identifier: Apache-2.0 */
/* A real zworker against a coordinator that the test plays, with a puppet as trainer: what is told, in
 * which order, what survives a coordinator, and that no process is left behind. */
#include "tests/worker/fake.h"

#define START ZT__DESIRED__ACTION__START
#define ABORT ZT__DESIRED__ACTION__ABORT
#define IDLE ZT__DESIRED__ACTION__IDLE

static void start(struct fake *f, uint32_t generation)
{
    UNTIL(f, f->peer != NULL && f->beats > 0);
    fake_want(f, START, generation);
}

Test(supervisor, a_whole_run)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, NULL, "--host", "box", "--memory-gib", "1.5", "--threads", "3", "--address",
                          "127.0.0.2", NULL);
    fake_script(&f, "state 2\nput\nstate 3\nget\nlog 3\nsteps 1 50\nerr to stderr\nevent hello\ndone 50\n");
    start(&f, 7);
    UNTIL(&f, f.exits == 1 && f.log_n > 0 && f.events == 1);
    cr_assert_str_eq(f.worker_id, "box/cpu-0");
    cr_assert_eq(f.capacity, 3u << 29);
    cr_assert_eq(f.threads, 3u);
    cr_assert_eq(f.ready, 1);
    cr_assert_eq(f.in_comm, 1);
    cr_assert_eq(f.puts, 1);
    cr_assert_eq(f.gets, 1);
    cr_assert_eq(f.step_rows, 50);
    cr_assert_not(f.out_of_order);
    cr_assert_eq(f.with_detail, 50);
    cr_assert_eq(f.step_generation, 7u);
    cr_assert_eq(f.done, 1);
    cr_assert_eq(f.done_at_rows, 50, "RankDone before the reports");
    cr_assert_eq(f.failures, 0);
    cr_assert_eq(f.exits_after_verdict, 1);
    cr_assert_eq(f.exit_code, 0);
    cr_assert_eq(f.exit_generation, 7u);
    cr_assert_str_eq(f.event_text, "PUPPET hello");
    UNTIL(&f, f.log_n >= 3 * 44 + 10 && f.log_ends > 0);
    cr_assert_not(f.log_gap);
    cr_assert_eq(f.log_end_at, f.log_n, "the end is behind the last line");
    cr_assert_not_null(strstr(f.log, "line 2 of the puppet"));
    cr_assert_not_null(strstr(f.log, "to stderr\n"));
    cr_assert_eq(f.log_err_bytes, strlen("to stderr\n"));
    /* the same START again, by every beat: nothing is started a second time */
    int beats = f.beats;
    UNTIL(&f, f.beats >= beats + 5);
    cr_assert_neq(puppet_pid(&f, 0), 0);
    cr_assert_eq(puppet_pid(&f, 1), 0);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(supervisor, coordinator_restart_with_unsent_reports)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nstate 3\nsteps 1 100\ntouch %s/sent\nwait %s/go\nsteps 101 250\ndone 250\n", f.dir, f.dir);
    f.hold_steps = true;
    start(&f, 2);
    UNTIL(&f, f.ready == 1 && file_exists(in_dir(&f, "sent")));
    fake_stop(&f); /* a batch is on its way, unanswered */
    cr_assert_eq(f.step_rows, 0);
    close(open(in_dir(&f, "go"), O_WRONLY | O_CREAT, 0600));
    int registers = f.registers;
    f.hold_steps = false;
    f.action = ZT__DESIRED__ACTION__RUN;
    fake_listen(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.registers, registers + 1);
    cr_assert(f.register_named, "a worker with a child must say so");
    cr_assert_geq(f.register_phase, ZT__TRAINER_PHASE__TP_RUNNING);
    for (int i = 1; i <= 250; i++) {
        cr_assert_eq(f.acked[i], 1, "step %d acknowledged %d times", i, f.acked[i]);
    }
    cr_assert_not(f.out_of_order);
    cr_assert_eq(f.thinned, 0);
    cr_assert_eq(f.done_at_rows, 250);
    cr_assert_eq(puppet_pid(&f, 1), 0, "the child was started again");
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(supervisor, coordinator_restart_every_few_batches)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nstate 3\nsteps 1 3000\nlog 500\ndone 3000\n");
    start(&f, 2);
    for (int round = 1; round <= 5; round++) {
        UNTIL(&f, f.step_rows >= 500 * round);
        fake_stop(&f); /* without a word, in the middle */
        f.action = ZT__DESIRED__ACTION__RUN;
        fake_listen(&f);
    }
    UNTIL(&f, f.exits == 1 && f.log_n >= 22890);
    /* a batch may have been recorded here and its acknowledgement lost: then it comes once more, whole and
     * in order; what never may happen is a hole */
    for (int i = 1; i <= 3000; i++) {
        cr_assert_geq(f.acked[i], 1, "step %d lost", i);
        cr_assert_leq(f.acked[i], 6);
    }
    cr_assert_not(f.log_gap);
    cr_assert_not_null(strstr(f.log, "line 499 of"));
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(supervisor, more_reports_than_the_ring_holds)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nstate 3\nsteps 1 9000\ntouch %s/sent\ndone 9000\n", f.dir);
    f.hold_steps = true;
    start(&f, 2);
    UNTIL(&f, f.ready == 1);
    fake_stop(&f);
    UNTIL(&f, file_exists(in_dir(&f, "sent"))); /* training did not wait for us */
    f.hold_steps = false;
    f.action = ZT__DESIRED__ACTION__RUN;
    fake_listen(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.step_rows, 9000);
    cr_assert_not(f.out_of_order);
    for (int i = 1; i <= 9000; i++) {
        cr_assert_eq(f.acked[i], 1);
    }
    cr_assert_gt(f.thinned, 5000);
    cr_assert_geq(f.with_detail, 3600, "the newest keep their detail");
    cr_assert_eq(f.thinned + f.with_detail, 9000);
    fake_quit_worker(&f, w);
    /* nothing is left in the state folder */
    DIR *d = opendir(in_dir(&f, "ztrain/worker"));
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        cr_assert_eq(strncmp(e->d_name, "spill", 5) == 0, 0, "%s left", e->d_name);
    }
    closedir(d);
    fake_end(&f);
}

Test(supervisor, traces_come_whole_and_before_the_end)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nstate 3\nsteps 1 10\ndtypes autocast\ntraces 1 100 50\ndone 10\n");
    f.refuse_traces_busy = f.refuse_dtypes_busy = 2;
    start(&f, 2);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.traces_refused, 2);
    cr_assert_eq(f.trace_rows, 100);
    cr_assert_eq(f.done_at_traces, 100, "RankDone before the traces");
    cr_assert(f.dtypes == 1 && f.done_at_dtypes == 1);
    cr_assert_str_eq(f.recipe, "autocast");
    for (int i = 1; i <= 100; i++) {
        cr_assert_eq(f.traced[i], 1);
    }
    /* a coordinator that does not want them, or does not know them, does not hold up the end */
    f.refuse_traces = true;
    f.exits = f.done = f.trace_rows = 0;
    fake_want(&f, START, 3);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.done, 1);
    cr_assert_eq(f.trace_rows, 0);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* Over 8 MiB the oldest go, and that is said. */
Test(supervisor, more_traces_than_memory_has_room_for)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nstate 3\ntraces 1 600 1000\ntouch %s/sent\nwait %s/go\ndone 1\n", f.dir, f.dir);
    f.refuse_traces_busy = 1000000;
    start(&f, 2);
    UNTIL(&f, f.traces_refused > 0 && file_exists(in_dir(&f, "sent")));
    int refused = f.traces_refused;
    UNTIL(&f, f.traces_refused > refused + 1); /* the supervisor has read what was written */
    f.refuse_traces_busy = 0;
    UNTIL(&f, f.traced[600] == 1 && f.events > 0);
    cr_assert_lt(f.trace_rows, 600);
    cr_assert_gt(f.trace_rows, 200);
    cr_assert_eq(f.traced[1], 1, "it was on its way already");
    cr_assert_eq(strncmp(f.event_text, "TRACE_DROPPED the collectives of captured steps up to ", 54), 0, "%s", f.event_text);
    int last = 0, pieces = 0;
    cr_assert_eq(sscanf(f.event_text + 54, "%d were dropped, %d pieces", &last, &pieces), 2, "%s", f.event_text);
    cr_assert_eq(pieces, 600 - f.trace_rows);
    cr_assert_eq(f.traced[last], 0);
    cr_assert_eq(f.traced[last + 1], 1);
    close(open(in_dir(&f, "go"), O_WRONLY | O_CREAT, 0600));
    UNTIL(&f, f.exits == 1);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(supervisor, refusals_that_pass_and_those_that_do_not)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nsteps 1 40\ndone 40\n");
    f.refuse_steps_busy = 2;
    f.refuse_once_exit = 1;
    start(&f, 2);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.step_rows, 40);
    cr_assert_not(f.out_of_order);
    cr_assert_eq(f.done, 1);
    f.stale_steps = true; /* of an old generation: dropped, the rest is told */
    fake_script(&f, "state 2\nsteps 1 40\nexit 1\n");
    fake_want(&f, START, 3);
    UNTIL(&f, f.exits == 2);
    cr_assert_eq(f.step_rows, 40);
    cr_assert_eq(f.failures, 1);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* --------------------------------------------------------------------------------- how it ended */

static void ends_as(const char *script, enum zt_reason reason, int exit_code, int sig, const char *words)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nerr last words\n%s\n", script);
    start(&f, 4);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.failures, 1);
    cr_assert_eq(f.reason, (uint32_t)reason, "%s: %s", script, zt_reason_name((enum zt_reason)f.reason));
    cr_assert_eq(f.fail_exit_code, exit_code);
    cr_assert_eq(f.fail_signal, sig);
    cr_assert_eq(f.fail_generation, 4u);
    cr_assert_not_null(strstr(f.fail_message, words), "%s", f.fail_message);
    cr_assert_not_null(strstr(f.last_log, "last words"), "%s", f.last_log);
    cr_assert_eq(f.exits_after_verdict, 1);
    cr_assert_eq(f.done, 0);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(ends, exit_78_is_config) { ends_as("exit 78", ZT_REASON_CONFIG_ERROR, 78, 0, "configuration"); }
Test(ends, exit_1) { ends_as("exit 1", ZT_REASON_EXIT_NONZERO, 1, 0, "code 1"); }
Test(ends, exit_93) { ends_as("exit 93", ZT_REASON_CONFIG_ERROR, 93, 0, "93"); }
Test(ends, exit_0_without_done) { ends_as("exit 0", ZT_REASON_EXIT_NONZERO, 0, 0, "without saying"); }
Test(ends, segv) { ends_as("signal 11", ZT_REASON_SIGNAL, -1, SIGSEGV, "SIGSEGV"); }
Test(ends, abrt) { ends_as("signal 6", ZT_REASON_SIGNAL, -1, SIGABRT, "SIGABRT"); }
Test(ends, fpe) { ends_as("signal 8", ZT_REASON_SIGNAL, -1, SIGFPE, "SIGFPE"); }
Test(ends, killed_from_outside) { ends_as("signal 9", ZT_REASON_KILLED, -1, SIGKILL, "SIGKILL"); }

Test(ends, the_trainers_own_word_counts)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nsteps 1 3\nfail 3 loss is nan\nexit 93\n");
    start(&f, 4);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.failures, 1);
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_NAN_LOSS);
    cr_assert_str_eq(f.fail_message, "loss is nan");
    cr_assert_eq(f.step_rows, 3);
    cr_assert_eq(f.exit_code, 93);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(ends, garbage_on_the_channel)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\ngarbage\n");
    start(&f, 4);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_EXIT_NONZERO);
    cr_assert_not_null(strstr(f.fail_message, "channel is broken"), "%s", f.fail_message);
    cr_assert(process_gone(puppet_pid(&f, 0)));
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* ---------------------------------------------------------------------------------------- abort */

/* ABORT while the trainer is in each phase. */
static void abort_in(const char *script, const char *ready_file, bool hold_ids)
{
    struct fake f;
    fake_init(&f);
    f.hold_ids = hold_ids;
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "%s", "");
    size_t n = strlen(f.script);
    snprintf(f.script + n, sizeof(f.script) - n, script, f.dir);
    start(&f, 5);
    UNTIL(&f, puppet_pid(&f, 0) != 0 && (!ready_file || file_exists(in_dir(&f, ready_file))));
    if (hold_ids) {
        UNTIL(&f, f.gets == 1);
    }
    pid_t child = puppet_pid(&f, 0);
    fake_want(&f, ABORT, 5);
    UNTIL(&f, f.exits == 1);
    cr_assert(process_gone(child));
    cr_assert_eq(f.failures, 0, "an abort is no failure: %s", f.fail_message);
    cr_assert_eq(f.done, 0);
    cr_assert_eq(f.exit_signal, SIGKILL);
    cr_assert_eq(f.exit_generation, 5u);
    /* aborted is aborted: this generation is not started again, a newer one is */
    fake_want(&f, START, 5);
    int beats = f.beats;
    UNTIL(&f, f.beats >= beats + 4);
    cr_assert_eq(puppet_pid(&f, 1), 0);
    f.hold_ids = false;
    fake_script(&f, "state 2\ndone 0\n");
    fake_want(&f, START, 6);
    UNTIL(&f, f.done == 1 && f.exits == 2);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(abort, starting) { abort_in("touch %s/here\nhang\n", "here", false); }
Test(abort, ready) { abort_in("state 2\ntouch %s/here\nhang\n", "here", false); }
Test(abort, waiting_for_the_communicator) { abort_in("state 2\nget\ntouch %s/here\nhang\n", NULL, true); }
Test(abort, in_comm) { abort_in("state 2\nstate 3\ntouch %s/here\nhang\n", "here", false); }
Test(abort, running) { abort_in("state 2\nstate 3\nsteps 1 10\ntouch %s/here\nhang\n", "here", false); }
Test(abort, flooding) { abort_in("state 2\nstate 3\ntouch %s/here\nsteps 1 20000\nlog 100000\nhang\n", "here", false); }

Test(abort, of_a_child_that_is_not_here)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    UNTIL(&f, f.beats > 0);
    fake_want(&f, ABORT, 9);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_generation, 9u);
    cr_assert_eq(f.failures, 0);
    fake_script(&f, "state 2\nhang\n");
    fake_want(&f, START, 9); /* late: it was aborted */
    int beats = f.beats;
    UNTIL(&f, f.beats >= beats + 4);
    cr_assert_eq(puppet_pid(&f, 0), 0);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(abort, a_new_generation_replaces_the_old_child)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nhang\n");
    start(&f, 1);
    UNTIL(&f, f.ready == 1);
    pid_t old = puppet_pid(&f, 0);
    fake_script(&f, "state 2\ndone 0\n");
    fake_want(&f, START, 2);
    UNTIL(&f, f.done == 1 && f.exits == 2);
    cr_assert(process_gone(old));
    cr_assert_neq(puppet_pid(&f, 1), 0);
    cr_assert_eq(f.failures, 0);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* ---------------------------------------------------------------------------------- no orphans */

Test(orphans, killed_supervisor_takes_its_trainer_along)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nhang\n");
    start(&f, 1);
    UNTIL(&f, f.ready == 1);
    pid_t child = puppet_pid(&f, 0);
    cr_assert_eq(kill(child, 0), 0);
    kill(w, SIGKILL);
    cr_assert_eq(fake_wait(&f, w), -1000 - SIGKILL);
    UNTIL(&f, process_gone(child));
    fake_end(&f);
}

/* The supervisor dies at many points around the spawn: whatever was started is gone. */
Test(orphans, killed_while_spawning)
{
    struct fake f;
    fake_init(&f);
    fake_script(&f, "state 2\nhang\n");
    for (int round = 0; round < 25; round++) {
        f.peer = NULL;
        f.beats = 0;
        f.action = IDLE;
        pid_t w = fake_worker(&f, "a", NULL);
        UNTIL(&f, f.peer != NULL && f.beats > 0);
        fake_want(&f, START, (uint32_t)round + 1);
        for (int i = 0; i < round; i++) {
            uv_run(&f.loop, UV_RUN_NOWAIT);
            const struct timespec t = {.tv_nsec = 100000};
            nanosleep(&t, NULL);
        }
        kill(w, SIGKILL);
        cr_assert_eq(fake_wait(&f, w), -1000 - SIGKILL);
    }
    /* our own children and, as we are their reaper, all that they left: none may live */
    for (int i = 0; i < WAIT_TURNS && waitpid(-1, NULL, WNOHANG) >= 0; i++) {
        fake_turn(&f);
    }
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
    cr_assert_eq(errno, ECHILD, "a trainer outlived its supervisor");
    fake_end(&f);
}

/* ---------------------------------------------------------------------------------------- drain */

Test(drain, sigterm_stops_the_child_tells_it_and_exits_0)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nsteps 1 5\nhang\n");
    start(&f, 1);
    UNTIL(&f, f.step_rows == 5);
    pid_t child = puppet_pid(&f, 0);
    f.action = IDLE;
    kill(w, SIGTERM);
    cr_assert_eq(fake_wait(&f, w), 0);
    cr_assert(process_gone(child));
    cr_assert_eq(f.failures, 1);
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_DRAINED);
    cr_assert_eq(f.exits, 1);
    cr_assert_geq(f.draining_beats, 1);
    fake_end(&f);
}

Test(drain, without_a_coordinator)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    UNTIL(&f, f.beats > 0);
    fake_stop(&f);
    kill(w, SIGTERM);
    cr_assert_eq(fake_wait(&f, w), 0);
    fake_end(&f);
}

Test(drain, exit_and_superseded)
{
    struct fake f;
    fake_init(&f);
    pid_t w = fake_worker(&f, "a", NULL);
    UNTIL(&f, f.beats > 0);
    fake_want(&f, ZT__DESIRED__ACTION__EXIT, 0);
    cr_assert_eq(fake_wait(&f, w), 0);
    f.superseded = true;
    w = fake_worker(&f, "a", NULL);
    cr_assert_eq(fake_wait(&f, w), 5);
    fake_end(&f);
}

/* ------------------------------------------------------------------------------- logs, identity */

Test(logs, a_flood_is_bounded_and_does_not_hold_the_trainer)
{
    struct fake f;
    fake_init(&f);
    f.hold_logs = true;
    pid_t w = fake_worker(&f, "a", NULL);
    fake_script(&f, "state 2\nlog 100000\npart the end\ndone 0\n"); /* 4.6 MB, nobody takes it */
    start(&f, 1);
    UNTIL(&f, f.exits == 1); /* RankDone and ChildExited do not wait for the log */
    fake_stop(&f);
    f.hold_logs = false;
    f.action = IDLE;
    fake_listen(&f);
    UNTIL(&f, f.log_n > 4000000 && strstr(f.log + f.log_n - 40, "the end"));
    cr_assert(f.log_gap, "more was kept than the bound allows");
    cr_assert_not_null(strstr(f.log, "line 99999 of"));
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(identity, names_are_lowest_free_and_exclusive)
{
    struct fake f;
    fake_init(&f);
    pid_t a = fake_worker(&f, NULL, "--host", "box", NULL);
    UNTIL(&f, f.registers >= 1);
    cr_assert_str_eq(f.worker_id, "box/cpu-0");
    uint64_t alone = f.capacity;
    pid_t b = fake_worker(&f, NULL, "--host", "box", NULL);
    UNTIL(&f, f.second_id[0] != 0);
    cr_assert_str_eq(f.second_id, "box/cpu-1");
    cr_assert_leq(f.capacity, alone / 2 + alone / 8, "two workers share the memory");
    pid_t c = fake_worker(&f, "cpu-1", "--host", "box", NULL);
    cr_assert_eq(fake_wait(&f, c), 5, "a name that is taken");
    kill(a, SIGKILL);
    fake_wait(&f, a);
    f.worker_id[0] = f.second_id[0] = '\0';
    snprintf(f.worker_id, sizeof(f.worker_id), "box/cpu-1"); /* b may register again */
    pid_t d = fake_worker(&f, NULL, "--host", "box", NULL);
    UNTIL(&f, strcmp(f.second_id, "box/cpu-0") == 0);
    pid_t e = fake_worker(&f, "cpu-1", "--host", "other", NULL); /* another host: its own names */
    f.second_id[0] = '\0';
    UNTIL(&f, strcmp(f.second_id, "other/cpu-1") == 0);
    fake_quit_worker(&f, b);
    fake_quit_worker(&f, d);
    fake_quit_worker(&f, e);
    fake_end(&f);
}

Test(identity, bad_options_and_tokens)
{
    static const char *const bad[][2] = {{"--threads", "0"}, {"--threads", "x"}, {"--memory-gib", "-1"},
                                         {"--memory-gib", "nan"}, {"--device", "tpu"}, {"--name", "a/b"},
                                         {"--host", "..."}, {"--nonsense", "1"}, {"--coord", "a:b"},
                                         {"--address", "10.0.0.1"}, {"--address", "example.org"}, {"--address", "127.1"},
                                         {"--address", "::2"}};
    struct fake f;
    fake_init(&f);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(fake_wait(&f, fake_worker(&f, NULL, bad[i][0], bad[i][1], NULL)), 2, "%s %s", bad[i][0], bad[i][1]);
    }
    cr_assert_eq(fake_wait(&f, fake_worker(&f, NULL, "-h", NULL)), 0);
    cr_assert_eq(fake_wait(&f, fake_worker(&f, NULL, "--token-file", in_dir(&f, "none"), NULL)), 4);
    int fd = open(in_dir(&f, "other"), O_WRONLY | O_CREAT, 0600);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(write(fd, "deadbeef", 8), 8);
    }
    close(fd);
    cr_assert_eq(fake_wait(&f, fake_worker(&f, NULL, "--token-file", in_dir(&f, "other"), NULL)), 4);
    cr_assert_eq(f.registers, 0);
    fake_end(&f);
}
