/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/jsonl.c: the lines of a file, and the example that a line says. A line is read whole,
 * up to ZT_LINE_MAX bytes; more is refused, so that a damaged file cannot take the host's memory.
 * Memory: a reader owns its buffer, an example its parsed text. Any thread; one reader a thread. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/internal.h"

#define CHUNK ((size_t)64 << 10)

/* ---- lines ---- */

void zt_lines_begin(struct zt_lines *l, const struct zt_sys *sys, int fd, const char *path,
                    int64_t byte, int64_t line) {
    *l = (struct zt_lines){.sys = sys, .fd = fd, .path = path, .next = byte, .line = line};
}

void zt_lines_end(struct zt_lines *l) {
    free(l->buf);
    l->buf = NULL;
}

static int make_room(struct zt_lines *l, struct zt_error *err) {
    if (l->from > 0) {
        memmove(l->buf, l->buf + l->from, l->to - l->from);
        l->to -= l->from;
        l->from = 0;
    }
    if (l->to < l->room) return ZT_OK;
    size_t room = l->room ? 2 * l->room : CHUNK;
    char *bigger = realloc(l->buf, room);
    if (!bigger)
        return zt_fail(err, ZT_ENOMEM, "%s:%" PRId64 ": no memory for a line of %zu bytes", l->path,
                       l->line + 1, l->room);
    l->buf = bigger;
    l->room = room;
    return ZT_OK;
}

static int read_more(struct zt_lines *l, struct zt_error *err) {
    int rc = make_room(l, err);
    if (rc != ZT_OK) return rc;
    ssize_t got = l->sys->pread(l->sys->arg, l->fd, l->buf + l->to, l->room - l->to, l->next);
    if (got < 0)
        return zt_fail(err, ZT_EDATA, "%s: reading at byte %" PRId64 " failed: %s", l->path,
                       l->next, strerror((int)-got));
    l->end = got == 0;
    l->to += (size_t)got;
    l->next += got;
    return ZT_OK;
}

int zt_lines_next(struct zt_lines *l, const char **text, size_t *n, int64_t *byte,
                  struct zt_error *err) {
    char *lf = NULL;
    for (size_t seen = 0;;) { /* bytes known to have no LF */
        size_t have = l->to - l->from;
        if (have > seen) lf = memchr(l->buf + l->from + seen, '\n', have - seen);
        if (lf || l->end) break;
        seen = have;
        if (have > ZT_LINE_MAX) break;
        int rc = read_more(l, err);
        if (rc != ZT_OK) return rc;
    }
    size_t have = l->to - l->from, length = lf ? (size_t)(lf - (l->buf + l->from)) : have;
    if (have == 0) return ZT_ENOTFOUND;
    l->line++;
    if (length > ZT_LINE_MAX)
        return zt_fail(err, ZT_EDATA,
                       "%s:%" PRId64 ": the line is longer than %d bytes; a .jsonl file has one "
                       "example a line, long texts are better cut or given as a text file",
                       l->path, l->line, ZT_LINE_MAX);
    *byte = l->next - (int64_t)have;
    *text = l->buf + l->from;
    *n = length > 0 && (*text)[length - 1] == '\r' ? length - 1 : length;
    l->from += length + (lf != NULL);
    return ZT_OK;
}

/* ---- examples ---- */

/* The parser's own words show pieces of the file, which may be anything: these do not. */
static const char *cause_of(const json_error_t *e) {
    switch (json_error_code(e)) {
    case json_error_invalid_utf8:
        return "invalid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "a NUL character, which ends examples here";
    case json_error_premature_end_of_input:
        return "not JSON: it ends too early";
    case json_error_end_of_input_expected:
        return "more than one JSON value on the line";
    case json_error_duplicate_key:
        return "a key that stands there twice";
    case json_error_stack_overflow:
        return "JSON that is nested too deep";
    case json_error_numeric_overflow:
        return "a number that is out of range";
    default:
        return "not JSON";
    }
}

static int parse_failed(const char *path, int64_t line, const char *text, size_t n,
                        const json_error_t *e, struct zt_error *err) {
    if (json_error_code(e) == json_error_out_of_memory)
        return zt_fail(err, ZT_ENOMEM, "%s:%" PRId64 ": no memory to read the line", path, line);
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return zt_fail(err, ZT_EDATA,
                       "%s:%" PRId64 ": begins with a byte order mark; save the file without it",
                       path, line);
    return zt_fail(err, ZT_EDATA, "%s:%" PRId64 ": %s (near byte %d of the line)", path, line,
                   cause_of(e), e->position);
}

/* The string under `key`, as part i of the example. */
static int take(const char *path, int64_t line, const json_t *root, const char *key, int i,
                struct zt_example *e, struct zt_error *err) {
    const json_t *v = json_object_get(root, key);
    if (!json_is_string(v))
        return zt_fail(err, ZT_EDATA, "%s:%" PRId64 ": \"%s\" is not a string", path, line, key);
    e->part[i] = (const unsigned char *)json_string_value(v);
    e->bytes[i] = (int64_t)json_string_length(v);
    return ZT_OK;
}

/* Which keys there are decides what the line is. */
static int read_object(const char *path, int64_t line, const json_t *root, struct zt_example *e,
                       struct zt_error *err) {
    bool prompt = json_object_get(root, "prompt"), completion = json_object_get(root, "completion");
    int known = prompt + completion, rc = ZT_OK;
    e->text = json_object_get(root, "text");
    e->more_keys = json_object_size(root) > (size_t)(known + e->text);
    if (e->text && known)
        return zt_fail(err, ZT_EDATA,
                       "%s:%" PRId64 ": \"text\" beside \"prompt\" or \"completion\"; a line is "
                       "either a text or a prompt with its completion",
                       path, line);
    if (!e->text && known < 2)
        return zt_fail(err, ZT_EDATA,
                       "%s:%" PRId64 ": the key \"%s\" is missing; a line is {\"prompt\": ..., "
                       "\"completion\": ...} or {\"text\": ...}",
                       path, line, prompt ? "completion" : "prompt");
    if (prompt) rc = take(path, line, root, "prompt", 0, e, err);
    if (rc == ZT_OK) rc = take(path, line, root, e->text ? "text" : "completion", 1, e, err);
    if (rc == ZT_OK && e->bytes[1] == 0)
        return zt_fail(err, ZT_EDATA, "%s:%" PRId64 ": the %s is empty: nothing to learn from",
                       path, line, e->text ? "text" : "completion");
    return rc;
}

static int check_vocabulary(const char *path, int64_t line, const struct zt_example *e,
                            int64_t vocab_size, struct zt_error *err) {
    for (int i = 0; i < 2 && vocab_size < 256; i++)
        for (int64_t j = 0; j < e->bytes[i]; j++)
            if (e->part[i][j] >= vocab_size)
                return zt_fail(err, ZT_EDATA,
                               "%s:%" PRId64 ": token %d is outside the model's vocabulary of "
                               "%" PRId64 "; the byte tokenizer needs 256",
                               path, line, e->part[i][j], vocab_size);
    return ZT_OK;
}

int zt_example_parse(const char *path, int64_t line, const char *text, size_t n, int64_t vocab_size,
                     struct zt_example *e, struct zt_error *err) {
    json_error_t je;
    memset(e, 0, sizeof *e);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!root) return parse_failed(path, line, text, n, &je, err);
    e->json = root;
    if (!json_is_object(root))
        return zt_fail(err, ZT_EDATA, "%s:%" PRId64 ": not an object, {...}", path, line);
    int rc = read_object(path, line, root, e, err);
    return rc == ZT_OK ? check_vocabulary(path, line, e, vocab_size, err) : rc;
}

void zt_example_free(struct zt_example *e) {
    json_decref(e->json);
    memset(e, 0, sizeof *e);
}
