/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/weights.h: whatever a folder with weights is: a Hugging Face folder (hf.h), the folder
 * of one checkpoint (step-00001000), or a run's folder, of which the newest step is taken. For
 * model.init_from, zctl export and zctl sample. Blocking; one thread. */
#ifndef ZT_ENGINE_CHECKPOINT_WEIGHTS_H
#define ZT_ENGINE_CHECKPOINT_WEIGHTS_H
#include "core/spec.h"
#include "core/sys.h"
#include "engine/checkpoint/format.h"
#include "engine/checkpoint/source.h"

struct zt_weights {
    struct zt_tensor_source source; /* its close is zt_weights_close's business */
    bool hugging_face;
    char folder[ZT_PATH_MAX];       /* what was opened: of a run's folder, that of the step */
    struct zt_model_config model;
    int64_t end_token;              /* that ends a text; -1: not known */
    struct zt_model_table table;    /* uncut; with the adapters that are stored */
    double lora_scale;              /* of those: alpha / rank */
    struct zt_spec *spec;           /* of the run that saved it (of an imported one, only its model counts); NULL: Hugging Face */
    const struct zt_manifest *manifest; /* NULL: Hugging Face */
    char note[512];                 /* what needs a word; "" = nothing */
};

/* sys NULL: the real one; manifest NULL: not known. ZT_ENOTFOUND: nothing of the three; else as zt_hf_open
 * and zt_ckpt_open. */
int zt_weights_open(const struct zt_sys *sys, const char *folder, const struct zt_sha256 *manifest,
                    struct zt_weights *w, struct zt_error *err);
void zt_weights_close(struct zt_weights *w); /* of a zeroed or closed struct too */

/* Whether a run with this table (cut or not) can begin from w: the same model, but for dropout and, without
 * learned positions, the longest sequence; every tensor there, but for adapters, which then start as drawn.
 * ZT_EINVAL names the key and both values. */
int zt_weights_fit(const struct zt_weights *w, const struct zt_model_table *t, struct zt_error *err);

/* The format in which most numbers of w's adapters, or of all else, are stored. */
enum zt_dtype zt_weights_type(const struct zt_weights *w, bool adapters);
bool zt_weights_adapted(const struct zt_weights *w); /* has adapters */
/* The kind that counts of a tensor: the master copy where there is one. */
enum zt_saved zt_weights_kind(const struct zt_weights *w, const char *name);

#endif
