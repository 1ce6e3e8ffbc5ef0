/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_config.h: the config.json of a Hugging Face folder as a model of ours, and back.
 * What would be computed otherwise than the file asks for is refused by the name of its key: other
 * architectures and activations, biases and scalings that we do not have, windows, quantized weights.
 * Pure apart from malloc; any thread. */
#ifndef ZT_ENGINE_CHECKPOINT_HF_CONFIG_H
#define ZT_ENGINE_CHECKPOINT_HF_CONFIG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/dtype.h"
#include "core/model.h"

#define ZT_HF_CONFIG_MAX ((size_t)1 << 20)

struct zt_hf_config {
    struct zt_model_config model;
    char type[16];                /* model_type: gpt2, llama, qwen2, qwen3 */
    bool has_dtype;               /* torch_dtype (or dtype): the format of the files, nothing else */
    enum zt_dtype dtype;
    int64_t end_token;            /* eos_token_id; -1: none, or several */
    char note[512];               /* what was accepted and needs a word; "" = nothing */
};

/* file: for messages. ZT_EINVAL names file and key; ZT_EUNSUPPORTED what is known but not computed here. */
int zt_hf_config_read(const char *text, size_t bytes, const char *file, struct zt_hf_config *out,
                      struct zt_error *err);
/* *text: malloc'ed, the caller's. end_token -1: none. ZT_EUNSUPPORTED when no architecture there has what
 * the model has. */
int zt_hf_config_write(const struct zt_model_config *c, enum zt_dtype dtype, int64_t end_token, char **text,
                       struct zt_error *err);
/* The section `model:` of a run file for this model, with init_from unless NULL; malloc'ed, NULL: no memory. */
char *zt_model_section(const struct zt_model_config *c, const char *init_from);
/* A number as JSON and YAML take it, the shortest that reads back the same. */
const char *zt_hf_number(double v, char *buf, size_t n);

#endif
