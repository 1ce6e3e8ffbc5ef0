/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_sim_step.c: where the collectives of a simulated step lie. Their lengths are
 * the ring's, by hand: (K-1) alpha + sent / B with alpha 100 ns and B 0.2 GB/s, so that a block of
 * gpt2-nano takes 3 ms and computing it 50 ms (100 ms in backward): what can hide does. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/plan/plan.h"

#define ROOT INT64_C(197376)  /* bytes that one of four ranks sends for the root's 65,792 floats */
#define BLOCK INT64_C(594816) /* for a block's 198,272, gaps included */
#define LINK 2e8
#define ALPHA 100

static int64_t ring_ns(int rounds, int64_t sent, double bytes_per_second) {
    return rounds * ALPHA + (int64_t)((double)sent / bytes_per_second * 1e9 + 0.5);
}

struct way {
    const char *parallelism;
    int ranks, per_host;
    bool queued;
    double across; /* bandwidth between hosts */
    double straggler;
    bool on_straggler;
};

static struct zt_plan *plan_of(struct way w) {
    static struct zt_spec s;
    char yaml[512];
    struct zt_error e = {0};
    struct zt_plan *p = NULL;
    struct zt_cost_device d = {.name = "test",
                               .queued = w.queued,
                               .host_ns = w.queued,
                               .memory_bytes = INT64_C(1) << 40,
                               .memory_bytes_per_second = 1e12,
                               .within = {ALPHA, LINK, 0},
                               .across = {ALPHA, w.across > 0 ? w.across : LINK, 0}};
    d.flops[ZT_COST_GEMM][ZT_F32] = 1e9;
    snprintf(
        yaml, sizeof yaml,
        "version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n"
        "training: {steps: 20, seq_len: 64, local_batch_size: 2}\nparallelism: {%s}\n",
        w.parallelism);
    cr_assert_eq(zt_spec_parse(yaml, strlen(yaml), "t.yaml", NULL, 0, &s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve_up_to(&s, w.ranks, ZT_PLAN_RANKS_MAX, "t.yaml", &e), 0, "%s",
                 e.msg);
    struct zt_plan_config c = {.spec = &s,
                               .device = &d,
                               .ranks_per_host = w.per_host ? w.per_host : w.ranks,
                               .valid_samples = -1,
                               .straggler = w.straggler,
                               .on_straggler = w.on_straggler,
                               .details = true};
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s", e.msg);
    zt_spec_free(&s);
    return p;
}

static int64_t step_ns(const struct zt_plan *p) { return p->step_ns; }
static double exposed_ns(const struct zt_plan *p) { return p->exposed.exposed_comm_seconds * 1e9; }
static double comm_ns(const struct zt_plan *p) { return p->exposed.comm_seconds * 1e9; }

static int64_t took(const struct zt_coll_record *r) { return r->end_ns - r->start_ns; }

/* Without prefetch every gather stands in compute's way; with one ahead only the first two (before
 * which there is nothing to compute) and the last two reductions (after which there is nothing).
 * The same whether the host computes itself or runs ahead. */
Test(sim_step, gathers_hide_behind_compute) {
    int64_t root = ring_ns(3, ROOT, LINK), block = ring_ns(3, BLOCK, LINK);
    for (int queued = 0; queued <= 1; queued++) {
        struct zt_plan *none =
            plan_of((struct way){"mode: fsdp, prefetch: 0", 4, .queued = queued});
        struct zt_plan *one = plan_of((struct way){"mode: fsdp, prefetch: 1", 4, .queued = queued});
        cr_expect_gt(exposed_ns(none), 0.99 * comm_ns(none));
        cr_expect_float_eq(exposed_ns(one), 2.0 * (double)(root + block), 0.001 * comm_ns(one));
        int shows = 0;
        for (int64_t i = 0; i < one->n_collectives; i++) {
            const struct zt_coll_record *r = &one->collectives[i];
            if (r->control) continue;
            cr_expect_eq(took(r), strcmp(r->unit, "root") ? block : root, "%s", r->unit);
            if (one->exposed_ns[i] == 0) continue;
            cr_expect_gt(one->exposed_ns[i], took(r) * 99 / 100);
            shows++;
        }
        cr_expect_eq(shows, 4);
        /* blocks 1 to 3 in forward, all four in backward */
        cr_expect_float_eq((double)(step_ns(none) - step_ns(one)), 7.0 * (double)block,
                           0.001 * 7.0 * (double)block);
        zt_plan_free(none);
        zt_plan_free(one);
    }
}

/* overlap: false does one thing at a time: nine gathers and five scatters stand for themselves. */
Test(sim_step, without_overlap_all_shows) {
    int64_t root = ring_ns(3, ROOT, LINK), block = ring_ns(3, BLOCK, LINK);
    for (int queued = 0; queued <= 1; queued++) {
        struct zt_plan *p =
            plan_of((struct way){"mode: fsdp, overlap: false", 4, .queued = queued});
        cr_expect_float_eq(exposed_ns(p), comm_ns(p), 0.5);
        cr_expect_float_eq(comm_ns(p), (double)(2 * root + 12 * block), 0.5);
        zt_plan_free(p);
    }
}

/* Gradients travel behind backward; only the first units', which come last, have nothing to hide
 * behind. */
Test(sim_step, reductions_hide_behind_backward) {
    struct zt_plan *p = plan_of((struct way){"mode: ddp", 4, .queued = true});
    int64_t block = ring_ns(6, 2 * BLOCK, LINK), root = ring_ns(6, 2 * ROOT, LINK);
    cr_expect_float_eq(exposed_ns(p), (double)(root + block), 0.001 * comm_ns(p));
    cr_expect_float_eq(p->exposed.tail_seconds * 1e9, exposed_ns(p), 0.5);
    cr_expect_float_eq(comm_ns(p), (double)(root + 4 * block), 0.5);
    zt_plan_free(p);
}

static const struct zt_comm_group *group_of(const struct zt_plan *p, const char *name) {
    for (int i = 0; i < p->n_groups; i++)
        if (!strcmp(p->groups[i].name, name)) return &p->groups[i];
    cr_assert_fail("no group %s", name);
    return NULL;
}

static bool spans_hosts(const struct zt_plan *p, const struct zt_coll_record *r, int per_host) {
    const struct zt_comm_group *g = group_of(p, r->group);
    return g->ranks[0] / per_host != g->ranks[g->size - 1] / per_host;
}

/* What a rank sends by collectives that cross hosts, and how long those take. */
static int64_t across(const struct zt_plan *p, int per_host, int64_t *ns) {
    int64_t sum = 0;
    *ns = 0;
    for (int64_t i = 0; i < p->n_collectives; i++) {
        if (p->collectives[i].control || !spans_hosts(p, &p->collectives[i], per_host)) continue;
        sum += p->collectives[i].sent_bytes;
        *ns += took(&p->collectives[i]);
    }
    return sum;
}

/* Two hosts of four. fsdp over all eight: two gathers and a scatter of everything but the root,
 * which is gathered once, 7/8 of each across. As two replicas of four: shards stay on their host,
 * and a quarter of the gradients goes to the other one: 2 (R-1)/R = 1 of it. */
Test(sim_step, replicas_send_less_across_hosts) {
    int64_t ns[2], sent[2];
    struct way w = {"mode: fsdp", 8, 4, true, .across = LINK / 10};
    struct zt_plan *flat = plan_of(w);
    w.parallelism = "mode: fsdp, data_parallel_replicate_degree: 2";
    struct zt_plan *hybrid = plan_of(w);
    sent[0] = across(flat, 4, &ns[0]);
    sent[1] = across(hybrid, 4, &ns[1]);
    int64_t root = ROOT / 3 * 4, block = BLOCK / 3 * 4; /* whole buffers */
    cr_expect_eq(sent[0], 7 * (2 * root + 3 * 4 * block) / 8);
    cr_expect_eq(sent[1], (root + 4 * block) / 4);
    cr_expect_lt(step_ns(hybrid), step_ns(flat));
    /* four ranks of a host share its links, one each: four times the bandwidth for the flat ring */
    cr_expect_eq(ns[0], 2 * ring_ns(7, 7 * root / 8, LINK / 10 * 4) +
                            12 * ring_ns(7, 7 * block / 8, LINK / 10 * 4));
    cr_expect_eq(ns[1], ring_ns(2, root / 4, LINK / 10) + 4 * ring_ns(2, block / 4, LINK / 10));
    zt_plan_free(flat);
    zt_plan_free(hybrid);
}

/* Who waits leaves each collective together with the slow rank, which came last and waited for
 * nobody; what that costs the others is exposed, and more of it the slower that rank is. */
Test(sim_step, ranks_leave_a_collective_together) {
    double before = -1;
    for (int i = 0; i < 3; i++) {
        double slow = 1.5 + i;
        struct way w = {"mode: fsdp", 4, .queued = true, .straggler = slow};
        struct zt_plan *waits = plan_of(w);
        w.on_straggler = true;
        struct zt_plan *last = plan_of(w);
        cr_assert_eq(waits->n_collectives, last->n_collectives);
        for (int64_t k = 0; k < waits->n_collectives; k++) {
            const struct zt_coll_record *a = &waits->collectives[k], *b = &last->collectives[k];
            cr_assert_eq(a->end_ns - waits->collectives[0].end_ns,
                         b->end_ns - last->collectives[0].end_ns, "%s %s", b->unit, b->reason);
            cr_assert_geq(took(a), took(b));
        }
        cr_expect_gt(exposed_ns(waits), before);
        before = exposed_ns(waits);
        cr_expect_eq(last->peak_allocated_bytes, waits->peak_allocated_bytes);
        zt_plan_free(waits);
        zt_plan_free(last);
    }
}
