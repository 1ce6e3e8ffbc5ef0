/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/layout.c: builds the flat groups. See layout.h for the rules. */
#include "engine/shard/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/spec.h"
#include "core/units.h"

struct builder {
    const struct zt_model_table *table;
    const struct zt_layout_options *o;
    struct zt_unit_layout *l;
    int open;           /* group that still takes tensors, -1 = none */
    int open_last_unit; /* last unit put into it */
    int piece;          /* pieces the current unit was cut into so far */
};

static int64_t aligned(int64_t n) { return zt_ceil_div(n, ZT_ALIGN_ELEMENTS) * ZT_ALIGN_ELEMENTS; }

static bool in_class(const struct builder *b, const struct zt_tensor_def *d, bool trainable,
                     bool persistent) {
    return d->frozen == !trainable && (d->numel <= b->o->persistence_threshold) == persistent;
}

/* Elements of a unit's tensors of one class, aligned but not padded. */
static int64_t unit_elements(const struct builder *b, const struct zt_unit_def *u, bool trainable,
                             bool persistent) {
    int64_t sum = 0;
    for (int i = 0; i < u->n_tensors; i++) {
        const struct zt_tensor_def *d = &b->table->tensors[u->first_tensor + i];
        if (in_class(b, d, trainable, persistent)) sum += aligned(d->numel);
    }
    return sum;
}

static void open_group(struct builder *b, int unit, bool trainable, bool persistent) {
    struct zt_flat_group *g = &b->l->groups[b->l->n_groups];
    const char *name = b->table->units[unit].name;
    b->open = b->l->n_groups++;
    b->open_last_unit = -1;
    *g = (struct zt_flat_group){.dtype = trainable ? b->o->dtype : b->o->frozen,
                                .trainable = trainable,
                                .persistent = persistent,
                                .first_entry = b->l->n_entries};
    if (b->piece)
        snprintf(g->name, sizeof g->name, "%.20s.%d", name, b->piece);
    else
        snprintf(g->name, sizeof g->name, "%s", name);
}

static void add_tensor(struct builder *b, int unit, int tensor) {
    struct zt_flat_group *g = &b->l->groups[b->open];
    int64_t numel = b->table->tensors[tensor].numel;
    b->l->entry_of[tensor] = b->l->n_entries;
    b->l->group_of[tensor] = b->open;
    b->l->entries[b->l->n_entries++] = (struct zt_flat_entry){tensor, unit, g->elements, numel};
    g->elements += aligned(numel);
    g->n_entries++;
    if (b->open_last_unit != unit) {
        if (g->n_units == 1) { /* merged: say how many more there are */
            size_t n = strlen(g->name);
            if (n < sizeof g->name - 6) snprintf(g->name + n, sizeof g->name - n, "+1");
        } else if (g->n_units > 1) {
            char *plus = strrchr(g->name, '+');
            if (plus) snprintf(plus, sizeof g->name - (size_t)(plus - g->name), "+%d", g->n_units);
        }
        g->n_units++;
        b->open_last_unit = unit;
    }
}

static void add_unit(struct builder *b, int unit, bool trainable, bool persistent) {
    const struct zt_unit_def *u = &b->table->units[unit];
    double size = (double)zt_dtype_size(b->o->reduce_dtype), limit = b->o->bucket_bytes;
    int64_t whole = unit_elements(b, u, trainable, persistent);
    bool big = limit > 0 && (double)whole * size > limit;
    if (!whole) return;
    b->piece = 0;
    if (limit <= 0 || big || b->open < 0 ||
        (double)(b->l->groups[b->open].elements + whole) * size > limit)
        open_group(b, unit, trainable, persistent);
    for (int i = 0; i < u->n_tensors; i++) {
        int tensor = u->first_tensor + i;
        const struct zt_tensor_def *d = &b->table->tensors[tensor];
        if (!in_class(b, d, trainable, persistent)) continue;
        int64_t have = b->l->groups[b->open].elements;
        if (big && have && (double)(have + aligned(d->numel)) * size > limit) {
            b->piece++;
            open_group(b, unit, trainable, persistent);
        }
        add_tensor(b, unit, tensor);
    }
    /* A piece of a cut unit takes no other unit, and a tied root, which is needed twice in forward,
     * none that would then be gathered for it. */
    if (big || (unit == 0 && b->table->config.tied_head)) b->open = -1;
}

/* Compressed lists: the groups in which each unit has tensors. */
static void index_units(struct zt_unit_layout *l) {
    int at = 0;
    for (int u = 0; u < l->n_units; u++) {
        l->unit_first[u] = at;
        for (int g = 0; g < l->n_groups; g++) {
            const struct zt_flat_group *gr = &l->groups[g];
            bool here = false;
            for (int i = 0; i < gr->n_entries && !here; i++)
                here = l->entries[gr->first_entry + i].unit == u;
            if (here) l->unit_groups[at++] = g;
        }
    }
    l->unit_first[l->n_units] = at;
}

int zt_unit_layout_build(const struct zt_model_table *t, const struct zt_layout_options *o,
                         struct zt_unit_layout *out, struct zt_error *err) {
    size_t n = (size_t)t->n_tensors + 1;
    struct builder b = {t, o, out, -1, -1, 0};
    memset(out, 0, sizeof *out);
    if (o->shard_degree < 1)
        return zt_fail(err, ZT_EINVAL, "shard degree %d: must be at least 1", o->shard_degree);
    out->shard_degree = o->shard_degree;
    out->n_units = t->n_units;
    out->groups = calloc(n, sizeof *out->groups);
    out->entries = calloc(n, sizeof *out->entries);
    out->entry_of = calloc(n, sizeof *out->entry_of);
    out->group_of = calloc(n, sizeof *out->group_of);
    out->unit_first = calloc((size_t)t->n_units + 1, sizeof *out->unit_first);
    out->unit_groups = calloc(n, sizeof *out->unit_groups);
    if (!out->groups || !out->entries || !out->entry_of || !out->group_of || !out->unit_first ||
        !out->unit_groups) {
        zt_unit_layout_free(out);
        return zt_fail(err, ZT_ENOMEM, "unit layout of %d tensors: no host memory", t->n_tensors);
    }
    for (int persistent = 0; persistent < 2; persistent++)
        for (int frozen = 0; frozen < 2; frozen++) {
            b.open = -1;
            for (int u = 0; u < t->n_units; u++) add_unit(&b, u, !frozen, persistent != 0);
        }
    int64_t unit = (int64_t)ZT_ALIGN_ELEMENTS * o->shard_degree;
    for (int g = 0; g < out->n_groups; g++) {
        out->groups[g].elements = zt_ceil_div(out->groups[g].elements, unit) * unit;
        out->groups[g].shard = out->groups[g].elements / o->shard_degree;
    }
    ZT_ASSERT(out->n_entries == t->n_tensors);
    index_units(out);
    return 0;
}

void zt_unit_layout_free(struct zt_unit_layout *l) {
    free(l->groups);
    free(l->entries);
    free(l->entry_of);
    free(l->group_of);
    free(l->unit_first);
    free(l->unit_groups);
    memset(l, 0, sizeof *l);
}

struct zt_flat_part zt_flat_part(const struct zt_flat_entry *e, int64_t from, int64_t to) {
    int64_t begin = e->offset > from ? e->offset : from;
    int64_t end = e->offset + e->numel < to ? e->offset + e->numel : to;
    if (end <= begin) return (struct zt_flat_part){0, 0, 0};
    return (struct zt_flat_part){begin - e->offset, begin - from, end - begin};
}

struct zt_layout_options zt_layout_options_of(const struct zt_spec *s, const struct zt_policy *row,
                                              int shard_degree) {
    const struct zt_recipe *recipe = zt_recipe_find(s->precision.recipe);
    bool gathers = row->gather == ZT_GATHER_BEFORE_USE;
    return (struct zt_layout_options){
        .shard_degree = shard_degree,
        .dtype = recipe->param,
        .frozen = recipe->frozen,
        .bucket_bytes = s->parallelism.bucket_mib * (double)ZT_MIB,
        .reduce_dtype = s->precision.reduce_dtype,
        .persistence_threshold = gathers ? s->parallelism.persistence_threshold : 0};
}

static struct zt_flat_range range(const struct zt_flat_group *g, bool cut, int shard_index) {
    if (!cut) return (struct zt_flat_range){0, g->elements};
    return (struct zt_flat_range){shard_index * g->shard, g->shard};
}

struct zt_flat_range zt_flat_stored(const struct zt_policy *row, const struct zt_flat_group *g,
                                    int shard_index) {
    return range(g, row->shard_parameters && !g->persistent, shard_index);
}

struct zt_flat_range zt_flat_owned(const struct zt_policy *row, const struct zt_flat_group *g,
                                   int shard_index) {
    return range(g, row->shard_optimizer, shard_index);
}

bool zt_flat_piece_next(const struct zt_unit_layout *l, const struct zt_model_table *t,
                        const struct zt_flat_group *g, int64_t from, int64_t count,
                        struct zt_flat_piece *p) {
    for (; p->entry < g->n_entries; p->entry++, p->done = 0) {
        const struct zt_flat_entry *e = &l->entries[g->first_entry + p->entry];
        const struct zt_flat_part part = zt_flat_part(e, from, from + count);
        while (p->done < part.count) {
            const struct zt_part_run run = zt_tensor_run(
                t, &t->tensors[e->tensor], part.first + p->done, part.count - p->done);
            p->tensor = e->tensor;
            p->at = part.at + p->done;
            p->count = run.count;
            p->span = run.span;
            p->done += run.count;
            if (!run.padding) return true;
        }
    }
    return false;
}

bool zt_table_speaks(const struct zt_model_table *t, int tensor) {
    return t->tensor_rank == 0 || t->tensors[tensor].tp_dim >= 0;
}

int zt_partial_elements(const struct zt_unit_layout *l, const struct zt_model_table *t,
                        bool sequence_parallel, bool cut, int64_t *most, struct zt_error *err) {
    *most = 0;
    if (t->tensor_degree == 1) return 0;
    int64_t *own = calloc((size_t)l->shard_degree, sizeof *own);
    if (!own) return zt_fail(err, ZT_ENOMEM, "partial gradients: no host memory");
    for (int i = 0; i < l->n_entries; i++) {
        const struct zt_flat_entry *e = &l->entries[i];
        const struct zt_flat_group *g = &l->groups[l->group_of[e->tensor]];
        if (!g->trainable || !zt_tensor_is_partial(&t->tensors[e->tensor], sequence_parallel))
            continue;
        const int64_t part = cut ? g->shard : g->elements;
        for (int64_t s = e->offset / part; s * part < e->offset + e->numel; s++)
            own[s] += zt_flat_part(e, s * part, (s + 1) * part).count;
    }
    for (int s = 0; s < l->shard_degree; s++)
        if (own[s] > *most) *most = own[s];
    free(own);
    return 0;
}
