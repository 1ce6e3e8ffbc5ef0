/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/manifest.c: manifest.json, both ways; see format.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/checkpoint/format.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/limits.h"

static const char *const kind_field[ZT_SAVED_COUNT] = {"parameter", "master", "exp_avg", "exp_avg_sq"};

/* ---- writing ---- */

static void hash_field(struct zt_text *o, const char *name, struct zt_hash128 h) {
    char text[33];
    zt_hash_text(h, text);
    zt_text_add(o, "\"%s\":\"%s\",\n", name, text);
}

static void string_field(struct zt_text *o, const char *name, const char *value) {
    zt_text_add(o, "\"%s\":", name);
    zt_text_string(o, value);
    zt_text_add(o, ",\n");
}

/* A finite double is mantissa x 2^exponent: whole numbers, the same in every locale. */
static void put_scale(struct zt_text *o, double scale) {
    int exponent;
    const double fraction = frexp(scale, &exponent);
    zt_text_add(o, "[%lld,%d]", (long long)ldexp(fraction, 53), exponent - 53);
}

static void put_position(struct zt_text *o, const struct zt_position *p) {
    zt_text_add(o, "\"position\":{\"step\":%lld,\"updates\":%lld,\"skipped\":%lld,\"total_steps\":%lld,\"tokens\":%lld,\n",
                (long long)p->step, (long long)p->updates, (long long)p->skipped, (long long)p->total_steps, (long long)p->tokens);
    zt_text_add(o, " \"epoch\":%lld,\"consumed\":%lld,\"epoch_samples\":%lld,\"data_digest\":\"%016llx\",\n \"scaler\":",
                (long long)p->cursor.epoch, (long long)p->cursor.consumed, (long long)p->epoch_samples, (unsigned long long)p->data_digest);
    if (p->scaled) {
        zt_text_add(o, "{\"scale\":");
        put_scale(o, p->scale);
        zt_text_add(o, ",\"good\":%lld,\"hysteresis_left\":%d}", (long long)p->scale_good, p->scale_hysteresis_left);
    } else {
        zt_text_add(o, "null");
    }
    zt_text_add(o, "},\n");
}

static void put_tensor(struct zt_text *o, const struct zt_saved_tensor *t) {
    zt_text_add(o, "{\"name\":");
    zt_text_string(o, t->name);
    zt_text_add(o, ",\"shape\":[%lld", (long long)t->shape[0]);
    if (t->ndim == 2) zt_text_add(o, ",%lld", (long long)t->shape[1]);
    zt_text_add(o, "],\"number\":%u,\"frozen\":%s", t->number, t->frozen ? "true" : "false");
    for (int k = 0; k < ZT_SAVED_COUNT; k++)
        if (t->has[k]) zt_text_add(o, ",\"%s\":\"%s\"", kind_field[k], zt_dtype_name(t->type[k]));
    zt_text_add(o, "}");
}

int zt_manifest_text(const struct zt_manifest *m, char **text, size_t *n, struct zt_error *err) {
    struct zt_text o = {0};
    zt_text_add(&o, "{\"format\":%d,\n", ZT_CKPT_FORMAT);
    string_field(&o, "run_id", m->run_id);
    string_field(&o, "run_name", m->run_name);
    string_field(&o, "version", m->version);
    string_field(&o, "recipe", m->recipe);
    string_field(&o, "mode", m->mode);
    string_field(&o, "config_hash", m->config_hash);
    zt_text_add(&o, "\"generation\":%u,\n\"mesh\":{\"world\":%d,\"replicate\":%d,\"shard\":%d,\"tensor\":%d},\n", m->generation, m->world,
                m->replicate, m->shard, m->tensor);
    put_position(&o, &m->position);
    string_field(&o, "spec", m->spec ? m->spec : "");
    hash_field(&o, "parameter_hash", m->parameter_hash);
    hash_field(&o, "state_hash", m->state_hash);
    zt_text_add(&o, "\"previous\":");
    zt_text_hex(&o, m->previous.byte, sizeof m->previous.byte);
    zt_text_add(&o, ",\n\"created_ms\":%lld,\n\"tensors\":[", (long long)m->created_ms);
    for (int i = 0; i < m->n_tensors; i++) {
        zt_text_add(&o, i ? ",\n" : "\n");
        put_tensor(&o, &m->tensors[i]);
    }
    zt_text_add(&o, "],\n\"ranks\":[");
    for (int i = 0; i < m->world; i++) {
        zt_text_add(&o, "%s{\"bytes\":%lld,\"index\":", i ? ",\n" : "\n", (long long)m->ranks[i].bytes);
        zt_text_hex(&o, m->ranks[i].index.byte, sizeof m->ranks[i].index.byte);
        zt_text_add(&o, "}");
    }
    zt_text_add(&o, "]}\n");
    if (o.failed || o.n > ZT_CKPT_TEXT_MAX) {
        free(o.at);
        return zt_fail(err, o.failed ? ZT_ENOMEM : ZT_EINVAL, "the manifest of %d tensors and %d ranks %s", m->n_tensors, m->world,
                       o.failed ? "finds no memory" : "is too long");
    }
    *text = o.at;
    *n = o.n;
    return 0;
}

/* ---- reading ---- */

static void get_mesh(struct zt_json *j, struct zt_manifest *m) {
    static const char *const fields[] = {"world", "replicate", "shard", "tensor"};
    int *const to[] = {&m->world, &m->replicate, &m->shard, &m->tensor};
    uint64_t seen = 0;
    zt_json_object(j);
    for (int f; (f = zt_json_field(j, fields, 4, 0, &seen)) >= 0;) *to[f] = (int)zt_json_whole(j, 1, ZT_CKPT_WORLD_MAX);
    if (!j->rc && (int64_t)m->replicate * m->shard * m->tensor != m->world)
        zt_json_fail(j, "mesh: %d x %d x %d are not %d ranks", m->replicate, m->shard, m->tensor, m->world);
}

static double get_scale(struct zt_json *j) {
    int64_t v[2] = {0, 0};
    int n = 0;
    for (zt_json_list(j); zt_json_more(j); n++) {
        if (n == 0) v[0] = zt_json_whole(j, 1, (int64_t)1 << 53);
        if (n == 1) v[1] = zt_json_whole(j, -1100, 1100);
        if (n == 2) zt_json_fail(j, "more than two numbers");
    }
    const double scale = ldexp((double)v[0], (int)v[1]);
    if (n != 2 || !isfinite(scale) || scale <= 0) zt_json_fail(j, "expected a mantissa and an exponent");
    return scale;
}

static void get_scaler(struct zt_json *j, struct zt_position *p) {
    static const char *const fields[] = {"scale", "good", "hysteresis_left"};
    uint64_t seen = 0;
    if (zt_json_null(j)) return;
    p->scaled = true;
    zt_json_object(j);
    for (int f; (f = zt_json_field(j, fields, 3, 0, &seen)) >= 0;) {
        if (f == 0) p->scale = get_scale(j);
        if (f == 1) p->scale_good = zt_json_whole(j, 0, ZT_CKPT_STEP_MAX);
        if (f == 2) p->scale_hysteresis_left = (int)zt_json_whole(j, 0, INT32_MAX);
    }
}

static uint64_t get_word(struct zt_json *j) {
    uint8_t b[8];
    uint64_t v = 0;
    zt_json_hex(j, b, sizeof b);
    for (int i = 0; i < 8; i++) v = v << 8 | b[i];
    return v;
}

static void get_position(struct zt_json *j, struct zt_position *p) {
    static const char *const fields[] = {"step", "updates", "skipped", "total_steps", "tokens", "epoch", "consumed", "epoch_samples",
                                         "data_digest", "scaler"};
    const struct { int64_t *to, most; } numbers[] = {
        {&p->step, ZT_CKPT_STEP_MAX}, {&p->updates, ZT_CKPT_STEP_MAX}, {&p->skipped, ZT_CKPT_STEP_MAX}, {&p->total_steps, ZT_CKPT_STEP_MAX},
        {&p->tokens, INT64_MAX}, {&p->cursor.epoch, INT64_MAX}, {&p->cursor.consumed, INT64_MAX}, {&p->epoch_samples, INT64_MAX}};
    uint64_t seen = 0;
    zt_json_object(j);
    for (int f; (f = zt_json_field(j, fields, 10, 0, &seen)) >= 0;) {
        if (f < 8) *numbers[f].to = zt_json_whole(j, 0, numbers[f].most);
        if (f == 8) p->data_digest = get_word(j);
        if (f == 9) get_scaler(j, p);
    }
}

static void get_shape(struct zt_json *j, struct zt_saved_tensor *t) {
    int64_t product = 1;
    t->shape[0] = t->shape[1] = 1;
    for (zt_json_list(j); zt_json_more(j); t->ndim++) {
        if (t->ndim == 2) {
            zt_json_fail(j, "more than two dimensions");
            return;
        }
        t->shape[t->ndim] = zt_json_whole(j, 1, INT64_MAX / 8);
        if (__builtin_mul_overflow(product, t->shape[t->ndim], &product) || product > INT64_MAX / 8)
            zt_json_fail(j, "too many elements");
    }
    if (t->ndim == 0) zt_json_fail(j, "no dimension");
}

static void get_kind(struct zt_json *j, struct zt_saved_tensor *t, int kind) {
    static const enum zt_dtype floats[] = {ZT_F32, ZT_BF16, ZT_F16};
    char name[16];
    zt_json_copy(j, name, sizeof name);
    t->has[kind] = true;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, zt_dtype_name(t->type[kind] = floats[i])) == 0) return;
    zt_json_fail(j, "expected fp32, bf16 or fp16");
}

static void get_tensor(struct zt_json *j, struct zt_saved_tensor *t) {
    const char *const fields[] = {"name", "shape", "number", "frozen", kind_field[0], kind_field[1], kind_field[2], kind_field[3]};
    uint64_t seen = 0;
    zt_json_object(j);
    for (int f; (f = zt_json_field(j, fields, 8, 7u << 5, &seen)) >= 0;) {
        if (f == 0) zt_json_copy(j, t->name, sizeof t->name);
        if (f == 1) get_shape(j, t);
        if (f == 2) t->number = (uint32_t)zt_json_whole(j, 0, ZT_HASH_M - 1);
        if (f == 3) t->frozen = zt_json_bool(j);
        if (f >= 4) get_kind(j, t, f - 4);
    }
    if (j->rc) return;
    if (t->name[0] == '\0') zt_json_fail(j, "the name is empty");
    if (t->has[ZT_SAVED_M] != t->has[ZT_SAVED_V]) zt_json_fail(j, "%s: has one of its two moments", t->name);
    if (t->frozen && (t->has[ZT_SAVED_MASTER] || t->has[ZT_SAVED_M])) zt_json_fail(j, "%s: is frozen and has a state", t->name);
}

/* One more entry at the end of a table of `size` each; NULL after a fault. */
void *zt_json_grow(struct zt_json *j, void *table, int64_t n, int64_t most, size_t size) {
    void *const *now = table;
    char *grown = *now;
    if (j->rc) return NULL;
    if (n == most) {
        zt_json_fail(j, "more than %lld entries", (long long)most);
        return NULL;
    }
    if (n == 0 || (n & (n - 1)) == 0) { /* full at powers of two */
        grown = realloc(grown, (size_t)(n ? 2 * n : 1) * size);
        if (!grown) {
            j->rc = zt_fail(j->err, ZT_ENOMEM, "%s: no memory for what it lists", j->file);
            return NULL;
        }
        memcpy(table, &grown, sizeof grown);
    }
    return memset(grown + (size_t)n * size, 0, size);
}

static void get_tensors(struct zt_json *j, struct zt_manifest *m) {
    for (zt_json_list(j); zt_json_more(j);) {
        struct zt_saved_tensor *t = zt_json_grow(j, &m->tensors, m->n_tensors, ZT_CKPT_TENSORS_MAX, sizeof *t);
        if (!t) return;
        m->n_tensors++;
        get_tensor(j, t);
    }
}

static int get_ranks(struct zt_json *j, struct zt_manifest *m) {
    static const char *const fields[] = {"bytes", "index"};
    int n = 0;
    for (zt_json_list(j); zt_json_more(j);) {
        uint64_t seen = 0;
        struct zt_manifest_rank *r = zt_json_grow(j, &m->ranks, n, ZT_CKPT_WORLD_MAX, sizeof *r);
        if (!r) return n;
        n++;
        zt_json_object(j);
        for (int f; (f = zt_json_field(j, fields, 2, 0, &seen)) >= 0;) {
            if (f == 0) r->bytes = zt_json_whole(j, 0, INT64_MAX);
            if (f == 1) zt_json_hex(j, r->index.byte, sizeof r->index.byte);
        }
    }
    return n;
}

void zt_json_hash(struct zt_json *j, struct zt_hash128 *h) {
    char text[33];
    zt_json_copy(j, text, sizeof text);
    if (!j->rc && !zt_hash_parse(text, h)) zt_json_fail(j, "expected 32 hexadecimal digits");
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct zt_saved_tensor *const *)a)->name, (*(const struct zt_saved_tensor *const *)b)->name);
}
static int by_number(const void *a, const void *b) {
    const uint32_t x = (*(const struct zt_saved_tensor *const *)a)->number, y = (*(const struct zt_saved_tensor *const *)b)->number;
    return (x > y) - (x < y);
}

/* No two tensors share a name or a number. */
static void check_unique(struct zt_json *j, const struct zt_manifest *m) {
    const size_t n = (size_t)m->n_tensors;
    const struct zt_saved_tensor **t = calloc(n + 1, sizeof *t);
    if (!t) {
        j->rc = zt_fail(j->err, ZT_ENOMEM, "%s: no memory for what it lists", j->file);
        return;
    }
    for (size_t i = 0; i < n; i++) t[i] = &m->tensors[i];
    qsort(t, n, sizeof *t, by_name);
    for (size_t i = 1; i < n; i++)
        if (by_name(&t[i - 1], &t[i]) == 0) zt_json_fail(j, "tensor %s is there twice", t[i]->name);
    qsort(t, n, sizeof *t, by_number);
    for (size_t i = 1; i < n; i++)
        if (by_number(&t[i - 1], &t[i]) == 0) zt_json_fail(j, "tensors %s and %s have the number %u", t[i - 1]->name, t[i]->name, t[i]->number);
    free(t);
}

static void get_spec(struct zt_json *j, struct zt_manifest *m) {
    size_t n;
    const char *s = zt_json_string(j, &n);
    if (j->rc) return;
    m->spec = strdup(s);
    if (!m->spec) j->rc = zt_fail(j->err, ZT_ENOMEM, "%s: no memory for the specification", j->file);
}

int zt_json_format(struct zt_json *j) {
    const int64_t format = zt_json_whole(j, 1, INT32_MAX);
    if (!j->rc && format > ZT_CKPT_FORMAT)
        j->rc = zt_fail(j->err, ZT_EVERSION, "%s: checkpoint format %lld; this version reads up to %d: use the version that wrote it, or a newer one",
                        j->file, (long long)format, ZT_CKPT_FORMAT);
    return j->rc;
}

int zt_manifest_parse(const char *file, char *text, size_t n, struct zt_manifest *m, struct zt_error *err) {
    enum { FORMAT, RUN_ID, RUN_NAME, VERSION, RECIPE, MODE, CONFIG, GENERATION, MESH, POSITION, SPEC, P_HASH, S_HASH, PREVIOUS, CREATED, TENSORS, RANKS, FIELDS };
    static const char *const fields[] = {"format", "run_id", "run_name", "version", "recipe", "mode", "config_hash", "generation", "mesh", "position",
                                         "spec", "parameter_hash", "state_hash", "previous", "created_ms", "tensors", "ranks"};
    struct zt_json j;
    uint64_t seen = 0;
    int ranks = 0;
    memset(m, 0, sizeof *m);
    zt_json_begin(&j, file, text, n, 5, ZT_ECORRUPT, err);
    zt_json_object(&j);
    for (int f; (f = zt_json_field(&j, fields, FIELDS, 0, &seen)) >= 0;) {
        if (!(seen & 1)) zt_json_fail(&j, "'format' has to come first");
        switch (f) {
        case FORMAT: zt_json_format(&j); break;
        case RUN_ID: zt_json_copy(&j, m->run_id, sizeof m->run_id); break;
        case RUN_NAME: zt_json_copy(&j, m->run_name, sizeof m->run_name); break;
        case VERSION: zt_json_copy(&j, m->version, sizeof m->version); break;
        case RECIPE: zt_json_copy(&j, m->recipe, sizeof m->recipe); break;
        case MODE: zt_json_copy(&j, m->mode, sizeof m->mode); break;
        case CONFIG: zt_json_copy(&j, m->config_hash, sizeof m->config_hash); break;
        case GENERATION: m->generation = (uint32_t)zt_json_whole(&j, 0, UINT32_MAX); break;
        case MESH: get_mesh(&j, m); break;
        case POSITION: get_position(&j, &m->position); break;
        case SPEC: get_spec(&j, m); break;
        case P_HASH: zt_json_hash(&j, &m->parameter_hash); break;
        case S_HASH: zt_json_hash(&j, &m->state_hash); break;
        case PREVIOUS: zt_json_hex(&j, m->previous.byte, sizeof m->previous.byte); break;
        case CREATED: m->created_ms = zt_json_whole(&j, 0, INT64_MAX); break;
        case TENSORS: get_tensors(&j, m); break;
        case RANKS: ranks = get_ranks(&j, m); break;
        }
    }
    zt_json_end(&j);
    if (!j.rc && ranks != m->world) zt_json_fail(&j, "ranks: %d are listed, the mesh has %d", ranks, m->world);
    if (!j.rc) check_unique(&j, m);
    if (j.rc) zt_manifest_free(m);
    return j.rc;
}

void zt_manifest_free(struct zt_manifest *m) {
    free(m->spec);
    free(m->tensors);
    free(m->ranks);
    memset(m, 0, sizeof *m);
}
