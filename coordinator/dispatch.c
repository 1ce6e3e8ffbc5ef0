/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/dispatch.c: messages become events of the machine, reads, or log pieces (shell.h). What comes
 * from the network is checked here for shape and size; whether it is allowed now is the machine's business. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/shell.h"
#include "proto/trace.h"

#define AGE_MAX_MS (INT64_C(365) * 24 * 3600 * 1000)
#define LOG_PIECE_MAX ((size_t)512 * 1024)

void zt_refuse(struct zt_session *s, const Zt__Envelope *env, int code, const char *message)
{
    if (env->request_id != 0)
        zt_peer_reply_error(s->peer, env->request_id, code, message);
}

void zt_dispatch_step(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env, struct zt_event *ev, bool keep_copy)
{
    struct zt_error err;
    struct zt_request *q = zt_request_new(sh, s, env, keep_copy, &err);
    if (!q) {
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        return;
    }
    ev->request = q->id;
    ev->session = s->id;
    ev->worker_id = s->worker_id;
    ev->incarnation = s->incarnation;
    zt_shell_step(sh, ev, NULL);
}

/* ------------------------------------------------------------------------------ workers */
static bool fits(const char *text, size_t most) { return !text || strlen(text) <= most; }

static const char *bad_register(const Zt__Register *m)
{
    if (!m->worker_id[0] || !fits(m->worker_id, ZT_WORKER_ID_MAX))
        return "worker_id: 1 to 191 bytes are allowed";
    if (!m->host[0] || !fits(m->host, ZT_HOST_MAX))
        return "host: 1 to 127 bytes are allowed";
    if (!m->device[0] || !fits(m->device, 15))
        return "device: 1 to 15 bytes are allowed";
    if (m->incarnation.len != sizeof(struct zt_incarnation))
        return "incarnation: 16 bytes are required";
    if (m->capacity_bytes > INT64_MAX)
        return "capacity_bytes: out of range";
    return NULL;
}

const char *zt_bad_place(const char *run_id, uint32_t rank)
{
    if (!run_id[0] || strlen(run_id) > ZT_RUN_ID_MAX)
        return "run_id: 1 to 31 bytes are allowed";
    if (rank >= ZT_MACHINE_WORLD_MAX)
        return "rank: out of range";
    return NULL;
}

/* -1 = not said. What no trainer can have reached is nothing said. */
static int64_t step_said(int has, int64_t step) { return has && step >= 0 && step <= INT64_MAX / 2 ? step : -1; }

static void on_register(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__Register *m = env->register_worker;
    const char *bad = bad_register(m);
    if (!bad && m->run_id && m->run_id[0])
        bad = zt_bad_place(m->run_id, m->rank);
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    snprintf(s->worker_id, sizeof s->worker_id, "%s", m->worker_id);
    memcpy(s->incarnation.bytes, m->incarnation.data, sizeof s->incarnation.bytes);
    s->registered = true;
    struct zt_event ev = { .kind = ZT_EV_REGISTER };
    ev.at = (struct zt_on_child){ m->run_id, m->generation, (int32_t)m->rank };
    ev.u.reg.host = m->host;
    ev.u.reg.device = m->device;
    ev.u.reg.version = m->version ? m->version : "";
    ev.u.reg.isa = m->isa ? m->isa : "";
    ev.u.reg.backend = m->backend ? m->backend : "";
    ev.u.reg.address = m->address ? m->address : "";
    ev.u.reg.capacity_bytes = (int64_t)m->capacity_bytes;
    ev.u.reg.threads = m->threads;
    ev.u.reg.pid = m->pid;
    ev.u.reg.phase = m->has_phase ? (enum zt_trainer_phase)m->phase : ZT_TP_NONE;
    ev.u.reg.step = step_said(m->has_step, m->step);
    zt_dispatch_step(sh, s, env, &ev, false);
}

/* What takes long by nature: its silence is judged by the first step's limit. */
static enum zt_activity activity_of(const char *text)
{
    static const char *const slow[] = { "eval", "save", "load", "init", "checkpoint" };
    for (size_t i = 0; text && i < sizeof slow / sizeof slow[0]; i++)
        if (strcmp(text, slow[i]) == 0)
            return ZT_ACT_LONG;
    return ZT_ACT_STEP;
}

static void on_beat(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__Beat *m = env->beat;
    const char *bad = m->run_id && m->run_id[0] ? zt_bad_place(m->run_id, m->rank) : NULL;
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    struct zt_event ev = { .kind = ZT_EV_BEAT };
    ev.at = (struct zt_on_child){ m->run_id, m->generation, (int32_t)m->rank };
    ev.u.beat.seq = m->seq;
    ev.u.beat.phase = m->has_phase ? (enum zt_trainer_phase)m->phase : ZT_TP_NONE;
    ev.u.beat.step = step_said(m->has_step, m->step);
    ev.u.beat.progress_age_ms = m->has_progress_age_ms && m->progress_age_ms <= AGE_MAX_MS ? m->progress_age_ms : -1;
    ev.u.beat.activity = activity_of(m->activity);
    ev.u.beat.draining = m->has_draining && m->draining;
    ev.u.beat.held_by = m->has_held_by ? m->held_by : 0;
    zt_dispatch_step(sh, s, env, &ev, false);
}

static const char *bad_steps(const Zt__ReportSteps *m, const struct zt_session *s)
{
    if (m->incarnation.len != sizeof s->incarnation.bytes ||
        memcmp(m->incarnation.data, s->incarnation.bytes, sizeof s->incarnation.bytes) != 0)
        return "incarnation: not the one this connection registered with";
    for (size_t i = 0; i < m->n_steps; i++) {
        const Zt__StepReport *a = m->steps[0], *r = m->steps[i];
        if (r->rank != a->rank || r->generation != a->generation)
            return "a batch holds the steps of one rank in one generation";
        if (r->step < 1 || r->step > INT64_MAX / 2 || r->step != a->step + (int64_t)i)
            return "the steps of a batch ascend from 1 or more without a gap";
    }
    return NULL;
}

static void on_steps(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__ReportSteps *m = env->report_steps;
    const char *bad = bad_steps(m, s);
    if (!bad && m->n_steps > 0)
        bad = zt_bad_place(m->run_id, m->steps[0]->rank);
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    if (m->n_steps == 0) {
        Zt__Ack ack = ZT__ACK__INIT;
        Zt__Envelope reply = ZT__ENVELOPE__INIT;
        ack.has_seq = 1;
        ack.seq = m->seq;
        reply.body_case = ZT__ENVELOPE__BODY_ACK;
        reply.ack = &ack;
        zt_answer(sh, s->id, env->request_id, &reply);
        return;
    }
    const Zt__StepReport *first = m->steps[0], *last = m->steps[m->n_steps - 1];
    struct zt_event ev = { .kind = ZT_EV_STEPS };
    ev.at = (struct zt_on_child){ m->run_id, first->generation, (int32_t)first->rank };
    ev.u.steps.first = first->step;
    ev.u.steps.last = last->step;
    ev.u.steps.step_seconds = last->has_step_seconds ? last->step_seconds : NAN;
    ev.u.steps.seq = m->seq;
    zt_dispatch_step(sh, s, env, &ev, true);
}

static void on_failure(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__ReportFailure *m = env->report_failure;
    const char *bad = zt_bad_place(m->run_id, m->rank);
    enum zt_reason reason = (enum zt_reason)m->reason;
    if (!bad && (reason == ZT_REASON_NONE || strncmp(zt_reason_name(reason), "UNKNOWN", 7) == 0))
        bad = "reason: not one this coordinator knows; use the same version on both sides";
    struct zt_error err;
    struct zt_request *q = bad ? NULL : zt_request_new(sh, s, env, true, &err);
    if (!q) {
        zt_refuse(s, env, bad ? ZT_EINVAL : ZT_EBUSY, bad ? bad : "the coordinator is short of memory; try again");
        return;
    }
    if (m->oom) {
        q->oom_bytes = zt__oom_detail__get_packed_size(m->oom);
        q->oom = malloc(q->oom_bytes + 1);
        if (q->oom)
            zt__oom_detail__pack(m->oom, q->oom);
        else
            q->oom_bytes = 0;
    }
    struct zt_event ev = { .kind = ZT_EV_FAILURE, .request = q->id, .session = s->id, .worker_id = s->worker_id,
                           .incarnation = s->incarnation };
    ev.at = (struct zt_on_child){ m->run_id, m->generation, (int32_t)m->rank };
    ev.u.failure.reason = reason;
    ev.u.failure.message = m->message ? m->message : "";
    ev.u.failure.step = step_said(m->has_step, m->step);
    ev.u.failure.exit_code = m->has_exit_code ? m->exit_code : -1;
    ev.u.failure.signal = m->has_signal ? m->signal : 0;
    ev.u.failure.peer = m->has_peer ? m->peer : -1;
    ev.u.failure.offset_ms = m->has_offset_ms ? m->offset_ms : 0;
    zt_shell_step(sh, &ev, NULL);
}

/* RankReady, RankInComm, RankDone, ChildExited, PutCommId, GetCommId: one place and little more. */
static void on_rank(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    struct zt_event ev = { 0 };
    ev.at.rank = 0;
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_RANK_READY:
        ev.kind = ZT_EV_RANK_READY;
        ev.at = (struct zt_on_child){ env->rank_ready->run_id, env->rank_ready->generation, (int32_t)env->rank_ready->rank };
        break;
    case ZT__ENVELOPE__BODY_RANK_IN_COMM:
        ev.kind = ZT_EV_RANK_IN_COMM;
        ev.at = (struct zt_on_child){ env->rank_in_comm->run_id, env->rank_in_comm->generation, (int32_t)env->rank_in_comm->rank };
        break;
    case ZT__ENVELOPE__BODY_RANK_DONE:
        ev.kind = ZT_EV_RANK_DONE;
        ev.at = (struct zt_on_child){ env->rank_done->run_id, env->rank_done->generation, (int32_t)env->rank_done->rank };
        ev.u.done.steps = env->rank_done->steps;
        ev.u.done.parameter_hash = env->rank_done->parameter_hash ? env->rank_done->parameter_hash : "";
        break;
    case ZT__ENVELOPE__BODY_CHILD_EXITED:
        ev.kind = ZT_EV_CHILD_EXITED;
        ev.at = (struct zt_on_child){ env->child_exited->run_id, env->child_exited->generation, (int32_t)env->child_exited->rank };
        ev.u.exited.exit_code = env->child_exited->has_exit_code ? env->child_exited->exit_code : -1;
        ev.u.exited.signal = env->child_exited->has_signal ? env->child_exited->signal : 0;
        break;
    case ZT__ENVELOPE__BODY_PUT_COMM_ID:
        ev.kind = ZT_EV_COMM_PUT;
        ev.at = (struct zt_on_child){ env->put_comm_id->run_id, env->put_comm_id->generation, -1 };
        ev.u.comm.group = env->put_comm_id->group;
        ev.u.comm.index = env->put_comm_id->index;
        ev.u.comm.id = env->put_comm_id->id.data;
        ev.u.comm.bytes = env->put_comm_id->id.len;
        break;
    default:
        ev.kind = ZT_EV_COMM_GET;
        ev.at = (struct zt_on_child){ env->get_comm_id->run_id, env->get_comm_id->generation, -1 };
        ev.u.comm.group = env->get_comm_id->group;
        ev.u.comm.index = env->get_comm_id->index;
        break;
    }
    const char *bad = zt_bad_place(ev.at.run_id, ev.at.rank < 0 ? 0 : (uint32_t)ev.at.rank);
    if (!bad && (ev.kind == ZT_EV_COMM_PUT || ev.kind == ZT_EV_COMM_GET) && !fits(ev.u.comm.group, ZT_COMM_GROUP_MAX))
        bad = "group: at most 31 bytes are allowed";
    if (!bad && ev.kind == ZT_EV_COMM_PUT && (ev.u.comm.bytes == 0 || ev.u.comm.bytes > ZT_COMM_ID_BYTES))
        bad = "id: 1 to 128 bytes are allowed";
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    zt_dispatch_step(sh, s, env, &ev, ev.kind == ZT_EV_COMM_GET);
}

/* ------------------------------------------------------------------------------ logs and events of workers */
struct store_wait { struct zt_shell *sh; uint64_t session, wire_id; bool log; };

static void on_stored(void *arg, const struct zt_commit *c)
{
    struct store_wait *w = arg;
    Zt__LogAck log = ZT__LOG_ACK__INIT;
    Zt__Ack ack = ZT__ACK__INIT;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    if (c->code) {
        zt_answer_error(w->sh, w->session, w->wire_id, c->code, c->message);
    } else {
        log.offset = c->log_next;
        env.body_case = w->log ? ZT__ENVELOPE__BODY_LOG_ACK : ZT__ENVELOPE__BODY_ACK;
        if (w->log)
            env.log_ack = &log;
        else
            env.ack = &ack;
        zt_answer(w->sh, w->session, w->wire_id, &env);
    }
    free(w);
}

static void store(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env, struct zt_batch *b, bool log)
{
    struct zt_error err;
    struct store_wait *w = malloc(sizeof *w);
    if (!b || !w) {
        zt_batch_free(b);
        free(w);
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        return;
    }
    *w = (struct store_wait){ sh, s->id, env->request_id, log };
    if (zt_store_submit(sh->store, b, ZT_HURRY_NO, false, on_stored, w, &err)) {
        free(w);
        zt_refuse(s, env, err.code, err.msg);
    }
}

static void on_log(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__LogAppend *m = env->log_append;
    const char *bad = zt_bad_place(m->run_id, m->rank);
    if (!bad && (m->data.len > LOG_PIECE_MAX || m->offset > INT64_MAX / 4))
        bad = "a log piece holds at most 512 KiB at an offset below 2^61";
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    struct zt_batch *b = zt_batch_new();
    if (b)
        zt_batch_log(b, m->run_id, m->generation, m->rank, m->offset, m->has_err && m->err, m->has_end && m->end, m->data.data, m->data.len,
                     zt_shell_wall_ms());
    store(sh, s, env, b, true);
}

static void on_traces(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__ReportTraces *m = env->report_traces;
    const char *bad = zt_bad_place(m->run_id, 0);
    for (size_t i = 0; i < m->n_traces && !bad; i++) {
        const Zt__StepTrace *a = m->traces[0], *t = m->traces[i];
        bad = t->rank != a->rank || t->generation != a->generation ? "the traces of a batch are of one rank in one generation"
              : zt_bad_place(m->run_id, t->rank) ? zt_bad_place(m->run_id, t->rank) : zt_trace_check(t);
    }
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    struct zt_batch *b = zt_batch_new();
    if (b)
        zt_batch_traces(b, m->run_id, m->traces, m->n_traces);
    store(sh, s, env, b, false);
}

static const char *bad_dtypes(const Zt__DtypesReport *r)
{
    if (r->n_rows > 64 || strlen(r->recipe) > 63 || !fits(r->compute, 255) || !fits(r->kernels, 255))
        return "report: at most 64 rows, 63 bytes of recipe and 255 of compute and kernels are allowed";
    for (size_t i = 0; i < r->n_rows; i++) {
        const Zt__DtypeRow *d = r->rows[i];
        if (!fits(d->what, 63) || !fits(d->configured, 63) || !fits(d->stored, 63) || !fits(d->used, 63))
            return "report: at most 63 bytes are allowed in a row's texts";
    }
    return NULL;
}

static void on_dtypes(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__ReportDtypes *m = env->report_dtypes;
    const char *bad = zt_bad_place(m->run_id, m->report->rank);
    if (!bad)
        bad = bad_dtypes(m->report);
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    struct zt_batch *b = zt_batch_new();
    if (b)
        zt_batch_dtypes(b, m->run_id, m->report);
    store(sh, s, env, b, false);
}

static bool newest_generation(struct zt_shell *sh, const char *run_id, uint32_t *generation)
{
    int n = zt_machine_runs(sh->machine);
    struct zt_run_view v;
    for (int i = 0; i < n; i++) {
        zt_machine_run_at(sh->machine, i, &v);
        if (strcmp(v.run_id, run_id) == 0) {
            *generation = v.generation;
            return true;
        }
    }
    return false;
}

static void on_event(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    const Zt__ReportEvent *m = env->report_event;
    const char *bad = zt_bad_place(m->run_id, m->rank);
    struct zt_row_event e = { .at_ms = zt_shell_wall_ms(), .generation = m->generation, .rank = (int32_t)m->rank };
    uint32_t newest = 0;
    if (!bad && (!m->kind[0] || strlen(m->kind) >= sizeof e.kind || strspn(m->kind, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != strlen(m->kind)))
        bad = "kind: 1 to 31 of A-Z, 0-9 and _ are allowed";
    if (!bad && m->has_seq && m->seq > INT64_MAX)
        bad = "seq: out of range";
    if (bad) {
        zt_refuse(s, env, ZT_EINVAL, bad);
        return;
    }
    if (!newest_generation(sh, m->run_id, &newest)) {
        zt_refuse(s, env, ZT_ENOTFOUND, "no such live run");
        return;
    }
    if (m->generation != newest) {
        zt_refuse(s, env, ZT_CODE_STALE, "this generation has ended");
        return;
    }
    snprintf(e.run_id, sizeof e.run_id, "%s", m->run_id);
    snprintf(e.worker_id, sizeof e.worker_id, "%s", s->worker_id);
    snprintf(e.kind, sizeof e.kind, "%s", m->kind);
    snprintf(e.actor, sizeof e.actor, "worker");
    snprintf(e.message, sizeof e.message, "%.767s", m->message);
    e.level = m->has_level && m->level <= 3 ? (int)m->level : 1;
    struct zt_batch *b = zt_batch_new();
    if (b)
        zt_batch_event(b, &e, m->has_seq ? (int64_t)m->seq : -1);
    store(sh, s, env, b, false);
}

/* ------------------------------------------------------------------------------ cancel, shutdown */
static void on_cancel(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    if (env->cancel->request_key.len != 16) {
        zt_refuse(s, env, ZT_EINVAL, "request_key: 16 random bytes are required");
        return;
    }
    zt_readers_submit(sh->readers, s, env); /* comes back in zt_dispatch_cancel */
}

void zt_dispatch_cancel(struct zt_shell *sh, uint64_t session, const Zt__Envelope *env, const struct zt_run_ref *ref)
{
    struct zt_error err;
    struct zt_row_event audit;
    struct zt_session *s = zt_session_find(sh, session);
    if (!s || !s->peer || sh->stopping)
        return; /* the client is gone and will ask again with the same key, or not */
    struct zt_request *q = zt_request_new(sh, s, env, false, &err);
    if (!q) {
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        return;
    }
    bool now = env->cancel->has_now && env->cancel->now;
    zt_audit(sh, &audit, s, "cancel", ref->run_id, "%s%s", ref->name, now ? ", at once" : "");
    struct zt_event ev = { .kind = ZT_EV_CANCEL, .request = q->id };
    ev.u.cancel.key = env->cancel->request_key.data;
    ev.u.cancel.run_id = ref->run_id;
    ev.u.cancel.stored = ref->state;
    ev.u.cancel.now = now;
    zt_shell_step(sh, &ev, &audit);
}

struct stop_wait { struct zt_shell *sh; uint64_t session, wire_id; };

static void on_audited(void *arg, const struct zt_commit *c)
{
    struct stop_wait *w = arg;
    (void)c; /* a coordinator that cannot write may still be told to stop */
    Zt__Ack ack = ZT__ACK__INIT;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    env.body_case = ZT__ENVELOPE__BODY_ACK;
    env.ack = &ack;
    zt_answer(w->sh, w->session, w->wire_id, &env);
    zt_shell_stop(w->sh, 0, "a client asked for it");
    free(w);
}

static void on_shutdown(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    struct zt_error err;
    struct zt_row_event e;
    struct stop_wait *w = malloc(sizeof *w);
    struct zt_batch *b = zt_batch_new();
    zt_audit(sh, &e, s, "shutdown", "", "the coordinator stops");
    if (b)
        zt_batch_event(b, &e, -1);
    if (!w || !b) {
        zt_batch_free(b);
        free(w);
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is short of memory; try again");
        return;
    }
    *w = (struct stop_wait){ sh, s->id, env->request_id };
    if (zt_store_submit(sh->store, b, ZT_HURRY_YES, false, on_audited, w, &err))
        on_audited(w, NULL);
}

/* ------------------------------------------------------------------------------ one message */
static void from_worker(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    if (zt_peer_role(s->peer) != ZT__ROLE__ROLE_WORKER) {
        zt_refuse(s, env, ZT_EAUTH, "only a worker may send this");
        return;
    }
    if (env->body_case == ZT__ENVELOPE__BODY_REGISTER_WORKER) {
        on_register(sh, s, env);
        return;
    }
    if (!s->registered) {
        zt_refuse(s, env, ZT_EINVAL, "send Register first: this connection has not said which worker it is");
        return;
    }
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_BEAT: on_beat(sh, s, env); break;
    case ZT__ENVELOPE__BODY_REPORT_STEPS: on_steps(sh, s, env); break;
    case ZT__ENVELOPE__BODY_REPORT_FAILURE: on_failure(sh, s, env); break;
    case ZT__ENVELOPE__BODY_LOG_APPEND: on_log(sh, s, env); break;
    case ZT__ENVELOPE__BODY_REPORT_EVENT: on_event(sh, s, env); break;
    case ZT__ENVELOPE__BODY_REPORT_TRACES: on_traces(sh, s, env); break;
    case ZT__ENVELOPE__BODY_REPORT_DTYPES: on_dtypes(sh, s, env); break;
    case ZT__ENVELOPE__BODY_SHARD_DONE: case ZT__ENVELOPE__BODY_GET_SHARDS: case ZT__ENVELOPE__BODY_CKPT_COMMIT:
    case ZT__ENVELOPE__BODY_CKPT_REMOVED: case ZT__ENVELOPE__BODY_CKPT_FAILED: case ZT__ENVELOPE__BODY_RANK_LOADED:
        zt_dispatch_ckpt(sh, s, env);
        break;
    default: on_rank(sh, s, env); break;
    }
}

static void from_client(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    if (zt_peer_role(s->peer) != ZT__ROLE__ROLE_CLIENT) {
        zt_refuse(s, env, ZT_EAUTH, "only a client may send this");
        return;
    }
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_SUBMIT: zt_on_submit(sh, s, env); break;
    case ZT__ENVELOPE__BODY_SET_CHECKPOINT: zt_on_set_checkpoint(sh, s, env); break;
    case ZT__ENVELOPE__BODY_CANCEL: on_cancel(sh, s, env); break;
    case ZT__ENVELOPE__BODY_SHUTDOWN: on_shutdown(sh, s, env); break;
    default: zt_readers_submit(sh->readers, s, env); break;
    }
}

void zt_dispatch(struct zt_shell *sh, struct zt_session *s, const Zt__Envelope *env)
{
    if (sh->stopping) {
        zt_refuse(s, env, ZT_EBUSY, "the coordinator is stopping");
        return;
    }
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_REGISTER_WORKER: case ZT__ENVELOPE__BODY_BEAT: case ZT__ENVELOPE__BODY_RANK_READY:
    case ZT__ENVELOPE__BODY_RANK_IN_COMM: case ZT__ENVELOPE__BODY_PUT_COMM_ID: case ZT__ENVELOPE__BODY_GET_COMM_ID:
    case ZT__ENVELOPE__BODY_REPORT_STEPS: case ZT__ENVELOPE__BODY_REPORT_FAILURE: case ZT__ENVELOPE__BODY_RANK_DONE:
    case ZT__ENVELOPE__BODY_LOG_APPEND: case ZT__ENVELOPE__BODY_REPORT_EVENT: case ZT__ENVELOPE__BODY_CHILD_EXITED:
    case ZT__ENVELOPE__BODY_REPORT_TRACES: case ZT__ENVELOPE__BODY_REPORT_DTYPES:
    case ZT__ENVELOPE__BODY_SHARD_DONE: case ZT__ENVELOPE__BODY_GET_SHARDS: case ZT__ENVELOPE__BODY_CKPT_COMMIT:
    case ZT__ENVELOPE__BODY_CKPT_REMOVED: case ZT__ENVELOPE__BODY_CKPT_FAILED: case ZT__ENVELOPE__BODY_RANK_LOADED:
        from_worker(sh, s, env);
        break;
    case ZT__ENVELOPE__BODY_SUBMIT: case ZT__ENVELOPE__BODY_CANCEL: case ZT__ENVELOPE__BODY_SHUTDOWN:
    case ZT__ENVELOPE__BODY_LIST_RUNS: case ZT__ENVELOPE__BODY_GET_RUN: case ZT__ENVELOPE__BODY_GET_METRICS:
    case ZT__ENVELOPE__BODY_GET_MEMORY: case ZT__ENVELOPE__BODY_GET_LOGS: case ZT__ENVELOPE__BODY_GET_EVENTS:
    case ZT__ENVELOPE__BODY_LIST_WORKERS: case ZT__ENVELOPE__BODY_GET_STATUS: case ZT__ENVELOPE__BODY_GET_TRACE:
    case ZT__ENVELOPE__BODY_GET_DTYPES: case ZT__ENVELOPE__BODY_LIST_CHECKPOINTS: case ZT__ENVELOPE__BODY_SET_CHECKPOINT:
        from_client(sh, s, env);
        break;
    default:
        zt_refuse(s, env, -(int)ZT__CODE__UNIMPLEMENTED, "zcoord does not answer this message");
        break;
    }
}

void zt_dispatch_closed(struct zt_shell *sh, uint64_t session)
{
    zt_requests_drop_waiting(sh, session);
    if (sh->stepping) { /* while replies are written: the machine hears of it right after */
        if (sh->n_closed == sh->cap_closed) {
            size_t cap = sh->cap_closed ? sh->cap_closed * 2 : 16;
            uint64_t *more = realloc(sh->closed, cap * sizeof *more);
            if (!more)
                return; /* its beats stop, which is found out as well */
            sh->closed = more;
            sh->cap_closed = cap;
        }
        sh->closed[sh->n_closed++] = session;
        return;
    }
    struct zt_event ev = { .kind = ZT_EV_DISCONNECTED, .session = session };
    zt_shell_step(sh, &ev, NULL);
}
