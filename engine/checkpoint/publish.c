/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/publish.c: from written files to a checkpoint that others may open, and back to
 * nothing; see write.h. What an interruption leaves is either the temporary folder, or the whole
 * checkpoint, or an entry of trash/: each can be done again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/checkpoint/files.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/write.h"

/* ---- folders ---- */

struct names { char **v; size_t n; };

static int add_name(void *ctx, const char *name) {
    struct names *l = ctx;
    char **bigger = (l->n & (l->n - 1)) == 0 ? realloc(l->v, (l->n ? 2 * l->n : 1) * sizeof *bigger) : l->v;
    if (!bigger) return -ENOMEM;
    l->v = bigger;
    l->v[l->n] = strdup(name);
    return l->v[l->n] ? (l->n++, 0) : -ENOMEM;
}

static void free_names(struct names *l) {
    for (size_t i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (struct names){0};
}

static int list_names(const struct zt_sys *sys, const char *folder, struct names *l) {
    *l = (struct names){0};
    const int rc = sys->list(sys->arg, folder, add_name, l);
    if (rc < 0) free_names(l);
    return rc;
}

/* A folder and what is in it; what is gone already is no error. */
static int remove_folder(const struct zt_sys *sys, const char *folder, int depth) {
    struct names l;
    struct zt_error ignored;
    int rc = list_names(sys, folder, &l);
    if (rc == -ENOTDIR) return sys->unlink(sys->arg, folder);
    if (rc < 0) return rc == -ENOENT ? 0 : rc;
    for (size_t i = 0; i < l.n && rc == 0; i++) {
        char path[CKPT_PATH];
        if (ckpt_path(path, folder, l.v[i], NULL, &ignored)) {
            rc = -ENAMETOOLONG;
            break;
        }
        rc = sys->unlink(sys->arg, path);
        if ((rc == -EISDIR || rc == -EPERM) && depth > 0) rc = remove_folder(sys, path, depth - 1);
        if (rc == -ENOENT) rc = 0;
    }
    free_names(&l);
    if (rc == 0) rc = sys->rmdir(sys->arg, folder);
    return rc == -ENOENT ? 0 : rc;
}

/* Renames folder/name into trash/ under a name that is free there, durable in both. -ENOENT: no such entry. */
static int to_trash(const struct zt_sys *sys, const char *folder, const char *name) {
    char from[CKPT_PATH], trash[CKPT_PATH], to[CKPT_PATH];
    struct zt_error ignored;
    if (ckpt_path(from, folder, name, NULL, &ignored) || ckpt_path(trash, folder, "trash", NULL, &ignored)) return -ENAMETOOLONG;
    int rc = sys->mkdir(sys->arg, trash, 0755);
    if (rc == 0) rc = zt_sys_fsync_folder(sys, folder);
    if (rc == -EEXIST) rc = 0;
    for (int i = 0; rc == 0; i++) {
        const int n = i ? snprintf(to, sizeof to, "%s/%s.%d", trash, name, i) : snprintf(to, sizeof to, "%s/%s", trash, name);
        if (n >= (int)sizeof to) return -ENAMETOOLONG;
        rc = sys->rename(sys->arg, from, to);
        if ((rc != -ENOTEMPTY && rc != -EEXIST) || i == 1000) break;
        rc = 0;
    }
    if (rc < 0) return rc;
    rc = zt_sys_fsync_folder(sys, trash); /* first where it is now: never in neither */
    return rc < 0 ? rc : zt_sys_fsync_folder(sys, folder);
}

/* ---- publishing ---- */

/* Every rank's index is in the folder and is the one that was reported. */
static int check_indexes(const struct zt_sys *sys, const char *temp, const struct zt_manifest *m, struct zt_error *err) {
    for (int r = 0; r < m->world; r++) {
        char name[32], path[CKPT_PATH], host[256] = "?", *text = NULL;
        size_t n = 0;
        struct zt_sha256 hash;
        zt_ckpt_rank_name(r, name);
        gethostname(host, sizeof host - 1);
        int rc = ckpt_path(path, temp, name, NULL, err);
        if (!rc) rc = ckpt_read_text(sys, path, &text, &n, err);
        if (rc == ZT_ENOTFOUND)
            rc = zt_fail(err, ZT_EIO, "%s: rank %d reported its files as written, but host %s does not see them; checkpoint.folder has to be "
                         "one folder that all hosts share", path, r, host);
        if (!rc) {
            zt_sha256_of(text, n, &hash);
            if (!zt_sha256_same(&hash, &m->ranks[r].index))
                rc = zt_fail(err, ZT_EIO, "%s: host %s sees another file than rank %d reported; checkpoint.folder has to be one folder that all "
                             "hosts share, and no other run's", path, host, r);
        }
        free(text);
        if (rc) return rc;
    }
    return 0;
}

/* The folder of that name holds this very checkpoint. */
static bool is_ours(const struct zt_sys *sys, const char *final, const struct zt_manifest *m, struct zt_sha256 *hash) {
    struct zt_error ignored;
    struct zt_ckpt *c = NULL;
    char path[CKPT_PATH], *text = NULL;
    size_t n = 0;
    if (ckpt_path(path, final, "manifest.json", NULL, &ignored) || ckpt_read_text(sys, path, &text, &n, &ignored)) return false;
    zt_sha256_of(text, n, hash);
    free(text);
    bool same = zt_ckpt_open(&(struct zt_ckpt_open){.sys = sys, .folder = final, .manifest = hash}, &c, &ignored) == 0;
    if (same) {
        const struct zt_manifest *o = zt_ckpt_manifest(c);
        same = strcmp(o->run_id, m->run_id) == 0 && o->position.step == m->position.step && o->parameter_hash.lo == m->parameter_hash.lo &&
               o->parameter_hash.hi == m->parameter_hash.hi && o->state_hash.lo == m->state_hash.lo && o->state_hash.hi == m->state_hash.hi &&
               zt_ckpt_verify(c, NULL, NULL, &ignored) == 0;
    }
    zt_ckpt_close(c);
    return same;
}

static int sync_or_fail(const struct zt_sys *sys, const char *folder, bool *disk_full, struct zt_error *err) {
    const int rc = zt_sys_fsync_folder(sys, folder);
    return rc < 0 ? ckpt_io_failed(folder, "syncing failed", rc, disk_full, err) : 0;
}

/* The folders above the run's may have been made by a process that died before it synced them. Those that
 * are not ours to open were not made by us. */
static int sync_above(const struct zt_sys *sys, const char *folder, bool *disk_full, struct zt_error *err) {
    char path[CKPT_PATH];
    if (strlen(folder) >= sizeof path) return zt_fail(err, ZT_EINVAL, "%.100s...: the path is too long", folder);
    strcpy(path, folder);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) return 0;
        *slash = '\0';
        const int rc = zt_sys_fsync_folder(sys, path);
        if (rc < 0 && rc != -EACCES) return ckpt_io_failed(path, "syncing failed", rc, disk_full, err);
    }
    return 0;
}

/* A folder with the final name that no database row names: 1 it is this checkpoint, 0 it is out of the way. */
static int clear_final(const struct zt_sys *sys, const char *folder, const char *name, const char *final, const struct zt_manifest *m,
                       struct zt_sha256 *hash, struct zt_error *err) {
    const int fd = sys->open(sys->arg, final, O_RDONLY | O_DIRECTORY, 0);
    if (fd == -ENOENT) return 0;
    if (fd < 0 && fd != -ENOTDIR) return ckpt_io_failed(final, "cannot be opened", fd, NULL, err);
    if (fd >= 0) sys->close(sys->arg, fd);
    if (fd >= 0 && is_ours(sys, final, m, hash)) return 1;
    const int rc = to_trash(sys, folder, name);
    return rc < 0 ? ckpt_io_failed(final, "cannot be moved to trash", rc, NULL, err) : 0;
}

static int write_manifest(const struct zt_sys *sys, const char *temp, const struct zt_manifest *m, struct zt_sha256 *hash, bool *disk_full,
                          struct zt_error *err) {
    char path[CKPT_PATH], *text = NULL;
    size_t n = 0;
    int rc = ckpt_path(path, temp, "manifest.json", NULL, err);
    if (!rc && ZT_FAILPOINT("ckpt.before_manifest")) rc = ckpt_io_failed(path, "writing failed", -EIO, NULL, err);
    if (!rc) rc = zt_manifest_text(m, &text, &n, err);
    if (!rc) rc = ckpt_write_text(sys, path, text, n, disk_full, err);
    if (!rc) rc = sync_or_fail(sys, temp, disk_full, err);
    if (!rc) zt_sha256_of(text, n, hash);
    if (!rc && ZT_FAILPOINT("ckpt.after_manifest")) rc = ckpt_io_failed(path, "syncing failed", -EIO, NULL, err);
    free(text);
    return rc;
}

int zt_ckpt_publish(const struct zt_sys *sys, const char *folder, const struct zt_manifest *m, struct zt_sha256 *manifest, bool *adopted,
                    bool *disk_full, struct zt_error *err) {
    char name[32], temp_name[64], temp[CKPT_PATH], final[CKPT_PATH];
    zt_ckpt_step_name(m->position.step, name);
    zt_ckpt_temp_name(m->position.step, m->generation, temp_name);
    *adopted = *disk_full = false;
    int rc = ckpt_path(temp, folder, temp_name, NULL, err);
    if (!rc) rc = ckpt_path(final, folder, name, NULL, err);
    if (!rc) rc = check_indexes(sys, temp, m, err);
    if (!rc) rc = sync_above(sys, folder, disk_full, err);
    if (rc) return rc;
    rc = clear_final(sys, folder, name, final, m, manifest, err);
    if (rc < 0) return rc;
    if (rc == 1) {
        rc = sync_or_fail(sys, final, disk_full, err); /* whoever renamed it may have died before it was durable */
        if (!rc) rc = sync_or_fail(sys, folder, disk_full, err);
        *adopted = rc == 0;
        if (!rc) remove_folder(sys, temp, 0); /* as far as that works: a sweep takes what stays */
        return rc;
    }
    rc = write_manifest(sys, temp, m, manifest, disk_full, err);
    if (rc) return rc;
    if (ZT_FAILPOINT("ckpt.before_rename")) return ckpt_io_failed(temp, "renaming failed", -EIO, NULL, err);
    rc = sys->rename(sys->arg, temp, final);
    if (rc < 0) return ckpt_io_failed(temp, "renaming failed", rc, disk_full, err);
    if (ZT_FAILPOINT("ckpt.after_rename")) return ckpt_io_failed(final, "syncing failed", -EIO, NULL, err);
    return sync_or_fail(sys, folder, disk_full, err);
}

/* ---- removing ---- */

int zt_ckpt_discard(const struct zt_sys *sys, const char *folder, int64_t step, uint32_t generation, struct zt_error *err) {
    char name[64], path[CKPT_PATH];
    zt_ckpt_temp_name(step, generation, name);
    int rc = ckpt_path(path, folder, name, NULL, err);
    if (rc) return rc;
    rc = remove_folder(sys, path, 0);
    return rc < 0 ? ckpt_io_failed(path, "removing failed", rc, NULL, err) : 0;
}

/* Entries of trash/ that are `name` or "name.K"; NULL: all. How many, or -errno. */
static int empty_trash(const struct zt_sys *sys, const char *folder, const char *name) {
    char trash[CKPT_PATH], path[CKPT_PATH];
    struct zt_error ignored;
    struct names l;
    int count = 0, first = 0;
    if (ckpt_path(trash, folder, "trash", NULL, &ignored)) return -ENAMETOOLONG;
    int rc = list_names(sys, trash, &l);
    if (rc < 0) return rc == -ENOENT ? 0 : rc;
    for (size_t i = 0; i < l.n; i++) {
        const size_t n = name ? strlen(name) : 0;
        if (name && (strncmp(l.v[i], name, n) != 0 || (l.v[i][n] != '\0' && l.v[i][n] != '.'))) continue;
        rc = ckpt_path(path, trash, l.v[i], NULL, &ignored) ? -ENAMETOOLONG : remove_folder(sys, path, 1);
        if (rc < 0 && first == 0) first = rc; /* the others all the same */
        count += rc == 0;
    }
    free_names(&l);
    return first ? first : count;
}

int zt_ckpt_remove(const struct zt_sys *sys, const char *folder, int64_t step, struct zt_error *err) {
    char name[32], path[CKPT_PATH];
    zt_ckpt_step_name(step, name);
    int rc = ckpt_path(path, folder, name, NULL, err);
    if (rc) return rc;
    if (ZT_FAILPOINT("ckpt.before_remove")) return ckpt_io_failed(path, "cannot be moved to trash", -EIO, NULL, err);
    rc = to_trash(sys, folder, name);
    if (rc == -ENOENT) { /* moved before; that may not be durable yet */
        rc = zt_sys_fsync_folder(sys, folder);
        if (rc == -ENOENT) return 0;
    }
    if (rc < 0) return ckpt_io_failed(path, "cannot be moved to trash", rc, NULL, err);
    if (ZT_FAILPOINT("ckpt.trashed")) return ckpt_io_failed(path, "removing failed", -EIO, NULL, err);
    rc = empty_trash(sys, folder, name);
    return rc < 0 ? ckpt_io_failed(path, "removing what was moved to trash failed", rc, NULL, err) : 0;
}

int zt_ckpt_sweep(const struct zt_sys *sys, const char *folder, uint32_t generation, struct zt_error *err) {
    struct names l;
    char path[CKPT_PATH];
    int count = 0, rc = list_names(sys, folder, &l), first = 0;
    if (rc == -ENOENT) return 0;
    if (rc < 0) return ckpt_io_failed(folder, "cannot be listed", rc, NULL, err);
    for (size_t i = 0; i < l.n; i++) {
        uint32_t of = 0;
        if (zt_ckpt_temp_of(l.v[i], &of) < 0 || of >= generation) continue;
        rc = ckpt_path(path, folder, l.v[i], NULL, err) ? -ENAMETOOLONG : remove_folder(sys, path, 0);
        if (rc < 0 && first == 0) first = ckpt_io_failed(path, "removing what an earlier attempt left failed", rc, NULL, err);
        count += rc == 0;
    }
    free_names(&l);
    rc = empty_trash(sys, folder, NULL);
    if (rc < 0 && first == 0) first = ckpt_io_failed(folder, "emptying trash failed", rc, NULL, err);
    return first ? first : count + rc;
}

/* ---- looking ---- */

int64_t zt_ckpt_free_bytes(const struct zt_sys *sys, const char *folder) {
    char path[CKPT_PATH];
    struct statvfs st;
    if (strlen(folder) >= sizeof path) return -1;
    strcpy(path, folder);
    int fd = sys->open(sys->arg, path, O_RDONLY | O_DIRECTORY, 0);
    for (char *slash; fd == -ENOENT && (slash = strrchr(path, '/')) && slash != path;) { /* not made yet: where it will be */
        *slash = '\0';
        fd = sys->open(sys->arg, path, O_RDONLY | O_DIRECTORY, 0);
    }
    if (fd < 0) return -1;
    const int rc = sys->fstatvfs(sys->arg, fd, &st);
    sys->close(sys->arg, fd);
    int64_t bytes = -1;
    if (rc < 0 || __builtin_mul_overflow((int64_t)st.f_bavail, (int64_t)st.f_frsize, &bytes)) return -1;
    return bytes;
}

static int by_step(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int zt_ckpt_list(const struct zt_sys *sys, const char *folder, int64_t **steps, int *n, struct zt_error *err) {
    struct names l;
    *steps = NULL;
    *n = 0;
    const int rc = list_names(sys, folder, &l);
    if (rc == -ENOENT) return 0;
    if (rc < 0) return ckpt_io_failed(folder, "cannot be listed", rc, NULL, err);
    *steps = calloc(l.n + 1, sizeof **steps);
    for (size_t i = 0; *steps && i < l.n; i++) {
        const int64_t step = zt_ckpt_step_of(l.v[i]);
        if (step >= 0) (*steps)[(*n)++] = step;
    }
    free_names(&l);
    if (!*steps) return zt_fail(err, ZT_ENOMEM, "%s: no memory to list it", folder);
    qsort(*steps, (size_t)*n, sizeof **steps, by_step);
    return 0;
}
