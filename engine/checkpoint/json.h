/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/json.h: JSON without a tree. The reader is told what must come next and where the
 * text goes, so that its memory is the caller's alone. Strict: RFC 8259, UTF-8, no duplicate, unknown or
 * missing field, no number but a whole one in the range given, a bounded depth. The first fault sticks:
 * `rc` and the caller's error name the file, the field and what was expected, and every call after it
 * answers "nothing more". Strings are unescaped in place: the text is changed, and what is handed out
 * points into it. The writer makes one text, always the same for the same calls.
 *
 * Owner: the caller. One thread per struct. */
#ifndef ZT_ENGINE_CHECKPOINT_JSON_H
#define ZT_ENGINE_CHECKPOINT_JSON_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"

enum { ZT_JSON_DEPTH = 8 };
struct zt_json {
    const char *file; /* for messages */
    char *text;
    size_t n, at;
    int depth, most_depth;
    struct { const char *name; int64_t index; bool list, begun; } path[ZT_JSON_DEPTH + 1];
    int code, rc; /* code: what a fault is (ZT_EINVAL, ZT_ECORRUPT); rc: 0 or it */
    struct zt_error *err;
};
/* n bytes and one more, which may be overwritten. */
void zt_json_begin(struct zt_json *j, const char *file, char *text, size_t n, int most_depth, int code,
                   struct zt_error *err);
int zt_json_fail(struct zt_json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void zt_json_object(struct zt_json *j); /* '{' */
void zt_json_list(struct zt_json *j);   /* '[' */
/* Another element of the list, another member of the object? Takes the closing bracket when not. */
bool zt_json_more(struct zt_json *j);
/* Key of a member, NUL-terminated; *n its bytes. "" after a fault. */
const char *zt_json_key(struct zt_json *j, size_t *n);
/* Members of an object by a table of `count` <= 64 names: number of the next one, -1 at the end. *seen
 * starts as 0. Every name not in `optional` (bits) has to be there. */
int zt_json_field(struct zt_json *j, const char *const *names, int count, uint64_t optional, uint64_t *seen);

const char *zt_json_string(struct zt_json *j, size_t *n);           /* "" after a fault */
void zt_json_copy(struct zt_json *j, char *out, size_t room);        /* no control characters */
void zt_json_hex(struct zt_json *j, uint8_t *out, size_t bytes);     /* exactly 2 x bytes lower-case digits */
int64_t zt_json_whole(struct zt_json *j, int64_t least, int64_t most); /* least after a fault */
bool zt_json_bool(struct zt_json *j);
bool zt_json_null(struct zt_json *j);                                /* takes null when it comes next */
int zt_json_end(struct zt_json *j);                                  /* only white space is left; rc */

/* Text that grows; `failed`: no memory, nothing is added any more. */
struct zt_text { char *at; size_t n, room; bool failed; };
void zt_text_add(struct zt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void zt_text_string(struct zt_text *t, const char *s); /* quoted and escaped */
void zt_text_hex(struct zt_text *t, const uint8_t *b, size_t n); /* quoted */
#endif
