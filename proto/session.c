/* SPDX-License-Identifier: Apache-2.0 */
/* proto/session.c: helpers of both ends of a session: shared frames, socket options, codes. */
#include "proto/session_internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int zt_frame_new(const Zt__Envelope *env, struct zt_frame **out, struct zt_error *err)
{
    struct zt_frame *f = calloc(1, sizeof(*f));
    *out = NULL;
    if (!f) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a frame");
    }
    int rc = zt_frame_pack(env, &f->bytes, &f->n, err);
    if (rc) {
        free(f);
        return rc;
    }
    f->refs = 1;
    *out = f;
    return 0;
}

struct zt_frame *zt_frame_hold(struct zt_frame *f)
{
    f->refs++;
    return f;
}

void zt_frame_drop(struct zt_frame *f)
{
    if (f && --f->refs == 0) {
        free(f->bytes);
        free(f);
    }
}

struct write { uv_write_t req; struct zt_frame *frame; void (*done)(void *arg, int status); void *arg; };

static void on_written(uv_write_t *req, int status)
{
    struct write *w = req->data;
    zt_frame_drop(w->frame);
    if (w->done) {
        w->done(w->arg, status);
    }
    free(w);
}

int zt_stream_write(uv_stream_t *stream, struct zt_frame *f, void (*done)(void *arg, int status),
                    void *arg)
{
    struct write *w = calloc(1, sizeof(*w));
    if (!w) {
        zt_frame_drop(f);
        return UV_ENOMEM;
    }
    w->req.data = w;
    w->frame = f;
    w->done = done;
    w->arg = arg;
    uv_buf_t buf = uv_buf_init((char *)f->bytes, (unsigned)f->n);
    int rc = uv_write(&w->req, stream, &buf, 1, on_written);
    if (rc) {
        zt_frame_drop(f);
        free(w);
    }
    return rc;
}

void zt_tcp_options(uv_tcp_t *tcp)
{
    uv_os_fd_t fd;
    unsigned ms = 10000;
    uv_tcp_nodelay(tcp, 1);
    uv_tcp_keepalive(tcp, 1, 10);
    if (uv_fileno((uv_handle_t *)tcp, &fd) == 0) {
        /* fails harmlessly on a kernel without it: requests have their own time-outs */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    }
}

int zt_fail_from_envelope(const Zt__Envelope *env, struct zt_error *err)
{
    int code = zt_code_from_wire(env->code);
    return zt_fail(err, code ? code : ZT_EPROTO, "%s",
                   env->message && env->message[0] ? env->message : zt_code_name(code));
}

void zt_random_bytes(void *out, size_t n)
{
    ZT_ASSERT(zt_sys_posix.random(zt_sys_posix.arg, out, n) == 0);
}

int zt_code_from_wire(Zt__Code c)
{
    switch (c) {
    case ZT__CODE__UNIMPLEMENTED:
        return ZT_EUNSUPPORTED;
    case ZT__CODE__STALE_GENERATION:
    case ZT__CODE__SUPERSEDED:
        return ZT_ECONFLICT;
    case ZT__CODE__CORRUPT:
        return ZT_ECORRUPT;
    default:
        return (int)c >= 0 && (int)c <= -ZT_EINTERNAL ? -(int)c : ZT_EINTERNAL;
    }
}

Zt__Code zt_code_to_wire(int zt_code)
{
    return zt_code <= 0 && zt_code >= ZT_ECORRUPT ? (Zt__Code)-zt_code
                                                                 : ZT__CODE__INTERNAL;
}
