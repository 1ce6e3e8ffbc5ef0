/* SPDX-License-Identifier: Apache-2.0 */
/* core/fixsum.h: order-independent exact sums (decision D44 in docs/internals.md).
 *
 * Doubles are added to three signed 64-bit limbs on the grids 2^-24, 2^-64 and 2^-104. Integer
 * sums are associative, so any order, thread count, sharding and mesh gives the same limbs and so
 * the same rounded result. Bits below 2^-104 are dropped the same way for every order (truncation
 * per addend, toward zero). Capacity: |sum| < 2^38; beyond, or Inf or NaN, sets the flag.
 *
 * A sum travels between ranks as ZT_FIXSUM_WORDS int64 added element-wise. Pure; any thread. */
#ifndef ZT_CORE_FIXSUM_H
#define ZT_CORE_FIXSUM_H
#include <stddef.h>
#include <stdint.h>

#define ZT_FIXSUM_WORDS 4
struct zt_fixsum { int64_t word[ZT_FIXSUM_WORDS]; }; /* limbs at 2^-24, 2^-64, 2^-104; word[3] != 0: non-finite or out of range */

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
