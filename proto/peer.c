/* SPDX-License-Identifier: Apache-2.0 */
/* proto/peer.c: one connection of the answering side.
 *
 *   accept -> challenge sent -> hello checked -> open      any fault -> (reason sent) -> closed
 *
 * Before the hello was accepted nothing reaches the handler and a frame has at most 4 KiB.
 * Memory: a peer lives until libuv closed its handles; on_close is the handler's last sight of it. */
#include "proto/server_internal.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_MS 2000u
#define PARTIAL_MS 5000u
#define IDLE_MS 60000u
#define FLUSH_MS 2000u       /* to send the reason of a hang-up */
#define OUTPUT_MAX ((size_t)4 << 20)

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
        sv_finish(s);
    } else {
        sv_resume(s);
    }
}

static void peer_leave_slot(struct zt_peer *p)
{
    if (p->state == PEER_HELLO) {
        p->server->stats.unauthenticated--;
    }
}

void sv_peer_close(struct zt_peer *p)
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
    sv_peer_close(arg);
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
        sv_peer_close(p);
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
        sv_peer_close(p);
        return zt_fail(err, ZT_EBUSY, "%s does not read its replies: %zu bytes wait; dropped", p->name,
                       queued);
    }
    rc = peer_output(p, f, NULL);
    if (rc) {
        sv_peer_close(p);
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
        sv_peer_close(p);
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
    sv_resume(s);
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
    case ZT__ENVELOPE__BODY_SHARD_DONE:
    case ZT__ENVELOPE__BODY_GET_SHARDS:
    case ZT__ENVELOPE__BODY_CKPT_COMMIT:
    case ZT__ENVELOPE__BODY_CKPT_REMOVED:
    case ZT__ENVELOPE__BODY_CKPT_FAILED:
    case ZT__ENVELOPE__BODY_RANK_LOADED:
    case ZT__ENVELOPE__BODY_LIST_CHECKPOINTS:
    case ZT__ENVELOPE__BODY_SET_CHECKPOINT:
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
        sv_peer_close(p);
    } else if (n > 0) {
        zt_peer_input(p, (const uint8_t *)buf->base, (size_t)n);
    }
}

/* -------------------------------------------------------------------------------------- beginning */

struct zt_peer *sv_peer_new(struct zt_server *s)
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

void sv_peer_start(struct zt_peer *p)
{
    struct zt_error err;
    peer_address(p);
    if (uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read) || send_challenge(p, &err)) {
        sv_peer_close(p);
        return;
    }
    peer_arm(p);
}

struct zt_peer *zt_server_adopt(struct zt_server *s, int role)
{
    struct zt_error err;
    struct zt_peer *p = sv_peer_new(s);
    ZT_ASSERT(p && s->detached);
    if (send_challenge(p, &err)) {
        sv_peer_close(p);
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
    sv_peer_close(p);
}
