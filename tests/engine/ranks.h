/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/ranks.h: several ranks of one host without daemons: forked processes that share one
 * mapping. A rank returns 0 when all is well; it must not use Criterion's assertions (they belong
 * to the test's process): EXPECT prints and returns 1. Everything is bounded in time by ranks_run.
 */
#ifndef ZT_TESTS_RANKS_H
#define ZT_TESTS_RANKS_H
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/comm/comm.h"

#define RANKS_MAX 8
#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

struct ranks_shared {
    _Atomic int minted;
    struct zt_comm_id id;
};

static inline void *ranks_map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || !p) abort(); /* never NULL: gcc with sanitizers thinks of it */
    return p;
}

static inline void ranks_pause(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static inline double ranks_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Rank 0 publishes the minted id, the others wait for it. Usable as zt_train's comm_id hook. */
static inline int ranks_exchange(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    struct ranks_shared *s = arg;
    if (rank == 0) {
        s->id = *id;
        atomic_store(&s->minted, 1);
        return 0;
    }
    for (double end = ranks_seconds() + 60; ranks_seconds() < end; ranks_pause())
        if (atomic_load(&s->minted)) {
            *id = s->id;
            return 0;
        }
    return zt_fail(err, ZT_ETIMEOUT, "rank 0 minted no id");
}

/* Forks `world` ranks; status[r] = wait status. Returns how many did not end with exit code 0. */
static inline int ranks_run(int world, double limit_s, int (*fn)(int rank, int world, void *arg),
                            void *arg, int *status) {
    pid_t pid[RANKS_MAX], parent = getpid();
    int left = world, bad = 0, own[RANKS_MAX];
    if (!status) status = own;
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        pid[r] = fork();
        if (pid[r] < 0) abort();
        if (pid[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(99);
            int code = fn(r, world, arg);
            fflush(NULL);
            _exit(
                code); /* no leak check: LeakSanitizer cannot stop the threads of a forked child */
        }
    }
    for (double end = ranks_seconds() + limit_s; left; ranks_pause()) {
        for (int r = 0; r < world; r++)
            if (pid[r] && waitpid(pid[r], &status[r], WNOHANG) == pid[r]) {
                pid[r] = 0;
                left--;
                bad += !(WIFEXITED(status[r]) && WEXITSTATUS(status[r]) == 0);
            }
        if (left && ranks_seconds() > end) {
            for (int r = 0; r < world; r++)
                if (pid[r]) {
                    fprintf(stderr, "rank %d of %d did not end within %.0f s\n", r, world, limit_s);
                    kill(pid[r], SIGKILL);
                    waitpid(pid[r], &status[r], 0);
                    bad++;
                    pid[r] = 0;
                }
            return bad;
        }
    }
    return bad;
}

#endif
