/* SPDX-License-Identifier: Apache-2.0 */
/* worker/supervisor.c: the process that lives as long as the worker does: its session with the
 * coordinator, its beats, and what the coordinator wants of it.
 *
 * What is wanted is level-triggered (Desired rides on every beat reply and is pushed): START spawns one
 * child per generation, ABORT kills it at once, a child of another generation is killed before a new one
 * is started. Training goes on without a coordinator for ORPHAN_MS. SIGTERM and SIGINT drain: a child whose
 * run saves then (checkpoint.on_preempt) is asked to, and has timeouts.term_grace for it; then, or else at
 * once, it is killed; the end is told with reason DRAINED, the process exits 0. */
#include "worker/supervisor.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/units.h"
#include "engine/train.h"
#include "kernels/ops.h"

#define TICK_MS 100u
#define BEAT_TIMEOUT_S 10.0
#define BEATS_OUT_MAX 3        /* unanswered beats; more would only queue up */
#define ORPHAN_MS (30u * 60u * 1000u)
#define DRAIN_MS 10000u        /* to tell the coordinator how it ended */
#define MEMORY_MS (5u * 60u * 1000u) /* copies in memory, after the run's last trainer here: it may come back */
#define DRAIN_IDLE_MS 2000u    /* to be told that no work is on its way, when there is nothing to tell */

/* One line per event of ours; people read it, the log of a run is another thing. */
void zw_log(const struct zw_supervisor *s, const char *fmt, ...)
{
    char text[1024], when[32];
    struct timespec ts;
    struct tm tm;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++) { /* one line, no terminal escapes, of one byte or two */
        bool c1 = (unsigned char)*c == 0xC2 && (unsigned char)c[1] >= 0x80 && (unsigned char)c[1] < 0xA0;
        *c = (unsigned char)*c < ' ' || *c == 127 || c1 ? ' ' : *c;
        if (c1) {
            *++c = ' ';
        }
    }
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(stderr, "%s.%03ldZ zworker %s: %s\n", when, ts.tv_nsec / 1000000, s->id.worker_id, text);
}

/* ------------------------------------------------------------------------------ ending the loop */

static void on_closed(uv_handle_t *h)
{
    (void)h;
}

static void on_client_closed(void *arg)
{
    struct zw_supervisor *s = arg;
    s->client_closed = true;
}

static void quit(struct zw_supervisor *s, int code)
{
    if (s->quitting) {
        return;
    }
    s->quitting = true;
    s->exit_code = code;
    for (struct zw_job *j = s->jobs; j; j = j->next) {
        zw_job_kill(j);
    }
    if (s->client) {
        zt_client_close(s->client, on_client_closed, s);
        s->client = NULL;
    }
    uv_close((uv_handle_t *)&s->tick, on_closed);
    uv_close((uv_handle_t *)&s->sigterm, on_closed);
    uv_close((uv_handle_t *)&s->sigint, on_closed);
    uv_close((uv_handle_t *)&s->sigchld, on_closed);
    for (struct zw_job *j = s->jobs; j; j = j->next) {
        zw_job_close(j);
    }
}

/* ----------------------------------------------------------------------------------- what to do */

static struct zw_job *find_job(struct zw_supervisor *s, const char *run_id, uint32_t generation)
{
    struct zw_job *j = s->jobs;
    while (j && (j->generation != generation || strcmp(j->run_id, run_id))) {
        j = j->next;
    }
    return j;
}

static struct zw_job *live_child(struct zw_supervisor *s)
{
    struct zw_job *j = s->jobs;
    while (j && !(j->spawned && !j->finished)) {
        j = j->next;
    }
    return j;
}

/* The job that beats name: until its exit is acknowledged. */
static struct zw_job *named_job(struct zw_supervisor *s)
{
    struct zw_job *j = live_child(s);
    if (j) {
        return j;
    }
    for (j = s->jobs; j && !(j->spawned && !zw_job_told(j)); j = j->next) {
    }
    return j;
}

static bool had_child(const struct zw_supervisor *s, const char *run_id, uint32_t generation)
{
    for (size_t i = 0; i < s->n_past && i < ZW_PAST; i++) {
        if (s->past[i].generation >= generation && strcmp(s->past[i].run_id, run_id) == 0) {
            return true;
        }
    }
    return false;
}

static void remember(struct zw_supervisor *s, const char *run_id, uint32_t generation)
{
    struct zw_past *p = &s->past[s->n_past++ % ZW_PAST];
    snprintf(p->run_id, sizeof(p->run_id), "%s", run_id);
    p->generation = generation;
    if (s->n_past >= 2 * ZW_PAST) {
        s->n_past -= ZW_PAST;
    }
}

static void forget_wanted(struct zw_supervisor *s)
{
    zt_envelope_free(s->wanted, s->wanted_arena);
    s->wanted = NULL;
    s->wanted_arena = NULL;
}

static const Zt__Desired *desired_in(const Zt__Envelope *env)
{
    if (env->body_case == ZT__ENVELOPE__BODY_BEAT_REPLY) {
        return env->beat_reply->desired;
    }
    return env->body_case == ZT__ENVELOPE__BODY_REGISTER_REPLY ? env->register_reply->desired : NULL;
}

static void want_start(struct zw_supervisor *s, const Zt__Envelope *env, const Zt__Desired *d)
{
    struct zt_error err;
    if (s->draining || !d->run_id || !d->has_generation || !d->assignment ||
        find_job(s, d->run_id, d->generation) || had_child(s, d->run_id, d->generation)) {
        return;
    }
    struct zw_job *old = live_child(s);
    if (old) {
        zw_log(s, "run %s generation %u makes room for run %s generation %u", old->run_id, old->generation,
               d->run_id, d->generation);
        zw_job_kill(old);
        forget_wanted(s);
        if (zt_envelope_copy(env, &s->wanted, &s->wanted_arena, &err)) {
            zw_log(s, "%s", err.msg); /* the next beat asks again */
        }
        return;
    }
    struct zw_job *j = zw_job_new(s, d->run_id, d->generation, d->assignment->rank);
    if (!j) {
        return; /* no memory: the next beat asks again */
    }
    remember(s, d->run_id, d->generation);
    zw_job_start(j, d->assignment);
}

static void want_abort(struct zw_supervisor *s, const Zt__Desired *d)
{
    if (!d->run_id || !d->has_generation) {
        return;
    }
    forget_wanted(s);
    struct zw_job *j = find_job(s, d->run_id, d->generation);
    if (!j) {
        /* no such child here, and that is what the coordinator needs to hear */
        j = zw_job_new(s, d->run_id, d->generation, d->assignment ? d->assignment->rank : d->rank);
        if (j) {
            remember(s, d->run_id, d->generation);
            j->finished = true;
            zw_job_pump(j);
        }
        return;
    }
    if (zw_job_holds_child(j) && !j->killed) {
        zw_log(s, "run %s generation %u: stopped by the coordinator", j->run_id, j->generation);
        j->aborted = true;
        zw_job_kill(j);
    }
}

static void on_stop_signal(uv_signal_t *h, int signum);

static void obey(struct zw_supervisor *s, const Zt__Envelope *env)
{
    const Zt__Desired *d = desired_in(env);
    if (!d || s->quitting) {
        return;
    }
    switch (d->action) {
    case ZT__DESIRED__ACTION__START:
        want_start(s, env, d);
        break;
    case ZT__DESIRED__ACTION__ABORT:
        want_abort(s, d);
        break;
    case ZT__DESIRED__ACTION__EXIT:
        if (!s->draining) {
            zw_log(s, "the coordinator asks this worker to stop");
            on_stop_signal(&s->sigterm, SIGTERM); /* the way an operator does */
        }
        break;
    case ZT__DESIRED__ACTION__IDLE:
        forget_wanted(s);
        break;
    default:
        break; /* RUN: go on */
    }
    if (s->draining && (d->action == ZT__DESIRED__ACTION__IDLE || d->action == ZT__DESIRED__ACTION__EXIT)) {
        s->drain_heard = true;
    }
}

void zw_supervisor_job_gone(const struct zw_job *gone)
{
    struct zw_supervisor *s = gone->sup;
    if (gone->has_verdict && gone->verdict->body_case == ZT__ENVELOPE__BODY_RANK_DONE) {
        zw_memory_release(&s->memory); /* its run is over */
    }
    if (s->wanted && !live_child(s)) {
        Zt__Envelope *env = s->wanted;
        void *arena = s->wanted_arena;
        s->wanted = NULL;
        s->wanted_arena = NULL;
        want_start(s, env, desired_in(env));
        zt_envelope_free(env, arena);
    }
}

/* -------------------------------------------------------------------------------- what it says */

static bool superseded(struct zw_supervisor *s, const Zt__Envelope *reply, const struct zt_error *err)
{
    if (!reply || reply->code != ZT__CODE__SUPERSEDED || s->quitting) {
        return false;
    }
    zw_log(s, "%s", err->msg);
    quit(s, 5);
    return true;
}

static void set_resources(struct zw_supervisor *s)
{
    int live = zw_identity_live(&s->id);
    int64_t share = s->half_memory / live / (2 << 20) * (2 << 20);
    s->capacity = s->o.memory_bytes ? s->o.memory_bytes : share;
    s->threads = s->o.threads ? s->o.threads : s->cpus / live > 0 ? s->cpus / live : 1;
}

static Zt__TrainerPhase phase_of(const struct zw_job *j)
{
    /* the mapping is newer than the frames when we are slow */
    static const Zt__TrainerPhase of_state[] = {
        ZT__TRAINER_PHASE__TP_STARTING, ZT__TRAINER_PHASE__TP_READY, ZT__TRAINER_PHASE__TP_IN_COMM,
        ZT__TRAINER_PHASE__TP_RUNNING, ZT__TRAINER_PHASE__TP_DONE};
    Zt__TrainerPhase phase = j->phase;
    if (j->child.progress) {
        int state = atomic_load(&j->child.progress->state);
        if (state >= 0 && state <= ZT_TRAINER_DONE && of_state[state] > phase) {
            phase = of_state[state];
        }
    }
    return phase;
}

static int64_t step_of(const struct zw_job *j)
{
    return j->child.progress ? atomic_load(&j->child.progress->step) : -1;
}

static void on_registered(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_supervisor *s = arg;
    if (superseded(s, reply, err) || s->quitting) {
        return;
    }
    if (err || reply->body_case != ZT__ENVELOPE__BODY_REGISTER_REPLY) {
        if (reply || (err && err->code == ZT_ETIMEOUT)) { /* a lost connection registers again by itself */
            zw_log(s, "not registered: %s", err ? err->msg : "unexpected reply");
        }
        return; /* the next beat tries again */
    }
    if (!s->registered) {
        zw_log(s, "registered (coordinator epoch %llu)", (unsigned long long)reply->register_reply->epoch);
    }
    s->registered = true;
    s->beat_ms = reply->register_reply->beat_ms;
    s->beat_ms = s->beat_ms < 50 ? 50 : s->beat_ms > 60000 ? 60000 : s->beat_ms;
    s->next_beat = zw_now(s);
    obey(s, reply);
}

static void send_register(struct zw_supervisor *s)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Register r = ZT__REGISTER__INIT;
    struct zt_error err;
    struct zw_job *j = named_job(s);
    set_resources(s);
    if (s->o.address) {
        snprintf(s->address, sizeof(s->address), "%s", s->o.address);
    } else {
        zt_client_local_address(s->client, s->address, sizeof(s->address));
    }
    r.worker_id = s->id.worker_id;
    r.incarnation = (ProtobufCBinaryData){sizeof(s->id.incarnation), s->id.incarnation};
    r.host = s->id.host;
    r.device = (char *)(uintptr_t)s->o.device;
    r.capacity_bytes = (uint64_t)s->capacity;
    r.threads = (uint32_t)s->threads;
    r.backend = s->backend;
    r.isa = s->isa;
    r.version = (char *)(uintptr_t)ZT_VERSION;
    r.has_pid = 1;
    r.pid = (uint64_t)getpid();
    r.address = s->address;
    if (j) {
        r.run_id = j->run_id;
        r.has_generation = r.has_rank = r.has_phase = 1;
        r.generation = j->generation;
        r.rank = j->rank;
        r.phase = phase_of(j);
        r.step = step_of(j);
        r.has_step = r.step >= 0;
    }
    env.body_case = ZT__ENVELOPE__BODY_REGISTER_WORKER;
    env.register_worker = &r;
    if (zt_client_request(s->client, &env, false, BEAT_TIMEOUT_S, on_registered, s, &err)) {
        zw_log(s, "cannot register: %s", err.msg);
    }
}

static void on_beat_reply(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_supervisor *s = arg;
    s->beats_out--;
    if (superseded(s, reply, err) || s->quitting || !reply) {
        return;
    }
    if (err) {
        s->registered = false; /* it does not know us: say who we are */
        return;
    }
    obey(s, reply);
}

static void send_beat(struct zw_supervisor *s)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__Beat b = ZT__BEAT__INIT;
    struct zt_error err;
    struct zw_job *j = named_job(s);
    struct timespec ts;
    b.worker_id = s->id.worker_id;
    b.incarnation = (ProtobufCBinaryData){sizeof(s->id.incarnation), s->id.incarnation};
    b.seq = ++s->beat_seq;
    b.has_draining = 1;
    b.draining = s->draining;
    b.has_phase = 1;
    b.phase = ZT__TRAINER_PHASE__TP_NONE;
    if (j) {
        b.run_id = j->run_id;
        b.has_generation = b.has_rank = 1;
        b.generation = j->generation;
        b.rank = j->rank;
        b.phase = phase_of(j);
        b.step = step_of(j);
        b.has_step = b.step >= 0;
        b.has_unsent_reports = 1;
        b.unsent_reports = zw_steps_count(&j->steps) + j->batch.n;
    }
    if (j && j->child.progress) {
        int64_t last = atomic_load(&j->child.progress->last_progress_ns);
        int phase = atomic_load(&j->child.progress->phase);
        clock_gettime(CLOCK_MONOTONIC, &ts);
        int64_t age = ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec - last;
        int64_t since_start = (int64_t)(zw_now(s) - j->started_at);
        b.has_held_by = 1;
        b.held_by = (uint32_t)atomic_load(&j->child.progress->held_by);
        b.has_progress_age_ms = 1;
        b.progress_age_ms = last > 0 ? (age > 0 ? age / 1000000 : 0) : since_start;
        if (phase >= 0 && phase < ZT_PHASE_COUNT) {
            b.activity = (char *)(uintptr_t)zt_phase_name((enum zt_phase)phase);
        }
        int64_t rss = zw_rss_bytes(j->child.pid);
        b.has_rss_bytes = rss >= 0;
        b.rss_bytes = rss >= 0 ? (uint64_t)rss : 0;
    }
    env.body_case = ZT__ENVELOPE__BODY_BEAT;
    env.beat = &b;
    if (zt_client_request(s->client, &env, false, BEAT_TIMEOUT_S, on_beat_reply, s, &err) == 0) {
        s->beats_out++;
    }
}

/* -------------------------------------------------------------------------------------- session */

static void on_connected(void *arg, uint64_t epoch, bool changed)
{
    struct zw_supervisor *s = arg;
    if (s->lost_since || changed) {
        zw_log(s, "connected to the coordinator at %s:%d%s", s->o.host, s->o.port,
               changed ? ", which has restarted" : "");
    }
    s->lost_since = 0;
    s->epoch = epoch;
    s->registered = false;
    send_register(s); /* before anything that waited for the connection */
    s->next_beat = zw_now(s) + s->beat_ms;
}

static void on_disconnected(void *arg, bool will_retry, const struct zt_error *err)
{
    struct zw_supervisor *s = arg;
    if (s->quitting) {
        return;
    }
    s->registered = false;
    forget_wanted(s); /* what came over the old connection is not obeyed after a new one */
    if (!will_retry) {
        zw_log(s, "%s", err->msg);
        quit(s, err->code == ZT_EAUTH ? 4 : err->code == ZT_EVERSION ? 8 : 6);
        return;
    }
    if (!s->lost_since) {
        s->lost_since = zw_now(s);
        zw_log(s, "%s; trying again%s", err->msg, live_child(s) ? ", training goes on" : "");
    }
}

static void on_push(void *arg, const Zt__Envelope *env)
{
    obey(arg, env);
}

/* --------------------------------------------------------------------------- signals and ticks */

static void on_sigchld(uv_signal_t *h, int signum)
{
    struct zw_supervisor *s = h->data;
    (void)signum;
    for (struct zw_job *j = s->jobs, *next; j; j = next) {
        int status;
        next = j->next;
        if (zw_job_holds_child(j) && waitpid(j->child.pid, &status, WNOHANG) == j->child.pid) {
            zw_job_reaped(j, status);
        }
    }
}

static void on_stop_signal(uv_signal_t *h, int signum)
{
    struct zw_supervisor *s = h->data;
    if (s->draining) {
        return;
    }
    s->draining = true;
    s->drain_until = zw_now(s) + (s->jobs ? DRAIN_MS : DRAIN_IDLE_MS);
    zw_log(s, "SIG%s: draining", sigabbrev_np(signum));
    forget_wanted(s);
    struct zw_job *j = live_child(s);
    if (j) {
        j->drained = true;
    }
    if (j && zw_job_stop(j)) {
        s->kill_at = zw_now(s) + (uint64_t)(j->term_grace * 1000.0);
        s->drain_until = s->kill_at + DRAIN_MS;
        zw_log(s, "run %s generation %u rank %u: saves first, in %g s", j->run_id, j->generation, j->rank, j->term_grace);
    } else if (j) {
        zw_job_kill(j);
    }
    if (s->registered) {
        send_beat(s); /* no new work, from now on */
    } else {
        s->drain_heard = !j; /* nobody to tell */
    }
}

static void check_orphan(struct zw_supervisor *s)
{
    struct zw_job *j = live_child(s);
    if (s->lost_since && j && zw_now(s) - s->lost_since > ORPHAN_MS) {
        zw_log(s, "no coordinator for %u minutes: the trainer is stopped", ORPHAN_MS / 60000u);
        zw_job_kill(j);
    }
}

static void check_drained(struct zw_supervisor *s)
{
    bool all_told = true;
    struct zw_job *child = live_child(s);
    if (s->kill_at && zw_now(s) > s->kill_at && child) {
        zw_job_kill(child);
    }
    for (struct zw_job *j = s->jobs; j; j = j->next) {
        all_told = all_told && zw_job_told(j) && !j->logs.first;
    }
    bool offline = s->lost_since != 0 && !live_child(s);
    if ((all_told && (s->drain_heard || offline)) || zw_now(s) > s->drain_until) {
        zw_log(s, "drained%s", all_told ? "" : "; the coordinator did not take every report");
        quit(s, 0);
    }
}

/* The coordinator does not say when a run is over for good: what it may come back for is kept for a while. */
static void check_memory(struct zw_supervisor *s)
{
    if (live_child(s)) {
        s->memory_since = zw_now(s);
    } else if (zw_memory_held(&s->memory) && zw_now(s) - s->memory_since > MEMORY_MS) {
        zw_memory_release(&s->memory);
    }
}

char *zw_supervisor_memory(struct zw_job *j)
{
    struct zw_supervisor *s = j->sup;
    Zt__ReportEvent ev = ZT__REPORT_EVENT__INIT;
    struct zt_error err;
    s->memory_since = zw_now(s);
    if (zw_memory_take(&s->memory, NULL, s->id.host, j->run_id, &err) == 0) {
        return s->memory.path;
    }
    zw_log(s, "%s", err.msg);
    ev.kind = (char *)(uintptr_t)"MEMORY_COPY_SKIPPED";
    ev.message = err.msg;
    ev.has_level = 1;
    ev.level = 2;
    zw_job_event(j, &ev);
    return NULL;
}

static void on_tick(uv_timer_t *t)
{
    struct zw_supervisor *s = t->data;
    if (s->quitting) {
        return;
    }
    on_sigchld(&s->sigchld, SIGCHLD); /* should a signal have been lost */
    for (struct zw_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        zw_job_tick(j);
        zw_job_free_if_done(j);
    }
    if (zt_client_is_connected(s->client) && zw_now(s) >= s->next_beat) {
        s->next_beat = zw_now(s) + s->beat_ms;
        if (!s->registered) {
            send_register(s);
        } else {
            int64_t before = s->capacity;
            if (!live_child(s)) {
                set_resources(s);
            }
            if (before != s->capacity && !named_job(s)) {
                send_register(s); /* a neighbour came or went: our share changed */
            }
            if (s->beats_out < BEATS_OUT_MAX) {
                send_beat(s);
            }
        }
    }
    check_orphan(s);
    check_memory(s);
    if (s->draining) {
        check_drained(s);
    }
}

/* ------------------------------------------------------------------------------------ beginning */

static int make_folders(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p == '/') {
            *p = '\0';
            int rc = mkdir(path, 0700);
            *p = '/';
            if (rc && errno != EEXIST) {
                return -errno;
            }
        }
    }
    return mkdir(path, 0700) && errno != EEXIST ? -errno : 0;
}

/* The folder is only for reports that do not fit into memory: a worker without one still works. */
static void open_state(struct zw_supervisor *s)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (s->o.state) {
        n = snprintf(s->state, sizeof(s->state), "%s", s->o.state);
    } else if (xdg && xdg[0] == '/') {
        n = snprintf(s->state, sizeof(s->state), "%s/ztrain/worker", xdg);
    } else if (home && home[0] == '/') {
        n = snprintf(s->state, sizeof(s->state), "%s/.local/state/ztrain/worker", home);
    }
    int rc = n <= 0 ? -ENOENT : (size_t)n >= sizeof(s->state) ? -ENAMETOOLONG : make_folders(s->state);
    if (rc) {
        zw_log(s, "no state folder %s: %s; reports that wait for the coordinator stay in memory", s->state,
               strerror(-rc));
        s->state[0] = '\0';
    }
}

static void describe_backend(struct zw_supervisor *s)
{
    struct zt_ops_ctx *x;
    struct zt_error err;
    if (zt_ops_cpu_create(1, s->o.isa, s->o.gemm, &x, &err)) {
        snprintf(s->backend, sizeof(s->backend), "unknown");
        return;
    }
    snprintf(s->backend, sizeof(s->backend), "%s", zt_ops_cpu_describe(x));
    size_t n = strcspn(s->backend, ",");
    snprintf(s->isa, sizeof(s->isa), "%.*s", (int)(n < sizeof(s->isa) ? n : sizeof(s->isa) - 1), s->backend);
    zt_ops_cpu_destroy(x);
    /* " 1 thread" is of this probe: the number that counts is told apart */
    char *threads = strstr(s->backend, ", 1 thread");
    if (threads) {
        memmove(threads, threads + strlen(", 1 thread"), strlen(threads + strlen(", 1 thread")) + 1);
    }
}

static int online_cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

static int fail_start(struct zw_supervisor *s, int code, const char *message)
{
    fprintf(stderr, "zworker: %s\n", message);
    zw_identity_release(&s->id);
    free(s);
    return code;
}

static void start_loop(struct zw_supervisor *s)
{
    ZT_ASSERT(uv_loop_init(&s->loop) == 0);
    uv_timer_init(&s->loop, &s->tick);
    uv_signal_init(&s->loop, &s->sigchld);
    uv_signal_init(&s->loop, &s->sigterm);
    uv_signal_init(&s->loop, &s->sigint);
    s->tick.data = s->sigchld.data = s->sigterm.data = s->sigint.data = s;
    ZT_ASSERT(uv_signal_start(&s->sigchld, on_sigchld, SIGCHLD) == 0);
    ZT_ASSERT(uv_signal_start(&s->sigterm, on_stop_signal, SIGTERM) == 0);
    ZT_ASSERT(uv_signal_start(&s->sigint, on_stop_signal, SIGINT) == 0);
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
}

static void end_loop(struct zw_supervisor *s)
{
    while (uv_run(&s->loop, UV_RUN_DEFAULT)) {
    }
    for (struct zw_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        int status;
        const struct timespec pause = {.tv_nsec = 5000000};
        for (int i = 0; i < 400 && zw_job_holds_child(j); i++) { /* killed: gone within 2 s, or stuck */
            if (waitpid(j->child.pid, &status, WNOHANG) == j->child.pid) {
                j->reaped = true;
            } else {
                nanosleep(&pause, NULL);
            }
        }
        ZT_ASSERT(zw_job_free_if_done(j));
    }
    forget_wanted(s);
    ZT_ASSERT(uv_loop_close(&s->loop) == 0);
}

int zw_supervise(const struct zw_options *o)
{
    struct zt_error err;
    char path[1024], memory[32];
    struct zw_supervisor *s = calloc(1, sizeof(*s));
    if (!s) {
        fprintf(stderr, "zworker: no memory\n");
        return 10;
    }
    s->o = *o;
    s->id.lock_fd = -1;
    zw_memory_init(&s->memory);
    s->beat_ms = 1000;
    signal(SIGPIPE, SIG_IGN);
    int rc = zt_token_path(o->token_file, path, sizeof(path), &err);
    if (rc == 0) {
        rc = zt_token_load(&zt_sys_posix, path, &s->token, &err);
    }
    if (rc) {
        return fail_start(s, rc == ZT_EAUTH || rc == ZT_ENOTFOUND ? 4 : 2, err.msg);
    }
    rc = zw_identity_take(o->host_name, o->name, &s->id, &err);
    if (rc) {
        return fail_start(s, rc == ZT_ECONFLICT ? 5 : 2, err.msg);
    }
    open_state(s);
    zw_memory_sweep(NULL);
    describe_backend(s);
    s->cpus = online_cpus();
    s->half_memory = zt_default_capacity(1);
    set_resources(s);
    start_loop(s);
    struct zt_client_config c = {.port = o->port, .token = s->token, .role = ZT__ROLE__ROLE_WORKER,
                                 .principal = s->id.worker_id, .reconnect = true, .arg = s,
                                 .on_connected = on_connected, .on_disconnected = on_disconnected,
                                 .on_push = on_push};
    snprintf(c.host, sizeof(c.host), "%s", o->host);
    zw_log(s, "device %s, %s, %d thread%s, %s; coordinator %s:%d", o->device,
           zt_format_bytes((double)s->capacity, memory, sizeof(memory)), s->threads, s->threads == 1 ? "" : "s",
           s->backend, o->host, o->port);
    rc = zt_client_open(&s->loop, &c, &s->client, &err);
    if (rc) {
        zw_log(s, "%s", err.msg);
        quit(s, 2);
    }
    uv_run(&s->loop, UV_RUN_DEFAULT);
    end_loop(s);
    int code = s->exit_code;
    zw_memory_release(&s->memory);
    zw_identity_release(&s->id);
    free(s);
    return code;
}
