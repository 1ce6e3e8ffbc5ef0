/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/files.c: see files.h. */
#include "engine/checkpoint/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/convert.h"

int ckpt_path(char out[CKPT_PATH], const char *a, const char *b, const char *c, struct zt_error *err) {
    const int n = snprintf(out, CKPT_PATH, "%s/%s%s%s", a, b, c ? "/" : "", c ? c : "");
    return n > 0 && n < CKPT_PATH ? 0 : zt_fail(err, ZT_EINVAL, "%.100s...: the path is too long", a);
}

int ckpt_io_failed(const char *path, const char *what, int rc, bool *disk_full, struct zt_error *err) {
    const bool full = rc == -ENOSPC || rc == -EDQUOT;
    if (full && disk_full) *disk_full = true;
    return zt_fail(err, ZT_EIO, "%s: %s: %s", path, what, strerror(-rc));
}

void ckpt_pair(char out[64], int ndim, int64_t a, int64_t b) {
    if (ndim == 2)
        snprintf(out, 64, "[%lld, %lld]", (long long)a, (long long)b);
    else
        snprintf(out, 64, "[%lld]", (long long)a);
}

/* ---- texts ---- */

static int write_and_sync(const struct zt_sys *sys, const char *path, const char *text, size_t n) {
    const int fd = sys->open(sys->arg, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
    if (fd < 0) return fd;
    int rc = zt_sys_pwrite_all(sys, fd, text, n, 0);
    if (rc == 0) rc = sys->fsync(sys->arg, fd);
    if (rc == 0) sys->fadvise(sys->arg, fd, 0, 0, POSIX_FADV_DONTNEED); /* a hint: what is read back comes from below */
    const int closed = sys->close(sys->arg, fd);
    return rc ? rc : closed;
}

int ckpt_write_text(const struct zt_sys *sys, const char *path, const char *text, size_t n, bool *disk_full, struct zt_error *err) {
    char *again = NULL;
    size_t got = 0;
    int rc = write_and_sync(sys, path, text, n);
    if (rc < 0) return ckpt_io_failed(path, "writing failed", rc, disk_full, err);
    rc = zt_sys_read_file(sys, path, n, &again, &got);
    if (rc < 0)
        rc = ckpt_io_failed(path, "reading back failed", rc, NULL, err);
    else if (got != n || memcmp(again, text, n) != 0)
        rc = zt_fail(err, ZT_EIO, "%s: what the disk gives back is not what was written; look for a faulty disk or memory", path);
    free(again);
    return rc;
}

/* 0, or -errno; a file that shrinks meanwhile comes out shorter, which its hash tells. */
static int read_regular(const struct zt_sys *sys, int fd, char **text, size_t *n) {
    struct stat st;
    int rc = sys->fstat(sys->arg, fd, &st);
    if (rc < 0) return rc;
    if (!S_ISREG(st.st_mode)) return -EINVAL;
    if (st.st_size > ZT_CKPT_TEXT_MAX) return -EFBIG;
    *text = malloc((size_t)st.st_size + 1);
    if (!*text) return -ENOMEM;
    const ssize_t got = zt_sys_pread_all(sys, fd, *text, (size_t)st.st_size, 0);
    if (got < 0) {
        free(*text);
        *text = NULL;
        return (int)got;
    }
    *n = (size_t)got;
    (*text)[*n] = '\0';
    return 0;
}

int ckpt_read_text(const struct zt_sys *sys, const char *path, char **text, size_t *n, struct zt_error *err) {
    *text = NULL;
    *n = 0;
    int rc = sys->open(sys->arg, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0); /* a pipe of that name must not hold us */
    if (rc >= 0) {
        const int fd = rc;
        rc = read_regular(sys, fd, text, n);
        sys->close(sys->arg, fd);
    }
    if (rc == -ENOENT || rc == -ENOTDIR) return zt_fail(err, ZT_ENOTFOUND, "%s: is not there", path);
    if (rc == -EFBIG) return zt_fail(err, ZT_ECORRUPT, "%s: is longer than %d bytes", path, ZT_CKPT_TEXT_MAX);
    if (rc == -EINVAL || rc == -ELOOP || rc == -ENXIO) return zt_fail(err, ZT_ECORRUPT, "%s: is not a regular file", path);
    if (rc == -ENOMEM) return zt_fail(err, ZT_ENOMEM, "%s: no memory to read it", path);
    return rc < 0 ? ckpt_io_failed(path, "reading failed", rc, NULL, err) : 0;
}

/* ---- values ---- */

/* Vectors: no branch per value. */
static bool all_finite(const float *v, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

int64_t ckpt_look(enum zt_dtype type, const void *values, int64_t n, uint32_t word, uint64_t first, struct zt_hash128 *sum) {
    enum { CHUNK = 1024 };
    float wide[CHUNK];
    const size_t size = zt_dtype_size(type);
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t k = n - i < CHUNK ? n - i : CHUNK;
        zt_convert(wide, ZT_F32, (const char *)values + (size_t)i * size, type, k);
        if (!all_finite(wide, k)) {
            int64_t at = 0;
            while (all_finite(&wide[at], 1)) at++;
            return i + at;
        }
        if (sum) zt_hash_elements(word, first + (uint64_t)i, wide, k, sum);
    }
    return -1;
}

int64_t ckpt_look_rect(enum zt_dtype type, const void *values, const struct zt_rect *r, int64_t columns, int64_t from, int64_t n,
                       uint32_t word, struct zt_hash128 *sum) {
    const int64_t width = r->size[1];
    const size_t size = zt_dtype_size(type);
    if (width == columns) {
        const int64_t bad = ckpt_look(type, values, n, word, (uint64_t)(r->from[0] * columns + from), sum);
        return bad < 0 ? bad : from + bad;
    }
    for (int64_t i = 0, run; i < n; i += run) {
        const int64_t row = (from + i) / width, column = (from + i) % width;
        run = width - column < n - i ? width - column : n - i;
        const uint64_t first = (uint64_t)((r->from[0] + row) * columns + r->from[1] + column);
        const int64_t bad = ckpt_look(type, (const char *)values + (size_t)i * size, run, word, first, sum);
        if (bad >= 0) return from + i + bad;
    }
    return -1;
}

int ckpt_hash_of(const struct zt_saved_tensor *t, enum zt_saved kind, uint32_t *word) {
    *word = t->number | (kind == ZT_SAVED_M ? ZT_HASH_M : kind == ZT_SAVED_V ? ZT_HASH_V : 0);
    if (kind == ZT_SAVED_M || kind == ZT_SAVED_V) return 2;
    return (kind == ZT_SAVED_MASTER) == t->has[ZT_SAVED_MASTER] ? 1 : 0;
}
