/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/predict.h: the plan that goes with a submit, and what of it is about a rank of the run. The
 * document (JSON, at most 64 KiB, kept by the coordinator as it is):
 *
 *   version planned_by mode mesh{replicate, shard, tensor} limit_bytes depends_on_capacity assumed[] why
 *   connected[{capacity_bytes, workers, fits}] first_change forced plans[{the plan of one capacity, plan_json.h}]
 *
 * Bytes of a run do not depend on the capacity as long as it fits (unless memory.gc_threshold is set), so one
 * plan is kept for all capacities that have room for it, and one for each that has not. Objects belong to
 * the caller. One thread. */
#ifndef ZT_ZCTL_PREDICT_H
#define ZT_ZCTL_PREDICT_H
#include <jansson.h>
#include "clients/zctl/source.h"
#include "core/spec.h"
#include "engine/plan/plan.h"

#define ZT_PREDICT_MAX_BYTES ((size_t)64 * 1024)
#define ZT_PREDICT_MAX_PLANS 8       /* capacities without room, beyond the first that has */
#define ZT_PREDICT_MAX_CAPACITIES 64

/* The connected workers that the run file does not exclude, by what they offer. */
struct zt_connected {
    int workers, idle;
    int n;                           /* distinct capacities, the largest first */
    struct { int64_t bytes; int workers; } capacity[ZT_PREDICT_MAX_CAPACITIES];
    bool more;                       /* there were more capacities: the smallest are not among them */
};
void zt_connected_add(struct zt_connected *c, int64_t bytes, int workers);
/* Those of list_workers. */
int zt_connected_ask(struct zt_source *s, const struct zt_spec *spec, struct zt_connected *out, struct zt_error *err);

/* The device that a plan is made for; NULL: not in the table. */
const struct zt_cost_device *zt_predict_device(const char *name);
/* What the allocator has: the worker's bytes or memory.limit_gib, in whole segments. */
int64_t zt_predict_capacity(const struct zt_spec *s, int64_t worker_bytes);
/* What a plan needs to know of the data sets, as this machine sees them: samples for evaluation (-1: not known) and
 * steps of a run by epochs (0: not known). why (n bytes): "", or a sentence on what is not known. s: resolved. */
void zt_predict_data(const struct zt_spec *s, int64_t *valid_samples, int64_t *total_steps, char *why, size_t n);

struct zt_predicted {
    json_t *doc;
    bool computed;                   /* there is a plan in it */
    bool none_fits;                  /* workers are connected and no capacity has room */
};
/* spec: parsed, not resolved; workers: of the command line, 0 = as the file says, else as many as are connected
 * and allowed. Never fails on what cannot be planned: the document says why there is no plan. ZT_ENOMEM. */
int zt_predict(const struct zt_spec *spec, const char *file, int workers, const struct zt_connected *c,
               struct zt_predicted *out, struct zt_error *err);
/* The document as text (malloc'ed); NULL: no memory, or more than ZT_PREDICT_MAX_BYTES. */
char *zt_predict_text(const json_t *doc);
/* Lines for people: what was assumed, where it fits; with none_fits the table that refuses it and what helps. */
void zt_predict_say(FILE *out, const struct zt_options *o, const char *name, const struct zt_predicted *p);

/* The first change that makes the run fit plan->capacity_bytes, as a sentence (malloc'ed); NULL: none is known. */
char *zt_first_change(const struct zt_plan_config *plan);

/* ---- reading a stored document ---- */
/* plan bytes as they came; NULL and a reason in why when there is none or it is not one of this version. */
json_t *zt_stored_plan(const void *bytes, size_t n, const char **why);
/* The window of a rank, borrowed from doc; NULL and a reason. capacity 0: not known. */
const json_t *zt_stored_window(const json_t *doc, struct zt_mesh mesh, int rank, const char *window,
                               int64_t capacity, const char **why);
/* The plan that is about a worker of that capacity, borrowed; NULL and a reason. */
const json_t *zt_stored_plan_of(const json_t *doc, int64_t capacity, const char **why);

#endif
