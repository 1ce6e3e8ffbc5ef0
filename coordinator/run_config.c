/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/run_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool zt_run_name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > ZT_RUN_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!alnum && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return true;
}

/* Which numbers of workers pass the cross-checks. Each try needs its own copy: resolve fills it in. */
static int find_allowed(const struct zt_spec *spec, const char *file, struct zt_run_config *c, struct zt_error *err)
{
    struct zt_spec *copy = malloc(sizeof *copy);
    if (!copy)
        return zt_fail(err, ZT_ENOMEM, "%s: out of memory", file);
    int found = 0;
    struct zt_error first = { 0 }, one;
    for (int w = 1; w <= ZT_RANKS_MAX; w++) {
        *copy = *spec;
        if (zt_spec_resolve(copy, w, file, &one) == 0) {
            c->allowed[(w - 1) / 64] |= UINT64_C(1) << ((w - 1) % 64);
            found++;
        } else if (!first.code) {
            first = one;
        }
    }
    free(copy);
    if (found)
        return 0;
    return zt_fail(err, ZT_EINVAL, "%s: no number of workers from 1 to %d fits this file; with one worker: %s", file,
                   ZT_RANKS_MAX, first.msg);
}

int zt_run_config_from_spec(const struct zt_spec *spec, int workers, const char *file, struct zt_run_config *c,
                            struct zt_error *err)
{
    memset(c, 0, sizeof *c);
    int wanted = workers > 0 ? workers : spec->workers;
    struct zt_spec *s = malloc(sizeof *s);
    if (!s)
        return zt_fail(err, ZT_ENOMEM, "%s: out of memory", file);
    *s = *spec;
    int code = 0;
    bool elastic = wanted == 0 && spec->workers_max > 0;
    if (wanted == 0 && !elastic && spec->parallelism.replicate > 0 && spec->parallelism.shard > 0 && spec->parallelism.tensor > 0)
        wanted = spec->parallelism.replicate * spec->parallelism.shard * spec->parallelism.tensor;
    _Static_assert(ZT_RANKS_MAX <= ZT_MACHINE_WORLD_MAX, "resolve refuses what the machine cannot hold");
    if (wanted > 0)
        code = zt_spec_resolve(s, wanted, file, err);
    else
        code = find_allowed(spec, file, c, err);
    if (!code) {
        c->priority = s->priority;
        c->workers = wanted;
        c->replicate = s->parallelism.replicate;
        c->shard = s->parallelism.shard;
        c->tensor = s->parallelism.tensor;
        c->elastic = elastic;
        if (elastic && s->parallelism.mode == ZT_DDP)
            c->shard = 1;
        c->fill_shard = s->parallelism.mode != ZT_DDP;
        snprintf(c->device, sizeof c->device, "%s", s->requirements.device);
        c->memory_bytes = (int64_t)(s->requirements.memory_gib * 1073741824.0);
        c->steps = s->training.steps;
        c->max_restarts = s->restart.max_restarts;
        c->backoff_initial = s->restart.backoff_initial;
        c->backoff_max = s->restart.backoff_max;
        c->start = s->timeouts.start;
        c->first_step = s->timeouts.first_step;
        c->progress = s->timeouts.progress;
        c->term_grace = s->timeouts.term_grace;
        c->time_limit = s->timeouts.time_limit;
        c->queue = s->timeouts.queue;
        c->comm_init = s->comm.init_timeout_seconds;
        c->saves = s->checkpoint.enabled;
        c->on_preempt = s->checkpoint.on_preempt;
        c->keep_latest_k = s->checkpoint.keep_latest_k;
        c->keep_every = s->checkpoint.keep_every;
        c->no_progress_limit = s->restart.no_progress_limit;
    }
    free(s);
    return code;
}

static void hex_bytes(const uint8_t *b, size_t n, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[b[i] >> 4];
        out[2 * i + 1] = digit[b[i] & 15];
    }
    out[2 * n] = 0;
}

static bool parse_bytes(const char *hex, uint8_t *out, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(hex) != 2 * n)
        return false;
    for (size_t i = 0; i < 2 * n; i++) {
        const char *at = strchr(digits, hex[i]);
        if (!at)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (at - digits));
    }
    return true;
}

static void hex_allowed(const struct zt_run_config *c, char out[ZT_MACHINE_WORLD_MAX / 4 + 1])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < ZT_MACHINE_WORLD_MAX / 4; i++)
        out[i] = digit[c->allowed[i / 16] >> (i % 16 * 4) & 15];
    size_t n = ZT_MACHINE_WORLD_MAX / 4;
    while (n > 0 && out[n - 1] == '0')
        n--;
    out[n] = 0;
}

static void parse_allowed(const char *hex, struct zt_run_config *c)
{
    for (int i = 0; i < ZT_MACHINE_WORLD_MAX / 4 && hex[i]; i++) {
        const char *digits = "0123456789abcdef", *at = strchr(digits, hex[i]);
        if (at)
            c->allowed[i / 16] |= (uint64_t)(at - digits) << (i % 16 * 4);
    }
}

char *zt_run_config_to_json(const struct zt_run_config *c)
{
    char allowed[ZT_MACHINE_WORLD_MAX / 4 + 1];
    hex_allowed(c, allowed);
    char manifest[2 * sizeof c->source.manifest + 1];
    hex_bytes(c->source.manifest, sizeof c->source.manifest, manifest);
    json_t *j = json_pack("{s:i, s:i, s:i, s:i, s:i, s:b, s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f,"
                          " s:b, s:b, s:I, s:I, s:i, s:s, s:I, s:b, s:s, s:b}",
                          "priority", c->priority, "workers", c->workers, "replicate", c->replicate, "shard", c->shard,
                          "tensor", c->tensor, "fill_shard", (int)c->fill_shard, "allowed", allowed, "device", c->device,
                          "memory_bytes", (json_int_t)c->memory_bytes, "steps", (json_int_t)c->steps, "max_restarts",
                          c->max_restarts, "backoff_initial", c->backoff_initial, "backoff_max", c->backoff_max, "start",
                          c->start, "first_step", c->first_step, "progress", c->progress, "term_grace", c->term_grace,
                          "time_limit", c->time_limit, "queue", c->queue, "comm_init", c->comm_init, "saves", (int)c->saves,
                          "on_preempt", (int)c->on_preempt, "keep_latest_k", (json_int_t)c->keep_latest_k, "keep_every",
                          (json_int_t)c->keep_every, "no_progress_limit", c->no_progress_limit, "source_run", c->source.run_id,
                          "source_step", (json_int_t)c->source.step, "weights_only", (int)c->source.weights_only,
                          "source_manifest", manifest, "elastic", (int)c->elastic);
    if (!j)
        return NULL;
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(j);
    return text;
}

int zt_run_config_from_json(const char *text, struct zt_run_config *c, struct zt_error *err)
{
    memset(c, 0, sizeof *c);
    json_error_t why;
    json_t *j = json_loads(text, 0, &why);
    if (!j)
        return zt_fail(err, ZT_EIO, "the stored configuration of the run is damaged: %s", why.text);
    const char *allowed = "", *device = "", *source = "", *manifest = "";
    int fill = 0, elastic = 0, saves = 0, on_preempt = 0, weights_only = 0;
    json_int_t memory = 0, steps = 0, keep_latest_k = 0, keep_every = 0, source_step = 0;
    int rc = json_unpack_ex(j, &why, 0,
                            "{s?i, s?i, s?i, s?i, s?i, s?b, s?s, s?s, s?I, s?I, s?i, s?F, s?F, s?F, s?F, s?F, s?F, s?F, s?F, s?F,"
                            " s?b, s?b, s?I, s?I, s?i, s?s, s?I, s?b, s?s, s?b}",
                            "priority", &c->priority, "workers", &c->workers, "replicate", &c->replicate, "shard",
                            &c->shard, "tensor", &c->tensor, "fill_shard", &fill, "allowed", &allowed, "device", &device,
                            "memory_bytes", &memory, "steps", &steps, "max_restarts", &c->max_restarts,
                            "backoff_initial", &c->backoff_initial, "backoff_max", &c->backoff_max, "start", &c->start,
                            "first_step", &c->first_step, "progress", &c->progress, "term_grace", &c->term_grace,
                            "time_limit", &c->time_limit, "queue", &c->queue, "comm_init", &c->comm_init, "saves", &saves,
                            "on_preempt", &on_preempt, "keep_latest_k", &keep_latest_k, "keep_every", &keep_every,
                            "no_progress_limit", &c->no_progress_limit, "source_run", &source, "source_step", &source_step,
                            "weights_only", &weights_only, "source_manifest", &manifest, "elastic", &elastic);
    bool good = rc || !manifest[0] || parse_bytes(manifest, c->source.manifest, sizeof c->source.manifest);
    if (!rc) {
        c->elastic = elastic != 0;
        c->saves = saves != 0;
        c->on_preempt = on_preempt != 0;
        c->keep_latest_k = keep_latest_k;
        c->keep_every = keep_every;
        snprintf(c->source.run_id, sizeof c->source.run_id, "%s", source);
        c->source.step = source_step;
        c->source.weights_only = weights_only != 0;
        c->fill_shard = fill != 0;
        c->memory_bytes = memory;
        c->steps = steps;
        snprintf(c->device, sizeof c->device, "%s", device);
        parse_allowed(allowed, c);
    }
    json_decref(j);
    if (!good)
        return zt_fail(err, ZT_EIO, "the stored configuration of the run is damaged: source_manifest");
    return rc ? zt_fail(err, ZT_EIO, "the stored configuration of the run is damaged: %s", why.text) : 0;
}
