/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/tcp_watch.c: what ranks of different hosts tell each other beside data: over one
 * watch connection for every such pair, whose end is also the sign of a death. Whoever waits looks
 * here between two slices of its wait.
 *
 * A process that dies closes its sockets: all others see it at once. A host or a link that is gone
 * says nothing: the kernel asks on an idle connection, and after SILENCE_S without an answer it is
 * as good as dead. The kernel answers for a process that is stopped or computes, so that is no
 * death; a data connection has no such limit, since a full buffer there only means that its reader
 * is late.
 *
 * Ownership and thread rule: tcp.h. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "engine/comm/tcp.h"

enum { SILENCE_S = 10, ASK_S = 2 };
enum { N_WAITS = 1, N_LEFT, N_FAILED };

bool tcp_is_near(const struct tcp_world *w, int rank) {
    return strcmp(w->place[rank].host, w->place[w->rank].host) == 0;
}

void tcp_watch_socket(int fd) {
    const int on = 1, ask = ASK_S, times = SILENCE_S / ASK_S - 1, ms = SILENCE_S * 1000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &ask, sizeof ask);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &ask, sizeof ask);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

/* ---- saying ---- */

/* Never waits: notes are few and short, and a peer that does not read them can do without. */
static void say(struct tcp_peer *p, const struct tcp_note_head *h, const char *text) {
    uint8_t note[sizeof *h + TCP_TEXT];
    size_t n = sizeof *h + h->length;
    if (p->watch < 0 || p->mute || atomic_load(&p->state) != TCP_HERE) return;
    memcpy(note, h, sizeof *h);
    if (h->length) memcpy(note + sizeof *h, text, h->length);
    ssize_t k = send(p->watch, note, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0 && (size_t)k < n) p->mute = true;
}

static void say_all(struct tcp_world *w, const struct tcp_note_head *h, const char *text) {
    for (int r = 0; r < w->world; r++) say(&w->peer[r], h, text);
}

void tcp_say_waiting(struct tcp_world *w, int rank) {
    struct tcp_note_head h = {.kind = N_WAITS, .rank = rank};
    pthread_mutex_lock(&w->lock);
    say_all(w, &h, NULL);
    pthread_mutex_unlock(&w->lock);
}

void tcp_say_leaving(struct tcp_world *w) {
    struct tcp_note_head h = {.kind = N_LEFT};
    pthread_mutex_lock(&w->lock);
    say_all(w, &h, NULL);
    pthread_mutex_unlock(&w->lock);
}

void tcp_tell_failure(struct tcp_world *w) {
    const struct shm_control *k = w->near->control;
    if (atomic_load(&k->failed) != 2) return; /* somebody writes it down, and will tell */
    pthread_mutex_lock(&w->lock);
    if (!w->told) {
        struct tcp_note_head h = {.kind = N_FAILED, .code = k->code, .rank = k->rank};
        h.length = (uint32_t)strnlen(k->text, TCP_TEXT - 1);
        say_all(w, &h, k->text);
        w->told = true;
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- hearing ---- */

static bool take_note(struct tcp_world *w, struct tcp_peer *p, const struct tcp_note_head *h,
                      const uint8_t *text) {
    char copy[TCP_TEXT];
    switch (h->kind) {
    case N_WAITS:
        atomic_store(&p->waits_for, (uint32_t)(h->rank + 1));
        return true;
    case N_LEFT:
        atomic_store(&p->state, TCP_LEFT);
        return true;
    case N_FAILED:
        memcpy(copy, text, h->length);
        copy[h->length] = 0;
        if (h->code >= 0 || h->rank < -1 || h->rank >= w->world) return false;
        shm_record(w->near, h->code, h->rank, copy);
        return true;
    default:
        return false;
    }
}

/* What has come from this peer. */
static void hear(struct tcp_world *w, struct tcp_peer *p) {
    struct tcp_note_head h;
    int state = TCP_GONE;
    for (;;) {
        size_t whole = sizeof h;
        if (p->have >= sizeof h) {
            memcpy(&h, p->in, sizeof h);
            whole += h.length;
        }
        if (whole > sizeof p->in - 1) break; /* no note of ours */
        if (p->have >= sizeof h && p->have == whole) {
            p->have = 0;
            if (!take_note(w, p, &h, p->in + sizeof h)) break;
            continue;
        }
        ssize_t k = recv(p->watch, p->in + p->have, whole - p->have, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (k < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH)) state = TCP_SILENT;
        if (k <= 0) break;
        p->have += (size_t)k;
    }
    close(p->watch);
    p->watch = -1;
    if (atomic_load(&p->state) == TCP_HERE) atomic_store(&p->state, state);
}

static void hear_all(struct tcp_world *w) {
    struct pollfd fds[ZT_COMM_MAX_RANKS];
    int who[ZT_COMM_MAX_RANKS], n = 0;
    for (int r = 0; r < w->world; r++)
        if (w->peer[r].watch >= 0) {
            fds[n] = (struct pollfd){.fd = w->peer[r].watch, .events = POLLIN};
            who[n++] = r;
        }
    if (poll(fds, (nfds_t)n, 0) <= 0) return;
    for (int i = 0; i < n; i++)
        if (fds[i].revents) hear(w, &w->peer[who[i]]);
}

int tcp_look(struct tcp_world *w, struct zt_comm *c, struct zt_error *err) {
    char what[160];
    pthread_mutex_lock(&w->lock);
    hear_all(w);
    pthread_mutex_unlock(&w->lock);
    if (shm_failed(w->near))
        return shm_fail_recorded(c, err); /* the cause, before its consequences */
    for (int r = 0; r < w->world; r++) {
        int state = atomic_load(&w->peer[r].state);
        shm_describe(c, what, sizeof what);
        if (state == TCP_GONE)
            return shm_fail_first(c, ZT_EPEER, r, err,
                                  "rank %d (pid %d) died; rank %d noticed in %s; the cause is in "
                                  "the end of rank %d's log",
                                  r, w->place[r].pid, c->world_rank, what, r);
        if (state == TCP_SILENT)
            return shm_fail_first(c, ZT_EPEER, r, err,
                                  "rank %d (pid %d) has not answered for %d s: its host %s (%s) or "
                                  "the way there is gone; "
                                  "rank %d noticed in %s",
                                  r, w->place[r].pid, SILENCE_S, w->place[r].host,
                                  w->place[r].address, c->world_rank, what);
    }
    return 0;
}

bool tcp_left(struct tcp_world *w, int rank) {
    return atomic_load(&w->peer[rank].state) == TCP_LEFT;
}

uint32_t tcp_waits_for(struct tcp_world *w, int rank) {
    return atomic_load(&w->peer[rank].waits_for);
}
