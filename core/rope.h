/* SPDX-License-Identifier: Apache-2.0 */
/* core/rope.h: the angles of rotary positions (Su et al., "RoFormer", arXiv:2104.09864). Pure; any
 * thread. */
#ifndef ZT_CORE_ROPE_H
#define ZT_CORE_ROPE_H
#include <stdint.h>

/* How the positions are stretched beyond original_max, the length that a model was first trained on.
 * The numbers are read with LLAMA3 only. */
enum zt_rope_scaling { ZT_ROPE_NONE = 0, ZT_ROPE_LLAMA3 };
struct zt_rope {
    enum zt_rope_scaling type;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max;
};

/* out[T][2][head_dim / 2]: for each position p cos(p f_i), then sin(p f_i), computed in double and
 * rounded once; head_dim is even. f_i = theta^(-2 i / head_dim). llama3, as Meta published it with
 * Llama 3.1, with the wavelength w = 2 pi / f and the numbers above:
 *
 *   w > original_max / low_freq_factor     f / factor
 *   w < original_max / high_freq_factor    f
 *   between                                (1 - s) f / factor + s f, where
 *                                          s = (original_max / w - low) / (high - low)
 *
 * scaling NULL: none. */
void zt_rope_table(double theta, const struct zt_rope *scaling, int64_t head_dim, int64_t T,
                   float *out);

#endif
