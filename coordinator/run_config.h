/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/run_config.h: a run specification as the machine and the database see it. Pure apart from
 * malloc; any thread. */
#ifndef ZT_COORDINATOR_RUN_CONFIG_H
#define ZT_COORDINATOR_RUN_CONFIG_H
#include "coordinator/machine.h"
#include "core/spec.h"

/* Fills c from a parsed spec. workers > 0: that many, checked and with final degrees; 0: as the spec says, or
 * any number `allowed` lists. ZT_EINVAL when no number of workers fits the spec. */
int zt_run_config_from_spec(const struct zt_spec *spec, int workers, const char *file, struct zt_run_config *c,
                            struct zt_error *err);
/* JSON, malloc'ed; NULL: no memory. Reading it back gives the same struct. Unknown keys are ignored, missing
 * ones are zero, so that older rows stay readable. */
char *zt_run_config_to_json(const struct zt_run_config *c);
int zt_run_config_from_json(const char *text, struct zt_run_config *c, struct zt_error *err);
/* [a-z0-9][a-z0-9._-]{0,62} */
bool zt_run_name_valid(const char *name);

#endif
