/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/hf_util.h: folders of tests/golden/hf, copies of them that are spoilt, and a reader of
 * safetensors files that shares nothing with the engine's: of the published format, for files that are
 * known to be well-formed. */
#ifndef ZT_TESTS_ENGINE_HF_UTIL_H
#define ZT_TESTS_ENGINE_HF_UTIL_H
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/spec.h"
#include "engine/checkpoint/hf.h"

/* ---- paths ---- */

static inline const char *path_in(const char *folder, const char *name) {
    static char text[8][512];
    static int turn;
    char *to = text[turn++ % 8];
    const size_t a = strlen(folder), b = strlen(name);
    cr_assert_lt(a + b + 2, sizeof text[0]);
    memmove(to, folder, a);
    to[a] = '/';
    memcpy(to + a + 1, name, b + 1);
    return to;
}
static inline const char *golden_folder(const char *name) { return path_in(ZT_SOURCE_ROOT "/tests/golden/hf", name); }
static inline const char *golden_path(const char *folder, const char *name) {
    return path_in(golden_folder(folder), name);
}

static inline struct zt_hf *hf_open(const char *folder) {
    struct zt_hf *h = NULL;
    struct zt_error e = {0};
    cr_assert_eq(zt_hf_open(NULL, folder, &h, &e), 0, "%s", e.msg);
    return h;
}

/* ---- files ---- */

static inline char *read_bytes_of(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    cr_assert_eq(fread(data, 1, *n, f), *n);
    data[*n] = '\0';
    fclose(f);
    return data;
}
static inline char *read_whole(const char *path) {
    size_t n;
    return read_bytes_of(path, &n);
}
static inline void write_bytes(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fwrite(data, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
}
static inline void write_file(const char *folder, const char *name, const char *text) {
    write_bytes(path_in(folder, name), text, strlen(text));
}

static inline void each_file(const char *folder, void (*fn)(const char *from, const char *to), const char *to) {
    DIR *d = opendir(folder);
    cr_assert_not_null(d, "%s", folder);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') fn(path_in(folder, e->d_name), to ? path_in(to, e->d_name) : NULL);
    closedir(d);
}
static inline void copy_one(const char *from, const char *to) {
    size_t n;
    char *data = read_bytes_of(from, &n);
    write_bytes(to, data, n);
    free(data);
}
static inline void remove_one(const char *from, const char *to) {
    struct stat st;
    (void)to;
    char path[512];
    snprintf(path, sizeof path, "%s", from);
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        each_file(path, remove_one, NULL);
        rmdir(path);
    } else
        unlink(path);
}
static inline void remove_folder(const char *folder) { remove_one(folder, NULL); }
static inline void new_folder(char folder[128]) {
    snprintf(folder, 128, "/tmp/zt-hf-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}
static inline void copy_folder(const char *name, char folder[128]) {
    new_folder(folder);
    each_file(golden_folder(name), copy_one, folder);
}

static inline char *replace_all(const char *text, const char *from, const char *to) {
    size_t room = strlen(text) * (strlen(to) + 1) + 1, n = 0;
    char *out = malloc(room);
    for (const char *p = text; *p;)
        if (strncmp(p, from, strlen(from)) == 0) {
            memcpy(out + n, to, strlen(to));
            n += strlen(to);
            p += strlen(from);
        } else
            out[n++] = *p++;
    out[n] = '\0';
    return out;
}

/* The first place of `from` becomes `to`, which is as long. */
static inline void edit_file(const char *folder, const char *name, const char *from, const char *to) {
    size_t n, k = strlen(from);
    char path[512];
    snprintf(path, sizeof path, "%s", path_in(folder, name));
    char *data = read_bytes_of(path, &n), *at = NULL;
    cr_assert_eq(k, strlen(to), "%s and %s", from, to);
    at = memmem(data, n, from, k);
    cr_assert_not_null(at, "%s is not in %s", from, path);
    memcpy(at, to, k);
    write_bytes(path, data, n);
    free(data);
}
static inline void flip_bit(const char *folder, const char *name, int64_t at) {
    size_t n;
    char path[512];
    snprintf(path, sizeof path, "%s", path_in(folder, name));
    char *data = read_bytes_of(path, &n);
    data[at] ^= 1;
    write_bytes(path, data, n);
    free(data);
}

/* config.json of a golden folder with one key set; malloc'ed. */
static inline char *config_with(const char *folder, const char *key, const char *value) {
    json_t *c = json_load_file(golden_path(folder, "config.json"), 0, NULL);
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    cr_assert(c && v, "%s", value);
    json_object_set_new(c, key, v);
    char *text = json_dumps(c, 0);
    json_decref(c);
    return text;
}

/* ---- safetensors by the published format ---- */

struct raw_file { char *data; size_t bytes; json_t *head; int64_t at; };

static inline void raw_open(const char *path, struct raw_file *r) {
    uint64_t n = 0;
    r->data = read_bytes_of(path, &r->bytes);
    memcpy(&n, r->data, 8);
    r->head = json_loadb(r->data + 8, (size_t)n, 0, NULL);
    cr_assert_not_null(r->head, "%s", path);
    r->at = 8 + (int64_t)n;
}
static inline void raw_close(struct raw_file *r) {
    json_decref(r->head);
    free(r->data);
}
static inline const json_t *raw_need(const struct raw_file *r, const char *name) {
    const json_t *t = json_object_get(r->head, name);
    cr_assert_not_null(t, "no %s in the file", name);
    return t;
}
static inline int64_t raw_place(const struct raw_file *r, const char *name) {
    return r->at + json_integer_value(json_array_get(json_object_get(raw_need(r, name), "data_offsets"), 0));
}
static inline int64_t raw_shape(const struct raw_file *r, const char *name, size_t i) {
    return json_integer_value(json_array_get(json_object_get(raw_need(r, name), "shape"), i));
}
static inline float raw_at(const struct raw_file *r, const char *name, int64_t i) {
    const char *type = json_string_value(json_object_get(raw_need(r, name), "dtype"));
    const char *p = r->data + raw_place(r, name);
    uint16_t h;
    float f;
    if (strcmp(type, "F32") == 0) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    if (strcmp(type, "BF16") == 0) {
        uint32_t bits = (uint32_t)h << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
    cr_assert_str_eq(type, "F16");
    const int exponent = h >> 10 & 31, rest = h & 1023;
    const double a = exponent ? __builtin_ldexp(1024 + rest, exponent - 25) : __builtin_ldexp(rest, -24);
    return (float)(h >> 15 ? -a : a);
}

#endif
