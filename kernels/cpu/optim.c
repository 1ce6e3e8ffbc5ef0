/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/optim.c: AdamW and the exact sums (norm, loss). */
#include "kernels/cpu/cpu.h"

#include <math.h>

#define GRAIN 16384

struct adamw {
    const struct zt_vec *vec;
    float *p, *m, *v;
    const float *g;
    uint16_t *param16;
    struct zt_vec_adamw a;
};

static void adamw_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct adamw *j = arg;
    (void)thread;
    j->vec->adamw(j->p + first, j->m + first, j->v + first, j->g + first, (size_t)count, &j->a);
    if (j->param16) j->vec->f32_to_bf16(j->param16 + first, j->p + first, (size_t)count);
}

int zt_cpu_adamw(struct zt_ops_ctx *x, const struct zt_adamw_buffers *b, int64_t n,
                 const struct zt_adamw_params *a, struct zt_error *err) {
    int rc = zt_cpu_need_f32("adamw (gradient)", b->grad_type, err);
    if (rc == ZT_OK) rc = zt_cpu_need_f32("adamw (moments)", b->moment_type, err);
    if (rc != ZT_OK) return rc;
    if (b->param_type != (b->master ? ZT_BF16 : ZT_F32))
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "adamw: parameters are fp32, or bf16 beside a master, in this version (%s)",
                       zt_dtype_name(b->param_type));
    if (a->step < 1)
        return zt_fail(err, ZT_EINVAL, "adamw: step %lld; steps count from 1", (long long)a->step);
    const double bc1 = 1.0 - pow(a->beta1, (double)a->step);
    const double bc2 = 1.0 - pow(a->beta2, (double)a->step);
    struct adamw j = {x->vec,
                      b->master ? b->master : b->param,
                      b->m,
                      b->v,
                      b->grad,
                      b->master ? b->param : NULL,
                      {
                          .grad_scale = (float)a->grad_scale,
                          .decay = (float)(1.0 - a->lr * a->weight_decay),
                          .one_m_b1 = (float)(1.0 - a->beta1),
                          .beta2 = (float)a->beta2,
                          .one_m_b2 = (float)(1.0 - a->beta2),
                          .sqrt_bc2 = (float)sqrt(bc2),
                          .eps = (float)a->eps,
                          .step_size = (float)(a->lr / bc1),
                      }};
    zt_cpu_range(x, n, GRAIN, adamw_range, &j);
    return ZT_OK;
}

struct sum {
    struct zt_fixsum *partial;
    const float *v;
    bool squares;
};

static void sum_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct sum *s = arg;
    if (s->squares)
        zt_fixsum_add_squares(&s->partial[thread], s->v + first, (size_t)count);
    else
        zt_fixsum_add_floats(&s->partial[thread], s->v + first, (size_t)count);
}

/* Integer sums: which thread took which piece does not show in the result. */
static void sum_all(struct zt_ops_ctx *x, const float *v, int64_t n, bool squares,
                    struct zt_fixsum *out) {
    struct sum s = {x->partial_sum, v, squares};
    const int threads = zt_pool_threads(x->pool);
    for (int t = 0; t < threads; t++) zt_fixsum_zero(&x->partial_sum[t]);
    zt_cpu_range(x, n, GRAIN, sum_range, &s);
    for (int t = 0; t < threads; t++) zt_fixsum_merge(out, &x->partial_sum[t]);
    zt_fixsum_normalise(out);
}

int zt_cpu_sum_squares(struct zt_ops_ctx *x, enum zt_dtype t, const void *g, int64_t n,
                       struct zt_fixsum *s, struct zt_error *err) {
    int rc = zt_cpu_need_f32("sum_squares", t, err);
    if (rc == ZT_OK) sum_all(x, g, n, true, s);
    return rc;
}

int zt_cpu_sum_values(struct zt_ops_ctx *x, const float *v, int64_t n, struct zt_fixsum *s,
                      struct zt_error *err) {
    (void)err;
    sum_all(x, v, n, false, s);
    return ZT_OK;
}
