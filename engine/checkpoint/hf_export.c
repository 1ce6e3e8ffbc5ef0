/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_export.c: see hf_export.h. A file is its head, made before any value is read, and
 * then the tensors in the order of the table, streamed. */
#include "engine/checkpoint/hf_export.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/convert.h"
#include "core/units.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/hf_config.h"
#include "engine/checkpoint/safetensors.h"

#define FILE_BYTES INT64_C(5000000000)
#define BUFFER_BYTES ((int64_t)16 << 20)
#define FILES_MAX 512

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

struct writing {
    const struct zt_hf_export *x;
    const struct zt_sys *sys;
    const struct zt_model_table *t;
    char temporary[ZT_PATH_MAX + 24];
    bool adapters;
    int *file;                    /* by tensor; -1: not written */
    int n_files;
    char (*made)[64];             /* names of files that are there, to be removed after a failure */
    int n_made;
    /* the open file */
    int fd;
    char name[64];
    int64_t at;
    float *values;                /* count numbers, fp32 */
    void *out;
    int64_t count;
    float *a, *b;                 /* of the linear that is merged */
};

/* ---- files ---- */

static int failed(const struct writing *w, const char *what, int rc, struct zt_error *err) {
    return zt_fail(err, ZT_EIO, "%s/%s: %s: %s", w->temporary, w->name, what, strerror(-rc));
}

static int begin_file(struct writing *w, const char *name, struct zt_error *err) {
    char path[sizeof w->temporary + 80];
    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(path, sizeof path, "%s/%s", w->temporary, name);
    w->fd = w->sys->open(w->sys->arg, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (w->fd < 0) return failed(w, "cannot be written", w->fd, err);
    snprintf(w->made[w->n_made++], sizeof w->made[0], "%s", name);
    w->at = 0;
    return 0;
}

static int put(struct writing *w, const void *data, int64_t n, struct zt_error *err) {
    int rc = zt_sys_pwrite_all(w->sys, w->fd, data, (size_t)n, w->at);
    if (rc < 0) return failed(w, "write", rc, err);
    w->at += n;
    return 0;
}

/* Closes it; a failure before stays the first one. */
static int end_file(struct writing *w, int rc, struct zt_error *err) {
    if (w->fd < 0) return rc;
    int sync = rc == 0 ? w->sys->fsync(w->sys->arg, w->fd) : 0, closed = w->sys->close(w->sys->arg, w->fd);
    w->fd = -1;
    if (rc) return rc;
    if (sync < 0) return failed(w, "fsync", sync, err);
    return closed < 0 ? failed(w, "close", closed, err) : 0;
}

static int write_text(struct writing *w, const char *name, const char *text, struct zt_error *err) {
    int rc = begin_file(w, name, err);
    if (rc == 0) rc = put(w, text, (int64_t)strlen(text), err);
    return end_file(w, rc, err);
}

static int sync_folder(const struct writing *w, const char *path, struct zt_error *err) {
    int rc = zt_sys_fsync_folder(w->sys, path);
    return rc < 0 ? zt_fail(err, ZT_EIO, "%s: fsync: %s", path, strerror(-rc)) : 0;
}

/* ---- what goes where ---- */

static int64_t tensor_bytes(const struct writing *w, const struct zt_tensor_def *d) {
    return d->whole[0] * d->whole[1] * (int64_t)zt_dtype_size(w->x->type);
}

/* Files are filled in the order of the table; a tensor is never cut. */
static int assign(struct writing *w, struct zt_error *err) {
    const int64_t most = w->x->file_bytes > 0 ? w->x->file_bytes : FILE_BYTES;
    int64_t in_file = 0;
    w->n_files = 1;
    for (int i = 0; i < w->t->n_tensors; i++) {
        const struct zt_tensor_def *d = &w->t->tensors[i];
        w->file[i] = -1;
        if ((d->piece >= ZT_LORA_A) != w->adapters) continue;
        if (in_file > 0 && in_file + tensor_bytes(w, d) > most) {
            w->n_files++;
            in_file = 0;
        }
        in_file += tensor_bytes(w, d);
        w->file[i] = w->n_files - 1;
    }
    if (w->n_files > FILES_MAX)
        return zt_fail(err, ZT_EINVAL, "--max-shard-gib: would make %d files, and %d are the most", w->n_files, FILES_MAX);
    return 0;
}

static const char *file_name(const struct writing *w, int file, char *buf, size_t n) {
    if (w->adapters)
        snprintf(buf, n, "adapter_model.safetensors");
    else if (w->n_files == 1)
        snprintf(buf, n, "model.safetensors");
    else
        snprintf(buf, n, "model-%05d-of-%05d.safetensors", file + 1, w->n_files);
    return buf;
}

/* The head of a file: the length and the JSON, before any value. */
static int head(const struct writing *w, int file, char **text, int64_t *bytes, struct zt_error *err) {
    struct zt_safetensor *s = calloc((size_t)w->t->n_tensors, sizeof *s);
    char(*names)[128] = calloc((size_t)w->t->n_tensors, sizeof *names);
    int n = 0, rc = s && names ? 0 : zt_fail(err, ZT_ENOMEM, "no host memory for the head of a file");
    for (int i = 0; i < w->t->n_tensors && rc == 0; i++) {
        const struct zt_tensor_def *d = &w->t->tensors[i];
        const bool turned = zt_hf_turned(&w->t->config, d);
        if (w->file[i] != file) continue;
        snprintf(names[n], sizeof names[n], "%s%s", w->adapters ? "base_model.model." : "", d->name);
        s[n] = (struct zt_safetensor){.name = names[n], .type = zt_st_type_of(w->x->type), .ndim = d->ndim,
                                      .shape = {d->whole[turned], d->ndim > 1 ? d->whole[!turned] : 0}};
        n++;
    }
    if (rc == 0) rc = zt_safetensors_head(s, n, "{\"format\":\"pt\"}", text, bytes, err);
    free(s);
    free(names);
    return rc;
}

/* ---- values ---- */

static int read_values(const struct writing *w, const struct zt_tensor_def *d, struct zt_span span, int64_t count,
                       float *to, struct zt_error *err) {
    const struct zt_tensor_source *s = &w->x->from->source;
    return s->read(s->arg, d->name, zt_weights_kind(w->x->from, d->name), d->ndim, d->whole, span, count, ZT_F32, to, err);
}

static int write_values(struct writing *w, int64_t count, struct zt_error *err) {
    const void *p = w->values;
    if (w->x->type != ZT_F32) {
        zt_convert(w->out, w->x->type, w->values, ZT_F32, count);
        p = w->out;
    }
    return put(w, p, count * (int64_t)zt_dtype_size(w->x->type), err);
}

/* Rows [row, row + rows) and columns [column, column + columns) of a matrix, or all of a vector's. */
struct part { int64_t row, rows, column, columns; };

/* w += scale B A, where it is. The sum over the rank first. */
static void merge(const struct writing *w, const struct zt_tensor_def *d, int64_t rank, struct part p) {
    const float scale = (float)w->x->from->lora_scale;
    for (int64_t o = 0; o < p.rows; o++)
        for (int64_t i = 0; i < p.columns; i++) {
            float sum = 0;
            for (int64_t k = 0; k < rank; k++)
                sum += w->b[(p.row + o) * rank + k] * w->a[k * d->whole[1] + p.column + i];
            w->values[o * p.columns + i] += scale * sum;
        }
}

static int load_part(struct writing *w, const struct zt_tensor_def *d, int64_t rank, struct part p,
                     struct zt_error *err) {
    const struct zt_span span = {(uint64_t)(p.row * d->whole[1] + p.column), 0, p.columns, d->whole[1]};
    int rc = read_values(w, d, span, p.rows * p.columns, w->values, err);
    if (rc == 0 && rank > 0) merge(w, d, rank, p);
    return rc;
}

/* [rows, columns] to [columns, rows] in the buffer's second half. */
static void turn(struct writing *w, struct part p) {
    float *to = w->values + p.rows * p.columns;
    for (int64_t o = 0; o < p.rows; o++)
        for (int64_t i = 0; i < p.columns; i++) to[i * p.rows + o] = w->values[o * p.columns + i];
    memmove(w->values, to, (size_t)(p.rows * p.columns) * sizeof *to);
}

/* The adapters of a linear into memory; *rank 0: it has none. */
static int load_adapters(struct writing *w, const struct zt_tensor_def *d, int64_t *rank, struct zt_error *err) {
    *rank = 0;
    if (w->adapters || d->piece != ZT_WEIGHT || d->layer < 0) return 0;
    int a = zt_model_find(w->t, d->layer, d->role, ZT_LORA_A), b = zt_model_find(w->t, d->layer, d->role, ZT_LORA_B);
    if (a < 0 || b < 0) return 0;
    const struct zt_tensor_def *da = &w->t->tensors[a], *db = &w->t->tensors[b];
    const int64_t na = da->whole[0] * da->whole[1], nb = db->whole[0] * db->whole[1];
    w->a = malloc((size_t)na * sizeof *w->a);
    w->b = malloc((size_t)nb * sizeof *w->b);
    if (!w->a || !w->b) return zt_fail(err, ZT_ENOMEM, "no host memory for the adapters of %s", d->name);
    int rc = read_values(w, da, zt_span_plain(0, na), na, w->a, err);
    if (rc == 0) rc = read_values(w, db, zt_span_plain(0, nb), nb, w->b, err);
    *rank = da->whole[0];
    return rc;
}

/* In stretches of whole rows, or, turned, of whole columns. */
static int write_tensor(struct writing *w, const struct zt_tensor_def *d, struct zt_error *err) {
    const bool turned = zt_hf_turned(&w->t->config, d);
    const int64_t line = turned ? d->whole[0] : d->whole[1], lines = turned ? d->whole[1] : d->whole[0];
    const int64_t room = turned ? w->count / 2 : w->count, most = room / line;
    int64_t rank = 0;
    int rc = 0;
    if (most < 1)
        TRY(zt_fail(err, ZT_EINVAL, "%s: a row of %lld numbers does not fit the buffer", d->name, (long long)line));
    TRY(load_adapters(w, d, &rank, err));
    for (int64_t i = 0; i < lines; i += most) {
        const int64_t n = lines - i < most ? lines - i : most;
        const struct part p = turned ? (struct part){0, line, i, n} : (struct part){i, n, 0, line};
        TRY(load_part(w, d, rank, p, err));
        if (turned) turn(w, p);
        TRY(write_values(w, n * line, err));
    }
out:
    free(w->a);
    free(w->b);
    w->a = w->b = NULL;
    return rc;
}

static int write_tensors(struct writing *w, int file, struct zt_hf_exported *out, struct zt_error *err) {
    char name[64], *text = NULL;
    int64_t n = 0;
    int rc = head(w, file, &text, &n, err);
    if (rc == 0) rc = begin_file(w, file_name(w, file, name, sizeof name), err);
    if (rc == 0) rc = put(w, text, n, err);
    for (int i = 0; i < w->t->n_tensors && rc == 0; i++)
        if (w->file[i] == file) {
            rc = write_tensor(w, &w->t->tensors[i], err);
            out->tensors++;
            out->bytes += tensor_bytes(w, &w->t->tensors[i]);
        }
    free(text);
    out->files++;
    return end_file(w, rc, err);
}

/* ---- the texts beside ---- */

static int write_index(struct writing *w, int64_t total, struct zt_error *err) {
    char *text = NULL, name[64];
    size_t n = 0;
    bool first = true;
    FILE *f = open_memstream(&text, &n);
    if (!f) return zt_fail(err, ZT_ENOMEM, "no host memory for the index");
    fprintf(f, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)total);
    for (int i = 0; i < w->t->n_tensors; i++) {
        if (w->file[i] < 0) continue;
        fprintf(f, "%s\n    \"%s\": \"%s\"", first ? "" : ",", w->t->tensors[i].name,
                file_name(w, w->file[i], name, sizeof name));
        first = false;
    }
    fputs("\n  }\n}\n", f);
    int rc = fclose(f) == 0 ? write_text(w, "model.safetensors.index.json", text, err)
                            : zt_fail(err, ZT_ENOMEM, "no host memory for the index");
    free(text);
    return rc;
}

static void put_string(FILE *f, const char *s) {
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)s; *p; p++)
        if (*p == '"' || *p == '\\')
            fprintf(f, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(f, "\\u%04x", *p);
        else
            fputc(*p, f);
    fputc('"', f);
}

/* Modules by their whole names: PEFT takes a module whose name is, or ends in, one of the list. */
static int write_adapter_config(struct writing *w, struct zt_error *err) {
    char *text = NULL, alpha[40];
    size_t n = 0;
    int64_t rank = 1;
    bool first = true;
    for (int i = 0; i < w->t->n_tensors; i++)
        if (w->t->tensors[i].piece == ZT_LORA_A) rank = w->t->tensors[i].whole[0];
    FILE *f = open_memstream(&text, &n);
    if (!f) return zt_fail(err, ZT_ENOMEM, "no host memory for adapter_config.json");
    fputs("{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": ", f);
    if (w->x->base)
        put_string(f, w->x->base);
    else
        fputs("null", f);
    fprintf(f, ",\n  \"r\": %lld,\n  \"lora_alpha\": %s,\n  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n",
            (long long)rank, zt_hf_number(w->x->from->lora_scale * (double)rank, alpha, sizeof alpha));
    fprintf(f, "  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n  \"modules_to_save\": null,\n  \"target_modules\": [",
            w->t->config.family == ZT_GPT2 ? "true" : "false");
    for (int i = 0; i < w->t->n_tensors; i++) {
        const struct zt_tensor_def *d = &w->t->tensors[i];
        if (d->piece != ZT_LORA_A) continue;
        fprintf(f, "%s\n    \"%.*s\"", first ? "" : ",", (int)(strlen(d->name) - strlen(".lora_A.weight")), d->name);
        first = false;
    }
    fputs("\n  ]\n}\n", f);
    int rc = fclose(f) == 0 ? write_text(w, "adapter_config.json", text, err)
                            : zt_fail(err, ZT_ENOMEM, "no host memory for adapter_config.json");
    free(text);
    return rc;
}

static int write_configs(struct writing *w, struct zt_error *err) {
    char *text = NULL, ends[96];
    const int64_t end = w->x->from->end_token;
    if (w->adapters) return write_adapter_config(w, err);
    int rc = zt_hf_config_write(&w->t->config, w->x->type, end, &text, err);
    if (rc == 0) rc = write_text(w, "config.json", text, err);
    free(text);
    snprintf(ends, sizeof ends, "{\n  \"eos_token_id\": %lld,\n  \"pad_token_id\": %lld\n}\n", (long long)end, (long long)end);
    return rc == 0 && end >= 0 ? write_text(w, "generation_config.json", ends, err) : rc;
}

/* ---- the whole ---- */

static int make_folder(struct writing *w, struct zt_error *err) {
    uint32_t word = 0;
    char parent[ZT_PATH_MAX];
    int fd = w->sys->open(w->sys->arg, w->x->folder, O_RDONLY | O_NONBLOCK, 0);
    if (fd >= 0) {
        w->sys->close(w->sys->arg, fd);
        return zt_fail(err, ZT_ECONFLICT, "%s: is there already; give another folder, or remove it", w->x->folder);
    }
    if (strlen(w->x->folder) >= sizeof parent) return zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", w->x->folder);
    int rc = w->sys->random(w->sys->arg, &word, sizeof word);
    if (rc < 0) return zt_fail(err, ZT_EIO, "no random bytes: %s", strerror(-rc));
    snprintf(w->temporary, sizeof w->temporary, "%s.tmp-%08x", w->x->folder, word);
    rc = w->sys->mkdir(w->sys->arg, w->temporary, 0777);
    return rc < 0 ? zt_fail(err, ZT_EIO, "%s: cannot be made: %s", w->temporary, strerror(-rc)) : 0;
}

static int publish(struct writing *w, struct zt_error *err) {
    char parent[ZT_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", w->x->folder);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    else
        snprintf(parent, sizeof parent, ".");
    int rc = sync_folder(w, w->temporary, err);
    if (rc) return rc;
    rc = w->sys->rename(w->sys->arg, w->temporary, w->x->folder);
    if (rc < 0)
        return zt_fail(err, rc == -EEXIST || rc == -ENOTEMPTY ? ZT_ECONFLICT : ZT_EIO, "%s: rename to %s: %s", w->temporary,
                       w->x->folder, strerror(-rc));
    w->n_made = 0;
    return sync_folder(w, parent, err);
}

/* After a failure; what is left of it has a name that says so. */
static void remove_made(struct writing *w) {
    char path[sizeof w->temporary + 80];
    for (int i = 0; i < w->n_made; i++) {
        snprintf(path, sizeof path, "%s/%s", w->temporary, w->made[i]);
        w->sys->unlink(w->sys->arg, path);
    }
    if (w->temporary[0]) w->sys->rmdir(w->sys->arg, w->temporary);
}

static int prepare(struct writing *w, struct zt_error *err) {
    const struct zt_hf_export *x = w->x;
    const bool any = zt_weights_adapted(x->from);
    if (x->merge && !any)
        return zt_fail(err, ZT_EINVAL, "%s: has no adapters to merge", x->from->folder);
    w->adapters = any && !x->merge;
    w->count = (x->buffer_bytes > 0 ? x->buffer_bytes : BUFFER_BYTES) / (int64_t)sizeof *w->values;
    w->file = calloc((size_t)w->t->n_tensors, sizeof *w->file);
    w->made = calloc(FILES_MAX + 4, sizeof *w->made);
    w->values = malloc((size_t)w->count * sizeof *w->values);
    w->out = x->type == ZT_F32 ? NULL : malloc((size_t)w->count * 2);
    if (!w->file || !w->made || !w->values || (x->type != ZT_F32 && !w->out))
        return zt_fail(err, ZT_ENOMEM, "no host memory for an export");
    return assign(w, err);
}

int zt_hf_export(const struct zt_hf_export *x, struct zt_hf_exported *out, struct zt_error *err) {
    struct writing w = {.x = x, .sys = x->sys ? x->sys : &zt_sys_posix, .t = &x->from->table, .fd = -1};
    int rc = 0;
    memset(out, 0, sizeof *out);
    TRY(prepare(&w, err));
    out->adapters = w.adapters;
    TRY(make_folder(&w, err));
    TRY(write_configs(&w, err));
    for (int f = 0; f < w.n_files; f++) TRY(write_tensors(&w, f, out, err));
    if (w.n_files > 1 && !w.adapters) TRY(write_index(&w, out->bytes, err));
    TRY(publish(&w, err));
out:
    if (rc && w.made) remove_made(&w);
    free(w.file);
    free(w.made);
    free(w.values);
    free(w.out);
    return rc;
}
