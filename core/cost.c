/* SPDX-License-Identifier: Apache-2.0 */
/* core/cost.c: see core/cost.h; the formulas are written out in docs/planner.md. */
#include "core/cost.h"

#include <math.h>

#define NS 1e9

/* A time that no clock holds stays far from overflow when a plan adds many of them. */
static int64_t to_ns(double seconds) {
    double ns = seconds * NS;
    return ns < 1e17 ? (int64_t)llround(ns) : (int64_t)1e17;
}

/* ---- operators ---- */

static double rate(const struct zt_cost_device *d, struct zt_cost_work w) {
    double r = d->flops[w.class_][w.type];
    if (r <= 0) r = d->flops[w.class_][ZT_F32];
    if (w.side > 0) r /= 1 + d->half_side[w.class_] / w.side;
    if (w.head > 0) r /= 1 + d->half_head[w.class_] / w.head;
    return r;
}

static double bandwidth(const struct zt_cost_device *d, double bytes) {
    bool cached = d->cached_bytes_per_second > 0 && bytes <= (double)d->cache_bytes;
    return cached ? d->cached_bytes_per_second : d->memory_bytes_per_second;
}

int64_t zt_cost_ns(const struct zt_cost_device *d, struct zt_cost_work w) {
    double b = bandwidth(d, w.bytes), seconds = b > 0 ? w.bytes / b : 0;
    double r = w.class_ == ZT_COST_MEMORY ? 0 : rate(d, w);
    if (r > 0 && w.flops / r > seconds) seconds = w.flops / r;
    return d->launch_ns + to_ns(seconds);
}

static double least(int64_t a, int64_t b, int64_t c) {
    int64_t m = a < b ? a : b;
    return (double)(m < c ? m : c);
}

struct zt_cost_work zt_work_gemm(int64_t M, int64_t N, int64_t K, enum zt_dtype t, enum zt_dtype ct,
                                 bool accumulate) {
    double m = (double)M, n = (double)N, k = (double)K;
    double read = (m * k + n * k) * (double)zt_dtype_size(t);
    double written = m * n * (double)zt_dtype_size(ct) * (accumulate ? 2 : 1);
    return (struct zt_cost_work){.class_ = ZT_COST_GEMM,
                                 .type = t,
                                 .flops = 2 * m * n * k,
                                 .bytes = read + written,
                                 .side = least(M, N, K)};
}

/* Forward: two products of T x T x D per head, half of them masked; q and out, k and v move.
 * Backward: five products; q, out and their gradients, k, v and theirs. */
struct zt_cost_work zt_work_attention(bool backward, int64_t B, int64_t T, int64_t H, int64_t KV,
                                      int64_t D, enum zt_dtype t) {
    double rows = (double)B * (double)T, square = rows * (double)T * (double)(H * D);
    double heads = rows * (double)((H + KV) * D) * (double)zt_dtype_size(t);
    double lse = rows * (double)H * 4;
    return (struct zt_cost_work){.class_ = backward ? ZT_COST_ATTENTION_BACKWARD
                                                    : ZT_COST_ATTENTION_FORWARD,
                                 .type = t,
                                 .flops = (backward ? 5 : 2) * square,
                                 .bytes = (backward ? 4 : 2) * heads + lse,
                                 .side = (double)T,
                                 .head = (double)D};
}

struct zt_cost_work zt_work_bytes(double bytes) {
    return (struct zt_cost_work){.class_ = ZT_COST_MEMORY, .type = ZT_F32, .bytes = bytes};
}

struct zt_cost_work zt_work_random(int64_t n, enum zt_dtype t) {
    return (struct zt_cost_work){.class_ = ZT_COST_RANDOM,
                                 .type = ZT_F32,
                                 .flops = (double)n,
                                 .bytes = (double)n * (double)zt_dtype_size(t)};
}

struct zt_cost_work zt_work_rows(int64_t n, double bytes, enum zt_dtype t) {
    return (struct zt_cost_work){
        .class_ = ZT_COST_ROWS, .type = t, .flops = (double)n, .bytes = bytes};
}

/* ---- collectives ---- */

int zt_cost_rounds(enum zt_cost_coll kind, int size) {
    if (size < 2) return 0;
    return kind == ZT_COST_ALL_REDUCE ? 2 * (size - 1) : size - 1;
}

double zt_cost_sent(enum zt_cost_coll kind, int size, int64_t full) {
    double part = (double)(size - 1) / (double)size * (double)full;
    if (size < 2) return 0;
    switch (kind) {
    case ZT_COST_ALL_REDUCE:
        return 2 * part;
    case ZT_COST_BROADCAST:
        return (double)full;
    case ZT_COST_BARRIER:
        return 0;
    case ZT_COST_ALL_GATHER:
    case ZT_COST_REDUCE_SCATTER:
        break;
    }
    return part;
}

/* What one rank gets to send per second. */
static double link_bandwidth(const struct zt_cost_device *d, enum zt_cost_coll kind, int size,
                             int per_host) {
    if (per_host >= size) {
        double ring = d->within.bytes_per_second, nvls = d->within.nvls_bytes_per_second;
        return kind == ZT_COST_ALL_REDUCE && nvls > ring ? nvls : ring;
    }
    /* as many rings as the group has ranks on a host, each over its own link */
    double b = d->across.bytes_per_second * (per_host < 1 ? 1 : per_host);
    bool inside = per_host > 1 && d->within.bytes_per_second > 0;
    return inside && b > d->within.bytes_per_second ? d->within.bytes_per_second : b;
}

int64_t zt_cost_collective_ns(const struct zt_cost_device *d, enum zt_cost_coll kind, int size,
                              int per_host, int64_t full) {
    if (size < 2) return 0;
    const struct zt_cost_link *l = per_host >= size ? &d->within : &d->across;
    double b = link_bandwidth(d, kind, size, per_host);
    return zt_cost_rounds(kind, size) * l->alpha_ns +
           to_ns(b > 0 ? zt_cost_sent(kind, size, full) / b : 0);
}

int zt_cost_bandwidth(enum zt_cost_coll kind, int size, int64_t full, double seconds,
                      struct zt_cost_bandwidth *out, struct zt_error *err) {
    if (size < 2)
        return zt_fail(err, ZT_EINVAL, "bandwidth of a collective: %d ranks send nothing", size);
    if (full <= 0 || kind == ZT_COST_BARRIER)
        return zt_fail(err, ZT_EINVAL, "bandwidth of a collective: no bytes, no bandwidth");
    if (!isfinite(seconds) || seconds <= 0)
        return zt_fail(err, ZT_EINVAL, "bandwidth of a collective: %g is no time", seconds);
    out->algbw = (double)full / seconds;
    out->busbw = zt_cost_sent(kind, size, full) / seconds;
    return ZT_OK;
}

/* ---- checks ---- */

static int figure(double v, const char *name, const char *part, struct zt_error *err) {
    if (isfinite(v) && v >= 0) return ZT_OK;
    return zt_fail(err, ZT_EINVAL, "%s%s%s is %g: not a finite number of at least 0", name,
                   part[0] ? " of " : "", part, v);
}

static int check_link(const struct zt_cost_link *l, const char *part, struct zt_error *err) {
    int rc = figure((double)l->alpha_ns, "alpha", part, err);
    if (rc == 0) rc = figure(l->bytes_per_second, "bandwidth", part, err);
    return rc ? rc : figure(l->nvls_bytes_per_second, "NVLS bandwidth", part, err);
}

int zt_cost_check(const struct zt_cost_device *d, struct zt_error *err) {
    static const char *const classes[] = {
        "memory", "gemm", "attention_forward", "attention_backward", "random", "rows"};
    const struct {
        double v;
        const char *name;
    } one[] = {
        {(double)d->memory_bytes, "memory"},
        {(double)d->outside_bytes, "allowance outside the allocator"},
        {(double)d->launch_ns, "launch time"},
        {(double)d->host_ns, "host time"},
        {d->memory_bytes_per_second, "memory bandwidth"},
        {(double)d->cache_bytes, "cache size"},
        {d->cached_bytes_per_second, "cache bandwidth"},
        {(double)d->measured_comm_min, "smallest measured message"},
        {(double)d->measured_comm_max, "largest measured message"},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof one / sizeof one[0]; i++)
        rc = figure(one[i].v, one[i].name, "", err);
    for (int c = 0; rc == 0 && c < ZT_COST_CLASSES; c++) {
        for (int t = 0; rc == 0 && t < ZT_DTYPE_COUNT; t++)
            rc = figure(d->flops[c][t], "rate", classes[c], err);
        if (rc == 0) rc = figure(d->half_side[c], "half side", classes[c], err);
        if (rc == 0) rc = figure(d->half_head[c], "half head", classes[c], err);
    }
    for (int t = 0; rc == 0 && t < ZT_DTYPE_COUNT; t++)
        rc = figure(d->peak_flops[t], "peak", zt_dtype_name((enum zt_dtype)t), err);
    if (rc == 0) rc = check_link(&d->within, "within a host", err);
    if (rc == 0) rc = check_link(&d->across, "across hosts", err);
    if (rc) return rc;
    if (d->memory_bytes == 0) return zt_fail(err, ZT_EINVAL, "memory is missing");
    if (d->memory_bytes_per_second <= 0)
        return zt_fail(err, ZT_EINVAL, "memory bandwidth is missing");
    if (d->flops[ZT_COST_GEMM][ZT_F32] <= 0)
        return zt_fail(err, ZT_EINVAL, "the rate of gemm in fp32 is missing");
    if (d->ranks_per_host < 1)
        return zt_fail(err, ZT_EINVAL, "ranks per host is %d: at least 1", d->ranks_per_host);
    return ZT_OK;
}

/* ---- fits ---- */

/* Minimizes sum (a x_i + b y_i - 1)^2; false where that does not fix both. */
static bool solve(const double *x, const double *y, int n, double *a, double *b) {
    double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
    for (int i = 0; i < n; i++) {
        xx += x[i] * x[i];
        xy += x[i] * y[i];
        yy += y[i] * y[i];
        x1 += x[i];
        y1 += y[i];
    }
    double det = xx * yy - xy * xy;
    if (!(det > 1e-12 * xx * yy)) return false;
    *a = (x1 * yy - y1 * xy) / det;
    *b = (y1 * xx - x1 * xy) / det;
    return true;
}

/* The same with one term. */
static double solve_one(const double *x, int n) {
    double xx = 0, x1 = 0;
    for (int i = 0; i < n; i++) {
        xx += x[i] * x[i];
        x1 += x[i];
    }
    return x1 / xx;
}

static double root_mean_square(const double *x, const double *y, int n, double a, double b) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double e = a * x[i] + b * y[i] - 1;
        sum += e * e;
    }
    return sqrt(sum / n);
}

enum { SAMPLES_MAX = 256 };

static int check_samples(int n, struct zt_error *err) {
    if (n >= 1 && n <= SAMPLES_MAX) return ZT_OK;
    return zt_fail(err, ZT_EINVAL, "a fit wants 1 to %d samples, not %d", SAMPLES_MAX, n);
}

static bool positive(double v) { return isfinite(v) && v > 0; }

int zt_cost_fit_rate(const struct zt_cost_sample *s, int n, double *out_rate, double *half_side,
                     double *error, struct zt_error *err) {
    double x[SAMPLES_MAX] = {0}, y[SAMPLES_MAX] = {0}, a, b;
    int rc = check_samples(n, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) {
        if (!positive(s[i].flops) || !positive(s[i].side) || !positive(s[i].seconds))
            return zt_fail(err, ZT_EINVAL, "a fit's sample %d: %g FLOPs, side %g, %g s", i,
                           s[i].flops, s[i].side, s[i].seconds);
        x[i] = s[i].flops / s[i].seconds;
        y[i] = x[i] / s[i].side;
    }
    if (!solve(x, y, n, &a, &b) || a <= 0 || b < 0) { /* no such effect in these times */
        a = solve_one(x, n);
        b = 0;
    }
    *out_rate = 1 / a;
    *half_side = b / a;
    *error = root_mean_square(x, y, n, a, b);
    return ZT_OK;
}

int zt_cost_fit_link(const struct zt_cost_transfer *s, int n, struct zt_cost_link *link,
                     double *error, struct zt_error *err) {
    double x[SAMPLES_MAX] = {0}, y[SAMPLES_MAX] = {0}, a, b;
    int rc = check_samples(n, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) {
        if (!positive(s[i].rounds) || !positive(s[i].sent) || !positive(s[i].seconds))
            return zt_fail(err, ZT_EINVAL, "a fit's sample %d: %g rounds, %g bytes, %g s", i,
                           s[i].rounds, s[i].sent, s[i].seconds);
        x[i] = s[i].rounds / s[i].seconds;
        y[i] = s[i].sent / s[i].seconds;
    }
    if (!solve(x, y, n, &a, &b))
        return zt_fail(err, ZT_EINVAL, "a link's alpha and bandwidth want two different sizes");
    if (a < 0 || b <= 0) { /* these times do not tell the two apart: a bandwidth over all */
        a = 0;
        b = solve_one(y, n);
    }
    *link = (struct zt_cost_link){.alpha_ns = (int64_t)llround(a * NS), .bytes_per_second = 1 / b};
    *error = root_mean_square(x, y, n, a, b);
    return ZT_OK;
}
