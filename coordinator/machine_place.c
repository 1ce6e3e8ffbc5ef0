/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/machine_place.c: which run starts next, and on which workers. Gangs are all or
 * nothing; priority first, then the order of submission. A run that could start once busy workers
 * are free holds back those behind it, so that big gangs do not starve; one that needs more workers
 * than there are does not. Every waiting run says in `detail` what it waits for. Ownership and
 * thread rule: machine.h. */
#include "coordinator/machine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct census {
    int idle, busy, lost, held, small;
}; /* held: cordoned, draining, quarantined or reclaiming */

static bool waiting(const struct mc_run *r) {
    return r->used && (r->row.state == ZT_RUN_QUEUED || r->row.state == ZT_RUN_RESTARTING);
}
static int by_turn(const void *a, const void *b, void *ctx) {
    const struct zt_machine *m = ctx;
    const struct mc_run *x = &m->runs[*(const int *)a], *y = &m->runs[*(const int *)b];
    if (x->row.config.priority != y->row.config.priority)
        return x->row.config.priority > y->row.config.priority ? -1 : 1;
    return x->row.order < y->row.order ? -1 : x->row.order > y->row.order;
}
static int queue_in_turn(struct zt_machine *m) {
    int n = 0;
    for (int i = 0; i < m->n_runs; i++)
        if (waiting(&m->runs[i])) m->queue[n++] = i;
    qsort_r(m->queue, (size_t)n, sizeof *m->queue, by_turn, m);
    return n;
}
uint32_t mc_position(struct zt_machine *m, const struct mc_run *r) {
    int n = queue_in_turn(m);
    for (int i = 0; i < n; i++)
        if (&m->runs[m->queue[i]] == r) return (uint32_t)i + 1;
    return 0;
}

/* Sorts the workers into kinds for this run; fills m->slots with the idle ones. */
static struct census count_workers(struct zt_machine *m, const struct zt_run_config *c) {
    struct census n = {0};
    for (int i = 0; i < m->n_workers; i++) {
        const struct mc_worker *w = &m->workers[i];
        if (!w->used || (c->device[0] && strcmp(c->device, w->row.device))) continue;
        if (mc_worker_state(m, w) == ZT_WORKER_GONE) continue; /* nothing to wait for */
        bool gone = (w->row.flags & ZT_WF_LOST) || !w->registered || !w->connected ||
                    mc_worker_silent(m, w);
        if (c->memory_bytes > w->row.capacity_bytes)
            n.small++;
        else if (w->run >= 0)
            n.busy++;
        else if (gone)
            n.lost++;
        else if ((w->row.flags & (ZT_WF_CORDONED | ZT_WF_DRAINING | ZT_WF_QUARANTINED)) ||
                 w->child.any)
            n.held++;
        else
            m->slots[n.idle++] = (struct zt_slot){w->row.host, w->row.worker_id, i};
    }
    return n;
}

/* The mesh of `world` workers; false when the degrees do not fit it. An open tensor degree is 1. */
bool mc_mesh_for(const struct zt_run_config *c, int world, struct zt_mesh *mesh) {
    if (c->elastic)
        return zt_mesh_shrink((struct zt_mesh){c->replicate, c->shard, c->tensor}, c->fill_shard, world, mesh);
    *mesh = (struct zt_mesh){c->replicate, c->shard, c->tensor < 0 ? 1 : c->tensor};
    bool shard_open = c->shard < 0 && (c->fill_shard || c->replicate > 0);
    if (mesh->shard < 0 && !shard_open) mesh->shard = 1;
    if (shard_open && mesh->replicate < 0) mesh->replicate = 1;
    int *open = shard_open ? &mesh->shard : mesh->replicate < 0 ? &mesh->replicate : NULL;
    if (open) {
        *open = 1;
        *open = world / zt_mesh_world(*mesh);
    }
    return (!open || *open > 0) && zt_mesh_world(*mesh) == world;
}
static bool allowed(const struct zt_run_config *c, int world) {
    return world >= 1 && world <= ZT_MACHINE_WORLD_MAX &&
           (c->allowed[(world - 1) / 64] >> ((world - 1) % 64) & 1);
}
/* How many workers the run takes of `idle` ones; 0 = none fits. */
static int world_for(const struct mc_run *r, int idle, struct zt_mesh *mesh) {
    const struct zt_run_config *c = &r->row.config;
    if (r->row.workers > 0 && !c->elastic) { /* the first allocation fixed it: a restart computes the same numbers */
        *mesh = r->row.mesh;
        return r->row.workers;
    }
    if (c->workers > 0) return mc_mesh_for(c, c->workers, mesh) ? c->workers : 0;
    for (int w = idle < ZT_MACHINE_WORLD_MAX ? idle : ZT_MACHINE_WORLD_MAX; w > 0; w--)
        if (allowed(c, w) && mc_mesh_for(c, w, mesh)) return w;
    return 0;
}

/* The fewest workers that would do; 0 = not known. */
static int least_for(const struct mc_run *r) {
    struct zt_mesh mesh;
    for (int w = 1; w <= ZT_MACHINE_WORLD_MAX; w++)
        if (allowed(&r->row.config, w) && mc_mesh_for(&r->row.config, w, &mesh)) return w;
    return 0;
}

static void say(struct zt_machine *m, struct mc_run *r, const char *text) {
    if (strcmp(r->row.detail, text) == 0) return;
    mc_copy(r->row.detail, sizeof r->row.detail, text);
    mc_dirty_run(m, r);
}
static void say_need(struct zt_machine *m, struct mc_run *r, int need, const struct census *n) {
    char text[ZT_MESSAGE_MAX + 1];
    int k = need > 0
                ? snprintf(text, sizeof text, "need %d worker%s, %d idle", need,
                           need == 1 ? "" : "s", n->idle)
                : snprintf(text, sizeof text,
                           "need a number of workers that fits the degrees and the batch, %d idle",
                           n->idle);
    const struct {
        int n;
        const char *what;
    } more[] = {{n->busy, "busy"},
                {n->lost, "lost"},
                {n->held, "draining or set aside"},
                {n->small, "with too little memory"}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].n)
            k += snprintf(text + k, sizeof text - (size_t)k, ", %d %s", more[i].n, more[i].what);
    say(m, r, text);
}

static void assign_rank(struct zt_machine *m, struct mc_run *r, int rank, int w) {
    struct mc_rank *k = &r->ranks[rank];
    struct mc_worker *worker = &m->workers[w];
    *k = (struct mc_rank){.worker = w, .progress_at = m->now, .have = mc_base(r), .step = mc_base(r)};
    mc_copy(k->row.run_id, sizeof k->row.run_id, r->row.run_id);
    k->row.generation = r->row.generation;
    k->row.rank = rank;
    mc_copy(k->row.worker_id, sizeof k->row.worker_id, worker->row.worker_id);
    mc_copy(k->row.host, sizeof k->row.host, worker->row.host);
    k->row.incarnation = worker->row.incarnation;
    worker->run = (int)(r - m->runs);
    worker->rank = rank;
    worker->step = -1;
    mc_dirty_rank(m, r, k);
    mc_touch(m, w);
}
static void number_on_hosts(struct mc_run *r) {
    for (int i = 0; i < r->world; i++) {
        struct zt_row_rank *k = &r->ranks[i].row;
        for (int j = 0; j < r->world; j++) {
            bool same = strcmp(r->ranks[j].row.host, k->host) == 0;
            k->workers_on_host += same;
            k->local_rank += same && j < i;
        }
    }
}
static void warn_of_mixed_code(struct zt_machine *m, const struct mc_run *r) {
    const struct zt_row_worker *a = &m->workers[r->ranks[0].worker].row;
    for (int i = 1; i < r->world; i++) {
        const struct zt_row_worker *b = &m->workers[r->ranks[i].worker].row;
        if (!strcmp(a->isa, b->isa) && !strcmp(a->backend, b->backend)) continue;
        mc_event(m,
                 (struct mc_note){.level = 2,
                                  .kind = "MIXED_BACKEND",
                                  .run = r,
                                  .worker = &m->workers[r->ranks[i].worker],
                                  .rank = i},
                 "rank 0 on %s runs %s/%s, rank %d on %s runs %s/%s: equal bits are promised only "
                 "within one",
                 a->worker_id, a->isa, a->backend, i, b->worker_id, b->isa, b->backend);
        return;
    }
}
/* Its collectives are inside every layer, where nothing hides them. */
static void warn_of_split_tensor_group(struct zt_machine *m, const struct mc_run *r) {
    const int t = r->row.mesh.tensor;
    for (int i = 0; i < r->world; i++) {
        const struct mc_rank *first = &r->ranks[i - i % t], *k = &r->ranks[i]; /* tensor is innermost */
        if (!strcmp(first->row.host, k->row.host)) continue;
        mc_event(m,
                 (struct mc_note){.level = 2, .kind = "TENSOR_GROUP_SPLIT", .run = r, .rank = i},
                 "tensor group of ranks %d to %d: rank %d is on %s, rank %d on %s; every layer waits "
                 "for the link between them. A tensor_parallel_degree that divides the workers of a "
                 "host keeps groups inside",
                 i - i % t, i - i % t + t - 1, i - i % t, first->row.host, i, k->row.host);
        return;
    }
}
/* One transaction: generation + 1, every rank assigned, every worker leased. Nobody is told before
 * its commit. */
static bool allocate(struct zt_machine *m, struct mc_run *r, int world, struct zt_mesh mesh,
                     int idle, const struct mc_start *start) {
    if (zt_schedule_place(m->slots, idle, mesh, m->order_buf, m->scratch)) return false;
    struct mc_rank *ranks = calloc((size_t)world, sizeof *ranks);
    if (!ranks) return false;
    if (r->row.workers > 0 && world != r->row.workers)
        mc_event(m, (struct mc_note){.level = 2, .kind = "RESIZED", .run = r, .rank = -1},
                 "run %s goes on with %d workers instead of %d (replicate %d x shard %d x tensor %d), the global batch stays; equal "
                 "bits are promised only on an unchanged mesh",
                 r->row.name, world, r->row.workers, mesh.replicate, mesh.shard, mesh.tensor);
    uint32_t newest =
        r->row.generation > r->generation_floor ? r->row.generation : r->generation_floor;
    r->ranks = ranks;
    r->world = world;
    r->row.workers = world;
    r->row.mesh = mesh;
    r->row.generation = newest + !(MC_PLANTED(MC_PLANT_REUSE_GENERATION) && newest > 0);
    r->row.attempt++;
    r->n_failures = 0;
    r->ewma_ns = 0;
    r->pending.on = false;
    r->evidence_at = m->now;
    r->attempt = (struct zt_row_attempt){.generation = r->row.generation,
                                         .attempt = r->row.attempt,
                                         .world = world,
                                         .rank = -1,
                                         .started_ms = m->wall,
                                         .detect_seconds = -1,
                                         .stop_seconds = -1,
                                         .start_seconds = -1,
                                         .form_seconds = -1,
                                         .load_seconds = -1,
                                         .from = start->from,
                                         .start_step = start->step};
    mc_copy(r->attempt.run_id, sizeof r->attempt.run_id, r->row.run_id);
    r->gen_step = r->save_floor = mc_base(r);
    r->committed = r->waits = r->drain.on = false;
    for (int i = 0; i < world; i++) assign_rank(m, r, i, m->slots[m->order_buf[i]].index);
    number_on_hosts(r);
    mc_dirty_attempt(m, r);
    r->row.detail[0] = 0;
    mc_set_state(m, r, ZT_RUN_ALLOCATING);
    warn_of_mixed_code(m, r);
    warn_of_split_tensor_group(m, r);
    return true;
}
/* Tries to start one run. Returns true when those behind it must wait. */
static bool try_run(struct zt_machine *m, struct mc_run *r) {
    struct census n = count_workers(m, &r->row.config);
    bool elastic = r->row.config.elastic;
    bool fills = elastic || (r->row.workers == 0 && r->row.config.workers == 0);
    struct zt_mesh mesh;
    struct mc_start start;
    if (!mc_pick_start(r, &start)) {
        mc_end_without_start(m, r);
        return false;
    }
    int world = world_for(r, n.idle, &mesh);
    if (fills && world > 0 && !mc_elapsed(m, m->fresh_at, m->c.settle_ms)) {
        say(m, r, "workers are still registering");
        return true;
    }
    if (world > 0 && world <= n.idle) {
        if (allocate(m, r, world, mesh, n.idle, &start)) return false;
        say(m, r, "the coordinator is out of memory; it tries again");
        return true;
    }
    if (elastic && world == 0) world = least_for(r);
    say_need(m, r, !elastic && fills && n.idle == 0 ? 1 : world, &n);
    return world > 0 && world <= n.idle + n.busy;
}
void mc_schedule(struct zt_machine *m) {
    if (m->store_failed || !m->live) return;
    int n = queue_in_turn(m);
    const struct mc_run *block = NULL;
    for (int i = 0; i < n; i++) {
        struct mc_run *r = &m->runs[m->queue[i]];
        if (r->row.state == ZT_RUN_RESTARTING &&
            m->now < r->retry_at) { /* it keeps its turn during the backoff */
            struct census c = count_workers(m, &r->row.config);
            if (!block && r->row.workers <= c.idle + c.busy) block = r;
            continue;
        }
        if (!block) {
            if (try_run(m, r)) block = r;
            continue;
        }
        char text[ZT_MESSAGE_MAX + 1];
        snprintf(text, sizeof text, "waiting behind %s (priority %d)", block->row.name,
                 block->row.config.priority);
        say(m, r, text);
    }
}
