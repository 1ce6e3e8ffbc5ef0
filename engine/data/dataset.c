/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/dataset.c: files, their formats, and samples read out of them. A set is immutable
 * once open; its memory is its own; zt_dataset_read may be called from any thread. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/units.h"
#include "engine/data/internal.h"

#define BIN_HEADER_BYTES 1024 /* 256 int32 of llm.c */
#define BIN_MAGIC_U16 20240520
#define BIN_MAGIC_U32 20240801

struct data_file {
    char *path;
    int64_t tokens, first_byte;
    int width; /* bytes per token */
    bool text;
    int64_t first_sample; /* of this file within the set */
    int64_t samples;      /* of this file in this set */
    int64_t skip; /* samples of the file in front of them (they belong to the other split) */
    dev_t dev;    /* what the file was when it was opened */
    ino_t ino;
    int64_t bytes;
    struct timespec changed;
};

struct zt_dataset {
    struct data_file *files;
    size_t n_files;
    int64_t samples, seq_len, vocab_size, passed_over;
    int64_t longest_skipped; /* tokens of the longest file passed over */
    bool tail_split, tail;
    const struct zt_sys *sys;
    char *path;
};

/* ---- one file ---- */

static bool ends_in(const char *s, const char *end) {
    size_t ns = strlen(s), ne = strlen(end);
    return ns >= ne && strcmp(s + ns - ne, end) == 0;
}

static int64_t le32(const unsigned char *p) {
    return (int64_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

static int read_exactly(const struct zt_sys *sys, int fd, const char *path, void *buf, size_t n,
                        int64_t at, struct zt_error *err) {
    char *p = buf;
    for (size_t done = 0; done < n;) {
        ssize_t got = sys->pread(sys->arg, fd, p + done, n - done, (off_t)at + (off_t)done);
        if (got < 0)
            return zt_fail(err, ZT_EDATA, "%s: reading at byte %" PRId64 " failed: %s", path,
                           at + (int64_t)done, strerror((int)-got));
        if (got == 0)
            return zt_fail(err, ZT_EDATA,
                           "%s: ends at byte %" PRId64 ", it was longer when the run "
                           "began; do not change data files under a run",
                           path, at + (int64_t)done);
        done += (size_t)got;
    }
    return ZT_OK;
}

static int open_file(const struct zt_sys *sys, const char *path, int *fd, struct stat *st,
                     struct zt_error *err) {
    /* NONBLOCK: were it swapped for a FIFO, opening would wait for ever. */
    *fd = sys->open(sys->arg, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd < 0) return zt_fail(err, ZT_EDATA, "%s: cannot be opened: %s", path, strerror(-*fd));
    int rc = sys->fstat(sys->arg, *fd, st);
    if (rc == 0 && S_ISREG(st->st_mode)) return ZT_OK;
    rc = rc < 0 ? zt_fail(err, ZT_EDATA, "%s: cannot be looked at: %s", path, strerror(-rc))
                : zt_fail(err, ZT_EDATA, "%s: is no longer a regular file", path);
    sys->close(sys->arg, *fd);
    return rc;
}

/* Fills width, first_byte and tokens of a .bin from its header, or takes it as raw uint16. */
static int read_bin_header(const struct zt_sys *sys, int fd, struct data_file *f,
                           struct zt_error *err) {
    unsigned char h[12];
    f->width = 2;
    f->first_byte = 0;
    int64_t magic = 0;
    if (f->bytes >= 4) {
        int rc = read_exactly(sys, fd, f->path, h, 4, 0, err);
        if (rc != ZT_OK) return rc;
        magic = le32(h);
    }
    if (magic != BIN_MAGIC_U16 && magic != BIN_MAGIC_U32) {
        if (f->bytes % 2 != 0)
            return zt_fail(err, ZT_EDATA,
                           "%s: has %" PRId64 " bytes and no known header; tokens of 16 bits "
                           "need an even number: the file is damaged or not a token file",
                           f->path, f->bytes);
        f->tokens = f->bytes / 2;
        return ZT_OK;
    }
    if (f->bytes < BIN_HEADER_BYTES)
        return zt_fail(err, ZT_EDATA,
                       "%s: is cut short: its header alone has %d bytes, the file %" PRId64,
                       f->path, BIN_HEADER_BYTES, f->bytes);
    int rc = read_exactly(sys, fd, f->path, h, sizeof h, 0, err);
    if (rc != ZT_OK) return rc;
    int64_t version = le32(h + 4), said = le32(h + 8);
    f->first_byte = BIN_HEADER_BYTES;
    f->width = magic == BIN_MAGIC_U32 ? 4 : 2;
    if (version != 1 && version != 7)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "%s: token file version %" PRId64 " is not known (1 and 7 are)", f->path,
                       version);
    int64_t room = f->bytes - BIN_HEADER_BYTES;
    if (room != said * f->width)
        return zt_fail(err, ZT_EDATA,
                       "%s: its header says %" PRId64 " tokens of %d bytes, %" PRId64 " bytes "
                       "follow: it is cut short or damaged; make or download it again",
                       f->path, said, f->width, room);
    f->tokens = said;
    return ZT_OK;
}

static int inspect_file(const struct zt_sys *sys, struct data_file *f, struct zt_error *err) {
    struct stat st;
    int fd;
    int rc = open_file(sys, f->path, &fd, &st, err);
    if (rc != ZT_OK) return rc;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->bytes = (int64_t)st.st_size;
    f->changed = st.st_mtim;
    f->text = !ends_in(f->path, ".bin");
    if (f->text) {
        f->width = 1;
        f->tokens = f->bytes;
    } else {
        rc = read_bin_header(sys, fd, f, err);
    }
    sys->close(sys->arg, fd);
    return rc;
}

/* ---- the set ---- */

static void tell(const struct zt_dataset_config *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void tell(const struct zt_dataset_config *c, const char *fmt, ...) {
    if (!c->event) return;
    char msg[ZT_PATH_MAX + 256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->event(c->event_arg, "DATA_SKIPPED", msg);
}

static void split_file(const struct zt_dataset *d, double fraction, struct data_file *f) {
    int64_t all = (f->tokens - 1) / d->seq_len; /* tokens >= seq_len + 1 here: no wrap below zero */
    f->skip = 0;
    f->samples = all;
    if (!d->tail_split) return;
    /* The small term undoes fractions like 0.29 x 100 = 28.999999999999996. */
    int64_t held = (int64_t)floor((double)all * fraction + 1e-9);
    f->skip = d->tail ? all - held : 0;
    f->samples = d->tail ? held : all - held;
}

/* Decides about one name: taken into d->files, passed over, or refused. Takes `path` over. */
static int take_file(struct zt_dataset *d, const struct zt_dataset_config *c, char *path,
                     bool single, struct zt_error *err) {
    struct data_file f = {.path = path};
    int rc = ZT_OK;
    bool keep = false;
    if (ends_in(path, ".jsonl"))
        rc = zt_fail(err, ZT_EUNSUPPORTED,
                     "%s: jsonl is not read in this version; convert it to text or to "
                     "a .bin token file",
                     path);
    else if (!ends_in(path, ".bin") && c->tokenizer == ZT_TOKENIZER_NONE) {
        if (single)
            rc = zt_fail(err, ZT_EDATA,
                         "%s: dataset.tokenizer is none, which takes .bin token files only; "
                         "set it to bytes to read text",
                         path);
        else
            tell(c, "%s: not a .bin token file, passed over (dataset.tokenizer: none)", path);
    } else if ((rc = inspect_file(d->sys, &f, err)) == ZT_OK) {
        keep = f.tokens >= d->seq_len + 1;
        int64_t need =
            single && c->min_samples > 1 ? c->min_samples * d->seq_len + 1 : d->seq_len + 1;
        if (!keep && !f.text)
            rc =
                zt_fail(err, ZT_EDATA,
                        "%s: has %" PRId64 " tokens and needs at least %" PRId64
                        " for training.seq_len %" PRId64 "; use a longer file or a smaller seq_len",
                        path, f.tokens, need, d->seq_len);
        else if (!keep && !single) /* a single one is refused by name below */
            tell(c,
                 "%s: has %" PRId64 " bytes, fewer than the %" PRId64 " of one sample; passed over",
                 path, f.tokens, d->seq_len + 1);
    }
    if (!keep || rc != ZT_OK) {
        d->passed_over += rc == ZT_OK;
        if (f.tokens > d->longest_skipped) d->longest_skipped = f.tokens;
        free(path);
        return rc;
    }
    split_file(d, c->tail_fraction, &f);
    f.first_sample = d->samples;
    d->samples += f.samples;
    d->files[d->n_files++] = f;
    return ZT_OK;
}

int zt_dataset_need(const struct zt_dataset *d, int64_t need, const char *need_what,
                    struct zt_error *err) {
    if (d->samples >= need) return ZT_OK;
    int64_t tokens = need * d->seq_len + 1;
    const char *part = !d->tail_split ? ""
                       : d->tail      ? " in the held-out tail (validation.fraction)"
                                      : " outside the held-out tail (validation.fraction)";
    if (d->n_files == 0)
        return zt_fail(err, ZT_EDATA,
                       "%s: every file is too short: the longest has %" PRId64 " tokens, %s of "
                       "training.seq_len %" PRId64 " needs at least %" PRId64
                       "; use more data or a smaller "
                       "seq_len",
                       d->path, d->longest_skipped, need_what, d->seq_len, tokens);
    if (d->n_files == 1)
        return zt_fail(err, ZT_EDATA,
                       "%s: has %" PRId64 " tokens, that is %" PRId64 " samples of "
                       "training.seq_len %" PRId64 "%s; %s needs %" PRId64
                       " samples, at least %" PRId64
                       " tokens; use more data, or a smaller seq_len or batch",
                       d->files[0].path, d->files[0].tokens, d->samples, d->seq_len, part,
                       need_what, need, tokens);
    return zt_fail(err, ZT_EDATA,
                   "%s: %zu files (first %s) give %" PRId64 " samples of training.seq_len %" PRId64
                   "%s; %s needs %" PRId64 " samples, at least %" PRId64
                   " tokens; use more data, or "
                   "a smaller seq_len or batch",
                   d->path, d->n_files, d->files[0].path, d->samples, d->seq_len, part, need_what,
                   need, tokens);
}

static int fill_set(struct zt_dataset *d, const struct zt_dataset_config *c, struct zt_file_list *l,
                    struct zt_error *err) {
    d->files = calloc(l->count, sizeof *d->files);
    if (!d->files) return zt_fail(err, ZT_ENOMEM, "no memory for %zu data files", l->count);
    if (l->links + l->others > 0)
        tell(c,
             "%s: %" PRId64 " symbolic links and %" PRId64 " folders or special files passed over",
             c->path, l->links, l->others);
    for (size_t i = 0; i < l->count; i++) {
        char *name = l->names[i];
        l->names[i] = NULL; /* take_file owns it now */
        int rc = take_file(d, c, name, l->single, err);
        if (rc != ZT_OK) return rc;
    }
    return zt_dataset_need(d, c->min_samples > 1 ? c->min_samples : 1,
                           c->min_samples > 1 ? "one global batch" : "one sample", err);
}

int zt_dataset_open(const struct zt_dataset_config *c, struct zt_dataset **out,
                    struct zt_error *err) {
    *out = NULL;
    /* 2^31 tokens a sample and 2^31 samples of need keep every product below in int64. */
    if (c->seq_len < 1 || c->seq_len > INT32_MAX || c->vocab_size < 1 || c->vocab_size > INT32_MAX)
        return zt_fail(err, ZT_EINVAL,
                       "a data set needs 1 <= seq_len, vocab_size < 2^31, not %" PRId64
                       " and %" PRId64,
                       c->seq_len, c->vocab_size);
    if (c->min_samples > INT32_MAX)
        return zt_fail(err, ZT_EINVAL,
                       "training.global_batch_size: %" PRId64 " sequences are more than a step "
                       "can have (2^31 - 1)",
                       c->min_samples);
    if (!(c->tail_fraction >= 0 && c->tail_fraction < 1) || (c->tail && c->tail_fraction <= 0))
        return zt_fail(err, ZT_EINVAL, "validation.fraction must be in (0, 1), not %g",
                       c->tail_fraction);
    struct zt_file_list l;
    int rc = zt_file_list_make(c->path, &l, err);
    if (rc != ZT_OK) return rc;
    struct zt_dataset *d = calloc(1, sizeof *d);
    if (d) {
        d->seq_len = c->seq_len;
        d->vocab_size = c->vocab_size;
        d->tail_split = c->tail_fraction > 0;
        d->tail = c->tail;
        d->sys = c->sys ? c->sys : &zt_sys_posix;
        d->path = strdup(c->path);
    }
    rc = d && d->path ? fill_set(d, c, &l, err)
                      : zt_fail(err, ZT_ENOMEM, "no memory for a data set");
    zt_file_list_free(&l);
    if (rc == ZT_OK)
        *out = d;
    else
        zt_dataset_close(d);
    return rc;
}

void zt_dataset_close(struct zt_dataset *d) {
    if (!d) return;
    for (size_t i = 0; i < d->n_files; i++) free(d->files[i].path);
    free(d->files);
    free(d->path);
    free(d);
}

int64_t zt_dataset_samples(const struct zt_dataset *d) { return d->samples; }

int64_t zt_dataset_seq_len(const struct zt_dataset *d) { return d->seq_len; }

/* FNV-1a, 64 bits. */
static uint64_t mix(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t zt_dataset_digest(const struct zt_dataset *d) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < d->n_files; i++) {
        const struct data_file *f = &d->files[i];
        const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;
        int64_t numbers[] = {f->tokens, f->width, f->first_byte, f->skip, f->samples};
        h = mix(h, name, strlen(name) + 1);
        h = mix(h, numbers, sizeof numbers);
    }
    return h;
}

/* ---- samples ---- */

static const struct data_file *file_of(const struct zt_dataset *d, int64_t sample) {
    size_t low = 0, high = d->n_files - 1;
    while (low < high) { /* last file whose first_sample <= sample; empty files come before it */
        size_t mid = (low + high + 1) / 2;
        if (d->files[mid].first_sample <= sample)
            low = mid;
        else
            high = mid - 1;
    }
    return &d->files[low];
}

static int same_file(const struct data_file *f, const struct stat *st, struct zt_error *err) {
    if (st->st_dev == f->dev && st->st_ino == f->ino && (int64_t)st->st_size == f->bytes &&
        st->st_mtim.tv_sec == f->changed.tv_sec && st->st_mtim.tv_nsec == f->changed.tv_nsec)
        return ZT_OK;
    return zt_fail(err, ZT_EDATA,
                   "%s: is not the file it was when the run began; do not change data files "
                   "under a run",
                   f->path);
}

/* raw: n tokens of `width` bytes at the very end of `tokens`' own memory. Walking forward, token i
 * is read before place i is written, and place i never reaches the raw bytes of token i + 1. */
static int64_t widen(int32_t *tokens, int64_t n, int width, int64_t vocab) {
    const unsigned char *raw = (const unsigned char *)tokens + n * (4 - width);
    for (int64_t i = 0; i < n; i++, raw += width) {
        int64_t v = width == 1 ? raw[0] : width == 2 ? raw[0] | raw[1] << 8 : le32(raw);
        if (v >= vocab) return i;
        tokens[i] = (int32_t)v;
    }
    return n;
}

int zt_dataset_read(const struct zt_dataset *d, int64_t sample, int32_t *tokens,
                    struct zt_error *err) {
    ZT_ASSERT(sample >= 0 && sample < d->samples);
    const struct data_file *f = file_of(d, sample);
    int64_t first = (sample - f->first_sample + f->skip) * d->seq_len, n = d->seq_len + 1;
    int64_t at = f->first_byte + first * f->width;
    struct stat st;
    int fd;
    int rc = open_file(d->sys, f->path, &fd, &st, err);
    if (rc != ZT_OK) return rc;
    unsigned char *raw = (unsigned char *)tokens + n * (4 - f->width);
    rc = same_file(f, &st, err);
    if (rc == ZT_OK) rc = read_exactly(d->sys, fd, f->path, raw, (size_t)(n * f->width), at, err);
    d->sys->close(d->sys->arg, fd);
    if (rc != ZT_OK) return rc;
    unsigned char id[4] = {0};
    int64_t good = widen(tokens, n, f->width, d->vocab_size);
    if (good == n) return ZT_OK;
    memcpy(id, raw + good * f->width, (size_t)f->width);
    return zt_fail(err, ZT_EDATA,
                   "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64 ", outside the "
                   "model's vocabulary of %" PRId64 "; this data was made with another tokenizer",
                   f->path, first + good, at + good * f->width, le32(id), d->vocab_size);
}
