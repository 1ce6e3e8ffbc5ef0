/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_weights.c: a run that begins from weights alone: another run's checkpoint or a Hugging
 * Face folder (model.init_from), or its own without what training added (checkpoint.load:
 * weights_only). Recipe, mode, mesh and what is trained may be others. Never called a resume: step,
 * moments, schedule and place in the data begin anew. Memory and thread rules: train_int.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/weights.h"
#include "engine/train_int.h"

/* Whether the numbers that count are the stored ones, bit for bit: nothing was rounded, no adapter drawn. */
static bool exact(const struct zt_trainer *t, const struct zt_manifest *m) {
    if (!m || m->n_tensors != t->table.n_tensors) return false;
    for (int i = 0; i < m->n_tensors; i++) {
        const struct zt_saved_tensor *s = &m->tensors[i];
        const struct zt_tensor_def *d = &t->table.tensors[i];
        enum zt_dtype then = s->has[ZT_SAVED_MASTER] ? ZT_F32 : s->type[ZT_SAVED_PARAMETER];
        enum zt_dtype now = t->recipe->has_master && !d->frozen
                                ? ZT_F32
                                : zt_recipe_stored(t->recipe, !d->frozen);
        if (strcmp(s->name, d->name) || s->number != d->number || (now != ZT_F32 && now != then))
            return false;
    }
    return true;
}

static void tell_weights(const struct zt_trainer *t, const struct zt_weights *w) {
    char text[ZT_PATH_MAX + 800], of[64] = "";
    if (t->config->rank != 0) return;
    if (w->manifest)
        snprintf(of, sizeof of, " (a checkpoint of step %" PRId64 ")", w->manifest->position.step);
    snprintf(text, sizeof text,
             "weights alone from %s%s: step, moments, schedule and place in the data begin anew%s%s",
             w->folder, of, w->note[0] ? "; " : "", w->note);
    if (t->hooks->event) t->hooks->event(t->hooks->arg, ZT_EVENT_INFO, "WEIGHTS_LOADED", text);
}

int zt_load_weights(struct zt_trainer *t, const char *folder, const struct zt_sha256 *manifest,
                    struct zt_error *err) {
    struct zt_weights w = {.manifest = NULL};
    struct zt_hash128 ignored;
    int64_t start = zt_trainer_now(t);
    int rc = 0;
    TRY(zt_weights_open(zt_load_sys(t), folder, manifest, &w, err));
    TRY(zt_weights_fit(&w, &t->table, err));
    TRY(zt_load_tensors(t, &w.source, true, err));
    if (exact(t, w.manifest))
        TRY(zt_load_check_hash(t, w.manifest, true, err));
    else
        TRY(zt_trainer_check_hash(t, &ignored, err));
    tell_weights(t, &w);
    TRY(zt_load_acknowledge(t, start, &w.source, err));
out:
    if (rc) zt_fail_prefix(err, "weights of %s", folder);
    zt_weights_close(&w);
    return rc;
}
