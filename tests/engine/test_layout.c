/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_layout.c: flat groups against the byte formulas of core/layout.h, which know
 * nothing of this layout, and against small cases worked out by hand. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/shard/layout.h"
#include "engine/shard/policy.h"

static struct zt_model_table table_of(const char *preset) {
    struct zt_model_config c;
    struct zt_model_table t;
    struct zt_error err = {0};
    cr_assert_eq(zt_model_preset(preset, &c, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_model_table_build(&c, ZT_WRAP_BLOCK, 1, &t, &err), 0, "%s", err.msg);
    return t;
}

static struct zt_unit_layout build(const struct zt_model_table *t, int S, double bucket) {
    struct zt_layout_options o = {
        .shard_degree = S, .dtype = ZT_F32, .bucket_bytes = bucket, .reduce_dtype = ZT_F32};
    struct zt_unit_layout l;
    struct zt_error err = {0};
    cr_assert_eq(zt_unit_layout_build(t, &o, &l, &err), 0, "%s", err.msg);
    return l;
}

/* Every tensor once, aligned, inside its group, not overlapping its neighbour. */
static void check_sound(const struct zt_model_table *t, const struct zt_unit_layout *l, int S) {
    int seen = 0;
    for (int g = 0; g < l->n_groups; g++) {
        const struct zt_flat_group *gr = &l->groups[g];
        int64_t end = 0;
        cr_assert_eq(gr->elements % (16 * S), 0);
        cr_assert_eq(gr->shard * S, gr->elements);
        cr_assert_geq(gr->n_entries, 1);
        for (int i = 0; i < gr->n_entries; i++, seen++) {
            const struct zt_flat_entry *e = &l->entries[gr->first_entry + i];
            cr_assert_eq(e->offset % 16, 0);
            cr_assert_geq(e->offset, end);
            cr_assert_lt(e->offset - end, 16);
            end = e->offset + e->numel;
            cr_assert_leq(end, gr->elements);
            cr_assert_eq(e->numel, t->tensors[e->tensor].numel);
            cr_assert_eq(l->entry_of[e->tensor], gr->first_entry + i);
            cr_assert_eq(l->group_of[e->tensor], g);
            cr_assert_eq(t->tensors[e->tensor].frozen, !gr->trainable);
            bool listed = false;
            for (int k = l->unit_first[e->unit]; k < l->unit_first[e->unit + 1]; k++)
                listed |= l->unit_groups[k] == g;
            cr_assert(listed);
        }
        cr_assert_lt(gr->elements - end, 16 * S + 16);
    }
    cr_assert_eq(seen, t->n_tensors);
}

static int64_t total(const struct zt_unit_layout *l) {
    int64_t n = 0;
    for (int g = 0; g < l->n_groups; g++) n += l->groups[g].elements;
    return n;
}

Test(layout, one_group_a_unit_equals_the_formula) {
    static const char *const presets[] = {"gpt2-nano", "gpt2-124m"};
    static const int degrees[] = {1, 2, 3, 4, 8, 64};
    for (size_t p = 0; p < 2; p++) {
        struct zt_model_table t = table_of(presets[p]);
        for (size_t k = 0; k < 6; k++) {
            struct zt_unit_layout l = build(&t, degrees[k], 0);
            check_sound(&t, &l, degrees[k]);
            cr_assert_eq(l.n_groups, t.n_units);
            cr_assert_eq(total(&l), zt_model_padded(&t, degrees[k]));
            for (int u = 0; u < t.n_units; u++) {
                cr_assert_str_eq(l.groups[u].name, t.units[u].name);
                cr_assert_eq(l.groups[u].n_units, 1);
            }
            zt_unit_layout_free(&l);
        }
        zt_model_table_free(&t);
    }
}

Test(layout, frozen_tensors_have_their_own_groups) {
    struct zt_model_table t = table_of("gpt2-nano");
    for (int i = 0; i < t.n_tensors; i++) t.tensors[i].frozen = i % 3 == 0;
    struct zt_unit_layout l = build(&t, 4, 0);
    check_sound(&t, &l, 4);
    cr_assert_eq(l.n_groups, 2 * t.n_units);
    cr_assert_eq(total(&l), zt_model_padded(&t, 4));
    zt_unit_layout_free(&l);
    zt_model_table_free(&t);
}

/* Four units of one tensor each: 16, 16, 100, 16 elements of fp32. */
static struct zt_model_table toy(struct zt_tensor_def *tensors, struct zt_unit_def *units) {
    static const int64_t numel[4] = {16, 16, 100, 16};
    for (int i = 0; i < 4; i++) {
        tensors[i] = (struct zt_tensor_def){
            .unit = i, .ndim = 1, .shape = {numel[i], 1}, .numel = numel[i], .tp_dim = -1};
        units[i] = (struct zt_unit_def){.first_tensor = i, .n_tensors = 1};
        snprintf(units[i].name, sizeof units[i].name, "u%d", i);
    }
    return (struct zt_model_table){
        .n_tensors = 4, .n_units = 4, .tensors = tensors, .units = units, .parameters = 148};
}

Test(layout, buckets_merge_small_units_and_leave_big_tensors_alone) {
    struct zt_tensor_def tensors[4];
    struct zt_unit_def units[4];
    struct zt_model_table t = toy(tensors, units);
    struct zt_unit_layout l = build(&t, 1, 128); /* 32 fp32 elements */
    check_sound(&t, &l, 1);
    cr_assert_eq(l.n_groups, 3);
    cr_assert_str_eq(l.groups[0].name, "u0+1");
    cr_assert_eq(l.groups[0].elements, 32);
    cr_assert_eq(l.groups[0].n_units, 2);
    cr_assert_eq(l.groups[1].elements, 112);
    cr_assert_eq(l.groups[2].elements, 16, "the piece of a cut unit takes no other unit");
    zt_unit_layout_free(&l);
    l = build(&t, 1, 1e9);
    cr_assert_eq(l.n_groups, 1);
    cr_assert_str_eq(l.groups[0].name, "u0+3");
    zt_unit_layout_free(&l);
}

Test(layout, a_tied_root_is_not_merged) {
    struct zt_tensor_def tensors[4];
    struct zt_unit_def units[4];
    struct zt_model_table t = toy(tensors, units);
    t.config.tied_head = true;
    struct zt_unit_layout l = build(&t, 1, 1e9);
    check_sound(&t, &l, 1);
    cr_assert_eq(l.n_groups, 2);
    cr_assert_str_eq(l.groups[0].name, "u0");
    cr_assert_str_eq(l.groups[1].name, "u1+2");
    zt_unit_layout_free(&l);
}

Test(layout, buckets_cut_big_units_between_tensors) {
    struct zt_model_table t = table_of("gpt2-nano");
    const double limits[] = {1024, 65536, 300000, 1e6, 4e6};
    for (size_t k = 0; k < 5; k++) {
        struct zt_unit_layout l = build(&t, 2, limits[k]);
        check_sound(&t, &l, 2);
        for (int g = 0; g < l.n_groups; g++) {
            const struct zt_flat_group *gr = &l.groups[g];
            /* padding to 16 S may add up to 16 (S-1) elements to a full bucket */
            if (gr->n_entries > 1) cr_assert_leq((double)(gr->elements - 16) * 4, limits[k]);
        }
        zt_unit_layout_free(&l);
    }
    zt_model_table_free(&t);
}

Test(layout, persistent_tensors_form_second_groups) {
    struct zt_model_table t = table_of("gpt2-nano");
    struct zt_layout_options o = {
        .shard_degree = 2, .dtype = ZT_F32, .reduce_dtype = ZT_F32, .persistence_threshold = 512};
    struct zt_unit_layout l;
    cr_assert_eq(zt_unit_layout_build(&t, &o, &l, NULL), 0);
    check_sound(&t, &l, 2);
    for (int i = 0; i < t.n_tensors; i++)
        cr_assert_eq(l.groups[l.group_of[i]].persistent, t.tensors[i].numel <= 512);
    zt_unit_layout_free(&l);
    zt_model_table_free(&t);
}

/* The parts of all shards cover each tensor exactly once, in order. */
Test(layout, parts_tile_the_tensors) {
    struct zt_model_table t = table_of("gpt2-nano");
    struct zt_unit_layout l = build(&t, 3, 0);
    for (int i = 0; i < l.n_entries; i++) {
        const struct zt_flat_group *g = &l.groups[l.group_of[l.entries[i].tensor]];
        int64_t next = 0;
        for (int s = 0; s < 3; s++) {
            struct zt_flat_part p = zt_flat_part(&l.entries[i], s * g->shard, (s + 1) * g->shard);
            if (!p.count) continue;
            cr_assert_eq(p.first, next);
            cr_assert_eq(s * g->shard + p.at, l.entries[i].offset + p.first);
            cr_assert_leq(p.at + p.count, g->shard);
            next += p.count;
        }
        cr_assert_eq(next, l.entries[i].numel);
    }
    zt_unit_layout_free(&l);
    zt_model_table_free(&t);
}

Test(policy, rows) {
    for (int m = 0; m < ZT_MODE_COUNT; m++)
        cr_assert_eq(zt_policy((enum zt_mode)m)->mode, (enum zt_mode)m);
    const struct zt_policy *d = zt_policy(ZT_DDP);
    cr_assert(!d->shard_parameters && !d->shard_gradients && !d->shard_optimizer);
    cr_assert_eq(d->gather, ZT_GATHER_NEVER);
    cr_assert_eq(d->when, ZT_WHEN_WINDOW_END);
    cr_assert(zt_policy(ZT_ZERO1)->shard_optimizer && !zt_policy(ZT_ZERO1)->shard_gradients);
    cr_assert(zt_policy(ZT_ZERO2)->shard_gradients && !zt_policy(ZT_ZERO2)->shard_parameters);
    cr_assert_eq(zt_policy(ZT_ZERO1)->when, ZT_WHEN_WINDOW_END);
    cr_assert_eq(zt_policy(ZT_ZERO2)->when, ZT_WHEN_EVERY_MICRO_STEP);
    cr_assert_eq(zt_policy(ZT_FSDP)->gather, ZT_GATHER_BEFORE_USE);
}
