/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 against fp64 PyTorch (tests/golden/gen_gpt2.py): logits, loss, every gradient, twenty
 * clipped AdamW steps; and what must hold by itself: same bits for any number of threads,
 * accumulation by micro-batches, no saved memory left behind. */
#include <criterion/criterion.h>

#include "tests/model/golden_model.h"

static void open_typed(struct bench *b, int threads, const char *gemm, enum zt_dtype compute,
                       enum zt_dtype grad) {
    struct rig_options how = {.threads = threads, .gemm = gemm, .compute = compute, .grad = grad};
    open_golden(b, "gpt2.bin", "", &how);
}

static void open_bench(struct bench *b, int threads, const char *gemm) {
    open_typed(b, threads, gemm, ZT_F32, ZT_F32);
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
    open_bench(&b, 2, NULL);
    struct golden_array want = array(&b, "", "logits"), losses = array(&b, "", "losses");
    check_logits(&b, &want, 1e-5);
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
    cr_assert_eq(array(&b, "", "norms").numel, 20);
    check_adamw_steps(&b);
    close_bench(&b);
}

Test(gpt2, same_bits_for_any_number_of_threads) {
    expect_same_for_any_threads("gpt2.bin", "", ZT_F32);
    expect_same_for_any_threads("gpt2.bin", "", ZT_BF16);
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

/* In bf16 we may not be worse than PyTorch's own bf16 module ("t:") either. */
static void check_16_and_torch(const struct bench *b, double scale) {
    check_16(b, scale);
    for (int i = 0; i < b->r.table.n_tensors && b->r.o.compute == ZT_BF16; i++) {
        const char *name = short_name(b->r.table.tensors[i].name);
        struct golden_array g = array(b, "bf16:g:", name), t = array(b, "bf16:t:", name);
        double off, norm;
        gradient_distance(b, i, &g, scale, &off, &norm);
        cr_expect_leq(off / norm, golden_f64(&t, 0), "%s is off by %.2g, PyTorch by %.2g", name,
                      off / norm, golden_f64(&t, 0));
    }
}

Test(gpt2, gradients_of_16_bit_types) {
    const enum zt_dtype types[] = {ZT_BF16, ZT_F16};
    for (int i = 0; i < 4; i++) {
        enum zt_dtype t = types[i / 2];
        struct bench b;
        open_typed(&b, 2, NULL, t, i % 2 ? ZT_F32 : t);
        check_loss_16(&b);
        check_16_and_torch(&b, 1);
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
    check_16_and_torch(&b, 1024);
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
    check_16_and_torch(&b, 1);
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
