/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/save.h: saving beside the step loop. At a step boundary the trainer copies what this
 * rank writes into a host buffer, the only time it stands still; a thread then writes, hashes, syncs and
 * reports, and on rank 0 publishes. At most one is in flight. Device memory: none is added. Host memory:
 * one buffer of the bytes this rank writes, at most its P + O and the heads of its files, allocated at the
 * first save and kept; with `memory` that buffer is the files themselves there, which outlive the trainer. */
#ifndef ZT_ENGINE_CHECKPOINT_SAVE_H
#define ZT_ENGINE_CHECKPOINT_SAVE_H
#include "engine/checkpoint/write.h"
#include "engine/shard/runtime.h"

struct zt_progress;

/* What a rank tells of its part, and hears of the others'. */
struct zt_shard_done { int rank; int64_t step, bytes; struct zt_sha256 index; struct zt_hash128 parameter_hash, state_hash; double stall_seconds, write_seconds; };
struct zt_commit { int64_t step, bytes; struct zt_sha256 manifest; const char *folder; bool adopted; struct zt_hash128 parameter_hash, state_hash; };

/* Called on the writer thread; each blocks until it is answered or the run ends. NULL members: nobody
 * is told (a world of one rank without a coordinator saves all the same). */
struct zt_save_hooks {
    void *arg;
    int (*shard_done)(void *arg, const struct zt_shard_done *d, struct zt_error *err);
    /* rank 0: waits until all `world` parts of the step are in. ZT_ECANCELLED: a rank could not. */
    int (*shards)(void *arg, int64_t step, struct zt_shard_done *all, int world, struct zt_error *err);
    /* *remove: steps to let go, malloc'ed */
    int (*commit)(void *arg, const struct zt_commit *c, int64_t **remove, int *n_remove, struct zt_error *err);
    int (*removed)(void *arg, int64_t step, struct zt_error *err);
    int (*failed)(void *arg, int64_t step, bool disk_full, const char *message, struct zt_error *err);
    /* Any thread: ends every wait of the hooks, now and later, with ZT_ECANCELLED: this rank has failed. */
    void (*cancel)(void *arg);
};

/* Where and how a run saves, and what it goes on from; part of struct zt_train_config. */
struct zt_checkpoint_config {
    const char *folder;           /* of this run (made when missing); NULL: it saves nothing */
    const char *run_id, *run_name, *version;
    const char *memory;           /* folder in shared memory for the buffer; NULL = plain host memory */
    int64_t resume_step;          /* go on after it; 0: from the beginning */
    const char *resume_folder;    /* holds step-NNNNNNNN; or, weights only, any folder with tensors */
    const struct zt_sha256 *resume_manifest; /* NULL = not known */
    bool weights_only, accept_batch_change;
    const struct zt_sys *sys;     /* NULL = the real one */
    struct zt_save_hooks hooks;
    /* this rank goes on after `step`; before the first step */
    int (*loaded)(void *arg, int64_t step, double seconds, int64_t file_bytes, int64_t memory_bytes, struct zt_error *err);
};

/* ---- one rank's saving; the trainer thread calls, but for what runs on the writer's own ---- */

struct zt_saver;
struct zt_saver_config {
    const struct zt_checkpoint_config *checkpoint; /* borrowed; NULL on a simulated device, which writes nothing */
    const struct zt_spec *spec;
    const struct zt_model_table *table;
    struct zt_mesh mesh;
    int rank;
    uint32_t generation;
    struct zt_device *device;
    const struct zt_runtime *runtime;
    struct zt_progress *progress;  /* kept fresh while somebody waits for the writer; may be NULL */
};
/* ZT_EINVAL: ranks that cannot tell each other (a world > 1 without hooks). */
int zt_saver_create(const struct zt_saver_config *c, struct zt_saver **out, struct zt_error *err);
/* A save is in flight. */
bool zt_saver_busy(struct zt_saver *s);
/* Copies the state of a step boundary into the buffer; nothing is in flight. What fails here fails this
 * save: the writer tells it, and training goes on. */
void zt_saver_copy(struct zt_saver *s, const struct zt_position *p);
/* Hands the copy, if there is one, to the writer; stall_seconds: what the step loop stood still for it.
 * patience_seconds: a disk that fails is tried again for so long before the save is given up; 0: it is given
 * up at once, as one of many. */
void zt_saver_write(struct zt_saver *s, double stall_seconds, double patience_seconds);
/* Until nothing is in flight. */
void zt_saver_wait(struct zt_saver *s);
/* The next thing that somebody should hear of, false: none. */
struct zt_save_note { char kind[32]; bool warning; char text[512]; };
bool zt_saver_note(struct zt_saver *s, struct zt_save_note *out);
/* Bytes of the buffer: what this rank's files are. 0 before the first save. */
int64_t zt_saver_host_bytes(const struct zt_saver *s);
/* abandon: what is in flight is given up, else waited for. */
void zt_saver_destroy(struct zt_saver *s, bool abandon);
#endif
