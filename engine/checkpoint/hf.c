/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf.c: opens a Hugging Face folder and holds it against the model that its
 * config.json describes. Ownership and trust: hf.h. */
#include "engine/checkpoint/hf.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/checkpoint/hf_int.h"

#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"
#define INDEX_MAX ((size_t)4 << 20) /* a line each of 12,000 tensors is half of it */
#define FILES_MAX 512

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* ---- files beneath the folder ---- */

/* A descriptor, or a failure; -ENOENT is left to the caller without a message. */
static int open_file(struct zt_hf *h, const char *name, int64_t *bytes, struct zt_error *err) {
    struct stat st;
    int fd = h->sys->open_beneath(h->sys->arg, h->folder, name, O_RDONLY | O_NONBLOCK);
    if (fd == -ENOENT) return fd;
    if (fd == -EXDEV || fd == -ELOOP)
        return zt_fail(err, ZT_EINVAL,
                       "%s/%s: is a link that leaves the folder, which is not followed; copy the folder with what its "
                       "links point to (cp -rL)", h->folder, name);
    if (fd < 0) return zt_fail(err, ZT_EIO, "%s/%s: cannot be opened: %s", h->folder, name, strerror(-fd));
    int rc = h->sys->fstat(h->sys->arg, fd, &st);
    if (rc < 0)
        rc = zt_fail(err, ZT_EIO, "%s/%s: fstat: %s", h->folder, name, strerror(-rc));
    else if (!S_ISREG(st.st_mode))
        rc = zt_fail(err, ZT_EINVAL, "%s/%s: is not a regular file", h->folder, name);
    if (rc != 0) {
        h->sys->close(h->sys->arg, fd);
        return rc;
    }
    *bytes = (int64_t)st.st_size;
    return fd;
}

/* The whole text; malloc'ed. */
static int read_text(struct zt_hf *h, const char *name, size_t most, char **text, size_t *n, struct zt_error *err) {
    int64_t bytes = 0;
    int rc = 0, fd = open_file(h, name, &bytes, err);
    *text = NULL;
    if (fd < 0) return fd;
    if (bytes > (int64_t)most)
        TRY(zt_fail(err, ZT_EINVAL, "%s/%s: larger than %zu bytes", h->folder, name, most));
    *text = malloc((size_t)bytes + 1);
    if (!*text) TRY(zt_fail(err, ZT_ENOMEM, "no host memory for %s", name));
    for (*n = 0; *n < (size_t)bytes;) {
        ssize_t got = h->sys->pread(h->sys->arg, fd, *text + *n, (size_t)bytes - *n, (off_t)*n);
        if (got < 0) TRY(zt_fail(err, ZT_EIO, "%s/%s: read: %s", h->folder, name, strerror((int)-got)));
        if (got == 0) break;
        *n += (size_t)got;
    }
    (*text)[*n] = '\0';
out:
    h->sys->close(h->sys->arg, fd);
    if (rc) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* ---- names ---- */

/* A linear of GPT-2's blocks: Conv1D there. */
bool zt_hf_turned(const struct zt_model_config *c, const struct zt_tensor_def *d) {
    return c->family == ZT_GPT2 && d->layer >= 0 && d->piece == ZT_WEIGHT && d->ndim == 2;
}

static int by_name(const void *a, const void *b, void *arg) {
    const struct zt_tensor_def *t = arg;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

int zt_hf_find(const struct zt_hf *h, const char *name) {
    int low = 0, high = h->table.n_tensors - 1;
    while (low <= high) {
        int mid = low + (high - low) / 2, i = h->by_name[mid];
        int c = strcmp(name, h->table.tensors[i].name);
        if (c == 0) return i;
        if (c < 0)
            high = mid - 1;
        else
            low = mid + 1;
    }
    return -1;
}

/* The long form of a name. */
static void long_name(const struct zt_hf *h, const char *name, char *to, size_t n) {
    const char *prefix = h->config.model.family == ZT_GPT2 ? "transformer." : "model.";
    bool whole = strncmp(name, prefix, strlen(prefix)) == 0 || strncmp(name, "lm_head.", 8) == 0;
    snprintf(to, n, "%s%s", whole ? "" : prefix, name);
}

/* What old files hold beside the weights: "transformer.h.N.attn.bias", ".attn.masked_bias" (masks),
 * "model.layers.N.self_attn.rotary_emb.inv_freq". */
static bool is_buffer(const struct zt_hf *h, const char *name) {
    const char *const block = h->config.model.family == ZT_GPT2 ? "transformer.h." : "model.layers.";
    size_t n = strlen(block);
    if (strncmp(name, block, n) != 0) return false;
    const char *rest = name + n + strspn(name + n, "0123456789");
    if (rest == name + n) return false;
    if (h->config.model.family == ZT_GPT2)
        return strcmp(rest, ".attn.bias") == 0 || strcmp(rest, ".attn.masked_bias") == 0;
    return strcmp(rest, ".self_attn.rotary_emb.inv_freq") == 0;
}

int zt_hf_check_name(const char *index, const char *tensor, const char *name, size_t bytes, struct zt_error *err) {
    const char *const end = ".safetensors";
    const char *why = NULL;
    if (bytes == 0)
        why = "is empty";
    else if (strlen(name) != bytes)
        why = "has a NUL in it";
    else if (name[0] == '/')
        why = "is an absolute path";
    else if (strchr(name, '/'))
        why = "is not in the folder itself";
    else if (bytes < strlen(end) + 1 || strcmp(name + bytes - strlen(end), end) != 0)
        why = "does not end in .safetensors";
    else if (bytes >= sizeof((struct zt_hf_file *)0)->name)
        why = "is longer than 255 bytes";
    if (!why) return 0;
    return zt_fail(err, ZT_EINVAL, "%s: weight_map: the file name \"%.100s\" of tensor \"%.100s\" %s; only names of files "
                   "beside the index are opened", index, name, tensor, why);
}

/* ---- the files ---- */

static int add_file(struct zt_hf *h, const char *name, struct zt_error *err) {
    if (h->n_files == FILES_MAX)
        return zt_fail(err, ZT_EINVAL, "%s/%s: names more than %d files", h->folder, INDEX, FILES_MAX);
    struct zt_hf_file *f = realloc(h->files, (size_t)(h->n_files + 1) * sizeof *f);
    if (!f) return zt_fail(err, ZT_ENOMEM, "no host memory for %d files", h->n_files + 1);
    h->files = f;
    f += h->n_files;
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->fd = open_file(h, name, &f->bytes, err);
    if (f->fd < 0) return f->fd;
    h->n_files++;
    char path[sizeof h->folder + sizeof f->name + 1];
    snprintf(path, sizeof path, "%s/%s", h->folder, name);
    return zt_safetensors_open_fd(h->sys, f->fd, path, &f->st, err);
}

static int file_of(const struct zt_hf *h, const char *name) {
    for (int i = 0; i < h->n_files; i++)
        if (strcmp(h->files[i].name, name) == 0) return i;
    return -1;
}

/* weight_map names, for every tensor, the file that has it: both ways. */
static int check_map(const struct zt_hf *h, const json_t *map, const char *path, struct zt_error *err) {
    const char *tensor;
    const json_t *v;
    size_t listed = 0, there = 0;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, v) {
        const char *name = json_string_value(v);
        int f = file_of(h, name);
        listed++;
        if (zt_safetensors_find(h->files[f].st, tensor) < 0)
            return zt_fail(err, ZT_EINVAL, "%s: weight_map: %s has no tensor \"%.100s\"", path, name, tensor);
    }
    for (int f = 0; f < h->n_files; f++) {
        const struct zt_safetensors *st = h->files[f].st;
        for (int i = 0; i < zt_safetensors_count(st); i++) {
            struct zt_safetensor s;
            zt_safetensors_get(st, i, &s);
            const char *file = json_string_value(json_object_get(map, s.name));
            there++;
            if (!file || strcmp(file, h->files[f].name) != 0)
                return zt_fail(err, ZT_EINVAL, "%s/%s: tensor \"%.100s\" is in it, but the index says %s", h->folder,
                               h->files[f].name, s.name, file ? file : "nothing of it");
        }
    }
    return listed == there ? 0 : zt_fail(err, ZT_EINVAL, "%s: %zu tensors are listed, %zu are there", path, listed, there);
}

static int open_index(struct zt_hf *h, const char *text, size_t n, struct zt_error *err) {
    char path[sizeof h->folder + 64];
    json_error_t where;
    const char *tensor;
    const json_t *v;
    int rc = 0;
    snprintf(path, sizeof path, "%s/%s", h->folder, INDEX);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root) return zt_fail(err, ZT_EINVAL, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        TRY(zt_fail(err, ZT_EINVAL, "%s: weight_map: expected an object of tensor names and file names", path));
    /* all names before any file is opened */
    json_object_foreach(map, tensor, v) {
        if (!json_is_string(v))
            TRY(zt_fail(err, ZT_EINVAL, "%s: weight_map: \"%.100s\": expected a file name", path, tensor));
        TRY(zt_hf_check_name(path, tensor, json_string_value(v), json_string_length(v), err));
    }
    json_object_foreach(map, tensor, v) {
        const char *name = json_string_value(v);
        if (file_of(h, name) >= 0) continue;
        rc = add_file(h, name, err);
        if (rc == -ENOENT)
            rc = zt_fail(err, ZT_ENOTFOUND, "%s: weight_map: there is no %s/%s", path, h->folder, name);
        if (rc) goto out;
    }
    rc = check_map(h, map, path, err);
out:
    json_decref(root);
    return rc;
}

static int open_files(struct zt_hf *h, struct zt_error *err) {
    char *text = NULL;
    size_t n = 0;
    int rc = add_file(h, SINGLE, err);
    if (rc != -ENOENT) return rc;
    rc = read_text(h, INDEX, INDEX_MAX, &text, &n, err);
    if (rc == -ENOENT)
        return zt_fail(err, ZT_ENOTFOUND,
                       "%s: has neither %s nor %s; files of other formats (pytorch_model.bin) are not read: save the model "
                       "as safetensors", h->folder, SINGLE, INDEX);
    if (rc == 0) rc = open_index(h, text, n, err);
    free(text);
    return rc;
}

/* ---- each tensor to its place ---- */

static const char *shape_text(int ndim, const int64_t *shape, char *buf, size_t n) {
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < ndim && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < n) snprintf(buf + at, n - at, "]");
    return buf;
}

static int check_shape(const struct zt_hf *h, const struct zt_hf_file *f, const struct zt_safetensor *s, int ndim,
                       const int64_t whole[2], bool turned, struct zt_error *err) {
    const int64_t want[2] = {turned ? whole[1] : whole[0], turned ? whole[0] : whole[1]};
    char is[120], should[60];
    if (s->ndim == ndim && s->shape[0] == want[0] && (ndim == 1 || s->shape[1] == want[1])) return 0;
    return zt_fail(err, ZT_EINVAL, "%s/%s: tensor \"%s\" is %s, the model of config.json has %s%s", h->folder, f->name,
                   s->name, shape_text(s->ndim, s->shape, is, sizeof is), shape_text(ndim, want, should, sizeof should),
                   turned ? " (gpt2 stores its linears [in, out])" : "");
}

static int stored_type(const struct zt_hf *h, const struct zt_hf_file *f, const struct zt_safetensor *s,
                       enum zt_dtype *type, struct zt_error *err) {
    const int t = zt_st_dtype(s->type);
    if (t != ZT_F32 && t != ZT_BF16 && t != ZT_F16)
        return zt_fail(err, ZT_EUNSUPPORTED, "%s/%s: tensor \"%s\" is of type %s; F32, BF16 and F16 are read: save the "
                       "model in one of them", h->folder, f->name, s->name, zt_st_type_name(s->type));
    *type = (enum zt_dtype)t;
    return 0;
}

static int place_one(struct zt_hf *h, int file, const struct zt_safetensor *s, struct zt_hf_place *head,
                     struct zt_error *err) {
    const struct zt_hf_file *f = &h->files[file];
    const struct zt_model_config *c = &h->config.model;
    const int64_t head_shape[2] = {c->vocab_size, c->dim};
    char name[640];
    long_name(h, s->name, name, sizeof name);
    if (is_buffer(h, name)) return 0;
    int i = zt_hf_find(h, name);
    const bool tied = i < 0 && c->tied_head && strcmp(name, "lm_head.weight") == 0;
    if (i < 0 && !tied)
        return zt_fail(err, ZT_EINVAL, "%s/%s: tensor \"%s\" is not one of the model that config.json describes", h->folder,
                       f->name, s->name);
    const struct zt_tensor_def *d = tied ? NULL : &h->table.tensors[i];
    struct zt_hf_place *p = tied ? head : &h->place[i];
    if (p->file >= 0)
        return zt_fail(err, ZT_EINVAL, "%s/%s: tensor \"%s\" is there twice (also in %s)", h->folder, f->name, s->name,
                       h->files[p->file].name);
    p->turned = d && zt_hf_turned(c, d);
    int rc = stored_type(h, f, s, &p->type, err);
    if (rc == 0) rc = check_shape(h, f, s, d ? d->ndim : 2, d ? d->whole : head_shape, p->turned, err);
    p->file = file;
    p->at = s->at;
    return rc;
}

/* A tied head that is stored all the same: the embedding, bit for bit. */
static int check_head(struct zt_hf *h, const struct zt_hf_place *head, struct zt_error *err) {
    const int64_t n = h->config.model.vocab_size * h->config.model.dim, most = (int64_t)ZT_HF_BUFFER / 8;
    const struct zt_hf_place *embedding = &h->place[zt_model_find(&h->table, -1, ZT_ROLE_EMBEDDING, ZT_WEIGHT)];
    char *a = h->raw, *b = (char *)h->raw + ZT_HF_BUFFER / 2;
    for (int64_t at = 0; at < n; at += most) {
        const int64_t k = n - at < most ? n - at : most;
        const size_t bytes = (size_t)k * zt_dtype_size(head->type);
        int rc = zt_hf_load(h, head, at, k, a, err);
        if (rc == 0) rc = zt_hf_load(h, embedding, at, k, b, err);
        if (rc) return rc;
        if (head->type == embedding->type && memcmp(a, b, bytes) == 0) continue;
        return zt_fail(err, ZT_EINVAL,
                       "%s: tie_word_embeddings is true, but \"lm_head.weight\" is not the token embedding (they differ among "
                       "elements %lld to %lld); a model with a head of its own says false", h->folder, (long long)at,
                       (long long)(at + k - 1));
    }
    return 0;
}

static int place_all(struct zt_hf *h, struct zt_error *err) {
    struct zt_hf_place head = {.file = -1};
    int rc = 0;
    for (int f = 0; f < h->n_files && rc == 0; f++)
        for (int i = 0; i < zt_safetensors_count(h->files[f].st) && rc == 0; i++) {
            struct zt_safetensor s;
            zt_safetensors_get(h->files[f].st, i, &s);
            rc = place_one(h, f, &s, &head, err);
        }
    for (int i = 0; i < h->table.n_tensors && rc == 0; i++)
        if (h->place[i].file < 0)
            rc = zt_fail(err, ZT_EINVAL, "%s: tensor \"%s\" of the model that config.json describes is missing", h->folder,
                         h->table.tensors[i].name);
    return rc == 0 && head.file >= 0 ? check_head(h, &head, err) : rc;
}

/* The file's word on its own format, against what the files hold. */
static void check_dtype(struct zt_hf *h) {
    struct zt_hf_config *c = &h->config;
    size_t n = strlen(c->note);
    for (int i = 0; i < h->table.n_tensors && c->has_dtype; i++)
        if (h->place[i].type != c->dtype) {
            snprintf(c->note + n, sizeof c->note - n, "%sconfig.json says %s, %s is %s: the files count", n ? "; " : "",
                     zt_dtype_name(c->dtype), h->table.tensors[i].name, zt_dtype_name(h->place[i].type));
            return;
        }
}

/* ---- the whole ---- */

static int prepare(struct zt_hf *h, struct zt_error *err) {
    int rc = zt_model_table_build(&h->config.model, ZT_WRAP_BLOCK, 1, &h->table, err);
    if (rc) return zt_fail_prefix(err, "%s/config.json", h->folder);
    const size_t n = (size_t)h->table.n_tensors;
    h->place = calloc(n, sizeof *h->place);
    h->by_name = calloc(n, sizeof *h->by_name);
    h->raw = malloc(ZT_HF_BUFFER);
    h->turned = malloc(ZT_HF_COLUMNS * sizeof(float));
    h->part_from = malloc(ZT_HF_COLUMNS * sizeof(int64_t));
    h->part_n = malloc(ZT_HF_COLUMNS * sizeof(int64_t));
    h->part_at = malloc(ZT_HF_COLUMNS * sizeof(int64_t));
    if (!h->place || !h->by_name || !h->raw || !h->turned || !h->part_from || !h->part_n || !h->part_at)
        return zt_fail(err, ZT_ENOMEM, "no host memory to read %s", h->folder);
    for (int i = 0; i < h->table.n_tensors; i++) {
        h->place[i].file = -1;
        h->by_name[i] = i;
    }
    qsort_r(h->by_name, n, sizeof *h->by_name, by_name, h->table.tensors);
    return 0;
}

static int read_config(struct zt_hf *h, struct zt_error *err) {
    char *text = NULL, path[sizeof h->folder + 16];
    size_t n = 0;
    int rc = read_text(h, "config.json", ZT_HF_CONFIG_MAX, &text, &n, err);
    if (rc == -ENOENT)
        return zt_fail(err, ZT_ENOTFOUND, "%s: is not a Hugging Face folder: there is no config.json", h->folder);
    snprintf(path, sizeof path, "%s/config.json", h->folder);
    if (rc == 0) rc = zt_hf_config_read(text, n, path, &h->config, err);
    free(text);
    return rc;
}

int zt_hf_open(const struct zt_sys *sys, const char *folder, struct zt_hf **out, struct zt_error *err) {
    struct zt_hf *h = calloc(1, sizeof *h);
    int rc = 0;
    *out = NULL;
    if (!h) return zt_fail(err, ZT_ENOMEM, "no host memory to open %s", folder);
    h->sys = sys ? sys : &zt_sys_posix;
    if (strlen(folder) >= sizeof h->folder) TRY(zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", folder));
    snprintf(h->folder, sizeof h->folder, "%s", folder);
    TRY(read_config(h, err));
    TRY(prepare(h, err));
    TRY(open_files(h, err));
    TRY(place_all(h, err));
    check_dtype(h);
    *out = h;
    return 0;
out:
    zt_hf_close(h);
    return rc;
}

void zt_hf_close(struct zt_hf *h) {
    if (!h) return;
    for (int i = 0; i < h->n_files; i++) {
        zt_safetensors_free(h->files[i].st);
        h->sys->close(h->sys->arg, h->files[i].fd);
    }
    zt_model_table_free(&h->table);
    free(h->files);
    free(h->place);
    free(h->by_name);
    free(h->raw);
    free(h->turned);
    free(h->part_from);
    free(h->part_n);
    free(h->part_at);
    free(h);
}

const struct zt_hf_config *zt_hf_config(const struct zt_hf *h) { return &h->config; }
const struct zt_model_table *zt_hf_table(const struct zt_hf *h) { return &h->table; }
enum zt_dtype zt_hf_type(const struct zt_hf *h, int tensor) { return h->place[tensor].type; }
