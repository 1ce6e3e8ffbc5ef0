/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_intervals.c: exposed communication by unions. The first case and its figures
 * are the reference example of docs/internals.md, worked out by hand; the random case is compared
 * with a count over every nanosecond. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/rng.h"
#include "engine/trace/intervals.h"

static void add(struct zt_intervals *iv, int64_t a, int64_t b, enum zt_interval_kind k,
                const char *group, const char *name) {
    cr_assert_eq(zt_intervals_add(iv, (struct zt_interval){a, b, k, group, name, false}), 0);
}

/* Seconds come from an integer count of nanoseconds, so the integer can be had back. */
static int64_t ns(double seconds) { return llround(seconds * 1e9); }

Test(intervals, reference_example) {
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    zt_intervals_begin_step(&iv, 0);
    static const int64_t compute[][2] = {{0, 10}, {12, 20}, {18, 30}, {35, 40}};
    static const int64_t comm[][2] = {{5, 15}, {14, 18}, {28, 38}, {45, 50}};
    for (int i = 0; i < 4; i++) add(&iv, compute[i][0], compute[i][1], ZT_IV_COMPUTE, NULL, "c");
    for (int i = 0; i < 4; i++)
        add(&iv, comm[i][0], comm[i][1], ZT_IV_COMM, "dp_shard", "all_gather");
    cr_assert_eq(zt_intervals_finish(&iv, 52, &e), 0);
    cr_assert_eq(ns(e.step_seconds), 52);
    cr_assert_eq(ns(e.compute_seconds), 33);
    cr_assert_eq(ns(e.comm_seconds), 28);
    cr_assert_eq(ns(e.overlapped_seconds), 16);
    cr_assert_eq(ns(e.exposed_comm_seconds), 12);
    cr_assert_eq(ns(e.idle_seconds), 7);
    cr_assert_eq(ns(e.tail_seconds), 5);
    cr_assert_eq(e.n_by, 1);
    cr_assert_eq(ns(e.by[0].seconds), 12);
    int64_t t = 0;
    cr_assert_eq(zt_intervals_comm_ns(&iv, 52, &t), 0);
    cr_assert_eq(t, 28);
    zt_intervals_free(&iv);
}

Test(intervals, split_by_owner_of_the_instant) {
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    zt_intervals_begin_step(&iv, 100);
    /* exposed [110,120): the all-gather started first and owns it; [120,130) is the all-reduce's */
    add(&iv, 100, 110, ZT_IV_COMPUTE, NULL, "c");
    add(&iv, 112, 130, ZT_IV_COMM, "dp_replicate", "all_reduce");
    add(&iv, 105, 120, ZT_IV_COMM, "dp_shard", "all_gather");
    add(&iv, 110, 125, ZT_IV_STALL, NULL, "wait");
    add(&iv, 120, 128, ZT_IV_STALL, NULL, "wait");
    cr_assert_eq(zt_intervals_add(&iv, (struct zt_interval){100, 140, ZT_IV_COMM, "control",
                                                            "all_gather", true}),
                 0);
    cr_assert_eq(zt_intervals_finish(&iv, 140, &e), 0);
    cr_assert_eq(e.n_by, 2);
    cr_assert_str_eq(e.by[0].group, "dp_shard");
    cr_assert_eq(ns(e.by[0].seconds), 10);
    cr_assert_str_eq(e.by[1].group, "dp_replicate");
    cr_assert_eq(ns(e.by[1].seconds), 10);
    cr_assert_eq(ns(e.exposed_comm_seconds), 20);
    cr_assert_eq(ns(e.stall_seconds), 18);
    cr_assert_eq(ns(e.idle_seconds), 10, "control traffic is not in the figures");
    /* by collective, in the order of queueing; the all-gather owns [105,120), the all-reduce [120,130) */
    struct zt_interval comm[] = {iv.items[1], iv.items[2], iv.items[5]};
    int64_t exposed[3] = {-1, -1, -1}, stall[3] = {-1, -1, -1};
    cr_assert_eq(zt_intervals_share(&iv, 140, comm, 3, exposed, stall), 0);
    cr_assert(exposed[0] == 10 && exposed[1] == 10 && exposed[2] == 0);
    cr_assert(stall[0] == 8 && stall[1] == 10 && stall[2] == 0);
    zt_intervals_free(&iv);
}

/* Gathers and reductions at once: exposed [10,30) is 20, each instant the earlier-started one's. The
 * sum over streams would be 15 + 18 + 2. */
Test(intervals, two_streams_by_group_and_kind) {
    static const struct {
        const char *group, *kind;
        int64_t ns;
    } want[] = {{"dp_shard", "all_gather", 15},
                {"dp_shard", "reduce_scatter", 3},
                {"dp_replicate", "all_reduce", 2}};
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    zt_intervals_begin_step(&iv, 0);
    add(&iv, 0, 10, ZT_IV_COMPUTE, NULL, "c");
    add(&iv, 30, 40, ZT_IV_COMPUTE, NULL, "c");
    add(&iv, 28, 35, ZT_IV_COMM, "dp_replicate", "all_reduce");
    add(&iv, 8, 28, ZT_IV_COMM, "dp_shard", "reduce_scatter");
    add(&iv, 5, 25, ZT_IV_COMM, "dp_shard", "all_gather");
    cr_assert_eq(zt_intervals_finish(&iv, 40, &e), 0);
    cr_assert_eq(ns(e.comm_seconds), 30);
    cr_assert_eq(ns(e.exposed_comm_seconds), 20);
    cr_assert_eq(e.n_by, 3);
    for (int i = 0; i < 3; i++) {
        int k = 0;
        while (k < 3 && (strcmp(e.by[k].group, want[i].group) || strcmp(e.by[k].kind, want[i].kind)))
            k++;
        cr_assert(k < 3, "%s %s", want[i].group, want[i].kind);
        cr_assert_eq(ns(e.by[k].seconds), want[i].ns, "%s %s", want[i].group, want[i].kind);
    }
    zt_intervals_free(&iv);
}

/* [20,40) follows the last backward; [26,32) of it is hidden behind the update. */
Test(intervals, tail_begins_where_backward_ends) {
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    zt_intervals_begin_step(&iv, 0);
    add(&iv, 0, 20, ZT_IV_COMPUTE, NULL, "backward");
    add(&iv, 10, 40, ZT_IV_COMM, "dp_replicate", "all_reduce");
    add(&iv, 26, 32, ZT_IV_UPDATE, NULL, "add gradients");
    add(&iv, 40, 50, ZT_IV_UPDATE, NULL, "update");
    cr_assert_eq(zt_intervals_finish(&iv, 50, &e), 0);
    cr_assert_eq(ns(e.compute_seconds), 36);
    cr_assert_eq(ns(e.exposed_comm_seconds), 14);
    cr_assert_eq(ns(e.tail_seconds), 14);
    cr_assert_eq(ns(e.idle_seconds), 0);
    zt_intervals_free(&iv);
}

Test(intervals, clipped_to_the_step_and_reset) {
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    zt_intervals_begin_step(&iv, 10);
    add(&iv, 0, 15, ZT_IV_COMM, "dp", "all_reduce");
    add(&iv, 25, 60, ZT_IV_COMPUTE, NULL, "c");
    cr_assert_eq(zt_intervals_finish(&iv, 30, &e), 0);
    cr_assert_eq(ns(e.comm_seconds), 5);
    cr_assert_eq(ns(e.compute_seconds), 5);
    cr_assert_eq(ns(e.step_seconds), 20);
    zt_intervals_begin_step(&iv, 100);
    cr_assert_eq(zt_intervals_finish(&iv, 110, &e), 0);
    cr_assert_eq(e.n_by, 0);
    cr_assert_eq(ns(e.idle_seconds), 10);
    zt_intervals_free(&iv);
}

enum { SPAN = 500, ITEMS = 60 };

Test(intervals, random_against_counting_every_instant) {
    static const char *const groups[3] = {"a", "b", "c"};
    for (uint32_t round = 0; round < 50; round++) {
        struct zt_intervals iv = {0};
        struct zt_exposed e;
        bool compute[SPAN] = {0}, update[SPAN] = {0}, comm[SPAN] = {0}, copy[SPAN] = {0},
             stall[SPAN] = {0};
        int owner[SPAN], owner_start[SPAN], owner_item[SPAN], n_items = 0;
        struct zt_interval items[ITEMS];
        int64_t by[3] = {0}, n_comm = 0, n_comp = 0, exposed = 0, idle = 0, n_stall = 0;
        int64_t last = 0, tail = 0;
        for (int t = 0; t < SPAN; t++) owner[t] = -1;
        zt_intervals_begin_step(&iv, 0);
        for (uint32_t i = 0; i < ITEMS; i++) {
            uint32_t w[4];
            zt_rng_words(7, ZT_RNG_TEST, round, 0, i, w);
            int a = (int)(w[0] % SPAN), n = (int)(w[1] % 30), g = (int)(w[3] % 3);
            int b = a + n > SPAN ? SPAN : a + n;
            enum zt_interval_kind k = (enum zt_interval_kind)(w[2] % 5);
            add(&iv, a, b, k, groups[g], "x");
            for (int t = a; t < b; t++) {
                if (k == ZT_IV_COMPUTE) compute[t] = true;
                if (k == ZT_IV_COMPUTE && t + 1 > last) last = t + 1;
                if (k == ZT_IV_UPDATE) update[t] = true;
                if (k == ZT_IV_COPY) copy[t] = true;
                if (k == ZT_IV_STALL) stall[t] = true;
                if (k == ZT_IV_COMM && (!comm[t] || a < owner_start[t])) {
                    comm[t] = true;
                    owner[t] = g;
                    owner_start[t] = a;
                    owner_item[t] = n_items;
                }
            }
            if (k == ZT_IV_COMM) items[n_items++] = iv.items[iv.n - 1];
        }
        int64_t share[ITEMS] = {0}, stalled[ITEMS] = {0}, got[ITEMS], got_stall[ITEMS];
        for (int t = 0; t < SPAN; t++) {
            compute[t] |= update[t];
            n_comm += comm[t];
            n_comp += compute[t];
            n_stall += stall[t];
            idle += !comm[t] && !compute[t] && !copy[t];
            if (comm[t] && !compute[t]) {
                exposed++;
                tail += t >= last;
                by[owner[t]]++;
                share[owner_item[t]]++;
            }
            if (comm[t] && stall[t]) stalled[owner_item[t]]++;
        }
        cr_assert_eq(zt_intervals_share(&iv, SPAN, items, (size_t)n_items, got, got_stall), 0);
        for (int i = 0; i < n_items; i++)
            cr_assert(got[i] == share[i] && got_stall[i] == stalled[i], "round %u item %d", round,
                      i);
        cr_assert_eq(zt_intervals_finish(&iv, SPAN, &e), 0);
        cr_assert_eq(ns(e.comm_seconds), n_comm);
        cr_assert_eq(ns(e.compute_seconds), n_comp);
        cr_assert_eq(ns(e.exposed_comm_seconds), exposed);
        cr_assert_eq(ns(e.tail_seconds), tail);
        cr_assert_eq(ns(e.stall_seconds), n_stall);
        cr_assert_eq(ns(e.idle_seconds), idle);
        for (int i = 0; i < e.n_by; i++) {
            int g = e.by[i].group[0] - 'a';
            cr_assert_eq(ns(e.by[i].seconds), by[g], "round %u group %d", round, g);
            by[g] = 0;
        }
        cr_assert_eq(by[0] + by[1] + by[2], 0);
        zt_intervals_free(&iv);
    }
}

Test(intervals, more_groups_than_rows_still_sum_up) {
    static char names[20][8];
    struct zt_intervals iv = {0};
    struct zt_exposed e;
    double sum = 0;
    zt_intervals_begin_step(&iv, 0);
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof names[i], "g%d", i);
        add(&iv, i * 10, i * 10 + 4, ZT_IV_COMM, names[i], "all_reduce");
    }
    cr_assert_eq(zt_intervals_finish(&iv, 200, &e), 0);
    cr_assert_eq(e.n_by, ZT_EXPOSED_BY_MAX);
    for (int i = 0; i < e.n_by; i++) sum += e.by[i].seconds;
    cr_assert_eq(ns(sum), 80);
    cr_assert_str_eq(e.by[ZT_EXPOSED_BY_MAX - 1].group, "other");
    zt_intervals_free(&iv);
}
