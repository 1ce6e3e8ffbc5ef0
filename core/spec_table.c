/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_table.c: the tensor table of a run. Pure; the caller owns the table. */
#include "core/spec.h"

static int choose(const struct zt_spec *s, struct zt_model_table *t, struct zt_error *err) {
    const bool lora = s->training.lora.enabled;
    const struct zt_strings *l = lora ? &s->training.lora.targets : &s->training.trainable;
    const char *patterns[ZT_SPEC_MAX_LIST];
    for (int i = 0; i < l->n; i++)
        patterns[i] = l->item[i];
    return lora ? zt_model_table_add_lora(t, s->training.lora.rank, patterns, l->n, err)
                : zt_model_set_trainable(t, patterns, l->n, err);
}

int zt_spec_table(const struct zt_spec *s, struct zt_model_table *t, struct zt_error *err) {
    int rc = zt_model_table_build(&s->model, s->parallelism.wrap, s->parallelism.wrap_n, t, err);
    rc = rc ? rc : choose(s, t, err);
    for (int i = 0; rc == 0 && i < t->n_tensors; i++)
        t->tensors[i].decay = t->tensors[i].decay || s->optimizer.decay_1d;
    if (rc)
        zt_model_table_free(t);
    return rc;
}

double zt_spec_lora_scale(const struct zt_spec *s) {
    return s->training.lora.enabled ? s->training.lora.alpha / (double)s->training.lora.rank : 0;
}
