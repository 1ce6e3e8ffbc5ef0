/* SPDX-License-Identifier: Apache-2.0 */
/* core/sys.h: the seams to the outside world: files, clock and random bytes behind small tables, so
 * that tests can fail the Nth call, lose power or run on a seeded clock (decision D39).
 *
 * Everything that touches a file that must survive, a time-out or a secret goes through these
 * tables. The tables are passed explicitly; zt_sys_posix is the real one. Implementations must be
 * callable from any thread. */
#ifndef ZT_CORE_SYS_H
#define ZT_CORE_SYS_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

struct zt_sys {
    void *arg; /* first argument of every function */
    /* files; return like the system calls: >= 0 or -errno */
    int (*open)(void *arg, const char *path, int flags, mode_t mode);
    /* `name` under `folder` and nowhere else: a name or a link that leads out of it is -EXDEV or -ELOOP */
    int (*open_beneath)(void *arg, const char *folder, const char *name, int flags);
    ssize_t (*pread)(void *arg, int fd, void *buf, size_t n, off_t at);
    ssize_t (*pwrite)(void *arg, int fd, const void *buf, size_t n, off_t at);
    int (*fsync)(void *arg, int fd);
    int (*close)(void *arg, int fd);
    int (*rename)(void *arg, const char *from, const char *to);
    int (*unlink)(void *arg, const char *path);
    int (*mkdir)(void *arg, const char *path, mode_t mode);
    int (*fstat)(void *arg, int fd, struct stat *st);
    int (*rmdir)(void *arg, const char *path);
    int (*fstatvfs)(void *arg, int fd, struct statvfs *st);
    int (*fadvise)(void *arg, int fd, off_t at, off_t n, int advice); /* POSIX_FADV_...; a hint */
    /* Calls entry with every name in a folder but "." and "..", in no order; what is not 0 ends it and
     * is returned. */
    int (*list)(void *arg, const char *path, int (*entry)(void *ctx, const char *name), void *ctx);
    /* clock */
    int64_t (*monotonic_ns)(void *arg); /* CLOCK_MONOTONIC: every time-out and interval */
    int64_t (*wall_ns)(void *arg);      /* CLOCK_REALTIME: for display only */
    /* random bytes from the kernel; 0 or -errno */
    int (*random)(void *arg, void *buf, size_t n);
};

extern const struct zt_sys zt_sys_posix;

/* A table that passes on to `real` but makes call number `fail_at` (1-based, counted over all file
 * calls) return -error; *calls counts. The struct must outlive the table. */
struct zt_sys_nth { const struct zt_sys *real; int64_t calls, fail_at; int error; };
struct zt_sys zt_sys_fail_nth(struct zt_sys_nth *state);

/* All n bytes, whatever comes short; reading: fewer at the end of the file. */
ssize_t zt_sys_pread_all(const struct zt_sys *sys, int fd, void *buf, size_t n, int64_t at);
int zt_sys_pwrite_all(const struct zt_sys *sys, int fd, const void *buf, size_t n, int64_t at);
/* Makes a folder's entries durable. */
int zt_sys_fsync_folder(const struct zt_sys *sys, const char *path);
/* Makes a folder and what is missing above it; the entries of what was made are durable. */
int zt_sys_make_folders(const struct zt_sys *sys, const char *path, mode_t mode);

/* Whole-file helpers on top of a table. zt_sys_write_atomic: temp, write, fsync, rename, fsync dir. */
int zt_sys_read_file(const struct zt_sys *sys, const char *path, size_t max, char **data, size_t *n);
int zt_sys_write_atomic(const struct zt_sys *sys, const char *path, const void *data, size_t n,
                        mode_t mode);

/* Failpoints: ZT_FAIL="name:action[,name:action]" in builds with -Dfailpoints=true; action is
 * kill | stop | exit=N | sleep=MS | error (zt_failpoint returns 1) | nth=K:ACTION (only the K-th
 * hit). With ZT_FAIL_ONCE=FILE the first process that comes to an action makes the file, and no other
 * acts: of processes that are started again with the same variables. Costs nothing otherwise. */
#ifdef ZT_FAILPOINTS
int zt_failpoint(const char *name);
#define ZT_FAILPOINT(name) zt_failpoint(name)
#else
#define ZT_FAILPOINT(name) 0
#endif

#endif
