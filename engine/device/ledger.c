/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/ledger.c: the book of device memory. Every entry is one block; the peak keeps the
 * composition of its own instant, so that at_peak sums to peak_allocated. The caller owns the
 * struct; nothing is allocated here. Thread rule: the trainer thread. */
#include "engine/device/ledger.h"
#include <string.h>
#include "core/error.h"

const char *zt_tag_name(enum zt_tag t) {
    static const char *const names[ZT_TAG_COUNT] = {"parameters",  "gradients", "optimizer",
                                                    "activations", "temporary", "communication"};
    return (unsigned)t < ZT_TAG_COUNT ? names[t] : "unknown";
}

const char *zt_phase_name(enum zt_phase p) {
    static const char *const names[ZT_PHASE_COUNT] = {"init", "forward", "backward", "optimizer",
                                                      "eval", "save",    "load"};
    return (unsigned)p < ZT_PHASE_COUNT ? names[p] : "unknown";
}

void zt_ledger_init(struct zt_ledger *l) { memset(l, 0, sizeof *l); }
void zt_ledger_set_phase(struct zt_ledger *l, enum zt_phase p) { l->phase = p; }

static void note_unused(struct zt_ledger *l) {
    if (l->reserved - l->allocated > l->max_unused_reserved)
        l->max_unused_reserved = l->reserved - l->allocated;
}

void zt_ledger_alloc(struct zt_ledger *l, enum zt_tag t, int64_t requested512, int64_t block) {
    ZT_ASSERT((unsigned)t < ZT_TAG_COUNT && block >= requested512 && requested512 > 0);
    l->block[t] += block;
    l->requested[t] += requested512;
    l->allocated += block;
    if (l->block[t] > l->category_max[t]) l->category_max[t] = l->block[t];
    if (l->allocated > l->peak_allocated) { /* the first instant of a height is its peak */
        l->peak_allocated = l->allocated;
        l->phase_of_peak = l->phase;
        memcpy(l->at_peak, l->block, sizeof l->at_peak);
        l->reserved_at_peak = l->reserved;
    }
    note_unused(l);
}

void zt_ledger_free(struct zt_ledger *l, enum zt_tag t, int64_t requested512, int64_t block) {
    ZT_ASSERT((unsigned)t < ZT_TAG_COUNT);
    ZT_ASSERT(l->block[t] >= block && l->requested[t] >= requested512 && l->allocated >= block);
    l->block[t] -= block;
    l->requested[t] -= requested512;
    l->allocated -= block;
    note_unused(l);
}

/* A segment that is added serves the allocation that is entered next, in the same call of the
 * allocator: the state between the two is no instant, so unused bytes are not noted here. */
void zt_ledger_reserve(struct zt_ledger *l, int64_t delta) {
    l->reserved += delta;
    ZT_ASSERT(l->reserved >= l->allocated);
    if (l->reserved > l->peak_reserved) l->peak_reserved = l->reserved;
}

void zt_ledger_reset_peaks(struct zt_ledger *l) {
    l->peak_allocated = l->allocated;
    l->peak_reserved = l->reserved;
    l->phase_of_peak = l->phase;
    memcpy(l->at_peak, l->block, sizeof l->at_peak);
    l->reserved_at_peak = l->reserved;
    memcpy(l->category_max, l->block, sizeof l->category_max);
    l->max_unused_reserved = l->reserved - l->allocated;
}
