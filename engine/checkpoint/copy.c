/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/copy.c: see copy.h. */
#include "engine/checkpoint/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "engine/checkpoint/files.h"

#define TRY(call) do { if ((rc = (call)) != 0) goto out; } while (0)

static int failed(int rc, const char *path, struct zt_error *err) {
    const int code = rc == -ENOENT ? ZT_ENOTFOUND : rc == -ENOSPC || rc == -EDQUOT || rc == -ENOMEM ? ZT_EBUSY : ZT_EIO;
    return zt_fail(err, code, "%s: %s", path, strerror(-rc));
}

/* A text of the checkpoint; its hash has to be `expected` (NULL: any). */
static int read_text(const struct zt_sys *sys, const char *path, const struct zt_sha256 *expected, char **text, size_t *n,
                     struct zt_error *err) {
    struct zt_sha256 hash;
    const int rc = ckpt_read_text(sys, path, text, n, err);
    if (rc) return rc;
    zt_sha256_of(*text, *n, &hash);
    if (!expected || zt_sha256_same(&hash, expected)) return 0;
    return zt_fail(err, ZT_ECORRUPT, "%s: is not the one that the manifest names (SHA-256)", path);
}

static int read_whole(const struct zt_sys *sys, int fd, char *p, size_t n, off_t at) {
    while (n > 0) {
        const ssize_t k = sys->pread(sys->arg, fd, p, n, at);
        if (k == -EINTR) continue;
        if (k <= 0) return k < 0 ? (int)k : -EIO;
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

static int write_whole(const struct zt_sys *sys, int fd, const char *p, size_t n, off_t at) {
    while (n > 0) {
        const ssize_t k = sys->pwrite(sys->arg, fd, p, n, at);
        if (k == -EINTR) continue;
        if (k <= 0) return k < 0 ? (int)k : -EIO;
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

static int copy_file(const struct zt_sys *sys, const char *from, const char *to, const struct zt_index_file *f, char *buffer,
                     const _Atomic bool *stop, struct zt_error *err) {
    struct stat st;
    int rc = 0, in = sys->open(sys->arg, from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0), out = -1;
    if (in < 0) return failed(in, from, err);
    if ((rc = sys->fstat(sys->arg, in, &st)) < 0) TRY(failed(rc, from, err));
    if (!S_ISREG(st.st_mode) || st.st_size != f->bytes)
        TRY(zt_fail(err, ZT_ECORRUPT, "%s: has %lld bytes, %lld were written", from, (long long)st.st_size, (long long)f->bytes));
    out = sys->open(sys->arg, to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (out < 0) TRY(failed(out, to, err));
    for (int64_t i = 0; i < f->n_pieces; i++) {
        const int64_t at = i * ZT_CKPT_PIECE, left = f->bytes - at;
        const size_t n = (size_t)(left < ZT_CKPT_PIECE ? left : ZT_CKPT_PIECE);
        if (stop && atomic_load(stop)) TRY(zt_fail(err, ZT_ECANCELLED, "%s: not copied to the end", from));
        if ((rc = read_whole(sys, in, buffer, n, at)) < 0) TRY(failed(rc, from, err));
        const XXH128_hash_t h = XXH3_128bits(buffer, n);
        if (h.low64 != f->pieces[i].lo || h.high64 != f->pieces[i].hi)
            TRY(zt_fail(err, ZT_ECORRUPT, "%s: bytes from %lld on are not what was written", from, (long long)at));
        if ((rc = write_whole(sys, out, buffer, n, at)) < 0) TRY(failed(rc, to, err));
    }
out:
    if (out >= 0) sys->close(sys->arg, out);
    sys->close(sys->arg, in);
    if (rc && out >= 0) sys->unlink(sys->arg, to); /* gives the memory back */
    return rc;
}

/* The manifest, then the index that it names. */
static int open_index(const struct zt_sys *sys, const char *folder, int rank, char **text, size_t *n, struct zt_index *x,
                      struct zt_error *err) {
    char path[CKPT_PATH], name[32], *manifest_text = NULL, *copy = NULL;
    struct zt_manifest m = {0};
    size_t bytes;
    int rc;
    TRY(ckpt_path(path, folder, "manifest.json", NULL, err));
    TRY(read_text(sys, path, NULL, &manifest_text, &bytes, err));
    TRY(zt_manifest_parse(path, manifest_text, bytes, &m, err));
    if (rank >= m.world) TRY(zt_fail(err, ZT_ENOTFOUND, "%s: is of %d ranks", path, m.world));
    zt_ckpt_rank_name(rank, name);
    TRY(ckpt_path(path, folder, name, NULL, err));
    TRY(read_text(sys, path, &m.ranks[rank].index, text, n, err));
    copy = malloc(*n + 1); /* parsing uses it up */
    if (!copy) TRY(zt_fail(err, ZT_ENOMEM, "%s: no memory to read it", path));
    memcpy(copy, *text, *n);
    copy[*n] = 0;
    rc = zt_index_parse(path, copy, *n, &m, rank, x, err);
out:
    free(copy);
    free(manifest_text);
    zt_manifest_free(&m);
    return rc;
}

int zt_ckpt_copy_rank(const struct zt_sys *sys, const char *folder, int rank, const char *memory, const _Atomic bool *stop,
                      int64_t *bytes, struct zt_error *err) {
    char from[CKPT_PATH], to[CKPT_PATH], index[CKPT_PATH], name[32], *text = NULL, *buffer = malloc((size_t)ZT_CKPT_PIECE);
    struct zt_index x = {0};
    size_t n = 0;
    int rc = 0, fd = -1;
    *bytes = 0;
    if (!sys) sys = &zt_sys_posix;
    if (!buffer) TRY(zt_fail(err, ZT_ENOMEM, "%s: no memory to copy it", folder));
    zt_ckpt_rank_name(rank, name);
    TRY(ckpt_path(index, memory, name, NULL, err));
    sys->unlink(sys->arg, index); /* what it says is not true from here on */
    TRY(open_index(sys, folder, rank, &text, &n, &x, err));
    for (int i = 0; i < x.n_files; i++) {
        TRY(ckpt_path(from, folder, x.files[i].name, NULL, err));
        TRY(ckpt_path(to, memory, x.files[i].name, NULL, err));
        TRY(copy_file(sys, from, to, &x.files[i], buffer, stop, err));
        *bytes += x.files[i].bytes;
    }
    fd = sys->open(sys->arg, index, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) TRY(failed(fd, index, err));
    if ((rc = write_whole(sys, fd, text, n, 0)) < 0) {
        sys->unlink(sys->arg, index);
        TRY(failed(rc, index, err));
    }
out:
    if (fd >= 0) sys->close(sys->arg, fd);
    zt_index_free(&x);
    free(text);
    free(buffer);
    return rc;
}
