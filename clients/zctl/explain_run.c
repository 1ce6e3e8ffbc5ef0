/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain_run.c: `zctl explain RUN --step N`: the collectives of a captured step, in order, with
 * the reason of each, what of it was exposed and who waited for whom; then sums by group and kind. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/step_trace.h"
#include "clients/zctl/json.h"
#include "core/units.h"
#include "proto/trace.h"

/* ---------------------------------------------------------------------------------- asking */

/* The pages of an answer, kept whole: parts point into them. */
struct pages { struct zt_answer *v; size_t n; Zt__StepTrace **parts; size_t n_parts; };

static void pages_free(struct pages *p) {
    for (size_t i = 0; i < p->n; i++)
        zt_answer_free(&p->v[i]);
    free(p->v);
    free(p->parts);
}

static const Zt__Trace *first_page(const struct pages *p) { return p->v[0].env->trace; }

/* Takes the answer over. Parts of another generation came in between two pages: their step is another one. */
static int add_page(struct pages *p, struct zt_answer *a, struct zt_error *err) {
    const Zt__Trace *t = a->env->body_case == ZT__ENVELOPE__BODY_TRACE ? a->env->trace : NULL;
    struct zt_answer *v = realloc(p->v, (p->n + 1) * sizeof *v);
    if (v)
        p->v = v;
    Zt__StepTrace **parts = t ? realloc(p->parts, (p->n_parts + t->n_traces + 1) * sizeof(Zt__StepTrace *)) : NULL;
    if (parts)
        p->parts = parts;
    if (!t || !v || !parts) {
        zt_answer_free(a);
        return t ? zt_fail(err, ZT_ENOMEM, "no memory for a trace")
                 : zt_fail(err, ZT_EPROTO, "the coordinator answered get_trace with something else");
    }
    p->v[p->n++] = *a;
    for (size_t i = 0; i < t->n_traces; i++) {
        const char *bad = zt_trace_check(t->traces[i]);
        if (bad)
            return zt_fail(err, ZT_EPROTO, "the trace of rank %u cannot be read: %s", t->traces[i]->rank, bad);
        if (t->traces[i]->generation == first_page(p)->generation && t->traces[i]->step == first_page(p)->step)
            p->parts[p->n_parts++] = t->traces[i];
    }
    return 0;
}

static int fetch(struct zt_source *s, const char *run, int64_t step, struct pages *p, struct zt_error *err) {
    Zt__GetTrace get = ZT__GET_TRACE__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    get.run = (char *)(uintptr_t)run;
    get.has_step = get.has_from_rank = get.has_from_part = true;
    get.step = step;
    req.body_case = ZT__ENVELOPE__BODY_GET_TRACE;
    req.get_trace = &get;
    for (;;) {
        struct zt_answer a;
        int rc = zt_source_ask(s, &req, &a, err);
        if (rc == 0)
            rc = add_page(p, &a, err);
        if (rc)
            return rc;
        const Zt__Trace *t = p->v[p->n - 1].env->trace;
        if (!t->has_more || !t->more || t->n_traces == 0)
            return 0;
        const Zt__StepTrace *last = t->traces[t->n_traces - 1];
        if (last->rank < get.from_rank || (last->rank == get.from_rank && last->part < get.from_part))
            return zt_fail(err, ZT_EPROTO, "the coordinator repeats a page");
        get.step = t->step;
        get.from_rank = last->rank;
        get.from_part = last->part + 1;
    }
}

/* ---------------------------------------------------------------------------------- JSON */

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }
static json_t *seconds(bool has, int64_t ns) { return zt_json_real(has, 1e-9 * (double)ns); }

static json_t *ranks_of(const Zt__TraceGroup *g) {
    json_t *a = json_array();
    for (size_t i = 0; i < g->n_ranks; i++)
        json_array_append_new(a, json_integer(g->ranks[i]));
    return a;
}

static json_t *collective(const struct zt_trace_coll *c, size_t number) {
    const Zt__TraceRecord *r = c->r;
    bool control = zt_trace_control(c);
    int64_t started = r->queued_ns + (int64_t)r->started_ns, ended = r->queued_ns + (int64_t)r->ended_ns;
    json_t *o = json_object();
    put(o, "rank", json_integer(c->rank));
    put(o, "number", json_integer((json_int_t)number));
    put(o, "unit", zt_json_text(zt_trace_unit(c)));
    put(o, "kind", zt_json_text(zt_trace_kind(c)));
    put(o, "group", zt_json_text(zt_trace_group(c)->name));
    put(o, "group_ranks", ranks_of(zt_trace_group(c)));
    put(o, "sequence", json_integer((json_int_t)r->seq));
    put(o, "dtype", zt_json_text(c->part->words[r->dtype]));
    put(o, "count", json_integer((json_int_t)r->count));
    put(o, "bytes", json_integer((json_int_t)r->bytes));
    put(o, "sent_bytes", zt_json_int(r->has_sent_bytes, (int64_t)r->sent_bytes));
    put(o, "control", json_boolean(control));
    put(o, "queued_seconds", seconds(true, r->queued_ns));
    put(o, "started_seconds", seconds(r->has_started_ns, started));
    put(o, "ended_seconds", seconds(r->has_ended_ns, ended));
    put(o, "seconds", seconds(c->took_ns >= 0, c->took_ns));
    put(o, "exposed_seconds", seconds(!control && r->has_exposed_ns, (int64_t)r->exposed_ns));
    put(o, "stall_seconds", seconds(!control && r->has_stall_ns, (int64_t)r->stall_ns));
    put(o, "transfer_seconds", seconds(c->transfer_ns >= 0, c->transfer_ns));
    put(o, "wait_seconds", seconds(c->wait_ns >= 0, c->wait_ns));
    put(o, "waited_for", zt_json_int(c->waited_for >= 0, c->waited_for));
    put(o, "reason", zt_json_text(c->part->words[r->reason]));
    return o;
}

static json_t *sum_row(uint32_t rank, const struct zt_trace_sum *s) {
    json_t *o = json_object();
    put(o, "rank", json_integer(rank));
    put(o, "group", zt_json_text(s->group));
    put(o, "kind", zt_json_text(s->kind));
    put(o, "control", json_boolean(s->control));
    put(o, "count", json_integer((json_int_t)s->count));
    put(o, "bytes", json_integer((json_int_t)s->bytes));
    put(o, "sent_bytes", json_integer((json_int_t)s->sent_bytes));
    put(o, "seconds", json_real(s->took));
    put(o, "exposed_seconds", zt_json_real(!s->control, s->exposed));
    put(o, "stall_seconds", zt_json_real(!s->control, s->stall));
    put(o, "wait_seconds", json_real(s->waited));
    return o;
}

static json_t *rank_row(const struct zt_trace_rank *r) {
    json_t *o = json_object();
    put(o, "rank", json_integer(r->rank));
    put(o, "step_seconds", seconds(true, r->step_ns));
    put(o, "collectives", json_integer((json_int_t)r->n));
    put(o, "dropped", json_integer((json_int_t)r->dropped));
    put(o, "complete", json_boolean(r->whole));
    put(o, "exposed_seconds", json_real(r->exposed));
    put(o, "stall_seconds", json_real(r->stall));
    put(o, "waited_seconds", json_real(r->waited));
    put(o, "held_up_seconds", json_real(r->held_up));
    put(o, "came_last", json_integer((json_int_t)r->came_last));
    return o;
}

/* Ranks of the generation that have not told about this step. */
static json_t *missing(const Zt__Trace *t, const struct zt_step_trace_set *s) {
    json_t *a = json_array();
    size_t i = 0;
    for (uint32_t rank = 0; rank < t->world; rank++) {
        while (i < s->n_ranks && s->ranks[i].rank < rank)
            i++;
        if (i == s->n_ranks || s->ranks[i].rank != rank)
            json_array_append_new(a, json_integer(rank));
    }
    return a;
}

static bool chosen(const struct zt_options *o, const struct zt_step_trace_set *s, uint32_t rank) {
    for (int i = 0; i < o->n_rank; i++)
        if (o->rank[i] == rank)
            return true;
    return o->ranks_all || (o->n_rank == 0 && zt_trace_slowest(s)->rank == rank);
}

static json_t *explained(const struct zt_options *o, const Zt__Trace *t, const struct zt_step_trace_set *s) {
    json_t *j = json_object(), *ranks = json_array(), *rows = json_array(), *sums = json_array(), *held = json_array();
    for (size_t i = 0; i < s->n_ranks; i++) {
        const struct zt_trace_rank *r = &s->ranks[i];
        struct zt_trace_sum sum[ZT_TRACE_SUMS];
        json_array_append_new(ranks, rank_row(r));
        if (!chosen(o, s, r->rank))
            continue;
        for (size_t k = 0; k < r->n; k++)
            if (!o->unit || strcmp(o->unit, zt_trace_unit(&r->v[k])) == 0)
                json_array_append_new(rows, collective(&r->v[k], k + 1));
        int n = zt_trace_sums(r, o->unit, sum);
        for (int k = 0; k < n; k++)
            json_array_append_new(sums, sum_row(r->rank, &sum[k]));
    }
    for (size_t i = 0; i < t->n_held; i++) {
        json_t *h = json_object();
        put(h, "step", json_integer(t->held[i]->step));
        put(h, "generation", json_integer(t->held[i]->generation));
        json_array_append_new(held, h);
    }
    put(j, "run", zt_json_text(t->run_id));
    put(j, "name", zt_json_text(t->name));
    put(j, "generation", json_integer(t->generation));
    put(j, "step", json_integer(t->step));
    put(j, "slowest_rank", json_integer(zt_trace_slowest(s)->rank));
    put(j, "ranks", ranks);
    put(j, "missing_ranks", missing(t, s));
    put(j, "mismatched", json_integer((json_int_t)s->mismatched));
    put(j, "collectives", rows);
    put(j, "summary", sums);
    put(j, "held", held);
    return j;
}

/* ---------------------------------------------------------------------------------- tables */

const char *zt_exposed_word(bool control, double seconds, char *buf, size_t n) {
    return control ? "control" : seconds > 0 ? zt_format_seconds(seconds, buf, n) : "covered";
}

/* Rows for people: what is neither measured nor owed is a word instead of a dash. */
static json_t *for_people(const json_t *rows, uint32_t rank) {
    json_t *out = json_array(), *row;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        char text[32];
        const json_t *exposed = zt_json_at(row, "exposed_seconds");
        if (json_integer_value(json_object_get(row, "rank")) != rank)
            continue;
        json_t *r = json_copy(row);
        double v = json_number_value(exposed);
        put(r, "exposed", json_string(zt_exposed_word(json_is_true(json_object_get(row, "control")), v, text, sizeof text)));
        json_array_append_new(out, r);
    }
    return out;
}

static const struct zt_column collective_columns[] = {
    {"#", "number", ZT_CELL_COUNT, 0},
    {"UNIT", "unit", ZT_CELL_TEXT, 0},
    {"WHAT", "kind", ZT_CELL_TEXT, 0},
    {"GROUP", "group", ZT_CELL_TEXT, 0},
    {"TYPE", "dtype", ZT_CELL_TEXT, 0},
    {"BYTES", "bytes", ZT_CELL_BYTES, 0},
    {"SENT", "sent_bytes", ZT_CELL_BYTES, 0},
    {"QUEUED", "queued_seconds", ZT_CELL_SECONDS, 0},
    {"STARTED", "started_seconds", ZT_CELL_SECONDS, 0},
    {"ENDED", "ended_seconds", ZT_CELL_SECONDS, 0},
    {"EXPOSED", "exposed", ZT_CELL_TEXT, 0},
    {"WAITED", "wait_seconds", ZT_CELL_SECONDS, 0},
    {"FOR", "waited_for", ZT_CELL_COUNT, 0},
    {"WHY", "reason", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static const struct zt_column sum_columns[] = {
    {"GROUP", "group", ZT_CELL_TEXT, 0},
    {"WHAT", "kind", ZT_CELL_TEXT, 0},
    {"COUNT", "count", ZT_CELL_COUNT, 0},
    {"BYTES", "bytes", ZT_CELL_BYTES, 0},
    {"SENT", "sent_bytes", ZT_CELL_BYTES, 0},
    {"TOTAL", "seconds", ZT_CELL_SECONDS, 0},
    {"EXPOSED", "exposed_seconds", ZT_CELL_SECONDS, 0},
    {"STALL", "stall_seconds", ZT_CELL_SECONDS, 0},
    {"WAITED", "wait_seconds", ZT_CELL_SECONDS, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static int print_rank(FILE *out, const struct zt_options *o, const json_t *j, const struct zt_trace_rank *r, bool slowest,
                      struct zt_error *err) {
    char step[32], exposed[32], stall[32];
    json_t *rows = for_people(json_object_get(j, "collectives"), r->rank);
    json_t *sums = for_people(json_object_get(j, "summary"), r->rank);
    fprintf(out, "\nrank %u%s: step %s, %zu collectives, exposed %s (%.1f %%), compute stalled %s\n", r->rank,
            slowest && r->came_last ? ", which the others waited for longest" : "",
            zt_format_seconds(1e-9 * (double)r->step_ns, step, sizeof step), r->n,
            zt_format_seconds(r->exposed, exposed, sizeof exposed),
            r->step_ns > 0 ? 100 * r->exposed / (1e-9 * (double)r->step_ns) : 0,
            zt_format_seconds(r->stall, stall, sizeof stall));
    if (!r->whole)
        fprintf(out, "not complete: %llu collectives of this rank were not kept\n", (unsigned long long)r->dropped);
    int rc = 0;
    if (json_array_size(rows) > 0)
        rc = zt_print_table(out, rows, collective_columns, err);
    else
        fprintf(out, "no collective%s%s in this step\n", o->unit ? " of unit " : "", o->unit ? o->unit : "");
    if (rc == 0 && json_array_size(sums) > 0) {
        fputc('\n', out);
        rc = zt_print_table(out, sums, sum_columns, err);
    }
    json_decref(rows);
    json_decref(sums);
    return rc;
}

static void print_waits(FILE *out, const json_t *j, const struct zt_step_trace_set *s) {
    bool any = false;
    char text[32];
    fputc('\n', out);
    for (size_t i = 0; i < s->n_ranks; i++) {
        const struct zt_trace_rank *r = &s->ranks[i];
        if (r->came_last == 0)
            continue;
        fprintf(out, "%s rank %u: %s in %zu collective%s", any ? ";" : "waited for:", r->rank,
                zt_format_seconds(r->held_up, text, sizeof text), r->came_last, r->came_last == 1 ? "" : "s");
        any = true;
    }
    fputs(any ? "\n" : "nobody waited for anybody\n", out);
    const json_t *missing_ranks = json_object_get(j, "missing_ranks");
    size_t n = json_array_size(missing_ranks);
    if (n > 0)
        fprintf(out, "%zu rank%s not told about this step yet, the first of them %lld: waits for %s are not known\n", n,
                n == 1 ? " has" : "s have", (long long)json_integer_value(json_array_get(missing_ranks, 0)),
                n == 1 ? "it" : "them");
    if (s->mismatched > 0)
        fprintf(out, "%zu collectives are described differently by the ranks of their group\n", s->mismatched);
}

static int print_table(FILE *out, const struct zt_options *o, const Zt__Trace *t, const json_t *j,
                       const struct zt_step_trace_set *s, struct zt_error *err) {
    char *name = zt_escape(t->name, strlen(t->name), false);
    const struct zt_trace_rank *slowest = zt_trace_slowest(s);
    fprintf(out, "run %s \"%s\", generation %u, step %lld, %zu rank%s\n", t->run_id, name ? name : "", t->generation,
            (long long)t->step, s->n_ranks, s->n_ranks == 1 ? "" : "s");
    free(name);
    int rc = 0;
    for (size_t i = 0; i < s->n_ranks && rc == 0; i++)
        if (chosen(o, s, s->ranks[i].rank))
            rc = print_rank(out, o, j, &s->ranks[i], &s->ranks[i] == slowest, err);
    if (rc == 0)
        print_waits(out, j, s);
    return rc;
}

/* ---------------------------------------------------------------------------------- the command */

/* A rank or a unit that is not there is told with those that are. */
static int check_choice(const struct zt_options *o, const Zt__Trace *t, const struct zt_step_trace_set *s,
                        struct zt_error *err) {
    bool unit = !o->unit;
    char units[600] = "";
    if (s->n_ranks == 0)
        return zt_fail(err, ZT_ENOTFOUND, "step %lld of run %s: its trace is gone", (long long)t->step, t->name);
    for (int i = 0; i < o->n_rank; i++) {
        size_t k = 0;
        while (k < s->n_ranks && s->ranks[k].rank != o->rank[i])
            k++;
        if (k == s->n_ranks)
            return zt_fail(err, ZT_ENOTFOUND, "rank %u has not told about step %lld of run %s (ranks 0 to %u)", o->rank[i],
                           (long long)t->step, t->name, t->world > 0 ? t->world - 1 : 0);
    }
    for (size_t i = 0; i < s->n_all && !unit; i++) {
        const char *name = zt_trace_unit(&s->all[i]);
        char quoted[80];
        unit = strcmp(name, o->unit) == 0;
        snprintf(quoted, sizeof quoted, "%s,", name);
        size_t used = strlen(units);
        if (name[0] && !strstr(units, quoted) && used + strlen(quoted) + 2 < sizeof units)
            snprintf(units + used, sizeof units - used, " %s", quoted);
    }
    if (units[0])
        units[strlen(units) - 1] = '\0';
    return unit ? 0 : zt_fail(err, ZT_ENOTFOUND, "no collective of unit \"%.60s\" in step %lld; there are:%s", o->unit,
                              (long long)t->step, units[0] ? units : " none");
}

static int print(const struct zt_options *o, const struct pages *p, struct zt_error *err) {
    struct zt_step_trace_set s;
    const Zt__Trace *t = first_page(p);
    int rc = zt_trace_set_make(&s, p->parts, p->n_parts, err);
    if (rc)
        return rc;
    rc = check_choice(o, t, &s, err);
    if (rc == 0) {
        json_t *j = explained(o, t, &s);
        rc = o->format == ZT_FORMAT_TABLE
                 ? print_table(stdout, o, t, j, &s, err)
                 : zt_print_rows(stdout, o, j, json_object_get(j, "collectives"), collective_columns, err);
        json_decref(j);
    }
    zt_trace_set_free(&s);
    return rc;
}

int zt_explain_run(const struct zt_options *o) {
    struct zt_source s;
    struct pages p = {0};
    struct zt_error err;
    if (o->step_from != o->step_to)
        return zt_report(zt_fail(&err, ZT_EINVAL, "--step: zctl explain takes one step, e.g. --step 10"), &err);
    int rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = fetch(&s, o->subject, o->step_from, &p, &err);
    if (rc == 0)
        rc = print(o, &p, &err);
    pages_free(&p);
    zt_source_close(&s);
    /* perhaps a mode was meant and mistyped */
    if ((rc == ZT_EUNREACHABLE || (rc == ZT_ENOTFOUND && p.n == 0)) && o->step_from == 0)
        rc = zt_fail(&err, rc, "%s (\"%.60s\" is not the name of a mode; zctl explain modes shows them)", err.msg, o->subject);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
