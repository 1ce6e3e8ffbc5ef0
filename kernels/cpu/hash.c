/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/hash.c: the parameter hash (D12) of a stretch of a tensor. */
#include "core/hash128.h"
#include "kernels/cpu/cpu.h"

int zt_cpu_hash_values(struct zt_ops_ctx *x, enum zt_dtype t, const void *v, uint32_t tensor,
                       struct zt_span span, int64_t n, uint64_t sum[2], struct zt_error *err) {
    enum { CHUNK = 256 };
    float wide[CHUNK];
    int rc = zt_cpu_need_float("hash_values", t, err);
    if (rc) return rc;
    struct zt_hash128 s = {sum[0], sum[1]};
    for (int64_t i = 0, run; i < n; i += run) {
        uint64_t index;
        run = zt_span_run(&span, i, n - i < CHUNK ? n - i : CHUNK, &index);
        x->vec->of[t].widen(wide, zt_cpu_at(v, i, t), (size_t)run); /* exact: 16 bits fit in fp32 */
        zt_hash_elements(tensor, index, wide, run, &s);
    }
    sum[0] = s.lo;
    sum[1] = s.hi;
    return 0;
}
