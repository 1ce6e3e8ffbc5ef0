/* SPDX-License-Identifier: Apache-2.0 */
/* proto/server.c: the answering side's listener.
 *
 * A peer that has not said hello sits in one of 32 slots. When the slots are full, accepting pauses until
 * one is free or its holder is older than SLOT_MS and can be put out: a flood of silent connections delays an
 * honest one by milliseconds. Descriptors: accepting also pauses shortly before this process runs out of
 * them, and should accept fail all the same, the listener is closed and opened again after a wait; neither
 * spins. */
#include "proto/server_internal.h"

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
#define RELISTEN_MS 200u
#define ACCEPT_BATCH 16u     /* per loop turn, so that hellos are read in between */
#define PEERS_MAX ((size_t)16384)
#define DESCRIPTORS_KEPT ((size_t)16) /* for files, databases and the loop itself */

/* ----------------------------------------------------------------------------------- accepting */

static void on_server_timer(uv_timer_t *t);

static void server_pause(struct zt_server *s, uint64_t ms)
{
    s->paused = true;
    uv_timer_start(&s->timer, on_server_timer, ms, 0);
}

static void accept_one(struct zt_server *s)
{
    struct zt_peer *p = sv_peer_new(s);
    if (!p) {
        server_pause(s, RELISTEN_MS); /* no memory: the connection stays pending */
        return;
    }
    if (p->handles != 2 || uv_accept((uv_stream_t *)s->listener, (uv_stream_t *)&p->tcp)) {
        sv_peer_close(p);
        return;
    }
    zt_tcp_options(&p->tcp);
    sv_peer_start(p);
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
        sv_peer_close(p);
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
        sv_finish(s);
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
void sv_resume(struct zt_server *s)
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

void sv_finish(struct zt_server *s)
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
    sv_finish(s);
}

void zt_server_close(struct zt_server *s, void (*closed)(void *arg), void *arg)
{
    ZT_ASSERT(!s->closing);
    s->closing = true;
    s->closed = closed;
    s->closed_arg = arg;
    close_listener(s);
    for (struct zt_peer *p = s->first; p; p = p->next) {
        sv_peer_close(p);
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
