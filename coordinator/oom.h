/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/oom.h: what an out-of-memory is told with: the line of core/oom_advice.h that its place selects, and
 * the first change that fits, which came with the plan. Any thread, with a database handle of its own. */
#ifndef ZT_COORDINATOR_OOM_H
#define ZT_COORDINATOR_OOM_H
#include <sqlite3.h>
#include "core/error.h"
#include "proto/ztrain.pb-c.h"

/* Fills d->location and d->first_change (malloc'ed, as protobuf-c frees them; NULL: the plan names none). step: as
 * in the failure's row, -1 not told. */
int zt_oom_explain(sqlite3 *db, const char *run_id, uint32_t generation, int32_t rank, int64_t step, Zt__OomDetail *d,
                   struct zt_error *err);

#endif
