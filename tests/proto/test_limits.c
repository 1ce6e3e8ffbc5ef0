/* SPDX-License-Identifier: Apache-2.0 */
/* The server against hostile and broken peers: nothing before the hello, replayed and wrong hellos,
 * garbage, slow and silent peers, readers that do not read, no descriptors left. Time-outs run on a
 * clock that this program moves: clock_gettime is ours, libuv asks it. */
#include "tests/proto/harness.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static int64_t clock_offset_ms;

int clock_gettime(clockid_t id, struct timespec *ts) __attribute__((visibility("default")));
int clock_gettime(clockid_t id, struct timespec *ts)
{
    long rc = syscall(SYS_clock_gettime, id, ts);
    if (rc == 0 && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE)) {
        ts->tv_sec += clock_offset_ms / 1000;
        ts->tv_nsec += clock_offset_ms % 1000 * 1000000;
        if (ts->tv_nsec >= 1000000000) {
            ts->tv_nsec -= 1000000000;
            ts->tv_sec++;
        }
    }
    return (int)rc;
}

/* Moves the clock and lets timers and reads run. */
static void pass(struct harness *h, int64_t ms)
{
    clock_offset_ms += ms;
    for (int i = 0; i < 8; i++) {
        uv_run(&h->loop, UV_RUN_NOWAIT);
    }
}

static struct zt_server_stats stats(struct harness *h)
{
    struct zt_server_stats st;
    zt_server_stats(h->server, &st);
    return st;
}

Test(limits, the_clock_is_ours)
{
    uv_loop_t loop;
    uv_loop_init(&loop);
    uint64_t before = uv_now(&loop);
    clock_offset_ms += 100000;
    uv_update_time(&loop);
    cr_assert_geq(uv_now(&loop) - before, 100000u);
    uv_loop_close(&loop);
}

/* ---------------------------------------------------------------------------- before the hello */

Test(limits, no_request_is_handled_before_the_hello)
{
    struct harness h;
    const ProtobufCMessageDescriptor *m = &zt__envelope__descriptor;
    h_init(&h);
    int tried = 0;
    for (unsigned i = 0; i < m->n_fields; i++) {
        struct raw r;
        uint8_t frame[1024];
        if (!is_body(&m->fields[i])) {
            continue;
        }
        raw_connect(&r, zt_server_port(h.server));
        raw_write(&r, frame, minimal_frame(&m->fields[i], frame));
        cr_assert(run_until(&h.loop, raw_at_end, &r), "%s: not closed", m->fields[i].name);
        raw_close(&r);
        tried++;
    }
    cr_assert_geq(tried, 45);
    cr_assert_eq(h.requests, 0);
    cr_assert_eq(h.opened, 0);
    cr_assert_eq(stats(&h).requests, 0u);
    cr_assert_eq(stats(&h).refused_auth, (uint64_t)tried, "a hello made of x is no hello either, but refused");
    h_end(&h);
}

Test(limits, every_type_after_the_hello_is_served_or_unimplemented)
{
    static const unsigned served[] = {13, 15, 17, 18, 19, 20, 22, 23, 24, 25, 27, 29, 30, 31, 33, 35, 36, 37, 40, 42,
                                      44, 46, 48, 50, 52, 54, 56, 58, 60, 61, 62, 64, 65, 67, 69};
    struct harness h;
    struct raw r;
    const ProtobufCMessageDescriptor *m = &zt__envelope__descriptor;
    h_init(&h);
    raw_connect(&r, zt_server_port(h.server));
    raw_login(&h, &r, ZT__ROLE__ROLE_WORKER);
    for (unsigned i = 0; i < m->n_fields; i++) {
        uint8_t frame[1024];
        bool expect = false;
        if (!is_body(&m->fields[i])) {
            continue;
        }
        for (size_t k = 0; k < sizeof(served) / sizeof(served[0]); k++) {
            expect = expect || m->fields[i].id == served[k];
        }
        int before = h.requests;
        r.frames = 0;
        raw_write(&r, frame, minimal_frame(&m->fields[i], frame));
        cr_assert(run_until(&h.loop, raw_has_frame, &r));
        cr_assert_not(r.eof, "%s ended the session", m->fields[i].name);
        cr_assert_eq(h.requests - before, expect, "%s", m->fields[i].name);
        cr_assert_eq(r.last->code, expect ? ZT__CODE__OK : ZT__CODE__UNIMPLEMENTED);
        cr_assert_eq(r.last->request_id, 9u);
    }
    /* and one that nobody knows yet */
    const uint8_t unknown[] = {6, 0, 0, 0, 0x08, 0x09, 0xa2, 0x3e, 1, 'x'}; /* field 996, 1 byte */
    r.frames = 0;
    raw_write(&r, unknown, sizeof(unknown));
    cr_assert(run_until(&h.loop, raw_has_frame, &r));
    cr_assert_eq(r.last->code, ZT__CODE__UNIMPLEMENTED);
    raw_close(&r);
    h_end(&h);
}

Test(limits, replayed_hello_is_refused)
{
    struct harness h;
    struct raw a, b;
    Zt__Envelope env;
    Zt__Hello hello;
    uint8_t nonce[32], mac[32], *bytes;
    size_t n;
    struct zt_error err;
    h_init(&h);
    raw_connect(&a, zt_server_port(h.server));
    raw_hello(&h, &a, ZT__ROLE__ROLE_WORKER, &env, &hello, nonce, mac);
    cr_assert_eq(zt_frame_pack(&env, &bytes, &n, &err), 0);
    raw_write(&a, bytes, n);
    a.frames = 0;
    cr_assert(run_until(&h.loop, raw_has_frame, &a));
    cr_assert_eq(a.last->body_case, ZT__ENVELOPE__BODY_HELLO_REPLY);
    cr_assert_eq(h.opened, 1);
    raw_connect(&b, zt_server_port(h.server));
    raw_write(&b, bytes, n); /* the very bytes that worked */
    cr_assert(run_until(&h.loop, raw_at_end, &b));
    cr_assert_eq(b.last->code, ZT__CODE__AUTH);
    cr_assert_eq(h.opened, 1);
    cr_assert_eq(stats(&h).refused_auth, 1u);
    free(bytes);
    raw_close(&a);
    raw_close(&b);
    h_end(&h);
}

Test(limits, bad_hellos)
{
    /* 0 wrong mac, 1 mac of another role, 2 short nonce, 3 short mac, 4 other major, 5 request id 0 */
    struct harness h;
    h_init(&h);
    for (int kind = 0; kind < 6; kind++) {
        struct raw r;
        Zt__Envelope env;
        Zt__Hello hello;
        uint8_t nonce[32], mac[32];
        raw_connect(&r, zt_server_port(h.server));
        raw_hello(&h, &r, ZT__ROLE__ROLE_CLIENT, &env, &hello, nonce, mac);
        mac[5] = (uint8_t)(mac[5] ^ (kind == 0));
        hello.role = kind == 1 ? ZT__ROLE__ROLE_WORKER : ZT__ROLE__ROLE_CLIENT;
        hello.nonce.len = kind == 2 ? 31 : 32;
        hello.mac.len = kind == 3 ? 31 : 32;
        hello.protocol_major = kind == 4 ? 2 : 1;
        hello.version = (char *)(uintptr_t)"7.7";
        env.request_id = kind == 5 ? 0 : 1;
        raw_send(&r, &env);
        cr_assert(run_until(&h.loop, raw_at_end, &r), "hello %d", kind);
        cr_assert_eq(r.last->code, kind == 4 ? ZT__CODE__VERSION : ZT__CODE__AUTH, "hello %d", kind);
        if (kind == 4) {
            cr_assert_not_null(strstr(r.last->message, "coordinator is t (protocol " THIS_PROTOCOL ")"), "%s", r.last->message);
            cr_assert_not_null(strstr(r.last->message, "caller is 7.7 (protocol 2.0)"), "%s", r.last->message);
        }
        raw_close(&r);
    }
    cr_assert_eq(h.opened, 0);
    cr_assert_eq(stats(&h).refused_version, 1u);
    cr_assert_eq(stats(&h).refused_auth, 5u);
    h_end(&h);
}

/* ------------------------------------------------------------------------------------- garbage */

Test(limits, garbage_closes_only_its_own_connection)
{
    static const char *const junk[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "\x01", ""};
    struct harness h;
    struct raw good;
    uint32_t seed = 1;
    h_init(&h);
    raw_connect(&good, zt_server_port(h.server));
    raw_login(&h, &good, ZT__ROLE__ROLE_CLIENT);
    for (int i = 0; i < 60; i++) {
        struct raw r;
        uint8_t noise[256];
        raw_connect(&r, zt_server_port(h.server));
        if (i < 4) {
            raw_write(&r, junk[i], strlen(junk[i]));
        } else {
            if (i % 2) {
                raw_login(&h, &r, ZT__ROLE__ROLE_CLIENT);
            }
            for (size_t k = 0; k < sizeof(noise); k++) {
                seed = seed * 1664525u + 1013904223u;
                noise[k] = (uint8_t)(seed >> 24);
            }
            noise[0] = 100; /* a length in range, so that the body is looked at */
            noise[1] = noise[2] = noise[3] = 0;
            raw_write(&r, noise, sizeof(noise));
            cr_assert(run_until(&h.loop, raw_at_end, &r), "noise %d was accepted", i);
        }
        raw_close(&r);
    }
    cr_assert_eq(h.requests, 0);
    cr_assert_geq(stats(&h).malformed, 50u);
    uint8_t frame[256];
    good.frames = 0;
    raw_write(&good, frame, minimal_frame(protobuf_c_message_descriptor_get_field(
                                              &zt__envelope__descriptor, 58), frame));
    cr_assert(run_until(&h.loop, raw_has_frame, &good));
    cr_assert_eq(good.last->body_case, ZT__ENVELOPE__BODY_ACK);
    raw_close(&good);
    h_end(&h);
}

/* ----------------------------------------------------------------------------- slow and silent */

static struct raw *silent(struct harness *h)
{
    struct raw *r = calloc(1, sizeof(*r));
    raw_connect(r, zt_server_port(h->server));
    cr_assert(run_until(&h->loop, raw_has_frame, r));
    return r;
}

Test(limits, hello_within_two_seconds)
{
    struct harness h;
    h_init(&h);
    struct raw *r = silent(&h);
    pass(&h, 1900);
    raw_poll(r);
    cr_assert_not(r->eof);
    const uint8_t dribble[] = {60, 0};
    raw_write(r, dribble, sizeof(dribble)); /* bytes do not buy time */
    pass(&h, 200);
    cr_assert(run_until(&h.loop, raw_at_end, r));
    cr_assert_eq(r->last->code, ZT__CODE__TIMEOUT);
    cr_assert_eq(stats(&h).timed_out, 1u);
    raw_close(r);
    free(r);
    h_end(&h);
}

Test(limits, a_partial_frame_has_five_seconds)
{
    struct harness h;
    struct raw r;
    uint8_t frame[256];
    const ProtobufCFieldDescriptor *get =
        protobuf_c_message_descriptor_get_field(&zt__envelope__descriptor, 44);
    h_init(&h);
    raw_connect(&r, zt_server_port(h.server));
    raw_login(&h, &r, ZT__ROLE__ROLE_CLIENT);
    size_t n = minimal_frame(get, frame);
    /* 4.9 s for one frame, byte by byte, is allowed; the limit is per frame */
    for (int round = 0; round < 2; round++) {
        raw_write(&r, frame, 1);
        pass(&h, 2450);
        raw_write(&r, frame + 1, 3);
        pass(&h, 2450);
        raw_write(&r, frame + 4, n - 4);
        r.frames = 0;
        cr_assert(run_until(&h.loop, raw_has_frame, &r));
        cr_assert_not(r.eof);
    }
    cr_assert_eq(h.requests, 2);
    /* a frame that comes with the end of the last one starts its own five seconds */
    uint8_t two[512];
    memcpy(two, frame, n);
    memcpy(two + n, frame, 3);
    raw_write(&r, two, n + 3);
    pass(&h, 0);
    cr_assert_eq(h.requests, 3);
    pass(&h, 4900);
    raw_write(&r, frame + 3, 2); /* still going, still late */
    pass(&h, 200);
    cr_assert(run_until(&h.loop, raw_at_end, &r));
    cr_assert_eq(r.last->code, ZT__CODE__TIMEOUT);
    cr_assert_eq(h.requests, 3);
    raw_close(&r);
    h_end(&h);
}

Test(limits, idle_clients_go_workers_that_beat_stay)
{
    struct harness h;
    struct raw client, worker, waiting, mute;
    uint8_t frame[256];
    const ProtobufCMessageDescriptor *m = &zt__envelope__descriptor;
    h_init(&h);
    raw_connect(&client, zt_server_port(h.server));
    raw_login(&h, &client, ZT__ROLE__ROLE_CLIENT);
    raw_connect(&worker, zt_server_port(h.server));
    raw_login(&h, &worker, ZT__ROLE__ROLE_WORKER);
    raw_connect(&mute, zt_server_port(h.server));
    raw_login(&h, &mute, ZT__ROLE__ROLE_WORKER);
    raw_write(&worker, frame, minimal_frame(protobuf_c_message_descriptor_get_field(m, 15), frame));
    cr_assert(run_until(&h.loop, raw_has_frame, &worker));
    raw_connect(&waiting, zt_server_port(h.server));
    raw_login(&h, &waiting, ZT__ROLE__ROLE_WORKER);
    h.hold = true;
    raw_write(&waiting, frame, minimal_frame(protobuf_c_message_descriptor_get_field(m, 20), frame));
    int before = h.requests;
    for (int i = 0; i < TURNS && h.requests == before; i++) {
        uv_run(&h.loop, UV_RUN_NOWAIT);
    }
    cr_assert_eq(h.requests, before + 1);
    pass(&h, 59000);
    raw_poll(&client);
    cr_assert_not(client.eof);
    pass(&h, 1500);
    cr_assert(run_until(&h.loop, raw_at_end, &client));
    cr_assert(run_until(&h.loop, raw_at_end, &mute), "a worker that never beat is idle like others");
    pass(&h, 3600 * 1000);
    raw_poll(&worker);
    raw_poll(&waiting);
    cr_assert_not(worker.eof);
    cr_assert_not(waiting.eof, "an unanswered request is not idleness");
    raw_close(&client);
    raw_close(&worker);
    raw_close(&waiting);
    raw_close(&mute);
    h_end(&h);
}

Test(limits, thirty_two_silent_peers_do_not_keep_an_honest_one_out)
{
    struct harness h;
    struct raw *s[40], honest;
    h_init(&h);
    for (int i = 0; i < 32; i++) {
        s[i] = silent(&h);
    }
    cr_assert_eq(stats(&h).unauthenticated, 32u);
    raw_connect(&honest, zt_server_port(h.server));
    pass(&h, 60); /* the oldest have had their 50 ms */
    raw_login(&h, &honest, ZT__ROLE__ROLE_CLIENT);
    cr_assert_eq(h.opened, 1);
    cr_assert_leq(stats(&h).unauthenticated, 32u);
    cr_assert_eq(stats(&h).evicted, 1u);
    for (int i = 32; i < 40; i++) {
        s[i] = calloc(1, sizeof(*s[i]));
        raw_connect(s[i], zt_server_port(h.server));
        pass(&h, 1);
        cr_assert_leq(stats(&h).unauthenticated, 32u);
    }
    pass(&h, 2100);
    pass(&h, 2100);
    cr_assert_eq(stats(&h).unauthenticated, 0u);
    raw_poll(&honest);
    cr_assert_not(honest.eof);
    for (int i = 0; i < 40; i++) {
        raw_close(s[i]);
        free(s[i]);
    }
    raw_close(&honest);
    h_end(&h);
}

/* ------------------------------------------------------------------------------- output, sockets */

static bool peer_gone(void *arg) { return ((struct harness *)arg)->closed == 1; }

Test(limits, a_reader_that_does_not_read_is_dropped)
{
    struct harness h;
    struct raw r;
    uint8_t frame[256];
    h_init(&h);
    h.answer_big = true;
    raw_connect(&r, zt_server_port(h.server));
    raw_login(&h, &r, ZT__ROLE__ROLE_CLIENT);
    size_t n = minimal_frame(protobuf_c_message_descriptor_get_field(&zt__envelope__descriptor, 58), frame);
    for (int i = 0; i < 100; i++) {
        raw_write(&r, frame, n); /* 100 x 600 KiB of answers wanted, none read */
    }
    cr_assert(run_until(&h.loop, peer_gone, &h));
    cr_assert_eq(stats(&h).overflowed, 1u);
    cr_assert_lt(h.requests, 60, "after the drop nothing is handled");
    raw_close(&r);
    h_end(&h);
}

Test(limits, only_loopback_and_clear_words_for_a_used_port)
{
    struct harness h;
    struct zt_server *s;
    struct zt_error err;
    char port[32];
    h_init(&h);
    struct zt_server_config c = {.port = 0, .token = h.token, .epoch = 1};
    static const char *const open_to_all[] = {"0.0.0.0", "192.168.1.1", "::", "128.0.0.1", "126.255.255.255"};
    for (size_t i = 0; i < sizeof(open_to_all) / sizeof(open_to_all[0]); i++) {
        snprintf(c.host, sizeof(c.host), "%s", open_to_all[i]);
        cr_assert_eq(zt_server_open(&h.loop, &c, &s, &err), ZT_EUNSUPPORTED);
        cr_assert_not_null(strstr(err.msg, "until TLS exists"), "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, open_to_all[i]), "%s", err.msg);
    }
    snprintf(c.host, sizeof(c.host), "example.org");
    cr_assert_eq(zt_server_open(&h.loop, &c, &s, &err), ZT_EINVAL);
    snprintf(c.host, sizeof(c.host), "127.0.0.1");
    c.port = zt_server_port(h.server);
    cr_assert_eq(zt_server_open(&h.loop, &c, &s, &err), ZT_ECONFLICT);
    snprintf(port, sizeof(port), "port %d ", c.port);
    cr_assert_not_null(strstr(err.msg, port), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "in use"), "%s", err.msg);
    h_end(&h);
}

/* ------------------------------------------------------------------------------ no descriptors */

/* A child holds n connections open until its pipe is closed; they are made when this returns. */
static pid_t hold_connections(int port, int n, int *pipe_out)
{
    int fds[2], ready[2];
    char c;
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit lim;
        getrlimit(RLIMIT_NOFILE, &lim);
        lim.rlim_cur = lim.rlim_max; /* the parent's low limit is not for this one */
        setrlimit(RLIMIT_NOFILE, &lim);
        close(fds[1]);
        for (int i = 0; i < n; i++) {
            struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
            a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            (void)!connect(fd, (struct sockaddr *)&a, sizeof(a));
        }
        (void)!write(ready[1], "r", 1);
        (void)!read(fds[0], &c, 1);
        _exit(0);
    }
    cr_assert_eq(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(fds[0]);
    *pipe_out = fds[1];
    return pid;
}

Test(limits, two_hundred_idle_connections_at_ulimit_64_do_not_spin)
{
    struct harness h;
    struct raw honest;
    struct rlimit lim;
    int hold;
    memset(&h, 0, sizeof(h));
    h.epoch = 1;
    cr_assert_eq(uv_loop_init(&h.loop), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &lim), 0);
    lim.rlim_cur = 64;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    h_start(&h, 0);
    pid_t child = hold_connections(zt_server_port(h.server), 200, &hold);
    cr_assert_gt(child, 0);
    for (int i = 0; i < 200; i++) {
        pass(&h, 1);
    }
    cr_assert_leq(stats(&h).unauthenticated, 32u);
    /* turns of the loop in one second of its own time, a millisecond each at most: woken by timers and
     * events only, so a spinning accept would make it thousands */
    int turns = 0;
    uv_timer_t guard;
    uv_timer_init(&h.loop, &guard);
    uv_timer_start(&guard, guard_tick, 1000, 100);
    uint64_t until = uv_now(&h.loop) + 1000;
    while (uv_now(&h.loop) < until && turns < 100000) {
        uv_run(&h.loop, UV_RUN_ONCE);
        turns++;
    }
    uv_close((uv_handle_t *)&guard, NULL);
    cr_assert_lt(turns, 1000, "%d turns in a second", turns);
    /* with the flood still there an honest client gets in */
    raw_start(&honest, zt_server_port(h.server));
    bool in = false;
    for (int i = 0; i < 6000 && !in; i++) { /* the kernel asks again after 1, 3, 7 s when the backlog was full */
        pass(&h, 10);
        struct pollfd f = {honest.fd, POLLIN, 0};
        poll(&f, 1, 10); /* the kernel's time, not the interposed clock's */
        raw_poll(&honest);
        in = honest.frames > 0;
    }
    cr_assert(in, "the honest client waits for ever");
    honest.frames = 1;
    raw_login(&h, &honest, ZT__ROLE__ROLE_CLIENT);
    cr_assert_eq(h.opened, 1);
    raw_close(&honest);
    close(hold);
    int status;
    waitpid(child, &status, 0);
    h_end(&h);
}

/* The hard case: the process has no descriptor left at all, not even libuv's spare one. */
Test(limits, accept_without_any_descriptor_backs_off_and_heals)
{
    struct harness h;
    struct raw honest;
    struct rlimit lim;
    int hold, eaten[128], n = 0;
    memset(&h, 0, sizeof(h));
    h.epoch = 1;
    cr_assert_eq(uv_loop_init(&h.loop), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &lim), 0);
    lim.rlim_cur = 128;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    h_start(&h, 0);
    close(h.loop.emfile_fd);
    h.loop.emfile_fd = -1;
    pid_t child = hold_connections(zt_server_port(h.server), 20, &hold);
    while (n < 128 && (eaten[n] = dup(0)) >= 0) {
        n++;
    }
    cr_assert_eq(errno, EMFILE);
    for (int i = 0; i < 100; i++) {
        pass(&h, 10); /* one second: opened again every 200 ms at most, never inside one turn for ever */
    }
    uint64_t errors = stats(&h).accept_errors;
    cr_assert_geq(errors, 1u);
    cr_assert_leq(errors, 20u);
    while (n > 0) {
        close(eaten[--n]);
    }
    close(hold);
    int status;
    waitpid(child, &status, 0);
    for (int i = 0; i < 50; i++) {
        pass(&h, 10);
    }
    raw_connect(&honest, zt_server_port(h.server));
    raw_login(&h, &honest, ZT__ROLE__ROLE_CLIENT);
    cr_assert_eq(h.opened, 1);
    raw_close(&honest);
    h_end(&h);
}
