/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint_diff.c: `zctl checkpoint diff A B`: two checkpoints as logical tensors, whatever they were cut
 * into. Where training stands and every element of every kind must be the same bits (as fp32) to be called equal; who
 * wrote them (run, mesh, mode, time) is shown and does not count. Streaming: never more than two stretches in memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"

#define STRETCH ((int64_t)1 << 20) /* elements */

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

static const char *const kind_names[ZT_SAVED_COUNT] = {"parameter", "master", "exp_avg", "exp_avg_sq"};

/* ---------------------------------------------------------------------------------- one tensor */

struct gap { int64_t different, first; double a, b, max_abs, max_rel; };

/* Bits are compared; a NaN or infinity on one side makes the difference infinite. */
static void add_stretch(struct gap *g, const float *a, const float *b, int64_t from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) == 0)
            continue;
        if (g->different++ == 0) {
            g->first = from + i;
            g->a = (double)a[i];
            g->b = (double)b[i];
        }
        double x = (double)a[i], y = (double)b[i], d = fabs(x - y), most = fmax(fabs(x), fabs(y));
        d = isfinite(d) ? d : INFINITY;
        g->max_abs = fmax(g->max_abs, d);
        g->max_rel = fmax(g->max_rel, isinf(d) ? INFINITY : most > 0 ? d / most : 0);
    }
}

struct sides { struct zt_tensor_source a, b; float *x, *y; void (*progress)(void *, int64_t); void *arg; };

static int compare(struct sides *s, const struct zt_saved_tensor *t, enum zt_saved kind, struct gap *g, struct zt_error *err) {
    int64_t n = t->ndim == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
    int rc = 0;
    memset(g, 0, sizeof *g);
    for (int64_t at = 0; rc == 0 && at < n; at += STRETCH) {
        int64_t count = n - at < STRETCH ? n - at : STRETCH;
        struct zt_span span = zt_span_plain((uint64_t)at, count);
        rc = s->a.read(s->a.arg, t->name, kind, t->ndim, t->shape, span, count, ZT_F32, s->x, err);
        if (rc)
            zt_fail_prefix(err, "A");
        if (rc == 0 && (rc = s->b.read(s->b.arg, t->name, kind, t->ndim, t->shape, span, count, ZT_F32, s->y, err)) != 0)
            zt_fail_prefix(err, "B");
        if (rc == 0)
            add_stretch(g, s->x, s->y, at, count);
        if (rc == 0 && s->progress)
            s->progress(s->arg, 2 * count * (int64_t)sizeof(float));
    }
    return rc;
}

/* JSON has no infinity: it is told in words. */
static json_t *size_of_gap(double v) { return isfinite(v) ? json_real(v) : json_string("infinite"); }

static json_t *gap_row(const struct zt_saved_tensor *t, enum zt_saved kind, const struct gap *g) {
    json_t *o = json_object();
    bool d = g->different > 0;
    put(o, "tensor", zt_json_text(t->name));
    put(o, "kind", json_string(kind_names[kind]));
    put(o, "elements", json_integer(t->ndim == 2 ? t->shape[0] * t->shape[1] : t->shape[0]));
    put(o, "different", json_integer(g->different));
    put(o, "first", zt_json_int(d, g->first));
    put(o, "a", d ? size_of_gap(g->a) : json_null());
    put(o, "b", d ? size_of_gap(g->b) : json_null());
    put(o, "max_abs", d ? size_of_gap(g->max_abs) : json_real(0));
    put(o, "max_rel", d ? size_of_gap(g->max_rel) : json_real(0));
    put(o, "why", json_null());
    return o;
}

/* A tensor or kind that only one has, or that has another shape there. */
static json_t *odd_row(const char *name, const char *kind, const char *why) {
    json_t *o = json_object();
    put(o, "tensor", zt_json_text(name));
    put(o, "kind", zt_json_text(kind));
    put(o, "elements", json_null());
    put(o, "different", json_null());
    put(o, "first", json_null());
    put(o, "a", json_null());
    put(o, "b", json_null());
    put(o, "max_abs", json_null());
    put(o, "max_rel", json_null());
    put(o, "why", json_string(why));
    return o;
}

/* ---------------------------------------------------------------------------------- all of them */

static const struct zt_saved_tensor *find(const struct zt_manifest *m, const char *name) {
    for (int i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

static bool same_shape(const struct zt_saved_tensor *a, const struct zt_saved_tensor *b) {
    return a->ndim == b->ndim && a->shape[0] == b->shape[0] && (a->ndim < 2 || a->shape[1] == b->shape[1]);
}

static int diff_tensors(struct sides *s, const struct zt_manifest *a, const struct zt_manifest *b, json_t *rows, bool *equal,
                        struct zt_error *err) {
    int rc = 0;
    for (int i = 0; i < a->n_tensors && rc == 0; i++) {
        const struct zt_saved_tensor *t = &a->tensors[i], *u = find(b, t->name);
        if (!u || !same_shape(t, u)) {
            json_array_append_new(rows, odd_row(t->name, NULL, u ? "has another shape in B" : "only A has it"));
            *equal = false;
            continue;
        }
        for (int k = 0; k < ZT_SAVED_COUNT && rc == 0; k++) {
            struct gap g;
            if (t->has[k] != u->has[k]) {
                json_array_append_new(rows, odd_row(t->name, kind_names[k], t->has[k] ? "only A has it" : "only B has it"));
                *equal = false;
            } else if (t->has[k] && (rc = compare(s, t, (enum zt_saved)k, &g, err)) == 0) {
                json_array_append_new(rows, gap_row(t, (enum zt_saved)k, &g));
                *equal = *equal && g.different == 0;
            }
        }
    }
    for (int i = 0; i < b->n_tensors && rc == 0; i++)
        if (!find(a, b->tensors[i].name)) {
            json_array_append_new(rows, odd_row(b->tensors[i].name, NULL, "only B has it"));
            *equal = false;
        }
    return rc;
}

/* Fields of two objects that differ. */
static json_t *differing(const json_t *a, const json_t *b) {
    json_t *out = json_array(), *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)a, key, v)
        if (!json_equal(v, json_object_get(b, key))) {
            json_t *o = json_object();
            put(o, "field", json_string(key));
            put(o, "a", json_incref(v));
            put(o, "b", json_incref(json_object_get(b, key)));
            json_array_append_new(out, o);
        }
    return out;
}

/* {run, name, step, generation, mesh, mode, recipe, parameter_hash, state_hash}, and the position apart. */
static json_t *head(const json_t *manifest) {
    static const char *const keys[] = {"run", "name", "step", "generation", "mesh", "mode", "recipe", "parameter_hash", "state_hash"};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set(o, keys[i], json_object_get(manifest, keys[i]));
    return o;
}

int zt_diff_checkpoints(struct zt_ckpt *a, struct zt_ckpt *b, json_t **out, void (*progress)(void *arg, int64_t bytes),
                        void *arg, struct zt_error *err) {
    const struct zt_manifest *ma = zt_ckpt_manifest(a), *mb = zt_ckpt_manifest(b);
    struct sides s = {.a = zt_ckpt_source(a), .b = zt_ckpt_source(b), .x = malloc(STRETCH * sizeof(float)),
                      .y = malloc(STRETCH * sizeof(float)), .progress = progress, .arg = arg};
    json_t *ja = zt_json_manifest(ma), *jb = zt_json_manifest(mb), *rows = json_array(), *o = json_object();
    bool equal = true;
    int rc = s.x && s.y ? diff_tensors(&s, ma, mb, rows, &equal, err) : zt_fail(err, ZT_ENOMEM, "no memory for two stretches of 4 MiB");
    json_t *where = differing(json_object_get(ja, "position"), json_object_get(jb, "position"));
    put(o, "a", head(ja));
    put(o, "b", head(jb));
    put(o, "equal", json_boolean(equal && json_array_size(where) == 0));
    put(o, "position", where);
    put(o, "tensors", rows);
    json_decref(ja);
    json_decref(jb);
    free(s.x);
    free(s.y);
    if (rc)
        json_decref(o);
    else
        *out = o;
    return rc;
}

/* ---------------------------------------------------------------------------------- for people */

static void say_side(const char *letter, const json_t *j, const char *label) {
    const json_t *m = json_object_get(j, "mesh");
    printf("%s        %s: step %lld, generation %lld, mesh %lld x %lld x %lld, %s, %s\n", letter, label,
           (long long)json_integer_value(json_object_get(j, "step")), (long long)json_integer_value(json_object_get(j, "generation")),
           (long long)json_integer_value(json_object_get(m, "replicate")), (long long)json_integer_value(json_object_get(m, "shard")),
           (long long)json_integer_value(json_object_get(m, "tensor")), json_string_value(json_object_get(j, "mode")),
           json_string_value(json_object_get(j, "recipe")));
}

static int say_diff(const json_t *j, const struct zt_found_checkpoint f[2], struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"TENSOR", "tensor", ZT_CELL_TEXT, 0},
        {"KIND", "kind", ZT_CELL_TEXT, 0},
        {"ELEMENTS", "elements", ZT_CELL_COUNT, 0},
        {"DIFFERENT", "different", ZT_CELL_COUNT, 0},
        {"FIRST", "first", ZT_CELL_COUNT, 0},
        {"A", "a", ZT_CELL_NUMBER, 9},
        {"B", "b", ZT_CELL_NUMBER, 9},
        {"MAX ABS", "max_abs", ZT_CELL_NUMBER, 4},
        {"MAX REL", "max_rel", ZT_CELL_NUMBER, 4},
        {"NOTE", "why", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *rows = json_array(), *row;
    int64_t compared = 0;
    size_t i;
    char n[32];
    int rc = 0;
    say_side("A", json_object_get(j, "a"), f[0].label);
    say_side("B", json_object_get(j, "b"), f[1].label);
    json_array_foreach(json_object_get(j, "position"), i, row) {
        char *a = json_dumps(json_object_get(row, "a"), JSON_ENCODE_ANY), *b = json_dumps(json_object_get(row, "b"), JSON_ENCODE_ANY);
        printf("position %s: %s and %s\n", json_string_value(json_object_get(row, "field")), a ? a : "-", b ? b : "-");
        free(a);
        free(b);
    }
    json_array_foreach(json_object_get(j, "tensors"), i, row) {
        compared += json_integer_value(json_object_get(row, "elements"));
        if (json_integer_value(json_object_get(row, "different")) > 0 || json_is_string(json_object_get(row, "why")))
            json_array_append(rows, row);
    }
    size_t odd = json_array_size(rows);
    if (odd > 0) {
        putchar('\n');
        rc = zt_print_table(stdout, rows, columns, err);
        putchar('\n');
    }
    json_decref(rows);
    printf("%s: %s values compared, %zu of %zu tensors and kinds differ\n", json_is_true(json_object_get(j, "equal")) ? "EQUAL" : "DIFFERENT",
           zt_format_count(compared, n, sizeof n), odd, json_array_size(json_object_get(j, "tensors")));
    return rc;
}

int zt_checkpoint_diff(const struct zt_options *o) {
    const char *const text[2] = {o->subject, o->other};
    struct zt_found_checkpoint f[2];
    struct zt_ckpt *c[2] = {NULL, NULL};
    struct zt_error err;
    json_t *j = NULL;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        struct zt_source s;
        rc = zt_find_checkpoint(o, text[i], &s, &f[i], &err);
        zt_source_close(&s);
        if (rc == 0)
            rc = zt_open_checkpoint(&f[i], &c[i], &err);
    }
    if (rc == 0)
        rc = zt_diff_checkpoints(c[0], c[1], &j, NULL, NULL, &err);
    if (rc == 0 && o->format == ZT_FORMAT_TABLE) {
        rc = say_diff(j, f, &err);
    } else if (rc == 0) {
        static const struct zt_column none = {NULL, NULL, ZT_CELL_TEXT, 0};
        rc = zt_print_rows(stdout, o, j, json_object_get(j, "tensors"), &none, &err);
    }
    int code = rc ? zt_report(rc, &err) : json_is_true(json_object_get(j, "equal")) ? ZT_EXIT_OK : ZT_EXIT_FAILED;
    json_decref(j);
    for (int i = 0; i < 2; i++)
        if (c[i])
            zt_ckpt_close(c[i]);
    return code;
}
