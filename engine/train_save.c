/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_save.c: when the trainer saves. A step is saved when checkpoint.interval divides it, when
 * it is the last, and when the run is asked to stop (checkpoint.on_preempt). Ranks decide alike: what
 * decides is in the step's control message. Of an interval that finds the save before it still in flight
 * on some rank nothing is saved, on any; the last save and that of a stop wait for it.
 *
 * The copy comes before the step is reported, so that the report has its time; it is written after, so
 * that no checkpoint is committed of a step that nobody was told of. Memory and thread rules:
 * train_int.h; the writer: checkpoint/save.h. */
#include <stdio.h>

#include "engine/train_int.h"

#define PATIENCE_SECONDS 60.0 /* with a disk that fails at the end of a run: its result is at stake */

static bool saves(const struct zt_trainer *t) { return t->saver != NULL; }

static void sweep(struct zt_trainer *t) {
    const struct zt_checkpoint_config *k = t->config->checkpoint;
    struct zt_error why = {0};
    char text[256];
    if (t->config->rank != 0) return;
    int n = zt_ckpt_sweep(k->sys ? k->sys : &zt_sys_posix, k->folder, t->config->generation, &why);
    if (n == 0 || !t->hooks->event) return;
    if (n > 0)
        snprintf(text, sizeof text, "%s: %d left-over folders of saves that did not end, or of "
                 "checkpoints on their way out, were removed", k->folder, n);
    else
        snprintf(text, sizeof text, "left-over folders stay: %.200s", why.msg);
    t->hooks->event(t->hooks->arg, n > 0 ? ZT_EVENT_INFO : ZT_EVENT_WARNING, "CHECKPOINT_SWEPT",
                    text);
}

int zt_trainer_save_open(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_saver_config c = {.checkpoint = t->config->checkpoint,
                                      .spec = t->spec,
                                      .table = &t->table,
                                      .mesh = t->mesh,
                                      .rank = t->config->rank,
                                      .generation = t->config->generation,
                                      .device = t->device,
                                      .runtime = t->runtime,
                                      .progress = t->config->progress};
    if (!t->spec->checkpoint.enabled) return 0;
    int rc = zt_saver_create(&c, &t->saver, err);
    if (rc == 0 && !zt_trainer_sim(t)) sweep(t);
    return rc;
}

bool zt_trainer_save_busy(const struct zt_trainer *t) { return saves(t) && zt_saver_busy(t->saver); }

/* What the writer has to say, on this thread like every event. */
static void tell_notes(struct zt_trainer *t) {
    struct zt_save_note n;
    while (zt_saver_note(t->saver, &n))
        if (t->hooks->event)
            t->hooks->event(t->hooks->arg, n.warning ? ZT_EVENT_WARNING : ZT_EVENT_INFO, n.kind,
                            n.text);
}

/* Told when their number has doubled. */
static void tell_skipped(struct zt_trainer *t) {
    char text[256];
    int64_t n = ++t->saves_skipped;
    if (t->config->rank != 0 || !t->hooks->event || (n & (n - 1))) return;
    snprintf(text, sizeof text,
             "step %lld is not saved: the save before it is not over on every rank (skipped so far: "
             "%lld); a longer checkpoint.interval, or a faster disk, would avoid it",
             (long long)t->step, (long long)n);
    t->hooks->event(t->hooks->arg, ZT_EVENT_WARNING, "CHECKPOINT_SKIPPED", text);
}

static struct zt_position position(const struct zt_trainer *t) {
    struct zt_position p = {.step = t->step,
                            .updates = zt_runtime_updates(t->runtime),
                            .skipped = t->skipped,
                            .total_steps = t->total_steps,
                            .tokens = t->tokens,
                            .scaled = t->recipe->scaled};
    if (t->loader) {
        p.cursor = zt_loader_cursor(t->loader);
        p.epoch_samples = zt_dataset_samples(t->train_set);
        p.data_digest = zt_dataset_digest(t->train_set);
    }
    if (p.scaled) {
        p.scale = t->scaler.scale;
        p.scale_good = t->scaler.good;
        p.scale_hysteresis_left = t->scaler.hysteresis_left;
    }
    return p;
}

static void copy(struct zt_trainer *t, int64_t start) {
    struct zt_step_report *r = &t->report;
    const struct zt_position p = position(t);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_SAVE);
    zt_alloc_reset_peaks(t->alloc);
    zt_saver_copy(t->saver, &p);
    r->checkpoint_seconds = 1e-9 * (double)(zt_trainer_now(t) - start);
    zt_report_window(&t->ledger, t->runtime, &r->save);
}

void zt_trainer_save(struct zt_trainer *t, bool last) {
    const int64_t start = zt_trainer_now(t);
    if (!saves(t)) return;
    bool must = last || (t->stop && t->spec->checkpoint.on_preempt);
    if (!must && t->step % t->spec->checkpoint.interval) return;
    if (!must && t->saving) {
        tell_skipped(t);
        return;
    }
    zt_progress_phase(t, ZT_PHASE_SAVE);
    zt_saver_wait(t->saver);
    copy(t, start);
}

void zt_trainer_save_write(struct zt_trainer *t) {
    if (!saves(t)) return;
    bool last = t->step == t->total_steps;
    double patience = last ? PATIENCE_SECONDS : t->stop ? t->spec->timeouts.term_grace / 2 : 0;
    zt_saver_write(t->saver, t->report.checkpoint_seconds, patience);
    tell_notes(t);
}

void zt_trainer_save_finish(struct zt_trainer *t) {
    if (!saves(t)) return;
    zt_progress_phase(t, ZT_PHASE_SAVE);
    zt_saver_wait(t->saver);
    tell_notes(t);
}
