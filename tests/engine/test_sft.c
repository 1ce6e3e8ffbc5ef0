/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_sft.c: training on .jsonl examples of uneven length: losses and gradients by
 * the three averages do not depend on ranks and micro-batches, weigh as documented, in evaluation
 * too; documents do not see each other. */
#include <math.h>

#include "tests/engine/train_util.h"

TestSuite(sft, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define MODEL "model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 2, seq_len_max: 512}\n"
static const char *const averages[] = {"token", "sample", "square"};

/* n lines: prompts of 1 to 40 letters, completions of 1 to 60. */
static const char *examples(const char *name, int n) {
    const char *path = data_path(name);
    FILE *f = fopen(path, "w");
    if (!f) abort();
    for (int i = 0; i < n; i++) {
        fputs("{\"prompt\": \"", f);
        for (int k = 0; k < 1 + i * 7 % 40; k++) fputc('a' + (i + k * 3) % 26, f);
        fputs("\", \"completion\": \"", f);
        for (int k = 0; k < 1 + i * 11 % 60; k++) fputc('A' + (i + k) % 26, f);
        fputs("\"}\n", f);
    }
    if (fclose(f) != 0) abort();
    return path;
}

Test(sft, worlds_and_micro_batches_agree_by_every_average) {
    static const int split[][2] = {{1, 8}, {2, 4}, {4, 2}, {1, 2}, {2, 1}};
    const char *path = examples("train.jsonl", 200);
    for (int a = 0; a < 3; a++) {
        struct train_job *one = NULL;
        for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
            struct train_job *j = train_ok(
                split[i][0],
                train_yaml(MODEL "dataset: {path: %s, seed: 3, document_masks: %s}\n"
                                 "training: {steps: 4, seq_len: 96, local_batch_size: %d, "
                                 "global_batch_size: 8}\nloss: {average: %s}\n"
                                 "optimizer: {lr: 1.0e-3}\nmetrics: {parameter_hash_every: 1}\n",
                           path, a ? "true" : "false", split[i][1], averages[a]));
            if (!one) one = j;
            for (int s = 1; s <= 4; s++) {
                const struct zt_step_report *o = &one->rank[0].report[s];
                int64_t supervised = 0, padding = 0;
                for (int r = 0; r < split[i][0]; r++) {
                    const struct zt_step_report *q = &j->rank[r].report[s];
                    cr_assert_float_eq(q->loss, o->loss, 1e-6 * o->loss, "%s %d x %d step %d",
                                       averages[a], split[i][0], split[i][1], s);
                    cr_assert_str_eq(q->parameter_hash, j->rank[0].report[s].parameter_hash);
                    cr_assert_eq(q->tokens_input, 8 * 96 / split[i][0]);
                    supervised += q->tokens_supervised;
                    padding += q->tokens_padding;
                }
                cr_assert_eq(supervised, o->tokens_supervised);
                cr_assert_eq(padding, o->tokens_padding);
                cr_assert(supervised < 8 * 96 / 2 + 100 && padding > 0);
            }
            cr_assert_float_eq(j->rank[0].report[1].grad_norm, one->rank[0].report[1].grad_norm,
                               1e-6 * one->rank[0].report[1].grad_norm);
        }
    }
}

/* ---- gradients ---- */

#define OK(call) EXPECT((call) == 0, "%s", e.msg)
#define GRADIENT_MOST 65536
struct gradient_job {
    struct ranks_shared shared;
    char yaml[1024];
    int64_t from, to; /* samples of the window, over all ranks, that are as if all prompt */
    double loss;
    int64_t n;
    float at[GRADIENT_MOST];
};

static int take_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    return ranks_exchange(&((struct gradient_job *)arg)->shared, rank, id, err);
}

/* As if samples [from, to) of the window were prompts alone. */
static void mask_rows(struct zt_trainer *t, int64_t from, int64_t to) {
    struct zt_window *w = &t->window;
    int64_t T = w->seq_len, at = 0;
    for (int64_t m = 0; m < w->micros; m++)
        for (int64_t r = 0; r < w->rows[m]; r++, at++) {
            struct zt_row row = zt_row_at(&w->all, (m * w->capacity_rows + r) * T);
            int64_t sample = at * t->dp_size + t->dp_index;
            if (sample < from || sample >= to) continue;
            for (int64_t k = 0; k < T; k++) {
                w->valid_tokens -= row.targets[k] != -1;
                row.targets[k] = -1;
                if (row.weights) row.weights[k] = 0;
            }
        }
    if (!w->all.weights) return;
    zt_fixsum_zero(&w->weight);
    for (int64_t m = 0; m < w->micros; m++)
        zt_fixsum_add_floats(&w->weight, w->all.weights + m * w->capacity_rows * T,
                             (size_t)(w->rows[m] * T));
}

/* Forward and backward of the first window. */
static int window_gradient(struct zt_trainer *t, struct gradient_job *j, struct zt_error *e) {
    const struct zt_spec *s = t->spec;
    struct zt_unit_source source = zt_runtime_source(t->runtime);
    struct zt_window *w = &t->window;
    struct zt_window_total total;
    struct zt_fixsum loss;
    struct zt_stream *compute = zt_device_compute(t->device);
    struct zt_coll_why why = {"", "test", 1, true};
    int64_t valid = 0, before = 0;
    int rc = 0;
    zt_fixsum_zero(&loss);
    TRY(zt_window_load(w, t->loader, s->training.local_batch_size, s->training.seq_len, e));
    mask_rows(t, j->from, j->to);
    TRY(zt_window_total(w, true, t->control, compute, 1, &total, e));
    TRY(zt_runtime_window_begin(t->runtime, 1, e));
    for (int64_t m = 0; m < w->micros; m++) {
        struct zt_row from = zt_row_at(&w->all, m * w->capacity_rows * w->seq_len);
        struct zt_batch b;
        TRY(zt_trainer_feed(t, &from, w->rows[m], before, &b, e));
        before += w->rows[m];
        TRY(zt_runtime_micro_begin(t->runtime, m, m == w->micros - 1, e));
        TRY(zt_model_step(t->model, &source, &b, (float)(1 / total.weight), true, false, &loss,
                          &valid, e));
    }
    TRY(zt_runtime_wait_gradients(t->runtime, e));
    TRY(zt_all_reduce(t->control, loss.word, ZT_FIXSUM_WORDS, ZT_I64, ZT_SUM, compute, &why, e));
    zt_fixsum_normalise(&loss);
    j->loss = zt_fixsum_value(&loss) / total.weight;
    for (int i = 0; i < t->table.n_tensors && t->config->rank == 0; i++) {
        size_t n = (size_t)t->table.tensors[i].numel;
        EXPECT(j->n + (int64_t)n <= GRADIENT_MOST, "more gradients than there is room for");
        memcpy(j->at + j->n, zt_runtime_gradient(t->runtime, i), n * sizeof *j->at);
        j->n += (int64_t)n;
    }
out:
    return rc;
}

static int gradient_rank(int rank, int world, void *arg) {
    struct gradient_job *j = arg;
    struct zt_spec spec;
    struct zt_error e = {0};
    OK(zt_spec_parse(j->yaml, strlen(j->yaml), "t.yaml", NULL, 0, &spec, &e));
    OK(zt_spec_resolve(&spec, world, "t.yaml", &e));
    struct zt_train_config c = {.spec = &spec,
                                .rank = rank,
                                .local_rank = rank,
                                .world = world,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .threads = 1,
                                .capacity_bytes = (int64_t)64 << 20};
    struct zt_train_hooks h = {.arg = j, .comm_id = take_id};
    struct zt_trainer t = {.config = &c, .hooks = &h, .spec = &spec};
    OK(zt_trainer_open(&t, &e));
    OK(window_gradient(&t, j, &e));
    zt_trainer_close(&t, false);
    zt_spec_free(&spec);
    return 0;
}

static struct gradient_job *gradient(int world, int local, int global, const char *path,
                                     const char *average, int64_t from, int64_t to) {
    struct gradient_job *j = ranks_map(sizeof *j);
    snprintf(j->yaml, sizeof j->yaml,
             "version: 1\nname: t\n" MODEL "dataset: {path: %s, shuffle: false}\n"
             "training: {steps: 1, seq_len: 320, local_batch_size: %d, global_batch_size: %d}\n"
             "loss: {average: %s}\nparallelism: {mode: ddp}\n",
             path, local, global, average);
    j->from = from;
    j->to = to;
    cr_assert_eq(ranks_run(world, 100, gradient_rank, j, NULL), 0);
    return j;
}

/* ||a - b|| / ||b|| */
static double distance(const struct gradient_job *a, const struct gradient_job *b) {
    double d = 0, norm = 0;
    cr_assert(a->n == b->n && a->n > 1000);
    for (int64_t i = 0; i < a->n; i++) {
        d += pow((double)a->at[i] - (double)b->at[i], 2);
        norm += pow((double)b->at[i], 2);
    }
    cr_assert_gt(norm, 0);
    return sqrt(d / norm);
}

/* Four samples on one, two and four ranks, by one and by several micro-batches; then with the first
 * two samples masked: ranks (or micro-batches) that have nothing to learn from keep in step. */
Test(sft, gradients_do_not_depend_on_ranks_and_micro_batches) {
    static const int split[][2] = {{2, 2}, {4, 1}, {1, 1}, {2, 1}};
    const char *path = examples("train.jsonl", 60);
    for (int a = 0; a < 3; a++)
        for (int64_t masked = 0; masked <= 2; masked += 2) {
            struct gradient_job *one = gradient(1, 4, 4, path, averages[a], 0, masked);
            for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
                struct gradient_job *j =
                    gradient(split[i][0], split[i][1], 4, path, averages[a], 0, masked);
                double d = distance(j, one);
                cr_assert_lt(d, 1e-6, "%s, %d x %d: %g", averages[a], split[i][0], split[i][1], d);
                cr_assert_float_eq(j->loss, one->loss, 1e-6 * one->loss);
            }
        }
}

/* ---- weights ---- */

/* Two examples with 100 and 300 targets; a sample holds one of them. */
static const char *two_examples(const char *name) {
    char text[1024], *p = text;
    for (int n = 100; n <= 300; n += 200)
        p +=
            sprintf(p, "{\"prompt\": \"%d letters: \", \"completion\": \"%.*s\"}\n", n, n - 1,
                    n == 100 ? "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                             : "bcdefghijklmnopqrstuvwxyzbcdefghijklmnopqrstuvwxyzbcdefghijklmnopqr"
                               "bcdefghijklmnopqrstuvwxyzbcdefghijklmnopqrstuvwxyzbcdefghijklmnopqr"
                               "bcdefghijklmnopqrstuvwxyzbcdefghijklmnopqrstuvwxyzbcdefghijklmnopqr"
                               "bcdefghijklmnopqrstuvwxyzbcdefghijklmnopqrstuvwxyzbcdefghijklmnopqr"
                               "bcdefghijklmnopqrstuvwxyzbcdefghijklmnopqrstuvwxyz");
    return data_write(name, text, (size_t)(p - text));
}

/* What the first of the two weighs. */
static double first_share(int average) {
    return average == 0 ? 0.25 : average == 1 ? 0.5 : 10 / (10 + sqrt(300.0));
}

/* The gradient of both, on two ranks, is made of those of each alone, which no average changes. */
Test(sft, gradients_of_both_are_those_of_each_by_their_weights) {
    const char *path = two_examples("two.jsonl");
    struct gradient_job *first = gradient(1, 2, 2, path, "token", 1, 2),
                        *second = gradient(1, 2, 2, path, "token", 0, 1);
    struct gradient_job *want = ranks_map(sizeof *want);
    cr_assert_gt(distance(first, second), 0.1, "the two gradients are alike");
    for (int a = 0; a < 3; a++) {
        double f = first_share(a);
        want->n = first->n;
        for (int64_t i = 0; i < want->n; i++)
            want->at[i] = (float)(f * (double)first->at[i] + (1 - f) * (double)second->at[i]);
        for (int world = 1; world <= 2; world++) {
            struct gradient_job *j = gradient(world, 1, 2, path, averages[a], 0, 0);
            double d = distance(j, want), loss = f * first->loss + (1 - f) * second->loss;
            cr_assert_lt(d, 1e-5, "%s on %d: %g", averages[a], world, d); /* D11 */
            cr_assert_float_eq(j->loss, loss, 1e-6 * loss, "%s on %d: %.9g, not %.9g", averages[a],
                               world, j->loss, loss);
        }
    }
}

/* The loss of a step, on one rank and on two, and that of an evaluation over the same examples are
 * the examples' own losses at 1/4 and 3/4, 1/2 and 1/2, sqrt(100) and sqrt(300) of their sum. The
 * learning rate moves nothing. */
Test(sft, a_hundred_and_three_hundred_tokens_weigh_by_the_average) {
    const char *path = two_examples("two.jsonl");
    double own[2] = {0, 0}; /* which are the same by every average */
    for (int a = 0; a < 3; a++) {
        for (int world = 2; world >= 1; world--) {
            struct train_job *j = train_ok(
                world, train_yaml(MODEL "dataset: {path: %s, shuffle: false}\n"
                                        "validation: {path: %s, every_steps: 1}\n"
                                        "training: {steps: 1, seq_len: 320, local_batch_size: 1, "
                                        "global_batch_size: 2}\n"
                                        "loss: {average: %s}\noptimizer: {lr: 1.0e-30}\n",
                                  path, path, averages[a]));
            const struct zt_step_report *r = &j->rank[0].report[1];
            for (int i = 0; i < 2 && world == 2; i++) {
                double local = j->rank[i].report[1].local_loss;
                if (a == 0) own[i] = local;
                cr_assert_float_eq(local, own[i], 1e-6 * own[i]);
                cr_assert_eq(j->rank[i].report[1].tokens_supervised, i ? 300 : 100);
            }
            double f = first_share(a), want = f * own[0] + (1 - f) * own[1];
            cr_assert_gt(fabs(own[0] - own[1]), 1e-3, "the two losses are alike");
            cr_assert_float_eq(r->loss, want, 1e-6 * want, "%s on %d: %.9g, not %.9g", averages[a],
                               world, r->loss, want);
            cr_assert_float_eq(r->eval_loss, want, 1e-6 * want, "%s: evaluation %.9g, not %.9g",
                               averages[a], r->eval_loss, want);
            cr_assert_eq(r->eval_tokens, 400);
        }
    }
}

/* ---- documents ---- */

/* The sum of the losses of one sample of two lines. */
static double loss_of(char first, char second, bool masks) {
    char text[512], *p = text;
    for (int i = 0; i < 2; i++) {
        char c = i ? second : first;
        p += sprintf(p, "{\"prompt\": \"%c%c%c%c\", \"completion\": \"%c%c%c%c%c%c\"}\n", c, c + 1,
                     c, c + 2, c + 3, c, c + 1, c + 1, c, c + 2);
    }
    const char *path = data_write("pair.jsonl", text, (size_t)(p - text));
    struct train_job *j =
        train_ok(1, train_yaml(MODEL "dataset: {path: %s, document_masks: %s}\n"
                                     "training: {steps: 1, seq_len: 24, local_batch_size: 1}\n",
                               path, masks ? "true" : "false"));
    const struct zt_step_report *r = &j->rank[0].report[1];
    cr_assert_eq(r->tokens_supervised, 14);
    cr_assert_eq(r->tokens_padding, 2);
    return r->loss * 14;
}

/* Two lines side by side: their losses add up, whichever stands first with whichever, when
 * documents do not see each other, and only then. */
Test(sft, lines_do_not_see_each_other_behind_document_masks) {
    double off[2];
    for (int masks = 0; masks < 2; masks++)
        off[masks] = fabs(loss_of('a', 'k', masks) + loss_of('f', 'p', masks) -
                          loss_of('a', 'p', masks) - loss_of('f', 'k', masks));
    cr_assert_lt(off[1], 2e-5, "with masks: %g", off[1]); /* 56 losses near 5.5, in fp32 */
    cr_assert_gt(off[0], 1e-4, "without: %g", off[0]);
}

/* A set that cannot tell its documents or examples is refused before anything trains. */
Test(sft, what_cannot_be_weighed_or_masked_is_refused) {
    const char *text = data_text("t.txt", 2000, 7);
    const char *raw = data_bin("raw.bin", 2000, 2, 0, 0, 0, 1, 200);
    static const char *const word[] = {"only .jsonl files have them",
                                       "which token begins a document"};
    for (int i = 0; i < 2; i++) {
        struct train_job *j = train_start(
            1, train_yaml(MODEL "dataset: {path: %s, document_masks: %s}\n"
                                "training: {steps: 1, seq_len: 16, local_batch_size: 1}\n"
                                "loss: {average: %s}\n",
                          i ? raw : text, i ? "true" : "false", i ? "token" : "square"));
        train_go(j, 0);
        cr_assert_eq(j->rank[0].rc, ZT_EINVAL);
        cr_assert_eq(j->rank[0].result.reason, ZT_REASON_CONFIG_ERROR);
        cr_assert(strstr(j->rank[0].err.msg, word[i]), "%s", j->rank[0].err.msg);
    }
}
