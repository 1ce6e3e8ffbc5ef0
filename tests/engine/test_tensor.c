/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_tensor.c: the sharding runtime under tensor parallelism, without a model. The
 * gradient of a logical element is a small multiple of 1/64, a function of (tensor, index, data
 * rank, micro-step) alone, so every sum over ranks and micro-steps is exact in any order and in any
 * type: parameters, norms and hashes are those of one uncut rank, bit for bit. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/shard/traffic.h"
#include "tests/engine/bench.h"

/* A prime vocabulary: 4 tensor ranks have 17 rows each, the last of them one of padding. */
#define CUT_MODEL "layers: 3, heads: 4, dim: 20, head_dim: 5, ffn_dim: 36, vocab_size: 67"
#define CUT_STEPS 3
#define CUT_TENSORS 64

struct cut_case {
    int replicate, shard, tensor;
    enum zt_mode mode;
    bool sequence;
    const char *recipe;
    double bucket_mib;
    int64_t persistence;
    int micros;
};
struct cut_job {
    struct ranks_shared shared;
    struct cut_case c;
    struct cut_step {
        struct zt_hash128 own, whole[CUT_TENSORS]; /* whole: of replicated tensors, own elements */
        double norm;
    } step[CUT_STEPS + 1][RANKS_MAX];
    struct zt_coll_record sum; /* the last one over the tensor group, and how many */
    int sums;
    int64_t sent[CUT_STEPS + 1]; /* of rank 0 */
};

static void cut_tune(struct zt_spec *s, const void *arg) {
    const struct cut_case *c = arg;
    snprintf(s->precision.recipe, sizeof s->precision.recipe, "%s", c->recipe);
    s->parallelism.persistence_threshold = c->persistence;
    s->optimizer.max_norm = 0.5;
}

/* ---- gradients by logical index ---- */

/* Row of the whole tensor that local row r is; -1: padding. */
static int64_t whole_row(const struct zt_model_table *t, const struct zt_tensor_def *d, int64_t r) {
    int64_t rank = t->tensor_rank;
    if (d->tp_dim != 0) return r;
    if (d->tp_heads) { /* q, k, v one after another, each cut */
        int64_t own = d->shape[0] / 3;
        return r / own * (d->whole[0] / 3) + rank * own + r % own;
    }
    int64_t row = rank * d->shape[0] + r;
    return row < d->whole[0] ? row : -1;
}

static int small(uint32_t tensor, int64_t index, int what, int dp, int64_t micro) {
    uint32_t w[4];
    zt_rng_words(9, ZT_RNG_TEST, (uint32_t)(micro * 16 + dp), tensor * 4 + (uint32_t)what,
                 (uint64_t)index, w);
    return (int)(w[0] % 9) - 4;
}

static bool is_partial(const struct bench *b, const struct zt_tensor_def *d) {
    return b->mesh.tensor > 1 &&
           (d->tp_sum == ZT_TP_SUM_ALWAYS ||
            (d->tp_sum == ZT_TP_SUM_SEQUENCE && b->spec.parallelism.sequence_parallel));
}

/* This rank's part, in units of 1/64. */
static int part_of(const struct bench *b, const struct zt_tensor_def *d, uint32_t tensor,
                   int64_t index, int64_t micro) {
    int dp = zt_mesh_dp_index(b->mesh, b->rank), t = b->mesh.tensor;
    int all = small(tensor, index, 0, dp, micro), other = small(tensor, index, 1, dp, micro) / 3;
    if (!is_partial(b, d)) return all;
    return b->table.tensor_rank ? other : all - (t - 1) * other;
}

static int64_t micro_now;
static int fill(struct bench *b, int unit, const struct zt_unit_view *v, struct zt_error *e) {
    const struct zt_unit_def *u = &b->table.units[unit];
    for (int i = 0; i < u->n_tensors; i++) {
        const struct zt_tensor_def *d = &b->table.tensors[u->first_tensor + i];
        float *g = calloc((size_t)d->numel, sizeof *g);
        for (int64_t k = 0; g && k < d->numel; k++) {
            int64_t row = whole_row(&b->table, d, k / d->shape[1]);
            int64_t column = k % d->shape[1];
            if (d->tp_dim == 1) column += b->table.tensor_rank * d->shape[1];
            if (row >= 0)
                g[k] = (float)part_of(b, d, (uint32_t)(u->first_tensor + i),
                                      row * d->whole[1] + column, micro_now) /
                       64;
        }
        int rc = g ? zt_ops_cpu()->accumulate(b->ctx, v->grad[i], b->runtime->recipe->grad, g,
                                              ZT_F32, d->numel, e)
                   : ZT_ENOMEM;
        free(g);
        if (rc) return rc;
    }
    return 0;
}

/* A forward that computes nothing and a backward of made-up gradients. */
static int micro_step(struct bench *b, int64_t micro, bool last, struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    struct zt_model_walk w;
    struct zt_unit_view v, root;
    int rc = zt_model_walk_build(&b->table, &w, e);
    if (rc) return rc;
    micro_now = micro;
    RT_TRY(zt_runtime_micro_begin(b->runtime, micro, last, e));
    for (int i = 0; i < w.n_forward; i++) {
        RT_TRY(s.forward_begin(s.arg, w.forward[i], &v, e));
        RT_TRY(s.forward_end(s.arg, w.forward[i], e));
    }
    RT_TRY(s.backward_begin(s.arg, w.backward[0], &root, e));
    RT_TRY(s.parameters_done(s.arg, w.backward[0], e));
    for (int i = 1; i < w.n_backward; i++) {
        RT_TRY(s.backward_begin(s.arg, w.backward[i], &v, e));
        RT_TRY(fill(b, w.backward[i], &v, e));
        RT_TRY(s.backward_end(s.arg, w.backward[i], e));
    }
    RT_TRY(fill(b, w.backward[0], &root, e));
    RT_TRY(s.backward_end(s.arg, w.backward[0], e));
out:
    zt_model_walk_free(&w);
    return rc;
}

/* ---- a rank ---- */

/* Stored padding is zero. */
static int check_padding(const struct bench *b) {
    const struct zt_runtime *r = b->runtime;
    int64_t padding = 0;
    for (int i = 0; i < r->layout.n_entries; i++) {
        const struct zt_flat_entry *e = &r->layout.entries[i];
        const struct zt_tensor_def *d = &b->table.tensors[e->tensor];
        const struct rt_group *g = &r->groups[r->layout.group_of[e->tensor]];
        const enum zt_dtype t = g->def->dtype;
        for (int64_t k = 0; k < e->numel; k++) {
            int64_t at = e->offset + k - g->store_from;
            if (at < 0 || at >= g->store_count || whole_row(&b->table, d, k / d->shape[1]) >= 0)
                continue;
            static const char zero[4];
            EXPECT(!memcmp(rt_at(g->store, at, t), zero, zt_dtype_size(t)), "padding moved");
            padding++;
        }
    }
    bool last = b->table.tensor_degree > 1 && b->table.tensor_rank == b->table.tensor_degree - 1;
    EXPECT(b->mesh.shard > 1 || padding == (last ? 20 : 0), "%lld elements", (long long)padding);
    return 0;
}

static int note(struct cut_job *j, struct bench *b, int s, struct zt_error *e) {
    struct cut_step *n = &j->step[s][b->rank];
    struct zt_hash128 all[CUT_TENSORS];
    int rc = zt_runtime_parameter_hash(b->runtime, &n->own, all, e);
    for (int i = 0; rc == 0 && i < b->table.n_tensors; i++)
        if (b->table.tensors[i].tp_dim < 0) n->whole[i] = all[i];
    n->norm = b->norm;
    return rc;
}

static void note_log(struct cut_job *j, const struct bench *b) {
    static struct zt_coll_record log[4096];
    int64_t n = b->rank ? 0 : zt_comm_log(b->comm, 0, log, 4096);
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(log[i].group, "tensor") && log[i].kind == ZT_COLL_ALL_REDUCE) {
            j->sum = log[i];
            j->sums++;
        }
}

static int add_sent(void *arg, const struct zt_traffic_event *e) {
    *(int64_t *)arg += e->sent;
    return 0;
}

/* What is told before a run is what each rank sent: there is no model here that sends more. */
static int check_traffic(const struct bench *b, const struct cut_case *c) {
    struct zt_spec s = b->spec;
    struct zt_error e = {0};
    int64_t told = 0, sent = zt_runtime_sent_bytes(b->runtime);
    s.parallelism.replicate = c->replicate;
    s.parallelism.shard = c->shard;
    s.parallelism.tensor = c->tensor;
    s.training.global_batch_size = zt_mesh_dp(b->mesh) * c->micros;
    OK(zt_traffic_step(&s, &b->table, &b->runtime->layout, add_sent, &told, NULL, &e));
    EXPECT(told == sent, "%lld bytes told, %lld sent", (long long)told, (long long)sent);
    return 0;
}

static int cut_rank(int rank, int world, void *arg) {
    struct cut_job *j = arg;
    const struct cut_case *c = &j->c;
    struct bench b;
    struct zt_error e = {0};
    struct bench_options o = {.row = bench_mode(c->mode),
                              .shard = c->shard,
                              .tensor = c->tensor,
                              .sequence = c->sequence,
                              .bucket_mib = c->bucket_mib,
                              .model = CUT_MODEL,
                              .no_model = true,
                              .tune = cut_tune,
                              .tune_arg = c};
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    EXPECT(b.table.n_tensors <= CUT_TENSORS, "size");
    b.scale = 1;
    OK(note(j, &b, 0, &e));
    for (int s = 1; s <= CUT_STEPS; s++) {
        OK(zt_runtime_window_begin(b.runtime, s, &e));
        for (int m = 0; m < c->micros; m++) OK(micro_step(&b, s * 10 + m, m == c->micros - 1, &e));
        OK(zt_runtime_wait_gradients(b.runtime, &e));
        OK(bench_update(&b, 1e-2, &e));
        OK(zt_runtime_collect(b.runtime, &e));
        if (rank == 0) j->sent[s] = zt_runtime_sent_bytes(b.runtime);
        OK(note(j, &b, s, &e));
        if (check_padding(&b)) return 1;
    }
    note_log(j, &b);
    if (check_traffic(&b, c)) return 1;
    bench_close(&b);
    return 0;
}

/* ---- against one uncut rank ---- */

static struct cut_job *run(const struct cut_case *c) {
    struct cut_job *j = ranks_map(sizeof *j);
    j->c = *c;
    cr_assert_eq(ranks_run(c->replicate * c->shard * c->tensor, 120, cut_rank, j, NULL), 0,
                 "%dx%dx%d %s %s sequence %d", c->replicate, c->shard, c->tensor,
                 zt_mode_name(c->mode), c->recipe, c->sequence);
    return j;
}

/* Of the whole model: the ranks of one replica. */
static struct zt_hash128 model_hash(const struct cut_job *j, int s, int replica) {
    struct zt_hash128 sum = {0, 0};
    int n = j->c.shard * j->c.tensor;
    for (int r = replica * n; r < (replica + 1) * n; r++) zt_hash128_add(&sum, j->step[s][r].own);
    return sum;
}

static void same(const struct cut_job *j, const struct cut_job *one) {
    const struct cut_case *c = &j->c;
    for (int s = 0; s <= CUT_STEPS; s++) {
        struct zt_hash128 expected = model_hash(one, s, 0);
        for (int r = 0; r < c->replicate; r++) {
            struct zt_hash128 h = model_hash(j, s, r);
            cr_assert(h.lo == expected.lo && h.hi == expected.hi,
                      "%dx%dx%d %s %s sequence %d: other parameters after step %d", c->replicate,
                      c->shard, c->tensor, zt_mode_name(c->mode), c->recipe, c->sequence, s);
        }
        for (int r = 0; r < c->replicate * c->shard * c->tensor; r++) {
            cr_assert_eq(j->step[s][r].norm, one->step[s][0].norm, "step %d: norm %.17g, not %.17g",
                         s, j->step[s][r].norm, one->step[s][0].norm);
            cr_assert_arr_eq(j->step[s][r].whole, j->step[s][r / c->tensor * c->tensor].whole,
                             sizeof j->step[s][r].whole, "a tensor group's whole tensors");
        }
    }
    struct zt_hash128 start = model_hash(one, 0, 0), end = model_hash(one, CUT_STEPS, 0);
    cr_assert(start.lo != end.lo, "it steps");
}

static void check(struct cut_case c) {
    struct cut_case whole = c;
    whole.tensor = 1;
    whole.sequence = false;
    struct cut_job *one = run(&whole), *j = run(&c);
    same(j, one);
    cr_assert_eq(j->sums, c.sequence ? CUT_STEPS : 0, "one sum over the tensor group a step");
    munmap(one, sizeof *one);
    munmap(j, sizeof *j);
}

/* Every mode, mesh and recipe, with what changes groups and their parts. */
Test(tensor, cuts_do_not_show, .timeout = 300) {
    static const struct cut_case cases[] = {
        {1, 1, 2, ZT_DDP, false, "fp32", 0, 0, 1},
        {1, 1, 4, ZT_DDP, true, "fp32", 0.004, 0, 2},
        {2, 1, 2, ZT_DDP, true, "mixed16", 0, 0, 2},
        {1, 2, 4, ZT_ZERO1, false, "fp32", 0, 0, 2},
        {1, 2, 2, ZT_ZERO1, true, "pure_bf16", 100, 0, 1},
        {2, 2, 2, ZT_ZERO2, true, "fp32", 0.03, 0, 2},
        {1, 2, 4, ZT_ZERO2, false, "pure_bf16", 0, 0, 1},
        {1, 2, 4, ZT_ZERO3, true, "fp32", 0, 30, 2},
        {2, 2, 2, ZT_ZERO3, false, "mixed16_nomaster", 0, 0, 1},
        {1, 2, 2, ZT_FSDP, true, "fsdp_mixed", 0, 600, 2},
        {1, 1, 4, ZT_FSDP, true, "mixed16_g32", 0, 0, 1},
        {2, 2, 2, ZT_FSDP, false, "fp32", 0.004, 20, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(cases[i]);
}

/* What is summed is what the rows of a part of the sequence have touched: norms (two of a block,
 * weight and bias, and the last) and biases behind a row cut; positions are whole on every rank. */
Test(tensor, what_the_partial_sum_sends) {
    struct cut_job *j = run(&(struct cut_case){1, 1, 2, ZT_DDP, true, "fp32", 0, 0, 1});
    const int64_t elements = 3 * (4 + 2) * 20 + 2 * 20;
    cr_assert_eq(j->sum.count, elements);
    cr_assert_eq(j->sum.dtype, ZT_F32);
    cr_assert_str_eq(j->sum.reason, "gradients of parts, over the tensor group");
    cr_assert(!j->sum.control);
    cr_assert_eq(j->sum.step, CUT_STEPS);
    cr_assert_eq(j->sent[1], 2 * elements * 4 / 2, "an all-reduce of two ranks");
}
