/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec.c: run.yaml into struct zt_spec and back, all by the table of core/spec_schema.c. Pure
 * apart from malloc; the C locale is set for the calling thread while numbers are read or printed. */
#include "core/spec.h"
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include "core/modes.h"
#include "core/spec_schema.h"
#include "core/units.h"

struct parse {
    struct zt_spec *spec;
    struct zt_problems problems;
    const char *file;
    const struct zt_mode_word *mode_word; /* the mode was given in other words: as mode_text, */
    const char *mode_text, *mode_key;     /* under the key mode_key (NULL: mode) */
};

/* Numbers have a point, whatever the user's locale says. */
static locale_t enter_c_locale(locale_t *c) {
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

static void leave_c_locale(locale_t c, locale_t before) {
    if (!c)
        return;
    uselocale(before);
    freelocale(c);
}

/* ---------------------------------------------------------------------------------- values */

/* The field of row k. */
static void *field(struct zt_spec *s, const struct zt_key *k) { return (char *)s + k->offset; }

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
        *(int *)field(s, k) = (int)v;
    else
        *(int64_t *)field(s, k) = v;
    return NULL;
}

static const char *set_float(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                             char *why, size_t n) {
    double v;
    const char *text = node->text;
    bool plain = node->plain;
    for (const struct zt_key_name *m = k->names; m && m->name; m++)
        if (strcmp(m->name, text) == 0) {
            *(double *)field(s, k) = m->value;
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
    *(double *)field(s, k) = v;
    return NULL;
}

static const char *unknown_value(const struct zt_key *k, const char *text, char *why, size_t n) {
    char show[64], list[300];
    const char *names[32];
    int count = 0;
    for (const struct zt_key_name *m = k->names; m->name && count < 32; m++)
        names[count++] = m->name;
    const char *hint = zt_schema_value_alias(k->path, text);
    if (!hint)
        hint = zt_nearest(text, names, count);
    zt_value_show(text, show, sizeof show);
    if (hint)
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
            *(int *)field(s, k) = m->value;
            return NULL;
        }
    int64_t v;
    if (k->kind != ZT_KEY_ENUM_INT || zt_value_int(node->text, node->plain, &v, why, n))
        return unknown_value(k, node->text, why, n);
    if (!in_range(k, (double)v))
        return out_of_range(k, node->text, why, n);
    *(int *)field(s, k) = k->int_value;
    *(int *)(void *)((char *)s + k->offset2) = (int)v;
    return NULL;
}

/* One string into to[size], or why not. */
static const char *put_text(const char *text, char *to, size_t size, char *why, size_t n) {
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
        return put_text(node->text, field(s, k), k->size, why, n);
    for (const struct zt_key_name *m = k->names; m->name; m++)
        if (strcmp(m->name, node->text) == 0)
            return put_text(node->text, field(s, k), k->size, why, n);
    return unknown_value(k, node->text, why, n);
}

/* NULL, or the reason why the scalar does not fit the row. */
static const char *set_scalar(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node,
                              char *why, size_t n) {
    switch (k->kind) {
    case ZT_KEY_INT:
    case ZT_KEY_INT64: return set_int(s, k, node, why, n);
    case ZT_KEY_FLOAT: return set_float(s, k, node, why, n);
    case ZT_KEY_BOOL: return zt_value_bool(node->text, node->plain, field(s, k), why, n);
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

/* ---------------------------------------------------------------------------------- the tree */

static void node_problem(struct parse *p, const struct zt_node *n, const char *path,
                         const char *why) {
    zt_problem_at(&p->problems, n->key_line, n->key_column, path, "%s", why);
}

/* A value that is wrong in itself is pointed at; what is wrong with its place or with a whole section
 * is told at the key. */
static void value_problem(struct parse *p, int key, const struct zt_node *n, const char *why) {
    bool value = n->kind == ZT_NODE_SCALAR && n->text[0] != '\0';
    if (p->problems.key_bad[key])
        return;
    p->problems.key_bad[key] = true;
    zt_problem_at(&p->problems, value ? n->line : n->key_line, value ? n->column : n->key_column,
                  zt_schema_key(key)->path, "%s", why);
}

static void walk_list(struct parse *p, const struct zt_key *k, const struct zt_node *node) {
    struct zt_strings *l = field(p->spec, k);
    char why[300];
    l->n = 0;
    for (const struct zt_node *c = node->child; c; c = c->next) {
        const char *bad = NULL;
        if (l->n == ZT_SPEC_MAX_LIST)
            bad = "more than 16 items";
        else if (c->kind != ZT_NODE_SCALAR)
            bad = "an item of this list must be a word";
        else
            bad = put_text(c->text, l->item[l->n], sizeof l->item[0], why, sizeof why);
        if (bad) {
            node_problem(p, c, k->path, bad);
            return;
        }
        l->n++;
    }
}

static void walk_labels(struct parse *p, const struct zt_key *k, const struct zt_node *node) {
    struct zt_labels *l = field(p->spec, k);
    char why[300];
    l->n = 0;
    for (const struct zt_node *c = node->child; c; c = c->next) {
        const char *bad = NULL;
        if (l->n == ZT_SPEC_MAX_LIST)
            bad = "more than 16 labels";
        else if (c->kind != ZT_NODE_SCALAR)
            bad = "the value of a label must be a word";
        else {
            bad = put_text(c->key, l->item[l->n].key, sizeof l->item[0].key, why, sizeof why);
            if (!bad)
                bad = put_text(c->text, l->item[l->n].value, sizeof l->item[0].value, why, sizeof why);
        }
        if (bad) {
            node_problem(p, c, k->path, bad);
            return;
        }
        l->n++;
    }
}

/* One {path, weight}; NULL or what is wrong, with the node it is about. */
static const char *walk_source(struct zt_sources *l, const struct zt_node *item, char *why, size_t n) {
    if (item->kind != ZT_NODE_MAP)
        return "an item of this list must be {path: ..., weight: ...}";
    l->item[l->n].weight = 1;
    l->item[l->n].path[0] = '\0';
    for (const struct zt_node *c = item->child; c; c = c->next) {
        const char *bad = "unknown key; a source has path and weight";
        if (c->kind != ZT_NODE_SCALAR)
            bad = "a source's path and weight are single values";
        else if (strcmp(c->key, "path") == 0)
            bad = put_text(c->text, l->item[l->n].path, ZT_PATH_MAX, why, n);
        else if (strcmp(c->key, "weight") == 0) {
            bad = zt_value_float(c->text, c->plain, &l->item[l->n].weight, why, n);
            if (!bad && l->item[l->n].weight <= 0)
                bad = "a weight must be above 0";
        }
        if (bad)
            return bad;
    }
    return l->item[l->n].path[0] ? NULL : "a source needs a path";
}

static void walk_sources(struct parse *p, const struct zt_key *k, const struct zt_node *node) {
    struct zt_sources *l = field(p->spec, k);
    char why[300];
    l->n = 0;
    for (const struct zt_node *c = node->child; c; c = c->next) {
        const char *bad = l->n == ZT_SPEC_MAX_LIST ? "more than 16 sources"
                                                   : walk_source(l, c, why, sizeof why);
        if (bad) {
            node_problem(p, c, k->path, bad);
            return;
        }
        l->n++;
    }
}

static bool below(const char *path, const char *section) {
    size_t n = strlen(section);
    return n == 0 ? strchr(path, '.') == NULL
                  : strncmp(path, section, n) == 0 && path[n] == '.' && !strchr(path + n + 1, '.');
}

/* The last part of a dotted path. */
static const char *leaf(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* A word that is no key of its section: what was meant? Siblings first, then what other programs
 * call it, then the same word elsewhere, then anything near. NULL when nothing is. */
static const char *nearest_key(const char *section, const char *word) {
    const char *names[ZT_SPEC_MAX_KEYS + 128];
    int at[ZT_SPEC_MAX_KEYS + 128], n = 0;
    for (int i = 0; i < zt_schema_count(); i++)
        if (below(zt_schema_key(i)->path, section)) {
            at[n] = i;
            names[n++] = leaf(zt_schema_key(i)->path);
        }
    const char *near = zt_nearest(word, names, n);
    for (int i = 0; i < n && near; i++)
        if (names[i] == near)
            return zt_schema_key(at[i])->path;
    if (zt_schema_alias(word))
        return zt_schema_alias(word);
    n = 0;
    for (int i = 0; i < zt_schema_count(); i++) {
        names[n++] = leaf(zt_schema_key(i)->path);
        if (strcmp(names[i], word) == 0)
            return zt_schema_key(i)->path;
    }
    for (int i = 0; zt_schema_alias_word(i) && n < ZT_SPEC_MAX_KEYS + 128; i++)
        names[n++] = zt_schema_alias_word(i);
    near = zt_nearest(word, names, n);
    if (!near)
        return NULL;
    if (zt_schema_alias(near))
        return zt_schema_alias(near);
    for (int i = 0; i < zt_schema_count(); i++)
        if (names[i] == near)
            return zt_schema_key(i)->path;
    return NULL;
}

static const char *unknown_key(const char *section, const char *word, const char *value, char *why,
                               size_t n) {
    const char *near = nearest_key(section, word);
    if (strchr(word, '.') && zt_schema_find(word) >= 0)
        snprintf(why, n, "a dotted key works with --set only; here write %s below %.*s:", leaf(word),
                 (int)(leaf(word) - word - 1), word);
    else if (near && strstr(word, "stage") && value && strlen(value) == 1 && strchr("123", value[0]))
        snprintf(why, n, "unknown key (did you mean \"%s: zero%s\"?)", near, value);
    else if (near)
        snprintf(why, n, "unknown key (did you mean \"%s\"?)", near);
    else {
        size_t used = (size_t)snprintf(why, n, "unknown key; %s has: ",
                                       section[0] ? section : "the file");
        for (int i = 0, first = 1; i < zt_schema_count() && used < n; i++)
            if (below(zt_schema_key(i)->path, section)) {
                used += (size_t)snprintf(why + used, n - used, "%s%s", first ? "" : ", ",
                                         leaf(zt_schema_key(i)->path));
                first = 0;
            }
    }
    return why;
}

/* A mode by its own name, else by one of other programs: what that means is applied when all keys are read. */
static const char *set_mode(struct parse *p, const struct zt_key *k, const struct zt_node *node, char *why,
                            size_t n) {
    const struct zt_mode_word *w = zt_mode_word_find(node->text);
    char show[64], list[160];
    if (!w) {
        snprintf(why, n, "\"%s\" is not known; it is one of: %s (names elsewhere: zctl explain modes)",
                 zt_value_show(node->text, show, sizeof show), zt_schema_names(k, list, sizeof list));
        return why;
    }
    *(int *)field(p->spec, k) = (int)w->mode;
    bool ours = !node->foreign && strcmp(node->text, zt_mode_name(w->mode)) == 0;
    p->mode_word = ours ? NULL : w;
    p->mode_text = node->text;
    p->mode_key = node->foreign;
    return NULL;
}

static bool to_fill_in(const struct zt_node *node) {
    return node->kind == ZT_NODE_SCALAR && strcmp(node->text, ZT_FILL_IN) == 0;
}

static void walk_map(struct parse *p, const struct zt_node *map, const char *section);

static void walk_value(struct parse *p, int i, const struct zt_node *node) {
    const struct zt_key *k = zt_schema_key(i);
    char why[400];
    const char *bad = NULL;
    bool map_ok = k->kind == ZT_KEY_SECTION || (k->flags & ZT_KEY_MAP_TOO);
    p->spec->mark[i].line = node->key_line;
    p->spec->mark[i].column = node->key_column;
    if (to_fill_in(node)) {
        snprintf(why, sizeof why, "%s stands for a value that is still to be given: %s", ZT_FILL_IN, k->help);
        bad = why;
    } else if (node->kind == ZT_NODE_MAP && map_ok) {
        if (k->kind == ZT_KEY_SECTION && k->offset != ZT_KEY_NOWHERE)
            *(bool *)field(p->spec, k) = true;
        walk_map(p, node, k->path);
    } else if (node->kind == ZT_NODE_MAP && k->kind == ZT_KEY_LABELS)
        walk_labels(p, k, node);
    else if (node->kind == ZT_NODE_LIST && k->kind == ZT_KEY_LIST)
        walk_list(p, k, node);
    else if (node->kind == ZT_NODE_LIST && k->kind == ZT_KEY_SOURCES)
        walk_sources(p, k, node);
    else if (node->kind == ZT_NODE_SCALAR && (k->flags & ZT_KEY_MODE_WORDS))
        bad = set_mode(p, k, node, why, sizeof why);
    else if (node->kind == ZT_NODE_SCALAR)
        bad = set_scalar(p->spec, k, node, why, sizeof why);
    else
        bad = node->kind == ZT_NODE_LIST ? "a list is not expected here"
                                         : "a mapping is not expected here";
    if (bad)
        value_problem(p, i, node, bad);
}

static void walk_map(struct parse *p, const struct zt_node *map, const char *section) {
    for (const struct zt_node *c = map->child; c; c = c->next) {
        char path[200], word[64], why[600];
        zt_value_show(c->key, word, sizeof word);
        snprintf(path, sizeof path, "%s%s%s", section, section[0] ? "." : "", word);
        int i = strchr(c->key, '.') ? -1 : zt_schema_find(path);
        if (i >= 0)
            walk_value(p, i, c);
        else
            node_problem(p, c, path,
                         unknown_key(section, word, c->kind == ZT_NODE_SCALAR ? c->text : NULL, why,
                                     sizeof why));
    }
}

/* ---------------------------------------------------------------------------------- --set */

/* The value of an override as a node: plain text for a scalar row, else YAML. */
static int override_value(struct parse *p, struct zt_tree *t, int key, const char *path,
                          const char *text, struct zt_node **out, struct zt_error *err) {
    const struct zt_key *k = key >= 0 ? zt_schema_key(key) : NULL;
    bool yaml = k && (k->kind == ZT_KEY_SECTION || k->kind == ZT_KEY_LIST ||
                      k->kind == ZT_KEY_LABELS || k->kind == ZT_KEY_SOURCES ||
                      ((k->flags & ZT_KEY_MAP_TOO) && text[0] == '{'));
    (void)p;
    if (yaml) {
        struct zt_tree part;
        char where[240];
        snprintf(where, sizeof where, "--set %s", path);
        int rc = zt_tree_parse(text, strlen(text), where, true, &part, err);
        if (rc)
            return rc;
        *out = part.root;
        struct zt_node **tail = &part.all; /* the big tree takes the nodes over */
        while (*tail)
            tail = &(*tail)->all;
        *tail = t->all;
        t->all = part.all;
        return 0;
    }
    struct zt_node *n = zt_tree_new(t, ZT_NODE_SCALAR);
    if (!n || !(n->text = strdup(text)))
        return zt_fail(err, ZT_ENOMEM, "--set %s: no host memory", path);
    n->plain = true;
    *out = n;
    return 0;
}

/* The child `key` of map, made when it is not there; NULL without memory. */
static struct zt_node *child_of(struct zt_tree *t, struct zt_node *map, const char *key, size_t len) {
    struct zt_node *c = zt_node_get(map, key, len);
    if (c)
        return c;
    c = zt_tree_new(t, ZT_NODE_MAP);
    if (!c || !(c->key = strndup(key, len)))
        return NULL;
    c->line = c->key_line = 1; /* column 0: from --set */
    c->next = map->child;
    map->child = c;
    return c;
}

/* "a.b=value" into the tree. */
static int apply_override(struct parse *p, struct zt_tree *t, const char *text,
                          struct zt_error *err) {
    const char *eq = strchr(text, '=');
    char path[160], why[600];
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof path)
        return zt_fail(err, ZT_EINVAL, "--set %s: write it as key=value, e.g. training.steps=100",
                       zt_value_show(text, why, 80));
    snprintf(path, sizeof path, "%.*s", (int)(eq - text), text);
    const char *foreign = zt_alias_key(path);
    if (foreign)
        snprintf(path, sizeof path, "parallelism.mode");
    int key = zt_schema_find(path);
    if (key < 0 && strncmp(path, "labels.", 7) != 0) {
        const char *dot = strrchr(path, '.');
        char section[160] = "";
        if (dot)
            snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
        bool there = !dot || zt_schema_find(section) >= 0;
        unknown_key(there ? section : "", dot ? dot + 1 : path, eq + 1, why, sizeof why);
        zt_problem_at(&p->problems, 1, 0, path, "%s", why);
        return 0;
    }
    struct zt_node *value = NULL, *at = t->root;
    int rc = override_value(p, t, key, path, eq + 1, &value, err);
    if (rc)
        return rc;
    for (const char *part = path; at; part += strcspn(part, ".") + 1) {
        size_t len = strcspn(part, ".");
        if (at->kind != ZT_NODE_MAP) { /* workers: 8 under --set workers.min=4 */
            at->kind = ZT_NODE_MAP;
            at->child = NULL;
        }
        at = child_of(t, at, part, len);
        if (part[len] == '\0')
            break;
    }
    if (!at)
        return zt_fail(err, ZT_ENOMEM, "--set %s: no host memory", path);
    char *text_copy = value->text;
    at->kind = value->kind;
    at->child = value->child;
    at->plain = value->plain;
    value->text = at->text; /* the release frees both */
    at->text = text_copy;
    at->line = at->key_line = 1;
    at->column = at->key_column = 0;
    at->foreign = foreign;
    return 0;
}

/* ---------------------------------------------------------------------------------- defaults */

void zt_schema_default(struct zt_spec *s, const struct zt_key *k) {
    char why[300], text[64];
    if (!k->fallback || k->kind == ZT_KEY_LIST)
        return;
    snprintf(text, sizeof text, "%s", k->fallback);
    struct zt_node n = {.kind = ZT_NODE_SCALAR, .plain = true, .text = text};
    const char *bad = set_scalar(s, k, &n, why, sizeof why);
    ZT_ASSERT(bad == NULL);
}

static void set_defaults(struct zt_spec *s) {
    for (int i = 0; i < zt_schema_count(); i++)
        zt_schema_default(s, zt_schema_key(i));
    s->training.trainable.n = 1;
    strcpy(s->training.trainable.item[0], "*");
    s->training.lora.targets.n = 2;
    strcpy(s->training.lora.targets.item[0], "*.q_proj");
    strcpy(s->training.lora.targets.item[1], "*.v_proj");
    s->lr_scheduler.decay_ratio = -1;
    s->model.norm_eps = 1e-5;
    s->model.tied_head = true;
    s->model.rope_scaling.factor = 8;
    s->model.rope_scaling.low_freq_factor = 1;
    s->model.rope_scaling.high_freq_factor = 4;
    s->model.rope_scaling.original_max = 8192;
}

/* Presets come before the keys beside them, whatever their order in the file. */
static void start_from_preset(struct parse *p, const struct zt_node *root) {
    const struct zt_node *model = zt_node_get(root, "model", 5);
    const struct zt_node *preset =
        model && model->kind == ZT_NODE_MAP ? zt_node_get(model, "preset", 6) : NULL;
    struct zt_error err;
    if (!preset || preset->kind != ZT_NODE_SCALAR)
        return;
    if (preset->text[0] == '\0' || to_fill_in(preset) ||
        zt_model_preset(preset->text, &p->spec->model, &err) == 0)
        return;
    int key = zt_schema_find("model.preset");
    p->spec->mark[key].line = preset->key_line;
    p->spec->mark[key].column = preset->key_column;
    value_problem(p, key, preset, err.msg);
}

static void require_model(struct parse *p) {
    static const char *const needed[] = {"model.layers", "model.heads", "model.dim",
                                         "model.vocab_size", "model.seq_len_max"};
    struct zt_spec *s = p->spec;
    if (!zt_spec_given(s, "model.tied_head") && s->model.family == ZT_LLAMA)
        s->model.tied_head = false;
    if (!zt_spec_given(s, "model")) {
        zt_problem(&p->problems, zt_schema_find("model"),
                   "missing; give {preset: gpt2-nano}, or its numbers");
        return;
    }
    for (int i = 0; i < 5; i++)
        if (!zt_spec_given(s, needed[i]))
            zt_problem(&p->problems, zt_schema_find(needed[i]),
                       "missing; give it, or start from a preset");
    if (s->model.family == ZT_LLAMA && !zt_spec_given(s, "model.ffn_dim"))
        zt_problem(&p->problems, zt_schema_find("model.ffn_dim"), "missing; llama has no default");
}

/* What follows from other numbers, where it is not given. */
static void derive_model(struct parse *p) {
    struct zt_spec *s = p->spec;
    struct zt_model_config *m = &s->model;
    bool preset = s->preset[0] != 0;
    bool resized = zt_spec_given(s, "model.dim") || zt_spec_given(s, "model.heads");
    if (!preset && !p->problems.key_bad[zt_schema_find("model.preset")])
        require_model(p);
    if (m->heads < 1 || m->dim < 1)
        return;
    if (!zt_spec_given(s, "model.head_dim") && (resized || !preset)) {
        if (m->dim % m->heads != 0)
            zt_problem(&p->problems, zt_schema_find("model.heads"), "%lld does not divide dim %lld",
                       (long long)m->heads, (long long)m->dim);
        m->head_dim = m->dim / m->heads;
    }
    if (!zt_spec_given(s, "model.kv_heads") && (m->family == ZT_GPT2 || !preset))
        m->kv_heads = m->heads;
    if (!zt_spec_given(s, "model.ffn_dim") && m->family == ZT_GPT2 && (zt_spec_given(s, "model.dim") || !preset))
        m->ffn_dim = 4 * m->dim;
    if (m->family == ZT_LLAMA && m->rope_theta == 0)
        m->rope_theta = 500000;
    if (m->family == ZT_GPT2 && !zt_spec_given(s, "model.qkv_bias"))
        m->qkv_bias = true;
}

static void derive_rest(struct zt_spec *s) {
    s->parallelism.mode_given = zt_spec_given(s, "parallelism.mode");
    if (!s->parallelism.mode_given)
        s->parallelism.mode = s->parallelism.shard > 1 ? ZT_FSDP : ZT_DDP;
    if (s->validation.enabled && !zt_spec_given(s, "validation.every_steps"))
        s->validation.every_steps =
            s->training.steps > 0 && s->training.steps < 500 ? s->training.steps : 500;
    if (s->checkpoint.enabled && !s->checkpoint.folder[0])
        memcpy(s->checkpoint.folder, s->name, sizeof s->name);
}

static void check_required(struct parse *p) {
    for (int i = 0; i < zt_schema_count(); i++)
        if ((zt_schema_key(i)->flags & ZT_KEY_REQUIRED) && p->spec->mark[i].line == 0)
            zt_problem(&p->problems, i, "missing%s",
                       strcmp(zt_schema_key(i)->path, "version") == 0 ? "; write version: 1" : "");
}

/* ---------------------------------------------------------------------------------- entry points */

static void check_all(struct parse *p) {
    struct zt_spec *s = p->spec;
    check_required(p);
    derive_model(p);
    derive_rest(s);
    if (p->mode_word)
        zt_alias_apply(&p->problems, s, p->mode_word, p->mode_text, p->mode_key);
    zt_check_alone(&p->problems, s);
    int64_t workers = zt_spec_workers_known(s);
    bool number_bad = p->problems.key_bad[zt_schema_find("workers")];
    if (workers > ZT_PLAN_RANKS_MAX)
        zt_problem(&p->problems, zt_schema_find("parallelism"),
                   "the degrees make %lld workers; at most 65536", (long long)workers);
    else if (workers > 0 && !number_bad) {
        struct zt_spec *copy = malloc(sizeof *copy);
        if (copy) {
            *copy = *s;
            zt_check_mesh(&p->problems, copy, (int)workers);
            free(copy);
        }
    }
    zt_check_supported(&p->problems, s);
}

static int read_tree(struct parse *p, const char *text, size_t bytes, const char *const *overrides,
                     int n_overrides, struct zt_tree *t, struct zt_error *err) {
    int rc = zt_tree_parse(text, bytes, p->file, false, t, err);
    if (rc)
        return rc;
    if (t->root->kind != ZT_NODE_MAP)
        return zt_fail(err, ZT_EINVAL, "%s:%u:%u: not a run file; it starts with keys such as "
                       "\"version: 1\"", p->file, t->root->line, t->root->column);
    zt_alias_keys(&p->problems, t);
    for (int i = 0; i < n_overrides && rc == 0; i++)
        rc = apply_override(p, t, overrides[i], err);
    if (n_overrides > 0)
        zt_alias_keys(&p->problems, t); /* --set parallelism={zero_stage: 3} */
    return rc;
}

static int hash_spec(struct zt_spec *s, struct zt_error *err) {
    char *text = zt_spec_normalise(s);
    if (!text)
        return zt_fail(err, ZT_ENOMEM, "no host memory for the normalised run file");
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    snprintf(s->normalised_hash, sizeof s->normalised_hash, "%016llx%016llx",
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    free(text);
    return 0;
}

int zt_spec_parse(const char *text, size_t bytes, const char *file, const char *const *overrides,
                  int n_overrides, struct zt_spec *spec, struct zt_error *err) {
    struct zt_tree tree = {0};
    locale_t c, before = enter_c_locale(&c);
    memset(spec, 0, sizeof *spec);
    struct parse *p = calloc(1, sizeof *p);
    int rc = p ? 0 : zt_fail(err, ZT_ENOMEM, "%s: no host memory to read it", file);
    if (rc)
        goto out;
    p->spec = spec;
    p->file = p->problems.file = file;
    p->problems.spec = spec;
    set_defaults(spec);
    rc = read_tree(p, text, bytes, overrides, n_overrides, &tree, err);
    if (rc)
        goto out;
    start_from_preset(p, tree.root);
    walk_map(p, tree.root, "");
    check_all(p);
    rc = zt_problems_end(&p->problems, err);
    if (rc)
        goto out;
    spec->verbatim = malloc(bytes + 1);
    if (!spec->verbatim) {
        rc = zt_fail(err, ZT_ENOMEM, "%s: no host memory to keep it", file);
        goto out;
    }
    memcpy(spec->verbatim, text, bytes);
    spec->verbatim[bytes] = '\0';
    spec->verbatim_bytes = bytes;
    rc = hash_spec(spec, err);
out:
    zt_tree_free(&tree);
    free(p);
    if (rc)
        zt_spec_free(spec);
    leave_c_locale(c, before);
    return rc;
}

int zt_spec_resolve(struct zt_spec *spec, int workers, const char *file, struct zt_error *err) {
    return zt_spec_resolve_up_to(spec, workers, ZT_RANKS_MAX, file, err);
}

int zt_spec_resolve_up_to(struct zt_spec *spec, int workers, int most, const char *file,
                          struct zt_error *err) {
    struct zt_problems p = {.file = file, .spec = spec};
    locale_t c, before = enter_c_locale(&c);
    if (workers <= 0)
        workers = (int)zt_spec_workers_known(spec);
    if (workers <= 0)
        zt_problem(&p, zt_schema_find("workers"),
                   "the file does not say how many; add workers: N, or give --workers N");
    else if (workers > ZT_PLAN_RANKS_MAX)
        zt_problem(&p, zt_schema_find("workers"), "%d is out of range: must be 1..%d", workers,
                   ZT_PLAN_RANKS_MAX);
    else if (workers > most)
        zt_problem(&p, zt_schema_find("workers"),
                   "%d ranks are more than the %d that a run may have in this version; take fewer, smaller "
                   "degrees or more accumulation",
                   workers, most);
    else
        zt_check_mesh(&p, spec, workers);
    leave_c_locale(c, before);
    return zt_problems_end(&p, err);
}

struct zt_mesh zt_spec_mesh(const struct zt_spec *s) {
    struct zt_mesh m = {s->parallelism.replicate, s->parallelism.shard, s->parallelism.tensor};
    return m;
}

int64_t zt_spec_accumulation(const struct zt_spec *s) {
    int64_t step = s->training.local_batch_size * zt_mesh_dp(zt_spec_mesh(s));
    return step > 0 ? s->training.global_batch_size / step : 0;
}

struct zt_schedule zt_spec_schedule(const struct zt_spec *s, int64_t total_steps) {
    struct zt_schedule r = {
        .lr = s->optimizer.lr,
        .warmup_steps = s->lr_scheduler.warmup_steps,
        .total_steps = total_steps,
        .decay = s->lr_scheduler.decay_type,
        .decay_ratio = s->lr_scheduler.decay_ratio,
        .min_lr_factor = s->lr_scheduler.min_lr_factor,
    };
    return r;
}

void zt_spec_free(struct zt_spec *s) {
    free(s->verbatim);
    s->verbatim = NULL;
    s->verbatim_bytes = 0;
}

/* ---------------------------------------------------------------------------------- text */

struct out { char *text; size_t used, size; bool failed; };

static void put(struct out *o, const char *s) {
    size_t n = strlen(s);
    if (o->used + n + 1 > o->size) {
        size_t size = (o->size + n + 1) * 2;
        char *more = realloc(o->text, size);
        if (!more) {
            o->failed = true;
            return;
        }
        o->text = more;
        o->size = size;
    }
    memcpy(o->text + o->used, s, n + 1);
    o->used += n;
}

static int depth_of(const char *path) {
    int d = 0;
    for (; *path; path++)
        d += *path == '.';
    return d;
}

static void put_line(struct out *o, const char *path, const char *value) {
    for (int d = depth_of(path); d > 0; d--)
        put(o, "  ");
    put(o, leaf(path));
    put(o, value[0] ? ": " : ":");
    put(o, value);
    put(o, "\n");
}

/* Rows that say nothing about this run: sections that are not there, keys of the other family. */
static bool silent(const struct zt_spec *s, int i) {
    const struct zt_key *k = zt_schema_key(i);
    if ((k->flags & ZT_KEY_LLAMA) && s->model.family != ZT_LLAMA)
        return true;
    if (strcmp(k->path, "model.rope_scaling") == 0)
        return s->model.rope_scaling.type != ZT_ROPE_NONE; /* its rows below say it */
    if (strncmp(k->path, "model.rope_scaling.", 19) == 0)
        return s->model.rope_scaling.type == ZT_ROPE_NONE;
    for (int j = i; j >= 0; j = zt_schema_parent(j)) {
        const struct zt_key *up = zt_schema_key(j);
        if (up->kind == ZT_KEY_SECTION && up->offset != ZT_KEY_NOWHERE &&
            !*(const bool *)(const void *)((const char *)s + up->offset))
            return true;
    }
    return (k->kind == ZT_KEY_LABELS && s->labels.n == 0) ||
           (k->kind == ZT_KEY_SOURCES && s->dataset.sources.n == 0);
}

/* The headers of the sections above row i that are not written yet. */
static void put_sections(struct out *o, int i, bool *written) {
    int up = zt_schema_parent(i);
    if (up < 0 || written[up])
        return;
    put_sections(o, up, written);
    put_line(o, zt_schema_key(up)->path, "");
    written[up] = true;
}

char *zt_spec_normalise(const struct zt_spec *s) {
    struct out o = {0};
    bool written[ZT_SPEC_MAX_KEYS] = {false};
    locale_t c, before = enter_c_locale(&c);
    char *value = malloc(ZT_SCHEMA_TEXT);
    put(&o, "");
    for (int i = 0; value && i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        if (k->kind == ZT_KEY_SECTION || silent(s, i))
            continue;
        zt_schema_text(s, k, value, ZT_SCHEMA_TEXT);
        if (!value[0])
            continue;
        put_sections(&o, i, written);
        put_line(&o, k->path, value);
    }
    leave_c_locale(c, before);
    if (!value || o.failed) {
        free(o.text);
        o.text = NULL;
    }
    free(value);
    return o.text;
}

static const char *kind_word(const struct zt_key *k) {
    switch (k->kind) {
    case ZT_KEY_SECTION: return "section";
    case ZT_KEY_INT:
    case ZT_KEY_INT64: return "whole number";
    case ZT_KEY_FLOAT: return k->names ? "number or word" : "number";
    case ZT_KEY_BOOL: return "true or false";
    case ZT_KEY_ENUM: return "word";
    case ZT_KEY_ENUM_INT: return "word or whole number";
    case ZT_KEY_STRING: return k->names ? "word" : "text";
    case ZT_KEY_LIST: return "list of text";
    case ZT_KEY_LABELS: return "mapping of text";
    case ZT_KEY_SOURCES: return "list";
    }
    return "";
}

/* Text inside a table cell. */
static void put_cell(FILE *out, const char *s) {
    for (; *s; s++) {
        if (*s == '|')
            fputc('\\', out);
        fputc(*s, out);
    }
}

static void reference_row(FILE *out, int i) {
    const struct zt_key *k = zt_schema_key(i);
    char text[400];
    const struct zt_not_yet *no = NULL;
    for (int j = 0; zt_schema_not_yet(j); j++)
        if (strcmp(zt_schema_not_yet(j)->path, k->path) == 0)
            no = zt_schema_not_yet(j);
    fprintf(out, "| `%s` | %s | ", k->path, kind_word(k));
    if (k->fallback)
        fprintf(out, "`%s`", k->fallback);
    else
        put_cell(out, k->computed ? k->computed : k->flags & ZT_KEY_REQUIRED ? "required" : "-");
    fputs(" | ", out);
    put_cell(out, k->names ? zt_schema_names(k, text, sizeof text)
                           : zt_schema_range(k, text, sizeof text));
    fputs(" | ", out);
    put_cell(out, k->help);
    if (no && no->only && no->only[0])
        fprintf(out, " *This version: only `%s`.*", no->only);
    else if (no)
        fputs(" *Not in this version.*", out);
    fputs(" |\n", out);
}

void zt_spec_reference(FILE *out) {
    fputs("# run.yaml: every key\n\n"
          "This page is printed from the schema table of `core/spec_schema.c`; do not edit it.\n\n"
          "Numbers are decimal (`3e-4`, `0.1`, `1000`); counts are written in digits. `0x10`, `010` and\n"
          "`1_000` are refused. Booleans are `true` and `false`. Anchors, aliases, tags, tabs as\n"
          "indentation, duplicate keys and a second document are refused. A file has at most 256 KiB.\n"
          "Any key can be set from the command line: `--set training.steps=100`.\n",
          out);
    bool top = false;
    for (int i = 0; i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        bool nested = strchr(k->path, '.') != NULL;
        if (k->kind == ZT_KEY_SECTION && !nested) {
            fprintf(out, "\n## %s\n\n%s", k->path, k->help);
            for (int j = 0; zt_schema_not_yet(j); j++)
                if (strcmp(zt_schema_not_yet(j)->path, k->path) == 0)
                    fputs(" *Not in this version.*", out);
            fputs("\n\n| key | type | default | values | meaning |\n|---|---|---|---|---|\n", out);
            continue;
        }
        if (!nested && !top) {
            fputs("\n## The run\n\n| key | type | default | values | meaning |\n|---|---|---|---|---|\n",
                  out);
            top = true;
        }
        reference_row(out, i);
    }
}

const char *zt_spec_key(int i) {
    static _Thread_local char line[400];
    const struct zt_key *k = zt_schema_key(i);
    if (!k)
        return NULL;
    snprintf(line, sizeof line, "%s: %s", k->path, k->help);
    return line;
}
