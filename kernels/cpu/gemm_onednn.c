/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/gemm_onednn.c: tiles on oneDNN's matmul (C API, 2.6), in fp32 and, where the
 * processor multiplies bf16 (AVX512-BF16, AMX), in bf16. Sums are fp32; a bf16 result is rounded
 * once.
 *
 * A plan holds at most four primitives (the whole tile and the rests at the two borders) and, for
 * each thread, the memory objects they run on. Primitives are shared by the threads; streams,
 * memory objects and scratchpads are not. The implementation's name is checked when a primitive is
 * made: a silent fall to a reference kernel would be a hundred times slower. */
#include "kernels/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct onednn {
    dnnl_engine_t engine;
    int threads;
    dnnl_stream_t *stream; /* one a thread */
    void **scratch;        /* one a thread */
    size_t scratch_bytes;
};

struct thread_memory {
    dnnl_memory_t a, b, c, bias, scratch;
};

struct variant {
    dnnl_primitive_t primitive; /* NULL: this border does not occur */
    bool packed;
    struct thread_memory *thread;
};

struct plan {
    struct zt_gemm_shape shape;
    struct zt_gemm_cut cut;
    int64_t a0, a1, b0, b1; /* strides of A[M,K] and B[K,N] */
    bool packed;
    int64_t pack_width; /* columns of a block of the packed form */
    dnnl_memory_desc_t packed_desc;
    struct variant variant[2][2]; /* [last row][last column] */
};

static int failed(struct zt_error *err, dnnl_status_t st, const char *what,
                  const struct zt_gemm_shape *s) {
    static const char *const names[] = {"FWD", "DX", "DW"};
    int code = st == dnnl_out_of_memory   ? ZT_ENOMEM
               : st == dnnl_unimplemented ? ZT_EUNSUPPORTED
                                          : ZT_EINTERNAL;
    if (!s) return zt_fail(err, code, "oneDNN: %s failed with status %d", what, (int)st);
    return zt_fail(err, code,
                   "oneDNN: %s failed with status %d for gemm %s %lld x %lld x %lld; try the "
                   "openblas library",
                   what, (int)st, names[s->op], (long long)s->M, (long long)s->N, (long long)s->K);
}

static void destroy_state(void *state) {
    struct onednn *o = state;
    for (int t = 0; t < o->threads; t++) {
        if (o->stream && o->stream[t]) dnnl_stream_destroy(o->stream[t]);
        if (o->scratch) free(o->scratch[t]);
    }
    free(o->stream);
    free(o->scratch);
    if (o->engine) dnnl_engine_destroy(o->engine);
    free(o);
}

static void destroy_variant(const struct onednn *o, struct variant *v) {
    if (v->primitive) dnnl_primitive_destroy(v->primitive);
    for (int t = 0; v->thread && t < o->threads; t++) {
        const struct thread_memory *m = &v->thread[t];
        dnnl_memory_t all[] = {m->a, m->b, m->c, m->bias, m->scratch};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (all[i]) dnnl_memory_destroy(all[i]);
    }
    free(v->thread);
    memset(v, 0, sizeof *v);
}

static void plan_destroy(struct zt_gemm *g, void *plan) {
    struct plan *p = plan;
    if (!p) return;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) destroy_variant(g->state, &p->variant[i][j]);
    free(p);
}

static int grow_scratch(struct onednn *o, size_t bytes, struct zt_error *err) {
    if (bytes <= o->scratch_bytes) return ZT_OK;
    bytes = (bytes + 4095) & ~(size_t)4095;
    for (int t = 0; t < o->threads; t++) {
        void *fresh = aligned_alloc(4096, bytes);
        if (!fresh)
            return zt_fail(err, ZT_ENOMEM, "oneDNN: no memory for %zu bytes of scratch", bytes);
        free(o->scratch[t]);
        o->scratch[t] = fresh;
    }
    o->scratch_bytes = bytes;
    return ZT_OK;
}

static int make_memories(struct onednn *o, struct variant *v, const dnnl_memory_desc_t *a,
                         const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *c,
                         const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *scratch,
                         const struct zt_gemm_shape *s, struct zt_error *err) {
    v->thread = calloc((size_t)o->threads, sizeof *v->thread);
    if (!v->thread) return zt_fail(err, ZT_ENOMEM, "oneDNN: no memory for a plan");
    for (int t = 0; t < o->threads; t++) {
        struct thread_memory *m = &v->thread[t];
        dnnl_status_t st = dnnl_memory_create(&m->a, a, o->engine, DNNL_MEMORY_NONE);
        if (st == dnnl_success) st = dnnl_memory_create(&m->b, b, o->engine, DNNL_MEMORY_NONE);
        if (st == dnnl_success) st = dnnl_memory_create(&m->c, c, o->engine, DNNL_MEMORY_NONE);
        if (st == dnnl_success && bias)
            st = dnnl_memory_create(&m->bias, bias, o->engine, DNNL_MEMORY_NONE);
        if (st == dnnl_success)
            st = dnnl_memory_create(&m->scratch, scratch, o->engine, DNNL_MEMORY_NONE);
        if (st != dnnl_success) return failed(err, st, "creating a memory object", s);
    }
    return ZT_OK;
}

/* Scratchpad handed in; C += by a sum post-op. */
static dnnl_status_t make_attributes(dnnl_primitive_attr_t *attr, bool accumulate) {
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(attr);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && accumulate) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success) st = dnnl_post_ops_append_sum(ops, 1.0f);
        if (st == dnnl_success) st = dnnl_primitive_attr_set_post_ops(*attr, ops);
        if (ops) dnnl_post_ops_destroy(ops);
    }
    return st;
}

static dnnl_data_type_t type_of(enum zt_dtype t) { return t == ZT_F32 ? dnnl_f32 : dnnl_bf16; }

/* The packed forms we can write ourselves, column blocks outermost: blocks of 16 rows x width
 * columns, in bf16 32 rows with pairs of rows innermost. Anything else (a plain copy, an unknown
 * order) means plain weights. */
static int64_t packed_width(const dnnl_memory_desc_t *d, enum zt_dtype t) {
    const dnnl_blocking_desc_t *b = &d->format_desc.blocking;
    const bool pairs = t == ZT_BF16;
    if (d->format_kind != dnnl_blocked || b->inner_nblks != (pairs ? 3 : 2) ||
        b->inner_idxs[0] != 0 || b->inner_idxs[1] != 1 || b->inner_blks[0] != 16 ||
        (pairs && (b->inner_idxs[2] != 0 || b->inner_blks[2] != 2)) || d->offset0 != 0 ||
        d->extra.flags != dnnl_memory_extra_flag_none)
        return 0;
    int64_t width = b->inner_blks[1], rows = pairs ? 32 : 16;
    if (width % 16 != 0 || width > 64 || b->strides[0] != rows * width ||
        d->padded_dims[0] % rows != 0 || b->strides[1] != d->padded_dims[0] * width)
        return 0;
    return width;
}

static bool allowed_kernel(const char *name) {
    return name && (strncmp(name, "brg:", 4) == 0 || strncmp(name, "gemm:jit", 8) == 0);
}

struct descs {
    dnnl_memory_desc_t a, b, c, bias;
};

static dnnl_status_t describe_tile(const struct plan *p, int64_t rows, int64_t columns,
                                   struct descs *d) {
    const struct zt_gemm_shape *s = &p->shape;
    const dnnl_dims_t da = {rows, s->K}, sa = {p->a0, p->a1};
    const dnnl_dims_t db = {s->K, columns}, sb = {p->b0, p->b1};
    const dnnl_dims_t dc = {rows, columns}, sc = {s->N, 1};
    const dnnl_dims_t dv = {1, columns}, sv = {columns, 1};
    const dnnl_data_type_t t = type_of(s->t), ct = type_of(s->ct);
    dnnl_status_t st = dnnl_memory_desc_init_by_strides(&d->a, 2, da, t, sa);
    if (st == dnnl_success) st = dnnl_memory_desc_init_by_strides(&d->b, 2, db, t, sb);
    if (st == dnnl_success) st = dnnl_memory_desc_init_by_strides(&d->c, 2, dc, ct, sc);
    if (st == dnnl_success) st = dnnl_memory_desc_init_by_strides(&d->bias, 2, dv, t, sv);
    return st;
}

static dnnl_status_t matmul_desc(struct onednn *o, const struct plan *p, const struct descs *d,
                                 const dnnl_memory_desc_t *weights, dnnl_primitive_desc_t *pd) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_matmul_desc_t md;
    *pd = NULL;
    dnnl_status_t st = make_attributes(&attr, p->shape.accumulate);
    if (st == dnnl_success)
        st = dnnl_matmul_desc_init(&md, &d->a, weights, p->shape.bias ? &d->bias : NULL, &d->c);
    if (st == dnnl_success) st = dnnl_primitive_desc_create(pd, &md, attr, o->engine, NULL);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

/* Asks oneDNN which packed form it would like for the whole tile; keeps plain weights when it is
 * not one we write, would need more than our formula, or leaves brgemm. */
static void choose_packing(struct onednn *o, struct plan *p) {
    struct descs d;
    dnnl_memory_desc_t any;
    const dnnl_dims_t db = {p->shape.K, p->cut.c};
    dnnl_primitive_desc_t pd = NULL;
    p->packed = false;
    if (!p->shape.workspace || p->cut.nc != 1 ||
        describe_tile(p, p->cut.r, p->cut.c, &d) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&any, 2, db, type_of(p->shape.t), dnnl_format_tag_any) !=
            dnnl_success ||
        matmul_desc(o, p, &d, &any, &pd) != dnnl_success)
        return;
    const char *name = NULL;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    const dnnl_memory_desc_t *w = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    size_t room = zt_gemm_workspace(p->shape.op, p->shape.M, p->shape.N, p->shape.K, p->shape.t);
    if (w && name && strncmp(name, "brg:", 4) == 0 && packed_width(w, p->shape.t) > 0 &&
        dnnl_memory_desc_get_size(w) <= room) {
        p->packed_desc = *w;
        p->pack_width = packed_width(w, p->shape.t);
        p->packed = true;
    }
    dnnl_primitive_desc_destroy(pd);
}

static int make_variant(struct zt_gemm *g, struct plan *p, struct variant *v, int64_t rows,
                        int64_t columns, char *kernel, size_t kernel_size, struct zt_error *err) {
    struct onednn *o = g->state;
    struct descs d;
    dnnl_primitive_desc_t pd = NULL;
    const char *name = NULL;
    dnnl_status_t st = describe_tile(p, rows, columns, &d);
    if (st != dnnl_success) return failed(err, st, "describing a tile", &p->shape);
    v->packed = p->packed;
    if (v->packed) {
        st = matmul_desc(o, p, &d, &p->packed_desc, &pd);
        if (st == dnnl_success) dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
        if (st != dnnl_success || !allowed_kernel(name)) { /* this border takes plain weights */
            if (pd) dnnl_primitive_desc_destroy(pd);
            v->packed = false;
        }
    }
    if (!v->packed) {
        st = matmul_desc(o, p, &d, &d.b, &pd);
        if (st != dnnl_success) return failed(err, st, "choosing a kernel", &p->shape);
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    }
    int rc = ZT_OK;
    if (!allowed_kernel(name)) {
        rc = zt_fail(
            err, ZT_EUNSUPPORTED,
            "oneDNN chose the kernel \"%s\" for a gemm of %lld x %lld x %lld, which is not "
            "one of its fast ones (brg, gemm:jit); use the openblas library",
            name ? name : "?", (long long)p->shape.M, (long long)p->shape.N, (long long)p->shape.K);
        goto out;
    }
    if (kernel) snprintf(kernel, kernel_size, "%s", name);
    st = dnnl_primitive_create(&v->primitive, pd);
    if (st != dnnl_success) {
        rc = failed(err, st, "creating a primitive", &p->shape);
        goto out;
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    rc = grow_scratch(o, dnnl_memory_desc_get_size(pad), err);
    if (rc == ZT_OK)
        rc = make_memories(o, v, &d.a, v->packed ? &p->packed_desc : &d.b, &d.c,
                           p->shape.bias ? &d.bias : NULL, pad, &p->shape, err);
out:
    dnnl_primitive_desc_destroy(pd);
    return rc;
}

static int make_plan(struct zt_gemm *g, const struct zt_gemm_shape *s, void **out, char *kernel,
                     size_t kernel_size, struct zt_error *err) {
    struct plan *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return zt_fail(err, ZT_ENOMEM, "oneDNN: no memory for a plan");
    p->shape = *s;
    p->cut = zt_gemm_cut_onednn(s->op, s->M, s->N, s->K);
    p->a0 = s->op == ZT_GEMM_DW ? 1 : s->K;
    p->a1 = s->op == ZT_GEMM_DW ? s->M : 1;
    p->b0 = s->op == ZT_GEMM_FWD ? 1 : s->N;
    p->b1 = s->op == ZT_GEMM_FWD ? s->K : 1;
    choose_packing(g->state, p);
    const int64_t last_rows = s->M - (p->cut.nr - 1) * p->cut.r;
    const int64_t last_columns = s->N - (p->cut.nc - 1) * p->cut.c;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            const int64_t rows = i ? last_rows : p->cut.r, columns = j ? last_columns : p->cut.c;
            if ((i && rows == p->cut.r) || (j && columns == p->cut.c))
                continue; /* no rest on this side */
            int rc = make_variant(g, p, &p->variant[i][j], rows, columns, kernel, kernel_size, err);
            if (rc != ZT_OK) {
                plan_destroy(g, p);
                return rc;
            }
        }
    }
    *out = p;
    return ZT_OK;
}

static int plan_create(struct zt_gemm *g, const struct zt_gemm_shape *s, void **plan,
                       struct zt_error *err) {
    return make_plan(g, s, plan, NULL, 0, err);
}

struct job {
    struct zt_gemm *g;
    struct plan *p;
    const void *A, *B, *bias;
    void *C, *packed;
    _Atomic int status;
};

/* The element `index` of a buffer of type t. The C API takes no const; matmul does not write its
 * sources. */
static void *at(const void *buffer, int64_t index, enum zt_dtype t) {
    return (char *)(uintptr_t)buffer + index * (int64_t)zt_dtype_size(t);
}

static void pack_block(void *arg, int64_t block, int thread) {
    struct job *j = arg;
    const struct plan *p = j->p;
    const int64_t width = p->pack_width, first = block * width, left = p->shape.N - first;
    const enum zt_dtype t = p->shape.t;
    void *out = at(j->packed, first * p->packed_desc.padded_dims[0], t);
    const void *w = at(j->B, first * p->b1, t);
    (void)thread;
    if (t == ZT_BF16)
        j->g->vec->pack_bf16(out, w, p->b0, p->b1, p->shape.K, left < width ? left : width, width);
    else
        j->g->vec->pack_f32(out, w, p->b0, p->b1, p->shape.K, left < width ? left : width, width);
}

static void run_tile(void *arg, int64_t tile, int thread) {
    struct job *j = arg;
    const struct plan *p = j->p;
    struct onednn *o = j->g->state;
    const int64_t row = tile % p->cut.nr, column = tile / p->cut.nr;
    const int64_t i0 = row * p->cut.r, j0 = column * p->cut.c;
    const int last_row = row == p->cut.nr - 1 && p->shape.M % p->cut.r != 0;
    const int last_column = column == p->cut.nc - 1 && p->shape.N % p->cut.c != 0;
    const struct variant *v = &p->variant[last_row][last_column];
    const struct thread_memory *m = &v->thread[thread];
    const enum zt_dtype t = p->shape.t;
    void *b = v->packed ? j->packed : at(j->B, j0 * p->b1, t);
    dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, m->a},
                               {DNNL_ARG_WEIGHTS, m->b},
                               {DNNL_ARG_DST, m->c},
                               {DNNL_ARG_SCRATCHPAD, m->scratch}};
    int count = 4;
    dnnl_status_t st = dnnl_memory_set_data_handle(m->a, at(j->A, i0 * p->a0, t));
    if (st == dnnl_success) st = dnnl_memory_set_data_handle(m->b, b);
    if (st == dnnl_success)
        st = dnnl_memory_set_data_handle(m->c, at(j->C, i0 * p->shape.N + j0, p->shape.ct));
    if (st == dnnl_success) st = dnnl_memory_set_data_handle(m->scratch, o->scratch[thread]);
    if (st == dnnl_success && j->bias) {
        st = dnnl_memory_set_data_handle(m->bias, at(j->bias, j0, t));
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, m->bias};
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(v->primitive, o->stream[thread], count, args);
    if (st == dnnl_success) st = dnnl_stream_wait(o->stream[thread]);
    if (st != dnnl_success) atomic_store(&j->status, (int)st);
}

static int run(struct zt_gemm *g, void *plan, const void *A, const void *B, const void *bias,
               void *C, void *workspace, struct zt_error *err) {
    struct plan *p = plan;
    struct job j = {g, p, A, B, bias, C, workspace, dnnl_success};
    if (p->packed)
        zt_pool_run(g->pool, (p->shape.N + p->pack_width - 1) / p->pack_width, pack_block, &j);
    zt_pool_run(g->pool, p->cut.nr * p->cut.nc, run_tile, &j);
    int st = atomic_load(&j.status);
    return st == dnnl_success ? ZT_OK : failed(err, (dnnl_status_t)st, "execution", &p->shape);
}

/* Limits oneDNN to the set that was asked for; it refuses once a kernel has been made. */
static void limit_isa(const char *isa) {
    if (!isa) return;
    if (strcmp(isa, "sse2") == 0)
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
    else if (strcmp(isa, "avx2") == 0)
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
}

/* Names the kernel that layers of type t will get. */
static int probe(struct zt_gemm *g, enum zt_dtype t, char *kernel, size_t size,
                 struct zt_error *err) {
    const struct zt_gemm_shape s = {ZT_GEMM_FWD, 256, 256, 256, t, t, false, true, true};
    void *plan;
    int rc = make_plan(g, &s, &plan, kernel, size, err);
    if (rc == ZT_OK) plan_destroy(g, plan);
    return rc;
}

/* oneDNN also takes bf16 where the processor does not multiply it, at a third of fp32's speed; and
 * it may have been held to less than the processor has. Its kernel's name tells. */
static bool has_bf16(struct zt_gemm *g, char *kernel, size_t size) {
    struct zt_error ignored = {0};
    __builtin_cpu_init();
    return g->vec == &zt_vec_avx512 && __builtin_cpu_supports("avx512bf16") &&
           probe(g, ZT_BF16, kernel, size, &ignored) == ZT_OK && strncmp(kernel, "brg:", 4) == 0 &&
           strstr(kernel, "bf16");
}

static int create(struct zt_gemm *g, const char *isa, struct zt_error *err) {
    struct onednn *o = calloc(1, sizeof *o);
    if (!o) return zt_fail(err, ZT_ENOMEM, "oneDNN: no memory for its context");
    g->state = o;
    o->threads = zt_pool_threads(g->pool);
    o->stream = calloc((size_t)o->threads, sizeof *o->stream);
    o->scratch = calloc((size_t)o->threads, sizeof *o->scratch);
    if (!o->stream || !o->scratch)
        return zt_fail(err, ZT_ENOMEM, "oneDNN: no memory for %d threads", o->threads);
    limit_isa(isa);
    dnnl_status_t st = dnnl_engine_create(&o->engine, dnnl_cpu, 0);
    for (int t = 0; st == dnnl_success && t < o->threads; t++)
        st = dnnl_stream_create(&o->stream[t], o->engine, dnnl_stream_default_flags);
    if (st != dnnl_success) return failed(err, st, "creating the engine", NULL);
    char kernel[64] = "", kernel16[64] = "";
    int rc = probe(g, ZT_F32, kernel, sizeof kernel, err);
    if (rc != ZT_OK) return rc;
    g->native_bf16 = has_bf16(g, kernel16, sizeof kernel16);
    const dnnl_version_t *ver = dnnl_version();
    snprintf(g->text, sizeof g->text, "oneDNN %d.%d.%d %.40s, bf16 %.40s", ver->major, ver->minor,
             ver->patch, kernel, g->native_bf16 ? kernel16 : "emulated in fp32");
    return ZT_OK;
}

const struct zt_gemm_library zt_gemm_onednn = {create, destroy_state, plan_create, plan_destroy,
                                               run};
