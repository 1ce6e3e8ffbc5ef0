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
#define BIN_GPT2 1 /* what the version of an llm.c header says: the tokenizer */
#define BIN_LLAMA3 7

enum format { FORMAT_TEXT = 0, FORMAT_BIN, FORMAT_JSONL };

struct data_file {
    char *path;
    enum format format;
    int64_t tokens, first_byte;
    int width;                /* bytes per token */
    int64_t opener;           /* the token that begins every document; -1 = not known */
    struct zt_row_index rows; /* .jsonl */
    int64_t first_sample;     /* of this file within the set */
    int64_t samples;          /* of this file in this set */
    int64_t skip; /* samples of the file in front of them (they belong to the other split) */
    dev_t dev;    /* what the file was when it was opened */
    ino_t ino;
    int64_t bytes;
    struct timespec changed;
};

struct zt_dataset {
    struct data_file *files;
    size_t n_files;
    int64_t samples, seq_len, vocab_size;
    int64_t longest_skipped; /* tokens of the longest file passed over */
    bool tail_split, tail, document_starts, jsonl;
    enum zt_average average;
    struct zt_pack_count packed; /* .jsonl */
    const struct zt_sys *sys;
    char *path;
};

/* ---- one file ---- */

static bool ends_in(const char *s, const char *end) {
    size_t ns = strlen(s), ne = strlen(end);
    return ns >= ne && strcmp(s + ns - ne, end) == 0;
}

static enum format format_of(const char *path) {
    return ends_in(path, ".bin")     ? FORMAT_BIN
           : ends_in(path, ".jsonl") ? FORMAT_JSONL
                                     : FORMAT_TEXT;
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
    if (version != BIN_GPT2 && version != BIN_LLAMA3)
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
    /* llm.c begins every document with <|endoftext|> of GPT-2 or <|begin_of_text|> of Llama 3. */
    if (f->width == 2 && version == BIN_GPT2) f->opener = 50256;
    if (f->width == 4 && version == BIN_LLAMA3) f->opener = 128000;
    return ZT_OK;
}

static struct zt_pack pack_of(const struct zt_dataset *d, const struct data_file *f, int fd) {
    return (struct zt_pack){d->sys, fd, f->path, d->seq_len, d->vocab_size, d->average};
}

static int inspect_file(struct zt_dataset *d, struct data_file *f, struct zt_error *err) {
    const struct zt_sys *sys = d->sys;
    struct stat st;
    int fd;
    int rc = open_file(sys, f->path, &fd, &st, err);
    if (rc != ZT_OK) return rc;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->bytes = (int64_t)st.st_size;
    f->changed = st.st_mtim;
    f->width = 1;
    f->opener = -1;
    f->tokens = f->bytes;
    if (f->format == FORMAT_BIN) rc = read_bin_header(sys, fd, f, err);
    if (f->format == FORMAT_JSONL) {
        struct zt_pack p = pack_of(d, f, fd);
        d->jsonl = true;
        rc = zt_pack_index(&p, &f->rows, &d->packed, err);
    }
    sys->close(sys->arg, fd);
    return rc;
}

/* ---- the set ---- */

static void tell(const struct zt_dataset_config *c, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void tell(const struct zt_dataset_config *c, const char *kind, const char *fmt, ...) {
    if (!c->event) return;
    char msg[ZT_PATH_MAX + 256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->event(c->event_arg, kind, msg);
}

static void split_file(const struct zt_dataset *d, double fraction, struct data_file *f) {
    /* a text or shard has seq_len + 1 tokens at least: no wrap below zero */
    int64_t all = f->format == FORMAT_JSONL ? f->rows.n : (f->tokens - 1) / d->seq_len;
    f->skip = 0;
    f->samples = all;
    if (!d->tail_split) return;
    /* The small term undoes fractions like 0.29 x 100 = 28.999999999999996. */
    int64_t held = (int64_t)floor((double)all * fraction + 1e-9);
    f->skip = d->tail ? all - held : 0;
    f->samples = d->tail ? held : all - held;
}

/* Whether what the set was asked for can be told of such a file. */
static int check_wishes(const struct zt_dataset *d, const struct data_file *f,
                        struct zt_error *err) {
    if (d->average != ZT_AVERAGE_TOKEN && f->format != FORMAT_JSONL)
        return zt_fail(err, ZT_EINVAL,
                       "%s: loss.average: %s weighs examples, and only .jsonl files have them; use "
                       "token",
                       f->path, d->average == ZT_AVERAGE_SAMPLE ? "sample" : "square");
    if (!d->document_starts || f->format != FORMAT_BIN) return ZT_OK;
    if (f->opener < 0)
        return zt_fail(err, ZT_EINVAL,
                       "%s: dataset.document_masks: nothing says which token begins a document; an "
                       "llm.c header does for GPT-2 (16 bits, version 1) and Llama 3 (32 bits, "
                       "version 7)",
                       f->path);
    if (f->opener >= d->vocab_size)
        return zt_fail(err, ZT_EINVAL,
                       "%s: dataset.document_masks: documents begin with token %" PRId64
                       ", which is outside the model's vocabulary of %" PRId64,
                       f->path, f->opener, d->vocab_size);
    return ZT_OK;
}

/* One kind of files a set: a folder with a README beside its examples is a mistake to be told of.
 */
static int check_kind(const struct zt_dataset *d, const struct data_file *f, struct zt_error *err) {
    static const char *const kind[] = {"text", "a .bin token file", ".jsonl examples"};
    if (d->n_files == 0 || d->files[0].format == f->format) return ZT_OK;
    return zt_fail(err, ZT_EDATA,
                   "%s: is %s, %s is %s; a data set is of one kind: choose files by a pattern such "
                   "as FOLDER/*.jsonl",
                   f->path, kind[f->format], d->files[0].path, kind[d->files[0].format]);
}

/* A file that was looked at: false when it has too little and is passed over. */
static bool has_sample(const struct zt_dataset *d, const struct data_file *f) {
    return f->format == FORMAT_JSONL ? f->rows.n > 0 : f->tokens >= d->seq_len + 1;
}

/* Too little: a shard is refused, another file is told of. */
static int too_short(const struct zt_dataset *d, const struct zt_dataset_config *c,
                     const struct data_file *f, bool single, struct zt_error *err) {
    int64_t need = single && c->min_samples > 1 ? c->min_samples * d->seq_len + 1 : d->seq_len + 1;
    if (f->format == FORMAT_BIN)
        return zt_fail(err, ZT_EDATA,
                       "%s: has %" PRId64 " tokens and needs at least %" PRId64
                       " for training.seq_len %" PRId64 "; use a longer file or a smaller seq_len",
                       f->path, f->tokens, need, d->seq_len);
    if (single) return ZT_OK; /* refused by name below */
    if (f->format == FORMAT_JSONL)
        tell(c, "DATA_SKIPPED", "%s: has no example; passed over", f->path);
    else
        tell(c, "DATA_SKIPPED",
             "%s: has %" PRId64 " bytes, fewer than the %" PRId64 " of one sample; passed over",
             f->path, f->tokens, d->seq_len + 1);
    return ZT_OK;
}

static int consider(struct zt_dataset *d, const struct zt_dataset_config *c, struct data_file *f,
                    bool single, bool *keep, struct zt_error *err) {
    f->format = format_of(f->path);
    if (f->format != FORMAT_BIN && c->tokenizer == ZT_TOKENIZER_NONE) {
        if (single)
            return zt_fail(err, ZT_EDATA,
                           "%s: dataset.tokenizer is none, which takes .bin token files only; "
                           "set it to bytes to read text",
                           f->path);
        tell(c, "DATA_SKIPPED", "%s: not a .bin token file, passed over (dataset.tokenizer: none)",
             f->path);
        return ZT_OK;
    }
    int rc = check_kind(d, f, err);
    if (rc == ZT_OK) rc = inspect_file(d, f, err);
    if (rc == ZT_OK) rc = check_wishes(d, f, err);
    if (rc != ZT_OK) return rc;
    *keep = has_sample(d, f);
    return *keep ? ZT_OK : too_short(d, c, f, single, err);
}

/* Decides about one name: taken into d->files, passed over, or refused. Takes `path` over. */
static int take_file(struct zt_dataset *d, const struct zt_dataset_config *c, char *path,
                     bool single, struct zt_error *err) {
    struct data_file f = {.path = path};
    bool keep = false;
    int rc = consider(d, c, &f, single, &keep, err);
    if (!keep || rc != ZT_OK) {
        if (f.tokens > d->longest_skipped) d->longest_skipped = f.tokens;
        free(f.rows.row);
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
    if (d->jsonl)
        return zt_fail(err, ZT_EDATA,
                       "%s: %" PRId64 " examples and %" PRId64 " texts give %" PRId64 " samples of "
                       "training.seq_len %" PRId64 "%s; %s needs %" PRId64
                       "; use more data, or a smaller seq_len or batch",
                       d->path, d->packed.examples, d->packed.texts, d->samples, d->seq_len, part,
                       need_what, need);
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

/* What became of the lines; the padding is of all rows, the held-out ones too. */
static void tell_packed(const struct zt_dataset *d, const struct zt_dataset_config *c) {
    const struct zt_pack_count *p = &d->packed;
    int64_t rows = 0;
    for (size_t i = 0; i < d->n_files; i++) rows += d->files[i].rows.n;
    if (rows == 0) return;
    tell(c, "DATA_PACKED",
         "%s: %" PRId64 " examples and %" PRId64 " texts in %" PRId64 " samples: %" PRId64
         " targets count, padding %.1f %%",
         d->path, p->examples, p->texts, rows, p->supervised,
         100.0 * (double)p->padding / ((double)rows * (double)d->seq_len));
    if (p->cut.n > 0)
        tell(c, "DATA_CUT",
             "%" PRId64 " examples are longer than the %" PRId64
             " tokens of a sample and lose their ends, the first at %s",
             p->cut.n, d->seq_len + 1, p->cut.where);
    if (p->no_room.n > 0)
        tell(c, "DATA_SKIPPED",
             "%" PRId64 " examples whose prompts alone fill the %" PRId64
             " tokens of a sample are passed over, the first at %s",
             p->no_room.n, d->seq_len + 1, p->no_room.where);
    if (p->empty_lines.n > 0)
        tell(c, "DATA_SKIPPED", "%" PRId64 " empty lines are passed over, the first at %s",
             p->empty_lines.n, p->empty_lines.where);
    if (p->more_keys.n > 0)
        tell(c, "DATA_SKIPPED",
             "%" PRId64 " lines have further keys, which are not read, the first at %s",
             p->more_keys.n, p->more_keys.where);
}

static int fill_set(struct zt_dataset *d, const struct zt_dataset_config *c, struct zt_file_list *l,
                    struct zt_error *err) {
    d->files = calloc(l->count, sizeof *d->files);
    if (!d->files) return zt_fail(err, ZT_ENOMEM, "no memory for %zu data files", l->count);
    if (l->links + l->others > 0)
        tell(c, "DATA_SKIPPED",
             "%s: %" PRId64 " symbolic links and %" PRId64 " folders or special files passed over",
             c->path, l->links, l->others);
    for (size_t i = 0; i < l->count; i++) {
        char *name = l->names[i];
        l->names[i] = NULL; /* take_file owns it now */
        int rc = take_file(d, c, name, l->single, err);
        if (rc != ZT_OK) return rc;
    }
    tell_packed(d, c);
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
        d->document_starts = c->document_starts;
        d->average = c->average;
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
    for (size_t i = 0; i < d->n_files; i++) {
        free(d->files[i].path);
        free(d->files[i].rows.row);
    }
    free(d->files);
    free(d->path);
    free(d);
}

int64_t zt_dataset_samples(const struct zt_dataset *d) { return d->samples; }

int64_t zt_dataset_seq_len(const struct zt_dataset *d) { return d->seq_len; }

bool zt_dataset_masked(const struct zt_dataset *d) { return d->jsonl; }

bool zt_dataset_has_starts(const struct zt_dataset *d) { return d->document_starts; }

bool zt_dataset_has_weights(const struct zt_dataset *d) { return d->average != ZT_AVERAGE_TOKEN; }

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
        if (f->rows.n > 0) h = mix(h, f->rows.row, (size_t)f->rows.n * sizeof *f->rows.row);
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

/* n tokens of `width` bytes, the last of them a target only, into the row; how many were below
 * `vocab`. */
static int64_t widen(const unsigned char *raw, int64_t n, int width, int64_t vocab,
                     const struct zt_row *row) {
    for (int64_t i = 0; i < n; i++, raw += width) {
        int64_t v = width == 1 ? raw[0] : width == 2 ? raw[0] | raw[1] << 8 : le32(raw);
        if (v >= vocab) return i;
        if (i + 1 < n) row->tokens[i] = (int32_t)v;
        if (i > 0) row->targets[i - 1] = (int32_t)v;
    }
    return n;
}

/* A text is one document; in a shard one begins at every opener. */
static void mark_starts(const struct data_file *f, int64_t seq_len, const struct zt_row *row) {
    int32_t start = 0;
    for (int64_t i = 0; i < seq_len; i++) {
        if (row->tokens[i] == f->opener) start = (int32_t)i;
        row->starts[i] = start;
    }
}

/* Sample `own` of a text or shard. */
static int read_tokens(const struct zt_dataset *d, const struct data_file *f, int fd, int64_t own,
                       struct zt_row *row, struct zt_error *err) {
    int64_t first = own * d->seq_len, n = d->seq_len + 1;
    int64_t at = f->first_byte + first * f->width;
    unsigned char *raw = malloc((size_t)(n * f->width)), id[4] = {0};
    if (!raw) return zt_fail(err, ZT_ENOMEM, "%s: no memory for %" PRId64 " tokens", f->path, n);
    int rc = read_exactly(d->sys, fd, f->path, raw, (size_t)(n * f->width), at, err);
    int64_t good = rc == ZT_OK ? widen(raw, n, f->width, d->vocab_size, row) : 0;
    if (rc == ZT_OK && good < n) {
        memcpy(id, raw + good * f->width, (size_t)f->width);
        rc = zt_fail(err, ZT_EDATA,
                     "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64 ", outside the "
                     "model's vocabulary of %" PRId64 "; this data was made with another tokenizer",
                     f->path, first + good, at + good * f->width, le32(id), d->vocab_size);
    }
    free(raw);
    if (rc == ZT_OK && row->starts) mark_starts(f, d->seq_len, row);
    row->padding = 0;
    return rc;
}

int zt_dataset_read(const struct zt_dataset *d, int64_t sample, struct zt_row *row,
                    struct zt_error *err) {
    ZT_ASSERT(sample >= 0 && sample < d->samples);
    ZT_ASSERT(!row->starts == !d->document_starts);
    ZT_ASSERT(!row->weights == (d->average == ZT_AVERAGE_TOKEN));
    const struct data_file *f = file_of(d, sample);
    int64_t own = sample - f->first_sample + f->skip;
    struct stat st;
    int fd;
    int rc = open_file(d->sys, f->path, &fd, &st, err);
    if (rc != ZT_OK) return rc;
    rc = same_file(f, &st, err);
    if (rc == ZT_OK && f->format == FORMAT_JSONL) {
        struct zt_pack p = pack_of(d, f, fd);
        rc = zt_pack_row(&p, &f->rows.row[own], row, err);
    } else if (rc == ZT_OK) {
        rc = read_tokens(d, f, fd, own, row, err);
    }
    d->sys->close(d->sys->arg, fd);
    return rc;
}
