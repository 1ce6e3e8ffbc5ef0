/* SPDX-License-Identifier: Apache-2.0 */
/* core/fixsum.h: order-independent exact sums (decision D44 in docs/internals.md).
 *
 * Doubles are added to three 64-bit limbs on the grids 2^-24, 2^-64 and 2^-104, with a fourth limb
 * at 2^16 that takes the carries. Integer sums are associative, so any order, thread count, sharding
 * and mesh gives the same limbs and so the same rounded result. Every addend is first rounded to the
 * grid 2^-104, ties to even, alone and so the same way in every order.
 *
 * Range: an addend must be below 2^38 in magnitude, the whole sum below 2^58 (2^20 addends of any
 * size always fit). Beyond, or with Inf or NaN, the flag is set and the value is NaN.
 *
 * A sum travels between ranks as ZT_FIXSUM_WORDS int64 added element-wise (up to 2^20 ranks, each
 * normalised: every function here leaves its result normalised); normalise the received words.
 * Normalised words are unique: equal sums have equal words. Pure; any thread. */
#ifndef ZT_CORE_FIXSUM_H
#define ZT_CORE_FIXSUM_H
#include <stddef.h>
#include <stdint.h>

#define ZT_FIXSUM_WORDS 5
/* word[0..2]: limbs at 2^-24, 2^-64, 2^-104, each in [0, 2^40) when normalised; word[3] != 0:
 * non-finite or out of range; word[4]: signed limb at 2^16. */
struct zt_fixsum { int64_t word[ZT_FIXSUM_WORDS]; };

void zt_fixsum_zero(struct zt_fixsum *s);
void zt_fixsum_add(struct zt_fixsum *s, double x);
/* Adds x[i]^2 (exact in double) of n floats; the hot loop of the gradient norm. */
void zt_fixsum_add_squares(struct zt_fixsum *s, const float *x, size_t n);
void zt_fixsum_add_floats(struct zt_fixsum *s, const float *x, size_t n);
void zt_fixsum_merge(struct zt_fixsum *s, const struct zt_fixsum *other);
/* Carries normalised so that up to 2^20 merged sums cannot overflow. */
void zt_fixsum_normalise(struct zt_fixsum *s);
/* One rounding to double; NaN when flagged. */
double zt_fixsum_value(const struct zt_fixsum *s);

#endif
