/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/test_faults.c: what happens when ranks call different things, die, stop, give up or
 * never come; and that nothing is left behind. Instants of kills are drawn from seeds and hang on
 * the progress of the victim, not on the clock. The promise is an error within 1 s of a death; the
 * test bounds it by ten times that, since a loaded machine may be late, and prints what it saw. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/mesh.h"
#include "tests/comm/fleet.h"

#define OK(call) CHECK(r, (call) == 0)
#define NOTICE_NS INT64_C(10000000000)
static const struct zt_coll_why why = {"h.3", "gradients", 7, false};

static void settle(struct fleet_run *run, double limit) {
    cr_assert(fleet_wait(run, limit), "a rank hangs");
    for (int i = 0; i < run->world; i++)
        cr_assert(WIFSIGNALED(run->status[i]) || WEXITSTATUS(run->status[i]) == 0, "rank %d: 0x%x",
                  i, (unsigned)run->status[i]);
}

/* ---- mismatches ---- */

enum { M_OP, M_TYPE, M_COUNT, M_KIND, M_ROOT, M_BARRIER, M_BIG, M_CASES };
static int mismatch(struct rank *r) {
    const int what = *(const int *)r->arg, odd = r->world - 1;
    const bool me = r->rank == odd;
    int64_t n = what == M_BIG ? 100000 : 10;
    float *x = fleet_device(r, 800000, 0);
    int rc = 0;
    for (int i = 0; i < 3; i++)
        OK(zt_all_reduce(r->comm, x, 10, ZT_F32, ZT_SUM, r->compute, &why, &r->err));
    memset(x, 0x11, 800000);
    if (what == M_KIND && me)
        rc = zt_reduce_scatter(r->comm, x, x + 100, 2, ZT_F32, ZT_SUM, r->compute, &why, &r->err);
    else if (what == M_ROOT)
        rc = zt_broadcast(r->comm, x, n, ZT_F32, me ? 1 : 0, ZT_ROOT_NONE, r->compute, &why,
                          &r->err);
    else if (what == M_BARRIER && me)
        rc = zt_barrier(r->comm, r->compute, &why, &r->err);
    else
        rc = zt_all_reduce(r->comm, x, me && (what == M_COUNT || what == M_BIG) ? n + 1 : n,
                           me && what == M_TYPE ? ZT_I32 : ZT_F32,
                           me && what == M_OP ? ZT_MAX : ZT_SUM, r->compute, &why, &r->err);
    CHECK(r, rc == ZT_EMISMATCH);
    for (int i = 0; i < 200000; i++)
        CHECK(r, ((unsigned *)(void *)x)[i] == 0x11111111); /* data untouched */
    char rank[32];
    snprintf(rank, sizeof rank, "on rank %d", odd);
    CHECK(r,
          strstr(r->err.msg, "on rank 0") && strstr(r->err.msg, rank) && strstr(r->err.msg, "#4"));
    const char *both[M_CASES][2] = {
        {"all_reduce(sum, fp32, count 10)", "all_reduce(max, fp32, count 10)"},
        {"all_reduce(sum, fp32, count 10)", "all_reduce(sum, int32, count 10)"},
        {"all_reduce(sum, fp32, count 10)", "all_reduce(sum, fp32, count 11)"},
        {"all_reduce(sum, fp32, count 10)", "reduce_scatter(sum, fp32, count 2)"},
        {"broadcast(fp32, count 10, group root 0)", "broadcast(fp32, count 10, group root 1)"},
        {"all_reduce(sum, fp32, count 10)", "barrier"},
        {"all_reduce(sum, fp32, count 100000)", "all_reduce(sum, fp32, count 100001)"}};
    CHECK(r, strstr(r->err.msg, both[what][0]) && strstr(r->err.msg, both[what][1]));
    CHECK(r, zt_comm_failed_rank(r->comm) == odd);
    /* and it stays broken, with the reason */
    CHECK(r, zt_barrier(r->comm, NULL, &why, &r->err) == ZT_EMISMATCH);
    return 0;
}
Test(faults, mismatch_is_named_on_every_rank, .timeout = 120) {
    for (int what = 0; what < M_CASES; what++)
        for (int world = 2; world <= 4; world += 2) {
            struct fleet f = {.world = world, .body = mismatch, .arg = &what};
            cr_assert(fleet_ok(&f, 60), "case %d world %d", what, world);
        }
}

/* In a sub-group: members and the rest of the world all get the same verdict. */
static int mismatch_in_group(struct rank *r) {
    int list[2] = {r->rank / 2 * 2, r->rank / 2 * 2 + 1};
    struct zt_comm *g = NULL;
    float x[4] = {0};
    OK(zt_comm_split(r->comm, "tensor", list, 2, &g, &r->err));
    int rc = 0;
    if (r->rank >= 2) rc = zt_all_reduce(g, x, r->rank, ZT_F32, ZT_SUM, NULL, &why, &r->err);
    if (r->rank < 2) rc = zt_barrier(r->comm, NULL, &why, &r->err);
    CHECK(r, rc == ZT_EMISMATCH);
    CHECK(r, strstr(r->err.msg, "group \"tensor\"") && strstr(r->err.msg, "on rank 2") &&
                 strstr(r->err.msg, "on rank 3"));
    zt_comm_destroy(g);
    return 0;
}
Test(faults, mismatch_in_a_group_reaches_the_world, .timeout = 60) {
    struct fleet f = {.world = 4, .body = mismatch_in_group};
    cr_assert(fleet_ok(&f, 50));
}

static int split_mismatch(struct rank *r) {
    const int what = *(const int *)r->arg;
    int all[3] = {0, 1, 2}, pair[2] = {0, r->rank ? r->rank : 1};
    struct zt_comm *g = NULL;
    float x = 0;
    int rc;
    if (what == 0) /* lists that do not partition: {0,1}, {0,1}, {0,2} */
        rc = zt_comm_split(r->comm, "g", pair, 2, &g, &r->err);
    else if (what == 1) /* one name differs */
        rc = zt_comm_split(r->comm, r->rank == 2 ? "other" : "g", all, 3, &g, &r->err);
    else /* a collective against a split */
        rc = r->rank == 2 ? zt_all_reduce(r->comm, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err)
                          : zt_comm_split(r->comm, "g", all, 3, &g, &r->err);
    CHECK(r, rc == ZT_EMISMATCH && !g);
    CHECK(r, strstr(r->err.msg, "split") && strstr(r->err.msg, "rank 2"));
    return 0;
}
Test(faults, split_mismatch, .timeout = 60) {
    for (int what = 0; what < 3; what++) {
        struct fleet f = {.world = 3, .body = split_mismatch, .arg = &what};
        cr_assert(fleet_ok(&f, 50), "case %d", what);
    }
}

/* ---- death ---- */

/* Works until something fails: small and big collectives, in place and staged, on two groups. */
static int work(struct rank *r) {
    enum { BIG = 2 << 20 };
    float *x = fleet_device(r, BIG * 4, 0), *h = fleet_host(r, 200000 * 4, 0);
    int list[2] = {r->rank / 2 * 2, r->rank / 2 * 2 + 1}, rc = 0;
    struct zt_comm *g = NULL;
    memset(h, 0, 200000 * 4);
    if (r->world % 2 == 0) OK(zt_comm_split(r->comm, "tensor", list, 2, &g, &r->err));
    for (int64_t i = 1; !rc; i++) {
        for (int k = 0; k < 64; k++) x[k] = 1;
        rc =
            zt_all_reduce(r->comm, x, i % 3 ? 1000 : BIG, ZT_F32, ZT_MAX, r->stream, &why, &r->err);
        if (!rc)
            rc =
                zt_all_reduce(g ? g : r->comm, h, 200000, ZT_F32, ZT_SUM, r->stream, &why, &r->err);
        if (!rc) rc = r->ops->stream_sync(r->stream, &r->err);
        if (!rc) rc = zt_barrier(r->comm, r->compute, &why, &r->err);
        atomic_fetch_add(&r->board->progress[r->rank], 1);
    }
    fleet_note(r, rc);
    zt_comm_destroy(g);
    return 0;
}

static int count_entries(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}
static bool socket_left(void) { /* an abstract socket of ours in this network namespace */
    char line[512], name[64] = "@ztrain-";
    for (int i = 0; i < 16; i++) snprintf(name + strlen(name), 3, "%02x", fleet_id.bytes[8 + i]);
    FILE *f = fopen("/proc/net/unix", "r");
    bool found = false;
    while (f && fgets(line, sizeof line, f)) found |= strstr(line, name) != NULL;
    if (f) fclose(f);
    return found;
}

/* What a rank maps that has a name in a file system and is shared for writing: nothing of ours. */
static bool named_memory(pid_t pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    bool found = false, ours = false;
    while (f && fgets(line, sizeof line, f)) {
        ours |= strstr(line, "/memfd:ztrain-control") != NULL;
        found |= strstr(line, "rw-s") && strstr(line, "/dev/shm") && !strstr(line, "bxf_");
    }
    if (f) fclose(f);
    return found || !ours;
}

static void kill_one(int world, int victim, int64_t after, int64_t extra_ns, double *worst) {
    struct fleet f = {.world = world, .body = work};
    int fds = count_entries("/proc/self/fd");
    struct fleet_run run = fleet_start(&f);
    int64_t limit = fleet_now() + INT64_C(60000000000);
    while (atomic_load(&run.board->progress[victim]) < after && fleet_now() < limit) fleet_pause();
    cr_assert_geq(atomic_load(&run.board->progress[victim]), after, "no progress");
    cr_assert_not(named_memory(run.pid[victim]));
    struct timespec t = {0, extra_ns}; /* somewhere inside the next collectives */
    nanosleep(&t, NULL);
    int64_t killed = fleet_now();
    kill(run.pid[victim], SIGKILL);
    settle(&run, 60);
    cr_assert(WIFSIGNALED(run.status[victim]));
    for (int i = 0; i < world; i++) {
        if (i == victim) continue;
        int64_t took = atomic_load(&run.board->at_ns[i]) - killed;
        cr_assert_eq(atomic_load(&run.board->code[i]), ZT_EPEER, "rank %d: %d %s", i,
                     atomic_load(&run.board->code[i]), run.board->text[i]);
        cr_assert_eq(atomic_load(&run.board->failed_rank[i]), victim, "%s", run.board->text[i]);
        char name[32];
        snprintf(name, sizeof name, "rank %d (pid %d) died", victim, (int)run.pid[victim]);
        cr_assert(strstr(run.board->text[i], name), "%s", run.board->text[i]);
        cr_assert_lt(took, NOTICE_NS);
        if ((double)took / 1e9 > *worst) *worst = (double)took / 1e9;
    }
    cr_assert_not(socket_left());
    fleet_end(&run);
    cr_assert_eq(count_entries("/proc/self/fd"), fds);
}

Test(faults, a_killed_rank_is_noticed_by_all, .timeout = 600) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        int world = 2 + (int)(seed % 3);
        int victim = seed % 4 == 0 ? 0 : (int)(fleet_random(seed, 0) % (uint64_t)world);
        kill_one(world, victim, 1 + (int64_t)(fleet_random(seed, 1) % 12),
                 (int64_t)(fleet_random(seed, 2) % 8000000), &worst);
    }
    fprintf(stderr, "a death was noticed by every rank within %.3f s\n", worst);
}

/* A rank that waits in a group the dead one is not in learns of it too, and a rank that computes
 * learns of it at its next call. */
static int elsewhere(struct rank *r) {
    int pair[2] = {r->rank / 2 * 2, r->rank / 2 * 2 + 1};
    struct zt_comm *g = NULL;
    float x = 1;
    OK(zt_comm_split(r->comm, "pair", pair, 2, &g, &r->err));
    if (r->rank == 3) {
        atomic_store(&r->board->flag[0], 1);
        for (;;) pause();
    }
    if (r->rank == 1) /* computes until the others know */
        while (!atomic_load(&r->board->code[0]) || !atomic_load(&r->board->code[2])) fleet_pause();
    int rc = zt_all_reduce(g, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err);
    fleet_note(r, rc);
    zt_comm_destroy(g);
    return 0;
}
Test(faults, a_death_in_another_group, .timeout = 60) {
    struct fleet f = {.world = 4, .body = elsewhere};
    struct fleet_run run = fleet_start(&f);
    while (!atomic_load(&run.board->flag[0])) fleet_pause();
    kill(run.pid[3], SIGKILL);
    settle(&run, 50);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(atomic_load(&run.board->code[i]), ZT_EPEER, "%s", run.board->text[i]);
        cr_assert_eq(atomic_load(&run.board->failed_rank[i]), 3);
    }
    fleet_end(&run);
}

/* A rank that ends in good order while others still wait for it is an error, not a hang. */
static int leaves(struct rank *r) {
    float x = 1;
    OK(zt_barrier(r->comm, NULL, &why, &r->err));
    if (r->rank == 1) return 0;
    int rc = zt_all_reduce(r->comm, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err);
    CHECK(r, rc == ZT_EPEER && strstr(r->err.msg, "rank 1 left"));
    CHECK(r, zt_comm_failed_rank(r->comm) == 1);
    return 0;
}
Test(faults, a_rank_that_left, .timeout = 60) {
    struct fleet f = {.world = 3, .body = leaves};
    cr_assert(fleet_ok(&f, 50));
}

/* ---- stopped, late, aborted ---- */

static int stopped(struct rank *r) {
    zt_comm_set_timeout(r->comm, 1.0);
    CHECK(r, zt_comm_set_timeout(r->comm, 1.0) == 1.0);
    return work(r);
}
Test(faults, a_stopped_rank_is_named_at_the_deadline, .timeout = 120) {
    for (int victim = 0; victim < 3; victim += 2) {
        struct fleet f = {.world = 3, .body = stopped};
        struct fleet_run run = fleet_start(&f);
        while (atomic_load(&run.board->progress[victim]) < 3) fleet_pause();
        kill(run.pid[victim], SIGSTOP);
        for (int i = 0; i < 3; i++) {
            if (i == victim) continue;
            while (!atomic_load(&run.board->code[i])) fleet_pause();
            cr_assert_eq(atomic_load(&run.board->code[i]), ZT_ETIMEOUT, "%s", run.board->text[i]);
            cr_assert_eq(atomic_load(&run.board->failed_rank[i]), victim, "%s", run.board->text[i]);
            char name[32];
            snprintf(name, sizeof name, "for rank %d,", victim);
            cr_assert(strstr(run.board->text[i], name), "%s", run.board->text[i]);
        }
        kill(run.pid[victim], SIGCONT); /* it must not go on alone */
        settle(&run, 60);
        cr_assert_lt(atomic_load(&run.board->code[victim]), 0);
        fleet_end(&run);
    }
}

/* Rank 0 waits for rank 2, which waits in another group for rank 3: rank 3 is to blame, and both
 * say so. */
static int chain(struct rank *r) {
    const int with[2] = {r->rank / 2 * 2, r->rank / 2 * 2 + 1},
              across[2] = {r->rank % 2, r->rank % 2 + 2};
    struct zt_comm *g = NULL, *h = NULL;
    float x = 0;
    OK(zt_comm_split(r->comm, "tensor", with, 2, &g, &r->err));
    OK(zt_comm_split(r->comm, "dp", across, 2, &h, &r->err));
    zt_comm_watch(r->comm, &r->board->flag[r->rank]);
    if (r->rank % 2) { /* never come */
        while (!atomic_load(&r->board->code[0]) || !atomic_load(&r->board->code[2])) fleet_pause();
        return 0;
    }
    if (r->rank == 0) {
        while (atomic_load(&r->board->flag[2]) != 1 + 3) fleet_pause();
        zt_comm_set_timeout(h, 1.0);
    }
    int rc = zt_all_reduce(r->rank ? g : h, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err);
    CHECK(r, rc == ZT_ETIMEOUT && zt_comm_failed_rank(r->comm) == 3 &&
                 strstr(r->err.msg, "for rank 3,"));
    CHECK(r, r->rank || atomic_load(&r->board->flag[0]) == 1 + 2); /* whom it waits for itself */
    fleet_note(r, rc);
    return 0;
}
Test(faults, the_end_of_a_chain_of_waits_is_to_blame, .timeout = 60) {
    struct fleet f = {.world = 4, .body = chain};
    cr_assert(fleet_ok(&f, 50));
}

/* Several are late: all are named. */
static int late(struct rank *r) {
    if (r->rank == 1 || r->rank == 3) {
        while (!atomic_load(&r->board->code[0])) fleet_pause();
        return 0;
    }
    zt_comm_set_timeout(r->comm, 0.3);
    float x = 0;
    int rc = zt_all_reduce(r->comm, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err);
    CHECK(r, rc == ZT_ETIMEOUT && strstr(r->err.msg, "ranks 1, 3") &&
                 strstr(r->err.msg, "all_reduce #1"));
    CHECK(r, strstr(r->err.msg, "h.3") && zt_comm_failed_rank(r->comm) == 1);
    fleet_note(r, rc);
    return 0;
}
Test(faults, all_missing_ranks_are_named, .timeout = 60) {
    struct fleet f = {.world = 4, .body = late};
    cr_assert(fleet_ok(&f, 50));
}

static void *abort_later(void *arg) {
    struct rank *r = arg;
    while (!atomic_load(&r->board->flag[1])) fleet_pause();
    zt_comm_abort(r->comm);
    return NULL;
}
static int aborted(struct rank *r) {
    float x = 0;
    pthread_t t;
    if (r->rank == 0) pthread_create(&t, NULL, abort_later, r);
    if (r->rank == 2) { /* never comes, so the others wait */
        atomic_store(&r->board->flag[1], 1);
        while (!atomic_load(&r->board->code[0]) || !atomic_load(&r->board->code[1])) fleet_pause();
    }
    int rc = zt_all_reduce(r->comm, &x, 1, ZT_F32, ZT_SUM, r->stream, &why, &r->err);
    if (!rc) rc = r->ops->stream_sync(r->stream, &r->err);
    CHECK(r, rc == ZT_ECOMM && strstr(r->err.msg, "aborted by rank 0"));
    if (r->rank) CHECK(r, zt_comm_failed_rank(r->comm) == 0);
    fleet_note(r, rc);
    if (r->rank == 0) pthread_join(t, NULL);
    return 0;
}
Test(faults, abort_from_another_thread, .timeout = 60) {
    struct fleet f = {.world = 3, .body = aborted};
    cr_assert(fleet_ok(&f, 50));
}

/* ---- meeting ---- */

static int meet_short(struct rank *r) {
    if (r->rank == 1 || r->rank == 2) return 0; /* never come */
    int rc = fleet_init(r, &fleet_id, r->rank, r->world, 0.7);
    CHECK(r, rc == ZT_ETIMEOUT && !r->comm);
    CHECK(r, strstr(r->err.msg, "ranks 1, 2 of 4 did not come"));
    return 0;
}
Test(faults, missing_ranks_at_the_start_are_named, .timeout = 60) {
    struct fleet f = {.world = 4, .body = meet_short, .no_init = true};
    cr_assert(fleet_ok(&f, 50));
}

static int no_zero(struct rank *r) {
    if (r->rank == 0) return 0;
    int rc = fleet_init(r, &fleet_id, r->rank, r->world, 0.3);
    CHECK(r, rc == ZT_ETIMEOUT && strstr(r->err.msg, "rank 0 of 2 did not open"));
    return 0;
}
static int bad_id(struct rank *r) {
    struct zt_comm_id wrong = fleet_id;
    struct zt_comm *c = NULL;
    CHECK(r, zt_comm_init(&fleet_id, 2, 2, r->d, 1, &c, &r->err) == ZT_EINVAL);
    CHECK(r, zt_comm_init(&fleet_id, -1, 2, r->d, 1, &c, &r->err) == ZT_EINVAL);
    CHECK(r, zt_comm_init(&fleet_id, 0, 0, r->d, 1, &c, &r->err) == ZT_EINVAL);
    CHECK(r, zt_comm_init(&fleet_id, 0, 1 << 20, r->d, 1, &c, &r->err) == ZT_EINVAL);
    CHECK(r, zt_comm_init(&fleet_id, 0, 2, r->d, 0, &c, &r->err) == ZT_EINVAL);
    CHECK(r, zt_comm_init(NULL, 0, 2, r->d, 1, &c, &r->err) == ZT_EINVAL);
    wrong.bytes[0] ^= 1;
    CHECK(r, zt_comm_init(&wrong, 0, 2, r->d, 1, &c, &r->err) == ZT_EINVAL &&
                 strstr(r->err.msg, "minted"));
    CHECK(r, zt_comm_init(NULL, 0, 1, r->d, 1, &c, &r->err) == 0); /* one rank needs no id */
    zt_comm_destroy(c);
    return 0;
}
/* The name without the secret: refused on both sides, and the right ranks still meet. */
static int wrong_secret(struct rank *r) {
    struct zt_comm_id wrong = fleet_id;
    wrong.bytes[8 + 16 + 5] ^= 0x40;
    if (r->rank == 2) {
        CHECK(r, fleet_init(r, &wrong, 1, 2, 20) == ZT_EPEER && !r->comm); /* dropped */
        CHECK(r, strstr(r->err.msg, "different ids") != NULL);
        atomic_store(&r->board->flag[0], 1);
        return 0;
    }
    if (r->rank == 1)
        while (!atomic_load(&r->board->flag[0])) fleet_pause();
    OK(fleet_init(r, &fleet_id, r->rank, 2, 40));
    OK(zt_barrier(r->comm, NULL, NULL, &r->err));
    return 0;
}
/* Where the ranks of fleet_id meet: the name of a socket of this host, or 0 and rank 0's door. */
static socklen_t meeting_point(struct sockaddr_un *a, struct sockaddr_in *door) {
    int32_t port;
    memset(a, 0, sizeof *a);
    memset(door, 0, sizeof *door);
    memcpy(&port, fleet_id.bytes + 56, sizeof port);
    if (port) {
        door->sin_family = AF_INET;
        door->sin_port = htons((uint16_t)port);
        inet_pton(AF_INET, (const char *)fleet_id.bytes + 60, &door->sin_addr);
        return 0;
    }
    char *p = a->sun_path + 1;
    a->sun_family = AF_UNIX;
    p += sprintf(p, "ztrain-");
    for (int i = 0; i < 16; i++) p += sprintf(p, "%02x", fleet_id.bytes[8 + i]);
    return (socklen_t)(p - (char *)a);
}
/* Garbage, silence and floods at the meeting point disturb nobody. */
static int strangers(struct rank *r) {
    if (r->rank == 2) {
        struct sockaddr_un a;
        struct sockaddr_in door;
        socklen_t n = meeting_point(&a, &door);
        int fd[48];
        for (int i = 0; i < 48; i++) {
            fd[i] = n ? socket(AF_UNIX, SOCK_SEQPACKET, 0) : socket(AF_INET, SOCK_STREAM, 0);
            while (n ? connect(fd[i], (struct sockaddr *)&a, n)
                     : connect(fd[i], (struct sockaddr *)&door, sizeof door))
                fleet_pause();
            char junk[3000] = "garbage";
            if (i % 3) (void)!send(fd[i], junk, i % 3 == 1 ? 7 : sizeof junk, MSG_NOSIGNAL);
            if (i % 5 == 0) close(fd[i]), fd[i] = -1;
        }
        atomic_store(&r->board->flag[0], 1);
        while (!atomic_load(&r->board->flag[1])) fleet_pause(); /* the silent ones stay */
        return 0;
    }
    if (r->rank == 1)
        while (!atomic_load(&r->board->flag[0])) fleet_pause();
    OK(fleet_init(r, &fleet_id, r->rank, 2, 40));
    OK(zt_barrier(r->comm, NULL, NULL, &r->err));
    atomic_store(&r->board->flag[1], 1);
    return 0;
}
/* Two processes that claim one rank, and two that claim rank 0. */
static int doubles(struct rank *r) {
    int as = r->rank == 2 ? 1 : r->rank;
    if (r->rank == 2)
        while (!atomic_load(&r->board->flag[0])) fleet_pause();
    if (r->rank == 1) atomic_store(&r->board->flag[0], 1);
    int rc = fleet_init(r, &fleet_id, as, 3, 20);
    CHECK(r, rc == ZT_ECONFLICT || rc == ZT_EPEER);
    if (r->rank == 0)
        CHECK(r, rc == ZT_ECONFLICT && strstr(r->err.msg, "two processes came as rank 1"));
    return 0;
}
static int two_zeros(struct rank *r) {
    if (r->rank == 1)
        while (!atomic_load(&r->board->flag[0])) fleet_pause();
    else
        atomic_store(&r->board->flag[0], 1);
    int rc = fleet_init(r, &fleet_id, 0, 2, 0.5);
    CHECK(r, rc == ZT_ECONFLICT || rc == ZT_ETIMEOUT);
    if (rc == ZT_ECONFLICT) atomic_fetch_add(&r->board->flag[2], 1);
    CHECK(r, rc != ZT_ECONFLICT || strstr(r->err.msg, "already is rank 0"));
    return 0;
}
static int other_world(struct rank *r) {
    int rc = fleet_init(r, &fleet_id, r->rank, r->rank ? 3 : 2, 20);
    CHECK(r, rc == ZT_EINVAL && strstr(r->err.msg, "rank 1 of a world of 3; rank 0 expects 2"));
    return 0;
}
Test(faults, meeting, .timeout = 300) {
    const struct {
        int world;
        int (*body)(struct rank *);
        const char *name;
    } t[] = {{2, no_zero, "no rank 0"},         {1, bad_id, "bad id"},
             {3, wrong_secret, "wrong secret"}, {3, strangers, "strangers"},
             {3, doubles, "doubles"},           {2, other_world, "other world"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct fleet f = {.world = t[i].world, .body = t[i].body, .no_init = true};
        cr_assert(fleet_ok(&f, 50), "%s", t[i].name);
    }
    struct fleet f = {.world = 2, .body = two_zeros, .no_init = true};
    struct fleet_run run = fleet_start(&f);
    settle(&run, 50);
    fleet_end(&run);
}

/* A rank killed while the others still meet. */
static int meet_then_wait(struct rank *r) {
    if (r->rank == 2) { /* the last one comes when the victim is gone */
        while (!atomic_load(&r->board->flag[1])) fleet_pause();
    }
    atomic_store(&r->board->flag[0], 1);
    int rc = fleet_init(r, &fleet_id, r->rank, r->world, 2);
    if (!rc) rc = zt_barrier(r->comm, NULL, NULL, &r->err);
    fleet_note(r, rc);
    return 0;
}
Test(faults, death_while_meeting, .timeout = 120) {
    for (int seed = 0; seed < 6; seed++) {
        struct fleet f = {.world = 3, .body = meet_then_wait, .no_init = true};
        struct fleet_run run = fleet_start(&f);
        while (!atomic_load(&run.board->flag[0])) fleet_pause();
        struct timespec t = {0, (long)(fleet_random(77, (uint64_t)seed) % 4000000)};
        nanosleep(&t, NULL);
        kill(run.pid[seed % 2], SIGKILL);
        atomic_store(&run.board->flag[1], 1);
        settle(&run, 60);
        for (int i = 0; i < 3; i++)
            if (i != seed % 2) cr_assert_lt(atomic_load(&run.board->code[i]), 0);
        cr_assert_not(socket_left());
        fleet_end(&run);
    }
}

/* ---- nothing is left ---- */

static int no_descriptor_leaks(struct rank *r) {
    int before = 0;
    for (int i = 0; i < 12; i++) { /* ids come over the first communicator */
        struct zt_comm_id id;
        struct zt_comm *c = NULL, *g = NULL;
        int all[3] = {0, 1, 2};
        struct zt_comm_door *door = fleet_door(r, r->rank);
        if (r->rank == 0) OK(zt_comm_mint_at(door, &id, &r->err));
        OK(zt_broadcast(r->comm, &id, sizeof id, ZT_U8, 0, ZT_ROOT_NONE, NULL, &why, &r->err));
        OK(zt_comm_init_at(door, &id, r->rank, r->world, r->d, 20, &c, &r->err));
        OK(zt_comm_split(c, "g", all, 3, &g, &r->err));
        OK(zt_barrier(g, NULL, &why, &r->err));
        zt_comm_destroy(c); /* the group keeps what it shares with the world */
        OK(zt_barrier(g, NULL, &why, &r->err));
        zt_comm_destroy(g);
        if (i == 1) before = count_entries("/proc/self/fd");
    }
    CHECK(r, count_entries("/proc/self/fd") == before);
    return 0;
}
Test(faults, no_descriptor_leaks, .timeout = 60) {
    struct fleet f = {.world = 3, .body = no_descriptor_leaks};
    cr_assert(fleet_ok(&f, 50));
}

/* ---- the event log ---- */

static int log_fields(struct rank *r) {
    static struct zt_coll_record rec[8192];
    const struct zt_coll_why control = {NULL, "count", 9, true};
    struct zt_comm *g = NULL;
    int pair[2] = {r->rank / 2 * 2, r->rank / 2 * 2 + 1};
    int64_t before = r->ops->now_ns(r->d);
    float *x = fleet_device(r, 4096 * 4, 0);
    CHECK(r, zt_comm_log(r->comm, 0, rec, 10) == 0);
    OK(zt_comm_split(r->comm, "dp_shard", pair, 2, &g, &r->err));
    OK(zt_all_reduce(r->comm, x, 4096, ZT_F32, ZT_SUM, r->stream, &why, &r->err));
    OK(zt_reduce_scatter(g, x, (char *)x + zt_comm_rank(g) * 4096, 2048, ZT_BF16, ZT_SUM, r->stream,
                         &why, &r->err));
    OK(r->ops->stream_sync(r->stream, &r->err));
    OK(zt_all_gather(g, x, x + 1000, 500, ZT_F32, NULL, &control, &r->err));
    OK(zt_broadcast(r->comm, x, 10, ZT_BF16, 0, ZT_ROOT_NONE, NULL, NULL, &r->err));
    OK(zt_barrier(g, NULL, &why, &r->err));
    int64_t n = zt_comm_log(r->comm, 0, rec, 8192), after = r->ops->now_ns(r->d);
    const enum zt_coll kinds[] = {ZT_COLL_ALL_REDUCE, ZT_COLL_REDUCE_SCATTER, ZT_COLL_ALL_GATHER,
                                  ZT_COLL_BROADCAST, ZT_COLL_BARRIER};
    CHECK(r, n == 5);
    for (int64_t i = 0; i < n; i++) {
        CHECK(r, rec[i].id == i + 1 && rec[i].kind == kinds[i]);
        CHECK(r, before <= rec[i].queued_ns && rec[i].queued_ns <= rec[i].start_ns);
        CHECK(r, rec[i].start_ns <= rec[i].end_ns && rec[i].end_ns <= after);
    }
    const struct zt_coll_record *ar = &rec[0], *rs = &rec[1], *ag = &rec[2], *bc = &rec[3];
    CHECK(r,
          !strcmp(ar->group, "world") && ar->seq == 2 && ar->count == 4096 && ar->bytes == 16384);
    CHECK(r, ar->sent_bytes == 2 * 3 * 16384 / 4); /* 2 (K-1)/K of the bytes */
    CHECK(r, !strcmp(ar->unit, "h.3") && !strcmp(ar->reason, "gradients") && ar->step == 7 &&
                 !ar->control);
    CHECK(r, rs->seq == 1 && rs->count == 4096 && rs->bytes == 8192 && rs->sent_bytes == 4096);
    CHECK(r, !strcmp(ag->group, "dp_shard") && ag->count == 1000 && ag->bytes == 4000);
    CHECK(r, ag->sent_bytes == 2000 && ag->control && ag->step == 9 && !ag->unit[0]); /* (K-1)/K */
    CHECK(r, bc->dtype == ZT_BF16 && bc->bytes == 20 && bc->sent_bytes == (r->rank ? 20 : 0) &&
                 bc->step == -1);
    struct zt_comm_totals t = zt_comm_totals(g), w = zt_comm_totals(r->comm);
    CHECK(r, t.control_sent_bytes == 2000 && t.control_collectives == 1);
    CHECK(r, w.sent_bytes == 24576 + (r->rank ? 20 : 0) && w.collectives == 2);
    /* the ring turns: the newest 4096 stay, reading goes on where it ended */
    for (int i = 0; i < 5000; i++) OK(zt_barrier(r->comm, NULL, NULL, &r->err));
    int64_t m = zt_comm_log(r->comm, n, rec, 8192);
    CHECK(r, m == 4096 && rec[0].id == n + 5000 - 4096 + 1 && rec[m - 1].id == n + 5000);
    CHECK(r, zt_comm_log(r->comm, n + 4998, rec, 1) == 1 && rec[0].id == n + 4999);
    CHECK(r, zt_comm_log(r->comm, n + 5000, rec, 10) == 0);
    CHECK(r, zt_comm_log_place(r->comm, rec, sizeof rec) == ZT_EINVAL); /* too late */
    zt_comm_destroy(g);
    return 0;
}
Test(faults, log_fields, .timeout = 60) {
    struct fleet f = {.world = 4, .body = log_fields};
    cr_assert(fleet_ok(&f, 50));
}

/* The ring in memory of somebody else tells what a killed rank was doing. */
static int log_placed(struct rank *r) {
    size_t bytes = zt_comm_log_bytes(16);
    char *ring = (char *)(uintptr_t)r->arg + (size_t)r->rank * 65536;
    float x = 1;
    CHECK(r, bytes < 65536);
    CHECK(r, zt_comm_log_place(r->comm, ring, 100) == ZT_EINVAL);
    OK(zt_comm_log_place(r->comm, ring, bytes));
    for (int i = 0; i < 20; i++)
        OK(zt_all_reduce(r->comm, &x, 1, ZT_F32, ZT_SUM, NULL, &why, &r->err));
    if (r->rank == 1) {
        atomic_store(&r->board->flag[0], 1);
        for (;;) pause();
    }
    CHECK(r, zt_barrier(r->comm, r->stream, &why, &r->err) == 0);
    CHECK(r, r->ops->stream_sync(r->stream, &r->err) == ZT_EPEER);
    return 0;
}
Test(faults, log_outlives_the_process, .timeout = 60) {
    static struct zt_coll_record rec[64];
    char *memory = mmap(NULL, 2 * 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct fleet f = {.world = 2, .body = log_placed, .arg = memory};
    cr_assert_eq(zt_comm_log_read(memory, 65536, 0, rec, 64), ZT_EINVAL); /* not a ring yet */
    struct fleet_run run = fleet_start(&f);
    while (!atomic_load(&run.board->flag[0])) fleet_pause();
    kill(run.pid[1], SIGKILL);
    settle(&run, 50);
    int64_t n = zt_comm_log_read(memory, zt_comm_log_bytes(16), 0, rec, 64);
    cr_assert_eq(n, 16);
    cr_assert_eq(rec[15].kind, ZT_COLL_BARRIER);
    cr_assert_gt(rec[15].start_ns, 0);
    cr_assert_eq(rec[15].end_ns, 0); /* it never ended */
    cr_assert_gt(rec[14].end_ns, 0);
    n = zt_comm_log_read(memory + 65536, zt_comm_log_bytes(16), 0, rec, 64);
    cr_assert_eq(n, 16);
    cr_assert_eq(rec[15].seq, 20); /* rank 1 never entered the barrier */
    cr_assert_eq(zt_comm_log_read(memory, 64, 0, rec, 64), ZT_EINVAL);
    fleet_end(&run);
}
