/* SPDX-License-Identifier: Apache-2.0 */
/* proto/client.c: the calling side of a session.
 *
 *   connect -> challenge -> hello -> up      lost -> wait (0.2 .. 5 s, jittered) -> connect
 *
 * Every attempt is its own `struct conn`, which lives until libuv has closed its handles; the client
 * forgets it at once, so that a late callback of an old attempt finds no client. Requests stay in one
 * list in the order they were made, until answered. */
#include "proto/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 10000u /* address, connection and hello together */
#define BACKOFF_MIN_MS 200u
#define BACKOFF_MAX_MS 5000u

enum conn_state { CONN_CONNECTING, CONN_CHALLENGE, CONN_HELLO, CONN_UP };

struct conn {
    struct zt_client *client; /* NULL: forgotten */
    enum conn_state state;
    int holds; /* handle and resolver; freed at 0 */
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_getaddrinfo_t resolve;
    struct zt_decoder decoder;
    uint8_t server_nonce[32], nonce[32];
    uint64_t hello_id;
    bool stop; /* drop what is left of this read */
    char buf[65536];
};

struct request {
    struct request *next, *prev;
    uint64_t id;
    struct zt_frame *frame;
    bool retry, sent;
    uint64_t deadline; /* loop time, 0 = none */
    zt_reply_fn fn;
    void *arg;
};

struct zt_client {
    uv_loop_t *loop;
    struct zt_client_config config;
    char principal[128];
    struct conn *conn;
    uv_timer_t timer;
    uint64_t armed;          /* when the timer fires, 0 = never */
    uint64_t phase_deadline; /* end of the attempt or of the wait, 0 = none */
    uint64_t backoff_ms;
    unsigned attempts;
    int sync_failure; /* libuv error of an attempt that failed before it began */
    struct request *first, *last;
    size_t pending;
    uint64_t next_id;
    bool given_up, closing, had_epoch;
    uint64_t epoch;
    void (*closed)(void *arg);
    void *closed_arg;
};

static void client_attempt(struct zt_client *c);
static void client_lost(struct zt_client *c, bool final, const struct zt_error *err);
static void on_timer(uv_timer_t *timer);

/* ------------------------------------------------------------------------------------ requests */

static void request_unlink(struct zt_client *c, struct request *r)
{
    *(r->prev ? &r->prev->next : &c->first) = r->next;
    *(r->next ? &r->next->prev : &c->last) = r->prev;
    c->pending--;
}

static void request_append(struct zt_client *c, struct request *r)
{
    r->next = NULL;
    r->prev = c->last;
    *(c->last ? &c->last->next : &c->first) = r;
    c->last = r;
    c->pending++;
}

/* r is unlinked. */
static void request_finish(struct request *r, const Zt__Envelope *reply, const struct zt_error *err)
{
    if (r->fn) {
        r->fn(r->arg, reply, err);
    }
    zt_frame_drop(r->frame);
    free(r);
}

/* Requests that a predicate selects leave the list first: a callback may make new ones. */
static void requests_fail(struct zt_client *c, bool all, const struct zt_error *err)
{
    struct request *fail = NULL, **tail = &fail;
    for (struct request *r = c->first, *next; r; r = next) {
        next = r->next;
        if (all || (r->sent && !r->retry)) {
            request_unlink(c, r);
            r->next = NULL;
            *tail = r;
            tail = &r->next;
        } else {
            r->sent = false;
        }
    }
    while (fail) {
        struct request *r = fail;
        fail = r->next;
        request_finish(r, NULL, err);
    }
}

static void client_arm(struct zt_client *c, uint64_t at)
{
    if (c->closing || at == 0 || (c->armed && c->armed <= at)) {
        return;
    }
    uint64_t now = uv_now(c->loop);
    c->armed = at;
    uv_timer_start(&c->timer, on_timer, at > now ? at - now : 0, 0);
}

static void request_send(struct zt_client *c, struct request *r)
{
    r->sent = true;
    /* an error here is followed by the read side's error or by the request's time-out */
    (void)zt_stream_write((uv_stream_t *)&c->conn->tcp, zt_frame_hold(r->frame), NULL, NULL);
}

int zt_client_request(struct zt_client *c, Zt__Envelope *env, bool retry, double timeout_s,
                      zt_reply_fn fn, void *arg, struct zt_error *err)
{
    if (c->closing || c->given_up) {
        return zt_fail(err, ZT_EUNREACHABLE, "the session with %s:%d is closed", c->config.host,
                       c->config.port);
    }
    struct request *r = calloc(1, sizeof(*r));
    if (!r) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a request");
    }
    env->request_id = r->id = c->next_id++;
    env->has_reply = env->has_code = 0;
    int rc = zt_frame_new(env, &r->frame, err);
    if (rc) {
        free(r);
        return rc;
    }
    r->retry = retry;
    r->fn = fn;
    r->arg = arg;
    request_append(c, r);
    if (timeout_s > 0) {
        r->deadline = uv_now(c->loop) + (uint64_t)(timeout_s * 1000.0) + 1;
        client_arm(c, r->deadline);
    }
    if (c->conn && c->conn->state == CONN_UP) {
        request_send(c, r);
    }
    return 0;
}

size_t zt_client_pending(const struct zt_client *c)
{
    return c->pending;
}

bool zt_client_is_connected(const struct zt_client *c)
{
    return c->conn && c->conn->state == CONN_UP;
}

void zt_client_local_address(const struct zt_client *c, char *out, size_t n)
{
    struct sockaddr_storage a;
    int len = sizeof(a);
    out[0] = '\0';
    if (zt_client_is_connected(c) && uv_tcp_getsockname(&c->conn->tcp, (struct sockaddr *)&a, &len) == 0 &&
        uv_ip_name((struct sockaddr *)&a, out, n)) {
        out[0] = '\0';
    }
}

/* --------------------------------------------------------------------------------- connections */

static void conn_release(struct conn *k)
{
    if (--k->holds == 0) {
        zt_decoder_free(&k->decoder);
        free(k);
    }
}

static void on_conn_closed(uv_handle_t *h)
{
    conn_release(h->data);
}

static void client_forget_conn(struct zt_client *c)
{
    struct conn *k = c->conn;
    if (!k) {
        return;
    }
    c->conn = NULL;
    k->client = NULL;
    k->stop = true;
    uv_close((uv_handle_t *)&k->tcp, on_conn_closed);
}

static uint64_t backoff_next(struct zt_client *c)
{
    uint32_t r;
    zt_random_bytes(&r, sizeof(r));
    uint64_t base = c->backoff_ms;
    c->backoff_ms = base * 2 < BACKOFF_MAX_MS ? base * 2 : BACKOFF_MAX_MS;
    return base / 2 + r % (base / 2 + 1);
}

/* The connection is gone or never came to be. */
static void client_lost(struct zt_client *c, bool final, const struct zt_error *cause)
{
    struct zt_error err = *cause;
    final = final || !c->config.reconnect;
    client_forget_conn(c);
    c->phase_deadline = 0;
    if (final) {
        c->given_up = true;
    } else {
        c->phase_deadline = uv_now(c->loop) + backoff_next(c);
        client_arm(c, c->phase_deadline);
    }
    struct zt_error lost = err;
    if (!final) {
        zt_fail(&lost, ZT_EUNREACHABLE, "the connection to %s:%d was lost before the answer came",
                c->config.host, c->config.port);
    }
    requests_fail(c, final, &lost);
    if (!c->closing && c->config.on_disconnected) {
        c->config.on_disconnected(c->config.arg, !final, &err);
    }
}

static void client_lost_uv(struct zt_client *c, int uv_code, const char *doing)
{
    struct zt_error err;
    const char *next = uv_code == UV_ECONNREFUSED ? ": is zcoord running there?" : "";
    zt_fail(&err, ZT_EUNREACHABLE, "%s the coordinator at %s:%d: %s%s", doing, c->config.host,
            c->config.port, uv_code == UV_EOF ? "it closed the connection" : uv_strerror(uv_code),
            next);
    client_lost(c, false, &err);
}

/* --------------------------------------------------------------------------------------- hello */

static int send_hello(struct zt_client *c, struct conn *k, struct zt_error *err)
{
    uint8_t mac[32];
    struct zt_frame *f;
    Zt__Hello hello = ZT__HELLO__INIT;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    zt_random_bytes(k->nonce, sizeof(k->nonce));
    zt_hello_mac(&c->config.token, k->server_nonce, k->nonce, (uint8_t)c->config.role, mac);
    hello.protocol_major = ZT_PROTOCOL_MAJOR;
    hello.protocol_minor = ZT_PROTOCOL_MINOR;
    hello.role = c->config.role;
    hello.nonce = (ProtobufCBinaryData){32, k->nonce};
    hello.mac = (ProtobufCBinaryData){32, mac};
    hello.version = (char *)(uintptr_t)ZT_VERSION;
    hello.principal = c->principal;
    env.request_id = k->hello_id = c->next_id++;
    env.body_case = ZT__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    int rc = zt_frame_new(&env, &f, err);
    if (rc) {
        return rc;
    }
    rc = zt_stream_write((uv_stream_t *)&k->tcp, f, NULL, NULL);
    return rc ? zt_fail(err, ZT_EUNREACHABLE, "cannot write to %s:%d: %s", c->config.host,
                        c->config.port, uv_strerror(rc))
              : 0;
}

static int on_challenge(struct zt_client *c, struct conn *k, const Zt__Envelope *env,
                        struct zt_error *err)
{
    if (env->body_case != ZT__ENVELOPE__BODY_CHALLENGE || env->challenge->nonce.len != 32) {
        return zt_fail(err, ZT_EPROTO, "%s:%d does not speak the ztrain protocol", c->config.host,
                       c->config.port);
    }
    const Zt__Challenge *ch = env->challenge;
    if (ch->protocol_major != ZT_PROTOCOL_MAJOR) {
        return zt_fail(err, ZT_EVERSION,
                       "the coordinator at %s:%d is version %.40s (protocol %u.%u), this program is "
                       "%s (protocol %d.%d): use programs of one version",
                       c->config.host, c->config.port, ch->version ? ch->version : "unknown",
                       ch->protocol_major, ch->protocol_minor, ZT_VERSION, ZT_PROTOCOL_MAJOR,
                       ZT_PROTOCOL_MINOR);
    }
    memcpy(k->server_nonce, ch->nonce.data, 32);
    k->state = CONN_HELLO;
    return send_hello(c, k, err);
}

static int on_hello_reply(struct zt_client *c, struct conn *k, const Zt__Envelope *env,
                          struct zt_error *err)
{
    uint8_t mac[32];
    if (env->request_id != k->hello_id || !env->reply ||
        env->body_case != ZT__ENVELOPE__BODY_HELLO_REPLY) {
        return zt_fail(err, ZT_EPROTO, "%s:%d answered the hello with %s", c->config.host,
                       c->config.port, zt_envelope_body_name(env));
    }
    zt_server_mac(&c->config.token, k->nonce, k->server_nonce, mac);
    if (env->hello_reply->mac.len != 32 || !zt_mac_equal(mac, env->hello_reply->mac.data)) {
        return zt_fail(err, ZT_EAUTH,
                       "the server at %s:%d does not know the token: it is not your coordinator",
                       c->config.host, c->config.port);
    }
    uint64_t epoch = env->hello_reply->epoch;
    bool changed = c->had_epoch && epoch != c->epoch;
    c->had_epoch = true;
    c->epoch = epoch;
    c->backoff_ms = BACKOFF_MIN_MS;
    c->phase_deadline = 0;
    k->state = CONN_UP;
    k->decoder.max_frame = ZT_FRAME_MAX;
    if (c->config.on_connected) {
        c->config.on_connected(c->config.arg, epoch, changed);
    }
    for (struct request *r = c->first; r && c->conn == k; r = r->next) {
        if (!r->sent) {
            request_send(c, r);
        }
    }
    return 0;
}

static void on_answer(struct zt_client *c, const Zt__Envelope *env)
{
    struct request *r = c->first;
    while (r && r->id != env->request_id) {
        r = r->next;
    }
    if (!r) {
        return; /* it timed out before */
    }
    request_unlink(c, r);
    if (env->code != ZT__CODE__OK) {
        struct zt_error err;
        zt_fail_from_envelope(env, &err);
        request_finish(r, env, &err);
    } else {
        request_finish(r, env, NULL);
    }
}

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct conn *k = arg;
    struct zt_client *c = k->client;
    int rc = 0;
    if (k->stop) {
        return ZT_ECANCELLED;
    }
    if (env->code != ZT__CODE__OK && (k->state != CONN_UP || env->request_id == 0)) {
        return zt_fail_from_envelope(env, err); /* the server says why it hangs up */
    }
    if (k->state == CONN_CHALLENGE) {
        rc = on_challenge(c, k, env, err);
    } else if (k->state == CONN_HELLO) {
        rc = on_hello_reply(c, k, env, err);
    } else if (env->reply) {
        on_answer(c, env);
    } else if (env->request_id == 0 && c->config.on_push) {
        c->config.on_push(c->config.arg, env);
    }
    return k->stop ? ZT_ECANCELLED : rc;
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    (void)want;
    struct conn *k = h->data;
    *buf = uv_buf_init(k->buf, sizeof(k->buf));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *k = stream->data;
    struct zt_error err = {0};
    if (!k->client || n == 0) {
        return;
    }
    if (n < 0) {
        client_lost_uv(k->client, (int)n, k->state == CONN_UP ? "lost" : "no hello from");
        return;
    }
    int rc = zt_decoder_feed(&k->decoder, buf->base, (size_t)n, on_frame, k, &err);
    if (rc && k->client) {
        bool final = rc == ZT_EAUTH || rc == ZT_EVERSION;
        client_lost(k->client, final, &err);
    }
}

static void on_connect(uv_connect_t *req, int status)
{
    struct conn *k = req->data;
    if (!k->client) {
        return;
    }
    if (status == 0) {
        zt_tcp_options(&k->tcp);
        k->state = CONN_CHALLENGE;
        status = uv_read_start((uv_stream_t *)&k->tcp, on_alloc, on_read);
    }
    if (status) {
        client_lost_uv(k->client, status, "cannot reach");
    }
}

static int conn_connect(struct conn *k, const struct sockaddr *a)
{
    k->connect.data = k;
    return uv_tcp_connect(&k->connect, &k->tcp, a, on_connect);
}

/* IPv4 first: the coordinator's default is 127.0.0.1, and "localhost" may be both. */
static const struct addrinfo *pick_address(const struct addrinfo *all, unsigned attempt)
{
    const struct addrinfo *v4 = NULL, *other = NULL;
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        if (a->ai_family == AF_INET && !v4) {
            v4 = a;
        } else if (a->ai_family == AF_INET6 && !other) {
            other = a;
        }
    }
    return !other || (v4 && attempt % 2 == 0) ? v4 : other;
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *all)
{
    struct conn *k = req->data;
    struct zt_client *c = k->client;
    if (c) {
        const struct addrinfo *a = status == 0 ? pick_address(all, c->attempts - 1) : NULL;
        if (status == 0) {
            status = a ? conn_connect(k, a->ai_addr) : UV_EAI_NONAME;
        }
        if (status) {
            client_lost_uv(c, status, "cannot reach");
        }
    }
    uv_freeaddrinfo(all);
    conn_release(k);
}

static int conn_start(struct zt_client *c, struct conn *k)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    char port[16];
    const char *host = c->config.host;
    if (strcmp(host, "localhost") == 0) { /* this machine by definition, also where no file or server says so */
        host = c->attempts % 2 == 1 ? "127.0.0.1" : "::1";
    }
    if (uv_ip4_addr(host, c->config.port, &v4) == 0) {
        return conn_connect(k, (const struct sockaddr *)&v4);
    }
    if (uv_ip6_addr(host, c->config.port, &v6) == 0) {
        return conn_connect(k, (const struct sockaddr *)&v6);
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof(port), "%d", c->config.port);
    k->resolve.data = k;
    int rc = uv_getaddrinfo(c->loop, &k->resolve, on_resolved, host, port, &hints);
    if (rc == 0) {
        k->holds++;
    }
    return rc;
}

static void client_attempt(struct zt_client *c)
{
    struct conn *k = calloc(1, sizeof(*k));
    c->attempts++;
    c->sync_failure = UV_ENOMEM;
    if (k) {
        zt_decoder_init(&k->decoder, ZT_FRAME_MAX_UNAUTH);
        c->sync_failure = uv_tcp_init(c->loop, &k->tcp);
        if (c->sync_failure) {
            free(k);
        } else {
            k->tcp.data = k;
            k->holds = 1;
            k->client = c;
            c->conn = k;
            c->sync_failure = conn_start(c, k);
        }
    }
    /* a failure before anything began is told from the loop, like every other */
    c->phase_deadline = uv_now(c->loop) + (c->sync_failure ? 0 : CONNECT_MS);
    client_arm(c, c->phase_deadline);
}

/* --------------------------------------------------------------------------------------- timer */

static void on_phase_end(struct zt_client *c)
{
    c->phase_deadline = 0;
    if (c->sync_failure) {
        int code = c->sync_failure;
        c->sync_failure = 0;
        client_lost_uv(c, code, "cannot reach");
    } else if (c->conn) {
        client_lost_uv(c, UV_ETIMEDOUT, c->conn->state == CONN_CONNECTING ? "cannot reach" : "no hello from");
    } else if (!c->given_up) {
        client_attempt(c);
    }
}

static struct request *expired(struct zt_client *c, uint64_t now)
{
    for (struct request *r = c->first; r; r = r->next) {
        if (r->deadline && r->deadline <= now) {
            return r;
        }
    }
    return NULL;
}

static void on_timer(uv_timer_t *timer)
{
    struct zt_client *c = timer->data;
    uint64_t now = uv_now(c->loop);
    c->armed = 0;
    if (c->phase_deadline && c->phase_deadline <= now) {
        on_phase_end(c);
    }
    for (struct request *r; !c->closing && (r = expired(c, now));) {
        struct zt_error err;
        request_unlink(c, r);
        zt_fail(&err, ZT_ETIMEOUT, "no answer from the coordinator at %s:%d in time", c->config.host,
                c->config.port);
        request_finish(r, NULL, &err);
    }
    client_arm(c, c->phase_deadline);
    for (struct request *r = c->first; r; r = r->next) {
        client_arm(c, r->deadline);
    }
}

/* ------------------------------------------------------------------------------- open and close */

int zt_client_open(uv_loop_t *loop, const struct zt_client_config *config, struct zt_client **out,
                   struct zt_error *err)
{
    *out = NULL;
    if (!config->host[0] || config->port < 1 || config->port > 65535) {
        return zt_fail(err, ZT_EINVAL, "no coordinator address: \"%s\" port %d", config->host,
                       config->port);
    }
    struct zt_client *c = calloc(1, sizeof(*c));
    if (!c) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a session");
    }
    c->loop = loop;
    c->config = *config;
    snprintf(c->principal, sizeof(c->principal), "%s", config->principal ? config->principal : "");
    c->config.principal = c->principal;
    c->next_id = 1;
    c->backoff_ms = BACKOFF_MIN_MS;
    int rc = uv_timer_init(loop, &c->timer);
    if (rc) {
        free(c);
        return zt_fail(err, ZT_EIO, "cannot make a timer: %s", uv_strerror(rc));
    }
    c->timer.data = c;
    uv_update_time(loop);
    client_attempt(c);
    *out = c;
    return 0;
}

static void on_client_closed(uv_handle_t *h)
{
    struct zt_client *c = h->data;
    void (*closed)(void *arg) = c->closed;
    void *arg = c->closed_arg;
    free(c);
    if (closed) {
        closed(arg);
    }
}

void zt_client_close(struct zt_client *c, void (*closed)(void *arg), void *arg)
{
    struct zt_error err;
    ZT_ASSERT(!c->closing);
    c->closing = true;
    c->closed = closed;
    c->closed_arg = arg;
    client_forget_conn(c);
    zt_fail(&err, ZT_ECANCELLED, "the session with %s:%d was closed", c->config.host, c->config.port);
    requests_fail(c, true, &err);
    uv_close((uv_handle_t *)&c->timer, on_client_closed);
}
