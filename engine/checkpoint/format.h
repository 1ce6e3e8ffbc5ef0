/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/format.h: what a checkpoint is on disk. A run's folder holds
 *
 *   step-00001000/                  written as step-00001000.tmp-gG (G: generation), renamed when complete
 *     manifest.json                 what is in it: run, mesh, recipe, position, tensors, hashes of the indexes
 *     rank-RRRRR.json               index of one writer: its files with sizes, SHA-256 and XXH3-128 per 4 MiB,
 *                                   and for each tensor and kind the rectangles and where they lie
 *     shard-RRRRR-model-KKKKK-of-NNNNN.safetensors   parameters; the K-th rectangle of each tensor is in file
 *                                   K, so that a name occurs once in a file (readable by plain safetensors
 *                                   tools; __metadata__ has DCP_SHARDING_INFO with the offsets)
 *     optim-RRRRR-KKKKK-of-NNNNN.safetensors         NAME.master, NAME.exp_avg, NAME.exp_avg_sq, cut alike
 *   trash/                          what is being removed
 *
 * RRRRR is the writer's rank + 1, five digits. The trust goes down from the database's row: SHA-256 of
 * manifest.json -> of each rank-RRRRR.json -> of the files and their 4 MiB pieces. Nothing is named by
 * a folder alone.
 *
 * Every logical element of the model is in exactly one file, once: what several ranks hold is written
 * by one of them, by turns. A rectangle is of the whole, unpadded, uncut tensor. */
#ifndef ZT_ENGINE_CHECKPOINT_FORMAT_H
#define ZT_ENGINE_CHECKPOINT_FORMAT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "core/dtype.h"
#include "core/error.h"
#include "core/hash128.h"
#include "core/sampler.h"
#include "core/span.h"

#define ZT_CKPT_FORMAT 1
#define ZT_CKPT_PIECE ((int64_t)4 << 20) /* bytes under one XXH3-128 */

/* What of a tensor is stored. MASTER only where the recipe has one: then it is the value that counts. */
enum zt_saved { ZT_SAVED_PARAMETER = 0, ZT_SAVED_MASTER, ZT_SAVED_M, ZT_SAVED_V, ZT_SAVED_COUNT };
const char *zt_saved_suffix(enum zt_saved k); /* "", ".master", ".exp_avg", ".exp_avg_sq" */

/* Rows [from[0], from[0] + size[0]) and columns; of a 1-D tensor one column. */
struct zt_rect { int64_t from[2], size[2]; };
/* Elements [0, count) of a span (core/span.h) in a tensor of `columns` columns (1 for 1-D), in order, as
 * rectangles: the rest of a row, whole rows, the beginning of one; and where a fused q/k/v is cut per head,
 * of each of its up to three stretches. Returns how many. */
enum { ZT_SPAN_RECTS = 5 };
int zt_span_rects(struct zt_span s, int64_t count, int64_t columns, struct zt_rect out[ZT_SPAN_RECTS]);

/* Where training stands, beside the tensors. */
struct zt_position {
    int64_t step, updates, skipped, total_steps; /* optimizer steps done; those that changed parameters */
    int64_t tokens;               /* supervised, so far, of all ranks */
    struct zt_cursor cursor;      /* data */
    int64_t epoch_samples;        /* samples of the training set, and zt_dataset_digest of it */
    uint64_t data_digest;
    bool scaled;                  /* loss scaler below is there */
    double scale;
    int64_t scale_good;
    int scale_hysteresis_left;
};

struct zt_sha256 { uint8_t byte[32]; };
void zt_sha256_of(const void *data, size_t n, struct zt_sha256 *out);
void zt_sha256_text(const struct zt_sha256 *s, char out[65]); /* lower-case digits */
bool zt_sha256_parse(const char *text, struct zt_sha256 *out);
static inline bool zt_sha256_same(const struct zt_sha256 *a, const struct zt_sha256 *b) {
    return memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}

struct zt_saved_tensor { char name[96]; int ndim; int64_t shape[2]; uint32_t number; bool frozen; bool has[ZT_SAVED_COUNT]; enum zt_dtype type[ZT_SAVED_COUNT]; };
struct zt_manifest_rank { int64_t bytes; struct zt_sha256 index; };
struct zt_manifest {
    char run_id[64], run_name[64], version[32], recipe[24], mode[16], config_hash[33];
    uint32_t generation;
    int world, replicate, shard, tensor; /* of the ranks that wrote it */
    struct zt_position position;
    char *spec;                   /* the run's normalised specification; of what was imported only its model counts */
    struct zt_hash128 parameter_hash, state_hash; /* D12, over the whole model */
    int n_tensors; struct zt_saved_tensor *tensors; /* table order */
    struct zt_manifest_rank *ranks; /* world */
    struct zt_sha256 previous;    /* manifest of the run's checkpoint before; zero: none */
    int64_t created_ms;           /* for people */
};
/* The manifest as text, the same for the same values; malloc'ed. */
int zt_manifest_text(const struct zt_manifest *m, char **text, size_t *n, struct zt_error *err);
/* n bytes, one more behind them, are used up. Strict both ways: ZT_ECORRUPT names file and field, ZT_EVERSION a
 * newer format. zt_manifest_free also frees the spec and the tables of a manifest that was not parsed. */
int zt_manifest_parse(const char *file, char *text, size_t n, struct zt_manifest *out, struct zt_error *err);
void zt_manifest_free(struct zt_manifest *m);

/* rank-RRRRR.json: what one writer wrote. */
struct zt_index_file { char name[96]; int64_t bytes; struct zt_sha256 sha256; int64_t n_pieces; struct zt_hash128 *pieces; };
struct zt_index_part { int tensor, kind, file; int64_t at; struct zt_rect rect; }; /* at: byte in the file */
struct zt_index {
    int64_t step;
    uint32_t generation;
    int rank;
    struct zt_hash128 parameter_hash, state_hash; /* of what is in these files */
    int n_files; struct zt_index_file *files;
    int64_t n_parts; struct zt_index_part *parts;
};
int zt_index_text(const struct zt_index *x, char **text, size_t *n, struct zt_error *err);
/* As above; every part is inside its tensor and its file, every file has a plain name of this rank. */
int zt_index_parse(const char *file, char *text, size_t n, const struct zt_manifest *m, int rank, struct zt_index *out, struct zt_error *err);
void zt_index_free(struct zt_index *x);

enum { ZT_CKPT_TEXT_MAX = 32 << 20 }; /* bytes of a manifest or an index */
void zt_ckpt_rank_name(int rank, char out[32]); /* "rank-00001.json" of rank 0 */
void zt_ckpt_step_name(int64_t step, char out[32]); /* "step-00001000" */
void zt_ckpt_temp_name(int64_t step, uint32_t generation, char out[64]);
/* Step and generation of a name made by the two above, -1: it is none of them. */
int64_t zt_ckpt_step_of(const char *name);
int64_t zt_ckpt_temp_of(const char *name, uint32_t *generation);
/* A file's name and nothing that leads elsewhere. */
bool zt_ckpt_plain_name(const char *name);
#endif
