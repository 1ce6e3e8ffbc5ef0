/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_eval.c: evaluation over every validation row exactly once: rows are dealt rank, rank
 * + K, ..., none is repeated to even out the ranks. A rank that runs out still asks the runtime for
 * every unit, so collectives keep the same order everywhere. The loss is the sum over tokens
 * divided by their count, both over all ranks. Thread rule: the trainer thread. */
#include <string.h>

#include "engine/train_int.h"

/* Rows [first, first + n) of this rank: reads them into the window's first micro-batch. */
static int read_rows(struct zt_trainer *t, int64_t first, int64_t n, int32_t *line,
                     struct zt_error *err) {
    int64_t T = t->spec->training.seq_len;
    if (zt_trainer_sim(t)) return 0;
    for (int64_t i = 0; i < n; i++) {
        int rc = zt_dataset_read(t->valid_set, (first + i) * t->dp_size + t->dp_index, line, err);
        if (rc) return rc;
        memcpy(t->window.tokens + i * T, line, (size_t)T * sizeof *line);
        memcpy(t->window.targets + i * T, line + 1, (size_t)T * sizeof *line);
    }
    return 0;
}

static int one_batch(struct zt_trainer *t, const struct zt_unit_source *s, int64_t first, int64_t n,
                     int32_t *line, struct zt_fixsum *loss, int64_t *valid, struct zt_error *err) {
    const struct zt_device_ops *dev = zt_device_ops(t->device);
    struct zt_stream *compute = zt_device_compute(t->device);
    struct zt_batch b = {t->tokens, t->targets, n, t->spec->training.seq_len};
    size_t bytes = (size_t)(n * b.T) * sizeof *t->tokens;
    int rc = 0;
    TRY(read_rows(t, first, n, line, err));
    TRY(dev->copy(compute, t->tokens, t->window.tokens, bytes, err));
    TRY(dev->copy(compute, t->targets, t->window.targets, bytes, err));
    TRY(zt_model_step(t->model, s, &b, 0.0f, false, true, loss, valid, err));
out:
    return rc;
}

/* Sum of loss, tokens and rows over all ranks; tensor rank 0 speaks for its group. */
static int add_ranks(struct zt_trainer *t, struct zt_fixsum *loss, int64_t *valid, int64_t *rows,
                     struct zt_error *err) {
    struct zt_coll_why why = {"", "evaluation sums", t->step, true};
    int64_t words[ZT_FIXSUM_WORDS + 2] = {0};
    if (zt_mesh_coords(t->mesh, t->config->rank).tensor == 0) {
        memcpy(words, loss->word, sizeof loss->word);
        words[ZT_FIXSUM_WORDS] = *valid;
        words[ZT_FIXSUM_WORDS + 1] = *rows;
    }
    int rc = zt_all_reduce(t->control, words, ZT_FIXSUM_WORDS + 2, ZT_I64, ZT_SUM,
                           zt_device_compute(t->device), &why, err);
    memcpy(loss->word, words, sizeof loss->word);
    zt_fixsum_normalise(loss);
    *valid = words[ZT_FIXSUM_WORDS];
    *rows = words[ZT_FIXSUM_WORDS + 1];
    return rc;
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
    struct zt_fixsum loss;
    int rc = 0;
    zt_fixsum_zero(&loss);
    if (s->validation.steps > 0 && s->validation.steps <= n / per_step)
        n = s->validation.steps * per_step; /* at most what there is: no overflow */
    int64_t own = zt_eval_count(n, t->dp_size, t->dp_index), valid = 0;
    int64_t batches = (zt_eval_count(n, t->dp_size, 0) + B - 1) / B; /* rank 0 has the most */
    zt_progress_phase(t, ZT_PHASE_EVAL);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_EVAL);
    zt_alloc_reset_peaks(t->alloc);
    TRY(zt_runtime_eval_begin(t->runtime, err));
    for (int64_t i = 0; i < batches; i++) {
        int64_t left = own - i * B;
        TRY(one_batch(t, &source, i * B,
                      left < 0   ? 0
                      : left < B ? left
                                 : B,
                      t->line, &loss, &valid, err));
        zt_progress_phase(t, ZT_PHASE_EVAL);
    }
    TRY(zt_runtime_eval_end(t->runtime, err));
    TRY(add_ranks(t, &loss, &valid, &own, err));
    t->report.eval_loss = valid ? zt_fixsum_value(&loss) / (double)valid : 0.0;
    t->report.eval_tokens = valid;
    t->report.eval_rows = own;
    t->report.eval_seconds = 1e-9 * (double)(zt_trainer_now(t) - start);
    zt_report_window(&t->ledger, t->runtime, &t->report.eval);
out:
    return rc;
}
