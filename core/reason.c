/* SPDX-License-Identifier: Apache-2.0 */
/* core/reason.c: names and retry rules of the reasons, one row each. Pure; any thread. */
#include "core/reason.h"
#include <stdio.h>
#include <string.h>

static const struct row { enum zt_reason reason; const char *name; enum zt_retry retry; } rows[] = {
    {ZT_REASON_NONE, "NONE", ZT_RETRY_NEVER},
    {ZT_REASON_CONFIG_ERROR, "CONFIG_ERROR", ZT_RETRY_NEVER},
    {ZT_REASON_VERSION_MISMATCH, "VERSION_MISMATCH", ZT_RETRY_NEVER},
    {ZT_REASON_NAN_LOSS, "NAN_LOSS", ZT_RETRY_NEVER},
    {ZT_REASON_OOM_DEVICE, "OOM_DEVICE", ZT_RETRY_NEVER},
    {ZT_REASON_DATA_ERROR, "DATA_ERROR", ZT_RETRY_NEVER},
    {ZT_REASON_REPLICA_DIVERGED, "REPLICA_DIVERGED", ZT_RETRY_NEVER},
    {ZT_REASON_EXIT_NONZERO, "EXIT_NONZERO", ZT_RETRY_COUNTED},
    {ZT_REASON_SIGNAL, "SIGNAL", ZT_RETRY_COUNTED},
    {ZT_REASON_OOM_HOST, "OOM_HOST", ZT_RETRY_COUNTED},
    {ZT_REASON_CKPT_ERROR, "CKPT_ERROR", ZT_RETRY_COUNTED},
    {ZT_REASON_KILLED, "KILLED", ZT_RETRY_FREE},
    {ZT_REASON_WORKER_LOST, "WORKER_LOST", ZT_RETRY_FREE},
    {ZT_REASON_HANG, "HANG", ZT_RETRY_FREE},
    {ZT_REASON_COMM_ERROR, "COMM_ERROR", ZT_RETRY_FREE},
    {ZT_REASON_COMM_INIT_TIMEOUT, "COMM_INIT_TIMEOUT", ZT_RETRY_FREE},
    {ZT_REASON_START_TIMEOUT, "START_TIMEOUT", ZT_RETRY_FREE},
    {ZT_REASON_PREEMPTED, "PREEMPTED", ZT_RETRY_FREE},
    {ZT_REASON_DRAINED, "DRAINED", ZT_RETRY_FREE},
    {ZT_REASON_COORDINATOR_RESTART, "COORDINATOR_RESTART", ZT_RETRY_FREE},
    {ZT_REASON_CKPT_CORRUPT, "CKPT_CORRUPT", ZT_RETRY_FREE},
    /* A consequence never decides on its own; should it be all that is known, try again. */
    {ZT_REASON_PEER_LOST, "PEER_LOST", ZT_RETRY_FREE},
    {ZT_REASON_COMM_TIMEOUT, "COMM_TIMEOUT", ZT_RETRY_FREE},
    {ZT_REASON_USER_CANCEL, "USER_CANCEL", ZT_RETRY_NEVER},
    {ZT_REASON_TIME_LIMIT, "TIME_LIMIT", ZT_RETRY_NEVER},
    {ZT_REASON_NO_PROGRESS, "NO_PROGRESS", ZT_RETRY_NEVER},
    {ZT_REASON_MAX_RESTARTS, "MAX_RESTARTS", ZT_RETRY_NEVER},
    {ZT_REASON_QUEUE_TIMEOUT, "QUEUE_TIMEOUT", ZT_RETRY_NEVER},
};

static const struct row *find(enum zt_reason r) {
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].reason == r)
            return &rows[i];
    return NULL;
}

/* A value outside the list (a newer peer's) still prints; the text lives per thread. */
const char *zt_reason_name(enum zt_reason r) {
    static _Thread_local char unknown[32];
    const struct row *row = find(r);
    if (row)
        return row->name;
    snprintf(unknown, sizeof unknown, "UNKNOWN(%d)", (int)r);
    return unknown;
}

enum zt_reason zt_reason_find(const char *name) {
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].reason;
    return ZT_REASON_NONE;
}

enum zt_retry zt_reason_retry(enum zt_reason r) {
    const struct row *row = find(r);
    return row ? row->retry : ZT_RETRY_NEVER;
}

int zt_reason_is_consequence(enum zt_reason r) {
    return r == ZT_REASON_PEER_LOST || r == ZT_REASON_COMM_TIMEOUT;
}
