/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_precision_train.c: recipes in whole runs of zt_train: what a report says is
 * kept, which formats are really there, the loss scaler over ranks, steps that are skipped. */
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(precision_train, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define MODEL "model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 2, seq_len_max: 32}\n"
#define T 16
#define NONE (-1)

static const char *text(void) { return data_text("train.txt", 40000, 7); }

static struct train_job *start(int world, const char *recipe, const char *reduce, const char *mode,
                               int steps, const char *more) {
    return train_start(world,
                       train_yaml(MODEL "dataset: {path: %s}\n"
                                        "training: {steps: %d, seq_len: %d, local_batch_size: 2}\n"
                                        "precision: {recipe: %s, reduce_dtype: %s}\n"
                                        "parallelism: {mode: %s}\n%s",
                                  text(), steps, T, recipe, reduce, mode, more));
}

static void finish(struct train_job *j) {
    train_go(j, 0);
    for (int r = 0; r < j->world; r++)
        cr_assert_eq(j->rank[r].rc, 0, "rank %d: %s", r, j->rank[r].err.msg);
}

/* ---- formats ---- */

/* By hand, from the meaning of each recipe, at two ranks: configured, stored, used. In autocast the
 * kernels' operands are a copy of their own; elsewhere they are what is gathered. What zero1 and
 * zero2 gather goes right into the stored parameters. */
#define F ZT_F32
#define B ZT_BF16
#define H ZT_F16
static const struct {
    const char *recipe, *reduce, *mode;
    struct {
        int configured, stored, used;
    } row[ZT_ROW_COUNT];
} formats[] = {
    /* parameter, gathered, compute, activation, gradient, reduce, own, master, m, v */
    {"fp32",
     "fp32",
     "ddp",
     {{F, F, F},
      {F, NONE, NONE},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"fp32",
     "fp32",
     "fsdp",
     {{F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"fsdp_mixed",
     "fp32",
     "fsdp",
     {{F, F, F},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {F, F, F},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"fsdp_mixed",
     "bf16",
     "zero3",
     {{F, F, F},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"autocast",
     "fp32",
     "ddp",
     {{F, F, F},
      {F, NONE, NONE},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"mixed16",
     "bf16",
     "zero1",
     {{B, B, B},
      {B, NONE, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {F, F, F},
      {F, F, F}}},
    {"mixed16",
     "fp32",
     "zero2",
     {{B, B, B},
      {B, NONE, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {B, B, B},
      {F, F, F},
      {F, F, F},
      {F, F, F}}},
    {"mixed16_g32",
     "fp32",
     "zero2",
     {{B, B, B},
      {B, NONE, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F},
      {F, F, F}}},
    {"mixed16_nomaster",
     "fp32",
     "ddp",
     {{B, B, B},
      {B, NONE, NONE},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {F, F, F},
      {B, B, B},
      {NONE, NONE, NONE},
      {F, F, F},
      {F, F, F}}},
    {"pure_bf16",
     "bf16",
     "fsdp",
     {{B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {B, B, B},
      {NONE, NONE, NONE},
      {B, B, B},
      {B, B, B}}},
    {"fp16",
     "fp16",
     "zero3",
     {{H, H, H},
      {H, H, H},
      {H, H, H},
      {H, H, H},
      {H, H, H},
      {H, H, H},
      {H, H, H},
      {F, F, F},
      {F, F, F},
      {F, F, F}}},
};
#undef F
#undef B
#undef H

static void expect_formats(const struct train_rank *k, size_t i) {
    const struct zt_dtypes_report *d = &k->dtypes;
    cr_assert_eq(k->n_dtypes, 1, "told once");
    cr_assert_eq(d->step, 1);
    cr_assert_str_eq(d->recipe, formats[i].recipe);
    cr_assert_gt(strlen(d->compute), 0);
    cr_assert_gt(strlen(d->kernels), 0);
    cr_assert_eq(d->row[ZT_ROW_FROZEN].configured, formats[i].row[ZT_ROW_PARAMETER].configured);
    cr_assert(d->row[ZT_ROW_FROZEN].stored < 0 && d->row[ZT_ROW_FROZEN].used < 0, "nothing is frozen");
    for (int r = 0; r < ZT_ROW_FROZEN; r++) {
        const char *name = zt_dtype_row_name((enum zt_dtype_row)r);
        cr_assert_eq(d->row[r].configured, formats[i].row[r].configured, "%s %s: %s configured %d",
                     d->recipe, formats[i].mode, name, d->row[r].configured);
        cr_assert_eq(d->row[r].stored, formats[i].row[r].stored, "%s %s: %s stored %d", d->recipe,
                     formats[i].mode, name, d->row[r].stored);
        cr_assert_eq(d->row[r].used, formats[i].row[r].used, "%s %s: %s used %d", d->recipe,
                     formats[i].mode, name, d->row[r].used);
    }
}

/* Six steps of every recipe: formats, bytes against the formula, equal hashes on all ranks, the
 * loss falls, nothing is skipped and no event is told. */
Test(precision_train, recipes_are_what_they_say) {
    struct zt_model_config mc;
    struct zt_model_table table;
    cr_assert_eq(zt_model_preset("gpt2-nano", &mc, NULL), 0);
    mc.layers = 2, mc.dim = 32, mc.heads = 2, mc.kv_heads = 2, mc.head_dim = 16, mc.ffn_dim = 128;
    mc.seq_len_max = 32;
    cr_assert_eq(zt_model_table_build(&mc, ZT_WRAP_BLOCK, 1, &table, NULL), 0);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct train_job *j = start(2, formats[i].recipe, formats[i].reduce, formats[i].mode, 6,
                                    "optimizer: {lr: 1.0e-2}\n");
        finish(j);
        enum zt_mode mode = ZT_DDP;
        while (strcmp(zt_mode_name(mode), formats[i].mode)) mode++;
        struct zt_state_bytes want = zt_state_formula(&table, mode, mode == ZT_DDP ? 1 : 2,
                                                      zt_recipe_find(formats[i].recipe));
        for (int r = 0; r < 2; r++) {
            const struct zt_step_report *p = &j->rank[r].report[6];
            expect_formats(&j->rank[r], i);
            cr_assert_eq(p->persistent_parameters, want.parameters, "%s", formats[i].recipe);
            cr_assert_eq(p->persistent_gradients, want.gradients, "%s", formats[i].recipe);
            cr_assert_eq(p->persistent_optimizer, want.optimizer, "%s", formats[i].recipe);
            cr_assert_str_eq(p->parameter_hash, j->rank[0].report[6].parameter_hash);
            cr_assert_lt(p->loss, j->rank[r].report[1].loss - 0.5, "%s: %g", formats[i].recipe,
                         p->loss);
            cr_assert_eq(p->skipped_steps, 0);
            cr_assert_eq(isnan(p->loss_scale), strcmp(formats[i].recipe, "fp16") != 0);
            cr_assert_eq(j->rank[r].n_events, 0, "%s", j->rank[r].event[0].message);
            cr_assert_float_eq(p->clip_coefficient, fmin(1, 1 / (p->grad_norm + 1e-6)), 1e-15);
            cr_assert_eq(p->nonfinite_gradients, 0);
        }
        munmap(j, sizeof *j);
    }
    zt_model_table_free(&table);
}

/* ---- what is not finite ---- */

#ifdef ZT_FAILPOINTS
#define IN_STEP_3                                                                                  \
    8 /* three groups are reduced a step: block 1, then this one: block 0, the root                \
       */

static void expect_skip(const char *recipe, const char *mode) {
    bool scaled = !strcmp(recipe, "fp16");
    struct train_job *j = start(2, recipe, scaled ? "fp16" : "fp32", mode, 6,
                                "optimizer: {lr: 1.0e-3}\nlr_scheduler: {warmup_steps: 6}\n");
    j->fail_rank = 1;
    snprintf(j->fail, sizeof j->fail, "engine.infinity:nth=%d:error", IN_STEP_3);
    finish(j);
    for (int r = 0; r < 2; r++) {
        const struct zt_step_report *s = j->rank[r].report;
        for (int k = 1; k <= 6; k++) {
            int done = k <= 3 ? k : k - 1; /* updates up to this one */
            cr_assert_eq(s[k].skipped, k == 3, "%s %s rank %d step %d", recipe, mode, r, k);
            cr_assert_eq(s[k].skipped_steps, k >= 3);
            cr_assert_float_eq(s[k].lr, 1e-3 * done / 6, 1e-12, "the schedule waits too: %g",
                               s[k].lr);
            if (scaled)
                cr_assert_eq(s[k].loss_scale, k <= 3 ? 65536 : 32768, "rank %d step %d: %g", r, k,
                             s[k].loss_scale);
            cr_assert_eq(isnan(s[k].grad_norm), k == 3);
            cr_assert_eq(isnan(s[k].clip_coefficient), k == 3);
            cr_assert(isfinite(s[k].loss));
        }
        cr_assert_str_eq(s[6].parameter_hash, j->rank[0].report[6].parameter_hash);
        cr_assert_eq(j->rank[r].n_events, r == 0, "told by rank 0, once");
    }
    cr_assert_str_eq(j->rank[0].event[0].kind, "STEP_SKIPPED");
    cr_assert_eq(strstr(j->rank[0].event[0].message, "loss scale 65536, next 32768") != NULL,
                 scaled, "%s", j->rank[0].event[0].message);
    munmap(j, sizeof *j);
}

/* An infinity on one rank only, in step 3: all ranks skip it, the scale halves everywhere. */
Test(precision_train, one_ranks_infinity_skips_the_step_on_all) {
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};
    for (int m = 0; m < 5; m++) expect_skip("fp16", modes[m]);
    expect_skip("fp32, nonfinite: skip", "ddp");
    expect_skip("pure_bf16, nonfinite: skip", "fsdp");
}

/* Without it the run ends, on every rank, with the tensor's name; parameters as they were. */
Test(precision_train, one_ranks_infinity_ends_the_run) {
    static const char *const modes[] = {"ddp", "zero2", "fsdp"};
    for (int m = 0; m < 3; m++) {
        struct train_job *j = start(2, "mixed16", "fp32", modes[m], 6, "");
        j->fail_rank = 1;
        snprintf(j->fail, sizeof j->fail, "engine.infinity:nth=%d:error", IN_STEP_3);
        train_go(j, 0);
        for (int r = 0; r < 2; r++) {
            cr_assert_eq(j->rank[r].rc, ZT_ENAN, "rank %d: %s", r, j->rank[r].err.msg);
            cr_assert_eq(j->rank[r].result.reason, ZT_REASON_NAN_LOSS);
            cr_assert_eq(j->rank[r].result.steps, 2);
            cr_assert(strstr(j->rank[r].err.msg, "transformer.h.0.ln_1.weight"), "%s",
                      j->rank[r].err.msg);
        }
        munmap(j, sizeof *j);
    }
}

/* An infinity in every step: the scale comes down to 1 in sixteen steps, the seventeenth ends the
 * run, as no scale can help; a policy of skip goes on. */
Test(precision_train, a_scale_of_one_is_the_end_of_excuses) {
    for (int skip = 0; skip < 2; skip++) {
        struct train_job *j =
            start(1, skip ? "fp16, nonfinite: skip" : "fp16", "fp16", "ddp", 20, "");
        snprintf(j->fail, sizeof j->fail, "engine.infinity:error");
        train_go(j, 0);
        const struct train_rank *k = &j->rank[0];
        cr_assert_eq(k->rc, skip ? 0 : ZT_ENAN, "%s", k->err.msg);
        cr_assert_eq(k->result.steps, skip ? 20 : 16);
        cr_assert_eq(k->report[16].loss_scale, 2);
        cr_assert_eq(k->report[k->result.steps].skipped_steps, k->result.steps);
        cr_assert_eq(k->n_dtypes, 0, "nothing was ever stepped");
        if (skip) cr_assert_eq(k->report[20].loss_scale, 0.125);
        cr_assert_eq(k->n_events, 5, "told at 1, 2, 4, 8 and 16");
        munmap(j, sizeof *j);
    }
}

/* The other rule: the first overflow only uses up the hysteresis. */
Test(precision_train, deepspeeds_scaler) {
    struct train_job *j = start(1, "fp16, scaler: deepspeed", "fp16", "ddp", 20, "");
    snprintf(j->fail, sizeof j->fail, "engine.infinity:error");
    train_go(j, 0);
    const struct train_rank *k = &j->rank[0];
    for (int s = 1; s <= 17; s++)
        cr_assert_eq(k->report[s].loss_scale, s == 1 ? 65536 : ldexp(65536, 2 - s), "step %d: %g",
                     s, k->report[s].loss_scale);
    cr_assert_eq(k->rc, ZT_ENAN, "%s", k->err.msg);
    cr_assert_eq(k->result.steps, 17);
    munmap(j, sizeof *j);
}
#endif

/* The loss itself: one step of an absurd length, then every loss is NaN. It does not carry the loss
 * scale, so the scaler is no excuse. */
Test(precision_train, a_loss_that_is_not_finite) {
    for (int skip = 0; skip < 2; skip++) {
        struct train_job *j = start(2, skip ? "fp16, nonfinite: skip" : "fp16", "fp32", "ddp", 4,
                                    "optimizer: {lr: 1.0e+9, max_norm: 0}\n");
        train_go(j, 0);
        for (int r = 0; r < 2; r++) {
            cr_assert_eq(j->rank[r].rc, skip ? 0 : ZT_ENAN, "%s", j->rank[r].err.msg);
            cr_assert_eq(j->rank[r].result.steps, skip ? 4 : 1);
            if (!skip) continue;
            cr_assert_eq(j->rank[r].report[4].skipped_steps, 3);
            cr_assert(!isfinite(j->rank[r].report[4].loss));
        }
        munmap(j, sizeof *j);
    }
}
