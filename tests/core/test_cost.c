/* SPDX-License-Identifier: Apache-2.0 */
/* Costs: worked values of collectives (published formulas, by hand), operators on a device of round
 * figures, fits that find what made their samples, nonsense refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/cost.h"

#define GB 1000000000ll
#define NEAR(a, b, relative) (fabs((double)(a) - (double)(b)) <= (relative)*fabs((double)(b)))

static struct zt_error err;

/* 100 GB/s of memory, 1 TFLOP/s, links of 25 GB/s (200 Gb/s) within and across. */
static struct zt_cost_device round_device(void) {
    struct zt_cost_device d = {.name = "round",
                               .memory_bytes = 80 * GB,
                               .memory_bytes_per_second = 100e9,
                               .ranks_per_host = 8,
                               .within = {.bytes_per_second = 25e9},
                               .across = {.bytes_per_second = 25e9}};
    d.flops[ZT_COST_GEMM][ZT_F32] = 1e12;
    return d;
}

/* ---- T-RING, T-TIME, T-BUS ---- */

Test(cost, ring_of_a_billion_bf16_gradients_on_eight_ranks) {
    int64_t full = 2 * GB;
    cr_assert_eq(zt_cost_sent(ZT_COST_ALL_REDUCE, 8, full), 3.5e9);
    cr_assert_eq(zt_cost_sent(ZT_COST_ALL_GATHER, 8, full), 1.75e9);
    cr_assert_eq(zt_cost_sent(ZT_COST_REDUCE_SCATTER, 8, full), 1.75e9);
    cr_assert_eq(zt_cost_sent(ZT_COST_BROADCAST, 8, full), 2e9);
    cr_assert_eq(zt_cost_sent(ZT_COST_BARRIER, 8, full), 0);
    cr_assert_eq(zt_cost_rounds(ZT_COST_ALL_REDUCE, 8), 14);
    cr_assert_eq(zt_cost_rounds(ZT_COST_ALL_GATHER, 8), 7);
    cr_assert_eq(zt_cost_rounds(ZT_COST_REDUCE_SCATTER, 8), 7);
    cr_assert_eq(zt_cost_rounds(ZT_COST_BROADCAST, 8), 7);
}

/* 0.14 s at 25 GB/s: sent bytes by the bus bandwidth. The trap is to divide them by algbw. */
Test(cost, time_and_bus_bandwidth) {
    struct zt_cost_device d = round_device();
    int64_t full = 2 * GB;
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 8, 8, full), 140000000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_GATHER, 8, 8, full), 70000000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_REDUCE_SCATTER, 8, 8, full), 70000000);
    struct zt_cost_bandwidth b;
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 8, full, 0.14, &b, &err), 0);
    cr_assert(NEAR(b.algbw, 14.2857142857e9, 1e-9), "algbw %g", b.algbw);
    cr_assert(NEAR(b.busbw, 25e9, 1e-9), "busbw %g", b.busbw);
    /* both ways back to the time; and 0.245 s, the mix of the two, out of neither */
    cr_assert(NEAR(3.5e9 / b.busbw, 0.14, 1e-9) && NEAR((double)full / b.algbw, 0.14, 1e-9));
    d.within.bytes_per_second = b.busbw;
    int64_t ns = zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 8, 8, full);
    cr_assert_eq(ns, 140000000, "%lld ns (the trap is 245,000,000)", (long long)ns);
}

/* nccl-tests: all-gather and reduce-scatter of the whole buffer, (n-1)/n; broadcast 1. */
Test(cost, bus_bandwidth_by_collective) {
    static const struct {
        enum zt_cost_coll kind;
        double factor;
    } rows[] = {{ZT_COST_ALL_REDUCE, 1.5},
                {ZT_COST_ALL_GATHER, .75},
                {ZT_COST_REDUCE_SCATTER, .75},
                {ZT_COST_BROADCAST, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct zt_cost_bandwidth b;
        cr_assert_eq(zt_cost_bandwidth(rows[i].kind, 4, 8 * GB, 0.5, &b, &err), 0);
        cr_assert(NEAR(b.algbw, 16e9, 1e-12) && NEAR(b.busbw, rows[i].factor * 16e9, 1e-12));
    }
}

Test(cost, bandwidth_refuses_nonsense) {
    struct zt_cost_bandwidth b;
    const double times[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 8, GB, times[i], &b, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 1, GB, 1, &b, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 0, GB, 1, &b, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 8, 0, 1, &b, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_ALL_REDUCE, 8, -5, 1, &b, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_bandwidth(ZT_COST_BARRIER, 8, GB, 1, &b, &err), ZT_EINVAL);
}

/* ---- groups ---- */

Test(cost, a_group_of_one_costs_nothing) {
    struct zt_cost_device d = round_device();
    d.within.alpha_ns = 1000;
    for (int k = ZT_COST_ALL_GATHER; k <= ZT_COST_BARRIER; k++)
        cr_assert_eq(zt_cost_collective_ns(&d, (enum zt_cost_coll)k, 1, 1, GB), 0);
}

/* 16 ranks on two hosts of 8 with a 25 GB/s link each: 8 rings side by side, 200 GB/s. All-gather
 * of 16 GB sends 15 GB: 75 ms; on one link it would be 0.6 s. No faster than inside a host. */
Test(cost, hosts_share_their_links) {
    struct zt_cost_device d = round_device();
    d.within.bytes_per_second = 400e9;
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_GATHER, 16, 8, 16 * GB), 75000000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_GATHER, 16, 1, 16 * GB), 600000000);
    d.within.bytes_per_second = 150e9;
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_GATHER, 16, 8, 16 * GB), 100000000);
    /* replicas of shards: groups of two, one rank on each host: that link alone, 25 GB/s */
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 2, 1, 5 * GB), 200000000);
}

Test(cost, every_round_pays_alpha_of_its_link) {
    struct zt_cost_device d = round_device();
    d.within.alpha_ns = 1000;
    d.across.alpha_ns = 10000;
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_BARRIER, 8, 8, 0), 7000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_BARRIER, 16, 8, 0), 150000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 8, 8, 2 * GB), 140014000);
}

/* 8 ranks, 480 GB/s of busbw in the switch against 370 GB/s on the ring: only all-reduce, only
 * inside. */
Test(cost, a_switch_that_adds_is_for_all_reduce_inside_a_host) {
    struct zt_cost_device d = round_device();
    d.within = (struct zt_cost_link){.bytes_per_second = 350e9, .nvls_bytes_per_second = 500e9};
    d.across.nvls_bytes_per_second = 500e9;
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 8, 8, 2 * GB), 7000000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_GATHER, 8, 8, 2 * GB), 5000000);
    cr_assert_eq(zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 16, 8, 2 * GB), 18750000);
}

/* ---- operators ---- */

Test(cost, the_slower_of_computing_and_moving) {
    struct zt_cost_device d = round_device();
    d.launch_ns = 500;
    /* 2 x 1000^3 = 2 GFLOP at 1 TFLOP/s; its 12 MB would take 0.12 ms */
    struct zt_cost_work w = zt_work_gemm(1000, 1000, 1000, ZT_F32, ZT_F32, false);
    cr_assert_eq(w.flops, 2e9);
    cr_assert_eq(w.bytes, 12e6);
    cr_assert_eq(zt_cost_ns(&d, w), 2000500);
    /* adding to what is there reads it too */
    cr_assert_eq(zt_work_gemm(1000, 1000, 1000, ZT_F32, ZT_F32, true).bytes, 16e6);
    cr_assert_eq(zt_work_gemm(10, 20, 30, ZT_BF16, ZT_F32, false).bytes, 2 * (300 + 600) + 4 * 200);
    cr_assert_eq(zt_cost_ns(&d, zt_work_bytes(1e9)), 10000500);
    /* one row: 1 MFLOP is 1 us, 2 MB are 20 us */
    cr_assert_eq(zt_cost_ns(&d, zt_work_gemm(1, 1000, 500, ZT_F32, ZT_F32, false)), 500 + 20060);
}

/* B 2, T 1000, H 3, D 64: forward 2 x (T x T x D) x B H, backward 2.5 times that. */
Test(cost, attention_counts_the_half_that_is_not_masked) {
    struct zt_cost_work f = zt_work_attention(false, 2, 1000, 3, 3, 64, ZT_BF16);
    struct zt_cost_work b = zt_work_attention(true, 2, 1000, 3, 3, 64, ZT_BF16);
    cr_assert_eq(f.flops, 2.0 * 1000 * 1000 * 64 * 6);
    cr_assert_eq(b.flops, 5.0 * 1000 * 1000 * 64 * 6);
    /* qkv read, out written; and the log-sum-exp */
    cr_assert_eq(f.bytes, 2000 * 192 * 2 * 4 + 2000 * 3 * 4);
    cr_assert_eq(b.bytes, 2000 * 192 * 2 * 8 + 2000 * 3 * 4);
}

/* 8 query heads on 2 key-value heads: the products are those of 8 heads; k, v and their gradients
 * are a quarter. */
Test(cost, grouped_queries_move_less_and_compute_the_same) {
    struct zt_cost_work f = zt_work_attention(false, 2, 1000, 8, 2, 64, ZT_BF16);
    struct zt_cost_work b = zt_work_attention(true, 2, 1000, 8, 2, 64, ZT_BF16);
    const double q = 2000 * 8 * 64 * 2, k = q / 4, lse = 2000 * 8 * 4;
    cr_assert_eq(f.flops, zt_work_attention(false, 2, 1000, 8, 8, 64, ZT_BF16).flops);
    cr_assert_eq(b.flops, zt_work_attention(true, 2, 1000, 8, 8, 64, ZT_BF16).flops);
    cr_assert_eq(f.bytes, 2 * q + 2 * k + lse);
    cr_assert_eq(b.bytes, 4 * q + 4 * k + lse);
}

Test(cost, a_type_without_a_rate_takes_that_of_fp32) {
    struct zt_cost_device d = round_device();
    struct zt_cost_work w = zt_work_gemm(1000, 1000, 1000, ZT_BF16, ZT_BF16, false);
    cr_assert_eq(zt_cost_ns(&d, w), 2000000);
    d.flops[ZT_COST_GEMM][ZT_BF16] = 4e12;
    cr_assert_eq(zt_cost_ns(&d, w), 500000);
}

Test(cost, small_operators_do_not_reach_the_rate) {
    struct zt_cost_device d = round_device();
    d.half_side[ZT_COST_GEMM] = 250;
    /* 250 on one side is half of the rate; 1000 is 1 / 1.25 */
    cr_assert_eq(zt_cost_ns(&d, zt_work_gemm(1000, 1000, 250, ZT_F32, ZT_F32, false)), 1000000);
    cr_assert_eq(zt_cost_ns(&d, zt_work_gemm(250, 1000, 1000, ZT_F32, ZT_F32, false)), 1000000);
    cr_assert_eq(zt_cost_ns(&d, zt_work_gemm(1000, 1000, 1000, ZT_F32, ZT_F32, false)), 2500000);
    d.flops[ZT_COST_ATTENTION_FORWARD][ZT_F32] = 1e12;
    d.half_side[ZT_COST_ATTENTION_FORWARD] = 500;
    d.half_head[ZT_COST_ATTENTION_FORWARD] = 64;
    /* 2 T T D = 128 MFLOP at 1 TFLOP/s, 1.5 times for T 1000, twice for D 64 */
    cr_assert_eq(zt_cost_ns(&d, zt_work_attention(false, 1, 1000, 1, 1, 64, ZT_F32)), 384000);
}

Test(cost, what_fits_the_cache_moves_faster) {
    struct zt_cost_device d = round_device();
    d.cache_bytes = 1000000;
    d.cached_bytes_per_second = 1e12;
    cr_assert_eq(zt_cost_ns(&d, zt_work_bytes(1e6)), 1000);
    cr_assert_eq(zt_cost_ns(&d, zt_work_bytes(2e6)), 20000);
}

Test(cost, drawing_costs_by_element) {
    struct zt_cost_device d = round_device();
    d.flops[ZT_COST_RANDOM][ZT_F32] = 1e9;
    cr_assert_eq(zt_cost_ns(&d, zt_work_random(1000000, ZT_BF16)), 1000000);
}

Test(cost, row_operators_cost_by_element_where_they_compute) {
    struct zt_cost_device d = round_device();
    cr_assert_eq(zt_cost_ns(&d, zt_work_rows(1000000, 8e6, ZT_F32)), 80000); /* no rate: bytes */
    d.flops[ZT_COST_ROWS][ZT_F32] = 1e9;
    cr_assert_eq(zt_cost_ns(&d, zt_work_rows(1000000, 8e6, ZT_F32)), 1000000);
}

Test(cost, no_time_overflows) {
    struct zt_cost_device d = round_device();
    d.memory_bytes_per_second = 1e-9;
    int64_t ns = zt_cost_ns(&d, zt_work_bytes(1e30));
    cr_assert(ns > 0 && ns < INT64_MAX / 64);
    d.within.bytes_per_second = 1e-9;
    ns = zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 8, 8, INT64_MAX / 2);
    cr_assert(ns > 0 && ns < INT64_MAX / 64);
}

/* ---- checks ---- */

#define REFUSED(change, word)                                                                      \
    do {                                                                                           \
        struct zt_cost_device d = round_device();                                                  \
        cr_assert_eq(zt_cost_check(&d, &err), 0, "%s", err.msg);                                   \
        change;                                                                                    \
        cr_assert_eq(zt_cost_check(&d, &err), ZT_EINVAL);                                          \
        cr_assert(strstr(err.msg, word), "%s does not name %s", err.msg, word);                    \
    } while (0)

Test(cost, a_device_of_nonsense_is_refused) {
    REFUSED(d.memory_bytes = 0, "memory is missing");
    REFUSED(d.memory_bytes = -1, "memory is -1");
    REFUSED(d.outside_bytes = -1, "outside");
    REFUSED(d.launch_ns = -1, "launch");
    REFUSED(d.host_ns = -1, "host time");
    REFUSED(d.memory_bytes_per_second = 0, "memory bandwidth is missing");
    REFUSED(d.memory_bytes_per_second = NAN, "memory bandwidth");
    REFUSED(d.cached_bytes_per_second = -1, "cache");
    REFUSED(d.flops[ZT_COST_GEMM][ZT_F32] = 0, "gemm in fp32 is missing");
    REFUSED(d.flops[ZT_COST_ATTENTION_FORWARD][ZT_BF16] = INFINITY, "attention_forward");
    REFUSED(d.half_side[ZT_COST_GEMM] = -2, "gemm");
    REFUSED(d.half_head[ZT_COST_ATTENTION_BACKWARD] = NAN, "attention_backward");
    REFUSED(d.peak_flops[ZT_BF16] = -1, "bf16");
    REFUSED(d.within.alpha_ns = -1, "alpha of within a host");
    REFUSED(d.across.bytes_per_second = -1, "across hosts");
    REFUSED(d.within.nvls_bytes_per_second = NAN, "NVLS");
    REFUSED(d.ranks_per_host = 0, "ranks per host");
}

/* ---- fits ---- */

/* Samples made by hand: 1 us a round and 10 GB/s; 2 GFLOP/s-like rates with a half side of 128. */
Test(cost, a_fit_finds_what_made_its_samples) {
    struct zt_cost_transfer t[6];
    for (int i = 0; i < 6; i++) {
        double sent = 4096 * pow(16, i);
        t[i] = (struct zt_cost_transfer){14, sent, 14 * 1e-6 + sent / 10e9};
    }
    struct zt_cost_link link;
    double error, rate, half;
    cr_assert_eq(zt_cost_fit_link(t, 6, &link, &error, &err), 0, "%s", err.msg);
    cr_assert_eq(link.alpha_ns, 1000);
    cr_assert(NEAR(link.bytes_per_second, 10e9, 1e-9) && error < 1e-9);
    struct zt_cost_sample s[4];
    for (int i = 0; i < 4; i++) {
        double side = 128 << i;
        s[i] = (struct zt_cost_sample){2 * side * side * side, side,
                                       2 * side * side * side / 2e12 * (1 + 128 / side)};
    }
    cr_assert_eq(zt_cost_fit_rate(s, 4, &rate, &half, &error, &err), 0);
    cr_assert(NEAR(rate, 2e12, 1e-9) && NEAR(half, 128, 1e-9) && error < 1e-9);
    /* of one size there is a rate alone */
    cr_assert_eq(zt_cost_fit_rate(s, 1, &rate, &half, &error, &err), 0);
    cr_assert(NEAR(rate, 1e12, 1e-9) && half == 0);
}

/* The error is that of the relative deviations: times 10 % too long and too short around a line. */
Test(cost, a_fit_says_how_far_off_it_is) {
    struct zt_cost_transfer t[] = {
        {1, 1e6, 1.1e-4}, {1, 1e6, 0.9e-4}, {1, 1e8, 1.1e-2}, {1, 1e8, 0.9e-2}};
    struct zt_cost_link link;
    double error;
    cr_assert_eq(zt_cost_fit_link(t, 4, &link, &error, &err), 0, "%s", err.msg);
    cr_assert(error > 0.09 && error < 0.11, "%g", error);
}

Test(cost, alpha_is_never_below_zero) {
    struct zt_cost_transfer t[] = {{2, 1e3, 1e-8}, {2, 1e6, 1e-4}, {2, 1e7, 1e-3}};
    struct zt_cost_link link;
    double error;
    cr_assert_eq(zt_cost_fit_link(t, 3, &link, &error, &err), 0, "%s", err.msg);
    cr_assert_eq(link.alpha_ns, 0);
    cr_assert(link.bytes_per_second > 0);
    /* nor is a bandwidth, where noise made the larger message the faster one: then the error says
     * so */
    struct zt_cost_transfer shrinking[] = {{2, 1e6, 1e-3}, {2, 1e8, 1e-4}};
    cr_assert_eq(zt_cost_fit_link(shrinking, 2, &link, &error, &err), 0, "%s", err.msg);
    cr_assert(link.alpha_ns == 0 && link.bytes_per_second > 0 && error > 0.5, "%g", error);
}

Test(cost, fits_refuse_nonsense) {
    struct zt_cost_transfer one[] = {{2, 1e6, 1e-4}}, bad[] = {{2, 1e6, 1e-4}, {2, 1e7, 0}};
    struct zt_cost_sample nan_[] = {{1e9, 10, NAN}};
    struct zt_cost_link link;
    double error, rate, half;
    cr_assert_eq(zt_cost_fit_link(one, 1, &link, &error, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_fit_link(one, 0, &link, &error, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_fit_link(bad, 2, &link, &error, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_fit_rate(nan_, 1, &rate, &half, &error, &err), ZT_EINVAL);
    cr_assert_eq(zt_cost_fit_rate(nan_, 0, &rate, &half, &error, &err), ZT_EINVAL);
}
