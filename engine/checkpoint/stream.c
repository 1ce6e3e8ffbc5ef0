/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/stream.c: see stream.h. */
#include "engine/checkpoint/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { SYNC_EVERY = 64 << 20 }; /* a longer sync would look like a hang, and hold all of a disk's queue at once */

struct stream {
    const struct zt_sys *sys;
    struct stream_watch watch;
    char path[CKPT_PATH];
    int fd;
    int64_t at, synced;          /* bytes put; bytes behind the last sync */
    const unsigned char *wait;   /* put, hashed, not written: follows one another in memory */
    size_t n_wait;
    XXH3_state_t *xxh;
    EVP_MD_CTX *sha;
    struct zt_hash128 *pieces;
    int64_t n_pieces, most_pieces;
};

void stream_abandon(struct stream *s) {
    if (!s) return;
    if (s->fd >= 0) s->sys->close(s->sys->arg, s->fd);
    XXH3_freeState(s->xxh);
    EVP_MD_CTX_free(s->sha);
    free(s->pieces);
    free(s);
}

int stream_open(const struct zt_sys *sys, const char *path, int64_t bytes, struct stream_watch watch, struct stream **out, struct zt_error *err) {
    struct stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return zt_fail(err, ZT_ENOMEM, "%s: no memory to write it", path);
    s->sys = sys;
    s->watch = watch;
    s->fd = -1;
    s->most_pieces = (bytes + ZT_CKPT_PIECE - 1) / ZT_CKPT_PIECE;
    s->pieces = calloc((size_t)s->most_pieces + 1, sizeof *s->pieces);
    s->xxh = XXH3_createState();
    s->sha = EVP_MD_CTX_new();
    int rc = 0;
    if (!s->pieces || !s->xxh || !s->sha || EVP_DigestInit_ex(s->sha, EVP_sha256(), NULL) != 1)
        rc = zt_fail(err, ZT_ENOMEM, "%s: no memory to write it", path);
    if (!rc) {
        ZT_ASSERT((size_t)snprintf(s->path, sizeof s->path, "%s", path) < sizeof s->path); /* ckpt_path made it */
        XXH3_128bits_reset(s->xxh);
        s->fd = sys->open(sys->arg, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
        if (s->fd < 0) rc = ckpt_io_failed(path, "cannot be made", s->fd, watch.disk_full, err);
    }
    if (rc)
        stream_abandon(s);
    else
        *out = s;
    return rc;
}

static int flush_wait(struct stream *s, struct zt_error *err) {
    const size_t n = s->n_wait;
    if (n == 0) return 0;
    s->n_wait = 0;
    const int rc = ZT_FAILPOINT("ckpt.write") ? -EIO : zt_sys_pwrite_all(s->sys, s->fd, s->wait, n, s->at - (int64_t)n);
    return rc ? ckpt_io_failed(s->path, "writing failed", rc, s->watch.disk_full, err) : 0;
}

static int sync_now(struct stream *s, struct zt_error *err) {
    const int rc = s->sys->fsync(s->sys->arg, s->fd);
    s->synced = s->at;
    return rc ? ckpt_io_failed(s->path, "syncing failed", rc, s->watch.disk_full, err) : 0;
}

static int told(const struct stream_watch *w, const char *path, int64_t bytes, struct zt_error *err) {
    if (!w->progress || w->progress(w->arg, bytes)) return 0;
    return zt_fail(err, ZT_ECANCELLED, "%s: stopped", path);
}

static int piece_done(struct stream *s, int64_t bytes, struct zt_error *err) {
    const XXH128_hash_t h = XXH3_128bits_digest(s->xxh);
    ZT_ASSERT(s->n_pieces < s->most_pieces);
    s->pieces[s->n_pieces++] = (struct zt_hash128){h.low64, h.high64};
    XXH3_128bits_reset(s->xxh);
    int rc = flush_wait(s, err);
    if (rc) return rc;
    /* starts the write to the disk, so that the sync at the end finds little left; a hint */
    s->sys->fadvise(s->sys->arg, s->fd, s->at - bytes, bytes, POSIX_FADV_DONTNEED);
    if (s->at - s->synced >= SYNC_EVERY) rc = sync_now(s, err);
    return rc ? rc : told(&s->watch, s->path, bytes, err);
}

int stream_put(struct stream *s, const void *data, size_t n, struct zt_error *err) {
    const unsigned char *p = data;
    while (n > 0) {
        const size_t room = (size_t)(ZT_CKPT_PIECE - s->at % ZT_CKPT_PIECE), take = n < room ? n : room;
        if (s->n_wait && s->wait + s->n_wait != p) {
            const int rc = flush_wait(s, err);
            if (rc) return rc;
        }
        if (s->n_wait == 0) s->wait = p;
        s->n_wait += take;
        s->at += (int64_t)take;
        XXH3_128bits_update(s->xxh, p, take);
        if (EVP_DigestUpdate(s->sha, p, take) != 1) return zt_fail(err, ZT_EINTERNAL, "%s: SHA-256 failed", s->path);
        if (take == room) {
            const int rc = piece_done(s, ZT_CKPT_PIECE, err);
            if (rc) return rc;
        }
        p += take;
        n -= take;
    }
    return 0;
}

static int finish(struct stream *s, struct zt_index_file *f, struct zt_error *err) {
    int rc = 0;
    if (s->at % ZT_CKPT_PIECE) rc = piece_done(s, s->at % ZT_CKPT_PIECE, err);
    if (rc) return rc;
    if (ZT_FAILPOINT("ckpt.before_fsync")) return ckpt_io_failed(s->path, "syncing failed", -EIO, NULL, err);
    rc = sync_now(s, err);
    if (rc) return rc;
    s->sys->fadvise(s->sys->arg, s->fd, 0, 0, POSIX_FADV_DONTNEED);
    rc = s->sys->close(s->sys->arg, s->fd);
    s->fd = -1;
    if (rc) return ckpt_io_failed(s->path, "closing failed", rc, s->watch.disk_full, err);
    if (ZT_FAILPOINT("ckpt.after_fsync")) return ckpt_io_failed(s->path, "syncing failed", -EIO, NULL, err);
    if (EVP_DigestFinal_ex(s->sha, f->sha256.byte, NULL) != 1) return zt_fail(err, ZT_EINTERNAL, "%s: SHA-256 failed", s->path);
    f->bytes = s->at;
    f->n_pieces = s->n_pieces;
    f->pieces = s->pieces;
    s->pieces = NULL;
    return 0;
}

int stream_end(struct stream *s, struct zt_index_file *f, struct zt_error *err) {
    const int rc = finish(s, f, err);
    stream_abandon(s);
    return rc;
}

static int compare(const struct zt_sys *sys, int fd, const char *path, const struct zt_index_file *f, void *buffer, struct stream_watch watch,
                   struct zt_error *err) {
    struct stat st;
    int rc = sys->fstat(sys->arg, fd, &st);
    if (rc < 0) return ckpt_io_failed(path, "reading back failed", rc, NULL, err);
    if (st.st_size != f->bytes)
        return zt_fail(err, ZT_EIO, "%s: %lld bytes were written, the disk gives back %lld", path, (long long)f->bytes, (long long)st.st_size);
    for (int64_t i = 0; i < f->n_pieces; i++) {
        const int64_t at = i * ZT_CKPT_PIECE, n = f->bytes - at < ZT_CKPT_PIECE ? f->bytes - at : ZT_CKPT_PIECE;
        const ssize_t got = zt_sys_pread_all(sys, fd, buffer, (size_t)n, at);
        if (got < 0) return ckpt_io_failed(path, "reading back failed", (int)got, NULL, err);
        const XXH128_hash_t h = XXH3_128bits(buffer, (size_t)n);
        if (got != n || h.low64 != f->pieces[i].lo || h.high64 != f->pieces[i].hi)
            return zt_fail(err, ZT_EIO, "%s: the 4 MiB at byte %lld, read back, are not what was written; look for a faulty disk or memory",
                           path, (long long)at);
        rc = told(&watch, path, n, err);
        if (rc) return rc;
    }
    return 0;
}

int stream_read_back(const struct zt_sys *sys, const char *path, const struct zt_index_file *f, void *buffer, struct stream_watch watch,
                     struct zt_error *err) {
    if (ZT_FAILPOINT("ckpt.readback")) return ckpt_io_failed(path, "reading back failed", -EIO, NULL, err);
    const int fd = sys->open(sys->arg, path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0) return ckpt_io_failed(path, "reading back failed", fd, NULL, err);
    const int rc = compare(sys, fd, path, f, buffer, watch, err);
    sys->fadvise(sys->arg, fd, 0, 0, POSIX_FADV_DONTNEED); /* nobody will read it soon: leave the memory to others */
    sys->close(sys->arg, fd);
    return rc;
}
