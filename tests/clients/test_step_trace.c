/* SPDX-License-Identifier: Apache-2.0 */
/* Who waited for whom: durations of four ranks chosen by hand on a mesh of replicate 2 x shard 2, and what
 * must not be compared. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "clients/zctl/step_trace.h"
#include "proto/trace.h"

enum { DP_SHARD, DP_REPLICATE, CONTROL, GROUPS };
enum { GATHER, REDUCE, F32, ROOT, BLOCK, WHY, NONE, WORDS };
static char *const words[WORDS] = {(char *)"all_gather", (char *)"all_reduce", (char *)"fp32", (char *)"root",
                                   (char *)"block0", (char *)"why", (char *)""};
static uint32_t shard[2][2] = {{0, 1}, {2, 3}}, replicate[2][2] = {{0, 2}, {1, 3}}, world[4] = {0, 1, 2, 3};

struct rank_part {
    Zt__StepTrace s;
    Zt__TraceGroup group[GROUPS], *groups[GROUPS];
    Zt__TraceRecord record[8], *records[8];
    char *words[WORDS];
};
static struct rank_part part[4];
static Zt__StepTrace *parts[4];

static void setup(void) {
    for (uint32_t r = 0; r < 4; r++) {
        struct rank_part *p = &part[r];
        memset(p, 0, sizeof *p);
        zt__step_trace__init(&p->s);
        memcpy(p->words, words, sizeof words);
        static const char *const names[] = {"dp_shard", "dp_replicate", "control"};
        uint32_t *const ranks[] = {shard[r / 2], replicate[r % 2], world};
        for (int g = 0; g < GROUPS; g++) {
            zt__trace_group__init(&p->group[g]);
            p->group[g].name = (char *)(uintptr_t)names[g];
            p->group[g].ranks = ranks[g];
            p->group[g].n_ranks = g == CONTROL ? 4 : 2;
            p->groups[g] = &p->group[g];
        }
        p->s.rank = r;
        p->s.step = 9;
        p->s.generation = p->s.parts = 1;
        p->s.step_ns = 1000;
        p->s.words = p->words;
        p->s.n_words = WORDS;
        p->s.groups = p->groups;
        p->s.n_groups = GROUPS;
        p->s.records = p->records;
        parts[r] = &p->s;
    }
}

/* took < 0: not over. */
static Zt__TraceRecord *add(uint32_t rank, uint32_t group, uint64_t seq, uint32_t kind, uint32_t unit, int took) {
    struct rank_part *p = &part[rank];
    Zt__TraceRecord *r = &p->record[p->s.n_records];
    zt__trace_record__init(r);
    r->group = group;
    r->seq = seq;
    r->kind = kind;
    r->dtype = F32;
    r->unit = unit;
    r->reason = WHY;
    r->count = 25;
    r->bytes = 100;
    r->has_sent_bytes = 1;
    r->sent_bytes = 50;
    r->queued_ns = 100 * (int64_t)p->s.n_records;
    r->has_started_ns = 1;
    r->started_ns = 7;
    r->has_ended_ns = took >= 0;
    r->ended_ns = took >= 0 ? 7 + (uint64_t)took : 0;
    if (group == CONTROL)
        r->has_control = r->control = 1;
    else
        r->has_exposed_ns = r->has_stall_ns = 1;
    p->records[p->s.n_records++] = r;
    return r;
}

static struct zt_step_trace_set make(Zt__StepTrace *const *v, size_t n) {
    struct zt_step_trace_set s;
    struct zt_error err;
    for (size_t i = 0; i < n; i++)
        cr_assert_null(zt_trace_check(v[i]), "%s", zt_trace_check(v[i]));
    cr_assert_eq(zt_trace_set_make(&s, v, n, &err), 0);
    return s;
}

static bool near(double seconds, double ns) { return fabs(seconds * 1e9 - ns) < 1e-6; }

TestSuite(step_trace, .init = setup);

Test(step_trace, the_shortest_stay_came_last) {
    /* dp_shard, one collective in each of its two groups, with the same number; then dp_replicate; then control */
    static const int gather[4] = {40, 10, 5, 25}, reduce[4] = {8, 30, 20, 30}, control[4] = {90, 80, 70, 3};
    for (uint32_t r = 0; r < 4; r++) {
        add(r, DP_SHARD, 4, GATHER, BLOCK, gather[r])->exposed_ns = 6 + r;
        add(r, DP_REPLICATE, 4, REDUCE, BLOCK, reduce[r])->stall_ns = 2;
        add(r, CONTROL, 2, GATHER, NONE, control[r]);
    }
    struct zt_step_trace_set s = make(parts, 4);
    cr_assert_eq(s.n_ranks, 4);
    cr_assert_eq(s.mismatched, 0);
    /* waits: gather 30 0 0 20 for rank 1 and 2; reduce 0 0 12 0 for rank 0; control 87 77 67 0 for rank 3 */
    static const int64_t wait[4][3] = {{30, 0, 87}, {0, 0, 77}, {0, 12, 67}, {20, 0, 0}};
    static const int32_t whom[4][3] = {{1, -1, 3}, {-1, -1, 3}, {-1, 0, 3}, {2, -1, -1}};
    static const int64_t transfer[4][3] = {{10, 8, 3}, {10, 30, 3}, {5, 8, 3}, {5, 30, 3}};
    for (uint32_t r = 0; r < 4; r++)
        for (int i = 0; i < 3; i++) {
            const struct zt_trace_coll *c = &s.ranks[r].v[i];
            cr_expect_eq(c->wait_ns, wait[r][i], "rank %u collective %d: %ld", r, i, (long)c->wait_ns);
            cr_expect_eq(c->waited_for, whom[r][i], "rank %u collective %d", r, i);
            cr_expect_eq(c->transfer_ns, transfer[r][i], "rank %u collective %d", r, i);
        }
    static const double held_up[4] = {12, 30, 20, 87}, waited[4] = {117, 77, 79, 20};
    for (int r = 0; r < 4; r++) {
        cr_expect(near(s.ranks[r].held_up, held_up[r]), "rank %d held up %g", r, s.ranks[r].held_up);
        cr_expect(near(s.ranks[r].waited, waited[r]), "rank %d waited %g", r, s.ranks[r].waited);
        cr_expect_eq(s.ranks[r].came_last, 1);
        cr_expect(near(s.ranks[r].exposed, 6 + r) && near(s.ranks[r].stall, 2));
        cr_expect(s.ranks[r].whole);
    }
    cr_expect_eq(zt_trace_slowest(&s)->rank, 3);
    zt_trace_set_free(&s);
}

Test(step_trace, sums_by_group_and_kind) {
    struct zt_trace_sum sum[ZT_TRACE_SUMS];
    add(0, DP_SHARD, 1, GATHER, ROOT, 10)->exposed_ns = 4;
    add(0, DP_SHARD, 2, REDUCE, ROOT, 20)->stall_ns = 5;
    add(0, DP_SHARD, 3, GATHER, BLOCK, 30)->exposed_ns = 8;
    add(0, CONTROL, 1, GATHER, NONE, 40);
    struct zt_step_trace_set s = make(parts, 1);
    cr_assert_eq(zt_trace_sums(&s.ranks[0], NULL, sum), 3);
    cr_expect(strcmp(sum[0].kind, "all_gather") == 0 && strcmp(sum[0].group, "dp_shard") == 0 && sum[0].count == 2);
    cr_expect(near(sum[0].took, 40) && near(sum[0].exposed, 12) && sum[0].bytes == 200 && sum[0].sent_bytes == 100);
    cr_expect(strcmp(sum[1].kind, "all_reduce") == 0 && sum[1].count == 1 && near(sum[1].stall, 5));
    cr_expect(sum[2].control && sum[2].count == 1 && near(sum[2].took, 40));
    cr_assert_eq(zt_trace_sums(&s.ranks[0], "block0", sum), 1);
    cr_expect(sum[0].count == 1 && near(sum[0].took, 30));
    cr_assert_eq(zt_trace_sums(&s.ranks[0], "block", sum), 0);
    zt_trace_set_free(&s);
}

/* A rank that has not told may have been the last: nothing is said about waits then. */
Test(step_trace, no_waits_without_all_ranks_of_the_group) {
    for (uint32_t r = 0; r < 4; r++) {
        add(r, DP_SHARD, 4, GATHER, BLOCK, 10 * (int)r + 5);
        add(r, CONTROL, 2, GATHER, NONE, r == 2 ? -1 : 50 + (int)r);
    }
    Zt__StepTrace *some[] = {parts[0], parts[1], parts[2]};
    struct zt_step_trace_set s = make(some, 3);
    cr_expect_eq(s.ranks[1].v[0].wait_ns, 10, "its group is complete");
    cr_expect_eq(s.ranks[2].v[0].wait_ns, -1, "rank 3 is missing");
    cr_expect_eq(s.ranks[0].v[1].wait_ns, -1);
    zt_trace_set_free(&s);
    s = make(parts, 4);
    cr_expect_eq(s.ranks[2].v[0].wait_ns, 0);
    cr_expect_eq(s.ranks[3].v[0].waited_for, 2);
    cr_expect_eq(s.ranks[0].v[1].wait_ns, -1, "one of them is not over yet");
    cr_expect_eq(s.ranks[2].v[1].took_ns, -1);
    zt_trace_set_free(&s);
}

Test(step_trace, other_calls_are_not_compared) {
    for (uint32_t r = 0; r < 2; r++) {
        add(r, DP_SHARD, 4, GATHER, r ? BLOCK : ROOT, 10 + (int)r);
        add(r, DP_SHARD, 5, r ? GATHER : REDUCE, BLOCK, 10 + (int)r);
        add(r, DP_SHARD, 6, GATHER, BLOCK, 10 + (int)r)->bytes += r;
        add(r, DP_SHARD, 7 + r, GATHER, BLOCK, 10);
        add(r, DP_SHARD, 9, GATHER, BLOCK, 10 + (int)r);
    }
    part[0].group[CONTROL].n_ranks = part[1].group[CONTROL].n_ranks = 0; /* members not known */
    add(0, CONTROL, 1, GATHER, NONE, 10);
    add(1, CONTROL, 1, GATHER, NONE, 20);
    struct zt_step_trace_set s = make(parts, 2);
    cr_expect_eq(s.mismatched, 3);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(s.ranks[1].v[i].wait_ns, i == 4 ? 1 : -1, "collective %d", i);
    zt_trace_set_free(&s);
}

Test(step_trace, parts_of_a_long_step) {
    struct rank_part more;
    add(0, DP_SHARD, 4, GATHER, ROOT, 10);
    part[0].s.parts = 2;
    more = part[0];
    more.s.part = 1;
    more.s.records = more.records;
    more.s.words = more.words;
    more.s.groups = more.groups;
    Zt__StepTrace *both[] = {&part[0].s, &more.s, parts[1]};
    struct zt_step_trace_set s = make(both, 3);
    cr_expect_eq(s.n_ranks, 2);
    cr_expect(s.ranks[0].n == 2 && s.ranks[0].whole && s.ranks[1].n == 0 && s.ranks[1].whole);
    zt_trace_set_free(&s);
    s = make(both, 1);
    cr_expect_not(s.ranks[0].whole, "its second part is not here");
    zt_trace_set_free(&s);
    part[0].s.parts = 1;
    part[0].s.has_dropped = 1;
    part[0].s.dropped = 3;
    s = make(both, 1);
    cr_expect(!s.ranks[0].whole && s.ranks[0].dropped == 3);
    zt_trace_set_free(&s);
    s = make(both, 0);
    cr_expect_null(zt_trace_slowest(&s));
    zt_trace_set_free(&s);
}
