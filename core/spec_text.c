/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_text.c: a run specification as run.yaml text again, and the schema as a page for people. Pure
 * apart from malloc; the C locale is set for the calling thread while numbers are printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/spec_schema.h"

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
    put(o, zt_schema_leaf(path));
    put(o, value[0] ? ": " : ":");
    put(o, value);
    put(o, "\n");
}

/* Rows that say nothing about this run: sections that are not there, keys of the other family. */
static bool silent(const struct zt_spec *s, int i) {
    const struct zt_key *k = zt_schema_key(i);
    if ((k->flags & ZT_KEY_LLAMA) && s->model.family != ZT_LLAMA)
        return true;
    if (strncmp(k->path, "workers.", 8) == 0 && s->workers > 0)
        return true; /* resolved for one of the numbers between */
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
    locale_t c, before = zt_c_locale_enter(&c);
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
    zt_c_locale_leave(c, before);
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
