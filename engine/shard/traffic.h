/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/traffic.h: the collectives of one optimizer step, worked out from the layout and the
 * mode alone: what `zctl explain` tells before a run, and what a run's counted bytes are held against.
 * The rules are those at the top of walk.h and runtime_reduce.c. Pure; the caller owns all. */
#ifndef ZT_ENGINE_TRAFFIC_H
#define ZT_ENGINE_TRAFFIC_H
#include "core/spec.h"
#include "engine/shard/layout.h"

enum zt_traffic_kind { ZT_TRAFFIC_GATHER = 0, ZT_TRAFFIC_SCATTER, ZT_TRAFFIC_REDUCE, ZT_TRAFFIC_KINDS };
enum zt_traffic_why {
    ZT_TRAFFIC_FORWARD = 0, /* a unit is about to be used */
    ZT_TRAFFIC_BACKWARD,
    ZT_TRAFFIC_GRADIENTS, /* of a micro-step, or of the window */
    ZT_TRAFFIC_UPDATED,   /* each rank stepped a part */
    ZT_TRAFFIC_PARTIAL,   /* gradients of a part of the rows or heads */
    ZT_TRAFFIC_WHYS
};
struct zt_traffic_event {
    enum zt_traffic_kind kind;
    enum zt_traffic_why why;
    enum zt_axis axis;      /* SHARD, REPLICATE or TENSOR */
    int size;               /* ranks that take part */
    int group;              /* of the layout; -1: of all */
    int64_t micro;          /* 0-based; -1: after the window */
    enum zt_dtype type;
    int64_t elements;       /* of the whole buffer */
    int64_t sent;           /* bytes that a rank sends */
};
struct zt_traffic_peak { int64_t forward, backward; }; /* most bytes of gathered copies at one instant */

/* What the layers of a cut model send over their tensor group is not among them. The table is that
 * of a tensor rank.
 * Calls each(arg, event) for every collective of a step of the resolved spec, by micro-step in the
 * order of the walk; a nonzero answer of `each` ends it and is returned. peak may be NULL. */
int zt_traffic_step(const struct zt_spec *spec, const struct zt_model_table *table,
                    const struct zt_unit_layout *layout,
                    int (*each)(void *arg, const struct zt_traffic_event *e), void *arg,
                    struct zt_traffic_peak *peak, struct zt_error *err);
#endif
