/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/children.h: the daemons that `zctl run` starts for itself. Each runs in its own process
 * group (Ctrl-C reaches zctl only), gets SIGKILL when zctl dies, and writes to a log file.
 * Single-threaded: PR_SET_PDEATHSIG is tied to the thread that forks. */
#ifndef ZT_ZCTL_CHILDREN_H
#define ZT_ZCTL_CHILDREN_H
#include <stdbool.h>
#include <sys/types.h>
#include "core/error.h"

#define ZT_CHILD_ARGS 24
struct zt_child {
    pid_t pid;               /* 0: not running */
    char program[4096];
    char log[4096];          /* stderr, and stdout where out_fd is not wanted */
    char *argv[ZT_CHILD_ARGS];
    char word[ZT_CHILD_ARGS][512]; /* where argv points */
    int argc;
    const char *env_name, *env_value; /* one variable more; NULL: none */
    double started;          /* zt_now() */
    int quick_deaths;        /* in a row, within a second of the start */
    int restarts;
};

/* The program beside this one, in the build tree's folder `room`, or in PATH. */
int zt_child_program(const char *name, const char *room, char *path, size_t n, struct zt_error *err);
void zt_child_arg(struct zt_child *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* out_fd: reading end of its stdout, or NULL: stdout goes to the log. */
int zt_child_start(struct zt_child *c, int *out_fd, struct zt_error *err);
/* True when it has ended since the last look; *status as of waitpid. */
bool zt_child_ended(struct zt_child *c, int *status);
/* SIGTERM, then SIGKILL after `seconds`; returns when it is gone. 0: SIGKILL at once. */
void zt_child_stop(struct zt_child *c, double seconds);
/* The last lines of its log into buf, for messages. */
const char *zt_child_tail(const struct zt_child *c, char *buf, size_t n);
/* "exit 3", "signal 9". */
const char *zt_child_status(int status, char *buf, size_t n);

#endif
