/* SPDX-License-Identifier: Apache-2.0 */
/* tests/proto/harness.h: a server on a free loopback port, raw sockets against it, and a bounded way to
 * run the loop until something is true. Header only; one thread. */
#ifndef ZT_TESTS_PROTO_HARNESS_H
#define ZT_TESTS_PROTO_HARNESS_H
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "proto/session.h"
#include "tests/proto/minimal.h"

#define TEXT_OF(n) #n
#define VERSION_TEXT(major, minor) TEXT_OF(major) "." TEXT_OF(minor)
#define THIS_PROTOCOL VERSION_TEXT(ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR)

#define TURNS 4000

static inline void guard_tick(uv_timer_t *t) { (void)t; }

/* Runs the loop until *flag, at most TURNS turns of up to 5 ms each. */
static inline bool run_until(uv_loop_t *loop, bool (*done)(void *arg), void *arg)
{
    uv_timer_t guard;
    uv_timer_init(loop, &guard);
    uv_timer_start(&guard, guard_tick, 5, 5);
    bool ok = done(arg);
    for (int i = 0; i < TURNS && !ok; i++) {
        uv_run(loop, UV_RUN_ONCE);
        ok = done(arg);
    }
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(loop, UV_RUN_NOWAIT);
    return ok;
}

static inline bool flag_set(void *arg) { return *(bool *)arg; }
static inline void set_flag(void *arg) { *(bool *)arg = true; }

/* ------------------------------------------------------------------------------------- server */

struct harness {
    uv_loop_t loop;
    struct zt_server *server;
    struct zt_token token;
    uint64_t epoch;
    int opened, closed, requests, beats, registered;
    struct zt_peer *peer; /* newest */
    char last_name[200];
    uint64_t ids[512];    /* beat seq in order of arrival */
    bool hold;            /* do not answer */
    bool answer_big;      /* answer GetStatus with much */
    bool server_closed;
};

static inline void h_open(void *arg, struct zt_peer *p)
{
    struct harness *h = arg;
    h->opened++;
    h->peer = p;
    snprintf(h->last_name, sizeof(h->last_name), "%s", zt_peer_name(p));
}

static inline void h_close(void *arg, struct zt_peer *p)
{
    struct harness *h = arg;
    h->closed++;
    if (h->peer == p) {
        h->peer = NULL;
    }
}

static inline void h_request(void *arg, struct zt_peer *p, const Zt__Envelope *env)
{
    struct harness *h = arg;
    struct zt_error err;
    Zt__Envelope reply = ZT__ENVELOPE__INIT;
    h->requests++;
    if (env->body_case == ZT__ENVELOPE__BODY_BEAT && h->beats < 512) {
        h->ids[h->beats++] = env->beat->seq;
    }
    if (h->hold) {
        return;
    }
    if (env->body_case == ZT__ENVELOPE__BODY_BEAT) {
        Zt__Desired desired = ZT__DESIRED__INIT;
        Zt__BeatReply br = ZT__BEAT_REPLY__INIT;
        br.epoch = h->epoch;
        br.desired = &desired;
        br.has_seq = 1;
        br.seq = env->beat->seq;
        reply.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
        reply.beat_reply = &br;
        zt_peer_reply(p, env->request_id, &reply, &err);
    } else if (h->answer_big) {
        static uint8_t big[600 * 1024];
        Zt__CommId id = ZT__COMM_ID__INIT;
        id.id = (ProtobufCBinaryData){sizeof(big), big};
        reply.body_case = ZT__ENVELOPE__BODY_COMM_ID;
        reply.comm_id = &id;
        zt_peer_reply(p, env->request_id, &reply, &err);
    } else {
        Zt__Ack ack = ZT__ACK__INIT;
        reply.body_case = ZT__ENVELOPE__BODY_ACK;
        reply.ack = &ack;
        zt_peer_reply(p, env->request_id, &reply, &err);
    }
}

static inline void h_start(struct harness *h, int port)
{
    struct zt_error err;
    struct zt_server_config c = {.host = "127.0.0.1", .port = port, .token = h->token,
                                 .epoch = h->epoch, .version = "t", .arg = h, .on_open = h_open,
                                 .on_request = h_request, .on_close = h_close};
    h->server_closed = false;
    int rc = zt_server_open(&h->loop, &c, &h->server, &err);
    cr_assert_eq(rc, 0, "%s", err.msg);
}

static inline void h_init(struct harness *h)
{
    memset(h, 0, sizeof(*h));
    h->epoch = 7;
    memset(h->token.key, 0x5a, 32);
    cr_assert_eq(uv_loop_init(&h->loop), 0);
    h_start(h, 0);
}

static inline void h_stop(struct harness *h)
{
    zt_server_close(h->server, set_flag, &h->server_closed);
    cr_assert(run_until(&h->loop, flag_set, &h->server_closed));
    h->server = NULL;
}

/* Stops what runs; the loop must then be empty: nothing leaked. */
static inline void h_end(struct harness *h)
{
    if (h->server) {
        h_stop(h);
    }
    cr_assert_eq(h->opened, h->closed);
    for (int i = 0; i < 100 && uv_run(&h->loop, UV_RUN_NOWAIT); i++) {
    }
    cr_assert_eq(uv_loop_close(&h->loop), 0, "handles left open");
}

/* -------------------------------------------------------------------------------- raw sockets */

struct raw {
    int fd;
    bool eof;
    struct zt_decoder decoder;
    int frames;
    Zt__Envelope *last;
    void *arena;
};

static inline int raw_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct raw *r = arg;
    zt_envelope_free(r->last, r->arena);
    r->frames++;
    return zt_envelope_copy(env, &r->last, &r->arena, err);
}

/* Starts to connect; a full backlog must not stop the test, whose loop is the one that accepts. */
static inline void raw_start(struct raw *r, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memset(r, 0, sizeof(*r));
    zt_decoder_init(&r->decoder, ZT_FRAME_MAX);
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert_geq(r->fd, 0);
    int rc = connect(r->fd, (struct sockaddr *)&a, sizeof(a));
    cr_assert(rc == 0 || errno == EINPROGRESS, "connect: %s", strerror(errno));
}

static inline bool raw_connected(const struct raw *r, int wait_ms)
{
    struct pollfd f = {r->fd, POLLOUT, 0};
    return poll(&f, 1, wait_ms) == 1 && (f.revents & POLLOUT) != 0;
}

static inline void raw_connect(struct raw *r, int port)
{
    raw_start(r, port);
    cr_assert(raw_connected(r, 10000), "no connection to port %d within 10 s", port);
}

static inline void raw_poll(struct raw *r)
{
    uint8_t buf[65536];
    struct zt_error err;
    ssize_t n;
    while (!r->eof && (n = recv(r->fd, buf, sizeof(buf), 0)) != -1) {
        if (n == 0) {
            r->eof = true;
        } else {
            cr_assert_eq(zt_decoder_feed(&r->decoder, buf, (size_t)n, raw_frame, r, &err), 0, "%s",
                         err.msg);
        }
    }
    if (!r->eof && errno != EAGAIN && errno != EWOULDBLOCK) {
        r->eof = true; /* reset */
    }
}

static inline bool raw_has_frame(void *arg)
{
    struct raw *r = arg;
    raw_poll(r);
    return r->frames > 0 || r->eof;
}

static inline bool raw_at_end(void *arg)
{
    struct raw *r = arg;
    raw_poll(r);
    return r->eof;
}

static inline void raw_write(struct raw *r, const void *p, size_t n)
{
    cr_assert_eq(send(r->fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

static inline void raw_send(struct raw *r, const Zt__Envelope *env)
{
    struct zt_error err;
    uint8_t *p;
    size_t n;
    cr_assert_eq(zt_frame_pack(env, &p, &n, &err), 0, "%s", err.msg);
    raw_write(r, p, n);
    free(p);
}

static inline void raw_close(struct raw *r)
{
    zt_envelope_free(r->last, r->arena);
    zt_decoder_free(&r->decoder);
    close(r->fd);
    r->fd = -1;
}

/* Waits for the challenge; fills the hello that answers it. nonce and mac are the caller's. */
static inline void raw_hello(struct harness *h, struct raw *r, Zt__Role role, Zt__Envelope *env,
                             Zt__Hello *hello, uint8_t nonce[32], uint8_t mac[32])
{
    cr_assert(run_until(&h->loop, raw_has_frame, r));
    cr_assert_not_null(r->last);
    cr_assert_eq(r->last->body_case, ZT__ENVELOPE__BODY_CHALLENGE);
    zt__envelope__init(env);
    zt__hello__init(hello);
    memset(nonce, 0x33, 32);
    zt_hello_mac(&h->token, r->last->challenge->nonce.data, nonce, (uint8_t)role, mac);
    hello->protocol_major = ZT_PROTOCOL_MAJOR;
    hello->role = role;
    hello->nonce = (ProtobufCBinaryData){32, nonce};
    hello->mac = (ProtobufCBinaryData){32, mac};
    env->request_id = 1;
    env->body_case = ZT__ENVELOPE__BODY_HELLO;
    env->hello = hello;
}

static inline void raw_login(struct harness *h, struct raw *r, Zt__Role role)
{
    Zt__Envelope env;
    Zt__Hello hello;
    uint8_t nonce[32], mac[32];
    raw_hello(h, r, role, &env, &hello, nonce, mac);
    raw_send(r, &env);
    r->frames = 0;
    cr_assert(run_until(&h->loop, raw_has_frame, r));
    cr_assert_not(r->eof);
    cr_assert_eq(r->last->body_case, ZT__ENVELOPE__BODY_HELLO_REPLY);
    r->frames = 0;
}

#endif
