/* SPDX-License-Identifier: Apache-2.0 */
/* zctl calibrate as a user types it, with a tiny budget: it measures, writes an entry that is then in the
 * table, leaves no process and no file behind, and refuses what it cannot do. No time is asserted: only
 * that what was printed fits together. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/integration/harness.h"

static struct cluster c;
static char path[400];

static void setup(void) {
    cluster_init(&c);
    setenv("TMPDIR", c.dir, 1);
    snprintf(path, sizeof path, "%s/xdg/ztrain/devices.json", c.dir);
}
static void teardown(void) { cluster_stop(&c); }
TestSuite(calibrate, .init = setup, .fini = teardown);

static double at(const json_t *o, const char *group, const char *key) {
    return json_number_value(json_object_get(json_object_get(o, group), key));
}

static json_t *entry_of_file(const char *name, size_t of) {
    json_t *root = json_load_file(path, 0, NULL);
    json_t *list = json_object_get(root, "devices"), *o, *found = NULL;
    size_t i;
    cr_assert(root, "no %s", path);
    cr_assert_eq(json_array_size(list), of);
    json_array_foreach(list, i, o) if (!strcmp(json_string_value(json_object_get(o, "name")), name)) found =
        json_incref(o);
    cr_assert(found, "no %s in %s", name, path);
    json_decref(root);
    return found;
}

static void expect_measured(const json_t *o, int ranks, int threads) {
    const json_t *mine = json_object_get(o, "measured");
    cr_assert_eq(json_integer_value(json_object_get(mine, "ranks")), ranks);
    cr_assert_eq(json_integer_value(json_object_get(mine, "threads")), threads);
    cr_assert_eq(strlen(json_string_value(json_object_get(mine, "date"))), 10);
    cr_assert(json_string_length(json_object_get(mine, "isa")) > 0);
    cr_assert(strstr(json_string_value(json_object_get(mine, "kernels")), "thread"));
    cr_assert(json_array_size(json_object_get(mine, "operators")) > 30);
    cr_assert(at(o, "gemm", "fp32") > 1e6 && at(o, "attention_forward", "fp32") > 1e6);
    cr_assert(at(o, "copy", "bytes_per_second") > 1e6 && at(o, "random", "fp32") > 1e3);
    cr_assert(at(o, "outside", "bytes") > 1e6 && at(o, "memory", "bytes") > 1e6);
}

Test(calibrate, this_machine_is_measured_and_written) {
    struct output o = zctl(&c, 240, "calibrate --duration 0.2 --threads 1 --device here");
    cr_assert_eq(o.code, 0, "%s", o.err);
    cr_assert(strstr(o.out, "here: this machine") && strstr(o.out, "gemm") && strstr(o.err, path), "%s%s", o.out,
              o.err);
    cr_assert(strstr(o.out, "note: only small shapes"), "%s", o.out);
    output_free(&o);
    json_t *entry = entry_of_file("here", 1);
    expect_measured(entry, 1, 1);
    /* no link was measured: it says so, and no range */
    cr_assert(strstr(json_string_value(json_object_get(json_object_get(entry, "within"), "source")), "not measured"));
    cr_assert_null(json_object_get(json_object_get(entry, "measured"), "comm_max_bytes"));
    json_decref(entry);
}

/* Collectives on two links; busbw of the printed times; a second entry beside the first, which stays. */
Test(calibrate, links_within_and_across_hosts) {
    struct output o = zctl(&c, 240, "calibrate --duration 0.2 --threads 1 --device here");
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    o = zctl(&c, 240, "calibrate --duration 0.4 --threads 1 --workers 2 --comm");
    cr_assert_eq(o.code, 0, "%s", o.err);
    cr_assert(strstr(o.out, "within a host") && strstr(o.out, "across hosts") && strstr(o.out, "algbw = bytes / time") &&
                  strstr(o.out, "2(n-1)/n"),
              "%s", o.out);
    output_free(&o);
    json_decref(entry_of_file("here", 2));
    json_t *entry = entry_of_file("cpu", 2), *mine = json_object_get(entry, "measured"), *row;
    json_t *rows = json_object_get(mine, "collectives");
    size_t i, n[2] = {0, 0};
    expect_measured(entry, 2, 1);
    cr_assert_eq(at(entry, "measured", "comm_min_bytes"), 4096);
    cr_assert(at(entry, "measured", "comm_max_bytes") >= 65536);
    cr_assert(at(entry, "within", "bytes_per_second") > 1e5 && at(entry, "across", "bytes_per_second") > 1e5);
    json_array_foreach(rows, i, row) {
        double bytes = json_number_value(json_object_get(row, "bytes"));
        bool reduce = !strcmp(json_string_value(json_object_get(row, "collective")), "all_reduce");
        n[!strcmp(json_string_value(json_object_get(row, "link")), "across")]++;
        cr_assert_eq(json_number_value(json_object_get(row, "sent_bytes")), reduce ? bytes : bytes / 2);
        cr_assert_eq(json_integer_value(json_object_get(row, "rounds")), reduce ? 2 : 1);
    }
    cr_assert(n[0] >= 9 && n[1] >= 9 && n[0] % 3 == 0 && n[1] % 3 == 0);
    json_decref(entry);
    /* a plan now uses it, and says what of its messages nobody measured: gradients of 50 MB */
    char run[512];
    snprintf(run, sizeof run, "%s", cluster_run_file(&c, "run", 2, 2, ""));
    o = zctl(&c, 60, "plan %s --workers 2 --set model.dim=1024", run);
    cr_assert(o.code == 0 && !strstr(o.out, "are a guess"), "%d %s %s", o.code, o.out, o.err);
    cr_assert(strstr(o.out, "cpu was measured from 4.00 KiB to"), "%s", o.out);
    output_free(&o);
}

/* Between connected workers of two hosts: a run of its own; the operators of the entry stay. */
Test(calibrate, links_of_connected_workers) {
    static const char *const where[] = {"--host host-a --address 127.0.0.2", "--host host-a --address 127.0.0.2",
                                        "--host host-b --address 127.0.0.3", "--host host-b --address 127.0.0.3"};
    cluster_start_coord(&c);
    for (int i = 0; i < 4; i++) cluster_start_worker(&c, i, where[i]);
    cluster_wait_idle(&c, 4);
    struct output o = zctl(&c, 60, "calibrate --comm --coord 127.0.0.1:%d", c.port);
    cr_assert(o.code != 0 && strstr(o.err, "no operators were measured") && strstr(o.err, "run zctl calibrate"), "%s",
              o.err);
    output_free(&o);
    o = zctl(&c, 240, "calibrate --duration 0.2 --threads 1");
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    json_t *before = entry_of_file("cpu", 1);
    o = zctl(&c, 240, "calibrate --duration 1 --comm --coord 127.0.0.1:%d", c.port);
    cr_assert_eq(o.code, 0, "%s%s", o.out, o.err);
    cr_assert(strstr(o.out, "within a host, 2 ranks") && strstr(o.out, "across hosts, 4 ranks") &&
                  strstr(o.out, "measured between 4 connected workers"),
              "%s", o.out);
    output_free(&o);
    json_t *entry = entry_of_file("cpu", 1), *row;
    cr_assert(json_equal(json_object_get(entry, "gemm"), json_object_get(before, "gemm")));
    cr_assert(json_equal(json_object_get(json_object_get(entry, "measured"), "operators"),
                         json_object_get(json_object_get(before, "measured"), "operators")));
    size_t i, n[2] = {0, 0};
    json_array_foreach(json_object_get(json_object_get(entry, "measured"), "collectives"), i, row) {
        bool across = !strcmp(json_string_value(json_object_get(row, "link")), "across");
        double bytes = json_number_value(json_object_get(row, "bytes")), ranks = across ? 4 : 2;
        bool reduce = !strcmp(json_string_value(json_object_get(row, "collective")), "all_reduce");
        n[across]++;
        cr_assert_eq(json_integer_value(json_object_get(row, "ranks")), (int)ranks);
        cr_assert_eq(json_integer_value(json_object_get(row, "per_host")), 2);
        cr_assert_float_eq(json_number_value(json_object_get(row, "sent_bytes")),
                           (reduce ? 2 : 1) * (ranks - 1) / ranks * bytes, 1e-6 * bytes);
    }
    cr_assert(n[0] >= 9 && n[1] >= 9 && n[0] % 3 == 0 && n[1] % 3 == 0, "%zu %zu", n[0], n[1]);
    json_decref(entry);
    json_decref(before);
    o = zctl(&c, 60, "calibrate --coord 127.0.0.1:%d", c.port);
    cr_assert(o.code == 2 && strstr(o.err, "--comm"), "%d %s", o.code, o.err);
    output_free(&o);
}

Test(calibrate, what_it_cannot_do_is_refused_before_measuring) {
    struct output o = zctl(&c, 60, "calibrate --device Not-A-Name");
    cr_assert_eq(o.code, 2, "%s", o.err);
    cr_assert(strstr(o.err, "lower-case"), "%s", o.err);
    output_free(&o);
    o = zctl(&c, 60, "calibrate -o csv");
    cr_assert_eq(o.code, 2, "%s", o.err);
    output_free(&o);
    o = zctl(&c, 60, "calibrate --duration nan");
    cr_assert_eq(o.code, 2, "%s", o.err);
    output_free(&o);
    cr_assert(access(path, F_OK) != 0);
}

/* Time is up: no process is left (cluster_stop looks), nothing is written. */
Test(calibrate, a_timeout_ends_what_it_started) {
    struct output o = zctl(&c, 60, "calibrate --duration 300 --threads 1 --workers 2 --timeout 1");
    cr_assert_eq(o.code, 124, "%d %s", o.code, o.err);
    output_free(&o);
    cr_assert(access(path, F_OK) != 0);
}

/* A table with errors is named and left alone. */
Test(calibrate, a_broken_table_is_left_alone) {
    char folder[1000], text[16] = "";
    snprintf(folder, sizeof folder, "mkdir -p %s/xdg/ztrain && printf '{broken' > %s", c.dir, path);
    cr_assert_eq(system(folder), 0);
    struct output o = zctl(&c, 240, "calibrate --duration 0.1 --threads 1");
    cr_assert_eq(o.code, 2, "%d %s", o.code, o.err);
    cr_assert(strstr(o.err, path), "%s", o.err);
    output_free(&o);
    FILE *f = fopen(path, "r");
    cr_assert(f && fgets(text, sizeof text, f));
    fclose(f);
    cr_assert_str_eq(text, "{broken");
}
