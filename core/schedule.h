/* SPDX-License-Identifier: Apache-2.0 */
/* core/schedule.h: learning-rate schedules (torchtitan's warm-up / stable / decay), 0-indexed
 * optimizer updates, and accumulation windows. Pure; any thread. */
#ifndef ZT_CORE_SCHEDULE_H
#define ZT_CORE_SCHEDULE_H
#include <stdint.h>
#include "core/error.h"

enum zt_decay { ZT_DECAY_CONSTANT = 0, ZT_DECAY_LINEAR, ZT_DECAY_COSINE, ZT_DECAY_SQRT };
struct zt_schedule {
    double lr;
    int64_t warmup_steps, total_steps;
    enum zt_decay decay;
    double decay_ratio;     /* < 0: unset, everything after warm-up decays */
    double min_lr_factor;
};
/* Factor in [0, 1] of update i, and the learning rate itself. */
double zt_schedule_factor(const struct zt_schedule *s, int64_t i);
double zt_schedule_lr(const struct zt_schedule *s, int64_t i);

/* Accumulation windows of `micro` micro-batches cut by `accum`: 10 by 4 -> 4, 4, 2 (tail short)
 * or 4, 4 (tail drop). */
int64_t zt_window_count(int64_t micro, int64_t accum, int drop_tail);
int64_t zt_window_size(int64_t micro, int64_t accum, int drop_tail, int64_t window);

#endif
