/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/devices.c: see devices.h. */
#include "engine/plan/devices.h"

#include <errno.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"

enum { DEVICES_MAX = 256, FILE_MAX = 1 << 20 };

struct zt_devices {
    int n;
    struct zt_cost_device device[DEVICES_MAX];
};

extern const char zt_devices_json[]; /* devices.json, made by the build */

/* ---- the format: one row a figure ---- */

enum kind { REAL, INT64, INT, TEXT, LIST, OBJECT };

struct row {
    const char *group, *key;
    enum kind kind;
    ptrdiff_t at; /* in struct zt_cost_device; -1: kept in the file only */
    double least, most;
};

#define AT(field) (ptrdiff_t) offsetof(struct zt_cost_device, field)
#define NS_MOST 1e12
#define BYTES_MOST 1e18
#define RATE_MOST 1e21
#define RATES(group, class_)                                                                       \
    {group, "fp32", REAL, AT(flops[class_][ZT_F32]), 1, RATE_MOST},                                \
        {group, "bf16", REAL, AT(flops[class_][ZT_BF16]), 1, RATE_MOST},                           \
        {group, "fp16", REAL, AT(flops[class_][ZT_F16]), 1, RATE_MOST},                            \
        {group, "half_side", REAL, AT(half_side[class_]), 0, 1e9}, {                               \
        group, "half_head", REAL, AT(half_head[class_]), 0, 1e9                                    \
    }
#define LINK(group, link)                                                                          \
    {group, "alpha_ns", INT64, AT(link.alpha_ns), 0, NS_MOST},                                     \
        {group, "bytes_per_second", REAL, AT(link.bytes_per_second), 1, RATE_MOST}, {              \
        group, "nvls_bytes_per_second", REAL, AT(link.nvls_bytes_per_second), 1, RATE_MOST         \
    }

static const struct row rows[] = {
    {"memory", "bytes", INT64, AT(memory_bytes), 1, BYTES_MOST},
    {"outside", "bytes", INT64, AT(outside_bytes), 0, BYTES_MOST},
    {"launch", "device_ns", INT64, AT(launch_ns), 0, NS_MOST},
    {"launch", "host_ns", INT64, AT(host_ns), 0, NS_MOST},
    {"copy", "bytes_per_second", REAL, AT(memory_bytes_per_second), 1, RATE_MOST},
    {"copy", "cache_bytes", INT64, AT(cache_bytes), 0, BYTES_MOST},
    {"copy", "cached_bytes_per_second", REAL, AT(cached_bytes_per_second), 1, RATE_MOST},
    {"peak", "fp32", REAL, AT(peak_flops[ZT_F32]), 1, RATE_MOST},
    {"peak", "bf16", REAL, AT(peak_flops[ZT_BF16]), 1, RATE_MOST},
    {"peak", "fp16", REAL, AT(peak_flops[ZT_F16]), 1, RATE_MOST},
    RATES("gemm", ZT_COST_GEMM),
    RATES("attention_forward", ZT_COST_ATTENTION_FORWARD),
    RATES("attention_backward", ZT_COST_ATTENTION_BACKWARD),
    {"random", "fp32", REAL, AT(flops[ZT_COST_RANDOM][ZT_F32]), 1, RATE_MOST},
    {"rows", "fp32", REAL, AT(flops[ZT_COST_ROWS][ZT_F32]), 1, RATE_MOST},
    {"rows", "bf16", REAL, AT(flops[ZT_COST_ROWS][ZT_BF16]), 1, RATE_MOST},
    {"rows", "fp16", REAL, AT(flops[ZT_COST_ROWS][ZT_F16]), 1, RATE_MOST},
    {"hosts", "ranks", INT, AT(ranks_per_host), 1, 65536},
    LINK("within", within),
    LINK("across", across),
    {"measured", "date", TEXT, -1, 0, 0},
    {"measured", "ranks", INT, AT(measured_ranks), 1, 65536},
    {"measured", "threads", INT, AT(measured_threads), 1, 65536},
    {"measured", "isa", TEXT, -1, 0, 0},
    {"measured", "kernels", TEXT, -1, 0, 0},
    {"measured", "topology", TEXT, -1, 0, 0},
    {"measured", "links", TEXT, -1, 0, 0},
    {"measured", "links_date", TEXT, -1, 0, 0},
    {"measured", "comm_min_bytes", INT64, AT(measured_comm_min), 0, BYTES_MOST},
    {"measured", "comm_max_bytes", INT64, AT(measured_comm_max), 0, BYTES_MOST},
    {"measured", "errors", OBJECT, -1, 0, 0},
    {"measured", "operators", LIST, -1, 0, 0},
    {"measured", "collectives", LIST, -1, 0, 0},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Groups, and whether an entry can do without. */
static const struct {
    const char *name;
    bool needed;
} groups[] = {{"memory", true},
              {"outside", true},
              {"launch", true},
              {"copy", true},
              {"peak", false},
              {"gemm", true},
              {"attention_forward", true},
              {"attention_backward", true},
              {"random", true},
              {"rows", false},
              {"hosts", true},
              {"within", true},
              {"across", true},
              {"measured", false}};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

/* ---- reading one entry ---- */

struct reader {
    const char *file;
    char place[80]; /* "devices[2] (h200)" */
    struct zt_error *err;
};

static int refuse(const struct reader *r, const char *group, const char *key, const char *why) {
    return zt_fail(r->err, ZT_EINVAL, "%s: %s: %s%s%s: %s", r->file, r->place, group,
                   key[0] ? "." : "", key, why);
}

static int unknown(const struct reader *r, const char *group, const char *key,
                   const char *const *names, int n) {
    const char *near = zt_nearest(key, names, n);
    char why[128];
    if (near)
        snprintf(why, sizeof why, "unknown key; did you mean %s?", near);
    else
        snprintf(why, sizeof why, "unknown key");
    return group[0] ? refuse(r, group, key, why) : refuse(r, key, "", why);
}

static int number(const struct reader *r, const struct row *row, const json_t *v,
                  struct zt_cost_device *d) {
    double x = json_number_value(v);
    char why[96];
    if (!json_is_number(v)) return refuse(r, row->group, row->key, "expected a number");
    if (!(x >= row->least && x <= row->most)) {
        snprintf(why, sizeof why, "%g is not from %g to %g", x, row->least, row->most);
        return refuse(r, row->group, row->key, why);
    }
    if (row->kind != REAL && x != (double)(int64_t)x)
        return refuse(r, row->group, row->key, "expected a whole number");
    void *to = (char *)d + row->at;
    if (row->kind == REAL)
        *(double *)to = x;
    else if (row->kind == INT64)
        *(int64_t *)to = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    else
        *(int *)to = (int)x;
    return ZT_OK;
}

static int value(const struct reader *r, const struct row *row, const json_t *v,
                 struct zt_cost_device *d) {
    switch (row->kind) {
    case TEXT:
        return json_is_string(v) ? ZT_OK : refuse(r, row->group, row->key, "expected a text");
    case LIST:
        return json_is_array(v) ? ZT_OK : refuse(r, row->group, row->key, "expected a list");
    case OBJECT:
        return json_is_object(v) ? ZT_OK : refuse(r, row->group, row->key, "expected an object");
    case REAL:
    case INT64:
    case INT:
        break;
    }
    return number(r, row, v, d);
}

static const struct row *find_row(const char *group, const char *key) {
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].group, group) == 0 && strcmp(rows[i].key, key) == 0) return &rows[i];
    return NULL;
}

static int read_group(const struct reader *r, const char *group, json_t *o,
                      struct zt_cost_device *d) {
    const char *key, *names[N_ROWS + 1];
    json_t *v;
    int n = 0, rc = 0;
    if (!json_is_object(o)) return refuse(r, group, "", "expected an object of figures");
    names[n++] = "source";
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].group, group) == 0) names[n++] = rows[i].key;
    json_object_foreach(o, key, v) {
        const struct row *row = find_row(group, key);
        if (strcmp(key, "source") == 0) continue;
        rc = row ? value(r, row, v, d) : unknown(r, group, key, names, n);
        if (rc) return rc;
    }
    const char *source = json_string_value(json_object_get(o, "source"));
    if (!source || !source[0])
        return refuse(r, group, "source", "missing: a text that says where the figures come from");
    if (strcmp(group, "outside") == 0)
        snprintf(d->outside_source, sizeof d->outside_source, "%s", source);
    if (strcmp(group, "measured") == 0) d->measured = true;
    return ZT_OK;
}

bool zt_device_name_valid(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && s[n] == '\0' && n < sizeof((struct zt_cost_device *)0)->name && s[0] != '.' &&
           s[0] != '-' && s[0] != '_';
}

static int text_of(const struct reader *r, const json_t *o, const char *key, char *to, size_t n) {
    const char *s = json_string_value(json_object_get(o, key));
    if (!s || !s[0]) return refuse(r, key, "", "missing: a text");
    if (strlen(s) >= n) return refuse(r, key, "", "too long");
    memcpy(to, s, strlen(s) + 1);
    return ZT_OK;
}

static int read_head(struct reader *r, const json_t *o, int i, struct zt_cost_device *d) {
    snprintf(r->place, sizeof r->place, "devices[%d]", i);
    if (!json_is_object(o))
        return zt_fail(r->err, ZT_EINVAL, "%s: %s: expected an object", r->file, r->place);
    int rc = text_of(r, o, "name", d->name, sizeof d->name);
    if (rc) return rc;
    if (!zt_device_name_valid(d->name))
        return refuse(r, "name", "", "lower-case letters, digits, '.', '_' and '-' only");
    snprintf(r->place, sizeof r->place, "devices[%d] (%s)", i, d->name);
    rc = text_of(r, o, "title", d->title, sizeof d->title);
    if (rc) return rc;
    const json_t *queued = json_object_get(o, "queued");
    if (!json_is_boolean(queued)) return refuse(r, "queued", "", "missing: true or false");
    d->queued = json_is_true(queued);
    return ZT_OK;
}

static int read_device(struct reader *r, json_t *o, int i, struct zt_cost_device *d) {
    const char *names[N_GROUPS + 3] = {"name", "title", "queued"}, *key;
    json_t *v;
    int rc = read_head(r, o, i, d);
    for (int g = 0; g < N_GROUPS; g++) names[3 + g] = groups[g].name;
    json_object_foreach(o, key, v) {
        bool known = false;
        for (int k = 0; k < N_GROUPS + 3; k++) known = known || strcmp(key, names[k]) == 0;
        if (rc == 0 && !known) rc = unknown(r, "", key, names, N_GROUPS + 3);
    }
    for (int g = 0; rc == 0 && g < N_GROUPS; g++) {
        v = json_object_get(o, groups[g].name);
        if (v)
            rc = read_group(r, groups[g].name, v, d);
        else if (groups[g].needed)
            rc = refuse(r, groups[g].name, "", "missing");
    }
    struct zt_error why;
    if (rc == 0 && zt_cost_check(d, &why) != 0)
        rc = zt_fail(r->err, ZT_EINVAL, "%s: %s: %s", r->file, r->place, why.msg);
    return rc;
}

/* ---- the table ---- */

static int add(struct zt_devices *t, const struct zt_cost_device *d, const struct reader *r) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->device[i].name, d->name) == 0) {
            t->device[i] = *d;
            return ZT_OK;
        }
    if (t->n == DEVICES_MAX)
        return zt_fail(r->err, ZT_EINVAL, "%s: more than %d devices", r->file, DEVICES_MAX);
    t->device[t->n++] = *d;
    return ZT_OK;
}

static int check_top(const struct reader *r, json_t *root) {
    const char *key, *names[] = {"version", "devices"};
    json_t *v;
    if (!json_is_object(root))
        return zt_fail(r->err, ZT_EINVAL, "%s: expected an object with version and devices",
                       r->file);
    json_object_foreach(root, key,
                        v) if (strcmp(key, "version") != 0 && strcmp(key, "devices") != 0) {
        const char *near = zt_nearest(key, names, 2);
        return zt_fail(r->err, ZT_EINVAL, "%s: %s: unknown key%s%s", r->file, key,
                       near ? "; did you mean " : "", near ? near : "");
    }
    json_t *version = json_object_get(root, "version");
    if (!json_is_integer(version) || json_integer_value(version) != 1)
        return zt_fail(r->err, ZT_EINVAL, "%s: version: expected 1", r->file);
    if (!json_is_array(json_object_get(root, "devices")))
        return zt_fail(r->err, ZT_EINVAL, "%s: devices: expected a list", r->file);
    return ZT_OK;
}

static int add_all(struct zt_devices *t, json_t *root, struct reader *r) {
    json_t *list = json_object_get(root, "devices"), *o;
    size_t i;
    json_array_foreach(list, i, o) {
        struct zt_cost_device d = {0};
        int rc = read_device(r, o, (int)i, &d);
        for (size_t k = 0; rc == 0 && k < i; k++) {
            const char *other = json_string_value(json_object_get(json_array_get(list, k), "name"));
            if (other && strcmp(other, d.name) == 0)
                rc = refuse(r, "name", "", "another device of this file has it");
        }
        if (rc == 0) rc = add(t, &d, r);
        if (rc) return rc;
    }
    return ZT_OK;
}

int zt_devices_add_text(struct zt_devices *t, const char *text, size_t bytes, const char *name,
                        struct zt_error *err) {
    struct reader r = {.file = name, .err = err};
    json_error_t at;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    if (!root) return zt_fail(err, ZT_EINVAL, "%s:%d:%d: %s", name, at.line, at.column, at.text);
    struct zt_devices *copy = malloc(sizeof *copy);
    int rc = copy ? check_top(&r, root) : zt_fail(err, ZT_ENOMEM, "%s: no memory", name);
    if (rc == 0) {
        *copy = *t;
        rc = add_all(copy, root, &r);
    }
    if (rc == 0) *t = *copy;
    free(copy);
    json_decref(root);
    return rc;
}

int zt_devices_add_file(struct zt_devices *t, const char *path, struct zt_error *err) {
    FILE *f = fopen(path, "re");
    if (!f) {
        int code = errno == ENOENT || errno == ENOTDIR ? ZT_ENOTFOUND : ZT_EIO;
        return zt_fail(err, code, "cannot read %s: %s", path, strerror(errno));
    }
    char *text = malloc(FILE_MAX + 1);
    size_t n = text ? fread(text, 1, FILE_MAX + 1, f) : 0;
    int rc = 0;
    if (!text)
        rc = zt_fail(err, ZT_ENOMEM, "%s: no memory", path);
    else if (ferror(f))
        rc = zt_fail(err, ZT_EIO, "cannot read %s: %s", path, strerror(errno));
    else if (n > FILE_MAX)
        rc = zt_fail(err, ZT_EINVAL, "%s: larger than %d bytes", path, FILE_MAX);
    else
        rc = zt_devices_add_text(t, text, n, path, err);
    free(text);
    fclose(f);
    return rc;
}

int zt_devices_builtin(struct zt_devices **out, struct zt_error *err) {
    struct zt_devices *t = calloc(1, sizeof *t);
    if (!t) return zt_fail(err, ZT_ENOMEM, "no memory for the table of devices");
    int rc = zt_devices_add_text(t, zt_devices_json, strlen(zt_devices_json), "devices.json", err);
    if (rc)
        free(t);
    else
        *out = t;
    return rc;
}

int zt_devices_load(struct zt_devices **out, struct zt_error *err) {
    int (*const paths[])(char *, size_t, struct zt_error *) = {zt_devices_state_path,
                                                               zt_devices_config_path};
    struct zt_devices *t = NULL;
    int rc = zt_devices_builtin(&t, err);
    for (int i = 0; rc == 0 && i < 2; i++) {
        char path[4096];
        if (paths[i](path, sizeof path, err) != 0) continue; /* no HOME: no such layer */
        rc = zt_devices_add_file(t, path, err);
        if (rc == ZT_ENOTFOUND) rc = 0;
    }
    if (rc)
        zt_devices_free(t);
    else
        *out = t;
    return rc;
}

void zt_devices_free(struct zt_devices *t) { free(t); }

int zt_devices_count(const struct zt_devices *t) { return t->n; }

const struct zt_cost_device *zt_devices_at(const struct zt_devices *t, int i) {
    return i >= 0 && i < t->n ? &t->device[i] : NULL;
}

int zt_device_find(const struct zt_devices *t, const char *name, const struct zt_cost_device **out,
                   struct zt_error *err) {
    const char *names[DEVICES_MAX];
    char list[1024] = "";
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->device[i].name, name) == 0) {
            *out = &t->device[i];
            return ZT_OK;
        }
        names[i] = t->device[i].name;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = zt_nearest(name, names, t->n);
    return zt_fail(err, ZT_ENOTFOUND,
                   "no device \"%.40s\"%s%s%s; there are %s, and zctl calibrate adds this machine",
                   name, near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "",
                   list);
}

/* ---- what to know of the times ---- */

static const char *outside_range(const struct zt_cost_device *d, int64_t least, int64_t most,
                                 char *to, size_t n) {
    char from[32], up[32], low[32], high[32];
    snprintf(to, n,
             "times of messages from %s to %s: %s was measured from %s to %s (what is outside is "
             "extrapolated)",
             zt_format_bytes((double)least, from, sizeof from),
             zt_format_bytes((double)most, up, sizeof up), d->name,
             zt_format_bytes((double)d->measured_comm_min, low, sizeof low),
             zt_format_bytes((double)d->measured_comm_max, high, sizeof high));
    return to;
}

void zt_device_caveats(const struct zt_cost_device *d, int ranks_on_host, int64_t least_message,
                       int64_t most_message, void (*say)(void *arg, const char *sentence),
                       void *arg) {
    char text[256];
    if (!d->measured) {
        if (!d->queued) {
            snprintf(text, sizeof text,
                     "times of %s are a guess; zctl calibrate measures this machine", d->name);
            say(arg, text);
        }
        return;
    }
    if (d->measured_ranks != ranks_on_host && ranks_on_host > 0) {
        snprintf(text, sizeof text,
                 "times: %s was measured with %d at once, %d are on a host here; zctl calibrate "
                 "--workers %d measures that",
                 d->name, d->measured_ranks, ranks_on_host, ranks_on_host);
        say(arg, text);
    }
    if (most_message <= 0) return;
    if (d->measured_comm_max == 0) {
        snprintf(text, sizeof text,
                 "times of collectives: links of %s were not measured; zctl calibrate --comm does",
                 d->name);
        say(arg, text);
    } else if (least_message < d->measured_comm_min || most_message > d->measured_comm_max)
        say(arg, outside_range(d, least_message, most_message, text, sizeof text));
}
