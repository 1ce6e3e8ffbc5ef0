/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/data.h: token data sets. Text files and folders as bytes (vocabulary 256), llm.c and
 * nanoGPT .bin shards (uint16, uint32), and .jsonl examples as bytes. Sample i of a text or shard =
 * tokens [i T, i T + T]; files give floor((n-1)/T) samples; never across files (D16). Files are read
 * with pread, never mapped.
 *
 * What a path means: a file; a folder (its regular files in byte order of names; symbolic links and
 * subfolders are passed over, the folder itself may be reached through a link); else a glob pattern
 * (the same rules for what it matches). A name that ends in .bin holds tokens whatever the
 * tokenizer; one that ends in .jsonl holds examples, other names are text, both for `tokenizer:
 * bytes` only. Kinds are not mixed in one set. A text of fewer than T + 1 bytes is passed over with
 * the event DATA_SKIPPED; a .bin of fewer tokens is refused: shards are made by programs, and a
 * short one is a broken one. A file must not change while a set is open: it is reopened for every
 * sample and refused when it is not the file it was.
 *
 * A line of a .jsonl file is an object, {"prompt": P, "completion": C} or {"text": X}. Its tokens
 * are the bytes of P and C, or of X, then the end token ZT_END_TOKEN. A sample has room for T + 1
 * tokens and takes lines in their order: an example whole, cut at its end when it alone is longer,
 * passed over when its prompt alone is; a text goes on in the next sample, from its last token. A
 * sample that takes no more is filled up with padding. A target counts where it is of the same line
 * as its input and of C, X or the end; all others, and padding, are -1. So the losses of a line do
 * not depend on what lies beside it, document starts given.
 *
 * zt_dataset is immutable after open and may be read from any thread; the loader owns one reader
 * thread that fills two buffers ahead. */
#ifndef ZT_ENGINE_DATA_H
#define ZT_ENGINE_DATA_H
#include "core/sampler.h"
#include "core/spec.h"
#include "core/sys.h"

/* Ends a line's tokens and fills samples up: a character that .jsonl lines cannot have. */
#define ZT_END_TOKEN 0

struct zt_dataset;
struct zt_dataset_config {
    const char *path;         /* file, folder or glob */
    enum zt_tokenizer tokenizer;
    int64_t seq_len, vocab_size;
    double tail_fraction;     /* > 0: hold out the last fraction of each file's samples */
    bool tail;                /* true: this set IS the tail; false: the rest */
    bool document_starts;     /* rows tell where documents begin; refused when that is not known */
    enum zt_average average;  /* sample, square: rows have weights; refused without examples */
    int64_t min_samples;      /* refuse a set with fewer (0 = 1); training: one global batch */
    const struct zt_sys *sys; /* file calls; NULL = the real ones */
    /* DATA_SKIPPED, DATA_CUT, DATA_PACKED; may be NULL */
    void (*event)(void *arg, const char *kind, const char *message);
    void *event_arg;
};
/* ZT_EDATA names the file and what it needs ("257 tokens"); missing path named. */
int zt_dataset_open(const struct zt_dataset_config *c, struct zt_dataset **out,
                    struct zt_error *err);
void zt_dataset_close(struct zt_dataset *d);
int64_t zt_dataset_samples(const struct zt_dataset *d);
/* A number that two sets share when sample i is the same place of the same files in both: of names,
 * formats, lengths and split, not of the contents. */
uint64_t zt_dataset_digest(const struct zt_dataset *d);
/* Some targets may be -1. */
bool zt_dataset_masked(const struct zt_dataset *d);
/* A sample's T inputs and their T targets, -1 = not counted. starts (when opened with
 * document_starts, else NULL): where the document of each input begins in this row; padding begins
 * with itself. weights (when average is not token, else NULL): 1/n or 1/sqrt(n) of a target whose
 * line has n that count; 0 where the target is -1. */
struct zt_row {
    int32_t *tokens, *targets, *starts;
    float *weights;
    int64_t padding; /* set by the read: inputs that are filling */
};
/* Host memory for `rows` of them, one behind the other; false when there is none. */
bool zt_row_alloc(struct zt_row *r, int64_t rows, int64_t seq_len, bool starts, bool weights);
void zt_row_free(struct zt_row *r);
/* The same arrays from element `at` on; padding 0. */
struct zt_row zt_row_at(const struct zt_row *r, int64_t at);
/* An id >= vocab_size is ZT_EDATA naming file and offset. */
int zt_dataset_read(const struct zt_dataset *d, int64_t sample, struct zt_row *row,
                    struct zt_error *err);

struct zt_loader;
struct zt_loader_config {
    const struct zt_dataset *dataset;
    int dp_index, dp_size;
    int64_t local_batch, seq_len, accumulation;
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t epochs;           /* 0: endless, windows run across epochs, all of whose samples are used,
                                 whatever drop_last says; else windows end with the epoch */
    enum zt_tail tail;
    struct zt_cursor start;
};
/* One window's worth of micro-batches comes in order. */
struct zt_micro_batch {
    struct zt_row all;           /* of all rows, [rows*T]; owned by the loader until the next call */
    int64_t rows;                /* sequences here: local_batch, or fewer at a counted epoch's end, which
                                    drop_last leaves out */
    int64_t micro, window_micros;/* index in this window, and how many the window has */
    int64_t *sample_ids;         /* rows global sample ids */
};
int zt_loader_create(const struct zt_loader_config *c, struct zt_loader **out,
                     struct zt_error *err);
/* 0, or ZT_ENOTFOUND at the end of the last epoch. */
int zt_loader_next(struct zt_loader *l, struct zt_micro_batch *b, struct zt_error *err);
/* Optimizer steps of all epochs from the very beginning (whatever `start` is); -1 endless. */
int64_t zt_loader_windows(const struct zt_loader *l);
/* The same of a set of so many samples, before there is a loader; c->dataset is not read. */
int64_t zt_windows_of(const struct zt_loader_config *c, int64_t samples);
/* The same from `start` on, in place of the beginning. */
int64_t zt_loader_windows_left(const struct zt_loader *l);
/* Where a new loader goes on after the micro-batch that zt_loader_next gave last. */
struct zt_cursor zt_loader_cursor(const struct zt_loader *l);
void zt_loader_destroy(struct zt_loader *l);

#endif
