/* SPDX-License-Identifier: Apache-2.0 */
/* The table of rotary positions against fp64 values of an independent program. */
#include <criterion/criterion.h>
#include <math.h>

#include "core/rope.h"
#include "tests/core/golden.h"

enum { WIDTH_MAX = 128, T_MAX = 1024 };

/* Rounded once to fp32: half an ulp below 1. The angle, at most 1023, is off by a few 2^-53 of
 * itself. */
Test(rope, table_follows_fp64) {
    static float table[T_MAX * WIDTH_MAX];
    FILE *f = golden_open("rope.txt");
    char line[512];
    int rows = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        char *p = line;
        double v[10];
        for (int i = 0; i < 10; i++) cr_assert(golden_double(&p, &v[i]));
        const struct zt_rope scaling = {v[1] > 0 ? ZT_ROPE_LLAMA3 : ZT_ROPE_NONE, v[1], v[2], v[3],
                                        (int64_t)v[4]};
        const int64_t width = (int64_t)v[5], at = (int64_t)v[6] * width + (int64_t)v[7];
        zt_rope_table(v[0], &scaling, width, T_MAX, table);
        cr_assert(fabs((double)table[at] - v[8]) <= 0x1p-25 + 1e-12, "cos of %s", line);
        cr_assert(fabs((double)table[at + width / 2] - v[9]) <= 0x1p-25 + 1e-12, "sin of %s", line);
        rows++;
    }
    fclose(f);
    cr_assert_eq(rows, 320);
}

Test(rope, without_stretching) {
    const struct zt_rope none = {.type = ZT_ROPE_NONE, .factor = 8};
    float a[5 * 6], b[5 * 6];
    zt_rope_table(10000, &none, 6, 5, a);
    zt_rope_table(10000, NULL, 6, 5, b);
    cr_assert_arr_eq(a, b, sizeof a);
}
