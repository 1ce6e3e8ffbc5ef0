/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/advise_rows.c: see advise.h: the document and the page made from it. */
#include <string.h>
#include "clients/zctl/advise.h"
#include "clients/zctl/json.h"
#include "clients/zctl/plan_json.h"
#include "core/oom_advice.h"
#include "core/units.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

/* ---------------------------------------------------------------------------------- JSON */

static void put_figures(json_t *o, const struct zt_advise_figures *f) {
    put(o, "fits", json_boolean(f->fits));
    put(o, "peak_allocated_bytes", json_integer(f->peak_allocated_bytes));
    put(o, "peak_reserved_bytes", json_integer(f->peak_reserved_bytes));
    put(o, "peak_window", json_string(zt_window_name(f->peak_window)));
    put(o, "phase_of_peak", json_string(zt_phase_name(f->phase_of_peak)));
    put(o, "at_peak", zt_plan_json_tags(f->at_peak));
    put(o, "persistent_bytes", json_pack("{s:I, s:I, s:I}", "parameters", (json_int_t)f->persistent.parameters, "gradients",
                                         (json_int_t)f->persistent.gradients, "optimizer", (json_int_t)f->persistent.optimizer));
    put(o, "workers", json_integer(f->workers));
    put(o, "accumulation", json_integer(f->accumulation));
    put(o, "step_seconds_estimate", json_real(f->step_seconds));
    put(o, "exposed_comm_seconds_estimate", json_real(f->exposed_seconds));
    put(o, "sent_bytes_per_step", json_integer(f->sent_bytes));
}

/* A key's last word; where that says little without its section, both. */
static const char *word_of(const char *key) {
    const char *leaf = strrchr(key, '.');
    return leaf && strncmp(key, "activation_checkpoint.", 22) != 0 ? leaf + 1 : key;
}

/* "mode: ddp -> zero1"; what follows by itself is not in it. */
static void edits(json_t *o, const struct zt_advise_change *c) {
    json_t *list = json_array(), *set = json_array();
    char text[1024] = "";
    for (int i = 0; i < c->n_edits; i++) {
        const struct zt_advise_edit *e = &c->edit[i];
        char one[128];
        size_t used = strlen(text);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b}", "key", e->key, "from", e->from, "to", e->to, "set", !e->implied));
        if (e->implied)
            continue;
        snprintf(one, sizeof one, "%s=%s", e->key, e->to);
        json_array_append_new(set, json_string(one));
        if (strcmp(e->from, e->to) != 0)
            snprintf(text + used, sizeof text - used, "%s%s: %s -> %s", used ? ", " : "", word_of(e->key), e->from, e->to);
    }
    put(o, "change", json_string(text));
    put(o, "edits", list);
    put(o, "set", set);
}

static json_t *change(const struct zt_advising *a, const struct zt_advise_change *c) {
    const struct zt_advise_figures *base = &a->advice->base;
    char sets[1024];
    json_t *o = json_object();
    if (c->n_edits == 0) {
        json_decref(o);
        return json_null();
    }
    edits(o, c);
    put(o, "command", json_string(zt_advise_sets(c, sets, sizeof sets)));
    put(o, "effect", json_string(zt_effect_name(c->effect)));
    put(o, "changes", json_integer(c->changes));
    put(o, "why", zt_json_text(c->why));
    put_figures(o, &c->figures);
    put(o, "saved_bytes", json_integer(base->peak_reserved_bytes - c->figures.peak_reserved_bytes));
    put(o, "room_bytes", json_integer(a->advice->budget_bytes - c->figures.peak_reserved_bytes));
    put(o, "shrank", c->shrank_bytes > 0 ? json_string(zt_tag_name(c->shrank)) : json_null());
    put(o, "shrank_bytes", zt_json_int(c->shrank_bytes > 0, c->shrank_bytes));
    put(o, "step_ratio_estimate", zt_json_real(base->step_seconds > 0, c->figures.step_seconds / base->step_seconds));
    put(o, "sent_ratio", zt_json_real(base->sent_bytes > 0, (double)c->figures.sent_bytes / (double)base->sent_bytes));
    return o;
}

static json_t *changes(const struct zt_advising *a, const struct zt_advise_change *c, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, change(a, &c[i]));
    return list;
}

static struct zt_oom_site planned_site(const struct zt_advice *a) {
    const struct zt_oom *m = &a->oom;
    return (struct zt_oom_site){.phase = zt_phase_name(m->phase), .tag = zt_tag_name(m->tag), .step = a->oom_step,
                                .fragmentation = m->fragmentation, .request = m->request, .reserved = m->reserved,
                                .allocated = m->allocated, .capacity = m->capacity, .needs = a->base.peak_allocated_bytes,
                                .parameters = m->by_tag[ZT_TAG_PARAMETERS], .gradients = m->by_tag[ZT_TAG_GRADIENTS],
                                .optimizer = m->by_tag[ZT_TAG_OPTIMIZER], .activations = m->by_tag[ZT_TAG_ACTIVATIONS],
                                .temporary = m->by_tag[ZT_TAG_TEMPORARY], .communication = m->by_tag[ZT_TAG_COMMUNICATION]};
}

static void put_place(json_t *o, const struct zt_oom_site *s) {
    const struct zt_oom_line *l = zt_oom_line(zt_oom_place_of(s));
    char text[1024];
    put(o, "where", json_string(l->where));
    put(o, "location", json_string(zt_oom_text(s, text, sizeof text)));
}

static json_t *planned_oom(const struct zt_advice *a) {
    json_t *o = zt_plan_json_oom(&a->oom, a->oom_step);
    struct zt_oom_site s = planned_site(a);
    put_place(o, &s);
    return o;
}

static int64_t int_at(const json_t *o, const char *path) { return json_integer_value(zt_json_at(o, path)); }

static json_t *measured_oom(const struct zt_advising *a) {
    if (!json_is_object(a->measured))
        return json_null();
    json_t *o = json_copy((json_t *)(uintptr_t)a->measured);
    const json_t *m = a->measured;
    const char *cause = json_string_value(json_object_get(m, "cause"));
    struct zt_oom_site s = {.phase = json_string_value(json_object_get(m, "phase")),
                            .tag = json_string_value(json_object_get(m, "tag")), .step = a->failed_step,
                            .fragmentation = cause && strcmp(cause, "fragmentation") == 0,
                            .request = int_at(m, "request_bytes"), .reserved = int_at(m, "reserved_bytes"),
                            .allocated = int_at(m, "allocated_bytes"), .capacity = int_at(m, "capacity_bytes"),
                            .needs = a->advice->base.peak_allocated_bytes, .parameters = int_at(m, "by_tag.parameters"),
                            .gradients = int_at(m, "by_tag.gradients"), .optimizer = int_at(m, "by_tag.optimizer"),
                            .activations = int_at(m, "by_tag.activations"), .temporary = int_at(m, "by_tag.temporary"),
                            .communication = int_at(m, "by_tag.communication")};
    put(o, "step", zt_json_int(a->failed_step >= 0, a->failed_step));
    put_place(o, &s);
    return o;
}

static json_t *selection(const struct zt_selection *s) {
    json_t *list = json_array();
    for (int i = 0; s && i < ZT_SELECT_ROWS; i++) {
        const struct zt_selection_row *r = &s->row[i];
        json_t *o = json_object();
        put(o, "row", json_integer(i + 1));
        put(o, "premise", json_string(r->premise));
        put(o, "take", json_string(r->take));
        put(o, "holds", json_boolean(r->holds));
        put(o, "first", json_boolean(i == s->first));
        put(o, "numbers", zt_json_text(r->numbers));
        if (r->planned)
            put_figures(o, &r->figures);
        json_array_append_new(list, o);
    }
    return list;
}

static void put_advice(json_t *j, const struct zt_advising *a) {
    const struct zt_advice *v = a->advice;
    json_t *base = json_object(), *later = json_array();
    put_figures(base, &v->base);
    put(j, "fits", json_boolean(v->base.fits));
    put(j, "fits_limit", json_boolean(v->fits_limit));
    put(j, "base", base);
    put(j, "oom", v->base.fits ? json_null() : planned_oom(v));
    put(j, "measured_oom", measured_oom(a));
    put(j, "changes", changes(a, v->change, v->n_changes));
    put(j, "partial", changes(a, v->partial, v->n_partial));
    put(j, "smallest", change(a, &v->smallest));
    put(j, "speed", changes(a, v->speed, v->n_speed));
    put(j, "reserve", change(a, &v->reserve));
    put(j, "shorter_sequences", change(a, &v->shorter));
    for (int i = 0; i < v->n_later; i++)
        json_array_append_new(later, json_pack("{s:s, s:s}", "key", v->later[i].key, "why", v->later[i].why));
    put(j, "not_in_this_version", later);
    put(j, "plans", json_integer(v->n_plans));
    put(j, "search_cut_short", json_boolean(v->cut));
}

json_t *zt_advise_json(const struct zt_advising *a) {
    const struct zt_planning *p = a->of;
    json_t *j = json_object();
    put(j, "version", json_integer(1));
    put(j, "run", zt_json_text(a->run));
    put(j, "name", zt_json_text(p->spec.name));
    put(j, "file", zt_json_text(a->run ? NULL : p->file->file));
    put(j, "device", json_string(p->device->name));
    put(j, "workers", json_integer(p->spec.workers));
    put(j, "hosts", json_integer(p->hosts));
    put(j, "mode", json_string(zt_mode_name(p->spec.parallelism.mode)));
    put(j, "limit_bytes", json_integer(a->advice ? a->advice->limit_bytes : a->selection->limit_bytes));
    put(j, "budget_bytes", json_integer(a->advice ? a->advice->budget_bytes : a->selection->budget_bytes));
    if (a->advice)
        put_advice(j, a);
    put(j, "selection", selection(a->selection));
    json_object_set(j, "assumed", p->assumed);
    return j;
}

const json_t *zt_advise_rows(const json_t *doc, bool select_only) {
    const json_t *changed = json_object_get(doc, "changes"), *speed = json_object_get(doc, "speed");
    if (select_only)
        return json_object_get(doc, "selection");
    return json_array_size(changed) > 0 || json_array_size(speed) == 0 ? changed : speed;
}

/* ---------------------------------------------------------------------------------- for people */

static const struct zt_column change_columns[] = {
    {"#", "row", ZT_CELL_COUNT, 0},
    {"CHANGE", "change", ZT_CELL_TEXT, 0},
    {"PEAK", "peak_reserved_bytes", ZT_CELL_BYTES, 0},
    {"SAVED", "saved_bytes", ZT_CELL_BYTES, 0},
    {"ROOM", "room_bytes", ZT_CELL_BYTES, 0},
    {"LESS", "less", ZT_CELL_TEXT, 0},
    {"STEP (estimate)", "step", ZT_CELL_TEXT, 0},
    {"SENT", "sent_bytes_per_step", ZT_CELL_BYTES, 0},
    {"RESULT", "result", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static const char *bytes(double b, char *buf, size_t n) {
    char text[32];
    snprintf(buf, n, "%s%s", b < 0 ? "-" : "", zt_format_bytes(b < 0 ? -b : b, text, sizeof text));
    return buf;
}
#define BYTES(b) bytes((double)(b), (char[40]){0}, 40)

/* A row of the table: what the columns cannot make of the document by themselves. */
static void people(json_t *rows, const json_t *c, int number) {
    char step[64], took[32], less[64] = "-";
    json_t *r = json_copy((json_t *)(uintptr_t)c);
    double seconds = json_number_value(json_object_get(c, "step_seconds_estimate"));
    const json_t *ratio = json_object_get(c, "step_ratio_estimate");
    const char *shrank = json_string_value(json_object_get(c, "shrank")), *effect = json_string_value(json_object_get(c, "effect"));
    zt_format_seconds(seconds, took, sizeof took);
    snprintf(step, sizeof step, "%s", took);
    if (json_is_number(ratio))
        snprintf(step, sizeof step, "%s (%+.0f %%)", took, 100 * (json_number_value(ratio) - 1));
    if (shrank)
        snprintf(less, sizeof less, "%s %s", shrank, BYTES(int_at(c, "shrank_bytes")));
    for (int e = 0; effect && e < ZT_EFFECT_COUNT; e++)
        if (strcmp(effect, zt_effect_name((enum zt_advise_effect)e)) == 0)
            put(r, "result", json_string(zt_effect_text((enum zt_advise_effect)e)));
    put(r, "row", json_integer(number));
    put(r, "step", json_string(step));
    put(r, "less", json_string(less));
    json_array_append_new(rows, r);
}

static void say_sets(FILE *out, const json_t *list) {
    const json_t *c;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, c)
        fprintf(out, "%zu: %s\n", i + 1, json_string_value(json_object_get(c, "command")));
}

static int print_changes(FILE *out, const char *title, const json_t *list, struct zt_error *err) {
    json_t *rows = json_array();
    const json_t *c;
    size_t i;
    if (json_array_size(list) == 0) {
        json_decref(rows);
        return 0;
    }
    fprintf(out, "\n%s\n", title);
    json_array_foreach((json_t *)(uintptr_t)list, i, c)
        people(rows, c, (int)i + 1);
    int rc = zt_print_table(out, rows, change_columns, err);
    json_decref(rows);
    say_sets(out, list);
    return rc;
}

static int print_one(FILE *out, const char *title, const json_t *c, struct zt_error *err) {
    json_t *list = json_array();
    if (json_is_object(c))
        json_array_append(list, (json_t *)(uintptr_t)c);
    int rc = print_changes(out, title, list, err);
    json_decref(list);
    return rc;
}

static void print_shares(FILE *out, const json_t *by_tag, double all) {
    bool any = false;
    for (int t = 0; t < ZT_TAG_COUNT; t++) {
        int64_t b = int_at(by_tag, zt_tag_name((enum zt_tag)t));
        if (b <= 0)
            continue;
        fprintf(out, "%s%s %s (%.0f %%)", any ? ", " : "", zt_tag_name((enum zt_tag)t), BYTES(b), all > 0 ? 100.0 * (double)b / all : 0);
        any = true;
    }
    fputc('\n', out);
}

static void print_place(FILE *out, const char *who, const json_t *oom) {
    const json_t *step = json_object_get(oom, "step");
    char text[32] = "";
    const char *what = json_string_value(json_object_get(oom, "what"));
    char *safe = zt_escape(what ? what : "", what ? strlen(what) : 0, false);
    if (json_is_integer(step))
        snprintf(text, sizeof text, "step %lld, ", (long long)json_integer_value(step));
    fprintf(out, "%s in %sphase %s: \"%s\" (%s) asks for %s when allocated are ", who, text,
            json_string_value(json_object_get(oom, "phase")), safe ? safe : "", json_string_value(json_object_get(oom, "tag")),
            BYTES(int_at(oom, "request_bytes")));
    free(safe);
    print_shares(out, json_object_get(oom, "by_tag"), (double)int_at(oom, "allocated_bytes"));
    zt_wrap(out, 0, 2, json_string_value(json_object_get(oom, "location")));
}

static bool same_place(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"step", "phase", "what", "request_bytes", "capacity_bytes", "by_tag"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            return false;
    return true;
}

static void print_head(FILE *out, const struct zt_advising *a, const json_t *doc) {
    const struct zt_planning *p = a->of;
    const json_t *base = json_object_get(doc, "base"), *oom = json_object_get(doc, "oom"), *measured = json_object_get(doc, "measured_oom");
    const char *phase = json_string_value(json_object_get(base, "phase_of_peak"));
    fprintf(out, "run \"%s\", mode %s, %d rank%s of %s on %d host%s: budget %s of %s\n", p->spec.name,
            zt_mode_name(p->spec.parallelism.mode), p->spec.workers, p->spec.workers == 1 ? "" : "s", p->device->name, p->hosts,
            p->hosts == 1 ? "" : "s", BYTES(int_at(doc, "budget_bytes")), BYTES(int_at(doc, "limit_bytes")));
    if (json_is_object(measured))
        print_place(out, "measured: it ran out", measured);
    fprintf(out, "%s: peak reserved %s, allocated %s in phase %s: ",
            json_is_true(json_object_get(doc, "fits")) ? "fits"
            : json_is_true(json_object_get(doc, "fits_limit")) ? "fits, but without the room that the budget asks for"
                                                               : "does not fit",
            BYTES(int_at(base, "peak_reserved_bytes")), BYTES(int_at(base, "peak_allocated_bytes")), phase ? phase : "-");
    print_shares(out, json_object_get(base, "at_peak"), (double)int_at(base, "peak_allocated_bytes"));
    if (json_is_object(oom) && json_is_object(measured) && same_place(oom, measured))
        fputs("planned: it runs out at the same place\n", out);
    else if (json_is_object(oom))
        print_place(out, json_is_true(json_object_get(doc, "fits_limit")) ? "planned: the budget ends" : "planned: it runs out", oom);
}

static void print_first(FILE *out, const json_t *doc) {
    const json_t *first = json_array_get(json_object_get(doc, "changes"), 0);
    char text[512];
    if (!first)
        return;
    snprintf(text, sizeof text, "first: %s: %s", json_string_value(json_object_get(first, "change")),
             json_string_value(json_object_get(first, "why")));
    fputc('\n', out);
    zt_wrap(out, 0, 2, text);
}

static void print_smallest(FILE *out, const json_t *doc) {
    const json_t *s = json_object_get(doc, "smallest");
    if (json_is_true(json_object_get(doc, "fits")) || json_array_size(json_object_get(doc, "changes")) > 0)
        return;
    fprintf(out, "\nnothing that was tried fits");
    if (!json_is_object(s)) {
        fputs(", and nothing needs less\n", out);
        return;
    }
    fprintf(out, "; the smallest peak is %s reserved, %s over the budget, and holds ", BYTES(int_at(s, "peak_reserved_bytes")),
            BYTES(-int_at(s, "room_bytes")));
    print_shares(out, json_object_get(s, "at_peak"), (double)int_at(s, "peak_allocated_bytes"));
}

static void print_tail(FILE *out, const json_t *doc) {
    const json_t *later = json_object_get(doc, "not_in_this_version"), *l, *row;
    size_t i;
    if (!json_is_true(json_object_get(doc, "fits")))
        json_array_foreach((json_t *)(uintptr_t)later, i, l)
            fprintf(out, "%s%s: not in this version; %s\n", i ? "" : "\n", json_string_value(json_object_get(l, "key")),
                    json_string_value(json_object_get(l, "why")));
    json_array_foreach(json_object_get(doc, "selection"), i, row)
        if (json_is_true(json_object_get(row, "first")))
            fprintf(out, "\ntable for choosing a mode (--select), row %d: %s: %s (%s)\n", (int)i + 1,
                    json_string_value(json_object_get(row, "premise")), json_string_value(json_object_get(row, "take")),
                    json_string_value(json_object_get(row, "numbers")));
    fprintf(out, "\n%lld plans were made%s; bytes are exact, times are estimates\n", (long long)int_at(doc, "plans"),
            json_is_true(json_object_get(doc, "search_cut_short")) ? ", the most there may be: there may be more" : "");
}

static int print_selection(FILE *out, const json_t *doc, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"", "mark", ZT_CELL_TEXT, 0},     {"WHEN", "premise", ZT_CELL_TEXT, 0},    {"TAKE", "take", ZT_CELL_TEXT, 0},
        {"HOLDS", "answer", ZT_CELL_TEXT, 0}, {"NUMBERS", "numbers", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *rows = json_array(), *row;
    size_t i;
    fprintf(out, "budget %s of %s; * the first row whose premise holds\n", BYTES(int_at(doc, "budget_bytes")), BYTES(int_at(doc, "limit_bytes")));
    json_array_foreach(json_object_get(doc, "selection"), i, row) {
        json_t *r = json_copy(row);
        put(r, "mark", json_string(json_is_true(json_object_get(row, "first")) ? "*" : " "));
        put(r, "answer", json_string(json_is_true(json_object_get(row, "holds")) ? "yes" : "no"));
        json_array_append_new(rows, r);
    }
    int rc = zt_print_table(out, rows, columns, err);
    json_decref(rows);
    return rc;
}

int zt_advise_print(FILE *out, const struct zt_advising *a, const json_t *doc, bool select_only, struct zt_error *err) {
    const json_t *text;
    size_t i;
    int rc = 0;
    if (select_only) {
        rc = print_selection(out, doc, err);
    } else {
        print_head(out, a, doc);
        rc = print_changes(out, "changes that fit, the cheapest first:", json_object_get(doc, "changes"), err);
        print_first(out, doc);
        print_smallest(out, doc);
        rc = rc ? rc : print_one(out, "the smallest:", json_object_get(doc, "smallest"), err);
        rc = rc ? rc : print_changes(out, "alone not enough:", json_object_get(doc, "partial"), err);
        rc = rc ? rc : print_one(out, "a note: other samples, so not the same training:", json_object_get(doc, "shorter_sequences"), err);
        rc = rc ? rc : print_changes(out, "faster, and still fits:", json_object_get(doc, "speed"), err);
        rc = rc ? rc : print_one(out, "if it runs out all the same:", json_object_get(doc, "reserve"), err);
        print_tail(out, doc);
    }
    json_array_foreach(json_object_get(doc, "assumed"), i, text)
        fprintf(out, "assumed: %s\n", json_string_value(text));
    return rc;
}
