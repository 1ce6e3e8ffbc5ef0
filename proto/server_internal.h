/* SPDX-License-Identifier: Apache-2.0 */
/* proto/server_internal.h: what the two halves of the answering side share:
 *   server.c  the listener: accepting, slots, running out of descriptors, open and close
 *   peer.c    one connection: deadlines, output, hello, input, the handler's side
 * Thread rule and ownership: session.h. */
#ifndef ZT_PROTO_SERVER_INTERNAL_H
#define ZT_PROTO_SERVER_INTERNAL_H
#include "proto/session_internal.h"

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

/* peer.c */
struct zt_peer *sv_peer_new(struct zt_server *s); /* linked, still to be accepted or adopted; NULL: no memory */
void sv_peer_start(struct zt_peer *p);            /* accepted: the challenge goes out */
void sv_peer_close(struct zt_peer *p);

/* server.c */
void sv_resume(struct zt_server *s); /* a peer is gone: there may be room for one that waits */
void sv_finish(struct zt_server *s); /* closing: frees the server once nothing of it is left */

#endif
