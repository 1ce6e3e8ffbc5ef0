/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_avx512.c: the vector routines compiled for AVX512; see vec.h. Called only after
 * zt_vec_find has seen that the processor has it. */
#define ZT_VEC_AVX512
#define ZT_VEC_TABLE zt_vec_avx512
#define ZT_VEC_NAME "avx512"
#define ZT_VEC_FMA true
#include "kernels/cpu/vec_body.h"
