/* SPDX-License-Identifier: Apache-2.0 */
/* core/schedule.c: warm-up, stable, decay; and windows cut by count. Pure; any thread. */
#include "core/schedule.h"

#include <math.h>

static double decay_factor(enum zt_decay decay, double p) {
    switch (decay) {
    case ZT_DECAY_CONSTANT:
        return 1.0;
    case ZT_DECAY_LINEAR:
        return 1.0 - p;
    case ZT_DECAY_COSINE:
        return 0.5 * (1.0 + cos(3.14159265358979323846 * p));
    case ZT_DECAY_SQRT:
        return 1.0 - sqrt(p);
    }
    return 1.0;
}

double zt_schedule_factor(const struct zt_schedule *s, int64_t i) {
    int64_t total = s->total_steps;
    int64_t warmup = s->warmup_steps < total ? s->warmup_steps : total;
    if (warmup < 0) warmup = 0;
    if (i < warmup) return (double)(i + 1) / (double)warmup;
    int64_t decay = total - warmup;
    if (s->decay_ratio >= 0) {
        /* rint: halves go to even, as in the reference's round(). */
        int64_t wanted = (int64_t)rint((double)total * s->decay_ratio);
        if (wanted < decay) decay = wanted;
    }
    /* One virtual step more than there are, so that the last real update is not at zero. */
    int64_t flat_end = total + 1 - decay;
    if (i < flat_end || decay <= 0 || s->decay == ZT_DECAY_CONSTANT) return 1.0;
    double p = (double)(i + 1 - flat_end) / (double)decay;
    if (p > 1.0) p = 1.0; /* updates past the planned end stay at the minimum */
    return s->min_lr_factor + (1.0 - s->min_lr_factor) * decay_factor(s->decay, p);
}

double zt_schedule_lr(const struct zt_schedule *s, int64_t i) {
    return s->lr * zt_schedule_factor(s, i);
}

int64_t zt_window_count(int64_t micro, int64_t accum, int drop_tail) {
    ZT_ASSERT(micro >= 0 && accum >= 1);
    return micro / accum + (!drop_tail && micro % accum != 0);
}

int64_t zt_window_size(int64_t micro, int64_t accum, int drop_tail, int64_t window) {
    ZT_ASSERT(window >= 0 && window < zt_window_count(micro, accum, drop_tail));
    int64_t left = micro - window * accum;
    return left < accum ? left : accum;
}
