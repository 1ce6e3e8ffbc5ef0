/* SPDX-License-Identifier: Apache-2.0 */
/* tests/kernels/fused.h: attention on one buffer [B*T, 3, H, D] that holds q, k and v of a row side
 * by side, every query head with keys of its own. */
#ifndef ZT_TESTS_KERNELS_FUSED_H
#define ZT_TESTS_KERNELS_FUSED_H
#include "kernels/ops.h"

static inline struct zt_attention fused(int64_t B, int64_t T, int64_t H, int64_t D) {
    const int64_t row = 3 * H * D;
    return (struct zt_attention){
        .B = B, .T = T, .H = H, .KV = H, .D = D, .q_row = row, .k_row = row, .v_row = row};
}

/* q, k or v: part 0, 1 or 2 */
static inline void *fused_part(const void *qkv, const struct zt_attention *a, int part,
                               enum zt_dtype t) {
    return (char *)(uintptr_t)qkv + (size_t)(part * a->H * a->D) * zt_dtype_size(t);
}

static inline int fused_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, float *lse,
                                const void *qkv, struct zt_attention a, struct zt_error *err) {
    return zt_ops_cpu()->attention_forward(x, t, out, lse, qkv, fused_part(qkv, &a, 1, t),
                                           fused_part(qkv, &a, 2, t), &a, NULL, err);
}

static inline int fused_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dqkv,
                                 const void *dout, const void *qkv, const void *out,
                                 const float *lse, struct zt_attention a, struct zt_error *err) {
    return zt_ops_cpu()->attention_backward(
        x, t, dqkv, fused_part(dqkv, &a, 1, t), fused_part(dqkv, &a, 2, t), dout, qkv,
        fused_part(qkv, &a, 1, t), fused_part(qkv, &a, 2, t), out, lse, &a, NULL, err);
}

#endif
