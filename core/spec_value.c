/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_value.c: numbers and booleans of run.yaml by our own rules, and values as text. Pure.
 * The caller has set the C locale on its thread. */
#include "core/spec_schema.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Numbers have a point, whatever the user's locale says. */
locale_t zt_c_locale_enter(locale_t *c) {
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

void zt_c_locale_leave(locale_t c, locale_t before) {
    if (!c)
        return;
    uselocale(before);
    freelocale(c);
}

const char *zt_value_show(const char *text, char *buf, size_t n) {
    size_t used = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && used + 4 < n; p++)
        buf[used++] = *p < 0x20 || *p == 0x7f ? '?' : (char)*p;
    size_t at = used;
    while (at > 0 && ((unsigned char)buf[at - 1] & 0xC0) == 0x80)
        at--; /* a character cut in its middle goes */
    if (strlen(text) > used) {
        used = at > 0 && (unsigned char)buf[at - 1] >= 0xC0 ? at - 1 : used;
        memcpy(buf + used, "...", 3);
        used += 3;
    }
    buf[used] = '\0';
    return buf;
}

/* Shape of a numeral. */
struct numeral {
    bool ok, leading_zero, hex, underscore, point, exponent;
    bool infinite; /* .inf, .nan and their spellings */
};

static struct numeral look(const char *s) {
    struct numeral f = {0};
    if (*s == '+' || *s == '-')
        s++;
    if (strcasecmp(s, ".inf") == 0 || strcasecmp(s, ".nan") == 0 || strcasecmp(s, "inf") == 0 ||
        strcasecmp(s, "nan") == 0 || strcasecmp(s, "infinity") == 0) {
        f.infinite = true;
        return f;
    }
    if (s[0] == '0' && s[1] && strchr("xXoObB", s[1])) {
        f.hex = true;
        return f;
    }
    f.underscore = isdigit((unsigned char)s[0]) && strspn(s, "0123456789_.") == strlen(s) &&
                   strchr(s, '_') != NULL;
    f.leading_zero = s[0] == '0' && isdigit((unsigned char)s[1]);
    size_t whole = strspn(s, "0123456789"), part = 0;
    s += whole;
    if (*s == '.') {
        f.point = true;
        s++;
        part = strspn(s, "0123456789");
        s += part;
    }
    if (whole + part > 0 && (*s == 'e' || *s == 'E')) {
        f.exponent = true;
        s++;
        s += *s == '+' || *s == '-';
        size_t digits = strspn(s, "0123456789");
        s += digits;
        if (digits == 0)
            return f;
    }
    f.ok = whole + part > 0 && *s == '\0';
    return f;
}

/* What is wrong with a numeral of either kind; NULL when nothing is. */
static const char *common(const char *text, bool plain, struct numeral f, const char *wanted,
                          char *buf, size_t n) {
    char show[64];
    zt_value_show(text, show, sizeof show);
    if (text[0] == '\0')
        snprintf(buf, n, "has no value; expected %s", wanted);
    else if (!plain && f.ok)
        snprintf(buf, n, "\"%s\" in quotes is text; write %s without quotes", show, show);
    else if (f.infinite)
        snprintf(buf, n, "%s is not a finite number", show);
    else if (f.hex)
        snprintf(buf, n, "%s: only decimal numbers are read; write it in decimal", show);
    else if (f.underscore)
        snprintf(buf, n, "%s: underscores in numbers are not read; leave them out", show);
    else if (f.leading_zero && f.ok)
        snprintf(buf, n, "%s is ambiguous (octal or decimal?); write it without the leading zero",
                 show);
    else if (!f.ok)
        snprintf(buf, n, "\"%s\" is not %s", show, wanted);
    else
        return NULL;
    return buf;
}

const char *zt_value_float(const char *text, bool plain, double *v, char *buf, size_t n) {
    const char *why = common(text, plain, look(text), "a number", buf, n);
    if (why)
        return why;
    char show[64];
    errno = 0;
    double d = strtod(text, NULL);
    if (!isfinite(d)) {
        snprintf(buf, n, "%s is too large for a number here", zt_value_show(text, show, sizeof show));
        return buf;
    }
    if (errno == ERANGE && d == 0) {
        snprintf(buf, n, "%s is too small: it would be read as 0",
                 zt_value_show(text, show, sizeof show));
        return buf;
    }
    *v = d == 0 ? 0 : d; /* no -0 */
    return NULL;
}

const char *zt_value_int(const char *text, bool plain, int64_t *v, char *buf, size_t n) {
    struct numeral f = look(text);
    const char *why = common(text, plain, f, "a whole number", buf, n);
    if (why)
        return why;
    char show[64];
    zt_value_show(text, show, sizeof show);
    if (f.point || f.exponent) {
        double d = strtod(text, NULL);
        if (fabs(d) < 1e15 && d == floor(d))
            snprintf(buf, n, "%s: a count is written in digits; write %.0f", show, d);
        else
            snprintf(buf, n, "%s is not a whole number", show);
        return buf;
    }
    errno = 0;
    long long i = strtoll(text, NULL, 10);
    if (errno == ERANGE) {
        snprintf(buf, n, "%s is too large for a whole number here", show);
        return buf;
    }
    *v = i;
    return NULL;
}

const char *zt_value_bool(const char *text, bool plain, bool *v, char *buf, size_t n) {
    static const char *const yes[] = {"true", "yes", "on", "y", "1"};
    static const char *const no[] = {"false", "no", "off", "n", "0"};
    if (plain && strcmp(text, "true") == 0) {
        *v = true;
        return NULL;
    }
    if (plain && strcmp(text, "false") == 0) {
        *v = false;
        return NULL;
    }
    char show[64];
    zt_value_show(text, show, sizeof show);
    const char *hint = NULL;
    for (int i = 0; i < 5; i++) {
        hint = strcasecmp(text, yes[i]) == 0 ? "true" : hint;
        hint = strcasecmp(text, no[i]) == 0 ? "false" : hint;
    }
    if (text[0] == '\0')
        snprintf(buf, n, "has no value; expected true or false");
    else if (hint && !plain)
        snprintf(buf, n, "\"%s\" in quotes is text; write %s without quotes", show, hint);
    else if (hint)
        snprintf(buf, n, "\"%s\" is not true or false; write %s", show, hint);
    else
        snprintf(buf, n, "\"%s\" is not true or false", show);
    return buf;
}

const char *zt_value_print(double v, char *buf, size_t n) {
    if (v == floor(v) && fabs(v) < 1e15) {
        snprintf(buf, n, "%.0f", v);
        return buf;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, n, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    return buf;
}

/* Quoted unless it is a word that every YAML reader takes as the same text. */
static size_t put_string(const char *s, char *buf, size_t n) {
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+@-";
    size_t used = 0;
    if (s[0] && strspn(s, safe) == strlen(s) && (isalpha((unsigned char)s[0]) || s[0] == '/')) {
        snprintf(buf, n, "%s", s);
        return strlen(buf);
    }
    buf[used++] = '"';
    for (; *s && used + 4 < n; s++) {
        if (*s == '"' || *s == '\\')
            buf[used++] = '\\';
        buf[used++] = *s;
    }
    buf[used++] = '"';
    buf[used] = '\0';
    return used;
}

static void put_list(const struct zt_strings *l, char *buf, size_t n) {
    size_t used = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < l->n; i++) {
        if (i)
            used += (size_t)snprintf(buf + used, n - used, ", ");
        used += put_string(l->item[i], buf + used, n - used);
    }
    snprintf(buf + used, n - used, "]");
}

static void put_labels(const struct zt_labels *l, char *buf, size_t n) {
    size_t used = (size_t)snprintf(buf, n, "{");
    for (int i = 0; i < l->n; i++) {
        if (i)
            used += (size_t)snprintf(buf + used, n - used, ", ");
        used += put_string(l->item[i].key, buf + used, n - used);
        used += (size_t)snprintf(buf + used, n - used, ": ");
        used += put_string(l->item[i].value, buf + used, n - used);
    }
    snprintf(buf + used, n - used, "}");
}

static void put_sources(const struct zt_sources *l, char *buf, size_t n) {
    char number[40];
    size_t used = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < l->n; i++) {
        used += (size_t)snprintf(buf + used, n - used, "%s{path: ", i ? ", " : "");
        used += put_string(l->item[i].path, buf + used, n - used);
        used += (size_t)snprintf(buf + used, n - used, ", weight: %s}",
                                 zt_value_print(l->item[i].weight, number, sizeof number));
    }
    snprintf(buf + used, n - used, "]");
}

static const char *name_of(const struct zt_key *k, int value) {
    for (const struct zt_key_name *m = k->names; m && m->name; m++)
        if (m->value == value)
            return m->name;
    return NULL;
}

static void put_float(const struct zt_key *k, double v, char *buf, size_t n) {
    if (k->names && name_of(k, (int)v) && v == 0)
        snprintf(buf, n, "%s", name_of(k, 0));
    else if ((k->flags & ZT_KEY_ZERO_UNSET) && v <= k->min)
        buf[0] = '\0';
    else
        zt_value_print(v, buf, n);
}

const char *zt_schema_text(const struct zt_spec *s, const struct zt_key *k, char *buf, size_t n) {
    const char *at = (const char *)s + (k->offset == ZT_KEY_NOWHERE ? 0 : k->offset);
    int64_t i = 0;
    const char *name;
    buf[0] = '\0';
    switch (k->kind) {
    case ZT_KEY_SECTION:
        break;
    case ZT_KEY_INT:
    case ZT_KEY_INT64:
        i = k->kind == ZT_KEY_INT ? *(const int *)(const void *)at
                                  : *(const int64_t *)(const void *)at;
        if (i != 0 || !(k->flags & ZT_KEY_ZERO_UNSET))
            snprintf(buf, n, "%lld", (long long)i);
        break;
    case ZT_KEY_FLOAT:
        put_float(k, *(const double *)(const void *)at, buf, n);
        break;
    case ZT_KEY_BOOL:
        snprintf(buf, n, "%s", *(const bool *)(const void *)at ? "true" : "false");
        break;
    case ZT_KEY_ENUM:
    case ZT_KEY_ENUM_INT:
        name = name_of(k, *(const int *)(const void *)at);
        if (name)
            snprintf(buf, n, "%s", name);
        else if (k->kind == ZT_KEY_ENUM_INT)
            snprintf(buf, n, "%d",
                     *(const int *)(const void *)((const char *)s + k->offset2));
        break;
    case ZT_KEY_STRING:
        if (at[0])
            put_string(at, buf, n);
        break;
    case ZT_KEY_LIST:
        put_list((const struct zt_strings *)(const void *)at, buf, n);
        break;
    case ZT_KEY_LABELS:
        put_labels((const struct zt_labels *)(const void *)at, buf, n);
        break;
    case ZT_KEY_SOURCES:
        put_sources((const struct zt_sources *)(const void *)at, buf, n);
        break;
    }
    return buf;
}
