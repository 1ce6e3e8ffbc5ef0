/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain_run.c: `zctl explain RUN --step N`: the collectives of a step, in order. */
#include "clients/zctl/cmd.h"

int zt_explain_run(const struct zt_options *o) {
    struct zt_error err;
    return zt_report(zt_fail(&err, ZT_EUNSUPPORTED, "\"%.60s\" is not a mode, and explaining the steps of a run is "
                             "not in this version; the modes: zctl explain modes", o->subject),
                     &err);
}
