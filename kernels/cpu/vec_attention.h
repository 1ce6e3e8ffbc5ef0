/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_attention.h: attention's units of work, included by vec_body.h. */

static float dot(const float *a, const float *b, int64_t n) {
    v16 s = v_zero();
    for (int64_t i = 0; i < n; i += 16)
        s = v_fma(row_load(a, i, n, 0.0f), row_load(b, i, n, 0.0f), s);
    return v_sum(s);
}

static void vec_attention_forward(const struct zt_vec_attention *a, int64_t query_block) {
    int64_t end = (query_block + 1) * ZT_ATTENTION_BLOCK;
    for (int64_t t = query_block * ZT_ATTENTION_BLOCK; t < end && t < a->T; t++) {
        float top = -__builtin_inff(), sum = 0.0f, *o = a->o + t * a->ostride;
        memset(o, 0, (size_t)a->D * sizeof *o);
        for (int64_t j = 0; j <= t; j++) {
            float s = dot(a->q + t * a->stride, a->k + j * a->stride, a->D) * a->scale;
            float next = s > top ? s : top, shrink = expf(top - next), p = expf(s - next);
            sum = sum * shrink + p;
            top = next;
            for (int64_t d = 0; d < a->D; d++) o[d] = o[d] * shrink + p * a->v[j * a->stride + d];
        }
        for (int64_t d = 0; d < a->D; d++) o[d] /= sum;
        a->lse[t] = top + logf(sum);
    }
}

static void vec_attention_backward(const struct zt_vec_attention *a) {
    for (int64_t t = 0; t < a->T; t++) {
        memset(a->dq + t * a->stride, 0, (size_t)a->D * sizeof(float));
        memset(a->dk + t * a->stride, 0, (size_t)a->D * sizeof(float));
        memset(a->dv + t * a->stride, 0, (size_t)a->D * sizeof(float));
    }
    for (int64_t t = 0; t < a->T; t++) {
        const float *dy = a->dout + t * a->ostride, *q = a->q + t * a->stride;
        float delta = dot(dy, a->out + t * a->ostride, a->D);
        for (int64_t j = 0; j <= t; j++) {
            const float *k = a->k + j * a->stride;
            float p = expf(dot(q, k, a->D) * a->scale - a->lse[t]);
            float ds = p * (dot(dy, a->v + j * a->stride, a->D) - delta) * a->scale;
            for (int64_t d = 0; d < a->D; d++) {
                a->dq[t * a->stride + d] += ds * k[d];
                a->dk[j * a->stride + d] += ds * q[d];
                a->dv[j * a->stride + d] += p * dy[d];
            }
        }
    }
}
