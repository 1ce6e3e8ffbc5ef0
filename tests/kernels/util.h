/* SPDX-License-Identifier: Apache-2.0 */
/* tests/kernels/util.h: guarded buffers, seeded data and the contexts that the kernel tests share.
 *
 * A buffer has 64 floats on both sides that hold one NaN pattern: an operator that writes outside
 * changes it, one that reads outside and uses what it read gets a NaN. Buffers live until
 * end_buffers(), which checks all guards. Thread rule: the test's thread only. */
#ifndef ZT_TESTS_KERNELS_UTIL_H
#define ZT_TESTS_KERNELS_UTIL_H
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/vec.h"
#include "kernels/ops.h"

#define UNUSED __attribute__((unused))
#define GUARD 64
#define GUARD_BITS 0x7fc0dead

static struct {
    float *base;
    size_t n;
} buffers_[512];
static int buffer_count_;

static UNUSED void guard_fill_(float *p) {
    const uint32_t bits = GUARD_BITS;
    for (int i = 0; i < GUARD; i++) memcpy(p + i, &bits, 4);
}

static UNUSED float *buffer(int64_t n) {
    const size_t count = (size_t)n, bytes = (count + 2 * GUARD) * sizeof(float);
    float *base = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cr_assert(base && buffer_count_ < 512);
    guard_fill_(base);
    memset(base + GUARD, 0, count * sizeof(float));
    guard_fill_(base + GUARD + count);
    buffers_[buffer_count_].base = base;
    buffers_[buffer_count_++].n = count;
    return base + GUARD;
}

static UNUSED void end_buffers(void) {
    for (int b = 0; b < buffer_count_; b++) {
        const float *p = buffers_[b].base;
        for (int i = 0; i < GUARD; i++) {
            uint32_t before, after;
            memcpy(&before, p + i, 4);
            memcpy(&after, p + GUARD + buffers_[b].n + i, 4);
            cr_assert(before == GUARD_BITS && after == GUARD_BITS,
                      "buffer %d of %zu floats: written outside (guard %d)", b, buffers_[b].n, i);
        }
        free(buffers_[b].base);
    }
    buffer_count_ = 0;
}

/* Uniform in [-1, 1), a fixed sequence. */
static uint64_t seed_ = 1;
static UNUSED float uniform(void) {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(seed_ >> 11) * 0x1p-52 - 1.0);
}

static UNUSED float *random_buffer(int64_t n) {
    float *b = buffer(n);
    for (int64_t i = 0; i < n; i++) b[i] = uniform();
    return b;
}

static UNUSED float *copy_buffer(const float *from, int64_t n) {
    float *b = buffer(n);
    memcpy(b, from, (size_t)n * sizeof *b);
    return b;
}

static UNUSED struct zt_ops_ctx *context(int threads, const char *isa, const char *gemm) {
    struct zt_ops_ctx *x = NULL;
    struct zt_error err = {0};
    int rc = zt_ops_cpu_create(threads, isa, gemm, &x, &err);
    cr_assert_eq(rc, ZT_OK, "%s", err.msg);
    return x;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct zt_error err = {0};                                                                 \
        int rc_ = (call);                                                                          \
        cr_assert_eq(rc_, ZT_OK, "%s: %s", #call, err.msg);                                        \
    } while (0)

static const int thread_counts[] = {1, 2, 3, 4, 8};
#define THREAD_COUNTS 5
static const char *const isa_names[] = {"sse2", "avx2", "avx512"};
#define ISA_NAMES 3

static UNUSED void same_bits(const void *a, const void *b, int64_t n, const char *what, int threads,
                             const char *isa) {
    const uint32_t *x = a, *y = b;
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(x[i], y[i], "%s: element %lld differs with %d threads on %s", what,
                     (long long)i, threads, isa);
}

/* |got - want| <= bound, element by element; a NaN fails. */
static UNUSED void near(const float *got, const double *want, int64_t n, double bound,
                        const char *what) {
    for (int64_t i = 0; i < n; i++)
        cr_assert(fabs((double)got[i] - want[i]) <= bound,
                  "%s: element %lld is %.9g, expected %.9g (bound %g)", what, (long long)i,
                  (double)got[i], want[i], bound);
}

/* Runs body(x, out, n) in every context and asserts one set of bits. */
typedef void body_fn(struct zt_ops_ctx *x, float *out);
static UNUSED void all_contexts_agree(body_fn *body, int64_t n, const char *what) {
    float *first = NULL;
    for (int i = 0; i < ISA_NAMES; i++) {
        if (!zt_vec_find(isa_names[i])) continue;
        for (int t = 0; t < THREAD_COUNTS; t++) {
            struct zt_ops_ctx *x = context(thread_counts[t], isa_names[i], NULL);
            float *out = buffer(n);
            body(x, out);
            if (!first) first = out;
            same_bits(first, out, n, what, thread_counts[t], isa_names[i]);
            zt_ops_cpu_destroy(x);
        }
    }
}

#endif
