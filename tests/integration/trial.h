/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/trial.h: runs that faults happen to, and the undisturbed one that they must equal: the same
 * final parameter hash, the same loss in every step, one row a step and rank. Real daemons (harness.h). One thread.
 * Environment: ZT_FAULT_ROUNDS, ZT_FAULT_SEED. */
#ifndef ZT_TESTS_TRIAL_H
#define ZT_TESTS_TRIAL_H
#include "tests/integration/harness.h"

#define TRIAL_STEPS_MAX 400

struct trial {
    struct cluster c;
    int world, steps;
    /* Writes the run file of `name` with these lines more; NULL: cluster_run_file. */
    const char *(*file)(struct trial *t, const char *name, const char *extra);
    /* of the undisturbed run */
    char hash[40];
    double loss[TRIAL_STEPS_MAX];
};

int trial_rounds(int by_default);
/* The `what`-th draw of a round: below `below`. */
uint32_t trial_draw(int round, uint32_t what, uint32_t below);

void trial_submit(struct trial *t, const char *name, const char *extra);
/* Ends the test when the run has none. */
void trial_hash(struct trial *t, const char *name, char hash[40], int64_t *generation);
/* Every step once, of all and of each rank. */
void trial_losses(struct trial *t, const char *name, double *loss);
/* Runs "base" to its end, in its first generation. */
void trial_undisturbed(struct trial *t);
/* The end that every fault must come to. Returns the generation. */
int64_t trial_check(struct trial *t, const char *name, double timeout_s);
/* Waits until all workers are idle again. */
void trial_wait_idle(struct trial *t);
/* Named shared memory that nobody holds, but for what the test library (bxf...) keeps of its own. */
int trial_count_shm(void);
/* Until there is no more of it than before. */
void trial_wait_shm(int before);

#endif
