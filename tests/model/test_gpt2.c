/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 against fp64 PyTorch (tests/golden/gen_gpt2.py): logits, loss, every gradient, twenty
 * clipped AdamW steps; and what must hold by itself: same bits for any number of threads,
 * accumulation by micro-batches, no saved memory left behind. */
#include <criterion/criterion.h>

#include "tests/golden/golden.h"
#include "tests/model/model_util.h"

struct bench {
    struct golden gold;
    struct rig r;
};

/* The golden's short names inside our Hugging Face names. */
static const char *short_name(const char *name) {
    const char *prefix = "transformer.";
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

static struct golden_array array(const struct bench *b, const char *prefix, const char *name) {
    char full[160];
    struct golden_array a;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    cr_assert_eq(golden_find(&b->gold, full, &a), 0, "no %s in the golden", full);
    return a;
}

static void open_typed(struct bench *b, int threads, const char *gemm, enum zt_dtype compute,
                       enum zt_dtype grad) {
    cr_assert_eq(golden_open(ZT_SOURCE_ROOT "/tests/golden/gpt2.bin", &b->gold), 0);
    int32_t n[7];
    memcpy(n, array(b, "", "shape").data, sizeof n);
    struct rig_options o = {.config = {.family = ZT_GPT2,
                                       .layers = n[3],
                                       .heads = n[5],
                                       .kv_heads = n[5],
                                       .head_dim = n[4] / n[5],
                                       .dim = n[4],
                                       .ffn_dim = 4 * n[4],
                                       .vocab_size = n[0],
                                       .seq_len_max = n[1],
                                       .norm_eps = 1e-5,
                                       .tied_head = true,
                                       .qkv_bias = true},
                            .B = n[6],
                            .T = n[2],
                            .threads = threads,
                            .gemm = gemm,
                            .compute = compute,
                            .grad = grad};
    rig_open(&b->r, &o);
    for (int i = 0; i < b->r.table.n_tensors; i++) {
        struct golden_array w = array(b, "w:", short_name(b->r.table.tensors[i].name));
        cr_assert_eq(w.numel, b->r.table.tensors[i].numel, "%s", b->r.table.tensors[i].name);
        memcpy(b->r.master[i], w.data, rig_bytes(&b->r, i, ZT_F32));
    }
    rig_set_parameters(&b->r);
    struct golden_array tok = array(b, "", "tokens"), tgt = array(b, "", "targets");
    memcpy(b->r.tokens, tok.data, (size_t)tok.numel * 4);
    memcpy(b->r.targets, tgt.data, (size_t)tgt.numel * 4);
}

static void open_bench(struct bench *b, int threads, const char *gemm) {
    open_typed(b, threads, gemm, ZT_F32, ZT_F32);
}

static void close_bench(struct bench *b) {
    rig_close(&b->r);
    golden_close(&b->gold);
}

/* ||ours - ref|| / ||ref||; tensors of next to no gradient are compared with the global norm. */
static void check_gradients(const struct bench *b, double tolerance) {
    const struct zt_model_table *t = &b->r.table;
    double global = 0;
    for (int i = 0; i < t->n_tensors; i++) {
        struct golden_array g = array(b, "g:", short_name(t->tensors[i].name));
        for (int64_t k = 0; k < g.numel; k++) global += pow(golden_f64(&g, k), 2);
    }
    global = sqrt(global);
    for (int i = 0; i < t->n_tensors; i++) {
        struct golden_array g = array(b, "g:", short_name(t->tensors[i].name));
        double diff = 0, ref = 0;
        for (int64_t k = 0; k < g.numel; k++) {
            diff += pow(rig_at(b->r.grad[i], b->r.o.grad, k) - golden_f64(&g, k), 2);
            ref += pow(golden_f64(&g, k), 2);
        }
        double scale = sqrt(ref) < 1e-7 * global ? global : sqrt(ref);
        cr_expect_leq(sqrt(diff) / scale, tolerance, "%s: %g", t->tensors[i].name,
                      sqrt(diff) / scale);
    }
}

Test(gpt2, parameter_count) {
    struct bench b;
    open_bench(&b, 1, NULL);
    /* V C + S C + 2 C + L (12 C^2 + 13 C) */
    cr_assert_eq(b.r.table.parameters, 61 * 24 + 24 * 24 + 2 * 24 + 2 * (12 * 24 * 24 + 13 * 24));
    close_bench(&b);
}

Test(gpt2, logits_and_loss_of_pytorch) {
    struct bench b;
    struct zt_error e = {0};
    open_bench(&b, 2, NULL);
    struct golden_array want = array(&b, "", "logits");
    float *logits = rig_device(&b.r, (size_t)want.numel * 4, ZT_TAG_TEMPORARY, "logits");
    struct zt_unit_source src = rig_source(&b.r);
    struct zt_batch batch = {b.r.tokens, b.r.targets, b.r.o.B, b.r.o.T};
    ok(zt_model_logits(b.r.model, &src, &batch, logits, &e), &e);
    double diff = 0, ref = 0;
    for (int64_t i = 0; i < want.numel; i++) {
        diff += pow((double)logits[i] - golden_f64(&want, i), 2);
        ref += pow(golden_f64(&want, i), 2);
    }
    cr_expect_leq(sqrt(diff / ref), 1e-5, "logits: %g", sqrt(diff / ref));
    zt_free(b.r.alloc, logits);
    struct golden_array losses = array(&b, "", "losses");
    double loss = rig_step(&b.r, false);
    cr_expect_leq(fabs(loss / golden_f64(&losses, 0) - 1), 1e-6, "loss %.9f", loss);
    close_bench(&b);
}

Test(gpt2, every_gradient_of_pytorch) {
    const char *gemm[] = {"onednn", "openblas"};
    for (int i = 0; i < 2; i++) {
        struct bench b;
        open_bench(&b, 2, gemm[i]);
        rig_step(&b.r, true);
        check_gradients(&b, 1e-5);
        close_bench(&b);
    }
}

Test(gpt2, twenty_adamw_steps_of_pytorch) {
    struct bench b;
    open_bench(&b, 2, NULL);
    struct golden_array losses = array(&b, "", "losses"), norms = array(&b, "", "norms");
    cr_assert_eq(losses.numel, 21);
    for (int64_t step = 0; step <= 20; step++) {
        rig_zero_gradients(&b.r);
        double loss = rig_step(&b.r, true);
        cr_expect_leq(fabs(loss - golden_f64(&losses, step)), 1e-5, "step %d: %.9f, PyTorch %.9f",
                      (int)step, loss, golden_f64(&losses, step));
        if (step == 20) break;
        double norm = rig_update(&b.r, step + 1, 1e-3);
        cr_expect_leq(fabs(norm / golden_f64(&norms, step) - 1), 1e-5, "norm at step %d: %g",
                      (int)step, norm);
    }
    close_bench(&b);
}

static void expect_same_for_any_threads(enum zt_dtype t) {
    struct bench a;
    open_typed(&a, 1, NULL, t, t);
    double loss = rig_step(&a.r, true);
    const int threads[] = {2, 3, 4, 8};
    for (int k = 0; k < 4; k++) {
        struct bench b;
        open_typed(&b, threads[k], NULL, t, t);
        cr_assert_eq(rig_step(&b.r, true), loss, "%d threads", threads[k]);
        for (int i = 0; i < a.r.table.n_tensors; i++)
            cr_assert_eq(memcmp(a.r.grad[i], b.r.grad[i], rig_bytes(&a.r, i, t)), 0,
                         "%s with %d threads", a.r.table.tensors[i].name, threads[k]);
        close_bench(&b);
    }
    close_bench(&a);
}

Test(gpt2, same_bits_for_any_number_of_threads) {
    expect_same_for_any_threads(ZT_F32);
    expect_same_for_any_threads(ZT_BF16);
}

Test(gpt2, micro_batches_add_up_to_the_batch) {
    struct bench b;
    open_bench(&b, 2, NULL);
    struct golden_array losses = array(&b, "", "losses");
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    for (int64_t r = 0; r < b.r.o.B; r++) rig_rows(&b.r, r, 1, true, 1.0, &sum, &valid);
    double loss = zt_fixsum_value(&sum) / (double)valid;
    cr_expect_eq(valid, rig_valid(&b.r));
    cr_expect_leq(fabs(loss / golden_f64(&losses, 0) - 1), 1e-6);
    check_gradients(&b, 1e-5); /* rows with 12, 19 and 18 valid tokens: means of means would be off
                                  by 10 % */
    close_bench(&b);
}

/* ---- 16-bit types ---- */

static double relative_error(const struct bench *b, int tensor, const struct golden_array *want,
                             double scale) {
    double diff = 0, ref = 0;
    for (int64_t k = 0; k < want->numel; k++) {
        double g = rig_at(b->r.grad[tensor], b->r.o.grad, k) / scale;
        diff += pow(g - golden_f64(want, k), 2);
        ref += pow(golden_f64(want, k), 2);
    }
    return sqrt(diff / ref);
}

/* Against the exact gradients of the same 16-bit weights. The golden has the error that rounding
 * every tensor between operators makes ("e:"): ours may be half as much again, and a 16-bit
 * gradient is rounded once more. In bf16 we may not be worse than PyTorch's own bf16 module ("t:").
 */
static void check_16(const struct bench *b, double scale) {
    bool bf16 = b->r.o.compute == ZT_BF16;
    const char *type = zt_dtype_name(b->r.o.compute);
    double roundoff = b->r.o.grad == ZT_F32 ? 0 : bf16 ? 0x1p-9 : 0x1p-12;
    for (int i = 0; i < b->r.table.n_tensors; i++) {
        const char *name = short_name(b->r.table.tensors[i].name);
        char key[32];
        snprintf(key, sizeof key, "%s:g:", type);
        struct golden_array g = array(b, key, name);
        snprintf(key, sizeof key, "%s:e:", type);
        struct golden_array e = array(b, key, name);
        double err = relative_error(b, i, &g, scale), expect = golden_f64(&e, 0);
        cr_expect_leq(err, 1.5 * expect + roundoff,
                      "%s, %s gradients: %s is off by %.2g, expected %.2g", type,
                      zt_dtype_name(b->r.o.grad), name, err, expect);
        if (!bf16) continue;
        struct golden_array t = array(b, "bf16:t:", name);
        cr_expect_leq(err, golden_f64(&t, 0), "%s is off by %.2g, PyTorch by %.2g", name, err,
                      golden_f64(&t, 0));
    }
}

Test(gpt2, gradients_of_16_bit_types) {
    const enum zt_dtype types[] = {ZT_BF16, ZT_F16};
    for (int i = 0; i < 4; i++) {
        enum zt_dtype t = types[i / 2];
        struct bench b;
        open_typed(&b, 2, NULL, t, i % 2 ? ZT_F32 : t);
        char key[32];
        snprintf(key, sizeof key, "%s:loss", zt_dtype_name(t));
        struct golden_array want = array(&b, "", key);
        double loss = rig_step(&b.r, true), off = fabs(loss - golden_f64(&want, 0));
        /* the mean over 49 tokens of one rounding of a logit of size 1 */
        cr_expect_leq(off, t == ZT_BF16 ? 0x1p-9 : 0x1p-12, "%s: the loss is off by %g", key, off);
        check_16(&b, 1);
        close_bench(&b);
    }
}

/* The loss is scaled by 65536 in fp16, so that small gradients do not vanish. */
Test(gpt2, scaled_loss_in_fp16) {
    struct bench b;
    struct zt_fixsum sum;
    int64_t valid = 0;
    open_typed(&b, 2, NULL, ZT_F16, ZT_F16);
    zt_fixsum_zero(&sum);
    rig_rows(&b.r, 0, b.r.o.B, true, 1024, &sum, &valid);
    check_16(&b, 1024);
    struct golden_array want = array(&b, "", "fp16:loss");
    cr_expect_leq(fabs(zt_fixsum_value(&sum) / (double)valid - golden_f64(&want, 0)), 0x1p-12,
                  "the loss itself is not scaled");
    close_bench(&b);
}

/* Beyond the range of fp16 there is infinity, not an error: the loss scaler looks for it. */
Test(gpt2, an_overflow_in_fp16_reaches_every_gradient) {
    struct bench b;
    struct zt_fixsum sum;
    int64_t valid = 0;
    open_typed(&b, 2, NULL, ZT_F16, ZT_F16);
    zt_fixsum_zero(&sum);
    /* each gradient of a target's logit is about -131072 */
    rig_rows(&b.r, 0, b.r.o.B, true, 131072.0 * (double)rig_valid(&b.r), &sum, &valid);
    cr_expect(isfinite(zt_fixsum_value(&sum)));
    for (int i = 0; i < b.r.table.n_tensors; i++) {
        bool found = false;
        for (int64_t k = 0; k < b.r.table.tensors[i].numel && !found; k++)
            found = !isfinite(rig_at(b.r.grad[i], ZT_F16, k));
        cr_expect(found, "%s is finite", b.r.table.tensors[i].name);
    }
    rig_zero_gradients(&b.r);
    rig_step(&b.r, true);
    check_16(&b, 1);
    close_bench(&b);
}

Test(gpt2, twenty_steps_in_16_bits_follow_fp32) {
    const enum zt_dtype grads[] = {ZT_BF16, ZT_F32};
    for (int i = 0; i < 2; i++) {
        struct bench b;
        open_typed(&b, 2, NULL, ZT_BF16, grads[i]);
        struct golden_array losses = array(&b, "", "losses");
        for (int64_t step = 0; step <= 20; step++) {
            rig_zero_gradients(&b.r);
            double loss = rig_step(&b.r, true), want = golden_f64(&losses, step);
            cr_expect_leq(fabs(loss / want - 1), 1e-2, "step %d: %.6f, PyTorch in fp64 %.6f",
                          (int)step, loss, want);
            rig_update(&b.r, step + 1, 1e-3);
        }
        close_bench(&b);
    }
}

Test(gpt2, nothing_saved_is_left_and_peaks_repeat) {
    struct bench b;
    open_bench(&b, 2, NULL);
    const struct zt_ledger *l = &b.r.ledger;
    int64_t before = l->allocated, peak = 0;
    for (int i = 0; i < 3; i++) {
        zt_ledger_reset_peaks(&b.r.ledger);
        rig_step(&b.r, true);
        cr_expect_eq(l->allocated, before);
        if (i > 0) cr_expect_eq(l->peak_allocated, peak);
        peak = l->peak_allocated;
        int64_t sum = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++) sum += l->at_peak[t];
        cr_expect_eq(sum, peak);
    }
    close_bench(&b);
}

Test(gpt2, bad_batches_are_refused) {
    struct bench b;
    struct zt_error e = {0};
    open_bench(&b, 1, NULL);
    struct zt_unit_source src = rig_source(&b.r);
    struct zt_fixsum sum;
    int64_t valid = 0;
    zt_fixsum_zero(&sum);
    struct zt_batch longer = {b.r.tokens, b.r.targets, 1, b.r.table.config.seq_len_max + 1};
    cr_expect_eq(zt_model_step(b.r.model, &src, &longer, 1.0f, true, false, &sum, &valid, &e),
                 ZT_EINVAL);
    cr_expect(strstr(e.msg, "seq_len_max") != NULL, "%s", e.msg);
    b.r.targets[20] = 61; /* one past the vocabulary */
    struct zt_batch batch = {b.r.tokens, b.r.targets, b.r.o.B, b.r.o.T};
    int64_t before = b.r.ledger.allocated;
    cr_expect_eq(zt_model_step(b.r.model, &src, &batch, 1.0f, true, false, &sum, &valid, &e),
                 ZT_EDATA);
    cr_expect_eq(b.r.ledger.allocated, before);
    close_bench(&b);
}
