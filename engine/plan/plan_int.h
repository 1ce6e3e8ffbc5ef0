/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan_int.h: between plan.c (what is simulated, what it means) and plan_record.c (one
 * simulated run and what is written down of it). Private to engine/plan. */
#ifndef ZT_ENGINE_PLAN_INT_H
#define ZT_ENGINE_PLAN_INT_H
#include "engine/device/sim.h"
#include "engine/plan/plan.h"
#include "engine/train.h"

/* One simulated run. */
struct plan_run {
    const struct zt_plan_config *c;
    const struct zt_spec *spec; /* with the steps and evaluations of the simulation */
    int rank;
    int64_t capacity;
    struct zt_sim sim;
    bool details;
    /* out */
    struct zt_plan_shape shape; /* windows */
    struct zt_step_report last; /* of the last step */
    struct zt_train_result result;
    struct zt_plan_traffic traffic[ZT_PLAN_TRAFFIC_MAX]; /* of the last step, with details */
    int n_traffic;
    struct zt_plan *into; /* details of the last step go here */
    bool overrun;         /* the simulated clock has come to its end */
    int rc;               /* host memory gone while recording */
    struct plan_curve {
        struct zt_plan_point *at;
        size_t n, cap;
        struct zt_plan_point now;
    } curve;
};
/* 0, ZT_EOOM when it does not fit (run->result tells where), or why the trainer refuses. */
int plan_run(struct plan_run *run, struct zt_error *err);
/* plan_save.c: bytes of the files of the rank that writes most of a checkpoint, and which that is; 0 when
 * the run saves nothing. */
int plan_save(const struct zt_spec *s, int64_t *bytes, int *rank, struct zt_error *err);
/* plan_host.c */
int plan_host(const struct zt_plan_config *c, int world, int ranks_per_host,
               struct zt_plan_host *h, struct zt_error *err);

#endif
