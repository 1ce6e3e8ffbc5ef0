/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/calibrate.c: `zctl calibrate`: zworker measures, in processes of its own (kernels are no part
 * of zctl); this fits, writes the entry and shows it. */
#include "clients/zctl/calibrate.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "clients/zctl/children.h"
#include "clients/zctl/cmd.h"
#include "core/units.h"
#include "engine/plan/devices.h"

#define DEFAULT_SECONDS 30.0
#define LINE_MOST 8192

/* ---------------------------------------------------------------------------------- measuring */

static int start(const struct zt_options *o, struct zt_child *c, int *out, struct zt_error *err) {
    int rc = zt_child_program("zworker", "worker", c->program, sizeof c->program, err);
    if (rc)
        return rc;
    const char *folder = getenv("TMPDIR");
    snprintf(c->log, sizeof c->log, "%s/zctl-calibrate-XXXXXX", folder && folder[0] == '/' ? folder : "/tmp");
    int fd = mkstemp(c->log);
    if (fd < 0)
        return zt_fail(err, ZT_EIO, "cannot write %s: %s", c->log, strerror(errno));
    close(fd);
    zt_child_arg(c, "zworker");
    zt_child_arg(c, "--calibrate");
    zt_child_arg(c, "%.17g", o->seconds > 0 ? o->seconds : DEFAULT_SECONDS);
    zt_child_arg(c, "--ranks");
    zt_child_arg(c, "%d", o->workers > 0 ? o->workers : 1);
    if (o->threads > 0) {
        zt_child_arg(c, "--threads");
        zt_child_arg(c, "%d", o->threads);
    }
    if (o->comm)
        zt_child_arg(c, "--comm");
    return zt_child_start(c, out, err);
}

/* Every whole line of buf; what is left of the last moves to the front. */
static int take_lines(char *buf, size_t *n, struct zt_measurements *m, struct zt_error *err) {
    char *line = buf, *end;
    int rc = 0;
    while (rc == 0 && (end = memchr(line, '\n', *n - (size_t)(line - buf)))) {
        *end = '\0';
        rc = zt_measurements_add(m, line, err);
        line = end + 1;
    }
    *n -= (size_t)(line - buf);
    memmove(buf, line, *n);
    return rc ? rc : *n < LINE_MOST ? 0 : zt_fail(err, ZT_EPROTO, "zworker's line has no end");
}

static int read_all(const struct zt_options *o, struct zt_child *c, int fd, struct zt_measurements *m,
                    struct zt_error *err) {
    char buf[LINE_MOST + 1], tail[800], how[32];
    double deadline = o->timeout > 0 ? zt_now() + o->timeout : 0;
    size_t n = 0;
    int status = 0, rc = 0;
    for (ssize_t got = 1; rc == 0 && got != 0;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (deadline > 0 && zt_now() > deadline)
            return zt_fail(err, ZT_ETIMEOUT, "the measurement took longer than --timeout %g s", o->timeout);
        if (poll(&p, 1, 200) <= 0)
            continue;
        got = read(fd, buf + n, LINE_MOST - n);
        n += got > 0 ? (size_t)got : 0;
        rc = take_lines(buf, &n, m, err);
    }
    if (rc)
        return rc;
    for (double end = zt_now() + 10; !zt_child_ended(c, &status);) {
        if (zt_now() > end)
            return zt_fail(err, ZT_EIO, "zworker --calibrate does not end");
        zt_pause(0.01);
    }
    if (status != 0)
        return zt_fail(err, ZT_EIO, "the measurement failed (%s):\n%s", zt_child_status(status, how, sizeof how),
                       zt_child_tail(c, tail, sizeof tail));
    return 0;
}

static int measure(const struct zt_options *o, struct zt_measurements *m, struct zt_error *err) {
    static struct zt_child child;
    int fd = -1;
    snprintf(m->links, sizeof m->links, "processes of one host; across: two host names on loopback addresses");
    int rc = start(o, &child, &fd, err);
    if (rc == 0)
        rc = read_all(o, &child, fd, m, err);
    zt_child_stop(&child, 0);
    if (fd >= 0)
        close(fd);
    if (child.log[0])
        unlink(child.log);
    return rc;
}

/* ---------------------------------------------------------------------------------- showing */

static double at(const json_t *o, const char *group, const char *key) {
    return json_number_value(json_object_get(json_object_get(o, group), key));
}

static void show_rates(FILE *out, const json_t *entry) {
    static const struct { const char *group, *unit; double scale; } rows[] = {
        {"gemm", "GFLOP/s", 1e9}, {"attention_forward", "GFLOP/s", 1e9}, {"attention_backward", "GFLOP/s", 1e9},
        {"rows", "G elements/s", 1e9}};
    fprintf(out, "%-20s %9s %9s %9s  %-13s %9s %9s  %s\n", "rate of large ones", "fp32", "bf16", "fp16", "",
            "half side", "half head", "off by (fp32)");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64], error[32] = "";
        snprintf(name, sizeof name, "%s fp32", rows[i].group);
        double e = json_number_value(
            json_object_get(json_object_get(json_object_get(entry, "measured"), "errors"), name));
        if (e > 0)
            snprintf(error, sizeof error, "%.0f %%", 100 * e);
        fprintf(out, "%-20s %9.3g %9.3g %9.3g  %-13s %9.3g %9.3g  %s\n", rows[i].group,
                at(entry, rows[i].group, "fp32") / rows[i].scale, at(entry, rows[i].group, "bf16") / rows[i].scale,
                at(entry, rows[i].group, "fp16") / rows[i].scale, rows[i].unit, at(entry, rows[i].group, "half_side"),
                at(entry, rows[i].group, "half_head"), error);
    }
    fprintf(out, "memory (read + write) %.3g GB/s", at(entry, "copy", "bytes_per_second") / 1e9);
    if (at(entry, "copy", "cached_bytes_per_second") > 0)
        fprintf(out, ", up to %.3g MiB moved %.3g GB/s", at(entry, "copy", "cache_bytes") / (double)ZT_MIB,
                at(entry, "copy", "cached_bytes_per_second") / 1e9);
    fprintf(out, "; drawing %.3g M numbers/s; launch %.3g us; outside the allocator %.3g MiB\n",
            at(entry, "random", "fp32") / 1e6, at(entry, "launch", "device_ns") / 1e3,
            at(entry, "outside", "bytes") / (double)ZT_MIB);
}

static enum zt_cost_coll kind_of(const char *name) {
    return strcmp(name, "all_gather") == 0       ? ZT_COST_ALL_GATHER
           : strcmp(name, "reduce_scatter") == 0 ? ZT_COST_REDUCE_SCATTER
                                                 : ZT_COST_ALL_REDUCE;
}

static void show_link(FILE *out, const json_t *entry, const json_t *collectives, const char *link, const char *title) {
    char name[64], bytes[32], seconds[32];
    json_t *o;
    size_t i;
    bool first = true;
    snprintf(name, sizeof name, "link %s", link);
    json_array_foreach(collectives, i, o) {
        const char *kind = json_string_value(json_object_get(o, "collective"));
        double s = json_number_value(json_object_get(o, "seconds"));
        int64_t full = json_integer_value(json_object_get(o, "bytes"));
        int ranks = (int)json_integer_value(json_object_get(o, "ranks"));
        struct zt_cost_bandwidth b;
        if (strcmp(json_string_value(json_object_get(o, "link")), link) != 0 ||
            zt_cost_bandwidth(kind_of(kind), ranks, full, s, &b, NULL) != 0)
            continue;
        if (first)
            fprintf(out, "\n%s, %d ranks:\n%-16s %12s %12s %12s %12s\n", title, ranks, "collective", "bytes", "time",
                    "algbw GB/s", "busbw GB/s");
        first = false;
        fprintf(out, "%-16s %12s %12s %12.3f %12.3f\n", kind, zt_format_bytes((double)full, bytes, sizeof bytes),
                zt_format_seconds(s, seconds, sizeof seconds), b.algbw / 1e9, b.busbw / 1e9);
    }
    if (!first)
        fprintf(out, "fit: time = rounds x %.3g us + sent / %.3g GB/s, off by %.0f %% (root of the mean square)\n",
                at(entry, link, "alpha_ns") / 1e3, at(entry, link, "bytes_per_second") / 1e9,
                100 * json_number_value(
                          json_object_get(json_object_get(json_object_get(entry, "measured"), "errors"), name)));
}

static void show(FILE *out, const json_t *entry, const struct zt_measurements *m) {
    json_t *cut;
    size_t i;
    if (m->machine) {
        fprintf(out, "%s: %s, %s\n\n", json_string_value(json_object_get(entry, "name")),
                json_string_value(json_object_get(entry, "title")),
                json_string_value(json_object_get(json_object_get(entry, "measured"), "kernels")));
        show_rates(out, entry);
    }
    show_link(out, entry, m->collectives, "within", m->machine ? "within a host (shared memory)" : "within a host");
    show_link(out, entry, m->collectives, "across", m->machine ? "across hosts (TCP on loopback)" : "across hosts");
    if (json_array_size(m->collectives) > 0)
        fprintf(out, "\nmeasured between %s\n"
                     "algbw = bytes / time; busbw = algbw x 2(n-1)/n for all_reduce, x (n-1)/n for all_gather and\n"
                     "reduce_scatter (bytes: the whole buffer); rounds: 2(n-1), n-1; sent = busbw x time.\n",
                m->links);
    json_array_foreach(m->cuts, i, cut) fprintf(out, "note: %s\n", json_string_value(cut));
}

/* ---------------------------------------------------------------------------------- the command */

static void today(char date[16]) {
    time_t now = time(NULL);
    struct tm t;
    strftime(date, 16, "%Y-%m-%d", gmtime_r(&now, &t));
}

/* The entry of that name in the user's table, NULL when there is none: a new reference. */
static json_t *entry_before(const char *path, const char *name) {
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL), *o, *found = NULL;
    size_t i;
    json_array_foreach(json_object_get(root, "devices"), i, o) {
        const char *other = json_string_value(json_object_get(o, "name"));
        if (other && strcmp(other, name) == 0)
            found = json_incref(o);
    }
    json_decref(root);
    return found;
}

/* Fits and writes; *entry is the caller's. */
static int finish(const char *name, const struct zt_measurements *m, const char *path, const json_t *old, json_t **entry,
                  struct zt_error *err) {
    struct zt_devices *table = NULL;
    const struct zt_cost_device *guess = NULL;
    char date[16];
    today(date);
    int rc = zt_devices_builtin(&table, err);
    if (rc == 0)
        rc = zt_device_find(table, "cpu", &guess, err);
    if (rc == 0)
        rc = zt_calibrate_entry(m, name, date, guess, old, entry, err);
    char *text = rc == 0 ? json_dumps(*entry, JSON_COMPACT) : NULL;
    if (rc == 0)
        rc = text ? zt_devices_write(path, text, err) : zt_fail(err, ZT_ENOMEM, "no memory");
    free(text);
    zt_devices_free(table);
    return rc;
}

/* Links alone want an entry with operators to be put into. */
static int check_options(const struct zt_options *o, bool there, const char *name, const json_t *old,
                         struct zt_error *err) {
    if (o->format == ZT_FORMAT_CSV)
        return zt_fail(err, ZT_EINVAL, "zctl calibrate prints a table or JSON, no csv");
    if (o->device && !zt_device_name_valid(o->device))
        return zt_fail(err, ZT_EINVAL, "--device %.60s: lower-case letters, digits, '.', '_' and '-', at most 31",
                       o->device);
    if (o->coord && !o->comm)
        return zt_fail(err, ZT_EINVAL, "--coord: operators are measured on the machine that zctl runs on; with --comm, "
                       "collectives between the workers of --coord");
    if (there && !json_object_get(old, "measured"))
        return zt_fail(err, ZT_ENOTFOUND, "no operators were measured for the device \"%s\" yet: run zctl calibrate%s%s on a "
                       "machine like the workers' first; links are then added to it", name, o->device ? " --device " : "",
                       o->device ? o->device : "");
    return 0;
}

int zt_cmd_calibrate(const struct zt_options *o) {
    struct zt_measurements m;
    struct zt_error err;
    json_t *entry = NULL, *old = NULL;
    char path[4096];
    const char *name = o->device ? o->device : "cpu", *environment = getenv("ZCTL_COORD");
    const bool there = o->comm && (o->coord || (environment && environment[0]));
    const double seconds = o->seconds > 0 ? o->seconds : DEFAULT_SECONDS;
    int rc = zt_measurements_init(&m, &err);
    if (rc == 0)
        rc = zt_devices_state_path(path, sizeof path, &err);
    if (rc == 0) {
        old = entry_before(path, name);
        rc = check_options(o, there, name, old, &err);
    }
    if (rc == 0) {
        fprintf(stderr, "zctl: measuring for about %g s\n", seconds);
        rc = there ? zt_calibrate_links(o, seconds, &m, &err) : measure(o, &m, &err);
    }
    if (rc == 0)
        rc = finish(name, &m, path, old, &entry, &err);
    if (rc == 0) {
        if (o->format == ZT_FORMAT_TABLE)
            show(stdout, entry, &m);
        else if (o->format == ZT_FORMAT_JSON)
            zt_print_json(stdout, entry);
        else
            zt_print_json_line(stdout, entry);
        fprintf(stderr, "zctl: wrote the device \"%s\" to %s\n", json_string_value(json_object_get(entry, "name")),
                path);
    }
    json_decref(entry);
    json_decref(old);
    zt_measurements_free(&m);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
