/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/verify.c: all of a checkpoint against all that is known of it; see read.h. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/checkpoint/ckpt.h"
#include "engine/checkpoint/safetensors.h"

struct place { int64_t part, list; }; /* list: tensor * ZT_SAVED_COUNT + kind */
struct verifying {
    struct zt_ckpt *c;
    struct place *order; /* parts by rank, file, place */
    unsigned char *buffer;
    struct zt_hash128 sums[3];
    void (*progress)(void *arg, int64_t bytes);
    void *arg;
};

static int by_place(const void *a, const void *b, void *arg) {
    const struct zt_ckpt *c = arg;
    const struct ckpt_part *x = &c->parts[((const struct place *)a)->part], *y = &c->parts[((const struct place *)b)->part];
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->file != y->file) return x->file - y->file;
    return (x->at > y->at) - (x->at < y->at);
}

static const struct zt_saved_tensor *tensor_of(const struct verifying *v, const struct place *p, enum zt_saved *kind) {
    *kind = (enum zt_saved)(p->list % ZT_SAVED_COUNT);
    return &v->c->manifest.tensors[p->list / ZT_SAVED_COUNT];
}

/* What the file says of itself is what the index says. */
static int check_head(const struct verifying *v, const char *path, const struct place *parts, int64_t n, struct zt_error *err) {
    struct zt_safetensors *s = NULL;
    const int fd = v->c->sys->open(v->c->sys->arg, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOENT) return zt_fail(err, ZT_ECORRUPT, "%s: is missing", path);
    if (fd == -ELOOP) return zt_fail(err, ZT_ECORRUPT, "%s: is a symbolic link, not a file", path);
    if (fd < 0) return ckpt_io_failed(path, "cannot be opened", fd, NULL, err);
    v->c->sys->fadvise(v->c->sys->arg, fd, 0, 0, POSIX_FADV_DONTNEED); /* the disk is what is asked about */
    int rc = zt_safetensors_open_fd(v->c->sys, fd, path, &s, err);
    v->c->sys->close(v->c->sys->arg, fd);
    if (rc) return rc == ZT_EINVAL ? (err->code = ZT_ECORRUPT) : rc;
    if (zt_safetensors_count(s) != n)
        rc = zt_fail(err, ZT_ECORRUPT, "%s: has %d tensors, its index lists %lld", path, zt_safetensors_count(s), (long long)n);
    for (int64_t i = 0; i < n && !rc; i++) {
        enum zt_saved kind;
        struct zt_safetensor f;
        char name[128];
        const struct zt_saved_tensor *t = tensor_of(v, &parts[i], &kind);
        const struct ckpt_part *p = &v->c->parts[parts[i].part];
        snprintf(name, sizeof name, "%s%s", t->name, zt_saved_suffix(kind));
        zt_safetensors_get(s, (int)i, &f);
        if (strcmp(f.name, name) != 0 || f.type != zt_st_type_of(t->type[kind]) || f.at != p->at || f.ndim != t->ndim ||
            f.shape[0] != p->rect.size[0] || (t->ndim == 2 && f.shape[1] != p->rect.size[1]))
            rc = zt_fail(err, ZT_ECORRUPT, "%s: holds %.200s where its index has %s", path, f.name, name);
    }
    zt_safetensors_free(s);
    return rc;
}

/* Elements of the part that lie whole in bytes [at, at + n) of its file, which are in the buffer. */
static int look_at(struct verifying *v, const char *path, const struct place *p, int64_t at, int64_t n, struct zt_error *err) {
    enum zt_saved kind;
    uint32_t word;
    const struct zt_saved_tensor *t = tensor_of(v, p, &kind);
    const struct ckpt_part *q = &v->c->parts[p->part];
    const int64_t size = (int64_t)zt_dtype_size(t->type[kind]), end = q->at + q->rect.size[0] * q->rect.size[1] * size;
    const int64_t from = q->at > at ? q->at : at, to = end < at + n ? end : at + n;
    if (from >= to) return 0;
    const int sum = ckpt_hash_of(t, kind, &word);
    const int64_t bad = ckpt_look_rect(t->type[kind], v->buffer + (from - at), &q->rect, t->shape[1], (from - q->at) / size, (to - from) / size, word,
                                       sum ? &v->sums[sum] : NULL);
    return bad < 0 ? 0 : zt_fail(err, ZT_ECORRUPT, "%s: %s%s has a value that is not finite", path, t->name, zt_saved_suffix(kind));
}

static int check_bytes(struct verifying *v, const char *path, int rank, int file, const struct place *parts, int64_t n, EVP_MD_CTX *sha,
                       struct zt_error *err) {
    const struct zt_index_file *f = &v->c->ranks[rank].files[file];
    struct zt_sha256 hash;
    int64_t next = 0; /* the first part that does not end before this piece */
    for (int64_t i = 0; i < f->n_pieces; i++) {
        const int64_t at = i * ZT_CKPT_PIECE, bytes = ckpt_piece_bytes(f, i);
        int rc = ckpt_read_piece(v->c, v->c->folder, rank, file, i, v->buffer, err);
        if (rc) return rc;
        if (EVP_DigestUpdate(sha, v->buffer, (size_t)bytes) != 1) return zt_fail(err, ZT_EINTERNAL, "%s: SHA-256 failed", path);
        for (int64_t k = next; k < n && v->c->parts[parts[k].part].at < at + bytes; k++) {
            rc = look_at(v, path, &parts[k], at, bytes, err);
            if (rc) return rc;
            next = k; /* the last one may go on in the next piece */
        }
        if (v->progress) v->progress(v->arg, bytes);
    }
    if (EVP_DigestFinal_ex(sha, hash.byte, NULL) != 1) return zt_fail(err, ZT_EINTERNAL, "%s: SHA-256 failed", path);
    return zt_sha256_same(&hash, &f->sha256) ? 0 : zt_fail(err, ZT_ECORRUPT, "%s: is not what was written (SHA-256)", path);
}

static int check_file(struct verifying *v, int rank, int file, const struct place *parts, int64_t n, struct zt_error *err) {
    char path[CKPT_PATH];
    int rc = ckpt_path(path, v->c->folder, v->c->ranks[rank].files[file].name, NULL, err);
    if (!rc) rc = check_head(v, path, parts, n, err);
    if (rc) return rc;
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    rc = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1 ? check_bytes(v, path, rank, file, parts, n, sha, err)
                                                                 : zt_fail(err, ZT_ENOMEM, "%s: no memory to verify it", path);
    EVP_MD_CTX_free(sha);
    return rc;
}

static int check_files(struct verifying *v, struct zt_error *err) {
    const struct zt_ckpt *c = v->c;
    int64_t from = 0;
    for (int r = 0; r < c->manifest.world; r++)
        for (int f = 0; f < c->ranks[r].n_files; f++) {
            int64_t to = from;
            while (to < c->n_parts && c->parts[v->order[to].part].rank == r && c->parts[v->order[to].part].file == f) to++;
            const int rc = check_file(v, r, f, v->order + from, to - from, err);
            if (rc) return rc;
            from = to;
        }
    return 0;
}

static bool same(struct zt_hash128 a, struct zt_hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

int zt_ckpt_verify(struct zt_ckpt *c, void (*progress)(void *arg, int64_t bytes), void *arg, struct zt_error *err) {
    struct verifying v = {.c = c, .progress = progress, .arg = arg};
    int rc;
    v.order = calloc((size_t)c->n_parts + 1, sizeof *v.order);
    v.buffer = malloc((size_t)ZT_CKPT_PIECE);
    if (!v.order || !v.buffer) {
        rc = zt_fail(err, ZT_ENOMEM, "%s: no memory to verify it", c->folder);
    } else {
        const int64_t lists = (int64_t)c->manifest.n_tensors * ZT_SAVED_COUNT;
        for (int64_t l = 0; l < lists; l++)
            for (int64_t i = c->first[l]; i < c->first[l + 1]; i++) v.order[i] = (struct place){i, l};
        qsort_r(v.order, (size_t)c->n_parts, sizeof *v.order, by_place, c);
        rc = check_files(&v, err);
        if (!rc && (!same(v.sums[1], c->manifest.parameter_hash) || !same(v.sums[2], c->manifest.state_hash)))
            rc = zt_fail(err, ZT_ECORRUPT, "%s: the values do not add up to the manifest's hashes", c->folder);
    }
    free(v.order);
    free(v.buffer);
    return rc;
}
