/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/number.h: numbers as people type them, read whole or refused with the reason: 8030261248, 1e9 and
 * 7.5e9 are counts, and nothing is guessed from a suffix (B: bytes or a billion?), a separator, a sign or a unit.
 * Pure; any thread. */
#ifndef ZT_ZCTL_NUMBER_H
#define ZT_ZCTL_NUMBER_H
#include <stdint.h>
#include "core/error.h"

/* A whole number from min to max, exact: no step of it is a floating-point number. */
int zt_number_count(const char *option, const char *text, int64_t min, int64_t max, int64_t *out,
                    struct zt_error *err);
/* A number from min, which is above 0, to max. */
int zt_number_real(const char *option, const char *text, double min, double max, double *out, struct zt_error *err);
#endif
