/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/runtime_trace.c: the runtime's own intervals and those of finished collectives, and
 * the bytes that were sent. Ownership and thread rule: runtime.h. */
#include <string.h>

#include "engine/shard/runtime_int.h"

int64_t rt_now(const struct zt_runtime *r) {
    return zt_device_ops(r->env.device)->now_ns(r->env.device);
}

static int add(struct zt_runtime *r, struct zt_interval iv, struct zt_error *err) {
    if (!r->env.intervals || iv.end_ns <= iv.start_ns) return 0;
    if (zt_intervals_add(r->env.intervals, iv))
        return zt_fail(err, ZT_ENOMEM, "step intervals: no host memory");
    return 0;
}

int rt_interval(struct zt_runtime *r, enum zt_interval_kind k, const char *name, int64_t from,
                struct zt_error *err) {
    return add(r, (struct zt_interval){from, rt_now(r), k, NULL, name, false}, err);
}

/* Records hold a copy of the group's name; intervals want a string that lives on. */
static const char *group_name(const char *name) {
    static const char *const names[] = {"dp_shard", "dp_replicate", "dp_reshard",
                                        "tensor",   "control",      "world"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return names[i];
    return "other";
}

/* Stops at the first that has not ended. */
int zt_runtime_collect(struct zt_runtime *r, struct zt_error *err) {
    enum { CHUNK = 64 };
    struct zt_coll_record records[CHUNK];
    r->queued = 0;
    for (;;) {
        int64_t n = zt_comm_log(r->env.world, r->log_seen, records, CHUNK);
        for (int64_t i = 0; i < n; i++) {
            const struct zt_coll_record *c = &records[i];
            if (!c->end_ns) return 0;
            if (!c->control && strcmp(c->group, "tensor"))
                rt_used(r, c->kind == ZT_COLL_ALL_GATHER ? ZT_ROW_GATHERED : ZT_ROW_REDUCE,
                        c->dtype);
            int rc =
                add(r,
                    (struct zt_interval){c->start_ns, c->end_ns, ZT_IV_COMM, group_name(c->group),
                                         zt_coll_name(c->kind), c->control},
                    err);
            if (rc) return rc;
            r->log_seen = c->id;
        }
        if (n < CHUNK) return 0;
    }
}

static int64_t sent_so_far(const struct zt_runtime *r) {
    const struct zt_comm *const groups[] = {r->env.dp_shard, r->env.dp_replicate, r->env.reshard,
                                            r->env.tensor};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) sum += zt_comm_totals(groups[i]).sent_bytes;
    return sum;
}

void rt_sent_begin(struct zt_runtime *r) { r->sent_before = sent_so_far(r); }

int64_t zt_runtime_sent_bytes(const struct zt_runtime *r) {
    return sent_so_far(r) - r->sent_before;
}
