/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_yaml.c: a run.yaml (or the value of a --set) as a tree of nodes, from libyaml's events.
 * Nesting, size and number of events are capped, so hostile input costs bounded time and memory.
 * The tree owns its nodes; one thread per tree. */
#include "core/spec_schema.h"
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_EVENTS 10000

struct reader {
    yaml_parser_t parser;
    const char *file;
    bool set;
    struct zt_tree *tree;
    struct zt_error *err;
    int events;
};

struct zt_node *zt_tree_new(struct zt_tree *t, enum zt_node_kind kind) {
    struct zt_node *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->kind = kind;
    n->all = t->all;
    t->all = n;
    t->n++;
    return n;
}

void zt_tree_free(struct zt_tree *t) {
    for (struct zt_node *n = t->all, *next; n; n = next) {
        next = n->all;
        free(n->key);
        free(n->text);
        free(n);
    }
    memset(t, 0, sizeof *t);
}

struct zt_node *zt_node_get(const struct zt_node *map, const char *key, size_t key_len) {
    for (struct zt_node *c = map->child; c; c = c->next)
        if (c->key && strlen(c->key) == key_len && memcmp(c->key, key, key_len) == 0)
            return c;
    return NULL;
}

/* "run.yaml:3:1: " for a file, "--set key: " (already in file) for an override. */
static int refuse(struct reader *r, size_t line, size_t column, const char *what) {
    if (r->set)
        return zt_fail(r->err, ZT_EINVAL, "%s: %s", r->file, what);
    return zt_fail(r->err, ZT_EINVAL, "%s:%zu:%zu: %s", r->file, line, column, what);
}

static int refuse_event(struct reader *r, const yaml_event_t *e, const char *what) {
    return refuse(r, e->start_mark.line + 1, e->start_mark.column + 1, what);
}

/* libyaml's own complaint, in our form. */
static int refuse_parser(struct reader *r) {
    const yaml_parser_t *p = &r->parser;
    char what[300];
    if (p->error == YAML_MEMORY_ERROR)
        return zt_fail(r->err, ZT_ENOMEM, "%s: no host memory to read it", r->file);
    if (p->error == YAML_READER_ERROR) {
        snprintf(what, sizeof what, "not UTF-8 text, or a control character (byte %zu)",
                 p->problem_offset);
        return refuse(r, p->mark.line + 1, p->mark.column + 1, what);
    }
    snprintf(what, sizeof what, "not valid YAML: %s%s%s", p->problem ? p->problem : "unknown reason",
             p->context ? ", " : "", p->context ? p->context : "");
    return refuse(r, p->problem_mark.line + 1, p->problem_mark.column + 1, what);
}

static int next_event(struct reader *r, yaml_event_t *e) {
    if (!yaml_parser_parse(&r->parser, e))
        return refuse_parser(r);
    int rc = 0;
    if (++r->events > MAX_EVENTS)
        rc = refuse_event(r, e, "more than 10000 YAML items; a run file has a few hundred");
    if (rc)
        yaml_event_delete(e);
    return rc;
}

/* Anchors, tags and aliases make one text mean another; run files do without. */
static int check_plainness(struct reader *r, const yaml_event_t *e) {
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_ALIAS_EVENT)
        return refuse_event(r, e, "aliases (*name) are not read; write the value again");
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    }
    if (anchor)
        return refuse_event(r, e, "anchors (&name) are not read; leave it out");
    if (tag)
        return refuse_event(r, e, "tags (!name) are not read; leave it out");
    return 0;
}

static char *copy(const yaml_event_t *e) {
    size_t n = e->data.scalar.length;
    char *s = malloc(n + 1);
    if (s) {
        memcpy(s, e->data.scalar.value, n);
        s[n] = '\0';
    }
    return s;
}

static int scalar_text(struct reader *r, const yaml_event_t *e, char **text) {
    if (memchr(e->data.scalar.value, 0, e->data.scalar.length))
        return refuse_event(r, e, "a NUL character in a value");
    *text = copy(e);
    return *text ? 0 : zt_fail(r->err, ZT_ENOMEM, "%s: no host memory to read it", r->file);
}

static void place(struct reader *r, struct zt_node *n, const yaml_event_t *e) {
    n->line = r->set ? 1 : (uint32_t)e->start_mark.line + 1;
    n->column = r->set ? 0 : (uint32_t)e->start_mark.column + 1;
    n->key_line = n->line;
    n->key_column = n->column;
}

static int read_node(struct reader *r, yaml_event_t *e, int depth, struct zt_node **out);

static int read_key(struct reader *r, const yaml_event_t *e, struct zt_node *map, char **key) {
    char what[200], show[64];
    int rc = check_plainness(r, e);
    if (rc)
        return rc;
    if (e->type != YAML_SCALAR_EVENT)
        return refuse_event(r, e, "a key must be a word");
    rc = scalar_text(r, e, key);
    if (rc)
        return rc;
    const struct zt_node *first = zt_node_get(map, *key, strlen(*key));
    if (!first)
        return 0;
    zt_value_show(*key, show, sizeof show);
    if (r->set)
        snprintf(what, sizeof what, "%s: given twice", show);
    else
        snprintf(what, sizeof what, "%s: given twice; the first is at line %u", show,
                 first->key_line);
    free(*key);
    *key = NULL;
    return refuse_event(r, e, what);
}

/* After the start event of a mapping, up to its end. */
static int read_map(struct reader *r, struct zt_node *map, int depth) {
    struct zt_node **tail = &map->child;
    for (;;) {
        yaml_event_t e;
        char *key = NULL;
        int rc = next_event(r, &e);
        if (rc)
            return rc;
        if (e.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&e);
            return 0;
        }
        yaml_mark_t at = e.start_mark;
        rc = read_key(r, &e, map, &key);
        yaml_event_delete(&e);
        if (rc)
            return rc;
        struct zt_node *child = NULL;
        rc = next_event(r, &e);
        if (rc == 0)
            rc = read_node(r, &e, depth + 1, &child);
        if (rc) {
            free(key);
            return rc;
        }
        child->key = key;
        child->key_line = r->set ? 1 : (uint32_t)at.line + 1;
        child->key_column = r->set ? 0 : (uint32_t)at.column + 1;
        *tail = child;
        tail = &child->next;
    }
}

static int read_list(struct reader *r, struct zt_node *list, int depth) {
    struct zt_node **tail = &list->child;
    for (;;) {
        yaml_event_t e;
        int rc = next_event(r, &e);
        if (rc)
            return rc;
        if (e.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&e);
            return 0;
        }
        struct zt_node *child = NULL;
        rc = read_node(r, &e, depth + 1, &child);
        if (rc)
            return rc;
        *tail = child;
        tail = &child->next;
    }
}

/* Consumes *e. Recursion is bounded by ZT_SPEC_MAX_DEPTH. */
static int read_node(struct reader *r, yaml_event_t *e, int depth, struct zt_node **out) {
    int rc = check_plainness(r, e);
    if (rc == 0 && depth > ZT_SPEC_MAX_DEPTH)
        rc = refuse_event(r, e, "nested deeper than 16");
    enum zt_node_kind kind = e->type == YAML_MAPPING_START_EVENT    ? ZT_NODE_MAP
                             : e->type == YAML_SEQUENCE_START_EVENT ? ZT_NODE_LIST
                                                                    : ZT_NODE_SCALAR;
    struct zt_node *n = rc == 0 ? zt_tree_new(r->tree, kind) : NULL;
    if (rc == 0 && !n)
        rc = zt_fail(r->err, ZT_ENOMEM, "%s: no host memory to read it", r->file);
    if (rc == 0) {
        place(r, n, e);
        if (kind == ZT_NODE_SCALAR) {
            n->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
            rc = scalar_text(r, e, &n->text);
        }
    }
    yaml_event_delete(e);
    if (rc == 0 && kind == ZT_NODE_MAP)
        rc = read_map(r, n, depth);
    if (rc == 0 && kind == ZT_NODE_LIST)
        rc = read_list(r, n, depth);
    *out = n;
    return rc;
}

/* Indentation by tabs looks right and means nothing; libyaml's own message does not say so. */
static int check_tabs(struct reader *r, const char *text, size_t bytes) {
    bool indent = true;
    size_t line = 1, start = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (indent && text[i] == '\t')
            return refuse(r, line, i - start + 1, "a tab in the indentation; use spaces");
        if (text[i] == '\n') {
            line++;
            start = i + 1;
            indent = true;
        } else if (text[i] != ' ') {
            indent = false;
        }
    }
    return 0;
}

static int read_document(struct reader *r) {
    yaml_event_t e;
    int rc = next_event(r, &e); /* stream start */
    if (rc)
        return rc;
    yaml_event_delete(&e);
    rc = next_event(r, &e);
    if (rc)
        return rc;
    if (e.type == YAML_STREAM_END_EVENT)
        rc = refuse_event(r, &e, "empty; it needs at least version, name, model, dataset and training");
    else if (e.data.document_start.version_directive || e.data.document_start.tag_directives.start !=
                                                            e.data.document_start.tag_directives.end)
        rc = refuse_event(r, &e, "directives (%...) are not read; leave them out");
    yaml_event_delete(&e);
    if (rc == 0)
        rc = next_event(r, &e);
    if (rc == 0)
        rc = read_node(r, &e, 1, &r->tree->root);
    if (rc == 0)
        rc = next_event(r, &e); /* document end */
    if (rc)
        return rc;
    yaml_event_delete(&e);
    rc = next_event(r, &e);
    if (rc)
        return rc;
    if (e.type != YAML_STREAM_END_EVENT)
        rc = refuse_event(r, &e, "a second document (---); a run file is one document");
    yaml_event_delete(&e);
    return rc;
}

int zt_tree_parse(const char *text, size_t bytes, const char *file, bool set, struct zt_tree *t,
                  struct zt_error *err) {
    struct reader r = {.file = file, .set = set, .tree = t, .err = err};
    memset(t, 0, sizeof *t);
    if (bytes > ZT_SPEC_MAX_BYTES)
        return zt_fail(err, ZT_EINVAL,
                       "%s: %zu bytes; a run file has at most %d (256 KiB). Is it the right file?",
                       file, bytes, ZT_SPEC_MAX_BYTES);
    int rc = check_tabs(&r, text, bytes);
    if (rc)
        return rc;
    if (!yaml_parser_initialize(&r.parser))
        return zt_fail(err, ZT_ENOMEM, "%s: no host memory to read it", file);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    rc = read_document(&r);
    yaml_parser_delete(&r.parser);
    if (rc)
        zt_tree_free(t);
    return rc;
}
