/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_agree.c: replicas that must hold the same parameters. A flipped bit of any copy that
 * lasts is found at the next check, by rank, unit and tensor; of three and more copies the majority
 * says which one is wrong, of two both are named; nothing is found where nothing is wrong. */
#include "tests/engine/train_util.h"

TestSuite(agree, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define GPT2 "model: {family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 257, seq_len_max: 16}\n"
#define STEPS 9

static struct train_job *job(int world, const char *parallelism, const char *more, int every) {
    return train_start(
        world, train_yaml(GPT2 "dataset: {path: %s}\n"
                               "training: {steps: %d, seq_len: 16, local_batch_size: 1%s}\n"
                               "metrics: {parameter_hash_every: %d}\nparallelism: {%s}\n",
                          data_text("train.txt", 40000, 7), STEPS, more, every, parallelism));
}

struct flip {
    int world;
    const char *parallelism, *more;
    const char *point;      /* failpoint */
    int rank, step, every;  /* planted after this step on this rank */
    const char *says;       /* besides step, unit and tensor */
    int peer;               /* blamed; -1: cannot be known */
    const char *unit, *tensor;
};

#define FROZEN ", trainable: [\"*.h.1.*\"]"
#define WTE "transformer.wte.weight"
#define WPE "transformer.wpe.weight"

static const struct flip flips[] = {
    /* three replicas: whoever it is, the first one too */
    {3, "mode: ddp", "", "own", 0, 1, 1, "rank 0 holds other parameters than its replica rank 1 (2 of 3 ranks agree)", 0, "root", WTE},
    {3, "mode: ddp", "", "own", 1, 2, 3, "rank 1 holds other parameters than its replica rank 0 (2 of 3 ranks agree)", 1, "root", WTE},
    {4, "mode: ddp", "", "own", 3, 3, 5, "rank 3 holds other parameters than its replica rank 0 (3 of 4 ranks agree)", 3, "root", WTE},
    /* two: nobody can tell */
    {2, "mode: ddp", "", "own", 0, 4, 2, "rank 1 and its replica rank 0 hold different parameters", -1, "root", WTE},
    /* replicas of shards: of three, of two */
    {6, "mode: fsdp, data_parallel_replicate_degree: 3, data_parallel_shard_degree: 2", "", "own", 2, 3, 2,
     "rank 2 holds other parameters than its replica rank 0 (2 of 3 ranks agree)", 2, "root", WTE},
    {4, "mode: zero2, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2", "", "own", 2, 2, 2,
     "rank 2 and its replica rank 0 hold different parameters", -1, "root", WTE},
    /* a master beside 16-bit parameters */
    {3, "mode: ddp}\nprecision: {recipe: mixed16, reduce_dtype: fp32", "", "own", 2, 1, 4, "rank 2 holds other parameters than", 2, "root", WTE},
    /* frozen, stored whole, owned in parts, and never sent again */
    {3, "mode: zero1", FROZEN, "stored", 1, 2, 3, "rank 1 holds other parameters than the copy of rank 0 (2 of 3 ranks agree)", 1, "root", NULL},
    {3, "mode: zero2", ", lora: {rank: 2, targets: [\"*.c_attn\"]}", "stored", 0, 5, 4, "rank 0 holds other parameters than the copy of rank 1 (2 of 3 ranks agree)", 0, "root", NULL},
    {3, "mode: fsdp, persistence_threshold: 100000", FROZEN, "stored", 2, 1, 8, "rank 2 holds other parameters than the copy of rank 0 (2 of 3 ranks agree)", 2, "root", NULL},
    /* what a tensor group shares, and what it cuts */
    {4, "mode: ddp, tensor_parallel_degree: 4, sequence_parallel: true", "", "shared", 2, 2, 3,
     "rank 2 holds other parameters than its tensor group's rank 0 (3 of 4 ranks agree)", 2, "root", WPE},
    {2, "mode: ddp, tensor_parallel_degree: 2", "", "shared", 1, 1, 2, "rank 1 and its tensor group's rank 0 hold different parameters", -1, "root", WPE},
    {4, "mode: ddp, tensor_parallel_degree: 2", "", "shared", 3, 3, 2, "rank 3 holds other parameters than its replica rank 0 (3 of 4 ranks agree)", 3, "root", WPE},
    {6, "mode: ddp, tensor_parallel_degree: 2", "", "own", 3, 2, 2, "rank 3 holds other parameters than its replica rank 1 (2 of 3 ranks agree)", 3, "root", WTE},
};

/* The first check after the fault. */
static int found_in(const struct flip *f) { return (f->step + f->every - 1) / f->every * f->every; }

static void check(const struct flip *f, size_t row) {
    struct train_job *j = job(f->world, f->parallelism, f->more, f->every);
    char step[32], unit[32];
    j->fail_rank = f->rank;
    snprintf(j->fail, sizeof j->fail, "engine.flip_%s:nth=%d:error", f->point, f->step);
    snprintf(step, sizeof step, "step %d: ", found_in(f));
    snprintf(unit, sizeof unit, "unit %s,", f->unit);
    train_go(j, 0);
    for (int r = 0; r < f->world; r++) {
        const struct train_rank *k = &j->rank[r];
        cr_assert_eq(k->rc, ZT_EDIVERGED, "row %zu, rank %d: %d %s", row, r, k->rc, k->err.msg);
        cr_expect_eq(k->result.reason, ZT_REASON_REPLICA_DIVERGED);
        cr_expect_eq(k->result.peer, f->peer, "row %zu: blames %d", row, k->result.peer);
        cr_expect_eq(k->result.steps, found_in(f) - 1);
        cr_expect(strstr(k->err.msg, step) && strstr(k->err.msg, f->says) && strstr(k->err.msg, unit), "row %zu: %s",
                  row, k->err.msg);
        cr_expect(!f->tensor || strstr(k->err.msg, f->tensor), "row %zu: %s", row, k->err.msg);
    }
}

#ifdef ZT_FAILPOINTS
Test(agree, a_flipped_bit_is_found_and_named) {
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) check(&flips[i], i);
}
#endif

/* Every kind of copy there is, checked after each step. */
Test(agree, nothing_is_found_where_nothing_is_wrong) {
    static const struct { int world; const char *parallelism, *more; } clean[] = {
        {3, "mode: ddp", ""},
        {3, "mode: zero1", FROZEN},
        {3, "mode: zero2, bucket_mib: 0.02", ""},
        {3, "mode: zero1}\nprecision: {recipe: mixed16, reduce_dtype: fp32", FROZEN},
        {2, "mode: zero2}\nprecision: {recipe: pure_bf16, reduce_dtype: bf16", ""},
        {4, "mode: fsdp, data_parallel_replicate_degree: 2, persistence_threshold: 200", ", lora: {rank: 2, targets: [\"*\"]}"},
        {4, "mode: zero1, tensor_parallel_degree: 2, sequence_parallel: true", FROZEN},
        {4, "mode: ddp, tensor_parallel_degree: 2", ", lora: {rank: 2, targets: [\"*\"]}"},
        {3, "mode: zero2}\nprecision: {recipe: frozen16, reduce_dtype: fp32", ", lora: {rank: 2, targets: [\"*.c_fc\"]}"},
    };
    for (size_t i = 0; i < sizeof clean / sizeof *clean; i++) {
        struct train_job *j = job(clean[i].world, clean[i].parallelism, clean[i].more, 1);
        train_go(j, 0);
        for (int r = 0; r < clean[i].world; r++) {
            cr_assert_eq(j->rank[r].rc, 0, "row %zu: %s", i, j->rank[r].err.msg);
            cr_assert_str_eq(j->rank[r].result.parameter_hash, j->rank[0].result.parameter_hash);
        }
    }
}
