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

/* The chart as SVG: a bar a mode, of what makes its peak and of what is reserved besides, against the capacity; below
 * it the step of p in the order of time. Modes without a plan have no bar; at most ZT_PLAN_BARS. Errors: plot.h. */
#define ZT_PLAN_BARS 32
struct zt_plan_bar { const char *label; const struct zt_plan *plan; bool chosen; };
int zt_plan_draw(const struct zt_plan *p, const struct zt_spec *s, const struct zt_cost_device *d,
                 const struct zt_plan_bar *modes, int n, const char *path, struct zt_error *err);

#endif
