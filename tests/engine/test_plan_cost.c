/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_plan_cost.c: what planning itself costs, by counts: GPT-3 175B as fsdp on 1,024
 * ranks asks as much of the simulated allocator as on 8, and a plan fits a small machine, also one
 * of Llama 3 405B on 16,384 ranks. Seconds are bench/plan_speed.c's. */
#include <criterion/criterion.h>
#include <sys/resource.h>

#include "engine/plan/plan.h"
#include "tests/engine/ranks.h"

#if defined(__SANITIZE_ADDRESS__)
#define RESIDENT_IS_OURS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RESIDENT_IS_OURS 0
#endif
#endif
#ifndef RESIDENT_IS_OURS
#define RESIDENT_IS_OURS 1 /* else of the sanitizer's shadow */
#endif
#define RESIDENT_KIB (200 << 10)

static const struct zt_cost_device device = {.name = "test",
                                             .queued = true,
                                             .memory_bytes = (int64_t)80 << 30,
                                             .launch_ns = 3000,
                                             .host_ns = 3000,
                                             .memory_bytes_per_second = 1.6e12,
                                             .flops = {[ZT_COST_GEMM] = {[ZT_BF16] = 2.4e14}},
                                             .ranks_per_host = 8,
                                             .within = {10000, 2e11, 0},
                                             .across = {20000, 2.5e10, 0}};

static const char gpt3[] =
    "version: 1\nname: gpt3\nmodel: {family: gpt2, layers: 96, dim: 12288, heads: 96, "
    "vocab_size: 50257, seq_len_max: 2048}\ndataset: {path: /nowhere, tokenizer: none}\n"
    "training: {steps: 1000, seq_len: 2048, local_batch_size: 1}\n"
    "precision: {recipe: mixed16, reduce_dtype: fp32}\nparallelism: {mode: fsdp}\n";
static const char llama405[] =
    "version: 1\nname: llama\nmodel: {preset: llama3-405b}\n"
    "dataset: {path: /nowhere, tokenizer: none}\n"
    "training: {steps: 1000, seq_len: 8192, local_batch_size: 1}\n"
    "precision: {recipe: fsdp_mixed, reduce_dtype: fp32}\nparallelism: {mode: fsdp, "
    "data_parallel_replicate_degree: 16, data_parallel_shard_degree: 128, "
    "tensor_parallel_degree: 8, sequence_parallel: true}\nactivation_checkpoint: {mode: full}\n";

struct cost {
    const char *yaml;
    int64_t blocks, segments, collectives, per_step_bytes, parameters;
    long resident_kib;
};

static void count(void *arg, const struct zt_alloc_event *e) {
    struct cost *c = arg;
    ++*(e->action == ZT_ALLOC_SEGMENT || e->action == ZT_FREE_SEGMENT ? &c->segments : &c->blocks);
}

/* In a process of its own: its resident memory is the plan's. */
static int plan_in_child(int rank, int world, void *arg) {
    struct cost *c = arg;
    struct zt_spec spec;
    struct zt_plan *p = NULL;
    struct zt_error err;
    struct rusage use;
    int ranks = (int)c->collectives;
    (void)rank;
    (void)world;
    EXPECT(zt_spec_parse(c->yaml, strlen(c->yaml), "cost.yaml", NULL, 0, &spec, &err) == 0, "%s",
           err.msg);
    EXPECT(zt_spec_resolve_up_to(&spec, ranks, ZT_PLAN_RANKS_MAX, "cost.yaml", &err) == 0, "%s",
           err.msg);
    struct zt_plan_config pc = {.spec = &spec,
                                .device = &device,
                                .capacity_bytes = (int64_t)1 << 50, /* one that fits is run once */
                                .valid_samples = -1,
                                .details = true,
                                .watch = {count, c}};
    EXPECT(zt_plan_make(&pc, &p, &err) == 0, "%s", err.msg);
    c->collectives = p->n_collectives;
    c->parameters = p->parameters;
    zt_plan_free(p);
    zt_spec_free(&spec);
    getrusage(RUSAGE_SELF, &use);
    c->resident_kib = use.ru_maxrss;
    return 0;
}

static struct cost cost_of(const char *yaml, int ranks) {
    struct cost *c = ranks_map(sizeof *c);
    c->yaml = yaml;
    c->collectives = ranks;
    cr_assert_eq(ranks_run(1, 120, plan_in_child, c, NULL), 0);
    return *c;
}

Test(plan_cost, does_not_grow_with_the_ranks, .timeout = 300) {
    struct cost few = cost_of(gpt3, 8), many = cost_of(gpt3, 1024);
    /* 12 h^2 + 13 h a block, embeddings, final norm (sharding by 12 h^2 + 13 h of GPT-2's table) */
    int64_t h = 12288;
    cr_assert_eq(many.parameters, 96 * (12 * h * h + 13 * h) + (50257 + 2048) * h + 2 * h);
    cr_assert_eq(many.collectives, few.collectives);
    /* forward 96 + 1 gathers, backward 95 (the last is still there), 97 reductions, and 2 of
     * control */
    cr_assert_gt(many.collectives, 96 + 95 + 97);
    cr_assert_lt(many.collectives, 96 + 96 + 97 + 16);
    cr_assert_eq(many.blocks, few.blocks);
    cr_assert_gt(many.blocks, 96 * 2 * 20);
    cr_assert_lt(many.blocks, 400000, "%lld calls", (long long)many.blocks);
    if (RESIDENT_IS_OURS)
        cr_assert_lt(many.resident_kib, RESIDENT_KIB, "%ld KiB resident", many.resident_kib);
}

/* 16 replicas of 128 shards of 8 tensor ranks: as many calls as a step of 126 blocks has, whatever
 * the ranks. */
Test(plan_cost, llama_405b_on_16384_ranks, .timeout = 300) {
    struct cost c = cost_of(llama405, 16384);
    cr_assert_eq(c.parameters, INT64_C(405853388800));
    cr_assert_gt(c.blocks, 126 * 2 * 20);
    cr_assert_lt(c.blocks, 400000, "%lld calls", (long long)c.blocks);
    if (RESIDENT_IS_OURS)
        cr_assert_lt(c.resident_kib, RESIDENT_KIB, "%ld KiB resident", c.resident_kib);
}
