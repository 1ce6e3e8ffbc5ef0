/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/store.h: the one place that writes the database. A writer thread owns the write connection
 * (WAL, synchronous=FULL). The loop hands it batches (rows.h) through a bounded queue; the writer takes what
 * there is, commits it as one transaction (group commit) and the completion runs on the loop: a batch whose
 * completion came with code 0 is durable, which is the only thing that may be acknowledged.
 *
 *   loop:   zt_store_submit ──queue──> writer: BEGIN, epoch check, every batch, roll-ups, COMMIT
 *   loop:   fn(result) <──uv_async──── writer: PASSIVE checkpoint when the WAL has grown
 *
 * Order: batches commit in the order of submission. A `keep` batch is tried again until it is durable (disk
 * full, I/O error), batches behind it wait; others are answered with the error and forgotten, their sender
 * has them still. A batch that is wrong in itself fails alone.
 * An I/O error makes the writer drop its connection and open a new one before the next try, so that no page
 * of a failed fsync is taken for written.
 *
 * One store per state folder: an OFD lock on DIR/lock, held while the store is open. The epoch in `meta` is
 * counted up at start and checked in every transaction.
 * Thread rule: all functions on the loop's thread. */
#ifndef ZT_COORDINATOR_STORE_H
#define ZT_COORDINATOR_STORE_H
#include <stdbool.h>
#include <uv.h>
#include "coordinator/migrate.h"
#include "coordinator/rows.h"
#include "core/error.h"

struct zt_store;

struct zt_store_config {
    const char *state_dir;      /* exists, 0700 */
    uv_loop_t *loop;
    int commit_ms;              /* longest wait for company; 0 = 50 */
    size_t queue_max_bytes;     /* 0 = 64 MiB; keep batches always fit */
    int64_t log_quota;          /* 0 = ZT_LOG_QUOTA_DEFAULT */
    int retry_ms;               /* pause after a failed commit; 0 = 250 */
    void *arg;
    /* The store stopped (code != 0) or began again (0) to accept writes. ZT_EBUSY: disk full; ZT_EIO: I/O error;
     * ZT_ECONFLICT: another coordinator took the folder; ZT_EINTERNAL: a row was refused. The last two are final. */
    void (*on_state)(void *arg, int code, const char *message);
    /* After the completions of one wake-up, so that the loop can act on all of them at once. */
    void (*on_batch)(void *arg);
};

struct zt_commit { int code; const char *message; uint64_t log_next; }; /* 0 = durable */
typedef void (*zt_commit_fn)(void *arg, const struct zt_commit *c);

enum zt_hurry { ZT_HURRY_NO, ZT_HURRY_YES };

/* Lock, migrate, count the epoch up, start the writer. */
int zt_store_open(const struct zt_store_config *c, struct zt_store **out, struct zt_error *err);
uint64_t zt_store_epoch(const struct zt_store *s);
const struct zt_migrate_result *zt_store_migration(const struct zt_store *s);
/* Takes the batch whether or not it returns 0. On an error fn never runs: ZT_EBUSY when the queue is full,
 * ZT_ENOMEM or ZT_EINVAL when the batch itself is no good. fn may be NULL. */
int zt_store_submit(struct zt_store *s, struct zt_batch *b, enum zt_hurry hurry, bool keep, zt_commit_fn fn,
                    void *arg, struct zt_error *err);
/* Commits what is queued (gives up after `seconds` when the disk refuses), stops the writer, runs the
 * completions left, closes the database; `closed` runs on the loop once the store's memory is gone. */
void zt_store_close(struct zt_store *s, double seconds, void (*closed)(void *arg), void *arg);
uint64_t zt_store_commits(const struct zt_store *s); /* transactions so far, for tests and status */

/* The lock alone, for `zcoord migrate`: fd, or ZT_ECONFLICT naming the process that has it. */
int zt_state_lock(const char *state_dir, int *fd, struct zt_error *err);

#endif
