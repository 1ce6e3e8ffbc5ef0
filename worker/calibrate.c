/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate.c: see calibrate.h. The parent forks, waits and prints; calibrate_ops.c and
 * calibrate_comm.c measure. */
#include "worker/calibrate_int.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/units.h"
#include "engine/train.h"

#define EXIT_FAILED 10

double zw_cal_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void zw_cal_must(int rc, const struct zt_error *err)
{
    if (rc == 0) {
        return;
    }
    fprintf(stderr, "zworker: calibrate: %s\n", err->msg);
    _exit(rc == ZT_EUNSUPPORTED || rc == ZT_EINVAL ? 2 : EXIT_FAILED);
}

void zw_cal_meet(struct cal_board *b)
{
    pthread_barrier_wait(&b->meeting);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double zw_cal_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* ------------------------------------------------------------------------------------- the ranks */

static struct cal_board *new_board(int ranks)
{
    pthread_barrierattr_t attr;
    struct cal_board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) {
        return NULL;
    }
    if (pthread_barrierattr_init(&attr) || pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) ||
        pthread_barrier_init(&b->meeting, &attr, (unsigned)ranks)) {
        munmap(b, sizeof(*b));
        return NULL;
    }
    return b;
}

/* Waits for all; the first that fails takes the others with it, who would wait for it for ever. */
static int wait_for_ranks(pid_t *pid, int n)
{
    int code = 0;
    for (int left = n; left > 0;) {
        int status, i = 0;
        pid_t p = wait(&status);
        while (p > 0 && i < n && pid[i] != p) {
            i++;
        }
        if (p < 0) {
            return EXIT_FAILED;
        }
        if (i == n) {
            continue;
        }
        pid[i] = 0;
        left--;
        if (status == 0 || code != 0) {
            continue;
        }
        code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
        if (WIFSIGNALED(status)) {
            fprintf(stderr, "zworker: calibrate: a measuring process ended by signal %d\n", WTERMSIG(status));
        }
        for (int k = 0; k < n; k++) {
            if (pid[k] > 0) {
                kill(pid[k], SIGKILL);
            }
        }
    }
    return code;
}

typedef void rank_fn(struct cal_rank *r);

static int fork_ranks(const struct cal_rank *like, rank_fn *fn)
{
    pid_t pid[CAL_RANKS], parent = getpid();
    fflush(stdout);
    for (int i = 0; i < like->ranks; i++) {
        pid[i] = fork();
        if (pid[i] < 0) {
            fprintf(stderr, "zworker: calibrate: cannot start a process\n");
            for (int k = 0; k < i; k++) {
                kill(pid[k], SIGKILL);
            }
            wait_for_ranks(pid, i);
            return EXIT_FAILED;
        }
        if (pid[i] == 0) {
            struct cal_rank r = *like;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) {
                _exit(EXIT_FAILED);
            }
            r.rank = i;
            fn(&r);
            fflush(stdout);
            _exit(0);
        }
    }
    return wait_for_ranks(pid, like->ranks);
}

/* ----------------------------------------------------------------------------------- operators */

static struct cal_case cases[CAL_CASES];
static int n_cases;

static void operators(struct cal_rank *r)
{
    zw_cal_operators(r, cases, n_cases);
}

static void print_case(const struct cal_case *c, const struct cal_board *b, int ranks, int i)
{
    double round[CAL_ROUNDS];
    for (int k = 0; k < b->rounds; k++) {
        round[k] = 0;
        for (int r = 0; r < ranks; r++) {
            round[k] = fmax(round[k], (double)b->seconds[r][i][k]);
        }
    }
    printf("{\"operator\":\"%s\",\"how\":\"%s\",\"type\":\"%s\",\"shape\":[", c->op, c->how, zt_dtype_name(c->type));
    for (int k = 0; k < c->dims; k++) {
        printf("%s%lld", k ? "," : "", (long long)c->shape[k]);
    }
    printf("],\"flops\":%.17g,\"bytes\":%.17g,\"side\":%.17g,\"head\":%.17g,\"rounds\":%d,\"seconds\":%.9g}\n",
           c->flops, c->bytes, c->side, c->head, b->rounds, zw_cal_median(round, b->rounds));
}

static void print_machine(const struct zw_calibration *o, const struct cal_board *b, int threads)
{
    int64_t resident = 0;
    for (int i = 0; i < o->ranks; i++) {
        resident = b->resident[i] > resident ? b->resident[i] : resident;
    }
    printf("{\"machine\":{\"kernels\":\"%s\",\"isa\":\"%.*s\",\"ranks\":%d,\"threads\":%d,\"cores\":%ld,"
           "\"memory_bytes\":%lld,\"resident_bytes\":%lld,\"computes_in\":{\"fp32\":\"%s\",\"bf16\":\"%s\","
           "\"fp16\":\"%s\"}}}\n",
           b->describe, (int)strcspn(b->describe, ","), b->describe, o->ranks, threads,
           sysconf(_SC_NPROCESSORS_ONLN), (long long)zt_default_capacity(o->ranks), (long long)resident,
           b->compute[0], b->compute[1], b->compute[2]);
}

static int measure_operators(const struct zw_calibration *o, int threads, double seconds)
{
    struct cal_board *b = new_board(o->ranks);
    struct cal_rank like = {.o = o, .board = b, .ranks = o->ranks, .threads = threads,
                            .until = zw_cal_now() + seconds};
    if (!b) {
        fprintf(stderr, "zworker: calibrate: no shared memory\n");
        return EXIT_FAILED;
    }
    bool small = o->seconds < SMALL_SECONDS;
    n_cases = zw_cal_cases(small, cases);
    if (small) {
        printf("{\"cut\":\"only small shapes: the budget of %g s is below %g s\"}\n", o->seconds, SMALL_SECONDS);
    }
    int rc = fork_ranks(&like, operators);
    if (rc == 0) {
        print_machine(o, b, threads);
        for (int i = 0; i < n_cases; i++) {
            print_case(&cases[i], b, o->ranks, i);
        }
    }
    munmap(b, sizeof(*b));
    return rc;
}

/* --------------------------------------------------------------------------------- collectives */

/* Half of what is free, for all ranks' two buffers: the whole one and a rank's share. */
static int64_t largest_message(int ranks)
{
    const int64_t most = (int64_t)ZT_GIB;
    int64_t room = zt_default_capacity(1), m = most;
    while (m > 4096 && ranks * (m + m / ranks + 4 * (int64_t)ZT_MIB) > room) {
        m /= 4;
    }
    if (m < most) {
        printf("{\"cut\":\"messages up to %lld bytes instead of %lld: half of the free memory is %lld bytes, for "
               "%d processes\"}\n",
               (long long)m, (long long)most, (long long)room, ranks);
    }
    return m;
}

static int measure_link(const struct zw_calibration *o, bool across, double seconds)
{
    int ranks = o->ranks < 2 ? 2 : o->ranks;
    ranks -= across ? ranks % 2 : 0; /* as many on either host */
    struct cal_board *b = new_board(ranks);
    if (!b) {
        fprintf(stderr, "zworker: calibrate: no shared memory\n");
        return EXIT_FAILED;
    }
    struct cal_rank like = {.o = o, .board = b, .ranks = ranks, .across = across,
                            .most = largest_message(ranks), .until = zw_cal_now() + seconds};
    int rc = fork_ranks(&like, zw_cal_collectives);
    munmap(b, sizeof(*b));
    return rc;
}

int zw_calibrate(const struct zw_calibration *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = o->threads;
    if (threads == 0) {
        threads = cores / o->ranks > 1 ? (int)(cores / o->ranks) : 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = measure_operators(o, threads, o->comm ? o->seconds / 2 : o->seconds);
    for (int across = 0; rc == 0 && o->comm && across < 2; across++) {
        rc = measure_link(o, across, o->seconds / 4);
    }
    if (rc == 0) {
        printf("{\"done\":true}\n");
    }
    return fflush(stdout) == 0 ? rc : EXIT_FAILED;
}
