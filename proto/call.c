/* SPDX-License-Identifier: Apache-2.0 */
/* proto/call.c: the blocking form of a session, for a program that does one request at a time. It owns
 * a loop that runs only inside its functions. One thread per object. */
#include "proto/session_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct zt_call {
    uv_loop_t loop;
    struct zt_client_config config;
    char principal[128];
    struct zt_client *client;
    uv_timer_t timer;
    bool timed_out, connected, lost;
    uint64_t epoch;
    struct zt_error lost_error;
    /* the request in progress */
    bool done;
    int rc;
    Zt__Envelope *reply;
    void *arena;
    struct zt_error reply_error;
};

/* A write to a server that is gone must not kill a program that wants SIGPIPE for its own output:
 * it is held back while the loop runs, and one that came meanwhile is thrown away. */
struct pipe_guard { sigset_t old; bool was_pending; };

static void guard_begin(struct pipe_guard *g)
{
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigpending(&pending);
    g->was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set, &g->old);
}

static void guard_end(struct pipe_guard *g)
{
    sigset_t set, pending;
    sigpending(&pending);
    if (!g->was_pending && sigismember(&pending, SIGPIPE) == 1) {
        const struct timespec now = {0};
        sigemptyset(&set);
        sigaddset(&set, SIGPIPE);
        (void)sigtimedwait(&set, NULL, &now);
    }
    pthread_sigmask(SIG_SETMASK, &g->old, NULL);
}

static void on_connected(void *arg, uint64_t epoch, bool changed)
{
    struct zt_call *c = arg;
    (void)changed;
    c->connected = true;
    c->epoch = epoch;
}

static void on_disconnected(void *arg, bool will_retry, const struct zt_error *err)
{
    struct zt_call *c = arg;
    (void)will_retry;
    c->connected = false;
    c->lost = true;
    c->lost_error = *err;
}

static void on_timeout(uv_timer_t *t)
{
    struct zt_call *c = t->data;
    c->timed_out = true;
}

static void arm(struct zt_call *c, double timeout_s)
{
    c->timed_out = false;
    uv_update_time(&c->loop);
    if (timeout_s > 0) {
        /* repeating: should it fire before the loop's first wait, that wait must still end */
        uv_timer_start(&c->timer, on_timeout, (uint64_t)(timeout_s * 1000.0) + 1, 20);
    } else {
        uv_timer_stop(&c->timer);
    }
}

static void drop_client(struct zt_call *c)
{
    if (c->client) {
        zt_client_close(c->client, NULL, NULL);
        c->client = NULL;
    }
    c->connected = false;
}

static int connect_now(struct zt_call *c, struct zt_error *err)
{
    drop_client(c);
    c->lost = false;
    int rc = zt_client_open(&c->loop, &c->config, &c->client, err);
    if (rc) {
        return rc;
    }
    while (!c->connected && !c->lost && !c->timed_out) {
        uv_run(&c->loop, UV_RUN_ONCE);
    }
    if (c->connected) {
        return 0;
    }
    if (c->lost) {
        return zt_fail(err, c->lost_error.code, "%s", c->lost_error.msg);
    }
    return zt_fail(err, ZT_ETIMEOUT, "no hello from the coordinator at %s:%d in time", c->config.host,
                   c->config.port);
}

int zt_call_open(const char *host, int port, const struct zt_token *t, const char *principal,
                 double timeout_s, struct zt_call **out, struct zt_error *err)
{
    *out = NULL;
    struct zt_call *c = calloc(1, sizeof(*c));
    if (!c) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a session");
    }
    int rc = uv_loop_init(&c->loop);
    if (rc) {
        free(c);
        return zt_fail(err, ZT_EIO, "cannot make an event loop: %s", uv_strerror(rc));
    }
    ZT_ASSERT(uv_timer_init(&c->loop, &c->timer) == 0); /* cannot fail on a fresh loop */
    c->timer.data = c;
    int len = snprintf(c->config.host, sizeof(c->config.host), "%s", host);
    snprintf(c->principal, sizeof(c->principal), "%s", principal ? principal : "");
    c->config.port = port;
    c->config.token = *t;
    c->config.role = ZT__ROLE__ROLE_CLIENT;
    c->config.principal = c->principal;
    c->config.arg = c;
    c->config.on_connected = on_connected;
    c->config.on_disconnected = on_disconnected;
    if (len < 0 || (size_t)len >= sizeof(c->config.host)) {
        rc = zt_fail(err, ZT_EINVAL, "the host name is longer than 255 bytes");
    } else {
        struct pipe_guard g;
        guard_begin(&g);
        arm(c, timeout_s);
        rc = connect_now(c, err);
        guard_end(&g);
    }
    if (rc) {
        zt_call_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void on_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zt_call *c = arg;
    c->done = true;
    c->rc = 0;
    if (err) {
        c->reply_error = *err;
        c->rc = err->code;
    }
    if (!err && reply) {
        c->rc = zt_envelope_copy(reply, &c->reply, &c->arena, &c->reply_error);
    }
}

static int call_guarded(struct zt_call *c, Zt__Envelope *env, double timeout_s, Zt__Envelope **reply,
                        void **arena, struct zt_error *err)
{
    arm(c, timeout_s);
    /* the server may have closed an idle connection since the last call */
    uv_run(&c->loop, UV_RUN_NOWAIT);
    c->timed_out = false;
    if (!c->connected) {
        int rc = connect_now(c, err);
        if (rc) {
            return rc;
        }
    }
    c->done = false;
    c->reply = NULL;
    c->arena = NULL;
    int rc = zt_client_request(c->client, env, false, 0, on_reply, c, err);
    if (rc) {
        return rc;
    }
    while (!c->done && !c->timed_out) {
        uv_run(&c->loop, UV_RUN_ONCE);
    }
    if (!c->done) {
        drop_client(c); /* answers the request with ECANCELLED; a late reply has no place to go */
        return zt_fail(err, ZT_ETIMEOUT, "no answer from the coordinator at %s:%d within %g s",
                       c->config.host, c->config.port, timeout_s);
    }
    if (c->rc) {
        return zt_fail(err, c->rc, "%s", c->reply_error.msg);
    }
    *reply = c->reply;
    *arena = c->arena;
    return 0;
}

int zt_call(struct zt_call *c, Zt__Envelope *env, double timeout_s, Zt__Envelope **reply, void **arena,
            struct zt_error *err)
{
    struct pipe_guard g;
    *reply = NULL;
    *arena = NULL;
    guard_begin(&g);
    int rc = call_guarded(c, env, timeout_s, reply, arena, err);
    guard_end(&g);
    return rc;
}

uint64_t zt_call_epoch(const struct zt_call *c)
{
    return c->epoch;
}

void zt_call_close(struct zt_call *c)
{
    if (!c) {
        return;
    }
    drop_client(c);
    uv_close((uv_handle_t *)&c->timer, NULL);
    while (uv_run(&c->loop, UV_RUN_DEFAULT)) {
    }
    ZT_ASSERT(uv_loop_close(&c->loop) == 0);
    free(c);
}
