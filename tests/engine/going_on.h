/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/going_on.h: runs that are stopped and go on, on forked ranks, with no file: what a
 * trainer keeps is put into one array per kind by logical element, and read back from there by a
 * source of tensors that knows nothing of meshes. So what is tested is the loader, and what a
 * trainer needs to go on. Nothing here uses the code that cuts and writes checkpoints.
 *
 * go_run trains steps (from->position.step, last] and fills what came out of every step and what was
 * there after step `snap`. */
#ifndef ZT_TESTS_ENGINE_GOING_ON_H
#define ZT_TESTS_ENGINE_GOING_ON_H
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>

#include "core/convert.h"
#include "engine/train_int.h"
#include "tests/engine/data_util.h"
#include "tests/engine/ranks.h"

#define GO_STEPS_MAX 100
#define GO_TENSORS_MAX 96
#define GO_ELEMENTS_MAX 60000
#define GO_ROWS_MAX 48 /* of a window */
#define GO_WHY 512

/* A checkpoint in memory: values as fp32, which holds those of every format. */
struct go_store {
    struct zt_position position;
    struct zt_hash128 parameters, state;
    int n_tensors;
    struct zt_saved_tensor tensor[GO_TENSORS_MAX];
    int64_t first[GO_TENSORS_MAX + 1];
    float value[ZT_SAVED_COUNT][GO_ELEMENTS_MAX];
};
struct go_step {
    double loss, norm, lr, eval_loss, scale;
    bool skipped;
    int64_t global_batch, skipped_steps;
    char parameters[33], state[33];
    int64_t id[GO_ROWS_MAX]; /* by place in the global window; -1: none */
    uint64_t sample_hash[RANKS_MAX];
};
struct go_job {
    struct ranks_shared shared;
    char yaml[4096];
    int world;
    int64_t snap;                /* 0: never */
    int64_t last;                /* 0: the run's last */
    const struct go_store *from; /* NULL: fresh */
    bool weights, accept;
    char fail[64];               /* ZT_FAIL of every rank */
    int forget;                  /* a planted fault: 1 + kind that the source hands out as zeros */
    struct go_store *store, *end, *loaded; /* after `snap`, after the last step, right after the load */
    int rc[RANKS_MAX];
    struct zt_error err[RANKS_MAX];
    int64_t total_steps, done;
    int64_t device_before, device_after; /* bytes around a load, rank 0 */
    struct zt_window_peak init, load;
    struct go_step step[GO_STEPS_MAX + 1];
};

/* ---- the store as a source ---- */

struct go_source {
    const struct go_store *s;
    int forget;
    int64_t reads;
};
static inline int go_find(const struct go_store *s, const char *name) {
    for (int i = 0; i < s->n_tensors; i++)
        if (!strcmp(s->tensor[i].name, name)) return i;
    return -1;
}
static inline const char *go_name_at(void *arg, int i) {
    const struct go_source *g = arg;
    return i < g->s->n_tensors ? g->s->tensor[i].name : NULL;
}
static inline bool go_has(void *arg, const char *name, enum zt_saved kind) {
    const struct go_source *g = arg;
    int i = go_find(g->s, name);
    return i >= 0 && g->s->tensor[i].has[kind];
}
static inline int go_read(void *arg, const char *name, enum zt_saved kind, int ndim,
                          const int64_t shape[2], struct zt_span span, int64_t count,
                          enum zt_dtype as, void *out, struct zt_error *err) {
    struct go_source *g = arg;
    int i = go_find(g->s, name);
    if (i < 0 || !g->s->tensor[i].has[kind] || g->s->tensor[i].ndim != ndim ||
        memcmp(g->s->tensor[i].shape, shape, sizeof g->s->tensor[i].shape))
        return zt_fail(err, ZT_EINTERNAL, "%s%s was asked for", name, zt_saved_suffix(kind));
    g->reads++;
    for (int64_t k = 0; k < count; k++) {
        uint64_t at;
        zt_span_run(&span, k, 1, &at);
        float v = g->forget == 1 + (int)kind
                      ? 0
                      : g->s->value[kind][g->s->first[i] + (int64_t)at];
        zt_convert((char *)out + (size_t)k * zt_dtype_size(as), as, &v, ZT_F32, 1);
    }
    return 0;
}
static inline struct zt_tensor_source go_open(struct go_source *g) {
    return (struct zt_tensor_source){.arg = g, .name_at = go_name_at, .has = go_has, .read = go_read};
}

static inline struct zt_manifest go_manifest(const struct go_store *s) {
    return (struct zt_manifest){.position = s->position,
                                .parameter_hash = s->parameters,
                                .state_hash = s->state,
                                .n_tensors = s->n_tensors,
                                .tensors = (struct zt_saved_tensor *)(uintptr_t)s->tensor};
}

/* ---- a trainer into the store; every rank writes what it owns ---- */

static inline int go_tensors(const struct zt_trainer *t, struct go_store *s) {
    EXPECT(t->table.n_tensors <= GO_TENSORS_MAX, "%d tensors", t->table.n_tensors);
    for (int i = 0; i < t->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &t->table.tensors[i];
        struct zt_saved_tensor *to = &s->tensor[i];
        memcpy(to->name, d->name, sizeof to->name);
        to->ndim = d->ndim;
        memcpy(to->shape, d->whole, sizeof to->shape);
        to->number = d->number;
        to->frozen = d->frozen;
        s->first[i + 1] = s->first[i] + d->whole[0] * d->whole[1];
    }
    s->n_tensors = t->table.n_tensors;
    EXPECT(s->first[s->n_tensors] <= GO_ELEMENTS_MAX, "%lld", (long long)s->first[s->n_tensors]);
    return 0;
}

static inline int go_keep(struct zt_trainer *t, struct go_store *s, struct zt_error *e) {
    if (go_tensors(t, s)) return 1;
    for (struct zt_state_piece p = {0}; zt_runtime_owned_next(t->runtime, &p);)
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            if (!p.at[k]) continue;
            s->tensor[p.tensor].has[k] = true;
            s->tensor[p.tensor].type[k] = p.type[k];
            for (int64_t i = 0; i < p.count; i++) {
                uint64_t at;
                zt_span_run(&p.span, i, 1, &at);
                zt_convert(&s->value[k][s->first[p.tensor] + (int64_t)at], ZT_F32,
                           (char *)p.at[k] + (size_t)i * zt_dtype_size(p.type[k]), p.type[k], 1);
            }
        }
    if (t->config->rank == 0)
        s->position = (struct zt_position){.step = t->step,
                                           .updates = zt_runtime_updates(t->runtime),
                                           .skipped = t->skipped,
                                           .total_steps = t->total_steps,
                                           .tokens = t->tokens,
                                           .cursor = zt_loader_cursor(t->loader),
                                           .epoch_samples = zt_dataset_samples(t->train_set),
                                           .data_digest = zt_dataset_digest(t->train_set),
                                           .scaled = t->recipe->scaled != 0,
                                           .scale = t->scaler.scale,
                                           .scale_good = t->scaler.good,
                                           .scale_hysteresis_left = t->scaler.hysteresis_left};
    struct zt_hash128 parameters, state;
    EXPECT(zt_trainer_check_hash(t, &parameters, e) == 0, "%s", e->msg);
    EXPECT(zt_trainer_state_hash(t, &state, e) == 0, "%s", e->msg);
    if (t->config->rank == 0) {
        s->parameters = parameters;
        s->state = state;
    }
    return 0;
}

/* ---- a rank ---- */

static inline int go_load(struct zt_trainer *t, struct go_job *j, struct zt_error *e) {
    struct go_source g = {j->from, j->forget, 0};
    struct zt_tensor_source source = go_open(&g);
    struct zt_manifest m = go_manifest(j->from);
    int rc = 0;
    if (t->config->rank == 0) j->device_before = t->ledger.allocated;
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_LOAD);
    zt_alloc_reset_peaks(t->alloc);
    if (!j->weights) TRY(zt_load_check_tensors(t, &m, e));
    if (!j->weights) TRY(zt_load_position(t, &m.position, j->accept, e));
    TRY(zt_load_tensors(t, &source, j->weights, e));
    if (!j->weights) TRY(zt_load_check_hash(t, &m, false, e));
    zt_report_window(&t->ledger, t->runtime, &t->load_peak);
    if (t->config->rank == 0) j->device_after = t->ledger.allocated;
out:
    return rc;
}

static inline int go_step(struct zt_trainer *t, struct go_job *j, struct zt_error *e) {
    struct go_step *s = &j->step[t->step];
    struct zt_hash128 h;
    int rc = 0;
    zt_report_begin(t);
    TRY(zt_trainer_step(t, e));
    const struct zt_step_report *r = &t->report;
    const struct zt_spec *spec = t->spec;
    s->sample_hash[t->config->rank] = r->sample_hash;
    int64_t before = 0;
    for (int64_t m = 0; m < t->window.micros; m++)
        for (int64_t i = 0; i < t->window.rows[m]; i++, before++)
            s->id[before * t->dp_size + t->dp_index] =
                t->window.ids[m * t->window.capacity_rows + i];
    if (spec->validation.enabled && t->step % spec->validation.every_steps == 0)
        TRY(zt_trainer_eval(t, e));
    TRY(zt_trainer_check_hash(t, &h, e));
    if (t->config->rank == 0) {
        zt_hash_text(h, s->parameters);
        s->loss = r->loss;
        s->norm = r->grad_norm;
        s->lr = r->lr;
        s->eval_loss = r->eval_loss;
        s->scale = t->scaler.scale;
        s->skipped = r->skipped;
        s->skipped_steps = r->skipped_steps;
        s->global_batch = r->global_batch;
        j->init = t->step == t->resumed + 1 ? r->init : j->init;
        j->load = t->step == t->resumed + 1 ? r->load : j->load;
        j->done = t->step;
    }
    TRY(zt_trainer_state_hash(t, &h, e));
    if (t->config->rank == 0) zt_hash_text(h, s->state);
out:
    return rc;
}

static inline int go_comm_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    return ranks_exchange(arg, rank, id, err);
}

static inline int go_train(struct zt_trainer *t, struct go_job *j, struct zt_error *e) {
    int rc = 0;
    TRY(zt_trainer_open(t, e));
    if (j->from) TRY(go_load(t, j, e));
    t->step = t->resumed;
    if (j->loaded && go_keep(t, j->loaded, e)) TRY(ZT_EINTERNAL);
    int64_t last = j->last ? j->last : t->total_steps;
    if (t->config->rank == 0) j->total_steps = t->total_steps;
    for (t->step = t->resumed + 1; t->step <= last && t->step <= GO_STEPS_MAX; t->step++) {
        TRY(go_step(t, j, e));
        if (t->step == j->snap && j->store && go_keep(t, j->store, e)) rc = ZT_EINTERNAL;
        if (t->step == last && j->end && go_keep(t, j->end, e)) rc = ZT_EINTERNAL;
        if (rc) goto out;
    }
out:
    return rc;
}

static inline int go_rank(int rank, int world, void *arg) {
    struct go_job *j = arg;
    struct zt_error *e = &j->err[rank];
    struct zt_spec s;
    struct zt_train_hooks hooks = {.arg = &j->shared, .comm_id = go_comm_id};
    if (j->fail[0]) setenv("ZT_FAIL", j->fail, 1);
    EXPECT(zt_spec_parse(j->yaml, strlen(j->yaml), "test.yaml", NULL, 0, &s, e) == 0, "%s", e->msg);
    EXPECT(zt_spec_resolve(&s, world, "test.yaml", e) == 0, "%s", e->msg);
    struct zt_train_config c = {.spec = &s,
                                .rank = rank,
                                .world = world,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .threads = 1,
                                .capacity_bytes = (int64_t)64 << 20};
    struct zt_trainer t = {.config = &c, .hooks = &hooks, .spec = &s};
    j->rc[rank] = go_train(&t, j, e);
    zt_trainer_close(&t, j->rc[rank] != 0);
    zt_spec_free(&s);
    return 0;
}

/* ---- for the test's process ---- */

static inline struct go_job *go_new(int world, const char *yaml) {
    struct go_job *j = ranks_map(sizeof *j);
    j->world = world;
    memset(j->step, 0xff, sizeof j->step); /* NAN, -1 */
    snprintf(j->yaml, sizeof j->yaml, "version: 1\nname: t\n%s", yaml);
    return j;
}
static inline struct go_store *go_store_new(void) { return ranks_map(sizeof(struct go_store)); }
static inline void go_store_free(struct go_store *s) {
    if (s) munmap(s, sizeof *s);
}
static inline void go_free(struct go_job *j) {
    go_store_free(j->end);
    go_store_free(j->loaded);
    munmap(j, sizeof *j);
}

/* Runs it; the ranks' return codes are in the job. */
static inline void go_go(struct go_job *j) {
    cr_assert_eq(ranks_run(j->world, 120, go_rank, j, NULL), 0, "%s", j->yaml);
}
static inline struct go_job *go_ok(struct go_job *j) {
    go_go(j);
    for (int r = 0; r < j->world; r++)
        cr_assert_eq(j->rc[r], 0, "rank %d of %d: %s\n%s", r, j->world, j->err[r].msg, j->yaml);
    return j;
}

static inline bool go_say(char *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool go_say(char *why, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, GO_WHY, fmt, ap);
    va_end(ap);
    return false;
}
static inline bool go_same_double(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* Where training stands, and every element of every kind, bit for bit. */
static inline bool go_same_store(const struct go_store *a, const struct go_store *b, char *why) {
    const struct zt_position *p = &a->position, *q = &b->position;
    if (p->step != q->step || p->updates != q->updates || p->skipped != q->skipped ||
        p->tokens != q->tokens || p->scale != q->scale || p->scale_good != q->scale_good ||
        p->scale_hysteresis_left != q->scale_hysteresis_left ||
        p->cursor.epoch != q->cursor.epoch || p->cursor.consumed != q->cursor.consumed)
        return go_say(why,
                      "step %lld: %lld updates, %lld skipped, %lld tokens, scale %g (%lld good, %d "
                      "left), not %lld, %lld, %lld, %g (%lld, %d)",
                      (long long)q->step, (long long)q->updates, (long long)q->skipped,
                      (long long)q->tokens, q->scale, (long long)q->scale_good,
                      q->scale_hysteresis_left, (long long)p->updates, (long long)p->skipped,
                      (long long)p->tokens, p->scale, (long long)p->scale_good,
                      p->scale_hysteresis_left);
    if (a->n_tensors != b->n_tensors)
        return go_say(why, "%d tensors and %d", a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++)
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            if (a->tensor[i].has[k] != b->tensor[i].has[k])
                return go_say(why, "%s%s is in one alone", a->tensor[i].name,
                              zt_saved_suffix((enum zt_saved)k));
            for (int64_t e = a->first[i]; a->tensor[i].has[k] && e < a->first[i + 1]; e++)
                if (memcmp(&a->value[k][e], &b->value[k][e], sizeof(float)))
                    return go_say(why, "%s%s[%lld]: %.9g, not %.9g", a->tensor[i].name,
                                  zt_saved_suffix((enum zt_saved)k), (long long)(e - a->first[i]),
                                  (double)b->value[k][e], (double)a->value[k][e]);
        }
    return true;
}

/* Steps (from, last] of both, bit for bit. */
static inline bool go_same_steps(const struct go_job *a, const struct go_job *b, int64_t from,
                                 char *why) {
    if (a->total_steps != b->total_steps || a->done != b->done)
        return go_say(why, "%lld steps of %lld, not %lld of %lld", (long long)b->done,
                      (long long)b->total_steps, (long long)a->done, (long long)a->total_steps);
    for (int64_t s = from + 1; s <= a->done; s++) {
        const struct go_step *x = &a->step[s], *y = &b->step[s];
        if (memcmp(x->id, y->id, sizeof x->id)) return go_say(why, "step %lld: samples", (long long)s);
        if (!go_same_double(x->loss, y->loss))
            return go_say(why, "step %lld: loss %.17g, not %.17g", (long long)s, y->loss, x->loss);
        if (!go_same_double(x->norm, y->norm))
            return go_say(why, "step %lld: norm %.17g, not %.17g", (long long)s, y->norm, x->norm);
        if (!go_same_double(x->lr, y->lr))
            return go_say(why, "step %lld: lr %.17g, not %.17g", (long long)s, y->lr, x->lr);
        if (!go_same_double(x->eval_loss, y->eval_loss) || !go_same_double(x->scale, y->scale))
            return go_say(why, "step %lld: evaluation %.17g and scale %g, not %.17g and %g",
                          (long long)s, y->eval_loss, y->scale, x->eval_loss, x->scale);
        if (x->global_batch != y->global_batch || x->skipped != y->skipped ||
            x->skipped_steps != y->skipped_steps)
            return go_say(why, "step %lld: batch %lld, %lld skipped", (long long)s,
                          (long long)y->global_batch, (long long)y->skipped_steps);
        if (strcmp(x->parameters, y->parameters) || strcmp(x->state, y->state))
            return go_say(why, "step %lld: %s %s, not %s %s", (long long)s, y->parameters, y->state,
                          x->parameters, x->state);
    }
    return true;
}

/* Sum over the data-parallel ranks: tensor ranks say the same, its first speaks. */
static inline uint64_t go_sample_hash(const struct go_job *j, int64_t step, int tensor_degree) {
    uint64_t sum = 0;
    for (int r = 0; r < j->world; r += tensor_degree) sum += j->step[step].sample_hash[r];
    return sum;
}

#endif
