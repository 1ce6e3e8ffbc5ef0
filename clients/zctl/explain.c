/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain.c: `zctl explain WORD`. A mode's name is explained as a mode, anything else is a
 * run; a run that is called like a mode is meant when --step is given. */
#include <string.h>
#include "clients/zctl/cmd.h"
#include "core/modes.h"

int zt_cmd_explain(const struct zt_options *o) {
    bool step = o->step_from > 0 || o->step_to > 0;
    if (!step && (strcmp(o->subject, "modes") == 0 || zt_mode_word_find(o->subject)))
        return zt_explain_mode(o);
    return zt_explain_run(o);
}
