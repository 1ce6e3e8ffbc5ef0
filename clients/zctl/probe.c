/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/probe.c: `zctl probe FILE`: a few whole steps of a run and one evaluation on real workers, and
 * the peaks of every window and rank beside the plan. Only a run whose windows are all there is called a fit;
 * one that ran out of memory is a result too, with what the plan expected.
 *
 * The run is the file's but for its name and its length. Where: on the workers of --coord (or ZCTL_COORD), else on
 * workers of its own, as zctl run. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "clients/zctl/predict.h"
#include "core/units.h"

#define LEAST_STEPS 3 /* the first, one in which nothing is new, one more */
#define MAX_WINDOWS 5

struct probe {
    const struct zt_options *o;
    const struct zt_spec *spec;  /* of the file as it is probed, not resolved */
    int64_t steps;
    const char *window[MAX_WINDOWS]; /* that have to be there */
    int n_windows;
};

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

static int64_t int_at(const json_t *row, const char *path) {
    const json_t *v = zt_json_at(row, path);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}

static const char *text_at(const json_t *row, const char *path) {
    const char *s = json_string_value(zt_json_at(row, path));
    return s ? s : "-";
}

/* ---------------------------------------------------------------------------------- what is run */

/* "NAME-probe", cut to what a name may have. */
static int rename_run(struct zt_run_file *f, const struct zt_options *o, struct zt_error *err) {
    char name[64];
    if (o->name)
        return zt_run_file_set(f, "name", o->name, err);
    snprintf(name, sizeof name, "%.57s-probe", f->spec.name);
    return zt_run_file_set(f, "name", name, err);
}

static int load(struct probe *p, struct zt_run_file *f, struct zt_error *err) {
    struct zt_options o = *p->o;
    o.name = NULL;
    int rc = zt_run_file_load(&o, f, err);
    if (rc == 0)
        rc = rename_run(f, p->o, err);
    if (rc == 0)
        rc = zt_run_file_shorten(f, p->steps, err);
    if (rc == 0)
        rc = zt_run_file_parse(f, err);
    if (rc)
        return rc;
    p->spec = &f->spec;
    p->window[p->n_windows++] = "init";
    p->window[p->n_windows++] = "first_step";
    p->window[p->n_windows++] = "steady";
    if (p->spec->validation.enabled)
        p->window[p->n_windows++] = "eval";
    if (p->spec->checkpoint.enabled)
        p->window[p->n_windows++] = "save"; /* the last step is saved */
    return 0;
}

/* ---------------------------------------------------------------------------------- what came of it */

/* The window in which the rank was that ran out: what it had reported before says which. */
static const char *window_of_oom(const json_t *oom, const json_t *rows) {
    const json_t *row;
    size_t i;
    if (strcmp(text_at(oom, "phase"), "init") == 0 || strcmp(text_at(oom, "phase"), "eval") == 0)
        return text_at(oom, "phase");
    json_array_foreach((json_t *)(uintptr_t)rows, i, row)
        if (strcmp(text_at(row, "window"), "first_step") == 0)
            return "steady";
    return "first_step";
}

/* The highest peak that the plan has for it; -1: none. */
static int64_t planned_peak(const json_t *doc, struct zt_mesh m, const char *window, int64_t capacity) {
    int64_t most = -1;
    const char *why = NULL;
    for (int r = 0; json_is_object(doc) && r < zt_mesh_world(m); r++) {
        const json_t *w = zt_stored_window(doc, m, r, window, capacity, &why);
        int64_t v = w ? int_at(w, "peak_allocated_bytes") : -1;
        most = v > most ? v : most;
    }
    return most;
}

/* One window over all ranks: how many had it, the highest peaks, and the largest difference from the plan. */
static json_t *judge_window(const char *window, int world, int64_t predicted, const json_t *rows, const char *ran_out) {
    json_t *o = json_object();
    const json_t *row;
    int64_t allocated = -1, reserved = -1, worst = 0;
    int ran = 0, compared = 0;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        if (strcmp(text_at(row, "window"), window) != 0)
            continue;
        int64_t a = int_at(row, "measured.peak_allocated_bytes"), b = int_at(row, "measured.peak_reserved_bytes");
        int64_t p = int_at(row, "predicted.peak_allocated_bytes"), q = int_at(row, "predicted.peak_reserved_bytes");
        ran++;
        allocated = a > allocated ? a : allocated;
        reserved = b > reserved ? b : reserved;
        compared += p >= 0 && q >= 0;
        if (p >= 0 && llabs(a - p) > llabs(worst))
            worst = a - p;
        if (q >= 0 && llabs(b - q) > llabs(worst))
            worst = b - q;
    }
    bool out = ran_out && strcmp(ran_out, window) == 0, whole = ran == world;
    put(o, "window", json_string(window));
    put(o, "ranks", json_integer(ran));
    put(o, "predicted_peak_allocated_bytes", zt_json_int(predicted >= 0, predicted));
    put(o, "peak_allocated_bytes", zt_json_int(allocated >= 0, allocated));
    put(o, "peak_reserved_bytes", zt_json_int(reserved >= 0, reserved));
    put(o, "difference_bytes", zt_json_int(compared > 0 && compared == ran, worst));
    put(o, "verdict", json_string(out ? "does not fit" : whole && !ran_out ? "fits" : whole ? "ran" : "did not run"));
    return o;
}

/* What the plan said of a worker of that capacity: where it would run out, or null. */
static const json_t *planned_oom(const json_t *doc, const json_t *oom) {
    const char *why = NULL;
    const json_t *plan = json_is_object(doc) ? zt_stored_plan_of(doc, int_at(oom, "capacity_bytes"), &why) : NULL;
    return plan ? json_object_get(plan, "oom") : NULL;
}

static bool same_oom(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"phase", "what", "tag", "request_bytes", "reserved_bytes", "allocated_bytes"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            return false;
    return true;
}

/* Everything as one object: {run, name, state, reason, workers, steps, steps_wanted, verdict, windows[], oom,
 * planned_oom, ranks[], unpredicted}. */
static json_t *judge(const struct probe *p, const Zt__RunDetail *d, json_t *memory) {
    json_t *o = json_object(), *windows = json_array(), *oom = zt_oom_of(d), *rows = json_object_get(memory, "ranks");
    const json_t *planned = planned_oom(json_object_get(memory, "plan"), oom);
    const char *ran_out = json_is_object(oom) ? window_of_oom(oom, rows) : NULL;
    const struct zt_mesh mesh = {(int)d->replicate, (int)d->shard, (int)d->tensor};
    int world = zt_mesh_world(mesh), whole = 0;
    int64_t capacity = ran_out ? int_at(oom, "capacity_bytes") : 0;
    int64_t steps = d->summary->has_step ? d->summary->step : 0;
    for (int i = 0; i < p->n_windows; i++) {
        json_t *w = judge_window(
            p->window[i], world, planned_peak(json_object_get(memory, "plan"), mesh, p->window[i], capacity), rows, ran_out);
        whole += world > 0 && int_at(w, "ranks") == world;
        json_array_append_new(windows, w);
    }
    bool all = whole == p->n_windows && steps >= LEAST_STEPS && !ran_out && zt_exit_of_state(d->summary->state) == ZT_EXIT_OK;
    put(o, "run", zt_json_text(d->summary->run_id));
    put(o, "name", zt_json_text(d->summary->name));
    put(o, "state", zt_json_text(d->summary->state));
    put(o, "reason", zt_json_text(d->summary->reason));
    put(o, "workers", json_integer(world));
    put(o, "steps", json_integer(steps));
    put(o, "steps_wanted", json_integer(p->steps > LEAST_STEPS ? p->steps : LEAST_STEPS));
    put(o, "windows_whole", json_integer(whole));
    put(o, "verdict", json_string(ran_out ? "does not fit" : all ? "fits" : "not a fit"));
    put(o, "windows", windows);
    put(o, "planned_oom", planned && json_is_object(planned) ? json_incref((json_t *)(uintptr_t)planned) : json_null());
    put(o, "oom", oom);
    json_object_set(o, "unpredicted", json_object_get(memory, "unpredicted"));
    json_object_set(o, "ranks", rows);
    return o;
}

/* ---------------------------------------------------------------------------------- for people */

static void say_expected(FILE *out, const json_t *j) {
    const json_t *oom = json_object_get(j, "oom"), *p = json_object_get(j, "planned_oom");
    char n[32];
    if (!json_is_object(p)) {
        fprintf(out, "the plan      %s\n", json_is_string(json_object_get(j, "unpredicted"))
                                               ? text_at(j, "unpredicted") : "expected it to fit a worker of that capacity");
        return;
    }
    fprintf(out, "the plan      expected that: in phase %s of step %lld \"%s\" (%s) asks for %s%s\n", text_at(p, "phase"),
            (long long)int_at(p, "step"), text_at(p, "what"), text_at(p, "tag"),
            zt_format_bytes((double)int_at(p, "request_bytes"), n, sizeof n),
            same_oom(oom, p) ? "; equal to the byte" : "; it was another place");
}

static void say_verdict(FILE *out, const struct probe *p, const json_t *j) {
    const json_t *w;
    int64_t steps = int_at(j, "steps"), wanted = int_at(j, "steps_wanted"), most = 0, v;
    bool compared = true;
    char missing[64] = "";
    size_t i;
    json_array_foreach(json_object_get(j, "windows"), i, w) {
        bool has = json_is_integer(json_object_get(w, "difference_bytes"));
        compared = compared && (has || int_at(w, "ranks") == 0);
        v = has ? json_integer_value(json_object_get(w, "difference_bytes")) : 0;
        most = llabs(v) > llabs(most) ? v : most;
        if (int_at(w, "ranks") < int_at(j, "workers") || int_at(j, "workers") == 0)
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), "%s%s", missing[0] ? ", " : "",
                     text_at(w, "window"));
    }
    if (strcmp(text_at(j, "verdict"), "fits") == 0)
        fprintf(out, "fits: %d windows of %lld ranks in %lld whole steps", p->n_windows, (long long)int_at(j, "workers"),
                (long long)steps);
    else if (strcmp(text_at(j, "verdict"), "does not fit") == 0)
        fprintf(out, "does not fit: memory ran out in window %s",
                window_of_oom(json_object_get(j, "oom"), json_object_get(j, "ranks")));
    else if (missing[0])
        fprintf(out, "not a fit: only %lld of %d windows ran (not %s)", (long long)int_at(j, "windows_whole"), p->n_windows,
                missing);
    else if (steps < wanted)
        fprintf(out, "not a fit: only %lld of %lld steps ran", (long long)steps, (long long)wanted);
    else
        fprintf(out, "not a fit: the run is %s", text_at(j, "state"));
    if (int_at(j, "windows_whole") > 0)
        fprintf(out, !compared      ? "; not all of it was planned"
                     : most == 0    ? "; as planned, to the byte"
                                    : "; differs from the plan, by %lld bytes at most", (long long)most);
    fputc('\n', out);
}

static int say(FILE *out, const struct probe *p, const Zt__RunDetail *d, const json_t *j, struct zt_error *err) {
    static const struct zt_column windows[] = {
        {"WINDOW", "window", ZT_CELL_TEXT, 0},
        {"PREDICTED", "predicted_peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"PEAK ALLOC", "peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"RESERVED", "peak_reserved_bytes", ZT_CELL_BYTES, 0},
        {"DIFF B", "difference_bytes", ZT_CELL_COUNT, 0},
        {"RANKS", "ranks", ZT_CELL_COUNT, 0},
        {"VERDICT", "verdict", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    char line[1024];
    int rc = 0;
    if (json_array_size(json_object_get(j, "ranks")) > 0)
        rc = zt_print_memory_rows(out, json_object_get(j, "ranks"), err);
    if (rc == 0) {
        fputc('\n', out);
        rc = zt_print_table(out, json_object_get(j, "windows"), windows, err);
    }
    if (rc)
        return rc;
    fputc('\n', out);
    say_verdict(out, p, j);
    if (d->checkpoint)
        fprintf(out, "saved         %s/%s has the checkpoint of the last step; rm -r it when you have seen it\n", p->spec->checkpoint.folder,
                d->summary->run_id);
    if (json_is_object(json_object_get(j, "oom"))) {
        say_expected(out, j);
        rc = zt_print_oom(out, json_object_get(j, "oom"), err);
    } else if (strcmp(text_at(j, "verdict"), "fits") != 0) {
        fprintf(out, "the run       %s\n", zt_state_line(d, line, sizeof line));
    }
    return rc;
}

/* The exit code: 0 fits, 7 ran out of memory, else as the run ended, or 1. */
static int tell(void *arg, struct zt_source *s, const Zt__RunDetail *d) {
    const struct probe *p = arg;
    struct zt_error err;
    json_t *memory = NULL;
    int rc = zt_fetch_memory(s, d->summary->run_id, &memory, &err), code;
    if (rc)
        return zt_report(rc, &err);
    json_t *j = judge(p, d, memory);
    const char *verdict = text_at(j, "verdict");
    code = strcmp(verdict, "fits") == 0 ? ZT_EXIT_OK : zt_exit_of_state(d->summary->state);
    if (strcmp(verdict, "does not fit") == 0)
        code = ZT_EXIT_NOPLACE;
    else if (strcmp(verdict, "fits") != 0 && code == ZT_EXIT_OK)
        code = ZT_EXIT_FAILED;
    if (p->o->format == ZT_FORMAT_TABLE)
        rc = say(stdout, p, d, j, &err);
    else if (p->o->format == ZT_FORMAT_JSON)
        zt_print_json(stdout, j);
    else
        zt_print_json_line(stdout, j);
    json_decref(j);
    json_decref(memory);
    return rc ? zt_report(rc, &err) : code;
}

/* ---------------------------------------------------------------------------------- on connected workers */

static int probe_there(struct probe *p, struct zt_run_file *f, const struct zt_options *o) {
    struct zt_options far = *o;
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err;
    char run[64];
    bool late = false;
    far.state = NULL; /* of a folder nothing can be asked to run */
    far.timeout = 0;  /* of the run, not of a request */
    zt_watch_interrupts();
    int rc = zt_source_open(&far, &s, &err);
    if (rc == 0)
        rc = zt_submit_planned(&far, f, &s, &a, &err);
    if (rc == 0) {
        snprintf(run, sizeof run, "%s", a.env->submit_reply->run_id);
        fprintf(stderr, "run %s \"%s\" on the workers of %s:%d\n", run, f->spec.name, s.host, s.port);
        zt_answer_free(&a);
        rc = zt_await_run(o, &s, run, &a, &late, &err);
    }
    int code = rc ? zt_report(rc, &err) : tell(p, &s, a.env->run_detail);
    if (rc == 0) {
        zt_answer_free(&a);
        if (late && code == ZT_EXIT_CANCELLED)
            code = ZT_EXIT_TIMEOUT;
    }
    zt_source_close(&s);
    return code;
}

int zt_cmd_probe(const struct zt_options *o) {
    static struct zt_run_file file;
    struct zt_options forced = *o;
    struct probe p = {.o = o, .steps = o->steps > 0 ? o->steps : LEAST_STEPS};
    struct zt_error err;
    forced.force = true; /* what the plan says is no reason not to look */
    int code, rc = load(&p, &file, &err);
    if (rc) {
        code = zt_report_bare(rc, &err);
    } else if (o->coord || getenv("ZCTL_COORD")) {
        code = probe_there(&p, &file, &forced);
    } else {
        const struct zt_run_end end = {tell, &p};
        code = zt_run_here(&forced, &file, &end);
    }
    zt_run_file_free(&file);
    return code;
}
