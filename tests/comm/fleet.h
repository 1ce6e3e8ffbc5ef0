/* SPDX-License-Identifier: Apache-2.0 */
/* tests/comm/fleet.h: forked ranks for tests of collectives, without daemons. fleet_run forks
 * `world` processes; each opens a cpu device, meets the others and runs a body. A failed CHECK prints
 * rank, line and the last error and ends its process with 1. The parent waits for all, never longer
 * than its limit, and kills what is left. */
#ifndef ZT_TESTS_COMM_FLEET_H
#define ZT_TESTS_COMM_FLEET_H
#include <stdatomic.h>
#include <sys/types.h>
#include "engine/comm/comm.h"

enum { FLEET_MAX = 8 };

/* Shared by parent and ranks, zero at the start. */
struct fleet_board {
    _Atomic int64_t progress[FLEET_MAX];
    _Atomic int64_t at_ns[FLEET_MAX]; /* when the rank saw its error */
    _Atomic int code[FLEET_MAX], failed_rank[FLEET_MAX];
    _Atomic int flag[16];
    char text[FLEET_MAX][2048];
};

struct fleet;
struct rank {
    int rank, world;
    struct zt_device *d;
    const struct zt_device_ops *ops;
    struct zt_comm *comm;
    struct zt_stream *compute, *stream; /* stream: a thread */
    struct zt_error err;
    struct fleet_board *board;
    const void *arg;
    const struct fleet *fleet;
    char *segment;
    size_t used;
};

struct fleet {
    int world;
    int (*body)(struct rank *r);
    const void *arg;
    size_t device_bytes; /* 0 = 64 MiB */
    bool no_init;        /* the body makes the communicator itself, with fleet_init */
    double init_timeout;
    const char *hosts;   /* a letter for every rank: equal ones share a host; NULL = fleet_hosts */
    int socket_bytes;
};
extern struct zt_comm_id fleet_id; /* minted by fleet_start */
/* The door of rank `as`: 127.0.0.2 is host a, 127.0.0.3 is host b, and so on. NULL without hosts. */
struct zt_comm_door *fleet_door(struct rank *r, int as);
/* Where the ranks of a world are, as ZT_TEST_HOSTS says: "each" on its own host, "mixed", "uneven";
 * unset: all on one, which is NULL. */
const char *fleet_hosts(int world);
/* zt_comm_init_at into r->comm. */
int fleet_init(struct rank *r, const struct zt_comm_id *id, int as, int world, double timeout_s);

struct fleet_run {
    pid_t pid[FLEET_MAX];
    int status[FLEET_MAX], world;
    struct fleet_board *board;
};
struct fleet_run fleet_start(const struct fleet *f);
/* Waits until all ended (status as of waitpid); false when the limit passed. */
bool fleet_wait(struct fleet_run *run, double limit_s);
void fleet_end(struct fleet_run *run);
/* Start, wait, all exit codes 0? */
bool fleet_ok(const struct fleet *f, double limit_s);

/* Memory of a rank: in its device or on its heap; never freed before the process ends. */
void *fleet_device(struct rank *r, size_t bytes, size_t skip);
void *fleet_host(struct rank *r, size_t bytes, size_t skip);
/* Keeps the outcome of a failed collective on the board. */
void fleet_note(struct rank *r, int code);

void fleet_check(const struct rank *r, bool ok, const char *what, const char *file, int line);
#define CHECK(r, e) fleet_check(r, e, #e, __FILE__, __LINE__)

/* splitmix64 as a pure function of its arguments */
uint64_t fleet_random(uint64_t seed, uint64_t i);
float fleet_float(uint64_t seed, uint64_t i); /* wide spread of exponents: rounding order matters */
int64_t fleet_now(void);
void fleet_pause(void); /* gives the processor away while a condition is polled */

#endif
