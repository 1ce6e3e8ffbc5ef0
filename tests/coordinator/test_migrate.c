/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations: fresh, again, changed text, newer, foreign and damaged files, a kill in the middle of any write,
 * and the backup before an older schema is touched. */
#include <sys/wait.h>
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_util.h"

static const char one[] = "PRAGMA application_id = 2054451822;\n"
                          "CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL,"
                          " applied_ms INTEGER NOT NULL) STRICT;\n"
                          "CREATE TABLE a (x INTEGER); -- a comment\nINSERT INTO a VALUES (7);\n";
static const char two[] = "ALTER TABLE a ADD COLUMN y INTEGER;\nUPDATE a SET y = x + 1;\n";
static const char two_edited[] = "ALTER TABLE a ADD COLUMN y INTEGER;\nUPDATE a SET y = x + 2;\n";
static const char broken[] = "CREATE TABLE b (z INTEGER);\nINSERT INTO nowhere VALUES (1);\n";
#define M(n, text) { n, #n "_" #text ".sql", text, sizeof text - 1 }

static int open_with(struct bench *b, const struct zt_migration *list, int n, sqlite3 **db, struct zt_migrate_result *r,
                     struct zt_error *err)
{
    memset(err, 0, sizeof *err);
    return zt_db_open(b->dir, list, n, db, r, err);
}

Test(migrate, fresh_again_and_forward) {
    const struct zt_migration list[] = { M(1, one), M(2, two) };
    struct bench b;
    struct zt_migrate_result r;
    struct zt_error err;
    sqlite3 *db;
    bench_folder(&b);
    cr_assert_eq(open_with(&b, list, 1, &db, &r, &err), 0, "%s", err.msg);
    cr_expect_eq(r.from, 0);
    cr_expect_eq(r.to, 1);
    cr_expect_str_eq(r.backup, "");
    sqlite3_close(db);
    cr_assert_eq(open_with(&b, list, 1, &db, &r, &err), 0, "%s", err.msg);
    cr_expect_eq(r.from, 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM migrations"), 1, "a second start must apply nothing");
    sqlite3_close(db);
    /* forward: a copy of the old one first */
    cr_assert_eq(open_with(&b, list, 2, &db, &r, &err), 0, "%s", err.msg);
    cr_expect_eq(r.from, 1);
    cr_expect_eq(r.to, 2);
    cr_expect_eq(number_of(db, "SELECT y FROM a"), 8);
    cr_expect_eq(number_of(db, "PRAGMA user_version"), 2);
    sqlite3_close(db);
    cr_assert_eq(sqlite3_open_v2(r.backup, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK, "backup %s", r.backup);
    cr_expect_eq(number_of(db, "PRAGMA user_version"), 1);
    cr_expect_eq(number_of(db, "SELECT x FROM a"), 7);
    sqlite3_close(db);
    bench_end(&b);
}

Test(migrate, changed_text_is_refused) {
    const struct zt_migration good[] = { M(1, one), M(2, two) }, bad[] = { M(1, one), { 2, "2_two.sql", two_edited, sizeof two_edited - 1 } };
    struct bench b;
    struct zt_migrate_result r;
    struct zt_error err;
    sqlite3 *db;
    bench_folder(&b);
    cr_assert_eq(open_with(&b, good, 2, &db, &r, &err), 0, "%s", err.msg);
    sqlite3_close(db);
    cr_expect_eq(open_with(&b, bad, 2, &db, &r, &err), ZT_EVERSION);
    cr_expect_null(db);
    cr_expect(strstr(err.msg, "2_two.sql") && strstr(err.msg, "never be edited"), "%s", err.msg);
    cr_assert_eq(open_with(&b, good, 2, &db, &r, &err), 0, "the refusal must not have changed it: %s", err.msg);
    cr_expect_eq(number_of(db, "SELECT y FROM a"), 8);
    sqlite3_close(db);
    bench_end(&b);
}

static void file_bytes(const char *path, char **data, size_t *n)
{
    FILE *f = fopen(path, "rb");
    cr_assert(f != NULL, "%s", path);
    *data = malloc(1 << 22);
    *n = fread(*data, 1, 1 << 22, f);
    fclose(f);
}

Test(migrate, newer_database_is_refused_untouched) {
    const struct zt_migration list[] = { M(1, one), M(2, two) };
    struct bench b;
    struct zt_migrate_result r;
    struct zt_error err;
    sqlite3 *db;
    char path[128], *before, *after;
    size_t n, m;
    bench_folder(&b);
    cr_assert_eq(open_with(&b, list, 2, &db, &r, &err), 0, "%s", err.msg);
    sqlite3_close(db);
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    file_bytes(path, &before, &n);
    cr_expect_eq(open_with(&b, list, 1, &db, &r, &err), ZT_EVERSION);
    cr_expect(strstr(err.msg, "schema 2") && strstr(err.msg, "newer program"), "%s", err.msg);
    file_bytes(path, &after, &m);
    cr_expect(n == m && memcmp(before, after, n) == 0, "a refused database must not change");
    free(before);
    free(after);
    /* the real program's list against a database of the future, through the store and the readers */
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    cr_expect_eq(bench_try_open(&b, NULL, &err), ZT_EVERSION);
    cr_expect_eq(zt_query_open(b.dir, &db, &err), ZT_EVERSION);
    bench_end(&b);
}

Test(migrate, failing_statement_leaves_the_old_schema) {
    const struct zt_migration list[] = { M(1, one), M(2, broken) };
    struct bench b;
    struct zt_migrate_result r;
    struct zt_error err;
    sqlite3 *db;
    bench_folder(&b);
    cr_expect_neq(open_with(&b, list, 2, &db, &r, &err), 0);
    cr_expect(strstr(err.msg, "2_broken.sql") && strstr(err.msg, "nowhere"), "%s", err.msg);
    cr_assert_eq(open_with(&b, list, 1, &db, &r, &err), 0, "%s", err.msg);
    cr_expect_eq(number_of(db, "PRAGMA user_version"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM sqlite_master WHERE name = 'b'"), 0);
    sqlite3_close(db);
    bench_end(&b);
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, n, f) == n);
    fclose(f);
}

Test(migrate, foreign_and_damaged_files) {
    struct bench b;
    struct zt_error err;
    sqlite3 *db;
    char path[128], *data;
    size_t n;
    bench_folder(&b);
    snprintf(path, sizeof path, "%s/%s", b.dir, ZT_DB_NAME);
    write_file(path, "this is not a database, it is a text of some length and no more than that", 60);
    cr_expect_eq(bench_try_open(&b, NULL, &err), ZT_EIO);
    cr_expect(strstr(err.msg, path) && strstr(err.msg, "backup"), "%s", err.msg);
    unlink(path);

    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "CREATE TABLE theirs (x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    cr_expect_eq(bench_try_open(&b, NULL, &err), ZT_ECONFLICT);
    cr_expect(strstr(err.msg, "another program") != NULL, "%s", err.msg);
    unlink(path);

    /* ours, with a page in the middle overwritten */
    bench_open(&b, NULL);
    add_run(&b, RUN1, "a", 1, 2, 1000, 0);
    bench_close(&b);
    file_bytes(path, &data, &n);
    memset(data + 4096 * 5, 0xAB, 4096);
    write_file(path, data, n);
    cr_expect_eq(bench_try_open(&b, NULL, &err), ZT_EIO);
    cr_expect(strstr(err.msg, "damaged") != NULL, "%s", err.msg);
    char *after;
    size_t m;
    file_bytes(path, &after, &m);
    cr_expect(n == m && memcmp(data, after, n) == 0, "a damaged database must be left as it was found");
    free(data);
    free(after);
    bench_end(&b);
}

/* The process ends in the middle of write number N of a first start, for every N there is; the next start must
 * find either nothing or the whole schema, and finish it. */
Test(migrate, killed_at_every_write) {
    int64_t total = 0;
    int ended_early = 0;
    for (int64_t at = 0; at == 0 || at <= total; at++) {
        struct bench b;
        struct zt_migrate_result r;
        struct zt_error err;
        sqlite3 *db = NULL;
        bench_folder(&b);
        pid_t pid = fork();
        if (pid == 0) {
            fault_install();
            fault_set(at ? FAULT_EXIT : FAULT_NONE, at, 0);
            int code = zt_db_open(b.dir, zt_migrations, zt_n_migrations, &db, &r, &err);
            int64_t n = fault_operations();
            _exit(code ? 120 : at ? 0 : (int)(n > 119 ? 119 : n));
        }
        int status;
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status));
        if (at == 0)
            total = WEXITSTATUS(status);
        ended_early += WEXITSTATUS(status) == 137;
        cr_assert_neq(WEXITSTATUS(status), 120, "write %ld", (long)at);
        cr_assert_eq(zt_db_open(b.dir, zt_migrations, zt_n_migrations, &db, &r, &err), 0, "after a kill at write %ld of %ld: %s",
                     (long)at, (long)total, err.msg);
        integrity(db);
        cr_expect_eq(number_of(db, "SELECT count(*) FROM migrations"), zt_n_migrations);
        cr_expect_eq(number_of(db, "SELECT count(*) FROM meta"), 1);
        sqlite3_close(db);
        bench_end(&b);
    }
    cr_expect(total > 10 && ended_early >= total, "%d of %ld writes ended the process", ended_early, (long)total);
}

Test(migrate, states_that_need_a_reason_have_one) {
    struct bench b;
    bench_folder(&b);
    bench_open(&b, NULL);
    struct zt_row_run r = a_run(RUN1, "a", 1, ZT_RUN_FAILED, 1, 1);
    struct zt_batch *batch = zt_batch_new();
    zt_batch_run(batch, &r, NULL);
    cr_expect_eq(bench_commit(&b, batch), 0);
    r = a_run(RUN2, "b", 2, ZT_RUN_FAILED, 1, 1);
    r.reason = ZT_REASON_NONE;
    batch = zt_batch_new();
    zt_batch_run(batch, &r, NULL);
    cr_expect_eq(bench_commit(&b, batch), ZT_EINTERNAL, "FAILED without a reason must be refused");
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM runs"), 1);
    sqlite3_close(db);
    bench_end(&b);
}

/* A database of the first version, with a run under way, goes on under today's program. */
Test(migrate, the_first_schema_becomes_todays) {
    static const char *const rows[] = {
        "INSERT INTO runs VALUES ('" RUN1 "', 'old', 1, 5, 0, '', -1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 7, 1000, 2000, 0, '', 50, 100,"
        " '{\"priority\": 50}')",
        "INSERT INTO run_specs VALUES ('" RUN1 "', x'00', 'run.yaml', '[]', '', '', 'ddp', NULL, 1000, 5, 3)",
        "INSERT INTO attempts VALUES ('" RUN1 "', 1, 1, 1, 1000, 0, 0, -1, '', '', 0, 0, 0, -1, -1, -1, -1)",
        "INSERT INTO assignments VALUES ('" RUN1 "', 1, 0, 0, 1, 'box/cpu-0', 'box', zeroblob(16), 0, 0, 0, '')",
        "INSERT INTO step_rank VALUES ('" RUN1 "', 7, 0, 1, 2.5, 10, 0.5, 0, 1, 1, x'080010011807')",
        "INSERT INTO step_rollup VALUES ('" RUN1 "', 7, 1, 1, 1, 2.5, 10, 20, 0.5, 0.5, 0, 0, 1, 1, 0, x'080010011807')",
        "INSERT INTO run_progress VALUES ('" RUN1 "', 1, 7, 2.5, 20, 1, 0, 1)",
        "INSERT INTO log_streams VALUES ('" RUN1 "', 1, 0, 6)",
        ("INSERT INTO events (at_ms, run_id, worker_id, kind, from_state, to_state, reason, generation, rank, level, actor, message)"
         " VALUES (1, '', '', 'T', '', '', 0, 0, -1, 1, '', '')"),
    };
    struct bench b;
    struct zt_migrate_result r;
    struct zt_error err;
    sqlite3 *db;
    bench_folder(&b);
    cr_assert_eq(open_with(&b, zt_migrations, 1, &db, &r, &err), 0, "%s", err.msg);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_eq(zt_db_exec(db, rows[i], &err), 0, "%s", err.msg);
    sqlite3_close(db);
    bench_open(&b, NULL);
    cr_expect_eq(zt_store_migration(b.store)->from, 1);
    cr_assert_eq(commit_step(&b, RUN1, 0, 8, 1), 0);
    cr_assert_eq(commit_trace(&b, RUN1, 0, 8, 1, 2), 0);
    db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup WHERE step = 7 AND loss_scale IS NULL AND skipped IS NULL"), 1);
    cr_expect_eq(real_of(db, "SELECT loss_scale FROM step_rollup WHERE step = 8"), 1024);
    cr_expect_eq(number_of(db, "SELECT ended FROM log_streams"), 0);
    cr_expect_eq(number_of(db, "SELECT init_timeouts FROM runs"), 0);
    struct zt_recovered found;
    cr_assert_eq(zt_recover(db, 2, 5000, &found, &err), 0, "%s", err.msg);
    cr_expect_eq(found.recovery.n_runs, 1);
    cr_expect_eq(found.runs[0].best_step, 7);
    zt_recovered_free(&found);
    sqlite3_close(db);
    bench_end(&b);
}
