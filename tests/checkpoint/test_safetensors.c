/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader against hostile files: each is refused by name, at little memory, and the same
 * file without its fault is read. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/checkpoint/safetensors.h"

/* A file in memory that hands out few bytes at a time. */
struct memory { const unsigned char *at; size_t n; int64_t claimed; };

static ssize_t memory_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    const struct memory *m = arg;
    const size_t left = (size_t)at < m->n ? m->n - (size_t)at : 0;
    (void)fd;
    if (n > left) n = left;
    if (n > 1000) n = 1000;
    if (n > 0) memcpy(buf, m->at + at, n);
    return (ssize_t)n;
}

static int memory_fstat(void *arg, int fd, struct stat *st) {
    const struct memory *m = arg;
    (void)fd;
    *st = (struct stat){.st_mode = S_IFREG | 0644, .st_size = m->claimed};
    return 0;
}

static int open_bytes(const void *bytes, size_t n, int64_t claimed, struct zt_safetensors **s, struct zt_error *err) {
    struct memory m = {bytes, n, claimed};
    const struct zt_sys sys = {.arg = &m, .pread = memory_pread, .fstat = memory_fstat};
    return zt_safetensors_open_fd(&sys, 3, "hostile.safetensors", s, err);
}

/* A file of this length word, header and so many bytes of values. */
static int open_file(uint64_t length, const char *header, size_t header_bytes, size_t values, struct zt_safetensors **s, struct zt_error *err) {
    const size_t n = 8 + header_bytes + values;
    unsigned char *file = calloc(1, n + 1);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, header_bytes);
    const int rc = open_bytes(file, n, (int64_t)n, s, err);
    free(file);
    return rc;
}

static int open_header(const char *header, size_t values, struct zt_safetensors **s, struct zt_error *err) {
    return open_file(strlen(header), header, strlen(header), values, s, err);
}

static void refused(const char *header, size_t values, const char *word) {
    struct zt_safetensors *s;
    struct zt_error err;
    cr_assert_eq(open_header(header, values, &s, &err), ZT_EINVAL, "%s: read", header);
    cr_assert_null(s);
    cr_assert(strstr(err.msg, "hostile.safetensors"), "%s", err.msg);
    cr_assert(strstr(err.msg, word), "%s: said %s, not %s", header, err.msg, word);
}

static void accepted(const char *header, size_t values) {
    struct zt_safetensors *s;
    struct zt_error err;
    cr_assert_eq(open_header(header, values, &s, &err), 0, "%s: %s", header, err.msg);
    zt_safetensors_free(s);
}

#define GOOD "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[24,28]}}"

Test(safetensors, a_good_file, .timeout = 10) {
    struct zt_safetensors *s;
    struct zt_safetensor t;
    struct zt_error err;
    cr_assert_eq(open_header(GOOD "   ", 28, &s, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_safetensors_count(s), 2);
    zt_safetensors_get(s, 0, &t);
    cr_assert_str_eq(t.name, "w");
    cr_assert(t.type == ZT_ST_F32 && t.ndim == 2 && t.shape[0] == 2 && t.shape[1] == 3 && t.elements == 6 && t.bytes == 24);
    cr_assert_eq(t.at, (int64_t)(8 + strlen(GOOD) + 3));
    zt_safetensors_get(s, zt_safetensors_find(s, "b"), &t);
    cr_assert(t.type == ZT_ST_BF16 && t.ndim == 1 && t.shape[0] == 2 && t.bytes == 4);
    cr_assert_eq(zt_safetensors_find(s, "c"), -1);
    zt_safetensors_free(s);
    /* every dtype, a scalar, an empty tensor, metadata, escapes in names */
    accepted("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"{\\\"a\\\":[1]}\"},\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8);
    accepted("{\"a\":{\"dtype\":\"I8\",\"shape\":[0,7],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    accepted("{}", 0);
    cr_assert_eq(open_header("{\"a\\u00e9\\ud83d\\ude00\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, &s, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_safetensors_find(s, "a\xc3\xa9\xf0\x9f\x98\x80"), 0);
    zt_safetensors_free(s);
}

#define ONE(fields) "{\"w\":{" fields "}}"

Test(safetensors, hostile_files_are_refused_by_name, .timeout = 30) {
    struct zt_safetensors *s;
    struct zt_error err;
    const struct { uint64_t length; const char *word; } prefixes[] = {
        {0, "header length 0"}, {1, "header length 1"}, {(uint64_t)1 << 63, "9223372036854775808"}, {sizeof GOOD + 100, "but the file has"},
        {100000001, "100000001"}, {(16 << 20) + 1, "16777217"}, {UINT64_MAX, "18446744073709551615"}};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        cr_assert_eq(open_file(prefixes[i].length, GOOD, strlen(GOOD), 28, &s, &err), ZT_EINVAL);
        cr_assert(strstr(err.msg, prefixes[i].word), "%s", err.msg);
    }
    cr_assert_eq(open_bytes("\1\0\0", 3, 3, &s, &err), ZT_EINVAL);
    /* begin behind end, end behind the data, overlap, hole, a span that is not shape x dtype */
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4, "w.data_offsets");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 4, "w.data_offsets");
    refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6, "b: overlaps");
    refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}", 9, "b: a hole");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]"), 5, "w: a hole");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]"), 5, "the tensors need 4 bytes");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]"), 20, "shape and dtype make 6");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "w.shape");
    refused(ONE("\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]"), 0, "w");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]"), 0, "w.shape");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]"), 0, "w.shape");
    refused(ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]"), 1, "w.data_offsets");
    refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "w: the name is there twice");
    refused("[]", 0, "begin with '{'");
    refused("\"w\"", 0, "begin with '{'");
    refused(" {}", 0, "begin with '{'");
    refused("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "UTF-8");
    refused("{\"\xed\xa0\x80\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "UTF-8");
    refused("{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "UTF-8");
}

Test(safetensors, more_that_is_refused, .timeout = 30) {
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"data_offsets\":[0,4]"), 4, "twice");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1]"), 4, "'data_offsets' is missing");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1"), 4, "w.more");
    refused(ONE("\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]"), 1, "w.dtype");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), 4, "whole number");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]"), 4, "whole number");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]"), 4, "whole number");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]"), 4, "whole number");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]"), 4, "whole number");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "more than two");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, "fewer than two");
    refused(ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, "more than 8 dimensions");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "a string");
    refused("{\"__metadata__\":{\"a\":{\"b\":{}}}}", 0, "a string");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
    refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "escape");
    refused("{\"a\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "escape");
    refused("{\"a\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "control");
    refused(GOOD "x", 28, "more behind the end");
    refused("{\"w\":{\"dtype\":\"F32\"", 0, "expected");
    refused("{\"w", 0, "does not end");
}

/* Header lengths, names, dimensions and counts at the limit and one past it. */
Test(safetensors, limits, .timeout = 60) {
    struct zt_safetensors *s;
    struct zt_error err;
    char header[2048], name[600];
    for (int extra = 0; extra < 2; extra++) {
        memset(name, 'n', sizeof name);
        name[512 + extra] = '\0';
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
        cr_assert_eq(open_header(header, 1, &s, &err), extra ? ZT_EINVAL : 0);
        if (!extra) zt_safetensors_free(s);
    }
    accepted(ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4);
    for (int extra = 0; extra < 2; extra++) { /* 16 MiB, filled with spaces */
        const size_t n = ZT_ST_HEADER_MAX + (size_t)extra;
        char *big = malloc(n);
        memset(big, ' ', n);
        memcpy(big, "{}", 2);
        cr_assert_eq(open_file(n, big, n, 0, &s, &err), extra ? ZT_EINVAL : 0);
        if (!extra) zt_safetensors_free(s);
        free(big);
    }
    for (int extra = 0; extra < 2; extra++) { /* 65,536 tensors */
        const int n = ZT_ST_TENSORS_MAX + extra;
        char *many = malloc((size_t)n * 80 + 8), *at = many;
        *at++ = '{';
        for (int i = 0; i < n; i++)
            at += sprintf(at, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}", i ? "," : "", i, i, i + 1);
        at += sprintf(at, "}");
        cr_assert_eq(open_header(many, (size_t)n, &s, &err), extra ? ZT_EINVAL : 0, "%s", err.msg);
        if (extra)
            cr_assert(strstr(err.msg, "more than 65536 tensors"), "%s", err.msg);
        else
            zt_safetensors_free(s);
        free(many);
    }
}

/* What a reader allocates, all in all, is less than twice the header and a little. */
static size_t in_use(void) {
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

Test(safetensors, memory_is_twice_the_header_at_most, .timeout = 60) {
    struct zt_safetensors *s;
    struct zt_error err;
    const int n = 60000;
    char *many = malloc((size_t)n * 80 + 8), *at = many;
    *at++ = '{';
    for (int i = 0; i < n; i++) at += sprintf(at, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}", i ? "," : "", i, i, i + 1);
    at += sprintf(at, "}");
    const size_t header = (size_t)(at - many), before = in_use();
    cr_assert_eq(open_header(many, (size_t)n, &s, &err), 0, "%s", err.msg);
    if (before != 0) /* a sanitizer's allocator does not count */
        cr_assert(in_use() - before < 2 * header + 65536, "%zu bytes for a header of %zu", in_use() - before, header);
    zt_safetensors_free(s);
    free(many);
}

/* fstat says more than can be read: a file that shrinks. */
Test(safetensors, a_file_that_shrinks, .timeout = 10) {
    struct zt_safetensors *s;
    struct zt_error err;
    unsigned char file[8 + sizeof GOOD] = {0};
    const uint64_t n = sizeof GOOD - 1;
    memcpy(file, &n, 8);
    memcpy(file + 8, GOOD, sizeof GOOD - 1);
    cr_assert_eq(open_bytes(file, 40, 8 + (int64_t)n + 28, &s, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "ended while it was read"), "%s", err.msg);
    cr_assert_eq(zt_safetensors_open_fd(&zt_sys_posix, -1, "none", &s, &err), ZT_EIO);
    const int null = open("/dev/null", O_RDONLY);
    cr_assert_eq(zt_safetensors_open_fd(&zt_sys_posix, null, "/dev/null", &s, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "regular file"), "%s", err.msg);
    close(null);
}

Test(safetensors, a_head_that_was_written_is_read, .timeout = 10) {
    struct zt_safetensor t[3] = {{.name = "wide \"quoted\"\n", .type = ZT_ST_F64, .ndim = 0}, {.name = "w", .type = ZT_ST_F32, .ndim = 2, .shape = {3, 5}},
                                 {.name = "b", .type = ZT_ST_BF16, .ndim = 1, .shape = {7}}};
    struct zt_safetensors *s;
    struct zt_error err;
    char *text;
    int64_t bytes;
    cr_assert_eq(zt_safetensors_head(t, 3, "{\"format\":\"pt\"}", &text, &bytes, &err), 0, "%s", err.msg);
    cr_assert_eq(bytes % 64, 0);
    cr_assert_eq(t[2].at, bytes + 8 + 60);
    unsigned char *file = calloc(1, (size_t)bytes + 82);
    memcpy(file, text, (size_t)bytes);
    cr_assert_eq(open_bytes(file, (size_t)bytes + 82, bytes + 82, &s, &err), 0, "%s", err.msg);
    for (int i = 0; i < 3; i++) {
        struct zt_safetensor r;
        zt_safetensors_get(s, i, &r);
        cr_assert_str_eq(r.name, t[i].name);
        cr_assert(r.at == t[i].at && r.bytes == t[i].bytes && r.type == t[i].type && r.ndim == t[i].ndim);
    }
    zt_safetensors_free(s);
    free(file);
    free(text);
    t[1].shape[0] = INT64_MAX;
    cr_assert_eq(zt_safetensors_head(t, 3, NULL, &text, &bytes, &err), ZT_EINVAL);
}
