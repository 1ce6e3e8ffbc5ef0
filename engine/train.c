/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train.c: the step loop. One optimizer step is: a window of micro-batches, forward and
 * backward of each, reductions that overlap with backward, one control message, the update
 * (train_step.c); then the hash when it is due, the memory figures, an evaluation when it is due,
 * and the report. What comes before the first step is in train_open.c. Memory: the trainer struct
 * owns everything and zt_trainer_close gives it back. Thread rule: the calling thread is the
 * compute stream. */
#include <string.h>

#include "engine/train_int.h"

static bool hash_due(const struct zt_trainer *t, bool last) {
    int64_t every = t->spec->metrics.parameter_hash_every;
    return last || (every > 0 && t->step % every == 0);
}

static bool eval_due(const struct zt_trainer *t, bool last) {
    const struct zt_spec *s = t->spec;
    if (!s->validation.enabled) return false;
    return last || (s->validation.every_steps > 0 && t->step % s->validation.every_steps == 0);
}

static int one_step(struct zt_trainer *t, struct zt_train_result *result, struct zt_error *err) {
    struct zt_hash128 hash, state;
    int rc = 0;
    zt_report_begin(t);
    zt_trace_begin(t);
    TRY(zt_trainer_step(t, err));
    TRY(zt_trace_end(t, err));
    bool last = t->step == t->total_steps;
    t->report.last = last;
    if (hash_due(t, last)) {
        TRY(zt_trainer_check_hash(t, &hash, err));
        TRY(zt_trainer_state_hash(t, &state, err));
        zt_hash_text(hash, t->report.parameter_hash);
        zt_hash_text(state, t->report.state_hash);
        memcpy(result->parameter_hash, t->report.parameter_hash, sizeof result->parameter_hash);
    }
    TRY(zt_report_memory(t, err));
    zt_report_dtypes(t);
    if (eval_due(t, last)) TRY(zt_trainer_eval(t, err));
    zt_trainer_save(t, last);
    result->steps = t->step;
    if (t->config->progress) atomic_store(&t->config->progress->step, t->step);
    if (t->hooks->step) TRY(t->hooks->step(t->hooks->arg, &t->report, err));
    zt_trainer_save_write(t);
    if (t->stop && !last) {
        zt_trainer_save_finish(t);
        TRY(zt_fail(err, ZT_ECANCELLED, "stopped after step %lld as asked", (long long)t->step));
    }
out:
    return rc;
}

/* A run that was stopped between its last save and its end has nothing left to do: what it says at the
 * end is said of what was loaded. */
static int resumed_at_the_end(struct zt_trainer *t, struct zt_train_result *result,
                              struct zt_error *err) {
    struct zt_hash128 hash;
    result->steps = t->resumed;
    if (!t->resumed || t->resumed < t->total_steps) return 0;
    int rc = zt_trainer_check_hash(t, &hash, err);
    if (rc == 0) zt_hash_text(hash, result->parameter_hash);
    return rc;
}

/* Failures that every rank sees at the same point need no abort: it could only turn a slower rank's
 * own clear message into "a peer is gone". */
static bool seen_by_all(int code) {
    return code == ZT_ENAN || code == ZT_EDIVERGED || code == ZT_ECANCELLED;
}

/* A peer that died, did not come, or gave up: in each case somebody else knows the cause. */
static void name_peer(const struct zt_trainer *t, int rc, struct zt_train_result *result) {
    if (!t->world || (rc != ZT_EPEER && rc != ZT_ETIMEOUT && rc != ZT_ECOMM)) return;
    int peer = zt_comm_failed_rank(t->world);
    if (peer < 0 || peer == t->config->rank) return;
    result->peer = peer;
    if (rc == ZT_ECOMM) result->reason = ZT_REASON_PEER_LOST;
}

static void explain(const struct zt_trainer *t, int rc, struct zt_train_result *result) {
    result->reason = zt_train_reason(rc, t->stage);
    result->phase = t->ledger.phase;
    result->failed_step = t->step;
    name_peer(t, rc, result);
    if (rc == ZT_EDIVERGED) result->peer = t->diverged;
    if (rc == ZT_EOOM && t->alloc && zt_alloc_last_oom(t->alloc)) {
        result->oom = *zt_alloc_last_oom(t->alloc);
        result->has_oom = true;
    }
}

int zt_train(const struct zt_train_config *c, const struct zt_train_hooks *h,
             struct zt_train_result *result, struct zt_error *err) {
    struct zt_trainer trainer = {.config = c, .hooks = h, .spec = c->spec}, *t = &trainer;
    struct zt_error local;
    int rc = 0;
    if (!err) err = &local;
    *result = (struct zt_train_result){.peer = -1};
    TRY(zt_trainer_open(t, err));
    TRY(resumed_at_the_end(t, result, err));
    for (t->step = t->resumed + 1; t->step <= t->total_steps; t->step++) TRY(one_step(t, result, err));
    zt_trainer_save_finish(t);
    zt_progress_state(t, ZT_TRAINER_DONE);
out:
    if (rc) {
        explain(t, rc, result);
        if (rc == ZT_EOOM && zt_trainer_limited(t)) /* --memory-gib, its advice, would not help */
            zt_fail_prefix(err, "memory.limit_gib is %g", c->spec->memory.limit_gib);
        zt_fail_prefix(err, "rank %d", c->rank);
    }
    if (rc == ZT_ENAN) zt_trainer_save_finish(t); /* of a step before, which was good */
    zt_trainer_close(t, rc != 0 && !seen_by_all(rc));
    return rc;
}
