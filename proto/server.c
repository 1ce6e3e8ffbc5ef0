/* SPDX-License-Identifier: Apache-2.0 */
/* proto/server.c: the answering side of a session.
 *
 *   accept -> challenge sent -> hello checked -> open      any fault -> (reason sent) -> closed
 *
 * Before the hello was accepted nothing reaches the handler, a frame has at most 4 KiB and a peer
 * sits in one of 32 slots. When the slots are full, accepting pauses until one is free or its holder is
 * older than SLOT_MS and can be put out: a flood of silent connections delays an honest one by
 * milliseconds. Descriptors: accepting also pauses shortly before this process runs out of them, and
 * should accept fail all the same, the listener is closed and opened again after a wait; neither spins.
 *
 * Memory: a peer lives until libuv closed its handles; on_close is the handler's last sight of it. */
#include "proto/session_internal.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SLOTS_UNAUTH 32u
#define SLOT_MS 50u          /* a silent connection may be put out after this when slots are short */
#define HELLO_MS 2000u
#define PARTIAL_MS 5000u
#define IDLE_MS 60000u
#define FLUSH_MS 2000u       /* to send the reason of a hang-up */
#define OUTPUT_MAX ((size_t)4 << 20)
#define RELISTEN_MS 200u
#define ACCEPT_BATCH 16u     /* per loop turn, so that hellos are read in between */
#define PEERS_MAX ((size_t)16384)
#define DESCRIPTORS_KEPT ((size_t)16) /* for files, databases and the loop itself */

enum peer_state { PEER_HELLO, PEER_OPEN, PEER_FLUSHING, PEER_CLOSING };

struct zt_peer {
    struct zt_server *server;
    struct zt_peer *next, *prev;
    uv_tcp_t tcp;
    uv_timer_t timer;
    int handles; /* to close */
    enum peer_state state;
    bool opened;     /* on_open was called */
    bool beats;      /* a worker that registered or beat: exempt from the idle limit */
    bool partial;
    Zt__Role role;
    uint8_t nonce[32];
    char address[80], name[192];
    void *data;
    struct zt_decoder decoder;
    uint64_t frames, outstanding;
    uint64_t born, last_input, partial_since, flush_until;
};

struct zt_server {
    uv_loop_t *loop;
    struct zt_server_config config;
    char version[64];
    uv_tcp_t *listener; /* own allocation: it is closed and opened again when descriptors run out */
    uv_timer_t timer;   /* resumes accepting, opens the listener again */
    bool paused, closing, timer_closed;
    unsigned accepted_now; /* in this loop turn */
    uint64_t turn;
    int port;
    size_t max_peers;
    struct zt_peer *first, *last; /* oldest first */
    size_t in_closing;            /* listeners whose close callback is still to come */
    struct zt_server_stats stats;
    void (*sink)(void *arg, const uint8_t *bytes, size_t n);
    void *sink_arg;
    bool detached;
    void (*closed)(void *arg);
    void *closed_arg;
    char buf[65536];
};

static void server_accept(struct zt_server *s);
static void server_resume(struct zt_server *s);
static void server_finish(struct zt_server *s);

/* ------------------------------------------------------------------------------ closing a peer */

static void peer_unlink(struct zt_peer *p)
{
    struct zt_server *s = p->server;
    *(p->prev ? &p->prev->next : &s->first) = p->next;
    *(p->next ? &p->next->prev : &s->last) = p->prev;
    s->stats.peers--;
}

static void on_peer_handle_closed(uv_handle_t *h)
{
    struct zt_peer *p = h->data;
    struct zt_server *s = p->server;
    if (--p->handles) {
        return;
    }
    if (p->opened && s->config.on_close) {
        s->config.on_close(s->config.arg, p);
    }
    s->stats.closed++;
    peer_unlink(p);
    zt_decoder_free(&p->decoder);
    free(p);
    if (s->closing) {
        server_finish(s);
    } else {
        server_resume(s);
    }
}

static void peer_leave_slot(struct zt_peer *p)
{
    if (p->state == PEER_HELLO) {
        p->server->stats.unauthenticated--;
    }
}

static void peer_close(struct zt_peer *p)
{
    if (p->state == PEER_CLOSING) {
        return;
    }
    peer_leave_slot(p);
    p->state = PEER_CLOSING;
    uv_close((uv_handle_t *)&p->timer, on_peer_handle_closed);
    if (p->handles == 2) {
        uv_close((uv_handle_t *)&p->tcp, on_peer_handle_closed);
    }
}

static bool peer_is_live(const struct zt_peer *p)
{
    return p->state == PEER_HELLO || p->state == PEER_OPEN;
}

/* ---------------------------------------------------------------------------------- deadlines */

static void on_peer_timer(uv_timer_t *t);

/* The earliest of the deadlines that apply; 0 = none. */
static uint64_t peer_deadline(const struct zt_peer *p)
{
    uint64_t at = 0;
    if (p->state == PEER_FLUSHING) {
        return p->flush_until;
    }
    if (p->state == PEER_HELLO) {
        at = p->born + HELLO_MS;
    } else if (!p->beats && p->outstanding == 0) {
        at = p->last_input + IDLE_MS;
    }
    if (p->partial && (at == 0 || p->partial_since + PARTIAL_MS < at)) {
        at = p->partial_since + PARTIAL_MS;
    }
    return at;
}

static void peer_arm(struct zt_peer *p)
{
    uint64_t at = peer_deadline(p), now = uv_now(p->server->loop);
    if (p->state == PEER_CLOSING) {
        return;
    }
    if (at == 0) {
        uv_timer_stop(&p->timer);
    } else {
        uv_timer_start(&p->timer, on_peer_timer, at > now ? at - now : 0, 0);
    }
}

/* ------------------------------------------------------------------------------------- output */

static void on_flushed(void *arg, int status)
{
    (void)status;
    peer_close(arg);
}

static int peer_output(struct zt_peer *p, struct zt_frame *f, void (*done)(void *arg, int status))
{
    struct zt_server *s = p->server;
    if (s->detached) {
        s->sink(s->sink_arg, f->bytes, f->n);
        zt_frame_drop(f);
        if (done) {
            done(p, 0);
        }
        return 0;
    }
    return zt_stream_write((uv_stream_t *)&p->tcp, f, done, p);
}

/* Sends why and closes when it is out, or after FLUSH_MS. */
static void peer_hang_up(struct zt_peer *p, uint64_t request_id, int code, const char *message)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    struct zt_frame *f;
    struct zt_error ignored;
    if (!peer_is_live(p)) {
        return;
    }
    env.request_id = request_id;
    env.has_reply = 1;
    env.reply = request_id != 0;
    env.has_code = 1;
    env.code = zt_code_to_wire(code);
    env.message = (char *)(uintptr_t)message;
    peer_leave_slot(p);
    p->state = PEER_FLUSHING;
    p->flush_until = uv_now(p->server->loop) + FLUSH_MS;
    if (!p->server->detached) {
        uv_read_stop((uv_stream_t *)&p->tcp);
    }
    peer_arm(p);
    if (zt_frame_new(&env, &f, &ignored) || peer_output(p, f, on_flushed)) {
        peer_close(p);
    }
}

static int peer_send(struct zt_peer *p, Zt__Envelope *env, struct zt_error *err)
{
    struct zt_frame *f;
    if (!peer_is_live(p)) {
        return zt_fail(err, ZT_EUNREACHABLE, "%s is gone", p->name);
    }
    int rc = zt_frame_new(env, &f, err);
    if (rc) {
        return rc;
    }
    size_t queued = p->server->detached ? 0 : uv_stream_get_write_queue_size((uv_stream_t *)&p->tcp);
    if (queued + f->n > OUTPUT_MAX) {
        zt_frame_drop(f);
        p->server->stats.overflowed++;
        peer_close(p);
        return zt_fail(err, ZT_EBUSY, "%s does not read its replies: %zu bytes wait; dropped", p->name,
                       queued);
    }
    rc = peer_output(p, f, NULL);
    if (rc) {
        peer_close(p);
        return zt_fail(err, ZT_EUNREACHABLE, "cannot write to %s: %s", p->name, uv_strerror(rc));
    }
    return 0;
}

static void on_peer_timer(uv_timer_t *t)
{
    struct zt_peer *p = t->data;
    uint64_t at = peer_deadline(p);
    if (at == 0 || at > uv_now(p->server->loop)) {
        peer_arm(p);
        return;
    }
    p->server->stats.timed_out++;
    if (p->state == PEER_FLUSHING) {
        peer_close(p);
    } else if (p->state == PEER_HELLO) {
        peer_hang_up(p, 0, ZT_ETIMEOUT, "no hello within 2 seconds");
    } else {
        peer_hang_up(p, 0, ZT_ETIMEOUT,
                     p->partial ? "a frame was not complete within 5 seconds" : "idle for 60 seconds");
    }
}

/* -------------------------------------------------------------------------------------- hello */

static int send_challenge(struct zt_peer *p, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Challenge ch = ZT__CHALLENGE__INIT;
    zt_random_bytes(p->nonce, sizeof(p->nonce));
    ch.protocol_major = ZT_PROTOCOL_MAJOR;
    ch.protocol_minor = ZT_PROTOCOL_MINOR;
    ch.nonce = (ProtobufCBinaryData){32, p->nonce};
    ch.version = p->server->version;
    ch.epoch = p->server->config.epoch;
    env.body_case = ZT__ENVELOPE__BODY_CHALLENGE;
    env.challenge = &ch;
    return peer_send(p, &env, err);
}

/* Names end in logs: printable ASCII only. */
static void peer_set_name(struct zt_peer *p, const char *principal)
{
    char who[65];
    size_t n = 0;
    for (const char *s = principal; *s && n < sizeof(who) - 1; s++) {
        who[n++] = *s > ' ' && *s < 127 ? *s : '?';
    }
    who[n] = '\0';
    snprintf(p->name, sizeof(p->name), "%s@%s", n ? who : "anonymous", p->address);
}

static int accept_hello(struct zt_peer *p, const Zt__Envelope *env, struct zt_error *err)
{
    struct zt_server *s = p->server;
    uint8_t mac[32];
    Zt__Envelope reply = ZT__ENVELOPE__INIT;
    Zt__HelloReply hr = ZT__HELLO_REPLY__INIT;
    const Zt__Hello *h = env->hello;
    zt_server_mac(&s->config.token, h->nonce.data, p->nonce, mac);
    hr.mac = (ProtobufCBinaryData){32, mac};
    hr.epoch = s->config.epoch;
    reply.request_id = env->request_id;
    reply.has_reply = reply.reply = 1;
    reply.body_case = ZT__ENVELOPE__BODY_HELLO_REPLY;
    reply.hello_reply = &hr;
    int rc = peer_send(p, &reply, err);
    if (rc) {
        return rc;
    }
    peer_set_name(p, h->principal ? h->principal : "");
    peer_leave_slot(p);
    p->state = PEER_OPEN;
    p->role = h->role;
    p->decoder.max_frame = ZT_FRAME_MAX;
    p->opened = true;
    s->stats.opened++;
    if (s->config.on_open) {
        s->config.on_open(s->config.arg, p);
    }
    server_resume(s);
    return 0;
}

static int on_hello(struct zt_peer *p, const Zt__Envelope *env, struct zt_error *err)
{
    struct zt_server *s = p->server;
    const Zt__Hello *h = env->hello;
    uint8_t mac[32];
    char text[256];
    if (h->protocol_major != ZT_PROTOCOL_MAJOR) {
        s->stats.refused_version++;
        snprintf(text, sizeof(text),
                 "version mismatch: the coordinator is %s (protocol %d.%d), the caller is %.40s (protocol "
                 "%u.%u): use programs of one version",
                 s->version, ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR, h->version ? h->version : "unknown",
                 h->protocol_major, h->protocol_minor);
        peer_hang_up(p, env->request_id, ZT_EVERSION, text);
        return 0;
    }
    if (h->nonce.len == 32 && h->mac.len == 32) {
        zt_hello_mac(&s->config.token, p->nonce, h->nonce.data, (uint8_t)h->role, mac);
        if (zt_mac_equal(mac, h->mac.data)) {
            return accept_hello(p, env, err);
        }
    }
    s->stats.refused_auth++;
    peer_hang_up(p, env->request_id, ZT_EAUTH,
                 "not authenticated: the token is not this coordinator's; name its token file with "
                 "--token-file or ZTRAIN_TOKEN_FILE");
    return 0;
}

/* -------------------------------------------------------------------------------------- input */

/* What a peer may ask of the coordinator; the rest are replies, session frames or a trainer child's. */
static bool is_request(Zt__Envelope__BodyCase body)
{
    switch (body) {
    case ZT__ENVELOPE__BODY_REGISTER_WORKER:
    case ZT__ENVELOPE__BODY_BEAT:
    case ZT__ENVELOPE__BODY_RANK_READY:
    case ZT__ENVELOPE__BODY_RANK_IN_COMM:
    case ZT__ENVELOPE__BODY_PUT_COMM_ID:
    case ZT__ENVELOPE__BODY_GET_COMM_ID:
    case ZT__ENVELOPE__BODY_REPORT_STEPS:
    case ZT__ENVELOPE__BODY_REPORT_FAILURE:
    case ZT__ENVELOPE__BODY_RANK_DONE:
    case ZT__ENVELOPE__BODY_LOG_APPEND:
    case ZT__ENVELOPE__BODY_REPORT_EVENT:
    case ZT__ENVELOPE__BODY_CHILD_EXITED:
    case ZT__ENVELOPE__BODY_SUBMIT:
    case ZT__ENVELOPE__BODY_LIST_RUNS:
    case ZT__ENVELOPE__BODY_GET_RUN:
    case ZT__ENVELOPE__BODY_CANCEL:
    case ZT__ENVELOPE__BODY_GET_METRICS:
    case ZT__ENVELOPE__BODY_GET_MEMORY:
    case ZT__ENVELOPE__BODY_GET_LOGS:
    case ZT__ENVELOPE__BODY_GET_EVENTS:
    case ZT__ENVELOPE__BODY_LIST_WORKERS:
    case ZT__ENVELOPE__BODY_GET_STATUS:
    case ZT__ENVELOPE__BODY_SHUTDOWN:
    case ZT__ENVELOPE__BODY_REPORT_TRACES:
    case ZT__ENVELOPE__BODY_GET_TRACE:
    case ZT__ENVELOPE__BODY_REPORT_DTYPES:
    case ZT__ENVELOPE__BODY_GET_DTYPES:
        return true;
    default:
        return false;
    }
}

static void on_request(struct zt_peer *p, const Zt__Envelope *env)
{
    struct zt_server *s = p->server;
    char text[160];
    if (!is_request(env->body_case)) {
        s->stats.unimplemented++;
        snprintf(text, sizeof(text), "coordinator %s (protocol %d.%d) does not serve the request \"%s\"",
                 s->version, ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR,
                 env->body_case == ZT__ENVELOPE__BODY__NOT_SET ? "unknown" : zt_envelope_body_name(env));
        p->outstanding++;
        zt_peer_reply_error(p, env->request_id, -(int)ZT__CODE__UNIMPLEMENTED, text);
        return;
    }
    if (p->role == ZT__ROLE__ROLE_WORKER && (env->body_case == ZT__ENVELOPE__BODY_BEAT ||
                                             env->body_case == ZT__ENVELOPE__BODY_REGISTER_WORKER)) {
        p->beats = true;
    }
    s->stats.requests++;
    p->outstanding++;
    if (s->config.on_request) {
        s->config.on_request(s->config.arg, p, env);
    }
}

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct zt_peer *p = arg;
    p->frames++;
    if (p->state == PEER_HELLO) {
        if (env->body_case != ZT__ENVELOPE__BODY_HELLO || env->request_id == 0 || env->reply) {
            return zt_fail(err, ZT_EAUTH, "the first frame must be a hello, not %s",
                           zt_envelope_body_name(env));
        }
        int rc = on_hello(p, env, err);
        return rc ? rc : peer_is_live(p) ? 0 : ZT_ECANCELLED;
    }
    if (env->request_id == 0 || env->reply) {
        return zt_fail(err, ZT_EPROTO, "a peer sends requests with an id, not %s",
                       env->reply ? "replies" : "pushes");
    }
    on_request(p, env);
    return peer_is_live(p) ? 0 : ZT_ECANCELLED;
}

void zt_peer_input(struct zt_peer *p, const uint8_t *bytes, size_t n)
{
    struct zt_server *s = p->server;
    struct zt_error err = {0};
    uint64_t frames = p->frames, now = uv_now(s->loop);
    if (!peer_is_live(p)) {
        return;
    }
    p->last_input = now;
    int rc = zt_decoder_feed(&p->decoder, bytes, n, on_frame, p, &err);
    if (rc && peer_is_live(p)) {
        if (rc == ZT_EAUTH) {
            s->stats.refused_auth++;
        } else {
            s->stats.malformed++;
        }
        peer_hang_up(p, 0, rc, err.msg);
    }
    if (!peer_is_live(p)) {
        return;
    }
    bool was = p->partial;
    p->partial = p->decoder.have > 0;
    if (p->partial && (!was || p->frames != frames)) {
        p->partial_since = now; /* a frame that began now */
    }
    peer_arm(p);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    struct zt_peer *p = h->data;
    (void)want;
    *buf = uv_buf_init(p->server->buf, sizeof(p->server->buf));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct zt_peer *p = stream->data;
    if (n < 0) {
        peer_close(p);
    } else if (n > 0) {
        zt_peer_input(p, (const uint8_t *)buf->base, (size_t)n);
    }
}

/* ----------------------------------------------------------------------------------- accepting */

static struct zt_peer *peer_new(struct zt_server *s)
{
    struct zt_peer *p = calloc(1, sizeof(*p));
    if (!p) {
        return NULL;
    }
    p->server = s;
    p->state = PEER_HELLO;
    p->born = p->last_input = uv_now(s->loop);
    zt_decoder_init(&p->decoder, ZT_FRAME_MAX_UNAUTH);
    if (uv_timer_init(s->loop, &p->timer)) {
        free(p);
        return NULL;
    }
    p->timer.data = p;
    p->handles = 1;
    if (!s->detached && uv_tcp_init(s->loop, &p->tcp) == 0) {
        p->tcp.data = p;
        p->handles = 2;
    }
    p->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = p;
    s->last = p;
    s->stats.accepted++;
    s->stats.peers++;
    s->stats.unauthenticated++;
    snprintf(p->name, sizeof(p->name), "detached");
    return p;
}

static void peer_address(struct zt_peer *p)
{
    struct sockaddr_storage a;
    char ip[INET6_ADDRSTRLEN] = "?";
    int len = sizeof(a), port = 0;
    if (uv_tcp_getpeername(&p->tcp, (struct sockaddr *)&a, &len) == 0) {
        if (a.ss_family == AF_INET) {
            const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
            uv_ip4_name(v4, ip, sizeof(ip));
            port = ntohs(v4->sin_port);
        } else if (a.ss_family == AF_INET6) {
            const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
            uv_ip6_name(v6, ip, sizeof(ip));
            port = ntohs(v6->sin6_port);
        }
    }
    snprintf(p->address, sizeof(p->address), "%s:%d", ip, port);
    snprintf(p->name, sizeof(p->name), "%s", p->address);
}

static void on_server_timer(uv_timer_t *t);

static void server_pause(struct zt_server *s, uint64_t ms)
{
    s->paused = true;
    uv_timer_start(&s->timer, on_server_timer, ms, 0);
}

static void accept_one(struct zt_server *s)
{
    struct zt_error err;
    struct zt_peer *p = peer_new(s);
    if (!p) {
        server_pause(s, RELISTEN_MS); /* no memory: the connection stays pending */
        return;
    }
    if (p->handles != 2 || uv_accept((uv_stream_t *)s->listener, (uv_stream_t *)&p->tcp)) {
        peer_close(p);
        return;
    }
    zt_tcp_options(&p->tcp);
    peer_address(p);
    if (uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read) || send_challenge(p, &err)) {
        peer_close(p);
        return;
    }
    peer_arm(p);
}

static struct zt_peer *oldest_unauthenticated(struct zt_server *s)
{
    for (struct zt_peer *p = s->first; p; p = p->next) {
        if (p->state == PEER_HELLO) {
            return p;
        }
    }
    return NULL;
}

/* There is a connection to accept. Taken, or left pending until the timer or a closed peer resumes:
 * libuv does not poll the listener while a connection is pending, so a pause costs nothing. */
static void server_accept(struct zt_server *s)
{
    uint64_t now = uv_now(s->loop);
    if (s->turn != now) {
        s->turn = now;
        s->accepted_now = 0;
    }
    if (s->accepted_now >= ACCEPT_BATCH) {
        server_pause(s, 1);
        return;
    }
    if (s->stats.peers >= s->max_peers) {
        server_pause(s, RELISTEN_MS);
        return;
    }
    if (s->stats.unauthenticated >= SLOTS_UNAUTH) {
        struct zt_peer *p = oldest_unauthenticated(s);
        if (now - p->born < SLOT_MS) {
            server_pause(s, SLOT_MS - (now - p->born));
            return;
        }
        s->stats.evicted++;
        peer_close(p);
    }
    s->accepted_now++;
    accept_one(s);
}

static void on_listener_closed(uv_handle_t *h)
{
    struct zt_server *s = h->data;
    free(h);
    s->in_closing--;
    if (s->closing) {
        server_finish(s);
    }
}

static void close_listener(struct zt_server *s)
{
    if (s->listener) {
        s->in_closing++;
        uv_close((uv_handle_t *)s->listener, on_listener_closed);
        s->listener = NULL;
    }
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct zt_server *s = stream->data;
    if (status == 0) {
        server_accept(s);
        return;
    }
    /* No descriptors, not even libuv's spare one: it would try again for ever. Closing the listener
     * ends its loop; the backlog is refused, clients try again by themselves. */
    s->stats.accept_errors++;
    close_listener(s);
    server_pause(s, RELISTEN_MS);
}

static int server_listen(struct zt_server *s, struct zt_error *err);

static void on_server_timer(uv_timer_t *t)
{
    struct zt_server *s = t->data;
    struct zt_error err;
    s->paused = false;
    if (!s->listener) {
        if (server_listen(s, &err)) {
            s->stats.accept_errors++;
            server_pause(s, RELISTEN_MS);
        }
        return;
    }
    server_accept(s);
}

/* A slot or a descriptor came free. */
static void server_resume(struct zt_server *s)
{
    if (s->paused && s->listener && !s->closing) {
        server_pause(s, 0);
    }
}

/* ------------------------------------------------------------------------------- open and close */

static int listen_address(const struct zt_server_config *c, struct sockaddr_storage *a,
                          struct zt_error *err)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)a;
    const char *host = strcmp(c->host, "localhost") == 0 ? "127.0.0.1" : c->host;
    bool loopback;
    if (c->port < 0 || c->port > 65535) {
        return zt_fail(err, ZT_EINVAL, "port %d is not between 0 and 65535", c->port);
    }
    memset(a, 0, sizeof(*a));
    if (uv_ip4_addr(host, c->port, v4) == 0) {
        loopback = (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    } else if (uv_ip6_addr(host, c->port, v6) == 0) {
        loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    } else {
        return zt_fail(err, ZT_EINVAL,
                       "cannot listen on \"%.80s\": give a numeric loopback address, for example "
                       "127.0.0.1:7000",
                       c->host);
    }
    if (!loopback) {
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "refusing to listen on %s: it is not a loopback address, and others are refused "
                       "until TLS exists; listen on 127.0.0.1 and reach it through ssh -L",
                       host);
    }
    return 0;
}

static int server_listen(struct zt_server *s, struct zt_error *err)
{
    struct sockaddr_storage a;
    struct zt_server_config c = s->config;
    c.port = s->port ? s->port : c.port;
    int rc = listen_address(&c, &a, err);
    if (rc) {
        return rc;
    }
    uv_tcp_t *l = calloc(1, sizeof(*l));
    if (!l) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a listener");
    }
    rc = uv_tcp_init(s->loop, l);
    if (rc) {
        free(l);
        return zt_fail(err, ZT_EIO, "cannot make a socket: %s", uv_strerror(rc));
    }
    l->data = s;
    s->listener = l;
    rc = uv_tcp_bind(l, (const struct sockaddr *)&a, 0);
    if (rc == 0) {
        rc = uv_listen((uv_stream_t *)l, 512, on_connection);
    }
    if (rc) {
        close_listener(s);
        if (rc == UV_EADDRINUSE) {
            return zt_fail(err, ZT_ECONFLICT,
                           "port %d on %s is in use: another zcoord may be running there (ss -ltnp shows "
                           "who); stop it or choose another port with --listen %s:PORT",
                           c.port, c.host, c.host);
        }
        return zt_fail(err, ZT_EIO, "cannot listen on %s:%d: %s", c.host, c.port, uv_strerror(rc));
    }
    struct sockaddr_storage got;
    int len = sizeof(got);
    rc = uv_tcp_getsockname(l, (struct sockaddr *)&got, &len);
    if (rc) {
        close_listener(s);
        return zt_fail(err, ZT_EIO, "cannot read the port of the listener: %s", uv_strerror(rc));
    }
    s->port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port
                                              : ((struct sockaddr_in *)&got)->sin_port);
    return 0;
}

/* Connections that fit into what is left of the descriptor limit. */
static size_t peer_limit(void)
{
    struct rlimit r;
    size_t open_now = 0;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY) {
        return PEERS_MAX;
    }
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        while (readdir(d)) {
            open_now++;
        }
        closedir(d);
    } else {
        open_now = 16;
    }
    size_t limit = (size_t)r.rlim_cur, kept = open_now + DESCRIPTORS_KEPT;
    size_t peers = limit > kept ? limit - kept : 1;
    return peers < PEERS_MAX ? peers : PEERS_MAX;
}

static int server_new(uv_loop_t *loop, const struct zt_server_config *config, struct zt_server **out,
                      struct zt_error *err)
{
    struct zt_server *s = calloc(1, sizeof(*s));
    *out = NULL;
    if (!s) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a server");
    }
    s->loop = loop;
    s->config = *config;
    snprintf(s->version, sizeof(s->version), "%s", config->version ? config->version : ZT_VERSION);
    int rc = uv_timer_init(loop, &s->timer);
    if (rc) {
        free(s);
        return zt_fail(err, ZT_EIO, "cannot make a timer: %s", uv_strerror(rc));
    }
    s->timer.data = s;
    uv_update_time(loop);
    *out = s;
    return 0;
}

int zt_server_open(uv_loop_t *loop, const struct zt_server_config *config, struct zt_server **out,
                   struct zt_error *err)
{
    struct zt_server *s;
    int rc = server_new(loop, config, &s, err);
    *out = NULL;
    if (rc) {
        return rc;
    }
    rc = server_listen(s, err);
    if (rc) {
        zt_server_close(s, NULL, NULL);
        return rc;
    }
    s->max_peers = peer_limit();
    signal(SIGPIPE, SIG_IGN); /* libuv writes to sockets whose peer may be gone */
    *out = s;
    return 0;
}

int zt_server_open_detached(uv_loop_t *loop, const struct zt_server_config *config,
                            void (*sink)(void *arg, const uint8_t *bytes, size_t n), void *sink_arg,
                            struct zt_server **out, struct zt_error *err)
{
    int rc = server_new(loop, config, out, err);
    if (rc == 0) {
        (*out)->detached = true;
        (*out)->sink = sink;
        (*out)->sink_arg = sink_arg;
        (*out)->max_peers = PEERS_MAX;
    }
    return rc;
}

struct zt_peer *zt_server_adopt(struct zt_server *s, int role)
{
    struct zt_error err;
    struct zt_peer *p = peer_new(s);
    ZT_ASSERT(p && s->detached);
    if (send_challenge(p, &err)) {
        peer_close(p);
        return p;
    }
    if (role) {
        peer_leave_slot(p);
        p->state = PEER_OPEN;
        p->role = (Zt__Role)role;
        p->decoder.max_frame = ZT_FRAME_MAX;
        p->opened = true;
        s->stats.opened++;
        if (s->config.on_open) {
            s->config.on_open(s->config.arg, p);
        }
    }
    peer_arm(p);
    return p;
}

static void server_finish(struct zt_server *s)
{
    if (!s->timer_closed || s->in_closing || s->first) {
        return;
    }
    void (*closed)(void *arg) = s->closed;
    void *arg = s->closed_arg;
    free(s);
    if (closed) {
        closed(arg);
    }
}

static void on_server_timer_closed(uv_handle_t *h)
{
    struct zt_server *s = h->data;
    s->timer_closed = true;
    server_finish(s);
}

void zt_server_close(struct zt_server *s, void (*closed)(void *arg), void *arg)
{
    ZT_ASSERT(!s->closing);
    s->closing = true;
    s->closed = closed;
    s->closed_arg = arg;
    close_listener(s);
    for (struct zt_peer *p = s->first; p; p = p->next) {
        peer_close(p);
    }
    uv_close((uv_handle_t *)&s->timer, on_server_timer_closed);
}

int zt_server_port(const struct zt_server *s)
{
    return s->port;
}

void zt_server_stats(const struct zt_server *s, struct zt_server_stats *out)
{
    *out = s->stats;
}

/* ---------------------------------------------------------------------------- the handler's side */

Zt__Role zt_peer_role(const struct zt_peer *p)
{
    return p->role;
}

const char *zt_peer_name(const struct zt_peer *p)
{
    return p->name;
}

void zt_peer_set_data(struct zt_peer *p, void *data)
{
    p->data = data;
}

void *zt_peer_data(const struct zt_peer *p)
{
    return p->data;
}

bool zt_peer_is_closing(const struct zt_peer *p)
{
    return !peer_is_live(p);
}

static void peer_answered(struct zt_peer *p)
{
    if (p->outstanding > 0 && --p->outstanding == 0 && p->state == PEER_OPEN) {
        p->last_input = uv_now(p->server->loop); /* idle from the last answer on */
        peer_arm(p);
    }
}

int zt_peer_reply(struct zt_peer *p, uint64_t request_id, Zt__Envelope *env, struct zt_error *err)
{
    env->request_id = request_id;
    env->has_reply = env->reply = 1;
    int rc = peer_send(p, env, err);
    if (rc == ZT_EPROTO || rc == ZT_ENOMEM) {
        zt_peer_reply_error(p, request_id, ZT_EINTERNAL, err ? err->msg : "the reply cannot be sent");
        return rc;
    }
    peer_answered(p);
    return rc;
}

int zt_peer_reply_error(struct zt_peer *p, uint64_t request_id, int zt_code, const char *message)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    struct zt_error err;
    char text[4096]; /* a message is for people; cut rather than refused */
    snprintf(text, sizeof(text), "%s", message ? message : "");
    env.request_id = request_id;
    env.has_reply = env.reply = 1;
    env.has_code = 1;
    env.code = zt_code_to_wire(zt_code);
    env.message = text;
    int rc = peer_send(p, &env, &err);
    peer_answered(p);
    return rc;
}

int zt_peer_push(struct zt_peer *p, Zt__Envelope *env, struct zt_error *err)
{
    env->request_id = 0;
    env->has_reply = env->reply = 0;
    return peer_send(p, env, err);
}

void zt_peer_drop(struct zt_peer *p)
{
    peer_close(p);
}
