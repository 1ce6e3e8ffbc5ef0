/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/memory.c: what was predicted and what was measured: `zctl memory`, and the lines about memory in
 * `zctl status`. Rows are those of the newest generation; a window that did not occur has none. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/plan_json.h"
#include "clients/zctl/predict.h"
#include "core/units.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

/* ---------------------------------------------------------------------------------- rows */

static json_t *window_row(const json_t *doc, struct zt_mesh mesh, const Zt__MemoryRow *r, const char **why) {
    int64_t capacity = r->has_capacity_bytes && r->capacity_bytes <= INT64_MAX ? (int64_t)r->capacity_bytes : 0;
    const char *reason = NULL;
    const json_t *predicted =
        doc && r->rank <= INT32_MAX ? zt_stored_window(doc, mesh, (int)r->rank, r->window, capacity, &reason) : NULL;
    if (!predicted && reason && !*why)
        *why = reason;
    return zt_json_memory(r, predicted);
}

int zt_fetch_memory(struct zt_source *s, const char *run, json_t **reply, struct zt_error *err) {
    Zt__GetMemory get = ZT__GET_MEMORY__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    json_t *o = json_object(), *rows = json_array(), *doc = NULL;
    const char *why = NULL;
    get.run = (char *)(uintptr_t)run;
    get.has_from_rank = true;
    req.body_case = ZT__ENVELOPE__BODY_GET_MEMORY;
    req.get_memory = &get;
    for (bool more = true; more;) {
        struct zt_answer a;
        int rc = zt_source_ask(s, &req, &a, err);
        if (rc) {
            json_decref(o);
            json_decref(rows);
            json_decref(doc);
            return rc;
        }
        const Zt__Memory *m = a.env->memory;
        if (get.from_rank == 0) {
            put(o, "run", zt_json_text(m->run_id));
            put(o, "name", zt_json_text(m->name));
            put(o, "generation", zt_json_int(m->has_generation, m->generation));
            doc = zt_stored_plan(m->has_plan ? m->plan.data : NULL, m->has_plan ? m->plan.len : 0, &why);
        }
        struct zt_mesh mesh = {(int)m->replicate, (int)m->shard, (int)m->tensor};
        for (size_t i = 0; i < m->n_rows; i++)
            json_array_append_new(rows, window_row(doc, mesh, m->rows[i], &why));
        more = m->has_more && m->more && m->n_rows > 0 && m->rows[m->n_rows - 1]->rank >= get.from_rank;
        if (more)
            get.from_rank = m->rows[m->n_rows - 1]->rank + 1;
        zt_answer_free(&a);
    }
    put(o, "plan", doc ? doc : json_null());
    put(o, "unpredicted", zt_json_text(why));
    put(o, "ranks", rows);
    *reply = o;
    return 0;
}

static bool int_of(const json_t *row, const char *path, int64_t *out) {
    const json_t *v = zt_json_at(row, path);
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    return json_is_integer(v);
}

/* measured - predicted of a figure; false where one of them is missing. */
static bool difference(const json_t *row, const char *figure, int64_t *out) {
    char a[64], b[64];
    int64_t predicted, measured;
    snprintf(a, sizeof a, "predicted.%s", figure);
    snprintf(b, sizeof b, "measured.%s", figure);
    if (!int_of(row, a, &predicted) || !int_of(row, b, &measured))
        return false;
    *out = measured - predicted;
    return true;
}

/* ---------------------------------------------------------------------------------- in short */

json_t *zt_json_memory_summary(const Zt__RunDetail *d) {
    static const char *const figures[] = {"peak_allocated_bytes", "peak_reserved_bytes"};
    struct zt_mesh mesh = {(int)d->replicate, (int)d->shard, (int)d->tensor};
    const char *why = NULL;
    json_t *o = json_object(), *worst = NULL;
    json_t *doc = zt_stored_plan(d->has_plan ? d->plan.data : NULL, d->has_plan ? d->plan.len : 0, &why);
    int64_t predicted = 0, measured = 0, most = 0, v;
    bool all = true;
    for (size_t i = 0; i < d->n_windows; i++) {
        json_t *row = window_row(doc, mesh, d->windows[i], &why);
        measured = int_of(row, "measured.peak_allocated_bytes", &v) && v > measured ? v : measured;
        if (int_of(row, "predicted.peak_allocated_bytes", &v))
            predicted = v > predicted ? v : predicted;
        else
            all = false;
        for (int f = 0; f < 2; f++)
            if (difference(row, figures[f], &v) && (!worst || llabs(v) > llabs(most))) {
                most = v;
                json_decref(worst);
                worst = json_incref(row);
            }
        json_decref(row);
    }
    int64_t whole = -1; /* over all windows, also those that have not come yet */
    const json_t *plan = doc ? zt_stored_plan_of(doc, d->n_windows > 0 && d->windows[0]->has_capacity_bytes
                                                          ? (int64_t)d->windows[0]->capacity_bytes : 0, &why) : NULL;
    if (plan && int_of(plan, "peak_allocated_bytes", &v))
        whole = v;
    all = all && d->n_windows > 0;
    put(o, "planned_peak_allocated_bytes", zt_json_int(whole >= 0, whole));
    put(o, "predicted_peak_allocated_bytes", zt_json_int(all, predicted));
    put(o, "measured_peak_allocated_bytes", zt_json_int(d->n_windows > 0, measured));
    put(o, "difference_bytes", zt_json_int(worst != NULL, most));
    put(o, "rank", worst ? json_incref(json_object_get(worst, "rank")) : json_null());
    put(o, "window", worst ? json_incref(json_object_get(worst, "window")) : json_null());
    put(o, "unpredicted", zt_json_text(all || (plan && d->n_windows == 0) ? NULL : why));
    json_decref(worst);
    json_decref(doc);
    return o;
}

static void print_oom_advice(FILE *out, const json_t *oom, const char *indent) {
    static const char *const keys[] = {"location", "first_change"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(oom, keys[i]);
        char *safe = json_is_string(v) ? zt_escape(json_string_value(v), json_string_length(v), false) : NULL;
        if (safe)
            fprintf(out, "%s%s%s\n", indent, i ? "the first change that fits: " : "", safe);
        free(safe);
    }
    if (!json_is_string(json_object_get(oom, "first_change")))
        fprintf(out, "%szctl advise FILE shows the changes that fit, the cheapest first\n", indent);
}

void zt_print_memory_lines(FILE *out, const Zt__RunDetail *d) {
    json_t *m = zt_json_memory_summary(d), *oom = zt_oom_of(d);
    const char *why = json_string_value(json_object_get(m, "unpredicted"));
    const char *window = json_string_value(json_object_get(m, "window"));
    int64_t planned, predicted, measured, most, rank;
    bool has_planned = int_of(m, "planned_peak_allocated_bytes", &planned);
    bool has_predicted = int_of(m, "predicted_peak_allocated_bytes", &predicted);
    bool has_measured = int_of(m, "measured_peak_allocated_bytes", &measured);
    char a[32], b[32], c[32];
    if (!has_measured && has_planned)
        fprintf(out, "memory   peak predicted %s, nothing measured\n", zt_format_bytes((double)planned, a, sizeof a));
    else if (has_measured && !has_predicted)
        fprintf(out, "memory   peak predicted -, measured %s: %s\n", zt_format_bytes((double)measured, b, sizeof b),
                why ? why : "not planned");
    else if (has_measured && int_of(m, "difference_bytes", &most) && most == 0)
        fprintf(out, "memory   peak predicted %s, measured %s: equal to the byte\n",
                zt_format_bytes((double)predicted, a, sizeof a), zt_format_bytes((double)measured, b, sizeof b));
    else if (has_measured && int_of(m, "rank", &rank))
        fprintf(out, "memory   peak predicted %s, measured %s: %s%s bytes in %s of rank %lld; zctl memory shows where\n",
                zt_format_bytes((double)predicted, a, sizeof a), zt_format_bytes((double)measured, b, sizeof b),
                most > 0 ? "+" : "", zt_format_count(most, c, sizeof c), window ? window : "-", (long long)rank);
    if (json_is_object(oom))
        print_oom_advice(out, oom, "oom      ");
    json_decref(oom);
    json_decref(m);
}

/* ---------------------------------------------------------------------------------- where it ran out */

json_t *zt_oom_of(const Zt__RunDetail *d) {
    json_t *run = zt_json_run(d), *attempts = json_object_get(run, "attempts"), *found = json_null();
    for (size_t i = json_array_size(attempts); i-- > 0 && json_is_null(found);) {
        json_t *a = json_array_get(attempts, i), *oom = json_object_get(a, "oom");
        if (!json_is_object(oom))
            continue;
        found = json_object();
        for (const char *const *key = (const char *const[]){"generation", "rank", "worker", NULL}; *key; key++)
            json_object_set(found, *key, json_object_get(a, *key));
        json_object_update(found, oom);
    }
    json_decref(run);
    return found;
}

static void print_oom_text(FILE *out, const json_t *oom) {
    static const struct zt_column c[] = {{"", "generation", ZT_CELL_TEXT, 0}, {"", "rank", ZT_CELL_TEXT, 0},
                                         {"", "worker", ZT_CELL_TEXT, 0},     {"", "what", ZT_CELL_TEXT, 0},
                                         {"", "request_bytes", ZT_CELL_BYTES, 0}, {"", "tag", ZT_CELL_TEXT, 0},
                                         {"", "phase", ZT_CELL_TEXT, 0},      {"", "cause", ZT_CELL_TEXT, 0}};
    char t[8][256];
    for (int i = 0; i < 8; i++)
        zt_cell_text(oom, &c[i], t[i], sizeof t[i]);
    fprintf(out, "out of memory in generation %s: rank %s on %s: \"%s\" asked for %s (%s) in phase %s; cause: %s\n",
            t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
}

int zt_print_oom(FILE *out, const json_t *oom, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"CAPACITY", "capacity_bytes", ZT_CELL_BYTES, 0},
        {"RESERVED", "reserved_bytes", ZT_CELL_BYTES, 0},
        {"ALLOCATED", "allocated_bytes", ZT_CELL_BYTES, 0},
        {"FREE", "free_device_bytes", ZT_CELL_BYTES, 0},
        {"LARGEST BLOCK", "largest_free_block_bytes", ZT_CELL_BYTES, 0},
        {"PARAMS", "by_tag.parameters", ZT_CELL_BYTES, 0},
        {"GRADS", "by_tag.gradients", ZT_CELL_BYTES, 0},
        {"OPTIM", "by_tag.optimizer", ZT_CELL_BYTES, 0},
        {"ACTIV", "by_tag.activations", ZT_CELL_BYTES, 0},
        {"TEMP", "by_tag.temporary", ZT_CELL_BYTES, 0},
        {"COMM", "by_tag.communication", ZT_CELL_BYTES, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *rows = json_array();
    json_array_append(rows, (json_t *)(uintptr_t)oom);
    print_oom_text(out, oom);
    int rc = zt_print_table(out, rows, columns, err);
    json_decref(rows);
    if (rc == 0)
        print_oom_advice(out, oom, "");
    return rc;
}

/* ---------------------------------------------------------------------------------- the table */

static const char *const tag_paths[] = {"at_peak.parameters", "at_peak.gradients", "at_peak.optimizer",
                                        "at_peak.activations", "at_peak.temporary", "at_peak.communication"};

/* What the peaks' equality does not show: another composition, or another phase. */
static void print_composition(FILE *out, const json_t *rows) {
    json_t *row;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const char *a = json_string_value(zt_json_at(row, "predicted.phase_of_peak"));
        const char *b = json_string_value(zt_json_at(row, "measured.phase_of_peak"));
        const char *window = json_string_value(json_object_get(row, "window"));
        long long rank = (long long)json_integer_value(json_object_get(row, "rank"));
        char n[32];
        int64_t v;
        if (a && b && strcmp(a, b) != 0)
            fprintf(out, "rank %lld %s: predicted in phase %s, measured in %s\n", rank, window, a, b);
        for (size_t t = 0; t < sizeof tag_paths / sizeof tag_paths[0]; t++)
            if (difference(row, tag_paths[t], &v) && v != 0)
                fprintf(out, "rank %lld %s: %s differs by %s bytes\n", rank, window, tag_paths[t],
                        zt_format_count(v, n, sizeof n));
    }
}

/* The row whose figure at `path` is the highest. */
static const json_t *highest(const json_t *rows, const char *path) {
    const json_t *best = NULL, *row;
    int64_t most = -1, v;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row)
        if (int_of(row, path, &v) && v > most) {
            most = v;
            best = row;
        }
    return best;
}

/* Three figures that never share a name. */
static void print_figures(FILE *out, const json_t *rows, const char *run) {
    const json_t *p = highest(rows, "measured.persistent_bytes.optimizer"), *r = highest(rows, "measured.peak_allocated_bytes");
    char a[32], b[32], c[32], d[32];
    int64_t state[3] = {0}, peak, reserved, predicted;
    if (!r)
        return;
    if (p && int_of(p, "measured.persistent_bytes.parameters", &state[0]) &&
        int_of(p, "measured.persistent_bytes.gradients", &state[1]) &&
        int_of(p, "measured.persistent_bytes.optimizer", &state[2]))
        fprintf(out, "lower bound   %s of persistent state on a rank: parameters %s, gradients %s, optimizer %s\n",
                zt_format_bytes((double)(state[0] + state[1] + state[2]), a, sizeof a),
                zt_format_bytes((double)state[0], b, sizeof b), zt_format_bytes((double)state[1], c, sizeof c),
                zt_format_bytes((double)state[2], d, sizeof d));
    fprintf(out, "steady curve  zctl memory %s --curve\n", run);
    int_of(r, "measured.peak_allocated_bytes", &peak);
    int_of(r, "measured.peak_reserved_bytes", &reserved);
    fprintf(out, "peak          allocated %s, reserved %s (rank %lld, %s)", zt_format_bytes((double)peak, a, sizeof a),
            zt_format_bytes((double)reserved, b, sizeof b), (long long)json_integer_value(json_object_get(r, "rank")),
            json_string_value(json_object_get(r, "window")));
    if (int_of(r, "predicted.peak_allocated_bytes", &predicted))
        fprintf(out, "; predicted %s", zt_format_bytes((double)predicted, c, sizeof c));
    fputc('\n', out);
}

int zt_print_memory_rows(FILE *out, const json_t *rows, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"RANK", "rank", ZT_CELL_COUNT, 0},
        {"WINDOW", "window", ZT_CELL_TEXT, 0},
        {"PREDICTED", "predicted.peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"PEAK ALLOC", "measured.peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"DIFF B", "allocated_difference", ZT_CELL_COUNT, 0},
        {"PREDICTED", "predicted.peak_reserved_bytes", ZT_CELL_BYTES, 0},
        {"RESERVED", "measured.peak_reserved_bytes", ZT_CELL_BYTES, 0},
        {"DIFF B", "reserved_difference", ZT_CELL_COUNT, 0},
        {"PARAMS", "measured.at_peak.parameters", ZT_CELL_BYTES, 0},
        {"GRADS", "measured.at_peak.gradients", ZT_CELL_BYTES, 0},
        {"OPTIM", "measured.at_peak.optimizer", ZT_CELL_BYTES, 0},
        {"ACTIV", "measured.at_peak.activations", ZT_CELL_BYTES, 0},
        {"TEMP", "measured.at_peak.temporary", ZT_CELL_BYTES, 0},
        {"COMM", "measured.at_peak.communication", ZT_CELL_BYTES, 0},
        {"PHASE", "measured.phase_of_peak", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *shown = json_array(), *row;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        json_t *copy = json_copy(row);
        int64_t v;
        if (difference(row, "peak_allocated_bytes", &v))
            put(copy, "allocated_difference", json_integer(v));
        if (difference(row, "peak_reserved_bytes", &v))
            put(copy, "reserved_difference", json_integer(v));
        json_array_append_new(shown, copy);
    }
    int rc = zt_print_table(out, shown, columns, err);
    json_decref(shown);
    if (rc)
        return rc;
    print_composition(out, rows);
    return 0;
}

static int print_memory(FILE *out, const struct zt_options *o, const json_t *j, struct zt_error *err) {
    const json_t *rows = json_object_get(j, "ranks");
    const char *why = json_string_value(json_object_get(j, "unpredicted"));
    int rc = zt_print_memory_rows(out, rows, err);
    if (rc)
        return rc;
    print_figures(out, rows, o->subject);
    if (why)
        fprintf(out, "predicted -   %s\n", why);
    return 0;
}

/* ---------------------------------------------------------------------------------- one steady step */

/* "block 3" of "block 3: qkv" and of "block3 gradients", "root" of what the model's ends ask for; false: the buffer
 * says nothing about where the step is (workspaces, units gathered ahead). */
static bool unit_of(const char *what, char *unit, size_t n) {
    static const char *const ends[] = {"root gradients", "stream", "final norm", "final norm gradient", "logits"};
    int number, end = 0;
    if (sscanf(what, "block %d:%n", &number, &end) == 1 && end > 0)
        snprintf(unit, n, "block %d", number);
    else if (sscanf(what, "block%d gradients%n", &number, &end) == 1 && end > 0)
        snprintf(unit, n, "block %d", number);
    else {
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
            if (strcmp(what, ends[i]) == 0) {
                snprintf(unit, n, "root");
                return true;
            }
        return false;
    }
    return true;
}

static json_t *place_row(const json_t *point, const char *unit) {
    json_t *row = json_copy((json_t *)(uintptr_t)point);
    put(row, "unit", zt_json_text(unit));
    return row;
}

/* Of each stay in one phase and unit the highest point, with a bar. What comes says where the step is; what goes
 * may belong to the unit before. */
static json_t *curve_rows(const json_t *curve) {
    json_t *rows = json_array(), *point, *last = NULL;
    int64_t top = 1, before = 0, v;
    char unit[48] = "root", phase[24] = "";
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)curve, i, point) {
        const char *what = json_string_value(json_object_get(point, "what"));
        const char *now = json_string_value(json_object_get(point, "phase"));
        char next[48];
        int_of(point, "allocated_bytes", &v);
        bool moved = v > before && what && unit_of(what, next, sizeof next) && strcmp(next, unit) != 0;
        if (now && strcmp(now, "optimizer") == 0 && strcmp(phase, now) != 0)
            unit[0] = '\0'; /* group by group, in no unit */
        if (moved)
            snprintf(unit, sizeof unit, "%s", next);
        if (moved || !now || strcmp(now, phase) != 0) {
            snprintf(phase, sizeof phase, "%s", now ? now : "");
            last = place_row(point, unit);
            json_array_append_new(rows, last);
        } else if (int_of(last, "allocated_bytes", &top) && v > top) {
            json_object_update(last, point);
        }
        before = v;
    }
    top = 1;
    json_array_foreach(rows, i, point)
        top = int_of(point, "allocated_bytes", &v) && v > top ? v : top;
    json_array_foreach(rows, i, point) {
        char bar[33] = "";
        int_of(point, "allocated_bytes", &v);
        memset(bar, '#', (size_t)(v > 0 ? v * 32 / top : 0));
        put(point, "bar", zt_json_text(bar));
    }
    return rows;
}

/* The run as it was submitted, planned once more with every detail. */
static int plan_again(const Zt__RunDetail *d, const json_t *doc, struct zt_plan **out, struct zt_error *err) {
    struct zt_spec *s = calloc(1, sizeof *s);
    char note[ZT_PATH_MAX + 512];
    int workers = (int)(d->replicate * d->shard * d->tensor);
    const json_t *mesh = json_object_get(doc, "mesh");
    int64_t r = 0, k = 0, t = 0;
    if (!s)
        return zt_fail(err, ZT_ENOMEM, "no memory for a plan");
    if (workers == 0 && int_of(mesh, "replicate", &r) && int_of(mesh, "shard", &k) && int_of(mesh, "tensor", &t))
        workers = (int)(r * k * t); /* it was not given any yet */
    int rc = d->normalised && d->normalised[0]
                 ? zt_spec_parse(d->normalised, strlen(d->normalised), "the stored run file", NULL, 0, s, err)
                 : zt_fail(err, ZT_ENOTFOUND, "the coordinator does not have the run's configuration");
    if (rc == 0)
        rc = zt_spec_resolve(s, workers, "the stored run file", err);
    struct zt_plan_config c = {.spec = s, .details = true, .capacity_bytes = ZT_PLAN_NO_LIMIT};
    if (rc == 0 && !(c.device = zt_predict_device(s->requirements.device)))
        rc = zt_fail(err, ZT_EUNSUPPORTED, "device \"%s\" is not in the table of devices", s->requirements.device);
    if (rc == 0) {
        zt_predict_data(s, &c.valid_samples, &c.total_steps, note, sizeof note);
        rc = zt_plan_make(&c, out, err);
    }
    zt_spec_free(s);
    free(s);
    return rc;
}

int zt_print_curve(const struct zt_options *o, json_t *head, const struct zt_plan *plan, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"AT", "seconds_estimate", ZT_CELL_SECONDS, 0},
        {"PHASE", "phase", ZT_CELL_TEXT, 0},
        {"UNIT", "unit", ZT_CELL_TEXT, 0},
        {"ALLOCATED", "allocated_bytes", ZT_CELL_BYTES, 0},
        {"PARAMS", "by_tag.parameters", ZT_CELL_BYTES, 0},
        {"GRADS", "by_tag.gradients", ZT_CELL_BYTES, 0},
        {"OPTIM", "by_tag.optimizer", ZT_CELL_BYTES, 0},
        {"ACTIV", "by_tag.activations", ZT_CELL_BYTES, 0},
        {"TEMP", "by_tag.temporary", ZT_CELL_BYTES, 0},
        {"COMM", "by_tag.communication", ZT_CELL_BYTES, 0},
        {"", "bar", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *curve = zt_plan_json_curve(plan);
    int rc;
    json_object_set(head, "curve", curve);
    if (o->format == ZT_FORMAT_TABLE) {
        json_t *rows = curve_rows(curve);
        puts("one steady step as planned; of each unit the highest point, times are estimates:");
        rc = zt_print_table(stdout, rows, columns, err);
        json_decref(rows);
    } else {
        rc = zt_print_rows(stdout, o, head, curve, columns, err);
    }
    json_decref(curve);
    return rc;
}

static int curve_of(const struct zt_options *o, const Zt__RunDetail *d, const json_t *doc, struct zt_error *err) {
    struct zt_plan *plan = NULL;
    int rc = plan_again(d, doc, &plan, err);
    if (rc)
        return rc;
    json_t *head = json_object();
    put(head, "run", zt_json_text(d->summary->run_id));
    put(head, "name", zt_json_text(d->summary->name));
    rc = zt_print_curve(o, head, plan, err);
    json_decref(head);
    zt_plan_free(plan);
    return rc;
}

/* ---------------------------------------------------------------------------------- command */

static bool rank_wanted(const struct zt_options *o, json_int_t rank) {
    for (int i = 0; i < o->n_rank; i++)
        if (o->rank[i] == rank)
            return true;
    return o->n_rank == 0;
}

static int print_all(const struct zt_options *o, json_t *j, struct zt_error *err) {
    json_t *rows = json_object_get(j, "ranks"), *oom = json_object_get(j, "oom");
    bool ran_out = json_is_object(oom);
    static const struct zt_column none = {NULL, NULL, ZT_CELL_TEXT, 0};
    int rc = 0;
    if (o->format != ZT_FORMAT_TABLE)
        return zt_print_rows(stdout, o, j, rows, &none, err);
    if (json_array_size(rows) > 0)
        rc = print_memory(stdout, o, j, err);
    else if (!ran_out)
        puts("no memory was reported");
    return rc == 0 && ran_out ? zt_print_oom(stdout, oom, err) : rc;
}

int zt_cmd_memory(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a = {0};
    struct zt_error err;
    json_t *j = NULL;
    int rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = zt_fetch_memory(&s, o->subject, &j, &err);
    if (rc == 0)
        rc = zt_fetch_run(&s, o->subject, false, &a, &err);
    zt_source_close(&s);
    if (rc == 0 && o->curve) {
        rc = curve_of(o, a.env->run_detail, json_object_get(j, "plan"), &err);
    } else if (rc == 0) {
        json_t *rows = json_object_get(j, "ranks");
        put(j, "oom", zt_oom_of(a.env->run_detail));
        for (size_t i = json_array_size(rows); i-- > 0;)
            if (!rank_wanted(o, json_integer_value(json_object_get(json_array_get(rows, i), "rank"))))
                json_array_remove(rows, i);
        rc = print_all(o, j, &err);
    }
    zt_answer_free(&a);
    json_decref(j);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
