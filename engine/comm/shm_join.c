/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/shm_join.c: how the ranks of one host meet: all of a world, or those of one host of
 * several. The lowest of them, rank 0 if it is here, leads.
 *
 * The id holds the name of an abstract unix socket and a secret, both random. The leader listens
 * there, the others connect (SOCK_SEQPACKET: a message is whole or absent):
 *
 *     leader                                   rank r
 *       NONCE ---------------------------------->        both check that the peer runs as the same
 *       <---------- HELLO + memory, life pipe ---        user; HELLO and WELCOME carry an HMAC with
 *       WELCOME -------------------------------->        the secret over both nonces
 *       (all are there)
 *       MEMBER(i) + memory, life pipe of i ----->  for every other rank i
 *       CONTROL + control memory --------------->
 *       <=== first barrier in the control memory ===>
 *     or FAILED(code, text) at any time
 *
 * Strangers are dropped without a word and cost nothing but their connection. The sockets are
 * closed when all have met; from then on the life pipes tell who is alive.
 *
 * Thread rule: the trainer thread. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "core/sys.h"
#include "engine/comm/shm.h"

#define SPINS 100
#define MAX_STRANGERS 32
#define ATTEMPTS 2
#define VERDICT_NS INT64_C(1000000000)
#define LOOK_NS INT64_C(50000000)
enum { TAG = 32, NONCE = 16, MAX_FDS = 2 };

enum message_kind { M_NONCE = 1, M_HELLO, M_WELCOME, M_MEMBER, M_CONTROL, M_FAILED };
struct message {
    uint32_t kind, version;
    int32_t world, rank, pid, code;
    uint64_t bytes;  /* of the device memory or the control memory */
    int64_t left_ns; /* WELCOME: how long the leader will wait for the others */
    uint8_t nonce[NONCE], tag[TAG];
    char build[16]; /* version of the program */
    char text[1024];
};
#define MESSAGE_VERSION 1

struct guest {
    int fd;
    uint8_t nonce[NONCE];
};
struct join {
    const struct shm_id *id;
    struct zt_comm *c; /* of the ranks on this host */
    const struct shm_watch *watch;
    int leader;
    struct shm_world *w;
    int64_t deadline, began;
    int listener;
    struct guest strangers[MAX_STRANGERS];
    int n_strangers;
    int *member;    /* the leader: connection of every rank, -1 */
    int *memory_fd; /* the leader: to be handed on */
    int32_t *pid;
    int own_life_read;
};

/* ---- messages ---- */

static void set_fds(struct msghdr *h, void *room, const int *fds, int n) {
    size_t bytes = (size_t)n * sizeof(int);
    h->msg_control = room;
    h->msg_controllen = CMSG_SPACE(bytes);
    memset(room, 0, h->msg_controllen);
    struct cmsghdr *cm = CMSG_FIRSTHDR(h);
    cm->cmsg_level = SOL_SOCKET;
    cm->cmsg_type = SCM_RIGHTS;
    cm->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(cm), fds, bytes);
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

/* 0 or -errno */
static int send_message(int fd, const struct message *m, const int *fds, int n, int64_t deadline) {
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(MAX_FDS * sizeof(int))];
    struct iovec io = {(void *)(uintptr_t)m, sizeof *m};
    struct msghdr h = {.msg_iov = &io, .msg_iovlen = 1};
    if (n) set_fds(&h, room, fds, n);
    for (;;) {
        ssize_t sent = sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)sizeof *m) return 0;
        if (sent >= 0) return -EMSGSIZE;
        if (errno == EINTR) continue;
        if (errno == ETOOMANYREFS) { /* descriptors in flight; the receivers take them out */
            struct timespec ms = {0, 1000000};
            if (zt_clock_ns() >= deadline) return -ETIMEDOUT;
            nanosleep(&ms, NULL);
            continue;
        }
        if (errno != EAGAIN && errno != ENOBUFS) return -errno;
        int rc = wait_fd(fd, POLLOUT, deadline);
        if (rc) return rc;
    }
}

/* Exactly n descriptors must come along. 0, -EPIPE when the peer is gone, -EAGAIN when nothing is
 * there, -EPROTO for what is not a message of ours; no descriptor stays open unless 0. */
static int take_message(int fd, struct message *m, int *fds, int n) {
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(8 * sizeof(int))];
    struct iovec io = {m, sizeof *m};
    struct msghdr h = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int got[8], count = 0;
    ssize_t bytes;
    do bytes = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0) return errno == ECONNRESET ? -EPIPE : -errno;
    for (struct cmsghdr *cm = CMSG_FIRSTHDR(&h); cm; cm = CMSG_NXTHDR(&h, cm)) {
        if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) continue;
        int k = (int)((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < k; i++) {
            int one;
            memcpy(&one, CMSG_DATA(cm) + (size_t)i * sizeof one, sizeof one);
            if (count < 8)
                got[count++] = one;
            else
                close(one);
        }
    }
    int rc = bytes == 0 ? -EPIPE : 0;
    if (!rc && (bytes != (ssize_t)sizeof *m || h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        rc = -EPROTO;
    if (!rc && m->kind != M_FAILED && count != n) rc = -EPROTO;
    if (rc || m->kind == M_FAILED)
        for (int i = 0; i < count; i++) close(got[i]);
    else if (n)
        memcpy(fds, got, (size_t)n * sizeof *got);
    if (!rc) m->text[sizeof m->text - 1] = m->build[sizeof m->build - 1] = 0;
    return rc;
}

static void tag_message(const struct join *j, const char *who, const uint8_t *nonce_a,
                        const uint8_t *nonce_b, const struct message *m, uint8_t tag[TAG]) {
    uint8_t text[8 + 2 * NONCE + 2 * sizeof(int32_t) + sizeof(uint64_t)] = {0};
    unsigned n = TAG;
    size_t at = 8;
    memcpy(text, who, strlen(who));
    memcpy(text + at, nonce_a, NONCE), at += NONCE;
    memcpy(text + at, nonce_b, NONCE), at += NONCE;
    memcpy(text + at, &m->world, sizeof m->world), at += sizeof m->world;
    memcpy(text + at, &m->rank, sizeof m->rank), at += sizeof m->rank;
    memcpy(text + at, &m->bytes, sizeof m->bytes);
    if (!HMAC(EVP_sha256(), j->id->secret, (int)sizeof j->id->secret, text, sizeof text, tag, &n))
        memset(tag, 0, TAG);
}

static bool same_user(int fd) {
    struct ucred u;
    socklen_t n = sizeof u;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &n) == 0 && u.uid == geteuid();
}

static socklen_t meeting_point(const struct shm_id *id, struct sockaddr_un *a) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX; /* sun_path[0] = 0: abstract, no file */
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "ztrain-");
    for (size_t i = 0; i < sizeof id->name; i++)
        n += snprintf(a->sun_path + 1 + n, sizeof a->sun_path - 1 - (size_t)n, "%02x", id->name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* ---- shared memory ---- */

static int map_fd(int fd, size_t bytes, unsigned char **out, struct zt_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < bytes || bytes == 0)
        return zt_fail(err, ZT_EPROTO, "the memory that came over the socket is not %zu bytes long",
                       bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return zt_fail(err, ZT_ENOMEM, "a peer's memory of %zu bytes cannot be mapped: %s", bytes,
                       strerror(errno));
    madvise(p, bytes, MADV_DONTDUMP);
    *out = p;
    return 0;
}

static int make_control(struct join *j, struct zt_error *err) {
    struct shm_world *w = j->w;
    size_t bytes = shm_control_bytes(w->world), head = shm_stage_offset(w->world);
    unsigned char *p = NULL;
    w->control_fd = memfd_create("ztrain-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (w->control_fd < 0 || ftruncate(w->control_fd, (off_t)bytes) != 0 ||
        fcntl(w->control_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return zt_fail(err, ZT_EIO, "the control memory of %zu bytes cannot be made: %s", bytes,
                       strerror(errno));
    while (fallocate(w->control_fd, 0, 0, (off_t)head) != 0)
        if (errno != EINTR)
            return zt_fail(err, ZT_ENOMEM,
                           "no %zu bytes of shared memory for the control memory: %s", head,
                           strerror(errno));
    int rc = map_fd(w->control_fd, bytes, &p, err);
    if (rc) return rc;
    w->control = (struct shm_control *)(void *)p;
    w->control_bytes = bytes;
    w->control->magic = SHM_MAGIC;
    w->control->world = w->world;
    w->control->rank = -1;
    w->control->arena_end = shm_stage_offset(w->world);
    /* the world's own group is the first in the arena */
    uint64_t at = shm_arena_offset(w->world);
    atomic_store(&w->control->next, at + shm_group_bytes(w->world));
    ((struct shm_group *)(void *)(p + at))->n = j->c->size;
    return 0;
}

static int go_on(const struct join *j, struct zt_error *err) {
    return j->watch ? j->watch->look(j->watch->arg, err) : 0;
}

/* ---- the leader ---- */

static bool is_here(const struct join *j, int rank) {
    for (int i = 0; i < j->c->size; i++)
        if (j->c->ranks[i] == rank) return true;
    return false;
}

static const char *absent(const struct join *j, char *buf, size_t n) {
    size_t used = 0;
    buf[0] = 0;
    for (int i = 1; i < j->c->size; i++) {
        int r = j->c->ranks[i];
        if (j->member[r] >= 0) continue;
        int k = snprintf(buf + used, n - used, "%s%d", used ? ", " : "", r);
        if (k > 0 && (size_t)k < n - used) used += (size_t)k;
    }
    return buf;
}

static int listen_here(struct join *j, struct zt_error *err) {
    struct sockaddr_un a;
    socklen_t n = meeting_point(j->id, &a);
    j->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->listener < 0) return zt_fail(err, ZT_EIO, "communicator: socket: %s", strerror(errno));
    if (bind(j->listener, (struct sockaddr *)&a, n) != 0)
        return zt_fail(err, errno == EADDRINUSE ? ZT_ECONFLICT : ZT_EIO,
                       "communicator: the meeting point of this id is taken (%s): another process "
                       "already is rank %d of it; an id serves one world",
                       strerror(errno), j->leader);
    if (listen(j->listener, 128) != 0)
        return zt_fail(err, ZT_EIO, "communicator: listen: %s", strerror(errno));
    return 0;
}

static void drop_stranger(struct join *j, int i) {
    j->n_strangers--;
    memmove(j->strangers + i, j->strangers + i + 1,
            (size_t)(j->n_strangers - i) * sizeof *j->strangers);
}

static void accept_guests(struct join *j) {
    int fd;
    while ((fd = accept4(j->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct message m = {.kind = M_NONCE, .version = MESSAGE_VERSION};
        struct guest g = {.fd = fd};
        if (!same_user(fd) || zt_sys_posix.random(zt_sys_posix.arg, g.nonce, NONCE) != 0) {
            close(fd);
            continue;
        }
        if (j->n_strangers == MAX_STRANGERS) { /* one of ours answers at once: the oldest is none */
            close(j->strangers[0].fd);
            drop_stranger(j, 0);
        }
        memcpy(m.nonce, g.nonce, NONCE);
        if (send_message(fd, &m, NULL, 0, 0) != 0)
            close(fd);
        else
            j->strangers[j->n_strangers++] = g;
    }
}

static void send_failed(int fd, int code, const char *text) {
    struct message m = {.kind = M_FAILED, .version = MESSAGE_VERSION, .code = code};
    snprintf(m.text, sizeof m.text, "%.1000s", text);
    send_message(fd, &m, NULL, 0, 0);
}

/* A guest's HELLO. 0: it is in, or it was a stranger and is forgotten; else the world fails. */
static int welcome(struct join *j, struct guest *g, struct zt_error *err) {
    struct message m, reply = {.kind = M_WELCOME, .version = MESSAGE_VERSION};
    struct shm_world *w = j->w;
    uint8_t tag[TAG];
    int fds[MAX_FDS] = {-1, -1};
    int rc = take_message(g->fd, &m, fds, 2);
    if (rc == -EAGAIN) return 1;
    if (rc || m.kind != M_HELLO) goto stranger;
    tag_message(j, "hello", g->nonce, m.nonce, &m, tag);
    if (CRYPTO_memcmp(tag, m.tag, TAG) != 0) goto stranger;
    /* From here on it is one of ours, so what is wrong is worth an error. */
    if (m.version != MESSAGE_VERSION || strncmp(m.build, ZT_VERSION, sizeof m.build)) {
        rc = zt_fail(err, ZT_EVERSION, "rank %d runs version %s, rank %d runs %s; use one version",
                     m.rank, m.build, j->leader, ZT_VERSION);
    } else if (m.world != w->world || m.rank == j->leader || !is_here(j, m.rank)) {
        rc =
            zt_fail(err, ZT_EINVAL,
                    "a process (pid %d) came as rank %d of a world of %d; rank %d expects %d ranks",
                    m.pid, m.rank, m.world, j->leader, w->world);
    } else if (j->member[m.rank] >= 0) {
        rc = zt_fail(err, ZT_ECONFLICT, "two processes came as rank %d: pid %d and pid %d", m.rank,
                     j->pid[m.rank], m.pid);
    } else {
        rc = map_fd(fds[0], m.bytes, &w->memory[m.rank], err);
    }
    if (rc) {
        send_failed(g->fd, rc, err->msg);
        close(fds[0]);
        close(fds[1]);
        return rc;
    }
    tag_message(j, "welcome", m.nonce, g->nonce, &m, reply.tag);
    reply.left_ns = j->deadline - zt_clock_ns();
    w->memory_bytes[m.rank] = m.bytes;
    w->life[m.rank] = fds[1];
    j->memory_fd[m.rank] = fds[0];
    j->pid[m.rank] = m.pid;
    j->member[m.rank] = g->fd;
    g->fd = -1;
    send_message(j->member[m.rank], &reply, NULL, 0, j->deadline);
    return 0;
stranger:
    if (fds[0] >= 0) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
    close(g->fd);
    g->fd = -1;
    return 0;
}

static int handle_guests(struct join *j, struct zt_error *err) {
    int rc = 0;
    for (int i = 0; i < j->n_strangers && rc >= 0;) {
        rc = welcome(j, &j->strangers[i], err);
        if (rc == 0)
            drop_stranger(j, i);
        else
            i++;
    }
    return rc < 0 ? rc : 0;
}

/* A member that hangs up while we wait for the others. */
static int check_members(struct join *j, struct zt_error *err) {
    for (int r = 0; r < j->w->world; r++) {
        struct pollfd p = {.fd = j->member[r], .events = POLLIN};
        if (p.fd >= 0 && poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR)) {
            atomic_store(&j->c->shared->failed_rank, r);
            return zt_fail(err, ZT_EPEER, "rank %d (pid %d) died while the ranks were meeting", r,
                           j->pid[r]);
        }
    }
    return 0;
}

/* What may be wrong beside slowness when the world knows that all of them are alive. */
static const char *where(const struct join *j) {
    return j->c->size == j->w->world
               ? ""
               : " to the meeting point of their host: if they run on machines that "
                 "share nothing, give the workers different --host names";
}

static int gather_members(struct join *j, struct zt_error *err) {
    struct pollfd *p = calloc((size_t)j->w->world + MAX_STRANGERS + 1, sizeof *p);
    int rc = p ? 0 : zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    while (!rc) {
        char list[512];
        nfds_t n = 0;
        int64_t left = j->deadline - zt_clock_ns();
        if (!*absent(j, list, sizeof list)) break;
        if (left <= 0) {
            atomic_store(&j->c->shared->failed_rank, atoi(list));
            rc = zt_fail(
                err, ZT_ETIMEOUT,
                "the communicator did not form within %.1f s: rank%s %s of %d did not come%s "
                "(comm.init_timeout_seconds)",
                (double)(zt_clock_ns() - j->began) / 1e9, strchr(list, ',') ? "s" : "", list,
                j->w->world, where(j));
            break;
        }
        p[n++] = (struct pollfd){.fd = j->listener, .events = POLLIN};
        for (int i = 0; i < j->n_strangers; i++)
            p[n++] = (struct pollfd){.fd = j->strangers[i].fd, .events = POLLIN};
        for (int r = 0; r < j->w->world; r++)
            if (j->member[r] >= 0) p[n++] = (struct pollfd){.fd = j->member[r], .events = POLLIN};
        if (poll(p, n, left > 100000000 ? 100 : (int)(left / 1000000) + 1) < 0 && errno != EINTR)
            rc = zt_fail(err, ZT_EIO, "communicator: poll: %s", strerror(errno));
        accept_guests(j);
        if (!rc) rc = handle_guests(j, err);
        if (!rc) rc = check_members(j, err);
        if (!rc) rc = go_on(j, err);
    }
    free(p);
    return rc;
}

/* Everything to everyone. */
static int hand_out(struct join *j, struct zt_error *err) {
    struct shm_world *w = j->w;
    for (int to = 1; to < j->c->size; to++) {
        const int r = j->c->ranks[to];
        int rc = 0;
        for (int of = 0; of < j->c->size && !rc; of++) {
            struct message m = {.kind = M_MEMBER, .version = MESSAGE_VERSION, .world = w->world};
            const int i = j->c->ranks[of];
            int fds[2] = {j->memory_fd[i], of ? w->life[i] : j->own_life_read};
            if (i == r) continue;
            m.rank = i;
            m.pid = j->pid[i];
            m.bytes = w->memory_bytes[i];
            rc = send_message(j->member[r], &m, fds, 2, j->deadline);
        }
        struct message m = {.kind = M_CONTROL, .version = MESSAGE_VERSION, .world = w->world};
        m.bytes = w->control_bytes;
        if (!rc) rc = send_message(j->member[r], &m, &w->control_fd, 1, j->deadline);
        if (rc) {
            atomic_store(&j->c->shared->failed_rank, r);
            return zt_fail(err, rc == -ETIMEDOUT ? ZT_ETIMEOUT : ZT_EPEER,
                           "rank %d (pid %d) died or stopped while the ranks were meeting (%s)", r,
                           j->pid[r], strerror(-rc));
        }
    }
    return 0;
}

static int lead(struct join *j, struct zt_error *err) {
    int rc = make_control(j, err);
    if (!rc && j->c->size > 1) rc = listen_here(j, err);
    if (!rc && j->c->size > 1) rc = gather_members(j, err);
    if (!rc)
        for (int r = 0; r < j->w->world; r++) j->w->control->ranks[r].pid = j->pid[r];
    if (!rc) rc = hand_out(j, err);
    if (rc && rc != ZT_ECONFLICT)
        for (int r = 0; r < j->w->world; r++)
            if (j->member[r] >= 0) send_failed(j->member[r], rc, err->msg);
    return rc;
}

/* ---- the others ---- */

static int receive(struct join *j, int fd, struct message *m, uint32_t kind, int *fds, int n,
                   struct zt_error *err) {
    int rc;
    while ((rc = take_message(fd, m, fds, n)) == -EAGAIN) {
        int64_t slice = zt_clock_ns() + LOOK_NS;
        int stop = go_on(j, err);
        if (stop) return stop;
        rc = wait_fd(fd, POLLIN, slice < j->deadline ? slice : j->deadline);
        if (rc && (rc != -ETIMEDOUT || zt_clock_ns() >= j->deadline)) break;
    }
    if (!rc && m->kind == M_FAILED) return zt_fail(err, m->code, "%s", m->text);
    if (!rc && (m->kind != kind || m->version != MESSAGE_VERSION)) {
        for (int i = 0; i < n; i++) close(fds[i]);
        rc = -EPROTO;
    }
    if (!rc) return 0;
    atomic_store(&j->c->shared->failed_rank, j->leader);
    if (rc == -ETIMEDOUT)
        return zt_fail(err, ZT_ETIMEOUT,
                       "rank %d met rank %d, but the communicator did not form within %.1f s "
                       "(comm.init_timeout_seconds)",
                       j->w->rank, j->leader, (double)(zt_clock_ns() - j->began) / 1e9);
    if (rc == -EPROTO)
        return zt_fail(err, ZT_EPROTO,
                       "what listens at the meeting point is not rank %d of this "
                       "world or runs another version",
                       j->leader);
    return zt_fail(
        err, ZT_EPEER,
        "rank %d hung up on rank %d while the ranks were meeting (%s): it died, or the two "
        "have different ids",
        j->leader, j->w->rank, strerror(-rc));
}

static int connect_to_leader(struct join *j, int *out, struct zt_error *err) {
    struct sockaddr_un a;
    socklen_t n = meeting_point(j->id, &a);
    int64_t pause = 1000000;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0) return zt_fail(err, ZT_EIO, "communicator: socket: %s", strerror(errno));
        if (connect(fd, (struct sockaddr *)&a, n) == 0) {
            *out = fd;
            if (same_user(fd)) return 0;
            return zt_fail(err, ZT_EAUTH, "what listens at the meeting point runs as another user");
        }
        int e = errno;
        close(fd);
        if (e != ECONNREFUSED && e != EAGAIN && e != EINTR)
            return zt_fail(err, ZT_EIO, "communicator: connect: %s", strerror(e));
        if (zt_clock_ns() >= j->deadline) {
            atomic_store(&j->c->shared->failed_rank, j->leader);
            return zt_fail(err, ZT_ETIMEOUT,
                           "rank %d of %d did not open the meeting point within %.1f s%s "
                           "(comm.init_timeout_seconds); rank %d waited",
                           j->leader, j->w->world, (double)(zt_clock_ns() - j->began) / 1e9,
                           where(j), j->w->rank);
        }
        int stop = go_on(j, err);
        if (stop) return stop;
        struct timespec t = {0, pause};
        nanosleep(&t, NULL);
        if (pause < 20000000) pause *= 2;
    }
}

static int say_hello(struct join *j, int fd, struct zt_error *err) {
    struct shm_world *w = j->w;
    struct message nonce, reply;
    struct message m = {.kind = M_HELLO,
                        .version = MESSAGE_VERSION,
                        .world = w->world,
                        .rank = w->rank,
                        .pid = getpid(),
                        .bytes = w->memory_bytes[w->rank]};
    uint8_t tag[TAG];
    int fds[2] = {j->memory_fd[w->rank], j->own_life_read};
    int rc = receive(j, fd, &nonce, M_NONCE, NULL, 0, err);
    if (rc) return rc;
    snprintf(m.build, sizeof m.build, "%s", ZT_VERSION);
    rc = zt_sys_posix.random(zt_sys_posix.arg, m.nonce, NONCE);
    if (rc) return zt_fail(err, ZT_EIO, "no random bytes from the kernel: %s", strerror(-rc));
    tag_message(j, "hello", nonce.nonce, m.nonce, &m, m.tag);
    rc = send_message(fd, &m, fds, 2, j->deadline);
    if (rc)
        return zt_fail(err, ZT_EPEER, "rank %d died while the ranks were meeting (%s)", j->leader,
                       strerror(-rc));
    rc = receive(j, fd, &reply, M_WELCOME, NULL, 0, err);
    if (rc) return rc;
    tag_message(j, "welcome", m.nonce, nonce.nonce, &m, tag);
    if (CRYPTO_memcmp(tag, reply.tag, TAG) != 0)
        return zt_fail(err, ZT_EAUTH,
                       "what listens at the meeting point does not know this world's "
                       "secret");
    /* The leader knows who is missing: leave the verdict to it. */
    int64_t verdict = zt_clock_ns() + reply.left_ns + VERDICT_NS;
    if (reply.left_ns > 0 && verdict > j->deadline) j->deadline = verdict;
    return 0;
}

static int take_members(struct join *j, int fd, struct zt_error *err) {
    struct shm_world *w = j->w;
    struct message m;
    int fds[MAX_FDS], rc;
    unsigned char *p = NULL;
    for (int i = 0; i < j->c->size - 1; i++) {
        rc = receive(j, fd, &m, M_MEMBER, fds, 2, err);
        if (rc) return rc;
        if (!is_here(j, m.rank) || m.rank == w->rank || w->memory[m.rank])
            rc = zt_fail(err, ZT_EPROTO, "rank %d sent rank %d twice or out of range", j->leader,
                         m.rank);
        if (!rc) rc = map_fd(fds[0], m.bytes, &w->memory[m.rank], err);
        close(fds[0]);
        if (rc) {
            close(fds[1]);
            return rc;
        }
        w->memory_bytes[m.rank] = m.bytes;
        w->life[m.rank] = fds[1];
    }
    rc = receive(j, fd, &m, M_CONTROL, fds, 1, err);
    if (rc) return rc;
    w->control_fd = fds[0];
    if (m.bytes != shm_control_bytes(w->world))
        return zt_fail(err, ZT_EPROTO, "rank %d sent a control memory of another size", j->leader);
    rc = map_fd(w->control_fd, m.bytes, &p, err);
    if (rc) return rc;
    w->control = (struct shm_control *)(void *)p;
    w->control_bytes = m.bytes;
    if (w->control->magic != SHM_MAGIC || w->control->world != w->world)
        return zt_fail(err, ZT_EPROTO, "rank %d sent a control memory of another kind", j->leader);
    return 0;
}

/* A crowd of strangers can push us out once, so a hang-up is tried again, but not for long: it is
 * more likely that the leader died. */
static int join_as_other(struct join *j, struct zt_error *err) {
    struct zt_error first = {0};
    int64_t whole = j->deadline;
    int fd = -1, rc = 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        if (fd >= 0) close(fd);
        fd = -1;
        rc = connect_to_leader(j, &fd, err);
        if (!rc) rc = say_hello(j, fd, err);
        if (rc == ZT_ETIMEOUT && i > 0) rc = zt_fail(err, first.code, "%.2000s", first.msg);
        if (rc != ZT_EPEER) break;
        first = *err;
        if (zt_clock_ns() + VERDICT_NS < j->deadline) j->deadline = zt_clock_ns() + VERDICT_NS;
    }
    if (j->deadline < whole) j->deadline = whole;
    if (!rc) rc = take_members(j, fd, err);
    if (fd >= 0) close(fd);
    return rc;
}

/* ---- both ---- */

static int cpus_for_us(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static int prepare(struct join *j, struct zt_error *err) {
    struct zt_comm *c = j->c;
    int world = c->world_size, own_fd = -1, ends[2];
    void *base = NULL;
    size_t bytes = 0, n = (size_t)world;
    if (zt_device_cpu_memory(c->device, &own_fd, &base, &bytes) != 0)
        return zt_fail(
            err, ZT_EUNSUPPORTED,
            "collectives between processes need device \"cpu\" in this version (%s), this "
            "is \"%s\"",
            ZT_VERSION, zt_device_ops(c->device)->name);
    struct shm_world *w = calloc(1, sizeof *w);
    if (!w) return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    j->w = w;
    w->world = world;
    w->rank = c->world_rank;
    w->here = c->size;
    w->control_fd = w->life_write = -1;
    w->spins = cpus_for_us() >= c->size ? SPINS : 0;
    w->memory = calloc(n, sizeof *w->memory);
    w->memory_bytes = calloc(n, sizeof *w->memory_bytes);
    w->life = malloc(n * sizeof *w->life);
    j->member = malloc(n * sizeof *j->member);
    j->memory_fd = malloc(n * sizeof *j->memory_fd);
    j->pid = calloc(n, sizeof *j->pid);
    if (!w->memory || !w->memory_bytes || !w->life || !j->member || !j->memory_fd || !j->pid) {
        free(w->life);
        w->life = NULL; /* not filled */
        free(j->member);
        free(j->memory_fd);
        j->member = j->memory_fd = NULL;
        return zt_fail(err, ZT_ENOMEM, "host memory for a communicator");
    }
    for (int r = 0; r < world; r++) w->life[r] = j->member[r] = j->memory_fd[r] = -1;
    w->memory[w->rank] = base;
    w->memory_bytes[w->rank] = bytes;
    j->memory_fd[w->rank] = own_fd;
    j->pid[w->rank] = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return zt_fail(err, ZT_EIO, "communicator: pipe: %s", strerror(errno));
    j->own_life_read = ends[0];
    w->life_write = ends[1];
    return 0;
}

static void clean_up(struct join *j) {
    for (int i = 0; i < j->n_strangers; i++) close(j->strangers[i].fd);
    for (int r = 0; j->w && r < j->w->world; r++) {
        if (j->member && j->member[r] >= 0) close(j->member[r]);
        if (j->memory_fd && r != j->w->rank && j->memory_fd[r] >= 0) close(j->memory_fd[r]);
    }
    if (j->listener >= 0) close(j->listener);
    if (j->own_life_read >= 0) close(j->own_life_read);
    free(j->member);
    free(j->memory_fd);
    free(j->pid);
}

/* The world's group, and the first barrier, which every rank must reach. */
static int first_barrier(struct join *j, struct zt_error *err) {
    struct zt_comm *c = j->c;
    atomic_store(&j->w->control->ranks[j->w->rank].state, SHM_IN);
    int rc = shm_enter_group(c, j->w, shm_arena_offset(j->w->world), err);
    if (!c->state) return rc;
    int64_t left = j->deadline - zt_clock_ns();
    shm_begin(c, NULL, left > 1000000 ? left : 1000000);
    if (!rc) rc = shm_barrier(c, err);
    if (!rc) shm_see_stages(c);
    return rc;
}

int shm_open_world(struct zt_comm *c, const struct shm_id *id, int64_t timeout_ns,
                   const struct shm_watch *watch, struct zt_error *err) {
    struct join j = {.id = id,
                     .c = c,
                     .watch = watch,
                     .leader = c->ranks[0],
                     .listener = -1,
                     .own_life_read = -1};
    j.began = zt_clock_ns();
    j.deadline = j.began + timeout_ns;
    int rc = prepare(&j, err);
    if (!rc) rc = c->rank == 0 ? lead(&j, err) : join_as_other(&j, err);
    if (!rc) rc = first_barrier(&j, err);
    clean_up(&j);
    if (rc && c->state)
        shm_comm_free(c);
    else if (rc && j.w)
        shm_world_free(j.w);
    return rc;
}
