/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/calibrate.h: from the lines that zworker --calibrate prints (worker/calibrate.h) to an
 * entry of the table of devices (engine/plan/devices.h). Pure but for malloc; one thread. */
#ifndef ZT_ZCTL_CALIBRATE_H
#define ZT_ZCTL_CALIBRATE_H
#include <jansson.h>
#include "core/cost.h"

/* What was measured, the caller's until zt_measurements_free. */
struct zt_measurements {
    json_t *machine;                    /* object */
    json_t *operators, *collectives;    /* arrays */
    json_t *cuts;                       /* texts: what was left out and why */
    char links[160];                    /* between whom collectives were measured */
    bool done;
};
int zt_measurements_init(struct zt_measurements *m, struct zt_error *err);
/* One line; ZT_EPROTO when it is none of those. */
int zt_measurements_add(struct zt_measurements *m, const char *line, struct zt_error *err);
void zt_measurements_free(struct zt_measurements *m);

struct zt_options;
/* Collectives between the workers of --coord, for about so many seconds. */
int zt_calibrate_links(const struct zt_options *o, double seconds, struct zt_measurements *m, struct zt_error *err);

/* The entry, a new object. What was not measured now is kept from `old` (the entry of that name as it is in the
 * user's table; NULL: there is none): links where no collective was, operators where no machine was. A link that
 * never was is that of `otherwise`. How far off the fits are is in it: measured.errors {"gemm fp32": 0.05,
 * "link within": 0.3, ...}. */
int zt_calibrate_entry(const struct zt_measurements *m, const char *name, const char *date,
                       const struct zt_cost_device *otherwise, const json_t *old, json_t **entry, struct zt_error *err);

#endif
