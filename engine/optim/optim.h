/* SPDX-License-Identifier: Apache-2.0 */
/* engine/optim/optim.h: the optimizer's host side: the clip coefficient and AdamW over a slice of
 * flat buffers. The element work is in the operator table. Pure of memory: buffers belong to the
 * caller. Thread rule: the trainer thread (the operators use their pool underneath). */
#ifndef ZT_ENGINE_OPTIM_H
#define ZT_ENGINE_OPTIM_H
#include <stdbool.h>
#include "kernels/ops.h"

/* min(1, max_norm / (norm + 1e-6)), in double; max_norm 0 = no clipping: 1. It is multiplied into
 * every gradient whatever its value, so that the arithmetic does not depend on it. */
double zt_clip_coefficient(double norm, double max_norm);

struct zt_optim_config {
    double beta1, beta2, eps, weight_decay;
    bool stochastic; /* what is stored in 16 bits is rounded stochastically, by logical index */
    uint64_t seed;
};

/* A contiguous run of elements that share the weight-decay flag. Alignment gaps inside a run hold
 * zeros in every buffer and stay zeros under AdamW. With stochastic rounding a run lies inside one
 * tensor and knows where. */
struct zt_optim_run {
    int64_t offset, count;
    bool decay;
    uint32_t tensor;
    struct zt_span span;
};

/* One update of n runs of the same buffers, offsets counted from their pointers. factor is
 * multiplied into every gradient (clip coefficient / loss scale); t: updates from 1. */
int zt_optim_adamw(const struct zt_ops *ops, struct zt_ops_ctx *x, const struct zt_optim_config *c,
                   const struct zt_adamw_buffers *b, const struct zt_optim_run *runs, int n,
                   double lr, double factor, int64_t t, struct zt_error *err);

#endif
