/* SPDX-License-Identifier: Apache-2.0 */
/* The store: group commit, durability of what is acknowledged, the replace rules of step rows, roll-ups as exact
 * sums over ranks, trimming, windows, logs, events, the epoch, the lock, and recovery of what the machine needs. */
#include <sys/wait.h>
#include "tests/coordinator/store_util.h"

Test(store, group_commit_merges_and_keeps_order) {
    struct bench b;
    struct zt_error err;
    bench_folder(&b);
    bench_open(&b, &(struct zt_store_config){ .commit_ms = 50 });
    add_run(&b, RUN1, "a", 1, 1, 1000, 0);
    uint64_t commits = zt_store_commits(b.store);
    int before = b.done;
    for (int i = 0; i < 200; i++) { /* all handed over before the loop runs */
        struct zt_batch *batch = zt_batch_new();
        struct zt_row_event e = { .rank = i };
        snprintf(e.kind, sizeof e.kind, "T");
        zt_batch_event(batch, &e, -1);
        cr_assert_eq(zt_store_submit(b.store, batch, ZT_HURRY_NO, i % 2 == 0, bench_done, &b, &err), 0);
    }
    bench_wait(&b, before + 200);
    cr_expect_eq(b.failed, 0);
    uint64_t used = zt_store_commits(b.store) - commits;
    cr_expect(used >= 1 && used <= 20, "200 batches took %lu transactions", (unsigned long)used);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'T'"), 200);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events a JOIN events b ON b.id = a.id + 1 WHERE a.kind = 'T' AND b.kind = 'T'"
                               " AND b.rank <> a.rank + 1"), 0, "order of submission is order in the table");
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, acknowledged_rows_survive_a_kill) {
    struct bench b;
    bench_folder(&b);
    int p[2];
    cr_assert_eq(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) { /* acknowledges through the pipe what the store said was durable, then is killed */
        bench_open(&b, NULL);
        add_run(&b, RUN1, "a", 1, 1, 1000, 0);
        for (int64_t step = 1; step <= 100000; step++) {
            if (commit_step(&b, RUN1, 0, step, 1) || write(p[1], &step, sizeof step) != sizeof step)
                _exit(1);
        }
        _exit(0);
    }
    close(p[1]);
    int64_t acked = 0, v;
    while (acked < 40 && read(p[0], &v, sizeof v) == sizeof v)
        acked = v;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    while (read(p[0], &v, sizeof v) == sizeof v)
        acked = v;
    bench_open(&b, NULL);
    cr_expect_eq(zt_store_epoch(b.store), 2);
    sqlite3 *db = open_reader(&b);
    integrity(db);
    int64_t rows = number_of(db, "SELECT count(*) FROM step_rank");
    cr_expect(rows >= acked && rows <= acked + 1, "%ld acknowledged, %ld there", (long)acked, (long)rows);
    cr_expect_eq(number_of(db, "SELECT max(step) FROM step_rank"), rows);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, rollup_is_the_exact_sum_over_ranks) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 4, 1000, 0);
    sqlite3 *db = open_reader(&b);
    static const uint32_t order[] = { 2, 0, 3, 1 };
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup"), 0, "after %d of 4 ranks", i);
        cr_assert_eq(commit_step(&b, RUN1, order[i], 7, 1), 0);
    }
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup"), 1);
    /* tokens of rank r: 1000 + 10 r + 7; step_seconds 0.5 + r/4; exposed (r + 1)/8; peak 1000000 + 512 r */
    cr_expect_eq(number_of(db, "SELECT tokens FROM step_rollup"), 4 * 1007 + 10 * (0 + 1 + 2 + 3));
    cr_expect_eq(number_of(db, "SELECT (SELECT sum(tokens) FROM step_rank) = (SELECT tokens FROM step_rollup)"), 1);
    cr_expect_eq(real_of(db, "SELECT step_seconds FROM step_rollup"), 1.25);
    cr_expect_eq(real_of(db, "SELECT mean_step_seconds FROM step_rollup"), 0.875);
    cr_expect_eq(real_of(db, "SELECT exposed_comm_seconds FROM step_rollup"), 0.5);
    cr_expect_eq(real_of(db, "SELECT mean_exposed_comm_seconds FROM step_rollup"), 0.3125);
    cr_expect_eq(real_of(db, "SELECT loss FROM step_rollup"), 4.0 - 7.0 / 64);
    cr_expect_eq(real_of(db, "SELECT tokens_per_second FROM step_rollup"), (4 * 1007 + 60) / 1.25);
    cr_expect_eq(number_of(db, "SELECT peak_allocated_bytes FROM step_rollup"), 1000000 + 3 * 512);
    cr_expect_eq(number_of(db, "SELECT peak_rank FROM step_rollup"), 3);
    cr_expect_eq(number_of(db, "SELECT ranks FROM step_rollup"), 4);
    cr_expect_eq(number_of(db, "SELECT step FROM run_progress"), 7);
    cr_expect_eq(real_of(db, "SELECT loss_scale FROM step_rollup"), 1024, "the same on all ranks");
    cr_expect_eq(number_of(db, "SELECT skipped FROM step_rollup"), 0);
    cr_expect_eq(number_of(db, "SELECT skipped_steps FROM step_rollup"), 1, "not a sum over ranks");
    cr_expect_eq(real_of(db, "SELECT clip_coefficient FROM step_rollup"), 0.75);
    cr_expect_eq(real_of(db, "SELECT loss_scale FROM run_progress"), 1024);
    cr_expect_eq(number_of(db, "SELECT skipped_steps FROM run_progress"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank WHERE loss_scale = 1024 AND skipped = 0"), 4);
    cr_expect_eq(real_of(db, "SELECT exposed_share FROM run_progress"), 0.3125 / 0.875);
    sqlite3_close(db);
    bench_end(&b);
}

/* Ranks 0 and 1, and 2 and 3, saw the same tokens. */
Test(store, tokens_of_a_tensor_group_count_once) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run_of(&b, RUN1, "a", 1, (struct zt_mesh){ 1, 2, 2 }, 1000, 0);
    sqlite3 *db = open_reader(&b);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(commit_step(&b, RUN1, r, 7, 1), 0);
    cr_expect_eq(number_of(db, "SELECT tokens FROM step_rollup"), 2 * 1007 + 10 * (0 + 2));
    cr_expect_eq(real_of(db, "SELECT tokens_per_second FROM step_rollup"), (2 * 1007 + 20) / 1.25);
    cr_expect_eq(real_of(db, "SELECT step_seconds FROM step_rollup"), 1.25, "the slowest of all four");
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, older_generations_never_replace) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 2, 1000, 0);
    sqlite3 *db = open_reader(&b);
    commit_step(&b, RUN1, 0, 5, 1);
    commit_step(&b, RUN1, 1, 5, 1);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rollup WHERE step = 5"), 1);
    struct zt_batch *batch = zt_batch_new();
    add_generation(batch, RUN1, 2, 2);
    cr_assert_eq(bench_commit(&b, batch), 0);
    /* one rank of the new generation: its row is new, the roll-up stays whole */
    commit_step(&b, RUN1, 0, 5, 2);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rank WHERE rank = 0 AND step = 5"), 2);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rollup WHERE step = 5"), 1);
    commit_step(&b, RUN1, 0, 5, 1); /* a zombie */
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rank WHERE rank = 0 AND step = 5"), 2);
    commit_step(&b, RUN1, 1, 5, 2);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rollup WHERE step = 5"), 2);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank WHERE step = 5"), 2);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup"), 1);
    commit_step(&b, RUN1, 1, 5, 1);
    cr_expect_eq(number_of(db, "SELECT generation FROM step_rollup WHERE step = 5"), 2);
    /* a repeat of the same generation changes nothing */
    commit_step(&b, RUN1, 1, 5, 2);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank"), 2);
    cr_expect_eq(number_of(db, "SELECT tokens FROM step_rollup"), 2 * 1005 + 10);
    sqlite3_close(db);
    bench_end(&b);
}

static void commit_range(struct bench *b, uint32_t rank, int64_t from, int64_t to)
{
    while (from <= to) {
        struct a_report *a = calloc(256, sizeof *a);
        Zt__StepReport *list[256];
        size_t n = 0;
        for (; n < 256 && from <= to; n++, from++)
            list[n] = report(&a[n], rank, from, 1);
        struct zt_batch *batch = zt_batch_new();
        zt_batch_steps(batch, RUN1, list, n);
        cr_assert_eq(bench_commit(b, batch), 0);
        free(a);
    }
}

Test(store, rank_rows_are_trimmed_only_once_rolled_up) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 2, 50, 0); /* keeps 50 steps */
    sqlite3 *db = open_reader(&b);
    commit_range(&b, 0, 1, 1000); /* as after an absence of the coordinator: one rank's reports, all at once */
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank"), 1000, "rows without a roll-up must stay");
    commit_range(&b, 1, 1, 1000);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup"), 1000);
    cr_expect_eq(number_of(db, "SELECT count(DISTINCT step) FROM step_rank WHERE step > 950"), 50);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank WHERE step <= 950 AND step % 100 <> 0"), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank WHERE step % 100 = 0"), 20, "every hundredth step is kept");
    /* a repeat of a trimmed row does not come back */
    commit_step(&b, RUN1, 1, 10, 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank WHERE step = 10"), 0);
    cr_expect_eq(number_of(db, "SELECT sum(tokens) FROM step_rollup"), 1000 * 2010 + 2 * 1000 * 1001 / 2);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, windows_of_the_newest_generation) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 1, 1000, 2); /* two warm-up steps */
    sqlite3 *db = open_reader(&b);
    struct a_report a;
    Zt__WindowPeak init = ZT__WINDOW_PEAK__INIT, eval = ZT__WINDOW_PEAK__INIT;
    Zt__TagBytes t = ZT__TAG_BYTES__INIT;
    init.peak_allocated_bytes = 77;
    init.peak_reserved_bytes = 88;
    init.phase_of_peak = (char *)"init";
    init.at_peak = &t;
    eval = init;
    for (int64_t step = 1; step <= 8; step++) {
        Zt__StepReport *r[1] = { report(&a, 0, step, 1) };
        if (step == 1)
            r[0]->init_peak = &init;
        if (step == 4 || step == 8) {
            eval.peak_allocated_bytes = step == 4 ? 500 : 400;
            r[0]->eval_peak = &eval;
        }
        struct zt_batch *batch = zt_batch_new();
        zt_batch_steps(batch, RUN1, r, 1);
        cr_assert_eq(bench_commit(&b, batch), 0);
    }
    cr_expect_eq(number_of(db, "SELECT peak_allocated_bytes FROM window_peak WHERE window = 'init'"), 77);
    cr_expect_eq(number_of(db, "SELECT peak_allocated_bytes FROM window_peak WHERE window = 'first_step'"), 1000000);
    /* step 3 is the first after the warm-up and has the highest peak; the reserved maximum is step 5's */
    cr_expect_eq(number_of(db, "SELECT peak_allocated_bytes FROM window_peak WHERE window = 'steady'"), 1004096);
    cr_expect_eq(number_of(db, "SELECT step FROM window_peak WHERE window = 'steady'"), 3);
    cr_expect_eq(number_of(db, "SELECT peak_reserved_bytes FROM window_peak WHERE window = 'steady'"), 2000512);
    cr_expect_eq(number_of(db, "SELECT peak_allocated_bytes FROM window_peak WHERE window = 'eval'"), 500);
    /* a new generation lists only what occurred in it */
    struct zt_batch *batch = zt_batch_new();
    add_generation(batch, RUN1, 2, 1);
    bench_commit(&b, batch);
    commit_step(&b, RUN1, 0, 1, 2);
    Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
    Zt__GetMemory get = ZT__GET_MEMORY__INIT;
    struct zt_error err;
    get.run = (char *)RUN1;
    req.body_case = ZT__ENVELOPE__BODY_GET_MEMORY;
    req.get_memory = &get;
    cr_assert_eq(zt_query(db, &req, &reply, &err), 0, "%s", err.msg);
    cr_assert_eq(reply->memory->n_rows, 1);
    cr_expect_str_eq(reply->memory->rows[0]->window, "first_step");
    cr_expect_eq(reply->memory->generation, 2);
    cr_expect_eq(reply->memory->rows[0]->measured->at_peak->parameters, 400);
    zt_query_free(reply);
    sqlite3_close(db);
    bench_end(&b);
}

static int commit_log(struct bench *b, uint32_t generation, uint32_t rank, uint64_t offset, const char *data)
{
    struct zt_batch *batch = zt_batch_new();
    zt_batch_log(batch, RUN1, generation, rank, offset, false, false, data, strlen(data), 5);
    return bench_commit(b, batch);
}

Test(store, logs_are_stored_once_and_gaps_are_marked) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, &(struct zt_store_config){ .log_quota = 200 });
    add_run(&b, RUN1, "a", 1, 2, 1000, 0);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(commit_log(&b, 1, 0, 0, "hello "), 0);
    cr_expect_eq(b.log_next, 6);
    cr_expect_eq(commit_log(&b, 1, 0, 0, "hello "), 0); /* a repeat */
    cr_expect_eq(b.log_next, 6);
    cr_expect_eq(commit_log(&b, 1, 0, 3, "lo world"), 0); /* overlaps */
    cr_expect_eq(b.log_next, 11);
    cr_expect_eq(number_of(db, "SELECT group_concat(CAST(data AS TEXT), '') = 'hello world' FROM logs WHERE rank = 0"), 1);
    cr_expect_eq(commit_log(&b, 1, 1, 100, "late"), 0); /* 100 bytes never came */
    cr_expect_eq(b.log_next, 104);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM logs WHERE rank = 1 AND CAST(data AS TEXT) LIKE '[100 bytes%'"), 1);
    cr_expect_eq(commit_log(&b, 9, 0, 0, "x"), ZT_ENOTFOUND, "a generation that does not exist");
    /* quota: the oldest goes, once with an event, and the offset still moves */
    for (uint64_t i = 0; i < 20; i++)
        cr_expect_eq(commit_log(&b, 1, 0, 11 + i * 20, "01234567890123456789"), 0);
    cr_expect_eq(b.log_next, 411);
    cr_expect(number_of(db, "SELECT sum(length(data)) FROM logs") <= 200);
    cr_expect_eq(number_of(db, "SELECT sum(length(data)) = (SELECT stored FROM log_usage) FROM logs"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'LOG_QUOTA'"), 1);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, the_end_of_a_log_is_known) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 2, 1000, 0);
    sqlite3 *db = open_reader(&b);
    static const struct { uint64_t offset; const char *data; bool end; int64_t ended; } said[] = {
        { 0, "hello\n", false, 0 }, { 0, "hello\n", true, 1 } /* a repeat that says more */, { 6, "", true, 1 },
    };
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        struct zt_batch *batch = zt_batch_new();
        zt_batch_log(batch, RUN1, 1, 0, said[i].offset, false, said[i].end, said[i].data, strlen(said[i].data), 5);
        cr_assert_eq(bench_commit(&b, batch), 0);
        cr_expect_eq(b.log_next, 6);
        cr_expect_eq(number_of(db, "SELECT ended FROM log_streams WHERE rank = 0"), said[i].ended);
    }
    struct zt_batch *batch = zt_batch_new(); /* a trainer without a word */
    zt_batch_log(batch, RUN1, 1, 1, 0, false, true, "", 0, 5);
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_expect_eq(number_of(db, "SELECT ended = 1 AND next = 0 FROM log_streams WHERE rank = 1"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM logs"), 1);
    sqlite3_close(db);
    bench_end(&b);
}

/* What is old goes, a bounded part at a time, and nothing else does. */
Test(store, old_events_workers_and_traces_are_pruned) {
    struct bench b;
    sqlite3 *db;
    struct zt_error err;
    char path[128];
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "lives", 1, 1, 1000, 0);
    add_run(&b, RUN2, "ended", 2, 1, 1000, 0);
    bench_close(&b);
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    static const char *const sql[] = {
        /* 17,000 events: all but the newest 100 are 31 days old; the oldest one is young by its clock */
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 17000) INSERT INTO events"
        " SELECT i, (unixepoch() - iif(i > 16900 OR i = 1, 0, 31 * 86400)) * 1000, '', '', 'T', '', '', 0, 0, -1, 1, '', '', NULL FROM n",
        /* workers: state, age in hours, flags, run */
        "WITH w(id, state, hours, flags, run) AS (VALUES ('gone-old', 11, 25, 0, ''), ('gone-new', 11, 23, 0, ''),"
        " ('lost-old', 9, 169, 0, ''), ('lost-new', 9, 167, 0, ''), ('lost-cordoned', 9, 169, 1, ''), ('lost-leased', 9, 169, 0, 'r'),"
        " ('idle-old', 1, 10000, 0, '')) INSERT INTO workers SELECT id, 'h', 'cpu', '', '', '', '', x'00', state, flags, 0, 0, 0,"
        " run, 0, 0, 0, (unixepoch() - hours * 3600) * 1000 FROM w",
        "UPDATE runs SET ended_ms = (unixepoch() - 31 * 86400) * 1000 WHERE name = 'ended'",
        "INSERT INTO step_trace VALUES ('" RUN1 "', 1, 0, 0, 1, 1, x'00'), ('" RUN2 "', 1, 0, 0, 1, 1, x'00')",
    };
    for (size_t i = 0; i < sizeof sql / sizeof sql[0]; i++)
        cr_assert_eq(zt_db_exec(db, sql[i], &err), 0, "%s", err.msg);
    bench_open(&b, NULL);
    cr_assert_eq(commit_step(&b, RUN1, 0, 1, 1), 0); /* the first transaction of a start prunes */
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'T'"), 17000 - 5000 + 1);
    bench_close(&b);
    bench_open(&b, NULL);
    cr_assert_eq(commit_step(&b, RUN1, 0, 2, 1), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'T'"), 10000 + 1, "the newest 10,000 stay, however old");
    cr_expect_eq(number_of(db, "SELECT min(id) FROM events"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM workers"), 5);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM workers WHERE worker_id IN ('gone-old', 'lost-old')"), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace WHERE run_id = '" RUN1 "'"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace WHERE run_id = '" RUN2 "'"), 0);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, events_are_append_only_and_stored_once) {
    struct bench b;
    struct zt_error err;
    sqlite3 *db;
    char path[128];
    bench_folder(&b);
    bench_open(&b, NULL);
    for (int i = 0; i < 3; i++) {
        struct zt_batch *batch = zt_batch_new();
        struct zt_row_event e = { .generation = 1, .rank = 0 };
        snprintf(e.kind, sizeof e.kind, "MEMORY_GROWTH");
        snprintf(e.run_id, sizeof e.run_id, RUN1);
        zt_batch_event(batch, &e, i < 2 ? 5 : 6); /* the second is a repeat */
        cr_expect_eq(bench_commit(&b, batch), 0);
    }
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events"), 2);
    cr_expect_neq(zt_db_exec(db, "UPDATE events SET message = 'x'", &err), 0);
    cr_expect(strstr(err.msg, "append-only") != NULL, "%s", err.msg);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, a_bad_batch_fails_alone) {
    struct bench b;
    struct zt_error err;
    bench_folder(&b);
    bench_open(&b, &(struct zt_store_config){ .commit_ms = 50 });
    add_run(&b, RUN1, "a", 1, 1, 1000, 0);
    int before = b.done;
    struct zt_row_event e = { .rank = -1 };
    struct zt_batch *good = zt_batch_new(), *bad = zt_batch_new(), *also = zt_batch_new();
    snprintf(e.kind, sizeof e.kind, "ONE");
    zt_batch_event(good, &e, -1);
    zt_batch_event(bad, &e, -1); /* must go with its batch */
    zt_batch_log(bad, "nosuchrun", 1, 0, 0, false, false, "x", 1, 0);
    zt_batch_event(also, &e, -1);
    cr_assert_eq(zt_store_submit(b.store, good, ZT_HURRY_NO, false, bench_done, &b, &err), 0);
    cr_assert_eq(zt_store_submit(b.store, bad, ZT_HURRY_NO, false, bench_done, &b, &err), 0);
    cr_assert_eq(zt_store_submit(b.store, also, ZT_HURRY_NO, false, bench_done, &b, &err), 0);
    bench_wait(&b, before + 3);
    cr_expect_eq(b.failed, 1);
    cr_expect_eq(b.state, 0, "one bad batch is no fault of the disk");
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'ONE'"), 2);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, second_coordinator_is_refused_by_pid) {
    struct bench b, other;
    struct zt_error err;
    char pid[32];
    bench_folder(&b);
    bench_open(&b, NULL);
    other = b;
    cr_expect_eq(bench_try_open(&other, NULL, &err), ZT_ECONFLICT);
    snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    cr_expect(strstr(err.msg, pid) && strstr(err.msg, b.dir), "%s", err.msg);
    cr_expect_eq(zt_store_epoch(b.store), 1);
    bench_close(&b);
    bench_open(&b, NULL);
    cr_expect_eq(zt_store_epoch(b.store), 2, "each start counts");
    bench_end(&b);
}

Test(store, a_store_that_lost_its_epoch_writes_nothing_more) {
    struct bench b;
    struct zt_error err;
    sqlite3 *db;
    char path[128];
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 1, 1000, 0);
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(zt_db_exec(db, "UPDATE meta SET epoch = 9", &err), 0); /* as if the lock had not held */
    cr_expect_eq(commit_step(&b, RUN1, 0, 1, 1), ZT_ECONFLICT);
    cr_expect_eq(b.state, ZT_ECONFLICT);
    cr_expect_eq(commit_step(&b, RUN1, 0, 1, 1), ZT_ECONFLICT);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank"), 0);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, recovery_returns_what_was_written) {
    struct bench b;
    struct zt_error err;
    struct zt_recovered r;
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "live", 7, 2, 1000, 0);
    add_run(&b, RUN2, "over", 9, 2, 1000, 0);
    struct zt_row_run over = a_run(RUN2, "over", 9, ZT_RUN_CANCELLED, 1, 2);
    struct zt_row_worker w = { .state = ZT_WORKER_RUNNING, .capacity_bytes = 123456, .threads = 3, .pid = 42, .generation = 1, .rank = 1,
                               .incarnation.bytes = { 1, 2, 3 } };
    struct zt_row_key k = { .key = { 9, 8, 7 }, .verb = "submit", .run_id = RUN1, .name = "live", .at_ms = 1000000 };
    snprintf(w.worker_id, sizeof w.worker_id, "box/cpu-1");
    struct zt_batch *batch = zt_batch_new();
    zt_batch_run(batch, &over, NULL);
    zt_batch_worker(batch, &w);
    zt_batch_key(batch, &k);
    cr_assert_eq(bench_commit(&b, batch), 0);
    for (int64_t step = 1; step <= 3; step++)
        commit_step(&b, RUN1, 1, step, 1);
    sqlite3 *db = open_reader(&b);
    cr_assert_eq(zt_recover(db, 5, 2000000, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.recovery.n_runs, 1);
    cr_expect_eq(r.recovery.last_order, 9, "an ended run's place is not used again");
    struct zt_row_run want = a_run(RUN1, "live", 7, ZT_RUN_RUNNING, 1, 2);
    cr_expect_eq(memcmp(&r.runs[0], &want, sizeof want), 0, "the run row comes back bit for bit");
    cr_expect_eq(r.run_age_ms[0], 2000000 - 1000);
    cr_expect_eq(r.run_started_age_ms[0], -1);
    cr_expect_eq(r.texts[0].yaml_bytes, 11);
    cr_expect_str_eq(r.texts[0].overrides, "[\"training.steps=100\"]");
    cr_assert_eq(r.recovery.n_ranks, 2);
    for (size_t i = 0; i < 2; i++)
        cr_expect_eq(r.rank_step[i], r.ranks[i].rank == 1 ? 3 : 0);
    cr_assert_eq(r.recovery.n_workers, 1);
    w.rank = 1;
    cr_expect_eq(memcmp(&r.workers[0], &w, sizeof w), 0);
    cr_assert_eq(r.recovery.n_keys, 1);
    cr_expect_eq(memcmp(&r.keys[0], &k, sizeof k), 0);
    cr_expect_eq(r.key_age_ms[0], 1000000);
    cr_assert_eq(r.recovery.n_attempts, 1);
    cr_expect_eq(r.attempts[0].world, 2);
    zt_recovered_free(&r);
    sqlite3_close(db);
    bench_end(&b);
}

Test(store, a_full_queue_is_refused_not_lost) {
    struct bench b;
    struct zt_error err = { 0 };
    bench_folder(&b);
    bench_open(&b, &(struct zt_store_config){ .commit_ms = 10000, .queue_max_bytes = 65536 });
    int taken = 0, code = 0;
    char big[8192];
    memset(big, 'x', sizeof big);
    for (int i = 0; i < 1000 && !code; i++) {
        struct zt_batch *batch = zt_batch_new();
        zt_batch_log(batch, "nosuchrun", 1, 0, 0, false, false, big, sizeof big, 0);
        code = zt_store_submit(b.store, batch, ZT_HURRY_NO, false, bench_done, &b, &err);
        taken += code == 0;
    }
    /* the writer may have drained some meanwhile, but not a thousand times 8 KiB held back by the loop */
    if (code)
        cr_expect_eq(code, ZT_EBUSY, "%s", err.msg);
    cr_expect(taken > 0);
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_event e = { .rank = -1 };
    snprintf(e.kind, sizeof e.kind, "KEPT");
    zt_batch_event(batch, &e, -1);
    cr_expect_eq(zt_store_submit(b.store, batch, ZT_HURRY_YES, true, bench_done, &b, &err), 0, "a keep batch always fits");
    bench_wait(&b, taken + 1);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'KEPT'"), 1);
    sqlite3_close(db);
    bench_end(&b);
}
