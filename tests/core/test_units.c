/* SPDX-License-Identifier: Apache-2.0 */
/* Formats for people, "did you mean", and the error struct. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "core/error.h"
#include "core/units.h"

static void bytes(double v, const char *want) {
    char buf[32];
    cr_assert_str_eq(zt_format_bytes(v, buf, sizeof buf), want);
}
static void seconds(double v, const char *want) {
    char buf[32];
    cr_assert_str_eq(zt_format_seconds(v, buf, sizeof buf), want);
}
static void count(int64_t v, const char *want) {
    char buf[32];
    cr_assert_str_eq(zt_format_count(v, buf, sizeof buf), want);
}

Test(units, format_bytes) {
    bytes(0, "0 B");
    bytes(512, "512 B");
    bytes(1023, "1023 B");
    bytes(1024, "1.00 KiB");
    bytes(1536, "1.50 KiB");
    bytes(1024.0 * 1024 - 1, "1.00 MiB");
    bytes(12.34 * 1024 * 1024 * 1024, "12.34 GiB");
    bytes(-2048, "-2.00 KiB");
    bytes(0x1p60, "1024.00 PiB");
}

Test(units, format_seconds) {
    seconds(0, "0 s");
    seconds(3e-9, "3 ns");
    seconds(4.5e-6, "4.50 us");
    seconds(1.23e-3, "1.23 ms");
    seconds(0.9999999, "1.00 s");
    seconds(59.99, "59.99 s");
    seconds(59.999, "1m00s");
    seconds(61, "1m01s");
    seconds(3599.6, "1h00m");
    seconds(3720, "1h02m");
    seconds(86399, "1d00h");
    seconds(2 * 86400 + 3 * 3600, "2d03h");
    seconds(-61, "-1m01s");
    seconds((double)INFINITY, "inf");
    seconds((double)NAN, "nan");
}

Test(units, format_count) {
    count(0, "0");
    count(999, "999");
    count(1000, "1,000");
    count(1234567, "1,234,567");
    count(-1234, "-1,234");
    count(INT64_MAX, "9,223,372,036,854,775,807");
    count(INT64_MIN, "-9,223,372,036,854,775,808");
}

Test(units, arithmetic) {
    size_t out = 0;
    cr_assert(zt_mul_size(1u << 20, 1u << 20, &out));
    cr_assert_eq(out, (size_t)1 << 40);
    cr_assert_not(zt_mul_size(SIZE_MAX / 2, 3, &out));
    cr_assert_eq(zt_round_up(513, 512), 1024);
    cr_assert_eq(zt_round_up(512, 512), 512);
    cr_assert_eq(zt_ceil_div(10, 3), 4);
}

Test(units, nearest) {
    static const char *const keys[] = {"steps", "seq_len", "local_batch_size", "global_batch_size"};
    cr_assert_str_eq(zt_nearest("step", keys, 4), "steps");
    cr_assert_str_eq(zt_nearest("sqe_len", keys, 4), "seq_len");
    cr_assert_str_eq(zt_nearest("Steps", keys, 4), "steps");
    cr_assert_str_eq(zt_nearest("local_batchsize", keys, 4), "local_batch_size");
    cr_assert_null(zt_nearest("banana", keys, 4));
    cr_assert_null(zt_nearest("x", keys, 4));
    cr_assert_null(zt_nearest("", keys, 4));
    cr_assert_null(zt_nearest("steps", keys, 0));
}

Test(error, fill_and_prefix) {
    struct zt_error e = {0};
    cr_assert_eq(zt_fail(&e, ZT_EINVAL, "%s: %d does not divide %d\n", "run.yaml:14:5", 3, 8),
                 ZT_EINVAL);
    cr_assert_eq(e.code, ZT_EINVAL);
    cr_assert_str_eq(e.msg, "run.yaml:14:5: 3 does not divide 8");
    cr_assert_eq(zt_fail_prefix(&e, "rank %d", 2), ZT_EINVAL);
    cr_assert_str_eq(e.msg, "rank 2: run.yaml:14:5: 3 does not divide 8");
    cr_assert_eq(zt_fail(&e, ZT_EIO, "again: %s", e.msg), ZT_EIO);
    cr_assert_str_eq(e.msg, "again: rank 2: run.yaml:14:5: 3 does not divide 8");
    cr_assert_eq(zt_fail(NULL, ZT_EIO, "nobody listens"), ZT_EIO);
}

Test(error, long_messages_are_cut_at_a_character) {
    struct zt_error e = {0};
    char text[4096];
    for (size_t i = 0; i + 1 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa4", 2);
    text[sizeof text - 2] = '\0';
    zt_fail(&e, ZT_EIO, "x%s", text);
    size_t n = strlen(e.msg);
    cr_assert(n < sizeof e.msg && n > sizeof e.msg - 8);
    cr_assert_str_eq(e.msg + n - 3, "...");
    cr_assert_eq((unsigned char)e.msg[n - 4], 0xa4); /* a whole character before the dots */
    zt_fail_prefix(&e, "rank %d", 7);
    cr_assert_eq(strncmp(e.msg, "rank 7: x", 9), 0);
    cr_assert_str_eq(e.msg + strlen(e.msg) - 3, "...");
}

Test(error, every_code_has_a_name) {
    for (int c = ZT_EINTERNAL; c <= 0; c++) cr_assert_str_neq(zt_code_name(c), "unknown");
    cr_assert_str_eq(zt_code_name(5), "unknown");
}

Test(error, assertions_stay_on, .signal = SIGABRT) { ZT_ASSERT(1 + 1 == 3); }
