/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise_plan.c: one plan of the search: of a shortened run or of the whole, and what
 * is kept of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/plan/advise_int.h"
#include "engine/shard/layout.h"
#include "engine/shard/traffic.h"

#define SEGMENT ((int64_t)2 << 20) /* what the allocator takes from a device at least */

int advise_open(struct search *s, const struct zt_advise_config *c, struct zt_error *err) {
    const struct zt_plan_config *p = &c->plan;
    if (!p->spec || !p->device)
        return zt_fail(err, ZT_EINVAL, "advise: no run or no device is given");
    double limit = p->spec->memory.limit_gib * (double)ZT_GIB;
    *s = (struct search){.c = c, .max_plans = c->max_plans > 0 ? c->max_plans : ZT_ADVISE_PLANS};
    s->limit = p->capacity_bytes > 0 ? p->capacity_bytes
                                     : p->device->memory_bytes - p->device->outside_bytes;
    if (limit > 0 && (s->limit <= 0 || limit < (double)s->limit)) s->limit = (int64_t)limit;
    if (c->budget_bytes < 0)
        return zt_fail(err, ZT_EINVAL, "advise: a budget of %lld bytes; give more than 0",
                       (long long)c->budget_bytes);
    if (s->limit <= 0)
        return zt_fail(err, ZT_EINVAL,
                       "advise: the memory of device %s is not known; give a budget",
                       p->device->name);
    s->budget = c->budget_bytes ? c->budget_bytes : (int64_t)(ZT_ADVISE_SHARE * (double)s->limit);
    if (s->budget > s->limit) s->budget = s->limit;
    if (s->budget < SEGMENT)
        return zt_fail(
            err, ZT_EINVAL,
            "advise: a budget of %lld bytes is less than one segment of 2 MiB; give more",
            (long long)s->budget);
    return 0;
}

void advise_take(struct zt_advise_figures *f, const struct zt_plan *p) {
    *f = (struct zt_advise_figures){.fits = p->fits,
                                    .peak_allocated_bytes = p->peak_allocated_bytes,
                                    .peak_reserved_bytes = p->peak_reserved_bytes,
                                    .peak_window = p->peak_window,
                                    .phase_of_peak = p->phase_of_peak,
                                    .persistent = p->persistent,
                                    .step_seconds = p->step_seconds,
                                    .exposed_seconds = p->exposed.exposed_comm_seconds,
                                    .sent_bytes = p->sent_bytes,
                                    .accumulation = p->accumulation,
                                    .workers = p->world};
    memcpy(f->at_peak, p->at_peak, sizeof f->at_peak);
}

int advise_plan_at(struct search *s, const struct zt_spec *spec, int64_t capacity,
                   struct zt_plan **p, struct zt_error *err) {
    struct zt_plan_config c = s->c->plan;
    if (s->n_plans >= s->max_plans) {
        s->cut = true;
        return zt_fail(err, ZT_EBUSY, "advise: %d plans are made", s->n_plans);
    }
    s->n_plans++;
    if (spec->training.seq_len != c.spec->training.seq_len) c.valid_samples = -1;
    c.spec = spec;
    c.capacity_bytes = capacity;
    c.details = false;
    c.watch = (struct zt_alloc_watch){0};
    return zt_plan_make(&c, p, err);
}

/* What repeats is left out of it. */
static void shorten(struct zt_spec *s, enum advise_length length) {
    int64_t a = zt_spec_accumulation(s), most = length == ADVISE_SEARCH ? 2 : 4;
    if (length == ADVISE_RUN) return;
    if (a > most) s->training.global_batch_size = s->training.global_batch_size / a * most;
    if (length == ADVISE_SEARCH) s->metrics.warmup_steps = 0;
}

/* Micro-steps that were left out take as long as those that were not; where gradients are reduced
 * once for all of them, without what is exposed of that. */
static double left_out_seconds(const struct zt_spec *s, const struct zt_plan *p) {
    int64_t n = zt_spec_accumulation(s) - p->accumulation;
    enum zt_mode mode = s->parallelism.mode;
    double all = p->forward_seconds + p->backward_seconds;
    if (mode == ZT_DDP || mode == ZT_ZERO1) all = fmax(0, all - p->exposed.exposed_comm_seconds);
    return (double)n * all / (double)p->accumulation;
}

static int add_sent(void *arg, const struct zt_traffic_event *e) {
    *(int64_t *)arg += e->sent;
    return 0;
}

/* Bytes that a rank sends in a step, without what layers send over their tensor group. */
static int walked_bytes(const struct zt_spec *s, int64_t *sent, struct zt_error *err) {
    const struct zt_layout_options o =
        zt_layout_options_of(s, zt_policy(s->parallelism.mode), s->parallelism.shard);
    struct zt_model_table t = {0};
    struct zt_unit_layout l = {0};
    *sent = 0;
    int rc = zt_spec_table(s, &t, err);
    if (!rc) rc = zt_model_table_cut(&t, s->parallelism.tensor, 0, err);
    if (!rc) rc = zt_unit_layout_build(&t, &o, &l, err);
    if (!rc) rc = zt_traffic_step(s, &t, &l, add_sent, sent, NULL, err);
    zt_unit_layout_free(&l);
    zt_model_table_free(&t);
    return rc;
}

/* Of the whole run, from a plan `p` of `few`, the same with less micro-steps: layers send as much
 * in each of them. */
static int sent_bytes(const struct zt_spec *spec, const struct zt_spec *few,
                      const struct zt_plan *p, int64_t *sent, struct zt_error *err) {
    int64_t walked;
    int rc = walked_bytes(few, &walked, err);
    int64_t layers = (p->sent_bytes - walked) / p->accumulation;
    if (!rc) rc = walked_bytes(spec, sent, err);
    *sent += layers * zt_spec_accumulation(spec);
    return rc;
}

int advise_plan(struct search *s, const struct zt_spec *spec, enum advise_length length,
                struct zt_advise_figures *out, struct zt_error *err) {
    struct zt_spec *t = malloc(sizeof *t);
    struct zt_plan *p = NULL;
    if (!t) return zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    *t = *spec;
    shorten(t, length);
    int rc = advise_plan_at(s, t, s->budget, &p, err);
    if (!rc) advise_take(out, p);
    if (!rc && p->accumulation != zt_spec_accumulation(spec)) {
        out->step_seconds += left_out_seconds(spec, p);
        out->accumulation = zt_spec_accumulation(spec);
        rc = sent_bytes(spec, t, p, &out->sent_bytes, err);
    }
    zt_plan_free(p);
    free(t);
    return rc;
}
