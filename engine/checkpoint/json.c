/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/json.c: see json.h. */
#include "engine/checkpoint/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void zt_json_begin(struct zt_json *j, const char *file, char *text, size_t n, int most_depth, int code,
                   struct zt_error *err) {
    ZT_ASSERT(most_depth <= ZT_JSON_DEPTH);
    *j = (struct zt_json){.file = file, .text = text, .n = n, .most_depth = most_depth, .code = code, .err = err};
}

/* ---- messages ---- */

/* What comes from the file is shown with nothing in it that moves a terminal. */
static size_t show(char *out, size_t room, const char *s) {
    size_t n = 0;
    for (; *s && n + 1 < room; s++) out[n++] = (unsigned char)*s < ' ' || *s == 0x7f ? '?' : *s;
    out[n] = '\0';
    return n;
}

static void path_text(const struct zt_json *j, char *out, size_t room) {
    size_t n = 0;
    out[0] = '\0';
    for (int d = 1; d <= j->depth && n + 24 < room; d++) {
        if (j->path[d].list && j->path[d].index > 0) {
            n += (size_t)snprintf(out + n, room - n, "[%lld]", (long long)j->path[d].index - 1);
        } else if (!j->path[d].list && j->path[d].name) {
            if (n > 0) out[n++] = '.';
            n += show(out + n, room - n, j->path[d].name);
        }
    }
}

int zt_json_fail(struct zt_json *j, const char *fmt, ...) {
    char what[512], where[256];
    if (j->rc) return j->rc;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    path_text(j, where, sizeof where);
    return j->rc = zt_fail(j->err, j->code, "%s: %s%s%s (at byte %zu)", j->file, where, where[0] ? ": " : "", what, j->at);
}

/* ---- characters ---- */

static int peek(struct zt_json *j) {
    while (j->at < j->n && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at]) j->at++;
    return j->at < j->n ? (unsigned char)j->text[j->at] : -1;
}

static bool take(struct zt_json *j, char c, const char *what) {
    if (j->rc) return false;
    if (peek(j) != (unsigned char)c) {
        zt_json_fail(j, "expected %s", what);
        return false;
    }
    j->at++;
    return true;
}

static void enter(struct zt_json *j, char c, const char *what) {
    if (!take(j, c, what)) return;
    if (j->depth == j->most_depth) {
        zt_json_fail(j, "nested deeper than %d levels", j->most_depth);
        return;
    }
    j->depth++;
    j->path[j->depth].name = NULL;
    j->path[j->depth].index = 0;
    j->path[j->depth].list = c == '[';
    j->path[j->depth].begun = false;
}

void zt_json_object(struct zt_json *j) { enter(j, '{', "an object"); }
void zt_json_list(struct zt_json *j) { enter(j, '[', "a list"); }

bool zt_json_more(struct zt_json *j) {
    if (j->rc) return false;
    const bool list = j->path[j->depth].list;
    const int c = peek(j);
    if (c == (list ? ']' : '}')) {
        j->at++;
        j->depth--;
        return false;
    }
    if (j->path[j->depth].begun && !take(j, ',', list ? "',' or ']'" : "',' or '}'")) return false;
    j->path[j->depth].begun = true;
    j->path[j->depth].index++;
    return true;
}

/* Length of the UTF-8 sequence at s, 0 when it is none: overlong forms, surrogates and what lies past
 * U+10FFFF are none. */
static size_t utf8(const unsigned char *s, size_t left) {
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return n;
}

static int hex_digit(int c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four digits at `at`; -1: they are not. */
static int32_t code_unit(const struct zt_json *j, size_t at) {
    int32_t v = 0;
    if (at + 4 > j->n) return -1;
    for (size_t i = 0; i < 4; i++) {
        const int d = hex_digit((unsigned char)j->text[at + i]);
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static char *put_utf8(char *o, int32_t v) {
    if (v < 0x80) {
        *o++ = (char)v;
    } else if (v < 0x800) {
        *o++ = (char)(0xc0 | v >> 6);
        *o++ = (char)(0x80 | (v & 0x3f));
    } else if (v < 0x10000) {
        *o++ = (char)(0xe0 | v >> 12);
        *o++ = (char)(0x80 | (v >> 6 & 0x3f));
        *o++ = (char)(0x80 | (v & 0x3f));
    } else {
        *o++ = (char)(0xf0 | v >> 18);
        *o++ = (char)(0x80 | (v >> 12 & 0x3f));
        *o++ = (char)(0x80 | (v >> 6 & 0x3f));
        *o++ = (char)(0x80 | (v & 0x3f));
    }
    return o;
}

/* The escape behind a backslash; j->at is behind it. Never longer than what it replaces. */
static char *escape(struct zt_json *j, char *o) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = j->at < j->n ? j->text[j->at++] : '\0';
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *o++ = to[simple - from];
        return o;
    }
    int32_t v = c == 'u' ? code_unit(j, j->at) : -1;
    if (v >= 0) j->at += 4;
    if (v >= 0xd800 && v < 0xdc00 && j->at + 6 <= j->n && j->text[j->at] == '\\' && j->text[j->at + 1] == 'u') {
        const int32_t low = code_unit(j, j->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
            j->at += 6;
        }
    }
    if (v <= 0 || (v >= 0xd800 && v < 0xe000)) { /* U+0000 would end a name early */
        zt_json_fail(j, "bad escape in a string");
        return o;
    }
    return put_utf8(o, v);
}

const char *zt_json_string(struct zt_json *j, size_t *n) {
    *n = 0;
    if (!take(j, '"', "a string")) return "";
    char *begin = j->text + j->at, *o = begin;
    for (;;) {
        if (j->rc) return "";
        if (j->at >= j->n) {
            zt_json_fail(j, "the string does not end");
            return "";
        }
        const unsigned char c = (unsigned char)j->text[j->at];
        if (c == '"') break;
        if (c == '\\') {
            j->at++;
            o = escape(j, o);
            continue;
        }
        const size_t len = c < ' ' ? 0 : utf8((const unsigned char *)j->text + j->at, j->n - j->at);
        if (len == 0) {
            zt_json_fail(j, c < ' ' ? "control character in a string" : "the text is not UTF-8");
            return "";
        }
        memmove(o, j->text + j->at, len);
        o += len;
        j->at += len;
    }
    j->at++; /* the closing quote's place takes the NUL */
    *o = '\0';
    *n = (size_t)(o - begin);
    return begin;
}

const char *zt_json_key(struct zt_json *j, size_t *n) {
    j->path[j->depth].name = NULL;
    const char *key = zt_json_string(j, n);
    if (!j->rc) j->path[j->depth].name = key;
    take(j, ':', "':'");
    return key;
}

int zt_json_field(struct zt_json *j, const char *const *names, int count, uint64_t optional, uint64_t *seen) {
    size_t n;
    if (!zt_json_more(j)) {
        for (int i = 0; i < count && !j->rc; i++)
            if (!((*seen | optional) >> i & 1)) zt_json_fail(j, "'%s' is missing", names[i]);
        return -1;
    }
    const char *key = zt_json_key(j, &n);
    if (j->rc) return -1;
    for (int i = 0; i < count; i++) {
        if (strcmp(key, names[i]) != 0) continue;
        if (*seen >> i & 1) {
            zt_json_fail(j, "is there twice");
            return -1;
        }
        *seen |= (uint64_t)1 << i;
        return i;
    }
    zt_json_fail(j, "is not a field that belongs here");
    return -1;
}

/* ---- values ---- */

void zt_json_copy(struct zt_json *j, char *out, size_t room) {
    size_t n;
    const char *s = zt_json_string(j, &n);
    out[0] = '\0';
    if (j->rc) return;
    if (n >= room) {
        zt_json_fail(j, "longer than %zu bytes", room - 1);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || s[i] == 0x7f) {
            zt_json_fail(j, "control character");
            return;
        }
    memcpy(out, s, n + 1);
}

void zt_json_hex(struct zt_json *j, uint8_t *out, size_t bytes) {
    size_t n;
    const char *s = zt_json_string(j, &n);
    memset(out, 0, bytes);
    if (j->rc) return;
    bool good = n == 2 * bytes;
    for (size_t i = 0; good && i < n; i++) {
        const int d = s[i] >= 'A' && s[i] <= 'F' ? -1 : hex_digit((unsigned char)s[i]);
        good = d >= 0;
        if (good) out[i / 2] = (uint8_t)(out[i / 2] << 4 | d);
    }
    if (!good) zt_json_fail(j, "expected %zu hexadecimal digits", 2 * bytes);
}

int64_t zt_json_whole(struct zt_json *j, int64_t least, int64_t most) {
    if (j->rc) return least;
    int c = peek(j);
    const bool minus = c == '-';
    size_t at = j->at + (minus ? 1 : 0), first = at;
    uint64_t v = 0;
    bool large = false;
    for (; at < j->n && j->text[at] >= '0' && j->text[at] <= '9'; at++)
        large = large || __builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(j->text[at] - '0'), &v);
    if (at == first || (at - first > 1 && j->text[first] == '0') || (at < j->n && strchr(".eE", j->text[at]) && j->text[at])) {
        zt_json_fail(j, "expected a whole number");
        return least;
    }
    large = large || v > (uint64_t)INT64_MAX;
    const int64_t value = large ? 0 : minus ? -(int64_t)v : (int64_t)v;
    if (large || value < least || value > most) {
        zt_json_fail(j, "the number must be from %lld to %lld", (long long)least, (long long)most);
        return least;
    }
    j->at = at;
    return value;
}

static bool word(struct zt_json *j, const char *w) {
    const size_t n = strlen(w);
    if (j->rc || peek(j) < 0 || j->n - j->at < n || memcmp(j->text + j->at, w, n) != 0) return false;
    j->at += n;
    return true;
}

bool zt_json_bool(struct zt_json *j) {
    if (word(j, "true")) return true;
    if (!word(j, "false")) zt_json_fail(j, "expected true or false");
    return false;
}

bool zt_json_null(struct zt_json *j) { return word(j, "null"); }

int zt_json_end(struct zt_json *j) {
    if (!j->rc && peek(j) != -1) zt_json_fail(j, "there is more behind the end");
    return j->rc;
}

/* ---- writing ---- */

static bool room_for(struct zt_text *t, size_t more) {
    if (t->failed) return false;
    if (t->n + more + 1 <= t->room) return true;
    size_t room = t->room ? t->room : 4096;
    while (room < t->n + more + 1) room *= 2;
    char *bigger = realloc(t->at, room);
    t->failed = !bigger;
    if (!bigger) return false;
    t->at = bigger;
    t->room = room;
    return true;
}

void zt_text_add(struct zt_text *t, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        t->failed = true;
    else if (room_for(t, (size_t)n)) {
        vsnprintf(t->at + t->n, (size_t)n + 1, fmt, again);
        t->n += (size_t)n;
    }
    va_end(again);
}

void zt_text_string(struct zt_text *t, const char *s) {
    zt_text_add(t, "\"");
    while (*s) {
        const size_t n = strcspn(s, "\"\\\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
                                    "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f");
        zt_text_add(t, "%.*s", (int)n, s);
        s += n;
        if (*s == '\n')
            zt_text_add(t, "\\n");
        else if (*s == '"' || *s == '\\')
            zt_text_add(t, "\\%c", *s);
        else if (*s)
            zt_text_add(t, "\\u%04x", (unsigned)(unsigned char)*s);
        if (*s) s++;
    }
    zt_text_add(t, "\"");
}

void zt_text_hex(struct zt_text *t, const uint8_t *b, size_t n) {
    zt_text_add(t, "\"");
    for (size_t i = 0; i < n; i++) zt_text_add(t, "%02x", b[i]);
    zt_text_add(t, "\"");
}
