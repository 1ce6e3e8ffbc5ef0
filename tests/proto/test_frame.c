/* SPDX-License-Identifier: Apache-2.0 */
/* The frame decoder and the bounded unpacker: splits, limits, hostile bytes, and the schema rules that
 * bounded unpacking rests on. */
#include <criterion/criterion.h>
#include <string.h>
#include "proto/frame.h"
#include "tests/proto/harness.h"

struct seen { int n; uint64_t ids[64]; int stop_at; };

static int collect(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct seen *s = arg;
    cr_assert_lt(s->n, 64);
    s->ids[s->n++] = env->request_id;
    return s->n == s->stop_at ? zt_fail(err, ZT_ECANCELLED, "enough") : 0;
}

static size_t three_frames(uint8_t *out)
{
    size_t at = 0;
    for (uint64_t id = 1; id <= 3; id++) {
        Zt__Envelope env = ZT__ENVELOPE__INIT;
        Zt__CommId comm = ZT__COMM_ID__INIT;
        uint8_t bytes[40] = {0}, *p;
        size_t n;
        struct zt_error err;
        comm.id = (ProtobufCBinaryData){10 * id, bytes};
        env.request_id = id;
        env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
        env.comm_id = &comm;
        cr_assert_eq(zt_frame_pack(&env, &p, &n, &err), 0);
        memcpy(out + at, p, n);
        at += n;
        free(p);
    }
    return at;
}

Test(frame, split_at_every_byte)
{
    uint8_t bytes[256];
    size_t n = three_frames(bytes);
    for (size_t cut = 0; cut <= n; cut++) {
        struct zt_decoder d;
        struct seen s = {0};
        struct zt_error err;
        zt_decoder_init(&d, ZT_FRAME_MAX);
        cr_assert_eq(zt_decoder_feed(&d, bytes, cut, collect, &s, &err), 0);
        cr_assert_eq(zt_decoder_feed(&d, bytes + cut, n - cut, collect, &s, &err), 0);
        cr_assert_eq(s.n, 3);
        cr_assert_eq(s.ids[0] * 100 + s.ids[1] * 10 + s.ids[2], 123);
        cr_assert_eq(d.have, 0);
        zt_decoder_free(&d);
    }
}

Test(frame, one_byte_at_a_time_and_all_at_once)
{
    uint8_t bytes[256];
    size_t n = three_frames(bytes);
    struct zt_decoder d;
    struct seen s = {0};
    struct zt_error err;
    zt_decoder_init(&d, ZT_FRAME_MAX);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(zt_decoder_feed(&d, bytes + i, 1, collect, &s, &err), 0);
    }
    cr_assert_eq(zt_decoder_feed(&d, bytes, n, collect, &s, &err), 0);
    cr_assert_eq(s.n, 6);
    zt_decoder_free(&d);
}

Test(frame, callback_stops_the_feed)
{
    uint8_t bytes[256];
    size_t n = three_frames(bytes);
    struct zt_decoder d;
    struct seen s = {.stop_at = 2};
    struct zt_error err;
    zt_decoder_init(&d, ZT_FRAME_MAX);
    cr_assert_eq(zt_decoder_feed(&d, bytes, n, collect, &s, &err), ZT_ECANCELLED);
    cr_assert_eq(s.n, 2);
    zt_decoder_free(&d);
}

/* A frame whose body has exactly `size` bytes. */
static uint8_t *frame_of(size_t size, size_t *n)
{
    uint8_t *p = NULL, *data = calloc(1, size);
    struct zt_error err;
    for (size_t blob = size; blob > 0 && !p; blob--) {
        Zt__Envelope env = ZT__ENVELOPE__INIT;
        Zt__CommId comm = ZT__COMM_ID__INIT;
        comm.id = (ProtobufCBinaryData){blob, data};
        env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
        env.comm_id = &comm;
        if (zt__envelope__get_packed_size(&env) == size) {
            cr_assert_eq(zt_frame_pack(&env, &p, n, &err), 0, "%s", err.msg);
        }
    }
    free(data);
    cr_assert_not_null(p);
    return p;
}

Test(frame, limits_before_and_after_the_hello)
{
    const size_t limits[] = {ZT_FRAME_MAX_UNAUTH, ZT_FRAME_MAX};
    for (int i = 0; i < 2; i++) {
        for (int off = -1; off <= 1; off++) {
            size_t size = limits[i] + (size_t)(off + 1) - 1;
            struct zt_decoder d;
            struct seen s = {0};
            struct zt_error err;
            zt_decoder_init(&d, limits[i]);
            if (off < 1) {
                size_t n;
                uint8_t *p = frame_of(size, &n);
                cr_assert_eq(zt_decoder_feed(&d, p, n, collect, &s, &err), 0, "%s", err.msg);
                cr_assert_eq(s.n, 1);
                free(p);
            } else {
                /* refused on the length alone, no body read, nothing allocated for it */
                uint8_t head[4] = {(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16),
                                   (uint8_t)(size >> 24)};
                cr_assert_eq(zt_decoder_feed(&d, head, 4, collect, &s, &err), ZT_EPROTO);
                cr_assert_not_null(strstr(err.msg, i ? "1048577" : "4097"));
                cr_assert_leq(d.cap, 4096);
            }
            zt_decoder_free(&d);
        }
    }
}

Test(frame, empty_frame_and_huge_length_are_malformed)
{
    const uint8_t heads[2][4] = {{0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}};
    for (int i = 0; i < 2; i++) {
        struct zt_decoder d;
        struct seen s = {0};
        struct zt_error err;
        zt_decoder_init(&d, ZT_FRAME_MAX);
        cr_assert_eq(zt_decoder_feed(&d, heads[i], 4, collect, &s, &err), ZT_EPROTO);
        zt_decoder_free(&d);
    }
}

Test(frame, pack_refuses_what_is_over_the_limit)
{
    static uint8_t data[2 * 1024 * 1024];
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__CommId comm = ZT__COMM_ID__INIT;
    struct zt_error err;
    uint8_t *p;
    size_t n;
    comm.id = (ProtobufCBinaryData){sizeof(data), data};
    env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
    env.comm_id = &comm;
    cr_assert_eq(zt_frame_pack(&env, &p, &n, &err), ZT_EPROTO);
    cr_assert_null(p);
    cr_assert_not_null(strstr(err.msg, "comm_id"));
}

/* ------------------------------------------------------------------------------ hostile bodies */

static int unpack(const uint8_t *p, size_t n, struct zt_error *err)
{
    Zt__Envelope *env;
    void *arena;
    int rc = zt_envelope_unpack(p, n, &env, &arena, err);
    if (rc == 0) {
        zt_envelope_free(env, arena);
    } else {
        cr_assert_null(env);
        cr_assert_null(arena);
    }
    return rc;
}

/* tag and length of a body field around `inner` */
static size_t wrap(uint32_t field, const uint8_t *inner, size_t n, uint8_t *out)
{
    size_t at = put_varint(out, 1 << 3);
    at += put_varint(out + at, 1);
    at += put_varint(out + at, (uint64_t)field << 3 | 2);
    at += put_varint(out + at, n);
    if (n > 0) {
        memcpy(out + at, inner, n);
    }
    return at + n;
}

Test(hostile, arena_cap_holds)
{
    /* a megabyte of empty events: 2 bytes each on the wire, over 150 in memory */
    static uint8_t inner[ZT_FRAME_MAX - 64], body[ZT_FRAME_MAX];
    struct zt_error err;
    Zt__Envelope *env;
    void *arena;
    const Zt__Event minimal = ZT__EVENT__INIT;
    uint8_t one[64];
    size_t len = put_minimal(minimal.base.descriptor, one), at = 0;
    while (at + len + 2 <= sizeof(inner)) {
        inner[at++] = 1 << 3 | 2;
        inner[at++] = (uint8_t)len;
        memcpy(inner + at, one, len);
        at += len;
    }
    size_t n = wrap(ZT__ENVELOPE__BODY_EVENTS, inner, at, body);
    cr_assert_leq(n, ZT_FRAME_MAX);
    cr_assert_eq(zt_envelope_unpack(body, n, &env, &arena, &err), ZT_EPROTO);
    cr_assert_not_null(strstr(err.msg, "memory"), "%s", err.msg);
    /* a page of them is fine and stays under the cap */
    size_t page = ZT_FRAME_PAGE / (len + 2) * (len + 2);
    n = wrap(ZT__ENVELOPE__BODY_EVENTS, inner, page, body);
    cr_assert_eq(zt_envelope_unpack(body, n, &env, &arena, &err), 0, "%s", err.msg);
    cr_assert_eq(env->events->n_events, page / (len + 2));
    cr_assert_leq(zt_arena_bytes(arena), 4 * ZT_FRAME_MAX + 65536);
    zt_envelope_free(env, arena);
}

Test(hostile, arena_cap_before_the_hello)
{
    uint8_t body[ZT_FRAME_MAX_UNAUTH];
    struct zt_error err;
    Zt__Envelope *env;
    void *arena;
    /* 4 KiB of unknown two-byte fields, kept by protobuf-c at 24 bytes each */
    size_t n = put_varint(body, 1 << 3);
    n += put_varint(body + n, 1);
    while (n + 2 <= sizeof(body)) {
        body[n++] = 9 << 3;
        body[n++] = 1;
    }
    int rc = zt_envelope_unpack_capped(body, n, ZT_FRAME_MAX_UNAUTH, &env, &arena, &err);
    cr_assert(rc == 0 || rc == ZT_EPROTO);
    if (rc == 0) {
        cr_assert_leq(zt_arena_bytes(arena), 4 * ZT_FRAME_MAX_UNAUTH + 65536);
        zt_envelope_free(env, arena);
    }
}

/* A batch as big as the worker ever sends: sparse reports cost most memory per byte. */
Test(hostile, sparse_reports_fit_the_arena)
{
    static uint8_t inner[ZT_FRAME_PAGE], body[ZT_FRAME_MAX];
    uint8_t step[64];
    struct zt_error err;
    size_t len = put_minimal(&zt__step_report__descriptor, step), at = 0;
    at += put_field(protobuf_c_message_descriptor_get_field(&zt__report_steps__descriptor, 1), inner);
    at += put_field(protobuf_c_message_descriptor_get_field(&zt__report_steps__descriptor, 2), inner + at);
    at += put_field(protobuf_c_message_descriptor_get_field(&zt__report_steps__descriptor, 3), inner + at);
    for (int i = 0; i < 1000; i++) {
        inner[at++] = 4 << 3 | 2;
        inner[at++] = (uint8_t)len;
        memcpy(inner + at, step, len);
        at += len;
    }
    size_t n = wrap(ZT__ENVELOPE__BODY_REPORT_STEPS, inner, at, body);
    cr_assert_eq(unpack(body, n, &err), 0, "%s", err.msg);
}

Test(hostile, repeated_single_fields_are_refused)
{
    /* protobuf-c would merge them, quadratically */
    uint8_t inner[512], body[600];
    struct zt_error err;
    const ProtobufCFieldDescriptor *key =
        protobuf_c_message_descriptor_get_field(&zt__submit__descriptor, 1);
    size_t n = put_minimal(&zt__submit__descriptor, inner);
    n += put_field(key, inner + n);
    cr_assert_eq(unpack(body, wrap(ZT__ENVELOPE__BODY_SUBMIT, inner, n, body), &err), ZT_EPROTO);
    cr_assert_not_null(strstr(err.msg, "Submit.request_key occurs twice"), "%s", err.msg);
}

Test(hostile, two_bodies_are_refused)
{
    uint8_t body[600];
    struct zt_error err;
    size_t n = wrap(ZT__ENVELOPE__BODY_GET_STATUS, NULL, 0, body);
    n += put_varint(body + n, ZT__ENVELOPE__BODY_LIST_WORKERS << 3 | 2);
    n += put_varint(body + n, 0);
    cr_assert_eq(unpack(body, n, &err), ZT_EPROTO);
    cr_assert_not_null(strstr(err.msg, "both get_status and list_workers"), "%s", err.msg);
}

Test(hostile, text_must_be_utf8_without_nul)
{
    static const struct { const char *s; size_t n; bool good; } t[] = {
        {"plain", 5, true},
        {"\xc3\xa9", 2, true},                  /* U+00E9 */
        {"\xe2\x82\xac", 3, true},              /* U+20AC */
        {"\xf0\x9f\x99\x82", 4, true},          /* U+1F642 */
        {"\xf4\x8f\xbf\xbf", 4, true},          /* U+10FFFF */
        {"", 0, true},
        {"a\0b", 3, false},
        {"\xff", 1, false},
        {"\x80", 1, false},
        {"\xc0\x80", 2, false},                 /* overlong NUL */
        {"\xc1\xbf", 2, false},
        {"\xe0\x80\xaf", 3, false},             /* overlong / */
        {"\xed\xa0\x80", 3, false},             /* surrogate */
        {"\xf4\x90\x80\x80", 4, false},         /* U+110000 */
        {"\xf5\x80\x80\x80", 4, false},
        {"\xe2\x82", 2, false},                 /* cut */
        {"\xf0\x80\x80\x80", 4, false},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        uint8_t inner[64], body[128];
        struct zt_error err;
        size_t n = put_varint(inner, 1 << 3 | 2);
        n += put_varint(inner + n, t[i].n);
        memcpy(inner + n, t[i].s, t[i].n);
        n += t[i].n;
        int rc = unpack(body, wrap(ZT__ENVELOPE__BODY_GET_RUN, inner, n, body), &err);
        cr_assert_eq(rc, t[i].good ? 0 : ZT_EPROTO, "text %zu", i);
    }
}

Test(frame, sender_repairs_text)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT, *got;
    Zt__GetRun get = ZT__GET_RUN__INIT;
    struct zt_error err;
    uint8_t *p;
    size_t n;
    void *arena;
    char text[] = "caf\xe9 \xc3\xa9 cut \xe2\x82";
    get.run = text;
    env.body_case = ZT__ENVELOPE__BODY_GET_RUN;
    env.get_run = &get;
    cr_assert_eq(zt_frame_pack(&env, &p, &n, &err), 0);
    cr_assert_eq(zt_envelope_unpack(p + 4, n - 4, &got, &arena, &err), 0, "%s", err.msg);
    cr_assert_str_eq(got->get_run->run, "caf? \xc3\xa9 cut ??");
    zt_envelope_free(got, arena);
    free(p);
}

Test(hostile, unknown_enum_values_are_refused_unknown_fields_are_not)
{
    uint8_t inner[64], body[128];
    struct zt_error err;
    size_t n = put_varint(inner, 1 << 3); /* Desired.action */
    n += put_varint(inner + n, 77);
    uint8_t reply[64];
    size_t m = put_varint(reply, 1 << 3);
    m += put_varint(reply + m, 1);
    m += put_varint(reply + m, 2 << 3 | 2);
    m += put_varint(reply + m, n);
    memcpy(reply + m, inner, n);
    m += n;
    cr_assert_eq(unpack(body, wrap(ZT__ENVELOPE__BODY_BEAT_REPLY, reply, m, body), &err), ZT_EPROTO);
    cr_assert_not_null(strstr(err.msg, "Desired.action"), "%s", err.msg);
    /* field 1000 of an Envelope: somebody newer */
    n = put_varint(body, 1 << 3);
    n += put_varint(body + n, 1);
    n += put_varint(body + n, 1000 << 3 | 2);
    n += put_varint(body + n, 3);
    memcpy(body + n, "abc", 3);
    cr_assert_eq(unpack(body, n + 3, &err), 0, "%s", err.msg);
}

Test(hostile, missing_required_fields_are_named)
{
    uint8_t body[64];
    struct zt_error err;
    cr_assert_eq(unpack(body, wrap(ZT__ENVELOPE__BODY_GET_RUN, NULL, 0, body), &err), ZT_EPROTO);
    cr_assert_not_null(strstr(err.msg, "GetRun lacks its field run"), "%s", err.msg);
}

/* Every truncation and every single-bit flip of every message type: refused or understood, never a
 * crash (the sanitizers are the judge). */
Test(hostile, truncations_and_bit_flips)
{
    const ProtobufCMessageDescriptor *m = &zt__envelope__descriptor;
    int refused = 0, taken = 0;
    for (unsigned i = 0; i < m->n_fields; i++) {
        uint8_t frame[1024];
        struct zt_error err;
        if (!is_body(&m->fields[i])) {
            continue;
        }
        size_t n = minimal_frame(&m->fields[i], frame) - 4;
        uint8_t *body = frame + 4;
        cr_assert_eq(unpack(body, n, &err), 0, "%s: %s", m->fields[i].name, err.msg);
        for (size_t cut = 1; cut < n; cut++) {
            uint8_t *copy = malloc(cut); /* exact size: the sanitizer sees one byte too far */
            memcpy(copy, body, cut);
            *(unpack(copy, cut, &err) ? &refused : &taken) += 1;
            free(copy);
        }
        for (size_t bit = 0; bit < 8 * n; bit++) {
            body[bit / 8] = (uint8_t)(body[bit / 8] ^ (1u << bit % 8));
            *(unpack(body, n, &err) ? &refused : &taken) += 1;
            body[bit / 8] = (uint8_t)(body[bit / 8] ^ (1u << bit % 8));
        }
    }
    cr_assert_gt(refused, 1000);
    cr_assert_gt(taken, 100);
}

/* ------------------------------------------------------------------------------------- schema */

static int depth_of(const ProtobufCMessageDescriptor *m, const ProtobufCMessageDescriptor **path, int depth)
{
    int deepest = depth;
    for (int i = 0; i < depth; i++) {
        cr_assert_neq(path[i], m, "message %s contains itself", m->name);
    }
    cr_assert_lt(depth, 32);
    cr_assert_leq(m->n_fields, (unsigned)ZT_MESSAGE_FIELDS_MAX, "%s has too many fields for the duplicate check", m->name);
    path[depth] = m;
    for (unsigned i = 0; i < m->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->fields[i];
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            int d = depth_of(f->descriptor, path, depth + 1);
            deepest = d > deepest ? d : deepest;
        }
        cr_assert_not(f->type == PROTOBUF_C_TYPE_ENUM && f->label == PROTOBUF_C_LABEL_REPEATED,
                      "%s.%s: packed enums are not checked", m->name, f->name);
    }
    return deepest;
}

Test(schema, no_message_contains_itself)
{
    const ProtobufCMessageDescriptor *path[33];
    cr_assert_leq(depth_of(&zt__envelope__descriptor, path, 0), ZT_MESSAGE_DEPTH_MAX);
}

Test(schema, every_message_type_is_reachable_by_the_check)
{
    /* the generated number of descriptors is not known here; a type that no frame can carry could not
     * reach the unpacker, so reachability is what counts: each body of the oneof is a message */
    const ProtobufCMessageDescriptor *m = &zt__envelope__descriptor;
    int bodies = 0;
    for (unsigned i = 0; i < m->n_fields; i++) {
        if (is_body(&m->fields[i])) {
            cr_assert_eq(m->fields[i].type, PROTOBUF_C_TYPE_MESSAGE);
            bodies++;
        }
    }
    cr_assert_geq(bodies, 45);
}
