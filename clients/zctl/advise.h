/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/advise.h: an advice (engine/plan/advise.h) as the JSON that `zctl advise` prints, and as a
 * page for people. Field names are stable (docs/manual.md). Objects belong to the caller. One thread. */
#ifndef ZT_ZCTL_ADVISE_H
#define ZT_ZCTL_ADVISE_H
#include "clients/zctl/planning.h"
#include "engine/plan/advise.h"

struct zt_advising {
    const struct zt_planning *of;
    const char *run;               /* a run that is there; NULL: a file */
    const json_t *measured;        /* its out-of-memory (zt_oom_of); NULL or json null: none */
    int64_t failed_step;           /* of it; -1: not told */
    const struct zt_advice *advice;
    const struct zt_selection *selection;
};
json_t *zt_advise_json(const struct zt_advising *a);
/* The table for choosing a mode alone (--select), or all of the advice. */
int zt_advise_print(FILE *out, const struct zt_advising *a, const json_t *doc, bool select_only, struct zt_error *err);
/* For csv and jsonl: the rows that are about what was asked. */
const json_t *zt_advise_rows(const json_t *doc, bool select_only);

#endif
