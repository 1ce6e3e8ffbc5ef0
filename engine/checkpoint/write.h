/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/write.h: the files of one rank, and publishing them. Every call to the system goes
 * through the table given (core/sys.h). Nothing is renamed or removed before what replaces it is durable.
 * Blocking; for the writer thread. */
#ifndef ZT_ENGINE_CHECKPOINT_WRITE_H
#define ZT_ENGINE_CHECKPOINT_WRITE_H
#include "core/sys.h"
#include "engine/checkpoint/format.h"

/* A rectangle with its values, contiguous in host memory. Those of one tensor and kind come in order;
 * `nth`: number of the rectangle among this rank's of its tensor and kind, from 0. */
struct zt_saved_piece { int tensor; enum zt_saved kind; enum zt_dtype type; int nth; struct zt_rect rect; const void *values; };

struct zt_shard_write {
    const struct zt_sys *sys;
    const char *folder;           /* of the run */
    int64_t step; uint32_t generation; int rank;
    const struct zt_saved_tensor *tensors; int n_tensors;
    const struct zt_saved_piece *pieces; int n_pieces;
    /* told after every piece of work, so that the writer is seen to make progress; false: stop (ZT_ECANCELLED) */
    bool (*progress)(void *arg, int64_t bytes);
    void *arg;
    const char *memory;           /* NULL, or a folder that gets a copy of rank-RRRRR.json once the disk has it */
};

/* Where the values lie: a file is its head, then its values without a hole. Follows from tensors, rank and
 * the pieces alone, not from step, generation or values. Values lie on multiples of their size. */
struct zt_shard_file { char name[96]; int64_t head_bytes, bytes; char *head; };
struct zt_shard_layout {
    int n_files;
    struct zt_shard_file *files;
    int *file_of;                 /* of each piece, and the byte in that file */
    int64_t *at;
    int *order;                   /* pieces by file, then by place */
    int64_t bytes;                /* of all files */
};
int zt_shard_layout_build(const struct zt_shard_write *w, struct zt_shard_layout *out, struct zt_error *err);
void zt_shard_layout_free(struct zt_shard_layout *l);
static inline void zt_shard_head(const struct zt_shard_layout *l, int file, void *out) {
    memcpy(out, l->files[file].head, (size_t)l->files[file].head_bytes);
}

struct zt_shard_written { int64_t bytes; struct zt_sha256 index; struct zt_hash128 parameter_hash, state_hash; double seconds; };
/* Makes the temporary folder when it is not there, writes, fsyncs (every 64 MiB, and at the end), reads all
 * back and compares, fsyncs the folder. Pieces that follow one another in memory as in the file are written
 * at once. Host memory: 4 MiB to read back into. ZT_ENAN: a value is not finite, names tensor and element: nothing of this step may be committed.
 * ZT_EIO: names the file and the errno's text; *disk_full is set for ENOSPC and EDQUOT. On failure this
 * rank's files are removed as far as that works. */
int zt_shard_write(const struct zt_shard_write *w, struct zt_shard_written *out, bool *disk_full, struct zt_error *err);

/* Rank 0: writes manifest.json (m->ranks and hashes filled), checks that every rank's index is there and
 * is the one that was reported (a folder that is not shared is found here), fsyncs, renames to the final
 * name, fsyncs the run's folder. An uncommitted final folder of that name: adopted when it verifies and its
 * parameter and state hash are m's (*adopted), else moved to trash. */
int zt_ckpt_publish(const struct zt_sys *sys, const char *folder, const struct zt_manifest *m, struct zt_sha256 *manifest,
                    bool *adopted, bool *disk_full, struct zt_error *err);
/* Rank 0: takes away what is left of a save that failed. A folder that is not there is no error. */
int zt_ckpt_discard(const struct zt_sys *sys, const char *folder, int64_t step, uint32_t generation, struct zt_error *err);
/* Moves step to trash/ (rename, fsync), then unlinks what is in it. Safe to repeat after any crash. */
int zt_ckpt_remove(const struct zt_sys *sys, const char *folder, int64_t step, struct zt_error *err);
/* Leftovers: temporary folders of generations before `generation`, and what trash/ holds. Returns how many. */
int zt_ckpt_sweep(const struct zt_sys *sys, const char *folder, uint32_t generation, struct zt_error *err);
/* Bytes that the folder's file system has left for this user; < 0: not known. */
int64_t zt_ckpt_free_bytes(const struct zt_sys *sys, const char *folder);

/* Steps of the folders with a final name, ascending as numbers; malloc'ed. */
int zt_ckpt_list(const struct zt_sys *sys, const char *folder, int64_t **steps, int *n, struct zt_error *err);
#endif
