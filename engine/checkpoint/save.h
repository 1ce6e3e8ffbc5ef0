/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/save.h: saving beside the step loop. At a step boundary the trainer copies what this
 * rank writes into a host buffer, the only time it stands still; a thread then writes, hashes, syncs and
 * reports, and on rank 0 publishes. At most one is in flight. Device memory: none is added. Host memory:
 * one buffer of the bytes this rank writes, at most its P + O, allocated at the first save and kept; with
 * `memory` that buffer is a file there, which outlives the trainer. */
#ifndef ZT_ENGINE_CHECKPOINT_SAVE_H
#define ZT_ENGINE_CHECKPOINT_SAVE_H
#include "engine/checkpoint/write.h"
#include "engine/shard/runtime.h"

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
#endif
