/* SPDX-License-Identifier: Apache-2.0 */
/* From measured lines to an entry of the table of devices: lines made of a known machine give that machine
 * back; what is incomplete or no line of zworker's is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/calibrate.h"
#include "engine/plan/devices.h"

#define NEAR(a, b, relative) (fabs((double)(a) - (double)(b)) <= (relative)*fabs((double)(b)))

static struct zt_error err;
static struct zt_measurements m;

static void setup(void) { cr_assert_eq(zt_measurements_init(&m, &err), 0); }
static void teardown(void) { zt_measurements_free(&m); }
TestSuite(calibrate, .init = setup, .fini = teardown);

static void line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void line(const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cr_assert_eq(zt_measurements_add(&m, text, &err), 0, "%s: %s", text, err.msg);
}

static void operator(const char *op, const char *type, double flops, double bytes, double side, double head,
                     double seconds) {
    line("{\"operator\":\"%s\",\"how\":\"h\",\"type\":\"%s\",\"shape\":[1],\"flops\":%.17g,\"bytes\":%.17g,"
         "\"side\":%.17g,\"head\":%.17g,\"rounds\":3,\"seconds\":%.17g}",
         op, type, flops, bytes, side, head, seconds);
}

/* The machine: launch 2 us; GEMM 100 GFLOP/s (fp32), 200 (bf16), half at 64, no fp16; attention 50 and 40,
 * half at T 128 and D 32; memory 10 GB/s, 40 up to 8 MiB; 1e8 numbers/s; 1e9 elements/s. */
static void machine_lines(void) {
    const double launch = 2e-6;
    line("{\"machine\":{\"kernels\":\"avx2, test\",\"isa\":\"avx2\",\"ranks\":2,\"threads\":1,\"cores\":2,"
         "\"memory_bytes\":1000000000,\"resident_bytes\":50000000,\"computes_in\":{}}}");
    operator("launch", "fp32", 0, 8, 0, 0, launch);
    for (double side = 64; side <= 1024; side *= 4) {
        double flops = 2 * side * side * side;
        operator("gemm", "fp32", flops, 0, side, 0, launch + flops / 100e9 * (1 + 64 / side));
        operator("gemm", "bf16", flops, 0, side, 0, launch + flops / 200e9 * (1 + 64 / side));
    }
    static const double td[][2] = {{256, 32}, {256, 128}, {64, 64}, {256, 64}, {1024, 64}};
    for (int i = 0; i < 5; i++) {
        double T = td[i][0], D = td[i][1], flops = 2 * T * T * D, slow = (1 + 128 / T) * (1 + 32 / D);
        operator("attention_forward", "fp32", flops, 0, T, D, launch + flops / 50e9 * slow);
        operator("attention_backward", "fp32", 2.5 * flops, 0, T, D, launch + 2.5 * flops / 40e9 * slow);
    }
    for (double mib = 1; mib <= 64; mib *= 2)
        operator("copy", "fp32", 0, mib * 1048576, 0, 0, launch + mib * 1048576 / (mib <= 8 ? 40e9 : 10e9));
    operator("random", "fp32", 1e6, 4e6, 0, 0, launch + 1e-2);
    operator("rows", "fp32", 4e6, 0, 0, 0, launch + 4e-3);
    operator("rows", "fp32", 1e6, 0, 0, 0, launch + 1e-3);
}

/* alpha and B; on `links` links of a host at once */
static void link_lines(const char *link, int ranks, int per_host, double alpha, double B) {
    int links = strcmp(link, "across") == 0 ? per_host : 1;
    for (double bytes = 4096; bytes <= 1 << 24; bytes *= 16) {
        double sent = (ranks - 1.0) / ranks * bytes;
        line("{\"collective\":\"all_gather\",\"link\":\"%s\",\"ranks\":%d,\"per_host\":%d,\"bytes\":%.0f,"
             "\"sent_bytes\":%.17g,\"rounds\":%d,\"seconds\":%.17g}",
             link, ranks, per_host, bytes, sent, ranks - 1, (ranks - 1) * alpha + sent / (B * links));
    }
}

static struct zt_cost_device fitted(struct zt_devices **table) {
    struct zt_cost_device otherwise = {.within = {7, 8e9, 0}, .across = {9, 1e9, 0}};
    const struct zt_cost_device *d = NULL;
    json_t *entry = NULL;
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "2001-02-03", &otherwise, NULL, &entry, &err), 0, "%s", err.msg);
    json_t *file = json_pack("{s:i, s:[o]}", "version", 1, "devices", entry);
    char *text = json_dumps(file, 0);
    cr_assert_eq(zt_devices_builtin(table, &err), 0);
    cr_assert_eq(zt_devices_add_text(*table, text, strlen(text), "entry", &err), 0, "%s", err.msg);
    cr_assert_eq(zt_device_find(*table, "mine", &d, &err), 0);
    json_decref(file);
    free(text);
    return *d;
}

Test(calibrate, the_machine_that_made_the_times_comes_back) {
    struct zt_devices *table;
    machine_lines();
    link_lines("within", 4, 4, 1e-6, 5e9);
    link_lines("across", 4, 2, 2e-5, 1e9);
    line("{\"done\":true}");
    struct zt_cost_device d = fitted(&table);
    cr_assert(d.measured && d.measured_ranks == 2 && d.measured_threads == 1 && d.ranks_per_host == 2);
    cr_assert(d.memory_bytes == 1000000000 && d.outside_bytes == 50000000 && d.launch_ns == 2000);
    cr_assert(NEAR(d.flops[ZT_COST_GEMM][ZT_F32], 100e9, 1e-6) && NEAR(d.flops[ZT_COST_GEMM][ZT_BF16], 200e9, 1e-6));
    cr_assert_eq(d.flops[ZT_COST_GEMM][ZT_F16], 0);
    cr_assert(NEAR(d.half_side[ZT_COST_GEMM], 64, 1e-6));
    cr_assert(NEAR(d.flops[ZT_COST_ATTENTION_FORWARD][ZT_F32], 50e9, 1e-6) &&
              NEAR(d.flops[ZT_COST_ATTENTION_BACKWARD][ZT_F32], 40e9, 1e-6));
    cr_assert(NEAR(d.half_side[ZT_COST_ATTENTION_FORWARD], 128, 1e-6) &&
              NEAR(d.half_head[ZT_COST_ATTENTION_FORWARD], 32, 1e-6));
    cr_assert(NEAR(d.memory_bytes_per_second, 10e9, 1e-6) && NEAR(d.cached_bytes_per_second, 40e9, 1e-6) &&
              d.cache_bytes == 8 << 20);
    cr_assert(NEAR(d.flops[ZT_COST_RANDOM][ZT_F32], 1e8, 1e-6) && NEAR(d.flops[ZT_COST_ROWS][ZT_F32], 1e9, 1e-6));
    cr_assert(d.within.alpha_ns == 1000 && NEAR(d.within.bytes_per_second, 5e9, 1e-6));
    cr_assert(d.across.alpha_ns == 20000 && NEAR(d.across.bytes_per_second, 1e9, 1e-6));
    cr_assert(d.measured_comm_min == 4096 && d.measured_comm_max == 1 << 24);
    zt_devices_free(table);
}

/* What was measured is what is predicted: an operator and a collective of other sizes than the samples. */
Test(calibrate, predictions_are_the_machines_times) {
    struct zt_devices *table;
    machine_lines();
    link_lines("within", 4, 4, 1e-6, 5e9);
    link_lines("across", 4, 2, 2e-5, 1e9);
    line("{\"done\":true}");
    struct zt_cost_device d = fitted(&table);
    double ns = (double)zt_cost_ns(&d, zt_work_gemm(512, 700, 900, ZT_F32, ZT_F32, false));
    cr_assert(NEAR(ns, 2000 + 2.0 * 512 * 700 * 900 / 100 * (1 + 64. / 512), 1e-5));
    ns = (double)zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 4, 4, 1000000);
    cr_assert(NEAR(ns, 6 * 1000 + 1.5e6 / 5, 1e-5));
    ns = (double)zt_cost_collective_ns(&d, ZT_COST_ALL_REDUCE, 4, 2, 1000000);
    cr_assert(NEAR(ns, 6 * 20000 + 1.5e6 / 2, 1e-5));
    zt_devices_free(table);
}

Test(calibrate, links_that_were_not_measured_stay_what_they_were) {
    struct zt_devices *table;
    machine_lines();
    line("{\"cut\":\"small\"}");
    line("{\"done\":true}");
    struct zt_cost_device d = fitted(&table);
    cr_assert(d.within.alpha_ns == 7 && d.within.bytes_per_second == 8e9);
    cr_assert(d.across.alpha_ns == 9 && d.across.bytes_per_second == 1e9);
    cr_assert(d.measured_comm_min == 0 && d.measured_comm_max == 0);
    cr_assert_eq(json_array_size(m.cuts), 1);
    zt_devices_free(table);
}

/* First everything; then operators alone, by another machine; then one link alone: each part is the newest that
 * was measured of it. */
Test(calibrate, what_is_measured_later_leaves_the_rest_as_it_was) {
    struct zt_cost_device otherwise = {.within = {7, 8e9, 0}, .across = {9, 1e9, 0}};
    json_t *first = NULL, *second = NULL, *third = NULL, *mine;
    machine_lines();
    link_lines("within", 4, 4, 1e-6, 5e9);
    link_lines("across", 4, 2, 2e-5, 1e9);
    line("{\"done\":true}");
    snprintf(m.links, sizeof m.links, "here");
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "2001-01-01", &otherwise, NULL, &first, &err), 0, "%s", err.msg);
    json_array_clear(m.collectives);
    json_object_set_new(m.machine, "ranks", json_integer(3));
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "2002-02-02", &otherwise, first, &second, &err), 0, "%s", err.msg);
    mine = json_object_get(second, "measured");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "date")), "2002-02-02");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "links_date")), "2001-01-01");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "links")), "here");
    cr_assert_eq(json_integer_value(json_object_get(mine, "ranks")), 3);
    cr_assert(json_equal(json_object_get(second, "within"), json_object_get(first, "within")) &&
              json_equal(json_object_get(second, "across"), json_object_get(first, "across")));
    cr_assert_eq(json_integer_value(json_object_get(mine, "comm_max_bytes")), 1 << 24);
    json_decref(m.machine);
    m.machine = NULL;
    link_lines("across", 6, 2, 1e-3, 2e9);
    snprintf(m.links, sizeof m.links, "there");
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "2003-03-03", &otherwise, second, &third, &err), 0, "%s", err.msg);
    mine = json_object_get(third, "measured");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "date")), "2002-02-02");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "links_date")), "2003-03-03");
    cr_assert_str_eq(json_string_value(json_object_get(mine, "links")), "there");
    cr_assert(json_equal(json_object_get(third, "within"), json_object_get(first, "within")) &&
              json_equal(json_object_get(third, "gemm"), json_object_get(second, "gemm")));
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(third, "across"), "alpha_ns")), 1000000);
    json_decref(first);
    json_decref(second);
    json_decref(third);
}

Test(calibrate, a_measurement_without_its_end_is_refused) {
    struct zt_cost_device otherwise = {0};
    json_t *entry = NULL;
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "d", &otherwise, NULL, &entry, &err), ZT_EPROTO);
    machine_lines();
    cr_assert_eq(zt_calibrate_entry(&m, "mine", "d", &otherwise, NULL, &entry, &err), ZT_EPROTO);
    cr_assert_null(entry);
}

Test(calibrate, lines_of_others_are_refused) {
    static const char *const bad[] = {"", "hello", "{}", "[1]", "{\"operator\":\"gemm\"}", "{\"done\":false}",
                                      "{\"operator\":\"gemm\",\"seconds\":0}", "{\"collective\":5,\"seconds\":1}",
                                      "{\"cut\":5}", "{\"machine\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(zt_measurements_add(&m, bad[i], &err), ZT_EPROTO, "%s", bad[i]);
}
