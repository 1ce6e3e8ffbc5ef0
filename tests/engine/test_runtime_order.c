/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_runtime_order.c: the collectives of a step, one by one, against an order worked
 * out here from the rules of docs/memory.md, and their bytes against its formulas.
 *
 * The order is declared, not acted out: the uses of a group along the walk fall into spans through
 * which it stays whole; a span starts with one gather, asked for `prefetch` places before its first
 * use. A reduction follows the end of the last unit of its group. */
#include <criterion/criterion.h>

#include "engine/shard/reasons.h"
#include "tests/engine/bench.h"

#define MODEL "layers: 5, heads: 2, dim: 16, vocab_size: 64"
#define PLACES 64
#define EXPECTED_MAX 400

struct order_case {
    const char *name;
    enum zt_mode mode;
    int world, shard, micros;
    enum zt_reshard reshard;
    int m, prefetch, inflight, wrap_n;
    enum zt_wrap wrap;
    double bucket_mib;
    int64_t persistence;
    bool no_sync, no_overlap;
    const char *trainable;
};
struct order_job {
    struct ranks_shared shared;
    struct order_case c;
};

static void tune(struct zt_spec *s, const void *arg) {
    const struct order_case *c = arg;
    s->parallelism.reshard = c->reshard;
    s->parallelism.reshard_int = c->m;
    s->parallelism.prefetch = c->prefetch;
    s->parallelism.max_inflight_reduces = c->inflight ? c->inflight : 1;
    s->parallelism.wrap = c->wrap;
    s->parallelism.wrap_n = c->wrap_n;
    s->parallelism.bucket_mib = c->bucket_mib;
    s->parallelism.persistence_threshold = c->persistence;
    s->parallelism.no_sync = c->no_sync;
    s->parallelism.overlap = !c->no_overlap;
    if (c->trainable) {
        s->training.trainable.n = 1;
        snprintf(s->training.trainable.item[0], sizeof s->training.trainable.item[0], "%s",
                 c->trainable);
    }
}

static struct bench_options options(const struct order_case *c) {
    return (struct bench_options){
        .row = bench_mode(c->mode), .shard = c->shard, .model = MODEL, .tune = tune, .tune_arg = c};
}

/* ---- the order, declared ---- */

struct expected {
    char unit[32], group[16];
    const char *reason;
    enum zt_coll kind;
    int64_t elements;
};
struct plan {
    const struct order_case *c;
    const struct bench *b;
    int walk[PLACES], n_forward, n; /* forward and backward, or forward alone */
    bool eval;
    struct expected out[EXPECTED_MAX];
    int n_out;
};

static bool in_unit(const struct plan *p, int group, int unit) {
    const struct zt_unit_layout *l = &p->b->runtime->layout;
    const struct zt_flat_group *g = &l->groups[group];
    for (int i = 0; i < g->n_entries; i++)
        if (l->entries[g->first_entry + i].unit == unit) return true;
    return false;
}

static void put(struct plan *p, int group, const char *comm, enum zt_coll kind, const char *reason,
                int64_t elements) {
    struct expected *e = &p->out[p->n_out++];
    if (p->n_out > EXPECTED_MAX) abort();
    snprintf(e->unit, sizeof e->unit, "%s", p->b->runtime->layout.groups[group].name);
    snprintf(e->group, sizeof e->group, "%s", comm);
    e->reason = reason;
    e->kind = kind;
    e->elements = elements;
}

static bool ends_of_forward(const struct plan *p, int group) {
    return in_unit(p, group, p->walk[0]) || in_unit(p, group, p->walk[p->n_forward - 1]);
}

/* Stays whole from a use at `from` to the next one at `to`. */
static bool stays(const struct plan *p, int group, int from, int to) {
    const struct order_case *c = p->c;
    if (to <= from + 1 + c->prefetch) return true;
    if (c->reshard == ZT_RESHARD_FALSE || (c->reshard == ZT_RESHARD_INT && c->m == 1)) return true;
    return c->reshard == ZT_RESHARD_DEFAULT && c->mode != ZT_ZERO3 && ends_of_forward(p, group);
}

static void gathers_at(struct plan *p, int place) {
    const struct zt_unit_layout *l = &p->b->runtime->layout;
    for (int s = place; s <= place + p->c->prefetch && s < p->n; s++)
        for (int g = 0; g < l->n_groups; g++) {
            int last = -1;
            if (l->groups[g].persistent || !in_unit(p, g, p->walk[s])) continue;
            for (int i = 0; i < s; i++)
                if (in_unit(p, g, p->walk[i])) last = i;
            if (last >= 0 && stays(p, g, last, s)) continue; /* no span starts here */
            if (place != (s < p->c->prefetch ? 0 : s - p->c->prefetch)) continue; /* not now */
            bool slices = last >= 0 && p->c->reshard == ZT_RESHARD_INT &&
                          p->c->m<p->c->shard, ahead = s> place,
                 back = s >= p->n_forward;
            const char *why =
                slices    ? (p->eval ? (ahead ? ZT_WHY_SLICES_EVAL_AHEAD : ZT_WHY_SLICES_EVAL)
                             : back  ? (ahead ? ZT_WHY_SLICES_BACKWARD_AHEAD : ZT_WHY_SLICES_BACKWARD)
                                     : (ahead ? ZT_WHY_SLICES_FORWARD_AHEAD : ZT_WHY_SLICES_FORWARD))
                : p->eval ? (ahead ? ZT_WHY_EVAL_AHEAD : ZT_WHY_EVAL)
                : back    ? (ahead ? ZT_WHY_BACKWARD_AHEAD : ZT_WHY_BACKWARD)
                          : (ahead ? ZT_WHY_FORWARD_AHEAD : ZT_WHY_FORWARD);
            put(p, g, slices ? "dp_reshard" : "dp_shard", ZT_COLL_ALL_GATHER, why,
                l->groups[g].elements);
        }
}

/* Reductions after the end of `unit`, `open` being those whose backward still goes on. */
static void reductions(struct plan *p, int unit, int done, bool root_open) {
    const struct order_case *c = p->c;
    const struct zt_unit_layout *l = &p->b->runtime->layout;
    bool every = c->mode >= ZT_ZERO2 && !c->no_sync, scatter = c->shard > 1;
    for (int g = 0; g < l->n_groups; g++) {
        const struct zt_flat_group *d = &l->groups[g];
        bool complete = d->trainable && in_unit(p, g, unit);
        for (int i = done + 1; i < p->n && complete; i++)
            if (in_unit(p, g, p->walk[i])) complete = false;
        if (root_open && in_unit(p, g, p->walk[p->n_forward])) complete = false;
        if (!complete) continue;
        if (scatter)
            put(p, g, "dp_shard", ZT_COLL_REDUCE_SCATTER, every ? ZT_WHY_MICRO_STEP : ZT_WHY_WINDOW,
                d->elements);
        if (c->world > c->shard)
            put(p, g, "dp_replicate", ZT_COLL_ALL_REDUCE,
                scatter ? (every ? ZT_WHY_MICRO_STEP_REPLICAS : ZT_WHY_WINDOW_REPLICAS)
                        : (every ? ZT_WHY_MICRO_STEP : ZT_WHY_WINDOW),
                scatter ? d->shard : d->elements);
    }
}

static bool root_trains_embeddings(const struct plan *p) {
    return !p->b->table.tensors[0].frozen || !p->b->table.tensors[1].frozen;
}

static void plan_micro(struct plan *p, bool reduce) {
    bool gathers = p->c->mode >= ZT_ZERO3 && p->c->shard > 1, nested = root_trains_embeddings(p);
    for (int i = 0; i < p->n; i++) {
        if (gathers) gathers_at(p, i);
        if (i < p->n_forward || !reduce) continue;
        if (i > p->n_forward || !nested) reductions(p, p->walk[i], i, nested);
    }
    if (reduce && nested) reductions(p, p->walk[p->n_forward], p->n, false);
}

static int plan_walk(struct plan *p, bool eval, struct zt_error *e) {
    struct zt_model_walk w;
    int rc = zt_model_walk_build(&p->b->table, &w, e);
    if (rc) return rc;
    p->eval = eval;
    p->n_forward = w.n_forward;
    p->n = w.n_forward + (eval ? 0 : w.n_backward);
    memcpy(p->walk, w.forward, (size_t)w.n_forward * sizeof *p->walk);
    if (!eval) memcpy(p->walk + w.n_forward, w.backward, (size_t)w.n_backward * sizeof *p->walk);
    zt_model_walk_free(&w);
    return 0;
}

static int plan_step(struct plan *p, struct zt_error *e) {
    const struct zt_unit_layout *l = &p->b->runtime->layout;
    bool every = p->c->mode >= ZT_ZERO2 && !p->c->no_sync;
    int rc = plan_walk(p, false, e);
    for (int m = 0; m < p->c->micros && rc == 0; m++) plan_micro(p, every || m == p->c->micros - 1);
    for (int g = 0; g < l->n_groups && p->c->shard > 1; g++)
        if (l->groups[g].trainable &&
            (p->c->mode == ZT_ZERO1 || p->c->mode == ZT_ZERO2 || l->groups[g].persistent))
            put(p, g, "dp_shard", ZT_COLL_ALL_GATHER, ZT_WHY_UPDATED, l->groups[g].elements);
    return rc;
}

/* ---- against the log ---- */

static int compare(const struct plan *p, struct bench *b, int64_t after, int64_t step) {
    static struct zt_coll_record log[EXPECTED_MAX * 2];
    int64_t all = zt_comm_log(b->comm, after, log, EXPECTED_MAX * 2), n = 0;
    for (int64_t i = 0; i < all; i++)
        if (!log[i].control) log[n++] = log[i];
    for (int64_t i = 0; i < n && i < p->n_out; i++) {
        const struct zt_coll_record *r = &log[i];
        const struct expected *x = &p->out[i];
        EXPECT(r->kind == x->kind && !strcmp(r->unit, x->unit) && !strcmp(r->group, x->group) &&
                   !strcmp(r->reason, x->reason),
               "%s, collective %lld: %s %s %s \"%s\", expected %s %s %s \"%s\"", p->c->name,
               (long long)i, zt_coll_name(r->kind), r->group, r->unit, r->reason,
               zt_coll_name(x->kind), x->group, x->unit, x->reason);
        EXPECT(r->count == x->elements && r->bytes == 4 * x->elements && r->dtype == ZT_F32,
               "%s, collective %lld: %lld elements", p->c->name, (long long)i, (long long)r->count);
        EXPECT(r->step == step, "step %lld", (long long)r->step);
    }
    EXPECT(n == p->n_out, "%s: %lld collectives, expected %d", p->c->name, (long long)n, p->n_out);
    return 0;
}

static int64_t newest(struct bench *b) {
    static struct zt_coll_record log[4096];
    int64_t n = zt_comm_log(b->comm, 0, log, 4096);
    return n ? log[n - 1].id : 0;
}

static int order_rank(int rank, int world, void *arg) {
    struct order_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = options(&j->c);
    static struct plan p;
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    for (int64_t step = 1; step <= 2; step++) { /* the second begins where the first left off */
        int64_t after = newest(&b);
        memset(&p, 0, sizeof p);
        p.c = &j->c;
        p.b = &b;
        OK(plan_step(&p, &e));
        OK(bench_step(&b, step, step * 100, 8 * j->c.micros, j->c.micros, &e));
        if (compare(&p, &b, after, step)) return 1;
    }
    /* two batches of evaluation, of which this rank may have none */
    int64_t after = newest(&b), valid = 0;
    struct zt_fixsum loss;
    struct zt_unit_source s = zt_runtime_source(b.runtime);
    memset(&p, 0, sizeof p);
    p.c = &j->c;
    p.b = &b;
    OK(plan_walk(&p, true, &e));
    zt_fixsum_zero(&loss);
    OK(zt_runtime_eval_begin(b.runtime, &e));
    for (int i = 0; i < 2; i++) {
        struct zt_batch batch = {b.tokens, b.targets, i == 1 && rank ? 0 : 1, BENCH_T};
        bench_row(&b, 0, i);
        OK(zt_model_step(b.model, &s, &batch, 0, false, true, &loss, &valid, &e));
        plan_micro(&p, false);
    }
    OK(zt_runtime_eval_end(b.runtime, &e));
    if (compare(&p, &b, after, 2)) return 1;
    EXPECT(b.ledger.requested[ZT_TAG_PARAMETERS] == zt_runtime_requested(b.runtime).parameters,
           "gathered parameters stay");
    bench_close(&b);
    return 0;
}

static void check(struct order_case c) {
    struct order_job *j = ranks_map(sizeof *j);
    j->c = c;
    if (!j->c.micros) j->c.micros = 1;
    if (!j->c.shard) j->c.shard = j->c.world;
    cr_assert_eq(ranks_run(c.world, 60, order_rank, j, NULL), 0, "%s", c.name);
    munmap(j, sizeof *j);
}

Test(order, every_mode, .timeout = 120) {
    for (int m = ZT_DDP; m < ZT_MODE_COUNT; m++) {
        char name[32];
        for (int micros = 1; micros <= 2; micros++) {
            snprintf(name, sizeof name, "%s %d", zt_mode_name((enum zt_mode)m), micros);
            check((struct order_case){name, (enum zt_mode)m, .world = 2,
                                      .shard = m == ZT_DDP ? 1 : 2, .micros = micros,
                                      .prefetch = 1});
        }
    }
}

/* Replicas: scattered in the shard group, then summed over the replicas; with a shard axis of one
 * nothing is gathered. */
Test(order, hybrid_meshes, .timeout = 120) {
    for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++)
        for (int shard = 1; shard <= 2; shard++) {
            char name[32];
            snprintf(name, sizeof name, "%s %d x %d", zt_mode_name((enum zt_mode)m), 4 / shard,
                     shard);
            check((struct order_case){name, (enum zt_mode)m, .world = 4, .shard = shard,
                                      .micros = 2, .prefetch = 1});
        }
}

Test(order, prefetch_and_reshard, .timeout = 300) {
    static const enum zt_reshard reshard[] = {ZT_RESHARD_DEFAULT, ZT_RESHARD_TRUE, ZT_RESHARD_FALSE,
                                              ZT_RESHARD_INT};
    for (int m = ZT_ZERO3; m <= ZT_FSDP; m++)
        for (int k = 0; k < 4; k++)
            for (int prefetch = 0; prefetch <= 4; prefetch += prefetch == 2 ? 2 : 1) {
                char name[48];
                bool slices = reshard[k] == ZT_RESHARD_INT;
                snprintf(name, sizeof name, "%s reshard %d prefetch %d",
                         zt_mode_name((enum zt_mode)m), k, prefetch);
                if (m == ZT_ZERO3 && slices && prefetch == 4) continue;
                check((struct order_case){name, (enum zt_mode)m, .world = slices ? 4 : 2,
                                          .reshard = reshard[k], .m = slices ? 2 : 0,
                                          .prefetch = prefetch});
            }
    check((struct order_case){"m = 1", ZT_FSDP, .world = 2, .reshard = ZT_RESHARD_INT, .m = 1});
    check((struct order_case){"m = S", ZT_ZERO3, .world = 2, .reshard = ZT_RESHARD_INT, .m = 2});
}

Test(order, wrap_buckets_and_the_rest, .timeout = 300) {
    check(
        (struct order_case){"wrap part", ZT_FSDP, .world = 2, .prefetch = 1, .wrap = ZT_WRAP_PART});
    check((struct order_case){"wrap 2", ZT_FSDP, .world = 2, .prefetch = 1, .wrap = ZT_WRAP_N,
                              .wrap_n = 2});
    check((struct order_case){"wrap 5", ZT_ZERO3, .world = 2, .prefetch = 2, .wrap = ZT_WRAP_N,
                              .wrap_n = 5});
    static const double bucket[] = {0.004, 0.03, 0.04, 100}; /* a block has 13 KiB in fp32 */
    static const enum zt_mode modes[] = {ZT_DDP, ZT_ZERO2, ZT_ZERO3, ZT_FSDP};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            char name[48];
            snprintf(name, sizeof name, "%s bucket %g", zt_mode_name(modes[k]), bucket[i]);
            check((struct order_case){name, modes[k], .world = 2,
                                      .shard = modes[k] == ZT_DDP ? 1 : 2, .prefetch = 1,
                                      .bucket_mib = bucket[i], .micros = 2});
        }
    check((struct order_case){"persistent", ZT_ZERO3, .world = 2, .prefetch = 1, .persistence = 16,
                              .micros = 2});
    check((struct order_case){"all persistent", ZT_FSDP, .world = 2, .prefetch = 1,
                              .persistence = 1 << 20});
    check((struct order_case){"no sync", ZT_FSDP, .world = 4, .shard = 2, .prefetch = 1,
                              .no_sync = true, .micros = 3});
    check((struct order_case){"no overlap", ZT_ZERO3, .world = 2, .prefetch = 2, .no_overlap = true,
                              .micros = 2});
    check((struct order_case){"two in flight", ZT_ZERO3, .world = 2, .prefetch = 2, .inflight = 2,
                              .micros = 2});
    check((struct order_case){"frozen below", ZT_FSDP, .world = 2, .prefetch = 2,
                              .trainable = "transformer.h.[34].*"});
    check(
        (struct order_case){"biases", ZT_ZERO3, .world = 2, .prefetch = 1, .trainable = "*.bias"});
}

/* Alone, every mode works and says nothing to anybody. */
Test(order, one_rank_sends_nothing, .timeout = 60) {
    for (int m = ZT_DDP; m < ZT_MODE_COUNT; m++)
        check((struct order_case){zt_mode_name((enum zt_mode)m), (enum zt_mode)m, .world = 1,
                                  .micros = 2, .prefetch = 1});
}

/* ---- bytes ---- */

/* What each rank sends in a step, by the formulas of docs/memory.md. `whole`: bytes of all padded
 * groups; K (K-1)/K of them leave a rank in a gather or a scatter, twice that in an all-reduce. */
struct volume {
    int64_t gather, scatter, replicas, slices;
};

static int64_t part(int64_t bytes, int k) { return bytes / k * (k - 1); }

static struct volume formula(const struct order_case *c, const struct bench *b) {
    int S = c->shard, R = c->world / S, n = c->micros, blocks_kept = c->prefetch / 2;
    int reduces = c->mode >= ZT_ZERO2 && !c->no_sync ? n : 1;
    int64_t whole = 4 * zt_model_padded(&b->table, S), root = 0, block = 0;
    int64_t numel[32];
    for (int u = 0; u < 2; u++) {
        const struct zt_unit_def *d = &b->table.units[u];
        for (int i = 0; i < d->n_tensors; i++)
            numel[i] = b->table.tensors[d->first_tensor + i].numel;
        *(u ? &block : &root) = 4 * zt_group_padded(numel, d->n_tensors, S);
    }
    struct volume v = {.scatter = c->mode == ZT_DDP ? 0 : part(whole, S) * reduces,
                       .replicas = 2 * part(whole / S, R) * reduces};
    int64_t twice = root + blocks_kept * block; /* of these, what stays is not gathered again */
    switch (c->mode) {
    case ZT_DDP:
        break;
    case ZT_ZERO1:
    case ZT_ZERO2:
        v.gather = part(whole, S);
        break;
    default:
        if (c->reshard == ZT_RESHARD_TRUE || (c->mode == ZT_ZERO3 && !c->reshard))
            v.gather = n * part(2 * whole - blocks_kept * block, S);
        else if (c->reshard == ZT_RESHARD_DEFAULT)
            v.gather = n * part(2 * whole - twice, S);
        else
            v.gather = n * part(whole, S);
        if (c->reshard == ZT_RESHARD_INT) v.slices = n * part(whole - blocks_kept * block, c->m);
    }
    return v;
}

static int volume_rank(int rank, int world, void *arg) {
    struct order_job *j = arg;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = options(&j->c);
    static struct zt_coll_record log[EXPECTED_MAX * 2];
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    struct volume v = formula(&j->c, &b), got = {0};
    int64_t after = newest(&b);
    OK(bench_step(&b, 1, 0, 8 * j->c.micros, j->c.micros, &e));
    int64_t n = zt_comm_log(b.comm, after, log, EXPECTED_MAX * 2);
    for (int64_t i = 0; i < n; i++) {
        bool gather = log[i].kind == ZT_COLL_ALL_GATHER;
        if (log[i].control) continue;
        *(!strcmp(log[i].group, "dp_reshard")     ? &got.slices
          : !strcmp(log[i].group, "dp_replicate") ? &got.replicas
          : gather                                ? &got.gather
                                                  : &got.scatter) += log[i].sent_bytes;
    }
    EXPECT(got.gather == v.gather, "%s: gathers %lld, formula %lld", j->c.name,
           (long long)got.gather, (long long)v.gather);
    EXPECT(got.scatter == v.scatter, "%s: scatters %lld, formula %lld", j->c.name,
           (long long)got.scatter, (long long)v.scatter);
    EXPECT(got.replicas == v.replicas, "%s: replicas %lld, formula %lld", j->c.name,
           (long long)got.replicas, (long long)v.replicas);
    EXPECT(got.slices == v.slices, "%s: slices %lld, formula %lld", j->c.name,
           (long long)got.slices, (long long)v.slices);
    int64_t sum = v.gather + v.scatter + v.replicas + v.slices;
    EXPECT(zt_runtime_sent_bytes(b.runtime) == sum, "%s: the step says %lld, formula %lld",
           j->c.name, (long long)zt_runtime_sent_bytes(b.runtime), (long long)sum);
    bench_close(&b);
    return 0;
}

static void volume(struct order_case c) {
    struct order_job *j = ranks_map(sizeof *j);
    char name[96];
    j->c = c;
    snprintf(name, sizeof name, "%s %d x %d reshard %d prefetch %d no_sync %d",
             zt_mode_name(c.mode), c.world / c.shard, c.shard, (int)c.reshard, c.prefetch,
             (int)c.no_sync);
    j->c.name = name;
    cr_assert_eq(ranks_run(c.world, 60, volume_rank, j, NULL), 0, "%s", name);
    munmap(j, sizeof *j);
}

Test(volume, equals_the_formulas, .timeout = 300) {
    static const struct { int world, shard; } meshes[] = {{4, 4}, {4, 2}, {4, 1}, {8, 4}};
    for (int i = 0; i < 4; i++)
        for (int m = ZT_DDP; m < ZT_MODE_COUNT; m++) {
            struct order_case c = {.mode = (enum zt_mode)m,
                                   .world = meshes[i].world,
                                   .shard = meshes[i].shard,
                                   .micros = 2,
                                   .prefetch = 1};
            if (m == ZT_DDP && c.shard > 1) continue; /* ddp's replicas are the replicate degree */
            volume(c);
            if (m < ZT_ZERO3) continue;
            c.no_sync = true;
            volume(c);
            c.no_sync = false;
            if (c.shard < 4) continue;
            for (int k = ZT_RESHARD_TRUE; k <= ZT_RESHARD_INT; k++) {
                c.reshard = (enum zt_reshard)k;
                c.m = k == ZT_RESHARD_INT ? 2 : 0;
                volume(c);
            }
        }
    for (int prefetch = 0; prefetch <= 4; prefetch += 2)
        volume((struct order_case){
            .mode = ZT_ZERO3, .world = 2, .shard = 2, .micros = 3, .prefetch = prefetch});
}
