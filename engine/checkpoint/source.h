/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/source.h: tensors to load from, whatever they are stored as: one of our checkpoints
 * (read.h) or a Hugging Face folder (hf.h). The loader asks for stretches of logical tensors and never
 * learns how they were cut.
 *
 * read: elements [0, count) of the span of tensor `name`, converted to `as` (fp32, bf16, fp16; to nearest
 * even), into host memory. What is handed out was verified against its hashes before. ZT_ECORRUPT names the
 * file and where; ZT_EIO a failed call. `shape` (whole[2]) and `ndim` are the caller's and must be the
 * source's: ZT_EINVAL names tensor and both shapes.
 * One thread per source. The buffers of a source are host memory, a bounded few MiB (buffer_bytes). */
#ifndef ZT_ENGINE_CHECKPOINT_SOURCE_H
#define ZT_ENGINE_CHECKPOINT_SOURCE_H
#include "engine/checkpoint/format.h"

struct zt_tensor_source {
    void *arg;
    const char *(*name_at)(void *arg, int i);         /* tensors that are there, NULL past the end */
    bool (*has)(void *arg, const char *name, enum zt_saved kind);
    int (*read)(void *arg, const char *name, enum zt_saved kind, int ndim, const int64_t shape[2],
                struct zt_span span, int64_t count, enum zt_dtype as, void *out, struct zt_error *err);
    int64_t (*buffer_bytes)(void *arg);
    int64_t (*read_bytes)(void *arg, bool memory);    /* so far: from files; from copies in memory */
    void (*close)(void *arg);
};
#endif
