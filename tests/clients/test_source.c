/* SPDX-License-Identifier: Apache-2.0 */
/* A request that changes something is made once: a coordinator that goes away between request and answer
 * is asked again with the same key, for as long as the caller says. The coordinator is played by a child
 * process that takes a request and hangs up. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clients/zctl/source.h"

/* Hangs up `hang_ups` times, then answers with what it saw: in `state` how many requests, in `name`
 * whether all had one key. */
struct played { struct zt_server *server; int hang_ups, requests; bool same; uint8_t key[16]; };

static void on_request(void *arg, struct zt_peer *p, const Zt__Envelope *env) {
    struct played *s = arg;
    struct zt_error err;
    if (env->body_case != ZT__ENVELOPE__BODY_SUBMIT || env->submit->request_key.len != 16) {
        zt_peer_reply_error(p, env->request_id, ZT_EINVAL, "not a submit with its key");
        return;
    }
    if (s->requests++ == 0) {
        memcpy(s->key, env->submit->request_key.data, 16);
        s->same = true;
    }
    s->same = s->same && memcmp(s->key, env->submit->request_key.data, 16) == 0;
    if (s->requests <= s->hang_ups) {
        zt_peer_drop(p);
        return;
    }
    char count[16];
    Zt__SubmitReply r = ZT__SUBMIT_REPLY__INIT;
    Zt__Envelope reply = ZT__ENVELOPE__INIT;
    snprintf(count, sizeof count, "%d", s->requests);
    r.run_id = (char *)"id";
    r.name = (char *)(uintptr_t)(s->same ? "one key" : "several keys");
    r.state = count;
    reply.body_case = ZT__ENVELOPE__BODY_SUBMIT_REPLY;
    reply.submit_reply = &r;
    zt_peer_reply(p, env->request_id, &reply, &err);
}

static pid_t play(int hang_ups, const struct zt_token *token, int *port) {
    int tell[2];
    cr_assert_eq(pipe(tell), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct played s = {.hang_ups = hang_ups};
        struct zt_server_config c = {.host = "127.0.0.1", .token = *token, .epoch = 1, .version = "t", .arg = &s,
                                     .on_request = on_request};
        struct zt_error err;
        uv_loop_t loop;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (uv_loop_init(&loop) || zt_server_open(&loop, &c, &s.server, &err))
            _exit(1);
        *port = zt_server_port(s.server);
        if (write(tell[1], port, sizeof *port) != sizeof *port)
            _exit(1);
        uv_run(&loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    cr_assert_eq(read(tell[0], port, sizeof *port), sizeof *port);
    close(tell[0]);
    close(tell[1]);
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int submit(struct zt_source *s, struct zt_answer *a, struct zt_error *err) {
    static uint8_t key[16] = {1, 2, 3}, yaml[] = "version: 1\n";
    Zt__Submit m = ZT__SUBMIT__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    m.request_key = (ProtobufCBinaryData){sizeof key, key};
    m.run_yaml = (ProtobufCBinaryData){sizeof yaml - 1, yaml};
    m.file = (char *)"run.yaml";
    req.body_case = ZT__ENVELOPE__BODY_SUBMIT;
    req.submit = &m;
    return zt_source_ask_surely(s, &req, a, err);
}

Test(source, a_submit_without_an_answer_is_made_again_with_its_key) {
    struct zt_token token = {.key = {42}};
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err;
    int port;
    pid_t pid = play(2, &token, &port);
    zt_source_at(&s, port, &token, 10);
    cr_assert_eq(submit(&s, &a, &err), 0, "%s", err.msg);
    cr_expect_str_eq(a.env->submit_reply->state, "3");
    cr_expect_str_eq(a.env->submit_reply->name, "one key");
    zt_answer_free(&a);
    zt_source_close(&s);
    end(pid);
}

Test(source, time_is_up_says_that_the_request_may_have_been_taken) {
    struct zt_token token = {.key = {42}};
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err;
    int port;
    pid_t pid = play(1000, &token, &port);
    zt_source_at(&s, port, &token, 10);
    s.deadline = zt_now() + 0.5;
    cr_expect_eq(submit(&s, &a, &err), ZT_ETIMEOUT);
    cr_expect(strstr(err.msg, "zctl list") != NULL, "%s", err.msg);
    zt_source_close(&s);
    end(pid);
}

Test(source, a_coordinator_that_never_was_there_is_not_waited_for, .timeout = 20) {
    struct zt_token token = {.key = {42}};
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err;
    int port;
    end(play(0, &token, &port)); /* a port that nobody listens on any more */
    zt_source_at(&s, port, &token, 10);
    cr_expect_eq(submit(&s, &a, &err), ZT_EUNREACHABLE);
    cr_expect(strstr(err.msg, "zcoord serve") != NULL, "%s", err.msg);
    cr_expect_not(s.reached);
    zt_source_close(&s);
}
