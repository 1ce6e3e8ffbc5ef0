/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/dtypes.c: `zctl dtypes RUN`: number formats as configured, as stored and as really used. Ranks
 * that found the same are one table; a mix is several, and said. */
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"

/* All pages as one object; "ranks" has a report each. */
static int fetch(struct zt_source *s, const char *run, json_t **out, struct zt_error *err) {
    Zt__GetDtypes get = ZT__GET_DTYPES__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    json_t *o = json_object(), *ranks = json_array();
    get.run = (char *)(uintptr_t)run;
    get.has_from_rank = true;
    req.body_case = ZT__ENVELOPE__BODY_GET_DTYPES;
    req.get_dtypes = &get;
    int rc = 0;
    for (bool more = true; rc == 0 && more;) {
        struct zt_answer a;
        rc = zt_source_ask(s, &req, &a, err);
        if (rc)
            break;
        const Zt__Dtypes *d = a.env->body_case == ZT__ENVELOPE__BODY_DTYPES ? a.env->dtypes : NULL;
        more = d && d->has_more && d->more && d->n_reports > 0 && d->reports[d->n_reports - 1]->rank >= get.from_rank;
        for (size_t i = 0; d && i < d->n_reports; i++)
            json_array_append_new(ranks, zt_json_dtypes(d->reports[i]));
        if (d && get.from_rank == 0 && d->n_reports > 0) {
            json_object_set_new(o, "run", zt_json_text(d->run_id));
            json_object_set_new(o, "name", zt_json_text(d->name));
            json_object_set_new(o, "generation", json_integer(d->reports[0]->generation));
            json_object_set_new(o, "world", zt_json_int(d->has_world, d->world));
        }
        if (!d)
            rc = zt_fail(err, ZT_EPROTO, "the coordinator answered get_dtypes with something else");
        else if (more)
            get.from_rank = d->reports[d->n_reports - 1]->rank + 1;
        zt_answer_free(&a);
    }
    json_object_set_new(o, "ranks", ranks);
    if (rc)
        json_decref(o);
    else
        *out = o;
    return rc;
}

/* What ranks must agree on: all but the rank itself, the step, and how many threads its kernels have. */
static bool same(const json_t *a, const json_t *b) {
    for (const char *const *k = (const char *const[]){"recipe", "types", "compute", NULL}; *k; k++)
        if (!json_equal(json_object_get(a, *k), json_object_get(b, *k)))
            return false;
    return true;
}

/* "rank 0", "ranks 0-2, 5" */
static void rank_list(const json_t *ranks, const json_t *like, char *out, size_t n) {
    long long first = -1, last = -1;
    size_t i, used = 0, count = 0;
    const json_t *r;
    char list[400] = "";
    for (i = 0; i <= json_array_size(ranks); i++) {
        r = json_array_get(ranks, i);
        long long rank = r && same(r, like) ? json_integer_value(json_object_get(r, "rank")) : -1;
        count += rank >= 0;
        if (rank >= 0 && first >= 0 && rank == last + 1) {
            last = rank;
            continue;
        }
        if (first >= 0 && (rank >= 0 || !r) && used + 48 < sizeof list) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%lld", used ? ", " : "", first);
            if (last > first)
                used += (size_t)snprintf(list + used, sizeof list - used, "-%lld", last);
        }
        if (rank >= 0)
            first = last = rank;
    }
    snprintf(out, n, "rank%s %s", count == 1 ? "" : "s", list);
}

#define TYPE_COLUMNS                                                                                        \
    {"WHAT", "what", ZT_CELL_TEXT, 0}, {"CONFIGURED", "configured", ZT_CELL_TEXT, 0},                        \
    {"STORED", "stored", ZT_CELL_TEXT, 0}, {"USED", "used", ZT_CELL_TEXT, 0}
static const struct zt_column columns[] = {TYPE_COLUMNS, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column noted_columns[] = {TYPE_COLUMNS, {"NOTE", "note", ZT_CELL_TEXT, 0},
                                                 {NULL, NULL, ZT_CELL_TEXT, 0}};

/* False when there is nothing to note. */
static bool add_notes(json_t *types) {
    json_t *row;
    size_t i;
    bool any = false;
    json_array_foreach(types, i, row) {
        const json_t *c = zt_json_at(row, "configured"), *s = zt_json_at(row, "stored"), *u = zt_json_at(row, "used");
        const char *note = u && c && !json_equal(u, c)   ? "not what was configured"
                           : s && c && !json_equal(s, c) ? "stored in another type than configured"
                                                         : NULL;
        json_object_set_new(row, "note", zt_json_text(note));
        any = any || note;
    }
    return any;
}

static void print_text(FILE *out, const char *label, const json_t *r, const char *key) {
    char text[300];
    zt_cell_text(r, &(struct zt_column){"", key, ZT_CELL_TEXT, 0}, text, sizeof text);
    fprintf(out, "%s%s\n", label, text);
}

static int print_table(FILE *out, json_t *j, struct zt_error *err) {
    json_t *ranks = json_object_get(j, "ranks"), *r;
    char list[420], name[130], recipe[130];
    size_t i, k, told = json_array_size(ranks);
    bool mixed = json_is_true(json_object_get(j, "mixed"));
    int rc = 0;
    zt_cell_text(j, &(struct zt_column){"", "name", ZT_CELL_TEXT, 0}, name, sizeof name);
    fprintf(out, "run %s \"%s\", generation %lld\n", json_string_value(json_object_get(j, "run")), name,
            (long long)json_integer_value(json_object_get(j, "generation")));
    if (mixed)
        fputs("the ranks differ: results of such a mix are not those of either kind\n", out);
    if (json_integer_value(json_object_get(j, "world")) > (json_int_t)told)
        fprintf(out, "%lld of %zu ranks have not told yet\n",
                (long long)json_integer_value(json_object_get(j, "world")) - (long long)told,
                (size_t)json_integer_value(json_object_get(j, "world")));
    json_array_foreach(ranks, i, r) {
        bool shown = false;
        for (k = 0; k < i && !shown; k++)
            shown = same(json_array_get(ranks, k), r);
        if (shown || rc)
            continue;
        json_t *types = json_deep_copy(json_object_get(r, "types"));
        rank_list(ranks, r, list, sizeof list);
        zt_cell_text(r, &(struct zt_column){"", "recipe", ZT_CELL_TEXT, 0}, recipe, sizeof recipe);
        fprintf(out, "\n%s: recipe %s, read after step %lld\n", list, recipe,
                (long long)json_integer_value(json_object_get(r, "step")));
        rc = zt_print_table(out, types, add_notes(types) ? noted_columns : columns, err);
        json_decref(types);
        print_text(out, "matrix products: ", r, "compute");
        print_text(out, "kernels: ", r, "kernels");
    }
    return rc;
}

/* A row per rank and thing, for -o jsonl and csv. */
static json_t *flat(const json_t *j) {
    json_t *out = json_array(), *r, *row;
    size_t i, k;
    json_array_foreach(json_object_get(j, "ranks"), i, r)
        json_array_foreach(json_object_get(r, "types"), k, row) {
            json_t *o = json_object();
            json_object_set(o, "rank", json_object_get(r, "rank"));
            json_object_set(o, "recipe", json_object_get(r, "recipe"));
            json_object_update(o, row);
            json_array_append_new(out, o);
        }
    return out;
}

int zt_cmd_dtypes(const struct zt_options *o) {
    struct zt_source s;
    struct zt_error err;
    json_t *j = NULL;
    int rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = fetch(&s, o->subject, &j, &err);
    zt_source_close(&s);
    if (rc)
        return zt_report(rc, &err);
    json_t *ranks = json_object_get(j, "ranks"), *r;
    bool mixed = false;
    size_t i;
    json_array_foreach(ranks, i, r) mixed = mixed || !same(r, json_array_get(ranks, 0));
    json_object_set_new(j, "mixed", json_boolean(mixed));
    if (o->format == ZT_FORMAT_TABLE) {
        rc = print_table(stdout, j, &err);
    } else {
        json_t *rows = flat(j);
        rc = zt_print_rows(stdout, o, j, rows, columns, &err);
        json_decref(rows);
    }
    json_decref(j);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
