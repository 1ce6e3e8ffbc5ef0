/* SPDX-License-Identifier: Apache-2.0 */
/* tests/worker/fake.h: a coordinator made of proto's server that records what a real zworker says, and
 * the worker process itself. Everything is bounded in time; nothing is left behind. Header only. */
#ifndef ZT_TESTS_WORKER_FAKE_H
#define ZT_TESTS_WORKER_FAKE_H
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/reason.h"
#include "proto/session.h"

#define STEPS_MAX 20000
#define WAIT_TURNS 6000 /* of 5 ms */

struct fake {
    uv_loop_t loop;
    struct zt_server *server;
    int port;
    uint64_t epoch;
    struct zt_token token;
    char dir[200];
    struct zt_peer *peer;
    /* what is wanted */
    Zt__Desired__Action action;
    char run[32];
    uint32_t generation;
    char script[4096];
    /* how it behaves */
    bool hold_steps, hold_ids, hold_logs, superseded;
    int refuse_steps_busy, refuse_once_exit;
    bool stale_steps;
    int refuse_traces_busy;
    bool refuse_traces;
    const char *checkpoint_folder; /* of the assignment; with it, what a drain does first */
    bool save_on_drain;
    double term_grace;
    int refuse_ckpt;       /* so many questions about checkpoints, with this code */
    Zt__Code refuse_ckpt_code;
    bool hold_ckpt;        /* no answers to them */
    /* what it heard */
    int registers, beats, ready, in_comm, puts, gets, done, failures, exits, events, draining_beats;
    Zt__TrainerPhase register_phase, beat_phase;
    bool register_named;
    char worker_id[200], second_id[200];
    int acked[STEPS_MAX + 1], step_rows;
    int64_t last_step;
    bool out_of_order;
    int thinned, with_detail;
    uint32_t step_generation;
    int done_at_rows;      /* step rows when RankDone came */
    int traced[STEPS_MAX + 1], trace_rows, done_at_traces, traces_refused;
    int64_t last_traced;
    int dtypes, done_at_dtypes, refuse_dtypes_busy;
    char recipe[64];
    int exits_after_verdict;
    uint32_t reason, fail_generation;
    int fail_exit_code, fail_signal;
    char fail_message[512], last_log[5000], event_text[256];
    uint32_t exit_generation;
    int exit_code, exit_signal;
    char *log;
    size_t log_n, log_err_bytes, log_end_at;
    int log_ends;
    bool log_gap;
    uint64_t get_request;
    struct zt_peer *get_peer;
    uint64_t capacity;
    uint32_t threads;
    int shard_dones, shards_asked, commits, removed, ckpt_failed, loaded, ckpt_refused;
    int shard_at_rows;     /* step rows when the last ShardDone came */
    int64_t ckpt_step;
};

static inline void fake_desired(struct fake *f, Zt__Desired *d, Zt__Assignment *a)
{
    zt__desired__init(d);
    d->action = f->action;
    if (f->action == ZT__DESIRED__ACTION__IDLE || f->action == ZT__DESIRED__ACTION__EXIT) {
        return;
    }
    d->run_id = f->run;
    d->has_generation = 1;
    d->generation = f->generation;
    zt__assignment__init(a);
    a->rank = 3;
    a->world = 4;
    a->replicate = 4;
    a->shard = a->tensor = 1;
    a->run_yaml = (ProtobufCBinaryData){strlen(f->script), (uint8_t *)f->script};
    a->run_name = (char *)(uintptr_t)"puppet";
    a->checkpoint_folder = (char *)(uintptr_t)f->checkpoint_folder;
    a->has_save_on_drain = a->has_term_grace_seconds = 1;
    a->save_on_drain = f->save_on_drain;
    a->term_grace_seconds = f->term_grace;
    if (f->action == ZT__DESIRED__ACTION__ABORT) {
        d->has_rank = 1;
        d->rank = 3;
    } else {
        d->assignment = a;
    }
}

static inline void fake_push(struct fake *f)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__BeatReply br = ZT__BEAT_REPLY__INIT;
    Zt__Desired d;
    Zt__Assignment a;
    struct zt_error err;
    fake_desired(f, &d, &a);
    br.epoch = f->epoch;
    br.desired = &d;
    env.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
    env.beat_reply = &br;
    if (f->peer) {
        zt_peer_push(f->peer, &env, &err);
    }
}

static inline void fake_want(struct fake *f, Zt__Desired__Action action, uint32_t generation)
{
    f->action = action;
    f->generation = generation;
    fake_push(f);
}

static inline void fake_ack(struct zt_peer *p, uint64_t id, uint64_t seq)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Ack ack = ZT__ACK__INIT;
    struct zt_error err;
    ack.has_seq = 1;
    ack.seq = seq;
    env.body_case = ZT__ENVELOPE__BODY_ACK;
    env.ack = &ack;
    zt_peer_reply(p, id, &env, &err);
}

static inline void fake_comm_id(struct zt_peer *p, uint64_t id)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__CommId c = ZT__COMM_ID__INIT;
    struct zt_error err;
    uint8_t bytes[128];
    memset(bytes, 0x42, sizeof(bytes));
    c.id = (ProtobufCBinaryData){sizeof(bytes), bytes};
    env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
    env.comm_id = &c;
    zt_peer_reply(p, id, &env, &err);
}

static inline void fake_steps(struct fake *f, struct zt_peer *p, const Zt__Envelope *env)
{
    const Zt__ReportSteps *r = env->report_steps;
    if (f->hold_steps) {
        return;
    }
    if (f->stale_steps) {
        zt_peer_reply_error(p, env->request_id, -(int)ZT__CODE__STALE_GENERATION, "old generation");
        return;
    }
    if (f->refuse_steps_busy > 0) {
        f->refuse_steps_busy--;
        zt_peer_reply_error(p, env->request_id, ZT_EBUSY, "not now");
        return;
    }
    cr_assert_eq(r->incarnation.len, 16u);
    cr_assert_str_eq(r->run_id, f->run);
    for (size_t i = 0; i < r->n_steps; i++) {
        const Zt__StepReport *s = r->steps[i];
        cr_assert(s->step >= 1 && s->step <= STEPS_MAX);
        cr_assert_eq(s->rank, 3u);
        cr_assert_eq(s->loss, 1.0 / (double)s->step);
        f->out_of_order = f->out_of_order || s->step != f->last_step + 1;
        f->last_step = s->step;
        f->acked[s->step]++;
        f->step_rows++;
        f->thinned += s->thinned;
        f->with_detail += s->at_peak != NULL && s->at_peak->parameters == s->step && s->has_forward_seconds;
        f->step_generation = s->generation;
    }
    fake_ack(p, env->request_id, r->seq);
}

static inline void fake_log(struct fake *f, struct zt_peer *p, const Zt__Envelope *env)
{
    const Zt__LogAppend *l = env->log_append;
    Zt__Envelope reply = ZT__ENVELOPE__INIT;
    Zt__LogAck ack = ZT__LOG_ACK__INIT;
    struct zt_error err;
    if (f->hold_logs) {
        return;
    }
    cr_assert_leq(l->data.len, 65536u);
    cr_assert(!f->log_ends || l->offset + l->data.len <= f->log_end_at, "output behind its end");
    if (l->has_end && l->end) {
        f->log_ends++;
        f->log_end_at = l->offset + l->data.len;
    }
    if (l->offset <= f->log_n && l->offset + l->data.len > f->log_n) {
        size_t skip = f->log_n - l->offset, n = l->data.len - skip;
        f->log = realloc(f->log, f->log_n + n + 1);
        memcpy(f->log + f->log_n, l->data.data + skip, n);
        f->log_n += n;
        f->log[f->log_n] = '\0';
        f->log_err_bytes += l->err ? n : 0;
    } else if (l->offset > f->log_n) {
        f->log_gap = true;
        f->log = realloc(f->log, l->offset + l->data.len + 1);
        memset(f->log + f->log_n, '.', l->offset - f->log_n);
        memcpy(f->log + l->offset, l->data.data, l->data.len);
        f->log_n = l->offset + l->data.len;
        f->log[f->log_n] = '\0';
    }
    ack.offset = l->offset + l->data.len;
    reply.body_case = ZT__ENVELOPE__BODY_LOG_ACK;
    reply.log_ack = &ack;
    zt_peer_reply(p, env->request_id, &reply, &err);
}

static inline void fake_traces(struct fake *f, struct zt_peer *p, const Zt__Envelope *env)
{
    const Zt__ReportTraces *r = env->report_traces;
    if (f->refuse_traces || f->refuse_traces_busy > 0) {
        f->refuse_traces_busy -= f->refuse_traces_busy > 0;
        f->traces_refused++;
        zt_peer_reply_error(p, env->request_id, f->refuse_traces ? ZT_ENOTFOUND : ZT_EBUSY, "no");
        return;
    }
    cr_assert_str_eq(r->run_id, f->run);
    for (size_t i = 0; i < r->n_traces; i++) {
        const Zt__StepTrace *t = r->traces[i];
        cr_assert(t->step >= 1 && t->step <= STEPS_MAX);
        cr_assert(t->rank == 3 && t->generation == f->generation && t->step_ns == (uint64_t)t->step * 1000);
        cr_assert_gt(t->step, f->last_traced, "in the order they came");
        cr_assert_eq(t->records[t->n_records - 1]->seq, t->n_records);
        f->last_traced = t->step;
        f->traced[t->step]++;
        f->trace_rows++;
    }
    fake_ack(p, env->request_id, 0);
}

static inline void fake_failure(struct fake *f, const Zt__ReportFailure *r)
{
    f->failures++;
    f->reason = r->reason;
    f->fail_generation = r->generation;
    f->fail_exit_code = r->has_exit_code ? r->exit_code : -1;
    f->fail_signal = r->has_signal ? r->signal : 0;
    snprintf(f->fail_message, sizeof(f->fail_message), "%s", r->message ? r->message : "");
    snprintf(f->last_log, sizeof(f->last_log), "%.*s", (int)(r->has_last_log ? r->last_log.len : 0),
             r->has_last_log ? (const char *)r->last_log.data : "");
    cr_assert_eq(r->rank, 3u);
}

static inline void fake_answer_desired(struct fake *f, struct zt_peer *p, const Zt__Envelope *env, bool reg)
{
    Zt__Envelope reply = ZT__ENVELOPE__INIT;
    Zt__BeatReply br = ZT__BEAT_REPLY__INIT;
    Zt__RegisterReply rr = ZT__REGISTER_REPLY__INIT;
    Zt__Desired d;
    Zt__Assignment a;
    struct zt_error err;
    fake_desired(f, &d, &a);
    if (reg) {
        rr.epoch = f->epoch;
        rr.beat_ms = 50;
        rr.desired = &d;
        reply.body_case = ZT__ENVELOPE__BODY_REGISTER_REPLY;
        reply.register_reply = &rr;
    } else {
        br.epoch = f->epoch;
        br.desired = &d;
        reply.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
        reply.beat_reply = &br;
    }
    zt_peer_reply(p, env->request_id, &reply, &err);
}

static inline void fake_register(struct fake *f, struct zt_peer *p, const Zt__Envelope *env)
{
    const Zt__Register *r = env->register_worker;
    f->registers++;
    f->peer = p;
    f->register_phase = r->phase;
    f->register_named = r->run_id != NULL;
    f->capacity = r->capacity_bytes;
    f->threads = r->threads;
    if (f->worker_id[0] && strcmp(f->worker_id, r->worker_id)) {
        snprintf(f->second_id, sizeof(f->second_id), "%s", r->worker_id);
    } else {
        snprintf(f->worker_id, sizeof(f->worker_id), "%s", r->worker_id);
    }
    if (f->superseded) {
        zt_peer_reply_error(p, env->request_id, -(int)ZT__CODE__SUPERSEDED, "another process has this name");
        return;
    }
    fake_answer_desired(f, p, env, true);
}

/* Signed by the supervisor, whatever the trainer wrote. */
#define FAKE_SIGNED(m) (strcmp((m)->run_id, f->run) == 0 && (m)->generation == f->generation)

static inline void fake_shards(struct fake *f, struct zt_peer *p, uint64_t id)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Shards s = ZT__SHARDS__INIT;
    Zt__ShardDone part[4], *list[4];
    uint8_t bytes[32] = {0};
    struct zt_error err;
    for (int r = 0; r < 4; r++) {
        zt__shard_done__init(&part[r]);
        part[r].run_id = f->run;
        part[r].rank = (uint32_t)r;
        part[r].step = f->ckpt_step;
        part[r].bytes = 100 * f->ckpt_step + r;
        part[r].index_sha256 = (ProtobufCBinaryData){32, bytes};
        part[r].parameter_hash = part[r].state_hash = (ProtobufCBinaryData){16, bytes};
        list[r] = &part[r];
    }
    s.n_shards = 4;
    s.shards = list;
    env.body_case = ZT__ENVELOPE__BODY_SHARDS;
    env.shards = &s;
    zt_peer_reply(p, id, &env, &err);
}

static inline void fake_committed(struct fake *f, struct zt_peer *p, uint64_t id)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__CkptCommitted c = ZT__CKPT_COMMITTED__INIT;
    int64_t let_go[1] = {f->ckpt_step - 1};
    struct zt_error err;
    c.n_remove = 1;
    c.remove = let_go;
    env.body_case = ZT__ENVELOPE__BODY_CKPT_COMMITTED;
    env.ckpt_committed = &c;
    zt_peer_reply(p, id, &env, &err);
}

/* False: it is not about checkpoints. */
static inline bool fake_checkpoint(struct fake *f, struct zt_peer *p, const Zt__Envelope *env)
{
    int *count;
    bool ok;
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_SHARD_DONE:
        count = &f->shard_dones;
        ok = FAKE_SIGNED(env->shard_done) && env->shard_done->rank == 3 && env->shard_done->index_sha256.len == 32;
        f->ckpt_step = env->shard_done->step;
        f->shard_at_rows = f->step_rows;
        break;
    case ZT__ENVELOPE__BODY_GET_SHARDS:
        count = &f->shards_asked;
        ok = FAKE_SIGNED(env->get_shards);
        f->ckpt_step = env->get_shards->step;
        break;
    case ZT__ENVELOPE__BODY_CKPT_COMMIT:
        count = &f->commits;
        ok = FAKE_SIGNED(env->ckpt_commit) && env->ckpt_commit->bytes == 100 * env->ckpt_commit->step;
        f->ckpt_step = env->ckpt_commit->step;
        break;
    case ZT__ENVELOPE__BODY_CKPT_REMOVED:
        count = &f->removed;
        ok = FAKE_SIGNED(env->ckpt_removed);
        break;
    case ZT__ENVELOPE__BODY_CKPT_FAILED:
        count = &f->ckpt_failed;
        ok = FAKE_SIGNED(env->ckpt_failed) && env->ckpt_failed->rank == 3 && !strcmp(env->ckpt_failed->message, "no room");
        break;
    case ZT__ENVELOPE__BODY_RANK_LOADED:
        count = &f->loaded;
        ok = FAKE_SIGNED(env->rank_loaded) && env->rank_loaded->rank == 3;
        break;
    default:
        return false;
    }
    cr_assert(ok, "%s is not signed or not whole", zt_envelope_body_name(env));
    if (f->refuse_ckpt > 0) {
        f->refuse_ckpt--;
        f->ckpt_refused++;
        zt_peer_reply_error(p, env->request_id, -(int)f->refuse_ckpt_code, "not so");
        return true;
    }
    (*count)++;
    if (f->hold_ckpt) {
        return true;
    }
    if (env->body_case == ZT__ENVELOPE__BODY_GET_SHARDS) {
        fake_shards(f, p, env->request_id);
    } else if (env->body_case == ZT__ENVELOPE__BODY_CKPT_COMMIT) {
        fake_committed(f, p, env->request_id);
    } else {
        fake_ack(p, env->request_id, 0);
    }
    return true;
}

static inline void fake_request(void *arg, struct zt_peer *p, const Zt__Envelope *env)
{
    struct fake *f = arg;
    if (fake_checkpoint(f, p, env)) {
        return;
    }
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_REGISTER_WORKER:
        fake_register(f, p, env);
        return;
    case ZT__ENVELOPE__BODY_BEAT:
        f->beats++;
        f->draining_beats += env->beat->draining;
        f->beat_phase = env->beat->phase;
        fake_answer_desired(f, p, env, false);
        return;
    case ZT__ENVELOPE__BODY_RANK_READY:
        f->ready++;
        break;
    case ZT__ENVELOPE__BODY_RANK_IN_COMM:
        f->in_comm++;
        break;
    case ZT__ENVELOPE__BODY_PUT_COMM_ID:
    case ZT__ENVELOPE__BODY_GET_COMM_ID:
        *(env->body_case == ZT__ENVELOPE__BODY_PUT_COMM_ID ? &f->puts : &f->gets) += 1;
        f->get_request = env->request_id;
        f->get_peer = p;
        if (!f->hold_ids) {
            fake_comm_id(p, env->request_id);
        }
        return;
    case ZT__ENVELOPE__BODY_REPORT_STEPS:
        fake_steps(f, p, env);
        return;
    case ZT__ENVELOPE__BODY_REPORT_TRACES:
        fake_traces(f, p, env);
        return;
    case ZT__ENVELOPE__BODY_REPORT_DTYPES:
        if (f->refuse_dtypes_busy > 0) {
            f->refuse_dtypes_busy--;
            zt_peer_reply_error(p, env->request_id, ZT_EBUSY, "not now");
            return;
        }
        cr_assert(env->report_dtypes->report->rank == 3 && env->report_dtypes->report->generation == f->generation);
        snprintf(f->recipe, sizeof(f->recipe), "%s", env->report_dtypes->report->recipe);
        f->dtypes++;
        break;
    case ZT__ENVELOPE__BODY_LOG_APPEND:
        fake_log(f, p, env);
        return;
    case ZT__ENVELOPE__BODY_REPORT_FAILURE:
        fake_failure(f, env->report_failure);
        break;
    case ZT__ENVELOPE__BODY_RANK_DONE:
        f->done++;
        f->done_at_rows = f->step_rows;
        f->done_at_traces = f->trace_rows;
        f->done_at_dtypes = f->dtypes;
        break;
    case ZT__ENVELOPE__BODY_CHILD_EXITED:
        if (f->refuse_once_exit > 0) {
            f->refuse_once_exit--;
            zt_peer_reply_error(p, env->request_id, ZT_EIO, "disk full");
            return;
        }
        f->exits++;
        f->exits_after_verdict += f->done + f->failures > 0;
        f->exit_generation = env->child_exited->generation;
        f->exit_code = env->child_exited->has_exit_code ? env->child_exited->exit_code : -1;
        f->exit_signal = env->child_exited->has_signal ? env->child_exited->signal : 0;
        cr_assert_eq(env->child_exited->rank, 3u);
        break;
    case ZT__ENVELOPE__BODY_REPORT_EVENT:
        f->events++;
        cr_assert(env->report_event->has_seq, "an event sent twice could not be told from two");
        snprintf(f->event_text, sizeof(f->event_text), "%s %s", env->report_event->kind, env->report_event->message);
        break;
    default:
        cr_assert_fail("a worker sends %s", zt_envelope_body_name(env));
    }
    fake_ack(p, env->request_id, 0);
}

static inline void fake_gone(void *arg, struct zt_peer *p)
{
    struct fake *f = arg;
    if (f->peer == p) {
        f->peer = NULL;
    }
}

static inline void fake_tick(uv_timer_t *t) { (void)t; }
static inline void fake_turn(struct fake *f)
{
    uv_timer_t guard;
    uv_timer_init(&f->loop, &guard);
    uv_timer_start(&guard, fake_tick, 5, 5); /* repeating: it may fire before the poll */
    uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&f->loop, UV_RUN_NOWAIT);
}

#define UNTIL(f, condition)                                                                              \
    do {                                                                                                 \
        int turns_ = 0;                                                                                  \
        for (; !(condition) && turns_ < WAIT_TURNS; turns_++) {                                          \
            fake_turn(f);                                                                                \
        }                                                                                                \
        cr_assert(condition, "never came: %s", #condition);                                              \
    } while (0)

static inline void fake_listen(struct fake *f)
{
    struct zt_error err;
    struct zt_server_config c = {.host = "127.0.0.1", .port = f->port, .token = f->token, .epoch = ++f->epoch,
                                 .version = "fake", .arg = f, .on_request = fake_request, .on_close = fake_gone};
    cr_assert_eq(zt_server_open(&f->loop, &c, &f->server, &err), 0, "%s", err.msg);
    f->port = zt_server_port(f->server);
}

static inline void fake_closed(void *arg) { *(bool *)arg = true; }
static inline void fake_stop(struct fake *f)
{
    bool closed = false;
    zt_server_close(f->server, fake_closed, &closed);
    UNTIL(f, closed);
    f->server = NULL;
}

static inline const char *in_dir(struct fake *f, const char *name)
{
    static char path[8][400];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", f->dir, name);
    return path[turn];
}

static inline void fake_init(struct fake *f)
{
    struct zt_error err;
    const char *tmp = getenv("TMPDIR");
    memset(f, 0, sizeof(*f));
    snprintf(f->dir, sizeof(f->dir), "%s/zt-worker-XXXXXX", tmp ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(f->dir));
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to us: seen and reaped */
    cr_assert_eq(zt_token_create(&zt_sys_posix, in_dir(f, "token"), &err), 0, "%s", err.msg);
    cr_assert_eq(zt_token_load(&zt_sys_posix, in_dir(f, "token"), &f->token, &err), 0);
    snprintf(f->run, sizeof(f->run), "01RUN");
    cr_assert_eq(uv_loop_init(&f->loop), 0);
    fake_listen(f);
}

static inline void fake_end(struct fake *f)
{
    char cmd[300];
    if (f->server) {
        fake_stop(f);
    }
    for (int i = 0; i < 100 && uv_run(&f->loop, UV_RUN_NOWAIT); i++) {
    }
    cr_assert_eq(uv_loop_close(&f->loop), 0);
    free(f->log);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", f->dir);
    cr_assert_eq(system(cmd), 0);
}

static inline bool file_exists(const char *path) { return access(path, F_OK) == 0; }

static inline pid_t fake_worker(struct fake *f, const char *name, ...)
{
    const char *argv[24] = {ZWORKER, "--token-file", in_dir(f, "token"), "--trainer-command", PUPPET, "--coord"};
    char coord[40];
    int n = 6;
    va_list ap;
    snprintf(coord, sizeof(coord), "127.0.0.1:%d", f->port);
    argv[n++] = coord;
    if (name) {
        argv[n++] = "--name";
        argv[n++] = name;
    }
    va_start(ap, name);
    for (const char *a; n < 23 && (a = va_arg(ap, const char *));) {
        argv[n++] = a;
    }
    va_end(ap);
    pid_t pid = fork();
    if (pid == 0) {
        int log = open(in_dir(f, "worker.log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("XDG_RUNTIME_DIR", f->dir, 1);
        setenv("XDG_STATE_HOME", f->dir, 1);
        dup2(log, 1);
        dup2(log, 2);
        close_range(3, ~0u, 0);
        execv(ZWORKER, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    cr_assert_gt(pid, 0);
    return pid;
}

/* The exit status of a process of ours, within the bound; -1000 - signal when killed by one. */
static inline int fake_wait(struct fake *f, pid_t pid)
{
    int status = 0;
    pid_t got = 0;
    for (int i = 0; i < WAIT_TURNS && got != pid; i++) {
        fake_turn(f);
        got = waitpid(pid, &status, WNOHANG);
    }
    cr_assert_eq(got, pid, "process %d does not end", (int)pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1000 - WTERMSIG(status);
}

/* The n-th process id that puppets wrote; 0 = not there yet. */
static inline pid_t puppet_pid(struct fake *f, int n)
{
    int pid = 0, v;
    FILE *file = fopen(in_dir(f, "pids"), "r");
    for (int i = 0; file && i <= n; i++) {
        char line[32];
        pid = fgets(line, sizeof(line), file) && strchr(line, '\n') && sscanf(line, "%d", &v) == 1 ? v : 0;
    }
    if (file) {
        fclose(file);
    }
    return pid;
}

/* Gone, or a zombie that we reap. */
static inline bool process_gone(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, WNOHANG) == pid) {
        return true;
    }
    return kill(pid, 0) && errno == ESRCH;
}

static inline void fake_script(struct fake *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void fake_script(struct fake *f, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(f->script, sizeof(f->script), "pid %s/pids\n", f->dir);
    va_start(ap, fmt);
    vsnprintf(f->script + n, sizeof(f->script) - (size_t)n, fmt, ap);
    va_end(ap);
}

static inline void fake_quit_worker(struct fake *f, pid_t pid)
{
    f->action = ZT__DESIRED__ACTION__IDLE;
    kill(pid, SIGTERM);
    cr_assert_eq(fake_wait(f, pid), 0);
}

#endif
