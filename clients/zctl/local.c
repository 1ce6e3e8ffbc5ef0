/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/local.c: see local.h. */
#include "clients/zctl/local.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "clients/zctl/cmd.h"
#include "core/units.h"

/* ---------------------------------------------------------------------------------- state folder */

int zt_make_folders(const char *path, struct zt_error *err) {
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char c = *p;
        *p = '\0';
        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
            return zt_fail(err, ZT_EIO, "cannot make the folder %s: %s", copy, strerror(errno));
        *p = c;
        if (c == '\0')
            return 0;
    }
}

/* 0 and the lock's descriptor in *fd; ZT_ECONFLICT when another zctl run has the folder. */
static int lock_folder(const char *dir, int *fd, struct zt_error *err) {
    char path[1100];
    int rc = zt_make_folders(dir, err);
    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/zctl-run.lock", dir);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return zt_fail(err, ZT_EIO, "cannot write %s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    close(*fd);
    *fd = -1;
    return zt_fail(err, ZT_ECONFLICT, "another zctl run uses the folder %s; give another with --state", dir);
}

int zt_local_base(char *out, size_t n, struct zt_error *err) {
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int m = -1;
    if (xdg && xdg[0] == '/')
        m = snprintf(out, n, "%s/ztrain/local", xdg);
    else if (home && home[0] == '/')
        m = snprintf(out, n, "%s/.local/state/ztrain/local", home);
    else
        return zt_fail(err, ZT_EINVAL, "no state folder: HOME is not set; give --state DIR");
    return m > 0 && (size_t)m < n ? 0 : zt_fail(err, ZT_EINVAL, "the state folder's path is too long");
}

/* A worker's name is unique on its host, whatever coordinator it belongs to: the short ones are for
 * the one place where a user's runs are by default, whatever HOME says. */
static bool home_folder(const char *base) {
    const struct passwd *user = getpwuid(getuid());
    char path[900];
    int m = user ? snprintf(path, sizeof path, "%s/.local/state/ztrain/local", user->pw_dir) : -1;
    return m > 0 && (size_t)m < sizeof path && !strcmp(base, path);
}

static int take_folder(struct zt_local *l, const char *state, struct zt_error *err) {
    char base[900];
    int rc;
    if (state) {
        char full[4096];
        rc = strlen(state) < sizeof base ? zt_make_folders(state, err)
                                               : zt_fail(err, ZT_EINVAL, "--state is too long");
        if (rc == 0 && (!realpath(state, full) || strlen(full) >= sizeof base))
            rc = zt_fail(err, ZT_EINVAL, "--state %s: %s", state, strerror(errno));
        if (rc)
            return rc;
        memcpy(l->dir, full, strlen(full) + 1);
        snprintf(l->prefix, sizeof l->prefix, "local-%08x", XXH32(full, strlen(full), 0));
        return lock_folder(l->dir, &l->lock, err);
    }
    rc = zt_local_base(base, sizeof base, err);
    for (int i = 1; rc == 0 && i <= 64; i++) {
        if (i == 1)
            snprintf(l->dir, sizeof l->dir, "%s", base);
        else
            snprintf(l->dir, sizeof l->dir, "%s-%d", base, i);
        if (!home_folder(base))
            snprintf(l->prefix, sizeof l->prefix, "local-%08x", XXH32(l->dir, strlen(l->dir), 0));
        else
            snprintf(l->prefix, sizeof l->prefix, i == 1 ? "local" : "local%d", i);
        rc = lock_folder(l->dir, &l->lock, err);
        if (rc != ZT_ECONFLICT)
            return rc;
        rc = 0;
    }
    return rc ? rc : zt_fail(err, ZT_ECONFLICT, "64 runs at once; give a folder of its own with --state");
}

int zt_local_prepare(struct zt_local *l, const char *state, struct zt_error *err) {
    char room[4096];
    l->lock = l->coord_out = -1;
    l->worker = calloc((size_t)l->workers, sizeof *l->worker);
    if (!l->worker)
        return zt_fail(err, ZT_ENOMEM, "no memory for %d workers", l->workers);
    int rc = zt_child_program("zcoord", "coordinator", l->coord.program, sizeof l->coord.program, err);
    if (rc == 0)
        rc = zt_child_program("zworker", "worker", room, sizeof room, err);
    if (rc == 0)
        rc = take_folder(l, state, err);
    if (rc)
        return rc;
    snprintf(l->token_path, sizeof l->token_path, "%s/token", l->dir);
    snprintf(l->coord.log, sizeof l->coord.log, "%s/zcoord.log", l->dir);
    for (int i = 0; i < l->workers; i++) {
        memcpy(l->worker[i].program, room, sizeof room);
        snprintf(l->worker[i].log, sizeof l->worker[i].log, "%s/zworker-%d.log", l->dir, i);
        unlink(l->worker[i].log);
    }
    unlink(l->coord.log);
    return 0;
}

/* ---------------------------------------------------------------------------------- daemons */

/* Its first line says where it listens. */
static int read_port(struct zt_local *l, struct zt_error *err) {
    char line[256] = "", tail[800], how[32];
    size_t n = 0;
    int status = 0;
    double end = zt_now() + 60;
    while (!strchr(line, '\n') && n + 1 < sizeof line) {
        struct pollfd p = {l->coord_out, POLLIN, 0};
        ssize_t got = poll(&p, 1, 100) > 0 ? read(l->coord_out, line + n, sizeof line - 1 - n) : -1;
        n += got > 0 ? (size_t)got : 0;
        line[n] = '\0';
        if (zt_interrupts() > 0)
            return zt_fail(err, ZT_ECANCELLED, "interrupted before the run was submitted");
        if (got == 0) { /* it closed its output: it is about to end */
            zt_child_stop(&l->coord, 2);
            return zt_fail(err, ZT_EIO, "zcoord did not start:\n%s",
                           zt_child_tail(&l->coord, tail, sizeof tail));
        }
        if (zt_child_ended(&l->coord, &status))
            return zt_fail(err, ZT_EIO, "zcoord did not start (%s):\n%s",
                           zt_child_status(status, how, sizeof how),
                           zt_child_tail(&l->coord, tail, sizeof tail));
        if (zt_now() > end)
            return zt_fail(err, ZT_EIO, "zcoord did not say where it listens; see %s", l->coord.log);
    }
    if (sscanf(line, "listening on 127.0.0.1:%d", &l->port) != 1)
        return zt_fail(err, ZT_EPROTO, "zcoord's first line is \"%s\"; are zctl and zcoord of one version?", line);
    return 0;
}

int zt_local_start_coord(struct zt_local *l, struct zt_error *err) {
    l->coord.argc = 0;
    zt_child_arg(&l->coord, "zcoord");
    zt_child_arg(&l->coord, "serve");
    zt_child_arg(&l->coord, "--listen");
    zt_child_arg(&l->coord, "127.0.0.1:%d", l->port);
    zt_child_arg(&l->coord, "--state");
    zt_child_arg(&l->coord, "%s", l->dir);
    if (l->coord_out >= 0)
        close(l->coord_out);
    l->coord_out = -1;
    int rc = zt_child_start(&l->coord, &l->coord_out, err);
    return rc ? rc : read_port(l, err);
}

/* This machine's share for each worker: half of what is available, as the workers themselves do. */
double zt_memory_share(int workers) {
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    int64_t bytes = (int64_t)kib * 1024 / 2 / workers;
    return (double)(bytes / (int64_t)(2 * ZT_MIB) * (int64_t)(2 * ZT_MIB)) / (double)ZT_GIB;
}

static int start_worker(struct zt_local *l, int i, struct zt_error *err) {
    struct zt_child *c = &l->worker[i];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long threads = l->threads > 0 ? l->threads : cores / l->workers > 1 ? cores / l->workers : 1;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s/worker-%d", l->dir, i);
    int rc = zt_make_folders(folder, err);
    if (rc)
        return rc;
    c->argc = 0;
    zt_child_arg(c, "zworker");
    zt_child_arg(c, "--coord");
    zt_child_arg(c, "127.0.0.1:%d", l->port);
    zt_child_arg(c, "--name");
    zt_child_arg(c, "%s-%d", l->prefix, i);
    zt_child_arg(c, "--state");
    zt_child_arg(c, "%s", folder);
    zt_child_arg(c, "--threads");
    zt_child_arg(c, "%ld", threads);
    if (l->gib > 0) {
        zt_child_arg(c, "--memory-gib");
        zt_child_arg(c, "%.17g", l->gib); /* to the byte */
    }
    c->env_name = "ZTRAIN_TOKEN_FILE";
    c->env_value = l->token_path;
    return zt_child_start(c, NULL, err);
}

/* Starts again what has died; fails when it dies at once, again and again. */
int zt_local_mind_one(struct zt_local *l, int i, struct zt_error *err) {
    struct zt_child *c = i < 0 ? &l->coord : &l->worker[i];
    const char *name = i < 0 ? "zcoord" : "zworker";
    int status;
    char how[32], tail[800];
    if (!zt_child_ended(c, &status))
        return 0;
    zt_child_status(status, how, sizeof how);
    if (c->quick_deaths >= 3 || ++c->restarts > 1000)
        return zt_fail(err, ZT_EIO, "%s keeps ending at once (%s); the end of %s:\n%s", name, how, c->log,
                       zt_child_tail(c, tail, sizeof tail));
    if (l->before_message)
        l->before_message(l->arg);
    fprintf(stderr, "zctl: %s %s ended (%s); starting it again\n", name, i < 0 ? "" : c->word[4], how);
    return i < 0 ? zt_local_start_coord(l, err) : start_worker(l, i, err);
}

int zt_local_start_workers(struct zt_local *l, struct zt_error *err) {
    int rc = 0;
    for (int i = 0; rc == 0 && i < l->workers; i++)
        rc = start_worker(l, i, err);
    return rc;
}

int zt_local_mind(struct zt_local *l, struct zt_error *err) {
    int rc = zt_local_mind_one(l, -1, err);
    for (int i = 0; rc == 0 && i < l->workers; i++)
        rc = zt_local_mind_one(l, i, err);
    return rc;
}

void zt_local_stop(struct zt_local *l) {
    for (int i = 0; l->worker && i < l->workers; i++)
        if (l->worker[i].pid > 0)
            kill(l->worker[i].pid, SIGTERM);
    for (int i = 0; l->worker && i < l->workers; i++)
        zt_child_stop(&l->worker[i], 10);
    zt_child_stop(&l->coord, 10);
    if (l->coord_out >= 0)
        close(l->coord_out);
    l->coord_out = -1;
    free(l->worker);
    l->worker = NULL;
    if (l->lock >= 0)
        close(l->lock);
    l->lock = -1;
}
