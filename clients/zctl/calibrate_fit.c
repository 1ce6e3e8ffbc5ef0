/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/calibrate_fit.c: see calibrate.h. */
#include "clients/zctl/calibrate.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 256, TYPES = 3 };
static const enum zt_dtype types[TYPES] = {ZT_F32, ZT_BF16, ZT_F16};

/* ---------------------------------------------------------------------------------- lines */

int zt_measurements_init(struct zt_measurements *m, struct zt_error *err) {
    *m = (struct zt_measurements){.operators = json_array(), .collectives = json_array(), .cuts = json_array()};
    return m->operators && m->collectives && m->cuts ? 0 : zt_fail(err, ZT_ENOMEM, "no memory");
}

void zt_measurements_free(struct zt_measurements *m) {
    json_decref(m->machine);
    json_decref(m->operators);
    json_decref(m->collectives);
    json_decref(m->cuts);
    *m = (struct zt_measurements){0};
}

static double real(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static const char *text(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

int zt_measurements_add(struct zt_measurements *m, const char *line, struct zt_error *err) {
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    bool timed = real(o, "seconds") > 0 && isfinite(real(o, "seconds"));
    int rc = 0;
    if (json_is_object(json_object_get(o, "machine"))) {
        json_decref(m->machine);
        m->machine = json_incref(json_object_get(o, "machine"));
    } else if (json_is_string(json_object_get(o, "operator")) && timed)
        rc = json_array_append(m->operators, o);
    else if (json_is_string(json_object_get(o, "collective")) && timed)
        rc = json_array_append(m->collectives, o);
    else if (json_is_string(json_object_get(o, "cut")))
        rc = json_array_append(m->cuts, json_object_get(o, "cut"));
    else if (json_is_true(json_object_get(o, "done")))
        m->done = true;
    else
        rc = zt_fail(err, ZT_EPROTO, "zworker's line is \"%.80s\"; are zctl and zworker of one version?", line);
    json_decref(o);
    return rc;
}

/* ---------------------------------------------------------------------------------- operators */

/* One measured operator. */
struct sample { double flops, bytes, side, head, seconds; };

static int gather(const struct zt_measurements *m, const char *op, const char *type, struct sample out[SAMPLES]) {
    json_t *o;
    size_t i;
    int n = 0;
    json_array_foreach(m->operators, i, o) {
        if (strcmp(text(o, "operator"), op) != 0 || (type && strcmp(text(o, "type"), type) != 0) || n == SAMPLES)
            continue;
        out[n++] = (struct sample){real(o, "flops"), real(o, "bytes"), real(o, "side"), real(o, "head"),
                                   real(o, "seconds")};
    }
    return n;
}

/* The time without that of launching; a tenth of it stays at least. */
static double bare(double seconds, double launch) {
    return seconds - launch > 0.1 * seconds ? seconds - launch : 0.1 * seconds;
}

/* A rate by type and half sizes: the sides' from fp32 (attention: of one head width), then the heads',
 * then the rates of all types with these. */
static int fit_class(const struct zt_measurements *m, const char *op, double launch, json_t *entry, json_t *errors,
                     struct zt_error *err) {
    struct sample s[SAMPLES];
    struct zt_cost_sample f[SAMPLES];
    double rate, side = 0, head = 0, error;
    int n = gather(m, op, "fp32", s), k = 0, rc = 0;
    for (int i = 0; i < n; i++)
        if (s[i].head == 0 || s[i].head == s[n - 1].head)
            f[k++] = (struct zt_cost_sample){s[i].flops, s[i].side, bare(s[i].seconds, launch)};
    rc = zt_cost_fit_rate(f, k, &rate, &side, &error, err);
    if (rc == 0 && s[0].head > 0) {
        for (int i = 0; i < n; i++)
            f[i] = (struct zt_cost_sample){s[i].flops * (1 + side / s[i].side), s[i].head, bare(s[i].seconds, launch)};
        rc = zt_cost_fit_rate(f, n, &rate, &head, &error, err);
    }
    json_t *o = json_object();
    for (int t = 0; rc == 0 && t < TYPES; t++) {
        const char *type = zt_dtype_name(types[t]);
        char name[64];
        double none;
        n = gather(m, op, type, s);
        for (int i = 0; i < n; i++) {
            double small = (1 + side / s[i].side) * (s[i].head > 0 ? 1 + head / s[i].head : 1);
            f[i] = (struct zt_cost_sample){s[i].flops * small, 1, bare(s[i].seconds, launch)};
        }
        if (n == 0)
            continue; /* this machine has no such operator */
        rc = zt_cost_fit_rate(f, n, &rate, &none, &error, err);
        json_object_set_new(o, type, json_real(rate));
        snprintf(name, sizeof name, "%s %s", op, type);
        json_object_set_new(errors, name, json_real(error));
    }
    json_object_set_new(o, "half_side", json_real(side));
    if (head > 0)
        json_object_set_new(o, "half_head", json_real(head));
    json_object_set_new(o, "source", json_string("measured: operators"));
    json_object_set_new(entry, op, o);
    return rc ? zt_fail_prefix(err, "%s", op) : 0;
}

/* Row operators: elements a second over all of them, in the proportions of a transformer's block. Those
 * of the largest shape alone: smaller ones are launches. */
static void fit_rows(const struct zt_measurements *m, double launch, json_t *entry) {
    struct sample s[SAMPLES];
    json_t *o = json_object();
    for (int t = 0; t < TYPES; t++) {
        int n = gather(m, "rows", zt_dtype_name(types[t]), s);
        double elements = 0, seconds = 0, most = 0;
        for (int i = 0; i < n; i++)
            most = s[i].flops > most ? s[i].flops : most;
        for (int i = 0; i < n; i++)
            if (s[i].flops * 5 > most) {
                elements += s[i].flops;
                seconds += bare(s[i].seconds, launch);
            }
        if (seconds > 0)
            json_object_set_new(o, zt_dtype_name(types[t]), json_real(elements / seconds));
    }
    json_object_set_new(o, "source", json_string("measured: GELU, SwiGLU, norms, cross-entropy, bias gradients; "
                                                 "elements over seconds"));
    json_object_set_new(entry, "rows", o);
}

/* Copies of growing size: the largest is the memory's rate, and the smallest that of the cache if it is
 * much faster; the cache ends where the rate falls below the middle of the two. */
static int fit_copy(const struct zt_measurements *m, double launch, json_t *entry, struct zt_error *err) {
    struct sample s[SAMPLES];
    int n = gather(m, "copy", NULL, s);
    if (n == 0)
        return zt_fail(err, ZT_EPROTO, "no copy was measured");
    double memory = s[n - 1].bytes / bare(s[n - 1].seconds, launch), first = s[0].bytes / bare(s[0].seconds, launch);
    json_t *o = json_pack("{s:f}", "bytes_per_second", memory);
    if (n > 1 && first > 1.2 * memory) {
        double sum = 0, cache = 0;
        int k = 0;
        for (; k < n && s[k].bytes / bare(s[k].seconds, launch) >= sqrt(first * memory); k++) {
            sum += s[k].bytes / bare(s[k].seconds, launch);
            cache = s[k].bytes;
        }
        json_object_set_new(o, "cache_bytes", json_integer((json_int_t)cache));
        json_object_set_new(o, "cached_bytes_per_second", json_real(sum / k));
    }
    json_object_set_new(o, "source", json_string("measured: copies, read + write"));
    json_object_set_new(entry, "copy", o);
    return 0;
}

static int fit_operators(const struct zt_measurements *m, json_t *entry, json_t *errors, struct zt_error *err) {
    struct sample s[SAMPLES];
    double launch = gather(m, "launch", NULL, s) > 0 ? s[0].seconds : 0;
    json_object_set_new(entry, "launch",
                        json_pack("{s:I, s:i, s:s}", "device_ns", (json_int_t)llround(launch * 1e9), "host_ns", 0,
                                  "source", "measured: an operator on one number"));
    int rc = fit_copy(m, launch, entry, err);
    if (rc == 0)
        rc = fit_class(m, "gemm", launch, entry, errors, err);
    if (rc == 0)
        rc = fit_class(m, "attention_forward", launch, entry, errors, err);
    if (rc == 0)
        rc = fit_class(m, "attention_backward", launch, entry, errors, err);
    if (rc == 0 && gather(m, "random", NULL, s) == 0)
        rc = zt_fail(err, ZT_EPROTO, "drawing was not measured");
    if (rc)
        return rc;
    json_object_set_new(entry, "random", json_pack("{s:f, s:s}", "fp32", s[0].flops / bare(s[0].seconds, launch),
                                                   "source", "measured: normal numbers"));
    fit_rows(m, launch, entry);
    return 0;
}

/* ---------------------------------------------------------------------------------- links */

static bool has_link(const json_t *rows, const char *link) {
    json_t *o;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, o)
        if (strcmp(text(o, "link"), link) == 0)
            return true;
    return false;
}

/* What was measured now, and of a link that was not, what the entry had before. */
static json_t *rows_of_links(const struct zt_measurements *m, const json_t *old) {
    json_t *rows = json_copy(m->collectives), *o;
    json_t *before = json_object_get(json_object_get(old, "measured"), "collectives");
    size_t i;
    json_array_foreach(before, i, o)
        if (!has_link(m->collectives, text(o, "link")))
            json_array_append(rows, o);
    return rows;
}

/* alpha and B over all kinds and sizes of one link; across hosts each rank of a host has its own link. */
static int fit_link(const json_t *rows, const char *link, const struct zt_cost_link *otherwise, json_t *entry,
                    json_t *errors, struct zt_error *err) {
    struct zt_cost_transfer f[SAMPLES];
    struct zt_cost_link l = *otherwise;
    double error = 0;
    json_t *o;
    size_t i;
    int n = 0, rc = 0;
    json_array_foreach((json_t *)(uintptr_t)rows, i, o) {
        if (strcmp(text(o, "link"), link) != 0 || n == SAMPLES)
            continue;
        double links = strcmp(link, "across") == 0 && real(o, "per_host") > 1 ? real(o, "per_host") : 1;
        f[n++] = (struct zt_cost_transfer){real(o, "rounds"), real(o, "sent_bytes") / links, real(o, "seconds")};
    }
    if (n > 0) {
        rc = zt_cost_fit_link(f, n, &l, &error, err);
        char name[64];
        snprintf(name, sizeof name, "link %s", link);
        json_object_set_new(errors, name, json_real(error));
    }
    json_object_set_new(entry, link,
                        json_pack("{s:I, s:f, s:s}", "alpha_ns", (json_int_t)l.alpha_ns, "bytes_per_second",
                                  l.bytes_per_second, "source",
                                  n > 0 ? "measured: least squares of seconds = rounds x alpha + sent / B"
                                        : "not measured: as built in for cpu; zctl calibrate --comm measures it"));
    return rc ? zt_fail_prefix(err, "the link %s", link) : 0;
}

/* ---------------------------------------------------------------------------------- the entry */

static json_t *head(const struct zt_measurements *m, const char *name) {
    char title[96];
    int ranks = (int)real(m->machine, "ranks"), threads = (int)real(m->machine, "threads");
    snprintf(title, sizeof title, "this machine: %.40s, %d x %d threads", text(m->machine, "isa"), ranks, threads);
    return json_pack("{s:s, s:s, s:b, s:{s:I, s:s}, s:{s:I, s:s}, s:{s:i, s:s}}", "name", name, "title", title,
                     "queued", 0, "memory", "bytes", (json_int_t)real(m->machine, "memory_bytes"), "source",
                     "measured: a worker's default, half of what was free over the workers", "outside", "bytes",
                     (json_int_t)real(m->machine, "resident_bytes"), "source",
                     "measured: resident memory of a measuring process beside its buffers", "hosts", "ranks", ranks,
                     "source", "as measured");
}

static json_t *measured_operators(const struct zt_measurements *m, const char *date) {
    char topology[160];
    int ranks = (int)real(m->machine, "ranks"), threads = (int)real(m->machine, "threads");
    snprintf(topology, sizeof topology, "one host with %d cores, %d x %d threads at once",
             (int)real(m->machine, "cores"), ranks, threads);
    json_t *o = json_pack("{s:s, s:i, s:i, s:s, s:s, s:s, s:s}", "date", date, "ranks", ranks, "threads", threads, "isa",
                          text(m->machine, "isa"), "kernels", text(m->machine, "kernels"), "topology", topology, "source",
                          "zctl calibrate");
    json_object_set(o, "operators", m->operators);
    return o;
}

/* Where and when links were measured; the range of the messages. */
static void put_links(const struct zt_measurements *m, const char *date, const json_t *old, json_t *rows, json_t *o) {
    static const char *const kept[] = {"links", "links_date"};
    double least = 0, most = 0;
    json_t *row, *v;
    size_t i;
    for (int k = 0; k < 2; k++)
        if ((v = json_object_get(json_object_get(old, "measured"), kept[k])))
            json_object_set(o, kept[k], v);
    if (json_array_size(m->collectives) > 0) {
        json_object_set_new(o, "links", json_string(m->links));
        json_object_set_new(o, "links_date", json_string(date));
    }
    json_array_foreach(rows, i, row) {
        least = least == 0 || real(row, "bytes") < least ? real(row, "bytes") : least;
        most = real(row, "bytes") > most ? real(row, "bytes") : most;
    }
    if (most > 0) {
        json_object_set_new(o, "comm_min_bytes", json_integer((json_int_t)least));
        json_object_set_new(o, "comm_max_bytes", json_integer((json_int_t)most));
    }
    json_object_set(o, "collectives", rows);
}

/* The operators' part: measured now, or the old entry's. */
static int put_operators(const struct zt_measurements *m, const char *name, const char *date, const json_t *old,
                         json_t **entry, struct zt_error *err) {
    json_t *o = m->machine ? head(m, name) : json_deep_copy(old), *errors;
    *entry = o;
    if (!o)
        return zt_fail(err, ZT_ENOMEM, "no memory");
    if (!m->machine)
        return 0;
    json_object_set_new(o, "measured", measured_operators(m, date));
    errors = json_object();
    int rc = fit_operators(m, o, errors, err);
    json_object_set_new(json_object_get(o, "measured"), "errors", errors);
    return rc;
}

int zt_calibrate_entry(const struct zt_measurements *m, const char *name, const char *date,
                       const struct zt_cost_device *otherwise, const json_t *old, json_t **entry, struct zt_error *err) {
    json_t *o = NULL, *rows, *mine;
    if (!m->done || (!m->machine && !json_object_get(old, "measured")))
        return zt_fail(err, ZT_EPROTO, "the measurement did not come to its end");
    int rc = put_operators(m, name, date, old, &o, err);
    mine = json_object_get(o, "measured");
    rows = rows_of_links(m, old);
    if (rc == 0)
        rc = fit_link(rows, "within", &otherwise->within, o, json_object_get(mine, "errors"), err);
    if (rc == 0)
        rc = fit_link(rows, "across", &otherwise->across, o, json_object_get(mine, "errors"), err);
    if (rc == 0)
        put_links(m, date, old, rows, mine);
    json_decref(rows);
    if (rc)
        json_decref(o);
    else
        *entry = o;
    return rc;
}
