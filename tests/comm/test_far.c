/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/test_far.c: what only groups over several hosts have: bytes as the kernel counts them,
 * big messages through small sockets, streams side by side, noise at open doors, and links that are
 * cut. */
#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/comm/fleet.h"

#define OK(call) CHECK(r, (call) == 0)
static const struct zt_coll_why why = {"h.1", "test", 3, false};

/* A barrier of the test's own: says nothing on the connections under test. */
static void board_barrier(struct rank *r, int64_t n) {
    atomic_store(&r->board->progress[r->rank], n);
    for (int i = 0; i < r->world; i++)
        while (atomic_load(&r->board->progress[i]) < n) fleet_pause();
}

/* ---- bytes on the wire ---- */

/* What the kernel has received over the data connections of this process; the watch connections,
 * which it keeps alive, say a word when somebody waits for long. */
static int64_t received(void) {
    int64_t sum = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        struct tcp_info t;
        socklen_t n = sizeof t, alive_n = sizeof(int);
        int fd = atoi(e->d_name), alive = 0;
        memset(&t, 0, sizeof t);
        getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &alive_n);
        if (!alive && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) == 0 &&
            t.tcpi_state == 1 /* established */)
            sum += (int64_t)t.tcpi_bytes_received;
    }
    if (d) closedir(d);
    return sum;
}
static int far_of(const struct rank *r) {
    int n = 0;
    for (int i = 0; i < r->world; i++) n += r->fleet->hosts[i] != r->fleet->hosts[r->rank];
    return n;
}

/* K members, F of them far from this one, N elements in all: a far member's bytes come over the
 * wire once, a near one's never, and what is reported is (K-1)/K of the buffer for each way. Each
 * collective has one signature of 56 bytes from each far member beside. */
static int wire_bytes(struct rank *r) {
    enum { SIGNATURE = 56 };
    const int K = r->world, F = far_of(r);
    const int64_t n = 50000, whole = n * K * 4;
    static struct zt_coll_record rec[16];
    float *x = fleet_device(r, (size_t)whole, 0), *h = fleet_host(r, (size_t)whole, 0);
    memset(x, 0, (size_t)whole);
    memset(h, 0, (size_t)whole);
    int64_t done = 0, last = 0;
    for (int place = 0; place < 2; place++)
        for (int what = 0; what < 4; what++) {
            float *p = place ? h : x;
            int64_t want = 0, before;
            board_barrier(r, ++done);
            before = received();
            board_barrier(r, ++done);
            if (what == 0) {
                OK(zt_reduce_scatter(r->comm, p, p + n * r->rank, n, ZT_F32, ZT_SUM, r->stream,
                                     &why, &r->err));
                want = F * n * 4;
            } else if (what == 1) {
                OK(zt_all_gather(r->comm, p + n * r->rank, p, n, ZT_F32, r->stream, &why, &r->err));
                want = F * n * 4;
            } else if (what == 2) {
                OK(zt_all_reduce(r->comm, p, n * K, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
                want = 2 * F * n * 4;
            } else {
                OK(zt_broadcast(r->comm, p, n * K, ZT_F32, 1, ZT_ROOT_NONE, r->stream, &why,
                                &r->err));
                want = r->fleet->hosts[1] != r->fleet->hosts[r->rank] ? whole : 0;
            }
            OK(r->ops->stream_sync(r->stream, &r->err));
            int64_t came = received() - before;
            board_barrier(r, ++done);
            CHECK(r, came == want + F * SIGNATURE);
            CHECK(r, zt_comm_log(r->comm, last, rec, 16) == 1);
            last = rec[0].id;
            int64_t ways = what == 2 ? 2 : 1;
            CHECK(r, rec[0].sent_bytes ==
                         (what == 3 ? (r->rank == 1 ? 0 : whole) : ways * whole / K * (K - 1)));
        }
    return 0;
}
Test(far, bytes_on_the_wire, .timeout = 120) {
    const char *const hosts[] = {"ab", "abc", "aabb", "aaab"};
    for (int i = 0; i < 4; i++) {
        struct fleet f = {.world = (int)strlen(hosts[i]), .body = wire_bytes, .hosts = hosts[i]};
        cr_assert(fleet_ok(&f, 100), "%s", hosts[i]);
    }
}

/* ---- 64 MiB through sockets of a few KiB ---- */

static int through_a_straw(struct rank *r) {
    const int64_t n = (int64_t)(64 << 20) / 4 / r->world * r->world, part = n / r->world;
    int32_t *x = fleet_device(r, (size_t)n * 4, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (int32_t)(i * (r->rank + 1));
    OK(zt_all_reduce(r->comm, x, n, ZT_I32, ZT_SUM, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    const int32_t all = r->world * (r->world + 1) / 2;
    for (int64_t i = 0; i < n; i++) CHECK(r, x[i] == (int32_t)((uint32_t)i * (uint32_t)all));
    for (int64_t i = 0; i < n; i++) x[i] = r->rank;
    OK(zt_all_gather(r->comm, x + part * r->rank, x, part, ZT_I32, r->stream, &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    for (int64_t i = 0; i < n; i++) CHECK(r, x[i] == (int32_t)(i / part));
    return 0;
}
Test(far, big_messages_through_small_sockets, .timeout = 300) {
    struct fleet f = {.world = 3,
                      .body = through_a_straw,
                      .hosts = "abb",
                      .socket_bytes = 4096,
                      .device_bytes = (size_t)96 << 20};
    cr_assert(fleet_ok(&f, 240));
}

/* ---- streams side by side ---- */

/* Gathers on one stream, reductions on another, control traffic on the third, in groups that
 * overlap, each collective late by a random time: all values as if one came after the other. */
static int side_by_side(struct rank *r) {
    enum { ROUNDS = 40, ROOM = 60000 };
    const struct zt_comm_inject late = {5, 1500000, 0, 0};
    const struct zt_coll_why control = {"", "count", 1, true};
    const int S = 2, shard[2] = {r->rank / S * S, r->rank / S * S + 1},
              replica[2] = {r->rank % S, r->rank % S + S};
    struct zt_comm *g[4] = {NULL};
    struct zt_stream *gather = NULL;
    OK(r->ops->stream_create(r->d, ZT_STREAM_GATHER, &gather, &r->err));
    OK(zt_comm_split(r->comm, "dp_shard", shard, 2, &g[0], &r->err));
    OK(zt_comm_split(r->comm, "dp_replicate", replica, 2, &g[1], &r->err));
    OK(zt_comm_split(r->comm, "control", (const int[]){0, 1, 2, 3}, 4, &g[2], &r->err));
    OK(zt_comm_split(g[2], "dp", (const int[]){0, 1, 2, 3}, 4, &g[3], &r->err));
    float *x = fleet_device(r, ROOM * 4 * 4, 0), *y = fleet_device(r, ROOM * 4 * 4, 4),
          *z = fleet_host(r, ROOM * 16, 0);
    zt_comm_inject(r->comm, &late);
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t n =
            1 + (int64_t)(fleet_random(9, (uint64_t)round) % (round % 3 ? ROOM : 600));
        int64_t count = r->rank + round;
        for (int64_t i = 0; i < 2 * n; i++) x[i] = (float)(r->rank * 1000 + (int)(i % 97));
        for (int64_t i = 0; i < n; i++)
            y[r->rank * n + i] = (float)(r->rank * 7 + round + (int)(i % 13));
        for (int64_t i = 0; i < n; i++) z[i] = (float)(r->rank + 1);
        OK(zt_all_gather(r->comm, y + r->rank * n, y, n, ZT_F32, gather, &why, &r->err));
        OK(zt_reduce_scatter(g[0], x, x + 2 * n, n, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
        OK(zt_all_reduce(g[1], x + 2 * n, n, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
        OK(zt_all_reduce(g[3], z, n, ZT_F32, ZT_SUM, gather, &why, &r->err));
        OK(zt_all_reduce(g[2], &count, 1, ZT_I64, ZT_SUM, r->compute, &control, &r->err));
        CHECK(r, count == 6 + 4 * round);
        OK(r->ops->stream_sync(gather, &r->err));
        OK(r->ops->stream_sync(r->stream, &r->err));
        for (int k = 0; k < 4; k++)
            for (int64_t i = 0; i < n; i++)
                CHECK(r, y[k * n + i] == (float)(k * 7 + round + (int)(i % 13)));
        for (int64_t i = 0; i < n; i++) {
            int at = (int)((i + n * (r->rank % S)) % 97);
            CHECK(r, x[2 * n + i] == (float)(6000 + 4 * at));
            CHECK(r, z[i] == 10.0f);
        }
    }
    for (int k = 0; k < 4; k++) zt_comm_destroy(g[k]);
    r->ops->stream_destroy(gather);
    return 0;
}
Test(far, streams_side_by_side, .timeout = 200) {
    const char *const hosts[] = {"aabb", "abab", "abcd"};
    for (int i = 0; i < 3; i++) {
        struct fleet f = {.world = 4, .body = side_by_side, .hosts = hosts[i]};
        cr_assert(fleet_ok(&f, 60), "%s", hosts[i]);
    }
}

/* ---- noise at the doors ---- */

/* The port of the door that this process listens at. */
static int own_port(void) {
    int port = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        struct sockaddr_in a;
        socklen_t n = sizeof a, on_n = sizeof(int);
        int fd = atoi(e->d_name), on = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &on_n) == 0 && on &&
            getsockname(fd, (struct sockaddr *)&a, &n) == 0 && a.sin_family == AF_INET)
            port = ntohs(a.sin_port);
    }
    if (d) closedir(d);
    return port;
}
#define AMID_ROUNDS 12
/* Rank 3 is none: it comes to every door all the time, with bytes of any kind or none. */
static int noise(struct rank *r) {
    enum { CROWD = 100 };
    int fd[CROWD];
    uint64_t n = 0;
    for (int i = 0; i < CROWD; i++) fd[i] = -1;
    while (!atomic_load(&r->board->flag[0])) {
        atomic_store(&r->board->flag[1], (int)n);
        int k = (int)(n++ % CROWD), rank = (int)(fleet_random(1, n) % 3);
        int port = atomic_load(&r->board->flag[4 + rank]);
        uint8_t junk[700];
        if (!port) continue;
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        a.sin_addr.s_addr = htonl(0x7f000002u + (uint32_t)rank);
        if (fd[k] >= 0) close(fd[k]);
        fd[k] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fd[k], (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) continue;
        for (size_t i = 0; i < sizeof junk; i++) junk[i] = (uint8_t)fleet_random(n, i);
        if (n % 2) memcpy(junk, "\x4d\x54\x5a\x31\x01\0\0", 8); /* as if one of ours */
        (void)!send(fd[k], junk, n % 5 ? fleet_random(n, 999) % sizeof junk : 0,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    CHECK(r, n > 10 * AMID_ROUNDS);
    return 0;
}
static int amid_noise(struct rank *r) {
    if (r->rank == 3) return noise(r);
    struct zt_comm_door *door = fleet_door(r, r->rank);
    atomic_store(&r->board->flag[4 + r->rank], own_port());
    OK(zt_comm_init_at(door, &fleet_id, r->rank, 3, r->d, 60, &r->comm, &r->err));
    for (int i = 0; i < AMID_ROUNDS; i++) { /* splits open the doors again and again */
        struct zt_comm *g = NULL;
        while (atomic_load(&r->board->flag[1]) <= 10 * (i + 1)) fleet_pause(); /* not in peace */
        float *x = r->used ? (float *)(void *)r->segment : fleet_device(r, 40000 * 4, 0);
        for (int k = 0; k < 40000; k++) x[k] = (float)(r->rank + i);
        OK(zt_comm_split(r->comm, "g", (const int[]){0, 1, 2}, 3, &g, &r->err));
        OK(zt_all_reduce(g, x, 40000, ZT_F32, ZT_SUM, NULL, &why, &r->err));
        CHECK(r, x[0] == (float)(3 + 3 * i) && x[39999] == x[0]);
        zt_comm_destroy(g);
    }
    OK(zt_barrier(r->comm, NULL, &why, &r->err));
    atomic_store(&r->board->flag[0], 1);
    return 0;
}
Test(far, noise_at_the_doors, .timeout = 120) {
    struct fleet f = {.world = 4, .body = amid_noise, .hosts = "abcd", .no_init = true};
    cr_assert(fleet_ok(&f, 100));
}

/* ---- cut links ---- */

static bool run_command(const char *text) { return system(text) == 0; }
/* A network of its own with nothing but the loopback device. */
static bool own_network(void) {
    struct ifreq lo = {.ifr_name = "lo"};
    if (unshare(CLONE_NEWNET)) return false;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    lo.ifr_flags = IFF_UP | IFF_RUNNING;
    bool ok = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    return ok && run_command("nft 'add table ip t; add chain ip t in { type filter hook input "
                             "priority 0; }' 2>/dev/null");
}

static int until_cut(struct rank *r) {
    float *x = fleet_device(r, 400000, 0);
    int rc = 0;
    memset(x, 0, 400000);
    while (!rc) {
        rc = zt_all_reduce(r->comm, x, 100000, ZT_F32, ZT_SUM, r->stream, &why, &r->err);
        if (!rc) rc = r->ops->stream_sync(r->stream, &r->err);
        atomic_fetch_add(&r->board->progress[r->rank], 1);
    }
    fleet_note(r, rc);
    return 0;
}
/* Packets between two of three hosts vanish, without a word from anybody. */
Test(far, a_silent_cut_is_noticed, .timeout = 120) {
    struct fleet f = {.world = 3, .body = until_cut, .hosts = "abc"};
    if (!own_network()) {
        fprintf(stderr, "SKIPPED: a cut link needs root, a network namespace and nft\n");
        cr_skip_test("no network namespace or no nft");
    }
    struct fleet_run run = fleet_start(&f);
    while (atomic_load(&run.board->progress[1]) < 3) fleet_pause();
    cr_assert(run_command("nft 'add rule ip t in ip saddr 127.0.0.2 ip daddr 127.0.0.3 drop; "
                          "add rule ip t in ip saddr 127.0.0.3 ip daddr 127.0.0.2 drop'"));
    int64_t cut = fleet_now();
    cr_assert(fleet_wait(&run, 90), "a rank hangs");
    for (int i = 0; i < 3; i++) {
        int failed = atomic_load(&run.board->failed_rank[i]);
        cr_expect_eq(atomic_load(&run.board->code[i]), ZT_EPEER, "%s", run.board->text[i]);
        cr_expect(failed == 0 || failed == 1, "rank %d of the two that were cut", failed);
        cr_expect(i == 2 || failed == 1 - i || strstr(run.board->text[i], "noticed"), "%s",
                  run.board->text[i]);
        cr_expect(strstr(run.board->text[i], "has not answered for 10 s"), "%s",
                  run.board->text[i]);
    }
    fprintf(stderr, "a silent cut was noticed after %.1f s\n", (double)(fleet_now() - cut) / 1e9);
    fleet_end(&run);
}
