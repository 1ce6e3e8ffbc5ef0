/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/deepspeed.c: reads the file, keeps the rows of the report and writes the run file. */
#include "clients/zctl/deepspeed.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/deepspeed_int.h"
#include "core/spec.h"
#include "core/spec_schema.h"

const char *zt_ds_outcome_name(enum zt_ds_outcome o) {
    static const char *const names[ZT_DS_OUTCOMES] = {
        [ZT_DS_REFUSED] = "refused", [ZT_DS_OPEN] = "to fill in",     [ZT_DS_WARNED] = "no counterpart",
        [ZT_DS_MAPPED] = "mapped",   [ZT_DS_ABSENT] = "not in the file", [ZT_DS_SAME] = "same here"};
    return (unsigned)o < ZT_DS_OUTCOMES ? names[o] : "?";
}

/* ---------------------------------------------------------------------------------- places */

/* Where the keys of a valid JSON text are, in its order: a string is a key when a colon follows. */
struct places { const char *text, *end, *at; uint32_t line; const char *line_start; };

static void step(struct places *p) {
    if (*p->at++ == '\n') {
        p->line++;
        p->line_start = p->at;
    }
}

static void skip_string(struct places *p) {
    step(p);
    while (p->at < p->end && *p->at != '"') {
        if (*p->at == '\\' && p->at + 1 < p->end)
            step(p);
        step(p);
    }
    if (p->at < p->end)
        step(p);
}

static void next_key(struct places *p, uint32_t *line, uint32_t *column) {
    while (p->at < p->end) {
        if (*p->at != '"') {
            step(p);
            continue;
        }
        *line = p->line;
        *column = (uint32_t)(p->at - p->line_start) + 1;
        skip_string(p);
        while (p->at < p->end && isspace((unsigned char)*p->at))
            step(p);
        if (p->at < p->end && *p->at == ':')
            return;
    }
}

/* ---------------------------------------------------------------------------------- leaves */

static struct leaf *add_leaf(struct ds *d) {
    if (d->n == d->size) {
        int size = d->size ? 2 * d->size : 64;
        struct leaf *more = realloc(d->leaf, (size_t)size * sizeof *more);
        if (!more) {
            d->failed = true;
            return NULL;
        }
        d->leaf = more;
        d->size = size;
    }
    memset(&d->leaf[d->n], 0, sizeof d->leaf[0]);
    return &d->leaf[d->n++];
}

/* The keys of mappings inside lists only move the place on. */
static void pass_over(struct places *p, const json_t *v) {
    const char *key;
    json_t *c;
    size_t i;
    uint32_t line, column;
    json_object_foreach((json_t *)(uintptr_t)v, key, c) {
        next_key(p, &line, &column);
        pass_over(p, c);
    }
    json_array_foreach((json_t *)(uintptr_t)v, i, c) pass_over(p, c);
}

static void collect(struct ds *d, struct places *p, const json_t *map, const char *prefix) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v) {
        char path[128], word[64];
        uint32_t line = 0, column = 0;
        next_key(p, &line, &column);
        snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] ? "." : "", zt_value_show(key, word, sizeof word));
        if (json_is_object(v) && json_object_size(v) > 0) {
            collect(d, p, v, path);
            continue;
        }
        struct leaf *l = add_leaf(d);
        if (!l)
            return;
        memcpy(l->path, path, sizeof path);
        l->value = v;
        l->line = line;
        l->column = column;
        pass_over(p, v);
    }
}

static int depth_of(const json_t *v, int limit) {
    const char *key;
    json_t *c;
    size_t i;
    int deepest = 0, one;
    if (limit < 0)
        return 1;
    json_object_foreach((json_t *)(uintptr_t)v, key, c) {
        one = depth_of(c, limit - 1);
        deepest = one > deepest ? one : deepest;
    }
    json_array_foreach((json_t *)(uintptr_t)v, i, c) {
        one = depth_of(c, limit - 1);
        deepest = one > deepest ? one : deepest;
    }
    return deepest + (json_is_object(v) || json_is_array(v));
}

struct leaf *ds_find(struct ds *d, const char *path) {
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->leaf[i].path, path) == 0)
            return &d->leaf[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------- rows */

static struct zt_ds_row *add_row(struct ds *d, enum zt_ds_outcome o, const char *fmt, va_list ap) {
    if (d->out->n == d->rows_size) {
        int size = d->rows_size ? 2 * d->rows_size : 64;
        struct zt_ds_row *more = realloc(d->out->row, (size_t)size * sizeof *more);
        if (!more) {
            d->failed = true;
            return NULL;
        }
        d->out->row = more;
        d->rows_size = size;
    }
    struct zt_ds_row *row = &d->out->row[d->out->n++];
    memset(row, 0, sizeof *row);
    row->outcome = o;
    vsnprintf(row->text, sizeof row->text, fmt, ap);
    return row;
}

static void put_value(const json_t *v, char *to, size_t n) {
    if (json_is_real(v)) {
        zt_value_print(json_real_value(v), to, n);
        return;
    }
    char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    zt_value_show(json_is_string(v) ? json_string_value(v) : text ? text : "", to, n);
    free(text);
}

void ds_say(struct ds *d, struct leaf *l, enum zt_ds_outcome o, const char *fmt, ...) {
    va_list ap;
    if (l->told)
        return;
    l->told = true;
    va_start(ap, fmt);
    struct zt_ds_row *row = add_row(d, o, fmt, ap);
    va_end(ap);
    if (!row)
        return;
    row->line = l->line;
    row->column = l->column;
    snprintf(row->key, sizeof row->key, "%s", l->path);
    put_value(l->value, row->value, sizeof row->value);
}

void ds_say_absent(struct ds *d, const char *key, enum zt_ds_outcome o, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    struct zt_ds_row *row = add_row(d, o, fmt, ap);
    va_end(ap);
    if (row)
        snprintf(row->key, sizeof row->key, "%s", key);
}

static int by_place(const void *a, const void *b) {
    const struct zt_ds_row *x = a, *y = b;
    uint32_t lx = x->line ? x->line : UINT32_MAX, ly = y->line ? y->line : UINT32_MAX;
    if (lx != ly)
        return lx < ly ? -1 : 1;
    if (x->column != y->column)
        return x->column < y->column ? -1 : 1;
    return strcmp(x->key, y->key);
}

/* The nearest key is looked for a few times only: a file full of strange keys is the wrong file. */
static void tell_unknown(struct ds *d) {
    int hints = 32;
    for (int i = 0; i < d->n; i++) {
        struct leaf *l = &d->leaf[i];
        const char *near = !l->told && hints > 0 ? ds_nearest(l->path) : NULL;
        hints -= !l->told;
        if (near)
            ds_say(d, l, ZT_DS_WARNED, "unknown key (did you mean \"%s\"?)", near);
        else
            ds_say(d, l, ZT_DS_WARNED, "unknown key");
    }
}

/* ---------------------------------------------------------------------------------- the run file */

static const char *const item_path[I_COUNT] = {
    [I_WORKERS] = "workers",
    [I_PRESET] = "model.preset",
    [I_DATA] = "dataset.path",
    [I_DROP_LAST] = "dataset.drop_last",
    [I_STEPS] = "training.steps",
    [I_SEQ_LEN] = "training.seq_len",
    [I_LOCAL] = "training.local_batch_size",
    [I_GLOBAL] = "training.global_batch_size",
    [I_LR] = "optimizer.lr",
    [I_BETA1] = "optimizer.beta1",
    [I_BETA2] = "optimizer.beta2",
    [I_EPS] = "optimizer.eps",
    [I_DECAY] = "optimizer.weight_decay",
    [I_DECAY_1D] = "optimizer.decay_1d",
    [I_MAX_NORM] = "optimizer.max_norm",
    [I_WARMUP] = "lr_scheduler.warmup_steps",
    [I_SHAPE] = "lr_scheduler.decay_type",
    [I_MIN_LR] = "lr_scheduler.min_lr_factor",
    [I_RECIPE] = "precision.recipe",
    [I_REDUCE] = "precision.reduce_dtype",
    [I_SCALER] = "precision.scaler",
    [I_MODE] = "parallelism.mode",
    [I_SHARD] = "parallelism.data_parallel_shard_degree",
    [I_TENSOR] = "parallelism.tensor_parallel_degree",
    [I_RESHARD] = "parallelism.reshard_after_forward",
    [I_PREFETCH] = "parallelism.prefetch",
    [I_BUCKET] = "parallelism.bucket_mib",
    [I_OVERLAP] = "parallelism.overlap",
    [I_PERSISTENCE] = "parallelism.persistence_threshold",
    [I_LOG_FREQ] = "metrics.log_freq",
};

const char *ds_item_path(enum item i) { return item_path[i]; }

void ds_set(struct ds *d, enum item i, const char *comment, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->item[i].text, sizeof d->item[i].text, fmt, ap);
    va_end(ap);
    snprintf(d->item[i].comment, sizeof d->item[i].comment, "%s", comment ? comment : "");
}

void ds_open(struct ds *d, enum item i, const char *why) { ds_set(d, i, why, "%s", ZT_FILL_IN); }

/* "ds_config" of "/a/DS_Config.json": a run's name. */
static void put_name(FILE *out, const char *file) {
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file, *dot = strrchr(base, '.');
    size_t n = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    char name[ZT_NAME_MAX + 1];
    n = n < sizeof name - 1 ? n : sizeof name - 1;
    for (size_t i = 0; i < n; i++) {
        char c = (char)tolower((unsigned char)base[i]);
        name[i] = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (i > 0 && strchr("._-", c)) ? c : 'x';
    }
    name[n] = '\0';
    fprintf(out, "name: %s\n", n ? name : "converted");
}

static void write_yaml(struct ds *d) {
    size_t n = 0;
    char section[32] = "", base[64];
    FILE *out = open_memstream(&d->out->yaml, &n);
    if (!out) {
        d->failed = true;
        return;
    }
    const char *slash = strrchr(d->file, '/');
    fprintf(out, "# Made by zctl convert from %s. %s: what that file does not say.\nversion: 1\n",
            zt_value_show(slash ? slash + 1 : d->file, base, sizeof base), ZT_FILL_IN);
    put_name(out, d->file);
    for (int i = 0; i < I_COUNT; i++) {
        const struct value *v = &d->item[i];
        const char *dot = strchr(item_path[i], '.');
        size_t len = dot ? (size_t)(dot - item_path[i]) : 0;
        if (!v->text[0])
            continue;
        if (dot && (strncmp(section, item_path[i], len) != 0 || section[len] != '\0')) {
            snprintf(section, sizeof section, "%.*s", (int)len, item_path[i]);
            fprintf(out, "%s:\n", section);
        }
        int width = fprintf(out, "%s%s: %s", dot ? "  " : "", dot ? dot + 1 : item_path[i], v->text);
        if (v->comment[0])
            fprintf(out, "%*s# %s", width < 34 ? 34 - width : 1, "", v->comment);
        fputc('\n', out);
    }
    if (fclose(out) != 0)
        d->failed = true;
}

/* ---------------------------------------------------------------------------------- entry */

static int read_json(struct ds *d, const char *text, size_t bytes, struct zt_error *err) {
    json_error_t e;
    if (bytes > ZT_DS_MAX_BYTES)
        return zt_fail(err, ZT_EINVAL, "%s: %zu bytes; a configuration has at most %zu (1 MiB). Is it the right file?",
                       d->file, bytes, ZT_DS_MAX_BYTES);
    d->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!d->root)
        return zt_fail(err, ZT_EINVAL, "%s:%d:%d: not valid JSON: %s (comments and commas at the end of a list are "
                       "not read either)",
                       d->file, e.line > 0 ? e.line : 1, e.column > 0 ? e.column : 1, e.text);
    if (!json_is_object(d->root))
        return zt_fail(err, ZT_EINVAL, "%s:1:1: not a configuration; it is a JSON object: {\"train_batch_size\": 32, ...}",
                       d->file);
    if (depth_of(d->root, ZT_DS_MAX_DEPTH) > ZT_DS_MAX_DEPTH)
        return zt_fail(err, ZT_EINVAL, "%s: nested deeper than %d", d->file, ZT_DS_MAX_DEPTH);
    return 0;
}

int zt_ds_convert(const char *text, size_t bytes, const char *file, int workers, struct zt_ds_result *r,
                  struct zt_error *err) {
    struct ds d = {.file = file, .workers = workers, .tensor = 1, .out = r};
    memset(r, 0, sizeof *r);
    int rc = read_json(&d, text, bytes, err);
    if (rc == 0) {
        struct places p = {text, text + bytes, text, 1, text};
        collect(&d, &p, d.root, "");
        ds_train(&d);
        ds_rest(&d);
        tell_unknown(&d);
        for (int i = 0; i < r->n; i++)
            r->count[r->row[i].outcome]++;
        if (r->n)
            qsort(r->row, (size_t)r->n, sizeof *r->row, by_place);
        if (r->count[ZT_DS_REFUSED] == 0)
            write_yaml(&d);
        if (d.failed)
            rc = zt_fail(err, ZT_ENOMEM, "%s: no memory to convert it", file);
    }
    json_decref(d.root);
    free(d.leaf);
    if (rc)
        zt_ds_free(r);
    return rc;
}

void zt_ds_free(struct zt_ds_result *r) {
    free(r->row);
    free(r->yaml);
    memset(r, 0, sizeof *r);
}
