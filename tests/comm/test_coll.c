/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/test_coll.c: values of the collectives on 1, 2, 3, 4 and 8 forked ranks. Expected
 * values are closed formulas, or sums in rank order written out here, element by element. Every
 * case runs with buffers in device memory (in place), on the heap (staged) and mixed over the
 * ranks; and the whole file for ranks of one host and of several (fleet_hosts). */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/mesh.h"
#include "engine/comm/reduce.h"
#include "tests/comm/fleet.h"

#define LIMIT 240.0
enum place { DEVICE, HEAP, MIXED, PLACES };
static void *memory(struct rank *r, enum place p, size_t bytes, size_t skip) {
    return p == DEVICE || (p == MIXED && r->rank % 2 == 0) ? fleet_device(r, bytes, skip)
                                                           : fleet_host(r, bytes, skip);
}
static const struct zt_coll_why why = {"h.0", "test", 7, false};
#define OK(call) CHECK(r, (call) == 0)

/* ---- the small integers ---- */

static int formulas(struct rank *r) {
    const int K = r->world;
    for (int place = 0; place < PLACES; place++) {
        r->used = 0;
        float *x = memory(r, (enum place)place, 64 * sizeof *x, 4);
        float *y = memory(r, (enum place)place, 64 * sizeof *y, 0);
        for (int root = 0; root < K; root++)
            for (int by_group = 0; by_group < 2; by_group++) {
                for (int i = 0; i < 5; i++) x[i] = r->rank == root ? 42.0f : -1.0f;
                OK(zt_broadcast(r->comm, x, 5, ZT_F32, by_group ? ZT_ROOT_NONE : root,
                                by_group ? root : ZT_ROOT_NONE, r->compute, &why, &r->err));
                for (int i = 0; i < 5; i++) CHECK(r, x[i] == 42.0f);
            }
        for (int op = ZT_SUM; op <= ZT_AVG; op++) {
            const float want[] = {(float)(K * (K + 1)) / 2, (float)K, 1.0f, (float)(K + 1) / 2};
            for (int i = 0; i < 3; i++) x[i] = (float)(r->rank + 1);
            x[3] = 99.0f;
            OK(zt_all_reduce(r->comm, x, 3, ZT_F32, (enum zt_redop)op, r->compute, &why, &r->err));
            /* avg multiplies by the rounded 1/K first: exact only for powers of two */
            float slack = op == ZT_AVG && (K & (K - 1)) ? 1e-6f : 0.0f;
            for (int i = 0; i < 3; i++) CHECK(r, fabsf(x[i] - want[op]) <= slack * want[op]);
            CHECK(r, x[3] == 99.0f); /* nothing past the end */
        }
        for (int i = 0; i < 2 * K; i++) x[i] = (float)(i + r->rank);
        y[2] = 99.0f;
        OK(zt_reduce_scatter(r->comm, x, y, 2, ZT_F32, ZT_SUM, r->compute, &why, &r->err));
        CHECK(r, y[0] == (float)(2 * r->rank * K + K * (K - 1) / 2));
        CHECK(r, y[1] == (float)((2 * r->rank + 1) * K + K * (K - 1) / 2));
        CHECK(r, y[2] == 99.0f);
        for (int i = 0; i < 2 * K; i++)
            CHECK(r, x[i] == (float)(i + r->rank)); /* input untouched */
        /* the same in place: recv is this rank's slice of send */
        OK(zt_reduce_scatter(r->comm, x, x + 2 * r->rank, 2, ZT_F32, ZT_SUM, r->compute, &why,
                             &r->err));
        CHECK(r, x[2 * r->rank] == y[0] && x[2 * r->rank + 1] == y[1]);
        y[0] = (float)r->rank, y[1] = (float)(100 + r->rank);
        x[2 * K] = 99.0f;
        OK(zt_all_gather(r->comm, y, x, 2, ZT_F32, r->compute, &why, &r->err));
        for (int j = 0; j < K; j++)
            CHECK(r, x[2 * j] == (float)j && x[2 * j + 1] == (float)(100 + j));
        CHECK(r, x[2 * K] == 99.0f);
        for (int i = 0; i < 2 * K; i++)
            if (i / 2 != r->rank) x[i] = -1;
        OK(zt_all_gather(r->comm, x + 2 * r->rank, x, 2, ZT_F32, r->compute, &why, &r->err));
        for (int j = 0; j < K; j++)
            CHECK(r, x[2 * j] == (float)j && x[2 * j + 1] == (float)(100 + j));
        OK(zt_barrier(r->comm, r->compute, NULL, &r->err));
        /* nothing to do is fine, also without buffers */
        OK(zt_all_reduce(r->comm, NULL, 0, ZT_F32, ZT_SUM, r->compute, &why, &r->err));
        OK(zt_all_gather(r->comm, NULL, NULL, 0, ZT_F32, r->compute, &why, &r->err));
        OK(zt_reduce_scatter(r->comm, NULL, NULL, 0, ZT_F32, ZT_MAX, r->compute, &why, &r->err));
        OK(zt_broadcast(r->comm, NULL, 0, ZT_F32, K - 1, ZT_ROOT_NONE, r->compute, &why, &r->err));
    }
    return 0;
}
static void over_worlds(int (*body)(struct rank *), const int *worlds, int n) {
    for (int i = 0; i < n; i++) {
        struct fleet f = {.world = worlds[i], .body = body};
        cr_assert(fleet_ok(&f, LIMIT), "world %d", worlds[i]);
    }
}
Test(coll, formulas, .timeout = 300) {
    const int worlds[] = {1, 2, 3, 4, 8};
    over_worlds(formulas, worlds, 5);
}

/* ---- bits ---- */

/* the sum in rank order, one rounding per add; scale first when averaging */
static float ordered(const struct rank *r, uint64_t seed, uint64_t i, bool avg) {
    float f = avg ? (float)(1.0 / r->world) : 1.0f;
    volatile float acc = fleet_float(seed * 100, i) * f;
    for (int j = 1; j < r->world; j++) {
        volatile float x = fleet_float(seed * 100 + (uint64_t)j, i) * f;
        acc = acc + x;
    }
    return acc;
}
static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static void bits_case(struct rank *r, enum place p, int64_t n, uint64_t seed, size_t skip) {
    const size_t K = (size_t)r->world, N = (size_t)n;
    const uint64_t own = seed * 100 + (uint64_t)r->rank;
    r->used = 0;
    float *full = memory(r, p, N * K * sizeof *full, skip);
    float *again = memory(r, p, N * K * sizeof *full, 4 + skip);
    float *part = memory(r, p, (N + 1) * sizeof *part, 8);
    /* reduce-scatter, all-gather of it, all-reduce of the whole: equal bit by bit */
    for (size_t i = 0; i < N * K; i++) full[i] = again[i] = fleet_float(own, i);
    part[N] = 12345.0f;
    OK(zt_reduce_scatter(r->comm, full, part, n, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
    OK(zt_all_gather(r->comm, part, full, n, ZT_F32, r->stream, &why, &r->err));
    OK(zt_all_reduce(r->comm, again, n * r->world, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    CHECK(r, part[N] == 12345.0f);
    for (size_t i = 0; i < N; i++)
        CHECK(r, same_bits(part[i], ordered(r, seed, (size_t)r->rank * N + i, false)));
    CHECK(r, memcmp(full, again, N * K * sizeof *full) == 0);
    for (size_t i = 0; i < N * K; i++) CHECK(r, same_bits(again[i], ordered(r, seed, i, false)));
    /* a count that does not divide by the world, averaged, and reduced and gathered in place */
    int64_t odd = n * r->world - 1;
    for (size_t i = 0; i < N * K; i++) again[i] = full[i] = fleet_float(own, i);
    OK(zt_all_reduce(r->comm, again, odd, ZT_F32, ZT_AVG, r->stream, &why, &r->err));
    float *slice = full + (size_t)r->rank * N;
    OK(zt_reduce_scatter(r->comm, full, slice, n, ZT_F32, ZT_AVG, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    for (int64_t i = 0; i < odd; i++)
        CHECK(r, same_bits(again[i], ordered(r, seed, (uint64_t)i, true)));
    if (odd < n * r->world) CHECK(r, same_bits(again[odd], fleet_float(own, (uint64_t)odd)));
    for (size_t i = 0; i < N * K; i++) /* other slices of the input are as they were */
        if (i / N != (size_t)r->rank) CHECK(r, same_bits(full[i], fleet_float(own, i)));
    OK(zt_all_gather(r->comm, slice, full, n, ZT_F32, r->stream, &why, &r->err));
    int root = (int)(seed % K);
    for (int64_t i = 0; i < odd; i++) again[i] = fleet_float(own, (uint64_t)i);
    OK(zt_broadcast(r->comm, again, odd, ZT_F32, root, ZT_ROOT_NONE, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    for (size_t i = 0; i < N * K; i++) CHECK(r, same_bits(full[i], ordered(r, seed, i, true)));
    for (int64_t i = 0; i < odd; i++)
        CHECK(r, same_bits(again[i], fleet_float(seed * 100 + (uint64_t)root, (uint64_t)i)));
}

static int bits(struct rank *r) {
    /* around the vector, the small limit (1024 floats), the staging half (32768) and the look step
     */
    const int64_t sizes[] = {1,    2,    15,    16,    17,    340,   512,   1023,
                             1024, 1025, 10923, 32767, 32769, 70001, 131073};
    const size_t step = r->fleet->hosts ? 2 : 1; /* over hosts every other one */
    uint64_t seed = 1;
    for (int p = 0; p < PLACES; p++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += step, seed++)
            bits_case(r, (enum place)p, sizes[i], seed, 4 * (seed % 5));
    return 0;
}
Test(coll, bits, .timeout = 300) {
    const int worlds[] = {2, 3, 4};
    over_worlds(bits, worlds, 3);
}
static int bits_some(struct rank *r) {
    bits_case(r, DEVICE, 1000, 1, 4);
    bits_case(r, HEAP, 5000, 2, 0);
    bits_case(r, MIXED, 33, 3, 8);
    bits_case(r, DEVICE, 40000, 4, 0);
    return 0;
}
Test(coll, bits_8, .timeout = 300) {
    const int worlds[] = {8, 1};
    over_worlds(bits_some, worlds, 2);
}
/* Past the size from which copies bypass the caches (8 MiB). */
static int bits_big(struct rank *r) {
    bits_case(r, DEVICE, 2500001, 5, 4);
    return 0;
}
Test(coll, bits_big, .timeout = 300) {
    struct fleet f = {.world = 2, .body = bits_big};
    cr_assert(fleet_ok(&f, LIMIT));
}

/* ---- element types ---- */

static float bf16_value(uint16_t h) { /* by the definition of the format, without bit casts */
    int e = h >> 7 & 255, m = h & 127;
    float v = e ? ldexpf((float)(128 + m), e - 134) : ldexpf((float)m, -133);
    return h >> 15 ? -v : v;
}
/* The nearest bf16 to x, ties to even, by search over the neighbours in double. */
static uint16_t bf16_nearest(float x) {
    uint16_t best = 0;
    double gap = INFINITY;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    for (uint32_t h = (bits >> 16) - (bits >> 16 & 0x7fff ? 1 : 0); h <= (bits >> 16) + 1; h++) {
        double g = fabs((double)bf16_value((uint16_t)h) - (double)x);
        if (g < gap || (g == gap && !(h & 1))) gap = g, best = (uint16_t)h;
    }
    return best;
}

static double f16_value(uint16_t h) { /* by the definition of the format */
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}
/* The nearest fp16, ties to even: half-way points found by bisection over the codes, whose values
 * rise. */
static uint16_t f16_nearest(double x) {
    double a = fabs(x);
    uint16_t lo = 0, hi = 0x7c00; /* value(lo) <= a < value(hi), which is infinite */
    if (isinf(a)) lo = 0x7c00;
    while (!isinf(a) && hi - lo > 1) {
        uint16_t mid = (uint16_t)((lo + hi) / 2);
        *(f16_value(mid) <= a ? &lo : &hi) = mid;
    }
    double top = hi == 0x7c00 ? 65536 : f16_value(hi); /* rounding sees no end of the range */
    double half = (f16_value(lo) + top) / 2;
    if (lo < 0x7c00 && (a > half || (a == half && lo & 1))) lo++;
    return (uint16_t)(lo | (signbit(x) ? 0x8000 : 0));
}

/* Every fp16 number survives the way to fp32 and back; sums are rounded once, also to subnormals
 * and to infinity. */
Test(coll, f16_arithmetic) {
    static uint16_t a[65536], b[65536], c[65536], out[65536];
    const void *src[3] = {a, b, c};
    void *dst[1] = {out};
    for (int i = 0; i < 65536; i++) a[i] = (uint16_t)i;
    zt_reduce(ZT_F16, ZT_AVG, 1, src, 1, dst, 65536);
    for (int i = 0; i < 65536; i++)
        if ((i & 0x7fff) <= 0x7c00)
            cr_assert_eq(out[i], i, "%04x became %04x", (unsigned)i, out[i]);
        else
            cr_assert((out[i] & 0x7fff) > 0x7c00 && (out[i] & 0x8000) == (i & 0x8000));
    for (uint64_t round = 0; round < 8; round++) {
        for (size_t i = 0; i < 65536; i++) {
            uint64_t z = fleet_random(round, i);
            uint16_t top = (uint16_t)(round < 4 ? 0x7bff : 0x7ff << (round - 4) | 0x3ff);
            a[i] =
                (uint16_t)((z & top) | (z & 0x8000)); /* rounds of any size, then of small ones */
            b[i] = (uint16_t)((z >> 16 & top) | (z >> 16 & 0x8000));
            c[i] = (uint16_t)((z >> 32 & top) | (z >> 32 & 0x8000));
            if (round == 1) b[i] = (uint16_t)((a[i] & 0x7c00) | (b[i] & 0x83ff)); /* near sizes */
            if ((a[i] & 0x7c00) == 0x7c00) a[i] &= 0x83ff;
            if ((b[i] & 0x7c00) == 0x7c00) b[i] &= 0x83ff;
            if ((c[i] & 0x7c00) == 0x7c00) c[i] &= 0x83ff;
        }
        zt_reduce(ZT_F16, ZT_SUM, 3, src, 1, dst, 65536);
        for (int i = 0; i < 65536; i++) {
            volatile float sum = (float)f16_value(a[i]) + (float)f16_value(b[i]);
            sum = sum + (float)f16_value(c[i]);
            cr_assert_eq(out[i], f16_nearest((double)sum), "%04x + %04x + %04x = %04x, not %04x",
                         a[i], b[i], c[i], out[i], f16_nearest((double)sum));
        }
    }
}

static int types(struct rank *r) {
    enum { N = 3001 };
    const int K = r->world;
    for (int p = 0; p < PLACES; p++) {
        r->used = 0;
        int32_t *i32 = memory(r, (enum place)p, N * 4, 4);
        int64_t *i64 = memory(r, (enum place)p, N * 8, 8);
        uint8_t *u8 = memory(r, (enum place)p, N, 3);
        uint16_t *bf = memory(r, (enum place)p, N * 2, 2);
        uint16_t *hf = memory(r, (enum place)p, N * 2, 2);
        float *f32 = memory(r, (enum place)p, N * 4, 0);
        for (int op = ZT_SUM; op <= ZT_MIN; op++) {
            for (int i = 0; i < N; i++) {
                uint64_t z = fleet_random(50 + (uint64_t)r->rank, (uint64_t)i);
                i32[i] = (int32_t)z, i64[i] = (int64_t)z, u8[i] = (uint8_t)z;
                bf[i] = (uint16_t)(0x3f00 + (z & 0x80ff)); /* |x| in [0.5, 2) */
                hf[i] = (uint16_t)(z & 0xb7ff);            /* |x| < 0.5 */
                f32[i] = fleet_float(60 + (uint64_t)r->rank, (uint64_t)i);
            }
            if (r->rank == K - 1) f32[5] = NAN;
            OK(zt_all_reduce(r->comm, i32, N, ZT_I32, (enum zt_redop)op, r->compute, &why,
                             &r->err));
            OK(zt_all_reduce(r->comm, i64, N, ZT_I64, (enum zt_redop)op, r->compute, &why,
                             &r->err));
            OK(zt_all_reduce(r->comm, u8, N, ZT_U8, (enum zt_redop)op, r->compute, &why, &r->err));
            OK(zt_all_reduce(r->comm, bf, N, ZT_BF16, (enum zt_redop)op, r->compute, &why,
                             &r->err));
            OK(zt_all_reduce(r->comm, hf, N, ZT_F16, (enum zt_redop)op, r->compute, &why, &r->err));
            OK(zt_all_reduce(r->comm, f32, N, ZT_F32, (enum zt_redop)op, r->compute, &why,
                             &r->err));
            for (int i = 0; i < N; i++) {
                uint64_t z = fleet_random(50, (uint64_t)i);
                int32_t a = (int32_t)z;
                int64_t b = (int64_t)z;
                uint8_t c = (uint8_t)z;
                volatile float d = bf16_value((uint16_t)(0x3f00 + (z & 0x80ff)));
                volatile float h = (float)f16_value((uint16_t)(z & 0xb7ff));
                float e = fleet_float(60, (uint64_t)i);
                for (int j = 1; j < K; j++) {
                    z = fleet_random(50 + (uint64_t)j, (uint64_t)i);
                    float y = bf16_value((uint16_t)(0x3f00 + (z & 0x80ff)));
                    float v = (float)f16_value((uint16_t)(z & 0xb7ff));
                    float w = fleet_float(60 + (uint64_t)j, (uint64_t)i);
                    if (op == ZT_SUM) {
                        a = (int32_t)((uint32_t)a + (uint32_t)z), b = (int64_t)((uint64_t)b + z);
                        c = (uint8_t)(c + z), d = d + y, h = h + v;
                    } else if (op == ZT_MAX) {
                        a = (int32_t)z > a ? (int32_t)z : a, b = (int64_t)z > b ? (int64_t)z : b;
                        c = (uint8_t)z > c ? (uint8_t)z : c, d = y > d ? y : d, e = w > e ? w : e;
                        h = v > h ? v : h;
                    } else {
                        a = (int32_t)z < a ? (int32_t)z : a, b = (int64_t)z < b ? (int64_t)z : b;
                        c = (uint8_t)z < c ? (uint8_t)z : c, d = y < d ? y : d, e = w < e ? w : e;
                        h = v < h ? v : h;
                    }
                }
                CHECK(r, i32[i] == a && i64[i] == b && u8[i] == c);
                CHECK(r, bf16_value(bf[i]) == bf16_value(bf16_nearest(d)));
                CHECK(r, f16_value(hf[i]) == f16_value(f16_nearest((double)h)));
                if (i == 5)
                    CHECK(r, isnan(f32[i])); /* a NaN of any rank reaches all */
                else if (op != ZT_SUM)
                    CHECK(r, f32[i] == e);
            }
        }
    }
    /* no average of integers */
    uint16_t h[64] = {0};
    h[r->rank] = (uint16_t)(0x3c00 + r->rank);
    OK(zt_all_gather(r->comm, &h[r->rank], h, 1, ZT_F16, r->compute, &why, &r->err));
    for (int j = 0; j < K; j++) CHECK(r, h[j] == 0x3c00 + j);
    CHECK(r, zt_all_reduce(r->comm, h, 4, ZT_I32, ZT_AVG, r->compute, &why, &r->err) == ZT_EINVAL);
    CHECK(r, strstr(r->err.msg, "all_reduce") && strstr(r->err.msg, "world") &&
                 strstr(r->err.msg, "h.0"));
    return 0;
}
Test(coll, types, .timeout = 300) {
    const int worlds[] = {1, 2, 3, 4};
    over_worlds(types, worlds, 4);
}

/* ---- an injected cost ---- */

/* The cost lies inside the logged interval and changes no value; control traffic is free of it. */
static int injected(struct rank *r) {
    const struct zt_comm_inject delay = {7, 20000000, 0, 0}, cost = {0, 0, 3000000, 1000.0};
    const struct zt_comm_inject hours = {0, 0, INT64_C(3600000000000), 0};
    const struct zt_coll_why control = {NULL, "count", 9, true};
    enum { N = 5000, ROUNDS = 20 };
    static struct zt_coll_record rec[64];
    int64_t waited = 0;
    float *x = fleet_device(r, N * 4, 0);
    struct zt_comm *g = NULL;
    OK(zt_comm_split(r->comm, "dp_shard", (const int[]){0, 1, 2}, 3, &g, &r->err));
    zt_comm_inject(r->comm, &delay);
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++) x[i] = fleet_float((uint64_t)(100 + r->rank), (uint64_t)i);
        OK(zt_all_reduce(k % 2 ? g : r->comm, x, N, ZT_F32, ZT_SUM, k % 3 ? r->stream : NULL, &why,
                         &r->err));
        OK(r->ops->stream_sync(r->stream, &r->err));
        for (int i = 0; i < N; i++) CHECK(r, same_bits(x[i], ordered(r, 1, (uint64_t)i, false)));
    }
    CHECK(r, zt_comm_log(r->comm, 0, rec, 64) == ROUNDS);
    for (int k = 0; k < ROUNDS; k++) waited += rec[k].end_ns - rec[k].start_ns;
    CHECK(r, waited >= ROUNDS * delay.max_delay_ns / 4); /* half on average; the seed is fixed */
    zt_comm_inject(r->comm, &cost);
    OK(zt_all_reduce(g, x, 3, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
    OK(zt_all_gather(g, x, x + 1000, 1000, ZT_F32, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    CHECK(r, zt_comm_log(r->comm, ROUNDS, rec, 64) == 2);
    for (int k = 0; k < 2; k++)
        CHECK(r, rec[k].end_ns - rec[k].start_ns >= cost.alpha_ns + rec[k].sent_bytes * 1000);
    CHECK(r, rec[1].sent_bytes == 8000);
    zt_comm_inject(r->comm, &hours); /* neither of these takes hours */
    OK(zt_all_reduce(g, x, N, ZT_F32, ZT_SUM, r->stream, &control, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    zt_comm_inject(r->comm, NULL);
    OK(zt_all_reduce(g, x, N, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    zt_comm_destroy(g);
    return 0;
}
Test(coll, injected_cost, .timeout = 120) {
    struct fleet f = {.world = 3, .body = injected};
    cr_assert(fleet_ok(&f, 100));
}

/* ---- bad calls are refused by the rank that makes them, and nothing else happens ---- */

static int bad_calls(struct rank *r) {
    float x[16] = {0};
    struct zt_comm *c = r->comm, *g = NULL;
#define BAD(call, part)                                                                            \
    do {                                                                                           \
        CHECK(r, (call) == ZT_EINVAL);                                                             \
        CHECK(r, strstr(r->err.msg, part) != NULL);                                                \
    } while (0)
    BAD(zt_broadcast(c, x, 1, ZT_F32, 0, 0, NULL, &why, &r->err), "not both");
    BAD(zt_broadcast(c, x, 1, ZT_F32, ZT_ROOT_NONE, ZT_ROOT_NONE, NULL, &why, &r->err), "no root");
    BAD(zt_broadcast(c, x, 1, ZT_F32, r->world, ZT_ROOT_NONE, NULL, &why, &r->err),
        "global rank 2");
    BAD(zt_broadcast(c, x, 1, ZT_F32, ZT_ROOT_NONE, -5, NULL, &why, &r->err), "group rank -5");
    BAD(zt_all_reduce(c, x, -1, ZT_F32, ZT_SUM, NULL, &why, &r->err), "count of -1");
    BAD(zt_all_reduce(c, x, INT64_MAX, ZT_F32, ZT_SUM, NULL, &why, &r->err), "out of range");
    BAD(zt_all_reduce(c, x, 1, (enum zt_dtype)77, ZT_SUM, NULL, &why, &r->err), "element type");
    BAD(zt_all_reduce(c, x, 1, ZT_F32, (enum zt_redop)9, NULL, &why, &r->err), "reduction 9");
    BAD(zt_all_reduce(c, NULL, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err), "NULL");
    BAD(zt_all_reduce(c, (char *)x + 2, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err), "aligned");
    BAD(zt_all_gather(c, x + 1, x, 4, ZT_F32, NULL, &why, &r->err), "overlap");
    BAD(zt_reduce_scatter(c, x, x + 3, 4, ZT_F32, ZT_SUM, NULL, &why, &r->err), "overlap");
    const int none[] = {0, 1}, other[] = {1 - r->rank}, down[] = {1, 0}, far[] = {0, 5};
    BAD(zt_comm_split(c, "a name of more than 15", none, 2, &g, &r->err), "letters");
    BAD(zt_comm_split(c, "g", none, 0, &g, &r->err), "0 ranks");
    BAD(zt_comm_split(c, "g", other, 1, &g, &r->err), "does not contain it");
    BAD(zt_comm_split(c, "g", down, 2, &g, &r->err), "ascending");
    BAD(zt_comm_split(c, "g", far, 2, &g, &r->err), "not in the parent");
    x[0] = 1;
    OK(zt_all_reduce(c, x, 1, ZT_F32, ZT_SUM, NULL, NULL, NULL));
    CHECK(r, x[0] == 2.0f);
    return 0;
}
Test(coll, bad_calls, .timeout = 120) {
    struct fleet f = {.world = 2, .body = bad_calls};
    cr_assert(fleet_ok(&f, LIMIT));
}

/* ---- groups of the mesh ---- */

static int groups(struct rank *r) {
    const struct zt_mesh mesh = {2, 2, 2};
    const enum zt_axis axes[] = {ZT_AXIS_TENSOR, ZT_AXIS_SHARD, ZT_AXIS_REPLICATE, ZT_AXIS_DP};
    const char *names[] = {"tensor", "dp_shard", "dp_replicate", "dp"};
    struct zt_comm *g[4];
    struct zt_stream *second = NULL;
    int list[4][8], n[4];
    OK(r->ops->stream_create(r->d, ZT_STREAM_GATHER, &second, &r->err));
    for (int a = 0; a < 4; a++) {
        n[a] = zt_mesh_group(mesh, axes[a], r->rank, list[a]);
        OK(zt_comm_split(r->comm, names[a], list[a], n[a], &g[a], &r->err));
        CHECK(r, zt_comm_size(g[a]) == n[a] && list[a][zt_comm_rank(g[a])] == r->rank);
    }
    enum { BIG = 3000 };
    for (int place = 0; place < PLACES; place++) {
        r->used = 0;
        float *x[4];
        for (int a = 0; a < 4; a++) {
            x[a] = memory(r, (enum place)place, BIG * 4, 4);
            for (int i = 0; i < BIG; i++) x[a][i] = (float)(r->rank * 1000 + a);
        }
        for (int a = 0; a < 4; a++) /* two groups at once, on two threads */
            OK(zt_all_reduce(g[a], x[a], a % 2 ? BIG : 7, ZT_F32, ZT_SUM,
                             a % 2 ? second : r->stream, &why, &r->err));
        OK(r->ops->stream_sync(r->stream, &r->err));
        OK(r->ops->stream_sync(second, &r->err));
        for (int a = 0; a < 4; a++) {
            float want = 0;
            for (int j = 0; j < n[a]; j++) want += (float)(list[a][j] * 1000 + a);
            CHECK(r, x[a][0] == want && x[a][6] == want);
            if (a % 2) CHECK(r, x[a][BIG - 1] == want);
        }
        for (int a = 0; a < 4; a++)
            for (int j = 0; j < n[a];
                 j++) { /* roots by global rank, then the same one by group rank */
                x[a][0] = list[a][j] == r->rank ? 42.0f : 0.0f;
                OK(zt_broadcast(g[a], x[a], 1, ZT_F32, list[a][j], ZT_ROOT_NONE, NULL, &why,
                                &r->err));
                CHECK(r, x[a][0] == 42.0f);
                x[a][0] = list[a][j] == r->rank ? 43.0f : 0.0f;
                OK(zt_broadcast(g[a], x[a], 1, ZT_F32, ZT_ROOT_NONE, j, NULL, &why, &r->err));
                CHECK(r, x[a][0] == 43.0f);
            }
        for (int a = 0; a < 4; a++) {
            const int K = n[a], me = zt_comm_rank(g[a]);
            for (int i = 0; i < 2 * K; i++) x[a][i] = (float)(i + me);
            OK(zt_reduce_scatter(g[a], x[a], x[a] + 100, 2, ZT_F32, ZT_SUM, NULL, &why, &r->err));
            CHECK(r, x[a][100] == (float)(2 * me * K + K * (K - 1) / 2));
            CHECK(r, x[a][101] == (float)((2 * me + 1) * K + K * (K - 1) / 2));
            x[a][0] = (float)r->rank;
            OK(zt_all_gather(g[a], x[a], x[a] + 200, 1, ZT_F32, NULL, &why, &r->err));
            for (int j = 0; j < K; j++) CHECK(r, x[a][200 + j] == (float)list[a][j]);
            OK(zt_barrier(g[a], NULL, &why, &r->err));
        }
    }
    /* a root outside the group, a group of a group, a group of one */
    CHECK(r, zt_broadcast(g[0], r->segment, 1, ZT_F32, (r->rank + 4) % 8, ZT_ROOT_NONE, NULL, &why,
                          &r->err) == ZT_EINVAL);
    CHECK(r, strstr(r->err.msg, "not in this group of 2") != NULL);
    struct zt_comm *sub = NULL, *one = NULL;
    int half[2] = {list[3][zt_comm_rank(g[3]) / 2 * 2], list[3][zt_comm_rank(g[3]) / 2 * 2 + 1]};
    OK(zt_comm_split(g[3], "half", half, 2, &sub, &r->err));
    int32_t v = r->rank + 1;
    OK(zt_all_reduce(sub, &v, 1, ZT_I32, ZT_SUM, NULL, &why, &r->err));
    CHECK(r, v == half[0] + half[1] + 2);
    OK(zt_comm_split(r->comm, "one", &r->rank, 1, &one, &r->err));
    OK(zt_all_reduce(one, &v, 1, ZT_I32, ZT_SUM, NULL, &why, &r->err));
    CHECK(r, v == half[0] + half[1] + 2 && zt_comm_size(one) == 1);
    struct zt_comm_group all[8];
    const char *order[] = {"world", "tensor", "dp_shard", "dp_replicate", "dp", "half", "one"};
    CHECK(r, zt_comm_groups(r->comm, all, 2) == 7);
    CHECK(r, zt_comm_groups(r->comm, all, 8) == 7);
    for (int i = 0; i < 7; i++) CHECK(r, !strcmp(all[i].name, order[i]));
    for (int a = 0; a < 4; a++)
        CHECK(r, all[a + 1].size == n[a] &&
                     !memcmp(all[a + 1].ranks, list[a], (size_t)n[a] * sizeof *list[a]));
    CHECK(r, all[5].ranks[1] == half[1] && all[6].ranks[0] == r->rank);
    zt_comm_destroy(one);
    zt_comm_destroy(sub);
    for (int a = 0; a < 4; a++) zt_comm_destroy(g[a]);
    CHECK(r, zt_comm_groups(r->comm, all, 8) == 1 && all[0].size == 8);
    r->ops->stream_destroy(second);
    OK(zt_barrier(r->comm, NULL, &why, &r->err)); /* the world goes on */
    return 0;
}
Test(coll, groups, .timeout = 300) {
    struct fleet f = {.world = 8, .body = groups, .device_bytes = (size_t)2 << 20};
    cr_assert(fleet_ok(&f, LIMIT));
}

#ifdef ZT_FAILPOINTS
/* Rank 0 comes last, is through at once and leaves while rank 1 still looks for it: no failure. */
static int leaving(struct rank *r) {
    if (r->rank == 1) setenv("ZT_FAIL", "comm.until_left:error", 1);
    OK(fleet_init(r, &fleet_id, r->rank, r->world, 60));
    zt_comm_watch(r->comm, &r->board->flag[r->rank]);
    if (r->rank == 0)
        while (atomic_load(&r->board->flag[1]) != 1 + 0) fleet_pause();
    OK(zt_barrier(r->comm, NULL, &why, &r->err));
    return 0;
}
Test(coll, a_rank_leaves_as_soon_as_it_is_through, .timeout = 300) {
    struct fleet f = {.world = 2, .body = leaving, .no_init = true};
    cr_assert(fleet_ok(&f, LIMIT));
}
#endif

/* One group from two streams: the calls keep their order although the streams do not. */
struct gate {
    _Atomic int open;
};
static int wait_gate(void *arg, struct zt_error *err) {
    struct gate *g = arg;
    (void)err;
    while (!atomic_load(&g->open)) fleet_pause();
    return 0;
}
static int two_streams(struct rank *r) {
    struct zt_stream *second = NULL;
    struct gate gate = {0};
    int32_t *x = fleet_device(r, 4000 * 4, 0);
    OK(r->ops->stream_create(r->d, ZT_STREAM_GATHER, &second, &r->err));
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 4000; i++) x[i] = 1;
        atomic_store(&gate.open, 0);
        OK(r->ops->submit(r->stream, wait_gate, &gate, &r->err));
        for (int i = 0; i < 6; i++) /* the first one is held back, on different streams per rank */
            OK(zt_all_reduce(r->comm, x, 4000, ZT_I32, ZT_SUM,
                             (i + r->rank) % 2 ? second : r->stream, &why, &r->err));
        atomic_store(&gate.open, 1);
        OK(r->ops->stream_sync(r->stream, &r->err));
        OK(r->ops->stream_sync(second, &r->err));
        CHECK(r, x[0] == 729 && x[3999] == 729); /* 3^6 */
    }
    r->ops->stream_destroy(second);
    return 0;
}
Test(coll, one_group_from_two_streams, .timeout = 300) {
    struct fleet f = {.world = 3, .body = two_streams};
    cr_assert(fleet_ok(&f, LIMIT));
}

/* ---- overlap ---- */

/* Rank 0 queues a collective that cannot end before its main thread has computed: rank 1 enters
 * only when it sees that work done. A collective that held up its caller would never end. */
static int overlap(struct rank *r) {
    float *x = fleet_device(r, (size_t)4 << 20, 0);
    for (int round = 1; round <= 5; round++) {
        struct zt_event *e = NULL;
        for (int i = 0; i < 1 << 20; i++) x[i] = 1.0f;
        OK(r->ops->event_create(r->d, &e, &r->err));
        if (r->rank == 1)
            while (atomic_load(&r->board->progress[0]) < round) fleet_pause();
        OK(zt_all_reduce(r->comm, x, 1 << 20, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
        OK(r->ops->event_record(e, r->stream, &r->err));
        if (r->rank == 0) {
            CHECK(r, !r->ops->event_done(e)); /* rank 1 is not there */
            atomic_store(&r->board->progress[0], round);
            /* and it goes on by itself: this thread only looks */
            while (!r->ops->event_done(e)) fleet_pause();
        }
        OK(r->ops->stream_wait_event(r->compute, e, NULL, &r->err));
        CHECK(r, x[0] == 2.0f && x[(1 << 20) - 1] == 2.0f);
        r->ops->event_destroy(e);
    }
    return 0;
}
Test(coll, overlap, .timeout = 120) {
    struct fleet f = {.world = 2, .body = overlap};
    cr_assert(fleet_ok(&f, 100));
}

/* Many ranks on few processors: thousands of barriers end, nobody spins for ever. */
static int many_barriers(struct rank *r) {
    int64_t v = 0;
    const int rounds = r->fleet->hosts ? 300 : 2000;
    for (int i = 0; i < rounds; i++) {
        v = r->rank + i;
        OK(zt_all_reduce(r->comm, &v, 1, ZT_I64, ZT_SUM, r->compute, &why, &r->err));
        CHECK(r, v == (int64_t)r->world * (r->world - 1) / 2 + (int64_t)i * r->world);
        OK(zt_barrier(r->comm, r->compute, &why, &r->err));
    }
    return 0;
}
Test(coll, many_barriers, .timeout = 300) {
    const int worlds[] = {2, 4, 8};
    over_worlds(many_barriers, worlds, 3);
}
