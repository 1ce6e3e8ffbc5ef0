/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate_ops.c: operators on buffers of a cpu device, as the trainer has them. Data are random
 * numbers in [-1, 1): zeros would run faster than data do. */
#include "worker/calibrate_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/rng.h"
#include "core/units.h"

#define CALL_SECONDS 2e-3 /* calls are repeated until so much time is measured at once */
#define REPEAT_MOST 64
/* Calls walk through so many elements beyond the largest operand: a step finds hardly any of its operands in
 * the nearer caches, where one buffer used again and again would stay. */
#define WALK ((size_t)8 << 20)
#define WALK_SMALL ((size_t)1 << 20)

static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};

/* ------------------------------------------------------------------------------------- the cases */

struct list { struct cal_case *c; int n; };

static struct cal_case *add(struct list *l, const char *op, const char *how, struct zt_cost_work w)
{
    ZT_ASSERT(l->n < CAL_CASES);
    struct cal_case *c = &l->c[l->n++];
    *c = (struct cal_case){.op = op, .how = how, .type = w.type, .flops = w.flops, .bytes = w.bytes,
                           .side = w.side, .head = w.head};
    return c;
}

static void shape(struct cal_case *c, int dims, int64_t a, int64_t b, int64_t d, int64_t e)
{
    const int64_t all[] = {a, b, d, e};
    c->dims = dims;
    memcpy(c->shape, all, sizeof(all));
}

/* One linear layer: y = x W^T and its two gradients. */
static void add_gemm(struct list *l, enum zt_dtype t, int64_t rows, int64_t in, int64_t out)
{
    static const char *const how[] = {"fwd", "dx", "dw"};
    const int64_t mnk[3][3] = {{rows, out, in}, {rows, in, out}, {out, in, rows}};
    for (int op = 0; op < 3; op++) {
        int64_t M = mnk[op][0], N = mnk[op][1], K = mnk[op][2];
        struct cal_case *c = add(l, "gemm", how[op], zt_work_gemm(M, N, K, t, t, false));
        shape(c, 3, M, N, K, 0);
        c->operand = M * K > N * K ? M * K : N * K;
        c->output = M * N;
        c->workspace = zt_ops_cpu()->gemm_workspace((enum zt_gemm_op)op, M, N, K, t);
    }
}

/* On q, k and v side by side, as GPT-2 has them. */
static struct zt_attention attention_of(const int64_t s[4])
{
    const int64_t row = 3 * s[2] * s[3];
    return (struct zt_attention){.B = s[0], .T = s[1], .H = s[2], .KV = s[2], .D = s[3],
                                 .q_row = row, .k_row = row, .v_row = row};
}

static void add_attention(struct list *l, enum zt_dtype t, int64_t B, int64_t T, int64_t H, int64_t D)
{
    for (int backward = 0; backward < 2; backward++) {
        struct cal_case *c = add(l, backward ? "attention_backward" : "attention_forward", "causal",
                                 zt_work_attention(backward, B, T, H, H, D, t));
        shape(c, 4, B, T, H, D);
        c->operand = c->output = 3 * B * T * H * D;
        const struct zt_attention a = attention_of(c->shape);
        c->workspace = backward ? zt_ops_cpu()->attention_backward_workspace(&a, t)
                                : zt_ops_cpu()->attention_workspace(&a, t);
    }
}

static void add_rows(struct list *l, enum zt_dtype t, int64_t rows, int64_t width)
{
    const double size = (double)zt_dtype_size(t), n = (double)rows * (double)width;
    const struct { const char *how; int64_t width; double moved; int results; } ops[] = {
        {"gelu_forward", 4 * width, 2, 1}, {"gelu_backward", 4 * width, 3, 1},
        {"swiglu_forward", 3 * width, 3, 1}, {"swiglu_backward", 3 * width, 6, 3},
        {"layernorm_forward", width, 4, 2}, {"layernorm_backward", width, 3, 1},
        {"rmsnorm_forward", width, 4, 2}, {"rmsnorm_backward", width, 3, 1},
        {"bias_backward", 4 * width, 1, 1}, {"cross_entropy", width, 2, 1}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        double wide = (double)(ops[i].width / width) * n;
        struct cal_case *c = add(l, "rows", ops[i].how, zt_work_rows((int64_t)wide, ops[i].moved * wide * size, t));
        shape(c, 2, rows, ops[i].width, 0, 0);
        c->operand = rows * ops[i].width;
        c->output = ops[i].results * c->operand;
        c->workspace = zt_ops_cpu()->layernorm_backward_workspace(rows, width) +
                       zt_ops_cpu()->bias_backward_workspace(rows, ops[i].width);
    }
}

static void add_memory(struct list *l, int64_t bytes)
{
    struct cal_case *c = add(l, "copy", "copy", zt_work_bytes(2 * (double)bytes));
    shape(c, 1, bytes, 0, 0, 0);
    c->operand = c->output = bytes / 4;
}

static void add_one(struct list *l, const char *op, const char *how, struct zt_cost_work w, int64_t n)
{
    struct cal_case *c = add(l, op, how, w);
    shape(c, 1, n, 0, 0, 0);
    c->operand = c->output = n;
}

int zw_cal_cases(bool small, struct cal_case *out)
{
    struct list l = {out, 0};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        enum zt_dtype t = types[i];
        add_gemm(&l, t, 256, 64, 64);
        add_gemm(&l, t, 256, 128, 256);
        add_attention(&l, t, 2, 64, 2, 32);
        add_attention(&l, t, 2, 128, 2, 32);
        add_attention(&l, t, 2, 128, 1, 64);
        add_rows(&l, t, 256, 64);
        if (small) {
            continue;
        }
        add_gemm(&l, t, 1024, 128, 512);
        add_gemm(&l, t, 2048, 256, 1024);
        add_gemm(&l, t, 2048, 384, 384);
        add_gemm(&l, t, 2048, 768, 3072);
        add_attention(&l, t, 8, 256, 4, 64);
        add_attention(&l, t, 8, 256, 8, 32);
        add_attention(&l, t, 8, 256, 2, 128);
        add_attention(&l, t, 2, 1024, 4, 64);
        add_rows(&l, t, 2048, 256);
    }
    for (int64_t mib = 1; mib <= (small ? 4 : 128); mib *= 2) {
        add_memory(&l, mib * (int64_t)ZT_MIB / 2);
    }
    add_one(&l, "random", "normal", zt_work_random(small ? 1 << 16 : 1 << 20, ZT_F32), small ? 1 << 16 : 1 << 20);
    add_one(&l, "launch", "scale", zt_work_bytes(8), 1);
    return l.n;
}

/* ------------------------------------------------------------------------------------ the buffers */

struct buffers {
    struct zt_device *device;
    char *base;
    size_t used, size;
    size_t walk, at; /* elements that operands and results may begin at; of the next call */
    void *a[3], *b[3];          /* operands by type */
    void *out, *work, *side[4]; /* a result; scratch; statistics, the last for what is added up */
    int32_t *targets;
};

static size_t most_of(const struct cal_case *cases, int n, int what)
{
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t v = what == 0 ? (size_t)cases[i].operand : what == 1 ? (size_t)cases[i].output : cases[i].workspace;
        most = v > most ? v : most;
    }
    return most;
}

static void *take(struct buffers *b, size_t bytes)
{
    void *p = b->base + b->used;
    b->used += zt_round_up(bytes, 4096);
    ZT_ASSERT(b->used <= b->size);
    return p;
}

enum { STATISTICS = 1 << 16 }; /* rows, or heads x positions, of any case */

static void open_buffers(struct buffers *b, struct zt_ops_ctx *x, const struct cal_case *cases, int n)
{
    struct zt_error err = {0};
    size_t operand = most_of(cases, n, 0) + b->walk, output = most_of(cases, n, 1) + b->walk;
    size_t work = most_of(cases, n, 2);
    size_t page = 4096, sum = 2 * (4 + 2 + 2) * (operand + page) + 4 * (output + page) + work + page +
                              5 * (4 * (size_t)STATISTICS + page);
    b->size = zt_round_up(sum, 2 * ZT_MIB);
    struct zt_device_config dc = {.name = "cpu", .capacity_bytes = b->size};
    zw_cal_must(zt_device_open(&dc, &b->device, &err), &err);
    void *base;
    zw_cal_must(zt_device_ops(b->device)->segment_alloc(b->device, b->size, &base, &err), &err);
    b->base = base;
    for (int k = 0; k < 2; k++) {
        float *raw = take(b, operand * 4);
        for (size_t i = 0; i < operand; i += 4) {
            uint32_t w[4];
            zt_rng_words(1, ZT_RNG_TEST, 0, (uint32_t)k, i, w);
            for (size_t e = 0; e < 4 && i + e < operand; e++) {
                raw[i + e] = (float)((double)w[e] * 0x1p-31 - 1);
            }
        }
        void **to = k ? b->b : b->a;
        to[ZT_F32] = raw;
        for (int t = ZT_BF16; t <= ZT_F16; t++) {
            to[t] = take(b, operand * 2);
            zw_cal_must(zt_ops_cpu()->cast(x, to[t], (enum zt_dtype)t, raw, ZT_F32, (int64_t)operand, &err), &err);
        }
    }
    b->out = take(b, output * 4);
    b->work = take(b, work + 1);
    for (int k = 0; k < 4; k++) {
        b->side[k] = take(b, 4 * STATISTICS);
    }
    b->targets = take(b, 4 * STATISTICS);
    for (int i = 0; i < STATISTICS; i++) {
        b->targets[i] = i % 64;
        for (int k = 0; k < 4; k++) {
            ((float *)b->side[k])[i] = 1;
        }
    }
    memset(b->out, 0, output * 4);
}

/* Resident memory beside the buffers, in bytes. */
static int64_t resident_beside(const struct buffers *b)
{
    long long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lld %lld", &total, &pages) != 2) {
        pages = 0;
    }
    if (f) {
        fclose(f);
    }
    int64_t bytes = (int64_t)pages * sysconf(_SC_PAGESIZE) - (int64_t)b->used;
    return bytes > 0 ? bytes : 0;
}

/* ------------------------------------------------------------------------------------ one call */

/* Where this call's part of a buffer of type t begins. */
static void *walked(const struct buffers *b, void *base, enum zt_dtype t)
{
    return (char *)base + b->at * zt_dtype_size(t);
}

static int call_rows(struct zt_ops_ctx *x, const struct buffers *b, const struct cal_case *c, struct zt_error *err)
{
    const struct zt_ops *o = zt_ops_cpu();
    enum zt_dtype t = c->type;
    void *in = walked(b, b->a[t], t), *other = walked(b, b->b[t], t), *out = walked(b, b->out, t);
    int64_t N = c->shape[0], C = c->shape[1];
    void *second = (char *)out + (size_t)(N * C) * zt_dtype_size(t);
    if (!strcmp(c->how, "gelu_forward")) {
        return o->gelu_forward(x, t, out, in, N * C, err);
    }
    if (!strcmp(c->how, "gelu_backward")) {
        return o->gelu_backward(x, t, out, in, other, N * C, err);
    }
    if (!strcmp(c->how, "layernorm_forward")) {
        return o->layernorm_forward(x, t, out, b->side[0], b->side[1], in, other, second, in, in, N, C, 1e-5, err);
    }
    if (!strcmp(c->how, "layernorm_backward")) {
        void *dweight = b->side[3], *dbias = (float *)b->side[3] + C;
        return o->layernorm_backward(x, t, t, out, dweight, dbias, in, other, in, b->side[0], b->side[1], N, C,
                                     false, b->work, err);
    }
    if (!strcmp(c->how, "swiglu_forward")) {
        return o->swiglu_forward(x, t, out, in, other, N * C, err);
    }
    if (!strcmp(c->how, "swiglu_backward")) {
        void *third = (char *)second + (size_t)(N * C) * zt_dtype_size(t);
        return o->swiglu_backward(x, t, out, second, third, in, other, other, N * C, err);
    }
    if (!strcmp(c->how, "rmsnorm_forward")) {
        return o->rmsnorm_forward(x, t, out, b->side[0], in, other, second, in, N, C, 1e-5, err);
    }
    if (!strcmp(c->how, "rmsnorm_backward")) {
        return o->rmsnorm_backward(x, t, t, out, b->side[3], in, other, in, b->side[0], N, C, false, b->work, err);
    }
    if (!strcmp(c->how, "bias_backward")) {
        return o->bias_backward(x, t, t, out, in, N, C, false, b->work, err);
    }
    return o->cross_entropy(x, t, out, b->side[3], b->targets, NULL, N, C, 1.0f / (float)N, true, err);
}

/* in: q, k, v; other: gradients and results of a forward */
static int call_attention(struct zt_ops_ctx *x, const struct cal_case *c, char *in, void *other, char *out,
                          void *const *side, void *work, struct zt_error *err)
{
    const struct zt_ops *o = zt_ops_cpu();
    const struct zt_attention a = attention_of(c->shape);
    const size_t part = (size_t)(a.H * a.D) * zt_dtype_size(c->type);
    if (!strcmp(c->op, "attention_forward")) {
        return o->attention_forward(x, c->type, out, side[0], in, in + part, in + 2 * part, &a, work, err);
    }
    return o->attention_backward(x, c->type, out, out + part, out + 2 * part, other, in, in + part, in + 2 * part,
                                 other, side[2], &a, work, err);
}

static int call(struct zt_ops_ctx *x, const struct buffers *b, const struct cal_case *c, struct zt_error *err)
{
    const struct zt_ops *o = zt_ops_cpu();
    enum zt_dtype t = c->type;
    const int64_t *s = c->shape;
    void *work = c->workspace ? b->work : NULL;
    void *in = walked(b, b->a[t], t), *other = walked(b, b->b[t], t), *out = walked(b, b->out, t);
    if (!strcmp(c->op, "gemm")) {
        enum zt_gemm_op op = c->how[0] == 'f' ? ZT_GEMM_FWD : c->how[1] == 'x' ? ZT_GEMM_DX : ZT_GEMM_DW;
        return o->gemm(x, op, s[0], s[1], s[2], t, in, other, NULL, out, t, false, work, err);
    }
    if (!strncmp(c->op, "attention_", 10)) {
        return call_attention(x, c, in, other, out, b->side, work, err);
    }
    if (!strcmp(c->op, "rows")) {
        return call_rows(x, b, c, err);
    }
    if (!strcmp(c->op, "copy")) {
        return o->copy(x, out, in, (size_t)s[0], err);
    }
    if (!strcmp(c->op, "random")) {
        return o->fill_normal(x, t, out, 1, 1, zt_span_plain(0, s[0]), s[0], 0.02, err);
    }
    return o->scale(x, t, out, 1.0f, s[0], err);
}

/* One thread computes without ever waiting, so that its CPU time is the time it takes where nothing else runs;
 * of several the wall clock counts, with whatever else runs on the machine. */
static double stopwatch(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double timed(struct zt_ops_ctx *x, struct buffers *b, const struct cal_case *c, int times, int threads)
{
    struct zt_error err = {0};
    double from = stopwatch(threads);
    for (int i = 0; i < times; i++) {
        zw_cal_must(call(x, b, c, &err), &err);
        b->at += zt_round_up((size_t)(c->operand > c->output ? c->operand : c->output), 4096);
        b->at = b->at < b->walk ? b->at : 0;
    }
    return (stopwatch(threads) - from) / times;
}

/* A call to warm up, which says how often to repeat; then the calls that count. */
static double measure(struct zt_ops_ctx *x, struct buffers *b, const struct cal_case *c, int threads)
{
    double one = timed(x, b, c, 1, threads);
    double times = CALL_SECONDS / (one > 1e-9 ? one : 1e-9);
    return timed(x, b, c, times < 1 ? 1 : times > REPEAT_MOST ? REPEAT_MOST : (int)times, threads);
}

static void describe(struct cal_board *b, const struct zt_ops_ctx *x)
{
    snprintf(b->describe, sizeof(b->describe), "%s", zt_ops_cpu_describe(x));
    for (int t = ZT_F32; t <= ZT_F16; t++) {
        const char *how = zt_ops_cpu_compute(x, (enum zt_dtype)t);
        snprintf(b->compute[t], sizeof(b->compute[t]), "%s", how ? how : "not there");
    }
}

void zw_cal_operators(struct cal_rank *r, const struct cal_case *cases, int n)
{
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    struct buffers b = {0};
    const int least = r->o->seconds < 5 ? 1 : 3;
    zw_cal_must(zt_ops_cpu_create(r->threads, r->o->isa, r->o->gemm, &x, &err), &err);
    if (r->rank == 0) {
        describe(r->board, x);
    }
    b.walk = r->o->seconds < SMALL_SECONDS ? WALK_SMALL : WALK;
    open_buffers(&b, x, cases, n);
    for (int round = 0, more = 1; more; round++) {
        for (int i = 0; i < n; i++) {
            zw_cal_meet(r->board);
            r->board->seconds[r->rank][i][round] = (float)measure(x, &b, &cases[i], r->threads);
        }
        zw_cal_meet(r->board);
        if (r->rank == 0) {
            r->board->rounds = round + 1;
            r->board->more = round + 1 < least || (round + 1 < CAL_ROUNDS && zw_cal_now() < r->until);
        }
        zw_cal_meet(r->board);
        more = r->board->more;
    }
    r->board->resident[r->rank] = resident_beside(&b);
    zt_ops_cpu_destroy(x);
    zt_device_ops(b.device)->segment_free(b.device, b.base, b.size);
    zt_device_close(b.device);
}
