/* SPDX-License-Identifier: Apache-2.0 */
/* core/cost.c: see core/cost.h; the formulas are written out in docs/planner.md. */
#include "core/cost.h"

#include <math.h>

#define NS 1e9

static double rate(const struct zt_cost_device *d, struct zt_cost_work w) {
    double r = d->flops[w.class_][w.type];
    return r > 0 ? r : d->flops[w.class_][ZT_F32];
}

int64_t zt_cost_ns(const struct zt_cost_device *d, struct zt_cost_work w) {
    double seconds = d->memory_bytes_per_second > 0 ? w.bytes / d->memory_bytes_per_second : 0;
    double r = w.class_ == ZT_COST_MEMORY ? 0 : rate(d, w);
    if (r > 0 && w.flops / r > seconds) seconds = w.flops / r;
    return d->launch_ns + (int64_t)llround(seconds * NS);
}

struct zt_cost_work zt_work_gemm(int64_t M, int64_t N, int64_t K, enum zt_dtype t, enum zt_dtype ct,
                                 bool accumulate) {
    double m = (double)M, n = (double)N, k = (double)K;
    double read = (m * k + n * k) * (double)zt_dtype_size(t);
    double written = m * n * (double)zt_dtype_size(ct) * (accumulate ? 2 : 1);
    return (struct zt_cost_work){ZT_COST_GEMM, t, 2 * m * n * k, read + written};
}

/* Forward: two products of T x T x D per head, half of them masked. Backward: five, twice the bytes
 * and the output besides. */
struct zt_cost_work zt_work_attention(bool backward, int64_t B, int64_t T, int64_t H, int64_t D,
                                      enum zt_dtype t) {
    double rows = (double)B * (double)T, square = rows * (double)T * (double)(H * D);
    double row = rows * (double)(H * D) * (double)zt_dtype_size(t);
    double lse = rows * (double)H * 4;
    if (backward)
        return (struct zt_cost_work){ZT_COST_ATTENTION_BACKWARD, t, 5 * square, 8 * row + lse};
    return (struct zt_cost_work){ZT_COST_ATTENTION_FORWARD, t, 2 * square, 4 * row + lse};
}

struct zt_cost_work zt_work_bytes(double bytes) {
    return (struct zt_cost_work){ZT_COST_MEMORY, ZT_F32, 0, bytes};
}

struct zt_cost_work zt_work_random(int64_t n, enum zt_dtype t) {
    return (struct zt_cost_work){ZT_COST_RANDOM, ZT_F32, (double)n,
                                 (double)n * (double)zt_dtype_size(t)};
}

int64_t zt_cost_collective_ns(const struct zt_cost_device *d, enum zt_cost_coll kind, int size,
                              int per_host, int64_t full) {
    if (size < 2) return 0;
    bool one_host = per_host >= size;
    const struct zt_cost_link *l = one_host ? &d->within : &d->across;
    double bandwidth = l->bytes_per_second;
    if (!one_host) { /* as many rings as the group has ranks on a host, each over its own link */
        bandwidth *= per_host < 1 ? 1 : per_host;
        if (d->within.bytes_per_second > 0 && per_host > 1 && bandwidth > d->within.bytes_per_second)
            bandwidth = d->within.bytes_per_second;
    }
    double k = size, rounds = k - 1, sent = (k - 1) / k * (double)full;
    switch (kind) {
    case ZT_COST_ALL_REDUCE:
        rounds *= 2;
        sent *= 2;
        if (one_host && l->nvls_bytes_per_second > bandwidth) bandwidth = l->nvls_bytes_per_second;
        break;
    case ZT_COST_BROADCAST:
        sent = (double)full;
        break;
    case ZT_COST_BARRIER:
        sent = 0;
        break;
    case ZT_COST_ALL_GATHER:
    case ZT_COST_REDUCE_SCATTER:
        break;
    }
    double seconds = bandwidth > 0 ? sent / bandwidth : 0;
    return (int64_t)rounds * l->alpha_ns + (int64_t)llround(seconds * NS);
}
