/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: bytes from the network into the server's decoder and dispatcher, before and after
 * the hello, in pieces; and the same bytes as a server's answer into the unpacker, packed again.
 *
 * Input: byte 0 chooses the peer (0 unauthenticated, 1 client, 2 worker) and where the stream that
 * follows is cut in two. The judge: sanitizers, assertions, the arena's cap, and that nothing reaches
 * the handler before the hello. */
#include <stdlib.h>
#include <string.h>
#include "proto/session_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uv_loop_t loop;
static struct zt_server *server;
static int handled, opened;
static size_t sent;

static void on_output(void *arg, const uint8_t *bytes, size_t n)
{
    (void)arg;
    (void)bytes;
    sent += n;
}

static void on_open(void *arg, struct zt_peer *p)
{
    (void)arg;
    (void)p;
    opened++;
}

/* Reads every byte of a message, so that a sanitizer sees a dangling one, and answers. */
static uint64_t touch(const ProtobufCMessage *m, int depth)
{
    uint64_t sum = 0;
    ZT_ASSERT(depth <= ZT_MESSAGE_DEPTH_MAX);
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const char *at = (const char *)m + f->offset;
        size_t count = 1;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            int which;
            memcpy(&which, (const char *)m + f->quantifier_offset, sizeof(which));
            count = which == (int)f->id;
        } else if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            memcpy(&count, (const char *)m + f->quantifier_offset, sizeof(count));
            memcpy(&at, (const char *)m + f->offset, sizeof(at));
        }
        for (size_t k = 0; k < count; k++) {
            if (f->type == PROTOBUF_C_TYPE_STRING) {
                const char *s = ((const char *const *)(const void *)at)[k];
                sum += s ? strlen(s) : 0;
            } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
                const ProtobufCBinaryData *b = (const ProtobufCBinaryData *)(const void *)at + k;
                for (size_t j = 0; j < b->len; j++) {
                    sum += b->data[j];
                }
            } else if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
                const ProtobufCMessage *sub = ((const ProtobufCMessage *const *)(const void *)at)[k];
                sum += sub ? touch(sub, depth + 1) : 0;
            }
        }
    }
    return sum;
}

static void on_request(void *arg, struct zt_peer *p, const Zt__Envelope *env)
{
    (void)arg;
    handled++;
    ZT_ASSERT(opened > 0);
    uint64_t sum = touch(&env->base, 0);
    zt_peer_reply_error(p, env->request_id, -(int)(sum % 30), "answer");
}

static void start(void)
{
    struct zt_error err;
    struct zt_server_config c = {.host = "127.0.0.1", .epoch = 1, .version = "fuzz", .on_open = on_open,
                                 .on_request = on_request};
    memset(c.token.key, 7, sizeof(c.token.key));
    ZT_ASSERT(uv_loop_init(&loop) == 0);
    ZT_ASSERT(zt_server_open_detached(&loop, &c, on_output, NULL, &server, &err) == 0);
}

static void as_answer(const uint8_t *data, size_t n)
{
    struct zt_error err;
    Zt__Envelope *env;
    void *arena;
    if (zt_envelope_unpack(data, n, &env, &arena, &err)) {
        return;
    }
    ZT_ASSERT(zt_arena_bytes(arena) <= 4 * ZT_FRAME_MAX + 65536);
    touch(&env->base, 0);
    uint8_t *again;
    size_t len;
    if (zt_frame_pack(env, &again, &len, &err) == 0) {
        free(again);
    }
    zt_envelope_free(env, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!server) {
        start();
    }
    if (n < 1) {
        return 0;
    }
    int role = data[0] % 3;
    size_t piece = data[0] / 3 ? data[0] / 3u : n;
    opened = handled = 0;
    struct zt_peer *p = zt_server_adopt(server, role);
    for (size_t at = 1; at < n && !zt_peer_is_closing(p);) {
        size_t len = n - at < piece ? n - at : piece;
        uint8_t *copy = malloc(len); /* a read past the piece is seen */
        memcpy(copy, data + at, len);
        zt_peer_input(p, copy, len);
        free(copy);
        at += len;
        piece = n;
    }
    ZT_ASSERT(role != 0 || handled == 0); /* nobody can guess the token */
    zt_peer_drop(p);
    while (uv_run(&loop, UV_RUN_NOWAIT)) {
        struct zt_server_stats st;
        zt_server_stats(server, &st);
        if (st.peers == 0) {
            break;
        }
    }
    if (n > 5) {
        as_answer(data + 5, n - 5);
    }
    return 0;
}
