/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 against fp64 PyTorch (tests/golden/gen_gpt2.py): logits, loss, every gradient, ten clipped
 * AdamW steps; and what must hold by itself: same bits for any number of threads, accumulation by
 * micro-batches, no saved memory left behind. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/device/alloc.h"
#include "engine/model/model.h"
#include "tests/golden/golden.h"

#define TENSORS_MAX 64

struct bench {
    struct golden gold;
    struct zt_model_table table;
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    struct zt_ops_ctx *ctx;
    const struct zt_ops *ops;
    struct zt_model *model;
    void *param[TENSORS_MAX], *grad[TENSORS_MAX], *m[TENSORS_MAX], *v[TENSORS_MAX];
    int32_t *tokens, *targets;
    int64_t T, B;
};

static void ok(int rc, const struct zt_error *e) { cr_assert_eq(rc, 0, "%d: %s", rc, e->msg); }

static void *dev(struct bench *b, size_t bytes, enum zt_tag tag, const char *what) {
    struct zt_error e = {0};
    void *p = NULL;
    ok(zt_malloc(b->alloc, bytes, zt_device_compute(b->device), tag, what, &p, &e), &e);
    memset(p, 0, bytes);
    return p;
}

static int give(void *arg, int unit, struct zt_unit_view *view, struct zt_error *err) {
    (void)err;
    struct bench *b = arg;
    const struct zt_unit_def *u = &b->table.units[unit];
    view->param = b->param + u->first_tensor;
    view->grad = b->grad + u->first_tensor;
    return 0;
}
static int take(void *arg, int unit, struct zt_error *err) {
    (void)arg, (void)unit, (void)err;
    return 0;
}
static struct zt_unit_source source(struct bench *b) {
    return (struct zt_unit_source){b, give, take, give, take, take};
}

/* The golden's short names inside our Hugging Face names. */
static const char *short_name(const char *name) {
    const char *prefix = "transformer.";
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

static struct golden_array array(struct bench *b, const char *prefix, const char *name) {
    char full[160];
    struct golden_array a;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    cr_assert_eq(golden_find(&b->gold, full, &a), 0, "no %s in the golden", full);
    return a;
}

static void open_bench(struct bench *b, int threads, const char *gemm) {
    struct zt_error e = {0};
    memset(b, 0, sizeof *b);
    cr_assert_eq(golden_open(ZT_SOURCE_ROOT "/tests/golden/gpt2.bin", &b->gold), 0);
    struct golden_array s = array(b, "", "shape");
    int32_t n[7];
    memcpy(n, s.data, sizeof n);
    struct zt_model_config c = {.family = ZT_GPT2, .layers = n[3], .heads = n[5], .kv_heads = n[5],
                                .head_dim = n[4] / n[5], .dim = n[4], .ffn_dim = 4 * n[4],
                                .vocab_size = n[0], .seq_len_max = n[1], .norm_eps = 1e-5,
                                .tied_head = true, .qkv_bias = true};
    b->T = n[2];
    b->B = n[6];
    ok(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &b->table, &e), &e);
    struct zt_device_config dc = {"cpu", 64u << 20};
    ok(zt_device_open(&dc, &b->device, &e), &e);
    zt_ledger_init(&b->ledger);
    ok(zt_alloc_create(b->device, &b->ledger, NULL, &b->alloc, &e), &e);
    ok(zt_ops_cpu_create(threads, NULL, gemm, &b->ctx, &e), &e);
    b->ops = zt_ops_cpu();
    for (int i = 0; i < b->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &b->table.tensors[i];
        size_t bytes = (size_t)d->numel * 4;
        b->param[i] = dev(b, bytes, ZT_TAG_PARAMETERS, d->name);
        b->grad[i] = dev(b, bytes, ZT_TAG_GRADIENTS, d->name);
        b->m[i] = dev(b, bytes, ZT_TAG_OPTIMIZER, d->name);
        b->v[i] = dev(b, bytes, ZT_TAG_OPTIMIZER, d->name);
        struct golden_array w = array(b, "w:", short_name(d->name));
        cr_assert_eq(w.numel, d->numel, "%s", d->name);
        memcpy(b->param[i], w.data, bytes);
    }
    struct golden_array tok = array(b, "", "tokens"), tgt = array(b, "", "targets");
    b->tokens = dev(b, (size_t)tok.numel * 4, ZT_TAG_ACTIVATIONS, "tokens");
    b->targets = dev(b, (size_t)tgt.numel * 4, ZT_TAG_ACTIVATIONS, "targets");
    memcpy(b->tokens, tok.data, (size_t)tok.numel * 4);
    memcpy(b->targets, tgt.data, (size_t)tgt.numel * 4);
    struct zt_model_env env = {b->ops, b->ctx, b->alloc, b->device, &b->ledger, ZT_F32, ZT_F32};
    ok(zt_model_create(&b->table, &env, &b->model, &e), &e);
}

static void close_bench(struct bench *b) {
    zt_model_destroy(b->model);
    for (int i = 0; i < b->table.n_tensors; i++) {
        zt_free(b->alloc, b->param[i]);
        zt_free(b->alloc, b->grad[i]);
        zt_free(b->alloc, b->m[i]);
        zt_free(b->alloc, b->v[i]);
    }
    zt_free(b->alloc, b->tokens);
    zt_free(b->alloc, b->targets);
    zt_alloc_destroy(b->alloc);
    zt_ops_cpu_destroy(b->ctx);
    zt_device_close(b->device);
    zt_model_table_free(&b->table);
    golden_close(&b->gold);
}

static int64_t valid_tokens(const struct bench *b) {
    int64_t n = 0;
    for (int64_t i = 0; i < b->B * b->T; i++) n += b->targets[i] != -1;
    return n;
}

/* Mean loss of rows [first, first + rows) of the batch, gradients scaled for the whole batch. */
static double run_rows(struct bench *b, int64_t first, int64_t rows, bool backward,
                       struct zt_fixsum *sum, int64_t *valid) {
    struct zt_error e = {0};
    struct zt_unit_source src = source(b);
    struct zt_batch batch = {b->tokens + first * b->T, b->targets + first * b->T, rows, b->T};
    ok(zt_model_step(b->model, &src, &batch, (float)(1.0 / (double)valid_tokens(b)), backward, !backward, sum,
                     valid, &e), &e);
    return zt_fixsum_value(sum) / (double)*valid;
}
static double run_all(struct bench *b, bool backward) {
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    return run_rows(b, 0, b->B, backward, &sum, &valid);
}
static void zero_gradients(struct bench *b) {
    for (int i = 0; i < b->table.n_tensors; i++)
        memset(b->grad[i], 0, (size_t)b->table.tensors[i].numel * 4);
}

/* ||ours - ref|| / ||ref||; tensors of next to no gradient are compared with the global norm. */
static void check_gradients(struct bench *b, double tolerance) {
    double global = 0;
    for (int i = 0; i < b->table.n_tensors; i++) {
        struct golden_array g = array(b, "g:", short_name(b->table.tensors[i].name));
        for (int64_t k = 0; k < g.numel; k++) global += pow(golden_f64(&g, k), 2);
    }
    global = sqrt(global);
    for (int i = 0; i < b->table.n_tensors; i++) {
        struct golden_array g = array(b, "g:", short_name(b->table.tensors[i].name));
        double diff = 0, ref = 0;
        for (int64_t k = 0; k < g.numel; k++) {
            diff += pow((double)((const float *)b->grad[i])[k] - golden_f64(&g, k), 2);
            ref += pow(golden_f64(&g, k), 2);
        }
        double scale = sqrt(ref) < 1e-7 * global ? global : sqrt(ref);
        cr_expect_leq(sqrt(diff) / scale, tolerance, "%s: %g", b->table.tensors[i].name,
                      sqrt(diff) / scale);
    }
}

Test(gpt2, parameter_count) {
    struct bench b;
    open_bench(&b, 1, NULL);
    /* V C + S C + 2 C + L (12 C^2 + 13 C) */
    cr_assert_eq(b.table.parameters, 61 * 24 + 24 * 24 + 2 * 24 + 2 * (12 * 24 * 24 + 13 * 24));
    close_bench(&b);
}

Test(gpt2, logits_and_loss_of_pytorch) {
    struct bench b;
    struct zt_error e = {0};
    open_bench(&b, 2, NULL);
    struct golden_array want = array(&b, "", "logits");
    float *logits = dev(&b, (size_t)want.numel * 4, ZT_TAG_TEMPORARY, "logits");
    struct zt_unit_source src = source(&b);
    struct zt_batch batch = {b.tokens, b.targets, b.B, b.T};
    ok(zt_model_logits(b.model, &src, &batch, logits, &e), &e);
    double diff = 0, ref = 0;
    for (int64_t i = 0; i < want.numel; i++) {
        diff += pow((double)logits[i] - golden_f64(&want, i), 2);
        ref += pow(golden_f64(&want, i), 2);
    }
    cr_expect_leq(sqrt(diff / ref), 1e-5, "logits: %g", sqrt(diff / ref));
    zt_free(b.alloc, logits);
    struct golden_array losses = array(&b, "", "losses");
    double loss = run_all(&b, false);
    cr_expect_leq(fabs(loss / golden_f64(&losses, 0) - 1), 1e-6, "loss %.9f", loss);
    close_bench(&b);
}

Test(gpt2, every_gradient_of_pytorch) {
    const char *gemm[] = {"onednn", "openblas"};
    for (int i = 0; i < 2; i++) {
        struct bench b;
        open_bench(&b, 2, gemm[i]);
        run_all(&b, true);
        check_gradients(&b, 1e-5);
        close_bench(&b);
    }
}

Test(gpt2, ten_adamw_steps_of_pytorch) {
    struct bench b;
    struct zt_error e = {0};
    open_bench(&b, 2, NULL);
    struct golden_array losses = array(&b, "", "losses"), norms = array(&b, "", "norms");
    for (int64_t step = 0; step <= 10; step++) {
        zero_gradients(&b);
        double loss = run_all(&b, true);
        cr_expect_leq(fabs(loss - golden_f64(&losses, step)), 1e-5, "step %d: %.9f, PyTorch %.9f",
                      (int)step, loss, golden_f64(&losses, step));
        if (step == 10) break;
        struct zt_fixsum squares;
        zt_fixsum_zero(&squares);
        for (int i = 0; i < b.table.n_tensors; i++)
            ok(b.ops->sum_squares(b.ctx, ZT_F32, b.grad[i], b.table.tensors[i].numel, &squares, &e), &e);
        double norm = sqrt(zt_fixsum_value(&squares));
        cr_expect_leq(fabs(norm / golden_f64(&norms, step) - 1), 1e-5, "norm at step %d", (int)step);
        double coef = 1.0 / (norm + 1e-6);
        for (int i = 0; i < b.table.n_tensors; i++) {
            const struct zt_tensor_def *d = &b.table.tensors[i];
            struct zt_adamw_params a = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                                        .weight_decay = d->ndim > 1 ? 0.1 : 0.0, .step = step + 1,
                                        .grad_scale = coef < 1 ? coef : 1};
            struct zt_adamw_buffers buffers = {
                .param = b.param[i], .m = b.m[i], .v = b.v[i], .grad = b.grad[i]};
            ok(b.ops->adamw(b.ctx, &buffers, d->numel, &a, &e), &e);
        }
    }
    close_bench(&b);
}

Test(gpt2, same_bits_for_any_number_of_threads) {
    struct bench a;
    open_bench(&a, 1, NULL);
    double loss = run_all(&a, true);
    const int threads[] = {2, 3, 4, 8};
    for (int k = 0; k < 4; k++) {
        struct bench b;
        open_bench(&b, threads[k], NULL);
        cr_assert_eq(run_all(&b, true), loss, "%d threads", threads[k]);
        for (int i = 0; i < a.table.n_tensors; i++)
            cr_assert_eq(memcmp(a.grad[i], b.grad[i], (size_t)a.table.tensors[i].numel * 4), 0,
                         "%s with %d threads", a.table.tensors[i].name, threads[k]);
        close_bench(&b);
    }
    close_bench(&a);
}

Test(gpt2, micro_batches_add_up_to_the_batch) {
    struct bench b;
    open_bench(&b, 2, NULL);
    struct golden_array losses = array(&b, "", "losses");
    struct zt_fixsum sum;
    int64_t valid = 0;
    double loss = 0;
    zt_fixsum_zero(&sum);
    for (int64_t r = 0; r < b.B; r++) loss = run_rows(&b, r, 1, true, &sum, &valid);
    cr_expect_eq(valid, valid_tokens(&b));
    cr_expect_leq(fabs(loss / golden_f64(&losses, 0) - 1), 1e-6);
    check_gradients(&b, 1e-5); /* rows with 12, 19 and 18 valid tokens: means of means would be off by 10 % */
    close_bench(&b);
}

Test(gpt2, nothing_saved_is_left_and_peaks_repeat) {
    struct bench b;
    open_bench(&b, 2, NULL);
    int64_t before = b.ledger.allocated, peak = 0;
    for (int i = 0; i < 3; i++) {
        zt_ledger_reset_peaks(&b.ledger);
        run_all(&b, true);
        cr_expect_eq(b.ledger.allocated, before);
        if (i > 0) cr_expect_eq(b.ledger.peak_allocated, peak);
        peak = b.ledger.peak_allocated;
        int64_t sum = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++) sum += b.ledger.at_peak[t];
        cr_expect_eq(sum, peak);
    }
    close_bench(&b);
}

/* Saved per block and token: 8 widths of C (stream, norm1, qkv 3, att, mid, norm2), 2 of F, 4 statistics,
 * H log-sum-exps; around them the final stream, norm and 2 statistics and the logits. */
Test(gpt2, saved_activations_are_the_formula) {
    struct bench b;
    open_bench(&b, 1, NULL);
    zt_ledger_reset_peaks(&b.ledger);
    int64_t other = b.ledger.requested[ZT_TAG_ACTIVATIONS]; /* tokens and targets */
    int64_t at_loss = 0;
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    run_rows(&b, 0, b.B, true, &sum, &valid);
    const struct zt_model_config *c = &b.table.config;
    int64_t rows = b.B * b.T;
#define R512(elements) (((elements) * 4 + 511) / 512 * 512)
    at_loss = c->layers * (5 * R512(rows * c->dim) + R512(rows * 3 * c->dim) + 2 * R512(rows * c->ffn_dim) +
                           4 * R512(rows) + R512(rows * c->heads)) +
              2 * R512(rows * c->dim) + 2 * R512(rows) + R512(rows * c->vocab_size);
    cr_expect_eq(b.ledger.category_max[ZT_TAG_ACTIVATIONS] - other, at_loss);
    close_bench(&b);
}

Test(gpt2, bad_batches_are_refused) {
    struct bench b;
    struct zt_error e = {0};
    open_bench(&b, 1, NULL);
    struct zt_unit_source src = source(&b);
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    struct zt_batch longer = {b.tokens, b.targets, 1, b.table.config.seq_len_max + 1};
    cr_expect_eq(zt_model_step(b.model, &src, &longer, 1.0f, true, false, &sum, &valid, &e), ZT_EINVAL);
    cr_expect(strstr(e.msg, "seq_len_max") != NULL, "%s", e.msg);
    b.targets[20] = 61; /* one past the vocabulary */
    struct zt_batch batch = {b.tokens, b.targets, b.B, b.T};
    int64_t before = b.ledger.allocated;
    cr_expect_eq(zt_model_step(b.model, &src, &batch, 1.0f, true, false, &sum, &valid, &e), ZT_EDATA);
    cr_expect_eq(b.ledger.allocated, before);
    close_bench(&b);
}
