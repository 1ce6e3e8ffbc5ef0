/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/ckpt.h: an open checkpoint, inside this folder only. */
#ifndef ZT_ENGINE_CHECKPOINT_CKPT_H
#define ZT_ENGINE_CHECKPOINT_CKPT_H
#include "engine/checkpoint/files.h"
#include "engine/checkpoint/read.h"

/* A rectangle and where it lies. */
struct ckpt_part { int32_t rank, file; int64_t at; struct zt_rect rect; };

/* Whole verified pieces of files; least recently used goes first. A small file's piece is small, so that
 * the small files of many ranks fit together. */
enum { CKPT_SLOTS = 256 };
#define CKPT_CACHE ((int64_t)64 << 20)
struct ckpt_slot { int32_t rank, file; int64_t piece, bytes, used; unsigned char *data; };

struct zt_ckpt {
    const struct zt_sys *sys;
    char folder[CKPT_PATH], memory[CKPT_PATH]; /* memory: "" = none */
    struct zt_manifest manifest;
    struct zt_index *ranks;   /* world; their parts are in the table below */
    bool *in_memory;          /* world: the index came from there */
    int64_t bytes;            /* of all files */
    struct ckpt_part *parts;  /* by tensor, kind, first row, first column */
    int64_t n_parts, *first;  /* first[tensor * ZT_SAVED_COUNT + kind] and one more */
    int *by_name;             /* tensors */
    struct ckpt_slot slots[CKPT_SLOTS];
    int last;                 /* slot used last */
    int64_t cached, clock, read_disk, read_memory;
};

/* Piece `piece` of a rank's file from `folder`, verified, into `out`. */
int ckpt_read_piece(const struct zt_ckpt *c, const char *folder, int rank, int file, int64_t piece, unsigned char *out, struct zt_error *err);
static inline int64_t ckpt_piece_bytes(const struct zt_index_file *f, int64_t piece) {
    const int64_t left = f->bytes - piece * ZT_CKPT_PIECE;
    return left < ZT_CKPT_PIECE ? left : ZT_CKPT_PIECE;
}
#endif
