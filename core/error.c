/* SPDX-License-Identifier: Apache-2.0 */
/* core/error.c: filling struct zt_error. No allocation, no shared state; any thread. A message that
 * does not fit is cut at a UTF-8 character and ends in "..." so that a reader sees it was cut. */
#include "core/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* msg holds `wanted` bytes' worth of text cut at its size: mark the cut. */
static void mark_cut(char *msg, size_t size) {
    size_t end = size - 1 - 3;
    while (end > 0 && ((unsigned char)msg[end] & 0xC0u) == 0x80u)
        end--; /* never leave half a character */
    memcpy(msg + end, "...", 4);
}

static void format_into(char *msg, size_t size, const char *fmt, va_list ap) {
    int n = vsnprintf(msg, size, fmt, ap);
    if (n < 0)
        snprintf(msg, size, "(message could not be formatted)");
    else if ((size_t)n >= size)
        mark_cut(msg, size);
    for (size_t len = strlen(msg); len > 0 && msg[len - 1] == '\n'; len--) msg[len - 1] = '\0';
}

int zt_fail(struct zt_error *err, int code, const char *fmt, ...) {
    ZT_ASSERT(code < 0);
    if (!err) return code;
    /* Formatted aside first: an argument may point into err->msg itself. */
    char text[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    format_into(text, sizeof text, fmt, ap);
    va_end(ap);
    err->code = code;
    memcpy(err->msg, text, strlen(text) + 1);
    return code;
}

int zt_fail_prefix(struct zt_error *err, const char *fmt, ...) {
    if (!err) return ZT_EINTERNAL;
    char prefix[sizeof err->msg];
    char rest[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    format_into(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(rest, err->msg, sizeof rest);
    rest[sizeof rest - 1] = '\0';
    size_t np = strlen(prefix), nr = strlen(rest), size = sizeof err->msg;
    bool cut = np + 2 + nr >= size;
    if (np > size - 3) np = size - 3;
    memcpy(err->msg, prefix, np);
    memcpy(err->msg + np, ": ", 2);
    size_t room = size - 1 - (np + 2);
    if (nr > room) nr = room;
    memcpy(err->msg + np + 2, rest, nr);
    err->msg[np + 2 + nr] = '\0';
    if (cut) mark_cut(err->msg, size);
    return err->code;
}

const char *zt_code_name(int code) {
    switch ((enum zt_code)code) {
    case ZT_OK:
        return "ok";
    case ZT_EINVAL:
        return "invalid";
    case ZT_ENOMEM:
        return "out of host memory";
    case ZT_EIO:
        return "input/output";
    case ZT_ENOTFOUND:
        return "not found";
    case ZT_EAUTH:
        return "not authenticated";
    case ZT_ECONFLICT:
        return "conflict";
    case ZT_EUNREACHABLE:
        return "unreachable";
    case ZT_ENOPLACE:
        return "cannot be placed";
    case ZT_EVERSION:
        return "version mismatch";
    case ZT_ECANCELLED:
        return "cancelled";
    case ZT_EOOM:
        return "out of device memory";
    case ZT_ECOMM:
        return "collective failed";
    case ZT_EPEER:
        return "peer lost";
    case ZT_EMISMATCH:
        return "collective mismatch";
    case ZT_ETIMEOUT:
        return "timed out";
    case ZT_EDATA:
        return "data set";
    case ZT_ENAN:
        return "not a number";
    case ZT_EDIVERGED:
        return "replicas diverged";
    case ZT_EUNSUPPORTED:
        return "not in this version";
    case ZT_EPROTO:
        return "protocol";
    case ZT_EBUSY:
        return "busy";
    case ZT_EINTERNAL:
        return "internal";
    case ZT_ECORRUPT:
        return "corrupt";
    }
    return "unknown";
}

void zt_assert_failed(const char *expr, const char *file, int line) {
    fprintf(stderr,
            "ztrain: %s:%d: broken invariant: %s; this is a defect of ztrain, please report it\n",
            file, line, expr);
    fflush(stderr);
    abort();
}
