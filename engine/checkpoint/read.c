/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/read.c: stretches of tensors out of the rectangles of a checkpoint; see read.h. Files
 * are read in whole pieces, each verified, into a cache of at most 64 MiB: whoever asks tensor by tensor
 * in the table's order, as files are written, gets each piece read once as long as the pieces that the
 * files of one unit's owners are at fit together. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <xxhash.h>

#include "core/convert.h"
#include "engine/checkpoint/ckpt.h"

/* ---- pieces ---- */

static int check_piece(const struct zt_index_file *f, const char *path, int64_t piece, const unsigned char *data, struct zt_error *err) {
    const int64_t n = ckpt_piece_bytes(f, piece), at = piece * ZT_CKPT_PIECE;
    const XXH128_hash_t h = XXH3_128bits(data, (size_t)n);
    if (h.low64 == f->pieces[piece].lo && h.high64 == f->pieces[piece].hi) return 0;
    return zt_fail(err, ZT_ECORRUPT, "%s: bytes %lld to %lld are not those that were written (XXH3-128)", path, (long long)at, (long long)(at + n - 1));
}

int ckpt_read_piece(const struct zt_ckpt *c, const char *folder, int rank, int file, int64_t piece, unsigned char *out, struct zt_error *err) {
    const struct zt_index_file *f = &c->ranks[rank].files[file];
    const size_t n = (size_t)ckpt_piece_bytes(f, piece);
    char path[CKPT_PATH];
    struct stat st;
    int rc = ckpt_path(path, folder, f->name, NULL, err);
    if (rc) return rc;
    const int fd = c->sys->open(c->sys->arg, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOENT) return zt_fail(err, ZT_ECORRUPT, "%s: is missing", path);
    if (fd == -ELOOP) return zt_fail(err, ZT_ECORRUPT, "%s: is a symbolic link, not a file", path);
    if (fd < 0) return ckpt_io_failed(path, "cannot be opened", fd, NULL, err);
    rc = c->sys->fstat(c->sys->arg, fd, &st);
    if (rc < 0) {
        rc = ckpt_io_failed(path, "cannot be looked at", rc, NULL, err);
    } else if (!S_ISREG(st.st_mode) || st.st_size != f->bytes) {
        rc = zt_fail(err, ZT_ECORRUPT, "%s: has %lld bytes, %lld were written", path, (long long)st.st_size, (long long)f->bytes);
    } else {
        const ssize_t got = zt_sys_pread_all(c->sys, fd, out, n, piece * ZT_CKPT_PIECE);
        rc = got < 0             ? ckpt_io_failed(path, "reading failed", (int)got, NULL, err)
             : (size_t)got != n ? zt_fail(err, ZT_ECORRUPT, "%s: ended while it was read", path)
                                 : check_piece(f, path, piece, out, err);
    }
    c->sys->close(c->sys->arg, fd);
    return rc;
}

/* A slot with room for `bytes`: as many of the least recently used go as it takes. */
static struct ckpt_slot *make_room(struct zt_ckpt *c, int64_t bytes) {
    for (;;) {
        struct ckpt_slot *vacant = NULL, *oldest = NULL;
        for (int i = 0; i < CKPT_SLOTS; i++) {
            struct ckpt_slot *s = &c->slots[i];
            if (!s->data)
                vacant = s;
            else if (!oldest || s->used < oldest->used)
                oldest = s;
        }
        if (vacant && c->cached + bytes <= CKPT_CACHE) return vacant;
        c->cached -= oldest->bytes;
        free(oldest->data);
        *oldest = (struct ckpt_slot){0};
    }
}

static int load_piece(struct zt_ckpt *c, int rank, int file, int64_t piece, struct ckpt_slot *s, struct zt_error *err) {
    const int64_t bytes = ckpt_piece_bytes(&c->ranks[rank].files[file], piece);
    struct zt_error passed_over;
    unsigned char *data = malloc((size_t)bytes);
    if (!data) return zt_fail(err, ZT_ENOMEM, "%s: no memory to read it", c->folder);
    const bool memory = c->in_memory[rank] && ckpt_read_piece(c, c->memory, rank, file, piece, data, &passed_over) == 0;
    const int rc = memory ? 0 : ckpt_read_piece(c, c->folder, rank, file, piece, data, err);
    if (rc) {
        free(data);
        return rc;
    }
    *(memory ? &c->read_memory : &c->read_disk) += bytes;
    *s = (struct ckpt_slot){rank, file, piece, bytes, 0, data};
    c->cached += bytes;
    return 0;
}

static bool is_slot(const struct ckpt_slot *s, int rank, int file, int64_t piece) {
    return s->data && s->rank == rank && s->file == file && s->piece == piece;
}

/* The bytes of a piece; valid until the next call. */
static int piece_data(struct zt_ckpt *c, int rank, int file, int64_t piece, const unsigned char **data, struct zt_error *err) {
    if (!is_slot(&c->slots[c->last], rank, file, piece)) {
        int i = 0;
        while (i < CKPT_SLOTS && !is_slot(&c->slots[i], rank, file, piece)) i++;
        if (i == CKPT_SLOTS) {
            struct ckpt_slot *s = make_room(c, ckpt_piece_bytes(&c->ranks[rank].files[file], piece));
            const int rc = load_piece(c, rank, file, piece, s, err);
            if (rc) return rc;
            i = (int)(s - c->slots);
        }
        c->last = i;
    }
    c->slots[c->last].used = ++c->clock;
    *data = c->slots[c->last].data;
    return 0;
}

/* ---- tensors ---- */

/* n elements from element `from` of a part on. Elements lie on multiples of their size, so none is cut by
 * a piece's end. */
static int read_run(struct zt_ckpt *c, const struct ckpt_part *p, enum zt_dtype type, int64_t from, int64_t n, enum zt_dtype as, char *out,
                    struct zt_error *err) {
    const int64_t size = (int64_t)zt_dtype_size(type), out_size = (int64_t)zt_dtype_size(as);
    while (n > 0) {
        const int64_t at = p->at + from * size, inside = at % ZT_CKPT_PIECE, room = (ZT_CKPT_PIECE - inside) / size, k = n < room ? n : room;
        const unsigned char *data;
        const int rc = piece_data(c, p->rank, p->file, at / ZT_CKPT_PIECE, &data, err);
        if (rc) return rc;
        zt_convert(out, as, data + inside, type, k);
        out += k * out_size;
        from += k;
        n -= k;
    }
    return 0;
}

/* What rectangle q, whose elements go to `out` row by row, has in common with a part; *done counts elements. */
static int read_common(struct zt_ckpt *c, const struct ckpt_part *p, enum zt_dtype type, const struct zt_rect *q, enum zt_dtype as, char *out,
                       int64_t *done, struct zt_error *err) {
    int64_t from[2], size[2];
    const struct zt_rect *r = &p->rect;
    for (int d = 0; d < 2; d++) {
        const int64_t end_r = r->from[d] + r->size[d], end_q = q->from[d] + q->size[d];
        from[d] = r->from[d] > q->from[d] ? r->from[d] : q->from[d];
        size[d] = (end_r < end_q ? end_r : end_q) - from[d];
        if (size[d] <= 0) return 0;
    }
    *done += size[0] * size[1];
    if (size[1] == r->size[1] && size[1] == q->size[1]) { /* whole rows of both: one run */
        size[1] *= size[0];
        size[0] = 1;
    }
    for (int64_t row = 0; row < size[0]; row++) {
        const int64_t in_part = (from[0] + row - r->from[0]) * r->size[1] + from[1] - r->from[1];
        const int64_t in_q = (from[0] + row - q->from[0]) * q->size[1] + from[1] - q->from[1];
        const int rc = read_run(c, p, type, in_part, size[1], as, out + in_q * (int64_t)zt_dtype_size(as), err);
        if (rc) return rc;
    }
    return 0;
}

static int find(const struct zt_ckpt *c, const char *name) {
    int low = 0, high = c->manifest.n_tensors;
    while (low < high) {
        const int mid = low + (high - low) / 2, order = strcmp(c->manifest.tensors[c->by_name[mid]].name, name);
        if (order == 0) return c->by_name[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

static int check_request(const struct zt_ckpt *c, int tensor, const char *name, enum zt_saved kind, int ndim, const int64_t shape[2],
                         struct zt_error *err) {
    if (tensor < 0) return zt_fail(err, ZT_EINVAL, "%s: has no tensor %s", c->folder, name);
    const struct zt_saved_tensor *t = &c->manifest.tensors[tensor];
    if (!t->has[kind]) return zt_fail(err, ZT_EINVAL, "%s: has no %s%s", c->folder, name, zt_saved_suffix(kind));
    const int64_t columns = ndim == 2 ? shape[1] : 1;
    if (t->ndim != ndim || t->shape[0] != shape[0] || t->shape[1] != columns) {
        char is[64], wanted[64];
        ckpt_pair(is, t->ndim, t->shape[0], t->shape[1]);
        ckpt_pair(wanted, ndim, shape[0], columns);
        return zt_fail(err, ZT_EINVAL, "%s: tensor %s is %s there, the run's is %s", c->folder, name, is, wanted);
    }
    return 0;
}

static int source_read(void *arg, const char *name, enum zt_saved kind, int ndim, const int64_t shape[2], struct zt_span span, int64_t count,
                       enum zt_dtype as, void *out, struct zt_error *err) {
    struct zt_ckpt *c = arg;
    const int tensor = find(c, name);
    int rc = check_request(c, tensor, name, kind, ndim, shape, err);
    if (rc) return rc;
    const struct zt_saved_tensor *t = &c->manifest.tensors[tensor];
    const int64_t list = (int64_t)tensor * ZT_SAVED_COUNT + kind;
    struct zt_rect q[ZT_SPAN_RECTS];
    char *to = out;
    const int n = zt_span_rects(span, count, t->shape[1], q);
    for (int i = 0; i < n; i++) {
        int64_t done = 0;
        for (int64_t k = c->first[list]; k < c->first[list + 1] && c->parts[k].rect.from[0] < q[i].from[0] + q[i].size[0]; k++) {
            rc = read_common(c, &c->parts[k], t->type[kind], &q[i], as, to, &done, err);
            if (rc) return rc;
        }
        if (done != q[i].size[0] * q[i].size[1])
            return zt_fail(err, ZT_EINVAL, "%s: tensor %s: elements past its end were asked for", c->folder, name);
        to += done * (int64_t)zt_dtype_size(as);
    }
    return 0;
}

/* ---- the source ---- */

static const char *source_name_at(void *arg, int i) {
    const struct zt_ckpt *c = arg;
    return i >= 0 && i < c->manifest.n_tensors ? c->manifest.tensors[i].name : NULL;
}

static bool source_has(void *arg, const char *name, enum zt_saved kind) {
    const struct zt_ckpt *c = arg;
    const int t = find(c, name);
    return t >= 0 && c->manifest.tensors[t].has[kind];
}

static int64_t source_buffer_bytes(void *arg) {
    const struct zt_ckpt *c = arg;
    return c->bytes < CKPT_CACHE ? c->bytes : CKPT_CACHE;
}

static int64_t source_read_bytes(void *arg, bool memory) {
    const struct zt_ckpt *c = arg;
    return memory ? c->read_memory : c->read_disk;
}

static void source_close(void *arg) { zt_ckpt_close(arg); }

struct zt_tensor_source zt_ckpt_source(struct zt_ckpt *c) {
    return (struct zt_tensor_source){.arg = c, .name_at = source_name_at, .has = source_has, .read = source_read, .buffer_bytes = source_buffer_bytes,
                                     .read_bytes = source_read_bytes, .close = source_close};
}
