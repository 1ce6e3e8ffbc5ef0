/* SPDX-License-Identifier: Apache-2.0 */
/* tests/checkpoint/case.c: see case.h. */
#include "tests/checkpoint/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

static struct zt_saved_tensor tensor(const char *name, int64_t rows, int64_t columns, enum zt_dtype stored, bool master, bool frozen) {
    static uint32_t number;
    struct zt_saved_tensor t = {.ndim = columns ? 2 : 1, .shape = {rows, columns ? columns : 1}, .frozen = frozen};
    if (strcmp(name, "wte.weight") == 0) number = 0;
    t.number = number++;
    snprintf(t.name, sizeof t.name, "%s", name);
    t.has[ZT_SAVED_PARAMETER] = true;
    t.type[ZT_SAVED_PARAMETER] = stored;
    t.has[ZT_SAVED_MASTER] = master;
    t.has[ZT_SAVED_M] = t.has[ZT_SAVED_V] = !frozen;
    t.type[ZT_SAVED_M] = t.type[ZT_SAVED_V] = stored == ZT_BF16 && !master ? ZT_BF16 : ZT_F32;
    return t;
}

struct ck_case ck_make(const struct zt_sys *sys, const char *folder, int world, enum cut cut, int scale) {
    struct ck_case c = {.sys = sys, .folder = folder, .world = world, .cut = cut, .n_tensors = 7, .step = 10, .generation = 1};
    const int64_t s = scale;
    c.tensors = calloc(7, sizeof *c.tensors);
    c.tensors[0] = tensor("wte.weight", 13 * s, 8, ZT_BF16, true, false);
    c.tensors[1] = tensor("h.0.ln.weight", 8, 0, ZT_F32, false, false);
    c.tensors[2] = tensor("h.0.attn.weight", 24 * s, 8, ZT_BF16, true, false);
    c.tensors[3] = tensor("h.0.attn.bias", 24 * s, 0, ZT_F16, true, false);
    c.tensors[4] = tensor("h.0.mlp.weight", 8, 31 * s, ZT_BF16, false, false);
    c.tensors[5] = tensor("h.0.frozen.weight", 5, 9, ZT_BF16, false, true);
    c.tensors[6] = tensor("one.bias", 1, 0, ZT_F32, false, false);
    return c;
}

void ck_free(struct ck_case *c) { free(c->tensors); }

/* Some of every size and sign, none exact in 16 bits by luck alone. */
static float wanted(const struct ck_case *c, int t, enum zt_saved kind, int64_t index) {
    const uint64_t h = XXH3_64bits_withSeed(&index, sizeof index, (uint64_t)(c->salt * 1000 + t * 10 + (kind == ZT_SAVED_PARAMETER ? ZT_SAVED_MASTER : (int)kind)));
    const float v = ((float)(h >> 40) / (float)(1 << 24) - 0.5f) * (float)(1 << (h % 8));
    return kind == ZT_SAVED_V ? v * v : v;
}

float ck_value(const struct ck_case *c, int t, enum zt_saved kind, int64_t index) {
    const float v = wanted(c, t, kind, index);
    char stored[4];
    float wide;
    zt_convert(stored, c->tensors[t].type[kind], &v, ZT_F32, 1);
    zt_convert(&wide, ZT_F32, stored, c->tensors[t].type[kind], 1);
    return wide;
}

static void add_hash(struct zt_hash128 *sum, uint32_t word, uint64_t index, float v) {
    unsigned char m[16];
    memcpy(m, &word, 4); /* this test runs on little-endian machines */
    memcpy(m + 4, &index, 8);
    memcpy(m + 12, &v, 4);
    const XXH128_hash_t h = XXH3_128bits(m, sizeof m);
    const unsigned __int128 a = (unsigned __int128)sum->hi << 64 | sum->lo, b = (unsigned __int128)h.high64 << 64 | h.low64, r = a + b;
    *sum = (struct zt_hash128){(uint64_t)r, (uint64_t)(r >> 64)};
}

void ck_hashes(const struct ck_case *c, struct zt_hash128 *parameters, struct zt_hash128 *state) {
    *parameters = *state = (struct zt_hash128){0, 0};
    for (int t = 0; t < c->n_tensors; t++) {
        const struct zt_saved_tensor *d = &c->tensors[t];
        const enum zt_saved counts = d->has[ZT_SAVED_MASTER] ? ZT_SAVED_MASTER : ZT_SAVED_PARAMETER;
        for (int64_t i = 0; i < d->shape[0] * d->shape[1]; i++) {
            add_hash(parameters, d->number, (uint64_t)i, ck_value(c, t, counts, i));
            if (!d->has[ZT_SAVED_M]) continue;
            add_hash(state, d->number | 0x40000000u, (uint64_t)i, ck_value(c, t, ZT_SAVED_M, i));
            add_hash(state, d->number | 0x80000000u, (uint64_t)i, ck_value(c, t, ZT_SAVED_V, i));
        }
    }
}

/* The span of a tensor that a rank has under a cut; count 0: none. */
static struct zt_span span_of(const struct zt_saved_tensor *t, int index, enum cut cut, int world, int rank, int64_t *count) {
    const int64_t n = t->shape[0] * t->shape[1];
    if (cut == CUT_COLUMNS && t->ndim == 2 && t->shape[1] >= world) {
        const int64_t from = t->shape[1] * rank / world, to = t->shape[1] * (rank + 1) / world;
        *count = (to - from) * t->shape[0];
        return (struct zt_span){(uint64_t)from, 0, to - from, t->shape[1]};
    }
    if (cut == CUT_WHOLE) {
        *count = index % world == rank ? n : 0;
        return zt_span_plain(0, n);
    }
    const int64_t from = n * rank / world, to = n * (rank + 1) / world;
    *count = to - from;
    return zt_span_plain((uint64_t)from, to > from ? to - from : 1);
}

struct ck_pieces ck_pieces(const struct ck_case *c, int rank) {
    struct ck_pieces p = {.v = calloc((size_t)c->n_tensors * ZT_SAVED_COUNT * ZT_SPAN_RECTS, sizeof *p.v)};
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) p.values = malloc(bytes + 8);
        char *at = p.values;
        p.n = 0;
        for (int t = 0; t < c->n_tensors; t++)
            for (int k = 0; k < ZT_SAVED_COUNT; k++) {
                const struct zt_saved_tensor *d = &c->tensors[t];
                struct zt_rect r[ZT_SPAN_RECTS];
                int64_t count;
                const struct zt_span s = span_of(d, t, c->cut, c->world, rank, &count);
                const int n = d->has[k] ? zt_span_rects(s, count, d->shape[1], r) : 0;
                for (int i = 0; i < n; i++) {
                    const int64_t elements = r[i].size[0] * r[i].size[1], size = (int64_t)zt_dtype_size(d->type[k]);
                    const size_t room = ((size_t)(elements * size) + 7) / 8 * 8;
                    bytes += room;
                    if (pass == 0) continue;
                    for (int64_t e = 0; e < elements; e++) {
                        const int64_t index = (r[i].from[0] + e / r[i].size[1]) * d->shape[1] + r[i].from[1] + e % r[i].size[1];
                        const float v = wanted(c, t, (enum zt_saved)k, index);
                        zt_convert(at + e * size, d->type[k], &v, ZT_F32, 1);
                    }
                    p.v[p.n++] = (struct zt_saved_piece){t, (enum zt_saved)k, d->type[k], i, r[i], at};
                    at += room;
                }
            }
    }
    return p;
}

void ck_pieces_free(struct ck_pieces *p) {
    free(p->v);
    free(p->values);
}

int ck_write_rank(const struct ck_case *c, int rank, struct zt_shard_written *out, bool *disk_full, struct zt_error *err) {
    struct ck_pieces p = ck_pieces(c, rank);
    struct zt_shard_write w = {.sys = c->sys, .folder = c->folder, .step = c->step, .generation = c->generation, .rank = rank, .tensors = c->tensors,
                               .n_tensors = c->n_tensors, .pieces = p.v, .n_pieces = p.n, .memory = c->memory};
    const int rc = zt_shard_write(&w, out, disk_full, err);
    ck_pieces_free(&p);
    return rc;
}

void ck_manifest(const struct ck_case *c, const struct zt_shard_written *parts, struct zt_manifest *m) {
    *m = (struct zt_manifest){.run_id = "r-1", .run_name = "case", .version = "0.1.0", .recipe = "mixed16", .mode = "fsdp", .config_hash = "0123456789abcdef",
                              .generation = c->generation, .world = c->world, .replicate = 1, .shard = c->world, .tensor = 1, .n_tensors = c->n_tensors,
                              .tensors = c->tensors, .created_ms = 1700000000000};
    m->position = (struct zt_position){.step = c->step, .updates = c->step - 1, .skipped = 1, .total_steps = 100, .tokens = 12345, .cursor = {2, 77},
                                       .epoch_samples = 500, .data_digest = 0xfedcba9876543210u, .scaled = true, .scale = 65536.0 / 3, .scale_good = 5, .scale_hysteresis_left = 2};
    m->spec = (char *)"version: 1\nname: \"case\"\n";
    m->ranks = calloc((size_t)c->world, sizeof *m->ranks);
    for (int r = 0; r < c->world; r++) {
        m->ranks[r] = (struct zt_manifest_rank){parts[r].bytes, parts[r].index};
        zt_hash128_add(&m->parameter_hash, parts[r].parameter_hash);
        zt_hash128_add(&m->state_hash, parts[r].state_hash);
    }
}

int ck_save(const struct ck_case *c, struct zt_sha256 *manifest, bool *adopted, bool *disk_full, struct zt_error *err) {
    struct zt_shard_written *parts = calloc((size_t)c->world, sizeof *parts);
    struct zt_manifest m;
    int rc = 0;
    for (int r = 0; r < c->world && !rc; r++) rc = ck_write_rank(c, r, &parts[r], disk_full, err);
    if (!rc) {
        ck_manifest(c, parts, &m);
        rc = zt_ckpt_publish(c->sys, c->folder, &m, manifest, adopted, disk_full, err);
        free(m.ranks);
    }
    free(parts);
    return rc;
}

static char said[256];

static const char *check_rank(const struct ck_case *c, struct zt_tensor_source *s, int t, enum zt_saved k, enum cut ask, int ask_world, int rank) {
    const struct zt_saved_tensor *d = &c->tensors[t];
    struct zt_error err;
    int64_t count;
    const struct zt_span span = span_of(d, t, ask, ask_world, rank, &count);
    if (count == 0) return "";
    float *out = malloc((size_t)count * sizeof *out);
    said[0] = '\0';
    if (s->read(s->arg, d->name, k, d->ndim, d->shape, span, count, ZT_F32, out, &err)) snprintf(said, sizeof said, "%.200s", err.msg);
    for (int64_t i = 0; i < count && !said[0]; i++) {
        uint64_t index;
        zt_span_run(&span, i, 1, &index);
        const float want = ck_value(c, t, k, (int64_t)index);
        if (memcmp(&want, &out[i], sizeof want) != 0)
            snprintf(said, sizeof said, "%s%s element %lld: %a, not %a", d->name, zt_saved_suffix(k), (long long)index, (double)out[i], (double)want);
    }
    free(out);
    return said;
}

const char *ck_check_values(const struct ck_case *c, struct zt_ckpt *k, enum cut ask, int ask_world) {
    struct zt_tensor_source s = zt_ckpt_source(k);
    for (int rank = 0; rank < ask_world; rank++)
        for (int t = 0; t < c->n_tensors; t++)
            for (int kind = 0; kind < ZT_SAVED_COUNT; kind++) {
                if (s.has(s.arg, c->tensors[t].name, (enum zt_saved)kind) != c->tensors[t].has[kind]) return "another set of kinds";
                if (!c->tensors[t].has[kind]) continue;
                const char *w = check_rank(c, &s, t, (enum zt_saved)kind, ask, ask_world, rank);
                if (w[0]) return w;
            }
    return "";
}

int ck_open_and_verify(const struct ck_case *c, const struct zt_sha256 *manifest, struct zt_error *err) {
    char name[32], path[4096];
    struct zt_ckpt *k;
    zt_ckpt_step_name(c->step, name);
    snprintf(path, sizeof path, "%s/%s", c->folder, name);
    int rc = zt_ckpt_open(&(struct zt_ckpt_open){.sys = c->sys, .folder = path, .manifest = manifest}, &k, err);
    if (rc) return rc;
    rc = zt_ckpt_verify(k, NULL, NULL, err);
    zt_ckpt_close(k);
    return rc;
}
