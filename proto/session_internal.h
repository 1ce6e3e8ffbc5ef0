/* SPDX-License-Identifier: Apache-2.0 */
/* proto/session_internal.h: what client.c, server.c and peer.c share, and the seam of the fuzz target. Not for
 * other rooms. */
#ifndef ZT_PROTO_SESSION_INTERNAL_H
#define ZT_PROTO_SESSION_INTERNAL_H
#include "proto/session.h"

/* A packed frame shared by the sender's queue and the writes in flight. */
struct zt_frame { unsigned refs; size_t n; uint8_t *bytes; };
int zt_frame_new(const Zt__Envelope *env, struct zt_frame **out, struct zt_error *err);
struct zt_frame *zt_frame_hold(struct zt_frame *f);
void zt_frame_drop(struct zt_frame *f);

/* Writes f on stream; takes one reference in every case. done may be NULL. 0 or a libuv error. */
int zt_stream_write(uv_stream_t *stream, struct zt_frame *f, void (*done)(void *arg, int status),
                    void *arg);
/* No delay, and a dead link is an error after ten seconds of silence to sent bytes. */
void zt_tcp_options(uv_tcp_t *tcp);
/* Fills err from a reply or push that carries a code != OK; returns the code. */
int zt_fail_from_envelope(const Zt__Envelope *env, struct zt_error *err);
/* Random bytes from the kernel; a process without them must not go on. */
void zt_random_bytes(void *out, size_t n);

/* Fuzzing and tests: a server without a socket whose peers' output goes to sink. */
int zt_server_open_detached(uv_loop_t *loop, const struct zt_server_config *c,
                            void (*sink)(void *arg, const uint8_t *bytes, size_t n), void *sink_arg,
                            struct zt_server **out, struct zt_error *err);
/* A peer of a detached server; role 0 = it still has to say hello. */
struct zt_peer *zt_server_adopt(struct zt_server *s, int role);
/* Bytes as if read from the network. The peer may be closing afterwards. */
void zt_peer_input(struct zt_peer *p, const uint8_t *bytes, size_t n);
bool zt_peer_is_closing(const struct zt_peer *p);

#endif
