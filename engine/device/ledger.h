/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/ledger.h: where the memory goes: every allocator block carries a tag, every instant a
 * phase. Keeps current and peak bytes and the composition at the peak instant; peaks are reset at
 * each step without forgetting live bytes. Two counts per tag (D4): `requested` = sum of ceil512 of
 * what was asked for (equals the formulas), `block` = what the allocator gave (at_peak, sums to
 * peak_allocated). One thread (the program order of the trainer). No allocation of its own. */
#ifndef ZT_ENGINE_LEDGER_H
#define ZT_ENGINE_LEDGER_H
#include <stddef.h>
#include <stdint.h>

enum zt_tag {
    ZT_TAG_PARAMETERS = 0, ZT_TAG_GRADIENTS, ZT_TAG_OPTIMIZER, ZT_TAG_ACTIVATIONS,
    ZT_TAG_TEMPORARY, ZT_TAG_COMMUNICATION, ZT_TAG_COUNT
};
enum zt_phase {
    ZT_PHASE_INIT = 0, ZT_PHASE_FORWARD, ZT_PHASE_BACKWARD, ZT_PHASE_OPTIMIZER, ZT_PHASE_EVAL,
    ZT_PHASE_SAVE, ZT_PHASE_LOAD, ZT_PHASE_COUNT
};
const char *zt_tag_name(enum zt_tag t);     /* "parameters", ... as in the JSON fields */
const char *zt_phase_name(enum zt_phase p); /* "init", ... */

struct zt_ledger {
    enum zt_phase phase;
    int64_t block[ZT_TAG_COUNT], requested[ZT_TAG_COUNT]; /* current bytes */
    int64_t allocated, reserved;                          /* current */
    /* since the last reset */
    int64_t peak_allocated, peak_reserved;
    enum zt_phase phase_of_peak;
    int64_t at_peak[ZT_TAG_COUNT];          /* block bytes at the peak instant; sums to peak_allocated */
    int64_t reserved_at_peak;
    int64_t category_max[ZT_TAG_COUNT];     /* each tag's own maximum */
    int64_t max_unused_reserved;            /* max over instants of reserved - allocated */
};
void zt_ledger_init(struct zt_ledger *l);
void zt_ledger_set_phase(struct zt_ledger *l, enum zt_phase p);
void zt_ledger_alloc(struct zt_ledger *l, enum zt_tag t, int64_t requested512, int64_t block);
void zt_ledger_free(struct zt_ledger *l, enum zt_tag t, int64_t requested512, int64_t block);
void zt_ledger_reserve(struct zt_ledger *l, int64_t delta);
/* Peak = current for every figure; frees and forgets nothing that is live. */
void zt_ledger_reset_peaks(struct zt_ledger *l);

#endif
