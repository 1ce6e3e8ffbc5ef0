/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_read.c: stretches of tensors out of the files of a Hugging Face folder, through
 * bounded buffers; GPT-2's linears are turned from [in, out] on the way. */
#include <stdlib.h>
#include <string.h>
#include "core/convert.h"
#include "engine/checkpoint/hf_int.h"

int zt_hf_load(struct zt_hf *h, const struct zt_hf_place *p, int64_t first, int64_t n, void *to, struct zt_error *err) {
    const struct zt_hf_file *f = &h->files[p->file];
    const int64_t size = (int64_t)zt_dtype_size(p->type), at = p->at + first * size, bytes = n * size;
    for (int64_t done = 0; done < bytes;) {
        ssize_t got = h->sys->pread(h->sys->arg, f->fd, (char *)to + done, (size_t)(bytes - done), (off_t)(at + done));
        if (got < 0)
            return zt_fail(err, ZT_EIO, "%s/%s: read at byte %lld: %s", h->folder, f->name, (long long)(at + done),
                           strerror((int)-got));
        if (got == 0)
            return zt_fail(err, ZT_ECORRUPT, "%s/%s: ends at byte %lld; it was cut while it was read", h->folder, f->name,
                           (long long)(at + done));
        done += got;
    }
    h->read_bytes += bytes;
    return 0;
}

/* As it lies: each stretch of consecutive elements, in pieces of the buffer. */
static int read_plain(struct zt_hf *h, const struct zt_hf_place *p, const struct zt_span *span, int64_t count,
                      enum zt_dtype as, char *out, struct zt_error *err) {
    const int64_t most = (int64_t)(ZT_HF_BUFFER / zt_dtype_size(p->type));
    for (int64_t i = 0; i < count;) {
        uint64_t index;
        int64_t n = zt_span_run(span, i, count - i, &index);
        n = n < most ? n : most;
        int rc = zt_hf_load(h, p, (int64_t)index, n, h->raw, err);
        if (rc) return rc;
        zt_convert(out + (size_t)i * zt_dtype_size(as), as, h->raw, p->type, n);
        i += n;
    }
    return 0;
}

/* Parts of consecutive rows o, o + 1, ... of a matrix of ours: columns of the file. */
struct block { int64_t row, n, low, high; };

/* The next parts from element *i of the request on, at most ZT_HF_COLUMNS rows. */
static struct block next_block(struct zt_hf *h, const struct zt_span *span, int64_t columns, int64_t count, int64_t *i) {
    struct block b = {.n = 0};
    while (*i < count && b.n < ZT_HF_COLUMNS) {
        uint64_t index;
        int64_t n = zt_span_run(span, *i, count - *i, &index);
        const int64_t row = (int64_t)index / columns, from = (int64_t)index % columns;
        n = n < columns - from ? n : columns - from;
        if (b.n > 0 && row != b.row + b.n) break;
        if (b.n == 0) b = (struct block){row, 0, from, from + n};
        b.low = from < b.low ? from : b.low;
        b.high = from + n > b.high ? from + n : b.high;
        h->part_from[b.n] = from;
        h->part_n[b.n] = n;
        h->part_at[b.n++] = *i;
        *i += n;
    }
    return b;
}

static void scatter(const struct zt_hf *h, const struct block *b, int64_t column, size_t size, char *out) {
    const char *from = h->turned;
    for (int64_t k = 0; k < b->n; k++) {
        const int64_t at = column - h->part_from[k];
        if (at < 0 || at >= h->part_n[k]) continue;
        memcpy(out + (size_t)(h->part_at[k] + at) * size, from + (size_t)k * size, size);
    }
}

static int read_turned(struct zt_hf *h, const struct zt_hf_place *p, const int64_t shape[2], const struct zt_span *span,
                       int64_t count, enum zt_dtype as, char *out, struct zt_error *err) {
    for (int64_t i = 0; i < count;) {
        const struct block b = next_block(h, span, shape[1], count, &i);
        for (int64_t column = b.low; column < b.high; column++) {
            int rc = zt_hf_load(h, p, column * shape[0] + b.row, b.n, h->raw, err);
            if (rc) return rc;
            zt_convert(h->turned, as, h->raw, p->type, b.n);
            scatter(h, &b, column, zt_dtype_size(as), out);
        }
    }
    return 0;
}

/* ---- as a source ---- */

static const char *name_at(void *arg, int i) {
    const struct zt_hf *h = arg;
    return i >= 0 && i < h->table.n_tensors ? h->table.tensors[i].name : NULL;
}

static bool has(void *arg, const char *name, enum zt_saved kind) {
    return kind == ZT_SAVED_PARAMETER && zt_hf_find(arg, name) >= 0;
}

static int read_span(void *arg, const char *name, enum zt_saved kind, int ndim, const int64_t shape[2],
                     struct zt_span span, int64_t count, enum zt_dtype as, void *out, struct zt_error *err) {
    struct zt_hf *h = arg;
    int i = kind == ZT_SAVED_PARAMETER ? zt_hf_find(h, name) : -1;
    if (i < 0) return zt_fail(err, ZT_EINVAL, "%s: has no tensor \"%s%s\"", h->folder, name, zt_saved_suffix(kind));
    const struct zt_tensor_def *d = &h->table.tensors[i];
    if (ndim != d->ndim || shape[0] != d->whole[0] || (ndim > 1 && shape[1] != d->whole[1]))
        return zt_fail(err, ZT_EINVAL, "%s: tensor \"%s\" is [%lld, %lld], the run's is [%lld, %lld]", h->folder, name,
                       (long long)d->whole[0], (long long)d->whole[1], (long long)shape[0], (long long)shape[1]);
    const struct zt_hf_place *p = &h->place[i];
    return p->turned ? read_turned(h, p, d->whole, &span, count, as, out, err)
                     : read_plain(h, p, &span, count, as, out, err);
}

static int64_t buffer_bytes(void *arg) {
    (void)arg;
    return (int64_t)(ZT_HF_BUFFER + ZT_HF_COLUMNS * (sizeof(float) + 3 * sizeof(int64_t)));
}

static int64_t read_bytes(void *arg, bool memory) { return memory ? 0 : ((const struct zt_hf *)arg)->read_bytes; }

static void close_source(void *arg) { zt_hf_close(arg); }

struct zt_tensor_source zt_hf_source(struct zt_hf *h) {
    return (struct zt_tensor_source){h, name_at, has, read_span, buffer_bytes, read_bytes, close_source};
}
