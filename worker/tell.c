/* SPDX-License-Identifier: Apache-2.0 */
/* worker/tell.c: what a job has still to tell the coordinator: reports and traces in batches, number formats,
 * output, then how the rank ended and that its process is gone. One request of each kind is out at a time;
 * the session sends an outstanding one again after a reconnect. A refusal that may pass (busy, full disk) is
 * tried again after RETRY_MS; STALE drops the reports of the generation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/supervisor.h"

#define RETRY_MS 500u
#define EVENTS_MAX 256u

struct zw_ask *zw_ask_new(struct zw_job *j)
{
    struct zw_ask *a = calloc(1, sizeof(*a));
    if (a) {
        a->job = j;
        j->requests++;
    }
    return a;
}

int zw_ask_send(struct zw_ask *a, Zt__Envelope *env, zt_reply_fn fn)
{
    struct zt_error err;
    if (!a) {
        return ZT_ENOMEM;
    }
    int rc = a->job->sup->client ? zt_client_request(a->job->sup->client, env, true, 0, fn, a, &err)
                                 : ZT_EUNREACHABLE;
    if (rc) {
        a->job->requests--;
        free(a);
    }
    return rc;
}

/* -------------------------------------------------------------------------------------- events */

static void on_event_told(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    (void)reply;
    (void)err;
    a->job->events_pending--;
    a->job->requests--;
    free(a);
}

void zw_job_event(struct zw_job *j, const Zt__ReportEvent *from)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportEvent ev = *from;
    if (j->events_pending >= EVENTS_MAX) {
        return; /* a flood of events is one event too many: the log has them all */
    }
    ev.run_id = j->run_id;
    ev.generation = j->generation;
    ev.rank = j->rank;
    ev.has_seq = 1; /* sent again after a lost answer, it is stored once */
    ev.seq = ++j->event_seq;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_EVENT;
    env.report_event = &ev;
    j->events_pending++;
    if (zw_ask_send(zw_ask_new(j), &env, on_event_told)) {
        j->events_pending--;
    }
}

/* ---------------------------------------------------------------------------------- refusals */

bool zw_may_pass(const Zt__Envelope *reply)
{
    if (!reply) {
        return false; /* the session is over */
    }
    switch (reply->code) {
    case ZT__CODE__BUSY:
    case ZT__CODE__IO:
    case ZT__CODE__NO_MEMORY:
    case ZT__CODE__INTERNAL:
    case ZT__CODE__TIMEOUT:
    case ZT__CODE__CONFLICT: /* not registered yet: the next try comes after Register */
        return true;
    default:
        return false;
    }
}

static void complain(struct zw_job *j, const char *what, const struct zt_error *err)
{
    if (zw_now(j->sup) - j->sup->last_complaint >= 1000 && !j->sup->quitting) {
        j->sup->last_complaint = zw_now(j->sup);
        zw_log(j->sup, "run %s generation %u: %s refused: %s", j->run_id, j->generation, what, err->msg);
    }
}

static void refuse(struct zw_job *j, const char *what, const Zt__Envelope *reply, const struct zt_error *err,
                   enum zw_told *told)
{
    if (!reply || reply->code != ZT__CODE__STALE_GENERATION) {
        complain(j, what, err);
    }
    if (zw_may_pass(reply)) {
        *told = ZW_NOT_YET;
        j->retry_at = zw_now(j->sup) + RETRY_MS;
    } else {
        *told = ZW_ACKED; /* nobody wants it */
    }
}

/* -------------------------------------------------------------------------------------- telling */

static void on_batch_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    if (err) {
        refuse(j, "step reports", reply, err, &j->batch_told);
        if (j->batch_told == ZW_ACKED) {
            j->reports_refused = true;
            zw_steps_clear(&j->steps);
            zw_traces_clear(&j->traces);
        }
    } else {
        j->batch_told = ZW_ACKED;
        j->step_acked = j->batch_last;
    }
    if (j->batch_told == ZW_ACKED) {
        zw_batch_free(&j->batch);
    }
    zw_job_pump(j);
}

static void send_batch(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportSteps r = ZT__REPORT_STEPS__INIT;
    Zt__StepReport *steps[ZW_BATCH_REPORTS];
    size_t n = 0;
    for (size_t i = 0; i < j->batch.n; i++) {
        steps[n] = zt__step_report__unpack(NULL, j->batch.reports[i].n, j->batch.reports[i].bytes);
        n += steps[n] != NULL;
    }
    j->batch_last = n > 0 ? steps[n - 1]->step : 0;
    r.run_id = j->run_id;
    r.seq = j->batch_seq;
    r.incarnation = (ProtobufCBinaryData){sizeof(j->sup->id.incarnation), j->sup->id.incarnation};
    r.n_steps = n;
    r.steps = steps;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_STEPS;
    env.report_steps = &r;
    if (n == j->batch.n && zw_ask_send(zw_ask_new(j), &env, on_batch_reply) == 0) {
        j->batch_told = ZW_SENT;
    } else {
        j->retry_at = zw_now(j->sup) + RETRY_MS;
    }
    for (size_t i = 0; i < n; i++) {
        zt__step_report__free_unpacked(steps[i], NULL);
    }
}

/* What memory had no room for, told when the coordinator listens again. */
static void tell_dropped(struct zw_job *j)
{
    Zt__ReportEvent ev = ZT__REPORT_EVENT__INIT;
    char text[160];
    if (j->traces.dropped == j->traces_dropped_told) {
        return;
    }
    snprintf(text, sizeof(text), "the collectives of captured steps up to %lld were dropped, %llu pieces: the "
             "coordinator was away for long", (long long)j->traces.dropped_step,
             (unsigned long long)(j->traces.dropped - j->traces_dropped_told));
    j->traces_dropped_told = j->traces.dropped;
    ev.kind = (char *)(uintptr_t)"TRACE_DROPPED";
    ev.message = text;
    ev.has_level = 1;
    ev.level = 2;
    zw_job_event(j, &ev);
}

static void on_traces_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    j->traces_told = ZW_ACKED;
    if (err) {
        refuse(j, "traces", reply, err, &j->traces_told);
    } else {
        tell_dropped(j);
    }
    if (j->traces_told == ZW_ACKED) {
        zw_batch_free(&j->traces_out);
    }
    zw_job_pump(j);
}

static void send_traces(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportTraces r = ZT__REPORT_TRACES__INIT;
    Zt__StepTrace *traces[ZW_BATCH_REPORTS];
    size_t n = 0;
    for (size_t i = 0; i < j->traces_out.n; i++) {
        traces[n] = zt__step_trace__unpack(NULL, j->traces_out.reports[i].n, j->traces_out.reports[i].bytes);
        n += traces[n] != NULL;
    }
    r.run_id = j->run_id;
    r.n_traces = n;
    r.traces = traces;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_TRACES;
    env.report_traces = &r;
    if (n == j->traces_out.n && zw_ask_send(zw_ask_new(j), &env, on_traces_reply) == 0) {
        j->traces_told = ZW_SENT;
    } else {
        j->retry_at = zw_now(j->sup) + RETRY_MS;
    }
    for (size_t i = 0; i < n; i++) {
        zt__step_trace__free_unpacked(traces[i], NULL);
    }
}

static void on_dtypes_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    j->dtypes_told = ZW_ACKED;
    if (err) {
        refuse(j, "number formats", reply, err, &j->dtypes_told);
    }
    if (j->dtypes_told == ZW_ACKED) {
        zt__dtypes_report__free_unpacked(j->dtypes, NULL);
        j->dtypes = NULL;
    }
    zw_job_pump(j);
}

static void send_dtypes(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportDtypes r = ZT__REPORT_DTYPES__INIT;
    r.run_id = j->run_id;
    r.report = j->dtypes;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_DTYPES;
    env.report_dtypes = &r;
    if (zw_ask_send(zw_ask_new(j), &env, on_dtypes_reply) == 0) {
        j->dtypes_told = ZW_SENT;
    }
}

static void on_log_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    uint64_t sent_to = a->child_request; /* offset after the piece that was sent */
    free(a);
    j->requests--;
    j->log_told = ZW_NOT_YET;
    if (err) {
        enum zw_told told = ZW_SENT;
        refuse(j, "log", reply, err, &told);
        if (told == ZW_ACKED) {
            zw_logs_ack(&j->logs, sent_to);
            j->log_end_told = j->log_end_sent;
        }
    } else if (reply->body_case == ZT__ENVELOPE__BODY_LOG_ACK) {
        uint64_t upto = reply->log_ack->offset;
        zw_logs_ack(&j->logs, upto > sent_to ? sent_to : upto);
        if (upto < sent_to) {
            j->retry_at = zw_now(j->sup) + RETRY_MS; /* it wants these bytes again */
        }
        j->log_end_told = j->log_end_sent && upto >= sent_to;
    } else {
        zw_logs_ack(&j->logs, sent_to);
        j->log_end_told = j->log_end_sent;
    }
    zw_job_pump(j);
}

static void send_log(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__LogAppend log = ZT__LOG_APPEND__INIT;
    uint64_t offset = 0;
    bool is_err = false;
    size_t n = zw_logs_peek(&j->logs, j->log_chunk, ZW_LOG_CHUNK, &offset, &is_err);
    if (n == 0) {
        offset = j->logs.next;
    }
    bool end = j->finished && offset + n == j->logs.next;
    if (n == 0 && (!end || j->log_end_told)) {
        return;
    }
    j->log_end_sent = end;
    log.has_end = log.end = end;
    log.run_id = j->run_id;
    log.generation = j->generation;
    log.rank = j->rank;
    log.offset = offset;
    log.data = (ProtobufCBinaryData){n, (uint8_t *)j->log_chunk};
    log.has_err = log.err = is_err;
    env.body_case = ZT__ENVELOPE__BODY_LOG_APPEND;
    env.log_append = &log;
    struct zw_ask *a = zw_ask_new(j);
    if (a) {
        a->child_request = offset + n;
    }
    if (zw_ask_send(a, &env, on_log_reply) == 0) {
        j->log_told = ZW_SENT;
    }
}

static void on_verdict_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    j->verdict_told = ZW_ACKED;
    if (err) {
        refuse(j, "the rank's end", reply, err, &j->verdict_told);
    }
    zw_job_pump(j);
}

static void on_exit_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    j->exit_told = ZW_ACKED;
    if (err) {
        refuse(j, "the trainer's exit", reply, err, &j->exit_told);
    }
    zw_job_pump(j);
}

static void send_exit(struct zw_job *j)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ChildExited ex = ZT__CHILD_EXITED__INIT;
    struct zw_verdict v = {.exit_code = -1};
    if (j->reaped) {
        zw_verdict_of(j->status, false, &v);
    }
    ex.run_id = j->run_id;
    ex.generation = j->generation;
    ex.rank = j->rank;
    ex.has_exit_code = v.exit_code >= 0;
    ex.exit_code = v.exit_code;
    ex.has_signal = v.signal > 0;
    ex.signal = v.signal;
    env.body_case = ZT__ENVELOPE__BODY_CHILD_EXITED;
    env.child_exited = &ex;
    if (zw_ask_send(zw_ask_new(j), &env, on_exit_reply) == 0) {
        j->exit_told = ZW_SENT;
    }
}

void zw_job_pump(struct zw_job *j)
{
    struct zw_supervisor *s = j->sup;
    if (s->quitting || !s->client) {
        return;
    }
    zw_relays_pump(j);
    if (zw_now(s) < j->retry_at) {
        return;
    }
    if (j->batch_told != ZW_SENT && j->batch.n == 0 && zw_steps_count(&j->steps) > 0) {
        zw_steps_take(&j->steps, &j->batch);
        j->batch_seq = ++s->next_batch;
        j->batch_told = ZW_NOT_YET;
    }
    if (j->batch.n > 0 && j->batch_told == ZW_NOT_YET) {
        send_batch(j);
    }
    if (j->traces_told != ZW_SENT && j->traces_out.n == 0 && j->traces.first) {
        zw_traces_take(&j->traces, &j->traces_out);
        j->traces_told = ZW_NOT_YET;
    }
    if (j->traces_out.n > 0 && j->traces_told == ZW_NOT_YET) {
        send_traces(j);
    }
    if (j->dtypes && j->dtypes_told == ZW_NOT_YET) {
        send_dtypes(j);
    }
    if (j->log_told == ZW_NOT_YET) {
        send_log(j);
    }
    if (j->batch.n > 0 || zw_steps_count(&j->steps) > 0 || j->traces_out.n > 0 || j->traces.first || j->dtypes) {
        return; /* what follows is told behind the reports */
    }
    if (j->has_verdict && j->verdict_told == ZW_NOT_YET) {
        if (zw_ask_send(zw_ask_new(j), j->verdict, on_verdict_reply) == 0) {
            j->verdict_told = ZW_SENT;
        }
    }
    bool explained = !j->has_verdict || j->verdict_told == ZW_ACKED;
    if (j->finished && explained && j->exit_told == ZW_NOT_YET) {
        send_exit(j);
    }
}
