/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/policy.h: a sharding mode is a row of this table, not code. The gather/reduce
 * runtime reads the row. Constant data; any thread. */
#ifndef ZT_ENGINE_POLICY_H
#define ZT_ENGINE_POLICY_H
#include <stdbool.h>
#include "core/layout.h"

enum zt_gather { ZT_GATHER_NEVER = 0, ZT_GATHER_AFTER_UPDATE, ZT_GATHER_BEFORE_USE };
enum zt_reduce { ZT_REDUCE_ALL = 0 /* all-reduce */, ZT_REDUCE_SCATTER };
enum zt_when { ZT_WHEN_WINDOW_END = 0, ZT_WHEN_EVERY_MICRO_STEP };

struct zt_policy {
    enum zt_mode mode;
    bool shard_parameters, shard_gradients, shard_optimizer;
    enum zt_gather gather;
    enum zt_reduce reduce;
    enum zt_when when;
    bool supported; /* false: refused with "not in this version" */
};
const struct zt_policy *zt_policy(enum zt_mode m);

#endif
