/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/data.h: token data sets. Text files and folders as bytes (vocabulary 256), llm.c and
 * nanoGPT .bin shards (uint16, uint32). Sample i of a file = tokens [i T, i T + T]; files give
 * floor((n-1)/T) samples; never across files (D16). Files are read with pread, never mapped.
 *
 * What a path means: a file; a folder (its regular files in byte order of names; symbolic links and
 * subfolders are passed over, the folder itself may be reached through a link); else a glob pattern
 * (the same rules for what it matches). A name that ends in .bin holds tokens whatever the
 * tokenizer; other names are text, for `tokenizer: bytes` only. A text of fewer than T + 1 bytes is
 * passed over with the event DATA_SKIPPED; a .bin of fewer tokens is refused: shards are made by
 * programs, and a short one is a broken one. A file must not change while a set is open: it is
 * reopened for every sample and refused when it is not the file it was.
 *
 * zt_dataset is immutable after open and may be read from any thread; the loader owns one reader
 * thread that fills two buffers ahead. */
#ifndef ZT_ENGINE_DATA_H
#define ZT_ENGINE_DATA_H
#include "core/sampler.h"
#include "core/spec.h"
#include "core/sys.h"

struct zt_dataset;
struct zt_dataset_config {
    const char *path;         /* file, folder or glob */
    enum zt_tokenizer tokenizer;
    int64_t seq_len, vocab_size;
    double tail_fraction;     /* > 0: hold out the last fraction of each file's samples */
    bool tail;                /* true: this set IS the tail; false: the rest */
    int64_t min_samples;      /* refuse a set with fewer (0 = 1); training: one global batch */
    const struct zt_sys *sys; /* file calls; NULL = the real ones */
    void (*event)(void *arg, const char *kind, const char *message); /* DATA_SKIPPED; may be NULL */
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
/* T+1 tokens of sample i; an id >= vocab_size is ZT_EDATA naming file and offset. */
int zt_dataset_read(const struct zt_dataset *d, int64_t sample, int32_t *tokens,
                    struct zt_error *err);

struct zt_loader;
struct zt_loader_config {
    const struct zt_dataset *dataset;
    int dp_index, dp_size;
    int64_t local_batch, seq_len, accumulation;
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t epochs;           /* 0: endless, windows run across epochs; else they end with the epoch */
    enum zt_tail tail;
    struct zt_cursor start;
};
/* One window's worth of micro-batches comes in order. */
struct zt_micro_batch {
    int32_t *tokens, *targets;   /* host, [rows*T]; owned by the loader until the next call */
    int64_t rows;                /* sequences here: local_batch, or fewer at an epoch's end, which
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
/* Where a new loader goes on after the micro-batch that zt_loader_next gave last. */
struct zt_cursor zt_loader_cursor(const struct zt_loader *l);
void zt_loader_destroy(struct zt_loader *l);

#endif
