/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/list.c: which files a path means: a file, a folder's regular files, or a glob's.
 * Names are malloc'ed and belong to the list. Any thread. */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/data/internal.h"

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b); /* strcmp compares unsigned bytes */
}

static int add_name(struct zt_file_list *l, char *name, struct zt_error *err) {
    /* room doubles: counts are powers of two when it is full */
    if (name && (l->count & (l->count - 1)) == 0) {
        char **bigger = realloc(l->names, (l->count ? l->count * 2 : 1) * sizeof *bigger);
        if (!bigger) {
            free(name);
            name = NULL;
        } else {
            l->names = bigger;
        }
    }
    if (!name) return zt_fail(err, ZT_ENOMEM, "no memory for the list of data files");
    l->names[l->count++] = name;
    return ZT_OK;
}

/* Takes `name` over: into the list when it is a regular file, else it is counted and freed. */
static int consider(struct zt_file_list *l, char *name, struct zt_error *err) {
    struct stat st;
    if (!name) return add_name(l, name, err);
    if (lstat(name, &st) != 0) {
        int rc = zt_fail(err, ZT_EDATA, "%s: cannot be looked at: %s", name, strerror(errno));
        free(name);
        return rc;
    }
    if (S_ISREG(st.st_mode)) return add_name(l, name, err);
    *(S_ISLNK(st.st_mode) ? &l->links : &l->others) += 1;
    free(name);
    return ZT_OK;
}

static int list_folder(const char *path, struct zt_file_list *l, struct zt_error *err) {
    DIR *d = opendir(path);
    if (!d)
        return zt_fail(err, ZT_EDATA, "%s: the folder cannot be read: %s", path, strerror(errno));
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    int rc = ZT_OK;
    while (rc == ZT_OK) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            if (errno)
                rc = zt_fail(err, ZT_EDATA, "%s: reading the folder failed: %s", path,
                             strerror(errno));
            break;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *name = NULL;
        if (asprintf(&name, "%s%s%s", path, slash, e->d_name) < 0) name = NULL;
        rc = consider(l, name, err);
    }
    closedir(d);
    return rc;
}

static int list_glob(const char *path, struct zt_file_list *l, struct zt_error *err) {
    glob_t g;
    int rc = glob(path, GLOB_NOSORT | GLOB_ERR, NULL, &g);
    if (rc == GLOB_NOMATCH)
        return zt_fail(err, ZT_EDATA,
                       "%s: no file matches this pattern (dataset path); check it with ls, "
                       "relative paths start at the run file's folder",
                       path);
    if (rc != 0)
        return zt_fail(err, rc == GLOB_NOSPACE ? ZT_ENOMEM : ZT_EDATA,
                       "%s: the pattern could not be expanded: %s", path,
                       rc == GLOB_NOSPACE ? "no memory" : "a folder on the way cannot be read");
    rc = ZT_OK;
    for (size_t i = 0; i < g.gl_pathc && rc == ZT_OK; i++)
        rc = consider(l, strdup(g.gl_pathv[i]), err);
    globfree(&g);
    return rc;
}

int zt_file_list_make(const char *path, struct zt_file_list *l, struct zt_error *err) {
    struct stat st;
    int rc;
    memset(l, 0, sizeof *l);
    if (!path || !*path)
        return zt_fail(err, ZT_EDATA,
                       "the dataset path is empty; set dataset.path to a file, folder or "
                       "pattern");
    if (stat(path, &st) == 0) {
        l->single = !S_ISDIR(st.st_mode);
        if (S_ISDIR(st.st_mode))
            rc = list_folder(path, l, err);
        else if (S_ISREG(st.st_mode))
            rc = add_name(l, strdup(path), err);
        else
            rc = zt_fail(err, ZT_EDATA, "%s: is neither a regular file nor a folder", path);
    } else if (errno == ENOENT && strpbrk(path, "*?[")) {
        rc = list_glob(path, l, err);
    } else {
        rc = zt_fail(err, ZT_EDATA,
                     "%s: no data there: %s; check the path, and that this host and user "
                     "can read it",
                     path, strerror(errno));
    }
    if (rc == ZT_OK && l->count == 0)
        rc = zt_fail(err, ZT_EDATA,
                     "%s: holds no regular file (%lld symbolic links and %lld other entries "
                     "were passed over)",
                     path, (long long)l->links, (long long)l->others);
    if (rc != ZT_OK)
        zt_file_list_free(l);
    else
        qsort(l->names, l->count, sizeof *l->names, by_bytes);
    return rc;
}

void zt_file_list_free(struct zt_file_list *l) {
    for (size_t i = 0; i < l->count; i++) free(l->names[i]);
    free(l->names);
    memset(l, 0, sizeof *l);
}
