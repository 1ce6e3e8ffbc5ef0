/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_tensor_train.c: tensor parallelism through the whole trainer, as a run file
 * asks for it: the vocabulary's padding does not count, reports of all ranks agree, its group's
 * collectives are seen as such, a divergence inside a group is found, evaluation and masked
 * control sums count a tensor group's data once. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/engine/train_util.h"

TestSuite(tensor_train, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define T 32

static struct train_job *run(int world, const char *model, int steps, int batch,
                             const char *parallelism, const char *more) {
    return train_ok(world,
                    train_yaml("model: {%s, seq_len_max: %d}\ndataset: {path: %s, shuffle: false}\n"
                               "training: {steps: %d, seq_len: %d, local_batch_size: %d}\n"
                               "optimizer: {lr: 1.0e-3}\nmetrics: {parameter_hash_every: 1}\n"
                               "parallelism: {%s}\n%s",
                               model, T, data_text("train.txt", 40000, 7), steps, T, batch,
                               parallelism, more));
}

static const char *const groups[] = {
    "mode: ddp, tensor_parallel_degree: 2",
    "mode: ddp, tensor_parallel_degree: 2, sequence_parallel: true",
    "mode: fsdp, tensor_parallel_degree: 4, sequence_parallel: true",
    "mode: zero2, tensor_parallel_degree: 4",
};

/* B15: 257 is prime. Rows of padding that took part in the softmax would show in the first loss by
 * ln 258 - ln 257 = 0.004; it is one rank's within 1e-5. */
Test(tensor_train, padding_of_a_prime_vocabulary_does_not_count) {
    static const char *const models[] = {
        "family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 257",
        "family: llama, layers: 2, heads: 4, kv_heads: 4, dim: 32, ffn_dim: 72, vocab_size: 257"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct train_job *one = run(1, models[m], 20, 4, "mode: ddp", "");
        /* at the start a logit of a normed row has deviation s = 0.02 sqrt(32): s^2 / 2 is added on
         * average, and the mean over 128 targets is within four of its own deviations */
        double s2 = 0.02 * 0.02 * 32, near = s2 / 2 + 4 * sqrt(s2 / 128);
        cr_assert_float_eq(one->rank[0].report[1].loss, log(257), near, "%g",
                           one->rank[0].report[1].loss);
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            int t = strstr(groups[g], ": 4") ? 4 : 2;
            struct train_job *j = run(t, models[m], 20, 4, groups[g], "");
            for (int s = 1; s <= 20; s++) {
                double x = j->rank[0].report[s].loss, y = one->rank[0].report[s].loss;
                cr_assert_float_eq(x, y, s == 1 ? 1e-5 : 1e-3, "%s, step %d: %.9g, not %.9g",
                                   groups[g], s, x, y);
                for (int r = 1; r < t; r++) {
                    cr_assert_eq(j->rank[r].report[s].loss, x);
                    cr_assert_eq(j->rank[r].report[s].local_loss, j->rank[0].report[s].local_loss);
                    cr_assert_eq(j->rank[r].report[s].grad_norm, j->rank[0].report[s].grad_norm);
                    cr_assert_str_eq(j->rank[r].report[s].parameter_hash,
                                     j->rank[0].report[s].parameter_hash);
                }
                cr_assert_eq(j->rank[0].report[s].global_batch, 4, "one group's data count once");
            }
        }
    }
}

/* Data ranks beside tensor ranks: counts, batches and evaluation are those of the data ranks. */
Test(tensor_train, mesh_of_all_axes) {
    static const char *const model = "family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 256";
    char valid[600];
    snprintf(valid, sizeof valid, "validation: {path: %s, every_steps: 2}\n",
             data_text("valid.txt", 7 * T + 1, 11));
    struct train_job *four = run(4, model, 6, 2,
                                 "mode: fsdp, data_parallel_replicate_degree: 2, "
                                 "data_parallel_shard_degree: 2",
                                 valid),
                     *j = run(8, model, 6, 2,
                              "mode: fsdp, data_parallel_replicate_degree: 2, "
                              "data_parallel_shard_degree: 2, tensor_parallel_degree: 2, "
                              "sequence_parallel: true",
                              valid);
    for (int s = 1; s <= 6; s++) {
        const struct zt_step_report *a = &four->rank[0].report[s], *b = &j->rank[0].report[s];
        cr_assert_eq(a->global_batch, b->global_batch);
        cr_assert_float_eq(a->loss, b->loss, 1e-5 * a->loss, "step %d", s);
        cr_assert_float_eq(a->grad_norm, b->grad_norm, 1e-4 * a->grad_norm);
        if (s % 2) continue;
        cr_assert_eq(a->eval_rows, b->eval_rows);
        cr_assert_eq(a->eval_tokens, b->eval_tokens);
        cr_assert_float_eq(a->eval_loss, b->eval_loss, 1e-5 * a->eval_loss);
    }
}

/* The group's traffic is a group of its own in what a step exposes, and in what it sends; computing
 * and waiting add up to the step. */
Test(tensor_train, its_collectives_are_told_apart) {
    struct train_job *j =
        run(2, "family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 256", 4, 2,
            "mode: ddp, tensor_parallel_degree: 2, sequence_parallel: true", "");
    for (int r = 0; r < 2; r++)
        for (int s = 1; s <= 4; s++) {
            const struct zt_step_report *x = &j->rank[r].report[s];
            double by = 0;
            for (int i = 0; i < x->exposed.n_by; i++)
                by += !strcmp(x->exposed.by[i].group, "tensor") ? x->exposed.by[i].seconds : 0;
            cr_assert_gt(by, 0);
            cr_assert_float_eq(by, x->exposed.exposed_comm_seconds, 1e-9, "nothing else travels");
            cr_assert_float_eq(x->exposed.compute_seconds + x->exposed.exposed_comm_seconds +
                                   x->exposed.idle_seconds,
                               x->step_seconds, 1e-6);
            cr_assert_gt(x->sent_bytes, 0);
            cr_assert_eq(x->sent_bytes, j->rank[0].report[1].sent_bytes);
        }
}

/* ---- what must be found ---- */

/* One bit of a norm weight, which both ranks hold, and then of an element that only one has. */
static int diverged_rank(int rank, int world, void *arg) {
    struct train_job *j = arg;
    struct train_self self = {j, rank};
    struct zt_error e = {0};
    struct zt_hash128 h;
    struct zt_spec s;
    struct zt_train_hooks hooks = {.arg = &self, .comm_id = hook_comm_id};
    EXPECT(zt_spec_parse(j->yaml, strlen(j->yaml), "t.yaml", NULL, 0, &s, &e) == 0, "%s", e.msg);
    EXPECT(zt_spec_resolve(&s, world, "t.yaml", &e) == 0, "%s", e.msg);
    struct zt_train_config c = {.spec = &s,
                                .rank = rank,
                                .world = world,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .threads = 1,
                                .capacity_bytes = (int64_t)64 << 20};
    struct zt_trainer t = {.config = &c, .hooks = &hooks, .spec = &s};
    EXPECT(zt_trainer_open(&t, &e) == 0, "%s", e.msg);
    EXPECT(zt_trainer_check_hash(&t, &h, &e) == 0, "%s", e.msg);
    int norm = t.table.units[2].first_tensor;
    EXPECT(t.table.tensors[norm].tp_dim < 0, "%s", t.table.tensors[norm].name);
    uint32_t *bits = (uint32_t *)(uintptr_t)zt_runtime_parameter(t.runtime, norm);
    if (rank == 1) bits[7] ^= 1;
    EXPECT(zt_trainer_check_hash(&t, &h, &e) == ZT_EDIVERGED, "not found");
    EXPECT(strstr(e.msg, "rank 1") && strstr(e.msg, "tensor group") &&
               strstr(e.msg, t.table.tensors[norm].name),
           "%s", e.msg);
    zt_trainer_close(&t, false);
    zt_spec_free(&s);
    return 0;
}

Test(tensor_train, a_flipped_bit_of_what_a_group_shares_is_found) {
    struct train_job *j = train_start(
        2, train_yaml("model: {family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 256, "
                      "seq_len_max: %d}\ndataset: {path: %s}\n"
                      "training: {steps: 2, seq_len: %d, local_batch_size: 1}\n"
                      "parallelism: {tensor_parallel_degree: 2}\n",
                      T, data_text("train.txt", 40000, 7), T));
    cr_assert_eq(ranks_run(2, 60, diverged_rank, j, NULL), 0);
}
