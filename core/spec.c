/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec.c: run.yaml into struct zt_spec, all by the table of core/spec_schema.c. Pure apart from
 * malloc; the C locale is set for the calling thread while numbers are read. */
#include "core/spec.h"
#include <stdlib.h>
#include <string.h>
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
    struct zt_strings *l = zt_schema_field(p->spec, k);
    char why[300];
    l->n = 0;
    for (const struct zt_node *c = node->child; c; c = c->next) {
        const char *bad = NULL;
        if (l->n == ZT_SPEC_MAX_LIST)
            bad = "more than 16 items";
        else if (c->kind != ZT_NODE_SCALAR)
            bad = "an item of this list must be a word";
        else
            bad = zt_schema_put(c->text, l->item[l->n], sizeof l->item[0], why, sizeof why);
        if (bad) {
            node_problem(p, c, k->path, bad);
            return;
        }
        l->n++;
    }
}

static void walk_labels(struct parse *p, const struct zt_key *k, const struct zt_node *node) {
    struct zt_labels *l = zt_schema_field(p->spec, k);
    char why[300];
    l->n = 0;
    for (const struct zt_node *c = node->child; c; c = c->next) {
        const char *bad = NULL;
        if (l->n == ZT_SPEC_MAX_LIST)
            bad = "more than 16 labels";
        else if (c->kind != ZT_NODE_SCALAR)
            bad = "the value of a label must be a word";
        else {
            bad = zt_schema_put(c->key, l->item[l->n].key, sizeof l->item[0].key, why, sizeof why);
            if (!bad)
                bad = zt_schema_put(c->text, l->item[l->n].value, sizeof l->item[0].value, why, sizeof why);
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
            bad = zt_schema_put(c->text, l->item[l->n].path, ZT_PATH_MAX, why, n);
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
    struct zt_sources *l = zt_schema_field(p->spec, k);
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

/* A word that is no key of its section: what was meant? Siblings first, then what other programs
 * call it, then the same word elsewhere, then anything near. NULL when nothing is. */
static const char *nearest_key(const char *section, const char *word) {
    const char *names[ZT_SPEC_MAX_KEYS + 128];
    int at[ZT_SPEC_MAX_KEYS + 128], n = 0;
    for (int i = 0; i < zt_schema_count(); i++)
        if (below(zt_schema_key(i)->path, section)) {
            at[n] = i;
            names[n++] = zt_schema_leaf(zt_schema_key(i)->path);
        }
    const char *near = zt_nearest(word, names, n);
    for (int i = 0; i < n && near; i++)
        if (names[i] == near)
            return zt_schema_key(at[i])->path;
    if (zt_schema_alias(word))
        return zt_schema_alias(word);
    n = 0;
    for (int i = 0; i < zt_schema_count(); i++) {
        names[n++] = zt_schema_leaf(zt_schema_key(i)->path);
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
        snprintf(why, n, "a dotted key works with --set only; here write %s below %.*s:", zt_schema_leaf(word),
                 (int)(zt_schema_leaf(word) - word - 1), word);
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
                                         zt_schema_leaf(zt_schema_key(i)->path));
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
    *(int *)zt_schema_field(p->spec, k) = (int)w->mode;
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
            *(bool *)zt_schema_field(p->spec, k) = true;
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
        bad = zt_schema_set(p->spec, k, node, why, sizeof why);
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
    locale_t c, before = zt_c_locale_enter(&c);
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
    zt_c_locale_leave(c, before);
    return rc;
}

int zt_spec_resolve(struct zt_spec *spec, int workers, const char *file, struct zt_error *err) {
    return zt_spec_resolve_up_to(spec, workers, ZT_RANKS_MAX, file, err);
}

int zt_spec_resolve_up_to(struct zt_spec *spec, int workers, int most, const char *file,
                          struct zt_error *err) {
    struct zt_problems p = {.file = file, .spec = spec};
    locale_t c, before = zt_c_locale_enter(&c);
    if (workers <= 0)
        workers = (int)zt_spec_workers_known(spec);
    if (workers <= 0 && spec->workers_max > 0)
        zt_problem(&p, zt_schema_find("workers.max"), "the run is elastic (%d to %d workers): say for how many with --workers N",
                   spec->workers_min, spec->workers_max);
    else if (workers <= 0)
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
    zt_c_locale_leave(c, before);
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
