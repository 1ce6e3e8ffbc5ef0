/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_train.c: whole runs through zt_train on forked ranks: losses over worlds,
 * windows and their tails, evaluation, memory figures and their ends, stops and deaths. */
#include <float.h>
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(train, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define MODEL "model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 2, seq_len_max: 32}\n"
#define T 16

static const char *text(void) { return data_text("train.txt", 40000, 7); }

Test(train, worlds_agree_at_one_global_batch) {
    struct train_job *one = NULL;
    const char *path = text();
    for (int world = 1; world <= 4; world++) {
        struct train_job *j = train_ok(
            world,
            train_yaml(
                MODEL
                "dataset: {path: %s}\n"
                "training: {steps: 6, seq_len: %d, local_batch_size: %d, global_batch_size: 12}\n"
                "optimizer: {lr: 1.0e-2}\nmetrics: {parameter_hash_every: 1}\n",
                path, T, 12 / world));
        if (world == 1) one = j;
        for (int s = 1; s <= 6; s++) {
            const struct zt_step_report *r = &j->rank[0].report[s], *o = &one->rank[0].report[s];
            double local = 0;
            cr_assert_eq(r->step, s);
            cr_assert_eq(r->global_batch, 12);
            cr_assert_float_eq(r->loss, o->loss, 1e-6 * o->loss, "world %d step %d: %.9g %.9g",
                               world, s, r->loss, o->loss);
            cr_assert_float_eq(r->grad_norm, o->grad_norm, 1e-5 * o->grad_norm);
            cr_assert_eq(strlen(r->parameter_hash), 32);
            for (int k = 0; k < world; k++) {
                const struct zt_step_report *q = &j->rank[k].report[s];
                cr_assert_str_eq(q->parameter_hash, r->parameter_hash);
                cr_assert_eq(q->loss, r->loss);
                cr_assert_eq(q->grad_norm, r->grad_norm);
                cr_assert_eq(q->tokens, 12 / world * T);
                cr_assert_eq(q->tokens_padding, 0);
                cr_assert_eq(q->last, s == 6);
                local += q->local_loss / world;
            }
            cr_assert_float_eq(local, r->loss, 1e-9 * r->loss);
        }
        cr_assert_str_eq(j->rank[0].result.parameter_hash, j->rank[0].report[6].parameter_hash);
        cr_assert_lt(j->rank[0].report[6].loss, j->rank[0].report[1].loss - 0.5, "the loss falls");
    }
    /* an untrained model over 256 bytes is near ln 256 */
    cr_assert_float_eq(one->rank[0].report[1].loss, 5.545, 0.1);
}

/* Micro-batches without a reduction count as much as the last one. */
Test(train, accumulation_gives_the_same_curve) {
    struct train_job *whole = NULL;
    char *bytes = malloc(4001);
    for (int i = 0; i < 4001; i++) bytes[i] = (char)('a' + i * 11 % 26);
    bytes[3] = 5; /* a token of the first micro-batch of rank 0 only */
    const char *path = data_write("five.txt", bytes, 4001);
    free(bytes);
    for (int local = 4; local >= 1; local /= 2) {
        struct train_job *j = train_ok(
            2,
            train_yaml(
                MODEL
                "dataset: {path: %s, shuffle: false}\n"
                "training: {steps: 20, seq_len: %d, local_batch_size: %d, global_batch_size: 8}\n"
                "optimizer: {lr: 1.0e-3}\nmetrics: {parameter_hash_every: 1}\n",
                path, T, local));
        if (!whole) whole = j;
        for (int s = 1; s <= 20; s++) {
            const struct zt_step_report *a = &whole->rank[0].report[s], *b = &j->rank[0].report[s];
            cr_assert_float_eq(a->loss, b->loss, 1e-5 * a->loss, "local %d step %d", local, s);
            cr_assert_str_eq(j->rank[1].report[s].parameter_hash, b->parameter_hash);
        }
    }
}

Test(train, ten_micro_batches_by_four_make_three_updates) {
    const char *path = data_text("ten.txt", 10 * T + 1, 7);
    struct train_job *j = train_ok(
        1,
        train_yaml(MODEL
                   "dataset: {path: %s, shuffle: false}\n"
                   "training: {epochs: 1, seq_len: %d, local_batch_size: 1, global_batch_size: 4}\n"
                   "optimizer: {lr: 1.0e-3}\nlr_scheduler: {decay_type: linear}\n",
                   path, T));
    static const int64_t rows[4] = {0, 4, 4, 2};
    cr_assert_eq(j->rank[0].result.steps, 3);
    for (int s = 1; s <= 3; s++) {
        cr_assert_eq(j->rank[0].report[s].global_batch, rows[s]);
        cr_assert_eq(j->rank[0].report[s].tokens, rows[s] * T);
        /* linear over 3: 1, 2/3, 1/3 (a virtual last step keeps it above zero) */
        cr_assert_float_eq(j->rank[0].report[s].lr, 1e-3 * (4 - s) / 3, 1e-12, "step %d: %g", s,
                           j->rank[0].report[s].lr);
    }
    struct train_job *drop = train_ok(
        1,
        train_yaml(MODEL
                   "dataset: {path: %s, shuffle: false}\n"
                   "training: {epochs: 1, seq_len: %d, local_batch_size: 1, global_batch_size: 4, "
                   "accumulation_tail: drop}\n",
                   path, T));
    cr_assert_eq(drop->rank[0].result.steps, 2);
}

/* One rank's trainer, driven by hand through the windows of a loader. */
static void open_by_hand(struct zt_trainer *t, struct zt_train_config *c, struct zt_spec *s,
                         const struct zt_train_hooks *h, const char *yaml) {
    struct zt_error e = {0};
    char full[2048];
    snprintf(full, sizeof full, "version: 1\nname: t\n%s", yaml);
    cr_assert_eq(zt_spec_parse(full, strlen(full), "t.yaml", NULL, 0, s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve(s, 1, "t.yaml", &e), 0, "%s", e.msg);
    *c = (struct zt_train_config){.spec = s,
                                  .world = 1,
                                  .device = "cpu",
                                  .kernels = &zt_kernels_cpu,
                                  .threads = 1,
                                  .capacity_bytes = (int64_t)64 << 20};
    *t = (struct zt_trainer){.config = c, .hooks = h, .spec = s};
    cr_assert_eq(zt_trainer_open(t, &e), 0, "%s", e.msg);
}

/* Micro-batches [from, to) of the window as one update's forward and backward. */
static void window_of(struct zt_trainer *t, const struct zt_window *w, int64_t from, int64_t to,
                      int64_t step, bool update) {
    struct zt_unit_source s = zt_runtime_source(t->runtime);
    struct zt_fixsum loss;
    struct zt_error e = {0};
    int64_t valid = 0;
    struct zt_update u = {.lr = 1e-3};
    zt_fixsum_zero(&loss);
    cr_assert_eq(zt_runtime_window_begin(t->runtime, step, &e), 0, "%s", e.msg);
    for (int64_t m = from; m < to; m++) {
        struct zt_row row = zt_row_at(&w->all, m * w->seq_len);
        struct zt_batch b = {row.tokens, row.targets, 1, w->seq_len};
        cr_assert_eq(zt_runtime_micro_begin(t->runtime, m - from, m == to - 1, &e), 0, "%s", e.msg);
        cr_assert_eq(zt_model_step(t->model, &s, &b,
                                   (float)(1.0 / (double)((to - from) * w->seq_len)), true, false,
                                   &loss, &valid, &e),
                     0, "%s", e.msg);
    }
    if (update) cr_assert_eq(zt_runtime_update(t->runtime, &u, &e), 0, "%s", e.msg);
}

/* The gradient of a short tail of two equals, bit for bit, that of a run that accumulates two. */
Test(train, short_tail_is_scaled_by_its_real_size) {
    const char *path = data_text("ten.txt", 10 * T + 1, 7);
    static const char fmt[] =
        MODEL "dataset: {path: %s, shuffle: false}\n"
              "training: {epochs: 1, seq_len: %d, local_batch_size: 1, global_batch_size: %d}\n";
    struct zt_trainer a, b;
    struct zt_train_config ca, cb;
    struct zt_spec sa, sb;
    struct zt_train_hooks none = {0};
    struct zt_window tail = {0};
    struct zt_error e = {0};
    open_by_hand(&a, &ca, &sa, &none, train_yaml(fmt, path, T, 4));
    open_by_hand(&b, &cb, &sb, &none, train_yaml(fmt, path, T, 2));
    for (int64_t s = 1; s <= 3; s++) {
        cr_assert_eq(zt_window_load(&a.window, a.loader, 1, T, &e), 0, "%s", e.msg);
        cr_assert_eq(a.window.micros, s < 3 ? 4 : 2);
        window_of(&a, &a.window, 0, a.window.micros, s, s < 3);
        if (s < 3) { /* b is taken to the same parameters with a's windows */
            window_of(&b, &a.window, 0, 4, s, true);
            for (int k = 0; k < 2; k++) cr_assert_eq(zt_window_load(&tail, b.loader, 1, T, &e), 0);
        }
    }
    cr_assert_eq(zt_window_load(&tail, b.loader, 1, T, &e), 0, "%s", e.msg);
    cr_assert_eq(tail.micros, 2);
    window_of(&b, &tail, 0, 2, 3, false);
    for (int i = 0; i < a.table.n_tensors; i++)
        cr_assert_arr_eq(zt_runtime_gradient(a.runtime, i), zt_runtime_gradient(b.runtime, i),
                         (size_t)a.table.tensors[i].numel * 4, "tensor %s",
                         a.table.tensors[i].name);
    zt_window_free(&tail);
    zt_trainer_close(&a, false);
    zt_trainer_close(&b, false);
    zt_spec_free(&sa);
    zt_spec_free(&sb);
}

/* ---- evaluation ---- */

static struct train_job *eval_run(int world, int rows, const char *path) {
    const char *valid = data_text("valid.txt", (size_t)rows * T + 1, 5);
    return train_ok(
        world,
        train_yaml(
            MODEL
            "dataset: {path: %s}\nvalidation: {path: %s, every_steps: 2}\n"
            "training: {steps: 3, seq_len: %d, local_batch_size: %d, global_batch_size: 12}\n",
            path, valid, T,
            world == 1       ? 4
            : 12 / world / 2 ? 12 / world / 2
                             : 1));
}

Test(train, evaluation_counts_every_row_once) {
    const char *path = text();
    struct train_job *one = eval_run(1, 10, path);
    for (int world = 1; world <= 4; world++) {
        if (world == 4) continue; /* 12 / 4 is odd; the other three cover unequal lengths */
        struct train_job *j = world == 1 ? one : eval_run(world, 10, path);
        cr_assert(isnan(j->rank[0].report[1].eval_loss));
        cr_assert_eq(j->rank[0].report[1].eval_rows, -1);
        cr_assert_eq(j->rank[0].report[1].eval.peak_allocated_bytes, -1);
        for (int s = 2; s <= 3; s++)
            for (int r = 0; r < world; r++) {
                const struct zt_step_report *p = &j->rank[r].report[s];
                cr_assert_eq(p->eval_rows, 10);
                cr_assert_eq(p->eval_tokens, 10 * T);
                cr_assert_float_eq(p->eval_loss, one->rank[0].report[s].eval_loss,
                                   1e-6 * p->eval_loss, "world %d step %d", world, s);
                cr_assert_gt(p->eval.peak_allocated_bytes, 0);
                cr_assert_eq(p->eval.phase_of_peak, ZT_PHASE_EVAL);
                cr_assert_eq(p->eval.at_peak[ZT_TAG_GRADIENTS], 0);
            }
    }
    struct train_job *five = eval_run(2, 5, path);
    cr_assert_eq(five->rank[0].report[2].eval_rows, 5);
    cr_assert_eq(five->rank[1].report[2].eval_tokens, 5 * T);
}

Test(train, evaluation_at_world_four_ends_with_ranks_out_of_rows) {
    const char *path = text(), *valid = data_text("valid.txt", 10 * T + 1, 5);
    double seen[2];
    for (int i = 0; i < 2; i++) {
        int world = i ? 4 : 1;
        struct train_job *j = train_ok(
            world,
            train_yaml(
                MODEL
                "dataset: {path: %s}\nvalidation: {path: %s, every_steps: 1}\n"
                "training: {steps: 2, seq_len: %d, local_batch_size: %d, global_batch_size: 4}\n",
                path, valid, T, 4 / world));
        cr_assert_eq(j->rank[world - 1].report[2].eval_rows, 10);
        seen[i] = j->rank[world - 1].report[2].eval_loss;
    }
    cr_assert_float_eq(seen[0], seen[1], 1e-6 * seen[0]);
}

/* validation.steps batches on every rank, at most what there is. */
Test(train, evaluation_of_some_batches) {
    const char *path = text(), *valid = data_text("valid.txt", 10 * T + 1, 5);
    const char *yaml = MODEL "dataset: {path: %s}\nvalidation: {path: %s, steps: %d}\n"
                             "training: {steps: 1, seq_len: %d, local_batch_size: 2}\n";
    static const int rows[][2] = {{1, 4}, {2, 8}, {3, 10}};
    for (int i = 0; i < 3; i++) {
        struct train_job *j = train_ok(2, train_yaml(yaml, path, valid, rows[i][0], T));
        cr_assert_eq(j->rank[1].report[1].eval_rows, rows[i][1]);
        cr_assert_eq(j->rank[1].report[1].eval_tokens, rows[i][1] * T);
    }
    /* 8192 x (2^51 + 1) wraps to 8192 in 64 bits */
    valid = data_text("long.txt", 8200 + 1, 5);
    struct train_job *j =
        train_ok(1, train_yaml(MODEL "dataset: {path: %s}\n"
                                     "validation: {path: %s, steps: 2251799813685249}\n"
                                     "training: {steps: 1, seq_len: 1, local_batch_size: 8192}\n",
                               path, valid));
    cr_assert_eq(j->rank[0].report[1].eval_rows, 8200);
}

Test(train, held_out_tail_is_not_trained_on) {
    const char *path = data_text("small.txt", 20 * T + 1, 7);
    struct train_job *j = train_ok(
        1, train_yaml(MODEL "dataset: {path: %s}\nvalidation: {fraction: 0.25, every_steps: 1}\n"
                            "training: {epochs: 1, seq_len: %d, local_batch_size: 1}\n",
                      path, T));
    cr_assert_eq(j->rank[0].result.steps, 15);
    cr_assert_eq(j->rank[0].report[1].eval_rows, 5);
}

/* Every rank passes over the same file; it is told once. */
Test(train, a_file_passed_over_is_told_by_one_rank) {
    char folder[600];
    snprintf(folder, sizeof folder, "%s", data_text("text", 40 * T + 1, 7));
    *strrchr(folder, '/') = '\0';
    data_write("tiny", "abc", 3);
    struct train_job *j =
        train_ok(2, train_yaml(MODEL "dataset: {path: %s}\n"
                                     "training: {steps: 1, seq_len: %d, local_batch_size: 1}\n",
                               folder, T));
    cr_assert_eq(j->rank[0].n_events, 1);
    cr_assert_str_eq(j->rank[0].event[0].kind, "DATA_SKIPPED");
    cr_assert_eq(j->rank[1].n_events, 0);
}

/* ---- memory ---- */

static int64_t total(const int64_t at[ZT_TAG_COUNT]) {
    int64_t sum = 0;
    for (int i = 0; i < ZT_TAG_COUNT; i++) sum += at[i];
    return sum;
}

Test(train, memory_figures) {
    const char *path = text();
    for (int lazy = 0; lazy < 2; lazy++) {
        struct zt_model_config mc;
        struct zt_model_table table;
        cr_assert_eq(zt_model_preset("gpt2-nano", &mc, NULL), 0);
        cr_assert_eq(zt_model_table_build(&mc, ZT_WRAP_BLOCK, 1, &table, NULL), 0);
        struct zt_state_bytes want = zt_state_formula(&table, ZT_DDP, 1, zt_recipe_find("fp32"));
        struct train_job *j = train_ok(
            2, train_yaml(
                   "model: {preset: gpt2-nano}\ndataset: {path: %s}\n"
                   "training: {steps: 5, seq_len: 32, local_batch_size: 2, global_batch_size: 8}\n"
                   "validation: {fraction: 0.01, every_steps: 2}\noptimizer: {state_init: %s}\n",
                   path, lazy ? "lazy" : "eager"));
        for (int k = 0; k < 2; k++) {
            int64_t live = 0;
            for (int s = 1; s <= 5; s++) {
                const struct zt_step_report *r = &j->rank[k].report[s];
                cr_assert_eq(r->persistent_parameters, want.parameters);
                cr_assert_eq(r->persistent_gradients, want.gradients);
                cr_assert_eq(r->persistent_optimizer, want.optimizer);
                cr_assert_eq(total(r->at_peak), r->peak_allocated_bytes);
                cr_assert_geq(r->peak_reserved_bytes, r->peak_allocated_bytes);
                cr_assert_geq(r->reserved_at_peak_bytes, r->peak_allocated_bytes);
                cr_assert_geq(r->peak_allocated_bytes, live,
                              "a reset forgets nothing that is live");
                cr_assert_gt(r->peak_allocated_bytes, r->end_of_step_allocated_bytes);
                for (int i = 0; i < ZT_TAG_COUNT; i++)
                    cr_assert_geq(r->category_max[i], r->at_peak[i]);
                if (s > 2)
                    cr_assert_eq(r->end_of_step_allocated_bytes,
                                 j->rank[k].report[2].end_of_step_allocated_bytes);
                cr_assert_gt(r->outside_allocator_bytes, 1 << 20);
                live = r->end_of_step_allocated_bytes;
                /* a step after an evaluation is not remembered by the evaluation's peak */
                if (s > 2)
                    cr_assert_eq(r->peak_allocated_bytes,
                                 j->rank[k].report[2].peak_allocated_bytes);
            }
            cr_assert_gt(j->rank[k].report[1].init.peak_allocated_bytes, want.parameters - 1);
            cr_assert_eq(j->rank[k].report[1].init.persistent[2], lazy ? 0 : want.optimizer);
            cr_assert_eq(j->rank[k].report[2].init.peak_allocated_bytes, -1);
            cr_assert_eq(j->rank[k].n_events, 0, "%s", j->rank[k].event[0].message);
        }
        zt_model_table_free(&table);
    }
}

static const char *small_step(const char *path, const char *init) {
    return train_yaml("model: {preset: gpt2-nano}\ndataset: {path: %s}\n"
                      "training: {steps: 2, seq_len: 8, local_batch_size: 1}\n"
                      "optimizer: {state_init: %s}\n",
                      path, init);
}

/* Capacity enough for forward and backward but not for m and v: with lazy state the run gets to the
 * update and says so; with eager state the update is never what runs out. */
Test(train, lazy_state_runs_out_in_the_first_update) {
    const char *path = text();
    struct train_job *full = train_ok(1, small_step(path, "lazy"));
    int64_t top = full->rank[0].report[1].peak_reserved_bytes;
    cr_assert_eq(full->rank[0].report[1].phase_of_peak, ZT_PHASE_OPTIMIZER);
    struct train_job *j = NULL;
    for (int64_t c = top; c > 0 && (!j || j->rank[0].rc == 0); c -= 2 << 20) {
        j = train_start(1, small_step(path, "lazy"));
        j->capacity = c;
        train_go(j, 0);
    }
    const struct train_rank *r = &j->rank[0];
    cr_assert_eq(r->rc, ZT_EOOM, "%s", r->err.msg);
    cr_assert_eq(r->result.reason, ZT_REASON_OOM_DEVICE);
    cr_assert_eq(r->result.phase, ZT_PHASE_OPTIMIZER);
    cr_assert_eq(r->result.failed_step, 1);
    cr_assert(r->result.has_oom);
    cr_assert_eq(r->result.oom.tag, ZT_TAG_OPTIMIZER);
    cr_assert_eq(r->result.oom.phase, ZT_PHASE_OPTIMIZER);
    cr_assert_eq(r->result.steps, 0);
    struct train_job *eager = train_start(1, small_step(path, "eager"));
    eager->capacity = r->result.oom.capacity;
    train_go(eager, 0);
    if (eager->rank[0].rc) cr_assert_neq(eager->rank[0].result.phase, ZT_PHASE_OPTIMIZER);
}

Test(train, too_small_a_capacity_is_told_in_full) {
    struct train_job *j = train_start(2, small_step(text(), "eager"));
    j->capacity = 4 << 20;
    train_go(j, 0);
    bool told = false;
    for (int k = 0; k < 2; k++) {
        const struct train_rank *r = &j->rank[k];
        cr_assert_neq(r->rc, 0);
        if (r->rc != ZT_EOOM) continue; /* the other may only have seen its peer go */
        told = true;
        cr_assert_eq(r->result.reason, ZT_REASON_OOM_DEVICE);
        cr_assert(r->result.has_oom);
        cr_assert_eq(r->result.oom.capacity, 4 << 20);
        cr_assert_gt(r->result.oom.request, 0);
        cr_assert_eq(r->result.oom.phase, ZT_PHASE_INIT);
        cr_assert_eq(total(r->result.oom.by_tag), r->result.oom.allocated);
        cr_assert_leq(r->result.oom.allocated, r->result.oom.reserved);
        cr_assert(strstr(r->err.msg, "rank "), "%s", r->err.msg);
    }
    cr_assert(told);
    /* the same from the run file: the worker's own option is not to blame */
    j = train_start(1,
                    train_yaml("%smemory: {limit_gib: 0.00390625}\n", small_step(text(), "eager")));
    train_go(j, 0);
    cr_assert_eq(j->rank[0].result.oom.capacity, 4 << 20);
    cr_assert(strstr(j->rank[0].err.msg, "rank 0: memory.limit_gib is 0.00390625: out of"), "%s",
              j->rank[0].err.msg);
}

/* One rank out of memory: the others end at once, and know that it was a peer. */
Test(train, a_rank_out_of_memory_ends_the_others_as_a_consequence) {
    struct train_job *j = train_start(3, small_step(text(), "eager"));
    j->capacity_of_1 = 4 << 20;
    double start = ranks_seconds();
    train_go(j, 0);
    cr_assert_lt(ranks_seconds() - start, 20.0);
    cr_assert_eq(j->rank[1].result.reason, ZT_REASON_OOM_DEVICE, "%s", j->rank[1].err.msg);
    for (int k = 0; k < 3; k += 2) {
        cr_assert_eq(j->rank[k].result.reason, ZT_REASON_PEER_LOST, "%s", j->rank[k].err.msg);
        cr_assert(zt_reason_is_consequence(j->rank[k].result.reason));
        cr_assert_eq(j->rank[k].result.peer, 1);
    }
}

Test(train, growth_names_the_tag_and_the_bytes) {
    struct zt_growth g = {0};
    struct zt_ledger l;
    char m[256];
    zt_ledger_init(&l);
    zt_ledger_alloc(&l, ZT_TAG_PARAMETERS, 4096, 4096);
    cr_assert(!zt_growth_check(&g, &l, 3, 1, m, sizeof m));
    cr_assert(!zt_growth_check(&g, &l, 3, 2, m, sizeof m));
    cr_assert(!zt_growth_check(&g, &l, 3, 3, m, sizeof m));
    zt_ledger_alloc(&l, ZT_TAG_ACTIVATIONS, 512, 1024);
    cr_assert(zt_growth_check(&g, &l, 3, 4, m, sizeof m));
    cr_assert(strstr(m, "rank 3, step 4") && strstr(m, "activations") && strstr(m, "1024"), "%s",
              m);
    cr_assert(!zt_growth_check(&g, &l, 3, 5, m, sizeof m), "told once");
    zt_ledger_alloc(&l, ZT_TAG_ACTIVATIONS, 512, 1024);
    cr_assert(zt_growth_check(&g, &l, 3, 6, m, sizeof m), "and again when it has doubled");
}

#ifdef ZT_FAILPOINTS
Test(train, planted_leak_is_found) {
    setenv("ZT_FAIL", "engine.leak:error", 1);
    struct train_job *j = train_ok(
        1,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 6, seq_len: %d, local_batch_size: 1}\n",
                   text(), T));
    cr_assert_eq(j->rank[0].n_events, 3, "at steps 3, 4 and 6"); /* 512, 1024, 2048 bytes */
    cr_assert_str_eq(j->rank[0].event[0].kind, "MEMORY_GROWTH");
    cr_assert(strstr(j->rank[0].event[0].message, "activations +512"), "%s",
              j->rank[0].event[0].message);
}
#endif

/* ---- time ---- */

Test(train, one_rank_has_nothing_exposed) {
    struct train_job *j = train_ok(
        1,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 3, seq_len: %d, local_batch_size: 4}\n",
                   text(), T));
    for (int s = 1; s <= 3; s++) {
        const struct zt_step_report *r = &j->rank[0].report[s];
        cr_assert_eq(r->exposed.comm_seconds, 0.0);
        cr_assert_eq(r->exposed.exposed_comm_seconds, 0.0);
        cr_assert_eq(r->exposed.n_by, 0);
        cr_assert_eq(r->straggler_wait_seconds, 0.0);
        cr_assert_eq(r->sent_bytes, 0);
        cr_assert_gt(r->forward_seconds, 0);
        cr_assert_gt(r->backward_seconds, 0);
        cr_assert_gt(r->optimizer_seconds, 0);
        cr_assert_leq(r->forward_seconds + r->backward_seconds + r->optimizer_seconds +
                          r->data_seconds,
                      r->step_seconds + 1e-9);
        double parts =
            r->exposed.compute_seconds + r->exposed.exposed_comm_seconds + r->exposed.idle_seconds;
        cr_assert_float_eq(parts, r->step_seconds, 1e-6);
    }
}

/* A rank that comes late makes the other's communication long, exposed and marked as waiting. */
Test(train, waiting_for_a_late_rank_is_exposed_and_named) {
    struct train_job *j = train_start(
        2,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 4, seq_len: %d, local_batch_size: 1}\n",
                   text(), T));
    j->sleep_rank = 1;
    j->sleep_ms = 200;
    train_go(j, 0);
    for (int s = 2; s <= 4; s++) {
        const struct zt_step_report *r = &j->rank[0].report[s], *late = &j->rank[1].report[s];
        cr_assert_geq(r->exposed.exposed_comm_seconds, 0.15, "step %d: %g", s,
                      r->exposed.exposed_comm_seconds);
        cr_assert_geq(r->straggler_wait_seconds, 0.15);
        cr_assert_geq(r->exposed.tail_seconds, 0.15, "backward was over long before");
        cr_assert_leq(r->exposed.tail_seconds, r->exposed.exposed_comm_seconds);
        cr_assert_eq(late->straggler_wait_seconds, 0.0);
        cr_assert_leq(r->exposed.exposed_comm_seconds, r->exposed.comm_seconds + 1e-9);
        double by = 0;
        for (int i = 0; i < r->exposed.n_by; i++) {
            by += r->exposed.by[i].seconds;
            cr_assert_str_eq(r->exposed.by[i].group, "dp_replicate");
            cr_assert_str_eq(r->exposed.by[i].kind, "all_reduce");
        }
        cr_assert_float_eq(by, r->exposed.exposed_comm_seconds, 1e-9);
        double parts =
            r->exposed.compute_seconds + r->exposed.exposed_comm_seconds + r->exposed.idle_seconds;
        cr_assert_float_eq(parts, r->step_seconds, 0.02 * r->step_seconds);
    }
}

/* Without overlap every reduction is waited for at once: all of it is exposed, and the last one, of
 * the root whose gradient is done last, is the tail. */
Test(train, without_overlap_all_communication_is_exposed) {
    struct train_job *j =
        train_ok(2, train_yaml(MODEL "dataset: {path: %s}\nparallelism: {overlap: false}\n"
                                     "training: {steps: 4, seq_len: %d, local_batch_size: 2}\n",
                               text(), T));
    for (int s = 1; s <= 4; s++) {
        const struct zt_exposed *e = &j->rank[0].report[s].exposed;
        cr_assert_gt(e->comm_seconds, 0.0);
        cr_assert_float_eq(e->exposed_comm_seconds, e->comm_seconds, 1e-9);
        cr_assert_gt(e->tail_seconds, 0.0);
        cr_assert_lt(e->tail_seconds, e->comm_seconds);
    }
}

/* ---- ends ---- */

/* Sums of a trace against the step's own report: to the nanosecond and to the byte. */
static void check_trace(const struct train_trace *t, const struct zt_step_report *r) {
    struct zt_exposed by = {0};
    int64_t exposed = 0, stall = 0, sent = 0;
    cr_assert_eq(t->end_ns - t->start_ns, llround(r->step_seconds * 1e9));
    for (int64_t i = 0; i < t->n; i++) {
        const struct zt_coll_record *c = &t->record[i];
        cr_assert(i == 0 || c->id == t->record[i - 1].id + 1, "in the order of queueing");
        cr_assert(t->start_ns <= c->queued_ns && c->queued_ns <= c->start_ns &&
                  c->start_ns < c->end_ns && c->end_ns <= t->end_ns);
        cr_assert(t->exposed_ns[i] >= 0 && t->exposed_ns[i] <= c->end_ns - c->start_ns);
        cr_assert(!c->control || (t->exposed_ns[i] == 0 && t->stall_ns[i] == 0));
        exposed += t->exposed_ns[i];
        stall += t->stall_ns[i];
        if (!c->control) sent += c->sent_bytes;
        if (!t->exposed_ns[i]) continue;
        int k = 0;
        while (k < by.n_by && strcmp(by.by[k].kind, zt_coll_name(c->kind))) k++;
        if (k == by.n_by) by.by[by.n_by++].kind = zt_coll_name(c->kind);
        by.by[k].seconds += 1e-9 * (double)t->exposed_ns[i];
    }
    cr_assert_eq(exposed, llround(r->exposed.exposed_comm_seconds * 1e9));
    cr_assert_leq(stall, llround(r->exposed.stall_seconds * 1e9));
    cr_assert_eq(sent, r->sent_bytes);
    cr_assert_eq(by.n_by, r->exposed.n_by);
    for (int k = 0; k < by.n_by; k++)
        for (int i = 0; i < by.n_by; i++)
            if (!strcmp(by.by[k].kind, r->exposed.by[i].kind))
                cr_assert_eq(llround(by.by[k].seconds * 1e9),
                             llround(r->exposed.by[i].seconds * 1e9));
}

Test(train, collectives_of_captured_steps_sum_to_the_report) {
    static const int64_t steps[] = {1, 2, 3, 4, 8, 9};
    for (int overlap = 0; overlap < 2; overlap++) {
        struct train_job *j =
            train_ok(3, train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 9, seq_len: %d, "
                                         "local_batch_size: 1, global_batch_size: 6}\n"
                                         "parallelism: {overlap: %s}\nmetrics: {log_freq: 4}\n"
                                         "validation: {fraction: 0.1, every_steps: 1, steps: 1}\n",
                                   text(), T, overlap ? "true" : "false"));
        for (int rank = 0; rank < 3; rank++) {
            const struct train_rank *me = &j->rank[rank];
            cr_assert_eq(me->n_traces, 6);
            for (int i = 0; i < 6; i++) {
                const struct train_trace *t = &me->trace[i];
                int reduced = 0, control = 0;
                cr_assert_eq(t->step, steps[i]);
                cr_assert_eq(t->dropped, 0);
                check_trace(t, &me->report[t->step]);
                for (int64_t k = 0; k < t->n; k++) {
                    const struct zt_coll_record *c = &t->record[k];
                    cr_assert_eq(c->step, t->step);
                    control += c->control;
                    reduced += c->kind == ZT_COLL_ALL_REDUCE && !c->control;
                    const struct zt_coll_record *other = &j->rank[0].trace[i].record[k];
                    cr_assert(c->seq == other->seq && c->kind == other->kind &&
                              !strcmp(c->unit, other->unit));
                }
                cr_assert_eq(reduced, 3, "root and two blocks, once per window");
                cr_assert_eq(control, 1, "loss and counts; evaluation is not in the step");
                cr_assert_eq(t->n_groups, 5);
                cr_assert_str_eq(t->group[0].name, "world");
                cr_assert_str_eq(t->group[3].name, "dp_replicate");
                cr_assert(t->group[3].size == 3 && t->group[3].first == 0 && t->group[3].last == 2);
                cr_assert(t->group[2].size == 1 && t->group[2].first == rank);
            }
        }
    }
}

Test(train, collectives_that_the_event_log_had_no_room_for_are_counted) {
    size_t bytes = ZT_PROGRESS_RING + zt_comm_log_bytes(2);
    struct train_job *j =
        train_start(2, train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 2, seq_len: %d, "
                                        "local_batch_size: 1}\n",
                                  text(), T));
    j->progress = ranks_map(bytes);
    j->progress_bytes = bytes;
    train_go(j, 0);
    const struct train_trace *cut = &j->rank[0].trace[1], *whole = &j->rank[1].trace[1];
    cr_assert_eq(whole->n, 4);
    cr_assert_eq(whole->dropped, 0);
    cr_assert_eq(cut->n, 2);
    cr_assert_eq(cut->dropped, 2);
    cr_assert_eq(cut->record[0].seq, whole->record[2].seq);
}

Test(train, non_finite_loss_stops_every_rank) {
    struct train_job *j = train_start(
        2, train_yaml(
               MODEL "dataset: {path: %s}\ntraining: {steps: 8, seq_len: %d, local_batch_size: 1}\n"
                     "optimizer: {lr: 1.0e+9}\n",
               text(), T));
    train_go(j, 0);
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(j->rank[k].rc, ZT_ENAN, "%s", j->rank[k].err.msg);
        cr_assert_eq(j->rank[k].result.reason, ZT_REASON_NAN_LOSS);
        cr_assert_lt(j->rank[k].result.steps, 8);
        cr_assert_eq(j->rank[k].result.steps, j->rank[0].result.steps);
    }
}

Test(train, a_stop_asked_on_one_rank_stops_all_after_the_same_step) {
    struct train_job *j = train_start(
        3,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 20, seq_len: %d, local_batch_size: 1}\n",
                   text(), T));
    j->stop_rank = 1;
    j->stop_step = 4;
    train_go(j, 0);
    for (int k = 0; k < 3; k++) {
        cr_assert_eq(j->rank[k].rc, ZT_ECANCELLED, "%s", j->rank[k].err.msg);
        cr_assert_eq(j->rank[k].result.steps, 4);
    }
}

Test(train, death_of_a_rank_names_it) {
    struct train_job *j = train_start(
        3,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 20, seq_len: %d, local_batch_size: 1}\n",
                   text(), T));
    j->kill_rank = 1;
    j->kill_step = 3;
    double start = ranks_seconds();
    train_go(j, 1);
    cr_assert_lt(ranks_seconds() - start, 30.0);
    for (int k = 0; k < 3; k += 2) {
        cr_assert_eq(j->rank[k].rc, ZT_EPEER, "%d: %s", j->rank[k].rc, j->rank[k].err.msg);
        cr_assert_eq(j->rank[k].result.reason, ZT_REASON_PEER_LOST);
        cr_assert_eq(j->rank[k].result.peer, 1);
    }
}

/* A replica whose parameters were changed behind our back is named, and the tensor with it. */
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
    if (rank == 2) /* the lowest bit of one weight of block 1 */
        ((uint32_t *)(uintptr_t)zt_runtime_parameter(t.runtime,
                                                     t.table.units[2].first_tensor + 2))[7] ^= 1;
    EXPECT(zt_trainer_check_hash(&t, &h, &e) == ZT_EDIVERGED, "not found");
    EXPECT(strstr(e.msg, "rank 2") &&
               strstr(e.msg, t.table.tensors[t.table.units[2].first_tensor + 2].name),
           "%s", e.msg);
    zt_trainer_close(&t, false);
    zt_spec_free(&s);
    return 0;
}

Test(train, a_flipped_bit_on_one_replica_is_found) {
    struct train_job *j = train_start(
        3,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 2, seq_len: %d, local_batch_size: 1}\n",
                   text(), T));
    cr_assert_eq(ranks_run(3, 60, diverged_rank, j, NULL), 0);
}

Test(train, too_little_data_is_refused_before_step_one) {
    const char *path = data_text("short.txt", 3 * T + 1, 7);
    struct train_job *j = train_start(
        1,
        train_yaml(MODEL
                   "dataset: {path: %s}\ntraining: {steps: 2, seq_len: %d, local_batch_size: 4}\n",
                   path, T));
    train_go(j, 0);
    cr_assert_eq(j->rank[0].rc, ZT_EDATA, "%s", j->rank[0].err.msg);
    cr_assert_eq(j->rank[0].result.reason, ZT_REASON_DATA_ERROR);
    j = train_start(
        1,
        train_yaml(
            MODEL
            "dataset: {path: %s/nothing}\ntraining: {steps: 2, seq_len: %d, local_batch_size: 4}\n",
            data_folder, T));
    train_go(j, 0);
    cr_assert_eq(j->rank[0].result.reason, ZT_REASON_DATA_ERROR, "%s", j->rank[0].err.msg);
}

/* ---- hosts that do not hold the same data ---- */

/* Every rank in its own folder, as if on its own host; the paths of run.yaml are the same. */
static int host_rank(int rank, int world, void *arg) {
    EXPECT(chdir(data_path(rank == 2 ? "other" : "same")) == 0, "%s", strerror(errno));
    return train_rank(rank, world, arg);
}

static void two_hosts(const char *keys, size_t train, size_t valid, const char *named) {
    struct train_job *j = train_start(3, train_yaml(MODEL "%s\ntraining: {steps: 2, seq_len: %d,"
                                                          " local_batch_size: 1}\n",
                                                    keys, T));
    mkdir(data_path("same"), 0700);
    mkdir(data_path("other"), 0700);
    data_text("same/a.txt", 100 * T + 1, 7);
    data_text("same/b.txt", 20 * T + 1, 5);
    data_text("other/a.txt", train, 7);
    data_text("other/b.txt", valid, 5);
    cr_assert_eq(ranks_run(3, 60, host_rank, j, NULL), 0);
    for (int r = 0; r < 3; r++) {
        if (!named) {
            cr_assert_eq(j->rank[r].rc, 0, "%s", j->rank[r].err.msg);
            continue;
        }
        cr_assert_eq(j->rank[r].rc, ZT_EDATA, "%s", j->rank[r].err.msg);
        cr_assert_eq(j->rank[r].result.reason, ZT_REASON_DATA_ERROR);
        cr_assert_eq(j->rank[r].result.steps, 0);
        cr_assert(strstr(j->rank[r].err.msg, named), "%s", j->rank[r].err.msg);
    }
}

Test(train, hosts_with_other_files_are_refused) {
    const char *a = "dataset: {path: /proc/self/cwd/a.txt}";
    const char *b = "dataset: {path: /proc/self/cwd/a.txt}\n"
                    "validation: {path: /proc/self/cwd/b.txt}";
    const char *f = "dataset: {path: /proc/self/cwd/}";
    two_hosts(a, 90 * T + 1, 20 * T + 1, "dataset.path: rank 2 finds other files than rank 0: 90 ");
    two_hosts(a, 100 * T + 2, 20 * T + 1, "dataset.path: rank 2 finds other files");
    two_hosts(b, 100 * T + 1, 19 * T + 1, "validation: rank 2 finds other files than rank 0: 19 ");
    /* as many samples in all, in other places */
    two_hosts(f, 90 * T + 1, 30 * T + 1,
              "dataset.path: rank 2 finds other files than rank 0: 120 ");
    two_hosts(b, 100 * T + 1, 20 * T + 1, NULL);
}

/* Rank 1 meets rank 0 and then does nothing until rank 0 has given up. */
static int stuck_rank(int rank, int world, void *arg) {
    struct train_job *j = arg;
    struct zt_device_config dc = {"cpu", (size_t)j->capacity};
    struct zt_device *d = NULL;
    struct zt_comm *c = NULL;
    struct zt_comm_id id;
    struct zt_error e;
    if (rank == 0) return train_rank(rank, world, arg);
    EXPECT(zt_device_open(&dc, &d, &e) == 0, "%s", e.msg);
    EXPECT(ranks_exchange(&j->shared, rank, &id, &e) == 0, "%s", e.msg);
    EXPECT(zt_comm_init(&id, rank, world, d, 30, &c, &e) == 0, "%s", e.msg);
    for (double end = ranks_seconds() + 60; ranks_seconds() < end; ranks_pause())
        if (__atomic_load_n(&j->rank[0].rc, __ATOMIC_ACQUIRE)) return 0;
    EXPECT(false, "rank 0 still waits");
}

Test(train, the_init_timeout_holds_for_the_groups_too) {
    struct train_job *j =
        train_start(2, train_yaml(MODEL "dataset: {path: %s}\ncomm: {init_timeout_seconds: 5}\n"
                                        "training: {steps: 2, seq_len: %d, local_batch_size: 1}\n",
                                  text(), T));
    cr_assert_eq(ranks_run(2, 100, stuck_rank, j, NULL), 0);
    cr_assert_eq(j->rank[0].rc, ZT_ETIMEOUT, "%s", j->rank[0].err.msg);
    cr_assert_eq(j->rank[0].result.reason, ZT_REASON_COMM_INIT_TIMEOUT);
    cr_assert_eq(j->rank[0].result.peer, 1);
}

Test(train, a_warmup_beyond_the_last_epoch_is_told) {
    struct train_job *j =
        train_ok(2, train_yaml(MODEL "dataset: {path: %s}\nlr_scheduler: {warmup_steps: 6}\n"
                                     "optimizer: {lr: 1.0e-3}\n"
                                     "training: {epochs: 1, seq_len: %d, local_batch_size: 4}\n",
                               data_text("small.txt", 40 * T + 1, 7), T));
    cr_assert_eq(j->rank[0].result.steps, 5);
    cr_assert_eq(j->rank[0].n_events, 1);
    cr_assert_str_eq(j->rank[0].event[0].kind, "WARMUP_SHORTENED");
    cr_assert(strstr(j->rank[0].event[0].message, "6 is more than the 5 steps"));
    cr_assert_eq(j->rank[1].n_events, 0);
    for (int s = 1; s <= 5; s++)
        cr_assert_float_eq(j->rank[0].report[s].lr, 1e-3 * s / 5, 1e-15, "step %d", s);
}

Test(train, progress_page_outlives_the_trainer) {
    size_t bytes = ZT_PROGRESS_RING + zt_comm_log_bytes(256);
    struct zt_coll_record log[256];
    struct train_job *j = train_start(
        2, train_yaml(MODEL
                      "dataset: {path: %s}\ntraining: {steps: 3, seq_len: %d, local_batch_size: 1, "
                      "global_batch_size: 4}\n",
                      text(), T));
    j->progress = ranks_map(bytes);
    j->progress_bytes = bytes;
    train_go(j, 0);
    cr_assert_eq(atomic_load(&j->progress->step), 3);
    cr_assert_eq(atomic_load(&j->progress->state), ZT_TRAINER_DONE);
    cr_assert_eq(atomic_load(&j->progress->phase), ZT_PHASE_OPTIMIZER);
    cr_assert_eq(atomic_load(&j->progress->micro), 1);
    cr_assert_gt(atomic_load(&j->progress->last_progress_ns), 0);
    int64_t n = zt_comm_log_read((char *)j->progress + ZT_PROGRESS_RING, zt_comm_log_bytes(256), 0,
                                 log, 256);
    int reduced = 0;
    for (int64_t i = 0; i < n; i++) {
        cr_assert_neq(log[i].end_ns, 0);
        reduced += log[i].kind == ZT_COLL_ALL_REDUCE && !log[i].control && log[i].step == 2;
    }
    cr_assert_eq(reduced, 3, "root and two blocks, once per window");
}

Test(train, reasons_of_every_code) {
    static const struct {
        int code;
        enum zt_stage stage;
        enum zt_reason reason;
    } rows[] = {
        {ZT_EINVAL, ZT_STAGE_OPEN, ZT_REASON_CONFIG_ERROR},
        {ZT_EUNSUPPORTED, ZT_STAGE_RUN, ZT_REASON_CONFIG_ERROR},
        {ZT_EOOM, ZT_STAGE_RUN, ZT_REASON_OOM_DEVICE},
        {ZT_ENOMEM, ZT_STAGE_RUN, ZT_REASON_OOM_HOST},
        {ZT_EPEER, ZT_STAGE_RUN, ZT_REASON_PEER_LOST},
        {ZT_ETIMEOUT, ZT_STAGE_RUN, ZT_REASON_COMM_TIMEOUT},
        {ZT_ETIMEOUT, ZT_STAGE_COMM, ZT_REASON_COMM_INIT_TIMEOUT},
        {ZT_EMISMATCH, ZT_STAGE_RUN, ZT_REASON_EXIT_NONZERO},
        {ZT_EVERSION, ZT_STAGE_RUN, ZT_REASON_VERSION_MISMATCH},
        {ZT_ECOMM, ZT_STAGE_RUN, ZT_REASON_COMM_ERROR},
        {ZT_ENAN, ZT_STAGE_RUN, ZT_REASON_NAN_LOSS},
        {ZT_EDATA, ZT_STAGE_DATA, ZT_REASON_DATA_ERROR},
        {ZT_EIO, ZT_STAGE_DATA, ZT_REASON_DATA_ERROR},
        {ZT_EDIVERGED, ZT_STAGE_RUN, ZT_REASON_REPLICA_DIVERGED},
        {ZT_EINTERNAL, ZT_STAGE_RUN, ZT_REASON_EXIT_NONZERO},
        {0, ZT_STAGE_RUN, ZT_REASON_NONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert_eq(zt_train_reason(rows[i].code, rows[i].stage), rows[i].reason, "code %d",
                     rows[i].code);
}

/* A link is measured before step 1, and told by one rank; where there is none, that is told. */
Test(train, links_are_measured_when_asked) {
    for (int world = 1; world <= 2; world++) {
        struct train_job *j = train_ok(
            world, train_yaml("model: {preset: gpt2-nano}\ndataset: {path: %s}\n"
                              "training: {steps: 1, seq_len: 16, local_batch_size: 1}\n"
                              "comm: {measure_seconds: 0.05}\n",
                              text()));
        const struct train_rank *k = &j->rank[0];
        cr_assert_gt(k->n_events, 0);
        cr_expect_str_eq(k->event[0].kind, world == 1 ? "COMM_NOT_MEASURED" : "COMM_MEASURED");
        cr_expect(strstr(k->event[0].message, world == 1 ? "nobody" : "\"link\":\"within\",\"ranks\":2"),
                  "%s", k->event[0].message);
        if (world == 2) cr_expect_eq(j->rank[1].n_events, 0);
    }
}
