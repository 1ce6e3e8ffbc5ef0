/* SPDX-License-Identifier: Apache-2.0 */
/* worker/identity.c: see identity.h. Locks are open-file-description locks: they can be asked about
 * without being taken, and the trainer child does not inherit them (O_CLOEXEC). */
#include "worker/identity.h"

#include <ctype.h>
#include <stdbool.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"

#define WORKERS_PER_HOST 256

static int make_private_folder(const char *path, struct zt_error *err)
{
    struct stat st;
    if (mkdir(path, 0700) && errno != EEXIST) {
        return zt_fail(err, ZT_EIO, "cannot make the runtime folder %s: %s; set XDG_RUNTIME_DIR", path,
                       strerror(errno));
    }
    if (lstat(path, &st)) {
        return zt_fail(err, ZT_EIO, "cannot look at the runtime folder %s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077)) {
        return zt_fail(err, ZT_EIO,
                       "the runtime folder %s is not a private folder of this user (mode %04o, owner %u); "
                       "remove it or set XDG_RUNTIME_DIR",
                       path, (unsigned)(st.st_mode & 07777), (unsigned)st.st_uid);
    }
    return 0;
}

static int runtime_folder(struct zw_identity *id, struct zt_error *err)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int n = xdg && xdg[0] == '/'
                ? snprintf(id->runtime, sizeof(id->runtime), "%s/ztrain", xdg)
                : snprintf(id->runtime, sizeof(id->runtime), "/tmp/ztrain-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= sizeof(id->runtime)) {
        return zt_fail(err, ZT_EINVAL, "XDG_RUNTIME_DIR is too long");
    }
    return make_private_folder(id->runtime, err);
}

static int check_word(const char *what, const char *s, size_t max, struct zt_error *err)
{
    size_t n = strlen(s);
    bool ok = n > 0 && n <= max && isalnum((unsigned char)s[0]);
    for (size_t i = 0; i < n && ok; i++) {
        unsigned char c = (unsigned char)s[i];
        ok = isalnum(c) || c == '.' || c == '_' || c == '-';
    }
    if (!ok) {
        return zt_fail(err, ZT_EINVAL,
                       "%s \"%.80s\": use 1 to %zu letters, digits, dots, underscores and dashes, a letter "
                       "or digit first",
                       what, s, max);
    }
    return 0;
}

/* Host name plus the start of the boot id: two machines of one name stay apart. */
static void default_host(char *out, size_t n)
{
    char name[65] = "host", boot[16] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(boot, 9, f)) {
            boot[0] = '\0';
        }
        fclose(f);
    }
    if (gethostname(name, sizeof(name) - 1)) {
        snprintf(name, sizeof(name), "host");
    }
    for (char *s = name; *s; s++) {
        if (!isalnum((unsigned char)*s) && *s != '.' && *s != '-' && *s != '_') {
            *s = '-';
        }
    }
    snprintf(out, n, "%s%s%s", isalnum((unsigned char)name[0]) ? name : "host", boot[0] ? "-" : "", boot);
}

static int open_lock(const struct zw_identity *id, const char *name)
{
    char path[768];
    snprintf(path, sizeof(path), "%s/%s.%s.lock", id->runtime, id->host, name);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* 0, ZT_ECONFLICT when somebody holds it, ZT_EIO. */
static int try_name(struct zw_identity *id, const char *name, struct zt_error *err)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open_lock(id, name);
    if (fd < 0) {
        return zt_fail(err, ZT_EIO, "cannot open a lock in %s: %s", id->runtime, strerror(errno));
    }
    if (fcntl(fd, F_OFD_SETLK, &lock)) {
        int e = errno;
        close(fd);
        if (e == EAGAIN || e == EACCES) {
            return zt_fail(err, ZT_ECONFLICT,
                           "another zworker on this host is named %s; stop it or give another --name", name);
        }
        return zt_fail(err, ZT_EIO, "cannot lock %s in %s: %s", name, id->runtime, strerror(e));
    }
    id->lock_fd = fd;
    snprintf(id->name, sizeof(id->name), "%s", name);
    return 0;
}

int zw_identity_take(const char *host, const char *name, struct zw_identity *id, struct zt_error *err)
{
    memset(id, 0, sizeof(*id));
    id->lock_fd = -1;
    int rc = runtime_folder(id, err);
    if (rc == 0 && host) {
        rc = check_word("--host", host, 100, err);
    }
    if (rc == 0 && name) {
        rc = check_word("--name", name, 63, err);
    }
    if (rc) {
        return rc;
    }
    if (host) {
        snprintf(id->host, sizeof(id->host), "%s", host);
    } else {
        default_host(id->host, sizeof(id->host));
    }
    if (name) {
        /* a predecessor that was just killed may have a child that has not yet let go of the lock */
        const struct timespec pause = {.tv_nsec = 25000000};
        rc = try_name(id, name, err);
        for (int i = 0; i < 20 && rc == ZT_ECONFLICT; i++) {
            nanosleep(&pause, NULL);
            rc = try_name(id, name, err);
        }
    } else {
        rc = ZT_ECONFLICT;
        for (int k = 0; k < WORKERS_PER_HOST && rc == ZT_ECONFLICT; k++) {
            char word[16];
            snprintf(word, sizeof(word), "cpu-%d", k);
            rc = try_name(id, word, err);
        }
    }
    if (rc) {
        return rc;
    }
    snprintf(id->worker_id, sizeof(id->worker_id), "%.127s/%.63s", id->host, id->name);
    rc = zt_sys_posix.random(zt_sys_posix.arg, id->incarnation, sizeof(id->incarnation));
    if (rc < 0) {
        zw_identity_release(id);
        return zt_fail(err, ZT_EIO, "no random bytes: %s", strerror(-rc));
    }
    return 0;
}

int zw_identity_live(const struct zw_identity *id)
{
    size_t prefix = strlen(id->host);
    int live = 0;
    DIR *d = opendir(id->runtime);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        size_t n = strlen(e->d_name);
        if (n < prefix + 7 || strncmp(e->d_name, id->host, prefix) || e->d_name[prefix] != '.' ||
            strcmp(e->d_name + n - 5, ".lock")) {
            continue;
        }
        int fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) {
            continue;
        }
        if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
            live++;
        }
        close(fd);
    }
    if (d) {
        closedir(d);
    }
    return live > 0 ? live : 1;
}

void zw_identity_release(struct zw_identity *id)
{
    if (id->lock_fd >= 0) {
        close(id->lock_fd);
    }
    id->lock_fd = -1;
}
