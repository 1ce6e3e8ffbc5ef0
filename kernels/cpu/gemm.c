/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/gemm.c: the tile rules, the plan cache and the choice of the library. */
#include "kernels/cpu/gemm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static struct zt_gemm_cut cut_of(int64_t r, int64_t c, int64_t M, int64_t N) {
    return (struct zt_gemm_cut){r, c, ceil_div(M, r), ceil_div(N, c)};
}

/* Halves the longer side (rows to a multiple of 32, columns of 64) until there are `tiles`. */
static struct zt_gemm_cut halve_until(int64_t r, int64_t c, int64_t M, int64_t N, int64_t tiles,
                                      int64_t floor) {
    r = at_most(r, M);
    c = at_most(c, N);
    while (ceil_div(M, r) * ceil_div(N, c) < tiles) {
        const int64_t r2 = round_up(r / 2, 32), c2 = round_up(c / 2, 64);
        const bool rows_can = r2 < r && r2 >= floor, columns_can = c2 < c && c2 >= floor;
        if (rows_can && (r >= c || !columns_can))
            r = r2;
        else if (columns_can)
            c = c2;
        else
            break;
    }
    return cut_of(r, c, M, N);
}

/* Forward and dX in full-width row strips: only a dense output keeps oneDNN's brgemm, all strips
 * share one packed W, and an element's bits do not depend on the number of rows. */
struct zt_gemm_cut zt_gemm_cut_onednn(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K) {
    if (op == ZT_GEMM_DW) return halve_until(256, 768, M, N, 8, 128);
    if (zt_gemm_is_head(op, N, K)) return cut_of(at_most(256, M), at_most(384, N), M, N);
    int64_t r = at_most(256, M);
    while (ceil_div(M, r) < 8 && r > 64) r = round_up(r / 2, 32);
    return cut_of(r, N, M, N);
}

struct zt_gemm_cut zt_gemm_cut_openblas(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K) {
    (void)K;
    return halve_until(1024, 384, M, N, 4, op == ZT_GEMM_DW ? 128 : 64);
}

void zt_gemm_thread_start(void) {
    static _Thread_local bool done;
    if (done) return;
    /* libgomp comes with oneDNN; looked up by name so that we need no OpenMP of our own. */
    void (*set)(int);
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (symbol) {
        memcpy(&set, &symbol, sizeof set);
        set(1);
    }
    done = true;
}

int zt_gemm_create(struct zt_pool *pool, const struct zt_vec *vec, const char *isa,
                   const char *library, struct zt_gemm **out, struct zt_error *err) {
    *out = NULL;
    const struct zt_gemm_library *lib = NULL;
    if (!library || strcmp(library, "auto") == 0 || strcmp(library, "onednn") == 0)
        lib = &zt_gemm_onednn;
    else if (strcmp(library, "openblas") == 0)
        lib = &zt_gemm_openblas;
    if (!lib)
        return zt_fail(err, ZT_EINVAL,
                       "GEMM library \"%s\" is not known; use auto, onednn or openblas", library);
    struct zt_gemm *g = calloc(1, sizeof *g);
    if (!g) return zt_fail(err, ZT_ENOMEM, "GEMM: no memory for the plan cache");
    g->pool = pool;
    g->vec = vec;
    g->library = lib;
    zt_gemm_thread_start();
    int rc = lib->create(g, isa, err);
    if (rc != ZT_OK) {
        zt_gemm_destroy(g);
        return rc;
    }
    *out = g;
    return ZT_OK;
}

void zt_gemm_destroy(struct zt_gemm *g) {
    if (!g) return;
    for (int i = 0; i < g->plans; i++) g->library->plan_destroy(g, g->plan[i].plan);
    if (g->state) g->library->destroy(g->state);
    free(g->wide);
    free(g);
}

const char *zt_gemm_describe(const struct zt_gemm *g) { return g->text; }

const char *zt_gemm_compute(const struct zt_gemm *g, enum zt_dtype t) {
    switch (t) {
    case ZT_F32:
        return "fp32";
    case ZT_BF16:
        return g->native_bf16 ? "bf16 with fp32 sums" : "fp32 (bf16 emulated, slow)";
    case ZT_F16:
        return "fp32 (fp16 emulated, slow)";
    default:
        return NULL;
    }
}

static bool same_shape(const struct zt_gemm_shape *a, const struct zt_gemm_shape *b) {
    return a->op == b->op && a->M == b->M && a->N == b->N && a->K == b->K && a->t == b->t &&
           a->ct == b->ct && a->accumulate == b->accumulate && a->bias == b->bias &&
           a->workspace == b->workspace;
}

/* The cached plan of a shape, made when it is new; the least recently used one makes room. */
static int find_plan(struct zt_gemm *g, const struct zt_gemm_shape *s, void **plan,
                     struct zt_error *err) {
    int slot = 0;
    for (int i = 0; i < g->plans; i++) {
        if (same_shape(&g->plan[i].shape, s)) {
            g->plan[i].used = ++g->clock;
            *plan = g->plan[i].plan;
            return ZT_OK;
        }
        if (g->plan[i].used < g->plan[slot].used) slot = i;
    }
    int rc = g->library->plan(g, s, plan, err);
    if (rc != ZT_OK) return rc;
    if (g->plans < ZT_GEMM_PLANS)
        slot = g->plans++;
    else
        g->library->plan_destroy(g, g->plan[slot].plan);
    g->plan[slot].shape = *s;
    g->plan[slot].plan = *plan;
    g->plan[slot].used = ++g->clock;
    return ZT_OK;
}

/* K = 0: the sum is empty. */
static void gemm_of_nothing(const struct zt_vec *vec, const struct zt_gemm_shape *s,
                            const void *bias, void *C) {
    const size_t csize = zt_dtype_size(s->ct), size = zt_dtype_size(s->t);
    const int64_t piece = 256;
    for (int64_t at = 0; at < s->N; at += piece) {
        const size_t n = (size_t)at_most(piece, s->N - at);
        float row[256] = {0}, sum[256];
        if (bias) vec->of[s->t].widen(row, (const char *)bias + (size_t)at * size, n);
        for (int64_t i = 0; i < s->M; i++) {
            char *c = (char *)C + (size_t)(i * s->N + at) * csize;
            memset(sum, 0, sizeof sum);
            if (s->accumulate) vec->of[s->ct].widen(sum, c, n);
            vec->of[ZT_F32].add(sum, sum, row, n);
            vec->of[s->ct].narrow(c, sum, n);
        }
    }
}

static int run_planned(struct zt_gemm *g, const struct zt_gemm_shape *shape, const void *A,
                       const void *B, const void *bias, void *C, void *workspace,
                       struct zt_error *err) {
    struct zt_gemm_shape s = *shape;
    void *plan;
    s.workspace = s.workspace && zt_gemm_workspace(s.op, s.M, s.N, s.K, s.t) > 0;
    int rc = find_plan(g, &s, &plan, err);
    return rc != ZT_OK ? rc : g->library->run(g, plan, A, B, bias, C, workspace, err);
}

/* ---- emulation: fp32 copies of 16-bit operands ---- */

#define MOVE_GRAIN 32768
struct move {
    const struct zt_vec_of *of;
    float *wide;
    void *narrow; /* read when widening, written when not */
    int64_t n;
    bool widen;
};

static void move_unit(void *arg, int64_t unit, int thread) {
    const struct move *m = arg;
    const int64_t first = unit * MOVE_GRAIN;
    const size_t n = (size_t)at_most(MOVE_GRAIN, m->n - first);
    char *narrow = (char *)m->narrow + 2 * first;
    (void)thread;
    if (m->widen)
        m->of->widen(m->wide + first, narrow, n);
    else
        m->of->narrow(narrow, m->wide + first, n);
}

static void move(struct zt_gemm *g, enum zt_dtype t, float *wide, const void *narrow, int64_t n,
                 bool widen) {
    struct move m = {&g->vec->of[t], wide, (void *)(uintptr_t)narrow, n, widen};
    zt_pool_run(g->pool, ceil_div(n, MOVE_GRAIN), move_unit, &m);
}

/* Room for the copies, each at a multiple of 64 bytes. */
static int wide_room(struct zt_gemm *g, const int64_t count[5], float *at[5],
                     struct zt_error *err) {
    size_t floats = 0;
    for (int i = 0; i < 5; i++) floats += (size_t)round_up(count[i], 16);
    if (floats > g->wide_floats) {
        free(g->wide);
        g->wide = aligned_alloc(64, floats * sizeof *g->wide);
        g->wide_floats = g->wide ? floats : 0;
        if (!g->wide)
            return zt_fail(err, ZT_ENOMEM,
                           "gemm: no memory for %zu bytes of fp32 copies, which an emulated 16-bit "
                           "product needs; use precision.recipe fp32 or a smaller batch",
                           floats * sizeof(float));
    }
    float *p = g->wide;
    for (int i = 0; i < 5; i++) {
        at[i] = p;
        p += round_up(count[i], 16);
    }
    return ZT_OK;
}

static int run_emulated(struct zt_gemm *g, const struct zt_gemm_shape *shape, const void *A,
                        const void *B, const void *bias, void *C, struct zt_error *err) {
    struct zt_gemm_shape s = *shape;
    const enum zt_dtype t = s.t, ct = s.ct;
    s.t = s.ct = ZT_F32;
    const size_t packed = zt_gemm_workspace(s.op, s.M, s.N, s.K, ZT_F32);
    const int64_t count[5] = {s.M * s.K, s.N * s.K, bias ? s.N : 0, ct == ZT_F32 ? 0 : s.M * s.N,
                              s.workspace ? (int64_t)(packed / sizeof(float)) : 0};
    float *w[5];
    int rc = wide_room(g, count, w, err);
    if (rc != ZT_OK) return rc;
    move(g, t, w[0], A, count[0], true);
    move(g, t, w[1], B, count[1], true);
    if (bias) move(g, t, w[2], bias, count[2], true);
    if (ct != ZT_F32 && s.accumulate) move(g, ct, w[3], C, count[3], true);
    rc = run_planned(g, &s, w[0], w[1], bias ? w[2] : NULL, ct == ZT_F32 ? C : w[3], w[4], err);
    if (rc == ZT_OK && ct != ZT_F32) move(g, ct, w[3], C, count[3], false);
    return rc;
}

int zt_gemm_run(struct zt_gemm *g, const struct zt_gemm_shape *s, const void *A, const void *B,
                const void *bias, void *C, void *workspace, struct zt_error *err) {
    if (s->op != ZT_GEMM_FWD && s->op != ZT_GEMM_DX && s->op != ZT_GEMM_DW)
        return zt_fail(err, ZT_EINVAL, "gemm: orientation %d is not known", (int)s->op);
    if (s->M < 0 || s->N < 0 || s->K < 0 || s->M > INT32_MAX || s->N > INT32_MAX ||
        s->K > INT32_MAX)
        return zt_fail(err, ZT_EINVAL, "gemm: sizes %lld x %lld x %lld are outside 0..2^31-1",
                       (long long)s->M, (long long)s->N, (long long)s->K);
    if (bias && s->op != ZT_GEMM_FWD)
        return zt_fail(err, ZT_EINVAL, "gemm: only the forward orientation takes a bias");
    if (s->M == 0 || s->N == 0) return ZT_OK;
    if (s->K == 0) {
        gemm_of_nothing(g->vec, s, bias, C);
        return ZT_OK;
    }
    zt_gemm_thread_start();
    if (s->t == ZT_F32 || (s->t == ZT_BF16 && g->native_bf16))
        return run_planned(g, s, A, B, bias, C, workspace, err);
    return run_emulated(g, s, A, B, bias, C, err);
}
