/* SPDX-License-Identifier: Apache-2.0 */
/* proto/frame.c: frames and the bounded unpacker.
 *
 * A frame passes three gates: its length against the cap before the body is read; one walk over the
 * wire form along the descriptors, which finds what protobuf-c would accept silently (repeated single
 * fields, which it merges in quadratic time; strings that are no UTF-8 or hold NUL; enum values nobody
 * knows); and the unpacking itself, out of an arena with a cap. The decoder owns its buffer; an
 * envelope lives in its arena. No globals; one thread per object. */
#include "proto/frame.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- arena */

#define ARENA_ALIGN ((size_t)16)
#define ARENA_CLASSES 64 /* exact free lists for blocks up to 64 x 16 bytes, one list above */
#define ARENA_CHUNK_MIN ((size_t)2048)
#define ARENA_CHUNK_MAX ((size_t)65536)

struct chunk { struct chunk *next; size_t bytes; };
struct block { size_t bytes; struct block *next; }; /* bytes with this header; next while free */

struct arena {
    ProtobufCAllocator allocator;
    size_t cap, used; /* bytes asked from malloc, this struct included */
    size_t next_chunk;
    struct chunk *chunks;
    uint8_t *at, *end;
    struct block *free_small[ARENA_CLASSES + 1];
    struct block *free_big;
};

static bool arena_grow(struct arena *a, size_t block)
{
    size_t head = (sizeof(struct chunk) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    size_t want = a->next_chunk;
    size_t left = a->cap - a->used;
    if (want < head + block) {
        want = head + block;
    }
    if (want > left) {
        want = head + block;
    }
    if (want > left) {
        return false;
    }
    struct chunk *c = malloc(want);
    if (!c) {
        return false;
    }
    c->next = a->chunks;
    c->bytes = want;
    a->chunks = c;
    a->used += want;
    a->at = (uint8_t *)c + head;
    a->end = (uint8_t *)c + want;
    if (a->next_chunk < ARENA_CHUNK_MAX) {
        a->next_chunk *= 2;
    }
    return true;
}

static struct block *take_big(struct arena *a, size_t bytes)
{
    for (struct block **at = &a->free_big; *at; at = &(*at)->next) {
        if ((*at)->bytes >= bytes && (*at)->bytes / 2 <= bytes) {
            struct block *b = *at;
            *at = b->next;
            return b;
        }
    }
    return NULL;
}

static void *arena_alloc(void *data, size_t n)
{
    struct arena *a = data;
    if (n > a->cap) {
        return NULL;
    }
    size_t bytes = (n + sizeof(struct block) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    size_t class = bytes / ARENA_ALIGN;
    struct block *b = NULL;
    if (class <= ARENA_CLASSES) {
        b = a->free_small[class];
        if (b) {
            a->free_small[class] = b->next;
        }
    } else {
        b = take_big(a, bytes);
    }
    if (!b) {
        if ((size_t)(a->end - a->at) < bytes && !arena_grow(a, bytes)) {
            return NULL;
        }
        b = (struct block *)(void *)a->at;
        a->at += bytes;
        b->bytes = bytes;
    }
    return b + 1;
}

/* protobuf-c frees its scratch tables while it unpacks: given back to the lists, so that a batch of
 * messages does not pay for the scratch of each. */
static void arena_free(void *data, void *p)
{
    struct arena *a = data;
    if (!p) {
        return;
    }
    struct block *b = (struct block *)p - 1;
    size_t class = b->bytes / ARENA_ALIGN;
    struct block **list = class <= ARENA_CLASSES ? &a->free_small[class] : &a->free_big;
    b->next = *list;
    *list = b;
}

static struct arena *arena_new(size_t cap)
{
    struct arena *a = calloc(1, sizeof(*a));
    if (!a) {
        return NULL;
    }
    a->allocator.alloc = arena_alloc;
    a->allocator.free = arena_free;
    a->allocator.allocator_data = a;
    a->cap = cap;
    a->used = sizeof(*a);
    a->next_chunk = ARENA_CHUNK_MIN;
    return a;
}

static void arena_destroy(struct arena *a)
{
    if (!a) {
        return;
    }
    for (struct chunk *c = a->chunks; c;) {
        struct chunk *next = c->next;
        free(c);
        c = next;
    }
    free(a);
}

size_t zt_arena_bytes(const void *arena)
{
    const struct arena *a = arena;
    return a ? a->used : 0;
}

/* -------------------------------------------------------------------------- walk over the wire */

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    const uint8_t *p = *at;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (p == end) {
            return false;
        }
        uint8_t b = *p++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *at = p;
            *out = v;
            return true;
        }
    }
    return false;
}

/* Bytes of the well-formed UTF-8 character without NUL at s, 0 when there is none (overlong forms,
 * surrogates and codes over U+10FFFF are none). */
static size_t text_char(const uint8_t *s, size_t n)
{
    uint8_t c = s[0];
    size_t more;
    uint32_t code;
    if (c < 0x80) {
        return c != 0;
    }
    if (c >= 0xc2 && c <= 0xdf) {
        more = 1;
        code = c & 0x1fu;
    } else if ((c & 0xf0) == 0xe0) {
        more = 2;
        code = c & 0x0fu;
    } else if (c >= 0xf0 && c <= 0xf4) {
        more = 3;
        code = c & 0x07u;
    } else {
        return 0;
    }
    if (n <= more) {
        return 0;
    }
    for (size_t k = 1; k <= more; k++) {
        if ((s[k] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (s[k] & 0x3fu);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000) || code > 0x10ffff ||
        (code >= 0xd800 && code <= 0xdfff)) {
        return 0;
    }
    return more + 1;
}

static bool text_ok(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t one = text_char(s + i, n - i);
        if (one == 0) {
            return false;
        }
        i += one;
    }
    return true;
}

struct wire_field { uint32_t id; unsigned type; uint64_t value; const uint8_t *data; size_t n; };

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool get_field(const uint8_t **at, const uint8_t *end, struct wire_field *f)
{
    uint64_t tag;
    if (!get_varint(at, end, &tag) || tag > UINT32_MAX || tag >> 3 == 0) {
        return false;
    }
    f->id = (uint32_t)(tag >> 3);
    f->type = (unsigned)(tag & 7);
    f->value = 0;
    f->data = *at;
    f->n = 0;
    size_t left = (size_t)(end - *at);
    switch (f->type) {
    case WIRE_VARINT:
        return get_varint(at, end, &f->value);
    case WIRE_64:
        f->n = 8;
        break;
    case WIRE_32:
        f->n = 4;
        break;
    case WIRE_BYTES:
        if (!get_varint(at, end, &f->value)) {
            return false;
        }
        left = (size_t)(end - *at);
        if (f->value > left) {
            return false;
        }
        f->data = *at;
        f->n = (size_t)f->value;
        break;
    default:
        return false; /* groups: not in this schema */
    }
    if (f->n > left) {
        return false;
    }
    *at += f->n;
    return true;
}

static int check_enum(const ProtobufCFieldDescriptor *f, const ProtobufCMessageDescriptor *m,
                      const struct wire_field *w, struct zt_error *err)
{
    int64_t v = (int64_t)w->value;
    if (w->type != WIRE_VARINT || v < INT32_MIN || v > INT32_MAX ||
        !protobuf_c_enum_descriptor_get_value(f->descriptor, (int)v)) {
        return zt_fail(err, ZT_EPROTO,
                       "malformed message: %s.%s has the unknown value %lld (a newer peer?)",
                       m->short_name, f->name, (long long)v);
    }
    return 0;
}

static int scan_message(const ProtobufCMessageDescriptor *m, const uint8_t *p, size_t n, int depth,
                        struct zt_error *err);

static int scan_value(const ProtobufCFieldDescriptor *f, const ProtobufCMessageDescriptor *m,
                      const struct wire_field *w, int depth, struct zt_error *err)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        if (w->type != WIRE_BYTES || !text_ok(w->data, w->n)) {
            return zt_fail(err, ZT_EPROTO, "malformed message: %s.%s is not UTF-8 text without NUL",
                           m->short_name, f->name);
        }
        return 0;
    case PROTOBUF_C_TYPE_ENUM:
        return check_enum(f, m, w, err);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (w->type != WIRE_BYTES) {
            return zt_fail(err, ZT_EPROTO, "malformed message: %s.%s has the wrong wire type",
                           m->short_name, f->name);
        }
        return scan_message(f->descriptor, w->data, w->n, depth + 1, err);
    default:
        return 0;
    }
}

static int scan_message(const ProtobufCMessageDescriptor *m, const uint8_t *p, size_t n, int depth,
                        struct zt_error *err)
{
    const uint8_t *end = p + n;
    bool seen[ZT_MESSAGE_FIELDS_MAX] = {false};
    const ProtobufCFieldDescriptor *one = NULL; /* the schema has at most one oneof per message */
    ZT_ASSERT(m->n_fields <= ZT_MESSAGE_FIELDS_MAX);
    if (depth > ZT_MESSAGE_DEPTH_MAX) {
        return zt_fail(err, ZT_EPROTO, "malformed message: %s nested too deep", m->short_name);
    }
    while (p < end) {
        struct wire_field w;
        if (!get_field(&p, end, &w)) {
            return zt_fail(err, ZT_EPROTO, "malformed message: %s is cut off or not protobuf",
                           m->short_name);
        }
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(m, w.id);
        if (!f) {
            continue; /* a newer peer's field */
        }
        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            bool *before = &seen[f - m->fields];
            if (*before) {
                return zt_fail(err, ZT_EPROTO, "malformed message: %s.%s occurs twice", m->short_name,
                               f->name);
            }
            *before = true;
        }
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            if (one) {
                return zt_fail(err, ZT_EPROTO, "malformed message: %s has both %s and %s",
                               m->short_name, one->name, f->name);
            }
            one = f;
        }
        int rc = scan_value(f, m, &w, depth, err);
        if (rc) {
            return rc;
        }
    }
    for (unsigned i = 0; i < m->n_fields; i++) {
        if (m->fields[i].label == PROTOBUF_C_LABEL_REQUIRED && !seen[i]) {
            return zt_fail(err, ZT_EPROTO, "malformed message: %s lacks its field %s", m->short_name,
                           m->fields[i].name);
        }
    }
    return 0;
}

/* Puts '?' for every byte of a text field that is not UTF-8 (a path, a cut message): the receiver
 * would refuse the frame. `p` is our own packed message, so it parses. */
static void repair_text(const ProtobufCMessageDescriptor *m, uint8_t *p, size_t n)
{
    const uint8_t *at = p;
    struct wire_field w;
    while (at < p + n && get_field(&at, p + n, &w)) {
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(m, w.id);
        if (!f || w.type != WIRE_BYTES) {
            continue;
        }
        uint8_t *data = p + (w.data - p);
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            repair_text(f->descriptor, data, w.n);
        } else if (f->type == PROTOBUF_C_TYPE_STRING) {
            for (size_t i = 0; i < w.n;) {
                size_t one = text_char(data + i, w.n - i);
                if (one == 0) {
                    data[i] = '?';
                    one = 1;
                }
                i += one;
            }
        }
    }
}

/* --------------------------------------------------------------------------------- envelopes */

int zt_envelope_unpack_capped(const uint8_t *body, size_t n, size_t max_frame, Zt__Envelope **out,
                              void **arena, struct zt_error *err)
{
    *out = NULL;
    *arena = NULL;
    if (n > max_frame) {
        return zt_fail(err, ZT_EPROTO, "a frame of %zu bytes is over the limit of %zu", n, max_frame);
    }
    int rc = scan_message(&zt__envelope__descriptor, body, n, 0, err);
    if (rc) {
        return rc;
    }
    struct arena *a = arena_new(4 * max_frame + 65536);
    if (!a) {
        return zt_fail(err, ZT_ENOMEM, "no memory to unpack a frame of %zu bytes", n);
    }
    Zt__Envelope *env = zt__envelope__unpack(&a->allocator, n, body);
    if (!env) {
        size_t cap = a->cap;
        arena_destroy(a);
        return zt_fail(err, ZT_EPROTO,
                       "a frame of %zu bytes does not unpack within %zu bytes of memory", n, cap);
    }
    *out = env;
    *arena = a;
    return 0;
}

int zt_envelope_unpack(const uint8_t *body, size_t n, Zt__Envelope **out, void **arena,
                       struct zt_error *err)
{
    return zt_envelope_unpack_capped(body, n, ZT_FRAME_MAX, out, arena, err);
}

void zt_envelope_free(Zt__Envelope *env, void *arena)
{
    (void)env; /* lives in the arena */
    arena_destroy(arena);
}

int zt_envelope_copy(const Zt__Envelope *env, Zt__Envelope **out, void **arena, struct zt_error *err)
{
    uint8_t *frame;
    size_t n;
    int rc = zt_frame_pack(env, &frame, &n, err);
    if (rc) {
        return rc;
    }
    rc = zt_envelope_unpack(frame + 4, n - 4, out, arena, err);
    free(frame);
    return rc;
}

const char *zt_envelope_body_name(const Zt__Envelope *env)
{
    const ProtobufCFieldDescriptor *f =
        env->body_case == ZT__ENVELOPE__BODY__NOT_SET
            ? NULL
            : protobuf_c_message_descriptor_get_field(&zt__envelope__descriptor,
                                                      (unsigned)env->body_case);
    return f ? f->name : "none";
}

int zt_frame_pack(const Zt__Envelope *env, uint8_t **out, size_t *n, struct zt_error *err)
{
    *out = NULL;
    *n = 0;
    size_t body = zt__envelope__get_packed_size(env);
    if (body > ZT_FRAME_MAX) {
        return zt_fail(err, ZT_EPROTO, "a %s of %zu bytes is over the frame limit of %zu",
                       zt_envelope_body_name(env), body, ZT_FRAME_MAX);
    }
    uint8_t *p = malloc(body + 4);
    if (!p) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a frame of %zu bytes", body);
    }
    for (unsigned i = 0; i < 4; i++) {
        p[i] = (uint8_t)(body >> (8 * i));
    }
    zt__envelope__pack(env, p + 4);
    repair_text(&zt__envelope__descriptor, p + 4, body);
    int rc = scan_message(&zt__envelope__descriptor, p + 4, body, 0, err);
    if (rc) {
        free(p);
        return zt_fail_prefix(err, "cannot send a %s", zt_envelope_body_name(env));
    }
    *out = p;
    *n = body + 4;
    return 0;
}

/* ----------------------------------------------------------------------------------- decoder */

#define DECODER_KEEP ((size_t)16384) /* buffer kept between frames */

void zt_decoder_init(struct zt_decoder *d, size_t max_frame)
{
    *d = (struct zt_decoder){.max_frame = max_frame};
}

void zt_decoder_free(struct zt_decoder *d)
{
    free(d->buf);
    *d = (struct zt_decoder){.max_frame = d->max_frame};
}

/* Grows with what has arrived, not with what the length promises. */
static int decoder_reserve(struct zt_decoder *d, size_t want, struct zt_error *err)
{
    if (want <= d->cap) {
        return 0;
    }
    size_t cap = d->cap ? d->cap : 512;
    while (cap < want) {
        cap *= 2;
    }
    uint8_t *p = realloc(d->buf, cap);
    if (!p) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a frame of %zu bytes", want);
    }
    d->buf = p;
    d->cap = cap;
    return 0;
}

static size_t frame_length(const uint8_t *p)
{
    return (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

static int decoder_deliver(struct zt_decoder *d,
                           int (*fn)(void *arg, const Zt__Envelope *env, struct zt_error *err),
                           void *arg, struct zt_error *err)
{
    Zt__Envelope *env;
    void *arena;
    int rc = zt_envelope_unpack_capped(d->buf + 4, d->have - 4, d->max_frame, &env, &arena, err);
    d->have = 0;
    if (d->cap > DECODER_KEEP) {
        free(d->buf);
        d->buf = NULL;
        d->cap = 0;
    }
    if (rc) {
        return rc;
    }
    rc = fn(arg, env, err);
    zt_envelope_free(env, arena);
    return rc;
}

int zt_decoder_feed(struct zt_decoder *d, const void *bytes, size_t n,
                    int (*fn)(void *arg, const Zt__Envelope *env, struct zt_error *err), void *arg,
                    struct zt_error *err)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        size_t need = 4;
        if (d->have >= 4) {
            need += frame_length(d->buf);
        }
        size_t take = need - d->have < n ? need - d->have : n;
        int rc = decoder_reserve(d, d->have + take, err);
        if (rc) {
            return rc;
        }
        memcpy(d->buf + d->have, p, take);
        d->have += take;
        p += take;
        n -= take;
        if (d->have == 4) {
            size_t length = frame_length(d->buf);
            if (length == 0 || length > d->max_frame) {
                d->have = 0;
                return zt_fail(err, ZT_EPROTO,
                               length ? "a frame of %zu bytes is over the limit of %zu"
                                      : "a frame of %zu bytes is empty (limit %zu)",
                               length, d->max_frame);
            }
        } else if (d->have == need && d->have > 4) {
            rc = decoder_deliver(d, fn, arg, err);
            if (rc) {
                return rc;
            }
        }
    }
    return 0;
}
