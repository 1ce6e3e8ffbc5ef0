/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "coordinator/shell.h"
#include "core/sys.h"
#include "proto/auth.h"

#define STOP_SECONDS 5.0 /* how long a refusing disk holds up a stop */

int64_t zt_shell_now_ns(void) { return zt_sys_posix.monotonic_ns(zt_sys_posix.arg); }
int64_t zt_shell_wall_ms(void) { return zt_sys_posix.wall_ns(zt_sys_posix.arg) / 1000000; }

void zt_coord_log(const char *level, const char *event, const char *fmt, ...)
{
    char text[3000], when[32];
    int64_t ms = zt_shell_wall_ms();
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    va_list ap;
    gmtime_r(&s, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) { /* one event, one line; nothing from the network reaches the terminal raw */
        bool c1 = (unsigned char)*p == 0xC2 && (unsigned char)p[1] >= 0x80 && (unsigned char)p[1] < 0xA0;
        if ((unsigned char)*p < 32 || *p == 127 || c1)
            *p = ' ';
        if (c1)
            *++p = ' ';
    }
    fprintf(stderr, "%s.%03dZ %s %s %s\n", when, (int)(ms % 1000), level, event, text);
}

int zt_exit_code(int zt_code)
{
    switch (zt_code) {
    case ZT_OK: return 0;
    case ZT_EINVAL: case ZT_EUNSUPPORTED: return 2;
    case ZT_ENOTFOUND: return 3;
    case ZT_EAUTH: return 4;
    case ZT_ECONFLICT: return 5;
    case ZT_EUNREACHABLE: return 6;
    case ZT_ENOPLACE: return 7;
    case ZT_EVERSION: return 8;
    default: return 10;
    }
}

/* ------------------------------------------------------------------------------ state folder */
static int make_folders(char *path, struct zt_error *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char c = *p;
        *p = 0;
        int rc = mkdir(path, 0700);
        int why = errno;
        if (rc < 0 && why != EEXIST)
            return zt_fail(err, ZT_EIO, "cannot create the state folder %s: %s", path, strerror(why));
        *p = c;
        if (!c)
            return 0;
    }
}

int zt_state_prepare(const char *flag, char *out, size_t n, struct zt_error *err)
{
    struct stat st;
    if (zt_state_folder(flag, out, n, err) || make_folders(out, err))
        return err->code;
    if (stat(out, &st))
        return zt_fail(err, ZT_EIO, "cannot look at the state folder %s: %s", out, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return zt_fail(err, ZT_EINVAL, "%s is not a folder; choose another --state", out);
    if (st.st_uid != geteuid())
        return zt_fail(err, ZT_EAUTH, "the state folder %s belongs to user %u, not to us (%u); choose another --state", out,
                       st.st_uid, geteuid());
    if (st.st_mode & 077)
        return zt_fail(err, ZT_EAUTH, "others may %s the state folder %s (mode %03o), which holds run files, logs and the token: "
                       "chmod 700 %s", st.st_mode & 022 ? "write" : "look into", out, st.st_mode & 0777, out);
    return 0;
}

/* ------------------------------------------------------------------------------ callbacks */
static void on_open(void *arg, struct zt_peer *p)
{
    struct zt_session *s = zt_session_add(arg, p);
    if (!s) {
        zt_peer_drop(p);
        return;
    }
    zt_peer_set_data(p, s);
}

static void on_request(void *arg, struct zt_peer *p, const Zt__Envelope *env)
{
    struct zt_session *s = zt_peer_data(p);
    if (s)
        zt_dispatch(arg, s, env);
}

static void on_close(void *arg, struct zt_peer *p)
{
    struct zt_session *s = zt_peer_data(p);
    if (!s)
        return;
    uint64_t id = s->id;
    s->peer = NULL;
    zt_session_remove(arg, s);
    zt_dispatch_closed(arg, id);
}

static void on_tick(uv_timer_t *t)
{
    struct zt_shell *sh = t->data;
    struct zt_event ev = { .kind = ZT_EV_TICK };
    zt_shell_step(sh, &ev, NULL);
}

static void on_signal(uv_signal_t *s, int number)
{
    zt_shell_stop(s->data, 0, number == SIGINT ? "SIGINT" : "SIGTERM");
}

static void on_store_state(void *arg, int code, const char *message) { zt_shell_store_state(arg, code, message); }
static void on_store_batch(void *arg) { zt_shell_committed(arg); }

/* ------------------------------------------------------------------------------ stop */
static void on_store_closed(void *arg) { (void)arg; }

static void on_server_closed(void *arg)
{
    struct zt_shell *sh = arg;
    sh->server_closed = true;
    zt_shell_check_stop(sh);
}

void zt_shell_check_stop(struct zt_shell *sh)
{
    if (!sh->stopping || !sh->server_closed || sh->store_closing || zt_readers_busy(sh->readers) > 0)
        return;
    sh->store_closing = true;
    zt_readers_free(sh->readers);
    sh->readers = NULL;
    zt_store_close(sh->store, STOP_SECONDS, on_store_closed, sh);
}

void zt_shell_stop(struct zt_shell *sh, int exit_code, const char *why)
{
    if (exit_code && !sh->exit_code)
        sh->exit_code = exit_code;
    if (sh->stopping)
        return;
    sh->stopping = true;
    zt_coord_log(exit_code ? "error" : "info", "stopping", "reason=\"%s\"", why);
    if (!sh->running)
        return; /* zt_serve sees it and abandons the start */
    uv_close((uv_handle_t *)&sh->tick, NULL);
    uv_close((uv_handle_t *)&sh->sigterm, NULL);
    uv_close((uv_handle_t *)&sh->sigint, NULL);
    zt_server_close(sh->server, on_server_closed, sh);
}

/* ------------------------------------------------------------------------------ start */
static void raise_descriptor_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &l))
            zt_coord_log("warning", "descriptors", "message=\"the limit of %llu open files stays\"", (unsigned long long)l.rlim_cur);
    }
}

static int recover(struct zt_shell *sh, struct zt_error *err)
{
    struct zt_recovered r;
    sqlite3 *db = NULL;
    if (zt_query_open(sh->state_dir, &db, err))
        return err->code;
    int code = zt_recover(db, sh->epoch, zt_shell_wall_ms(), &r, err);
    sqlite3_close(db);
    if (code)
        return code;
    for (size_t i = 0; i < r.recovery.n_runs && !code; i++) {
        code = zt_run_info_add(sh, &r.texts[i], err);
        memset(&r.texts[i], 0, sizeof r.texts[i]); /* taken over, or freed, either way */
    }
    struct zt_machine_config mc;
    zt_machine_config_default(&mc);
    if (!code) {
        while ((size_t)mc.max_workers < r.recovery.n_workers + 64)
            mc.max_workers *= 2;
        while ((size_t)mc.max_runs < r.recovery.n_runs + 64)
            mc.max_runs *= 2;
        sh->machine = zt_machine_new(&mc);
        if (!sh->machine)
            code = zt_fail(err, ZT_ENOMEM, "out of memory");
    }
    if (!code) {
        struct zt_event ev = { .kind = ZT_EV_START, .u.start.recovery = &r.recovery };
        zt_coord_log("info", "recovered", "epoch=%" PRIu64 " runs=%zu workers=%zu", sh->epoch, r.recovery.n_runs, r.recovery.n_workers);
        zt_shell_step(sh, &ev, NULL);
        if (sh->stopping || zt_machine_txn(sh->machine) == 0)
            code = zt_fail(err, ZT_EIO, "the coordinator could not take up what the database holds: out of memory?");
    }
    zt_recovered_free(&r);
    return code;
}

static int open_store(struct zt_shell *sh, struct zt_error *err)
{
    struct zt_store_config c = { .state_dir = sh->state_dir, .loop = &sh->loop, .arg = sh, .on_state = on_store_state,
                                 .on_batch = on_store_batch };
    if (zt_store_open(&c, &sh->store, err))
        return err->code;
    sh->epoch = zt_store_epoch(sh->store);
    const struct zt_migrate_result *m = zt_store_migration(sh->store);
    if (m->from != m->to)
        zt_coord_log("info", "migrated", "from=%d to=%d backup=\"%s\"", m->from, m->to, m->backup);
    return 0;
}

static int listen_on(struct zt_shell *sh, const struct zt_serve_config *c, struct zt_error *err)
{
    char token[1100];
    struct zt_server_config sc = { .port = c->port, .epoch = sh->epoch, .version = ZT_VERSION, .arg = sh, .on_open = on_open,
                                   .on_request = on_request, .on_close = on_close };
    snprintf(sc.host, sizeof sc.host, "%s", c->host);
    snprintf(token, sizeof token, "%s/token", sh->state_dir);
    if (zt_token_create(&zt_sys_posix, token, err) || zt_token_load(&zt_sys_posix, token, &sc.token, err))
        return err->code;
    return zt_server_open(&sh->loop, &sc, &sh->server, err);
}

static void start_timer_and_signals(struct zt_shell *sh)
{
    uv_timer_init(&sh->loop, &sh->tick);
    uv_signal_init(&sh->loop, &sh->sigterm);
    uv_signal_init(&sh->loop, &sh->sigint);
    sh->tick.data = sh->sigterm.data = sh->sigint.data = sh;
    uv_timer_start(&sh->tick, on_tick, ZT_MACHINE_TICK_MS, ZT_MACHINE_TICK_MS);
    uv_signal_start(&sh->sigterm, on_signal, SIGTERM);
    uv_signal_start(&sh->sigint, on_signal, SIGINT);
}

static void finish(struct zt_shell *sh)
{
    for (size_t i = 0; i < ZT_REQUEST_BUCKETS; i++)
        for (struct zt_session *s = sh->sessions[i], *next; s; s = next) {
            next = s->next;
            free(s);
        }
    zt_requests_free(sh);
    zt_effects_end(sh);
    zt_machine_free(sh->machine);
    free(sh);
}

/* A failed start: what was opened is closed in the order of a stop. */
static int abandon(struct zt_shell *sh, struct zt_error *err)
{
    fprintf(stderr, "zcoord: %s\n", err->msg);
    sh->stopping = true;
    if (sh->server)
        zt_server_close(sh->server, NULL, NULL);
    zt_readers_free(sh->readers);
    if (sh->store)
        zt_store_close(sh->store, 0, on_store_closed, sh);
    uv_run(&sh->loop, UV_RUN_DEFAULT);
    uv_loop_close(&sh->loop);
    finish(sh);
    return zt_exit_code(err->code);
}

int zt_serve(const struct zt_serve_config *c)
{
    struct zt_error err = { 0 };
    struct zt_shell *sh = calloc(1, sizeof *sh);
    if (!sh || uv_loop_init(&sh->loop)) {
        fprintf(stderr, "zcoord: out of memory or descriptors\n");
        free(sh);
        return 10;
    }
    signal(SIGPIPE, SIG_IGN);
    umask(077); /* runs, logs and paths are nobody else's, in whatever folder they lie */
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is an error of a write, not the end of us */
    sh->waiting_last = &sh->waiting;
    raise_descriptor_limit();
    /* The socket before the recovery: a port that is taken must not have moved any run. Nobody is answered before
     * the loop runs. */
    if (zt_state_prepare(c->state, sh->state_dir, sizeof sh->state_dir, &err) || open_store(sh, &err) ||
        listen_on(sh, c, &err) || zt_readers_new(sh, &sh->readers, &err) || recover(sh, &err))
        return abandon(sh, &err);
    start_timer_and_signals(sh);
    sh->running = true;
    int port = zt_server_port(sh->server);
    printf("listening on %s:%d\n", c->host, port);
    fflush(stdout);
    zt_coord_log("info", "listening", "address=%s:%d epoch=%" PRIu64 " state=\"%s\" version=%s pid=%ld", c->host, port, sh->epoch,
                 sh->state_dir, ZT_VERSION, (long)getpid());
    uv_run(&sh->loop, UV_RUN_DEFAULT);
    ZT_ASSERT(uv_loop_close(&sh->loop) == 0); /* every handle was closed: nothing leaks unseen */
    int code = sh->exit_code;
    finish(sh);
    zt_coord_log("info", "stopped", "code=%d", code);
    return code;
}
