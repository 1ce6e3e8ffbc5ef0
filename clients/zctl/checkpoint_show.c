/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint_show.c: `zctl checkpoint show`: where training stood, what is saved and who wrote it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"

/* ---------------------------------------------------------------------------------- of one writer */

/* "rows 0..127, columns 0..383", what is not the whole of its dimension. */
static void rect_text(const struct zt_saved_tensor *t, const struct zt_rect *r, char *out, size_t n) {
    const int64_t whole[2] = {t->shape[0], t->ndim == 2 ? t->shape[1] : 1};
    static const char *const what[2] = {"rows", "columns"};
    size_t used = 0;
    out[0] = '\0';
    for (int d = 0; d < t->ndim && used < n; d++)
        if (r->from[d] != 0 || r->size[d] != whole[d])
            used += (size_t)snprintf(out + used, n - used, "%s%s %lld..%lld", used ? ", " : "", t->ndim == 1 ? "elements" : what[d],
                                     (long long)r->from[d], (long long)(r->from[d] + r->size[d] - 1));
    if (used == 0)
        snprintf(out, n, "all of it");
}

static json_t *part_row(const struct zt_manifest *m, const struct zt_index *x, const struct zt_index_part *p) {
    static const char *const kinds[ZT_SAVED_COUNT] = {"parameter", "master", "exp_avg", "exp_avg_sq"};
    const struct zt_saved_tensor *t = &m->tensors[p->tensor];
    json_t *o = json_object(), *from = json_array(), *size = json_array();
    char text[120];
    rect_text(t, &p->rect, text, sizeof text);
    for (int d = 0; d < t->ndim; d++) {
        json_array_append_new(from, json_integer(p->rect.from[d]));
        json_array_append_new(size, json_integer(p->rect.size[d]));
    }
    json_object_set_new(o, "rank", json_integer(x->rank));
    json_object_set_new(o, "tensor", zt_json_text(t->name));
    json_object_set_new(o, "kind", json_string(kinds[p->kind]));
    json_object_set_new(o, "from", from);
    json_object_set_new(o, "size", size);
    json_object_set_new(o, "part", json_string(text));
    json_object_set_new(o, "bytes", json_integer(p->rect.size[0] * p->rect.size[1] * (int64_t)zt_dtype_size(t->type[p->kind])));
    json_object_set_new(o, "file", zt_json_text(x->files[p->file].name));
    json_object_set_new(o, "at", json_integer(p->at));
    return o;
}

/* What that rank wrote, from its index. */
static int add_parts(const struct zt_manifest *m, const char *folder, int rank, json_t *rows, struct zt_error *err) {
    char path[ZT_PATH_MAX + 40], name[32], *text = NULL;
    struct zt_index x;
    size_t n = 0;
    if (rank >= m->world)
        return zt_fail(err, ZT_EINVAL, "--rank %d: %d ranks wrote this checkpoint", rank, m->world);
    zt_ckpt_rank_name(rank, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int rc = zt_sys_read_file(&zt_sys_posix, path, ZT_CKPT_TEXT_MAX, &text, &n);
    if (rc < 0)
        return zt_fail(err, rc == -ENOENT ? ZT_ECORRUPT : ZT_EIO, "%s: %s", path, strerror(-rc));
    struct zt_sha256 hash;
    zt_sha256_of(text, n, &hash);
    if (!zt_sha256_same(&hash, &m->ranks[rank].index)) {
        free(text);
        return zt_fail(err, ZT_ECORRUPT, "%s: is not what the manifest names (SHA-256)", path);
    }
    rc = zt_index_parse(path, text, n, m, rank, &x, err);
    for (int64_t i = 0; rc == 0 && i < x.n_parts; i++)
        json_array_append_new(rows, part_row(m, &x, &x.parts[i]));
    if (rc == 0)
        zt_index_free(&x);
    free(text);
    return rc;
}

static int print_parts(const struct zt_options *o, const struct zt_manifest *m, const char *folder, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"RANK", "rank", ZT_CELL_COUNT, 0},
        {"TENSOR", "tensor", ZT_CELL_TEXT, 0},
        {"KIND", "kind", ZT_CELL_TEXT, 0},
        {"BYTES", "bytes", ZT_CELL_BYTES, 0},
        {"FILE", "file", ZT_CELL_TEXT, 0},
        {"PART", "part", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    json_t *rows = json_array(), *j = json_object();
    int rc = 0;
    for (int r = 0; o->ranks_all && rc == 0 && r < m->world; r++)
        rc = add_parts(m, folder, r, rows, err);
    for (int i = 0; rc == 0 && i < o->n_rank; i++)
        rc = add_parts(m, folder, (int)o->rank[i], rows, err);
    json_object_set(j, "parts", rows);
    if (rc == 0)
        rc = zt_print_rows(stdout, o, j, rows, columns, err);
    json_decref(rows);
    json_decref(j);
    return rc;
}

/* ---------------------------------------------------------------------------------- all of it */

static void say_bytes(const json_t *bytes) {
    const char *key;
    json_t *v;
    char n[32];
    bool first = true;
    fputs("bytes    ", stdout);
    json_object_foreach((json_t *)(uintptr_t)bytes, key, v)
        if (json_is_integer(v)) {
            printf("%s%s %s", first ? "" : ", ", key, zt_format_bytes(json_number_value(v), n, sizeof n));
            first = false;
        }
    putchar('\n');
}

static void say_position(const json_t *j) {
    const json_t *p = json_object_get(j, "position");
    char a[32], b[32], c[32];
    printf("position step %s of %s, %s updates", zt_format_count(zt_row_int(p, "step"), a, sizeof a),
           zt_format_count(zt_row_int(p, "total_steps"), b, sizeof b), zt_format_count(zt_row_int(p, "updates"), c, sizeof c));
    if (zt_row_int(p, "skipped") > 0)
        printf(", %s skipped", zt_format_count(zt_row_int(p, "skipped"), a, sizeof a));
    printf(", %s tokens; data: epoch %s, %s of %s samples\n", zt_format_count(zt_row_int(p, "tokens"), a, sizeof a),
           zt_format_count(zt_row_int(p, "epoch"), b, sizeof b), zt_format_count(zt_row_int(p, "consumed"), c, sizeof c),
           zt_format_count(zt_row_int(p, "epoch_samples"), (char[32]){0}, 32));
    if (json_is_number(json_object_get(p, "loss_scale")))
        printf("scale    %g\n", json_number_value(json_object_get(p, "loss_scale")));
}

static void say_head(const json_t *j, const char *folder) {
    const json_t *m = json_object_get(j, "mesh");
    printf("run      %s   %s   step %lld, generation %lld, ztrain %s\n", zt_row_text(j, "run"), zt_row_text(j, "name"),
           (long long)zt_row_int(j, "step"), (long long)zt_row_int(j, "generation"), zt_row_text(j, "version"));
    printf("folder   %s\n", folder);
    printf("mesh     replicate %lld x shard %lld x tensor %lld = %lld writers, mode %s, recipe %s\n", (long long)zt_row_int(m, "replicate"),
           (long long)zt_row_int(m, "shard"), (long long)zt_row_int(m, "tensor"), (long long)zt_row_int(j, "world"), zt_row_text(j, "mode"),
           zt_row_text(j, "recipe"));
    say_position(j);
    say_bytes(json_object_get(j, "bytes"));
    printf("hash     parameters %s, moments %s\n", zt_row_text(j, "parameter_hash"), zt_row_text(j, "state_hash"));
}

static int print_show(const struct zt_options *o, const json_t *j, const char *folder, struct zt_error *err) {
    static const struct zt_column writers[] = {
        {"RANK", "rank", ZT_CELL_COUNT, 0},
        {"REP", "coords.replicate", ZT_CELL_COUNT, 0},
        {"SHARD", "coords.shard", ZT_CELL_COUNT, 0},
        {"TP", "coords.tensor", ZT_CELL_COUNT, 0},
        {"BYTES", "bytes", ZT_CELL_BYTES, 0},
        {"INDEX", "index_sha256", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    static const struct zt_column tensors[] = {
        {"TENSOR", "name", ZT_CELL_TEXT, 0},
        {"SHAPE", "shape_text", ZT_CELL_TEXT, 0},
        {"PARAMETER", "parameter", ZT_CELL_TEXT, 0},
        {"MASTER", "master", ZT_CELL_TEXT, 0},
        {"M", "exp_avg", ZT_CELL_TEXT, 0},
        {"V", "exp_avg_sq", ZT_CELL_TEXT, 0},
        {"FROZEN", "frozen", ZT_CELL_TEXT, 0},
        {"BYTES", "bytes", ZT_CELL_BYTES, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    if (o->format != ZT_FORMAT_TABLE)
        return zt_print_rows(stdout, o, j, json_object_get(j, "tensors"), tensors, err);
    say_head(j, folder);
    putchar('\n');
    int rc = zt_print_table(stdout, json_object_get(j, "writers"), writers, err);
    if (rc == 0) {
        putchar('\n');
        rc = zt_print_table(stdout, json_object_get(j, "tensors"), tensors, err);
    }
    return rc;
}

int zt_checkpoint_show(const struct zt_options *o) {
    struct zt_found_checkpoint f;
    struct zt_source s;
    struct zt_error err;
    struct zt_ckpt *c = NULL;
    int rc = zt_find_checkpoint(o, o->subject, &s, &f, &err);
    if (rc == 0)
        rc = zt_open_checkpoint(&f, &c, &err);
    if (rc == 0 && (o->ranks_all || o->n_rank > 0)) {
        rc = print_parts(o, zt_ckpt_manifest(c), f.folder, &err);
        zt_ckpt_close(c);
    } else if (rc == 0) {
        json_t *j = zt_json_manifest(zt_ckpt_manifest(c));
        json_object_set_new(j, "folder", zt_json_text(f.folder));
        rc = print_show(o, j, f.folder, &err);
        json_decref(j);
        zt_ckpt_close(c);
    }
    zt_source_close(&s);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
