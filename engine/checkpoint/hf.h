/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf.h: a Hugging Face folder (config.json, and model.safetensors or
 * model.safetensors.index.json with its files) as tensors of ours.
 *
 * Our names are theirs, in the long form ("transformer.h.0.ln_1.weight"); GPT-2 files that leave out
 * "transformer." are read too. GPT-2 stores its linears [in, out]: which tensors those are is known by
 * name, never by shape, and they are turned while they are read. Buffers of old files (attention masks,
 * rotary frequencies) are passed over; a head that is there although it is tied must be the embedding
 * bit for bit. Every other tensor too many or too few is an error that names it. fp32, bf16 and fp16 are
 * read; fp64 and the rest are refused by name.
 *
 * The folder is not trusted: files are opened beneath it only (core/sys.h, open_beneath), a name in the
 * index is one file name, and all of it is checked at open. Weights are read on demand through a buffer of
 * zt_hf_source's buffer_bytes. One thread. */
#ifndef ZT_ENGINE_CHECKPOINT_HF_H
#define ZT_ENGINE_CHECKPOINT_HF_H
#include "core/sys.h"
#include "engine/checkpoint/hf_config.h"
#include "engine/checkpoint/source.h"

struct zt_hf;
/* sys NULL: the real one. ZT_ENOTFOUND: not such a folder; ZT_EINVAL, ZT_EUNSUPPORTED name file and tensor or key. */
int zt_hf_open(const struct zt_sys *sys, const char *folder, struct zt_hf **out, struct zt_error *err);
void zt_hf_close(struct zt_hf *h);
const struct zt_hf_config *zt_hf_config(const struct zt_hf *h);
/* The model's tensors, uncut; lives as long as h. */
const struct zt_model_table *zt_hf_table(const struct zt_hf *h);
enum zt_dtype zt_hf_type(const struct zt_hf *h, int tensor); /* as stored */
/* Parameters only. Its close closes h. */
struct zt_tensor_source zt_hf_source(struct zt_hf *h);

/* GPT-2's linears, which lie [in, out] in files. */
bool zt_hf_turned(const struct zt_model_config *c, const struct zt_tensor_def *d);
/* One file name, of a safetensors file, without any way out of the folder. */
int zt_hf_check_name(const char *index, const char *tensor, const char *name, size_t bytes, struct zt_error *err);

#endif
