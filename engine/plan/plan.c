/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan.c: chooses what is simulated (how many steps, which ranks, on what), and turns
 * what came of it into a plan. Ownership and thread rule: plan.h. */
#include "engine/plan/plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sampler.h"
#include "engine/plan/plan_int.h"
#include "engine/shard/layout.h"
#include "engine/shard/walk.h"

#define NO_LIMIT (INT64_C(1) << 55) /* capacity of a device that holds anything */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

const char *zt_window_name(enum zt_window_name w) {
    static const char *const names[] = {"init", "first_step", "steady", "eval", "save", "load"};
    return (unsigned)w < ZT_WINDOW_COUNT ? names[w] : "?";
}

/* ---- what is simulated ---- */

/* What a run may have any number of, and where the rest is like what was simulated: steps before
 * the steady ones, micro-steps of a step, whole batches of an evaluation. */
#define WARMUP_MOST 16
#define MICROS_MOST ZT_PLAN_MICROS_MAX
#define BATCHES_MOST 4

/* Steps until nothing new can come, and evaluations among them: as the run has them where they come
 * early; else two, each with a step after it. The last step is one without anything before it in
 * its measure but a step, so its times are a steady step's. A run that ends in its warm-up has no
 * steady step, however much of it is simulated. */
static int64_t set_steps(struct zt_spec *s, int64_t total) {
    if (s->metrics.warmup_steps > WARMUP_MOST) {
        if (total > WARMUP_MOST && total <= s->metrics.warmup_steps) total = WARMUP_MOST;
        s->metrics.warmup_steps = WARMUP_MOST;
    }
    int64_t settled = s->metrics.warmup_steps + 2, every = s->validation.every_steps;
    if (total > 0 && total <= settled) return total;
    if (!s->validation.enabled || every <= 0 || (total > 0 && every >= total)) return settled;
    if (every > settled) s->validation.every_steps = every = settled;
    int64_t n = (settled / every + 2) * every + 1;
    return total > 0 && n > total ? total : n;
}

/* Returns how many micro-steps of each step are left out. */
static int64_t set_micros(struct zt_spec *s) {
    int64_t k = zt_spec_accumulation(s);
    if (k <= MICROS_MOST) return 0;
    s->training.global_batch_size /= k;
    s->training.global_batch_size *= MICROS_MOST;
    return k - MICROS_MOST;
}

/* The samples that are evaluated, without most of the batches that are whole on every rank. */
static int64_t set_samples(struct zt_spec *s, int64_t n, int dp) {
    int64_t per_step = s->training.local_batch_size * dp;
    if (n < 0) return n;
    if (s->validation.steps > 0 && s->validation.steps <= n / per_step)
        n = s->validation.steps * per_step;
    s->validation.steps = 0;
    int64_t whole = n / per_step, most = whole < BATCHES_MOST ? whole : BATCHES_MOST;
    return n - (whole - most) * per_step;
}

static int64_t total_of(const struct zt_plan_config *c) {
    return c->spec->training.epochs ? c->total_steps : c->spec->training.steps;
}

/* ---- shapes ---- */

/* Data-parallel ranks below this index have one more row to evaluate than the others; dp: all
 * alike. */
static int split_of(const struct zt_plan_config *c, int dp) {
    const struct zt_spec *s = c->spec;
    int64_t n = c->valid_samples, per_step = s->training.local_batch_size * dp;
    if (!s->validation.enabled || n < 0) return dp;
    if (s->validation.steps > 0 && s->validation.steps <= n / per_step) return dp;
    int64_t most = zt_eval_count(n, dp, 0);
    int k = 1;
    while (k < dp && zt_eval_count(n, dp, k) == most) k++;
    return k;
}

static int rank_of_dp(struct zt_mesh m, int dp_index) {
    return zt_mesh_rank(m, (struct zt_coords){dp_index / m.shard, dp_index % m.shard, 0});
}

/* ---- one plan ---- */

static int64_t capacity_of(const struct zt_plan_config *c) {
    if (c->capacity_bytes > 0) return c->capacity_bytes;
    return c->device->memory_bytes - c->device->outside_bytes;
}

static struct plan_run run_of(const struct zt_plan_config *c, const struct zt_spec *spec, int rank,
                              int64_t steps, int64_t valid_samples) {
    return (struct plan_run){
        .c = c,
        .spec = spec,
        .rank = rank,
        .sim = {.device = c->device,
                .ranks_per_host = c->ranks_per_host ? c->ranks_per_host : c->device->ranks_per_host,
                .valid_samples = valid_samples,
                .total_steps = steps}};
}

struct starts {
    int64_t *at, n;
    bool failed;
};

static void note_start(void *arg, int64_t id, int64_t at_ns) {
    struct starts *s = arg;
    if (id >= s->n) {
        int64_t n = s->n ? s->n : 1024;
        while (n <= id) n *= 2;
        int64_t *more = realloc(s->at, (size_t)n * sizeof *more);
        if (!more) {
            s->failed = true;
            return;
        }
        memset(more + s->n, 0, (size_t)(n - s->n) * sizeof *more);
        s->at = more;
        s->n = n;
    }
    s->at[id] = at_ns;
}

/* On a device without a limit; memory.limit_gib would be one. */
static int run_unlimited(struct plan_run *run, struct zt_spec *spec, struct zt_error *err) {
    double limit = spec->memory.limit_gib;
    spec->memory.limit_gib = 0;
    run->capacity = NO_LIMIT;
    int rc = plan_run(run, err);
    spec->memory.limit_gib = limit;
    if (rc != ZT_EOOM) return rc;
    return zt_fail(
        err, ZT_EINVAL,
        "plan: one rank would need more than 32 PiB; look at the sizes under model and at "
        "training.local_batch_size and seq_len");
}

/* When the slow rank begins each collective: it waits for nobody, so it can be simulated alone. */
static int slow_rank(const struct plan_run *like, struct zt_spec *spec, struct starts *starts,
                     struct zt_error *err) {
    struct plan_run run = *like;
    run.details = false;
    run.into = NULL;
    run.sim.slowdown = like->c->straggler;
    run.sim.begins = note_start;
    run.sim.begins_arg = starts;
    int rc = run_unlimited(&run, spec, err);
    if (!rc && starts->failed) rc = zt_fail(err, ZT_ENOMEM, "plan: no host memory");
    return rc;
}

/* Where it does not fit, what it would need is found on a device without a limit. */
static int run_limited(struct plan_run *run, struct zt_spec *spec, struct zt_plan *p,
                       struct zt_error *err) {
    struct zt_error why = {0};
    run->capacity = p->capacity_bytes;
    int rc = plan_run(run, &why);
    if (rc != ZT_EOOM) {
        if (rc && err) *err = why;
        return rc;
    }
    if (p->fits) {
        p->fits = false;
        p->oom = run->result.oom;
        p->oom_step = run->result.failed_step;
    }
    return run_unlimited(run, spec, err);
}

/* The rank among the others: one of them may be slower, or it is the slow one itself. */
static int run_shape(struct plan_run *run, struct zt_spec *spec, struct zt_plan *p, bool limited,
                     struct zt_error *err) {
    const struct zt_plan_config *c = run->c;
    bool waits = c->straggler > 1 && !c->on_straggler && p->world > 1;
    struct starts starts = {0};
    int rc = 0;
    if (c->straggler > 1 && c->on_straggler) run->sim.slowdown = c->straggler;
    if (waits) TRY(slow_rank(run, spec, &starts, err));
    run->sim.starts = starts.at;
    run->sim.n_starts = starts.n;
    TRY(limited ? run_limited(run, spec, p, err) : run_unlimited(run, spec, err));
out:
    run->sim.starts = NULL;
    free(starts.at);
    return rc;
}

static double longer(double all, double less, int64_t left_out) {
    return all + (double)left_out * (all - less);
}

static void add_micros(struct zt_step_report *r, const struct zt_step_report *less, int64_t n) {
    double *const e[] = {&r->exposed.step_seconds,       &r->exposed.compute_seconds,
                         &r->exposed.comm_seconds,       &r->exposed.exposed_comm_seconds,
                         &r->exposed.overlapped_seconds, &r->exposed.stall_seconds,
                         &r->exposed.tail_seconds,       &r->exposed.idle_seconds};
    const double b[] = {less->exposed.step_seconds,       less->exposed.compute_seconds,
                        less->exposed.comm_seconds,       less->exposed.exposed_comm_seconds,
                        less->exposed.overlapped_seconds, less->exposed.stall_seconds,
                        less->exposed.tail_seconds,       less->exposed.idle_seconds};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) *e[i] = longer(*e[i], b[i], n);
    for (int i = 0; i < r->exposed.n_by && i < less->exposed.n_by; i++)
        r->exposed.by[i].seconds = longer(r->exposed.by[i].seconds, less->exposed.by[i].seconds, n);
    r->step_seconds = longer(r->step_seconds, less->step_seconds, n);
    r->forward_seconds = longer(r->forward_seconds, less->forward_seconds, n);
    r->backward_seconds = longer(r->backward_seconds, less->backward_seconds, n);
    r->straggler_wait_seconds = longer(r->straggler_wait_seconds, less->straggler_wait_seconds, n);
    r->sent_bytes += n * (r->sent_bytes - less->sent_bytes);
}

/* Rows of both runs are the same and in the same order: what a step does does not depend on how
 * many micro-steps it has, from two on. */
static void add_traffic(struct plan_run *run, const struct plan_run *less, int64_t n) {
    for (int i = 0; i < run->n_traffic && i < less->n_traffic; i++) {
        struct zt_plan_traffic *a = &run->traffic[i];
        const struct zt_plan_traffic *b = &less->traffic[i];
        a->count += n * (a->count - b->count);
        a->bytes += n * (a->bytes - b->bytes);
        a->sent_bytes += n * (a->sent_bytes - b->sent_bytes);
        a->ns += n * (a->ns - b->ns);
        a->exposed_ns += n * (a->exposed_ns - b->exposed_ns);
    }
}

/* The micro-steps that were left out: each as long as the last that was not, which is what a step
 * with one less is shorter by. Only the last step of that run is looked at, for what it takes and
 * sends, and no time depends on the steps before it: a second step is as long as any later one. */
static int stretch(struct plan_run *run, struct zt_spec *spec, int64_t left_out, struct zt_plan *p,
                   struct zt_error *err) {
    struct zt_spec two = *spec;
    if (!spec->validation.enabled && spec->training.steps > 2) two.training.steps = 2;
    two.training.global_batch_size =
        spec->training.global_batch_size / MICROS_MOST * (MICROS_MOST - 1);
    struct plan_run less =
        run_of(run->c, &two, run->rank, two.training.steps, run->sim.valid_samples);
    less.details = run->details;
    int rc = run_shape(&less, &two, p, false, err);
    if (rc) return rc;
    add_micros(&run->last, &less.last, left_out);
    add_traffic(run, &less, left_out);
    return 0;
}

static void take_peaks(struct zt_plan *p, const struct zt_plan_shape *s) {
    for (int w = 0; w < ZT_WINDOW_COUNT; w++) {
        const struct zt_window_peak *k = &s->window[w];
        if (!s->occurs[w]) continue;
        if (k->peak_reserved_bytes > p->peak_reserved_bytes)
            p->peak_reserved_bytes = k->peak_reserved_bytes;
        if (k->peak_allocated_bytes <= p->peak_allocated_bytes) continue;
        p->peak_allocated_bytes = k->peak_allocated_bytes;
        p->peak_window = (enum zt_window_name)w;
        p->phase_of_peak = k->phase_of_peak;
        memcpy(p->at_peak, k->at_peak, sizeof p->at_peak);
    }
}

static void take_step(struct zt_plan *p, const struct plan_run *run) {
    const struct zt_step_report *r = &run->last;
    p->n_traffic = run->n_traffic;
    memcpy(p->traffic, run->traffic, sizeof p->traffic);
    p->step_seconds = r->step_seconds;
    p->forward_seconds = r->forward_seconds;
    p->backward_seconds = r->backward_seconds;
    p->optimizer_seconds = r->optimizer_seconds;
    p->exposed = r->exposed;
    p->sent_bytes = r->sent_bytes;
    p->persistent = (struct zt_state_bytes){r->persistent_parameters, r->persistent_gradients,
                                            r->persistent_optimizer};
    p->tokens_per_second = r->step_seconds > 0 ? (double)p->tokens_per_step / r->step_seconds : 0;
}

/* A run that saves may go on from there, in another generation or run; one begins from other weights
 * alone. What that generation loads is a window of its own: what is there then, before its first step. */
static int load_window(const struct plan_run *like, const struct zt_spec *spec, int64_t capacity,
                       struct zt_plan_shape *shape, struct zt_error *err) {
    bool begins = spec->init_from[0] && strcmp(spec->init_from, "fresh") != 0;
    struct zt_spec one = *spec;
    if (!spec->checkpoint.enabled && !begins) return 0;
    one.training.steps = 1;
    one.validation.enabled = false;
    struct plan_run run = run_of(like->c, &one, like->rank, 1, -1);
    run.sim.from = spec->checkpoint.enabled ? ZT_SIM_RESUMED : ZT_SIM_WEIGHTS;
    run.capacity = capacity;
    int rc = plan_run(&run, err);
    if (rc == ZT_EOOM) rc = run_unlimited(&run, &one, err);
    if (rc) return rc;
    shape->occurs[ZT_WINDOW_LOAD] = true;
    shape->window[ZT_WINDOW_LOAD] = run.shape.window[ZT_WINDOW_LOAD];
    return 0;
}

static int shapes(const struct zt_plan_config *c, struct zt_spec *spec, int64_t steps,
                  struct zt_plan *p, struct zt_error *err) {
    struct zt_mesh m = zt_spec_mesh(spec);
    int split = split_of(c, p->dp_size), rc = 0;
    int64_t samples = set_samples(spec, c->valid_samples, p->dp_size), left_out = set_micros(spec);
    p->micro_steps_simulated = p->accumulation - left_out;
    p->n_shapes = split < p->dp_size ? 2 : 1;
    for (int i = 0; i < p->n_shapes; i++) {
        int from = i ? split : 0, to = i || split == p->dp_size ? p->dp_size : split;
        struct plan_run run = run_of(c, spec, rank_of_dp(m, from), steps, samples);
        run.details = c->details && i == 0;
        run.into = i == 0 ? p : NULL;
        TRY(run_shape(&run, spec, p, true, err));
        TRY(load_window(&run, spec, p->capacity_bytes, &run.shape, err));
        p->shape[i] = run.shape;
        p->shape[i].rank = run.rank;
        p->shape[i].dp_from = from;
        p->shape[i].dp_to = to;
        take_peaks(p, &run.shape);
        if (i == 0 && left_out > 0) TRY(stretch(&run, spec, left_out, p, err));
        if (i == 0) take_step(p, &run);
    }
out:
    return rc;
}

/* ---- what the run is ---- */

/* FLOPs of a token in products with parameters: 2 forward, 2 for the gradient of the input where
 * backward comes, 2 for their own. What is only looked up is not multiplied; a tied embedding is
 * the head too. */
static int parameter_flops(const struct zt_model_table *t, double *flops, struct zt_error *err) {
    struct zt_model_walk w = {0};
    int rc = zt_model_walk_build(t, &w, err);
    *flops = 0;
    for (int i = 0; rc == 0 && i < t->n_tensors; i++) {
        const struct zt_tensor_def *d = &t->tensors[i];
        bool reached = false;
        for (int k = 0; k < w.n_backward && !reached; k++) reached = w.backward[k] == d->unit;
        if (d->role != ZT_ROLE_POSITIONS && (d->role != ZT_ROLE_EMBEDDING || t->config.tied_head))
            *flops += (2.0 + 2 * reached + 2 * !d->frozen) * (double)(d->whole[0] * d->whole[1]);
    }
    zt_model_walk_free(&w);
    return rc;
}

static int take_numbers(const struct zt_plan_config *c, const struct zt_model_table *t,
                        struct zt_plan *p, struct zt_error *err) {
    const struct zt_spec *s = c->spec;
    const struct zt_model_config *m = &t->config;
    p->parameters = t->parameters;
    for (int i = 0; i < t->n_tensors; i++)
        if (!t->tensors[i].frozen) p->trainable += t->tensors[i].numel;
    p->accumulation = zt_spec_accumulation(s);
    p->global_batch = s->training.global_batch_size;
    p->tokens_per_step = p->global_batch * s->training.seq_len;
    p->total_steps = total_of(c);
    if (p->total_steps <= INT64_MAX / (p->tokens_per_step ? p->tokens_per_step : 1))
        p->total_tokens = p->total_steps * p->tokens_per_step;
    int rc = parameter_flops(t, &p->flops_per_token, err);
    p->flops_per_token += 12.0 * (double)m->layers * (double)m->heads * (double)m->head_dim *
                          (double)s->training.seq_len;
    return rc;
}

static void take_unit(const struct zt_spec *s, const struct zt_model_table *t,
                      const struct zt_unit_layout *l, const struct zt_walk *walk, int unit,
                      struct zt_plan_unit *u) {
    const struct zt_unit_def *d = &t->units[unit];
    const struct zt_policy *policy = zt_policy(s->parallelism.mode);
    const struct zt_recipe *recipe = zt_recipe_find(s->precision.recipe);
    int at = walk->n_forward - 1;
    while (at > 0 && walk->unit[at] != unit) at--; /* its last use in forward */
    snprintf(u->name, sizeof u->name, "%s", d->name);
    u->prefetch = walk->prefetch;
    u->slices = walk->slices;
    for (int i = d->first_tensor; i < d->first_tensor + d->n_tensors; i++) {
        u->parameters += t->tensors[i].numel;
        if (!t->tensors[i].frozen) u->trainable += t->tensors[i].numel;
    }
    for (int k = l->unit_first[unit]; k < l->unit_first[unit + 1]; k++) {
        const struct zt_flat_group *g = &l->groups[l->unit_groups[k]];
        u->groups++;
        u->padded += g->elements;
        if (policy->gather != ZT_GATHER_BEFORE_USE || g->persistent ||
            (s->parallelism.shard == 1 && zt_recipe_gathered(recipe, g->trainable) == g->dtype))
            continue;
        enum zt_walk_fate fate = zt_walk_after(walk, l->unit_groups[k], at, walk->n);
        u->gathered = true;
        u->after_forward = fate == ZT_WALK_STAYS    ? ZT_AFTER_FORWARD_KEPT
                           : fate == ZT_WALK_SLICED ? ZT_AFTER_FORWARD_SLICED
                                                    : ZT_AFTER_FORWARD_FREED;
    }
}

static int take_units(const struct zt_spec *s, const struct zt_model_table *t, struct zt_plan *p,
                      struct zt_error *err) {
    const struct zt_policy *policy = zt_policy(s->parallelism.mode);
    const struct zt_layout_options o = zt_layout_options_of(s, policy, s->parallelism.shard);
    struct zt_unit_layout l = {0};
    struct zt_walk walk = {0};
    int rc = 0;
    TRY(zt_unit_layout_build(t, &o, &l, err));
    TRY(zt_walk_build(s, policy, s->parallelism.shard, t, &l, &walk, err));
    p->units = calloc((size_t)t->n_units, sizeof *p->units);
    if (!p->units) TRY(zt_fail(err, ZT_ENOMEM, "plan: no host memory"));
    p->n_units = t->n_units;
    for (int u = 0; u < t->n_units; u++) take_unit(s, t, &l, &walk, u, &p->units[u]);
out:
    zt_walk_free(&walk);
    zt_unit_layout_free(&l);
    return rc;
}

static int take_model(const struct zt_plan_config *c, struct zt_plan *p, struct zt_error *err) {
    const struct zt_spec *s = c->spec;
    struct zt_model_table t = {0};
    int rc = 0;
    TRY(zt_spec_table(s, &t, err));
    TRY(take_numbers(c, &t, p, err));
    TRY(zt_model_table_cut(&t, s->parallelism.tensor, 0, err)); /* the ranks' parts are alike */
    TRY(take_units(s, &t, p, err));
out:
    zt_model_table_free(&t);
    return rc;
}

int zt_plan_make(const struct zt_plan_config *c, struct zt_plan **out, struct zt_error *err) {
    struct zt_spec spec = *c->spec; /* no string of it is owned: verbatim is not looked at */
    int64_t steps = set_steps(&spec, total_of(c));
    int rc = 0;
    *out = NULL;
    struct zt_plan *p = calloc(1, sizeof *p);
    if (!p) return zt_fail(err, ZT_ENOMEM, "plan: no host memory");
    p->fits = true;
    p->world = zt_mesh_world(zt_spec_mesh(&spec));
    p->dp_size = zt_mesh_dp(zt_spec_mesh(&spec));
    p->capacity_bytes = capacity_of(c);
    if (p->capacity_bytes <= 0)
        TRY(zt_fail(err, ZT_EINVAL,
                    "plan: %s has %lld bytes of memory and %lld are kept for what is outside the "
                    "allocator: nothing is left to plan with",
                    c->device->name, (long long)c->device->memory_bytes,
                    (long long)c->device->outside_bytes));
    double limit = spec.memory.limit_gib * 1073741824.0;
    if (limit > 0 && limit < (double)p->capacity_bytes) p->capacity_bytes = (int64_t)limit;
    p->outside_bytes = c->device->outside_bytes;
    TRY(plan_host(c, p->world, c->ranks_per_host ? c->ranks_per_host : c->device->ranks_per_host,
                  &p->host, err));
    spec.training.steps = steps;
    spec.training.epochs = 0;
    spec.metrics.log_freq = 1;
    TRY(take_model(c, p, err));
    TRY(shapes(c, &spec, steps, p, err));
    *out = p;
    p = NULL;
out:
    zt_plan_free(p);
    return rc;
}

void zt_plan_free(struct zt_plan *p) {
    if (!p) return;
    free(p->units);
    free(p->collectives);
    free(p->exposed_ns);
    free(p->stall_ns);
    free(p->spans);
    free(p->curve);
    free(p->groups);
    free(p);
}

/* ---- other modes ---- */

int zt_plan_mode(const struct zt_spec *spec, enum zt_mode mode, struct zt_spec *out,
                 struct zt_error *err) {
    struct zt_mesh m = zt_spec_mesh(spec);
    int dp = zt_mesh_dp(m), replicate = mode == ZT_DDP ? dp : m.shard > 1 ? m.replicate : 1;
    const struct zt_recipe *r = zt_recipe_find(spec->precision.recipe);
    if (r && r->gathered != r->param && zt_policy(mode)->gather != ZT_GATHER_BEFORE_USE)
        return zt_fail(err, ZT_EINVAL, "recipe %s gathers cut parameters in %s; %s gathers none",
                       r->name, zt_dtype_name(r->gathered), zt_mode_name(mode));
    *out = *spec;
    out->parallelism.mode = mode;
    out->parallelism.mode_given = true;
    out->parallelism.replicate = replicate;
    out->parallelism.shard = dp / replicate;
    if (mode == ZT_ZERO2) out->parallelism.no_sync = false;
    return zt_spec_resolve_up_to(out, zt_mesh_world(m), ZT_PLAN_RANKS_MAX, spec->name, err);
}
