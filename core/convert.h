/* SPDX-License-Identifier: Apache-2.0 */
/* core/convert.h: numbers in host memory from one of fp32, bf16, fp16 to another: widened exactly,
 * narrowed to nearest even; what is too large for fp16 becomes infinity, NaN stays NaN. Pure; any
 * thread. */
#ifndef ZT_CORE_CONVERT_H
#define ZT_CORE_CONVERT_H
#include <stdint.h>
#include "core/dtype.h"

/* n numbers; dst and src are aligned to their types and do not overlap unless they are one buffer of
 * one type. */
void zt_convert(void *dst, enum zt_dtype dt, const void *src, enum zt_dtype st, int64_t n);

float zt_bf16_widen(uint16_t v);
uint16_t zt_bf16_narrow(float v);
float zt_f16_widen(uint16_t v);
uint16_t zt_f16_narrow(float v);

#endif
