/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/drill.h: two series of steps that should be the same, step by step and field by field. Pure; the
 * caller's memory. */
#ifndef ZT_ZCTL_DRILL_H
#define ZT_ZCTL_DRILL_H
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

/* One step, over all ranks. A number that was not reported is NAN, a text "". */
struct zt_drill_step {
    int64_t step;
    double lr, loss, grad_norm, loss_scale, eval_loss;
    int64_t tokens, global_batch;    /* -1: not reported */
    char sample_hash[17];            /* which samples, and at which places of the window */
    char parameter_hash[33], state_hash[33];
};
/* EXACT: the same mesh and mode, so the same bits. CLOSE: another one: loss, gradient norm and evaluation agree to 1e-5
 * (relative to the larger), the hashes of parameters and moments are not compared; all else exactly. */
enum zt_drill_how { ZT_DRILL_EXACT = 0, ZT_DRILL_CLOSE };
#define ZT_DRILL_TOLERANCE 1e-5

struct zt_drill_difference {
    int64_t step;
    const char *field;               /* "step", "lr", "sample_hash", ... */
    char straight[40], resumed[40];  /* as text, to the last digit; "not reported" */
};
/* Steps 1 to n of both, each in ascending order. true: equal; else *d is the first difference: by step, within one in the
 * order of struct zt_drill_step with the data first. What should have been reported and was not is a difference: hashes
 * and losses in both cannot be called equal when nobody computed them. */
bool zt_drill_equal(const struct zt_drill_step *straight, int n_straight, const struct zt_drill_step *resumed, int n_resumed,
                    int64_t n, enum zt_drill_how how, struct zt_drill_difference *d);

#endif
