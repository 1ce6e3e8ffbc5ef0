/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_json.c: see plan_json.h. Running out of memory yields nulls, never a wrong figure. */
#include "clients/zctl/plan_json.h"
#include "clients/zctl/json.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

json_t *zt_plan_json_tags(const int64_t bytes[ZT_TAG_COUNT]) {
    json_t *o = json_object();
    for (int t = 0; t < ZT_TAG_COUNT; t++)
        put(o, zt_tag_name((enum zt_tag)t), json_integer(bytes[t]));
    return o;
}

static json_t *persistent(int64_t parameters, int64_t gradients, int64_t optimizer) {
    json_t *o = json_object();
    put(o, "parameters", json_integer(parameters));
    put(o, "gradients", json_integer(gradients));
    put(o, "optimizer", json_integer(optimizer));
    return o;
}

json_t *zt_plan_json_window(const struct zt_window_peak *w) {
    json_t *o = json_object();
    put(o, "peak_allocated_bytes", json_integer(w->peak_allocated_bytes));
    put(o, "peak_reserved_bytes", json_integer(w->peak_reserved_bytes));
    put(o, "phase_of_peak", json_string(zt_phase_name(w->phase_of_peak)));
    put(o, "at_peak", zt_plan_json_tags(w->at_peak));
    put(o, "persistent_bytes", persistent(w->persistent[0], w->persistent[1], w->persistent[2]));
    return o;
}

static json_t *shapes(const struct zt_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_shapes; i++) {
        const struct zt_plan_shape *s = &p->shape[i];
        json_t *o = json_object(), *windows = json_object();
        for (int w = 0; w < ZT_WINDOW_COUNT; w++)
            if (s->occurs[w])
                put(windows, zt_window_name((enum zt_window_name)w), zt_plan_json_window(&s->window[w]));
        put(o, "rank", json_integer(s->rank));
        put(o, "dp_from", json_integer(s->dp_from));
        put(o, "dp_to", json_integer(s->dp_to));
        put(o, "windows", windows);
        json_array_append_new(list, o);
    }
    return list;
}

json_t *zt_plan_json_oom(const struct zt_oom *m, int64_t step) {
    json_t *o = json_object();
    put(o, "step", json_integer(step));
    put(o, "phase", json_string(zt_phase_name(m->phase)));
    put(o, "what", zt_json_text(m->what));
    put(o, "tag", json_string(zt_tag_name(m->tag)));
    put(o, "request_bytes", json_integer(m->request));
    put(o, "capacity_bytes", json_integer(m->capacity));
    put(o, "reserved_bytes", json_integer(m->reserved));
    put(o, "allocated_bytes", json_integer(m->allocated));
    put(o, "largest_free_block_bytes", json_integer(m->largest_free_block));
    put(o, "cause", json_string(m->fragmentation ? "fragmentation" : "capacity"));
    put(o, "by_tag", zt_plan_json_tags(m->by_tag));
    return o;
}

static bool limited(const struct zt_plan *p) { return p->capacity_bytes > 0 && p->capacity_bytes < ZT_PLAN_NO_LIMIT; }

static void put_peak(json_t *o, const struct zt_plan *p) {
    put(o, "peak_allocated_bytes", json_integer(p->peak_allocated_bytes));
    put(o, "peak_reserved_bytes", json_integer(p->peak_reserved_bytes));
    put(o, "peak_window", json_string(zt_window_name(p->peak_window)));
    put(o, "phase_of_peak", json_string(zt_phase_name(p->phase_of_peak)));
    put(o, "at_peak", zt_plan_json_tags(p->at_peak));
    put(o, "persistent_bytes", persistent(p->persistent.parameters, p->persistent.gradients, p->persistent.optimizer));
}

json_t *zt_plan_json(const struct zt_plan *p, const struct zt_cost_device *device) {
    json_t *o = json_object();
    put(o, "version", json_integer(ZT_PLAN_JSON_VERSION));
    put(o, "device", zt_json_text(device ? device->name : NULL));
    put(o, "capacity_bytes", zt_json_int(limited(p), p->capacity_bytes));
    put(o, "outside_bytes", json_integer(p->outside_bytes));
    put(o, "fits", limited(p) ? json_boolean(p->fits) : json_null());
    put(o, "oom", p->fits ? json_null() : zt_plan_json_oom(&p->oom, p->oom_step));
    put_peak(o, p);
    put(o, "shapes", shapes(p));
    put(o, "parameters", json_integer(p->parameters));
    put(o, "trainable", json_integer(p->trainable));
    put(o, "workers", json_integer(p->world));
    put(o, "data_parallel", json_integer(p->dp_size));
    put(o, "accumulation", json_integer(p->accumulation));
    put(o, "global_batch", json_integer(p->global_batch));
    put(o, "tokens_per_step", json_integer(p->tokens_per_step));
    put(o, "total_steps", zt_json_int(p->total_steps > 0, p->total_steps));
    put(o, "total_tokens", zt_json_int(p->total_tokens > 0, p->total_tokens));
    put(o, "step_seconds_estimate", zt_json_real(true, p->step_seconds));
    put(o, "forward_seconds_estimate", zt_json_real(true, p->forward_seconds));
    put(o, "backward_seconds_estimate", zt_json_real(true, p->backward_seconds));
    put(o, "optimizer_seconds_estimate", zt_json_real(true, p->optimizer_seconds));
    put(o, "exposed_comm_seconds_estimate", zt_json_real(true, p->exposed.exposed_comm_seconds));
    put(o, "tokens_per_second_estimate", zt_json_real(true, p->tokens_per_second));
    put(o, "flops_per_token", zt_json_real(true, p->flops_per_token));
    put(o, "sent_bytes_per_step", json_integer(p->sent_bytes));
    return o;
}

static const struct zt_plan_shape *shape_of(const struct zt_plan *p, int dp) {
    for (int i = 0; i < p->n_shapes; i++)
        if (dp >= p->shape[i].dp_from && dp < p->shape[i].dp_to)
            return &p->shape[i];
    return NULL;
}

json_t *zt_plan_json_ranks(const struct zt_plan *p) {
    json_t *rows = json_array();
    int tensor = p->dp_size > 0 && p->world >= p->dp_size ? p->world / p->dp_size : 1;
    for (int rank = 0; rank < p->world; rank++) {
        const struct zt_plan_shape *s = shape_of(p, rank / tensor); /* tensor is innermost */
        for (int w = 0; s && w < ZT_WINDOW_COUNT; w++) {
            if (!s->occurs[w])
                continue;
            json_t *row = json_object();
            put(row, "rank", json_integer(rank));
            put(row, "window", json_string(zt_window_name((enum zt_window_name)w)));
            put(row, "predicted", zt_plan_json_window(&s->window[w]));
            json_array_append_new(rows, row);
        }
    }
    return rows;
}

json_t *zt_plan_json_mode(const char *mode, const struct zt_plan *p, const char *why) {
    static const char *const fields[] = {"fits", "peak_allocated_bytes", "peak_reserved_bytes", "peak_window",
                                         "phase_of_peak", "at_peak", "persistent_bytes"};
    json_t *o = json_object();
    put(o, "mode", json_string(mode));
    if (p) {
        put(o, "fits", limited(p) ? json_boolean(p->fits) : json_null());
        put_peak(o, p);
    }
    for (size_t i = 0; !p && i < sizeof fields / sizeof fields[0]; i++)
        put(o, fields[i], json_null());
    put(o, "sent_bytes_per_step", zt_json_int(p != NULL, p ? p->sent_bytes : 0));
    put(o, "step_seconds_estimate", zt_json_real(p != NULL, p ? p->step_seconds : 0));
    put(o, "exposed_comm_seconds_estimate", zt_json_real(p != NULL, p ? p->exposed.exposed_comm_seconds : 0));
    put(o, "tokens_per_second_estimate", zt_json_real(p != NULL, p ? p->tokens_per_second : 0));
    put(o, "why", zt_json_text(why));
    return o;
}

json_t *zt_plan_json_curve(const struct zt_plan *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->n_curve; i++) {
        const struct zt_plan_point *c = &p->curve[i];
        json_t *o = json_object();
        int64_t sum = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++)
            sum += c->by_tag[t];
        put(o, "seconds_estimate", json_real(1e-9 * (double)c->at_ns));
        put(o, "phase", json_string(zt_phase_name(c->phase)));
        put(o, "what", zt_json_text(c->what));
        put(o, "allocated_bytes", json_integer(sum));
        put(o, "reserved_bytes", json_integer(c->reserved));
        put(o, "by_tag", zt_plan_json_tags(c->by_tag));
        json_array_append_new(list, o);
    }
    return list;
}
