/* SPDX-License-Identifier: Apache-2.0 */
/* worker/child.c: see child.h. */
#include "worker/child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/comm.h"

#define CHANNEL_BYTES (1 << 20) /* asked from the kernel for each direction; it may give less */

/* --------------------------------------------------------------------------- counting oom kills */

static int64_t oom_line(const char *path)
{
    char line[256];
    int64_t v, found = -1;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "oom_kill %" SCNd64, &v) == 1) {
            found = v;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

int64_t zw_oom_kills(void)
{
    char line[1024], path[1400];
    int64_t found = -1;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && found < 0 && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        controllers++;
        if (controllers[0] == '\0') {
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.events", group);
            found = oom_line(path);
        } else if (strstr(controllers, "memory")) {
            snprintf(path, sizeof(path), "/sys/fs/cgroup/memory%s/memory.oom_control", group);
            found = oom_line(path);
        }
    }
    if (f) {
        fclose(f);
    }
    return found >= 0 ? found : oom_line("/proc/vmstat");
}

int64_t zw_rss_bytes(pid_t pid)
{
    char path[64];
    int64_t pages = -1;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%*d %" SCNd64, &pages) != 1) {
            pages = -1;
        }
        fclose(f);
    }
    return pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
}

/* ------------------------------------------------------------------------------------- verdicts */

void zw_verdict_of(int status, bool oom_rose, struct zw_verdict *v)
{
    *v = (struct zw_verdict){.reason = ZT_REASON_EXIT_NONZERO, .exit_code = -1};
    if (WIFSIGNALED(status)) {
        v->signal = WTERMSIG(status);
        const char *name = sigabbrev_np(v->signal);
        if (v->signal == SIGKILL && oom_rose) {
            v->reason = ZT_REASON_OOM_HOST;
            snprintf(v->text, sizeof(v->text),
                     "the kernel killed the trainer because the host ran out of memory: lower --memory-gib "
                     "or start fewer workers here");
            return;
        }
        bool outside = v->signal == SIGKILL || v->signal == SIGTERM || v->signal == SIGINT ||
                       v->signal == SIGHUP || v->signal == SIGQUIT;
        v->reason = outside ? ZT_REASON_KILLED : ZT_REASON_SIGNAL;
        snprintf(v->text, sizeof(v->text), "the trainer was killed by SIG%s%s", name ? name : "?",
                 outside ? " from outside" : ": a fault of the program; its last output is in the log");
        return;
    }
    v->exit_code = WEXITSTATUS(status);
    switch (v->exit_code) {
    case 0:
        snprintf(v->text, sizeof(v->text), "the trainer exited 0 without saying that it was done");
        break;
    case 78:
        v->reason = ZT_REASON_CONFIG_ERROR;
        snprintf(v->text, sizeof(v->text), "the trainer found its configuration wrong (exit code 78)");
        break;
    case 85:
        v->reason = ZT_REASON_PREEMPTED;
        snprintf(v->text, sizeof(v->text), "the trainer was preempted (exit code 85)");
        break;
    case 93:
        v->reason = ZT_REASON_CONFIG_ERROR;
        snprintf(v->text, sizeof(v->text), "the trainer asks not to be started again (exit code 93)");
        break;
    case 127:
        snprintf(v->text, sizeof(v->text), "the trainer program could not be started (exit code 127)");
        break;
    default:
        snprintf(v->text, sizeof(v->text), "the trainer exited with code %d", v->exit_code);
    }
}

int zw_exit_code(enum zt_reason reason)
{
    switch (reason) {
    case ZT_REASON_NONE:
        return 0;
    case ZT_REASON_CONFIG_ERROR:
    case ZT_REASON_VERSION_MISMATCH:
        return 78;
    default:
        return zt_reason_retry(reason) == ZT_RETRY_NEVER ? 93 : 75;
    }
}

/* ------------------------------------------------------------------------------------- spawning */

static int make_progress(size_t bytes, void **map, struct zt_error *err)
{
    int fd = memfd_create("ztrain-progress", MFD_CLOEXEC);
    int rc = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes); /* never SIGBUS later */
    *map = MAP_FAILED;
    if (rc == 0) {
        *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        rc = *map == MAP_FAILED ? errno : 0;
    }
    if (rc) {
        if (fd >= 0) {
            close(fd);
        }
        return zt_fail(err, ZT_EIO, "cannot make the progress page: %s", strerror(rc));
    }
    return fd;
}

/* Between fork and exec: only calls that are safe there. */
static void child_run(const char *command, const int fds[5], pid_t parent)
{
    static char self[] = "/proc/self/exe", name[] = "zworker";
    static char flag1[] = "--trainer-fd", v1[] = "3", flag2[] = "--progress-fd", v2[] = "4", flag3[] = "--parent";
    char pid[16], *digit = pid + sizeof(pid) - 1;
    sigset_t none;
    int moved[5];
    *digit = '\0';
    for (pid_t p = parent; p > 0 || !*digit; p /= 10) {
        *--digit = (char)('0' + p % 10);
    }
    setpgid(0, 0);
    /* the parent may have died before this line: then its death signal never comes */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) {
        _exit(125);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 5; i++) { /* out of the way of 0..4 first */
        moved[i] = fcntl(fds[i], F_DUPFD, 16);
    }
    for (int i = 0; i < 5; i++) {
        if (moved[i] < 0 || dup2(moved[i], i) < 0) {
            _exit(126);
        }
    }
    close_range(5, ~0u, 0);
    char *argv[] = {name, flag1, v1, flag2, v2, flag3, digit, NULL};
    if (command) {
        execv(command, argv);
    } else {
        execv(self, argv);
    }
    _exit(127);
}

int zw_child_spawn(const char *command, int64_t log_entries, struct zw_child *c, struct zt_error *err)
{
    int pair[2] = {-1, -1}, out[2] = {-1, -1}, er[2] = {-1, -1}, null = -1, memfd = -1, rc = 0;
    int size = CHANNEL_BYTES;
    void *map = MAP_FAILED;
    memset(c, 0, sizeof(*c));
    c->pid = -1;
    c->progress_bytes = ZT_PROGRESS_RING + (log_entries > 0 ? zt_comm_log_bytes(log_entries) : 0);
    memfd = make_progress(c->progress_bytes, &map, err);
    if (memfd < 0) {
        return memfd;
    }
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) || pipe2(out, O_CLOEXEC) ||
        pipe2(er, O_CLOEXEC)) {
        rc = zt_fail(err, ZT_EIO, "cannot make the trainer's channels: %s", strerror(errno));
        goto fail;
    }
    for (int i = 0; i < 2; i++) {
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    }
    (void)fcntl(out[1], F_SETPIPE_SZ, size);
    (void)fcntl(er[1], F_SETPIPE_SZ, size);
    c->oom_before = zw_oom_kills();
    pid_t self = getpid();
    const int fds[5] = {null, out[1], er[1], pair[1], memfd};
    pid_t pid = fork();
    if (pid < 0) {
        rc = zt_fail(err, ZT_EIO, "cannot fork a trainer: %s", strerror(errno));
        goto fail;
    }
    if (pid == 0) {
        child_run(command, fds, self);
    }
    setpgid(pid, pid); /* here too: a kill of the group may come before the child has run */
    close(null);
    close(memfd);
    close(pair[1]);
    close(out[1]);
    close(er[1]);
    c->pid = pid;
    c->channel = pair[0];
    c->out = out[0];
    c->err = er[0];
    c->progress = map;
    return 0;
fail:
    for (int i = 0; i < 2; i++) {
        int all[3] = {pair[i], out[i], er[i]};
        for (int k = 0; k < 3; k++) {
            if (all[k] >= 0) {
                close(all[k]);
            }
        }
    }
    if (null >= 0) {
        close(null);
    }
    close(memfd);
    munmap(map, c->progress_bytes);
    return rc;
}

void zw_child_unmap(struct zw_child *c)
{
    if (c->progress) {
        munmap(c->progress, c->progress_bytes);
        c->progress = NULL;
    }
}
