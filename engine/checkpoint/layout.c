/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/layout.c: which file each rectangle goes to, and where in it; see write.h. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/checkpoint/json.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/write.h"

static bool is_model(const struct zt_saved_piece *p) { return p->kind == ZT_SAVED_PARAMETER; }

struct sorting { const struct zt_shard_write *w; const int *file_of; };

static int by_place(const void *a, const void *b, void *arg) {
    const struct sorting *s = arg;
    const int x = *(const int *)a, y = *(const int *)b;
    if (s->file_of[x] != s->file_of[y]) return s->file_of[x] - s->file_of[y];
    const size_t wx = zt_dtype_size(s->w->pieces[x].type), wy = zt_dtype_size(s->w->pieces[y].type);
    if (wx != wy) return wx > wy ? -1 : 1; /* wide elements first: every value on a multiple of its size */
    return (x > y) - (x < y);
}

/* {"DCP_SHARDING_INFO": "{NAME: {"saved_offsets": [...]}}", ...}: what PyTorch's reader looks for. */
static char *sharding_info(const struct zt_shard_write *w, const int *pieces, const struct zt_safetensor *tensors, int n) {
    struct zt_text inner = {0}, outer = {0};
    zt_text_add(&inner, "{");
    for (int i = 0; i < n; i++) {
        const struct zt_rect *r = &w->pieces[pieces[i]].rect;
        if (i) zt_text_add(&inner, ",");
        zt_text_string(&inner, tensors[i].name);
        zt_text_add(&inner, ":{\"saved_offsets\":[%lld", (long long)r->from[0]);
        if (tensors[i].ndim == 2) zt_text_add(&inner, ",%lld", (long long)r->from[1]);
        zt_text_add(&inner, "]}");
    }
    zt_text_add(&inner, "}");
    if (!inner.failed) {
        zt_text_add(&outer, "{\"DCP_SHARDING_INFO\":");
        zt_text_string(&outer, inner.at);
        zt_text_add(&outer, ",\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"}");
    }
    free(inner.at);
    if (!inner.failed && !outer.failed) return outer.at;
    free(outer.at);
    return NULL;
}

/* The head of one file, and where its pieces lie. */
static int one_file(const struct zt_shard_write *w, struct zt_shard_layout *l, struct zt_shard_file *f, const int *pieces, int n, struct zt_error *err) {
    struct zt_safetensor *t = calloc((size_t)n, sizeof *t);
    char(*names)[128] = calloc((size_t)n, sizeof *names), *info = NULL;
    int rc = 0;
    for (int i = 0; t && names && i < n; i++) {
        const struct zt_saved_piece *p = &w->pieces[pieces[i]];
        const struct zt_saved_tensor *d = &w->tensors[p->tensor];
        snprintf(names[i], sizeof names[i], "%s%s", d->name, zt_saved_suffix(p->kind));
        t[i] = (struct zt_safetensor){.name = names[i], .type = zt_st_type_of(p->type), .ndim = d->ndim, .shape = {p->rect.size[0], p->rect.size[1]}};
    }
    if (t && names) info = sharding_info(w, pieces, t, n);
    rc = info ? zt_safetensors_head(t, n, info, &f->head, &f->head_bytes, err)
              : zt_fail(err, ZT_ENOMEM, "checkpoint: no memory for the head of %s", f->name);
    if (!rc) {
        f->bytes = n ? t[n - 1].at + t[n - 1].bytes : f->head_bytes;
        for (int i = 0; i < n; i++) l->at[pieces[i]] = t[i].at;
        l->bytes += f->bytes;
    }
    free(info);
    free(names);
    free(t);
    return rc;
}

int zt_shard_layout_build(const struct zt_shard_write *w, struct zt_shard_layout *l, struct zt_error *err) {
    const size_t n = (size_t)w->n_pieces;
    int files[2] = {0, 0}, rc = 0; /* of parameters, of the rest: as many as a tensor has rectangles */
    memset(l, 0, sizeof *l);
    for (size_t i = 0; i < n; i++) {
        const int k = is_model(&w->pieces[i]) ? 0 : 1, nth = w->pieces[i].nth;
        ZT_ASSERT(nth >= 0 && w->pieces[i].rect.size[0] > 0 && w->pieces[i].rect.size[1] > 0);
        if (nth >= files[k]) files[k] = nth + 1;
    }
    l->n_files = files[0] + files[1];
    l->files = calloc((size_t)l->n_files + 1, sizeof *l->files);
    l->file_of = calloc(n + 1, sizeof *l->file_of);
    l->at = calloc(n + 1, sizeof *l->at);
    l->order = calloc(n + 1, sizeof *l->order);
    if (!l->files || !l->file_of || !l->at || !l->order) {
        zt_shard_layout_free(l);
        return zt_fail(err, ZT_ENOMEM, "checkpoint: no memory for a list of %zu pieces", n);
    }
    for (int f = 0; f < l->n_files; f++) {
        const bool model = f < files[0];
        snprintf(l->files[f].name, sizeof l->files[f].name, "%s-%05d-%s%05d-of-%05d.safetensors", model ? "shard" : "optim", w->rank + 1,
                 model ? "model-" : "", (model ? f : f - files[0]) + 1, files[model ? 0 : 1]);
    }
    for (size_t i = 0; i < n; i++) {
        l->order[i] = (int)i;
        l->file_of[i] = w->pieces[i].nth + (is_model(&w->pieces[i]) ? 0 : files[0]);
    }
    struct sorting s = {w, l->file_of};
    qsort_r(l->order, n, sizeof *l->order, by_place, &s);
    int from = 0;
    for (int f = 0; f < l->n_files && !rc; f++) {
        int to = from;
        while (to < w->n_pieces && l->file_of[l->order[to]] == f) to++;
        rc = one_file(w, l, &l->files[f], l->order + from, to - from, err);
        from = to;
    }
    if (rc) zt_shard_layout_free(l);
    return rc;
}

void zt_shard_layout_free(struct zt_shard_layout *l) {
    for (int f = 0; l->files && f < l->n_files; f++) free(l->files[f].head);
    free(l->files);
    free(l->file_of);
    free(l->at);
    free(l->order);
    memset(l, 0, sizeof *l);
}
