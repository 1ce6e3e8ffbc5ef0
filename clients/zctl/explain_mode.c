/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain_mode.c: `zctl explain MODE`: what a sharding mode holds, sends and when. */
#include "clients/zctl/cmd.h"

int zt_explain_mode(const struct zt_options *o) {
    struct zt_error err;
    return zt_report(zt_fail(&err, ZT_EUNSUPPORTED, "explain %.60s: not in this version", o->subject), &err);
}
