/* SPDX-License-Identifier: Apache-2.0 */
/* worker/memory.c: see memory.h. The lock is the file `lock` in the folder, an open-file-description lock
 * (the trainer child does not inherit it: O_CLOEXEC). It is the last file removed; who has locked one that
 * is not there any more begins anew. */
#include "worker/memory.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define TRIES 200 /* of 5 ms: somebody is just removing it */

static bool is_tmpfs(const char *path)
{
    struct statfs s;
    return path && path[0] == '/' && statfs(path, &s) == 0 && s.f_type == TMPFS_MAGIC && access(path, W_OK) == 0;
}

static const char *default_base(void)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    return is_tmpfs("/dev/shm") ? "/dev/shm" : is_tmpfs(xdg) ? xdg : NULL;
}

static bool is_word(const char *s)
{
    bool ok = isalnum((unsigned char)s[0]);
    for (; *s && ok; s++) {
        ok = isalnum((unsigned char)*s) || *s == '.' || *s == '_' || *s == '-';
    }
    return ok;
}

static bool is_private(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0;
}

/* The lock file, locked; < 0: -errno, -EAGAIN when somebody else's lock is in the way or it was removed. */
static int lock_folder(const char *path, short type, int flags)
{
    char name[600];
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    struct stat ours, there;
    snprintf(name, sizeof(name), "%s/lock", path);
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0) {
        return errno == ENOENT ? -EAGAIN : -errno;
    }
    int e = fcntl(fd, F_OFD_SETLK, &lock) ? errno : 0;
    if (e == 0 && (fstat(fd, &ours) || lstat(name, &there) || ours.st_ino != there.st_ino)) {
        e = EAGAIN;
    }
    if (e) {
        close(fd);
        return e == EACCES ? -EAGAIN : -e;
    }
    return fd;
}

/* When nobody holds it. */
static bool remove_free(const char *path)
{
    int fd = lock_folder(path, F_WRLCK, O_CREAT);
    DIR *d = fd >= 0 ? opendir(path) : NULL;
    if (fd < 0) {
        return false;
    }
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, "lock") && e->d_name[0] != '.') {
            unlinkat(dirfd(d), e->d_name, 0);
        }
    }
    if (d) {
        unlinkat(dirfd(d), "lock", 0);
        closedir(d);
    }
    close(fd);
    return rmdir(path) == 0;
}

void zw_memory_init(struct zw_memory *m)
{
    *m = (struct zw_memory){.lock_fd = -1};
}

bool zw_memory_held(const struct zw_memory *m)
{
    return m->lock_fd >= 0;
}

int zw_memory_take(struct zw_memory *m, const char *base, const char *host, const char *run_id, struct zt_error *err)
{
    char path[sizeof(m->path)];
    const struct timespec pause = {.tv_nsec = 5000000};
    base = base ? base : default_base();
    if (!base || !is_word(host) || !is_word(run_id)) {
        return zt_fail(err, ZT_EUNSUPPORTED, "checkpoints are not copied into memory: neither /dev/shm nor XDG_RUNTIME_DIR "
                       "is a tmpfs where this user may write");
    }
    int n = snprintf(path, sizeof(path), "%s/ztrain-%u-%.100s-%.64s", base, (unsigned)geteuid(), host, run_id);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        return zt_fail(err, ZT_EUNSUPPORTED, "checkpoints are not copied into memory: the path of %s is too long", base);
    }
    if (zw_memory_held(m) && strcmp(path, m->path) == 0) {
        return 0;
    }
    zw_memory_release(m);
    int fd = -EAGAIN;
    for (int i = 0; i < TRIES && fd == -EAGAIN; i++) {
        if (i > 0) {
            nanosleep(&pause, NULL);
        }
        if (mkdir(path, 0700) && errno != EEXIST) {
            fd = -errno;
        } else if (!is_private(path)) {
            fd = access(path, F_OK) ? -EAGAIN : -EPERM; /* gone again, or somebody else's */
        } else {
            fd = lock_folder(path, F_RDLCK, O_CREAT);
        }
    }
    if (fd < 0) {
        return zt_fail(err, ZT_EIO, "checkpoints are not copied into memory: %s: %s", path,
                       fd == -EPERM ? "not a private folder of this user; remove it" : strerror(-fd));
    }
    m->lock_fd = fd;
    memcpy(m->path, path, sizeof(path));
    return 0;
}

void zw_memory_release(struct zw_memory *m)
{
    if (!zw_memory_held(m)) {
        return;
    }
    close(m->lock_fd);
    m->lock_fd = -1;
    remove_free(m->path);
    m->path[0] = '\0';
}

int zw_memory_sweep(const char *base)
{
    char prefix[32], path[512];
    int n = 0;
    base = base ? base : default_base();
    DIR *d = base ? opendir(base) : NULL;
    snprintf(prefix, sizeof(prefix), "ztrain-%u-", (unsigned)geteuid());
    for (struct dirent *e; d && (e = readdir(d));) {
        int k = snprintf(path, sizeof(path), "%s/%s", base, e->d_name);
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0 && k > 0 && (size_t)k < sizeof(path) && is_private(path)) {
            n += remove_free(path);
        }
    }
    if (d) {
        closedir(d);
    }
    return n;
}
