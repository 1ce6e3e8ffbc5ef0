/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_charts.h: a plan to look at: the simulated step as a trace, its memory as charts. Plans are
 * borrowed; those whose step is shown were made with details. One thread. */
#ifndef ZT_ZCTL_PLAN_CHARTS_H
#define ZT_ZCTL_PLAN_CHARTS_H
#include "core/cost.h"
#include "core/spec.h"
#include "engine/plan/plan.h"

/* The parts of the step, each until the next: forward and backward of every micro-step, then the update, which
 * has micro -1. Waiting for gradients counts as backward. Returns how many there are, fills at most max. */
struct zt_plan_phase { enum zt_phase phase; int micro; int64_t start_ns, end_ns; };
int zt_plan_phases(const struct zt_plan *p, struct zt_plan_phase *out, int max);

/* The step of shape 0 for chrome://tracing, ui.perfetto.dev and analysers of profiles (engine/trace/chrome.h).
 * path "-": standard output. ZT_EINVAL: it cannot be opened; ZT_EIO: not be written, and what was is removed. */
int zt_plan_write_trace(const struct zt_plan *p, const struct zt_spec *s, const char *path, struct zt_error *err);

#endif
