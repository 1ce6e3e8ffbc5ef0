/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/predict.c: see predict.h. */
#include "clients/zctl/predict.h"
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "clients/zctl/plan_json.h"
#include "core/oom_advice.h"
#include "core/units.h"
#include "engine/data/data.h"
#include "engine/plan/advise.h"
#include "engine/plan/devices.h"

#define SEGMENT ((int64_t)(2 * ZT_MIB)) /* capacities count in these */

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

/* ---------------------------------------------------------------------------------- workers */

void zt_connected_add(struct zt_connected *c, int64_t bytes, int workers) {
    int at = 0;
    c->workers += workers;
    while (at < c->n && c->capacity[at].bytes > bytes)
        at++;
    if (at < c->n && c->capacity[at].bytes == bytes) {
        c->capacity[at].workers += workers;
        return;
    }
    c->more = c->more || c->n == ZT_PREDICT_MAX_CAPACITIES;
    if (at == ZT_PREDICT_MAX_CAPACITIES)
        return;
    if (c->n < ZT_PREDICT_MAX_CAPACITIES)
        c->n++;
    memmove(&c->capacity[at + 1], &c->capacity[at], (size_t)(c->n - 1 - at) * sizeof c->capacity[0]);
    c->capacity[at].bytes = bytes;
    c->capacity[at].workers = workers;
}

/* Would the coordinator give it this run, sooner or later? */
static bool usable(const Zt__WorkerInfo *w, const struct zt_spec *s) {
    static const char *const away[] = {"LOST", "GONE", "QUARANTINED", "CONNECTING"};
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++)
        if (strcmp(w->state, away[i]) == 0)
            return false;
    if (s->requirements.device[0] && strcmp(s->requirements.device, w->device) != 0)
        return false;
    return w->has_capacity_bytes && (double)w->capacity_bytes >= s->requirements.memory_gib * (double)ZT_GIB;
}

int zt_connected_ask(struct zt_source *s, const struct zt_spec *spec, struct zt_connected *out, struct zt_error *err) {
    Zt__ListWorkers list = ZT__LIST_WORKERS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    memset(out, 0, sizeof *out);
    req.body_case = ZT__ENVELOPE__BODY_LIST_WORKERS;
    req.list_workers = &list;
    int rc = zt_source_ask(s, &req, &a, err);
    if (rc)
        return rc;
    for (size_t i = 0; a.env->body_case == ZT__ENVELOPE__BODY_WORKER_LIST && i < a.env->worker_list->n_workers; i++) {
        const Zt__WorkerInfo *w = a.env->worker_list->workers[i];
        if (!usable(w, spec))
            continue;
        zt_connected_add(out, zt_predict_capacity(spec, (int64_t)w->capacity_bytes), 1);
        out->idle += strcmp(w->state, "IDLE") == 0;
    }
    zt_answer_free(&a);
    return 0;
}

int64_t zt_predict_capacity(const struct zt_spec *s, int64_t worker_bytes) {
    double limit = s->memory.limit_gib * (double)ZT_GIB;
    int64_t bytes = limit > 0 && limit < (double)worker_bytes ? (int64_t)limit : worker_bytes;
    return bytes / SEGMENT * SEGMENT;
}

/* Only times depend on it, never a byte: where a file of the user's cannot be read, what is built in serves. */
const struct zt_cost_device *zt_predict_device(const char *name) {
    static struct zt_devices *table;
    const struct zt_cost_device *d = NULL;
    struct zt_error err;
    if (!table && zt_devices_load(&table, &err) && zt_devices_builtin(&table, &err))
        table = NULL;
    return table && zt_device_find(table, name, &d, &err) == 0 ? d : NULL;
}

/* ---------------------------------------------------------------------------------- data */

static int64_t samples(const struct zt_spec *s, const char *path, bool tail, char *why, size_t n) {
    struct zt_dataset_config c = {.path = path, .tokenizer = s->dataset.tokenizer, .seq_len = s->training.seq_len,
                                  .vocab_size = s->model.vocab_size, .tail = tail, .min_samples = 1,
                                  .tail_fraction = s->validation.enabled && !s->validation.path[0]
                                                       ? s->validation.fraction : 0.0};
    struct zt_dataset *d = NULL;
    struct zt_error err;
    if (zt_dataset_open(&c, &d, &err)) {
        snprintf(why, n, "%s is not read on this machine (%s): full batches are assumed", path, err.msg);
        return -1;
    }
    int64_t count = zt_dataset_samples(d);
    zt_dataset_close(d);
    return count;
}

void zt_predict_data(const struct zt_spec *s, int64_t *valid_samples, int64_t *total_steps, char *why, size_t n) {
    bool cut = !s->validation.path[0];
    why[0] = '\0';
    *valid_samples = -1;
    *total_steps = 0;
    if (s->validation.enabled)
        *valid_samples = samples(s, cut ? s->dataset.path : s->validation.path, cut, why, n);
    int64_t train = s->training.epochs ? samples(s, s->dataset.path, false, why, n) : -1;
    struct zt_loader_config c = {.dp_size = zt_mesh_dp(zt_spec_mesh(s)), .local_batch = s->training.local_batch_size,
                                 .seq_len = s->training.seq_len, .accumulation = zt_spec_accumulation(s),
                                 .drop_last = s->dataset.drop_last, .epochs = s->training.epochs,
                                 .tail = s->training.accumulation_tail};
    if (train >= 0)
        *total_steps = zt_windows_of(&c, train);
}

/* ---------------------------------------------------------------------------------- planning */

/* As many as there are and the file allows, as the coordinator would take; *open: neither said how many. */
static int choose_workers(const struct zt_spec *spec, int workers, const char *file, const struct zt_connected *c,
                          struct zt_spec *resolved, bool *open, struct zt_error *err) {
    int most = c->idle > 0 ? c->idle : c->workers;
    *resolved = *spec;
    resolved->verbatim = NULL;
    int rc = zt_spec_resolve(resolved, workers, file, err);
    if (rc == 0 || workers > 0 || spec->workers > 0 || most == 0)
        return rc;
    *open = true;
    for (int w = most < ZT_RANKS_MAX ? most : ZT_RANKS_MAX; w > 0 && rc; w--) {
        struct zt_error ignored;
        *resolved = *spec;
        resolved->verbatim = NULL;
        rc = zt_spec_resolve(resolved, w, file, &ignored);
    }
    return rc;
}

static void assume(json_t *doc, const char *text) {
    if (text[0])
        json_array_append_new(json_object_get(doc, "assumed"), zt_json_text(text));
}

static json_t *document(const struct zt_spec *s) {
    json_t *doc = json_object();
    put(doc, "version", json_integer(ZT_PLAN_JSON_VERSION));
    put(doc, "planned_by", json_string("zctl " ZT_VERSION));
    put(doc, "mode", json_string(zt_mode_name(s->parallelism.mode)));
    put(doc, "mesh", json_null());
    put(doc, "limit_bytes", s->memory.limit_gib > 0
                                ? json_integer((json_int_t)(s->memory.limit_gib * (double)ZT_GIB)) : json_null());
    put(doc, "depends_on_capacity", json_boolean(s->memory.gc_threshold > 0));
    put(doc, "assumed", json_array());
    put(doc, "why", json_null());
    put(doc, "connected", json_array());
    put(doc, "first_change", json_null());
    put(doc, "forced", json_false());
    put(doc, "plans", json_array());
    return doc;
}

static void put_mesh(json_t *doc, const struct zt_spec *s) {
    json_t *m = json_object();
    put(m, "replicate", json_integer(s->parallelism.replicate));
    put(m, "shard", json_integer(s->parallelism.shard));
    put(m, "tensor", json_integer(s->parallelism.tensor));
    put(doc, "mesh", m);
}

static int64_t int_at(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}

/* Made for another capacity, and the same for this one: nothing was ever refused, and nothing was freed early. */
static bool covers(const json_t *doc, const json_t *plan, int64_t capacity) {
    int64_t own = int_at(plan, "capacity_bytes"), need = int_at(plan, "peak_reserved_bytes");
    if (own == capacity)
        return true;
    return !json_is_true(json_object_get(doc, "depends_on_capacity")) && !json_is_false(json_object_get(plan, "fits")) &&
           need >= 0 && capacity >= need;
}

struct planner { json_t *doc, *plans; struct zt_plan_config c; int made; };

/* The plan of one capacity, one that there is already or a new one: its `fits`. -1: there is no plan. */
static int plan_one(struct planner *p, int64_t capacity, struct zt_error *err) {
    size_t i;
    json_t *old;
    struct zt_plan *plan = NULL;
    json_array_foreach(p->plans, i, old)
        if (covers(p->doc, old, capacity))
            return !json_is_false(json_object_get(old, "fits"));
    if (p->made == ZT_PREDICT_MAX_PLANS) {
        zt_fail(err, ZT_EBUSY, "more than %d capacities without room: the smaller ones are not planned", ZT_PREDICT_MAX_PLANS);
        return -1;
    }
    p->c.capacity_bytes = capacity;
    if (zt_plan_make(&p->c, &plan, err))
        return -1;
    int fits = plan->fits;
    json_array_append_new(p->plans, zt_plan_json(plan, p->c.device));
    zt_plan_free(plan);
    p->made++;
    return fits;
}

static void plan_all(struct planner *p, const struct zt_connected *c, struct zt_predicted *out) {
    json_t *list = json_object_get(p->doc, "connected");
    struct zt_error err;
    int64_t limit = zt_predict_capacity(p->c.spec, ZT_PLAN_NO_LIMIT), tight = 0;
    int fitting = 0, unknown = 0;
    if (c->n == 0 && plan_one(p, limit, &err) < 0)
        put(p->doc, "why", zt_json_text(err.msg));
    for (int i = 0; i < c->n; i++) {
        int fits = plan_one(p, c->capacity[i].bytes, &err);
        json_t *o = json_object();
        put(o, "capacity_bytes", json_integer(c->capacity[i].bytes));
        put(o, "workers", json_integer(c->capacity[i].workers));
        put(o, "fits", fits < 0 ? json_null() : json_boolean(fits));
        json_array_append_new(list, o);
        fitting += fits > 0 ? c->capacity[i].workers : 0;
        unknown += fits < 0;
        tight = fits == 0 && tight == 0 ? c->capacity[i].bytes : tight;
        if (fits < 0 && json_array_size(p->plans) == 0) {
            put(p->doc, "why", zt_json_text(err.msg));
            break;
        }
    }
    out->computed = json_array_size(p->plans) > 0;
    out->none_fits = out->computed && c->n > 0 && fitting == 0 && unknown == 0 && !c->more;
    if (tight > 0) { /* the largest capacity without room: what fits there is the smallest change */
        p->c.capacity_bytes = tight;
        char *change = zt_first_change(&p->c);
        put(p->doc, "first_change", zt_json_text(change));
        free(change);
    }
    if (c->workers > 0 && fitting > 0 && fitting < p->c.spec->workers) {
        char text[160];
        snprintf(text, sizeof text, "it fits %d of the connected workers and needs %d; requirements.memory_gib keeps it "
                 "off the others", fitting, p->c.spec->workers);
        assume(p->doc, text);
    }
}

int zt_predict(const struct zt_spec *spec, const char *file, int workers, const struct zt_connected *c,
               struct zt_predicted *out, struct zt_error *err) {
    struct zt_spec *s = malloc(sizeof *s);
    char text[ZT_PATH_MAX + 512];
    struct zt_error why = {0};
    memset(out, 0, sizeof *out);
    out->doc = document(spec);
    if (!s || !json_object_get(out->doc, "plans")) {
        free(s);
        json_decref(out->doc);
        out->doc = NULL;
        return zt_fail(err, ZT_ENOMEM, "no memory for a plan");
    }
    struct planner p = {.doc = out->doc, .plans = json_object_get(out->doc, "plans")};
    bool open = false;
    if (choose_workers(spec, workers, file, c, s, &open, &why)) {
        put(out->doc, "why", zt_json_text(c->workers == 0 && workers == 0
                                              ? "no worker is connected and the file does not say how many it needs"
                                              : why.msg));
        free(s);
        return 0;
    }
    put_mesh(out->doc, s);
    if (c->workers == 0)
        assume(out->doc, "no worker is connected: whether it fits is not known");
    if (open) {
        snprintf(text, sizeof text, "%d worker%s, as many as are there now and fit the file", s->workers,
                 s->workers == 1 ? "" : "s");
        assume(out->doc, text);
    }
    p.c = (struct zt_plan_config){.spec = s, .device = zt_predict_device(s->requirements.device)};
    zt_predict_data(s, &p.c.valid_samples, &p.c.total_steps, text, sizeof text);
    assume(out->doc, text);
    if (p.c.device)
        plan_all(&p, c, out);
    else
        put(out->doc, "why", json_string("the device is not in the table of devices"));
    free(s);
    return 0;
}

char *zt_predict_text(const json_t *doc) {
    char *text = json_dumps(doc, JSON_COMPACT);
    if (text && strlen(text) > ZT_PREDICT_MAX_BYTES) {
        free(text);
        text = NULL;
    }
    return text;
}

/* ---------------------------------------------------------------------------------- for people */

static const struct zt_column refusal_columns[] = {
    {"CAPACITY", "capacity_bytes", ZT_CELL_BYTES, 0},
    {"WORKERS", "workers", ZT_CELL_COUNT, 0},
    {"PEAK ALLOC", "plan.peak_allocated_bytes", ZT_CELL_BYTES, 0},
    {"RESERVED", "plan.peak_reserved_bytes", ZT_CELL_BYTES, 0},
    {"MISSING", "missing_bytes", ZT_CELL_BYTES, 0},
    {"PARAMS", "plan.at_peak.parameters", ZT_CELL_BYTES, 0},
    {"GRADS", "plan.at_peak.gradients", ZT_CELL_BYTES, 0},
    {"OPTIM", "plan.at_peak.optimizer", ZT_CELL_BYTES, 0},
    {"ACTIV", "plan.at_peak.activations", ZT_CELL_BYTES, 0},
    {"TEMP", "plan.at_peak.temporary", ZT_CELL_BYTES, 0},
    {"COMM", "plan.at_peak.communication", ZT_CELL_BYTES, 0},
    {"WINDOW", "plan.peak_window", ZT_CELL_TEXT, 0},
    {"PHASE", "plan.phase_of_peak", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

/* The line that the place of the planned out-of-memory selects. */
static void say_where(FILE *out, const json_t *plan) {
    const json_t *oom = json_object_get(plan, "oom"), *t = json_object_get(oom, "by_tag");
    const char *phase = json_string_value(json_object_get(oom, "phase"));
    const char *tag = json_string_value(json_object_get(oom, "tag"));
    const char *what = json_string_value(json_object_get(oom, "what"));
    const char *cause = json_string_value(json_object_get(oom, "cause"));
    char asked[32], text[1024];
    struct zt_oom_site s = {.phase = phase, .tag = tag, .step = int_at(oom, "step"),
                            .fragmentation = cause && strcmp(cause, "fragmentation") == 0,
                            .request = int_at(oom, "request_bytes"), .reserved = int_at(oom, "reserved_bytes"),
                            .allocated = int_at(oom, "allocated_bytes"), .capacity = int_at(oom, "capacity_bytes"),
                            .needs = int_at(plan, "peak_allocated_bytes"),
                            .parameters = int_at(t, "parameters"), .gradients = int_at(t, "gradients"),
                            .optimizer = int_at(t, "optimizer"), .activations = int_at(t, "activations"),
                            .temporary = int_at(t, "temporary"), .communication = int_at(t, "communication")};
    fprintf(out, "it runs out in phase %s of step %lld, where \"%s\" (%s) asks for %s\n", phase ? phase : "-",
            (long long)s.step, what ? what : "-", tag ? tag : "-",
            zt_format_bytes((double)s.request, asked, sizeof asked));
    fprintf(out, "%s\n", zt_oom_text(&s, text, sizeof text));
}

static void say_refusal(FILE *out, const struct zt_options *o, const char *name, const json_t *doc) {
    const json_t *c, *connected = json_object_get(doc, "connected"), *plan = NULL, *first = NULL;
    const char *mode = json_string_value(json_object_get(doc, "mode")), *why = NULL;
    const char *change = json_string_value(json_object_get(doc, "first_change"));
    json_t *rows = json_array();
    struct zt_error err;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)connected, i, c) {
        json_t *row = json_copy((json_t *)(uintptr_t)c);
        plan = zt_stored_plan_of(doc, int_at(c, "capacity_bytes"), &why);
        first = first ? first : plan;
        if (plan) {
            json_object_set(row, "plan", (json_t *)(uintptr_t)plan);
            put(row, "missing_bytes", json_integer(int_at(plan, "peak_reserved_bytes") - int_at(c, "capacity_bytes")));
        }
        json_array_append_new(rows, row);
    }
    fprintf(out, "run \"%s\" in mode %s does not fit any connected worker:\n", name, mode ? mode : "-");
    zt_print_table(out, rows, refusal_columns, &err);
    json_decref(rows);
    if (first && json_is_object(json_object_get(first, "oom")))
        say_where(out, first);
    if (change)
        fprintf(out, "the first change that fits: %s\n", change);
    fprintf(out, "zctl advise %s shows the changes that fit, the cheapest first; %s\n", o->subject,
            o->force ? "submitted all the same" : "--force submits it all the same");
}

void zt_predict_say(FILE *out, const struct zt_options *o, const char *name, const struct zt_predicted *p) {
    const json_t *assumed = json_object_get(p->doc, "assumed"), *text, *plan;
    const char *why = json_string_value(json_object_get(p->doc, "why"));
    char a[32], b[32];
    size_t i;
    if (p->none_fits) {
        say_refusal(out, o, name, p->doc);
    } else if (p->computed) {
        plan = json_array_get(json_object_get(p->doc, "plans"), 0);
        fprintf(out, "plan: peak allocated %s, reserved %s on each worker\n",
                zt_format_bytes((double)int_at(plan, "peak_allocated_bytes"), a, sizeof a),
                zt_format_bytes((double)int_at(plan, "peak_reserved_bytes"), b, sizeof b));
    } else {
        char *safe = zt_escape(why ? why : "", why ? strlen(why) : 0, false);
        fprintf(out, "plan: none: %s\n", safe ? safe : "");
        free(safe);
    }
    json_array_foreach((json_t *)(uintptr_t)assumed, i, text) {
        char *safe = zt_escape(json_string_value(text), json_string_length(text), false);
        fprintf(out, "plan: %s\n", safe ? safe : "");
        free(safe);
    }
}

/* ---------------------------------------------------------------------------------- a stored document */

json_t *zt_stored_plan(const void *bytes, size_t n, const char **why) {
    json_t *doc = n > 0 ? json_loadb(bytes, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    *why = NULL;
    if (n == 0)
        *why = "it was submitted without a plan";
    else if (!json_is_object(doc) || int_at(doc, "version") != ZT_PLAN_JSON_VERSION ||
             !json_is_array(json_object_get(doc, "plans")))
        *why = "its plan is of another version of zctl";
    if (*why) {
        json_decref(doc);
        return NULL;
    }
    return doc;
}

const json_t *zt_stored_plan_of(const json_t *doc, int64_t capacity, const char **why) {
    const json_t *plans = json_object_get(doc, "plans"), *plan;
    int64_t limit = int_at(doc, "limit_bytes");
    size_t i;
    if (limit > 0 && limit < capacity)
        capacity = limit;
    capacity = capacity / SEGMENT * SEGMENT;
    json_array_foreach((json_t *)(uintptr_t)plans, i, plan)
        if (capacity == int_at(plan, "capacity_bytes"))
            return plan;
    json_array_foreach((json_t *)(uintptr_t)plans, i, plan)
        if (covers(doc, plan, capacity) || (capacity == 0 && json_array_size(plans) == 1))
            return plan;
    *why = json_array_size(plans) == 0 ? "no plan could be made when it was submitted"
                                       : "no plan was made for a worker of that capacity";
    return NULL;
}

const json_t *zt_stored_window(const json_t *doc, struct zt_mesh mesh, int rank, const char *window, int64_t capacity,
                               const char **why) {
    const json_t *m = json_object_get(doc, "mesh"), *shape;
    const json_t *plan = zt_stored_plan_of(doc, capacity, why);
    int dp = mesh.tensor > 0 ? rank / mesh.tensor : 0; /* tensor is innermost */
    size_t i;
    if (!plan)
        return NULL;
    if (int_at(m, "replicate") != mesh.replicate || int_at(m, "shard") != mesh.shard || int_at(m, "tensor") != mesh.tensor) {
        *why = "it was planned for another number of workers";
        return NULL;
    }
    json_array_foreach(json_object_get(plan, "shapes"), i, shape) {
        if (dp < int_at(shape, "dp_from") || dp >= int_at(shape, "dp_to"))
            continue;
        const json_t *w = json_object_get(json_object_get(shape, "windows"), window);
        if (w)
            return w;
    }
    *why = "the plan has no such window";
    return NULL;
}

char *zt_first_change(const struct zt_plan_config *plan) {
    char text[512];
    struct zt_error err;
    return zt_advise_first(plan, text, sizeof text, &err) == 0 ? strdup(text) : NULL;
}
