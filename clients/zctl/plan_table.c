/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_table.c: a plan as a page for people. Exact, estimated and stated figures stand under
 * headings that say which they are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/disk_space.h"
#include "clients/zctl/json.h"
#include "clients/zctl/planning.h"
#include "core/units.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

struct zt_plan_unit_of zt_plan_unit_of(int64_t largest) {
    static const struct zt_plan_unit_of units[] = {{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}};
    for (int i = 0; i < 2; i++)
        if ((double)largest >= units[i].bytes)
            return units[i];
    return units[2];
}

static const char *bytes(int64_t v, char buf[32]) { return zt_format_bytes((double)v, buf, 32); }
static const char *count(int64_t v, char buf[32]) { return zt_format_count(v, buf, 32); }
static const char *secs(double v, char buf[32]) { return zt_format_seconds(v, buf, 32); }

/* ---------------------------------------------------------------------------------- what is planned */

static void say_model(FILE *out, const struct zt_planning *p) {
    const struct zt_model_config *m = &p->spec.model;
    char a[32], b[32];
    fprintf(out, "model     %s%s%lld layers x %lld, %lld heads, vocabulary %s: %s parameters, ",
            p->spec.preset[0] ? p->spec.preset : "", p->spec.preset[0] ? ": " : "", (long long)m->layers, (long long)m->dim,
            (long long)m->heads, count(m->vocab_size, a), count(p->plan->parameters, b));
    if (p->plan->trainable == p->plan->parameters)
        fputs("all trainable\n", out);
    else
        fprintf(out, "%s of them trainable\n", count(p->plan->trainable, a));
}

static void say_batch(FILE *out, const struct zt_planning *p) {
    static const char *const averages[] = {
        [ZT_AVERAGE_TOKEN] = "token: every token that counts weighs the same",
        [ZT_AVERAGE_SAMPLE] = "sample: every example weighs the same, each of its n tokens 1/n",
        [ZT_AVERAGE_SQUARE] = "square: an example of n tokens weighs sqrt(n), each of them 1/sqrt(n)"};
    const struct zt_plan *k = p->plan;
    char a[32], b[32], c[32];
    fprintf(out, "batch     %s sequences = %lld (micro-batch) x %lld (accumulation) x %d (data-parallel ranks)\n",
            count(k->global_batch, a), (long long)p->spec.training.local_batch_size, (long long)k->accumulation, k->dp_size);
    fprintf(out, "          %s tokens per step = %s sequences of %s\n", count(k->tokens_per_step, b), a,
            count(p->spec.training.seq_len, c));
    fprintf(out, "loss      average %s\n", averages[p->spec.loss.average]);
    if (k->total_steps > 0)
        fprintf(out, "steps     %s%s, %s tokens in all\n", count(k->total_steps, a), p->spec.training.epochs ? " (of all epochs)" : "",
                count(k->total_tokens, b));
    else
        fprintf(out, "steps     by epochs (%lld): not known here\n", (long long)p->spec.training.epochs);
    struct zt_disk_space disk;
    char text[ZT_PATH_MAX + 256];
    if (zt_disk_space(&p->spec, k->total_steps, &disk))
        fprintf(out, "disk      %s\n", zt_disk_space_text(&disk, text, sizeof text));
}

static void say_list(FILE *out, const char *head, const json_t *list) {
    size_t i;
    const json_t *text;
    json_array_foreach((json_t *)(uintptr_t)list, i, text) {
        char *safe = zt_escape(json_string_value(text), json_string_length(text), false);
        fprintf(out, "%-10s", head);
        zt_wrap(out, 10, 10, safe ? safe : "");
        free(safe);
    }
}

static void say_subject(FILE *out, const struct zt_planning *p) {
    const struct zt_cost_device *d = p->device;
    char a[32], b[32], text[400];
    fprintf(out, "plan      run \"%s\": %s on %d rank%s of %s, recipe %s, gradients reduced as %s\n", p->spec.name,
            zt_mode_name(p->spec.parallelism.mode), p->spec.workers, p->spec.workers == 1 ? "" : "s", d->name,
            p->spec.precision.recipe, zt_dtype_name(p->spec.precision.reduce_dtype));
    say_model(out, p);
    snprintf(text, sizeof text, "%s: %s%s; %s of memory, of which %s outside the allocator (stated)", d->name, d->title,
             d->measured ? ", as measured" : "", bytes(d->memory_bytes, a), bytes(d->outside_bytes, b));
    fputs("device    ", out);
    zt_wrap(out, 10, 10, text);
    zt_plan_print_mesh(out, p);
    say_batch(out, p);
    say_list(out, "assumed", p->assumed);
    say_list(out, "WARNING", p->warnings);
}

/* ---------------------------------------------------------------------------------- memory */

static json_t *scaled(int64_t v, struct zt_plan_unit_of u) { return json_real((double)v / u.bytes); }

static json_t *window_row(const struct zt_planning *p, const struct zt_plan_shape *s, enum zt_window_name w,
                          struct zt_plan_unit_of u) {
    const struct zt_window_peak *k = &s->window[w];
    int tensor = p->plan->world / p->plan->dp_size;
    char ranks[64];
    json_t *o = json_object();
    snprintf(ranks, sizeof ranks, s->dp_to - s->dp_from == p->plan->dp_size ? "all" : "%d-%d", s->dp_from * tensor,
             s->dp_to * tensor - 1);
    put(o, "ranks", json_string(ranks));
    put(o, "window", json_string(zt_window_name(w)));
    put(o, "phase", json_string(zt_phase_name(k->phase_of_peak)));
    put(o, "peak", scaled(k->peak_allocated_bytes, u));
    put(o, "reserved", scaled(k->peak_reserved_bytes, u));
    for (int t = 0; t < ZT_TAG_COUNT; t++)
        put(o, zt_tag_name((enum zt_tag)t), scaled(k->at_peak[t], u));
    return o;
}

static int print_windows(FILE *out, const struct zt_planning *p, struct zt_plan_unit_of u, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"WINDOW", "window", ZT_CELL_TEXT, 0},       {"PEAK", "peak", ZT_CELL_FIXED, 2},
        {"PHASE", "phase", ZT_CELL_TEXT, 0},         {"PARAMS", "parameters", ZT_CELL_FIXED, 2},
        {"GRADS", "gradients", ZT_CELL_FIXED, 2},    {"OPTIM", "optimizer", ZT_CELL_FIXED, 2},
        {"ACTIV", "activations", ZT_CELL_FIXED, 2},  {"TEMP", "temporary", ZT_CELL_FIXED, 2},
        {"COMM", "communication", ZT_CELL_FIXED, 2}, {"RESERVED", "reserved", ZT_CELL_FIXED, 2},
        {"RANKS", "ranks", ZT_CELL_TEXT, 0},         {NULL, NULL, ZT_CELL_TEXT, 0}};
    json_t *rows = json_array();
    for (int w = 0; w < ZT_WINDOW_COUNT; w++)
        for (int s = 0; s < p->plan->n_shapes; s++)
            if (p->plan->shape[s].occurs[w])
                json_array_append_new(rows, window_row(p, &p->plan->shape[s], (enum zt_window_name)w, u));
    int rc = zt_print_table(out, rows, columns, err);
    json_decref(rows);
    return rc;
}

static void say_oom(FILE *out, const struct zt_plan *k) {
    const struct zt_oom *m = &k->oom;
    const bool cut_up = m->fragmentation && k->peak_allocated_bytes <= m->capacity;
    char a[32], b[32], c[32];
    fprintf(out, "DOES NOT FIT: in phase %s of step %lld \"%s\" (%s) asks for %s; %s of %s are reserved%s\n",
            zt_phase_name(m->phase), (long long)k->oom_step, m->what, zt_tag_name(m->tag), bytes(m->request, a),
            bytes(m->reserved, b), bytes(m->capacity, c), cut_up ? ", and what is free is in pieces" : "");
    fputs("          there:", out);
    for (int t = 0; t < ZT_TAG_COUNT; t++)
        fprintf(out, "%s %s %s", t ? "," : "", zt_tag_name((enum zt_tag)t), bytes(m->by_tag[t], a));
    fputs("\n          the figures above are those of a device without a limit\n", out);
}

static int print_memory(FILE *out, const struct zt_planning *p, struct zt_error *err) {
    const struct zt_plan *k = p->plan;
    struct zt_plan_unit_of u = zt_plan_unit_of(k->peak_reserved_bytes);
    int64_t state = k->persistent.parameters + k->persistent.gradients + k->persistent.optimizer;
    int64_t room = k->capacity_bytes - k->peak_reserved_bytes;
    char a[32], b[32], c[32], d[32];
    fprintf(out, "\nmemory of a rank: exact, in %s; what the allocated peak of each window is made of\n", u.name);
    int rc = print_windows(out, p, u, err);
    fprintf(out, "state     %s persistent (lower bound): parameters %s, gradients %s, optimizer %s\n", bytes(state, a),
            bytes(k->persistent.parameters, b), bytes(k->persistent.gradients, c), bytes(k->persistent.optimizer, d));
    fprintf(out, "capacity  %s of the allocator; besides it (stated): %s on the device, %s on the host\n",
            bytes(k->capacity_bytes, a), bytes(k->outside_bytes, b), bytes(k->host.total, c));
    if (k->host.checkpoint > 0)
        fprintf(out, "          of the host's: %s (%lld bytes, exact) staging of checkpoints, on rank %d, which saves the most\n",
                bytes(k->host.checkpoint, a), (long long)k->host.checkpoint, k->host.checkpoint_rank);
    if (k->fits)
        fprintf(out, "fits      %s %s\n", bytes(room < 0 ? -room : room, a),
                room < 0 ? "less than the reserved peak: cached blocks are given back under way" : "above the reserved peak");
    else
        say_oom(out, k);
    return rc;
}

/* ---------------------------------------------------------------------------------- modes */

static json_t *mode_row(const struct zt_planned_mode *m, struct zt_plan_unit_of u) {
    const struct zt_plan *k = m->plan;
    char name[40], note[300];
    json_t *o = json_object();
    put(o, "mode", json_string(zt_planned_mode_name(m, name, sizeof name)));
    snprintf(note, sizeof note, "%s", m->chosen ? "the file's" : m->why);
    if (k) {
        put(o, "fits", json_boolean(k->fits));
        put(o, "peak", scaled(k->peak_allocated_bytes, u));
        put(o, "headroom", scaled(k->capacity_bytes - k->peak_reserved_bytes, u));
        put(o, "step", json_real(k->step_seconds));
        put(o, "exposed", json_real(zt_plan_exposed_share(k)));
        put(o, "tokens", json_real(k->tokens_per_second));
        put(o, "sent", json_integer(k->sent_bytes));
        if (!k->fits)
            snprintf(note + strlen(note), sizeof note - strlen(note), "%sout in %s of step %lld: %s",
                     note[0] ? ", " : "", zt_phase_name(k->oom.phase), (long long)k->oom_step, k->oom.what);
    }
    put(o, "note", zt_json_text(note));
    return o;
}

static int print_modes(FILE *out, const struct zt_planning *p, struct zt_error *err) {
    int64_t largest = 0;
    char text[700];
    for (int i = 0; i < p->n_modes; i++)
        if (p->mode[i].plan && p->mode[i].plan->peak_reserved_bytes > largest)
            largest = p->mode[i].plan->peak_reserved_bytes;
    struct zt_plan_unit_of u = zt_plan_unit_of(largest);
    static const struct zt_column columns[] = {
        {"MODE", "mode", ZT_CELL_TEXT, 0},         {"FITS", "fits", ZT_CELL_TEXT, 0},
        {"PEAK", "peak", ZT_CELL_FIXED, 2},        {"HEADROOM", "headroom", ZT_CELL_FIXED, 2},
        {"SENT", "sent", ZT_CELL_BYTES, 0},        {"~STEP", "step", ZT_CELL_SECONDS, 0},
        {"~EXPOSED", "exposed", ZT_CELL_SHARE, 0}, {"~TOKENS/S", "tokens", ZT_CELL_COUNT, 0},
        {"NOTE", "note", ZT_CELL_TEXT, 0},         {NULL, NULL, ZT_CELL_TEXT, 0}};
    json_t *rows = json_array();
    for (int i = 0; i < p->n_modes; i++)
        json_array_append_new(rows, mode_row(&p->mode[i], u));
    fprintf(out, "\nthe same run in other modes on the same ranks: memory (%s) and sent bytes exact, times estimated (~)\n",
            u.name);
    int rc = zt_print_table(out, rows, columns, err);
    json_decref(rows);
    fprintf(out, "%s", p->first >= 0 ? "first that fits: " : "");
    zt_wrap(out, p->first >= 0 ? 17 : 0, 0, zt_planning_first(p, text, sizeof text));
    return rc;
}

/* ---------------------------------------------------------------------------------- traffic, units, schedule */

static const struct zt_column traffic_columns[] = {
    {"GROUP", "group", ZT_CELL_TEXT, 0},  {"WHAT", "kind", ZT_CELL_TEXT, 0},
    {"COUNT", "count", ZT_CELL_COUNT, 0}, {"BYTES", "bytes", ZT_CELL_BYTES, 0},
    {"SENT", "sent_bytes", ZT_CELL_BYTES, 0}, {"~TIME", "seconds_estimate", ZT_CELL_SECONDS, 0},
    {"~EXPOSED", "exposed_seconds_estimate", ZT_CELL_SECONDS, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column unit_columns[] = {
    {"UNIT", "unit", ZT_CELL_TEXT, 0},          {"UNITS", "units", ZT_CELL_COUNT, 0},
    {"PARAMETERS", "parameters", ZT_CELL_COUNT, 0}, {"TRAINABLE", "trainable", ZT_CELL_COUNT, 0},
    {"PADDED", "padded", ZT_CELL_COUNT, 0},     {"GROUPS", "groups", ZT_CELL_COUNT, 0},
    {"GATHERED", "gathered", ZT_CELL_TEXT, 0},  {"PREFETCH", "prefetch", ZT_CELL_COUNT, 0},
    {"AFTER FORWARD", "after_forward", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static int print_traffic(FILE *out, const json_t *chosen, struct zt_error *err) {
    const json_t *rows = json_object_get(chosen, "traffic");
    fputs("\ntraffic of a rank in a step: bytes exact, times estimated (~)\n", out);
    if (json_array_size(rows) == 0) {
        fputs("none: one rank\n", out);
        return 0;
    }
    return zt_print_table(out, rows, traffic_columns, err);
}

static json_t *schedule_row(const json_t *from, struct zt_plan_unit_of u) {
    static const char *const sizes[] = {"bytes", "sent_bytes"};
    json_t *row = json_copy((json_t *)(uintptr_t)from);
    const bool control = json_is_true(json_object_get(row, "control"));
    const double exposed = json_number_value(json_object_get(row, "exposed_seconds_estimate"));
    char text[32];
    for (int i = 0; i < 2; i++)
        put(row, sizes[i], scaled(json_integer_value(json_object_get(row, sizes[i])), u));
    put(row, "exposed", json_string(zt_exposed_word(control, exposed, text, sizeof text)));
    return row;
}

static int print_schedule(FILE *out, const struct zt_plan *k, const json_t *chosen, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"#", "number", ZT_CELL_NUMBER, 9},        {"~STARTS", "started_seconds_estimate", ZT_CELL_SECONDS, 0},
        {"UNIT", "unit", ZT_CELL_TEXT, 0},         {"WHAT", "kind", ZT_CELL_TEXT, 0},
        {"GROUP", "group", ZT_CELL_TEXT, 0},       {"TYPE", "dtype", ZT_CELL_TEXT, 0},
        {"BYTES", "bytes", ZT_CELL_FIXED, 2},      {"SENT", "sent_bytes", ZT_CELL_FIXED, 2},
        {"~EXPOSED", "exposed", ZT_CELL_TEXT, 0},  {"WHY", "reason", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0}};
    json_t *rows = json_array(), *row;
    int64_t largest = 0;
    size_t i;
    for (int64_t c = 0; c < k->n_collectives; c++)
        largest = k->collectives[c].bytes > largest ? k->collectives[c].bytes : largest;
    struct zt_plan_unit_of u = zt_plan_unit_of(largest);
    json_array_foreach(json_object_get(chosen, "schedule"), i, row) json_array_append_new(rows, schedule_row(row, u));
    fprintf(out, "\nthe collectives of one steady step, in order: bytes exact (%s), times since its start estimated (~)\n",
            u.name);
    if (k->micro_steps_simulated < k->accumulation)
        fprintf(out, "(with %lld of its %lld micro-steps; the others are like them)\n",
                (long long)k->micro_steps_simulated, (long long)k->accumulation);
    int rc = json_array_size(rows) > 0 ? zt_print_table(out, rows, columns, err) : 0;
    if (json_array_size(rows) == 0)
        fputs("none: one rank\n", out);
    json_decref(rows);
    return rc;
}

/* ---------------------------------------------------------------------------------- times */

static void say_mfu(FILE *out, const struct zt_planning *p) {
    enum zt_dtype type;
    double peak = zt_plan_peak(p, &type);
    if (peak > 0)
        fprintf(out, "          MFU %.1f %% of %.0f TFLOP/s %s (" ZT_MFU_FORMULA ": %.4g FLOPs per token)\n",
                100 * zt_plan_mfu(p), peak * 1e-12, zt_dtype_name(type), p->plan->flops_per_token);
    else
        fprintf(out, "          no MFU: %s has no peak in %s to compare with\n", p->device->name, zt_dtype_name(type));
}

static void print_times(FILE *out, const struct zt_planning *p, const json_t *caveats) {
    const struct zt_plan *k = p->plan;
    double rest = k->step_seconds - k->forward_seconds - k->backward_seconds - k->optimizer_seconds;
    char a[32], b[32], c[32], d[32], e[32];
    fputs("\na steady step: estimated\n", out);
    fprintf(out, "step      %s = forward %s + backward %s + optimizer %s + rest %s\n", secs(k->step_seconds, a),
            secs(k->forward_seconds, b), secs(k->backward_seconds, c), secs(k->optimizer_seconds, d),
            secs(rest > 0 ? rest : 0, e));
    fprintf(out, "comm      %s of communication, %s of it exposed (%.1f %% of the step)\n", secs(k->exposed.comm_seconds, a),
            secs(k->exposed.exposed_comm_seconds, b),
            100 * zt_plan_exposed_share(k));
    for (int i = 0; i < k->exposed.n_by; i++)
        fprintf(out, "%s%s/%s %s%s", i % 3 ? ", " : "          ", k->exposed.by[i].group, k->exposed.by[i].kind,
                secs(k->exposed.by[i].seconds, a), i % 3 == 2 || i + 1 == k->exposed.n_by ? "\n" : "");
    if (p->o->straggler > 1)
        fprintf(out, "straggler one rank computes %g times slower: a step takes %s instead of %s\n", p->o->straggler,
                secs(k->step_seconds, a), secs(p->even_seconds, b));
    const double each = k->tokens_per_second / k->world;
    snprintf(b, sizeof b, "%.2f", each);
    fprintf(out, "speed     %s tokens/s on all ranks, %s on each\n", count(llround(k->tokens_per_second), a),
            each < 100 ? b : count(llround(each), c));
    say_mfu(out, p);
    say_list(out, "note", caveats);
}

/* ---------------------------------------------------------------------------------- sweep */

/* The values of a row's keys by number: a dot in a column's path would mean a path. */
static json_t *sweep_row(const struct zt_planning *p, const json_t *row, char key[ZT_MAX_SWEEPS][96]) {
    json_t *o = json_copy((json_t *)(uintptr_t)row);
    char number[16];
    for (int i = 0; i < p->o->n_sweep; i++) {
        snprintf(number, sizeof number, "%d", i);
        json_object_set(o, number, json_object_get(json_object_get(row, "set"), key[i]));
    }
    return o;
}

static int print_sweep(FILE *out, const struct zt_planning *p, struct zt_error *err) {
    static const char *const number[ZT_MAX_SWEEPS] = {"0", "1", "2", "3", "4", "5"};
    static const struct zt_column more[] = {
        {"FITS", "fits", ZT_CELL_TEXT, 0},         {"PEAK", "peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"~STEP", "step_seconds_estimate", ZT_CELL_SECONDS, 0}, {"~EXPOSED", "exposed_share_estimate", ZT_CELL_SHARE, 0},
        {"~TOKENS/S", "tokens_per_second_estimate", ZT_CELL_COUNT, 0}, {"NOTE", "why", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0}};
    struct zt_column columns[ZT_MAX_SWEEPS + sizeof more / sizeof more[0]];
    char key[ZT_MAX_SWEEPS][96];
    json_t *rows = json_array(), *row;
    size_t r;
    int n = p->o->n_sweep;
    for (int i = 0; i < n; i++) {
        snprintf(key[i], sizeof key[i], "%.*s", (int)strcspn(p->o->sweep[i], "="), p->o->sweep[i]);
        columns[i] = (struct zt_column){key[i], number[i], ZT_CELL_TEXT, 0};
    }
    memcpy(&columns[n], more, sizeof more);
    json_array_foreach(p->sweep, r, row) json_array_append_new(rows, sweep_row(p, row, key));
    fputs("\nsweep: memory exact, times estimated (~)\n", out);
    int rc = zt_print_table(out, rows, columns, err);
    json_decref(rows);
    return rc;
}

/* ---------------------------------------------------------------------------------- all of it */

int zt_planning_print(FILE *out, struct zt_planning *p, const json_t *doc, struct zt_error *err) {
    const json_t *chosen = json_object_get(doc, "chosen");
    say_subject(out, p);
    int rc = zt_plan_print_ranks(out, p, err);
    rc = rc ? rc : print_memory(out, p, err);
    rc = rc ? rc : print_modes(out, p, err);
    if (rc == 0 && p->o->units) {
        fputs("\nunits\n", out);
        rc = zt_print_table(out, json_object_get(chosen, "units"), unit_columns, err);
    }
    rc = rc ? rc : print_traffic(out, chosen, err);
    if (rc == 0)
        print_times(out, p, json_object_get(chosen, "caveats"));
    if (rc == 0 && p->o->schedule)
        rc = print_schedule(out, p->plan, chosen, err);
    if (rc == 0 && p->o->curve) {
        json_t *head = json_object();
        fputc('\n', out);
        rc = zt_print_curve(p->o, head, p->plan, err);
        json_decref(head);
    }
    if (rc == 0 && p->sweep)
        rc = print_sweep(out, p, err);
    if (rc == 0)
        zt_plan_live_print(out, p, json_object_get(doc, "workers"));
    return rc;
}
