/* SPDX-License-Identifier: Apache-2.0 */
/* core/convert against the definition of the formats: every 16-bit number widened, every number between
 * two neighbours narrowed to the nearer one, ties to the even one. */
#include <criterion/criterion.h>
#include <math.h>
#include "core/convert.h"

static double bf16_value(unsigned v) {
    const int exponent = (int)(v >> 7 & 255), rest = (int)(v & 127);
    const double a = exponent ? ldexp(128 + rest, exponent - 134) : ldexp(rest, -133);
    return v >> 15 ? -a : a;
}

static double f16_value(unsigned v) {
    const int exponent = (int)(v >> 10 & 31), rest = (int)(v & 1023);
    const double a = exponent ? ldexp(1024 + rest, exponent - 25) : ldexp(rest, -24);
    return v >> 15 ? -a : a;
}

/* Finite patterns 0 .. last, both signs. Midpoints and what lies just beside them are fp32 numbers. */
static void check_all(unsigned last, double (*value)(unsigned), float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
    for (unsigned h = 0; h <= last; h++) {
        cr_assert_eq((double)widen((uint16_t)h), value(h), "%04x", h);
        cr_assert_eq(narrow(widen((uint16_t)h)), h, "%04x", h);
        cr_assert_eq(narrow(widen((uint16_t)(h | 0x8000))), h | 0x8000, "-%04x", h);
        if (h == last) break;
        const float mid = (float)((value(h) + value(h + 1)) / 2);
        cr_assert_eq(narrow(mid), h % 2 ? h + 1 : h, "the middle above %04x", h);
        cr_assert_eq(narrow(nextafterf(mid, 0)), h, "below the middle above %04x", h);
        cr_assert_eq(narrow(nextafterf(mid, INFINITY)), h + 1, "above the middle above %04x", h);
        cr_assert_eq(narrow(-mid), 0x8000 | (h % 2 ? h + 1 : h));
    }
}

Test(convert, every_bf16) { check_all(0x7f7f, bf16_value, zt_bf16_widen, zt_bf16_narrow); }

Test(convert, every_fp16) { check_all(0x7bff, f16_value, zt_f16_widen, zt_f16_narrow); }

Test(convert, ends_of_the_range) {
    cr_expect_eq(zt_f16_narrow(65519.996f), 0x7bff);
    cr_expect_eq(zt_f16_narrow(65520.0f), 0x7c00); /* half way to 65536, which would be even */
    cr_expect_eq(zt_f16_narrow(-3e38f), 0xfc00);
    cr_expect_eq(zt_bf16_narrow(3.4e38f), 0x7f80);
    cr_expect(isinf(zt_f16_widen(0xfc00)) && zt_f16_widen(0xfc00) < 0);
    cr_expect(isnan(zt_f16_widen(0x7c01)) && isnan(zt_bf16_widen(0x7f81)));
    cr_expect(isnan(zt_f16_widen(zt_f16_narrow(NAN))) && isnan(zt_bf16_widen(zt_bf16_narrow(NAN))));
    /* of a NaN only low bits: it must not become infinity */
    union { uint32_t u; float f; } low = {0x7f800001u};
    cr_expect(isnan(zt_bf16_widen(zt_bf16_narrow(low.f))));
}

Test(convert, between_buffers) {
    const float in[5] = {1.0f, -2.5f, 1e-8f, 3.140625f, 70000.0f};
    uint16_t bf[5], half[5], again[5];
    float back[5];
    zt_convert(bf, ZT_BF16, in, ZT_F32, 5);
    zt_convert(back, ZT_F32, bf, ZT_BF16, 5);
    for (int i = 0; i < 5; i++) cr_expect_eq(back[i], zt_bf16_widen(zt_bf16_narrow(in[i])));
    zt_convert(half, ZT_F16, bf, ZT_BF16, 5);
    cr_expect_eq(half[0], 0x3c00);
    cr_expect_eq(half[1], 0xc100);
    cr_expect_eq(half[2], 0x0000); /* below half of 2^-24 */
    cr_expect_eq(half[3], 0x4248);
    cr_expect_eq(half[4], 0x7c00);
    zt_convert(again, ZT_BF16, half, ZT_F16, 4);
    cr_expect_eq(again[3], bf[3]);
    zt_convert(again, ZT_F16, half, ZT_F16, 5);
    cr_expect_arr_eq(again, half, sizeof half);
}
