/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: hello both ways, requests and replies, reconnect and retry, the blocking call. */
#include "tests/proto/harness.h"

#include <pthread.h>

struct end {
    struct zt_client *client;
    int connected, disconnected, epoch_changes, pushes;
    bool given_up, closed;
    uint64_t epoch;
    struct zt_error err;
    int replies, failures;
    uint64_t seqs[512];
    struct zt_error reply_error;
};

static void on_connected(void *arg, uint64_t epoch, bool changed)
{
    struct end *e = arg;
    e->connected++;
    e->epoch = epoch;
    e->epoch_changes += changed;
}

static void on_disconnected(void *arg, bool will_retry, const struct zt_error *err)
{
    struct end *e = arg;
    e->disconnected++;
    e->given_up = !will_retry;
    e->err = *err;
}

static void on_push(void *arg, const Zt__Envelope *env)
{
    struct end *e = arg;
    (void)env;
    e->pushes++;
}

static void on_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct end *e = arg;
    if (err) {
        e->failures++;
        e->reply_error = *err;
        return;
    }
    cr_assert_not_null(reply);
    if (reply->body_case == ZT__ENVELOPE__BODY_BEAT_REPLY && e->replies < 512) {
        e->seqs[e->replies] = reply->beat_reply->seq;
    }
    e->replies++;
}

static void end_open(struct end *e, struct harness *h, int port, bool reconnect)
{
    struct zt_error err;
    struct zt_client_config c = {.host = "127.0.0.1", .port = port, .token = h->token,
                                 .role = ZT__ROLE__ROLE_WORKER, .principal = "box/cpu-0",
                                 .reconnect = reconnect, .arg = e, .on_connected = on_connected,
                                 .on_disconnected = on_disconnected, .on_push = on_push};
    memset(e, 0, sizeof(*e));
    cr_assert_eq(zt_client_open(&h->loop, &c, &e->client, &err), 0, "%s", err.msg);
}

static void end_close(struct end *e, struct harness *h)
{
    zt_client_close(e->client, set_flag, &e->closed);
    cr_assert(run_until(&h->loop, flag_set, &e->closed));
}

static bool is_connected(void *arg) { return zt_client_is_connected(((struct end *)arg)->client); }
static bool is_given_up(void *arg) { return ((struct end *)arg)->given_up; }
static bool was_lost(void *arg) { return ((struct end *)arg)->disconnected > 0; }
static bool nothing_pending(void *arg) { return zt_client_pending(((struct end *)arg)->client) == 0; }

static int beat(struct end *e, uint64_t seq, bool retry, double timeout)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Beat b = ZT__BEAT__INIT;
    struct zt_error err;
    uint8_t inc[16] = {0};
    b.worker_id = (char *)(uintptr_t)"box/cpu-0";
    b.incarnation = (ProtobufCBinaryData){16, inc};
    b.seq = seq;
    env.body_case = ZT__ENVELOPE__BODY_BEAT;
    env.beat = &b;
    return zt_client_request(e->client, &env, retry, timeout, on_reply, e, &err);
}

static bool push_came(void *arg)
{
    return ((struct end *)arg)->pushes > 0;
}

Test(session, hello_requests_in_order_push_and_close)
{
    struct harness h;
    struct end e;
    struct zt_error err;
    h_init(&h);
    end_open(&e, &h, zt_server_port(h.server), true);
    for (uint64_t i = 0; i < 200; i++) {
        cr_assert_eq(beat(&e, i, true, 5), 0); /* before the connection: they wait */
    }
    cr_assert(run_until(&h.loop, nothing_pending, &e));
    cr_assert_eq(e.connected, 1);
    cr_assert_eq(e.epoch, 7u);
    cr_assert_eq(e.epoch_changes, 0);
    cr_assert_eq(e.replies, 200);
    for (int i = 0; i < 200; i++) {
        cr_assert_eq(h.ids[i], (uint64_t)i);
        cr_assert_eq(e.seqs[i], (uint64_t)i);
    }
    cr_assert_eq(zt_peer_role(h.peer), ZT__ROLE__ROLE_WORKER);
    cr_assert_eq(strncmp(h.last_name, "box/cpu-0@127.0.0.1:", 20), 0, "%s", h.last_name);
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Desired desired = ZT__DESIRED__INIT;
    Zt__BeatReply br = ZT__BEAT_REPLY__INIT;
    br.desired = &desired;
    env.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
    env.beat_reply = &br;
    cr_assert_eq(zt_peer_push(h.peer, &env, &err), 0);
    cr_assert(run_until(&h.loop, push_came, &e));
    cr_assert_eq(e.pushes, 1);
    end_close(&e, &h);
    h_end(&h);
}

Test(session, closing_answers_what_is_pending)
{
    struct harness h;
    struct end e;
    h_init(&h);
    h.hold = true;
    end_open(&e, &h, zt_server_port(h.server), true);
    cr_assert(run_until(&h.loop, is_connected, &e));
    beat(&e, 1, true, 0);
    beat(&e, 2, false, 0);
    end_close(&e, &h);
    cr_assert_eq(e.failures, 2);
    cr_assert_eq(e.reply_error.code, ZT_ECANCELLED);
    h_end(&h);
}

Test(session, a_request_times_out_and_its_late_reply_is_ignored)
{
    struct harness h;
    struct end e;
    h_init(&h);
    h.hold = true;
    end_open(&e, &h, zt_server_port(h.server), true);
    cr_assert(run_until(&h.loop, is_connected, &e));
    beat(&e, 1, true, 0.02);
    cr_assert(run_until(&h.loop, nothing_pending, &e));
    cr_assert_eq(e.failures, 1);
    cr_assert_eq(e.reply_error.code, ZT_ETIMEOUT);
    cr_assert_eq(h.requests, 1);
    zt_peer_reply_error(h.peer, 2, ZT_EBUSY, "late"); /* id 1 was the hello */
    h.hold = false;
    beat(&e, 2, true, 5);
    cr_assert(run_until(&h.loop, nothing_pending, &e));
    cr_assert_eq(e.replies, 1);
    cr_assert_eq(e.failures, 1);
    end_close(&e, &h);
    h_end(&h);
}

Test(session, server_restart_retries_in_order_and_fails_the_rest)
{
    struct harness h;
    struct end e;
    h_init(&h);
    int port = zt_server_port(h.server);
    h.hold = true;
    end_open(&e, &h, port, true);
    cr_assert(run_until(&h.loop, is_connected, &e));
    for (uint64_t i = 0; i < 10; i++) {
        beat(&e, i, i % 2 == 0, 30);
    }
    bool all = false;
    for (int i = 0; i < TURNS && !all; i++) {
        uv_run(&h.loop, UV_RUN_ONCE);
        all = h.requests == 10;
    }
    cr_assert(all);
    h_stop(&h);
    cr_assert(run_until(&h.loop, was_lost, &e));
    cr_assert_eq(e.failures, 5, "the five without retry");
    cr_assert_eq(e.reply_error.code, ZT_EUNREACHABLE);
    cr_assert_eq(zt_client_pending(e.client), 5u);
    h.epoch = 8;
    h.hold = false;
    h.beats = 0;
    h_start(&h, port);
    cr_assert(run_until(&h.loop, nothing_pending, &e));
    cr_assert_eq(e.replies, 5);
    cr_assert_eq(h.beats, 5);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(h.ids[i], (uint64_t)(2 * i));
        cr_assert_eq(e.seqs[i], (uint64_t)(2 * i));
    }
    cr_assert_eq(e.epoch_changes, 1);
    cr_assert_eq(e.epoch, 8u);
    end_close(&e, &h);
    h_end(&h);
}

Test(session, no_coordinator_is_a_clear_message)
{
    struct harness h;
    struct end e;
    h_init(&h);
    int port = zt_server_port(h.server);
    h_stop(&h);
    end_open(&e, &h, port, false);
    cr_assert(run_until(&h.loop, is_given_up, &e));
    cr_assert_eq(e.err.code, ZT_EUNREACHABLE);
    cr_assert_not_null(strstr(e.err.msg, "connection refused"), "%s", e.err.msg);
    cr_assert_not_null(strstr(e.err.msg, "is zcoord running there?"), "%s", e.err.msg);
    cr_assert_neq(beat(&e, 1, true, 1), 0, "a given-up session takes no requests");
    end_close(&e, &h);
    h_end(&h);
}

Test(session, names_are_resolved)
{
    struct harness h;
    struct end e;
    struct zt_error err;
    h_init(&h);
    memset(&e, 0, sizeof(e));
    struct zt_client_config c = {.host = "localhost", .port = zt_server_port(h.server), .token = h.token,
                                 .role = ZT__ROLE__ROLE_CLIENT, .reconnect = true, .arg = &e,
                                 .on_connected = on_connected};
    cr_assert_eq(zt_client_open(&h.loop, &c, &e.client, &err), 0);
    cr_assert(run_until(&h.loop, is_connected, &e));
    end_close(&e, &h);
    h_end(&h);
}

Test(session, wrong_token_is_final_and_secret)
{
    struct harness h;
    struct end e;
    struct zt_server_stats st;
    h_init(&h);
    struct zt_token good = h.token;
    h.token.key[31] ^= 1;
    end_open(&e, &h, zt_server_port(h.server), true);
    cr_assert(run_until(&h.loop, is_given_up, &e));
    cr_assert_eq(e.err.code, ZT_EAUTH);
    cr_assert_not_null(strstr(e.err.msg, "--token-file"), "%s", e.err.msg);
    zt_server_stats(h.server, &st);
    cr_assert_eq(st.refused_auth, 1u);
    cr_assert_eq(h.opened, 0);
    h.token = good;
    end_close(&e, &h);
    h_end(&h);
}

/* ------------------------------------------------- a server that lies, played by hand over a socket */

struct liar {
    int listener, port;
    pthread_t thread;
    uint32_t major;
    bool garbage;
};

static void *lie(void *arg)
{
    struct liar *l = arg;
    struct zt_error err;
    int fd = accept(l->listener, NULL, NULL);
    uint8_t nonce[32] = {1}, mac[32] = {2}, *p, buf[4096];
    size_t n;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Challenge ch = ZT__CHALLENGE__INIT;
    if (fd < 0) {
        return NULL;
    }
    if (l->garbage) {
        (void)!write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
        (void)!read(fd, buf, sizeof(buf));
        close(fd);
        return NULL;
    }
    ch.protocol_major = l->major;
    ch.protocol_minor = 4;
    ch.version = (char *)(uintptr_t)"9.9";
    ch.nonce = (ProtobufCBinaryData){32, nonce};
    env.body_case = ZT__ENVELOPE__BODY_CHALLENGE;
    env.challenge = &ch;
    if (zt_frame_pack(&env, &p, &n, &err) == 0) {
        (void)!write(fd, p, n);
        free(p);
    }
    if (read(fd, buf, sizeof(buf)) > 0) {
        Zt__HelloReply hr = ZT__HELLO_REPLY__INIT;
        hr.mac = (ProtobufCBinaryData){32, mac};
        env = (Zt__Envelope)ZT__ENVELOPE__INIT;
        env.request_id = 1;
        env.has_reply = env.reply = 1;
        env.body_case = ZT__ENVELOPE__BODY_HELLO_REPLY;
        env.hello_reply = &hr;
        if (zt_frame_pack(&env, &p, &n, &err) == 0) {
            (void)!write(fd, p, n);
            free(p);
        }
        (void)!read(fd, buf, sizeof(buf));
    }
    close(fd);
    return NULL;
}

static void liar_start(struct liar *l)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof(a);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(l->listener, (struct sockaddr *)&a, sizeof(a)), 0);
    cr_assert_eq(listen(l->listener, 4), 0);
    getsockname(l->listener, (struct sockaddr *)&a, &len);
    l->port = ntohs(a.sin_port);
    cr_assert_eq(pthread_create(&l->thread, NULL, lie, l), 0);
}

static void against_liar(struct liar *l, bool reconnect, int code, const char *words)
{
    struct harness h;
    struct end e;
    h_init(&h);
    liar_start(l);
    end_open(&e, &h, l->port, reconnect);
    cr_assert(run_until(&h.loop, is_given_up, &e));
    cr_assert_eq(e.err.code, code, "%s", e.err.msg);
    cr_assert_not_null(strstr(e.err.msg, words), "%s", e.err.msg);
    cr_assert_eq(e.connected, 0);
    end_close(&e, &h);
    pthread_join(l->thread, NULL);
    close(l->listener);
    h_end(&h);
}

Test(session, server_without_the_token_is_refused)
{
    struct liar l = {.major = ZT_PROTOCOL_MAJOR};
    against_liar(&l, true, ZT_EAUTH, "does not know the token");
}

Test(session, other_major_is_final_and_names_both_versions)
{
    struct liar l = {.major = ZT_PROTOCOL_MAJOR + 1};
    against_liar(&l, true, ZT_EVERSION, "9.9 (protocol 2.4), this program is " ZT_VERSION " (protocol " THIS_PROTOCOL ")");
}

Test(session, something_else_on_the_port)
{
    struct liar l = {.garbage = true};
    against_liar(&l, false, ZT_EPROTO, "over the limit");
}

/* -------------------------------------------------------------------------------- blocking call */

struct served { struct harness h; uv_async_t stop; pthread_t thread; int port; };

static void on_stop(uv_async_t *a)
{
    struct served *s = a->data;
    zt_server_close(s->h.server, NULL, NULL);
    s->h.server = NULL;
    uv_close((uv_handle_t *)a, NULL);
}

static void *serve(void *arg)
{
    struct served *s = arg;
    uv_run(&s->h.loop, UV_RUN_DEFAULT);
    return NULL;
}

static void served_start(struct served *s)
{
    h_init(&s->h);
    s->port = zt_server_port(s->h.server);
    cr_assert_eq(uv_async_init(&s->h.loop, &s->stop, on_stop), 0);
    s->stop.data = s;
}

static void served_run(struct served *s) { cr_assert_eq(pthread_create(&s->thread, NULL, serve, s), 0); }

static void served_end(struct served *s)
{
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
    cr_assert_eq(uv_loop_close(&s->h.loop), 0);
}

static int call_status(struct zt_call *c, double timeout, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__GetStatus get = ZT__GET_STATUS__INIT;
    void *arena;
    env.body_case = ZT__ENVELOPE__BODY_GET_STATUS;
    env.get_status = &get;
    int rc = zt_call(c, &env, timeout, &reply, &arena, err);
    if (rc == 0) {
        cr_assert_eq(reply->body_case, ZT__ENVELOPE__BODY_ACK);
        zt_envelope_free(reply, arena);
    }
    return rc;
}

Test(call, answers_errors_and_timeouts)
{
    struct served s;
    struct zt_call *c;
    struct zt_error err;
    served_start(&s);
    served_run(&s);
    cr_assert_eq(zt_call_open("127.0.0.1", s.port, &s.h.token, "ann", 10, &c, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_call_epoch(c), 7u);
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(call_status(c, 10, &err), 0, "%s", err.msg);
    }
    /* a trainer's frame is refused on the network, with a code */
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__TrainerState state = ZT__TRAINER_STATE__INIT;
    void *arena;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STATE;
    env.trainer_state = &state;
    cr_assert_eq(zt_call(c, &env, 10, &reply, &arena, &err), ZT_EUNSUPPORTED);
    cr_assert_null(reply);
    cr_assert_not_null(strstr(err.msg, "trainer_state"), "%s", err.msg);
    zt_call_close(c);
    served_end(&s);
}

Test(call, timeout_then_works_again)
{
    struct served s;
    struct zt_call *c;
    struct zt_error err;
    served_start(&s);
    s.h.hold = true;
    served_run(&s);
    cr_assert_eq(zt_call_open("127.0.0.1", s.port, &s.h.token, "ann", 10, &c, &err), 0);
    cr_assert_eq(call_status(c, 0.03, &err), ZT_ETIMEOUT);
    cr_assert_eq(call_status(c, 0.03, &err), ZT_ETIMEOUT, "it connects again and waits again");
    zt_call_close(c);
    served_end(&s);
}

/* A limit that has passed before the loop first waits must end the wait all the same. */
Test(call, the_shortest_limits)
{
    struct served s;
    struct zt_call *c;
    struct zt_error err;
    served_start(&s);
    s.h.hold = true;
    served_run(&s);
    cr_assert_eq(zt_call_open("127.0.0.1", s.port, &s.h.token, "ann", 10, &c, &err), 0);
    for (int i = 0; i < 300; i++) {
        cr_assert_eq(call_status(c, 1e-6, &err), ZT_ETIMEOUT, "%s", err.msg);
    }
    zt_call_close(c);
    served_end(&s);
}

Test(call, no_server_wrong_token)
{
    struct served s;
    struct zt_call *c;
    struct zt_error err;
    served_start(&s);
    served_run(&s);
    struct zt_token bad = s.h.token;
    bad.key[0] ^= 0x80;
    cr_assert_eq(zt_call_open("127.0.0.1", s.port, &bad, "ann", 10, &c, &err), ZT_EAUTH);
    cr_assert_null(c);
    int port = s.port;
    struct zt_token good = s.h.token;
    served_end(&s);
    cr_assert_eq(zt_call_open("127.0.0.1", port, &good, "ann", 10, &c, &err), ZT_EUNREACHABLE);
    cr_assert_null(c);
}
