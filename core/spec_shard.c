/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_shard.c: what a run file may say about modes and number formats, and what it means when it
 * says it in the words of other programs. Nothing is left unread in silence: a key that its mode or
 * recipe does not read is refused; where --set changed the mode of a file, what the new mode does not
 * read is put back to its default and told. Pure; works on the caller's structs only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/modes.h"
#include "core/spec_schema.h"
#include "core/units.h"

#define LL(v) ((long long)(v))

/* ---------------------------------------------------------------------------------- other words */

static const char *const mode_keys[] = {"zero_stage", "stage", "sharding_strategy"};
#define N_MODE_KEYS ((int)(sizeof mode_keys / sizeof mode_keys[0]))

static const char *mode_key(const char *key) {
    for (int i = 0; i < N_MODE_KEYS; i++)
        if (strcmp(mode_keys[i], key) == 0)
            return mode_keys[i];
    return NULL;
}

const char *zt_alias_key(const char *path) {
    static const char section[] = "parallelism.";
    const size_t n = sizeof section - 1;
    return strncmp(path, section, n) == 0 ? mode_key(path + n) : NULL;
}

/* The child at *at, whose key is another name of the mode: renamed, or taken out and told. */
static void alias_one(struct zt_problems *p, const struct zt_node *map, struct zt_node **at,
                      const char *foreign) {
    struct zt_node *c = *at;
    const struct zt_node *mode = zt_node_get(map, "mode", 4);
    char path[64], *ours = mode ? NULL : strdup("mode");
    if (mode) {
        snprintf(path, sizeof path, "parallelism.%s", foreign);
        zt_problem_at(p, c->key_line, c->key_column, path,
                      "another name of parallelism.%s, which is given at line %u; keep one of them",
                      mode->foreign ? mode->foreign : "mode", mode->key_line);
        *at = c->next;
    } else if (ours) { /* without memory it stays an unknown key, which is an error as well */
        free(c->key);
        c->key = ours;
        c->foreign = foreign;
    }
}

void zt_alias_keys(struct zt_problems *p, struct zt_tree *t) {
    struct zt_node *map = t->root->kind == ZT_NODE_MAP ? zt_node_get(t->root, "parallelism", 11) : NULL;
    if (!map || map->kind != ZT_NODE_MAP)
        return;
    for (struct zt_node **at = &map->child; *at;) {
        struct zt_node *c = *at;
        const char *foreign = mode_key(c->key);
        if (foreign)
            alias_one(p, map, at, foreign);
        if (*at == c)
            at = &c->next;
    }
}

/* reshard_after_forward: false, as SHARD_GRAD_OP has it. */
static void apply_keep(struct zt_problems *p, struct zt_spec *s, const struct zt_mode_word *w) {
    if (zt_spec_given(s, "parallelism.reshard_after_forward") &&
        s->parallelism.reshard != ZT_RESHARD_FALSE)
        ZT_PROBLEM(p, "parallelism.reshard_after_forward",
                   "contradicts the mode: %s means false; leave it out, or write mode: fsdp", w->word);
    s->parallelism.reshard = ZT_RESHARD_FALSE;
}

void zt_alias_apply(struct zt_problems *p, struct zt_spec *s, const struct zt_mode_word *w,
                    const char *text, const char *foreign) {
    const int key = zt_schema_row("parallelism.mode");
    char meaning[128], show[64];
    if (w->keep)
        apply_keep(p, s, w);
    if (w->hybrid && s->parallelism.replicate < 2) {
        zt_problem(p, key,
                   "%s needs data_parallel_replicate_degree above 1, the number of groups that each hold a "
                   "replica (elsewhere often the number of nodes); for one group write mode: fsdp",
                   w->word);
        return;
    }
    zt_note(p, s, key, "%s%s%s is read as %s%s%s%s%s", foreign ? foreign : "", foreign ? ": " : "",
            zt_value_show(text, show, sizeof show), zt_mode_word_meaning(w, meaning, sizeof meaning),
            w->from ? "; a word of " : "", w->from ? w->from : "", w->why ? ": " : "", w->why ? w->why : "");
}

/* ---------------------------------------------------------------------------------- the mode */

static bool gathers(enum zt_mode m) { return m == ZT_ZERO3 || m == ZT_FSDP; }

/* A key that another key leaves without effect. */
static void idle_key(struct zt_problems *p, struct zt_spec *s, const char *path, const char *why) {
    const int key = zt_schema_row(path), mode = zt_schema_row("parallelism.mode");
    const bool set = s->mark[mode].line != 0 && s->mark[mode].column == 0;
    if (!zt_spec_changed(s, path))
        return;
    if (set && s->mark[key].column != 0) {
        zt_note(p, s, key, "left aside, as --set chose mode %s: %s", zt_mode_name(s->parallelism.mode), why);
        zt_schema_default(s, zt_schema_key(key));
        return;
    }
    zt_problem(p, key, "%s; leave it out", why);
}

static void check_gathers(struct zt_problems *p, struct zt_spec *s) {
    static const char *const keys[] = {"parallelism.reshard_after_forward", "parallelism.prefetch",
                                       "parallelism.persistence_threshold"};
    const enum zt_mode m = s->parallelism.mode;
    char why[160];
    snprintf(why, sizeof why, "%s keeps its parameters whole and gathers none; only zero3 and fsdp read it",
             zt_mode_name(m));
    for (int i = 0; i < 3 && !gathers(m); i++)
        idle_key(p, s, keys[i], why);
}

static void check_no_sync(struct zt_problems *p, struct zt_spec *s) {
    const enum zt_mode m = s->parallelism.mode;
    char why[160];
    if (!s->parallelism.no_sync || gathers(m))
        return;
    if (m == ZT_ZERO2) {
        idle_key(p, s, "parallelism.no_sync",
                 "zero2 cuts its gradients in every micro-step, so that there is no whole sum to wait with; "
                 "zero1 reduces once per window");
        return;
    }
    snprintf(why, sizeof why, "%s reduces once per accumulation window as it is", zt_mode_name(m));
    idle_key(p, s, "parallelism.no_sync", why);
}

static void check_units(struct zt_problems *p, const struct zt_spec *s) {
    const double mib = s->parallelism.bucket_mib;
    if (s->parallelism.wrap == ZT_WRAP_N && s->model.layers > 0 &&
        s->parallelism.wrap_n > s->model.layers)
        ZT_PROBLEM(p, "parallelism.wrap", "%d blocks a unit, but the model has %lld; give at most that",
                   s->parallelism.wrap_n, LL(s->model.layers));
    if (mib > 0 && mib * 1024 < 1)
        ZT_PROBLEM(p, "parallelism.bucket_mib",
                   "%g is less than 1 KiB (0.001); it is a size in MiB, and a tensor is never cut: give more, "
                   "or 0 for one collective per unit",
                   mib);
}

/* What is gathered at once is whole at once. */
static void note_bucket(struct zt_problems *p, struct zt_spec *s) {
    struct zt_model_table t;
    struct zt_error err;
    int64_t blocks = 0;
    char size[40];
    if (!gathers(s->parallelism.mode) || s->parallelism.bucket_mib <= 0 || s->model.layers < 2 ||
        zt_model_table_build(&s->model, ZT_WRAP_BLOCK, 1, &t, &err))
        return;
    for (int i = 0; i < t.n_tensors; i++)
        blocks += t.tensors[i].layer >= 0 ? t.tensors[i].numel : 0;
    const double bytes = (double)blocks * (double)zt_dtype_size(s->precision.reduce_dtype);
    if (s->parallelism.bucket_mib * (double)ZT_MIB >= bytes)
        zt_note(p, s, zt_schema_row("parallelism.bucket_mib"),
                "%g MiB hold all blocks of the model (%s): they are gathered at once, and %s then holds them whole "
                "while it computes",
                s->parallelism.bucket_mib, zt_format_bytes(bytes, size, sizeof size),
                zt_mode_name(s->parallelism.mode));
    zt_model_table_free(&t);
}

/* What is said of a key of training after its name and a colon. */
static const char *after_key(const struct zt_error *err) {
    const char *why = strstr(err->msg, ": ");
    return why ? why + 2 : err->msg;
}

/* Patterns need the names of the tensors. */
static void check_trainable(struct zt_problems *p, const struct zt_spec *s) {
    struct zt_model_table t;
    struct zt_error err;
    const char *patterns[ZT_SPEC_MAX_LIST];
    if (!zt_spec_changed(s, "training.trainable"))
        return;
    if (zt_model_table_build(&s->model, ZT_WRAP_BLOCK, 1, &t, &err))
        return; /* what is wrong with the model is told elsewhere */
    for (int i = 0; i < s->training.trainable.n; i++)
        patterns[i] = s->training.trainable.item[i];
    if (zt_model_set_trainable(&t, patterns, s->training.trainable.n, &err))
        ZT_PROBLEM(p, "training.trainable", "%s", after_key(&err));
    zt_model_table_free(&t);
}

static void check_recompute(struct zt_problems *p, const struct zt_spec *s) {
    const int64_t every = s->activation_checkpoint.every, layers = s->model.layers;
    if (s->activation_checkpoint.mode == ZT_RECOMPUTE_NONE && zt_spec_changed(s, "activation_checkpoint.every"))
        ZT_PROBLEM(p, "activation_checkpoint.every", "has no effect with mode none; leave it out, or choose selective or "
                   "full");
    else if (layers > 0 && every > layers)
        ZT_PROBLEM(p, "activation_checkpoint.every", "%lld blocks, but the model has %lld; give at most that", LL(every),
                   LL(layers));
}

/* Whole heads, and equal parts of the feed-forward layer and of a sequence. */
static void check_tensor(struct zt_problems *p, const struct zt_spec *s) {
    const int t = s->parallelism.tensor;
    const int64_t T = s->training.seq_len;
    struct zt_error err;
    char list[128];
    if (s->model.heads < 1 || s->model.kv_heads < 1 || s->model.ffn_dim < 1)
        return; /* told elsewhere */
    if (s->parallelism.sequence_parallel && t == 1)
        ZT_PROBLEM(p, "parallelism.sequence_parallel",
                   "true needs a tensor_parallel_degree above 1, as it cuts what that leaves whole (the model allows %s); "
                   "leave it out",
                   zt_divisors(zt_model_degrees(&s->model), list, sizeof list));
    if (zt_model_cut_check(&s->model, t, &err))
        ZT_PROBLEM(p, "parallelism.tensor_parallel_degree", "%s", strstr(err.msg, ": ") + 2);
    if (s->parallelism.sequence_parallel && T % t != 0)
        ZT_PROBLEM(p, "training.seq_len",
                   "%lld is not divisible by tensor_parallel_degree %d, between whose ranks sequence_parallel cuts it; "
                   "give a multiple of %d",
                   LL(T), t, t);
}

static void check_lora(struct zt_problems *p, const struct zt_spec *s) {
    struct zt_model_table t;
    struct zt_error err;
    const char *targets[ZT_SPEC_MAX_LIST];
    if (!s->training.lora.enabled)
        return;
    if (zt_spec_changed(s, "training.trainable"))
        ZT_PROBLEM(p, "training.trainable", "given together with training.lora, where adapters alone train; give one of "
                   "them");
    if (zt_model_table_build(&s->model, ZT_WRAP_BLOCK, 1, &t, &err))
        return; /* what is wrong with the model is told elsewhere */
    for (int i = 0; i < s->training.lora.targets.n; i++)
        targets[i] = s->training.lora.targets.item[i];
    if (zt_model_table_add_lora(&t, s->training.lora.rank, targets, s->training.lora.targets.n, &err))
        ZT_PROBLEM(p, strncmp(err.msg, "training.lora.rank", 18) == 0 ? "training.lora.rank" : "training.lora.targets", "%s",
                   after_key(&err));
    zt_model_table_free(&t);
}

void zt_check_shard(struct zt_problems *p, struct zt_spec *s) {
    const enum zt_mode m = s->parallelism.mode;
    if (m == ZT_DDP && s->parallelism.shard > 1)
        ZT_PROBLEM(p, "parallelism.data_parallel_shard_degree",
                   "%d with mode ddp, which keeps everything whole; give 1 (its replicas are "
                   "data_parallel_replicate_degree) or another mode",
                   s->parallelism.shard);
    check_tensor(p, s);
    if (s->parallelism.reshard == ZT_RESHARD_INT && s->parallelism.reshard_int == 1)
        s->parallelism.reshard = ZT_RESHARD_FALSE; /* cut in one part: kept whole */
    check_gathers(p, s);
    check_no_sync(p, s);
    check_units(p, s);
    note_bucket(p, s);
    check_trainable(p, s);
    check_lora(p, s);
    if (s->parallelism.reshard == ZT_RESHARD_INT && s->parallelism.tensor > 1)
        ZT_PROBLEM(p, "parallelism.reshard_after_forward",
                   "%d with tensor_parallel_degree %d; a number needs tensor_parallel_degree 1 (allowed: true, false, "
                   "default)",
                   s->parallelism.reshard_int, s->parallelism.tensor);
    check_recompute(p, s);
    if (!s->parallelism.overlap)
        idle_key(p, s, "parallelism.max_inflight_reduces",
                 "with overlap: false each reduction is waited for before the next");
}

/* ---------------------------------------------------------------------------------- precision */

static void check_reduce(struct zt_problems *p, const struct zt_spec *s, const struct zt_recipe *r) {
    const enum zt_dtype d = s->precision.reduce_dtype;
    if (r->compute != ZT_F32 && !zt_spec_given(s, "precision.reduce_dtype"))
        ZT_PROBLEM(p, "precision.reduce_dtype",
                   "missing; recipe %s computes in 16 bits, so say in which format gradients are summed "
                   "(fp32 is the safe one)",
                   r->name);
    else if (d != ZT_F32 && d != r->compute)
        ZT_PROBLEM(p, "precision.reduce_dtype", "%s with recipe %s, which computes in %s; give %s%s",
                   zt_dtype_name(d), r->name, zt_dtype_name(r->compute), zt_dtype_name(ZT_F32),
                   r->compute == ZT_F32   ? ""
                   : r->compute == ZT_F16 ? " or fp16"
                                          : " or bf16");
}

void zt_check_precision(struct zt_problems *p, const struct zt_spec *s) {
    const struct zt_recipe *r = zt_recipe_find(s->precision.recipe);
    if (!r)
        return;
    check_reduce(p, s, r);
    if (r->gathered != r->param && !gathers(s->parallelism.mode))
        ZT_PROBLEM(p, "precision.recipe",
                   "%s keeps cut parameters in %s and gathers them in %s, but %s gathers none; give mode fsdp "
                   "or zero3, or recipe autocast, which computes in %s from whole parameters",
                   r->name, zt_dtype_name(r->param), zt_dtype_name(r->gathered),
                   zt_mode_name(s->parallelism.mode), zt_dtype_name(r->compute));
    else if (!r->supported)
        ZT_PROBLEM(p, "precision.recipe", "\"%s\" is not in this version (only fp32)", r->name);
    if (!r->scaled && zt_spec_given(s, "precision.scaler") && zt_spec_changed(s, "precision.scaler"))
        ZT_PROBLEM(p, "precision.scaler", "recipe %s has no loss scaler; only fp16 reads it; leave it out",
                   r->name);
}
