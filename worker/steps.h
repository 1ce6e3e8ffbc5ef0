/* SPDX-License-Identifier: Apache-2.0 */
/* worker/steps.h: step reports that the coordinator has not acknowledged.
 *
 * Up to ZW_STEPS_FULL reports are kept whole. Beyond, the oldest are thinned to what the roll-up over
 * ranks needs and go to a spill file in the worker's state folder, so that no step is ever lost however
 * long the coordinator is away. Reports leave in the order they came: spilled ones first. Should the file
 * not be writable, thinned reports stay in memory.
 * Memory: everything belongs to the struct; a batch belongs to its taker. One thread. */
#ifndef ZT_WORKER_STEPS_H
#define ZT_WORKER_STEPS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "core/error.h"
#include "core/sys.h"
#include "proto/ztrain.pb-c.h"

#define ZW_STEPS_FULL 3600
#define ZW_BATCH_REPORTS 32
#define ZW_BATCH_BYTES ((size_t)128 * 1024)

struct zw_report { uint8_t *bytes; uint32_t n; bool thin; }; /* packed Zt__StepReport */

struct zw_steps {
    const struct zt_sys *sys;
    char spill_path[1024];       /* "" = no spill file */
    struct zw_report *ring;      /* oldest at head */
    size_t head, n, cap, thin;   /* thin: reports at the head that are thinned already */
    size_t full_max;
    int spill_fd;                /* -1 = not open */
    off_t spill_read, spill_end;
    size_t spilled;              /* reports in the file */
    bool spill_broken;
    uint64_t thinned_ever, lost; /* lost: unreadable in the file */
};
void zw_steps_init(struct zw_steps *s, const struct zt_sys *sys, const char *spill_path);
void zw_steps_free(struct zw_steps *s); /* removes the file */
int zw_steps_push(struct zw_steps *s, const Zt__StepReport *r, struct zt_error *err);
size_t zw_steps_count(const struct zw_steps *s);
void zw_steps_clear(struct zw_steps *s);

struct zw_batch { struct zw_report reports[ZW_BATCH_REPORTS]; size_t n; };
/* Takes the oldest reports out; b->n 0 when there are none. */
void zw_steps_take(struct zw_steps *s, struct zw_batch *b);
void zw_batch_free(struct zw_batch *b);

#endif
