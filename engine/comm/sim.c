/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/sim.c: collectives of one simulated rank: their cost on its clock, and no data. The
 * other ranks are like this one (or, where one of them is slower, begin when sim.starts says).
 * Control traffic is in host memory and carries what ranks decide by, so it is answered: every
 * other rank says what this one says. Thread rule: comm.h; runs at once. */
#include <string.h>
#include "engine/comm/comm_impl.h"
#include "engine/device/sim.h"

/* How many ranks of the group are on this rank's host: neighbours in rank order share one. Counted
 * once a group. */
static int on_this_host(struct zt_comm *c, const struct zt_sim *sim) {
    int per_host = sim->ranks_per_host, n = 0;
    if (per_host < 1) return c->size;
    if (c->state) return (int)(uintptr_t)c->state;
    for (int i = 0; i < c->size; i++) n += c->ranks[i] / per_host == c->world_rank / per_host;
    c->state = (void *)(uintptr_t)n;
    return n;
}

static enum zt_cost_coll cost_kind(enum zt_coll kind) {
    switch (kind) {
    case ZT_COLL_ALL_GATHER:
        return ZT_COST_ALL_GATHER;
    case ZT_COLL_REDUCE_SCATTER:
        return ZT_COST_REDUCE_SCATTER;
    case ZT_COLL_ALL_REDUCE:
        return ZT_COST_ALL_REDUCE;
    case ZT_COLL_BROADCAST:
        return ZT_COST_BROADCAST;
    default:
        return ZT_COST_BARRIER;
    }
}

/* A message of the control group, all ranks saying the same. */
static void answer(const struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                   const void *send, void *recv, int64_t count) {
    size_t bytes = (size_t)count * zt_dtype_size(t);
    if (kind == ZT_COLL_ALL_GATHER)
        for (int i = 0; i < c->size; i++) memmove((char *)recv + (size_t)i * bytes, send, bytes);
    else if (kind == ZT_COLL_ALL_REDUCE && op == ZT_SUM && t == ZT_I64)
        for (int64_t i = 0; i < count; i++) ((int64_t *)recv)[i] *= c->size;
}

static int sim_collective(struct zt_comm *c, enum zt_coll kind, enum zt_redop op, enum zt_dtype t,
                          const void *send, void *recv, int64_t count, int group_root,
                          struct zt_coll_record *r, struct zt_error *err) {
    const struct zt_sim *sim = zt_device_sim(c->device);
    (void)err;
    if (r->control) answer(c, kind, op, t, send, recv, count);
    r->sent_bytes = zt_comm_sent_bytes(c, kind, count, zt_dtype_size(t), group_root);
    if (c->size < 2) return 0;
    if (sim->begins)
        sim->begins(sim->begins_arg, r->id, zt_device_ops(c->device)->now_ns(c->device));
    if (sim->starts && r->id < sim->n_starts) zt_sim_until(c->device, sim->starts[r->id]);
    int64_t ns = zt_cost_collective_ns(sim->device, cost_kind(kind), c->size, on_this_host(c, sim),
                                       r->bytes);
    int64_t now = zt_device_ops(c->device)->now_ns(c->device);
    zt_sim_until(c->device, ns >= 0 && ns < INT64_MAX - now ? now + ns : INT64_MAX);
    return 0;
}

static int sim_split(struct zt_comm *parent, struct zt_comm *child, struct zt_error *err) {
    (void)parent, (void)child, (void)err;
    return 0;
}
static void sim_destroy(struct zt_comm *c) { (void)c; }
static void sim_abort(struct zt_comm *c) { (void)c; }

const struct zt_comm_impl zt_comm_sim = {.name = "sim",
                                         .collective = sim_collective,
                                         .split = sim_split,
                                         .destroy = sim_destroy,
                                         .abort = sim_abort};
