/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/plan_exact.h: one run twice: planned (zt_plan_make), and really trained (zt_train on
 * forked ranks over shared memory), and what the two say of memory and collectives held against
 * each other to the byte.
 *
 * Measured is what the run reports: px_windows turns a rank's step reports into the rows of
 * `zctl memory` by the coordinator's rule (coordinator/rows_steps.c). Both sides also write down
 * every step of their allocator; where they differ, both traces are printed from the first
 * difference on.
 *
 * For forked ranks (ranks.h); usable without Criterion. A px_case is a value; a px_run is unmapped
 * by px_free, a px_plan by px_plan_free. */
#ifndef ZT_TESTS_ENGINE_PLAN_EXACT_H
#define ZT_TESTS_ENGINE_PLAN_EXACT_H
#include "engine/plan/plan.h"
#include "engine/train.h"
#include "tests/engine/plan_case.h"
#include "tests/engine/ranks.h"

#define PX_STEPS_MAX 24
#define PX_RECORDS_MAX 2048
#define PX_EVENTS_MAX 131072
#define PX_NAME 44

/* ---- what an allocator did ---- */

struct px_event {
    int64_t size;
    uint8_t action, tag; /* action: enum zt_alloc_action */
    char name[PX_NAME];
};
struct px_trace {
    int64_t n; /* events that there were; the first PX_EVENTS_MAX are kept */
    struct px_event event[PX_EVENTS_MAX];
};

static inline void px_watch(void *arg, const struct zt_alloc_event *e) {
    struct px_trace *t = arg;
    if (t->n++ >= PX_EVENTS_MAX) return;
    struct px_event *to = &t->event[t->n - 1];
    to->size = e->size;
    to->action = (uint8_t)e->action;
    to->tag = (uint8_t)e->tag;
    snprintf(to->name, sizeof to->name, "%s", e->name ? e->name : "");
}

/* Segments have no name or tag of their own: what a block left in them says nothing. */
static inline bool px_same_event(const struct px_event *a, const struct px_event *b) {
    if (a->action != b->action || a->size != b->size) return false;
    if (a->action == ZT_ALLOC_SEGMENT || a->action == ZT_FREE_SEGMENT) return true;
    return a->tag == b->tag && !strcmp(a->name, b->name);
}

/* Index of the first difference among the first n events; n when there is none. */
static inline int64_t px_first_difference(const struct px_trace *a, const struct px_trace *b,
                                          int64_t n) {
    int64_t i = 0;
    if (n > PX_EVENTS_MAX) n = PX_EVENTS_MAX;
    while (i < n && i < a->n && i < b->n && px_same_event(&a->event[i], &b->event[i])) i++;
    return i;
}

static inline void px_print_event(FILE *out, const struct px_trace *t, int64_t i) {
    static const char *const action[] = {"alloc", "free", "segment +", "segment -"};
    char line[96] = "-";
    if (i < t->n && i < PX_EVENTS_MAX) {
        const struct px_event *e = &t->event[i];
        bool segment = e->action >= ZT_ALLOC_SEGMENT;
        snprintf(line, sizeof line, "%s %" PRId64 " %s %s", action[e->action], e->size,
                 segment ? "" : zt_tag_name((enum zt_tag)e->tag), segment ? "" : e->name);
    }
    fprintf(out, " %-62.62s", line);
}

/* Both from a little before `from` on. */
static inline void px_print_traces(FILE *out, const struct px_trace *planned,
                                   const struct px_trace *measured, int64_t from) {
    enum { BEFORE = 3, AFTER = 24 };
    fprintf(out,
            "first difference of the allocators: event %" PRId64 " of %" PRId64 " planned, %" PRId64
            " measured\n",
            from + 1, planned->n, measured->n);
    fprintf(out, "%9s %-62s %s\n", "", "planned", "measured");
    for (int64_t i = from < BEFORE ? 0 : from - BEFORE; i < from + AFTER; i++) {
        if (i >= planned->n && i >= measured->n) break;
        fprintf(out, "%8" PRId64 "%c", i + 1, i == from ? '>' : ' ');
        px_print_event(out, planned, i);
        px_print_event(out, measured, i);
        fputc('\n', out);
    }
}

/* ---- the real run ---- */

struct px_rank {
    int rc;
    struct zt_error err;
    struct zt_train_result result;
    int64_t n_reports;
    int64_t saved_bytes; /* of its files, in the newest save */
    _Atomic int64_t saved_step;
    struct zt_step_report report[PX_STEPS_MAX + 1]; /* by step, from 1 */
    int64_t events_at[PX_STEPS_MAX + 1]; /* of the allocator, when the step was reported */
    /* collectives of the newest full step; the first after the warm-up whose own are others */
    int64_t ordered, n_records, dropped, other_order;
    struct zt_coll_record record[PX_RECORDS_MAX];
    struct px_trace trace;
};
struct px_run {
    struct ranks_shared shared;
    struct px_case c;
    struct px_rank rank[];
};
struct px_self {
    struct px_run *run;
    struct px_rank *me;
};

static inline size_t px_bytes(const struct px_case *c) {
    return sizeof(struct px_run) + (size_t)px_world(c) * sizeof(struct px_rank);
}

static inline void px_free(struct px_run *r) { munmap(r, px_bytes(&r->c)); }

static inline int px_hook_comm_id(void *arg, int rank, struct zt_comm_id *id,
                                  struct zt_error *err) {
    return ranks_exchange(&((struct px_self *)arg)->run->shared, rank, id, err);
}

static inline int px_hook_step(void *arg, const struct zt_step_report *r, struct zt_error *err) {
    struct px_rank *me = ((struct px_self *)arg)->me;
    (void)err;
    if (r->step > PX_STEPS_MAX) abort();
    me->report[r->step] = *r;
    me->events_at[r->step] = me->trace.n;
    me->n_reports = r->step;
    return 0;
}

/* The saves of a run whose coordinator gives each of them up once the parts are written. */
static inline int px_hook_shard_done(void *arg, const struct zt_shard_done *d,
                                     struct zt_error *err) {
    (void)err;
    ((struct px_self *)arg)->me->saved_bytes = d->bytes;
    atomic_store(&((struct px_self *)arg)->me->saved_step, d->step);
    return 0;
}
static inline int px_hook_shards(void *arg, int64_t step, struct zt_shard_done *all, int world,
                                 struct zt_error *err) {
    const struct px_run *run = ((struct px_self *)arg)->run;
    (void)all;
    for (double end = ranks_seconds() + 60; ranks_seconds() < end; ranks_pause()) {
        int in = 0;
        while (in < world && atomic_load(&run->rank[in].saved_step) >= step) in++;
        if (in == world) break;
    }
    return zt_fail(err, ZT_ECANCELLED, "step %" PRId64 " is given up", step);
}
static inline int px_hook_commit(void *arg, const struct zt_commit *c, int64_t **remove, int *n,
                                 struct zt_error *err) {
    (void)arg, (void)c, (void)remove, (void)n;
    return zt_fail(err, ZT_EINTERNAL, "a save that was given up is committed");
}
static inline int px_hook_failed(void *arg, int64_t step, bool full, const char *message,
                                 struct zt_error *err) {
    (void)err, (void)full;
    ((struct px_self *)arg)->me->saved_bytes = 0;
    fprintf(stderr, "step %" PRId64 " is not saved: %s\n", step, message);
    return 0;
}

static inline bool px_same_call(const struct zt_coll_record *a, const struct zt_coll_record *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->count == b->count &&
           a->bytes == b->bytes && a->control == b->control && !strcmp(a->group, b->group) &&
           !strcmp(a->unit, b->unit) && !strcmp(a->reason, b->reason);
}

static inline void px_hook_collectives(void *arg, const struct zt_step_trace *t) {
    struct px_self *s = arg;
    struct px_rank *me = s->me;
    if (t->n > PX_RECORDS_MAX) abort();
    if (s->run->c.tail && t->step % s->run->c.tail == 0) return;
    bool same = me->n_records == t->n;
    for (int64_t i = 0; i < t->n && same; i++)
        same = px_same_call(&me->record[i], &t->records[i]) &&
               me->record[i].sent_bytes == t->records[i].sent_bytes;
    if (!same && t->step > 1 && t->step > s->run->c.warmup + 1 && !me->other_order)
        me->other_order = t->step;
    memcpy(me->record, t->records, (size_t)t->n * sizeof *t->records);
    me->n_records = t->n;
    me->ordered = t->step;
    me->dropped += t->dropped;
}

static inline int px_train_rank(int rank, int world, void *arg) {
    struct px_run *run = arg;
    struct px_rank *me = &run->rank[rank];
    struct px_self self = {run, me};
    struct zt_spec spec;
    EXPECT(px_spec(&run->c, &spec, &me->err) == 0, "%s", me->err.msg);
    struct zt_checkpoint_config k = {.folder = data_path("saved"),
                                     .hooks = {.arg = &self,
                                               .shard_done = px_hook_shard_done,
                                               .shards = px_hook_shards,
                                               .commit = px_hook_commit,
                                               .failed = px_hook_failed}};
    struct zt_train_config c = {.spec = &spec,
                                .checkpoint = &k,
                                .rank = rank,
                                .local_rank = rank,
                                .world = world,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .threads = 1,
                                .capacity_bytes = run->c.capacity,
                                .watch = {px_watch, &me->trace}};
    struct zt_train_hooks h = {.arg = &self,
                               .comm_id = px_hook_comm_id,
                               .step = px_hook_step,
                               .collectives = px_hook_collectives};
    me->rc = zt_train(&c, &h, &me->result, &me->err);
    zt_spec_free(&spec);
    return 0;
}

/* NULL when a rank died (it said why on stderr). A failure of training is in the ranks' rc. */
static inline struct px_run *px_train(const struct px_case *c) {
    struct px_run *r = ranks_map(px_bytes(c));
    r->c = *c;
    px_files(c);
    if (!ranks_run(px_world(c), 300, px_train_rank, r, NULL)) return r;
    px_free(r);
    return NULL;
}

/* ---- rows of `zctl memory` (coordinator/rows_steps.c, put_windows) ---- */

struct px_windows {
    bool occurs[ZT_WINDOW_COUNT];
    struct zt_window_peak of[ZT_WINDOW_COUNT];
};

/* keep_max: the step of the highest allocated peak stays; the reserved peak is a maximum of its
 * own. */
static inline void px_offer(struct px_windows *w, enum zt_window_name name,
                            const struct zt_window_peak *p, bool keep_max) {
    struct zt_window_peak *have = &w->of[name];
    int64_t reserved = p->peak_reserved_bytes;
    if (p->peak_allocated_bytes < 0) return;
    if (w->occurs[name] && keep_max) {
        if (have->peak_reserved_bytes > reserved) reserved = have->peak_reserved_bytes;
        if (p->peak_allocated_bytes > have->peak_allocated_bytes) *have = *p;
    } else
        *have = *p;
    have->peak_reserved_bytes = reserved;
    w->occurs[name] = true;
}

static inline void px_windows(const struct px_rank *r, int64_t warmup, struct px_windows *w) {
    memset(w, 0, sizeof *w);
    for (int64_t s = 1; s <= r->n_reports; s++) {
        const struct zt_step_report *x = &r->report[s];
        struct zt_window_peak p = {.peak_allocated_bytes = x->peak_allocated_bytes,
                                   .peak_reserved_bytes = x->peak_reserved_bytes,
                                   .phase_of_peak = x->phase_of_peak,
                                   .persistent = {x->persistent_parameters, x->persistent_gradients,
                                                  x->persistent_optimizer}};
        memcpy(p.at_peak, x->at_peak, sizeof p.at_peak);
        px_offer(w, ZT_WINDOW_INIT, &x->init, false);
        if (s == 1) px_offer(w, ZT_WINDOW_FIRST_STEP, &p, false);
        if (s == 1 ? warmup == 0 : s - 1 >= warmup) px_offer(w, ZT_WINDOW_STEADY, &p, true);
        px_offer(w, ZT_WINDOW_EVAL, &x->eval, true);
        px_offer(w, ZT_WINDOW_SAVE, &x->save, true);
        px_offer(w, ZT_WINDOW_LOAD, &x->load, false);
    }
}

/* ---- the plan ---- */

struct px_plan {
    struct zt_plan *plan;
    struct px_trace *trace;
};

static inline void px_plan_free(struct px_plan *p) {
    zt_plan_free(p->plan);
    free(p->trace);
}

/* Any figures: bytes do not depend on them. */
static const struct zt_cost_device px_device = {
    .name = "test",
    .memory_bytes = (int64_t)64 << 30,
    .launch_ns = 1000,
    .memory_bytes_per_second = 1e10,
    .flops = {[ZT_COST_GEMM] = {[ZT_F32] = 1e11, [ZT_BF16] = 1e11, [ZT_F16] = 1e11},
              [ZT_COST_ATTENTION_FORWARD] = {[ZT_F32] = 1e10},
              [ZT_COST_ATTENTION_BACKWARD] = {[ZT_F32] = 1e10},
              [ZT_COST_RANDOM] = {[ZT_F32] = 1e9}},
    .ranks_per_host = 8,
    .within = {1000, 1e10, 0},
    .across = {20000, 1e9, 0}};

/* like: device, ranks of a host and straggler to plan for; NULL = some. */
static inline int px_make(const struct px_case *c, const struct zt_plan_config *like,
                          struct px_plan *out, struct zt_error *err) {
    struct zt_plan_config pc = {.device = &px_device};
    struct zt_spec spec;
    out->plan = NULL;
    out->trace = malloc(sizeof *out->trace);
    if (!out->trace) abort();
    out->trace->n = 0;
    int rc = px_spec(c, &spec, err);
    if (rc) return rc;
    if (like) pc = *like;
    pc.spec = &spec;
    pc.capacity_bytes = c->capacity;
    pc.valid_samples = c->eval_every ? c->eval_rows : -1;
    pc.total_steps = c->steps;
    pc.details = true;
    pc.watch = (struct zt_alloc_watch){px_watch, out->trace};
    rc = zt_plan_make(&pc, &out->plan, err);
    zt_spec_free(&spec);
    return rc;
}

/* ---- held against each other ---- */

static inline bool px_same_peak(const struct zt_window_peak *a, const struct zt_window_peak *b) {
    return a->peak_allocated_bytes == b->peak_allocated_bytes &&
           a->peak_reserved_bytes == b->peak_reserved_bytes &&
           a->phase_of_peak == b->phase_of_peak &&
           !memcmp(a->at_peak, b->at_peak, sizeof a->at_peak) &&
           !memcmp(a->persistent, b->persistent, sizeof a->persistent);
}

static inline void px_print_peak(FILE *out, const char *whose, bool occurs,
                                 const struct zt_window_peak *p) {
    fprintf(out, "  %-9s", whose);
    if (!occurs) {
        fprintf(out, "does not occur\n");
        return;
    }
    fprintf(out, "allocated %" PRId64 " in %s, reserved %" PRId64 "; at the peak",
            p->peak_allocated_bytes, zt_phase_name(p->phase_of_peak), p->peak_reserved_bytes);
    for (int t = 0; t < ZT_TAG_COUNT; t++)
        fprintf(out, " %s %" PRId64, zt_tag_name((enum zt_tag)t), p->at_peak[t]);
    fprintf(out, "; persistent %" PRId64 " %" PRId64 " %" PRId64 "\n", p->persistent[0],
            p->persistent[1], p->persistent[2]);
}

static inline const struct zt_plan_shape *px_shape(const struct zt_plan *p, int dp_index) {
    for (int i = 0; i < p->n_shapes; i++)
        if (p->shape[i].dp_from <= dp_index && dp_index < p->shape[i].dp_to) return &p->shape[i];
    return NULL;
}

static inline int px_compare_rank(FILE *out, const struct px_run *r, int rank,
                                  const struct zt_plan *p) {
    const struct zt_mesh mesh = {r->c.replicate, r->c.shard, px_tensor(&r->c)};
    const struct zt_plan_shape *shape = px_shape(p, zt_mesh_dp_index(mesh, rank));
    struct px_windows w;
    int bad = 0;
    if (!shape) return fprintf(out, "rank %d is of no shape of the plan\n", rank) > 0;
    px_windows(&r->rank[rank], r->c.warmup, &w);
    for (int i = 0; i < ZT_WINDOW_COUNT; i++) {
        if (i == ZT_WINDOW_LOAD && !w.occurs[i]) continue; /* planned for a run that goes on */
        if (shape->occurs[i] == w.occurs[i] &&
            (!w.occurs[i] || px_same_peak(&shape->window[i], &w.of[i])))
            continue;
        bad++;
        fprintf(out, " rank %d, window %s:\n", rank, zt_window_name((enum zt_window_name)i));
        px_print_peak(out, "planned", shape->occurs[i], &shape->window[i]);
        px_print_peak(out, "measured", w.occurs[i], &w.of[i]);
    }
    return bad;
}

/* The buffer that is stated for saves is what the rank that is named writes, and nobody writes more but
 * for the heads of its files. */
static inline int px_compare_saves(FILE *out, const struct px_run *r, const struct zt_plan *p) {
    int64_t most = 0, named = r->rank[p->host.checkpoint_rank].saved_bytes;
    for (int k = 0; k < px_world(&r->c); k++)
        if (r->rank[k].saved_bytes > most) most = r->rank[k].saved_bytes;
    bool saves = r->c.save_every > 0;
    if ((p->host.checkpoint > 0) == saves && p->host.checkpoint == named &&
        most <= p->host.checkpoint + p->host.checkpoint / 20 + 32768)
        return 0;
    return fprintf(out,
                   " saves: %" PRId64 " bytes on rank %d are planned, it wrote %" PRId64
                   "; the most is %" PRId64 "\n",
                   p->host.checkpoint, p->host.checkpoint_rank, named, most) > 0;
}

static inline void px_print_record(FILE *out, const char *whose, const struct zt_coll_record *r) {
    fprintf(out,
            "  %-9s%s of %s in %s, %" PRId64 " x %s, %" PRId64 " bytes, sent %" PRId64
            ", \"%s\"%s\n",
            whose, zt_coll_name(r->kind), r->unit, r->group, r->count, zt_dtype_name(r->dtype),
            r->bytes, r->sent_bytes, r->reason, r->control ? ", control" : "");
}

/* An all-reduce of a count that its ranks do not divide has parts of two sizes: then a rank that
 * the plan is not of may send a little more or less. */
static inline bool px_same_record(const struct px_run *r, bool of_plan,
                                  const struct zt_coll_record *planned,
                                  const struct zt_coll_record *measured) {
    int ranks = planned->control                        ? px_world(&r->c)
                : strcmp(planned->group, "tensor") == 0 ? px_tensor(&r->c)
                                                        : r->c.replicate;
    bool uneven = !of_plan && planned->kind == ZT_COLL_ALL_REDUCE && planned->count % ranks;
    return px_same_call(planned, measured) &&
           (uneven || planned->sent_bytes == measured->sent_bytes);
}

/* The collectives of a step, one by one, and its bytes. */
static inline int px_compare_order(FILE *out, const struct px_run *r, int rank,
                                   const struct zt_plan *p) {
    const struct px_rank *x = &r->rank[rank];
    int64_t n = x->n_records < p->n_collectives ? x->n_records : p->n_collectives, i = 0;
    bool of_plan = rank == p->shape[0].rank, even = true;
    int bad = 0;
    if (x->dropped)
        bad += fprintf(out, " rank %d: %" PRId64 " collectives were dropped from the log\n", rank,
                       x->dropped) > 0;
    if (x->other_order)
        bad += fprintf(out, " rank %d: other collectives in step %" PRId64 " than before\n", rank,
                       x->other_order) > 0;
    while (i < n && px_same_record(r, of_plan, &p->collectives[i], &x->record[i])) {
        even &= x->record[i].control || p->collectives[i].sent_bytes == x->record[i].sent_bytes;
        i++;
    }
    if (i < x->n_records || i < p->n_collectives) {
        bad++;
        fprintf(out,
                " rank %d: collective %" PRId64 " of %" PRId64 " planned, %" PRId64 " measured:\n",
                rank, i + 1, p->n_collectives, x->n_records);
        if (i < p->n_collectives) px_print_record(out, "planned", &p->collectives[i]);
        if (i < x->n_records) px_print_record(out, "measured", &x->record[i]);
    }
    if (even && x->report[x->ordered].sent_bytes != p->sent_bytes)
        bad += fprintf(out, " rank %d: sends %" PRId64 " bytes a step, planned %" PRId64 "\n", rank,
                       x->report[x->ordered].sent_bytes, p->sent_bytes) > 0;
    return bad;
}

/* The plan's own summary of its windows. */
static inline int px_compare_summary(FILE *out, const struct px_run *r, const struct zt_plan *p) {
    const struct px_rank *last = &r->rank[0];
    const struct zt_step_report *x = &last->report[last->ordered];
    int64_t allocated = 0, reserved = 0, sum = 0;
    bool found = false;
    for (int k = 0; k < px_world(&r->c); k++) {
        struct px_windows w;
        px_windows(&r->rank[k], r->c.warmup, &w);
        for (int i = 0; i < ZT_WINDOW_COUNT; i++) {
            const struct zt_window_peak *of = &w.of[i];
            if (!w.occurs[i]) continue;
            if (of->peak_allocated_bytes > allocated) allocated = of->peak_allocated_bytes;
            if (of->peak_reserved_bytes > reserved) reserved = of->peak_reserved_bytes;
            found |= (int)p->peak_window == i && p->phase_of_peak == of->phase_of_peak &&
                     p->peak_allocated_bytes == of->peak_allocated_bytes &&
                     !memcmp(p->at_peak, of->at_peak, sizeof p->at_peak);
        }
    }
    for (int t = 0; t < ZT_TAG_COUNT; t++) sum += p->at_peak[t];
    if (allocated == p->peak_allocated_bytes && reserved == p->peak_reserved_bytes && found &&
        sum == allocated && p->persistent.parameters == x->persistent_parameters &&
        p->persistent.gradients == x->persistent_gradients &&
        p->persistent.optimizer == x->persistent_optimizer && p->world == px_world(&r->c))
        return 0;
    fprintf(out,
            " summary: planned peak %" PRId64 " (%s, %s), reserved %" PRId64 "; measured %" PRId64
            ", %" PRId64 "; persistent %" PRId64 " %" PRId64 " %" PRId64 ", measured %" PRId64
            " %" PRId64 " %" PRId64 "\n",
            p->peak_allocated_bytes, zt_window_name(p->peak_window),
            zt_phase_name(p->phase_of_peak), p->peak_reserved_bytes, allocated, reserved,
            p->persistent.parameters, p->persistent.gradients, p->persistent.optimizer,
            x->persistent_parameters, x->persistent_gradients, x->persistent_optimizer);
    return 1;
}

/* The plan goes step by step with the run as far as it simulates every step. */
static inline int px_compare_traces(FILE *out, const struct px_run *r, const struct px_plan *p) {
    const struct px_rank *x = &r->rank[0];
    int64_t steps = r->c.warmup + 2 < r->c.steps ? r->c.warmup + 2 : r->c.steps;
    int64_t n = x->events_at[steps < x->n_reports ? steps : x->n_reports];
    int64_t at = px_first_difference(p->trace, &x->trace, n);
    if (at >= n) return 0;
    fprintf(out, " rank 0 allocates in another order within the first %" PRId64 " steps\n", steps);
    return 1;
}

/* Where it runs out: every rank that did says the same as the plan. A rank whose peer ran out first
 * may only have seen that. */
static inline int px_compare_oom(FILE *out, const struct px_run *r, const struct zt_plan *p) {
    int bad = 0, oom = 0;
    for (int k = 0; k < px_world(&r->c); k++) {
        const struct zt_train_result *x = &r->rank[k].result;
        const struct zt_oom *a = &p->oom, *b = &x->oom;
        if (r->rank[k].rc == 0)
            bad += fprintf(out, " rank %d ran to its end, planned: out of memory\n", k) > 0;
        if (!x->has_oom) continue;
        oom++;
        if (a->request == b->request && a->tag == b->tag && a->phase == b->phase &&
            !strcmp(a->what, b->what) && p->oom_step == x->failed_step &&
            a->capacity == b->capacity && a->reserved == b->reserved &&
            a->allocated == b->allocated && a->largest_free_block == b->largest_free_block &&
            a->fragmentation == b->fragmentation && !memcmp(a->by_tag, b->by_tag, sizeof a->by_tag))
            continue;
        bad++;
        fprintf(out,
                " rank %d out of memory:\n  planned  step %" PRId64 ", %s: %s (%s), %" PRId64
                " bytes of %" PRId64 ", reserved %" PRId64 ", allocated %" PRId64
                "\n  measured step %" PRId64 ", %s: %s (%s), %" PRId64 " bytes of %" PRId64
                ", reserved %" PRId64 ", allocated %" PRId64 "\n",
                k, p->oom_step, zt_phase_name(a->phase), a->what, zt_tag_name(a->tag), a->request,
                a->capacity, a->reserved, a->allocated, x->failed_step, zt_phase_name(b->phase),
                b->what, zt_tag_name(b->tag), b->request, b->capacity, b->reserved, b->allocated);
    }
    if (!oom) bad += fprintf(out, " no rank ran out of memory, as planned\n") > 0;
    return bad;
}

/* How many things differ; says which, and prints both traces from their first difference on. */
static inline int px_compare(FILE *out, const struct px_run *r, const struct px_plan *p) {
    const struct zt_plan *plan = p->plan;
    int bad = 0, world = px_world(&r->c);
    char text[PX_TEXT];
    if (!plan->fits) {
        bad = px_compare_oom(out, r, plan);
    } else {
        for (int k = 0; k < world; k++)
            if (r->rank[k].rc || r->rank[k].report[r->rank[k].n_reports].skipped_steps)
                bad += fprintf(out, " rank %d: %s\n", k,
                               r->rank[k].rc ? r->rank[k].err.msg : "steps were skipped") > 0;
        for (int k = 0; k < world && !bad; k++) bad += px_compare_rank(out, r, k, plan);
        for (int k = 0; k < world && !bad; k++) bad += px_compare_order(out, r, k, plan);
        if (!bad) bad = px_compare_summary(out, r, plan);
        if (!bad) bad = px_compare_saves(out, r, plan);
        if (!bad) bad = px_compare_traces(out, r, p);
    }
    if (!bad) return 0;
    fprintf(out, "^ %s\n", px_name(&r->c, text));
    px_print_traces(out, p->trace, &r->rank[0].trace,
                    px_first_difference(p->trace, &r->rank[0].trace, PX_EVENTS_MAX));
    return bad;
}

/* Plans and trains a case; how many things differ. plan (may be NULL): kept, the caller frees it.
 */
static inline int px_differs(const struct px_case *c, struct px_plan *plan) {
    struct px_plan own = {0};
    struct zt_error err = {0};
    char text[PX_TEXT];
    int bad = 1;
    struct px_run *r = NULL;
    if (px_make(c, NULL, &own, &err))
        fprintf(stderr, "no plan: %s\n^ %s\n", err.msg, px_name(c, text));
    else if (!(r = px_train(c)))
        fprintf(stderr, "a rank died\n^ %s\n", px_name(c, text));
    else
        bad = px_compare(stderr, r, &own);
    if (r) px_free(r);
    if (plan)
        *plan = own;
    else
        px_plan_free(&own);
    return bad;
}

#endif
