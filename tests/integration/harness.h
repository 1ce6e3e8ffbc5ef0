/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/harness.h: real daemons for a test: zcoord on a port of the kernel's choice, workers,
 * zctl as a user types it, everything in one temporary folder. Each process carries ZT_TEST_ID in its
 * environment, so that what a test left behind is found and named whoever its parent is by then.
 *
 * Every wait has a deadline and fails the test with what was waited for. One thread. */
#ifndef ZT_TESTS_HARNESS_H
#define ZT_TESTS_HARNESS_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CLUSTER_WORKERS_MAX 16

struct cluster {
    char dir[256];   /* temporary folder: coord/ (state), w0/ ... (worker state), logs, run files */
    char id[64];     /* ZT_TEST_ID */
    int port;
    pid_t coord;
    pid_t worker[CLUSTER_WORKERS_MAX];
    int workers;
    bool keep;       /* keep the folder (set on failure to look at it) */
    int coord_nofile; /* descriptor limit of zcoord as `ulimit -n` sets it, 0 = the test's own */
};

/* Zeroed struct in; folder made, nothing started. */
void cluster_init(struct cluster *c);
/* Starts zcoord (again, on the same port after the first time) and waits for its "listening" line. */
void cluster_start_coord(struct cluster *c);
/* Starts worker i with extra arguments ("--memory-gib 1 --host a"), NULL for none. */
void cluster_start_worker(struct cluster *c, int i, const char *extra);
/* Waits until at least n workers are idle. */
void cluster_wait_idle(struct cluster *c, int n);
/* zcoord and n workers, all idle. */
void cluster_start(struct cluster *c, int n);
/* Ends everything that was started, asserts that no process, and removes the folder. */
void cluster_stop(struct cluster *c);
void folder_remove(const char *path);
void cluster_remove(struct cluster *c); /* the folder alone, of a cluster that is kept */

/* Writes text to dir/name and returns its path (static buffer, one per call). */
const char *cluster_file(struct cluster *c, const char *name, const char *text);
/* dir/data.txt, made on first use. */
const char *cluster_data(struct cluster *c);
/* A run file of a tiny model over it: steps, workers, extra YAML lines; mode ddp
 * unless these have a section parallelism. */
const char *cluster_run_file(struct cluster *c, const char *name, int steps, int workers, const char *extra);

struct output { int code; char *out, *err; }; /* exit code (128+n: signal), stdout, stderr */
/* zctl with arguments in one string, split at spaces; waits at most timeout_s. */
struct output zctl(struct cluster *c, double timeout_s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void output_free(struct output *o);
/* zctl ... -o json, parsed; fails the test on another exit code than 0. Caller decrefs. */
json_t *zctl_json(struct cluster *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Lines of -o jsonl as an array. */
json_t *zctl_jsonl(struct cluster *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Any program: argv NULL-terminated, environment of the test plus ZT_TEST_ID, output to file or captured. */
struct output run_program(struct cluster *c, double timeout_s, const char *const argv[]);

double now_s(void);
void nap_ms(int ms); /* between two looks at a condition, never instead of one */
/* Polls until cond(arg) or fails naming `what`. */
void wait_for(bool (*cond)(void *arg), void *arg, double timeout_s, const char *what);

/* State and step of a run by zctl status; "" while the coordinator is away. */
void run_state(struct cluster *c, const char *run, char *state, size_t n, int64_t *step);
void wait_run(struct cluster *c, const char *run, const char *state, double timeout_s);
void wait_step(struct cluster *c, const char *run, int64_t step, double timeout_s);

/* The trainer child of a supervisor, 0 when it has none. */
pid_t trainer_of(pid_t supervisor);
/* Processes that carry this cluster's ZT_TEST_ID, other than `except`; fills pids, returns the count. */
int cluster_processes(const struct cluster *c, pid_t *pids, int max);

/* Paths of the programs under test. */
const char *zcoord_path(void), *zworker_path(void), *zctl_path(void);

#endif
