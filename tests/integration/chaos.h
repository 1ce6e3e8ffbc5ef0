/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/chaos.h: schedules of faults, drawn from a seed, and what carries them out on real processes.
 * Everything runs in a network of its own that has only the loopback device, in which links can be cut, and in a
 * mount namespace of its own, with a small file system for checkpoints that can be filled. One thread. */
#ifndef ZT_TESTS_CHAOS_H
#define ZT_TESTS_CHAOS_H
#include "tests/integration/trial.h"

#define CHAOS_FAULTS_MAX 3

enum chaos_kind {
    CHAOS_KILL_TRAINER = 0, CHAOS_KILL_WORKER, CHAOS_KILL_COORD, /* the last two are started again */
    CHAOS_STOP_TRAINER, CHAOS_STOP_WORKER, CHAOS_STOP_COORD,     /* SIGSTOP, and SIGCONT a while later */
    CHAOS_CUT_HOSTS, CHAOS_CUT_ONE_WAY, CHAOS_CUT_COORD,         /* packets vanish for a while */
    CHAOS_FILL_DISK,                                             /* of the checkpoints, for a while */
    CHAOS_DRAIN_WORKER,                                          /* SIGTERM; started again when it is gone */
    CHAOS_KINDS
};
const char *chaos_kind_name(enum chaos_kind k);

/* When it happens: so many steps after the one before, while a save is under way, while the fault before is
 * recovered from, or at once with it. */
enum chaos_when { CHAOS_AT_STEP = 0, CHAOS_IN_SAVE, CHAOS_IN_RECOVERY, CHAOS_AT_ONCE, CHAOS_WHENS };
const char *chaos_when_name(enum chaos_when w);

struct chaos_fault {
    enum chaos_kind kind;
    enum chaos_when when;
    int victim, steps, delay_ms, length_ms; /* delay: after the moment; length: until it is undone */
    double at_ms;                           /* wall clock, when it was done; 0: the run was over */
    int64_t step;                           /* recorded by then */
};
struct chaos_schedule { int round, n; struct chaos_fault fault[CHAOS_FAULTS_MAX]; };

struct chaos {
    struct trial t;
    char folder[300];     /* of checkpoints */
    bool networks, disks; /* links can be cut; the folder is a file system of its own */
    bool saves;
    int undone;           /* what is still to be undone */
    struct chaos_undo { double due_s; enum chaos_kind kind; int victim; pid_t pid; } undo[8];
};

/* Namespaces, a file system of so many MiB, coordinator and workers, by turns on host-a and host-b. */
void chaos_start(struct chaos *x, int world, int steps, int mib);
void chaos_stop(struct chaos *x);

/* The same round and seed give the same schedule. */
void chaos_draw(const struct chaos *x, int round, struct chaos_schedule *s);
/* Carries it out on a run that was submitted, and undoes what was done. */
void chaos_carry_out(struct chaos *x, const char *run, struct chaos_schedule *s);

double chaos_wall_ms(void);
#endif
