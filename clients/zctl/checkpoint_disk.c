/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint_disk.c: checkpoints as they lie in a folder, without a coordinator: which there are, what
 * was left behind, what a manifest says. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/json.h"
#include "core/mesh.h"
#include "engine/checkpoint/write.h"

static void put(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

static json_t *hex(const uint8_t *bytes, int n) {
    char text[65];
    bool any = false;
    for (int i = 0; i < n && i < 32; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
        any = any || bytes[i] != 0;
    }
    return any ? json_string(text) : json_null();
}

static json_t *hash128(struct zt_hash128 h) {
    char text[33];
    zt_hash_text(h, text);
    return json_string(text);
}

/* ---------------------------------------------------------------------------------- a manifest */

static int64_t elements(const struct zt_saved_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

static const char *const kind_names[ZT_SAVED_COUNT] = {"parameter", "master", "exp_avg", "exp_avg_sq"};

static json_t *tensor(const struct zt_saved_tensor *t) {
    json_t *o = json_object(), *shape = json_array();
    char text[48];
    int64_t bytes = 0;
    for (int d = 0; d < t->ndim; d++)
        json_array_append_new(shape, json_integer(t->shape[d]));
    snprintf(text, sizeof text, t->ndim == 2 ? "%lld x %lld" : "%lld", (long long)t->shape[0], (long long)t->shape[1]);
    put(o, "name", zt_json_text(t->name));
    put(o, "shape", shape);
    put(o, "shape_text", json_string(text));
    for (int k = 0; k < ZT_SAVED_COUNT; k++) {
        put(o, kind_names[k], t->has[k] ? json_string(zt_dtype_name(t->type[k])) : json_null());
        bytes += t->has[k] ? elements(t) * (int64_t)zt_dtype_size(t->type[k]) : 0;
    }
    put(o, "frozen", json_boolean(t->frozen));
    put(o, "bytes", json_integer(bytes));
    return o;
}

static json_t *position(const struct zt_position *p) {
    json_t *o = json_object();
    put(o, "step", json_integer(p->step));
    put(o, "total_steps", json_integer(p->total_steps));
    put(o, "updates", json_integer(p->updates));
    put(o, "skipped", json_integer(p->skipped));
    put(o, "tokens", json_integer(p->tokens));
    put(o, "epoch", json_integer(p->cursor.epoch));
    put(o, "consumed", json_integer(p->cursor.consumed));
    put(o, "epoch_samples", json_integer(p->epoch_samples));
    char digest[20];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)p->data_digest);
    put(o, "data_digest", json_string(digest));
    put(o, "loss_scale", zt_json_real(p->scaled, p->scale));
    put(o, "loss_scale_good", zt_json_int(p->scaled, p->scale_good));
    put(o, "loss_scale_hysteresis_left", zt_json_int(p->scaled, p->scale_hysteresis_left));
    return o;
}

/* Bytes of the values by kind, and what the files need beyond them. */
static json_t *bytes_by_kind(const struct zt_manifest *m) {
    json_t *o = json_object();
    int64_t all = 0, files = 0;
    for (int r = 0; r < m->world; r++)
        files += m->ranks[r].bytes;
    for (int k = 0; k < ZT_SAVED_COUNT; k++) {
        int64_t n = 0;
        for (int i = 0; i < m->n_tensors; i++)
            n += m->tensors[i].has[k] ? elements(&m->tensors[i]) * (int64_t)zt_dtype_size(m->tensors[i].type[k]) : 0;
        put(o, kind_names[k], zt_json_int(n > 0, n));
        all += n;
    }
    put(o, "headers", json_integer(files - all));
    put(o, "all", json_integer(files));
    return o;
}

json_t *zt_json_manifest(const struct zt_manifest *m) {
    json_t *o = json_object(), *mesh = json_object(), *writers = json_array(), *tensors = json_array();
    const struct zt_mesh shape = {m->replicate, m->shard, m->tensor};
    put(mesh, "replicate", json_integer(m->replicate));
    put(mesh, "shard", json_integer(m->shard));
    put(mesh, "tensor", json_integer(m->tensor));
    for (int r = 0; r < m->world; r++) {
        json_t *w = json_object(), *c = json_object();
        bool placed = r < zt_mesh_world(shape);
        struct zt_coords at = placed ? zt_mesh_coords(shape, r) : (struct zt_coords){0};
        put(c, "replicate", zt_json_int(placed, at.replicate));
        put(c, "shard", zt_json_int(placed, at.shard));
        put(c, "tensor", zt_json_int(placed, at.tensor));
        put(w, "rank", json_integer(r));
        put(w, "coords", c);
        put(w, "bytes", json_integer(m->ranks[r].bytes));
        put(w, "index_sha256", hex(m->ranks[r].index.byte, 32));
        json_array_append_new(writers, w);
    }
    for (int i = 0; i < m->n_tensors; i++)
        json_array_append_new(tensors, tensor(&m->tensors[i]));
    put(o, "run", zt_json_text(m->run_id));
    put(o, "name", zt_json_text(m->run_name));
    put(o, "step", json_integer(m->position.step));
    put(o, "generation", json_integer(m->generation));
    put(o, "version", zt_json_text(m->version));
    put(o, "world", json_integer(m->world));
    put(o, "mesh", mesh);
    put(o, "mode", zt_json_text(m->mode));
    put(o, "recipe", zt_json_text(m->recipe));
    put(o, "config_hash", zt_json_text(m->config_hash));
    put(o, "position", position(&m->position));
    put(o, "bytes", bytes_by_kind(m));
    put(o, "writers", writers);
    put(o, "tensors", tensors);
    put(o, "parameter_hash", hash128(m->parameter_hash));
    put(o, "state_hash", hash128(m->state_hash));
    put(o, "previous", hex(m->previous.byte, 32));
    put(o, "created", zt_json_time(m->created_ms));
    put(o, "configuration", zt_json_text(m->spec));
    return o;
}

/* ---------------------------------------------------------------------------------- folders */

static bool join(char *out, size_t n, const char *folder, const char *name) {
    int m = snprintf(out, n, "%s/%s", folder, name);
    return m > 0 && (size_t)m < n;
}

static int absolute(const char *folder, char out[ZT_PATH_MAX], struct zt_error *err) {
    char full[4096];
    if (!realpath(folder, full))
        return zt_fail(err, errno == ENOENT || errno == ENOTDIR ? ZT_ENOTFOUND : ZT_EIO, "%s: %s", folder, strerror(errno));
    if (strlen(full) >= ZT_PATH_MAX)
        return zt_fail(err, ZT_EINVAL, "%s: the absolute path is longer than %d bytes", folder, ZT_PATH_MAX - 1);
    memcpy(out, full, strlen(full) + 1);
    return 0;
}

int zt_find_on_disk(const char *folder, struct zt_found_checkpoint *f, struct zt_error *err) {
    char manifest[ZT_PATH_MAX + 32], run[ZT_PATH_MAX], step[32];
    int64_t *steps = NULL;
    int n = 0;
    struct stat st;
    int rc = absolute(folder, run, err);
    memset(f, 0, sizeof *f);
    f->step = -1;
    if (rc)
        return rc;
    snprintf(manifest, sizeof manifest, "%s/manifest.json", run);
    if (stat(manifest, &st) == 0) {
        memcpy(f->folder, run, sizeof run);
        memcpy(f->label, run, sizeof run);
        return 0;
    }
    rc = zt_ckpt_list(&zt_sys_posix, run, &steps, &n, err);
    if (rc == 0 && n == 0)
        rc = zt_fail(err, ZT_ENOTFOUND, "%s is no checkpoint (it has no manifest.json) and holds none (step-NNNNNNNN)", run);
    if (rc == 0) {
        f->step = steps[n - 1];
        zt_ckpt_step_name(f->step, step);
        if (!join(f->folder, sizeof f->folder, run, step))
            rc = zt_fail(err, ZT_EINVAL, "%s: the path is too long", run);
        memcpy(f->label, f->folder, sizeof f->label);
    }
    free(steps);
    return rc;
}

/* Bytes of the regular files in it. */
static int64_t folder_bytes(const char *path) {
    DIR *d = opendir(path);
    int64_t n = 0;
    struct dirent *e;
    struct stat st;
    char file[2 * ZT_PATH_MAX];
    while (d && (e = readdir(d)) != NULL) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (lstat(file, &st) == 0 && S_ISREG(st.st_mode))
            n += st.st_size;
    }
    if (d)
        closedir(d);
    return n;
}

static void add_left(json_t *left, const char *folder, const char *name, const char *why) {
    char path[ZT_PATH_MAX + 300];
    json_t *o = json_object();
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put(o, "name", json_string(name));
    put(o, "bytes", json_integer(folder_bytes(path)));
    put(o, "why", json_string(why));
    json_array_append_new(left, o);
}

/* Of the folder's entries those that nobody needs any more; hidden files of others are none of ours. */
static json_t *find_left(const char *folder, uint32_t generation) {
    json_t *left = json_array();
    DIR *d = opendir(folder);
    struct dirent *e;
    char trash[ZT_PATH_MAX + 8], name[300];
    while (d && (e = readdir(d)) != NULL) {
        uint32_t g = 0;
        if (zt_ckpt_temp_of(e->d_name, &g) >= 0 && g < generation)
            add_left(left, folder, e->d_name, "was never finished");
    }
    if (d)
        closedir(d);
    snprintf(trash, sizeof trash, "%s/trash", folder);
    d = opendir(trash);
    while (d && (e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(name, sizeof name, "trash/%s", e->d_name);
            add_left(left, folder, name, "is being removed");
        }
    if (d)
        closedir(d);
    return left;
}

static json_t *row_of(const char *folder, int64_t step) {
    struct zt_found_checkpoint f = {.step = step};
    struct zt_error err;
    struct zt_ckpt *c = NULL;
    json_t *o = json_object();
    char name[32];
    zt_ckpt_step_name(step, name);
    bool fits = join(f.folder, sizeof f.folder, folder, name);
    int rc = fits ? zt_open_checkpoint(&f, &c, &err) : zt_fail(&err, ZT_EINVAL, "the path is too long");
    const struct zt_manifest *m = rc == 0 ? zt_ckpt_manifest(c) : NULL;
    int64_t bytes = 0;
    for (int r = 0; m && r < m->world; r++)
        bytes += m->ranks[r].bytes;
    put(o, "step", json_integer(step));
    put(o, "generation", zt_json_int(m != NULL, m ? m->generation : 0));
    put(o, "state", json_string(m ? "ON_DISK" : "CORRUPT"));
    put(o, "bytes", zt_json_int(m != NULL, bytes));
    put(o, "shards", zt_json_int(m != NULL, m ? m->world : 0));
    put(o, "verified", json_null()); /* the coordinator knows */
    put(o, "pinned", json_null());
    put(o, "stall_seconds", json_null());
    put(o, "write_seconds", json_null());
    put(o, "created", m ? zt_json_time(m->created_ms) : json_null());
    put(o, "parameter_hash", m ? hash128(m->parameter_hash) : json_null());
    put(o, "state_hash", m ? hash128(m->state_hash) : json_null());
    put(o, "run", zt_json_text(m ? m->run_id : NULL));
    put(o, "name", zt_json_text(m ? m->run_name : NULL));
    put(o, "folder", zt_json_text(folder));
    put(o, "message", zt_json_text(rc ? err.msg : NULL));
    if (c)
        zt_ckpt_close(c);
    return o;
}

int zt_list_on_disk(const char *folder, uint32_t generation, json_t **list, struct zt_error *err) {
    char full[ZT_PATH_MAX];
    int64_t *steps = NULL;
    int n = 0, rc = absolute(folder, full, err);
    if (rc == 0)
        rc = zt_ckpt_list(&zt_sys_posix, full, &steps, &n, err);
    if (rc)
        return rc;
    json_t *o = json_object(), *rows = json_array();
    for (int i = n - 1; i >= 0; i--)
        json_array_append_new(rows, row_of(full, steps[i]));
    free(steps);
    const json_t *newest = json_array_get(rows, 0);
    put(o, "run", newest ? json_incref(json_object_get(newest, "run")) : json_null());
    put(o, "name", newest ? json_incref(json_object_get(newest, "name")) : json_null());
    put(o, "state", json_null());
    put(o, "folder", json_string(full));
    put(o, "interval", json_null());
    put(o, "keep_latest_k", json_null());
    put(o, "keep_every", json_null());
    put(o, "checkpoints", rows);
    put(o, "left", find_left(full, generation));
    *list = o;
    return 0;
}
