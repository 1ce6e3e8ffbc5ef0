/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/stage.h: the host buffer of a save. It is laid out as the rank's files are (head, then
 * values), one mapping each: files in a folder of shared memory, where they are a copy of the newest
 * checkpoint that outlives this process, or plain memory. A folder in memory is good exactly when the
 * rank's index is there: it goes before the first byte is overwritten, and zt_shard_write puts it back.
 *
 * Private to engine/checkpoint. The buffer is made at the first copy and kept until stage_free; copying is
 * the trainer thread's, reading the writer's while a save is in flight. */
#ifndef ZT_ENGINE_CHECKPOINT_STAGE_H
#define ZT_ENGINE_CHECKPOINT_STAGE_H
#include "engine/checkpoint/parts.h"
#include "engine/shard/runtime.h"

struct stage {
    bool built, moments;
    struct zt_save_parts parts;
    struct zt_shard_layout layout;
    void **image; /* by file */
    const char *memory; /* the folder they are in; NULL: plain memory */
};

/* Builds the buffer unless it is there and fits. memory: NULL = plain; when it has no room, plain memory is
 * taken and why[n] says so (else ""). */
int stage_build(struct stage *s, const struct zt_save_who *w, int rank, const char *memory, char *why,
                size_t n, struct zt_error *err);
/* The runtime's state into the buffer, over the compute stream; done when this returns. tick(arg): between
 * pieces. */
int stage_copy(struct stage *s, const struct zt_runtime *r, int rank, struct zt_device *d,
               void (*tick)(void *arg), void *arg, struct zt_error *err);
/* The same copies on a device without memory, for their time. */
int stage_simulate(const struct zt_save_who *w, int rank, const struct zt_runtime *r,
                   struct zt_device *d, struct zt_error *err);
void stage_free(struct stage *s);

#endif
