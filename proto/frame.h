/* SPDX-License-Identifier: Apache-2.0 */
/* proto/frame.h: u32 little-endian length + one packed Zt__Envelope. The decoder takes bytes as they
 * come, never holds more than one frame, and refuses a length over its cap before it reads the body.
 * Unpacking goes through an arena capped at 4 x the frame limit + 64 KiB (80 KiB before the hello),
 * so a hostile frame cannot make us allocate more. One thread per decoder. */
#ifndef ZT_PROTO_FRAME_H
#define ZT_PROTO_FRAME_H
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"
#include "proto/ztrain.pb-c.h"

#define ZT_FRAME_MAX ((size_t)1 << 20)
#define ZT_FRAME_MAX_UNAUTH ((size_t)4096)
/* Where a sender of lists ends a page: many small rows unpack to about ten times their bytes, and at
 * this size they are far inside the reader's arena. */
#define ZT_FRAME_PAGE ((size_t)256 * 1024)
#define ZT_PROTOCOL_MAJOR 1
#define ZT_PROTOCOL_MINOR 3
#define ZT_MESSAGE_FIELDS_MAX 128 /* of one message of the schema; the envelope has the most */
#define ZT_MESSAGE_DEPTH_MAX 8

struct zt_decoder { uint8_t *buf; size_t have, cap; size_t max_frame; };
void zt_decoder_init(struct zt_decoder *d, size_t max_frame);
void zt_decoder_free(struct zt_decoder *d);
/* Feeds n bytes; calls fn for every complete frame in order. fn's non-zero return or a malformed
 * frame stops and is returned (ZT_EPROTO with a message). *env is valid only during the call. fn may
 * raise d->max_frame for the frames after this one. */
int zt_decoder_feed(struct zt_decoder *d, const void *bytes, size_t n,
                    int (*fn)(void *arg, const Zt__Envelope *env, struct zt_error *err), void *arg,
                    struct zt_error *err);
/* Packs length + envelope into malloc'ed *out (caller frees); ZT_EPROTO when over ZT_FRAME_MAX or
 * when the receiver would refuse it. Bytes of text fields that are not UTF-8 become '?'. */
int zt_frame_pack(const Zt__Envelope *env, uint8_t **out, size_t *n, struct zt_error *err);
/* Unpacks one envelope's body under the arena cap; free with zt_envelope_free. Strings are checked to
 * be UTF-8 without NUL, enums to be known, and single fields to occur once. */
int zt_envelope_unpack(const uint8_t *body, size_t n, Zt__Envelope **out, void **arena,
                       struct zt_error *err);
/* The same for a body of at most max_frame bytes; the arena's cap follows from max_frame. */
int zt_envelope_unpack_capped(const uint8_t *body, size_t n, size_t max_frame, Zt__Envelope **out,
                              void **arena, struct zt_error *err);
void zt_envelope_free(Zt__Envelope *env, void *arena);
/* Bytes that an arena took from the system, for tests of the cap. */
size_t zt_arena_bytes(const void *arena);
/* A deep copy through the wire form; free with zt_envelope_free. */
int zt_envelope_copy(const Zt__Envelope *env, Zt__Envelope **out, void **arena, struct zt_error *err);
/* The body's field name ("beat"), "none" when there is none. Static strings. */
const char *zt_envelope_body_name(const Zt__Envelope *env);

#endif
