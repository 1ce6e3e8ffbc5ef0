/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/json.c: see json.h. Running out of memory yields nulls, never a wrong figure. */
#include "clients/zctl/json.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

json_t *zt_json_text(const char *s) {
    json_t *j = s && s[0] ? json_string(s) : NULL;
    return j ? j : json_null();
}

json_t *zt_json_real(bool has, double v) { return has && isfinite(v) ? json_real(v) : json_null(); }

json_t *zt_json_int(bool has, int64_t v) { return has ? json_integer(v) : json_null(); }

json_t *zt_json_time(int64_t ms) {
    char buf[40], whole[32];
    struct tm tm;
    time_t s = (time_t)(ms / 1000);
    if (ms <= 0 || !gmtime_r(&s, &tm))
        return json_null();
    strftime(whole, sizeof whole, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf, sizeof buf, "%s.%03dZ", whole, (int)(ms % 1000));
    return json_string(buf);
}

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

/* Optional fields of a message, by name. */
#define REAL(m, f) zt_json_real((m)->has_##f, (m)->f)
#define INT(m, f) zt_json_int((m)->has_##f, (int64_t)(m)->f)

static json_t *tags(const Zt__TagBytes *t) {
    if (!t)
        return json_null();
    json_t *o = json_object();
    put(o, "parameters", INT(t, parameters));
    put(o, "gradients", INT(t, gradients));
    put(o, "optimizer", INT(t, optimizer));
    put(o, "activations", INT(t, activations));
    put(o, "temporary", INT(t, temporary));
    put(o, "communication", INT(t, communication));
    return o;
}

static json_t *persistent(const Zt__TagBytes *t) {
    if (!t)
        return json_null();
    json_t *o = json_object();
    put(o, "parameters", INT(t, parameters));
    put(o, "gradients", INT(t, gradients));
    put(o, "optimizer", INT(t, optimizer));
    return o;
}

static json_t *exposed_by(const Zt__StepReport *r) {
    json_t *a = json_array();
    for (size_t i = 0; i < r->n_exposed_by; i++) {
        json_t *o = json_object();
        put(o, "group", zt_json_text(r->exposed_by[i]->group));
        put(o, "kind", zt_json_text(r->exposed_by[i]->kind));
        put(o, "seconds", zt_json_real(true, r->exposed_by[i]->seconds));
        json_array_append_new(a, o);
    }
    return a;
}

/* Of 64 bits, which a JSON number does not hold everywhere: as hexadecimal text. */
static json_t *hash64(bool has, uint64_t v) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return has ? json_string(text) : json_null();
}

/* The fields that a step's row and a rank's row share, in their order. */
static json_t *step_fields(const char *run, int64_t step, uint32_t generation, const Zt__StepReport *r,
                           json_t *tokens_per_second, json_t *peak_rank) {
    json_t *o = json_object();
    put(o, "run", zt_json_text(run));
    put(o, "generation", json_integer(generation));
    put(o, "step", json_integer(step));
    put(o, "loss", REAL(r, loss));
    put(o, "grad_norm", REAL(r, grad_norm));
    put(o, "lr", REAL(r, lr));
    put(o, "clip_coefficient", REAL(r, clip_coefficient));
    put(o, "loss_scale", REAL(r, loss_scale));
    put(o, "skipped", r->has_skipped ? json_boolean(r->skipped) : json_null());
    put(o, "skipped_steps", INT(r, skipped_steps));
    put(o, "tokens", INT(r, tokens));
    put(o, "tokens_per_second", tokens_per_second);
    put(o, "step_seconds", REAL(r, step_seconds));
    put(o, "data_seconds", REAL(r, data_seconds));
    put(o, "forward_seconds", REAL(r, forward_seconds));
    put(o, "backward_seconds", REAL(r, backward_seconds));
    put(o, "optimizer_seconds", REAL(r, optimizer_seconds));
    put(o, "checkpoint_seconds", REAL(r, checkpoint_seconds));
    put(o, "eval_seconds", REAL(r, eval_seconds));
    put(o, "comm_seconds", REAL(r, comm_seconds));
    put(o, "exposed_comm_seconds", REAL(r, exposed_comm_seconds));
    put(o, "stall_seconds", REAL(r, stall_seconds));
    put(o, "tail_seconds", REAL(r, tail_seconds));
    put(o, "straggler_wait_seconds", REAL(r, straggler_wait_seconds));
    put(o, "idle_seconds", REAL(r, idle_seconds));
    put(o, "exposed_by", exposed_by(r));
    put(o, "peak_allocated_bytes", INT(r, peak_allocated_bytes));
    put(o, "peak_reserved_bytes", INT(r, peak_reserved_bytes));
    put(o, "peak_rank", peak_rank);
    put(o, "eval_loss", REAL(r, eval_loss));
    /* the loss is the mean over all tokens of the set, so this is exp(sum of losses / sum of tokens) */
    put(o, "eval_perplexity", zt_json_real(r->has_eval_loss, exp(r->eval_loss)));
    put(o, "eval_tokens", INT(r, eval_tokens));
    put(o, "tokens_input", INT(r, tokens_input));
    put(o, "tokens_supervised", INT(r, tokens_supervised));
    put(o, "tokens_padding", INT(r, tokens_padding));
    put(o, "global_batch", INT(r, global_batch));
    put(o, "sample_hash", hash64(r->has_sample_hash, r->sample_hash));
    return o;
}

json_t *zt_json_step(const char *run, const Zt__StepRow *row) {
    static const Zt__StepReport none = ZT__STEP_REPORT__INIT;
    const Zt__StepReport *r = row->max ? row->max : &none;
    json_t *o = step_fields(run, row->step, row->generation, r, REAL(row, tokens_per_second), INT(row, peak_rank));
    put(o, "parameter_hash", zt_json_text(r->parameter_hash));
    put(o, "state_hash", zt_json_text(r->state_hash));
    return o;
}

static json_t *coords(struct zt_mesh mesh, uint32_t rank) {
    if (mesh.replicate < 1 || mesh.shard < 1 || mesh.tensor < 1 ||
        rank >= (uint32_t)zt_mesh_world(mesh))
        return json_null();
    struct zt_coords c = zt_mesh_coords(mesh, (int)rank);
    json_t *o = json_object();
    put(o, "replicate", json_integer(c.replicate));
    put(o, "shard", json_integer(c.shard));
    put(o, "tensor", json_integer(c.tensor));
    return o;
}

json_t *zt_json_rank(const char *run, struct zt_mesh mesh, const Zt__StepReport *r) {
    bool speed = r->has_tokens && r->has_step_seconds && r->step_seconds > 0;
    json_t *o = step_fields(run, r->step, r->generation, r,
                            zt_json_real(speed, speed ? (double)r->tokens / r->step_seconds : 0),
                            json_integer(r->rank));
    put(o, "rank", json_integer(r->rank));
    put(o, "coords", coords(mesh, r->rank));
    put(o, "local_loss", REAL(r, local_loss));
    put(o, "nonfinite_gradients", INT(r, nonfinite_gradients));
    put(o, "phase_of_peak", zt_json_text(r->phase_of_peak));
    put(o, "at_peak", tags(r->at_peak));
    put(o, "category_max", tags(r->category_max));
    put(o, "reserved_at_peak_bytes", INT(r, reserved_at_peak_bytes));
    put(o, "max_unused_reserved_bytes", INT(r, max_unused_reserved_bytes));
    put(o, "end_of_step_allocated_bytes", INT(r, end_of_step_allocated_bytes));
    put(o, "outside_allocator_bytes", INT(r, outside_allocator_bytes));
    put(o, "sent_bytes", INT(r, sent_bytes));
    put(o, "parameter_hash", zt_json_text(r->parameter_hash));
    put(o, "state_hash", zt_json_text(r->state_hash));
    return o;
}

json_t *zt_json_summary(const Zt__RunSummary *s) {
    json_t *o = json_object();
    put(o, "run", zt_json_text(s->run_id));
    put(o, "name", zt_json_text(s->name));
    put(o, "state", zt_json_text(s->state));
    put(o, "reason", zt_json_text(s->reason));
    put(o, "detail", zt_json_text(s->detail));
    put(o, "step", INT(s, step));
    put(o, "steps", zt_json_int(s->has_steps && s->steps > 0, s->steps));
    put(o, "generation", INT(s, generation));
    put(o, "attempt", INT(s, attempt));
    put(o, "loss", REAL(s, loss));
    put(o, "tokens_per_second", REAL(s, tokens_per_second));
    put(o, "peak_allocated_bytes", INT(s, peak_allocated_bytes));
    put(o, "exposed_share", REAL(s, exposed_share));
    put(o, "loss_scale", REAL(s, loss_scale));
    put(o, "skipped_steps", INT(s, skipped_steps));
    put(o, "workers", INT(s, workers));
    put(o, "priority", INT(s, priority));
    put(o, "submitted", zt_json_time(s->submitted_ms));
    put(o, "started", zt_json_time(s->started_ms));
    put(o, "ended", zt_json_time(s->ended_ms));
    return o;
}

static json_t *rank_info(const Zt__RankInfo *r) {
    json_t *o = json_object(), *c = json_object();
    put(c, "replicate", json_integer(r->replicate));
    put(c, "shard", json_integer(r->shard));
    put(c, "tensor", json_integer(r->tensor));
    put(o, "rank", json_integer(r->rank));
    put(o, "local_rank", json_integer(r->local_rank));
    put(o, "worker", zt_json_text(r->worker));
    put(o, "host", zt_json_text(r->host));
    put(o, "device", zt_json_text(r->device));
    put(o, "coords", c);
    put(o, "state", zt_json_text(r->state));
    put(o, "step", INT(r, step));
    return o;
}

static json_t *oom(const Zt__OomDetail *d) {
    if (!d)
        return json_null();
    json_t *o = json_object();
    put(o, "request_bytes", json_integer(d->request));
    put(o, "capacity_bytes", json_integer(d->capacity));
    put(o, "reserved_bytes", json_integer(d->reserved));
    put(o, "allocated_bytes", json_integer(d->allocated));
    put(o, "free_device_bytes", json_integer(d->free_device));
    put(o, "largest_free_block_bytes", json_integer(d->largest_free_block));
    put(o, "inactive_split_bytes", json_integer(d->inactive_split_bytes));
    put(o, "cause", json_string(d->fragmentation ? "fragmentation" : "capacity"));
    put(o, "tag", zt_json_text(d->tag));
    put(o, "phase", zt_json_text(d->phase));
    put(o, "what", zt_json_text(d->what));
    put(o, "by_tag", tags(d->by_tag));
    put(o, "location", zt_json_text(d->location));
    put(o, "first_change", zt_json_text(d->first_change));
    return o;
}

static json_t *attempt(const Zt__Attempt *a) {
    json_t *o = json_object(), *list = json_array();
    for (size_t i = 0; i < a->n_consequences; i++)
        json_array_append_new(list, zt_json_text(a->consequences[i]));
    put(o, "generation", json_integer(a->generation));
    put(o, "reason", zt_json_text(a->reason));
    put(o, "rank", zt_json_int(a->has_rank && a->rank >= 0, a->rank));
    put(o, "worker", zt_json_text(a->worker));
    put(o, "message", zt_json_text(a->message));
    put(o, "started", zt_json_time(a->started_ms));
    put(o, "ended", zt_json_time(a->ended_ms));
    put(o, "last_step", INT(a, last_step));
    put(o, "failed_step", INT(a, failed_step));
    put(o, "steps_redone", INT(a, steps_redone));
    put(o, "counted", a->has_counted ? json_boolean(a->counted) : json_null());
    put(o, "detect_seconds", zt_json_real(a->has_detect_seconds && a->detect_seconds >= 0, a->detect_seconds));
    put(o, "stop_seconds", zt_json_real(a->has_stop_seconds && a->stop_seconds >= 0, a->stop_seconds));
    put(o, "start_seconds", zt_json_real(a->has_start_seconds && a->start_seconds >= 0, a->start_seconds));
    put(o, "form_seconds", zt_json_real(a->has_form_seconds && a->form_seconds >= 0, a->form_seconds));
    put(o, "load_seconds", zt_json_real(a->has_load_seconds && a->load_seconds >= 0, a->load_seconds));
    put(o, "start_step", INT(a, start_step));
    put(o, "consequences", list);
    put(o, "oom", oom(a->oom));
    return o;
}

json_t *zt_json_checkpoint(const Zt__Checkpoint *c) {
    char hex[65] = "";
    json_t *o = json_object();
    for (size_t i = 0; c->has_manifest_sha256 && i < c->manifest_sha256.len && i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", c->manifest_sha256.data[i]);
    put(o, "step", json_integer(c->step));
    put(o, "generation", json_integer(c->generation));
    put(o, "state", zt_json_text(c->state));
    put(o, "bytes", INT(c, bytes));
    put(o, "shards", INT(c, world));
    put(o, "shards_in", INT(c, shards));
    put(o, "verified", c->has_verified ? json_boolean(c->verified) : json_null());
    put(o, "pinned", c->has_pinned ? json_boolean(c->pinned) : json_null());
    put(o, "stall_seconds", REAL(c, stall_seconds));
    put(o, "write_seconds", REAL(c, write_seconds));
    put(o, "created", zt_json_time(c->has_created_ms ? c->created_ms : 0));
    put(o, "parameter_hash", zt_json_text(c->parameter_hash));
    put(o, "state_hash", zt_json_text(c->state_hash));
    put(o, "manifest_sha256", zt_json_text(hex));
    put(o, "folder", zt_json_text(c->folder));
    put(o, "message", zt_json_text(c->message));
    return o;
}

json_t *zt_json_run(const Zt__RunDetail *d) {
    const Zt__RunSummary *s = d->summary;
    json_t *o = zt_json_summary(s), *mesh = json_object(), *ranks = json_array(), *attempts = json_array();
    put(mesh, "replicate", json_integer(d->replicate));
    put(mesh, "shard", json_integer(d->shard));
    put(mesh, "tensor", json_integer(d->tensor));
    for (size_t i = 0; i < d->n_ranks; i++)
        json_array_append_new(ranks, rank_info(d->ranks[i]));
    for (size_t i = 0; i < d->n_attempts; i++)
        json_array_append_new(attempts, attempt(d->attempts[i]));
    put(o, "parameter_hash", zt_json_text(d->parameter_hash));
    put(o, "mode", zt_json_text(d->mode));
    put(o, "mesh", mesh);
    put(o, "ranks", ranks);
    put(o, "checkpoint", d->checkpoint ? zt_json_checkpoint(d->checkpoint) : json_null());
    put(o, "saving", d->saving ? zt_json_checkpoint(d->saving) : json_null());
    put(o, "resumed_from", zt_json_text(d->resumed_from));
    put(o, "restarts_counted", INT(d, restarts_counted));
    put(o, "max_restarts", INT(d, max_restarts));
    put(o, "attempts", attempts);
    put(o, "file", zt_json_text(d->file));
    put(o, "epoch", INT(d, epoch));
    put(o, "memory", zt_json_memory_summary(d));
    return o;
}

json_t *zt_json_memory(const Zt__MemoryRow *row, const json_t *predicted) {
    const Zt__WindowPeak *w = row->measured;
    json_t *o = json_object(), *m = json_object();
    put(m, "peak_allocated_bytes", json_integer(w->peak_allocated_bytes));
    put(m, "peak_reserved_bytes", json_integer(w->peak_reserved_bytes));
    put(m, "phase_of_peak", zt_json_text(w->phase_of_peak));
    put(m, "at_peak", tags(w->at_peak));
    put(m, "persistent_bytes", persistent(w->persistent));
    put(o, "rank", json_integer(row->rank));
    put(o, "window", zt_json_text(row->window));
    put(o, "predicted", predicted ? json_incref((json_t *)(uintptr_t)predicted) : json_null());
    put(o, "measured", m);
    return o;
}

json_t *zt_json_dtypes(const Zt__DtypesReport *r) {
    json_t *o = json_object(), *rows = json_array();
    for (size_t i = 0; i < r->n_rows; i++) {
        const Zt__DtypeRow *d = r->rows[i];
        json_t *row = json_object();
        put(row, "what", zt_json_text(d->what));
        put(row, "configured", zt_json_text(d->configured));
        put(row, "stored", zt_json_text(d->stored));
        put(row, "used", zt_json_text(d->used));
        json_array_append_new(rows, row);
    }
    put(o, "rank", json_integer(r->rank));
    put(o, "step", json_integer(r->step));
    put(o, "recipe", zt_json_text(r->recipe));
    put(o, "types", rows);
    put(o, "compute", zt_json_text(r->compute));
    put(o, "kernels", zt_json_text(r->kernels));
    return o;
}

json_t *zt_json_worker(const Zt__WorkerInfo *w) {
    json_t *o = json_object();
    bool busy = w->run_id && w->run_id[0];
    put(o, "worker", zt_json_text(w->worker_id));
    put(o, "host", zt_json_text(w->host));
    put(o, "address", zt_json_text(w->address));
    put(o, "device", zt_json_text(w->device));
    put(o, "state", zt_json_text(w->state));
    put(o, "run", zt_json_text(w->run_id));
    put(o, "generation", zt_json_int(busy && w->has_generation, w->generation));
    put(o, "rank", zt_json_int(busy && w->has_rank, w->rank));
    put(o, "local_rank", zt_json_int(busy && w->has_local_rank, w->local_rank));
    put(o, "capacity_bytes", INT(w, capacity_bytes));
    put(o, "threads", INT(w, threads));
    put(o, "backend", zt_json_text(w->backend));
    put(o, "version", zt_json_text(w->version));
    put(o, "beat_age_seconds", REAL(w, beat_age_seconds));
    put(o, "pid", INT(w, pid));
    put(o, "flags", zt_json_text(w->flags));
    return o;
}

json_t *zt_json_event(const Zt__Event *e) {
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    json_t *o = json_object();
    put(o, "id", json_integer((json_int_t)e->id));
    put(o, "at", zt_json_time(e->at_ms));
    put(o, "level", json_string(levels[e->has_level && e->level < 4 ? e->level : 1]));
    put(o, "kind", zt_json_text(e->kind));
    put(o, "run", zt_json_text(e->run_id));
    put(o, "generation", INT(e, generation));
    put(o, "rank", zt_json_int(e->has_rank && e->rank >= 0, e->rank));
    put(o, "worker", zt_json_text(e->worker));
    put(o, "actor", zt_json_text(e->actor));
    put(o, "from", zt_json_text(e->from));
    put(o, "to", zt_json_text(e->to));
    put(o, "reason", zt_json_text(e->reason));
    put(o, "message", zt_json_text(e->message));
    return o;
}

json_t *zt_json_cluster(const Zt__ClusterStatus *s) {
    json_t *o = json_object(), *w = json_object(), *runs = json_array();
    put(w, "idle", json_integer(s->workers_idle));
    put(w, "busy", json_integer(s->workers_busy));
    put(w, "lost", json_integer(s->workers_lost));
    for (size_t i = 0; i < s->n_runs; i++)
        json_array_append_new(runs, zt_json_summary(s->runs[i]));
    put(o, "version", zt_json_text(s->version));
    put(o, "protocol_major", json_integer(s->protocol_major));
    put(o, "protocol_minor", json_integer(s->protocol_minor));
    put(o, "epoch", json_integer((json_int_t)s->epoch));
    put(o, "started", zt_json_time(s->started_ms));
    put(o, "state_folder", zt_json_text(s->state_folder));
    put(o, "workers", w);
    put(o, "runs", runs);
    return o;
}
