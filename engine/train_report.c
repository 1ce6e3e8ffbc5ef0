/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_report.c: what a step says: memory figures, growth of steady memory, the progress
 * page, reasons. Memory and thread rules: train_int.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/train_int.h"

void zt_progress_phase(struct zt_trainer *t, enum zt_phase p) {
    struct zt_progress *g = t->config->progress;
    if (!g) return;
    atomic_store(&g->phase, (int32_t)p);
    atomic_store(&g->last_progress_ns, zt_trainer_now(t));
}

void zt_progress_state(struct zt_trainer *t, enum zt_trainer_state s) {
    struct zt_progress *g = t->config->progress;
    if (!g) return;
    atomic_store(&g->state, (int32_t)s);
    if (t->device) atomic_store(&g->last_progress_ns, zt_trainer_now(t));
}

/* Resident memory of this process that is neither a device segment nor a peer's: anonymous pages
 * and file pages (code, libraries). Segments are shared memory and counted in neither. -1: not
 * known. */
static int64_t outside_bytes(void) {
    char line[256];
    int64_t sum = 0, kib;
    int found = 0;
    FILE *f = fopen("/proc/self/status", "re");
    if (!f) return -1;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %" SCNd64, &kib) == 1 ||
            sscanf(line, "RssFile: %" SCNd64, &kib) == 1) {
            sum += kib * 1024;
            found++;
        }
    fclose(f);
    return found == 2 ? sum : -1;
}

void zt_report_window(const struct zt_ledger *l, const struct zt_runtime *r,
                      struct zt_window_peak *out) {
    struct zt_state_bytes b = zt_runtime_requested(r);
    out->peak_allocated_bytes = l->peak_allocated;
    out->peak_reserved_bytes = l->peak_reserved;
    out->phase_of_peak = l->phase_of_peak;
    memcpy(out->at_peak, l->at_peak, sizeof out->at_peak);
    out->persistent[0] = b.parameters;
    out->persistent[1] = b.gradients;
    out->persistent[2] = b.optimizer;
}

static const struct zt_window_peak no_window = {.peak_allocated_bytes = -1,
                                                .peak_reserved_bytes = -1};

void zt_report_begin(struct zt_trainer *t) {
    struct zt_step_report *r = &t->report;
    memset(r, 0, sizeof *r);
    r->rank = t->config->rank;
    r->generation = t->config->generation;
    r->step = t->step;
    r->local_loss = r->eval_loss = NAN;
    r->clip_coefficient = r->loss_scale = NAN;
    r->nonfinite_gradients = -1;
    r->checkpoint_seconds = r->eval_seconds = NAN;
    r->eval_tokens = r->eval_rows = -1;
    r->init = r->eval = r->save = r->load = no_window;
    if (t->step == t->resumed + 1) {
        r->init = t->init_peak;
        if (t->load_peak.peak_allocated_bytes) r->load = t->load_peak;
    }
    zt_alloc_reset_peaks(t->alloc);
}

/* The planted fault of the growth test: a block nobody frees, each step from the third. */
static void plant_leak(struct zt_trainer *t) {
    void *p = NULL;
    if (t->step > 2 && ZT_FAILPOINT("engine.leak"))
        zt_malloc(t->alloc, 512, zt_device_compute(t->device), ZT_TAG_ACTIVATIONS, "planted leak",
                  &p, NULL);
}

int zt_report_memory(struct zt_trainer *t, struct zt_error *err) {
    struct zt_step_report *r = &t->report;
    struct zt_state_bytes b = zt_runtime_requested(t->runtime);
    const struct zt_ledger *l = &t->ledger;
    char message[256];
    (void)err;
    plant_leak(t);
    r->phase_of_peak = l->phase_of_peak;
    r->peak_allocated_bytes = l->peak_allocated;
    r->peak_reserved_bytes = l->peak_reserved;
    memcpy(r->at_peak, l->at_peak, sizeof r->at_peak);
    memcpy(r->category_max, l->category_max, sizeof r->category_max);
    r->reserved_at_peak_bytes = l->reserved_at_peak;
    r->max_unused_reserved_bytes = l->max_unused_reserved;
    r->end_of_step_allocated_bytes = l->allocated;
    r->outside_allocator_bytes = t->config->unmeasured || zt_trainer_sim(t) ? -1 : outside_bytes();
    r->persistent_parameters = b.parameters;
    r->persistent_gradients = b.gradients;
    r->persistent_optimizer = b.optimizer;
    if (zt_growth_check(&t->growth, l, r->rank, t->step, message, sizeof message) &&
        t->hooks->event)
        t->hooks->event(t->hooks->arg, ZT_EVENT_WARNING, "MEMORY_GROWTH", message);
    return 0;
}

void zt_report_dtypes(struct zt_trainer *t) {
    struct zt_dtypes_report d = {
        .rank = t->config->rank, .generation = t->config->generation, .step = t->step};
    const char *how = t->kernels->compute(t->ctx, t->recipe->compute);
    if (t->dtypes_told || !t->hooks->dtypes || zt_runtime_updates(t->runtime) < 1) return;
    t->dtypes_told = true;
    snprintf(d.recipe, sizeof d.recipe, "%s", t->recipe->name);
    snprintf(d.compute, sizeof d.compute, "%s", how ? how : "?");
    snprintf(d.kernels, sizeof d.kernels, "%s", t->kernels->describe(t->ctx));
    zt_runtime_dtypes(t->runtime, &d);
    /* The model allocates its activations and calls its kernels in this type. */
    int compute = (int)t->recipe->compute;
    d.row[ZT_ROW_ACTIVATION].stored = d.row[ZT_ROW_ACTIVATION].used = compute;
    d.row[ZT_ROW_COMPUTE].used = compute;
    t->hooks->dtypes(t->hooks->arg, &d);
}

/* From the second step of a generation on nothing new should stay. A leak is reported when it
 * appears and each time it has doubled, so that a slow one does not fill the event log. */
bool zt_growth_check(struct zt_growth *g, const struct zt_ledger *l, int rank, int64_t step,
                     char *message, size_t n) {
    int worst = 0;
    if (g->steps++ < 1) return false;
    if (!g->set) {
        g->set = true;
        g->base_total = l->allocated;
        memcpy(g->base, l->block, sizeof g->base);
        return false;
    }
    int64_t more = l->allocated - g->base_total;
    if (more == 0 || (g->reported != 0 && llabs(more) < 2 * llabs(g->reported))) return false;
    for (int i = 1; i < ZT_TAG_COUNT; i++)
        if (llabs(l->block[i] - g->base[i]) > llabs(l->block[worst] - g->base[worst])) worst = i;
    g->reported = more;
    snprintf(
        message, n,
        "rank %d, step %lld: allocated bytes at the end of the step differ from those of the second step by %+lld "
        "(tag %s %+lld bytes)",
        rank, (long long)step, (long long)more, zt_tag_name((enum zt_tag)worst),
        (long long)(l->block[worst] - g->base[worst]));
    return true;
}

enum zt_reason zt_train_reason(int code, enum zt_stage stage) {
    switch (code) {
    case 0:
        return ZT_REASON_NONE;
    case ZT_EINVAL:
    case ZT_EUNSUPPORTED:
        return ZT_REASON_CONFIG_ERROR;
    case ZT_EVERSION:
        return ZT_REASON_VERSION_MISMATCH;
    case ZT_ENAN:
        return ZT_REASON_NAN_LOSS;
    case ZT_EOOM:
        return ZT_REASON_OOM_DEVICE;
    case ZT_EDATA:
        return ZT_REASON_DATA_ERROR;
    case ZT_EDIVERGED:
        return ZT_REASON_REPLICA_DIVERGED;
    case ZT_ENOMEM:
        return ZT_REASON_OOM_HOST;
    case ZT_EPEER:
        return ZT_REASON_PEER_LOST;
    case ZT_ECOMM:
        return ZT_REASON_COMM_ERROR;
    case ZT_EMISMATCH: /* a fault of the program: it comes again, so its restarts are counted */
        return ZT_REASON_EXIT_NONZERO;
    case ZT_ETIMEOUT:
    case ZT_EUNREACHABLE:
        return stage == ZT_STAGE_COMM ? ZT_REASON_COMM_INIT_TIMEOUT : ZT_REASON_COMM_TIMEOUT;
    case ZT_ECANCELLED:
        return ZT_REASON_USER_CANCEL;
    case ZT_ECORRUPT:
        return ZT_REASON_CKPT_CORRUPT;
    case ZT_ENOTFOUND:
    case ZT_EIO:
        if (stage == ZT_STAGE_LOAD) return ZT_REASON_CKPT_ERROR;
        if (stage == ZT_STAGE_DATA || stage == ZT_STAGE_RUN) return ZT_REASON_DATA_ERROR;
        return stage == ZT_STAGE_COMM ? ZT_REASON_COMM_ERROR : ZT_REASON_EXIT_NONZERO;
    default:
        return ZT_REASON_EXIT_NONZERO;
    }
}
