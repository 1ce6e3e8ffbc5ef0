/* SPDX-License-Identifier: Apache-2.0 */
/* core/resume.h: what checkpoint.load and model.init_from may say, and what may differ between a run and
 * the one whose checkpoint it goes on from. Pure; any thread. */
#ifndef ZT_CORE_RESUME_H
#define ZT_CORE_RESUME_H
#include "core/spec.h"

/* checkpoint.load: auto (the newest committed checkpoint of this run, else a fresh start) | never |
 * step:N (of this run's folder) | run:ID or run:ID@N (of another run) | weights_only (as auto, but of all
 * that is stored only the parameters; never called a resume). model.init_from: fresh | run:ID[@N] | a
 * folder. ZT_EINVAL names what is expected. */
enum zt_load_kind { ZT_LOAD_AUTO = 0, ZT_LOAD_NEVER, ZT_LOAD_STEP, ZT_LOAD_RUN, ZT_LOAD_WEIGHTS_ONLY, ZT_LOAD_FOLDER, ZT_LOAD_FRESH };
struct zt_load { enum zt_load_kind kind; char run[64]; int64_t step; /* -1: the newest */ };
int zt_load_parse(const char *text, struct zt_load *out, struct zt_error *err);
int zt_init_from_parse(const char *text, struct zt_load *out, struct zt_error *err);

/* What a key of run.yaml may do when a run goes on (decision D34). */
enum zt_resume_rule {
    ZT_RESUME_UNKNOWN = 0, /* not classified: treated as SAME. Never of a key of the schema */
    ZT_RESUME_SAME,        /* must be what it was */
    ZT_RESUME_BATCH,       /* may differ when a change of the batch is accepted */
    ZT_RESUME_FREE,
};
enum zt_resume_rule zt_resume_rule(const char *path); /* "optimizer.lr" */

/* Whether `now` may go on from what `saved` (its normalised specification, parsed; both resolved) has trained.
 * What may change: training.steps, optimizer.lr, lr_scheduler.*, checkpoint.*, restart.*, metrics.*,
 * timeouts.*, comm.*, workers, name, labels, priority, requirements, memory.*, parallelism.* (mesh and mode),
 * activation_checkpoint.*, validation.* but its fraction, which cuts the training files, loss.chunk_tokens,
 * training.local_batch_size. Everything else is refused by name, old and new value; a global batch or length
 * of sequences that differs too, unless accepted (a length never with training.epochs). */
int zt_resume_check(const struct zt_spec *saved, const struct zt_spec *now, bool accept_batch_change, struct zt_error *err);
#endif
