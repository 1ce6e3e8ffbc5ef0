/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/migrate.h: opens the database of a state folder and brings its schema up to date.
 *
 * PRAGMA user_version is the number of the newest applied migration. Each one runs in a transaction of its
 * own, together with its row (number, name, checksum) and the new user_version: a crash leaves either the
 * old schema or the new one. Refused, with nothing changed: a database of a newer program (ZT_EVERSION), an
 * applied migration whose text is another one now (ZT_EVERSION), a file that is not ours (ZT_ECONFLICT) or
 * is damaged (ZT_EIO). An older database is copied beside itself first (VACUUM INTO).
 *
 * The caller owns the handle and must hold the lock of the state folder. One thread per handle. */
#ifndef ZT_COORDINATOR_MIGRATE_H
#define ZT_COORDINATOR_MIGRATE_H
#include <sqlite3.h>
#include <stddef.h>
#include "core/error.h"

#define ZT_DB_NAME "ztrain.db"
#define ZT_DB_APPLICATION_ID 0x7a74726e /* "ztrn" */

struct zt_migration { int version; const char *name; const char *sql; size_t bytes; };
extern const struct zt_migration zt_migrations[]; /* numbers 1..zt_n_migrations; generated */
extern const int zt_n_migrations;

/* XXH3-128 of a migration's text in hex. */
void zt_migration_checksum(const struct zt_migration *m, char out[33]);

struct zt_migrate_result { int from, to; char backup[1200]; /* "" = none was needed */ };

/* Opens (creates) DIR/ztrain.db for writing, WAL and synchronous=FULL, checks it, migrates it with the
 * list given. On success *db is open. */
int zt_db_open(const char *state_dir, const struct zt_migration *list, int n, sqlite3 **db,
               struct zt_migrate_result *result, struct zt_error *err);

/* zt_fail with SQLite's code turned into ours and its message: "WHAT: MESSAGE". */
int zt_db_fail(struct zt_error *err, sqlite3 *db, const char *what);
int zt_db_code(int sqlite_code); /* FULL, BUSY -> ZT_EBUSY; the rest of the disk's -> ZT_EIO; ... */

/* Runs one statement without parameters. */
int zt_db_exec(sqlite3 *db, const char *sql, struct zt_error *err);
/* The integer in the first column of the first row; `none` when there is no row. */
int zt_db_int(sqlite3 *db, const char *sql, sqlite3_int64 none, sqlite3_int64 *value, struct zt_error *err);

#endif
