/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_eval.c: evaluation over every validation row exactly once: rows are dealt rank, rank
 * + K, ..., none is repeated to even out the ranks. A rank that runs out still asks the runtime for
 * every unit, so collectives keep the same order everywhere. The loss is averaged as in training
 * (loss.average): the sum over tokens, each times its weight, divided by the weights, both over all
 * ranks. Thread rule: the trainer thread. */
#include <string.h>

#include "engine/train_int.h"

/* What a rank, or all of them, have evaluated so far. */
struct sums {
    struct zt_fixsum loss, weight;
    int64_t valid, rows;
};

/* Rows [first, first + n) of this rank: reads them into the window's first micro-batch. */
static int read_rows(struct zt_trainer *t, int64_t first, int64_t n, struct sums *s,
                     struct zt_error *err) {
    int64_t T = t->spec->training.seq_len;
    if (zt_trainer_sim(t)) return 0;
    for (int64_t i = 0; i < n; i++) {
        struct zt_row row = zt_row_at(&t->window.all, i * T);
        int rc = zt_dataset_read(t->valid_set, (first + i) * t->dp_size + t->dp_index, &row, err);
        if (rc) return rc;
        if (row.weights) zt_fixsum_add_floats(&s->weight, row.weights, (size_t)T);
    }
    return 0;
}

static int one_batch(struct zt_trainer *t, const struct zt_unit_source *source, int64_t first,
                     int64_t n, struct sums *s, struct zt_error *err) {
    struct zt_batch b;
    int rc = 0;
    TRY(read_rows(t, first, n, s, err));
    TRY(zt_trainer_feed(t, &t->window.all, n, first, &b, err));
    TRY(zt_model_step(t->model, source, &b, 0.0f, false, true, &s->loss, &s->valid, err));
out:
    return rc;
}

/* Sums over all ranks; tensor rank 0 speaks for its group. */
static int add_ranks(struct zt_trainer *t, struct sums *s, struct zt_error *err) {
    struct zt_coll_why why = {"", "evaluation sums", t->step, true};
    enum { W_WEIGHT = ZT_FIXSUM_WORDS, W_VALID = 2 * ZT_FIXSUM_WORDS, W_ROWS, WORDS };
    int64_t words[WORDS] = {0};
    if (zt_mesh_coords(t->mesh, t->config->rank).tensor == 0) {
        memcpy(words, s->loss.word, sizeof s->loss.word);
        memcpy(words + W_WEIGHT, s->weight.word, sizeof s->weight.word);
        words[W_VALID] = s->valid;
        words[W_ROWS] = s->rows;
    }
    int rc = zt_all_reduce(t->control, words, WORDS, ZT_I64, ZT_SUM, zt_device_compute(t->device),
                           &why, err);
    memcpy(s->loss.word, words, sizeof s->loss.word);
    memcpy(s->weight.word, words + W_WEIGHT, sizeof s->weight.word);
    zt_fixsum_normalise(&s->loss);
    zt_fixsum_normalise(&s->weight);
    s->valid = words[W_VALID];
    s->rows = words[W_ROWS];
    return rc;
}

static void report(struct zt_trainer *t, const struct sums *s, int64_t start) {
    struct zt_step_report *r = &t->report;
    bool token = t->spec->loss.average == ZT_AVERAGE_TOKEN;
    double weight = token ? (double)s->valid : zt_fixsum_value(&s->weight);
    r->eval_loss = s->valid ? zt_fixsum_value(&s->loss) / weight : 0.0;
    r->eval_tokens = s->valid;
    r->eval_rows = s->rows;
    r->eval_seconds = 1e-9 * (double)(zt_trainer_now(t) - start);
    zt_report_window(&t->ledger, t->runtime, &r->eval);
}

/* Simulated, and the data are not there: as many as make one full batch on every rank. */
static int64_t samples(const struct zt_trainer *t) {
    const struct zt_sim *sim = zt_trainer_sim(t);
    if (!sim) return zt_dataset_samples(t->valid_set);
    return sim->valid_samples < 0 ? t->spec->training.local_batch_size * t->dp_size
                                  : sim->valid_samples;
}

int zt_trainer_eval(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    struct zt_unit_source source = zt_runtime_source(t->runtime);
    int64_t B = s->training.local_batch_size, n = samples(t);
    int64_t per_step = B * t->dp_size, start = zt_trainer_now(t);
    struct sums sums = {.valid = 0};
    int rc = 0;
    zt_fixsum_zero(&sums.loss);
    zt_fixsum_zero(&sums.weight);
    if (s->validation.steps > 0 && s->validation.steps <= n / per_step)
        n = s->validation.steps * per_step; /* at most what there is: no overflow */
    sums.rows = zt_eval_count(n, t->dp_size, t->dp_index);
    int64_t batches = (zt_eval_count(n, t->dp_size, 0) + B - 1) / B; /* rank 0 has the most */
    zt_progress_phase(t, ZT_PHASE_EVAL);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_EVAL);
    zt_alloc_reset_peaks(t->alloc);
    TRY(zt_runtime_eval_begin(t->runtime, err));
    for (int64_t i = 0; i < batches; i++) {
        int64_t left = sums.rows - i * B;
        TRY(one_batch(t, &source, i * B, left < 0 ? 0 : left < B ? left : B, &sums, err));
        zt_progress_phase(t, ZT_PHASE_EVAL);
    }
    TRY(zt_runtime_eval_end(t->runtime, err));
    TRY(add_ranks(t, &sums, err));
    report(t, &sums, start);
out:
    return rc;
}
