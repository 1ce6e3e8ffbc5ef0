/* SPDX-License-Identifier: Apache-2.0 */
/* The store on a disk that fails: every operation once, for good, with the disk full, and with the power gone.
 * What was acknowledged is there afterwards, what is there is whole, and the store works again when the disk does. */
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_util.h"

#define EVENTS 6

/* Each event comes with a trace of a run and with a save that begins, of step number + 1, and the commit of the one
 * before, as soon as the run is there. */
struct journal { struct bench b; bool run_is_there; int acked[EVENTS * 2]; int n_acked; int next; };
struct ack { struct journal *j; int number; };

static void on_ack(void *arg, const struct zt_commit *c)
{
    struct ack *a = arg;
    if (c->code == 0)
        a->j->acked[a->j->n_acked++] = a->number;
    a->j->b.done++;
    free(a);
}

static void put_run(struct journal *j)
{
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(RUN1, "traced", 1, ZT_RUN_RUNNING, 1, 1);
    struct zt_run_blobs blobs = { .per_rank_keep = 10 };
    zt_batch_run(batch, &r, &blobs);
    add_generation(batch, RUN1, 1, 1);
    j->run_is_there = bench_commit(&j->b, batch) == 0;
}

static void put_saves(struct zt_batch *batch, int number)
{
    struct zt_row_ckpt c = { .run_id = RUN1, .step = number + 1, .generation = 1, .state = ZT_CKPT_WRITING, .world = 1, .mesh = { 1, 1, 1 },
                             .created_ms = 1 };
    struct zt_row_part p = { .run_id = RUN1, .step = number + 1, .generation = 1, .part = { .bytes = 100 } };
    zt_batch_ckpt(batch, &c);
    zt_batch_part(batch, &p);
    if (number == 0)
        return;
    c.step = number;
    c.state = ZT_CKPT_COMMITTED;
    c.committed_ms = 2;
    c.verified = true;
    memset(c.manifest, number, sizeof c.manifest);
    zt_batch_ckpt(batch, &c);
}

static void put_event(struct journal *j, int number, bool keep)
{
    struct zt_error err;
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_event e = { .rank = number };
    struct ack *a = malloc(sizeof *a);
    *a = (struct ack){ j, number };
    snprintf(e.kind, sizeof e.kind, "J");
    memset(e.message, 'a' + number, 700); /* so that a batch touches more than one sector */
    zt_batch_event(batch, &e, -1);
    if (j->run_is_there) {
        struct a_trace t;
        Zt__StepTrace *list[1] = { trace(&t, 0, number + 1, 1, 20) };
        zt_batch_traces(batch, RUN1, list, 1);
        put_saves(batch, number);
    }
    if (zt_store_submit(j->b.store, batch, ZT_HURRY_YES, keep, on_ack, a, &err)) {
        free(a);
        j->b.done++;
    }
}

/* Opens and works until done or until the disk is gone; one event at a time, acknowledged before the next. */
static void work(struct journal *j, bool keep)
{
    struct zt_error err;
    if (bench_try_open(&j->b, &(struct zt_store_config){ .commit_ms = 1, .retry_ms = 1 }, &err))
        return;
    put_run(j);
    for (int i = 0; i < EVENTS; i++) {
        int before = j->b.done;
        put_event(j, i, keep);
        bench_wait(&j->b, before + 1);
    }
}

static void check_acked(struct journal *j, const char *what, int64_t at)
{
    sqlite3 *db = open_reader(&j->b);
    integrity(db);
    for (int i = 0; i < j->n_acked; i++) {
        char sql[160];
        snprintf(sql, sizeof sql, "SELECT count(*) FROM events WHERE kind = 'J' AND rank = %d", j->acked[i]);
        cr_expect_eq(number_of(db, sql), 1, "%s at operation %ld: acknowledged event %d", what, (long)at, j->acked[i]);
        if (!j->run_is_there)
            continue;
        snprintf(sql, sizeof sql, "SELECT count(*) FROM step_trace WHERE run_id = '" RUN1 "' AND step = %d", j->acked[i] + 1);
        cr_expect_eq(number_of(db, sql), 1, "%s at operation %ld: acknowledged trace %d", what, (long)at, j->acked[i] + 1);
        snprintf(sql, sizeof sql, "SELECT count(*) FROM checkpoints WHERE step = %d AND state = 2", j->acked[i]);
        cr_expect_eq(number_of(db, sql), j->acked[i] > 0, "%s at operation %ld: acknowledged commit of step %d", what, (long)at,
                     j->acked[i]);
    }
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'J' AND length(message) <> 700"), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace WHERE length(trace) <> bytes"), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM checkpoints c WHERE (state = 1) <> (SELECT count(*) FROM checkpoint_shards p"
                               " WHERE p.run_id = c.run_id AND p.step = c.step)"), 0, "%s: parts are there as long as a save is WRITING", what);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM checkpoint_shards p WHERE NOT EXISTS (SELECT 1 FROM checkpoints c"
                               " WHERE c.run_id = p.run_id AND c.step = p.step)"), 0, "%s: a part without its save", what);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_trace t WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.kind = 'J'"
                               " AND e.rank = t.step - 1)"), 0, "%s: a batch is there whole or not at all", what);
    sqlite3_close(db);
}

static int64_t count_operations(void)
{
    struct journal j = { 0 };
    bench_folder(&j.b);
    fault_set(FAULT_NONE, 0, 0);
    work(&j, false);
    cr_assert_eq(j.n_acked, EVENTS);
    bench_close(&j.b);
    int64_t n = fault_operations();
    bench_end(&j.b);
    return n;
}

/* Each operation fails once: the start or a commit is refused with the right code, nothing is half done, and what
 * comes after works. */
static void fail_each_once(int code, const char *what)
{
    fault_install();
    int64_t total = count_operations();
    int refused = 0;
    cr_assert_gt(total, 50);
    for (int64_t at = 1; at <= total; at++) {
        struct journal j = { 0 };
        bench_folder(&j.b);
        fault_set(FAULT_ONCE, at, code);
        work(&j, false);
        refused += fault_fired() && j.n_acked < EVENTS;
        if (j.b.store) {
            int before = j.b.done, had = j.n_acked;
            for (int tries = 0; tries < 1000 && j.n_acked == had; tries++) {
                struct timespec pause = { 0, 500000 };
                nanosleep(&pause, NULL); /* a refusal holds for retry_ms */
                put_event(&j, EVENTS, false); /* the disk is well again */
                bench_wait(&j.b, ++before);
            }
            had = j.n_acked > had;
            cr_expect(had, "%s at operation %ld: the store did not recover", what, (long)at);
            bench_close(&j.b);
        }
        fault_set(FAULT_NONE, 0, 0);
        bench_open(&j.b, NULL);
        check_acked(&j, what, at);
        bench_end(&j.b);
    }
    cr_expect(refused > 10, "only %d of %ld faults were felt", refused, (long)total);
}

Test(store_faults, write_error_at_every_operation) { fail_each_once(SQLITE_IOERR, "I/O error"); }
Test(store_faults, disk_full_at_every_operation) { fail_each_once(SQLITE_FULL, "disk full"); }

Test(store_faults, kept_batches_wait_for_the_disk_and_reads_go_on) {
    struct journal j = { 0 };
    fault_install();
    fault_set(FAULT_NONE, 0, 0);
    bench_folder(&j.b);
    bench_open(&j.b, NULL);
    put_event(&j, 0, true);
    bench_wait(&j.b, 1);
    fault_set(FAULT_FROM, 1, SQLITE_FULL);
    put_event(&j, 1, true); /* what the machine has decided */
    put_event(&j, 2, true);
    for (int i = 0; i < 1000 && j.b.state == 0; i++)
        uv_run(&j.b.loop, UV_RUN_ONCE);
    cr_expect_eq(j.b.state, ZT_EBUSY);
    cr_expect_eq(j.n_acked, 1, "nothing is acknowledged on a full disk");
    struct zt_error err;
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_event e = { .kind = "X", .rank = -1 };
    zt_batch_event(batch, &e, -1);
    int refused = 0;
    for (int i = 0; i < 20 && !refused; i++) { /* between two tries; a try itself is let through */
        if (i > 0) {
            batch = zt_batch_new();
            zt_batch_event(batch, &e, -1);
        }
        refused = zt_store_submit(j.b.store, batch, ZT_HURRY_NO, false, NULL, NULL, &err);
    }
    if (refused)
        cr_expect_eq(refused, ZT_EBUSY, "%s", err.msg);
    sqlite3 *db = open_reader(&j.b); /* reads go on */
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'J'"), 1);
    fault_set(FAULT_NONE, 0, 0); /* space returns */
    bench_wait(&j.b, 3);
    cr_expect_eq(j.n_acked, 3);
    cr_expect_eq(j.b.state, 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events a JOIN events b ON b.rank = a.rank + 1 AND b.id < a.id"
                               " WHERE a.kind = 'J' AND b.kind = 'J'"), 0, "in the order of submission");
    sqlite3_close(db);
    bench_close(&j.b);
    check_acked(&j, "disk full", 0);
    bench_end(&j.b);
}

static uint64_t seed_of(int64_t at, int round) { return (uint64_t)at * 7919 + (uint64_t)round; }

Test(store_faults, power_loss_at_every_operation) {
    fault_install();
    int64_t total = count_operations();
    int lost_something = 0;
    for (int round = 0; round < 3; round++) {
        for (int64_t at = 1; at <= total; at++) {
            struct journal j = { 0 };
            bench_folder(&j.b);
            fault_set(FAULT_POWER, at, 0);
            work(&j, false);
            if (j.b.store)
                bench_close(&j.b);
            lost_something += j.n_acked < EVENTS;
            fault_lose_power(seed_of(at, round));
            fault_set(FAULT_NONE, 0, 0);
            struct zt_error err;
            int code = bench_try_open(&j.b, NULL, &err);
            cr_assert_eq(code, 0, "power lost at operation %ld, seed %lu: %s", (long)at, (unsigned long)seed_of(at, round), err.msg);
            check_acked(&j, "power loss", at);
            bench_end(&j.b);
        }
    }
    cr_expect(lost_something > (int)total, "the power failed too late to matter");
}

/* The harness itself: without syncs the same losses must be seen, or it proves nothing. */
Test(store_faults, power_loss_without_syncs_is_seen) {
    fault_install();
    int lost = 0;
    for (int64_t at = 20; at < 60; at++) {
        struct bench b;
        char path[128];
        sqlite3 *db;
        bench_folder(&b);
        snprintf(path, sizeof path, "%s/x.db", b.dir);
        fault_set(FAULT_POWER, at, 0);
        cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
        sqlite3_exec(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (x)", NULL, NULL, NULL);
        int acked = 0;
        while (acked < 50 && sqlite3_exec(db, "INSERT INTO t VALUES (1)", NULL, NULL, NULL) == SQLITE_OK)
            acked++;
        sqlite3_close(db);
        fault_lose_power(seed_of(at, 0));
        fault_set(FAULT_NONE, 0, 0);
        sqlite3_int64 rows = 0;
        struct zt_error err;
        if (sqlite3_open(path, &db) || zt_db_int(db, "SELECT count(*) FROM t", 0, &rows, &err) || rows < acked)
            lost++;
        sqlite3_close(db);
        remove_tree(b.dir);
    }
    cr_expect(lost > 5, "synchronous = NORMAL lost acknowledged rows in %d of 40 power losses only", lost);
}
