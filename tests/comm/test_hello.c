/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/test_hello.c: connections between ranks of different hosts, one end played by hand
 * from the text of docs/protocol.md: what is let in, what is dropped, and what an impostor is
 * worth. */
#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "engine/comm/tcp.h"

enum { CHALLENGE = 24, ANSWER = 24 + sizeof(struct tcp_who) + 32, VERDICT = 16 + 1024 + 32 };
static uint8_t secret[32] = "a secret of thirty-two bytes...";
#define FAR INT64_C(60000000000)

/* ---- the protocol by hand ---- */

static void mac_of(const uint8_t *key, const char *label, const void *a, size_t an, const void *b,
                   size_t bn, uint8_t *mac) {
    uint8_t text[96] = {0};
    memcpy(text, label, strlen(label));
    EVP_Digest(a, an, text + 32, NULL, EVP_sha256(), NULL);
    EVP_Digest(b, bn, text + 64, NULL, EVP_sha256(), NULL);
    HMAC(EVP_sha256(), key, 32, text, sizeof text, mac, NULL);
}

static int dial(const struct zt_comm_door *d) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)d->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, d->address, &a.sin_addr);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0, "%s", strerror(errno));
    return fd;
}
/* Reads up to n bytes until the other end is done; returns how many came. */
static size_t read_all(int fd, void *p, size_t n) {
    size_t got = 0;
    while (got < n) {
        struct pollfd f = {fd, POLLIN, 0};
        cr_assert_gt(poll(&f, 1, 30000), 0, "nothing comes");
        ssize_t k = recv(fd, (char *)p + got, n - got, 0);
        if (k <= 0) break;
        got += (size_t)k;
    }
    return got;
}

static struct tcp_who guest(void) {
    struct tcp_who w = {.purpose = TCP_JOIN, .world = 2, .from = 1, .to = 0};
    snprintf(w.build, sizeof w.build, "%s", ZT_VERSION);
    snprintf(w.place.host, sizeof w.place.host, "there");
    snprintf(w.place.address, sizeof w.place.address, "127.0.0.3");
    w.place.port = 4711;
    w.place.pid = 42;
    return w;
}

struct forged {
    struct tcp_who who;
    const uint8_t *secret;
    uint32_t magic, version;
    int touch;             /* a byte of the answer changed after its mac was made; -1 = none */
    const uint8_t *replay; /* the whole answer, NULL = made here */
    uint8_t answer[ANSWER], key[32];
};
static struct forged honest(void) {
    return (struct forged){guest(), secret, 0x315a544d, 1, -1, NULL, {0}, {0}};
}

/* Says the answer; returns how many bytes of a verdict came back. */
static size_t knock(const struct zt_comm_door *d, struct forged *f, uint8_t *verdict) {
    uint8_t challenge[CHALLENGE], nonces[32];
    uint32_t head[2] = {f->magic, f->version}, theirs[2];
    int fd = dial(d);
    cr_assert_eq(read_all(fd, challenge, sizeof challenge), sizeof challenge);
    memcpy(theirs, challenge, 8);
    cr_assert(theirs[0] == 0x315a544d && theirs[1] == 1);
    memcpy(f->answer, head, 8);
    for (int i = 8; i < 24; i++) f->answer[i] = (uint8_t)(17 * i);
    memcpy(f->answer + 24, &f->who, sizeof f->who);
    memcpy(nonces, challenge + 8, 16);
    memcpy(nonces + 16, f->answer + 8, 16);
    mac_of(f->secret, "zt-mesh-answer", nonces, 32, &f->who, sizeof f->who,
           f->answer + ANSWER - 32);
    mac_of(f->secret, "zt-mesh-key", nonces, 32, &f->who, sizeof f->who, f->key);
    if (f->touch >= 0) f->answer[f->touch] ^= 1;
    if (send(fd, f->replay ? f->replay : f->answer, ANSWER, MSG_NOSIGNAL) != ANSWER) {
    }
    size_t got = read_all(fd, verdict, VERDICT);
    close(fd);
    return got;
}
static int code_of(const struct forged *f, const uint8_t *verdict) {
    uint8_t mac[32];
    int32_t code;
    mac_of(f->key, "zt-mesh-verdict", NULL, 0, verdict, VERDICT - 32, mac);
    cr_assert_eq(memcmp(mac, verdict + VERDICT - 32, 32), 0, "the verdict proves nothing");
    memcpy(&code, verdict, 4);
    return code;
}

/* ---- the other end: a set that waits for rank 1 ---- */

struct end {
    struct zt_comm_door *door;
    struct tcp_want want;
    pthread_t thread;
    _Atomic int stop;
    int rc;
    struct zt_error err;
};
static int look(void *arg, struct zt_error *err) {
    struct end *e = arg;
    return atomic_load(&e->stop) ? zt_fail(err, ZT_ECANCELLED, "stopped by the test") : 0;
}
static void *end_main(void *arg) {
    struct end *e = arg;
    const struct tcp_set set = {e->door, secret, &e->want, 1, zt_clock_ns() + FAR, look, e};
    e->rc = tcp_connect_set(&set, &e->err);
    return NULL;
}
static void open_end(struct end *e) {
    const struct zt_comm_site here = {"here", "127.0.0.2", 0};
    memset(e, 0, sizeof *e);
    cr_assert_eq(zt_comm_door_open(&here, &e->door, &e->err), 0, "%s", e->err.msg);
    e->want.who = guest();
    memset(&e->want.who.place, 0, sizeof e->want.who.place);
    pthread_create(&e->thread, NULL, end_main, e);
}
static void close_end(struct end *e, bool stop) {
    if (stop) atomic_store(&e->stop, 1);
    pthread_join(e->thread, NULL);
    if (e->want.fd >= 0) close(e->want.fd);
    zt_comm_door_close(e->door);
}

Test(hello, one_of_ours_is_let_in, .timeout = 60) {
    struct end e;
    struct forged f = honest();
    uint8_t verdict[VERDICT];
    open_end(&e);
    cr_assert_eq(knock(e.door, &f, verdict), VERDICT);
    cr_assert_eq(code_of(&f, verdict), 0);
    close_end(&e, false);
    cr_assert_eq(e.rc, 0, "%s", e.err.msg);
    cr_assert(e.want.who.place.pid == 42 && e.want.who.place.port == 4711);
    cr_assert_str_eq(e.want.who.place.host, "there");
    cr_assert_eq(memcmp(e.want.key, f.key, 32), 0);
}

/* Nothing but silence for: a wrong secret, any byte changed on the way, a recording, another
 * version. */
Test(hello, strangers_learn_nothing, .timeout = 120) {
    struct end e;
    struct forged f, good = honest();
    uint8_t verdict[VERDICT], other[32] = "another secret of 32 bytes.....";
    open_end(&e);
    f = honest(), f.secret = other;
    cr_expect_eq(knock(e.door, &f, verdict), 0, "wrong secret");
    for (int at = 0; at < ANSWER; at += at < 24 ? 1 : 7) {
        f = honest(), f.touch = at;
        cr_expect_eq(knock(e.door, &f, verdict), 0, "byte %d", at);
    }
    f = honest(), f.version = 2;
    cr_expect_eq(knock(e.door, &f, verdict), 0, "version");
    f = honest(), f.magic = 0x4d545a31;
    cr_expect_eq(knock(e.door, &f, verdict), 0, "byte order");
    f = good, f.who.tag = 99,
    f.who.purpose = TCP_DATA; /* of ours, but nobody waits for it: told so */
    cr_expect_eq(knock(e.door, &f, verdict), VERDICT);
    cr_expect_eq(code_of(&f, verdict), ZT_EPROTO);
    cr_assert_eq(knock(e.door, &good, verdict), VERDICT);
    cr_expect_eq(code_of(&good, verdict), 0);
    close_end(&e, false);
    cr_expect_eq(e.rc, 0, "%s", e.err.msg);

    open_end(&e); /* the same secret; the recording of what was let in a moment ago */
    f = honest(), f.replay = good.answer;
    cr_expect_eq(knock(e.door, &f, verdict), 0, "replay");
    close_end(&e, true);
    cr_expect_eq(e.rc, ZT_ECANCELLED);
}

Test(hello, one_of_ours_that_is_wrong_is_told, .timeout = 60) {
    const struct {
        int32_t world, from;
        const char *build;
        int code;
        const char *text;
    } t[] = {
        {2, 1, "9.9.9", ZT_EVERSION, "rank 1 runs version 9.9.9"},
        {3, 1, ZT_VERSION, ZT_EINVAL, "came as rank 1 of a world of 3; rank 0 expects 2 ranks"},
        {2, 7, ZT_VERSION, ZT_EINVAL, "came as rank 7 of a world of 2"},
        {2, -1, ZT_VERSION, ZT_EINVAL, "came as rank -1 of a world of 2"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct end e;
        struct forged f = honest();
        uint8_t verdict[VERDICT];
        f.who.world = t[i].world;
        f.who.from = t[i].from;
        memset(f.who.build, 0, sizeof f.who.build);
        snprintf(f.who.build, sizeof f.who.build, "%s", t[i].build);
        open_end(&e);
        cr_assert_eq(knock(e.door, &f, verdict), VERDICT);
        cr_expect_eq(code_of(&f, verdict), t[i].code);
        close_end(&e, false);
        cr_expect_eq(e.rc, t[i].code);
        cr_expect(strstr(e.err.msg, t[i].text) && strstr((char *)verdict + 16, t[i].text), "%s",
                  e.err.msg);
    }
}

/* More silent and talkative strangers than there are places: the one that answers gets in. */
Test(hello, a_crowd_at_the_door, .timeout = 120) {
    enum { CROWD = 300 };
    struct end e;
    struct forged f = honest();
    uint8_t verdict[VERDICT];
    int fd[CROWD];
    signal(SIGPIPE, SIG_IGN);
    open_end(&e);
    for (int i = 0; i < CROWD; i++) {
        static const uint8_t magic[4] = {0x4d, 0x54, 0x5a, 0x31};
        fd[i] = dial(e.door);
        if (i % 3 == 0) (void)!send(fd[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
        if (i % 3 == 1)
            (void)!send(fd[i], magic, 4, MSG_NOSIGNAL); /* a good beginning, then nothing */
    }
    cr_assert_eq(knock(e.door, &f, verdict), VERDICT);
    cr_expect_eq(code_of(&f, verdict), 0);
    for (int i = 0; i < CROWD; i++) close(fd[i]);
    close_end(&e, false);
    cr_expect_eq(e.rc, 0, "%s", e.err.msg);
}

/* ---- impostors at the listening end ---- */

enum trick { HANGS_UP, OTHER_VERSION, NO_PROOF, REFLECTS };
struct impostor {
    int fd;
    enum trick trick;
    _Atomic int calls;
};
static void *impostor_main(void *arg) {
    struct impostor *m = arg;
    for (int fd; (fd = accept(m->fd, NULL, NULL)) >= 0; close(fd)) {
        uint8_t c[CHALLENGE] = {0x4d, 0x54, 0x5a, 0x31, 1}, answer[ANSWER], verdict[VERDICT] = {0};
        atomic_fetch_add(&m->calls, 1);
        if (m->trick == OTHER_VERSION) c[4] = 2;
        (void)!send(fd, c, sizeof c, MSG_NOSIGNAL);
        if (read_all(fd, answer, sizeof answer) != sizeof answer || m->trick == HANGS_UP) continue;
        if (m->trick == REFLECTS) memcpy(verdict + VERDICT - 32, answer + ANSWER - 32, 32);
        (void)!send(fd, verdict, sizeof verdict, MSG_NOSIGNAL);
        read_all(fd, verdict, 1); /* until it is gone */
    }
    return NULL;
}
Test(hello, impostors_are_seen_through, .timeout = 120) {
    const struct {
        enum trick trick;
        int code;
        const char *text;
    } t[] = {{HANGS_UP, ZT_EPEER, "different ids"},
             {OTHER_VERSION, ZT_EVERSION, "not rank 0 of this version (protocol 2, not 1)"},
             {NO_PROOF, ZT_EAUTH, "does not know this world's secret"},
             {REFLECTS, ZT_EAUTH, "does not know this world's secret"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const struct zt_comm_site there = {"there", "127.0.0.3", 0},
                                  here = {"here", "127.0.0.2", 0};
        struct zt_comm_door *theirs, *ours;
        struct zt_error err = {0};
        cr_assert(!zt_comm_door_open(&there, &theirs, &err) &&
                  !zt_comm_door_open(&here, &ours, &err));
        struct impostor m = {.fd = theirs->fd, .trick = t[i].trick};
        struct tcp_place place = {.address = "127.0.0.3", .port = theirs->port};
        struct tcp_want want = {.who = guest(), .to = &place};
        const struct tcp_set set = {ours, secret, &want, 1, zt_clock_ns() + FAR, NULL, NULL};
        pthread_t thread;
        cr_assert_eq(fcntl(theirs->fd, F_SETFL, 0), 0); /* it waits */
        pthread_create(&thread, NULL, impostor_main, &m);
        cr_expect_eq(tcp_connect_set(&set, &err), t[i].code, "%s", err.msg);
        cr_expect(strstr(err.msg, t[i].text), "%s", err.msg);
        cr_expect_eq(want.fd, -1);
        shutdown(theirs->fd, SHUT_RDWR);
        pthread_join(thread, NULL);
        zt_comm_door_close(theirs);
        zt_comm_door_close(ours);
    }
}

/* A door opens on the worker's own address only, and only where the world cannot listen in. */
Test(hello, doors) {
    const char *const refused[] = {"0.0.0.0",      "10.0.0.1", "::",       "localhost",
                                   "127.0.0.1:80", "",         "128.0.0.1"};
    struct zt_comm_door *d;
    struct zt_error err = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct zt_comm_site site = {"h", refused[i], 0};
        cr_expect_eq(zt_comm_door_open(&site, &d, &err), ZT_EINVAL, "%s", refused[i]);
        cr_expect(!d && strstr(err.msg, "encrypted"), "%s", err.msg);
    }
    cr_expect_eq(zt_comm_door_open(&(struct zt_comm_site){NULL, "127.0.0.1", 0}, &d, &err),
                 ZT_EINVAL);
    cr_assert_eq(zt_comm_door_open(&(struct zt_comm_site){"h", "127.0.0.2", 0}, &d, &err), 0, "%s",
                 err.msg);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)d->port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    cr_expect(connect(fd, (struct sockaddr *)&a, sizeof a) == -1 && errno == ECONNREFUSED);
    close(fd);
    zt_comm_door_close(d);
}
