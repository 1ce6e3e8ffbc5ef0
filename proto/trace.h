/* SPDX-License-Identifier: Apache-2.0 */
/* proto/trace.h: what every reader of a StepTrace may rely on. A trace comes from a trainer over two
 * programs, or out of a database: whoever reads one checks it first. Owns nothing; any thread. */
#ifndef ZT_PROTO_TRACE_H
#define ZT_PROTO_TRACE_H
#include "proto/ztrain.pb-c.h"

#define ZT_TRACE_PART_RECORDS 1024 /* a longer trace comes in parts */
#define ZT_TRACE_PARTS 1024
#define ZT_TRACE_WORDS 4096
#define ZT_TRACE_WORD_BYTES 63
#define ZT_TRACE_GROUPS 32
#define ZT_TRACE_NS_MAX (INT64_C(1) << 53) /* about 104 days; sums of a part stay far from overflow */

/* NULL when every index is inside its list, every list inside its limit, every time in its order, every
 * byte count and time small enough to be added up; else what is wrong. Static strings. */
const char *zt_trace_check(const Zt__StepTrace *t);

#endif
