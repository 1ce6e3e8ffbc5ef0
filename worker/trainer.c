/* SPDX-License-Identifier: Apache-2.0 */
/* worker/trainer.c: the trainer child: takes its assignment from the supervisor, runs zt_train, sends
 * what happens as frames, and says by its last frame and its exit code how it ended.
 *
 * It never waits for the supervisor while it trains: frames go through a queue to a writing thread, and
 * the lines of its log into a non-blocking pipe (lines that do not fit are counted and told later). Only
 * the exchange of the communicator id waits, up to its deadline. Threads: the main thread trains; the
 * writer owns nothing but the queue. */
#include "worker/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/units.h"
#include "engine/train.h"
#include "kernels/ops.h"
#include "proto/frame.h"
#include "proto/session.h"
#include "worker/child.h"
#include "worker/traces.h"

#define QUEUE_MAX ((size_t)64 << 20) /* a supervisor that is stopped for hours: then we do wait */
#define QUEUE_TRACES (QUEUE_MAX / 2) /* detail that is not worth a wait is dropped from here on */
#define FLUSH_S 10

struct item { struct item *next; uint8_t *bytes; size_t n; };

struct trainer {
    int fd;
    struct zt_decoder decoder;
    Zt__Envelope *start_env;
    void *start_arena;
    const Zt__TrainerStart *start;
    struct zt_spec spec;
    uint64_t next_request;
    /* an answer from the supervisor */
    uint64_t waiting_for;
    int answer_rc;
    bool answered;
    struct zt_comm_id answer;
    struct zt_error answer_error;
    /* queue to the writer */
    pthread_t writer;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item *first, *last;
    size_t queued;
    bool closing, broken, writing;
    uint64_t traces_lost; /* captured steps whose trace found no room in the queue */
    /* log */
    uint64_t lines_lost;
    int64_t capacity;
    int replicas_degree; /* ranks that see the same tokens */
};

/* ------------------------------------------------------------------------------------------ log */

static void log_line(struct trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void log_line(struct trainer *t, const char *fmt, ...)
{
    char text[1500];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text) - 1, fmt, ap);
    va_end(ap);
    if (n < 0) {
        return;
    }
    size_t len = (size_t)n < sizeof(text) - 2 ? (size_t)n : sizeof(text) - 2;
    text[len++] = '\n';
    if (t->lines_lost > 0) {
        char lost[80];
        int k = snprintf(lost, sizeof(lost), "(%llu log lines were lost: nobody read them)\n",
                         (unsigned long long)t->lines_lost);
        if (write(STDOUT_FILENO, lost, (size_t)k) == k) {
            t->lines_lost = 0;
        }
    }
    /* up to PIPE_BUF a write into a pipe is all or nothing */
    if (write(STDOUT_FILENO, text, len) != (ssize_t)len) {
        t->lines_lost++;
    }
}

/* --------------------------------------------------------------------------------------- writer */

static bool write_all(int fd, const uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return false;
        }
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static void *writer_main(void *arg)
{
    struct trainer *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !t->closing) {
            pthread_cond_wait(&t->changed, &t->lock);
        }
        struct item *i = t->first;
        if (!i) {
            break;
        }
        t->first = i->next;
        if (!t->first) {
            t->last = NULL;
        }
        t->writing = true;
        pthread_mutex_unlock(&t->lock);
        bool ok = write_all(t->fd, i->bytes, i->n);
        pthread_mutex_lock(&t->lock);
        t->writing = false;
        t->queued -= i->n;
        t->broken = t->broken || !ok;
        free(i->bytes);
        free(i);
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int post(struct trainer *t, const Zt__Envelope *env, struct zt_error *err)
{
    struct item *i = calloc(1, sizeof(*i));
    if (!i) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a frame to the supervisor");
    }
    int rc = zt_frame_pack(env, &i->bytes, &i->n, err);
    if (rc) {
        free(i);
        return rc;
    }
    pthread_mutex_lock(&t->lock);
    while (t->queued + i->n > QUEUE_MAX && !t->broken) {
        pthread_cond_wait(&t->changed, &t->lock);
    }
    if (t->broken) {
        rc = zt_fail(err, ZT_EUNREACHABLE, "the supervisor of this trainer is gone");
        free(i->bytes);
        free(i);
    } else {
        *(t->last ? &t->last->next : &t->first) = i;
        t->last = i;
        t->queued += i->n;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* Until everything is written, at most FLUSH_S. */
static void flush_and_join(struct trainer *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FLUSH_S;
    pthread_mutex_lock(&t->lock);
    int rc = 0;
    while ((t->first || t->writing) && !t->broken && rc == 0) {
        rc = pthread_cond_timedwait(&t->changed, &t->lock, &until);
    }
    t->closing = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (rc == 0) {
        pthread_join(t->writer, NULL);
    }
}

/* ------------------------------------------------------------------------- from the supervisor */

static void take_answer(struct trainer *t, const Zt__Envelope *env)
{
    if (env->request_id != t->waiting_for) {
        return;
    }
    t->answered = true;
    t->answer_rc = 0;
    if (env->code != ZT__CODE__OK) {
        int code = zt_code_from_wire(env->code);
        t->answer_rc = zt_fail(&t->answer_error, code, "%s",
                               env->message ? env->message : "the coordinator refused");
    } else if (env->body_case != ZT__ENVELOPE__BODY_COMM_ID ||
               env->comm_id->id.len > sizeof(t->answer.bytes)) {
        t->answer_rc = zt_fail(&t->answer_error, ZT_EPROTO, "no communicator id in the answer");
    } else {
        memset(&t->answer, 0, sizeof(t->answer));
        memcpy(t->answer.bytes, env->comm_id->id.data, env->comm_id->id.len);
    }
}

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    struct trainer *t = arg;
    if (env->body_case == ZT__ENVELOPE__BODY_TRAINER_START && !t->start) {
        int rc = zt_envelope_copy(env, &t->start_env, &t->start_arena, err);
        if (rc) {
            return rc;
        }
        t->start = t->start_env->trainer_start;
    } else if (env->reply) {
        take_answer(t, env);
    }
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * INT64_C(1000) + ts.tv_nsec / 1000000;
}

/* Reads what has come; waits up to `wait_ms` for something. */
static int receive(struct trainer *t, int64_t wait_ms, struct zt_error *err)
{
    uint8_t buf[16384];
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    int rc = poll(&p, 1, wait_ms > 1000 ? 1000 : (int)wait_ms);
    if (rc <= 0) {
        return 0; /* nothing, or a signal: the caller looks at its deadline */
    }
    ssize_t n = recv(t->fd, buf, sizeof(buf), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (n <= 0) {
        return zt_fail(err, ZT_EUNREACHABLE, "the supervisor of this trainer is gone");
    }
    return zt_decoder_feed(&t->decoder, buf, (size_t)n, on_frame, t, err);
}

/* ---------------------------------------------------------------------------------------- hooks */

static int send_state(struct trainer *t, Zt__TrainerPhase phase, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerState st = ZT__TRAINER_STATE__INIT;
    st.phase = phase;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STATE;
    env.trainer_state = &st;
    return post(t, &env, err);
}

static int hook_ready(void *arg, struct zt_error *err)
{
    return send_state(arg, ZT__TRAINER_PHASE__TP_READY, err);
}

static int hook_in_comm(void *arg, struct zt_error *err)
{
    return send_state(arg, ZT__TRAINER_PHASE__TP_IN_COMM, err);
}

static int ask_comm_id(struct trainer *t, int rank, struct zt_comm_id *id, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__PutCommId put = ZT__PUT_COMM_ID__INIT;
    Zt__GetCommId get = ZT__GET_COMM_ID__INIT;
    put.run_id = get.run_id = t->start->run_id;
    put.generation = get.generation = t->start->generation;
    put.group = get.group = (char *)(uintptr_t)"world";
    put.index = get.index = 0;
    put.id = (ProtobufCBinaryData){sizeof(id->bytes), id->bytes};
    env.request_id = t->waiting_for = ++t->next_request;
    if (rank == 0) {
        env.body_case = ZT__ENVELOPE__BODY_PUT_COMM_ID;
        env.put_comm_id = &put;
    } else {
        env.body_case = ZT__ENVELOPE__BODY_GET_COMM_ID;
        env.get_comm_id = &get;
    }
    t->answered = false;
    return post(t, &env, err);
}

static int hook_comm_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err)
{
    struct trainer *t = arg;
    double limit = t->start->assignment->has_init_timeout_seconds
                       ? t->start->assignment->init_timeout_seconds
                       : t->spec.comm.init_timeout_seconds;
    int64_t until = now_ms() + (int64_t)(limit * 1000.0);
    for (;;) {
        int rc = ask_comm_id(t, rank, id, err);
        while (rc == 0 && !t->answered) {
            int64_t left = until - now_ms();
            if (left <= 0) {
                return zt_fail(err, ZT_ETIMEOUT,
                               "no communicator id from rank 0 within %g s (comm.init_timeout_seconds): it has "
                               "not come so far, or the coordinator is not reachable",
                               limit);
            }
            rc = receive(t, left, err);
        }
        if (rc) {
            return rc;
        }
        if (t->answer_rc == 0) {
            break;
        }
        if (t->answer_rc != ZT_EBUSY || now_ms() >= until) {
            return zt_fail(err, t->answer_rc, "communicator id: %s", t->answer_error.msg);
        }
        const struct timespec pause = {.tv_nsec = 200000000};
        nanosleep(&pause, NULL);
    }
    if (rank == 0 && memcmp(id, &t->answer, sizeof(*id)) != 0) {
        return zt_fail(err, ZT_ECOMM, "another trainer of this generation has published a communicator id");
    }
    *id = t->answer;
    return 0;
}

static void hook_event(void *arg, enum zt_event_level level, const char *kind, const char *message)
{
    struct trainer *t = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportEvent ev = ZT__REPORT_EVENT__INIT;
    struct zt_error ignored;
    ev.run_id = t->start->run_id;
    ev.generation = t->start->generation;
    ev.rank = t->start->assignment->rank;
    ev.kind = (char *)(uintptr_t)kind;
    ev.message = (char *)(uintptr_t)message;
    ev.has_level = 1;
    ev.level = (uint32_t)level + 1; /* 1 info, 2 warning, 3 error */
    env.body_case = ZT__ENVELOPE__BODY_REPORT_EVENT;
    env.report_event = &ev;
    log_line(t, "%s: %s", kind, message);
    (void)post(t, &env, &ignored);
}

static void log_step(struct trainer *t, const struct zt_step_report *r)
{
    char alloc[32], rsv[32], tps[32], exposed[32], scaler[96] = "";
    double dt = r->step_seconds;
    int64_t freq = t->spec.metrics.log_freq;
    if (r->step != 1 && !r->last && (freq <= 0 || r->step % freq != 0)) {
        return;
    }
    double per_device = dt > 0 ? (double)r->tokens / dt / t->replicas_degree : 0;
    zt_format_count((int64_t)per_device, tps, sizeof(tps));
    zt_format_bytes((double)r->peak_allocated_bytes, alloc, sizeof(alloc));
    zt_format_bytes((double)r->peak_reserved_bytes, rsv, sizeof(rsv));
    zt_format_seconds(r->exposed.exposed_comm_seconds, exposed, sizeof(exposed));
    if (!isnan(r->loss_scale)) {
        snprintf(scaler, sizeof(scaler), "  scale: %g", r->loss_scale);
    }
    if (r->skipped_steps > 0) {
        size_t n = strlen(scaler);
        snprintf(scaler + n, sizeof(scaler) - n, "  skipped: %lld%s", (long long)r->skipped_steps, r->skipped ? " (this one)" : "");
    }
    log_line(t,
             "step: %2lld  loss: %8.5f  grad_norm: %7.4f  memory: %.2fGiB(%.2f%%)  tps: %s  alloc: %s  rsv: %s  "
             "exposed: %s(%.1f%%)  lr: %.3e%s",
             (long long)r->step, r->loss, r->grad_norm, (double)r->peak_reserved_bytes / (double)ZT_GIB,
             t->capacity > 0 ? 100.0 * (double)r->peak_reserved_bytes / (double)t->capacity : 0.0, tps, alloc, rsv,
             exposed, dt > 0 ? 100.0 * r->exposed.exposed_comm_seconds / dt : 0.0, r->lr, scaler);
}

static int hook_step(void *arg, const struct zt_step_report *r, struct zt_error *err)
{
    struct trainer *t = arg;
    struct zw_report_box box;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportSteps steps = ZT__REPORT_STEPS__INIT;
    Zt__StepReport *list[1] = {&box.report};
    uint8_t none[1] = {0};
    zw_report_fill(&box, r);
    steps.run_id = t->start->run_id;
    steps.incarnation = (ProtobufCBinaryData){0, none}; /* the supervisor has one, we do not */
    steps.n_steps = 1;
    steps.steps = list;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_STEPS;
    env.report_steps = &steps;
    log_step(t, r);
    return post(t, &env, err);
}

static int post_part(void *arg, Zt__StepTrace *s, struct zt_error *err)
{
    struct trainer *t = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportTraces r = ZT__REPORT_TRACES__INIT;
    r.run_id = t->start->run_id;
    r.n_traces = 1;
    r.traces = &s;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_TRACES;
    env.report_traces = &r;
    return post(t, &env, err);
}

static void hook_collectives(void *arg, const struct zt_step_trace *s)
{
    struct trainer *t = arg;
    struct zt_error err;
    pthread_mutex_lock(&t->lock);
    bool full = t->queued > QUEUE_TRACES;
    pthread_mutex_unlock(&t->lock);
    if (full || zw_trace_parts(s, post_part, t, &err)) {
        t->traces_lost++;
        return;
    }
    if (t->traces_lost > 0) {
        char text[160];
        snprintf(text, sizeof(text), "the collectives of %llu captured steps before step %lld were dropped: the "
                 "worker took no reports", (unsigned long long)t->traces_lost, (long long)s->step);
        t->traces_lost = 0;
        hook_event(t, ZT_EVENT_WARNING, "TRACE_DROPPED", text);
    }
}

static void hook_dtypes(void *arg, const struct zt_dtypes_report *d)
{
    struct trainer *t = arg;
    struct zw_dtypes_box box;
    struct zt_error ignored; /* a supervisor that is gone is noticed by the next report */
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportDtypes r = ZT__REPORT_DTYPES__INIT;
    zw_dtypes_fill(&box, d);
    r.run_id = t->start->run_id;
    r.report = &box.report;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_DTYPES;
    env.report_dtypes = &r;
    (void)post(t, &env, &ignored);
}

/* --------------------------------------------------------------------------------------- ending */

static void put_oom(Zt__OomDetail *out, Zt__TagBytes *tags, const struct zt_oom *o)
{
    zt__oom_detail__init(out);
    zt__tag_bytes__init(tags);
    out->request = o->request;
    out->capacity = o->capacity;
    out->reserved = o->reserved;
    out->allocated = o->allocated;
    out->free_device = o->free_device;
    out->largest_free_block = o->largest_free_block;
    out->inactive_split_bytes = o->inactive_split_bytes;
    out->fragmentation = o->fragmentation;
    out->tag = (char *)(uintptr_t)zt_tag_name(o->tag);
    out->phase = (char *)(uintptr_t)zt_phase_name(o->phase);
    out->what = (char *)(uintptr_t)o->what;
    tags->has_parameters = tags->has_gradients = tags->has_optimizer = 1;
    tags->has_activations = tags->has_temporary = tags->has_communication = 1;
    tags->parameters = o->by_tag[ZT_TAG_PARAMETERS];
    tags->gradients = o->by_tag[ZT_TAG_GRADIENTS];
    tags->optimizer = o->by_tag[ZT_TAG_OPTIMIZER];
    tags->activations = o->by_tag[ZT_TAG_ACTIVATIONS];
    tags->temporary = o->by_tag[ZT_TAG_TEMPORARY];
    tags->communication = o->by_tag[ZT_TAG_COMMUNICATION];
    out->by_tag = tags;
}

static void send_failure(struct trainer *t, const struct zt_train_result *r, bool in_run,
                         const struct zt_error *why)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerFailure tf = ZT__TRAINER_FAILURE__INIT;
    Zt__ReportFailure f = ZT__REPORT_FAILURE__INIT;
    Zt__OomDetail oom;
    Zt__TagBytes tags;
    struct zt_error ignored;
    f.run_id = t->start->run_id;
    f.generation = t->start->generation;
    f.rank = t->start->assignment->rank;
    f.reason = (uint32_t)r->reason;
    f.message = (char *)(uintptr_t)why->msg;
    char prefix[32]; /* who it is stands in the report's own field */
    int n = snprintf(prefix, sizeof(prefix), "rank %u: ", f.rank);
    if (strncmp(f.message, prefix, (size_t)n) == 0) {
        f.message += n;
    }
    if (in_run) {
        f.phase = (char *)(uintptr_t)zt_phase_name(r->phase);
        f.has_step = r->failed_step > 0; /* 0: before the first */
        f.step = r->failed_step;
    }
    f.has_exit_code = 1;
    f.exit_code = zw_exit_code(r->reason);
    if (r->has_oom) {
        put_oom(&oom, &tags, &r->oom);
        f.oom = &oom;
    }
    f.has_peer = r->peer >= 0;
    f.peer = r->peer;
    tf.failure = &f;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_FAILURE;
    env.trainer_failure = &tf;
    log_line(t, "%s: %s", zt_reason_name(r->reason), why->msg);
    (void)post(t, &env, &ignored);
}

static void send_done(struct trainer *t, const struct zt_train_result *r)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerDone d = ZT__TRAINER_DONE__INIT;
    struct zt_error ignored;
    d.steps = r->steps;
    d.parameter_hash = r->parameter_hash[0] ? (char *)(uintptr_t)r->parameter_hash : NULL;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_DONE;
    env.trainer_done = &d;
    log_line(t, "done: %lld steps%s%s", (long long)r->steps, d.parameter_hash ? ", parameter hash " : "",
             d.parameter_hash ? d.parameter_hash : "");
    (void)post(t, &env, &ignored);
}

/* ------------------------------------------------------------------------------------ beginning */

static int read_spec(struct trainer *t, struct zt_error *err)
{
    const Zt__Assignment *a = t->start->assignment;
    int rc = zt_spec_parse((const char *)a->run_yaml.data, a->run_yaml.len, "run.yaml",
                           (const char *const *)a->overrides, (int)a->n_overrides, &t->spec, err);
    if (rc == 0) {
        rc = zt_spec_resolve(&t->spec, (int)a->world, "run.yaml", err);
    }
    if (rc) {
        return rc;
    }
    struct zt_mesh m = zt_spec_mesh(&t->spec);
    if ((uint32_t)m.replicate != a->replicate || (uint32_t)m.shard != a->shard ||
        (uint32_t)m.tensor != a->tensor) {
        return zt_fail(err, ZT_EINVAL,
                       "run.yaml gives a mesh of %d x %d x %d for %u workers, the coordinator assigned "
                       "%u x %u x %u: zcoord and zworker are of different versions",
                       m.replicate, m.shard, m.tensor, a->world, a->replicate, a->shard, a->tensor);
    }
    t->replicas_degree = m.tensor;
    return 0;
}

static void log_start(struct trainer *t)
{
    const Zt__Assignment *a = t->start->assignment;
    struct zt_ops_ctx *x;
    struct zt_error ignored;
    char memory[32], backend[128] = "unknown backend";
    if (zt_ops_cpu_create((int)t->start->threads, t->start->isa, t->start->gemm, &x, &ignored) == 0) {
        snprintf(backend, sizeof(backend), "%s", zt_ops_cpu_describe(x));
        zt_ops_cpu_destroy(x);
    }
    log_line(t,
             "run %s generation %u: rank %u of %u (replicate %u x shard %u x tensor %u), local rank %u, host %s (%s), "
             "device %s, %s, %s",
             a->run_name, t->start->generation, a->rank, a->world, a->replicate, a->shard, a->tensor, a->local_rank,
             t->start->host ? t->start->host : "?", t->start->address ? t->start->address : "?", t->start->device, zt_format_bytes((double)t->start->capacity_bytes, memory, sizeof(memory)),
             backend); /* which says the threads too */
}

static int run(struct trainer *t, struct zt_progress *progress, size_t progress_bytes)
{
    struct zt_error err = {0};
    struct zt_train_result result = {.peer = -1};
    const struct zt_train_hooks hooks = {.arg = t, .ready = hook_ready, .comm_id = hook_comm_id,
                                         .in_comm = hook_in_comm, .step = hook_step,
                                         .collectives = hook_collectives, .dtypes = hook_dtypes, .event = hook_event};
    log_start(t);
    bool in_run = false;
    int rc = read_spec(t, &err);
    if (rc) {
        result.reason = rc == ZT_ENOMEM ? ZT_REASON_OOM_HOST : ZT_REASON_CONFIG_ERROR;
    } else {
        const Zt__Assignment *a = t->start->assignment;
        struct zt_train_config c = {
            .spec = &t->spec, .rank = (int)a->rank, .local_rank = (int)a->local_rank, .world = (int)a->world,
            .generation = t->start->generation, .device = t->start->device,
            .kernels = &zt_kernels_cpu,
            .capacity_bytes = (int64_t)t->start->capacity_bytes, .threads = (int)t->start->threads,
            .isa = t->start->isa, .gemm = t->start->gemm, .progress = progress, .progress_bytes = progress_bytes,
            .host = t->start->host, .address = t->start->address,
            .several_hosts = a->has_workers_on_host && a->workers_on_host < a->world};
        t->capacity = c.capacity_bytes;
        in_run = true;
        rc = zt_train(&c, &hooks, &result, &err);
    }
    if (rc == 0) {
        send_done(t, &result);
    } else {
        result.reason = result.reason ? result.reason : ZT_REASON_EXIT_NONZERO;
        send_failure(t, &result, in_run, &err);
    }
    int code = rc ? zw_exit_code(result.reason) : 0;
    zt_spec_free(&t->spec);
    return code;
}

static int wait_for_start(struct trainer *t, struct zt_error *err)
{
    int64_t until = now_ms() + 60000;
    while (!t->start) {
        int64_t left = until - now_ms();
        int rc = left > 0 ? receive(t, left, err)
                          : zt_fail(err, ZT_ETIMEOUT, "no assignment from the supervisor within 60 s");
        if (rc) {
            return rc;
        }
    }
    return 0;
}

int zw_trainer_main(int channel_fd, int progress_fd, pid_t parent)
{
    struct zt_error err;
    struct stat st;
    pthread_condattr_t monotonic;
    struct trainer *t = calloc(1, sizeof(*t));
    /* the supervisor set the death signal before exec; here it may be another program's child */
    if (!t || prctl(PR_SET_PDEATHSIG, SIGKILL) || (parent > 0 && getppid() != parent)) {
        return 125;
    }
    signal(SIGPIPE, SIG_IGN);
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    t->fd = channel_fd;
    zt_decoder_init(&t->decoder, ZT_FRAME_MAX);
    void *map = fstat(progress_fd, &st) == 0
                    ? mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, progress_fd, 0)
                    : MAP_FAILED;
    if (map == MAP_FAILED || (size_t)st.st_size < sizeof(struct zt_progress)) {
        fprintf(stderr, "zworker: the trainer cannot map its progress page\n");
        return 75;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, &monotonic);
    if (wait_for_start(t, &err)) {
        fprintf(stderr, "zworker: trainer: %s\n", err.msg);
        return 75;
    }
    if (pthread_create(&t->writer, NULL, writer_main, t)) {
        fprintf(stderr, "zworker: trainer: cannot start a thread\n");
        return 75;
    }
    int code = run(t, map, (size_t)st.st_size);
    flush_and_join(t);
    zt_envelope_free(t->start_env, t->start_arena);
    zt_decoder_free(&t->decoder);
    munmap(map, (size_t)st.st_size);
    free(t);
    return code;
}
