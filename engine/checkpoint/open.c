/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/open.c: a checkpoint's manifest and indexes, checked against one another; see read.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "engine/checkpoint/ckpt.h"

static int read_manifest(struct zt_ckpt *c, const struct zt_sha256 *expected, struct zt_error *err) {
    char path[CKPT_PATH], *text = NULL;
    size_t n = 0;
    struct zt_sha256 hash;
    int rc = ckpt_path(path, c->folder, "manifest.json", NULL, err);
    if (!rc) rc = ckpt_read_text(c->sys, path, &text, &n, err);
    if (rc == ZT_ENOTFOUND) {
        const int fd = c->sys->open(c->sys->arg, c->folder, O_RDONLY | O_DIRECTORY, 0);
        if (fd >= 0) c->sys->close(c->sys->arg, fd);
        rc = fd >= 0 ? zt_fail(err, ZT_ECORRUPT, "%s: has no manifest.json: it is no checkpoint, or not all of one", c->folder)
                     : zt_fail(err, ZT_ENOTFOUND, "%s: no such checkpoint: %s", c->folder, strerror(-fd));
    }
    if (!rc && expected) {
        zt_sha256_of(text, n, &hash);
        if (!zt_sha256_same(&hash, expected))
            rc = zt_fail(err, ZT_ECORRUPT, "%s: is not what was committed (SHA-256)", path);
    }
    if (!rc) rc = zt_manifest_parse(path, text, n, &c->manifest, err);
    free(text);
    return rc;
}

/* The index of one rank, from `folder`; it has to be the one that the manifest names. */
static int read_index(struct zt_ckpt *c, const char *folder, int rank, struct zt_error *err) {
    char name[32], path[CKPT_PATH], *text = NULL;
    size_t n = 0;
    struct zt_sha256 hash;
    struct zt_index *x = &c->ranks[rank];
    zt_ckpt_rank_name(rank, name);
    int rc = ckpt_path(path, folder, name, NULL, err);
    if (!rc) rc = ckpt_read_text(c->sys, path, &text, &n, err);
    if (rc == ZT_ENOTFOUND) rc = zt_fail(err, ZT_ECORRUPT, "%s: is missing", path);
    if (!rc) {
        zt_sha256_of(text, n, &hash);
        if (!zt_sha256_same(&hash, &c->manifest.ranks[rank].index))
            rc = zt_fail(err, ZT_ECORRUPT, "%s: is not the one that the manifest names (SHA-256)", path);
    }
    if (!rc) rc = zt_index_parse(path, text, n, &c->manifest, rank, x, err);
    free(text);
    if (rc) return rc;
    int64_t bytes = 0;
    for (int f = 0; f < x->n_files && bytes >= 0; f++)
        if (__builtin_add_overflow(bytes, x->files[f].bytes, &bytes)) bytes = -1;
    if (bytes != c->manifest.ranks[rank].bytes || __builtin_add_overflow(c->bytes, bytes, &c->bytes))
        return zt_fail(err, ZT_ECORRUPT, "%s: its files have %lld bytes, the manifest says %lld", path, (long long)bytes,
                       (long long)c->manifest.ranks[rank].bytes);
    return 0;
}

static int read_indexes(struct zt_ckpt *c, struct zt_error *err) {
    const size_t world = (size_t)c->manifest.world;
    struct zt_hash128 p = {0, 0}, s = {0, 0};
    c->ranks = calloc(world, sizeof *c->ranks);
    c->in_memory = calloc(world, sizeof *c->in_memory);
    if (!c->ranks || !c->in_memory) return zt_fail(err, ZT_ENOMEM, "%s: no memory for %zu ranks", c->folder, world);
    for (int r = 0; r < c->manifest.world; r++) {
        struct zt_error passed_over;
        c->in_memory[r] = c->memory[0] && read_index(c, c->memory, r, &passed_over) == 0;
        const int rc = c->in_memory[r] ? 0 : read_index(c, c->folder, r, err);
        if (rc) return rc;
        c->n_parts += c->ranks[r].n_parts;
        zt_hash128_add(&p, c->ranks[r].parameter_hash);
        zt_hash128_add(&s, c->ranks[r].state_hash);
    }
    const struct zt_hash128 *mp = &c->manifest.parameter_hash, *ms = &c->manifest.state_hash;
    if (p.lo != mp->lo || p.hi != mp->hi || s.lo != ms->lo || s.hi != ms->hi)
        return zt_fail(err, ZT_ECORRUPT, "%s: the hashes of the ranks do not add up to those of the manifest", c->folder);
    return 0;
}

/* ---- the table of parts ---- */

static int by_rect(const void *a, const void *b) {
    const struct zt_rect *x = &((const struct ckpt_part *)a)->rect, *y = &((const struct ckpt_part *)b)->rect;
    if (x->from[0] != y->from[0]) return x->from[0] < y->from[0] ? -1 : 1;
    return (x->from[1] > y->from[1]) - (x->from[1] < y->from[1]);
}

static bool overlap(const struct zt_rect *x, const struct zt_rect *y) {
    for (int d = 0; d < 2; d++)
        if (x->from[d] + x->size[d] <= y->from[d] || y->from[d] + y->size[d] <= x->from[d]) return false;
    return true;
}

/* Every element of a tensor and kind once: no two rectangles meet, and together they are as large. */
static int check_cover(const struct zt_ckpt *c, int tensor, int kind, int64_t *work, struct zt_error *err) {
    const struct zt_saved_tensor *t = &c->manifest.tensors[tensor];
    const int64_t from = c->first[tensor * ZT_SAVED_COUNT + kind], to = c->first[tensor * ZT_SAVED_COUNT + kind + 1];
    int64_t elements = 0;
    for (int64_t i = from; i < to; i++) {
        const struct zt_rect *a = &c->parts[i].rect;
        if (__builtin_add_overflow(elements, a->size[0] * a->size[1], &elements)) elements = -1;
        for (int64_t k = i + 1; k < to && c->parts[k].rect.from[0] < a->from[0] + a->size[0]; k++, ++*work)
            if (*work > (int64_t)1 << 28 || overlap(a, &c->parts[k].rect))
                return zt_fail(err, ZT_ECORRUPT, "%s: %s%s: elements at [%lld, %lld] are there twice", c->folder, t->name,
                               zt_saved_suffix((enum zt_saved)kind), (long long)c->parts[k].rect.from[0], (long long)c->parts[k].rect.from[1]);
    }
    const int64_t all = t->has[kind] ? t->shape[0] * t->shape[1] : 0;
    if (elements == all) return 0;
    return zt_fail(err, ZT_ECORRUPT, "%s: %s%s: %lld of %lld elements are there", c->folder, t->name, zt_saved_suffix((enum zt_saved)kind),
                   (long long)elements, (long long)all);
}

static int build_parts(struct zt_ckpt *c, struct zt_error *err) {
    const int64_t lists = (int64_t)c->manifest.n_tensors * ZT_SAVED_COUNT;
    int64_t work = 0;
    c->parts = calloc((size_t)c->n_parts + 1, sizeof *c->parts);
    c->first = calloc((size_t)lists + 2, sizeof *c->first);
    if (!c->parts || !c->first) return zt_fail(err, ZT_ENOMEM, "%s: no memory for %lld parts", c->folder, (long long)c->n_parts);
    for (int r = 0; r < c->manifest.world; r++) /* counting sort; first[] runs one place ahead until the parts are in */
        for (int64_t i = 0; i < c->ranks[r].n_parts; i++)
            c->first[(int64_t)c->ranks[r].parts[i].tensor * ZT_SAVED_COUNT + c->ranks[r].parts[i].kind + 2]++;
    for (int64_t i = 2; i < lists + 2; i++) c->first[i] += c->first[i - 1];
    for (int r = 0; r < c->manifest.world; r++) {
        for (int64_t i = 0; i < c->ranks[r].n_parts; i++) {
            const struct zt_index_part *p = &c->ranks[r].parts[i];
            c->parts[c->first[(int64_t)p->tensor * ZT_SAVED_COUNT + p->kind + 1]++] = (struct ckpt_part){r, p->file, p->at, p->rect};
        }
        free(c->ranks[r].parts);
        c->ranks[r].parts = NULL;
        c->ranks[r].n_parts = 0;
    }
    for (int t = 0; t < c->manifest.n_tensors; t++)
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            const int64_t from = c->first[t * ZT_SAVED_COUNT + k], to = c->first[t * ZT_SAVED_COUNT + k + 1];
            qsort(c->parts + from, (size_t)(to - from), sizeof *c->parts, by_rect);
            const int rc = check_cover(c, t, k, &work, err);
            if (rc) return rc;
        }
    return 0;
}

static int by_name(const void *a, const void *b, void *arg) {
    const struct zt_saved_tensor *t = arg;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

static int build_names(struct zt_ckpt *c, struct zt_error *err) {
    c->by_name = calloc((size_t)c->manifest.n_tensors + 1, sizeof *c->by_name);
    if (!c->by_name) return zt_fail(err, ZT_ENOMEM, "%s: no memory for its names", c->folder);
    for (int i = 0; i < c->manifest.n_tensors; i++) c->by_name[i] = i;
    qsort_r(c->by_name, (size_t)c->manifest.n_tensors, sizeof *c->by_name, by_name, c->manifest.tensors);
    return 0;
}

int zt_ckpt_open(const struct zt_ckpt_open *o, struct zt_ckpt **out, struct zt_error *err) {
    struct zt_ckpt *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return zt_fail(err, ZT_ENOMEM, "%s: no memory to open it", o->folder);
    c->sys = o->sys ? o->sys : &zt_sys_posix;
    int rc = 0;
    if (strlen(o->folder) >= sizeof c->folder || (o->memory && strlen(o->memory) >= sizeof c->memory))
        rc = zt_fail(err, ZT_EINVAL, "%.100s...: the path is too long", o->folder);
    if (!rc) {
        strcpy(c->folder, o->folder);
        strcpy(c->memory, o->memory ? o->memory : "");
        rc = read_manifest(c, o->manifest, err);
    }
    if (!rc) rc = read_indexes(c, err);
    if (!rc) rc = build_parts(c, err);
    if (!rc) rc = build_names(c, err);
    if (rc)
        zt_ckpt_close(c);
    else
        *out = c;
    return rc;
}

const struct zt_manifest *zt_ckpt_manifest(const struct zt_ckpt *c) { return &c->manifest; }

void zt_ckpt_close(struct zt_ckpt *c) {
    if (!c) return;
    for (int r = 0; c->ranks && r < c->manifest.world; r++) zt_index_free(&c->ranks[r]);
    for (int i = 0; i < CKPT_SLOTS; i++) free(c->slots[i].data);
    free(c->ranks);
    free(c->in_memory);
    free(c->parts);
    free(c->first);
    free(c->by_name);
    zt_manifest_free(&c->manifest);
    free(c);
}
