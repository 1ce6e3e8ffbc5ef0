/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/drill_compare.c: see drill.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "clients/zctl/drill.h"

#define NOT_REPORTED "not reported"

static bool tell(struct zt_drill_difference *d, int64_t step, const char *field, const char *a, const char *b) {
    d->step = step;
    d->field = field;
    snprintf(d->straight, sizeof d->straight, "%s", a[0] ? a : NOT_REPORTED);
    snprintf(d->resumed, sizeof d->resumed, "%s", b[0] ? b : NOT_REPORTED);
    return false;
}

static bool same_text(const struct zt_drill_step *a, const char *x, const char *y, const char *field, struct zt_drill_difference *d) {
    return (x[0] && strcmp(x, y) == 0) || tell(d, a->step, field, x, y);
}

static const char *count_text(int64_t v, char *buf, size_t n) {
    snprintf(buf, n, "%lld", (long long)v);
    return v < 0 ? "" : buf;
}

static bool same_count(const struct zt_drill_step *a, int64_t x, int64_t y, const char *field, struct zt_drill_difference *d) {
    char p[24], q[24];
    return (x >= 0 && x == y) || tell(d, a->step, field, count_text(x, p, sizeof p), count_text(y, q, sizeof q));
}

static const char *number_text(double v, char *buf, size_t n) {
    snprintf(buf, n, "%.17g", v);
    return isnan(v) ? "" : buf;
}

/* needed: nobody may have left it out; else both may. */
static bool same_number(const struct zt_drill_step *a, double x, double y, bool exactly, bool needed, const char *field,
                        struct zt_drill_difference *d) {
    char p[32], q[32];
    if (isnan(x) && isnan(y) && !needed)
        return true;
    double most = fmax(fabs(x), fabs(y));
    bool close = exactly ? x == y : fabs(x - y) <= ZT_DRILL_TOLERANCE * most;
    return close || tell(d, a->step, field, number_text(x, p, sizeof p), number_text(y, q, sizeof q)); /* a NaN is not close */
}

static bool same_step(const struct zt_drill_step *a, const struct zt_drill_step *b, enum zt_drill_how how,
                      struct zt_drill_difference *d) {
    const bool exactly = how == ZT_DRILL_EXACT;
    return same_text(a, a->sample_hash, b->sample_hash, "sample_hash", d) && same_count(a, a->tokens, b->tokens, "tokens", d) &&
           same_count(a, a->global_batch, b->global_batch, "global_batch", d) &&
           same_number(a, a->lr, b->lr, true, true, "lr", d) &&
           same_number(a, a->loss_scale, b->loss_scale, true, false, "loss_scale", d) &&
           same_number(a, a->loss, b->loss, exactly, true, "loss", d) &&
           same_number(a, a->grad_norm, b->grad_norm, exactly, true, "grad_norm", d) &&
           same_number(a, a->eval_loss, b->eval_loss, exactly, false, "eval_loss", d) &&
           (!exactly || (same_text(a, a->parameter_hash, b->parameter_hash, "parameter_hash", d) &&
                         same_text(a, a->state_hash, b->state_hash, "state_hash", d)));
}

bool zt_drill_equal(const struct zt_drill_step *straight, int n_straight, const struct zt_drill_step *resumed, int n_resumed,
                    int64_t n, enum zt_drill_how how, struct zt_drill_difference *d) {
    for (int64_t i = 0; i < n; i++) {
        char a[24] = "", b[24] = "";
        bool here = i < n_straight && straight[i].step == i + 1, there = i < n_resumed && resumed[i].step == i + 1;
        if (i < n_straight)
            count_text(straight[i].step, a, sizeof a);
        if (i < n_resumed)
            count_text(resumed[i].step, b, sizeof b);
        if (!here || !there)
            return tell(d, i + 1, "step", a, b);
        if (!same_step(&straight[i], &resumed[i], how, d))
            return false;
    }
    return true;
}
