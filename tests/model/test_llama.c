/* SPDX-License-Identifier: Apache-2.0 */
/* The Llama family against fp64 PyTorch (tests/golden/gen_llama.py): grouped queries, tied and
 * untied heads, q/k/v biases, q/k norms, scaled rotary positions: logits, loss, every gradient,
 * twenty clipped AdamW steps. And what a step can add in either family, against the same:
 * documents, token weights, dropout, frozen prefixes, adapters as they merge. */
#include <criterion/criterion.h>

#include "tests/model/golden_model.h"

static const char *const models[] = {"llama:", "tied:", "qwen2:", "qwen3:", "scaled:"};
#define MODELS ((int)(sizeof models / sizeof *models))

static void open_llama(struct bench *b, const char *prefix, const struct rig_options *how) {
    open_golden(b, "llama.bin", prefix, how);
}

static const struct rig_options plain = {.threads = 2};

/* ---- the models ---- */

/* Of the formulas: embedding V C, a head of its own as much; a block has queries and output H D C
 * each, keys and values KV D C each, three matrices F C, two norms; biases (H + 2 KV) D; q and k
 * norm 2 D; one final norm. */
Test(llama, parameter_counts) {
    const int64_t V = 41, C = 24, F = 28, L = 2, norms = (2 * L + 1) * C, mlp = L * 3 * F * C;
    const int64_t want[MODELS] = {
        2 * V * C + norms + mlp + L * (2 * 4 + 2 * 2) * 6 * C,
        V * C + norms + mlp + L * (2 * 3 + 2 * 3) * 8 * C,
        V * C + norms + mlp + L * ((2 * 4 + 2 * 2) * 6 * C + (4 + 2 * 2) * 6),
        2 * V * C + norms + mlp + L * ((2 * 4 + 2 * 2) * 8 * C + 2 * 8),
        2 * V * C + norms + mlp + L * (2 * 2 + 2 * 1) * 16 * C,
    };
    for (int i = 0; i < MODELS; i++) {
        struct bench b;
        open_llama(&b, models[i], &plain);
        cr_expect_eq(b.r.table.parameters, want[i], "%s %lld", models[i],
                     (long long)b.r.table.parameters);
        close_bench(&b);
    }
}

Test(llama, logits_and_loss_of_pytorch) {
    for (int i = 0; i < MODELS; i++) {
        struct bench b;
        open_llama(&b, models[i], &plain);
        struct golden_array want = array(&b, "", "logits");
        check_logits(&b, &want, 1e-5);
        expect_loss(&b, "", rig_step(&b.r, false));
        close_bench(&b);
    }
}

Test(llama, every_gradient_of_pytorch) {
    const char *gemm[] = {"onednn", "openblas"};
    for (int i = 0; i < 2 * MODELS; i++) {
        struct bench b;
        open_llama(&b, models[i / 2], &(struct rig_options){.threads = 2, .gemm = gemm[i % 2]});
        expect_loss(&b, "", rig_step(&b.r, true));
        check_gradients(&b, 1e-5);
        close_bench(&b);
    }
}

Test(llama, twenty_adamw_steps_of_pytorch) {
    for (int i = 0; i < MODELS; i++) {
        struct bench b;
        open_llama(&b, models[i], &plain);
        cr_assert_eq(array(&b, "", "norms").numel, 20);
        check_adamw_steps(&b);
        close_bench(&b);
    }
}

Test(llama, same_bits_for_any_number_of_threads) {
    expect_same_for_any_threads("llama.bin", "llama:", ZT_F32);
    expect_same_for_any_threads("llama.bin", "qwen3:", ZT_F32);
    expect_same_for_any_threads("llama.bin", "qwen2:", ZT_BF16);
}

Test(llama, gradients_of_16_bit_types) {
    const enum zt_dtype types[] = {ZT_BF16, ZT_F16};
    for (int i = 0; i < 4; i++) {
        enum zt_dtype t = types[i / 2];
        struct bench b;
        struct rig_options how = {.threads = 2, .compute = t, .grad = i % 2 ? ZT_F32 : t};
        open_llama(&b, "llama:", &how);
        check_loss_16(&b);
        check_16(&b, 1);
        close_bench(&b);
    }
}

/* ---- documents, weights, dropout ---- */

/* One case of the golden, the batch whole and in micro-batches of one sequence. */
static void check_case(struct bench *b, const struct golden *g, const char *prefix) {
    struct golden_array want = golden_need(g, prefix, "loss");
    for (int split = 0; split < 2; split++) {
        int64_t rows = split ? 1 : b->r.o.B;
        double loss = 0;
        rig_zero_gradients(&b->r);
        for (int64_t at = 0; at < b->r.o.B; at += rows)
            loss += rig_part(&b->r, at, rows, true, false);
        cr_expect_leq(fabs(loss / golden_f64(&want, 0) - 1), 1e-6, "%sloss %.9f, PyTorch %.9f",
                      prefix, loss, golden_f64(&want, 0));
        check_gradients_of(b, g, prefix, 1e-5);
    }
}

static void add_dropout(struct rig_options *o, const struct golden *g) {
    struct golden_array d = golden_need(g, "", "dropout");
    o->dropout = golden_f64(&d, 0);
    o->seed = (uint64_t)golden_f64(&d, 1);
    o->step = (int64_t)golden_f64(&d, 2);
    o->first_sample = (int64_t)golden_f64(&d, 3);
}

Test(llama, documents_and_weights_of_pytorch) {
    struct bench b;
    open_llama(&b, "llama:", &plain);
    rig_set_weights(&b.r, &b.gold, "sample:");
    check_case(&b, &b.gold, "llama:sample:");
    rig_set_starts(&b.r, &b.gold);
    rig_set_weights(&b.r, &b.gold, "square:");
    check_case(&b, &b.gold, "llama:square:");
    close_bench(&b);
}

Test(llama, documents_of_pytorch) {
    struct bench b;
    open_llama(&b, "llama:", &plain);
    rig_set_starts(&b.r, &b.gold);
    check_case(&b, &b.gold, "llama:docs:");
    struct golden_array want = array(&b, "docs:", "logits");
    check_logits(&b, &want, 1e-5);
    close_bench(&b);
}

static void open_added(struct bench *b, struct golden *added, const char *file, const char *prefix,
                       struct rig_options how) {
    cr_assert_eq(golden_open(ZT_SOURCE_ROOT "/tests/golden/llama.bin", added), 0);
    add_dropout(&how, added);
    open_golden(b, file, prefix, &how);
}

Test(llama, dropout_of_the_same_masks_in_pytorch) {
    struct bench b;
    struct golden added;
    open_added(&b, &added, "llama.bin", "llama:", plain);
    check_case(&b, &added, "llama:dropout:");
    close_bench(&b);
    golden_close(&added);
}

static void swap_rows(int32_t *v, int64_t a, int64_t b, int64_t T) {
    for (int64_t i = 0; i < T; i++) {
        int32_t x = v[a * T + i];
        v[a * T + i] = v[b * T + i];
        v[b * T + i] = x;
    }
}

/* As ranks get them: the first and the third sequence of the step here, the second there. */
Test(llama, dropout_of_rows_that_are_not_neighbours) {
    struct bench b;
    struct golden added;
    open_added(&b, &added, "llama.bin", "llama:", plain);
    swap_rows(b.r.tokens, 1, 2, b.r.o.T);
    swap_rows(b.r.targets, 1, 2, b.r.o.T);
    b.r.o.sample_stride = 2;
    double loss = rig_part(&b.r, 0, 2, true, false);
    b.r.o.first_sample--; /* row 2 here is sequence 1 */
    loss += rig_part(&b.r, 2, 1, true, false);
    expect_loss(&b, "dropout:", loss);
    check_gradients_of(&b, &added, "llama:dropout:", 1e-5);
    close_bench(&b);
    golden_close(&added);
}

/* Whether something is saved and whether something is dropped are two questions. */
Test(llama, evaluation_drops_nothing_and_a_forward_pass_alone_does) {
    struct bench b;
    struct golden added;
    open_added(&b, &added, "llama.bin", "llama:", plain);
    const int64_t before = b.r.ledger.category_max[ZT_TAG_ACTIVATIONS]; /* rotary angles */
    expect_loss(&b, "", rig_part(&b.r, 0, b.r.o.B, false, true));
    expect_loss(&b, "dropout:", rig_part(&b.r, 0, b.r.o.B, false, false));
    cr_expect_eq(b.r.ledger.category_max[ZT_TAG_ACTIVATIONS], before, "neither saves");
    close_bench(&b);
    golden_close(&added);
}

Test(llama, gpt2_with_documents_weights_and_dropout) {
    struct bench b;
    struct golden added;
    open_added(&b, &added, "gpt2.bin", "", plain);
    rig_set_starts(&b.r, &added);
    rig_set_weights(&b.r, &added, "square:");
    check_case(&b, &added, "gpt2:all:");
    close_bench(&b);
    golden_close(&added);
}

/* ---- the same step computed in other ways ---- */

static void expect_same_gradients(const struct rig *a, const struct rig *b, const char *what) {
    for (int i = 0; i < a->table.n_tensors; i++)
        if (!a->table.tensors[i].frozen && !b->table.tensors[i].frozen)
            cr_expect_eq(memcmp(a->grad[i], b->grad[i], rig_bytes(a, i, a->o.grad)), 0, "%s: %s",
                         what, a->table.tensors[i].name);
}

/* Recomputing changes no bit, with dropout on. */
Test(llama, recomputed_blocks_have_the_same_bits) {
    const enum zt_recompute modes[] = {ZT_RECOMPUTE_SELECTIVE, ZT_RECOMPUTE_FULL};
    const char *const which[] = {"llama:", "qwen2:", "qwen3:"};
    for (int m = 0; m < 3; m++) {
        struct bench a;
        struct golden added;
        open_added(&a, &added, "llama.bin", which[m], plain);
        rig_set_starts(&a.r, &added);
        double loss = rig_step(&a.r, true);
        for (int i = 0; i < 4; i++) {
            struct bench b;
            struct rig_options how = {
                .threads = 2, .recompute = modes[i / 2], .recompute_every = 1 + i % 2};
            add_dropout(&how, &added);
            open_llama(&b, which[m], &how);
            rig_set_starts(&b.r, &added);
            cr_expect_eq(rig_step(&b.r, true), loss);
            expect_same_gradients(&a.r, &b.r, which[m]);
            close_bench(&b);
        }
        close_bench(&a);
        golden_close(&added);
    }
}

/* 57 tokens in pieces that divide them, that do not, and one that holds them all. */
Test(llama, chunked_loss_of_pytorch) {
    const int64_t chunks[] = {19, 5, 1, 64};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) {
            struct bench b;
            struct rig_options how = {.threads = 2, .chunk_tokens = chunks[i]};
            open_llama(&b, models[m], &how);
            expect_loss(&b, "", rig_step(&b.r, true));
            check_gradients(&b, 1e-5);
            expect_loss(&b, "", rig_step(&b.r, false));
            close_bench(&b);
        }
}

/* What trains has the gradients of PyTorch, and the bits it has when everything trains. */
Test(llama, frozen_prefix_has_the_same_bits) {
    static const char *const trainable[][4] = {
        {"model.layers.1.*", "model.norm.*", "lm_head.*"},
        {"model.layers.1.mlp.*", "lm_head.*"},
        {"*.down_proj.*"},
        {"*.q_proj.*", "*.v_proj.*"},
        {"*norm.weight"},
        {"model.embed_tokens.*"},
        {"lm_head.*"},
    };
    struct bench a;
    open_llama(&a, "llama:", &plain);
    double loss = rig_step(&a.r, true);
    for (size_t i = 0; i < sizeof trainable / sizeof *trainable; i++) {
        struct bench b;
        struct rig_options how = plain;
        memcpy(how.trainable, trainable[i], sizeof how.trainable);
        open_llama(&b, "llama:", &how);
        cr_expect_eq(rig_step(&b.r, true), loss);
        check_gradients(&b, 1e-5);
        expect_same_gradients(&a.r, &b.r, trainable[i][0]);
        close_bench(&b);
    }
    close_bench(&a);
}

/* A head of its own with the embedding's values: the same loss, and what was one gradient are two.
 */
static void check_untied(const char *file, const char *prefix) {
    struct bench b;
    struct rig apart;
    open_golden(&b, file, prefix, &plain);
    struct rig_options o = b.r.o;
    o.config.tied_head = false;
    rig_open(&apart, &o);
    const struct zt_model_table *t = &apart.table;
    const int whole = zt_model_find(&b.r.table, -1, ZT_ROLE_EMBEDDING, ZT_WEIGHT);
    for (int i = 0; i < t->n_tensors; i++) {
        const struct zt_tensor_def *d = &t->tensors[i];
        const int from = zt_model_find(&b.r.table, d->layer, d->role, d->piece);
        memcpy(apart.master[i], b.r.master[from < 0 ? whole : from], rig_bytes(&apart, i, ZT_F32));
    }
    rig_set_parameters(&apart);
    memcpy(apart.tokens, b.r.tokens, (size_t)(o.B * o.T) * 4);
    memcpy(apart.targets, b.r.targets, (size_t)(o.B * o.T) * 4);
    cr_expect_eq(rig_step(&apart, true), rig_step(&b.r, true), "%s: the loss", prefix);
    const int head = zt_model_find(t, -1, ZT_ROLE_HEAD, ZT_WEIGHT);
    for (int i = 0; i < t->n_tensors; i++) {
        const struct zt_tensor_def *d = &t->tensors[i];
        const int from = zt_model_find(&b.r.table, d->layer, d->role, d->piece);
        if (from >= 0 && from != whole)
            memcpy(b.r.grad[from], apart.grad[i], rig_bytes(&apart, i, ZT_F32));
    }
    float *sum = b.r.grad[whole];
    const float *embedding = apart.grad[zt_model_find(t, -1, ZT_ROLE_EMBEDDING, ZT_WEIGHT)];
    for (int64_t k = 0; k < t->tensors[head].numel; k++)
        sum[k] = embedding[k] + ((const float *)apart.grad[head])[k];
    check_gradients(&b, 1e-5);
    rig_close(&apart);
    close_bench(&b);
}

Test(llama, an_untied_heads_gradient_and_the_embeddings_are_the_tied_ones) {
    check_untied("gpt2.bin", "");
    check_untied("llama.bin", "tied:");
    check_untied("llama.bin", "qwen2:");
}

/* ---- adapters, merged ---- */

struct adapter {
    int tensor;
    int64_t out, in, rank;
    struct golden_array a, b, da, db;
};

static struct adapter adapter_of(const struct bench *b, int tensor, const char *module) {
    char name[4][128];
    for (int i = 0; i < 4; i++)
        snprintf(name[i], sizeof name[i], "lora:%c:%s.lora_%c.weight", "wg"[i / 2], module,
                 "AB"[i % 2]);
    struct adapter x = {.tensor = tensor,
                        .a = array(b, "", name[0]),
                        .b = array(b, "", name[1]),
                        .da = array(b, "", name[2]),
                        .db = array(b, "", name[3])};
    x.rank = x.a.dim[0];
    x.in = x.a.dim[1];
    x.out = x.b.dim[0];
    cr_assert_eq(x.b.dim[1], x.rank);
    return x;
}

/* W += s B A */
static void merge(struct rig *r, const struct adapter *x, double s) {
    for (int64_t o = 0; o < x->out; o++)
        for (int64_t i = 0; i < x->in; i++) {
            double sum = 0;
            for (int64_t k = 0; k < x->rank; k++)
                sum += golden_f64(&x->b, o * x->rank + k) * golden_f64(&x->a, k * x->in + i);
            float *w = &r->master[x->tensor][o * x->in + i];
            *w = (float)((double)*w + s * sum);
        }
}

/* The merged weight's gradient dW gives the adapters': dA = s B^T dW, dB = s dW A^T. */
static void check_adapter(const struct bench *b, const struct adapter *x, double s) {
    double diff = 0, ref = 0;
    for (int64_t k = 0; k < x->rank; k++) {
        for (int64_t i = 0; i < x->in; i++) {
            double sum = 0, want = golden_f64(&x->da, k * x->in + i);
            for (int64_t o = 0; o < x->out; o++)
                sum += golden_f64(&x->b, o * x->rank + k) *
                       rig_at(b->r.grad[x->tensor], ZT_F32, o * x->in + i);
            diff += pow(s * sum - want, 2);
            ref += want * want;
        }
        for (int64_t o = 0; o < x->out; o++) {
            double sum = 0, want = golden_f64(&x->db, o * x->rank + k);
            for (int64_t i = 0; i < x->in; i++)
                sum += rig_at(b->r.grad[x->tensor], ZT_F32, o * x->in + i) *
                       golden_f64(&x->a, k * x->in + i);
            diff += pow(s * sum - want, 2);
            ref += want * want;
        }
    }
    cr_expect_leq(sqrt(diff / ref), 1e-5, "%s: %g", b->r.table.tensors[x->tensor].name,
                  sqrt(diff / ref));
}

Test(llama, merged_adapters_of_pytorch) {
    static const char *const targets[] = {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"};
    const enum zt_role role[] = {ZT_ROLE_Q, ZT_ROLE_V, ZT_ROLE_DOWN};
    struct bench b;
    struct adapter x[6];
    open_llama(&b, "llama:", &plain);
    struct golden_array real = array(&b, "lora:", "real"), want = array(&b, "lora:", "logits");
    double s = golden_f64(&real, 1) / golden_f64(&real, 0);
    for (int i = 0; i < 6; i++) {
        char module[64];
        snprintf(module, sizeof module, "layers.%d.%s", i / 3, targets[i % 3]);
        int tensor = zt_model_find(&b.r.table, i / 3, role[i % 3], ZT_WEIGHT);
        cr_assert_geq(tensor, 0);
        x[i] = adapter_of(&b, tensor, module);
        merge(&b.r, &x[i], s);
    }
    rig_set_parameters(&b.r);
    check_logits(&b, &want, 1e-5);
    expect_loss(&b, "lora:", rig_step(&b.r, true));
    for (int i = 0; i < 6; i++) check_adapter(&b, &x[i], s);
    close_bench(&b);
}

/* ---- adapters ---- */

static void open_adapters(struct bench *b, const struct rig_options *more) {
    struct rig_options how = *more;
    struct golden g;
    const char *const targets[] = {"*.q_proj", "*.v_proj", "*.down_proj"};
    cr_assert_eq(golden_open(ZT_SOURCE_ROOT "/tests/golden/llama.bin", &g), 0);
    struct golden_array real = golden_need(&g, "llama:lora:", "real");
    memcpy(how.lora, targets, sizeof targets);
    how.threads = 2;
    how.lora_rank = (int64_t)golden_f64(&real, 0);
    how.lora_scale = golden_f64(&real, 1) / golden_f64(&real, 0);
    golden_close(&g);
    open_llama(b, "llama:", &how);
}

/* Their gradients are PyTorch's, the base has none; whatever is recomputed, the bits are the same.
 */
Test(llama, adapters_of_pytorch) {
    struct bench plain_bench;
    open_adapters(&plain_bench, &plain);
    struct golden_array logits = array(&plain_bench, "lora:", "logits");
    check_logits(&plain_bench, &logits, 1e-5);
    for (int mode = ZT_RECOMPUTE_NONE; mode <= ZT_RECOMPUTE_FULL; mode++) {
        struct bench b;
        int adapters = 0;
        open_adapters(&b, &(struct rig_options){.recompute = (enum zt_recompute)mode});
        b.r.full_gradients = true;
        expect_loss(&b, "lora:", rig_step(&b.r, true));
        rig_step(&plain_bench.r, true);
        expect_same_gradients(&plain_bench.r, &b.r, "recomputed");
        rig_zero_gradients(&plain_bench.r);
        for (int i = 0; i < b.r.table.n_tensors; i++) {
            const struct zt_tensor_def *d = &b.r.table.tensors[i];
            for (int64_t k = 0; d->frozen && k < d->numel; k++)
                cr_assert_eq(rig_at(b.r.grad[i], ZT_F32, k), 0, "%s", d->name);
            if (d->frozen) continue;
            struct golden_array want = array(&b, "lora:g:", short_name(d->name));
            double diff, norm;
            gradient_distance(&b, i, &want, 1, &diff, &norm);
            cr_expect_leq(diff / norm, 1e-5, "%s: %g", d->name, diff / norm);
            adapters++;
        }
        cr_expect_eq(adapters, 2 * 3 * 2);
        close_bench(&b);
    }
    close_bench(&plain_bench);
}
