/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options_int.h: what the table of options (options_table.c) and their parser (options.c) share. One thread. */
#ifndef ZT_ZCTL_OPTIONS_INT_H
#define ZT_ZCTL_OPTIONS_INT_H
#include "clients/zctl/options.h"

/* Identity of an option: what the parser does with its value. */
enum {
    OPT_COORD, OPT_TOKEN, OPT_STATE, OPT_SVG, OPT_OUTPUT, OPT_COLOR, OPT_TIMEOUT, OPT_HELP, OPT_SET, OPT_NAME,
    OPT_WORKERS, OPT_FOLLOW, OPT_SHOW, OPT_MEMORY, OPT_THREADS, OPT_RANK, OPT_STEP, OPT_EVERY, OPT_ATTEMPT,
    OPT_TAIL, OPT_LIMIT, OPT_ACTIVE, OPT_ALL, OPT_INTERVAL, OPT_SHARD, OPT_REPLICATE, OPT_RECIPE, OPT_FILE,
    OPT_UNIT, OPT_DEVICE, OPT_COMM, OPT_DURATION, OPT_FORCE, OPT_CURVE, OPT_STEPS, OPT_RESUME, OPT_ACCEPT_BATCH, OPT_RESUME_WORKERS, OPT_DRY_RUN,
    OPT_CAPACITY, OPT_NODES, OPT_GPUS, OPT_SWEEP, OPT_SCHEDULE, OPT_UNITS, OPT_STRAGGLER, OPT_TRACE, OPT_BUDGET, OPT_SELECT,
    OPT_OUT, OPT_DTYPE, OPT_MERGE, OPT_MAX_SHARD, OPT_PROMPT, OPT_TOKENS, OPT_TEMPERATURE, OPT_TOP_K, OPT_SEED
};

/* All but those of `zctl estimate` (options.h). */
#define ZT_OWN_OPTIONS_MAX 96
extern const struct zt_option zt_own_options[];
extern const int zt_n_own_options;

#endif
