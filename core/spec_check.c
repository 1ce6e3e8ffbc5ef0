/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_check.c: the list of problems, and every rule of run.yaml that ties values together.
 * Pure; works on the caller's structs only. */
#include "core/resume.h"
#include "core/spec_schema.h"
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/units.h"

/* ---------------------------------------------------------------------------------- problems */

static void append(struct zt_problems *p, const char *line) {
    size_t n = strlen(line);
    p->n++;
    if (p->shown >= ZT_PROBLEMS_MAX || p->used + n + 2 > sizeof p->text)
        return;
    p->shown++;
    if (p->used)
        p->text[p->used++] = '\n';
    memcpy(p->text + p->used, line, n + 1);
    p->used += n;
}

static void add_problem(struct zt_problems *p, uint32_t line, uint32_t column, const char *path,
                        const char *why) {
    char text[700];
    if (line == 0)
        snprintf(text, sizeof text, "%s: %s: %s", p->file, path, why);
    else if (column == 0)
        snprintf(text, sizeof text, "--set %s: %s", path, why);
    else
        snprintf(text, sizeof text, "%s:%u:%u: %s: %s", p->file, line, column, path, why);
    append(p, text);
}

void zt_problem_at(struct zt_problems *p, uint32_t line, uint32_t column, const char *path,
                   const char *fmt, ...) {
    char why[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    add_problem(p, line, column, path, why);
}

void zt_problem(struct zt_problems *p, int key, const char *fmt, ...) {
    char why[600];
    va_list ap;
    if (p->key_bad[key])
        return;
    p->key_bad[key] = true;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    int at = key;
    while (at >= 0 && p->spec->mark[at].line == 0)
        at = zt_schema_parent(at);
    uint32_t line = at >= 0 ? p->spec->mark[at].line : 0;
    uint32_t column = at >= 0 ? p->spec->mark[at].column : 0;
    /* A key that is not there because of its section: the section's place, but never "--set". */
    if (at != key && column == 0)
        line = 0;
    add_problem(p, line, column, zt_schema_key(key)->path, why);
}

int zt_problems_end(struct zt_problems *p, struct zt_error *err) {
    if (p->n == 0)
        return 0;
    if (p->n > p->shown)
        return zt_fail(err, ZT_EINVAL, "%s\n(and %d more)", p->text, p->n - p->shown);
    return zt_fail(err, ZT_EINVAL, "%s", p->text);
}

void zt_note(const struct zt_problems *p, struct zt_spec *s, int key, const char *fmt, ...) {
    char why[420];
    va_list ap;
    if (s->notes.n == ZT_SPEC_MAX_NOTES)
        return;
    char *to = s->notes.item[s->notes.n++];
    const size_t room = sizeof s->notes.item[0];
    const char *path = zt_schema_key(key)->path;
    uint32_t line = s->mark[key].line, column = s->mark[key].column;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (line == 0)
        snprintf(to, room, "%s: %s: %s", p->file, path, why);
    else if (column == 0)
        snprintf(to, room, "--set %s: %s", path, why);
    else
        snprintf(to, room, "%s:%u:%u: %s: %s", p->file, line, column, path, why);
}

/* ---------------------------------------------------------------------------------- helpers */

int zt_schema_row(const char *path) {
    int i = zt_schema_find(path);
    ZT_ASSERT(i >= 0);
    return i;
}

bool zt_spec_given(const struct zt_spec *s, const char *path) {
    return s->mark[zt_schema_row(path)].line != 0;
}

bool zt_spec_changed(const struct zt_spec *s, const char *path) {
    char text[ZT_SCHEMA_TEXT];
    const struct zt_key *k = zt_schema_key(zt_schema_row(path));
    if (!zt_spec_given(s, path))
        return false;
    return !k->fallback || strcmp(zt_schema_text(s, k, text, sizeof text), k->fallback) != 0;
}

#define LL(v) ((long long)(v))

/* ---------------------------------------------------------------------------------- alone */

static bool name_ok(const char *s) {
    if (!(islower((unsigned char)s[0]) || isdigit((unsigned char)s[0])))
        return false;
    for (; *s; s++)
        if (!(islower((unsigned char)*s) || isdigit((unsigned char)*s) || strchr("._-", *s)))
            return false;
    return true;
}

static void check_run(struct zt_problems *p, const struct zt_spec *s) {
    char show[80];
    if (s->name[0] && !name_ok(s->name))
        ZT_PROBLEM(p, "name",
                "\"%s\" is not a run name: lower-case letters, digits, '.', '_' and '-', the first a "
                "letter or a digit, at most %d",
                zt_value_show(s->name, show, sizeof show), ZT_NAME_MAX);
    if (s->workers_min > 0 && s->workers_max > 0 && s->workers_min > s->workers_max)
        ZT_PROBLEM(p, "workers.min", "%d is above workers.max %d", s->workers_min, s->workers_max);
    if ((s->workers_min > 0) != (s->workers_max > 0))
        ZT_PROBLEM(p, s->workers_min > 0 ? "workers.min" : "workers.max",
                "an elastic run needs both; write workers: {min: N, max: M}");
    else if (s->workers_max > 0 && s->workers > 0)
        ZT_PROBLEM(p, "workers.max", "given together with workers: %d; give the one or the other", s->workers);
    else if (s->workers_max > 0 && s->training.global_batch_size == 0)
        ZT_PROBLEM(p, "workers.max",
                "an elastic run keeps its global batch on any number of workers; give training.global_batch_size");
}

static void check_data(struct zt_problems *p, const struct zt_spec *s) {
    bool path = s->dataset.path[0] != 0, sources = s->dataset.sources.n > 0;
    if (!path && !sources)
        ZT_PROBLEM(p, "dataset.path", "missing; give the file, folder or glob to train on");
    if (path && sources)
        ZT_PROBLEM(p, "dataset.sources", "given together with dataset.path; give one of them");
    if (s->dataset.tokenizer == ZT_TOKENIZER_BYTES && s->model.vocab_size > 0 &&
        s->model.vocab_size < 256)
        ZT_PROBLEM(p, "model.vocab_size",
                "%lld is too small for tokenizer bytes, whose ids go up to 255; give 256 or more",
                LL(s->model.vocab_size));
    if (!s->validation.enabled)
        return;
    if (!s->validation.path[0] && s->validation.fraction <= 0)
        ZT_PROBLEM(p, "validation.path", "missing; give path, or fraction (0.1 keeps a tenth)");
    if (s->validation.path[0] && s->validation.fraction > 0)
        ZT_PROBLEM(p, "validation.fraction", "given together with validation.path; give one of them");
    if (s->training.steps > 0 && s->validation.every_steps > s->training.steps)
        ZT_PROBLEM(p, "validation.every_steps", "%lld is never reached in %lld steps",
                LL(s->validation.every_steps), LL(s->training.steps));
}

/* Weights of documents need to know where these end; token shards do not say. */
static void check_average(struct zt_problems *p, const struct zt_spec *s) {
    const size_t n = strlen(s->dataset.path);
    const bool shards = n >= 4 && strcmp(s->dataset.path + n - 4, ".bin") == 0;
    if (s->loss.average != ZT_AVERAGE_TOKEN && (shards || s->dataset.tokenizer == ZT_TOKENIZER_NONE))
        ZT_PROBLEM(p, "loss.average",
                "%s weighs documents, and token shards do not mark them; give .jsonl examples as the dataset, or "
                "average: token",
                s->loss.average == ZT_AVERAGE_SAMPLE ? "sample" : "square");
}

static void check_training(struct zt_problems *p, const struct zt_spec *s) {
    int64_t local = s->training.local_batch_size, global = s->training.global_batch_size;
    if (s->training.steps == 0 && s->training.epochs == 0)
        ZT_PROBLEM(p, "training.steps", "missing; give steps or epochs");
    if (s->training.steps > 0 && s->training.epochs > 0)
        ZT_PROBLEM(p, "training.epochs", "given together with training.steps; give one of them");
    if (s->training.seq_len > s->model.seq_len_max && s->model.seq_len_max > 0)
        ZT_PROBLEM(p, "training.seq_len", "%lld is longer than the model's seq_len_max %lld",
                LL(s->training.seq_len), LL(s->model.seq_len_max));
    if (global > 0 && local > 0 && global < local)
        ZT_PROBLEM(p, "training.global_batch_size",
                "%lld sequences are fewer than one local_batch_size of %lld", LL(global), LL(local));
    if (s->training.epochs == 0 && zt_spec_changed(s, "training.accumulation_tail"))
        ZT_PROBLEM(p, "training.accumulation_tail", "is read with training.epochs only; with steps, "
                "windows run on across epochs");
}

static void check_schedule(struct zt_problems *p, const struct zt_spec *s) {
    int64_t warmup = s->lr_scheduler.warmup_steps, steps = s->training.steps;
    if (steps > 0 && warmup > steps)
        ZT_PROBLEM(p, "lr_scheduler.warmup_steps", "%lld is more than training.steps %lld", LL(warmup),
                LL(steps));
    if (s->lr_scheduler.decay_type != ZT_DECAY_CONSTANT)
        return;
    static const char *const unused[] = {"lr_scheduler.decay_ratio", "lr_scheduler.min_lr_factor"};
    for (int i = 0; i < 2; i++)
        if (zt_spec_changed(s, unused[i]))
            ZT_PROBLEM(p, unused[i], "has no effect with decay_type constant; choose linear, cosine "
                    "or sqrt, or leave it out");
}

/* Checkpoints and weights that are named; whether they are there is seen where they are. */
static void check_names(struct zt_problems *p, const struct zt_spec *s) {
    struct zt_load load;
    struct zt_error err;
    if (s->checkpoint.enabled && zt_load_parse(s->checkpoint.load, &load, &err))
        ZT_PROBLEM(p, "checkpoint.load", "%s", err.msg);
    if (zt_init_from_parse(s->init_from, &load, &err))
        ZT_PROBLEM(p, "model.init_from", "%s", err.msg);
}

static void check_service(struct zt_problems *p, struct zt_spec *s) {
    if (s->checkpoint.enabled && s->checkpoint.keep_latest_k == 1)
        ZT_PROBLEM(p, "checkpoint.keep_latest_k",
                "1 would leave nothing to fall back on; give 0 (all) or 2 and more");
    if (s->checkpoint.enabled && zt_spec_given(s, "checkpoint.interval") && s->training.steps > 0 &&
        s->checkpoint.interval >= s->training.steps)
        zt_note(p, s, zt_schema_row("checkpoint.interval"), "%lld is not below training.steps %lld: only the last step is saved",
                LL(s->checkpoint.interval), LL(s->training.steps));
    check_names(p, s);
    double progress = s->timeouts.progress > 0 ? s->timeouts.progress : 10;
    if (s->comm.train_timeout_seconds <= progress)
        ZT_PROBLEM(p, "comm.train_timeout_seconds",
                "%g must be above timeouts.progress (%s%g), so that a hang is found before its "
                "consequences",
                s->comm.train_timeout_seconds, s->timeouts.progress > 0 ? "" : "auto: at least ",
                progress);
    if (s->restart.backoff_initial > s->restart.backoff_max)
        ZT_PROBLEM(p, "restart.backoff_seconds.initial", "%g is above restart.backoff_seconds.max %g",
                s->restart.backoff_initial, s->restart.backoff_max);
}

/* A key of the model by its message "model.KEY: why", as core/model.h writes it. */
static void model_problem(struct zt_problems *p, const char *message) {
    char path[64];
    const char *colon = strstr(message, ": ");
    snprintf(path, sizeof path, "%.*s", colon ? (int)(colon - message) : 0, message);
    int key = zt_schema_find(path);
    if (key >= 0)
        zt_problem(p, key, "%s", colon + 2);
    else
        ZT_PROBLEM(p, "model", "%s", message);
}

/* Keys that the model's family does not read, and a preset of another family. */
static void check_family(struct zt_problems *p, const struct zt_spec *s) {
    struct zt_model_config preset;
    for (int i = 0; i < zt_schema_count() && s->model.family == ZT_GPT2; i++)
        if ((zt_schema_key(i)->flags & ZT_KEY_LLAMA) && s->mark[i].line != 0)
            zt_problem(p, i, "is read by the llama family only; this model is gpt2");
    if (s->preset[0] && zt_spec_given(s, "model.family") && zt_model_preset(s->preset, &preset, NULL) == 0 &&
        preset.family != s->model.family)
        ZT_PROBLEM(p, "model.family", "%s beside preset %s, which is of the other family; leave it out, or give the "
                "numbers without a preset", s->model.family == ZT_GPT2 ? "gpt2" : "llama", s->preset);
}

/* Numbers of a stretching that there is not. */
static void check_rope(struct zt_problems *p, const struct zt_spec *s) {
    static const char *const numbers[] = {
        "model.rope_scaling.factor", "model.rope_scaling.low_freq_factor",
        "model.rope_scaling.high_freq_factor", "model.rope_scaling.original_max"};
    if (s->model.family != ZT_LLAMA || s->model.rope_scaling.type != ZT_ROPE_NONE)
        return;
    for (int i = 0; i < 4; i++)
        if (zt_spec_given(s, numbers[i]))
            ZT_PROBLEM(p, numbers[i], "is read with type llama3 only; add it: rope_scaling: {type: llama3, ...}");
}

static void check_model(struct zt_problems *p, const struct zt_spec *s) {
    struct zt_error err;
    check_family(p, s);
    check_rope(p, s);
    for (int i = 0; i < zt_schema_count(); i++)
        if (strncmp(zt_schema_key(i)->path, "model", 5) == 0 && p->key_bad[i])
            return; /* its numbers are not all there */
    if (zt_model_config_check(&s->model, &err))
        model_problem(p, err.msg);
}

/* It keeps a division from being 0 / 0, which takes a number that is not 0 in fp32. */
static void check_epsilon(struct zt_problems *p, const struct zt_spec *s) {
    if (s->optimizer.eps > 0 && s->optimizer.eps < (double)FLT_MIN)
        ZT_PROBLEM(p, "optimizer.eps",
                "%g is 0 in fp32, so that zero gradients would give NaN; give 1.2e-38 or more", s->optimizer.eps);
}

/* What the allocator of every rank would refuse. */
static void check_memory(struct zt_problems *p, const struct zt_spec *s) {
    double split = s->memory.max_split_size_mib, limit = s->memory.limit_gib;
    if (split > 0 && split <= 20)
        ZT_PROBLEM(p, "memory.max_split_size_mib",
                "%g is not above 20, the size of a large segment; give more, or 0 for no limit",
                split);
    if (limit > 0 && limit * 512 < 1)
        ZT_PROBLEM(p, "memory.limit_gib",
                "%g is less than one segment of 2 MiB (0.002); give more, or 0 for what the worker "
                "offers",
                limit);
}

void zt_check_alone(struct zt_problems *p, struct zt_spec *s) {
    check_run(p, s);
    check_model(p, s);
    check_data(p, s);
    check_average(p, s);
    check_training(p, s);
    check_schedule(p, s);
    zt_check_shard(p, s);
    zt_check_precision(p, s);
    check_epsilon(p, s);
    check_memory(p, s);
    check_service(p, s);
}

/* ---------------------------------------------------------------------------------- mesh */

int64_t zt_spec_workers_known(const struct zt_spec *s) {
    if (s->workers > 0)
        return s->workers;
    if (s->workers_max > 0)
        return 0; /* as many as there are */
    int shard = s->parallelism.mode == ZT_DDP ? 1 : s->parallelism.shard;
    if (s->parallelism.replicate > 0 && shard > 0)
        return (int64_t)s->parallelism.replicate * shard * s->parallelism.tensor;
    return 0;
}

static bool degree_divides(struct zt_problems *p, const char *path, int degree, int workers) {
    char list[128];
    if (degree < 1 || workers % degree == 0)
        return true;
    ZT_PROBLEM(p, path, "%d does not divide %d workers (allowed: %s)", degree, workers,
            zt_divisors(workers, list, sizeof list));
    return false;
}

/* The degrees that an elastic run takes for so many; false when there are none. */
static bool shrink_degrees(struct zt_problems *p, struct zt_spec *s, int workers) {
    bool ddp = s->parallelism.mode == ZT_DDP;
    struct zt_mesh given = {s->parallelism.replicate, ddp ? 1 : s->parallelism.shard, s->parallelism.tensor}, m;
    if (workers < s->workers_min || workers > s->workers_max) {
        ZT_PROBLEM(p, "workers.max", "%d workers are not within workers.min %d and workers.max %d", workers, s->workers_min,
                s->workers_max);
        return false;
    }
    if (!zt_mesh_shrink(given, !ddp, workers, &m)) {
        ZT_PROBLEM(p, "workers.max",
                "no mesh of %d workers: the tensor degree %d stays, replicas go first, then the shard degree shrinks",
                workers, given.tensor);
        return false;
    }
    s->parallelism.replicate = m.replicate;
    s->parallelism.shard = m.shard;
    return true;
}

/* Leaves the degrees filled; false when they cannot be. */
static bool fill_degrees(struct zt_problems *p, struct zt_spec *s, int workers) {
    int *r = &s->parallelism.replicate, *sh = &s->parallelism.shard, t = s->parallelism.tensor;
    bool ddp = s->parallelism.mode == ZT_DDP;
    bool ok = degree_divides(p, "parallelism.tensor_parallel_degree", t, workers);
    ok = degree_divides(p, "parallelism.data_parallel_shard_degree", *sh, workers) && ok;
    ok = degree_divides(p, "parallelism.data_parallel_replicate_degree", *r, workers) && ok;
    if (!ok)
        return false;
    if (ddp && *sh < 0)
        *sh = 1;
    if (!ddp && *r < 0 && *sh < 0)
        *r = 1;
    int64_t product = (int64_t)(*r < 0 ? 1 : *r) * (*sh < 0 ? 1 : *sh) * t;
    bool open = *r < 0 || *sh < 0;
    if (open ? workers % product == 0 : workers == product) {
        int rest = (int)(workers / product);
        *r = *r < 0 ? rest : *r;
        *sh = *sh < 0 ? rest : *sh;
        return true;
    }
    const char *path = zt_spec_given(s, "parallelism.tensor_parallel_degree")
                           ? "parallelism.tensor_parallel_degree"
                       : zt_spec_given(s, "parallelism.data_parallel_shard_degree")
                           ? "parallelism.data_parallel_shard_degree"
                           : "parallelism.data_parallel_replicate_degree";
    ZT_PROBLEM(p, path,
            "replicate %d x shard %d x tensor %d = %lld, but there are %d workers; leave a degree out "
            "to have it filled",
            *r < 0 ? 1 : *r, *sh < 0 ? 1 : *sh, t, LL(product), workers);
    return false;
}

static void check_batch(struct zt_problems *p, struct zt_spec *s) {
    int64_t local = s->training.local_batch_size, global = s->training.global_batch_size;
    int64_t dp = (int64_t)s->parallelism.replicate * s->parallelism.shard, step = local * dp;
    if (local < 1 || global < 0)
        return;
    if (global == 0) {
        s->training.global_batch_size = step;
        return;
    }
    if (global % step == 0)
        return;
    int64_t below = global / step * step;
    char near[64];
    if (below > 0)
        snprintf(near, sizeof near, "%lld or %lld", LL(below), LL(below + step));
    else
        snprintf(near, sizeof near, "%lld", LL(step));
    ZT_PROBLEM(p, "training.global_batch_size",
            "%lld is not a multiple of local_batch_size %lld x %lld data-parallel ranks = %lld; give "
            "%s, or another local_batch_size",
            LL(global), LL(local), LL(dp), LL(step), near);
}

void zt_check_mesh(struct zt_problems *p, struct zt_spec *s, int workers) {
    if (s->workers > 0 && s->workers != workers) {
        ZT_PROBLEM(p, "workers", "the run file asks for %d, but there are %d; change one of them",
                s->workers, workers);
        return;
    }
    if (s->workers_max > 0 && !shrink_degrees(p, s, workers))
        return;
    if (!fill_degrees(p, s, workers))
        return;
    s->workers = workers;
    check_batch(p, s);
    if (s->parallelism.reshard != ZT_RESHARD_INT)
        return;
    if (s->parallelism.reshard_int == s->parallelism.shard) {
        s->parallelism.reshard = ZT_RESHARD_TRUE; /* cut in as many parts as the state */
    } else if (s->parallelism.shard % s->parallelism.reshard_int != 0) {
        char list[128];
        ZT_PROBLEM(p, "parallelism.reshard_after_forward",
                "%d does not divide the shard degree %d (allowed: %s)", s->parallelism.reshard_int,
                s->parallelism.shard, zt_divisors(s->parallelism.shard, list, sizeof list));
    }
}

/* ---------------------------------------------------------------------------------- this version */

static void check_not_yet(struct zt_problems *p, const struct zt_spec *s,
                          const struct zt_not_yet *no) {
    char text[ZT_SCHEMA_TEXT], show[80];
    int i = zt_schema_row(no->path);
    const struct zt_key *k = zt_schema_key(i);
    if (!no->only) {
        const bool *there = (const bool *)(const void *)((const char *)s + k->offset);
        if (*there)
            zt_problem(p, i, "not in this version; leave the section out");
        return;
    }
    zt_schema_text(s, k, text, sizeof text);
    if (strcmp(text, no->only) == 0)
        return;
    zt_value_show(text, show, sizeof show);
    if (!no->only[0])
        zt_problem(p, i, "not in this version; leave it out");
    else
        zt_problem(p, i, "\"%s\" is not in this version (only %s)", show, no->only);
}

void zt_check_supported(struct zt_problems *p, const struct zt_spec *s) {
    for (int i = 0; zt_schema_not_yet(i); i++)
        check_not_yet(p, s, zt_schema_not_yet(i));
}
