/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_trace.c: see plan_charts.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clients/zctl/plan_charts.h"
#include "engine/trace/chrome.h"

/* ---------------------------------------------------------------------------------- phases */

static void put(struct zt_plan_phase *out, int max, int *n, struct zt_plan_phase p) {
    if (*n > 0 && *n <= max)
        out[*n - 1].end_ns = p.start_ns;
    if (*n < max)
        out[*n] = p;
    ++*n;
}

int zt_plan_phases(const struct zt_plan *p, struct zt_plan_phase *out, int max) {
    int64_t update = p->step_ns - llround(p->optimizer_seconds * 1e9);
    enum zt_phase now = ZT_PHASE_INIT; /* of no part yet */
    int n = 0, micro = -1;
    for (size_t i = 0; i < p->n_spans; i++) {
        const struct zt_interval *iv = &p->spans[i];
        bool forward = iv->kind == ZT_IV_COMPUTE && strcmp(iv->name, "forward") == 0;
        bool backward = iv->kind == ZT_IV_COMPUTE && strcmp(iv->name, "backward") == 0;
        enum zt_phase phase = forward ? ZT_PHASE_FORWARD : backward ? ZT_PHASE_BACKWARD : now;
        if (phase == now || iv->start_ns >= update)
            continue;
        micro += forward;
        put(out, max, &n, (struct zt_plan_phase){phase, micro, n ? iv->start_ns : 0, p->step_ns});
        now = phase;
    }
    put(out, max, &n, (struct zt_plan_phase){ZT_PHASE_OPTIMIZER, -1, update, p->step_ns});
    return n;
}

/* ---------------------------------------------------------------------------------- trace */

static const struct zt_comm_group *group_of(const struct zt_plan *p, const char *name) {
    for (int i = 0; i < p->n_groups; i++)
        if (strcmp(p->groups[i].name, name) == 0)
            return &p->groups[i];
    return NULL;
}

static void phases(struct zt_chrome *t, const struct zt_plan *p) {
    enum { MOST = 4096 };
    struct zt_plan_phase part[MOST];
    char name[64];
    int n = zt_plan_phases(p, part, MOST);
    snprintf(name, sizeof name, "ProfilerStep#%lld", p->n_collectives ? (long long)p->collectives[0].step : 1LL);
    zt_chrome_phase(t, name, 0, p->step_ns);
    for (int i = 0; i < n && i < MOST; i++) {
        snprintf(name, sizeof name, "%s", zt_phase_name(part[i].phase));
        if (part[i].micro >= 0 && p->accumulation > 1)
            snprintf(name, sizeof name, "%s %d of %lld", zt_phase_name(part[i].phase), part[i].micro + 1,
                     (long long)p->accumulation);
        zt_chrome_phase(t, name, part[i].start_ns, part[i].end_ns);
    }
}

static void memory(struct zt_chrome *t, const struct zt_plan *p) {
    const struct zt_plan_point *last = p->n_curve ? &p->curve[p->n_curve - 1] : NULL;
    for (size_t i = 0; i < p->n_curve; i++)
        zt_chrome_memory(t, p->curve[i].at_ns, p->curve[i].by_tag, p->curve[i].reserved);
    if (last && last->at_ns < p->step_ns)
        zt_chrome_memory(t, p->step_ns, last->by_tag, last->reserved);
}

static void head(struct zt_chrome *t, const struct zt_plan *p, const struct zt_spec *s, FILE *f) {
    char process[256], note[256] = "times are estimates, bytes are exact";
    snprintf(process, sizeof process, "rank %d of %d, plan of %s: %s, replicate %d x shard %d", p->shape[0].rank, p->world,
             s->name, zt_mode_name(s->parallelism.mode), s->parallelism.replicate, s->parallelism.shard);
    if (p->dropped > 0)
        snprintf(note, sizeof note, "times are estimates, bytes are exact; the first %lld collectives of the step are "
                 "not in this file", (long long)p->dropped);
    size_t used = strlen(note);
    if (p->micro_steps_simulated < p->accumulation)
        snprintf(note + used, sizeof note - used, "; the step is shown with %lld of its %lld micro-steps",
                 (long long)p->micro_steps_simulated, (long long)p->accumulation);
    zt_chrome_begin(t, f, &(struct zt_chrome_head){"sim", process, note, p->shape[0].rank, p->world});
}

int zt_plan_write_trace(const struct zt_plan *p, const struct zt_spec *s, const char *path, struct zt_error *err) {
    struct zt_chrome t;
    struct stat st;
    bool standard = strcmp(path, "-") == 0;
    if (p->step_ns <= 0)
        return zt_fail(err, ZT_EINTERNAL, "%s: the plan was made without its step in detail", path);
    FILE *f = standard ? stdout : fopen(path, "we");
    if (!f)
        return zt_fail(err, ZT_EINVAL, "%s: the trace cannot be written: %s", path, strerror(errno));
    head(&t, p, s, f);
    phases(&t, p);
    for (size_t i = 0; i < p->n_spans; i++)
        zt_chrome_interval(&t, &p->spans[i]);
    for (int64_t i = 0; i < p->n_collectives; i++)
        zt_chrome_collective(&t, &p->collectives[i], group_of(p, p->collectives[i].group), p->exposed_ns[i],
                             p->stall_ns[i]);
    memory(&t, p);
    int rc = zt_chrome_end(&t, err);
    bool file = !standard && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode);
    if (!standard && fclose(f) != 0 && rc == 0)
        rc = zt_fail(err, ZT_EIO, "the trace cannot be written: %s", strerror(errno));
    if (rc && file)
        unlink(path);
    return rc ? zt_fail_prefix(err, "%s", path) : 0;
}
