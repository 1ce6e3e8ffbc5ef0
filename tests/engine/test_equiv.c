/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_equiv.c: the sharding mode and every option change memory and traffic, never
 * the result: parameters, moments, losses and norms bit for bit, against the reference of equiv.h
 * that has no collective and no shard in it. */
#include <criterion/criterion.h>
#include <fnmatch.h>

#include "tests/engine/equiv_product.h"

#define STEPS 20

/* Runs the case and holds it against its reference; says what differs. */
static int differs(const struct eq_case *c) {
    char text[EQ_WHY], why[EQ_WHY] = "a rank failed";
    struct eq_job *reference = eq_reference_of(c), *j = eq_run(c);
    bool same = reference && j && eq_same(j, reference, why);
    if (!same) fprintf(stderr, "%s: %s\n", eq_text(c, text), why);
    if (j) eq_free(j);
    return !same;
}

Test(equiv, pairwise_cover_of_all_options, .timeout = 600) {
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    int n = pw_cover(&eq_product, rows, &pairs), bad = 0, missing;
    missing = pw_missing(&eq_product, &pairs, NULL);
    cr_assert_eq(missing, 0, "%d pairs are not covered", missing);
    for (int i = 0; i < n; i += pw_every()) {
        struct eq_case c = eq_case_of(rows[i], STEPS);
        bad += differs(&c);
    }
    cr_assert_eq(bad, 0, "%d of %d cases differ from their reference", bad, n);
}

/* Eight ranks, every mode once with options that differ from mode to mode. */
Test(equiv, eight_ranks, .timeout = 300) {
    int bad = 0;
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        int row[EQ_FACTORS] = {m,     3,     m % 2,  m,      m,      m % 4,
                               m % 3, m % 3, m == 2, m == 3, m == 4, m % 2};
        for (int i = 0; i < EQ_FACTORS; i++) row[i] %= i == EQ_WORLD ? 5 : eq_levels[i];
        eq_fix(row);
        struct eq_case c = eq_case_of(row, STEPS);
        bad += differs(&c);
    }
    cr_assert_eq(bad, 0, "%d modes differ from their reference", bad);
}

/* The sums' order differs between numbers of ranks, the numbers do not by more than rounding. */
Test(equiv, worlds_agree_at_one_global_batch, .timeout = 300) {
    for (int clip = 0; clip < 2; clip++) {
        struct eq_case c = {
            .world = 1, .shard = 1, .micros = 1, .steps = STEPS, .rows = 24, .clip = clip};
        struct eq_job *one = eq_reference_of(&c);
        cr_assert(one);
        cr_assert_lt(eq_loss(one, STEPS, 1), eq_loss(one, 1, 1) - 0.01, "it trains");
        cr_assert_gt(one->step[STEPS][0].norm, 0.25, "the clip is at work to the end");
        for (c.world = 2; c.world <= 8; c.world += c.world == 4 ? 4 : 1) {
            struct eq_job *j = eq_reference_of(&c);
            cr_assert(j);
            cr_assert_lt(eq_loss_distance(j, 1, one, 1), 1e-6, "world %d: losses %g", c.world,
                         eq_loss_distance(j, 1, one, 1));
            cr_assert_lt(eq_gradient_distance(j, one), 1e-6, "world %d: gradients %g", c.world,
                         eq_gradient_distance(j, one));
        }
    }
}

/* Reduced once per window or every micro-step: rounding apart, and only by that. */
Test(equiv, classes_agree, .timeout = 300) {
    struct eq_case a = {.world = 4,
                        .shard = 4,
                        .micros = 2,
                        .steps = STEPS,
                        .rows = 24,
                        .mode = ZT_ZERO1},
                   b = a;
    b.mode = ZT_ZERO2;
    struct eq_job *x = eq_reference_of(&a), *y = eq_reference_of(&b);
    cr_assert(x && y);
    cr_assert_lt(eq_loss_distance(x, 1, y, 1), 1e-6);
    cr_assert_lt(eq_gradient_distance(x, y), 1e-6);
    cr_assert(eq_differ(eq_hash(x, STEPS, 0, false), eq_hash(y, STEPS, 0, false)),
              "two classes, not one");
}

/* Shards within replicas: bit for bit the sum that nests the same way, equal on all replicas, and
 * rounding apart from the flat sum of ddp. */
Test(equiv, hybrid, .timeout = 600) {
    static const int mesh[][2] = {{2, 2}, {2, 4}, {4, 2}};
    int bad = 0;
    for (int i = 0; i < 3; i++)
        for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            int row[EQ_FACTORS] = {m,     0, (m + i) % 2, m + i,  m,      i,
                                   m % 3, i, i == 1,      m == 3, m == 4, i % 2};
            for (int k = 0; k < EQ_FACTORS; k++) row[k] %= eq_levels[k];
            eq_fix(row);
            struct eq_case c = eq_case_of(row, STEPS), flat;
            c.world = mesh[i][0] * mesh[i][1];
            c.shard = mesh[i][1];
            c.reshard_int = 2;
            c.per_host = m % 2 ? c.shard : 0; /* a host holds a shard group */
            c.micros = row[EQ_MICROS] ? 3 : 1;
            bad += differs(&c);
            flat = c;
            flat.mode = ZT_DDP;
            flat.shard = 1;
            struct eq_job *x = eq_reference_of(&c), *y = eq_reference_of(&flat);
            cr_assert(x && y);
            cr_assert_lt(eq_loss_distance(x, 1, y, 1), 1e-6);
            cr_assert_lt(eq_gradient_distance(x, y), 1e-6);
            cr_assert(eq_differ(eq_hash(x, STEPS, 0, false), eq_hash(y, STEPS, 0, false)));
        }
    cr_assert_eq(bad, 0, "%d cases differ from their reference", bad);
}

/* The comparison sees a single bit: other ranks, other class, other clip are told apart. */
Test(equiv, the_comparison_can_fail, .timeout = 100) {
    char why[EQ_WHY];
    struct eq_case c = {
        .world = 2, .shard = 2, .mode = ZT_ZERO2, .micros = 3, .steps = 2, .rows = 24};
    struct eq_job *j = eq_run(&c), *own = eq_reference_of(&c);
    cr_assert(j && own);
    cr_assert(eq_same(j, own, why), "%s", why);
    eq_data(j, 0, EQ_M)[j->n - 1] = nextafterf(eq_data(j, 0, EQ_M)[j->n - 1], 1);
    cr_assert(!eq_same(j, own, why));
    cr_assert(strstr(why, ", m ") && strstr(why, "h.4.mlp.c_proj.bias"), "%s", why);
    c.mode = ZT_ZERO1;
    cr_assert(!eq_same(j, eq_reference_of(&c), why));
    eq_free(j);
}

/* ---- frozen parameters ---- */

/* 512-rounded bytes of one buffer of `elements` fp32. */
static int64_t buffer_bytes(int64_t elements) { return (elements * 4 + 511) / 512 * 512; }

/* What the run may hold and send: trainable tensors have gradients and moments and are reduced;
 * frozen ones are stored (and gathered where parameters are cut), nothing else. */
static void check_frozen(struct eq_job *j, const char *text) {
    const struct eq_case *c = &j->c;
    const struct zt_policy *p = zt_policy(c->mode);
    struct zt_spec s;
    struct zt_model_table t;
    struct zt_error e = {0};
    struct bench b = {.world = 1};
    struct bench_options o = eq_options(c);
    int64_t parameters = 0, optimizer = 0;
    o.shard = 1;
    cr_assert_eq(bench_spec(&b, &o, &e), 0, "%s", e.msg);
    s = b.spec;
    cr_assert_eq(zt_model_table_build(&s.model, ZT_WRAP_BLOCK, 0, &t, &e), 0, "%s", e.msg);
    for (int u = 0; u < t.n_units; u++) {
        int64_t elements[2] = {0, 0}, unit = 16 * c->shard; /* trainable, frozen */
        for (int k = t.units[u].first_tensor; k < t.units[u].first_tensor + t.units[u].n_tensors;
             k++)
            elements[fnmatch(c->trainable, t.tensors[k].name, 0) != 0] +=
                (t.tensors[k].numel + 15) / 16 * 16;
        for (int f = 0; f < 2; f++) {
            int64_t n = (elements[f] + unit - 1) / unit * unit;
            if (!n) continue;
            parameters += buffer_bytes(p->shard_parameters ? n / c->shard : n);
            if (!f) optimizer += 2 * buffer_bytes(p->shard_optimizer ? n / c->shard : n);
        }
        cr_assert_eq(j->reductions[u] > 0, elements[0] > 0, "%s: %s", text, t.units[u].name);
        if (p->gather == ZT_GATHER_BEFORE_USE)
            cr_assert_gt(j->gathers[u], 0, "%s: %s is not gathered", text, t.units[u].name);
        if (p->gather == ZT_GATHER_AFTER_UPDATE)
            cr_assert_eq(j->gathers[u] > 0, elements[0] > 0, "%s: %s", text, t.units[u].name);
    }
    for (int r = 0; r < c->world; r++) {
        cr_assert_eq(j->step[c->steps][r].persistent.parameters, parameters, "%s", text);
        cr_assert_eq(j->step[c->steps][r].persistent.optimizer, optimizer, "%s", text);
    }
    zt_model_table_free(&t);
    zt_spec_free(&b.spec);
}

/* Trained: the last blocks (backward stops before the frozen ones), the first one (its gradient
 * comes through frozen blocks), a kind of tensor everywhere. */
Test(equiv, frozen_parameters, .timeout = 300) {
    static const char *const patterns[] = {"*.h.[34].*", "*.h.0.*", "*.mlp.*"};
    int bad = 0;
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < ZT_MODE_COUNT; m++) {
            char text[EQ_WHY], why[EQ_WHY];
            struct eq_case c = {.world = 4,
                                .shard = m == ZT_DDP ? 1
                                         : i == 0    ? 2
                                                     : 4,
                                .mode = (enum zt_mode)m,
                                .micros = 2,
                                .steps = 5,
                                .rows = 24,
                                .clip = true,
                                .prefetch = i,
                                .trainable = patterns[i],
                                .poison = true};
            struct eq_case start = c;
            start.steps = 0;
            struct eq_job *j = eq_run(&c), *none = eq_run(&start), *own = eq_reference_of(&c);
            eq_text(&c, text);
            cr_assert(j && none && own, "%s", text);
            if (!eq_same(j, own, why)) bad += fprintf(stderr, "%s: %s\n", text, why) > 0;
            const float *now = eq_data(j, 0, EQ_PARAMETER), *was = eq_data(none, 0, EQ_PARAMETER);
            for (int t = 0; t < j->n_tensors; t++) {
                size_t bytes = (size_t)(j->first[t + 1] - j->first[t]) * sizeof *now;
                bool moved = memcmp(now + j->first[t], was + j->first[t], bytes) != 0;
                cr_assert_eq(moved, fnmatch(patterns[i], j->names[t], 0) == 0, "%s: %s", text,
                             j->names[t]);
            }
            check_frozen(j, text);
            eq_free(j);
            eq_free(none);
        }
    cr_assert_eq(bad, 0, "%d cases differ from their reference", bad);
}
