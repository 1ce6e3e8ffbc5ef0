/* SPDX-License-Identifier: Apache-2.0 */
/* core/sys.c: the real table, the table that fails its Nth file call, and whole-file helpers on top
 * of any table. Buffers handed out are malloc'ed and belong to the caller. Any thread. */
#include "core/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the real one ---- */

static int posix_open(void *arg, const char *path, int flags, mode_t mode) {
    (void)arg;
    for (;;) {
        int fd = open(path, flags | O_CLOEXEC, mode);
        if (fd >= 0) return fd;
        if (errno != EINTR) return -errno;
    }
}

/* By the kernel (openat2); one that is too old for it: names without a slash alone, and no links at all. */
static int posix_open_beneath(void *arg, const char *folder, const char *name, int flags) {
    struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int at = posix_open(arg, folder, O_PATH | O_DIRECTORY, 0);
    if (at < 0) return at;
    long fd;
    do
        fd = syscall(SYS_openat2, at, name, &how, sizeof how);
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
        if (strchr(name, '/') || strcmp(name, "..") == 0)
            errno = EXDEV;
        else
            fd = openat(at, name, flags | O_CLOEXEC | O_NOFOLLOW);
    }
    const int rc = fd >= 0 ? (int)fd : -errno;
    close(at);
    return rc;
}

static ssize_t posix_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    (void)arg;
    for (;;) {
        ssize_t got = pread(fd, buf, n, at);
        if (got >= 0) return got;
        if (errno != EINTR) return -errno;
    }
}

static ssize_t posix_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    (void)arg;
    for (;;) {
        ssize_t put = pwrite(fd, buf, n, at);
        if (put >= 0) return put;
        if (errno != EINTR) return -errno;
    }
}

static int posix_fsync(void *arg, int fd) {
    (void)arg;
    for (;;) {
        if (fsync(fd) == 0) return 0;
        if (errno != EINTR) return -errno;
    }
}

static int posix_close(void *arg, int fd) {
    (void)arg;
    /* Linux frees the descriptor even when close is interrupted: never again. */
    return close(fd) == 0 || errno == EINTR ? 0 : -errno;
}

static int posix_rename(void *arg, const char *from, const char *to) {
    (void)arg;
    return rename(from, to) == 0 ? 0 : -errno;
}

static int posix_unlink(void *arg, const char *path) {
    (void)arg;
    return unlink(path) == 0 ? 0 : -errno;
}

static int posix_mkdir(void *arg, const char *path, mode_t mode) {
    (void)arg;
    return mkdir(path, mode) == 0 ? 0 : -errno;
}

static int posix_fstat(void *arg, int fd, struct stat *st) {
    (void)arg;
    return fstat(fd, st) == 0 ? 0 : -errno;
}

static int posix_rmdir(void *arg, const char *path) {
    (void)arg;
    return rmdir(path) == 0 ? 0 : -errno;
}

static int posix_fstatvfs(void *arg, int fd, struct statvfs *st) {
    (void)arg;
    return fstatvfs(fd, st) == 0 ? 0 : -errno;
}

static int posix_fadvise_(void *arg, int fd, off_t at, off_t n, int advice) {
    (void)arg;
    return -posix_fadvise(fd, at, n, advice);
}

static int posix_list(void *arg, const char *path, int (*entry)(void *ctx, const char *name), void *ctx) {
    (void)arg;
    DIR *d = opendir(path);
    int rc = d ? 0 : -errno;
    while (rc == 0) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            rc = -errno;
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) rc = entry(ctx, e->d_name);
    }
    if (d) closedir(d);
    return rc;
}

static int64_t read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t); /* cannot fail for the two clocks used here */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t posix_monotonic(void *arg) {
    (void)arg;
    return read_clock(CLOCK_MONOTONIC);
}

static int64_t posix_wall(void *arg) {
    (void)arg;
    return read_clock(CLOCK_REALTIME);
}

static int posix_random(void *arg, void *buf, size_t n) {
    (void)arg;
    char *p = buf;
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno != EINTR) return -errno;
        if (got > 0) {
            p += got;
            n -= (size_t)got;
        }
    }
    return 0;
}

const struct zt_sys zt_sys_posix = {
    .open = posix_open,
    .open_beneath = posix_open_beneath,
    .pread = posix_pread,
    .pwrite = posix_pwrite,
    .fsync = posix_fsync,
    .close = posix_close,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .mkdir = posix_mkdir,
    .fstat = posix_fstat,
    .rmdir = posix_rmdir,
    .fstatvfs = posix_fstatvfs,
    .fadvise = posix_fadvise_,
    .list = posix_list,
    .monotonic_ns = posix_monotonic,
    .wall_ns = posix_wall,
    .random = posix_random,
};

/* ---- fail the Nth file call ---- */

/* 0: go on; else the negative error to return. */
static int nth_hit(struct zt_sys_nth *s) {
    int64_t call = __atomic_add_fetch(&s->calls, 1, __ATOMIC_RELAXED);
    return call == s->fail_at ? -s->error : 0;
}

static int nth_open(void *arg, const char *path, int flags, mode_t mode) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->open(s->real->arg, path, flags, mode);
}

static int nth_open_beneath(void *arg, const char *folder, const char *name, int flags) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->open_beneath(s->real->arg, folder, name, flags);
}

static ssize_t nth_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->pread(s->real->arg, fd, buf, n, at);
}

static ssize_t nth_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->pwrite(s->real->arg, fd, buf, n, at);
}

static int nth_fsync(void *arg, int fd) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->fsync(s->real->arg, fd);
}

static int nth_close(void *arg, int fd) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    /* A failing close still gives the descriptor back, as the kernel does. */
    int real = s->real->close(s->real->arg, fd);
    return rc ? rc : real;
}

static int nth_rename(void *arg, const char *from, const char *to) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->rename(s->real->arg, from, to);
}

static int nth_unlink(void *arg, const char *path) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->unlink(s->real->arg, path);
}

static int nth_mkdir(void *arg, const char *path, mode_t mode) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->mkdir(s->real->arg, path, mode);
}

static int nth_fstat(void *arg, int fd, struct stat *st) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->fstat(s->real->arg, fd, st);
}

static int nth_rmdir(void *arg, const char *path) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->rmdir(s->real->arg, path);
}

static int nth_fstatvfs(void *arg, int fd, struct statvfs *st) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->fstatvfs(s->real->arg, fd, st);
}

static int nth_fadvise(void *arg, int fd, off_t at, off_t n, int advice) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->fadvise(s->real->arg, fd, at, n, advice);
}

static int nth_list(void *arg, const char *path, int (*entry)(void *ctx, const char *name), void *ctx) {
    struct zt_sys_nth *s = arg;
    int rc = nth_hit(s);
    return rc ? rc : s->real->list(s->real->arg, path, entry, ctx);
}

static int64_t nth_monotonic(void *arg) {
    struct zt_sys_nth *s = arg;
    return s->real->monotonic_ns(s->real->arg);
}

static int64_t nth_wall(void *arg) {
    struct zt_sys_nth *s = arg;
    return s->real->wall_ns(s->real->arg);
}

static int nth_random(void *arg, void *buf, size_t n) {
    struct zt_sys_nth *s = arg;
    return s->real->random(s->real->arg, buf, n);
}

struct zt_sys zt_sys_fail_nth(struct zt_sys_nth *state) {
    return (struct zt_sys){
        .arg = state,
        .open = nth_open,
        .open_beneath = nth_open_beneath,
        .pread = nth_pread,
        .pwrite = nth_pwrite,
        .fsync = nth_fsync,
        .close = nth_close,
        .rename = nth_rename,
        .unlink = nth_unlink,
        .mkdir = nth_mkdir,
        .fstat = nth_fstat,
        .rmdir = nth_rmdir,
        .fstatvfs = nth_fstatvfs,
        .fadvise = nth_fadvise,
        .list = nth_list,
        .monotonic_ns = nth_monotonic,
        .wall_ns = nth_wall,
        .random = nth_random,
    };
}

/* ---- whole files ---- */

ssize_t zt_sys_pread_all(const struct zt_sys *sys, int fd, void *buf, size_t n, int64_t at) {
    size_t have = 0;
    while (have < n) {
        ssize_t got = sys->pread(sys->arg, fd, (char *)buf + have, n - have, (off_t)(at + (int64_t)have));
        if (got < 0) return got;
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

int zt_sys_pwrite_all(const struct zt_sys *sys, int fd, const void *buf, size_t n, int64_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t put = sys->pwrite(sys->arg, fd, (const char *)buf + done, n - done, (off_t)(at + (int64_t)done));
        if (put < 0) return (int)put;
        if (put == 0) return -EIO; /* a write of nothing would repeat for ever */
        done += (size_t)put;
    }
    return 0;
}

/* Reads to the end of fd whatever fstat says: files in /proc and growing files have no fixed size.
 */
static int read_all(const struct zt_sys *sys, int fd, size_t max, char **data, size_t *n) {
    size_t have = 0, room = max < 4096 ? max + 1 : 4096;
    char *buf = malloc(room + 1);
    if (!buf) return -ENOMEM;
    for (;;) {
        if (have == room) {
            if (have > max) {
                free(buf);
                return -EFBIG;
            }
            size_t more = room > max / 2 ? max + 1 : room * 2;
            char *bigger = realloc(buf, more + 1);
            if (!bigger) {
                free(buf);
                return -ENOMEM;
            }
            buf = bigger;
            room = more;
        }
        ssize_t got = sys->pread(sys->arg, fd, buf + have, room - have, (off_t)have);
        if (got < 0) {
            free(buf);
            return (int)got;
        }
        if (got == 0) break;
        have += (size_t)got;
    }
    buf[have] = '\0';
    *data = buf;
    *n = have;
    return 0;
}

int zt_sys_read_file(const struct zt_sys *sys, const char *path, size_t max, char **data,
                     size_t *n) {
    *data = NULL;
    *n = 0;
    if (max >= SIZE_MAX - 2) max = SIZE_MAX - 3;
    int fd = sys->open(sys->arg, path, O_RDONLY, 0);
    if (fd < 0) return fd;
    int rc = read_all(sys, fd, max, data, n);
    sys->close(sys->arg, fd); /* nothing was written: its result says nothing */
    return rc;
}

int zt_sys_fsync_folder(const struct zt_sys *sys, const char *path) {
    int fd = sys->open(sys->arg, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fd;
    int rc = sys->fsync(sys->arg, fd);
    int closed = sys->close(sys->arg, fd);
    return rc ? rc : closed;
}

/* malloc'ed; NULL: no memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static int sync_folder_of(const struct zt_sys *sys, const char *path) {
    char *folder = folder_of(path);
    if (!folder) return -ENOMEM;
    int rc = zt_sys_fsync_folder(sys, folder);
    free(folder);
    return rc;
}

int zt_sys_make_folders(const struct zt_sys *sys, const char *path, mode_t mode) {
    char copy[4096];
    const size_t n = strlen(path);
    if (n == 0 || n >= sizeof copy) return -ENAMETOOLONG;
    memcpy(copy, path, n + 1);
    for (size_t end = n; end > 1 && copy[end - 1] == '/'; end--) copy[end - 1] = '\0';
    const size_t whole = strlen(copy);
    size_t at = whole;
    int rc; /* down to the first folder that can be made, or is there, then up again */
    while ((rc = sys->mkdir(sys->arg, copy, mode)) == -ENOENT) {
        while (at > 0 && copy[at - 1] != '/') at--;
        while (at > 1 && copy[at - 1] == '/') at--;
        if (at == 0 || (at == 1 && copy[0] == '/')) return rc;
        copy[at] = '\0';
    }
    for (;;) {
        if (rc == 0) rc = sync_folder_of(sys, copy);
        if (rc != 0 && rc != -EEXIST) return rc;
        if (at == whole) return 0;
        copy[at] = '/';
        at = strlen(copy);
        rc = sys->mkdir(sys->arg, copy, mode);
    }
}

int zt_sys_write_atomic(const struct zt_sys *sys, const char *path, const void *data, size_t n,
                        mode_t mode) {
    /* One temp name per process and call, so that two writers never share one. */
    static uint64_t serial;
    uint64_t mine = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
    char *temp = NULL;
    if (asprintf(&temp, "%s.tmp-%ld-%llu", path, (long)getpid(), (unsigned long long)mine) < 0)
        return -ENOMEM;
    int fd = sys->open(sys->arg, temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode);
    int rc = fd < 0 ? fd : 0;
    if (rc == 0) {
        rc = zt_sys_pwrite_all(sys, fd, data, n, 0);
        if (rc == 0) rc = sys->fsync(sys->arg, fd);
        int closed = sys->close(sys->arg, fd);
        rc = rc ? rc : closed;
        if (rc == 0) rc = sys->rename(sys->arg, temp, path);
        if (rc != 0) sys->unlink(sys->arg, temp);
    }
    free(temp);
    return rc ? rc : sync_folder_of(sys, path);
}
