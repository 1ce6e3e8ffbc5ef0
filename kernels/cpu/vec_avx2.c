/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_avx2.c: the vector routines compiled for AVX2; see vec.h. Called only after
 * zt_vec_find has seen that the processor has it. */
#define ZT_VEC_AVX2
#define ZT_VEC_TABLE zt_vec_avx2
#define ZT_VEC_NAME "avx2"
#define ZT_VEC_FMA true
#include "kernels/cpu/vec_body.h"
