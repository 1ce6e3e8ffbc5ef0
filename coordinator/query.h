/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/query.h: the read side: answers a client's read request (list_runs, get_run, get_metrics,
 * get_memory, get_logs, get_events, list_workers, get_status, list_checkpoints) from a database opened read-only. zcoord
 * uses it for its clients, zctl for `--state DIR` without a daemon (D28): one code, same answers.
 * The reply is malloc'ed by protobuf-c's rules: zt_query_free. One thread per sqlite3 handle. */
#ifndef ZT_COORDINATOR_QUERY_H
#define ZT_COORDINATOR_QUERY_H
#include <sqlite3.h>
#include "core/error.h"
#include "proto/ztrain.pb-c.h"

/* Opens DIR/ztrain.db read-only; ZT_ENOTFOUND, ZT_EVERSION (newer schema), ZT_EIO (corrupt). */
int zt_query_open(const char *state_dir, sqlite3 **db, struct zt_error *err);
/* *reply->body answers req's body; ZT_ENOTFOUND names the run and the nearest name. */
int zt_query(sqlite3 *db, const Zt__Envelope *req, Zt__Envelope **reply, struct zt_error *err);
void zt_query_free(Zt__Envelope *reply);

#endif
