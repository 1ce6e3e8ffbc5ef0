/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/equiv.h: one training run as a value. A case names ranks, mode and options; eq_run
 * trains it on forked ranks (sharding runtime, model, real communicator) and returns what came out
 * of every step: loss, gradient norm, hashes of parameters and moments, bytes sent, peak; and whole
 * tensors at the end.
 *
 * The yardstick is eq_reference: one process that computes each rank's gradient in turn and adds
 * them with plain loops in the order that is promised (core: no collective, no reduction, no cut):
 * in rank order inside each shard group, then over the replicas. Class A adds up micro-steps
 * locally before that, class B after it. For forked ranks (see ranks.h); usable without Criterion.
 */
#ifndef ZT_TESTS_ENGINE_EQUIV_H
#define ZT_TESTS_ENGINE_EQUIV_H
#include <math.h>
#include <stdarg.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/fixsum.h"
#include "tests/engine/bench.h"

#define EQ_T 8
#define EQ_STEPS_MAX 50
#define EQ_PARAMETERS_MAX 60000
#define EQ_TENSORS_MAX 256
#define EQ_UNITS_MAX 32
#define EQ_WHY 384
#define EQ_DELAY_NS 400000 /* more than a unit's compute takes */
/* Sizes that 16 S divides nowhere, so that every group has gaps and padding; five blocks: units of
 * two of them do not come out even. */
#define EQ_MODEL "layers: 5, heads: 2, dim: 20, ffn_dim: 50, vocab_size: 67"

struct eq_case {
    int world, shard; /* shard degree; ddp: 1 */
    enum zt_mode mode;
    int micros, steps;
    int64_t rows; /* global batch */
    bool clip;
    enum zt_reshard reshard;
    int reshard_int, prefetch, inflight, wrap_n, threads;
    double bucket_mib;
    int64_t persistence;
    enum zt_wrap wrap;
    bool no_overlap, no_sync;
    const char *trainable; /* pattern, NULL = all */
    const char *model;     /* NULL = EQ_MODEL */
    bool poison;
    int per_host;    /* bench_options */
    uint64_t delays; /* seed: every collective waits a random time first; 0 = none */
};

struct eq_step {
    struct zt_fixsum loss; /* this rank's part */
    double norm;
    struct zt_hash128 parameters, moments; /* of own elements */
    int64_t sent_bytes, collectives, peak_allocated, peak_parameters, peak_gradients;
    struct zt_state_bytes persistent;
};
enum eq_array { EQ_GRADIENT = 0 /* of step 1 */, EQ_PARAMETER, EQ_M, EQ_V, EQ_ARRAYS };
struct eq_job {
    struct ranks_shared shared;
    struct eq_case c;
    int64_t n, first[EQ_TENSORS_MAX + 1]; /* logical elements of the model, by tensor */
    int n_tensors;
    char names[EQ_TENSORS_MAX][96];
    struct eq_step step[EQ_STEPS_MAX + 1][RANKS_MAX]; /* 0: before the first */
    int n_units;
    char units[EQ_UNITS_MAX][32];
    int gathers[EQ_UNITS_MAX],
        reductions[EQ_UNITS_MAX]; /* of rank 0 in all steps, by unit (bucket_mib 0) */
    float data[];                 /* [replica][array][element], written by the element's owners */
};

static inline int eq_replicas(const struct eq_case *c) { return c->world / c->shard; }

static inline size_t eq_bytes(const struct eq_case *c) {
    return sizeof(struct eq_job) +
           (size_t)eq_replicas(c) * EQ_ARRAYS * EQ_PARAMETERS_MAX * sizeof(float);
}

static inline float *eq_data(struct eq_job *j, int replica, enum eq_array a) {
    return j->data + ((ptrdiff_t)replica * EQ_ARRAYS + (ptrdiff_t)a) * EQ_PARAMETERS_MAX;
}

static inline void eq_free(struct eq_job *j) { munmap(j, eq_bytes(&j->c)); }

static inline bool eq_class_b(const struct eq_case *c) {
    return zt_policy(c->mode)->when == ZT_WHEN_EVERY_MICRO_STEP && !c->no_sync;
}

/* ---- a rank ---- */

static inline void eq_tune(struct zt_spec *s, const void *arg) {
    const struct eq_case *c = arg;
    s->optimizer.max_norm = c->clip ? 0.25 : 0.0;
    s->parallelism.reshard = c->reshard;
    s->parallelism.reshard_int = c->reshard_int;
    s->parallelism.prefetch = c->prefetch;
    s->parallelism.max_inflight_reduces = c->inflight ? c->inflight : 1;
    s->parallelism.bucket_mib = c->bucket_mib;
    s->parallelism.persistence_threshold = c->persistence;
    s->parallelism.wrap = c->wrap;
    s->parallelism.wrap_n = c->wrap_n;
    s->parallelism.overlap = !c->no_overlap;
    s->parallelism.no_sync = c->no_sync;
    if (c->trainable) {
        s->training.trainable.n = 1;
        snprintf(s->training.trainable.item[0], sizeof s->training.trainable.item[0], "%s",
                 c->trainable);
    }
}

static inline struct bench_options eq_options(const struct eq_case *c) {
    return (struct bench_options){.row = bench_mode(c->mode),
                                  .shard = c->shard,
                                  .threads = c->threads,
                                  .model = c->model ? c->model : EQ_MODEL,
                                  .tune = eq_tune,
                                  .tune_arg = c,
                                  .poison = c->poison,
                                  .per_host = c->per_host};
}

/* Own elements of a group's array; NULL where there is none (frozen, or not yet). */
static inline const float *eq_own(const struct zt_runtime *r, const struct rt_group *g,
                                  enum eq_array a) {
    switch (a) {
    case EQ_GRADIENT:
        if (r->policy->shard_gradients) return g->grad_own;
        return g->grad ? (const float *)g->grad + g->own_from : NULL;
    case EQ_PARAMETER:
        return (const float *)g->store + (g->own_from - g->store_from);
    case EQ_M:
        return g->m;
    default:
        return g->v;
    }
}

static inline void eq_export(struct eq_job *j, const struct bench *b, enum eq_array a) {
    const struct zt_runtime *r = b->runtime;
    float *to = eq_data(j, zt_mesh_coords(b->mesh, b->rank).replicate, a);
    for (int i = 0; i < r->layout.n_entries; i++) {
        const struct zt_flat_entry *e = &r->layout.entries[i];
        const struct rt_group *g = &r->groups[r->layout.group_of[e->tensor]];
        const float *from = eq_own(r, g, a);
        struct zt_flat_part p = zt_flat_part(e, g->own_from, g->own_from + g->own_count);
        if (from && p.count)
            memcpy(to + j->first[e->tensor] + p.first, from + p.at, (size_t)p.count * sizeof *from);
    }
}

/* Sum mod 2^128 over own elements of hash(tensor, index, bits of m, bits of v). */
static inline struct zt_hash128 eq_moments(const struct bench *b) {
    const struct zt_runtime *r = b->runtime;
    struct zt_hash128 sum = {0, 0};
    for (int i = 0; i < r->layout.n_entries; i++) {
        const struct zt_flat_entry *e = &r->layout.entries[i];
        const struct rt_group *g = &r->groups[r->layout.group_of[e->tensor]];
        struct zt_flat_part p = zt_flat_part(e, g->own_from, g->own_from + g->own_count);
        for (int64_t k = 0; g->v && k < p.count; k++) {
            struct {
                int64_t tensor, index;
                float m, v;
            } x = {e->tensor, p.first + k, ((const float *)g->m)[p.at + k],
                   ((const float *)g->v)[p.at + k]};
            XXH128_hash_t h = XXH3_128bits(&x, sizeof x);
            zt_hash128_add(&sum, (struct zt_hash128){h.low64, h.high64});
        }
    }
    return sum;
}

/* Rows of micro-step m that data-parallel rank `dp` of `world` has: dealt in turn, so the same
 * samples are in the window for any world and any accumulation. */
static inline void eq_rows(struct bench *b, const struct eq_case *c, int64_t step, int64_t m,
                           int world, int dp) {
    int64_t rows = c->rows / c->micros / world;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < EQ_T; k++) {
            int64_t sample = step * 1000 + (m * rows + i) * world + dp;
            b->tokens[i * EQ_T + k] = bench_token(sample, k);
            b->targets[i * EQ_T + k] = bench_token(sample, k + 1);
        }
}

/* Forward and backward of one micro-step of one rank. */
static inline int eq_micro(struct bench *b, const struct eq_case *c, int64_t step, int64_t m,
                           bool last, int world, int dp, struct zt_fixsum *loss,
                           struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    struct zt_batch batch = {b->tokens, b->targets, c->rows / c->micros / world, EQ_T};
    int64_t valid = 0;
    eq_rows(b, c, step, m, world, dp);
    int rc = zt_runtime_micro_begin(b->runtime, m, last, e);
    if (rc) return rc;
    return zt_model_step(b->model, &s, &batch, (float)(1.0 / (double)(c->rows * EQ_T)), true, false,
                         loss, &valid, e);
}

static inline void eq_layout(struct eq_job *j, const struct bench *b) {
    if (b->rank) return;
    j->n_tensors = b->table.n_tensors;
    for (int t = 0; t < b->table.n_tensors; t++) {
        j->first[t + 1] = j->first[t] + b->table.tensors[t].numel;
        snprintf(j->names[t], sizeof j->names[t], "%s", b->table.tensors[t].name);
    }
    j->n = j->first[j->n_tensors];
    j->n_units = b->table.n_units;
    for (int u = 0; u < j->n_units; u++)
        snprintf(j->units[u], sizeof j->units[u], "%s", b->table.units[u].name);
}

/* Which units' buffers were sent, from rank 0's event log. */
static inline void eq_count_collectives(struct eq_job *j, const struct bench *b) {
    static struct zt_coll_record log[4096];
    int64_t n = b->rank ? 0 : zt_comm_log(b->comm, 0, log, 4096);
    for (int64_t i = 0; i < n; i++)
        for (int u = 0; u < j->n_units; u++)
            if (!log[i].control && !strcmp(log[i].unit, j->units[u]))
                ++*(log[i].kind == ZT_COLL_ALL_GATHER ? &j->gathers[u] : &j->reductions[u]);
}

/* After the update of `step` (0: before the first). */
static inline int eq_note(struct eq_job *j, struct bench *b, int64_t step,
                          const struct zt_fixsum *loss, struct zt_error *e) {
    struct eq_step *s = &j->step[step][b->rank];
    struct zt_comm_totals shard = zt_comm_totals(b->dp_shard),
                          replicate = zt_comm_totals(b->dp_replicate);
    s->loss = *loss;
    s->norm = b->norm;
    s->moments = eq_moments(b);
    s->sent_bytes = zt_runtime_sent_bytes(b->runtime);
    s->collectives = shard.collectives + replicate.collectives;
    s->peak_allocated = b->ledger.peak_allocated;
    s->peak_parameters = b->ledger.category_max[ZT_TAG_PARAMETERS];
    s->peak_gradients = b->ledger.category_max[ZT_TAG_GRADIENTS];
    s->persistent = zt_runtime_requested(b->runtime);
    zt_alloc_reset_peaks(b->alloc);
    return zt_runtime_parameter_hash(b->runtime, &s->parameters, NULL, e);
}

static inline int eq_one_step(struct eq_job *j, struct bench *b, int64_t step, struct zt_error *e) {
    const struct eq_case *c = &j->c;
    struct zt_fixsum loss;
    int rc = 0;
    zt_fixsum_zero(&loss);
    zt_intervals_begin_step(&b->intervals, rt_now(b->runtime));
    RT_TRY(zt_runtime_window_begin(b->runtime, step, e));
    for (int m = 0; m < c->micros; m++)
        RT_TRY(eq_micro(b, c, step, m, m == c->micros - 1, b->world,
                        zt_mesh_dp_index(b->mesh, b->rank), &loss, e));
    RT_TRY(zt_runtime_wait_gradients(b->runtime, e));
    if (step == 1) eq_export(j, b, EQ_GRADIENT);
    RT_TRY(bench_update(b, 1e-3, e));
    RT_TRY(zt_runtime_collect(b->runtime, e));
    RT_TRY(eq_note(j, b, step, &loss, e));
out:
    return rc;
}

static inline int eq_rank(int rank, int world, void *arg) {
    struct eq_job *j = arg;
    struct bench b;
    struct zt_fixsum none;
    struct zt_error e = {0};
    struct bench_options o = eq_options(&j->c);
    zt_fixsum_zero(&none);
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    if (j->c.delays) {
        struct zt_comm_inject late = {.seed = j->c.delays, .max_delay_ns = EQ_DELAY_NS};
        zt_comm_inject(b.comm, &late);
    }
    EXPECT(b.table.parameters <= EQ_PARAMETERS_MAX && b.table.n_tensors <= EQ_TENSORS_MAX &&
               b.table.n_units <= EQ_UNITS_MAX,
           "size");
    eq_layout(j, &b);
    OK(eq_note(j, &b, 0, &none, &e));
    /* everybody knows where tensors lie before anybody writes */
    struct zt_coll_why why = {"", "start", 0, true};
    OK(zt_barrier(b.control, zt_device_compute(b.device), &why, &e));
    for (int s = 1; s <= j->c.steps; s++) OK(eq_one_step(j, &b, s, &e));
    eq_count_collectives(j, &b);
    for (int a = EQ_PARAMETER; a < EQ_ARRAYS; a++) eq_export(j, &b, (enum eq_array)a);
    bench_close(&b);
    return 0;
}

/* ---- the reference ---- */

static inline void eq_add(float *to, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = to[i] + x[i];
}

/* Takes the gradients out of the runtime and leaves zeros. */
static inline void eq_take(struct bench *b, float *to) {
    for (int i = 0; i < b->runtime->layout.n_groups; i++) {
        struct rt_group *g = &b->runtime->groups[i];
        size_t bytes = (size_t)g->def->elements * sizeof *to;
        if (!g->grad) continue;
        memcpy(to, g->grad, bytes);
        memset(g->grad, 0, bytes);
        to += g->def->elements;
    }
}

static inline void eq_put(struct bench *b, const float *from) {
    for (int i = 0; i < b->runtime->layout.n_groups; i++) {
        struct rt_group *g = &b->runtime->groups[i];
        if (!g->grad) continue;
        memcpy(g->grad, from, (size_t)g->def->elements * sizeof *from);
        from += g->def->elements;
    }
}

/* The sum of micro-steps [m, m + n) over all ranks, nested as promised, into `sum`. */
static inline int eq_nested_sum(struct bench *b, const struct eq_case *c, int64_t step, int64_t m,
                                int64_t n, struct zt_fixsum *loss, float *sum, float *group,
                                float *own, struct zt_error *e) {
    for (int r = 0; r < c->world; r++) {
        bool first = r % c->shard == 0;
        for (int64_t k = m; k < m + n; k++) {
            int rc = eq_micro(b, c, step, k, true, c->world, r, loss, e);
            if (rc) return rc;
        }
        eq_take(b, first ? group : own);
        if (!first) eq_add(group, own, EQ_PARAMETERS_MAX);
        if (r % c->shard != c->shard - 1) continue;
        if (r < c->shard)
            memcpy(sum, group, EQ_PARAMETERS_MAX * sizeof *sum);
        else
            eq_add(sum, group, EQ_PARAMETERS_MAX);
    }
    return 0;
}

static inline int eq_reference_step(struct eq_job *j, struct bench *b, int64_t step, float *work,
                                    struct zt_error *e) {
    const struct eq_case *c = &j->c;
    float *total = work, *sum = work + EQ_PARAMETERS_MAX, *group = sum + EQ_PARAMETERS_MAX,
          *own = group + EQ_PARAMETERS_MAX;
    bool each = eq_class_b(c);
    struct zt_fixsum loss;
    int rc = 0;
    zt_fixsum_zero(&loss);
    memset(work, 0, 4 * EQ_PARAMETERS_MAX * sizeof *work);
    RT_TRY(zt_runtime_window_begin(b->runtime, step, e));
    for (int64_t m = 0; m < (each ? c->micros : 1); m++) {
        RT_TRY(eq_nested_sum(b, c, step, m, each ? 1 : c->micros, &loss, sum, group, own, e));
        eq_add(total, sum, EQ_PARAMETERS_MAX);
    }
    eq_put(b, total);
    if (step == 1) eq_export(j, b, EQ_GRADIENT);
    RT_TRY(bench_update(b, 1e-3, e));
    RT_TRY(eq_note(j, b, step, &loss, e));
out:
    return rc;
}

static inline int eq_reference_rank(int rank, int world, void *arg) {
    struct eq_job *j = arg;
    struct bench b;
    struct zt_fixsum none;
    struct zt_error e = {0};
    struct eq_case plain = {.world = 1,
                            .shard = 1,
                            .mode = ZT_DDP,
                            .clip = j->c.clip,
                            .trainable = j->c.trainable,
                            .model = j->c.model};
    struct bench_options o = eq_options(&plain);
    float *work = malloc(4 * EQ_PARAMETERS_MAX * sizeof *work);
    zt_fixsum_zero(&none);
    EXPECT(work, "no memory");
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    eq_layout(j, &b);
    OK(eq_note(j, &b, 0, &none, &e));
    for (int s = 1; s <= j->c.steps; s++) OK(eq_reference_step(j, &b, s, work, &e));
    for (int a = EQ_PARAMETER; a < EQ_ARRAYS; a++) eq_export(j, &b, (enum eq_array)a);
    bench_close(&b);
    free(work);
    return 0;
}

/* ---- runs ---- */

/* NULL when a rank failed (it said why on stderr). */
static inline struct eq_job *eq_run(const struct eq_case *c) {
    struct eq_job *j = ranks_map(eq_bytes(c));
    j->c = *c;
    if (!ranks_run(c->world, 300, eq_rank, j, NULL)) return j;
    eq_free(j);
    return NULL;
}

static inline struct eq_job *eq_reference(const struct eq_case *c) {
    struct eq_job *j = ranks_map(eq_bytes(c));
    j->c = *c;
    if (!ranks_run(1, 300, eq_reference_rank, j, NULL)) return j;
    eq_free(j);
    return NULL;
}

/* ---- comparing ---- */

static inline double eq_loss(const struct eq_job *j, int step, int ranks) {
    struct zt_fixsum sum;
    zt_fixsum_zero(&sum);
    for (int r = 0; r < ranks; r++) zt_fixsum_merge(&sum, &j->step[step][r].loss);
    return zt_fixsum_value(&sum) / (double)(j->c.rows * EQ_T);
}

static inline struct zt_hash128 eq_hash(const struct eq_job *j, int step, int replica,
                                        bool moments) {
    struct zt_hash128 sum = {0, 0};
    for (int r = replica * j->c.shard; r < (replica + 1) * j->c.shard; r++)
        zt_hash128_add(&sum, moments ? j->step[step][r].moments : j->step[step][r].parameters);
    return sum;
}

static inline bool eq_differ(struct zt_hash128 a, struct zt_hash128 b) {
    return a.lo != b.lo || a.hi != b.hi;
}

static bool eq_say(char *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool eq_say(char *why, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, EQ_WHY, fmt, ap);
    va_end(ap);
    return false;
}

/* Every step's loss, norm, parameters and moments, and the tensors, bit for bit, on every rank and
 * replica. `why` (EQ_WHY bytes) names the first difference. */
static inline bool eq_same(struct eq_job *j, struct eq_job *reference, char *why) {
    static const char *const array[] = {"gradient of step 1", "parameter", "m", "v"};
    int replicas = eq_replicas(&j->c);
    for (int s = 0; s <= j->c.steps; s++) {
        struct zt_hash128 p = reference->step[s][0].parameters, m = reference->step[s][0].moments;
        double loss = eq_loss(reference, s, 1), own = eq_loss(j, s, j->c.world);
        if (memcmp(&loss, &own, sizeof loss))
            return eq_say(why, "step %d: loss %.17g, not %.17g", s, own, loss);
        for (int r = 0; r < j->c.world; r++)
            if (memcmp(&j->step[s][r].norm, &reference->step[s][0].norm, sizeof(double)))
                return eq_say(why, "step %d: norm %.17g on rank %d, not %.17g", s,
                              j->step[s][r].norm, r, reference->step[s][0].norm);
        for (int i = 0; i < replicas; i++) {
            if (eq_differ(eq_hash(j, s, i, false), p))
                return eq_say(why, "step %d: other parameters in replica %d", s, i);
            if (eq_differ(eq_hash(j, s, i, true), m))
                return eq_say(why, "step %d: other moments in replica %d", s, i);
        }
    }
    for (int i = 0; i < replicas; i++)
        for (int a = 0; a < EQ_ARRAYS; a++) {
            const float *x = eq_data(j, i, (enum eq_array)a),
                        *y = eq_data(reference, 0, (enum eq_array)a);
            for (int t = 0; t < j->n_tensors; t++)
                for (int64_t k = j->first[t]; k < j->first[t + 1]; k++)
                    if (memcmp(&x[k], &y[k], sizeof *x))
                        return eq_say(why, "replica %d, %s %s[%lld]: %.9g, not %.9g", i, array[a],
                                      j->names[t], (long long)(k - j->first[t]), (double)x[k],
                                      (double)y[k]);
        }
    return true;
}

/* Largest relative difference of the first step's gradients, by tensor: |d| / |ref|, or |d| / 1e-7
 * of the whole norm where the tensor is below that. */
static inline double eq_gradient_distance(struct eq_job *j, struct eq_job *reference) {
    const float *x = eq_data(j, 0, EQ_GRADIENT), *y = eq_data(reference, 0, EQ_GRADIENT);
    double all = 0, worst = 0;
    for (int64_t k = 0; k < j->n; k++) all += (double)y[k] * (double)y[k];
    for (int t = 0; t < j->n_tensors; t++) {
        double d = 0, n = 0;
        for (int64_t k = j->first[t]; k < j->first[t + 1]; k++) {
            d += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            n += (double)y[k] * (double)y[k];
        }
        n = fmax(sqrt(n), 1e-7 * sqrt(all));
        if (n > 0) worst = fmax(worst, sqrt(d) / n);
    }
    return worst;
}

static inline double eq_loss_distance(const struct eq_job *j, int ranks,
                                      const struct eq_job *reference, int reference_ranks) {
    double worst = 0;
    for (int s = 1; s <= j->c.steps; s++) {
        double a = eq_loss(j, s, ranks), b = eq_loss(reference, s, reference_ranks);
        worst = fmax(worst, fabs(a - b) / b);
    }
    return worst;
}

/* ---- names ---- */

static inline const char *eq_text(const struct eq_case *c, char text[EQ_WHY]) {
    static const char *const reshard[] = {"default", "true", "false", "int"};
    static const char *const wrap[] = {"block", "2", "part"};
    snprintf(text, EQ_WHY,
             "%s %dx%d micros %d clip %d reshard %s %d prefetch %d bucket %g persist %lld wrap %s "
             "overlap %d inflight %d no_sync %d threads %d poison %d per host %d delays %llu",
             zt_mode_name(c->mode), eq_replicas(c), c->shard, c->micros, c->clip,
             reshard[c->reshard], c->reshard_int, c->prefetch, c->bucket_mib,
             (long long)c->persistence, wrap[c->wrap], !c->no_overlap, c->inflight, c->no_sync,
             c->threads, c->poison, c->per_host, (unsigned long long)c->delays);
    return text;
}

#endif
