/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_export.h: weights as a folder that transformers loads: config.json, and
 * model.safetensors or several files with model.safetensors.index.json. A tied head is the flag in
 * config.json and stored once. Adapters are merged (base + alpha / rank B A, summed in fp32, rounded once),
 * or alone written in PEFT's format: adapter_config.json, adapter_model.safetensors.
 *
 * Everything is written into FOLDER.tmp-XXXXXXXX, synced, and renamed: FOLDER is there whole or not at all.
 * Host memory: one buffer and, merging, the adapters of one linear; never the model. */
#ifndef ZT_ENGINE_CHECKPOINT_HF_EXPORT_H
#define ZT_ENGINE_CHECKPOINT_HF_EXPORT_H
#include "engine/checkpoint/weights.h"

struct zt_hf_export {
    const struct zt_sys *sys;     /* NULL = the real one */
    const struct zt_weights *from;
    const char *folder;           /* to make; ZT_ECONFLICT when it is there */
    enum zt_dtype type;           /* ZT_F32, ZT_BF16 or ZT_F16 */
    bool merge;                   /* adapters into the weights; else they alone are written */
    const char *base;             /* of adapters: name or folder of their base model; NULL = not told */
    int64_t file_bytes;           /* most values in a file; 0 = 5,000,000,000 */
    int64_t buffer_bytes;         /* 0 = 16 MiB */
};
struct zt_hf_exported { int files; int64_t bytes; int tensors; bool adapters; };
int zt_hf_export(const struct zt_hf_export *x, struct zt_hf_exported *out, struct zt_error *err);

#endif
