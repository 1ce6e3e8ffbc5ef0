/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/gemm.c: the tile rules, the plan cache and the choice of the library. */
#include "kernels/cpu/gemm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* A head (the vocabulary as one dimension): its strips would be few and its packed copy huge. */
#define HEAD_WIDTH 8192

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static bool is_head(enum zt_gemm_op op, int64_t N, int64_t K) {
    return (op == ZT_GEMM_FWD && N >= HEAD_WIDTH) || (op == ZT_GEMM_DX && K >= HEAD_WIDTH);
}

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
    if (is_head(op, N, K)) return cut_of(at_most(256, M), at_most(384, N), M, N);
    int64_t r = at_most(256, M);
    while (ceil_div(M, r) < 8 && r > 64) r = round_up(r / 2, 32);
    return cut_of(r, N, M, N);
}

struct zt_gemm_cut zt_gemm_cut_openblas(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K) {
    (void)K;
    return halve_until(1024, 384, M, N, 4, op == ZT_GEMM_DW ? 128 : 64);
}

size_t zt_gemm_workspace(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K) {
    (void)M;
    if (op == ZT_GEMM_DW || is_head(op, N, K)) return 0;
    return (size_t)round_up(N, 64) * (size_t)round_up(K, 64) * sizeof(float);
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
    free(g);
}

const char *zt_gemm_describe(const struct zt_gemm *g) { return g->text; }

static bool same_shape(const struct zt_gemm_shape *a, const struct zt_gemm_shape *b) {
    return a->op == b->op && a->M == b->M && a->N == b->N && a->K == b->K &&
           a->accumulate == b->accumulate && a->bias == b->bias && a->workspace == b->workspace;
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
static void gemm_of_nothing(int64_t M, int64_t N, const float *bias, float *C, bool accumulate) {
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++)
            C[i * N + j] = (accumulate ? C[i * N + j] : 0.0f) + (bias ? bias[j] : 0.0f);
}

int zt_gemm_run(struct zt_gemm *g, enum zt_gemm_op op, int64_t M, int64_t N, int64_t K,
                const float *A, const float *B, const float *bias, float *C, bool accumulate,
                void *workspace, struct zt_error *err) {
    if (op != ZT_GEMM_FWD && op != ZT_GEMM_DX && op != ZT_GEMM_DW)
        return zt_fail(err, ZT_EINVAL, "gemm: orientation %d is not known", (int)op);
    if (M < 0 || N < 0 || K < 0 || M > INT32_MAX || N > INT32_MAX || K > INT32_MAX)
        return zt_fail(err, ZT_EINVAL, "gemm: sizes %lld x %lld x %lld are outside 0..2^31-1",
                       (long long)M, (long long)N, (long long)K);
    if (bias && op != ZT_GEMM_FWD)
        return zt_fail(err, ZT_EINVAL, "gemm: only the forward orientation takes a bias");
    if (M == 0 || N == 0) return ZT_OK;
    if (K == 0) {
        gemm_of_nothing(M, N, bias, C, accumulate);
        return ZT_OK;
    }
    zt_gemm_thread_start();
    const struct zt_gemm_shape s = {
        op,
        M,
        N,
        K,
        accumulate,
        bias != NULL,
        workspace != NULL && zt_gemm_workspace(op, M, N, K) > 0,
    };
    void *plan;
    int rc = find_plan(g, &s, &plan, err);
    if (rc != ZT_OK) return rc;
    return g->library->run(g, plan, A, B, bias, C, workspace, err);
}
