/* SPDX-License-Identifier: Apache-2.0 */
/* worker/child.h: starting a trainer process and telling how it ended. The child leads its own process
 * group, dies with its supervisor (PR_SET_PDEATHSIG), and has exactly the descriptors 0 /dev/null, 1 and
 * 2 pipes, 3 its end of the frame channel, 4 the progress mapping. */
#ifndef ZT_WORKER_CHILD_H
#define ZT_WORKER_CHILD_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "core/error.h"
#include "core/reason.h"
#include "engine/report.h"

#define ZW_CHANNEL_FD 3
#define ZW_PROGRESS_FD 4

struct zw_child {
    pid_t pid;
    int channel, out, err;        /* our ends; the caller closes them */
    struct zt_progress *progress; /* mapping of progress_bytes */
    size_t progress_bytes;
    int64_t oom_before;           /* kernel's count of out-of-memory kills, -1 = not known */
};
/* command NULL: this program itself. */
int zw_child_spawn(const char *command, int64_t log_entries, struct zw_child *c, struct zt_error *err);
void zw_child_unmap(struct zw_child *c);
/* Out-of-memory kills of this control group so far, else of the machine; -1 = not known. */
int64_t zw_oom_kills(void);

/* What an exit status means (reliability: closed list of reasons). status is waitpid's. */
struct zw_verdict { enum zt_reason reason; int exit_code, signal; char text[256]; };
void zw_verdict_of(int status, bool oom_rose, struct zw_verdict *v);
/* The exit code by which a trainer says why it ends: 0, 75 retry, 78 configuration, 93 do not start again. */
int zw_exit_code(enum zt_reason reason);
int64_t zw_rss_bytes(pid_t pid); /* -1 = not known */

#endif
