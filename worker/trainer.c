/* SPDX-License-Identifier: Apache-2.0 */
/* worker/trainer.c: the trainer child: takes its assignment from the supervisor, runs zt_train, sends
 * what happens as frames, and says by its last frame and its exit code how it ended.
 *
 * It never waits for the supervisor while it trains: frames go through the queue of its link (link.h), and
 * the lines of its log into a non-blocking pipe (lines that do not fit are counted and told later). Only
 * the exchange of the communicator id waits, up to its deadline, and the writer of checkpoints (saves.h).
 * Threads: the main thread trains; the link has its own. */
#include "worker/trainer.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/units.h"
#include "engine/train.h"
#include "kernels/ops.h"
#include "proto/frame.h"
#include "worker/child.h"
#include "worker/link.h"
#include "worker/saves.h"
#include "worker/traces.h"

#define START_S 60

struct trainer {
    struct zw_link *link;
    const Zt__TrainerStart *start;
    struct zt_progress *progress;
    struct zt_spec spec;
    struct zw_saves saves;
    uint64_t traces_lost; /* captured steps whose trace found no room in the queue */
    /* log */
    _Atomic uint64_t lines_lost; /* events come from the writer of checkpoints too */
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

/* ---------------------------------------------------------------------------------------- hooks */

static int send_state(struct trainer *t, Zt__TrainerPhase phase, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerState st = ZT__TRAINER_STATE__INIT;
    st.phase = phase;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STATE;
    env.trainer_state = &st;
    return zw_link_post(t->link, &env, err);
}

static int hook_ready(void *arg, struct zt_error *err)
{
    return send_state(arg, ZT__TRAINER_PHASE__TP_READY, err);
}

static int hook_in_comm(void *arg, struct zt_error *err)
{
    return send_state(arg, ZT__TRAINER_PHASE__TP_IN_COMM, err);
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * INT64_C(1000) + ts.tv_nsec / 1000000;
}

/* One question; *id is what the coordinator has. */
static int ask_comm_id(struct trainer *t, int rank, double seconds, struct zt_comm_id *id, struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__PutCommId put = ZT__PUT_COMM_ID__INIT;
    Zt__GetCommId get = ZT__GET_COMM_ID__INIT;
    void *arena;
    put.run_id = get.run_id = t->start->run_id;
    put.generation = get.generation = t->start->generation;
    put.group = get.group = (char *)(uintptr_t)"world";
    put.index = get.index = 0;
    put.id = (ProtobufCBinaryData){sizeof(id->bytes), id->bytes};
    if (rank == 0) {
        env.body_case = ZT__ENVELOPE__BODY_PUT_COMM_ID;
        env.put_comm_id = &put;
    } else {
        env.body_case = ZT__ENVELOPE__BODY_GET_COMM_ID;
        env.get_comm_id = &get;
    }
    int rc = zw_link_ask(t->link, &env, seconds, &reply, &arena, err);
    if (rc) {
        return rc;
    }
    if (reply->body_case != ZT__ENVELOPE__BODY_COMM_ID || reply->comm_id->id.len > sizeof(id->bytes)) {
        rc = zt_fail(err, ZT_EPROTO, "no communicator id in the answer");
    } else {
        memset(id, 0, sizeof(*id));
        memcpy(id->bytes, reply->comm_id->id.data, reply->comm_id->id.len);
    }
    zt_envelope_free(reply, arena);
    return rc;
}

static int hook_comm_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err)
{
    struct trainer *t = arg;
    const struct zt_comm_id own = *id;
    double limit = t->start->assignment->has_init_timeout_seconds
                       ? t->start->assignment->init_timeout_seconds
                       : t->spec.comm.init_timeout_seconds;
    int64_t until = now_ms() + (int64_t)(limit * 1000.0);
    for (;;) {
        int64_t left = until - now_ms();
        int rc = left > 0 ? ask_comm_id(t, rank, (double)left * 1e-3, id, err) : ZT_ETIMEOUT;
        if (rc == 0) {
            break;
        }
        if (rc == ZT_ETIMEOUT || now_ms() >= until) {
            return zt_fail(err, ZT_ETIMEOUT,
                           "no communicator id from rank 0 within %g s (comm.init_timeout_seconds): it has "
                           "not come so far, or the coordinator is not reachable",
                           limit);
        }
        if (rc != ZT_EBUSY) {
            return zt_fail_prefix(err, "communicator id");
        }
        const struct timespec pause = {.tv_nsec = 200000000};
        nanosleep(&pause, NULL);
    }
    if (rank == 0 && memcmp(id, &own, sizeof(*id)) != 0) {
        return zt_fail(err, ZT_ECOMM, "another trainer of this generation has published a communicator id");
    }
    return 0;
}

static bool hook_stop(void *arg)
{
    struct trainer *t = arg;
    return zw_link_stopping(t->link);
}

/* The step loop waits for the writer, the writer for the coordinator or for other ranks: this rank does not hang.
 * Under the link's lock. */
static void while_waiting(void *arg)
{
    struct trainer *t = arg;
    struct timespec ts;
    if (atomic_load(&t->progress->phase) == ZT_PHASE_SAVE) {
        clock_gettime(CLOCK_MONOTONIC, &ts);
        atomic_store(&t->progress->last_progress_ns, ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec);
    }
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
    (void)zw_link_post(t->link, &env, &ignored);
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
    if (ZT_FAILPOINT("worker.step")) {
        return zt_fail(err, ZT_EINTERNAL, "planted fault worker.step");
    }
    return zw_link_post(t->link, &env, err);
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
    return zw_link_post(t->link, &env, err);
}

static void hook_collectives(void *arg, const struct zt_step_trace *s)
{
    struct trainer *t = arg;
    struct zt_error err;
    if (zw_link_queued(t->link) > ZW_LINK_DETAIL || zw_trace_parts(s, post_part, t, &err)) {
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
    (void)zw_link_post(t->link, &env, &ignored);
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
    (void)zw_link_post(t->link, &env, &ignored);
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
    (void)zw_link_post(t->link, &env, &ignored);
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

static int run(struct trainer *t, size_t progress_bytes)
{
    struct zt_error err = {0};
    struct zt_train_result result = {.peer = -1};
    const struct zt_train_hooks hooks = {.arg = t, .ready = hook_ready, .comm_id = hook_comm_id,
                                         .in_comm = hook_in_comm, .step = hook_step,
                                         .collectives = hook_collectives, .dtypes = hook_dtypes, .event = hook_event,
                                         .stop = hook_stop};
    const struct zt_checkpoint_config *checkpoint = NULL;
    log_start(t);
    bool in_run = false;
    int rc = read_spec(t, &err);
    if (rc == 0) {
        t->saves.event = hook_event;
        t->saves.event_arg = t;
        rc = zw_saves_init(&t->saves, t->link, t->start, &t->spec, &checkpoint, &err);
    }
    if (rc) {
        result.reason = rc == ZT_ENOMEM ? ZT_REASON_OOM_HOST : ZT_REASON_CONFIG_ERROR;
    } else {
        const Zt__Assignment *a = t->start->assignment;
        struct zt_train_config c = {
            .spec = &t->spec, .rank = (int)a->rank, .local_rank = (int)a->local_rank, .world = (int)a->world,
            .generation = t->start->generation, .device = t->start->device,
            .kernels = &zt_kernels_cpu,
            .capacity_bytes = (int64_t)t->start->capacity_bytes, .threads = (int)t->start->threads,
            .isa = t->start->isa, .gemm = t->start->gemm, .progress = t->progress, .progress_bytes = progress_bytes,
            .host = t->start->host, .address = t->start->address,
            .several_hosts = a->has_workers_on_host && a->workers_on_host < a->world, .checkpoint = checkpoint};
        t->capacity = c.capacity_bytes;
        in_run = true;
        rc = zt_train(&c, &hooks, &result, &err);
        zw_saves_end(&t->saves);
        if (rc == ZT_ECANCELLED) { /* nothing else cancels: somebody's supervisor has asked for it */
            result.reason = ZT_REASON_DRAINED;
        }
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

int zw_trainer_main(int channel_fd, int progress_fd, pid_t parent)
{
    struct zt_error err;
    struct stat st;
    struct trainer *t = calloc(1, sizeof(*t));
    /* the supervisor set the death signal before exec; here it may be another program's child */
    if (!t || prctl(PR_SET_PDEATHSIG, SIGKILL) || (parent > 0 && getppid() != parent)) {
        return 125;
    }
    signal(SIGPIPE, SIG_IGN);
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    void *map = fstat(progress_fd, &st) == 0
                    ? mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, progress_fd, 0)
                    : MAP_FAILED;
    if (map == MAP_FAILED || (size_t)st.st_size < sizeof(struct zt_progress)) {
        fprintf(stderr, "zworker: the trainer cannot map its progress page\n");
        return 75;
    }
    t->progress = map;
    if (zw_link_open(channel_fd, &t->link, &err) || zw_link_start(t->link, START_S, &t->start, &err)) {
        fprintf(stderr, "zworker: trainer: %s\n", err.msg);
        return 75;
    }
    zw_link_on_wait(t->link, while_waiting, t);
    int code = run(t, (size_t)st.st_size);
    zw_link_close(t->link);
    munmap(map, (size_t)st.st_size);
    free(t);
    return code;
}
