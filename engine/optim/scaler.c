/* SPDX-License-Identifier: Apache-2.0 */
/* engine/optim/scaler.c: see scaler.h. */
#include "engine/optim/scaler.h"

#include <math.h>

/* torch has no floor; this one is out of reach of a run that learns, and keeps 1 / scale finite in
 * fp32 for one that does not. */
#define TORCH_LEAST 0x1p-100

void zt_loss_scaler_init(struct zt_loss_scaler *s, enum zt_scaler rule) {
    bool deepspeed = rule == ZT_SCALER_DEEPSPEED;
    *s = (struct zt_loss_scaler){.rule = rule,
                                 .scale = 65536,
                                 .growth = 2,
                                 .backoff = 0.5,
                                 .least = deepspeed ? 1 : TORCH_LEAST,
                                 .interval = deepspeed ? 1000 : 2000,
                                 .hysteresis = deepspeed ? 2 : 1,
                                 .hysteresis_left = deepspeed ? 2 : 1};
}

static void shrink(struct zt_loss_scaler *s) {
    s->good = 0;
    if (s->hysteresis_left > 1) {
        s->hysteresis_left--;
        return;
    }
    s->scale = fmax(s->scale * s->backoff, s->least);
}

void zt_loss_scaler_update(struct zt_loss_scaler *s, bool overflow) {
    if (overflow) {
        shrink(s);
        return;
    }
    if (++s->good < s->interval) return;
    s->good = 0;
    s->hysteresis_left = s->hysteresis;
    if (isfinite((float)(s->scale * s->growth))) s->scale *= s->growth; /* it is used in fp32 */
}

bool zt_loss_scaler_exhausted(const struct zt_loss_scaler *s) { return s->scale <= 1; }
