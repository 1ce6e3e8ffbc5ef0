/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_find.c: picks the vector table by name or by what the processor has. */
#include <string.h>
#include "kernels/cpu/vec.h"

static bool machine_has(const struct zt_vec *v) {
    __builtin_cpu_init();
    if (v == &zt_vec_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
    if (v == &zt_vec_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return true; /* SSE2 is part of x86-64 */
}

const struct zt_vec *zt_vec_find(const char *name) {
    static const struct zt_vec *const all[] = {&zt_vec_avx512, &zt_vec_avx2, &zt_vec_sse2};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if ((!name || strcmp(name, all[i]->name) == 0) && machine_has(all[i])) return all[i];
    return NULL;
}

size_t zt_vec_attention_scratch(int64_t T, int64_t D) {
    const int64_t block = ZT_ATTENTION_BLOCK, padded = (D + 15) / 16 * 16;
    const int64_t rows = (T + block - 1) / block * block;
    return (size_t)(3 * block * block + 5 * D * block + 2 * padded * block + 4 * block +
                    2 * padded * rows);
}
