/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/parts.c: which rectangles a rank writes, and the dealing among replicas. Rules and
 * ownership: parts.h. */
#include "engine/checkpoint/parts.h"

#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* ---- dealing ---- */

struct card {
    int64_t bytes;
    int index;
};

static int larger_first(const void *a, const void *b) {
    const struct card *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

int zt_save_deal(const int64_t *bytes, int n, int hands, int *writer, struct zt_error *err) {
    struct card *cards = calloc((size_t)n + 1, sizeof *cards);
    int64_t *held = calloc((size_t)hands, sizeof *held);
    int rc = 0;
    if (!cards || !held) TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
    for (int i = 0; i < n; i++) cards[i] = (struct card){bytes[i], i};
    qsort(cards, (size_t)n, sizeof *cards, larger_first);
    for (int i = 0; i < n; i++) {
        int least = 0;
        for (int h = 1; h < hands && cards[i].bytes > 0; h++)
            if (held[h] < held[least]) least = h;
        writer[cards[i].index] = least;
        held[least] += cards[i].bytes;
    }
out:
    free(cards);
    free(held);
    return rc;
}

/* ---- kinds and bytes ---- */

static bool has(const struct zt_save_who *w, const struct zt_recipe *r, int tensor,
                enum zt_saved kind) {
    bool trains = !w->table->tensors[tensor].frozen;
    if (kind == ZT_SAVED_PARAMETER) return true;
    return kind == ZT_SAVED_MASTER ? trains && r->has_master : trains && w->moments;
}

static enum zt_dtype type_of(const struct zt_recipe *r, bool frozen, enum zt_saved kind) {
    if (kind == ZT_SAVED_PARAMETER) return zt_recipe_stored(r, !frozen);
    return kind == ZT_SAVED_MASTER ? ZT_F32 : r->moment;
}

static int64_t element_bytes(const struct zt_save_who *w, const struct zt_recipe *r, int tensor) {
    size_t sum = 0;
    for (int k = 0; k < ZT_SAVED_COUNT; k++)
        if (has(w, r, tensor, (enum zt_saved)k))
            sum += zt_dtype_size(
                type_of(r, w->table->tensors[tensor].frozen, (enum zt_saved)k));
    return (int64_t)sum;
}

/* The next piece that the ranks at `shard` own and this tensor rank speaks for. */
static bool next(const struct zt_save_who *w, const struct zt_policy *row, int shard, int group,
                 struct zt_flat_piece *p) {
    const struct zt_flat_group *g = &w->layout->groups[group];
    const struct zt_flat_range own = zt_flat_owned(row, g, shard);
    while (zt_flat_piece_next(w->layout, w->table, g, own.from, own.count, p))
        if (zt_table_speaks(w->table, p->tensor)) return true;
    return false;
}

/* Bytes by tensor, and who of the replicas writes each. */
static int deal(const struct zt_save_who *w, int shard, int64_t *bytes, int *writer,
                struct zt_error *err) {
    const struct zt_policy *row = zt_policy(w->spec->parallelism.mode);
    const struct zt_recipe *recipe = zt_recipe_find(w->spec->precision.recipe);
    memset(bytes, 0, (size_t)w->table->n_tensors * sizeof *bytes);
    for (int g = 0; g < w->layout->n_groups; g++)
        for (struct zt_flat_piece p = {0}; next(w, row, shard, g, &p);)
            bytes[p.tensor] += p.count * element_bytes(w, recipe, p.tensor);
    if (w->mesh.replicate > 1)
        return zt_save_deal(bytes, w->table->n_tensors, w->mesh.replicate, writer, err);
    memset(writer, 0, (size_t)w->table->n_tensors * sizeof *writer);
    return 0;
}

int zt_save_bytes(const struct zt_save_who *w, int shard, int64_t *bytes, struct zt_error *err) {
    size_t n = (size_t)w->table->n_tensors;
    int64_t *of = calloc(n, sizeof *of);
    int *writer = calloc(n, sizeof *writer), rc = 0;
    if (!of || !writer) TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
    TRY(deal(w, shard, of, writer, err));
    memset(bytes, 0, (size_t)w->mesh.replicate * sizeof *bytes);
    for (size_t i = 0; i < n; i++) bytes[writer[i]] += of[i];
out:
    free(of);
    free(writer);
    return rc;
}

/* ---- pieces ---- */

struct list {
    struct zt_save_parts *out;
    int capacity;
};

static int add(struct list *l, struct zt_saved_piece piece, struct zt_save_origin from) {
    struct zt_save_parts *p = l->out;
    if (p->n_pieces == l->capacity) {
        int more = l->capacity ? 2 * l->capacity : 256;
        struct zt_saved_piece *a = realloc(p->pieces, (size_t)more * sizeof *a);
        if (a) p->pieces = a;
        struct zt_save_origin *b = a ? realloc(p->from, (size_t)more * sizeof *b) : NULL;
        if (b) p->from = b;
        if (!a || !b) return ZT_ENOMEM;
        l->capacity = more;
    }
    p->pieces[p->n_pieces] = piece;
    p->from[p->n_pieces++] = from;
    p->bytes += piece.rect.size[0] * piece.rect.size[1] * (int64_t)zt_dtype_size(piece.type);
    return 0;
}

/* The rectangles of one stretch, of every kind; *nth: of the tensor so far. */
static int add_stretch(const struct zt_save_who *w, const struct zt_flat_piece *p, int group,
                       int *nth, struct list *l) {
    const struct zt_recipe *recipe = zt_recipe_find(w->spec->precision.recipe);
    const struct zt_tensor_def *d = &w->table->tensors[p->tensor];
    struct zt_rect rect[ZT_SPAN_RECTS];
    int n = zt_span_rects(p->span, p->count, d->ndim == 2 ? d->whole[1] : 1, rect);
    int64_t at = p->at;
    for (int i = 0; i < n; i++, (*nth)++) {
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            enum zt_saved kind = (enum zt_saved)k;
            if (!has(w, recipe, p->tensor, kind)) continue;
            struct zt_saved_piece piece = {p->tensor, kind, type_of(recipe, d->frozen, kind), *nth,
                                           rect[i], NULL};
            if (add(l, piece, (struct zt_save_origin){group, at})) return ZT_ENOMEM;
        }
        at += rect[i].size[0] * rect[i].size[1];
    }
    return 0;
}

static void describe(const struct zt_save_who *w, struct zt_save_parts *out) {
    const struct zt_recipe *recipe = zt_recipe_find(w->spec->precision.recipe);
    out->n_tensors = w->table->n_tensors;
    for (int i = 0; i < out->n_tensors; i++) {
        const struct zt_tensor_def *d = &w->table->tensors[i];
        struct zt_saved_tensor *t = &out->tensors[i];
        memcpy(t->name, d->name, sizeof t->name);
        t->ndim = d->ndim;
        memcpy(t->shape, d->whole, sizeof t->shape);
        t->number = d->number;
        t->frozen = d->frozen;
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            t->has[k] = has(w, recipe, i, (enum zt_saved)k);
            if (t->has[k]) t->type[k] = type_of(recipe, d->frozen, (enum zt_saved)k);
        }
    }
}

int zt_save_parts_build(const struct zt_save_who *w, int rank, struct zt_save_parts *out,
                        struct zt_error *err) {
    const struct zt_policy *row = zt_policy(w->spec->parallelism.mode);
    const struct zt_coords at = zt_mesh_coords(w->mesh, rank);
    size_t n = (size_t)w->table->n_tensors;
    struct list list = {out, 0};
    int64_t *bytes = calloc(n, sizeof *bytes);
    int *writer = calloc(n, sizeof *writer), rc = 0;
    memset(out, 0, sizeof *out);
    out->tensors = calloc(n, sizeof *out->tensors);
    if (!bytes || !writer || !out->tensors)
        TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
    describe(w, out);
    TRY(deal(w, at.shard, bytes, writer, err));
    for (int g = 0; g < w->layout->n_groups; g++) {
        int tensor = -1, nth = 0;
        for (struct zt_flat_piece p = {0}; next(w, row, at.shard, g, &p);) {
            if (writer[p.tensor] != at.replicate) continue;
            if (p.tensor != tensor) nth = 0;
            tensor = p.tensor;
            if (add_stretch(w, &p, g, &nth, &list))
                TRY(zt_fail(err, ZT_ENOMEM, "checkpoint: no host memory"));
        }
    }
out:
    free(bytes);
    free(writer);
    if (rc) zt_save_parts_free(out);
    return rc;
}

void zt_save_parts_free(struct zt_save_parts *p) {
    free(p->tensors);
    free(p->pieces);
    free(p->from);
    memset(p, 0, sizeof *p);
}

int64_t zt_save_model_bytes(const struct zt_save_parts *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct zt_saved_tensor *t = &p->tensors[i];
        for (int k = 0; k < ZT_SAVED_COUNT; k++)
            if (t->has[k]) sum += t->shape[0] * t->shape[1] * (int64_t)zt_dtype_size(t->type[k]);
    }
    return sum;
}
