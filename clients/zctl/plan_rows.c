/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_rows.c: a plan as rows of JSON, and all of it as one document. Names end in _estimate where a
 * figure is one; bytes are exact, but for what lies outside the allocator. */
#include <string.h>
#include "clients/zctl/disk_space.h"
#include "clients/zctl/json.h"
#include "clients/zctl/plan_json.h"
#include "clients/zctl/planning.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }
static json_t *seconds(int64_t ns) { return zt_json_real(true, 1e-9 * (double)ns); }

/* ---------------------------------------------------------------------------------- units */

static bool alike(const struct zt_plan_unit *a, const struct zt_plan_unit *b) {
    return a->parameters == b->parameters && a->trainable == b->trainable && a->padded == b->padded &&
           a->groups == b->groups && a->gathered == b->gathered && a->after_forward == b->after_forward &&
           a->slices == b->slices && a->prefetch == b->prefetch;
}

static const char *after_forward(const struct zt_plan_unit *u, char *buf, size_t n) {
    if (!u->gathered)
        snprintf(buf, n, "-");
    else if (u->after_forward == ZT_AFTER_FORWARD_SLICED)
        snprintf(buf, n, "kept in %d slices", u->slices);
    else
        snprintf(buf, n, "%s", u->after_forward == ZT_AFTER_FORWARD_KEPT ? "kept" : "freed");
    return buf;
}

json_t *zt_plan_rows_units(const struct zt_plan *p) {
    json_t *rows = json_array();
    for (int i = 0, n; i < p->n_units; i += n) {
        const struct zt_plan_unit *u = &p->units[i];
        char name[80], after[40];
        for (n = 1; i + n < p->n_units && alike(u, &p->units[i + n]);)
            n++;
        if (n > 1)
            snprintf(name, sizeof name, "%s .. %s", u->name, p->units[i + n - 1].name);
        else
            snprintf(name, sizeof name, "%s", u->name);
        json_t *o = json_object();
        put(o, "unit", zt_json_text(name));
        put(o, "units", json_integer(n));
        put(o, "parameters", json_integer(u->parameters));
        put(o, "trainable", json_integer(u->trainable));
        put(o, "padded", json_integer(u->padded));
        put(o, "groups", json_integer(u->groups));
        put(o, "gathered", json_boolean(u->gathered));
        put(o, "after_forward", zt_json_text(after_forward(u, after, sizeof after)));
        put(o, "prefetch", zt_json_int(u->gathered, u->prefetch));
        json_array_append_new(rows, o);
    }
    return rows;
}

/* ---------------------------------------------------------------------------------- collectives */

json_t *zt_plan_rows_traffic(const struct zt_plan *p) {
    json_t *rows = json_array();
    for (int i = 0; i < p->n_traffic; i++) {
        const struct zt_plan_traffic *t = &p->traffic[i];
        json_t *row = json_object();
        put(row, "group", zt_json_text(t->group));
        put(row, "kind", zt_json_text(zt_coll_name(t->kind)));
        put(row, "control", json_boolean(t->control));
        put(row, "count", json_integer(t->count));
        put(row, "bytes", json_integer(t->bytes));
        put(row, "sent_bytes", json_integer(t->sent_bytes));
        put(row, "seconds_estimate", seconds(t->ns));
        put(row, "exposed_seconds_estimate", t->control ? json_null() : seconds(t->exposed_ns));
        json_array_append_new(rows, row);
    }
    return rows;
}

json_t *zt_plan_rows_schedule(const struct zt_plan *p) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < p->n_collectives; i++) {
        const struct zt_coll_record *r = &p->collectives[i];
        json_t *o = json_object();
        put(o, "number", json_integer(i + 1));
        put(o, "unit", zt_json_text(r->unit));
        put(o, "kind", zt_json_text(zt_coll_name(r->kind)));
        put(o, "group", zt_json_text(r->group));
        put(o, "dtype", zt_json_text(zt_dtype_name(r->dtype)));
        put(o, "count", json_integer(r->count));
        put(o, "bytes", json_integer(r->bytes));
        put(o, "sent_bytes", json_integer(r->sent_bytes));
        put(o, "control", json_boolean(r->control));
        put(o, "queued_seconds_estimate", seconds(r->queued_ns));
        put(o, "started_seconds_estimate", seconds(r->start_ns));
        put(o, "ended_seconds_estimate", seconds(r->end_ns));
        put(o, "exposed_seconds_estimate", r->control ? json_null() : seconds(p->exposed_ns[i]));
        put(o, "reason", zt_json_text(r->reason));
        json_array_append_new(rows, o);
    }
    return rows;
}

/* ---------------------------------------------------------------------------------- modes */

json_t *zt_plan_rows_modes(const struct zt_planning *p) {
    json_t *rows = json_array();
    for (int i = 0; i < p->n_modes; i++) {
        const struct zt_planned_mode *m = &p->mode[i];
        const struct zt_plan *k = m->plan;
        json_t *o = zt_plan_json_mode(zt_mode_name(m->mode), k, m->why[0] ? m->why : NULL);
        put(o, "replicate", json_integer(m->replicate));
        put(o, "shard", json_integer(m->shard));
        put(o, "chosen", json_boolean(m->chosen));
        put(o, "headroom_bytes", zt_json_int(k, k ? k->capacity_bytes - k->peak_reserved_bytes : 0));
        put(o, "exposed_share_estimate", zt_json_real(k && k->step_seconds > 0, k ? zt_plan_exposed_share(k) : 0));
        json_array_append_new(rows, o);
    }
    return rows;
}

double zt_plan_exposed_share(const struct zt_plan *p) {
    return p->step_seconds > 0 ? p->exposed.exposed_comm_seconds / p->step_seconds : 0;
}

double zt_plan_peak(const struct zt_planning *p, enum zt_dtype *type) {
    const struct zt_recipe *r = zt_recipe_find(p->spec.precision.recipe);
    *type = r ? r->compute : ZT_F32;
    return p->device->peak_flops[*type];
}

double zt_plan_mfu(const struct zt_planning *p) {
    enum zt_dtype type;
    double peak = zt_plan_peak(p, &type);
    return peak > 0 ? p->plan->flops_per_token * p->plan->tokens_per_second / ((double)p->plan->world * peak) : 0;
}

static json_t *first_that_fits(const struct zt_planning *p) {
    char because[800];
    json_t *o = json_object();
    const struct zt_planned_mode *m = p->first >= 0 ? &p->mode[p->first] : NULL;
    put(o, "mode", zt_json_text(m ? zt_mode_name(m->mode) : NULL));
    put(o, "replicate", zt_json_int(m, m ? m->replicate : 0));
    put(o, "shard", zt_json_int(m, m ? m->shard : 0));
    put(o, "limit_bytes", json_integer((json_int_t)(ZT_PLAN_ROOM * (double)p->plan->capacity_bytes)));
    put(o, "share_of_capacity", json_real(ZT_PLAN_ROOM));
    put(o, "because", zt_json_text(zt_planning_first(p, because, sizeof because)));
    return o;
}

/* ---------------------------------------------------------------------------------- the document */

static json_t *model(const struct zt_planning *p) {
    const struct zt_model_config *m = &p->spec.model;
    json_t *o = json_object();
    put(o, "preset", zt_json_text(p->spec.preset));
    put(o, "layers", json_integer(m->layers));
    put(o, "dim", json_integer(m->dim));
    put(o, "heads", json_integer(m->heads));
    put(o, "vocab_size", json_integer(m->vocab_size));
    put(o, "parameters", json_integer(p->plan->parameters));
    put(o, "trainable", json_integer(p->plan->trainable));
    return o;
}

static json_t *device(const struct zt_planning *p) {
    const struct zt_cost_device *d = p->device;
    json_t *o = json_object();
    put(o, "name", zt_json_text(d->name));
    put(o, "title", zt_json_text(d->title));
    put(o, "memory_bytes", json_integer(d->memory_bytes));
    put(o, "outside_bytes", json_integer(d->outside_bytes));
    put(o, "measured", json_boolean(d->measured));
    return o;
}

static json_t *mesh(const struct zt_planning *p) {
    json_t *o = json_object();
    put(o, "replicate", json_integer(p->spec.parallelism.replicate));
    put(o, "shard", json_integer(p->spec.parallelism.shard));
    put(o, "tensor", json_integer(p->spec.parallelism.tensor));
    put(o, "hosts", json_integer(p->hosts));
    put(o, "ranks_per_host", json_integer(p->ranks_per_host));
    return o;
}

static json_t *batch(const struct zt_planning *p) {
    json_t *o = json_object();
    put(o, "local_batch_size", json_integer(p->spec.training.local_batch_size));
    put(o, "accumulation", json_integer(p->plan->accumulation));
    put(o, "micro_steps_simulated", json_integer(p->plan->micro_steps_simulated));
    put(o, "data_parallel", json_integer(p->plan->dp_size));
    put(o, "global_batch", json_integer(p->plan->global_batch));
    put(o, "seq_len", json_integer(p->spec.training.seq_len));
    put(o, "tokens_per_step", json_integer(p->plan->tokens_per_step));
    put(o, "total_steps", zt_json_int(p->plan->total_steps > 0, p->plan->total_steps));
    put(o, "total_tokens", zt_json_int(p->plan->total_tokens > 0, p->plan->total_tokens));
    return o;
}

static void add_sentence(void *list, const char *sentence) { json_array_append_new(list, zt_json_text(sentence)); }

/* What the times rest on that may be far from here. */
static json_t *caveats(const struct zt_planning *p) {
    int64_t least = 0, most = 0;
    json_t *list = json_array();
    for (int64_t i = 0; i < p->plan->n_collectives; i++) {
        const struct zt_coll_record *r = &p->plan->collectives[i];
        if (r->control)
            continue;
        least = least == 0 || r->bytes < least ? r->bytes : least;
        most = r->bytes > most ? r->bytes : most;
    }
    zt_device_caveats(p->device, p->ranks_per_host, least, most, add_sentence, list);
    return list;
}

static json_t *chosen(const struct zt_planning *p) {
    const struct zt_plan *k = p->plan;
    double mfu = zt_plan_mfu(p);
    json_t *o = zt_plan_json(k, p->device), *by = json_array();
    for (int i = 0; i < k->exposed.n_by; i++) {
        json_t *e = json_object();
        put(e, "group", zt_json_text(k->exposed.by[i].group));
        put(e, "kind", zt_json_text(k->exposed.by[i].kind));
        put(e, "seconds_estimate", zt_json_real(true, k->exposed.by[i].seconds));
        json_array_append_new(by, e);
    }
    put(o, "mode", json_string(zt_mode_name(p->spec.parallelism.mode)));
    put(o, "recipe", zt_json_text(p->spec.precision.recipe));
    put(o, "reduce_dtype", json_string(zt_dtype_name(p->spec.precision.reduce_dtype)));
    put(o, "headroom_bytes", json_integer(k->capacity_bytes - k->peak_reserved_bytes));
    put(o, "host_bytes", json_integer(k->host.total));
    put(o, "host_checkpoint_bytes", json_integer(k->host.checkpoint));
    put(o, "comm_seconds_estimate", zt_json_real(true, k->exposed.comm_seconds));
    put(o, "exposed_share_estimate", zt_json_real(true, zt_plan_exposed_share(k)));
    put(o, "exposed_by", by);
    put(o, "mfu_estimate", zt_json_real(mfu > 0, mfu));
    put(o, "mfu_formula", json_string(ZT_MFU_FORMULA));
    put(o, "caveats", caveats(p));
    put(o, "straggler", zt_json_real(p->o->straggler > 1, p->o->straggler));
    put(o, "step_seconds_without_straggler_estimate", zt_json_real(p->even_seconds > 0, p->even_seconds));
    put(o, "units", zt_plan_rows_units(k));
    put(o, "traffic", zt_plan_rows_traffic(k));
    put(o, "schedule", p->o->schedule ? zt_plan_rows_schedule(k) : json_null());
    put(o, "curve", p->o->curve ? zt_plan_json_curve(k) : json_null());
    put(o, "ranks", p->o->format == ZT_FORMAT_JSON ? zt_plan_json_ranks(k) : json_null());
    return o;
}

/* What the checkpoints take; null: it saves nothing. */
static json_t *disk(const struct zt_planning *p) {
    struct zt_disk_space d;
    if (!zt_disk_space(&p->spec, p->config.total_steps, &d))
        return json_null();
    json_t *o = json_object();
    put(o, "checkpoint_bytes", json_integer(d.each));
    put(o, "at_a_time", zt_json_int(d.most > 0, d.most));
    put(o, "bytes", zt_json_int(d.most > 0, d.all));
    put(o, "free_bytes", zt_json_int(d.free >= 0, d.free));
    put(o, "folder", zt_json_text(d.folder));
    return o;
}

json_t *zt_planning_json(struct zt_planning *p) {
    json_t *doc = json_object();
    put(doc, "name", zt_json_text(p->spec.name));
    put(doc, "file", zt_json_text(p->file->file));
    put(doc, "exact", json_string("names in _bytes and _per_step, and counts"));
    put(doc, "estimated", json_string("names in _estimate"));
    put(doc, "stated", json_string("outside_bytes and host_bytes: what lies outside the allocator, on the device and on the host"));
    put(doc, "model", model(p));
    put(doc, "device", device(p));
    put(doc, "mesh", mesh(p));
    put(doc, "batch", batch(p));
    put(doc, "disk", disk(p));
    put(doc, "assumed", json_incref(p->assumed));
    put(doc, "warnings", json_incref(p->warnings));
    put(doc, "chosen", chosen(p));
    put(doc, "modes", zt_plan_rows_modes(p));
    put(doc, "first_that_fits", first_that_fits(p));
    put(doc, "sweep", p->sweep ? json_incref(p->sweep) : json_null());
    put(doc, "workers", zt_plan_live_json(p));
    return doc;
}
