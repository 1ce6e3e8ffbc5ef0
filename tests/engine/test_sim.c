/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_sim.c: the simulated device: clocks of streams and events by hand, where
 * segments lie (as on the cpu device), collectives by the ring formula, and the trainer on it.
 * Times are arithmetic on round numbers: a GEMM rate of 1e9 FLOP/s makes 2 M N K the nanoseconds.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/comm/comm.h"
#include "engine/device/alloc.h"
#include "engine/device/sim.h"
#include "engine/plan/plan.h"

#define SEG ((size_t)2 << 20)

static struct zt_cost_device table(bool queued) {
    struct zt_cost_device d = {.name = "test",
                               .queued = queued,
                               .memory_bytes = INT64_C(1) << 40,
                               .memory_bytes_per_second = 1e9,
                               .within = {100, 1e9, 0},
                               .across = {1000, 1e8, 0}};
    d.host_ns = queued ? 10 : 0;
    d.flops[ZT_COST_GEMM][ZT_F32] = 1e9;
    return d;
}

static struct zt_device *open_sim(const struct zt_sim *s, size_t capacity) {
    struct zt_device *d = NULL;
    struct zt_error e = {0};
    struct zt_device_config c = {"sim", capacity, s};
    cr_assert_eq(zt_device_open(&c, &d, &e), 0, "%s", e.msg);
    return d;
}

static int64_t now(struct zt_device *d) { return zt_device_ops(d)->now_ns(d); }

struct work {
    struct zt_device *d;
    int64_t ns, began;
};
static int do_work(void *arg, struct zt_error *err) {
    struct work *w = arg;
    (void)err;
    w->began = now(w->d);
    zt_sim_work(w->d, w->ns);
    return 0;
}

/* On a device that computes itself, what goes to another stream begins when it is handed over, and
 * compute stands still for what is left of it. */
Test(sim, clocks_of_a_cpu) {
    struct zt_cost_device t = table(false);
    struct zt_sim s = {.device = &t};
    struct zt_device *d = open_sim(&s, 4 * SEG);
    const struct zt_device_ops *o = zt_device_ops(d);
    struct zt_stream *side;
    struct zt_event *e;
    int64_t stalled = -1, start = now(d);
    cr_assert_eq(o->stream_create(d, ZT_STREAM_GATHER, &side, NULL), 0);
    cr_assert_eq(o->event_create(d, &e, NULL), 0);
    zt_sim_work(d, 100);
    struct work w = {d, 500, 0};
    cr_assert_eq(o->submit(side, do_work, &w, NULL), 0);
    cr_assert_eq(w.began, start + 100);
    cr_assert_eq(now(d), start + 100, "compute goes on meanwhile");
    o->event_record(e, side, NULL);
    zt_sim_work(d, 200);
    o->stream_wait_event(zt_device_compute(d), e, &stalled, NULL);
    cr_assert_eq(stalled, 300);
    cr_assert_eq(now(d), start + 600);
    o->stream_wait_event(zt_device_compute(d), e, &stalled, NULL);
    cr_assert_eq(stalled, 0);
    o->event_destroy(e);
    o->stream_destroy(side);
    zt_device_close(d);
}

/* Where the host only queues, a side stream begins when the host gets there (10 ns an operator),
 * long before compute has done what was queued before; waiting for compute by an event holds it
 * back. */
Test(sim, clocks_of_a_queue) {
    struct zt_cost_device t = table(true);
    struct zt_sim s = {.device = &t};
    struct zt_device *d = open_sim(&s, 4 * SEG);
    const struct zt_device_ops *o = zt_device_ops(d);
    struct zt_stream *side;
    struct zt_event *e;
    int64_t start = now(d);
    cr_assert_eq(o->stream_create(d, ZT_STREAM_GATHER, &side, NULL), 0);
    cr_assert_eq(o->event_create(d, &e, NULL), 0);
    zt_sim_work(d, 1000);
    zt_sim_work(d, 1000);
    struct work w = {d, 500, 0};
    o->submit(side, do_work, &w, NULL);
    cr_assert_eq(w.began, 20);
    o->event_record(e, zt_device_compute(d), NULL);
    o->stream_wait_event(side, e, NULL, NULL);
    o->submit(side, do_work, &w, NULL);
    cr_assert_geq(w.began, start + 2000);
    o->event_destroy(e);
    o->stream_destroy(side);
    zt_device_close(d);
}

/* A random program of segments: the same offsets on both devices, and the same refusal. */
Test(sim, segments_lie_as_on_the_cpu) {
    struct zt_cost_device t = table(false);
    struct zt_sim s = {.device = &t};
    struct zt_device *d[2] = {NULL, open_sim(&s, 16 * SEG)};
    struct zt_device_config c = {.name = "cpu", .capacity_bytes = 16 * SEG};
    void *live[2][64] = {{0}}, *first[2] = {0};
    size_t size[64] = {0};
    uint32_t x = 7;
    cr_assert_eq(zt_device_open(&c, &d[0], NULL), 0);
    for (int i = 0; i < 2000; i++) {
        x = x * 1664525 + 1013904223;
        int k = (int)(x >> 26), rc[2] = {0};
        bool was_live = live[0][k];
        size_t bytes = was_live ? size[k] : SEG * (1 + (x >> 20) % 3);
        for (int j = 0; j < 2; j++) {
            const struct zt_device_ops *o = zt_device_ops(d[j]);
            if (was_live) {
                o->segment_free(d[j], live[j][k], bytes);
                live[j][k] = NULL;
            } else
                rc[j] = o->segment_alloc(d[j], bytes, &live[j][k], NULL);
            if (!first[j]) first[j] = live[j][k];
        }
        size[k] = bytes;
        cr_assert_eq(rc[0], rc[1]);
        cr_assert_eq(!live[0][k], was_live || rc[0]);
        if (live[0][k])
            cr_assert_eq((char *)live[0][k] - (char *)first[0],
                         (char *)live[1][k] - (char *)first[1]);
    }
    for (int k = 0; k < 64; k++)
        for (int j = 0; j < 2 && live[0][k]; j++)
            zt_device_ops(d[j])->segment_free(d[j], live[j][k], size[k]);
    zt_device_close(d[0]);
    zt_device_close(d[1]);
}

/* alpha x rounds + sent / B: 4 ranks of one host, 4 on two hosts (two links side by side). */
Test(sim, collectives_cost_a_ring) {
    struct zt_cost_device t = table(false);
    struct zt_error e = {0};
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct zt_sim s = {.device = &t, .ranks_per_host = hosts == 1 ? 4 : 2};
        struct zt_device *d = open_sim(&s, 4 * SEG);
        struct zt_comm *world;
        cr_assert_eq(zt_comm_init(NULL, 2, 4, d, 1.0, &world, &e), 0, "%s", e.msg);
        char *buffer = (char *)4096; /* no memory: nobody may look */
        int64_t before = now(d);
        cr_assert_eq(zt_all_reduce(world, buffer, 1000, ZT_F32, ZT_SUM, NULL, NULL, &e), 0);
        int64_t ns = now(d) - before;
        /* 2 x 3/4 x 4000 bytes; rounds 6 */
        cr_assert_eq(ns, hosts == 1 ? 6 * 100 + 6000 : 6 * 1000 + 30000);
        before = now(d);
        cr_assert_eq(zt_all_gather(world, buffer, buffer + 8192, 500, ZT_BF16, NULL, NULL, &e), 0);
        ns = now(d) - before;
        cr_assert_eq(ns, hosts == 1 ? 3 * 100 + 3000 : 3 * 1000 + 15000);
        cr_assert_eq(zt_comm_totals(world).sent_bytes, 6000 + 3000);
        zt_comm_destroy(world);
        zt_device_close(d);
    }
}

/* Control traffic carries decisions: every rank says what this one says. */
Test(sim, control_traffic_is_answered) {
    struct zt_cost_device t = table(false);
    struct zt_sim s = {.device = &t};
    struct zt_device *d = open_sim(&s, 4 * SEG);
    struct zt_coll_why why = {"", "test", 1, true};
    struct zt_comm *world;
    int64_t own[2] = {7, -3}, all[8] = {0};
    cr_assert_eq(zt_comm_init(NULL, 0, 4, d, 1.0, &world, NULL), 0);
    zt_all_gather(world, own, all, 2, ZT_I64, NULL, &why, NULL);
    for (int i = 0; i < 8; i++) cr_assert_eq(all[i], own[i % 2]);
    zt_all_reduce(world, own, 2, ZT_I64, ZT_SUM, NULL, &why, NULL);
    cr_assert(own[0] == 28 && own[1] == -12);
    zt_comm_destroy(world);
    zt_device_close(d);
}

static struct zt_plan *plan_of(const char *yaml, int ranks, const struct zt_cost_device *t,
                               const struct zt_plan_config *more) {
    static struct zt_spec s;
    struct zt_error e = {0};
    struct zt_plan *p = NULL;
    cr_assert_eq(zt_spec_parse(yaml, strlen(yaml), "t.yaml", NULL, 0, &s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve_up_to(&s, ranks, ZT_PLAN_RANKS_MAX, "t.yaml", &e), 0, "%s", e.msg);
    struct zt_plan_config c = *more;
    c.spec = &s;
    c.device = t;
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s", e.msg);
    zt_spec_free(&s);
    return p;
}

#define FILE_OF(mode)                                                                              \
    "version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n"     \
    "training: {steps: 20, seq_len: 64, local_batch_size: 2}\nparallelism: {mode: " mode "}\n"

/* T-STATE's split on the trainer: 16 N, then what is cut (fp32: 4 + 4 + 8), with the padded count.
 */
Test(sim, state_of_the_modes) {
    struct zt_cost_device t = table(false);
    struct zt_plan_config c = {.valid_samples = -1};
    struct zt_plan *ddp = plan_of(FILE_OF("ddp"), 4, &t, &c);
    struct zt_plan *fsdp = plan_of(FILE_OF("fsdp"), 4, &t, &c);
    int64_t n = ddp->persistent.parameters / 4;
    cr_assert_geq(n, ddp->parameters);
    cr_assert_eq(ddp->persistent.gradients, 4 * n);
    cr_assert_eq(ddp->persistent.optimizer, 8 * n);
    cr_assert_lt(fsdp->persistent.parameters, ddp->persistent.parameters / 4 + 5 * 512);
    cr_assert_geq(fsdp->persistent.parameters, ddp->parameters);
    cr_assert(ddp->fits && fsdp->fits && ddp->n_shapes == 1);
    zt_plan_free(ddp);
    zt_plan_free(fsdp);
}

/* What does not fit is told with the place where it ends, beside the figures of a device that holds
 * it. */
Test(sim, what_does_not_fit) {
    struct zt_cost_device t = table(false);
    struct zt_plan_config c = {.valid_samples = -1}, small = c;
    struct zt_plan *p = plan_of(FILE_OF("ddp"), 4, &t, &c);
    small.capacity_bytes = p->peak_reserved_bytes / 2;
    struct zt_plan *q = plan_of(FILE_OF("ddp"), 4, &t, &small);
    cr_assert(p->fits && !q->fits);
    cr_assert_gt(q->oom.request, 0);
    cr_assert_eq(q->peak_allocated_bytes, p->peak_allocated_bytes);
    cr_assert_eq(q->peak_reserved_bytes, p->peak_reserved_bytes);
    zt_plan_free(p);
    zt_plan_free(q);
}

/* A rank that computes twice as slowly: it waits for nobody, its step takes as long as the others'.
 */
Test(sim, a_straggler_holds_all_up) {
    struct zt_cost_device t = table(false);
    struct zt_plan_config c = {.valid_samples = -1, .details = true}, w = c, s = c;
    w.straggler = s.straggler = 2.0;
    s.on_straggler = true;
    struct zt_plan *even = plan_of(FILE_OF("fsdp"), 4, &t, &c);
    struct zt_plan *waits = plan_of(FILE_OF("fsdp"), 4, &t, &w);
    struct zt_plan *slow = plan_of(FILE_OF("fsdp"), 4, &t, &s);
    cr_assert_gt(slow->step_seconds, 1.8 * even->step_seconds);
    cr_assert_float_eq(waits->step_seconds, slow->step_seconds, 0.02 * slow->step_seconds);
    cr_assert_gt(waits->exposed.exposed_comm_seconds, slow->exposed.exposed_comm_seconds);
    cr_assert_eq(waits->peak_allocated_bytes, even->peak_allocated_bytes);
    zt_plan_free(even);
    zt_plan_free(waits);
    zt_plan_free(slow);
}

/* As many steps and collectives are simulated for 1,024 ranks as for 4. */
Test(sim, cost_does_not_grow_with_ranks) {
    struct zt_cost_device t = table(false);
    struct zt_plan_config c = {.valid_samples = -1, .details = true};
    struct zt_plan *few = plan_of(FILE_OF("fsdp"), 4, &t, &c);
    struct zt_plan *many = plan_of(FILE_OF("fsdp"), 1024, &t, &c);
    cr_assert_eq(few->n_collectives, many->n_collectives);
    cr_assert_eq(few->n_curve, many->n_curve);
    zt_plan_free(few);
    zt_plan_free(many);
}
