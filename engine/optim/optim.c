/* SPDX-License-Identifier: Apache-2.0 */
/* engine/optim/optim.c: see optim.h. Decay groups are runs with their own weight_decay, so no code
 * looks at names or dimensions here. */
#include "engine/optim/optim.h"

double zt_clip_coefficient(double norm, double max_norm) {
    if (max_norm <= 0) return 1.0;
    double c = max_norm / (norm + 1e-6);
    return c < 1.0 ? c : 1.0;
}

int zt_optim_adamw(const struct zt_ops *ops, struct zt_ops_ctx *x, const struct zt_optim_config *c,
                   const struct zt_optim_slice *s, const struct zt_optim_run *runs, int n,
                   double lr, double clip, int64_t t, struct zt_error *err) {
    size_t gsize = zt_dtype_size(s->grad_dtype), psize = zt_dtype_size(s->param_dtype);
    for (int i = 0; i < n; i++) {
        const struct zt_optim_run *r = &runs[i];
        struct zt_adamw_params a = {.lr = lr,
                                    .beta1 = c->beta1,
                                    .beta2 = c->beta2,
                                    .eps = c->eps,
                                    .weight_decay = r->decay ? c->weight_decay : 0.0,
                                    .step = t,
                                    .grad_scale = clip};
        float *value = s->value + r->offset;
        char *p16 = s->param16 ? (char *)s->param16 + (size_t)r->offset * psize : NULL;
        struct zt_adamw_buffers b = {.param = p16 ? (void *)p16 : value,
                                     .param_type = p16 ? s->param_dtype : ZT_F32,
                                     .master = p16 ? value : NULL,
                                     .m = s->m + r->offset,
                                     .v = s->v + r->offset,
                                     .moment_type = ZT_F32,
                                     .grad = (const char *)s->grad + (size_t)r->offset * gsize,
                                     .grad_type = s->grad_dtype};
        int rc = ops->adamw(x, &b, r->count, &a, err);
        if (rc) return rc;
    }
    return 0;
}
