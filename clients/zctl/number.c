/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/number.c: see number.h. */
#include "clients/zctl/number.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/out.h"

#define DIGITS 40 /* more than any count has */

/* digits x 10^scale, digits without zeros at either end (none: 0); zeros: seen after the last of them. */
struct decimal { char digits[DIGITS]; int n; long zeros, scale; };

/* What follows a number, as a hint of what was meant. */
static const struct { const char *suffix, *power; } suffixes[] = {
    {"k", "e3"}, {"K", "e3"}, {"M", "e6"}, {"B", "e9"}, {"G", "e9"}, {"T", "e12"},
    {"kB", "e3"}, {"KB", "e3"}, {"MB", "e6"}, {"GB", "e9"}, {"TB", "e12"}, {"GB/s", "e9"}, {"MB/s", "e6"}};

static int refuse(const char *option, const char *text, struct zt_error *err, const char *why) {
    char *safe = zt_escape(text, strnlen(text, 40), false);
    int rc = zt_fail(err, ZT_EINVAL, "%s \"%s\": %s", option, safe ? safe : "", why);
    free(safe);
    return rc;
}

/* Something stands behind the number, or there is none. */
static int refuse_rest(const char *option, const char *text, const char *rest, const char *wanted, struct zt_error *err) {
    char why[200];
    int head = (int)(rest - text);
    for (size_t i = 0; head > 0 && head < 40 && i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (strcmp(rest, suffixes[i].suffix) == 0) {
            bool power = memchr(text, 'e', (size_t)head) || memchr(text, 'E', (size_t)head);
            snprintf(why, sizeof why, "suffixes are not read%s%.*s%s; expected %s", power ? "" : ": write ",
                     power ? 0 : head, text, power ? "" : suffixes[i].power, wanted);
            return refuse(option, text, err, why);
        }
    if (head > 0 && (*rest == ',' || *rest == '_' || *rest == '\''))
        snprintf(why, sizeof why, "leave out the separators; expected %s", wanted);
    else
        snprintf(why, sizeof why, "expected %s", wanted);
    return refuse(option, text, err, why);
}

static void put(struct decimal *d, char digit, bool *long_) {
    if (digit == '0') {
        d->zeros += d->n > 0;
        return;
    }
    *long_ = *long_ || d->n + d->zeros >= DIGITS;
    for (; d->zeros > 0 && !*long_; d->zeros--)
        d->digits[d->n++] = '0';
    if (!*long_)
        d->digits[d->n++] = digit;
}

/* Reads as far as it is a number; the rest of the text, or `text` itself when it does not begin with one. */
static const char *scan(const char *text, struct decimal *d, bool *long_) {
    const char *p = text;
    bool some = false;
    *d = (struct decimal){.n = 0};
    for (; isdigit((unsigned char)*p); p++, some = true)
        put(d, *p, long_);
    if (*p == '.' && some && isdigit((unsigned char)p[1]))
        for (p++; isdigit((unsigned char)*p); p++, d->scale--)
            put(d, *p, long_);
    if (!some)
        return text;
    const char *e = p + 1 + (p[0] && (p[1] == '+' || p[1] == '-'));
    if ((*p == 'e' || *p == 'E') && isdigit((unsigned char)*e)) {
        errno = 0;
        long power = strtol(p + 1, (char **)(uintptr_t)&p, 10);
        d->scale += power > 99999 ? 99999 : power < -99999 ? -99999 : power;
    }
    d->scale += d->zeros;
    return p;
}

int zt_number_count(const char *option, const char *text, int64_t min, int64_t max, int64_t *out,
                    struct zt_error *err) {
    struct decimal d;
    bool long_ = false;
    char why[160], wanted[96];
    snprintf(wanted, sizeof wanted, max >= 1000000000 ? "a whole number such as 1e9, 7.5e9 or 8030261248"
                                                      : "a whole number from %lld to %lld",
             (long long)min, (long long)max);
    const char *rest = scan(text, &d, &long_);
    if (rest == text || *rest)
        return refuse_rest(option, text, rest, wanted, err);
    if (d.n > 0 && !long_ && d.scale < 0) {
        snprintf(why, sizeof why, "is not whole; expected %s", wanted);
        return refuse(option, text, err, why);
    }
    int64_t v = 0;
    bool over = long_ || (d.n > 0 && d.n + d.scale > 18);
    for (int i = 0; i < d.n && !over; i++)
        v = v * 10 + (d.digits[i] - '0');
    for (long i = 0; d.n > 0 && i < d.scale && !over; i++)
        v *= 10;
    if (over || v > max || v < min) {
        snprintf(why, sizeof why, "is not from %lld to %lld", (long long)min, (long long)max);
        return refuse(option, text, err, why);
    }
    *out = v;
    return 0;
}

int zt_number_real(const char *option, const char *text, double min, double max, double *out, struct zt_error *err) {
    struct decimal d;
    bool long_ = false;
    const char *rest = scan(text, &d, &long_);
    if (rest == text || *rest)
        return refuse_rest(option, text, rest, "a number above 0, such as 25e9 or 0.14", err);
    double v = strtod(text, NULL);
    if (!isfinite(v) || v < min || v > max) {
        char why[80];
        snprintf(why, sizeof why, "is not from %g to %g", min, max);
        return refuse(option, text, err, why);
    }
    *out = v;
    return 0;
}
