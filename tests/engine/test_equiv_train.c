/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_equiv_train.c: equivalence through the whole trainer, as a run file asks for
 * it: epochs with a short tail, schedule, clipping, evaluation; and evaluation with fewer rows than
 * ranks under modes that gather. */
#include <math.h>
#include <stdarg.h>

#include "tests/engine/train_util.h"

TestSuite(equiv_train, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define T 16
#define MODEL                                                                                      \
    "model: {family: gpt2, layers: 3, heads: 2, dim: 20, ffn_dim: 50, vocab_size: 259, "           \
    "seq_len_max: 17}\n"

/* Bit for bit what the other run reported of every step. */
static void same_run(const struct train_job *a, const struct train_job *b, const char *what) {
    cr_assert_eq(a->rank[0].result.steps, b->rank[0].result.steps, "%s", what);
    for (int s = 1; s <= a->rank[0].result.steps; s++)
        for (int r = 0; r < a->world; r++) {
            const struct zt_step_report *x = &a->rank[r].report[s], *y = &b->rank[0].report[s];
            cr_assert_str_eq(x->parameter_hash, y->parameter_hash, "%s: step %d, rank %d", what, s,
                             r);
            cr_assert_eq(x->loss, y->loss, "%s: step %d, rank %d", what, s, r);
            cr_assert_eq(x->grad_norm, y->grad_norm, "%s: step %d, rank %d", what, s, r);
            cr_assert_eq(x->lr, y->lr);
            cr_assert_eq(x->global_batch, y->global_batch);
            cr_assert(x->eval_loss == y->eval_loss || (isnan(x->eval_loss) && isnan(y->eval_loss)),
                      "%s: step %d: evaluation %.17g, %.17g", what, s, x->eval_loss, y->eval_loss);
            cr_assert_eq(x->eval_rows, y->eval_rows);
        }
}

/* 21 rows of training text and 7 to evaluate; 4 ranks, windows of 8 and a tail of 4 (drop_last: 20
 * rows are dealt), three times over. */
static struct train_job *run(int world, const char *parallelism) {
    const char *train = data_text("train.txt", 21 * T + 1, 7),
               *valid = data_text("valid.txt", 7 * T + 1, 11);
    return train_ok(
        world,
        train_yaml(MODEL
                   "dataset: {path: %s}\nvalidation: {path: %s, every_steps: 4}\n"
                   "training: {epochs: 3, seq_len: %d, local_batch_size: 1, global_batch_size: 8}\n"
                   "optimizer: {lr: 3.0e-3, max_norm: 0.5}\n"
                   "lr_scheduler: {warmup_steps: 2, decay_type: cosine}\n"
                   "metrics: {parameter_hash_every: 1}\nparallelism: {%s}\n",
                   train, valid, T, parallelism));
}

Test(equiv_train, whole_runs_of_every_mode) {
    static const char *const class_a[] = {
        "mode: zero1, wrap: part",
        "mode: fsdp, no_sync: true, reshard_after_forward: 2, prefetch: 2",
        "mode: zero3, no_sync: true, persistence_threshold: 60, bucket_mib: 0.01"};
    static const char *const class_b[] = {
        "mode: zero3, wrap: 2, prefetch: 2, persistence_threshold: 20",
        "mode: fsdp, reshard_after_forward: 2, max_inflight_reduces: 2, bucket_mib: 0.004",
        "mode: fsdp, reshard_after_forward: false, overlap: false"};
    struct train_job *a = run(4, "mode: ddp"), *b = run(4, "mode: zero2");
    cr_assert_eq(a->rank[0].result.steps, 9);
    cr_assert_eq(a->rank[0].report[3].global_batch, 4, "the short tail");
    cr_assert_eq(a->rank[0].report[4].eval_rows, 7);
    cr_assert_gt(a->rank[0].report[9].grad_norm, 0.5, "the clip is at work");
    for (size_t i = 0; i < sizeof class_a / sizeof *class_a; i++)
        same_run(run(4, class_a[i]), a, class_a[i]);
    for (size_t i = 0; i < sizeof class_b / sizeof *class_b; i++)
        same_run(run(4, class_b[i]), b, class_b[i]);
    for (int s = 1; s <= 9; s++) {
        double x = a->rank[0].report[s].loss, y = b->rank[0].report[s].loss;
        cr_assert_float_eq(x, y, 1e-6 * x, "step %d: %.9g and %.9g", s, x, y);
    }
    cr_assert_str_neq(a->rank[0].result.parameter_hash, b->rank[0].result.parameter_hash);
}

/* Replicas of shards, by the run file's degrees: all ranks report the same (the trainer itself
 * compares the replicas' parameters), ddp's losses come out. */
Test(equiv_train, replicas_of_shards) {
    struct train_job *ddp = run(4, "mode: ddp"), *first = NULL;
    static const char *const modes[] = {"zero2", "zero3", "fsdp"};
    for (int i = 0; i < 3; i++) {
        char p[160];
        snprintf(p, sizeof p,
                 "mode: %s, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2",
                 modes[i]);
        struct train_job *j = run(4, p);
        if (!first) first = j;
        same_run(j, first, p);
        for (int s = 1; s <= 9; s++)
            cr_assert_float_eq(j->rank[0].report[s].loss, ddp->rank[0].report[s].loss,
                               1e-6 * ddp->rank[0].report[s].loss, "%s step %d", p, s);
    }
}

/* B07: the norm is that of the whole gradient on every rank, in every mode, at every world. A norm
 * of one rank's shard would be about sqrt(world) too small. */
Test(equiv_train, gradient_norm_of_all_shards_on_every_rank) {
    double one = 0;
    for (int world = 1; world <= 4; world *= 2)
        for (int m = 0; m < ZT_MODE_COUNT; m++) {
            struct train_job *j = train_ok(
                world, train_yaml(MODEL "dataset: {path: %s, shuffle: false}\n"
                                        "training: {steps: 2, seq_len: %d, local_batch_size: %d}\n"
                                        "optimizer: {lr: 1.0e-3}\nparallelism: {mode: %s}\n",
                                  data_text("train.txt", 40 * T, 7), T, 4 / world,
                                  zt_mode_name((enum zt_mode)m)));
            for (int s = 1; s <= 2; s++)
                for (int r = 0; r < world; r++)
                    cr_assert_eq(j->rank[r].report[s].grad_norm, j->rank[0].report[s].grad_norm);
            double norm = j->rank[0].report[1].grad_norm;
            if (one == 0) one = norm;
            cr_assert_float_eq(norm, one, 1e-5 * one, "world %d, %s: %.9g, not %.9g", world,
                               zt_mode_name((enum zt_mode)m), norm, one);
        }
}

/* ---- evaluation ---- */

#define RECORDS 512

/* The collectives of a rank, control traffic too, in the order of the calls. */
static int64_t log_of(const struct train_job *j, int rank, struct zt_coll_record *out) {
    const struct zt_progress *p = rank ? j->page[rank] : j->progress;
    return zt_comm_log_read((const char *)p + ZT_PROGRESS_RING,
                            j->progress_bytes - ZT_PROGRESS_RING, 0, out, RECORDS);
}

static struct train_job *evaluate(int world, int rows, const char *parallelism) {
    const char *train = data_text("train.txt", 40 * T, 7);
    char name[32];
    snprintf(name, sizeof name, "valid%d.txt", rows);
    const char *valid = data_text(name, (size_t)(rows * T + 1), 11);
    struct train_job *j = train_start(
        world, train_yaml(MODEL "dataset: {path: %s}\nvalidation: {path: %s, every_steps: 1}\n"
                                "training: {steps: 2, seq_len: %d, local_batch_size: 1}\n"
                                "optimizer: {lr: 1.0e-30}\nparallelism: {%s}\n",
                          train, valid, T, parallelism));
    j->progress_bytes = ZT_PROGRESS_RING + zt_comm_log_bytes(RECORDS);
    for (int r = 0; r < world; r++)
        *(r ? &j->page[r] : &j->progress) = ranks_map(j->progress_bytes);
    train_go(j, 0);
    for (int r = 0; r < world; r++) cr_assert_eq(j->rank[r].rc, 0, "%s", j->rank[r].err.msg);
    return j;
}

/* The rate is too small to move a parameter, so all worlds evaluate the same weights: the loss is
 * world 1's bit for bit. Ranks without rows gather like the others. */
Test(equiv_train, evaluation_with_unequal_rows) {
    static const char *const modes[] = {
        "mode: zero3", "mode: fsdp", "mode: fsdp, reshard_after_forward: false, prefetch: 2",
        "mode: fsdp, reshard_after_forward: 2, wrap: part",
        "mode: zero3, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2"};
    static const int rows[] = {5, 2, 9};
    static struct zt_coll_record log[RECORDS], other[RECORDS];
    for (int k = 0; k < 3; k++) {
        double one = evaluate(1, rows[k], "mode: ddp")->rank[0].report[2].eval_loss;
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            struct train_job *j = evaluate(4, rows[k], modes[m]);
            int64_t n = log_of(j, 0, log), evals = 0;
            cr_assert(n > 0 && n < RECORDS);
            for (int64_t i = 0; i < n; i++) evals += strstr(log[i].reason, "eval") != NULL;
            cr_assert_gt(evals, 0);
            for (int r = 0; r < 4; r++) {
                cr_assert_eq(j->rank[r].report[2].eval_rows, rows[k]);
                cr_assert_eq(j->rank[r].report[2].eval_loss, one, "%s, %d rows: %.17g, not %.17g",
                             modes[m], rows[k], j->rank[r].report[2].eval_loss, one);
                cr_assert_eq(log_of(j, r, other), n);
                for (int64_t i = 0; i < n; i++) {
                    const struct zt_coll_record *x = &log[i], *y = &other[i];
                    cr_assert(x->kind == y->kind && x->count == y->count && x->dtype == y->dtype &&
                                  !strcmp(x->unit, y->unit) && !strcmp(x->group, y->group) &&
                                  !strcmp(x->reason, y->reason),
                              "%s, %d rows: collective %lld of rank %d is %s of %s", modes[m],
                              rows[k], (long long)i, r, zt_coll_name(y->kind), y->unit);
                }
            }
        }
    }
}

/* ---- time: order and shares, no lengths ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Over steps and ranks: the share of communication that is exposed, the middle one or the least. A rank that
 * others keep from its core is late, and all wait for it: the least one is of a step in which none was. */
static double exposed_share(const struct train_job *j, int steps, bool least) {
    double share[TRAIN_STEPS_MAX * RANKS_MAX];
    int n = 0;
    for (int s = 2; s <= steps; s++)
        for (int r = 0; r < j->world; r++) {
            const struct zt_exposed *e = &j->rank[r].report[s].exposed;
            cr_assert_gt(e->comm_seconds, 0);
            cr_assert_leq(e->exposed_comm_seconds, e->comm_seconds + 1e-9);
            cr_assert_float_eq(e->compute_seconds + e->exposed_comm_seconds + e->idle_seconds,
                               e->step_seconds, 1e-6, "what the step is made of");
            share[n++] = e->exposed_comm_seconds / e->comm_seconds;
        }
    qsort(share, (size_t)n, sizeof *share, by_value);
    return share[least ? 0 : n / 2];
}

/* B71: with a link that costs something, overlap hides communication behind compute and its absence
 * exposes all of it; the same bytes go either way. */
Test(equiv_train, overlap_hides_communication) {
    enum { STEPS = 6 };
    static const char *const modes[] = {"ddp", "zero2", "zero3"};
    const char *path = data_text("train.txt", 100000, 7);
    for (int m = 0; m < 3; m++) {
        struct train_job *j[2];
        for (int on = 0; on < 2; on++) {
            j[on] = train_start(
                2,
                train_yaml("model: {family: gpt2, layers: 8, heads: 4, dim: 64, vocab_size: 256, "
                           "seq_len_max: 64}\ndataset: {path: %s}\n"
                           "training: {steps: %d, seq_len: 64, local_batch_size: 8}\n"
                           "parallelism: {mode: %s, overlap: %s}\n",
                           path, STEPS, modes[m], on ? "true" : "false"));
            j[on]->inject.alpha_ns = 1000000;
            train_go(j[on], 0);
        }
        double off = exposed_share(j[0], STEPS, false), on = exposed_share(j[1], STEPS, true);
        cr_assert_gt(off, 0.98, "%s without overlap: %g", modes[m], off);
        cr_assert_lt(on, 0.85, "%s with overlap: %g", modes[m], on);
        for (int r = 0; r < 2; r++) {
            const struct zt_step_report *x = &j[0]->rank[r].report[STEPS],
                                        *y = &j[1]->rank[r].report[STEPS];
            cr_assert_eq(x->sent_bytes, y->sent_bytes);
            cr_assert_gt(x->sent_bytes, 0);
            cr_assert_str_eq(x->parameter_hash, y->parameter_hash);
        }
    }
}

/* B73: a rank that comes late makes the other's gathers long; they are exposed and marked as
 * waiting, once, however many collectives there are. One rank alone exposes nothing. */
Test(equiv_train, a_late_rank_is_a_wait) {
    const char *yaml = train_yaml(MODEL "dataset: {path: %s}\n"
                                        "training: {steps: 4, seq_len: %d, local_batch_size: 1}\n"
                                        "parallelism: {mode: zero3}\n",
                                  data_text("train.txt", 100 * T, 7), T);
    struct train_job *j = train_start(2, yaml), *one = train_ok(1, yaml);
    j->sleep_rank = 1;
    j->sleep_ms = 200;
    train_go(j, 0);
    for (int s = 2; s <= 4; s++) {
        const struct zt_step_report *r = &j->rank[0].report[s], *late = &j->rank[1].report[s];
        double by = 0, gathers = 0;
        cr_assert_geq(r->exposed.exposed_comm_seconds, 0.15);
        cr_assert_geq(r->straggler_wait_seconds, 0.15);
        cr_assert_eq(late->straggler_wait_seconds, 0.0);
        for (int i = 0; i < r->exposed.n_by; i++) {
            by += r->exposed.by[i].seconds;
            cr_assert_str_eq(r->exposed.by[i].group, "dp_shard");
            if (!strcmp(r->exposed.by[i].kind, "all_gather")) gathers = r->exposed.by[i].seconds;
        }
        cr_assert_float_eq(by, r->exposed.exposed_comm_seconds, 1e-9);
        cr_assert_geq(gathers, 0.15, "the first gather is where it waits");
        cr_assert_leq(r->exposed.exposed_comm_seconds, r->step_seconds, "counted once");
        cr_assert_eq(one->rank[0].report[s].exposed.comm_seconds, 0.0);
        cr_assert_eq(one->rank[0].report[s].straggler_wait_seconds, 0.0);
    }
    exposed_share(j, 4, false);
}
