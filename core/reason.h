/* SPDX-License-Identifier: Apache-2.0 */
/* core/reason.h: the closed list of reasons for which a generation, a run or a rank ends, and
 * whether each is retried. Values are stored in the database and sent on the wire: never reuse. */
#ifndef ZT_CORE_REASON_H
#define ZT_CORE_REASON_H

enum zt_reason {
    ZT_REASON_NONE = 0,
    /* never retried */
    ZT_REASON_CONFIG_ERROR = 1, ZT_REASON_VERSION_MISMATCH = 2, ZT_REASON_NAN_LOSS = 3,
    ZT_REASON_OOM_DEVICE = 4, ZT_REASON_DATA_ERROR = 5, ZT_REASON_REPLICA_DIVERGED = 6,
    /* retried, counted against restart.max_restarts */
    ZT_REASON_EXIT_NONZERO = 10, ZT_REASON_SIGNAL = 11, ZT_REASON_OOM_HOST = 12,
    ZT_REASON_CKPT_ERROR = 13,
    /* retried, not counted */
    ZT_REASON_KILLED = 20,      /* SIGNAL (KILL) from outside */
    ZT_REASON_WORKER_LOST = 21, ZT_REASON_HANG = 22, ZT_REASON_COMM_ERROR = 23,
    ZT_REASON_COMM_INIT_TIMEOUT = 24, ZT_REASON_START_TIMEOUT = 25, ZT_REASON_PREEMPTED = 26,
    ZT_REASON_DRAINED = 27, ZT_REASON_COORDINATOR_RESTART = 28, ZT_REASON_CKPT_CORRUPT = 29, /* the next older one is tried */
    /* consequences: never the cause of a generation's end when a cause is known */
    ZT_REASON_PEER_LOST = 30, ZT_REASON_COMM_TIMEOUT = 31,
    /* ends decided by people or limits */
    ZT_REASON_USER_CANCEL = 40, ZT_REASON_TIME_LIMIT = 41, ZT_REASON_NO_PROGRESS = 42,
    ZT_REASON_MAX_RESTARTS = 43, ZT_REASON_QUEUE_TIMEOUT = 44,
};
enum zt_retry { ZT_RETRY_NEVER, ZT_RETRY_COUNTED, ZT_RETRY_FREE };

const char *zt_reason_name(enum zt_reason r);     /* "OOM_DEVICE"; "UNKNOWN(n)" never NULL */
enum zt_reason zt_reason_find(const char *name);  /* NONE when unknown */
enum zt_retry zt_reason_retry(enum zt_reason r);
int zt_reason_is_consequence(enum zt_reason r);

#endif
