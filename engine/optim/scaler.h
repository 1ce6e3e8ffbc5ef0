/* SPDX-License-Identifier: Apache-2.0 */
/* engine/optim/scaler.h: the loss scale of fp16 training as a pure state machine. The loss is
 * multiplied by `scale` so that small gradients do not vanish in fp16; the optimizer divides it out
 * again. After each step the trainer tells whether any gradient of any rank was not finite (that
 * step is then skipped) and the scale moves by one of two rules:
 *
 *   torch      overflow: half. 2000 good steps in a row: twice, as long as that is finite.
 *   deepspeed  as above with 1000 steps, but the first overflow only uses up the hysteresis (2);
 *              it is filled again when the scale grows. Never below 1.
 *
 * Every rank feeds the same flags, so every rank holds the same state. No memory; the trainer
 * thread. */
#ifndef ZT_ENGINE_SCALER_H
#define ZT_ENGINE_SCALER_H
#include <stdbool.h>
#include <stdint.h>

#include "core/spec.h"

struct zt_loss_scaler {
    enum zt_scaler rule;
    double scale, growth, backoff, least;
    int64_t interval; /* good steps in a row before it grows */
    int64_t good;     /* so far */
    int hysteresis, hysteresis_left;
};

void zt_loss_scaler_init(struct zt_loss_scaler *s, enum zt_scaler rule);
/* The end of a step; overflow: a gradient was not finite. */
void zt_loss_scaler_update(struct zt_loss_scaler *s, bool overflow);
/* True when an overflow can no longer be blamed on the scale: it is 1 or less. */
bool zt_loss_scaler_exhausted(const struct zt_loss_scaler *s);

#endif
