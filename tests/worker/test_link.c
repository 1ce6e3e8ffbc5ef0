/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's channel: questions of several threads at a time, answers in any order, and no wait that outlives
 * the supervisor. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "proto/frame.h"
#include "worker/link.h"

struct end { int fd; struct zt_decoder d; int n; uint64_t id[8]; int64_t step[8]; };

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct end *e = arg;
    (void)err;
    cr_assert_eq(env->body_case, ZT__ENVELOPE__BODY_CKPT_REMOVED);
    e->id[e->n] = env->request_id;
    e->step[e->n++] = env->ckpt_removed->step;
    return 0;
}

static void expect(struct end *e, int n)
{
    struct zt_error err;
    while (e->n < n) {
        uint8_t c;
        cr_assert_eq(read(e->fd, &c, 1), 1);
        cr_assert_eq(zt_decoder_feed(&e->d, &c, 1, on_frame, e, &err), 0, "%s", err.msg);
    }
}

static void put(struct end *e, const Zt__Envelope *env)
{
    uint8_t *p;
    size_t n;
    struct zt_error err;
    cr_assert_eq(zt_frame_pack(env, &p, &n, &err), 0);
    cr_assert_eq(write(e->fd, p, n), (ssize_t)n);
    free(p);
}

/* The answer is the step once more. */
static void answer(struct end *e, int i, Zt__Code code)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Ack ack = ZT__ACK__INIT;
    ack.has_seq = 1;
    ack.seq = (uint64_t)e->step[i];
    env.request_id = e->id[i];
    env.has_reply = env.reply = 1;
    if (code) {
        env.has_code = 1;
        env.code = code;
        env.message = (char *)(uintptr_t)"because";
    } else {
        env.body_case = ZT__ENVELOPE__BODY_ACK;
        env.ack = &ack;
    }
    put(e, &env);
}

static struct zw_link *open_pair(struct end *e)
{
    int pair[2];
    struct zw_link *l;
    struct zt_error err;
    memset(e, 0, sizeof(*e));
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    e->fd = pair[0];
    zt_decoder_init(&e->d, ZT_FRAME_MAX);
    cr_assert_eq(zw_link_open(pair[1], &l, &err), 0);
    return l;
}

struct asking { struct zw_link *l; int64_t step; double seconds; int rc; uint64_t seq; struct zt_error err; pthread_t thread; };

static void *ask(void *arg)
{
    struct asking *a = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__CkptRemoved m = ZT__CKPT_REMOVED__INIT;
    void *arena;
    m.run_id = (char *)(uintptr_t)"r";
    m.step = a->step;
    env.body_case = ZT__ENVELOPE__BODY_CKPT_REMOVED;
    env.ckpt_removed = &m;
    a->rc = zw_link_ask(a->l, &env, a->seconds, &reply, &arena, &a->err);
    if (a->rc == 0) {
        a->seq = reply->ack->seq;
        zt_envelope_free(reply, arena);
    }
    return NULL;
}

static void begin(struct asking *a, struct zw_link *l, int64_t step)
{
    *a = (struct asking){.l = l, .step = step};
    cr_assert_eq(pthread_create(&a->thread, NULL, ask, a), 0);
}

static void end(struct asking *a)
{
    cr_assert_eq(pthread_join(a->thread, NULL), 0);
}

Test(link, answers_in_any_order, .timeout = 60)
{
    struct end e;
    struct asking a[4];
    struct zw_link *l = open_pair(&e);
    for (int i = 0; i < 4; i++) {
        begin(&a[i], l, 10 + i);
    }
    expect(&e, 4);
    for (int i = 3; i >= 0; i--) {
        answer(&e, i, e.step[i] == 12 ? ZT__CODE__STALE_GENERATION : ZT__CODE__OK);
    }
    for (int i = 0; i < 4; i++) {
        end(&a[i]);
        if (i == 2) {
            cr_assert_eq(a[i].rc, ZT_ECONFLICT);
            cr_assert_str_eq(a[i].err.msg, "because");
        } else {
            cr_assert_eq(a[i].rc, 0);
            cr_assert_eq(a[i].seq, 10u + (uint64_t)i);
        }
    }
    zw_link_close(l);
    zt_decoder_free(&e.d);
}

Test(link, a_supervisor_that_is_gone_ends_every_wait, .timeout = 60)
{
    struct end e;
    struct asking a[2];
    struct zw_link *l = open_pair(&e);
    begin(&a[0], l, 1);
    begin(&a[1], l, 2);
    expect(&e, 2);
    close(e.fd);
    for (int i = 0; i < 2; i++) {
        end(&a[i]);
        cr_assert_eq(a[i].rc, ZT_EUNREACHABLE);
    }
    ask(&a[0]); /* and those that come later */
    cr_assert_eq(a[0].rc, ZT_EUNREACHABLE);
    zw_link_close(l);
    zt_decoder_free(&e.d);
}

Test(link, cancel_ends_waits_without_a_limit, .timeout = 60)
{
    struct end e;
    struct asking a;
    struct zw_link *l = open_pair(&e);
    begin(&a, l, 1);
    expect(&e, 1);
    zw_link_cancel(l);
    end(&a);
    cr_assert_eq(a.rc, ZT_ECANCELLED);
    answer(&e, 0, ZT__CODE__OK); /* late: nobody's */
    a.seconds = 0.05;
    ask(&a);
    cr_assert_eq(a.rc, ZT_ETIMEOUT);
    zw_link_close(l);
    zt_decoder_free(&e.d);
}

Test(link, start_and_stop, .timeout = 60)
{
    struct end e;
    const Zt__TrainerStart *got;
    struct zt_error err;
    struct zw_link *l = open_pair(&e);
    cr_assert_eq(zw_link_start(l, 0.02, &got, &err), ZT_ETIMEOUT);
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerStart start = ZT__TRAINER_START__INIT;
    Zt__Assignment assignment = ZT__ASSIGNMENT__INIT;
    Zt__TrainerStop stop = ZT__TRAINER_STOP__INIT;
    assignment.run_name = (char *)(uintptr_t)"n";
    start.assignment = &assignment;
    start.run_id = (char *)(uintptr_t)"01R";
    start.device = (char *)(uintptr_t)"cpu";
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_START;
    env.trainer_start = &start;
    put(&e, &env);
    cr_assert_eq(zw_link_start(l, 60, &got, &err), 0);
    cr_assert_str_eq(got->run_id, "01R");
    cr_assert_not(zw_link_stopping(l));
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STOP;
    env.trainer_stop = &stop;
    put(&e, &env);
    while (!zw_link_stopping(l)) { /* the test's own limit ends this */
        usleep(1000);
    }
    zw_link_close(l);
    zt_decoder_free(&e.d);
}

/* What was queued arrives, although it is closed at once. */
Test(link, close_sends_what_is_queued, .timeout = 60)
{
    struct end e;
    struct zt_error err;
    struct zw_link *l = open_pair(&e);
    for (int i = 0; i < 8; i++) {
        Zt__Envelope env = ZT__ENVELOPE__INIT;
        Zt__CkptRemoved m = ZT__CKPT_REMOVED__INIT;
        m.run_id = (char *)(uintptr_t)"r";
        m.step = i;
        env.body_case = ZT__ENVELOPE__BODY_CKPT_REMOVED;
        env.ckpt_removed = &m;
        cr_assert_eq(zw_link_post(l, &env, &err), 0);
    }
    zw_link_close(l);
    expect(&e, 8);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(e.step[i], i);
    }
    zt_decoder_free(&e.d);
}
