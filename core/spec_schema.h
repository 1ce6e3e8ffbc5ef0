/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_schema.h: the schema table behind core/spec.h.
 *
 * A row names a key of run.yaml, where its value lives in struct zt_spec, what it may be, its default
 * as run.yaml text and one sentence about it. Constant data; any thread. */
#ifndef ZT_CORE_SPEC_SCHEMA_H
#define ZT_CORE_SPEC_SCHEMA_H
#include <locale.h>
#include <string.h>
#include "core/spec.h"

enum zt_key_kind {
    ZT_KEY_SECTION,  /* a mapping; offset: a bool that says it is there, or ZT_KEY_NOWHERE */
    ZT_KEY_INT,      /* int */
    ZT_KEY_INT64,    /* int64_t; also uint64_t seeds, which are at most INT64_MAX */
    ZT_KEY_FLOAT,    /* double */
    ZT_KEY_BOOL,     /* bool */
    ZT_KEY_ENUM,     /* an int-sized enum, by names */
    ZT_KEY_ENUM_INT, /* the same, or a whole number in the int at offset2 with the enum int_value */
    ZT_KEY_STRING,   /* char[size]; with names: one of them */
    ZT_KEY_LIST,     /* struct zt_strings */
    ZT_KEY_LABELS,   /* struct zt_labels */
    ZT_KEY_SOURCES,  /* struct zt_sources */
};
#define ZT_KEY_NOWHERE ((size_t)-1)

enum zt_key_flags {
    ZT_KEY_ABOVE_MIN = 1,   /* min itself is refused */
    ZT_KEY_BELOW_MAX = 2,   /* max itself is refused */
    ZT_KEY_NOT_ZERO = 4,
    ZT_KEY_MAP_TOO = 8,     /* a mapping is accepted as well: the rows below it */
    ZT_KEY_AT_LEAST = 16,   /* ">=N" is accepted and means N */
    ZT_KEY_ZERO_UNSET = 32, /* 0 is "not given": never written by zt_spec_normalise */
    ZT_KEY_LLAMA = 64,      /* a key that only the llama family reads */
    ZT_KEY_REQUIRED = 128,
    ZT_KEY_MODE_WORDS = 256, /* what other programs call a mode is read too (core/modes.h) */
};

struct zt_key_name { const char *name; int value; };

struct zt_key {
    const char *path;     /* "training.seq_len" */
    enum zt_key_kind kind;
    size_t offset, size, offset2;
    int int_value;
    double min, max;      /* numbers; max >= 1e15: no upper bound worth printing */
    unsigned flags;
    const struct zt_key_name *names;
    const char *fallback; /* default as run.yaml text, NULL: none or computed */
    const char *computed; /* the default in words where it is computed */
    const char *help;
};

int zt_schema_count(void);
const struct zt_key *zt_schema_key(int i);
int zt_schema_find(const char *path); /* row, or -1 */
/* The row of the nearest enclosing section of row i, -1 at the top. */
int zt_schema_parent(int i);

/* The field of row k. */
static inline void *zt_schema_field(struct zt_spec *s, const struct zt_key *k) { return (char *)s + k->offset; }
/* The last part of a dotted path. */
static inline const char *zt_schema_leaf(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* "0..100", "above 0", "at least 0 and below 1"; "" when anything goes. */
const char *zt_schema_range(const struct zt_key *k, char *buf, size_t n);
/* `a | b | c` of the names (and "a whole number"). */
const char *zt_schema_names(const struct zt_key *k, char *buf, size_t n);
/* The value as run.yaml text; "" when not set. buf of ZT_SCHEMA_TEXT bytes always suffices. */
#define ZT_SCHEMA_TEXT (ZT_SPEC_MAX_LIST * (2 * ZT_PATH_MAX + 64))
const char *zt_schema_text(const struct zt_spec *s, const struct zt_key *k, char *buf, size_t n);

/* What other programs call a key of ours: "learning_rate" -> "optimizer.lr"; NULL when unknown. */
const char *zt_schema_alias(const char *word);
/* The i-th foreign word, NULL past the end. */
const char *zt_schema_alias_word(int i);
/* What a foreign value of an enum key is called here; NULL when unknown. */
const char *zt_schema_value_alias(const char *path, const char *word);

/* What a value of an enum key is elsewhere that has no counterpart here: "yarn" of model.rope_scaling; NULL when
 * unknown. */
const char *zt_schema_foreign_value(const char *path, const char *word);

/* Keys whose feature is not in this version, with the one value that is accepted (NULL: the section
 * must be absent). A later version deletes its lines. */
struct zt_not_yet { const char *path, *only; };
const struct zt_not_yet *zt_schema_not_yet(int i); /* NULL past the end */

/* spec_yaml.c: a run.yaml as a tree. Nodes live in the tree and are released with it. */
enum zt_node_kind { ZT_NODE_SCALAR, ZT_NODE_MAP, ZT_NODE_LIST };
struct zt_node {
    enum zt_node_kind kind;
    uint32_t line, column;   /* 1-based, of the value; column 0 with line 1: from --set */
    uint32_t key_line, key_column;
    bool plain;              /* scalar without quotes */
    char *key, *text;        /* key: in a map */
    const char *foreign;     /* another program's name of the key, as it was written; NULL: ours */
    struct zt_node *child, *next;
    struct zt_node *all;     /* every node of the tree, for the release */
};
struct zt_tree { struct zt_node *root, *all; int n; };
/* Refuses what run.yaml does not allow (anchors, aliases, tags, tabs, duplicate keys, limits).
 * file: prefix of messages; set: text of a --set value, all positions are then "from --set". */
int zt_tree_parse(const char *text, size_t bytes, const char *file, bool set, struct zt_tree *t,
                  struct zt_error *err);
void zt_tree_free(struct zt_tree *t);
struct zt_node *zt_tree_new(struct zt_tree *t, enum zt_node_kind kind);
struct zt_node *zt_node_get(const struct zt_node *map, const char *key, size_t key_len);

/* spec_set.c: a scalar into its row's field; a string into to[size]. NULL, or why it does not fit, in why. */
const char *zt_schema_set(struct zt_spec *s, const struct zt_key *k, const struct zt_node *node, char *why, size_t n);
const char *zt_schema_put(const char *text, char *to, size_t size, char *why, size_t n);

/* spec_value.c: numbers have a point, whatever the user's locale says. */
locale_t zt_c_locale_enter(locale_t *c);
void zt_c_locale_leave(locale_t c, locale_t before);
/* One scalar by our own rules. Each returns NULL, or the reason in buf. */
const char *zt_value_int(const char *text, bool plain, int64_t *v, char *buf, size_t n);
const char *zt_value_float(const char *text, bool plain, double *v, char *buf, size_t n);
const char *zt_value_bool(const char *text, bool plain, bool *v, char *buf, size_t n);
/* A number in its shortest form that reads back as the same double. Needs the C locale. */
const char *zt_value_print(double v, char *buf, size_t n);
/* text fit for a message: cut, control bytes replaced. */
const char *zt_value_show(const char *text, char *buf, size_t n);

/* spec_check.c: the problems found so far, in order. */
#define ZT_PROBLEMS_MAX 8
struct zt_problems {
    const char *file;
    const struct zt_spec *spec;     /* for the marks */
    int n, shown;                   /* all of them, and those in text */
    bool key_bad[ZT_SPEC_MAX_KEYS]; /* one message a key is enough */
    char text[1920];
    size_t used;
};
/* At a row's mark, else at its nearest given section, else at the file. */
void zt_problem(struct zt_problems *p, int key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void zt_problem_at(struct zt_problems *p, uint32_t line, uint32_t column, const char *path,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
int zt_problems_end(struct zt_problems *p, struct zt_error *err); /* 0 or ZT_EINVAL */

/* Of a row that must exist: its number, whether the file or --set has it, and whether with another value
 * than its default. */
int zt_schema_row(const char *path);
bool zt_spec_given(const struct zt_spec *s, const char *path);
bool zt_spec_changed(const struct zt_spec *s, const char *path);
/* The row's default into s. */
void zt_schema_default(struct zt_spec *s, const struct zt_key *k);
#define ZT_PROBLEM(p, path, ...) zt_problem(p, zt_schema_row(path), __VA_ARGS__)
/* "run.yaml:9:22: KEY: text" at the row's mark, for spec->notes. More than fit are dropped. */
void zt_note(const struct zt_problems *p, struct zt_spec *s, int key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* spec_shard.c: parallelism and precision. */
struct zt_mode_word;
/* Keys of section parallelism by other programs' names become ours; a second name for one key is a
 * problem. */
void zt_alias_keys(struct zt_problems *p, struct zt_tree *t);
/* "zero_stage" for "parallelism.zero_stage", which is parallelism.mode here; NULL: no such name. */
const char *zt_alias_key(const char *path);
/* What a mode's foreign name, given as text, says beside the mode; after all keys are read. foreign: the
 * key it was under, NULL: mode. */
void zt_alias_apply(struct zt_problems *p, struct zt_spec *s, const struct zt_mode_word *w,
                    const char *text, const char *foreign);
void zt_check_shard(struct zt_problems *p, struct zt_spec *s);
void zt_check_precision(struct zt_problems *p, const struct zt_spec *s);

/* What needs no worker count; then the cross-checks of a mesh, which also fill the degrees. */
void zt_check_alone(struct zt_problems *p, struct zt_spec *s);
void zt_check_mesh(struct zt_problems *p, struct zt_spec *s, int workers);
void zt_check_supported(struct zt_problems *p, const struct zt_spec *s);
/* Workers by the file: `workers:`, else the product when all degrees are given, else 0. */
int64_t zt_spec_workers_known(const struct zt_spec *s);

#endif
