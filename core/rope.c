/* SPDX-License-Identifier: Apache-2.0 */
/* core/rope.c: see core/rope.h. */
#include "core/rope.h"

#include <math.h>
#include <stddef.h>

#define TWO_PI 6.28318530717958647692

static double stretch(double f, const struct zt_rope *s) {
    const double turns = (double)s->original_max * f / TWO_PI; /* original_max / wavelength */
    if (turns < s->low_freq_factor) return f / s->factor;
    if (turns > s->high_freq_factor) return f;
    const double kept = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - kept) * f / s->factor + kept * f;
}

void zt_rope_table(double theta, const struct zt_rope *scaling, int64_t head_dim, int64_t T,
                   float *out) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double f = pow(theta, -2 * (double)i / (double)head_dim);
        if (scaling && scaling->type == ZT_ROPE_LLAMA3) f = stretch(f, scaling);
        for (int64_t p = 0; p < T; p++) {
            out[p * head_dim + i] = (float)cos((double)p * f);
            out[p * head_dim + half + i] = (float)sin((double)p * f);
        }
    }
}
