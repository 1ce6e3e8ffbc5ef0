/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/json.h: protocol messages as the JSON objects that zctl prints. Field names and their
 * order are stable (docs/manual.md); what was not measured is null; bytes and seconds are numbers.
 * Each function returns a new object of the caller's. One thread. */
#ifndef ZT_ZCTL_JSON_H
#define ZT_ZCTL_JSON_H
#include <jansson.h>
#include <stdbool.h>
#include "core/mesh.h"
#include "proto/ztrain.pb-c.h"

json_t *zt_json_step(const char *run, const Zt__StepRow *row);
/* One rank's row; mesh with a degree of 0: not known. */
json_t *zt_json_rank(const char *run, struct zt_mesh mesh, const Zt__StepReport *r);
json_t *zt_json_summary(const Zt__RunSummary *s);
/* {step, generation, state, bytes, shards, shards_in, verified, pinned, stall_seconds, write_seconds, created,
 * parameter_hash, state_hash, manifest_sha256, folder, message} */
json_t *zt_json_checkpoint(const Zt__Checkpoint *c);
json_t *zt_json_run(const Zt__RunDetail *d);
json_t *zt_json_memory(const Zt__MemoryRow *row, const json_t *predicted); /* NULL: none */
/* {predicted_peak_allocated_bytes, measured_peak_allocated_bytes, difference_bytes, rank, window, unpredicted}: over
 * the windows that were measured so far (memory.c). */
json_t *zt_json_memory_summary(const Zt__RunDetail *d);
json_t *zt_json_dtypes(const Zt__DtypesReport *r);
json_t *zt_json_worker(const Zt__WorkerInfo *w);
json_t *zt_json_event(const Zt__Event *e);
json_t *zt_json_cluster(const Zt__ClusterStatus *s);
/* RFC 3339 UTC; null for 0. */
json_t *zt_json_time(int64_t ms);
json_t *zt_json_text(const char *s);
json_t *zt_json_real(bool has, double v);
json_t *zt_json_int(bool has, int64_t v);

#endif
