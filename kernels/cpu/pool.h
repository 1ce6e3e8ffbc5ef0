/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/pool.h: the one pthread pool of a worker (decision D1).
 *
 * A job is a number of units cut by shape alone; every thread takes part and claims units from one
 * counter, so which thread runs a unit varies but what a unit computes does not: results have the
 * same bits for any number of threads. The caller is thread 0.
 *
 * Waiting is a short bounded spin, then a futex; there is no spin when the pool has more threads
 * than the process may use cores, or in sanitizer builds. Thread rule: one caller at a time. */
#ifndef ZT_KERNELS_CPU_POOL_H
#define ZT_KERNELS_CPU_POOL_H
#include <stdint.h>
#include "core/error.h"

#define ZT_POOL_MAX_THREADS 256

struct zt_pool;
typedef void zt_pool_fn(void *arg, int64_t unit, int thread);

/* threads in [1, ZT_POOL_MAX_THREADS]. on_start (may be NULL) runs in every thread, the caller's
 * included, before its first unit. The pool is owned by the caller, who destroys it. */
int zt_pool_create(int threads, void (*on_start)(void), struct zt_pool **out, struct zt_error *err);
void zt_pool_destroy(struct zt_pool *p);
int zt_pool_threads(const struct zt_pool *p);

/* Runs fn(arg, unit, thread) for every unit in [0, units) and returns when all are done. A job of
 * one unit runs in the caller without waking anyone. fn must not call the pool. */
void zt_pool_run(struct zt_pool *p, int64_t units, zt_pool_fn *fn, void *arg);

#endif
