/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_plan.c: the planner at its edges: runs of any length and size, of which it
 * simulates a part; what it must refuse; what is told of one step alone. Expected are formulas, or
 * the plan of a run that is simulated whole. Every test ends by itself: one that would simulate all
 * of what it is given does not, and fails at its time limit. */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan/plan.h"

TestSuite(plan, .timeout = 120);

static struct zt_cost_device a_device(void) {
    struct zt_cost_device d = {.name = "test",
                               .memory_bytes = INT64_C(1) << 40,
                               .memory_bytes_per_second = 1e9,
                               .within = {100, 1e9, 0},
                               .across = {1000, 1e8, 0}};
    d.flops[ZT_COST_GEMM][ZT_F32] = 1e9;
    return d;
}

static char yaml[4096];
static void file(const char *model, const char *training, const char *more, ...)
    __attribute__((format(printf, 3, 4)));
static void file(const char *model, const char *training, const char *more, ...) {
    va_list ap;
    int n = snprintf(yaml, sizeof yaml,
                     "version: 1\nname: t\nmodel: {%s}\ndataset: {path: /x, tokenizer: none}\n"
                     "training: {%s}\n",
                     model, training);
    va_start(ap, more);
    vsnprintf(yaml + n, sizeof yaml - (size_t)n, more, ap);
    va_end(ap);
}

/* Plans `yaml` on so many ranks; NULL and *e where it is refused. c->device: else a_device(). */
static struct zt_plan *try_plan(int ranks, const struct zt_plan_config *like, struct zt_error *e) {
    static struct zt_spec s;
    static struct zt_cost_device any;
    struct zt_plan_config c = *like;
    struct zt_plan *p = NULL;
    any = a_device();
    int rc = zt_spec_parse(yaml, strlen(yaml), "t.yaml", NULL, 0, &s, e);
    cr_assert_eq(rc, 0, "%s\n%s", yaml, e->msg);
    rc = zt_spec_resolve_up_to(&s, ranks, ZT_PLAN_RANKS_MAX, "t.yaml", e);
    cr_assert_eq(rc, 0, "%s\n%s", yaml, e->msg);
    c.spec = &s;
    if (!c.device) c.device = &any;
    rc = zt_plan_make(&c, &p, e);
    cr_assert_eq(rc == 0, p != NULL);
    zt_spec_free(&s);
    return p;
}

static struct zt_plan *plan_of(int ranks, const struct zt_plan_config *c) {
    struct zt_error e = {0};
    struct zt_plan *p = try_plan(ranks, c, &e);
    cr_assert(p, "%s\n%s", yaml, e.msg);
    return p;
}

static const struct zt_plan_config plain = {.valid_samples = -1};
#define NANO "preset: gpt2-nano"
#define SMALL "steps: 20, seq_len: 64, local_batch_size: 2"

static void same_window(const struct zt_plan *a, const struct zt_plan *b, int w) {
    const struct zt_window_peak *x = &a->shape[0].window[w], *y = &b->shape[0].window[w];
    cr_assert(a->shape[0].occurs[w] && b->shape[0].occurs[w]);
    cr_assert_eq(x->peak_allocated_bytes, y->peak_allocated_bytes);
    cr_assert_eq(x->peak_reserved_bytes, y->peak_reserved_bytes);
    cr_assert_eq(x->phase_of_peak, y->phase_of_peak);
    cr_assert_arr_eq(x->at_peak, y->at_peak, sizeof x->at_peak);
}

/* A warm-up of a million million steps, and one that the run does not outlast. */
Test(plan, any_number_of_steps) {
    file(NANO, SMALL, "metrics: {warmup_steps: 3}\n");
    struct zt_plan *whole = plan_of(2, &plain);
    file(NANO, "steps: 1000000000000, seq_len: 64, local_batch_size: 2",
         "metrics: {warmup_steps: 999999999999}\n");
    struct zt_plan *longest = plan_of(2, &plain);
    same_window(whole, longest, ZT_WINDOW_STEADY);
    same_window(whole, longest, ZT_WINDOW_FIRST_STEP);
    cr_assert_eq(longest->total_steps, 1000000000000);
    zt_plan_free(longest);
    const char *lengths[] = {"steps: 30, seq_len: 64, local_batch_size: 2",
                             "steps: 7, seq_len: 64, local_batch_size: 2",
                             "steps: 17, seq_len: 64, local_batch_size: 2"};
    for (int i = 0; i < 3; i++) {
        file(NANO, lengths[i], "metrics: {warmup_steps: 30}\n");
        struct zt_plan *p = plan_of(2, &plain);
        cr_assert(!p->shape[0].occurs[ZT_WINDOW_STEADY], "%s", lengths[i]);
        same_window(whole, p, ZT_WINDOW_FIRST_STEP);
        zt_plan_free(p);
    }
    file(NANO, "steps: 31, seq_len: 64, local_batch_size: 2", "metrics: {warmup_steps: 30}\n");
    struct zt_plan *p = plan_of(2, &plain);
    same_window(whole, p, ZT_WINDOW_STEADY);
    zt_plan_free(p);
    zt_plan_free(whole);
}

/* One step is the first, and with warmup_steps 0 the steady one; its curve begins with it, when
 * what initialisation made is there. */
Test(plan, a_single_step) {
    struct zt_plan_config c = plain;
    c.details = true;
    file(NANO, "steps: 1, seq_len: 64, local_batch_size: 2", "metrics: {warmup_steps: 0}\n");
    struct zt_plan *p = plan_of(2, &c);
    same_window(p, p, ZT_WINDOW_INIT);
    cr_assert(p->shape[0].occurs[ZT_WINDOW_FIRST_STEP] && p->shape[0].occurs[ZT_WINDOW_STEADY]);
    cr_assert_eq(p->shape[0].window[ZT_WINDOW_FIRST_STEP].peak_allocated_bytes,
                 p->shape[0].window[ZT_WINDOW_STEADY].peak_allocated_bytes);
    cr_assert_gt(p->n_curve, 0);
    int64_t highest = 0;
    for (size_t i = 0; i < p->n_curve; i++) {
        const struct zt_plan_point *k = &p->curve[i];
        int64_t live = 0;
        for (int t = 0; t < ZT_TAG_COUNT; t++) live += k->by_tag[t];
        cr_assert_geq(k->at_ns, 0, "point %zu: \"%s\" at %lld ns", i, k->what, (long long)k->at_ns);
        cr_assert_geq(k->by_tag[ZT_TAG_OPTIMIZER], p->persistent.optimizer);
        if (live > highest) highest = live;
    }
    cr_assert_eq(highest, p->shape[0].window[ZT_WINDOW_FIRST_STEP].peak_allocated_bytes);
    zt_plan_free(p);
}

/* An evaluation that comes once, at the end of a long run, and one by epochs of unknown length. */
Test(plan, evaluation_at_the_end) {
    file(NANO, SMALL, "validation: {path: /y, every_steps: 5}\n");
    struct zt_plan *often = plan_of(2, &plain);
    file(NANO, "steps: 100000, seq_len: 64, local_batch_size: 2",
         "validation: {path: /y, every_steps: 100000}\n");
    struct zt_plan *once = plan_of(2, &plain);
    same_window(often, once, ZT_WINDOW_EVAL);
    zt_plan_free(once);
    file(NANO, "epochs: 3, seq_len: 64, local_batch_size: 2", "validation: {path: /y}\n");
    struct zt_plan *epochs = plan_of(2, &plain);
    same_window(often, epochs, ZT_WINDOW_EVAL);
    cr_assert(epochs->total_steps == 0 && epochs->total_tokens == 0);
    zt_plan_free(epochs);
    zt_plan_free(often);
}

/* 3 ranks x 2 rows: of 900,000,000,000,007 samples whole batches for all, then a row for rank 0
 * alone (mod 6 is 1): two shapes, as with 7, 19 or 31. */
Test(plan, any_number_of_samples) {
    int64_t n[] = {19, 31, INT64_C(900000000000007)};
    struct zt_plan *p[3];
    file(NANO, SMALL, "validation: {path: /y, every_steps: 5}\n");
    for (int i = 0; i < 3; i++) {
        struct zt_plan_config c = {.valid_samples = n[i]};
        p[i] = plan_of(3, &c);
        cr_assert_eq(p[i]->n_shapes, 2);
        cr_assert(p[i]->shape[0].dp_to == 1 && p[i]->shape[1].dp_from == 1);
        same_window(p[0], p[i], ZT_WINDOW_EVAL);
    }
    for (int i = 0; i < 3; i++) zt_plan_free(p[i]);
    /* so many batches and no more: no tail, one shape */
    file(NANO, SMALL, "validation: {path: /y, every_steps: 5, steps: 1000000000}\n");
    struct zt_plan_config c = {.valid_samples = n[2]};
    struct zt_plan *q = plan_of(3, &c);
    cr_assert_eq(q->n_shapes, 1);
    zt_plan_free(q);
}

static struct zt_plan *of_micros(const char *mode, int64_t k, const struct zt_plan_config *c) {
    char training[160];
    snprintf(training, sizeof training, SMALL ", global_batch_size: %lld", (long long)(8 * k));
    file(NANO, training, "parallelism: {mode: %s}\n", mode);
    return plan_of(4, c);
}

static int64_t sent_by_rows(const struct zt_plan *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_traffic; i++)
        if (!p->traffic[i].control) sum += p->traffic[i].sent_bytes;
    return sum;
}

/* Micro-steps are alike from the second on: the bytes and the sends of any number follow from a few
 * that are simulated whole. zero3 gathers and reduces in every one, zero1 reduces once. */
Test(plan, any_number_of_micro_steps) {
    static const char *const modes[] = {"zero3", "zero1"};
    const struct zt_plan_config told = {.valid_samples = -1, .details = true};
    for (int m = 0; m < 2; m++) {
        struct zt_plan *p1 = of_micros(modes[m], 1, &plain), *p9 = of_micros(modes[m], 9, &told);
        struct zt_plan *p10 = of_micros(modes[m], 10, &plain);
        struct zt_plan *p11 = of_micros(modes[m], 11, &plain);
        struct zt_plan *many = of_micros(modes[m], 5000, &told);
        cr_assert(p11->micro_steps_simulated == 11 && many->micro_steps_simulated == 16);
        cr_assert_eq(many->accumulation, 5000);
        for (int w = ZT_WINDOW_INIT; w <= ZT_WINDOW_STEADY; w++) same_window(p9, many, w);
        cr_assert_eq(many->sent_bytes, m == 0 ? 5000 * p1->sent_bytes : p1->sent_bytes);
        /* the rows of traffic hold every micro-step too: they sum to what is sent */
        cr_assert_eq(sent_by_rows(many), many->sent_bytes);
        cr_assert_eq(sent_by_rows(p9), p9->sent_bytes);
        double one = p11->step_seconds - p10->step_seconds;
        cr_assert_float_eq(one, p10->step_seconds - p9->step_seconds, 1e-6 * one);
        cr_assert_float_eq(many->step_seconds, p11->step_seconds + 4989 * one,
                           1e-6 * many->step_seconds);
        cr_assert_float_eq(many->exposed.compute_seconds + many->exposed.exposed_comm_seconds +
                               many->exposed.idle_seconds,
                           many->step_seconds, 1e-6 * many->step_seconds);
        cr_assert_float_eq(many->tokens_per_second * many->step_seconds,
                           (double)many->tokens_per_step, 1);
        struct zt_plan *all[] = {p1, p9, p10, p11, many};
        for (int i = 0; i < 5; i++) zt_plan_free(all[i]);
    }
    file(NANO,
         "steps: 1000000000000, seq_len: 64, local_batch_size: 1, "
         "global_batch_size: 2147483647",
         "\n");
    struct zt_plan *p = plan_of(1, &plain);
    cr_assert_eq(p->accumulation, 2147483647);
    cr_assert_eq(p->tokens_per_step, INT64_C(2147483647) * 64);
    cr_assert_eq(p->total_tokens, 0, "1.4e23 fit no int64: not told, never wrong");
    zt_plan_free(p);
}

/* A slower rank among many micro-steps: the others still take as long as it does. */
Test(plan, a_straggler_with_many_micro_steps) {
    struct zt_plan_config w = plain, s = plain;
    w.straggler = s.straggler = 2;
    s.on_straggler = true;
    struct zt_plan *waits = of_micros("zero3", 100, &w), *slow = of_micros("zero3", 100, &s);
    cr_assert_float_eq(waits->step_seconds, slow->step_seconds, 0.02 * slow->step_seconds);
    zt_plan_free(waits);
    zt_plan_free(slow);
}

/* A limit in the file binds neither what is found beside it nor the slow rank's run. */
Test(plan, a_limit_that_is_too_small) {
    file(NANO, SMALL, "\n");
    struct zt_plan *free_of_it = plan_of(2, &plain);
    for (int slow = 0; slow < 2; slow++) {
        struct zt_plan_config c = plain;
        c.straggler = slow ? 3 : 0;
        file(NANO, SMALL, "memory: {limit_gib: 0.01}\n");
        struct zt_plan *p = plan_of(2, &c);
        cr_assert(!p->fits && p->oom.request > 0 && p->capacity_bytes == 10737418);
        cr_assert_eq(p->peak_allocated_bytes, free_of_it->peak_allocated_bytes);
        cr_assert_eq(p->peak_reserved_bytes, free_of_it->peak_reserved_bytes);
        zt_plan_free(p);
    }
    zt_plan_free(free_of_it);
}

static void refused(int ranks, const struct zt_plan_config *c, const char *word) {
    struct zt_error e = {0};
    cr_assert_null(try_plan(ranks, c, &e), "%s", yaml);
    cr_assert(strstr(e.msg, word), "\"%s\" is not in: %s", word, e.msg);
}

/* Larger than anything: refused in words that name it, never a wrap-around. */
Test(plan, absurd_sizes) {
    file("family: gpt2, layers: 1024, heads: 1024, dim: 1048576, ffn_dim: 4194304, "
         "vocab_size: 16777216, seq_len_max: 16777216",
         "steps: 5, seq_len: 1, local_batch_size: 1", "\n");
    refused(1, &plain, "32 PiB");
    file("family: gpt2, layers: 1, heads: 16, dim: 16, ffn_dim: 16, vocab_size: 16777216, "
         "seq_len_max: 16777216",
         "steps: 5, seq_len: 16777216, local_batch_size: 1048576", "\n");
    refused(1, &plain, "does not fit an address space"); /* logits: 2^68 elements */
    file("family: gpt2, layers: 1, heads: 16, dim: 16, ffn_dim: 16, vocab_size: 16777216, "
         "seq_len_max: 16777216",
         "steps: 5, seq_len: 16777216, local_batch_size: 4096", "\n");
    refused(1, &plain, "32 PiB"); /* 2^60 elements */
    file(NANO, SMALL, "\n");
    struct zt_cost_device none = a_device(), slow = a_device();
    struct zt_plan_config c = plain;
    none.outside_bytes = none.memory_bytes + 1;
    c.device = &none;
    refused(1, &c, "nothing is left");
    slow.memory_bytes_per_second = 1e-3;
    c.device = &slow;
    refused(2, &c, "a hundred years");
    slow = a_device();
    slow.within.alpha_ns = INT64_MAX / 8;
    refused(2, &c, "a hundred years");
}

/* 65,536 ranks: shards by the formula of docs/memory.md, 16 S elements each group. */
Test(plan, as_many_ranks_as_there_may_be) {
    file(NANO, "steps: 20, seq_len: 64, local_batch_size: 1", "parallelism: {mode: zero3}\n");
    struct zt_plan *p = plan_of(65536, &plain);
    /* root 66,048, blocks 198,272 elements: less than 16 x 65,536, so 16 elements of each on every
     * rank, rounded up to 512 bytes a buffer: 5 groups; m and v are two. */
    cr_assert_eq(p->persistent.parameters, 5 * 512);
    cr_assert_eq(p->persistent.gradients, 5 * 512);
    cr_assert_eq(p->persistent.optimizer, 2 * 5 * 512);
    cr_assert(p->world == 65536 && p->global_batch == 65536);
    zt_plan_free(p);
}

/* One bias of 128 elements: a gradient, m and v of 512 bytes each, whatever else there is. */
Test(plan, everything_frozen_but_one_tensor) {
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3"};
    for (int m = 0; m < 4; m++) {
        file(NANO, SMALL ", trainable: [\"transformer.h.3.ln_1.bias\"]",
             "parallelism: {mode: %s}\n", modes[m]);
        struct zt_plan *p = plan_of(2, &plain);
        cr_assert_eq(p->trainable, 128);
        cr_assert_eq(p->persistent.gradients, 512, "%s", modes[m]);
        cr_assert_eq(p->persistent.optimizer, 2 * 512);
        cr_assert(p->n_units == 5 && p->units[4].trainable == 128 && p->units[1].trainable == 0);
        zt_plan_free(p);
    }
}

/* The allocator's own options, tight: planned twice alike; max_split_size keeps more reserved or as
 * much, and neither option touches what is handed out. */
Test(plan, options_of_the_allocator) {
    file(NANO, "steps: 20, seq_len: 256, local_batch_size: 16", "\n");
    struct zt_plan *p = plan_of(2, &plain);
    struct zt_plan_config tight = plain;
    tight.capacity_bytes = p->peak_reserved_bytes + p->peak_reserved_bytes / 16;
    static const char *const options[] = {"max_split_size_mib: 21", "gc_threshold: 0.5",
                                          "max_split_size_mib: 24, gc_threshold: 0.9"};
    for (int i = 0; i < 3; i++) {
        file(NANO, "steps: 20, seq_len: 256, local_batch_size: 16", "memory: {%s}\n", options[i]);
        struct zt_plan *a = plan_of(2, &tight), *b = plan_of(2, &tight);
        for (int w = ZT_WINDOW_INIT; w <= ZT_WINDOW_STEADY; w++) same_window(a, b, w);
        cr_assert_eq(a->peak_allocated_bytes, p->peak_allocated_bytes, "%s", options[i]);
        zt_plan_free(a);
        zt_plan_free(b);
    }
    zt_plan_free(p);
}
