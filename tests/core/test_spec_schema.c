/* SPDX-License-Identifier: Apache-2.0 */
/* The schema table is total: every row is described, has a section, a default that it accepts itself,
 * and can be set from the command line; what is refused is known; the reference page and the examples
 * in the tree agree with it. */
#include <dirent.h>
#include "spec_helper.h"
#include "core/spec_schema.h"

Test(schema, rows_are_complete) {
    for (int i = 0; i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        size_t n = strlen(k->help);
        cr_assert(n > 5 && k->help[n - 1] == '.', "%s: help is a sentence", k->path);
        cr_assert_eq(zt_schema_find(k->path), i, "%s: twice", k->path);
        cr_assert(strchr(k->path, '.') == NULL || zt_schema_parent(i) >= 0, "%s", k->path);
        if (zt_schema_parent(i) >= 0)
            cr_assert(zt_schema_parent(i) < i, "%s", k->path);
        if (k->kind == ZT_KEY_ENUM || k->kind == ZT_KEY_ENUM_INT)
            cr_assert(k->names && k->names[0].name, "%s", k->path);
        if (k->kind != ZT_KEY_SECTION)
            cr_assert(k->offset + k->size <= sizeof(struct zt_spec), "%s", k->path);
    }
    cr_assert_null(zt_schema_key(zt_schema_count()));
}

/* No two rows write to the same bytes, except a mapping and its short form. */
Test(schema, fields_do_not_overlap) {
    for (int i = 0; i < zt_schema_count(); i++)
        for (int j = i + 1; j < zt_schema_count(); j++) {
            const struct zt_key *a = zt_schema_key(i), *b = zt_schema_key(j);
            if (a->kind == ZT_KEY_SECTION || b->kind == ZT_KEY_SECTION ||
                strcmp(b->path, "model.rope_scaling.type") == 0)
                continue;
            cr_assert(a->offset + a->size <= b->offset || b->offset + b->size <= a->offset, "%s and %s",
                      a->path, b->path);
        }
}

/* Every row's own text, given back by --set, changes nothing. */
Test(schema, every_key_can_be_set) {
    char *text = malloc(ZT_SCHEMA_TEXT + 100);
    int set = 0;
    cr_assert_eq(parse(GOOD), 0);
    char hash[33];
    memcpy(hash, spec.normalised_hash, sizeof hash);
    struct zt_spec *good = malloc(sizeof *good);
    *good = spec;
    for (int i = 0; i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        if (k->kind == ZT_KEY_SECTION || (k->flags & ZT_KEY_LLAMA) ||
            strncmp(k->path, "checkpoint.", 11) == 0 || strncmp(k->path, "training.lora.", 14) == 0 ||
            strncmp(k->path, "validation.", 11) == 0)
            continue;
        size_t n = (size_t)snprintf(text, ZT_SCHEMA_TEXT, "%s=", k->path);
        zt_schema_text(good, k, text + n, ZT_SCHEMA_TEXT);
        if (text[n] == '\0')
            continue;
        const char *const one[] = {text, NULL};
        struct zt_error e;
        struct zt_spec *s = malloc(sizeof *s);
        int rc = zt_spec_parse(GOOD, strlen(GOOD), "run.yaml", one, 1, s, &e);
        cr_assert_eq(rc, 0, "%s: %s", text, rc ? e.msg : "");
        cr_assert_str_eq(s->normalised_hash, hash, "%s", text);
        cr_assert_eq(s->mark[i].line, 1, "%s", text);
        cr_assert_eq(s->mark[i].column, 0, "%s", text);
        zt_spec_free(s);
        free(s);
        set++;
    }
    cr_assert_gt(set, 60);
    free(good);
    free(text);
    zt_spec_free(&spec);
}

/* A value that no row accepts is refused at every row, and names it. */
Test(schema, every_key_refuses_nonsense) {
    for (int i = 0; i < zt_schema_count(); i++) {
        const struct zt_key *k = zt_schema_key(i);
        if (k->kind == ZT_KEY_STRING && !k->names)
            continue;
        char set[128], head[128];
        snprintf(set, sizeof set, "%s=@", k->path);
        snprintf(head, sizeof head, "--set %s: ", k->path);
        cr_assert_eq(parse_set(set), ZT_EINVAL, "%s", set);
        cr_assert(strstr(err.msg, head), "%s: %s", set, err.msg);
    }
}

Test(schema, refused_rows_are_known_and_their_default_is_accepted) {
    cr_assert_eq(parse(GOOD), 0);
    for (int i = 0; zt_schema_not_yet(i); i++) {
        const struct zt_not_yet *no = zt_schema_not_yet(i);
        char text[ZT_SCHEMA_TEXT];
        int row = zt_schema_find(no->path);
        cr_assert(row >= 0, "%s", no->path);
        const struct zt_key *k = zt_schema_key(row);
        if (no->only)
            cr_assert_str_eq(zt_schema_text(&spec, k, text, sizeof text), no->only, "%s", no->path);
        else
            cr_assert(k->kind == ZT_KEY_SECTION && k->offset != ZT_KEY_NOWHERE, "%s", no->path);
    }
    zt_spec_free(&spec);
}

Test(schema, recipes_and_presets_match_their_tables) {
    const struct zt_key *k = zt_schema_key(zt_schema_find("precision.recipe"));
    for (const struct zt_key_name *m = k->names; m->name; m++)
        cr_assert(zt_recipe_find(m->name), "%s", m->name);
    k = zt_schema_key(zt_schema_find("model.preset"));
    for (int i = 0; zt_model_preset_name(i); i++)
        cr_assert(strstr(k->help, zt_model_preset_name(i)), "%s", zt_model_preset_name(i));
}

Test(schema, aliases_lead_to_keys) {
    for (int i = 0; zt_schema_alias_word(i); i++) {
        cr_assert(zt_schema_find(zt_schema_alias(zt_schema_alias_word(i))) >= 0, "%s",
                  zt_schema_alias_word(i));
        cr_assert(zt_schema_find(zt_schema_alias_word(i)) < 0, "%s", zt_schema_alias_word(i));
    }
}

Test(schema, completion_lists_every_key) {
    for (int i = 0; i < zt_schema_count(); i++) {
        const char *line = zt_spec_key(i);
        cr_assert_eq(strncmp(line, zt_schema_key(i)->path, strlen(zt_schema_key(i)->path)), 0);
    }
    cr_assert_null(zt_spec_key(zt_schema_count()));
}

static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    char *text = malloc(1 << 20);
    *n = fread(text, 1, (1 << 20) - 1, f);
    text[*n] = '\0';
    fclose(f);
    return text;
}

Test(schema, reference_page_is_current) {
    size_t n, m = 0;
    char *page = read_file(ZT_ROOT "/docs/run-yaml.md", &n), *now = NULL;
    FILE *out = open_memstream(&now, &m);
    zt_spec_reference(out);
    fclose(out);
    cr_assert_str_eq(page, now,
                     "docs/run-yaml.md is old: build/core/spec-doc > docs/run-yaml.md makes it new");
    for (int i = 0; i < zt_schema_count(); i++) {
        char cell[128];
        const char *path = zt_schema_key(i)->path;
        bool section = zt_schema_key(i)->kind == ZT_KEY_SECTION && !strchr(path, '.');
        snprintf(cell, sizeof cell, section ? "\n## %s\n" : "\n| `%s` |", path);
        cr_assert(strstr(page, cell), "%s", path);
    }
    free(page);
    free(now);
}

/* Every file there is, with the workers it asks for, or 4. */
Test(schema, examples_are_valid) {
    DIR *d = opendir(ZT_ROOT "/examples");
    int seen = 0;
    cr_assert(d);
    for (const struct dirent *f; (f = readdir(d));) {
        char path[512];
        size_t n;
        if (!strstr(f->d_name, ".yaml")) continue;
        snprintf(path, sizeof path, ZT_ROOT "/examples/%s", f->d_name);
        char *text = read_file(path, &n);
        cr_assert_eq(zt_spec_parse(text, n, f->d_name, NULL, 0, &spec, &err), 0, "%s", err.msg);
        cr_assert_eq(zt_spec_resolve(&spec, spec.workers ? 0 : 4, f->d_name, &err), 0, "%s",
                     err.msg);
        zt_spec_free(&spec);
        free(text);
        seen++;
    }
    closedir(d);
    cr_expect_geq(seen, 14);
}
