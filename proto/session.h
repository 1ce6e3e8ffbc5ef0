/* SPDX-License-Identifier: Apache-2.0 */
/* proto/session.h: request/reply sessions over libuv for both ends. Every handle belongs to one loop
 * and is used on that loop's thread only; memory of a closed handle is ours again in its close
 * callback. If a call that takes a callback returns an error, the callback never runs.
 *
 * Client (zworker, zctl): connects, does the hello, keeps requests in order, reconnects with jittered
 * backoff 0.2 -> 5 s. Requests outstanding at a lost connection: sent again after reconnect when
 * `retry`, else answered with ZT_EUNREACHABLE.
 * libuv's writes can raise SIGPIPE: zt_server_open ignores it for the process, a process with a client
 * does so itself, the blocking form holds it back during its calls only.
 * Server (zcoord): accepts on a loopback address, challenges, enforces limits (32 unauthenticated
 * slots, 2 s handshake, 5 s for a partial frame, 4 MiB of output), hands requests to a handler. */
#ifndef ZT_PROTO_SESSION_H
#define ZT_PROTO_SESSION_H
#include <stdbool.h>
#include <uv.h>
#include "proto/auth.h"
#include "proto/frame.h"

/* ---------------------------------------------------------------- client */
struct zt_client;
struct zt_client_config {
    char host[256]; int port;
    struct zt_token token;
    Zt__Role role;
    const char *principal;     /* shown in logs and events */
    bool reconnect;            /* false: the first failure is final */
    void *arg;
    void (*on_connected)(void *arg, uint64_t epoch, bool epoch_changed);
    /* After every lost connection and every attempt that failed. will_retry false: given up
     * (authentication, version, or reconnect off); err says why. Any callback may be NULL. */
    void (*on_disconnected)(void *arg, bool will_retry, const struct zt_error *err);
    void (*on_push)(void *arg, const Zt__Envelope *env);   /* request_id 0 */
};
/* reply NULL: no answer, err says why. Else err is NULL when the reply's code is OK and filled from
 * the reply when not. */
typedef void (*zt_reply_fn)(void *arg, const Zt__Envelope *reply, const struct zt_error *err);
int zt_client_open(uv_loop_t *loop, const struct zt_client_config *c, struct zt_client **out,
                   struct zt_error *err);
/* Takes env's body (packed at once; request_id is set here). timeout_s 0 = none. A request made while
 * there is no connection waits for one; after giving up ZT_EUNREACHABLE is returned. */
int zt_client_request(struct zt_client *c, Zt__Envelope *env, bool retry, double timeout_s,
                      zt_reply_fn fn, void *arg, struct zt_error *err);
size_t zt_client_pending(const struct zt_client *c);
bool zt_client_is_connected(const struct zt_client *c);
/* The numeric address of this end of the connection; "" while there is none. */
void zt_client_local_address(const struct zt_client *c, char *out, size_t n);
/* Pending requests are answered with ZT_ECANCELLED inside this call; closed may be NULL. */
void zt_client_close(struct zt_client *c, void (*closed)(void *arg), void *arg);

/* Blocking form for zctl: its own loop, one request at a time. *reply belongs to the caller:
 * zt_envelope_free(reply, arena). Reply codes != OK come back as the matching zt_code and message.
 * A connection lost between two calls is opened again by the next one; one lost during a call is
 * ZT_EUNREACHABLE. timeout_s 0 = none. */
struct zt_call;
int zt_call_open(const char *host, int port, const struct zt_token *t, const char *principal,
                 double timeout_s, struct zt_call **out, struct zt_error *err);
uint64_t zt_call_epoch(const struct zt_call *c); /* of the coordinator */
int zt_call(struct zt_call *c, Zt__Envelope *env, double timeout_s, Zt__Envelope **reply, void **arena,
            struct zt_error *err);
void zt_call_close(struct zt_call *c);

/* ---------------------------------------------------------------- server */
struct zt_server; struct zt_peer;
struct zt_server_config {
    char host[256]; int port;  /* loopback only; port 0 = any */
    struct zt_token token;
    uint64_t epoch; const char *version;
    void *arg;
    void (*on_open)(void *arg, struct zt_peer *p);          /* after the hello */
    /* Every request after the hello with a known body; others are answered UNIMPLEMENTED here. The
     * handler answers now or later with zt_peer_reply; env lives only during the call. peer stays
     * valid until on_close, which comes for every on_open. */
    void (*on_request)(void *arg, struct zt_peer *p, const Zt__Envelope *env);
    void (*on_close)(void *arg, struct zt_peer *p);
};
int zt_server_open(uv_loop_t *loop, const struct zt_server_config *c, struct zt_server **out,
                   struct zt_error *err);
int zt_server_port(const struct zt_server *s);
struct zt_server_stats {
    uint64_t accepted, opened, closed;      /* connections; opened = hello accepted */
    uint64_t refused_auth, refused_version, malformed, timed_out, evicted, overflowed, unimplemented;
    uint64_t requests;                      /* handed to on_request */
    uint64_t accept_errors;                 /* no descriptors left */
    size_t peers, unauthenticated;          /* now */
};
void zt_server_stats(const struct zt_server *s, struct zt_server_stats *out);
/* Every peer is closed first (with on_close), then closed(arg); closed may be NULL. */
void zt_server_close(struct zt_server *s, void (*closed)(void *arg), void *arg);

Zt__Role zt_peer_role(const struct zt_peer *p);
const char *zt_peer_name(const struct zt_peer *p); /* principal and address, for logs */
void zt_peer_set_data(struct zt_peer *p, void *data);
void *zt_peer_data(const struct zt_peer *p);
/* env's body, code and message with the request_id of the request; over the output cap the peer is
 * dropped. A reply that cannot be packed is answered with INTERNAL in its place. After a drop these
 * return ZT_EUNREACHABLE and do nothing. */
int zt_peer_reply(struct zt_peer *p, uint64_t request_id, Zt__Envelope *env, struct zt_error *err);
int zt_peer_reply_error(struct zt_peer *p, uint64_t request_id, int zt_code, const char *message);
int zt_peer_push(struct zt_peer *p, Zt__Envelope *env, struct zt_error *err);
void zt_peer_drop(struct zt_peer *p);

/* Code <-> zt_code: Code = -zt_code for the shared part. zt_code_to_wire also takes -23..-25
 * (UNIMPLEMENTED, STALE_GENERATION, SUPERSEDED), which come back as EUNSUPPORTED and ECONFLICT. */
int zt_code_from_wire(Zt__Code c);
Zt__Code zt_code_to_wire(int zt_code);

#endif
