/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/children.c: see children.h. */
#include "clients/zctl/children.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clients/zctl/source.h"

static bool runnable(const char *path) { return access(path, X_OK) == 0; }

static bool in_path(const char *name, char *path, size_t n) {
    const char *p = getenv("PATH");
    while (p && *p) {
        size_t len = strcspn(p, ":");
        int m = snprintf(path, n, "%.*s/%s", (int)len, p, name);
        if (len > 0 && m > 0 && (size_t)m < n && runnable(path))
            return true;
        p += len + (p[len] == ':');
    }
    return false;
}

int zt_child_program(const char *name, const char *room, char *path, size_t n, struct zt_error *err) {
    char self[3072];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len > 0) {
        self[len] = '\0';
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = '\0';
        int m = snprintf(path, n, "%s/%s", self, name);
        if (m > 0 && (size_t)m < n && runnable(path))
            return 0;
        m = snprintf(path, n, "%s/../../%s/%s", self, room, name);
        if (m > 0 && (size_t)m < n && runnable(path))
            return 0;
    }
    if (in_path(name, path, n))
        return 0;
    return zt_fail(err, ZT_EINVAL, "cannot find %s: put it beside zctl or into PATH", name);
}

void zt_child_arg(struct zt_child *c, const char *fmt, ...) {
    ZT_ASSERT(c->argc + 1 < ZT_CHILD_ARGS);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->word[c->argc], sizeof c->word[0], fmt, ap);
    va_end(ap);
    c->argv[c->argc] = c->word[c->argc];
    c->argv[++c->argc] = NULL;
}

/* In the child, after fork: only what is safe there. */
static void become(const struct zt_child *c, pid_t parent, int out, int log) {
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* zctl died in between */
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int in = open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0)
        _exit(127);
    if (in > 2)
        close(in);
    execv(c->program, c->argv);
    dprintf(2, "cannot run %s: %s\n", c->program, strerror(errno));
    _exit(127);
}

int zt_child_start(struct zt_child *c, int *out_fd, struct zt_error *err) {
    int p[2] = {-1, -1}, rc = 0;
    int log = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0)
        return zt_fail(err, ZT_EIO, "cannot write %s: %s", c->log, strerror(errno));
    if (out_fd && pipe2(p, O_CLOEXEC) < 0) {
        rc = zt_fail(err, ZT_EIO, "cannot make a pipe: %s", strerror(errno));
        goto out;
    }
    if (c->env_name)
        setenv(c->env_name, c->env_value, 1);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(c, parent, out_fd ? p[1] : log, log);
    if (pid < 0) {
        rc = zt_fail(err, ZT_EBUSY, "cannot start %s: %s", c->program, strerror(errno));
        goto out;
    }
    setpgid(pid, pid);
    c->pid = pid;
    c->started = zt_now();
    if (out_fd)
        *out_fd = p[0];
out:
    close(log);
    if (p[1] >= 0)
        close(p[1]);
    if (rc && p[0] >= 0)
        close(p[0]);
    return rc;
}

bool zt_child_ended(struct zt_child *c, int *status) {
    if (c->pid <= 0 || waitpid(c->pid, status, WNOHANG) != c->pid)
        return false;
    c->pid = 0;
    c->quick_deaths = zt_now() - c->started < 1 ? c->quick_deaths + 1 : 0;
    return true;
}

void zt_child_stop(struct zt_child *c, double seconds) {
    int status;
    double end = zt_now() + seconds;
    if (c->pid <= 0)
        return;
    kill(c->pid, seconds > 0 ? SIGTERM : SIGKILL);
    kill(c->pid, SIGCONT);
    while (!zt_child_ended(c, &status)) {
        if (zt_now() >= end)
            kill(c->pid, SIGKILL);
        zt_pause(0.01);
    }
}

const char *zt_child_tail(const struct zt_child *c, char *buf, size_t n) {
    int fd = open(c->log, O_RDONLY | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = size > (off_t)n - 1 ? size - ((off_t)n - 1) : 0;
    ssize_t got = fd >= 0 ? pread(fd, buf, n - 1, from) : 0;
    if (fd >= 0)
        close(fd);
    buf[got > 0 ? got : 0] = '\0';
    const char *line = from > 0 ? strchr(buf, '\n') : NULL; /* begin at a whole line */
    return line ? line + 1 : buf;
}

const char *zt_child_status(int status, char *buf, size_t n) {
    if (WIFSIGNALED(status))
        snprintf(buf, n, "signal %d", WTERMSIG(status));
    else
        snprintf(buf, n, "exit %d", WEXITSTATUS(status));
    return buf;
}
