/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/pool.c: see pool.h.
 *
 * Protocol: the caller writes the job, sets `left` to the number of helpers and publishes it with
 * one increment of `gen`. Each helper sees the new generation, claims units until none is left and
 * decrements `left`. The caller leaves only when `left` is 0, so no helper can still be reading a
 * job when the next one is written. */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ZT_POOL_MAY_SPIN 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define ZT_POOL_MAY_SPIN 0
#endif
#endif
#ifndef ZT_POOL_MAY_SPIN
#define ZT_POOL_MAY_SPIN 1
#endif

/* About 10 us: longer than the gap between two operators of a step, shorter than a time slice. A
 * pause lasts 40 to 140 cycles depending on the processor, so cycles are counted, not pauses. */
#define SPIN_CYCLES 40000u

struct helper {
    struct zt_pool *pool;
    pthread_t thread;
    int index;
};

struct zt_pool {
    int threads;
    bool spin;
    void (*on_start)(void);
    struct helper *helpers;
    /* the job: written before gen is raised, read after it is seen */
    zt_pool_fn *fn;
    void *arg;
    int64_t units;
    bool quit;
    _Alignas(64) _Atomic uint32_t gen;
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) _Atomic uint32_t left;
    _Atomic uint32_t caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Spins while *word == seen, for a bounded time; true when it changed. */
static bool spin_while_equal(const struct zt_pool *p, _Atomic uint32_t *word, uint32_t seen) {
    if (!p->spin) return atomic_load(word) != seen;
    uint64_t start = __builtin_ia32_rdtsc();
    do {
        for (int i = 0; i < 8; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            __builtin_ia32_pause();
        }
    } while (__builtin_ia32_rdtsc() - start < SPIN_CYCLES);
    return false;
}

static uint32_t wait_for_job(struct zt_pool *p, uint32_t seen) {
    if (!spin_while_equal(p, &p->gen, seen)) {
        atomic_fetch_add(&p->sleepers, 1);
        while (atomic_load(&p->gen) == seen) futex_wait(&p->gen, seen);
        atomic_fetch_sub(&p->sleepers, 1);
    }
    return seen + 1;
}

static void claim_units(struct zt_pool *p, int thread) {
    for (;;) {
        int64_t unit = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (unit >= p->units) return;
        p->fn(p->arg, unit, thread);
    }
}

static void *helper_main(void *arg) {
    struct helper *h = arg;
    struct zt_pool *p = h->pool;
    uint32_t seen = 0;
    if (p->on_start) p->on_start();
    for (;;) {
        seen = wait_for_job(p, seen);
        if (p->quit) return NULL;
        claim_units(p, h->index);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->left, 1);
    }
}

static int usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set);
}

static void publish(struct zt_pool *p) {
    atomic_fetch_add(&p->gen, 1);
    if (atomic_load(&p->sleepers)) futex_wake(&p->gen, p->threads);
}

void zt_pool_destroy(struct zt_pool *p) {
    if (!p) return;
    if (p->threads > 1) {
        p->quit = true;
        publish(p);
        for (int i = 0; i + 1 < p->threads; i++) pthread_join(p->helpers[i].thread, NULL);
    }
    free(p->helpers);
    free(p);
}

int zt_pool_create(int threads, void (*on_start)(void), struct zt_pool **out,
                   struct zt_error *err) {
    *out = NULL;
    if (threads < 1 || threads > ZT_POOL_MAX_THREADS)
        return zt_fail(err, ZT_EINVAL, "compute threads: %d is outside 1..%d; set --threads",
                       threads, ZT_POOL_MAX_THREADS);
    struct zt_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return zt_fail(err, ZT_ENOMEM, "compute pool: no memory for %zu bytes", sizeof *p);
    memset(p, 0, sizeof *p);
    p->threads = 1;
    p->spin = ZT_POOL_MAY_SPIN && threads <= usable_cores();
    p->on_start = on_start;
    p->helpers = calloc((size_t)threads, sizeof *p->helpers);
    if (!p->helpers) {
        zt_pool_destroy(p);
        return zt_fail(err, ZT_ENOMEM, "compute pool: no memory for %d threads", threads);
    }
    if (on_start) on_start();
    for (int i = 1; i < threads; i++) {
        struct helper *h = &p->helpers[i - 1];
        *h = (struct helper){.pool = p, .index = i};
        int rc = pthread_create(&h->thread, NULL, helper_main, h);
        if (rc != 0) {
            zt_pool_destroy(p);
            return zt_fail(
                err, ZT_EBUSY,
                "compute pool: thread %d of %d could not be started: %s; lower --threads "
                "or raise the process limit (ulimit -u)",
                i + 1, threads, strerror(rc));
        }
        p->threads = i + 1;
    }
    *out = p;
    return ZT_OK;
}

int zt_pool_threads(const struct zt_pool *p) { return p->threads; }

void zt_pool_run(struct zt_pool *p, int64_t units, zt_pool_fn *fn, void *arg) {
    if (p->threads == 1 || units <= 1) {
        for (int64_t u = 0; u < units; u++) fn(arg, u, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->units = units;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->left, (uint32_t)(p->threads - 1));
    publish(p);
    claim_units(p, 0);
    for (;;) {
        uint32_t left = atomic_load(&p->left);
        if (left == 0) return;
        if (spin_while_equal(p, &p->left, left)) continue;
        atomic_store(&p->caller_sleeps, 1);
        left = atomic_load(&p->left);
        if (left != 0) futex_wait(&p->left, left);
        atomic_store(&p->caller_sleeps, 0);
    }
}
