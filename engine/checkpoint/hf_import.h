/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_import.h: a Hugging Face folder as a checkpoint of ours, FOLDER/step-00000000:
 * parameters only, each in the format of the file, in rectangles of whole rows. The files are written by
 * as many writers as there are buffers full, one after the other; each is hashed, synced and read back as
 * every checkpoint's is. Host memory: one buffer of buffer_bytes, never the model. */
#ifndef ZT_ENGINE_CHECKPOINT_HF_IMPORT_H
#define ZT_ENGINE_CHECKPOINT_HF_IMPORT_H
#include "core/sys.h"
#include "engine/checkpoint/format.h"
#include "engine/checkpoint/hf.h"

struct zt_hf_import {
    const struct zt_sys *sys;     /* NULL = the real one */
    struct zt_hf *from;
    const char *folder;           /* made when missing; ZT_ECONFLICT when it has step-00000000 */
    const char *version;
    int64_t buffer_bytes;         /* 0 = 256 MiB; the longest row of a tensor must fit */
    /* told after every piece of work; may be NULL */
    bool (*progress)(void *arg, int64_t bytes);
    void *arg;
};
struct zt_hf_imported { int writers; int64_t bytes; struct zt_sha256 manifest; struct zt_hash128 parameter_hash; };
int zt_hf_import(const struct zt_hf_import *x, struct zt_hf_imported *out, struct zt_error *err);

#endif
