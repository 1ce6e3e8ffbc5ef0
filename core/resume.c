/* SPDX-License-Identifier: Apache-2.0 */
/* core/resume.c: what a run may be told to go on from, and which keys of run.yaml may differ then. Pure; any
 * thread. */
#include "core/resume.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/spec_schema.h"

/* ---- checkpoint.load, model.init_from ---- */

/* Of a name, or of an id, which has capitals. */
static bool id_char(char c) { return c != '\0' && (isalnum((unsigned char)c) || strchr("._-", c) != NULL); }

/* A step: digits, above 0, no leading 0. */
static bool step_of(const char *text, int64_t *step) {
    size_t n = strlen(text);
    if (n < 1 || n > 15 || text[0] == '0' || strspn(text, "0123456789") != n)
        return false;
    *step = strtoll(text, NULL, 10);
    return true;
}

/* "ID" or "ID@N". */
static bool run_of(const char *text, struct zt_load *out) {
    const char *at = strchr(text, '@');
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n < 1 || n >= sizeof out->run || (at && !step_of(at + 1, &out->step)))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!id_char(text[i]))
            return false;
    out->kind = ZT_LOAD_RUN;
    memcpy(out->run, text, n);
    return true;
}

int zt_load_parse(const char *text, struct zt_load *out, struct zt_error *err) {
    char show[80];
    *out = (struct zt_load){.kind = ZT_LOAD_AUTO, .step = -1};
    if (strcmp(text, "auto") == 0)
        return 0;
    if (strcmp(text, "never") == 0)
        out->kind = ZT_LOAD_NEVER;
    else if (strcmp(text, "weights_only") == 0)
        out->kind = ZT_LOAD_WEIGHTS_ONLY;
    else if (strncmp(text, "step:", 5) == 0 && step_of(text + 5, &out->step))
        out->kind = ZT_LOAD_STEP;
    else if (strncmp(text, "run:", 4) != 0 || !run_of(text + 4, out))
        return zt_fail(err, ZT_EINVAL,
                       "\"%s\" says nothing to load; give auto, never, step:N, run:ID, run:ID@N or weights_only",
                       zt_value_show(text, show, sizeof show));
    return 0;
}

int zt_init_from_parse(const char *text, struct zt_load *out, struct zt_error *err) {
    char show[80];
    *out = (struct zt_load){.kind = ZT_LOAD_FOLDER, .step = -1};
    if (strcmp(text, "fresh") == 0)
        out->kind = ZT_LOAD_FRESH;
    else if (text[0] == '\0' || (strncmp(text, "run:", 4) == 0 && !run_of(text + 4, out)))
        return zt_fail(err, ZT_EINVAL, "\"%s\" says nothing to begin with; give fresh, run:ID, run:ID@N or a folder",
                       zt_value_show(text, show, sizeof show));
    return 0;
}

/* ---- what may differ ---- */

/* Every key of the schema is under one row here, the longest that fits: a whole section by its name, or a
 * single key. A key under none must not differ. */
static const struct { const char *path; enum zt_resume_rule rule; } rules[] = {
    {"version", ZT_RESUME_SAME},
    {"name", ZT_RESUME_FREE},
    {"labels", ZT_RESUME_FREE},
    {"priority", ZT_RESUME_FREE},
    {"workers", ZT_RESUME_FREE},
    {"requirements", ZT_RESUME_FREE},
    {"model", ZT_RESUME_SAME},
    {"model.preset", ZT_RESUME_FREE},    /* its numbers are compared */
    {"model.init_from", ZT_RESUME_FREE}, /* read by a fresh start alone */
    {"dataset", ZT_RESUME_SAME},
    {"validation", ZT_RESUME_FREE},
    {"validation.fraction", ZT_RESUME_SAME}, /* it cuts the training files */
    {"training", ZT_RESUME_SAME},
    {"training.steps", ZT_RESUME_FREE},
    {"training.local_batch_size", ZT_RESUME_FREE},
    {"training.global_batch_size", ZT_RESUME_BATCH},
    {"training.seq_len", ZT_RESUME_BATCH},
    {"loss", ZT_RESUME_SAME},
    {"loss.chunk_tokens", ZT_RESUME_FREE},
    {"optimizer", ZT_RESUME_SAME},
    {"optimizer.lr", ZT_RESUME_FREE},
    {"lr_scheduler", ZT_RESUME_FREE},
    {"precision", ZT_RESUME_SAME},
    {"parallelism", ZT_RESUME_FREE},
    {"activation_checkpoint", ZT_RESUME_FREE},
    {"checkpoint", ZT_RESUME_FREE},
    {"memory", ZT_RESUME_FREE},
    {"comm", ZT_RESUME_FREE},
    {"restart", ZT_RESUME_FREE},
    {"timeouts", ZT_RESUME_FREE},
    {"metrics", ZT_RESUME_FREE},
};

enum zt_resume_rule zt_resume_rule(const char *path) {
    enum zt_resume_rule rule = ZT_RESUME_UNKNOWN;
    size_t longest = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        size_t n = strlen(rules[i].path);
        if (n < longest || strncmp(rules[i].path, path, n) != 0 || (path[n] != '\0' && path[n] != '.'))
            continue;
        longest = n;
        rule = rules[i].rule;
    }
    return rule;
}

struct differences { char text[1400]; size_t used; int n; };

static void add(struct differences *d, const char *path, const char *before, const char *now) {
    char a[80], b[80];
    size_t left = sizeof d->text - d->used;
    d->n++;
    int n = snprintf(d->text + d->used, left, "%s%s: %s in the checkpoint, %s now", d->used ? "; " : "", path,
                     before[0] ? zt_value_show(before, a, sizeof a) : "not given",
                     now[0] ? zt_value_show(now, b, sizeof b) : "not given");
    if (n > 0 && (size_t)n < left)
        d->used += (size_t)n;
    else
        d->text[d->used] = '\0'; /* the first ones are enough */
}

/* A row as text; of an optional section whether it is there. */
static const char *value_of(const struct zt_spec *s, const struct zt_key *k, char *buf) {
    if (k->kind != ZT_KEY_SECTION)
        return zt_schema_text(s, k, buf, ZT_SCHEMA_TEXT);
    bool there = false;
    if (k->offset != ZT_KEY_NOWHERE)
        memcpy(&there, (const char *)s + k->offset, sizeof there);
    return there ? "given" : "";
}

static void compare(const struct zt_spec *saved, const struct zt_spec *now, bool accept_batch_change, char *before,
                    char *after, struct differences *fixed, struct differences *batch) {
    for (int i = 0; i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        const enum zt_resume_rule rule = zt_resume_rule(k->path);
        if (rule == ZT_RESUME_FREE || (rule == ZT_RESUME_BATCH && accept_batch_change))
            continue;
        const char *a = value_of(saved, k, before), *b = value_of(now, k, after);
        if (strcmp(a, b) != 0)
            add(rule == ZT_RESUME_BATCH ? batch : fixed, k->path, a, b);
    }
}

/* How the saved batch is kept on the ranks there are now: the local batch that is asked for, or the nearest below
 * it that divides. */
static int refuse_batch(const struct zt_spec *saved, const struct zt_spec *now, const struct differences *batch,
                        struct zt_error *err) {
    const int64_t global = saved->training.global_batch_size, dp = zt_mesh_dp(zt_spec_mesh(now));
    int64_t local = now->training.local_batch_size;
    char keep[240] = "Set it back";
    if (global != now->training.global_batch_size && dp > 0 && global % dp == 0) {
        while (global / dp % local != 0)
            local--;
        snprintf(keep, sizeof keep,
                 "Give training.global_batch_size: %" PRId64 " (with training.local_batch_size: %" PRId64 " on these %" PRId64
                 " data-parallel ranks)",
                 global, local, dp);
    } else if (global != now->training.global_batch_size) {
        snprintf(keep, sizeof keep,
                 "%" PRId64 " sequences are not divided by %" PRId64 " data-parallel ranks: give another number of workers and "
                 "training.global_batch_size: %" PRId64,
                 global, dp, global);
    }
    return zt_fail(err, ZT_EINVAL,
                   "%s; the steps that follow would be other ones. %s, or accept that with --accept-batch-change",
                   batch->text, keep);
}

int zt_resume_check(const struct zt_spec *saved, const struct zt_spec *now, bool accept_batch_change,
                    struct zt_error *err) {
    struct differences fixed = {.used = 0}, batch = {.used = 0};
    char *before = malloc(ZT_SCHEMA_TEXT), *after = malloc(ZT_SCHEMA_TEXT);
    int rc = 0;
    if (!before || !after) {
        rc = zt_fail(err, ZT_ENOMEM, "resume: no host memory");
    } else {
        locale_t c, old = zt_c_locale_enter(&c);
        compare(saved, now, accept_batch_change, before, after, &fixed, &batch);
        zt_c_locale_leave(c, old);
    }
    free(before);
    free(after);
    if (fixed.n)
        return zt_fail(err, ZT_EINVAL,
                       "%s; a run that goes on cannot change that. Set it back, or start a new run from the weights "
                       "alone: model.init_from: run:ID@N, or checkpoint.load: weights_only",
                       fixed.text);
    if (batch.n)
        return refuse_batch(saved, now, &batch, err);
    if (accept_batch_change && saved->training.seq_len != now->training.seq_len && now->training.epochs > 0)
        return zt_fail(err, ZT_EINVAL,
                       "training.seq_len: %" PRId64 " in the checkpoint, %" PRId64 " now; samples of another length "
                       "are other samples, so that nobody can tell what is left of the epoch. Give training.steps "
                       "instead of training.epochs, or start a new run from the weights: model.init_from: run:ID@N",
                       saved->training.seq_len, now->training.seq_len);
    return rc;
}
