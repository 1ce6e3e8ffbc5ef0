/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/machine_bench.c: see machine_bench.h. */
#include "tests/coordinator/machine_bench.h"

#include <stdio.h>
#include <string.h>

#define MS 1000000LL
struct bench B;

static int run_index(const char *run_id) {
    for (int i = 0; i < B.n_runs; i++)
        if (!strcmp(B.run[i].run_id, run_id)) return i;
    ZT_ASSERT(B.n_runs < BENCH_RUNS);
    return B.n_runs++;
}
static int ckpt_index(const char *run_id, int64_t step) {
    for (int i = 0; i < B.n_ckpts; i++)
        if (B.ckpt[i].step == step && !strcmp(B.ckpt[i].run_id, run_id)) return i;
    return -1;
}
static void keep_ckpt(const struct zt_row_ckpt *row, bool gone) {
    int i = ckpt_index(row->run_id, row->step), n = 0;
    if (gone && i >= 0) B.ckpt[i] = B.ckpt[--B.n_ckpts];
    if (!gone && i < 0) {
        ZT_ASSERT(B.n_ckpts < 64);
        i = B.n_ckpts++;
    }
    if (!gone) B.ckpt[i] = *row;
    for (int k = 0; k < B.n_parts; k++) {
        bool drop = B.part[k].step == row->step && !strcmp(B.part[k].run_id, row->run_id) &&
                    (gone || row->state != ZT_CKPT_WRITING);
        if (!drop) B.part[n++] = B.part[k];
    }
    B.n_parts = n;
}
static void set_ckpt(const struct zt_effect *e) {
    int i = ckpt_index(e->u.ckpt_set.run_id, e->u.ckpt_set.step);
    if (i < 0) return;
    struct zt_row_ckpt *c = &B.ckpt[i];
    switch (e->u.ckpt_set.what) {
    case ZT_SET_PIN: c->pinned = true; break;
    case ZT_SET_UNPIN: c->pinned = false; break;
    case ZT_SET_VERIFIED: c->verified = true; c->state = ZT_CKPT_COMMITTED; break;
    case ZT_SET_CORRUPT: c->verified = false; c->state = ZT_CKPT_CORRUPT; break;
    case ZT_SET_DELETE: c->state = ZT_CKPT_DELETING; break;
    case ZT_SET_DELETED: B.ckpt[i] = B.ckpt[--B.n_ckpts]; break;
    }
}
static void keep_row(const struct zt_effect *e) {
    int r;
    switch (e->kind) {
    case ZT_FX_ROW_RUN:
        r = run_index(e->u.run.run_id);
        B.run[r] = e->u.run;
        break;
    case ZT_FX_ROW_ATTEMPT:
        r = run_index(e->u.attempt.run_id);
        B.attempt[r] = e->u.attempt;
        break;
    case ZT_FX_ROW_RANK:
        r = run_index(e->u.rank.run_id);
        if (B.rank[r][e->u.rank.rank].generation != e->u.rank.generation)
            B.stored[r][e->u.rank.rank] = 0;
        B.rank[r][e->u.rank.rank] = e->u.rank;
        break;
    case ZT_FX_ROW_FAILURE:
        ZT_ASSERT(B.n_failures < 64);
        B.failure[B.n_failures++] = e->u.failure;
        break;
    case ZT_FX_ROW_KEY:
        ZT_ASSERT(B.n_keys < 16);
        B.key[B.n_keys++] = e->u.key;
        break;
    case ZT_FX_ROW_CKPT:
        keep_ckpt(&e->u.ckpt, false);
        break;
    case ZT_FX_ROW_CKPT_GONE:
        keep_ckpt(&e->u.ckpt, true);
        break;
    case ZT_FX_ROW_PART:
        ZT_ASSERT(B.n_parts < 64);
        B.part[B.n_parts++] = e->u.part;
        break;
    case ZT_FX_CKPT_SET:
        set_ckpt(e);
        break;
    case ZT_FX_ROW_EVENT:
        B.event[B.n_events++ % 512] = e->u.event;
        break;
    case ZT_FX_ROW_WORKER:
        for (int i = 0; i < B.n_workers; i++)
            if (!strcmp(B.w[i].id, e->u.worker.worker_id)) B.w[i].row = e->u.worker;
        break;
    default:
        break;
    }
}
int bench_step(struct zt_event *ev) {
    ev->wall_ms = B.wall;
    ev->request = ev->kind == ZT_EV_TICK || ev->kind == ZT_EV_COMMITTED || ev->kind == ZT_EV_START
                      ? 0
                      : ++B.n_requests;
    int code = 1;
    ZT_ASSERT(zt_machine_step(B.m, ev, B.now, &B.fx) == 0);
    for (size_t i = 0; i < B.fx.n; i++) {
        const struct zt_effect *e = &B.fx.v[i];
        keep_row(e);
        if (e->kind == ZT_FX_REPLY) {
            B.reply = e->u.reply;
            B.n_replies++;
            if (e->u.reply.to == ZT_EV_GET_SHARDS && !e->u.reply.code) {
                B.n_shards = e->u.reply.n_parts;
                memcpy(B.shards, e->u.reply.parts, sizeof *B.shards * (size_t)B.n_shards);
            }
            if (e->u.reply.request == B.n_requests) code = e->u.reply.code;
        }
        for (int w = 0; w < B.n_workers && e->kind == ZT_FX_DESIRED; w++)
            if (B.w[w].session == e->u.desired.session) B.w[w].desired = e->u.desired.desired;
    }
    const char *broken = zt_machine_check(B.m);
    if (broken) printf("invariant %s\n", broken);
    ZT_ASSERT(!broken);
    if (!B.hold_commits && ev->kind != ZT_EV_COMMITTED) bench_commit();
    return code;
}
void bench_commit(void) {
    for (int i = 0; i < 20 && zt_machine_txn(B.m) > zt_machine_durable(B.m); i++) {
        struct zt_event ev = {.kind = ZT_EV_COMMITTED, .u.store.txn = zt_machine_txn(B.m)};
        struct zt_fx_reply keep = B.reply;
        bench_step(&ev);
        B.reply = keep;
    }
}
void bench_open(void) {
    memset(&B, 0, sizeof B);
    B.now = 100000 * MS;
    B.wall = 1700000000000;
    B.m = zt_machine_new(NULL);
    ZT_ASSERT(B.m);
    struct zt_recovery none = {.epoch = 1};
    struct zt_event ev = {.kind = ZT_EV_START, .u.start.recovery = &none};
    bench_step(&ev);
}
void bench_close(void) {
    zt_machine_free(B.m);
    zt_effects_free(&B.fx);
}
void bench_reopen(void) {
    zt_machine_free(B.m);
    B.m = zt_machine_new(NULL);
    ZT_ASSERT(B.m);
    struct zt_row_rank ranks[BENCH_RUNS * BENCH_WORLD];
    struct zt_row_worker workers[BENCH_WORKERS];
    int64_t steps[BENCH_RUNS * BENCH_WORLD], age[BENCH_RUNS] = {0}, started[BENCH_RUNS],
                                             key_age[16] = {0};
    struct zt_row_run runs[BENCH_RUNS];
    struct zt_row_attempt attempts[BENCH_RUNS];
    struct zt_recovery r = {.epoch = 2,
                            .runs = runs,
                            .attempts = attempts,
                            .ranks = ranks,
                            .rank_step = steps,
                            .workers = workers,
                            .keys = B.key,
                            .n_keys = (size_t)B.n_keys,
                            .key_age_ms = key_age,
                            .run_age_ms = age,
                            .run_started_age_ms = started,
                            .ckpts = B.ckpt,
                            .n_ckpts = (size_t)B.n_ckpts,
                            .parts = B.part,
                            .n_parts = (size_t)B.n_parts,
                            .last_order = 100};
    for (int i = 0; i < B.n_workers; i++) workers[r.n_workers++] = B.w[i].row;
    for (int i = 0; i < B.n_runs; i++) {
        if (zt_run_state_terminal(B.run[i].state)) continue;
        started[r.n_runs] = B.run[i].started_ms ? 0 : -1;
        runs[r.n_runs++] = B.run[i];
        attempts[r.n_attempts++] = B.attempt[i];
        for (int k = 0; k < B.run[i].workers; k++) {
            if (B.rank[i][k].generation != B.run[i].generation) continue;
            steps[r.n_ranks] = B.stored[i][k];
            ranks[r.n_ranks++] = B.rank[i][k];
        }
    }
    for (int i = 0; i < B.n_workers; i++) B.w[i].session = 0;
    struct zt_event ev = {.kind = ZT_EV_START, .u.start.recovery = &r};
    bench_step(&ev);
}
void bench_tick(int64_t gap_ms) {
    B.now += gap_ms * MS;
    B.wall += gap_ms;
    struct zt_event ev = {.kind = ZT_EV_TICK};
    bench_step(&ev);
}
void bench_wait(double seconds) {
    int64_t end = B.now + (int64_t)(seconds * 1e9);
    while (B.now < end) {
        bench_tick(200);
        bool beats = ++B.n_ticks % 5 == 0;
        for (int w = 0; w < B.n_workers && beats; w++)
            if (!B.w[w].silent && B.w[w].session) bench_beat(w);
    }
}
struct zt_event bench_event(enum zt_event_kind kind, int w) {
    struct zt_event ev = {.kind = kind,
                          .session = B.w[w].session,
                          .worker_id = B.w[w].id,
                          .incarnation = B.w[w].incarnation};
    return ev;
}
static void name_child(int w, struct zt_event *ev) {
    if (B.w[w].phase != ZT_TP_NONE)
        ev->at = (struct zt_on_child){B.w[w].run_id, B.w[w].generation, B.w[w].rank};
}
void bench_register(int w) {
    B.w[w].session = ++B.sessions;
    struct zt_event ev = bench_event(ZT_EV_REGISTER, w);
    const char *slash = strchr(B.w[w].id, '/');
    char host[32];
    snprintf(host, sizeof host, "%.*s", (int)(slash - B.w[w].id), B.w[w].id);
    ev.u.reg.host = host;
    ev.u.reg.device = "cpu";
    ev.u.reg.capacity_bytes = 1 << 30;
    ev.u.reg.phase = (enum zt_trainer_phase)B.w[w].phase;
    ev.u.reg.step = B.w[w].step;
    name_child(w, &ev);
    if (bench_step(&ev) == 0) B.w[w].desired = B.reply.desired;
}
int bench_worker(const char *id, const char *host) {
    int w = B.n_workers++;
    ZT_ASSERT(w < BENCH_WORKERS);
    snprintf(B.w[w].id, sizeof B.w[w].id, "%s/%s", host, id);
    B.w[w].step = B.w[w].age_ms = -1;
    B.w[w].incarnation.bytes[0] = (uint8_t)(w + 1);
    bench_register(w);
    return w;
}
void bench_restart_worker(int w) {
    B.w[w].incarnation.bytes[1]++;
    B.w[w].phase = ZT_TP_NONE;
    B.w[w].seq = 0;
    bench_register(w);
}
void bench_beat(int w) {
    struct zt_event ev = bench_event(ZT_EV_BEAT, w);
    ev.u.beat.seq = ++B.w[w].seq;
    ev.u.beat.phase = (enum zt_trainer_phase)B.w[w].phase;
    ev.u.beat.step = B.w[w].step;
    ev.u.beat.progress_age_ms = B.w[w].age_ms;
    ev.u.beat.activity = (enum zt_activity)B.w[w].activity;
    ev.u.beat.draining = B.w[w].draining;
    ev.u.beat.held_by = B.w[w].held_by;
    name_child(w, &ev);
    if (bench_step(&ev) == 0) B.w[w].desired = B.reply.desired;
}
struct zt_run_config bench_config(int workers) {
    struct zt_run_config c = {.workers = workers,
                              .replicate = -1,
                              .shard = 1,
                              .tensor = 1,
                              .steps = 10,
                              .max_restarts = 3,
                              .backoff_initial = 1,
                              .backoff_max = 60,
                              .start = 300,
                              .first_step = 600,
                              .term_grace = 15,
                              .comm_init = 120};
    memset(c.allowed, 0xff, sizeof c.allowed);
    return c;
}
int bench_submit_key(const char *name, struct zt_run_config c, int key) {
    static int made;
    uint8_t k[16] = {(uint8_t)key};
    char run_id[32];
    snprintf(run_id, sizeof run_id, "RUN%d", ++made);
    struct zt_event ev = {.kind = ZT_EV_SUBMIT};
    ev.u.submit.key = k;
    ev.u.submit.run_id = run_id;
    ev.u.submit.name = name;
    ev.u.submit.config = &c;
    ev.u.submit.read_txn = c.source.run_id[0] ? B.read_txn : 0;
    int code = bench_step(&ev);
    return code ? code : run_index(B.reply.run_id);
}
int bench_submit(const char *name, struct zt_run_config c) {
    static int key;
    return bench_submit_key(name, c, 100 + key++);
}
int bench_cancel(int run, int key) {
    uint8_t k[16] = {(uint8_t)key};
    struct zt_event ev = {.kind = ZT_EV_CANCEL};
    ev.u.cancel.key = k;
    ev.u.cancel.run_id = B.run[run].run_id;
    ev.u.cancel.stored = B.run[run].state;
    return bench_step(&ev);
}
int bench_holder(int run, int rank) {
    for (int w = 0; w < B.n_workers; w++)
        if (!strcmp(B.w[w].id, B.rank[run][rank].worker_id)) return w;
    return -1;
}
static struct zt_event of_rank(int run, int rank, enum zt_event_kind kind) {
    struct zt_event ev = bench_event(kind, bench_holder(run, rank));
    ev.at = (struct zt_on_child){B.run[run].run_id, B.run[run].generation, rank};
    return ev;
}
int bench_rank(int run, int rank, enum zt_event_kind kind) {
    struct zt_event ev = of_rank(run, rank, kind);
    struct bench_worker *w = &B.w[bench_holder(run, rank)];
    snprintf(w->run_id, sizeof w->run_id, "%s", ev.at.run_id);
    w->generation = ev.at.generation;
    w->rank = rank;
    w->phase = kind == ZT_EV_RANK_READY ? ZT_TP_READY : ZT_TP_RUNNING;
    w->step = 0;
    w->age_ms = 0;
    return bench_step(&ev);
}
int bench_steps(int run, int rank, int64_t first, int64_t last, double seconds) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_STEPS);
    ev.u.steps.first = first;
    ev.u.steps.last = last;
    ev.u.steps.step_seconds = seconds;
    int code = bench_step(&ev);
    if (code == 0) B.stored[run][rank] = last;
    if (code == 0) B.w[bench_holder(run, rank)].step = last;
    return code;
}
static int fail_rank(int run, int rank, enum zt_reason reason, int peer, int64_t step) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_FAILURE);
    ev.u.failure.reason = reason;
    ev.u.failure.message = "it broke";
    ev.u.failure.peer = peer;
    ev.u.failure.step = step;
    ev.u.failure.exit_code = -1;
    return bench_step(&ev);
}
int bench_fail(int run, int rank, enum zt_reason reason, int peer) {
    return fail_rank(run, rank, reason, peer, -1);
}
int bench_fail_in(int run, int rank, enum zt_reason reason, int64_t step) {
    return fail_rank(run, rank, reason, -1, step);
}
int bench_done(int run, int rank, int64_t steps, const char *hash) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_RANK_DONE);
    ev.u.done.steps = steps;
    ev.u.done.parameter_hash = hash;
    return bench_step(&ev);
}
int bench_exit(int run, int rank, int code, int signal) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_CHILD_EXITED);
    ev.u.exited.exit_code = code;
    ev.u.exited.signal = signal;
    B.w[bench_holder(run, rank)].phase = ZT_TP_NONE;
    B.w[bench_holder(run, rank)].step = B.w[bench_holder(run, rank)].age_ms = -1;
    return bench_step(&ev);
}
void bench_exit_all(int run, int code, int signal) {
    uint32_t generation = B.run[run].generation;
    for (int k = 0; k < B.run[run].workers; k++)
        if (!B.rank[run][k].released && B.rank[run][k].generation == generation)
            bench_exit(run, k, code, signal);
}
void bench_form(int run) {
    for (int k = 0; k < B.run[run].workers; k++) bench_rank(run, k, ZT_EV_RANK_READY);
}
void bench_running(int run) {
    bench_form(run);
    for (int k = 0; k < B.run[run].workers; k++) bench_rank(run, k, ZT_EV_RANK_IN_COMM);
}
enum zt_run_state bench_state(int run) { return B.run[run].state; }
const struct zt_row_event *bench_find_event(const char *kind) {
    for (int i = B.n_events; i > 0 && i > B.n_events - 512; i--)
        if (!strcmp(B.event[(i - 1) % 512].kind, kind)) return &B.event[(i - 1) % 512];
    return NULL;
}

/* ---- checkpoints */
static struct zt_ckpt_part a_part(int rank) {
    struct zt_ckpt_part p = {.bytes = 100 + rank, .stall_seconds = 0.25, .write_seconds = 1 + rank};
    p.index[0] = (uint8_t)(rank + 1);
    p.parameter_hash[0] = (uint8_t)(rank + 1);
    p.state_hash[0] = (uint8_t)(2 * (rank + 1));
    return p;
}
int bench_shard(int run, int rank, int64_t step) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_SHARD_DONE);
    ev.u.shard.step = step;
    ev.u.shard.part = a_part(rank);
    return bench_step(&ev);
}
int bench_get_shards(int run, int64_t step) {
    struct zt_event ev = of_rank(run, 0, ZT_EV_GET_SHARDS);
    ev.u.commit.step = step;
    B.n_shards = 0;
    return bench_step(&ev);
}
int bench_commit_of(int run, int64_t step, int64_t bytes, const char *parameter_hash, int manifest) {
    struct zt_event ev = of_rank(run, 0, ZT_EV_CKPT_COMMIT);
    uint8_t sha[32] = {(uint8_t)manifest, 1};
    ev.u.commit.step = step;
    ev.u.commit.bytes = bytes;
    ev.u.commit.manifest = sha;
    ev.u.commit.parameter_hash = parameter_hash;
    ev.u.commit.state_hash = "";
    return bench_step(&ev);
}
int bench_ckpt_commit(int run, int64_t step) {
    int64_t bytes = 0;
    for (int k = 0; k < B.run[run].workers; k++) bytes += a_part(k).bytes;
    return bench_commit_of(run, step, bytes, "", (int)(step % 251));
}
int bench_removed(int run, int64_t step) {
    struct zt_event ev = of_rank(run, 0, ZT_EV_CKPT_REMOVED);
    ev.u.commit.step = step;
    return bench_step(&ev);
}
int bench_ckpt_failed(int run, int rank, int64_t step, bool disk_full) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_CKPT_FAILED);
    ev.u.ckpt_failed.step = step;
    ev.u.ckpt_failed.message = "no room";
    ev.u.ckpt_failed.disk_full = disk_full;
    return bench_step(&ev);
}
int bench_loaded(int run, int rank, int64_t step) {
    struct zt_event ev = of_rank(run, rank, ZT_EV_RANK_LOADED);
    ev.u.loaded.step = step;
    ev.u.loaded.seconds = 0.5 + rank;
    return bench_step(&ev);
}
int bench_loaded_all(int run, int64_t step) {
    int code = 0;
    for (int k = 0; k < B.run[run].workers && !code; k++) code = bench_loaded(run, k, step);
    return code;
}
int bench_set(int run, int64_t step, enum zt_ckpt_set what, int key) {
    struct zt_event ev = {.kind = ZT_EV_CKPT_SET};
    uint8_t k[16] = {(uint8_t)key, 9};
    const struct zt_row_ckpt *c = bench_ckpt(run, step);
    ev.u.ckpt_set.key = k;
    ev.u.ckpt_set.run_id = B.run[run].run_id;
    ev.u.ckpt_set.step = step;
    ev.u.ckpt_set.what = what;
    ev.u.ckpt_set.message = "looked at";
    ev.u.ckpt_set.read_txn = zt_machine_durable(B.m);
    ev.u.ckpt_set.found = c != NULL;
    if (c) ev.u.ckpt_set.state = c->state;
    if (c) ev.u.ckpt_set.pinned = c->pinned;
    for (int i = 0; i < B.n_ckpts; i++)
        ev.u.ckpt_set.others += &B.ckpt[i] != c && !strcmp(B.ckpt[i].run_id, B.run[run].run_id) &&
                                B.ckpt[i].state == ZT_CKPT_COMMITTED && B.ckpt[i].verified;
    return bench_step(&ev);
}
int bench_save(int run, int64_t step) {
    for (int k = 0; k < B.run[run].workers; k++) {
        bool anew = B.attempt[run].from == ZT_START_SOURCE && B.run[run].config.source.weights_only;
        int64_t base = anew ? 0 : B.attempt[run].start_step;
        int64_t have = B.stored[run][k] > base ? B.stored[run][k] : base;
        if (step > have) ZT_ASSERT(bench_steps(run, k, have + 1, step, 0.1) == 0);
        int code = bench_shard(run, k, step);
        if (code) return code;
    }
    return bench_ckpt_commit(run, step);
}
const struct zt_row_ckpt *bench_ckpt(int run, int64_t step) {
    int i = ckpt_index(B.run[run].run_id, step);
    return i < 0 ? NULL : &B.ckpt[i];
}
