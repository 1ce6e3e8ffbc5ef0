/* SPDX-License-Identifier: Apache-2.0 */
/* worker/link.c: see link.h. One lock; `changed` is told of every change under it. */
#include "worker/link.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/session.h"

#define QUEUE_MAX ((size_t)64 << 20) /* a supervisor that is stopped for hours: then we do wait */
#define FLUSH_S 10

struct item { struct item *next; uint8_t *bytes; size_t n; };
struct question { struct question *next; uint64_t id; Zt__Envelope *reply; void *arena; bool lost; };

struct zw_link {
    int fd;
    pthread_t sender, receiver;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* to the supervisor */
    struct item *first, *last;
    size_t queued;
    bool closing, broken, sending; /* broken: the supervisor is gone */
    /* from it */
    struct zt_decoder decoder;     /* the receiver's */
    Zt__Envelope *start;
    void *start_arena;
    struct question *questions;    /* unanswered */
    uint64_t next_id;
    bool cancelled, stopping;
    void (*on_wait)(void *arg);
    void *on_wait_arg;
};

static struct timespec in_seconds(double s)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)(s * 1e9);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

static bool passed(const struct timespec *t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

/* -------------------------------------------------------------------------------------- sending */

static bool write_all(int fd, const uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return false;
        }
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static void *sender_main(void *arg)
{
    struct zw_link *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->first && !l->closing) {
            pthread_cond_wait(&l->changed, &l->lock);
        }
        struct item *i = l->first;
        if (!i) {
            break;
        }
        l->first = i->next;
        if (!l->first) {
            l->last = NULL;
        }
        l->sending = true;
        pthread_mutex_unlock(&l->lock);
        bool ok = write_all(l->fd, i->bytes, i->n);
        pthread_mutex_lock(&l->lock);
        l->sending = false;
        l->queued -= i->n;
        l->broken = l->broken || !ok;
        free(i->bytes);
        free(i);
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int gone(struct zt_error *err)
{
    return zt_fail(err, ZT_EUNREACHABLE, "the supervisor of this trainer is gone");
}

int zw_link_post(struct zw_link *l, const Zt__Envelope *env, struct zt_error *err)
{
    struct item *i = calloc(1, sizeof(*i));
    if (!i) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a frame to the supervisor");
    }
    int rc = zt_frame_pack(env, &i->bytes, &i->n, err);
    if (rc) {
        free(i);
        return rc;
    }
    pthread_mutex_lock(&l->lock);
    while (l->queued + i->n > QUEUE_MAX && !l->broken) {
        pthread_cond_wait(&l->changed, &l->lock);
    }
    if (l->broken) {
        rc = gone(err);
        free(i->bytes);
        free(i);
    } else {
        *(l->last ? &l->last->next : &l->first) = i;
        l->last = i;
        l->queued += i->n;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

size_t zw_link_queued(struct zw_link *l)
{
    pthread_mutex_lock(&l->lock);
    size_t n = l->queued;
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* ------------------------------------------------------------------------------------ receiving */

static void take_answer(struct zw_link *l, const Zt__Envelope *env)
{
    struct zt_error ignored;
    struct question **at = &l->questions;
    while (*at && (*at)->id != env->request_id) {
        at = &(*at)->next;
    }
    struct question *q = *at;
    if (!q) {
        return; /* nobody waits for it any more */
    }
    *at = q->next;
    q->id = 0;
    q->lost = zt_envelope_copy(env, &q->reply, &q->arena, &ignored) != 0;
}

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct zw_link *l = arg;
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    if (env->body_case == ZT__ENVELOPE__BODY_TRAINER_START && !l->start) {
        rc = zt_envelope_copy(env, &l->start, &l->start_arena, err);
    } else if (env->body_case == ZT__ENVELOPE__BODY_TRAINER_STOP) {
        l->stopping = true;
    } else if (env->reply) {
        take_answer(l, env);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static void *receiver_main(void *arg)
{
    struct zw_link *l = arg;
    struct zt_error err;
    uint8_t buf[16384];
    for (;;) {
        ssize_t n = recv(l->fd, buf, sizeof(buf), 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0 || zt_decoder_feed(&l->decoder, buf, (size_t)n, on_frame, l, &err)) {
            break;
        }
    }
    pthread_mutex_lock(&l->lock);
    l->broken = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

int zw_link_start(struct zw_link *l, double seconds, const Zt__TrainerStart **out, struct zt_error *err)
{
    const struct timespec until = in_seconds(seconds);
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    while (!l->start && !l->broken && !passed(&until)) {
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    if (l->start) {
        *out = l->start->trainer_start;
    } else {
        rc = l->broken ? gone(err)
                       : zt_fail(err, ZT_ETIMEOUT, "no assignment from the supervisor within %g s", seconds);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* --------------------------------------------------------------------------------------- asking */

/* Under the lock, until q is answered or there is no use in waiting. */
static int await(struct zw_link *l, const struct question *q, double seconds, struct zt_error *err)
{
    const struct timespec until = in_seconds(seconds);
    while (q->id != 0) {
        if (l->broken) {
            return gone(err);
        }
        if (seconds > 0 ? passed(&until) : l->cancelled) {
            return seconds > 0 ? zt_fail(err, ZT_ETIMEOUT, "no answer within %g s", seconds)
                               : zt_fail(err, ZT_ECANCELLED, "the trainer ends");
        }
        const struct timespec next = seconds > 0 ? until : in_seconds(1);
        pthread_cond_timedwait(&l->changed, &l->lock, &next);
        void (*fn)(void *) = l->on_wait;
        if (seconds <= 0 && fn) {
            fn(l->on_wait_arg);
        }
    }
    return q->lost ? zt_fail(err, ZT_ENOMEM, "no memory for an answer of the supervisor") : 0;
}

static void forget(struct zw_link *l, const struct question *q)
{
    struct question **at = &l->questions;
    while (*at && *at != q) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = q->next;
    }
}

int zw_link_ask(struct zw_link *l, Zt__Envelope *env, double seconds, Zt__Envelope **reply, void **arena,
                struct zt_error *err)
{
    struct question q = {0};
    pthread_mutex_lock(&l->lock);
    env->request_id = q.id = ++l->next_id;
    q.next = l->questions;
    l->questions = &q;
    pthread_mutex_unlock(&l->lock);
    int rc = zw_link_post(l, env, err);
    pthread_mutex_lock(&l->lock);
    if (rc == 0) {
        rc = await(l, &q, seconds, err);
    }
    forget(l, &q);
    pthread_mutex_unlock(&l->lock);
    if (rc == 0 && q.reply->code != ZT__CODE__OK) {
        rc = zt_fail(err, zt_code_from_wire(q.reply->code), "%s",
                     q.reply->message ? q.reply->message : "the coordinator refused");
    }
    if (rc) {
        zt_envelope_free(q.reply, q.arena);
        return rc;
    }
    *reply = q.reply;
    *arena = q.arena;
    return 0;
}

void zw_link_on_wait(struct zw_link *l, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&l->lock);
    l->on_wait = fn;
    l->on_wait_arg = arg;
    pthread_mutex_unlock(&l->lock);
}

void zw_link_cancel(struct zw_link *l)
{
    pthread_mutex_lock(&l->lock);
    l->cancelled = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

bool zw_link_stopping(struct zw_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool stopping = l->stopping;
    pthread_mutex_unlock(&l->lock);
    return stopping;
}

/* ---------------------------------------------------------------------------- opening and closing */

int zw_link_open(int fd, struct zw_link **out, struct zt_error *err)
{
    pthread_condattr_t monotonic;
    struct zw_link *l = calloc(1, sizeof(*l));
    if (!l) {
        return zt_fail(err, ZT_ENOMEM, "no memory for the channel to the supervisor");
    }
    l->fd = fd;
    zt_decoder_init(&l->decoder, ZT_FRAME_MAX);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&l->sender, NULL, sender_main, l)) {
        free(l);
        return zt_fail(err, ZT_ENOMEM, "cannot start a thread");
    }
    if (pthread_create(&l->receiver, NULL, receiver_main, l)) {
        pthread_mutex_lock(&l->lock);
        l->closing = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->sender, NULL);
        free(l);
        return zt_fail(err, ZT_ENOMEM, "cannot start a thread");
    }
    *out = l;
    return 0;
}

void zw_link_close(struct zw_link *l)
{
    const struct timespec until = in_seconds(FLUSH_S);
    pthread_mutex_lock(&l->lock);
    while ((l->first || l->sending) && !l->broken && !passed(&until)) {
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    l->closing = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    shutdown(l->fd, SHUT_RDWR); /* ends what either thread still waits for */
    pthread_join(l->sender, NULL);
    pthread_join(l->receiver, NULL);
    while (l->first) {
        struct item *i = l->first;
        l->first = i->next;
        free(i->bytes);
        free(i);
    }
    zt_envelope_free(l->start, l->start_arena);
    zt_decoder_free(&l->decoder);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
