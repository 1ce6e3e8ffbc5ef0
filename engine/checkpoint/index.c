/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/index.c: rank-RRRRR.json, both ways; see format.h. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/checkpoint/format.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/limits.h"

/* ---- writing ---- */

static void put_file(struct zt_text *o, const struct zt_index_file *f) {
    char text[33];
    zt_text_add(o, "{\"name\":");
    zt_text_string(o, f->name);
    zt_text_add(o, ",\"bytes\":%lld,\"sha256\":", (long long)f->bytes);
    zt_text_hex(o, f->sha256.byte, sizeof f->sha256.byte);
    zt_text_add(o, ",\"xxh3\":[");
    for (int64_t i = 0; i < f->n_pieces; i++) {
        zt_hash_text(f->pieces[i], text);
        zt_text_add(o, "%s\"%s\"", i ? "," : "", text);
    }
    zt_text_add(o, "]}");
}

int zt_index_text(const struct zt_index *x, char **text, size_t *n, struct zt_error *err) {
    struct zt_text o = {0};
    char p[33], s[33];
    zt_hash_text(x->parameter_hash, p);
    zt_hash_text(x->state_hash, s);
    zt_text_add(&o, "{\"format\":%d,\"step\":%lld,\"generation\":%u,\"rank\":%d,\n\"parameter_hash\":\"%s\",\"state_hash\":\"%s\",\n\"files\":[",
                ZT_CKPT_FORMAT, (long long)x->step, x->generation, x->rank, p, s);
    for (int i = 0; i < x->n_files; i++) {
        zt_text_add(&o, i ? ",\n" : "\n");
        put_file(&o, &x->files[i]);
    }
    zt_text_add(&o, "],\n\"parts\":[");
    for (int64_t i = 0; i < x->n_parts; i++) {
        const struct zt_index_part *q = &x->parts[i];
        zt_text_add(&o, "%s[%d,%d,%d,%lld,%lld,%lld,%lld,%lld]", i ? ",\n" : "\n", q->tensor, q->kind, q->file, (long long)q->at,
                    (long long)q->rect.from[0], (long long)q->rect.size[0], (long long)q->rect.from[1], (long long)q->rect.size[1]);
    }
    zt_text_add(&o, "]}\n");
    if (o.failed || o.n > ZT_CKPT_TEXT_MAX) {
        free(o.at);
        return zt_fail(err, o.failed ? ZT_ENOMEM : ZT_EINVAL, "the index of rank %d with %lld parts %s", x->rank, (long long)x->n_parts,
                       o.failed ? "finds no memory" : "is too long");
    }
    *text = o.at;
    *n = o.n;
    return 0;
}

/* ---- reading ---- */

/* "shard-RRRRR-..." or "optim-RRRRR-...": no other rank's, nothing outside the folder. */
static bool own_name(const char *name, int rank) {
    char digits[16];
    snprintf(digits, sizeof digits, "-%05d-", rank + 1);
    const size_t n = strlen(name), tail = strlen(".safetensors");
    return zt_ckpt_plain_name(name) && (strncmp(name, "shard", 5) == 0 || strncmp(name, "optim", 5) == 0) &&
           strncmp(name + 5, digits, strlen(digits)) == 0 && n > tail && strcmp(name + n - tail, ".safetensors") == 0;
}

static void get_file(struct zt_json *j, struct zt_index_file *f, int rank) {
    static const char *const fields[] = {"name", "bytes", "sha256", "xxh3"};
    uint64_t seen = 0;
    zt_json_object(j);
    for (int k; (k = zt_json_field(j, fields, 4, 0, &seen)) >= 0;) {
        if (k == 0) {
            zt_json_copy(j, f->name, sizeof f->name);
            if (!j->rc && !own_name(f->name, rank)) zt_json_fail(j, "is not the name of a file of rank %d", rank);
        } else if (k == 1) {
            f->bytes = zt_json_whole(j, 8, INT64_MAX - ZT_CKPT_PIECE);
        } else if (k == 2) {
            zt_json_hex(j, f->sha256.byte, sizeof f->sha256.byte);
        } else {
            for (zt_json_list(j); zt_json_more(j);) {
                struct zt_hash128 *h = zt_json_grow(j, &f->pieces, f->n_pieces, ZT_CKPT_PARTS_MAX, sizeof *h);
                if (!h) return;
                f->n_pieces++;
                zt_json_hash(j, h);
            }
        }
    }
    if (!j->rc && f->n_pieces != (f->bytes + ZT_CKPT_PIECE - 1) / ZT_CKPT_PIECE)
        zt_json_fail(j, "%s: %lld hashes for %lld bytes", f->name, (long long)f->n_pieces, (long long)f->bytes);
}

static void get_files(struct zt_json *j, struct zt_index *x) {
    for (zt_json_list(j); zt_json_more(j);) {
        struct zt_index_file *f = zt_json_grow(j, &x->files, x->n_files, ZT_CKPT_FILES_MAX, sizeof *f);
        if (!f) return;
        x->n_files++;
        get_file(j, f, x->rank);
        for (int i = 0; i + 1 < x->n_files; i++)
            if (strcmp(x->files[i].name, f->name) == 0) zt_json_fail(j, "file %s is there twice", f->name);
    }
}

static void check_part(struct zt_json *j, const struct zt_index *x, const struct zt_manifest *m, const struct zt_index_part *p) {
    const struct zt_saved_tensor *t = &m->tensors[p->tensor];
    if (!t->has[p->kind]) {
        zt_json_fail(j, "%s%s: the manifest has none", t->name, zt_saved_suffix((enum zt_saved)p->kind));
        return;
    }
    for (int d = 0; d < 2; d++)
        if (p->rect.size[d] > t->shape[d] || p->rect.from[d] > t->shape[d] - p->rect.size[d]) {
            zt_json_fail(j, "%s: the rectangle leaves the tensor", t->name);
            return;
        }
    const int64_t size = (int64_t)zt_dtype_size(t->type[p->kind]), bytes = p->rect.size[0] * p->rect.size[1] * size;
    if (p->at % size != 0 || p->at > x->files[p->file].bytes - bytes)
        zt_json_fail(j, "%s: its place is not in %s", t->name, x->files[p->file].name);
}

static void get_parts(struct zt_json *j, struct zt_index *x, const struct zt_manifest *m) {
    for (zt_json_list(j); zt_json_more(j);) {
        int64_t v[8] = {0};
        const int64_t least[8] = {0, 0, 0, 8, 0, 1, 0, 1};
        const int64_t most[8] = {m->n_tensors - 1, ZT_SAVED_COUNT - 1, x->n_files - 1, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
        int n = 0;
        struct zt_index_part *p = zt_json_grow(j, &x->parts, x->n_parts, ZT_CKPT_PARTS_MAX, sizeof *p);
        if (!p) return;
        for (zt_json_list(j); zt_json_more(j); n++) {
            if (n < 8)
                v[n] = zt_json_whole(j, least[n], most[n]);
            else
                zt_json_fail(j, "more than eight numbers");
        }
        if (n < 8) zt_json_fail(j, "fewer than eight numbers");
        if (j->rc) return;
        *p = (struct zt_index_part){(int)v[0], (int)v[1], (int)v[2], v[3], {{v[4], v[6]}, {v[5], v[7]}}};
        check_part(j, x, m, p);
        x->n_parts++;
    }
}

int zt_index_parse(const char *file, char *text, size_t n, const struct zt_manifest *m, int rank, struct zt_index *x, struct zt_error *err) {
    enum { FORMAT, STEP, GENERATION, RANK, P_HASH, S_HASH, FILES, PARTS, FIELDS };
    static const char *const fields[] = {"format", "step", "generation", "rank", "parameter_hash", "state_hash", "files", "parts"};
    struct zt_json j;
    uint64_t seen = 0;
    memset(x, 0, sizeof *x);
    x->rank = rank;
    zt_json_begin(&j, file, text, n, 5, ZT_ECORRUPT, err);
    zt_json_object(&j);
    for (int f; (f = zt_json_field(&j, fields, FIELDS, 0, &seen)) >= 0;) {
        if (!(seen & 1)) zt_json_fail(&j, "'format' has to come first");
        switch (f) {
        case FORMAT: zt_json_format(&j); break;
        case STEP: x->step = zt_json_whole(&j, m->position.step, m->position.step); break;
        case GENERATION: x->generation = (uint32_t)zt_json_whole(&j, m->generation, m->generation); break;
        case RANK: zt_json_whole(&j, rank, rank); break;
        case P_HASH: zt_json_hash(&j, &x->parameter_hash); break;
        case S_HASH: zt_json_hash(&j, &x->state_hash); break;
        case FILES: get_files(&j, x); break;
        case PARTS:
            if (!(seen >> FILES & 1)) zt_json_fail(&j, "comes before 'files'");
            get_parts(&j, x, m);
            break;
        }
    }
    zt_json_end(&j);
    if (j.rc) zt_index_free(x);
    return j.rc;
}

void zt_index_free(struct zt_index *x) {
    for (int i = 0; i < x->n_files; i++) free(x->files[i].pieces);
    free(x->files);
    free(x->parts);
    memset(x, 0, sizeof *x);
}
