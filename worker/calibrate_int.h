/* SPDX-License-Identifier: Apache-2.0 */
/* worker/calibrate_int.h: between the files of calibrate: what the forked ranks share and what is
 * measured. See calibrate.h. */
#ifndef ZT_WORKER_CALIBRATE_INT_H
#define ZT_WORKER_CALIBRATE_INT_H
#include <pthread.h>
#include <stdint.h>

#include "core/cost.h"
#include "engine/comm/comm.h"
#include "kernels/ops.h"
#include "worker/calibrate.h"

#define SMALL_SECONDS 5.0 /* a budget below has no room for the large shapes */
enum { CAL_RANKS = 64, CAL_CASES = 192, CAL_ROUNDS = 128 };

/* One operator on one shape. */
struct cal_case {
    const char *op, *how;      /* "gemm" "fwd", "rows" "gelu_forward", ... */
    enum zt_dtype type;
    int64_t shape[4];
    int dims;
    double flops, bytes, side, head; /* as core/cost counts them */
    int64_t operand, output;   /* elements that its two operands and its result have at most */
    size_t workspace;
};

/* In shared memory. Ranks write their own places only; `more` is rank 0's, between two meetings. */
struct cal_board {
    pthread_barrier_t meeting;
    int more;
    int rounds;
    struct zt_comm_id id;
    int64_t resident[CAL_RANKS]; /* bytes beside the buffers that are measured on */
    float seconds[CAL_RANKS][CAL_CASES][CAL_ROUNDS];
    char describe[128], compute[3][64];
};

struct cal_rank {
    const struct zw_calibration *o;
    struct cal_board *board;
    int rank, ranks, threads;
    double until;                /* zw_cal_now() */
    /* collectives */
    bool across;
    int64_t most;                /* bytes of the largest message */
};

double zw_cal_now(void);
/* Ends the process with the message. */
void zw_cal_must(int rc, const struct zt_error *err);
void zw_cal_meet(struct cal_board *b);
double zw_cal_median(double *v, int n);

/* calibrate_ops.c: the cases for a budget; what a rank runs. */
int zw_cal_cases(bool small, struct cal_case *out);
void zw_cal_operators(struct cal_rank *r, const struct cal_case *cases, int n);

/* calibrate_comm.c: what a rank runs; rank 0 prints. */
void zw_cal_collectives(struct cal_rank *r);

#endif
