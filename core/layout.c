/* SPDX-License-Identifier: Apache-2.0 */
/* core/layout.c: padded sizes of flat groups and the persistent bytes of each mode. Pure. */
#include "core/layout.h"
#include "core/error.h"
#include "core/units.h"

const char *zt_mode_name(enum zt_mode m) {
    static const char *const names[ZT_MODE_COUNT] = {
        [ZT_DDP] = "ddp", [ZT_ZERO1] = "zero1", [ZT_ZERO2] = "zero2",
        [ZT_ZERO3] = "zero3", [ZT_FSDP] = "fsdp",
    };
    return (unsigned)m < ZT_MODE_COUNT ? names[m] : "?";
}

static int64_t align_elements(int64_t n) {
    return zt_ceil_div(n, ZT_ALIGN_ELEMENTS) * ZT_ALIGN_ELEMENTS;
}

static int64_t pad_total(int64_t aligned, int shard_degree) {
    int64_t step = (int64_t)ZT_ALIGN_ELEMENTS * shard_degree;
    return zt_ceil_div(aligned, step) * step;
}

int64_t zt_group_padded(const int64_t *numel, int n, int shard_degree) {
    ZT_ASSERT(shard_degree >= 1);
    int64_t aligned = 0;
    for (int i = 0; i < n; i++)
        aligned += align_elements(numel[i]);
    return pad_total(aligned, shard_degree);
}

/* A unit has one group of its trainable tensors and one of its frozen ones; 0 = no such group. */
static int64_t unit_padded(const struct zt_model_table *t, int unit, bool frozen, int shard_degree) {
    ZT_ASSERT(shard_degree >= 1);
    const struct zt_unit_def *u = &t->units[unit];
    int64_t aligned = 0;
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        if (t->tensors[i].frozen == frozen)
            aligned += align_elements(t->tensors[i].numel);
    return pad_total(aligned, shard_degree);
}

int64_t zt_model_padded(const struct zt_model_table *t, int shard_degree) {
    int64_t total = 0;
    for (int u = 0; u < t->n_units; u++)
        total += unit_padded(t, u, false, shard_degree) + unit_padded(t, u, true, shard_degree);
    return total;
}

#define GRAIN 512 /* the allocator's */

static int64_t buffer(int64_t elements, enum zt_dtype type, size_t grain) {
    return (int64_t)zt_round_up((size_t)elements * zt_dtype_size(type), grain);
}

/* grain: what each buffer is rounded up to. */
static void add_group(struct zt_state_bytes *s, const struct zt_group_size *g, enum zt_mode mode,
                      int S, const struct zt_recipe *r, size_t grain) {
    const bool cut_p = (mode == ZT_ZERO3 || mode == ZT_FSDP), cut_g = cut_p || mode == ZT_ZERO2;
    const int64_t n = g->elements, part = zt_ceil_div(n, S), own = mode == ZT_DDP ? n : part;
    s->parameters += buffer(cut_p && !g->persistent ? part : n, zt_recipe_stored(r, g->trainable), grain);
    if (!g->trainable)
        return;
    s->gradients += cut_g ? buffer(part, r->own, grain) : buffer(n, r->grad, grain);
    s->optimizer += 2 * buffer(own, r->moment, grain) + (r->has_master ? buffer(own, ZT_F32, grain) : 0);
}

struct zt_state_bytes zt_state_of_groups(const struct zt_group_size *g, int n, enum zt_mode mode,
                                         int shard_degree, const struct zt_recipe *r) {
    struct zt_state_bytes s = {0, 0, 0};
    for (int i = 0; i < n; i++) {
        ZT_ASSERT(g[i].elements % shard_degree == 0);
        add_group(&s, &g[i], mode, shard_degree, r, GRAIN);
    }
    return s;
}

struct zt_state_bytes zt_state_plain(int64_t elements, bool trainable, enum zt_mode mode,
                                     int shard_degree, const struct zt_recipe *r) {
    struct zt_state_bytes s = {0, 0, 0};
    const struct zt_group_size g = {elements, trainable, false};
    ZT_ASSERT(elements >= 0 && shard_degree >= 1);
    add_group(&s, &g, mode, shard_degree, r, 1);
    return s;
}

struct zt_unit_peak zt_unit_peak_formula(int64_t elements, bool gathers, int ahead, int in_flight,
                                         enum zt_dtype reduce, const struct zt_recipe *r) {
    const int64_t whole = gathers ? (1 + ahead) * buffer(elements, r->gathered, 1) : 0;
    return (struct zt_unit_peak){
        whole, whole + buffer(elements, r->grad, 1) + in_flight * buffer(elements, reduce, 1)};
}

struct zt_state_bytes zt_state_formula(const struct zt_model_table *t, enum zt_mode mode,
                                       int shard_degree, const struct zt_recipe *r) {
    struct zt_state_bytes s = {0, 0, 0};
    for (int u = 0; u < t->n_units; u++)
        for (int frozen = 0; frozen < 2; frozen++) {
            struct zt_group_size g = {unit_padded(t, u, frozen, shard_degree), !frozen, false};
            add_group(&s, &g, mode, shard_degree, r, GRAIN);
        }
    return s;
}

/* Share of a buffer that a rank of n sends in a gather or a scatter. */
static double ring(int n) { return n > 1 ? (double)(n - 1) / n : 0.0; }

struct zt_volume zt_volume_formula(const struct zt_volume_case *c, const struct zt_recipe *r) {
    const bool before_use = c->mode == ZT_ZERO3 || c->mode == ZT_FSDP;
    const bool every_micro = c->mode == ZT_ZERO2 || (before_use && !c->no_sync);
    const double n = (double)c->micro_steps, reduces = every_micro ? n : 1.0;
    const double g = (double)zt_dtype_size(c->reduce);
    struct zt_volume v = {0, 0, 0};
    v.scatter = reduces * ring(c->shard) * g;
    v.all_reduce = reduces * 2.0 * ring(c->replicate) * g / c->shard;
    if (before_use)
        v.gather = n * (double)zt_dtype_size(r->gathered) *
                   (ring(c->shard) + (c->keep ? 0.0 : ring(c->slices ? c->slices : c->shard)));
    else if (c->mode != ZT_DDP)
        v.gather = ring(c->shard) * (double)zt_dtype_size(r->param);
    return v;
}
