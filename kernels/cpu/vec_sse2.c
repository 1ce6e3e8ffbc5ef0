/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_sse2.c: the vector routines compiled for SSE2; see vec.h. Called only after
 * zt_vec_find has seen that the processor has it. */
#define ZT_VEC_SSE2
#define ZT_VEC_TABLE zt_vec_sse2
#define ZT_VEC_NAME "sse2"
#define ZT_VEC_FMA false
#include "kernels/cpu/vec_body.h"
