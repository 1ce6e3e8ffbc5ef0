/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/safetensors.c: see safetensors.h. */
#include "engine/checkpoint/safetensors.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/json.h"

static const struct { const char *name; int size, dtype; } types[ZT_ST_COUNT] = {
    [ZT_ST_F64] = {"F64", 8, -1},      [ZT_ST_F32] = {"F32", 4, ZT_F32}, [ZT_ST_F16] = {"F16", 2, ZT_F16},
    [ZT_ST_BF16] = {"BF16", 2, ZT_BF16}, [ZT_ST_I64] = {"I64", 8, ZT_I64}, [ZT_ST_I32] = {"I32", 4, ZT_I32},
    [ZT_ST_I16] = {"I16", 2, -1},      [ZT_ST_I8] = {"I8", 1, -1},       [ZT_ST_U8] = {"U8", 1, ZT_U8},
    [ZT_ST_BOOL] = {"BOOL", 1, -1},
};

const char *zt_st_type_name(enum zt_st_type t) { return types[t].name; }
int64_t zt_st_type_size(enum zt_st_type t) { return types[t].size; }
int zt_st_dtype(enum zt_st_type t) { return types[t].dtype; }
enum zt_st_type zt_st_type_of(enum zt_dtype t) {
    int i = 0;
    while (i < ZT_ST_COUNT && types[i].dtype != (int)t) i++;
    ZT_ASSERT(i < ZT_ST_COUNT);
    return (enum zt_st_type)i;
}

/* 32 bytes, where the shortest member of a header has 50: with the header's text that is less than twice
 * the header. The shape stays in the text. */
struct entry {
    int64_t begin, bytes; /* among the values */
    uint32_t name, shape; /* places in the text */
    uint8_t type, ndim;
};
struct zt_safetensors {
    char *text;           /* the header, strings unescaped, NUL behind it */
    int64_t head;         /* bytes before the values */
    int count;
    struct entry *entries; /* by place */
    uint32_t *by_name;
};
enum { MEMBER_LEAST = 50 };

/* ---- the header ---- */

static void read_shape(struct zt_json *j, struct entry *e, int64_t *elements) {
    int64_t product = 1;
    while (j->at < j->n && strchr(" \t\r\n", j->text[j->at])) j->at++;
    e->shape = (uint32_t)j->at;
    for (zt_json_list(j); zt_json_more(j);) {
        if (e->ndim == ZT_ST_DIMS_MAX) {
            zt_json_fail(j, "more than %d dimensions", ZT_ST_DIMS_MAX);
            return;
        }
        e->ndim++;
        if (__builtin_mul_overflow(product, zt_json_whole(j, 0, INT64_MAX), &product))
            zt_json_fail(j, "the number of elements does not fit in 63 bits");
    }
    *elements = product;
}

static void read_offsets(struct zt_json *j, struct entry *e, int64_t values) {
    int64_t v[2] = {0, 0};
    int n = 0;
    for (zt_json_list(j); zt_json_more(j); n++) {
        if (n < 2)
            v[n] = zt_json_whole(j, 0, values);
        else
            zt_json_fail(j, "more than two numbers");
    }
    if (n < 2)
        zt_json_fail(j, "fewer than two numbers");
    else if (v[0] > v[1])
        zt_json_fail(j, "begins at %lld, behind its end %lld", (long long)v[0], (long long)v[1]);
    e->begin = v[0];
    e->bytes = v[1] - v[0];
}

static void read_type(struct zt_json *j, struct entry *e) {
    size_t n;
    const char *s = zt_json_string(j, &n);
    for (e->type = 0; !j->rc && e->type < ZT_ST_COUNT; e->type++)
        if (strcmp(s, types[e->type].name) == 0) return;
    e->type = 0;
    zt_json_fail(j, "unknown dtype; F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL can be read");
}

static void read_tensor(struct zt_json *j, struct entry *e, int64_t values) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    uint64_t seen = 0;
    int64_t elements = 0, bytes = 0;
    zt_json_object(j);
    for (int f; (f = zt_json_field(j, fields, 3, 0, &seen)) >= 0;) {
        if (f == 0) read_type(j, e);
        if (f == 1) read_shape(j, e, &elements);
        if (f == 2) read_offsets(j, e, values);
    }
    if (j->rc) return;
    if (__builtin_mul_overflow(elements, types[e->type].size, &bytes) || bytes != e->bytes)
        zt_json_fail(j, "shape and dtype make %lld elements of %d bytes, the offsets span %lld bytes", (long long)elements,
                     types[e->type].size, (long long)e->bytes);
}

static void read_metadata(struct zt_json *j) {
    size_t n;
    for (zt_json_object(j); zt_json_more(j);) {
        zt_json_key(j, &n);
        zt_json_string(j, &n);
    }
}

static void read_header(struct zt_json *j, struct zt_safetensors *s, int64_t values, int room) {
    bool metadata = false;
    for (zt_json_object(j); zt_json_more(j);) {
        size_t n;
        const char *name = zt_json_key(j, &n);
        if (!j->rc && strcmp(name, "__metadata__") == 0) {
            if (metadata) zt_json_fail(j, "is there twice");
            metadata = true;
            read_metadata(j);
        } else if (n > ZT_ST_NAME_MAX) {
            zt_json_fail(j, "the name is longer than %d bytes", ZT_ST_NAME_MAX);
        } else if (s->count == room) { /* room: the limit, or more than the text can hold */
            zt_json_fail(j, "more than %d tensors", ZT_ST_TENSORS_MAX);
        } else if (!j->rc) {
            struct entry *e = &s->entries[s->count];
            *e = (struct entry){.name = (uint32_t)(name - s->text)};
            read_tensor(j, e, values);
            s->count++;
        }
    }
    zt_json_end(j);
}

/* ---- what holds between tensors ---- */

static int by_place(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name);
}

static int by_name(const void *a, const void *b, void *arg) {
    const struct zt_safetensors *s = arg;
    return strcmp(s->text + s->entries[*(const uint32_t *)a].name, s->text + s->entries[*(const uint32_t *)b].name);
}

static int check_places(struct zt_json *j, struct zt_safetensors *s, int64_t values) {
    int64_t end = 0;
    qsort(s->entries, (size_t)s->count, sizeof *s->entries, by_place);
    for (int i = 0; i < s->count; i++) {
        const struct entry *e = &s->entries[i];
        if (e->begin != end)
            return zt_json_fail(j, "%.200s: %s the tensor before it: begins at %lld, where %lld is expected", s->text + e->name,
                                e->begin > end ? "a hole behind" : "overlaps", (long long)e->begin, (long long)end);
        end = e->begin + e->bytes;
    }
    if (end != values)
        return zt_json_fail(j, "the tensors need %lld bytes of values, the file has %lld", (long long)end, (long long)values);
    for (int i = 0; i < s->count; i++) s->by_name[i] = (uint32_t)i;
    qsort_r(s->by_name, (size_t)s->count, sizeof *s->by_name, by_name, s);
    for (int i = 1; i < s->count; i++)
        if (by_name(&s->by_name[i - 1], &s->by_name[i], s) == 0)
            return zt_json_fail(j, "%.200s: the name is there twice", s->text + s->entries[s->by_name[i]].name);
    return 0;
}

/* ---- opening ---- */

static int read_exact(const struct zt_sys *sys, int fd, const char *name, void *out, size_t n, int64_t at, struct zt_error *err) {
    const ssize_t got = zt_sys_pread_all(sys, fd, out, n, at);
    if (got < 0) return zt_fail(err, ZT_EIO, "%s: reading failed: %s", name, strerror((int)-got));
    if ((size_t)got != n) return zt_fail(err, ZT_EINVAL, "%s: the file ended while it was read", name);
    return 0;
}

/* Size of the header's text, checked against the file. */
static int header_size(const struct zt_sys *sys, int fd, const char *name, int64_t *header, int64_t *values, struct zt_error *err) {
    struct stat st;
    uint64_t n = 0;
    int rc = sys->fstat(sys->arg, fd, &st);
    if (rc < 0) return zt_fail(err, ZT_EIO, "%s: cannot be looked at: %s", name, strerror(-rc));
    if (!S_ISREG(st.st_mode)) return zt_fail(err, ZT_EINVAL, "%s: is not a regular file", name);
    if (st.st_size < 8) return zt_fail(err, ZT_EINVAL, "%s: %lld bytes are no safetensors file", name, (long long)st.st_size);
    rc = read_exact(sys, fd, name, &n, sizeof n, 0, err);
    if (rc) return rc;
    n = le64toh(n);
    if (n > ZT_ST_HEADER_MAX)
        return zt_fail(err, ZT_EINVAL, "%s: header length %llu, the most is %d", name, (unsigned long long)n, ZT_ST_HEADER_MAX);
    if ((int64_t)n > st.st_size - 8)
        return zt_fail(err, ZT_EINVAL, "%s: header length %llu, but the file has %lld bytes", name, (unsigned long long)n, (long long)st.st_size);
    if (n < 2) return zt_fail(err, ZT_EINVAL, "%s: header length %llu, the least is 2", name, (unsigned long long)n);
    *header = (int64_t)n;
    *values = st.st_size - 8 - *header;
    return 0;
}

int zt_safetensors_open_fd(const struct zt_sys *sys, int fd, const char *name, struct zt_safetensors **out, struct zt_error *err) {
    int64_t header = 0, values = 0;
    struct zt_json j;
    *out = NULL;
    int rc = header_size(sys, fd, name, &header, &values, err);
    if (rc) return rc;
    const int64_t fit = header / MEMBER_LEAST + 1;
    const int room = fit < ZT_ST_TENSORS_MAX ? (int)fit : ZT_ST_TENSORS_MAX;
    struct zt_safetensors *s = calloc(1, sizeof *s);
    char *text = s ? malloc((size_t)header + 1) : NULL;
    if (s) s->text = text;
    if (s) s->entries = malloc((size_t)room * sizeof *s->entries);
    if (!text || !s->entries) rc = zt_fail(err, ZT_ENOMEM, "%s: no memory for its header", name);
    if (!rc) rc = read_exact(sys, fd, name, text, (size_t)header, 8, err);
    if (!rc) {
        text[header] = '\0';
        s->head = 8 + header;
        zt_json_begin(&j, name, text, (size_t)header, 3, ZT_EINVAL, err);
        if (text[0] != '{') zt_json_fail(&j, "the header does not begin with '{'");
        read_header(&j, s, values, room);
        rc = j.rc;
    }
    if (!rc) {
        s->by_name = malloc(((size_t)s->count + 1) * sizeof *s->by_name);
        rc = s->by_name ? check_places(&j, s, values) : zt_fail(err, ZT_ENOMEM, "%s: no memory for its header", name);
    }
    if (rc)
        zt_safetensors_free(s);
    else
        *out = s;
    return rc;
}

void zt_safetensors_free(struct zt_safetensors *s) {
    if (!s) return;
    free(s->by_name);
    free(s->entries);
    free(s->text);
    free(s);
}

int zt_safetensors_count(const struct zt_safetensors *s) { return s->count; }
int64_t zt_safetensors_head_bytes(const struct zt_safetensors *s) { return s->head; }

void zt_safetensors_get(const struct zt_safetensors *s, int i, struct zt_safetensor *t) {
    ZT_ASSERT(i >= 0 && i < s->count);
    const struct entry *e = &s->entries[i];
    const char *p = s->text + e->shape;
    *t = (struct zt_safetensor){.name = s->text + e->name, .type = e->type, .ndim = e->ndim, .elements = e->bytes / types[e->type].size,
                                .at = s->head + e->begin, .bytes = e->bytes};
    for (int d = 0; d < e->ndim; d++) { /* parsed once: digits, white space, commas */
        while (*p < '0' || *p > '9') p++;
        t->shape[d] = strtoll(p, (char **)&p, 10);
    }
}

int zt_safetensors_find(const struct zt_safetensors *s, const char *name) {
    int low = 0, high = s->count;
    while (low < high) {
        const int mid = low + (high - low) / 2;
        const int c = strcmp(s->text + s->entries[s->by_name[mid]].name, name);
        if (c == 0) return (int)s->by_name[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

/* ---- writing a head ---- */

static int place(struct zt_safetensor *tensors, int n, struct zt_error *err) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        struct zt_safetensor *t = &tensors[i];
        const int size = types[t->type].size;
        t->elements = 1;
        bool large = t->ndim < 0 || t->ndim > ZT_ST_DIMS_MAX || strlen(t->name) > ZT_ST_NAME_MAX;
        for (int d = 0; d < t->ndim && !large; d++)
            large = t->shape[d] < 0 || __builtin_mul_overflow(t->elements, t->shape[d], &t->elements);
        large = large || __builtin_mul_overflow(t->elements, size, &t->bytes);
        t->at = at;
        large = large || __builtin_add_overflow(at, t->bytes, &at);
        if (large) return zt_fail(err, ZT_EINVAL, "%.200s: more than a safetensors file can say", t->name);
        ZT_ASSERT(i == 0 || types[tensors[i - 1].type].size >= size);
    }
    return 0;
}

int zt_safetensors_head(struct zt_safetensor *tensors, int n, const char *metadata, char **text, int64_t *bytes, struct zt_error *err) {
    struct zt_text o = {0};
    *text = NULL;
    if (n > ZT_ST_TENSORS_MAX) return zt_fail(err, ZT_EINVAL, "%d tensors; a safetensors file has at most %d", n, ZT_ST_TENSORS_MAX);
    const int rc = place(tensors, n, err);
    if (rc) return rc;
    zt_text_add(&o, "........{"); /* the first eight are the length */
    if (metadata) zt_text_add(&o, "\"__metadata__\":%s%s", metadata, n > 0 ? "," : "");
    for (int i = 0; i < n; i++) {
        const struct zt_safetensor *t = &tensors[i];
        if (i > 0) zt_text_add(&o, ",");
        zt_text_string(&o, t->name);
        zt_text_add(&o, ":{\"dtype\":\"%s\",\"shape\":[", types[t->type].name);
        for (int d = 0; d < t->ndim; d++) zt_text_add(&o, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        zt_text_add(&o, "],\"data_offsets\":[%lld,%lld]}", (long long)t->at, (long long)(t->at + t->bytes));
    }
    zt_text_add(&o, "}");
    while (!o.failed && o.n % 64) zt_text_add(&o, " ");
    if (o.failed || o.n - 8 > ZT_ST_HEADER_MAX) {
        free(o.at);
        return o.failed ? zt_fail(err, ZT_ENOMEM, "no memory for the head of a safetensors file")
                        : zt_fail(err, ZT_EINVAL, "the head of %d tensors is longer than %d bytes", n, ZT_ST_HEADER_MAX);
    }
    const uint64_t length = htole64((uint64_t)o.n - 8);
    memcpy(o.at, &length, sizeof length);
    for (int i = 0; i < n; i++) tensors[i].at += (int64_t)o.n;
    *text = o.at;
    *bytes = (int64_t)o.n;
    return 0;
}
