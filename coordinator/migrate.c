/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/migrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#include "core/sys.h"

int zt_db_code(int sqlite_code)
{
    switch (sqlite_code & 0xff) {
    case SQLITE_OK: case SQLITE_DONE: case SQLITE_ROW: return ZT_OK;
    case SQLITE_FULL: case SQLITE_BUSY: case SQLITE_LOCKED: return ZT_EBUSY;
    case SQLITE_NOMEM: return ZT_ENOMEM;
    case SQLITE_IOERR: case SQLITE_CORRUPT: case SQLITE_NOTADB: case SQLITE_CANTOPEN:
    case SQLITE_READONLY: case SQLITE_PERM: case SQLITE_AUTH: return ZT_EIO;
    default: return ZT_EINTERNAL;
    }
}

int zt_db_fail(struct zt_error *err, sqlite3 *db, const char *what)
{
    int code = zt_db_code(sqlite3_extended_errcode(db));
    return zt_fail(err, code ? code : ZT_EINTERNAL, "%s: %s", what, sqlite3_errmsg(db));
}

int zt_db_exec(sqlite3 *db, const char *sql, struct zt_error *err)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : zt_db_fail(err, db, sql);
}

int zt_db_int(sqlite3 *db, const char *sql, sqlite3_int64 none, sqlite3_int64 *value, struct zt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    int out = 0;
    if (rc == SQLITE_ROW)
        *value = sqlite3_column_int64(s, 0);
    else if (rc == SQLITE_DONE)
        *value = none;
    else
        out = zt_db_fail(err, db, sql);
    sqlite3_finalize(s);
    return out;
}

void zt_migration_checksum(const struct zt_migration *m, char out[33])
{
    XXH128_hash_t h = XXH3_128bits(m->sql, m->bytes);
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
}

/* Damage is reported, never repaired: what to do with it is the operator's choice. */
static int damaged(const char *path, const char *why, struct zt_error *err)
{
    return zt_fail(err, ZT_EIO,
                   "%s is damaged: %s. Nothing was changed. Put a backup in its place, or move it and its "
                   "-wal file away to start empty", path, why);
}

static int quick_check(sqlite3 *db, const char *path, struct zt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &s, NULL), out = 0;
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc != SQLITE_ROW)
        out = damaged(path, sqlite3_errmsg(db), err);
    else if (strcmp((const char *)sqlite3_column_text(s, 0), "ok") != 0)
        out = damaged(path, (const char *)sqlite3_column_text(s, 0), err);
    sqlite3_finalize(s);
    return out;
}

/* Every applied migration must be the one we carry: an edited one would leave two schemas of one number. */
static int check_applied(sqlite3 *db, const char *path, const struct zt_migration *list, int version,
                         struct zt_error *err)
{
    sqlite3_stmt *s = NULL;
    int out = 0, seen = 0;
    if (sqlite3_prepare_v2(db, "SELECT version, name, checksum FROM migrations ORDER BY version", -1, &s, NULL))
        return damaged(path, sqlite3_errmsg(db), err);
    int rc;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && !out) {
        int v = sqlite3_column_int(s, 0);
        char sum[33];
        if (v != seen + 1 || v > version) {
            out = damaged(path, "its list of migrations does not agree with its version", err);
            break;
        }
        zt_migration_checksum(&list[v - 1], sum);
        if (strcmp(sum, (const char *)sqlite3_column_text(s, 2)) != 0)
            out = zt_fail(err, ZT_EVERSION,
                          "%s: migration %s was applied with checksum %s, this program carries %s: an applied "
                          "migration must never be edited. Use the program that made the database",
                          path, sqlite3_column_text(s, 1), sqlite3_column_text(s, 2), sum);
        seen = v;
    }
    if (!out && rc != SQLITE_DONE && rc != SQLITE_ROW)
        out = damaged(path, sqlite3_errmsg(db), err);
    sqlite3_finalize(s);
    if (!out && seen != version)
        out = damaged(path, "its list of migrations does not agree with its version", err);
    return out;
}

static int64_t now_ms(void)
{
    return zt_sys_posix.wall_ns(zt_sys_posix.arg) / 1000000;
}

static int back_up(sqlite3 *db, const char *path, int version, struct zt_migrate_result *result,
                   struct zt_error *err)
{
    snprintf(result->backup, sizeof result->backup, "%s.v%d-%" PRId64 ".backup", path, version, now_ms());
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, "VACUUM INTO ?1", -1, &s, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(s, 1, result->backup, -1, SQLITE_STATIC);
        rc = sqlite3_step(s);
    }
    int out = rc == SQLITE_DONE ? 0 : zt_db_fail(err, db, "backup before the migration");
    sqlite3_finalize(s);
    if (out)
        result->backup[0] = 0;
    return out;
}

/* One statement at a time, so that a test can stop between any two. */
static int run_statements(sqlite3 *db, const struct zt_migration *m, struct zt_error *err)
{
    const char *sql = m->sql, *end = m->sql + m->bytes;
    while (sql < end) {
        sqlite3_stmt *s = NULL;
        if (ZT_FAILPOINT("migrate.statement"))
            return zt_fail(err, ZT_EIO, "%s: failpoint", m->name);
        if (sqlite3_prepare_v2(db, sql, (int)(end - sql), &s, &sql))
            return zt_db_fail(err, db, m->name);
        if (!s)
            continue; /* a comment or blank at the end */
        int rc;
        while ((rc = sqlite3_step(s)) == SQLITE_ROW)
            ;
        if (sqlite3_finalize(s) || rc != SQLITE_DONE)
            return zt_db_fail(err, db, m->name);
    }
    return 0;
}

static int record(sqlite3 *db, const struct zt_migration *m, struct zt_error *err)
{
    char sum[33], pragma[48];
    zt_migration_checksum(m, sum);
    snprintf(pragma, sizeof pragma, "PRAGMA user_version = %d", m->version);
    if (zt_db_exec(db, pragma, err))
        return err->code;
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, "INSERT INTO migrations VALUES (?1, ?2, ?3, ?4)", -1, &s, NULL))
        return zt_db_fail(err, db, m->name);
    sqlite3_bind_int(s, 1, m->version);
    sqlite3_bind_text(s, 2, m->name, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, sum, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 4, now_ms());
    int rc = sqlite3_step(s);
    int out = rc == SQLITE_DONE ? 0 : zt_db_fail(err, db, m->name);
    sqlite3_finalize(s);
    return out;
}

static int apply(sqlite3 *db, const struct zt_migration *m, struct zt_error *err)
{
    if (zt_db_exec(db, "BEGIN IMMEDIATE", err))
        return err->code;
    if (run_statements(db, m, err) || record(db, m, err))
        goto undo;
    if (ZT_FAILPOINT("migrate.before_commit")) {
        zt_fail(err, ZT_EIO, "%s: failpoint", m->name);
        goto undo;
    }
    if (zt_db_exec(db, "COMMIT", err))
        goto undo;
    return 0;
undo:
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return zt_fail_prefix(err, "migration %s was not applied", m->name);
}

/* Version and identity are read before anything is written. */
static int identify(sqlite3 *db, const char *path, int newest, int *version, struct zt_error *err)
{
    sqlite3_int64 v = 0, id = 0, objects = 0;
    if (zt_db_int(db, "PRAGMA user_version", 0, &v, err) ||
        zt_db_int(db, "PRAGMA application_id", 0, &id, err) ||
        zt_db_int(db, "SELECT count(*) FROM sqlite_master", 0, &objects, err)) {
        struct zt_error why = *err;
        return why.code == ZT_EIO ? damaged(path, why.msg, err) : why.code;
    }
    if ((v != 0 || objects != 0) && id != ZT_DB_APPLICATION_ID)
        return zt_fail(err, ZT_ECONFLICT,
                       "%s is an SQLite database of another program; choose another --state folder", path);
    if (v > newest)
        return zt_fail(err, ZT_EVERSION,
                       "%s has schema %d, this program (%s) knows up to %d: use the newer program that wrote it",
                       path, (int)v, ZT_VERSION, newest);
    if (v < 0 || (v == 0) != (objects == 0))
        return damaged(path, "its version and its tables do not belong together", err);
    *version = (int)v;
    return 0;
}

int zt_db_open(const char *state_dir, const struct zt_migration *list, int n, sqlite3 **db,
               struct zt_migrate_result *result, struct zt_error *err)
{
    char path[1100];
    int version = 0;
    *db = NULL;
    memset(result, 0, sizeof *result);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", state_dir, ZT_DB_NAME) >= sizeof path)
        return zt_fail(err, ZT_EINVAL, "%s: the path of the state folder is too long", state_dir);
    if (sqlite3_open_v2(path, db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL)) {
        zt_fail(err, ZT_EIO, "cannot open %s: %s; check the owner and mode of the folder", path,
                *db ? sqlite3_errmsg(*db) : "out of memory");
        goto fail;
    }
    sqlite3_busy_timeout(*db, 5000);
    sqlite3_extended_result_codes(*db, 1);
    if (identify(*db, path, n, &version, err))
        goto fail;
    if (version > 0 && (quick_check(*db, path, err) || check_applied(*db, path, list, version, err)))
        goto fail;
    /* auto_vacuum stays off; foreign keys are ours to keep, checked where a row's owner is in doubt */
    if (zt_db_exec(*db, "PRAGMA journal_mode = WAL", err) || zt_db_exec(*db, "PRAGMA synchronous = FULL", err) ||
        zt_db_exec(*db, "PRAGMA foreign_keys = ON", err))
        goto fail;
    result->from = version;
    if (version > 0 && version < n && back_up(*db, path, version, result, err))
        goto fail;
    for (int i = version; i < n; i++)
        if (apply(*db, &list[i], err))
            goto fail;
    result->to = n;
    return 0;
fail:
    sqlite3_close(*db);
    *db = NULL;
    return err->code;
}
