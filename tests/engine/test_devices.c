/* SPDX-License-Identifier: Apache-2.0 */
/* The table of devices: figures of the data sheets, and rates reached as published; files of the
 * user win; whatever is wrong in a file is refused with its place; an entry is replaced as a whole.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/plan/devices.h"

static struct zt_error err;
static struct zt_devices *table;

static void setup(void) { cr_assert_eq(zt_devices_builtin(&table, &err), 0, "%s", err.msg); }
static void teardown(void) { zt_devices_free(table); }
TestSuite(devices, .init = setup, .fini = teardown);

static const struct zt_cost_device *get(const char *name) {
    const struct zt_cost_device *d = NULL;
    cr_assert_eq(zt_device_find(table, name, &d, &err), 0, "%s", err.msg);
    return d;
}

/* Data sheets: dense bf16, memory bandwidth, NVLink and network per direction: nothing reached may
 * be above them, and a rate below 40 % of them is a slip of a digit. */
Test(devices, reached_rates_are_below_the_data_sheets) {
    static const struct {
        const char *name;
        double bf16, memory, nvlink, network;
        double gib;
    } sheets[] = {{"a100-80", 312e12, 2.039e12, 300e9, 25e9, 80},
                  {"h100-80", 989e12, 3.35e12, 450e9, 50e9, 80},
                  {"h100-96", 989e12, 4.0e12, 450e9, 50e9, 96},
                  {"h200", 989e12, 4.8e12, 450e9, 50e9, 141},
                  {"b200", 2.25e15, 8e12, 900e9, 50e9, 180}};
    for (size_t i = 0; i < sizeof sheets / sizeof sheets[0]; i++) {
        const struct zt_cost_device *d = get(sheets[i].name);
        const double got[][2] = {{d->flops[ZT_COST_GEMM][ZT_BF16], sheets[i].bf16},
                                 {d->memory_bytes_per_second, sheets[i].memory},
                                 {d->within.bytes_per_second, sheets[i].nvlink},
                                 {d->across.bytes_per_second, sheets[i].network},
                                 {(double)d->memory_bytes, sheets[i].gib * (1 << 30)}};
        for (int k = 0; k < 5; k++)
            cr_assert(got[k][0] <= got[k][1] && got[k][0] > 0.4 * got[k][1], "%s %d: %g of %g",
                      d->name, k, got[k][0], got[k][1]);
        cr_assert_eq(d->peak_flops[ZT_BF16], sheets[i].bf16);
        cr_assert(d->queued && d->host_ns > 0 && d->ranks_per_host == 8 && !d->measured);
        cr_assert(d->outside_bytes > 1 << 30 && strstr(d->outside_source, "assumed"));
    }
    cr_assert(!get("cpu")->queued && strstr(get("cpu")->title, "a guess"));
}

static double tflops(const struct zt_cost_device *d, struct zt_cost_work w) {
    return w.flops / (double)(zt_cost_ns(d, w) - d->launch_ns) * 1e-3;
}

/* H200: a GEMM of 8192 on random data 769 to 798 TFLOP/s; K = 768 about 15 % under 790; cuDNN's
 * causal attention, head width 64 and 128, by length. */
Test(devices, h200_is_as_measured) {
    const struct zt_cost_device *d = get("h200");
    double big = tflops(d, zt_work_gemm(8192, 8192, 8192, ZT_BF16, ZT_BF16, false));
    double k768 = tflops(d, zt_work_gemm(65536, 3072, 768, ZT_BF16, ZT_BF16, false));
    cr_assert(big > 785 && big < 795, "%g", big);
    cr_assert(k768 > 0.80 * 790 && k768 < 0.90 * 790, "%g", k768);
    static const struct {
        bool backward;
        int D, T;
        double want, within;
    } rows[] = {{false, 64, 1024, 290, .16},  {false, 64, 2048, 340, .16},
                {false, 64, 8192, 400, .16},  {false, 128, 2048, 484, .16},
                {false, 128, 4096, 591, .16}, {false, 128, 16384, 673, .16},
                {true, 64, 1024, 300, .25},   {true, 64, 8192, 350, .25},
                {true, 128, 2048, 370, .26},  {true, 128, 8192, 541, .25}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double got =
            tflops(d, zt_work_attention(rows[i].backward, 8, rows[i].T, 16, 16, rows[i].D, ZT_BF16));
        cr_assert(fabs(got / rows[i].want - 1) <= rows[i].within, "D %d T %d: %g, published %g",
                  rows[i].D, rows[i].T, got, rows[i].want);
    }
    /* 8 ranks: 370e9 on the ring, 480e9 busbw where the switch adds; 16 GB: 14e9 and 28e9 sent */
    int64_t gather = zt_cost_collective_ns(d, ZT_COST_ALL_GATHER, 8, 8, 16000000000);
    int64_t reduce = zt_cost_collective_ns(d, ZT_COST_ALL_REDUCE, 8, 8, 16000000000);
    cr_assert(fabs((double)gather * 1e-9 - 14.0 / 370) < 1e-4);
    cr_assert(fabs((double)reduce * 1e-9 - 28.0 / 480) < 1e-4);
}

Test(devices, an_unknown_name_is_answered_with_the_nearest_and_all) {
    const struct zt_cost_device *d;
    cr_assert_eq(zt_device_find(table, "h20", &d, &err), ZT_ENOTFOUND);
    cr_assert(strstr(err.msg, "did you mean \"h200\"") && strstr(err.msg, "a100-80") &&
                  strstr(err.msg, "b200") && strstr(err.msg, "cpu"),
              "%s", err.msg);
    cr_assert_eq(zt_device_find(table, "a quantum computer", &d, &err), ZT_ENOTFOUND);
    cr_assert(!strstr(err.msg, "did you mean") && strstr(err.msg, "h100-96"), "%s", err.msg);
}

/* ---- strictness ---- */

static const char entry[] =
    "{\"name\": \"mine\", \"title\": \"a machine\", \"queued\": false,"
    " \"memory\": {\"bytes\": 1000000000, \"source\": \"s\"},"
    " \"outside\": {\"bytes\": 5, \"source\": \"assumed\"},"
    " \"launch\": {\"device_ns\": 7, \"host_ns\": 8, \"source\": \"s\"},"
    " \"copy\": {\"bytes_per_second\": 1e10, \"cache_bytes\": 11, \"cached_bytes_per_second\": "
    "2e10, "
    "\"source\": \"s\"},"
    " \"gemm\": {\"fp32\": 1e11, \"bf16\": 2e11, \"half_side\": 12, \"source\": \"s\"},"
    " \"attention_forward\": {\"fp32\": 3e10, \"half_side\": 13, \"half_head\": 14, \"source\": "
    "\"s\"},"
    " \"attention_backward\": {\"fp32\": 4e10, \"source\": \"s\"},"
    " \"random\": {\"fp32\": 1e8, \"source\": \"s\"},"
    " \"hosts\": {\"ranks\": 2, \"source\": \"s\"},"
    " \"within\": {\"alpha_ns\": 15, \"bytes_per_second\": 5e9, \"source\": \"s\"},"
    " \"across\": {\"alpha_ns\": 16, \"bytes_per_second\": 6e9, \"source\": \"s\"},"
    " \"measured\": {\"date\": \"d\", \"ranks\": 2, \"threads\": 1, \"comm_min_bytes\": 4096, "
    "\"comm_max_bytes\": 65536, \"source\": \"s\"}}";

/* The entry with the first `from` in it replaced by `to`, as a file. */
static int with(const char *from, const char *to) {
    static char text[8192];
    const char *at = from[0] ? strstr(entry, from) : entry;
    cr_assert(at, "%s is not in the entry", from);
    int n = snprintf(text, sizeof text, "{\"version\": 1, \"devices\": [%.*s%s%s]}",
                     (int)(at - entry), entry, to, at + strlen(from));
    return zt_devices_add_text(table, text, (size_t)n, "my.json", &err);
}

Test(devices, every_figure_arrives) {
    cr_assert_eq(with("", ""), 0, "%s", err.msg);
    const struct zt_cost_device *d = get("mine");
    cr_assert_str_eq(d->title, "a machine");
    cr_assert_str_eq(d->outside_source, "assumed");
    cr_assert(!d->queued && d->measured && d->measured_ranks == 2 && d->measured_threads == 1);
    cr_assert(d->memory_bytes == 1000000000 && d->outside_bytes == 5 && d->launch_ns == 7 &&
              d->host_ns == 8 && d->ranks_per_host == 2);
    cr_assert(d->memory_bytes_per_second == 1e10 && d->cache_bytes == 11 &&
              d->cached_bytes_per_second == 2e10);
    cr_assert(d->flops[ZT_COST_GEMM][ZT_F32] == 1e11 && d->flops[ZT_COST_GEMM][ZT_BF16] == 2e11 &&
              d->flops[ZT_COST_GEMM][ZT_F16] == 0 && d->half_side[ZT_COST_GEMM] == 12);
    cr_assert(d->flops[ZT_COST_ATTENTION_FORWARD][ZT_F32] == 3e10 &&
              d->half_side[ZT_COST_ATTENTION_FORWARD] == 13 &&
              d->half_head[ZT_COST_ATTENTION_FORWARD] == 14 &&
              d->flops[ZT_COST_ATTENTION_BACKWARD][ZT_F32] == 4e10 &&
              d->flops[ZT_COST_RANDOM][ZT_F32] == 1e8);
    cr_assert(d->within.alpha_ns == 15 && d->within.bytes_per_second == 5e9 &&
              d->across.alpha_ns == 16 && d->across.bytes_per_second == 6e9);
    cr_assert(d->measured_comm_min == 4096 && d->measured_comm_max == 65536);
}

Test(devices, what_is_wrong_is_refused_with_file_and_place) {
    static const struct {
        const char *from, *to, *says;
    } rows[] = {
        {"\"queued\": false", "\"queued\": false, \"queud\": true",
         "queud: unknown key; did you mean queued"},
        {"\"device_ns\"", "\"device_n\"", "launch.device_n: unknown key; did you mean device_ns"},
        {"\"bytes\": 1000000000", "\"bytes\": -1", "memory.bytes: -1 is not"},
        {"\"bytes\": 1000000000", "\"bytes\": 1.5", "memory.bytes: expected a whole number"},
        {"\"bytes\": 1000000000", "\"bytes\": \"80GB\"", "memory.bytes: expected a number"},
        {"\"bytes\": 1000000000", "\"bytes\": NaN", "my.json:1:"},
        {"\"bytes_per_second\": 1e10", "\"bytes_per_second\": 1e999", "my.json:1:"},
        {"\"bytes_per_second\": 1e10", "\"bytes_per_second\": -Infinity", "my.json:1:"},
        {"\"bytes_per_second\": 1e10", "\"bytes_per_second\": 0",
         "copy.bytes_per_second: 0 is not"},
        {"\"half_side\": 12", "\"half_side\": -12", "gemm.half_side: -12"},
        {"\"fp32\": 1e11, ", "", "gemm in fp32 is missing"},
        {"\"bytes\": 5, \"source\": \"assumed\"", "\"bytes\": 5", "outside.source: missing"},
        {"\"bytes\": 5, \"source\": \"assumed\"", "\"bytes\": 5, \"source\": \"\"",
         "outside.source: missing"},
        {"\"ranks\": 2, \"source\"", "\"ranks\": 0, \"source\"", "hosts.ranks: 0 is not"},
        {"\"alpha_ns\": 15", "\"alpha_ns\": 15, \"alpha_ns\": 15", "duplicate"},
        {"\"name\": \"mine\"", "\"name\": \"My machine\"", "lower-case"},
        {"\"name\": \"mine\"", "\"name\": \"\"", "name: missing"},
        {"\"title\": \"a machine\",", "", "title: missing"},
        {"\"queued\": false,", "", "queued: missing"},
        {"\"random\": {\"fp32\": 1e8, \"source\": \"s\"},", "", "random: missing"},
        {"\"memory\": {", "\"memory\": 5, \"copy2\": {", "unknown key"},
        {"\"date\": \"d\"", "\"date\": 5", "measured.date: expected a text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int n = zt_devices_count(table);
        cr_assert_eq(with(rows[i].from, rows[i].to), ZT_EINVAL, "%s is accepted", rows[i].to);
        cr_assert(strstr(err.msg, rows[i].says) && strstr(err.msg, "my.json"), "%s\nwant %s",
                  err.msg, rows[i].says);
        cr_assert_eq(zt_devices_count(table), n);
    }
}

Test(devices, the_frame_of_a_file_is_checked) {
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"version\": 2, \"devices\": []}",
                                      "{\"version\": 1}",
                                      "{\"version\": 1, \"devices\": {}}",
                                      "{\"version\": 1, \"devices\": [5]}",
                                      "{\"version\": 1, \"devices\": [], \"more\": 1}",
                                      "{\"version\": 1, \"devices\": []} x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(zt_devices_add_text(table, bad[i], strlen(bad[i]), "f", &err), ZT_EINVAL, "%s",
                     bad[i]);
    static char twice[2 * sizeof entry + 100];
    int n = snprintf(twice, sizeof twice, "{\"version\": 1, \"devices\": [%s, %s]}", entry, entry);
    cr_assert_eq(zt_devices_add_text(table, twice, (size_t)n, "f", &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "devices[1] (mine)"), "%s", err.msg);
}

/* ---- what to know of the times ---- */

static char said[1024];
static void keep(void *arg, const char *sentence) {
    size_t n = strlen(said);
    (void)arg;
    snprintf(said + n, sizeof said - n, "%s\n", sentence);
}
static const char *caveats(const struct zt_cost_device *d, int ranks, int64_t least, int64_t most) {
    said[0] = '\0';
    zt_device_caveats(d, ranks, least, most, keep, NULL);
    return said;
}

/* The entry was measured with 2 ranks, messages of 4 KiB to 64 KiB. */
Test(devices, times_outside_of_what_was_measured_are_told) {
    cr_assert_eq(with("", ""), 0, "%s", err.msg);
    struct zt_cost_device d = *get("mine");
    cr_assert_str_eq(caveats(&d, 2, 4096, 65536), "");
    cr_assert_str_eq(caveats(&d, 2, 0, 0), "");
    cr_assert(strstr(caveats(&d, 2, 4096, 65537), "measured from 4.00 KiB to 64.00 KiB"), "%s",
              said);
    cr_assert(strstr(caveats(&d, 2, 4095, 65536), "measured from 4.00 KiB"), "%s", said);
    cr_assert(strstr(caveats(&d, 4, 4096, 65536), "measured with 2 at once, 4 are"), "%s", said);
    d.measured_comm_min = d.measured_comm_max = 0;
    cr_assert(strstr(caveats(&d, 2, 4096, 65536), "not measured"), "%s", said);
    cr_assert_str_eq(caveats(&d, 2, 0, 0), "");
    cr_assert(strstr(caveats(get("cpu"), 1, 0, 0), "a guess"), "%s", said);
    cr_assert_str_eq(caveats(get("h200"), 8, 1, 1), "");
}

/* ---- files ---- */

static char folder[64], path[128];

static void use_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/zt-devices-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state", folder);
    setenv("XDG_STATE_HOME", path, 1);
    snprintf(path, sizeof path, "%s/config", folder);
    setenv("XDG_CONFIG_HOME", path, 1);
}

static void drop_folder(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}

Test(devices, calibrated_entries_win_over_built_in_ones_and_the_users_over_both) {
    char state[256], config[256], changed[sizeof entry];
    use_folder();
    cr_assert_eq(zt_devices_state_path(state, sizeof state, &err), 0);
    cr_assert_eq(zt_devices_config_path(config, sizeof config, &err), 0);
    cr_assert(strstr(state, "/state/ztrain/devices.json") &&
              strstr(config, "/config/ztrain/devices.json"));
    cr_assert_eq(zt_devices_write(state, entry, &err), 0, "%s", err.msg);
    teardown();
    cr_assert_eq(zt_devices_load(&table, &err), 0, "%s", err.msg);
    cr_assert_eq(get("mine")->memory_bytes, 1000000000);
    cr_assert(get("h200"));
    memcpy(changed, entry, sizeof entry);
    memcpy(strstr(changed, "1000000000"), "2000000000", 10);
    cr_assert_eq(zt_devices_write(config, changed, &err), 0, "%s", err.msg);
    teardown();
    cr_assert_eq(zt_devices_load(&table, &err), 0, "%s", err.msg);
    cr_assert_eq(get("mine")->memory_bytes, 2000000000);
    /* written again: replaced, not added */
    cr_assert_eq(zt_devices_write(state, changed, &err), 0, "%s", err.msg);
    struct zt_devices *alone;
    cr_assert_eq(zt_devices_builtin(&alone, &err), 0);
    int n = zt_devices_count(alone);
    cr_assert_eq(zt_devices_add_file(alone, state, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_devices_count(alone), n + 1);
    zt_devices_free(alone);
    drop_folder();
}

Test(devices, a_file_with_errors_is_named_and_left_alone) {
    char state[256], text[16] = "";
    use_folder();
    cr_assert_eq(zt_devices_state_path(state, sizeof state, &err), 0);
    cr_assert_eq(zt_devices_write(state, "{\"name\": 5}", &err), ZT_EINVAL);
    cr_assert(access(state, F_OK) != 0);
    cr_assert_eq(zt_devices_write(state, entry, &err), 0, "%s", err.msg);
    FILE *f = fopen(state, "w");
    fputs("{broken", f);
    fclose(f);
    cr_assert_eq(zt_devices_write(state, entry, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, state) && strstr(err.msg, "nothing was written"), "%s", err.msg);
    f = fopen(state, "r");
    cr_assert(fgets(text, sizeof text, f));
    fclose(f);
    cr_assert_str_eq(text, "{broken");
    struct zt_devices *none = NULL;
    cr_assert_eq(zt_devices_load(&none, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, state) && !none, "%s", err.msg);
    drop_folder();
}
