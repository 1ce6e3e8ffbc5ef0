/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/train_util.h: whole runs of zt_train on forked ranks, without daemons; reports,
 * results and events of every rank end up in one shared struct. Uses Criterion in the test's
 * process only. */
#ifndef ZT_TESTS_ENGINE_TRAIN_UTIL_H
#define ZT_TESTS_ENGINE_TRAIN_UTIL_H
#include <criterion/criterion.h>

#include "engine/train_int.h"
#include "tests/engine/data_util.h"
#include "tests/engine/ranks.h"

#define TRAIN_STEPS_MAX 32
#define TRAIN_EVENTS_MAX 16
#define TRAIN_TRACES_MAX 8
#define TRAIN_RECORDS_MAX 96

/* What the hook `collectives` was given for one step. */
struct train_trace {
    int64_t step, start_ns, end_ns, n, dropped;
    struct zt_coll_record record[TRAIN_RECORDS_MAX];
    int64_t exposed_ns[TRAIN_RECORDS_MAX], stall_ns[TRAIN_RECORDS_MAX];
    int n_groups;
    struct {
        char name[16];
        int size, first, last;
    } group[8];
};

struct train_rank {
    int rc;
    struct zt_error err;
    struct zt_train_result result;
    _Atomic int steps, last; /* last: of the run, reported */
    struct zt_step_report report[TRAIN_STEPS_MAX + 1]; /* by step, from 1 */
    int n_dtypes;
    struct zt_dtypes_report dtypes;
    int n_events;
    struct {
        char kind[32], message[256];
    } event[TRAIN_EVENTS_MAX];
    int n_traces;
    struct train_trace trace[TRAIN_TRACES_MAX];
};
struct train_job {
    struct ranks_shared shared;
    char yaml[2048];
    int world, threads;
    int64_t capacity, capacity_of_1; /* rank 1's own when not 0 */
    struct zt_progress *progress;
    size_t progress_bytes;               /* rank 0's page, NULL = none */
    struct zt_progress *page[RANKS_MAX]; /* the others' */
    int stop_rank;
    int64_t stop_step; /* rank asks to stop after this step; 0 = never */
    int sleep_rank;
    long sleep_ms;                /* rank sleeps this long in each step's hook */
    struct zt_comm_inject inject; /* on every rank; all zero = none */
    int kill_rank;
    int64_t kill_step; /* rank dies in this step's hook; 0 = never */
    int fail_rank;
    char fail[64]; /* that rank's ZT_FAIL, "" = none */
    /* what saving needs, asked for in the rank's own process; NULL = it saves nothing */
    const struct zt_checkpoint_config *(*checkpoint)(struct train_job *j, int rank);
    void *board; /* of save_util.h */
    struct train_rank rank[RANKS_MAX];
};
struct train_self {
    struct train_job *job;
    int rank;
};

static int hook_comm_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    return ranks_exchange(&((struct train_self *)arg)->job->shared, rank, id, err);
}

static int hook_step(void *arg, const struct zt_step_report *r, struct zt_error *err) {
    struct train_self *s = arg;
    struct train_rank *me = &s->job->rank[s->rank];
    (void)err;
    if (r->step <= TRAIN_STEPS_MAX) me->report[r->step] = *r;
    atomic_fetch_add(&me->steps, 1);
    if (r->last) atomic_store(&me->last, 1);
    if (s->job->kill_step == r->step && s->job->kill_rank == s->rank) raise(SIGKILL);
    if (s->job->sleep_ms && s->job->sleep_rank == s->rank)
        nanosleep(&(struct timespec){s->job->sleep_ms / 1000, s->job->sleep_ms % 1000 * 1000000},
                  NULL);
    return 0;
}

static void hook_event(void *arg, enum zt_event_level level, const char *kind,
                       const char *message) {
    struct train_self *s = arg;
    struct train_rank *me = &s->job->rank[s->rank];
    (void)level;
    if (me->n_events == TRAIN_EVENTS_MAX) return;
    snprintf(me->event[me->n_events].kind, sizeof me->event[0].kind, "%s", kind);
    snprintf(me->event[me->n_events++].message, sizeof me->event[0].message, "%s", message);
}

static void hook_collectives(void *arg, const struct zt_step_trace *t) {
    struct train_self *s = arg;
    struct train_rank *me = &s->job->rank[s->rank];
    if (me->n_traces == TRAIN_TRACES_MAX) return;
    struct train_trace *to = &me->trace[me->n_traces++];
    to->step = t->step;
    to->start_ns = t->start_ns;
    to->end_ns = t->end_ns;
    to->n = t->n;
    to->dropped = t->dropped;
    for (int64_t i = 0; i < t->n && i < TRAIN_RECORDS_MAX; i++) {
        to->record[i] = t->records[i];
        to->exposed_ns[i] = t->exposed_ns[i];
        to->stall_ns[i] = t->stall_ns[i];
    }
    to->n_groups = t->n_groups;
    for (int i = 0; i < t->n_groups && i < 8; i++) {
        const struct zt_comm_group *g = &t->groups[i];
        snprintf(to->group[i].name, sizeof to->group[i].name, "%s", g->name);
        to->group[i].size = g->size;
        to->group[i].first = g->ranks[0];
        to->group[i].last = g->ranks[g->size - 1];
    }
}

static void hook_dtypes(void *arg, const struct zt_dtypes_report *d) {
    struct train_self *s = arg;
    s->job->rank[s->rank].dtypes = *d;
    s->job->rank[s->rank].n_dtypes++;
}

static bool hook_stop(void *arg) {
    struct train_self *s = arg;
    const struct train_job *j = s->job;
    /* asked before the update of step k, when k - 1 steps are reported */
    return j->stop_step && j->stop_rank == s->rank &&
           atomic_load(&s->job->rank[s->rank].steps) + 1 >= j->stop_step;
}

static int train_rank(int rank, int world, void *arg) {
    struct train_job *j = arg;
    struct train_rank *me = &j->rank[rank];
    struct train_self self = {j, rank};
    struct zt_spec spec;
    if (j->fail[0] && j->fail_rank == rank) setenv("ZT_FAIL", j->fail, 1);
    EXPECT(zt_spec_parse(j->yaml, strlen(j->yaml), "test.yaml", NULL, 0, &spec, &me->err) == 0,
           "%s", me->err.msg);
    EXPECT(zt_spec_resolve(&spec, world, "test.yaml", &me->err) == 0, "%s", me->err.msg);
    struct zt_train_config c = {.spec = &spec,
                                .rank = rank,
                                .local_rank = rank,
                                .world = world,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .threads = j->threads,
                                .inject = &j->inject,
                                .capacity_bytes =
                                    rank == 1 && j->capacity_of_1 ? j->capacity_of_1 : j->capacity,
                                .checkpoint = j->checkpoint ? j->checkpoint(j, rank) : NULL,
                                .progress = rank == 0 ? j->progress : j->page[rank],
                                .progress_bytes = j->progress_bytes};
    struct zt_train_hooks h = {.arg = &self,
                               .comm_id = hook_comm_id,
                               .step = hook_step,
                               .collectives = hook_collectives,
                               .dtypes = hook_dtypes,
                               .event = hook_event,
                               .stop = hook_stop};
    me->rc = zt_train(&c, &h, &me->result, &me->err);
    zt_spec_free(&spec);
    return 0;
}

/* Runs to the end on `world` ranks; rc and the rest are in the ranks' structs. */
static struct train_job *train_start(int world, const char *yaml) {
    struct train_job *j = ranks_map(sizeof *j);
    j->world = world;
    j->threads = 1;
    j->capacity = (int64_t)128 << 20;
    snprintf(j->yaml, sizeof j->yaml, "version: 1\nname: t\n%s", yaml);
    return j;
}

static void train_go(struct train_job *j, int may_die) {
    cr_assert_leq(ranks_run(j->world, 120, train_rank, j, NULL), may_die);
}

static inline struct train_job *train_ok(int world, const char *yaml) {
    struct train_job *j = train_start(world, yaml);
    train_go(j, 0);
    for (int r = 0; r < world; r++)
        cr_assert_eq(j->rank[r].rc, 0, "rank %d of %d: %s", r, world, j->rank[r].err.msg);
    return j;
}

static const char *train_yaml(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *train_yaml(const char *fmt, ...) {
    static char text[4][2048];
    static int turn;
    char *p = text[turn++ % 4];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p, sizeof text[0], fmt, ap);
    va_end(ap);
    return p;
}

#endif
