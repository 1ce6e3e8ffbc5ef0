/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/write.c: the files of one rank; see write.h. One pass over the memory: a block of a
 * piece is looked at for values that are not finite, hashed by element, hashed by byte and written while
 * it is in the cache. */
#include "engine/checkpoint/write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "engine/checkpoint/stream.h"

enum { BLOCK = 128 << 10 };

struct writing {
    const struct zt_shard_write *w;
    struct zt_shard_layout layout;
    struct zt_index index;
    struct stream_watch watch;
    char folder[CKPT_PATH]; /* the temporary one */
    void *buffer;
};

static int not_finite(const struct zt_shard_write *w, const struct zt_saved_piece *p, int64_t element, struct zt_error *err) {
    const struct zt_saved_tensor *t = &w->tensors[p->tensor];
    char place[64];
    ckpt_pair(place, t->ndim, p->rect.from[0] + element / p->rect.size[1], p->rect.from[1] + element % p->rect.size[1]);
    return zt_fail(err, ZT_ENAN, "step %lld: %s%s%s on rank %d is not finite; nothing of this step is kept", (long long)w->step, t->name,
                   zt_saved_suffix(p->kind), place, w->rank);
}

static int put_piece(struct writing *g, struct stream *s, const struct zt_saved_piece *p, struct zt_error *err) {
    const struct zt_saved_tensor *t = &g->w->tensors[p->tensor];
    const int64_t size = (int64_t)zt_dtype_size(p->type), n = p->rect.size[0] * p->rect.size[1], block = BLOCK / size;
    struct zt_hash128 *const sums[] = {NULL, &g->index.parameter_hash, &g->index.state_hash};
    uint32_t word;
    struct zt_hash128 *sum = sums[ckpt_hash_of(t, p->kind, &word)];
    for (int64_t i = 0; i < n; i += block) {
        const int64_t k = n - i < block ? n - i : block;
        const char *at = (const char *)p->values + i * size;
        const int64_t bad = ckpt_look_rect(p->type, at, &p->rect, t->shape[1], i, k, word, sum);
        if (bad >= 0) return not_finite(g->w, p, bad, err);
        const int rc = stream_put(s, at, (size_t)(k * size), err);
        if (rc) return rc;
    }
    return 0;
}

/* File f; the pieces from *next on in the layout's order that belong to it. */
static int write_file(struct writing *g, int f, int *next, struct zt_error *err) {
    const struct zt_shard_write *w = g->w;
    const struct zt_shard_file *file = &g->layout.files[f];
    struct zt_index_file *out = &g->index.files[f];
    struct stream *s;
    char path[CKPT_PATH];
    int rc = ckpt_path(path, g->folder, file->name, NULL, err);
    if (rc) return rc;
    strcpy(out->name, file->name);
    rc = stream_open(w->sys, path, file->bytes, g->watch, &s, err);
    if (rc) return rc;
    rc = stream_put(s, file->head, (size_t)file->head_bytes, err);
    for (; !rc && *next < w->n_pieces && g->layout.file_of[g->layout.order[*next]] == f; ++*next)
        rc = put_piece(g, s, &w->pieces[g->layout.order[*next]], err);
    if (rc) {
        stream_abandon(s);
        return rc;
    }
    rc = stream_end(s, out, err);
    return rc ? rc : stream_read_back(w->sys, path, out, g->buffer, g->watch, err);
}

/* A copy beside the images in memory: it says what they are. Not synced: memory does not outlive the machine. */
static void copy_index(const struct zt_shard_write *w, const char *name, const char *text, size_t n) {
    char path[CKPT_PATH];
    struct zt_error ignored;
    if (!w->memory || ckpt_path(path, w->memory, name, NULL, &ignored)) return;
    const int fd = w->sys->open(w->sys->arg, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd < 0) return; /* a copy that is not there is passed over */
    zt_sys_pwrite_all(w->sys, fd, text, n, 0);
    w->sys->close(w->sys->arg, fd);
}

static int write_index(struct writing *g, struct zt_sha256 *hash, struct zt_error *err) {
    const struct zt_shard_write *w = g->w;
    char name[32], path[CKPT_PATH], *text = NULL;
    size_t n = 0;
    for (int i = 0; i < w->n_pieces; i++)
        g->index.parts[i] = (struct zt_index_part){w->pieces[i].tensor, (int)w->pieces[i].kind, g->layout.file_of[i], g->layout.at[i], w->pieces[i].rect};
    zt_ckpt_rank_name(w->rank, name);
    int rc = ckpt_path(path, g->folder, name, NULL, err);
    if (!rc) rc = zt_index_text(&g->index, &text, &n, err);
    if (!rc) rc = ckpt_write_text(w->sys, path, text, n, g->watch.disk_full, err);
    if (!rc) {
        const int synced = zt_sys_fsync_folder(w->sys, g->folder);
        if (synced < 0) rc = ckpt_io_failed(g->folder, "syncing failed", synced, g->watch.disk_full, err);
    }
    if (!rc) {
        zt_sha256_of(text, n, hash);
        copy_index(w, name, text, n);
    }
    free(text);
    return rc;
}

static int make_folder(struct writing *g, struct zt_error *err) {
    const struct zt_shard_write *w = g->w;
    char name[64];
    zt_ckpt_temp_name(w->step, w->generation, name);
    int rc = ckpt_path(g->folder, w->folder, name, NULL, err);
    if (rc) return rc;
    rc = ZT_FAILPOINT("ckpt.tmp_folder") ? -EIO : zt_sys_make_folders(w->sys, g->folder, 0755);
    return rc < 0 ? ckpt_io_failed(g->folder, "cannot be made", rc, g->watch.disk_full, err) : 0;
}

/* As far as that works: a sweep takes what stays. */
static void remove_own(struct writing *g) {
    char path[CKPT_PATH], name[32];
    struct zt_error ignored;
    for (int f = 0; f < g->layout.n_files; f++)
        if (!ckpt_path(path, g->folder, g->layout.files[f].name, NULL, &ignored)) g->w->sys->unlink(g->w->sys->arg, path);
    zt_ckpt_rank_name(g->w->rank, name);
    if (!ckpt_path(path, g->folder, name, NULL, &ignored)) g->w->sys->unlink(g->w->sys->arg, path);
}

static int write_all(struct writing *g, struct zt_sha256 *index, struct zt_error *err) {
    int next = 0, rc = make_folder(g, err);
    for (int f = 0; f < g->layout.n_files && !rc; f++) rc = write_file(g, f, &next, err);
    return rc ? rc : write_index(g, index, err);
}

int zt_shard_write(const struct zt_shard_write *w, struct zt_shard_written *out, bool *disk_full, struct zt_error *err) {
    struct writing g = {.w = w, .watch = {w->progress, w->arg, disk_full}};
    const int64_t began = w->sys->monotonic_ns(w->sys->arg);
    memset(out, 0, sizeof *out);
    *disk_full = false;
    int rc = zt_shard_layout_build(w, &g.layout, err);
    if (rc) return rc;
    g.index = (struct zt_index){.step = w->step, .generation = w->generation, .rank = w->rank, .n_parts = w->n_pieces, .n_files = g.layout.n_files};
    g.index.files = calloc((size_t)g.layout.n_files + 1, sizeof *g.index.files);
    g.index.parts = calloc((size_t)w->n_pieces + 1, sizeof *g.index.parts);
    g.buffer = malloc((size_t)ZT_CKPT_PIECE);
    if (!g.index.files || !g.index.parts || !g.buffer) {
        g.index.n_files = 0;
        rc = zt_fail(err, ZT_ENOMEM, "checkpoint of step %lld: rank %d has no memory to write it", (long long)w->step, w->rank);
    } else {
        rc = write_all(&g, &out->index, err);
        if (rc) remove_own(&g);
    }
    out->bytes = g.layout.bytes;
    out->parameter_hash = g.index.parameter_hash;
    out->state_hash = g.index.state_hash;
    out->seconds = (double)(w->sys->monotonic_ns(w->sys->arg) - began) * 1e-9;
    free(g.buffer);
    zt_index_free(&g.index);
    zt_shard_layout_free(&g.layout);
    return rc;
}
