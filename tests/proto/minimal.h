/* SPDX-License-Identifier: Apache-2.0 */
/* tests/proto/minimal.h: the smallest valid message of any type, written from its descriptor straight to
 * the wire, without the code under test. Header only. */
#ifndef ZT_TESTS_PROTO_MINIMAL_H
#define ZT_TESTS_PROTO_MINIMAL_H
#include <stdbool.h>
#include <string.h>
#include "proto/ztrain.pb-c.h"

static inline size_t put_varint(uint8_t *p, uint64_t v)
{
    size_t n = 0;
    do {
        p[n] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
        n++;
    } while (v);
    return n;
}

static inline size_t put_minimal(const ProtobufCMessageDescriptor *m, uint8_t *p);

static inline size_t put_field(const ProtobufCFieldDescriptor *f, uint8_t *p)
{
    uint8_t body[512];
    size_t n, at;
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        memset(body, 'x', 32);
        n = f->type == PROTOBUF_C_TYPE_MESSAGE ? put_minimal(f->descriptor, body) : 32;
        at = put_varint(p, (uint64_t)f->id << 3 | 2);
        at += put_varint(p + at, n);
        memcpy(p + at, body, n);
        return at + n;
    case PROTOBUF_C_TYPE_DOUBLE:
        at = put_varint(p, (uint64_t)f->id << 3 | 1);
        memset(p + at, 0, 8);
        return at + 8;
    case PROTOBUF_C_TYPE_ENUM:
        at = put_varint(p, (uint64_t)f->id << 3);
        return at + put_varint(p + at, (uint64_t)((const ProtobufCEnumDescriptor *)f->descriptor)->values[0].value);
    default:
        at = put_varint(p, (uint64_t)f->id << 3);
        return at + put_varint(p + at, 1);
    }
}

static inline size_t put_minimal(const ProtobufCMessageDescriptor *m, uint8_t *p)
{
    size_t n = 0;
    for (unsigned i = 0; i < m->n_fields; i++) {
        if (m->fields[i].label == PROTOBUF_C_LABEL_REQUIRED) {
            n += put_field(&m->fields[i], p + n);
        }
    }
    return n;
}

/* A whole frame with request id 9 and the given body field; returns its bytes. */
static inline size_t minimal_frame(const ProtobufCFieldDescriptor *body, uint8_t *p)
{
    size_t n = 4;
    n += put_varint(p + n, 1 << 3);
    n += put_varint(p + n, 9);
    n += put_field(body, p + n);
    size_t len = n - 4;
    for (unsigned i = 0; i < 4; i++) {
        p[i] = (uint8_t)(len >> (8 * i));
    }
    return n;
}

static inline bool is_body(const ProtobufCFieldDescriptor *f)
{
    return (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

#endif
