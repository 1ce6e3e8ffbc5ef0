/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/fleet.c: see fleet.h. */
#include "tests/comm/fleet.h"
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct zt_comm_id fleet_id;
static struct zt_comm_door
    *first_door; /* of rank 0: the id names it, so it is open before the fork */

void fleet_check(const struct rank *r, bool ok, const char *what, const char *file, int line) {
    if (ok) return;
    fprintf(stderr, "rank %d of %d: %s:%d: not true: %s (last error: %d %s)\n", r->rank, r->world,
            file, line, what, r->err.code, r->err.msg);
    fflush(stderr);
    _exit(1);
}

uint64_t fleet_random(uint64_t seed, uint64_t i) {
    uint64_t z = seed * UINT64_C(0xD1342543DE82EF95) + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
float fleet_float(uint64_t seed, uint64_t i) {
    uint64_t z = fleet_random(seed, i);
    float m = (float)(int32_t)(z >> 40) / 16777216.0f - 0.5f;
    return ldexpf(m, (int)(z & 15) - 8);
}
int64_t fleet_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
void fleet_pause(void) { sched_yield(); }

void *fleet_device(struct rank *r, size_t bytes, size_t skip) {
    char *p = r->segment + r->used + skip;
    int fd;
    void *base;
    size_t room;
    CHECK(r, zt_device_cpu_memory(r->d, &fd, &base, &room) == 0);
    r->used += (bytes + skip + 127) / 64 * 64;
    CHECK(r, r->used <= zt_device_capacity(r->d));
    return p;
}
void *fleet_host(struct rank *r, size_t bytes, size_t skip) {
    static struct keep { struct keep *next; } * all; /* reachable, so no leak */
    struct keep *k = malloc(sizeof *k + bytes + skip + 64);
    CHECK(r, k != NULL);
    k->next = all;
    all = k;
    return (char *)(k + 1) + skip;
}
void fleet_note(struct rank *r, int code) {
    struct fleet_board *b = r->board;
    atomic_store(&b->at_ns[r->rank], fleet_now());
    memcpy(b->text[r->rank], r->err.msg, sizeof r->err.msg);
    atomic_store(&b->failed_rank[r->rank], r->comm ? zt_comm_failed_rank(r->comm) : -1);
    atomic_store(&b->code[r->rank], code);
}

const char *fleet_hosts(int world) {
    static const char *const mixed[] = {"",      "a",      "ab",      "aab",     "abab",
                                        "abbac", "abbacc", "abbaccb", "abbaccba"};
    static const char *const uneven[] = {"",      "a",      "ab",      "abb",     "aaab",
                                         "aaaab", "aaaaab", "aaaaaab", "aaaaabbb"};
    const char *kind = getenv("ZT_TEST_HOSTS");
    if (!kind || world < 2) return NULL;
    if (!strcmp(kind, "each")) return "abcdefgh";
    return !strcmp(kind, "mixed") ? mixed[world] : !strcmp(kind, "uneven") ? uneven[world] : NULL;
}

static struct zt_comm_door *open_door(const struct fleet *f, int as, struct zt_error *err) {
    char host[8], address[16];
    struct zt_comm_door *door = NULL;
    if (!f->hosts) return NULL;
    snprintf(host, sizeof host, "host-%c", f->hosts[as]);
    snprintf(address, sizeof address, "127.0.0.%d", 2 + f->hosts[as] - 'a');
    struct zt_comm_site site = {host, address, f->socket_bytes};
    if (zt_comm_door_open(&site, &door, err)) fprintf(stderr, "no door: %s\n", err->msg);
    return door;
}
struct zt_comm_door *fleet_door(struct rank *r, int as) {
    struct zt_comm_door *door = as == 0 ? first_door : NULL;
    if (as == 0) first_door = NULL;
    return door ? door : open_door(r->fleet, as, &r->err);
}
int fleet_init(struct rank *r, const struct zt_comm_id *id, int as, int world, double timeout_s) {
    return zt_comm_init_at(fleet_door(r, as), id, as, world, r->d, timeout_s, &r->comm, &r->err);
}

static void run_rank(const struct fleet *f, int rank, struct fleet_board *board) {
    struct rank r = {.rank = rank, .world = f->world, .board = board, .arg = f->arg, .fleet = f};
    struct zt_device_config c = {"cpu", f->device_bytes ? f->device_bytes : (size_t)64 << 20};
    void *segment = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (rank != 0) {
        zt_comm_door_close(first_door);
        first_door = NULL;
    }
    CHECK(&r, zt_device_open(&c, &r.d, &r.err) == 0);
    r.ops = zt_device_ops(r.d);
    r.compute = zt_device_compute(r.d);
    CHECK(&r, r.ops->segment_alloc(r.d, c.capacity_bytes, &segment, &r.err) == 0);
    CHECK(&r, r.ops->stream_create(r.d, ZT_STREAM_REDUCE, &r.stream, &r.err) == 0);
    r.segment = segment;
    double timeout = f->init_timeout > 0 ? f->init_timeout : 60;
    if (!f->no_init) CHECK(&r, fleet_init(&r, &fleet_id, rank, f->world, timeout) == 0);
    CHECK(&r, f->body(&r) == 0);
    r.ops->stream_destroy(r.stream);
    zt_comm_destroy(r.comm);
    zt_device_close(r.d);
    _exit(0); /* leaks are looked for in test_threads.c: the checker cannot in a forked process */
}

struct fleet_run fleet_start(const struct fleet *given) {
    struct fleet_run run = {.world = given->world};
    struct fleet own = *given;
    const struct fleet *f = &own;
    struct zt_error err = {0};
    run.board =
        mmap(NULL, sizeof *run.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.board == MAP_FAILED) abort();
    if (!own.hosts) own.hosts = fleet_hosts(own.world);
    first_door = open_door(f, 0, &err);
    if ((f->hosts && !first_door) || zt_comm_mint_at(first_door, &fleet_id, &err)) abort();
    for (int i = 0; i < FLEET_MAX; i++) run.status[i] = -1;
    fflush(NULL);
    for (int i = 0; i < f->world; i++) {
        run.pid[i] = fork();
        if (run.pid[i] < 0) abort();
        if (run.pid[i] == 0) run_rank(f, i, run.board);
    }
    zt_comm_door_close(first_door);
    first_door = NULL;
    return run;
}

bool fleet_wait(struct fleet_run *run, double limit_s) {
    int64_t deadline = fleet_now() + (int64_t)(limit_s * 1e9);
    for (;;) {
        int left = 0;
        for (int i = 0; i < run->world; i++) {
            if (run->status[i] != -1) continue;
            int status = 0;
            if (waitpid(run->pid[i], &status, WNOHANG) == run->pid[i])
                run->status[i] = status;
            else
                left++;
        }
        if (!left) return true;
        if (fleet_now() > deadline) return false;
        struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
}

void fleet_end(struct fleet_run *run) {
    for (int i = 0; i < run->world; i++)
        if (run->status[i] == -1) {
            kill(run->pid[i], SIGKILL);
            waitpid(run->pid[i], &run->status[i], 0);
        }
    munmap(run->board, sizeof *run->board);
}

bool fleet_ok(const struct fleet *f, double limit_s) {
    struct fleet_run run = fleet_start(f);
    bool ok = fleet_wait(&run, limit_s);
    if (!ok) fprintf(stderr, "the ranks did not end within %.0f s\n", limit_s);
    for (int i = 0; i < run.world; i++)
        if (run.status[i] != 0) {
            fprintf(stderr, "rank %d ended with status 0x%x\n", i, (unsigned)run.status[i]);
            ok = false;
        }
    fleet_end(&run);
    return ok;
}
