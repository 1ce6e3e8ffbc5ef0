/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/weights.c: see weights.h. */
#include "engine/checkpoint/weights.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/write.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* ---- what it is ---- */

static bool there(const struct zt_sys *sys, const char *folder, const char *name) {
    char path[ZT_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = sys->open(sys->arg, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd >= 0) sys->close(sys->arg, fd);
    return fd >= 0;
}

/* The newest step of a run's folder into w->folder. */
static int newest_step(const struct zt_sys *sys, const char *folder, struct zt_weights *w, struct zt_error *err) {
    int64_t *steps = NULL;
    int n = 0, rc = zt_ckpt_list(sys, folder, &steps, &n, err);
    if (rc == 0 && n > 0) {
        char name[32];
        zt_ckpt_step_name(steps[n - 1], name);
        if (snprintf(w->folder, sizeof w->folder, "%s/%s", folder, name) >= (int)sizeof w->folder)
            rc = zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", folder);
    }
    free(steps);
    if (rc == 0 && n == 0)
        rc = zt_fail(err, ZT_ENOTFOUND,
                     "%s: holds no weights: neither config.json (a Hugging Face folder) nor manifest.json (one checkpoint) "
                     "nor step folders (a run's checkpoints)", folder);
    return rc;
}

/* ---- opening ---- */

static int open_hf(const struct zt_sys *sys, const char *folder, struct zt_weights *w, struct zt_error *err) {
    struct zt_hf *h = NULL;
    int rc = zt_hf_open(sys, folder, &h, err);
    if (rc) return rc;
    w->source = zt_hf_source(h);
    w->hugging_face = true;
    w->model = zt_hf_config(h)->model;
    w->end_token = zt_hf_config(h)->end_token;
    snprintf(w->note, sizeof w->note, "%s", zt_hf_config(h)->note);
    return zt_model_table_build(&w->model, ZT_WRAP_BLOCK, 1, &w->table, err);
}

/* The run's own table, held against what is stored. */
static int check_stored(const struct zt_weights *w, struct zt_error *err) {
    for (int i = 0; i < w->table.n_tensors; i++)
        if (i >= w->manifest->n_tensors || strcmp(w->manifest->tensors[i].name, w->table.tensors[i].name) != 0 ||
            !w->source.has(w->source.arg, w->table.tensors[i].name, ZT_SAVED_PARAMETER))
            return zt_fail(err, ZT_ECORRUPT, "%s: tensor \"%s\" of its own specification is missing", w->folder,
                           w->table.tensors[i].name);
    return 0;
}

static int open_checkpoint(const struct zt_sys *sys, const struct zt_sha256 *manifest, struct zt_weights *w,
                           struct zt_error *err) {
    struct zt_ckpt_open o = {.sys = sys, .folder = w->folder, .manifest = manifest};
    struct zt_ckpt *c = NULL;
    int rc = zt_ckpt_open(&o, &c, err);
    if (rc) return rc;
    w->source = zt_ckpt_source(c);
    w->manifest = zt_ckpt_manifest(c);
    w->spec = calloc(1, sizeof *w->spec);
    if (!w->spec) return zt_fail(err, ZT_ENOMEM, "no host memory for a specification");
    rc = zt_spec_parse(w->manifest->spec, strlen(w->manifest->spec), "manifest.json", NULL, 0, w->spec, err);
    if (rc) {
        free(w->spec);
        w->spec = NULL;
        return zt_fail_prefix(err, "%s: the specification in manifest.json", w->folder);
    }
    w->model = w->spec->model;
    w->lora_scale = zt_spec_lora_scale(w->spec);
    const size_t n = strlen(w->spec->dataset.path);
    w->end_token = n > 6 && strcmp(w->spec->dataset.path + n - 6, ".jsonl") == 0 ? 0 : -1;
    rc = zt_spec_table(w->spec, &w->table, err);
    return rc ? rc : check_stored(w, err);
}

int zt_weights_open(const struct zt_sys *sys, const char *folder, const struct zt_sha256 *manifest,
                    struct zt_weights *w, struct zt_error *err) {
    const struct zt_sys *s = sys ? sys : &zt_sys_posix;
    int rc = 0;
    memset(w, 0, sizeof *w);
    w->end_token = -1;
    if (strlen(folder) >= sizeof w->folder) return zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", folder);
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    if (there(s, folder, "manifest.json"))
        TRY(open_checkpoint(s, manifest, w, err));
    else if (there(s, folder, "config.json"))
        TRY(open_hf(s, folder, w, err));
    else {
        TRY(newest_step(s, folder, w, err));
        TRY(open_checkpoint(s, manifest, w, err));
    }
out:
    if (rc) zt_weights_close(w);
    return rc;
}

void zt_weights_close(struct zt_weights *w) {
    if (w->source.close) w->source.close(w->source.arg);
    if (w->spec) zt_spec_free(w->spec);
    free(w->spec);
    zt_model_table_free(&w->table);
    memset(w, 0, sizeof *w);
}

/* ---- what is in it ---- */

enum zt_saved zt_weights_kind(const struct zt_weights *w, const char *name) {
    return w->source.has(w->source.arg, name, ZT_SAVED_MASTER) ? ZT_SAVED_MASTER : ZT_SAVED_PARAMETER;
}

bool zt_weights_adapted(const struct zt_weights *w) {
    for (int i = 0; i < w->table.n_tensors; i++)
        if (w->table.tensors[i].piece >= ZT_LORA_A) return true;
    return false;
}

enum zt_dtype zt_weights_type(const struct zt_weights *w, bool adapters) {
    int64_t n[ZT_DTYPE_COUNT] = {0};
    enum zt_dtype most = ZT_F32;
    for (int i = 0; i < w->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &w->table.tensors[i];
        if ((d->piece >= ZT_LORA_A) != adapters) continue;
        n[w->hugging_face ? zt_hf_type(w->source.arg, i) : w->manifest->tensors[i].type[ZT_SAVED_PARAMETER]] += d->numel;
    }
    for (int i = 0; i <= ZT_F16; i++)
        if (n[i] > n[most]) most = (enum zt_dtype)i;
    return most;
}

/* ---- does it fit a run ---- */

struct row { const char *key; double have, want; };

static int check_rows(const struct zt_weights *w, const struct row *row, int n, struct zt_error *err) {
    for (int i = 0; i < n; i++)
        if (row[i].have != row[i].want)
            return zt_fail(err, ZT_EINVAL, "model.%s: the run has %.10g, the weights in %s have %.10g", row[i].key,
                           row[i].want, w->folder, row[i].have);
    return 0;
}

static int check_model(const struct zt_weights *w, const struct zt_model_config *c, struct zt_error *err) {
    const struct zt_model_config *m = &w->model;
    const struct row all[] = {
        {"layers", (double)m->layers, (double)c->layers},
        {"heads", (double)m->heads, (double)c->heads},
        {"kv_heads", (double)m->kv_heads, (double)c->kv_heads},
        {"head_dim", (double)m->head_dim, (double)c->head_dim},
        {"dim", (double)m->dim, (double)c->dim},
        {"ffn_dim", (double)m->ffn_dim, (double)c->ffn_dim},
        {"vocab_size", (double)m->vocab_size, (double)c->vocab_size},
        {"tied_head", m->tied_head, c->tied_head},
        {"norm_eps", m->norm_eps, c->norm_eps},
    };
    const struct row learned[] = {{"seq_len_max", (double)m->seq_len_max, (double)c->seq_len_max}};
    const struct row rotary[] = {
        {"qkv_bias", m->qkv_bias, c->qkv_bias},
        {"qk_norm", m->qk_norm, c->qk_norm},
        {"rope_theta", m->rope_theta, c->rope_theta},
        {"rope_scaling.type", m->rope_scaling.type, c->rope_scaling.type},
    };
    const struct row scaled[] = {
        {"rope_scaling.factor", m->rope_scaling.factor, c->rope_scaling.factor},
        {"rope_scaling.low_freq_factor", m->rope_scaling.low_freq_factor, c->rope_scaling.low_freq_factor},
        {"rope_scaling.high_freq_factor", m->rope_scaling.high_freq_factor, c->rope_scaling.high_freq_factor},
        {"rope_scaling.original_max", (double)m->rope_scaling.original_max, (double)c->rope_scaling.original_max},
    };
    if (m->family != c->family)
        return zt_fail(err, ZT_EINVAL, "model.family: the run has %s, the weights in %s are of the %s family",
                       c->family == ZT_GPT2 ? "gpt2" : "llama", w->folder, m->family == ZT_GPT2 ? "gpt2" : "llama");
    int rc = check_rows(w, all, (int)(sizeof all / sizeof all[0]), err);
    if (rc == 0 && c->family == ZT_GPT2) rc = check_rows(w, learned, 1, err);
    if (rc == 0 && c->family == ZT_LLAMA) rc = check_rows(w, rotary, (int)(sizeof rotary / sizeof rotary[0]), err);
    if (rc == 0 && c->family == ZT_LLAMA && c->rope_scaling.type != ZT_ROPE_NONE)
        rc = check_rows(w, scaled, (int)(sizeof scaled / sizeof scaled[0]), err);
    return rc;
}

int zt_weights_fit(const struct zt_weights *w, const struct zt_model_table *t, struct zt_error *err) {
    int rc = check_model(w, &t->config, err);
    for (int i = 0; i < t->n_tensors && rc == 0; i++) {
        const struct zt_tensor_def *d = &t->tensors[i];
        if (d->piece < ZT_LORA_A && !w->source.has(w->source.arg, d->name, ZT_SAVED_PARAMETER))
            rc = zt_fail(err, ZT_EINVAL, "%s: has no tensor \"%s\"", w->folder, d->name);
    }
    for (int i = 0; i < w->table.n_tensors && rc == 0; i++) {
        const struct zt_tensor_def *d = &w->table.tensors[i];
        bool found = d->piece < ZT_LORA_A; /* the models are equal */
        for (int k = 0; k < t->n_tensors && !found; k++) found = strcmp(t->tensors[k].name, d->name) == 0;
        if (!found)
            rc = zt_fail(err, ZT_EINVAL, "%s: has adapters (\"%s\") that the run has not: zctl export --merge-lora makes "
                         "weights of both", w->folder, d->name);
    }
    return rc;
}
