/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/self.c: the communicator of one rank: every collective is a local copy, nothing is
 * sent. Also the collective of a group of one inside any other implementation. Stateless. */
#include <string.h>
#include "engine/comm/comm_impl.h"
#include "engine/comm/reduce.h"

int zt_self_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                       const void *send, void *recv, int64_t count, int group_root,
                       struct zt_coll_record *record, struct zt_error *err) {
    (void)c, (void)group_root, (void)err;
    record->sent_bytes = 0;
    if (kind == ZT_COLL_BARRIER || !count) return 0;
    if (kind == ZT_COLL_ALL_REDUCE || kind == ZT_COLL_REDUCE_SCATTER)
        zt_reduce(t, op, 1, &send, 1, &recv, (size_t)count);
    else if (recv != send)
        memmove(recv, send, (size_t)count * zt_dtype_size(t));
    return 0;
}

static int self_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err) {
    (void)parent, (void)child, (void)err;
    return 0;
}
static void self_destroy(struct zt_comm *c) { (void)c; }
static void self_abort(struct zt_comm *c) { (void)c; } /* the front marks the world as broken */

const struct zt_comm_impl zt_comm_self = {.name = "self",
                                          .collective = zt_self_collective,
                                          .split = self_split,
                                          .destroy = self_destroy,
                                          .abort = self_abort};
