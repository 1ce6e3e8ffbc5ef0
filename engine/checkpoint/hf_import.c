/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_import.c: see hf_import.h. */
#include "engine/checkpoint/hf_import.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/spec.h"
#include "engine/checkpoint/write.h"

#define BUFFER_BYTES ((int64_t)256 << 20)
#define PIECES_MAX 8192 /* of one writer */
#define GENERATION 1

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

struct importing {
    const struct zt_hf_import *x;
    const struct zt_sys *sys;
    struct zt_tensor_source source;
    const struct zt_model_table *t;
    struct zt_saved_tensor *tensors;
    struct zt_manifest m;
    struct zt_spec *spec;         /* what manifest.json says of the model */
    char *buffer;
    int64_t room, used;
    struct zt_saved_piece *pieces;
    int n_pieces;
};

/* A whole specification, of which the model counts: a checkpoint says by its own what it holds. */
static int describe(struct importing *i, struct zt_error *err) {
    char *model = zt_model_section(&i->t->config, NULL), *text = NULL;
    size_t n = 0;
    FILE *f = model ? open_memstream(&text, &n) : NULL;
    if (f)
        fprintf(f, "version: 1\nname: imported\n%sdataset: {path: imported, tokenizer: none}\n"
                   "training: {steps: 1, seq_len: 1, local_batch_size: 1}\n", model);
    free(model);
    i->spec = calloc(1, sizeof *i->spec);
    if (!f || fclose(f) != 0 || !i->spec) {
        free(text);
        free(i->spec);
        i->spec = NULL;
        return zt_fail(err, ZT_ENOMEM, "no host memory for a specification");
    }
    int rc = zt_spec_parse(text, n, "imported", NULL, 0, i->spec, err);
    free(text);
    if (rc == 0) rc = zt_spec_resolve(i->spec, 1, "imported", err);
    if (rc) {
        free(i->spec);
        i->spec = NULL;
        return zt_fail_prefix(err, "a model that no run file can name");
    }
    snprintf(i->m.config_hash, sizeof i->m.config_hash, "%s", i->spec->normalised_hash);
    i->m.spec = zt_spec_normalise(i->spec);
    return i->m.spec ? 0 : zt_fail(err, ZT_ENOMEM, "no host memory for a specification");
}

static int prepare(struct importing *i, struct zt_error *err) {
    const size_t n = (size_t)i->t->n_tensors;
    i->room = i->x->buffer_bytes > 0 ? i->x->buffer_bytes : BUFFER_BYTES;
    i->tensors = calloc(n, sizeof *i->tensors);
    i->pieces = calloc(PIECES_MAX, sizeof *i->pieces);
    i->buffer = malloc((size_t)i->room);
    if (!i->tensors || !i->pieces || !i->buffer) return zt_fail(err, ZT_ENOMEM, "no host memory for an import");
    for (int k = 0; k < i->t->n_tensors; k++) {
        const struct zt_tensor_def *d = &i->t->tensors[k];
        struct zt_saved_tensor *s = &i->tensors[k];
        snprintf(s->name, sizeof s->name, "%s", d->name);
        s->ndim = d->ndim;
        s->shape[0] = d->whole[0];
        s->shape[1] = d->whole[1];
        s->number = d->number;
        s->has[ZT_SAVED_PARAMETER] = true;
        s->type[ZT_SAVED_PARAMETER] = zt_hf_type(i->x->from, k);
    }
    return describe(i, err);
}

/* What is in the buffer, as the files of one more writer. */
static int flush(struct importing *i, struct zt_hf_imported *out, struct zt_error *err) {
    struct zt_shard_write w = {.sys = i->sys, .folder = i->x->folder, .step = 0, .generation = GENERATION,
                               .rank = i->m.world, .tensors = i->tensors, .n_tensors = i->t->n_tensors,
                               .pieces = i->pieces, .n_pieces = i->n_pieces, .progress = i->x->progress, .arg = i->x->arg};
    struct zt_shard_written done;
    bool disk_full = false;
    if (i->n_pieces == 0) return 0;
    struct zt_manifest_rank *more = realloc(i->m.ranks, (size_t)(i->m.world + 1) * sizeof *more);
    if (!more) return zt_fail(err, ZT_ENOMEM, "no host memory for %d writers", i->m.world + 1);
    i->m.ranks = more;
    int rc = zt_shard_write(&w, &done, &disk_full, err);
    if (rc) return rc;
    i->m.ranks[i->m.world++] = (struct zt_manifest_rank){done.bytes, done.index};
    zt_hash128_add(&i->m.parameter_hash, done.parameter_hash);
    out->bytes += done.bytes;
    i->n_pieces = 0;
    i->used = 0;
    return 0;
}

/* One tensor in rectangles of as many rows as there is room for. */
static int add_tensor(struct importing *i, int k, struct zt_hf_imported *out, struct zt_error *err) {
    const struct zt_tensor_def *d = &i->t->tensors[k];
    const enum zt_dtype type = i->tensors[k].type[ZT_SAVED_PARAMETER];
    const int64_t row = d->whole[1] * (int64_t)zt_dtype_size(type);
    for (int64_t at = 0; at < d->whole[0];) {
        i->used = (i->used + 7) / 8 * 8; /* every value aligned */
        int64_t rows = (i->room - i->used) / row;
        if (rows < 1 || i->n_pieces == PIECES_MAX) {
            if (i->n_pieces == 0)
                return zt_fail(err, ZT_EINVAL, "%s: a row of %lld bytes does not fit the buffer", d->name, (long long)row);
            int rc = flush(i, out, err);
            if (rc) return rc;
            continue;
        }
        rows = rows < d->whole[0] - at ? rows : d->whole[0] - at;
        char *to = i->buffer + i->used;
        int rc = i->source.read(i->source.arg, d->name, ZT_SAVED_PARAMETER, d->ndim, d->whole,
                                zt_span_plain((uint64_t)(at * d->whole[1]), rows * d->whole[1]), rows * d->whole[1], type,
                                to, err);
        if (rc) return rc;
        i->pieces[i->n_pieces++] = (struct zt_saved_piece){.tensor = k, .kind = ZT_SAVED_PARAMETER, .type = type, .nth = 0,
                                                           .rect = {{at, 0}, {rows, d->whole[1]}}, .values = to};
        i->used += rows * row;
        at += rows;
    }
    return 0;
}

static int check_place(struct importing *i, struct zt_error *err) {
    char path[ZT_PATH_MAX + 32], name[32];
    zt_ckpt_step_name(0, name);
    if (strlen(i->x->folder) >= ZT_PATH_MAX) return zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", i->x->folder);
    snprintf(path, sizeof path, "%s/%s", i->x->folder, name);
    int fd = i->sys->open(i->sys->arg, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return 0;
    i->sys->close(i->sys->arg, fd);
    return zt_fail(err, ZT_ECONFLICT, "%s: is there already; give another folder, or remove it", path);
}

static void fill_manifest(struct importing *i) {
    struct zt_manifest *m = &i->m;
    snprintf(m->run_name, sizeof m->run_name, "imported");
    snprintf(m->version, sizeof m->version, "%s", i->x->version ? i->x->version : "");
    snprintf(m->recipe, sizeof m->recipe, "%s", i->spec->precision.recipe);
    snprintf(m->mode, sizeof m->mode, "ddp");
    m->generation = GENERATION;
    m->replicate = m->world;
    m->shard = m->tensor = 1;
    m->tensors = i->tensors;
    m->n_tensors = i->t->n_tensors;
    m->created_ms = i->sys->wall_ns(i->sys->arg) / 1000000;
}

int zt_hf_import(const struct zt_hf_import *x, struct zt_hf_imported *out, struct zt_error *err) {
    struct importing i = {.x = x, .sys = x->sys ? x->sys : &zt_sys_posix, .source = zt_hf_source(x->from),
                          .t = zt_hf_table(x->from)};
    bool adopted = false, disk_full = false, made = false;
    int rc = 0;
    memset(out, 0, sizeof *out);
    TRY(check_place(&i, err));
    TRY(prepare(&i, err));
    rc = i.sys->mkdir(i.sys->arg, x->folder, 0777);
    if (rc < 0 && rc != -EEXIST)
        TRY(zt_fail(err, ZT_EIO, "%s: cannot be made: %s", x->folder, strerror(-rc)));
    TRY(zt_ckpt_discard(i.sys, x->folder, 0, GENERATION, err)); /* of an import that was killed */
    made = true;
    for (int k = 0; k < i.t->n_tensors; k++) TRY(add_tensor(&i, k, out, err));
    TRY(flush(&i, out, err));
    fill_manifest(&i);
    TRY(zt_ckpt_publish(i.sys, x->folder, &i.m, &out->manifest, &adopted, &disk_full, err));
    out->writers = i.m.world;
    out->parameter_hash = i.m.parameter_hash;
out:
    if (rc && made) {
        struct zt_error ignored; /* the first fault is told */
        zt_ckpt_discard(i.sys, x->folder, 0, GENERATION, &ignored);
    }
    if (i.spec) zt_spec_free(i.spec);
    free(i.spec);
    free(i.m.spec);
    free(i.m.ranks);
    free(i.tensors);
    free(i.pieces);
    free(i.buffer);
    return rc;
}
