/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_tensor_equiv.c: a tensor group changes how a layer is computed, not what it
 * computes. Against the same mesh with uncut layers: losses within 1e-5, the first step's gradients
 * within 1e-4 (fp32; sums of a row are taken in another order), the start bit for bit, and what a
 * group's ranks all hold bitwise equal after every step. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/engine/bench.h"
#include "tests/engine/pairwise.h"

#define TP_STEPS 5
#define TP_ROWS 8 /* of a step, over all data ranks and micro-steps */
#define TP_TENSORS 64
#define TP_ELEMENTS 1000000

struct tp_case {
    int replicate, shard, tensor, micros;
    enum zt_mode mode;
    bool sequence;
    const char *model, *lora;
    int per_host; /* bench_options */
};
struct tp_job {
    struct ranks_shared shared;
    struct tp_case c;
    int n_tensors;
    int64_t first[TP_TENSORS + 1];
    char names[TP_TENSORS][96];
    struct tp_step {
        double loss, norm;
        struct zt_hash128 own, whole, frozen;
    } step[TP_STEPS + 1][RANKS_MAX];
    float gradient[TP_ELEMENTS]; /* of step 1, of the whole model */
};

/* ---- a rank ---- */

/* Own elements of the gradient to where they are in the whole model. */
static void take_gradient(struct tp_job *j, const struct bench *b) {
    const struct zt_runtime *r = b->runtime;
    for (int i = 0; i < r->layout.n_groups; i++) {
        const struct rt_group *g = &r->groups[i];
        enum zt_dtype t;
        if (!g->def->trainable) continue;
        const float *own = rt_own_gradient(r, g, &t);
        for (struct zt_flat_piece p = {0}; rt_piece_next(r, g, g->own_from, g->own_count, &p);)
            for (int64_t k = 0, n; k < p.count; k += n) {
                uint64_t index;
                n = zt_span_run(&p.span, k, p.count - k, &index);
                memcpy(j->gradient + j->first[p.tensor] + index, own + p.at + k,
                       (size_t)n * sizeof *own);
            }
    }
}

static int micro_step(struct bench *b, const struct tp_case *c, int64_t step, int64_t m,
                      struct zt_fixsum *loss, struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    int dp = zt_mesh_dp_index(b->mesh, b->rank), size = zt_mesh_dp(b->mesh);
    int64_t rows = TP_ROWS / c->micros / size, valid = 0;
    for (int64_t i = 0; i < rows; i++) bench_row(b, i, step * 100 + (m * rows + i) * size + dp);
    struct zt_batch batch = {.tokens = b->tokens, .targets = b->targets, .B = rows, .T = BENCH_T};
    int rc = zt_runtime_micro_begin(b->runtime, m, m == c->micros - 1, e);
    if (rc == 0)
        rc = zt_model_step(b->model, &s, &batch, 1.0f / (TP_ROWS * BENCH_T), true, false, loss,
                           &valid, e);
    if (rc == 0 && valid != rows * BENCH_T)
        rc = zt_fail(e, ZT_EINTERNAL, "%lld tokens were counted", (long long)valid);
    return rc;
}

static int note(struct tp_job *j, struct bench *b, int s, const struct zt_fixsum *loss,
                struct zt_error *e) {
    struct tp_step *n = &j->step[s][b->rank];
    struct zt_hash128 all[TP_TENSORS];
    int rc = zt_runtime_parameter_hash(b->runtime, &n->own, all, e);
    n->whole = n->frozen = (struct zt_hash128){0, 0};
    for (int i = 0; rc == 0 && i < b->table.n_tensors; i++) {
        if (b->table.tensors[i].tp_dim < 0) zt_hash128_add(&n->whole, all[i]);
        if (b->table.tensors[i].frozen) zt_hash128_add(&n->frozen, all[i]);
    }
    n->norm = b->norm;
    n->loss = zt_fixsum_value(loss) / (TP_ROWS * BENCH_T);
    return rc;
}

static int one_step(struct tp_job *j, struct bench *b, int s, struct zt_error *e) {
    struct zt_fixsum loss;
    int rc = 0;
    zt_fixsum_zero(&loss);
    zt_intervals_begin_step(&b->intervals, rt_now(b->runtime));
    RT_TRY(zt_runtime_window_begin(b->runtime, s, e));
    for (int m = 0; m < j->c.micros; m++) RT_TRY(micro_step(b, &j->c, s, m, &loss, e));
    RT_TRY(zt_runtime_wait_gradients(b->runtime, e));
    if (s == 1 && zt_mesh_coords(b->mesh, b->rank).replicate == 0) take_gradient(j, b);
    RT_TRY(bench_update(b, 1e-3, e));
    RT_TRY(zt_runtime_collect(b->runtime, e));
    RT_TRY(note(j, b, s, &loss, e));
out:
    return rc;
}

/* Where tensors lie in `gradient`; every rank says the same. */
static void lay_out(struct tp_job *j, const struct bench *b) {
    int64_t at = 0;
    for (int i = 0; i < b->table.n_tensors; i++) {
        j->first[i] = at;
        at += b->table.tensors[i].whole[0] * b->table.tensors[i].whole[1];
        snprintf(j->names[i], sizeof j->names[i], "%s", b->table.tensors[i].name);
    }
    j->first[b->table.n_tensors] = at;
    j->n_tensors = b->table.n_tensors;
}

static int tp_rank(int rank, int world, void *arg) {
    struct tp_job *j = arg;
    const struct tp_case *c = &j->c;
    struct bench b;
    struct zt_error e = {0};
    struct zt_fixsum none;
    struct bench_options o = {.row = bench_mode(c->mode),
                              .shard = c->shard,
                              .tensor = c->tensor,
                              .sequence = c->sequence,
                              .model = c->model,
                              .lora = c->lora,
                              .per_host = c->per_host};
    zt_fixsum_zero(&none);
    OK(bench_open(&b, rank, world, &j->shared, &o, &e));
    EXPECT(b.table.n_tensors <= TP_TENSORS && b.table.parameters <= TP_ELEMENTS, "size");
    lay_out(j, &b);
    OK(note(j, &b, 0, &none, &e));
    for (int s = 1; s <= TP_STEPS; s++) OK(one_step(j, &b, s, &e));
    bench_close(&b);
    return 0;
}

/* ---- comparing ---- */

static struct tp_job *run(const struct tp_case *c) {
    struct tp_job *j = ranks_map(sizeof *j);
    j->c = *c;
    cr_assert_eq(ranks_run(c->replicate * c->shard * c->tensor, 200, tp_rank, j, NULL), 0,
                 "%dx%dx%d %s micros %d sequence %d", c->replicate, c->shard, c->tensor,
                 zt_mode_name(c->mode), c->micros, c->sequence);
    return j;
}

static double loss(const struct tp_job *j, int s) {
    double sum = 0;
    for (int r = 0; r < j->c.replicate * j->c.shard; r++) sum += j->step[s][r * j->c.tensor].loss;
    return sum;
}

static struct zt_hash128 start(const struct tp_job *j) {
    struct zt_hash128 sum = {0, 0};
    int n = (zt_policy(j->c.mode)->shard_optimizer ? j->c.shard : 1) * j->c.tensor;
    for (int r = 0; r < n; r++) zt_hash128_add(&sum, j->step[0][r].own);
    return sum;
}

/* Of one tensor, relative to its own norm, or to 1e-7 of the whole gradient's. */
static void check_gradients(const struct tp_job *j, const struct tp_job *one, const char *text) {
    double all = 0;
    for (int64_t k = 0; k < j->first[j->n_tensors]; k++)
        all += (double)one->gradient[k] * (double)one->gradient[k];
    cr_assert_gt(all, 0);
    for (int i = 0; i < j->n_tensors; i++) {
        double d = 0, n = 0;
        for (int64_t k = j->first[i]; k < j->first[i + 1]; k++) {
            double x = (double)j->gradient[k], y = (double)one->gradient[k];
            d += (x - y) * (x - y);
            n += y * y;
        }
        double bound = 1e-4 * fmax(sqrt(n), 1e-7 * sqrt(all));
        cr_assert_leq(sqrt(d), bound, "%s: %s is %g off", text, j->names[i], sqrt(d / n));
    }
}

static void check(const struct tp_case *c) {
    struct tp_case uncut = *c;
    char text[128];
    uncut.tensor = 1;
    uncut.sequence = false;
    struct tp_job *one = run(&uncut), *j = run(c);
    snprintf(text, sizeof text, "%dx%dx%d %s micros %d sequence %d", c->replicate, c->shard,
             c->tensor, zt_mode_name(c->mode), c->micros, c->sequence);
    struct zt_hash128 a = start(j), b = start(one);
    cr_assert(a.lo == b.lo && a.hi == b.hi, "%s: other weights at the start", text);
    check_gradients(j, one, text);
    for (int s = 1; s <= TP_STEPS; s++) {
        double x = loss(j, s), y = loss(one, s);
        cr_assert_float_eq(x, y, 1e-5 * y, "%s: step %d: loss %.9g, not %.9g", text, s, x, y);
        cr_assert_float_eq(j->step[s][0].norm, one->step[s][0].norm, 1e-4 * one->step[s][0].norm);
    }
    for (int s = 0; s <= TP_STEPS; s++)
        for (int r = 0; r < c->replicate * c->shard * c->tensor; r++) {
            const struct tp_step *n = &j->step[s][r],
                                 *first = &j->step[s][r / c->tensor * c->tensor];
            cr_assert(n->whole.lo == first->whole.lo && n->whole.hi == first->whole.hi,
                      "%s: rank %d's whole tensors after step %d", text, r, s);
            const struct tp_step *before = &j->step[0][r];
            cr_assert(n->frozen.lo == before->frozen.lo && n->frozen.hi == before->frozen.hi,
                      "%s: rank %d: something frozen moved in step %d", text, r, s);
            cr_assert_eq(n->norm, j->step[s][0].norm);
            cr_assert_eq(n->loss, first->loss, "%s: a tensor group has one loss", text);
        }
    munmap(one, sizeof *one);
    munmap(j, sizeof *j);
}

/* ---- the cover ---- */

enum { F_TENSOR, F_SHARD, F_REPLICATE, F_MODE, F_SEQUENCE, F_MICROS, FACTORS };
static const int levels[FACTORS] = {2, 2, 2, 5, 2, 2};

static void fix(int *row) {
    if (row[F_MODE] == ZT_DDP) row[F_SHARD] = 0;
    if (row[F_TENSOR] && row[F_SHARD] && row[F_REPLICATE]) row[F_TENSOR] = 0; /* 8 ranks */
}
static const struct pw_product product = {FACTORS, levels, 4, fix};

static struct tp_case case_of(const int *row, const char *model) {
    return (struct tp_case){.replicate = 1 + row[F_REPLICATE],
                            .shard = 1 + row[F_SHARD],
                            .tensor = row[F_TENSOR] ? 4 : 2,
                            .micros = 1 + row[F_MICROS],
                            .mode = (enum zt_mode)row[F_MODE],
                            .sequence = row[F_SEQUENCE] == 1,
                            .model = model};
}

Test(tensor_equiv, pairwise_cover_at_a_prime_vocabulary, .timeout = 600) {
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    int n = pw_cover(&product, rows, &pairs);
    cr_assert_eq(pw_missing(&product, &pairs, NULL), 0);
    for (int i = 0; i < n; i++) {
        struct tp_case c =
            case_of(rows[i], "layers: 2, heads: 4, dim: 32, ffn_dim: 72, vocab_size: 257");
        check(&c);
    }
}

/* Grouped queries, an untied head; Qwen's biases, and its norms inside the heads, whose gradients
 * are parts whether the sequence is cut or not. */
Test(tensor_equiv, llama_and_qwen, .timeout = 300) {
    static const char *const models[] = {
        "family: llama, layers: 2, heads: 8, kv_heads: 4, dim: 32, ffn_dim: 72, vocab_size: 257",
        "family: llama, layers: 2, heads: 4, kv_heads: 4, head_dim: 8, dim: 24, ffn_dim: 40, "
        "vocab_size: 67, tied_head: true, qkv_bias: true, qk_norm: true"};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) {
            struct tp_case c = {.replicate = 1 + (i == 1),
                                .shard = 1 + (i == 2),
                                .tensor = i == 1 ? 2 : 4,
                                .micros = 1 + i % 2,
                                .mode = i == 1   ? ZT_DDP
                                        : i == 2 ? ZT_FSDP
                                                 : ZT_ZERO2,
                                .sequence = i >= 2,
                                .model = models[m]};
            check(&c);
        }
}

/* Adapters on every linear layer: A or B is cut as its layer is, the other is whole and its gradient a
 * part. The base is frozen, and stays what it was. */
Test(tensor_equiv, adapters, .timeout = 300) {
    static const char *const models[] = {
        "layers: 2, heads: 4, dim: 32, ffn_dim: 72, vocab_size: 257",
        "family: llama, layers: 2, heads: 8, kv_heads: 4, dim: 32, ffn_dim: 72, vocab_size: 67"};
    static const char *const targets[] = {"rank: 4, alpha: 8, targets: [\"*.h.*\"]",
                                          "rank: 4, alpha: 8, targets: [\"*.layers.*\"]"};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 3; i++) {
            struct tp_case c = {.replicate = 1 + (i == 1),
                                .shard = 1 + (i == 2),
                                .tensor = i == 0 ? 4 : 2,
                                .micros = 1 + i % 2,
                                .mode = i == 1   ? ZT_DDP
                                        : i == 2 ? ZT_FSDP
                                                 : ZT_ZERO1,
                                .sequence = i == 2,
                                .model = models[m],
                                .lora = targets[m]};
            check(&c);
        }
}

/* A tensor group inside a host and data parallelism over the link, or everything over it: the sums are
 * taken in rank order either way. */
Test(tensor_equiv, hosts_do_not_show, .timeout = 300) {
    struct tp_case c = {.replicate = 1,
                        .shard = 2,
                        .tensor = 2,
                        .micros = 2,
                        .mode = ZT_FSDP,
                        .sequence = true,
                        .model = "layers: 2, heads: 4, dim: 32, vocab_size: 257"};
    struct tp_job *one = run(&c);
    for (c.per_host = 1; c.per_host <= 2; c.per_host++) {
        struct tp_job *j = run(&c);
        for (int s = 0; s <= TP_STEPS; s++)
            for (int r = 0; r < 4; r++) {
                const struct tp_step *a = &j->step[s][r], *b = &one->step[s][r];
                cr_assert(a->own.lo == b->own.lo && a->own.hi == b->own.hi,
                          "%d ranks a host: rank %d after step %d", c.per_host, r, s);
                cr_assert_eq(a->loss, b->loss);
                cr_assert_eq(a->norm, b->norm);
            }
        munmap(j, sizeof *j);
    }
    munmap(one, sizeof *one);
}

/* GPT-2's: 50257 = 4 x 12565 - 3, so the last of four ranks has three rows of padding. */
Test(tensor_equiv, the_vocabulary_of_gpt2, .timeout = 300) {
    for (int t = 2; t <= 4; t += 2) {
        struct tp_case c = {.replicate = 1,
                            .shard = 1,
                            .tensor = t,
                            .micros = 1,
                            .mode = ZT_DDP,
                            .sequence = t == 4,
                            .model = "layers: 1, heads: 4, dim: 16, vocab_size: 50257"};
        check(&c);
    }
}
