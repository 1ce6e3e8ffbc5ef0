/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_modes.c: the same run in the other modes on the same ranks, and the first that fits. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/planning.h"
#include "core/units.h"

/* ---------------------------------------------------------------------------------- which */

static bool there_is(const struct zt_planning *p, enum zt_mode mode, int replicate) {
    for (int i = 0; i < p->n_modes; i++)
        if (p->mode[i].mode == mode && p->mode[i].replicate == replicate)
            return true;
    return false;
}

/* replicate: of a mode that shards. Those that do not divide the ranks are no variants. */
static void add(struct zt_planning *p, enum zt_mode mode, int replicate) {
    int dp = zt_mesh_dp(zt_spec_mesh(&p->spec));
    if (mode == ZT_DDP)
        replicate = dp;
    if (replicate < 1 || dp % replicate != 0 || (mode != ZT_DDP && replicate > 1 && replicate == dp) ||
        there_is(p, mode, replicate) || p->n_modes == ZT_PLANNED_MODES)
        return;
    const struct zt_spec *s = &p->spec;
    p->mode[p->n_modes++] = (struct zt_planned_mode){
        .mode = mode, .replicate = replicate, .shard = dp / replicate,
        .chosen = mode == s->parallelism.mode && replicate == s->parallelism.replicate};
}

/* In the order of the traffic that they cost: the last ones that only fit everything. */
static void list_modes(struct zt_planning *p) {
    const struct zt_spec *s = &p->spec;
    int own = s->parallelism.shard > 1 ? s->parallelism.replicate : 1;
    add(p, ZT_DDP, 0);
    add(p, ZT_ZERO1, own);
    add(p, ZT_ZERO2, own);
    if (p->hosts > 1)
        add(p, ZT_FSDP, p->hosts > own ? p->hosts : own);
    add(p, ZT_FSDP, own > 1 ? own : p->hosts);
    add(p, ZT_FSDP, 1);
    add(p, ZT_ZERO3, own);
    add(p, s->parallelism.mode, s->parallelism.replicate);
}

/* ---------------------------------------------------------------------------------- plans */

static void first_line(char *to, size_t n, const char *text) {
    size_t len = strcspn(text, "\n");
    snprintf(to, n, "%.*s", (int)(len < n ? len : n - 1), text);
}

/* zt_plan_mode keeps the replicas of a file that shards: it is told how many by the file's mesh. */
static int plan_of(const struct zt_planning *p, struct zt_planned_mode *m, struct zt_error *err) {
    struct zt_spec *like = malloc(2 * sizeof *like), *other = like ? like + 1 : NULL;
    if (!like)
        return zt_fail(err, ZT_ENOMEM, "no memory for a plan");
    *like = p->spec;
    like->parallelism.replicate = m->replicate;
    like->parallelism.shard = m->shard;
    struct zt_plan_config c = p->config;
    struct zt_error why = {0};
    int rc = zt_plan_mode(like, m->mode, other, &why);
    c.spec = other;
    rc = rc ? rc : zt_plan_make(&c, &m->plan, &why);
    free(like);
    if (rc == ZT_ENOMEM)
        return zt_fail(err, rc, "%s", why.msg);
    if (rc)
        first_line(m->why, sizeof m->why, why.msg);
    return 0;
}

bool zt_plan_has_room(const struct zt_plan *p) {
    return p->fits && (double)p->peak_allocated_bytes <= ZT_PLAN_ROOM * (double)p->capacity_bytes;
}

/* Plans share nothing that changes: each thread takes the next row that is not made. */
struct work { struct zt_planning *p; _Atomic int next, rc; };

static void *make_rows(void *arg) {
    struct work *w = arg;
    struct zt_error err;
    for (int i; (i = w->next++) < w->p->n_modes;) {
        int rc = w->p->mode[i].chosen ? 0 : plan_of(w->p, &w->p->mode[i], &err);
        if (rc)
            w->rc = rc;
    }
    return NULL;
}

int zt_planning_modes(struct zt_planning *p, struct zt_error *err) {
    struct work w = {.p = p};
    pthread_t thread[ZT_PLANNED_MODES];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0;
    list_modes(p);
    while (n + 1 < cores && n + 1 < p->n_modes && pthread_create(&thread[n], NULL, make_rows, &w) == 0)
        n++;
    make_rows(&w);
    while (n > 0)
        pthread_join(thread[--n], NULL);
    if (w.rc)
        return zt_fail(err, w.rc, "no memory for a plan");
    for (int i = 0; i < p->n_modes; i++) {
        struct zt_planned_mode *m = &p->mode[i];
        if (m->chosen)
            m->plan = p->plan;
        if (p->first < 0 && m->plan && zt_plan_has_room(m->plan))
            p->first = i;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------- words */

const char *zt_planned_mode_name(const struct zt_planned_mode *m, char *buf, size_t n) {
    if (m->mode == ZT_DDP || m->replicate == 1)
        snprintf(buf, n, "%s", zt_mode_name(m->mode));
    else
        snprintf(buf, n, "%s x %d", zt_mode_name(m->mode), m->replicate);
    return buf;
}

static const char *because(const struct zt_planned_mode *m) {
    if (m->mode == ZT_DDP)
        return "everything fits whole on each rank, and nothing sends less";
    if (m->mode == ZT_ZERO1)
        return "only the optimizer's state has to be cut; it sends no more than ddp";
    if (m->mode == ZT_ZERO2)
        return "the gradients have to be cut too, the parameters need not";
    if (m->replicate > 1)
        return "the parameters have to be cut too, and a group of ranks holds them: what crosses groups is one "
               "all-reduce of a shard";
    return m->mode == ZT_FSDP ? "the parameters have to be cut too, over all ranks"
                              : "the root unit has to be freed after forward too";
}

/* The mode that needs least, and what of it is largest. */
static const char *none_fits(const struct zt_planning *p, double limit, char *buf, size_t n) {
    const struct zt_planned_mode *least = NULL;
    char name[40], a[32], b[32], c[32];
    for (int i = 0; i < p->n_modes; i++)
        if (p->mode[i].plan && (!least || p->mode[i].plan->peak_allocated_bytes < least->plan->peak_allocated_bytes))
            least = &p->mode[i];
    if (!least) {
        snprintf(buf, n, "no mode can take this run");
        return buf;
    }
    int top = 0;
    for (int t = 1; t < ZT_TAG_COUNT; t++)
        if (least->plan->at_peak[t] > least->plan->at_peak[top])
            top = t;
    snprintf(buf, n, "no mode fits in %s: %s needs least, %s, of which %s %s%s", zt_format_bytes(limit, a, sizeof a),
             zt_planned_mode_name(least, name, sizeof name),
             zt_format_bytes((double)least->plan->peak_allocated_bytes, b, sizeof b), zt_tag_name((enum zt_tag)top),
             zt_format_bytes((double)least->plan->at_peak[top], c, sizeof c),
             top == ZT_TAG_ACTIVATIONS || top == ZT_TAG_TEMPORARY
                 ? ": a smaller training.local_batch_size first"
                 : ": more ranks to cut it over, or a recipe of fewer bytes");
    return buf;
}

const char *zt_planning_first(const struct zt_planning *p, char *buf, size_t n) {
    double limit = ZT_PLAN_ROOM * (double)p->plan->capacity_bytes;
    char name[40], a[32], b[32], c[32];
    if (p->first < 0)
        return none_fits(p, limit, buf, n);
    const struct zt_planned_mode *m = &p->mode[p->first];
    snprintf(buf, n, "%s: its peak, %s, is within %.2f x %s = %s; %s", zt_planned_mode_name(m, name, sizeof name),
             zt_format_bytes((double)m->plan->peak_allocated_bytes, a, sizeof a), ZT_PLAN_ROOM,
             zt_format_bytes((double)m->plan->capacity_bytes, b, sizeof b), zt_format_bytes(limit, c, sizeof c),
             because(m));
    return buf;
}
