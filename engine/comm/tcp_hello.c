/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/tcp_hello.c: the door, and connections between ranks of different hosts.
 *
 *     the one that connects                     the one at whose door it knocks
 *       <------------------------- CHALLENGE      magic, version, nonce
 *       ANSWER ------------------------->         challenge of its own; who it is and for what; MAC
 *       <--------------------------- VERDICT      0, or why not; MAC
 *
 * Both MACs are HMAC-SHA256 with the world's secret over both nonces and all that was said, under a
 * label of their own: a recording is worth nothing, and no end can be made to answer its own
 * challenge. Messages have a fixed length, so nobody can make the other read more. A stranger is
 * dropped without a word: it costs a place among MAX_GUESTS for at most GUEST_NS, and when all are
 * taken the oldest goes, since one of ours answers at once. One of ours that was pushed out comes
 * again.
 *
 * Ownership and thread rule: tcp.h. */
#include "engine/comm/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "core/sys.h"

#define MAGIC UINT32_C(0x315a544d) /* on a machine of another byte order it is another one */
#define VERSION 1
#define BACKLOG 128
#define MAX_GUESTS 128
#define ACCEPTS 64 /* at a time, so that a flood leaves time for those who answer */
#define GUEST_NS INT64_C(5000000000)
#define MAX_HANG_UPS 20
#define PAUSE_NS INT64_C(1000000)
#define MAX_PAUSE_NS INT64_C(50000000)

struct challenge {
    uint32_t magic, version;
    uint8_t nonce[TCP_NONCE];
};
struct answer {
    struct challenge own;
    struct tcp_who who;
    uint8_t mac[TCP_MAC];
};
struct verdict {
    int32_t code, unused;
    int64_t left_ns;
    char text[TCP_TEXT];
    uint8_t mac[TCP_MAC];
};

/* ---- the door ---- */

static int parse_address(const char *text, int port, struct sockaddr_storage *a, socklen_t *n) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)a;
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *n = sizeof *v4;
        return 0;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *n = sizeof *v6;
        return 0;
    }
    return -1;
}

bool zt_comm_address_allowed(const char *text) {
    struct sockaddr_storage a;
    socklen_t n;
    if (!text || parse_address(text, 0, &a, &n)) return false;
    if (a.ss_family == AF_INET)
        return ntohl(((struct sockaddr_in *)&a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&a)->sin6_addr);
}

static int new_socket(int family, int socket_bytes) {
    const int on = 1;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (socket_bytes > 0) { /* before connect and listen: the window's scale hangs on it */
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_bytes, sizeof socket_bytes);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &socket_bytes, sizeof socket_bytes);
    }
    return fd;
}

int zt_comm_door_open(const struct zt_comm_site *site, struct zt_comm_door **out,
                      struct zt_error *err) {
    struct sockaddr_storage a;
    socklen_t n;
    *out = NULL;
    if (!site->host || !site->host[0] || strlen(site->host) >= TCP_HOST)
        return zt_fail(err, ZT_EINVAL, "communicator: the name of this host has 1 to %d letters",
                       TCP_HOST - 1);
    if (!zt_comm_address_allowed(site->address))
        return zt_fail(
            err, ZT_EINVAL,
            "communicator: the address \"%.63s\" of this worker is not a numeric loopback "
            "address; others are refused until connections between hosts are encrypted",
            site->address ? site->address : "");
    struct zt_comm_door *d = calloc(1, sizeof *d);
    if (!d) return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    parse_address(site->address, 0, &a, &n);
    snprintf(d->host, sizeof d->host, "%s", site->host);
    snprintf(d->address, sizeof d->address, "%s", site->address);
    d->socket_bytes = site->socket_bytes;
    d->fd = new_socket(a.ss_family, site->socket_bytes);
    if (d->fd < 0 || bind(d->fd, (struct sockaddr *)&a, n) || listen(d->fd, BACKLOG) ||
        getsockname(d->fd, (struct sockaddr *)&a, &n)) {
        int e = errno;
        zt_comm_door_close(d);
        return zt_fail(err, ZT_EIO,
                       "communicator: cannot listen on %s: %s; --address of the worker must be an "
                       "address of its host",
                       site->address, strerror(e));
    }
    d->port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                           : ((struct sockaddr_in6 *)&a)->sin6_port);
    *out = d;
    return 0;
}

void zt_comm_door_close(struct zt_comm_door *d) {
    if (!d) return;
    if (d->fd >= 0) close(d->fd);
    free(d);
}

/* ---- short messages ---- */

void tcp_mac(const uint8_t *key, const char *label, const void *a, size_t an, const void *b,
             size_t bn, uint8_t mac[TCP_MAC]) {
    uint8_t text[32 + 2 * TCP_MAC] = {0};
    unsigned n = TCP_MAC;
    ZT_ASSERT(strlen(label) < 32);
    memcpy(text, label, strlen(label));
    bool ok = EVP_Digest(a, an, text + 32, NULL, EVP_sha256(), NULL) &&
              EVP_Digest(b, bn, text + 32 + TCP_MAC, NULL, EVP_sha256(), NULL) &&
              HMAC(EVP_sha256(), key, 32, text, sizeof text, mac, &n);
    ZT_ASSERT(ok && n == TCP_MAC);
}

static int wait_fd(int fd, short events, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - zt_clock_ns();
        if (left <= 0) return -ETIMEDOUT;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, left > 100000000 ? 100 : (int)(left / 1000000) + 1);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return -errno;
    }
}

int tcp_send_all(int fd, const void *p, size_t n, int64_t deadline) {
    const char *at = p;
    while (n) {
        ssize_t k = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else if (errno == EAGAIN) {
            int rc = wait_fd(fd, POLLOUT, deadline);
            if (rc) return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

int tcp_recv_all(int fd, void *p, size_t n, int64_t deadline) {
    char *at = p;
    while (n) {
        ssize_t k = recv(fd, at, n, MSG_DONTWAIT);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else if (k == 0) {
            return -EPIPE;
        } else if (errno == EAGAIN) {
            int rc = wait_fd(fd, POLLIN, deadline);
            if (rc) return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* ---- the two proofs ---- */

struct nonces {
    uint8_t door[TCP_NONCE], guest[TCP_NONCE];
};

static void mac_answer(const uint8_t *secret, const struct nonces *n, const struct tcp_who *who,
                       uint8_t mac[TCP_MAC]) {
    tcp_mac(secret, "zt-mesh-answer", n, sizeof *n, who, sizeof *who, mac);
}
/* The key of a connection is never sent. */
static void make_key(const uint8_t *secret, const struct nonces *n, const struct tcp_who *who,
                     uint8_t key[TCP_MAC]) {
    tcp_mac(secret, "zt-mesh-key", n, sizeof *n, who, sizeof *who, key);
}
static void mac_verdict(const uint8_t *key, const struct verdict *v, uint8_t mac[TCP_MAC]) {
    tcp_mac(key, "zt-mesh-verdict", NULL, 0, v, offsetof(struct verdict, mac), mac);
}

static int random_bytes(void *p, size_t n, struct zt_error *err) {
    int rc = zt_sys_posix.random(zt_sys_posix.arg, p, n);
    return rc ? zt_fail(err, ZT_EIO, "no random bytes from the kernel: %s", strerror(-rc)) : 0;
}

/* ---- those who come ---- */

struct guest {
    int fd;
    int64_t until;
    struct nonces nonces;
    size_t have;
    struct answer answer;
};
/* Those who connect: one for each want with a `to`. */
struct caller {
    int fd, hang_ups;
    bool answered;
    int64_t next, pause;
    struct nonces nonces;
    size_t have;
    union {
        struct challenge challenge;
        struct verdict verdict;
    } in;
    struct answer answer;
};
struct making {
    const struct tcp_set *set;
    struct guest *guest;
    struct caller *caller;
    struct pollfd *fds;
    int n_guests;
};

static void drop_guest(struct making *m, int i) {
    if (m->guest[i].fd >= 0) close(m->guest[i].fd);
    m->n_guests--;
    memmove(m->guest + i, m->guest + i + 1, (size_t)(m->n_guests - i) * sizeof *m->guest);
}

static void accept_guests(struct making *m) {
    for (int i = 0; i < ACCEPTS; i++) {
        struct challenge c = {.magic = MAGIC, .version = VERSION};
        int fd = accept4(m->set->door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        const int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (random_bytes(c.nonce, sizeof c.nonce, NULL) ||
            send(fd, &c, sizeof c, MSG_NOSIGNAL) != (ssize_t)sizeof c) {
            close(fd);
            continue;
        }
        if (m->n_guests == MAX_GUESTS) drop_guest(m, 0);
        struct guest *g = &m->guest[m->n_guests++];
        memset(g, 0, sizeof *g);
        g->fd = fd;
        g->until = zt_clock_ns() + GUEST_NS;
        memcpy(g->nonces.door, c.nonce, sizeof c.nonce);
    }
}

/* Does this connection exist in the set? What is wrong with it is worth an error: it is one of
 * ours. */
static int find_want(const struct tcp_set *s, const struct tcp_who *who, struct tcp_want **out,
                     struct zt_error *err) {
    const struct tcp_who *any = &s->want[0].who;
    *out = NULL;
    if (strncmp(who->build, ZT_VERSION, sizeof who->build))
        return zt_fail(err, ZT_EVERSION,
                       "rank %d runs version %.15s, rank %d runs %s; use one version", who->from,
                       who->build, who->to, ZT_VERSION);
    if (who->purpose == TCP_JOIN &&
        (who->world != any->world || who->from < 1 || who->from >= any->world))
        return zt_fail(
            err, ZT_EINVAL,
            "a process (pid %d) came as rank %d of a world of %d; rank 0 expects %d ranks",
            who->place.pid, who->from, who->world, any->world);
    for (int i = 0; i < s->n; i++) {
        struct tcp_want *w = &s->want[i];
        if (w->to || w->who.purpose != who->purpose || w->who.from != who->from ||
            w->who.to != who->to || w->who.tag != who->tag || w->who.world != who->world)
            continue;
        if (w->fd >= 0 && w->who.purpose == TCP_JOIN && w->who.place.pid != who->place.pid)
            return zt_fail(err, ZT_ECONFLICT, "two processes came as rank %d: pid %d and pid %d",
                           who->from, w->who.place.pid, who->place.pid);
        *out = w;
        return 0;
    }
    return 0;
}

/* The whole answer is in. 0: taken, or it was a stranger; else the set fails. The socket is used
 * up. */
static int judge_guest(struct making *m, struct guest *g, struct zt_error *err) {
    const struct tcp_set *s = m->set;
    struct verdict v = {.left_ns = s->deadline - zt_clock_ns()};
    struct tcp_want *want;
    uint8_t mac[TCP_MAC], key[TCP_MAC];
    int fd = g->fd, rc = 0;
    g->fd = -1;
    memcpy(g->nonces.guest, g->answer.own.nonce, TCP_NONCE);
    mac_answer(s->secret, &g->nonces, &g->answer.who, mac);
    if (g->answer.own.magic != MAGIC || g->answer.own.version != VERSION ||
        CRYPTO_memcmp(mac, g->answer.mac, TCP_MAC)) {
        close(fd);
        return 0;
    }
    make_key(s->secret, &g->nonces, &g->answer.who, key);
    rc = find_want(s, &g->answer.who, &want, err);
    if (rc) {
        v.code = rc;
        snprintf(v.text, sizeof v.text, "%.1000s", err->msg);
    } else if (!want) {
        v.code = ZT_EPROTO;
        snprintf(v.text, sizeof v.text, "rank %d does not expect this connection of rank %d now",
                 g->answer.who.to, g->answer.who.from);
    }
    mac_verdict(key, &v, v.mac);
    bool sent = send(fd, &v, sizeof v, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof v;
    if (rc || !want || !sent) {
        close(fd);
        return rc;
    }
    if (want->fd >= 0) close(want->fd); /* it did not see our verdict and came again */
    want->fd = fd;
    want->who.place = g->answer.who.place;
    want->who.place.host[TCP_HOST - 1] = want->who.place.address[TCP_ADDRESS - 1] = 0;
    memcpy(want->key, key, sizeof key);
    return 0;
}

static int hear_guests(struct making *m, struct zt_error *err) {
    int64_t now = zt_clock_ns();
    int rc = 0;
    for (int i = 0; i < m->n_guests && !rc;) {
        struct guest *g = &m->guest[i];
        char *at = (char *)&g->answer + g->have;
        ssize_t k = recv(g->fd, at, sizeof g->answer - g->have, MSG_DONTWAIT);
        bool gone = k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR);
        if (k > 0) g->have += (size_t)k;
        if (g->have >= sizeof g->answer.own.magic && g->answer.own.magic != MAGIC) gone = true;
        if (g->have == sizeof g->answer) rc = judge_guest(m, g, err);
        if (gone || g->fd < 0 || now > g->until)
            drop_guest(m, i);
        else
            i++;
    }
    return rc;
}

/* ---- those who connect ---- */

static void hang_up(struct caller *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->pause = !c->pause ? PAUSE_NS : c->pause < MAX_PAUSE_NS ? 2 * c->pause : MAX_PAUSE_NS;
    c->next = zt_clock_ns() + c->pause;
}

static int begin_call(const struct tcp_set *s, const struct tcp_want *w, struct caller *c,
                      struct zt_error *err) {
    struct sockaddr_storage to, own;
    socklen_t n, own_n;
    const int on = 1;
    if (parse_address(w->to->address, w->to->port, &to, &n) ||
        !zt_comm_address_allowed(w->to->address))
        return zt_fail(err, ZT_EPROTO, "the address \"%.63s\" of rank %d is not one to connect to",
                       w->to->address, w->who.to);
    if (parse_address(s->door->address, 0, &own, &own_n) || own.ss_family != to.ss_family)
        return zt_fail(
            err, ZT_EINVAL,
            "rank %d has address %s and rank %d has %s: give all workers --address of one "
            "kind, IPv4 or IPv6",
            w->who.from, s->door->address, w->who.to, w->to->address);
    c->answered = false;
    c->have = 0;
    c->fd = new_socket(to.ss_family, s->door->socket_bytes);
    if (c->fd < 0) return zt_fail(err, ZT_EIO, "communicator: socket: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(c->fd, (struct sockaddr *)&own, own_n) ||
        (connect(c->fd, (struct sockaddr *)&to, n) && errno != EINPROGRESS))
        hang_up(c);
    return 0;
}

static int send_answer(const struct tcp_set *s, const struct tcp_want *w, struct caller *c,
                       struct zt_error *err) {
    const struct challenge *in = &c->in.challenge;
    struct answer *a = &c->answer;
    if (in->magic != MAGIC || in->version != VERSION)
        return zt_fail(err, ZT_EVERSION,
                       "what listens at %s:%d is not rank %d of this version (protocol %u, not %d)",
                       w->to->address, w->to->port, w->who.to, in->magic == MAGIC ? in->version : 0,
                       VERSION);
    memset(a, 0, sizeof *a);
    a->own.magic = MAGIC;
    a->own.version = VERSION;
    a->who = w->who;
    int rc = random_bytes(a->own.nonce, TCP_NONCE, err);
    if (rc) return rc;
    memcpy(c->nonces.door, in->nonce, TCP_NONCE);
    memcpy(c->nonces.guest, a->own.nonce, TCP_NONCE);
    mac_answer(s->secret, &c->nonces, &a->who, a->mac);
    c->have = 0;
    c->answered = true; /* it fits into the buffer of a fresh socket */
    if (send(c->fd, a, sizeof *a, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *a) hang_up(c);
    return 0;
}

static int take_verdict(const struct tcp_set *s, struct tcp_want *w, struct caller *c,
                        struct zt_error *err) {
    struct verdict *v = &c->in.verdict;
    uint8_t mac[TCP_MAC];
    make_key(s->secret, &c->nonces, &w->who, w->key);
    mac_verdict(w->key, v, mac);
    if (CRYPTO_memcmp(mac, v->mac, TCP_MAC))
        return zt_fail(err, ZT_EAUTH, "what listens at %s:%d does not know this world's secret",
                       w->to->address, w->to->port);
    v->text[TCP_TEXT - 1] = 0;
    if (v->code == ZT_EPROTO) { /* not now: it may still be busy with the set before */
        hang_up(c);
        return 0;
    }
    if (v->code) return zt_fail(err, v->code, "%s", v->text);
    w->fd = c->fd;
    w->left_ns = v->left_ns;
    c->fd = -1;
    return 0;
}

static int hear_call(const struct tcp_set *s, struct tcp_want *w, struct caller *c,
                     struct zt_error *err) {
    for (;;) {
        size_t whole = c->answered ? sizeof c->in.verdict : sizeof c->in.challenge;
        ssize_t k = recv(c->fd, (char *)&c->in + c->have, whole - c->have, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (k <= 0) {
            if (c->answered && ++c->hang_ups >= MAX_HANG_UPS)
                return zt_fail(
                    err, ZT_EPEER,
                    "rank %d hung up on rank %d while the ranks were meeting: it died, or "
                    "the two have different ids",
                    w->who.to, w->who.from);
            hang_up(c);
            return 0;
        }
        c->have += (size_t)k;
        if (c->have < whole) continue;
        if (c->answered) return take_verdict(s, w, c, err);
        int rc = send_answer(s, w, c, err);
        if (rc || c->fd < 0) return rc;
    }
}

/* ---- the set ---- */

static int wait_for_news(struct making *m) {
    const struct tcp_set *s = m->set;
    int64_t now = zt_clock_ns(), until = now + TCP_SLICE_MS * INT64_C(1000000);
    nfds_t n = 0;
    m->fds[n++] = (struct pollfd){.fd = s->door->fd, .events = POLLIN};
    for (int i = 0; i < m->n_guests; i++)
        m->fds[n++] = (struct pollfd){.fd = m->guest[i].fd, .events = POLLIN};
    for (int i = 0; i < s->n; i++) {
        const struct caller *c = &m->caller[i];
        if (!s->want[i].to || s->want[i].fd >= 0) continue;
        if (c->fd >= 0)
            m->fds[n++] = (struct pollfd){.fd = c->fd, .events = POLLIN};
        else if (c->next < until)
            until = c->next > now ? c->next : now;
    }
    if (s->deadline < until) until = s->deadline;
    int ms = until <= now ? 0 : (int)((until - now + 999999) / 1000000);
    return poll(m->fds, n, ms) < 0 && errno != EINTR ? -errno : 0;
}

static int step(struct making *m, struct zt_error *err) {
    const struct tcp_set *s = m->set;
    accept_guests(m);
    int rc = hear_guests(m, err);
    for (int i = 0; i < s->n && !rc; i++) {
        struct tcp_want *w = &s->want[i];
        struct caller *c = &m->caller[i];
        if (!w->to || w->fd >= 0) continue;
        if (c->fd < 0 && zt_clock_ns() >= c->next) rc = begin_call(s, w, c, err);
        if (!rc && c->fd >= 0) rc = hear_call(s, w, c, err);
    }
    return rc;
}

static int missing(const struct tcp_set *s) {
    int n = 0;
    for (int i = 0; i < s->n; i++) n += s->want[i].fd < 0;
    return n;
}

int tcp_connect_set(const struct tcp_set *s, struct zt_error *err) {
    struct making m = {.set = s};
    int rc = 0;
    m.guest = calloc(MAX_GUESTS, sizeof *m.guest);
    m.caller = calloc((size_t)s->n + 1, sizeof *m.caller);
    m.fds = calloc((size_t)s->n + MAX_GUESTS + 1, sizeof *m.fds);
    if (!m.guest || !m.caller || !m.fds) {
        rc = zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
        goto out;
    }
    for (int i = 0; i < s->n; i++) m.caller[i].fd = s->want[i].fd = -1;
    while (missing(s)) {
        rc = step(&m, err);
        if (rc || !missing(s)) break;
        if (s->look) rc = s->look(s->arg, err);
        if (!rc && zt_clock_ns() >= s->deadline)
            rc = zt_fail(err, ZT_ETIMEOUT,
                         "%d connections to other hosts did not come about in time", missing(s));
        if (rc) break;
        rc = wait_for_news(&m);
        if (rc) rc = zt_fail(err, ZT_EIO, "communicator: poll: %s", strerror(-rc));
    }
out:
    for (int i = 0; i < m.n_guests; i++) close(m.guest[i].fd);
    for (int i = 0; m.caller && i < s->n; i++)
        if (m.caller[i].fd >= 0) close(m.caller[i].fd);
    free(m.guest);
    free(m.caller);
    free(m.fds);
    return rc;
}
