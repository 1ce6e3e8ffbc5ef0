/* SPDX-License-Identifier: Apache-2.0 */
/* engine/optim/optim.c: see optim.h. Decay groups are runs with their own weight_decay, so no code
 * looks at names or dimensions here. */
#include "engine/optim/optim.h"

double zt_clip_coefficient(double norm, double max_norm) {
    if (max_norm <= 0) return 1.0;
    double c = max_norm / (norm + 1e-6);
    return c < 1.0 ? c : 1.0;
}

static void *at(void *base, int64_t elements, enum zt_dtype t) {
    return (char *)base + (size_t)elements * zt_dtype_size(t);
}

int zt_optim_adamw(const struct zt_ops *ops, struct zt_ops_ctx *x, const struct zt_optim_config *c,
                   const struct zt_adamw_buffers *b, const struct zt_optim_run *runs, int n,
                   double lr, double factor, int64_t t, struct zt_error *err) {
    for (int i = 0; i < n; i++) {
        const struct zt_optim_run *r = &runs[i];
        struct zt_adamw_params a = {.lr = lr,
                                    .beta1 = c->beta1,
                                    .beta2 = c->beta2,
                                    .eps = c->eps,
                                    .weight_decay = r->decay ? c->weight_decay : 0.0,
                                    .step = t,
                                    .grad_scale = factor,
                                    .stochastic = c->stochastic,
                                    .seed = c->seed,
                                    .tensor = r->tensor,
                                    .span = r->span};
        struct zt_adamw_buffers run = *b;
        run.param = at(b->param, r->offset, b->param_type);
        run.master = b->master ? b->master + r->offset : NULL;
        run.m = at(b->m, r->offset, b->moment_type);
        run.v = at(b->v, r->offset, b->moment_type);
        run.grad = (const char *)b->grad + (size_t)r->offset * zt_dtype_size(b->grad_type);
        int rc = ops->adamw(x, &run, r->count, &a, err);
        if (rc) return rc;
    }
    return 0;
}
