/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/stage.c: the host buffer of a save, and the copy into it. Rules: stage.h. */
#include "engine/checkpoint/stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* ---- mappings ---- */

static void unmap(struct stage *s) {
    for (int i = 0; s->image && i < s->layout.n_files; i++)
        if (s->image[i]) munmap(s->image[i], (size_t)s->layout.files[i].bytes);
    free(s->image);
    s->image = NULL;
}

static void path_of(const char *folder, const char *name, char *out, size_t n) {
    snprintf(out, n, "%s/%s", folder, name);
}

/* fallocate: a full file system is an error here, not a signal at the first write. */
static void *map_file(const char *path, size_t bytes, int *error) {
    void *p = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        *error = errno;
        return NULL;
    }
    *error = ftruncate(fd, (off_t)bytes) ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (*error == 0) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) *error = errno;
    }
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

/* Without its index what is in memory is nothing. */
static int take_index_away(const char *folder, int rank, struct zt_error *err) {
    char path[PATH_MAX], name[32];
    zt_ckpt_rank_name(rank, name);
    path_of(folder, name, path, sizeof path);
    if (unlink(path) == 0 || errno == ENOENT) return 0;
    return zt_fail(err, ZT_EIO, "%s: %s", path, strerror(errno));
}

static bool is_laid_out(const struct stage *s, const char *name) {
    for (int i = 0; i < s->layout.n_files; i++)
        if (!strcmp(s->layout.files[i].name, name)) return true;
    return false;
}

/* Files of this rank that an earlier generation cut otherwise: nobody would write over them. */
static void drop_stale(const struct stage *s, const char *folder, int rank) {
    char model[32], optim[32], path[PATH_MAX];
    DIR *d = opendir(folder);
    snprintf(model, sizeof model, "shard-%05d-", rank + 1);
    snprintf(optim, sizeof optim, "optim-%05d-", rank + 1);
    for (struct dirent *e; d && (e = readdir(d));) {
        bool own = !strncmp(e->d_name, model, strlen(model)) || !strncmp(e->d_name, optim, strlen(optim));
        if (!own || is_laid_out(s, e->d_name)) continue;
        path_of(folder, e->d_name, path, sizeof path);
        unlink(path);
    }
    if (d) closedir(d);
}

static int map_in(struct stage *s, const char *folder, int rank, char *why, size_t n) {
    char path[PATH_MAX];
    struct zt_error e = {0};
    int error = 0;
    if (take_index_away(folder, rank, &e)) {
        snprintf(why, n, "%.400s", e.msg);
        return ZT_EIO;
    }
    drop_stale(s, folder, rank);
    for (int i = 0; i < s->layout.n_files; i++) {
        const struct zt_shard_file *f = &s->layout.files[i];
        path_of(folder, f->name, path, sizeof path);
        s->image[i] = map_file(path, (size_t)f->bytes, &error);
        if (s->image[i]) continue;
        snprintf(why, n, "%s: %s; the copy of the newest checkpoint is kept on disk alone", path,
                 strerror(error));
        for (int k = 0; k <= i; k++) {
            path_of(folder, s->layout.files[k].name, path, sizeof path);
            if (s->image[k]) munmap(s->image[k], (size_t)s->layout.files[k].bytes);
            s->image[k] = NULL;
            unlink(path);
        }
        return ZT_EIO;
    }
    s->memory = folder;
    return 0;
}

static int map_plain(struct stage *s, struct zt_error *err) {
    for (int i = 0; i < s->layout.n_files; i++) {
        size_t bytes = (size_t)s->layout.files[i].bytes;
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return zt_fail(err, ZT_ENOMEM,
                           "no host memory for the %lld bytes that this rank saves (zctl plan "
                           "shows them as staging of checkpoints): %s",
                           (long long)s->layout.bytes, strerror(errno));
        s->image[i] = p;
    }
    s->memory = NULL;
    return 0;
}

/* ---- the buffer ---- */

/* The pieces' values and the files' heads. */
static void settle(struct stage *s) {
    for (int i = 0; i < s->layout.n_files; i++) zt_shard_head(&s->layout, i, s->image[i]);
    for (int i = 0; i < s->parts.n_pieces; i++)
        s->parts.pieces[i].values = (char *)s->image[s->layout.file_of[i]] + s->layout.at[i];
}

int stage_build(struct stage *s, const struct zt_save_who *w, int rank, const char *memory,
                char *why, size_t n, struct zt_error *err) {
    int rc = 0;
    why[0] = 0;
    if (s->built && s->moments == w->moments) return 0;
    stage_free(s);
    TRY(zt_save_parts_build(w, rank, &s->parts, err));
    struct zt_shard_write shard = {.rank = rank,
                                   .tensors = s->parts.tensors,
                                   .n_tensors = s->parts.n_tensors,
                                   .pieces = s->parts.pieces,
                                   .n_pieces = s->parts.n_pieces};
    TRY(zt_shard_layout_build(&shard, &s->layout, err));
    s->image = calloc((size_t)s->layout.n_files + 1, sizeof *s->image);
    if (!s->image) TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
    if (!memory || map_in(s, memory, rank, why, n)) TRY(map_plain(s, err));
    settle(s);
    s->moments = w->moments;
    s->built = true;
out:
    if (rc) stage_free(s);
    return rc;
}

void stage_free(struct stage *s) {
    unmap(s);
    zt_shard_layout_free(&s->layout);
    zt_save_parts_free(&s->parts);
    memset(s, 0, sizeof *s);
}

/* ---- the copy ---- */

static const void *source(const struct zt_runtime *r, const struct zt_saved_piece *p,
                          struct zt_save_origin from) {
    const char *base = zt_runtime_owned(r, from.group, p->kind);
    return base + (size_t)from.at * zt_dtype_size(p->type);
}

static size_t bytes_of(const struct zt_saved_piece *p) {
    return (size_t)(p->rect.size[0] * p->rect.size[1]) * zt_dtype_size(p->type);
}

int stage_copy(struct stage *s, const struct zt_runtime *r, int rank, struct zt_device *d,
               void (*tick)(void *), void *arg, struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(d);
    struct zt_stream *compute = zt_device_compute(d);
    int rc = 0;
    if (s->memory) TRY(take_index_away(s->memory, rank, err));
    for (int i = 0; i < s->parts.n_pieces; i++) {
        const struct zt_saved_piece *p = &s->parts.pieces[i];
        char *to = (char *)s->image[s->layout.file_of[i]] + s->layout.at[i];
        TRY(dev->copy(compute, to, source(r, p, s->parts.from[i]), bytes_of(p), err));
        tick(arg);
    }
    TRY(dev->stream_sync(compute, err));
out:
    return rc;
}

int stage_simulate(const struct zt_save_who *w, int rank, const struct zt_runtime *r,
                   struct zt_device *d, struct zt_error *err) {
    struct zt_save_parts parts = {0};
    int rc = 0;
    TRY(zt_save_parts_build(w, rank, &parts, err));
    for (int i = 0; i < parts.n_pieces; i++)
        TRY(zt_device_ops(d)->copy(zt_device_compute(d), NULL,
                                   source(r, &parts.pieces[i], parts.from[i]),
                                   bytes_of(&parts.pieces[i]), err));
out:
    zt_save_parts_free(&parts);
    return rc;
}
