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
/* Elements [0, count) of a span (core/span.h) in a tensor of `columns` columns (1 for 1-D), as at most
 * three rectangles, in order: the rest of a row, whole rows, the beginning of one. Returns how many. */
int zt_span_rects(struct zt_span s, int64_t count, int64_t columns, struct zt_rect out[3]);

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

struct zt_saved_tensor { char name[96]; int ndim; int64_t shape[2]; uint32_t number; bool frozen; bool has[ZT_SAVED_COUNT]; enum zt_dtype type[ZT_SAVED_COUNT]; };
struct zt_manifest_rank { int64_t bytes; struct zt_sha256 index; };
struct zt_manifest {
    char run_id[64], run_name[64], version[32], recipe[24], mode[16], config_hash[33];
    uint32_t generation;
    int world, replicate, shard, tensor; /* of the ranks that wrote it */
    struct zt_position position;
    char *spec;                   /* the run's normalised specification; "" when imported */
    struct zt_hash128 parameter_hash, state_hash; /* D12, over the whole model */
    int n_tensors; struct zt_saved_tensor *tensors; /* table order */
    struct zt_manifest_rank *ranks; /* world */
    struct zt_sha256 previous;    /* manifest of the run's checkpoint before; zero: none */
    int64_t created_ms;           /* for people */
};
#endif
