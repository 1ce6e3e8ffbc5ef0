/* SPDX-License-Identifier: Apache-2.0 */
/* worker/job.c: one trainer of one generation: its process, its pipes and what it says. What of that the
 * coordinator must know goes into bounded stores (steps.h, traces.h, logs.h) and from there out: tell.c. See
 * supervisor.h for the order in which things are told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <signal.h>

#include "worker/supervisor.h"

#define DRAIN_PIPES_MS 1000u  /* after the exit: somebody else may hold the pipes open */
#define REAP_MS 30000u
#define LOG_ENTRIES 4096

bool zw_job_told(const struct zw_job *j)
{
    return j->exit_told == ZW_ACKED;
}

bool zw_job_holds_child(const struct zw_job *j)
{
    return j->spawned && !j->reaped;
}

struct zw_job *zw_job_new(struct zw_supervisor *s, const char *run_id, uint32_t generation, uint32_t rank)
{
    struct zw_job *j = calloc(1, sizeof(*j));
    char *chunk = malloc(ZW_LOG_CHUNK);
    char spill[1300] = "";
    if (!j || !chunk) {
        free(j);
        free(chunk);
        return NULL;
    }
    j->sup = s;
    j->serial = ++s->next_serial;
    snprintf(j->run_id, sizeof(j->run_id), "%s", run_id);
    j->generation = generation;
    j->rank = rank;
    j->log_chunk = chunk;
    j->started_at = zw_now(s);
    j->phase = ZT__TRAINER_PHASE__TP_NONE;
    if (s->state[0]) {
        snprintf(spill, sizeof(spill), "%s/spill.%s.%s.%llu", s->state, s->id.host, s->id.name,
                 (unsigned long long)j->serial);
    }
    zw_steps_init(&j->steps, &zt_sys_posix, spill);
    zw_traces_init(&j->traces);
    zw_logs_init(&j->logs);
    zt_decoder_init(&j->decoder, ZT_FRAME_MAX);
    j->next = s->jobs;
    s->jobs = j;
    return j;
}

/* ------------------------------------------------------------------------------------- verdicts */

static void set_verdict(struct zw_job *j, Zt__Envelope *env)
{
    struct zt_error err;
    if (j->has_verdict) {
        return; /* the first word of a rank counts */
    }
    if (zt_envelope_copy(env, &j->verdict, &j->verdict_arena, &err)) {
        zw_log(j->sup, "run %s generation %u: a report is lost: %s", j->run_id, j->generation, err.msg);
        return;
    }
    j->has_verdict = true;
}

static void fail_job(struct zw_job *j, Zt__ReportFailure *f)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    f->run_id = j->run_id;
    f->generation = j->generation;
    f->rank = j->rank;
    f->has_offset_ms = 1;
    f->offset_ms = (int64_t)(zw_now(j->sup) - j->started_at);
    if (!f->has_last_log && j->logs.tail_n > 0) {
        f->has_last_log = 1;
        f->last_log = (ProtobufCBinaryData){j->logs.tail_n, (uint8_t *)j->logs.tail};
    }
    env.body_case = ZT__ENVELOPE__BODY_REPORT_FAILURE;
    env.report_failure = f;
    zw_log(j->sup, "run %s generation %u rank %u: %s: %s", j->run_id, j->generation, j->rank,
           zt_reason_name((enum zt_reason)f->reason), f->message ? f->message : "");
    set_verdict(j, &env);
}

static void fail_simply(struct zw_job *j, enum zt_reason reason, const char *message, int exit_code, int sig)
{
    Zt__ReportFailure f = ZT__REPORT_FAILURE__INIT;
    f.reason = (uint32_t)reason;
    f.message = (char *)(uintptr_t)message;
    f.has_exit_code = exit_code >= 0;
    f.exit_code = exit_code;
    f.has_signal = sig > 0;
    f.signal = sig;
    if (j->child.progress) {
        int phase = atomic_load(&j->child.progress->phase);
        f.has_step = atomic_load(&j->child.progress->state) == ZT_TRAINER_RUNNING;
        f.step = atomic_load(&j->child.progress->step) + 1; /* in progress */
        if (phase >= 0 && phase < ZT_PHASE_COUNT) {
            f.phase = (char *)(uintptr_t)zt_phase_name((enum zt_phase)phase);
        }
    }
    fail_job(j, &f);
}

/* It was killed because this worker was asked to stop. */
static void fail_drained(struct zw_job *j, const struct zw_verdict *v)
{
    char text[160] = "this worker was asked to stop (drained)";
    if (j->stop_told) {
        snprintf(text, sizeof(text), "this worker was asked to stop (drained); there was no checkpoint within "
                 "timeouts.term_grace, %g s", j->term_grace);
    }
    fail_simply(j, ZT_REASON_DRAINED, text, v->exit_code, v->signal);
}

static void all_read(struct zw_job *j)
{
    struct zw_verdict v;
    if (j->finished || !j->reaped || j->open_pipes > 0) {
        return;
    }
    j->finished = true;
    zw_logs_flush(&j->logs, false);
    zw_logs_flush(&j->logs, true);
    int64_t oom = zw_oom_kills();
    bool rose = oom > j->child.oom_before && j->child.oom_before >= 0;
    zw_verdict_of(j->status, rose, &v);
    if (j->drained && !j->has_verdict) {
        fail_drained(j, &v);
    } else if (!j->killed && !j->has_verdict) {
        fail_simply(j, v.reason, v.text, v.exit_code, v.signal);
    }
    zw_child_unmap(&j->child);
    zw_supervisor_job_gone(j);
    zw_job_pump(j);
}

/* ------------------------------------------------------------------------ frames from the child */

static void on_told_phase(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    (void)reply; /* a refusal needs nothing: beats carry the phase too, and ABORT comes by itself */
    (void)err;
    a->job->requests--;
    free(a);
}

static void on_phase(struct zw_job *j, Zt__TrainerPhase phase)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__RankReady ready = ZT__RANK_READY__INIT;
    Zt__RankInComm in = ZT__RANK_IN_COMM__INIT;
    if (phase <= j->phase || phase >= ZT__TRAINER_PHASE__TP_EXITED) {
        return;
    }
    j->phase = phase;
    ready.run_id = in.run_id = j->run_id;
    ready.generation = in.generation = j->generation;
    ready.rank = in.rank = j->rank;
    if (phase == ZT__TRAINER_PHASE__TP_READY) {
        env.body_case = ZT__ENVELOPE__BODY_RANK_READY;
        env.rank_ready = &ready;
    } else if (phase == ZT__TRAINER_PHASE__TP_IN_COMM) {
        env.body_case = ZT__ENVELOPE__BODY_RANK_IN_COMM;
        env.rank_in_comm = &in;
    } else {
        return;
    }
    (void)zw_ask_send(zw_ask_new(j), &env, on_told_phase);
}

/* A communicator id goes back to the child under the child's own request number. */
static void on_comm_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    j->requests--;
    env.request_id = a->child_request;
    env.has_reply = env.reply = 1;
    if (err) {
        env.has_code = 1;
        env.code = reply ? reply->code : zt_code_to_wire(err->code);
        env.message = (char *)(uintptr_t)err->msg;
    } else if (reply->body_case == ZT__ENVELOPE__BODY_COMM_ID) {
        env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
        env.comm_id = reply->comm_id;
    } else {
        env.has_code = 1;
        env.code = ZT__CODE__PROTO;
    }
    zw_job_to_child(j, &env);
    free(a);
}

static void on_comm_request(struct zw_job *j, const Zt__Envelope *from)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    struct zw_ask *a = zw_ask_new(j);
    if (a) {
        a->child_request = from->request_id;
    }
    env.body_case = from->body_case;
    Zt__PutCommId put = ZT__PUT_COMM_ID__INIT;
    Zt__GetCommId get = ZT__GET_COMM_ID__INIT;
    if (from->body_case == ZT__ENVELOPE__BODY_PUT_COMM_ID) {
        put = *from->put_comm_id;
        put.run_id = j->run_id;
        put.generation = j->generation;
        env.put_comm_id = &put;
    } else {
        get = *from->get_comm_id;
        get.run_id = j->run_id;
        get.generation = j->generation;
        env.get_comm_id = &get;
    }
    if (zw_ask_send(a, &env, on_comm_reply)) {
        Zt__Envelope no = ZT__ENVELOPE__INIT;
        no.request_id = from->request_id;
        no.has_reply = no.reply = no.has_code = 1;
        no.code = ZT__CODE__UNREACHABLE;
        zw_job_to_child(j, &no);
    }
}

static void on_steps(struct zw_job *j, const Zt__ReportSteps *r)
{
    struct zt_error err;
    for (size_t i = 0; i < r->n_steps && !j->reports_refused; i++) {
        r->steps[i]->rank = j->rank;
        r->steps[i]->generation = j->generation;
        if (zw_steps_push(&j->steps, r->steps[i], &err)) {
            zw_log(j->sup, "run %s: a step report is lost: %s", j->run_id, err.msg);
        }
    }
    on_phase(j, ZT__TRAINER_PHASE__TP_RUNNING);
    zw_job_pump(j);
}

static void on_traces(struct zw_job *j, const Zt__ReportTraces *r)
{
    struct zt_error err;
    for (size_t i = 0; i < r->n_traces && !j->reports_refused; i++) {
        r->traces[i]->rank = j->rank;
        r->traces[i]->generation = j->generation;
        if (zw_traces_push(&j->traces, r->traces[i], &err)) {
            zw_log(j->sup, "run %s: a trace is lost: %s", j->run_id, err.msg);
        }
    }
    zw_job_pump(j);
}

/* The newest counts; there is one per generation. */
static void on_dtypes(struct zw_job *j, Zt__DtypesReport *r)
{
    size_t n = zt__dtypes_report__get_packed_size(r);
    uint8_t *bytes = malloc(n);
    r->rank = j->rank;
    r->generation = j->generation;
    if (bytes && j->dtypes_told != ZW_SENT) {
        n = zt__dtypes_report__pack(r, bytes);
        zt__dtypes_report__free_unpacked(j->dtypes, NULL);
        j->dtypes = zt__dtypes_report__unpack(NULL, n, bytes);
        j->dtypes_told = ZW_NOT_YET;
    }
    free(bytes);
    zw_job_pump(j);
}

static void on_done(struct zw_job *j, const Zt__TrainerDone *d)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__RankDone done = ZT__RANK_DONE__INIT;
    done.run_id = j->run_id;
    done.generation = j->generation;
    done.rank = j->rank;
    done.steps = d->steps;
    done.parameter_hash = d->parameter_hash;
    env.body_case = ZT__ENVELOPE__BODY_RANK_DONE;
    env.rank_done = &done;
    on_phase(j, ZT__TRAINER_PHASE__TP_DONE);
    set_verdict(j, &env);
    zw_job_pump(j);
}

static int on_child_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct zw_job *j = arg;
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_TRAINER_STATE:
        on_phase(j, env->trainer_state->phase);
        break;
    case ZT__ENVELOPE__BODY_REPORT_STEPS:
        on_steps(j, env->report_steps);
        break;
    case ZT__ENVELOPE__BODY_REPORT_TRACES:
        on_traces(j, env->report_traces);
        break;
    case ZT__ENVELOPE__BODY_REPORT_DTYPES:
        on_dtypes(j, env->report_dtypes->report);
        break;
    case ZT__ENVELOPE__BODY_PUT_COMM_ID:
    case ZT__ENVELOPE__BODY_GET_COMM_ID:
        on_comm_request(j, env);
        break;
    case ZT__ENVELOPE__BODY_SHARD_DONE:
    case ZT__ENVELOPE__BODY_GET_SHARDS:
    case ZT__ENVELOPE__BODY_CKPT_COMMIT:
    case ZT__ENVELOPE__BODY_CKPT_REMOVED:
    case ZT__ENVELOPE__BODY_CKPT_FAILED:
    case ZT__ENVELOPE__BODY_RANK_LOADED:
        zw_relay(j, env);
        break;
    case ZT__ENVELOPE__BODY_REPORT_EVENT:
        zw_job_event(j, env->report_event);
        break;
    case ZT__ENVELOPE__BODY_TRAINER_FAILURE: {
        Zt__ReportFailure f = *env->trainer_failure->failure;
        fail_job(j, &f);
        zw_job_pump(j);
        break;
    }
    case ZT__ENVELOPE__BODY_TRAINER_DONE:
        on_done(j, env->trainer_done);
        break;
    default:
        return zt_fail(err, ZT_EPROTO, "the trainer sent %s", zt_envelope_body_name(env));
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------- pipes */

static void on_pipe_closed(uv_handle_t *h)
{
    struct zw_job *j = h->data;
    j->handles--;
}

static void close_pipe(struct zw_job *j, uv_pipe_t *p)
{
    if (!uv_is_closing((uv_handle_t *)p)) {
        j->open_pipes--;
        uv_close((uv_handle_t *)p, on_pipe_closed);
    }
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    struct zw_job *j = h->data;
    (void)want;
    *buf = uv_buf_init(j->buf, sizeof(j->buf));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct zw_job *j = stream->data;
    struct zt_error err;
    if (n < 0) {
        close_pipe(j, (uv_pipe_t *)stream);
        all_read(j);
        return;
    }
    if (stream != (uv_stream_t *)&j->channel) {
        zw_logs_feed(&j->logs, stream == (uv_stream_t *)&j->err, buf->base, (size_t)n);
        zw_job_pump(j);
        return;
    }
    if (n > 0 && zt_decoder_feed(&j->decoder, buf->base, (size_t)n, on_child_frame, j, &err)) {
        char text[300];
        snprintf(text, sizeof(text), "the trainer's channel is broken: %.200s", err.msg);
        fail_simply(j, ZT_REASON_EXIT_NONZERO, text, -1, 0);
        close_pipe(j, &j->channel);
        zw_job_kill(j);
        all_read(j);
    }
}

struct down { uv_write_t req; uint8_t *bytes; };

static void on_down(uv_write_t *req, int status)
{
    struct down *d = (struct down *)req;
    (void)status; /* a child that is gone is noticed by its exit */
    free(d->bytes);
    free(d);
}

void zw_job_to_child(struct zw_job *j, const Zt__Envelope *env)
{
    struct zt_error err;
    size_t n;
    struct down *d;
    if (!j->spawned || j->reaped || uv_is_closing((uv_handle_t *)&j->channel)) {
        return;
    }
    d = calloc(1, sizeof(*d));
    if (!d || zt_frame_pack(env, &d->bytes, &n, &err)) {
        free(d);
        return;
    }
    uv_buf_t buf = uv_buf_init((char *)d->bytes, (unsigned)n);
    if (uv_write(&d->req, (uv_stream_t *)&j->channel, &buf, 1, on_down)) {
        free(d->bytes);
        free(d);
    }
}

static void adopt_pipe(struct zw_job *j, uv_pipe_t *p, int fd)
{
    int rc = uv_pipe_init(&j->sup->loop, p, 0);
    ZT_ASSERT(rc == 0); /* does nothing that can fail */
    p->data = j;
    j->handles++;
    j->open_pipes++;
    rc = uv_pipe_open(p, fd);
    if (rc == 0) {
        rc = uv_read_start((uv_stream_t *)p, on_alloc, on_read);
    } else {
        close(fd);
    }
    if (rc) {
        close_pipe(j, p);
    }
}

void zw_job_start(struct zw_job *j, const Zt__Assignment *a)
{
    struct zw_supervisor *s = j->sup;
    struct zt_error err;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerStart start = ZT__TRAINER_START__INIT;
    if (zw_child_spawn(s->o.trainer_command, LOG_ENTRIES, &j->child, &err)) {
        j->finished = true;
        fail_simply(j, ZT_REASON_EXIT_NONZERO, err.msg, -1, 0);
        zw_job_pump(j);
        return;
    }
    j->spawned = true;
    j->phase = ZT__TRAINER_PHASE__TP_STARTING;
    adopt_pipe(j, &j->channel, j->child.channel);
    adopt_pipe(j, &j->out, j->child.out);
    adopt_pipe(j, &j->err, j->child.err);
    int64_t capacity = s->capacity;
    int here = a->has_workers_on_host ? (int)a->workers_on_host : 1;
    if (!s->o.memory_bytes && here > 0 && s->half_memory / here < capacity) {
        capacity = s->half_memory / here / (2 << 20) * (2 << 20);
    }
    start.assignment = (Zt__Assignment *)(uintptr_t)a;
    start.run_id = j->run_id;
    start.generation = j->generation;
    start.device = (char *)(uintptr_t)s->o.device;
    start.capacity_bytes = (uint64_t)capacity;
    start.threads = (uint32_t)(s->o.threads ? s->o.threads : here > 0 && s->cpus / here > 0 ? s->cpus / here : 1);
    start.isa = (char *)(uintptr_t)s->o.isa;
    start.gemm = (char *)(uintptr_t)s->o.gemm;
    start.host = s->id.host;
    start.address = s->address;
    j->save_on_drain = a->checkpoint_folder && a->save_on_drain;
    j->term_grace = a->has_term_grace_seconds ? a->term_grace_seconds : 0;
    start.memory_folder = a->checkpoint_folder ? zw_supervisor_memory(j) : NULL;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_START;
    env.trainer_start = &start;
    zw_job_to_child(j, &env);
    zw_log(s, "run %s generation %u rank %u: trainer %d started", j->run_id, j->generation, j->rank,
           (int)j->child.pid);
}

void zw_job_kill(struct zw_job *j)
{
    if (!zw_job_holds_child(j) || j->killed) {
        return;
    }
    j->killed = true;
    j->killed_at = zw_now(j->sup);
    if (kill(-j->child.pid, SIGKILL)) {
        kill(j->child.pid, SIGKILL);
    }
}

bool zw_job_stop(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerStop stop = ZT__TRAINER_STOP__INIT;
    bool running = j->child.progress && atomic_load(&j->child.progress->state) == ZT_TRAINER_RUNNING;
    if (!j->save_on_drain || !running || j->killed || !zw_job_holds_child(j)) {
        return false;
    }
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STOP;
    env.trainer_stop = &stop;
    zw_job_to_child(j, &env);
    j->stop_told = true;
    return true;
}

void zw_job_reaped(struct zw_job *j, int status)
{
    j->reaped = true;
    j->status = status;
    j->reaped_at = zw_now(j->sup);
    zw_relays_drop(j); /* nobody waits for an answer */
    kill(-j->child.pid, SIGKILL); /* whatever it may have left in its group */
    all_read(j);
}

void zw_job_tick(struct zw_job *j)
{
    zw_logs_age(&j->logs);
    if (j->reaped && !j->finished && zw_now(j->sup) - j->reaped_at > DRAIN_PIPES_MS) {
        close_pipe(j, &j->channel);
        close_pipe(j, &j->out);
        close_pipe(j, &j->err);
        all_read(j);
    }
    if (j->killed && !j->reaped && zw_now(j->sup) - j->killed_at > REAP_MS && !j->unkillable_told) {
        Zt__ReportEvent ev = ZT__REPORT_EVENT__INIT;
        char text[160];
        j->unkillable_told = true;
        snprintf(text, sizeof(text),
                 "trainer process %d does not die of SIGKILL after %u s: a driver or file system holds it",
                 (int)j->child.pid, REAP_MS / 1000u);
        zw_log(j->sup, "%s", text);
        ev.kind = (char *)(uintptr_t)"CHILD_UNKILLABLE";
        ev.message = text;
        ev.has_level = 1;
        ev.level = 3;
        zw_job_event(j, &ev);
    }
    zw_job_pump(j);
}

/* ------------------------------------------------------------------------------------ its end */

static void job_free(struct zw_job *j)
{
    struct zw_job **at = &j->sup->jobs;
    while (*at != j) {
        at = &(*at)->next;
    }
    *at = j->next;
    zw_relays_drop(j);
    zw_child_unmap(&j->child);
    zw_steps_free(&j->steps);
    zw_traces_clear(&j->traces);
    zw_logs_free(&j->logs);
    zw_batch_free(&j->batch);
    zw_batch_free(&j->traces_out);
    zt__dtypes_report__free_unpacked(j->dtypes, NULL);
    zt_envelope_free(j->verdict, j->verdict_arena);
    zt_decoder_free(&j->decoder);
    free(j->log_chunk);
    free(j);
}

bool zw_job_free_if_done(struct zw_job *j)
{
    bool told = zw_job_told(j) && !j->logs.first && j->log_end_told && j->events_pending == 0;
    if (j->handles > 0 || j->requests > 0 || (!told && !j->dead)) {
        return false;
    }
    job_free(j);
    return true;
}

void zw_job_close(struct zw_job *j)
{
    j->dead = true;
    if (j->spawned) {
        close_pipe(j, &j->channel);
        close_pipe(j, &j->out);
        close_pipe(j, &j->err);
    }
}
