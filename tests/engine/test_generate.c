/* SPDX-License-Identifier: Apache-2.0 */
/* Going on with a text: greedily as PyTorch in fp64 does (tests/golden/gen_hf.py), by chance with the exact
 * probabilities; the memory it says is the memory it takes; adapters beside the model are what they merge to. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/checkpoint/hf_export.h"
#include "engine/generate.h"
#include "tests/engine/ckpt_made.h"
#include "tests/golden/golden.h"

static void must(int rc, const struct zt_error *e) { cr_assert_eq(rc, 0, "%d: %s", rc, e->msg); }

static struct golden_array need(const struct golden *g, const char *folder, const char *what) {
    char name[64];
    struct golden_array a;
    snprintf(name, sizeof name, "%s:%s", folder, what);
    cr_assert_eq(golden_find(g, name, &a), 0, "%s", name);
    return a;
}

Test(generate, greedily_as_pytorch) {
    const char *const folders[] = {"gpt2", "llama", "qwen2", "qwen3"};
    struct golden g;
    cr_assert_eq(golden_open(golden_folder("expected.bin"), &g), 0);
    for (int i = 0; i < 4; i++) {
        struct golden_array prompt = need(&g, folders[i], "prompt"), want = need(&g, folders[i], "greedy");
        struct zt_error e = {0};
        struct zt_weights w;
        struct zt_generator *s = NULL;
        int32_t tokens[64], expected[64];
        int64_t n = prompt.numel;
        cr_assert(prompt.dtype == 'i' && want.dtype == 'i');
        memcpy(tokens, prompt.data, (size_t)n * 4);
        memcpy(expected, want.data, (size_t)want.numel * 4);
        must(zt_weights_open(NULL, golden_folder(folders[i]), NULL, &w, &e), &e);
        must(zt_generator_open(&w, &zt_kernels_cpu, 1 + i % 2, n + want.numel, &s, &e), &e);
        for (int64_t k = 0; k < want.numel; k++) {
            const struct zt_pick pick = {0};
            const float *logits;
            must(zt_generator_logits(s, tokens, n, &logits, &e), &e);
            tokens[n] = zt_pick_token(&pick, logits, w.model.vocab_size, n, NULL);
            cr_assert_eq(tokens[n], expected[k], "%s: token %lld", folders[i], (long long)k);
            n++;
        }
        const float *logits;
        tokens[0] = (int32_t)w.model.vocab_size;
        cr_expect_eq(zt_generator_logits(s, tokens, 1, &logits, &e), ZT_EINVAL);
        cr_expect_eq(zt_generator_logits(s, tokens, n + 1, &logits, &e), ZT_EINVAL);
        zt_generator_close(s);
        zt_weights_close(&w);
    }
    golden_close(&g);
}

Test(generate, a_text_longer_than_the_model_is_refused) {
    struct zt_error e = {0};
    struct zt_weights w;
    struct zt_generator *s = NULL;
    must(zt_weights_open(NULL, golden_folder("gpt2"), NULL, &w, &e), &e);
    cr_expect_eq(zt_generator_open(&w, &zt_kernels_cpu, 1, 25, &s, &e), ZT_EINVAL);
    cr_expect_not_null(strstr(e.msg, "seq_len_max 24"));
    must(zt_generator_open(&w, &zt_kernels_cpu, 1, 24, &s, &e), &e);
    zt_generator_close(s);
    zt_weights_close(&w);
}

/* Of a model whose parameters are most of it: at least those, and not much more. */
Test(generate, says_how_much_memory_it_takes) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error e = {0};
    int64_t bytes = 0, longer = 0;
    must(zt_model_preset("gpt2-124m", &c, &e), &e);
    must(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &e), &e);
    must(zt_generator_bytes(&t, 0, 16, &bytes, &e), &e);
    must(zt_generator_bytes(&t, 0, 1024, &longer, &e), &e);
    cr_expect_geq(bytes, 4 * 124439808LL);
    cr_expect_leq(bytes, 4 * 124439808LL + (64LL << 20) + 2 * 4 * 16 * 50257);
    cr_expect_geq(longer, bytes + 2 * 4 * 1008LL * 50257); /* the model's logits and the copy of them */
    zt_model_table_free(&t);
}

/* ---- chance ---- */

#define V 12
#define DRAWS 400000
static const float logits[V] = {0.5f, -1.0f, 2.0f, 2.0f, -30.0f, 1.25f, 0.0f, 0.5f, -2.5f, 1.0f, 0.75f, -0.25f};

/* Of the K largest, equal ones by the lower id. */
static void exact(double temperature, int K, double p[V]) {
    double sum = 0;
    for (int i = 0; i < V; i++) {
        int before = 0;
        for (int j = 0; j < V; j++) before += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        p[i] = before < K ? exp((double)logits[i] / temperature) : 0;
        sum += p[i];
    }
    for (int i = 0; i < V; i++) p[i] /= sum;
}

/* Counts of independent draws lie within five standard deviations (a chance of 6e-7 each, and the draws are
 * always the same), what has no probability never comes. */
static void check_distribution(double temperature, int K, uint64_t seed) {
    const struct zt_pick pick = {temperature, K == V ? 0 : K, seed};
    int64_t count[V] = {0};
    double p[V], scratch[V];
    exact(temperature, K, p);
    for (int64_t i = 0; i < DRAWS; i++) count[zt_pick_token(&pick, logits, V, i, scratch)]++;
    for (int i = 0; i < V; i++) {
        const double off = fabs((double)count[i] - DRAWS * p[i]);
        cr_expect_leq(off, 5 * sqrt(DRAWS * p[i] * (1 - p[i])), "T %g, K %d: token %d %lld times, expected %.1f", temperature, K,
                      i, (long long)count[i], DRAWS * p[i]);
    }
}

Test(generate, draws_have_the_exact_probabilities) {
    check_distribution(1.0, V, 0);
    check_distribution(0.5, V, 1);
    check_distribution(2.0, V, 2);
    check_distribution(1.0, 3, 3); /* the two equal largest and one more */
    check_distribution(1.0, 5, 4); /* of 0.5 twice only the lower id, behind 2, 2, 1.25, 1 */
    check_distribution(0.7, 6, 5);
}

Test(generate, the_same_seed_and_position_draw_the_same) {
    double scratch[V];
    int same = 0, seeds = 0;
    for (int64_t i = 0; i < 1000; i++) {
        const struct zt_pick a = {1.0, 0, 7}, b = {1.0, 0, 8};
        const int32_t t = zt_pick_token(&a, logits, V, i, scratch);
        cr_assert_eq(zt_pick_token(&a, logits, V, i, scratch), t);
        same += zt_pick_token(&a, logits, V, i + 1, scratch) == t;
        seeds += zt_pick_token(&b, logits, V, i, scratch) == t;
    }
    /* sum of p squared is 0.19 */
    cr_expect(same < 300 && seeds < 300, "%d %d", same, seeds);
}

Test(generate, edges) {
    double scratch[V];
    const struct zt_pick greedy = {0, 0, 0}, one = {1.0, 1, 0}, more = {1.0, 100, 0}, cold = {1e-6, 0, 0};
    float broken[V], huge[V];
    cr_expect_eq(zt_pick_token(&greedy, logits, V, 0, NULL), 2); /* of the equal ones the lower id */
    cr_expect_eq(zt_pick_token(&one, logits, V, 0, scratch), 2);
    cr_expect_neq(zt_pick_token(&more, logits, V, 0, scratch), -1);
    for (int i = 0; i < 100; i++) {
        const int32_t t = zt_pick_token(&cold, logits, V, i, scratch);
        cr_expect(t == 2 || t == 3);
    }
    memcpy(broken, logits, sizeof broken);
    broken[5] = NAN;
    cr_expect_eq(zt_pick_token(&greedy, broken, V, 0, scratch), -1);
    broken[5] = INFINITY;
    cr_expect_eq(zt_pick_token(&one, broken, V, 0, scratch), -1);
    for (int i = 0; i < V; i++) huge[i] = i == 9 ? 3e38f : -3e38f;
    cr_expect_eq(zt_pick_token(&more, huge, V, 0, scratch), 9);
}

/* ---- adapters ---- */

Test(generate, adapters_are_what_they_merge_to) {
    char root[128], hf[160];
    struct zt_error e = {0};
    struct zt_weights a, b;
    struct zt_hf_exported done;
    struct zt_generator *x = NULL, *y = NULL;
    const struct made m = {"model: {family: gpt2, layers: 2, heads: 4, dim: 32, vocab_size: 256, seq_len_max: 64}\n"
                           "dataset: {path: x}\ntraining: {steps: 10, seq_len: 16, local_batch_size: 4, lora: {rank: 3, alpha: 60, "
                           "targets: [\"*.c_attn\", \"*.c_fc\"]}}\n", MADE_ROWS, 1, false, false};
    const int32_t tokens[5] = {7, 200, 3, 99, 42};
    const float *p, *q;
    new_folder(root);
    snprintf(hf, sizeof hf, "%s/merged", root);
    made_write(&m, root);
    must(zt_weights_open(NULL, root, NULL, &a, &e), &e);
    cr_assert_eq(a.lora_scale, 20.0);
    struct zt_hf_export ex = {.from = &a, .folder = hf, .type = ZT_F32, .merge = true};
    must(zt_hf_export(&ex, &done, &e), &e);
    must(zt_weights_open(NULL, hf, NULL, &b, &e), &e);
    must(zt_generator_open(&a, &zt_kernels_cpu, 1, 5, &x, &e), &e);
    must(zt_generator_open(&b, &zt_kernels_cpu, 1, 5, &y, &e), &e);
    must(zt_generator_logits(x, tokens, 5, &p, &e), &e);
    must(zt_generator_logits(y, tokens, 5, &q, &e), &e);
    double size = 0;
    for (int i = 0; i < 256; i++) {
        cr_expect_leq(fabs((double)p[i] - (double)q[i]), 1e-5, "%d: %g and %g", i, (double)p[i], (double)q[i]);
        size = fmax(size, fabs((double)p[i]));
    }
    cr_expect_gt(size, 0.05);
    zt_generator_close(x);
    zt_generator_close(y);
    zt_weights_close(&a);
    zt_weights_close(&b);
    remove_folder(root);
}
