/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/cpu_stream.c: streams and events of the cpu device.
 *
 * The compute stream is the calling thread. Every other stream is a thread that takes items from a
 * FIFO: functions, copies, event records and event waits. An idle thread looks at the queue for a
 * few microseconds, then sleeps, so that a machine with more processes than cores is left in peace.
 *
 * An event counts how often it was recorded (`recorded`, by the caller) and how often such a record
 * was reached by its stream (`done`, also the futex word). A wait is for the count at the time of
 * the call. Events are reference counted because a queue may still name one that was destroyed.
 *
 * Errors: the first function that fails poisons its stream: its error is kept, later functions,
 * copies and waits are skipped, records still complete but carry the error to whoever waits.
 * Thread rule: callers are one thread (the trainer); a stream's items run on its own thread. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "engine/device/cpu.h"

#define SPINS 100 /* pause instructions: some 5 us */

enum item_kind { ITEM_RUN, ITEM_COPY, ITEM_RECORD, ITEM_WAIT };
struct item {
    enum item_kind kind;
    union {
        struct { int (*fn)(void *, struct zt_error *); void *arg; } run;
        struct { void *dst; const void *src; size_t bytes; } copy;
        struct { struct zt_event *e; uint32_t ticket; } event;
    };
};

struct zt_stream {
    struct zt_device *device;
    bool threaded;
    int spins;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct item *ring; /* room is a power of two */
    size_t room, head, count;
    bool busy, stop;
    _Atomic uint64_t pushed; /* for spinning without the lock */
    _Atomic int code;        /* set after `error` was written; 0 = healthy */
    struct zt_error error;
};

struct zt_event {
    _Atomic int refs;
    _Atomic uint32_t done;
    uint32_t recorded;
    struct zt_error error; /* of the last record; written before `done` moves */
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}
static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int poison(struct zt_stream *s, const struct zt_error *why) {
    if (atomic_load_explicit(&s->code, memory_order_relaxed) == 0) {
        s->error = *why;
        if (s->error.code >= 0) s->error.code = ZT_EINTERNAL;
        atomic_store_explicit(&s->code, s->error.code, memory_order_release);
    }
    return s->error.code;
}

static int report(const struct zt_stream *s, struct zt_error *err) {
    int code = atomic_load_explicit(&s->code, memory_order_acquire);
    if (code && err) *err = s->error;
    return code;
}

static void unref(struct zt_event *e) {
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) free(e);
}

static bool reached(struct zt_event *e, uint32_t ticket) {
    return (int32_t)(atomic_load_explicit(&e->done, memory_order_acquire) - ticket) >= 0;
}

static void wait_for(struct zt_event *e, uint32_t ticket, int spins) {
    for (int i = 0; i < spins && !reached(e, ticket); i++) cpu_relax();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&e->done, memory_order_acquire);
        if ((int32_t)(seen - ticket) >= 0) return;
        futex_wait(&e->done, seen);
    }
}

static void complete(struct zt_event *e, uint32_t ticket, const struct zt_stream *s) {
    e->error.code = 0;
    if (atomic_load_explicit(&s->code, memory_order_relaxed)) e->error = s->error;
    atomic_store_explicit(&e->done, ticket, memory_order_release);
    futex_wake_all(&e->done);
}

static void run_item(struct zt_stream *s, const struct item *it) {
    bool healthy = atomic_load_explicit(&s->code, memory_order_relaxed) == 0;
    struct zt_error err = {0};
    switch (it->kind) {
    case ITEM_RUN:
        if (healthy) {
            int code = it->run.fn(it->run.arg, &err);
            if (code) {
                err.code = code;
                poison(s, &err);
            }
        }
        break;
    case ITEM_COPY:
        if (healthy) memmove(it->copy.dst, it->copy.src, it->copy.bytes);
        break;
    case ITEM_RECORD:
        complete(it->event.e, it->event.ticket, s);
        unref(it->event.e);
        break;
    case ITEM_WAIT:
        if (healthy) {
            wait_for(it->event.e, it->event.ticket, s->spins);
            if (it->event.e->error.code) poison(s, &it->event.e->error);
        }
        unref(it->event.e);
        break;
    }
}

static void *stream_thread(void *arg) {
    struct zt_stream *s = arg;
    uint64_t taken = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (!s->count) {
            pthread_cond_broadcast(&s->idle);
            if (s->stop) break;
            pthread_mutex_unlock(&s->lock);
            for (int i = 0; i < s->spins; i++) {
                if (atomic_load_explicit(&s->pushed, memory_order_acquire) != taken) break;
                cpu_relax();
            }
            pthread_mutex_lock(&s->lock);
            while (!s->count && !s->stop) pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        struct item it = s->ring[s->head];
        s->head = (s->head + 1) & (s->room - 1);
        s->count--;
        s->busy = true;
        taken++;
        pthread_mutex_unlock(&s->lock);
        run_item(s, &it);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int grow(struct zt_stream *s) {
    size_t room = s->room * 2;
    struct item *ring = malloc(room * sizeof *ring);
    if (!ring) return ZT_ENOMEM;
    for (size_t i = 0; i < s->count; i++) ring[i] = s->ring[(s->head + i) & (s->room - 1)];
    free(s->ring);
    s->ring = ring;
    s->room = room;
    s->head = 0;
    return 0;
}

static int push(struct zt_stream *s, struct item it, struct zt_error *err) {
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->count == s->room) rc = grow(s);
    if (!rc) {
        s->ring[(s->head + s->count) & (s->room - 1)] = it;
        s->count++;
        atomic_fetch_add_explicit(&s->pushed, 1, memory_order_release);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc) return zt_fail(err, rc, "host memory for the queue of a stream");
    return 0;
}

static struct zt_stream *stream_new(struct zt_device *d, bool threaded) {
    struct zt_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->device = d;
    s->threaded = threaded;
    s->spins = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPINS : 0;
    s->room = 64;
    s->ring = threaded ? malloc(s->room * sizeof *s->ring) : NULL;
    if (threaded && !s->ring) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, NULL);
    return s;
}

static void stream_free(struct zt_stream *s) {
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    free(s->ring);
    free(s);
}

int zt_cpu_compute_create(struct zt_device *d, struct zt_stream **out, struct zt_error *err) {
    *out = stream_new(d, false);
    return *out ? 0 : zt_fail(err, ZT_ENOMEM, "host memory for a stream");
}

int zt_cpu_stream_create(struct zt_device *d, enum zt_stream_kind kind, struct zt_stream **out,
                         struct zt_error *err) {
    static const char *const names[] = {NULL, "zt-gather", "zt-reduce", "zt-copy"};
    *out = NULL;
    if (kind < ZT_STREAM_GATHER || kind > ZT_STREAM_COPY)
        return zt_fail(err, ZT_EINVAL,
                       "a stream of kind %d cannot be made; the compute stream is the device's own "
                       "(zt_device_compute)",
                       (int)kind);
    struct zt_stream *s = stream_new(d, true);
    if (!s) return zt_fail(err, ZT_ENOMEM, "host memory for a stream");
    sigset_t all, old; /* signals belong to the main thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, stream_thread, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        stream_free(s);
        return zt_fail(err, ZT_EBUSY, "no thread for a stream: %s; see `ulimit -u`", strerror(rc));
    }
    pthread_setname_np(s->thread, names[kind]);
    *out = s;
    return 0;
}

void zt_cpu_stream_destroy(struct zt_stream *s) {
    if (!s) return;
    if (s->threaded) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    stream_free(s);
}

int zt_cpu_submit(struct zt_stream *s, int (*fn)(void *, struct zt_error *), void *arg,
                  struct zt_error *err) {
    if (!fn) return zt_fail(err, ZT_EINVAL, "nothing to run was submitted to a stream");
    struct item it = {.kind = ITEM_RUN, .run = {fn, arg}};
    if (s->threaded) return push(s, it, err);
    run_item(s, &it);
    return report(s, err);
}

int zt_cpu_stream_copy(struct zt_stream *s, void *dst, const void *src, size_t bytes,
                struct zt_error *err) {
    struct item it = {.kind = ITEM_COPY, .copy = {dst, src, bytes}};
    if (s->threaded) return push(s, it, err);
    run_item(s, &it);
    return report(s, err);
}

int zt_cpu_stream_sync(struct zt_stream *s, struct zt_error *err) {
    if (s->threaded) {
        pthread_mutex_lock(&s->lock);
        while (s->count || s->busy) pthread_cond_wait(&s->idle, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    return report(s, err);
}

int zt_cpu_event_create(struct zt_device *d, struct zt_event **out, struct zt_error *err) {
    (void)d;
    *out = calloc(1, sizeof **out);
    if (!*out) return zt_fail(err, ZT_ENOMEM, "host memory for an event");
    atomic_store(&(*out)->refs, 1);
    return 0;
}

void zt_cpu_event_destroy(struct zt_event *e) {
    if (e) unref(e);
}

int zt_cpu_event_record(struct zt_event *e, struct zt_stream *s, struct zt_error *err) {
    uint32_t ticket = e->recorded + 1;
    if (!s->threaded) {
        e->recorded = ticket;
        complete(e, ticket, s);
        return 0;
    }
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    int rc = push(s, (struct item){.kind = ITEM_RECORD, .event = {e, ticket}}, err);
    if (rc)
        unref(e);
    else
        e->recorded = ticket;
    return rc;
}

int zt_cpu_stream_wait_event(struct zt_stream *s, struct zt_event *e, int64_t *stalled_ns,
                             struct zt_error *err) {
    uint32_t ticket = e->recorded;
    if (stalled_ns) *stalled_ns = 0;
    if (s->threaded) {
        atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
        int rc = push(s, (struct item){.kind = ITEM_WAIT, .event = {e, ticket}}, err);
        if (rc) unref(e);
        return rc;
    }
    if (!reached(e, ticket)) {
        int64_t from = zt_cpu_now_ns(s->device);
        wait_for(e, ticket, s->spins);
        if (stalled_ns) *stalled_ns = zt_cpu_now_ns(s->device) - from;
    }
    if (e->error.code) poison(s, &e->error);
    return report(s, err);
}

bool zt_cpu_event_done(struct zt_event *e) { return reached(e, e->recorded); }
