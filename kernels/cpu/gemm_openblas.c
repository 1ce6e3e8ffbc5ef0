/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/gemm_openblas.c: tiles on OpenBLAS' sgemm, loaded at run time.
 *
 * Only the pthread build, held to one thread: concurrent calls of the serial build return wrong
 * numbers without a word (it has no locks around its buffers), and the OpenMP build brings a second
 * pool. With accumulate and a bias the order is (C + A B) + bias. */
#include "kernels/cpu/gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

struct openblas {
    void *handle;
    sgemm_fn *sgemm;
};

struct plan {
    struct zt_gemm_shape shape;
    struct zt_gemm_cut cut;
};

static void destroy_state(void *state) {
    struct openblas *o = state;
    if (o->handle) dlclose(o->handle);
    free(o);
}

static int plan_create(struct zt_gemm *g, const struct zt_gemm_shape *s, void **out,
                       struct zt_error *err) {
    (void)g;
    struct plan *p = malloc(sizeof *p);
    *out = p;
    if (!p) return zt_fail(err, ZT_ENOMEM, "OpenBLAS: no memory for a plan");
    p->shape = *s;
    p->cut = zt_gemm_cut_openblas(s->op, s->M, s->N, s->K);
    return ZT_OK;
}

static void plan_destroy(struct zt_gemm *g, void *plan) {
    (void)g;
    free(plan);
}

struct job {
    const struct zt_gemm *g;
    const struct plan *p;
    const float *A, *B, *bias;
    float *C;
};

static void run_tile(void *arg, int64_t tile, int thread) {
    const struct job *j = arg;
    const struct zt_gemm_shape *s = &j->p->shape;
    const struct zt_gemm_cut *cut = &j->p->cut;
    const struct openblas *o = j->g->state;
    const int64_t i0 = tile % cut->nr * cut->r, j0 = tile / cut->nr * cut->c;
    const int64_t rows = s->M - i0 < cut->r ? s->M - i0 : cut->r;
    const int64_t columns = s->N - j0 < cut->c ? s->N - j0 : cut->c;
    const bool dw = s->op == ZT_GEMM_DW, fwd = s->op == ZT_GEMM_FWD;
    float *c = j->C + i0 * s->N + j0;
    (void)thread;
    o->sgemm(ROW_MAJOR, dw ? TRANS : NO_TRANS, fwd ? TRANS : NO_TRANS, (int)rows, (int)columns,
             (int)s->K, 1.0f, j->A + i0 * (dw ? 1 : s->K), (int)(dw ? s->M : s->K),
             j->B + j0 * (fwd ? s->K : 1), (int)(fwd ? s->K : s->N), s->accumulate ? 1.0f : 0.0f, c,
             (int)s->N);
    for (int64_t i = 0; j->bias && i < rows; i++)
        j->g->vec->of[ZT_F32].add_f32(c + i * s->N, j->bias + j0, (size_t)columns);
}

static int run(struct zt_gemm *g, void *plan, const void *A, const void *B, const void *bias,
               void *C, void *workspace, struct zt_error *err) {
    const struct plan *p = plan;
    struct job j = {g, p, A, B, bias, C};
    (void)workspace;
    (void)err;
    zt_pool_run(g->pool, p->cut.nr * p->cut.nc, run_tile, &j);
    return ZT_OK;
}

static void *open_library(void) {
    static const char *const paths[] = {
        "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
        "libopenblasp.so.0",
        "libopenblas.so.0",
    };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        void *h = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
        if (h) return h;
    }
    return NULL;
}

static int create(struct zt_gemm *g, const char *isa, struct zt_error *err) {
    char *(*config)(void), *(*core)(void);
    void (*set_threads)(int);
    (void)isa;
    struct openblas *o = calloc(1, sizeof *o);
    if (!o) return zt_fail(err, ZT_ENOMEM, "OpenBLAS: no memory for its context");
    g->state = o;
    o->handle = open_library();
    if (!o->handle)
        return zt_fail(err, ZT_ENOTFOUND,
                       "OpenBLAS was not found (%s); install libopenblas0-pthread or use onednn",
                       dlerror());
    void *sym[4] = {dlsym(o->handle, "cblas_sgemm"), dlsym(o->handle, "openblas_get_config"),
                    dlsym(o->handle, "openblas_get_corename"),
                    dlsym(o->handle, "openblas_set_num_threads")};
    for (int i = 0; i < 4; i++)
        if (!sym[i])
            return zt_fail(err, ZT_EUNSUPPORTED,
                           "the libopenblas.so.0 found is not a complete OpenBLAS (a symbol is "
                           "missing); install libopenblas0-pthread or use onednn");
    memcpy(&o->sgemm, &sym[0], sizeof o->sgemm);
    memcpy(&config, &sym[1], sizeof config);
    memcpy(&core, &sym[2], sizeof core);
    memcpy(&set_threads, &sym[3], sizeof set_threads);
    const char *build = config();
    if (strstr(build, "SINGLE_THREADED") || strstr(build, "USE_OPENMP"))
        return zt_fail(
            err, ZT_EUNSUPPORTED,
            "OpenBLAS build \"%s\" is refused: concurrent calls of the serial build give "
            "wrong numbers and the OpenMP build adds a second thread pool; install "
            "libopenblas0-pthread or use onednn",
            build);
    set_threads(1);
    char version[64];
    snprintf(version, sizeof version, "%.60s", build);
    /* "OpenBLAS 0.3.21 ...": the first two words */
    char *space = strchr(version, ' ');
    space = space ? strchr(space + 1, ' ') : NULL;
    if (space) *space = '\0';
    snprintf(g->text, sizeof g->text, "%s %s, bf16 emulated in fp32", version, core());
    return ZT_OK;
}

const struct zt_gemm_library zt_gemm_openblas = {create, destroy_state, plan_create, plan_destroy,
                                                 run};
