/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_set.c: one scalar of run.yaml into the field of its row. Pure. */
#include <stdio.h>
#include <string.h>
#include "core/spec_schema.h"
#include "core/units.h"

static bool in_range(const struct zt_key *k, double v) {
    if ((k->flags & ZT_KEY_NOT_ZERO) && v == 0)
        return false;
    if ((k->flags & ZT_KEY_ABOVE_MIN) ? v <= k->min : v < k->min)
        return false;
    return (k->flags & ZT_KEY_BELOW_MAX) ? v < k->max : v <= k->max;
}

static const char *out_of_range(const struct zt_key *k, const char *text, char *why, size_t n) {
    char show[64], range[96];
    snprintf(why, n, "%s is out of range: must be %s", zt_value_show(text, show, sizeof show),
             zt_schema_range(k, range, sizeof range));
    return why;
}

static const char *set_int(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                           char *why, size_t n) {
    int64_t v;
    const char *bad = zt_value_int(node->text, node->plain, &v, why, n);
    if (bad)
        return bad;
    if (!in_range(k, (double)v))
        return out_of_range(k, node->text, why, n);
    if (k->kind == ZT_KEY_INT)
        *(int *)zt_schema_field(s, k) = (int)v;
    else
        *(int64_t *)zt_schema_field(s, k) = v;
    return NULL;
}

static const char *set_float(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                             char *why, size_t n) {
    double v;
    const char *text = node->text;
    bool plain = node->plain;
    for (const struct zt_key_name *m = k->names; m && m->name; m++)
        if (strcmp(m->name, text) == 0) {
            *(double *)zt_schema_field(s, k) = m->value;
            return NULL;
        }
    if ((k->flags & ZT_KEY_AT_LEAST) && strncmp(text, ">=", 2) == 0) {
        text += 2 + strspn(text + 2, " ");
        plain = true;
    }
    const char *bad = zt_value_float(text, plain, &v, why, n);
    if (bad)
        return bad;
    if (!in_range(k, v))
        return out_of_range(k, text, why, n);
    *(double *)zt_schema_field(s, k) = v;
    return NULL;
}

static const char *unknown_value(const struct zt_key *k, const char *text, char *why, size_t n) {
    char show[64], list[300];
    const char *names[32];
    int count = 0;
    for (const struct zt_key_name *m = k->names; m->name && count < 32; m++)
        names[count++] = m->name;
    const char *foreign = zt_schema_foreign_value(k->path, text);
    const char *hint = zt_schema_value_alias(k->path, text);
    if (!hint)
        hint = zt_nearest(text, names, count);
    zt_value_show(text, show, sizeof show);
    if (foreign)
        snprintf(why, n, "\"%s\" is %s; it is one of: %s", show, foreign, zt_schema_names(k, list, sizeof list));
    else if (hint)
        snprintf(why, n, "\"%s\" is not known (did you mean \"%s\"?)", show, hint);
    else
        snprintf(why, n, "\"%s\" is not known; it is one of: %s", show,
                 zt_schema_names(k, list, sizeof list));
    return why;
}

static const char *set_enum(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                            char *why, size_t n) {
    for (const struct zt_key_name *m = k->names; m->name; m++)
        if (strcmp(m->name, node->text) == 0) {
            *(int *)zt_schema_field(s, k) = m->value;
            return NULL;
        }
    int64_t v;
    if (k->kind != ZT_KEY_ENUM_INT || zt_value_int(node->text, node->plain, &v, why, n))
        return unknown_value(k, node->text, why, n);
    if (!in_range(k, (double)v))
        return out_of_range(k, node->text, why, n);
    *(int *)zt_schema_field(s, k) = k->int_value;
    *(int *)(void *)((char *)s + k->offset2) = (int)v;
    return NULL;
}

const char *zt_schema_put(const char *text, char *to, size_t size, char *why, size_t n) {
    size_t len = strlen(text);
    if (len == 0)
        snprintf(why, n, "has no value");
    else if (len >= size)
        snprintf(why, n, "%zu characters; at most %zu", len, size - 1);
    else {
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
                snprintf(why, n, "has a control character at position %zu", i + 1);
                return why;
            }
        memcpy(to, text, len + 1);
        return NULL;
    }
    return why;
}

static const char *set_string(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                              char *why, size_t n) {
    if (!k->names)
        return zt_schema_put(node->text, zt_schema_field(s, k), k->size, why, n);
    for (const struct zt_key_name *m = k->names; m->name; m++)
        if (strcmp(m->name, node->text) == 0)
            return zt_schema_put(node->text, zt_schema_field(s, k), k->size, why, n);
    return unknown_value(k, node->text, why, n);
}

const char *zt_schema_set(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                              char *why, size_t n) {
    switch (k->kind) {
    case ZT_KEY_INT:
    case ZT_KEY_INT64: return set_int(s, k, node, why, n);
    case ZT_KEY_FLOAT: return set_float(s, k, node, why, n);
    case ZT_KEY_BOOL: return zt_value_bool(node->text, node->plain, zt_schema_field(s, k), why, n);
    case ZT_KEY_ENUM:
    case ZT_KEY_ENUM_INT: return set_enum(s, k, node, why, n);
    case ZT_KEY_STRING: return set_string(s, k, node, why, n);
    case ZT_KEY_SECTION:
    case ZT_KEY_LABELS: snprintf(why, n, "expected keys below it (a mapping), got a single value"); break;
    case ZT_KEY_LIST:
    case ZT_KEY_SOURCES: snprintf(why, n, "expected a list: [a, b]"); break;
    }
    return why;
}

void zt_schema_default(struct zt_spec *s, const struct zt_key *k) {
    char why[300], text[64];
    if (!k->fallback || k->kind == ZT_KEY_LIST)
        return;
    snprintf(text, sizeof text, "%s", k->fallback);
    struct zt_node n = {.kind = ZT_NODE_SCALAR, .plain = true, .text = text};
    const char *bad = zt_schema_set(s, k, &n, why, sizeof why);
    ZT_ASSERT(bad == NULL);
}
