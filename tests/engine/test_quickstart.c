/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_quickstart.c: a whole run on checked-in text against a PyTorch fp64 script that
 * shares no code with it (tests/golden/gen_quickstart.py): first weights, order of samples, windows
 * and their short tail, schedule, clip, AdamW's decay groups, evaluation on the held-out tail. */
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(quickstart, .timeout = 200);

/* The generator's class Config, in our words. */
static const char *run_file(void) {
    return train_yaml(
        "model: {family: gpt2, layers: 2, heads: 3, dim: 48, vocab_size: 256, seq_len_max: 40}\n"
        "dataset: {path: %s/quickstart_text.txt, seed: 7}\n"
        "validation: {fraction: 0.1, every_steps: 10}\n"
        "training: {epochs: 2, seq_len: 37, local_batch_size: 3, global_batch_size: 12,"
        " seed: 8589934683}\n"
        "optimizer: {lr: 3.0e-3, beta1: 0.9, beta2: 0.95, eps: 1.0e-8, weight_decay: 0.1,"
        " max_norm: 0.5}\n"
        "lr_scheduler: {warmup_steps: 4, decay_type: cosine, min_lr_factor: 0.1}\n",
        ZT_GOLDEN_DIR);
}

/* Losses of the first 20 steps agree to 1e-5. After that fp32's rounding, which AdamW makes bigger
 * where a gradient is near zero, is let grow. */
static double tolerance(int step) { return step <= 20 ? 1e-5 : 1e-4; }

static void check_train(const struct zt_step_report *r, char *rest) {
    long sequences = strtol(rest, &rest, 10);
    double lr = strtod(rest, &rest), norm = strtod(rest, &rest), loss = strtod(rest, &rest);
    int step = (int)r->step;
    cr_assert_eq(r->global_batch, sequences, "step %d", step);
    cr_assert_float_eq(r->lr, lr, 1e-14 * lr, "step %d: lr %.17g, not %.17g", step, r->lr, lr);
    cr_assert_float_eq(r->loss, loss, tolerance(step) * loss, "step %d: loss %.9g, not %.9g", step,
                       r->loss, loss);
    cr_assert_float_eq(r->grad_norm, norm, 10 * tolerance(step) * norm, "step %d: norm %.9g %.9g",
                       step, r->grad_norm, norm);
}

static void check_eval(const struct zt_step_report *r, char *rest) {
    long rows = strtol(rest, &rest, 10), tokens = strtol(rest, &rest, 10);
    double loss = strtod(rest, &rest);
    cr_assert_eq(r->eval_rows, rows);
    cr_assert_eq(r->eval_tokens, tokens);
    cr_assert_float_eq(r->eval_loss, loss, tolerance((int)r->step) * loss,
                       "step %d: eval %.9g %.9g", (int)r->step, r->eval_loss, loss);
}

static void compare(int world) {
    struct train_job *j = train_ok(world, run_file());
    FILE *f = fopen(ZT_GOLDEN_DIR "/quickstart_losses.txt", "r");
    char line[512];
    int trained = 0, evaluated = 0;
    cr_assert(f);
    while (fgets(line, sizeof line, f)) {
        int step = 0, at = 0;
        bool train = sscanf(line, "train %d%n", &step, &at) == 1;
        if (!train && sscanf(line, "eval %d%n", &step, &at) != 1) continue;
        cr_assert(step >= 1 && step <= TRAIN_STEPS_MAX);
        const struct zt_step_report *r = &j->rank[0].report[step];
        cr_assert_eq(r->step, step);
        if (train)
            check_train(r, line + at);
        else
            check_eval(r, line + at);
        *(train ? &trained : &evaluated) += 1;
    }
    fclose(f);
    cr_assert_eq(j->rank[0].result.steps, trained);
    cr_assert_eq(trained, 30);
    cr_assert_eq(evaluated, 3);
}

Test(quickstart, one_rank_trains_like_pytorch) { compare(1); }
Test(quickstart, two_ranks_train_like_pytorch) { compare(2); }
